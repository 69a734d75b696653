"""The viewer of sessions: which ones it has open, what it does in them, and what it is told of them.

Viewers are browsers, chat widgets, the requests of editors and control connections. Each uses sessions as an ACP client
inside the process would, and follows them by their journals.
"""
