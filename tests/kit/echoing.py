"""A gateway that echoes messages, its listeners, and clients on real sockets."""

import base64
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import trio
import trio.testing
from websockets.uri import WebSocketURI

from acp_gateway.client.dialing import Destination, Dialed
from acp_gateway.config.addresses import parse_address
from acp_gateway.config.load import AgentSection, ListenSection
from acp_gateway.core.sessions.session import Client, SessionReach
from acp_gateway.errors import AccessError, LinkGone
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.agent.process import Agent, Launch, Spawner, run_agent
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.hello import CONNECTION_ID_SIZE
from acp_gateway.server.http.routes import SharedState
from acp_gateway.server.listener import Listener, open_listener
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.parts import NO_PART, PartSum
from acp_gateway.transports.sockets import connect_tcp, connect_unix
from acp_gateway.transports.websocket.client import connect_websocket
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import TIMEOUT, Editor, make_config, python

WS = "ws://127.0.0.1:0"


TCP = "tcp://127.0.0.1:0"


SESSION = "s 1/ü+&"
"""The only session that can be joined."""


PING = b'{"jsonrpc":"2.0","method":"ping"}'


@dataclass
class Served:
    """A client that came in."""

    access: Access
    agent: str
    name: str
    link_id: str | None = None
    """The id by which its link can be resumed."""


@dataclass
class Resumed:
    """A resumed link, and the claim that resumed it."""

    access: Access
    link_id: str
    received_there: int
    received: int
    link: Any
    """As much of it as the answer needs: its client."""
    part: PartSum = NO_PART
    """Part of the client's next message that was kept."""
    part_there: PartSum = NO_PART
    """Part of the next message that the client has kept."""
    name: str = ""
    """Of the connection; empty until it is served."""


class EchoingGateway(Gateway):
    """Notes authenticated connections, and echoes their messages. No agent is started."""

    def __init__(self, state_dir: Path, spawner: Spawner, **settings: Any) -> None:
        agents = {name: AgentSection(command=("cat",)) for name in ("first", "second")}
        config = make_config(state_dir, WS, agents=agents, default_agent="first", **settings)
        super().__init__(config, TokenStore(state_dir), spawner, {})
        self.served: list[Served] = []
        self.connect_requests: list[ConnectRequest] = []
        """Requests of authenticated connections."""
        self.bug: type[Exception] | None = None
        """Raised where a client is served."""
        self.resumed: list[Resumed] = []
        self.part = NO_PART
        """Part that was kept of each link's next message."""
        self.links: dict[str, int | AccessError] = {}
        """Messages received over each link, or the reason why it can't be resumed."""

    def admit(self, access: Access, connect_request: ConnectRequest, **about: bool) -> Grant:
        self.connect_requests.append(connect_request)
        if connect_request.session == SESSION:
            connect_request = replace(connect_request, session=None)
        return super().admit(access, connect_request, **about)

    def resume(self, access: Access, link_id: str, received: int, part: PartSum = NO_PART) -> Any:
        link = self.links.get(link_id, LinkGone("there is no link of that id, or it is not yours"))
        if isinstance(link, AccessError):
            raise link
        of_client = SimpleNamespace(client=Client("a client", SessionReach(access.identity)))
        self.resumed.append(Resumed(access, link_id, received, link, of_client, self.part, part))
        return self.resumed[-1]

    async def serve_resumed(self, client: MaintainedStream, resumption: Any, name: str) -> None:
        resumption.name = name
        await self._echo(client)

    async def serve(
        self,
        client: MaintainedStream,
        admission: Grant,
        name: str,
        link_id: str | None = None,
        *,
        attached: Callable[[Hub, Client], None] | None = None,
    ) -> None:
        self.served.append(Served(admission.access, admission.agent, name, link_id))
        if link_id is not None:
            self.links[link_id] = 0
        await self._echo(client)

    async def _echo(self, client: MaintainedStream) -> None:
        try:
            if self.bug is not None:
                raise self.bug
            try:
                while True:
                    await client.send_batch(await client.receive_batch())
            except (trio.EndOfChannel, trio.BrokenResourceError):
                pass
        finally:
            with trio.CancelScope(shield=True):
                await client.aclose()

    def token(self, *agents: str) -> str:
        """A new token of Ann's."""
        return self.tokens.create("laptop", "ann", agents or None)[1]


