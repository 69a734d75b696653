"""Lets clients read the mirrored history of a session whose node is away. Imported only with `[cluster]`.

Such a client gets a hub of its own, whose agent is a stream in memory: `cluster/mirror_agent`. Nothing of it is in the
gateway's registry or on its disk. When the node is back, the client's connection ends: it connects again, to the node.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from acp_gateway.cluster.mirror_agent import NODE_AWAY, MirrorAgent, absence_text
from acp_gateway.cluster.mirrored_history import to_journal
from acp_gateway.cluster.store import ClusterLost, ClusterStore, MirroredJournal, owner_of_mirror
from acp_gateway.config.nodes import SEPARATOR, split_name
from acp_gateway.core.registry import Registry
from acp_gateway.core.sessions import SessionScope
from acp_gateway.core.states import SessionState
from acp_gateway.errors import Busy
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.agent.connection import run_listening_agent
from acp_gateway.gateway.agent.process import Agent
from acp_gateway.gateway.attachment import Disconnect
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.history import Mirror
from acp_gateway.gateway.hub import Hub
from acp_gateway.gateway.node_directory import Node, NodeDirectory
from acp_gateway.protocol.gaps import gap
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.transports.link import LOST
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason

log = logging.getLogger(__name__)

READERS: Final = 2
"""Mirrored histories that are read from the directory at a time, as of those on disk."""

READ_TIMEOUT: Final = 10.0
"""Seconds to wait for a place among them."""

PIECE_COUNT: Final = 256
"""Messages of a history that are passed on at once."""

HIGH_WATER: Final = 1024 * 1024
"""Bytes that wait for the reader, above which no more is passed on."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The purpose of a hub."""

    grant: Grant
    node: str
    key: str | None
    """The session's name in the cluster; None for a client that came for none."""


