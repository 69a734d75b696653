"""Reads and checks the gateway's configuration, and makes an agent's environment of it.

`collect` finds all problems of the text of a file; `load_config` raises the first of them. The options are in
`options`, further checks in `server/config_check`.
"""

import os
import re
import shlex
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acp_gateway.config.addresses import Address, overlap, parse_target
from acp_gateway.config.agent_options import AgentSection
from acp_gateway.config.directories import config_home, state_home
from acp_gateway.config.editing.toml_file import TomlFile, suggestion
from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.options import (
    CertificateSection,
    GatewaySection,
    HooksSection,
    ListenSection,
    LogSection,
    WorkspaceSection,
)
from acp_gateway.config.permission_rules import read_rules
from acp_gateway.config.reached import reached_problems
from acp_gateway.config.schema import (
    Entry,
    Section,
    by_importance,
    read_named,
    read_section,
    unknown_keys,
)
from acp_gateway.config.services import ENDPOINT, services
from acp_gateway.errors import ConfigError
from acp_gateway.rules.rule import Rule

RESERVED_PREFIX = "ACP_GATEWAY_"
"""Prefix of the gateway's own variables, secrets among them; an agent never gets one."""

_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)")
_VALUE = re.compile(r"""(?P<quote>["'])(?P<quoted>(?:(?!(?P=quote)).)*)(?P=quote)|(?P<plain>[^"'].*)?""")


def read_env_file(path: Path) -> dict[str, str]:
    """Read the variables in the file, in its order.

    Blank lines and lines that start with `#` are skipped, a leading `export` too; one pair of quotes around a value
    is removed, and nothing in it is expanded or unescaped. Raises `ConfigError`, with the line and without the value,
    also if others than its owner may open the file.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", file=str(path)) from None
    if mode & ~_widest_mode(path):
        raise ConfigError(f"its mode {mode:04o} is wider than 0600: chmod 600 {path}", file=str(path))
    variables = {}
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        value = match and _VALUE.fullmatch(match["value"])
        if match is None or value is None or "\0" in stripped:
            raise ConfigError("expected NAME=value, NAME='value' or NAME=\"value\"", file=str(path), line=number)
        if match["name"].startswith(RESERVED_PREFIX):
            message = f"variables that begin with {RESERVED_PREFIX} are the gateway's own"
            raise ConfigError(message, file=str(path), line=number, key=match["name"])
        variables[match["name"]] = value["quoted"] or value["plain"] or ""
    return variables


def _widest_mode(path: Path) -> int:
    # systemd hands a credential to a service of another user by an access control list, which shows as mode 0440;
    # the folder around it keeps all other users out.
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    return 0o640 if credentials and path.is_relative_to(credentials) else 0o600


if TYPE_CHECKING:
    from acp_gateway.config.cluster import ClusterSection
    from acp_gateway.config.nodes import DoorSection, NodeSection
    from acp_gateway.config.reached import ReachedSection

__all__ = [
    "AgentSection",
    "CertificateSection",
    "Config",
    "GatewaySection",
    "HooksSection",
    "LimitsSection",
    "ListenSection",
    "LogSection",
    "WorkspaceSection",
    "agent_environment",
    "collect",
    "default_config_path",
    "inherited_environment",
    "load_config",
]

SYSTEM_CONFIG = Path("/etc/acp-gateway/config.toml")
"""Read where the user has no configuration."""

RUNNING_CONFIG = "serve.toml"
"""Name of the configuration of `serve --agent`, in the default state folder, while that runs."""

INHERITED = frozenset(
    {"HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR"}
    | {"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"}
)
"""Variables that an agent or a hook inherits from the gateway, with `LC_*`: user and folders, language, and the places
of its own settings and login. Variables that carry authority (`SSH_AUTH_SOCK`, proxies with passwords, credentials of a
service) are not in the list; `pass_env` adds those that an agent needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole configuration whose parts fit together."""

    gateway: GatewaySection
    listen: tuple[ListenSection, ...]
    agents: Mapping[str, AgentSection]
    hooks: HooksSection = field(default_factory=HooksSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    log: LogSection = field(default_factory=LogSection)
    services: Mapping[type[Any], Any] = field(default_factory=dict)
    """The sections of services, by their type."""
    workspaces: Mapping[str, WorkspaceSection] = field(default_factory=dict)
    certificates: Mapping[str, CertificateSection] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    nodes: "Mapping[str, NodeSection]" = field(default_factory=dict)
    cluster: "ClusterSection | None" = None
    doors: "Mapping[str, DoorSection]" = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    """A line for each option in the file that is ignored, because this version does not have it any more."""
    path: Path | None = None
    """The file."""

    @property
    def reached(self) -> "tuple[ReachedSection, ...]":
        """The sections of agents, nodes and doors, which say how another machine is reached."""
        return (*self.agents.values(), *self.nodes.values(), *self.doors.values())

    def of_service(self, section: type[Section]) -> Section:
        """Return the section of a service, which has its defaults where the file has none."""
        found: Section = self.services.get(section) or section()
        return found

    @property
    def default_agent(self) -> str:
        """The agent for a client that names none: the one that was set, or the only one; empty if all are of nodes."""
        return self.gateway.default_agent or next(iter(self.agents), "")

    def leads_to(self, agent: str) -> bool:
        """Return whether a name is one that an agent of a node has here."""
        if not self.nodes:
            return False
        # Imported only where there are nodes.
        from acp_gateway.config.nodes import is_name_at_node

        return is_name_at_node(agent) and agent.partition("/")[0] in self.nodes

    def may_be_of_node(self, agent: str) -> bool:
        """Return whether a node may have an agent. Which nodes a cluster has, only a running gateway knows."""
        if self.cluster is None:
            return self.leads_to(agent)
        from acp_gateway.config.nodes import is_name_at_node

        return is_name_at_node(agent)

    def is_private(self, agent: str) -> bool:
        """Return whether each connection has a process of this agent for itself."""
        section = self.agents.get(agent)
        return section is not None and section.scope == "connection"


def default_config_path(*, or_running: bool = True) -> Path:
    """Return the configuration that is read if none is named: the user's, else the system's. Raises `ConfigError`.

    Without both it is that of a gateway that runs by `serve --agent`, unless `or_running` is false.
    """
    places = [SYSTEM_CONFIG]
    running = []
    try:
        places.insert(0, config_home() / "config.toml")
        running.append(state_home() / RUNNING_CONFIG)
    except ConfigError:
        pass  # A service without any home directory still has the system's.
    for path in [*places, *running] if or_running else places:
        if os.path.exists(path):  # Unlike the method, it takes a folder that may not be entered for none.
            return path
    names = " and no ".join(str(path) for path in places)
    missing = f"there is no {names}: `acp-gateway up` in a project's folder makes one, or name a file with --config"
    hosts = places[0].with_name("hosts.toml")
    if os.path.exists(hosts):
        raise ConfigError(f"{_explain_laptop(hosts)} Is this the gateway's machine? Then {missing}")
    raise ConfigError(missing)


def _explain_laptop(path: Path) -> str:
    """Return what to do on a laptop, which has a list of gateways, instead of a command of the gateway's machine."""
    from acp_gateway.config.hosts import load_hosts

    try:
        hosts = [*load_hosts(path).values()]
    except ConfigError:
        hosts = []
    target, login = "HOST", None
    if len(hosts) == 1:
        target, login = hosts[0].name, hosts[0].login
    there = f": `ssh {login} acp-gateway …`" if login else ""
    return (
        f"this command runs on the gateway's machine, and here is only a hosts.toml{there}. From here, `acp-gateway "
        f"open [SESSION] --target {target}` makes a link for a browser, and `acp-gateway sessions {target}` lists "
        "sessions."
    )


def load_config(path: Path | None) -> Config:
    """Read the configuration at `path`, or at `default_config_path()`. Raises `ConfigError` for the first problem.

    Files that it names need not exist yet.
    """
    file = path or default_config_path()
    config, problems = collect(TomlFile.read(file))
    if config is None:
        raise _first_of(problems, file)
    return config


