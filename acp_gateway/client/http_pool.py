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

from acp_gateway.config.addresses import Address
from acp_gateway.transports.http_client import Cookies, Head, HttpClientConnection
from acp_gateway.transports.streams import ByteStream

IDLE_MAX: Final = 3.0
"""Seconds for which an idle connection may be used again: servers close theirs after five or more."""

KEPT_MAX: Final = 3
"""Idle connections that are kept, at most."""

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


class Reply(NamedTuple):
    """A response with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpPool:
    """Makes requests to one endpoint, over as many connections as there are requests at once.

    Args:
        endpoint: see there.
        connect: opens a connection to the server, and verifies it.
    """

    def __init__(self, endpoint: Endpoint, connect: Callable[[], Awaitable[ByteStream]]) -> None:
        self._endpoint = endpoint
        self._connect = connect
        self._cookies = Cookies(endpoint.target.partition("?")[0], secure=endpoint.tls)
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
    ) -> Reply:
        """Make a request and return the response, with at most a little more than `limit` bytes of its body.

        Raises `GatewayError` without a connection, and `BrokenResourceError` if it is lost. Cancelling closes the
        connection.
        """
        http = await self._take()
        kept = False
        try:
            head = await self._begin(http, method, headers, body, sent)
            reply = Reply(head.status, head.headers, await http.read_all(limit))
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

    async def _take(self) -> HttpClientConnection:
        now = trio.current_time()
        while self._idle:
            http, since = self._idle.pop()
            if now - since < IDLE_MAX:
                return http
            await http.aclose()
        return HttpClientConnection(await self._connect(), self._endpoint.host)

    async def _begin(
        self,
        http: HttpClientConnection,
        method: str,
        headers: Mapping[str, str],
        body: bytes,
        sent: Callable[[], None],
    ) -> Head:
        fields = {**self._endpoint.headers, **self._cookies.header(time.time()), **headers}
        head = await http.request(method, self._endpoint.target, fields, body, sent)
        for cookie in head.cookies:
            self._cookies.store(cookie, time.time())
        return head
