"""Finds the files that belong to a program: those that it is made of, and those that decide what runs.

A fence opens the former of an agent, and keeps the agent from writing the latter of the gateway. These functions read
the disk.
"""

import os
import re
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

MAX_INTERPRETERS: Final = 4
"""Most programs that start each other: a script, `env`, an interpreter that is a link, and no more."""

SCRIPT_SIZE: Final = 4096
"""Bytes of a script in which paths are looked for: one that starts another program has a few lines."""

_BINS: Final = ("bin", ".bin", "libexec")
_MARKS: Final = ("lib", "lib64", "libexec", "share", "conda-meta")
"""Names beside a `bin` that make the folder around it an installation."""

_STRONG_MARKS: Final = ("pyvenv.cfg", "package.json", "node_modules")
"""Names that make a folder an installation, with a `bin` or without."""


def interpreter(program: str, path: str) -> str | None:
    """Return the program that runs a script, found on a PATH; None for another file."""
    words = _first_words(program)
    return shutil.which(words[0], path=path) if words else None


def _first_words(program: str) -> list[str]:
    """Return the words of a script that name its interpreter; none for another file."""
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return []
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    return words


def named_in(script: str) -> list[str]:
    """Return the absolute paths that a script names: one that only starts the real program names that."""
    try:
        with open(script, "rb") as file:
            text = file.read(SCRIPT_SIZE)
    except OSError:
        return []
    if not text.startswith(b"#!"):
        return []
    return re.findall(r"(?<![\w.$}~/])/[\w.@+/-]+", text.partition(b"\n")[2].decode(errors="replace"))


def installation(path: str) -> Iterator[str]:
    """Yield where a file is installed: its `bin`, and the folder around that has the libraries; the packages of Node.js
    around it; the Python that its virtual environment is of.

    Of a file elsewhere, such as a script in a folder of projects, there is nothing.
    """
    for place in {path, os.path.realpath(path)}:
        folder, around = os.path.dirname(place), os.path.dirname(os.path.dirname(place))
        if os.path.basename(folder) in _BINS:
            yield folder
            marks: tuple[str, ...] = (*_MARKS, *_STRONG_MARKS)
        else:
            marks = _STRONG_MARKS
            if _has_any(folder, marks):
                yield folder
        if _has_any(around, marks):
            yield around
        if (at := place.rfind("/node_modules/")) > 0:
            yield place[: at + len("/node_modules")]
    try:
        text = Path(os.path.dirname(os.path.dirname(path)), "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        return
    if found := re.search(r"^home\s*=\s*(/.*)/bin\s*$", text, re.MULTILINE):
        yield found[1]


def _has_any(folder: str, names: Sequence[str]) -> bool:
    # A folder directly below the root has things of all kinds.
    return folder.count("/") > 1 and any(os.path.lexists(os.path.join(folder, name)) for name in names)


def run_by(command: Sequence[str], search_path: str, cwd: str) -> Iterator[str]:
    """Yield the paths that decide what a command runs: its program, where that is looked for first, its interpreters,
    and the files in its arguments. Some of them may not exist."""
    name: str | None = command[0]
    for _ in range(MAX_INTERPRETERS):
        if name is None:
            break
        program = None
        for program in looked_for(name, search_path, cwd):
            yield program
        words = [] if program is None else _first_words(program)
        name = words[0] if words else None
    for word in command[1:]:
        if os.path.isfile(path := os.path.join(cwd, word)):
            yield path


def looked_for(name: str, search_path: str, cwd: str) -> Iterator[str]:
    """Yield the paths at which a program is looked for, to the one at which it is found."""
    if "/" in name:
        yield os.path.join(cwd, name)
        return
    for folder in search_path.split(os.pathsep):
        yield (program := os.path.join(cwd, folder, name))
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return


def here() -> str:
    """Return this process's folder; the root for one that is removed, in which nothing is found either."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def of_gateway() -> dict[str, str]:
    """Return the paths that decide what this program runs, each with what it is."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    cwd = here()
    found = {
        os.path.join(cwd, entry, os.path.basename(package)): "where `python -m` finds it first" for entry in sys.path
    }
    found[package] = "its own code"
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        found[sysconfig.get_path(name)] = "its Python's modules"
    found[os.path.join(sys.prefix, "pyvenv.cfg")] = "its Python's settings"
    found[sys.executable] = "its Python"
    if site.ENABLE_USER_SITE:
        found[site.getusersitepackages()] = "its Python's modules of this user"
    if os.path.isfile(started := os.path.join(cwd, sys.argv[0])):
        found[started] = "its program"
    return found