def inherited_environment(base: Mapping[str, str], also: Collection[str] = ()) -> dict[str, str]:
    """Select the variables of `base`, the gateway's environment, that agents and hooks inherit, and those in `also`."""
    passed = INHERITED.union(also)
    return {name: value for name, value in base.items() if name in passed or name.startswith("LC_")}


def agent_environment(agent: AgentSection, base: Mapping[str, str]) -> dict[str, str]:
    """Make the environment for an agent's process, from `base`, the gateway's own, and the agent's options.

    A name in `pass_env` that `base` does not have is left out. Raises `ConfigError` if `env_file` cannot be used.
    """
    environment = inherited_environment(base, agent.pass_env)
    if agent.env_file is not None:
        environment |= read_env_file(agent.env_file)
    environment |= agent.env
    return {name: value for name, value in environment.items() if not name.startswith(RESERVED_PREFIX)}


_MISTAKEN = {
    **dict.fromkeys(("hosts", "host", "maps"), ": gateways and path maps are in the laptop's hosts.toml"),
    **dict.fromkeys(
        ("tokens", "token", "users"), ": `acp-gateway token create` makes tokens, which are in no configuration"
    ),
    "url": ": it belongs below the header [[listen]]",
    "command": ": it belongs below a header [agents.NAME]",
    "root": ": it belongs below a header [workspaces.NAME]",
}
"""Remedies for words at the top of a file that belong elsewhere."""


def collect(file: TomlFile) -> tuple[Config | None, list[ConfigError]]:
    """Return the configuration in a file, or None, and every problem of its text, in the file's order."""
    problems: list[ConfigError] = []
    root = Entry(file, (), file.data)
    of_services = {service.word: service.section for service in services() if service.section is not None}
    known = [
        "gateway",
        "limits",
        "listen",
        "agents",
        "nodes",
        "workspaces",
        "certificates",
        "rules",
        "hooks",
        *of_services,
    ]
    problems.extend(unknown_keys(root, [*known, "log", "cluster", "doors"], mistaken=_MISTAKEN))
    gateway = read_section(GatewaySection, root.child("gateway", {}), problems)
    listen = _read_listeners(root.child("listen", []), problems)
    nodes = _read_nodes(root, problems) if "nodes" in file.data else {}
    doors = _read_doors(root, problems) if "doors" in file.data else {}
    cluster = _read_cluster(root, problems) if "cluster" in file.data else None
    has_nodes = bool(nodes) or "cluster" in file.data
    is_door_only = (has_nodes and "agents" not in file.data) or file.data.get("agents") == {}
    agents = {} if is_door_only else _read_agents(root.child("agents", {}), problems)
    hooks = read_section(HooksSection, root.child("hooks", {}), problems)
    limits = read_section(LimitsSection, root.child("limits", {}), problems)
    log = read_section(LogSection, root.child("log", {}), problems)
    sections = {kind: read_section(kind, root.child(name, {}), problems) for name, kind in of_services.items()}
    workspaces = read_named(WorkspaceSection, root.child("workspaces", {}), problems)
    certificates = read_named(CertificateSection, root.child("certificates", {}), problems)
    rules = read_rules(root.child("rules", []), problems) if "rules" in file.data else ()
    problems.extend(_rule_problems(root))
    if gateway is not None:
        problems.extend(_default_agent_problems(gateway, root))
    problems.extend(_certificate_problems(certificates, listen, root))
    problems.extend(_path_problems(root))
    if gateway is None or hooks is None or limits is None or log is None or problems:
        return None, by_importance(problems)
    return Config(
        gateway=gateway,
        listen=listen,
        agents=agents,
        hooks=hooks,
        limits=limits,
        log=log,
        services=sections,
        workspaces=workspaces,
        certificates=certificates,
        rules=rules,
        nodes=nodes,
        cluster=cluster,
        doors=doors,
        removed=tuple(map(str, file.removed)),
        path=file.path,
    ), []


