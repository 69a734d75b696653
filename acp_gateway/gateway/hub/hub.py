"""A hub: one agent and the clients that share it.

The client pump and the agent supervisor move batches of messages. The multiplexer (`core.multiplexer`) decides what
they mean, and `deliver` carries out its decisions synchronously. No other task runs between an event and its
consequences, so there is no lock.

A slow client delays no other client: its messages wait in its attachment, up to a limit, beyond which it is detached.
There is one exception: an agent with a single connected client is read only as fast as that client reads.

A client with a resumable link is *away* while it has no connection: the core keeps its place, its messages wait up to a
limit, and after `away_grace` it is gone.

The agent is started on demand, restarted after it has ended, and stopped when it is idle; see `agent_supervisor`.

What a hub needs from the gateway around it is an interface here, which `services` implements.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, assert_never

import trio

from acp_gateway.config.load import GatewaySection
from acp_gateway.core.agent_requests import AgentRequest, Reply
from acp_gateway.core.agent_state import Policy
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.output import (
    AuditEvent,
    CheckDirectories,
    DropWorktree,
    Effect,
    HookEvent,
    LoadJournal,
    LogMessage,
    StopUnused,
    StorePrompt,
    WriteRule,
)
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.sessions.session import AgentHandle, Client, DirectoryCheck, Session
from acp_gateway.core.states import ClientPhase
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.queue import QueueChange
from acp_gateway.gateway.agent.startup import Written
from acp_gateway.gateway.events.recording import Tape
from acp_gateway.gateway.hub.agent_supervisor import BLANK_LINE, AgentSupervisor, RunAgent
from acp_gateway.gateway.hub.attachment import BUG, EXPIRED, STOPPING, TOO_SLOW, Attachment, Disconnect
from acp_gateway.gateway.hub.client_pump import ClientPump
from acp_gateway.gateway.hub.idleness import Idleness
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.text.json_text import read_beginning
from acp_gateway.protocol.text.large_messages import Parsed
from acp_gateway.protocol.text.pairs import Entry
from acp_gateway.transports.link import HEARTBEAT, WINDOW
from acp_gateway.transports.maintained import Charge, MaintainedStream
from acp_gateway.transports.streams import CloseReason, MessageSkipped
from acp_gateway.transports.timers import TimerQueue

log = logging.getLogger(__name__)


def link_timeout(settings: GatewaySection) -> float:
    """Return the seconds of silence after which the connection of a resumable link counts as lost."""
    # An idle client sends only heartbeats.
    return max(settings.ping_interval + settings.ping_timeout, 2 * HEARTBEAT)


class HubServices(Protocol):
    """The services that a hub needs from the gateway around it."""

    def notify(self, event: HookEvent) -> None:
        """Run the hook for an event."""

    def audit(self, event: AuditEvent) -> None:
        """Record an event in the audit."""

    def load_journal(self, hub: "Hub", session: Session) -> None:
        """Read the journal of a session, and call `hub.journal_loaded` afterwards."""

    def drop_worktree(self, hub: "Hub", dropped: DropWorktree) -> None:
        """Remove the working tree of a session that could not be opened."""

    def check_directories(self, hub: "Hub", check: DirectoryCheck) -> None:
        """Check the directories of a request, and call `hub.directories_checked` afterwards."""

    def stop_unused(self, handle: AgentHandle) -> None:
        """Stop the unused agent of another hub, and call `sessions_freed` of this one afterwards."""

    def write_rule(self, hub: "Hub", effect: WriteRule) -> None:
        """Write a rule, and call `hub.rule_written` afterwards."""

    def store_prompt(self, hub: "Hub", key: str) -> None:
        """Wait until what the archive was told of a prompt is on the disk, and call `hub.prompt_stored` afterwards."""

    def memory_grew(self, size: int) -> None:
        """Account for bytes that were kept, and make room if all hubs together keep too many."""

    def rate_limiter(self, client: Client) -> Charge:
        """Return the function that charges a client for what it sends."""

    def agent_limiter(self, hub: "Hub") -> Charge:
        """Return the function that charges an agent for what its output takes."""


LOGGED_AS_WARNINGS: Final = 20
"""Log messages of one agent's core that are warnings, further ones are for debugging: agents print banners."""

