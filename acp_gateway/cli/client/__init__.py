"""Commands for the machine with the editor."""
