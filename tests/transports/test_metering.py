"""Charging a peer for what it sends."""

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.transports.maintained import Meter, free
from acp_gateway.transports.streams import Flooded
from tests.transports.wires import Charged


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
