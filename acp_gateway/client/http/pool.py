"""The HTTP connections to one server: kept for the next request while that is safe, with the server's cookies.

A connection that has been idle is not used again for long: the server may close it at any moment, and a `POST` that was
cut off then may have been carried out or not.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple
from urllib.parse import quote

import trio

from acp_gateway.client.http.cookies import CookieJar, Origin
from acp_gateway.config.addresses import Address
from acp_gateway.errors import ProtocolError
from acp_gateway.printable import printable
from acp_gateway.security.token_format import without_token
from acp_gateway.transports.http.client import Head, HttpClientConnection
from acp_gateway.transports.streams import ByteStream

IDLE_MAX: Final = 1.0
"""Seconds for which an idle connection may be used again: servers close theirs after two, five or more."""

KEPT_MAX: Final = 3
"""Idle connections that are kept, at most."""

_OK: Final = 200
_HTTP_PORT: Final = 80
_HTTPS_PORT: Final = 443

_REDIRECTS: Final = 300
"""The least status that is not a success."""


class Endpoint(NamedTuple):
    """The URL of a server, in parts, and what every request to it shows."""

    host: str
    """The value of the `Host` header."""
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    tls: bool

    @classmethod
    def at(cls, address: Address, query: str, headers: Mapping[str, str]) -> "Endpoint":
        """Return the endpoint at an address, with this query and these headers."""
        host = f"[{address.host}]" if ":" in address.host else address.host
        usual = _HTTPS_PORT if address.tls else _HTTP_PORT
        target = quote(address.path, safe="/%:@!$&'()*+,;=~") + (f"?{query}" if query else "")
        host = host if address.port == usual else f"{host}:{address.port}"
        return cls(host, target, {**headers, "Accept-Encoding": "identity"}, address.tls)


class Reply(NamedTuple):
    """A response with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        """The first line of the body, for an error; of a redirect, the place to which it leads."""
        lines = self.body.decode(errors="replace").strip().splitlines()
        place = self.headers.get("location", "") if _REDIRECTS <= self.status < 400 else ""
        if place:
            return f"a redirect to {printable(place, size=200)}, which is not followed"
        return printable(lines[0] if lines else "without a reason", size=200)

    def pause(self, usual: float, longest: float) -> float:
        """Return the seconds to wait before a request is repeated, by `Retry-After`."""
        asked = self.headers.get("retry-after", "")
        return min(float(asked), longest) if asked.isascii() and asked.isdigit() else usual


class HttpPool:
    """Makes requests to one endpoint, over as many connections as there are requests at once.

    Args:
        endpoint: see there.
        connect: opens a connection to the server, and verifies it.
        cookies: the cookies to send and to keep; None for new ones.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        connect: Callable[[], Awaitable[ByteStream]],
        cookies: CookieJar | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._connect = connect
        self._origin = Origin(endpoint.host, endpoint.tls)
        self._path = endpoint.target.partition("?")[0]
        self._cookies = CookieJar() if cookies is None else cookies
        # Idle connections and the times since when, the longest one first.
        self._idle: list[tuple[HttpClientConnection, float]] = []

    async def ask(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        limit: int,
        sent: Callable[[], None] = lambda: None,
        idempotent: bool = False,
    ) -> Reply:
        """Make a request and return the response, with at most a little more than `limit` bytes of its body.

        An idempotent request is repeated once if a connection that was idle turns out to be lost.

        Raises `Unreachable` and the like without a connection, `ProtocolError` for a response that can't be read, and
        `BrokenResourceError` if the connection is lost. Cancelling closes it.
        """
        http = await self._take()
        if http is not None and idempotent:
            try:
                return await self._ask(http, method, headers, body, limit, sent)
            except trio.BrokenResourceError:
                http = None
        if http is None:
            http = HttpClientConnection(await self._connect(), self._endpoint.host)
        return await self._ask(http, method, headers, body, limit, sent)

    async def _ask(
        self,
        http: HttpClientConnection,
        method: str,
        headers: Mapping[str, str],
        body: bytes,
        limit: int,
        sent: Callable[[], None],
    ) -> Reply:
        kept = False
        try:
            head = await self._begin(http, method, headers, body, sent)
            text = await http.read_all(limit)
            if head.status >= _REDIRECTS:
                text = without_token(text.decode(errors="replace"), self._endpoint.headers).encode()
            reply = Reply(head.status, head.headers, b"" if _is_encoded(head) else text)
            if http.reusable and len(self._idle) < KEPT_MAX:
                http.start_next()
                self._idle.append((http, trio.current_time()))
                kept = True
            return reply
        finally:
            if not kept:
                await http.aclose()

    @asynccontextmanager
    async def begin(self, headers: Mapping[str, str]) -> AsyncIterator[tuple[Head, HttpClientConnection]]:
        """Make a `GET` over a connection of its own, which is closed at the end of the block. Raises as `ask`."""
        http = HttpClientConnection(await self._connect(), self._endpoint.host)
        try:
            yield await self._begin(http, "GET", headers, b"", lambda: None), http
        finally:
            await http.aclose()

    async def aclose(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop()[0].aclose()

    async def _take(self) -> HttpClientConnection | None:
        """Return an idle connection that is fresh enough, if there is one."""
        now = trio.current_time()
        while self._idle:
            http, since = self._idle.pop()
            if now - since < IDLE_MAX:
                return http
            await http.aclose()
        return None

    async def _begin(
        self,
        http: HttpClientConnection,
        method: str,
        headers: Mapping[str, str],
        body: bytes,
        sent: Callable[[], None],
    ) -> Head:
        fields = {**self._endpoint.headers, **self._cookies.header(self._origin, self._path, time.time()), **headers}
        head = await http.request(method, self._endpoint.target, fields, body, sent)
        for cookie in head.cookies:
            self._cookies.store(self._origin, self._path, cookie, time.time())
        if head.status == _OK and _is_encoded(head):
            encoding = printable(head.headers["content-encoding"], size=40)
            raise ProtocolError(f"{self._endpoint.host}: the server's answer is encoded ({encoding}), unasked")
        return head


def _is_encoded(head: Head) -> bool:
    """Return whether a body is compressed or otherwise encoded, which each request forbids."""
    return head.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")
