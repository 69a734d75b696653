"""The meeting place: one agent, the client it works for, and the pumps between them.

Pumps move batches. What a batch means is decided in `protocol.multiplexer`, and `_deliver` carries out what was
decided, without waiting and in one go: between something happening and its consequences no other task gets a turn, so
there is no lock. Nothing piles up either: while a peer takes its messages slowly, whoever sends it more is not read.

Three things end a hub: the client goes, the agent goes, or somebody cancels it. The end is the same for all: the agent
hears that its client has gone, then both are closed at the same time.
"""

import logging
from collections.abc import Awaitable
from typing import Any, Final, Protocol

import trio

from acp_gateway.agent import LAST_WORDS, Agent
from acp_gateway.errors import AgentError
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.multiplexer import Multiplexer, Policy
from acp_gateway.transports.base import CloseReason, MessageStream, MessageTooLarge

log = logging.getLogger(__name__)

NOTES_AS_WARNINGS: Final = 20
"""Dropped or refused messages of one connection that are warned of, the rest is for DEBUG: agents print banners."""

_GATEWAY_ENDS_IT: Final = {CloseReason.GOING_AWAY: "gateway_stopping", CloseReason.POLICY: "unauthorized"}
"""Ends that are neither the client's nor the agent's, and the word for programs in the answers to open requests."""

_NO_INPUT: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
"""An agent takes nothing any more, or has ended and its pipes are closed. Its end shows where its output is read."""


class RunAgent(Protocol):
    """Starts an agent, hands it over and sees to it until cancelled; raises `AgentError` where it can't be started."""

    def __call__(self, *, task_status: trio.TaskStatus[Agent]) -> Awaitable[None]:
        """See `agent.run_agent`."""


