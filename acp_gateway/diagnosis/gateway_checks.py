"""Judges what `doctor` finds on the gateway's machine, its nodes included: each line has the remedy. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from acp_gateway.client.local import LocalGateway
from acp_gateway.diagnosis.checks import Line, fault, ok, warning
from acp_gateway.errors import (
    AccessError,
    AgentError,
    CannotListen,
    ConfigError,
    GatewayError,
    ProtocolError,
    TooOld,
    TrustError,
    Unauthorized,
    Unreachable,
)
from acp_gateway.gateway.admission import LEADS_BACK
from acp_gateway.printable import counted

CERTIFICATE_WARNING: Final = timedelta(days=14)
"""Time before the end of a certificate in which it is reported: two working weeks to renew it."""

DISK_WARNING: Final = 1024**3
"""Free bytes below which the disk is reported: histories of a busy week have some hundred megabytes."""

DISK_FAULT: Final = 50 * 1024**2
"""Free bytes below which history is about to be lost."""

SYSTEMD: Final = "systemd"
"""Holder of the sockets of a gateway that systemd starts at the first connection."""

SHOWN: Final = 5
"""Maximum names in one line."""


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """The configuration and the problems that its check has found."""

    path: str
    problems: tuple[tuple[Literal["error", "warning"], str], ...]


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """One `[[listen]]` section, and who listens there."""

    url: str
    accepting: bool
    holder: str | None
    """The process that listens at its port, as far as the system tells."""
    own: bool
    """True if that is the gateway of this configuration."""


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The certificate of a listener."""

    path: str
    end: datetime
    self_signed: bool


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """A token, without its secret."""

    id: str
    label: str
    expires: str | None
    expired: bool


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """An agent's program, and the variables that it gets."""

    name: str
    program: str
    here: str | None
    """Its path for this shell; None if it is not found."""
    in_service: str | None
    """Its path for the running gateway."""
    withheld: tuple[str, ...]
    """Names of variables of this shell that look like keys and that the agent does not get."""
    promised: tuple[str, ...] = ()
    """Those of them that `pass_env` names: the gateway has not got them itself."""
    fenced: bool = True
    """False for an agent that the gateway starts without a fence."""


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The state folder."""

    path: str
    problem: str | None
    free: int
    """Free bytes on its disk."""
    size: int
    """Bytes of its files."""


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """A service of systemd."""

    name: str
    user: bool
    """True for one of the user's own account."""
    enabled: bool
    active: bool

    @property
    def is_socket(self) -> bool:
        """True for a socket, with which systemd starts the gateway at the first connection."""
        return self.name.endswith(".socket")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """All that is known of the gateway's machine."""

    now: datetime
    is_root: bool
    config: ConfigFacts
    gateway: int | None
    """Process id of the gateway on this state folder; None if none runs."""
    environment_known: bool
    """True if the environment of that process could be read."""
    listeners: tuple[ListenerFacts, ...] = ()
    certificates: tuple[CertificateFacts, ...] = ()
    tokens: tuple[TokenFacts, ...] = ()
    agents: tuple[AgentFacts, ...] = ()
    state: StateFacts | None = None
    others: tuple[tuple[int, str], ...] = ()
    """Other gateways: process id and command line."""
    has_systemd: bool = False
    units: tuple[UnitFacts, ...] = ()
    lingers: bool = True
    """True if the user's services run without a login."""


def check_machine(facts: MachineFacts) -> list[Line]:
    """Return a line for each check, in the order in which they are to be mended."""
    return [
        *_check_config(facts.config),
        *_check_user(facts),
        *_check_gateway(facts),
        *(_check_listener(listener, facts) for listener in facts.listeners),
        *(_check_certificate(certificate, facts.now) for certificate in facts.certificates),
        *_check_tokens(facts.tokens),
        *(line for agent in facts.agents for line in _check_agent(agent, facts)),
        *([] if facts.state is None else _check_state(facts.state)),
        *_check_others(facts),
        *_check_units(facts),
    ]


