"""The storage: data that survives a restart and a kill, and isolation from a full, slow or broken disk."""

import gc
import logging
import math
import os
import random
import shutil
import sqlite3
import stat
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.gateway.storage import store as storage_module
from acp_gateway.gateway.storage.database import Database, read_session_ids, read_token_uses
from acp_gateway.gateway.storage.histories import HistoryTables
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun, StoredSession, TokenUse
from acp_gateway.gateway.storage.store import GATHERING, MAX_GATHERING, READINGS, RETRY, Storage
from acp_gateway.gateway.storage.write_queue import WriteBatch
from acp_gateway.gateway.storage.writer import write
from acp_gateway.protocol.text.pairs import Entry
from tests.fuzz.effort import some
from tests.gateway.storage.stores import (
    DAY,
    LIMIT,
    NOON,
    PROMPT,
    Clock,
    Disk,
    Pauses,
    Sessions,
    bytes_on_disk,
    change,
    garble,
    garble_a_definition,
    journal,
    keep,
    living,
    lose_the_end,
    make,
    messages_of,
    overwrite,
    restarted,
    running,
    sessions_in,
    write_garbage,
)
from tests.kit.doubles import TIMEOUT

# What is told is what another gateway finds.


async def test_a_session_survives_a_restart(storage: Storage, path: Path) -> None:
    async with running(storage) as before:
        assert before == []
        keep(storage, 1, session_id="s", title="Fix it", updated_at="now", used=NOON + 1)
    after = make(path)
    async with running(after) as stored:
        assert stored == [StoredSession(1, "demo", "s", "ada", "/src", "Fix it", "now", NOON, NOON + 1, "e1")]
        assert await after.read_journal(1) == journal()
    assert after.problem is None


async def test_the_disk_confirms_the_first_record_of_a_session_and_its_opening_alone(tmp_path: Path) -> None:
    disk = Disk()
    storage = make(tmp_path / "sessions.db", disk=disk)

    async def syncs(step: Callable[[], object]) -> list[str]:
        disk.statements.clear()
        step()
        await storage.read_journal(1)
        return [it.split()[-1] for it in disk.statements if "synchronous" in it or it == "COMMIT"]

    async with living(storage, 1) as sessions:
        await storage.read_journal(1)
        assert await syncs(lambda: sessions.begin(2)) == ["FULL", "COMMIT", "NORMAL"]
        assert await syncs(lambda: keep(storage, 1, title="changed")) == ["COMMIT"]
        assert await syncs(lambda: sessions.append(1, b"one")) == ["COMMIT"]
        assert await syncs(lambda: keep(storage, 1, open=True)) == ["FULL", "COMMIT", "NORMAL"]
        assert await syncs(lambda: keep(storage, 1, open=True, title="again")) == ["COMMIT"]
        assert await syncs(lambda: keep(storage, 1, open=False)) == ["COMMIT"]


def turns(sessions: Sessions) -> None:
    sessions.append(1, b"one")
    sessions.append(1, b"two", state="mode")
    sessions.end_turn(1)
    sessions.append(1, b"three")


async def late_end(sessions: Sessions) -> None:
    sessions.append(1, b"one")
    await sessions.storage.read_journal(1)
    sessions.end_turn(1)
    await sessions.storage.read_journal(1)
    sessions.append(1, b"two")


async def comes_back(sessions: Sessions) -> None:
    sessions.append(1, b"one")
    sessions.end(1)
    assert await sessions.come_back(1)
    sessions.rename(1, "e2")
    sessions.append(1, b"two")


async def renamed(sessions: Sessions) -> None:
    sessions.append(1, b"one")
    await sessions.storage.read_journal(1)
    sessions.rename(1, "e2")
    sessions.append(1, b"two")
    # Without the history in memory, no epoch is known.
    keep(sessions.storage, 1, epoch="", title="changed")


def replaced(sessions: Sessions) -> None:
    sessions.append(1, b"old")
    sessions.replace(1, b"new")
    sessions.append(1, b"newer")


async def replaced_later(sessions: Sessions) -> None:
    sessions.append(1, b"old", b"older", b"oldest")
    sessions.rename(1, "e1'")
    await sessions.storage.read_journal(1)
    replaced(sessions)


async def rewritten_untold(sessions: Sessions) -> None:
    sessions.append(1, b"old")
    await sessions.storage.read_journal(1)
    sessions.replace(1, b"new 1", b"new 2")


async def cut_in_memory(sessions: Sessions) -> None:
    sessions.append(1, b"one")
    sessions.end_turn(1)
    sessions.shrink(1, 0)
    sessions.append(1, b"two")
    sessions.shrink(1, 0)
    sessions.append(1, b"three")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            turns,
            journal(
                position=3,
                runs=[StoredRun([b"one", b"two"], {1: "mode"}, ends_turn=True), StoredRun([b"three"])],
            ),
        ),
        (late_end, journal(position=2, runs=[StoredRun([b"one"], ends_turn=True), StoredRun([b"two"])])),
        (
            lambda sessions: [sessions.append(1, b"%d" % n) for n in range(100)],
            journal(*(b"%d" % n for n in range(100))),
        ),
        (comes_back, journal(b"one", b"two", epoch="e2", former=(("e1", 1),))),
        (renamed, journal(b"one", b"two", epoch="e2", former=(("e1", 1),))),
        (replaced, journal(b"new", b"newer", epoch="e2")),
        (replaced_later, journal(b"new", b"newer", epoch="e2")),
        (rewritten_untold, journal(b"new 1", b"new 2", epoch="e2")),
        (cut_in_memory, journal(position=3, runs=[StoredRun([b"one"], ends_turn=True), StoredRun([b"two", b"three"])])),
        (lambda sessions: sessions.storage.forget(1), None),
    ],
    ids=[
        "turns and states",
        "a turn that ends after its messages were written",
        "many messages",
        "a session that comes back to memory",
        "another epoch, with the former ones",
        "another history",
        "another history after the first was written",
        "another history of more messages",
        "what memory has cut",
        "nothing of a session that is erased before it was written",
    ],
)
async def test_a_history_is_read_as_it_was_told_also_after_a_restart(
    storage: Storage, path: Path, steps: Callable[[Sessions], Awaitable[None] | None], expected: StoredJournal | None
) -> None:
    async with living(storage, 1) as sessions:
        awaited = steps(sessions)
        if isinstance(awaited, Awaitable):
            await awaited
        assert await storage.read_journal(1) == expected
    assert await restarted(path, 1) == expected
    assert {stored.epoch for stored in sessions_in(path).values()} == ({expected.epoch} if expected else set())


async def test_changes_are_committed_without_a_read(storage: Storage, path: Path, disk: Disk) -> None:
    async with running(storage):
        disk.committed.clear()
        keep(storage, 1)
        await trio.to_thread.run_sync(disk.committed.wait, TIMEOUT)
        async with storage._writer.thread.limiter:  # It has done with it.
            assert set(sessions_in(path)) == {1}


async def test_committed_changes_survive_a_kill(storage: Storage, path: Path, tmp_path: Path) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"one")
        await storage.read_journal(1)
        sessions.append(1, b"never written")
        # What is on disk at this moment is what it would be after a kill.
        shutil.copytree(path.parent, tmp_path / "crashed")
    assert await restarted(tmp_path / "crashed" / path.name, 1) == journal(b"one")


async def test_only_changes_of_a_session_are_written_and_only_the_last(
    storage: Storage, path: Path, disk: Disk
) -> None:
    async with living(storage, 1):
        await storage.read_journal(1)
        disk.statements.clear()
        keep(storage, 1)
        await storage.read_journal(1)
        assert disk.count("INTO session") == 0
        for number in range(50):
            keep(storage, 1, title=f"title {number}")
        await storage.read_journal(1)
    assert disk.count("INTO session") == 1
    assert sessions_in(path)[1].title == "title 49"


