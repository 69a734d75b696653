"""Other gateways that this one leads to: their set, what is asked of them, and the exchange of tokens with them.

With `[cluster]`, they know of each other by a directory in Redis or Valkey; `membership` and the modules that it needs
are imported only then. The directory has what no gateway knows by itself: nodes, tokens and revocations. Sessions are
not in it. When it is lost, nothing is decided from its absence.
"""
