"""Parses addresses to listen at and to connect to, as one type for every transport."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, cast

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

    def reached_at(self, hosts: Iterable[str]) -> list[str]:
        """Return the IP addresses among `hosts` at which a listener with this wildcard host is reached."""
        return [host for host in hosts if (":" in host) == (":" in self.host)]

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
        raise _refusal(
            text, "holds more than host[:port], and tokens do not belong there; over ssh write ssh://USER@HOST", "wss"
        )
    elif text.startswith("/"):
        raise _refusal(text, "is a path, and a socket has unix:// before it", "unix")
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
