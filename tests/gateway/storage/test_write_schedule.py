"""The waiting of the task that writes: what ends it, and when."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.gateway.storage.write_schedule import GATHERING, MAX_GATHERING, WriteDelay, WriteSchedule

LIMIT = 1000


@pytest.fixture
def schedule() -> WriteSchedule:
    return WriteSchedule(WriteDelay(max_age=0.5, max_bytes=LIMIT), trio.sleep)


async def test_the_writing_task_sleeps_until_a_change_is_queued(
    schedule: WriteSchedule, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(schedule.sleep)
        await trio.sleep(3600)
        assert len(nursery.child_tasks) == 1
        schedule.queued(1)
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_the_writing_task_gathers_changes_for_the_usual_time(
    schedule: WriteSchedule, autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    await schedule.gather(1)
    assert trio.current_time() - began == pytest.approx(GATHERING)


async def test_after_a_batch_that_took_long_the_writing_task_gathers_for_longer(
    schedule: WriteSchedule, autojump_clock: MockClock
) -> None:
    with schedule.working():
        await trio.sleep(0.2)
    began = trio.current_time()
    await schedule.gather(1)
    assert GATHERING < trio.current_time() - began <= MAX_GATHERING


@pytest.mark.parametrize(
    "end", [lambda schedule: schedule.queued(LIMIT), WriteSchedule.hurry], ids=["write_behind_limit", "hurry"]
)
async def test_gathering_ends_at_write_behind_limit_and_when_it_is_urgent(
    schedule: WriteSchedule, mock_clock: MockClock, end: Callable[[WriteSchedule], None]
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(schedule.gather, 1)
        await wait_all_tasks_blocked()
        schedule.queued(LIMIT - 1)
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        end(schedule)
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_a_rest_after_a_failed_write_ends_when_it_is_urgent_only(
    schedule: WriteSchedule, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(schedule.rest, 10)
        await wait_all_tasks_blocked()
        schedule.queued(LIMIT)
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        schedule.hurry()
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks
