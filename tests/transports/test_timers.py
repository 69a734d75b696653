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


async def test_a_signal_is_not_lost_with_one_of_two_who_wait() -> None:
    signal = Signal()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as impatient:
            impatient.cancel()
            await signal.wait()
        nursery.start_soon(signal.wait)
        await wait_all_tasks_blocked()
        signal.notify()


# Helpers


class Desk:
    """Work that comes in pieces."""

    def __init__(self) -> None:
        self.piles: dict[str, int] = {}
        self.done: list[str] = []
        self.may_go_on = Signal()
        self.helping = 0

    async def work(self, pile: str = "") -> None:
        self.helping += 1
        try:
            while self.piles.get(pile, 0):
                await self.may_go_on.wait()
                self.piles[pile] -= 1
                self.done.append(pile)
        finally:
            self.helping -= 1


@asynccontextmanager
async def helped() -> AsyncIterator[TaskSpawner]:
    async with trio.open_nursery() as nursery:
        helpers = TaskSpawner(nursery)
        yield helpers
        helpers.dismiss()


async def test_a_running_call_finds_added_work_and_no_second_is_spawned() -> None:
    desk = Desk()
    async with helped() as helpers:
        for _ in range(3):
            desk.piles[""] = desk.piles.get("", 0) + 1
            helpers.call(desk.work)
        await wait_all_tasks_blocked()
        assert desk.helping == 1
        for _ in range(3):
            desk.may_go_on.notify()
            await wait_all_tasks_blocked()
        assert (desk.done, desk.helping) == ([""] * 3, 0)


async def test_a_helper_that_has_gone_is_followed_by_another() -> None:
    desk = Desk()
    async with helped() as helpers:
        for count in (1, 2):
            desk.piles[""] = 1
            helpers.call(desk.work)
            await wait_all_tasks_blocked()
            assert desk.helping == 1
            desk.may_go_on.notify()
            await wait_all_tasks_blocked()
            assert (len(desk.done), desk.helping) == (count, 0)


async def test_different_work_is_done_at_the_same_time() -> None:
    desk = Desk()
    desk.piles = {"in": 1, "out": 1}
    async with helped() as helpers:
        for pile in ("in", "out", "in"):
            helpers.call(desk.work, pile)
        await wait_all_tasks_blocked()
        assert desk.helping == 2


async def test_those_who_are_dismissed_stop_and_start_no_more() -> None:
    desk = Desk()
    desk.piles[""] = 1
    async with helped() as helpers:
        helpers.call(desk.work)
        await wait_all_tasks_blocked()
        helpers.dismiss()
        helpers.dismiss()
        helpers.call(desk.work)
    assert (desk.done, desk.helping) == ([], 0)


async def test_what_goes_wrong_at_work_shows_where_the_helpers_are_from() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bug")):
        async with helped() as helpers:
            helpers.call(fail)
            await trio.sleep_forever()


# The timekeeper


class Diary:
    """When something was called, and what it answered."""

    def __init__(self, *pauses: float) -> None:
        self.times: list[float] = []
        self._pauses = list(pauses)

    def beat(self, now: float) -> float:
        assert now == trio.current_time()
        self.times.append(now)
        return now + self._pauses.pop(0) if self._pauses else inf


@asynccontextmanager
async def kept() -> AsyncIterator[tuple[TimerQueue, TaskSpawner]]:
    async with trio.open_nursery() as nursery, helped() as helpers:
        timekeeper = TimerQueue()
        nursery.start_soon(timekeeper.run)
        yield timekeeper, helpers
        nursery.cancel_scope.cancel()


async def test_something_is_done_at_once_and_then_whenever_it_says(autojump_clock: MockClock) -> None:
    async with kept() as (timekeeper, helpers):
        diary = Diary(3, 0.5, 10)
        timekeeper.keep(diary.beat, helpers)
        assert diary.times == [0]
        await trio.sleep(100)
        assert diary.times == [0, 3, 3.5, 13.5]


async def test_what_is_due_never_is_not_kept(autojump_clock: MockClock) -> None:
    async with kept() as (timekeeper, helpers):
        diary = Diary()
        timekeeper.keep(diary.beat, helpers)
        await trio.sleep(100)
        assert diary.times == [0]
        assert helpers.appointments == ()


async def test_nothing_is_kept_with_those_who_were_dismissed(autojump_clock: MockClock) -> None:
    async with kept() as (timekeeper, _):
        diary = Diary(3, 3)
        async with helped() as helpers:
            helpers.dismiss()
            timekeeper.keep(diary.beat, helpers)
        await trio.sleep(100)
        assert diary.times == [0]


async def test_each_has_its_own_time_also_where_one_comes_that_is_due_before_the_others(
    autojump_clock: MockClock,
) -> None:
    async with kept() as (timekeeper, helpers):
        slow, quick = Diary(30, 30, 30), Diary(*[7] * 100)
        timekeeper.keep(slow.beat, helpers)
        await trio.sleep(1)
        timekeeper.keep(quick.beat, helpers)
        await trio.sleep(60)
        assert slow.times == [0, 30, 60]
        assert quick.times == [1, 8, 15, 22, 29, 36, 43, 50, 57]


async def test_two_that_are_due_at_once_go_in_the_order_in_which_they_came(autojump_clock: MockClock) -> None:
    order: list[str] = []
    async with kept() as (timekeeper, helpers):
        for name in ("first", "second", "third"):

            def beat(now: float, name: str = name) -> float:
                order.append(name)
                return now + 5

            timekeeper.keep(beat, helpers)
        await trio.sleep(11)
    assert order == ["first", "second", "third"] * 3


async def test_with_its_helpers_an_appointment_ends_and_what_it_was_about_is_let_go(autojump_clock: MockClock) -> None:
    async with kept() as (timekeeper, _):
        diary = Diary(*[10] * 10)
        async with helped() as helpers:
            timekeeper.keep(diary.beat, helpers)
            await trio.sleep(25)
        gone = weakref.ref(diary)
        assert diary.times == [0, 10, 20]
        times = diary.times
        del diary, helpers
        gc.collect()
        assert gone() is None
        await trio.sleep(100)
        assert times == [0, 10, 20]


async def test_what_goes_wrong_shows_where_its_helpers_are_from_and_the_others_go_on(
    autojump_clock: MockClock,
) -> None:
    def fail(now: float) -> float:
        if now > 0:
            raise ValueError("a bug")
        return 5

    async with kept() as (timekeeper, helpers):
        diary = Diary(*[3] * 10)
        timekeeper.keep(diary.beat, helpers)
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bug")):
            async with helped() as others:
                timekeeper.keep(fail, others)
                await trio.sleep_forever()
        assert trio.current_time() == 5
        await trio.sleep(5)
        assert diary.times == [0, 3, 6, 9]


async def test_what_was_cancelled_does_not_pile_up_until_it_would_have_been_due(autojump_clock: MockClock) -> None:
    keeper = TimerQueue()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        for _ in range(20 * MANY):
            async with trio.open_nursery() as connection:
                helpers = TaskSpawner(connection)
                keeper.keep(lambda now: now + 3600, helpers)
                helpers.dismiss()
        nursery.cancel_scope.cancel()
    assert len(keeper._appointments) <= MANY


async def test_what_is_always_due_leaves_others_their_turn() -> None:
    keeper = TimerQueue()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        keeper.keep(lambda now: now, TaskSpawner(nursery))
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
