"""Chooses the sessions that another gateway is told: some of each identity that it may speak for, within bounds.

A control connection is told what has changed in its list, in place of the whole list each time.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import trio

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.protocol import jsonrpc
from acp_gateway.security.token_store import EVERYONE

MAX_SIZE: Final = 3 * 1024 * 1024
"""Maximum bytes of such a list. The other gateway takes messages of 4 MiB."""

_T = TypeVar("_T")


def spoken_reaches(reach: SessionReach, registry: Registry, may_speak_for: Sequence[str]) -> list[SessionReach]:
    """Return the reaches of all identities whose sessions a credential is told: its own first, then by name."""
    if not may_speak_for or reach.only is not None:
        return [reach]
    owners = registry.owners
    spoken = owners if EVERYONE in may_speak_for else owners.intersection(may_speak_for)
    return [reach, *(replace(reach, identity=identity) for identity in sorted(spoken - {reach.identity}))]


def fair_share(lists: Sequence[Sequence[_T]], most: int) -> list[_T]:
    """Return the last elements of all lists, `most` together at most: as many of each, and of short ones all."""
    kept = [0] * len(lists)
    shortest_first = sorted(range(len(lists)), key=lambda index: len(lists[index]))
    for done, index in enumerate(shortest_first):
        kept[index] = min(len(lists[index]), most // (len(lists) - done))
        most -= kept[index]
    return [element for each, count in zip(lists, kept, strict=True) for element in each[len(each) - count :]]


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


def unlisted(owners: Sequence[str], counts: Sequence[int], listed: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return how many sessions of each owner are not listed, of those who have some; `counts` are all of each owner."""
    shown = Counter(session["owner"] for session in listed)
    left = {owner: count - shown[owner] for owner, count in zip(owners, counts, strict=True)}
    return {owner: count for owner, count in left.items() if count > 0}


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
