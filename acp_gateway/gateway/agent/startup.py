"""Starts agents: runs processes or opens links for hubs, and ends an agent that does not answer `initialize`.

A command that starts something else than an ACP agent mostly starts well: a shell, a program that draws for a terminal
or waits for a person. It reads what it is sent, or not, and never answers. Its own output says best what it
is, so the last of that is kept for the error.

An agent that listens has the same life cycle: its connection stands for the process, and its loss is the agent's end.
The gateway neither starts nor stops the program at the other end.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import trio

from acp_gateway.config.agent_search import guess
from acp_gateway.config.load import AgentSection, Config, GatewaySection, agent_environment
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import AgentError, ConfigError, GatewayError, Unreachable
from acp_gateway.gateway.agent.fencing import fence_options
from acp_gateway.gateway.agent.process import (
    STDERR_KEPT_SIZE,
    STDERR_TAIL_LINES,
    Agent,
    Launch,
    Spawner,
    readable_lines,
    run_agent,
)
from acp_gateway.printable import printable
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.transports.link import LOST
from acp_gateway.transports.maintained import MaintainedStream

log = logging.getLogger(__name__)

LAST_INPUT_TIMEOUT = 3.0
"""Seconds for an agent to read its last messages before the connection is closed; as `eof_grace` of a process."""


FindAgent = Callable[[str], AgentSection | None]
"""Returns the section of an agent in the configuration in force."""

DialAgent = Callable[[str, AgentSection, GatewaySection, FindAgent], Awaitable[MaintainedStream]]
"""Opens a connection to the agent of a name and its section, see `Dial`."""

Dial = Callable[[], Awaitable[MaintainedStream]]
"""Opens a connection that is ready for `initialize`. Raises `GatewayError`; cancelling closes the connection."""


class ListeningAgent(Agent):
    """An agent at the other end of a connection."""

    def __init__(self, name: str, url: str, stream: MaintainedStream) -> None:
        super().__init__(name, None, stream, url=url)

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


WARN_AFTER: Final = 20.0
"""Seconds after which the log says that an agent has not answered: an agent that is there answers within five, so one
that still may has to be fetched first."""

REASON: Final = "agent_silent"

Written = Mapping[str, Sequence[str]]
"""The last lines that an agent has written, by stream."""

GiveUp = Callable[[Agent, str, dict[str, Any], Written], None]
"""Ends an agent: it, why, the data of the errors, and what it has written, for those who may see that."""


class Startup:
    """Watches the time that an agent takes to answer `initialize`.

    Args:
        timeout: seconds, from the start of the agent or from its being asked again.
        give_up: called when they are over.
    """

    def __init__(self, timeout: float, give_up: GiveUp) -> None:
        self.timeout = timeout
        self._give_up = give_up
        # Which agent has to answer; another object each time.
        self._watched: tuple[Agent] | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._stdout: deque[bytes] = deque(maxlen=STDERR_TAIL_LINES)

    def watch(self, agent: Agent | None) -> None:
        """Set the agent that has not answered `initialize` yet; None if there is none."""
        if agent is (None if self._watched is None else self._watched[0]):
            return
        self._watched = None if agent is None else (agent,)
        self._stdout.clear()
        self._changed.unpark_all()

    def receive_output(self, batch: Sequence[bytes]) -> None:
        """Keep lines that are not messages of an agent that has not answered."""
        if self._watched is None:
            return
        for line in batch[-STDERR_TAIL_LINES:]:
            try:
                jsonrpc.parse(line)
            except InvalidMessage:
                self._stdout.append(line[:STDERR_KEPT_SIZE])

    async def run(self) -> NoReturn:
        """Log an agent that has not answered, and stop it after the timeout, until cancelled."""
        while True:
            watched = self._watched
            if watched is None:
                await self._changed.park()
                continue
            (agent,) = watched
            if not await self._has_answered(watched, agent):
                self._end(agent)
            elif agent.descendants is not None:
                await agent.descendants.note_ready()

    async def _has_answered(self, watched: tuple[Agent], agent: Agent) -> bool:
        """Return True once the agent need not be waited for any more, and False after the timeout."""
        if await self._wait_for_answer(watched, min(WARN_AFTER, self.timeout)):
            return True
        if self.timeout <= WARN_AFTER:
            return False
        log.warning(
            "agent %s (%s) has not answered initialize for %g s: %s",
            agent.name,
            agent.url or agent.pid,
            WARN_AFTER,
            _guess(agent),
        )
        return await self._wait_for_answer(watched, self.timeout - WARN_AFTER)

    async def _wait_for_answer(self, watched: tuple[Agent], seconds: float) -> bool:
        """Wait at most `seconds`; return True if the agent need not be waited for any more."""
        with trio.move_on_after(seconds):
            while self._watched is watched:
                await self._changed.park()
        return self._watched is not watched

    def _end(self, agent: Agent) -> None:
        # A prompt for a person, or a picture for a terminal, has no end of its line.
        stdout = [*self._stdout, agent.messages.stream.begun(STDERR_KEPT_SIZE)]
        written = {"stdout": readable_lines(stdout), "stderr": agent.last_lines()}
        self._watched = None
        why = (
            f"the agent {agent.name} has not answered initialize within {self.timeout:g} s (initialize_timeout) and "
            f"was stopped: {_guess(agent)}"
        )
        self._give_up(agent, why, {"reason": REASON, "agent": agent.name}, written)


def _guess(agent: Agent) -> str:
    """Return the likely cause of an agent's silence."""
    return guess(agent.command) if agent.url is None else "is an ACP agent listening there?"


