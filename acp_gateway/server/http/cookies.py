"""Reads and writes the cookie of a browser, and tells the gateway's own pages from all others.

A browser sends a cookie with requests that pages of others have caused, so a cookie is believed only together with the
`Origin` of one of the gateway's own pages, or of a listed one. `Origin` and `Host` are headers that no page can set.
"""

from dataclasses import dataclass
from typing import Final

from websockets.datastructures import Headers

from acp_gateway.config.listeners import PublicUrl
from acp_gateway.errors import Forbidden
from acp_gateway.server.hello import BadRequest, is_loopback

NAME: Final = "acp-gateway"

SECURE_PREFIX: Final = "__Host-"
"""Beginning of a cookie's name for which browsers accept neither a `Domain` nor a plain connection (RFC 6265bis), so
that neither another host nor the network can put one in its place."""


@dataclass(frozen=True, slots=True)
class Site:
    """The gateway as a browser knows it, by the `Host` header of a request."""

    secure: bool
    """True if browsers reach it over TLS, which may end at a proxy."""
    host: str
    """Its name, with a port other than the default one."""
    path: str = ""
    """The path before those of the gateway, which a proxy removes."""

    @property
    def origin(self) -> str:
        """The origin of its pages."""
        return f"{'https' if self.secure else 'http'}://{self.host}"

    @property
    def cookie_name(self) -> str:
        """The name of its cookie. Without TLS it has the port, since browsers send a cookie to all ports of a host.

        A path is part of it: the prefix demands `Path=/`, and at one host there may be several gateways.
        """
        name = SECURE_PREFIX + NAME if self.secure else f"{NAME}-{_port(self.host) or 80}"
        return name + self.path.replace("/", "+")

    def set_cookie(self, value: str, lifetime: float) -> str:
        """Return the header that sets the cookie for so many seconds."""
        secure = "Secure; " if self.secure else ""
        return f"{self.cookie_name}={value}; {secure}HttpOnly; SameSite=Strict; Path=/; Max-Age={int(lifetime)}"

    def read_cookie(self, headers: Headers) -> str | None:
        """Return the value of the cookie; None without one. Raises `BadRequest` if there are several.

        Of two, one was set by another program on the same host, and nothing tells which.
        """
        found = []
        for value in headers.get_all("Cookie"):
            for pair in value.split(";"):
                name, is_set, content = pair.strip(" \t").partition("=")
                if is_set and name == self.cookie_name:
                    found.append(content)
        if len(found) > 1:
            raise BadRequest(f"there is more than one cookie {self.cookie_name}: remove those of this site")
        return found[0] if found else None


def site_of(headers: Headers, *, tls: bool, public: PublicUrl | None = None) -> Site:
    """Return the site of a request that `check_host` has passed.

    It is the public one for a request that names its host, and for one from its pages: a proxy may replace `Host`.
    Without TLS at the listener, a name of loopback is a browser's on this machine. Any other name is that of a proxy
    which ends TLS: browsers are not to send a cookie in plain text.
    """
    host = headers.get("Host", "").lower()
    if public is not None and (host == public.host or headers.get_all("Origin") == [public.origin]):
        return Site(public.secure, public.host, public.path)
    port = _port(host)
    name = host.removesuffix(f":{port}") if port else host
    return Site(tls or not is_loopback(name.removesuffix(".")), host)


def check_page(headers: Headers, allowed: tuple[str, ...], site: Site) -> None:
    """Raise `Forbidden` for a request that is not from a page of this site, or of a listed origin."""
    origins = headers.get_all("Origin")
    if not origins:
        raise Forbidden("a cookie is accepted only from a page, with its Origin; programs send a token")
    if len(origins) > 1 or origins[0] not in (site.origin, *allowed):
        raise Forbidden(f"this Origin is not that of the gateway's page, which is {site.origin} by this Host header")


def _port(host: str) -> str:
    """Return the port of a `Host` header; empty without one."""
    port = host.rpartition(":")[2]
    return port if ":" in host and port.isascii() and port.isdigit() else ""
