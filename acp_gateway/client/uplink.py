"""The client's end of a link that is kept up: a connection that is lost is replaced, for as long as that takes.

Until there has been a first success, whoever started the program is told quickly and clearly what is wrong: attempts
end after a time, and most errors end them at once. After it nothing does but a refusal of the gateway's own. A laptop
comes to hotels whose network answers with other certificates, redirects and errors of its own, and leaves them again;
a file that is being edited is whole again in a moment. So everything else is logged and tried again, with pauses that
grow, and at once when there is a reason to hope: the editor says something, or the machine has woken up.

A connection is taken for dead when the gateway has not been heard for a while, or when the clock on the wall has
jumped: then the machine slept, and finding out what the other side made of that would take longer than resuming.

A link that the gateway does not have any more can't be resumed. There is a new one then, and the owner begins anew on
it, see `UplinkHandler.start_over`.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

import trio

from acp_gateway.client.dialing import Destination, Dialed, Resume, dial_link, explain_silence
from acp_gateway.errors import (
    AgentError,
    Forbidden,
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
from acp_gateway.protocol.json_text import NOTHING, read_envelope
from acp_gateway.protocol.methods import SESSION_CANCEL
from acp_gateway.protocol.outbox import goodbye
from acp_gateway.transports.link import LOST, WINDOW, Link
from acp_gateway.transports.streams import CloseReason, MessageStream, MessageTooLarge
from acp_gateway.transports.websocket import Timing, WebSocketStream

log = logging.getLogger(__name__)

BACKOFF_MIN: Final = 0.2
"""Seconds before an attempt at most, after the first failure; and between the beginnings of two attempts at least."""

LONGEST_FIRST_PAUSE: Final = 2.0
"""Seconds that the pauses grow to before the first success: somebody looks at an editor that is starting."""

LONGEST_PAUSE: Final = 15.0
"""Seconds that the pauses grow to: as long as one waits at a screen before trying something else."""

ATTEMPT_TIMEOUT: Final = 15.0
"""Seconds that one attempt may take: TLS over a bad mobile network takes five, a route that swallows everything for
ever."""

TICK: Final = 1.0
"""Seconds between two looks at the clock on the wall."""

SLEPT: Final = 5.0
"""Seconds by which a tick is too long when the machine slept; a busy one is not that late."""

_REFUSALS: Final = (Unauthorized, Forbidden, UnknownAgent)
"""What is raised only where the gateway itself says no, and would say so again."""

_TOO_BIG: Final = 1009
_AGENT_GONE: Final = 1011
_ERRORS: Final[dict[int | None, type[GatewayError]]] = {
    1008: Forbidden,
    _TOO_BIG: ProtocolError,
    _AGENT_GONE: AgentError,
}
"""What a close code of the gateway's means where it is the end."""

Dial = Callable[[Destination, Timing, Resume], Awaitable[Dialed]]


class ReconnectSettings(NamedTuple):
    """How a link is kept up."""

    connect_timeout: float
    """Seconds within which there must be a connection, before the first success."""
    known_timeout: float = 0.0
    """The same for a gateway that was reached before, where that is longer."""
    knows: Callable[[str], bool] = lambda _: False
    """Whether the gateway at an address was reached before."""
    reached: Callable[[str], None] = lambda _: None
    """Called with the address of a gateway that has let this client in."""
    keepalive: float = 30.0
    """Seconds without a sign of the gateway after which a connection is dead. Both ends speak every `HEARTBEAT`."""
    timing: Timing = Timing()
    dial: Dial = dial_link
    chance: Callable[[], float] = random.random
    """A number from 0 to 1, by which pauses differ: the laptops of a whole office come back at the same moment."""
    wall_clock: Callable[[], float] = time.time
    """Seconds since whenever, going on while the machine sleeps."""


