"""ACP over Streamable HTTP: conversations over it, and its limits. Each status code is in `test_http_statuses`."""

import json
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.dialects.http.link import HttpLink, HttpStream
from acp_gateway.dialects.http.streamable_http import (
    COMMENT_INTERVAL,
    CONFIRM_TIMEOUT,
    EVENT_CHUNK,
    INITIALIZE_SIZE,
    MAX_ASKING,
    Reader,
    _with_session,
)
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol import jsonrpc
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.pending import PendingConnection
from acp_gateway.transports.http.server import HttpConnection
from acp_gateway.transports.maintained import Meter
from tests.kit.doubles import ServingAgents, make_config
from tests.kit.echoing import WS
from tests.kit.http_client import EVENTS, INITIALIZE, JSON, NEW, Client, Events, http_client, new_session
from tests.kit.schemas import check_message
from tests.kit.wires import MIB, MemoryBytes, memory_wire


@pytest.fixture
def gateway(agents: ServingAgents, spawner: Spawner, tmp_path: Path) -> Gateway:
    return Gateway(make_config(tmp_path / "state", WS), TokenStore(tmp_path / "state"), spawner, {})


# Requests


@pytest.fixture
async def ann(gateway: Gateway) -> AsyncIterator[Client]:
    async with http_client(gateway) as ann:
        yield ann


async def test_initialize_is_answered_in_its_body_and_names_the_connection(ann: Client) -> None:
    reply = await ann.initialize()
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(reply.body)["result"]["protocolVersion"] == 1
    assert (await ann.post(INITIALIZE)).status == 400


async def test_a_client_of_version_2_has_its_turn(gateway: Gateway, agents: ServingAgents) -> None:
    async with http_client(gateway) as ann:
        params = {"protocolVersion": 2, "info": {"name": "ann", "version": "1"}, "capabilities": {}}
        answer = json.loads((await ann.initialize(body={**INITIALIZE, "params": params})).body)
        check_message(2, "client", answer, "initialize")
        assert answer["result"]["protocolVersion"] == 2
        async with ann.stream() as events:
            session = await new_session(ann, events)
            async with ann.stream(session) as updates:
                prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]}
                await ann.post({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt})
                await agents[0].got("session/prompt")
                await ann.post({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})
                told = [await updates.next() for _ in range(4)]
    for message in told:
        check_message(2, "client", message, "session/prompt")
    said, running, end = (message["params"]["update"] for message in told[1:])
    assert said["messageId"] == told[0]["result"]["messageId"]
    assert (running["state"], end["state"], end["stopReason"]) == ("running", "idle", "cancelled")


SAID = ["agent_message_chunk one", "agent_message_chunk two"]
OLD_SENDER = [*SAID, "cancelled"] * 2
OLD_VIEWER = ["user_message_chunk hi", *SAID] * 2
NEW_SENDER = ["{}", "user_message hi", "state_update running", *SAID, "state_update idle"] * 2
NEW_VIEWER = ["state_update idle", *["state_update running", "user_message_chunk hi", *SAID, "state_update idle"] * 2]


def shown(message: Any) -> str:
    """Return what a message on a session's stream tells, in words."""
    if "method" not in message:
        return str(message["result"].get("stopReason", "{}"))
    update = message["params"]["update"]
    blocks = update.get("content", {})
    block = blocks[0] if isinstance(blocks, list) else blocks
    return f"{update['sessionUpdate']} {block.get('text') or update['state']}"


