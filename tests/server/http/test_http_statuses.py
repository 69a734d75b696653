"""Each status code of the HTTP server: one case is one raw request, with what was there before and what is answered.

Those that HTTP/2 can say are asked over it too: it has the same routes, limits and errors.

The causes and headers are those of the table in docs/http-reference.md, which a test compares.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing

from acp_gateway.config.load import ListenSection, WorkspaceSection
from acp_gateway.dialects.http.link import HttpLink, HttpStream
from acp_gateway.dialects.http.streamable_http import INITIALIZE_SIZE, MAX_POSTS
from acp_gateway.errors import AgentError, ConfigError
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import EXPIRED, TOO_SLOW, Disconnect
from acp_gateway.security.token_store import Token, TokenStore
from acp_gateway.transports.http.head import HEAD_SIZE, LINE_SIZE, MAX_FIELDS
from acp_gateway.transports.streams import CloseReason
from tests.kit.doubles import ServingAgents, make_config
from tests.kit.echoing import WS, listening, port_of, with_tls
from tests.kit.http2_client import Http2Client, connect_http2

ROOT = Path(__file__).parents[3]

EDITOR = "https://editor.example"

JSON = "Content-Type: application/json"
EVENTS = "Accept: text/event-stream"
ANN = "Authorization: Bearer {ann}"
LINK = "Acp-Connection-Id: {link}"
CODE = '{"code": "{code}"}'
A_FILE = "GET /files?session={session}&path=a.txt"

UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")

INITIALIZE = '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}'
NEW = '{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}'
PROMPT = '{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}'


@dataclass(frozen=True)
class Case:
    """A request and its response."""

    status: int
    cause: str
    """The words of docs/http-reference.md."""
    request: str
    """Method and target."""
    fields: tuple[str, ...] = ()
    """Headers besides `Host` and `Content-Length`, which are added where they are missing; names in braces are filled
    in."""
    body: str | bytes = ""
    given: tuple[str, ...] = ()
    """Names of functions that prepare it."""
    answer: tuple[str, ...] = ()
    """Headers of the response: `Name: value`, `Name` for any value, `!Name` for its absence."""
    contains: str = ""
    """Text of the body."""
    limits: tuple[tuple[str, Any], ...] = ()
    timed: bool = False
    """True if the response is late."""


class Scene:
    """A gateway, its listener, and what the requests of one case may name."""

    def __init__(self, gateway: Gateway, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gateway = gateway
        self.agents = agents
        self.monkeypatch = monkeypatch
        self.stack = AsyncExitStack()
        self.certificate: Path | None = None
        """Folder of the listener's; requests are of HTTP/2 with one."""
        self.port = 0
        tokens = gateway.tokens
        self.ann: Token
        self.ann, ann = tokens.create("laptop", "ann", None)
        self.names = {
            "ann": ann,
            "bob": tokens.create("other", "bob", None)[1],
            "observer": tokens.create("tablet", "ann", None, role="observer")[1],
            "metrics": tokens.create("prometheus", None, None, role="metrics")[1],
            "narrow": tokens.create("narrow", "ann", ("nothing",))[1],
            "code": gateway.browsers.make_code(self.ann, "ann", label="phone")[1],
            "big": str(gateway.config.gateway.max_message_size + 1),
            "origin": "",
            "cookie": "",
            "link": "",
        }

    def fill(self, text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self.names.get(found[1], found[0]), text)

    async def send(self, request: str, fields: tuple[str, ...] = (), body: str | bytes = "") -> trio.SocketStream:
        """Send a request over a connection that stays open."""
        data = self.fill(body).encode() if isinstance(body, str) else body
        named = {field.partition(":")[0].lower() for field in fields}
        version = "" if " HTTP/" in request else " HTTP/1.1"
        lines = [self.fill(request) + version, *map(self.fill, fields)]
        if "host" not in named:
            lines.append(f"Host: localhost:{self.port}")
        if not named & {"content-length", "transfer-encoding"}:
            lines.append(f"Content-Length: {len(data)}")
        stream = await self.stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", self.port))
        await stream.send_all("\r\n".join([*lines, "", ""]).encode("latin-1") + data)
        return stream

    async def ask(self, request: str, *fields: str, body: str | bytes = "") -> "Reply":
        if self.certificate is None:
            return await receive(await self.send(request, fields, body), has_body=not request.startswith("HEAD "))
        client, number = await self.send_http2(self.certificate, request, fields, body)
        head = await client.head(number)
        if "content-length" in head.headers:
            await client.reply(number)
        lines = [f"{name}: {value}" for name, value in head.headers.items()]
        return Reply(head.status, Counter([*lines, *head.headers]), head.body.decode())

    async def begin(self, request: str, fields: tuple[str, ...]) -> None:
        """Send a request whose body does not come."""
        if self.certificate is None:
            await self.send(request, fields)
        else:
            await self.send_http2(self.certificate, request, fields)

    async def send_http2(
        self, certificate: Path, request: str, fields: tuple[str, ...] = (), body: str | bytes = ""
    ) -> tuple[Http2Client, int]:
        """Send a request over a connection that stays open."""
        data = self.fill(body).encode() if isinstance(body, str) else body
        method, target = self.fill(request).split(" ")
        pairs = [(name.lower(), value) for name, _, value in (self.fill(field).partition(": ") for field in fields)]
        host = dict(pairs).get("host", f"localhost:{self.port}")
        pairs = [pair for pair in pairs if pair[0] != "host"]
        whole = "content-length" not in dict(pairs)
        if whole:
            pairs.append(("content-length", str(len(data))))
        client = await connect_http2(self.port, certificate)
        self.stack.push_async_callback(client.stream.aclose)
        number = await client.begin(method, target, *pairs, ends=whole and not data, host=host)
        if data:
            await client.send(number, data, ends=whole)
        return client, number


