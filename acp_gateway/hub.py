"""The meeting place: one agent, the client it works for, and the pumps between them.

Pumps move batches. What a batch means is decided in `protocol.multiplexer`, and `_deliver` carries out what was
decided, without waiting and in one go: between something happening and its consequences no other task gets a turn, so
there is no lock. Nothing piles up either: while a peer takes its messages slowly, whoever sends it more is not read.
"""

import logging
from collections.abc import Callable
from typing import Any

import trio

from acp_gateway.agent import LAST_WORDS, Agent, Launch, Spawner, run_agent
from acp_gateway.errors import AgentError
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.multiplexer import Multiplexer, Policy
from acp_gateway.transports.base import CloseReason, MessageStream, MessageTooLarge

log = logging.getLogger(__name__)

NOTES_AS_WARNINGS = 20
"""Dropped or refused messages of one connection that are warned of, the rest is for DEBUG: agents print banners."""


class Hub:
    """An agent of its own for one client, from the client's `initialize` until one of them is gone.

    Args:
        client: the client's stream; closed at the end.
        name: what the client is called in the log.
        prepare: says how the agent is started, when it comes to that; raises `AgentError` where it can't be.
        spawner: where it is started from.
        policy: what the gateway allows and knows.
        write_high_water: bytes pending for a peer above which the other one is not read.
        agent_started: told the agent's process id.
        agent_ended: told the same id when nothing of the agent is left.
    """

    def __init__(
        self,
        client: MessageStream,
        *,
        name: str,
        prepare: Callable[[], Launch],
        spawner: Spawner,
        policy: Policy,
        write_high_water: int,
        agent_started: Callable[[int], None],
        agent_ended: Callable[[int], None],
    ) -> None:
        self._client = client
        self._name = name
        self._prepare = prepare
        self._spawner = spawner
        self._multiplexer = Multiplexer(policy)
        self._high_water = write_high_water
        self._agent_started = agent_started
        self._agent_ended = agent_ended
        self._agent: Agent | None = None
        # Whether the agent pump waits for the agent, and not for the client to take something.
        self._awaits_agent = False
        # How many notes of the multiplexer have been logged.
        self._notes = 0
        # How the client's stream is to be closed. Whoever cancels `run` may say so here first.
        self.close_reason = CloseReason.NORMAL
        self.close_text = ""

    async def run(self) -> None:
        """Relay until the client is gone or the agent has ended; then stop the agent and close the client's stream.

        Cancelled, it does the same at once, bounded by the agent's own times.
        """
        try:
            async with trio.open_nursery() as processes:
                try:
                    async with trio.open_nursery() as pumps:
                        pumps.start_soon(self._client.run)
                        await self._pump_client(processes, pumps)
                        pumps.cancel_scope.cancel()
                finally:
                    self._multiplexer.client_gone()
                    self._deliver()
                    # Both are told at the same time: each may be slow to leave.
                    processes.cancel_scope.cancel()
                    with trio.CancelScope(shield=True):
                        await self._client.aclose(self.close_reason, self.close_text)
        finally:
            if self._agent is not None:
                self._agent_ended(self._agent.pid)

    async def _pump_client(self, processes: trio.Nursery, pumps: trio.Nursery) -> None:
        """Client to agent, until the client is gone."""
        try:
            async for batch in self._client:
                for message in batch:
                    self._multiplexer.receive_from_client(message)
                if self._agent is None and self._multiplexer.wants_agent and not await self._start(processes, pumps):
                    return
                self._deliver()
                await self._client.drain(self._high_water)
                if self._agent is not None:
                    await self._drain_agent(self._agent)
        except MessageTooLarge as error:
            log.warning("%s: closed: %s", self._name, error)
            self.close_reason, self.close_text = CloseReason.TOO_LARGE, str(error)
            self._send_to_client([jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, str(error))])
        except trio.BrokenResourceError as error:
            log.info("%s: %s", self._name, error)

    async def _drain_agent(self, agent: Agent) -> None:
        try:
            await agent.messages.drain(self._high_water)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # Its end shows where its output is read.

    async def _start(self, processes: trio.Nursery, pumps: trio.Nursery) -> bool:
        """Start the agent and its pump. Where it can't be started, whoever waits for it is told; returns False then."""
        try:
            self._agent = await processes.start(run_agent, self._prepare(), self._spawner)
        except AgentError as error:
            log.error("%s: %s", self._name, error)
            await self._agent_lost(str(error), {"reason": "agent_not_started"})
            return False
        assert self._agent is not None
        self._agent_started(self._agent.pid)
        pumps.start_soon(self._pump_agent, self._agent, processes, pumps)
        return True

    async def _pump_agent(self, agent: Agent, processes: trio.Nursery, pumps: trio.Nursery) -> None:
        """Agent to client, until the agent has ended; then the client's connection ends too."""
        too_large = None
        with trio.CancelScope() as reading:
            pumps.start_soon(self._bound_last_words, agent, reading)
            try:
                while True:
                    self._awaits_agent = True
                    batch = await agent.messages.receive_batch()
                    self._awaits_agent = False
                    for message in batch:
                        self._multiplexer.receive_from_agent(message)
                    self._deliver()
                    try:
                        await self._client.drain(self._high_water)
                    except trio.BrokenResourceError:
                        return  # The client pump learns of it as well, and ends everything.
            except MessageTooLarge as error:
                too_large = str(error)
            except (trio.EndOfChannel, trio.BrokenResourceError):
                pass
        # Without its output an agent is of no use, even if its process still runs.
        processes.cancel_scope.cancel()
        await agent.ended()
        why, data = agent.describe_end()
        if too_large is not None:
            why = f"the agent {agent.name} was stopped: {too_large}"
        await self._agent_lost(why, data)
        pumps.cancel_scope.cancel()

    async def _bound_last_words(self, agent: Agent, reading: trio.CancelScope) -> None:
        """End the reading some time after the agent: a process that left its group may hold the pipe open for ever."""
        await agent.ended()
        while True:
            await trio.sleep(LAST_WORDS)
            if self._awaits_agent:
                reading.cancel()
                return

    async def _agent_lost(self, why: str, data: dict[str, Any]) -> None:
        """Tell everybody who waits for the agent and give the client time to take what is left."""
        self._multiplexer.agent_lost(why, data)
        self._deliver()
        self.close_reason, self.close_text = CloseReason.AGENT_GONE, why
        try:
            await self._client.drain()
        except trio.BrokenResourceError:
            pass  # The client is gone as well.

    def _deliver(self) -> None:
        """Carry out what the multiplexer decided. No `await` from here on."""
        for note in self._multiplexer.take_notes():
            self._notes += 1
            log.log(logging.WARNING if self._notes <= NOTES_AS_WARNINGS else logging.DEBUG, "%s: %s", self._name, note)
        deliveries = self._multiplexer.take_deliveries()
        if deliveries.to_agent and self._agent is not None:
            try:
                self._agent.messages.send_nowait(deliveries.to_agent)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # Its end shows where its output is read.
        if deliveries.to_client:
            self._send_to_client(deliveries.to_client)

    def _send_to_client(self, messages: list[bytes]) -> None:
        try:
            self._client.send_nowait(messages)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # Its end shows where it is read.