@pytest.mark.parametrize(
    ("version", "sender", "viewer"), [(1, OLD_SENDER, NEW_VIEWER), (2, NEW_SENDER, OLD_VIEWER)], ids=["v1", "v2"]
)
async def test_clients_of_both_versions_see_the_turns_of_a_session_in_order(
    version: int, sender: list[str], viewer: list[str], ann: Client, agents: ServingAgents
) -> None:
    bob = replace(ann)
    for client, number in ((ann, version), (bob, 3 - version)):
        params = {"protocolVersion": number, "info": {"name": "a", "version": "1"}, "capabilities": {}}
        await client.initialize(body={**INITIALIZE, "params": params})
    async with ann.stream() as ann_events, bob.stream() as bob_events:
        session = await new_session(ann, ann_events)
        async with ann.stream(session) as ann_updates, bob.stream(session) as bob_updates:
            join = {"sessionId": session, "cwd": "/", "mcpServers": []}
            method = "session/load" if version == 2 else "session/resume"
            await bob.post({"jsonrpc": "2.0", "id": 2, "method": method, "params": join})
            assert "result" in await bob_events.next()
            # The second prompt is sent before the end of the first turn is read.
            for number in (3, 4):
                prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]}
                await ann.post({"jsonrpc": "2.0", "id": number, "method": "session/prompt", "params": prompt})
                await agents[0].got("session/prompt")
                for word in ("one", "two"):
                    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": word}}
                    await agents[0].send(method="session/update", params={"sessionId": session, "update": update})
                await bob.post({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})
                await agents[0].got("session/cancel")
                agents[0].received.clear()
            assert [shown(await ann_updates.next()) for _ in sender] == sender
            assert [shown(await bob_updates.next()) for _ in viewer] == viewer


async def test_initialize_needs_an_id_and_a_size(ann: Client, gateway: Gateway) -> None:
    assert (await ann.post({**INITIALIZE, "id": None})).status == 400
    assert (await ann.post({"jsonrpc": "2.0", "method": "initialize", "params": {}})).status == 400
    assert (await ann.post(b" " * INITIALIZE_SIZE + b"{}")).status == 413
    assert len(gateway.connections) == 0


async def test_a_session_in_the_header_alone_is_put_into_params(ann: Client, agents: ServingAgents) -> None:
    await ann.initialize()
    async with ann.stream() as events:
        session = await new_session(ann, events)
        params = {"prompt": [{"type": "text", "text": "x" * 2_000_000}]}
        body = {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params}
        assert (await ann.post(body, Acp_Session_Id=session)).status == 202
        assert (await agents[0].got("session/prompt"))["params"] == {"sessionId": session, **params}


@pytest.mark.parametrize("text", ['{"method":"m"}', '{"method":"m","params":{}}', '{ "params": { } , "method":"m"}'])
def test_a_session_is_put_before_all_other_members(text: str) -> None:
    found = json.loads(_with_session(jsonrpc.parse(text.replace("{", '{"jsonrpc":"2.0",', 1).encode()), "s"))
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


async def test_a_second_reader_of_a_stream_is_409(ann: Client) -> None:
    await ann.initialize()
    async with ann.stream() as events, ann.stream("s") as other:
        assert (events.reply.status, other.reply.status) == (200, 200)
        assert events.reply.headers["content-type"] == "text/event-stream"
        assert events.reply.headers["cache-control"] == "no-cache"
        assert events.reply.headers["x-accel-buffering"] == "no"
        async with ann.stream() as second, ann.stream("s") as third:
            assert (second.reply.status, third.reply.status) == (409, 409)


async def test_delete_ends_the_connection(ann: Client, gateway: Gateway) -> None:
    await ann.initialize()
    async with ann.stream() as events:
        assert (await ann.ask("DELETE")).status == 202
        with pytest.raises(EOFError):
            await events.next()
    assert (await ann.ask("DELETE")).status == 404
    assert (await ann.post(NEW)).status == 404
    while len(gateway.connections):
        await trio.lowlevel.checkpoint()


async def test_requests_follow_each_other_on_one_connection(ann: Client) -> None:
    async with ann.connection() as http:
        ann.link = (await http.ask("POST", "/acp", INITIALIZE, **ann.fields(JSON))).headers["acp-connection-id"]
        assert (await http.ask("POST", "/acp", NEW, **ann.fields(JSON))).status == 202
        assert (await http.ask("GET", "/healthz", None)).status == 200
        assert (await http.ask("DELETE", "/acp", None, **ann.fields({}))).status == 202


