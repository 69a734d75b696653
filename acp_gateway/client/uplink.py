"""The client's end of a link: replaces a lost connection, for as long as that takes.

Before the first success the user waits at an editor that starts. So attempts end after `connect_timeout`, and most
errors are final at once. After it, only a refusal by the gateway itself is final. A hotel network answers with its own
certificates, redirects and errors until its portal has been passed, and a configuration file may be incomplete while it
is edited. So any other error is retried, with exponential backoff and jitter. An attempt starts at once when the editor
sends something, and when the machine wakes up.

A connection counts as lost after `keepalive` seconds of silence, or when the wall clock has jumped: then the machine
slept, and resuming is faster than probing the old connection.

If the gateway no longer has the link, it can't be resumed. The uplink then takes a new link, and the handler restores
its state over it, see `UplinkHandler.start_over`.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import trio

from acp_gateway.client.dialing import Destination, Dialed, Resume, dial_link, explain_silence
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
from acp_gateway.printable import printable
from acp_gateway.protocol.link_messages import goodbye
from acp_gateway.protocol.methods import SESSION_CANCEL
from acp_gateway.protocol.text.json_text import NOTHING, read_envelope
from acp_gateway.transports.link import LOST, WINDOW, Link
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason, MessageStream, MessageTooLarge
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream

TICK: Final = 1.0
"""Seconds between two readings of the wall clock."""

CLOCK_JUMP: Final = 5.0
"""Seconds by which a tick is late after the machine slept; a busy machine is not that late."""

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


class UplinkHandler(Protocol):
    """The user of an uplink: receives its messages and is notified of its state."""

    @property
    def started(self) -> bool:
        """True after the first success."""

    @property
    def waiting(self) -> bool:
        """True while a request waits for an answer."""

    def receive(self, batch: list[bytes]) -> None:
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

    async def drain(self) -> None:
        """Wait until nearly everything that was received has been passed on."""

    def changed(self) -> None:
        """Handle a new or lost connection, or the end of a send backlog."""


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
        self.link = self._new_link()
        """The current link; replaced when it can't be resumed."""
        # The id that resumes the link; None before the first connection, and if the link is not resumable.
        self._connection_id: str | None = None
        # Failed attempts and unproductive connections in a row.
        self._failures = 0
        # Start of the last attempt; the event is set when the next one is wanted at once.
        self._attempted_at = float("-inf")
        self._wanted = trio.Event()
        self._wanted.set()
        # Times of the last connection and of its loss, and the link's counts at the connection.
        self._connected_at = 0.0
        self._lost_at = 0.0
        self._progress = (0, 0)
        # Set by `resume_attempts` after `suspend`; None while attempts are made.
        self._suspended: trio.Event | None = None
        # Cancels the current attempt; reports the loss of the current connection, None while there is none.
        self._attempt = trio.CancelScope()
        self._lose: Callable[[LinkLoss], None] | None = None
        # Address of the last attempt.
        self._address = ""
        # Until the first success: the start of the attempts, their timeout, its scope, and `use_short_timeout`.
        self._began = 0.0
        self._connect_timeout = settings.connect_timeout
        self._trying: trio.CancelScope | None = None
        self._timeout_is_short = False

    @property
    def up(self) -> bool:
        """True while there is a connection."""
        return self.link.stream is not None

    async def run(self) -> GatewayError:
        """Keep the link up, and return the error that ended it. Cancelling closes the link, in bounded time."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_clock)
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
        self.link = self._new_link()
        if self._lose is not None:
            self._lose(LinkLoss(why))

    def resume_attempts(self) -> None:
        """Connect again after `suspend`."""
        if self._suspended is not None:
            self._suspended.set()
            self._suspended = None

    def _new_link(self, window: int | None = WINDOW) -> Link:
        return Link(window=window, caught_up=self._handler.changed)

    async def _keep_up(self) -> GatewayError:
        try:
            while True:
                stream = await self._dial_until_connected()
                link = self.link
                loss = await self._serve(link, stream)
                if link is self.link:
                    self._handle_loss(loss)
        except GatewayError as error:
            return error

    # Connecting

    async def _dial_until_connected(self) -> MaintainedStream:
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
                await self._back_off(BACKOFF_MAX if started else BACKOFF_MAX_AT_START)
                outcome = await self._try(started=started)
                if isinstance(outcome, MaintainedStream):
                    return outcome
                self._failures += 1
                self._log.info("no connection: %s", outcome)
                failure = outcome
        raise Unreachable(f"{failure or self._explain_silence()} (tried for {self._connect_timeout:g} s)")

    def _set_connect_timeout(self, seconds: float) -> None:
        self._connect_timeout = seconds
        if self._trying is not None:
            self._trying.deadline = self._began + seconds

    async def _back_off(self, longest: float) -> None:
        """Wait for the time of the next attempt: after the backoff, or when an attempt is wanted."""
        with trio.move_on_after(backoff(self._failures, longest, self._settings.jitter())):
            await self._wanted.wait()
        await trio.sleep_until(self._attempted_at + BACKOFF_MIN)
        self._wanted = trio.Event()
        self._attempted_at = trio.current_time()

    async def _try(self, *, started: bool) -> MaintainedStream | GatewayError:
        """Make one attempt. Return its error if it is to be retried; raise it if it is final."""
        try:
            target = self._destination()
        except GatewayError as error:
            if started:
                return error
            raise
        self._address = str(target.address)
        known = not started and not self._timeout_is_short and self._settings.knows(self._address)
        if known and self._connect_timeout < self._settings.known_timeout:
            self._set_connect_timeout(self._settings.known_timeout)
        resume = Resume(self._connection_id, self.link.received)
        with trio.CancelScope(deadline=trio.current_time() + ATTEMPT_TIMEOUT) as self._attempt:
            try:
                dialed = await self._settings.dial(target, self._settings.timing, resume)
            except (TooFarBehind, LinkGone) as error:
                if resume.connection_id is not None:
                    lost = trio.current_time() - self._lost_at
                    self._start_over(f"can't be resumed after {lost:.0f} s: {error}")
                    self._wanted.set()
                return error
            except UnknownSession as error:
                if started:
                    # After a restart of the gateway, a guest's session is unknown until its owner has reopened it.
                    self._handler.give_up(error)
                    return error
                raise
            except REFUSALS:
                raise
            except GatewayError as error:
                if started or isinstance(error, Unreachable):
                    return error
                raise
            return await self._connect(dialed)
        return Unreachable(self._explain_silence())

    def _explain_silence(self) -> str:
        return explain_silence(self._address)

    async def _connect(self, dialed: Dialed) -> MaintainedStream | GatewayError:
        """Attach the link to a new connection. Return the error if the gateway's count does not match."""
        lost = trio.current_time() - (self._lost_at or self._began)
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
                self.link.connect(dialed.stream, received)
            except ValueError as error:
                await close_at_once(dialed.stream)
                self._start_over(f"the gateway's message count does not match: {error}")
                return ProtocolError(f"{self._address}: the gateway's message count does not match: {error}")
            event = event._replace(kind="resumed")
            self._log.info(
                "resumed after %.1f s: %d messages received, sending %d again and %d for the first time",
                lost,
                self.link.received,
                again,
                waited,
            )
        self._settings.reached(self._address)
        self._settings.notice(event)
        self._wanted = trio.Event()
        self._connected_at = trio.current_time()
        self._progress = self._message_counts()
        self._handler.changed()
        return dialed.stream

    # Connected

    async def _serve(self, link: Link, stream: MaintainedStream) -> LinkLoss:
        """Use a connection until it is lost, and close it. Cancelling sends a goodbye first."""
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

                self._lose = lose
                nursery.start_soon(stream.run)
                nursery.start_soon(link.pump)
                if link.resumable:
                    nursery.start_soon(self._notice_silence, link, lose)
                lose(await self._receive(link, stream))
        finally:
            self._lose = None
            with trio.CancelScope(shield=True):
                if loss is None or loss.too_large:
                    await say_goodbye(link, stream)
                else:
                    await close_at_once(stream)
            link.disconnect()
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
            if not link.resumable:
                await self._handler.drain()

    async def _notice_silence(self, link: Link, lose: Callable[[LinkLoss], None]) -> None:
        await link.keep_alive(self._settings.keepalive)
        lose(LinkLoss(f"nothing was received from the gateway for {self._settings.keepalive:g} s"))

    def _message_counts(self) -> tuple[int, int]:
        return self.link.received, self.link.outbox.confirmed

    def _handle_loss(self, loss: LinkLoss) -> None:
        """Resume, start over or rest after a lost connection. Raises the `GatewayError` if the loss is final."""
        now = trio.current_time()
        self._lost_at = now
        # Without resuming, each connection begins with responses to the messages of a recovery: they show nothing.
        moved = self.link.resumable and self._message_counts() != self._progress
        moved |= now - self._connected_at >= BACKOFF_MAX
        if moved and loss.code != AGENT_GONE:
            self._failures = 0
        else:
            self._failures += 1
        self._handler.changed()
        if loss.too_large:
            # It would be received again.
            raise ProtocolError(loss.why)
        if not self._handler.started:
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
        if not self.link.resumable or loss.code == TOO_BIG:
            # On the same link, the oversized message would be sent again.
            self._start_over(loss.why, loss.unsent)

    def _start_over(self, why: str, unsent: Sequence[bytes] = ()) -> None:
        """Replace the link, because it can't be resumed."""
        outbox = self.link.outbox
        # A turn that is cancelled twice is better than one that goes on.
        cancels = [message for message in outbox.unconfirmed_messages() if _ends_turn(message)]
        unsent = [*cancels, *unsent, *outbox.unwritten_messages()]
        connection_id, self._connection_id = self._connection_id, None
        self.link = self._new_link()
        self._handler.start_over(connection_id or "", unsent, why)

    async def _watch_clock(self) -> None:
        before = self._settings.wall_clock()
        while True:
            await trio.sleep(TICK)
            now = self._settings.wall_clock()
            if now - before > TICK + CLOCK_JUMP:
                self._woke_up(now - before)
            before = now

    def _woke_up(self, seconds: float) -> None:
        self._log.info("the machine slept or its clock was set: %.0f s", seconds)
        if self.up and not self.link.resumable:
            return
        self._failures = 0
        if self._lose is not None:
            self._lose(LinkLoss("the machine slept"))
        self._attempt.cancel()
        self._wanted.set()


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


async def close_at_once(stream: MessageStream) -> None:
    """Close a connection without ending its link, and without waiting for the peer."""
    with trio.CancelScope() as scope:
        scope.cancel()
        # Not a normal close, which would end the link.
        await stream.aclose(CloseReason.GOING_AWAY, "the connection is abandoned, not the link")
