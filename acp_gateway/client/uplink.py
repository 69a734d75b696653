"""The client's end of a link: replaces a lost connection, for as long as that takes.

Before the first success the user waits at an editor that starts. So attempts end after `connect_timeout`, and most
errors are final at once. After it, only a refusal by the gateway itself is final. A hotel network answers with its own
certificates, redirects and errors until its portal has been passed, and a configuration file may be incomplete while it
is edited. So any other error is retried, with exponential backoff and jitter. An attempt starts at once when the editor
sends something, and when the machine wakes up.

A connection that may be dead (`reconnecting.suspicion`) is replaced before it is given up: a second one is dialed
beside it, and the first that answers goes on. A connection counts as lost after `keepalive` seconds of silence.

If the gateway no longer has the link, it can't be resumed. The uplink then takes a new link, and the handler restores
its state over it, see `UplinkHandler.start_over`.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final, Literal, NamedTuple, Protocol

import trio

from acp_gateway.client.dialing import Destination, Dialed, Resume, dial_link, explain_silence
from acp_gateway.client.reconnecting.attempts import Attempt, Attempts, close_at_once
from acp_gateway.client.reconnecting.clock_changes import watch_clock
from acp_gateway.client.reconnecting.suspicion import Sample, Suspect, Suspicion
from acp_gateway.errors import (
    AgentError,
    Forbidden,
    ForeignRefusal,
    GatewayError,
    LinkGone,
    ProtocolError,
    TooFarBehind,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
    Unreachable,
)
from acp_gateway.printable import counted, printable
from acp_gateway.protocol.link_messages import Sent, goodbye
from acp_gateway.protocol.methods import SESSION_CANCEL
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.protocol.text.json_text import NOTHING, read_envelope
from acp_gateway.transports.link import LOST, WINDOW, Link
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.parts import NO_PART, PartSum
from acp_gateway.transports.path_state import Route, source_address
from acp_gateway.transports.streams import MessageStream, MessageTooLarge
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream

TICK: Final = 1.0
"""Seconds between two readings of the wall clock, where the system does not tell that it was set."""

CLOCK_JUMP: Final = 5.0
"""Seconds by which a look is late after the machine slept; a busy machine is not that late."""

BACKOFF_MIN: Final = 0.2
"""Seconds of the first backoff at most, and between the starts of two attempts at least."""

BACKOFF_MAX: Final = 15.0
"""Seconds of the longest backoff: as long as a user waits at a screen before trying something else."""

BACKOFF_MAX_AT_START: Final = 2.0
"""Seconds of the longest backoff before the first success: the user waits for the editor to start."""

BACKOFF_MAX_IN_USE: Final = 1.0
"""Seconds of the longest backoff while an answer is expected, and between two attempts beside each other, for
`IN_USE`: a network that is back is to be used."""

IN_USE: Final = 600.0
"""Seconds of an outage after which attempts become rare although an answer is expected."""

SHOWN: Final = 2.0
"""Seconds without an answer after which a user is told that the connection is lost."""

REFUSED: Final = 5.0
"""Seconds of suspicion after which a connection is given up if the gateway has refused a second one."""

SPREAD: Final = 0.1
"""Seconds over which the links of one machine spread their attempts after something that all of them notice."""

HANDSHAKE: Final = 4
"""Round trips until a link is resumed: TCP, TLS, the upgrade, and what follows."""

REFUSALS: Final = (Unauthorized, Forbidden, UnknownAgent)
"""Errors that only the gateway itself raises, and would raise again."""

TOO_BIG: Final = 1009
AGENT_GONE: Final = 1011
_ERRORS: Final[dict[int | None, type[GatewayError]]] = {1008: Forbidden, TOO_BIG: ProtocolError, AGENT_GONE: AgentError}
"""The final error for each close code of a gateway."""

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


class LinkEvent(NamedTuple):
    """A change of the link that a user may be told of."""

    kind: Literal["connected", "resumed", "lost", "answered"]
    """`connected` to a new link, also in place of one that could not be resumed; `resumed`; `lost` for now; `answered`
    by a connection that was taken for lost."""
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
    watch_clock: Callable[..., Awaitable[None]] = watch_clock
    """Calls a function when the wall clock was set or the machine has slept, if the system tells."""
    source: Callable[[tuple[str, int]], str | None] = source_address
    """Returns the address from which the gateway's is reached now; None without a way to it."""
    log: Log = logging.getLogger("acp_gateway.client.uplink")
    """The log of the uplink; one that names the link, where a program has several."""


