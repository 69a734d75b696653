"""Every option of the gateway's configuration file: its type, its default, and the reason for it.

A field is an option or, if its type is `Fixed`, a limit that has a name and no option: two real installations would not
set it differently. The text below a field says what it does and where the default comes from; `tools/make_options`
makes the reference of it. The options of `[limits]` are in `limits`, those of services in their folders. `load` checks
options against each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, get_args

from acp_gateway.config.addresses import Address, Scheme, parse_address
from acp_gateway.config.agent_options import read_command
from acp_gateway.config.directories import state_home
from acp_gateway.config.listeners import (
    Network,
    PreviewUrl,
    PublicUrl,
    read_hosts,
    read_listen_url,
    read_networks,
    read_origins,
    read_path,
    read_preview_url,
    read_public_url,
    read_services,
)
from acp_gateway.config.schema import (
    MIB,
    AbsolutePath,
    AgentName,
    Count,
    Derived,
    FilePath,
    Fixed,
    Flag,
    LargeSize,
    MessageSize,
    Seconds,
    SecondsOrNever,
    Share,
    Size,
    Text,
    Texts,
    choice,
)
from acp_gateway.config.services import ENDPOINT, Service, services

Journal = Literal["disk", "memory"]

LogFormat = Literal["text", "json"]

Role = Literal["controller", "observer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySection:
    """`[gateway]`: settings of the whole gateway."""

    RENAMED: ClassVar[Mapping[str, str]] = {"journal": "journal_storage"}
    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("max_open_requests", "max_queued_prompts"), "it is a constant; remove the line"
    ) | {"node_write_delay": "sessions of a node are stored there alone; remove the line"}
    DERIVED: ClassVar[Mapping[str, Derived]] = {
        "history_limit_per_identity": Derived("history_limit", 1 / 2, least=MIB),
        "outbox_limit": Derived("memory_limit", 1 / 32, least="max_message_size", most=32 * MIB),
        "away_limit": Derived("memory_limit", 1 / 16, least="max_message_size", most=64 * MIB),
        "journal_limit": Derived("memory_limit", 1 / 64, least="max_message_size", most=16 * MIB),
        "resume_window": Derived("memory_limit", 1 / 128, least=MIB, most=8 * MIB),
        "write_behind_limit": Derived("memory_limit", 1 / 128, most=8 * MIB),
    }
    """Each client and each session has a part of the memory. A message has to fit an outbox and a journal."""

    state_dir: AbsolutePath = field(default_factory=state_home)
    """Folder of tokens and sessions. Absolute, so that a service and a shell mean the same folder. `$XDG_STATE_HOME`,
    if it is set and absolute, takes precedence over `~/.local/state`."""

    default_agent: AgentName | None = None
    """The agent for clients that name none. Required with several agents. It may be that of a node, `NODE/AGENT`,
    also of one that `nodes add` has added."""

    max_message_size: MessageSize = 16 * 1024 * 1024
    """Maximum bytes of one JSON-RPC message in either direction; at most 24 MiB count. Images and whole files travel in
    one message: 16 MiB are two images of 5 MB, the largest size that models take, or a hundred thousand lines of text,
    and clients written in Rust read no larger frame. Reading a message takes up to 10 ms per MiB, during which the
    gateway does nothing else."""

    handshake_timeout: Fixed[Seconds] = 10.0
    """Seconds for TLS and the HTTP upgrade or hello together. Slow mobile links need about two; a silent socket takes
    up memory before it has sent a token. Each file of the page that a browser fetches starts the time again."""

    ping_interval: Fixed[Seconds] = 20.0
    """Seconds between pings. Routers and proxies forget an idle connection after 30 to 60 seconds."""

    ping_timeout: Fixed[Seconds] = 20.0
    """Seconds to wait for a pong before the connection is closed. A phone that changes networks is back within this;
    with the interval, a dead link is noticed after 40 seconds at most."""

    stall_timeout: Fixed[Seconds] = 60.0
    """Seconds after which a peer that accepts no bytes is disconnected. Longer than a ping and its pong, so that a dead
    link is reported as such, and short enough that its queue does not occupy memory for long."""

    write_high_water: Fixed[Size] = 1024 * 1024
    """Bytes waiting to be written to a peer, above which its senders are not read. Enough to keep a fast link busy
    between two turns of the scheduler, little enough to have for each of many connections."""

    outbox_limit: Fixed[Size] = 32 * 1024 * 1024
    """Maximum bytes queued for one connected client; `away_limit` is the limit for one that is away. Beyond it the
    client is detached and catches up from the journal, so that a client that reads nothing delays neither the agent nor
    other clients. Half a minute at 1 MiB a second, which no agent writes for long: a client further behind does not
    catch up. A single larger message still passes, or a file that `max_message_size` allows could never be delivered.
    Replayed history does not count, because its length is not the client's fault, nor do bytes in flight on a
    resumable link. The same limit applies to requests of one side that wait until the other can take them."""

    away_grace: SecondsOrNever = 86400.0
    """Seconds that a lost link is kept for its client to return, or `"never"` to keep it while the gateway runs. The
    messages for the client are queued with it, and after a restart, observers wait as long for a client that may open
    their session again. A day: a laptop that is closed in the evening continues on the next evening at the latest,
    without a loss."""

    away_grace_idle: Fixed[Seconds] = 900.0
    """Seconds that a lost link is kept whose connection has an agent of its own (`scope = "connection"`) and nothing
    open: no turn, no permission, no request. A quarter of an hour: longer than a train's tunnel or a way to another
    room, and only an idle agent's process is lost after it, which occupies memory for one person alone."""

    away_limit: Fixed[Size] = 64 * 1024 * 1024
    """Maximum bytes queued for a client that is away. Beyond it the link is gone: on its return the client is told that
    it is too far behind, and catches up from the journal. An agent that writes 2 KiB a second without a pause takes
    nine hours for that, a night; and the largest message that `max_message_size` allows fits."""

    resume_window: Fixed[LargeSize] = 8 * 1024 * 1024
    """Maximum unconfirmed bytes in flight on a resumable link; a single larger message still passes. At a round-trip
    time of 200 ms this keeps a line of 300 Mbit/s busy, and it bounds what is sent again after such a link was lost. At
    least 1 MiB, because confirmations come every 512 KiB."""

    journal_limit: Fixed[Size] = 16 * 1024 * 1024
    """Maximum bytes of one session's history, kept for clients that join later; the oldest turns are removed first,
    whole. Some thousand pages of text with the output of tools, or a dozen screenshots; little enough to keep for each
    of sixty sessions within `memory_limit`."""

    history_limit: LargeSize = 4 * 1024 * 1024 * 1024
    """Maximum bytes of all histories on disk, and as many of the index of their texts. Beyond it, the histories of the
    least recently used sessions are removed, and the sessions stay; if only live sessions are left, the largest history
    of the identity that holds most loses its beginning. 4 GiB are 250 full histories, more than a year of one person;
    the disk of a small machine has several times that."""

    history_limit_per_identity: Fixed[LargeSize] = 2 * 1024 * 1024 * 1024
    """Maximum bytes of the histories of one identity's sessions on disk: half of `history_limit`, so that no identity
    can push out those of others. Beyond it, its own least recently used histories are removed, and those of its live
    sessions cut."""

    write_delay: Fixed[Seconds] = 0.5
    """Maximum seconds before history is written to disk (write-behind). A gateway that is killed loses that much, plus
    what arrives during the write. Usually the delay is a tenth of this; only with a slow disk are batches larger."""

    write_behind_limit: Fixed[Size] = 8 * 1024 * 1024
    """Maximum bytes of history that wait to be written; beyond it, writing begins at once. A fifth of a second of the
    fastest stream, and little enough for one transaction of some tens of milliseconds."""

    journal_storage: Annotated[Journal, choice(*get_args(Journal))] = "disk"
    """Storage of session histories: `"disk"` or `"memory"`. On disk they are in `state_dir`, readable by its owner
    alone, and clients continue after a restart where they stopped. With `"memory"` no message is written to disk, and
    after a restart only what the agent itself has stored comes back."""

    retention_days: Count = 30
    """Days after which an unused session is forgotten by the gateway, with its history; the agent's own records stay. A
    month: longer than a holiday, and short enough that old conversations don't pile up on the disk."""

    memory_limit: Size = 1024 * 1024 * 1024
    """Maximum bytes that outboxes, journals and unfinished work hold together: everything queued for clients and kept
    of sessions (shared data counts once), and everything received but not passed on yet, such as unfinished messages,
    waiting requests and prompts, and an agent's unanswered requests. Beyond it, unfinished echoes of prompts are given
    up first; then the data sent by the identity that holds most, if that is most of it; then the client that has been
    away for longest; then the largest outbox or journal goes: its client is detached, or the journal is cut. A lower
    value also lowers the limits of one client and one session. 1 GiB leaves a small machine's memory to the agents."""

    push_content: Flag = True
    """Lets a notification of the page have the question and its options, encrypted for the browser. With `false` it has
    the agent's name alone, and no buttons: a locked phone may show notifications, and take an answer, without its
    owner."""

    push_hosts: Annotated[tuple[str, ...], read_hosts] = ()
    """Further hosts of push services, for browsers whose maker has one of its own. Those of Chrome, Firefox, Safari and
    Edge are known. An address of the local network is never used: browsers name their service, and could have the
    gateway send requests there."""

    trusted_proxies: Annotated[tuple[Network, ...], read_networks] = ()
    """Addresses and networks (`"10.0.0.0/8"`) of reverse proxies whose `X-Forwarded-For` is trusted: it gives the
    address under which failures are counted, logged and audited. None by default, because any client can send that
    header."""

    audit_size: Fixed[LargeSize] = 16 * 1024 * 1024
    """Bytes of `audit.jsonl` in `state_dir` after which a new file is begun. Some eighty thousand entries, which a text
    editor still opens."""

    audit_files: Fixed[Count] = 10
    """Number of audit files that are kept, the current one included. With `audit_size`, more than half a year of a busy
    gateway, and no more disk space than one session's screenshots."""

    record_dir: AbsolutePath | None = None
    """Folder in which each connection's messages are recorded, for support: everything except known kinds of secrets.
    Off by default, because that is all content."""

    record_limit: Fixed[LargeSize] = 1024 * 1024 * 1024
    """Maximum bytes of all recordings together, beyond which recording stops. A long day of a chatty agent; a forgotten
    recording must not fill the disk."""

    record_message_size: Fixed[Size] = 256 * 1024
    """Maximum bytes of one message that is recorded or logged as it is; a larger one is recorded by its size and
    method. Conversation, code and most results of tools are smaller; looking through one for secrets takes the event
    loop up to 20 ms, and 40 ms per MiB."""

    record_share: Fixed[Share] = 0.25
    """Share of the event loop's time that recording and `--log-bodies` may take in the long run, each. Beyond it,
    messages are recorded by their size, so that recording delays no client for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSection:
    """`[workspaces.NAME]`: a folder in which sessions may work."""

    EXAMPLE: ClassVar = 'root = "/srv/proj"'
    MISTAKEN: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("path", "folder", "dir", "directory"), ': use "root"'),
        "maps": ": path maps are in the laptop's hosts.toml",
    }

    root: AbsolutePath
    """The folder of the workspace, absolute. Sessions may use it and everything below it as `cwd`, after symbolic links
    are followed."""

    access: Annotated[Literal["write", "read"], choice("write", "read")] = "write"
    """The use of the folder by fenced agents: `"write"`, or `"read"` for one where nothing is to be changed."""

    new_sessions: Annotated[Literal["here", "worktree"], choice("here", "worktree")] = "here"
    """The place of a new session: `"here"`, the directory that it names, or a git `"worktree"` of its own, with a new
    branch from the commit there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSection:
    """`[certificates.NAME]`: a client certificate of `client_ca` that is accepted instead of a token."""

    subject: Text
    """The whole subject of the certificate as RFC 4514 writes it, such as `CN=ann,O=Example`. The most specific part is
    first, and it has to match word for word."""

    identity: Text | None = None
    """The identity of its connections, else the gateway's own user."""

    role: Annotated[Role, choice(*get_args(Role))] = "controller"
    """The most that it allows: `"controller"` or `"observer"`."""

    agents: Texts | None = None
    """The names of the agents that it may use, else all."""

    workspaces: Texts | None = None
    """The names of the workspaces that it may use, else all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSection:
    """`[[listen]]`: one address on which clients are accepted."""

    EXAMPLE: ClassVar = 'url = "wss://0.0.0.0:7443"'
    RENAMED: ClassVar[Mapping[str, str]] = {"peer_uid": "local_user"}
    MISTAKEN: ClassVar[Mapping[str, str]] = dict.fromkeys(("host", "port", "address"), f": it is part of {EXAMPLE}")

    url: Annotated[str, read_listen_url]
    """The address: `wss://host:port` and `tcp+tls://host:port`, which need a certificate; `ws://` and `tcp://` on
    loopback; `unix:///absolute/path`, a socket with mode 0600. Port 0 is any free port; without a port, `wss` means
    443, `ws` 80, `tcp` and `tcp+tls` 7443. `https://` is another name of `wss://`, and `http://` of `ws://`."""

    serves: Annotated[tuple[str, ...], read_services] | None = None
    """Parts of the gateway that are served there. Over HTTP, requests for others are answered with 404. By default
    `wss`, and `ws` on loopback, serve `["acp", "page", "ports", "ahp"]`, and `ws` elsewhere `["acp"]`, because the
    network could read a browser's secrets. `/healthz` and `/readyz` are at each address of HTTP. `"acp"` is the
    endpoint `/acp`, for WebSocket and Streamable HTTP; at least one listener serves it."""

    cert: FilePath | None = None
    """The certificate chain in PEM, for `wss` and `tcp+tls`, which need it; `acp-gateway certs create` makes one."""

    key: FilePath | None = None
    """The private key of `cert` in PEM, for `wss` and `tcp+tls`, which need it. `check-config` warns if every user may
    open the file."""

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

    local_user: Flag | None = None
    """Accepts programs of the gateway's own user without a token, but not agents. By default true for `unix`. For `ws`
    and `tcp` on loopback (on Linux), where ports are within reach of web pages and tunnels too: [what it lets
    in](dialects.md#programs-without-a-token)."""

    path: Annotated[str | None, read_path] = None
    """A further path of the endpoint, for programs that dial a fixed one: `"/message"`, or `"/message?agent=NAME"` for
    an agent that is not the default; without a token, they may then use only this one. For `ws` and `wss`."""

    allowed_origins: Annotated[tuple[str, ...], read_origins] = ()
    """Origins of web pages that may connect, as browsers send them: `"https://editor.example"`, without a path or a
    wildcard. For `ws` and `wss`. None by default: any page in a browser can reach loopback."""

    allowed_hosts: Annotated[tuple[str, ...], read_hosts] = ()
    """Accepted names, without a port, in the `Host` header. For `ws` and `wss`. A loopback listener rejects every name
    except its own and these (protection against DNS rebinding); a proxy that passes the `Host` header on needs its name
    here. Off loopback, all names are accepted if none is listed."""

    public_url: Annotated[str | None, read_public_url] = None
    """The address by which users reach the gateway, where that is another one, as behind a reverse proxy: `https://`
    (`http://` for loopback), a name, a port if it has one, and the path that the proxy removes. For `ws` and `wss`. The
    links of `acp-gateway open` and `share` begin with it, its name is accepted in the `Host` header, and pages at its
    origin are the gateway's own."""

    preview_url: Annotated[str | None, read_preview_url] = None
    """The addresses at which browsers see the ports of agents' programs, one for each: `"https://*.box.example"`, where
    all names below one lead to this listener and its certificate is for them, or a proxy's. For `ws` and `wss` that
    serve `"ports"`. Without it, only `acp-gateway forward` leads to ports."""

    @property
    def preview(self) -> PreviewUrl | None:
        """The parsed `preview_url`."""
        return None if self.preview_url is None else PreviewUrl.parse(self.preview_url)

    @property
    def address(self) -> Address:
        """The parsed `url`, with the path of a service that is alone there."""
        address, alone = parse_address(self.url), self._alone
        if alone is None or alone.path is None or not address.websocket:
            return address
        web: Scheme = "https" if address.tls else "http"
        return replace(address, scheme=web if alone.is_fetched else address.scheme, path=alone.path)

    @property
    def accepts_local_user(self) -> bool:
        """True if programs of the gateway's own user need no token: `local_user`, or its default."""
        return self.address.scheme == "unix" if self.local_user is None else self.local_user

    @property
    def path_agent(self) -> str | None:
        """The agent that `path` names; None if it names none."""
        return None if self.path is None else self.path.partition("?agent=")[2] or None

    @property
    def _alone(self) -> Service | None:
        """The service that is served there and nothing else; None for the endpoint, and for several."""
        found = (service for service in services() if self.serves == (service.word,) != (ENDPOINT,))
        return next(found, None)

    @property
    def query_parameter(self) -> str | None:
        """The parameter of the query that has the token there; None where it is in a header, as everywhere else."""
        return None if self._alone is None else self._alone.query_parameter

    @property
    def of_lines(self) -> Service | None:
        """The service whose clients send their own lines there; None for ACP and HTTP."""
        return self._alone if self._alone is not None and self._alone.at_lines else None

    @property
    def speaks_http(self) -> bool:
        """True if clients send requests of HTTP there; else lines."""
        address, alone = self.address, self._alone
        return address.websocket or (address.scheme == "unix" and alone is not None and alone.at_unix)

    @property
    def public(self) -> PublicUrl | None:
        """The parsed `public_url`."""
        return None if self.public_url is None else PublicUrl.parse(self.public_url)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names that are accepted in the `Host` header: `allowed_hosts`, and that of `public_url` where not all are."""
        public = self.public
        if public is None or not (self.allowed_hosts or self.address.loopback):
            return self.allowed_hosts
        return (*self.allowed_hosts, public.name)

    @property
    def services(self) -> tuple[str, ...]:
        """The names of the services that are served there: `serves`, or its default."""
        address = self.address
        if self.serves is not None and (self.speaks_http or self.of_lines is not None):
            return self.serves
        secret = address.websocket and (address.tls or address.loopback)
        return (ENDPOINT, *(service.word for service in services() if secret and service.by_default))


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksSection:
    """`[hooks]`: programs that are run on events; each gets one line of JSON on its stdin."""

    on_permission_waiting: Annotated[tuple[str, ...], read_command] | None = None
    """The program, with its arguments, to run when an agent waits for a decision and no controller is connected. No
    shell reads them. A program without a slash is looked for in the gateway's `PATH`; a relative path with one starts
    where the gateway was started."""

    on_turn_end: Annotated[tuple[str, ...], read_command] | None = None
    """The program, with its arguments, to run when a turn has ended."""

    timeout: Fixed[Seconds] = 30.0
    """Seconds after which a program that still runs is stopped. A push service answers within two, a slow mail server
    within twenty. Few hooks run at a time, so one that hangs delays those after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSection:
    """`[log]`: the log of `serve`."""

    format: Annotated[LogFormat, choice(*get_args(LogFormat))] = "text"
    """Format of a log line: `"text"` or `"json"`. The first is for people; the second, one object for each line, for
    programs that collect logs."""
