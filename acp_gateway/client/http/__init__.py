"""Streamable HTTP from the side of the client, for servers that have no WebSocket.

`stream` is the `MessageStream`, `requests` decides its order, `events` reads what the server sends, and `connections`
and `cookies` make the requests. Of these, `connect` imports only `cookies` for other targets.
"""
