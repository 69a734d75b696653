"""Limits unauthenticated connections: their number, their rate, and the CPU time spent on them.

Unauthenticated connections must neither slow down clients nor keep valid ones out. They share a fixed budget:

- number: `max_handshakes` in all. Beyond it one is evicted, from the address that holds the most: the oldest idle one,
  if there is any. Of one address `handshakes_per_address` are under way, and others wait for their turn: see
  `NetworkTurns`. Refused connections that wait for a delayed response count apart, or an address that guesses tokens
  would lock out its neighbours behind the same NAT.
- CPU time: one step per turn of the event loop, that is one of a TLS handshake, a read or a request. The time spent on
  connections that fail is paid back by a longer pause, in which no unauthenticated connection makes a step. A fleet
  that reconnects after an outage causes no pause.
- log lines and audit entries: beyond `failed_attempts`, refusals are aggregated and reported once in
  `failed_attempts_window`, so that a flood fills neither log nor audit.

Of one network, at most `handshakes_per_address` handshakes are under way. A connection asks for its turn with the first
bytes that it sends, and gets one in the order of asking: when another has ended, or has become idle and is evicted. So
a network that opens connections again and again, and never finishes one, delays its other connections by seconds and
keeps none out. As many connections as there are turns may wait; beyond that one is evicted, the oldest without a byte,
else the newest.

Refusals without a valid credential are counted by address and by the token that was sent; refusals of a valid one, by
that token or certificate. A token that is sent again counts for its address once: it is not a further guess, but a
window of VS Code that dials for ever. Over the limit the response is 429 to all of them, and delayed. The count of a
token goes by the text that was sent, and not by a token's entry, so that it does not reveal which tokens exist.
"""

import errno
import hashlib
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio

from acp_gateway.config.load import Config, LimitsSection
from acp_gateway.config.options import GatewaySection
from acp_gateway.errors import (
    AccessError,
    Busy,
    Forbidden,
    LinkGone,
    ProtocolError,
    TooFarBehind,
    TooManyAttempts,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
)
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.gateway.rate_limits import EventAggregator, FailureCounter, network_of
from acp_gateway.printable import counted
from acp_gateway.server.http.plaintext import HEAD_SIZE, answer_plaintext
from acp_gateway.server.pending import FREE_STEPS, Measured, PendingConnection
from acp_gateway.transports.confirmed_bytes import ConfirmedBytes
from acp_gateway.transports.streams import MessageTooLarge

log = logging.getLogger(__name__)


REFUSAL_DELAY: Final = 1.0
"""Delay of the response, in seconds, over the limit. It slows down a sequential guesser by a factor of a thousand; a
person with the wrong token hardly notices."""

MAX_SINGLE_LINES: Final = 10
"""Multiple of `failed_attempts` up to which events, of all addresses together, are logged one by one within the window.
An attacker with very many addresses fills the log no sooner than with one."""

MAX_SINGLE_ENTRIES: Final = 60
"""Connections of one identity that are audited one by one within the window: many devices, each of them restarted. A
client that reconnects in a loop must not push older entries out of the audit."""

_COUNTED: Final = (Unauthorized, Forbidden, UnknownAgent, UnknownSession)
"""Refusals that a guess may cause. A link that is gone, or a full gateway, is not the client's fault."""

