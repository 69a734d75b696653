"""Lives of a cluster: nodes that open, pause, wake, end and adopt, and a directory that is lost and emptied.

The parts are those of a node: `SessionWriter`, `Fence` and `Lease`, over a directory in memory. Agents and clients are
left out: a session is live or not, and a prompt is accepted or not.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from acp_gateway.cluster.fencing import Fence
from acp_gateway.cluster.lease import Lease
from acp_gateway.cluster.records import SessionRecord
from acp_gateway.cluster.session_writer import SessionWriter
from acp_gateway.cluster.store import ClusterLost
from acp_gateway.core.archive import NO_ARCHIVE
from acp_gateway.core.journal import Journal
from acp_gateway.core.sessions import Session
from acp_gateway.gateway.session_changes import SessionChanges
from tests.cluster.memory_store import MemoryDirectory
from tests.core.registered import AgentDouble
from tests.fuzz.effort import effort

TTL = 15.0
NAMES = ("a", "b")

names = st.sampled_from(NAMES)
homes = st.just("a")
"""The node that has a session of its own, `s`. More nodes or sessions make the rare sequences rarer."""


class Node:
    """One node; `boot` begins its next process."""

    def __init__(self, name: str, directory: MemoryDirectory, clock: Callable[[], float]) -> None:
        self.name = name
        self.store = directory.store(name)
        self.clock = clock
        self.sessions: dict[str, Session] = {}
        """Sessions that it knows, by key: what is on its disk."""
        self.paused = False
        self.boot()

    def boot(self) -> None:
        self.alive, self.paused = True, False
        for session in self.sessions.values():
            session.agent_handle = None
        self.lease = Lease(TTL)
        changes = SessionChanges(NO_ARCHIVE)
        self.writer = SessionWriter(self.store, self.name, changes, self.all, lambda: True)
        self.fence = Fence(
            self.store, self.name, self.lease, self.writer, self.all, self.stop, lambda: True, lambda: (self.clock(),)
        )
        self.writer.refused = self.fence.refused

    def all(self) -> list[Session]:
        return list(self.sessions.values())

    def stop(self, session: Session, node: str) -> None:
        session.moved, session.agent_handle = node, None

    @property
    def runs(self) -> bool:
        return self.alive and not self.paused

    def session(self, key: str) -> Session:
        if key not in self.sessions:
            home, _, name = key.partition("/")
            session = self.sessions[key] = Session("agent", name, "me", Journal(1000))
            session.home = None if home == self.name else home
        return self.sessions[key]

    async def open(self, key: str) -> bool:
        session = self.session(key)
        if session.moved is None:
            session.agent_handle = AgentDouble()
            await self.write()
        return session.live

    async def write(self) -> None:
        await self.writer.renewed(True)
        try:
            await self.writer.flush()
        except ClusterLost:
            pass

    async def adopt(self, key: str) -> bool:
        record = await self.store.session(key)
        if record is None or record.node == self.name:
            return False
        claim = await self.store.claim(SessionRecord(**_values(record, self.name)), adopt=True)
        if claim.granted:
            session = self.session(key)
            session.adopted_epoch, session.moved, session.agent_handle = claim.epoch, None, AgentDouble()
        return claim.granted

    async def prompt(self, key: str) -> bool:
        """Pass the gate with a prompt; return whether the agent gets it."""
        wait = self.fence.gate()
        if wait is not None:
            await wait
        return self.session(key).live


def _values(record: SessionRecord, node: str) -> dict[str, Any]:
    return {"key": record.key, "node": node, "agent": record.agent, "owner": record.owner, "epoch": record.epoch}


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        return await work()

    return trio.run(whole)


class Cluster(RuleBasedStateMachine):
    """A cluster of two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.directory = MemoryDirectory(lambda: self.now)
        self.nodes = {name: Node(name, self.directory, lambda: self.now) for name in NAMES}
        self.adopters: dict[str, str] = {}
        """The node that has adopted each session last, as a person has decided."""
        self.opened: set[str] = set()
        self.accepted: dict[tuple[str, int], str] = {}
        """The node that has accepted prompts of each session in each epoch."""
        self.highest: dict[str, int] = {}

    def _node(self, name: str) -> Node | None:
        node = self.nodes[name]
        return node if node.runs else None

    @rule(seconds=st.sampled_from((1, 5, TTL)))
    def pass_time(self, seconds: float) -> None:
        """Time passes; gateways that run look at the directory meanwhile."""
        self.now += seconds
        for node in self.nodes.values():
            if node.runs:
                self._renew(node)

    def _renew(self, node: Node) -> None:
        began = (self.now,)

        async def renew() -> None:
            try:
                await node.fence.renewed(False)
            except ClusterLost:
                node.lease.failed(began, (self.now,))
            else:
                node.lease.looked(began)

        run(renew)

    @rule(name=homes)
    def open(self, name: str) -> None:
        """A client opens the session of its home node."""
        node, key = self._node(name), f"{name}/s"
        if node is not None and run(partial(node.open, key)):
            self.opened.add(key)

    @rule(name=names, home=homes)
    def prompt(self, name: str, home: str) -> None:
        """A client sends a prompt in a session."""
        node, key = self._node(name), f"{home}/s"
        if node is None:
            return
        asked = node.lease.lapsed((self.now,))
        if not run(partial(node.prompt, key)):
            return
        epoch = node.writer.epoch_of(node.session(key))
        assert self.accepted.setdefault((key, epoch), name) == name
        if asked and self.directory.reachable and key in self.directory.sessions:
            record = self.directory.sessions[key]
            assert record.node == name or record.epoch <= epoch, "a node that woke up has gone on"

    @rule(name=names)
    def write(self, name: str) -> None:
        """A node writes all its sessions, as after the directory was emptied."""
        node = self._node(name)
        if node is None:
            return
        run(node.write)
        if self.directory.reachable:
            for key, session in node.sessions.items():
                assert key in self.directory.sessions or not session.live, "a live session is not found"
                if self.adopters.get(key) == name:
                    assert self.directory.sessions[key].node == name, "an adoption was undone"

    @rule(name=names, home=homes)
    @precondition(lambda self: self.directory.reachable)
    def adopt(self, name: str, home: str) -> None:
        """A person has a node adopt a session."""
        node, key = self._node(name), f"{home}/s"
        if node is not None and run(partial(node.adopt, key)):
            self.adopters[key] = name

    @rule(name=names)
    def pause(self, name: str) -> None:
        self.nodes[name].paused = True

    @rule(name=names, seconds=st.sampled_from((0, TTL)))
    def wake(self, name: str, seconds: float) -> None:
        """A paused node wakes up. Time passes for the others too."""
        self.now += seconds
        self.nodes[name].paused = False

    @rule(name=names)
    def adopt_while_paused(self, name: str) -> None:
        """The other node adopts the session meanwhile, and a client is the first to notice the end of the pause."""
        other = next(node for node in NAMES if node != name)
        self.pause(name)
        if self.directory.reachable:
            self.adopt(other, "a")
        self.wake(name, TTL)
        self.prompt(name, "a")

    @rule(name=names, alive=st.booleans())
    def end(self, name: str, *, alive: bool) -> None:
        """A node is killed, or started again."""
        self.nodes[name].alive = False
        if alive:
            self.nodes[name].boot()

    @rule(reachable=st.sampled_from((True, True, False)))
    def reach(self, *, reachable: bool) -> None:
        """The directory is lost, or is there again."""
        if reachable:
            self.directory.reachable = True
        else:
            self.directory.lose()

    @rule()
    def empty(self) -> None:
        """The directory is emptied: it knows of no decision any more. The nodes that have adopted do."""
        self.directory.empty()
        self.highest.clear()

    @rule(name=names, other=names)
    def restart_after_the_directory_was_emptied(self, name: str, other: str) -> None:
        """A node was away during an adoption and starts when the directory is emptied; both write in any order."""
        self.empty()
        self.end(name, alive=True)
        for node in dict.fromkeys((other, *NAMES)):
            self.write(node)

    @invariant()
    def no_adoption_is_undone_but_by_another_one(self) -> None:
        for key, adopter in self.adopters.items():
            session = self.nodes[adopter].sessions[key]
            assert session.moved is None
            record = self.directory.sessions.get(key)
            if record is not None and record.node != adopter:
                assert session.adopted_epoch is not None
                assert record.epoch < session.adopted_epoch, "the adopter can't take it back"

    @invariant()
    def epochs_never_fall(self) -> None:
        for key, record in self.directory.sessions.items():
            assert record.epoch >= self.highest.get(key, 0)
            self.highest[key] = record.epoch

    @invariant()
    def nothing_is_listed_that_was_never_there(self) -> None:
        known = {key for node in self.nodes.values() for key in node.sessions}
        assert set(self.directory.sessions) <= known


TestCluster = Cluster.TestCase
TestCluster.settings = effort(100, steps=100)
