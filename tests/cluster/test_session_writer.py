"""Writing a node's sessions to the directory."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.cluster.records import SessionRecord
from acp_gateway.cluster.session_writer import HOME_EPOCH, SessionWriter, is_own
from acp_gateway.cluster.store import Claim
from acp_gateway.core.archive import NO_ARCHIVE
from acp_gateway.core.journal import Journal
from acp_gateway.core.sessions import Session
from acp_gateway.gateway.session_changes import SessionChanges
from tests.cluster.memory_store import MemoryDirectory


class Scene:
    """The sessions of a node."""

    def __init__(self) -> None:
        self.directory = MemoryDirectory()
        self.changes = SessionChanges(NO_ARCHIVE)
        self.sessions: list[Session] = []
        self.writer = SessionWriter(
            self.directory.store("gpu1"), "gpu1", self.changes, lambda: self.sessions, lambda: True
        )

    def session(self, name: str = "s", agent: str = "opencode") -> Session:
        session = Session(agent, name, "ann", Journal(1000))
        self.sessions.append(session)
        return session

    @property
    def titles(self) -> dict[str, str | None]:
        return {key: record.title for key, record in self.directory.sessions.items()}


@pytest.fixture
async def scene(mock_clock: MockClock, nursery: trio.Nursery) -> Scene:
    scene = Scene()
    nursery.start_soon(scene.writer.run)
    await wait_all_tasks_blocked()
    return scene


async def pass_time(clock: MockClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.jump(1)
        await wait_all_tasks_blocked()


async def test_changed_session_is_written_in_the_epoch_of_its_home(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    scene.changes.note_change(session)
    await wait_all_tasks_blocked()
    assert scene.writer.epochs == {"gpu1/s": HOME_EPOCH}
    session.title = "Fix it"
    scene.changes.note_change(session)
    await pass_time(mock_clock, 2)
    assert scene.directory.sessions["gpu1/s"] == SessionRecord(
        key="gpu1/s", node="gpu1", agent="opencode", owner="ann", epoch=HOME_EPOCH, title="Fix it"
    )
    assert scene.directory.operations == ["write", "write"]


async def test_session_that_was_adopted_here_is_written_in_that_epoch(scene: Scene) -> None:
    session = scene.session()
    session.home, session.adopted_epoch = "gpu9", 8
    scene.changes.note_change(session)
    await wait_all_tasks_blocked()
    assert scene.directory.sessions["gpu9/s"].epoch == scene.writer.epochs["gpu9/s"] == 8


async def test_session_that_was_given_back_is_written_in_that_epoch_from_then_on(
    scene: Scene, mock_clock: MockClock
) -> None:
    session = scene.session()
    record = SessionRecord(key="gpu1/s", node="gpu1", agent="opencode", owner="ann", epoch=8)
    await scene.directory.store("gpu2").write(record)
    scene.changes.note_change(session)
    await wait_all_tasks_blocked()
    assert (scene.writer.epochs["gpu1/s"], session.adopted_epoch) == (8, 8)
    scene.directory.empty()
    await scene.writer.renewed(True)
    await pass_time(mock_clock, 2)
    assert scene.directory.sessions["gpu1/s"].epoch == 8


async def test_many_changes_of_a_session_are_one_write_in_a_second(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    for number in range(100):
        session.title = str(number)
        scene.changes.note_change(session)
        await wait_all_tasks_blocked()
    await pass_time(mock_clock, 3)
    assert scene.titles == {"gpu1/s": "99"}
    assert len(scene.directory.operations) == 2


async def test_sessions_of_other_nodes_are_not_written(scene: Scene) -> None:
    session = scene.session(agent="gpu2/opencode")
    assert not is_own(session)
    scene.changes.note_change(session)
    await scene.writer.renewed(True)
    await wait_all_tasks_blocked()
    assert scene.directory.operations == []


async def test_removed_session_is_removed(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    scene.changes.note_change(session)
    await wait_all_tasks_blocked()
    scene.sessions.clear()
    scene.changes.remove(session)
    await pass_time(mock_clock, 2)
    assert scene.directory.sessions == {}
    assert scene.writer.epochs == {}


async def test_session_of_an_earlier_process_that_is_removed_while_the_directory_is_lost_is_removed_there(
    scene: Scene, mock_clock: MockClock
) -> None:
    earlier = scene.directory.store("gpu1")
    await earlier.write(SessionRecord(key="gpu1/s", node="gpu1", agent="opencode", owner="ann", epoch=HOME_EPOCH))
    await earlier.append("gpu1/s", "gpu1", HOME_EPOCH, "j", 0, [(1, b"a")])
    scene.directory.lose()
    scene.changes.remove(scene.session())
    scene.sessions.clear()
    await pass_time(mock_clock, 2)
    scene.directory.reachable = True
    await scene.writer.renewed(False)
    await pass_time(mock_clock, 2)
    assert (scene.directory.sessions, scene.directory.mirrors) == ({}, {})


async def test_removed_session_that_another_node_has_adopted_stays_there(scene: Scene, mock_clock: MockClock) -> None:
    adopted = SessionRecord(key="gpu1/s", node="gpu2", agent="opencode", owner="ann", epoch=HOME_EPOCH + 1)
    await scene.directory.store("gpu2").write(adopted)
    scene.changes.remove(scene.session())
    scene.sessions.clear()
    await pass_time(mock_clock, 2)
    assert scene.directory.sessions == {"gpu1/s": adopted}


async def test_sessions_are_written_after_the_directory_was_lost(scene: Scene, mock_clock: MockClock) -> None:
    scene.directory.lose()
    session = scene.session()
    scene.changes.note_change(session)
    await pass_time(mock_clock, 3)
    scene.directory.reachable = True
    await scene.writer.renewed(False)
    await pass_time(mock_clock, 2)
    assert set(scene.titles) == {"gpu1/s"}


async def test_all_sessions_are_written_again_in_their_epochs_after_the_directory_was_emptied(
    scene: Scene, mock_clock: MockClock
) -> None:
    for name in ("a", "b"):
        scene.changes.note_change(scene.session(name))
    await wait_all_tasks_blocked()
    epochs = dict(scene.writer.epochs)
    scene.directory.empty()
    await scene.writer.renewed(True)
    await pass_time(mock_clock, 2)
    assert {key: record.epoch for key, record in scene.directory.sessions.items()} == epochs


async def test_session_that_another_node_holds_is_refused_and_not_overwritten(
    scene: Scene, mock_clock: MockClock
) -> None:
    refused: list[tuple[Session, Claim]] = []
    scene.writer.refused = lambda session, claim: refused.append((session, claim))
    session = scene.session()
    scene.changes.note_change(session)
    await wait_all_tasks_blocked()
    adopted = SessionRecord(key="gpu1/s", node="gpu2", agent="opencode", owner="ann", epoch=0)
    await scene.directory.store("gpu2").claim(adopted, adopt=True)
    scene.changes.note_change(session)
    await pass_time(mock_clock, 2)
    assert [(found, claim.node) for found, claim in refused] == [(session, "gpu2")]
    assert scene.directory.sessions["gpu1/s"].node == "gpu2"


async def test_session_with_an_id_that_is_too_long_is_left_out(scene: Scene) -> None:
    scene.changes.note_change(scene.session("x" * 1024))
    await wait_all_tasks_blocked()
    assert scene.directory.operations == []
