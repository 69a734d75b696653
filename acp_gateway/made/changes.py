"""Marks of a session's working tree, one for each turn, and comparisons with them. Pure: `git_worker` makes them."""

from collections.abc import Container
from typing import Annotated, Any, Final, Literal

import msgspec

MAX_MARKS: Final = 200
"""Maximum marks of a session: its first one, and the latest."""

LATE: Final = 2
"""Seconds after the beginning of a turn from which on a mark may be without what its first commands have done."""

_Name = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40,64}$")]
_Path = Annotated[str, msgspec.Meta(max_length=16_384)]
_Text = Annotated[str, msgspec.Meta(max_length=4_096)]


class State(msgspec.Struct, frozen=True):
    """The state of a working tree at one moment."""

    root: _Path
    tree: _Name
    """git's name of all that is in it but ignored files."""
    head: _Name | None
    """The commit that is checked out."""
    worktrees: dict[_Path, _Text] = {}
    """The linked working trees, each with its branch."""


class Marked(State, frozen=True, kw_only=True):
    """A state that was marked, and what its store has room for."""

    kept: list[_Name]
    """The trees of marks that are still there."""

    @property
    def state(self) -> State:
        """The state alone."""
        return State(self.root, self.tree, self.head, self.worktrees)


class NewTree(msgspec.Struct, frozen=True):
    """A working tree that was made."""

    root: _Path
    cwd: _Path
    """The directory in it that stands for the one of the request."""
    branch: _Text


class RemovedTree(msgspec.Struct, frozen=True):
    """The rest of a working tree that was removed, or may be."""

    branch: _Text | None
    """Its branch, if that stays."""
    commits: int
    """Commits of it that no other branch has."""


class Mark(msgspec.Struct, frozen=True):
    """The state at the beginning of a turn."""

    number: int
    """From 1, in the order of the turns that were marked."""
    at: int
    """Milliseconds since 1970."""
    state: State


class File(msgspec.Struct, frozen=True, rename="camel"):
    """A file that has changed."""

    path: _Path
    """Below the root of the working tree."""
    status: Literal["added", "deleted", "modified"]
    old: _Name
    new: _Name
    """git's names of its contents; zeros for none."""
    executable: bool | None
    """True if it can be executed now, False if not any more; None if that has not changed."""
    old_text: str | None
    new_text: str | None
    """None without one, and where `why` says so."""
    why: Literal["large", "binary", "elsewhere", "secret"] | None
    """The reason why there are no texts; `elsewhere`: they are in a store for large files."""


class Commit(msgspec.Struct, frozen=True):
    """A commit."""

    id: _Name
    at: int
    """Seconds since 1970."""
    subject: _Text


class Comparison(msgspec.Struct, frozen=True):
    """The difference between two states."""

    root: _Path
    files: list[File]
    more: int
    """Number of further files."""
    commits: list[Commit]
    worktrees: dict[_Path, _Text] = {}


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer where something can't be done."""

    refused: _Text


class Done(msgspec.Struct, frozen=True):
    """The result of what was put back."""


class Marks(msgspec.Struct, frozen=True):
    """The marks of a session, as they are kept on the disk."""

    marks: list[Mark] = []
    why: str | None = None
    """The reason why the last turn has no mark."""
    late: int = 0
    """Seconds from the beginning of the last turn until its mark was begun."""

    def with_mark(self, state: State, at: int, kept: Container[str], late: int = 0) -> "Marks":
        """Return the marks with a further one, begun so many seconds late, without those whose trees are not kept.

        One of another working tree replaces them.
        """
        is_same = self.marks and self.marks[-1].state.root == state.root
        before = [mark for mark in self.marks if mark.state.tree in kept] if is_same else []
        number = self.marks[-1].number + 1 if self.marks else 1
        marks = [*before, Mark(number, at, state)]
        return Marks(marks if len(marks) <= MAX_MARKS else [marks[0], *marks[2:]], None, late)

    def without(self, why: str) -> "Marks":
        """Return the marks with the reason why there is no further one."""
        return Marks(self.marks, why)

    def span(self, number: int | None) -> tuple[Mark, Mark | None] | None:
        """Return a mark, and the next one: the turn between them. None as the second stands for now.

        Without a number, it is all since the first mark. Returns None without such a mark.
        """
        if number is None:
            return (self.marks[0], None) if self.marks else None
        for at, mark in enumerate(self.marks):
            if mark.number == number:
                return mark, self.marks[at + 1] if at + 1 < len(self.marks) else None
        return None


def without_text(file: File) -> File:
    """Return a file that may hold a secret as it is told: without its texts, and without names to guess them by."""
    zeros = "0" * len(file.old)
    return msgspec.structs.replace(file, old=zeros, new=zeros, old_text=None, new_text=None, why="secret")


def described(marks: Marks, number: int | None, comparison: Comparison) -> dict[str, Any]:
    """Return a comparison with a mark as members of a JSON object; see `docs/web-protocol.md`."""
    span = marks.span(number)
    assert span is not None, "it was compared with a mark"
    begin, end = span
    why = None if marks.why is None else f"The last turn has no mark: {marks.why}"
    if why is None and marks.late > LATE:
        why = f"The last turn was marked {marks.late} seconds after its beginning: earlier changes count as before it."
    known = begin.state.worktrees
    return {
        "git": True,
        "why": why,
        "marks": [{"number": mark.number, "at": mark.at} for mark in marks.marks],
        "mark": number,
        "present": end is None,
        "root": comparison.root,
        "files": msgspec.to_builtins(comparison.files),
        "more": comparison.more,
        "commits": msgspec.to_builtins(comparison.commits),
        "worktrees": [
            {"path": path, "branch": branch, "isNew": path not in known}
            for path, branch in comparison.worktrees.items()
        ],
    }