def _check_config(config: ConfigFacts) -> Iterator[Line]:
    for severity, text in config.problems:
        if severity == "error":
            yield fault("config", text, "correct it, then: acp-gateway check-config", ConfigError.exit_code)
        else:
            yield warning("config", text, "")
    if not config.problems:
        yield ok("config", f"{config.path} is fine")


def _check_user(facts: MachineFacts) -> Iterator[Line]:
    if facts.is_root:
        yield warning(
            "user",
            "this is root: a gateway of root's runs agents that may change everything on this machine",
            "run it as a user of its own: acp-gateway service install --system --user NAME",
        )


def _check_gateway(facts: MachineFacts) -> Iterator[Line]:
    if facts.gateway is not None:
        yield ok("gateway", f"it runs, as process {facts.gateway}" if facts.gateway else "it runs")
    elif any(severity == "error" for severity, _ in facts.config.problems):
        yield fault("gateway", "it does not run", "correct the configuration first", Unreachable.exit_code)
    elif any(unit.is_socket and unit.active for unit in facts.units):
        yield ok("gateway", "systemd starts it at the first connection")
    elif any(unit.enabled or unit.active for unit in facts.units):
        unit = next(unit for unit in facts.units if unit.enabled or unit.active)
        words = "--user " if unit.user else ""
        text = f"it does not run, and {unit.name} is meant to start it"
        remedy = f"journalctl {words}-u {unit.name} -n 20 says why; systemctl {words}start {unit.name}"
        yield fault("gateway", text, remedy, Unreachable.exit_code)
    else:
        remedy = "acp-gateway serve, or acp-gateway service install to keep it running"
        yield fault("gateway", "it does not run", remedy, Unreachable.exit_code)


def _check_listener(listener: ListenerFacts, facts: MachineFacts) -> Line:
    foreign = listener.holder is not None and not listener.own
    if facts.gateway is None and listener.own and listener.holder == SYSTEMD:
        return ok("listener", f"systemd listens at {listener.url} for the gateway")
    if facts.gateway is None:
        if foreign or listener.accepting:
            who = listener.holder or "another program"
            remedy = "stop that, or choose another port in the configuration"
            return fault("listener", f"{listener.url} is taken by {who}", remedy, CannotListen.exit_code)
        return ok("listener", f"{listener.url} is free")
    if not listener.accepting:
        text = f"the gateway does not listen at {listener.url}: was the configuration changed after its start?"
        return fault("listener", text, "restart it; its log says if it could not listen", CannotListen.exit_code)
    if foreign:
        text = f"{listener.url} leads to {listener.holder}, not to the gateway"
        return fault("listener", text, "stop that, or choose another port, and restart", CannotListen.exit_code)
    return ok("listener", f"{listener.url} accepts connections")


def _check_certificate(certificate: CertificateFacts, now: datetime) -> Line:
    left = certificate.end - now
    remedy = "acp-gateway certs renew keeps the pin; then reload the gateway (SIGHUP)"
    if not certificate.self_signed:
        remedy = "renew it where it was signed, with the same key; then reload the gateway (SIGHUP)"
    if left <= timedelta():
        text = f"{certificate.path} ended on {certificate.end:%Y-%m-%d}: only clients with a pin still connect"
        return fault("TLS", text, remedy, TrustError.exit_code)
    text = f"{certificate.path} ends on {certificate.end:%Y-%m-%d}"
    if left < CERTIFICATE_WARNING:
        return warning("TLS", f"{text}, in {counted(left.days, 'day')}", remedy)
    return ok("TLS", text)


def _check_tokens(tokens: Sequence[TokenFacts]) -> Iterator[Line]:
    if not tokens:
        remedy = "on the laptop: acp-gateway pair USER@HOST; or here: acp-gateway token create --label NAME"
        yield warning("tokens", "there are none, so no client can connect over the network", remedy)
        return
    endless = [token for token in tokens if token.expires is None]
    expired = [token for token in tokens if token.expired]
    if endless:
        text = f"{len(endless)} of {len(tokens)} never expire: {_names(endless)}"
        yield warning("tokens", text, "acp-gateway token rotate ID --expires 90d, or revoke those that are not used")
    if expired:
        text = f"{len(expired)} expired: {_names(expired)}"
        yield warning("tokens", text, "acp-gateway token revoke ID, or rotate ID --expires 90d")
    if not endless and not expired:
        yield ok("tokens", f"{len(tokens)}, and all have an end")


