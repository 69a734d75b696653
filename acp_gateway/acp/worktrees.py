"""Working trees of git for sessions: as paths tell, `REPOSITORY/.worktrees/NAME`, and as clients ask for them. Pure."""

from typing import Final

from acp_gateway.protocol.methods import META, NEW
from acp_gateway.protocol.text.json_text import encode, object_at, raw_at, text_at, with_member, with_own_meta

WORKTREE: Final = "worktree"
"""Member of `session/new`: the name of the branch and working tree that the session gets. Of a result: that name."""

FOLDER: Final = ".worktrees"
"""Folder of a repository for the working trees of its sessions."""


def tree_of(path: str | None) -> str | None:
    """Return the innermost working tree of a session that a path is in; None if it is in none."""
    before, folder, behind = (path or "").rpartition(f"/{FOLDER}/")
    name = behind.partition("/")[0]
    return f"{before}{folder}{name}" if folder and name else None


def origin_of(path: str | None) -> str | None:
    """Return the same directory in the working tree that a session would have without its own; None if it has none."""
    tree = tree_of(path)
    if tree is None or path is None:
        return None
    return tree.rpartition(f"/{FOLDER}/")[0] + path.removeprefix(tree)


def asking(message: bytes, name: str) -> bytes:
    """Return a `session/new` that asks for a working tree of this name; any other message as it is."""
    if b"new" not in message or text_at(message, "method") != NEW:
        return message
    own = with_member(object_at(message, "params", "_meta", META), WORKTREE, encode(name))
    return with_member(message, "params", with_own_meta(object_at(message, "params"), own))


def is_ignored(params: bytes, response: bytes) -> bool:
    """Return whether a server has opened a session without the working tree that its `session/new` asks for."""
    asked = raw_at(params, "_meta", META, WORKTREE) or b""
    return asked[:1] == b'"' and raw_at(response, "result", "_meta", META, WORKTREE) is None
