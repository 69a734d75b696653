"""Readers of HTTP requests in the search for slow messages: each takes one request, from its first byte on."""

import math
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import trio

from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.http.link import HttpLink
from acp_gateway.dialects.http.streamable_http import StreamableHttp
from acp_gateway.errors import AccessError
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server import hello
from acp_gateway.server.hello import BadRequest
from acp_gateway.server.http import sign_in as cookies
from acp_gateway.server.http.route import CODE_SIZE, Exchange
from acp_gateway.server.http.sign_in import SignInRoutes
from acp_gateway.transports.http import head
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import CHUNK_SIZE, HttpConnection, Request
from acp_gateway.transports.streams import READ_SIZE, ByteStream
from acp_gateway.transports.websocket.server import upgrade
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import make_config

NEVER: Final = Timing(ping_interval=math.inf, ping_timeout=math.inf, stall_timeout=math.inf)

ORIGIN: Final = "http://localhost:1"

POST: Final = (
    b"POST /acp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAcp-Connection-Id: c\r\n%b\r\n\r\n"
)
LOGIN: Final = (
    b"POST /login HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:1\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


class _Sent(ByteStream):
    """Bytes that have all arrived, to a reader that may answer whatever it likes."""

    def __init__(self, data: bytes) -> None:
        self._rest = memoryview(data)
        self.answer = bytearray()

    async def receive_some(self) -> bytes:
        data, self._rest = bytes(self._rest[:READ_SIZE]), self._rest[READ_SIZE:]
        return data

    def send_nowait(self, data: memoryview) -> int:
        self.answer += data
        return len(data)

    async def send_some(self, data: memoryview) -> int:
        return self.send_nowait(data)

    async def send_eof(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


def posts(text: bytes) -> list[bytes]:
    """Return requests that send a message: as a whole, and in the smallest chunks that cost nothing."""
    pieces = [text[start : start + CHUNK_SIZE] for start in range(0, len(text), CHUNK_SIZE)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return [
        POST % b"Content-Length: %d" % len(text) + text,
        POST % b"Acp-Session-Id: s\r\nTransfer-Encoding: chunked" + chunks,
    ]


class Held(float):
    """The longest time for which a task has held the loop, in processor seconds."""


class _Longest(trio.abc.Instrument):
    """Measures the longest step of a task."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begun = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.seconds = max(self.seconds, time.thread_time() - self._begun)


def hold_post(data: bytes) -> Held:
    """Have the endpoint take a message for an open link; return for how long that has held the loop."""
    longest = _Longest()
    take_post(data, longest)
    return Held(longest.seconds)


def take_post(data: bytes, *instruments: trio.abc.Instrument) -> bytes:
    """Have the endpoint take a message for an open link; return the response."""

    async def take() -> bytes:
        gateway: Any = SimpleNamespace(config=make_config(Path("/nonexistent"), max_message_size=2**30))
        unused: Any = None
        link = HttpLink(gateway, unused, "c", "c", unused)
        links: Any = SimpleNamespace(find=lambda *_: link)
        sent = _Sent(data)
        http = HttpConnection(sent)
        request = await http.receive_request()
        assert request is not None
        exchange = StreamableHttp(gateway, links).answer(unused, request, unused)
        assert isinstance(exchange, Exchange)
        await exchange.run(http)
        return bytes(sent.answer)

    return trio.run(take, instruments=instruments)


def take_login(body: bytes) -> None:
    """Have a listener read a sign-in, and refuse it."""

    async def take() -> None:
        http = HttpConnection(_Sent(LOGIN % len(body) + body))
        request = await http.receive_request()
        assert request is not None
        client: Any = SimpleNamespace(connection=SimpleNamespace(token=None))
        with suppress(BadRequest, AccessError):
            _sign_in().log_in(client, request, await http.receive_body(CODE_SIZE))

    trio.run(take)


def take_request(data: bytes) -> None:
    """Have a listener read a request with each check that there is for one, and answer with a WebSocket."""

    async def take() -> None:
        http = HttpConnection(_Sent(data))
        with suppress(HttpError):
            request = await http.receive_request()
            assert request is not None
            for check in _checks(request):
                with suppress(BadRequest, AccessError):
                    check()
            await upgrade(http, request, {}, max_message_size=2**20, timing=NEVER)

    trio.run(take)


def _checks(request: Request) -> list[Callable[[], object]]:
    headers = request.headers
    site = cookies.site_of(headers, tls=True)
    return [
        partial(hello.check_host, headers, ("a",), loopback=True),
        partial(hello.check_origin, headers, ("https://a",)),
        partial(hello.read_bearer, headers),
        partial(hello.read_query, request.query),
        partial(hello.read_resume_request, request.query, headers),
        partial(hello.client_address, "127.0.0.1", headers, (ip_network("127.0.0.1"),)),
        partial(head.media_types, headers, "Content-Type"),
        partial(head.media_types, headers, "Accept"),
        partial(site.read_cookie, headers),
        partial(cookies.check_page, headers, ("https://a",), site),
    ]


@cache
def _sign_in() -> SignInRoutes:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        gateway: Any = SimpleNamespace(browsers=BrowserStore(folder, TokenStore(folder)))
        section = ListenSection(url="http://127.0.0.1:0", allowed_origins=(ORIGIN,), serves=("acp", "page"))
        return SignInRoutes(section, gateway)