class AgentRunner:
    """Runs the agents of one gateway.

    Args:
        config: returns the configuration in force.
        spawner: starts their processes.
        environment: the gateway's own; agents get a part of it.
        dial: connects to agents that listen; None where there are none.
        workspaces: returns the names of the workspaces that the clients of an agent's process may use, from its section
            and their reach; None for all.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        spawner: Spawner,
        environment: Mapping[str, str],
        dial: DialAgent | None,
        workspaces: Callable[[AgentSection, SessionReach], Sequence[str] | None],
    ) -> None:
        self._config = config
        self._spawner = spawner
        self._environment = environment
        self._dial = dial
        self._workspaces = workspaces

    async def run(
        self, name: str, section: AgentSection, reach: SessionReach, *, task_status: trio.TaskStatus[Agent]
    ) -> None:
        """Run an agent until cancelled, and hand it over by `task_status`.

        `section` is used if the configuration does not have the agent any more. `reach` is that of the client for which
        the hub was started.

        Raises `AgentError`.
        """
        config = self._config()
        section = config.agents.get(name) or section
        if section.url is None:
            await run_agent(self.launch(name, section, reach), self._spawner, task_status=task_status)
            return
        assert self._dial is not None, "a gateway with agents that listen is given a function that connects to them"
        await run_listening_agent(
            name,
            section.url,
            partial(self._dial, name, section, config.gateway, self._find),
            connect_timeout=section.connect_timeout,
            task_status=task_status,
        )

    def _find(self, name: str) -> AgentSection | None:
        return self._config().agents.get(name)

    def launch(self, name: str, section: AgentSection, reach: SessionReach) -> Launch:
        """Return how the process of an agent is started. Raises `AgentError`."""
        try:
            environment = agent_environment(section, self._environment)
        except ConfigError as error:
            raise AgentError(f"the agent {name} cannot be started: {error}") from error
        return Launch(
            name=name,
            command=section.command or (),
            environment=environment,
            cwd=None if section.cwd is None else str(section.cwd),
            max_message_size=self._config().gateway.max_message_size,
            eof_grace=section.eof_grace,
            term_grace=section.term_grace,
            log_stderr=section.log_stderr,
            fence=fence_options(section, self._config(), reach, self._workspaces(section, reach)),
        )
