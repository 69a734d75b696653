"""Parses addresses to listen at and to connect to, as one type for every transport.

Also the other values of options about listeners: services, origins, names of hosts, networks, and the public URL, which
is the address of a gateway as its users know it.
"""

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Final, Literal, Self, cast, get_args

from acp_gateway.config.schema import Entry, one_of
from acp_gateway.errors import UsageError

DEFAULT_PORT = 7443
"""Default port of TCP and of `host` without a scheme: it resembles 443 and needs no root."""

Scheme = Literal["wss", "ws", "https", "http", "tcp", "tcp+tls", "unix", "ssh"]

_DEFAULT_PORTS = {"wss": 443, "ws": 80, "tcp": DEFAULT_PORT, "tcp+tls": DEFAULT_PORT, "unix": 0}
_HTTP_SCHEMES: dict[str, Scheme] = {"https": "wss", "http": "ws"}
"""Listeners: other names of the same, since they speak HTTP until a client asks for a WebSocket. Targets: servers that
may have no WebSocket."""

_WEBSOCKET_PATH = "/acp"

_EXAMPLES = {
    "wss": "wss://host.example:7443",
    "ws": "ws://127.0.0.1:7080",
    "https": "https://host.example/acp",
    "http": "http://127.0.0.1:3000/acp",
    "tcp": "tcp://127.0.0.1:7443",
    "tcp+tls": "tcp+tls://host.example:7443",
    "unix": "unix:///run/acp-gateway/socket",
    "ssh": "ssh://user@host.example",
}

_AUTHORITY = re.compile(r"(?:\[(?P<ipv6>[^\]]*)\]|(?P<name>[^\[\]:]*))(?::(?P<port>.*))?")
_NAME = re.compile(r"[^\s/?#@\\%]+")
_USER_INFO = re.compile(r"^([^/]*://)?[^/]*@")

# Neither may look like an option, and ssh's configuration may insert both into a command.
_SSH_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SSH_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")