@dataclass
class Reply:
    status: int
    headers: Counter[str]
    """Lines, and their names alone, which are in lower case."""
    body: str = ""

    def value(self, name: str) -> str:
        return next(line.partition(": ")[2] for line in self.headers if line.lower().startswith(f"{name.lower()}: "))


async def receive(stream: trio.SocketStream, *, has_body: bool) -> Reply:
    """Receive a response: its body too where its length is known."""
    data = b""
    while b"\r\n\r\n" not in data:
        came = bytes(await stream.receive_some())
        assert came, data
        data += came
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    lines = [lower_name(line) for line in lines]
    names = [line.partition(":")[0] for line in lines]
    reply = Reply(int(first.split()[1]), Counter([*lines, *names]))
    size = int(reply.value("Content-Length")) if has_body and reply.headers["content-length"] else 0
    while len(body) < size:
        body += bytes(await stream.receive_some())
    reply.body = body.decode()
    return reply


def lower_name(line: str) -> str:
    name, separator, value = line.partition(": ")
    return f"{name.lower()}{separator}{value}"


# What was before


async def link(scene: Scene) -> None:
    reply = await scene.ask("POST /acp", ANN, JSON, body=INITIALIZE)
    assert reply.status == 200, reply
    scene.names["link"] = reply.value("Acp-Connection-Id")


async def observers_link(scene: Scene) -> None:
    reply = await scene.ask("POST /acp", "Authorization: Bearer {observer}", JSON, body=INITIALIZE)
    assert reply.status == 200, reply
    scene.names["link"] = reply.value("Acp-Connection-Id")


async def ended(scene: Scene) -> None:
    assert (await scene.ask("DELETE /acp", ANN, LINK)).status == 202


async def expired(scene: Scene) -> None:
    await end_link(scene, EXPIRED)


async def too_slow(scene: Scene) -> None:
    await end_link(scene, TOO_SLOW)


async def end_link(scene: Scene, reason: str) -> None:
    (hub,) = scene.gateway.hubs
    (attachment,) = hub.attachments.values()
    attachment.close(Disconnect(CloseReason.POLICY, "away", reason))
    while hub.attachments:
        await trio.lowlevel.checkpoint()


async def stream(scene: Scene) -> None:
    assert (await scene.ask("GET /acp", ANN, LINK, EVENTS)).status == 200


async def posting(scene: Scene) -> None:
    for _ in range(MAX_POSTS):
        await scene.begin("POST /acp", (ANN, LINK, JSON, "Content-Length: 2"))
    (hub,) = scene.gateway.hubs
    (attachment,) = hub.attachments.values()
    assert attachment.connection is not None
    assert isinstance(attachment.connection.stream, HttpStream)
    while attachment.connection.stream._link.posting < MAX_POSTS:
        await trio.lowlevel.checkpoint()


async def no_messages(scene: Scene) -> None:
    for _ in range(5):
        assert (await scene.ask("POST /acp", ANN, LINK, JSON, body="{}")).status == 400


async def busy_agent(scene: Scene) -> None:
    scene.monkeypatch.setattr(HttpLink, "has_room", False)


async def no_agent(scene: Scene) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise AgentError("no such program")

    scene.monkeypatch.setattr(startup, "run_agent", fail)


async def mute_agent(scene: Scene) -> None:
    """An agent that the link does not outlive."""

    async def serve(self: HttpLink) -> None:
        self.ended = True
        self.changed.notify()
        await trio.lowlevel.checkpoint()

    scene.monkeypatch.setattr(HttpLink, "serve", serve)


async def wrong_tokens(scene: Scene) -> None:
    for number in range(scene.gateway.config.limits.failed_attempts):
        assert (await scene.ask("GET /acp", f"Authorization: Bearer acpgw_{number}")).status == 401


async def wrong_codes(scene: Scene) -> None:
    for number in range(scene.gateway.config.limits.failed_attempts):
        body = f'{{"code":"acpgwp_{number}"}}'
        assert (await scene.ask("POST /login", "Origin: {origin}", JSON, body=body)).status == 401


async def browser(scene: Scene) -> None:
    reply = await scene.ask("POST /login", "Origin: {origin}", JSON, body=CODE.replace("{", "{").replace("}}", "}"))
    assert reply.status == 200, reply
    scene.names["cookie"] = reply.value("Set-Cookie").partition(";")[0]


async def full_disk(scene: Scene) -> None:
    def fail(*_: object) -> None:
        raise ConfigError("no space")

    scene.monkeypatch.setattr(scene.gateway.browsers, "sign_in", fail)


async def a_file(scene: Scene) -> None:
    """A session of ann's, with a file in its folder."""
    folder = scene.gateway.config.gateway.state_dir.parent.resolve() / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("0123456789")
    services = scene.gateway.services
    services.config = replace(services.config, workspaces={"inside": WorkspaceSection(root=folder)})
    await link(scene)
    body = NEW.replace('"cwd":"/"', f'"cwd":{json.dumps(str(folder))}')
    assert (await scene.ask("POST /acp", ANN, LINK, JSON, body=body)).status == 202
    (hub,) = scene.gateway.hubs
    while not hub.multiplexer.sessions:
        await trio.lowlevel.checkpoint()
    scene.names["session"] = next(iter(hub.multiplexer.sessions)).id


