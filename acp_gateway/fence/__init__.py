"""Fences around agents: which files, devices and ports an agent's process may use.

`places.py` lists places, `programs.py` finds what a program is made of, `plan.py` decides, `landlock.py` and
`bubblewrap.py` tell the kernel, `start.py` composes the order that `launcher.py` carries out, the first program of each
agent. Nothing here knows hubs, sessions or messages.
"""
