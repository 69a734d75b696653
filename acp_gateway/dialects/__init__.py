"""Other dialects over the same sessions: the page, chat widgets, editors, a stream of file events.

Each dialect has a folder with its translator, which is pure, and its connection. Here is what they share: the viewer of
a session, and the calls on it. Dialects do not import each other.
"""
