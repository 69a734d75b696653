"""Judges each step of `acp-gateway ping`: facts in, a line with the fault and its remedy out. No I/O."""

import errno
import json
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from acp_gateway import __version__
from acp_gateway.client.dialing import Destination
from acp_gateway.config.addresses import Address
from acp_gateway.diagnosis.checks import Line, fault, format_seconds, ok, warning
from acp_gateway.errors import (
    AccessError,
    AgentError,
    ConfigError,
    GatewayError,
    ProtocolError,
    TrustError,
    Unauthorized,
    UnknownAgent,
    Unreachable,
    UsageError,
)
from acp_gateway.printable import counted
from acp_gateway.protocol.path_maps import parse_map

CERTIFICATE_WARNING: Final = timedelta(days=14)
"""Time before the end of a certificate in which it is reported: two working weeks to renew it."""

TOKEN_WARNING: Final = timedelta(days=3)
"""The same for a token, which is replaced in a minute."""

AUTH_REQUIRED: Final = -32000
"""JSON-RPC code of an agent that wants a login."""

_ROUTELESS: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH)


@dataclass(frozen=True, slots=True)
class Refused:
    """An error response of a gateway or an agent."""

    code: object
    message: str
    data: Mapping[str, Any]

    @classmethod
    def of(cls, error: Mapping[str, Any]) -> "Refused":
        """Read the `error` of a response; what is missing is empty."""
        data = error.get("data")
        return cls(error.get("code"), str(error.get("message") or ""), data if isinstance(data, dict) else {})


class Silent(Exception):
    """No response within a time limit; the argument is the limit in seconds."""


def judge_settings(destination: Destination | GatewayError, host_name: str | None, maps: int) -> Line:
    """Judge the settings: hosts.toml, the token file, options. `host_name` is the entry's name, None without one."""
    if isinstance(destination, GatewayError):
        return fault("settings", str(destination), "", destination.exit_code)
    more = len(destination.others)
    parts = [f"{destination.address}{f' and {more} more' if more else ''}"]
    parts += [] if host_name is None else [f"[hosts.{host_name}] of hosts.toml"]
    parts += ["a pin"] if destination.pin else ["its own authority"] if destination.ca else []
    parts += ["a client certificate"] if destination.cert else ["a token"] if destination.token else ["no token"]
    parts += [counted(maps, "path map")] if maps else []
    return ok("settings", ", ".join(parts))


def judge_address(
    address: Address, outcome: Mapping[str, Any] | Refused | Exception | None, seconds: float, *, of: int = 0
) -> Line:
    """Judge one of several addresses: what it answers, or None for the one that is used, `of` this many."""
    if outcome is None:
        return ok("address", f"{address} is used, of {of} addresses", seconds)
    if isinstance(outcome, Silent):
        return warning("address", f"{address}: no answer within {outcome.args[0]:g} s", "")
    if isinstance(outcome, Exception):
        text = str(outcome)
        return warning("address", text if str(address) in text else f"{address}: {text}", "")
    return ok("address", f"{address} works as well", seconds)


def judge_name(host: str, outcome: list[str] | Exception, seconds: float) -> Line:
    """Judge the resolution of a name: the addresses, or the error."""
    if isinstance(outcome, list):
        return ok("name", f"{host} is {', '.join(outcome[:4])}", seconds)
    if isinstance(outcome, UnicodeError):
        return fault(
            "name",
            f"no host can have the name {host!r}",
            "correct it in hosts.toml, or give another HOST",
            Unreachable.exit_code,
        )
    if isinstance(outcome, Silent):
        limit = f"{outcome.args[0]:g}"
        return fault(
            "name",
            f"no name server answered within {limit} s",
            "is this machine online, and its VPN up?",
            Unreachable.exit_code,
        )
    again = isinstance(outcome, socket.gaierror) and outcome.errno == socket.EAI_AGAIN
    if again:
        return fault(
            "name", f"the name server can't answer for {host} now", "is this machine online?", Unreachable.exit_code
        )
    return fault(
        "name",
        f"no address is known for {host}",
        "is the name right, and is the VPN up that knows it? With ssh, a name of ~/.ssh/config works as ssh://NAME",
        Unreachable.exit_code,
    )


def _there(address: Address) -> str:
    """Return what stands before a command that is run on the gateway's machine."""
    return "" if address.loopback else f"ssh {address.host} "