def _first_of(problems: list[ConfigError], path: Path) -> ConfigError:
    """Return the first problem; if there are more, with the command that lists them."""
    first = problems[0]
    if len(problems) == 1:
        return first
    option = "" if _is_default(path) else f" --config {shlex.quote(str(path))}"
    message = f"{first.message} (`acp-gateway check-config{option}` lists all {len(problems)} problems)"
    return ConfigError(message, file=first.file, line=first.line, key=first.key)


def _is_default(path: Path) -> bool:
    try:
        return path == default_config_path()
    except ConfigError:
        return False


def _read_listeners(entry: Entry, problems: list[ConfigError]) -> tuple[ListenSection, ...]:
    if isinstance(entry.value, dict):
        problems.append(entry.error("the header of a listener has two brackets: [[listen]]"))
        return ()
    if isinstance(entry.value, str):
        problems.append(entry.error(f"a listener is a section: write [[listen]], and below it {ListenSection.EXAMPLE}"))
        return ()
    if not isinstance(entry.value, list) or not entry.value:
        problems.append(entry.error("at least one [[listen]] section with a url is needed"))
        return ()
    sections = []
    taken: list[tuple[int, Address]] = []
    for index, element in enumerate(entry.array("sections")):
        section = read_section(ListenSection, element, problems)
        if section is None:
            continue
        sections.append(section)
        table = element.table()
        problems.extend(_listener_problems(section.address, section, table))
        address = section.address
        for first, other in taken:
            if _is_same_place(address, other):
                problems.append(table["url"].error(f"listen[{first}], {other}, listens there already"))
                break
        taken.append((index, address))
    if len(sections) == len(entry.value) and not any(ENDPOINT in section.services for section in sections):
        problems.append(entry.error(f'no [[listen]] section serves "{ENDPOINT}", so no client can connect'))
    return tuple(sections)


def _is_same_place(address: Address, other: Address) -> bool:
    """Return whether two listeners conflict, as far as their text tells."""
    if "unix" in (address.scheme, other.scheme):
        return address.scheme == other.scheme and os.path.normpath(address.path) == os.path.normpath(other.path)
    return address.port == other.port != 0 and overlap(address.host, other.host)


def _listener_problems(address: Address, section: ListenSection, table: Mapping[str, Entry]) -> Iterator[ConfigError]:
    needs_tls, of_lines = "is for wss and tcp+tls, where TLS needs it", section.of_lines
    fitting = {
        "serves": (
            section.speaks_http != (of_lines is not None),
            f'"{of_lines.word}" is for tcp, tcp+tls and unix: it sends lines, and has no path'
            if of_lines is not None
            else "is for ws and wss: the others have no paths, and serve ACP or the tap, or a unix socket metrics",
        ),
        "cert": (address.tls, needs_tls),
        "key": (address.tls, needs_tls),
        "client_ca": (address.tls, "is for wss and tcp+tls, where a client can show a certificate"),
        "client_crl": (address.tls, "is for wss and tcp+tls, where a client can show a certificate"),
        "local_user": (
            not address.tls and address.loopback,
            "is for unix, and for ws and tcp on loopback, where the system names the user of a program",
        ),
        "path": (address.websocket, "is for ws and wss, whose clients name a path"),
        "allowed_origins": (address.websocket, "is for ws and wss, since it is about browsers"),
        "allowed_hosts": (address.websocket, "is for ws and wss, whose clients name the host"),
        "public_url": (address.websocket, "is for ws and wss, which browsers and proxies can reach"),
        "preview_url": (address.websocket and "ports" in section.services, 'is for ws and wss that serve "ports"'),
    }
    for option, (fits, reason) in fitting.items():
        if option in table and not fits:
            yield table[option].error(f"{reason}; this listener is {address.scheme}")
    if section.query_parameter is not None:
        for option in ("local_user", "client_ca"):
            if option in table:
                yield table[option].error("each client shows a token where the token is in the query")
        if not (address.tls or address.loopback):
            yield table["url"].error("the network could read a token in the query: only wss:// leads off this machine")
            return
    if section.path is not None and "acp" not in section.services:
        yield table["path"].error('is a path of "acp", which this listener does not serve')
    if section.local_user and section.public_url is not None:
        yield table["local_user"].error(
            "behind a public_url is a proxy, whose clients would all pass for the gateway's own user"
        )
    if "client_crl" in table and address.tls and "client_ca" not in table:
        yield table["client_crl"].error("revokes certificates of client_ca, and there is none in this section")
    if address.tls:
        for option in ("cert", "key"):
            if option not in table:
                yield table["url"].error(
                    f'{address.scheme} needs "{option}": make a pair with "acp-gateway certs create"'
                )
    elif not address.loopback and not section.insecure_plaintext:
        secure = "wss" if address.websocket else "tcp+tls"
        yield table["url"].error(
            f"the network could read tokens and code: use {secure}:// with a cert and key, "
            "a loopback address, or insecure_plaintext = true"
        )


