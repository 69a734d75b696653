"""Checks with their remedies: of the gateway's machine, of its nodes, and of the way from a laptop to it."""
