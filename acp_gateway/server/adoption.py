"""Adopts sessions of other nodes of the cluster: opens one here by its agent, in a later epoch. A person decides it."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec
import trio

from acp_gateway.client.control import request
from acp_gateway.cluster.mirrored_history import adopted_journal
from acp_gateway.cluster.records import SessionRecord
from acp_gateway.cluster.store import Change, ClusterLost, ClusterStore, MirroredJournal, owner_of_mirror
from acp_gateway.config.nodes import SEPARATOR
from acp_gateway.core.journal import Journal
from acp_gateway.core.sessions import Session
from acp_gateway.errors import AccessError, AgentError, UsageError
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.printable import printable
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.reasons import reason_of
from acp_gateway.server.local_client import LocalClient
from acp_gateway.server.node_set import NodeSet
from acp_gateway.server.node_watcher import destination_of

log = logging.getLogger(__name__)

OPEN_TIMEOUT: Final = 60.0
"""Seconds in which the agent has to start and to open the session."""

FORWARD_TIMEOUT: Final = OPEN_TIMEOUT + 15.0
"""Seconds to wait for another node that adopts."""


class Adopt(msgspec.Struct, frozen=True):
    """The params of a request to adopt a session."""

    session: str
    """Its key: `HOME/ID`."""
    node: str | None = None
    """The node that adopts it; None for the one that is asked."""
    agent: str | None = None
    """The agent there; None for the one of the same name."""
    force: bool = False
    """Adopt it though its node is there."""


class EpochsOfNode(Protocol):
    """The part of a `SessionWriter` that adopting uses."""

    epochs: dict[str, int]

    def key_of(self, session: Session) -> str:
        """Return the key of a session."""

    def record_of(self, session: Session) -> SessionRecord | None:
        """Return the record of a session; None if its id is too long."""


class Adoption:
    """Adopts sessions on one node.

    Args:
        gateway: the gateway.
        store: the directory.
        node: the name of this node.
        nodes: the other nodes.
        writer: knows the epochs of this node's sessions.
        adopted: called with the name in the cluster and the owner of a session that was adopted here.
    """

    def __init__(
        self,
        gateway: Gateway,
        store: ClusterStore,
        node: str,
        nodes: NodeSet,
        writer: EpochsOfNode,
        adopted: Callable[[str, str], None],
    ) -> None:
        self._gateway = gateway
        self._store = store
        self._node = node
        self._nodes = nodes
        self._writer = writer
        self._adopted = adopted

    async def adopt(self, params: bytes) -> dict[str, Any]:
        """Adopt a session as a request asks, here or on the node that it names; return the members of the response.

        Raises `GatewayError` with the cause. Cancelled, the session may be adopted or not.
        """
        try:
            asked = msgspec.json.decode(params, type=Adopt)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise UsageError("the params must have a session, and may have node, agent and force") from None
        if asked.node in (None, self._node):
            return await self._adopt_here(asked)
        section = self._nodes.directory.sections.get(asked.node or "")
        if section is None:
            known = ", ".join(sorted([self._node, *self._nodes.directory.sections]))
            raise UsageError(f"there is no node {printable(asked.node or '', size=64)}; there are: {known}")
        forwarded = {**msgspec.to_builtins(asked), "node": None}
        destination = destination_of(section, self._gateway.admissions.own_id)
        answer: Mapping[str, Any] = await request(destination, methods.ADOPT, forwarded, time_limit=FORWARD_TIMEOUT)
        # So that the session is found here at once.
        await self._nodes.watcher.refresh()
        return dict(answer)

    async def _adopt_here(self, asked: Adopt) -> dict[str, Any]:
        record = await self._record(asked)
        agent = asked.agent or record.agent
        if agent not in self._gateway.config.agents:
            known = ", ".join(self._gateway.config.agents) or "none"
            raise UsageError(f"the node {self._node} has no agent {agent[:64]}: name one with --agent; it has: {known}")
        # Afterwards this node's own journal replaces it.
        mirrored = await self._store.journal(record.key)
        claim = await self._store.claim(
            msgspec.structs.replace(record, node=self._node, agent=agent, live=False, turn=False), adopt=True
        )
        if not claim.granted:
            raise UsageError(f"the node {claim.node} has just opened the session {record.key}")
        self._writer.epochs[record.key] = claim.epoch
        session, is_new = self._register(record, agent, claim.epoch)
        failure = None
        try:
            failure = await self._open(session)
        except (AccessError, AgentError) as error:
            failure = str(error)
        if failure is not None:
            try:
                await self._give_back(record, session, claim.epoch, is_new=is_new)
            except ClusterLost as error:
                raise AgentError(
                    f"{agent} on {self._node} can't open the session, and could not give it back, adopt it again: "
                    f"{failure} ({error})"
                ) from None
            raise AgentError(f"{agent} on {self._node} can't open the session, it was given back: {failure}")
        if mirrored is not None and owner_of_mirror(mirrored.epoch) == record.owner:
            self._take_history(session, mirrored, in_turn=record.turn)
        self._adopted(record.key, record.owner)
        # Nodes that have asked since the claim may have been told of the sessions before it was among them.
        with suppress(ClusterLost):
            await self._store.publish(Change("adopt", record.key, self._node))
        log.info("session %s of the cluster was adopted from the node %s", record.key, record.node)
        return {"sessionId": record.key, "node": self._node, "agent": agent, "before": record.node}

    async def _record(self, asked: Adopt) -> SessionRecord:
        """Return the record of the session, if it may be adopted."""
        moved = self._moved_away(asked.session)
        record = await self._store.session(asked.session) or moved
        if record is None:
            raise UsageError(f"the directory has no session {printable(asked.session, size=200)}: use HOME/ID")
        if record.node == self._node and moved is None:
            if self._has(record):
                raise UsageError(f"the session {record.key} lives on {self._node} already")
            # It was adopted here, and not opened: the directory was lost meanwhile, or this gateway has ended.
            record = msgspec.structs.replace(record, node=record.home)
        others = {node.name for node in await self._store.nodes()} - {self._node}
        if not asked.force and record.node in others:
            raise UsageError(
                f"the node {record.node} is there, and has the session {record.key}. --force takes it away: its turn "
                "is cancelled there, and what its agent has not saved is missing here"
            )
        return record

    def _moved_away(self, key: str) -> SessionRecord | None:
        """Return the record of a session of this gateway that another node has adopted; None if it is no such one.

        The directory lacks it if it was emptied while that node is away.
        """
        for session in self._gateway.registry:
            if session.moved is not None and SEPARATOR not in session.agent and self._writer.key_of(session) == key:
                record = self._writer.record_of(session)
                return None if record is None else msgspec.structs.replace(record, node=session.moved)
        return None

    def _has(self, record: SessionRecord) -> bool:
        """Return whether this gateway has the session of a record."""
        same = (it for it in self._gateway.registry.by_id(record.id) if SEPARATOR not in it.agent and it.moved is None)
        return any(self._writer.key_of(it) == record.key and it.owner == record.owner for it in same)

    def _register(self, record: SessionRecord, agent: str, epoch: int) -> tuple[Session, bool]:
        """Return the session for a record, as a past one of this gateway, and whether it was not known here."""
        registry = self._gateway.registry
        for session in registry:
            if registry.key_of(session) == record.key and (session.agent, session.owner) == (agent, record.owner):
                registry.set_adopted(session, epoch)
                return session, False
        journal = Journal(self._gateway.config.gateway.journal_limit, registry.new_epoch())
        session = Session(agent, record.id, record.owner, journal)
        session.home = None if record.home == self._node else record.home
        session.cwd, session.title = record.cwd, record.title
        session.keep_directory()
        registry.restore(session)
        registry.set_adopted(session, epoch)
        return session, True

    async def _open(self, session: Session) -> str | None:
        """Have the agent open a session; return why it can't."""
        wanted = ConnectRequest(agent=session.agent, session=session.id)
        client = LocalClient(self._gateway, Access(session.owner, None), wanted, "adoption", lambda _: None)
        response = None
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            with trio.move_on_after(OPEN_TIMEOUT):
                response = await client.initialize()
                if not response.error:
                    params = {"cwd": session.cwd or "/", "mcpServers": []}
                    response = await client.request(methods.NEW, jsonrpc.encode(params))
            await client.leave()
            nursery.cancel_scope.cancel()
        if response is None:
            return f"no answer in {OPEN_TIMEOUT:g} s"
        return reason_of(response.text) if response.error else None

    def _take_history(self, session: Session, mirrored: MirroredJournal, *, in_turn: bool) -> None:
        """Give a session its mirrored history, if its agent has replayed none."""
        journal, registry = session.journal, self._gateway.registry
        if len(journal.replay()) > len(journal.states()):
            return
        limit = self._gateway.config.gateway.journal_limit
        found = adopted_journal(mirrored, session.id, limit, registry.new_epoch(), in_turn=in_turn)
        if found is not None:
            session.take_journal(found)
            session.archive.keep(session)
            log.info("session %s of the cluster has its mirrored history: the agent has replayed none", session.id)

    async def _give_back(self, record: SessionRecord, session: Session, epoch: int, *, is_new: bool) -> None:
        self._writer.epochs.pop(record.key, None)
        if is_new:
            self._gateway.registry.remove(session)
        else:
            self._gateway.registry.set_moved(session, record.node)
        await self._store.claim(msgspec.structs.replace(record, epoch=epoch), adopt=True)
        # That of the claim is in the name of the other node, which leaves it out.
        await self._store.publish(Change("adopt", record.key, self._node))
