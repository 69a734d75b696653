"""The server's side of one HTTP/1.1 connection: requests in order, each with one response.

A plain request has nothing that two readers could see differently: a method of the endpoint, a path, HTTP/1.1, one
`Host`, visible ASCII, at most one `Content-Length`, and no header that changes what follows. Nearly all clients send
these. All others are left to h11, which parses and frames; before it sees a head, `head` checks it. What is unsound is
refused, and the connection is closed. A fuzz holds both readers against each other: what is read here, h11 reads with
the same meaning.

Heads, bodies and the number of header fields are bounded here; the time is the caller's to bound.
"""

import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from math import inf
from typing import Any, Final, Protocol, TypeVar

import h11
import trio
from websockets.datastructures import Headers

from acp_gateway.transports.framing import CLOSE_TIMEOUT, ChunkBuffer
from acp_gateway.transports.http.head import HEAD_SIZE, NOT_HTTP, HttpError, body_size, check_head, split_target
from acp_gateway.transports.maintained import SLOWEST_PEER
from acp_gateway.transports.streams import ByteStream, Stalled

CHUNKS_AT_ONCE: Final = 64
"""Chunks of a body after which other tasks get their turn: one read may bring ten thousand."""

FREE_CHUNKS: Final = 16
CHUNK_SIZE: Final = 1024
"""Chunks of a body that cost nothing, besides one for each so many bytes: the rest counts as small pieces."""

MAX_PIECES: Final = 8192
"""Small pieces of one body: no client that means well sends so many."""

CHUNK_FRAMING: Final = 16
MAX_FRAMING: Final = 16384
"""Bytes that a chunk may have besides its data, and those that the whole body may have beyond them: extensions and
trailers, which nothing reads."""

MANY_PARTS: Final = 256
"""Parts of a body after which the system is asked which of them have arrived."""

STREAM: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers of a response that goes on: neither caches nor nginx may hold it back."""

SANDBOX: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Policy of content that is not the gateway's own: at its origin, it runs nothing, loads nothing and sends nothing."""

_END_OF_HEAD: Final = b"\r\n\r\n"

RETRY: Final = {"Retry-After": "1"}
"""Header of a response to what may be sent again."""


Fields = Mapping[str, str] | Sequence[tuple[str, str]]
"""Headers of a response; as pairs, a name may be repeated."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request."""

    method: str
    path: str
    query: str = field(repr=False)  # It may have a token.
    headers: Headers = field(repr=False)
    """All but `Content-Length`, which `HttpConnection` has read."""
    version: str = "1.1"
    _results: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, function: Callable[["Request"], Result]) -> Result:
        """Return the result of a function of the request alone.

        It is called once for all requests of a connection with the same head; each time if it raises.
        """
        if function not in self._results:
            self._results[function] = function(self)
        result: Result = self._results[function]
        return result


@dataclass(frozen=True, slots=True)
class Response:
    """A response with a body that is there at once."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds to wait before it is sent."""
    close: bool = False
    """True if the connection ends with it."""

    @classmethod
    def of_text(
        cls,
        status: int,
        text: str,
        headers: Mapping[str, str] | None = None,
        *,
        delay: float = 0.0,
        close: bool = False,
    ) -> "Response":
        """Return a response with a line of text, which no browser may take for a page."""
        content = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
        return cls(status, f"{text}\n".encode(), content | dict(headers or {}), delay, close)


# One request and its response

PLAIN_HEAD_SIZE: Final = 4096
"""Maximum bytes of a plain head."""

BODY_SIZE: Final = 65536
"""Maximum bytes of a plain body, as many as are read at once."""

_HEAD: Final = re.compile(
    r"(GET|POST|DELETE) (/[!-~]*) HTTP/1\.1\r\n"
    r"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]++: ?[!-~][ -~]*+(?<! )\r\n){1,32})\r\n"
)
_FIELD: Final = re.compile(r"([^:]++): ?([^\r]++)\r\n")
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: ?([0-9]{1,15})\r\n")
_DIGITS: Final = re.compile(r"[0-9]{1,15}")

TOO_LONG: Final = "the body of the response is longer than its announced length"

_SPECIAL: Final = ("transfer-encoding", "expect", "upgrade")
"""Headers by which a body or the connection is another one."""


