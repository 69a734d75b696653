"""Mirroring the histories of a node's sessions."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.cluster.mirror_writer import BATCH, MESSAGES, PAUSE, ROUND, MirrorWriter
from acp_gateway.cluster.records import SessionRecord
from acp_gateway.cluster.session_writer import SessionWriter
from acp_gateway.cluster.store import Claim
from acp_gateway.core.archive import NO_ARCHIVE
from acp_gateway.core.journal import Journal
from acp_gateway.core.requests import Request
from acp_gateway.core.sessions import Session
from acp_gateway.gateway.session_changes import SessionChanges
from tests.cluster.memory_store import MemoryDirectory

LIMIT = 2 * 1024 * 1024


class IdleAgent:
    """An agent process in which nothing waits."""

    abandoned = False

    def queued(self, session: Session) -> Sequence[Request]:
        return ()


class Scene:
    """The sessions of a node, with the writers of both."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.directory = MemoryDirectory(journal_limit=limit)
        self.changes = SessionChanges(NO_ARCHIVE)
        self.sessions: list[Session] = []
        store = self.directory.store("gpu1")
        self.writer = SessionWriter(store, "gpu1", self.changes, lambda: self.sessions, lambda: True)
        self.refused: list[tuple[Session, Claim]] = []
        self.writer.refused = lambda session, claim: self.refused.append((session, claim))
        self.mirror = MirrorWriter(
            store, "gpu1", self.changes, lambda: self.sessions, self.writer, limit, lambda: self.directory.reachable
        )

    def session(self, name: str = "s", agent: str = "opencode", journal_limit: int = 2 * LIMIT) -> Session:
        """Return another live session, which is claimed."""
        session = Session(agent, name, "ann", Journal(journal_limit, "j"))
        session.archive = self.changes
        session.agent_handle = IdleAgent()
        self.sessions.append(session)
        self.changes.note_change(session)
        return session

    def say(self, session: Session, *messages: bytes, time: int | None = None) -> None:
        session.journal.extend(messages, time)
        self.changes.extend(session, messages, time)

    def mirrored(self, key: str = "gpu1/s") -> list[bytes]:
        return [message for _, message in self.directory.mirrors[key].messages]

    def count(self, operation: str) -> int:
        return self.directory.operations.count(operation)


@pytest.fixture
async def scene(mock_clock: MockClock, nursery: trio.Nursery) -> Scene:
    return await run(Scene(), nursery)


async def run(scene: Scene, nursery: trio.Nursery) -> Scene:
    nursery.start_soon(scene.writer.run)
    nursery.start_soon(scene.mirror.run)
    await wait_all_tasks_blocked()
    return scene


async def pass_time(clock: MockClock, rounds: int = 4) -> None:
    for _ in range(rounds):
        clock.jump(PAUSE)
        await wait_all_tasks_blocked()


