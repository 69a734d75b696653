"""The storage: data that survives a restart, and isolation from a full, slow or broken disk."""

import gc
import logging
import math
import os
import random
import shutil
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal, TurnMessages
from acp_gateway.gateway.storage import store as storage_module
from acp_gateway.gateway.storage import write_queue as write_queue_module
from acp_gateway.gateway.storage.archive import StoredArchive
from acp_gateway.gateway.storage.database import Database, read_session_ids, read_token_uses
from acp_gateway.gateway.storage.histories import HistoryTables
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun, StoredSession, TokenUse
from acp_gateway.gateway.storage.store import READINGS, RETRY, Storage
from acp_gateway.gateway.storage.write_queue import Change, WriteBatch
from acp_gateway.gateway.storage.write_schedule import GATHERING, MAX_GATHERING
from acp_gateway.gateway.storage.writer import write
from tests.doubles import TIMEOUT

NOON = 1_767_268_800.0
"""2026-01-01, 12:00 UTC."""

DAY = 86400.0
LIMIT = 100_000


class Clock:
    """The time of day, as a test wants it."""

    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> float:
        return self.time


class Pauses:
    """In place of sleeping: gathering takes no time, and trying again waits for the test."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._reached = trio.Semaphore(0)
        self._over = trio.Semaphore(0)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if seconds == RETRY:
            self._reached.release()
            await self._over.acquire()
        await trio.lowlevel.checkpoint()

    async def until_failed(self) -> None:
        """Wait until something failed and is to be tried again."""
        await self._reached.acquire()

    def end(self) -> None:
        """It is time to try again."""
        self._over.release()


class Disk:
    """Opens files, each with no more pages than there is space for, and blocks while it is told to."""

    def __init__(self) -> None:
        self.opened: list[sqlite3.Connection] = []
        self.statements: list[str] = []
        self.committed = threading.Event()
        self.threads: list[str] = []
        """The thread of each commit, by name."""
        self.broken = False
        self.flowing = threading.Event()
        self.flowing.set()

    def connect(self, path: Path, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(path, **options)
        connection.set_trace_callback(self._trace)
        connection.set_progress_handler(self._step, 1)
        self.opened.append(connection)
        return connection

    def fill(self) -> None:
        """There is no space left."""
        (pages,) = self.opened[-1].execute("PRAGMA page_count").fetchone()
        self.opened[-1].execute(f"PRAGMA max_page_count = {pages}").fetchall()

    async def hang(self, then: Callable[[], object]) -> None:
        """Do this, and see to it that the batch with it hangs until it is `flowing` again."""
        self.flowing.clear()
        then()
        await trio.testing.wait_all_tasks_blocked()

    def clear(self) -> None:
        """There is space again."""
        self.opened[-1].execute("PRAGMA max_page_count = 1000000").fetchall()

    def _trace(self, statement: str) -> None:
        self.statements.append(statement)
        if statement == "COMMIT":
            self.threads.append(threading.current_thread().name)
            self.committed.set()

    def _step(self) -> int:
        self.flowing.wait(TIMEOUT)
        # SQLite gives up what it is doing then, with an OperationalError.
        return int(self.broken)


class Histories:
    """The histories of sessions that live, in memory; what is written down there is told to the storage."""

    def __init__(self, storage: Storage, *keys: int) -> None:
        self.move_to(storage)
        self.journals = {key: Journal(LIMIT, "e1") for key in keys}
        self.taken: list[int] = []
        """Histories that were asked for from memory."""

    def move_to(self, storage: Storage) -> None:
        """From now on this one is told, and asks."""
        self._storage = storage
        storage.rely_on(self)

    def has(self, key: int) -> bool:
        return key in self.journals

    def snapshot(self, key: int) -> tuple[StoredJournal, int]:
        self.taken.append(key)
        return self.now(key), self.journals[key].size

    def now(self, key: int) -> StoredJournal:
        """A history as it is."""
        journal = self.journals[key]
        runs = [StoredRun(*run) for run in journal.runs()]
        return StoredJournal(journal.epoch, journal.position, journal.truncated, journal.states_set_aside(), runs)

    def append(self, key: int, message: bytes, state: str | None = None, time: int | None = None) -> None:
        self.journals[key].append(message, state, time)
        self._storage.append(key, message, state, time)

    def extend(self, key: int, messages: list[bytes], time: int | None = None) -> None:
        self.journals[key].extend(messages, time)
        self._storage.extend(key, messages, time)

    def turn_ended(self, key: int) -> None:
        self.journals[key].turn_ended()
        self._storage.turn_ended(key)

    def forget(self, key: int) -> None:
        """The session ends: what it had is not in memory any more."""
        self._storage.finish_journal(key)
        del self.journals[key]


def live(storage: Storage, *keys: int) -> Histories:
    """Keep sessions that live: their histories are in memory."""
    histories = Histories(storage, *keys)
    for key in keys:
        keep(storage, key)
    return histories


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sessions.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def storage(path: Path, clock: Clock, disk: Disk, pauses: Pauses) -> Storage:
    return make(path, clock, disk, pauses)


@pytest.fixture
def narrow(path: Path, clock: Clock, disk: Disk, pauses: Pauses, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A storage in which no more may wait to be written than one whole history."""
    monkeypatch.setattr(write_queue_module, "QUEUE", 0)
    return make(path, clock, disk, pauses)


def make(
    path: Path,
    clock: Clock | None = None,
    disk: Disk | None = None,
    pauses: Pauses | None = None,
    *,
    journal: bool = True,
    retention_days: float = 30,
) -> Storage:
    """A storage, not open yet."""
    return Storage(
        path,
        journal=journal,
        retention_days=retention_days,
        journal_limit=LIMIT,
        now=clock or Clock(),
        connect=(disk or Disk()).connect,
        pause=pauses or Pauses(),
    )


@asynccontextmanager
async def running(storage: Storage) -> AsyncIterator[list[StoredSession]]:
    """Open it and let it write; what was stored before. In the end all is written."""
    with trio.fail_after(TIMEOUT):
        stored = storage.open()
        async with trio.open_nursery() as nursery:
            await nursery.start(storage.run)
            yield stored
            nursery.cancel_scope.cancel()


def keep(storage: Storage, key: int, **changes: Any) -> None:
    """Keep a session."""
    fields: dict[str, Any] = {
        "agent": "demo",
        "session_id": f"sess-{key}",
        "owner": "ada",
        "cwd": "/src",
        "title": None,
        "updated_at": None,
        "created": NOON,
        "used": NOON,
        "epoch": "e1",
    }
    storage.keep(StoredSession(key, **(fields | changes)))


def journal(*messages: bytes, epoch: str = "e1", position: int | None = None) -> StoredJournal:
    """A history that nothing is missing of."""
    return StoredJournal(epoch, position or len(messages), False, [], [StoredRun(list(messages))] if messages else [])


def replace(storage: Storage, key: int, journal: StoredJournal) -> None:
    """Keep this history."""
    storage.replace(key, journal, sum(len(message) for run in journal.runs for message in run.messages))


async def restarted(path: Path, key: int) -> StoredJournal | None:
    """The history that another gateway finds."""
    after = make(path)
    async with running(after):
        return await after.read_journal(key)


def sessions_in(path: Path) -> dict[int, StoredSession]:
    """The sessions that another gateway finds."""
    return {session.key: session for session in make(path).open()}


def bytes_on_disk(path: Path) -> bytes:
    """The file and what is beside it."""
    return b"".join(part.read_bytes() for part in path.parent.iterdir())


def write_garbage(path: Path) -> None:
    """Put something in the file's place that is not a database."""
    path.parent.mkdir()
    path.write_bytes(b"no database at all, " * 500)


def empty(path: Path) -> None:
    """Leave nothing of the file."""
    path.parent.mkdir()
    path.touch()