def _read_agents(entry: Entry, problems: list[ConfigError]) -> dict[str, AgentSection]:
    if isinstance(entry.value, list) and entry.value:
        problems.append(entry.error("the header of an agent has one pair of brackets, and its name: [agents.NAME]"))
        return {}
    if not isinstance(entry.value, dict) or not entry.value:
        example = '[agents.opencode] with command = ["opencode", "acp"]'
        door = "or an empty [agents] for a gateway that only leads to others"
        problems.append(entry.error(f"at least one [agents.NAME] section is needed, such as {example}, {door}"))
        return {}
    agents = read_named(AgentSection, entry, problems)
    for name in agents:
        table = entry.table()[name].table()
        problems.extend(_agent_problems(table))
        problems.extend(_url_problems(agents[name], entry.table()[name], table))
    return agents


def _read_nodes(root: Entry, problems: list[ConfigError]) -> "dict[str, NodeSection]":
    # Imported only where there are nodes.
    from acp_gateway.config.nodes import NodeSection, node_problems

    entry = root.child("nodes", {})
    nodes = read_named(NodeSection, entry, problems)
    problems.extend(node_problems(nodes, entry))
    return nodes


def _read_doors(root: Entry, problems: list[ConfigError]) -> "dict[str, DoorSection]":
    # Imported only where there are doors.
    from acp_gateway.config.nodes import DoorSection, node_problems

    entry = root.child("doors", {})
    doors = read_named(DoorSection, entry, problems)
    problems.extend(node_problems(doors, entry))
    return doors


def _read_cluster(root: Entry, problems: list[ConfigError]) -> "ClusterSection | None":
    # Imported only where there is a cluster.
    from acp_gateway.config.cluster import read_cluster

    return read_cluster(root.child("cluster", {}), problems)


def _certificate_problems(
    certificates: Mapping[str, CertificateSection], listen: tuple[ListenSection, ...], root: Entry
) -> Iterator[ConfigError]:
    table = root.child("certificates", {})
    if certificates and not any(section.client_ca for section in listen):
        yield table.error("no [[listen]] section has a client_ca, so no client can show a certificate")
    subjects: dict[str, str] = {}
    for name, section in certificates.items():
        entry = table.child(name, {})
        first = subjects.setdefault(section.subject, name)
        if first != name:
            yield entry.child("subject", "").error(f"[certificates.{first}] has the same subject")
        for option, known in (("agents", "agents"), ("workspaces", "workspaces")):
            there = root.child(known, {}).value
            for wanted in getattr(section, option) or ():
                if known == "agents" and "/" in wanted:
                    continue  # Which nodes there are, `check_nodes_of_agents` finds out.
                if isinstance(there, dict) and wanted not in there:
                    hint = suggestion(wanted, there)
                    yield entry.child(option, []).error(f"there is no [{known}.{wanted}]{hint}")


