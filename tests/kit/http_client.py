"""A client of the endpoint over HTTP: requests and event streams on real sockets."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import trio

from acp_gateway.config.load import ListenSection
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.server.listener import Listener
from tests.kit.echoing import WS, listening, port_of

JSON = {"Content-Type": "application/json"}
EVENTS = {"Accept": "text/event-stream"}
INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
NEW = {"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}}


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes = b""


class Http:
    """One HTTP connection of a client."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._h11 = h11.Connection(h11.CLIENT)

    async def ask(self, method: str, target: str = "/acp", body: Any = None, /, **headers: str) -> Reply:
        """Send a request, and return the response with its whole body."""
        reply = await self.begin(method, target, body, headers)
        while data := await self.read():
            reply.body += data
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        return reply

    async def begin(self, method: str, target: str, body: Any, headers: dict[str, str]) -> Reply:
        """Send a request, and return the head of the response."""
        await self.write(method, target, body, headers)
        event = await self._event()
        assert isinstance(event, h11.Response), event
        return Reply(event.status_code, {name.decode(): value.decode() for name, value in event.headers})

    async def write(self, method: str, target: str, body: Any, headers: dict[str, str]) -> None:
        """Send a request."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"Host": "localhost", "Content-Length": str(len(data)), **headers}
        request = self._h11.send(h11.Request(method=method, target=target, headers=list(fields.items())))
        await self.stream.send_all((request or b"") + (self._h11.send(h11.Data(data=data)) or b""))
        await self.stream.send_all(self._h11.send(h11.EndOfMessage()) or b"")

    async def read(self) -> bytes:
        """A part of the body; empty at its end."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def _event(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(bytes(await self.stream.receive_some()))
        return event


@dataclass
class Client:
    """A client of the endpoint, by its token."""

    listener: Listener
    token: str | None
    link: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Http]:
        async with await trio.open_tcp_stream("127.0.0.1", port_of(self.listener)) as stream:
            yield Http(stream)

    def fields(self, headers: dict[str, str]) -> dict[str, str]:
        known = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        if self.link is not None:
            known["Acp-Connection-Id"] = self.link
        return {**known, **self.headers, **headers}

    async def ask(self, method: str, body: Any = None, target: str = "/acp", **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.connection() as http:
            return await http.ask(method, target, body, **self.fields(named))

    async def post(self, body: Any, **headers: str) -> Reply:
        return await self.ask("POST", body, **{**JSON, **headers})

    async def initialize(self, target: str = "/acp", body: Any = INITIALIZE) -> Reply:
        reply = await self.ask("POST", body, target, **JSON)
        assert reply.status == 200
        self.link = reply.headers["acp-connection-id"]
        return reply

    @asynccontextmanager
    async def stream(self, session: str | None = None, **headers: str) -> AsyncIterator["Events"]:
        """An open event stream."""
        named = {} if session is None else {"Acp-Session-Id": session}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.connection() as http:
            yield Events(http, await http.begin("GET", "/acp", None, self.fields(EVENTS | named)))


class Events:
    """An open event stream."""

    def __init__(self, http: Http, reply: Reply) -> None:
        self.reply = reply
        self.last = ""
        self._http = http
        self._data = b""

    async def next(self) -> Any:
        """The message of the next event."""
        while True:
            block, end, rest = self._data.partition(b"\n\n")
            if not end:
                await self._read_end()
                continue
            self._data = rest
            if block.startswith(b"id: "):
                first, _, second = block.partition(b"\n")
                self.last = first.removeprefix(b"id: ").decode()
                return json.loads(second.removeprefix(b"data: "))

    async def _read_end(self) -> None:
        """Read until an event has ended: what came before is looked through once, however large it is."""
        parts = [self._data]
        while b"\n\n" not in parts[-1][-1:] + (data := await self._http.read()):
            if not data:
                raise EOFError
            parts.append(data)
        self._data = b"".join([*parts, data])


@asynccontextmanager
async def http_client(gateway: Gateway, section: ListenSection | str = WS, **headers: str) -> AsyncIterator[Client]:
    token = gateway.tokens.create("laptop", "ann", None)[1]
    async with listening(section, gateway) as listener:
        yield Client(listener, token, headers={name.replace("_", "-"): value for name, value in headers.items()})


async def new_session(client: Client, events: Events) -> str:
    assert (await client.post(NEW)).status == 202
    response = await events.next()
    session: str = response["result"]["sessionId"]
    return session
