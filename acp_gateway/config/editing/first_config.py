"""Writes the first configuration of a gateway: one TLS listener, one workspace, and the agents of this machine."""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from acp_gateway.config.agent_search import FoundAgent, needed_scope
from acp_gateway.config.editing.section_writer import Keys, Value, change_section, replace_file
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.load import Config, collect
from acp_gateway.errors import ConfigError
from acp_gateway.printable import printable

SOCKET: Final = "socket"
"""Name of the unix socket in `state_dir`, for connections over ssh and of the gateway's own user."""

_SOCKET_PATH_SIZE: Final = 103
"""Maximum bytes of the path of a unix socket: Linux accepts 107, macOS 103."""

_HEADER: Final = """\
# The gateway's configuration, as `acp-gateway up` has made it. It is yours to change: `up` does not change it again.
# Every option with its default: acp-gateway files gateway.toml. Is it right? acp-gateway check-config
"""


@dataclass(frozen=True, slots=True)
class FirstConfig:
    """The values of a new configuration."""

    host: str | None
    """The address to listen at; None to listen at a unix socket only."""
    port: int
    """The port to listen at."""
    cert: str
    key: str
    """Paths of the certificate and its key; relative ones are meant from the configuration's folder."""
    state_dir: Path
    """The gateway's state folder, which is the default one."""
    workspace: Path
    """The folder in which sessions may work."""
    agents: Sequence[FoundAgent]
    """The agents, the default one first."""
    cwd: Path | None = None
    """The working directory of the agents; None for the gateway's."""
    public_host: str | None = None
    """The name or address by which others reach this machine, as `parse_host` returns it; None if it was not given."""
    fence: bool = False
    """True if the agents are to have a fence."""

    @property
    def url(self) -> str:
        """The URL of the TLS listener."""
        assert self.host is not None, "there is one"
        return f"wss://{_bracketed(self.host)}:{self.port}"

    @property
    def public_url(self) -> str | None:
        """The URL of the page by which others reach it."""
        return None if self.public_host is None else f"https://{_bracketed(self.public_host)}:{self.port}"

    def write(self) -> str:
        """Return the text of the configuration file."""
        socket = self.state_dir / SOCKET
        sections = [_HEADER]
        if len(self.agents) > 1:
            sections.append(f"[gateway]\ndefault_agent = {quote(self.agents[0].name)}\n")
        if self.host is not None:
            listener = f"[[listen]]\nurl = {quote(self.url)}\ncert = {quote(self.cert)}\nkey = {quote(self.key)}\n"
            if self.public_url is not None:
                listener += f"public_url = {quote(self.public_url)}\n"
            sections.append(listener)
        elif len(bytes(socket)) > _SOCKET_PATH_SIZE:
            raise ConfigError(
                f"the path {printable(str(socket), 200)} is too long for a unix socket: set XDG_STATE_HOME"
            )
        if len(bytes(socket)) <= _SOCKET_PATH_SIZE:
            sections.append(
                "# For connections over ssh, which need no open port, and for this user, who needs no token here.\n"
                f"[[listen]]\nurl = {quote(f'unix://{socket}')}\n"
            )
        sections.append(workspace_section(self.workspace))
        sections.append(
            "# PATH is that of the shell in which `up` was run: a service has a shorter one, where agents do not find\n"
            "# their tools.\n" + "\n".join(agent_section(agent, self.cwd, fence=self.fence) for agent in self.agents)
        )
        return "\n".join(sections)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def workspace_section(folder: Path) -> str:
    """Return the section of a workspace, named after its folder."""
    return f"[workspaces.{_key(workspace_name(folder))}]\nroot = {quote(str(folder))}\n"


def workspace_name(folder: Path) -> str:
    """Return a name for a workspace: that of its folder, as far as its characters can be in one."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-")[:60] or "root"


def free_name(name: str, taken: Sequence[str]) -> str:
    """Return a name, with a number if it is taken."""
    numbered = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
    return next(each for each in numbered if each not in taken)


def agent_section(agent: FoundAgent, cwd: Path | None = None, *, fence: bool = False) -> str:
    """Return the section of an agent."""
    lines = [
        f"[agents.{_key(agent.name)}]",
        f"command = [{', '.join(map(quote, agent.command))}]",
    ]
    if agent.env:
        lines.append(f"env = {{ {', '.join(f'{_key(name)} = {quote(value)}' for name, value in agent.env.items())} }}")
    if cwd is not None:
        lines.append(f"cwd = {quote(str(cwd))}")
    if fence:
        lines.append('fence = "on"')
    if (scope := needed_scope(agent.command)) is not None:
        lines.append(f"scope = {quote(scope)}")
    if agent.login is not None:
        lines.append(f"login = {quote(agent.login)}")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quote(name)


def quote(text: str) -> str:
    """Return a text as a basic string of TOML, which is JSON's, except for one character.

    Raises `ConfigError` for a path that is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{printable(text)} is not UTF-8, and can't be in a configuration") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True, slots=True)
class Addition:
    """A section to be added, or options of one."""

    keys: Keys
    """Its path, such as `("workspaces", "proj")`."""
    options: dict[str, Value | None]


def workspace_additions(config: Config, folder: Path, roots: list[str]) -> list[Addition]:
    """Return what lets sessions use a folder besides the `roots` that they may use now.

    Without any [workspaces] the roots are added too: they are only a default.
    """
    taken = list(config.workspaces)
    additions = []
    for root in [folder] if taken else [*map(Path, roots), folder]:
        name = free_name(workspace_name(root), taken)
        taken.append(name)
        additions.append(Addition(("workspaces", name), {"root": str(root)}))
    return additions


def agent_additions(config: Config, agent: FoundAgent, cwd: Path, *, fence: bool) -> list[Addition]:
    """Return what adds an agent, fenced or not, which starts in a folder. The default agent stays the same."""
    name = free_name(agent.name, list(config.agents))
    options: dict[str, Value | None] = {
        "command": agent.command,
        "env": agent.env or None,
        "cwd": str(cwd),
        "fence": "on" if fence else None,
        "scope": needed_scope(agent.command),
        "login": agent.login,
    }
    additions = [Addition(("agents", name), options)]
    if config.gateway.default_agent is None:
        # With several agents, one of them has to be named.
        additions.insert(0, Addition(("gateway",), {"default_agent": config.default_agent}))
    return additions


def add(path: Path, additions: list[Addition]) -> Config:
    """Write additions to a configuration file, all or none; return the new configuration.

    Raises `ConfigError` if the file can't be read, written, or changed in that way.
    """
    file = TomlFile.read(path)
    for addition in additions:
        text = change_section(file, addition.keys, addition.options)
        file = TomlFile(path, tomllib.loads(text), text)
    config, problems = collect(file)
    if config is None:
        raise problems[0]
    real = path.resolve()
    try:
        status = real.stat()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    replace_file(real, file.source, status)
    return config
