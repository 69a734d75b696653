"""Writing: a batch as a whole or not at all, and the thread: results, errors, cancelling, its priority and its end."""

import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.histories import HistoryTables
from acp_gateway.gateway.storage.records import StoredRun, TokenUse
from acp_gateway.gateway.storage.write_queue import WriteBatch
from acp_gateway.gateway.storage.writer import NICE, WorkerThread, write
from tests.gateway.storage.stores import LIMIT, SESSION, journal
from tests.kit.doubles import TIMEOUT


def test_a_batch_that_fails_leaves_nothing_and_one_that_is_written_lets_go_of_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def divide(*args: object) -> None:
        raise ZeroDivisionError

    database = Database(tmp_path / "sessions.db", LIMIT)
    later = journal(position=5001, runs=[StoredRun([b"two"] * 5000)])
    batch = WriteBatch({1: SESSION}, {"0a": TokenUse(1.0)}, {1}, {1: [journal(b"one"), later]})
    with monkeypatch.context() as patch:
        patch.setattr(HistoryTables, "_note_extent", divide)
        with pytest.raises(ZeroDivisionError):
            write(database, batch)
    assert (database.sessions(), database.token_uses()) == ([], {})
    assert write(database, batch) == set()
    assert database.histories.read(1) == journal(b"one", *[b"two"] * 5000)
    assert database.token_uses() == {"0a": TokenUse(1.0)}
    assert [run.messages for part in batch.histories[1] for run in part.runs] == [[], []]
    database.close()


@pytest.fixture
async def thread() -> AsyncIterator[WorkerThread]:
    thread = WorkerThread("of a test")
    yield thread
    thread.end()


async def test_a_call_returns_what_the_function_returns_or_raises(thread: WorkerThread) -> None:
    assert await thread.call(max, 3, 7) == 7
    with pytest.raises(ZeroDivisionError):
        await thread.call(divmod, 1, 0)
    assert await thread.call(threading.current_thread) is not threading.main_thread()


async def test_all_calls_run_in_the_same_thread_one_after_the_other(thread: WorkerThread) -> None:
    began: list[tuple[int, int]] = []

    def note(number: int) -> None:
        began.append((number, threading.get_ident()))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(thread.call, note, number)
    assert sorted(number for number, _ in began) == list(range(20))
    assert len({ident for _, ident in began}) == 1


async def test_a_cancelled_call_is_abandoned_and_keeps_others_out_until_it_returns(thread: WorkerThread) -> None:
    began, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()
    done: list[str] = []

    def hang() -> None:
        token.run_sync_soon(began.set)
        go_on.wait(TIMEOUT)
        done.append("abandoned")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.call, hang)
        await began.wait()
        nursery.cancel_scope.cancel()
    assert thread.limiter.borrowed_tokens == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.call, done.append, "next")
        await trio.testing.wait_all_tasks_blocked()
        assert not done
        go_on.set()
    assert done == ["abandoned", "next"]


async def test_a_cancelled_wait_for_an_earlier_call_begins_nothing(thread: WorkerThread) -> None:
    done: list[str] = []
    async with thread.limiter, trio.open_nursery() as nursery:
        nursery.start_soon(thread.call, done.append, "never")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await thread.call(done.append, "next")
    assert done == ["next"]


def test_a_result_that_comes_after_the_end_of_trio_is_dropped() -> None:
    thread = WorkerThread("of a test")
    go_on, done = threading.Event(), threading.Event()

    def hang() -> None:
        go_on.wait(TIMEOUT)

    async def abandon() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.call, hang)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    async def next_call() -> None:
        thread.limiter = trio.CapacityLimiter(1)
        await thread.call(done.set)

    trio.run(abandon)
    go_on.set()
    trio.run(next_call)
    assert done.is_set()
    thread.end()


async def test_a_thread_keeps_nothing_of_a_call_that_has_ended(thread: WorkerThread) -> None:
    batch = {"large"}
    held = weakref.ref(batch)
    await thread.call(len, batch)
    del batch
    with trio.fail_after(TIMEOUT):
        while held() is not None:
            await trio.lowlevel.checkpoint()


async def test_a_thread_that_has_ended_begins_again(thread: WorkerThread) -> None:
    first = await thread.call(threading.current_thread)
    thread.end()
    await trio.to_thread.run_sync(first.join, TIMEOUT)
    assert not first.is_alive()
    assert await thread.call(threading.current_thread) is not first


async def test_an_urgent_call_waits_for_an_earlier_one_and_runs_in_another_thread(thread: WorkerThread) -> None:
    done: list[str] = []
    async with trio.open_nursery() as nursery, thread.limiter:
        nursery.start_soon(thread.call_urgently, done.append, "urgent")
        await trio.testing.wait_all_tasks_blocked()
        assert not done
    assert done == ["urgent"]
    usual = await thread.call(threading.current_thread)
    assert await thread.call_urgently(threading.current_thread) is not usual


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has the priority of its process")
async def test_the_kernel_prefers_other_threads(thread: WorkerThread) -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert await thread.call(niceness) == min(niceness() + NICE, 19)


async def test_a_priority_that_cannot_be_changed_stops_nothing(
    thread: WorkerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_increment: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "nice", refuse)
    assert await thread.call(max, 3, 7) == 7
