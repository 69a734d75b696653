"""Searches the histories at nodes for one viewer here, who is told of the sessions that are listed for it."""

from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio

from acp_gateway.client.control import SearchAnswer
from acp_gateway.client.dialing import Destination
from acp_gateway.config.nodes import SEPARATOR, NodeSection
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import GatewayError
from acp_gateway.gateway.node_directory import Node, NodeDirectory
from acp_gateway.gateway.search.elsewhere import FoundAtNodes, FoundElsewhere
from acp_gateway.gateway.search.service import MOST_FOUND
from acp_gateway.gateway.search.texts import SNIPPET
from acp_gateway.gateway.sessions.node_sessions import TEXT, NodeSessions

TIME_LIMIT: Final = 3.0
"""Seconds for the answers of all nodes together: a person waits for them."""

MOST_ASKED: Final = 32
"""Maximum nodes that one search asks, each over a connection of its own."""

Ask = Callable[[Destination, str, str], Awaitable[SearchAnswer]]
"""Searches at a gateway: for words, in the sessions of an identity there. Raises `GatewayError`."""


@dataclass
class _Answers:
    """The answers of nodes so far."""

    found: dict[str, list[FoundElsewhere]] = field(default_factory=dict)
    complete: bool = True


class NodeSearch:
    """The search at the nodes of one gateway.

    Args:
        directory: the nodes.
        sessions: the sessions of the nodes, which say who is told what.
        destination: returns where the control connection of a node leads; raises `GatewayError`.
        ask: searches at a node.
    """

    def __init__(
        self,
        directory: NodeDirectory,
        sessions: NodeSessions,
        destination: Callable[[NodeSection], Destination],
        ask: Ask,
    ) -> None:
        self._directory = directory
        self._sessions = sessions
        self._destination = destination
        self._ask = ask

    async def find(self, reach: SessionReach, agents: Container[str], words: str) -> FoundAtNodes:
        """Return the sessions at nodes in which all words are found, of those that are listed beside the gateway's own.

        Args:
            reach: the sessions that exist for the viewer.
            agents: the agents whose sessions it is told.
            words: a search that this gateway has accepted.

        It takes `TIME_LIMIT` seconds, and the time of a list if a node was not asked yet, at most. It does not fail:
        nodes that do not answer are `missing`. Cancelling closes the connections to the nodes.
        """
        self._sessions.need()
        if not all(node.asked for node in self._directory.nodes.values()):
            await self._sessions.refresh()
        listed = self._sessions.listed_at(reach, agents)
        asked = [name for name in listed if self._directory.nodes[name].up][:MOST_ASKED]
        answers = _Answers()
        with trio.move_on_after(TIME_LIMIT):
            async with trio.open_nursery() as nursery:
                for name in asked:
                    node, section = self._directory.nodes[name], self._directory.sections[name]
                    identity = reach.identity if node.speaks_for(reach.identity) else node.identity
                    nursery.start_soon(partial(self._find_at, node, section, identity, words, listed[name], answers))
        missing = sorted(listed.keys() - answers.found.keys())
        found = [one for name in asked for one in answers.found.get(name, ())]
        return FoundAtNodes(found, missing, answers.complete)

    async def _find_at(
        self,
        node: Node,
        section: NodeSection,
        identity: str,
        words: str,
        listed: Mapping[tuple[str, str], Mapping[str, Any]],
        answers: _Answers,
    ) -> None:
        try:
            answer = await self._ask(self._destination(section), words, identity)
        except GatewayError:
            return
        # A gateway of an earlier version does not say whose sessions they are.
        if any(one.get("owner") != identity for one in answer.found):
            return
        answers.complete = answers.complete and answer.complete
        answers.found[node.name] = [
            FoundElsewhere(
                f"{node.name}{SEPARATOR}{one['sessionId']}",
                f"{node.name}{SEPARATOR}{one['agent']}",
                identity,
                one["title"][:TEXT],
                one["texts"],
                # Two for what stands for the rest of the text.
                one["text"][: SNIPPET + 2],
            )
            for one in answer.found[:MOST_FOUND]
            if (one["agent"], one["sessionId"]) in listed
        ]
