"""Decides which parts of heads pass between a browser and a program behind a preview. Pure.

The program is on the gateway's machine and knows itself by a loopback name; the browser knows an address of its own for
it. What would say something about the gateway to either, or about other addresses to the browser, is left out.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

Fields = list[tuple[str, str]]

_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "content-length", "expect", "http2-settings"}
)
"""Headers about one connection, in lower case (RFC 9110, 7.6.1); lengths are told again."""

_NOT_TO_PROGRAM: Final = frozenset(
    {"host", "cookie", "origin", "referer", "forwarded", "via", "sec-websocket-extensions", "x-gradio-server"}
)

_NOT_TO_BROWSER: Final = frozenset(
    {"set-cookie", "location", "clear-site-data", "strict-transport-security", "alt-svc", "public-key-pins", "refresh"}
    | {"sec-websocket-extensions", "date"}
)
"""Those that are told otherwise, and those that would hold for more than the preview's own address."""

_OWN_TOKEN: Final = re.compile(r"\s*bearer\s+acpg", re.IGNORECASE)
"""Beginning of the header with a token of a gateway."""

_LOOPBACK: Final = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\]|0\.0\.0\.0)(?::([0-9]{1,5}))?(?=[/?#]|\Z)")

_CROSS: Final = ("cross-site", "same-site")
"""Values of `Sec-Fetch-Site` for requests that pages of other origins have caused."""


class Origins(NamedTuple):
    """The origin of a preview, and that by which the program knows itself."""

    browser: str
    program: str


def foreign(method: str, headers: Mapping[str, str], origin: str) -> str:
    """Return why a request is one that another page has caused; empty if it is not.

    `headers` have names in lower case. A person may follow a link from elsewhere.
    """
    named = headers.get("origin")
    if named is not None and named != origin:
        return "this Origin is another one than that of the preview"
    follows_link = (
        method in ("GET", "HEAD")
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    if headers.get("sec-fetch-site") in _CROSS and not follows_link:
        return "a page of another origin has caused this request"
    return ""


def cookie_of(values: Iterable[str], name: str) -> str | None:
    """Return the value of the only cookie of a name; None without one, and of two."""
    pairs = [pair.partition("=") for pair in _pairs(values)]
    found = [value for key, is_set, value in pairs if is_set and key == name]
    return found[0] if len(found) == 1 else None


def _pairs(values: Iterable[str]) -> list[str]:
    return [pair.strip(" \t") for value in values for pair in value.split(";")]


def to_program(
    fields: Iterable[tuple[str, str]], origins: Origins, reserved: re.Pattern[str], *, upgrade: bool
) -> Fields:
    """Return the headers of a request for the program, without those about its body.

    `reserved` matches the names of cookies of the gateway. With `upgrade`, it asks for a WebSocket.
    """
    fields = list(fields)
    dropped = _HOP | _NOT_TO_PROGRAM | _named(fields)
    # The pages of Gradio ask the address that it takes for its own. X-Forwarded-Host would tell it that, too, but
    # others compare that with their Host and Origin, and refuse.
    found: Fields = [("Host", origins.program.partition("://")[2]), ("X-Gradio-Server", origins.browser)]
    for name, value in fields:
        lower = name.lower()
        if (
            lower in dropped
            or lower.startswith("x-forwarded-")
            or (lower == "authorization" and _OWN_TOKEN.match(value))
        ):
            continue
        found.append((name, value))
    cookies = _pairs(value for name, value in fields if name.lower() == "cookie")
    if kept := [pair for pair in cookies if pair and not reserved.match(pair)]:
        found.append(("Cookie", "; ".join(kept)))
    for name, value in fields:
        if name.lower() == "origin" or (name.lower() == "referer" and f"{value}/".startswith(f"{origins.browser}/")):
            found.append((name, value.replace(origins.browser, origins.program, 1)))
    found += [("Connection", "Upgrade"), ("Upgrade", "websocket")] if upgrade else [("Connection", "close")]
    return found


def to_browser(fields: Iterable[tuple[str, str]], origins: Origins, reserved: re.Pattern[str]) -> Fields:
    """Return the headers of a response for the browser, without those about its body."""
    fields = list(fields)
    dropped = _HOP | _NOT_TO_BROWSER | _named(fields)
    found: Fields = []
    for name, value in fields:
        lower = name.lower()
        if lower == "set-cookie" and not reserved.match(value.strip()):
            found.append(("Set-Cookie", _for_this_host(value)))
        elif lower in ("location", "refresh"):
            found.append((name.title(), _relative(value, origins)))
        elif lower not in dropped:
            found.append((name.title(), value))
    # Whom nothing else names: other origins of the same site may neither frame nor load it.
    found += [("Content-Security-Policy", "frame-ancestors 'self'"), ("Origin-Agent-Cluster", "?1")]
    present = {name.lower() for name, _ in found}
    defaults = ("Cross-Origin-Resource-Policy", "same-origin"), ("Referrer-Policy", "same-origin")
    return found + [(name, value) for name, value in defaults if name.lower() not in present]


def _for_this_host(cookie: str) -> str:
    """Return a cookie without a `Domain`, by which it would reach other hosts."""
    first, *attributes = cookie.split(";")
    kept = [each for each in attributes if each.partition("=")[0].strip().lower() != "domain"]
    return ";".join([first, *kept])


def _relative(value: str, origins: Origins) -> str:
    """Return a place at the program as one at the preview."""
    port = origins.program.rpartition(":")[2]
    return _LOOPBACK.sub(lambda found: origins.browser if (found[1] or "80") == port else found[0], value, count=1)


def _named(fields: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names of headers that `Connection` says are about one connection."""
    return {word.strip().lower() for name, value in fields if name.lower() == "connection" for word in value.split(",")}