class PlainHead:
    """A head that was read, and the part of it by which the next one of the connection is known to be the same.

    A client repeats its headers with each request, so only `Content-Length` differs, which is not among `headers`.
    """

    __slots__ = ("_length_at", "_same", "headers", "method", "size", "target")

    def __init__(self, method: str, target: str, headers: Headers, same: bytes, length_at: int, size: int) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.size = size
        """Bytes of the body."""
        self._same = same
        self._length_at = length_at

    def repeated(self, head: bytes) -> bool:
        """Return whether a head is this one but for the size of the body, which is `size` from then on."""
        same, length_at, size = _without_length(head)
        if same != self._same or length_at != self._length_at or size > BODY_SIZE:
            return False
        self.size = size
        return True


def read_plain(head: bytes) -> PlainHead | None:
    """Read a whole head; None if it is not plain."""
    if len(head) > PLAIN_HEAD_SIZE or not head.isascii():
        return None
    found = _HEAD.fullmatch(head.decode())
    if found is None:
        return None
    headers = Headers(_FIELD.findall(found[3]))
    lengths = headers.get_all("Content-Length")
    if (
        len(lengths) > 1
        or not all(map(_DIGITS.fullmatch, lengths))
        or len(headers.get_all("Host")) != 1
        or any(name in headers for name in _SPECIAL)
        or any(value.lower() != "keep-alive" for value in headers.get_all("Connection"))
    ):
        return None
    if lengths:
        del headers["Content-Length"]
    same, length_at, size = _without_length(head)
    return PlainHead(found[1], found[2], headers, same, length_at, size) if size <= BODY_SIZE else None


def _without_length(head: bytes) -> tuple[bytes, int, int]:
    """Return a head without the digits of its length, where they were, and their value; -1 and 0 without a length."""
    found = _LENGTH.search(head)
    if found is None:
        return head, -1, 0
    start, end = found.span(1)
    return head[:start] + head[end:], start, int(found[1])


def read_fields(headers: Fields, *, chunked: bool) -> tuple[Sequence[tuple[str, str]], int | None]:
    """Return the headers of a response as pairs, and its `Content-Length`. Raises `ValueError` for unsound ones."""
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    lengths = [value for name, value in pairs if name.lower() == "content-length"]
    if len(lengths) + chunked > 1:
        raise ValueError("a response has one length")
    values = "".join([value for _, value in pairs])
    if "\r" in values or "\n" in values:
        raise ValueError("a header of a response is one line")
    return pairs, int(lengths[0]) if lengths else None


class MessageExchange(Protocol):
    """The state of a request and of its response, and the bytes of the latter."""

    @property
    def announced(self) -> int | None:
        """Bytes of the body of the request; None if only its end will tell."""

    @property
    def behind(self) -> bytes:
        """Bytes of the next request that it has."""

    @property
    def may_be_followed(self) -> bool:
        """True if the request was read and answered as a whole, and the connection goes on."""

    def is_whole(self) -> bool:
        """Return whether all of the request was read."""

    def head(self, status: int, headers: Fields, *, chunked: bool) -> bytes:
        """Return the head of the response."""

    def data(self, data: bytes) -> bytes:
        """Return a part of the body as it is sent. Raises `BrokenResourceError` for more than was announced."""

    def end(self) -> bytes:
        """Return the end of the body; the end is behind it if this is repeated."""


