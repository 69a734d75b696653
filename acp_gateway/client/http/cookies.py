"""The cookies of servers, kept in memory, as RFC 6265 requires of a client.

A cookie is sent to the origin that has set it only, which is narrower than the RFC allows: a shim has one server. So a
`Domain` decides only whether the cookie is accepted.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

MAX_COOKIES: Final = 50
COOKIE_SIZE: Final = 4096
"""Maximum cookies of an origin, and bytes of each, as browsers have them."""

MAX_ORIGINS: Final = 8
"""Maximum origins with cookies: more than the addresses of one server."""


class Origin(NamedTuple):
    """A server as cookies know it."""

    host: str
    """The value of the `Host` header."""
    tls: bool

    @property
    def domain(self) -> str:
        """The host without its port."""
        if self.host.startswith("["):
            return self.host.partition("]")[0] + "]"
        return self.host.partition(":")[0].lower()


class _Key(NamedTuple):
    name: str
    domain: str
    path: str


class CookieJar:
    """The cookies of all servers that this process has reached. Times are in seconds of Unix time."""

    def __init__(self) -> None:
        # Value and time of expiry by key, for each origin, the oldest first.
        self._origins: dict[Origin, dict[_Key, tuple[str, float]]] = {}

    def store(self, origin: Origin, path: str, header: str, now: float) -> None:
        """Keep, replace or remove a cookie, as a `Set-Cookie` header in the response to a request with a path says."""
        pair, *rest = header.split(";")
        name, equals, value = (part.strip() for part in pair.partition("="))
        attributes = {key.strip().lower(): text.strip() for key, _, text in (part.partition("=") for part in rest)}
        if not equals or not name or len(pair) > COOKIE_SIZE or not (pair.isascii() and pair.isprintable()):
            return
        domain = attributes.get("domain", "").removeprefix(".").lower()
        if ("secure" in attributes and not origin.tls) or not _covers_host(domain, origin.domain):
            return
        covered = attributes.get("path", "")
        if not covered.startswith("/"):
            covered = path.rpartition("/")[0] or "/"
        if len(domain) + len(covered) > COOKIE_SIZE:
            return
        kept = self._origins.setdefault(origin, {})
        key = _Key(name, domain, covered)
        kept[key] = value, _expiry(attributes, now)
        if kept[key][1] <= now:
            del kept[key]
        if len(kept) > MAX_COOKIES:
            del kept[next(iter(kept))]
        if len(self._origins) > MAX_ORIGINS:
            del self._origins[next(iter(self._origins))]

    def header(self, origin: Origin, path: str, now: float) -> dict[str, str]:
        """Return the header for a request with this path; empty without cookies."""
        sent = [
            (key, value)
            for key, (value, expires) in self._origins.get(origin, {}).items()
            if expires > now and _covers_path(key.path, path)
        ]
        # Longer paths first, then in the order in which they were set.
        sent.sort(key=lambda cookie: -len(cookie[0].path))
        return {"Cookie": "; ".join(f"{key.name}={value}" for key, value in sent)} if sent else {}


def _covers_host(domain: str, host: str) -> bool:
    """Return whether a cookie with this domain may be set by a host; "" is the host itself."""
    if domain in ("", host):
        return True
    is_address = host.startswith("[") or host.rpartition(".")[2].isdigit()
    return host.endswith(f".{domain}") and not is_address


def _covers_path(covered: str, path: str) -> bool:
    return path == covered or path.startswith(covered if covered.endswith("/") else f"{covered}/")


def _expiry(attributes: Mapping[str, str], now: float) -> float:
    """Return the time at which a cookie expires; infinite without one that can be read."""
    age = attributes.get("max-age", "")
    if age.removeprefix("-").isdigit() and age.isascii():
        return now + int(age[:12])
    # Imported here to keep start-up fast: most servers set no cookies.
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(attributes["expires"]).timestamp()
    except (KeyError, ValueError, OverflowError, OSError):
        return float("inf")
