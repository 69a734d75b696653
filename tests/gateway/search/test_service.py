"""The index follows the histories, and is searched."""

import math
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.options import GatewaySection
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import Busy, UsageError
from acp_gateway.gateway.search import index, service
from acp_gateway.gateway.search.service import SearchService
from acp_gateway.gateway.sessions.session_changes import SessionChanges
from acp_gateway.gateway.storage.archive import StoredArchive
from acp_gateway.gateway.storage.store import Storage
from tests.gateway.search.test_texts import message
from tests.kit.doubles import TIMEOUT
from tests.kit.registered import AgentDouble
from tests.kit.updates import said

LIMIT = 100_000


async def no_pause(seconds: float) -> None:
    await trio.lowlevel.checkpoint()


class Gateway:
    """The sessions of one process of a gateway, and their search."""

    def __init__(
        self, folder: Path, *, journal: bool = True, limit: int = LIMIT, history_limit: float = math.inf
    ) -> None:
        self.storage = Storage(
            folder / "sessions.db",
            GatewaySection(journal_storage="disk" if journal else "memory", journal_limit=limit, write_delay=0.0),
        )
        self.archive = StoredArchive(self.storage, journals=journal)
        self.changes = SessionChanges(self.archive)
        self.registry = Registry("me", self.changes, "run")
        self.restored = self.archive.restore(limit)
        for session in self.restored:
            self.registry.restore(session)
        self.search = SearchService(
            folder / "search.db", self.archive, self.changes, limit, history_limit, enabled=journal, pause=no_pause
        )
        self.limit = limit

    def begin(self, name: str = "s", *texts: str, at: int = 0) -> Session:
        session = Session("agent", name, "me", Journal(self.limit, self.registry.new_epoch()))
        self.registry.add(session, AgentDouble())
        self.says(session, *texts, at=at)
        return session

    def says(self, session: Session, *texts: str, at: int = 0) -> None:
        """Have a turn in which the agent says these texts."""
        for text in texts:
            session.write(message(said(text)), None, at)
        session.active_at = at
        session.end_turn()

    def end(self, session: Session) -> None:
        session.forget_content()
        self.registry.end(session)

    async def found(self, words: str, *sessions: Session) -> list[str]:
        return [one.session.id for one in await self.search.find(sessions, words)]

    async def until(self, words: str, *sessions: Session, names: list[str]) -> None:
        """Wait until a search finds these sessions."""
        while await self.found(words, *sessions) != names:
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def running(
    folder: Path, *, journal: bool = True, limit: int = LIMIT, history_limit: float = math.inf
) -> AsyncIterator[Gateway]:
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            gateway = Gateway(folder, journal=journal, limit=limit, history_limit=history_limit)
            await nursery.start(gateway.storage.run)
            nursery.start_soon(gateway.search.run)
            yield gateway
            nursery.cancel_scope.cancel()