class PlainExchange:
    """The state of a plain request and of its response, and the bytes of the latter.

    What is sent has the announced length: more would be taken for the next response.
    """

    __slots__ = ("_chunked", "_closes", "_ended", "_started", "_unsent", "announced", "left")

    behind: Final = b""
    """Bytes of the next request that it has."""

    def __init__(self, size: int) -> None:
        self.announced = size
        """Bytes of the body."""
        self.left = size
        """Bytes of the body that were not taken yet."""
        self._started = self._chunked = self._closes = self._ended = False
        # Bytes of the response's body that are announced and not sent.
        self._unsent = 0

    async def receive_body(
        self, stream: ByteStream, unread: bytearray, received: Callable[[int, int], Awaitable[None]], timeout: float
    ) -> bytes:
        """Wait for the body and take it from the `unread` bytes, to which the stream's are added.

        `received`, `timeout` and what is raised are those of `HttpConnection.receive_body`.
        """
        began, counted = trio.current_time(), 0
        while True:
            there = min(len(unread), self.left)
            if there > counted:
                await received(there - counted, 0)
                counted = there
            if there == self.left:
                break
            with trio.move_on_at(began + timeout + there / SLOWEST_PEER) as waiting:
                data = await stream.receive_some()
                if not data:
                    raise trio.BrokenResourceError("the client has left in the middle of a request")
                unread += data
            if waiting.cancelled_caught:
                raise HttpError(HTTPStatus.REQUEST_TIMEOUT, f"the body is not complete after {timeout:g} s")
        with memoryview(unread) as view:
            body = bytes(view[: self.left])
        del unread[: self.left]
        self.left = 0
        return body

    def head(self, status: int, headers: Fields, *, chunked: bool) -> bytes:
        """Return the head of the response: of one in chunks, or with `Content-Length`, or of one without a body."""
        if self._started:
            raise trio.BrokenResourceError("the request was answered before")
        self._started, self._chunked = True, chunked
        pairs, length = read_fields(headers, chunked=chunked)
        self._closes = ("Connection", "close") in pairs
        self._unsent = length or 0
        fields = "".join([f"{name}: {value}\r\n" for name, value in pairs])
        coding = "Transfer-Encoding: chunked\r\n" if chunked else ""
        return f"HTTP/1.1 {status} {phrase(status)}\r\n{fields}{coding}Date: {date()}\r\n\r\n".encode("latin-1")

    def data(self, data: bytes) -> bytes:
        """Return a part of the body as it is sent. Raises `BrokenResourceError` for more than was announced."""
        if self._chunked:
            return b"%x\r\n%b\r\n" % (len(data), data) if data else data
        if len(data) > self._unsent:
            raise trio.BrokenResourceError(TOO_LONG)
        self._unsent -= len(data)
        return data

    def end(self) -> bytes:
        """Return the end of the body; the end is behind it if this is repeated."""
        ended, self._ended = self._ended, True
        return b"0\r\n\r\n" if self._chunked and not ended else b""

    def is_whole(self) -> bool:
        """Return whether all of the request was read."""
        return not self.left

    @property
    def may_be_followed(self) -> bool:
        """True if the request was read and answered as a whole, and the connection goes on."""
        return self._ended and not self._closes and not self.left and not self._unsent


def date() -> str:
    """Return the value of a `Date` header."""
    return _date(int(time.time()))


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    # It is made once a second.
    return formatdate(seconds, usegmt=True)