def judge_port(address: Address, outcome: str | Exception, seconds: float) -> Line:
    """Judge the connection to a port or a unix socket: the peer's address, or the error."""
    place = address.path if address.scheme == "unix" else f"{address.host} port {address.port}"
    if isinstance(outcome, str):
        return ok("port", f"{outcome or place} accepts connections", seconds)
    number = _errno_of(outcome)
    if isinstance(outcome, Silent):
        return fault(
            "port",
            f"no answer from {place} within {outcome.args[0]:g} s",
            "is the machine on, and does no firewall drop this port? A link over ssh needs no port: acp-gateway pair "
            f"{address.host}",
            Unreachable.exit_code,
        )
    if address.scheme == "unix":
        return _judge_socket(place, outcome, number)
    if number == errno.ECONNREFUSED:
        return fault(
            "port",
            f"{place} refuses connections: no program listens there",
            f"start the gateway there, or find out why it does not run: {_there(address)}acp-gateway doctor",
            Unreachable.exit_code,
        )
    if number in _ROUTELESS:
        return fault(
            "port", f"there is no route to {place}", "is this machine online, and the VPN up?", Unreachable.exit_code
        )
    return fault("port", f"cannot reach {place}: {outcome}", "is the address right?", Unreachable.exit_code)


def _judge_socket(path: str, error: Exception, number: int | None) -> Line:
    code = Unreachable.exit_code
    if number == errno.ENOENT:
        why, remedy = "there is no such socket", "start the gateway, whose [[listen]] url has to name this path"
    elif number == errno.ECONNREFUSED:
        why, remedy = "no gateway listens there any more", "start it again: acp-gateway serve"
    elif number == errno.EACCES:
        why, remedy = "it belongs to another user", "run this as the gateway's user, or use a listener with tokens"
    else:
        why, remedy = str(error), "is the path right?"
    return fault("port", f"cannot reach {path}: {why}", remedy, code)


def judge_ssh(address: Address, outcome: GatewayError | None, seconds: float) -> Line:
    """Judge the login over ssh, and the relay that it starts there; the error, None if both work."""
    if outcome is None:
        return ok("ssh", f"ssh logs in at {address.host} and reaches the gateway's socket", seconds)
    login = f"{address.user}@{address.host}" if address.user else address.host
    remedy = {
        AccessError.exit_code: f"acp-gateway pair {login} asks for a password; editors need a key: ssh-copy-id {login}",
        ConfigError.exit_code: f"acp-gateway pair {login} --install installs it there",
        TrustError.exit_code: f"log in by hand and compare the key: ssh {login}",
    }.get(outcome.exit_code, f"ssh {login} acp-gateway doctor")
    if isinstance(outcome, Unreachable) and "ssh: " in str(outcome):
        # ssh says so itself, so no command can be run there.
        remedy = f"this has to work first: ssh {login}"
    return fault("ssh", str(outcome), remedy, outcome.exit_code)


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """A finished handshake of TLS."""

    version: str
    """As OpenSSL names it, such as `TLSv1.3`."""
    pinned: bool
    end: datetime | None
    """End of the certificate; None if it can't be read."""


def judge_tls(address: Address, outcome: TlsFacts | Exception, seconds: float, now: datetime) -> Line:
    """Judge the handshake and the trust in the certificate."""
    show = f"{_there(address)}acp-gateway certs show"
    if isinstance(outcome, TlsFacts):
        name = outcome.version.replace("TLSv", "TLS ")
        if outcome.pinned:
            return ok("TLS", f"{name}, the key has the pin", seconds)
        if outcome.end is None:
            return ok("TLS", f"{name}, the certificate is trusted", seconds)
        left = outcome.end - now
        if left < CERTIFICATE_WARNING:
            text = f"{name}, but the certificate ends on {outcome.end:%Y-%m-%d}, in {counted(max(left.days, 0), 'day')}"
            return warning("TLS", text, "renew it on the gateway's machine: acp-gateway certs renew, then reload")
        return ok("TLS", f"{name}, the certificate is trusted, until {outcome.end:%Y-%m-%d}", seconds)
    if isinstance(outcome, Silent):
        text = f"no TLS handshake with {address.host} port {address.port} within {outcome.args[0]:g} s"
        return fault(
            "TLS", text, "is another program at this port? The gateway's port is usually 7443", Unreachable.exit_code
        )
    if isinstance(outcome, TrustError):
        return fault(
            "TLS", str(outcome), f"{show} prints the pin to trust; acp-gateway pair fetches it", TrustError.exit_code
        )
    if isinstance(outcome, ProtocolError):
        return fault(
            "TLS",
            str(outcome),
            f"use the port of [[listen]] in the gateway's config.toml; {show}",
            ProtocolError.exit_code,
        )
    if isinstance(outcome, AccessError):
        # Of the door in between.
        remedy = "on the door: acp-gateway nodes; acp-gateway token create --role tunnel --node NAME makes a token"
        return fault("TLS", str(outcome), remedy, outcome.exit_code)
    code = outcome.exit_code if isinstance(outcome, GatewayError) else Unreachable.exit_code
    return fault("TLS", str(outcome), "is another program at this port? The gateway's port is usually 7443", code)


