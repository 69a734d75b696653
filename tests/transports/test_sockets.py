"""Sockets as streams of bytes, plain and with TLS, and what can go wrong when connecting."""

import errno
import os
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from cryptography import x509
from trio.testing import MockClock

from acp_gateway.errors import ProtocolError, TrustError, Unreachable
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.tls import client_context, server_context
from acp_gateway.transports import sockets
from acp_gateway.transports.racing import SocketAddress
from acp_gateway.transports.sockets import (
    CERTIFICATE_REQUIRED,
    MAX_DISCARDED,
    SILENT_PEER,
    TLS_RECORD,
    SocketBytes,
    certificate_alert,
    connect_tcp,
    connect_unix,
    describe,
    keep_alive,
    start_tls,
    take_socket,
)
from acp_gateway.transports.streams import (
    MAX_FRUITLESS,
    PROBE_EVERY,
    READ_COST,
    READ_SIZE,
    TURN,
    WRITE_SIZE,
    ByteStream,
)
from tests.kit.wires import MIB, close_at_once, socket_pair, socket_wire, tls_wire
from tests.transports.conftest import Tls

Wire = Callable[[], Awaitable[tuple[SocketBytes, SocketBytes]]]


@pytest.fixture(params=["plain", "tls"])
def wire(request: pytest.FixtureRequest, tls: Tls) -> Wire:
    async def plain() -> tuple[SocketBytes, SocketBytes]:
        return socket_wire()

    async def encrypted() -> tuple[SocketBytes, SocketBytes]:
        return await tls_wire(tls)

    return plain if request.param == "plain" else encrypted


@pytest.fixture
async def ends(wire: Wire) -> AsyncIterator[tuple[SocketBytes, SocketBytes]]:
    here, there = await wire()
    yield here, there
    await close_at_once(here, there)


async def read_all(stream: ByteStream) -> bytes:
    data = b""
    while more := await stream.receive_some():
        data += more
    return data


# Reading and writing


