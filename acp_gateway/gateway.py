"""Which agent for whom: what a connection may use, the hub that it gets, and the connections there are."""

import logging
import os
import shlex
import socket
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Self

import trio

from acp_gateway.agent import Agent, Launch, Spawner, run_agent
from acp_gateway.auth import Token, TokenStore
from acp_gateway.config import AgentSection, Config, agent_environment
from acp_gateway.errors import AgentError, ConfigError, Forbidden, UnknownAgent
from acp_gateway.hub import Hub
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.multiplexer import Policy, Problem
from acp_gateway.protocol.paths import suggest_map
from acp_gateway.transports.base import CloseReason, MessageStream

log = logging.getLogger(__name__)

PATH_SIZE = 4096
"""Characters of a path at most, as on Linux; a longer one only fills the error that would quote it."""

REVOCATION_INTERVAL = 1.0
"""Seconds between two looks at the token file for the sake of connections that are open; new ones look themselves."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who a connection belongs to and what it may use."""

    identity: str
    token: Token | None
    """None for a peer that the kernel vouched for: the gateway's own user, who may use everything."""

    @classmethod
    def of(cls, token: Token) -> Self:
        """The access that a token gives."""
        return cls(token.identity, token)

    def may_use(self, agent: str) -> bool:
        """Whether the token allows this agent."""
        return self.token is None or self.token.agents is None or agent in self.token.agents


@dataclass(slots=True, eq=False)
class _Connection:
    access: Access
    hub: Hub
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Gateway:
    """The agents of one configuration and the connections that use them."""

    def __init__(self, config: Config, tokens: TokenStore, spawner: Spawner, environment: Mapping[str, str]) -> None:
        self.config = config
        self.tokens = tokens
        self._spawner = spawner
        # The gateway's own environment, of which agents get a part.
        self._environment = environment
        self._connections: set[_Connection] = set()

    @property
    def agent_ancestors(self) -> Container[int]:
        """The processes and process sessions that only agents descend from, for telling an agent from its user."""
        return self._spawner.ancestors

    def choose_agent(self, access: Access, name: str | None) -> str:
        """The agent that a connection asks for, or the default one.

        Raises `UnknownAgent` where there is none of that name and `Forbidden` where the token does not allow it.
        """
        if name is None:
            name = self.config.default_agent
            if access.token is not None and access.token.agents is not None and len(access.token.agents) == 1:
                name = access.token.agents[0]
        if name not in self.config.agents:
            raise UnknownAgent(f"this gateway has no agent {name[:64]!r}; `acp-gateway check-config` there lists them")
        if not access.may_use(name):
            raise Forbidden(f"this token does not allow the agent {name}")
        return name

    async def serve_client(self, client: MessageStream, access: Access, agent: str, name: str) -> None:
        """Give a client its agent and return when it is gone; the stream is closed then.

        Args:
            client: the client's stream, ready for `initialize`.
            access: who it is.
            agent: what `choose_agent` returned.
            name: what the connection is called in the log.

        Cancelled, it closes the stream and stops the agent politely.
        """
        section = self.config.agents[agent]
        hub = Hub(
            client,
            name=name,
            run_agent=partial(self._run_agent, agent, section),
            policy=_policy(section, self.config.gateway.max_open_requests),
            write_high_water=self.config.gateway.write_high_water,
            stall_timeout=self.config.gateway.stall_timeout,
        )
        connection = _Connection(access, hub)
        self._connections.add(connection)
        log.info("%s: attached to agent %s as %s", name, agent, access.identity)
        try:
            with connection.scope:
                await hub.run()
        finally:
            self._connections.discard(connection)
            log.info("%s: detached", name)

    async def enforce_revocations(self) -> None:
        """End connections whose token is not valid any more, until cancelled."""
        while True:
            await trio.sleep(REVOCATION_INTERVAL)
            for connection in self._connections:
                token = connection.access.token
                if token is None or connection.scope.cancel_called or self.tokens.is_current(token):
                    continue
                log.warning("token %s is not valid any more: closing its connection", token.id)
                connection.hub.close_with(CloseReason.POLICY, "the token is not valid any more")
                connection.scope.cancel()

    async def _run_agent(self, name: str, section: AgentSection, *, task_status: trio.TaskStatus[Agent]) -> None:
        await run_agent(self._launch(name, section), self._spawner, task_status=task_status)

    def _launch(self, name: str, section: AgentSection) -> Launch:
        try:
            environment = agent_environment(section, self._environment)
        except ConfigError as error:
            raise AgentError(f"the agent {name} cannot be started: {error}") from error
        return Launch(
            name=name,
            command=section.command,
            environment=environment,
            cwd=None if section.cwd is None else str(section.cwd),
            max_message_size=self.config.gateway.max_message_size,
            eof_grace=section.eof_grace,
            term_grace=section.term_grace,
        )