def phrase(status: int) -> str:
    """Return the words of a status; empty for one that has none."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def switching_head(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return the head of the response behind which the connection speaks another protocol."""
    status = HTTPStatus.SWITCHING_PROTOCOLS
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class H11Exchange:
    """A request and its response by h11. Before a request is read, and after one that is not sound, it refuses."""

    __slots__ = ("announced", "h11", "is_read", "method")

    def __init__(self) -> None:
        self.h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_SIZE)
        self.method = b""
        """Method of the request, also of one that is refused."""
        self.announced: int | None = 0
        """Bytes of the body; None if it is chunked."""
        self.is_read = False
        """True if the head was read and is sound."""

    def read(self, head: bytes) -> tuple[str, str, Headers, str]:
        """Return method, target, headers and version of a checked head. Raises `HttpError`."""
        self.h11.receive_data(head)
        try:
            event = self.h11.next_event()
        except h11.RemoteProtocolError as error:
            raise HttpError(error.error_status_hint, NOT_HTTP) from None
        if not isinstance(event, h11.Request):
            raise HttpError(HTTPStatus.BAD_REQUEST, NOT_HTTP)
        self.method = event.method
        if event.http_version not in (b"1.0", b"1.1"):
            raise HttpError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, NOT_HTTP)
        headers = Headers()
        for name, value in event.headers.raw_items():
            if name.lower() != b"content-length":
                headers[name.decode("ascii")] = value.decode("latin-1")
        self.announced = body_size(head, event.http_version)
        self.is_read = True
        return event.method.decode("ascii"), event.target.decode("ascii"), headers, event.http_version.decode()

    def is_whole(self) -> bool:
        """Read what is there of the request; return whether that is all of it."""
        if not self.is_read or self.h11.they_are_waiting_for_100_continue:
            return False
        if self.h11.their_state is h11.SEND_BODY and self.announced == 0:
            # Only the end is missing, and it takes no bytes.
            self.h11.next_event()
        return self.h11.their_state not in (h11.SEND_BODY, h11.ERROR)

    def head(self, status: int, headers: Fields, *, chunked: bool) -> bytes:
        """Return the head of the response, whose form follows from its headers."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        fields = [(name.encode("ascii"), value.encode("latin-1")) for name, value in pairs]
        fields.append((b"Date", date().encode()))
        if self.h11.our_state not in (h11.SEND_RESPONSE, h11.IDLE):
            raise trio.BrokenResourceError("the request was not understood, and was answered before")
        return self.h11.send(h11.Response(status_code=status, headers=fields, reason=phrase(status).encode())) or b""

    def data(self, data: bytes) -> bytes:
        """Return a part of the body as it is sent. Raises `BrokenResourceError` for more than was announced."""
        try:
            return b"" if self.method == b"HEAD" else self.h11.send(h11.Data(data=data)) or b""
        except h11.LocalProtocolError:
            raise trio.BrokenResourceError(TOO_LONG) from None

    def end(self) -> bytes:
        """Return the end of the body. After less than was announced, no request may follow."""
        try:
            return self.h11.send(h11.EndOfMessage()) or b"" if self.h11.our_state is h11.SEND_BODY else b""
        except h11.LocalProtocolError:
            return b""

    @property
    def may_be_followed(self) -> bool:
        """True if the request was read and answered as a whole, and the connection goes on."""
        return self.h11.our_state is h11.DONE and self.h11.their_state is h11.DONE

    @property
    def behind(self) -> bytes:
        """Bytes of the next request that h11 has: heads are checked before h11 sees them."""
        return self.h11.trailing_data[0]


# The connection


class SmallPieces:
    """Counts the small pieces of a body: one costs more than its bytes."""

    def __init__(self) -> None:
        self._counted = 0

    def count(self, parts: int, size: int) -> int:
        """Return how many have come since the last call, if the body has come in so many parts. Raises `HttpError`."""
        further = max(parts - FREE_CHUNKS - size // CHUNK_SIZE - self._counted, 0)
        self._counted += further
        if self._counted > MAX_PIECES:
            raise HttpError(HTTPStatus.BAD_REQUEST, "the body has too many small chunks")
        return further


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a body: where it starts in all that is written, its size, and where its frame ends."""

    start: int
    size: int
    end: int

    def missing(self, confirmed: int) -> int:
        """Return the bytes of it that are not among so many confirmed ones."""
        return self.size - min(max(confirmed - self.start, 0), self.size)


async def _ignore(size: int, pieces: int) -> None:
    """Charge nothing."""


UNMEASURED: Final = nullcontext()


