"""Those at the doors who have not shown yet who they are: how many, how often, and how much of the gateway's time.

Whoever is in must not notice who is at the door, and whoever belongs inside must get in, however many others stand
there. So strangers get a bounded share of everything:

- room: `max_handshakes` in all, `handshakes_per_address` from one address. One more, and of the address (of the one
  that has most) somebody has to go, at best one for whom nothing is being done, the oldest first. Those who were
  refused, and wait for an answer that comes late, are not in the way of others: without them an address that guesses
  has its whole room waiting.
- time: what the gateway does for them it does one step at a turn of the event loop, a TLS handshake's, a read's or a
  request's. What was done for those who came for nothing has to be paid for: with a pause, longer than it took, in
  which nothing is done for anybody at the doors. A fleet that comes back after an outage makes no pause.
- lines of the log and the audit, see `refusals`.
"""

import errno
import logging
import math
import os
import socket
import ssl
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from acp_gateway.config.load import Config
from acp_gateway.errors import AccessError
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.server.refusals import Peer, Refusal, Refusals
from acp_gateway.transports.sockets import SocketBytes
from acp_gateway.transports.streams import MessageTooLarge

log = logging.getLogger(__name__)

SHARE: Final = 0.15
"""Of the time of the event loop, what may be done for those who come for nothing: some 250 refusals a second, or 100
over TLS. A client's message that comes meanwhile waits for one step, a third of a millisecond, and mostly for none."""

CREDIT: Final = 0.02
"""Seconds that may be taken at once after a time without such: a dozen refusals over TLS before the first pause."""

LARGEST_DEBT: Final = 0.075
"""Seconds that small charges add up to at most, when many leave together: nobody waits for longer than half a second
for them. What a single step took is owed in full, however long that was."""

FREE_COST: Final = 0.02
"""Seconds of one guest that are paid for at the end, and only if it came for nothing. Who comes in over TLS needs three
milliseconds, on a small machine fifteen."""

SHORTEST_PAUSE: Final = 0.001
"""Seconds: what the system's timers can do."""

ARRIVAL_COST: Final = 0.0002
"""Seconds that it takes to accept a connection, and to close it: a task and its end, a few calls."""

STEP_COST: Final = 0.0002
"""Seconds that a step takes besides what is measured of it: a task's wake-up, a read, the library's part of a request,
the answer."""

FREE_STEPS: Final = 16
"""Steps of one guest that are paid for at the end, and only if it came for nothing. Who comes in over TLS needs four;
one who sends byte after byte is not waited for until the end."""

LINGER_SIZE: Final = 65536
"""Bytes of a guest that are discarded behind a refusal, before the connection is reset. A program that sent a request
with its body, or a few messages behind its hello, still gets the answer."""

LINGER_TIME: Final = 1.0
"""Seconds after a refusal within which a guest has to end its side: three times the way round the world and back."""

DISCARD_SIZE: Final = 1024
"""Bytes that a read counts for at least, behind a refusal: a guest that sends single bytes is read 64 times."""

DISCARD_COST: Final = 0.00003
"""Seconds that such a read takes."""

ANSWER_TIMEOUT: Final = 1.0
"""Seconds after a step within which the next is to be expected: three times the way round the world and back."""

FULL_TIMEOUT: Final = 0.005
"""Seconds for which, with `max_handshakes` at the doors, the next is not accepted unless one of them has gone. A fleet
that comes back does so within half that: nobody has to go who is about to come in."""

FULL_PAUSE: Final = 0.1
"""Seconds until the system is asked again that had no room for another connection."""

COMPLAINT_INTERVAL: Final = 60.0
"""Seconds between two lines of the log that say so."""

_SPACE: Final = b" \t\r\n"
"""What JSON takes for white space."""

_FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(slots=True, eq=False, kw_only=True)
class PendingConnection(Peer):
    """Somebody who has not come in yet."""

    connection_id: str = ""
    """What their connection will be known by."""
    room: str
    """With whom they share their room."""
    limited: bool
    """Whether there is only so much of it for them."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    evicted: bool = False
    """Whether others needed the room."""
    came_in: bool = False
    number: int = 0
    """How many have come before."""
    steps: int = 0
    last_received_at: float = 0.0
    """When the last step was made for them; infinite while they wait for the next."""
    cost: float = ARRIVAL_COST
    """Seconds that have been taken for them, and are not paid for."""

    def claim(self, now: float) -> tuple[int, int]:
        """How good their claim is to the room that they take, among others'; the least goes first.

        That is of those for whom nothing is being done, the oldest first. Of the rest the newest goes, so that what was
        begun comes to its end, however many come meanwhile.
        """
        idle = self.steps == 0 or self.steps > FREE_STEPS or now - self.last_received_at > ANSWER_TIMEOUT
        return (0, self.number) if idle else (1, -self.number)


BRIEF_VISIT: Final = 1.0
"""Seconds. Whoever stays for longer comes in once a second at the most."""

VISIT_COST: Final = 0.001
"""Seconds that it takes to let somebody in and see them off: a hub's tasks, the audit, a goodbye."""


class CpuBudget:
    """Lets one pass at a turn of the event loop, and makes pauses, so that what was charged is a share of the time."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._line = trio.StrictFIFOLock()
        # Seconds that may be charged without a pause; below 0, what has to be waited for.
        self._credit = CREDIT
        self._credited_at = 0.0

    def charge(self, seconds: float) -> None:
        """This much of the event loop's time was taken."""
        now = trio.current_time()
        credit = min(CREDIT, self._credit + (now - self._credited_at) * self._share)
        self._credit = max(credit - seconds, min(credit, -LARGEST_DEBT, -seconds))
        self._credited_at = now

    async def turn(self) -> None:
        """Wait until the next may pass, behind those who wait already."""
        async with self._line:
            await self.pause()

    async def pause(self) -> None:
        """Wait until nothing is owed."""
        self.charge(0.0)
        while self._credit < 0:
            await trio.sleep(max(-self._credit / self._share, SHORTEST_PAUSE))
            self.charge(0.0)


