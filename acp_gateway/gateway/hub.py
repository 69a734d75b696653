"""The meeting place: one agent, the clients it works for, and the pumps between them.

Pumps move batches. What a batch means is decided in `protocol.multiplexer`, and `_deliver` carries out what was
decided, without waiting and in one go: between something happening and its consequences no other task gets a turn, so
there is no lock.

Nobody waits for a slow client: what it does not take waits in its seat (`attachments`), within a limit. There is one
exception. A client that is alone with the agent slows it down instead of being detached, since nobody else is delayed
by that. An agent that does not read slows down those who send it more, after a high-water mark: what a client that can
come back has sent is not confirmed to it, others are not read. Of the latter nobody would notice the end then, so the
agent is stopped when it has read nothing for too long.

A client whose link can be resumed is *away* when its connection is lost: the core keeps its place, what it misses waits
for it within a limit, and when it has been away for too long it is gone.

The agent is started when there is something for it. If it ends while clients share it, whoever waits is told, and it is
started again with the next request, not too often. When nothing is open and nobody has said anything for long, it is
stopped.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any, Final, Protocol

import trio

from acp_gateway.core.journal import Journal
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.output import AuditEvent, HookEvent
from acp_gateway.core.sessions import AgentHandle, Client, DirectoryCheck, DirectoryCheckResult, Phase, Session
from acp_gateway.errors import AgentError
from acp_gateway.gateway.agent.process import LAST_WORDS, Agent
from acp_gateway.gateway.agent.startup import Startup, Written
from acp_gateway.gateway.attachment import BLANK, BUG, EXPIRED, STOPPING, TOO_SLOW, Attachment, Connection, Disconnect
from acp_gateway.gateway.events.recording import Tape
from acp_gateway.gateway.restarts import Restarts, TooOften
from acp_gateway.protocol import jsonrpc
from acp_gateway.transports.link import LOST, WINDOW, Miscounted, Overrun
from acp_gateway.transports.streams import (
    Charge,
    CloseReason,
    Flooded,
    MessageStream,
    MessageTooLarge,
    Unfinished,
    free,
)
from acp_gateway.transports.timers import TaskSpawner, TimerQueue

log = logging.getLogger(__name__)

NOTES_AS_WARNINGS: Final = 20
"""Dropped or refused messages of one agent that are warned of, the rest is for DEBUG: agents print banners."""

AT_ONCE: Final = 32
"""Messages of one client that are seen to before others get their turn: what one read brings may be thousands."""

TURN: Final = 0.002
"""Seconds after which others get their turn, however few messages of one client were seen to: some are dear."""

TICK: Final = 10.0
"""Seconds between two looks at what has become too old, or a quarter of the shortest time where that is less."""

STRANGER_GRACE: Final = 60.0
"""Seconds that a client may be away that has no session and asks for nothing: it has nothing to come back for, and
begins anew unnoticed. It may not even know that it has a link, if what was lost was the answer to its first words."""

_LEFT: Final = Disconnect(CloseReason.NORMAL, "")


class RunAgent(Protocol):
    """Starts an agent, hands it over and sees to it until cancelled; raises `AgentError` where it can't be started."""

    def __call__(self, *, task_status: trio.TaskStatus[Agent]) -> Awaitable[None]:
        """See `agent.run_agent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much and how long, as the configuration has it."""

    write_high_water: int
    """Bytes pending for a peer above which its stream gets no more, or those who send it more are not read."""
    outbox_limit: int
    """Bytes that may wait for one client."""
    stall_timeout: float
    """Seconds that the agent may take nothing while clients are not read because of it."""
    idle_timeout: float
    """Seconds without anything said or open after which the agent is stopped."""
    max_restarts: int
    """As `restarts` has it."""
    initialize_timeout: float
    """As `startup` has it."""
    permission_timeout: float
    """As the core has it; here it says how often to look at the clock."""
    window: int
    """Bytes on their way over a link that resumes, and not confirmed."""
    patience: float
    """Seconds without a word from a client that can come back after which its connection counts as lost."""
    away_limit: int
    """Bytes that may wait for one client that is away."""
    away_grace: float
    """Seconds that a client may be away."""
    away_grace_idle: float
    """The same where it has an agent of its own, and nothing is open there."""
    receive_window: int = WINDOW
    """Bytes that may come over a link that resumes and are not passed on: what clients take for their window."""


