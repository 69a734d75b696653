"""Sessions of a node that another node has adopted."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.cluster.fencing import Fence, is_fenced
from acp_gateway.cluster.lease import Lease
from acp_gateway.cluster.records import SessionRecord
from acp_gateway.cluster.session_writer import SessionWriter
from acp_gateway.cluster.store import Change, Claim
from acp_gateway.core.archive import NO_ARCHIVE
from acp_gateway.core.journal import Journal
from acp_gateway.core.sessions import Session
from acp_gateway.gateway.session_changes import SessionChanges
from tests.cluster.memory_store import MemoryDirectory
from tests.core.registered import AgentDouble

TTL = 15.0


def record(node: str, epoch: int) -> SessionRecord:
    return SessionRecord(key="gpu1/s", node=node, agent="a", owner="ann", epoch=epoch)


@pytest.mark.parametrize(
    ("known", "epoch", "fenced"),
    [
        (record("gpu2", 8), 7, True),
        (record("gpu2", 8), 0, True),
        (record("gpu2", 6), 7, False),
        (record("gpu1", 8), 7, False),
        (None, 7, False),
    ],
)
def test_session_is_fenced_by_another_node_in_a_later_epoch_only(
    known: SessionRecord | None, epoch: int, *, fenced: bool
) -> None:
    assert is_fenced(known, "gpu1", epoch) is fenced


class Scene:
    """The node gpu1 with a live session, and a directory."""

    def __init__(self) -> None:
        self.directory = MemoryDirectory()
        self.session = Session("agent", "s", "ann", Journal(1000))
        self.session.agent_handle = AgentDouble()
        self.lease = Lease(TTL)
        self.now = 0.0
        self.up = True
        self.stopped: list[tuple[str, str]] = []
        store = self.directory.store("gpu1")
        self.writer = SessionWriter(store, "gpu1", SessionChanges(NO_ARCHIVE), lambda: [self.session], lambda: self.up)
        self.fence = Fence(
            store,
            "gpu1",
            self.lease,
            self.writer,
            lambda: [self.session],
            self.stop,
            lambda: self.up,
            lambda: (self.now,),
        )
        self.writer.refused = self.fence.refused
        self.lease.looked((self.now,))

    def stop(self, session: Session, node: str) -> None:
        self.stopped.append((session.id, node))
        session.moved, session.agent_handle = node, None

    async def write(self) -> None:
        await self.writer.renewed(emptied=True)
        await self.writer.flush()

    async def adopt(self) -> Claim:
        return await self.directory.store("gpu2").claim(record("gpu2", 0), adopt=True)

    async def pass_gate(self) -> bool:
        """Pass the gate; return whether it asked."""
        wait = self.fence.gate()
        if wait is not None:
            await wait
        return wait is not None


@pytest.fixture
async def scene(mock_clock: MockClock) -> Scene:
    scene = Scene()
    await scene.write()
    mock_clock.jump(1)
    return scene


async def test_gate_asks_nothing_while_the_lease_lasts(scene: Scene) -> None:
    before = len(scene.directory.operations)
    assert not await scene.pass_gate()
    assert len(scene.directory.operations) == before


async def test_gate_stops_adopted_sessions_after_a_pause_before_it_opens(scene: Scene) -> None:
    await scene.adopt()
    scene.now += TTL
    assert await scene.pass_gate()
    assert scene.stopped == [("s", "gpu2")]
    assert not await scene.pass_gate()


async def test_gate_lets_sessions_that_are_still_here_go_on_after_a_pause(scene: Scene) -> None:
    scene.now += TTL
    assert await scene.pass_gate()
    assert scene.stopped == []


async def test_gate_opens_when_the_directory_does_not_answer_and_decides_nothing(scene: Scene) -> None:
    await scene.adopt()
    scene.directory.lose()
    scene.now += TTL
    assert await scene.pass_gate()
    assert scene.stopped == []
    assert not await scene.pass_gate()


async def test_waiting_clients_ask_the_directory_once(scene: Scene, nursery: trio.Nursery) -> None:
    scene.now += TTL
    before = len(scene.directory.operations)
    for _ in range(10):
        nursery.start_soon(scene.pass_gate)
    await wait_all_tasks_blocked()
    assert scene.directory.operations[before:] == ["sessions"]


async def test_emptied_directory_fences_nothing(scene: Scene) -> None:
    scene.directory.empty()
    scene.now += TTL
    assert await scene.pass_gate()
    assert scene.stopped == []


async def test_refused_write_stops_the_session_and_nothing_more_is_written(scene: Scene) -> None:
    await scene.adopt()
    await scene.write()
    assert scene.stopped == [("s", "gpu2")]
    assert scene.writer.epochs == {}
    scene.directory.empty()
    await scene.write()
    assert scene.directory.sessions == {}


async def test_message_of_the_adopting_node_stops_the_session(scene: Scene, nursery: trio.Nursery) -> None:
    nursery.start_soon(scene.fence.run)
    await scene.adopt()
    scene.fence.note(Change("adopt", "gpu1/s", "gpu2"))
    await wait_all_tasks_blocked()
    assert scene.stopped == [("s", "gpu2")]


async def test_message_of_an_adoption_that_the_directory_does_not_have_stops_nothing(
    scene: Scene, nursery: trio.Nursery
) -> None:
    nursery.start_soon(scene.fence.run)
    scene.fence.note(Change("adopt", "gpu1/s", "gpu2"))
    await wait_all_tasks_blocked()
    assert scene.stopped == []


async def test_message_of_a_node_that_gives_a_session_back_returns_it(scene: Scene, nursery: trio.Nursery) -> None:
    returned: list[tuple[Session, int]] = []
    scene.fence.given_back = lambda session, epoch: returned.append((session, epoch))
    nursery.start_soon(scene.fence.run)
    adopted = await scene.adopt()
    for _ in range(2):
        # The second time it has stopped its part, and the session is there still.
        scene.fence.note(Change("adopt", "gpu1/s", "gpu2"))
        await wait_all_tasks_blocked()
        assert (scene.session.moved, returned) == ("gpu2", [])
    given_back = await scene.directory.store("gpu2").claim(record("gpu1", adopted.epoch), adopt=True)
    scene.fence.note(Change("adopt", "gpu1/s", "gpu2"))
    await wait_all_tasks_blocked()
    assert returned == [(scene.session, given_back.epoch)]


async def test_renewal_looks_at_all_sessions_after_the_directory_was_lost(scene: Scene) -> None:
    await scene.adopt()
    await scene.fence.renewed(False)
    assert scene.stopped == []
    scene.up = False
    await scene.fence.renewed(False)
    assert scene.stopped == [("s", "gpu2")]


async def test_session_that_moved_while_it_waited_to_be_written_is_not_written(scene: Scene) -> None:
    scene.writer.epochs.clear()
    await scene.writer.renewed(emptied=True)
    scene.session.moved = "gpu2"
    scene.directory.empty()
    await scene.writer.flush()
    assert scene.directory.sessions == {}
