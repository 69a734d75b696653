"""Decides which `POST` of Streamable HTTP is sent when, which session it belongs to, and which streams are needed.

The order of messages is kept: a `POST` waits until the one before it was answered. A server may take long for that, so
two kinds of messages do not wait:

- responses, which an agent may need to go on at all;
- cancellations. They follow what they may cancel, which must be under way for `ANSWER_TIMEOUT`: a server reads two
  connections in any order. Later messages of the session follow them in turn.

A message belongs to the session that its params name, a response to that of its request. There is no I/O and no clock
here.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple
from urllib.parse import quote

from acp_gateway.protocol.event_parser import SESSION_ID
from acp_gateway.protocol.methods import (
    CANCEL_REQUEST,
    CLOSE,
    DELETE,
    FORK,
    INITIALIZE,
    LOAD,
    NEW,
    RESUME,
    SESSION_CANCEL,
)
from acp_gateway.protocol.text.json_text import NOTHING, raw_at, read_envelope, text_at

ANSWER_TIMEOUT: Final = 1.0
"""Seconds after which a `POST` that was sent and is not answered counts as slow."""

URGENT: Final = 2
"""Responses and cancellations that are under way at once, at most."""

REQUESTS_KEPT: Final = 1000
"""Requests of the agent whose session is known until they are answered, at most."""


_IDEMPOTENT: Final = frozenset({INITIALIZE, LOAD, RESUME, CLOSE, DELETE})


class Kind(enum.Enum):
    """The treatment of a message in the order of messages."""

    ORDERED = enum.auto()
    CANCEL = enum.auto()
    RESPONSE = enum.auto()


@dataclass(slots=True, eq=False)
class Post:
    """A message that is to be sent, or is under way."""

    text: bytes
    kind: Kind
    raw_id: bytes | None
    """Its id; for `$/cancel_request` that of the request."""
    method: str | None
    """None for a response, and for what is not a message."""
    session: str | None
    """The session that it belongs to."""
    under_way: bool = False
    sent_at: float = inf
    """Time at which it was written; infinite before."""

    @property
    def is_request(self) -> bool:
        """True if the editor waits for a response."""
        return self.method is not None and self.raw_id is not None and self.kind is Kind.ORDERED

    @property
    def idempotent(self) -> bool:
        """True if the server may handle it twice without harm."""
        return self.kind is Kind.CANCEL or self.method in _IDEMPOTENT

    @property
    def opens_session(self) -> bool:
        """True if the events of its session come before its response."""
        return self.method in (LOAD, RESUME) and self.session is not None

    @property
    def initializes(self) -> bool:
        """True for a request `initialize`."""
        return self.method == INITIALIZE and self.raw_id is not None


class Arrival(NamedTuple):
    """The meaning of a message of the server for its event streams."""

    opened: str | None = None
    """A session whose stream is needed now."""
    closed: str | None = None
    """A session whose stream is not needed any more."""
    loaded: str | None = None
    """A session whose history has to be passed on before this message, the response to `session/load`."""


class PostQueue:
    """The messages that wait to be sent and those that are under way, in order; and the open requests of both sides."""

    def __init__(self) -> None:
        self._posts: list[Post] = []
        self.unwritten_bytes = 0
        """Bytes of the messages that are not written."""
        # Method and session of each request of the editor, and the session of each request of the agent, by id.
        self._asked: dict[bytes, tuple[str, str | None]] = {}
        self._asking: dict[bytes, str] = {}

    def __bool__(self) -> bool:
        """Return whether any message is not answered by the server."""
        return bool(self._posts)

    # To the server

    def add(self, text: bytes) -> None:
        """Add a message of the editor."""
        raw_id, method, _ = read_envelope(text) or NOTHING
        session = text_at(text, "params", "sessionId") if method is not None else None
        kind = Kind.ORDERED
        if method is None and raw_id is not None:
            kind = Kind.RESPONSE
            session = self._asking.pop(raw_id, None)
        elif method == CANCEL_REQUEST:
            kind = Kind.CANCEL
            raw_id, session = raw_at(text, "params", "requestId"), None
        elif method == SESSION_CANCEL and raw_id is None:
            kind = Kind.CANCEL
        elif method is not None and raw_id is not None:
            self._asked[raw_id] = method, session
        self._posts.append(Post(text, kind, raw_id, method, session))
        self.unwritten_bytes += len(text)

    def next(self, now: float) -> Post | None:
        """Return a message that is to be sent now; None if there is none before `due`."""
        urgent = sum(post.under_way and post.kind is not Kind.ORDERED for post in self._posts)
        for number, post in enumerate(self._posts):
            if post.under_way or (post.kind is not Kind.ORDERED and urgent >= URGENT):
                continue
            if all(_free_at(earlier, post) <= now for earlier in self._posts[:number]):
                post.under_way = True
                return post
        return None

    def due(self) -> float:
        """Return the time at which a message may have to be sent though nothing else happens; infinite if there is
        none."""
        times = [
            max(_free_at(earlier, post) for earlier in self._posts[:number])
            for number, post in enumerate(self._posts)
            if number and not post.under_way
        ]
        return min(times, default=inf)

    def written(self, post: Post, now: float) -> None:
        """Note that a message is written."""
        if post.sent_at == inf:
            self.unwritten_bytes -= len(post.text)
        post.sent_at = now

    def unwritten(self) -> list[bytes]:
        """Return the messages that are not written, or were refused for now."""
        return [post.text for post in self._posts if post.sent_at == inf]

    def refused_for_now(self, post: Post) -> None:
        """Note that a message that was written has to be sent again: later ones do not overtake it."""
        if post.sent_at != inf:
            self.unwritten_bytes += len(post.text)
        post.sent_at = inf

    def done(self, post: Post) -> None:
        """Remove a message: the server has answered its `POST`, or never will."""
        self.written(post, 0.0)
        self._posts.remove(post)

    def put_back(self, post: Post) -> None:
        """Have a message sent again whose `POST` was cut off; if it was written, it is done."""
        if post.sent_at == inf:
            post.under_way = False
        else:
            self.done(post)

    def forget_request(self, post: Post) -> None:
        """Note that a request was refused: no response comes."""
        self._asked.pop(post.raw_id or b"", None)

    def waits_for(self, session: str) -> bool:
        """Return whether a request of the editor in this session has no response."""
        return any(concerned == session for _, concerned in self._asked.values())

    # From the server

    def arrived(self, message: bytes) -> Arrival:
        """Note a message of the server."""
        # Most are notifications, which need not be parsed.
        if b'"id"' not in message and b"\\" not in message:
            return Arrival()
        raw_id, method, failed = read_envelope(message) or NOTHING
        if raw_id is None:
            return Arrival()
        if method is not None:
            session = text_at(message, "params", "sessionId")
            if session is not None:
                self._asking[raw_id] = session
                if len(self._asking) > REQUESTS_KEPT:
                    del self._asking[next(iter(self._asking))]
            return Arrival()
        asked, session = self._asked.pop(raw_id, ("", None))
        if failed:
            return Arrival()
        if asked in (NEW, FORK):
            return Arrival(opened=text_at(message, "result", "sessionId"))
        if asked in (CLOSE, DELETE):
            return Arrival(closed=session)
        opened = session if asked in (LOAD, RESUME) else None
        return Arrival(opened=opened, loaded=opened if asked == LOAD else None)


def _free_at(earlier: Post, later: Post) -> float:
    """Return the time from which an earlier message, which is not answered, does not hold up a later one."""
    match later.kind, earlier.kind:
        case (Kind.RESPONSE, _) | (_, Kind.RESPONSE):
            return -inf
        case Kind.ORDERED, Kind.ORDERED:
            return inf
        case Kind.CANCEL, _ if later.method == CANCEL_REQUEST:
            concerned = earlier.kind is Kind.ORDERED and earlier.raw_id == later.raw_id
        case Kind.ORDERED, _ if earlier.method == CANCEL_REQUEST:
            concerned = False
        case _:
            concerned = earlier.session == later.session
    return earlier.sent_at + ANSWER_TIMEOUT if concerned else -inf


def session_header(session: str | None) -> dict[str, str]:
    """Return the header that names a session: percent-encoded if it is not visible ASCII."""
    if session is None:
        return {}
    visible = all("\x21" <= character <= "\x7e" for character in session)
    return {SESSION_ID: session if visible else quote(session, safe="", errors="replace")}


def is_response(reply: bytes, post: Post) -> bool:
    """Return whether the body of a server's reply is the response of JSON-RPC to this request."""
    raw_id, method, _ = read_envelope(reply) or NOTHING
    return method is None and raw_id is not None and raw_id == post.raw_id


def messages_in(events: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the events that are messages: JSON objects, as far as their first character tells."""
    for event in events:
        text = event.strip(b" \t\n")
        if text.startswith(b"{") and text.endswith(b"}"):
            yield text