_ALL_ADDRESSES: Final = "all addresses"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error of a refused connection, and the delay of the response."""

    error: AccessError
    delay: float = 0.0
    """Seconds from now."""


@dataclass(frozen=True, slots=True)
class _Event:
    """A kind of event that is aggregated."""

    address: str
    listener: str
    reason: str
    level: int = logging.WARNING
    audited: bool = True


class Refusals:
    """The refusals of all listeners of a gateway. Needs `report` to run."""

    def __init__(self, settings: GatewaySection, limits: LimitsSection, audit: Audit) -> None:
        self._audit = audit
        self.counts = Counter(dict.fromkeys((error.reason for error in (*_COUNTED, Busy, ProtocolError)), 0))
        """Refused connections and requests since the start, by reason."""
        self._delay = min(REFUSAL_DELAY, settings.handshake_timeout / 2)
        self._window = limits.failed_attempts_window
        # Refusals without a valid credential, by network, and refusals by token or credential.
        self._by_address = FailureCounter(limits.failed_attempts, self._window)
        self._by_token = FailureCounter(limits.failed_attempts, self._window)
        # Other events of an address or a token.
        self._events = FailureCounter(limits.failed_attempts, self._window)
        # Events that were logged.
        self._logged = FailureCounter(MAX_SINGLE_LINES * limits.failed_attempts, self._window, max_keys=1)
        # Authenticated connections by identity, and the aggregated rest by identity and credential.
        self._entries = FailureCounter(MAX_SINGLE_ENTRIES, self._window)
        self._aggregated_entries = EventAggregator(("various", "various"))
        self._aggregated = EventAggregator(_Event("many addresses", "any listener", "various"))

    def refuse(
        self, connection: PendingConnection, error: AccessError, *, presented: str | None, credential: str | None
    ) -> Refusal:
        """Count, log and audit a refusal; return the error for the client.

        `presented` is the token that was sent, `credential` the name of a valid one.
        """
        self.counts[error.reason] += 1
        level = logging.INFO if isinstance(error, TooFarBehind | LinkGone) else logging.WARNING
        event = _Event(connection.address, connection.listener, error.reason, level)
        text = f"refused: {error}"
        if not isinstance(error, _COUNTED):
            self._log(event, connection, text, aggregated=self._is_frequent(event, credential), credential=credential)
            return Refusal(error)
        now = trio.current_time()
        if credential is not None:
            over = self._by_token.add(credential, now)
        else:
            shown = hashlib.sha256(presented.encode(errors="replace")).hexdigest() if presented else None
            is_new = shown is None or not self._by_token.has(shown, now)
            over = shown is not None and self._by_token.add(shown, now)
            if is_new:
                over |= self._by_address.add(network_of(connection.address), now)
        self._log(event, connection, text, aggregated=over, credential=credential)
        if not over:
            return Refusal(error)
        return Refusal(TooManyAttempts("refused too often: check the token and what it is for, and wait"), self._delay)

    def refuse_malformed(self, connection: PendingConnection, text: str) -> float:
        """Log and audit data that can't be understood. Return the delay of the response: 0 up to the limit."""
        event = _Event(connection.address, connection.listener, ProtocolError.reason)
        self.counts[event.reason] += 1
        over = self._is_frequent(event)
        self._log(event, connection, text, aggregated=over)
        return self._delay if over else 0.0

    def log_end(self, connection: PendingConnection, text: str) -> None:
        """Log a connection that ended without authentication; it is not audited."""
        event = _Event(connection.address, connection.listener, "came for nothing", logging.INFO, audited=False)
        self._log(event, connection, text, aggregated=self._is_frequent(event))

    def record_authenticated(self, connection: PendingConnection, **details: str) -> None:
        """Audit an authenticated connection: one by one, or aggregated if an identity connects very often."""
        identity = details.get("identity", "")
        if self._entries.add(identity, trio.current_time()):
            self._aggregated_entries.add((identity, details.get("credential", "")))
        else:
            self._record(
                "authenticated", connection.address, connection.listener, connection=connection.name, **details
            )

    async def report(self) -> None:
        """Report aggregated events once in a window, until cancelled."""
        try:
            while True:
                await trio.sleep(self._window)
                self._report()
        finally:
            self._report()

    def _report(self) -> None:
        for (identity, credential), count in self._aggregated_entries.take():
            self._audit.record("authenticated", identity=identity, credential=credential or None, count=count)
        for event, count in self._aggregated.take():
            where = f"from {event.address} at {event.listener}: {event.reason}"
            log.log(event.level, "again %s %s", counted(count, "time"), where)
            if event.audited:
                self._record("refused", event.address, event.listener, reason=event.reason, count=count)

    def _is_frequent(self, event: _Event, credential: str | None = None) -> bool:
        who = credential or network_of(event.address)
        return self._events.add(f"{event.level} {who}", trio.current_time())

    def _log(
        self,
        event: _Event,
        connection: PendingConnection,
        text: str,
        *,
        aggregated: bool,
        credential: str | None = None,
    ) -> None:
        """Log and audit an event, at once or aggregated."""
        if aggregated or self._logged.add(_ALL_ADDRESSES, trio.current_time()):
            self._aggregated.add(event)
            return
        log.log(event.level, "%s: %s", connection.name, text)
        if event.audited:
            about = {"connection": connection.name, "reason": event.reason, "credential": credential}
            self._record("refused", event.address, event.listener, **about)

    def _record(self, event: str, address: str, listener: str, **details: Any) -> None:
        self._audit.record(event, address=address, listener=listener, **details)


