import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from acp_gateway.config.options import GatewaySection
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import AgentHandle, Session
from acp_gateway.core.turns.journal import Journal, TurnMessages
from acp_gateway.gateway.storage.archive import StoredArchive
from acp_gateway.gateway.storage.spending import Wanted, day_of, read_sums
from acp_gateway.gateway.storage.store import Storage
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.text.pairs import Entry, Pair

LIMIT = 1000

DATA = Path(__file__).parents[2] / "data"

HOME = cast("AgentHandle", object())


class Clock:
    """Says the time, in seconds since 1970."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Life:
    """One process of a gateway, as far as it keeps sessions."""

    def __init__(self, path: Path, clock: Clock, **options: Any) -> None:
        settings = GatewaySection(journal_limit=LIMIT, **options)
        self.storage = Storage(path, settings, now=clock)
        self.archive = StoredArchive(self.storage, journals=settings.journal_storage == "disk", now=clock)
        self.registry = Registry("me", self.archive, "run")
        self.restored = self.archive.restore(LIMIT)
        for session in self.restored:
            self.registry.restore(session)

    def begin(self, name: str = "s", owner: str = "me", agent: str = "agent") -> Session:
        """A session that is live."""
        session = Session(agent, name, owner, Journal(LIMIT, self.registry.new_epoch()))
        session.cwd = "/work"
        self.registry.add(session, HOME)
        return session

    def end(self, session: Session) -> None:
        """The agent's process has ended, and with it all that is in memory of the session."""
        session.forget_content()
        self.registry.end(session)

    async def journal(self, session: Session) -> Journal:
        """Return its stored history."""
        journal = await self.archive.read(session, LIMIT)
        assert journal is not None
        return journal


def written(path: Path) -> bytes:
    """All that is in the files of a directory."""
    return b"".join(file.read_bytes() for file in path.iterdir())


@asynccontextmanager
async def life(path: Path, clock: Clock | None = None, **options: Any) -> AsyncIterator[Life]:
    one = Life(path / "sessions.db", clock or Clock(), **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.storage.run)
        yield one
        nursery.cancel_scope.cancel()


async def test_a_session_is_known_to_the_next_process_with_what_a_list_shows_of_it(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.setup = {"cwd": b'"/work"', "mcpServers": b'[{"env":"secret"}]'}
        session.title = "Fix it"
        session.updated_at = "2026-11-22T00:00:00Z"
        first.registry.end(session)
    async with life(tmp_path) as second:
        (found,) = second.restored
    assert (found.agent, found.id, found.owner, found.live) == ("agent", "s", "me", False)
    assert (found.cwd, found.title, found.updated_at) == ("/work", "Fix it", "2026-11-22T00:00:00Z")
    assert found.setup == {"cwd": b'"/work"'}
    assert b"secret" not in written(tmp_path)


async def test_a_history_goes_on_in_the_next_process_where_it_was(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"one")
        session.write(b"mode", "current_mode_update")
        session.end_turn()
        session.write(b"two")
        epoch = session.journal.epoch
    async with life(tmp_path) as second:
        (found,) = second.restored
        assert second.archive.holds(found)
        journal = await second.journal(found)
    assert (journal.epoch, journal.position) == (epoch, 3)
    assert journal.replay() == [b"one", b"mode", b"two"]
    assert journal.since(1) == [b"mode", b"two"]
    assert journal.runs() == [
        TurnMessages([b"one", b"mode"], {1: "current_mode_update"}, ends_turn=True),
        TurnMessages([b"two"], {}, ends_turn=False),
    ]
    assert journal.states() == [b"mode"]


@pytest.mark.parametrize("together", [False, True])
async def test_messages_that_carry_others_are_kept_with_them(tmp_path: Path, together: bool) -> None:
    said: list[Entry] = [b"{}", Pair(b"{}", b'{"new":1}'), Pair(b"{}")]
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"[]")
        if together:
            session.journal.carries = True
            session.extend(said)
        else:
            for message in said:
                session.write(message)
    async with life(tmp_path) as second:
        kept = (await second.journal(*second.restored)).replay()
    assert kept == [b"[]", *said]
    assert [message.original for message in kept if isinstance(message, Pair)] == [b'{"new":1}', None]


