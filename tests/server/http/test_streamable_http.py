"""ACP over Streamable HTTP: conversations over it, and its limits. Each status code is in `test_http_statuses`."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol import jsonrpc
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.http.link import HttpLink
from acp_gateway.server.http.streamable_http import INITIALIZE_SIZE, _with_session
from acp_gateway.server.pending import PendingConnection
from acp_gateway.transports.maintained import Meter
from tests.doubles import ServingAgents, make_config
from tests.server.echoing import WS
from tests.server.http_client import INITIALIZE, JSON, NEW, Client, http_client, new_session
from tests.transports.wires import MIB


@pytest.fixture
def gateway(agents: ServingAgents, spawner: Spawner, tmp_path: Path) -> Gateway:
    return Gateway(make_config(tmp_path / "state", WS), TokenStore(tmp_path / "state"), spawner, {})


# Requests


async def test_initialize_is_answered_in_its_body_and_names_the_connection(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        reply = await ann.initialize()
        assert reply.headers["content-type"] == "application/json"
        assert json.loads(reply.body)["result"]["protocolVersion"] == 1
        assert (await ann.post(INITIALIZE)).status == 400


async def test_initialize_needs_an_id_and_a_size(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        assert (await ann.post({**INITIALIZE, "id": None})).status == 400
        assert (await ann.post({"jsonrpc": "2.0", "method": "initialize", "params": {}})).status == 400
        assert (await ann.post(b" " * INITIALIZE_SIZE + b"{}")).status == 413
        assert len(gateway.connections) == 0


async def test_a_session_in_the_header_alone_is_put_into_params(gateway: Gateway, agents: ServingAgents) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            session = await new_session(ann, events)
            params = {"prompt": [{"type": "text", "text": "x" * 2_000_000}]}
            body = {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params}
            assert (await ann.post(body, Acp_Session_Id=session)).status == 202
            assert (await agents[0].got("session/prompt"))["params"] == {"sessionId": session, **params}


@pytest.mark.parametrize("text", ['{"method":"m"}', '{"method":"m","params":{}}', '{ "params": { } , "method":"m"}'])
def test_a_session_is_put_before_all_other_members(text: str) -> None:
    message = jsonrpc.parse(text.replace("{", '{"jsonrpc":"2.0",', 1).encode())
    found = json.loads(_with_session(message, "s"))
    assert found == {"jsonrpc": "2.0", "method": "m", "params": {"sessionId": "s"}}


async def test_a_client_that_goes_on_sending_a_body_that_was_refused_is_read_no_further_than_max_discarded(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.transports.sockets.MAX_DISCARDED", MIB)
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.connection() as http:
            fields = {**ann.fields(JSON), "Host": "localhost", "Content-Length": str(1 << 40)}
            head = ["POST /acp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
            await http.stream.send_all("\r\n".join(head).encode())
            sent = 0
            with suppress(trio.BrokenResourceError):
                while True:
                    await http.stream.send_all(bytes(65536))
                    sent += 65536
            # Besides what the two systems keep.
            assert sent < 32 * MIB


async def test_a_second_reader_of_a_stream_is_409(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events, ann.stream("s") as other:
            assert (events.reply.status, other.reply.status) == (200, 200)
            assert events.reply.headers["content-type"] == "text/event-stream"
            assert events.reply.headers["cache-control"] == "no-cache"
            assert events.reply.headers["x-accel-buffering"] == "no"
            async with ann.stream() as second, ann.stream("s") as third:
                assert (second.reply.status, third.reply.status) == (409, 409)


async def test_delete_ends_the_connection(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            assert (await ann.ask("DELETE")).status == 202
            with pytest.raises(EOFError):
                await events.next()
        assert (await ann.ask("DELETE")).status == 404
        assert (await ann.post(NEW)).status == 404
        while len(gateway.connections):
            await trio.lowlevel.checkpoint()


async def test_requests_follow_each_other_on_one_connection(gateway: Gateway) -> None:
    async with http_client(gateway) as ann, ann.connection() as http:
        reply = await http.ask("POST", "/acp", INITIALIZE, **ann.fields(JSON))
        ann.link = reply.headers["acp-connection-id"]
        assert (await http.ask("POST", "/acp", NEW, **ann.fields(JSON))).status == 202
        assert (await http.ask("GET", "/healthz", None)).status == 200
        assert (await http.ask("DELETE", "/acp", None, **ann.fields({}))).status == 202


# Conversations


async def test_a_prompt_is_answered_in_its_sessions_stream(gateway: Gateway, agents: ServingAgents) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            session = await new_session(ann, events)
            async with ann.stream(session) as updates:
                prompt = {"jsonrpc": "2.0", "id": 2, "method": "session/prompt"}
                await ann.post({**prompt, "params": {"sessionId": session, "prompt": []}})
                await agents[0].got("session/prompt")
                for number in range(3):
                    params = {
                        "sessionId": session,
                        "update": {"sessionUpdate": "agent_message_chunk", "number": number},
                    }
                    await agents[0].send(method="session/update", params=params)
                cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
                assert (await ann.post(cancel)).status == 202
                for _ in range(3):
                    assert (await updates.next())["method"] == "session/update"
                assert (await updates.next())["result"] == {"stopReason": "cancelled"}


async def test_a_response_needs_no_session_header(gateway: Gateway, agents: ServingAgents) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            session = await new_session(ann, events)
            async with ann.stream(session) as updates:
                await agents[0].send(id=7, method="_test/ask", params={"sessionId": session})
                asked = await updates.next()
                assert (await ann.post({"jsonrpc": "2.0", "id": asked["id"], "result": "yes"})).status == 202
                while agents[0].received[-1].get("result") != "yes":
                    await trio.lowlevel.checkpoint()
                assert agents[0].received[-1]["id"] == 7


async def test_a_replay_is_in_the_sessions_stream_if_that_was_opened_before_session_load(
    gateway: Gateway, agents: ServingAgents
) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            session = await new_session(ann, events)
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "before"}}
        await agents[0].send(method="session/update", params={"sessionId": session, "update": update})
        bob = Client(ann.listener, ann.token)
        await bob.initialize()
        load = {"sessionId": session, "cwd": "/", "mcpServers": []}
        async with bob.stream() as events, bob.stream(session) as updates:
            await bob.post(
                {"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": load}, Acp_Session_Id=session
            )
            assert (await updates.next())["params"]["update"] == update
            assert (await events.next())["id"] == 1


# Limits


def limited(gateway: Gateway, spawner: Spawner, **limits: Any) -> Gateway:
    """A gateway like this one with other limits."""
    config = replace(gateway.config, limits=replace(gateway.config.limits, **limits))
    return Gateway(config, gateway.tokens, spawner, {})


async def test_the_body_of_initialize_must_come_within_handshake_timeout(
    gateway: Gateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with http_client(gateway) as ann, ann.connection() as http:
        head = ["POST /acp HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Content-Length: 2", ""]
        head[-1:] = [f"{name}: {value}" for name, value in ann.fields({}).items()]
        await http.stream.send_all("\r\n".join([*head, "", "{"]).encode())
        assert await http.stream.receive_some() == b""
        assert trio.current_time() >= gateway.config.gateway.handshake_timeout
        assert len(gateway.connections) == 0


async def test_each_pipelined_request_takes_a_step_of_the_handshake_limits(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    step = HandshakeLimiter.step

    async def counted(self: HandshakeLimiter, connection: PendingConnection, **options: Any) -> None:
        nonlocal steps
        steps += 1
        await step(self, connection, **options)

    monkeypatch.setattr(HandshakeLimiter, "step", counted)
    async with http_client(gateway) as ann, ann.connection() as http:
        await http.stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        data = b""
        while data.count(b"HTTP/1.1 200 ") < 20:
            data += await http.stream.receive_some()
        assert steps >= 20


async def test_small_chunks_are_429_beyond_frames_without_message(gateway: Gateway, spawner: Spawner) -> None:
    async with http_client(limited(gateway, spawner, frames_without_message=100)) as ann:
        await ann.initialize()
        async with ann.connection() as http:
            fields = {**ann.fields(JSON), "Transfer-Encoding": "chunked", "Host": "localhost"}
            head = ["POST /acp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
            await http.stream.send_all("\r\n".join(head).encode() + b"1\r\n \r\n" * 1000)
            assert (await http.stream.receive_some()).startswith(b"HTTP/1.1 429 ")


@pytest.mark.parametrize(("method", "status"), [("_x/y", 202), ("_acp-gateway/x", 400)])
async def test_the_time_to_read_a_message_counts_for_loop_share_whether_it_is_accepted_or_not(
    method: str, status: int, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = []
    pay = Meter.pay

    async def paid(self: Meter, spent: float = 0.0) -> None:
        seconds.append(spent)
        await pay(self, spent)

    async with http_client(gateway) as ann:
        await ann.initialize()
        monkeypatch.setattr(Meter, "pay", paid)
        assert (await ann.post({"jsonrpc": "2.0", "method": method, "params": {}})).status == status
        assert max(seconds) > 0


async def test_messages_that_wait_for_room_reach_the_agent_in_the_order_in_which_they_came(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: dict[HttpLink, None] = {}
    order = []
    post, full = HttpLink.post, True

    def has_room(link: HttpLink) -> bool:
        waiting[link] = None
        return not full

    def posted(link: HttpLink, message: bytes) -> None:
        order.append(json.loads(message)["method"])
        post(link, message)

    async with http_client(gateway) as ann:
        await ann.initialize()
        monkeypatch.setattr(HttpLink, "has_room", property(has_room))
        monkeypatch.setattr(HttpLink, "post", posted)
        methods = [f"_x/{number}" for number in range(5)]
        async with trio.open_nursery() as posts:
            for number, method in enumerate(methods):
                posts.start_soon(ann.post, {"jsonrpc": "2.0", "method": method, "params": {}})
                while not waiting or next(iter(waiting)).posting <= number:
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert order == []
            full = False
            for link in waiting:
                link.taken.notify()
        assert order == methods


async def test_more_than_max_event_streams_is_429(gateway: Gateway, spawner: Spawner) -> None:
    async with http_client(limited(gateway, spawner, max_event_streams=2)) as ann:
        await ann.initialize()
        async with ann.stream(), ann.stream("s"), ann.stream("t") as third, ann.stream("s") as second:
            assert (third.reply.status, third.reply.headers["retry-after"]) == (429, "1")
            assert second.reply.status == 409


async def test_a_client_that_leaves_during_initialize_leaves_no_connection(
    gateway: Gateway, agents: ServingAgents
) -> None:
    gate = trio.Event()
    run = agents.run

    async def slowly(*args: Any, **options: Any) -> None:
        await gate.wait()
        await run(*args, **options)

    agents.run = slowly  # type: ignore[method-assign]
    async with http_client(gateway) as ann:
        async with ann.connection() as http:
            fields = {**ann.fields(JSON), "Host": "localhost", "Content-Length": str(len(json.dumps(INITIALIZE)))}
            head = "\r\n".join(["POST /acp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""])
            await http.stream.send_all((head + json.dumps(INITIALIZE)).encode())
            while not len(gateway.connections):
                await trio.lowlevel.checkpoint()
        while len(gateway.connections):
            await trio.lowlevel.checkpoint()


async def test_a_client_counts_as_heard_while_its_initialize_waits_for_a_slow_agent(
    gateway: Gateway, agents: ServingAgents
) -> None:
    gate = trio.Event()
    run = agents.run

    async def slowly(*args: Any, **options: Any) -> None:
        await gate.wait()
        await run(*args, **options)

    agents.run = slowly  # type: ignore[method-assign]
    async with http_client(gateway) as ann, trio.open_nursery() as nursery:
        nursery.start_soon(ann.initialize)
        while not gateway.hubs or not (attachments := [*gateway.hubs[0].attachments.values()]):
            await trio.lowlevel.checkpoint()
        assert attachments[0].connection is not None
        stream = attachments[0].connection.stream
        stream.tick(1e9)
        assert stream.last_received_at == 1e9
        gate.set()


async def test_an_upgrade_to_http_2_is_ignored(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        reply = await ann.ask("POST", INITIALIZE, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", **JSON)
        assert reply.status == 200
