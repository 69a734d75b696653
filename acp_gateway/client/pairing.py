"""Pairing: give a machine a token, a pin and an address of a gateway, over the user's own ssh.

A user who can log in as the gateway's user may create tokens anyway, and ssh has verified the machine. So the pin is
transferred the same way, and there is nothing to compare or copy by hand.

A pairing is atomic. The new token expires after `PENDING_LIFETIME` seconds unless the machine connects with it and
sends `keep`. After the machine has saved its entry, `replace` revokes the previous token. If a step fails, the
machine's entry and its old token are unchanged, and the new token is revoked or expires.

The program is installed there by uv or pipx, from a wheel that goes through ssh.
"""

import ipaddress
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from acp_gateway.client.ssh import RemoteCommand, SshTarget, open_command, run_script
from acp_gateway.config.addresses import Address, parse_address, parse_target
from acp_gateway.config.reached import MAX_ADDRESSES
from acp_gateway.errors import ConfigError, GatewayError, ProtocolError, TrustError, Unreachable, UsageError
from acp_gateway.security.tls import parse_pin, spki_pin
from acp_gateway.security.token_format import explain_flaw

if TYPE_CHECKING:
    from acp_gateway.config.load import Config
    from acp_gateway.security.token_store import Token

COMMAND_NAME: Final = "pairing"
"""Name of the command in its begin and end lines."""

KEEP: Final = "keep"
REPLACE: Final = "replace"
WITHDRAW: Final = "withdraw"
"""Commands of the paired machine, one a line."""

PENDING_LIFETIME: Final = 600.0
"""Seconds until a token expires that was not kept: enough to try several unresponsive addresses, too short to be
worth stealing."""

_NOT_UNDERSTOOD: Final = "the response is not understood; does `acp-gateway --version` print the same there and here?"

LABEL: Final = re.compile(r"[\w .,:@+()-]{1,64}")
"""A machine's label. It becomes part of a command line for an unknown shell."""

_PAIRED: Final = " (paired)"
"""Suffix of the labels of tokens made by pairing: pairing again revokes only those."""

_ID: Final = re.compile("[0-9a-f]{8}")
_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


MAX_CANDIDATES: Final = 16
"""Maximum addresses of one gateway that are tried, for some seconds each: more than a gateway has."""


MAX_PATH: Final = 4096
"""Maximum characters of the path of the program there, as of paths on most systems: it is part of a command line."""


