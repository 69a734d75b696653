"""Chooses the sessions that another gateway is told: some of each identity that it may speak for, within bounds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import SessionScope
from acp_gateway.protocol import jsonrpc
from acp_gateway.security.token_file import EVERYONE

MAX_SIZE: Final = 3 * 1024 * 1024
"""Maximum bytes of such a list. The other gateway takes messages of 4 MiB."""

_T = TypeVar("_T")


def spoken_scopes(scope: SessionScope, registry: Registry, may_speak_for: Sequence[str]) -> list[SessionScope]:
    """Return the scopes of all identities whose sessions a credential is told: its own first, then by name."""
    if not may_speak_for or scope.only is not None:
        return [scope]
    owners = registry.owners
    spoken = owners if EVERYONE in may_speak_for else owners.intersection(may_speak_for)
    return [scope, *(replace(scope, identity=identity) for identity in sorted(spoken - {scope.identity}))]


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
