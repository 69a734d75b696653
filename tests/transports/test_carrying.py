"""Carrying bytes between a tunnel and another stream, over memory streams."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from acp_gateway.transports.carrying import LOOK_INTERVAL, carry
from acp_gateway.transports.sockets import SocketBytes, take_socket
from acp_gateway.transports.streams import ByteStream, Flooded, send_all
from tests.kit.wires import MemoryBytes, close_at_once, memory_wire, tunnel_over

LOST = "the other side was lost"


@asynccontextmanager
async def carrying(*, stall_timeout: float = 60.0) -> AsyncIterator[tuple[ByteStream, MemoryBytes, list[str]]]:
    """A client's tunnel, a node's connection, and why the carrying between them has ended."""
    client, tunnel = await tunnel_over(*memory_wire())
    way, node = memory_wire()
    ends: list[str] = []

    async def run() -> None:
        ends.append(await carry(tunnel, way, stall_timeout, LOST))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield client, node, ends
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await close_at_once(client, tunnel, way, node)


async def test_each_side_is_carried_to_its_own_end() -> None:
    async with carrying() as (client, node, ends):
        client.send_nowait(memoryview(b"request"))
        await client.send_eof()
        assert await node.receive_some() == b"request"
        assert await node.receive_some() == b""
        node.send_nowait(memoryview(b"response"))
        assert await client.receive_some() == b"response"
        assert ends == []
        await node.send_eof()
        assert await client.receive_some() == b""
        await trio.testing.wait_all_tasks_blocked()
        assert ends == [""]


async def test_bytes_of_another_stream_than_a_tunnel_are_charged_as_asked() -> None:
    client, ours = memory_wire()
    way, node = memory_wire()
    charged: list[int] = []
    client.send_nowait(memoryview(b"abc"))
    await client.send_eof()
    await node.send_eof()

    def charge(size: int) -> float:
        charged.append(size)
        return 0.0

    assert await carry(ours, way, 60.0, LOST, charge) == ""
    assert charged == [3, 0]
    await close_at_once(client, ours, way, node)


async def test_carrying_ends_with_the_loss_of_the_node() -> None:
    async with carrying() as (client, node, ends):
        await node.aclose()
        client.send_nowait(memoryview(b"x"))
        await trio.testing.wait_all_tasks_blocked()
        assert ends in ([""], [LOST])


async def test_carrying_ends_with_the_loss_of_the_client() -> None:
    async with carrying() as (client, _node, ends):
        await client.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert ends == ["the connection was lost: it ended without a closing handshake"]


async def test_a_side_that_takes_nothing_stops_the_other_and_is_given_up_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with carrying(stall_timeout=30) as (client, _node, ends):
        data = memoryview(bytes(1_000_000))
        sent = 0
        with trio.move_on_after(29):
            while True:
                sent += await client.send_some(data)
        assert sent < 400_000
        assert ends == []
        await trio.sleep(2)
        assert ends == ["nothing was taken for 30 s"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_client_that_has_gone_is_noticed_behind_what_is_not_taken(
    is_lost: bool, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = await real_pair()
    client, tunnel = await tunnel_over(near, far)
    way, node = memory_wire(1000)
    ends: list[str] = []

    async def run() -> None:
        ends.append(await carry(tunnel, way, 3600.0, LOST))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await send_all(client, bytes(100_000))
        await trio.sleep(3 * LOOK_INTERVAL)
        assert ends == [], "a client that is there waits"
        near.reset_when_closed(is_lost)
        await near.aclose()
        await trio.sleep(2 * LOOK_INTERVAL)
        assert ends == ["it has left, and what it sent was not taken"]
    await close_at_once(client, tunnel, way, node)


async def test_a_program_that_has_closed_its_side_may_read_on(autojump_clock: trio.testing.MockClock) -> None:
    ours, client = memory_wire(1000)
    near, far = await real_pair()
    ends: list[str] = []

    async def run() -> None:
        ends.append(await carry(ours, far, 3600.0, LOST))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await send_all(near, bytes(100_000))
        await near.send_eof()
        await trio.sleep(3 * LOOK_INTERVAL)
        assert ends == []
        nursery.cancel_scope.cancel()
    await close_at_once(ours, client, near, far)


async def test_what_a_program_has_sent_before_both_sides_ended_is_not_lost_on_a_slow_client(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, client = memory_wire(1000)
    program, way = await real_pair()
    ends: list[str] = []

    async def run() -> None:
        ends.append(await carry(ours, way, 3600.0, LOST))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await client.send_eof()
        assert await program.receive_some() == b""
        await send_all(program, bytes(100_000))
        await program.aclose()
        await trio.sleep(3 * LOOK_INTERVAL)
        assert ends == []
        received = 0
        while data := await client.receive_some():
            received += len(data)
        assert received == 100_000
    assert ends == [""]
    await close_at_once(ours, client, program, way)


async def real_pair() -> tuple[SocketBytes, SocketBytes]:
    """Both ends of a TCP connection on this machine."""
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen()
        near = await trio.open_tcp_stream(*listener.getsockname())
        far, _ = await listener.accept()
    return SocketBytes(take_socket(near)), SocketBytes(take_socket(trio.SocketStream(far)))


async def test_what_a_client_sends_is_charged_and_pauses_it(autojump_clock: trio.testing.MockClock) -> None:
    client, tunnel = await tunnel_over(*memory_wire())
    way, node = memory_wire()
    charged: list[tuple[int, int, int]] = []

    def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        charged.append((messages, size, frames))
        return 3.0

    tunnel.meter.charge = charge
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry, tunnel, way, 60.0, LOST)
        client.send_nowait(memoryview(b"x" * 100))
        assert await node.receive_some() == b"x" * 100
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == 3
    assert charged == [(1, 106, 0)]
    await close_at_once(client, tunnel, way, node)


async def test_a_flood_of_frames_without_data_ends_a_tunnel() -> None:
    client, tunnel = await tunnel_over(*memory_wire())
    way, node = memory_wire()

    def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        if frames:
            raise Flooded("too many pings")
        return 0.0

    tunnel.meter.charge = charge
    client._protocol.send_ping(b"")
    client._append(b"".join(client._protocol.data_to_send()))
    client._flush()
    assert await carry(tunnel, way, 60.0, LOST) == "too many pings"
    await close_at_once(client, tunnel, way, node)
