"""ACP over Streamable HTTP: every status code, and conversations over it."""

import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.config.load import ListenSection
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.attachment import EXPIRED, Disconnect
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.pending import PendingConnection
from acp_gateway.server.streamable_http import INITIALIZE_SIZE, MAX_POSTS
from acp_gateway.transports.streams import CloseReason
from tests.doubles import ServingAgents, make_config
from tests.server.echoing import WS
from tests.server.http_client import EVENTS, INITIALIZE, JSON, NEW, Client, http_client, new_session


@pytest.fixture
def gateway(agents: ServingAgents, spawner: Spawner, tmp_path: Path) -> Gateway:
    return Gateway(make_config(tmp_path / "state", WS), TokenStore(tmp_path / "state"), spawner, {})


# Status codes


@pytest.mark.parametrize("content_type", ["text/plain", "application/json-rpc", "", "application/json, text/plain"])
async def test_a_post_that_is_not_json_is_415(content_type: str, gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        assert (await ann.ask("POST", INITIALIZE, Content_Type=content_type)).status == 415
        assert (await ann.ask("POST", INITIALIZE)).status == 415


async def test_parameters_of_the_content_type_are_accepted(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        reply = await ann.ask("POST", INITIALIZE, Content_Type="Application/JSON; charset=utf-8")
        assert reply.status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"1", b'"a"', b"null", b"{}"])