def judge_token(outcome: Mapping[str, Any] | Refused | Exception, seconds: float, now: datetime) -> list[Line]:
    """Judge the credential, and tell what it allows: the response of `_acp-gateway/access`, or the refusal."""
    if isinstance(outcome, Mapping):
        return _judge_access(outcome, seconds, now)
    if isinstance(outcome, Refused):
        return [ok("token", "it is accepted; this gateway is too old to tell what it allows", seconds)]
    if isinstance(outcome, Silent):
        text = f"the server did not answer within {outcome.args[0]:g} s"
        return [fault("token", text, "is it an acp-gateway? Its log says more; ping again", Unreachable.exit_code)]
    remedy = "acp-gateway pair [USER@]HOST fetches a new token" if isinstance(outcome, Unauthorized) else ""
    code = outcome.exit_code if isinstance(outcome, GatewayError) else Unreachable.exit_code
    if isinstance(outcome, ProtocolError):
        remedy = "is the address right? An acp-gateway answers at wss://HOST:7443"
    elif isinstance(outcome, UnknownAgent):
        remedy = "name another agent, by --agent, or agent in hosts.toml"
    elif isinstance(outcome, AccessError) and not remedy:
        remedy = "ask the gateway's owner for a token that allows it: acp-gateway token show ID tells what it allows"
    return [fault("token", str(outcome), remedy or "ssh HOST acp-gateway doctor", code)]


def _judge_access(access: Mapping[str, Any], seconds: float, now: datetime) -> list[Line]:
    told = f"{access.get('credential')} of {access.get('identity')}: {access.get('role')}"
    agents = access.get("agents")
    if access.get("session"):
        told += f", session {access['session']} only"
    elif isinstance(agents, Mapping):
        told += f", agents {', '.join(agents)}" if agents else ", no agent"
    workspaces = access.get("workspaces")
    told += f", workspaces {', '.join(map(str, workspaces))}" if isinstance(workspaces, list) else ""
    end = _parse_time(access.get("expires"))
    told += ", until it is revoked" if end is None else f", until {end:%Y-%m-%d %H:%M} UTC"
    lines = [ok("token", told, seconds)]
    if end is not None and end - now < TOKEN_WARNING:
        text = f"the token ends on {end:%Y-%m-%d %H:%M} UTC"
        words = str(access.get("credential")).partition("token ")
        remedy = "make another with a later end, on the gateway's machine"
        if words[2]:
            remedy = f"acp-gateway token rotate {words[2]} --expires 90d on the gateway's machine gives a new one"
        lines.append(warning("token", text, remedy))
    version = access.get("version")
    if isinstance(version, str) and version != __version__:
        text = f"the gateway is acp-gateway {version}, this one is {__version__}"
        lines.append(warning("version", text, "install the same version on both machines"))
    return lines


def judge_agent(name: str | None, outcome: Mapping[str, Any] | Refused | Exception, seconds: float) -> Line:
    """Judge the start of the agent: the result of `initialize`, or the error."""
    shown = "the default agent" if name is None else name
    if isinstance(outcome, Mapping):
        info = outcome.get("agentInfo")
        title = f" ({info.get('name')} {info.get('version') or ''}".rstrip() + ")" if isinstance(info, dict) else ""
        return ok("agent", f"{shown}{title} starts and answers initialize", seconds)
    there = "on the gateway's machine"
    if isinstance(outcome, Silent):
        text = f"{shown} has not answered initialize for {format_seconds(outcome.args[0])}"
        return fault(
            "agent",
            text,
            f"does its command speak ACP? {there}: acp-gateway check-agent -- COMMAND",
            AgentError.exit_code,
        )
    if isinstance(outcome, Refused):
        text = f"{shown} does not start: {outcome.message}"
        return fault(
            "agent", text, f"{there}: acp-gateway doctor, and acp-gateway check-agent -- COMMAND", AgentError.exit_code
        )
    code = outcome.exit_code if isinstance(outcome, GatewayError) else Unreachable.exit_code
    remedy = f"{there}: acp-gateway doctor"
    if isinstance(outcome, AgentError):
        remedy = f"{there}: acp-gateway check-agent -- COMMAND, with the agent's command of config.toml"
    elif isinstance(outcome, AccessError):
        remedy = "name an agent that the token allows, by --agent, or agent in hosts.toml"
    return fault("agent", str(outcome), remedy, code)