async def test_send_nowait_leaves_the_rest_to_the_caller(ends: tuple[SocketBytes, SocketBytes]) -> None:
    here, there = ends
    data = bytes(range(256)) * 8192
    sent = here.send_nowait(memoryview(data))
    assert 0 < sent < len(data)
    assert here.send_nowait(memoryview(data)[sent:]) == 0
    received = bytearray()

    async def read() -> None:
        while len(received) < len(data):
            received.extend(await there.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        while sent < len(data):
            sent += await here.send_some(memoryview(data)[sent:])
    assert received == data


async def test_a_peer_that_sends_on_and_on_leaves_other_tasks_their_turn(ends: tuple[SocketBytes, SocketBytes]) -> None:
    here, there = ends
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(10 * TURN // READ_COST):
            there.send_nowait(memoryview(b"x"))
            assert await here.receive_some() == b"x"
        nursery.cancel_scope.cancel()
    assert turns >= 5


class CountingSocket(socket.socket):
    """A socket that counts the reads that found nothing."""

    fruitless = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        try:
            return super().recv(size, flags)
        except BlockingIOError:
            self.fruitless += 1
            raise


async def test_a_socket_that_mostly_has_nothing_is_waited_for_first() -> None:
    one, other = socket.socketpair()
    counting = CountingSocket(fileno=one.detach())
    counting.setblocking(False)
    other.setblocking(False)
    here, there = SocketBytes(counting), SocketBytes(other)

    async def receive_later() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            there.send_nowait(memoryview(b"x"))

    async def receive() -> None:
        assert await here.receive_some() == b"x"

    for _ in range(2 * PROBE_EVERY):
        await receive_later()
    assert counting.fruitless == 2 * MAX_FRUITLESS
    # From the first bytes that are there without a wait, it is read first again.
    for _ in range(PROBE_EVERY):
        there.send_nowait(memoryview(b"x"))
        await receive()
    before = counting.fruitless
    await receive_later()
    assert counting.fruitless == before + 1
    await close_at_once(here, there)


async def test_a_closed_socket_is_closed_for_readers_that_would_have_waited_first(
    ends: tuple[SocketBytes, SocketBytes],
) -> None:
    here, there = ends
    async with trio.open_nursery() as nursery:
        for _ in range(MAX_FRUITLESS):
            nursery.start_soon(here.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            there.send_nowait(memoryview(b"x"))
            await trio.testing.wait_all_tasks_blocked()
    await here.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await here.receive_some()


async def test_tls_tells_of_progress_within_a_large_write(tls: Tls) -> None:
    # OpenSSL by itself would say nothing until all of it is written, and a slow link would look like a stalled one.
    here, there = await tls_wire(tls)
    data = memoryview(b"x" * MIB)
    sent = here.send_nowait(data)
    while here.send_nowait(data[sent:]):
        pass
    received = 0
    while received <= TLS_RECORD:
        received += len(await there.receive_some())
    progress = await here.send_some(data[sent:])
    assert TLS_RECORD <= progress < len(data) - sent
    await close_at_once(here, there)


@pytest.mark.parametrize("refusal", [ssl.SSLWantReadError, ssl.SSLWantWriteError])
async def test_tls_may_want_to_read_in_order_to_write_and_the_other_way_round(
    tls: Tls, monkeypatch: pytest.MonkeyPatch, refusal: type[ssl.SSLError]
) -> None:
    here, there = await tls_wire(tls)
    there.send_nowait(memoryview(b"data"))
    refusals = [refusal, refusal, refusal]

    def once(function: Callable[..., object]) -> Callable[..., object]:
        def refuse(*args: object) -> object:
            if refusals:
                raise refusals.pop()
            return function(*args)

        return refuse

    monkeypatch.setattr(here._sock, "recv", once(here._sock.recv))
    monkeypatch.setattr(here._sock, "send", once(here._sock.send))
    assert here.send_nowait(memoryview(b"1234")) == 0
    assert await here.send_some(memoryview(b"1234")) == 4
    refusals.append(refusal)
    assert await here.receive_some() == b"data"
    await close_at_once(here, there)


async def test_a_peer_that_takes_everything_does_not_keep_other_tasks_waiting(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await tls_wire(tls)
    monkeypatch.setattr(here._sock, "send", len)
    assert here.send_nowait(memoryview(b"x" * MIB)) == WRITE_SIZE
    await close_at_once(here, there)


async def test_full_tls_records_are_read_together(tls: Tls) -> None:
    here, there = await tls_wire(tls)
    data = bytes(range(256)) * 512
    assert there.send_nowait(memoryview(data)[: 3 * TLS_RECORD]) == 3 * TLS_RECORD
    assert await here.receive_some() == data[: 3 * TLS_RECORD]
    there.send_nowait(memoryview(data)[: TLS_RECORD + 100])
    there.send_nowait(memoryview(b"later"))
    assert await here.receive_some() == data[: TLS_RECORD + 100]
    assert await here.receive_some() == b"later"
    await close_at_once(here, there)


async def test_of_tls_records_no_more_are_read_at_once_than_of_anything_else(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await tls_wire(tls)
    monkeypatch.setattr(here._sock, "recv", lambda _: b"x" * TLS_RECORD)
    assert len(await here.receive_some()) == READ_SIZE
    await close_at_once(here, there)


async def test_an_error_behind_a_tls_record_comes_after_it_and_stays(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    # The system tells of it once, and from then on of nothing but the end, which would look like a good one.
    here, there = await tls_wire(tls)
    outcomes: list[bytes | OSError] = [b"x" * TLS_RECORD, ConnectionResetError(errno.ECONNRESET, "reset")]

    def receive(_: int) -> bytes:
        outcome = outcomes.pop(0) if outcomes else b""
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(here._sock, "recv", receive)
    assert await here.receive_some() == b"x" * TLS_RECORD
    for _ in range(2):
        with pytest.raises(trio.BrokenResourceError, match="connection reset by peer"):
            await here.receive_some()
    await close_at_once(here, there)


async def test_the_end_behind_a_tls_record_comes_after_it(tls: Tls) -> None:
    here, there = await tls_wire(tls)
    there.send_nowait(memoryview(b"x" * TLS_RECORD))
    await there.send_eof()
    assert await read_all(here) == b"x" * TLS_RECORD
    await close_at_once(here, there)


# The end


async def test_send_eof_sends_close_notify_to_a_tls_peer(tls: Tls) -> None:
    here, there = await tls_wire(tls)
    # Without that it could not tell the end from a connection that was cut.
    there._sock.suppress_ragged_eofs = False  # type: ignore[attr-defined]  # it is an ssl.SSLSocket
    await here.send_eof()
    assert await there.receive_some() == b""
    await close_at_once(here, there)


async def test_the_peers_end_is_empty_bytes_again_and_again(ends: tuple[SocketBytes, SocketBytes]) -> None:
    here, there = ends
    there.send_nowait(memoryview(b"last"))
    await there.send_eof()
    assert await here.receive_some() == b"last"
    assert await here.receive_some() == b""
    assert await here.receive_some() == b""


async def test_nothing_is_sent_after_send_eof(ends: tuple[SocketBytes, SocketBytes]) -> None:
    # A TLS socket would send it in clear.
    here, there = ends
    await here.send_eof()
    await there.send_eof()
    await here.send_eof()
    with pytest.raises(trio.ClosedResourceError):
        here.send_nowait(memoryview(b"x"))
    with pytest.raises(trio.ClosedResourceError):
        await here.send_some(memoryview(b"x"))


async def test_no_plaintext_is_read_after_the_end_of_tls(tls: Tls) -> None:
    here, there = await tls_wire(tls)
    with pytest.raises(ssl.SSLWantReadError):
        there._sock.unwrap()  # type: ignore[attr-defined]  # it is an ssl.SSLSocket
    await here.send_eof()
    # As an attacker on the path could.
    socket.socket.send(there._sock, b"in clear")
    assert await here.receive_some() == b""
    await close_at_once(here, there)


async def test_finishing_lets_the_peer_read_to_the_end_although_its_own_bytes_are_unread(
    ends: tuple[SocketBytes, SocketBytes],
) -> None:
    here, there = ends
    there.send_nowait(memoryview(b"not read"))
    here.send_nowait(memoryview(b"goodbye"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.finish)
        assert await read_all(there) == b"goodbye"
        await there.finish()
    await here.aclose()


async def test_finish_discards_what_the_peer_still_sends(ends: tuple[SocketBytes, SocketBytes]) -> None:
    here, there = ends
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.finish)
        data = memoryview(b"x" * MIB)
        while data:
            data = data[await there.send_some(data) :]
        await there.finish()


async def test_finishing_sends_a_reading_task_away(ends: tuple[SocketBytes, SocketBytes]) -> None:
    here, there = ends

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await here.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(here.finish)
        await trio.testing.wait_all_tasks_blocked()
        await there.finish()


@pytest.mark.parametrize("ticks", range(5))
async def test_finishing_sends_a_task_away_that_is_about_to_read(
    ends: tuple[SocketBytes, SocketBytes], ticks: int
) -> None:
    here, there = ends
    here._turn = TURN

    async def read() -> None:
        for _ in range(ticks):
            await trio.lowlevel.checkpoint()
        with pytest.raises(trio.ClosedResourceError):
            await here.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.finish)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await there.finish()


async def test_finishing_waits_a_second_for_a_peer_that_has_everything_and_leaves_its_side_open(
    autojump_clock: MockClock,
) -> None:
    here, there = socket_wire()
    here.send_nowait(memoryview(b"goodbye"))
    assert await there.receive_some() == b"goodbye"
    began = trio.current_time()
    await here.finish()
    assert trio.current_time() - began == SILENT_PEER
    await close_at_once(here, there)


async def test_closing_ends_a_finish(ends: tuple[SocketBytes, SocketBytes]) -> None:
    here, _ = ends

    async def finish() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await here.finish()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finish)
        await trio.testing.wait_all_tasks_blocked()
        await here.aclose()


async def test_a_closed_socket_raises_closed_resource_error(ends: tuple[SocketBytes, SocketBytes]) -> None:
    here, _ = ends
    await here.aclose()
    await here.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await here.receive_some()
    with pytest.raises(trio.ClosedResourceError):
        here.send_nowait(memoryview(b"x"))
    with pytest.raises(trio.ClosedResourceError):
        await here.send_some(memoryview(b"x"))


async def test_closing_sends_every_waiting_task_away(ends: tuple[SocketBytes, SocketBytes]) -> None:
    here, _ = ends
    data = memoryview(b"x" * MIB)
    sent = here.send_nowait(data)

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await here.receive_some()

    async def write() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await here.send_some(data[sent:])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        await here.aclose()


@asynccontextmanager
async def tcp_pair() -> AsyncIterator[tuple[SocketBytes, SocketBytes]]:
    """A client and a server on loopback."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        here = await connect_tcp("127.0.0.1", listener.socket.getsockname()[1])
        there = SocketBytes(take_socket(await listener.accept()))
    try:
        yield here, there
    finally:
        await close_at_once(here, there)


@pytest.mark.parametrize("reset", [False, True])
async def test_a_connection_that_is_reset_when_closed_sends_nothing_more(reset: bool) -> None:
    async with tcp_pair() as (here, there):
        here.reset_when_closed(True)
        here.reset_when_closed(reset)
        written = 0
        while count := here.send_nowait(memoryview(bytes(1 << 20))):
            written += count
        await here.aclose()
        received = 0
        try:
            while data := await there.receive_some():
                received += len(data)
        except trio.BrokenResourceError:
            assert reset
        else:
            assert not reset
    assert (received == written) == (not reset)


async def test_a_closed_connection_can_be_told_to_reset() -> None:
    async with tcp_pair() as (here, _):
        await here.aclose()
        here.reset_when_closed(True)


class Absent:
    """A module that can't be imported."""

    def __getattr__(self, name: str) -> Any:
        raise ModuleNotFoundError(name)


async def test_a_plain_connection_waits_and_is_lost_without_ssl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "ssl", Absent())
    async with tcp_pair() as (here, there):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            there.send_nowait(memoryview(b"x"))
        there._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await there.aclose()
        with pytest.raises(trio.BrokenResourceError, match="connection reset by peer"):
            await here.receive_some()
        with pytest.raises(trio.BrokenResourceError, match="broken pipe"):
            here.send_nowait(memoryview(b"x"))


async def test_a_reset_connection_is_lost() -> None:
    async with tcp_pair() as (here, there):
        there._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await there.aclose()
        with pytest.raises(trio.BrokenResourceError, match="the connection was lost: connection reset by peer"):
            await here.receive_some()
        with pytest.raises(trio.BrokenResourceError, match="the connection was lost: broken pipe"):
            here.send_nowait(memoryview(b"x"))
        with pytest.raises(trio.BrokenResourceError, match="the connection was lost: broken pipe"):
            await here.send_some(memoryview(b"x"))
        await here.finish()


# TLS handshakes


async def test_the_peers_certificate_can_be_looked_at(tls: Tls) -> None:
    here, there = await tls_wire(tls)
    certificate = here.peer_certificate
    assert certificate is not None
    assert ssl.DER_cert_to_PEM_cert(certificate).startswith("-----BEGIN CERTIFICATE-----")
    assert there.peer_certificate is None
    await close_at_once(here, there)


async def test_a_handshake_that_fails_closes_the_socket(tls: Tls) -> None:
    here, there = socket_pair()
    there.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ssl.SSLError):
        await start_tls(here, tls.client, server_hostname="localhost")
    assert there.recv(65536)
    with pytest.raises(ConnectionResetError):
        there.recv(65536)
    there.close()


async def test_a_handshake_that_is_cancelled_closes_the_socket(tls: Tls) -> None:
    here, there = socket_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: start_tls(here, tls.server, server_side=True))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert there.recv(1) == b""
    there.close()


async def test_a_handshake_that_can_not_begin_closes_the_socket(tls: Tls) -> None:
    here, there = socket_pair()
    with pytest.raises(ValueError, match="server_hostname"):
        await start_tls(here, tls.client)
    assert there.recv(1) == b""
    there.close()


async def test_a_handshake_waits_for_a_peer_that_does_not_read(tls: Tls) -> None:
    here, there = socket_pair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    try:
        while True:
            here.send(b"x")
    except BlockingIOError:
        pass
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: start_tls(here, tls.client, server_hostname="localhost"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    there.close()


# Connecting


@asynccontextmanager
async def tcp_listener(
    serve: Callable[[socket.socket], Awaitable[None]], host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """A server on a port of loopback."""

    async def handle(stream: trio.SocketStream) -> None:
        await serve(take_socket(stream))

    async with trio.open_nursery() as handlers, trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, host=host, handler_nursery=handlers), handle, 0)
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="each system has options of its own")
async def test_a_silent_peer_is_probed_and_given_up_after_these_seconds() -> None:
    async with tcp_pair() as (here, _):
        keep_alive(here._sock, 30, 10)
        times = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert [here._sock.getsockopt(socket.IPPROTO_TCP, option) for option in times] == [30, 2, 4, 40_000]
        keep_alive(here._sock, 0.1, 0.1)
        assert [here._sock.getsockopt(socket.IPPROTO_TCP, option) for option in times] == [1, 1, 4, 1000]


