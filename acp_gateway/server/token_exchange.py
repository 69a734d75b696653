"""Revocations and rotations of shared tokens between nodes: told, confirmed, or unheard of.

Imported only with `[cluster]`.
"""

import json
import logging
from typing import Any, Final

import msgspec
import trio

from acp_gateway.client.control_feed import Ask
from acp_gateway.cluster.directory import ClusterNodes
from acp_gateway.cluster.member import Member
from acp_gateway.cluster.store import ClusterLost, ClusterStore
from acp_gateway.cluster.token_news import Hearsay, News, read_news
from acp_gateway.cluster.token_sync import TokenSync
from acp_gateway.errors import GatewayError, Unreachable, UsageError
from acp_gateway.protocol.methods import TOKENS
from acp_gateway.server.node_set import NodeSet

log = logging.getLogger(__name__)

CONFIRM_TIME: Final = 2.0
"""Seconds to wait for the confirmations of nodes: a person waits for them. Each node that answers needs a fraction."""

_PAUSE: Final = 0.1
"""Seconds between two looks at the confirmations."""

_CHECK: Final = 1.0
"""Seconds between two looks at how long nothing was heard."""


class Confirmations:
    """Tells other nodes of changes of tokens, and says which of them know.

    Args:
        tokens: those of this gateway.
        store: the directory.
        member: knows the other nodes.
        nodes: their states.
    """

    def __init__(self, tokens: TokenSync, store: ClusterStore, member: Member, nodes: NodeSet) -> None:
        self._tokens = tokens
        self._store = store
        self._member = member
        self._nodes = nodes

    async def ask(self, _name: str, ask: Ask) -> None:
        """Tell a node, and take over what it tells, unless it is of an earlier version. Raises `Unreachable`."""
        try:
            result = await ask(TOKENS, _as_json(self._tokens.news()))
        except Unreachable:
            raise
        except GatewayError:
            return
        news = read_news(result)
        if news is not None:
            await self._tokens.receive(news)

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
                nursery.start_soon(self._read_confirmations, confirmed)
                self._nodes.watcher.ask_again()
                while not self._known() <= confirmed:
                    await trio.sleep(_PAUSE)
                    confirmed |= {name for name in self._known() if self._tokens.has_confirmed(name, token_id)}
                nursery.cancel_scope.cancel()
        return {"nodes": [self._describe(name, name in confirmed) for name in sorted(self._known())]}

    async def _read_confirmations(self, confirmed: set[str]) -> None:
        """Add the nodes that have confirmed it in the directory."""
        try:
            await self._tokens.sync()
            number = await self._store.tokens_number()
            while True:
                confirmed |= {name for name, last in (await self._store.confirmations()).items() if last >= number}
                await trio.sleep(_PAUSE)
        except ClusterLost:
            pass  # They tell it directly, or not at all.

    def _known(self) -> set[str]:
        return {*self._member.known.records}

    def _describe(self, name: str, confirmed: bool) -> dict[str, Any]:  # noqa: FBT001
        node = self._nodes.directory.nodes[name]
        why = None if confirmed or node.up else node.why
        return {"name": name, "confirmed": confirmed, "up": node.up, "since": node.since_text, "why": why}


def _as_json(news: News) -> Any:
    return json.loads(msgspec.json.encode(news))


class SharedTrust:
    """Whether this node can know which shared tokens were revoked.

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