@dataclass(frozen=True, slots=True)
class ListenerPin:
    """A TLS listener of a gateway."""

    address: Address
    """The address in its configuration; the host may be a wildcard such as 0.0.0.0."""
    pin: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A token for a machine, and the ways to connect with it."""

    listeners: tuple[ListenerPin, ...]
    relayed: bool
    """True if the gateway can be reached over ssh, because it listens at a unix socket."""
    command: str | None
    """The absolute path of this program there, None if it was not started as one file."""
    token: str = field(repr=False)
    token_id: str
    hosts: tuple[str, ...] = ()
    """IP addresses of the gateway's machine in its networks."""

    def encode(self) -> str:
        """Return the offer as one line of ASCII, which contains the token."""
        return json.dumps(
            {
                "listeners": [{"url": str(listener.address), "pin": listener.pin} for listener in self.listeners],
                "relayed": self.relayed,
                "command": self.command,
                "token": self.token,
                "tokenId": self.token_id,
                "hosts": list(self.hosts),
            }
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate address of a gateway, and the pin of its key if it uses TLS."""

    address: Address
    pin: str | None
    told: bool = False
    """True for an IP address that the gateway's machine has told; in another network it may be another machine's."""


LENT_CERTIFICATE: Final = "lending/cert.pem"
"""Path in `state_dir` of the certificate of lent connections, where no listener has one."""

# On the gateway's machine


def label_of(label: str) -> str:
    """Return the label of the token for a machine with this label. Raises `UsageError`."""
    if not LABEL.fullmatch(label) or not label.strip():
        raise UsageError(
            "a label is 1 to 64 letters, digits, spaces and any of . , : @ + ( ) _ -; give another --label"
        )
    return label + _PAIRED


def find_listeners(config: "Config") -> tuple[ListenerPin, ...]:
    """Return the TLS listeners with a fixed port, and the pins of their certificates.

    Raises `ConfigError` for a certificate that can't be read, and if the gateway has no listener that can be offered.
    """
    found = [
        ListenerPin(section.address, _pin_of(section.cert))
        for section in config.listen
        if section.cert is not None and section.address.tls and section.address.port and "acp" in section.services
    ]
    if not found and not is_relayed(config):
        raise ConfigError(
            "the gateway has neither a TLS listener nor a unix socket for connections over ssh; add one of them: "
            '[[listen]] url = "unix:///absolute/path/of/a/socket"'
        )
    return tuple(found)


def find_lent(config: "Config") -> tuple[ListenerPin, ...]:
    """Return what a client finds behind a door of this gateway, if no listener has a certificate.

    Its address is a loopback one, which no other machine connects to. Raises as `find_listeners`.
    """
    cert = config.gateway.state_dir / LENT_CERTIFICATE
    if not (config.doors and cert.exists()) or any(section.address.tls for section in config.listen):
        return ()
    return (ListenerPin(parse_address("wss://127.0.0.1:7443"), _pin_of(cert)),)


def behind_door(offer: Offer, host: str) -> list[Candidate]:
    """Return what pairing tries through a door: the door knows the way, so any listener with TLS will do, at `host`."""
    found = [each for each in offer.listeners if each.address.websocket and each.address.tls]
    return [Candidate(replace(each.address, host=host), each.pin) for each in found[:1]]


def is_relayed(config: "Config") -> bool:
    """Return whether the gateway can be reached over ssh."""
    return any(section.address.scheme == "unix" and "acp" in section.services for section in config.listen)


def may_replace(token: "Token", made: "Token") -> bool:
    """Return whether `token` was made by an earlier pairing of the same machine as `made`."""
    return (token.label, token.identity) == (made.label, made.identity) and token.id != made.id


def _pin_of(path: Path) -> str:
    try:
        found = _PEM.search(path.read_text(encoding="ascii", errors="replace"))
        if found is None:
            raise ConfigError("holds no certificate in PEM; `acp-gateway certs create` makes one", file=str(path))
        return spki_pin(ssl.PEM_cert_to_DER_cert(found[0]))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except (ValueError, TrustError):
        raise ConfigError("holds a certificate that is damaged", file=str(path)) from None


# On the machine that is paired


class Pairing:
    """A pairing in progress: the gateway's machine has made a token and waits for commands.

    Each method raises what `ssh.RemoteCommand` does.
    """

    def __init__(self, command: RemoteCommand, offer: Offer) -> None:
        self._command = command
        self.offer = offer

    async def keep(self) -> None:
        """Make the token permanent; without this it is revoked when the connection ends."""
        _check_done(await self._command.ask(KEEP))

    async def replace(self, token_id: str) -> bool:
        """Revoke the previous token. Return False if it was not, because pairing did not make it for this machine."""
        return _check_done(await self._command.ask(f"{REPLACE} {token_id}"))

    async def withdraw(self) -> None:
        """Revoke the new token."""
        _check_done(await self._command.ask(WITHDRAW))


@asynccontextmanager
async def open_pairing(
    target: SshTarget, *, label: str, agents: Sequence[str], time_limit: float
) -> AsyncIterator[Pairing]:
    """Start a pairing over ssh and receive the offer; ssh is ended on exit.

    Args:
        way: the ssh connection to the gateway's machine, as the gateway's user.
        label: this machine's label.
        agents: the agents that the token is restricted to; empty for all.
        time_limit: seconds until the offer must have arrived.

    Raises what `ssh.RemoteCommand` does, and `Unreachable` if there is no offer in time. Cancelling ends ssh.
    """
    arguments = ["pair-here", "--label", label]
    for agent in agents:
        arguments += ["--agent", agent]
    async with open_command(target, COMMAND_NAME, arguments) as command:
        offer = None
        with trio.move_on_after(time_limit):
            offer = parse_offer(await command.read_answer())
        if offer is None:
            raise Unreachable(
                f"{target}: no answer within {time_limit:g} s; does a profile there (.bashrc) wait for input? Try: ssh "
                f"{target.login} acp-gateway --version; --connect-timeout gives it longer"
            )
        yield Pairing(command, offer)


def _check_done(said: bytes) -> bool:
    """Return whether the command was carried out. Raises `ProtocolError` for an invalid response."""
    try:
        done = json.loads(said)["done"]
    except (ValueError, RecursionError, LookupError, TypeError):
        done = None
    if not isinstance(done, bool):
        raise ProtocolError(_NOT_UNDERSTOOD)
    return done


def parse_offer(said: bytes) -> Offer:
    """Parse the text of `Offer.encode`. Raises `ProtocolError`, which quotes nothing of it: it may hold a token."""
    try:
        value = json.loads(said)
        offer = Offer(
            tuple(
                ListenerPin(parse_address(one["url"]), parse_pin(one["pin"]))
                for one in value["listeners"][:MAX_CANDIDATES]
            ),
            bool(value["relayed"]),
            value["command"],
            value["token"],
            value["tokenId"],
            # A program of an earlier version tells none.
            tuple(str(ipaddress.ip_address(str(host))) for host in value.get("hosts", ())[:MAX_CANDIDATES]),
        )
        command = offer.command
        right = (
            explain_flaw(offer.token) is None
            and _ID.fullmatch(offer.token_id) is not None
            and all(listener.address.tls for listener in offer.listeners)
            and (command is None or (command.startswith("/") and command.isprintable() and len(command) <= MAX_PATH))
        )
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, UsageError):
        right = False
    if not right:
        raise ProtocolError(_NOT_UNDERSTOOD) from None
    return offer


def candidates(offer: Offer, target: SshTarget, host_name: str) -> list[Candidate]:
    """Return the candidate addresses, best first: TLS at each listener's host, then ssh.

    A listener at all addresses is at `host_name`, the host's real name in ssh's configuration, and at the addresses
    that its machine has told. Loopback listeners of other machines are skipped, as are
    addresses that hosts.toml can't express: one invalid entry would make the whole file unreadable.
    """
    found: list[Candidate] = []
    here = Address("tcp", host_name, 0, "").loopback
    for listener in sorted(offer.listeners, key=lambda listener: not listener.address.websocket):
        address = listener.address
        hosts = [host_name.lower(), *address.reached_at(offer.hosts)] if address.wildcard else [address.host]
        for host in dict.fromkeys(hosts):
            place = replace(address, host=host)
            if (here or not _leads_here(host)) and _is_target(place):
                found.append(Candidate(place, listener.pin, told=address.wildcard and host != host_name.lower()))
    del found[MAX_CANDIDATES:]
    if offer.relayed:
        found.append(Candidate(Address("ssh", target.address.host, target.address.port, "", target.address.user), None))
    return found


def kept(found: Sequence[Candidate], used: Candidate) -> list[Candidate]:
    """Return the candidates that lead to the gateway as the one that works does, which is the first.

    They have the same transport and pin. Some may answer in another network only.
    """
    same = [each for each in found if (each.address.scheme, each.pin) == (used.address.scheme, used.pin)]
    return [used, *(each for each in same if each != used)][: MAX_ADDRESSES - 1]


def _leads_here(host: str) -> bool:
    """Return whether a name or an address is this machine's own, in any spelling that the system understands."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        try:
            # 127.1, 0 and 2130706433 are addresses, too.
            address = ipaddress.IPv4Address(socket.inet_aton(name))
        except (OSError, ValueError):
            return False
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback or address.is_unspecified


def _is_target(address: Address) -> bool:
    try:
        return parse_target(str(address)) == address
    except UsageError:
        return False


NO_INSTALLER: Final = "no installer"
PRESENT: Final = "present"
INSTALLED: Final = "installed"

# No single quote, backslash, exclamation mark or newline: login shells parse those differently. $1 is the wheel's
# name, $2 the version. What installers print goes to stderr, which a terminal is shown.
_INSTALL: Final = (
    'PATH="$HOME/.local/bin:$PATH:/usr/local/bin:/opt/homebrew/bin"; '
    "dir=$(mktemp -d) || exit 1; "
    'tidy() { rm -rf "$dir"; }; trap tidy EXIT; '
    'cat > "$dir/$1" || exit 1; '
    "have=$(acp-gateway --version 2>/dev/null); "
    'case "$have" in *" $2") echo present; result=;; *) result=none; '
    "if command -v uv >/dev/null; then "
    'uv tool install --force "$dir/$1" >&2 || exit 1; result=uv; '
    "elif command -v pipx >/dev/null; then "
    'pipx install --force "$dir/$1" >&2 || exit 1; result=pipx; fi; '
    # Before the answer, at which the reader may end this shell.
    'tidy; case $result in none) echo "no installer";; *) echo "installed $result";; esac;; esac'
)


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation."""

    by: str | None
    """The installer; None if this version was there already."""


async def install(target: SshTarget, wheel_name: str, wheel: bytes, version: str) -> Installed:
    """Install a wheel on the remote machine for the user that ssh logs in as, unless this version is there.

    Raises `ConfigError` if there is neither uv nor pipx, or the installer fails, and what `ssh.run_script` does.
    Cancelling ends ssh; the installer may go on.
    """
    try:
        said = await run_script(target, _INSTALL, [wheel_name, version], wheel)
    except ProtocolError as error:
        raise ConfigError(f"{error}; the installation there failed, and nothing was paired") from None
    what, _, by = said.partition(" ")
    if said == NO_INSTALLER:
        raise ConfigError(
            f"{target}: there is neither uv nor pipx: install one of them there (apt install pipx, or "
            "https://docs.astral.sh/uv), and repeat this"
        )
    if what == PRESENT:
        return Installed(None)
    if what != INSTALLED:
        raise _not_understood(target, said)
    return Installed(by)


def _not_understood(target: SshTarget, said: str) -> GatewayError:
    return ProtocolError(f"{target}: the installation's end is not understood: {said!r:.200}")