async def test_a_connection_that_can_not_be_kept_alive_is_used_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def setsockopt(self, level: int, option: int, value: Any) -> None:  # type: ignore[override]  # one of three
            if option == socket.SO_KEEPALIVE:
                raise OSError(errno.EINVAL, "Invalid argument")
            super().setsockopt(level, option, value)

    monkeypatch.setattr(socket, "socket", Refusing)
    async with tcp_pair() as (here, there):
        here.send_nowait(memoryview(b"hello"))
        assert await there.receive_some() == b"hello"


def resolving_to(*hosts: str) -> Callable[[str, int], Awaitable[list[SocketAddress]]]:
    """Return a `resolve` that knows these IPv4 addresses for every name."""

    async def resolve(_: str, port: int) -> list[SocketAddress]:
        await trio.lowlevel.checkpoint()
        return [(socket.AF_INET, (host, port)) for host in hosts]

    return resolve


async def _say_hello(sock: socket.socket, tls: Tls) -> None:
    stream = await start_tls(sock, tls.server, server_side=True)
    stream.send_nowait(memoryview(b"hello"))
    await stream.finish()
    await stream.aclose()


@pytest.mark.parametrize("others", [(), ("127.0.0.9",)], ids=["one address", "the first is dead"])
async def test_a_connection_with_tls_is_encrypted(
    others: tuple[str, ...], tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "resolve", resolving_to(*others, "127.0.0.1"))
    async with tcp_listener(partial(_say_hello, tls=tls)) as port:
        stream = await connect_tcp("localhost", port, tls.client)
        assert stream.peer_certificate is not None
        assert await read_all(stream) == b"hello"
        await stream.aclose()