async def test_a_session_that_has_ended_is_stored_with_its_last_messages_or_after_them(
    narrow: Storage, path: Path, disk: Disk
) -> None:
    async with living(narrow, 1, 2, 3) as sessions:
        await narrow.read_journal(1)
        await disk.hang(lambda: sessions.append(1, b"underway"))
        for key in (1, 2, 3):
            sessions.append(key, b"x" * (LIMIT // 2))
            keep(narrow, key, title="ended")
        seen = []
        disk.committed.clear()
        disk.flowing.set()
        while narrow._queue:
            with closing(sqlite3.connect(path)) as connection:
                query = "SELECT title, position FROM session JOIN journal ON session = key"
                seen += connection.execute(query).fetchall()
            await trio.lowlevel.checkpoint()
    assert not {position for title, position in seen if title == "ended"} & {0}


async def test_keys_are_never_used_again(storage: Storage, path: Path, clock: Clock) -> None:
    async with running(storage):
        first = storage.new_key()
        assert storage.new_key() == first + 1
        clock.time += 1
        last = storage.new_key()
        assert last > first + 1000
        keep(storage, last)
    clock.time -= DAY
    after = make(path, clock)
    after.open()
    assert after.new_key() == last + 1


async def test_a_session_that_is_erased_leaves_nothing(storage: Storage, path: Path) -> None:
    async with living(storage, 2) as sessions:
        sessions.begin(1, title="SECRET")
        sessions.append(1, b"SECRET")
        await storage.read_journal(1)
        storage.forget(1)
        assert await storage.read_journal(1) is None
        await storage.read_journal(2)
        assert b"SECRET" not in bytes_on_disk(path)
    assert set(sessions_in(path)) == {2}


async def test_no_history_is_kept_of_a_session_that_is_not(storage: Storage) -> None:
    async with running(storage):
        storage.grow(1, 3)
        storage.replace(1)
        storage.finish_journal(1)
        storage.forget(1)
        assert not storage.keeps_journal(1)
        assert await storage.read_journal(1) is None


async def test_without_histories_those_from_before_are_erased(storage: Storage, path: Path) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"SECRET")
    without = make(path, journal_storage="memory")
    async with running(without) as stored:
        assert [session.position for session in stored] == [0]
        sessions = Sessions(without, 2)
        sessions.append(2, b"SECRET")
        sessions.replace(2, b"SECRET")
        assert await without.read_journal(1) is await without.read_journal(2) is None
    assert b"SECRET" not in bytes_on_disk(path)
    assert set(sessions_in(path)) == {1, 2}


async def test_sessions_are_erased_after_retention_days(path: Path, clock: Clock) -> None:
    first = make(path, clock)
    async with living(first) as sessions:
        sessions.begin(1, used=NOON - 29 * DAY)
        sessions.begin(2, used=NOON - 31 * DAY)
        sessions.append(2, b"SECRET")
        assert first.expired() == [2]
    assert len(make(path, retention_days=math.inf).open()) == 2
    second = make(path, clock)
    async with running(second) as stored:
        assert [session.key for session in stored] == [1]
        assert await second.read_journal(2) is None
    assert b"SECRET" not in bytes_on_disk(path)


async def test_the_database_files_are_readable_by_their_owner_alone(storage: Storage, path: Path) -> None:
    async with living(storage, 1):
        await storage.read_journal(1)
        modes = {part.name: stat.S_IMODE(part.stat().st_mode) for part in path.parent.iterdir()}
    assert modes == dict.fromkeys(["sessions.db", "sessions.db-wal", "sessions.db-shm"], 0o600)


async def test_a_history_on_disk_is_bounded(storage: Storage) -> None:
    async with living(storage, 1) as sessions:
        for _ in range(100):
            sessions.append(1, b"x" * 5000)
            sessions.end_turn(1)
            await storage.read_journal(1)
        stored = await storage.read_journal(1)
    assert stored is not None
    assert stored.position == 100
    assert stored.truncated
    assert LIMIT * 3 / 4 < 5000 * len(messages_of(stored.runs)) <= LIMIT * 17 / 16


# Tokens.


@pytest.mark.parametrize(
    ("seconds", "owner", "written"),
    [
        (3599, None, TokenUse(NOON)),
        (3600, None, TokenUse(NOON + 3600)),
        (-3599, None, TokenUse(NOON)),
        (-DAY, None, TokenUse(NOON - DAY)),
        (0, "ada", TokenUse(NOON, "ada")),
    ],
    ids=["not within an hour", "after an hour", "nor back", "by a clock that was set back", "at once with its owner"],
)
async def test_the_last_use_of_a_token_is_written_once_an_hour(
    storage: Storage, path: Path, clock: Clock, seconds: float, owner: str | None, written: TokenUse
) -> None:
    async with living(storage, 1):
        storage.token_used("0a0a0a0a")
        await storage.read_journal(1)
        clock.time += seconds
        storage.token_used("0a0a0a0a", owner)
        assert storage.token_uses() == {"0a0a0a0a": TokenUse(NOON + seconds, owner)}
        storage.token_used("0a0a0a0a")
        assert storage.token_uses() == {"0a0a0a0a": TokenUse(NOON + seconds, owner)}
        await storage.read_journal(1)
        assert read_token_uses(path) == {"0a0a0a0a": written}
    after = make(path)
    after.open()
    assert after.token_uses() == {"0a0a0a0a": written}


# Files that cannot be used


async def test_a_damaged_file_is_put_aside_and_a_problem_until_the_new_one_has_what_is_known(
    storage: Storage, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_garbage(path)
    aside = path.with_name("sessions.db.damaged-20260101T120000Z")
    async with living(storage) as sessions:
        problem = f"{path} was damaged and a new one is begun; what is left of the old one is {aside}"
        assert storage.problem == problem
        sessions.begin(1)
        sessions.append(1, b"one")
        await storage.read_journal(1)
        assert storage.problem is None
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert caplog.records[0].getMessage() == problem
    assert aside.read_bytes() == b"no database at all, " * 500
    assert await restarted(path, 1) == journal(b"one")


@pytest.mark.parametrize("ends", [False, True], ids=["live sessions", "a session that ends by then"])
async def test_a_damaged_file_is_a_problem_until_all_histories_in_memory_are_stored_again(
    storage: Storage, narrow: Storage, path: Path, disk: Disk, pauses: Pauses, ends: bool
) -> None:
    async with living(storage, 1, 2, 3) as sessions:
        for key in (1, 2, 3):
            sessions.append(key, b"one")
    overwrite(path, "piece")
    problems: list[str | None] = []
    async with running(narrow):
        sessions.move_to(narrow)
        sessions.append(1, b"two")
        await pauses.until_failed()
        had = {key: sessions.now(key) for key in (1, 2, 3)}
        written = narrow._writer.note_success

        def note(**options: bool) -> None:
            written(**options)
            if ends and not problems:
                (last,) = narrow._queue._grown.keys() - {first := min(narrow._queue._grown)}
                sessions.end(last)
                assert first
            problems.append(narrow.problem)

        narrow._writer.note_success = note  # type: ignore[method-assign] # each batch is looked at
        pauses.end()
        while len(problems) < 3:
            await trio.lowlevel.checkpoint()
    assert [problem is None for problem in problems[:3]] == [False, False, True]
    assert all("was damaged and a new one is begun" in str(problem) for problem in problems[:2])
    for key in (1, 2, 3):
        assert await restarted(path, key) == had[key]


async def test_a_file_that_lost_its_end_is_put_aside_and_what_can_be_read_taken_over(path: Path) -> None:
    first = make(path)
    async with living(first, 1, 2) as sessions:
        sessions.append(1, b'"one"')
        await first.read_journal(1)
        sessions.append(2, b"x" * 50_000)
        first.token_used("0a0a0a0a")
    lose_the_end(path)
    second = make(path)
    assert [(session.key, session.position, session.open) for session in second.open()] == [(1, 1, False), (2, 0, True)]
    assert str(second.problem).endswith("; 2 sessions and the histories of 1 could be read")
    assert second.token_uses().keys() == {"0a0a0a0a"}
    third = make(path)
    async with running(third):
        assert third.problem is None
        read = await third.read_journal(1)
        assert read is not None
        assert read == journal(b'"one"', epoch=read.epoch)
        assert read.epoch != "e1"
        assert not third.keeps_journal(2)


def test_a_file_that_was_emptied_is_not_a_first_start(storage: Storage, path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert storage.open() == []
    assert "was empty, so that the sessions that it had are not known any more, and a new one" in str(storage.problem)


async def test_a_file_that_could_not_be_begun_is_not_one_that_was_emptied(path: Path, disk: Disk) -> None:
    disk.broken = True
    first = make(path, disk=disk)
    assert first.open() == []
    assert first.problem is not None
    second = make(path)
    second.open()
    assert second.problem is None


async def test_a_file_that_turns_out_to_be_damaged_is_put_aside_while_running_and_gets_all_that_is_in_memory(
    storage: Storage, path: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    async with living(storage, 1, 2) as sessions:
        keep(storage, 1, title="known here")
        for key in (1, 2):
            sessions.append(key, b"one")
        storage.token_used("0a0a0a0a")
    after = make(path, pauses=pauses)
    overwrite(path, "piece")
    async with running(after) as stored:
        assert [session.key for session in stored] == [1, 2]
        del sessions.journals[2]
        sessions.move_to(after)
        sessions.append(1, b"two")
        sessions.begin(3)
        sessions.append(3, b"began on the damaged file")
        sessions.end(3)
        await pauses.until_failed()
        assert "malformed" in str(after.problem)
        sessions.append(1, b"three")
        pauses.end()
        while (read := await after.read_journal(1)) is None:
            assert after.problem is not None
        assert read == journal(b"one", b"two", b"three")
        assert not after.keeps_journal(2)
        assert after.problem is None
        assert "was damaged and a new one is begun" in caplog.text
    assert await restarted(path, 1) == read
    assert await restarted(path, 3) == journal(b"began on the damaged file")
    assert sessions_in(path)[1].title == "known here"
    assert set(sessions_in(path)) == {1, 2, 3}
    assert set(read_token_uses(path)) == {"0a0a0a0a"}


async def test_a_file_of_a_newer_version_is_left_alone(storage: Storage, path: Path, pauses: Pauses) -> None:
    make(path).open()
    change(path, "PRAGMA user_version = 9")
    before = bytes_on_disk(path)
    async with living(storage, 1) as sessions:
        assert "was written by a newer acp-gateway" in str(storage.problem)
        sessions.append(1, b"one")
        await pauses.until_failed()
        assert await storage.read_journal(1) is None
    assert bytes_on_disk(path) == before


async def test_a_directory_that_cannot_be_written_keeps_nothing_and_stops_nothing(
    storage: Storage, path: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_bytes(b"a file where the directory should be")
    async with living(storage, 1) as sessions:
        assert storage.problem is not None
        assert storage.problem.startswith(f"{path}: File exists; ")
        sessions.append(1, b"one")
        await pauses.until_failed()
        pauses.end()
        await pauses.until_failed()
        assert len(caplog.records) == 1
        path.parent.unlink()
        pauses.end()
        # Nothing was lost: this file never had anything.
        while (read := await storage.read_journal(1)) is None:
            pass
        assert read == journal(b"one")
        assert storage.problem is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_read_only_directory_is_a_problem_and_no_more(storage: Storage, path: Path) -> None:
    path.parent.mkdir(mode=0o500)
    assert storage.open() == []
    assert "Permission denied" in str(storage.problem)


DAMAGE: list[tuple[str, set[int]]] = [
    ("UPDATE session SET used = x'00' WHERE key = 1", {2}),
    ("UPDATE session SET used = 9e999 WHERE key = 1", {2}),
    ("UPDATE session SET owner = x'616461' WHERE key = 1", {2}),
    ("UPDATE session SET title = x'00' WHERE key = 1", {2}),
    ("UPDATE session SET key = 9223372036854775807 WHERE key = 1", {2}),
    ("UPDATE journal SET position = 'x' WHERE session = 1", {1, 2}),
    ("INSERT INTO token VALUES (NULL, 1.0, NULL)", {1, 2}),
    ("INSERT INTO token VALUES ('0a0a0a0a', 'x', NULL)", {1, 2}),
    ("INSERT INTO token VALUES ('0a0a0a0a', 1.0, x'00')", {1, 2}),
    # No rule forbids a missing owner any more.
    ("UPDATE session SET used = NULL, owner = NULL", set()),
]


@pytest.mark.parametrize(("damage", "left"), DAMAGE)
async def test_a_file_with_something_else_in_a_column_is_put_aside_without_it(
    storage: Storage, path: Path, damage: str, left: set[int]
) -> None:
    async with living(storage, 1, 2):
        pass
    if "NULL, owner" in damage:
        change(path, "PRAGMA writable_schema = ON", "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')")
    change(path, damage)
    after = make(path)
    async with running(after) as stored:
        assert {session.key for session in stored} == left
        assert after.token_uses() == {}
        assert "was damaged and a new one is begun" in str(after.problem)


async def test_a_file_whose_list_of_sessions_is_damaged_is_put_aside(path: Path) -> None:
    first = make(path)
    async with living(first, *range(1, 200)):
        pass
    overwrite(path, "session")
    second = make(path)
    assert {session.key for session in second.open()} < set(range(1, 200))
    assert "damaged" in str(second.problem)


@pytest.mark.parametrize("opened", [False, True], ids=["at the start", "while running"])
async def test_a_file_with_damage_that_sqlite_cannot_name_is_put_aside(
    storage: Storage, path: Path, caplog: pytest.LogCaptureFixture, opened: bool
) -> None:
    async with running(storage):
        keep(storage, 1)
    after = make(path)
    if opened:
        after.open()
    garble_a_definition(path)
    if not opened:
        assert [session.key for session in after.open()] == [1]
    async with trio.open_nursery() as nursery:
        await nursery.start(after.run)
        sessions = Sessions(after, 2)
        sessions.append(2, b"one")
        with trio.fail_after(TIMEOUT):
            assert await after.read_journal(2) == journal(b"one")
        nursery.cancel_scope.cancel()
    assert "was damaged and a new one is begun" in caplog.text
    assert {record.thread for record in caplog.records} == {threading.get_ident()}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE journal SET position = 9 WHERE session = 1",
        "UPDATE piece SET outline = 5 WHERE session = 1",
        "UPDATE piece SET messages = CAST(messages AS TEXT) WHERE session = 1",
    ],
)
async def test_a_history_that_does_not_fit_together_is_given_up_until_it_is_replaced(
    storage: Storage, path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    async with living(storage, 1, 2) as sessions:
        for key in (1, 2):
            sessions.append(key, b"one")
        await storage.read_journal(1)
        change(path, damage)
        assert await storage.read_journal(1) is None
        assert not storage.keeps_journal(1)
        assert "does not fit together" in caplog.text
        assert await storage.read_journal(2) == journal(b"one")
        sessions.append(1, b"two")
        assert await storage.read_journal(1) is None
        sessions.replace(1, b"three")
        assert await storage.read_journal(1) == journal(b"three", epoch="e2")


async def test_a_history_whose_length_is_not_a_number_is_damage_to_who_goes_on_with_it(
    storage: Storage, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with living(storage, 1) as sessions:
        pass
    after = make(path)
    async with running(after):
        sessions.move_to(after)
        change(path, "UPDATE journal SET size = 'x'")
        sessions.append(1, b"one")
        assert await after.read_journal(1) is None
        assert await after.read_journal(1) == journal(b"one")
        assert "was damaged and a new one is begun" in caplog.text


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_history_of_no_session_is_erased(storage: Storage, path: Path, keeps: bool) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"SECRET")
    change(path, "DELETE FROM session")
    async with running(make(path, journal_storage="disk" if keeps else "memory")) as stored:
        assert stored == []
    assert b"SECRET" not in bytes_on_disk(path)


async def use(storage: Storage, stored: list[StoredSession]) -> None:
    """Read everything that was stored before, and write more."""
    sessions = Sessions(storage)
    for session in stored:
        assert all(isinstance(text, str) for text in (session.agent, session.session_id, session.owner, session.epoch))
        assert 0 <= session.used < math.inf
        read = await storage.read_journal(session.key)
        assert read is None or all(isinstance(message, bytes) for message in messages_of(read.runs))
        keep(storage, session.key, title="changed", epoch="")
        if await sessions.come_back(session.key):
            sessions.append(session.key, b"new")
            sessions.end_turn(session.key)
    storage.token_used("0a0a0a0a")
    key = storage.new_key()
    keep(storage, key)
    await storage.read_journal(key)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_bits_are_flipped_it_goes_on(tmp_path: Path, path: Path, seed: int) -> None:
    first = make(path)
    async with living(first, *range(1, 5)) as sessions:
        for key in range(1, 5):
            sessions.append(key, b'{"one": 1}')
            sessions.append(key, b'{"two": 2}', state="plan")
            sessions.end_turn(key)
            first.token_used(f"{key}a0a0a0a")
    chance = random.Random(seed)  # noqa: S311 - for damage that comes again
    for number in range(20):
        copy = tmp_path / f"{seed}-{number}" / path.name
        shutil.copytree(path.parent, copy.parent)
        storage = make(copy)
        with trio.fail_after(TIMEOUT):
            if number % 2:
                garble(copy, chance)
                stored = storage.open()
            else:
                stored = storage.open()
                garble(copy, chance)
            async with trio.open_nursery() as nursery:
                await nursery.start(storage.run)
                await use(storage, stored)
                nursery.cancel_scope.cancel()


def divide(*args: object, **options: object) -> None:
    raise ZeroDivisionError("division\nby zero")


async def test_a_mistake_in_writing_is_told_and_tried_again(
    storage: Storage, path: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(storage, 1) as sessions:
        await storage.read_journal(1)
        with monkeypatch.context() as patch:
            patch.setattr(HistoryTables, "renew", divide)
            sessions.append(1, b"one")
            for _ in range(2):
                await pauses.until_failed()
                pauses.end()
            await pauses.until_failed()
            assert str(storage.problem).startswith(f"{path}: unexpected ZeroDivisionError: division by zero; ")
            assert [record.exc_info is not None for record in caplog.records] == [True]
        pauses.end()
        assert await storage.read_journal(1) == journal(b"one")
        assert storage.problem is None
    assert await restarted(path, 1) == journal(b"one")


async def test_a_mistake_in_reading_costs_who_reads_no_more_than_that(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"one")
        with monkeypatch.context() as patch:
            patch.setattr(HistoryTables, "read", divide)
            assert await storage.read_journal(1) is None
        assert "unexpected ZeroDivisionError" in str(storage.problem)
        assert await storage.read_journal(1) == journal(b"one")


async def test_a_mistake_at_the_start_is_a_problem_and_no_more(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Database, "token_uses", divide)
        assert storage.open() == []
    assert "unexpected ZeroDivisionError" in str(storage.problem)


async def test_a_file_that_cannot_be_closed_is_opened_again(
    storage: Storage, disk: Disk, pauses: Pauses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(storage, 1) as sessions:
        await storage.read_journal(1)
        left = disk.opened[-1]
        with monkeypatch.context() as patch:
            patch.setattr(Database, "close", divide)
            disk.broken = True
            sessions.append(1, b"one")
            await pauses.until_failed()
        assert "can't be closed" in caplog.text
        disk.broken = False
        pauses.end()
        assert await storage.read_journal(1) == journal(b"one")
        left.close()


# Several who read.


async def test_who_asks_for_the_same_history_shares_one_reading(storage: Storage, disk: Disk) -> None:
    read: list[StoredJournal | None] = []

    async def ask() -> None:
        read.append(await storage.read_journal(1))

    async with living(storage, 1) as sessions:
        sessions.append(1, b"one")
        await storage.read_journal(1)
        disk.statements.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
    assert read == [journal(b"one")] * 10
    assert disk.count("messages FROM piece") == 1


def opened_and_ended(sessions: Sessions) -> None:
    sessions.replace(1, b"new")
    sessions.end(1)


@pytest.mark.parametrize(
    ("live", "then", "expected"),
    [
        (False, opened_and_ended, journal(b"new", epoch="e2")),
        (False, lambda sessions: keep(sessions.storage, 1, epoch="e2"), journal(b"one", epoch="e2")),
        (False, lambda sessions: keep(sessions.storage, 1, title="changed"), journal(b"one")),
        (False, lambda sessions: sessions.storage.forget(1), None),
        (True, lambda sessions: sessions.append(1, b"two"), None),
    ],
    ids=[
        "another history that took its place",
        "it under its new name",
        "it though its session changed",
        "nothing if it is erased",
        "nothing if it goes on in memory",
    ],
)
async def test_who_asks_for_a_history_gets_it_as_it_is_when_there_is_an_answer(
    storage: Storage, disk: Disk, live: bool, then: Callable[[Sessions], object], expected: StoredJournal | None
) -> None:
    read: list[StoredJournal | None] = []

    async def ask() -> None:
        read.append(await storage.read_journal(1))

    async with living(storage, 1) as sessions:
        sessions.append(1, b"one")
        if not live:
            sessions.end(1)
        await storage.read_journal(1)
        disk.flowing.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            then(sessions)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            disk.flowing.set()
        assert read[0] == expected
        assert read[1] == (journal(b"one", b"two") if live else expected)


async def test_who_asks_gets_what_replaced_a_history_that_does_not_fit_together(
    storage: Storage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = trio.lowlevel.current_trio_token()

    def read(self: HistoryTables, key: int) -> StoredJournal | None:
        monkeypatch.undo()
        trio.from_thread.run_sync(opened_and_ended, sessions, trio_token=token)
        return None

    async with living(storage, 1) as sessions:
        sessions.append(1, b"one")
        sessions.end(1)
        monkeypatch.setattr(HistoryTables, "read", read)
        assert await storage.read_journal(1) == journal(b"new", epoch="e2")
    assert await restarted(path, 1) == journal(b"new", epoch="e2")


async def test_who_asks_for_a_history_that_is_never_at_rest_is_not_kept_waiting(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_journal = HistoryTables.read
    readings: list[int] = []
    token = trio.lowlevel.current_trio_token()

    def read(self: HistoryTables, key: int) -> StoredJournal | None:
        readings.append(key)
        trio.from_thread.run_sync(opened_and_ended, sessions, trio_token=token)
        return read_journal(self, key)

    monkeypatch.setattr(HistoryTables, "read", read)
    async with living(storage, 1) as sessions:
        sessions.end(1)
        assert await storage.read_journal(1) is None
        assert storage.keeps_journal(1)
    assert readings == [1] * READINGS


async def test_a_history_has_its_new_name_though_that_can_not_be_written(
    storage: Storage, disk: Disk, pauses: Pauses
) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"one")
        await storage.read_journal(1)
        disk.fill()
        keep(storage, 1, epoch="e2", title="x" * 50_000)
        await pauses.until_failed()
        assert await storage.read_journal(1) == journal(b"one", epoch="e2")
        disk.clear()
        pauses.end()


async def test_what_comes_is_written_between_two_readings(storage: Storage, disk: Disk) -> None:
    async with living(storage, 1, 2, 3) as sessions:
        for key in (1, 2, 3):
            sessions.append(key, b"one")
        await storage.read_journal(1)
        disk.statements.clear()
        disk.flowing.clear()
        async with trio.open_nursery() as nursery:
            for key in (1, 2):
                nursery.start_soon(storage.read_journal, key)
            await trio.testing.wait_all_tasks_blocked()
            sessions.append(3, b"two")
            disk.flowing.set()
    steps = [statement.split()[0] for statement in disk.statements if " piece" in statement]
    assert steps[:3] == ["SELECT", "INSERT", "SELECT"]


async def test_a_history_that_was_handed_over_is_not_held(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = threading.Event()
    held: list[list[StoredJournal]] = []
    read_before: list[int] = []
    read_journal = HistoryTables.read

    def read(self: HistoryTables, key: int) -> StoredJournal | None:
        if read_before:
            taken.wait(TIMEOUT)
            gc.collect()
            alive = [each for each in gc.get_objects() if isinstance(each, StoredJournal)]
            held.append([each for each in alive if each.epoch == "handed over"])
        read_before.append(key)
        return read_journal(self, key)

    monkeypatch.setattr(HistoryTables, "read", read)

    async def ask(key: int) -> None:
        await storage.read_journal(key)
        taken.set()

    async with living(storage) as sessions:
        for key in (1, 2):
            sessions.begin(key, epoch="handed over")
            sessions.append(key, b"one")
        async with trio.open_nursery() as nursery:
            for key in (1, 2):
                nursery.start_soon(ask, key)
    assert held == [[]]


# Disks that fail


async def test_what_does_not_fit_on_a_full_disk_is_written_when_there_is_space(
    storage: Storage, path: Path, disk: Disk, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with living(storage, 1, 3) as sessions:
        sessions.append(1, b"one")
        sessions.append(3, b"one")
        await storage.read_journal(1)
        disk.fill()
        sessions.append(1, b"x" * 50_000)
        await pauses.until_failed()
        assert storage.problem is not None
        assert storage.problem.startswith(f"{path}: database or disk is full; ")
        # What is all there can be read.
        assert await storage.read_journal(3) == journal(b"one")
        assert await storage.read_journal(1) is None
        assert storage.keeps_journal(1)
        sessions.append(1, b"three")
        keep(storage, 2)
        await pauses.until_failed()
        disk.clear()
        pauses.end()
        assert await storage.read_journal(1) == journal(b"one", b"x" * 50_000, b"three")
        assert storage.problem is None
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert set(sessions_in(path)) == {1, 2, 3}


async def test_where_there_is_no_room_beside_the_file_at_the_start_what_is_stored_is_read_and_written_later(
    path: Path, clock: Clock, disk: Disk, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    async with living(make(path), 1) as sessions:
        sessions.append(1, b"one")
    # SQLite can't make the file that processes share.
    beside = path.with_name("sessions.db-shm")
    os.mkfifo(beside)
    storage = make(path, clock, disk, pauses)
    async with running(storage) as stored:
        assert [session.key for session in stored] == [1]
        assert storage.problem is not None
        assert storage.problem.startswith(f"{path}: database or disk is full; ")
        await pauses.until_failed()
        assert await storage.read_journal(1) == journal(b"one")
        await pauses.until_failed()
        assert storage.problem is not None
        beside.unlink()
        # Nothing has to change for the gateway to be ready again.
        pauses.end()
        while storage.problem is not None:
            await trio.lowlevel.checkpoint()
        # Commands that only read are not kept off any more.
        assert read_session_ids(path) == {"sess-1"}
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


async def test_a_broken_disk_is_opened_again(storage: Storage, disk: Disk, pauses: Pauses) -> None:
    async with living(storage, 1, 2) as sessions:
        await storage.read_journal(1)
        disk.broken = True
        sessions.append(1, b"one")
        await pauses.until_failed()
        problem = storage.problem
        assert problem is not None
        # Without a file nothing can be read, and the problem is the same.
        assert await storage.read_journal(2) is None
        await pauses.until_failed()
        assert storage.problem == problem
        opened = len(disk.opened)
        disk.broken = False
        pauses.end()
        assert await storage.read_journal(1) == journal(b"one")
        assert storage.problem is None
        assert len(disk.opened) == opened + 1


async def test_what_ends_while_nothing_can_be_written_waits_within_a_bound_and_is_given_up_beyond_it(
    narrow: Storage, path: Path, disk: Disk, pauses: Pauses
) -> None:
    async with living(narrow, 1, 2, 3) as sessions:
        for key in (1, 2, 3):
            sessions.append(key, b"SECRET")
        await narrow.read_journal(1)
        disk.fill()
        for key in (1, 2, 3):
            sessions.append(key, b"x" * 60_000)
        await pauses.until_failed()
        sessions.end(1)
        assert "given up" not in str(narrow.problem)
        sessions.end(2)
        assert narrow._queue.held < LIMIT
        keep(narrow, 2, title="later")
        assert await narrow.read_journal(2) is None
        assert "the histories of sessions that have ended are given up" in str(narrow.problem)
        disk.clear()
        pauses.end()
        while narrow.problem is not None:
            await narrow.read_journal(3)
        had = sessions.now(3)
    assert sessions_in(path)[2].title == "later"
    assert await restarted(path, 1) == journal(b"SECRET", b"x" * 60_000)
    assert await restarted(path, 2) is None
    assert await restarted(path, 3) == had
    assert bytes_on_disk(path).count(b"SECRET") == 2


async def test_a_history_that_is_cut_in_memory_beyond_the_bound_is_stored_as_it_is_in_memory(
    narrow: Storage, path: Path
) -> None:
    async with living(narrow, 1) as sessions:
        for _ in range(2):
            sessions.append(1, b"x" * 70_000)
            sessions.shrink(1, LIMIT)
        assert narrow.problem is not None
        assert narrow.keeps_journal(1)
        sessions.append(1, b"more")
        assert await narrow.read_journal(1) == sessions.now(1)
        assert narrow.problem is None


class Failure:
    """A batch fails, and before that more comes."""

    def __init__(self, storage: Storage, disk: Disk, pauses: Pauses) -> None:
        self._storage = storage
        self._disk = disk
        self._pauses = pauses

    async def begin(self, then: Callable[[], object]) -> None:
        """Do this, and see to it that the batch with it hangs."""
        await self._storage.read_journal(1)
        await self._disk.hang(then)

    async def end(self) -> None:
        """That batch fails; the next one won't."""
        self._disk.broken = True
        self._disk.flowing.set()
        await self._pauses.until_failed()
        self._disk.broken = False
        self._pauses.end()


@pytest.fixture
def failure(storage: Storage, disk: Disk, pauses: Pauses) -> Failure:
    return Failure(storage, disk, pauses)


def append_one(sessions: Sessions) -> None:
    sessions.append(1, b"one", state="mode")


def end_with_one(sessions: Sessions) -> None:
    append_one(sessions)
    sessions.end(1)


def go_on_after_turn(sessions: Sessions) -> None:
    sessions.append(1, b"two")
    sessions.end_turn(1)
    sessions.append(1, b"three")


def forget(sessions: Sessions) -> None:
    sessions.storage.forget(1)


def much(sessions: Sessions) -> None:
    sessions.append(1, b"y" * LIMIT)
    sessions.append(1, b"end")


ZERO_TO_TWO = StoredRun([b"zero", b"one", b"two"], {1: "mode"}, ends_turn=True)
ZERO_AND_ONE = StoredRun([b"zero", b"one"], {1: "mode"})


@pytest.mark.parametrize(
    ("underway", "later", "expected"),
    [
        (append_one, go_on_after_turn, journal(position=4, runs=[ZERO_TO_TWO, StoredRun([b"three"])])),
        (append_one, lambda sessions: sessions.end(1), journal(position=2, runs=[ZERO_AND_ONE])),
        (end_with_one, lambda _: None, journal(position=2, runs=[ZERO_AND_ONE])),
        (append_one, replaced, journal(b"new", b"newer", epoch="e2")),
        (end_with_one, opened_and_ended, journal(b"new", epoch="e2")),
        (replaced, lambda sessions: sessions.append(1, b"newest"), journal(b"new", b"newer", b"newest", epoch="e2")),
        (append_one, forget, None),
        (end_with_one, forget, None),
        (much, much, journal(position=5, truncated=True, runs=[StoredRun([b"end"])])),
    ],
    ids=[
        "messages and the end of a turn",
        "the end of the session",
        "nothing more after the session's end",
        "another history",
        "another history, and its end",
        "more of another history",
        "the end of the session's storage",
        "the same after its end",
        "more than the history holds",
    ],
)
async def test_after_a_batch_that_fails_a_history_is_what_came_during_it(
    storage: Storage,
    path: Path,
    failure: Failure,
    underway: Callable[[Sessions], None],
    later: Callable[[Sessions], None],
    expected: StoredJournal | None,
) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"zero")
        await failure.begin(lambda: underway(sessions))
        later(sessions)
        await failure.end()
        assert await storage.read_journal(1) == expected
        assert storage._queue.held == 0
    assert await restarted(path, 1) == expected
    assert set(sessions_in(path)) == (set() if expected is None else {1})


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_erased_is_so_when_another_history_takes_its_place_at_once(
    storage: Storage, path: Path, failure: Failure, disk: Disk, fails: bool
) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"SECRET")
        await failure.begin(lambda: sessions.replace(1, b"SECRET again", epoch="e2"))
        sessions.replace(1, b"one", epoch="e3")
        if fails:
            await failure.end()
        disk.flowing.set()
        assert await storage.read_journal(1) == journal(b"one", epoch="e3")
        keep(storage, 2)
        await storage.read_journal(2)
        assert b"SECRET" not in bytes_on_disk(path)


@pytest.mark.parametrize("failing", ["tidy", "sizes"])
async def test_erased_data_leaves_the_log_later_if_a_step_fails_after_the_batch(
    path: Path, pauses: Pauses, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    storage = make(path, pauses=pauses, history_limit=LIMIT)
    target = Database if failing == "tidy" else HistoryTables
    step = getattr(target, failing)
    attempts = []

    def fail_once(self: object) -> object:
        attempts.append(self)
        if len(attempts) == 1:
            raise sqlite3.OperationalError("disk I/O error")
        return step(self)

    async with living(storage) as sessions:
        sessions.begin(1, title="SECRET")
        sessions.append(1, b"SECRET")
        await storage.read_journal(1)
        # While another program has the file open, closing it leaves the log as it is.
        other = sqlite3.connect(path)
        other.execute("SELECT count(*) FROM session").fetchall()
        monkeypatch.setattr(target, failing, fail_once)
        storage._until_added_up = 0.0
        storage.forget(1)
        await pauses.until_failed()
        keep(storage, 2)
        pauses.end()
        await storage.read_journal(2)
        assert attempts
        assert b"SECRET" not in bytes_on_disk(path)
        other.close()


# Streams that are faster than the disk.


async def test_of_a_stream_that_is_faster_than_the_disk_nothing_waits_besides_memory(
    storage: Storage, path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with living(storage, 1) as sessions:
        await storage.read_journal(1)
        await disk.hang(lambda: sessions.append(1, b"underway"))
        sessions.taken.clear()
        for number in range(1000):
            sessions.extend(1, [b"%06d" % number + b"." * 94] * 10)
            if number % 100 == 7:
                sessions.end_turn(1)
        assert storage._queue.held < 100
        disk.flowing.set()
        assert await storage.read_journal(1) == sessions.now(1)
        assert sessions.taken == [1]
        sessions.append(1, b"later")
    assert caplog.records == []
    assert await restarted(path, 1) == sessions.now(1)


async def test_many_histories_are_written_one_after_another_each_in_its_turn(
    narrow: Storage, path: Path, disk: Disk
) -> None:
    keys = range(1, 6)
    async with living(narrow, *keys) as sessions:
        await narrow.read_journal(1)
        await disk.hang(lambda: sessions.append(1, b"underway"))
        sessions.taken.clear()
        for key in keys:
            sessions.append(key, b"%d" % key * (LIMIT // 2))
        disk.committed.clear()
        disk.flowing.set()
        while len(sessions.taken) < 3:
            await trio.lowlevel.checkpoint()
        for key in keys:
            sessions.append(key, b"more")
    assert sorted(sessions.taken[:5]) == [*keys]
    for key in keys:
        assert await restarted(path, key) == sessions.now(key)


class Walk(Sessions):
    """Histories to which anything may happen, and what is known of them: all that was ever told."""

    def __init__(self, storage: Storage, chance: random.Random) -> None:
        super().__init__(storage)
        self._chance = chance
        self.told: list[list[tuple[bytes, str | None, int | None]]] = []
        """Of each history that there ever was, the messages with the kinds of state and times. They begin with its
        number."""
        self.numbers: dict[int, int] = {}
        """The number of the history that each session has."""
        self.lost: list[tuple[int, int, int]] = []
        """Losses on disk that were not necessary: the history, from where on it should be there, and is."""

    def start(self, key: int) -> None:
        """Another history takes the place of what there is."""
        self.numbers[key] = len(self.told)
        self.told.append([])
        self.replace(key, *(self._next(key) for _ in range(self._chance.choice((0, 3)))), epoch=f"e{self.numbers[key]}")

    def say(self, key: int) -> None:
        """One message comes, which may tell a state, or several do."""
        time = self._chance.choice((None, 1, 2))
        if self._chance.random() < 0.3:
            state = self._chance.choice((None, "mode", "plan"))
            self.append(key, self._next(key, state, time), state=state, time=time)
        else:
            self.extend(key, [self._next(key, time=time) for _ in range(self._chance.choice((1, 9)))], time)

    async def reopen(self, key: int) -> None:
        """A session that had ended lives again."""
        keeps = self.storage.keeps_journal(key)
        if not await self.come_back(key):
            assert not self.storage.keeps_journal(key)
            self.start(key)
        else:
            assert keeps

    def check(self, key: int, stored: StoredJournal | None) -> None:
        """Check that the stored history is the end of all that was told, at most a sixteenth more than in memory."""
        assert stored is not None
        told = self.told[self.numbers[key]]
        held = messages_of(stored.runs)
        kept = told[len(told) - len(held) :]
        assert stored.position == len(told)
        assert held == [message for message, _, _ in kept]
        assert [time for run in stored.runs for time in run.times.of(0, len(run.messages))] == [t for *_, t in kept]
        assert sum(map(len, held)) + size_aside(stored) <= LIMIT * 17 / 16
        assert states_of(stored) == {kind: message for message, kind, _ in told if kind is not None}

    def write(self, file: Database, batch: WriteBatch) -> set[int]:
        """Write a batch, and see what the histories on disk lose by that."""
        before = {key: file.histories.read(key) for key in batch.histories if key not in batch.erased}
        truncated = write(file, batch)
        for key, had in before.items():
            has = file.histories.read(key)
            part = batch.histories[key][0]
            if had is None or has is None or part.position - len(messages_of(part.runs)) > had.position:
                continue  # There was nothing that could be lost, or memory has lost it.
            number, start = number_of(had), had.position - len(messages_of(had.runs))
            assert number in (None, number_of(has))
            new_start = has.position - len(messages_of(has.runs))
            if number is not None and new_start > start:
                told = sum(len(message) for message, *_ in self.told[number][start : has.position])
                if told + max(size_aside(had), size_aside(has)) <= LIMIT * 17 / 16:
                    self.lost.append((number, start, new_start))
        return truncated

    def _next(self, key: int, state: str | None = None, time: int | None = None) -> bytes:
        told = self.told[self.numbers[key]]
        message = b"%d.%d " % (self.numbers[key], len(told)) * self._chance.choice((1, 1, 100, 1500))
        told.append((message, state, time))
        return message


def number_of(journal: StoredJournal) -> int | None:
    """Return the number of the history of a walk; None for no messages."""
    return next((int(message.partition(b".")[0]) for message in messages_of(journal.runs)), None)


def size_aside(journal: StoredJournal) -> int:
    """Bytes of what was put aside."""
    return sum(len(message) for message, _ in journal.states)


def states_of(journal: StoredJournal) -> dict[str, Entry]:
    """The last message of each kind of state."""
    last = {kind: message for message, kind in journal.states}
    for run in journal.runs:
        last |= {kind: run.messages[index] for index, kind in run.states.items()}
    return last


@pytest.mark.parametrize("seed", some(range(20), 3))
async def test_whatever_happens_the_history_on_disk_is_the_end_of_all_and_loses_no_more_than_it_must(
    narrow: Storage, path: Path, disk: Disk, pauses: Pauses, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same each time is what is wanted
    failure = Failure(narrow, disk, pauses)
    keys = (1, 2, 3)
    async with running(narrow):
        walk = Walk(narrow, chance)
        monkeypatch.setattr(storage_module, "write", walk.write)
        for key in keys:
            keep(narrow, key)
            walk.start(key)
        for _ in range(200):
            key = chance.choice(keys)
            if not walk.has(key):
                if chance.random() < 0.3:
                    disk.flowing.set()
                    await walk.reopen(key)
                continue
            match chance.randrange(16):
                case 0 | 1 | 2 | 3 | 4 | 5:
                    walk.say(key)
                case 6:
                    walk.end_turn(key)
                case 7:
                    disk.flowing.clear() if disk.flowing.is_set() else disk.flowing.set()
                case 8:
                    await trio.testing.wait_all_tasks_blocked()
                case 9:
                    disk.flowing.set()
                    await failure.begin(partial(walk.say, key))
                    for other in filter(walk.has, keys):
                        walk.say(other)
                    chance.choice((walk.end_turn, walk.end, walk.has))(key)
                    await failure.end()
                case 10 | 11:
                    disk.flowing.set()
                    walk.check(key, await narrow.read_journal(key))
                case 12 | 13:
                    if chance.random() < 0.9:
                        narrow.finish_journal(key)
                    walk.journals[key].shrink(chance.choice((0, chance.randrange(LIMIT))))
                case 14:
                    walk.rename(key, f"{walk.journals[key].epoch}'")
                case 15:
                    chance.choice((walk.start, walk.end))(key)
        disk.flowing.set()
        kept = [key for key in keys if narrow.keeps_journal(key)]
    assert narrow.problem is None
    assert walk.lost == []
    for key in kept:
        stored = await restarted(path, key)
        # One that has ended may be given up in the end.
        if stored is not None or walk.has(key):
            walk.check(key, stored)


async def test_of_a_history_that_memory_has_cut_behind_what_the_disk_has_the_end_is_kept(
    storage: Storage, disk: Disk
) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"one")
        await storage.read_journal(1)
        disk.flowing.clear()
        sessions.append(1, b"lost")
        sessions.end_turn(1)
        sessions.append(1, b"kept")
        sessions.journals[1].shrink(len(b"kept"))
        disk.flowing.set()
        assert await storage.read_journal(1) == journal(position=3, truncated=True, runs=[StoredRun([b"kept"])])


async def test_the_write_delay_is_the_time_of_the_batch_before_within_bounds(
    path: Path, pauses: Pauses, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = make(path, pauses=pauses)
    took = [0.1, 0.25, 0.3, 0.4, 0.6, 0.0]
    work = Storage._work

    async def slow(self: Storage) -> bool:
        written = await work(self)
        if took:
            mock_clock.jump(took.pop(0))
            sessions.append(1, b"x")
        return written

    async with living(storage, 1) as sessions:
        await storage.read_journal(1)
        await trio.testing.wait_all_tasks_blocked()
        pauses.seconds.clear()
        monkeypatch.setattr(Storage, "_work", slow)
        sessions.append(1, b"x")
        while took:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
    # What waits for `write_delay` at most has waited since the batch began.
    expected = [GATHERING, 0.1, MAX_GATHERING, 0.2, 0.1, GATHERING]
    assert [seconds for seconds in pauses.seconds if seconds < RETRY] == pytest.approx(expected)


@pytest.mark.parametrize("end", ["write_behind_limit", "a reader"])
async def test_gathering_ends_past_write_behind_limit_and_when_it_is_urgent(
    path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def for_ever(seconds: float) -> None:
        waits.append(seconds)
        await trio.sleep_forever()

    storage = make(path, pauses=for_ever, write_behind_limit=500)
    async with living(storage, 1) as sessions:
        await trio.testing.wait_all_tasks_blocked()
        sessions.append(1, b"x" * 499)
        await trio.testing.wait_all_tasks_blocked()
        assert waits[-1] == GATHERING
        assert storage._queue
        if end == "write_behind_limit":
            sessions.append(1, b"x")
            while storage._queue or storage._queue.held:
                await trio.lowlevel.checkpoint()
            # With as much as that, there is no gathering.
            await trio.testing.wait_all_tasks_blocked()
            sessions.append(1, b"x" * 500)
            while storage._queue or storage._queue.held:
                await trio.lowlevel.checkpoint()
        else:
            assert await storage.read_journal(1) is not None
        await trio.testing.wait_all_tasks_blocked()
    assert waits.count(GATHERING) == 1


async def test_a_rest_after_a_failed_write_ends_when_it_is_urgent_only(
    path: Path, disk: Disk, mock_clock: trio.testing.MockClock
) -> None:
    storage = make(path, disk=disk, pauses=trio.sleep, write_behind_limit=500)
    async with living(storage, 1) as sessions:
        await storage.read_journal(1)
        disk.broken = True
        sessions.append(1, b"x" * 500)
        while storage.problem is None:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        disk.broken = False
        sessions.append(1, b"x" * 500)
        await trio.testing.wait_all_tasks_blocked()
        assert storage.problem is not None
        assert await storage.read_journal(1) == sessions.now(1)
        assert storage.problem is None


# The limits of all histories.


def has_history(path: Path, key: int) -> bool:
    """Return True if the history of a session is on disk."""
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("SELECT count(*) FROM piece WHERE session = ?", (key,)).fetchone()[0])


@pytest.mark.parametrize("at_start", [False, True])
async def test_past_history_limit_the_histories_unused_for_longest_go_and_the_file_shrinks(
    path: Path, caplog: pytest.LogCaptureFixture, at_start: bool
) -> None:
    limits: dict[str, Any] = {"journal_limit": 200_000, "history_limit": 300_000}
    storage = make(path, **(limits | {"history_limit": 10**9}) if at_start else limits)
    async with living(storage) as sessions:
        for key in range(1, 6):
            sessions.begin(key, used=NOON + key)
            sessions.append(key, b"%d" % key * 90_000)
            sessions.end(key)
            await storage.read_journal(key)
    if at_start:
        async with running(make(path, **limits)):
            pass
    assert [key for key in range(1, 6) if has_history(path, key)] == [3, 4, 5]
    assert set(sessions_in(path)) == {1, 2, 3, 4, 5}
    assert len(await trio.Path(path).read_bytes()) < 450_000
    assert f"history_limit: histories are removed, of {'2 sessions' if at_start else '1 session'}" in caplog.text


async def test_the_names_of_one_account_have_its_share_of_the_disk_together(path: Path) -> None:
    limits: dict[str, Any] = {"journal_limit": 200_000, "history_limit_per_identity": 150_000}
    owners = ("ann", "door/a", "door/b", "door/c")
    async with living(make(path, **limits, account_of=lambda owner: owner.partition("/")[0])) as sessions:
        for key, owner in enumerate(owners, 1):
            sessions.begin(key, owner=owner, used=NOON + key)
            sessions.append(key, b"%d" % key * 60_000)
            sessions.end(key)
            await sessions.storage.read_journal(key)
    assert [key for key in range(1, 5) if has_history(path, key)] == [1, 3, 4]


async def test_past_history_limit_the_history_of_a_live_session_loses_its_beginning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = make(path, journal_limit=400_000, history_limit=300_000)
    async with living(storage, 1) as sessions:
        for number in range(10):
            sessions.append(1, b"%d" % number * 40_000)
            sessions.end_turn(1)
            await storage.read_journal(1)
        assert storage.has_cut_journal(1)
        assert "history_limit: histories are cut, of 1 live session" in caplog.text
    after = make(path, journal_limit=400_000)
    async with running(after):
        assert after.has_cut_journal(1)
        read = await after.read_journal(1)
    assert read is not None
    assert read.truncated
    assert read.position == 10
    assert [message[:1] for message in messages_of(read.runs)] == [b"%d" % number for number in range(4, 10)]


# Its priority.


async def test_only_what_is_little_and_can_wait_is_written_with_low_priority(
    storage: Storage, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def thread_that_writes(message: bytes) -> str:
        sessions.append(1, message)
        while storage._queue or storage._queue.held:
            await trio.lowlevel.checkpoint()
        return disk.threads[-1]

    async with living(storage, 1) as sessions:
        assert await thread_that_writes(b"one") == "storage"
        with monkeypatch.context() as patched:
            patched.setattr(storage_module, "LITTLE", 0)
            assert await thread_that_writes(b"two") != "storage"
        assert await thread_that_writes(b"three") == "storage"
        await disk.hang(lambda: sessions.append(1, b"four"))
        async with trio.open_nursery() as nursery:
            # The history is waited for, with what came before.
            nursery.start_soon(storage.read_journal, 1)
            await trio.testing.wait_all_tasks_blocked()
            sessions.append(1, b"five")
            disk.flowing.set()
        assert disk.threads[-1] != "storage"
        sessions.append(1, b"six")
    assert disk.threads[-1] != "storage"


# The end.


async def test_a_history_can_be_asked_for_before_it_runs(storage: Storage, path: Path) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"one")
    after = make(path)
    after.open()
    read: list[StoredJournal | None] = []
    done = trio.Event()

    async def ask() -> None:
        read.append(await after.read_journal(1))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(after.run)
        with trio.fail_after(TIMEOUT):
            await done.wait()
        nursery.cancel_scope.cancel()
    assert read == [journal(b"one")]


async def test_a_cancelled_read_journal_does_not_disturb_the_next(storage: Storage) -> None:
    async with living(storage, 1) as sessions:
        sessions.append(1, b"one")
        with trio.move_on_after(0):
            await storage.read_journal(1)
        assert await storage.read_journal(1) == journal(b"one")


@pytest.mark.parametrize("hangs", [False, True], ids=["a disk that works", "a disk that hangs"])
async def test_at_the_end_nothing_more_is_read_and_the_wait_for_the_disk_is_bounded(
    storage: Storage, disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    if hangs:
        monkeypatch.setattr(storage_module, "CLOSE_TIMEOUT", 0)
    read: list[StoredJournal | None] = []

    async def ask() -> None:
        read.append(await storage.read_journal(1))
        read.append(await storage.read_journal(1))
        if not hangs:
            disk.flowing.set()

    async with trio.open_nursery() as reader, living(storage, 1) as sessions:
        await storage.read_journal(1)
        await disk.hang(lambda: sessions.append(1, b"underway"))
        disk.statements.clear()
        reader.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
    assert read == [None, None]
    assert not disk.count("messages FROM piece")
    assert ("not all could be written" in caplog.text) == hangs
    disk.flowing.set()
    async with storage._writer.thread.limiter:  # The thread has ended.
        disk.opened[-1].close()


async def test_a_storage_that_has_ended_takes_nothing_and_answers_at_once(storage: Storage, path: Path) -> None:
    async with living(storage, 1) as sessions:
        pass
    sessions.append(1, b"one")
    keep(storage, 2)
    sessions.replace(1, b"two")
    storage.forget(1)
    storage.token_used("0a0a0a0a")
    assert await storage.read_journal(1) is None
    assert set(sessions_in(path)) == {1}
    assert await restarted(path, 1) == journal()


async def test_with_a_full_disk_it_ends_all_the_same(storage: Storage, disk: Disk, pauses: Pauses) -> None:
    async with living(storage, 1) as sessions:
        await storage.read_journal(1)
        disk.fill()
        sessions.append(1, b"x" * 50_000)
        await pauses.until_failed()
    assert storage.problem is not None


# Prompts that wait


async def test_a_prompt_survives_a_kill_from_when_it_is_said_to_be_written(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        assert storage.put_prompt(PROMPT)
        await storage.prompts_written()
        found = make(path)
        found.open()
        assert found.prompts() == [PROMPT]
        assert not storage.send_prompt("k")
        await storage.prompts_written()
        assert [it.sent for it in Database(path, LIMIT).prompts()] == [True]
        storage.drop_prompt("k")
    after = make(path)
    after.open()
    assert after.prompts() == []
    assert PROMPT.text not in bytes_on_disk(path)


async def test_who_waits_for_a_prompt_to_be_written_waits_until_there_is_space(path: Path, pauses: Pauses) -> None:
    disk = Disk()
    storage = make(path, disk=disk, pauses=pauses)
    done: list[bool] = []

    async def wait() -> None:
        await storage.prompts_written()
        done.append(True)

    async with running(storage), trio.open_nursery() as nursery:
        keep(storage, 1)
        await storage.read_journal(1)
        disk.fill()
        storage.put_prompt(replace(PROMPT, text=b'"%b"' % (b"x" * LIMIT)))
        nursery.start_soon(wait)
        await pauses.until_failed()
        assert done == []
        disk.clear()
        pauses.end()
    assert done == [True]


async def test_without_histories_no_prompt_is_kept_and_earlier_ones_are_erased(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.put_prompt(PROMPT)
    without = make(path, journal_storage="memory")
    async with running(without):
        assert (without.prompts(), without.put_prompt(PROMPT), without.send_prompt("k")) == ([], False, True)
        await without.prompts_written()
    assert Database(path, LIMIT).prompts() == []