async def test_what_is_no_message_is_400(body: bytes, gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        assert (await ann.post(body)).status == 400
        await ann.initialize()
        assert (await ann.post(body)).status == 400


async def test_a_batch_is_400_with_an_error_under_null(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        reply = await ann.post([NEW])
        error = json.loads(reply.body)
        assert (reply.status, error["id"], error["error"]["code"]) == (400, None, -32600)


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


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_the_connection_header_is_required_and_must_be_known(method: str, gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        assert (await ann.ask(method, NEW, **JSON, **EVENTS)).status == 400
        ann.link = "unknown"
        assert (await ann.ask(method, NEW, **JSON, **EVENTS)).status == 404


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_the_connection_of_another_identity_is_404_and_without_a_token_401(method: str, gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        bob = Client(ann.listener, gateway.tokens.create("other", "bob", None)[1], ann.link)
        assert (await bob.ask(method, NEW, **JSON, **EVENTS)).status == 404
        for token in (None, "acpgw_wrong"):
            reply = await Client(ann.listener, token, ann.link).ask(method, NEW, **JSON, **EVENTS)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")


async def test_header_and_params_must_name_the_same_session(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        prompt = {"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {"sessionId": "a", "prompt": []}}
        assert (await ann.post(prompt, Acp_Session_Id="b")).status == 400
        assert (await ann.post(prompt, Acp_Session_Id="a")).status == 202
        assert (await ann.post(prompt, Acp_Session_Id="%61")).status == 202
        assert (await ann.post({**prompt, "id": 3, "params": {"prompt": []}})).status == 400


async def test_a_session_in_the_header_alone_is_put_into_params(gateway: Gateway, agents: ServingAgents) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            session = await new_session(ann, events)
            body = {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": {"prompt": []}}
            assert (await ann.post(body, Acp_Session_Id=session)).status == 202
            assert (await agents[0].got("session/prompt"))["params"]["sessionId"] == session


async def test_a_message_over_max_message_size_is_413(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.connection() as http:
            size = str(gateway.config.gateway.max_message_size + 1)
            head = [
                "POST /acp HTTP/1.1",
                "Host: localhost",
                "Content-Type: application/json",
                f"Content-Length: {size}",
            ]
            head += [f"{name}: {value}" for name, value in ann.fields({}).items()]
            await http.stream.send_all("\r\n".join([*head, "", ""]).encode())
            assert (await http.stream.receive_some()).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("accept", "status"), [("application/json", 406), ("*/*", 200), ("text/*;q=0.5", 200), ("text/event-stream", 200)]
)
async def test_a_stream_must_be_accepted(accept: str, status: int, gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream(Accept=accept) as events:
            assert events.reply.status == status


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


async def test_an_event_id_that_is_not_kept_is_409(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream(Last_Event_ID="nonsense") as events:
            assert events.reply.status == 409


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


@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD"])
async def test_another_method_is_405(method: str, gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        reply = await ann.ask(method)
        assert (reply.status, reply.headers["allow"]) == (405, "GET, POST, DELETE, OPTIONS")


async def test_a_page_of_an_allowed_origin_may_read_responses(gateway: Gateway) -> None:
    origin = "https://editor.example"
    async with http_client(gateway, ListenSection(url=WS, allowed_origins=(origin,)), Origin=origin) as ann:
        preflight = await Client(ann.listener, None, headers={"Origin": origin}).ask("OPTIONS")
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == origin
        assert "last-event-id" in preflight.headers["access-control-allow-headers"]
        reply = await ann.initialize()
        assert reply.headers["access-control-allow-origin"] == origin
        assert reply.headers["access-control-allow-credentials"] == "true"
        assert reply.headers["access-control-expose-headers"] == "Acp-Connection-Id, Acp-Session-Id"
        other = await Client(ann.listener, ann.token, headers={"Origin": "https://evil.example"}).ask("OPTIONS")
        assert (other.status, "access-control-allow-origin" in other.headers) == (403, False)


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

    async def counted(self: HandshakeLimiter, connection: PendingConnection) -> None:
        nonlocal steps
        steps += 1
        await step(self, connection)

    monkeypatch.setattr(HandshakeLimiter, "step", counted)
    async with http_client(gateway) as ann, ann.connection() as http:
        await http.stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        data = b""
        while data.count(b"HTTP/1.1 200 ") < 20:
            data += await http.stream.receive_some()
        assert steps >= 20


async def test_a_flood_of_requests_without_a_message_is_429_beyond_frames_without_message(
    gateway: Gateway, spawner: Spawner
) -> None:
    async with http_client(limited(gateway, spawner, frames_without_message=5)) as ann:
        await ann.initialize()
        async with ann.connection() as http:
            for _ in range(5):
                assert (await http.ask("POST", "/acp", b"{}", **ann.fields(JSON))).status == 400
            reply = await http.ask("POST", "/acp", b"{}", **ann.fields(JSON))
            assert (reply.status, reply.headers["retry-after"], reply.headers["connection"]) == (429, "1", "close")


async def test_small_chunks_are_429_beyond_frames_without_message(gateway: Gateway, spawner: Spawner) -> None:
    async with http_client(limited(gateway, spawner, frames_without_message=100)) as ann:
        await ann.initialize()
        async with ann.connection() as http:
            fields = {**ann.fields(JSON), "Transfer-Encoding": "chunked", "Host": "localhost"}
            head = ["POST /acp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
            await http.stream.send_all("\r\n".join(head).encode() + b"1\r\n \r\n" * 1000)
            assert (await http.stream.receive_some()).startswith(b"HTTP/1.1 429 ")


async def test_more_than_max_event_streams_is_429(gateway: Gateway, spawner: Spawner) -> None:
    async with http_client(limited(gateway, spawner, max_event_streams=2)) as ann:
        await ann.initialize()
        async with ann.stream(), ann.stream("s"), ann.stream("t") as third, ann.stream("s") as second:
            assert (third.reply.status, third.reply.headers["retry-after"]) == (429, "1")
            assert second.reply.status == 409


async def test_more_than_max_posts_at_once_are_429(gateway: Gateway) -> None:
    async with http_client(gateway) as ann, AsyncExitStack() as stack:
        await ann.initialize()
        fields = {**ann.fields(JSON), "Host": "localhost", "Content-Length": "2"}
        head = "\r\n".join(["POST /acp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""])
        posting = [await stack.enter_async_context(ann.connection()) for _ in range(MAX_POSTS)]
        for http in posting:
            await http.stream.send_all(head.encode())
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await ann.post(b"{}")).status == 429


async def test_a_client_that_was_away_for_too_long_is_410(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        (hub,) = gateway.hubs
        (attachment,) = hub.attachments.values()
        attachment.close(Disconnect(CloseReason.POLICY, "away", EXPIRED))
        while hub.attachments:
            await trio.lowlevel.checkpoint()
        for method in ("POST", "GET", "DELETE"):
            assert (await ann.ask(method, NEW, **JSON, **EVENTS)).status == 410
        bob = Client(ann.listener, gateway.tokens.create("other", "bob", None)[1], ann.link)
        assert (await bob.post(NEW)).status == 404


async def test_a_notification_of_the_links_own_is_400(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        for method in ("_acp-gateway/ack", "_acp-gateway/goodbye"):
            assert (await ann.post({"jsonrpc": "2.0", "method": method, "params": {"received": 9}})).status == 400
        assert (await ann.post(NEW)).status == 202


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


async def test_an_upgrade_to_http_2_is_ignored(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        reply = await ann.ask("POST", INITIALIZE, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", **JSON)
        assert reply.status == 200