async def test_an_address_of_a_name_without_the_right_certificate_is_passed_over(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "resolve", resolving_to("127.0.0.2", "127.0.0.1"))

    async def serve(sock: socket.socket) -> None:
        if sock.getsockname()[0] == "127.0.0.2":
            SocketBytes(sock).send_nowait(memoryview(b"220 mail\r\n"))
            await SocketBytes(sock).aclose()
        else:
            await _say_hello(sock, tls)

    async with tcp_listener(serve, host="0.0.0.0") as port:  # noqa: S104
        stream = await connect_tcp("localhost", port, tls.client)
        assert await read_all(stream) == b"hello"
        await stream.aclose()


async def test_an_answer_of_one_address_is_told_rather_than_the_silence_of_another(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "resolve", resolving_to("127.0.0.9", "127.0.0.1"))

    async def serve(sock: socket.socket) -> None:
        SocketBytes(sock).send_nowait(memoryview(b"220 mail\r\n"))
        await SocketBytes(sock).aclose()

    async with tcp_listener(serve) as port:
        with pytest.raises(ProtocolError, match="does not speak TLS"):
            await connect_tcp("localhost", port, tls.client)


async def _serve_tls_until_refused(sock: socket.socket, context: ssl.SSLContext) -> None:
    try:
        stream = await start_tls(sock, context, server_side=True)
    except OSError:
        return
    # TLS 1.3 is done for the server before the client has looked at the certificate.
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    await stream.aclose()


