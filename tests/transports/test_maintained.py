"""Defaults of a maintained stream, for transports that can do no more."""

from collections.abc import Sequence
from math import inf

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from acp_gateway.transports.maintained import MaintainedStream, Meter, free
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason, Flooded
from acp_gateway.transports.timers import TaskSpawner
from tests.kit.wires import Charged


class Plain(MaintainedStream):
    """A stream that overrides no more than it must."""

    async def _receive_batch(self) -> list[bytes]:
        raise trio.EndOfChannel

    def send_nowait(self, messages: Sequence[bytes]) -> None: ...

    @property
    def pending_bytes(self) -> int:
        return 0

    async def drain(self, below: int = 0) -> None: ...
    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None: ...
    async def run(self) -> None: ...
    def use_spawner(self, spawner: TaskSpawner | None) -> None: ...


def test_no_message_is_unfinished_where_messages_come_whole() -> None:
    stream = Plain()
    stream.abandon()
    assert (stream.unfinished_bytes, stream.begun(10)) == (0, b"")


def test_a_stream_is_unlimited_and_free_at_first() -> None:
    stream = Plain()
    stream.limit(1, "max_message_size")
    assert stream.message_timeout == inf
    assert stream.meter.charge is None
    assert stream.accepts_unterminated_line


# The meter


def test_take_returns_what_was_counted_once() -> None:
    meter = Meter()
    meter.size += 7
    meter.frames += 2
    assert meter.take() == (7, 2)
    assert meter.take() == (0, 0)


async def test_pay_charges_what_was_counted_and_waits_as_long_as_the_charge_says(autojump_clock: MockClock) -> None:
    meter = Meter()
    meter.charge = charged = Charged(pause=10.0)
    meter.size, meter.frames = 7, 2
    await meter.pay()
    assert (charged.size, charged.frames) == (7, 2)
    assert trio.current_time() == 10
    await meter.pay()
    assert (charged.size, charged.frames) == (7, 2)


async def test_pay_charges_for_time_of_the_event_loop() -> None:
    meter = Meter()
    meter.charge = charged = Charged()
    await meter.pay(0.5)
    assert (charged.size, charged.frames, charged.seconds) == (0, 0, 0.5)


async def test_pay_raises_what_the_charge_raises() -> None:
    def flooded(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        raise Flooded("too much")

    meter = Meter()
    meter.charge = flooded
    with pytest.raises(Flooded, match="too much"):
        await meter.pay()


async def test_pay_without_a_charge_forgets_what_was_counted() -> None:
    meter = Meter()
    meter.size = meter.frames = 5
    await meter.pay()
    assert meter.take() == (0, 0)


def test_free_charges_nothing() -> None:
    assert free(messages=1, size=10**9, seconds=60.0, frames=100) == 0


# Streams in memory


async def test_pending_bytes_in_memory_are_those_that_the_peer_has_not_received() -> None:
    here, there = memory_message_stream_pair()
    here.send_nowait([b"123", b"45"])
    assert here.pending_bytes == 5
    assert there.pending_bytes == 0
    await there.receive()
    assert here.pending_bytes == 0


async def test_messages_sent_before_aclose_are_received_in_memory() -> None:
    here, there = memory_message_stream_pair()
    here.send_nowait([b"1"])
    await here.aclose(CloseReason.GOING_AWAY, "bye")
    assert await there.receive_batch() == [b"1"]
    with pytest.raises(trio.EndOfChannel):
        await there.receive_batch()


async def test_a_stream_in_memory_keeps_its_first_close_reason() -> None:
    here, _ = memory_message_stream_pair()
    await here.aclose(CloseReason.AGENT_GONE)
    await here.aclose(CloseReason.NORMAL)
    assert getattr(here, "close_reason") is CloseReason.AGENT_GONE  # noqa: B009 - what tests look at is not an API.


async def test_run_in_memory_ends_with_the_peer() -> None:
    here, there = memory_message_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)
        await trio.testing.wait_all_tasks_blocked()
        await there.aclose()


async def test_received_bytes_are_metered_in_memory() -> None:
    here, there = memory_message_stream_pair()
    here.send_nowait([b"123", b"45"])
    await there.receive_batch()
    assert there.meter.take() == (5, 0)
