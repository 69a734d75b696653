"""Pairing: over the user's own ssh, a machine gets a token of a gateway and whatever else it takes to reach it.

Whoever can log in as the gateway's user may make tokens anyway, and ssh has shown already that the machine is the right
one. So the gateway's pin comes from there as well, and nobody has to compare or to copy anything.

A pairing is whole or nothing. The new token lives for `PENDING` seconds until the machine has connected with it and
says `keep`; only when it is noted there, `replace` revokes the token of before. Whatever ends earlier, the machine's
entry and its old token stay as they were, and the new token is revoked, at the latest by its time.
"""

import ipaddress
import json
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from acp_gateway.client.ssh import RemoteCommand, Way, start_command
from acp_gateway.config.addresses import Address, parse_address, parse_target
from acp_gateway.errors import ConfigError, ProtocolError, TrustError, Unreachable, UsageError
from acp_gateway.security.tls import parse_pin, spki_pin
from acp_gateway.security.token_format import explain_flaw

if TYPE_CHECKING:
    from acp_gateway.config.load import Config
    from acp_gateway.security.token_store import Token

WHAT: Final = "pairing"
"""What is between the marks, on their lines."""

KEEP: Final = "keep"
REPLACE: Final = "replace"
WITHDRAW: Final = "withdraw"
"""What the machine that is paired may tell the gateway's, a line each."""

PENDING: Final = 600.0
"""Seconds that a token lives before it is kept: time for some addresses that do not answer, and not for a thief."""

_NOT_UNDERSTOOD: Final = "the answer is not understood; does `acp-gateway --version` say the same there and here?"

LABEL: Final = re.compile(r"[\w .,:@+()-]{1,64}")
"""What a machine may be called: it comes to stand in a command for a shell that may be of any kind."""

_PAIRED: Final = " (paired)"
"""What the label of each such token ends with, so that no other is ever revoked by pairing again."""

_ID: Final = re.compile("[0-9a-f]{8}")
_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


MOST_PLACES: Final = 16
"""Addresses of one gateway that are tried, for some seconds each: nobody listens at more."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a gateway can be reached with TLS."""

    address: Address
    """As in its configuration, where the host may stand for all addresses of the machine."""
    pin: str


@dataclass(frozen=True, slots=True)
class Offer:
    """What a machine is given."""

    listeners: tuple[Listener, ...]
    relayed: bool
    """Whether it can be reached through ssh: it listens at a unix socket."""
    command: str | None
    """The absolute path of this program there, where it is one program."""
    token: str = field(repr=False)
    token_id: str

    def encode(self) -> str:
        """One line of ASCII, with the token in it."""
        return json.dumps(
            {
                "listeners": [{"url": str(listener.address), "pin": listener.pin} for listener in self.listeners],
                "relayed": self.relayed,
                "command": self.command,
                "token": self.token,
                "tokenId": self.token_id,
            }
        )


@dataclass(frozen=True, slots=True)
class Place:
    """An address at which a gateway may be reached, and the pin of its key where TLS needs one."""

    address: Address
    pin: str | None


# On the gateway's machine


def label_of(label: str) -> str:
    """The label of the token for a machine that is called this. Raises `UsageError`."""
    if not LABEL.fullmatch(label) or not label.strip():
        raise UsageError(
            "a label is 1 to 64 letters, digits, spaces and any of . , : @ + ( ) _ -; give another --label"
        )
    return label + _PAIRED


def find_listeners(config: "Config") -> tuple[Listener, ...]:
    """The listeners with TLS that have a port of their own, and the pins of their certificates.

    Raises `ConfigError` for a certificate that can't be read, and where there is no way in that could be offered.
    """
    found = [
        Listener(section.address, _pin_of(section.cert))
        for section in config.listen
        if section.cert is not None and section.address.tls and section.address.port
    ]
    if not found and not is_relayed(config):
        raise ConfigError(
            "the gateway has neither a listener with TLS nor one for links through ssh; add one of them: "
            '[[listen]] url = "unix:///absolute/path/of/a/socket"'
        )
    return tuple(found)


def is_relayed(config: "Config") -> bool:
    """Whether the gateway can be reached through ssh."""
    return any(section.address.scheme == "unix" for section in config.listen)


