"""Signals, tasks that are spawned on demand, and the timer queue."""

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.transports.timers import MANY, Signal, TaskSpawner, TimerQueue

# Signals


async def test_a_signal_wakes_the_waiting_tasks_and_none_that_come_later() -> None:
    signal = Signal()
    signal.notify()
    woken: list[str] = []

    async def wait(name: str) -> None:
        await signal.wait()
        woken.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "ann")
        nursery.start_soon(wait, "bob")
        await wait_all_tasks_blocked()
        assert woken == []
        signal.notify()
        nursery.start_soon(wait, "late")
        await wait_all_tasks_blocked()
        assert sorted(woken) == ["ann", "bob"]
        nursery.cancel_scope.cancel()


async def test_a_signal_is_not_lost_when_one_of_two_waiting_tasks_is_cancelled() -> None:
    signal = Signal()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as impatient:
            impatient.cancel()
            await signal.wait()
        nursery.start_soon(signal.wait)
        await wait_all_tasks_blocked()
        signal.notify()


# `TaskSpawner`


class Job:
    """Work that comes in pieces."""

    def __init__(self) -> None:
        self.piles: dict[str, int] = {}
        self.done: list[str] = []
        self.may_go_on = Signal()
        self.running = 0

    async def work(self, pile: str = "") -> None:
        self.running += 1
        try:
            while self.piles.get(pile, 0):
                await self.may_go_on.wait()
                self.piles[pile] -= 1
                self.done.append(pile)
        finally:
            self.running -= 1


@asynccontextmanager
async def spawning() -> AsyncIterator[TaskSpawner]:
    async with trio.open_nursery() as nursery:
        spawner = TaskSpawner(nursery)
        yield spawner
        spawner.cancel()


async def test_a_running_call_finds_added_work_and_no_second_is_spawned() -> None:
    job = Job()
    async with spawning() as spawner:
        for _ in range(3):
            job.piles[""] = job.piles.get("", 0) + 1
            spawner.spawn(job.work)
        await wait_all_tasks_blocked()
        assert job.running == 1
        for _ in range(3):
            job.may_go_on.notify()
            await wait_all_tasks_blocked()
        assert (job.done, job.running) == ([""] * 3, 0)


async def test_spawn_starts_another_task_after_one_has_ended() -> None:
    job = Job()
    async with spawning() as spawner:
        for count in (1, 2):
            job.piles[""] = 1
            spawner.spawn(job.work)
            await wait_all_tasks_blocked()
            assert job.running == 1
            job.may_go_on.notify()
            await wait_all_tasks_blocked()
            assert (len(job.done), job.running) == (count, 0)


async def test_spawn_runs_calls_with_different_arguments_at_the_same_time() -> None:
    job = Job()
    job.piles = {"in": 1, "out": 1}
    async with spawning() as spawner:
        for pile in ("in", "out", "in"):
            spawner.spawn(job.work, pile)
        await wait_all_tasks_blocked()
        assert job.running == 2


async def test_cancel_stops_the_tasks_of_a_spawner_and_it_starts_no_more() -> None:
    job = Job()
    job.piles[""] = 1
    async with spawning() as spawner:
        spawner.spawn(job.work)
        await wait_all_tasks_blocked()
        spawner.cancel()
        spawner.cancel()
        spawner.spawn(job.work)
    assert (job.done, job.running) == ([], 0)


async def test_an_error_of_a_spawned_task_is_raised_in_its_nursery() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bug")):
        async with spawning() as spawner:
            spawner.spawn(fail)
            await trio.sleep_forever()


# `TimerQueue`


class Recorder:
    """When something was called, and what it answered."""

    def __init__(self, *pauses: float) -> None:
        self.times: list[float] = []
        self._pauses = list(pauses)

    def tick(self, now: float) -> float:
        assert now == trio.current_time()
        self.times.append(now)
        return now + self._pauses.pop(0) if self._pauses else inf


