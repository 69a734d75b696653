"""An agent that listens: a connection in place of a process, with the same life cycle.

`run_listening_agent` opens the connection and owns it. Its loss is the agent's end. The gateway neither starts nor
stops the program at the other end.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from acp_gateway.config.load import AgentSection, GatewaySection
from acp_gateway.errors import AgentError, GatewayError, Unreachable
from acp_gateway.gateway.agent.process import Agent
from acp_gateway.printable import printable
from acp_gateway.transports.link import LOST
from acp_gateway.transports.maintained import MaintainedStream

log = logging.getLogger(__name__)

LAST_INPUT_TIMEOUT = 3.0
"""Seconds for an agent to read its last messages before the connection is closed; as `eof_grace` of a process."""


@dataclass(frozen=True, slots=True)
class LinkOrigin:
    """The facts that a node is told of a link to it."""

    request_id: str
    """The id of the link in the audits of both gateways."""
    identity: str | None = None
    """The identity that it is opened for; None for that of this gateway's token."""


FindAgent = Callable[[str], AgentSection | None]
"""Returns the section of an agent in the configuration in force."""

DialAgent = Callable[[str, AgentSection, GatewaySection, FindAgent, LinkOrigin | None], Awaitable[MaintainedStream]]
"""Opens a connection to the agent of a name and its section, see `Dial`; with an origin if it is an agent of a node."""

Dial = Callable[[], Awaitable[MaintainedStream]]
"""Opens a connection that is ready for `initialize`. Raises `GatewayError`; cancelling closes the connection."""


class ListeningAgent(Agent):
    """An agent at the other end of a connection."""

    def __init__(self, name: str, url: str, messages: MaintainedStream) -> None:
        super().__init__(name, None, messages, url=url)

    def describe_end(self) -> tuple[str, dict[str, Any]]:
        """Return that the connection has ended, in one line and as `error.data`, fit for all clients."""
        return f"the connection to the agent {self.name} has ended", {"reason": "agent_ended", "agent": self.name}


async def run_listening_agent(
    name: str,
    url: str,
    dial: Dial,
    *,
    connect_timeout: float,
    task_status: trio.TaskStatus[Agent] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Connect to an agent, hand it over by `task_status`, and keep the connection until cancelled.

    It runs on when the agent has closed the connection, so that its last messages can be read. Raises
    `AgentError`, which allows further attempts for `connect_timeout` seconds where these may succeed. Cancelled,
    it lets the agent read what was sent, for `LAST_INPUT_TIMEOUT` seconds at most, and closes the connection; by then
    no task may be receiving from `Agent.messages`.
    """
    try:
        stream = await dial()
    except GatewayError as error:
        seconds = connect_timeout if isinstance(error, Unreachable) else 0.0
        why = printable(str(error))
        raise AgentError(f"the agent {name} cannot be reached: {why}", retry_for=seconds) from error
    agent = ListeningAgent(name, url, stream)
    log.info("agent %s is connected at %s", name, url)
    # Shielded, because the last messages must be written when this is cancelled.
    writing = trio.CancelScope(shield=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write, stream, writing)
        try:
            task_status.started(agent)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                with trio.move_on_after(LAST_INPUT_TIMEOUT):
                    try:
                        await stream.drain()
                    except LOST:
                        pass  # It does not read any more.
                await stream.aclose()
                writing.cancel()
                log.info("the connection to the agent %s has ended", name)
                agent.ended.set()


async def _write(stream: MaintainedStream, writing: trio.CancelScope) -> None:
    with writing:
        await stream.run()
