"""Parts of histories are those of a plain list of all updates, from memory and from the disk."""

import random
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.config.options import GatewaySection
from acp_gateway.core.requests import TurnOutcome
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import Busy
from acp_gateway.gateway.sessions import history
from acp_gateway.gateway.sessions.history import HistoryReader, HistorySlice, slice_of
from acp_gateway.gateway.storage.archive import StoredArchive
from acp_gateway.gateway.storage.store import Storage
from tests.kit.registered import AgentDouble

LIMIT = 1_000_000

TURNS = st.lists(st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(0, 3)), max_size=5), max_size=6)


def written(turns: list[list[tuple[int, int | None]]], limit: int) -> tuple[Journal, list[tuple[bytes, int | None]]]:
    """Return a journal of messages with sizes and times, and all messages that were ever in it with their times."""
    journal = Journal(limit, "e")
    said: list[tuple[bytes, int | None]] = []
    for turn in turns:
        for size, time in turn:
            said.append((b"%03d" % len(said) + b"." * size, time))
            journal.append(said[-1][0], None, time)
        journal.turn_ended()
    return journal, said


@given(TURNS, st.integers(0, 200), st.integers(0, 30), st.none() | st.integers(0, 30), st.none() | st.integers(0, 30))
def test_a_slice_has_the_newest_updates_that_were_asked_for(
    turns: list[list[tuple[int, int | None]]], limit: int, since: int, before: int | None, most: int | None
) -> None:
    journal, said = written(turns, limit)
    found = slice_of(journal, since=since, before=before, limit=most)
    numbered = [(number, *update) for number, update in enumerate(said, 1) if number > journal.start]
    seen = since if since <= len(said) else 0
    wanted = [it for it in numbered if it[0] > seen and (before is None or it[0] < before)]
    expected = wanted if most is None else wanted[len(wanted) - min(most, len(wanted)) :]
    numbers = range(found.first, found.first + len(found.messages))
    assert list(zip(numbers, found.messages, found.times, strict=True)) == expected
    assert found.more == (len(expected) < len(wanted))
    assert (found.reset, found.truncated) == (since > len(said), seen < journal.start)
    assert (found.epoch, found.last) == ("e", len(said))


@given(TURNS, st.integers(1, 60))
def test_pages_of_any_size_give_the_whole_history_once(turns: list[list[tuple[int, int | None]]], size: int) -> None:
    journal, said = written(turns, LIMIT)
    gathered: list[bytes] = []
    before = None
    while True:
        page = slice_of(journal, before=before, limit=size)
        gathered = [*page.messages, *gathered]
        before = page.first
        if not page.more:
            break
    assert gathered == [message for message, _ in said]


@pytest.mark.parametrize(
    ("epoch", "since", "reset", "first"),
    [
        ("a", 2, False, 3),
        ("a", 1, False, 2),
        # That client has seen more of the former epoch than is known here.
        ("a", 3, True, 1),
        ("b", 3, False, 4),
        ("b", 4, True, 1),
        ("other", 1, True, 1),
        ("", 0, True, 1),
        (None, 3, False, 4),
        (None, 4, True, 1),
    ],
)
def test_a_position_counts_in_each_epoch_that_shares_it(epoch: str | None, since: int, reset: bool, first: int) -> None:
    journal = Journal(100, "a")
    journal.extend([b"1", b"2"])
    journal.rename("b")
    journal.extend([b"3"])
    found = slice_of(journal, since=since, epoch=epoch)
    assert (found.reset, found.first, found.epoch) == (reset, first, "b")
    assert found.first + len(found.messages) == 4


def test_a_reader_without_position_gets_the_states_before_the_slice() -> None:
    journal = Journal(12, "e")
    for message, state in ((b"m1", "mode"), (b"c1", "commands"), (b"cut off", None)):
        journal.append(message, state)
    journal.turn_ended()
    for message, state in ((b"m2", "mode"), (b"a", None), (b"m3", "mode"), (b"b", None)):
        journal.append(message, state)
    assert journal.start == 3
    assert slice_of(journal).states == [b"m1", b"c1"]
    assert slice_of(journal, limit=2).states == [b"c1", b"m2"]
    assert slice_of(journal, limit=1).states == [b"c1", b"m3"]
    assert slice_of(journal, since=4, epoch="e", limit=1).states == ()
    assert slice_of(journal, before=6).states == ()


def test_a_history_whose_beginning_was_never_known_is_truncated_for_who_has_nothing_of_it() -> None:
    journal = Journal(100, "e")
    journal.begin_truncated()
    journal.append(b"a")
    assert slice_of(journal).truncated
    assert not slice_of(journal, since=1).truncated


# From the disk


class Gateway:
    """The sessions of one process of a gateway."""

    def __init__(self, path: Path, *, journal: bool = True, limit: int = LIMIT) -> None:
        self.storage = Storage(
            path,
            GatewaySection(journal_storage="disk" if journal else "memory", journal_limit=limit, write_delay=0.0),
        )
        self.archive = StoredArchive(self.storage, journals=journal)
        self.registry = Registry("me", self.archive, "run")
        for session in self.archive.restore(limit):
            self.registry.restore(session)
        self.reader = HistoryReader(self.archive, limit)
        self._limit = limit

    def begin(self) -> Session:
        session = Session("agent", "s", "me", Journal(self._limit, self.registry.new_epoch()))
        self.registry.add(session, AgentDouble())
        return session

    def end(self, session: Session) -> None:
        session.forget_content()
        self.registry.end(session)