@asynccontextmanager
async def scheduling() -> AsyncIterator[tuple[TimerQueue, TaskSpawner]]:
    async with trio.open_nursery() as nursery, spawning() as spawner:
        queue = TimerQueue()
        nursery.start_soon(queue.run)
        yield queue, spawner
        nursery.cancel_scope.cancel()


async def test_schedule_calls_a_timer_at_once_and_then_whenever_it_returns(autojump_clock: MockClock) -> None:
    async with scheduling() as (queue, spawner):
        recorder = Recorder(3, 0.5, 10)
        queue.schedule(recorder.tick, spawner)
        assert recorder.times == [0]
        await trio.sleep(100)
        assert recorder.times == [0, 3, 3.5, 13.5]


async def test_schedule_drops_a_timer_that_is_never_due(autojump_clock: MockClock) -> None:
    async with scheduling() as (queue, spawner):
        recorder = Recorder()
        queue.schedule(recorder.tick, spawner)
        await trio.sleep(100)
        assert recorder.times == [0]
        assert spawner.timers == ()


async def test_schedule_keeps_no_timer_of_a_cancelled_spawner(autojump_clock: MockClock) -> None:
    async with scheduling() as (queue, _):
        recorder = Recorder(3, 3)
        async with spawning() as spawner:
            spawner.cancel()
            queue.schedule(recorder.tick, spawner)
        await trio.sleep(100)
        assert recorder.times == [0]


async def test_schedule_takes_a_timer_that_is_due_before_the_others(autojump_clock: MockClock) -> None:
    async with scheduling() as (queue, spawner):
        slow, quick = Recorder(30, 30, 30), Recorder(*[7] * 100)
        queue.schedule(slow.tick, spawner)
        await trio.sleep(1)
        queue.schedule(quick.tick, spawner)
        await trio.sleep(60)
        assert slow.times == [0, 30, 60]
        assert quick.times == [1, 8, 15, 22, 29, 36, 43, 50, 57]


async def test_timers_due_at_the_same_time_run_in_the_order_of_schedule(autojump_clock: MockClock) -> None:
    order: list[str] = []
    async with scheduling() as (queue, spawner):
        for name in ("first", "second", "third"):

            def tick(now: float, name: str = name) -> float:
                order.append(name)
                return now + 5

            queue.schedule(tick, spawner)
        await trio.sleep(11)
    assert order == ["first", "second", "third"] * 3


async def test_a_timer_ends_with_its_spawner_and_frees_its_callback(autojump_clock: MockClock) -> None:
    async with scheduling() as (queue, _):
        recorder = Recorder(*[10] * 10)
        async with spawning() as spawner:
            queue.schedule(recorder.tick, spawner)
            await trio.sleep(25)
        gone = weakref.ref(recorder)
        assert recorder.times == [0, 10, 20]
        times = recorder.times
        del recorder, spawner
        gc.collect()
        assert gone() is None
        await trio.sleep(100)
        assert times == [0, 10, 20]


async def test_an_error_of_a_timer_is_raised_in_its_nursery_and_other_timers_go_on(autojump_clock: MockClock) -> None:
    def fail(now: float) -> float:
        if now > 0:
            raise ValueError("a bug")
        return 5

    async with scheduling() as (queue, spawner):
        recorder = Recorder(*[3] * 10)
        queue.schedule(recorder.tick, spawner)
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bug")):
            async with spawning() as others:
                queue.schedule(fail, others)
                await trio.sleep_forever()
        assert trio.current_time() == 5
        await trio.sleep(5)
        assert recorder.times == [0, 3, 6, 9]


async def test_cancelled_timers_are_removed_before_they_would_be_due(autojump_clock: MockClock) -> None:
    queue = TimerQueue()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run)
        for _ in range(20 * MANY):
            async with trio.open_nursery() as connection:
                spawner = TaskSpawner(connection)
                queue.schedule(lambda now: now + 3600, spawner)
                spawner.cancel()
        nursery.cancel_scope.cancel()
    assert len(queue._timers) <= MANY


async def test_a_timer_that_is_always_due_leaves_other_tasks_their_turn() -> None:
    queue = TimerQueue()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run)
        queue.schedule(lambda now: now, TaskSpawner(nursery))
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
