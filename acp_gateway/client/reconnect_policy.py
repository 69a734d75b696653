"""The reconnect policy: when to dial again, which failures are final, and the timeouts.

Before the first success the user waits at an editor that starts. So attempts end after `connect_timeout`, and most
errors are final at once. After it, only a refusal by the gateway itself is final. A hotel network answers with its own
certificates, redirects and errors until its portal has been passed, and a configuration file may be incomplete while it
is edited. So any other error is retried, with exponential backoff and jitter.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, NamedTuple

from acp_gateway.client.dialing import Destination, Dialed, Resume, dial_link
from acp_gateway.errors import (
    AgentError,
    Forbidden,
    GatewayError,
    ProtocolError,
    Unauthorized,
    UnknownAgent,
    Unreachable,
)
from acp_gateway.transports.websocket.stream import Timing

BACKOFF_MIN: Final = 0.2
"""Seconds of the first backoff at most, and between the starts of two attempts at least."""

BACKOFF_MAX: Final = 15.0
"""Seconds of the longest backoff: as long as a user waits at a screen before trying something else."""

BACKOFF_MAX_AT_START: Final = 2.0
"""Seconds of the longest backoff before the first success: the user waits for the editor to start."""

ATTEMPT_TIMEOUT: Final = 15.0
"""Seconds for one attempt. TLS over a bad mobile network takes five; a route that drops packets never answers."""

REFUSALS: Final = (Unauthorized, Forbidden, UnknownAgent)
"""Errors that only the gateway itself raises, and would raise again."""

TOO_BIG: Final = 1009
AGENT_GONE: Final = 1011
_ERRORS: Final[dict[int | None, type[GatewayError]]] = {
    1008: Forbidden,
    TOO_BIG: ProtocolError,
    AGENT_GONE: AgentError,
}
"""The final error for each close code of a gateway."""

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


class LinkEvent(NamedTuple):
    """A change of the link that a user may be told of."""

    kind: Literal["connected", "resumed", "lost"]
    """`connected` to a new link, also in place of one that could not be resumed; `resumed`; `lost` for now."""
    address: str
    """Address of the gateway."""
    why: str = ""
    """Cause of a loss, one line."""
    seconds: float = 0.0
    """Seconds since the first attempt, or since the loss."""


def ignore(_: LinkEvent) -> None:
    """Do nothing: for links whose changes are shown to no user."""


Dial = Callable[[Destination, Timing, Resume], Awaitable[Dialed]]


class ReconnectSettings(NamedTuple):
    """Timeouts and dependencies of an uplink."""

    connect_timeout: float
    """Seconds to try until the first success."""
    known_timeout: float = 0.0
    """The same for a gateway that was reached before, if longer."""
    knows: Callable[[str], bool] = lambda _: False
    """Returns whether the gateway at an address was reached before."""
    reached: Callable[[str], None] = lambda _: None
    """Called with the address of a gateway after each connection."""
    keepalive: float = 30.0
    """Seconds of silence after which a connection counts as lost. Both ends send something every `HEARTBEAT`."""
    notice: Callable[[LinkEvent], None] = ignore
    """Called at each change of the link."""
    timing: Timing = Timing()
    dial: Dial = dial_link
    jitter: Callable[[], float] = random.random
    """Returns a number from 0 to 1 that varies the backoff, so that many clients don't reconnect at the same moment."""
    wall_clock: Callable[[], float] = time.time
    """Returns seconds of a clock that advances while the machine sleeps."""
    log: Log = logging.getLogger("acp_gateway.client.uplink")
    """The log of the uplink; one that names the link, where a program has several."""


class LinkLoss(NamedTuple):
    """The end of a connection."""

    why: str
    code: int | None = None
    """The gateway's close code."""
    closed: bool = False
    """True if the gateway closed the connection properly."""
    too_large: bool = False
    """True if a received message exceeded the size limit."""
    unsent: Sequence[bytes] = ()
    """Messages that were handed to it and certainly not handled."""
    cause: GatewayError | None = None
    """The error that has ended it, if its kind is known."""


def backoff(failures: int, longest: float, jitter: float) -> float:
    """Return the seconds until the next attempt: exponential in the number of failures in a row, with jitter.

    `jitter`, from 0 to 1, determines the second half of the interval.
    """
    interval = min(BACKOFF_MIN * 2.0 ** min(failures, 16), longest)
    return interval / 2 + interval / 2 * jitter


def final_error(loss: LinkLoss, *, resumable: bool, waiting: bool) -> GatewayError | None:
    """Return the error that ends the uplink after a loss before the first success; None if the link is to be resumed.

    A gateway that closes the connection while no request waits for an answer does so on purpose.
    """
    if resumable and loss.code not in _ERRORS and (waiting or not loss.closed):
        return None
    return loss.cause or _ERRORS.get(loss.code, Unreachable)(loss.why)