class Mirrors:
    """The readers of mirrored histories at one gateway.

    Args:
        gateway: the gateway.
        store: the directory of the cluster.
        nodes: the other nodes.
        clock: returns the time, in seconds since 1970.
    """

    def __init__(
        self, gateway: Gateway, store: ClusterStore, nodes: NodeDirectory, clock: Callable[[], float] = time.time
    ) -> None:
        self._gateway = gateway
        self._store = store
        self._nodes = nodes
        self._clock = clock
        self._places = trio.CapacityLimiter(READERS)
        self._hubs: dict[Hub, _Reading] = {}

    # Who may read what

    def away_node(self, agent: str) -> Node | None:
        """Return the node of an agent, if it was asked and does not answer."""
        parts = split_name(agent, self._nodes.sections)
        node = None if parts is None else self._nodes.nodes[parts[0]]
        # Before the first attempt, it is not known to be away.
        return None if node is None or node.up or not node.reason else node

    def key_of(self, identity: str, agent: str, session_id: str) -> str | None:
        """Return the name in the cluster of a session of an away node; None if it does not exist for an identity.

        The same as while the node is there: the node has it as that identity's, and this gateway may act for the
        identity there, or the session was opened here by it.
        """
        node, parts = self.away_node(agent), split_name(agent, self._nodes.sections)
        if node is None or parts is None:
            return None
        found = [it for it in node.sessions if (it["sessionId"], it["agent"]) == (session_id, parts[1])]
        if len(found) != 1 or not node.has(found[0], identity):
            return None
        registry, scope = self._gateway.registry, SessionScope(identity)
        # Where the node has it as one identity's, the registry knows whose it is, and which is the last of that id.
        known = node.speaks_for(identity) or registry.find(scope, agent, session_id) is not None
        if not known and not registry.may_exist(scope, agent, session_id):
            return None
        return f"{found[0].get('home') or node.name}{SEPARATOR}{session_id}"

    def _reading(self, grant: Grant) -> _Reading | None:
        """Return what a connection may read in the place of its agent, without asking the directory."""
        node, scope = self.away_node(grant.agent), grant.scope
        if node is None or scope.guest or scope.workspaces is not None:
            return None
        identity = scope.identity
        if scope.only is not None:
            session = self._gateway.admissions.find_session(grant.access, scope, grant.agent)
            if session is not None and session.state is SessionState.OPEN:
                return None  # It is open here, over a link to the node that is kept.
            key = self.key_of(identity, grant.agent, scope.only)
            return None if key is None else _Reading(grant, node.name, key)
        # It may have come for a new session: as long as for any agent, the node may come back.
        if self._clock() - node.since < self._nodes.sections[node.name].connect_timeout:
            return None
        far_agent = grant.agent.partition(SEPARATOR)[2]
        some = any(it["agent"] == far_agent and node.has(it, identity) for it in node.sessions)
        return _Reading(grant, node.name, None) if some else None

    # Reading

    async def find_hub(self, grant: Grant) -> Hub | None:
        """Return a hub in which a connection reads what is mirrored; None if it is served as any other one.

        Never raises. Cancelled, there is none.
        """
        reading = self._reading(grant)
        if reading is None:
            return None
        if reading.key is not None:
            try:
                if not await self._store.is_mirrored(reading.key):
                    return None
            except ClusterLost:
                return None
            # The node may be back.
            if self._reading(grant) != reading:
                return None
        # It knows the sessions of this reader alone, and stores none.
        registry = Registry(grant.scope.identity, run=secrets.token_hex(8))
        hub = self._gateway.start_private_hub(grant, registry, partial(self._run_agent, reading))
        if hub is not None:
            self._hubs[hub] = reading
            log.info(
                "agent %s: its node is away, a client of %s reads what is mirrored", hub.name, registry.own_identity
            )
        return hub

    async def read(self, identity: str, agent: str, session_id: str) -> tuple[str, MirroredJournal] | str:
        """Return the name and the mirrored history of a session of an away node, or why it can't be read.

        Raises `Busy` if too many histories are being read, and `ClusterLost`. Cancelling has no effect.
        """
        key = self.key_of(identity, agent, session_id)
        if key is None:
            return "it is not known, or not yours"
        with trio.move_on_after(READ_TIMEOUT):
            await self._places.acquire()
            try:
                return await self._read(key, identity, agent)
            finally:
                self._places.release()
        raise Busy("too many mirrored histories are being read; try again")

    async def _read(self, key: str, identity: str, agent: str) -> tuple[str, MirroredJournal] | str:
        journal = await self._store.journal(key)
        if journal is None:
            return "nothing of it is mirrored"
        # The record says whose it is, and is sealed.
        record, node = await self._store.session(key), self.away_node(agent)
        if record is None or node is None or f"{record.node}{SEPARATOR}{record.agent}" != agent:
            return "it has moved"
        if not node.has({"owner": record.owner}, identity):
            return "it is not known, or not yours"
        if owner_of_mirror(journal.epoch) != record.owner:
            return "nothing of it is mirrored"
        return key, journal

    async def read_history(self, access: Access, agent: str, session_id: str) -> Mirror | None:
        """Return the mirrored history of a session of an away node; None if there is none for a principal.

        Never raises. Cancelling has no effect.
        """
        if access.session is not None or access.workspaces is not None or not access.may_use(agent):
            return None
        try:
            found = await self.read(access.identity, agent, session_id)
        except (Busy, ClusterLost):
            return None
        node = self.away_node(agent)
        if isinstance(found, str) or node is None:
            return None
        key, mirrored = found
        text = absence_text(node.name, node.since_text, key, mirrored.as_of)
        limit = self._gateway.config.gateway.journal_limit
        journal = to_journal(mirrored, session_id, limit, mirrored.epoch)
        journal.append(gap(session_id, f"[acp-gateway: {text}]"))
        return Mirror(journal, text)

    async def _run_agent(self, reading: _Reading, *, task_status: trio.TaskStatus[Agent]) -> None:
        """Be the agent of a hub until cancelled."""
        here, there = memory_message_stream_pair()

        async def dial() -> MaintainedStream:
            await trio.lowlevel.checkpoint()
            return here

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer, reading, there)
            url = f"mirror of {reading.node}"
            await run_listening_agent(reading.grant.agent, url, dial, connect_timeout=0.0, task_status=task_status)

    async def _answer(self, reading: _Reading, stream: MaintainedStream) -> None:
        """Answer the messages of a hub until it closes the stream."""
        node = self._nodes.nodes.get(reading.node)
        agent = MirrorAgent(reading.node, "" if node is None else node.since_text)
        try:
            async for batch in stream:
                for text in batch:
                    stream.send_nowait(agent.receive(text))
                while agent.wanted:
                    await self._open(reading, agent, agent.wanted.popleft(), stream)
        except LOST:
            pass  # The hub has ended.
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()

    async def _open(self, reading: _Reading, agent: MirrorAgent, request: Message, stream: MaintainedStream) -> None:
        """Answer a request to open a session, as fast as the reader takes the history."""
        found: tuple[str, MirroredJournal] | str
        try:
            found = await self.read(reading.grant.scope.identity, reading.grant.agent, request.session or "")
        except (Busy, ClusterLost) as error:
            found = str(error)
        if isinstance(found, str):
            stream.send_nowait([agent.unknown(request, found)])
            return
        piece: list[bytes] = []
        for message in agent.opened(request, *found):
            piece.append(message)
            if len(piece) >= PIECE_COUNT:
                stream.send_nowait(piece)
                piece = []
                await stream.drain(HIGH_WATER)
        stream.send_nowait(piece)

    # The end

    def note_report(self) -> None:
        """End the connections of readers whose node is back, or whose session lives elsewhere. Must be fast."""
        for hub, reading in list(self._hubs.items()):
            why = None if hub.ended else self._why_over(reading)
            if why is not None:
                for attachment in list(hub.attachments.values()):
                    attachment.close(Disconnect(CloseReason.POLICY, why, NODE_AWAY))
            if hub.ended:
                del self._hubs[hub]

    def _why_over(self, reading: _Reading) -> str | None:
        if self.away_node(reading.grant.agent) is None:
            return f"the node {reading.node} is there again: connect again"
        if reading.key is not None:
            home, _, session_id = reading.key.partition(SEPARATOR)
            registry = self._gateway.registry
            adopter = self._nodes.adopter_of(home, session_id)
            if any(it.home == home and it.moved is None for it in registry.by_id(session_id)):
                adopter = registry.node
            if adopter not in (None, reading.node):
                return f"the session lives on {adopter}: connect again"
        return None