@dataclass(frozen=True, slots=True)
class Address:
    """One end point.

    `host` is a name in lower case or an IP address without brackets; "" for a unix socket; for `ssh` as it was given,
    since it may be a name of ssh's configuration. `port` 0 asks for any free port when listening, and for what ssh's
    configuration says. `path` is the request's path for `ws` and `wss`, the socket's absolute path for `unix`, the far
    socket's, or "", for `ssh`; "" otherwise.
    """

    scheme: Scheme
    host: str
    port: int
    path: str
    user: str = ""
    """Login name for `ssh`; "" for the one of ssh's configuration."""

    @property
    def tls(self) -> bool:
        """True if the bytes are encrypted and the server shows a certificate."""
        return self.scheme in ("wss", "https", "tcp+tls")

    @property
    def websocket(self) -> bool:
        """True if messages travel in WebSocket frames, but see `may_lack_websocket`; else they are lines."""
        return self.scheme in ("wss", "ws", "https", "http")

    @property
    def may_lack_websocket(self) -> bool:
        """True if Streamable HTTP is to be used with a server that opens no WebSocket."""
        return self.scheme in _HTTP_SCHEMES

    @property
    def wildcard(self) -> bool:
        """True if the host is that of all addresses of the machine, such as 0.0.0.0, to which no client can go."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def loopback(self) -> bool:
        """True if the connection cannot leave this machine. Only names that cannot resolve elsewhere count."""
        if self.scheme == "unix" or self.host == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return address.is_loopback

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.scheme == "ssh":
            user, port = f"{self.user}@" if self.user else "", f":{self.port}" if self.port else ""
            return f"ssh://{user}{host}{port}{self.path}"
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_address(text: str) -> Address:
    """Parse a URL to listen at; port 0 is allowed.

    A missing port is 443 for `wss` and 80 for `ws`, as the URL standard says, and `DEFAULT_PORT` for `tcp` and
    `tcp+tls`. A missing path of `ws` and `wss` is `/acp`. `https` is read as `wss`, and `http` as `ws`. Raises
    `UsageError`.
    """
    return _parse_url(text, [*_DEFAULT_PORTS, *_HTTP_SCHEMES])


def _parse_url(text: str, known: list[str]) -> Address:
    given, separator, rest = text.partition("://")
    scheme = given.lower()
    if not separator:
        raise _refusal(text, "is not a URL", "wss")
    if scheme not in known:
        raise _refusal(text, f'has the unknown scheme "{given}"; known are {", ".join(known)}', "wss")
    scheme = _HTTP_SCHEMES.get(scheme, scheme)
    if "?" in rest or "#" in rest:
        raise _refusal(text, "has a query or fragment, and tokens do not belong into a URL", scheme)
    if not rest.isprintable():
        raise _refusal(text, "holds a character that cannot be printed", scheme)
    authority, slash, path = rest.partition("/")
    path = slash + path
    if "@" in authority:
        raise _refusal(text, "has user information, and tokens do not belong into a URL", scheme)
    if scheme == "unix":
        if authority or path.endswith("/") or not path:
            raise _refusal(text, "must hold the absolute path of a socket after unix://", scheme)
        return Address("unix", "", 0, path)
    host, port = _host_and_port(text, authority, scheme, _DEFAULT_PORTS[scheme])
    if scheme in ("wss", "ws"):
        if " " in path:
            raise _refusal(text, "has a space in its path", scheme)
        # To the URL standard no path and "/" are the same; neither is an endpoint of ACP.
        path = path if path not in ("", "/") else _WEBSOCKET_PATH
    elif path not in ("", "/"):
        raise _refusal(text, f"has a path, and {scheme} takes none", scheme)
    else:
        path = ""
    return Address(cast("Scheme", scheme), host, port, path)


def parse_target(text: str) -> Address:
    """Parse an address to connect to: a URL, which may be `https` or `http`, or `host[:port]`, which means `wss`.

    IPv6 is written `[::1]:7443`, or bare without a port. A URL may also be `ssh://[user@]host[:port][/path/to/socket]`.
    Raises `UsageError`.
    """
    if text[:6].lower() == "ssh://":
        return _parse_ssh(text)
    if "://" in text:
        address = _parse_url(text, [*_DEFAULT_PORTS, *_HTTP_SCHEMES, "ssh"])
        given = text.partition("://")[0].lower()
        if given in _HTTP_SCHEMES:
            address = replace(address, scheme=cast("Scheme", given))
    elif _is_ipv6(text):
        address = Address("wss", str(ipaddress.IPv6Address(text)), DEFAULT_PORT, _WEBSOCKET_PATH)
    elif "@" in text or "?" in text or "#" in text:
        raise _refusal(text, "holds more than host[:port], and tokens do not belong there", "wss")
    elif "/" in text or not text.isprintable():
        raise _refusal(text, "is neither a URL nor host[:port]", "wss")
    else:
        host, port = _host_and_port(text, text, "wss", DEFAULT_PORT)
        address = Address("wss", host, port, _WEBSOCKET_PATH)
    if address.scheme != "unix" and address.port == 0:
        raise _refusal(text, "has port 0, which is for listening only", address.scheme)
    return address


def _parse_ssh(text: str) -> Address:
    authority, slash, path = text[6:].partition("/")
    path = slash + path
    user, at, place = authority.rpartition("@")
    if "?" in text or "#" in text:
        raise _refusal(text, "has a query or fragment, and tokens do not belong into a URL", "ssh")
    if not text.isprintable():
        raise _refusal(text, "holds a character that cannot be printed", "ssh")
    if path != "/" and path.endswith("/"):
        raise _refusal(text, "has no absolute path of a socket behind the host", "ssh")
    if at and ":" in user:
        raise _refusal(text, "has a password, which ssh asks for itself or, better, needs not", "ssh")
    if at and not _SSH_USER.fullmatch(user):
        raise _refusal(text, "has a user name that can't stand there; write it into ~/.ssh/config", "ssh")
    # The scope of an IPv6 address can be any text.
    match = None if "%" in place else _AUTHORITY.fullmatch(place)
    if match is None or (match["ipv6"] is None and not _SSH_HOST.fullmatch(match["name"])):
        raise _refusal(text, "names no valid host; one of ~/.ssh/config is fine as well", "ssh")
    _, port = _host_and_port(text, place, "ssh", 0)
    if port == 0 and match["port"] is not None:
        raise _refusal(text, "has port 0, which is for listening only", "ssh")
    host = match["name"] if match["ipv6"] is None else str(ipaddress.IPv6Address(match["ipv6"]))
    return Address("ssh", host, port, "" if path == "/" else path, user)


def _host_and_port(text: str, authority: str, scheme: str, default_port: int) -> tuple[str, int]:
    match = _AUTHORITY.fullmatch(authority)
    if match is None or (authority.count(":") > 1 and match["ipv6"] is None):
        raise _refusal(text, "has a host that cannot be read; an IPv6 address stands in brackets, [::1]", scheme)
    if match["ipv6"] is not None:
        if not _is_ipv6(match["ipv6"]):
            raise _refusal(text, "has something in brackets that is not an IPv6 address", scheme)
        host = str(ipaddress.IPv6Address(match["ipv6"]))
    else:
        host = match["name"].lower()
        if not _NAME.fullmatch(host):
            raise _refusal(text, "names no valid host (0.0.0.0 or [::] listens on all addresses)", scheme)
    port = match["port"]
    if port is None:
        return host, default_port
    # At most five digits: int() of a very long string is an error of its own.
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise _refusal(text, "has a port that is not a number from 0 to 65535", scheme)
    return host, int(port)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _refusal(text: str, problem: str, scheme: str) -> UsageError:
    # User information, query and fragment are where people put tokens, so the message leaves them out.
    shown = _USER_INFO.sub(r"\g<1>…@", re.split(r"[?#]", text, maxsplit=1)[0])
    return UsageError(f"the address {shown!r} {problem}; a valid one is {_EXAMPLES[scheme]}")


def overlap(first: str, second: str) -> bool:
    """Return whether two listening sockets conflict that share a port. Hosts are IP addresses or names."""
    try:
        one, other = ipaddress.ip_address(first), ipaddress.ip_address(second)
    except ValueError:
        return first == second
    return one.version == other.version and (one == other or one.is_unspecified or other.is_unspecified)


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
