"""Every option of the gateway's configuration file: its type, its default, and the reason for it.

A field is an option, its default is the option's default, the text below it says what it does and, for a limit, where
the number comes from. `config` holds what the options mean for each other.
"""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, get_args

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
)
from acp_gateway.errors import UsageError

Scope = Literal["identity", "connection", "shared"]

Journal = Literal["disk", "memory"]

Role = Literal["controller", "observer"]

McpPolicy = Literal["drop", "deny", "allow"] | tuple[str, ...]
"""What becomes of MCP servers that would run on the gateway's machine; a tuple holds the names that are allowed, and
drops the others."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _listen_url(entry: Entry) -> str:
    if not isinstance(entry.value, str):
        raise entry.expected("a URL")
    try:
        parse_address(entry.value)
    except UsageError as error:
        raise entry.error(str(error)) from None
    return entry.value


def _origins(entry: Entry) -> tuple[str, ...]:
    for element in entry.array("an array of origins"):
        # As a browser sends it. No "*" and no "null": every sandboxed page has the latter.
        if not (isinstance(element.value, str) and re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#A-Z]+", element.value)):
            raise element.error('expected an origin in lower case and without a path, such as "https://editor.example"')
    return tuple(entry.value)


def _hosts(entry: Entry) -> tuple[str, ...]:
    for element in entry.array("an array of host names"):
        # As it stands in the header but for the port: which one a proxy was asked on is nobody's secret.
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
    """Where tokens and sessions are kept. Absolute, so that a service and a shell mean the same folder."""

    default_agent: Name | None = None
    """The agent for a client that names none. Need not be set if there is only one."""

    max_message_size: Size = 64 * 1024 * 1024
    """Bytes of one JSON-RPC message. Images and whole files travel in one message, and limits of 64 KiB or 1 MiB
    have broken many programs of this kind; without a limit one peer could fill the memory."""

    handshake_timeout: Seconds = 10.0
    """Seconds for TLS and the HTTP upgrade or hello together. Slow mobile links need about two; a socket that says
    nothing occupies memory before it has shown a token."""

    ping_interval: Seconds = 20.0
    """Seconds between pings. Routers and proxies forget an idle connection after 30 to 60 seconds."""

    ping_timeout: Seconds = 20.0
    """Seconds in which a ping must be answered. A phone that changes networks is back within this; with the
    interval, a dead link is noticed after 40 seconds at most."""

    stall_timeout: Seconds = 60.0
    """Seconds after which a peer that accepts no bytes is cut. Longer than a ping and its answer, so that a dead
    link is reported as such, and short enough that what waits for it does not occupy memory for long."""

    write_high_water: Size = 1024 * 1024
    """Bytes that wait to be written to a peer; above it whoever sends more is not read. Enough to keep a fast link
    busy between two turns of the scheduler, little enough to have for each of many connections."""

    outbox_limit: Size = 32 * 1024 * 1024
    """Bytes that wait for one client that is connected; for one that is away, see `away_limit`. Past it the client is
    detached, and comes back through the journal; so one that reads nothing holds up neither the agent nor the others.
    Half a minute of a flood of 1 MiB a second, which no agent writes for long: whoever is further behind won't catch
    up. A single message that is larger still passes, or a file that `max_message_size` allows could never be
    delivered; and the replay of a history, whose length is not the client's fault, does not count, nor what is on
    its way over a link that resumes. The other way the same number bounds the requests of one side that are held here
    because the other can't have them yet."""

    away_grace: SecondsOrNever = 86400.0
    """Seconds for which a link that was lost is kept, with all that came for its client meanwhile. A night and a day:
    a laptop that is closed in the evening goes on the next one at the latest as if nothing had been."""

    away_grace_idle: Seconds = 900.0
    """The same for a connection with an agent of its own (`scope = "connection"`) in which nothing is open, no turn, no
    permission and no request. A quarter of an hour: longer than a train's tunnel or a way to another room, and nothing
    is lost after it but an idle agent's process, which occupies memory for one person alone."""

    away_limit: Size = 64 * 1024 * 1024
    """Bytes that may wait for a client that is away. Past it the link is gone, the client is told when it returns that
    it is too far behind, and comes back through the journal. An agent that writes 2 KiB a second without a pause takes
    nine hours for that, a night; and it is room for the largest message that `max_message_size` allows."""

    resume_window: LargeSize = 8 * 1024 * 1024
    """Bytes that may be on their way, not confirmed yet, to the far side of a link that resumes; a single message that
    is larger still passes. At 200 ms there and back this keeps a line of 300 Mbit/s busy, and it is what has to be sent
    again at most when such a link was lost. At least 1 MiB, as 512 KiB are confirmed at once."""

    journal_limit: Size = 16 * 1024 * 1024
    """Bytes of one session's history that are kept for those who join later; the oldest turns go first, whole. Some
    thousand pages of text with the output of tools, or a dozen screenshots; little enough to keep for each of sixty
    sessions within `memory_limit`."""

    history_limit: LargeSize = 4 * 1024 * 1024 * 1024
    """Bytes of all histories on the disk. Past it the histories of the sessions that were unused for longest go, but
    for those of live sessions, of which each stays within `journal_limit`. Two hundred and fifty whole ones, which is
    more than a year of one person; the disk of a small machine has several times that."""

    history_limit_per_identity: LargeSize = 2 * 1024 * 1024 * 1024
    """The same of one identity's sessions, so that nobody can push out what the others have."""

    write_delay: Seconds = 0.5
    """Seconds that what was said may wait to be written to the disk; a gateway that is killed loses that much, and what
    comes while it is being written. Mostly it is a tenth of this: only where writing is slow more is gathered."""

    write_behind_limit: Size = 8 * 1024 * 1024
    """Bytes of histories that may wait to be written before all of them are at once: a fifth of a second of the fastest
    stream, and little enough to be written in one transaction of some tens of milliseconds."""

    journal_storage: Annotated[Journal, choice(*get_args(Journal))] = "disk"
    """Whether the histories of sessions outlive the gateway. With `disk` they are in `state_dir`, for its owner alone,
    so that whoever was connected goes on after a restart where it stopped; with `memory` the gateway writes down
    nothing that was said, and after a restart only what the agent itself has kept comes back."""

    retention_days: Count = 30
    """Days after which a session that nobody used is forgotten here, with its history; what the agent has kept of it
    stays. A month: longer than a holiday, and short enough that old conversations don't pile up on the disk."""

    memory_limit: Size = 1024 * 1024 * 1024
    """Bytes of all outboxes and journals together, where what several share counts once, and of all that was sent and
    not passed on yet: unfinished messages, requests and prompts that wait. Past it, what the identity that holds most
    has sent goes first, where that is most of it; then the client that has been away for longest; then the largest of
    them: its client is detached, or the journal is cut. The other limits bound each client and each session, not how
    many there are; this leaves a small machine's memory to the agents."""

    trusted_proxies: Annotated[tuple[Network, ...], _networks] = ()
    """Addresses of reverse proxies whose `X-Forwarded-For` is believed. None by default: everybody can send that
    header, and whoever is believed chooses the address under which failures are counted."""

    audit_size: LargeSize = 16 * 1024 * 1024
    """Bytes of `audit.jsonl` in `state_dir`, after which a new one is begun. Some eighty thousand entries, which a
    text editor still opens."""

    audit_files: Count = 10
    """Files of the audit that are kept, the one that is written included. With `audit_size`, more than half a year of a
    busy gateway, and no more of the disk than one session's screenshots."""

    record_dir: AbsolutePath | None = None
    """Where each connection's messages are written down, for support: secrets left out, everything else in it. Not
    without being asked, because it is everything that was said."""

    record_limit: LargeSize = 1024 * 1024 * 1024
    """Bytes of all recordings together, after which nothing more is written down. A long day of a chatty agent; a
    recording that was forgotten must not fill the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSection:
    """`[limits]`: maximum numbers and rates, before authentication and for each identity."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "max_waiting_prompts": "max_queued_prompts",
        "waiting_prompts_per_identity": "queued_prompts_per_identity",
    }

    max_handshakes: Count = 256
    """Connections that have not shown a token yet; one more, and of the address that has most of them the oldest
    is closed for which nothing is being done. A fleet of laptops that come back after an outage of the network; each
    costs some 40 KB and a descriptor."""

    handshakes_per_address: Count = 32
    """The same from one address, behind which may be an office; one more, and the oldest of them is closed for which
    nothing is being done. Connections of trusted proxies and through unix sockets don't count."""

    failed_attempts: Count = 20
    """Refusals of one address, or of one token, within `failed_attempts_window`, after which further ones are slowed
    down. A person's devices with a token that has expired make a handful; whoever shows a right token is let in
    whatever the count."""

    failed_attempts_window: Seconds = 60.0
    """Seconds for which a refusal counts. Long enough that guessing is slow, short enough that a corrected
    configuration is tried again soon."""

    max_connections: Count = 4096
    """Connections that have come in, those that are away included. At some 25 KB each, 100 MB; half of what one process
    may have open on most systems with a raised limit."""

    connections_per_identity: Count = 2048
    """The same of one identity: half of all, so that nobody can keep the others out. Its observers have half of that
    at most."""

    connections_per_guest: Count = 16
    """The same of one guest's token. A person looks on from two or three devices."""

    reserved_connections: Count = 64
    """Of `max_connections`, what is kept for identities that have none yet: a team's worth. Before a connection is
    refused, one that is away is given up, of the identity or guest that has most, and more than the newcomer has."""

    messages_per_second: Count = 5000
    """Messages of the clients of one identity that are read in a second, on the long run; who sends more is read more
    slowly. Editors send a few, programs that drive an agent some hundred; a flood of this size costs a tenth of a
    processor."""

    message_burst: Count = 20_000
    """Messages that may come at once before that. What a laptop has to say after a long time away goes through without
    a wait. Divided by `messages_per_second`, it is also for how many seconds the next two may be overstepped."""

    bytes_per_second: Size = 64 * 1024 * 1024
    """Bytes that the clients of one identity send in a second, on the long run, unfinished messages included. A line of
    500 Mbit/s, more than a person's laptop has; to take in that much costs a tenth to a fifth of a processor."""

    loop_share: Share = 0.25
    """Share of the event loop's time that the messages of one identity may take, on the long run. It is measured, as
    messages differ in what they cost. A quarter: more than a very busy person needs, and three others find room."""

    frames_without_message: Count = 10_000
    """WebSocket frames without a message (pings, binary and empty ones, pieces below 1 KiB), blank lines and
    confirmations that one connection may send at once, and a hundredth of it in a second on the long run; past it the
    connection is closed. A message of 64 MiB in pieces of 1 KiB counts for none; a client that is well sends one in
    ten seconds."""

    observer_message_size: Size = 64 * 1024
    """Bytes of one message of a client that may only look. It asks for a list or a session: some hundred bytes."""

    message_timeout: SecondsOrNever = 60.0
    """Seconds that a message may take from its first byte to its last, and a second more for each 4 KiB that have come.
    A modem of 56 kbit/s is fast enough; a beginning that does not grow occupies memory for this long at most."""

    max_sessions: Count = 4096
    """Sessions that are open at a time; a further `session/new` is refused. Each has a history in memory, which
    `memory_limit` bounds, and a few kilobytes besides."""

    sessions_per_identity: Count = 1024
    """The same of one identity. Editors leave sessions open; a thousand is many months of that."""

    max_open_requests: Count = 1000
    """Maximum requests of one side of a connection that wait for the other's response. An editor has a handful open, an
    agent one for each question; each is remembered, so a peer that never stops asking would fill the memory."""

    max_queued_prompts: Count = 1000
    """Maximum prompts that wait for the end of a turn, in all sessions together; a further one is refused. Each is held
    in memory with all its content."""

    queued_prompts_per_identity: Count = 200
    """The same for one identity: ten sessions with a full queue each, which is more than a person can look after."""

    queued_prompts_per_session: Count = 20
    """The same for one session. A person queues a few, and several people a few each; a program that never stops
    sending would fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSection:
    """`[workspaces.NAME]`: a folder in which sessions may work."""

    root: AbsolutePath
    """The folder. It and everything below it may be a session's `cwd`, after symbolic links were followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSection:
    """`[certificates.NAME]`: who comes in with a client certificate of `client_ca` instead of a token."""

    subject: Text
    """The whole subject of the certificate as RFC 4514 writes it, the most specific part first, such as
    `CN=ann,O=Example`; it has to match word for word."""

    identity: Text | None = None
    """Whose connection it is; else the gateway's own user's."""

    role: Annotated[Role, choice(*get_args(Role))] = "controller"
    """What it allows at most: `controller` or `observer`."""

    agents: Texts | None = None
    """The names of the agents that it may use; else all."""

    workspaces: Texts | None = None
    """The names of the workspaces that it may use; else all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSection:
    """`[[listen]]`: one address on which clients are accepted."""

    url: Annotated[str, _listen_url]
    """`wss://`, `ws://`, `tcp+tls://`, `tcp://` with host and port, or `unix://` with an absolute path."""

    cert: FilePath | None = None
    """The certificate chain in PEM. For `wss` and `tcp+tls`, which need it."""

    key: FilePath | None = None
    """The private key of the certificate in PEM."""

    client_ca: FilePath | None = None
    """Authorities, in PEM, whose certificates let a client in without a token, as `[certificates.NAME]` says. For `wss`
    and `tcp+tls`. Who shows none may still show a token; one of another authority is refused."""

    client_crl: FilePath | None = None
    """Revocation lists, in PEM, of the authorities in `client_ca`: a revoked certificate opens nothing, and at a SIGHUP
    its open connections end. A list that has expired still counts, and is warned of. Without it, a certificate counts
    until it expires."""

    insecure_plaintext: Flag = False
    """Whether `ws` and `tcp` may listen off loopback, where everybody on the way can read tokens and code."""

    peer_uid: Flag = True
    """Whether a process of the gateway's own user needs no token. For `unix`, where the kernel names the user."""

    allowed_origins: Annotated[tuple[str, ...], _origins] = ()
    """Web pages that may connect. For `ws` and `wss`. None by default: any page in a browser can reach loopback."""

    allowed_hosts: Annotated[tuple[str, ...], _hosts] = ()
    """Names, without a port, under which clients may ask for the gateway. For `ws` and `wss`. On loopback its own names
    are always allowed and others only if they are listed, because a page can have its own name resolve to loopback; a
    proxy that passes the `Host` header on needs its name here. Off loopback all are allowed where none is listed."""

    @property
    def address(self) -> Address:
        """Where to listen."""
        return parse_address(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection:
    """`[agents.NAME]`: a program that speaks ACP on its stdin and stdout."""

    RENAMED: ClassVar[Mapping[str, str]] = {"idle_stop": "idle_timeout"}

    command: Annotated[tuple[str, ...], _command]
    """The program, found as a shell would from `cwd`, and its arguments. No shell reads it."""

    cwd: AbsolutePath | None = None
    """Where the agent is started; else where the gateway was. Each session brings its own folder besides."""

    env: StringsByName = field(default_factory=dict, repr=False)
    """Variables for the agent; these win over `env_file`, and that over `pass_env`."""

    pass_env: Texts = ()
    """Names of variables that the agent gets from the gateway's environment, on top of a small fixed list."""

    env_file: FilePath | None = None
    """A file of `NAME=value` lines that only its owner may open, for API keys."""

    scope: Annotated[Scope, choice(*get_args(Scope))] = "identity"
    """Who shares one process of the agent. With `identity` all devices of one person, so that they find each other's
    sessions at once and strangers never do; with `connection` nobody, each connection starts its own; with `shared`
    everybody with access, where sessions still belong to whoever opened them."""

    idle_timeout: SecondsOrNever = 3600.0
    """Seconds without anything said or open after which an agent that is not needed is stopped. An hour: longer than
    a lunch break, so that it is still there afterwards, and shorter than a night, so that an agent that was forgotten
    gives its memory back. One whose sessions can't be re-opened is not stopped while somebody is attached."""

    max_restarts: Count = 5
    """How often an agent that has ended is started again within ten minutes. A crash now and then mends itself; one
    that ends again and again would cost its clients their patience and the machine its processor for nothing."""

    initialize_timeout: SecondsOrNever = 60.0
    """Seconds in which the agent must answer `initialize`; then it is stopped, and the error names the likely command.
    Agents answer within five, and one that `npx` has to fetch first within forty on a slow line. A program that is no
    agent never does, and the editor would wait for it without a word."""

    permission_timeout: SecondsOrNever = math.inf
    """Seconds after which a permission or a question that nobody decided counts as cancelled. Never, by default: a
    turn that waits until somebody is back is worth more than one that was cancelled overnight."""

    mcp_servers: Annotated[McpPolicy, _mcp_servers] = "drop"
    """What becomes of the tool servers that a client names for its sessions where they are programs, or at a loopback
    address: both mean the client's machine and would be this one's. `drop` leaves them out, `deny` refuses the session,
    `allow` passes them on; a list of names passes those on and drops the others. A name is what the client says."""

    log_stderr: Flag = False
    """Whether what the agent writes to its stderr is logged, redacted as far as secrets are known. Off, because it may
    be anything, and of any of its sessions; `serve --verbose` logs it as well."""

    login: Text | None = None
    """The command that a person runs on the gateway's machine to log the agent in, for the error that says so."""

    client_fs: Flag = False
    """Whether the agent may read and write files on the client's machine. Off, because agents that may do so no
    longer write to their own, where the repository is. Where several clients share a session, its host alone is asked,
    the connection that created or last loaded it: else a file would be written once for each of them."""

    client_terminal: Flag = False
    """Whether the agent may run commands on the client's machine, which is the host's as well. Off for the same
    reason."""

    eof_grace: Seconds = 3.0
    """Seconds between closing the agent's stdin and SIGTERM to its process group. Agents that mind the end of
    their input save and exit within one."""

    term_grace: Seconds = 3.0
    """Seconds between SIGTERM and SIGKILL. Both together stay well below the 90 seconds that systemd gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksSection:
    """`[hooks]`: programs that are run when something happens; each gets one line of JSON on its stdin."""

    on_permission_waiting: Annotated[tuple[str, ...], _command] | None = None
    """The program, and its arguments, for when an agent waits for a decision and nobody is connected who may take it.
    No shell reads it."""

    on_turn_end: Annotated[tuple[str, ...], _command] | None = None
    """The program, and its arguments, for when a turn has ended."""

    timeout: Seconds = 30.0
    """Seconds after which a program that still runs is stopped. A push service answers within two, a mail server that
    is in no hurry within twenty; and as few run at the same time, one that hangs delays those that come after it."""
