"""Programs in Python for tests, which the system runs by their first line."""

import shlex
import sys


def python_script(code: str, *options: str) -> str:
    """Return the text of a program that runs with this Python, wherever that is.

    The path of an interpreter in a first line may be neither long nor contain a space. So that line names the shell,
    whose command is a string for Python.
    """
    command = shlex.join([sys.executable, *options])
    return f"#!/bin/sh\n'''exec' {command} \"$0\" \"$@\"\n'''\n{code}"