class NetworkTurns:
    """The connections of one network, and which of them have their turn."""

    def __init__(self) -> None:
        self.connections: dict[PendingConnection, None] = {}
        """All of them, in the order of arrival."""
        self._active: set[PendingConnection] = set()
        # The first in line holds the lock.
        self._line = trio.StrictFIFOLock()
        self._ended = trio.lowlevel.ParkingLot()

    def add(self, connection: PendingConnection, limit: int) -> PendingConnection | None:
        """Add a connection; return the one that is to be evicted then, if more than `limit` wait for a turn."""
        self.connections[connection] = None
        if not connection.limited or len(self.connections) - len(self._active) <= limit:
            return None
        waiting = (each for each in self.connections if each not in self._active)
        return min(waiting, key=lambda each: (1, -each.number) if each.steps else (0, each.number))

    def remove(self, connection: PendingConnection) -> bool:
        """Remove a connection; return False if it is not here any more."""
        if connection not in self.connections:
            return False
        del self.connections[connection]
        self._active.discard(connection)
        self._ended.unpark_all()
        return True

    def note_step(self) -> None:
        """Note that a connection has made a step: the time when one is idle may be earlier."""
        self._ended.unpark_all()

    def first_idle(self, now: float) -> PendingConnection | None:
        """Return the oldest idle connection that has its turn; None if none is idle."""
        idle = (connection for connection in self._active if now >= connection.idle_at)
        return min(idle, key=lambda connection: connection.number, default=None)

    async def take(
        self, connection: PendingConnection, limit: Callable[[], int], evict: Callable[[PendingConnection], None]
    ) -> None:
        """Wait for the turn of a connection; one that is not here any more needs none.

        At most `limit` have one at a time; `evict` removes an idle one.
        """
        if connection not in self.connections or connection in self._active:
            return
        async with self._line:
            while connection in self.connections and len(self._active) >= limit():
                idle = self.first_idle(trio.current_time())
                if idle is not None:
                    evict(idle)
                    continue
                with trio.move_on_at(min(active.idle_at for active in self._active)):
                    await self._ended.park()
            if connection in self.connections:
                self._active.add(connection)


SHARE: Final = 0.15
"""Share of the event loop's time that failing handshakes may take: some 250 refusals a second, or 100 over TLS. A
client's message waits for one step, a third of a millisecond, or more often for none."""

BURST: Final = 0.02
"""Burst, in seconds: a dozen refusals over TLS before the first pause."""

MAX_DEBT: Final = 0.075
"""Maximum debt in seconds of small charges, if many connections end together: no handshake waits for longer than half a
second for them. A single step is charged in full, however long it took."""

FREE_COST: Final = 0.02
"""Seconds of one connection that are charged at the end, and only if it fails to authenticate. A successful handshake
over TLS takes three milliseconds, on a small machine fifteen."""

MIN_PAUSE: Final = 0.001
"""Seconds: the resolution of the system's timers."""

STEP_COST: Final = 0.0002
"""Seconds of a step besides the measured part: a task's wake-up, a read, the library's part of a request, the
response."""

LINGER_SIZE: Final = 65536
"""Bytes that are discarded after a refusal before the connection is reset. A program that sent a request with its body,
or a few messages behind its hello, still receives the response."""

LINGER_TIME: Final = 1.0
"""Seconds after a refusal within which the client must end its side: three round trips around the world."""

DISCARD_SIZE: Final = 1024
"""Minimum bytes that a read counts for after a refusal: a client that sends single bytes is read 64 times."""

DISCARD_COST: Final = 0.00003
"""Seconds of such a read."""

FULL_TIMEOUT: Final = 0.005
"""Seconds to wait for one of `max_handshakes` connections to end before the next one is accepted. A fleet reconnects
within half that, so that no handshake is evicted that is about to succeed."""

FULL_PAUSE: Final = 0.1
"""Seconds before `accept` is tried again after the system was out of descriptors or memory."""

LOG_INTERVAL: Final = 60.0
"""Minimum seconds between two log lines about it."""

_SPACE: Final = b" \t\r\n"
"""White space of JSON."""

_FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

