"""Streamable HTTP over a bad network: connections are cut in every way, and each message arrives once and in order.

The client does what docs/http-reference.md says: it shows the id of the last event where a stream was cut, and sends
a request again whose answer was lost, with the same bytes.
"""

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h11
import pytest
import trio

from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.token_store import TokenStore
from tests.kit.doubles import ServingAgents, make_config
from tests.kit.echoing import WS, port_of
from tests.kit.faulty_proxy import QUICK, SLOW, FaultyProxy
from tests.kit.http_client import EVENTS, JSON, Client, Events, Http, http_client, new_session

UPDATES = 5
"""Updates of one turn."""

CUT = (OSError, EOFError, trio.BrokenResourceError, h11.RemoteProtocolError, h11.LocalProtocolError, AssertionError)
"""Errors of a request whose connection is cut."""


class Resilient:
    """A client behind a proxy that cuts its connections."""

    def __init__(self, client: Client, port: int) -> None:
        self.got: dict[str | None, list[Any]] = {}
        """The messages of each stream, by its session."""
        self._client = client
        self._port = port
        self._arrived = trio.lowlevel.ParkingLot()

    async def read(self, session: str | None, last: str) -> None:
        """Read a stream until cancelled, from behind an event."""
        got = self.got.setdefault(session, [])
        headers = {**EVENTS, **({} if session is None else {"Acp-Session-Id": session})}
        while True:
            try:
                async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
                    http = Http(stream)
                    fields = self._client.fields({**headers, "Last-Event-ID": last})
                    reply = await http.begin("GET", "/acp", None, fields)
                    assert reply.status == 200
                    events = Events(http, reply)
                    while True:
                        got.append(await events.next())
                        last = events.last
                        self._arrived.unpark_all()
            except CUT:
                await trio.sleep(0.001)

    async def post(self, **message: Any) -> None:
        """Send a message until it is answered, always the same bytes."""
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        while True:
            try:
                async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
                    reply = await Http(stream).ask("POST", "/acp", body, **self._client.fields(JSON))
                assert reply.status == 202
            except CUT:
                await trio.sleep(0.001)
            else:
                return

    async def arrived(self, condition: Callable[[], bool]) -> None:
        """Wait until what was read fulfils a condition."""
        while not condition():
            await self._arrived.park()


async def talk(gateway: Gateway, agents: ServingAgents, cuts: int, seed: int) -> None:
    """Take turns until so many connections were cut, and check what has arrived on both sides."""
    async with http_client(gateway) as ann, trio.open_nursery() as nursery:
        proxy = FaultyProxy(
            # One for each of the streams more: theirs come when there is something to read.
            port_of(ann.listener),
            seed=seed,
            cuts=cuts + 2,
            size=(200, 2000),
            faults=(*QUICK * 4, *SLOW),
            timeout=0.05,
        )
        await nursery.start(proxy.run)
        await ann.initialize()
        client = Resilient(ann, proxy.port)
        async with ann.stream() as events:
            session = await new_session(ann, events)
            first = events.last
        async with ann.stream(session) as events:
            await agents[0].send(method="session/update", params={"sessionId": session, "number": -1})
            await events.next()
            nursery.start_soon(client.read, None, first)
            nursery.start_soon(client.read, session, events.last)
        turns = 0
        while len(proxy.happened) < cuts:
            await take_turn(client, agents, session, turns)
            turns += 1
        await client.arrived(lambda: len(client.got[None]) == turns)
        stream = client.got[session]
        numbers = [message["params"]["number"] for message in stream if "params" in message]
        assert numbers == list(range(turns * UPDATES))
        assert [message["id"] for message in stream if "result" in message] == [*range(100, 100 + turns)]
        prompts = [message for message in agents[0].received if message["method"] == "session/prompt"]
        assert [message["params"]["prompt"][0]["text"] for message in prompts] == [str(turn) for turn in range(turns)]
        assert [message["params"]["number"] for message in client.got[None]] == list(range(turns))
        nursery.cancel_scope.cancel()


async def take_turn(client: Resilient, agents: ServingAgents, session: str, turn: int) -> None:
    prompt = [{"type": "text", "text": str(turn)}]
    await client.post(id=100 + turn, method="session/prompt", params={"sessionId": session, "prompt": prompt})
    for number in range(turn * UPDATES, (turn + 1) * UPDATES):
        await agents[0].send(method="session/update", params={"sessionId": session, "number": number})
    await agents[0].send(method="_note", params={"number": turn})
    await client.post(method="session/cancel", params={"sessionId": session})
    await client.arrived(lambda: any(message.get("id") == 100 + turn for message in client.got[session]))


@pytest.fixture
def gateway(agents: ServingAgents, spawner: Spawner, tmp_path: Path) -> Gateway:
    return Gateway(make_config(tmp_path / "state", WS), TokenStore(tmp_path / "state"), spawner, {})


async def test_each_message_arrives_once_over_connections_that_are_cut(gateway: Gateway, agents: ServingAgents) -> None:
    await talk(gateway, agents, cuts=15, seed=1)


@pytest.mark.slow
async def test_each_message_arrives_once_over_200_connections_that_are_cut(
    gateway: Gateway, agents: ServingAgents
) -> None:
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")  # noqa: T201
    await talk(gateway, agents, cuts=200, seed=seed)
