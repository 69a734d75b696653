"""Declares the file tap: lines about the files that agents use."""

from dataclasses import dataclass
from typing import Annotated, Final

from acp_gateway.config.schema import Count, Entry, Fixed
from acp_gateway.config.services import Service

IGNORED: Final = (
    *(".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache", ".pytest_cache"),
    *(".ruff_cache", ".next", "dist", "build", "target", ".gradle", ".idea", ".cache", ".worktrees"),
)
"""Names of directories that hold what programs have made."""


def read_names(entry: Entry) -> tuple[str, ...]:
    """Read names of directories. Raises `ConfigError`."""
    for element in entry.array("an array of names of directories"):
        # A path, or a pattern, would never match.
        if not (isinstance(element.value, str) and element.value) or "/" in element.value or "*" in element.value:
            raise element.error('expected the name of a directory, without a slash, such as "node_modules"')
    return tuple(entry.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TapSection:
    """`[tap]`: the file tap, which tells the files that agents use; `serves = ["tap"]` of a listener serves it."""

    ignore: Fixed[Annotated[tuple[str, ...], read_names]] = IGNORED
    """Names of directories. Files below one of them are left out, because programs have made them: one search in
    `node_modules` would push all files of the project out of `files`. A directory above the session's own does not
    count."""

    files: Fixed[Count] = 1000
    """Maximum files of one session that are told; beyond it, the one that was unused for longest is removed. More than
    a heat map shows, and at most some 2 MiB for each session and reader, as a path has at most 1024 bytes."""

    sessions: Fixed[Count] = 64
    """Maximum sessions that are told over one connection; those that become live beyond it are left out. More than one
    person has open at a time. One session can be chosen by the connection's first line."""

    context_turns: Fixed[Count] = 3
    """Turns without access to a file after which it counts as out of the agent's context. Agents compact their context
    when they need to, and tell nothing about single files: a task has rarely more turns between two looks at a file
    that it still needs."""


SERVICE: Final = Service(
    word="tap",
    about='`["tap"]` is the file tap, alone on `tcp`, `tcp+tls` or `unix`.',
    folder=__package__,
    section=TapSection,
    more="[dialects.md](dialects.md#file-tap) describes it.",
    at_lines=True,
)