TICK: Final = 10.0
"""Seconds between two checks of timeouts, or a quarter of the shortest timeout if that is less."""

UNUSED_LINK_GRACE: Final = 60.0
"""Seconds that a client without sessions and open requests may be away: it loses nothing by a new link. It may not even
know its link, if the lost message was the answer to its handshake."""

_LEFT: Final = Disconnect(CloseReason.NORMAL, "")


class Hub:
    """An agent and its clients.

    Args:
        name: name of the agent, for the log.
        policy: the sections of the configuration.
        run_agent: starts the agent.
        multiplexer: decides.
        services: of the gateway.
        receive_window: as in `Link`.
        clock: returns the time in seconds, for measuring what messages cost.
        wall_clock: returns the time in seconds since 1970, for what clients are shown.
    """

    def __init__(
        self,
        name: str,
        *,
        policy: Policy,
        run_agent: RunAgent,
        multiplexer: Multiplexer,
        services: HubServices,
        receive_window: int = WINDOW,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.multiplexer = multiplexer
        self.attachments: dict[Client, Attachment] = {}
        self.shared = policy.shared
        """True if connections share the agent, which is restarted then; False if it ends with its one connection."""
        self._policy = policy
        self._receive_window = receive_window
        self._services = services
        self._wall_clock = wall_clock
        self._charge = services.agent_limiter(self)
        settings = policy.gateway
        self.supervisor = AgentSupervisor(
            self,
            run_agent=run_agent,
            audit=services.audit,
            high_water=settings.write_high_water,
            stall_timeout=settings.stall_timeout,
            max_restarts=policy.agent.max_restarts,
            initialize_timeout=policy.agent.initialize_timeout,
            clock=clock,
        )
        # Runs what is due on the clients' connections.
        self._timers = TimerQueue()
        self._pump = ClientPump(
            self,
            self.supervisor,
            self._timers,
            memory_grew=services.memory_grew,
            high_water=settings.write_high_water,
            link_timeout=link_timeout(settings),
            stall_timeout=settings.stall_timeout,
            clock=clock,
        )
        # The time of the last message.
        self._last_activity = trio.current_time()
        # The number of log messages of the multiplexer so far.
        self._logged = 0
        # True while the agent runs as an earlier configuration had it.
        self._outdated = False
        self._idleness = Idleness()
        self._ended = trio.Event()

    @property
    def fence(self) -> str | None:
        """The means by which the running agent is fenced; None without a fence, and while no agent runs."""
        agent = self.supervisor.agent
        return None if agent is None or agent.fence is None else agent.fence.by

    @property
    def ended(self) -> bool:
        """True once the hub accepts no clients any more."""
        return self._ended.is_set()

    def end(self) -> None:
        """End `run`, which closes the remaining connections."""
        self._ended.set()

    # Clients

    async def serve(self, stream: MaintainedStream, client: Client, tape: Tape | None = None) -> Disconnect:
        """Relay for a client until it is gone; then close its stream, and return the reason. `run` must be running.

        Messages are recorded on the tape, if there is one. A client that has a link may resume that after its
        connection was lost: see `Attachment.connect`.

        When cancelled, it closes the connection with a reason, bounded by the stream's timeouts.
        """
        attachment = Attachment(
            client,
            high_water=self._policy.gateway.write_high_water,
            window=self._policy.gateway.resume_window if client.link is not None else None,
            receive_window=self._receive_window,
            progressed=self._wake,
            charge=self._services.rate_limiter(client),
            memory_grew=self._services.memory_grew,
            tape=tape,
        )
        attachment.connect(stream)
        self.attachments[client] = attachment
        self.tell_time(trio.current_time())
        self.multiplexer.attach(client)
        self._wake()
        try:
            await self._pump.serve(attachment)
            attachment.disconnect = attachment.disconnect or _LEFT
        except Exception:
            attachment.disconnect = attachment.disconnect or BUG
            raise
        finally:
            disconnect = await self._disconnect(attachment)
        return disconnect

    async def _disconnect(self, attachment: Attachment) -> Disconnect:
        """Answer a client's open requests, forget the client, and close its connection."""
        disconnect = attachment.disconnect or STOPPING
        # Open requests are answered even if earlier messages were discarded.
        attachment.discarding = False
        try:
            if disconnect.reason is None or attachment.link.resumable:
                # A client with a resumable link learns by itself what became of its requests.
                self.multiplexer.client_gone(attachment.client)
            else:
                self.multiplexer.close_client(attachment.client, disconnect.text, {"reason": disconnect.reason})
            self.deliver()
            attachment.link.flush()
        finally:
            del self.attachments[attachment.client]
            self.multiplexer.traffic.bytes_to_clients += attachment.outbox.put_bytes
            self._wake()
            # Guests do not keep an agent that belongs to one connection.
            if not self.shared and all(attachment.client.reach.guest for attachment in self.attachments.values()):
                self.end()
            assert attachment.connection is not None
            with trio.CancelScope(shield=True):
                await attachment.connection.stream.aclose(disconnect.code, disconnect.text)
            attachment.connection.end()
        return disconnect

    def answer(self, client: Client, agent_request: AgentRequest, reply: Reply) -> bool:
        """Answer a request of the agent as a client inside the process has decided; see `ClientPump.answer`."""
        attachment = self.attachments.get(client)
        if attachment is None or attachment.ended:
            return False
        return self._pump.answer(attachment, agent_request, reply)

    def change_queue(self, client: Client, session: Session, change: QueueChange) -> str | None:
        """Change a queued prompt as a client inside the process asks; return why that is refused, if it is."""
        self.tell_time(trio.current_time())
        why = self.multiplexer.change_queue(client, session, change)
        self.deliver()
        return why

    def rename(self, session: Session, title: str) -> None:
        """Give a session a title that its agent does not replace, and tell its clients."""
        self.tell_time(trio.current_time())
        self.multiplexer.rename(session, title)
        self.deliver()

    def _wake(self) -> None:
        """Wake the tasks that wait for a change of the clients."""
        self.supervisor.changed.unpark_all()

    def _check_backlog(self, attachment: Attachment) -> None:
        """Detach a client for which too much is waiting, unless it is about to leave anyway."""
        settings = self._policy.gateway
        name, limit = "outbox_limit", settings.outbox_limit
        # A client that has just returned is not slow because of what waited for it.
        if attachment.away_since is not None or (attachment.catching_up and settings.away_limit > limit):
            name, limit = "away_limit", settings.away_limit
        # Messages in flight on a resumable link have a limit of their own, and may be the whole of a replayed history.
        in_flight = settings.resume_window if attachment.link.resumable and attachment.away_since is None else 0
        if attachment.excess > limit + in_flight and attachment.disconnect is None:
            self.detach(attachment, f"more than {name} ({limit} bytes) wait for this client")

    def detach(self, attachment: Attachment, why: str) -> None:
        """End the connection of a client that is too slow."""
        log.warning("%s: detached: %s", attachment.client.name, why)
        attachment.discard_and_close(Disconnect(CloseReason.POLICY, why, TOO_SLOW))

    # The agent

    def receive_from_agent(self, batch: Sequence[Entry]) -> None:
        """Handle messages of the agent."""
        self.note_time()
        self.multiplexer.receive_from_agent(batch)
        self.deliver()
        size = sum(map(len, batch))
        self.multiplexer.traffic.bytes_from_agents += size
        # Journals grow even without clients.
        self._services.memory_grew(size)

    def receive_large(self, line: bytes, parsed: Parsed | InvalidMessage) -> None:
        """Handle a large line of the agent, which was parsed before."""
        self.note_time()
        if isinstance(parsed, Parsed):
            self.multiplexer.receive_parsed(parsed.message)
        else:
            self.multiplexer.receive_unreadable(line, parsed)
        self.deliver()
        self.multiplexer.traffic.bytes_from_agents += len(line)
        self._services.memory_grew(len(line))

    def receive_skipped(self, skipped: MessageSkipped) -> None:
        """Handle that a message of the agent was left out, because it is too large."""
        self.note_time()
        self.multiplexer.receive_skipped(read_beginning(skipped.begun, skipped.ended), str(skipped))
        self.deliver()
        self.multiplexer.traffic.bytes_from_agents += skipped.size

    def charge_agent(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        """Count bytes of the agent's message that has begun, and charge for time of the event loop."""
        self._services.memory_grew(size)
        return self._charge(seconds=seconds + frames * BLANK_LINE)

    async def wait_for_only_client(self) -> None:
        """Wait until a client that is the only one has read what there is for it, which delays no other client.

        A slow observer must not slow down another user's agent, nor one session another one.
        """
        while not self.ended:
            present = [attachment for attachment in self.attachments.values() if attachment.away_since is None]
            if len(present) != 1:
                return
            (attachment,) = present
            if not attachment.behind or attachment.client.reach.guest or not attachment.client.controls:
                return
            await self.supervisor.changed.park()

    def agent_lost(
        self,
        why: str,
        data: dict[str, Any],
        written: Written,
        details: str | None = None,
    ) -> None:
        """Notify clients that wait for the agent, and close connections that are useless without it.

        `written`, the agent's last output, and `details` are only for clients that may see them.
        """
        # Initialized clients of a shared agent continue with the next process.
        leaving = [
            attachment
            for attachment in self.attachments.values()
            if not self.shared or attachment.client.phase is ClientPhase.WAITING
        ]
        self.multiplexer.agent_lost(why, data, written, details)
        self.deliver()
        for attachment in leaving:
            attachment.close_after_sending(Disconnect(CloseReason.AGENT_GONE, why))
            if attachment.away_since is None:
                self._pump.bound_last_messages(attachment)

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that the agent has not read yet, and bytes of its own that no client has."""
        supervisor = self.supervisor
        return supervisor.pending_bytes + supervisor.unfinished_bytes + self.multiplexer.memory.agent_bytes

    @property
    def translation_bytes(self) -> int:
        """Bytes that the translators of its agent and its clients remember."""
        agent = self.supervisor.agent
        return self.multiplexer.memory.translation_bytes + (0 if agent is None else agent.messages.remembered_bytes)

    def forget_translations(self) -> None:
        """Forget half of what translators remember, as far as it can be done without."""
        self.multiplexer.memory.forget_translations()
        if self.supervisor.agent is not None:
            self.supervisor.agent.messages.forget_half()

    def stop_agent(self, why: str) -> None:
        """Stop the agent because it does not read, and refuse the requests that wait for it."""
        self.supervisor.stop_stalled(why)

    def end_agent(self) -> trio.Event | None:
        """End the agent, or give up its start, as the operator of the gateway asks; return the event of its end, None
        without one.

        The next request starts another one.
        """
        self.tell_time(trio.current_time())
        return self.supervisor.end()

    # Answers of the services

    def sessions_freed(self) -> None:
        """Continue requests that wait for sessions of a hub that has ended."""
        self.multiplexer.sessions_freed()
        self.deliver()

    def journal_loaded(self, session: Session, journal: Journal | None) -> None:
        """Continue requests that wait for the journal of a session; None if it has none."""
        self.tell_time(trio.current_time())
        self.multiplexer.journal_loaded(session, journal)
        self.deliver()

    def rule_written(self, session: Session, words: str) -> None:
        """Tell in a conversation what has become of a rule."""
        self.tell_time(trio.current_time())
        self.multiplexer.rule_written(session, words)
        self.deliver()

    def prompt_stored(self, key: str) -> None:
        """Go on with a prompt that waited for the archive."""
        self.tell_time(trio.current_time())
        self.multiplexer.prompt_stored(key)
        self.deliver()

    def directories_checked(self, check: DirectoryCheck, result: DirectoryCheckResult) -> None:
        """Continue the request whose directories were checked."""
        self.multiplexer.directories_checked(check, result)
        self.deliver()

    # Time

    def note_time(self) -> None:
        """Record activity, and tell the multiplexer the time."""
        self._last_activity = now = trio.current_time()
        self.tell_time(now)

    def tell_time(self, now: float) -> None:
        """Tell the multiplexer the time, as `trio.current_time` returns it, and the time of day."""
        # A clock that was never set may be before 1970, where no stored time is.
        self.multiplexer.set_time(now, max(int(self._wall_clock() * 1000), 0))

    async def _watch_time(self) -> None:
        """Check timeouts, until cancelled."""
        while True:
            agent, settings = self._policy.agent, self._policy.gateway
            shortest = min(
                agent.idle_timeout,
                agent.permission_timeout,
                settings.stall_timeout,
                settings.away_grace,
                settings.away_grace_idle,
            )
            await trio.sleep(min(TICK, shortest / 4))
            now = trio.current_time()
            self.supervisor.stop_if_stalled(now)
            self.tell_time(now)
            self.multiplexer.end_vain_waits(settings.away_grace)
            self.deliver()
            self._expire_away_clients(now)
            if self.shared and not self.multiplexer.busy:
                await self._stop_if_idle(now)

    async def _stop_if_idle(self, now: float) -> None:
        """Stop an agent without open requests, once it is idle, or was to be restarted."""
        agent, since, timeout = self.supervisor.agent, self._last_activity, self._policy.agent.idle_timeout
        is_idle = await self._idleness.is_idle(agent, since, now, timeout)
        # Many agents store nothing before the first prompt.
        is_idle = is_idle and not self.multiplexer.awaits_first_prompt
        if self.multiplexer.busy or (agent, since) != (self.supervisor.agent, self._last_activity):
            return  # The look at it took a moment.
        if is_idle or self._outdated:
            self._stop_idle(f"idle for {timeout:g} s" if is_idle else "its configuration has changed")

    def _expire_away_clients(self, now: float) -> None:
        """Close the links of clients that have been away for too long."""
        settings = self._policy.gateway
        idle = not self.shared and not self.multiplexer.busy
        for attachment in list(self.attachments.values()):
            if attachment.away_since is None:
                continue
            if now >= attachment.disconnect_due:
                attachment.end()
                continue
            away = now - attachment.away_since
            quiet = now - max(attachment.away_since, self._last_activity)
            client = attachment.client
            is_ending = attachment.disconnect is not None
            wants = client.sessions or client.requests or self.multiplexer.asks(client) or is_ending
            unused = away >= UNUSED_LINK_GRACE and not wants
            if unused or away >= settings.away_grace or (idle and quiet >= settings.away_grace_idle):
                log.info("%s: gone: it was away for %.0f s", attachment.client.name, away)
                attachment.close(Disconnect(CloseReason.POLICY, "it was away for too long", EXPIRED))

    def reconfigure(self, policy: Policy, *, restart: bool) -> bool:
        """Use another policy, and `restart` the agent once nothing is open in it; return True if none runs by now."""
        self.multiplexer.set_policy(policy)
        self._policy = policy
        self.supervisor.set_limits(policy.agent.max_restarts, policy.agent.initialize_timeout)
        self._outdated = (restart or self._outdated) and self.supervisor.has_agent
        if self._outdated and self.shared and not self.multiplexer.busy:
            self._stop_idle("its configuration has changed")
        return not self.supervisor.has_agent

    def restart_when_idle(self, why: str) -> None:
        """Restart an agent that connections share, as soon as nothing is open in it."""
        if self.shared and self.supervisor.has_agent and not self._outdated:
            log.info("agent %s is restarted when nothing is open in it: %s", self.name, why)
            self._outdated = True

    def _stop_idle(self, why: str) -> None:
        """Stop an idle agent, unless a client would lose a session by that; end the hub if it has no clients either."""
        attached = any(session.attached for session in self.multiplexer.sessions)
        if self.supervisor.agent is not None and (self.multiplexer.abilities.reopens or not attached):
            self._release(why)
        self._outdated = self._outdated and self.supervisor.has_agent
        if self.supervisor.agent is None and not self.attachments:
            self.end()

    def _release(self, why: str) -> None:
        log.info("agent %s is stopped: %s", self.name, why)
        self.multiplexer.agent_stopped()
        self.supervisor.release()

    # All of it

    async def run(self) -> None:
        """Supervise the agent until the hub ends; then stop the agent and close the remaining connections.

        When cancelled, it does the same at once, bounded by the agent's timeouts.
        """
        try:
            async with trio.open_nursery() as agents:
                disconnect = STOPPING
                try:
                    async with trio.open_nursery() as tasks:
                        tasks.start_soon(self._watch_time)
                        tasks.start_soon(self._timers.run)
                        tasks.start_soon(self.supervisor.watch_startup)
                        tasks.start_soon(self.supervisor.run, agents)
                        await self._ended.wait()
                        tasks.cancel_scope.cancel()
                    disconnect = Disconnect(
                        CloseReason.AGENT_GONE, f"the agent {self.name} was stopped", "agent_stopped"
                    )
                except Exception:
                    disconnect = BUG
                    raise
                finally:
                    # An exception in a task of `agents` shows here as a cancellation.
                    self._close_all(BUG if agents.cancel_scope.cancel_called else disconnect)
        finally:
            self.supervisor.record_end()
            self.multiplexer.shut_down(lacks_end=self.supervisor.lacks_end)

    def _close_all(self, disconnect: Disconnect) -> None:
        """Close the connections and stop the agent, which first gets the clients' last messages."""
        self._ended.set()
        for attachment in self.attachments.values():
            attachment.close(disconnect)
        try:
            self.multiplexer.end_turns()
            self.deliver()
        finally:
            self.supervisor.stop()

    def deliver(self) -> None:
        """Carry out what the multiplexer has decided. No `await` from here on."""
        while True:
            output = self.multiplexer.take_output()
            self.supervisor.send(output.to_agent)
            for client, messages in output.to_clients.items():
                attachment = self.attachments.get(client)
                if attachment is not None and attachment.send(messages, output.replayed.get(client, 0)):
                    self._check_backlog(attachment)
            for effect in output.effects:
                self._carry_out(effect)
            if not self.supervisor.answers:
                return
            answers, self.supervisor.answers = self.supervisor.answers, []
            self.multiplexer.receive_from_agent(answers)

    def _carry_out(self, effect: Effect) -> None:
        services = self._services
        match effect:
            case LogMessage(text, is_detail):
                self._logged += not is_detail
                is_warning = self._logged <= LOGGED_AS_WARNINGS and not is_detail
                level = logging.WARNING if is_warning else logging.DEBUG
                log.log(level, "%s: %s", self.name, text)
            case HookEvent():
                services.notify(effect)
            case AuditEvent():
                services.audit(effect)
            case LoadJournal(session):
                services.load_journal(self, session)
            case CheckDirectories(check):
                services.check_directories(self, check)
            case DropWorktree():
                services.drop_worktree(self, effect)
            case StopUnused(handle):
                services.stop_unused(handle)
            case WriteRule():
                services.write_rule(self, effect)
            case StorePrompt(key):
                services.store_prompt(self, key)
            case _:
                assert_never(effect)
