"""Requests that h11 reads, and their responses: all but the plain ones.

An exchange, plain or not, knows how much of its request is unread and which bytes its response consists of.
"""

from collections.abc import Mapping
from http import HTTPStatus

import h11
import trio
from websockets.datastructures import Headers

from acp_gateway.transports.http.head import HEAD_SIZE, NOT_HTTP, HttpError, body_size
from acp_gateway.transports.http.plain import date, phrase


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
