"""A connection that has not authenticated yet, and what it becomes."""

import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.resumption import ResumeClaim
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.parts import NO_PART, PartSum

ARRIVAL_COST: Final = 0.0002
"""Seconds to accept a connection and to close it: a task and its end, a few calls."""

FREE_STEPS: Final = 16
"""Steps of one connection that are charged at the end, and only if it fails to authenticate. A successful handshake
over TLS takes four; a client that sends byte after byte is charged before its end."""

ANSWER_TIMEOUT: Final = 1.0
"""Seconds after a step within which the next one is expected: three round trips around the world."""

WAITING_TIME: Final = 3.0
"""Seconds in all for which a handshake waits for its client before it counts as idle. One over a slow mobile link takes
two; a client that sends a byte now and then is never late with the next one."""


def make_id() -> str:
    """Return a new id of a connection, of 22 characters."""
    return secrets.token_urlsafe(16)


@dataclass(slots=True, eq=False, kw_only=True)
class PendingConnection:
    """An accepted connection until it is authenticated, refused or evicted."""

    name: str
    """Its name in the log and the audit; that of the client behind it while a proxy's request is handled."""
    peer: str
    """The address at the other end: an IP address, or `unix`."""
    listener: str
    """The URL of its listener."""
    connection_id: str = ""
    network: str
    """The network of the peer, which shares `handshakes_per_address`, whatever a proxy forwards."""
    limited: bool
    """True if `handshakes_per_address` applies."""
    address: str = field(init=False)
    """The address under which failures are counted: the peer's, or the one that a trusted proxy names."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    token: str | None = field(default=None, repr=False)
    """The token that was sent, valid or not."""
    access: Access | None = None
    """The authenticated principal; None before."""
    authenticated: bool = False
    answered: bool = False
    """True if an authenticated request that came over it was answered."""
    fetched: bool = False
    """True if a file that needs no token was sent over it."""
    evicted: bool = False
    """True if it was closed in favour of others."""
    number: int = 0
    """Position in the order of arrival."""
    steps: int = 0
    last_received_at: float = 0.0
    """Time of the last step; infinite while it waits for the next one."""
    waited: float = 0.0
    """Seconds between its steps, in which the client had to send something."""
    cost: float = ARRIVAL_COST
    """Seconds spent on it that have not been charged."""
    identified: tuple[str, Access] | None = field(default=None, repr=False)
    """The token of the last request over it, and its principal."""
    carrier: "PendingConnection | None" = None
    """The connection that has this request among others; None for a connection."""
    _own_name: str = field(init=False)

    def __post_init__(self) -> None:
        self._own_name = self.name
        self.address = self.peer

    def renew(self) -> None:
        """Begin to wait for the request behind one that was authenticated, under an id of its own."""
        self.connection_id = make_id()
        self._own_name = self.connection_id[:8] + self._own_name[8:]
        self.answered = True
        self.authenticated = self.fetched = False
        self.steps, self.last_received_at, self.waited, self.cost = 0, 0.0, 0.0, ARRIVAL_COST

    def for_request(self, scope: trio.CancelScope) -> "PendingConnection":
        """Return what a request of this connection is decided as while others are: it has an id of its own.

        It takes no room among the connections, and has to be left as one. The scope has its deadline.
        """
        request_id = make_id()
        return PendingConnection(
            name=request_id[:8] + self._own_name[8:],
            peer=self.peer,
            listener=self.listener,
            connection_id=request_id,
            network=self.network,
            limited=self.limited,
            scope=scope,
            identified=self.identified,
            carrier=self,
        )

    def begin_request(self, address: str) -> None:
        """Begin a request of the client at this address, and forget what the request before has shown."""
        self.address = address
        forwarded = address != self.peer
        self.name = self._own_name.replace("(", f"({address} by way of ", 1) if forwarded else self._own_name
        self.token = self.access = None

    def begin_step(self, now: float) -> None:
        """Note that the client has sent something, and waits for its turn."""
        if self.steps:
            self.waited += now - self.last_received_at
        self.steps += 1
        self.last_received_at = math.inf

    def extend(self, seconds: float) -> None:
        """Give a connection time to receive a file that needs no token, and to send the next request."""
        self.fetched = True
        self.scope.deadline = max(self.scope.deadline, trio.current_time() + seconds)
        if self.carrier is not None and not self.carrier.authenticated:
            self.carrier.extend(seconds)

    @property
    def idle_at(self) -> float:
        """The time from which it counts as idle, unless it sends something before."""
        if self.steps == 0 or self.steps > FREE_STEPS:
            return -math.inf
        return self.last_received_at + min(ANSWER_TIMEOUT, WAITING_TIME - self.waited)

    def eviction_key(self, now: float) -> tuple[int, int]:
        """Order connections for eviction, the first one to be evicted with the smallest key.

        Idle ones go first, the oldest before the others. Of the rest the newest goes, so that a handshake in progress
        completes, however many connections arrive before.
        """
        return (0, self.number) if now >= self.idle_at else (1, -self.number)


class Measured:
    """A context that measures blocks, one after the other, in seconds of the processor: a busy machine takes longer."""

    __slots__ = ("_began", "_spend")

    def __init__(self, spend: Callable[[float], None]) -> None:
        self._spend = spend

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._spend(time.thread_time() - self._began)


@dataclass(frozen=True, slots=True)
class Serving:
    """A connection that speaks another dialect than ACP."""

    serve: Callable[[MaintainedStream], Awaitable[None]]
    """Serves the connection until it ends, and closes the stream."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """An authenticated connection: its id or its link's, and what it may do."""

    connection_id: str
    """The link's id if a link is resumed."""
    received: int | None
    """Messages received over the link so far; None if the connection can't be resumed."""
    purpose: Grant | ResumeClaim | Serving
    limit: SizeLimit | None = None
    """Maximum size of the messages that come over the link; None if the connection can't be resumed."""
    part: PartSum = NO_PART
    """Part of the client's next message that was kept."""

    @property
    def link_id(self) -> str | None:
        """The id by which the link can be resumed."""
        return None if self.received is None else self.connection_id