class HandshakeLimiter:
    """What all doors of a gateway have in common. `run` has to run for it."""

    def __init__(self, config: Config, audit: Audit) -> None:
        self._limits = config.limits
        self.refusals = Refusals(config.gateway, config.limits, audit)
        self._turnstile = CpuBudget(SHARE)
        # Guests by their rooms, and how many these are.
        self._rooms: dict[str, dict[PendingConnection, None]] = {}
        # Whether somebody tells of those who were refused.
        self._is_run = False
        self._guests = 0
        # Those who were refused and are not gone yet.
        self._refused: dict[PendingConnection, None] = {}
        # How many have come so far.
        self._arrivals = 0
        # Who waits for one of them to leave.
        self._left = trio.lowlevel.ParkingLot()
        # When it was last said that the system is full.
        self._complained_at = -COMPLAINT_INTERVAL

    async def run(self) -> None:
        """Tell from time to time what is told together, until cancelled; only the first of those who run this does."""
        if self._is_run:
            return
        self._is_run = True
        try:
            await self.refusals.report()
        finally:
            self._is_run = False

    # Room

    @contextmanager
    def hosting(self, guest: PendingConnection) -> Iterator[None]:
        """Have room for somebody as long as they are in this block, or until `admit`.

        Where others need the room more, the block is cancelled, and the guest knows that it was `evicted`.
        """
        self._arrivals += 1
        guest.number = self._arrivals
        room = self._rooms.setdefault(guest.room, {})
        room[guest] = None
        self._guests += 1
        if guest.limited and len(room) > self._limits.handshakes_per_address:
            self._make_room_among(room)
        elif self._guests + len(self._refused) > self._limits.max_handshakes:
            self.make_room()
        try:
            with guest.scope:
                yield
        finally:
            self._leave(guest)
            if not guest.came_in:
                self._charge(guest)

    def release(self, cost: float, since: float) -> None:
        """Somebody leaves who came in at that time, for whom so much had been taken until then.

        Who leaves at once has come for nothing, with a right token as well.
        """
        if trio.current_time() - since < BRIEF_VISIT:
            self._turnstile.charge(cost + VISIT_COST)

    def make_room(self) -> None:
        """Have one of them leave, if there is any: one who was refused, else one of an address that has most."""
        if self._refused:
            self._show_out(next(iter(self._refused)))
        elif self._rooms:
            most = max(map(len, self._rooms.values()))
            self._make_room_among(guest for room in self._rooms.values() if len(room) == most for guest in room)

    def _make_room_among(self, guests: Iterable[PendingConnection]) -> None:
        now = trio.current_time()
        self._show_out(min(guests, key=lambda guest: guest.claim(now)))

    def _show_out(self, guest: PendingConnection) -> None:
        guest.evicted = True
        guest.scope.cancel()
        # Now, and not when its task has noticed: more may come before that.
        self._leave(guest)

    def _leave(self, guest: PendingConnection) -> None:
        self._refused.pop(guest, None)
        room = self._rooms.get(guest.room, {})
        if guest in room:
            del room[guest]
            self._guests -= 1
            self._left.unpark_all()
            if not room:
                del self._rooms[guest.room]

    # Time

    async def expect(self) -> None:
        """Wait until the next connection may be accepted."""
        await self._turnstile.pause()
        if self._guests >= self._limits.max_handshakes:
            with trio.move_on_after(FULL_TIMEOUT):
                await self._left.park()

    async def step(self, guest: PendingConnection) -> None:
        """Wait until the next step may be made for a guest."""
        guest.steps += 1
        if guest.steps > FREE_STEPS:
            self._turnstile.charge(STEP_COST)
        else:
            guest.cost += STEP_COST
        guest.last_received_at = math.inf
        await self._turnstile.turn()
        guest.last_received_at = trio.current_time()

    @contextmanager
    def measured(self, guest: PendingConnection) -> Iterator[None]:
        """Count how long this takes, which waits for nothing."""
        began = time.perf_counter()
        try:
            yield
        finally:
            guest.cost += time.perf_counter() - began
            if guest.cost > FREE_COST or guest in self._refused:
                self._charge(guest)

    def _charge(self, guest: PendingConnection) -> None:
        """Have what was taken for a guest be paid for."""
        self._turnstile.charge(guest.cost)
        guest.cost = 0.0

    # The end

    def admit(self, guest: PendingConnection, **details: str) -> None:
        """Let somebody in, who needs no room here any more; the details are for the audit."""
        guest.came_in = True
        self._leave(guest)
        self.refusals.admitted(guest, **details)

    def refuse(
        self, guest: PendingConnection, error: AccessError, *, shown: str | None = None, credential: str | None = None
    ) -> Refusal:
        """As `Refusals.refuse`. Who has only the answer to wait for takes no room, as long as others don't need it."""
        self._turn_away(guest)
        return self.refusals.refuse(guest, error, shown=shown, credential=credential)

    def complain(self, guest: PendingConnection, text: str) -> float:
        """As `Refusals.complain`, of a guest who is refused for it and takes no room any more."""
        self._turn_away(guest)
        return self.refusals.complain(guest, text)

    def discard(self) -> None:
        """Have a read be paid for that was made behind a refusal."""
        self._turnstile.charge(DISCARD_COST)

    def _turn_away(self, guest: PendingConnection) -> None:
        self._leave(guest)
        self._refused[guest] = None
        # Now, and not when they have gone: they choose when that is, and many could choose the same moment.
        self._charge(guest)

    def complain_of_system(self, error: OSError) -> None:
        """Tell that no more connections can be accepted, but not each time."""
        now = trio.current_time()
        if now - self._complained_at >= COMPLAINT_INTERVAL:
            self._complained_at = now
            why = os.strerror(error.errno or 0).lower()
            log.error("no further connection can be accepted: %s; those that are open go on", why)


