"""The life of a hub's agent: it is started on demand, its output is relayed, and it is restarted after it has ended.

Restarts back off exponentially, from one second on, and stop for a while after `max_restarts` within ten minutes.

An agent that does not read slows down the clients that send it more, above a high-water mark. They wait without an end,
and the disconnection of one that is not read goes unnoticed, so an agent that reads nothing for `stall_timeout` is
stopped.

An agent whose output takes more than its share of the event loop's time, while clients of other agents are there, is
read more slowly: its pipe fills, and it waits.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol

import trio

from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.output import AuditEvent
from acp_gateway.core.sessions.session import Client
from acp_gateway.core.turns.cut_turns import AGENT_STOPPED
from acp_gateway.errors import AgentError
from acp_gateway.gateway.agent.process import LAST_OUTPUT_TIMEOUT, Agent
from acp_gateway.gateway.agent.startup import Startup, Written
from acp_gateway.gateway.hub.attachment import Attachment
from acp_gateway.gateway.hub.large_messages import has_large, parse_entry
from acp_gateway.printable import counted
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.text.large_messages import LARGE, Parsed
from acp_gateway.protocol.text.pairs import Entry, text_of, texts_of
from acp_gateway.transports.link import LOST
from acp_gateway.transports.streams import MessageSkipped, MessageTooLarge

log = logging.getLogger(__name__)

WINDOW: Final = 600.0
"""Seconds in which an agent may end `max_restarts` times: one that crashes once a day is worth a restart each time."""

MAX_BACKOFF: Final = 30.0
"""Maximum seconds that a request waits for the restart of an agent that keeps ending."""

AT_ONCE, LEAST_AT_ONCE = 1024, 64
"""Lines of an agent that are handled before other tasks get their turn: the most, and the fewest, which are the first.
Updates of one read are fewer than the most, and take a millisecond; as many tool calls take twenty."""

TURN: Final = 0.002
"""Seconds of the event loop after which other tasks get their turn, and the agent is charged: the number of lines that
are handled at once follows from it."""

BLANK_LINE: Final = 0.2e-6
"""Seconds of the event loop that a blank line of an agent takes."""

FIRST_PAUSE: Final = 0.25
MAX_PAUSE: Final = 4.0
"""Seconds between two attempts to reach an agent that listens: the first pause, and the longest."""

End = Literal["exited", "stopped", "given_up"]
"""Manner of an agent's end: by itself; stopped because it was not needed any more; or because it was of no use."""

NOTHING_WRITTEN: Final[Written] = MappingProxyType({})


class RunAgent(Protocol):
    """Starts an agent, passes it on as started and runs it until cancelled; raises `AgentError` if it cannot start."""

    def __call__(self, *, task_status: trio.TaskStatus[Agent]) -> Awaitable[None]:
        """Run the agent; see `agent.process.run_agent`."""