def _policy(section: AgentSection, max_open_requests: int) -> Policy:
    serves = {Capability.FS: section.client_fs, Capability.TERMINAL: section.client_terminal}
    return Policy(
        serves=frozenset(capability for capability, served in serves.items() if served),
        check_directory=lambda cwd: check_directory(cwd, None if section.cwd is None else str(section.cwd)),
        max_open_requests=max_open_requests,
        login_hint=lambda methods: login_hint(section, methods),
    )


def check_directory(cwd: str, agent_cwd: str | None) -> Problem | None:
    """Whether a session can be opened in `cwd`; where not, the path map that would probably make it work."""
    if len(cwd) > PATH_SIZE:
        return Problem(f"cwd is longer than a path can be ({PATH_SIZE} characters)", {"reason": "no_such_directory"})
    if os.path.isabs(cwd) and os.path.isdir(cwd):
        return None
    if os.path.isabs(cwd) and os.path.exists(cwd):
        return Problem(f"{cwd} is not a directory", {"reason": "no_such_directory", "cwd": cwd})
    if not _is_absolute_somewhere(cwd):
        return Problem(f"cwd must be an absolute path, not {cwd!r}", {"reason": "no_such_directory", "cwd": cwd})
    suggested = suggest_map(cwd, home=_home(), agent_cwd=agent_cwd, is_directory=os.path.isdir)
    return Problem(
        f"there is no directory {cwd} on {socket.gethostname()}; start the client with the path it has there: "
        f"acp-gateway connect … --map {_quoted(suggested)} (or maps in hosts.toml)",
        {"reason": "no_such_directory", "cwd": cwd, "map": suggested},
    )


def _quoted(text: str) -> str:
    """For the shell of the editor's machine; Windows knows double quotes only."""
    return shlex.quote(text) if text.startswith("/") else f'"{text}"' if " " in text else text


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        return "/"  # A service's user may have none.


def _is_absolute_somewhere(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


def login_hint(section: AgentSection, auth_methods: list[dict[str, Any]]) -> str:
    """Where and how to log the agent in: as configured, else as the agent itself says."""
    command = section.login or _login_command(section, auth_methods)
    if command is not None:
        how = f"run `{command}`"
    else:
        words = [words for method in auth_methods if isinstance(words := method.get("description"), str) and words]
        how = " or ".join(words) if words else f"start `{shlex.join(section.command)}` and log in"
    return f"On the gateway's machine ({socket.gethostname()}): {how}, then try again."


def _login_command(section: AgentSection, auth_methods: list[dict[str, Any]]) -> str | None:
    """The command of a terminal login that the agent offered: its own with other arguments, or one in `_meta`."""
    for method in auth_methods:
        meta = method.get("_meta")
        spec = meta.get("terminal-auth") if isinstance(meta, dict) else None
        if isinstance(spec, dict) and isinstance(spec.get("command"), str):
            return shlex.join([spec["command"], *_words(spec.get("args"))])
        if method.get("type") == "terminal":
            return shlex.join([*section.command, *_words(method.get("args"))])
    return None


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []
