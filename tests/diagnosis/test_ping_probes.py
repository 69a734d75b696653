"""A ping of a gateway of the product's own, on a unix socket and on loopback, and of servers that are not gateways."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from acp_gateway.client.dialing import Destination
from acp_gateway.config.addresses import Address, parse_address
from acp_gateway.diagnosis.checks import Line
from acp_gateway.diagnosis.ping import TOKEN_TIMEOUT, NetworkProbes, Ping, PingSettings, RefusedError
from acp_gateway.diagnosis.ping_checks import TlsFacts
from acp_gateway.errors import ProtocolError, Unreachable
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.tls import server_context
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.listener import open_listener
from tests.kit.doubles import TIMEOUT, ServingAgents, make_config


async def ping(destination: Destination, folder: str = "/") -> list[Line]:
    lines: list[Line] = []
    with trio.fail_after(TIMEOUT):
        await Ping(destination, PingSettings(folder, PathMaps([])), lines.append, NetworkProbes()).run()
    return lines


@asynccontextmanager
async def real_gateway(
    state_dir: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Gateway, Destination]]:
    """A gateway with agents in memory behind a listener, and its destination, without a token."""
    monkeypatch.setattr(startup, "run_agent", ServingAgents().run)
    url = f"unix://{state_dir}/socket" if scheme == "unix" else f"{scheme}://127.0.0.1:0"
    config = make_config(state_dir, url)
    with trio.fail_after(TIMEOUT), Spawner(ProcessRegistry(state_dir / "agents")) as spawner:
        gateway = Gateway(config, TokenStore(state_dir), spawner, {})
        async with trio.open_nursery() as nursery:
            await nursery.start(gateway.run)
            gateway_listener = await open_listener(config.listen[0], gateway)
            nursery.start_soon(gateway_listener.run, nursery)
            address = parse_address(gateway_listener.urls[0])
            yield gateway, Destination(address, None, None, None, None, 1 << 20, control=True)
            nursery.cancel_scope.cancel()
            gateway_listener.close()


@pytest.mark.parametrize("scheme", ["unix", "ws", "tcp"])
async def test_a_ping_of_a_real_gateway_leaves_no_session_behind(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_gateway(tmp_path, scheme, monkeypatch) as (gateway, destination):
        ann = replace(destination, token=gateway.tokens.create("laptop", "ann", None)[1], control=False)
        lines = await ping(ann)
        names = ["port", "token", "agent", "session"]
        assert [line.name for line in lines] == names if scheme == "unix" else ["name", *names]
        assert {line.status for line in lines} == {"ok"}
        assert ": controller, agents obliging" in lines[-3].text
        assert lines[-1].text == "opens in /; closed again"
        assert list(gateway.registry) == []
        refused = await ping(ann, str(tmp_path / "absent"))
        assert (refused[-1].name, refused[-1].exit_code) == ("session", 3)
        assert "maps = {" in refused[-1].remedy


async def test_a_wrong_token_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with real_gateway(tmp_path, "ws", monkeypatch) as (_, destination):
        line = (await ping(replace(destination, token="acpgw_wrong", control=False)))[-1]
    assert (line.name, line.exit_code) == ("token", 4)


@asynccontextmanager
async def server(handle: Callable[[trio.abc.Stream], Awaitable[None]], scheme: str = "tcp") -> AsyncIterator[Address]:
    """A server of the test's own on loopback."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield parse_address(f"{scheme}://127.0.0.1:{listener.socket.getsockname()[1]}")
        nursery.cancel_scope.cancel()


def to(address: Address) -> Destination:
    return Destination(address, None, None, None, None, 4096)


async def answer(stream: trio.abc.Stream, *lines: bytes) -> None:
    """Answer each line with one of these, and close after the next one."""
    for line in lines:
        await stream.receive_some()
        await stream.send_all(line + b"\n")
    await stream.receive_some()
    await stream.aclose()


HELLO = b'{"jsonrpc":"2.0","id":0,"result":{}}'


async def test_a_gateway_that_does_not_know_the_request_is_told_from_one_that_refuses() -> None:
    async def old(stream: trio.abc.Stream) -> None:
        await answer(stream, HELLO, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"what"}}')

    async def broken(stream: trio.abc.Stream) -> None:
        await answer(stream, HELLO, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"what"}}')

    async with server(old) as address:
        with pytest.raises(RefusedError):
            await NetworkProbes().read_access(to(address))
    async with server(broken) as address:
        with pytest.raises(ProtocolError):
            await NetworkProbes().read_access(to(address))


async def test_an_answer_that_is_not_an_object_tells_nothing() -> None:
    async def odd(stream: trio.abc.Stream) -> None:
        await answer(stream, HELLO, b'{"jsonrpc":"2.0","id":1,"result":[]}')

    async with server(odd) as address:
        assert await NetworkProbes().read_access(to(address)) == {}


async def test_a_conversation_passes_over_what_is_not_an_answer_and_tells_an_end() -> None:
    async def agent(stream: trio.abc.Stream) -> None:
        replies = b'no json\n{"method":"x"}\n{"id":7}\n{"id":1,"result":3}'
        await answer(stream, HELLO, replies, b'{"id":2,"error":{"code":5,"message":"no"}}')

    async with server(agent) as address, NetworkProbes().converse(to(address)) as conversation:
        assert await conversation.ask("a", {}, TIMEOUT) == {}
        with pytest.raises(RefusedError):
            await conversation.ask("b", {}, TIMEOUT)
        with pytest.raises(Unreachable, match="closed without an answer"):
            await conversation.ask("c", {}, TIMEOUT)


async def test_a_server_that_accepts_and_stays_silent_is_told(autojump_clock: trio.testing.MockClock) -> None:
    async def silent(stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    async with server(silent) as address:
        with pytest.raises(Unreachable, match=f"no connection within {TOKEN_TIMEOUT:g} s"):
            async with NetworkProbes().converse(to(address)):
                raise AssertionError("there is no connection")


async def test_the_facts_of_tls_are_read(tmp_path: Path) -> None:
    made = create_certificate(["127.0.0.1"], tmp_path)
    context = server_context(made.cert_path, made.key_path)

    async def handle(stream: trio.SocketStream) -> None:
        tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        await tls.do_handshake()
        await tls.aclose()

    async with server(handle, "wss") as address:  # type: ignore[arg-type]
        for pin, ca in ((made.pin, None), (None, made.cert_path)):
            facts = await NetworkProbes().shake_hands(replace(to(address), pin=pin, ca=ca))
            assert isinstance(facts, TlsFacts)
            assert (facts.version, facts.pinned) == ("TLSv1.3", pin is not None)
            assert facts.end is not None
            assert facts.end.year > 2030