async def test_a_certificate_that_is_not_trusted_ends_it_with_what_to_do(tls: Tls) -> None:
    strangers = client_context(ca=None, pin=None)
    async with tcp_listener(lambda sock: _serve_tls_until_refused(sock, tls.server)) as port:
        with pytest.raises(TrustError, match=r"certificate of 127.0.0.1 is not trusted: self.signed.*--pin .*--ca "):
            await connect_tcp("127.0.0.1", port, strangers)


async def test_a_certificate_for_another_host_is_not_trusted(tls: Tls) -> None:
    async with tcp_listener(lambda sock: _serve_tls_until_refused(sock, tls.server)) as port:
        with pytest.raises(TrustError, match=r"IP address mismatch.*call it by a name.*--pin .*certs renew --host"):
            await connect_tcp("127.0.0.1", port, tls.client)


@pytest.mark.parametrize(
    ("begin", "end", "what_to_do"),
    [
        (
            timedelta(days=-2),
            timedelta(days=-1),
            "certificate has expired; renew it, by `acp-gateway certs renew` .*--pin",
        ),
        (timedelta(days=1), timedelta(days=2), "not yet valid; is the clock of this machine right.*--pin"),
    ],
    ids=["expired", "of the future"],
)
async def test_a_certificate_that_is_not_for_now_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: timedelta, end: timedelta, what_to_do: str
) -> None:
    now = datetime.now(UTC)
    for method, moment in (("not_valid_before", now + begin), ("not_valid_after", now + end)):
        real = getattr(x509.CertificateBuilder, method)
        monkeypatch.setattr(
            x509.CertificateBuilder, method, lambda builder, _, real=real, moment=moment: real(builder, moment)
        )
    created = create_certificate(["127.0.0.1"], tmp_path)
    server = server_context(created.cert_path, created.key_path)
    async with tcp_listener(lambda sock: _serve_tls_until_refused(sock, server)) as port:
        with pytest.raises(TrustError, match=what_to_do):
            await connect_tcp("127.0.0.1", port, client_context(ca=created.cert_path, pin=None))


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("TLSV1_ALERT_UNKNOWN_CA", "unknown ca"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "bad certificate"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "certificate expired"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", CERTIFICATE_REQUIRED),
        ("TLSV1_ALERT_DECRYPT_ERROR", "decrypt error"),
        ("TLSV1_ALERT_ACCESS_DENIED", "access denied"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", None),
        ("CERTIFICATE_VERIFY_FAILED", None),
        (None, None),
    ],
)
def test_an_alert_about_the_certificate_is_found_behind_the_error_that_it_led_to(
    reason: str | None, said: str | None
) -> None:
    cause = ssl.SSLError(1, "x")
    cause.reason = reason  # type: ignore[assignment] # As OpenSSL leaves it where it has none.
    error = trio.BrokenResourceError("lost")
    error.__cause__ = trio.BrokenResourceError("lost")
    error.__cause__.__cause__ = cause
    assert certificate_alert(error) == certificate_alert(cause) == said
    assert certificate_alert(trio.BrokenResourceError("lost")) is None
    assert certificate_alert(None) is None