def _names(tokens: Sequence[TokenFacts]) -> str:
    shown = ", ".join(f"{token.id} ({token.label})" for token in tokens[:SHOWN])
    return shown + (", …" if len(tokens) > SHOWN else "")


def _check_agent(agent: AgentFacts, facts: MachineFacts) -> Iterator[Line]:
    name = f"{agent.name}: {agent.program}"
    if facts.gateway is not None and facts.environment_known and agent.in_service is None:
        remedy = "install it, or name it by its absolute path in the configuration"
        if agent.here is not None:
            remedy = (
                f'write its absolute path, command = ["{agent.here}", …], or give the service this PATH: '
                "acp-gateway service install"
            )
            text = f"{name} is found in this shell, but not with the PATH of the running gateway"
        else:
            text = f"{name} is not found, neither by the running gateway nor in this shell"
        yield fault("agent", text, remedy, AgentError.exit_code)
    elif agent.in_service is None and agent.here is None:
        remedy = "install it, or name it by its absolute path in the configuration"
        yield fault("agent", f"{name} is not found", remedy, AgentError.exit_code)
    elif agent.in_service is not None and agent.here is not None and agent.in_service != agent.here:
        text = f"{name} is {agent.in_service} for the gateway, but {agent.here} in this shell"
        yield warning("agent", text, "write the absolute path of the one that is meant into the configuration")
    else:
        yield ok("agent", f"{agent.name} is {agent.in_service or agent.here}")
    if not agent.fenced:
        text = f"{agent.name} has no fence: it reads and writes all that its user may"
        yield warning("fence", text, f'set fence = "on" under [agents.{agent.name}]: see `acp-gateway files fence.md`')
    if agent.promised:
        text = f"{agent.name} is to get {', '.join(agent.promised[:SHOWN])}, which the running gateway has not got"
        remedy = f"set it for the service, or in a file named by env_file under [agents.{agent.name}]"
        yield warning("keys", text, remedy)
    withheld = [variable for variable in agent.withheld if variable not in agent.promised]
    if withheld:
        shown = ", ".join(withheld[:SHOWN])
        listed = ", ".join(f'"{variable}"' for variable in withheld[:SHOWN])
        text = f"{agent.name} does not get {shown}, which this shell has"
        remedy = (
            f"if it needs that: pass_env = [{listed}] under [agents.{agent.name}], and set it for the service too; "
            "or name a file with it by env_file; or log the agent in by its own command"
        )
        yield warning("keys", text, remedy)


def _check_state(state: StateFacts) -> Iterator[Line]:
    if state.problem is not None:
        yield fault("state", state.problem, f"chmod 700 {state.path}", ConfigError.exit_code)
    free = f"{_size(state.free)} free for {state.path}, which has {_size(state.size)}"
    if state.free < DISK_FAULT:
        yield fault("disk", free, "make room: without it, sessions do not outlive a restart", ConfigError.exit_code)
    elif state.free < DISK_WARNING:
        yield warning("disk", free, "make room, or lower history_limit and retention_days")
    else:
        yield ok("disk", free)


def _size(size: int) -> str:
    for unit, bytes_of in (("GB", 1e9), ("MB", 1e6)):
        if size >= bytes_of:
            return f"{size / bytes_of:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def _check_others(facts: MachineFacts) -> Iterator[Line]:
    for pid, command in facts.others[:SHOWN]:
        yield warning(
            "gateway",
            f"another one runs here, as process {pid}: {command}",
            "if it is not meant to, stop it: a client may reach the wrong one",
        )