# Conversations


async def test_a_prompt_is_answered_in_its_sessions_stream(ann: Client, agents: ServingAgents) -> None:
    await ann.initialize()
    async with ann.stream() as events:
        session = await new_session(ann, events)
        async with ann.stream(session) as updates:
            prompt = {"jsonrpc": "2.0", "id": 2, "method": "session/prompt"}
            await ann.post({**prompt, "params": {"sessionId": session, "prompt": []}})
            await agents[0].got("session/prompt")
            for number in range(3):
                params = {"sessionId": session, "update": {"sessionUpdate": "agent_message_chunk", "number": number}}
                await agents[0].send(method="session/update", params=params)
            cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
            assert (await ann.post(cancel)).status == 202
            for _ in range(3):
                assert (await updates.next())["method"] == "session/update"
            assert (await updates.next())["result"] == {"stopReason": "cancelled"}


async def test_a_response_needs_no_session_header(ann: Client, agents: ServingAgents) -> None:
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
    ann: Client, agents: ServingAgents
) -> None:
    await ann.initialize()
    async with ann.stream() as events:
        session = await new_session(ann, events)
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "before"}}
    await agents[0].send(method="session/update", params={"sessionId": session, "update": update})
    bob = Client(ann.listener, ann.token)
    await bob.initialize()
    load = {"sessionId": session, "cwd": "/", "mcpServers": []}
    async with bob.stream() as events, bob.stream(session) as updates:
        await bob.post({"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": load}, Acp_Session_Id=session)
        assert (await updates.next())["params"]["update"] == update
        assert (await events.next())["id"] == 1


# Limits


def limited(gateway: Gateway, spawner: Spawner, **limits: Any) -> Gateway:
    """A gateway like this one with other limits."""
    config = replace(gateway.config, limits=replace(gateway.config.limits, **limits))
    return Gateway(config, gateway.tokens, spawner, {})