class UplinkHandler(Protocol):
    """Who speaks over the link."""

    @property
    def started(self) -> bool:
        """Whether there has been a first success."""

    @property
    def waiting(self) -> bool:
        """Whether it waits for an answer."""

    def receive(self, batch: list[bytes]) -> None:
        """Take messages from the gateway; among them a `Mark` for each position."""

    def start_over(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """The link can't be resumed; there is a new one, on which nothing was said.

        Args:
            connection_id: of the old link; empty where it had none that could be resumed.
            unsent: messages that certainly have not left.
            why: for a person.
        """

    def lose_agent(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """The agent that the link was for has ended, and there is no link before `begin`; else as `start_over`."""

    def give_up(self, error: GatewayError) -> None:
        """What is asked can't be answered before it is known when; attempts go on."""

    async def taken(self) -> None:
        """Wait until what was received is passed on but for a little."""

    def changed(self) -> None:
        """There is a connection, or none any more, or what had to wait has been sent."""


class Loss(NamedTuple):
    """How a connection ended."""

    why: str
    code: int | None = None
    """What the gateway closed it with."""
    closed: bool = False
    """Whether the gateway closed it in due form."""
    too_large: bool = False
    """Whether a message came that is larger than one may be."""


def pause_after(failures: int, longest: float, chance: float) -> float:
    """Seconds until the next attempt, after so many in a row that led nowhere."""
    pause = min(BACKOFF_MIN * 2.0 ** min(failures, 16), longest)
    return pause / 2 + pause / 2 * chance


def final_error(loss: Loss, *, resumable: bool, waiting: bool) -> GatewayError | None:
    """The error for a loss before the first success that ends it; None where the link is to be resumed.

    A gateway that closes while nothing is asked of it has said what it had to say.
    """
    if resumable and loss.code not in _ERRORS and (waiting or not loss.closed):
        return None
    return _ERRORS.get(loss.code, Unreachable)(loss.why)


class Uplink:
    """A link to a gateway, kept up by `run`.

    Args:
        owner: who speaks over it.
        destination: called before each attempt; what it raises counts as the attempt's failure.
        settings: the rest.
    """

    def __init__(
        self, owner: UplinkHandler, destination: Callable[[], Destination], settings: ReconnectSettings
    ) -> None:
        self._owner = owner
        self._destination = destination
        self._settings = settings
        self.link = self._new_link()
        """The link as it is now; another one after it was given up."""
        # What the link is resumed by; None before there was a connection, and where there is nothing to resume.
        self._connection_id: str | None = None
        # Attempts and connections in a row that led nowhere.
        self._failures = 0
        # When the last attempt began, and set when the next one is wanted at once.
        self._attempted_at = float("-inf")
        self._wanted = trio.Event()
        self._wanted.set()
        # When the last connection was made, and lost; and how far the link was then.
        self._connected_at = 0.0
        self._lost_at = 0.0
        self._progress = (0, 0)
        # Set when there is something to connect for again; None while there always is.
        self._rest: trio.Event | None = None
        # The last attempt, and what gives up the connection; None while there is none.
        self._attempt = trio.CancelScope()
        self._lose: Callable[[Loss], None] | None = None
        # Where the last attempt went to.
        self._address = ""
        # Until the first success: since when it is tried, for how long, and what ends it; and whether nobody waits.
        self._began = 0.0
        self._patience = settings.connect_timeout
        self._trying: trio.CancelScope | None = None
        self._hurried = False

    @property
    def up(self) -> bool:
        """Whether there is a connection."""
        return self.link.stream is not None

    async def run(self) -> GatewayError:
        """Keep the link up, and return why that is not possible any more. Cancelling says goodbye, and closes.

        The goodbye is bounded in time.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_clock)
            error = await self._keep_up()
            nursery.cancel_scope.cancel()
        return error

    def wake(self) -> None:
        """Dial at once, if there is no connection."""
        if not self.up:
            self._wanted.set()

    def hurry(self) -> None:
        """Wait for the first success no longer than for a gateway that was never reached."""
        self._hurried = True
        self._set_patience(self._settings.connect_timeout)

    def rest(self, why: str) -> None:
        """Give up the link, and do without any until `begin`."""
        self._rest = trio.Event()
        self._connection_id = None
        self.link = self._new_link()
        if self._lose is not None:
            self._lose(Loss(why))

    def begin(self) -> None:
        """Go on after `rest`."""
        if self._rest is not None:
            self._rest.set()
            self._rest = None

    def _new_link(self, window: int | None = WINDOW) -> Link:
        return Link(window=window, caught_up=self._owner.changed)

    async def _keep_up(self) -> GatewayError:
        try:
            while True:
                stream = await self._reach()
                link = self.link
                loss = await self._serve(link, stream)
                if link is self.link:
                    self._take(loss)
        except GatewayError as error:
            return error

    # Connecting

    async def _reach(self) -> MessageStream:
        """Connect, for as long as it takes. Raises the `GatewayError` that ends it."""
        started = self._owner.started
        failure: GatewayError | None = None
        self._began = trio.current_time()
        with trio.CancelScope() as scope:
            if not started:
                self._trying = scope
                self._set_patience(self._settings.connect_timeout)
            while True:
                if self._rest is not None:
                    await self._rest.wait()
                await self._pause(LONGEST_PAUSE if started else LONGEST_FIRST_PAUSE)
                outcome = await self._try(started=started)
                if isinstance(outcome, MessageStream):
                    return outcome
                self._failures += 1
                log.info("no connection: %s", outcome)
                failure = outcome
        raise Unreachable(f"{failure or self._silence()} (tried for {self._patience:g} s)")

    def _set_patience(self, seconds: float) -> None:
        self._patience = seconds
        if self._trying is not None:
            self._trying.deadline = self._began + seconds

    async def _pause(self, longest: float) -> None:
        """Wait for the next attempt's time: after a pause, or when it is wanted."""
        with trio.move_on_after(pause_after(self._failures, longest, self._settings.chance())):
            await self._wanted.wait()
        await trio.sleep_until(self._attempted_at + BACKOFF_MIN)
        self._wanted = trio.Event()
        self._attempted_at = trio.current_time()

    async def _try(self, *, started: bool) -> MessageStream | GatewayError:
        """Make one attempt; returns why it failed, and raises that where it is the end."""
        try:
            target = self._destination()
        except GatewayError as error:
            if started:
                return error
            raise
        self._address = str(target.address)
        known = not started and not self._hurried and self._settings.knows(self._address)
        if known and self._patience < self._settings.known_timeout:
            self._set_patience(self._settings.known_timeout)
        resume = Resume(self._connection_id, self.link.received)
        with trio.CancelScope(deadline=trio.current_time() + ATTEMPT_TIMEOUT) as self._attempt:
            try:
                dialed = await self._settings.dial(target, self._settings.timing, resume)
            except (TooFarBehind, LinkGone) as error:
                if resume.connection_id is not None:
                    lost = trio.current_time() - self._lost_at
                    self._start_over(f"after {lost:.0f} s it can't be resumed: {error}")
                    self._wanted.set()
                return error
            except UnknownSession as error:
                if started:
                    # After a restart of the gateway, a guest's session is open again when its owner has come back.
                    self._owner.give_up(error)
                    return error
                raise
            except _REFUSALS:
                raise
            except GatewayError as error:
                if started or isinstance(error, Unreachable):
                    return error
                raise
            return await self._connect(dialed)
        return Unreachable(self._silence())

    def _silence(self) -> str:
        return explain_silence(self._address)

    async def _connect(self, dialed: Dialed) -> MessageStream | GatewayError:
        """Go on over a fresh connection; returns why that is not possible, where it is not."""
        if self._connection_id is None:
            if dialed.received is None:
                log.info("connected to %s, which doesn't resume links", self._address)
                waiting, self.link = self.link.outbox.unwritten_messages(), self._new_link(window=None)
                self.link.send(waiting)
            else:
                log.info("connected to %s, link %s", self._address, dialed.connection_id)
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
                self._start_over(f"the gateway has counted otherwise: {error}")
                return ProtocolError(f"{self._address}: the gateway has counted otherwise: {error}")
            log.info(
                "resumed after %.1f s: %d messages had come, %d are sent again and %d for the first time",
                trio.current_time() - self._lost_at,
                self.link.received,
                again,
                waited,
            )
        self._settings.reached(self._address)
        self._wanted = trio.Event()
        self._connected_at = trio.current_time()
        self._progress = self._counts()
        self._owner.changed()
        return dialed.stream

    # Connected

    async def _serve(self, link: Link, stream: MessageStream) -> Loss:
        """Use a connection until it is lost, and close it. Cancelling says goodbye before."""
        loss: Loss | None = None
        try:
            async with trio.open_nursery() as nursery:

                def lose(how: Loss) -> None:
                    nonlocal loss
                    loss = loss or how
                    if not loss.too_large:
                        # What is said while it is being closed has not left, and goes with the next one.
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
        return loss

    async def _receive(self, link: Link, stream: MessageStream) -> Loss:
        while True:
            try:
                batch = await link.receive_batch()
            except trio.EndOfChannel:
                return how_closed(stream)
            except MessageTooLarge as error:
                return Loss(str(error), too_large=True)
            except LOST as error:
                return Loss(str(error))
            self._owner.receive(batch)
            if not link.resumable:
                await self._owner.taken()

    async def _notice_silence(self, link: Link, lose: Callable[[Loss], None]) -> None:
        await link.keep_alive(self._settings.keepalive)
        lose(Loss(f"nothing was heard of the gateway for {self._settings.keepalive:g} s"))

    def _counts(self) -> tuple[int, int]:
        return self.link.received, self.link.outbox.confirmed

    def _take(self, loss: Loss) -> None:
        """See to what a loss means. Raises the `GatewayError` that it is."""
        now = trio.current_time()
        self._lost_at = now
        moved = self._counts() != self._progress or now - self._connected_at >= LONGEST_PAUSE
        if moved and loss.code != _AGENT_GONE:
            self._failures = 0
        else:
            self._failures += 1
        self._owner.changed()
        if loss.too_large:
            # It would come again.
            raise ProtocolError(loss.why)
        if not self._owner.started:
            error = final_error(loss, resumable=self.link.resumable, waiting=self._owner.waiting)
            if error is not None:
                raise error
        log.warning("lost the connection: %s", loss.why)
        if loss.code == _AGENT_GONE:
            # A new link would start it again at once, and one that ends each time would be started for ever.
            unsent, connection_id = self.link.outbox.unwritten_messages(), self._connection_id
            self.rest(loss.why)
            self._owner.lose_agent(connection_id or "", unsent, loss.why)
            return
        if not self.link.resumable or loss.code == _TOO_BIG:
            # What was too large would be sent again.
            self._start_over(loss.why)

    def _start_over(self, why: str) -> None:
        """Take a new link, since this one can't be resumed."""
        log.warning("beginning anew on a new link: %s", why)
        outbox = self.link.outbox
        # To end a turn twice is better than not at all.
        cancels = [message for message in outbox.unconfirmed_messages() if _ends_turn(message)]
        unsent = cancels + outbox.unwritten_messages()
        connection_id, self._connection_id = self._connection_id, None
        self.link = self._new_link()
        self._owner.start_over(connection_id or "", unsent, why)

    async def _watch_clock(self) -> None:
        before = self._settings.wall_clock()
        while True:
            await trio.sleep(TICK)
            now = self._settings.wall_clock()
            if now - before > TICK + SLEPT:
                self._woke_up(now - before)
            before = now

    def _woke_up(self, seconds: float) -> None:
        log.info("the machine slept, or its clock was set, by %.0f s", seconds)
        if self.up and not self.link.resumable:
            return
        self._failures = 0
        if self._lose is not None:
            self._lose(Loss("the machine slept"))
        self._attempt.cancel()
        self._wanted.set()


def _ends_turn(message: bytes) -> bool:
    envelope = read_envelope(message) or NOTHING
    return envelope.raw_id is None and envelope.method == SESSION_CANCEL


def how_closed(stream: MessageStream) -> Loss:
    """What a gateway said that has closed a connection."""
    code = stream.close_code if isinstance(stream, WebSocketStream) else None
    said = printable(stream.close_text) if isinstance(stream, WebSocketStream) else ""
    return Loss(f"the gateway closed the connection{': ' if said else ''}{said}", code, closed=True)


async def say_goodbye(link: Link, stream: MessageStream) -> None:
    """Leave for good: the gateway need not keep anything. Bounded in time."""
    link.flush()
    if link.resumable:
        link.say(goodbye())
    await stream.aclose()


async def close_at_once(stream: MessageStream) -> None:
    """Close a connection on which nobody listens any more, or is to."""
    with trio.CancelScope() as scope:
        scope.cancel()
        # Should it be heard after all: this is no goodbye, as a normal close would be.
        await stream.aclose(CloseReason.GOING_AWAY, "the connection is given up, not the link")