async def test_a_history_without_messages_that_carry_others_says_so(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        session = one.begin()
        session.write(b"{}")
        key = one.archive._keys[session][0]
        assert not one.archive.snapshot(key, "", 0).carries
        session.write(Pair(b"{}"))
        assert one.archive.snapshot(key, "", 0).carries


async def test_what_replaces_a_history_is_kept_with_the_states_that_were_cut_off(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"old")
        journal = Journal(LIMIT, "another")
        journal.append(b"mode", "current_mode_update")
        journal.turn_ended()
        journal.append(b"x" * LIMIT)
        session.take_journal(journal)
    async with life(tmp_path) as second:
        (found,) = second.restored
        kept = await second.journal(found)
    assert (kept.epoch, kept.position, kept.truncated) == ("another", 2, journal.truncated)
    assert kept.states_set_aside() == journal.states_set_aside() == [(b"mode", "current_mode_update")]
    assert kept.replay() == journal.replay()


async def test_a_removed_session_and_its_history_are_not_there_any_more(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"said in confidence")
        first.registry.remove(session)
        assert not first.archive.holds(session)
        assert await first.archive.read(session, LIMIT) is None
    async with life(tmp_path) as second:
        assert second.restored == []


async def test_a_session_whose_id_the_agent_has_given_again_keeps_its_history_and_its_name(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        old = first.begin()
        old.write(b"old")
        first.end(old)
        first.begin().write(b"new")
        assert old.name == f"{old.id}~former-1"
    async with life(tmp_path) as second:
        found = {it.name: it for it in second.restored}
        assert {name: (await second.journal(it)).replay() for name, it in found.items()} == {
            f"{old.id}~former-1": [b"old"],
            old.id: [b"new"],
        }
        assert {it.id for it in second.restored} == {old.id}


async def test_without_histories_sessions_are_kept_alone(tmp_path: Path) -> None:
    async with life(tmp_path, journal_storage="memory") as first:
        session = first.begin()
        session.write(b"one")
        session.end_turn()
    async with life(tmp_path, journal_storage="memory") as second:
        (found,) = second.restored
        assert not second.archive.holds(found)
        assert await second.archive.read(found, LIMIT) is None


async def test_a_session_that_ends_in_its_process_keeps_its_history_on_the_disk(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"one")
        first.end(session)
        assert (await first.journal(session)).replay() == [b"one"]


async def test_a_history_that_was_removed_is_told_from_one_that_is_kept_and_from_none(tmp_path: Path) -> None:
    async with life(tmp_path / "a") as first:
        kept, removed = first.begin("kept"), first.begin("removed")
        for session in (kept, removed):
            session.write(b"one")
            first.end(session)
        first.storage._queue.give_up({first.archive._keys[removed][0]})
        assert [first.archive.loss(session) for session in (kept, removed)] == [None, "removed"]
    async with life(tmp_path / "b", journal_storage="memory") as second:
        session = second.begin()
        second.end(session)
        assert second.archive.loss(session) is None


async def test_a_history_on_disk_without_its_beginning_is_said_to_be_cut(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        for _ in range(40):
            session.write(b"x" * (LIMIT // 20))
            session.end_turn()
        assert (await first.journal(session)).truncated
        assert first.archive.loss(session) == "cut"
    async with life(tmp_path) as second:
        assert second.archive.loss(second.restored[0]) == "cut"


async def test_a_history_that_was_given_up_is_kept_again_from_the_end_of_the_turn_on(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"one")
        first.storage._queue.give_up({first.archive._keys[session][0]})
        session.write(b"two")
        assert not first.archive.holds(session)
        session.end_turn()
        assert (await first.journal(session)).replay() == [b"one", b"two"]


async def test_a_history_that_was_given_up_is_kept_again_though_the_file_was_damaged_before(tmp_path: Path) -> None:
    (tmp_path / "sessions.db").write_bytes(b"no database at all, " * 500)
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"one")
        await first.journal(session)
        first.storage._queue.give_up({first.archive._keys[session][0]})
        session.end_turn()
        assert (await first.journal(session)).replay() == [b"one"]


async def test_of_a_stream_that_is_faster_than_the_disk_the_end_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"mode", "current_mode_update")
        for number in range(100):
            session.extend([b"%d " % number * 10] * 5)
            session.write(b"%d" % number)
            if number == 90:
                session.end_turn()
        session.extend([b"end"])
        assert first.storage._queue.held == 0
        assert (await first.journal(session)).replay() == session.journal.replay()
        session.extend([b"later"])
    async with life(tmp_path) as second:
        (found,) = second.restored
        kept = await second.journal(found)
    assert (kept.epoch, kept.position, kept.truncated) == (session.journal.epoch, 603, True)
    assert kept.runs() == session.journal.runs()
    assert kept.states() == [b"mode"]
    assert caplog.records == []


async def test_the_end_of_such_a_stream_is_kept_though_the_session_ends_before_it_is_written(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.extend([b"x" * LIMIT, b"x" * LIMIT, b"end"])
        had = session.journal.replay()
        first.end(session)
        assert not first.archive.has(first.archive._keys[session][0])
    async with life(tmp_path) as second:
        (found,) = second.restored
        assert (await second.journal(found)).replay() == had == [b"end"]


async def test_what_is_in_memory_is_so_until_the_session_is_removed_or_its_content_is_forgotten(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        removed, forgotten = first.begin("a"), first.begin("b")
        keys = [first.archive._keys[session][0] for session in (removed, forgotten)]
        assert all(map(first.archive.has, keys))
        first.registry.remove(removed)
        removed.forget_content()
        forgotten.forget_content()
        assert not any(map(first.archive.has, keys))
    async with life(tmp_path) as second:
        (found,) = second.restored
        assert not second.archive.has(second.archive._keys[found][0])


async def test_a_history_that_was_replaced_while_it_was_asked_for_is_not_what_is_read(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"before")
        first.end(session)
        assert (await first.journal(session)).replay() == [b"before"]
        read: list[Journal] = []

        async def ask() -> None:
            read.append(await first.journal(session))

        # The disk is slow; before it is done the session is opened by another connection, and ends again.
        async with trio.open_nursery() as nursery, first.storage._writer.thread.limiter:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            first.registry.add(session, HOME)
            session.take_journal(Journal(LIMIT, first.registry.new_epoch()))
            session.write(b"after")
            epoch = session.journal.epoch
            first.end(session)
        (journal,) = read
    assert (journal.epoch, journal.position, journal.replay()) == (epoch, 1, [b"after"])


async def test_the_journal_of_a_session_that_a_killed_gateway_had_open_may_lack_its_end(tmp_path: Path) -> None:
    async with life(tmp_path) as killed:
        running, ended = killed.begin("running"), killed.begin("ended")
        running.write(b"one")
        killed.end(ended)
        await killed.journal(running)
        second = Life(tmp_path / "sessions.db", Clock())
        assert {session.id: session.may_lack_end for session in second.restored} == {"running": True, "ended": False}


async def test_no_journal_of_a_stopped_gateway_lacks_its_end(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"one")
        first.end(session)
    async with life(tmp_path) as second:
        (found,) = second.restored
        assert not found.may_lack_end


async def test_a_session_is_stored_as_open_before_its_journal_is_read(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        first.end(first.begin())
    async with life(tmp_path) as second:
        (found,) = second.restored
        found.awaited += 1
        second.archive.keep(found)
        await second.journal(found)
        (killed,) = Life(tmp_path / "sessions.db", Clock()).restored
        assert killed.may_lack_end


async def test_those_that_were_used_last_are_restored_last(tmp_path: Path) -> None:
    clock = Clock()
    async with life(tmp_path, clock) as first:
        sessions = [first.begin(name) for name in "abc"]
        for session in (sessions[1], sessions[0]):
            clock.now += 100
            session.end_turn()
    async with life(tmp_path, clock) as second:
        assert [session.id for session in second.restored] == ["c", "b", "a"]


async def test_expired_names_the_sessions_that_were_not_used_for_the_retention_time(tmp_path: Path) -> None:
    clock = Clock()
    async with life(tmp_path, clock) as first:
        old, young = first.begin("old"), first.begin("young")
        assert first.archive.expired() == []
        clock.now += 31 * 86400
        young.end_turn()
        assert first.archive.expired() == [old]


# Times, and what a user has put away


async def test_times_survive_a_restart_with_the_updates_that_have_them(tmp_path: Path) -> None:
    async with life(tmp_path) as first:
        session = first.begin()
        session.write(b"one", time=5)
        session.write(b"mode", "current_mode_update", 6)
        session.extend([b"two", b"three"], 6)
        session.end_turn()
        await first.journal(session)
        session.extend([b"four", b"five"], 3)
        session.extend([b"unknown"])
        times = session.journal.times(0, 7)
    assert times == [5, 6, 6, 6, 3, 3, None]
    async with life(tmp_path) as second:
        (found,) = second.restored
        journal = await second.journal(found)
    assert journal.times(0, 7) == times
    assert journal.runs() == session.journal.runs()


async def test_the_times_of_a_session_and_its_archived_flag_survive_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    async with life(tmp_path, clock) as first:
        known, unknown = first.begin("known"), Session("agent", "timed", "me", Journal(LIMIT, "e"))
        unknown.created_at = 1_700_000_000_123
        first.registry.add(unknown, HOME)
        known.write(b"one", time=7)
        first.registry.set_archived(known, archived=True)
        first.registry.rename(known, "mine")
        first.end(known)
    clock.now += 1000.0
    async with life(tmp_path, clock) as second:
        found = {session.id: session for session in second.restored}
        assert (found["known"].created_at, found["known"].active_at) == (1_000_000_000, 7)
        assert (found["timed"].created_at, found["timed"].active_at) == (1_700_000_000_123, 1_000_000_000)
        assert found["known"].archived
        assert not found["timed"].archived
        assert (found["known"].title, found["known"].is_named) == ("mine", True)
        assert not found["timed"].is_named
        second.registry.set_archived(found["known"], archived=False)
    async with life(tmp_path, clock) as third:
        assert not any(session.archived for session in third.restored)


async def test_a_file_of_the_first_version_is_extended_and_keeps_what_it_has(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "sessions.db") as file:
        file.executescript((DATA / "sessions-version-1.sql").read_text())
    file.close()
    for _ in range(2):
        async with life(tmp_path) as one:
            first, second = sorted(one.restored, key=lambda session: session.id)
            assert (first.owner, first.title, first.cwd, first.created_at) == (
                "me",
                "Fix it",
                "/work",
                1_700_000_002_000,
            )
            assert (first.active_at, first.archived, first.may_lack_end) == (1_700_000_005_000, False, True)
            assert (second.owner, second.may_lack_end) == ("you", False)
            journal = await one.journal(first)
            assert (journal.epoch, journal.position, journal.start, journal.truncated) == ("run-1", 172, 151, True)
            assert journal.states_set_aside() == [(b'{"mode":1}', "current_mode_update")]
            assert journal.replay()[-2:] == [b'{"new":19}', b'{"running":1}']
            assert set(journal.times(0, 172)) == {None}
            assert (await one.journal(second)).former == (("run-2", 1),)
            assert set(one.storage.token_uses()) == {"t1"}
    async with life(tmp_path) as one:
        (first,) = (session for session in one.restored if session.id == "first")
        first.journal = await one.journal(first)
        one.registry.add(first, HOME)
        first.extend([b"later", b"still later"], 9)
        times = (await one.journal(first)).times(170, 174)
    assert times == [None, None, 9, 9]


# Sessions of nodes


def waits(life: Life, session: Session) -> bool:
    """Return whether the session's history is queued for the disk."""
    return life.storage._queue.waits(life.archive._keys[session][0])


def costs(total: int) -> jsonrpc.Message:
    update = b'{"sessionUpdate":"usage_update","used":1,"size":2,"cost":{"amount":%d,"currency":"USD"}}' % total
    return jsonrpc.parse(b'{"method":"session/update","params":{"sessionId":"s","update":%b}}' % update)


async def test_what_a_session_has_cost_goes_on_in_the_next_process(tmp_path: Path) -> None:
    clock = Clock()
    for total in (50, 50, 80):
        async with life(tmp_path, clock) as one:
            session = one.restored[0] if one.restored else one.begin()
            before = session.spent["USD"]
            assert one.storage.spent_before == ({"me": {"USD": before}} if one.restored else {})
            session.archive.meter(session, "opened" if one.restored else "made")
            session.archive.meter(session, "prompted")
            session.archive.meter(session, "total", costs(total))
            assert session.spent == {"USD": total * 1_000_000}
    sums = read_sums(tmp_path / "sessions.db", Wanted())
    assert sums.sums == {day_of(clock()): {"USD": 80_000_000}}
    async with life(tmp_path, clock) as last:
        (session,) = last.restored
        last.registry.remove(session)
        session.archive.meter(session, "total", costs(90))
    assert read_sums(tmp_path / "sessions.db", Wanted()).sums == sums.sums
