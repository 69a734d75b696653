"""Revocations and rotations of shared tokens between nodes: told, confirmed, or unheard of.

Imported only with `[cluster]`.
"""

import json
import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import trio

from acp_gateway.client.control import request
from acp_gateway.errors import GatewayError, UsageError
from acp_gateway.gateway.node_directory import Node
from acp_gateway.nodes.known_nodes import ClusterNodes
from acp_gateway.nodes.member import Member
from acp_gateway.nodes.node_set import destination_of
from acp_gateway.nodes.store import ClusterLost, ClusterStore
from acp_gateway.nodes.token_sync import Hearsay, News, TokenSync, read_news
from acp_gateway.printable import printable
from acp_gateway.protocol.methods import TOKENS

log = logging.getLogger(__name__)

CONFIRM_TIME: Final = 2.0
"""Seconds to wait for the confirmations of nodes: a person waits for them. Each node that answers needs a fraction."""

ASK_TIME: Final = 5.0
"""Seconds for one node to answer."""

MOST_AT_ONCE: Final = 20
"""Nodes that are told something at the same time."""

LATELY: Final = 60.0
"""Seconds since a node has read the directory after which its word is not that of the directory."""

_FIRST: Final = 2.0
"""Seconds after the start before all nodes are asked: by then Redis has answered, if it is there."""

_RETRY: Final = 1.0
"""Seconds after which a node that was not reached is told again; each time twice as many, up to `_RETRY_MAX`."""

_RETRY_MAX: Final = 4.0
"""Most seconds between two attempts to tell a node, and so until one that goes on hears of it: an attempt under way
reaches it at once."""

_REFUSING: Final = 10.0
"""Seconds between two rounds of questions while shared tokens are refused for want of an answer."""

_PAUSE: Final = 0.1
"""Seconds between two looks at the confirmations in the directory."""

_CHECK: Final = 1.0
"""Seconds between two looks at how long nothing was heard."""


