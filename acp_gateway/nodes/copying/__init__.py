"""Copies what a client and the gateway of a node say to each other."""
