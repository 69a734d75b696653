"""Streamable HTTP from the side of the client, for servers that have no WebSocket."""