def judge_session(
    folder: str, remote: str, outcome: str | Refused | Exception, seconds: float, *, here: bool = False
) -> Line:
    """Judge a session in a folder of this machine, which is `remote` there: the session's end, or the error.

    `here` is True if the gateway is on this machine.
    """
    place = folder if folder == remote else f"{folder}, there {remote}"
    if isinstance(outcome, str):
        return ok("session", f"opens in {place}; {outcome}", seconds)
    if isinstance(outcome, Silent):
        text = f"the agent has not opened a session for {format_seconds(outcome.args[0])}"
        return fault(
            "session",
            text,
            "does the agent wait for a login or the network? Its log is that of serve",
            AgentError.exit_code,
        )
    if isinstance(outcome, Exception):
        code = outcome.exit_code if isinstance(outcome, GatewayError) else Unreachable.exit_code
        return fault("session", str(outcome), "acp-gateway doctor on the gateway's machine", code)
    if outcome.data.get("reason") in ("no_such_directory", "outside_workspaces"):
        return _judge_folder(folder, remote, outcome, here=here)
    if outcome.data.get("reason") == "too_many_sessions":
        return fault(
            "session",
            outcome.message,
            "acp-gateway sessions lists them; close some in an editor",
            AccessError.exit_code,
        )
    if outcome.code == AUTH_REQUIRED:
        remedy = "log the agent in on the gateway's machine, as its user, then ping again"
        return fault("session", outcome.message, remedy, AgentError.exit_code)
    return fault("session", outcome.message, "the log of serve has more", AgentError.exit_code)


def _judge_folder(folder: str, remote: str, refused: Refused, *, here: bool) -> Line:
    """Return the fault of a session that was refused for its folder."""
    missing, allowed = refused.data["reason"] == "no_such_directory", _roots(refused)
    suggested = _suggested_map(refused)
    code = ConfigError.exit_code if missing else AccessError.exit_code
    found = suggested[1] if suggested else ""
    if folder != remote:
        # The gateway does not know of the map, and proposes one from what is already a path there.
        there = "is not a directory there" if missing else "is in no workspace there"
        other = f", such as to {found}" if found else ""
        remedy = f"correct the map (--map, or maps in hosts.toml){other}"
        if missing:
            remedy = f"create {remote} there, or {remedy}"
        elif any(folder == root or folder.startswith(f"{root.rstrip('/')}/") for root in allowed):
            remedy, found = f"{folder} is a folder there, so turn the map round: --map {remote}={folder}", folder
        return replace(fault("session", f"{folder} is mapped to {remote}, which {there}", remedy, code), folder=found)
    if here and not missing:
        other = f" --cwd {shlex.quote(allowed[0])}, or" if allowed else ""
        remedy = f"use another folder:{other} cd to one; `acp-gateway up --add` in this one allows it"
    elif suggested:
        entry = " = ".join(json.dumps(path, ensure_ascii=False) for path in suggested)
        remedy = f"if that is the folder there, add to this host in hosts.toml: maps = {{ {entry} }}"
    else:
        remedy = "give --map LOCAL=REMOTE with a folder of a workspace, or maps in hosts.toml"
    return replace(fault("session", refused.message, remedy, code), folder=found)


def _roots(refused: Refused) -> list[str]:
    """Return the folders that an error names as allowed. Other text than that of a line is left out."""
    allowed = refused.data.get("allowed")
    roots = allowed if isinstance(allowed, list) else []
    return [root for root in roots if isinstance(root, str) and root.isprintable()]


def _suggested_map(refused: Refused) -> tuple[str, str] | None:
    """Return the map that an error suggests: a folder here and one there; None if it suggests none.

    It becomes part of a command line that is printed.
    """
    text = str(refused.data.get("map"))
    try:
        return parse_map(text) if text.isprintable() else None
    except UsageError:
        return None


def skip_session(access: Mapping[str, Any]) -> Line | None:
    """Return the line in place of a session that a credential can't open; None if it may."""
    if access.get("session"):
        return ok("session", f"not opened: this token is for session {access['session']}; connect joins it")
    if access.get("role") == "observer":
        return ok("session", "not opened: an observer only watches sessions of others; connect --attach joins one")
    return None


def _errno_of(error: BaseException) -> int | None:
    """Return the number of a system error, also of the first of several attempts."""
    cause = error.__cause__
    if isinstance(cause, ExceptionGroup):
        return _errno_of(cause.exceptions[0])
    return error.errno if isinstance(error, OSError) and error.errno is not None else None


def _parse_time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC) if text else None
    except (ValueError, OverflowError):  # No time, or one outside of the years 1 to 9999 in UTC.
        return None
