"""The link of a client over Streamable HTTP: it outlives its connections, and each message arrives once."""

import json
import math
from pathlib import Path
from typing import Any, cast

import h11
import pytest
import trio
import trio.testing

from acp_gateway.dialects.http.link import STREAM_TIMEOUT, HttpLink, HttpStream
from acp_gateway.gateway.access import Grant
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import Attachment
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.http.server import HttpConnection
from acp_gateway.transports.streams import CloseReason, Unfinished
from tests.kit.doubles import ServingAgents, make_config
from tests.kit.echoing import WS
from tests.kit.http_client import JSON, NEW, Client, Events, Http, http_client, new_session
from tests.kit.wires import MIB


@pytest.fixture
def gateway(agents: ServingAgents, spawner: Spawner, tmp_path: Path) -> Gateway:
    return Gateway(make_config(tmp_path / "state", WS), TokenStore(tmp_path / "state"), spawner, {})


async def send_update(agents: ServingAgents, session: str, number: int) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": str(number)}}
    await agents[0].send(method="session/update", params={"sessionId": session, "update": update})


async def texts(events: Events, count: int) -> list[int]:
    return [int((await events.next())["params"]["update"]["content"]["text"]) for _ in range(count)]


def is_away(gateway: Gateway) -> bool:
    (hub,) = gateway.hubs
    return [attachment.away_since is not None for attachment in hub.attachments.values()] == [True]


async def go_away(gateway: Gateway) -> None:
    """As after a time without any request."""
    (hub,) = gateway.hubs
    (attachment,) = hub.attachments.values()
    assert attachment.connection is not None
    attachment.connection.cancel()
    while not is_away(gateway):
        await trio.lowlevel.checkpoint()


async def heard_of(gateway: Gateway, *, posts: int) -> None:
    """Wait until the gateway has noticed so many requests, and that the client has closed its streams."""
    connection = only(gateway).connection
    assert connection is not None
    assert isinstance(connection.stream, HttpStream)
    link = connection.stream._link
    while link.streams.readers or link.posting != posts:
        await trio.lowlevel.checkpoint()


async def open_session(client: Client) -> str:
    await client.initialize()
    async with client.stream() as events:
        return await new_session(client, events)


async def test_a_client_without_stream_and_post_is_away_and_its_next_request_brings_it_back(
    gateway: Gateway, agents: ServingAgents
) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        await go_away(gateway)
        await send_update(agents, session, 1)
        async with ann.stream(session) as events:
            assert await texts(events, 1) == [1]
            await trio.testing.wait_all_tasks_blocked()
            assert not is_away(gateway)