class Hub:
    """An agent of its own for one client, from the client's `initialize` until one of them is gone.

    Args:
        client: the client's stream; closed at the end.
        name: what the client is called in the log.
        run_agent: starts the agent, when it comes to that.
        policy: what the gateway allows and knows.
        write_high_water: bytes pending for a peer above which the other one is not read.
        stall_timeout: seconds that the agent may take nothing while the client is not read because of it.
    """

    def __init__(
        self,
        client: MessageStream,
        *,
        name: str,
        run_agent: RunAgent,
        policy: Policy,
        write_high_water: int,
        stall_timeout: float,
    ) -> None:
        self._client = client
        self._name = name
        self._run_agent = run_agent
        self._multiplexer = Multiplexer(policy)
        self._high_water = write_high_water
        self._stall_timeout = stall_timeout
        self._agent: Agent | None = None
        # Keeps the agent from whoever cancels `run`: it must hear of the client's end before its own begins.
        self._agent_life = trio.CancelScope(shield=True)
        # Bytes that were passed on to the agent while more than the high-water mark was pending for it.
        self._ahead = 0
        # Whether the agent's output is waited for, and not the client that is to take some.
        self._awaits_agent = False
        # How many notes of the multiplexer have been logged.
        self._notes = 0
        # How the client's stream is to be closed.
        self._farewell: tuple[CloseReason, str] | None = None

    def close_with(self, reason: CloseReason, text: str) -> None:
        """Say how the client's stream is to be closed when `run` ends. What is said first counts."""
        if self._farewell is None:
            self._farewell = reason, text

    async def run(self) -> None:
        """Relay until the client is gone or the agent has ended; then stop the agent and close the client's stream.

        Cancelled, it does the same at once, bounded by the agent's own times.
        """
        async with trio.open_nursery() as agents:
            try:
                async with trio.open_nursery() as pumps:
                    pumps.start_soon(self._client.run)
                    await self._pump_client(agents, pumps)
                    pumps.cancel_scope.cancel()
                self.close_with(CloseReason.NORMAL, "")
            except Exception:
                self.close_with(CloseReason.AGENT_GONE, "an error of the gateway's own")
                raise
            finally:
                self.close_with(CloseReason.GOING_AWAY, "the gateway is stopping")
                assert self._farewell is not None
                reason, text = self._farewell
                try:
                    if reason in _GATEWAY_ENDS_IT:
                        self._multiplexer.closing(text, {"reason": _GATEWAY_ENDS_IT[reason]})
                    else:
                        self._multiplexer.client_gone()
                    self._deliver()
                finally:
                    # Both at the same time: each may be slow to leave.
                    self._agent_life.cancel()
                    with trio.CancelScope(shield=True):
                        await self._client.aclose(reason, text)

    # Client to agent

    async def _pump_client(self, agents: trio.Nursery, pumps: trio.Nursery) -> None:
        """Client to agent, until the client is gone or no agent can be started."""
        try:
            while True:
                batch = await self._client.receive_batch()
                if self._agent is not None and not await self._hold_back(self._agent, sum(map(len, batch))):
                    return
                for message in batch:
                    self._multiplexer.receive_from_client(message)
                if self._agent is None and self._multiplexer.wants_agent and not await self._start(agents, pumps):
                    return
                self._deliver()
                await self._client.drain(self._high_water)
        except trio.EndOfChannel:
            log.debug("%s: the client has closed the connection", self._name)
        except MessageTooLarge as error:
            log.warning("%s: closed: %s", self._name, error)
            self.close_with(CloseReason.TOO_LARGE, str(error))
            self._send_to_client([jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, str(error))])
        except trio.BrokenResourceError as error:
            log.info("%s: %s", self._name, error)

    async def _hold_back(self, agent: Agent, size: int) -> bool:
        """Wait with what the client has sent, so many bytes, while too much is pending for the agent already.

        Not before a high-water mark more was passed on: what comes right behind a big prompt may be its cancellation,
        or the end of the client, which nobody would notice while the agent takes its time. For that reason the wait
        is bounded, too: returns False where the agent has taken nothing for `stall_timeout`, and everything ends.
        """
        if agent.messages.pending_bytes <= self._high_water:
            self._ahead = 0
            return True
        self._ahead += size
        if self._ahead <= self._high_water:
            return True
        self._ahead = 0
        while True:
            pending = agent.messages.pending_bytes
            with trio.move_on_after(self._stall_timeout):
                try:
                    await agent.messages.drain(self._high_water)
                except _NO_INPUT:
                    pass
                return True
            if agent.messages.pending_bytes >= pending:
                why = f"the agent {agent.name} has read nothing for {self._stall_timeout:g} s, and {pending} bytes wait"
                log.warning("%s: %s", self._name, why)
                await self._agent_lost(why, {"reason": "agent_stalled", "agent": agent.name})
                return False

    async def _start(self, agents: trio.Nursery, pumps: trio.Nursery) -> bool:
        """Start the agent and its pump. Where it can't be started, whoever waits for it is told; returns False then."""
        try:
            # A start is not cancelled half-way: Trio leaves the task with whoever waits for its start then, for ever.
            with trio.CancelScope(shield=True):
                self._agent = await agents.start(self._keep_agent)
        except AgentError as error:
            log.error("%s: %s", self._name, error)
            await self._agent_lost(str(error), {"reason": "agent_not_started"})
            return False
        assert self._agent is not None
        pumps.start_soon(self._pump_agent, self._agent, pumps)
        return True

    async def _keep_agent(self, *, task_status: trio.TaskStatus[Agent]) -> None:
        with self._agent_life:
            await self._run_agent(task_status=task_status)

    # Agent to client

    async def _pump_agent(self, agent: Agent, pumps: trio.Nursery) -> None:
        """Agent to client, until one of them is gone; then everything ends."""
        try:
            await self._relay_output(agent, pumps)
        except MessageTooLarge as error:
            why = f"the agent {agent.name} was stopped: {error}"
            await self._agent_lost(why, {"reason": "message_too_large", "agent": agent.name})
        except trio.BrokenResourceError as error:
            log.info("%s: %s", self._name, error)
        else:
            # Without its output an agent is of no use, even if its process still runs.
            self._agent_life.cancel()
            await agent.ended.wait()
            await self._agent_lost(*agent.describe_end())
        pumps.cancel_scope.cancel()

    async def _relay_output(self, agent: Agent, pumps: trio.Nursery) -> None:
        """Pass on what the agent writes, until it writes no more.

        Raises `MessageTooLarge` because of the agent, any other `BrokenResourceError` because of the client.
        """
        with trio.CancelScope() as reading:
            pumps.start_soon(self._bound_last_words, agent, reading)
            while True:
                self._awaits_agent = True
                try:
                    batch = await agent.messages.receive_batch()
                except MessageTooLarge:
                    raise
                except (trio.EndOfChannel, trio.BrokenResourceError):
                    return
                self._awaits_agent = False
                for message in batch:
                    self._multiplexer.receive_from_agent(message)
                self._deliver()
                await self._client.drain(self._high_water)

    async def _bound_last_words(self, agent: Agent, reading: trio.CancelScope) -> None:
        """End the reading some time after the agent: a process that left its group may hold the pipe open for ever."""
        await agent.ended.wait()
        while True:
            await trio.sleep(LAST_WORDS)
            if self._awaits_agent:
                reading.cancel()
                return

    async def _agent_lost(self, why: str, data: dict[str, Any]) -> None:
        """Tell everybody who waits for the agent and give the client time to take what is left."""
        self.close_with(CloseReason.AGENT_GONE, why)
        self._multiplexer.agent_lost(why, data)
        self._deliver()
        try:
            await self._client.drain()
        except trio.BrokenResourceError:
            pass  # The client is gone as well.

    # Both

    def _deliver(self) -> None:
        """Carry out what the multiplexer decided. No `await` from here on."""
        for note in self._multiplexer.take_notes():
            self._notes += 1
            log.log(logging.WARNING if self._notes <= NOTES_AS_WARNINGS else logging.DEBUG, "%s: %s", self._name, note)
        deliveries = self._multiplexer.take_deliveries()
        if deliveries.to_agent and self._agent is not None:
            try:
                self._agent.messages.send_nowait(deliveries.to_agent)
            except _NO_INPUT:
                pass
        if deliveries.to_client:
            self._send_to_client(deliveries.to_client)

    def _send_to_client(self, messages: list[bytes]) -> None:
        try:
            self._client.send_nowait(messages)
        except trio.BrokenResourceError:
            pass  # Its end shows where it is read.
