"""Runs the agents of hubs: starts processes, and opens links to agents that listen."""

import secrets
from collections.abc import Callable, Mapping
from functools import partial

import trio

from acp_gateway.config.load import AgentSection, Config, agent_environment
from acp_gateway.core.sessions.session import SessionScope
from acp_gateway.errors import AgentError, ConfigError
from acp_gateway.gateway.agent.connection import DialAgent, LinkOrigin, run_listening_agent
from acp_gateway.gateway.agent.process import Agent, Launch, Spawner, run_agent
from acp_gateway.gateway.events.audit import AuditThrottle


class AgentRunner:
    """Runs the agents of one gateway.

    Args:
        config: returns the configuration in force.
        spawner: starts their processes.
        environment: the gateway's own; agents get a part of it.
        dial: connects to agents that listen; None where there are none.
        audit: is told of each link to a node.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        spawner: Spawner,
        environment: Mapping[str, str],
        dial: DialAgent | None,
        audit: AuditThrottle,
    ) -> None:
        self._config = config
        self._spawner = spawner
        self._environment = environment
        self._dial = dial
        self._audit = audit

    async def run(
        self, name: str, section: AgentSection, scope: SessionScope, *, task_status: trio.TaskStatus[Agent]
    ) -> None:
        """Run an agent until cancelled, and hand it over by `task_status`.

        `section` is used if the configuration does not have the agent any more. `scope` is that of the client for which
        the hub was started: a link to a node is opened for its identity, if the node keeps identities apart.

        Raises `AgentError`.
        """
        config = self._config()
        section = config.find_agent(name) or section
        if section.url is None:
            await run_agent(self.launch(name, section), self._spawner, task_status=task_status)
            return
        assert self._dial is not None, "a gateway with agents that listen is given a function that connects to them"
        origin = None
        # No agent of the configuration has a slash in its name, so this is one of a node.
        if "/" in name:
            origin = LinkOrigin(secrets.token_hex(8), scope.identity if scope.apart else None)
            identity, request = scope.identity, origin.request_id
            self._audit.record("node_link", agent=name, identity=identity, request=request, speaks_for=scope.apart)
        await run_listening_agent(
            name,
            section.url,
            partial(self._dial, name, section, config.gateway, origin),
            connect_timeout=section.connect_timeout,
            task_status=task_status,
        )

    def launch(self, name: str, section: AgentSection) -> Launch:
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
        )