async def test_a_server_without_tls_can_not_be_reached_with_it(tls: Tls) -> None:
    async def serve(sock: socket.socket) -> None:
        stream = SocketBytes(sock)
        stream.send_nowait(memoryview(b"220 mail.example ESMTP\r\n"))
        await stream.finish()
        await stream.aclose()

    async with tcp_listener(serve) as port:
        with pytest.raises(ProtocolError, match=f"127.0.0.1 port {port} does not speak TLS: it answers .*usually 7443"):
            await connect_tcp("127.0.0.1", port, tls.client)


async def test_a_server_that_hangs_up_in_the_handshake_can_not_be_reached(tls: Tls) -> None:
    async def serve(sock: socket.socket) -> None:
        await SocketBytes(sock).receive_some()
        sock.close()

    async with tcp_listener(serve) as port:
        with pytest.raises(Unreachable, match=r"no TLS with 127\.0\.0\.1 port \d+: "):
            await connect_tcp("127.0.0.1", port, tls.client)


async def test_a_port_without_a_listener_can_not_be_reached() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(Unreachable, match=f"cannot reach 127.0.0.1 port {port}: connection refused"):
            await connect_tcp("127.0.0.1", port)


@pytest.mark.parametrize("name", ["a" * 64 + ".example", "a..b"])
async def test_a_host_that_can_not_be_can_not_be_reached(name: str) -> None:
    with pytest.raises(Unreachable, match="no host can have that name"):
        await connect_tcp(name, 7443)


