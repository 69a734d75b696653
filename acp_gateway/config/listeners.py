"""Reads the values of options about listeners: addresses, services, origins, names of hosts, networks, the public URL.

The public URL is the address of a gateway as its users know it, which a reverse proxy may have another one for.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self

from acp_gateway.config.addresses import Address, Scheme, parse_address
from acp_gateway.config.schema import NAME, Entry, one_of
from acp_gateway.config.services import ENDPOINT, services, words
from acp_gateway.errors import UsageError
from acp_gateway.printable import printable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_listen_url(entry: Entry) -> str:
    """Read a URL to listen at. Raises `ConfigError`."""
    if not isinstance(entry.value, str):
        raise entry.expected("a URL")
    try:
        address = parse_address(entry.value)
    except UsageError as error:
        raise entry.error(str(error)) from None
    if address.scheme in ("ws", "wss") and address.path != "/acp":
        raise entry.error(
            f"has the path {address.path}, which is not served: clients connect to /acp. `path` is for programs "
            "without a token, `public_url` for the path at a proxy"
        )
    return entry.value


def read_services(entry: Entry) -> tuple[str, ...]:
    """Read the names of the services of a listener. Raises `ConfigError`."""
    known = words()
    elements = entry.array(f"an array of {one_of(known)}")
    if not elements:
        raise entry.error(f"expected at least one of {one_of(known)}")
    for element in elements:
        if element.value not in known:
            raise element.expected_word(one_of(known), known)
    for service in services():
        is_alone = service.query_parameter is not None and len(entry.value) == 1
        if service.word in entry.value and service.needs_endpoint and ENDPOINT not in entry.value and not is_alone:
            raise entry.error(f'"{service.word}" needs "{ENDPOINT}" beside it: {service.needs_endpoint}')
        if service.word in entry.value and service.at_lines and len(entry.value) > 1:
            raise entry.error(f'"{service.word}" has an address of its own: its lines are not messages of ACP')
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


_HOST: Final = re.compile(r"[a-z0-9_](?:[a-z0-9._-]{0,251}[a-z0-9_.])?")
_AROUND_HOST: Final = re.compile(
    r"(?:[a-z+]+://)?(?:[^@/]*@)?(?P<host>\[[^\]]*\]|[^/:]*)(?::[0-9]*)?(?:/.*)?", re.DOTALL
)


def parse_host(text: str) -> str:
    """Return a name or an IP address of a machine in lower case, an IPv6 address without brackets.

    Raises `UsageError`, with the host alone where scheme, port or path stand around it.
    """
    host = text.lower()
    try:
        address = ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        pass
    else:
        # A scope is for one machine, and can't be in a URL.
        if address.scope_id is None:
            return str(address)
    if _HOST.fullmatch(host):
        return host
    around = _AROUND_HOST.fullmatch(host)
    bare = around["host"] if around else ""
    hint = f": leave out all but {bare}" if bare != host and _HOST.fullmatch(bare) else ""
    raise UsageError(f"{printable(text)!r} is not a name or address of a machine{hint}")


def taken_paths() -> frozenset[str]:
    """Return the beginnings of the paths that the gateway serves itself, up to a slash."""
    own = frozenset({"acp", "healthz", "join", "nodes", "readyz"})
    return own.union(*(service.paths for service in services()))


_ENDPOINT_PATH: Final = re.compile(rf"/([A-Za-z0-9._~-]+)(?:/[A-Za-z0-9._~-]+)*(?:\?agent={NAME.pattern})?")


def read_path(entry: Entry) -> str:
    """Read a further path of the endpoint, which may name an agent. Raises `ConfigError`."""
    found = _ENDPOINT_PATH.fullmatch(entry.value) if isinstance(entry.value, str) else None
    if found is None:
        raise entry.error('expected a path, such as "/message", or "/message?agent=NAME"')
    if found[1] in taken_paths():
        raise entry.error(f"the gateway has a path of its own there: /{found[1]}")
    return str(entry.value)


_PUBLIC_URL: Final = re.compile(
    r"(https?)://([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([0-9]{1,5}))?((?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*)/?"
)
"""A path has no character that a proxy, a cookie or a shell could read in another way."""

_WEB_PORTS: Final = {"https": "443", "http": "80"}


@dataclass(frozen=True, slots=True)
class PublicUrl:
    """The address of a gateway as browsers know it."""

    secure: bool
    """True for `https`."""
    name: str
    """Its host, in lower case; an IPv6 address in brackets."""
    port: str
    """Empty for the default port."""
    path: str
    """The path before those of the gateway; empty, or with a slash at its beginning and none at its end."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL. Raises `UsageError`."""
        found = _PUBLIC_URL.fullmatch(text)
        if found is None:
            raise UsageError(
                'expected the URL by which browsers reach this listener, in lower case, such as "https://gpu.example" '
                'or "https://gpu.example/gateway"'
            )
        scheme, name, port, path = found.groups("")
        url = cls(scheme == "https", name, "" if port == _WEB_PORTS[scheme] else port, path)
        if not url.secure and not Address("ws", name.strip("[]"), 0, "").loopback:
            raise UsageError("the network could read cookies and code: only https:// leads off this machine")
        return url

    @property
    def host(self) -> str:
        """The `Host` header of its requests."""
        return f"{self.name}:{self.port}" if self.port else self.name

    @property
    def origin(self) -> str:
        """The origin of its pages."""
        return f"{'https' if self.secure else 'http'}://{self.host}"

    @property
    def endpoint(self) -> Address:
        """The address of its endpoint, for clients."""
        scheme: Scheme = "wss" if self.secure else "ws"
        return parse_address(f"{scheme}://{self.host}{self.path}/acp")


def read_public_url(entry: Entry) -> str:
    """Read a URL for browsers. Raises `ConfigError`."""
    try:
        PublicUrl.parse(entry.value if isinstance(entry.value, str) else "")
    except UsageError as error:
        raise entry.error(str(error)) from None
    return str(entry.value)


_PREVIEW_URL: Final = re.compile(r"(https?)://\*\.([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class PreviewUrl:
    """The address of all previews as browsers know it, with a wildcard in place of the first part of the name."""

    secure: bool
    """True for `https`."""
    host: str
    """The `Host` header of a preview without its first part and the dot behind that."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL. Raises `UsageError`."""
        found = _PREVIEW_URL.fullmatch(text)
        if found is None:
            raise UsageError('expected a URL with a wildcard, in lower case, such as "https://*.box.example"')
        scheme, name, port = found.groups("")
        if scheme == "http" and not (name == "localhost" or name.endswith(".localhost")):
            raise UsageError("the network could read what is shown: only https:// leads off this machine")
        return cls(scheme == "https", f"{name}:{port}" if port not in ("", _WEB_PORTS[scheme]) else name)

    def origin(self, name: str) -> str:
        """Return the origin of the preview of a name."""
        return f"{'https' if self.secure else 'http'}://{name}.{self.host}"


def read_preview_url(entry: Entry) -> str:
    """Read the URL of previews. Raises `ConfigError`."""
    try:
        PreviewUrl.parse(entry.value if isinstance(entry.value, str) else "")
    except UsageError as error:
        raise entry.error(str(error)) from None
    return str(entry.value)
