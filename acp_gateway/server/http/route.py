"""Routes: the checks of the requests for a path, and what answers those that pass."""

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final

from acp_gateway.gateway.access import Access
from acp_gateway.server.hello import Passage, asks_for_websocket, read_passage
from acp_gateway.server.pending import Accepted
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.websocket.stream import CONNECTION_ID, LIMIT, PART, PROBES, RESUME

CODE_SIZE: Final = 1024
"""Maximum bytes of a body with a one-use code. A code has 46; its sender is not known yet."""


class Origins(enum.Enum):
    """Pages that may send a request. A cookie is accepted only where the page is checked."""

    ANY = enum.auto()
    """Every page: the response is the same for all, and needs more than a browser adds by itself to tell anything."""
    OURS = enum.auto()
    """Pages of the gateway's own origin and of `allowed_origins`; also programs, which send no `Origin`."""
    LOADED = enum.auto()
    """As `OURS`, and what such a page of the gateway's own loads: browsers send no `Origin` with it, but say that it is
    of the same origin (Fetch Metadata), in a header that no page can set. For what changes nothing."""
    OURS_ONLY = enum.auto()
    """The same pages, and no program."""
    NONE = enum.auto()
    """No page: programs alone."""


class Credential(enum.Enum):
    """Proof of its sender that a request has to show."""

    NONE = enum.auto()
    OPTIONAL = enum.auto()
    """A token may be shown, and is valid then."""
    NEEDED = enum.auto()
    """A valid token; or a cookie, where `Origins` has the page checked; or what the listener accepts in its place."""
    CODE = enum.auto()
    """A one-use code in a body of `application/json`, which the handler checks."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A request that is granted a WebSocket."""

    accepted: Accepted

    binary: bool = False
    """True if binary messages count as text."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the 101."""
        accepted, link = self.accepted, {}
        if accepted.received is not None:
            link = {RESUME: str(accepted.received), PROBES: "1", LIMIT: str(accepted.limit), PART: str(accepted.part)}
        return {CONNECTION_ID: accepted.connection_id} | link


@dataclass(frozen=True, slots=True)
class BodyNeeded:
    """A request that is decided by its body, which is read within the limits for unauthenticated connections."""

    decide: Callable[[bytes], "Answer"]
    """Takes a body of at most `CODE_SIZE` bytes. Raises `AccessError` and `BadRequest`."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that is authenticated and takes its time: it runs outside of the limits for handshakes.

    `run` writes the response and returns whether another request may follow on the connection.
    """

    access: Access
    run: Callable[[HttpConnection], Awaitable[bool]]
    prepare: Callable[[HttpConnection], Awaitable[Response | None]] | None = None
    """Receives what it needs before the connection leaves those limits, or returns a refusal. None unless the request
    opens a link."""
    opens: bool = False
    """True if the request opens a connection of another kind, which the audit has."""


Answer = Response | Upgrade | Exchange | BodyNeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path: what is checked of its requests, in the order of the members, and what answers those that pass."""

    methods: tuple[str, ...]
    """With `OPTIONS`, the preflights of pages are answered without the handler."""
    origins: Origins
    passage: bool
    """True if requests may come through another gateway, which says so in headers, and this one passes such requests on
    to its nodes; else these headers are refused."""
    credential: Credential
    answer: Callable[..., Answer]
    """Called with the client, the request, and the principal (None where none is needed and shown) or, for a code, the
    body. Raises `AccessError` and `BadRequest`."""


READ: Final = ("GET", "HEAD")
SOCKET: Final = ("GET", "POST", "OPTIONS")
"""Methods of a path for WebSockets alone: by `POST`, a page asks if it may connect."""

public: Final = partial(Route, methods=READ, origins=Origins.ANY, passage=False)
"""Makes a route whose response is the same for all pages."""
secured: Final = partial(Route, origins=Origins.OURS, passage=True, credential=Credential.NEEDED)
"""Makes a route for clients that have a credential."""
with_code: Final = partial(Route, methods=("POST",), passage=False, credential=Credential.CODE)
"""Makes a route for a one-use code."""


def needs_websocket(request: Request) -> Response:
    """Return the refusal of a request that asks for no WebSocket."""
    return Response.of_text(HTTPStatus.UPGRADE_REQUIRED, f"{request.path} is for WebSockets", {"Upgrade": "websocket"})


def wants_websocket(request: Request) -> bool:
    """Return whether a request asks for a WebSocket."""
    return asks_for_websocket(request.headers)


def passage_of(request: Request) -> Passage:
    """Return what a gateway that passes a request on says of it."""
    return read_passage(request.headers)
