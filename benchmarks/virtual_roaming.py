"""A client and a gateway in one process, in virtual time, over a network whose paths die.

The editor, the agent, the network and the clock are models; shim, link, WebSockets and gateway are the program. Each
prompt and each update has a number, so that a lost one shows, and one that comes twice.
"""

import json
import logging
import os
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import trio
from trio.testing import MockClock

from acp_gateway.client import dialing
from acp_gateway.client.dialing import Destination, dial_link
from acp_gateway.client.shim import Settings, relay
from acp_gateway.client.uplink import LinkEvent, ReconnectSettings
from acp_gateway.config.addresses import Address
from acp_gateway.config.load import AgentSection, Config, GatewaySection, ListenSection, WorkspaceSection
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Agent, Launch, Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.http.server import HttpConnection, Response
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.parts import NO_PART, read_part_sum
from acp_gateway.transports.websocket.server import upgrade
from acp_gateway.transports.websocket.stream import (
    CONNECTION_ID,
    PART,
    PROBES,
    REFUSAL_HEADER,
    RESUME,
    Timing,
    WebSocketStream,
)
from benchmarks.virtual_network import ROUTE, End, Network

MAX_MESSAGE: Final = 64 << 20

PATIENCE: Final = 3600.0
"""Virtual seconds in which a turn must end, whatever happens."""


class CountingAgent:
    """An agent in memory. A prompt is a number, a number of updates, and the seconds before each."""

    def __init__(self) -> None:
        ours, self._stream = memory_message_stream_pair()
        self._agent = Agent("roaming", 4711, ours)
        self.heard: list[int] = []
        """Numbers of the prompts."""
        self.said = 0
        """Number of updates so far."""
        self.spoke = trio.lowlevel.ParkingLot()
        """Tasks that wait for the next update."""

    async def run(self, launch: Launch, spawner: Spawner, *, task_status: trio.TaskStatus[Agent]) -> None:
        """Run until cancelled; stands for `run_agent`."""
        async with trio.open_nursery() as nursery:
            task_status.started(self._agent)
            try:
                async for batch in self._stream:
                    for line in batch:
                        nursery.start_soon(self._handle, json.loads(line))
            finally:
                self._agent.exit_code = 0
                self._agent.ended.set()

    async def _handle(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        result: dict[str, Any] = {}
        if method == "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": {}}
        elif method == "session/new":
            result = {"sessionId": "s"}
        elif method == "session/prompt":
            number, count, pause = params["prompt"][0]["text"].split()[:3]
            self.heard.append(int(number))
            for _ in range(int(count)):
                await trio.sleep(float(pause))
                self.say()
            result = {"stopReason": "end_turn"}
        if "id" in message:
            self._send(id=message["id"], result=result)

    def say(self) -> None:
        """Send the next update."""
        content = {"type": "text", "text": f"{self.said} "}
        self.said += 1
        self.spoke.unpark_all()
        update = {"sessionUpdate": "agent_message_chunk", "content": content}
        self._send(method="session/update", params={"sessionId": "s", "update": update})

    def _send(self, **message: Any) -> None:
        self._stream.send_nowait([json.dumps({"jsonrpc": "2.0"} | message).encode()])


class VirtualEditor:
    """An editor in memory, with one session."""

    def __init__(self) -> None:
        self._stream, self.shim = memory_message_stream_pair()
        self.seen: list[int | None] = []
        """Numbers of the updates; None for a line of the gateway's."""
        self.answers: Counter[int] = Counter()
        """Number of answers to each request."""
        self.asked = 0
        """Number of requests."""
        self.prompts = 0
        """Number of prompts."""
        self.longest = 0.0
        """Seconds of the longest request."""
        self._asked_at: dict[int, float] = {}
        self._changed = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Read until cancelled."""
        async for batch in self._stream:
            for message in map(json.loads, batch):
                if message.get("method") == "session/update":
                    text = message["params"]["update"]["content"]["text"]
                    self.seen += [int(part) if part.isdecimal() else None for part in text.split()]
                elif "id" in message:
                    assert "result" in message, message
                    self.answers[message["id"]] += 1
                    took = trio.current_time() - self._asked_at.get(message["id"], 0.0)
                    self.longest = max(self.longest, took)
            self._changed.unpark_all()

    def ask(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        self.asked += 1
        self._asked_at[self.asked] = trio.current_time()
        message = {"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}
        self._stream.send_nowait([json.dumps(message).encode()])
        return self.asked

    def prompt(self, updates: int = 1, pause: float = 0.0, padding: int = 0) -> int:
        """Send the next prompt; the agent says so much, each after a pause."""
        text = f"{self.prompts} {updates} {pause} {'x' * padding}"
        self.prompts += 1
        return self.ask("session/prompt", sessionId="s", prompt=[{"type": "text", "text": text}])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until messages have made a condition true."""
        with trio.fail_after(PATIENCE):
            while not condition():
                await self._changed.park()

    async def answered(self, request: int) -> None:
        """Wait until a request has an answer."""
        await self.until(lambda: request in self.answers)

    async def news(self) -> None:
        """Wait for the next update."""
        count = len(self.seen)
        await self.until(lambda: len(self.seen) > count)


class World:
    """A client and a gateway, and the network between them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 # It is meant to be the same again.
        self.network = Network(self._serve, self.chance)
        self.agent, self.editor = CountingAgent(), VirtualEditor()
        self.events: list[LinkEvent] = []
        """Events that the user is told of."""
        self.takes_parts = True
        """False for a gateway that does not understand parts of messages."""
        self._slept = 0.0
        self._woken = trio.lowlevel.ParkingLot()
        tokens = TokenStore(directory)
        config = Config(
            gateway=GatewaySection(state_dir=directory, journal_storage="memory"),
            listen=(ListenSection(url="ws://127.0.0.1:0"),),
            agents={"roaming": AgentSection(command=("roaming",))},
            workspaces={"everything": WorkspaceSection(root=Path("/"))},
        )
        self.gateway = Gateway(config, tokens, Spawner(ProcessRegistry(directory / "agents")), os.environ)
        self.gateway.services.in_thread = _at_once
        self._access = Access.of(tokens.create("laptop", "ann", None)[0])

    def sleep(self, seconds: float) -> None:
        """Let the machine sleep: the time of day is later, and the system tells of it, as Linux does."""
        self._slept += seconds
        self._woken.unpark_all()

    async def _watch_clock(self, changed: Callable[[], None], *, task_status: trio.TaskStatus[bool]) -> None:
        task_status.started(True)
        while True:
            await self._woken.park()
            changed()

    async def settled(self) -> None:
        """Wait until a turn has passed over a connection that is not suspected."""
        await self.editor.answered(self.editor.prompt())

    def faults(self) -> int:
        """Return how many messages were lost, came twice, or in another order."""
        editor, agent = self.editor, self.agent
        pairs: list[tuple[list[Any], list[Any]]] = [
            (agent.heard, list(range(editor.prompts))),
            (editor.seen, list(range(agent.said))),
            (sorted(editor.answers.elements()), list(range(1, editor.asked + 1))),
        ]
        return sum(_difference(got, expected) for got, expected in pairs)

    def client(self) -> ReconnectSettings:
        """Return the settings of a client in this world."""

        return ReconnectSettings(
            connect_timeout=60.0,
            notice=self.events.append,
            dial=dial_link,
            jitter=self.chance.random,
            wall_clock=lambda: trio.current_time() + self._slept,
            watch_clock=self._watch_clock,
            source=lambda _: None if self.network.away else self.network.source,
        )

    async def _serve(self, end: End) -> None:
        """Serve a connection as a listener does, without its limits."""
        http = HttpConnection(end, 60.0)
        try:
            request = await http.receive_request()
            if request is None:
                return
            link, count = request.headers.get(CONNECTION_ID), int(request.headers[RESUME])
            name = link or f"link-{self.network.begun}"
            try:
                if link is None:
                    claim, grant = None, self.gateway.admit(self._access, ConnectRequest())
                else:
                    part = read_part_sum(request.headers.get(PART)) or NO_PART
                    claim, grant = self.gateway.resume(self._access, link, count, part), None
            except AccessError as error:
                refusal = Response.of_text(error.http_status, str(error), {REFUSAL_HEADER: error.reason}, close=True)
                await http.respond(refusal)
                return
            headers = {CONNECTION_ID: name, RESUME: str(claim.received if claim else 0), PROBES: "1"}
            if self.takes_parts:
                headers[PART] = str(claim.part if claim else NO_PART)
            stream = await upgrade(http, request, headers, max_message_size=MAX_MESSAGE, timing=Timing())
            assert isinstance(stream, WebSocketStream)
            if claim is not None:
                await self.gateway.serve_resumed(stream, claim, name)
            else:
                assert grant is not None
                await self.gateway.serve(stream, grant, name, name)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await end.aclose()


async def _at_once(look: Callable[[], DirectoryCheckResult]) -> DirectoryCheckResult:
    """Check in this thread: a clock that jumps takes a wait for another thread for idleness."""
    await trio.lowlevel.checkpoint()
    return look()


def _difference(got: list[Any], expected: list[Any]) -> int:
    if got == expected:
        return 0
    counts = Counter(got)
    counts.subtract(expected)
    return max(sum(map(abs, counts.values())), 1)


@asynccontextmanager
async def world(seed: int, **line: float) -> AsyncIterator[World]:
    """Run a client and a gateway, with a session, over lines as for `Network.set`."""
    # A thread of the gateway may still write a file when the gateway is cancelled.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = World(Path(folder), seed)
        made.network.set(**line)
        address = Address("ws", ROUTE.peer[0], ROUTE.peer[1], "/acp")
        destination = Destination(address, None, None, None, None, MAX_MESSAGE)
        settings = Settings(PathMaps([]), MAX_MESSAGE, made.client())

        async def connect(*_: object) -> End:
            return await made.network.connect()

        with patch.object(dialing, "connect_tcp", connect), patch.object(startup, "run_agent", made.agent.run):
            async with trio.open_nursery() as nursery:
                await nursery.start(made.network.run)
                await nursery.start(made.gateway.run)
                nursery.start_soon(made.editor.run)
                nursery.start_soon(relay, made.editor.shim, lambda: destination, settings)
                await made.editor.answered(made.editor.ask("initialize", protocolVersion=1, clientCapabilities={}))
                await made.editor.answered(made.editor.ask("session/new", cwd="/", mcpServers=[]))
                yield made
                nursery.cancel_scope.cancel()


def simulate(scenario: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Run a scenario in virtual time, and return its result."""
    logging.getLogger("acp_gateway").setLevel(logging.CRITICAL)
    return trio.run(scenario, *arguments, clock=MockClock(autojump_threshold=0))