async def not_ready(scene: Scene) -> None:
    scene.gateway.readiness.stopping = True


GIVEN: Final[dict[str, Callable[[Scene], Awaitable[None]]]] = {
    given.__name__: given
    for given in (
        *(
            link,
            observers_link,
            ended,
            expired,
            too_slow,
            stream,
            posting,
            no_messages,
            busy_agent,
            no_agent,
            mute_agent,
        ),
        *(wrong_tokens, wrong_codes, browser, full_disk, not_ready, a_file),
    )
}

# The cases, by path and in the order of the rules in docs/http-reference.md

HTML = "Content-Type: text/plain; charset=utf-8"
UNKNOWN_ORIGIN = "Origin: https://evil.example"
BEARER = "WWW-Authenticate: Bearer"
RETRY = "Retry-After: 1"
REASON = "Acp-Gateway: "
CORS = (f"Access-Control-Allow-Origin: {EDITOR}", "Access-Control-Allow-Credentials: true", "Vary: Origin")
NO_CORS = "!Access-Control-Allow-Origin"
ALLOW = "Allow: GET, POST, DELETE, OPTIONS"

NO_MESSAGE = (
    "a body that is not a JSON-RPC message, or one with a repeated member, an id of more than 1,024 bytes, "
    "or `params` that are not an object where the session is put into them"
)
BATCH = "a batch; the body is the error -32600 under the id `null`"
BEGUN = "`initialize` without `Acp-Connection-Id`; the body is its response"
FAILED = "`initialize` that failed: the body is the error, and there is no connection"
ACCEPTED = "any other message, with `Acp-Connection-Id`"
STREAM = "`GET` of an event stream"
NOT_JSON = "`POST` without `Content-Type: application/json`"
NO_LINK = "`Acp-Connection-Id` is missing"
BEGINS_TWICE = "`initialize` with `Acp-Connection-Id`"
NO_ID = "`initialize` without an id, or with the id `null`"
NO_SUCH_LINK = "the connection has ended, or was never there, or is another token's"
SESSIONS = "`Acp-Session-Id` and `params` name different sessions"
NO_SESSION = "a method that needs a session, without one"
RESERVED = "a notification of `_acp-gateway/`"
BAD_SESSION = "`Acp-Session-Id` with other characters than visible ASCII, or a header twice that may be there once"
TOO_LARGE = (
    "a body larger than `max_message_size`, 8 MiB for a guest, `observer_message_size` for an observer, "
    "or 64 KiB for `initialize`"
)
NO_TOKEN = "no valid token or cookie, with any method but `OPTIONS`"
TOO_OFTEN = "no valid token, cookie or code, more than `failed_attempts` times"
FOREIGN = "an `Origin` that is not the gateway's own and not in `allowed_origins`"
HOST = "a `Host` that is not in `allowed_hosts`, on loopback one of another machine; at every path"
ROLE = "a token that may not do this, or not with this agent"
COOKIE = "a cookie without the `Origin` of a page, or beside the token of another identity"
COOKIES = "two cookies of the gateway's name"
UNKNOWN_AGENT = "`?agent=` or `?session=` names nothing that the token may see"
BAD_QUERY = "a query or token that is ambiguous"
BUSY = "`max_connections` or another limit of connections is reached"
ENDED = "the agent has ended before it answered `initialize`"
UPGRADED = "`GET` with `Upgrade: websocket`"
OTHER_WEBSOCKET = "an upgrade to another version of WebSocket"
PREFLIGHT = "`OPTIONS`, with the headers of a preflight for an allowed origin"
HEADERS = "more than 128 header fields, one larger than 8 KiB, or 64 KiB in all; at every path"
UNSOUND = "a request that is not sound or can be read in two ways; at every path"
CHUNKS = "a body in chunks that have more than 16 KiB besides their data and 16 bytes each, or 8,192 small chunks"
OLD = "another version of HTTP than 1.1 and 1.0; for an upgrade than 1.1"
ENCODING = "another `Transfer-Encoding` than `chunked`; at every path"
BEHIND = "more waited for the connection than `outbox_limit` or `away_limit`; it has ended"
NOTHING = "a path of no service, or of one that `serves` does not name"
METHOD = "another method than the path takes"
READY = "`/readyz`: ready; `/healthz`; the page and its files"
UNCHANGED = "a file of the page that `If-None-Match` names"
NO_FILE = "a file below `/assets/` that the page does not have"
RANGE = "`/files` with a `Range` of the file"
NO_RANGE = "`/files` with a `Range` behind the end of the file"
SIGNED_IN = "`POST /login` with a valid code"
WRONG_CODE = "`POST /login` with a code that is unknown, used or expired"
BAD_LOGIN = "`POST /login` with another body"
NO_PAGE = "`/login` or `/logout` without the `Origin` of a page"
LOGIN_TYPE = "`/login` or `/logout` without `Content-Type: application/json`"
LOGIN_SIZE = "`/login` or `/logout` with a body larger than 1 KiB"
LOGIN_LENGTH = "`/login`, `/logout` or `/join` with a body in chunks"
NOT_STORED = "`/login` or `/logout` that can't be stored"

HEADERS_OF_ACP = "acp-connection-id, acp-session-id, last-event-id"
PAGE = ("Cache-Control: no-store", "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer")

