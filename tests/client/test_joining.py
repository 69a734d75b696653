"""The line of an invitation, and its exchange with servers of the test's own."""

import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from acp_gateway.client.joining import Invitation, Joined, join, join_path, parse_invitation
from acp_gateway.config.addresses import parse_target
from acp_gateway.errors import AccessError, GatewayError, ProtocolError, Unauthorized, Unreachable, UsageError
from acp_gateway.security.proof import answer
from acp_gateway.security.token_format import digest, mint
from tests.kit.doubles import TIMEOUT

CODE = mint("invitation")
PIN = "sha256:" + "0a" * 32
TOKEN = mint("guest")
ANSWER = {"token": TOKEN, "tokenId": "0a0a0a0a", "role": "observer", "session": "s1", "expires": None}


@pytest.mark.parametrize(
    ("address", "pin"),
    [("wss://box:7443/acp", PIN), ("wss://box:443/gateway/acp", None), ("ws://127.0.0.1:1/acp", None)],
)
def test_a_line_is_read_as_it_was_written(address: str, pin: str | None) -> None:
    invitation = Invitation(parse_target(address), CODE, pin)
    line = str(invitation)
    for text in (line, f" acp-gateway join '{line}'\n", f'"{line}"'):
        assert parse_invitation(text) == invitation
    assert CODE not in repr(invitation)


def test_a_line_may_have_several_addresses() -> None:
    addresses = tuple(map(parse_target, ("wss://box.example/a,b/acp", "wss://10.0.0.5:7443", "wss://[fd00::5]:1/acp")))
    invitation = Invitation(addresses[0], CODE, PIN, addresses[1:])
    assert str(invitation).startswith("wss://box.example:443/a,b/acp,wss://10.0.0.5:7443/acp,wss://[fd00::5]:1/acp#")
    assert parse_invitation(str(invitation)) == invitation
    assert invitation.addresses == addresses


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("wss://box:1/acp,ws://box:2/acp#CODE", "unencrypted"),
        (",".join(9 * ["wss://box:1/acp"]) + "#CODE", "at most 8 addresses"),
        ("", "there is no invitation: give the line that `share` or `nodes add` has printed"),
        ("wss://box:7443/acp", "not an invitation of `acp-gateway share` or `nodes add`"),
        ("wss://box:7443/acp#TOKEN", "not an invitation"),
        pytest.param(
            f"https://box:7443/#{mint('code')}/s/1", "it is a link for a browser, so open it in one", id="link"
        ),
        pytest.param(mint(), "it is a token, so save it in a file of mode 600", id="token"),
        ("wss://box:7443/acp#CUT", "not whole"),
        ("tcp+tls://box:1#CODE", "not an address at which"),
        ("ws://box:1/acp#CODE", "unencrypted"),
        ("wss://box:1/acp#CODE,sha256:0", "the end of this invitation is missing"),
        ("ftp://box#CODE", "unknown scheme"),
    ],
)
def test_another_line_is_refused_without_its_secret(line: str, why: str) -> None:
    line = line.replace("TOKEN", TOKEN).replace("CODE", CODE).replace("CUT", CODE[:-1])
    with pytest.raises(UsageError, match=why) as caught:
        parse_invitation(line)
    assert CODE[:-1] not in str(caught.value)


def test_the_exchange_is_beside_the_endpoint() -> None:
    assert join_path(parse_target("wss://box/gateway/acp")) == "/gateway/join"
    assert join_path(parse_target("box")) == "/join"


