"""The pair of streams in memory."""

import pytest
import trio
import trio.testing

from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason


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
