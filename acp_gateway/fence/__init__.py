"""Fences around agents: which files, devices and ports an agent's process may use.

`plan.py` decides, `landlock.py` and `bubblewrap.py` say it to the kernel, `launcher.py` is the first program of each
agent. Nothing here knows hubs, sessions or messages.
"""