class Hub:
    """An agent and its clients.

    Args:
        name: the agent's, for the log.
        shared: whether the agent outlives its clients, and is started again when it has ended.
        run_agent: starts the agent, when it comes to that.
        multiplexer: decides.
        stop_home: stops the agent of another hub that nobody uses; `sessions_freed` says when that is done.
        grown: told of bytes that were kept, so that somebody can look at all hubs together.
        notify: told of what a person may want to hear of who is not looking.
        recall: has the journal of a session read; `journal_loaded` says when that is done.
        survey: has directories looked at; `directories_checked` says when that is done.
        audit: told of what somebody may want to look up later.
        charge: what charges a client for what it sends, as `Attachment` has it.
        clock: tells the time in seconds, for measuring how long messages take.
    """

    def __init__(
        self,
        name: str,
        *,
        shared: bool,
        run_agent: RunAgent,
        multiplexer: Multiplexer,
        limits: Limits,
        stop_home: Callable[[AgentHandle], None] = lambda _: None,
        grown: Callable[[int], None] = lambda _: None,
        notify: Callable[[HookEvent], None] = lambda _: None,
        load_journal: Callable[["Hub", Session], None] = lambda hub, session: hub.journal_loaded(session, None),
        directory_check: Callable[["Hub", DirectoryCheck], None] = lambda hub, directory_check: hub.directories_checked(
            directory_check, DirectoryCheckResult()
        ),
        audit: Callable[[AuditEvent], None] = lambda _: None,
        charge: Callable[[Client], Charge] = lambda _: free,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self.multiplexer = multiplexer
        self.attachments: dict[Client, Attachment] = {}
        self._shared = shared
        self._run_agent = run_agent
        self._limits = limits
        self._stop_home = stop_home
        self._grown = grown
        self._notify = notify
        self._load_journal = load_journal
        self._directory_check = directory_check
        self._audit = audit
        self._charge = charge
        self._clock = clock
        self._agent: Agent | None = None
        # The last one that was started, until its end was written down.
        self._unended: Agent | None = None
        # What is decided for an agent that is not there yet.
        self._early: list[bytes] = []
        # Bytes that all agents together were given.
        self._given = 0
        # Keeps the agent from whoever cancels `run`: it must hear of its clients' end before its own begins.
        self._agent_life = trio.CancelScope(shield=True)
        # Whether the agent's output is waited for, and not a client that is to take some.
        self._awaits_agent = False
        # Cancelled to have the agent stopped because nobody needs it.
        self._needed = trio.CancelScope()
        self._restarts = Restarts(limits.max_restarts)
        # What the agent that ended last had written.
        self._last_written: Written = MappingProxyType({})
        self._startup = Startup(limits.initialize_timeout, self._give_up_agent)
        # When somebody last said anything.
        self._last_said = trio.current_time()
        # How many notes of the multiplexer have been logged.
        self._notes = 0
        self._changed = trio.lowlevel.ParkingLot()
        # What is due for its clients.
        self._timekeeper = TimerQueue()
        self._over = trio.Event()

    @property
    def over(self) -> bool:
        """Whether it takes no clients any more."""
        return self._over.is_set()

    def end(self) -> None:
        """Have `run` end, which closes the connections of those who are still there."""
        self._over.set()

    # A client

    async def serve(self, stream: MessageStream, client: Client, tape: Tape = BLANK) -> Disconnect:
        """Relay for a client until it is gone; then close its stream, and return why. `run` must be running.

        What is said is written down on the tape.

        A client that counts what it receives may come back after its connection was lost: see `Attachment.connect`.

        Cancelled, it says goodbye to the client and closes at once, bounded by the stream's own times.
        """
        window = self._limits.window if client.counts else None
        attachment = Attachment(
            client,
            high_water=self._limits.write_high_water,
            window=window,
            receive_window=self._limits.receive_window,
            progressed=self._wake,
            charge=self._charge(client),
            grown=self._grown,
            tape=tape,
        )
        attachment.connect(stream)
        self.attachments[client] = attachment
        self.multiplexer.attach(client)
        self._wake()
        try:
            while await self._serve_connection(attachment) and await attachment.returns():
                self._take_back(attachment)
            attachment.disconnect = attachment.disconnect or _LEFT
        except Exception:
            attachment.disconnect = attachment.disconnect or BUG
            raise
        finally:
            disconnect = await self._say_goodbye(attachment)
        return disconnect

    async def _serve_connection(self, attachment: Attachment) -> bool:
        """Relay over the connection that a client has now; whether it may come back over another one."""
        connection, left = attachment.connection, False
        assert connection is not None
        connection.served = True
        try:
            async with trio.open_nursery() as nursery:
                try:
                    self._attend(attachment, connection, TaskSpawner(nursery))
                    left = await self._pump_client(attachment)
                finally:
                    attachment.unhandled = 0
                    connection.leave_alone()
        finally:
            # However this ends, a goodbye is said over the newest connection, and whoever waits for this one goes on.
            if attachment.connection is not connection:
                await connection.abort()
        if left or attachment.ended:
            return False
        # Nothing more is to be said over it, and it may be dead: a polite end would take its time.
        await connection.abort()
        # A newer one may be there by now; or have come and gone already.
        if attachment.away_since is None and (attachment.connection is connection or attachment.link.stream is None):
            attachment.lose(trio.current_time())
            self.multiplexer.pass_time(trio.current_time())
            self.multiplexer.client_away(attachment.client)
            self._deliver()
            log.info("%s: away, and kept for its return", attachment.client.name)
        return True

    def _attend(self, attachment: Attachment, connection: Connection, helpers: TaskSpawner) -> None:
        """Have helpers do all there is to do for a connection but read."""
        attachment.attend(helpers)
        self._timekeeper.keep(connection.stream.beat, helpers)
        if attachment.link.resumable:
            self._timekeeper.keep(partial(self._watch_link, attachment, connection), helpers)
            # What came over an earlier connection may have to be settled before more is read.
            self._settle(attachment)
        if attachment.disconnect is not None:
            self._bound_farewell(attachment)

    def _take_back(self, attachment: Attachment) -> None:
        """A client has a connection again."""
        since, attachment.away_since = attachment.away_since, None
        away = 0.0 if since is None else trio.current_time() - since
        log.info(
            "%s: back after %.1f s; %d messages were not confirmed",
            attachment.client.name,
            away,
            len(attachment.outbox),
        )
        self.multiplexer.client_back(attachment.client)
        self._deliver()
        # It may not be the only one any more that the agent waits for.
        self._wake()

    async def _say_goodbye(self, attachment: Attachment) -> Disconnect:
        disconnect = attachment.disconnect or STOPPING
        # What it has open is still answered, whatever else was left out.
        attachment.discarding = False
        try:
            if disconnect.word is None or attachment.link.resumable:
                # One that can come back finds out by itself what has become of what it asked.
                self.multiplexer.client_gone(attachment.client)
            else:
                self.multiplexer.dismiss(attachment.client, disconnect.text, {"reason": disconnect.word})
            self._deliver()
            attachment.link.flush()
        finally:
            del self.attachments[attachment.client]
            self._wake()
            # Guests don't keep an agent that is somebody's own.
            if not self._shared and all(attachment.client.viewer.guest for attachment in self.attachments.values()):
                self.end()
            assert attachment.connection is not None
            with trio.CancelScope(shield=True):
                await attachment.connection.stream.aclose(disconnect.reason, disconnect.text)
            attachment.connection.end()
        return disconnect

    async def _pump_client(self, attachment: Attachment) -> bool:
        """Client to agent, until the connection is over; whether the client has left for good."""
        client, resumable = attachment.client, attachment.link.resumable
        assert attachment.connection is not None
        stream = attachment.connection.stream
        try:
            while True:
                batch = await attachment.link.receive_batch()
                size = attachment.unhandled = sum(map(len, batch))
                attachment.tape.write("from_client", batch)
                if not resumable:
                    await self._hold_back(attachment, size)
                handled, surcharge, seconds = 0, 0, 0.0
                while handled < len(batch):
                    if handled:
                        # What has come counts, whatever becomes of the connection: others get their turn, no more.
                        await trio.lowlevel.cancel_shielded_checkpoint()
                    began = self._clock()
                    handled = self._take(attachment, batch, handled, began + TURN)
                    seconds += self._clock() - began
                    surcharge += self.multiplexer.take_surcharge()
                    if handled < 0:
                        return True  # It was cut off: the rest of what it asks is nobody's any more.
                attachment.unhandled = 0
                self._grown(size)
                if resumable:
                    self._settle(attachment)
                count = len(batch) + surcharge
                # It may be large, and what comes next may be long in coming.
                del batch
                uncharged, frames = stream.take_uncharged()
                pause = attachment.charge(count, uncharged, seconds, frames)
                if pause:
                    await trio.sleep(pause)
        except trio.EndOfChannel:
            log.debug("%s: the client has closed the connection", client.name)
            return attachment.link.left
        except MessageTooLarge as error:
            log.warning("%s: closed: %s", client.name, error)
            attachment.disconnect = attachment.disconnect or Disconnect(
                CloseReason.TOO_LARGE, str(error), "message_too_large"
            )
            attachment.send([jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, str(error))])
            return True
        except (Miscounted, Overrun) as error:
            log.warning("%s: closed: %s", client.name, error)
            attachment.disconnect = attachment.disconnect or Disconnect(CloseReason.POLICY, str(error), "miscounted")
            return True
        except Flooded as error:
            log.warning("%s: closed: %s", client.name, error)
            attachment.disconnect = attachment.disconnect or Disconnect(CloseReason.POLICY, str(error), "flooded")
            return True
        except Unfinished as error:
            # A client that can come back may do better over another connection.
            log.warning("%s: %s: %s", client.name, "lost" if resumable else "closed", error)
            if not resumable:
                attachment.disconnect = attachment.disconnect or Disconnect(
                    CloseReason.POLICY, str(error), "unfinished"
                )
            return attachment.link.left
        except trio.BrokenResourceError as error:
            log.info("%s: %s", client.name, error)
            return attachment.link.left

    def _take(self, attachment: Attachment, messages: Sequence[bytes], first: int, until: float) -> int:
        """Handle messages of a client from the first one on, but not for long; return the index of the next.

        Returns -1 where the client was cut off because of them.
        """
        self._note_time()
        client, at = attachment.client, first
        for at in range(first, min(first + AT_ONCE, len(messages))):
            self.multiplexer.receive_from_client(client, messages[at])
            if self.multiplexer.has_replay:
                self._deliver()
                if attachment.ended:
                    return -1
            if self._clock() >= until or self.multiplexer.surcharge:
                break
        self._deliver()
        return at + 1

    def _watch_link(self, attachment: Attachment, connection: Connection, now: float) -> float:
        """Confirm what has come, and give up a connection over which nothing comes any more; when to look again."""
        due = attachment.link.beat(now, self._limits.patience)
        if due is None:
            log.info(
                "%s: the connection was lost: nothing was heard for %g s", attachment.client.name, self._limits.patience
            )
            connection.give_up()
            return inf
        return due

    def _settle(self, attachment: Attachment) -> None:
        """Confirm to a client that can come back what it has sent, now or when the agent has taken enough of it."""
        if self._agent is None or self._agent.messages.pending_bytes <= self._limits.write_high_water:
            attachment.link.settle()
        else:
            attachment.call_helper(self._settle_later, attachment)

    async def _settle_later(self, attachment: Attachment) -> None:
        agent = self._agent
        try:
            if agent is not None:
                await agent.messages.drain(self._limits.write_high_water)
        except LOST:
            pass
        attachment.link.settle()

    async def _hold_back(self, attachment: Attachment, size: int) -> None:
        """Wait with what a client has sent, so many bytes, while too much is pending for the agent already.

        Not before a high-water mark more was passed on: what comes right behind a big prompt may be its cancellation,
        or an answer, or the end of the client, which nobody would notice while the agent takes its time. For that
        reason the wait is bounded, too: an agent that has taken nothing for `stall_timeout` is stopped.
        """
        high_water = self._limits.write_high_water
        agent = self._agent
        if agent is None or agent.messages.pending_bytes <= high_water:
            attachment.ahead = 0
            return
        attachment.ahead += size
        if attachment.ahead <= high_water:
            return
        attachment.ahead = 0
        while self._agent is agent:
            taken = self._given - agent.messages.pending_bytes
            with trio.move_on_after(self._limits.stall_timeout):
                try:
                    await agent.messages.drain(high_water)
                except LOST:
                    pass
                return
            pending = agent.messages.pending_bytes
            if self._agent is agent and self._given - pending <= taken:
                timeout = self._limits.stall_timeout
                why = f"the agent {agent.name} has read nothing for {timeout:g} s, and {pending} bytes wait"
                self._give_up_agent(agent, why, {"reason": "agent_stalled", "agent": agent.name})

    def sessions_freed(self) -> None:
        """Another hub has ended: what waited for its sessions goes on."""
        self.multiplexer.sessions_freed()
        self._deliver()

    def journal_loaded(self, session: Session, journal: Journal | None) -> None:
        """The journal of a session was read, None where there is none: what waited for that goes on."""
        self.multiplexer.journal_loaded(session, journal)
        self._deliver()

    def directories_checked(self, directory_check: DirectoryCheck, findings: DirectoryCheckResult) -> None:
        """Somebody has looked at the directories of a request: it goes on."""
        self.multiplexer.directories_checked(directory_check, findings)
        self._deliver()

    # The agent

    async def run(self) -> None:
        """See to the agent, until nobody needs it any more; then stop it and close the connections that are left.

        Cancelled, it does the same at once, bounded by the agent's own times.
        """
        try:
            async with trio.open_nursery() as agents:
                disconnect = STOPPING
                try:
                    async with trio.open_nursery() as tasks:
                        tasks.start_soon(self._watch_time)
                        tasks.start_soon(self._timekeeper.run)
                        tasks.start_soon(self._startup.run)
                        tasks.start_soon(self._keep_agent, agents)
                        await self._over.wait()
                        tasks.cancel_scope.cancel()
                    disconnect = Disconnect(
                        CloseReason.AGENT_GONE, f"the agent {self.name} was stopped", "agent_stopped"
                    )
                except Exception:
                    disconnect = BUG
                    raise
                finally:
                    # A bug where the agent is run shows here as the cancellation that it causes.
                    self._close_all(BUG if agents.cancel_scope.cancel_called else disconnect)
        finally:
            self._note_end()
            self.multiplexer.retire()

    def _close_all(self, disconnect: Disconnect) -> None:
        """Close the connections and stop the agent, which hears of its clients' end first."""
        self._over.set()
        for attachment in self.attachments.values():
            attachment.close(disconnect)
        try:
            self.multiplexer.end_turns()
            self._deliver()
        finally:
            self._agent_life.cancel()

    async def _keep_agent(self, agents: trio.Nursery) -> None:
        """Start the agent as often as there is something for it."""
        while not self._over.is_set():
            while not self.multiplexer.wants_agent:
                await self._changed.park()
            if not await self._back_off():
                continue
            agent = await self._start(agents)
            if agent is not None:
                await self._see_to(agent)

    async def _back_off(self) -> bool:
        """Wait before an agent that has ended is started again. False where that happened too often: all are told."""
        try:
            start = self._restarts.next_start(trio.current_time())
        except TooOften as error:
            data = {"reason": "agent_ended", "agent": self.name, "retryAfter": error.retry_after}
            self._agent_lost(str(error), data, self._last_written)
            return False
        await trio.sleep_until(start)
        if not self.attachments:
            # Whoever wanted it has left meanwhile.
            self.multiplexer.agent_stopped()
            self._early.clear()
        return bool(self.attachments)

    async def _start(self, agents: trio.Nursery) -> Agent | None:
        """Start the agent. Where it can't be started, whoever waits for it is told."""
        try:
            # A start is not cancelled half-way: Trio leaves the task with whoever waits for its start then, for ever.
            with trio.CancelScope(shield=True):
                self._agent_life = trio.CancelScope(shield=True)
                agent: Agent = await agents.start(self._hold_agent, self._agent_life)
        except AgentError as error:
            log.error("agent %s: %s", self.name, error)
            # The configuration, which the error quotes, is none of the others' business.
            why = f"the agent {self.name} cannot be started"
            self._agent_lost(why, {"reason": "agent_not_started"}, details=str(error))
            return None
        self._agent = self._unended = agent
        self._needed = trio.CancelScope()
        self._audit(AuditEvent("agent_started", None, {"agent": self.name, "pid": agent.pid}))
        self._deliver()
        return agent

    async def _hold_agent(self, life: trio.CancelScope, *, task_status: trio.TaskStatus[Agent]) -> None:
        with life:
            await self._run_agent(task_status=task_status)

    async def _see_to(self, agent: Agent) -> None:
        """Relay what an agent writes until it ends, or is not needed any more; return when its process is gone."""
        too_large: MessageTooLarge | None = None
        with self._needed:
            too_large = await self._relay_output(agent)
        if too_large is not None:
            why = f"the agent {agent.name} was stopped: {too_large}"
            self._agent_died(agent, why, {"reason": "message_too_large", "agent": agent.name})
        # Without its output an agent is of no use, even if its process still runs.
        self._agent_life.cancel()
        await agent.ended.wait()
        self._note_end()
        self._agent_died(agent, *agent.describe_end(), {"stderr": agent.last_lines()})

    def _note_end(self) -> None:
        """Write down the end of the agent, unless that was done."""
        agent, self._unended = self._unended, None
        if agent is not None and agent.ended.is_set():
            _, data = agent.describe_end()
            ended = {name: data.get(name) for name in ("exitCode", "signal")}
            self._audit(AuditEvent("agent_ended", None, {"agent": self.name, "pid": agent.pid} | ended))

    def _agent_died(
        self, agent: Agent, why: str, data: dict[str, Any], written: Written = MappingProxyType({})
    ) -> None:
        """An agent has ended, unless that is known already or was asked for."""
        if self._agent is agent:
            self._restarts.ended(trio.current_time(), why)
            self._last_written = written
            self._agent_lost(why, data, written)

    def _give_up_agent(
        self, agent: Agent, why: str, data: dict[str, Any], written: Written = MappingProxyType({})
    ) -> None:
        """An agent that still runs is of no use: have it stopped, and count it as ended from now on."""
        log.warning("%s", why)
        self._agent_died(agent, why, data, written)
        self._needed.cancel()

    async def _relay_output(self, agent: Agent) -> MessageTooLarge | None:
        """Pass on what the agent writes, until it writes no more, or what can't be read."""
        too_large = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._bound_last_words, agent, nursery.cancel_scope)
            while True:
                self._awaits_agent = True
                try:
                    batch = await agent.messages.receive_batch()
                except MessageTooLarge as error:
                    too_large = error
                    break
                except (trio.EndOfChannel, *LOST):
                    break
                self._awaits_agent = False
                if self._agent is not agent:
                    break  # It was given up in this very tick: what it says now would count as its successor's.
                self._note_time()
                self._startup.hear(batch)
                self.multiplexer.receive_from_agent(batch)
                self._deliver()
                # Histories grow also where nobody is there.
                self._grown(sum(map(len, batch)))
                await self._wait_for_lone_client()
            nursery.cancel_scope.cancel()
        return too_large

    async def _wait_for_lone_client(self) -> None:
        """Read on when the client has taken what there is, if there is just one: nobody else is kept waiting by that.

        A viewer that looks on slowly must not slow down somebody else's agent, nor one session the other.
        """
        while True:
            present = [attachment for attachment in self.attachments.values() if attachment.away_since is None]
            if len(present) != 1:
                return
            (attachment,) = present
            if not attachment.behind or attachment.client.viewer.guest or not attachment.client.controls:
                return
            await self._changed.park()

    async def _bound_last_words(self, agent: Agent, reading: trio.CancelScope) -> None:
        """End the reading some time after the agent: a process that left its group may hold the pipe open for ever."""
        await agent.ended.wait()
        while True:
            await trio.sleep(LAST_WORDS)
            if self._awaits_agent:
                reading.cancel()
                return

    def _agent_lost(
        self, why: str, data: dict[str, Any], written: Written = MappingProxyType({}), details: str | None = None
    ) -> None:
        """Tell everybody who waits for the agent. A connection that can do nothing without it ends as well.

        What the agent has written, and the words with all details, are for those who may see them.
        """
        # Those who have been initialized can go on with the next process.
        leaving = [
            attachment
            for attachment in self.attachments.values()
            if not self._shared or attachment.client.phase is Phase.WAITING
        ]
        self.multiplexer.agent_lost(why, data, written, details)
        self._early.clear()
        self._agent = None
        self._deliver()
        for attachment in leaving:
            attachment.close_after_last_words(Disconnect(CloseReason.AGENT_GONE, why))
            if attachment.away_since is None:
                self._bound_farewell(attachment)

    def _bound_farewell(self, attachment: Attachment) -> None:
        """A client that can come back may have reasons not to take its last words, and finds out without them."""
        if attachment.link.resumable:
            attachment.disconnect_due = min(attachment.disconnect_due, trio.current_time() + self._limits.stall_timeout)
            attachment.call_helper(self._end_at, attachment, attachment.disconnect_due)

    async def _end_at(self, attachment: Attachment, time: float) -> None:
        await trio.sleep_until(time)
        attachment.end()

    # Time

    def _note_time(self) -> None:
        self._last_said = trio.current_time()
        self.multiplexer.pass_time(self._last_said)

    async def _watch_time(self) -> None:
        """Look at what has become too old, until cancelled."""
        limits = self._limits
        shortest = min(limits.idle_timeout, limits.permission_timeout, limits.away_grace, limits.away_grace_idle)
        while True:
            await trio.sleep(min(TICK, shortest / 4))
            now = trio.current_time()
            self.multiplexer.pass_time(now)
            self._deliver()
            self._end_absences(now)
            if self._shared and now - self._last_said >= limits.idle_timeout and not self.multiplexer.busy:
                self._stop_idle()

    def _end_absences(self, now: float) -> None:
        """Give up the clients that have been away for too long."""
        limits = self._limits
        idle = not self._shared and not self.multiplexer.busy
        for attachment in list(self.attachments.values()):
            if attachment.away_since is None:
                continue
            if now >= attachment.disconnect_due:
                attachment.end()
                continue
            away = now - attachment.away_since
            quiet = now - max(attachment.away_since, self._last_said)
            client = attachment.client
            wants = client.sessions or client.requests or client.questions or attachment.disconnect is not None
            stranger = away >= STRANGER_GRACE and not wants
            if stranger or away >= limits.away_grace or (idle and quiet >= limits.away_grace_idle):
                log.info("%s: gone: it was away for %.0f s", attachment.client.name, away)
                attachment.close(Disconnect(CloseReason.POLICY, "it was away for too long", EXPIRED))

    def _stop_idle(self) -> None:
        """Nobody has said anything for long: stop the agent, unless somebody would lose a session by that."""
        attached = any(session.attached for session in self.multiplexer.sessions)
        if self._agent is not None and (self.multiplexer.abilities.reopens or not attached):
            log.info("agent %s is not needed: idle for %g s", self.name, self._limits.idle_timeout)
            self.multiplexer.agent_stopped()
            self._agent = None
            self._needed.cancel()
        if self._agent is None and not self.attachments:
            self.end()

    # All of it

    def _deliver(self) -> None:
        """Carry out what the multiplexer decided. No `await` from here on."""
        for note in self.multiplexer.take_notes():
            self._notes += 1
            log.log(logging.WARNING if self._notes <= NOTES_AS_WARNINGS else logging.DEBUG, "%s: %s", self.name, note)
        deliveries = self.multiplexer.take_deliveries()
        if self._agent is None:
            self._early += deliveries.to_agent
        elif self._early or deliveries.to_agent:
            messages, self._early = self._early + deliveries.to_agent, []
            try:
                self._agent.messages.send_nowait(messages)
                self._given += sum(map(len, messages))
            except LOST:
                pass
        if self._agent is None and self.multiplexer.wants_agent:
            self._wake()
        self._startup.look(self._agent if self.multiplexer.initializing else None)
        for client, texts in deliveries.to_clients.items():
            attachment = self.attachments.get(client)
            if attachment is not None and attachment.send(texts, deliveries.replayed.get(client, 0)):
                self._check(attachment)
        for event in deliveries.events:
            self._notify(event)
        for audit_event in deliveries.audit_events:
            self._audit(audit_event)
        for session in deliveries.wanted:
            self._load_journal(self, session)
        for directory_check in deliveries.directory_checks:
            self._directory_check(self, directory_check)
        for home in deliveries.abandoned:
            self._stop_home(home)

    def _wake(self) -> None:
        """Something has changed that a task may wait for."""
        self._changed.unpark_all()

    def _check(self, attachment: Attachment) -> None:
        """Detach a client that has too much waiting, unless it is about to leave anyway."""
        name, limit = "outbox_limit", self._limits.outbox_limit
        # What waited for one that was away is not what it is slow with when it is back.
        if attachment.away_since is not None or (attachment.returning and self._limits.away_limit > limit):
            name, limit = "away_limit", self._limits.away_limit
        # What is on its way over a link that resumes has its own limit, and may be all of a history that was asked for.
        on_its_way = self._limits.window if attachment.link.resumable and attachment.away_since is None else 0
        if attachment.excess > limit + on_its_way and attachment.disconnect is None:
            self.detach(attachment, f"more than {name} ({limit} bytes) wait for this client")

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that wait for the agent to take them, and what it has asked and nobody has answered."""
        waiting = sum(map(len, self._early)) + self.multiplexer.asked_bytes
        return waiting + (0 if self._agent is None else self._agent.messages.pending_bytes)

    def stop_agent(self, why: str) -> None:
        """Stop the agent, which does not take what it is sent, and answer what waits for it."""
        agent, data = self._agent, {"reason": "agent_stalled", "agent": self.name}
        log.warning("%s: %s", self.name, why)
        if agent is not None:
            self._agent_died(agent, why, data)
            self._needed.cancel()
        else:
            # It is not there yet: nothing of what waits for it leads anywhere.
            self._agent_lost(why, data)

    def detach(self, attachment: Attachment, why: str) -> None:
        """End the connection of a client that is too slow."""
        log.warning("%s: detached: %s", attachment.client.name, why)
        attachment.cut_off(Disconnect(CloseReason.POLICY, why, TOO_SLOW))
