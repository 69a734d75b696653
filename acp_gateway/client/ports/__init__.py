"""Ports on which agents' programs listen, for clients on other machines."""