def lose_the_end(path: Path) -> None:
    """Leave half of the file."""
    os.truncate(path, path.stat().st_size // 2)


def change(path: Path, *statements: str) -> None:
    """Have another program write into the file."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def garble(path: Path, chance: random.Random) -> None:
    """Flip a few bits, where there is something but zeros."""
    content = bytearray(path.read_bytes())
    places = [place for place, byte in enumerate(content) if byte]
    for place in chance.sample(places, chance.choice((1, 2, 8))):
        content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def garble_a_definition(path: Path) -> None:
    """Leave a table with a definition that is not text."""
    path.write_bytes(path.read_bytes().replace(b"outline BLOB NOT NULL", b"outline BLOB NOT N\xd5LL"))


async def use(storage: Storage, stored: list[StoredSession]) -> None:
    """Read everything that was stored before, and write more."""
    for session in stored:
        assert all(isinstance(text, str) for text in (session.agent, session.session_id, session.owner, session.epoch))
        assert 0 <= session.used < math.inf
        read = await storage.read_journal(session.key)
        assert read is None or all(isinstance(message, bytes) for run in read.runs for message in run.messages)
        keep(storage, session.key, title="changed", epoch="")
        storage.append(session.key, b"new")
        storage.turn_ended(session.key)
    storage.token_used("0a0a0a0a")
    key = storage.new_key()
    keep(storage, key)
    await storage.read_journal(key)


def overwrite(path: Path, table: str) -> None:
    """Make the beginning of a table unreadable."""
    with sqlite3.connect(path) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


async def test_a_session_and_its_history_survive_a_restart(storage: Storage, path: Path) -> None:
    async with running(storage) as before:
        assert before == []
        key = storage.new_key()
        keep(storage, key, session_id="s", title="Fix it", updated_at="now", used=NOON + 1)
        storage.append(key, b"one")
        storage.append(key, b"two", "mode")
        storage.turn_ended(key)
        storage.append(key, b"three")
    after = make(path)
    async with running(after) as stored:
        assert stored == [
            StoredSession(key, "demo", "s", "ada", "/src", "Fix it", "now", NOON, NOON + 1, "e1", position=3)
        ]
        assert await after.read_journal(key) == StoredJournal(
            "e1", 3, False, [], [StoredRun([b"one", b"two"], {1: "mode"}, ends_turn=True), StoredRun([b"three"])]
        )
    assert after.problem is None


async def test_a_history_goes_on_after_a_restart(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
    after = make(path)
    async with running(after):
        after.append(1, b"two")
    assert await restarted(path, 1) == journal(b"one", b"two")


async def test_what_is_queued_is_there_for_who_reads_the_history(storage: Storage) -> None:
    async with running(storage):
        keep(storage, 1)
        for number in range(100):
            storage.append(1, b"%d" % number)
        assert await storage.read_journal(1) == journal(*(b"%d" % number for number in range(100)))


async def test_changes_are_committed_without_a_read(storage: Storage, path: Path, disk: Disk) -> None:
    async with running(storage):
        disk.committed.clear()
        keep(storage, 1)
        await trio.to_thread.run_sync(disk.committed.wait, TIMEOUT)
        async with storage._writer.thread.limiter:  # It has done with it.
            assert set(sessions_in(path)) == {1}


async def test_committed_changes_survive_a_kill(storage: Storage, path: Path, tmp_path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        await storage.read_journal(1)
        storage.append(1, b"never written")
        # What is on disk at this moment is what it would be after a kill.
        shutil.copytree(path.parent, tmp_path / "crashed")
    assert await restarted(tmp_path / "crashed" / path.name, 1) == journal(b"one")


async def test_a_history_is_kept_that_replaces_another(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"old")
        replace(storage, 1, journal(b"new", epoch="e2", position=7))
        storage.append(1, b"newer")
        assert await storage.read_journal(1) == journal(b"new", b"newer", epoch="e2", position=8)
    assert sessions_in(path)[1].epoch == "e2"


async def test_a_history_can_go_on_under_another_epoch(storage: Storage) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        keep(storage, 1, epoch="e2")
        storage.append(1, b"two")
        assert await storage.read_journal(1) == journal(b"one", b"two", epoch="e2")


async def test_what_a_history_was_called_before_is_known_after_restarts(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        keep(storage, 1, epoch="e2", former=(("e1", 1),))
        storage.append(1, b"two")
        keep(storage, 1, epoch="", title="changed")
        assert (await storage.read_journal(1)).former == (("e1", 1),)  # type: ignore[union-attr]
    assert sessions_in(path)[1].former == (("e1", 1),)
    assert (await restarted(path, 1)).former == (("e1", 1),)  # type: ignore[union-attr]


async def test_another_history_was_never_called_what_the_one_before_was(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1, epoch="e2", former=(("e1", 1),))
        replace(storage, 1, journal(b"new", epoch="e3"))
    assert (sessions_in(path)[1].epoch, sessions_in(path)[1].former) == ("e3", ())


async def test_the_epoch_stays_for_who_does_not_know_it(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
    after = make(path)
    async with running(after):
        keep(after, 1, epoch="", title="changed")
        assert await after.read_journal(1) == journal(b"one", epoch="e1")
    assert sessions_in(path)[1].title == "changed"


async def test_only_the_last_of_many_changes_is_written(storage: Storage, path: Path, disk: Disk) -> None:
    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        disk.statements.clear()
        for number in range(50):
            keep(storage, 1, title=f"title {number}")
        await storage.read_journal(1)
    assert len([statement for statement in disk.statements if "INTO session" in statement]) == 1
    assert sessions_in(path)[1].title == "title 49"


async def test_a_session_that_is_kept_as_it_is_is_not_written(storage: Storage, disk: Disk) -> None:
    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        disk.statements.clear()
        keep(storage, 1)
        await storage.read_journal(1)
    assert not [statement for statement in disk.statements if "INTO session" in statement]


async def test_keys_are_never_used_again(storage: Storage, path: Path, clock: Clock) -> None:
    storage.open()
    first = storage.new_key()
    assert storage.new_key() == first + 1
    clock.time += 1
    assert storage.new_key() > first + 1000


async def test_keys_are_new_after_a_restart_with_the_clock_set_back(storage: Storage, path: Path, clock: Clock) -> None:
    async with running(storage):
        key = storage.new_key()
        keep(storage, key)
    clock.time -= DAY
    after = make(path, clock)
    after.open()
    assert after.new_key() == key + 1


async def test_a_session_that_is_erased_leaves_nothing(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1, title="SECRET")
        keep(storage, 2)
        storage.append(1, b"SECRET")
        await storage.read_journal(1)
        storage.forget(1)
        assert await storage.read_journal(1) is None
        await storage.read_journal(2)
        assert b"SECRET" not in bytes_on_disk(path)
    assert set(sessions_in(path)) == {2}


async def test_a_session_that_is_erased_before_it_was_written_never_is(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        storage.forget(1)
        storage.append(1, b"two")
        keep(storage, 2)
    assert set(sessions_in(path)) == {2}
    assert await restarted(path, 1) is None


async def test_a_history_that_is_erased_is_kept_again_once_it_is_replaced(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        storage.forget_journal(1)
        assert not storage.keeps_journal(1)
        storage.append(1, b"two")
        keep(storage, 1, title="changed")
        assert await storage.read_journal(1) is None
        replace(storage, 1, journal(b"three"))
        storage.append(1, b"four")
        assert storage.keeps_journal(1)
    assert await restarted(path, 1) == journal(b"three", b"four")


async def test_no_history_is_kept_of_a_session_that_is_not(storage: Storage) -> None:
    async with running(storage):
        storage.append(1, b"one")
        storage.turn_ended(1)
        replace(storage, 1, journal(b"two"))
        storage.forget_journal(1)
        storage.forget(1)
        assert await storage.read_journal(1) is None


async def test_without_histories_those_from_before_are_erased(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"SECRET")
    without = make(path, journal=False)
    async with running(without) as stored:
        assert [session.position for session in stored] == [0]
        keep(without, 2)
        without.append(2, b"SECRET")
        replace(without, 2, journal(b"SECRET"))
        assert await without.read_journal(1) is await without.read_journal(2) is None
    assert b"SECRET" not in bytes_on_disk(path)
    assert set(sessions_in(path)) == {1, 2}


async def test_expired_sessions_are_erased_from_disk(path: Path, clock: Clock) -> None:
    first = make(path, clock)
    async with running(first):
        keep(first, 1, used=NOON - 29 * DAY)
        keep(first, 2, used=NOON - 31 * DAY)
        first.append(2, b"SECRET")
        assert first.expired() == [2]
    second = make(path, clock)
    async with running(second) as stored:
        assert [session.key for session in stored] == [1]
        assert await second.read_journal(2) is None
    assert b"SECRET" not in bytes_on_disk(path)


async def test_sessions_can_be_kept_for_ever(path: Path) -> None:
    first = make(path, retention_days=math.inf)
    async with running(first):
        keep(first, 1, used=0.0)
    assert [session.key for session in make(path, retention_days=math.inf).open()] == [1]


async def test_the_database_files_are_readable_by_their_owner_alone(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        modes = {part.name: stat.S_IMODE(part.stat().st_mode) for part in path.parent.iterdir()}
    assert modes == dict.fromkeys(["sessions.db", "sessions.db-wal", "sessions.db-shm"], 0o600)


async def test_a_history_on_disk_is_bounded(storage: Storage) -> None:
    async with running(storage):
        keep(storage, 1)
        for _ in range(100):
            storage.append(1, b"x" * 5000)
            storage.turn_ended(1)
        stored = await storage.read_journal(1)
    assert stored is not None
    assert stored.position == 100
    assert stored.truncated
    assert LIMIT * 3 / 4 < 5000 * sum(len(run.messages) for run in stored.runs) <= LIMIT * 5 / 4


# Tokens.


async def test_the_use_of_a_token_is_known_after_a_restart(storage: Storage, path: Path) -> None:
    async with running(storage):
        storage.token_used("0a0a0a0a")
        storage.token_used("1b1b1b1b", "ada")
    after = make(path)
    after.open()
    expected = {"0a0a0a0a": TokenUse(NOON), "1b1b1b1b": TokenUse(NOON, "ada")}
    assert after.token_uses() == read_token_uses(path) == expected


async def test_the_use_of_a_token_is_written_once_an_hour(storage: Storage, path: Path, clock: Clock) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.token_used("0a0a0a0a", "ada")
        clock.time += 3599
        storage.token_used("0a0a0a0a")
        await storage.read_journal(1)
        assert read_token_uses(path) == {"0a0a0a0a": TokenUse(NOON, "ada")}
        assert storage.token_uses() == {"0a0a0a0a": TokenUse(NOON + 3599, "ada")}
        clock.time += 1
        storage.token_used("0a0a0a0a")
        await storage.read_journal(1)
        assert read_token_uses(path) == {"0a0a0a0a": TokenUse(NOON + 3600, "ada")}


async def test_the_use_of_a_token_is_written_where_the_clock_went_back(
    storage: Storage, path: Path, clock: Clock
) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.token_used("0a0a0a0a")
        clock.time -= 86400
        storage.token_used("0a0a0a0a")
        await storage.read_journal(1)
        assert read_token_uses(path) == {"0a0a0a0a": TokenUse(NOON - 86400)}


async def test_whose_session_a_token_is_for_is_written_at_once(storage: Storage, path: Path, clock: Clock) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.token_used("0a0a0a0a")
        await storage.read_journal(1)
        storage.token_used("0a0a0a0a", "ada")
        await storage.read_journal(1)
        assert read_token_uses(path) == {"0a0a0a0a": TokenUse(NOON, "ada")}


# Files that cannot be used


async def test_a_damaged_file_is_put_aside_and_a_new_one_begun(
    storage: Storage, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_garbage(path)
    aside = path.with_name("sessions.db.damaged-20260101T120000Z")
    async with running(storage) as stored:
        assert stored == []
        assert storage.problem == f"{path} was damaged and a new one is begun; what is left of the old one is {aside}"
        assert [(entry.levelno, entry.getMessage()) for entry in caplog.records] == [(logging.ERROR, storage.problem)]
        keep(storage, 1)
        storage.append(1, b"one")
    assert aside.read_bytes() == b"no database at all, " * 500
    assert await restarted(path, 1) == journal(b"one")


async def test_a_damaged_file_stops_being_a_problem_when_the_new_one_has_what_is_known(
    storage: Storage, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_garbage(path)
    async with running(storage):
        keep(storage, 1)
        assert "was damaged" in str(storage.problem)
        await storage.read_journal(1)
        assert storage.problem is None
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


@asynccontextmanager
async def begun_again(
    histories: Histories, before: Storage, after: Storage, path: Path, pauses: Pauses
) -> AsyncIterator[None]:
    """Histories that stay in memory while the file is damaged between two storages; the second begins a new one."""
    async with running(before):
        for key in histories.journals:
            keep(before, key)
            histories.append(key, b"one")
    overwrite(path, "piece")
    async with running(after):
        histories.move_to(after)
        histories.append(1, b"two")
        await pauses.until_failed()
        pauses.end()
        yield


async def test_a_damaged_file_is_a_problem_until_all_histories_in_memory_are_stored_again(
    storage: Storage, narrow: Storage, path: Path, pauses: Pauses
) -> None:
    problems: list[str | None] = []

    class Watched(Histories):
        def snapshot(self, key: int) -> tuple[StoredJournal, int]:
            problems.append(narrow.problem)
            return super().snapshot(key)

    histories = Watched(storage, 1, 2, 3)
    async with begun_again(histories, storage, narrow, path, pauses):
        for key in histories.journals:
            while await narrow.read_journal(key) != histories.now(key):
                pass
        assert narrow.problem is None
    assert len(problems) == 3
    assert all("was damaged and a new one is begun" in str(problem) for problem in problems)


async def test_a_damaged_file_is_a_problem_until_the_history_of_a_session_that_then_ends_is_stored_again(
    storage: Storage, narrow: Storage, path: Path, disk: Disk, pauses: Pauses
) -> None:
    taken = trio.Event()

    class Hanging(Histories):
        def snapshot(self, key: int) -> tuple[StoredJournal, int]:
            if not self.taken:
                disk.flowing.clear()
            taken.set()
            return super().snapshot(key)

    histories = Hanging(storage, 1, 2)
    async with begun_again(histories, storage, narrow, path, pauses):
        await taken.wait()
        (first,) = histories.taken
        later = 3 - first
        had = histories.now(later)
        histories.forget(later)
        disk.flowing.set()
        while narrow.problem is not None:
            await trio.lowlevel.checkpoint()
        assert Database(path, LIMIT).histories.read(later) == had


async def test_a_file_that_lost_its_end_is_put_aside_and_what_can_be_read_taken_over(path: Path) -> None:
    first = make(path)
    async with running(first):
        for key in (1, 2):
            keep(first, key)
        first.append(1, b'"one"')
        await first.read_journal(1)
        first.append(2, b"x" * 50_000)
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


async def test_a_file_that_was_emptied_is_not_a_first_start(storage: Storage, path: Path) -> None:
    empty(path)
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


async def test_a_file_whose_list_of_sessions_is_damaged_is_put_aside(path: Path) -> None:
    first = make(path)
    async with running(first):
        for key in range(1, 200):
            keep(first, key)
    overwrite(path, "session")
    second = make(path)
    assert {session.key for session in second.open()} < set(range(1, 200))
    assert "damaged" in str(second.problem)


async def test_a_file_that_turns_out_to_be_damaged_is_put_aside_while_running(
    storage: Storage, path: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(storage):
        keep(storage, 1, title="known here")
        storage.append(1, b"lost")
        await storage.read_journal(1)
        storage.token_used("0a0a0a0a")
    after = make(path, pauses=pauses)
    overwrite(path, "piece")
    async with running(after) as stored:
        assert [session.key for session in stored] == [1]
        after.append(1, b"more")
        await pauses.until_failed()
        assert "malformed" in str(after.problem)
        pauses.end()
        keep(after, 2)
        after.append(2, b"new")
        while (read := await after.read_journal(2)) is None:
            assert after.problem is not None
        assert read == journal(b"new")
        assert not after.keeps_journal(1)
        assert after.problem is None
        assert "was damaged and a new one is begun" in caplog.text
    assert sessions_in(path)[1].title == "known here"
    assert set(sessions_in(path)) == {1, 2}
    assert set(read_token_uses(path)) == {"0a0a0a0a"}


async def test_a_file_of_a_newer_version_is_left_alone(storage: Storage, path: Path, pauses: Pauses) -> None:
    make(path).open()
    change(path, "PRAGMA user_version = 5")
    before = bytes_on_disk(path)
    async with running(storage) as stored:
        assert stored == []
        assert "was written by a newer acp-gateway" in str(storage.problem)
        keep(storage, 1)
        storage.append(1, b"one")
        await pauses.until_failed()
        assert await storage.read_journal(1) is None
    assert bytes_on_disk(path) == before


async def test_a_directory_that_cannot_be_written_keeps_nothing_and_stops_nothing(
    storage: Storage, path: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_bytes(b"a file where the directory should be")
    async with running(storage) as stored:
        assert stored == []
        assert storage.problem is not None
        assert storage.problem.startswith(f"{path}: File exists; ")
        keep(storage, 1)
        storage.append(1, b"one")
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


async def test_a_history_that_does_not_fit_together_is_given_up(
    storage: Storage, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
    change(path, "UPDATE journal SET position = 9")
    after = make(path)
    async with running(after):
        assert await after.read_journal(1) is None
        assert not after.keeps_journal(1)
        assert "does not fit together" in caplog.text
        replace(after, 1, journal(b"two"))
        assert await after.read_journal(1) == journal(b"two")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE session SET used = x'00' WHERE key = 1",
        "UPDATE session SET used = 9e999 WHERE key = 1",
        "UPDATE session SET owner = x'616461' WHERE key = 1",
        "UPDATE session SET title = x'00' WHERE key = 1",
        "UPDATE journal SET position = 'x' WHERE session = 1",
        "UPDATE session SET key = 9223372036854775807 WHERE key = 1",
        "INSERT INTO token VALUES (NULL, 1.0, NULL)",
        "INSERT INTO token VALUES ('0a0a0a0a', 'x', NULL)",
        "INSERT INTO token VALUES ('0a0a0a0a', 1.0, x'00')",
    ],
)
async def test_a_file_with_something_else_in_a_column_is_put_aside_without_it(
    storage: Storage, path: Path, damage: str
) -> None:
    async with running(storage):
        keep(storage, 1)
        keep(storage, 2)
    change(path, damage)
    after = make(path)
    async with running(after) as stored:
        assert {session.key for session in stored} == ({2} if "session SET" in damage else {1, 2})
        assert after.token_uses() == {}
        assert "was damaged and a new one is begun" in str(after.problem)


async def test_a_file_whose_missing_owner_no_rule_forbids_any_more_is_put_aside(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
    change(path, "PRAGMA writable_schema = ON", "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')")
    change(path, "UPDATE session SET used = NULL, owner = NULL")
    after = make(path)
    async with running(after) as stored:
        assert stored == []
        assert "was damaged and a new one is begun" in str(after.problem)


async def test_a_file_with_damage_that_sqlite_cannot_name_is_put_aside(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
    garble_a_definition(path)
    after = make(path)
    async with running(after) as stored:
        assert [session.key for session in stored] == [1]
        assert "was damaged and a new one is begun" in str(after.problem)
        keep(after, 2)
        after.append(2, b"one")
        assert await after.read_journal(2) == journal(b"one")


async def test_a_file_with_damage_that_sqlite_cannot_name_is_put_aside_while_running(
    storage: Storage, path: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    storage.open()
    garble_a_definition(path)
    async with trio.open_nursery() as nursery:
        await nursery.start(storage.run)
        keep(storage, 1)
        storage.append(1, b"one")
        with trio.fail_after(TIMEOUT):
            assert await storage.read_journal(1) == journal(b"one")
        nursery.cancel_scope.cancel()
    assert "was damaged and a new one is begun" in caplog.text
    assert {record.thread for record in caplog.records} == {threading.get_ident()}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE piece SET outline = 5 WHERE session = 1",
        "UPDATE piece SET messages = CAST(messages AS TEXT) WHERE session = 1",
    ],
)
async def test_a_history_that_has_ceased_to_be_bytes_is_given_up(storage: Storage, path: Path, damage: str) -> None:
    async with running(storage):
        keep(storage, 1)
        keep(storage, 2)
        for key in (1, 2):
            storage.append(key, b"one")
        await storage.read_journal(1)
        change(path, damage)
        assert await storage.read_journal(1) is None
        assert not storage.keeps_journal(1)
        assert await storage.read_journal(2) == journal(b"one")


async def test_a_history_whose_length_is_not_a_number_is_damage_to_who_goes_on_with_it(
    storage: Storage, path: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(storage):
        keep(storage, 1)
    after = make(path, pauses=pauses)
    async with running(after):
        change(path, "UPDATE journal SET size = 'x'")
        after.append(1, b"one")
        await pauses.until_failed()
        pauses.end()
        assert await after.read_journal(1) is None
        assert "was damaged and a new one is begun" in caplog.text


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_history_of_no_session_is_erased(storage: Storage, path: Path, keeps: bool) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"SECRET")
    change(path, "DELETE FROM session")
    async with running(make(path, journal=keeps)) as stored:
        assert stored == []
    assert b"SECRET" not in bytes_on_disk(path)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_bits_are_flipped_it_goes_on(tmp_path: Path, path: Path, seed: int) -> None:
    first = make(path)
    async with running(first):
        for key in range(1, 5):
            keep(first, key, title=f"title {key}")
            first.append(key, b'{"one": 1}')
            first.append(key, b'{"two": 2}', "plan")
            first.turn_ended(key)
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


async def test_a_mistake_in_writing_is_told_and_tried_again(
    storage: Storage, path: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def divide(*args: object, **options: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        with monkeypatch.context() as patch:
            patch.setattr(HistoryTables, "append", divide)
            storage.append(1, b"one")
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
    def divide(*args: object) -> None:
        raise ZeroDivisionError

    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        with monkeypatch.context() as patch:
            patch.setattr(HistoryTables, "read", divide)
            assert await storage.read_journal(1) is None
        assert "unexpected ZeroDivisionError" in str(storage.problem)
        assert await storage.read_journal(1) == journal(b"one")


async def test_a_mistake_at_the_start_is_a_problem_and_no_more(
    storage: Storage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def divide(*args: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Database, "token_uses", divide)
        assert storage.open() == []
    assert "unexpected ZeroDivisionError" in str(storage.problem)


async def test_a_file_that_cannot_be_closed_is_opened_again(
    storage: Storage, disk: Disk, pauses: Pauses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def divide(*args: object) -> None:
        raise ZeroDivisionError

    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        left = disk.opened[-1]
        with monkeypatch.context() as patch:
            patch.setattr(Database, "close", divide)
            disk.broken = True
            storage.append(1, b"one")
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

    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        await storage.read_journal(1)
        disk.statements.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
    assert read == [journal(b"one")] * 10
    assert len([statement for statement in disk.statements if "messages FROM piece" in statement]) == 1


@pytest.mark.parametrize("before", [[], [b"being written"]])
async def test_who_asks_gets_what_comes_before_there_is_an_answer(
    storage: Storage, disk: Disk, before: list[bytes]
) -> None:
    read: list[StoredJournal | None] = []

    async def ask() -> None:
        read.append(await storage.read_journal(1))

    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        disk.flowing.clear()
        for message in before:
            storage.append(1, message)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            storage.append(1, b"later")
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            disk.flowing.set()
    assert read == [journal(*before, b"later")] * 2


@pytest.fixture
def asked(storage: Storage, disk: Disk) -> Callable[[Callable[[], object]], Awaitable[StoredJournal | None]]:
    """Asks for the history of session 1, and does something while it is being read."""

    async def ask(then: Callable[[], object]) -> StoredJournal | None:
        await storage.read_journal(1)
        read: list[StoredJournal | None] = []

        async def ask_for_it() -> None:
            read.append(await storage.read_journal(1))

        disk.flowing.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_for_it)
            await trio.testing.wait_all_tasks_blocked()
            then()
            disk.flowing.set()
        return read[0]

    return ask


PendingRequests = Callable[[Callable[[], object]], Awaitable[StoredJournal | None]]


async def test_who_asks_never_gets_a_history_that_was_replaced_before_there_is_an_answer(
    storage: Storage, asked: PendingRequests
) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"old")
        assert await asked(lambda: replace(storage, 1, journal(b"new", epoch="e2"))) == journal(b"new", epoch="e2")


async def test_who_asks_never_gets_a_history_under_a_name_that_it_does_not_have_any_more(
    storage: Storage, asked: PendingRequests
) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        assert await asked(lambda: keep(storage, 1, epoch="e2")) == journal(b"one", epoch="e2")


async def test_who_asks_gets_nothing_of_a_history_that_is_erased_before_there_is_an_answer(
    storage: Storage, asked: PendingRequests
) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        assert await asked(lambda: storage.forget(1)) is None


async def test_who_asks_gets_nothing_of_a_history_that_goes_on_in_memory(
    storage: Storage, asked: PendingRequests
) -> None:
    async with running(storage):
        histories = live(storage, 1)
        histories.append(1, b"one")
        assert await storage.read_journal(1) == journal(b"one")
        assert await asked(lambda: histories.append(1, b"two")) is None


async def test_who_asks_gets_what_replaced_a_history_that_does_not_fit_together(
    storage: Storage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = trio.lowlevel.current_trio_token()

    def read(self: HistoryTables, key: int) -> StoredJournal | None:
        monkeypatch.undo()
        trio.from_thread.run_sync(replace, storage, key, journal(b"new", epoch="e2"), trio_token=token)
        return None

    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
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
        trio.from_thread.run_sync(storage.append, key, b"more", trio_token=token)
        return read_journal(self, key)

    monkeypatch.setattr(HistoryTables, "read", read)
    async with running(storage):
        keep(storage, 1)
        assert await storage.read_journal(1) is None
        assert storage.keeps_journal(1)
    assert readings == [1] * READINGS


async def test_a_history_has_its_new_name_though_that_can_not_be_written(
    storage: Storage, disk: Disk, pauses: Pauses
) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        await storage.read_journal(1)
        disk.fill()
        keep(storage, 1, epoch="e2", title="x" * 50_000)
        await pauses.until_failed()
        assert await storage.read_journal(1) == journal(b"one", epoch="e2")
        disk.clear()
        pauses.end()


async def test_what_comes_is_written_between_two_readings(storage: Storage, disk: Disk) -> None:
    async with running(storage):
        for key in (1, 2, 3):
            keep(storage, key)
            storage.append(key, b"one")
        await storage.read_journal(1)
        disk.statements.clear()
        disk.flowing.clear()
        async with trio.open_nursery() as nursery:
            for key in (1, 2):
                nursery.start_soon(storage.read_journal, key)
            await trio.testing.wait_all_tasks_blocked()
            storage.append(3, b"two")
            disk.flowing.set()
    steps = [statement.split()[0] for statement in disk.statements if " piece" in statement]
    assert steps[:3] == ["SELECT", "INSERT", "SELECT"]


async def test_a_history_that_was_handed_over_is_not_held(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = threading.Event()
    held: list[list[StoredJournal]] = []
    read_journal = HistoryTables.read

    def read(self: HistoryTables, key: int) -> StoredJournal | None:
        if read_before:
            taken.wait(TIMEOUT)
            gc.collect()
            alive = [each for each in gc.get_objects() if isinstance(each, StoredJournal)]
            held.append([each for each in alive if each.epoch == "handed over"])
        read_before.append(key)
        return read_journal(self, key)

    read_before: list[int] = []
    monkeypatch.setattr(HistoryTables, "read", read)

    async def ask(key: int) -> None:
        await storage.read_journal(key)
        taken.set()

    async with running(storage):
        for key in (1, 2):
            keep(storage, key, epoch="handed over")
            storage.append(key, b"one")
        async with trio.open_nursery() as nursery:
            for key in (1, 2):
                nursery.start_soon(ask, key)
    assert held == [[]]


# Disks that fail


async def test_what_does_not_fit_on_a_full_disk_is_written_when_there_is_space(
    storage: Storage, path: Path, disk: Disk, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        await storage.read_journal(1)
        disk.fill()
        storage.append(1, b"x" * 50_000)
        await pauses.until_failed()
        assert storage.problem is not None
        assert storage.problem.startswith(f"{path}: database or disk is full; ")
        storage.append(1, b"three")
        keep(storage, 2)
        pauses.end()
        await pauses.until_failed()
        disk.clear()
        pauses.end()
        assert await storage.read_journal(1) == journal(b"one", b"x" * 50_000, b"three")
        assert storage.problem is None
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert set(sessions_in(path)) == {1, 2}


async def test_where_there_is_no_room_beside_the_file_at_the_start_what_is_stored_is_read_and_written_later(
    path: Path, clock: Clock, disk: Disk, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    first = make(path, clock, disk, pauses)
    async with running(first):
        keep(first, 1)
        first.append(1, b"one")
        await first.read_journal(1)
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


async def test_on_a_full_disk_a_history_can_be_read_that_is_all_there(
    storage: Storage, disk: Disk, pauses: Pauses
) -> None:
    async with running(storage):
        keep(storage, 1)
        keep(storage, 2)
        storage.append(1, b"one")
        await storage.read_journal(1)
        disk.fill()
        storage.append(2, b"x" * 50_000)
        await pauses.until_failed()
        assert await storage.read_journal(1) == journal(b"one")
        assert await storage.read_journal(2) is None
        assert storage.keeps_journal(2)
        disk.clear()
        pauses.end()


async def test_histories_that_wait_for_too_long_are_given_up_and_never_have_a_gap(
    narrow: Storage, path: Path, disk: Disk, pauses: Pauses
) -> None:
    async with running(narrow):
        for key in (1, 2):
            keep(narrow, key)
            narrow.append(key, b"SECRET")
        await narrow.read_journal(1)
        disk.fill()
        narrow.append(1, b"x" * 60_000)
        await pauses.until_failed()
        narrow.append(1, b"x" * 60_000)
        assert not narrow.keeps_journal(1)
        assert narrow.keeps_journal(2)
        assert narrow._queue.size < 1000
        narrow.append(1, b"later")
        keep(narrow, 1, title="later")
        assert await narrow.read_journal(1) is None
        assert "the histories of sessions that have ended are given up" in str(narrow.problem)
        disk.clear()
        pauses.end()
        while narrow.problem is not None:
            await narrow.read_journal(2)
        narrow.append(1, b"later still")
    assert sessions_in(path)[1].title == "later"
    assert await restarted(path, 1) is None
    assert await restarted(path, 2) == journal(b"SECRET")


async def test_a_disk_that_hangs_does_not_fill_the_memory(narrow: Storage, path: Path, disk: Disk) -> None:
    async with running(narrow):
        keep(narrow, 1)
        await narrow.read_journal(1)
        await disk.hang(lambda: narrow.append(1, b"underway"))
        for _ in range(100):
            narrow.append(1, b"x" * 10_000)
        assert narrow._queue.size < 1000
        assert not narrow.keeps_journal(1)
        disk.flowing.set()
    assert await restarted(path, 1) is None


async def test_a_history_that_was_given_up_is_kept_again_once_it_is_replaced(narrow: Storage, path: Path) -> None:
    async with running(narrow):
        keep(narrow, 1)
        narrow.append(1, b"x" * LIMIT)
        narrow.append(1, b"x")
        assert not narrow.keeps_journal(1)
        replace(narrow, 1, journal(b"one", epoch="e2"))
        narrow.append(1, b"two")
    assert await restarted(path, 1) == journal(b"one", b"two", epoch="e2")


async def test_a_history_that_began_on_a_damaged_file_goes_on_in_the_new_one(
    storage: Storage, path: Path, pauses: Pauses
) -> None:
    make(path).open()
    overwrite(path, "piece")
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        await pauses.until_failed()
        storage.append(1, b"two")
        pauses.end()
        assert await storage.read_journal(1) == journal(b"one", b"two")


async def test_a_broken_disk_is_tried_again(storage: Storage, path: Path, disk: Disk, pauses: Pauses) -> None:
    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        disk.broken = True
        storage.append(1, b"one")
        await pauses.until_failed()
        assert storage.problem is not None
        opened = len(disk.opened)
        disk.broken = False
        pauses.end()
        assert await storage.read_journal(1) == journal(b"one")
        assert storage.problem is None
        assert len(disk.opened) == opened + 1


async def test_a_session_that_is_erased_while_nothing_can_be_written_is_erased_later(
    storage: Storage, path: Path, disk: Disk, pauses: Pauses
) -> None:
    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        disk.fill()
        keep(storage, 1, title="x" * 50_000)
        await pauses.until_failed()
        storage.forget(1)
        disk.clear()
        pauses.end()
    assert sessions_in(path) == {}


# Streams that are faster than the disk.


async def test_of_a_history_no_more_waits_than_it_holds_and_nothing_is_given_up(
    storage: Storage, path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(storage):
        histories = live(storage, 1)
        await storage.read_journal(1)
        await disk.hang(lambda: histories.append(1, b"underway"))
        for number in range(10_000):
            histories.extend(1, [b"%06d" % number + b"." * 94] * 10)
            assert storage._queue.size < LIMIT * 3 / 2
            if number % 1000 == 7:
                histories.turn_ended(1)
        disk.flowing.set()
        assert await storage.read_journal(1) == histories.now(1)
        assert histories.taken == [1]
    assert caplog.records == []
    assert await restarted(path, 1) == histories.now(1)


async def test_what_comes_after_that_is_in_memory_until_it_is_written(storage: Storage, disk: Disk) -> None:
    async with running(storage):
        histories = live(storage, 1)
        await storage.read_journal(1)
        await disk.hang(lambda: histories.append(1, b"underway"))
        histories.append(1, b"x" * 2 * LIMIT)
        waiting = storage._queue.size
        histories.append(1, b"mode", "mode")
        histories.turn_ended(1)
        histories.extend(1, [b"y"] * 100)
        assert storage._queue.size == waiting
        assert histories.taken == []
        disk.flowing.set()
        stored = await storage.read_journal(1)
        histories.append(1, b"later")
        assert stored is not None
        assert stored.runs == [StoredRun([b"mode"], {0: "mode"}, ends_turn=True), StoredRun([b"y"] * 100)]
        assert await storage.read_journal(1) == histories.now(1)


async def test_a_session_that_ends_before_that_is_written_keeps_what_it_had(
    storage: Storage, path: Path, disk: Disk
) -> None:
    async with running(storage):
        histories = live(storage, 1)
        histories.append(1, b"x" * 2 * LIMIT)
        histories.append(1, b"last words")
        had = histories.now(1)
        histories.forget(1)
        assert await storage.read_journal(1) == had
        storage.finish_journal(1)
    assert await restarted(path, 1) == had


@pytest.mark.parametrize("fails", ["full", "broken"])
async def test_what_could_not_be_written_is_replaced_with_what_came_after_it(
    storage: Storage, path: Path, disk: Disk, pauses: Pauses, fails: str
) -> None:
    async with running(storage):
        histories = live(storage, 1)
        histories.append(1, b"one")
        await storage.read_journal(1)
        if fails == "full":
            disk.fill()
        disk.broken = fails == "broken"
        histories.append(1, b"y" * (LIMIT * 3 // 4))
        histories.turn_ended(1)
        await pauses.until_failed()
        histories.append(1, b"z" * (LIMIT * 3 // 4))
        assert storage._queue.size < LIMIT
        pauses.end()
        await pauses.until_failed()
        # Not before the file can be opened.
        assert histories.taken == ([1] if fails == "full" else [])
        histories.append(1, b"end")
        if fails == "full":
            disk.clear()
        disk.broken = False
        pauses.end()
        assert await storage.read_journal(1) == histories.now(1)
        assert storage.problem is None
    assert await restarted(path, 1) == histories.now(1)


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


async def test_a_turn_that_could_not_be_written_goes_on_with_what_came_later(
    storage: Storage, failure: Failure
) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"zero")
        await failure.begin(lambda: storage.append(1, b"one", "mode"))
        storage.append(1, b"two")
        storage.append(1, b"three", "plan")
        storage.turn_ended(1)
        storage.turn_ended(1)
        storage.append(1, b"four")
        await failure.end()
        first = StoredRun([b"zero", b"one", b"two", b"three"], {1: "mode", 3: "plan"}, ends_turn=True)
        assert await storage.read_journal(1) == StoredJournal("e1", 5, False, [], [first, StoredRun([b"four"])])
        assert storage._queue.size == 0


@pytest.mark.parametrize("ends", ["before", "later", "twice"])
async def test_a_turn_that_ended_when_nothing_could_be_written_is_over(
    storage: Storage, failure: Failure, ends: str
) -> None:
    def begin() -> None:
        storage.append(1, b"one")
        if ends != "later":
            storage.turn_ended(1)

    async with running(storage):
        keep(storage, 1)
        await failure.begin(begin)
        if ends != "before":
            storage.turn_ended(1)
        storage.append(1, b"two")
        await failure.end()
        runs = [StoredRun([b"one"], ends_turn=True), StoredRun([b"two"])]
        assert await storage.read_journal(1) == StoredJournal("e1", 2, False, [], runs)


async def test_what_replaces_a_history_while_a_batch_fails_is_what_is_kept(storage: Storage, failure: Failure) -> None:
    async with running(storage):
        keep(storage, 1)
        await failure.begin(lambda: storage.append(1, b"one"))
        replace(storage, 1, journal(b"two", epoch="e2", position=7))
        storage.append(1, b"three")
        await failure.end()
        assert await storage.read_journal(1) == journal(b"two", b"three", epoch="e2", position=8)


async def test_what_follows_a_history_that_could_not_be_written_is_kept_with_it(
    storage: Storage, failure: Failure
) -> None:
    async with running(storage):
        keep(storage, 1)
        await failure.begin(lambda: replace(storage, 1, journal(b"one")))
        storage.append(1, b"two")
        await failure.end()
        assert await storage.read_journal(1) == journal(b"one", b"two")


async def test_of_a_history_that_outgrows_its_limit_while_a_batch_fails_what_is_in_memory_is_kept(
    storage: Storage, path: Path, failure: Failure
) -> None:
    def begin() -> None:
        histories.append(1, b"x" * LIMIT)
        histories.turn_ended(1)

    async with running(storage):
        histories = live(storage, 1)
        await failure.begin(begin)
        histories.append(1, b"y" * LIMIT)
        histories.append(1, b"z" * (LIMIT // 2))
        await failure.end()
        histories.append(1, b"end")
        assert await storage.read_journal(1) == histories.now(1)
    assert histories.taken == [1]
    assert await restarted(path, 1) == histories.now(1)


async def test_what_was_to_be_erased_when_that_failed_is_erased_with_what_came_later(
    storage: Storage, path: Path, failure: Failure
) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"SECRET")
        await failure.begin(lambda: storage.forget_journal(1))
        replace(storage, 1, journal(b"one"))
        await failure.end()
        assert await storage.read_journal(1) == journal(b"one")
        keep(storage, 2)
        await storage.read_journal(2)
        assert b"SECRET" not in bytes_on_disk(path)


async def test_erased_data_leaves_the_log_later_if_tidy_fails_after_the_batch(
    storage: Storage, path: Path, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidy = Database.tidy
    attempts = []

    def fail_once(self: Database) -> None:
        attempts.append(self)
        if len(attempts) == 1:
            raise sqlite3.OperationalError("disk I/O error")
        tidy(self)

    monkeypatch.setattr(Database, "tidy", fail_once)
    async with running(storage):
        keep(storage, 1, title="SECRET")
        storage.append(1, b"SECRET")
        await storage.read_journal(1)
        storage.forget(1)
        await pauses.until_failed()
        keep(storage, 2)
        pauses.end()
        await storage.read_journal(2)
        assert len(attempts) == 2
        assert b"SECRET" not in bytes_on_disk(path)


async def test_a_session_that_ends_while_its_history_is_being_written_and_fails_keeps_it(
    storage: Storage, path: Path, failure: Failure
) -> None:
    async with running(storage):
        histories = live(storage, 1)
        await failure.begin(lambda: histories.append(1, b"x" * 2 * LIMIT))
        histories.append(1, b"last words")
        had = histories.now(1)
        histories.forget(1)
        await failure.end()
        assert await storage.read_journal(1) == had
    assert await restarted(path, 1) == had


async def test_what_is_erased_stays_so_when_another_history_follows_before_that_is_written(
    storage: Storage, path: Path, disk: Disk, pauses: Pauses
) -> None:
    async with running(storage):
        histories = live(storage, 1)
        storage.append(1, b"SECRET")
        await storage.read_journal(1)
        disk.fill()
        storage.append(1, b"x" * 50_000)
        await pauses.until_failed()
        storage.forget_journal(1)
        pauses.end()
        histories.append(1, b"not queued")
        replace(storage, 1, histories.now(1))
        histories.append(1, b"x" * 2 * LIMIT)
        disk.clear()
        assert await storage.read_journal(1) in (None, histories.now(1))
        while (read := await storage.read_journal(1)) is None:
            pass
        assert read == histories.now(1)
        assert b"SECRET" not in bytes_on_disk(path)


async def test_a_session_that_is_erased_before_its_history_is_replaced_leaves_nothing(
    storage: Storage, path: Path, disk: Disk
) -> None:
    async with running(storage):
        histories = live(storage, 1)
        keep(storage, 2)
        histories.append(1, b"SECRET" * LIMIT)
        storage.forget(1)
        await storage.read_journal(2)
        assert histories.taken == []
        assert b"SECRET" not in bytes_on_disk(path)
    assert set(sessions_in(path)) == {2}


async def test_past_the_bound_only_histories_are_given_up_that_are_not_in_memory(
    narrow: Storage, path: Path, disk: Disk, pauses: Pauses
) -> None:
    async with running(narrow):
        histories = Histories(narrow, 1, 2, 3)
        for key in (1, 2, 3):
            keep(narrow, key)
            histories.append(key, b"one")
        await narrow.read_journal(1)
        disk.fill()
        for key in (1, 2, 3):
            histories.append(key, b"x" * (LIMIT // 4))
        await pauses.until_failed()
        histories.forget(3)
        assert narrow.problem is not None
        assert "given up" not in narrow.problem
        histories.append(1, b"y" * (LIMIT // 4))
        assert all(narrow.keeps_journal(key) for key in (1, 2, 3))
        assert narrow._queue.size < LIMIT / 2
        narrow.extend(3, [b"z" * LIMIT])
        assert not narrow.keeps_journal(3)
        assert "the histories of sessions that have ended are given up" in narrow.problem
        disk.clear()
        pauses.end()
        for key in (1, 2):
            assert await narrow.read_journal(key) == histories.now(key)
        assert narrow.problem is None
    assert await restarted(path, 1) == histories.now(1)
    assert await restarted(path, 3) is None


async def test_many_histories_in_memory_are_written_one_after_another(narrow: Storage, path: Path, disk: Disk) -> None:
    keys = range(1, 6)
    async with running(narrow):
        histories = live(narrow, *keys)
        await narrow.read_journal(1)
        await disk.hang(lambda: histories.append(1, b"underway"))
        for key in keys:
            for number in range(30):
                histories.append(key, b"%d" % number * (LIMIT // 20))
        disk.flowing.set()
    assert sorted(histories.taken) == [*keys]
    for key in keys:
        assert await restarted(path, key) == histories.now(key)


async def test_a_history_in_memory_is_not_lost_with_the_file(storage: Storage, path: Path, pauses: Pauses) -> None:
    async with running(storage):
        histories = live(storage, 1)
        keep(storage, 2)
        histories.append(1, b"one")
        storage.append(2, b"lost")
        await storage.read_journal(1)
    after = make(path, pauses=pauses)
    overwrite(path, "piece")
    async with running(after):
        histories.move_to(after)
        histories.append(1, b"two")
        await pauses.until_failed()
        pauses.end()
        while (read := await after.read_journal(1)) is None:
            assert after.problem is not None
        assert read == histories.now(1)
        assert not after.keeps_journal(2)
    assert await restarted(path, 1) == histories.now(1)


class Walk:
    """Histories to which anything may happen, and what is known of them: all that was ever told."""

    def __init__(self, storage: Storage, chance: random.Random) -> None:
        self._storage = storage
        self._chance = chance
        self.histories = Histories(storage)
        self.told: list[list[tuple[bytes, str | None]]] = []
        """Of each history that there ever was, the messages with the kinds of state. They begin with its number."""
        self.times: list[list[int | None]] = []
        """Of each of these histories, the times of the messages."""
        self.now: dict[int, int] = {}
        """The number of the history that each session has."""
        self.lost: list[tuple[int, int, int]] = []
        """Losses on disk that were not necessary: the history, from where on it should be there, and is."""

    def begin(self, key: int) -> None:
        """Another history takes the place of what there is."""
        self.now[key] = len(self.told)
        self.told.append([])
        self.times.append([])
        self.histories.journals[key] = Journal(LIMIT, f"e{self.now[key]}")
        for _ in range(self._chance.choice((0, 3))):
            self.histories.journals[key].append(*self._next(key), None)
        replace(self._storage, key, self.histories.now(key))

    def extend(self, key: int) -> None:
        """One message comes, or several do."""
        time = self._chance.choice((None, 1, 2))
        self.histories.extend(key, [self._next(key, time=time)[0] for _ in range(self._chance.choice((1, 9)))], time)

    def append(self, key: int) -> None:
        """A message comes, which may tell a state."""
        time = self._chance.choice((None, 1, 2))
        self.histories.append(key, *self._next(key, self._chance.choice((None, "mode", "plan")), time), time)

    def shrink(self, key: int) -> None:
        """Memory is short."""
        self.histories.journals[key].shrink(self._chance.choice((0, self._chance.randrange(LIMIT))))

    def rename(self, key: int) -> None:
        """The same history goes on in another epoch."""
        epoch = f"{self.histories.journals[key].epoch}'"
        self.histories.journals[key].rename(epoch)
        keep(self._storage, key, epoch=epoch)

    async def come_back(self, key: int) -> None:
        """A session that had ended lives again."""
        stored = await self._storage.read_journal(key)
        assert (stored is not None) == self._storage.keeps_journal(key)
        if stored is None:
            self.begin(key)
        else:
            journal = self.histories.journals[key] = Journal(LIMIT, stored.epoch)
            runs = [TurnMessages(run.messages, run.states, run.ends_turn, run.times) for run in stored.runs]
            journal.restore(stored.states, runs, stored.position, truncated=stored.truncated)

    def check(self, key: int, stored: StoredJournal | None) -> None:
        """Check that the stored history is the end of all that was told, at most a quarter more than in memory."""
        assert stored is not None
        told = self.told[self.now[key]]
        held = messages_of(stored.runs)
        assert stored.position == len(told)
        assert held == [message for message, _ in told[len(told) - len(held) :]]
        times = [time for run in stored.runs for time in run.times.of(0, len(run.messages))]
        assert times == self.times[self.now[key]][len(told) - len(held) :]
        assert sum(map(len, held)) + size_aside(stored) <= LIMIT * 5 / 4
        assert states_of(stored) == {kind: message for message, kind in told if kind is not None}

    def write(self, file: Database, batch: WriteBatch) -> set[int]:
        """Write a batch, and see what the histories on disk lose by that."""
        before = {key: (file.histories.read(key), starts_of(change)) for key, change in batch.changes.items()}
        truncated = write(file, batch)
        for key, (had, (number, start)) in before.items():
            has = file.histories.read(key)
            if has is None:
                continue  # It was given up.
            change = batch.changes[key]
            another = change.unrelated if number is None else had is None or number != number_of(had.runs)
            if had is not None and not another and not change.erases and (start is None or start <= had.position):
                number, start = number_of(had.runs), had.position - len(messages_of(had.runs))
            if number is None or start is None:
                continue  # There was nothing that could be lost.
            told = sum(len(message) for message, _ in self.told[number][start : has.position])
            is_cut = told + max(size_aside(journal) for journal in (had, has) if journal is not None) > LIMIT * 5 / 4
            if has.position - len(messages_of(has.runs)) > start and not is_cut:
                self.lost.append((number, start, has.position - len(messages_of(has.runs))))
        return truncated

    def _next(self, key: int, state: str | None = None, time: int | None = None) -> tuple[bytes, str | None]:
        told = self.told[self.now[key]]
        self.times[self.now[key]].append(time)
        told.append((b"%d.%d " % (self.now[key], len(told)) * self._chance.choice((1, 1, 100, 1500)), state))
        return told[-1]


def messages_of(runs: Sequence[StoredRun]) -> list[bytes]:
    """All of them."""
    return [message for run in runs for message in run.messages]


def number_of(runs: Sequence[StoredRun]) -> int | None:
    """Return the number of the history of a walk; None for no messages."""
    return next((int(message.partition(b".")[0]) for message in messages_of(runs)), None)


def starts_of(change: Change) -> tuple[int | None, int | None]:
    """Which history of a walk this is, if it says that, and where it starts, if it is whole."""
    if change.whole is None:
        return number_of(change.runs), None
    start = change.whole.position - len(messages_of(change.whole.runs))
    return number_of([*change.whole.runs, *change.runs]), start


def size_aside(journal: StoredJournal) -> int:
    """Bytes of what was put aside."""
    return sum(len(message) for message, _ in journal.states)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_the_history_on_disk_is_the_end_of_all_and_loses_no_more_than_it_must(
    narrow: Storage, path: Path, disk: Disk, pauses: Pauses, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same each time is what is wanted
    failure = Failure(narrow, disk, pauses)
    walk = Walk(narrow, chance)
    monkeypatch.setattr(storage_module, "write", walk.write)
    keys = (1, 2, 3)
    async with running(narrow):
        for key in keys:
            keep(narrow, key)
            walk.begin(key)
        for _ in range(200):
            key = chance.choice(keys)
            if not walk.histories.has(key):
                if chance.random() < 0.3:
                    disk.flowing.set()
                    await walk.come_back(key)
                continue
            match chance.randrange(16):
                case 0 | 1 | 2 | 3:
                    walk.extend(key)
                case 4 | 5:
                    walk.append(key)
                case 6:
                    walk.histories.turn_ended(key)
                case 7:
                    disk.flowing.clear() if disk.flowing.is_set() else disk.flowing.set()
                case 8:
                    await trio.testing.wait_all_tasks_blocked()
                case 9:
                    disk.flowing.set()
                    await failure.begin(partial(walk.append, key))
                    for other in filter(walk.histories.has, keys):
                        walk.extend(other)
                    if chance.random() < 0.5:
                        walk.histories.turn_ended(key)
                    await failure.end()
                case 10 | 11:
                    disk.flowing.set()
                    walk.check(key, await narrow.read_journal(key))
                case 12 | 13:
                    walk.shrink(key)
                case 14:
                    walk.rename(key)
                case 15:
                    chance.choice((walk.begin, walk.histories.forget))(key)
        disk.flowing.set()
        kept = [key for key in keys if narrow.keeps_journal(key)]
    assert narrow.problem is None
    assert walk.lost == []
    for key in kept:
        walk.check(key, await restarted(path, key))


def states_of(journal: StoredJournal) -> dict[str, bytes]:
    """The last message of each kind of state."""
    last = {kind: message for message, kind in journal.states}
    for run in journal.runs:
        last |= {kind: run.messages[index] for index, kind in run.states.items()}
    return last


async def renew(storage: Storage, histories: Histories, disk: Disk, then: Callable[[], object]) -> None:
    """Do this while the disk hangs, and have so much come besides that all histories are renewed."""
    await storage.read_journal(1)
    await disk.hang(lambda: histories.append(2, b"underway"))
    then()
    histories.append(2, b"x" * LIMIT)
    histories.append(1, b"end")
    disk.flowing.set()


async def test_of_a_history_that_was_cut_in_memory_the_disk_keeps_what_it_has(narrow: Storage, disk: Disk) -> None:
    def cut() -> None:
        histories.append(1, b"eight")
        histories.journals[1].shrink(LIMIT // 4)

    async with running(narrow):
        histories = live(narrow, 1, 2)
        turns = [b"%d" % number * (LIMIT // 10) for number in range(8)]
        for turn in turns:
            histories.append(1, turn)
            histories.turn_ended(1)
        await renew(narrow, histories, disk, cut)
        runs = [*(StoredRun([turn], ends_turn=True) for turn in turns), StoredRun([b"eight", b"end"])]
        assert await narrow.read_journal(1) == StoredJournal("e1", 10, False, [], runs)
    assert 1 in histories.taken
    assert len(histories.journals[1].runs()) < 4


async def test_of_a_history_that_was_cut_in_memory_just_where_the_disk_ends_the_disk_keeps_what_it_has(
    narrow: Storage, disk: Disk
) -> None:
    def cut() -> None:
        histories.journals[1].shrink(0)
        histories.append(1, b"two")

    async with running(narrow):
        histories = live(narrow, 1, 2)
        histories.append(1, b"one")
        histories.turn_ended(1)
        await renew(narrow, histories, disk, cut)
        runs = [StoredRun([b"one"], ends_turn=True), StoredRun([b"two", b"end"])]
        assert histories.now(1).runs == runs[1:]
        assert await narrow.read_journal(1) == StoredJournal("e1", 3, False, [], runs)
    assert 1 in histories.taken


async def test_of_a_history_that_was_cut_in_memory_behind_what_the_disk_has_the_end_is_kept(
    narrow: Storage, disk: Disk
) -> None:
    def cut() -> None:
        histories.append(1, b"lost")
        histories.turn_ended(1)
        histories.append(1, b"kept")
        histories.journals[1].shrink(len(b"kept"))

    async with running(narrow):
        histories = live(narrow, 1, 2)
        histories.append(1, b"one")
        await renew(narrow, histories, disk, cut)
        assert await narrow.read_journal(1) == StoredJournal("e1", 4, True, [], [StoredRun([b"kept", b"end"])])


async def test_a_history_that_replaces_another_does_so_though_it_is_renewed_before_that(
    narrow: Storage, disk: Disk
) -> None:
    def replace_it() -> None:
        histories.journals[1] = Journal(LIMIT, "e2")
        for number in range(3):
            histories.journals[1].append(b"new %d" % number)
        replace(narrow, 1, histories.now(1))

    async with running(narrow):
        histories = live(narrow, 1, 2)
        histories.append(1, b"old")
        await renew(narrow, histories, disk, replace_it)
        assert await narrow.read_journal(1) == journal(b"new 0", b"new 1", b"new 2", b"end", epoch="e2")
    assert 1 in histories.taken


async def test_the_write_delay_grows_with_the_time_of_the_batch_before(
    path: Path, pauses: Pauses, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = make(path, pauses=pauses)
    took: list[float] = []
    work = Storage._work

    async def slow(self: Storage) -> bool:
        mock_clock.jump(took.pop(0) if took else 0.0)
        return await work(self)

    monkeypatch.setattr(Storage, "_work", slow)
    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        pauses.seconds.clear()
        took += [0.1, 0.25, 0.01]
        for number in range(4):
            while len(pauses.seconds) <= number:
                storage.append(1, b"x")
                await trio.lowlevel.checkpoint()
        assert pauses.seconds[:4] == pytest.approx([GATHERING, 0.1, MAX_GATHERING, GATHERING])


async def test_past_write_behind_limit_what_is_queued_is_written_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def for_ever(_: float) -> None:
        await trio.sleep_forever()

    storage = Storage(
        path, journal=True, retention_days=30, journal_limit=LIMIT, write_behind_limit=500, pause=for_ever
    )
    taken: list[int] = []
    work = Storage._work

    async def noted(self: Storage) -> bool:
        taken.append(self._queue.size)
        return await work(self)

    monkeypatch.setattr(Storage, "_work", noted)
    async with running(storage):
        keep(storage, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert taken == []
        storage.append(1, b"x" * 500)
        await trio.testing.wait_all_tasks_blocked()
        assert len(taken) == 1


async def test_past_history_limit_the_histories_unused_for_longest_go_and_the_file_shrinks(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage(path, journal=True, retention_days=30, journal_limit=200_000, history_limit=300_000, now=Clock())
    async with running(storage):
        for key in range(1, 6):
            keep(storage, key, used=NOON + key)
            storage.append(key, b"%d" % key * 100_000)
            await storage.read_journal(key)
    assert [key for key in range(1, 6) if storage_of(path, key)] == [3, 4, 5]
    assert set(sessions_in(path)) == {1, 2, 3, 4, 5}
    assert len(await trio.Path(path).read_bytes()) < 450_000
    assert "history_limit: the histories of 1 sessions are removed" in caplog.text


async def test_past_history_limit_the_history_of_a_live_session_loses_its_beginning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage(path, journal=True, retention_days=30, journal_limit=400_000, history_limit=300_000, now=Clock())
    async with running(storage):
        histories = live(storage, 1)
        for number in range(10):
            histories.append(1, b"%d" % number * 40_000)
            histories.turn_ended(1)
            await storage.read_journal(1)
        assert storage.has_cut_journal(1)
        assert "history_limit: the histories of 1 live sessions are cut" in caplog.text
    after = Storage(path, journal=True, retention_days=30, journal_limit=400_000, now=Clock())
    async with running(after):
        assert after.has_cut_journal(1)
        read = await after.read_journal(1)
    assert read is not None
    assert read.truncated
    assert read.position == 10
    assert [message[:1] for message in messages_of(read.runs)] == [b"%d" % number for number in range(4, 10)]


async def test_history_limit_is_checked_at_the_start(path: Path) -> None:
    storage = Storage(path, journal=True, retention_days=30, journal_limit=200_000, now=Clock())
    async with running(storage):
        for key in range(1, 6):
            keep(storage, key, used=NOON + key)
            storage.append(key, b"%d" % key * 100_000)
    async with running(
        Storage(path, journal=True, retention_days=30, journal_limit=200_000, history_limit=300_000, now=Clock())
    ):
        pass
    assert [key for key in range(1, 6) if storage_of(path, key)] == [3, 4, 5]


def storage_of(path: Path, key: int) -> bool:
    """Return True if the history of a session is on disk."""
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("SELECT count(*) FROM piece WHERE session = ?", (key,)).fetchone()[0])


# Its priority.


async def test_only_what_is_little_and_can_wait_is_written_with_low_priority(
    storage: Storage, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def thread_that_writes(message: bytes) -> str:
        histories.append(1, message)
        while storage._queue.size:
            await trio.lowlevel.checkpoint()
        return disk.threads[-1]

    async with running(storage):
        histories = live(storage, 1)
        assert await thread_that_writes(b"one") == "storage"
        with monkeypatch.context() as patched:
            patched.setattr(storage_module, "LITTLE", 0)
            assert await thread_that_writes(b"two") != "storage"
        assert await thread_that_writes(b"three") == "storage"
        await disk.hang(lambda: histories.append(1, b"four"))
        async with trio.open_nursery() as nursery:
            # The history is waited for, with what came before.
            nursery.start_soon(storage.read_journal, 1)
            await trio.testing.wait_all_tasks_blocked()
            histories.append(1, b"five")
            disk.flowing.set()
        assert disk.threads[-1] != "storage"
        histories.append(1, b"six")
    assert disk.threads[-1] != "storage"


# The end.


async def test_a_history_can_be_asked_for_before_it_runs(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
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


async def test_a_cancelled_read_journal_does_not_disturb_the_next(storage: Storage, disk: Disk) -> None:
    async with running(storage):
        keep(storage, 1)
        storage.append(1, b"one")
        with trio.move_on_after(0):
            await storage.read_journal(1)
        assert await storage.read_journal(1) == journal(b"one")


async def test_at_the_end_nothing_more_is_read(storage: Storage, disk: Disk) -> None:
    read: list[StoredJournal | None] = []

    async def ask() -> None:
        read.append(await storage.read_journal(1))
        read.append(await storage.read_journal(1))
        disk.flowing.set()

    async with trio.open_nursery() as reader, running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        await disk.hang(lambda: storage.append(1, b"underway"))
        disk.statements.clear()
        reader.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
    assert read == [None, None]
    assert not [statement for statement in disk.statements if "messages FROM piece" in statement]


async def test_a_storage_that_has_ended_takes_nothing_and_answers_at_once(storage: Storage, path: Path) -> None:
    async with running(storage):
        keep(storage, 1)
    storage.append(1, b"one")
    keep(storage, 2)
    replace(storage, 1, journal(b"two"))
    storage.forget(1)
    storage.token_used("0a0a0a0a")
    assert await storage.read_journal(1) is None
    assert set(sessions_in(path)) == {1}


async def test_with_a_full_disk_it_ends_all_the_same(storage: Storage, disk: Disk, pauses: Pauses) -> None:
    async with running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        disk.fill()
        storage.append(1, b"x" * 50_000)
        await pauses.until_failed()
    assert storage.problem is not None


async def test_a_disk_that_hangs_delays_the_end_for_a_bounded_time(
    storage: Storage, disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "CLOSE_TIMEOUT", 0)
    read: list[StoredJournal | None] = []

    async def ask() -> None:
        read.append(await storage.read_journal(1))

    # That one goes on until after the end.
    async with trio.open_nursery() as reader, running(storage):
        keep(storage, 1)
        await storage.read_journal(1)
        disk.flowing.clear()
        storage.append(1, b"underway")
        reader.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
    assert read == [None]
    assert "not all could be written" in caplog.text
    disk.flowing.set()
    async with storage._writer.thread.limiter:  # The thread has ended.
        disk.opened[-1].close()


async def test_a_session_that_ends_beside_a_large_batch_keeps_its_history(
    narrow: Storage, disk: Disk, pauses: Pauses
) -> None:
    archive = StoredArchive(narrow)
    async with running(narrow):
        sessions = [Session("a", f"s{number}", "me", Journal(LIMIT, f"e{number}")) for number in range(3)]
        for session in sessions:
            session.archive = archive
            archive.keep(session)
            session.write(b"first")
            await archive.read(session, LIMIT)
        disk.fill()
        sessions[0].extend([b"x" * 1000] * 10)
        await pauses.until_failed()
        for session in sessions:
            session.extend([b"x" * 1000] * 60)
        # The agent ends, and with it all that is in memory.
        for session in sessions:
            session.forget_content()
            archive.keep(session)
        disk.clear()
        pauses.end()
        for session, before in zip(sessions, (11, 1, 1), strict=True):
            kept = await archive.read(session, LIMIT)
            # All of it, or nothing that could be taken for all.
            assert kept is None or kept.position == before + 60
