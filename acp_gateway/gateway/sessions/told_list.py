"""The list of sessions that a control connection was told: later, what has changed is told in its place."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import trio

from acp_gateway.protocol import jsonrpc

MAX_SIZE: Final = 3 * 1024 * 1024
"""Maximum bytes of such a list. The other gateway takes messages of 4 MiB."""


def within_size(described: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the last of these sessions that take `most` bytes of JSON at most."""
    if len(jsonrpc.encode(described)) <= most:
        return [*described]
    kept: list[dict[str, Any]] = []
    for session in reversed(described):
        most -= len(jsonrpc.encode(session)) + 1
        if most < 0:
            break
        kept.append(session)
    return kept[::-1]


READ_ALL: Final = 60.0
"""Seconds after which the list is read again though no session has changed: of what is on the disk nothing is told."""

Key = tuple[str, str, str]
"""The agent, the id and the owner of a session: agents that count their sessions have the same ids for several owners.
"""


class ToldList:
    """The list that one connection was told last.

    Args:
        version: returns another number when a session has changed; None where the list has sessions of others as well.
    """

    def __init__(self, version: Callable[[], int] | None) -> None:
        self._version = version
        # None before the first one, and if its sessions have no keys of their own.
        self._rows: dict[Key, Mapping[str, Any]] | None = None
        self._rest: Mapping[str, Any] = {}
        self._state: Hashable = None
        self._read_at = 0.0
        self._access: Mapping[str, Any] | None = None

    def has_changed(self, state: Hashable) -> bool:
        """Return whether the list may be another one than the last. `state`: what else it depends on."""
        if self._version is None:
            return True
        now, state = trio.current_time(), (self._version(), state)
        if self._rows is not None and state == self._state and now - self._read_at < READ_ALL:
            return False
        self._state, self._read_at = state, now
        return True

    def changes(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of a response: the list, or what is another than in the last one if that is less."""
        sessions = answer["sessions"]
        rows = {_key(session): session for session in sessions}
        before = self._rows
        self._rows = rows if len(rows) == len(sessions) else None
        self._rest = {name: value for name, value in answer.items() if name != "sessions"}
        if before is None or self._rows is None:
            return dict(answer)
        changed = [session for key, session in rows.items() if before.get(key) != session]
        removed = [list(key) for key in before if key not in rows]
        told = {"changed": changed, "removed": removed, **self._rest}
        return dict(answer) if removed and len(jsonrpc.encode(told)) > MAX_SIZE else told

    def nothing(self) -> dict[str, Any]:
        """Return the members of a response to which the last one is still true."""
        return {"changed": [], "removed": [], **self._rest}

    def access(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rights of the connection as a member, if these are others than the last ones."""
        if described == self._access:
            return {}
        self._access = described
        return {"access": described}


def _key(session: Mapping[str, Any]) -> Key:
    return session["agent"], session["sessionId"], session["owner"]
