"""The methods that follow from the five verbs of a message stream, and any Trio stream as a stream of bytes."""

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from acp_gateway.transports.streams import CloseReason, MessageStream, TrioBytes, is_utf8


class FiveVerbs(MessageStream):
    """A stream of two batches, with the five verbs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = [[b"1", b"2", b"3"], [b"4"]]
        self.sent: list[bytes] = []
        self.drained = 0
        self.cancelled_while_closing = False

    async def _receive_batch(self) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        if not self.batches:
            raise trio.EndOfChannel
        return self.batches.pop(0)

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        self.sent += messages

    @property
    def pending_bytes(self) -> int:
        return 0

    async def drain(self, below: int = 0) -> None:
        self.drained += 1

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self.cancelled_while_closing = True
            raise


async def test_receive_leaves_the_rest_of_its_batch_to_receive_batch() -> None:
    stream = FiveVerbs()
    assert await stream.receive() == b"1"
    assert await stream.receive() == b"2"
    assert await stream.receive_batch() == [b"3"]
    assert await stream.receive_batch() == [b"4"]


async def test_iteration_yields_batches_until_the_end() -> None:
    assert [batch async for batch in FiveVerbs()] == [[b"1", b"2", b"3"], [b"4"]]


async def test_send_and_send_batch_wait_until_the_messages_are_written() -> None:
    stream = FiveVerbs()
    await stream.send(b"a")
    await stream.send_batch([b"b", b"c"])
    assert (stream.sent, stream.drained) == ([b"a", b"b", b"c"], 2)


async def test_abort_closes_without_waiting() -> None:
    stream = FiveVerbs()
    await stream.abort()
    assert stream.cancelled_while_closing


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
