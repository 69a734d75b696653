"""Requests and their responses: the plain ones, which nearly all clients send, without h11, and all others with it.

An exchange, plain or not, knows how much of its request is unread and which bytes its response consists of.

A plain request has nothing that two readers could see differently: a method of the endpoint, a path, HTTP/1.1, one
`Host`, visible ASCII, at most one `Content-Length`, and no header that changes what follows. Every other request is
left to h11. A fuzz holds both readers against each other: what is read here, h11 reads with the same meaning.
"""

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import h11
import trio
from websockets.datastructures import Headers

from acp_gateway.transports.http.head import HEAD_SIZE, NOT_HTTP, HttpError, body_size
from acp_gateway.transports.maintained import SLOWEST_PEER
from acp_gateway.transports.streams import ByteStream

PLAIN_HEAD_SIZE: Final = 4096
"""Maximum bytes of a plain head."""

BODY_SIZE: Final = 65536
"""Maximum bytes of a plain body, as many as are read at once."""

MAX_FIELDS: Final = 32

_HEAD: Final = re.compile(
    r"(GET|POST|DELETE) (/[!-~]*) HTTP/1\.1\r\n"
    r"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]++: ?[!-~]++(?: ++[!-~]++)*+\r\n){1,32}+)\r\n"
)
_FIELD: Final = re.compile(r"([^:]++): ?([^\r]++)\r\n")
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: ?([0-9]{1,15})\r\n")
_DIGITS: Final = re.compile(r"[0-9]{1,15}")

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


class PlainExchange:
    """The state of a plain request and of its response, and the bytes of the latter."""

    __slots__ = ("_chunked", "_closes", "_ended", "_started", "announced", "left")

    behind: Final = b""
    """Bytes of the next request that it has."""

    def __init__(self, size: int) -> None:
        self.announced = size
        """Bytes of the body."""
        self.left = size
        """Bytes of the body that were not taken yet."""
        self._started = self._chunked = self._closes = self._ended = False

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

    def head(self, status: int, headers: Mapping[str, str], *, chunked: bool) -> bytes:
        """Return the head of the response: of one in chunks, or with `Content-Length`, or of one without a body."""
        if self._started:
            raise trio.BrokenResourceError("the request was answered before")
        self._started, self._chunked = True, chunked
        self._closes = headers.get("Connection") == "close"
        values = "".join(headers.values())
        if "\r" in values or "\n" in values:
            raise ValueError("a header of a response is one line")
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        coding = "Transfer-Encoding: chunked\r\n" if chunked else ""
        return f"HTTP/1.1 {status} {phrase(status)}\r\n{fields}{coding}Date: {date()}\r\n\r\n".encode("latin-1")

    def data(self, data: bytes) -> bytes:
        """Return a part of the body as it is sent."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else data

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
        return self._ended and not self._closes and not self.left


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

    def head(self, status: int, headers: Mapping[str, str], *, chunked: bool) -> bytes:
        """Return the head of the response, whose form follows from its headers."""
        fields = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
        fields.append((b"Date", date().encode()))
        if self.h11.our_state not in (h11.SEND_RESPONSE, h11.IDLE):
            raise trio.BrokenResourceError("the request was not understood, and was answered before")
        return self.h11.send(h11.Response(status_code=status, headers=fields, reason=phrase(status).encode())) or b""

    def data(self, data: bytes) -> bytes:
        """Return a part of the body as it is sent."""
        return b"" if self.method == b"HEAD" else self.h11.send(h11.Data(data=data)) or b""

    def end(self) -> bytes:
        """Return the end of the body."""
        return self.h11.send(h11.EndOfMessage()) or b"" if self.h11.our_state is h11.SEND_BODY else b""

    @property
    def may_be_followed(self) -> bool:
        """True if the request was read and answered as a whole, and the connection goes on."""
        return self.h11.our_state is h11.DONE and self.h11.their_state is h11.DONE

    @property
    def behind(self) -> bytes:
        """Bytes of the next request that h11 has: heads are checked before h11 sees them."""
        return self.h11.trailing_data[0]