async def test_history_is_mirrored_with_its_times(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    scene.say(session, b"a", b"b", time=7)
    await pass_time(mock_clock)
    scene.say(session, b"c")
    await pass_time(mock_clock)
    mirror = scene.directory.mirrors["gpu1/s"]
    assert (mirror.journal, mirror.first) == ("j ann", 0)
    assert mirror.messages == [(7, b"a"), (7, b"b"), (None, b"c")]


async def test_many_updates_are_a_few_writes(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    for number in range(100):
        scene.say(session, b"%d" % number)
        await wait_all_tasks_blocked()
    await pass_time(mock_clock)
    assert scene.mirrored() == [b"%d" % number for number in range(100)]
    assert scene.count("append") <= 2


async def test_nothing_is_written_where_nothing_has_grown(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    scene.say(session, b"a")
    await pass_time(mock_clock)
    before = scene.count("append")
    scene.changes.note_change(session)
    await pass_time(mock_clock)
    assert scene.count("append") == before == 1


async def test_writes_are_bounded_in_bytes_and_in_messages(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    scene.say(session, *[b"x" * (BATCH // 2)] * 3, *[b"y"] * (MESSAGES + 1))
    await pass_time(mock_clock)
    assert len(scene.mirrored()) == MESSAGES + 4
    assert scene.count("append") == 3


async def test_session_that_grows_fast_delays_no_other_one(scene: Scene, mock_clock: MockClock) -> None:
    fast, slow = scene.session("fast"), scene.session("slow")
    scene.say(fast, *[b"x" * BATCH] * (2 * ROUND // BATCH - 2))
    scene.say(slow, b"a")
    await wait_all_tasks_blocked()
    await pass_time(mock_clock, 1)
    assert scene.mirrored("gpu1/slow") == [b"a"]
    assert len(scene.mirrored("gpu1/fast")) == ROUND // BATCH
    await pass_time(mock_clock)
    assert scene.directory.mirrors["gpu1/fast"].first + len(scene.mirrored("gpu1/fast")) == fast.journal.position


async def test_what_the_mirror_has_no_room_for_is_not_written(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    scene = await run(Scene(limit=BATCH), nursery)
    session = scene.session()
    scene.say(session, *[b"x" * 100] * (10 * BATCH // 100))
    await pass_time(mock_clock)
    mirror = scene.directory.mirrors["gpu1/s"]
    assert mirror.first + len(mirror.messages) == session.journal.position
    assert scene.count("append") <= 3


async def test_message_above_the_limit_is_left_out(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    scene = await run(Scene(limit=1000), nursery)
    scene.say(scene.session(), b"a", b"x" * 1001, b"c")
    await pass_time(mock_clock)
    assert scene.mirrored() == [b"a", b"", b"c"]


async def test_replaced_journal_is_mirrored_anew(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    scene.say(session, b"a", b"b")
    await pass_time(mock_clock)
    replacement = Journal(LIMIT, "other")
    replacement.extend([b"c"])
    session.take_journal(replacement)
    await pass_time(mock_clock)
    assert (scene.directory.mirrors["gpu1/s"].journal, scene.mirrored()) == ("other ann", [b"c"])


async def test_history_that_was_cut_off_before_it_was_written_begins_anew(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session(journal_limit=10)
    scene.say(session, b"a")
    await pass_time(mock_clock)
    for _ in range(3):
        scene.say(session, b"x" * 10)
    await pass_time(mock_clock)
    assert (scene.directory.mirrors["gpu1/s"].first, scene.mirrored()) == (3, [b"x" * 10])


async def test_sessions_of_other_nodes_and_past_ones_are_not_mirrored(scene: Scene, mock_clock: MockClock) -> None:
    scene.say(scene.session(agent="gpu2/opencode"), b"a")
    past = scene.session("past")
    past.agent_handle = None
    scene.changes.note_change(past)
    scene.say(past, b"a")
    await pass_time(mock_clock)
    assert scene.directory.mirrors == {}


async def test_mirroring_goes_on_after_the_directory_was_lost(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    scene.say(session, b"a")
    await pass_time(mock_clock)
    scene.directory.lose()
    scene.say(session, b"b")
    await pass_time(mock_clock)
    scene.directory.reachable = True
    await scene.mirror.renewed(False)
    await pass_time(mock_clock)
    assert scene.mirrored() == [b"a", b"b"]


async def test_everything_in_memory_is_mirrored_again_after_the_directory_was_emptied(
    scene: Scene, mock_clock: MockClock
) -> None:
    session = scene.session()
    scene.say(session, b"a", b"b")
    await pass_time(mock_clock)
    scene.directory.empty()
    # The renewal of the mirror may come before that of the sessions.
    await scene.mirror.renewed(True)
    await pass_time(mock_clock, 1)
    await scene.writer.renewed(True)
    await pass_time(mock_clock, 6)
    assert scene.mirrored() == [b"a", b"b"]


@pytest.mark.parametrize("kept", [0, 1])
async def test_history_of_which_the_directory_has_lost_the_end_is_mirrored_again(
    kept: int, scene: Scene, mock_clock: MockClock
) -> None:
    # As after a failover to a replica that lacks the last writes, or after an eviction: the era is the same.
    session = scene.session()
    scene.say(session, b"a", b"b")
    await pass_time(mock_clock)
    if kept:
        del scene.directory.mirrors["gpu1/s"].messages[kept:]
    else:
        del scene.directory.mirrors["gpu1/s"]
    scene.say(session, b"c")
    await pass_time(mock_clock)
    assert (scene.directory.mirrors["gpu1/s"].first, scene.mirrored()) == (0, [b"a", b"b", b"c"])
    assert scene.refused == []


async def test_refused_mirror_tells_that_another_node_has_the_session(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    scene.say(session, b"a")
    await pass_time(mock_clock)
    adopted = SessionRecord(key="gpu1/s", node="gpu2", agent="opencode", owner="ann", epoch=0)
    await scene.directory.store("gpu2").claim(adopted, adopt=True)
    scene.say(session, b"b")
    await pass_time(mock_clock)
    assert [(found, claim.node) for found, claim in scene.refused] == [(session, "gpu2")]
    assert scene.mirrored() == [b"a"]


async def test_removed_session_leaves_nothing_behind(scene: Scene, mock_clock: MockClock) -> None:
    session = scene.session()
    scene.say(session, b"a")
    await pass_time(mock_clock)
    scene.sessions.clear()
    scene.changes.remove(session)
    await pass_time(mock_clock)
    assert scene.directory.mirrors == {}
    before = scene.count("append")
    await scene.mirror.renewed(False)
    await pass_time(mock_clock)
    assert scene.count("append") == before


async def test_session_with_an_id_that_is_too_long_is_left_out(scene: Scene, mock_clock: MockClock) -> None:
    scene.say(scene.session("x" * 1024), b"a")
    await pass_time(mock_clock)
    assert "append" not in scene.directory.operations


async def test_sessions_that_are_live_before_it_starts_are_mirrored(
    mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    scene = Scene()
    session = scene.session()
    scene.say(session, b"a")
    await run(scene, nursery)
    scene.changes.note_change(session)
    await pass_time(mock_clock)
    assert scene.mirrored() == [b"a"]
