"""Reads the values of options about listeners: addresses, services, origins, names of hosts, networks."""

import ipaddress
import re
from typing import Literal, get_args

from acp_gateway.config.addresses import parse_address
from acp_gateway.config.schema import Entry, one_of
from acp_gateway.errors import UsageError

Service = Literal["acp", "page", "chat", "metrics", "tap", "editor"]
"""A part of the gateway that a listener serves."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_listen_url(entry: Entry) -> str:
    """Read a URL to listen at. Raises `ConfigError`."""
    if not isinstance(entry.value, str):
        raise entry.expected("a URL")
    try:
        parse_address(entry.value)
    except UsageError as error:
        raise entry.error(str(error)) from None
    return entry.value


def read_services(entry: Entry) -> tuple[Service, ...]:
    """Read the services of a listener. Raises `ConfigError`."""
    known = get_args(Service)
    elements = entry.array(f"an array of {one_of(known)}")
    if not elements:
        raise entry.error(f"expected at least one of {one_of(known)}")
    for element in elements:
        if element.value not in known:
            raise element.expected_word(one_of(known), known)
    if "page" in entry.value and "acp" not in entry.value:
        raise entry.error('"page" needs "acp" beside it: the page connects to the endpoint at its own address')
    if "tap" in entry.value and len(entry.value) > 1:
        raise entry.error('"tap" has an address of its own: its lines are not messages of ACP')
    return tuple(entry.value)


def read_origins(entry: Entry) -> tuple[str, ...]:
    """Read origins of web pages. Raises `ConfigError`."""
    for element in entry.array("an array of origins"):
        # As a browser sends it. No "*" and no "null": every sandboxed page has the latter.
        if not (isinstance(element.value, str) and re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#A-Z]+", element.value)):
            raise element.error('expected an origin in lower case and without a path, such as "https://editor.example"')
    return tuple(entry.value)


def read_hosts(entry: Entry) -> tuple[str, ...]:
    """Read names of the `Host` header. Raises `ConfigError`."""
    for element in entry.array("an array of host names"):
        # As in the header, without the port, which differs behind a proxy and protects nothing.
        if not (isinstance(element.value, str) and re.fullmatch(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]", element.value)):
            raise element.error('expected a host in lower case and without a port, such as "gpu.example" or "[::1]"')
    return tuple(entry.value)


def read_networks(entry: Entry) -> tuple[Network, ...]:
    """Read addresses and networks. Raises `ConfigError`."""
    networks = []
    for element in entry.array("an array of addresses and networks"):
        try:
            networks.append(ipaddress.ip_network(element.value if isinstance(element.value, str) else ""))
        except ValueError:
            raise element.error('expected an IP address or a network, such as "127.0.0.1" or "10.0.0.0/8"') from None
    return tuple(networks)