@asynccontextmanager
async def open_next(
    section: ListenSection | str, gateway: Gateway, shared: SharedState | None = None
) -> AsyncIterator[Listener]:
    """Another open listener of a gateway that has one already."""
    section = ListenSection(url=section) if isinstance(section, str) else section
    with closing(await open_listener(section, gateway, shared=shared)) as listener:
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
            accepting.start_soon(listener.run, connections)
            yield listener
            accepting.cancel_scope.cancel()
            connections.cancel_scope.cancel()


@asynccontextmanager
async def listening(
    section: ListenSection | str, gateway: Gateway, shared: SharedState | None = None
) -> AsyncIterator[Listener]:
    """An open listener of a gateway that runs."""
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as hubs:
            await hubs.start(gateway.run)
            async with open_next(section, gateway, shared) as listener:
                yield listener
            hubs.cancel_scope.cancel()


def port_of(listener: Listener) -> int:
    port = urlsplit(listener.urls[0]).port
    assert port is not None
    return port


def open_sockets() -> set[str]:
    """Those that this process has open at the moment; the database's files come and go by themselves."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            pass  # That of the list itself.
    return {name for name in found if name.startswith("socket:")}


@dataclass
class Response:
    status: int
    headers: dict[str, list[str]]
    body: str


async def ask(
    listener: Listener, target: str, *headers: str, method: str = "GET", host: str = "localhost", body: str = ""
) -> Response:
    """One HTTP request over a connection of its own."""
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
    async with stream:
        ends = () if any(header.startswith("Connection:") for header in headers) else ("Connection: close",)
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, *ends, "", body]
        await stream.send_all("\r\n".join(lines).encode())
        received = b""
        while not received.startswith(b"HTTP/1.1 101") or b"\r\n\r\n" not in received:
            data = await stream.receive_some()
            if not data:
                break
            received += data
    head, _, body = received.decode(errors="replace").partition("\r\n\r\n")
    status, *fields = head.split("\r\n")
    collected: dict[str, list[str]] = {}
    for field in fields:
        name, _, value = field.partition(": ")
        collected.setdefault(name.lower(), []).append(value)
    return Response(int(status.split()[1]), collected, body)


def upgrade(*headers: str) -> tuple[str, ...]:
    key = base64.b64encode(bytes(16)).decode()
    return (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        *headers,
    )


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


@asynccontextmanager
async def connected(listener: Listener) -> AsyncIterator[LineStream]:
    """A connection for lines, without a hello yet."""
    url = urlsplit(listener.urls[0])
    stream = await (connect_unix(url.path) if url.scheme == "unix" else connect_tcp("127.0.0.1", port_of(listener)))
    lines = LineStream(stream, max_message_size=1 << 30)
    try:
        yield lines
    finally:
        await lines.aclose()


def hello(**params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": "h", "method": "_acp-gateway/hello", "params": params}).encode()


async def answer_to(listener: Listener, *lines: bytes) -> dict[str, Any]:
    """The only answer to these lines, after which the connection is closed."""
    async with connected(listener) as stream:
        await stream.send_batch(lines)
        answer: dict[str, Any] = json.loads(await stream.receive())
        with pytest.raises(trio.EndOfChannel):
            await stream.receive()
    return answer


LINK = "the-links-id"


BROKEN_LINKS = [
    ["Acp-Gateway-Resume: "],
    ["Acp-Gateway-Resume: x"],
    ["Acp-Gateway-Resume: -1"],
    ["Acp-Gateway-Resume: +1"],
    ["Acp-Gateway-Resume: 1.0"],
    ["Acp-Gateway-Resume: 1e3"],
    ["Acp-Gateway-Resume: 1_0"],
    ["Acp-Gateway-Resume: 0, 0"],
    ["Acp-Gateway-Resume: ٣"],
    ["Acp-Gateway-Resume: " + "0" * 16],
    ["Acp-Gateway-Resume: 1"],
    ["Acp-Gateway-Resume: 0", "Acp-Gateway-Resume: 0"],
    [f"Acp-Connection-Id: {LINK}", "Acp-Gateway-Resume: 1", "ACP-GATEWAY-RESUME: 1"],
    [f"Acp-Connection-Id: {LINK}", f"acp-connection-id: {LINK}", "Acp-Gateway-Resume: 1"],
    ["Acp-Connection-Id: " + "x" * (CONNECTION_ID_SIZE + 1), "Acp-Gateway-Resume: 1"],
    ["Acp-Connection-Id: lïnk", "Acp-Gateway-Resume: 1"],
    ["Acp-Gateway-Resume: 0", "Acp-Gateway-Part: 70000 0badcafe"],
    [*["Acp-Gateway-Part: 70000 0badcafe"] * 2, f"Acp-Connection-Id: {LINK}", "Acp-Gateway-Resume: 1"],
    *(
        [f"Acp-Connection-Id: {LINK}", "Acp-Gateway-Resume: 1", f"Acp-Gateway-Part: {part}"]
        for part in ("", "70000", "-1 0badcafe", "70000 0BADCAFE", "70000 0badcafe0", "1" * 16 + " 0badcafe")
    ),
]


def resuming(received: object, link_id: str | None = LINK) -> list[str]:
    """The headers with which a link is resumed, or asked for where it has no id."""
    named = [] if link_id is None else [f"Acp-Connection-Id: {link_id}"]
    return [*named, f"Acp-Gateway-Resume: {received}"]


def destination(listener: Listener, token: str | None, **connect_request: Any) -> Destination:
    """Return the destination of a listener for the client."""
    return Destination(parse_address(listener.urls[0]), None, token, None, None, 1 << 20, **connect_request)


@asynccontextmanager
async def running(link: Dialed) -> AsyncIterator[MaintainedStream]:
    """The stream of a link in use."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.stream.run)
        yield link.stream
        await link.stream.aclose()
        nursery.cancel_scope.cancel()


