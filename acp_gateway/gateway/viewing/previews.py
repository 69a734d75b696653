"""Previews: the ports of agents' programs in a browser, each with an origin of its own.

An address has the port, and a part that cannot be guessed, by identity and agent. So the same-origin policy keeps a
program away from the gateway's page and from the programs of others. A browser is let in by a link, once, and gets a
cookie of that origin. All of it is in memory: after a restart, the link is asked for again.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import trio

from acp_gateway.errors import Unauthorized, UsageError

if TYPE_CHECKING:
    from acp_gateway.config.listeners import PreviewUrl
    from acp_gateway.gateway.access import Access
    from acp_gateway.gateway.gateway import Gateway
    from acp_gateway.gateway.viewing.open_ports import OpenPort

CODE_LIFETIME: Final = 60.0
"""Seconds for which a link is valid: the page opens it at once."""

COOKIE_LIFETIME: Final = 12 * 3600.0
"""Seconds for which a browser is let in: a day of work."""

MOST: Final = 64
"""Maximum links and browsers of one principal; a further one makes the oldest worthless."""

ENTER: Final = "/.acp-gateway/"
"""Beginning of the path of a link; behind it is the code."""

RESERVED: Final = re.compile(r"(__(host|secure)-)?acp-gateway", re.IGNORECASE)
"""Beginning of the names of cookies that are the gateway's own."""

_NAME: Final = re.compile(r"([0-9]{1,5})-([0-9a-f]{16})")

LINK_AGAIN: Final = "open this address by its link in the session's page of the gateway: it is for one browser, once"


@dataclass(frozen=True, slots=True)
class Preview:
    """A browser that may see a port."""

    access: "Access"
    port: int
    agent: str
    """The one whose program may answer: an origin is never another agent's."""
    name: str
    """The part of the host's name before that of all previews."""
    ends: float
    """Time of its end, in seconds of Trio's clock."""


class Previews:
    """The previews of one gateway.

    Args:
        gateway: the gateway, whose listeners say how previews are reached.
    """

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._key = secrets.token_bytes(32)
        # By the digest of the code, or of the cookie; the oldest first.
        self._codes: dict[bytes, Preview] = {}
        self._browsers: dict[bytes, Preview] = {}

    @property
    def url(self) -> "PreviewUrl | None":
        """The address of previews, with a wildcard; None if no listener has one."""
        return next((section.preview for section in self._gateway.config.listen if section.preview is not None), None)

    def link(self, access: "Access", port: "OpenPort") -> str:
        """Return a link to a port that a client may use. Raises `UsageError` where there are no previews."""
        url = self.url
        if url is None:
            raise UsageError("previews need preview_url in a [[listen]] section; `acp-gateway forward` works without")
        name = self._name(access, port)
        code = secrets.token_urlsafe(32)
        ends = trio.current_time() + CODE_LIFETIME
        self._keep(self._codes, code, Preview(access, port.port, port.agent, name, ends))
        return f"{url.origin(name)}{ENTER}{code}"

    def enter(self, name: str, code: str) -> tuple[str, Preview]:
        """Let a browser in by the code of a link, once; return the value of its cookie. Raises `Unauthorized`."""
        found = self._codes.pop(_digest(code), None)
        if found is None or not self._is_valid(found, name):
            raise Unauthorized(LINK_AGAIN)
        cookie = secrets.token_urlsafe(32)
        preview = replace(found, ends=trio.current_time() + COOKIE_LIFETIME)
        self._keep(self._browsers, cookie, preview)
        return cookie, preview

    def find(self, name: str, cookie: str | None) -> Preview:
        """Return the preview of a browser's cookie. Raises `Unauthorized`."""
        found = self._browsers.get(_digest(cookie or ""))
        if found is None or not self._is_valid(found, name):
            raise Unauthorized(LINK_AGAIN)
        return found

    def _is_valid(self, preview: Preview, name: str) -> bool:
        is_current = trio.current_time() < preview.ends and self._gateway.connections.is_valid(preview.access)
        return is_current and hmac.compare_digest(preview.name, name)

    def _name(self, access: "Access", port: "OpenPort") -> str:
        about = "\0".join((access.identity, port.agent, str(port.port)))
        return f"{port.port}-{hmac.new(self._key, about.encode(), hashlib.sha256).hexdigest()[:16]}"

    def _keep(self, kept: dict[bytes, Preview], secret: str, preview: Preview) -> None:
        now, principal = trio.current_time(), preview.access.principal
        for digest in [digest for digest, each in kept.items() if each.ends <= now]:
            del kept[digest]
        of_principal = [digest for digest, each in kept.items() if each.access.principal == principal]
        for digest in of_principal[: max(len(of_principal) - MOST + 1, 0)]:
            del kept[digest]
        kept[_digest(secret)] = preview


def is_name(text: str) -> bool:
    """Return whether a text has the form of a preview's name."""
    return _NAME.fullmatch(text) is not None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
