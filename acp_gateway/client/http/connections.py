"""The HTTP/1.1 connections to one server: a pool that keeps them.

A connection that has been idle is not used again for long: the server may close it at any
moment, and a `POST` that was cut off then may have been carried out or not.

HTTP clients from PyPI save little of this: they do not tell an event that is cut off from a proper end, and bound
neither events nor cookies.
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
from acp_gateway.transports.http.client import REDIRECTS, Head, HttpClientConnection, Reply, Request
from acp_gateway.transports.streams import ByteStream

IDLE_MAX: Final = 1.0
"""Seconds for which an idle connection may be used again: servers close theirs after two, five or more."""

KEPT_MAX: Final = 3
"""Idle connections that are kept, at most."""

_OK: Final = 200
_HTTP_PORT: Final = 80
_HTTPS_PORT: Final = 443


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

    async def ask(self, request: Request, *, limit: int) -> Reply:
        """Make a request and return the response, with at most a little more than `limit` bytes of its body.

        An idempotent request is repeated once if a connection that was idle turns out to be lost.

        Raises `Unreachable` and the like without a connection, `ProtocolError` for a response that can't be read, and
        `BrokenResourceError` if the connection is lost. Cancelling closes it.
        """
        idle = await self._take_idle()
        if idle is not None:
            try:
                return await self._ask(idle, request, limit)
            except trio.BrokenResourceError:
                if not request.idempotent:
                    raise
        return await self._ask(await self._open(), request, limit)

    @asynccontextmanager
    async def begin(self, headers: Mapping[str, str]) -> AsyncIterator[tuple[Head, HttpClientConnection]]:
        """Make a `GET` over a connection of its own, which is closed at the end of the block. Raises as `ask`."""
        http = await self._open()
        try:
            yield await self._begin(http, Request("GET", headers)), http
        finally:
            await http.aclose()

    async def aclose(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop()[0].aclose()

    async def _open(self) -> HttpClientConnection:
        return HttpClientConnection(await self._connect(), self._endpoint.host)

    async def _take_idle(self) -> HttpClientConnection | None:
        """Return an idle connection that is fresh enough, if there is one."""
        now = trio.current_time()
        while self._idle:
            http, since = self._idle.pop()
            if now - since < IDLE_MAX:
                return http
            await http.aclose()
        return None

    async def _ask(self, http: HttpClientConnection, request: Request, limit: int) -> Reply:
        kept = False
        try:
            head = await self._begin(http, request)
            body = await http.read_all(limit)
            kept = len(self._idle) < KEPT_MAX and http.start_next()
            if kept:
                self._idle.append((http, trio.current_time()))
        finally:
            if not kept:
                await http.aclose()
        if head.encoding:
            body = b""
        elif head.status >= REDIRECTS:
            body = without_token(body.decode(errors="replace"), self._endpoint.headers).encode()
        return Reply(head.status, head.headers, body)

    async def _begin(self, http: HttpClientConnection, request: Request) -> Head:
        cookies = self._cookies.header(self._origin, self._path, time.time())
        fields = {**self._endpoint.headers, **cookies, **request.headers}
        head = await http.send(self._endpoint.target, request._replace(headers=fields))
        for cookie in head.cookies:
            self._cookies.store(self._origin, self._path, cookie, time.time())
        if head.status == _OK and head.encoding:
            encoding = printable(head.encoding, size=40)
            raise ProtocolError(f"{self._endpoint.host}: the server's answer is encoded ({encoding}), unasked")
        return head