BRIEF_CONNECTION: Final = 1.0
"""Seconds. A client with longer connections connects at most once a second."""

SERVICE_COST: Final = 0.001
"""Seconds to start and stop serving an authenticated connection: a hub's tasks, the audit, a close frame."""


class CpuBudget:
    """A token bucket of CPU time: one step per turn of the event loop, and pauses that bound the share of the time."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._lock = trio.StrictFIFOLock()
        # Seconds that may be charged without a pause; a debt below 0.
        self._credit = BURST
        self._credited_at = 0.0

    def charge(self, seconds: float) -> None:
        """Charge time that was spent on the event loop."""
        now = trio.current_time()
        credit = min(BURST, self._credit + (now - self._credited_at) * self._share)
        self._credit = max(credit - seconds, min(credit, -MAX_DEBT, -seconds))
        self._credited_at = now

    async def turn(self) -> None:
        """Wait, in order of arrival, until the next step may be made."""
        async with self._lock:
            await self.pause()

    async def pause(self) -> None:
        """Wait until the debt is paid back."""
        self.charge(0.0)
        while self._credit < 0:
            await trio.sleep(max(-self._credit / self._share, MIN_PAUSE))
            self.charge(0.0)


class HandshakeLimiter:
    """The limits that all listeners of a gateway share. Needs `run` to run."""

    def __init__(self, config: Config, audit: Audit) -> None:
        self._limits = config.limits
        self.refusals = Refusals(config.gateway, config.limits, audit)
        self._budget = CpuBudget(SHARE)
        # Unauthenticated connections by network, and their number.
        self._by_network: dict[str, NetworkTurns] = {}
        # True while a task reports refusals.
        self._is_run = False
        self._pending = 0
        # Refused connections that are still open.
        self._refused: dict[PendingConnection, None] = {}
        # Number of connections so far.
        self._arrivals = 0
        # Tasks that wait for a connection to leave the limits.
        self._freed = trio.lowlevel.ParkingLot()
        # Time of the last log line about a full system.
        self._last_logged_at = -LOG_INTERVAL

    def set_limits(self, limits: LimitsSection) -> None:
        """Use other limits from now on, except for the numbers of failed attempts."""
        self._limits = limits

    async def run(self) -> None:
        """Report aggregated events periodically, until cancelled. Only the first concurrent call does."""
        if self._is_run:
            return
        self._is_run = True
        try:
            await self.refusals.report()
        finally:
            self._is_run = False

    # Number

    @contextmanager
    def admit(self, connection: PendingConnection) -> Iterator[None]:
        """Count a connection while the block runs, or until `authenticated`.

        An eviction cancels the block and sets `evicted`.
        """
        self.enter(connection)
        try:
            with connection.scope:
                yield
        finally:
            self.leave(connection)

    def enter(self, connection: PendingConnection) -> None:
        """Count a connection until `leave`, or until `authenticated`. An eviction cancels its scope."""
        self._arrivals += 1
        connection.number = self._arrivals
        network = self._by_network.get(connection.network)
        if network is None:
            network = self._by_network[connection.network] = NetworkTurns()
        self._pending += 1
        surplus = network.add(connection, self._limits.handshakes_per_address)
        if surplus is not None:
            self._evict(surplus)
        elif self._pending + len(self._refused) > self._limits.max_handshakes:
            self.evict_one()

    def leave(self, connection: PendingConnection) -> None:
        """Count a connection no longer; charge it unless it was authenticated, when that was done."""
        if not connection.authenticated:
            self._remove(connection)
            self._charge(connection)

    def release(self, cost: float, since: float) -> None:
        """Release an authenticated connection: charge its handshake's cost if it ended right after `since`.

        A connection that ends at once was of no use, even with a valid token.
        """
        if trio.current_time() - since < BRIEF_CONNECTION:
            self._budget.charge(cost + SERVICE_COST)

    def evict_one(self) -> None:
        """Evict a connection, if there is any: a refused one, else one of a network that has most."""
        if self._refused:
            self._evict(next(iter(self._refused)))
        elif self._by_network:
            networks = [network.connections for network in self._by_network.values()]
            most, now = max(map(len, networks)), trio.current_time()
            candidates = (connection for network in networks if len(network) == most for connection in network)
            self._evict(min(candidates, key=lambda connection: connection.eviction_key(now)))

    def _evict(self, connection: PendingConnection) -> None:
        connection.evicted = True
        connection.scope.cancel()
        # At once, and not when its task ends: more connections may arrive before that.
        self._remove(connection)

    def _remove(self, connection: PendingConnection) -> None:
        self._refused.pop(connection, None)
        network = self._by_network.get(connection.network)
        if network is not None and network.remove(connection):
            self._pending -= 1
            self._freed.unpark_all()
            if not network.connections:
                del self._by_network[connection.network]

    # Time

    async def wait_to_accept(self) -> None:
        """Wait until the next connection may be accepted."""
        await self._budget.pause()
        if self._pending >= self._limits.max_handshakes:
            with trio.move_on_after(FULL_TIMEOUT):
                await self._freed.park()

    async def step(self, connection: PendingConnection, *, has_waited: bool = False) -> None:
        """Wait until the next step of a handshake may be made: at once for the first ones of a connection that has
        shown a valid token before, if it `has_waited` for what it was sent.
        """
        connection.begin_step(trio.current_time())
        if connection.answered and connection.steps <= FREE_STEPS:
            connection.cost += STEP_COST
            connection.last_received_at = trio.current_time()
            if not has_waited:
                await trio.lowlevel.checkpoint()
            return
        if connection.steps > FREE_STEPS:
            self._budget.charge(STEP_COST)
        else:
            connection.cost += STEP_COST
        network = self._by_network.get(connection.network)
        if network is not None and connection.limited:
            await network.take(connection, lambda: self._limits.handshakes_per_address, self._evict)
        await self._budget.turn()
        connection.last_received_at = trio.current_time()
        if network is not None:
            network.note_step()

    def measured(self, connection: PendingConnection) -> Measured:
        """Measure the processor's time of blocks that do not wait."""
        return Measured(partial(self._spend, connection))

    def unmeasured(self, connection: PendingConnection) -> Measured:
        """Leave out a part of a measured block, which is done once and for all connections."""

        def give_back(seconds: float) -> None:
            connection.cost -= seconds

        return Measured(give_back)

    def _spend(self, connection: PendingConnection, seconds: float) -> None:
        connection.cost += seconds
        if connection.cost > FREE_COST or connection in self._refused:
            self._charge(connection)

    def _charge(self, connection: PendingConnection) -> None:
        """Charge the cost of a connection to the budget."""
        self._budget.charge(connection.cost)
        connection.cost = 0.0

    # The end

    def authenticated(self, connection: PendingConnection, details: Mapping[str, str] | None = None) -> None:
        """Stop counting a connection that was authenticated; the details are for the audit, None for no entry."""
        connection.authenticated = True
        self._remove(connection)
        if details is not None:
            self.refusals.record_authenticated(connection, **details)

    def refuse(self, connection: PendingConnection, error: AccessError) -> Refusal:
        """Refuse a connection as `Refusals.refuse`. While it waits for its response, it is the first to be evicted.

        One request among others has no room that could be given to others: that is its connection's.
        """
        self._begin_refusal(connection)
        credential = None if connection.access is None else connection.access.credential
        return self.refusals.refuse(connection, error, presented=connection.token, credential=credential)

    def refuse_malformed(self, connection: PendingConnection, text: str) -> float:
        """Refuse a connection that can't be understood, as `Refusals.refuse_malformed`."""
        self._begin_refusal(connection)
        return self.refusals.refuse_malformed(connection, text)

    def discard(self) -> None:
        """Charge a read after a refusal."""
        self._budget.charge(DISCARD_COST)

    def _begin_refusal(self, connection: PendingConnection) -> None:
        if connection.carrier is None:
            self._remove(connection)
            self._refused[connection] = None
        # At once, and not at its end: clients choose that moment, and many could choose the same.
        self._charge(connection)

    def log_full_system(self, error: OSError) -> None:
        """Log that `accept` failed, at most once in `LOG_INTERVAL`."""
        now = trio.current_time()
        if now - self._last_logged_at >= LOG_INTERVAL:
            self._last_logged_at = now
            why = os.strerror(error.errno or 0).lower()
            log.error("accept failed: %s; open connections are not affected", why)


