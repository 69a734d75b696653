"""Storages for tests, with a disk that fails as they wish, and the sessions whose histories are in memory."""

import os
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing

from acp_gateway.config.options import GatewaySection
from acp_gateway.core.requests import TurnOutcome
from acp_gateway.core.turns.journal import Journal, TurnMessages
from acp_gateway.gateway.storage.records import StoredJournal, StoredPrompt, StoredRun, StoredSession
from acp_gateway.gateway.storage.store import RETRY, Storage
from acp_gateway.protocol.text.pairs import texts_of
from tests.kit.doubles import TIMEOUT

NOON = 1_767_268_800.0
"""2026-01-01, 12:00 UTC."""

DAY = 86400.0
LIMIT = 100_000

PROMPT = StoredPrompt("k", 1, 5, 7, True, False, "ada", "{}", False, b'{"jsonrpc":"2.0"}')

SESSION = StoredSession(1, "demo", "sess-1", "ada", "/src", None, None, NOON, NOON, "e1")


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
        elif seconds > RETRY:
            await trio.sleep_forever()
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

    def count(self, part: str) -> int:
        """Return the number of statements with this part."""
        return len([statement for statement in self.statements if part in statement])

    def _trace(self, statement: str) -> None:
        self.statements.append(statement)
        if statement == "COMMIT":
            self.threads.append(threading.current_thread().name)
            self.committed.set()

    def _step(self) -> int:
        self.flowing.wait(TIMEOUT)
        # SQLite gives up what it is doing then, with an OperationalError.
        return int(self.broken)


class Sessions:
    """The sessions that are live: their histories are in memory, and the storage is told of what comes."""

    def __init__(self, storage: Storage, *keys: int) -> None:
        self.journals: dict[int, Journal] = {}
        self.taken: list[int] = []
        """Histories that were asked for from memory."""
        self.move_to(storage)
        for key in keys:
            self.begin(key)

    def move_to(self, storage: Storage) -> None:
        """From now on this one is told, and asks."""
        self.storage = storage
        storage.rely_on(self)

    # What the storage asks

    def has(self, key: int) -> bool:
        return key in self.journals

    def snapshot(self, key: int, epoch: str, position: int) -> StoredJournal:
        self.taken.append(key)
        return snapshot(self.journals[key], epoch, position)

    # What it is told

    def begin(self, key: int, epoch: str = "e1", **changes: Any) -> None:
        """A session is created."""
        self.journals[key] = Journal(LIMIT, epoch)
        keep(self.storage, key, epoch=epoch, **changes)

    def append(self, key: int, *messages: bytes, state: str | None = None, time: int | None = None) -> None:
        """Messages come, each of this kind of state."""
        for message in messages:
            self.journals[key].append(message, state, time)
        self.storage.grow(key, sum(map(len, messages)))

    def extend(self, key: int, messages: Sequence[bytes], time: int | None = None) -> None:
        """Messages come at once."""
        self.journals[key].extend(messages, time)
        self.storage.grow(key, sum(map(len, messages)))

    def end_turn(self, key: int) -> None:
        self.journals[key].turn_ended()
        self.storage.grow(key, 0)

    def tell_end(self, key: int, reason: str, time: int | None = None) -> None:
        """A turn ends, and how."""
        self.journals[key].note_end(TurnOutcome(reason), time)
        self.end_turn(key)

    def rename(self, key: int, epoch: str) -> None:
        """The same history goes on in another epoch."""
        self.journals[key].rename(epoch)
        keep(self.storage, key, epoch=epoch, former=self.journals[key].former)

    def replace(self, key: int, *messages: bytes, epoch: str = "e2") -> None:
        """Another history takes the place of what there is."""
        self.journals[key] = Journal(LIMIT, epoch)
        self.journals[key].extend(messages)
        self.storage.replace(key)

    def shrink(self, key: int, size: int) -> None:
        """Memory is short."""
        self.storage.finish_journal(key)
        self.journals[key].shrink(size)

    def end(self, key: int) -> None:
        """The session ends: what it had is not in memory any more."""
        self.storage.finish_journal(key)
        del self.journals[key]

    async def come_back(self, key: int) -> bool:
        """A session that had ended lives again, if its history can be read."""
        stored = await self.storage.read_journal(key)
        if stored is not None:
            journal = self.journals[key] = Journal(LIMIT, stored.epoch)
            runs = [TurnMessages(run.messages, run.states, run.ends_turn, run.times) for run in stored.runs]
            journal.restore(
                stored.states,
                runs,
                stored.position,
                truncated=stored.truncated,
                former=stored.former,
                ends=stored.ends,
            )
        return stored is not None

    def now(self, key: int) -> StoredJournal:
        """A history as it is."""
        return snapshot(self.journals[key], "", 0)


def snapshot(journal: Journal, epoch: str, position: int) -> StoredJournal:
    """A copy of a journal's messages after this position, as `StoredArchive` makes it."""
    runs = [StoredRun(*run) for run in journal.runs(position if journal.epoch == epoch else 0)]
    aside = journal.states_set_aside()
    return StoredJournal(
        journal.epoch,
        journal.position,
        journal.truncated,
        aside,
        runs,
        journal.former,
        tuple(journal.ends((position, 0) if journal.epoch == epoch else (0, 0))),
        carries=journal.carries,
    )


def make(
    path: Path,
    clock: Clock | None = None,
    disk: Disk | None = None,
    pauses: Callable[[float], Any] | None = None,
    *,
    account_of: Callable[[str], str] = str,
    **options: Any,
) -> Storage:
    """A storage with these options of `[gateway]`, not open yet."""
    return Storage(
        path,
        GatewaySection(**({"journal_limit": LIMIT} | options)),
        account_of=account_of,
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


@asynccontextmanager
async def living(storage: Storage, *keys: int) -> AsyncIterator[Sessions]:
    """Run it with these live sessions."""
    async with running(storage):
        yield Sessions(storage, *keys)


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


def journal(*messages: bytes, epoch: str = "e1", **changes: Any) -> StoredJournal:
    """A history that nothing is missing of."""
    fields: dict[str, Any] = {"position": len(messages), "truncated": False, "states": []}
    return StoredJournal(epoch, **(fields | {"runs": [StoredRun(list(messages))] if messages else []} | changes))


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


def messages_of(runs: Sequence[StoredRun]) -> list[bytes]:
    """All of them."""
    return [text for run in runs for text in texts_of(run.messages)]


# Damage


def write_garbage(path: Path) -> None:
    """Put something in the file's place that is not a database."""
    path.parent.mkdir()
    path.write_bytes(b"no database at all, " * 500)


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


def overwrite(path: Path, table: str) -> None:
    """Make the beginning of a table unreadable."""
    with sqlite3.connect(path) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
