"""Commands for the machine with the gateway."""
