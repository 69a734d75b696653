"""Gateways without TLS that prove themselves before a client shows its token, and other programs at their ports."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from acp_gateway.client.dialing import Destination, dial
from acp_gateway.client.joining import Invitation, join
from acp_gateway.config.addresses import Address, parse_target
from acp_gateway.config.limits import LimitsSection
from acp_gateway.errors import GatewayError, ProtocolError, Unauthorized
from acp_gateway.security.invitations import InvitationStore
from acp_gateway.security.proof import answer
from acp_gateway.security.token_format import digest, mint
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.http.routes import SharedState
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import TIMEOUT
from tests.kit.echoing import PING, TCP, WS, EchoingGateway, answer_to, ask, destination, hello, listening, with_tls

UNPROVEN = "did not prove that it knows this token, which was not sent"

CHALLENGE = f"{'0' * 16}.{'0' * 32}"
"""That of a token which no gateway has."""


@pytest.mark.parametrize("url", [WS, TCP])
async def test_a_token_goes_to_a_gateway_that_proves_that_it_knows_it(url: str, gateway: EchoingGateway) -> None:
    async with listening(url, gateway) as listener, trio.open_nursery() as nursery:
        stream = await dial(destination(listener, gateway.token()), Timing())
        nursery.start_soon(stream.run)
        await stream.send(PING)
        assert await stream.receive() == PING
        await stream.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("url", [WS, TCP])
async def test_a_token_that_was_valid_is_refused_and_one_that_is_not_known_is_not_sent(
    url: str, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    entry, secret = gateway.tokens.create("laptop", "ann", None)
    TokenStore(gateway.config.gateway.state_dir, lambda: 1e9).rotate(entry.id, grace=60.0)
    async with listening(url, gateway) as listener:
        asked = destination(listener, secret)
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await dial(asked, Timing())
            if gateway.tokens.tokens():
                gateway.tokens.revoke(entry.id)
        caplog.clear()
        with pytest.raises(ProtocolError, match=UNPROVEN) as caught:
            await dial(replace(asked, token=mint()), Timing())
    assert "a client has a token that is not known here, and was not sent" in caplog.text
    assert "acpgw_" not in f"{caught.value} {caplog.text}"


@pytest.mark.usefixtures("hasty")
async def test_challenges_for_unknown_tokens_are_counted_as_wrong_tokens(gateway: EchoingGateway) -> None:
    gateway.config = replace(gateway.config, limits=LimitsSection(failed_attempts=2))
    shared = SharedState(gateway)
    async with listening(WS, gateway, shared) as listener:
        for challenge in (*3 * [CHALLENGE], "x"):
            response = await ask(listener, "/acp", f"Acp-Gateway-Challenge: {challenge}", "Connection: close")
            assert response.status in (401, 429)
            assert len(response.headers.get("acp-gateway-proof", ())) == (challenge != "x")
        assert shared.limiter.refusals.counts["unauthorized"] == 4
        await (await dial(destination(listener, gateway.token()), Timing())).aclose()


@pytest.mark.parametrize("url", ["tcp+tls", "wss", "unix"])
async def test_a_listener_that_is_trusted_otherwise_gives_no_proof_that_could_be_passed_on(
    url: str, unix: str, gateway: EchoingGateway, certificate: Path
) -> None:
    section = with_tls(unix if url == "unix" else f"{url}://127.0.0.1:0", certificate)
    async with listening(section, gateway) as listener:
        assert not destination(listener, gateway.token()).demands_proof
        if url == "unix":
            assert (await answer_to(listener, hello(challenge=CHALLENGE)))["error"]["code"] == 401


async def test_an_invitation_is_used_only_where_its_code_is_known(gateway: EchoingGateway) -> None:
    token, _ = gateway.tokens.create_guest("s1", role="observer", lifetime=3600.0)
    store = InvitationStore(gateway.config.gateway.state_dir, gateway.tokens)
    async with listening(WS, gateway) as listener:
        invitation = Invitation(parse_target(listener.urls[0]), store.invite(token)[1])
        assert (await join(invitation)).token_id == token.id
        with pytest.raises(ProtocolError, match=UNPROVEN):
            await join(invitation)


# Another program at the port


class Impostor:
    """Notes what it reads, and answers by a function of it; "" closes."""

    def __init__(self, respond: Callable[[str], str]) -> None:
        self.read = ""
        self._respond = respond

    async def _handle(self, stream: trio.SocketStream) -> None:
        async with stream:
            async for data in stream:
                self.read += data.decode()
                said = self._respond(data.decode())
                if not said:
                    return
                await stream.send_all(said.encode())

    @asynccontextmanager
    async def at(self, scheme: str) -> AsyncIterator[Address]:
        with trio.fail_after(TIMEOUT):
            async with trio.open_nursery() as nursery:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, self._handle, [listener])
                yield parse_target(f"{scheme}://127.0.0.1:{listener.socket.getsockname()[1]}")
                nursery.cancel_scope.cancel()


def in_form(scheme: str, proof: str) -> str:
    """The answer with a proof."""
    if scheme == "tcp":
        return f'{{"jsonrpc":"2.0","id":0,"result":{{"proof":"{proof}"}}}}\n'
    return f"HTTP/1.1 401 No\r\nAcp-Gateway-Proof: {proof}\r\nContent-Length: 0\r\n\r\n"


OTHERS = {
    "a program that says nothing": ("", ""),
    "a gateway of before": (
        '{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no","data":{"reason":"protocol"}}}\n',
        "HTTP/1.1 401 No\r\nAcp-Gateway: unauthorized\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
    ),
    "one that accepts all clients": (
        '{"jsonrpc":"2.0","id":0,"result":{"connectionId":"x"}}\n',
        "HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n",
    ),
    "a web server": ("HTTP/1.1 400 No\r\n\r\n", "HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno"),
}


@pytest.mark.parametrize("scheme", ["tcp", "ws", "http"])
async def test_another_program_at_the_port_gets_no_token(scheme: str, gateway: EchoingGateway) -> None:
    token = gateway.token()

    def prove(heard: str, secret: str) -> str:
        found = re.search(r"[0-9a-f]{16}\.[0-9a-f]{32}", heard)
        assert found is not None
        proof = answer(found[0], [digest(secret)], "127.0.0.1")
        assert proof is not None
        return in_form(scheme, proof[0])

    async def meet(respond: Callable[[str], str]) -> tuple[str, str]:
        """Return the bytes that the program has read, and the error of the client."""
        impostor = Impostor(respond)
        async with impostor.at(scheme) as address:
            with pytest.raises(GatewayError) as caught:
                await dial(Destination(address, None, token, None, None, 4096), Timing())
        assert token not in str(caught.value)
        return impostor.read, str(caught.value)

    for name, answers in OTHERS.items():
        heard, error = await meet(lambda _, said=answers[scheme != "tcp"]: said)  # type: ignore[misc]
        assert token not in heard, name
        assert UNPROVEN in error or name != "a gateway of before"
    heard, error = await meet(lambda heard: prove(heard, gateway.token()))
    assert token not in heard
    assert UNPROVEN in error
    replayed = prove(heard, token)
    heard, error = await meet(lambda _: replayed)
    assert token not in heard
    assert UNPROVEN in error
    # A right proof is what the token waits for.
    assert token in (await meet(lambda heard: "" if token in heard else prove(heard, token)))[0]