def with_tls(url: str, certificate: Path) -> ListenSection:
    if url.startswith(("wss", "tcp+tls")):
        return ListenSection(url=url, cert=certificate / "cert.pem", key=certificate / "key.pem")
    return ListenSection(url=url)


SAY_HELLO = """
import os, socket, sys
def ask_as_agent():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect({path!r})
        sock.sendall(b'{{"jsonrpc":"2.0","id":"h","method":"_acp-gateway/hello","params":{{}}}}\\n')
        os.write(1, sock.makefile("rb").readline())
"""


AS_CHILD = "ask_as_agent()"


AS_GRANDCHILD = """
if os.fork() == 0:
    ask_as_agent()
    os._exit(0)
os.wait()
"""


AS_ORPHAN = """
if os.fork() == 0:
    here, there = os.pipe()
    if os.fork() == 0:
        os.close(there)
        os.read(here, 1)  # Until the parent is gone.
        ask_as_agent()
    os._exit(0)
os.wait()
"""


class Forgetful(set[int]):
    """As if the news of an agent's start never came."""

    def add(self, element: int) -> None:
        """Forget it."""


async def ask_as_agent(how: str, unix: str, gateway: EchoingGateway, spawner: Spawner) -> dict[str, Any]:
    """The answer that an agent gets which comes to the gateway's own socket."""
    launch = Launch(
        name="intruder",
        command=python(SAY_HELLO.format(path=urlsplit(unix).path) + how + "\nsys.stdin.read()"),
        environment={},
        cwd=None,
        max_message_size=1 << 20,
        eof_grace=TIMEOUT,
        term_grace=TIMEOUT,
    )
    async with listening(unix, gateway), trio.open_nursery() as nursery:
        agent: Agent = await nursery.start(partial(run_agent, launch, spawner))
        answer: dict[str, Any] = json.loads(await agent.messages.stream.receive())
        nursery.cancel_scope.cancel()
    return answer


@asynccontextmanager
async def websocket_editor(listener: Listener, token: str, **connect_request: str) -> AsyncIterator[Editor]:
    """An editor that came in over a WebSocket."""
    websocket = await connect_websocket(
        await connect_tcp("127.0.0.1", port_of(listener)),
        WebSocketURI(False, "127.0.0.1", port_of(listener), "/acp", urlencode(connect_request)),
        {"Authorization": f"Bearer {token}"},
        max_message_size=1 << 20,
        timing=Timing(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(websocket.run)
        try:
            yield Editor(websocket)
        finally:
            await websocket.aclose()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def line_editor(listener: Listener, **params: Any) -> AsyncIterator[Editor]:
    """An editor that came in by its first line."""
    async with connected(listener) as lines:
        await lines.send(hello(**params))
        assert "result" in json.loads(await lines.receive())
        yield Editor(lines)