class LinkLoss(NamedTuple):
    """The end of a connection."""

    why: str
    code: int | None = None
    """The gateway's close code."""
    closed: bool = False
    """True if the gateway closed the connection properly."""
    replaced: bool = False
    """True if a second connection has resumed the link."""
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


class UplinkHandler(Protocol):
    """The user of an uplink: receives its messages and is notified of its state."""

    @property
    def started(self) -> bool:
        """True after the first success."""

    @property
    def waiting(self) -> bool:
        """True while a request waits for an answer."""

    def receive(self, batch: Sequence[Sent]) -> None:
        """Process messages from the gateway, including a `Mark` for each position."""

    def start_over(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """Restore the state on a new, unused link, because the old one can't be resumed.

        Args:
            connection_id: the id of the old link; empty if it was not resumable.
            unsent: messages that were certainly not sent.
            why: the cause, for logs and errors.
        """

    def agent_lost(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """Handle the end of the agent. There is no connection until `resume_attempts`. Arguments as in `start_over`."""

    def give_up(self, error: GatewayError) -> None:
        """Answer open requests with an error, because their answers may take arbitrarily long; attempts continue."""

    def too_large(self, message: bytes, why: str) -> None:
        """Handle that the gateway has closed the connection because of a message, which is not sent again."""

    async def drain(self) -> None:
        """Wait until nearly everything that was received has been passed on."""

    def changed(self) -> None:
        """Handle a new or lost connection, or the end of a send backlog."""


class _Connection:
    """A connection of the link, and how far messages had come when it was made."""

    def __init__(self, link: Link, stream: MaintainedStream) -> None:
        self.link = link
        self.stream = stream
        self.lose: Callable[[LinkLoss], None] | None = None
        """Reports its loss, while it is used."""
        self.silent = False
        """True while it is shown as lost."""
        self.refused: GatewayError | None = None
        """The refusal of a second connection, while this one is suspected."""
        self.began = trio.current_time()
        self._counts = link.received, link.outbox.confirmed

    @property
    def moved(self) -> bool:
        """True if messages came or were confirmed since then."""
        return self._counts != (self.link.received, self.link.outbox.confirmed)


class Uplink:
    """A link to a gateway whose connection `run` keeps up.

    Args:
        handler: receives messages and state changes.
        destination: called before each attempt; if it raises, the attempt has failed.
        settings: timeouts and dependencies.
    """

    def __init__(
        self, handler: UplinkHandler, destination: Callable[[], Destination], settings: ReconnectSettings
    ) -> None:
        self._handler = handler
        self._destination = destination
        self._settings = settings
        self._log = settings.log
        # The link, and what the gateway has told of it.
        self.link = self._new_link()
        """The current link; replaced when it can't be resumed."""
        self.limit: SizeLimit | None = None
        """Maximum size of a message, as the gateway has told last; None if it does not tell."""
        # The id that resumes the link; None before the first connection, and if the link is not resumable.
        self._connection_id: str | None = None
        # True if the gateway understands parts of messages.
        self._tells_parts = False
        # The last connection, and why a second one has taken its place; empty after that was told.
        self._connection: _Connection | None = None
        self._replaced = ""
        self.lost_at = 0.0
        """Time at which a connection was lost last, by Trio's clock; 0 if none was."""
        # The attempts; failed ones and unproductive connections in a row; the start and the address of the last one.
        self._attempts = Attempts(
            lambda target, resume: settings.dial(target, settings.timing, resume), self._attempt_done
        )
        self._failures = 0
        self._attempted_at = -inf
        self._address = ""
        # Set when the next one is wanted at once. True to wait for `SPREAD`.
        self._wanted = trio.Event()
        self._wanted.set()
        self._spread = False
        # Set by `resume_attempts` after `suspend`; None while attempts are made.
        self._suspended: trio.Event | None = None
        # Until the first success: the start of the attempts, their timeout, its scope, and `use_short_timeout`.
        self._began = 0.0
        self._connect_timeout = settings.connect_timeout
        self._trying: trio.CancelScope | None = None
        self._timeout_is_short = False
        # Watches the link; the event has it look now. True while it waits for nothing else.
        self._suspicion = Suspicion()
        self._look_wanted = trio.Event()
        self._rests = False
        # Addresses of the last connection, and the present way to it.
        self._route: Route | None = None
        self._source: str | None = None
        self._looked_up_at = -inf

    @property
    def silent(self) -> bool:
        """True while a user is to be told that the connection is lost, though a second one is only being dialed."""
        return self._connection is not None and self._connection.silent

    @property
    def up(self) -> bool:
        """True while there is a connection."""
        return self.link.stream is not None

    async def run(self) -> GatewayError:
        """Keep the link up, and return the error that ended it. Cancelling closes the link, in bounded time."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._attempts.run)
            told = await nursery.start(self._settings.watch_clock, self._look_now)
            nursery.start_soon(self._watch, told)
            error = await self._keep_up()
            nursery.cancel_scope.cancel()
        return error

    def wake(self) -> None:
        """Connect at once, if there is no connection."""
        if not self.up:
            self._wanted.set()

    def use_short_timeout(self) -> None:
        """Use `connect_timeout` for the first success even if the gateway was reached before."""
        self._timeout_is_short = True
        self._set_connect_timeout(self._settings.connect_timeout)

    def suspend(self, why: str) -> None:
        """Drop the link, and stay disconnected until `resume_attempts`."""
        self._suspended = trio.Event()
        self._connection_id = None
        self._attempts.drop()
        self.link = self._new_link()
        if self._connection is not None and self._connection.lose is not None:
            self._connection.lose(LinkLoss(why))

    def resume_attempts(self) -> None:
        """Connect again after `suspend`."""
        if self._suspended is not None:
            self._suspended.set()
            self._suspended = None

    def _new_link(self, window: int | None = WINDOW) -> Link:
        return Link(window=window, caught_up=self._handler.changed, answered=self._answered)

    async def _keep_up(self) -> GatewayError:
        try:
            while True:
                connection = await self._dial_until_connected()
                loss = await self._serve(connection)
                if connection.link is self.link and not loss.replaced:
                    self._handle_loss(connection, loss)
        except GatewayError as error:
            return error

    # Connecting

    async def _dial_until_connected(self) -> _Connection:
        """Attempt to connect until it succeeds. Raises the `GatewayError` that is final."""
        started = self._handler.started
        failure: GatewayError | None = None
        self._began = trio.current_time()
        with trio.CancelScope() as scope:
            if not started:
                self._trying = scope
                self._set_connect_timeout(self._settings.connect_timeout)
            while True:
                if self._suspended is not None:
                    await self._suspended.wait()
                outcome = await self._try(started=started)
                if isinstance(outcome, _Connection):
                    return outcome
                if outcome is not None:
                    self._failures += 1
                    self._log.info("no connection: %s", outcome)
                    failure = outcome
        raise Unreachable(f"{failure or explain_silence(self._address)} (tried for {self._connect_timeout:g} s)")

    def _set_connect_timeout(self, seconds: float) -> None:
        self._connect_timeout = seconds
        if self._trying is not None:
            self._trying.deadline = self._began + seconds

    async def _back_off(self, longest: float) -> None:
        """Wait for the time of the next attempt: after the backoff, or when an attempt is wanted."""
        with trio.move_on_after(backoff(self._failures, longest, self._settings.jitter())):
            await self._wanted.wait()
        await trio.sleep_until(self._attempted_at + BACKOFF_MIN)
        if self._spread:
            self._spread = False
            await trio.sleep(SPREAD * self._settings.jitter())
        self._wanted = trio.Event()
        self._attempted_at = trio.current_time()

    def _longest_backoff(self, *, started: bool) -> float:
        if not started:
            return BACKOFF_MAX_AT_START
        in_use = self._handler.waiting and trio.current_time() < self.lost_at + IN_USE
        return BACKOFF_MAX_IN_USE if in_use else BACKOFF_MAX

    async def _try(self, *, started: bool) -> _Connection | GatewayError | None:
        """Make an attempt, or wait for the outcome of one, and use it. Return its error if it is to be retried.

        Returns None if that was not all. Raises the error if it is final.
        """
        attempts, longest = self._attempts, self._longest_backoff(started=started)
        beside = started and longest < BACKOFF_MAX
        if attempts.running:
            # While it hangs, others are made beside it only if a user waits.
            pause = longest * (0.75 + self._settings.jitter() / 4) if beside else TICK
            await attempts.wait(attempts.running[-1].began + pause if beside else trio.current_time() + TICK)
            if attempts.done is None and beside:
                await attempts.wait(attempts.answer_due)
            if attempts.done is None and not (beside and attempts.running):
                return None
        elif attempts.done is None:
            await self._back_off(longest)
        attempt = attempts.take()
        if attempt is not None:
            return await self._use(attempt, started=started)
        try:
            self._start_attempt(started=started)
        except GatewayError as error:
            if started:
                return error
            raise
        return None

    def _start_attempt(self, *, started: bool, delay: float = 0.0) -> None:
        """Start an attempt after so many seconds. Raises what `destination` raises."""
        target = self._destination()
        self._address = str(target.address)
        known = not started and not self._timeout_is_short and self._settings.knows(self._address)
        if known and self._connect_timeout < self._settings.known_timeout:
            self._set_connect_timeout(self._settings.known_timeout)
        resume = Resume(self._connection_id, self.link.received, tell_part=self._tell_part)
        self._attempts.start(target, resume, None if resume.connection_id is None else self._ask, delay)

    def _ask(self, attempt: Attempt) -> int:
        """Return the count with which an attempt asks for the link, unless the present connection has just answered."""
        if self.link.stream is not None:
            self._look()
        if not attempt.scope.cancel_called:
            self._attempts.note_ask(attempt)
            return self.link.tell_count()
        return self.link.received

    def _tell_part(self) -> PartSum:
        """Return the part of the next message that was received, for a gateway that understands it."""
        return self.link.part_sum if self._tells_parts else NO_PART

    async def _use(self, attempt: Attempt, *, started: bool) -> _Connection | GatewayError:
        """Connect the link by an attempt, or handle its error as `_try` does."""
        outcome = attempt.outcome
        assert outcome is not None
        if isinstance(outcome, Dialed):
            return await self._connect(outcome, attempt)
        if isinstance(outcome, (TooFarBehind, LinkGone)):
            if self._connection_id is not None:
                lost = trio.current_time() - self.lost_at
                self._start_over(f"can't be resumed after {lost:.0f} s: {outcome}")
                self._wanted.set()
            return outcome
        if isinstance(outcome, ProtocolError):
            # An earlier version, which has taken the gateway's place, refuses a hello with a part.
            self._tells_parts = False
        if isinstance(outcome, UnknownSession) and started:
            # After a restart of the gateway, a guest's session is unknown until its owner has reopened it.
            self._handler.give_up(outcome)
            return outcome
        if isinstance(outcome, (UnknownSession, *REFUSALS)) or not (started or isinstance(outcome, Unreachable)):
            raise outcome
        return outcome

    async def _connect(self, dialed: Dialed, attempt: Attempt) -> _Connection | GatewayError:
        """Attach the link to a new connection. Return the error if the gateway's count does not match."""
        lost = trio.current_time() - (self.lost_at or self._began)
        event = LinkEvent("connected", str(dialed.address or self._address), seconds=lost)
        if self._connection_id is None:
            if dialed.received is None:
                self._log.info("connected to %s, which doesn't resume links", self._address)
                waiting, self.link = self.link.outbox.unwritten_messages(), self._new_link(window=None)
                self.link.send(waiting)
            else:
                self._log.info("connected to %s, link %s", self._address, dialed.connection_id)
                self._connection_id = dialed.connection_id
            self.link.connect(dialed.stream)
        else:
            outbox = self.link.outbox
            received = dialed.received or 0
            again, waited = outbox.written - received, len(outbox.unwritten_messages())
            try:
                self.link.connect(dialed.stream, received, attempt.told, dialed.part or NO_PART)
            except ValueError as error:
                await close_at_once(dialed.stream)
                self._start_over(f"the gateway's message count does not match: {error}")
                return ProtocolError(f"{self._address}: the gateway's message count does not match: {error}")
            event = event._replace(kind="resumed")
            how = f"resumed after {lost:.1f} s"
            if self._replaced:
                how = f"{self._replaced}; the new path answered in {trio.current_time() - attempt.began:.1f} s"
            got = counted(self.link.received, "message")
            self._log.info("%s: %s received, sending %d again and %d for the first time", how, got, again, waited)
        self.limit, self._tells_parts = dialed.limit, dialed.part is not None
        self._settings.reached(self._address)
        self._settings.notice(event)
        self._wanted = trio.Event()
        before, self._connection = self._connection, _Connection(self.link, dialed.stream)
        self._begin_watch(dialed, attempt, moved=event.kind == "connected" or before is None or before.moved)
        self._handler.changed()
        return self._connection

    def _begin_watch(self, dialed: Dialed, attempt: Attempt, *, moved: bool) -> None:
        """Watch a new connection; `moved` if messages came over the one before."""
        now = trio.current_time()
        self._attempts.drop()
        self._attempts.forget_asks()
        self._replaced = ""
        self._route, self._looked_up_at = dialed.stream.route, -inf
        round_trip = (now - attempt.began) / HANDSHAKE
        self._suspicion.connected(now, round_trip, answers_probes=dialed.probes, moved=moved)
        self.link.on_send = self._sent
        if len(self.link.outbox):
            self._suspicion.sent(now)

    # Connected

    async def _serve(self, connection: _Connection) -> LinkLoss:
        """Use a connection until it is lost, and close it. Cancelling sends a goodbye first."""
        link, stream = connection.link, connection.stream
        loss: LinkLoss | None = None
        try:
            async with trio.open_nursery() as nursery:

                def lose(reported: LinkLoss) -> None:
                    nonlocal loss
                    loss = loss or reported
                    if not loss.too_large:
                        # Messages sent while it closes stay in the outbox for the next connection.
                        link.disconnect()
                    nursery.cancel_scope.cancel()

                connection.lose = lose
                self._look_wanted.set()
                nursery.start_soon(stream.run)
                nursery.start_soon(link.pump)
                if link.resumable:
                    nursery.start_soon(self._notice_silence, link, lose)
                lose(await self._receive(link, stream))
        finally:
            connection.lose = None
            with trio.CancelScope(shield=True):
                if loss is None or loss.too_large:
                    await say_goodbye(link, stream)
                else:
                    await close_at_once(stream)
            link.disconnect()
            self._look_now()
        assert loss is not None
        return loss._replace(unsent=stream.unsent())

    async def _receive(self, link: Link, stream: MessageStream) -> LinkLoss:
        while True:
            try:
                batch = await link.receive_batch()
            except trio.EndOfChannel:
                return loss_by_close(stream)
            except MessageTooLarge as error:
                return LinkLoss(str(error), too_large=True)
            except LOST as error:
                cause = error.__cause__
                return LinkLoss(str(error), cause=cause if isinstance(cause, GatewayError) else None)
            self._handler.receive(batch)
            if self._rests and self._handler.waiting:
                self._look_now()
            if not link.resumable:
                await self._handler.drain()

    async def _notice_silence(self, link: Link, lose: Callable[[LinkLoss], None]) -> None:
        await link.keep_alive(self._settings.keepalive)
        lose(LinkLoss(f"nothing was received from the gateway for {self._settings.keepalive:g} s"))

    def _handle_loss(self, connection: _Connection, loss: LinkLoss) -> None:
        """Resume, start over or rest after a lost connection. Raises the `GatewayError` if the loss is final."""
        self.lost_at = trio.current_time()
        # Without resuming, each connection begins with responses to the messages of a recovery: they show nothing.
        moved = (self.link.resumable and connection.moved) or self.lost_at - connection.began >= BACKOFF_MAX
        self._failures = 0 if moved and loss.code != AGENT_GONE else self._failures + 1
        self._handler.changed()
        if loss.too_large:
            # It would be received again.
            raise ProtocolError(loss.why)
        if not self._handler.started and not self._attempts.asked:
            error = final_error(loss, resumable=self.link.resumable, waiting=self._handler.waiting)
            if error is not None:
                raise error
        self._log.warning("lost the connection: %s", loss.why)
        self._settings.notice(LinkEvent("lost", self._address, loss.why))
        if isinstance(loss.cause, ForeignRefusal):
            self._handler.give_up(loss.cause)
        if loss.code == AGENT_GONE:
            # A new link would start the agent at once, and forever if it ends each time.
            unsent, connection_id = self.link.outbox.unwritten_messages(), self._connection_id
            self.suspend(loss.why)
            self._handler.agent_lost(connection_id or "", unsent, loss.why)
            return
        sent = self.link.outbox.unconfirmed_messages() if loss.code == TOO_BIG else ()
        if sent:
            # It came before the limit was told, or to a gateway that tells none.
            self._handler.too_large(max(sent, key=len), loss.why)
        if not self.link.resumable or loss.code == TOO_BIG:
            # On the same link, the oversized message would be sent again.
            self._start_over(loss.why, loss.unsent)

    def _start_over(self, why: str, unsent: Sequence[bytes] = ()) -> None:
        """Replace the link, because it can't be resumed."""
        self._attempts.drop()
        outbox = self.link.outbox
        # A turn that is cancelled twice is better than one that goes on.
        cancels = [message for message in outbox.unconfirmed_messages() if _ends_turn(message)]
        unsent = [*cancels, *unsent, *outbox.unwritten_messages()]
        connection_id, self._connection_id = self._connection_id, None
        self.link = self._new_link()
        self._handler.start_over(connection_id or "", unsent, why)

    # Watching

    async def _watch(self, told: bool) -> None:  # noqa: FBT001
        """Look at the connection when that is due, and each `TICK` at the clock and the way to the gateway.

        With `told`, the system tells of changes of the clock. Nothing is looked at then while a connection is idle.
        """
        before, at, tick, due = self._settings.wall_clock(), trio.current_time(), trio.current_time() + TICK, inf
        while True:
            until = due if told and self.up else min(due, tick)
            self._rests = until == inf
            with trio.move_on_at(until):
                await self._look_wanted.wait()
            now, clock = trio.current_time(), self._settings.wall_clock()
            if clock - before > min(until, now) - at + CLOCK_JUMP:
                self._woke_up(clock - before)
            before, at = clock, now
            if now >= tick:
                tick = now + TICK
                if not self.up:
                    self._check_way()
            if now >= due or self._look_wanted.is_set() or self._handler.waiting:
                self._look_wanted = trio.Event()
                due = self._look()

    def _look_now(self) -> None:
        self._look_wanted.set()

    def _look(self) -> float:
        """Send a probe or dial a second connection if there is a reason; return the time of the next look."""
        link, connection, now = self.link, self._connection, trio.current_time()
        if link.stream is None or not link.resumable or connection is None or connection.lose is None:
            return inf
        suspicion, before = self._suspicion, self._suspicion.suspect
        if now >= self._looked_up_at + TICK and self._route is not None:
            self._looked_up_at, self._source = now, self._settings.source(self._route.peer)
        heard_at, stream = min(link.heard_at, now), link.stream
        sent = stream.pending_bytes, stream.path, self._source
        sample = Sample(now, heard_at, self._handler.waiting, *sent, link.received, self._attempts.answer_due)
        step = suspicion.look(sample)
        if step.probe:
            link.send_probe(step.probe)
        if before is not None and suspicion.suspect is None:
            self._answered_again(connection, before)
        if step.dial:
            self._dial_beside(connection, step.dial)
        if suspicion.suspect is not None:
            self._tell_silence(connection, suspicion.suspect)
        link.on_send = self._sent
        return step.due

    def _sent(self) -> None:
        """Handle that a message was sent; called once for each look."""
        self.link.on_send = None
        if self._suspicion.sent(trio.current_time()):
            self._look_wanted.set()

    def _answered(self, number: int) -> None:
        """Handle the answer to a probe."""
        suspect = self._suspicion.suspect
        self._suspicion.answered(trio.current_time(), number)
        if suspect is not None and self._connection is not None:
            self._answered_again(self._connection, suspect)

    def _answered_again(self, connection: _Connection, suspect: Suspect) -> None:
        """Go on with a connection that was suspected. An attempt that has asked for the link takes it over."""
        self._attempts.drop_unasked()
        self._attempts.forget_asks()
        connection.refused = None
        seconds = trio.current_time() - suspect.at
        self._log.info("the connection has answered %.1f s after it was suspected", seconds)
        if connection.silent:
            connection.silent = False
            self._settings.notice(LinkEvent("answered", self._address, seconds=seconds))
            self._handler.changed()

    def _dial_beside(self, connection: _Connection, why: str) -> None:
        """Dial a second connection."""
        self._log.info("%s: dialing a second connection", why)
        connection.refused = None
        try:
            self._start_attempt(started=True, delay=SPREAD * self._settings.jitter() if self._spread else 0.0)
        except GatewayError as error:
            self._log.info("no second connection: %s", error)
        self._spread = False

    def _attempt_done(self) -> None:
        """Handle the outcome of an attempt beside a connection."""
        done, connection = self._attempts.done, self._connection
        if connection is None or connection.lose is None or done is None:
            return
        suspicion, now = self._suspicion, trio.current_time()
        if isinstance(done.outcome, Dialed):
            self._failures, self.lost_at = 0, now if suspicion.suspect is None else suspicion.suspect.silent_since
            self._replaced = suspicion.describe(now)
            connection.lose(LinkLoss(self._replaced, replaced=True))
            return
        self._attempts.take()
        if all(attempt.told is None for attempt in self._attempts.running):
            self.link.untell_count()
        if suspicion.suspect is None:
            self._attempts.forget_asks()
        self._log.info("no second connection: %s", done.outcome)
        if not isinstance(done.outcome, Unreachable):
            connection.refused = done.outcome

    def _tell_silence(self, connection: _Connection, suspect: Suspect) -> None:
        """Show a connection as lost that is silent for long, and give it up if the gateway refuses another one."""
        now = trio.current_time()
        if not connection.silent and now >= suspect.silent_since + SHOWN:
            connection.silent = True
            self._settings.notice(LinkEvent("lost", self._address, self._suspicion.describe(now)))
            self._handler.changed()
        refused, lose = connection.refused, connection.lose
        if refused is not None and lose is not None and now >= suspect.at + REFUSED:
            lose(LinkLoss(f"{self._suspicion.describe(now)}, and no second connection: {refused}"))

    def _check_way(self) -> None:
        """Without a connection, attempt one at once when the way to the gateway has changed."""
        if self._route is None:
            return
        source, self._source = self._source, self._settings.source(self._route.peer)
        if self._source is not None and self._source != source:
            self._log.info("the way to the gateway has changed: from %s", self._source)
            self._attempt_now()

    def _attempt_now(self) -> None:
        self._failures = 0
        self._spread = True
        self._attempts.cut_short()
        self._wanted.set()

    def _woke_up(self, seconds: float) -> None:
        self._log.info("the machine slept or its clock was set: %.0f s", seconds)
        if self._connection is None or self._connection.lose is None:
            self._attempt_now()
        elif self.link.resumable:
            self._spread = True
            self._suspicion.slept(seconds)
            self._look_wanted.set()


def _ends_turn(message: bytes) -> bool:
    envelope = read_envelope(message) or NOTHING
    return envelope.raw_id is None and envelope.method == SESSION_CANCEL


def loss_by_close(stream: MessageStream) -> LinkLoss:
    """Return the loss for a connection that the gateway closed, with its close code and text."""
    code = stream.close_code if isinstance(stream, WebSocketStream) else None
    said = printable(stream.close_text) if isinstance(stream, WebSocketStream) else ""
    return LinkLoss(f"the gateway closed the connection{': ' if said else ''}{said}", code, closed=True)


async def say_goodbye(link: Link, stream: MessageStream) -> None:
    """Close the link for good, so that the gateway keeps no state of it. Bounded in time."""
    link.flush()
    if link.resumable:
        link.send_control(goodbye())
    await stream.aclose()
