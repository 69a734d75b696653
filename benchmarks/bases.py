"""Checkouts of other commits, to compare with."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FIRST: Final = "ffbb0af3"
"""The commit to compare with before there is a tag."""


class NoBase(Exception):
    """There is nothing to compare with."""


def find_base(root: Path) -> str:
    """Return the last tag before this commit, or `FIRST`."""
    try:
        return git(root, "describe", "--tags", "--abbrev=0", "HEAD^")
    except NoBase:
        return FIRST


def describe(root: Path, commit: str) -> str:
    """Return a commit's short name and subject. Raises `NoBase`."""
    return git(root, "log", "-1", "--format=%h %s", commit)


@contextmanager
def checked_out(root: Path, commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder while the block runs. Raises `NoBase`."""
    with tempfile.TemporaryDirectory(prefix="acp-base-") as directory:
        folder = Path(directory) / "base"
        git(root, "worktree", "add", "--detach", "--quiet", str(folder), commit)
        try:
            yield folder
        finally:
            git(root, "worktree", "remove", "--force", str(folder))


def git(root: Path, *words: str) -> str:
    """Return the output of git. Raises `NoBase`, with its words."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoBase(done.stderr.strip() or f"git {words[0]} has failed")
    return done.stdout.strip()
