"""Requests that were accepted: served outside of the limits, and closed where no other one may follow."""

import socket
from collections.abc import Callable
from functools import partial

import pytest
import trio

from acp_gateway.server.authorization import AcceptedRequest, Client
from acp_gateway.server.handshake_limits import HandshakeLimiter, ThrottledStream
from acp_gateway.server.pending import PendingConnection
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import HttpConnection, Response
from tests.server.echoing import WS, EchoingGateway, listening, port_of
from tests.server.http_client import EVENTS, Http


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


# The next request of a connection


def nothing() -> None:
    pass


async def statuses(gateway: EchoingGateway, *requests: tuple[Callable[[], object], str]) -> list[int]:
    """Call each function, and ask with a token after it, all over one connection; return the statuses."""
    found = []
    async with (
        listening(WS, gateway) as listener,
        await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream,
    ):
        http = Http(stream)
        for call, token in requests:
            call()
            fields = {"Authorization": f"Bearer {token}", "Acp-Connection-Id": "x"}
            found.append((await http.ask("GET", "/acp", None, **EVENTS, **fields)).status)
    return found


async def test_a_token_is_checked_with_each_request_of_its_connection(gateway: EchoingGateway) -> None:
    token, secret = gateway.tokens.create("laptop", "ann", None)
    revoke = partial(gateway.tokens.revoke, token.id)
    # 404 is the answer to a valid one: no connection has this id.
    assert await statuses(gateway, (nothing, secret), (nothing, secret), (revoke, secret)) == [404, 404, 401]


async def test_a_rotated_token_is_not_known_from_the_request_before(gateway: EchoingGateway) -> None:
    token, secret = gateway.tokens.create("laptop", "ann", None)
    rotate = partial(gateway.tokens.rotate, token.id)
    assert await statuses(gateway, (nothing, secret), (rotate, secret)) == [404, 401]


async def test_another_token_over_the_same_connection_has_its_own_rights(gateway: EchoingGateway) -> None:
    metrics = gateway.tokens.create("prometheus", None, None, role="metrics")[1]
    ann = gateway.token()
    asked = [(nothing, ann), (nothing, f"{ann}x"), (nothing, ann)]
    assert await statuses(gateway, *asked[:2]) == [404, 401]
    assert await statuses(gateway, (nothing, metrics), (nothing, ann), (nothing, metrics)) == [404, 404, 404]