class ThrottledListener(trio.abc.Listener[trio.SocketStream]):
    """A listener that accepts no faster than the limiter allows, and waits while the system is out of descriptors."""

    def __init__(self, listener: trio.SocketListener, limiter: HandshakeLimiter) -> None:
        self._listener = listener
        self._limiter = limiter

    async def accept(self) -> trio.SocketStream:
        """Wait for the next connection."""
        while True:
            await self._limiter.wait_to_accept()
            try:
                return await self._listener.accept()
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._limiter.log_full_system(error)
            # An old handshake gives its descriptor to a new connection.
            self._limiter.evict_one()
            await trio.sleep(FULL_PAUSE)

    async def aclose(self) -> None:
        """Close the socket."""
        await self._listener.aclose()


async def shake_hands(
    sock: socket.socket,
    context: ssl.SSLContext,
    connection: PendingConnection,
    limiter: HandshakeLimiter,
    *,
    speaks_http: bool = False,
) -> ssl.SSLSocket:
    """Do the TLS handshake of a connection, a step at a time. With `speaks_http`, a request in plain HTTP is answered.

    Raises `ssl.SSLError` and `OSError`. Closes the socket on failure, and when cancelled.
    """
    try:
        # A silent connection costs no TLS state.
        await trio.lowlevel.wait_readable(sock)
        if speaks_http and (answer := answer_plaintext(sock.recv(HEAD_SIZE, socket.MSG_PEEK))):
            sock.recv(HEAD_SIZE)  # Closing a socket with unread bytes would reset it, and the answer be lost.
            sock.send(answer)
            raise OSError("a request in plain HTTP")
        tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            await limiter.step(connection)
            try:
                with limiter.measured(connection):
                    tls.do_handshake()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(tls)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(tls)
            else:
                return tls
    except BaseException:
        tls.close()
        raise


