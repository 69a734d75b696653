"""Finds files below a session's directory by a part of their path, for references in prompts.

Reads the disk, so it is called in a thread. It never leaves the directory: symbolic links are not followed.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from acp_gateway.made.files import scanned
from acp_gateway.made.files_rules import Place

MAX_ENTRIES: Final = 50_000
"""Maximum entries that are looked at: a large repository without what it has built. Each takes some 5 µs."""

MAX_SECONDS: Final = 2.0
"""Seconds after which the search ends with what it has: a person waits for it while typing."""

MAX_FOUND: Final = 200
"""Maximum number of paths that are returned; a person picks from the first screen."""

DEFAULT_FOUND: Final = 50

SKIPPED: Final = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "node_modules",
        "__pycache__",
        ".venv",
        "venv",
        ".tox",
        ".mypy_cache",
        ".pytest_cache",
        ".worktrees",
    }
    | {".ruff_cache", ".next", "dist", "build", "target", ".gradle", ".idea", ".cache"}
)
"""Directories that hold what programs have made."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    files: list[str]
    """Paths relative to the directory, the best match first."""
    complete: bool
    """False if the search ended before it had seen all files."""


def find_files(
    directory: Place,
    query: str,
    most: int = DEFAULT_FOUND,
    *,
    entries: int = MAX_ENTRIES,
    seconds: float = MAX_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Return the files below a directory whose paths contain the letters of `query` in their order, in any case.

    Args:
        directory: where to look.
        query: a part of a path; with an empty one, the files that are nearest to the directory.
        most: the number of files to return, at most `MAX_FOUND`.
        entries: the number of entries to look at.
        seconds: the time in which to look.
        clock: returns the time in seconds.
    """
    until, wanted = clock() + seconds, query.casefold().replace("\\", "/").lstrip("./")
    scored: list[tuple[tuple[int, int, int, str], str]] = []
    complete = True
    for count, (path, is_file) in enumerate(_walk(directory, entries + 1), 1):
        if count > entries or (count % 256 == 0 and clock() > until):
            complete = False
            break
        score = _score(path, wanted) if is_file else None
        if score is not None:
            scored.append(((*score, path), path))
    scored.sort()
    return Found([path for _, path in scored[: min(most, MAX_FOUND)]], complete)


def _walk(directory: Place, most: int) -> Iterator[tuple[str, bool]]:
    """Yield the paths below a directory, those near it first, and whether each is a file; of a folder, `most` paths."""
    pending = [""]
    while pending:
        following = []
        for folder in pending:
            try:
                with scanned(directory.below(*folder.split("/")[:-1])) as found:
                    inside = sorted(islice(found, most), key=lambda entry: entry.name)
            except OSError:
                continue  # Just removed, or not for the gateway's user.
            for entry in inside:
                path = f"{folder}{entry.name}"
                if not path.isprintable() or entry.is_symlink():
                    continue
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and entry.name not in SKIPPED:
                    following.append(f"{path}/")
                yield path, not is_folder and entry.is_file(follow_symlinks=False)
        pending = following


def _score(path: str, wanted: str) -> tuple[int, int, int] | None:
    """Return the rank of a path, the best with the least; None if it does not match."""
    folded = path.casefold()
    name = folded.rpartition("/")[2]
    depth = folded.count("/")
    if not wanted:
        return 0, depth, len(folded)
    if name.startswith(wanted):
        return 0, depth, len(folded)
    if wanted in name:
        return 1, depth, len(folded)
    if wanted in folded:
        return 2, depth, len(folded)
    letters = iter(folded)
    return (3, depth, len(folded)) if all(letter in letters for letter in wanted) else None
