"""Copies bytes between two connections, both ways, until one of them ends.

A side that takes nothing stops the other: at most what one read brings is kept for each direction.
"""

from collections.abc import Callable
from typing import Final

import trio

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.streams import ByteStream, Stalled
from acp_gateway.transports.websocket.frames import FrameEnds

Charge = Callable[[int], float]
"""Charges a peer for so many bytes, and returns the seconds for which it is not to be read. Raises `Flooded`."""


class ToClient:
    """The frames of the node that the client was sent."""

    def __init__(self, sent: bytes) -> None:
        self._ends = FrameEnds()
        self._ends.add(sent)
        self._writing = False

    async def write(self, stream: ByteStream, data: bytes, stall_timeout: float) -> None:
        """Write all bytes, as `write`."""
        self._writing = True
        await write(stream, data, stall_timeout)
        self._ends.add(data)
        self._writing = False

    @property
    def at_end(self) -> bool:
        """True if another frame may follow."""
        return not self._writing and self._ends.at_end


async def pipe(
    client: ByteStream, node: ByteStream, stall_timeout: float, charge: Charge, sent: ToClient | None = None
) -> None:
    """Copy until a side ends, and let the other one end in a bounded time. The caller closes both.

    Args:
        client: the connection whose peer is charged for what it sends.
        node: the other one.
        stall_timeout: seconds after which a side that takes no byte is given up.
        charge: charges the client.
        sent: is told of what the client was sent; finding the ends of small frames takes longer than copying them.

    Raises what the streams raise, and `Stalled`. Cancelling may lose bytes.
    """
    ends: list[ByteStream | trio.BrokenResourceError | trio.ClosedResourceError] = []
    async with trio.open_nursery() as nursery:

        async def copy(source: ByteStream, sink: ByteStream) -> None:
            try:
                while data := await source.receive_some():
                    if sink is node and (pause := charge(len(data))):
                        await trio.sleep(pause)
                    if sink is node or sent is None:
                        await write(sink, data, stall_timeout)
                    else:
                        await sent.write(sink, data, stall_timeout)
                ends.append(sink)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                ends.append(error)
            nursery.cancel_scope.cancel()

        nursery.start_soon(copy, client, node)
        nursery.start_soon(copy, node, client)
    first = ends[0]
    if isinstance(first, Exception):
        raise first
    with trio.move_on_after(CLOSE_TIMEOUT):
        await first.finish()


async def write(stream: ByteStream, data: bytes, stall_timeout: float) -> None:
    """Write all bytes; raise `Stalled` if none is taken for so many seconds."""
    view: Final = memoryview(data)
    sent = stream.send_nowait(view)
    while sent < len(view):
        with trio.move_on_after(stall_timeout) as waiting:
            sent += await stream.send_some(view[sent:])
        if waiting.cancelled_caught:
            raise Stalled(f"nothing was taken for {stall_timeout:g} s")