def _path_problems(root: Entry) -> Iterator[ConfigError]:
    """Yield an error for each agent in the `path` of a listener that is not there."""
    listeners, agents = root.child("listen", []), root.child("agents", {}).value
    for section in listeners.array("sections") if isinstance(listeners.value, list) else ():
        path = section.child("path", "")
        wanted = path.value.partition("?agent=")[2] if isinstance(path.value, str) else ""
        if wanted and isinstance(agents, dict) and wanted not in agents:
            yield path.error(f"there is no [agents.{wanted}]{suggestion(wanted, agents)}")


def _rule_problems(root: Entry) -> Iterator[ConfigError]:
    """Yield an error for each agent or workspace of a rule that is not there."""
    rules = root.child("rules", [])
    for section in rules.array("sections") if isinstance(rules.value, list) else ():
        for part, kind in (("agent", "agents"), ("workspace", "workspaces")):
            wanted, named = section.child(part, None), root.child(kind, {}).value
            if isinstance(wanted.value, str) and isinstance(named, dict) and wanted.value not in named:
                yield wanted.error(f"there is no [{kind}.{wanted.value}]{suggestion(wanted.value, named)}")


def _agent_problems(table: Mapping[str, Entry]) -> Iterator[ConfigError]:
    named: list[tuple[str, Entry]] = []
    if "env" in table:
        named.extend(table["env"].table().items())
    if "pass_env" in table:
        named.extend((entry.value, entry) for entry in table["pass_env"].array("names"))
    for name, entry in named:
        if not name or "=" in name or "\0" in name:
            yield entry.error("this cannot be the name of a variable")
        elif name.startswith(RESERVED_PREFIX):
            yield entry.error(f"variables that begin with {RESERVED_PREFIX} are the gateway's own")


_OF_FENCE = ("writable", "readable", "network", "homes")
_FOR_COMMAND = ("env", "pass_env", "env_file", "fence", *_OF_FENCE)
_FOR_URL = ("token_file", "far_agent", "pin", "ca", "insecure_plaintext")


def _url_problems(agent: AgentSection, entry: Entry, table: Mapping[str, Entry]) -> Iterator[ConfigError]:
    """Yield what does not fit together in the section of an agent that listens, or of one that does not."""
    if agent.url is None:
        if agent.command is None:
            yield entry.child("command", None).error("this option is required, or url")
        for option in _FOR_URL:
            if option in table:
                yield table[option].error("is for an agent with a url")
        if agent.fence in (None, "off"):
            for option in _OF_FENCE:
                if option in table:
                    yield table[option].error('is for a fenced agent: set fence = "on" beside it')
        if agent.homes and agent.scope == "shared":
            yield table["homes"].error('needs scope "identity" or "connection": several people share this agent')
        return
    address = parse_target(agent.url)
    if agent.command is not None:
        yield table["url"].error("an agent has a command or a url, not both")
        return
    for option in _FOR_COMMAND:
        if option in table:
            yield table[option].error("is for an agent with a command: the gateway does not start one with a url")
    for option, what in (("token_file", "a token"), ("far_agent", "the name of an agent")):
        if option in table and not address.websocket:
            yield table[option].error(f"is for WebSocket and HTTP; {address.scheme} has no place for {what}")
    yield from reached_problems(agent, address, table, tls="wss:// or tcp+tls://")


def _default_agent_problems(gateway: GatewaySection, root: Entry) -> Iterator[ConfigError]:
    names = root.child("agents", {}).value
    entry = root.child("gateway", {}).child("default_agent", None)
    if gateway.default_agent is not None and "/" in gateway.default_agent:
        # Whether it may be one of a node that was added by `nodes add`, `check_nodes_of_agents` finds out.
        return
    if not isinstance(names, dict) or not names:
        return
    if gateway.default_agent is None:
        if len(names) > 1:
            example = f'default_agent = "{next(iter(names))}"'
            yield entry.error(f"with several agents, [gateway] names the default one, as {example}: {', '.join(names)}")
    elif gateway.default_agent not in names:
        hint = suggestion(gateway.default_agent, names) or f"; there are: {', '.join(names)}"
        yield entry.error(f'there is no agent "{gateway.default_agent}"{hint}')