class Server:
    """An HTTP server that answers each request in one way."""

    def __init__(self, status: int, body: str) -> None:
        self.response = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body.encode())}\r\n\r\n{body}".encode()
        self.requests: list[str] = []

    async def handle(self, stream: trio.SocketStream) -> None:
        challenge = re.search(r"Challenge: (\S+)", (await stream.receive_some()).decode())
        assert challenge is not None
        proof = answer(challenge[1], [digest(CODE)], "127.0.0.1")
        assert proof is not None
        await stream.send_all(f"HTTP/1.1 401 X\r\nAcp-Gateway-Proof: {proof[0]}\r\nContent-Length: 0\r\n\r\n".encode())
        received = b""
        while b"}" not in received:
            received += await stream.receive_some()
        self.requests.append(received.decode())
        await stream.send_all(self.response)

    @asynccontextmanager
    async def invitation(self) -> AsyncIterator[Invitation]:
        """An invitation to this server."""
        with trio.fail_after(TIMEOUT):
            async with trio.open_nursery() as nursery:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, self.handle, [listener])
                port = listener.socket.getsockname()[1]
                yield Invitation(parse_target(f"ws://127.0.0.1:{port}/acp"), CODE)
                nursery.cancel_scope.cancel()


async def test_the_code_is_sent_in_the_body_and_the_token_returned() -> None:
    server = Server(200, json.dumps(ANSWER))
    async with server.invitation() as invitation:
        joined = await join(invitation)
    assert joined == Joined(TOKEN, "0a0a0a0a", "observer", "s1", None, invitation.address)
    assert TOKEN not in repr(joined)
    (request,) = server.requests
    head, _, body = request.partition("\r\n\r\n")
    assert head.startswith("POST /join HTTP/1.1")
    assert json.loads(body) == {"code": CODE}
    assert CODE not in head


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (401, "this invitation is not valid\x1b[2J", Unauthorized, r"not valid\\x1b"),
        (403, "no", AccessError, "no"),
        (429, "later", AccessError, "later"),
        (404, "<html>", ProtocolError, "knows invitations"),
        (502, "bad", Unreachable, "HTTP 502: bad"),
        (200, "<html>", ProtocolError, "not understood"),
        (200, "[]", ProtocolError, "not understood"),
        (200, json.dumps(ANSWER | {"token": "x"}), ProtocolError, "not understood"),
        (200, json.dumps(ANSWER | {"tokenId": "../x"}), ProtocolError, "not understood"),
        (200, json.dumps(ANSWER | {"session": 3}), ProtocolError, "not understood"),
    ],
)
async def test_a_refusal_is_told_by_its_kind(status: int, body: str, kind: type[GatewayError], words: str) -> None:
    async with Server(status, body).invitation() as invitation:
        with pytest.raises(kind, match=words) as caught:
            await join(invitation)
    assert CODE not in str(caught.value)


async def test_a_server_that_hangs_up_is_an_error() -> None:
    server = Server(200, "")
    server.response = b""
    async with server.invitation() as invitation:
        with pytest.raises(Unreachable):
            await join(invitation)


async def test_a_server_that_says_nothing_is_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async def say_nothing(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    server: Any = Server(200, "")
    server.handle = say_nothing
    async with server.invitation() as invitation:
        with pytest.raises(Unreachable, match="tried for 5 s"):
            await join(invitation, time_limit=5.0)


async def test_of_several_addresses_the_code_goes_to_the_one_that_answers() -> None:
    server = Server(200, json.dumps(ANSWER))
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = parse_target(f"ws://127.0.0.1:{free.getsockname()[1]}/acp")
    async with server.invitation() as invitation:
        joined = await join(replace(invitation, address=dead, others=(invitation.address,)))
    assert joined.token_id == "0a0a0a0a"
    (request,) = server.requests
    assert f"Host: 127.0.0.1:{invitation.address.port}\r\n" in request


async def test_if_no_address_works_each_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    dead = tuple(parse_target(f"ws://{host}:{port}/acp") for host in ("127.0.0.1", "localhost"))
    with pytest.raises(Unreachable) as caught:
        await join(Invitation(dead[0], CODE, None, dead[1:]))
    assert [line.split(": ")[0] for line in str(caught.value).split("\n")[1:]] == list(map(str, dead))