@pytest.mark.parametrize("restart", [False, True])
async def test_the_history_of_a_session_that_is_not_live_is_read_from_the_disk(tmp_path: Path, restart: bool) -> None:
    async with trio.open_nursery() as nursery:
        gateway = Gateway(tmp_path / "sessions.db")
        await nursery.start(gateway.storage.run)
        session = gateway.begin()
        session.write(b"mode", "mode", 5)
        session.extend([b"one", b"two"], 6)
        session.end_turn()
        session.extend([b"three"], 7)
        epoch = session.journal.epoch
        live = await gateway.reader.read(session)
        assert live == slice_of(session.journal)
        gateway.end(session)
        if not restart:
            assert await gateway.reader.read(session) == live
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        gateway = Gateway(tmp_path / "sessions.db")
        await nursery.start(gateway.storage.run)
        (session,) = gateway.registry
        assert await gateway.reader.read(session) == live
        part = await gateway.reader.read(session, since=1, limit=2, epoch=epoch)
        assert (part.first, part.messages, part.times, part.more) == (3, [b"two", b"three"], [6, 7], True)
        page = await gateway.reader.read(session, before=3)
        assert (page.first, page.messages, page.times, page.more) == (1, [b"mode", b"one"], [5, 6], False)
        # It is in memory no longer than that.
        assert session.journal.replay() == []
        assert not session.live
        nursery.cancel_scope.cancel()


async def test_a_session_without_stored_history_has_an_empty_truncated_slice(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        gateway = Gateway(tmp_path / "sessions.db", journal=False)
        await nursery.start(gateway.storage.run)
        session = gateway.begin()
        session.write(b"one")
        gateway.end(session)
        assert await gateway.reader.read(session) == HistorySlice("", 1, (), (), True, False, 0, False)
        assert (await gateway.reader.read(session, since=1)).reset
        nursery.cancel_scope.cancel()


class SlowArchive:
    """An archive whose disk answers when it is told to, or never."""

    def __init__(self) -> None:
        self.answers = trio.Event()
        self.reading = self.most = 0

    async def read(self, session: Session, journal_limit: int) -> Journal | None:
        self.reading += 1
        self.most = max(self.most, self.reading)
        try:
            await self.answers.wait()
        finally:
            self.reading -= 1
        return None if session.id == "live" else Journal(journal_limit, "disk")


def past(session_id: str) -> Session:
    session = Session("agent", session_id, "me", Journal(LIMIT))
    assert not session.journal.epoch
    return session


async def test_a_session_that_becomes_live_while_it_is_read_has_the_history_in_memory() -> None:
    archive = SlowArchive()
    reader, session = HistoryReader(archive, LIMIT), past("live")
    found: list[HistorySlice] = []

    async def read() -> None:
        found.append(await reader.read(session))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        session.journal = Journal(LIMIT, "memory")
        session.write(b"one")
        archive.answers.set()
    assert (found[0].epoch, found[0].messages) == ("memory", [b"one"])


async def test_few_histories_are_read_from_the_disk_at_a_time() -> None:
    archive = SlowArchive()
    reader = HistoryReader(archive, LIMIT)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(reader.read, past(str(number)))
        await trio.testing.wait_all_tasks_blocked()
        archive.answers.set()
    assert archive.most == history.READERS


async def test_a_disk_that_does_not_answer_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    reader = HistoryReader(SlowArchive(), LIMIT)
    with pytest.raises(Busy):
        await reader.read(past("s"))
    assert trio.current_time() == pytest.approx(history.READ_TIMEOUT)


def test_a_limit_of_nothing_returns_nothing_but_the_end() -> None:
    journal = Journal(LIMIT, "e")
    journal.extend([b"one", b"two"])
    found = slice_of(journal, limit=0)
    assert (found.first, found.messages, found.times, found.last, found.more) == (3, [], [], 2, True)


@pytest.mark.parametrize("seed", range(5))
async def test_any_part_of_a_history_that_was_cut_is_the_same_from_the_disk_as_all_that_was_said(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same each time is what is wanted
    limit = 2000
    async with trio.open_nursery() as nursery:
        gateway = Gateway(tmp_path / "sessions.db", limit=limit)
        await nursery.start(gateway.storage.run)
        session, said = gateway.begin(), list[tuple[bytes, int | None]]()
        epoch = session.journal.epoch
        for _ in range(40):
            time = chance.choice((None, 5, 6))
            batch = [b"%04d" % (len(said) + number) * 5 for number in range(chance.randrange(1, 9))]
            session.extend(batch, time)
            said += [(message, time) for message in batch]
            if chance.random() < 0.3:
                session.end_turn()
            if chance.random() < 0.2:
                await gateway.archive.read(session, limit)
        gateway.end(session)
        whole = await gateway.reader.read(session)
        assert whole.truncated
        assert whole.last == len(said)
        assert list(zip(whole.messages, whole.times, strict=True)) == said[whole.first - 1 :]
        for _ in range(20):
            since, before = chance.randrange(len(said) + 1), chance.randrange(1, len(said) + 2)
            most = chance.choice((None, 1, 7))
            part = await gateway.reader.read(session, since, before, most, epoch)
            wanted = said[max(since, whole.first - 1) : before - 1]
            expected = wanted if most is None else wanted[-most:]
            assert list(zip(part.messages, part.times, strict=True)) == expected
            assert (part.more, part.truncated) == (len(expected) < len(wanted), since < whole.first - 1)
            assert not expected or part.first == said.index(expected[0]) + 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("limit", [0, 1, None])
def test_a_reader_of_the_newest_updates_knows_the_ends_of_turns_behind_them(limit: int | None) -> None:
    journal = Journal(LIMIT, "e")
    journal.append(b"one")
    journal.note_end(TurnOutcome("end_turn"))
    journal.append(b"two")
    journal.note_end(TurnOutcome("end_turn"))
    journal.note_end(TurnOutcome("cancelled"))
    assert slice_of(journal, limit=limit).place == (2, 2)
