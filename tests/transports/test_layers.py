"""Streams of bytes inside others, and TLS in them."""

import ssl

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from acp_gateway.transports.layers import Layer, start_tls_inside
from tests.kit.wires import MemoryBytes, close_at_once, memory_wire, tls_inside
from tests.transports.conftest import Tls


class Doubled(Layer):
    """Each byte twice, in units of ten."""

    def __init__(self, below: MemoryBytes) -> None:
        super().__init__(below, 10)

    def _encode(self, data: memoryview) -> bytes:
        return bytes(byte for byte in data for _ in range(2))

    def _encode_end(self) -> bytes:
        return b"END"

    async def receive_some(self) -> bytes:
        return await self.below.receive_some()


async def test_a_unit_counts_as_written_once_all_of_it_was_written_below() -> None:
    below, there = memory_wire(room=25)
    layer = Doubled(below)
    assert layer.send_nowait(memoryview(b"0123456789abcdefghij")) == 10
    assert layer.send_nowait(memoryview(b"abcdefghij")) == 0
    assert await there.receive_some() == b"00112233445566778899aabbc"
    assert layer.send_nowait(memoryview(b"abcdefghij")) == 10
    assert await there.receive_some() == b"cddeeffgghhiijj"


async def test_a_cancelled_write_can_be_repeated() -> None:
    below, there = memory_wire(room=5)
    layer = Doubled(below)
    with trio.CancelScope() as scope:
        scope.cancel()
        await layer.send_some(memoryview(b"0123"))
    assert scope.cancelled_caught
    received = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(layer.send_some, memoryview(b"0123"))
        while len(received) < 8:
            received += await there.receive_some()
    assert received == b"00112233"


async def test_a_unit_that_was_begun_is_written_before_the_end() -> None:
    below, there = memory_wire(room=3)
    layer = Doubled(below)
    assert layer.send_nowait(memoryview(b"012")) == 0
    received = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(layer.send_eof)
        while not received.endswith(b"END"):
            received += await there.receive_some()
    assert received == b"001122END"
    with pytest.raises(trio.ClosedResourceError):
        layer.send_nowait(memoryview(b"more"))


async def test_what_is_not_the_callers_is_appended_while_a_write_waits() -> None:
    below, there = memory_wire(room=3)
    layer = Doubled(below)
    received = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(layer.send_some, memoryview(b"012"))
        await trio.testing.wait_all_tasks_blocked()
        layer._reply(b"?")
        while len(received) < 7:
            received += await there.receive_some()
    assert received == b"001122?"


# TLS


async def test_tls_inside_shows_the_certificate_and_the_version(tls: Tls) -> None:
    client, server = await tls_inside(*memory_wire(), tls)
    assert client.peer_certificate
    assert server.peer_certificate is None
    assert client.tls_version == "TLSv1.3"
    await close_at_once(client, server)


async def test_tls_inside_refuses_an_unknown_certificate(tls: Tls) -> None:
    here, there = memory_wire()
    stranger = ssl.create_default_context()

    async def accept() -> None:
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
            await start_tls_inside(there, tls.server, server_side=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        with pytest.raises(ssl.SSLCertVerificationError):
            await start_tls_inside(here, stranger, server_hostname="localhost")
    assert here.closed
    assert there.closed


@pytest.mark.parametrize("at", [-1, 5, 20])
async def test_a_byte_that_was_changed_on_the_way_breaks_tls_inside(tls: Tls, at: int) -> None:
    here, there = memory_wire()
    client, server = await tls_inside(here, there, tls)
    assert client.send_nowait(memoryview(b"as it was sent")) == 14
    there.inbox[at] ^= 1
    with pytest.raises(trio.BrokenResourceError, match="changed on the way"):
        await server.receive_some()
    await close_at_once(client, server)


async def test_a_connection_that_is_cut_inside_tls_is_lost_and_not_at_its_end(tls: Tls) -> None:
    here, there = memory_wire()
    client, server = await tls_inside(here, there, tls)
    client.send_nowait(memoryview(b"the beginning"))
    await here.send_eof()
    assert await server.receive_some() == b"the beginning"
    with pytest.raises(trio.BrokenResourceError, match="in the middle of TLS"):
        await server.receive_some()
    await close_at_once(client, server)


async def test_the_end_of_tls_inside_is_its_own(tls: Tls) -> None:
    client, server = await tls_inside(*memory_wire(), tls)
    client.send_nowait(memoryview(b"all"))
    await client.send_eof()
    assert await server.receive_some() == b"all"
    assert await server.receive_some() == b""
    assert await client.receive_some() == b""
    await close_at_once(client, server)


@settings(deadline=None, max_examples=30)
@given(room=st.integers(1, 70_000), pieces=st.lists(st.binary(max_size=50_000), max_size=5))
def test_all_bytes_pass_tls_inside_however_little_room_there_is(tls: Tls, room: int, pieces: list[bytes]) -> None:
    async def main() -> bytes:
        here, there = memory_wire()
        client, server = await tls_inside(here, there, tls)
        here.room = there.room = room
        received = b""

        async def send() -> None:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[await client.send_some(rest) :]
            await client.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while data := await server.receive_some():
                received += data
        await close_at_once(client, server)
        return received

    assert trio.run(main) == b"".join(pieces)
