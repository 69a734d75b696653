"""The session API: JSON-RPC by which a client lists sessions, follows them and acts in them.

Browsers speak it at `/ws`, other clients over control connections; see `docs/web-protocol.md`. `requests` and `output`
are its pure translators.
"""
