"""A whole server of Streamable HTTP in memory, with an agent that remembers its sessions, and an editor with a shim.

The server can be killed and started again, and each of its connections can break at any byte. A prompt's text says what
the agent does: `wait` waits, `ask` asks for a permission, anything else is said in three updates.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing

from acp_gateway.client import shim
from acp_gateway.client.dialing import Destination, Dialed, Resume
from acp_gateway.client.http.stream import HttpClientStream
from acp_gateway.client.uplink import ReconnectSettings
from acp_gateway.errors import GatewayError, Unreachable
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.streams import ByteStream, TrioBytes
from acp_gateway.transports.websocket.stream import Timing
from tests.client.http.foreign_server import ACCEPTED, ENDPOINT
from tests.kit.fake_gateway import DESTINATION, WallClock


@dataclass
class Cut:
    """The loss of one connection, after so many bytes of all connections in both directions."""

    left: int
    kills: bool = False
    """True if the server is killed then."""


class CuttableBytes(TrioBytes):
    """The client's end of a connection that may break."""

    def __init__(self, stream: trio.StapledStream[Any, Any], server: "ForeignAgent") -> None:
        super().__init__(stream)
        self._server = server
        self._broken = False

    async def receive_some(self) -> bytes:
        await self._check()
        return await self._pass(await super().receive_some())

    async def send_some(self, data: memoryview) -> int:
        await self._check()
        # In pieces, as a slow network takes them.
        return await super().send_some(memoryview(await self._pass(bytes(data[:64]))))

    async def _check(self) -> None:
        if self._broken:
            await self.aclose()
            raise trio.BrokenResourceError("cut")

    async def _pass(self, data: bytes) -> bytes:
        """Return what passes before the cut."""
        cut = self._server.cut
        if cut is None:
            return data
        passed = data[: cut.left]
        cut.left -= len(passed)
        if cut.left == 0:
            self._server.cut = None
            self._broken = True
            if cut.kills:
                self._server.kill()
        if data and not passed:
            await self._check()
        return passed


@dataclass
class Opened:
    """A connection of the protocol at the server."""

    name: str
    known: set[str] = field(default_factory=set)
    queues: dict[str | None, list[dict[str, Any] | bytes]] = field(default_factory=lambda: {None: []})
    routes: dict[Any, str] = field(default_factory=dict)
    waiting: dict[str, Any] = field(default_factory=dict)
    """By session, the id of the prompt whose turn waits."""
    asking: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """By id of a permission, the session and the id of the prompt."""


