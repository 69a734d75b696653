"""A connection that has not authenticated yet, and what it becomes."""

from dataclasses import dataclass, field
from typing import Final

import trio

from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.resumption import ResumeClaim

ARRIVAL_COST: Final = 0.0002
"""Seconds to accept a connection and to close it: a task and its end, a few calls."""

FREE_STEPS: Final = 16
"""Steps of one connection that are charged at the end, and only if it fails to authenticate. A successful handshake
over TLS takes four; a client that sends byte after byte is charged before its end."""

ANSWER_TIMEOUT: Final = 1.0
"""Seconds after a step within which the next one is expected: three round trips around the world."""


@dataclass(slots=True, eq=False, kw_only=True)
class PendingConnection:
    """An accepted connection until it is authenticated, refused or evicted."""

    name: str
    """Its name in the log and the audit."""
    address: str
    """The address under which its failures are counted: an IP address, or `unix`."""
    listener: str
    """The URL of its listener."""
    connection_id: str = ""
    network: str
    """The network that shares `handshakes_per_address`."""
    limited: bool
    """True if `handshakes_per_address` applies."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    token: str | None = field(default=None, repr=False)
    """The token that was sent, valid or not."""
    access: Access | None = None
    """The authenticated principal; None before."""
    authenticated: bool = False
    answered: bool = False
    """True if an authenticated request that came over it was answered."""
    evicted: bool = False
    """True if it was closed in favour of others."""
    number: int = 0
    """Position in the order of arrival."""
    steps: int = 0
    last_received_at: float = 0.0
    """Time of the last step; infinite while it waits for the next one."""
    cost: float = ARRIVAL_COST
    """Seconds spent on it that have not been charged."""

    def eviction_key(self, now: float) -> tuple[int, int]:
        """Order connections for eviction, the first one to be evicted with the smallest key.

        Idle ones go first, the oldest before the others. Of the rest the newest goes, so that a handshake in progress
        completes, however many connections arrive meanwhile.
        """
        idle = self.steps == 0 or self.steps > FREE_STEPS or now - self.last_received_at > ANSWER_TIMEOUT
        return (0, self.number) if idle else (1, -self.number)


@dataclass(frozen=True, slots=True)
class Accepted:
    """An authenticated connection: its id or its link's, and what it may do."""

    connection_id: str
    """The link's id if a link is resumed."""
    received: int | None
    """Messages received over the link so far; None if the connection can't be resumed."""
    purpose: Grant | ResumeClaim

    @property
    def link_id(self) -> str | None:
        """The id by which the link can be resumed."""
        return None if self.received is None else self.connection_id