async def test_a_request_right_after_the_gateway_has_given_up_the_connection_is_not_a_takeover_in_the_audit(
    gateway: Gateway, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    resumed: list[HttpStream] = []
    monkeypatch.setattr(gateway.audit_throttle, "record", lambda event, **_: events.append(event))

    async def close_and_resume(self: HttpStream, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        patch.undo()
        try:
            await self.aclose(reason, text)
        finally:
            # The hub does not know yet that the connection has ended.
            assert not is_away(gateway)
            self._link.resume(self._link.access)
            resumed.append(self)

    async def fail(self: HttpStream) -> list[bytes]:
        raise Unfinished

    with monkeypatch.context() as patch:
        async with http_client(gateway) as ann:
            session = await open_session(ann)
            cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
            patch.setattr(HttpStream, "_receive_batch", fail)
            patch.setattr(HttpStream, "aclose", close_and_resume)
            await ann.post(cancel)
            while not resumed:
                await trio.lowlevel.checkpoint()
            prompt = {
                "jsonrpc": "2.0",
                "id": 7,
                "method": "session/prompt",
                "params": {"sessionId": session, "prompt": []},
            }
            await ann.post(prompt)
            await agents[0].got("session/prompt")
    assert "attached" in events
    assert "taken_over" not in events


async def test_a_post_of_a_client_that_is_away_reaches_the_agent(gateway: Gateway, agents: ServingAgents) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        await go_away(gateway)
        prompt = {"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {"sessionId": session, "prompt": []}}
        assert (await ann.post(prompt)).status == 202
        await agents[0].got("session/prompt")


async def test_a_client_counts_as_heard_as_long_as_it_reads_a_stream(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await open_session(ann)
        (hub,) = gateway.hubs
        (attachment,) = hub.attachments.values()
        assert attachment.connection is not None
        stream = attachment.connection.stream
        await heard_of(gateway, posts=0)
        stream.tick(1e9)
        assert stream.last_received_at < 1e9
        async with ann.stream():
            stream.tick(2e9)
            assert stream.last_received_at == 2e9


@pytest.mark.parametrize("with_id", [True, False])
async def test_a_stream_that_is_cut_misses_nothing_and_repeats_nothing(
    with_id: bool, gateway: Gateway, agents: ServingAgents
) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        got: list[int] = []
        last: dict[str, Any] = {}
        for number in range(10):
            async with ann.stream(session, **last) as events:
                await send_update(agents, session, 2 * number)
                await send_update(agents, session, 2 * number + 1)
                got += await texts(events, 2)
                if with_id:
                    last = {"Last_Event_ID": events.last}
            await heard_of(gateway, posts=0)
        assert got == list(range(20))


async def test_an_event_id_repeats_what_was_sent_and_not_read(gateway: Gateway, agents: ServingAgents) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        async with ann.stream(session) as events:
            for number in range(3):
                await send_update(agents, session, number)
            assert await texts(events, 1) == [0]
            last = events.last
            assert await texts(events, 2) == [1, 2]
        async with ann.stream(session, Last_Event_ID=last) as events:
            assert await texts(events, 2) == [1, 2]


async def test_a_session_whose_stream_is_never_opened_is_in_the_connection_stream(
    gateway: Gateway, agents: ServingAgents, autojump_clock: trio.testing.MockClock, free_handshakes: None
) -> None:
    # Threads look at the session's directory, and the clock does not wait for them.
    autojump_clock.autojump_threshold = math.inf
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            session = await new_session(ann, events)
            autojump_clock.autojump_threshold = 0.0
            await send_update(agents, session, 1)
            assert await texts(events, 1) == [1]
            assert trio.current_time() >= STREAM_TIMEOUT


async def test_a_session_whose_stream_was_cut_goes_on_in_the_connection_stream_when_it_is_not_opened_again(
    gateway: Gateway, agents: ServingAgents, autojump_clock: trio.testing.MockClock, free_handshakes: None
) -> None:
    # Threads look at the session's directory, and the clock does not wait for them.
    autojump_clock.autojump_threshold = math.inf
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        autojump_clock.autojump_threshold = 0.0
        async with ann.stream() as events:
            async with ann.stream(session) as updates:
                await send_update(agents, session, 1)
                assert await texts(updates, 1) == [1]
            await send_update(agents, session, 2)
            assert await texts(events, 1) == [2]
            assert trio.current_time() >= STREAM_TIMEOUT
            await send_update(agents, session, 3)
            assert await texts(events, 1) == [3]


async def test_a_session_whose_stream_was_cut_waits_for_a_client_that_is_away_as_a_whole(
    gateway: Gateway, agents: ServingAgents, autojump_clock: trio.testing.MockClock, free_handshakes: None
) -> None:
    # Threads look at the session's directory, and the clock does not wait for them.
    autojump_clock.autojump_threshold = math.inf
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        autojump_clock.autojump_threshold = 0.0
        async with ann.stream(session) as updates:
            await send_update(agents, session, 1)
            assert await texts(updates, 1) == [1]
        await send_update(agents, session, 2)
        await trio.sleep(2 * STREAM_TIMEOUT)
        async with ann.stream(), ann.stream(session) as updates:
            assert await texts(updates, 1) == [2]


async def test_a_revoked_token_ends_the_streams_and_the_link(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            (token,) = gateway.tokens.tokens()
            gateway.tokens.revoke(token.id)
            gateway.connections.enforce()
            with pytest.raises(EOFError):
                await events.next()
        assert (await ann.post(NEW)).status == 401


# Losses


def only(gateway: Gateway) -> Attachment:
    (hub,) = gateway.hubs
    (attachment,) = hub.attachments.values()
    return attachment


async def test_a_message_that_was_accepted_arrives_once_if_its_connection_is_dropped_before_it_is_counted(
    gateway: Gateway, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = HttpLink.post

    def post_and_drop(self: HttpLink, message: bytes) -> None:
        post(self, message)
        only(gateway).drop_connection()

    async with http_client(gateway) as ann:
        session = await open_session(ann)
        monkeypatch.setattr(HttpLink, "post", post_and_drop)
        prompt = {"jsonrpc": "2.0", "method": "session/prompt", "params": {"sessionId": session, "prompt": []}}
        assert (await ann.post({**prompt, "id": 7})).status == 202
        while not is_away(gateway):
            await trio.lowlevel.checkpoint()
        monkeypatch.undo()
        async with ann.stream(session):
            await agents[0].got("session/prompt")
            assert (
                await ann.post({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})
            ).status
            await agents[0].got("session/cancel")


async def test_streams_end_when_the_gateway_gives_up_the_connection(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            await go_away(gateway)
            with pytest.raises(EOFError):
                await events.next()


async def test_a_client_counts_as_heard_while_a_post_is_received(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await open_session(ann)
        connection = only(gateway).connection
        assert connection is not None
        await heard_of(gateway, posts=0)
        async with ann.connection() as http:
            fields = {**ann.fields(JSON), "Host": "localhost", "Content-Length": "2"}
            head = ["POST /acp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
            await http.stream.send_all("\r\n".join(head).encode())
            await heard_of(gateway, posts=1)
            connection.stream.tick(2e9)
            assert connection.stream.last_received_at == 2e9


async def test_a_post_that_outlasts_its_connection_brings_the_client_back(
    gateway: Gateway, agents: ServingAgents
) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        async with ann.connection() as http:
            body = json.dumps(
                {"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": {"sessionId": session, "prompt": []}}
            )
            fields = {**ann.fields(JSON), "Host": "localhost", "Content-Length": str(len(body))}
            head = ["POST /acp HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
            await http.stream.send_all("\r\n".join(head).encode())
            await heard_of(gateway, posts=1)
            await go_away(gateway)
            await http.stream.send_all(body.encode())
            assert (await http.stream.receive_some()).startswith(b"HTTP/1.1 202 ")
            await agents[0].got("session/prompt")


async def test_a_reader_that_takes_nothing_gives_way_at_once_to_one_with_an_event_id(
    gateway: Gateway, agents: ServingAgents
) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        async with ann.stream(session) as stalled:
            await send_update(agents, session, 1)
            await texts(stalled, 1)
            last = stalled.last
            text = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * 16 * MIB}}
            await agents[0].send(method="session/update", params={"sessionId": session, "update": text})
            await trio.testing.wait_all_tasks_blocked(0.01)
            async with ann.stream(session, Last_Event_ID=last) as events:
                assert (await events.next())["params"]["update"] == text
                # The other connection was cut in the middle of the event, though its client had read nothing.
                with pytest.raises((EOFError, h11.RemoteProtocolError, trio.BrokenResourceError)):
                    await stalled.next()


async def test_a_client_that_resets_its_stream_is_not_an_internal_error(
    gateway: Gateway, agents: ServingAgents, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: HttpConnection, data: bytes) -> memoryview:
        raise trio.BrokenResourceError("reset")

    async with http_client(gateway) as ann:
        session = await open_session(ann)
        async with ann.stream(session) as events:
            monkeypatch.setattr(HttpConnection, "send_nowait", fail)
            await send_update(agents, session, 1)
            with pytest.raises((EOFError, h11.RemoteProtocolError)):
                await events.next()
    assert "internal error" not in caplog.text


async def test_draining_ends_as_soon_as_the_events_are_written(gateway: Gateway) -> None:
    link = HttpLink(gateway, cast("Grant", None), "l", "l", print)
    stream = HttpStream(link, 0)
    reading = link.streams.open(None, None, object())
    stream.send_nowait([b'{"jsonrpc":"2.0","method":"x"}'])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.drain)
        await trio.testing.wait_all_tasks_blocked()
        link.streams.take(reading, 1)
        link.written()


async def test_delete_ends_a_client_that_is_away(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await open_session(ann)
        await go_away(gateway)
        assert (await ann.ask("DELETE")).status == 202
        while gateway.hubs and gateway.hubs[0].attachments:
            await trio.lowlevel.checkpoint()
        assert (await ann.post(NEW)).status == 404


async def begin_body(client: Client, http: Http, size: int) -> None:
    """Send the head of a POST request, and so much of a body that is twice as long."""
    fields = {**client.fields(JSON), "Host": "localhost", "Content-Length": str(2 * size)}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    await http.stream.send_all(f"POST /acp HTTP/1.1\r\n{head}\r\n".encode() + b"x" * size)


async def test_an_unfinished_body_counts_in_memory_limit_and_ends_with_its_client(
    agents: ServingAgents, spawner: Spawner, tmp_path: Path
) -> None:
    config = make_config(tmp_path / "state", WS, memory_limit=2 * MIB)
    gateway = Gateway(config, TokenStore(tmp_path / "state"), spawner, {})
    async with http_client(gateway) as ann, ann.connection() as first, ann.connection() as second:
        await ann.initialize()
        await begin_body(ann, first, MIB)
        (hub,) = gateway.hubs
        (attachment,) = hub.attachments.values()
        while attachment.incoming_bytes < MIB:
            await trio.lowlevel.checkpoint()
        await begin_body(ann, second, 2 * MIB)
        for http in (first, second):
            answer = await http.stream.receive_some()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"this connection has ended" in answer
        assert attachment.disconnect is not None
        assert f"memory_limit ({2 * MIB} bytes)" in attachment.disconnect.text
        stream = attachment.connection and attachment.connection.stream
        assert isinstance(stream, HttpStream)
        assert stream._link.body_bytes == 0