class HttpConnection:
    """Reads requests from a stream and writes their responses.

    Each request that `receive_request` returns is answered by `respond`, or by `start` and what follows it, or the
    connection is handed over by `detach`, before the next one is read.

    Args:
        stream: the connection.
        stall_timeout: seconds after which a client that takes no byte is given up.
        exchange: the only request, if it is known already.
    """

    def __init__(self, stream: ByteStream, stall_timeout: float = inf, exchange: MessageExchange | None = None) -> None:
        self.stream = stream
        self.headers: Mapping[str, str] = {}
        """Further headers of the next response."""
        self._stall_timeout = stall_timeout
        # The present request and its response.
        self._exchange: MessageExchange = exchange or H11Exchange()
        # The last plain request, while the next one may be the same.
        self._known: tuple[PlainHead, Request] | None = None
        # Bytes that were read and neither taken nor given to h11 yet.
        self._unread = bytearray()
        # Bytes written so far, and the parts of the body that may not have arrived.
        self._written = 0
        self._parts: deque[Part] = deque()

    # Requests

    @property
    def pipelined(self) -> bool:
        """True if bytes of the next request have been read already."""
        return bool(self._unread)

    async def receive_request(self, measured: AbstractContextManager[None] | None = None) -> Request | None:
        """Wait for the next request and return its head; None if the client has closed the connection instead.

        It is parsed within the context `measured`. Raises `HttpError`, and what the stream raises. Cancelled, it may
        lose bytes: the connection is to be closed.
        """
        if not self._unread:
            data = await self.stream.receive_some()
            if not data:
                return None
            self._unread += data
        with measured or UNMEASURED:
            request = self._read_plain()
        if request is not None:
            return request
        self._exchange = exchange = H11Exchange()
        head = await self._receive_head()
        if not head:
            return None
        with measured or UNMEASURED:
            method, target, headers, version = exchange.read(head)
            return Request(method, *split_target(target, headers), headers, version)

    def _read_plain(self) -> Request | None:
        """Return the request whose head is there, if it is plain; None leaves all as it was."""
        end = self._unread.find(_END_OF_HEAD)
        if end < 0:
            return None
        head = bytes(self._unread[: end + len(_END_OF_HEAD)])
        known = self._known
        if known is None or not known[0].repeated(head):
            plain = read_plain(head)
            if plain is None:
                return None
            known = plain, Request(plain.method, *split_target(plain.target, plain.headers), plain.headers)
        del self._unread[: len(head)]
        self._known, self._exchange = known, PlainExchange(known[0].size)
        return known[1]

    async def _receive_head(self) -> bytes:
        searched = skipped = 0
        while True:
            # Empty lines before a request are ignored (RFC 9112, 2.2), but not without end.
            while self._unread.startswith(b"\r\n"):
                del self._unread[:2]
                skipped += 2
            end = self._unread.find(_END_OF_HEAD, max(0, searched - 3))
            size = len(self._unread) if end < 0 else end + len(_END_OF_HEAD)
            # An unsound head is refused before its end: it may have none. A CR alone may begin an empty line.
            if self._unread != b"\r":
                check_head(bytes(self._unread[:size]), searched)
            if skipped + size > HEAD_SIZE:
                text = f"the head of a request must not be larger than {HEAD_SIZE} bytes"
                raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
            if end >= 0:
                head = bytes(self._unread[:size])
                del self._unread[:size]
                return head
            searched = size
            data = await self.stream.receive_some()
            if not data:
                if self._unread.strip(b"\r\n"):
                    raise HttpError(HTTPStatus.BAD_REQUEST, NOT_HTTP)
                return b""
            self._unread += data

    @property
    def announced_size(self) -> int | None:
        """Bytes of the body that the request announces; None if only its end will tell."""
        return self._exchange.announced

    @property
    def body_is_there(self) -> bool:
        """True if the whole body of a plain request has come, so that receiving it takes no waiting."""
        return isinstance(self._exchange, PlainExchange) and len(self._unread) >= self._exchange.left

    async def receive_body(
        self, limit: int, received: Callable[[int, int], Awaitable[None]] = _ignore, timeout: float = inf
    ) -> bytes:
        """Wait for the body of the request, and return it.

        Args:
            limit: maximum bytes. What is announced is refused before it is read.
            received: awaited after each read, with the number of its bytes and of small pieces, to charge for them.
            timeout: seconds within which the body must be complete, besides those that `SLOWEST_PEER` takes.

        Raises `HttpError`, and what the stream and `received` raise. Cancelled, it may lose bytes: the connection is to
        be closed.
        """
        exchange = self._exchange
        if exchange.announced is not None and exchange.announced > limit:
            raise HttpError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has {exchange.announced:,} bytes, and may have {limit:,} bytes",
            )
        return await self._receive_body(limit, received, timeout)

    async def _receive_body(self, limit: int, received: Callable[[int, int], Awaitable[None]], timeout: float) -> bytes:
        """As `receive_body`, of a body that is not refused by its announcement."""
        exchange = self._exchange
        if isinstance(exchange, PlainExchange):
            return await exchange.receive_body(self.stream, self._unread, received, timeout)
        assert isinstance(exchange, H11Exchange)
        reader = exchange.h11
        if reader.they_are_waiting_for_100_continue:
            await self._send(
                reader.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")) or b""
            )
        # Small parts grow together, see `ChunkBuffer`.
        body, pieces = ChunkBuffer(), SmallPieces()
        size = parts = fed = counted = 0
        began = trio.current_time()
        while True:
            try:
                event = reader.next_event()
            except h11.RemoteProtocolError as error:
                raise HttpError(error.error_status_hint, "the body of the request is not sound") from None
            if isinstance(event, h11.Data):
                body.add(event.data)
                parts += 1
                size += len(event.data)
                if size > limit:
                    text = f"the body has more than the {limit:,} bytes that it may have"
                    raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
                if parts % CHUNKS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            elif event is not h11.NEED_DATA and not isinstance(event, h11.EndOfMessage):
                raise HttpError(HTTPStatus.BAD_REQUEST, "the body of the request is not sound")
            else:
                # Chunk sizes and extensions count as well, what belongs to the next request does not.
                behind = exchange.behind if isinstance(event, h11.EndOfMessage) else b""
                if fed - len(behind) - size > MAX_FRAMING + CHUNK_FRAMING * parts:
                    raise HttpError(HTTPStatus.BAD_REQUEST, "the chunks of the body have too much besides their data")
                further = pieces.count(parts, size)
                if fed > counted:
                    await received(fed - len(behind) - counted, further)
                    counted = fed - len(behind)
                if isinstance(event, h11.EndOfMessage):
                    return body.take()
                with trio.move_on_at(began + timeout + size / SLOWEST_PEER) as waiting:
                    fed += await self._feed(reader)
                if waiting.cancelled_caught:
                    text = f"the body is not complete after {timeout:g} s"
                    raise HttpError(HTTPStatus.REQUEST_TIMEOUT, text)

    async def receive_part(self) -> bytes:
        """Wait for a part of the body and return it; empty at the end, and not to be called behind it.

        Raises as `receive_body`, without its limits.
        """
        exchange = self._exchange
        if isinstance(exchange, PlainExchange):
            return await exchange.receive_body(self.stream, self._unread, _ignore, inf) if exchange.left else b""
        assert isinstance(exchange, H11Exchange)
        reader = exchange.h11
        if reader.they_are_waiting_for_100_continue:
            going_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            await self._send(reader.send(going_on) or b"")
        while True:
            await trio.lowlevel.checkpoint()
            try:
                event = reader.next_event()
            except h11.RemoteProtocolError as error:
                raise HttpError(error.error_status_hint, "the body of the request is not sound") from None
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return b""
            if event is not h11.NEED_DATA:
                raise HttpError(HTTPStatus.BAD_REQUEST, "the body of the request is not sound")
            await self._feed(reader)

    async def _feed(self, reader: h11.Connection) -> int:
        data = self.detach()
        if not data:
            data = await self.stream.receive_some()
        if not data:
            raise trio.BrokenResourceError("the client has left in the middle of a request")
        reader.receive_data(data)
        return len(data)

    # Responses

    async def respond(self, response: Response) -> bool:
        """Send a response; return whether another request may follow.

        Raises what the stream raises. Cancelled, it may have sent a part: the connection is to be closed.
        """
        if response.delay:
            await trio.sleep(response.delay)
        size = (
            {}
            if response.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
            else {"Content-Length": str(len(response.body))}
        )
        headers = {**size, **response.headers, **self.headers}
        if response.close or not self._exchange.is_whole():
            headers["Connection"] = "close"
        head = self._exchange.head(response.status, headers, chunked=False)
        await self._send(head + self._exchange.data(response.body))
        return self._next_request()

    async def start(self, status: int, headers: Mapping[str, str], size: int | None = None) -> None:
        """Send the head of a response whose body, of `size` bytes if that is known, follows in parts: see `send`."""
        self._exchange.is_whole()
        # It goes on for long: nothing is kept for a request behind it.
        self._known = None
        self.stream.count_unconfirmed()
        sized = {} if size is None else {"Content-Length": str(size)}
        fields = {**STREAM, **sized, **headers, **self.headers}
        await self._send(self._exchange.head(status, fields, chunked=size is None))

    async def start_passed(self, status: int, fields: Sequence[tuple[str, str]], *, chunked: bool) -> None:
        """Send the head of a response from elsewhere, whose body follows in parts: as many bytes as `Content-Length`
        says, or in chunks. Names may be repeated."""
        self._exchange.is_whole()
        self._known = None
        await self._send(self._exchange.head(status, fields, chunked=chunked))

    async def send(self, data: bytes) -> None:
        """Send a part of the body. Cancelled, it may have sent a part of that: the connection is to be closed."""
        await self.send_rest(self.send_nowait(data))

    def send_nowait(self, data: bytes) -> memoryview:
        """Send a part of the body as far as that takes no waiting; return the rest, for `send_rest` before all else."""
        framed = self._exchange.data(data)
        # A chunk is its size in a line, the data, and the end of a line.
        start = self._written + max(0, len(framed) - len(data) - 2)
        self._parts.append(Part(start, len(data), self._written + len(framed)))
        if len(self._parts) > MANY_PARTS:
            self._forget_confirmed()
        return self._offer(memoryview(framed))

    async def send_rest(self, data: memoryview) -> None:
        """Send what is left of a part, as `send`."""
        while data:
            with trio.move_on_after(self._stall_timeout) as waiting:
                sent = await self.stream.send_some(data)
            if waiting.cancelled_caught:
                raise Stalled(f"the client has taken nothing for {self._stall_timeout:g} s")
            self._written += sent
            data = self._offer(data[sent:])

    async def end(self) -> bool:
        """Send the end of the body; return whether another request may follow."""
        await self._send(self._exchange.end())
        return self._next_request()

    async def wait_left(self, *, last: bool = False) -> None:
        """Return when the client has closed the connection, or its writing side.

        A request behind the present one waits until that is answered; up to `HEAD_SIZE` bytes are read ahead. They are
        dropped if the present request is the `last` one of the connection.
        """
        # What h11 has of it stays ours.
        ahead = len(self._exchange.behind) + len(self._unread)
        while ahead < HEAD_SIZE:
            try:
                data = await self.stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            ahead += len(data)
            if not last:
                self._unread += data
            # It is not kept while this waits.
            del data
        await trio.sleep_forever()

    async def cancel_when_left(self, scope: trio.CancelScope, *, last: bool = False) -> None:
        """Cancel a scope when `wait_left` returns."""
        await self.wait_left(last=last)
        scope.cancel()

    @asynccontextmanager
    async def while_there(self, *errors: type[Exception]) -> AsyncIterator[trio.Nursery]:
        """End this block when the client leaves, or when it raises that a stream is lost or one of these errors.

        Returns a nursery for tasks of the block, which end with it.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.cancel_when_left, nursery.cancel_scope)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, *errors):
                yield nursery
            nursery.cancel_scope.cancel()

    @property
    def confirmed_bytes(self) -> int:
        """Bytes of all that was written which the client's system has confirmed, as far as this system tells."""
        return self._forget_confirmed()

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes given to `send` that the client's system has not confirmed."""
        confirmed = self._forget_confirmed()
        return sum(part.missing(confirmed) for part in self._parts)

    def _forget_confirmed(self) -> int:
        """Forget the parts that have arrived, and return the number of confirmed bytes of all that was written."""
        confirmed = self._written - self.stream.unconfirmed_bytes
        while self._parts and self._parts[0].end <= confirmed:
            self._parts.popleft()
        return confirmed

    async def send_raw(self, data: bytes) -> None:
        """Send what is the response by itself. Cancelled, it may have sent a part: the connection is to be closed."""
        await self._send(data)

    def detach(self) -> bytes:
        """Return the bytes behind the request: the connection speaks another protocol from here on."""
        behind = bytes(self._unread)
        self._unread.clear()
        return behind

    async def aclose(self) -> None:
        """Close the connection once the client has read the last response, or does not in a bounded time."""
        try:
            with trio.move_on_after(CLOSE_TIMEOUT):
                await self.stream.finish()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await self.stream.aclose()

    def _next_request(self) -> bool:
        """Return whether another request may follow the response that was sent as a whole."""
        self._exchange.end()
        if not self._exchange.may_be_followed:
            return False
        # What h11 has of the next request stays ours.
        self._unread[:0] = self._exchange.behind
        self._exchange = PlainExchange(0)
        self.headers = {}
        return True

    async def _send(self, data: bytes) -> None:
        await self.send_rest(self._offer(memoryview(data)))

    def _offer(self, data: memoryview) -> memoryview:
        """Write what is taken at once, and return the rest."""
        while data and (sent := self.stream.send_nowait(data)):
            self._written += sent
            data = data[sent:]
        return data