class ThrottledStream(ConfirmedBytes):
    """The byte stream of a pending connection, read in turns until `stop_throttling`.

    A cancelled read loses its data; the connection is closed then.
    """

    __slots__ = ("_connection", "_discarded", "_limiter", "_unread")

    def __init__(self, sock: socket.socket, connection: PendingConnection, limiter: HandshakeLimiter) -> None:
        super().__init__(sock)
        self._connection: PendingConnection | None = connection
        self._limiter = limiter
        # Data that came with the first line, behind it.
        self._unread = b""
        # Bytes that were read and discarded since the end of this side.
        self._discarded = 0

    def receive_some(self) -> Coroutine[Any, Any, bytes]:
        # No coroutine of its own: an authenticated connection pays nothing for the throttling before.
        if self._unread:
            return self._receive_unread()
        reading = super().receive_some()
        return reading if self._connection is None else self._receive_in_turn(reading)

    async def _receive_unread(self) -> bytes:
        await trio.lowlevel.checkpoint()
        data, self._unread = self._unread, b""
        return data

    async def _receive_in_turn(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        data = await reading
        if self._connection is not None:
            await self._limiter.step(self._connection, has_waited=self.has_waited(data))
        return data

    async def receive_line(self, limit: int) -> bytes:
        """Wait for the first line that is not blank; empty if the peer ends before it.

        Data behind it is read next. Raises `MessageTooLarge` if it does not end within `limit` bytes, blank lines
        before it included, and as `receive_some`.
        """
        seen = b""
        while True:
            start = len(seen) - len(seen.lstrip(_SPACE))
            end = seen.find(b"\n", start)
            if (len(seen) if end < 0 else end) > limit:
                raise MessageTooLarge(f"the first line of a connection, a hello, must not be larger than {limit} bytes")
            if end >= 0:
                self._unread = seen[end + 1 :]
                return seen[start:end]
            data = await self.receive_some()
            if not data:
                return seen[start:]
            seen += data

    async def finish(self) -> None:
        """End this side as `ByteStream.finish`; wait for a pending connection up to `LINGER_TIME` and `LINGER_SIZE`."""
        if self._connection is None:
            await super().finish()
        else:
            with trio.move_on_after(LINGER_TIME):
                await super().finish()

    def _may_discard(self, size: int) -> bool:
        if self._connection is None:
            return True
        self._limiter.discard()
        self._discarded += max(size, DISCARD_SIZE)
        return self._discarded < LINGER_SIZE

    def throttle(self, connection: PendingConnection) -> None:
        """Read in turns again: the client is to authenticate once more."""
        self._connection = connection
        self._discarded = 0

    def stop_throttling(self) -> None:
        """Read without limits from now on."""
        self._connection = None
