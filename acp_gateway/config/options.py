"""Every option of the gateway's configuration file: its type, its default, and the reason for it.

A field is an option, its default is the option's default, and the text below it says what it does and, for a limit,
where the number comes from. The options of `[limits]` are in `limits`. `load` checks options against each other.
"""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, get_args

from acp_gateway.config.addresses import Address, parse_address
from acp_gateway.config.directories import state_home
from acp_gateway.config.schema import (
    AbsolutePath,
    Count,
    Entry,
    FilePath,
    Flag,
    LargeSize,
    Name,
    Seconds,
    SecondsOrNever,
    Share,
    Size,
    StringsByName,
    Text,
    Texts,
    choice,
    one_of,
)
from acp_gateway.errors import UsageError

Scope = Literal["identity", "connection", "shared"]

Journal = Literal["disk", "memory"]

LogFormat = Literal["text", "json"]

Role = Literal["controller", "observer"]

Service = Literal["acp", "page", "metrics"]
"""A part of the gateway that a listener serves over HTTP."""

McpPolicy = Literal["drop", "deny", "allow"] | tuple[str, ...]
"""Treatment of MCP servers that would run on the gateway's machine. A tuple holds the names that are allowed; others
are dropped."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _listen_url(entry: Entry) -> str:
    if not isinstance(entry.value, str):
        raise entry.expected("a URL")
    try:
        parse_address(entry.value)
    except UsageError as error:
        raise entry.error(str(error)) from None
    return entry.value


_RESERVED_SERVICES: Final = ("chat", "editor", "tap")
"""Names of services that are planned."""


def _services(entry: Entry) -> tuple[Service, ...]:
    known = get_args(Service)
    elements = entry.array(f"an array of {one_of(known)}")
    if not elements:
        raise entry.error(f"expected at least one of {one_of(known)}")
    for element in elements:
        if element.value in _RESERVED_SERVICES:
            raise element.error(f'this version does not serve "{element.value}" yet, only {one_of(known)}')
        if element.value not in known:
            raise element.expected_word(one_of(known), known)
    if "page" in entry.value and "acp" not in entry.value:
        raise entry.error('"page" needs "acp" beside it: the page connects to the endpoint at its own address')
    return tuple(entry.value)


def _origins(entry: Entry) -> tuple[str, ...]:
    for element in entry.array("an array of origins"):
        # As a browser sends it. No "*" and no "null": every sandboxed page has the latter.
        if not (isinstance(element.value, str) and re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#A-Z]+", element.value)):
            raise element.error('expected an origin in lower case and without a path, such as "https://editor.example"')
    return tuple(entry.value)


def _hosts(entry: Entry) -> tuple[str, ...]:
    for element in entry.array("an array of host names"):
        # As in the header, without the port, which differs behind a proxy and protects nothing.
        if not (isinstance(element.value, str) and re.fullmatch(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]", element.value)):
            raise element.error('expected a host in lower case and without a port, such as "gpu.example" or "[::1]"')
    return tuple(entry.value)


def _networks(entry: Entry) -> tuple[Network, ...]:
    networks = []
    for element in entry.array("an array of addresses and networks"):
        try:
            networks.append(ipaddress.ip_network(element.value if isinstance(element.value, str) else ""))
        except ValueError:
            raise element.error('expected an IP address or a network, such as "127.0.0.1" or "10.0.0.0/8"') from None
    return tuple(networks)


def _mcp_servers(entry: Entry) -> McpPolicy:
    what = '"drop", "deny", "allow" or an array of the names that are allowed'
    if isinstance(entry.value, str):
        for policy in ("drop", "deny", "allow"):
            if entry.value == policy:
                return policy
        raise entry.expected_word(what, ("drop", "deny", "allow"))
    for element in entry.array(what):
        if not (isinstance(element.value, str) and element.value):
            raise element.error("expected the name of an MCP server")
    return tuple(entry.value)


def _command(entry: Entry) -> tuple[str, ...]:
    words = [element.value for element in entry.array('an array of strings, such as ["opencode", "acp"]')]
    if not words or not words[0]:
        raise entry.error("expected the program and its arguments, found no program")
    if any(not isinstance(word, str) or "\0" in word for word in words):
        raise entry.error("expected the program and its arguments as strings")
    return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySection:
    """`[gateway]`: settings of the whole gateway."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "journal": "journal_storage",
        "max_open_requests": "max_open_requests in [limits]",
        "max_queued_prompts": "queued_prompts_per_session in [limits]",
    }

    state_dir: AbsolutePath = field(default_factory=state_home)
    """Folder of tokens and sessions. Absolute, so that a service and a shell mean the same folder."""

    default_agent: Name | None = None
    """The agent for clients that name none. Required with several agents."""

    max_message_size: Size = 64 * 1024 * 1024
    """Maximum bytes of one JSON-RPC message. Images and whole files travel in one message, and limits of 64 KiB or
    1 MiB have broken many programs of this kind; without a limit one peer could fill the memory."""

    handshake_timeout: Seconds = 10.0
    """Seconds for TLS and the HTTP upgrade or hello together. Slow mobile links need about two; a silent socket takes
    up memory before it has sent a token."""

    ping_interval: Seconds = 20.0
    """Seconds between pings. Routers and proxies forget an idle connection after 30 to 60 seconds."""

    ping_timeout: Seconds = 20.0
    """Seconds to wait for a pong before the connection is closed. A phone that changes networks is back within this;
    with the interval, a dead link is noticed after 40 seconds at most."""

    stall_timeout: Seconds = 60.0
    """Seconds after which a peer that accepts no bytes is disconnected. Longer than a ping and its pong, so that a dead
    link is reported as such, and short enough that its queue does not occupy memory for long."""

    write_high_water: Size = 1024 * 1024
    """Bytes waiting to be written to a peer, above which its senders are not read. Enough to keep a fast link busy
    between two turns of the scheduler, little enough to have for each of many connections."""

    outbox_limit: Size = 32 * 1024 * 1024
    """Maximum bytes queued for one connected client; `away_limit` is the limit for one that is away. Beyond it the
    client is detached and catches up from the journal, so that a client that reads nothing delays neither the agent nor
    other clients. Half a minute at 1 MiB a second, which no agent writes for long: a client further behind does not
    catch up. A single larger message still passes, or a file that `max_message_size` allows could never be delivered.
    Replayed history does not count, because its length is not the client's fault, nor do bytes in flight on a
    resumable link. The same limit applies to requests of one side that wait until the other can take them."""

    away_grace: SecondsOrNever = 86400.0
    """Seconds that a lost link is kept for its client to return, with the messages queued meanwhile. A night and a day:
    a laptop that is closed in the evening continues on the next evening at the latest, without a loss."""

    away_grace_idle: Seconds = 900.0
    """The same for a connection with an agent of its own (`scope = "connection"`) and nothing open: no turn, no
    permission, no request. A quarter of an hour: longer than a train's tunnel or a way to another room, and only an
    idle agent's process is lost after it, which occupies memory for one person alone."""

    away_limit: Size = 64 * 1024 * 1024
    """Maximum bytes queued for a client that is away. Beyond it the link is gone: on its return the client is told that
    it is too far behind, and catches up from the journal. An agent that writes 2 KiB a second without a pause takes
    nine hours for that, a night; and the largest message that `max_message_size` allows fits."""

    resume_window: LargeSize = 8 * 1024 * 1024
    """Maximum unconfirmed bytes in flight on a resumable link; a single larger message still passes. At a round-trip
    time of 200 ms this keeps a line of 300 Mbit/s busy, and it bounds what is sent again after such a link was lost. At
    least 1 MiB, because confirmations come every 512 KiB."""

    journal_limit: Size = 16 * 1024 * 1024
    """Maximum bytes of one session's history, kept for clients that join later; the oldest turns are removed first,
    whole. Some thousand pages of text with the output of tools, or a dozen screenshots; little enough to keep for each
    of sixty sessions within `memory_limit`."""

    history_limit: LargeSize = 4 * 1024 * 1024 * 1024
    """Maximum bytes of all histories on disk. Beyond it, the histories of the least recently used sessions are removed;
    if only live sessions are left, histories lose their beginning. 250 full histories, which is more than a year of one
    person; the disk of a small machine has several times that."""

    history_limit_per_identity: LargeSize = 2 * 1024 * 1024 * 1024
    """Maximum bytes of the histories of one identity's sessions, so that no identity can push out those of others."""

    write_delay: Seconds = 0.5
    """Maximum seconds before history is written to disk (write-behind). A gateway that is killed loses that much, plus
    what arrives during the write. Usually the delay is a tenth of this; only with a slow disk are batches larger."""

    write_behind_limit: Size = 8 * 1024 * 1024
    """Maximum bytes of history that wait to be written; beyond it, writing begins at once. A fifth of a second of the
    fastest stream, and little enough for one transaction of some tens of milliseconds."""

    journal_storage: Annotated[Journal, choice(*get_args(Journal))] = "disk"
    """Storage of session histories. With `disk` they are in `state_dir`, readable by its owner alone, and clients
    continue after a restart where they stopped. With `memory` no message is written to disk, and after a restart only
    what the agent itself has stored comes back."""

    retention_days: Count = 30
    """Days after which an unused session is forgotten by the gateway, with its history; the agent's own records stay. A
    month: longer than a holiday, and short enough that old conversations don't pile up on the disk."""

    memory_limit: Size = 1024 * 1024 * 1024
    """Maximum bytes of all outboxes and journals together (shared data counts once) and of everything received but not
    passed on yet: unfinished messages, waiting requests and prompts, an agent's unanswered requests. Beyond it,
    unfinished echoes of prompts are given up first; then the data sent by the identity that holds most, if that is most
    of it; then the client that has been away for longest; then the largest outbox or journal goes: its client is
    detached, or the journal is cut. The other limits bound each client and each session, not their number; this leaves
    a small machine's memory to the agents."""

    trusted_proxies: Annotated[tuple[Network, ...], _networks] = ()
    """Addresses and networks of reverse proxies whose `X-Forwarded-For` is trusted. None by default: any client can
    send that header, and a trusted one chooses the address under which failures are counted."""

    audit_size: LargeSize = 16 * 1024 * 1024
    """Bytes of `audit.jsonl` in `state_dir` after which a new file is begun. Some eighty thousand entries, which a text
    editor still opens."""

    audit_files: Count = 10
    """Number of audit files that are kept, the current one included. With `audit_size`, more than half a year of a busy
    gateway, and no more disk space than one session's screenshots."""

    record_dir: AbsolutePath | None = None
    """Folder in which each connection's messages are recorded, for support: everything except known kinds of secrets.
    Off by default, because that is all content."""

    record_limit: LargeSize = 1024 * 1024 * 1024
    """Maximum bytes of all recordings together, beyond which recording stops. A long day of a chatty agent; a forgotten
    recording must not fill the disk."""

    record_message_size: Size = 256 * 1024
    """Maximum bytes of one message that is recorded or logged as it is; a larger one is recorded by its size and
    method. Conversation, code and most results of tools are smaller; looking through one for secrets takes the event
    loop up to 20 ms, and 40 ms per MiB."""

    record_share: Share = 0.25
    """Share of the event loop's time that recording and `--log-bodies` may take in the long run, each. Beyond it,
    messages are recorded by their size, so that recording delays no client for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSection:
    """`[workspaces.NAME]`: a folder in which sessions may work."""

    root: AbsolutePath
    """The folder. It and everything below it may be a session's `cwd`, after symbolic links were followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSection:
    """`[certificates.NAME]`: a client certificate of `client_ca` that is accepted instead of a token."""

    subject: Text
    """The whole subject of the certificate as RFC 4514 writes it, the most specific part first, such as
    `CN=ann,O=Example`; it has to match word for word."""

    identity: Text | None = None
    """The identity of its connections; else the gateway's own user."""

    role: Annotated[Role, choice(*get_args(Role))] = "controller"
    """The most that it allows: `controller` or `observer`."""

    agents: Texts | None = None
    """The names of the agents that it may use; else all."""

    workspaces: Texts | None = None
    """The names of the workspaces that it may use; else all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSection:
    """`[[listen]]`: one address on which clients are accepted."""

    url: Annotated[str, _listen_url]
    """`wss://`, `ws://`, `tcp+tls://`, `tcp://` with host and port, or `unix://` with an absolute path. `https://` is
    another name of `wss://`, and `http://` of `ws://`."""

    serves: Annotated[tuple[Service, ...], _services] | None = None
    """Parts of the gateway that are served there, for `ws` and `wss`; requests for others are answered with 404. By
    default the endpoint of ACP, and over TLS or on loopback, where the network can't read a browser's secrets, the
    page. Metrics have readers of their own, and often an address of their own."""

    cert: FilePath | None = None
    """The certificate chain in PEM. For `wss` and `tcp+tls`, which need it."""

    key: FilePath | None = None
    """The private key of the certificate in PEM."""

    client_ca: FilePath | None = None
    """Authorities, in PEM, whose certificates authenticate a client without a token, as `[certificates.NAME]` says. For
    `wss` and `tcp+tls`. A client without a certificate may send a token; a certificate of another authority is
    refused."""

    client_crl: FilePath | None = None
    """Revocation lists, in PEM, of the authorities in `client_ca`: a revoked certificate opens nothing, and at a SIGHUP
    its open connections end. A list that has expired still counts, and is warned of. Without it, a certificate counts
    until it expires."""

    insecure_plaintext: Flag = False
    """Lets `ws` and `tcp` listen off loopback, where the network can read tokens and code."""

    peer_uid: Flag = True
    """Accepts processes of the gateway's own user without a token. For `unix`, where the kernel names the user."""

    allowed_origins: Annotated[tuple[str, ...], _origins] = ()
    """Origins of web pages that may connect. For `ws` and `wss`. None by default: any page in a browser can reach
    loopback."""

    allowed_hosts: Annotated[tuple[str, ...], _hosts] = ()
    """Accepted names, without a port, in the `Host` header. For `ws` and `wss`. A loopback listener rejects every name
    except its own and these (protection against DNS rebinding); a proxy that passes the `Host` header on needs its name
    here. Off loopback, all names are accepted if none is listed."""

    @property
    def address(self) -> Address:
        """The parsed `url`."""
        return parse_address(self.url)

    @property
    def services(self) -> tuple[Service, ...]:
        """The parts of the gateway that are served there: `serves`, or its default."""
        address = self.address
        if not address.websocket:
            return ("acp",)
        if self.serves is not None:
            return self.serves
        return ("acp", "page") if address.tls or address.loopback else ("acp",)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection:
    """`[agents.NAME]`: a program that speaks ACP on its stdin and stdout."""

    RENAMED: ClassVar[Mapping[str, str]] = {"idle_stop": "idle_timeout"}

    command: Annotated[tuple[str, ...], _command]
    """The program, found as a shell would from `cwd`, and its arguments. No shell reads it."""

    cwd: AbsolutePath | None = None
    """The agent's working directory; else the gateway's. Each session has a folder of its own besides."""

    env: StringsByName = field(default_factory=dict, repr=False)
    """Variables for the agent. They override `env_file`, which overrides `pass_env`."""

    pass_env: Texts = ()
    """Names of variables to pass on from the gateway's environment, in addition to a small fixed list."""

    env_file: FilePath | None = None
    """A file of `NAME=value` lines that only its owner may open, for API keys."""

    scope: Annotated[Scope, choice(*get_args(Scope))] = "identity"
    """The clients that share one process of the agent. With `identity`, all devices of one person, which see each
    other's sessions at once, unlike other identities; with `connection`, each connection starts its own; with `shared`,
    all clients with access, where sessions still belong to the identity that opened them."""

    idle_timeout: SecondsOrNever = 3600.0
    """Seconds without a message, and with nothing open, after which an unused agent is stopped. An hour: longer than a
    lunch break, so that the agent is still there afterwards, and shorter than a night, so that a forgotten agent
    releases its memory. An agent whose sessions can't be re-opened is not stopped while a client is attached."""

    max_restarts: Count = 5
    """Maximum restarts of an agent that has ended, within ten minutes. An occasional crash mends itself; an agent that
    ends again and again would waste its users' time and the machine's processor."""

    initialize_timeout: SecondsOrNever = 60.0
    """Seconds to wait for the response to `initialize`; then the agent is stopped, and the error names the likely
    command. Agents respond within five, and one that `npx` has to fetch first within forty on a slow line. A program
    that is no agent never does, and the editor would wait for it without any message."""

    permission_timeout: SecondsOrNever = math.inf
    """Seconds after which an undecided permission request or question counts as cancelled. Never, by default: a turn
    that waits until its user is back is worth more than one that was cancelled overnight."""

    mcp_servers: Annotated[McpPolicy, _mcp_servers] = "drop"
    """Treatment of a client's MCP servers that are programs, or at a loopback address: the client means its machine,
    but they would run on this one. `drop` leaves them out, `deny` refuses the session, `allow` passes them on; a list
    of names passes those on and drops the others. The client chooses the names."""

    log_stderr: Flag = False
    """Logs the agent's stderr, with known kinds of secrets redacted. Off, because it may hold content of any of its
    sessions; `serve --verbose` logs it as well."""

    login: Text | None = None
    """The command that logs the agent in, to be run on the gateway's machine; quoted in the error about a missing
    login."""

    client_fs: Flag = False
    """Lets the agent read and write files on the client's machine. Off, because agents that may do so no longer write
    to their own, where the repository is. In a shared session only its host is asked, the connection that created or
    last loaded it: else a file would be written once for each client."""

    client_terminal: Flag = False
    """Lets the agent run commands on the client's machine, in a shared session on the host's. Off for the same
    reason."""

    eof_grace: Seconds = 3.0
    """Seconds between closing the agent's stdin and SIGTERM to its process group. Agents that react to the end of their
    input save and exit within one."""

    term_grace: Seconds = 3.0
    """Seconds between SIGTERM and SIGKILL. Both together stay well below the 90 seconds that systemd gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksSection:
    """`[hooks]`: programs that are run on events; each gets one line of JSON on its stdin."""

    on_permission_waiting: Annotated[tuple[str, ...], _command] | None = None
    """The program, and its arguments, to run when an agent waits for a decision and no controller is connected. No
    shell reads it."""

    on_turn_end: Annotated[tuple[str, ...], _command] | None = None
    """The program, and its arguments, to run when a turn has ended."""

    timeout: Seconds = 30.0
    """Seconds after which a program that still runs is stopped. A push service answers within two, a slow mail server
    within twenty. Few hooks run at a time, so one that hangs delays those after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSection:
    """`[log]`: the log of `serve`."""

    format: Annotated[LogFormat, choice(*get_args(LogFormat))] = "text"
    """Format of a log line: `text` for people, or `json`, one object for each line, for programs that collect logs."""
