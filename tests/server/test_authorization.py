"""Requests that were accepted: served outside of the limits, and closed where no other one may follow."""

import socket

import pytest
import trio

from acp_gateway.server.authorization import AcceptedRequest, Client
from acp_gateway.server.handshake_limits import HandshakeLimiter, ThrottledStream
from acp_gateway.server.pending import PendingConnection
from acp_gateway.transports.http_head import HttpError
from acp_gateway.transports.http_server import HttpConnection, Response
from tests.server.echoing import EchoingGateway


async def serve(gateway: EchoingGateway, outcome: bool | Exception) -> tuple[bool, bytes]:
    """Return the result of serving a request with this outcome, and the bytes that the client was sent."""
    here, there = socket.socketpair()
    here.setblocking(False)
    connection = PendingConnection(name="c", peer="unix", listener="l", network="unix", limited=False)
    stream = ThrottledStream(here, connection, HandshakeLimiter(gateway.config, gateway.audit))
    stream.stop_throttling()
    http = HttpConnection(stream)
    there.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    await http.receive_request()

    async def run(http: HttpConnection) -> bool:
        if isinstance(outcome, Exception):
            raise outcome
        await http.respond(Response.of_text(200, "ok"))
        return outcome

    there.shutdown(socket.SHUT_WR)
    follows = await AcceptedRequest(Client(connection, here, stream), http, run).serve()
    await stream.aclose()
    with there:
        return follows, there.recv(4096)


@pytest.mark.parametrize("follows", [True, False])
async def test_another_request_may_follow_if_the_exchange_says_so(follows: bool, gateway: EchoingGateway) -> None:
    again, written = await serve(gateway, follows)
    assert again == follows
    assert written.startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_can_not_be_read_is_answered_and_the_connection_closed(gateway: EchoingGateway) -> None:
    again, written = await serve(gateway, HttpError(413, "too large"))
    assert not again
    assert written.startswith(b"HTTP/1.1 413 ")
    assert written.endswith(b"too large\n")


async def test_a_client_that_leaves_in_an_exchange_is_not_an_error(gateway: EchoingGateway) -> None:
    assert await serve(gateway, trio.BrokenResourceError("gone")) == (False, b"")
