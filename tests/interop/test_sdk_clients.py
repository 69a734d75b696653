"""The clients of the protocol's SDKs, each in the same conversations with the real gateway."""

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop.conftest import port_of
from tests.interop.cutting_proxy import CuttingProxy
from tests.interop.sdk_clients import SdkClient, sdk_client
from tests.kit.running import RunningGateway

pytestmark = pytest.mark.interop

SDKS = ["typescript-http", "typescript-ws", "typescript-native-ws", "python-http", "python-ws", "rust-habits"]

OVER_HTTP = ["typescript-http", "python-http", "rust-habits"]

THOUSAND = [str(number) for number in range(1000)]

LONG = [f"{number} {'x' * 3000}" for number in THOUSAND]
"""As many as are in several TCP connections at once."""

FATAL = [(sdk, "connection") for sdk in SDKS] + [("typescript-http", "session"), ("rust-habits", "session")]
"""Clients for which the loss of a stream is the end: of the connection's stream, or the WebSocket, or a session's."""


async def open_gate(gate: Path) -> None:
    """Have the agent go on."""
    await trio.to_thread.run_sync(gate.write_text, "\n")


async def begin_gated_turn(client: SdkClient, gate: Path, **capabilities: Any) -> tuple[str, int]:
    """Begin a turn whose first half the client has been told; return its session and the number of its prompt."""
    await client.initialize(**capabilities)
    session = await client.new_session()
    prompt = await client.begin_prompt(session, "one", "two", f"gate {gate}", "three", "four")
    await client.until(lambda: client.said(session) == ["one", "two"])
    return session, prompt


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_thousand_updates_arrive_once_and_in_order(sdk: str, gateway: RunningGateway) -> None:
    async with sdk_client(sdk, port_of(gateway), gateway.token) as client:
        await client.initialize()
        session = await client.new_session()
        assert await client.prompt(session, *THOUSAND) == "end_turn"
        assert client.said(session) == THOUSAND


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_permission_is_asked_and_answered(sdk: str, gateway: RunningGateway) -> None:
    async with sdk_client(sdk, port_of(gateway), gateway.token) as client:
        await client.initialize()
        session = await client.new_session()
        turn = await client.begin_prompt(session, "ask", "ask")
        await client.until(lambda: client.asked)
        await client.decide("no")
        assert (await client.answer(turn))["result"]["stopReason"] == "end_turn"
        assert (client.asked, client.said(session)) == (["do it"] * 2, ["no"] * 2)


@pytest.mark.parametrize("sdk", SDKS)
async def test_session_cancel_ends_a_turn(sdk: str, gateway: RunningGateway) -> None:
    async with sdk_client(sdk, port_of(gateway), gateway.token) as client:
        await client.initialize()
        session = await client.new_session()
        turn = await client.begin_prompt(session, "waiting", "wait")
        await client.until(lambda: client.said(session) == ["waiting"])
        await client.notify("session/cancel", sessionId=session)
        assert (await client.answer(turn))["result"]["stopReason"] == "cancelled"


@pytest.mark.parametrize("sdk", SDKS)
async def test_session_load_replays_the_session_of_a_client_that_has_left(sdk: str, gateway: RunningGateway) -> None:
    async with sdk_client(sdk, port_of(gateway), gateway.token) as first:
        await first.initialize()
        session = await first.new_session()
        await first.prompt(session, *THOUSAND)
    async with sdk_client(sdk, port_of(gateway), gateway.token) as second:
        await second.initialize()
        await second.load(session)
        assert await second.prompt(session, "more") == "end_turn"
        assert second.said(session) == [*THOUSAND, "more"]