async def test_a_turn_is_found_and_the_last_used_session_comes_first(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        sessions = [gateway.begin(name, "divide ", "by zero", at=at) for name, at in (("a", 5), ("b", 9), ("c", 7))]
        await gateway.until('"divide by" zero', *sessions, names=["b", "c", "a"])
        assert await gateway.found("zero", sessions[0]) == ["a"]
        (one, *_) = await gateway.search.find(sessions, "zero", 1)
        assert (one.session.id, one.found.texts, one.found.snippet.text) == ("b", 1, "divide by zero")
        gateway.says(sessions[0], "another word")
        await gateway.until("another", *sessions, names=["a"])
        hits, more = await gateway.search.find_in(sessions[0], "another")
        assert ([hit.position for hit in hits], more) == ([2], False)


async def test_a_running_turn_is_found_once_it_was_searched_but_for_a_message_that_may_go_on(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        session = gateway.begin("s", "first")
        await gateway.until("first", session, names=["s"])
        request = object()
        session.turns[request] = 0.0  # type: ignore[index]
        for text, kind in (("zero", "agent"), ("thinking", "thought")):
            session.write(message(said(text, kind)), None, 0)
        await gateway.until("zero", session, names=["s"])
        assert await gateway.found("thinking", session) == []
        session.turns.clear()
        gateway.says(session)
        await gateway.until("thinking", session, names=["s"])


async def test_a_running_turn_is_written_at_its_end_or_once_it_was_searched(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.until("first", gateway.begin("first", "first"), names=["first"])
        session, request = gateway.begin("s"), object()
        session.turns[request] = 0.0  # type: ignore[index]
        session.write(message(said("zero", "agent")), None, 0)
        session.write(message(said("thinking", "thought")), None, 0)
        session.note_change()
        for name in ("one", "two"):  # The second is added after all that waited before it.
            await gateway.until(name, gateway.begin(name, name), names=[name])
            while not gateway.search.is_complete:
                await trio.lowlevel.checkpoint()
        key = gateway.archive.key_of(session)
        assert key is not None
        with closing(index.SearchReader(tmp_path / "search.db")) as reader:
            assert reader.find("zero", {key: 0}, 9) == []
        await gateway.until("zero", session, names=["s"])


async def test_a_session_that_is_removed_or_not_kept_is_not_found(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        removed, lost = gateway.begin("a", "zero"), gateway.begin("b", "zero")
        await gateway.until("zero", removed, lost, names=["a", "b"])
        gateway.registry.remove(removed)
        assert await gateway.found("zero", removed, lost) == ["b"]
        key = gateway.archive.key_of(lost)
        assert key is not None
        gateway.storage._queue.give_up({key})  # As for `history_limit`.
        assert await gateway.found("zero", removed, lost) == []
        other = gateway.begin("c", "one")
        await gateway.until("one", other, names=["c"])
        while gateway.search._places.keys() != {gateway.archive.key_of(other)}:
            await trio.lowlevel.checkpoint()
    opened = index.SearchIndex(tmp_path / "search.db")
    assert len(opened.places()) == 1
    opened.close()


async def test_after_a_restart_histories_that_are_not_in_the_index_are_added(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.until("zero", *[gateway.begin(name, f"zero {name}") for name in "ab"], names=["a", "b"])
    (tmp_path / "search.db").unlink()
    async with running(tmp_path) as gateway:
        await gateway.until("zero", *gateway.restored, names=["a", "b"])
        while not gateway.search.is_complete:
            await trio.lowlevel.checkpoint()


async def test_after_a_restart_only_what_has_changed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as gateway:
        session = gateway.begin("a", "zero")
        await gateway.until("zero", session, names=["a"])
        gateway.end(session)

    async def read(self: StoredArchive, session: Session, journal_limit: int) -> Journal | None:
        raise AssertionError("it is in the index")

    monkeypatch.setattr(StoredArchive, "read", read)
    async with running(tmp_path) as gateway:
        assert await gateway.found("zero", *gateway.restored) == ["a"]
        assert gateway.search.is_complete


async def test_a_replaced_history_replaces_its_texts(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        session = gateway.begin("a", "zero")
        await gateway.until("zero", session, names=["a"])
        session.journal.clear()
        session.journal.epoch = "another epoch"
        gateway.changes.replace(session)
        gateway.says(session, "one")
        await gateway.until("one", session, names=["a"])
        assert await gateway.found("zero", session) == []


async def test_what_is_cut_off_a_history_is_not_found(tmp_path: Path) -> None:
    async with running(tmp_path, limit=1000) as gateway:
        session = gateway.begin("a", "zero")
        await gateway.until("zero", session, names=["a"])
        for number in range(20):
            gateway.says(session, f" number{number}")
        await gateway.until("number19", session, names=["a"])
        await gateway.until("zero", session, names=[])


async def test_the_last_text_of_a_session_is_known_after_it_has_ended(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        session, other = gateway.begin("a", "zero", "\nlast"), gateway.begin("b")
        await gateway.until("last", session, names=["a"])
        gateway.end(session)
        assert await gateway.search.last([session, other]) == {session: "zero\nlast"}
        assert await gateway.search.last([]) == {}
    async with running(tmp_path, journal=False) as gateway:
        while await trio.to_thread.run_sync((tmp_path / "search.db").exists):
            await trio.lowlevel.checkpoint()
        assert await gateway.search.last([session]) == {}


async def test_without_histories_on_disk_there_is_no_index(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.until("zero", gateway.begin("a", "zero"), names=["a"])
    async with running(tmp_path, journal=False) as gateway:
        while await trio.to_thread.run_sync((tmp_path / "search.db").exists):
            await trio.lowlevel.checkpoint()
        with pytest.raises(UsageError, match="journal_storage"):
            await gateway.found("zero")


async def test_without_fts5_a_search_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_index(path: Path) -> index.SearchIndex:
        raise sqlite3.OperationalError("no such module: fts5")

    monkeypatch.setattr(service, "open_index", no_index)
    gateway = Gateway(tmp_path)
    with trio.fail_after(TIMEOUT):
        with pytest.raises(UsageError, match="has no FTS5"):
            await gateway.found("zero")


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_after_a_failure_of_the_disk_the_index_is_tried_again_and_a_damaged_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_damaged: bool
) -> None:
    async with running(tmp_path) as gateway:
        first = gateway.begin("a", "zero")
        await gateway.until("zero", first, names=["a"])
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT if is_damaged else sqlite3.SQLITE_IOERR
        add, failures = index.SearchIndex.add, [error, error]

        def fail(self: index.SearchIndex, *args: Any, **members: Any) -> index.Place:
            if failures:
                raise failures.pop()
            return add(self, *args, **members)

        monkeypatch.setattr(index.SearchIndex, "add", fail)
        removed: list[Path] = []

        def remove(path: Path) -> None:
            removed.append(path)
            index.remove_files(path)

        monkeypatch.setattr(service, "remove_files", remove)
        gateway.says(first, " one")
        second = gateway.begin("b", "zero")
        while failures or not gateway.search.is_complete:
            await trio.lowlevel.checkpoint()
        await gateway.until("one", first, names=["a"])
        await gateway.until("zero", first, second, names=["a", "b"])
        assert len(removed) == 2 * is_damaged
    (record,) = [record for record in caplog.records if "disk I/O error" in record.message]
    assert record.levelname == "WARNING"


async def test_after_a_bug_the_index_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add, failures = index.SearchIndex.add, [IndexError("out of range")]

    def fail(self: index.SearchIndex, *args: Any, **members: Any) -> index.Place:
        if failures:
            raise failures.pop()
        return add(self, *args, **members)

    monkeypatch.setattr(index.SearchIndex, "add", fail)
    async with running(tmp_path) as gateway:
        gateway.begin("a", "odd")
        while not caplog.records or gateway.search.problem is not None:
            await trio.lowlevel.checkpoint()
        await gateway.until("zero", gateway.begin("b", "zero"), names=["b"])
    (record,) = caplog.records
    assert "out of range" in record.message
    assert record.exc_info is not None


async def test_an_index_whose_damage_a_search_finds_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    removed: list[Path] = []

    def fail(*_: object) -> None:
        raise error

    def remove(path: Path) -> None:
        index.remove_files(path)
        removed.append(path)

    monkeypatch.setattr(service, "remove_files", remove)
    async with running(tmp_path) as gateway:
        session = gateway.begin("a", "zero")
        await gateway.until("zero", session, names=["a"])
        with monkeypatch.context() as damaged:
            damaged.setattr(index.SearchReader, "find", fail)
            with pytest.raises(Busy, match="is malformed"):
                await gateway.found("zero", session)
        while not removed or gateway.search.problem is not None:
            await trio.lowlevel.checkpoint()
        await gateway.until("zero", session, names=["a"])


async def test_a_session_that_is_removed_while_the_disk_fails_is_erased_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as gateway:
        session = gateway.begin("a", "zero")
        await gateway.until("zero", session, names=["a"])
        forget, failures = index.SearchIndex.forget, [sqlite3.OperationalError("disk I/O error")]

        def fail(self: index.SearchIndex, keys: Iterable[int]) -> None:
            if failures:
                raise failures.pop()
            forget(self, keys)
            forgotten.extend(keys)

        forgotten: list[int] = []
        monkeypatch.setattr(index.SearchIndex, "forget", fail)
        gateway.registry.remove(session)
        while not forgotten:
            await trio.lowlevel.checkpoint()
    opened = index.SearchIndex(tmp_path / "search.db")
    assert opened.places() == {}
    opened.close()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), "takes too long"),
        (sqlite3.DatabaseError("it is malformed"), "can't be read now: it is malformed"),
    ],
)
async def test_a_failed_search_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    async with running(tmp_path) as gateway:
        monkeypatch.setattr(index.SearchReader, "find", fail)
        with pytest.raises(Busy, match=text):
            await gateway.found("zero")
        with pytest.raises(UsageError, match="needs a word"):
            await gateway.found("?!")


async def test_beyond_history_limit_the_texts_of_sessions_not_used_lately_are_not_found_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = []
    async with running(tmp_path, history_limit=100_000) as gateway:
        sessions = []
        for number in range(60):
            text = " ".join(f"{number}x{word}" for word in range(400))
            sessions.append(gateway.begin(f"s{number}", f"common {text}", at=number))
            await gateway.until(f"{number}x399", *sessions, names=[f"s{number}"])
            sizes.append((tmp_path / "search.db").stat().st_size)
        found = await gateway.found("common", *sessions)
    assert found == [f"s{number}" for number in range(59, 59 - len(found), -1)]
    assert 1 < len(found) < 50
    assert max(sizes) < 300_000
    assert "history_limit: there is no room for the texts of 1 session, not used lately" in caplog.text
    # What was left out is not added at the start of the next process either, and what has changed since is.
    caplog.clear()
    async with running(tmp_path, history_limit=10) as gateway:
        again = {session.id: session for session in gateway.restored}
        while not gateway.search.is_complete or not caplog.text:
            await trio.lowlevel.checkpoint()
        assert f"no room for the texts of {60 - len(found)} sessions" in caplog.text
        assert await gateway.found("common", *again.values()) == found