def may_replace(token: "Token", made: "Token") -> bool:
    """Whether `token` was made by pairing the same machine with the same gateway as `made`."""
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
    """A pairing that is under way: a gateway's machine has made a token, and waits for what becomes of it.

    Everything here raises what `ssh.RemoteCommand` does.
    """

    def __init__(self, command: RemoteCommand, offer: Offer) -> None:
        self._command = command
        self.offer = offer

    async def keep(self) -> None:
        """Have the token live on; before, it is revoked when the connection ends."""
        _check_done(await self._command.ask(KEEP))

    async def replace(self, token_id: str) -> bool:
        """Have the token of before revoked; False where it stays, because pairing did not make it for this machine."""
        return _check_done(await self._command.ask(f"{REPLACE} {token_id}"))

    async def withdraw(self) -> None:
        """Have the new token revoked."""
        _check_done(await self._command.ask(WITHDRAW))


@asynccontextmanager
async def open_pairing(way: Way, *, label: str, agents: Sequence[str], patience: float) -> AsyncIterator[Pairing]:
    """Have a token made there, and get it with the rest; at the end ssh is ended.

    Args:
        way: to the gateway's machine, as the gateway's user.
        label: what this machine is called.
        agents: the only ones that the token is for; none are all.
        patience: seconds until there is an offer.

    Raises what `ssh.RemoteCommand` does, `Unreachable` where there is no offer in time. Cancelling ends ssh.
    """
    arguments = ["pair-here", "--label", label]
    for agent in agents:
        arguments += ["--agent", agent]
    command = await start_command(way, WHAT, arguments)
    try:
        offer = None
        with trio.move_on_after(patience):
            offer = parse_offer(await command.read_answer())
        if offer is None:
            raise Unreachable(
                f"{way}: no answer within {patience:g} s; does a profile there (.bashrc) wait for input? Try: ssh "
                f"{way.login} acp-gateway --version; --connect-timeout gives it longer"
            )
        yield Pairing(command, offer)
    finally:
        await command.aclose()


def _check_done(said: bytes) -> bool:
    """Whether the program there did what it was told. Raises `ProtocolError` for what is no answer."""
    try:
        done = json.loads(said)["done"]
    except (ValueError, RecursionError, LookupError, TypeError):
        done = None
    if not isinstance(done, bool):
        raise ProtocolError(_NOT_UNDERSTOOD)
    return done


def parse_offer(said: bytes) -> Offer:
    """Read what `Offer.encode` wrote. Raises `ProtocolError`, which quotes nothing of it."""
    try:
        value = json.loads(said)
        offer = Offer(
            tuple(Listener(parse_address(one["url"]), parse_pin(one["pin"])) for one in value["listeners"]),
            bool(value["relayed"]),
            value["command"],
            value["token"],
            value["tokenId"],
        )
        command = offer.command
        right = (
            explain_flaw(offer.token) is None
            and _ID.fullmatch(offer.token_id) is not None
            and all(listener.address.tls for listener in offer.listeners)
            and (command is None or (command.startswith("/") and command.isprintable()))
        )
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, UsageError):
        right = False
    if not right:
        raise ProtocolError(_NOT_UNDERSTOOD) from None
    return offer


def places(offer: Offer, way: Way, host_name: str) -> list[Place]:
    """Where to try, the best first: with TLS at what the listener names, or at `host_name`; then through ssh.

    `host_name` is what ssh's own configuration makes of the host. None where nothing leads there from another machine.
    What hosts.toml could not say is no place: one entry that can't be read makes the whole file useless.
    """
    found: list[Place] = []
    here = Address("tcp", host_name, 0, "").loopback
    for listener in sorted(offer.listeners, key=lambda listener: not listener.address.websocket):
        address = listener.address
        if is_unspecified(address.host):
            address = Address(address.scheme, host_name.lower(), address.port, address.path)
        if (here or not address.loopback) and _is_target(address):
            found.append(Place(address, listener.pin))
    del found[MOST_PLACES:]
    if offer.relayed:
        found.append(Place(Address("ssh", way.address.host, way.address.port, "", way.address.user), None))
    return found


def _is_target(address: Address) -> bool:
    try:
        return parse_target(str(address)) == address
    except UsageError:
        return False


def is_unspecified(host: str) -> bool:
    """Whether a listener at this host is for all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
