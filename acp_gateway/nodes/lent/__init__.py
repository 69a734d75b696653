"""Bytes to nodes that are not read here: tunnels of clients, and connections that nodes lend."""