def _check_units(facts: MachineFacts) -> Iterator[Line]:
    if not facts.has_systemd:
        return
    if not facts.units:
        text = "no unit for the gateway is installed: it ends with the terminal that started it"
        yield warning("systemd", text, "acp-gateway service install")
        return
    for unit in facts.units:
        words = "systemctl --user" if unit.user else "systemctl"
        if not unit.is_socket and any(other.is_socket and other.active for other in facts.units):
            continue  # The socket starts it.
        if unit.active and unit.enabled:
            yield ok("systemd", f"{unit.name} runs, and starts with the machine")
        elif unit.active:
            yield warning("systemd", f"{unit.name} does not start with the machine", f"{words} enable {unit.name}")
        else:
            yield warning("systemd", f"{unit.name} is installed and does not run", f"{words} enable --now {unit.name}")
    if not facts.lingers and any(unit.user for unit in facts.units):
        text = "services of this account end when you log out"
        yield warning("systemd", text, "loginctl enable-linger")


TIME_LIMIT: Final = 5.0
"""Seconds to wait for the gateway, which is on this machine."""

LAG_WARNING: Final = 1.0
"""Seconds by which the event loop of a node is late when it is reported: users notice each message."""

_RELOAD: Final = "then, on this machine: acp-gateway reload"


async def check_nodes(gateway: LocalGateway) -> list[Line]:
    """Return a line for each node and each door of a gateway that runs; none if it has none. Raises nothing."""
    try:
        gateway.check_running()
        status = await gateway.status(time_limit=TIME_LIMIT, nodes=True)
        doors = status.get("doors", ())
        return [*(line for node in status["nodes"] for line in judge_node(node)), *map(judge_door, doors)]
    except GatewayError as error:
        return [warning("gateway", f"it does not tell its state: {error}", "its log may say why")]
    except (KeyError, TypeError, ValueError):
        return [warning("gateway", "its state is not understood: it is of another version", "restart it")]


def judge_node(node: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines about a node, as the gateway describes it."""
    name, reason = str(node["name"]), node.get("reason")
    if not node["up"]:
        text = f"{name} is away since {node['since']}: {node['why']}"
        if reason == TooOld.reason:
            text = f"{name} is too old for this gateway"
        if reason in _MENDED:
            remedy, code = _MENDED[reason]
            if LEADS_BACK in text:
                remedy = f"remove [nodes.NAME] or correct its url: it is this gateway itself; {_RELOAD}"
            yield fault("node", text, remedy.replace("NAME", name), code)
        else:
            remedy = "on its machine: acp-gateway doctor. The gateway tries again by itself, and its others go on"
            yield warning("node", text, remedy)
        return
    agents = node["agents"]
    if agents:
        yield ok("node", f"{name} is there, with {', '.join(agents)}")
    else:
        remedy = "on its machine: acp-gateway token list; make a token for agents there, or start some"
        yield warning("node", f"{name} is there, and has no agent for this gateway", remedy)
    lag = (node.get("load") or {}).get("lag", 0)
    if lag >= LAG_WARNING:
        yield warning(
            "node", f"{name} is slow: its event loop was late by {lag:.1f} s", "look at the load of its machine"
        )


def judge_door(door: Mapping[str, Any]) -> Line:
    """Return the line about a gateway to which this one lends connections."""
    name = str(door["name"])
    if door["parked"]:
        return ok("door", f"{name} has {counted(door['parked'], 'connection')} of this gateway for its clients")
    remedy = f"on its machine: acp-gateway doctor, and acp-gateway nodes; is [doors.{name}] right?"
    return fault("door", f"{name} has no connection of this gateway: {door['why']}", remedy, Unreachable.exit_code)


_MENDED: Final = {
    ConfigError.reason: ("correct that file: it is read again at the next attempt", ConfigError.exit_code),
    Unauthorized.reason: (
        "on its machine: acp-gateway token create --label door; save the token in token_file of [nodes.NAME]",
        AccessError.exit_code,
    ),
    AccessError.reason: ("on its machine: acp-gateway doctor, and acp-gateway token list", AccessError.exit_code),
    TrustError.reason: (
        f"on its machine: acp-gateway certs show CERT; if that is right, write its pin to [nodes.NAME]; {_RELOAD}",
        TrustError.exit_code,
    ),
    TooOld.reason: ("on its machine: upgrade acp-gateway, and restart it", TooOld.exit_code),
    ProtocolError.reason: (
        f"correct url of [nodes.NAME]: no acp-gateway answers there; {_RELOAD}",
        ProtocolError.exit_code,
    ),
}
"""Remedies and exit codes for what does not pass by itself, by the reason."""
