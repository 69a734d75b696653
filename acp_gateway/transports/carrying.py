"""Carries bytes between a tunnel and another stream, both ways, with one read on its way in each direction at most."""

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.streams import ByteStream, Flooded
from acp_gateway.transports.websocket.tunnel import Tunnel

LOOK_INTERVAL: Final = 20.0
"""Seconds in which a side takes nothing after which the system is asked whether the other one is there still."""

LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


async def carry(
    tunnel: ByteStream,
    way: ByteStream,
    stall_timeout: float,
    lost: str,
    charge: Callable[[int], float] | None = None,
) -> str:
    """Copy bytes both ways until both sides have ended; return why they did not: empty if they did.

    At most one read is on its way in each direction, so a side that takes nothing stops the other; it is given up after
    `stall_timeout` seconds. `lost` is the reason if it is the other stream that was lost. A tunnel is charged for;
    of another stream, `charge` takes the bytes of each read and returns the seconds to pause.
    """
    whys: list[str] = []
    ended: list[ByteStream] = []

    def is_gone(source: ByteStream) -> bool:
        """Return whether a stream that is not read has lost its peer, as far as the system tells.

        A client ends its side within the tunnel, and leaves that open until it has the answer; a program may close its
        side and read on. The system has lost a connection also when both sides have ended in order.
        """
        path = source.path
        if path is None or (source is way and way in ended):
            return False
        return path.lost or (source is tunnel and path.ended)

    def fail(stream: ByteStream, error: Exception) -> None:
        whys.append(lost if stream is way else str(error) or "closed")
        nursery.cancel_scope.cancel()

    async def copy(source: ByteStream, sink: ByteStream, pause: Callable[[int], float]) -> None:
        while True:
            try:
                data = await source.receive_some()
            except (*LOST, Flooded) as error:
                return fail(source, error)
            if seconds := pause(len(data)):
                await trio.sleep(seconds)
            try:
                rest = memoryview(data)
                rest = rest[sink.send_nowait(rest) :]
                if data and not rest:
                    # Mostly there is nothing to wait for.
                    continue
                if data:
                    why = await _write(sink, rest, stall_timeout, partial(is_gone, source))
                else:
                    ended.append(sink)
                    with trio.move_on_after(stall_timeout):
                        return await sink.send_eof()
                    why = _stalled(stall_timeout)
            except LOST as error:
                return fail(sink, error)
            if why:
                return fail(source, trio.BrokenResourceError(why))

    async with trio.open_nursery() as nursery:
        paid = partial(_charge, tunnel) if isinstance(tunnel, Tunnel) else charge or _free
        nursery.start_soon(copy, tunnel, way, paid)
        nursery.start_soon(copy, way, tunnel, _free)
    return whys[0] if whys else ""


def _free(_: int) -> float:
    return 0.0


def _charge(tunnel: Tunnel, _: int) -> float:
    """Charge a client for what it has sent; return the seconds for which it is not to be read."""
    size, frames = tunnel.meter.take()
    return 0.0 if tunnel.meter.charge is None else tunnel.meter.charge(messages=frames, size=size)


async def _write(sink: ByteStream, rest: memoryview, stall_timeout: float, is_gone: Callable[[], bool]) -> str:
    """Write all of it; return why that is given up, empty if it is not."""
    until = trio.current_time() + stall_timeout
    while rest:
        with trio.move_on_at(min(until, trio.current_time() + LOOK_INTERVAL)) as waiting:
            rest = rest[await sink.send_some(rest) :]
            until = trio.current_time() + stall_timeout
        if waiting.cancelled_caught and is_gone():
            return "it has left, and what it sent was not taken"
        if trio.current_time() >= until:
            return _stalled(stall_timeout)
    return ""


def _stalled(stall_timeout: float) -> str:
    return f"nothing was taken for {stall_timeout:g} s"


async def finish(tunnel: Tunnel, way: ByteStream, why: str) -> None:
    """Close both ends of what `carry` has carried, `why` it returned; bounded in time. To be shielded."""
    if why:
        # What is on its way must not arrive after what the client sends over another connection.
        way.reset_when_closed(True)
        await way.aclose()
        await tunnel.refuse(why)
        return
    with trio.move_on_after(CLOSE_TIMEOUT):
        try:
            await tunnel.finish()
        except LOST:
            pass
    await tunnel.aclose()
    await way.aclose()