class AgentOwner(Protocol):
    """The part of a hub that its agent supervisor uses."""

    name: str
    """Name of the agent."""
    multiplexer: Multiplexer
    attachments: dict[Client, Attachment]

    @property
    def ended(self) -> bool:
        """True once the hub accepts no clients any more."""

    def deliver(self) -> None:
        """Carry out what the multiplexer has decided."""

    def receive_from_agent(self, batch: Sequence[Entry]) -> None:
        """Handle messages of the agent."""

    def receive_large(self, line: bytes, parsed: Parsed | InvalidMessage) -> None:
        """Handle a large line of the agent, which was parsed before."""

    def receive_skipped(self, skipped: MessageSkipped) -> None:
        """Handle that a message of the agent was left out, because it is too large."""

    def charge_agent(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        """Count bytes of the agent's message that has begun; return the seconds for which the agent is not read."""

    def agent_lost(self, why: str, data: dict[str, Any], written: Written, details: str | None) -> None:
        """Notify clients that wait for the agent."""

    async def wait_for_only_client(self) -> None:
        """Wait until the agent's output may be read."""


class TooManyRestarts(Exception):
    """The agent has ended too often to be restarted now.

    Attributes:
        retry_after: whole seconds after which it may be restarted.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class RestartBackoff:
    """Exponential backoff between the end of one agent and its next start. Times are seconds of a monotonic clock.

    Args:
        limit: number of unexpected ends allowed within `WINDOW`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # The times of the ends within the window, and the reason for the last one.
        self._ends: deque[float] = deque()
        self._last = ""

    def ended(self, now: float, why: str) -> None:
        """Record an unexpected end of the agent."""
        self._ends.append(now)
        self._last = why

    def next_start(self, now: float) -> float:
        """Return the time of the next start, which may be past: one second after the first end, then twice as long.

        Raises `TooManyRestarts`.
        """
        while self._ends and self._ends[0] <= now - WINDOW:
            self._ends.popleft()
        if not self._ends:
            return now
        if len(self._ends) > self.limit:
            pause = math.ceil(self._ends[0] + WINDOW - now)
            raise TooManyRestarts(
                f"{self._last}; it has ended {counted(len(self._ends), 'time')} within {WINDOW / 60:g} min "
                f"(max_restarts is {self.limit}) and may be started again in {pause} s",
                pause,
            )
        return self._ends[-1] + min(2.0 ** (len(self._ends) - 1), MAX_BACKOFF)


class _Start(NamedTuple):
    """The start of an agent, from the moment when it is wanted."""

    scope: trio.CancelScope
    """Cancelled to give it up. A process that is being started is stopped then."""
    over: trio.Event


class AgentSupervisor:
    """Starts, relays, stops and restarts the agent of a hub.

    Args:
        owner: the hub.
        run_agent: starts the agent.
        audit: records audit events.
        high_water: bytes pending for the agent above which clients are slowed down.
        stall_timeout: seconds in which the agent has to read something while clients are slowed down.
        max_restarts: see `RestartBackoff`.
        initialize_timeout: see `Startup`.
        clock: returns the time in seconds, for measuring what output costs.
    """

    def __init__(
        self,
        owner: AgentOwner,
        *,
        run_agent: RunAgent,
        audit: Callable[[AuditEvent], None],
        high_water: int,
        stall_timeout: float,
        max_restarts: int,
        initialize_timeout: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.agent: Agent | None = None
        """The running agent; None while there is none."""
        self.changed = trio.lowlevel.ParkingLot()
        """Unparked when a client attaches, catches up or leaves, or when a stopped agent is needed."""
        self._owner = owner
        self._run_agent = run_agent
        self._audit = audit
        self._high_water = high_water
        self._stall_timeout = stall_timeout
        self._clock = clock
        # Lines that are handled at once, and the seconds that output has taken since it was charged for.
        self._at_once = LEAST_AT_ONCE
        self._spent = 0.0
        # The last agent that was started, until its end has been recorded, and the reason for that end.
        self._unrecorded: Agent | None = None
        self._end: End = "stopped"
        # Lines of the agent that were read and not relayed yet.
        self._read: Sequence[Entry] = ()
        self.lacks_end = False
        """True if the agent was stopped with its hub before its last messages were read."""
        # Messages for an agent that is not started yet.
        self._queued: list[bytes] = []
        self.answers: list[Entry] = []
        """Messages that the stream itself has answered to what was sent, for the multiplexer."""
        # Bytes sent to all agents so far.
        self._sent = 0
        # Those that were read at the last look, and since when no more are; None while clients need not wait.
        self._stalled: tuple[int, float] | None = None
        # Shields the agent when `run` is cancelled: clients' last messages must reach it before it is stopped.
        self._agent_life = trio.CancelScope(shield=True)
        # True while the agent's output is awaited, False while a client has to catch up first.
        self._awaits_output = False
        # Cancelled to stop an agent that is not needed any more.
        self._needed = trio.CancelScope()
        self._starting: _Start | None = None
        self._backoff = RestartBackoff(max_restarts)
        # Last output of the agent that ended last.
        self._last_written = NOTHING_WRITTEN
        self._startup = Startup(initialize_timeout, self.give_up)

    def set_limits(self, max_restarts: int, initialize_timeout: float) -> None:
        """Use other limits, from the next start of the agent on."""
        self._backoff.limit = max_restarts
        self._startup.timeout = initialize_timeout

    # Input of the agent

    def send(self, messages: list[bytes]) -> None:
        """Send messages to the agent, or keep them until it is started."""
        if self.agent is None:
            self._queued += messages
            if self._owner.multiplexer.wants_agent:
                self.changed.unpark_all()
        elif self._queued or messages:
            messages, self._queued = self._queued + messages, []
            try:
                self.agent.messages.send_nowait(messages)
                self.answers += self.agent.messages.take_answers()
                size = sum(map(len, messages))
                self._sent += size
                self._owner.multiplexer.traffic.bytes_to_agents += size
            except LOST:
                pass
        self._startup.watch(self.agent if self._owner.multiplexer.initializing else None)

    @property
    def pending_bytes(self) -> int:
        """Bytes that the agent has not read yet."""
        early = sum(map(len, self._queued))
        return early + (0 if self.agent is None else self.agent.messages.stream.pending_bytes)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the agent's message that has begun."""
        return 0 if self.agent is None else self.agent.messages.stream.unfinished_bytes

    @property
    def congested(self) -> bool:
        """True while more than the high-water mark is pending for the agent."""
        return self.agent is not None and self.agent.messages.stream.pending_bytes > self._high_water

    async def wait_uncongested(self) -> None:
        """Wait until the agent has read down to the high-water mark, or is lost."""
        if self.agent is not None:
            try:
                await self.agent.messages.stream.drain(self._high_water)
            except LOST:
                pass

    def stop_if_stalled(self, now: float) -> None:
        """Stop an agent that has read nothing for `stall_timeout` although clients have to wait for it.

        To be called from time to time. The time without a connection does not count: `reconnect_timeout` bounds that.
        """
        agent = self.agent
        if agent is None or not self.congested or agent.messages.stream.away:
            self._stalled = None
            return
        pending = agent.messages.stream.pending_bytes
        taken = self._sent - pending
        if self._stalled is None or taken > self._stalled[0]:
            self._stalled = taken, now
        elif now - self._stalled[1] >= self._stall_timeout:
            why = f"the agent {agent.name} has read nothing for {self._stall_timeout:g} s, and {pending} bytes wait"
            self.give_up(agent, why, {"reason": "agent_stalled", "agent": agent.name})
            self._stalled = None

    # Start and end

    @property
    def has_agent(self) -> bool:
        """True while the agent runs or is being started, maybe with a configuration that has changed since."""
        return self.agent is not None or self._starting is not None

    async def watch_startup(self) -> None:
        """Stop agents that do not answer `initialize`, until cancelled."""
        await self._startup.run()

    async def run(self, agents: trio.Nursery) -> None:
        """Start the agent in the nursery each time it is needed, and relay its output."""
        while not self._owner.ended:
            await self._wait_until_wanted()
            agent: Agent | None = None
            self._starting = start = _Start(trio.CancelScope(), trio.Event())
            try:
                with start.scope:
                    if await self._back_off():
                        agent = await self._start(agents, start)
            finally:
                self._starting = None
                start.over.set()
            if agent is not None:
                await self._supervise(agent)

    async def _wait_until_wanted(self) -> None:
        """Wait until the agent is needed."""
        while not self._owner.multiplexer.wants_agent:
            await self.changed.park()

    async def _back_off(self) -> bool:
        """Wait before a restart; return False if the agent is not to be started, because it ended too often."""
        try:
            start = self._backoff.next_start(trio.current_time())
        except TooManyRestarts as error:
            data = {"reason": "agent_ended", "agent": self._owner.name, "retryAfter": error.retry_after}
            self._handle_loss(str(error), data, self._last_written)
            return False
        await trio.sleep_until(start)
        if not self._owner.attachments:
            # The clients that needed it have left since.
            self._owner.multiplexer.agent_stopped()
            self._queued.clear()
        return bool(self._owner.attachments)

    async def _start(self, agents: trio.Nursery, start: _Start) -> Agent | None:
        """Start the agent; if that fails or is given up, return None and notify the clients that wait for it."""
        name = self._owner.name
        try:
            agent = await self._start_with_attempts(agents)
        except AgentError as error:
            log.error("agent %s: %s", name, error)
            self._audit(AuditEvent("agent_not_started", None, {"agent": name}))
            # The error quotes the configuration, which is only for clients that may see it.
            why = f"the agent {name} cannot be started"
            self._handle_loss(why, {"reason": "agent_not_started"}, details=str(error))
            return None
        if start.scope.cancel_called:
            self.stop()
            with trio.CancelScope(shield=True):
                await agent.ended.wait()
            return None
        self.agent = self._unrecorded = agent
        self._read = ()
        agent.relay_rest = partial(self._relay_rest, agent)
        agent.messages.stream.watch_while(lambda: self._owner.multiplexer.busy)
        agent.messages.stream.meter.charge = self._owner.charge_agent
        self._end, self._needed = "stopped", trio.CancelScope()
        self._audit(AuditEvent("agent_started", None, {"agent": name} | _place(agent)))
        self._owner.deliver()
        return agent

    async def _start_with_attempts(self, agents: trio.Nursery) -> Agent:
        """Start the agent; try again, with exponential backoff, while one that listens may be reached later."""
        began, pause = trio.current_time(), FIRST_PAUSE
        while True:
            try:
                # Shielded, because Trio would leave a half-started task in this nursery, and wait for it forever.
                with trio.CancelScope(shield=True):
                    self._agent_life = trio.CancelScope(shield=True)
                    agent: Agent = await agents.start(self._keep_running, self._agent_life)
                    return agent
            except AgentError as error:
                if trio.current_time() + pause > began + error.retry_for or not self._owner.attachments:
                    raise
                log.info("%s; the next attempt follows in %g s", error, pause)
            await trio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    async def _keep_running(self, life: trio.CancelScope, *, task_status: trio.TaskStatus[Agent]) -> None:
        with life:
            await self._run_agent(task_status=task_status)

    async def _supervise(self, agent: Agent) -> None:
        """Relay the agent's output until it ends or is not needed; return when its process has ended."""
        too_large: MessageTooLarge | None = None
        with self._needed:
            too_large = await self._relay_output(agent)
        if too_large is None and self.agent is agent:
            self._end = "exited"
        if too_large is not None:
            why = f"the agent {agent.name} was stopped: {too_large}"
            self._record_loss(agent, why, {"reason": "message_too_large", "agent": agent.name})
        # An agent without output is useless, even while its process runs.
        self.stop()
        await agent.ended.wait()
        self.record_end()
        why, data = agent.describe_end()
        self._record_loss(agent, why, data, {"stderr": agent.last_lines()}, why + agent.describe_refusal())

    async def _relay_output(self, agent: Agent) -> MessageTooLarge | None:
        """Relay the agent's output until its end, or until an unreadable message, which is returned."""
        too_large = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._bound_last_output, agent, nursery.cancel_scope)
            try:
                await self._relay_to_end(agent)
            except MessageTooLarge as error:
                too_large = error
            except LOST:
                pass
            nursery.cancel_scope.cancel()
        return too_large

    async def _relay_to_end(self, agent: Agent) -> None:
        """Relay the agent's output until its end, or until it is given up. Raises what the stream raises.

        When cancelled, what was read and not relayed stays for the next call.
        """
        await self._relay_read(agent)
        while self.agent is agent:
            self._awaits_output = True
            try:
                self._read = await agent.messages.receive_batch()
            except MessageSkipped as skipped:
                self._awaits_output = False
                self._owner.receive_skipped(skipped)
                continue
            except trio.EndOfChannel:
                return
            self._awaits_output = False
            self._spent += agent.messages.stream.meter.take()[1] * BLANK_LINE
            await self._relay_read(agent)

    async def _relay_read(self, agent: Agent) -> None:
        """Relay lines that were read of the agent until it is given up: later ones would count as its successor's."""
        is_mixed = has_large(self._read)
        while self._read and self.agent is agent:
            lines = self._read
            count = min(len(lines), self._at_once)
            if is_mixed:
                count = sum(1 for _ in takewhile(lambda line: len(line) <= LARGE, lines[:count]))
            if count:
                self._read = lines[count:]
                part = lines if count == len(lines) else lines[:count]
                began = self._clock()
                self._startup.receive_output(texts_of(part))
                self._owner.receive_from_agent(part)
                took = self._clock() - began
                self._spent += took
                if took > TURN:
                    self._at_once = max(count // 2, LEAST_AT_ONCE)
                elif took < TURN / 3 and count == self._at_once:
                    self._at_once = min(2 * count, AT_ONCE)
            else:
                parsed = await parse_entry(lines[0], self._spend)
                self._read = lines[1:]
                if self.agent is agent:
                    began = self._clock()
                    self._owner.receive_large(text_of(lines[0]), parsed)
                    self._spend(self._clock() - began)
            await self._owner.wait_for_only_client()
            if self._spent >= TURN:
                await self._pay()
            elif self._read:
                await trio.lowlevel.checkpoint()

    def _spend(self, seconds: float) -> None:
        self._spent += seconds

    async def _pay(self) -> None:
        """Charge for the time that output has taken, and let other tasks run for as long as the agent is not read."""
        spent, self._spent = self._spent, 0.0
        pause = self._owner.charge_agent(seconds=spent)
        # What a hub that ends still reads is bounded by other times.
        await trio.sleep(0.0 if self._owner.ended else pause)

    async def _relay_rest(self, agent: Agent) -> None:
        """Relay what an agent still writes while its hub stops it: the history has it, and clients that return."""
        if self.agent is agent and self._owner.ended:
            self.lacks_end = True
            try:
                await self._relay_to_end(agent)
            except (MessageTooLarge, *LOST) as error:
                log.warning("agent %s: its last messages are lost: %s", agent.name, error)
            else:
                self.lacks_end = False

    async def _bound_last_output(self, agent: Agent, reading: trio.CancelScope) -> None:
        """Stop reading a while after the agent has ended: an orphan of it may keep the pipe open forever."""
        await agent.ended.wait()
        while True:
            await trio.sleep(LAST_OUTPUT_TIMEOUT)
            if self._awaits_output:
                reading.cancel()
                return

    def stop(self) -> None:
        """Stop the process of the agent."""
        self._agent_life.cancel()

    def release(self) -> None:
        """Stop an agent that is not needed any more."""
        self.agent = None
        self._needed.cancel()

    def give_up(self, agent: Agent, why: str, data: dict[str, Any], written: Written = NOTHING_WRITTEN) -> None:
        """Stop a running agent that is of no use; it counts as ended from now on."""
        log.warning("%s", why)
        self._record_loss(agent, why, data, written)
        self._needed.cancel()

    def end(self) -> trio.Event | None:
        """Stop the agent, whatever it does, or give up its start, as the operator of the gateway asks; return the event
        of its end, None if it neither runs nor starts."""
        agent, start, name = self.agent, self._starting, self._owner.name
        if agent is None and start is None:
            return None
        why = f"the agent {name} was stopped by the operator of the gateway"
        log.warning("%s", why)
        self._handle_loss(why, {"reason": AGENT_STOPPED, "agent": name})
        if agent is not None:
            self._needed.cancel()
            return agent.ended
        assert start is not None, "it starts"
        start.scope.cancel()
        return start.over

    def stop_stalled(self, why: str) -> None:
        """Stop an agent that does not read, and refuse the requests that wait for it."""
        agent, data = self.agent, {"reason": "agent_stalled", "agent": self._owner.name}
        log.warning("%s: %s", self._owner.name, why)
        if agent is not None:
            self._record_loss(agent, why, data)
            self._needed.cancel()
        else:
            # It is not started yet.
            self._handle_loss(why, data)

    def record_end(self) -> None:
        """Audit the end of the agent, once."""
        agent, self._unrecorded = self._unrecorded, None
        if agent is not None and agent.ended.is_set():
            _, data = agent.describe_end()
            ended = {name: data.get(name) for name in ("exitCode", "signal")} | {"how": self._end}
            self._audit(AuditEvent("agent_ended", None, {"agent": self._owner.name} | _place(agent) | ended))

    def _record_loss(
        self,
        agent: Agent,
        why: str,
        data: dict[str, Any],
        written: Written = NOTHING_WRITTEN,
        details: str | None = None,
    ) -> None:
        """Handle the end of an agent, unless it is known already or was intended."""
        if self.agent is agent:
            # Where its end is not recorded yet: the process still runs.
            self._end = "given_up"
            self._backoff.ended(trio.current_time(), why)
            self._last_written = written
            self._handle_loss(why, data, written, details)

    def _handle_loss(
        self,
        why: str,
        data: dict[str, Any],
        written: Written = NOTHING_WRITTEN,
        details: str | None = None,
    ) -> None:
        self._queued.clear()
        self.answers.clear()
        self.agent = None
        self._owner.agent_lost(why, data, written, details)


def _place(agent: Agent) -> dict[str, Any]:
    """Return what the audit has of an agent's process, or of its connection."""
    if agent.url is not None:
        return {"url": agent.url}
    return {"pid": agent.pid} | ({} if agent.fence is None else {"fence": agent.fence.by})
