"""A link to another gateway as a stream that outlives its connections, for what can't resume by itself.

The other gateway keeps the link while there is no connection, and its agent goes on. `Uplink` resumes it, and each
message arrives exactly once. The stream ends when the link does: the other gateway does not have it any more, refuses
the token, has lost its agent, or was not reached for `reconnect_timeout`.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import trio

from acp_gateway.client.dialing import Destination, Dialed, Resume, dial_link
from acp_gateway.client.reconnecting.clock_changes import watch_clock
from acp_gateway.client.uplink import Dial, ReconnectSettings, Uplink
from acp_gateway.errors import GatewayError
from acp_gateway.printable import printable
from acp_gateway.protocol.link_messages import Sent, without_marks
from acp_gateway.protocol.size_limit import TOO_LARGE, SizeLimit
from acp_gateway.protocol.text.json_text import INTERNAL_ERROR, INVALID_REQUEST, ends_of, error, read_beginning
from acp_gateway.transports.link import LOST
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.timers import Signal, TaskSpawner
from acp_gateway.transports.websocket.stream import Timing

log = logging.getLogger(__name__)

CLOSE_TIMEOUT: Final = 3.0
"""Seconds for the last messages and the goodbye, by which the other gateway forgets the link."""


INBOX_LIMIT: Final = 64 * 1024 * 1024
"""Bytes that wait to be taken beyond which the link ends: more than any window that gateways are configured with."""

PER_MESSAGE: Final = 48
"""Bytes that each waiting message counts for besides its own: Python's object and its place in a list. Several messages
of one text may be empty."""


class LinkLog(logging.LoggerAdapter[logging.Logger]):
    """Begins each line of a log with the name of a link."""

    def __init__(self, logger: logging.Logger, name: str) -> None:
        super().__init__(logger)
        self._name = name

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line."""
        self.logger.log(level, f"%s: {msg}", self._name, *args, **kwargs)