async def test_a_unix_socket_is_connected_to(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        stream = await connect_unix(path)
        with listener.accept()[0] as peer:
            stream.send_nowait(memoryview(b"hello"))
            assert peer.recv(100) == b"hello"
            await stream.aclose()


async def test_a_unix_socket_that_is_not_there_can_not_be_reached(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="/socket: no such file or directory"):
        await connect_unix(str(tmp_path / "socket"))


async def test_connect_unix_without_unix_sockets_names_the_other_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(Unreachable, match="no unix sockets; use wss://"):
        await connect_unix("/run/socket")


# Errors in words


def chained(error: OSError, cause: BaseException) -> OSError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Error connecting to ('::1', 7443)"), "connection refused"),
        (ConnectionRefusedError(10061, "No connection could be made"), "connection refused"),
        (ConnectionResetError(errno.ECONNRESET, "whatever"), "connection reset by peer"),
        (OSError(errno.EHOSTUNREACH, "Error connecting to ('192.0.2.1', 1)"), "no route to host"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "[ssl: wrong version number] wrong"),
        (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
        (
            chained(OSError("all attempts failed"), ExceptionGroup("all", [TimeoutError(errno.ETIMEDOUT, "x")])),
            "connection timed out",
        ),
        (chained(OSError("All attempts failed"), ExceptionGroup("all", [ValueError()])), "all attempts failed"),
        (OSError(), "oserror"),
    ],
)
def test_describe_returns_the_text_of_the_system(error: OSError, words: str) -> None:
    assert describe(error).startswith(words)


def test_a_windows_error_needs_no_strerror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "strerror", "{} unknown".format)
    assert describe(ConnectionRefusedError(10061, "x")) == "connection refused"


async def test_a_peer_that_sends_on_after_the_end_is_read_no_further_than_max_discarded() -> None:
    here, there = socket_wire()
    sent = 0

    async def send() -> None:
        nonlocal sent
        with suppress(trio.BrokenResourceError):
            while True:
                sent += await there.send_some(memoryview(bytes(WRITE_SIZE)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await here.finish()
        await here.aclose()
    assert MAX_DISCARDED <= sent < 2 * MAX_DISCARDED
    await there.aclose()