CASES: Final = [
    # 1, form
    Case(415, NOT_JSON, "POST /acp", (ANN, "Content-Type: text/plain"), INITIALIZE, answer=(HTML,)),
    Case(415, NOT_JSON, "POST /acp", (ANN,), INITIALIZE),
    Case(415, NOT_JSON, "POST /acp", (ANN, LINK, "Content-Type: application/json-rpc"), NEW, ("link",)),
    Case(200, BEGUN, "POST /acp", (ANN, f"{JSON}; charset=utf-8"), INITIALIZE),
    *(
        Case(400, NO_MESSAGE, "POST /acp", (ANN, LINK, JSON), body, ("link",))
        for body in (b"", b"{", b'"\xff"', b"1", b'"a"', b"null", b"{}")
    ),
    Case(400, NO_MESSAGE, "POST /acp", (ANN, LINK, JSON), PROMPT.replace("{", '{"id":7,', 1), ("link",)),
    Case(
        400,
        NO_MESSAGE,
        "POST /acp",
        (ANN, LINK, JSON),
        f'{{"jsonrpc":"2.0","id":"{"x" * 1024}","method":"session/list"}}',
        ("link",),
    ),
    *(
        Case(400, NO_MESSAGE, "POST /acp", (ANN, LINK, JSON, "Acp-Session-Id: s"), body, ("link",))
        for body in (
            '{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"prompt":[1],"prompt":[]}}',
            '{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":[]}',
        )
    ),
    *(Case(400, NO_MESSAGE, "POST /acp", (ANN, JSON), body) for body in (b"{", b'"\xff"', b"1")),
    Case(501, BATCH, "POST /acp", (ANN, LINK, JSON), f"[{NEW}]", ("link",), (JSON,), '"id":null'),
    Case(501, BATCH, "POST /acp", (ANN, JSON), f"[{INITIALIZE}]", (), (JSON,), "-32600"),
    # 2, begin
    Case(200, BEGUN, "POST /acp", (ANN, JSON), INITIALIZE, (), (JSON, "Acp-Connection-Id"), '"protocolVersion"'),
    Case(200, FAILED, "POST /acp", (ANN, JSON), INITIALIZE, ("no_agent",), (JSON, "!Acp-Connection-Id"), '"error"'),
    Case(503, ENDED, "POST /acp", (ANN, JSON), INITIALIZE, ("mute_agent",), (RETRY, "!Acp-Connection-Id")),
    Case(400, BEGINS_TWICE, "POST /acp", (ANN, LINK, JSON), INITIALIZE, ("link",)),
    Case(400, NO_ID, "POST /acp", (ANN, JSON), INITIALIZE.replace('"id":0', '"id":null')),
    Case(400, NO_ID, "POST /acp", (ANN, JSON), INITIALIZE.replace('"id":0,', "")),
    # 3, identify
    *(Case(400, NO_LINK, f"{method} /acp", (ANN, JSON, EVENTS), NEW) for method in ("POST", "GET", "DELETE")),
    *(
        Case(404, NO_SUCH_LINK, f"{method} /acp", (token, "Acp-Connection-Id: {link}", JSON, EVENTS), NEW, given)
        for method in ("POST", "GET", "DELETE")
        for token, given in (
            (ANN, ()),
            (ANN, ("link", "ended")),
            ("Authorization: Bearer {bob}", ("link",)),
            ("Authorization: Bearer {observer}", ("link",)),
            ("Authorization: Bearer {bob}", ("link", "expired")),
        )
    ),
    *(
        Case(
            401,
            NO_TOKEN,
            f"{method} /acp",
            (*token, LINK, JSON, EVENTS),
            NEW,
            ("link",),
            (BEARER, REASON + "unauthorized"),
        )
        for method in ("POST", "GET", "DELETE")
        for token in ((), ("Authorization: Bearer acpgw_wrong",))
    ),
    Case(401, NO_TOKEN, "GET /acp", UPGRADE, answer=(BEARER, REASON + "unauthorized", "Connection: close")),
    Case(401, NO_TOKEN, "GET /acp", ("Origin: {origin}", "Cookie: acp-gateway-{port}=acpgwb_wrong"), answer=(BEARER,)),
    Case(429, TOO_OFTEN, "GET /acp", (), "", ("wrong_tokens",), (REASON + "too_many_attempts", "!WWW-Authenticate")),
    # 4, session
    Case(400, SESSIONS, "POST /acp", (ANN, LINK, JSON, "Acp-Session-Id: t"), PROMPT, ("link",)),
    Case(202, ACCEPTED, "POST /acp", (ANN, LINK, JSON, "Acp-Session-Id: s"), PROMPT, ("link",)),
    Case(202, ACCEPTED, "POST /acp", (ANN, LINK, JSON, "Acp-Session-Id: %73"), PROMPT, ("link",)),
    Case(202, ACCEPTED, "POST /acp", (ANN, LINK, JSON), PROMPT, ("link",)),
    Case(
        202,
        ACCEPTED,
        "POST /acp",
        (ANN, LINK, JSON, "Acp-Session-Id: s"),
        PROMPT.replace('"sessionId":"s",', ""),
        ("link",),
    ),
    Case(202, ACCEPTED, "POST /acp", (ANN, LINK, JSON), '{"jsonrpc":"2.0","id":"x","result":{}}', ("link",)),
    Case(202, ACCEPTED, "POST /acp", (ANN, LINK, JSON), '{"jsonrpc":"2.0","method":"$/cancel_request"}', ("link",)),
    *(
        Case(
            400,
            NO_SESSION,
            "POST /acp",
            (ANN, LINK, JSON),
            f'{{"jsonrpc":"2.0","id":2,"method":"{method}"}}',
            ("link",),
        )
        for method in ("session/prompt", "session/load", "session/cancel", "session/set_mode")
    ),
    Case(400, RESERVED, "POST /acp", (ANN, LINK, JSON), '{"jsonrpc":"2.0","method":"_acp-gateway/ack"}', ("link",)),
    # 5, post
    Case(202, ACCEPTED, "POST /acp", (ANN, LINK, JSON), NEW, ("link",), ("Content-Length: 0",)),
    Case(
        413,
        TOO_LARGE,
        "POST /acp",
        (ANN, LINK, JSON, "Content-Length: {big}"),
        "",
        ("link",),
        contains="(max_message_size)",
    ),
    Case(413, TOO_LARGE, "POST /acp", (ANN, JSON, f"Content-Length: {INITIALIZE_SIZE + 1}")),
    Case(
        413,
        TOO_LARGE,
        "POST /acp",
        ("Authorization: Bearer {observer}", LINK, JSON, "Content-Length: 2000"),
        "",
        ("observers_link",),
        contains="2,000 bytes, and may have 1,024 bytes (observer_message_size)",
        limits=(("observer_message_size", 1024),),
    ),
    Case(
        413,
        TOO_LARGE,
        "POST /acp",
        ("Authorization: Bearer {observer}", LINK, JSON, "Transfer-Encoding: chunked"),
        "5dc\r\n" + " " * 1500 + "\r\n0\r\n\r\n",
        ("observers_link",),
        contains="1,024 bytes that it may have (observer_message_size)",
        limits=(("observer_message_size", 1024),),
    ),
    Case(
        429,
        "more than 16 `POST`s at once on a connection",
        "POST /acp",
        (ANN, LINK, JSON),
        NEW,
        ("link", "posting"),
        (RETRY,),
    ),
    Case(
        429,
        "an agent that does not read",
        "POST /acp",
        (ANN, LINK, JSON),
        NEW,
        ("link", "busy_agent"),
        (RETRY,),
        timed=True,
    ),
    Case(
        429,
        "more than `frames_without_message` requests without a message",
        "POST /acp",
        (ANN, LINK, JSON),
        "{}",
        ("link", "no_messages"),
        (RETRY, "Connection: close"),
        limits=(("frames_without_message", 5),),
    ),
    Case(
        408,
        "a message that is not complete within `message_timeout`",
        "POST /acp",
        (ANN, LINK, JSON, "Content-Length: 9"),
        "{",
        ("link",),
        limits=(("message_timeout", 5.0),),
        timed=True,
    ),
    # 6 and 7, read
    Case(
        406,
        "`GET` that does not accept `text/event-stream`",
        "GET /acp",
        (ANN, LINK, "Accept: application/json"),
        "",
        ("link",),
    ),
    Case(
        200,
        STREAM,
        "GET /acp",
        (ANN, LINK, EVENTS),
        "",
        ("link",),
        (
            "Content-Type: text/event-stream",
            "Cache-Control: no-cache",
            "X-Accel-Buffering: no",
            "Acp-Connection-Id: {link}",
        ),
    ),
    *(Case(200, STREAM, "GET /acp", (ANN, LINK, *accept), "", ("link",)) for accept in ((), ("Accept: */*",))),
    Case(
        200, STREAM, "GET /acp", (ANN, LINK, EVENTS, "Acp-Session-Id: later"), "", ("link",), ("Acp-Session-Id: later",)
    ),
    Case(409, "the stream is open already (rule 6)", "GET /acp", (ANN, LINK, EVENTS), "", ("link", "stream")),
    Case(
        409,
        "`Last-Event-ID` of an event behind which not everything is kept",
        "GET /acp",
        (ANN, LINK, EVENTS, "Last-Event-ID: 00000000.1"),
        "",
        ("link",),
    ),
    Case(
        429,
        "more than `max_event_streams` streams of a connection",
        "GET /acp",
        (ANN, LINK, EVENTS, "Acp-Session-Id: s"),
        "",
        ("link", "stream"),
        (RETRY,),
        limits=(("max_event_streams", 1),),
    ),
    # 10, end
    Case(202, "`DELETE`", "DELETE /acp", (ANN, LINK), "", ("link",), ("Content-Length: 0",)),
    *(
        Case(410, "the connection was away for too long", f"{method} /acp", (ANN, LINK, JSON), NEW, ("link", "expired"))
        for method in ("POST", "GET", "DELETE")
    ),
    *(
        Case(409, BEHIND, f"{method} /acp", (ANN, LINK, JSON), NEW, ("link", "too_slow"), (REASON + "too_far_behind",))
        for method in ("POST", "GET", "DELETE")
    ),
    # 11, pages
    Case(
        204,
        PREFLIGHT,
        "OPTIONS /acp",
        (f"Origin: {EDITOR}",),
        answer=(
            *CORS,
            "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS",
            f"Access-Control-Allow-Headers: authorization, content-type, accept, {HEADERS_OF_ACP}",
            "!Content-Length",
        ),
    ),
    Case(204, PREFLIGHT, "OPTIONS /acp", ("Origin: {origin}",), answer=("Access-Control-Allow-Origin: {origin}",)),
    Case(200, BEGUN, "POST /acp", (ANN, JSON, f"Origin: {EDITOR}"), INITIALIZE, answer=CORS),
    Case(401, NO_TOKEN, "POST /acp", (JSON, f"Origin: {EDITOR}"), INITIALIZE, answer=(*CORS, BEARER)),
    Case(403, FOREIGN, "OPTIONS /acp", (UNKNOWN_ORIGIN,), answer=(NO_CORS, REASON + "forbidden")),
    Case(403, FOREIGN, "POST /acp", (ANN, JSON, UNKNOWN_ORIGIN), INITIALIZE, answer=(NO_CORS, REASON + "forbidden")),
    Case(403, FOREIGN, "GET /acp", (ANN, *UPGRADE, UNKNOWN_ORIGIN), answer=(NO_CORS,)),
    *(
        Case(403, HOST, f"GET {path}", (ANN, "Host: evil.example"), answer=(REASON + "forbidden",))
        for path in ("/acp", "/healthz", "/readyz", "/metrics", "/", "/nothing")
    ),
    *(Case(405, METHOD, f"{method} /acp", (ANN,), answer=(ALLOW,)) for method in ("PUT", "PATCH", "HEAD", "TRACE")),
    # 12, characters
    Case(200, STREAM, "GET /acp", (ANN, LINK, "Acp-Session-Id: %C3%BC"), "", ("link",), ("Acp-Session-Id: %C3%BC",)),
    Case(400, BAD_SESSION, "GET /acp", (ANN, LINK, "Acp-Session-Id: ü"), "", ("link",)),
    Case(400, BAD_SESSION, "GET /acp", (ANN, LINK, "Acp-Session-Id: a", "Acp-Session-Id: b"), "", ("link",)),
    Case(400, BAD_SESSION, "GET /acp", (ANN, LINK, LINK), "", ("link",)),
    # What the token may do
    Case(403, ROLE, "POST /acp", ("Authorization: Bearer {metrics}", JSON), INITIALIZE, answer=(REASON + "forbidden",)),
    Case(
        403,
        ROLE,
        "POST /acp?agent=obliging",
        ("Authorization: Bearer {narrow}", JSON),
        INITIALIZE,
        answer=(REASON + "forbidden",),
    ),
    Case(404, UNKNOWN_AGENT, "POST /acp?agent=x", (ANN, JSON), INITIALIZE, answer=(REASON + "unknown_agent",)),
    Case(404, UNKNOWN_AGENT, "POST /acp?session=x", (ANN, JSON), INITIALIZE, answer=(REASON + "unknown_session",)),
    Case(400, BAD_QUERY, "POST /acp?agent=x&agent=y", (ANN, JSON), INITIALIZE, answer=(REASON + "protocol",)),
    Case(400, BAD_QUERY, "POST /acp?control=1", (ANN, JSON), INITIALIZE, answer=(REASON + "protocol",)),
    Case(400, BAD_QUERY, "POST /acp", (ANN, ANN, JSON), INITIALIZE, answer=(REASON + "protocol",)),
    Case(
        503,
        BUSY,
        "POST /acp",
        (ANN, JSON),
        INITIALIZE,
        ("link",),
        (REASON + "busy",),
        limits=(("connections_per_identity", 1),),
    ),
    # WebSocket
    Case(
        101,
        UPGRADED,
        "GET /acp",
        (ANN, *UPGRADE, "Sec-WebSocket-Version: 13"),
        answer=("Acp-Connection-Id", "Upgrade: websocket", "!Sec-WebSocket-Protocol"),
    ),
    Case(
        426,
        OTHER_WEBSOCKET,
        "GET /acp",
        (ANN, *UPGRADE, "Sec-WebSocket-Version: 12"),
        answer=("Sec-WebSocket-Version: 13",),
    ),
    Case(505, OLD, "GET /acp HTTP/1.0", (ANN, *UPGRADE, "Sec-WebSocket-Version: 13")),
    Case(405, METHOD, "POST /acp", (ANN, *UPGRADE, "Sec-WebSocket-Version: 13"), answer=("Allow: GET",)),
    # Browsers
    Case(403, COOKIE, "GET /acp", (*UPGRADE, "Cookie: {cookie}"), "", ("browser",), (REASON + "forbidden",)),
    Case(
        403,
        COOKIE,
        "DELETE /acp",
        ("Authorization: Bearer {bob}", "Origin: {origin}", "Cookie: {cookie}"),
        "",
        ("browser",),
    ),
    Case(400, COOKIES, "GET /acp", ("Origin: {origin}", "Cookie: {cookie}; {cookie}"), "", ("browser",)),
    Case(200, BEGUN, "POST /acp", ("Origin: {origin}", "Cookie: {cookie}", JSON), INITIALIZE, ("browser",)),
    Case(200, SIGNED_IN, "POST /login", ("Origin: {origin}", JSON), CODE, answer=(JSON, "Set-Cookie", *PAGE)),
    Case(
        401,
        WRONG_CODE,
        "POST /login",
        ("Origin: {origin}", JSON),
        '{"code":"acpgwp_x"}',
        answer=(*PAGE, REASON + "unauthorized"),
    ),
    Case(429, TOO_OFTEN, "POST /login", ("Origin: {origin}", JSON), '{"code":"acpgwp_x"}', ("wrong_codes",), PAGE),
    *(
        Case(400, BAD_LOGIN, "POST /login", ("Origin: {origin}", JSON), body, answer=(*PAGE, REASON + "protocol"))
        for body in ("", "[]", "{}", '{"code":1}', '{"code":"x","more":1}')
    ),
    Case(503, NOT_STORED, "POST /login", ("Origin: {origin}", JSON), CODE, ("full_disk",), (*PAGE, REASON + "busy")),
    Case(
        204,
        "`POST /logout`, with and without a cookie",
        "POST /logout",
        ("Origin: {origin}", JSON),
        "{}",
        answer=("Set-Cookie", *PAGE),
    ),
    *(
        case
        for path in ("/login", "/logout")
        for case in (
            Case(403, NO_PAGE, f"POST {path}", (JSON,), CODE, answer=(*PAGE, REASON + "forbidden")),
            Case(403, NO_PAGE, f"POST {path}", (UNKNOWN_ORIGIN, JSON), CODE, answer=(*PAGE, NO_CORS)),
            Case(415, LOGIN_TYPE, f"POST {path}", ("Origin: {origin}", "Content-Type: text/plain"), CODE, answer=PAGE),
            Case(415, LOGIN_TYPE, f"POST {path}", ("Origin: {origin}",), CODE, answer=PAGE),
            Case(413, LOGIN_SIZE, f"POST {path}", ("Origin: {origin}", JSON), " " * 1025, answer=PAGE),
            Case(
                411, LOGIN_LENGTH, f"POST {path}", ("Origin: {origin}", JSON, "Transfer-Encoding: chunked"), answer=PAGE
            ),
            Case(405, METHOD, f"GET {path}", ("Origin: {origin}",), answer=("Allow: POST", *PAGE)),
        )
    ),
    # Other paths
    Case(200, READY, "GET /readyz", contains="ready"),
    Case(200, READY, "HEAD /readyz"),
    Case(200, READY, "GET /healthz", contains="ok"),
    Case(200, READY, "GET /"),
    Case(503, "`/readyz`: not ready", "GET /readyz", (), "", ("not_ready",), contains="not ready"),
    Case(401, "`/readyz`: a wrong token", "GET /readyz", ("Authorization: Bearer acpgw_x",), answer=(BEARER,)),
    *(
        Case(405, METHOD, f"{method} {path}", answer=("Allow: GET, HEAD",))
        for method in ("POST", "DELETE", "OPTIONS")
        for path in ("/", "/healthz", "/readyz", "/metrics")
    ),
    Case(
        200,
        "`/metrics` with a token of the role `metrics`",
        "GET /metrics",
        ("Authorization: Bearer {metrics}",),
        contains="acp_gateway_build_info",
        answer=("Cache-Control: no-store",),
    ),
    Case(401, "`/metrics` without a valid token", "GET /metrics", answer=(BEARER, REASON + "unauthorized")),
    Case(403, "`/metrics` with a token of another role", "GET /metrics", (ANN,), answer=(REASON + "forbidden",)),
    Case(404, NOTHING, "GET /nothing"),
    Case(404, NOTHING, "GET /acp/"),
    Case(200, READY, "GET /manifest.webmanifest", answer=("ETag",)),
    Case(206, RANGE, A_FILE, (ANN, "Range: bytes=3-5"), "", ("a_file",), ("Content-Range: bytes 3-5/10",), "345"),
    Case(416, NO_RANGE, A_FILE, (ANN, "Range: bytes=10-"), "", ("a_file",), ("Content-Range: bytes */10",)),
    Case(304, UNCHANGED, "GET /favicon.ico", ("If-None-Match: *",), answer=("ETag", "!Content-Length")),
    Case(404, NO_FILE, "GET /assets/x", answer=PAGE),
    # Requests that are not valid HTTP
    # Within an `initialize`, and within a message of a link.
    *(
        Case(
            400,
            CHUNKS,
            "POST /acp",
            (ANN, *named, JSON, "Transfer-Encoding: chunked"),
            chunks,
            given,
            ("Connection: close",),
        )
        for named, given in (((), ()), ((LINK,), ("link",)))
        for chunks in (b"1;%b\r\n \r\n" % (b"x" * 4000) * 8, b"1\r\n \r\n" * 10_000)
    ),
    Case(400, UNSOUND, "GET /healthz", ("Content-Length: 1", "Content-Length: 2")),
    Case(400, UNSOUND, "GET /healthz", ("Content-Length: 1", "Transfer-Encoding: chunked")),
    Case(501, ENCODING, "POST /acp", (ANN, JSON, "Transfer-Encoding: gzip")),
    Case(400, UNSOUND, "GET /healthz", ("Host: a", "Host: b")),
    Case(400, UNSOUND, "GET /healthz", ("A: b\nC: d",)),
    Case(400, UNSOUND, "GET http://other/healthz"),
    Case(400, UNSOUND, "POST /acp", (ANN, LINK, JSON, "Transfer-Encoding: chunked"), "zz\r\n", ("link",)),
    Case(431, HEADERS, "GET /healthz", tuple(f"A{number}: b" for number in range(MAX_FIELDS))),
    Case(431, HEADERS, "GET /healthz", ("A: " + "b" * LINE_SIZE,)),
    Case(431, HEADERS, "GET /healthz", tuple(f"A{number}: {'b' * 8000}" for number in range(HEAD_SIZE // 8000 + 1))),
    Case(505, OLD, "GET /healthz HTTP/2.0"),
    Case(414, "a request line larger than 8 KiB; at every path", f"GET /{'a' * LINE_SIZE}"),
]


def by_name(case: Case) -> str:
    words = "-".join(re.findall(r"[a-zA-Z]+", f"{case.request[:20]} {' '.join(case.given)} {case.cause}"))
    return f"{case.status}-{words[:70]}"


@asynccontextmanager
async def served(
    gateway: Gateway, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch, certificate: Path | None
) -> AsyncIterator[Scene]:
    section = ListenSection(url=WS) if certificate is None else with_tls("wss://127.0.0.1:0", certificate)
    section = replace(section, serves=("acp", "page", "metrics"), allowed_origins=(EDITOR,))
    scene = Scene(gateway, agents, monkeypatch)
    scene.certificate = certificate
    async with listening(section, gateway) as listener, scene.stack:
        scene.port = port_of(listener)
        scheme = "http" if certificate is None else "https"
        scene.names |= {"port": str(scene.port), "origin": f"{scheme}://localhost:{scene.port}"}
        yield scene


async def check(
    case: Case,
    tmp_path: Path,
    spawner: Spawner,
    agents: ServingAgents,
    monkeypatch: pytest.MonkeyPatch,
    certificate: Path | None = None,
) -> None:
    monkeypatch.setattr("acp_gateway.server.handshake_limits.REFUSAL_DELAY", 0.001)
    config = make_config(tmp_path / "state", WS)
    config = replace(config, limits=replace(config.limits, **dict(case.limits)))
    gateway = Gateway(config, TokenStore(tmp_path / "state"), spawner, {})
    async with served(gateway, agents, monkeypatch, certificate) as scene:
        for name in case.given:
            await GIVEN[name](scene)
        reply = await scene.ask(case.request, *case.fields, body=case.body)
        assert reply.status == case.status, reply
        for expected in map(scene.fill, case.answer):
            if certificate is not None and expected == "Connection: close":
                continue  # A header of HTTP/1.1 alone.
            absent = expected.startswith("!")
            assert reply.headers[lower_name(expected.removeprefix("!"))] == (0 if absent else 1), (expected, reply)
        assert case.contains in reply.body


@pytest.mark.parametrize("case", [case for case in CASES if not case.timed], ids=by_name)
async def test_each_request_has_the_status_of_the_reference(
    case: Case, tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check(case, tmp_path, spawner, agents, monkeypatch)


ONLY_OF_HTTP_1: Final = (UNSOUND, CHUNKS, OLD, ENCODING, LOGIN_LENGTH, UPGRADED, OTHER_WEBSOCKET)


def is_of_both(case: Case) -> bool:
    """Return whether HTTP/2 has such a request: no upgrades, no chunks, and not all headers together are too large."""
    names = {field.partition(":")[0] for field in case.fields}
    whole = sum(map(len, case.fields)) < HEAD_SIZE
    return whole and case.cause not in ONLY_OF_HTTP_1 and not {"Upgrade", "Transfer-Encoding"} & names


@pytest.mark.parametrize("case", [case for case in CASES if not case.timed and is_of_both(case)], ids=by_name)
async def test_each_request_over_http_2_has_the_same_status(
    case: Case,
    tmp_path: Path,
    spawner: Spawner,
    agents: ServingAgents,
    monkeypatch: pytest.MonkeyPatch,
    certificate: Path,
) -> None:
    await check(case, tmp_path, spawner, agents, monkeypatch, certificate)


@pytest.mark.parametrize("case", [case for case in CASES if case.timed], ids=by_name)
async def test_each_late_response_has_the_status_of_the_reference(
    case: Case,
    tmp_path: Path,
    spawner: Spawner,
    agents: ServingAgents,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    autojump_clock.autojump_threshold = 0.01
    await check(case, tmp_path, spawner, agents, monkeypatch)


def rows() -> dict[tuple[int, str], set[str]]:
    """The rows of the reference: status and cause, and the headers that matter."""
    found: dict[tuple[int, str], set[str]] = {}
    for case in CASES:
        names = {line.partition(":")[0] for line in case.answer if not line.startswith("!")}
        found.setdefault((case.status, case.cause), set()).update(names & TOLD)
    return found


TOLD: Final = {"Retry-After", "WWW-Authenticate", "Allow", "Acp-Connection-Id", "Set-Cookie", "Sec-WebSocket-Version"}
"""Headers that the reference names; the others have a rule or a section of their own."""


def test_the_reference_has_each_status_its_causes_and_headers() -> None:
    text = (ROOT / "docs" / "http-reference.md").read_text().partition("## Status codes")[2]
    table = re.findall(r"^\| (\d{3}) \| (.*) \| (.*?) ?\|$", text, re.MULTILINE)
    assert {(int(status), cause): set(re.findall("`([^`]+)`", names)) for status, cause, names in table} == rows()
    assert [int(status) for status, *_ in table] == sorted(int(status) for status, *_ in table)


def test_each_status_of_the_code_is_in_the_reference() -> None:
    named = set()
    for module in ("server", "dialects", "transports"):
        for path in (ROOT / "acp_gateway" / module).rglob("*.py"):
            # Previews of ports are at origins of their own, and have the statuses of the program there.
            if path.parts[-2:] != ("ports", "previewing.py"):
                named |= set(re.findall(r"HTTPStatus\.([A-Z_]+)", path.read_text()))
    statuses = {int(HTTPStatus[name]) for name in named}
    # Those of editors are in a table of their own.
    of_editors = re.findall(r"^\| (\d{3}) \|", (ROOT / "docs" / "dialects-reference.md").read_text(), re.MULTILINE)
    assert statuses - {status for status, _ in rows()} - set(map(int, of_editors)) == set()


if __name__ == "__main__":
    for (status, cause), names in sorted(rows().items(), key=lambda row: row[0][0]):
        print(f"| {status} | {cause} | {', '.join(f'`{name}`' for name in sorted(names))} |")  # noqa: T201