class _Receiver:
    """Takes what the uplink receives, and notes the end of the link."""

    started: Final = True
    """The other gateway was reached, so errors that may pass do not end the attempts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inbox: list[bytes] = []
        self.inbox_size = 0
        self.take_at_once: Callable[[list[bytes]], bool] = lambda _: False  # Else a batch waits in the inbox.
        self.end: str | None = None
        """Cause of the end of the link; empty if it was closed here, None before its end."""
        self.arrived_or_ended = Signal()
        """Notified when messages have arrived, and at the end."""
        self.changed_or_ended = Signal()
        """Notified when a connection was made or lost, when all was sent, and at the end: no task but the one that
        takes messages wakes up for each batch of them."""
        self.running: trio.CancelScope | None = None
        """Cancelled at the end of the link."""
        self.expects: Callable[[], bool] = lambda: False
        """Returns whether a request or a turn is open."""

    @property
    def waiting(self) -> bool:
        """True while a request or a turn is open."""
        return self.expects()

    def take(self) -> list[bytes]:
        """Return what has arrived."""
        batch, self.inbox, self.inbox_size = self.inbox, [], 0
        return batch

    def finish(self, why: str) -> None:
        """End the link, for the first reason that is given."""
        if self.end is None:
            self.end = printable(why)
            if why:
                log.warning("%s: its link has ended: %s", self.name, self.end)
        self.arrived_or_ended.notify()
        self.changed_or_ended.notify()
        if self.running is not None:
            self.running.cancel()

    # Called by the uplink

    def receive(self, batch: Sequence[Sent]) -> None:
        """Take messages without the marks of positions in sessions, which are for clients that resume them."""
        messages = [*without_marks(batch)]
        if messages and not self.inbox and self.end is None and self.take_at_once(messages):
            return
        if messages and self.inbox_size + PER_MESSAGE * len(self.inbox) > INBOX_LIMIT:
            self.finish(f"the other gateway sends on, although more than {INBOX_LIMIT} bytes wait")
            return
        self.inbox += messages
        self.inbox_size += sum(map(len, messages))
        self.arrived_or_ended.notify()

    def start_over(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """End the link, because it can't be resumed."""
        self.finish(why)

    def agent_lost(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """End the link, because the other gateway has lost its agent."""
        self.finish(why)

    def give_up(self, error: GatewayError) -> None:
        """End the link, because of an error that will not pass."""
        self.finish(str(error))

    def too_large(self, message: bytes, why: str) -> None:
        """Do nothing: the link ends, and with it the request."""

    async def drain(self) -> None:
        """Wait for nothing: what is not taken is not confirmed."""
        await trio.lowlevel.checkpoint()

    def changed(self) -> None:
        """Notice a new or lost connection, or that everything was sent."""
        self.changed_or_ended.notify()


class HeldLink(MaintainedStream):
    """A resumable link to another gateway. `run` keeps it up; nothing is sent before.

    Args:
        name: begins the lines about it in the log.
        dialed: the first connection, to which the link belongs.
        destination: returns where to connect again, with the token of that moment.
        timing: the pings of each connection.
        reconnect_timeout: seconds without a connection after which the link has ended.
        dial: connects again.
    """

    transport = "websocket"

    def __init__(
        self,
        name: str,
        dialed: Dialed,
        destination: Callable[[], Destination],
        timing: Timing,
        *,
        reconnect_timeout: float,
        dial: Dial = dial_link,
    ) -> None:
        super().__init__()
        self._reconnect_timeout = reconnect_timeout
        self._dial_again = dial
        self._first: Dialed | None = dialed
        self._received = _Receiver(name)
        settings = ReconnectSettings(
            connect_timeout=reconnect_timeout,
            timing=timing,
            dial=self._dial,
            # A session may be opened without a message, so the uplink looks each second.
            watch_clock=partial(watch_clock, opened=lambda: None),
            log=LinkLog(log, name),
        )
        self._uplink = Uplink(self._received, destination, settings)
        # Answers of this end, to what the other gateway would not receive.
        self._answers: list[bytes] = []

    async def _dial(self, destination: Destination, timing: Timing, resume: Resume) -> Dialed:
        first, self._first = self._first, None
        return first or await self._dial_again(destination, timing, resume)

    # Messages

    def offer_to(self, take: Callable[[list[bytes]], bool]) -> None:
        """Offer each batch to `take` in the task that reads, unless others wait: no task wakes up for it.

        `take` must not raise, and returns whether it has taken the batch; else that is received as ever.
        """

        def take_and_confirm(batch: list[bytes]) -> bool:
            if taken := take(batch):
                self._uplink.link.acknowledge()
            return taken

        self._received.take_at_once = take_and_confirm

    async def _receive_batch(self) -> list[bytes]:
        if self._received.inbox:
            await trio.lowlevel.checkpoint()
        # A wait is a checkpoint as well; both would be another turn of the loop for each batch.
        while not self._received.inbox:
            self._raise_end()
            await self._received.arrived_or_ended.wait()
        batch = self._received.take()
        # Confirmed when it is taken: the hub handles it before it takes more.
        self._uplink.link.acknowledge()
        return batch

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        self._raise_end()
        link, limit = self._uplink.link, self._uplink.limit
        if limit is not None and any(len(message) > limit.size for message in messages):
            messages = self._without_large(messages, limit)
        if not link.pass_on(messages):
            link.send(messages)
            # Else it may wait for long, though the other gateway is there again.
            self._uplink.wake()

    def _without_large(self, messages: Sequence[bytes], limit: SizeLimit) -> list[bytes]:
        """Return messages without those above the other gateway's limit; their requests are answered with an error."""
        sent = []
        for message in messages:
            if len(message) <= limit.size:
                sent.append(message)
                continue
            names, why = read_beginning(*ends_of(message)), f"at the agent's gateway {limit.describe(len(message))}"
            log.warning("%s: left out: %s", self._received.name, why)
            if names.raw_id is not None:
                code = INTERNAL_ERROR if names.method is None else INVALID_REQUEST
                (sent if names.method is None else self._answers).append(error(names.raw_id, code, why, TOO_LARGE))
        return sent

    def take_answers(self) -> list[bytes]:
        answers, self._answers = self._answers, []
        return answers

    @property
    def pending_bytes(self) -> int:
        link = self._uplink.link
        return link.outbox.unwritten_bytes + (0 if link.stream is None else link.stream.pending_bytes)

    @property
    def unfinished_bytes(self) -> int:
        link = self._uplink.link
        unfinished = 0 if link.stream is None else link.stream.unfinished_bytes
        return self._received.inbox_size + link.part_bytes + unfinished

    @property
    def away(self) -> bool:
        return not self._uplink.up

    def watch_while(self, expects: Callable[[], bool]) -> None:
        self._received.expects = expects

    async def drain(self, below: int = 0) -> None:
        await trio.lowlevel.checkpoint()
        while self.pending_bytes > below:
            self._raise_end()
            link = self._uplink.link
            if link.stream is not None and not link.behind:
                try:
                    await link.stream.drain(below)
                    continue
                except LOST:
                    pass  # It is noticed where the link is read, and resumed.
            await self._received.changed_or_ended.wait()

    def _raise_end(self) -> None:
        if self._received.end is not None:
            raise trio.BrokenResourceError(self._received.end) if self._received.end else trio.ClosedResourceError

    # Upkeep and ends

    async def run(self) -> None:
        if self._received.end is not None:
            return
        try:
            async with trio.open_nursery() as nursery:
                self._received.running = nursery.cancel_scope
                nursery.start_soon(self._bound_outage)
                self._received.finish(str(await self._uplink.run()))
        finally:
            self._received.running = None
            self._received.finish("")

    async def _bound_outage(self) -> None:
        """End the link after `reconnect_timeout` without a connection. One may come and go before this task runs."""
        began = trio.current_time()
        while True:
            deadline = max(began, self._uplink.lost_at) + self._reconnect_timeout
            if not self._uplink.up and trio.current_time() >= deadline:
                self._received.finish(f"there was no connection for {self._reconnect_timeout:g} s")
                return
            with trio.CancelScope(deadline=math.inf if self._uplink.up else deadline):
                await self._received.changed_or_ended.wait()

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        pass  # The connection to an agent has a task that runs it.

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        received = self._received
        received.finish("")
        try:
            with trio.move_on_after(CLOSE_TIMEOUT):
                while received.running is not None:
                    await received.changed_or_ended.wait()
                await trio.lowlevel.checkpoint()
        finally:
            first, self._first = self._first, None
            if first is not None:
                await first.stream.aclose(reason, text)
