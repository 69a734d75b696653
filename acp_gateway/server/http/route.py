"""The record of a route: its path's handler, and all that is checked of a request before the handler is called.

No member has a default, so that a new route can't leave out a check: its author has to write what it lets through.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from acp_gateway.server.http.streamable_http import Exchange
from acp_gateway.server.pending import Accepted
from acp_gateway.transports.http.server import Response
from acp_gateway.transports.websocket.stream import CONNECTION_ID, RESUME

CODE_SIZE: Final = 1024
"""Maximum bytes of a body with a one-use code. A code has 46; its sender is not known yet."""


class Origins(enum.Enum):
    """Pages that may send a request. A cookie is accepted only where the page is checked, and only with an `Origin`."""

    ANY = enum.auto()
    """Every page: the response is the same for all, and needs more than a browser adds by itself to tell anything."""
    OURS = enum.auto()
    """Pages of the gateway's own origin and of `allowed_origins`; also programs, which send no `Origin`."""
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

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the 101."""
        count = {} if self.accepted.received is None else {RESUME: str(self.accepted.received)}
        return {CONNECTION_ID: self.accepted.connection_id} | count


@dataclass(frozen=True, slots=True)
class BodyNeeded:
    """A request that is decided by its body, which is read within the limits for unauthenticated connections."""

    decide: Callable[[bytes], "Answer"]
    """Takes a body of at most `CODE_SIZE` bytes. Raises `AccessError` and `BadRequest`."""


Answer = Response | Upgrade | Exchange | BodyNeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path: what is checked of its requests, in the order of the members, and what answers those that pass."""

    methods: tuple[str, ...]
    """With `OPTIONS`, the preflights of pages are answered without the handler."""
    origins: Origins
    passage: bool
    """True if a WebSocket may come through another gateway, which says so in headers; else these are refused."""
    credential: Credential
    answer: Callable[..., Answer]
    """Called with the client, the request, and the principal (None where none is needed and shown) or, for a code, the
    body. Raises `AccessError` and `BadRequest`."""