@pytest.mark.parametrize("sdk", SDKS)
async def test_two_clients_of_a_session_see_each_others_turns(sdk: str, gateway: RunningGateway) -> None:
    other = SDKS[SDKS.index(sdk) - 1]
    async with (
        sdk_client(sdk, port_of(gateway), gateway.token) as ann,
        sdk_client(other, port_of(gateway), gateway.token) as bob,
    ):
        await ann.initialize()
        session = await ann.new_session()
        await ann.prompt(session, "before")
        await bob.initialize()
        await bob.load(session)
        await ann.prompt(session, *THOUSAND)
        await bob.until(lambda: len(bob.said(session)) > len(THOUSAND))
        await bob.prompt(session, "after")
        await ann.until(lambda: "after" in ann.said(session))
        await bob.until(lambda: "after" in bob.said(session))
        assert ann.said(session) == bob.said(session) == ["before", *THOUSAND, "after"]


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_client_that_loads_a_session_in_the_middle_of_a_turn_sees_all_of_it(
    sdk: str, gateway: RunningGateway
) -> None:
    async with (
        sdk_client(sdk, port_of(gateway), gateway.token) as ann,
        sdk_client(sdk, port_of(gateway), gateway.token) as bob,
    ):
        await ann.initialize()
        await bob.initialize()
        session = await ann.new_session()
        await ann.prompt(session, *LONG[:300])
        turn = await ann.begin_prompt(session, *LONG[300:])
        await ann.until(lambda: len(ann.said(session)) > 400)
        await bob.load(session)
        await ann.answer(turn)
        await bob.until(lambda: len(bob.said(session)) >= len(LONG))
        assert [text.split()[0] for text in bob.said(session)] == THOUSAND


@pytest.mark.parametrize(("sdk", "stream"), FATAL)
async def test_a_client_that_ends_with_a_stream_is_told_and_loads_the_rest_over_another_connection(
    sdk: str, stream: str, gateway: RunningGateway, proxy: CuttingProxy, gate: Path
) -> None:
    async with sdk_client(sdk, proxy.port, gateway.token) as client:
        session, turn = await begin_gated_turn(client, gate)
        proxy.cut(session if stream == "session" else "")
        await client.until(lambda: client.ended)
        if sdk != "rust-habits":
            assert "error" in await client.answer(turn)
    async with sdk_client(sdk, proxy.port, gateway.token) as client:
        await client.initialize()
        await client.load(session)
        await open_gate(gate)
        await client.until(lambda: "four" in client.said(session))
        assert client.said(session) == ["one", "two", "three", "four"]


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
@pytest.mark.parametrize(("sdk", "stream"), FATAL)
async def test_a_client_that_names_its_cursor_over_another_connection_gets_the_rest_of_its_turn_once(
    sdk: str, stream: str, method: str, gateway: RunningGateway, proxy: CuttingProxy, gate: Path
) -> None:
    asks = {"_meta": {"acp-gateway": {"cursors": True}}}
    async with sdk_client(sdk, proxy.port, gateway.token) as client:
        session, _ = await begin_gated_turn(client, gate, **asks)
        cursor = client.cursor
        proxy.cut(session if stream == "session" else "")
        await client.until(lambda: client.ended)
    async with sdk_client(sdk, proxy.port, gateway.token) as client:
        await client.initialize(**asks)
        replay = {"acp-gateway": {"replayFrom": {"type": "cursor", "cursorId": cursor}}}
        result = await client.request(method, sessionId=session, cwd="/", mcpServers=[], _meta=replay)
        told = result["_meta"]["acp-gateway"]
        assert (told["replayed"], told["status"]["state"]) == ("missed", "running")
        await open_gate(gate)
        await client.until(lambda: any(news["event"] == "turn_ended" for news in client.news))
        # Over HTTP they may come in two streams.
        await client.until(lambda: len(client.said(session)) >= 2)
        assert client.said(session) == ["three", "four"]
        assert [news["stopReason"] for news in client.news if news["event"] == "turn_ended"] == ["end_turn"]


async def test_the_python_client_sees_the_rest_of_a_turn_after_the_loss_of_the_sessions_stream(
    gateway: RunningGateway, proxy: CuttingProxy, gate: Path
) -> None:
    async with sdk_client("python-http", proxy.port, gateway.token) as client:
        session, turn = await begin_gated_turn(client, gate)
        proxy.cut(session)
        await open_gate(gate)
        assert (await client.answer(turn))["result"]["stopReason"] == "end_turn"
        assert not client.ended
        assert await client.prompt(session, "five") == "end_turn"
        assert client.said(session) == ["one", "two", "three", "four", "five"]
