"""Makes the link that signs the browser of a guest in, for one session."""

import logging
from dataclasses import dataclass
from typing import Final

import trio

from acp_gateway.core.sessions.session import Role
from acp_gateway.errors import Busy, ConfigError, UsageError
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.page_address import make_link
from acp_gateway.security.browser_sessions import CODE_LIFETIME, BrowserRole
from acp_gateway.security.token_store import Token

log = logging.getLogger(__name__)

GUEST_LIFETIME: Final = 24 * 3600.0
"""Seconds for which the guest's token is valid, as by default in `acp-gateway share`. Its browser ends with it."""

LABEL: Final = "guest"


@dataclass(frozen=True, slots=True)
class GuestLink:
    """A link for a guest."""

    url: str
    expires: str
    """Time until which it can be used, once: ISO 8601, in UTC."""

    def __repr__(self) -> str:
        return f"GuestLink(expires={self.expires!r})"


@dataclass(frozen=True, slots=True)
class Shared:
    """A session that is shared."""

    name: str
    """Its name at this gateway."""
    id: str
    agent: str
    """The name of its agent; empty if only its node knows it."""
    owner: str


def may_share(access: Access, role: Role, bound: str | None) -> bool:
    """Return True if a browser may share the sessions of its identity."""
    is_direct = not (access.by_port or access.spoken_for)
    return role is Role.CONTROLLER and access.session is None and bound is None and is_direct


def share_session(
    gateway: Gateway, access: Access, session: Shared, page: str, connection: str, *, observe: bool
) -> GuestLink:
    """Create a token for a guest of a session, and a code that signs one browser in by it.

    The token's own text is not kept. `acp-gateway token revoke` ends it, and the browser with it; it ends by itself
    with a code that was not used. Raises `Busy` if a file can't be written; the reason is logged.

    Args:
        gateway: the gateway.
        access: the principal that shares.
        session: the session.
        page: URL of the gateway's page.
        connection: name of the connection, for the audit.
        observe: True for a guest that may only watch.
    """
    role: BrowserRole = "observer" if observe else "controller"
    label = f"{LABEL} of {access.identity}"
    try:
        token, _ = gateway.tokens.create_guest(session.name, role=role, lifetime=GUEST_LIFETIME, label=label)
        code, secret = gateway.browsers.make_code(token, token.identity, role=role, label=label)
    except ConfigError as error:
        log.error("sessions can't be shared: %s", error)
        raise Busy("the gateway can't store this now; its log says why") from error
    # It must never lead to a session of another owner whose agent uses the same id.
    gateway.storage.token_used(token.id, session.owner)
    by = {"identity": access.identity, "connection": connection}
    gateway.audit.record("session_shared", session=session.id, agent=session.agent, token=token.id, role=role, **by)
    gateway.start_task(_revoke_unused, gateway, token)
    return GuestLink(make_link(page, code=secret, session=session.name), code.expires)


async def _revoke_unused(gateway: Gateway, token: Token) -> None:
    """Revoke the token of a link when its code has expired, unless a browser has signed in by it.

    A gateway that stops before leaves the token until it expires; its text was not kept.
    """
    await trio.sleep(CODE_LIFETIME)
    try:
        if any(browser.token_id == token.id for browser, _ in gateway.browsers.browsers()):
            return
        gateway.tokens.revoke(token.id)
    except UsageError:
        return  # It was revoked before.
    except ConfigError as error:
        log.warning("the token %s of an unused link is not revoked: %s", token.id, error)
        return
    gateway.audit.record("token_revoked", id=token.id, label=token.label, identity=token.identity)


def qr_code(link: str) -> list[str]:
    """Return the rows of a QR code, "1" for a dark module and "0" for a light one.

    It takes some milliseconds: call it in a thread.
    """
    import segno

    return ["".join(map(str, row)) for row in segno.make_qr(link, error="l").matrix]
