"""The stream of messages in memory, and any Trio stream as a stream of bytes."""

import pytest
import trio
import trio.testing

from acp_gateway.transports.streams import CloseReason, TrioBytes, is_utf8, memory_message_stream_pair


async def test_what_the_other_end_has_not_received_is_pending_in_memory() -> None:
    here, there = memory_message_stream_pair()
    here.send_nowait([b"123", b"45"])
    assert here.pending_bytes == 5
    assert there.pending_bytes == 0
    await there.receive()
    assert here.pending_bytes == 0


async def test_what_was_sent_in_memory_before_the_end_is_received() -> None:
    here, there = memory_message_stream_pair()
    here.send_nowait([b"1"])
    await here.aclose(CloseReason.GOING_AWAY, "bye")
    assert await there.receive_batch() == [b"1"]
    with pytest.raises(trio.EndOfChannel):
        await there.receive_batch()


async def test_a_stream_in_memory_tells_why_it_was_closed_first() -> None:
    here, _ = memory_message_stream_pair()
    await here.aclose(CloseReason.AGENT_GONE)
    await here.aclose(CloseReason.NORMAL)
    assert getattr(here, "close_reason") is CloseReason.AGENT_GONE  # noqa: B009 - what tests look at is no API.


async def test_run_in_memory_ends_with_the_peer() -> None:
    here, there = memory_message_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)
        await trio.testing.wait_all_tasks_blocked()
        await there.aclose()


async def test_a_trio_stream_is_half_closed_where_it_can_be() -> None:
    here, there = trio.testing.memory_stream_pair()
    stream = TrioBytes(here)
    await stream.send_eof()
    assert await TrioBytes(there).receive_some() == b""
    await there.send_all(b"still here")
    assert await stream.receive_some() == b"still here"


class OneWayOpen(trio.abc.Stream):
    """A stream that can't be half-closed."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_a_trio_stream_that_can_not_be_half_closed_ends_with_its_closing() -> None:
    here, there = trio.testing.memory_stream_pair()
    stream = TrioBytes(OneWayOpen(here))
    await stream.finish()
    assert await stream.send_some(memoryview(b"goes on")) == 7
    assert await there.receive_some() == b"goes on"
    await stream.aclose()
    assert await there.receive_some() == b""


async def test_a_trio_stream_writes_nothing_that_is_not_waited_for() -> None:
    here, _ = trio.testing.memory_stream_pair()
    stream = TrioBytes(here)
    assert stream.send_nowait(memoryview(b"data")) == 0
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        stream.send_nowait(memoryview(b"data"))


async def test_a_trio_stream_whose_write_was_cancelled_in_the_middle_is_broken() -> None:
    # Trio doesn't tell how much has left; what would be written next could land in the middle of a message.
    here, there = trio.testing.lockstep_stream_pair()
    stream = TrioBytes(here)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_some, memoryview(b"0123456789"))
        assert await there.receive_some(5) == b"01234"
        nursery.cancel_scope.cancel()
    with pytest.raises(trio.BrokenResourceError, match="cancelled in the middle"):
        await stream.send_some(memoryview(b"0123456789"))


async def test_a_trio_stream_whose_write_was_cancelled_before_it_began_is_whole() -> None:
    here, there = trio.testing.memory_stream_pair()
    stream = TrioBytes(here)
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.send_some(memoryview(b"data"))
    assert scope.cancelled_caught
    assert await stream.send_some(memoryview(b"data")) == 4
    assert await there.receive_some() == b"data"


@pytest.mark.parametrize("message", [b"", b"ascii", "é\u2028😀".encode()])
def test_text_is_utf8(message: bytes) -> None:
    assert is_utf8(message)


@pytest.mark.parametrize("message", [b"\xff", b"\xed\xa0\xbd", "😀".encode()[:-1]])
def test_other_bytes_are_not_utf8(message: bytes) -> None:
    assert not is_utf8(message)
