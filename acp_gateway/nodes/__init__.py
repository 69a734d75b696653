"""Other gateways that this one leads to: their set, the watcher of each, and the exchange of tokens with them.

`membership` is imported only with `[cluster]`, and with it the folder `directory`.
"""