class ThrottledListener(trio.abc.Listener[trio.SocketStream]):
    """A listener that accepts no faster than the entrance can do with, and waits where the system has no more room."""

    def __init__(self, listener: trio.SocketListener, entrance: HandshakeLimiter) -> None:
        self._listener = listener
        self._entrance = entrance

    async def accept(self) -> trio.SocketStream:
        """Wait for the next connection."""
        while True:
            await self._entrance.expect()
            try:
                return await self._listener.accept()
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._entrance.complain_of_system(error)
            # Whoever is at the door for longest makes room for those who come.
            self._entrance.make_room()
            await trio.sleep(FULL_PAUSE)

    async def aclose(self) -> None:
        """Close the socket."""
        await self._listener.aclose()


async def shake_hands(
    sock: socket.socket, context: ssl.SSLContext, guest: PendingConnection, entrance: HandshakeLimiter
) -> ssl.SSLSocket:
    """Do the TLS handshake with a guest, a step at a time.

    Raises `ssl.SSLError` and `OSError`. The socket is closed on failure, and when it is cancelled.
    """
    try:
        # For those who say nothing, nothing is set up.
        await trio.lowlevel.wait_readable(sock)
        tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            await entrance.step(guest)
            try:
                with entrance.measured(guest):
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


class ThrottledStream(SocketBytes):
    """The connection of somebody who has not come in yet: what they send is read in turns.

    Cancelled, it loses what it has read; nobody reads on then.
    """

    __slots__ = ("_behind", "_discarded", "_entrance", "_guest")

    def __init__(self, sock: socket.socket, guest: PendingConnection, entrance: HandshakeLimiter) -> None:
        super().__init__(sock)
        self._guest: PendingConnection | None = guest
        self._entrance = entrance
        # What came with the first line, and is behind it.
        self._behind = b""
        # What was read and thrown away since the end of this side.
        self._discarded = 0

    def receive_some(self) -> Coroutine[Any, Any, bytes]:
        # No coroutine of its own: who is in pays nothing for having been a guest.
        if self._behind:
            return self._receive_behind()
        reading = super().receive_some()
        return reading if self._guest is None else self._receive_in_turn(reading)

    async def _receive_behind(self) -> bytes:
        await trio.lowlevel.checkpoint()
        data, self._behind = self._behind, b""
        return data

    async def _receive_in_turn(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        data = await reading
        if self._guest is not None:
            await self._entrance.step(self._guest)
        return data

    async def receive_line(self, limit: int) -> bytes:
        """Wait for the first line that is not blank; empty where the peer ends before it.

        What came with it is read next. Raises `MessageTooLarge` where it does not end within `limit` bytes, blank
        lines before it included, and as `receive_some`.
        """
        seen = b""
        while True:
            start = len(seen) - len(seen.lstrip(_SPACE))
            end = seen.find(b"\n", start)
            if (len(seen) if end < 0 else end) > limit:
                raise MessageTooLarge(f"the first line of a connection, a hello, must not be larger than {limit} bytes")
            if end >= 0:
                self._behind = seen[end + 1 :]
                return seen[start:end]
            data = await self.receive_some()
            if not data:
                return seen[start:]
            seen += data

    async def finish(self) -> None:
        """As `ByteStream.finish`; a guest is waited for up to `LINGER_TIME` and `LINGER_SIZE`."""
        if self._guest is None:
            await super().finish()
        else:
            with trio.move_on_after(LINGER_TIME):
                await super().finish()

    def _may_discard(self, size: int) -> bool:
        if self._guest is None:
            return True
        self._entrance.discard()
        self._discarded += max(size, DISCARD_SIZE)
        return self._discarded < LINGER_SIZE

    def let_in(self) -> None:
        """Read whatever comes from now on."""
        self._guest = None