@dataclass
class ForeignAgent:
    """The server: `kill` it, and `start` it again."""

    learns_loaded: bool = True
    """True if it knows a session once its agent has loaded it, and answers in the session's stream."""
    open_to_all: bool = False
    """True if it knows each session that is named."""
    disk: dict[str, list[str]] = field(default_factory=dict)
    """The texts of each session."""
    heard: list[dict[str, Any]] = field(default_factory=list)
    """All messages that the agent has got, over all lives."""
    cut: Cut | None = None
    answer: Callable[[Request, Any], Response | None] = lambda _, __: None
    """Returns another response to a request than the usual one."""
    down: bool = False
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _connections: dict[str, Opened] = field(default_factory=dict)
    _opened: int = 0
    _asked: int = 0
    _nursery: trio.Nursery | None = None
    changed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def kill(self) -> None:
        """End it with all its connections; what is on its disk stays."""
        self.down = True
        self._scope.cancel()
        self._connections.clear()
        self.changed.unpark_all()

    def forget(self) -> None:
        """Forget the connections, whose event streams stay open."""
        self._connections = {}

    def start(self) -> None:
        self.down = False
        self._scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self.changed.park()

    def prompts(self) -> list[str]:
        """The texts of all prompts that the agent has got."""
        return [one["params"]["prompt"][0]["text"] for one in self.heard if one.get("method") == "session/prompt"]

    def raw(self, session: str, data: bytes) -> None:
        """Send bytes in the stream of a session."""
        for connection in self._connections.values():
            connection.queues.setdefault(session, []).append(data)
        self.changed.unpark_all()

    # What the shim uses

    async def dial(self, _: Destination, __: Timing, resume: Resume) -> Dialed:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise Unreachable("the server is down")
        limit = {"max_message_size": 100_000, "size_setting": "the limit"}
        return Dialed(HttpClientStream(ENDPOINT, self.connect, **limit), None, None)  # type: ignore[arg-type]

    async def connect(self) -> ByteStream:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise Unreachable("the server is down")
        here, there = trio.testing.memory_stream_pair()
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, TrioBytes(there), self._scope)
        return CuttableBytes(here, self)

    # Requests

    async def _serve(self, stream: TrioBytes, alive: trio.CancelScope) -> None:
        http = HttpConnection(stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_killed, alive, nursery.cancel_scope)
                again = True
                while again and (request := await http.receive_request()):
                    again = await self._answer(http, request, await http.receive_body(1_000_000))
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, HttpError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()

    async def _until_killed(self, alive: trio.CancelScope, scope: trio.CancelScope) -> None:
        while not alive.cancel_called:
            await self.changed.park()
        scope.cancel()

    async def _answer(self, http: HttpConnection, request: Request, body: bytes) -> bool:
        message: Any = json.loads(body) if body else None
        other = self.answer(request, message)
        if other is not None:
            return await http.respond(other)
        name = request.headers.get("Acp-Connection-Id", "")
        if message is not None and message.get("method") == "initialize":
            return await http.respond(self._initialize(message))
        connection = self._connections.get(name)
        if connection is None:
            return await http.respond(Response.of_text(404, "no such connection"))
        session = request.headers.get("Acp-Session-Id")
        if request.method == "DELETE":
            del self._connections[name]
            self.changed.unpark_all()
            return await http.respond(ACCEPTED)
        if session is not None and not self.open_to_all and session not in connection.known:
            return await http.respond(Response.of_text(404, "no such session"))
        if session is None and (message or {}).get("method") in ("session/prompt", "session/cancel"):
            return await http.respond(Response.of_text(400, "no session"))
        if request.method == "GET":
            return await self._stream(http, connection, session)
        self._obey(connection, message)
        self.changed.unpark_all()
        return await http.respond(ACCEPTED)

    def _initialize(self, message: dict[str, Any]) -> Response:
        self.heard.append(message)
        self._opened += 1
        name = f"c{self._opened}"
        self._connections[name] = Opened(name)
        result = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
        body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return Response(200, json.dumps(body).encode(), {"Acp-Connection-Id": name})

    async def _stream(self, http: HttpConnection, connection: Opened, session: str | None) -> bool:
        await http.start(200, {"Content-Type": "text/event-stream"})
        queue = connection.queues.setdefault(session, [])
        while True:
            while queue:
                event = queue.pop(0)
                await http.send(event if isinstance(event, bytes) else b"data: %b\n\n" % json.dumps(event).encode())
            await self.changed.park()

    # The agent

    def _obey(self, connection: Opened, message: dict[str, Any]) -> None:
        self.heard.append(message)
        method, params = message.get("method"), message.get("params") or {}
        session = params.get("sessionId")
        match method:
            case "session/new":
                session = f"s{len(self.disk)}"
                self.disk[session] = []
                connection.known.add(session)
                self._say(connection, None, {"id": message["id"], "result": {"sessionId": session}})
            case "session/load" if session in self.disk:
                for text in self.disk[session]:
                    self._update(connection, session, text)
                if self.learns_loaded:
                    connection.known.add(session)
                self._respond(connection, session, message["id"], {})
            case "session/prompt" if session in self.disk:
                text = params["prompt"][0]["text"]
                self.disk[session].append(f"{text} 0")
                self._update(connection, session, f"{text} 0")
                if text.startswith("wait"):
                    connection.waiting[session] = message["id"]
                    return
                if text.startswith("ask"):
                    self._asked += 1
                    raw_id = f"asked {self._asked}"
                    connection.asking[raw_id] = session, message["id"]
                    asked = {"id": raw_id, "method": "session/request_permission", "params": {"sessionId": session}}
                    self._say(connection, session, asked)
                    return
                for part in (1, 2):
                    self.disk[session].append(f"{text} {part}")
                    self._update(connection, session, f"{text} {part}")
                self._respond(connection, session, message["id"], {"stopReason": "end_turn"})
            case "session/cancel" if session in connection.waiting:
                raw_id = connection.waiting.pop(session)
                self._respond(connection, session, raw_id, {"stopReason": "cancelled"})
            case None if message["id"] in connection.asking:
                session, raw_id = connection.asking.pop(message["id"])
                self._respond(connection, session, raw_id, {"stopReason": "end_turn"})
            case _ if "id" in message and method is not None:
                self._say(connection, None, {"id": message["id"], "error": {"code": -32002, "message": "not here"}})

    def _update(self, connection: Opened, session: str, text: str) -> None:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        params = {"sessionId": session, "update": update}
        self._say(connection, session, {"method": "session/update", "params": params})

    def _respond(self, connection: Opened, session: str, raw_id: Any, result: dict[str, Any]) -> None:
        self._say(connection, session, {"id": raw_id, "result": result})

    def _say(self, connection: Opened, session: str | None, message: dict[str, Any]) -> None:
        stream = session if session in connection.known or self.open_to_all else None
        connection.queues.setdefault(stream, []).append({"jsonrpc": "2.0", **message})
        self.changed.unpark_all()


