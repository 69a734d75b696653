"""The options that say how another machine is reached, the same for agents, nodes, a cluster's directory and hosts."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from acp_gateway.config.addresses import Address, parse_target
from acp_gateway.config.schema import Entry, FilePath, Flag
from acp_gateway.errors import ConfigError, UsageError

MAX_ADDRESSES: Final = 8
"""Maximum addresses of one gateway: each takes some memory and sockets while they are tried."""


def read_target(entry: Entry) -> Address:
    """Read an address to connect to. Raises `ConfigError`."""
    if not isinstance(entry.value, str):
        raise entry.expected("a URL or host[:port]")
    try:
        return parse_target(entry.value)
    except UsageError as error:
        raise entry.error(str(error)) from None


def read_targets(entry: Entry) -> tuple[Address, ...]:
    """Read the addresses of one gateway, best first; one may stand without an array. Raises `ConfigError`."""
    if isinstance(entry.value, str):
        return (read_target(entry),)
    entries = entry.array("a URL, host[:port], or an array of these")
    if not entries:
        raise entry.error("expected at least one address")
    if len(entries) > MAX_ADDRESSES:
        raise entries[MAX_ADDRESSES].error(f"a gateway has at most {MAX_ADDRESSES} addresses")
    found: list[Address] = []
    for element in entries:
        address = read_target(element)
        if address in found:
            raise element.error(f"the address {address} is there twice")
        found.append(address)
    return tuple(found)


def read_node_url(entry: Entry) -> Address:
    """Read the address of another gateway, to which a link leads. Raises `ConfigError`."""
    address = read_target(entry)
    if address.scheme not in ("wss", "ws"):
        raise entry.error("the link to a node is a WebSocket: use wss://host:port, or ws:// on loopback")
    return address


def read_pin(entry: Entry) -> str:
    """Read the pin of a public key, in lower case. Raises `ConfigError`."""
    if not (isinstance(entry.value, str) and re.fullmatch(r"sha256:[0-9A-Fa-f]{64}", entry.value)):
        raise entry.error('expected "sha256:" and 64 hexadecimal digits, as "acp-gateway certs create" prints it')
    return entry.value.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedSection:
    """Common options of another machine, in `[agents.NAME]`, `[nodes.NAME]`, `[cluster]` and `[hosts.NAME]`."""

    token_file: FilePath | None = None
    """A file with the token for `url`, of any form, in mode 0600. It is read at each connection. In `hosts.toml` it is
    used if neither the command line nor the environment names a token."""

    pin: Annotated[str, read_pin] | None = None
    """The public key at `url`, as `acp-gateway certs create` prints it: `sha256:` and 64 hexadecimal digits. With it,
    the certificate needs no authority."""

    ca: FilePath | None = None
    """The authorities to trust at `url`, in PEM, instead of this machine's. `pin` overrides it."""

    insecure_plaintext: Flag = False
    """Lets `url` name another machine without TLS, where the network can read tokens and code."""


def reached_problems(
    section: ReachedSection,
    address: Address,
    table: Mapping[str, Entry],
    *,
    readable: str = "tokens and code",
    tls: str = "wss://",
) -> Iterator[ConfigError]:
    """Yield what does not fit between the address of another machine and the options for its TLS."""
    for option in ("pin", "ca"):
        if option in table and not address.tls:
            yield table[option].error(f"is for TLS, and {address.scheme} has none")
    if not (address.tls or address.loopback or section.insecure_plaintext):
        yield table["url"].error(
            f"the network could read {readable}: use {tls}, a loopback address, or insecure_plaintext = true"
        )
