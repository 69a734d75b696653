"""The number of bytes that a peer's system has not confirmed."""

import socket
import sys

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.transports.confirmed_bytes import ConfirmedBytes
from acp_gateway.transports.sockets import SILENT_PEER, start_tls
from tests.transports.conftest import Tls

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection that does not block."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    here.setblocking(False)
    there.setblocking(False)
    return here, there


async def fill(stream: ConfirmedBytes) -> int:
    """Write until the system takes no more, and return the number of bytes."""
    size = 0
    while sent := stream.send_nowait(memoryview(bytes(100_000))):
        size += sent
    return size


async def test_what_arrived_is_confirmed_and_the_rest_is_not() -> None:
    here, there = pair()
    stream = ConfirmedBytes(here)
    stream.count_unconfirmed()
    sent = await fill(stream)
    received = 0
    with there:
        there.setblocking(True)
        there.settimeout(0.2)
        # Until nothing more fits, the peer's system has confirmed what is in its buffer.
        unconfirmed = stream.unconfirmed_bytes
        assert 0 < unconfirmed < sent
        try:
            while received < sent:
                received += len(there.recv(1 << 20))
        except TimeoutError:
            pass
    assert received == sent
    await stream.aclose()


async def test_finishing_waits_for_a_peer_that_has_not_everything(autojump_clock: MockClock) -> None:
    here, there = pair()
    stream = ConfirmedBytes(here)
    await fill(stream)
    with there, trio.move_on_after(10 * SILENT_PEER) as waiting:
        await stream.finish()
    assert waiting.cancelled_caught
    await stream.aclose()


async def test_over_tls_only_whole_records_count(tls: Tls) -> None:
    here, there = pair()
    ends: list[ConfirmedBytes] = []

    async def serve() -> None:
        with trio.CancelScope():
            ends.append(ConfirmedBytes((await start_tls(here, tls.server, server_side=True))._sock))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        client = await start_tls(there, tls.client, server_hostname="localhost")
    (stream,) = ends
    stream.count_unconfirmed()
    stream.send_nowait(memoryview(b"x" * 20_000))
    received = 0
    while received < 20_000:
        received += len(await client.receive_some())
    while stream.unconfirmed_bytes:
        await trio.lowlevel.checkpoint()
    sent = await fill(stream)
    assert 0 < stream.unconfirmed_bytes <= sent
    await stream.aclose()
    await client.aclose()


async def test_a_closed_socket_has_nothing_to_tell() -> None:
    here, there = pair()
    there.close()
    stream = ConfirmedBytes(here)
    await stream.aclose()
    assert stream.unconfirmed_bytes == 0
