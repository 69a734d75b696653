"""The readers of event streams: comments, and requests for a stream whose reader may be gone."""

import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.http.event_reader import COMMENT_INTERVAL, CONFIRM_TIMEOUT, EVENT_CHUNK, MAX_ASKING, Reader
from acp_gateway.server.http.link import HttpLink, HttpStream
from acp_gateway.transports.http.server import HttpConnection
from tests.doubles import ServingAgents, make_config
from tests.server.echoing import WS
from tests.server.http_client import EVENTS, Client, Events, http_client, new_session
from tests.transports.wires import MIB, MemoryBytes, memory_wire


@pytest.fixture
def gateway(agents: ServingAgents, spawner: Spawner, tmp_path: Path) -> Gateway:
    return Gateway(make_config(tmp_path / "state", WS), TokenStore(tmp_path / "state"), spawner, {})


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
    events_before: int,
    client: Client,
    agents: ServingAgents,
    autojump_clock: trio.testing.MockClock,
    network: Network,
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


async def test_an_event_is_written_at_once_and_no_task_is_woken_for_it(gateway: Gateway) -> None:
    async with reading(gateway) as scene:
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


async def test_a_loss_that_a_write_finds_ends_the_reader_and_its_events_are_kept(gateway: Gateway) -> None:
    async with reading(gateway) as scene:
        await scene.client.aclose()
        scene.send("a")
        await trio.testing.wait_all_tasks_blocked()
        assert scene.link.streams.readers == 0
        stream = scene.link.streams.open(None, None, object())
        assert b'"params":"a"' in scene.link.streams.take(stream, EVENT_CHUNK)


async def test_a_comment_comes_after_a_time_without_any_event(
    gateway: Gateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with reading(gateway) as scene:
        began = len(scene.client.inbox)
        await trio.sleep(COMMENT_INTERVAL - 1)
        scene.send("a")
        await trio.sleep(COMMENT_INTERVAL - 1)
        assert b":\n\n" not in scene.client.inbox[began:]
        await trio.sleep(2)
        assert scene.client.inbox.endswith(b":\n\n\r\n")
