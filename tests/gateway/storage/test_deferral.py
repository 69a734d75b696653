"""Deferred histories: what is told to the storage, and when."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from acp_gateway.gateway.storage.archive import MUCH, Deferral

DELAY = 5.0


class Histories:
    """Notes what is to be written, as it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def append(self, key: int, message: bytes, state: str | None = None, time: int | None = None) -> None:
        self.told.append((key, message, state, time))

    def extend(self, key: int, messages: Sequence[bytes], time: int | None = None) -> None:
        self.told.append((key, list(messages), time))

    def renew(self, key: int) -> None:
        self.told.append(f"renew {key}")


class Pause:
    """In place of sleeping: waits for the test."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._over = trio.Semaphore(0)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await self._over.acquire()

    async def end(self) -> None:
        """The time has passed."""
        self._over.release()
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def histories() -> Histories:
    return Histories()


@asynccontextmanager
async def running(deferral: Deferral) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deferral.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


def test_what_has_grown_is_written_once_in_order_with_kinds_and_times(histories: Histories) -> None:
    deferral = Deferral(histories, DELAY)
    deferral.add(1, [b"a", b"b"], None, 7)
    deferral.add(2, [b"other"], None, None)
    deferral.add(1, [b"c"], "mode", 8)
    assert histories.told == []
    deferral.write(1)
    assert histories.told == [(1, [b"a", b"b"], 7), (1, b"c", "mode", 8)]
    deferral.write(1)
    deferral.write(3)
    assert len(histories.told) == 2


def test_what_has_grown_by_much_is_written_from_memory(histories: Histories) -> None:
    deferral = Deferral(histories, DELAY)
    deferral.add(1, [b"x" * MUCH], None, None)
    deferral.add(2, [b"x" * MUCH], None, None)
    deferral.add(2, [b"y"], "mode", None)
    deferral.add(2, [b"z"], None, None)
    # Nothing is held of that any more.
    assert deferral._grown[2].parts == []
    deferral.write(1)
    deferral.write(2)
    assert histories.told == [(1, [b"x" * MUCH], None), "renew 2"]


def test_a_history_that_is_erased_or_replaced_is_not_written(histories: Histories) -> None:
    deferral = Deferral(histories, DELAY)
    deferral.add(1, [b"a"], None, None)
    deferral.discard(1)
    deferral.discard(2)
    deferral.write(1)
    assert histories.told == []


async def test_what_waits_is_written_after_the_delay(histories: Histories) -> None:
    pause = Pause()
    deferral = Deferral(histories, DELAY, pause)
    async with running(deferral):
        assert pause.seconds == []
        deferral.add(1, [b"a"], None, None)
        await trio.testing.wait_all_tasks_blocked()
        deferral.add(1, [b"b"], None, None)
        deferral.add(2, [b"c"], None, None)
        assert (pause.seconds, histories.told) == ([DELAY], [])
        await pause.end()
        assert histories.told == [(1, [b"a"], None), (1, [b"b"], None), (2, [b"c"], None)]
        # Nothing has changed since, so that nothing is to be waited for.
        assert pause.seconds == [DELAY]
        deferral.add(1, [b"d"], None, None)
        await trio.testing.wait_all_tasks_blocked()
        await pause.end()
        assert histories.told[3:] == [(1, [b"d"], None)]
        assert pause.seconds == [DELAY, DELAY]


async def test_a_change_after_an_earlier_write_waits_for_the_delay_at_most(histories: Histories) -> None:
    pause = Pause()
    deferral = Deferral(histories, DELAY, pause)
    async with running(deferral):
        deferral.add(1, [b"a"], None, None)
        await trio.testing.wait_all_tasks_blocked()
        deferral.write(1)
        deferral.add(1, [b"b"], None, None)
        await pause.end()
        assert histories.told == [(1, [b"a"], None), (1, [b"b"], None)]