async def test_the_body_of_initialize_must_come_within_handshake_timeout(
    ann: Client, gateway: Gateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with ann.connection() as http:
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


@pytest.fixture
def gate(agents: ServingAgents) -> trio.Event:
    """An event that agents wait for before they start."""
    gate, run = trio.Event(), agents.run

    async def slowly(*args: Any, **options: Any) -> None:
        await gate.wait()
        await run(*args, **options)

    agents.run = slowly  # type: ignore[method-assign]
    return gate


@pytest.mark.usefixtures("gate")
async def test_a_client_that_leaves_during_initialize_leaves_no_connection(ann: Client, gateway: Gateway) -> None:
    async with ann.connection() as http:
        fields = {**ann.fields(JSON), "Host": "localhost", "Content-Length": str(len(json.dumps(INITIALIZE)))}
        head = "\r\n".join(["POST /acp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""])
        await http.stream.send_all((head + json.dumps(INITIALIZE)).encode())
        while not len(gateway.connections):
            await trio.lowlevel.checkpoint()
    while len(gateway.connections):
        await trio.lowlevel.checkpoint()


async def test_a_client_counts_as_heard_while_its_initialize_waits_for_a_slow_agent(
    ann: Client, gateway: Gateway, gate: trio.Event
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ann.initialize)
        while not gateway.hubs or not (attachments := [*gateway.hubs[0].attachments.values()]):
            await trio.lowlevel.checkpoint()
        assert attachments[0].connection is not None
        stream = attachments[0].connection.stream
        stream.tick(1e9)
        assert stream.last_received_at == 1e9
        gate.set()


async def test_an_upgrade_to_http_2_is_ignored(ann: Client) -> None:
    reply = await ann.ask("POST", INITIALIZE, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", **JSON)
    assert reply.status == 200


@pytest.fixture
async def client(
    gateway: Gateway, autojump_clock: trio.testing.MockClock, free_handshakes: None
) -> AsyncIterator[Client]:
    # Threads look at the session's directory, and the clock does not wait for them.
    autojump_clock.autojump_threshold = math.inf
    async with http_client(gateway) as ann:
        yield ann


async def open_session(client: Client, clock: trio.testing.MockClock) -> str:
    await client.initialize()
    async with client.stream() as events:
        session = await new_session(client, events)
    clock.autojump_threshold = 0.0
    return session


async def send_text(agents: ServingAgents, session: str, text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    await agents[0].send(method="session/update", params={"sessionId": session, "update": update})


async def next_text(events: Events) -> str:
    text: str = (await events.next())["params"]["update"]["content"]["text"]
    return text


class Network:
    """Loses connections silently: what is written to them is confirmed no more, and nothing else tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._streams: list[HttpConnection] = []
        self._lost: dict[HttpConnection, int] = {}
        start, confirmed = HttpConnection.start, HttpConnection._forget_confirmed

        async def note_and_start(http: HttpConnection, status: int, headers: Mapping[str, str]) -> None:
            self._streams.append(http)
            await start(http, status, headers)

        monkeypatch.setattr(HttpConnection, "start", note_and_start)
        monkeypatch.setattr(
            HttpConnection,
            "_forget_confirmed",
            lambda http: self._lost[http] if http in self._lost else confirmed(http),
        )

    def lose(self) -> None:
        """Lose the connection of the event stream that was opened last."""
        http = self._streams[-1]
        self._lost[http] = http.confirmed_bytes


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


@pytest.mark.parametrize("events_before", [0, 1])
async def test_a_reader_that_confirms_nothing_gives_way_without_an_event_id_and_nothing_is_missing(
    events_before: int, client: Client, agents: ServingAgents, autojump_clock: trio.testing.MockClock, network: Network
) -> None:
    session = await open_session(client, autojump_clock)
    async with client.stream(session) as former:
        for number in range(events_before):
            await send_text(agents, session, f"seen {number}")
            await next_text(former)
        network.lose()
        await send_text(agents, session, "lost")
        began = trio.current_time()
        async with client.stream(session) as events:
            assert events.reply.status == 200
            assert CONFIRM_TIMEOUT <= trio.current_time() - began < CONFIRM_TIMEOUT + 1
            assert await next_text(events) == "lost"
            await send_text(agents, session, "next")
            assert await next_text(events) == "next"


async def test_a_lost_reader_of_the_connections_stream_gives_way_before_any_event(
    client: Client, autojump_clock: trio.testing.MockClock, network: Network
) -> None:
    await client.initialize()
    async with client.stream():
        network.lose()
        autojump_clock.autojump_threshold = 0.0
        async with client.stream() as events:
            assert events.reply.status == 200
            autojump_clock.autojump_threshold = math.inf
            assert await new_session(client, events)


async def test_a_reader_that_confirms_keeps_its_stream_and_the_other_request_is_409(
    client: Client, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    session = await open_session(client, autojump_clock)
    async with client.stream(session) as events:
        began = trio.current_time()
        async with client.stream(session) as second:
            assert second.reply.status == 409
        assert trio.current_time() - began < CONFIRM_TIMEOUT
        await send_text(agents, session, "one")
        assert await next_text(events) == "one"


async def test_a_request_takes_the_stream_as_soon_as_its_reader_has_left(
    client: Client, agents: ServingAgents, autojump_clock: trio.testing.MockClock, network: Network
) -> None:
    session = await open_session(client, autojump_clock)
    async with client.connection() as http, trio.open_nursery() as nursery:
        await http.begin("GET", "/acp", None, client.fields({**EVENTS, "Acp-Session-Id": session}))
        network.lose()
        began = trio.current_time()

        async def leave() -> None:
            await trio.sleep(CONFIRM_TIMEOUT / 2)
            await http.stream.aclose()

        nursery.start_soon(leave)
        async with client.stream(session) as events:
            assert events.reply.status == 200
            assert trio.current_time() - began < CONFIRM_TIMEOUT


async def test_a_request_that_leaves_while_it_waits_ends_no_reader(
    client: Client, agents: ServingAgents, autojump_clock: trio.testing.MockClock, network: Network
) -> None:
    session = await open_session(client, autojump_clock)
    async with client.stream(session) as former:
        network.lose()
        async with client.connection() as http, trio.open_nursery() as nursery:
            nursery.start_soon(http.begin, "GET", "/acp", None, client.fields({**EVENTS, "Acp-Session-Id": session}))
            await trio.sleep(CONFIRM_TIMEOUT / 2)
            nursery.cancel_scope.cancel()
        await trio.sleep(2 * CONFIRM_TIMEOUT)
        await send_text(agents, session, "still here")
        assert await next_text(former) == "still here"


async def test_all_lost_streams_of_a_client_are_taken_over_at_once(
    client: Client, autojump_clock: trio.testing.MockClock, network: Network
) -> None:
    await open_session(client, autojump_clock)
    sessions = [None, *(f"s{number}" for number in range(2 * MAX_ASKING))]
    statuses: list[int] = []

    async def reopen(session: str | None) -> None:
        async with client.stream(session) as events:
            statuses.append(events.reply.status)
            await trio.sleep(CONFIRM_TIMEOUT)

    async with AsyncExitStack() as stack:
        for session in sessions:
            await stack.enter_async_context(client.stream(session))
            await trio.testing.wait_all_tasks_blocked()
            network.lose()
        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(reopen, session)
    assert statuses == [200] * len(sessions)


async def test_not_more_than_a_few_requests_wait_for_a_reader(
    client: Client, autojump_clock: trio.testing.MockClock, network: Network
) -> None:
    session = await open_session(client, autojump_clock)
    statuses: list[tuple[int, bool]] = []

    async def ask() -> None:
        async with client.stream(session) as events:
            statuses.append((events.reply.status, trio.current_time() - began >= CONFIRM_TIMEOUT))
            await trio.sleep(2 * CONFIRM_TIMEOUT)

    async with client.stream(session):
        network.lose()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_ASKING + 1):
                nursery.start_soon(ask)
    assert sorted(statuses) == [(200, True), (409, False), *[(409, True)] * (MAX_ASKING - 1)]


async def test_a_request_whose_connection_ends_while_it_waits_is_404(
    client: Client, autojump_clock: trio.testing.MockClock, network: Network
) -> None:
    session = await open_session(client, autojump_clock)

    async def end() -> None:
        await trio.sleep(CONFIRM_TIMEOUT / 2)
        await client.ask("DELETE")

    async with client.stream(session), trio.open_nursery() as nursery:
        network.lose()
        nursery.start_soon(end)
        async with client.stream(session) as events:
            assert events.reply.status == 404


async def test_an_idle_stream_has_comments_though_another_one_is_busy(
    client: Client, agents: ServingAgents, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await open_session(client, autojump_clock)
    comments: list[float] = []
    send = HttpConnection.send

    async def note(self: HttpConnection, data: bytes) -> None:
        if data == b":\n\n":
            comments.append(trio.current_time())
        await send(self, data)

    async with client.stream(session) as updates, client.stream():
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(HttpConnection, "send", note)
        for number in range(3):
            await trio.sleep(COMMENT_INTERVAL / 2)
            await send_text(agents, session, str(number))
            assert await next_text(updates) == str(number)
    assert len(comments) == 1


async def test_the_readers_response_names_the_connection_and_an_odd_session_percent_encoded(client: Client) -> None:
    await client.initialize()
    async with client.stream("s%20%C3%BC") as events:
        reply = events.reply
    assert (reply.headers["acp-connection-id"], reply.headers["acp-session-id"]) == (client.link, "s%20%C3%BC")
    assert reply.headers["x-accel-buffering"] == "no"


# Writing without the reader's task


class Scene:
    """A link in memory with one reader of the connection's stream."""

    def __init__(self, gateway: Gateway, room: int) -> None:
        unused: Any = None
        self.link = HttpLink(gateway, unused, "c", "c", unused)
        self.gateway = HttpStream(self.link, 0)
        self.client, server = memory_wire(room)
        self.http = HttpConnection(server)
        self.reader = Reader(self.link, unused, None, None, 4)

    async def run(self) -> None:
        self.client.send_nowait(memoryview(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
        assert await self.http.receive_request() is not None
        await self.reader.run(self.http)

    def send(self, *texts: str) -> None:
        self.gateway.send_nowait([b'{"jsonrpc":"2.0","method":"x","params":"%b"}' % text.encode() for text in texts])

    def received(self) -> list[str]:
        """The texts of all events so far."""
        data = bytes(self.client.inbox)
        assert data.count(b"id: ") == data.count(b"data: ")
        return [text.decode() for text in re.findall(rb'"params":"([^"]*)"', data)]


@asynccontextmanager
async def reading(gateway: Gateway, room: int = 8 * MIB) -> AsyncIterator[Scene]:
    scene = Scene(gateway, room)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.run)
        await trio.testing.wait_all_tasks_blocked()
        yield scene
        nursery.cancel_scope.cancel()


@pytest.fixture
async def scene(gateway: Gateway) -> AsyncIterator[Scene]:
    async with reading(gateway) as scene:
        yield scene


async def test_an_event_is_written_at_once_and_no_task_is_woken_for_it(scene: Scene) -> None:
    scene.send("a", "b")
    assert scene.received() == ["a", "b"]
    assert scene.gateway.pending_bytes == 0
    scene.send("c")
    assert scene.received() == ["a", "b", "c"]
    assert trio.lowlevel.current_statistics().tasks_runnable == 0


async def test_what_the_client_does_not_take_at_once_follows_in_order(gateway: Gateway) -> None:
    async with reading(gateway, room=1000) as scene:
        scene.send("a", "x" * 2000, "b")
        scene.send("c")
        assert scene.client.room == len(scene.client.inbox)
        await trio.testing.wait_all_tasks_blocked()
        scene.send("d")
        scene.client.room = MIB
        assert isinstance(scene.http.stream, MemoryBytes)
        scene.http.stream.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert scene.received() == ["a", "x" * 2000, "b", "c", "d"]
        scene.send("e")
        assert scene.received()[-1] == "e"


async def test_many_events_are_written_in_turns(gateway: Gateway) -> None:
    texts = [f"{number} {'x' * 1000}" for number in range(200)]
    async with reading(gateway) as scene:
        scene.send(*texts)
        assert len(b"".join(scene.client.peer.written)) < 2 * EVENT_CHUNK
        await trio.testing.wait_all_tasks_blocked()
        assert scene.received() == texts


async def test_a_loss_that_a_write_finds_ends_the_reader_and_its_events_are_kept(scene: Scene) -> None:
    await scene.client.aclose()
    scene.send("a")
    await trio.testing.wait_all_tasks_blocked()
    assert scene.link.streams.readers == 0
    stream = scene.link.streams.open(None, None, object())
    assert b'"params":"a"' in scene.link.streams.take(stream, EVENT_CHUNK)


async def test_a_comment_comes_after_a_time_without_any_event(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    began = len(scene.client.inbox)
    await trio.sleep(COMMENT_INTERVAL - 1)
    scene.send("a")
    await trio.sleep(COMMENT_INTERVAL - 1)
    assert b":\n\n" not in scene.client.inbox[began:]
    await trio.sleep(2)
    assert scene.client.inbox.endswith(b":\n\n\r\n")