class Messenger:
    """Exchanges news of tokens with other nodes, each time over a connection of its own.

    A change that was made here is told to all nodes at once, again and again to one that is not reached. All are asked
    once after the start: the directory may hide what this node does not know yet. While the directory is lost, they are
    asked up to the first that has read it lately, else all.

    Args:
        tokens: those of this gateway.
        store: the directory.
        member: knows the other nodes.
        nodes: the states of these, as far as they are watched.
        own_id: the id of this gateway in the paths of connections.
        limit: seconds for which tokens are accepted without news.
    """

    def __init__(
        self,
        tokens: TokenSync,
        store: ClusterStore,
        member: Member,
        nodes: Mapping[str, Node],
        own_id: str,
        limit: float,
    ) -> None:
        self._tokens = tokens
        self._store = store
        self._member = member
        self._nodes = nodes
        self._own_id = own_id
        self._limit = limit
        self._changed = trio.Event()
        # Nodes that are being told of changes.
        self._told: set[str] = set()
        # Nodes that were not reached last time wait for each other, and others do not wait for them.
        self._places = {is_lost: trio.CapacityLimiter(MOST_AT_ONCE) for is_lost in (False, True)}
        # Since when a node is not reached, and why.
        self._lost: dict[str, tuple[float, str]] = {}

    def tell(self) -> None:
        """Tell all nodes of a change that was made here."""
        self._changed.set()

    async def run(self) -> None:
        """Tell changes, and ask while the directory is lost, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_while_lost)
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                for name in {*self._member.known.sections} - self._told:
                    nursery.start_soon(self._tell, name)

    async def _tell(self, name: str) -> None:
        """Tell a node of the changes that were made here. One that is stopped, and knows nothing of its time, hears of
        them when it goes on, though the directory is lost."""
        pause = _RETRY
        self._told.add(name)
        while name in self._member.known.sections:
            told = self._changed
            await self._ask(name)
            if name in self._lost:
                await trio.sleep(pause)
                pause = min(2 * pause, _RETRY_MAX)
            elif told is self._changed:
                break
        self._told.discard(name)

    async def _ask_all(self, names: Sequence[str]) -> None:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self._ask, name)

    async def _ask_while_lost(self) -> None:
        pause, has_asked_all = _FIRST, False
        while True:
            # Not all nodes at the same time, when Redis has gone.
            await trio.sleep(pause * (0.5 + random.random()))  # noqa: S311
            if not self._member.known.is_read:
                continue  # It knows no node yet.
            is_silent = self._tokens.hearsay.silence(trio.current_time(), self._known()) > self._limit
            pause = min(self._limit / 8, _REFUSING if is_silent else math.inf)
            names = [*self._member.known.sections]
            if not has_asked_all:
                has_asked_all = True
                await self._ask_all(names)
            if self._member.contact.up:
                continue
            random.shuffle(names)
            for name in names:
                age = await self._ask(name)
                if age is not None and age <= LATELY:
                    break

    async def _ask(self, name: str) -> float | None:
        """Exchange news with a node; return the seconds since it has read the directory, if it has."""
        section = self._member.known.sections.get(name)
        if section is None:
            return None
        try:
            async with self._places[name in self._lost]:
                destination = destination_of(section, self._own_id)
                news = _as_json(self._tokens.news())
                answer = read_news(await request(destination, TOKENS, news, time_limit=ASK_TIME))
        except GatewayError as error:
            since = self._lost.get(name, (time.time(), ""))[0]
            self._lost[name] = since, printable(str(error), size=300)
            return None
        self._lost.pop(name, None)
        if answer is None or answer.node != name:
            return None
        await self._tokens.receive(answer)
        return answer.age

    async def answer(self, params: object) -> object:
        """Take over what a node tells, and return what it has to know. Raises `UsageError`."""
        news = read_news(params)
        if news is None:
            raise UsageError("the news of tokens is not understood")
        await self._tokens.receive(news)
        return _as_json(self._tokens.news())

    async def confirm(self, token_id: str) -> dict[str, Any]:
        """Tell all nodes of what has happened to a token; return which of them have confirmed it, after `CONFIRM_TIME`
        at most."""
        confirmed: set[str] = set()
        with trio.move_on_after(CONFIRM_TIME):
            await self._tokens.look()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_all, [name for name in self._known() if not self._knows(name, token_id)])
                nursery.start_soon(self._read_confirmations, confirmed)
                while True:
                    confirmed |= {name for name in self._known() if self._knows(name, token_id)}
                    if confirmed.issuperset(self._known()):
                        break
                    await trio.sleep(_PAUSE)
                nursery.cancel_scope.cancel()
        return {"nodes": [self._describe(name, name in confirmed) for name in sorted(self._known())]}

    async def _read_confirmations(self, confirmed: set[str]) -> None:
        """Add the nodes that have confirmed all changes in the directory."""
        try:
            if not await self._tokens.sync():
                return
            number = await self._store.tokens_number()
            while True:
                confirmed |= {name for name, last in (await self._store.confirmations()).items() if last >= number}
                await trio.sleep(_PAUSE)
        except ClusterLost:
            pass  # They tell it directly, or not at all.

    def _known(self) -> list[str]:
        return [*self._member.known.records]

    def _knows(self, name: str, token_id: str) -> bool:
        return self._tokens.has_confirmed(name, token_id)

    def _describe(self, name: str, confirmed: bool) -> dict[str, Any]:  # noqa: FBT001
        node = self._nodes.get(name)
        since, why = self._lost.get(name, (None, self._tokens.problem or "no answer yet"))
        if node is not None and node.asked and not node.up:
            since, why = node.since, node.why
        text = None if since is None else datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"name": name, "confirmed": confirmed} | (
            {"since": None, "why": None} if confirmed else {"since": text, "why": why}
        )


def _as_json(news: News) -> Any:
    return json.loads(msgspec.json.encode(news))


class SharedTrust:
    """Judges if this node can know which shared tokens were revoked.

    Args:
        hearsay: the news of other nodes.
        known: these nodes.
        limit: seconds for which tokens are accepted without news.
    """

    def __init__(self, hearsay: Hearsay, known: ClusterNodes, limit: float) -> None:
        self._hearsay = hearsay
        self._known = known
        self._limit = limit

    def problem(self) -> str | None:
        """Say why shared tokens are not accepted; None while they are."""
        known = [*self._known.records] if self._known.is_read else None
        if self._hearsay.silence(trio.current_time(), known) <= self._limit:
            return None
        return (
            f"this node could not learn for {self._limit:g} s (cluster.isolation_limit) which tokens were revoked: it "
            "accepts shared ones again when it reaches Redis, or nodes that do"
        )

    async def run(self) -> None:
        """Log when shared tokens are not accepted any more, and when they are again, until cancelled."""
        was_told = False
        while True:
            problem = self.problem()
            if problem is not None and not was_told:
                log.error("%s", problem)
            elif problem is None and was_told:
                log.info("this node knows again which tokens were revoked: it accepts shared ones")
            was_told = problem is not None
            await trio.sleep(_CHECK)
