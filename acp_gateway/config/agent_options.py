"""The options of `[agents.NAME]`, each with its default and where that comes from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, get_args

from acp_gateway.config.reached import ReachedSection, read_target
from acp_gateway.config.schema import (
    AbsolutePath,
    Count,
    Entry,
    FilePath,
    Fixed,
    Flag,
    Name,
    Seconds,
    SecondsOrNever,
    StringsByName,
    Text,
    Texts,
    choice,
)


def read_command(entry: Entry) -> tuple[str, ...]:
    """Read a program and its arguments. Raises `ConfigError`."""
    words = [element.value for element in entry.array('an array of strings, such as ["opencode", "acp"]')]
    if not words or not words[0]:
        raise entry.error("expected the program and its arguments, found no program")
    if any(not isinstance(word, str) or "\0" in word for word in words):
        raise entry.error("expected the program and its arguments as strings")
    return tuple(words)


def read_agent_url(entry: Entry) -> str:
    """Read the URL of an agent that listens, of any scheme that a client connects to except `ssh`.

    Returns it as it was written, because `http` and `https` say that there may be no WebSocket. Raises `ConfigError`.
    """
    if isinstance(entry.value, str) and "://" not in entry.value:
        raise entry.error("expected a URL, such as tcp://127.0.0.1:3000 or wss://host.example/acp")
    if read_target(entry).scheme == "ssh":
        raise entry.error("no agent listens at ssh: use a command that begins with ssh")
    return str(entry.value)


Scope = Literal["identity", "connection", "shared"]

McpPolicy = Literal["drop", "deny", "allow", "share"] | tuple[str, ...]
"""Treatment of MCP servers that would run on the gateway's machine. A tuple holds the names that are allowed; others
are dropped."""


def _mcp_servers(entry: Entry) -> McpPolicy:
    what = '"drop", "deny", "allow", "share" or an array of the names that are allowed'
    if isinstance(entry.value, str):
        for policy in ("drop", "deny", "allow", "share"):
            if entry.value == policy:
                return policy
        raise entry.expected_word(what, ("drop", "deny", "allow", "share"))
    for element in entry.array(what):
        if not (isinstance(element.value, str) and element.value):
            raise element.error("expected the name of an MCP server")
    return tuple(entry.value)


FenceValue = Literal["on", "bubblewrap", "landlock", "off"]

Network = Literal["on", "off"] | tuple[int, ...]
"""The network of a fenced agent. A tuple holds the TCP ports that it may connect to."""


def _network(entry: Entry) -> Network:
    what = '"on", "off" or an array of TCP ports'
    if isinstance(entry.value, str):
        for word in ("on", "off"):
            if entry.value == word:
                return word
        raise entry.expected_word(what, ("on", "off"))
    for element in entry.array(what):
        if type(element.value) is not int or not 0 < element.value < 65536:
            raise element.error("expected a port from 1 to 65535")
    return tuple(entry.value)


def _ports(entry: Entry) -> tuple[tuple[int, int], ...]:
    found = []
    for element in entry.array('an array of ports and ranges, such as [6006, "8000-8010"]'):
        text = str(element.value) if type(element.value) in (int, str) else ""
        first, _, last = text.partition("-")
        numbers = [
            int(part) if part.isascii() and part.isdigit() and len(part) <= 5 else 0 for part in (first, last or first)
        ]
        if not 0 < numbers[0] <= numbers[1] < 65536:
            raise element.error('expected a port from 1 to 65535, or a range of ports such as "8000-8010"')
        found.append((numbers[0], numbers[1]))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection(ReachedSection):
    """`[agents.NAME]`: a program that speaks ACP on its stdin and stdout."""

    EXAMPLE: ClassVar = 'command = ["opencode", "acp"]'
    RENAMED: ClassVar[Mapping[str, str]] = {"idle_stop": "idle_timeout"}
    MISTAKEN: ClassVar[Mapping[str, str]] = {"args": ": the arguments are words of command, behind the program"}

    command: Annotated[tuple[str, ...], read_command] | None = None
    """The program and its arguments. No shell reads them. A program without a slash is looked for in the agent's
    `PATH`; a relative path with one starts at `cwd`. Each agent needs this or `url`."""

    url: Annotated[str, read_agent_url] | None = None
    """The address of an agent that listens, in place of `command`: `tcp://`, `tcp+tls://` and `unix://` for messages in
    lines, without a hello; `wss://` and `ws://` for the WebSocket profile; `https://` and `http://` for Streamable HTTP
    as well."""

    far_agent: Name | None = None
    """The agent to use at `url`, where another gateway answers that has several; else its default."""

    connect_timeout: Fixed[Seconds] = 15.0
    """Seconds for which an agent at `url` that cannot be reached is tried again before its clients get an error. A
    server that is restarted is back within; editors wait longer for `initialize`."""

    reconnect_timeout: Fixed[SecondsOrNever] = 900.0
    """Seconds for which a lost connection to another gateway at `url` is tried again, while its agent goes on, before
    that counts as the agent's end. A quarter of an hour: longer than the restart of a router or a machine. Without a
    limit, prompts would wait forever for a machine that was switched off."""

    cwd: AbsolutePath | None = None
    """The agent's working directory, which a fenced agent may read; else a fenced agent's first workspace, or the
    gateway's directory. Each session has a folder of its own besides."""

    env: StringsByName = field(default_factory=dict, repr=False)
    """Variables for the agent. They override `env_file`, which overrides `pass_env`."""

    pass_env: Texts = ()
    """Names of variables to pass on from the gateway's environment. They are added to a fixed list of variables that
    carry no authority."""

    env_file: FilePath | None = None
    """A file of `NAME=value` lines, such as API keys, that only its owner may open (mode 0600). It is read at each
    start of the agent."""

    scope: Annotated[Scope, choice(*get_args(Scope))] = "identity"
    """The clients that share one process of the agent: `"identity"`, `"connection"` or `"shared"`. With `"identity"`,
    all devices of one person, which see each other's sessions at once, unlike other identities; with `"connection"`,
    each connection starts its own, for agents that can't hold several sessions at a time; with `"shared"`, all clients
    with access, for agents that are expensive to run, where sessions still belong to the identity that opened them."""

    idle_timeout: SecondsOrNever = 3600.0
    """Seconds without a message, and with nothing open, after which an unused agent is stopped, or `"never"`. An hour:
    longer than a lunch break, so that the agent is still there afterwards, and shorter than a night, so that a
    forgotten agent releases its memory. An agent whose sessions can't be re-opened is not stopped while a client is
    attached, and on Linux none that works in the background: while something runs that it has started since it was
    ready, or it uses the processor."""

    max_restarts: Fixed[Count] = 5
    """Maximum restarts of an agent that has ended, within ten minutes. An occasional crash mends itself; an agent that
    ends again and again would waste its users' time and the machine's processor."""

    initialize_timeout: Fixed[SecondsOrNever] = 60.0
    """Seconds to wait for the response to `initialize`; then the agent is stopped, and the error names the likely
    command. Agents respond within five, and one that `npx` has to fetch first within forty on a slow line. A program
    that is not an agent never does, and the editor would wait for it without any message."""

    permission_timeout: SecondsOrNever = math.inf
    """Seconds after which an undecided permission request is rejected for once, or `"never"`. What the agent offers no
    such answer to, and a question, counts as cancelled. Never, by default: a turn that waits until its user is back is
    worth more than one that was cancelled overnight."""

    mcp_servers: Annotated[McpPolicy, _mcp_servers] = "drop"
    """Policy for a client's MCP servers that would run here: `"drop"`, `"deny"`, `"allow"`, `"share"` or an array of
    names. These are programs and loopback addresses, by which the client means its own machine. `"drop"` leaves them
    out, `"deny"` refuses the session, `"allow"` passes them on; names, which the client chooses, pass those on and drop
    the others. With scope `"shared"` all servers are dropped or refused, because agents may offer them to the sessions
    of all identities; only `"share"` passes them on there too."""
    log_stderr: Fixed[Flag] = False
    """Logging of the agent's stderr, with known kinds of secrets redacted. Off, because it may hold content of any of
    its sessions; `serve --verbose` logs it."""

    login: Text | None = None
    """The command that logs the agent in on the gateway's machine. An editor whose agent is not logged in shows it."""

    fence: Annotated[FenceValue, choice(*get_args(FenceValue))] | None = None
    """Limits the agent's process, and all that it starts, to the folders of the workspaces, its own folders and the
    system's programs: `"on"` by the best means of the machine, `"bubblewrap"` or `"landlock"` by that one, `"off"` not
    at all. Where the machine has no means, the agent does not start. Without the option there is no fence, and the log
    says so; `acp-gateway up` and `serve --agent` set it."""

    writable: Texts = ()
    """More files and folders that the fenced agent may write. `~` is its home. Nothing in them may be what the gateway
    runs."""

    readable: Texts = ()
    """More files and folders that the fenced agent may read."""

    network: Annotated[Network, _network] = "on"
    """The fenced agent's network: `"on"`, `"off"`, or an array of the TCP ports that it may connect to. It listens
    at none with the latter two."""

    ports: Annotated[tuple[tuple[int, int], ...], _ports] = ()
    """More ports of this machine's loopback that the agent's controllers may reach, with `acp-gateway forward` and in
    the page: `[6006, "8000-8010"]`. Those on which its own processes listen are found without. A port on which another
    agent, another user or the gateway listens stays out of reach."""

    homes: Flag = False
    """Gives the fenced agent another home for each identity, in `state_dir`, so that people don't share logins and
    can't read each other's work. Off, because each person has to log in there."""

    client_fs: Flag = False
    """Lets the agent read and write files on the client's machine; in a shared session on that of its host, the
    connection that created or last loaded it: else a file would be written once for each client. Off, because agents
    that may do so no longer write to their own machine, where the repository is."""

    client_terminal: Flag = False
    """Lets the agent run commands on the client's machine, in a shared session on the host's. Off, because the
    repository is on the gateway's machine."""

    eof_grace: Fixed[Seconds] = 3.0
    """Seconds between closing the agent's stdin and SIGTERM to its process group. Agents that react to the end of their
    input save and exit within one."""

    term_grace: Fixed[Seconds] = 3.0
    """Seconds between SIGTERM and SIGKILL to the process group. With `eof_grace` it stays well below the 90 seconds
    that systemd gives."""