class Editor:
    """An editor whose agent is a shim."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.updates: list[str] = []
        self.responses: dict[Any, dict[str, Any]] = {}
        self.asked: list[str] = []
        """Ids of all permissions that it was asked for, and has answered."""
        self._stream = stream
        self._buffer = b""
        self._asked = 0
        self._ended = False
        self._changed = trio.lowlevel.ParkingLot()

    async def read(self) -> None:
        """Note what comes, until the end. Each request may be answered once."""
        while data := await self._stream.receive_some():
            *lines, self._buffer = (self._buffer + bytes(data)).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if message.get("method") == "session/update":
                    self.updates.append(message["params"]["update"]["content"]["text"])
                elif message.get("method") == "session/request_permission":
                    self.asked.append(message["id"])
                    await self._send(id=message["id"], result={"outcome": {"outcome": "cancelled"}})
                elif "method" not in message:
                    assert message["id"] not in self.responses, message
                    self.responses[message["id"]] = message
            self._changed.unpark_all()
        self._ended = True
        self._changed.unpark_all()

    async def begin(self, method: str, **params: Any) -> int:
        """Send a request; return its id."""
        self._asked += 1
        await self._send(id=self._asked, method=method, params=params)
        return self._asked

    async def notify(self, method: str, **params: Any) -> None:
        await self._send(method=method, params=params)

    async def _send(self, **message: Any) -> None:
        await self._stream.send_all(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def answer(self, request: int) -> dict[str, Any]:
        """Wait for the response to a request."""
        await self.until(lambda: request in self.responses)
        return self.responses[request]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something. Raises `EndOfChannel` if the shim ends before."""
        while not condition():
            if self._ended:
                raise trio.EndOfChannel
            await self._changed.park()

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return await self.answer(await self.begin(method, **params))

    async def start(self) -> str:
        """Initialize, and open a session; return its id."""
        assert "result" in await self.ask("initialize", protocolVersion=1)
        session: str = (await self.ask("session/new", cwd="/", mcpServers=[]))["result"]["sessionId"]
        return session

    async def begin_prompt(self, session: str, text: str) -> int:
        return await self.begin("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def prompt(self, session: str, text: str) -> dict[str, Any]:
        return await self.answer(await self.begin_prompt(session, text))

    async def close(self) -> None:
        await self._stream.send_eof()


@asynccontextmanager
async def shim_of(
    server: ForeignAgent, *, raises: type[GatewayError] | None = None, may_raise: type[GatewayError] | None = None
) -> AsyncIterator[Editor]:
    """An editor whose shim uses the server, and ends as `raises` says, or as `may_raise` does."""
    ends: list[type[GatewayError] | None] = []
    near, far = trio.testing.memory_stream_pair()
    reconnect = ReconnectSettings(connect_timeout=15.0, dial=server.dial, jitter=lambda: 1.0, wall_clock=WallClock())
    settings = shim.Settings(PathMaps([]), 100_000, reconnect)

    async def run() -> None:
        try:
            await shim.run(TrioBytes(far), lambda: DESTINATION, settings)
        except GatewayError as error:
            ends.append(type(error))
        else:
            ends.append(None)

    with trio.fail_after(10_000):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            editor = Editor(near)
            async with trio.open_nursery() as work:
                work.start_soon(run)
                work.start_soon(editor.read)
                yield editor
                if raises is None:
                    await editor.close()
            nursery.cancel_scope.cancel()
    assert ends in ([raises], [may_raise or raises])
