"""Lists the hosts that a user's ssh configuration names, to choose one of them.

Only names are read; what they mean is left to ssh itself (`ssh -G`).
"""

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MAX_DEPTH: Final = 16
"""Maximum nesting of included files, as in ssh."""

MAX_SIZE: Final = 1024 * 1024
"""Maximum bytes of one file that are read: more than any configuration has."""

_WORD: Final = re.compile(r'"([^"]*)"|([^\s"]+)')
_PATTERN: Final = re.compile(r"[*?!]")


def ssh_hosts(path: Path) -> list[str]:
    """Return the names of the hosts in a configuration and the files that it includes, each once, without patterns.

    Files that can't be read are left out, as is what ssh would not understand.
    """
    return list(dict.fromkeys(_hosts(path, path.parent, 0)))


def own_ssh_hosts() -> list[str]:
    """Return the hosts of this user's configuration; none without a home folder."""
    home = os.path.expanduser("~")
    return ssh_hosts(Path(home, ".ssh/config")) if os.path.isabs(home) else []


def _hosts(path: Path, folder: Path, depth: int) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SIZE).decode(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        keyword, values = _split(line)
        if keyword == "host":
            yield from (name for name in values if not _PATTERN.search(name) and name.isprintable())
        elif keyword == "include" and depth < MAX_DEPTH:
            for value in values:
                # Relative to ~/.ssh, also from an included file.
                for included in sorted(glob.glob(str(folder / os.path.expanduser(value)))):
                    yield from _hosts(Path(included), folder, depth + 1)


def _split(line: str) -> tuple[str, list[str]]:
    """Return the keyword of a line in lower case, and its values."""
    line = line.strip()
    if line.startswith("#"):
        return "", []
    keyword = re.match(r"\w+", line)
    if keyword is None:
        return "", []
    # One equals sign may stand behind the keyword.
    rest = re.sub(r"^\s*=", "", line[keyword.end() :])
    values = [quoted or plain for quoted, plain in _WORD.findall(rest.partition(" #")[0])]
    return keyword[0].lower(), values
