"""The browsers of a gateway: makes the codes that sign them in, ends the expired ones, and records why one ended."""

import logging
from collections.abc import Collection, Iterable
from typing import Annotated, Any, Final

import msgspec
import trio

from acp_gateway.config.load import Config, ListenSection
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from acp_gateway.errors import Busy, ConfigError, Forbidden, UsageError
from acp_gateway.gateway.access import Grant, unknown_session
from acp_gateway.gateway.events.audit import Audit, AuditThrottle
from acp_gateway.security.browser_sessions import Browser, BrowserRole, BrowserStore, Code
from acp_gateway.security.token_store import TokenStore

log = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 60.0
"""Seconds between two looks for expired browsers. They are refused from the second of their expiry on; this is how late
their entry in the audit may be."""


def browsers_of(config: Config, tokens: TokenStore) -> BrowserStore:
    """Return the browsers of a gateway, with the limits of its configuration."""
    limits = config.limits
    days, idle_days, most = limits.browser_days, limits.browser_idle_days, limits.browsers_per_token
    return BrowserStore(config.gateway.state_dir, tokens, days=days, idle_days=idle_days, most=most)


def browser_details(record: Browser | Code) -> dict[str, str | None]:
    """Return what all audit events about a browser or a code say about it."""
    known = {"label": record.label, "identity": record.identity, "token": record.token_id}
    return {"id": record.id, **known} if isinstance(record, Browser) else known


def record_ends(audit: Audit, ended: Iterable[Browser], why: str, *, connection: str | None = None) -> None:
    """Write an event for each browser that has been ended."""
    for browser in ended:
        audit.record("browser_ended", **browser_details(browser), why=why, connection=connection)


async def end_expired_browsers(browsers: BrowserStore, audit: Audit) -> None:
    """Remove expired browsers, also those of earlier runs, and write an event for each, until cancelled."""
    complaint = ""
    while True:
        try:
            for browser, why in browsers.take_expired():
                record_ends(audit, [browser], why)
        except ConfigError as error:
            if str(error) != complaint:
                log.warning("expired browsers are not removed: %s", error)
            complaint = str(error)
        else:
            complaint = ""
        await trio.sleep(CHECK_INTERVAL)


LABEL_SIZE: Final = 100
"""Maximum characters of a browser's label: a name of a device, in a column of a table."""

DEFAULT_LABEL: Final = "browser"


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    session: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    observe: bool = False
    label: Annotated[str, msgspec.Meta(max_length=LABEL_SIZE, min_length=1)] = DEFAULT_LABEL


class SignInCodes:
    """Makes codes for the principal of one control connection.

    Args:
        grant: the connection's.
        registry: the sessions of the gateway.
        browsers: where codes are kept.
        audit: is told of each code.
        listeners: of the gateway; one may have a public URL.
        machines: names of the nodes that the connection may use.
    """

    def __init__(
        self,
        grant: Grant,
        registry: Registry,
        browsers: BrowserStore,
        audit: Audit | AuditThrottle,
        listeners: Iterable[ListenSection],
        machines: Collection[str] = (),
    ) -> None:
        self._machines = machines
        self._page = find_public_page(listeners)
        self._grant = grant
        self._registry = registry
        self._browsers = browsers
        self._audit = audit

    def make(self, params: bytes) -> dict[str, Any]:
        """Return a new code, its end and where to use it, as members of the response; see `docs/wire.md`.

        Raises `UsageError` for params that are not understood, and `AccessError`.
        """
        try:
            wanted = msgspec.json.decode(params, type=_Wanted)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UsageError("there may be session, observe and label, a short line of text") from None
        if not wanted.label.isprintable():
            raise UsageError("a label is one line of printable text")
        access, reach = self._grant.access, self._grant.reach
        if access.browser is not None:
            raise Forbidden("a browser can't sign in another one: use a token")
        if access.spoken_for:
            raise Forbidden("browsers sign in at the gateway through which this connection comes")
        if access.by_port:
            raise Forbidden("a program that local_user lets in signs no browser in: use a token or the unix socket")
        if access.certificate is not None:
            raise Forbidden("a browser is bound to a token, and this connection has a client certificate: use a token")
        # A node itself says whether there is such a session for who signs in.
        is_there = wanted.session is not None and wanted.session.partition("/")[0] in self._machines
        if wanted.session is not None and not is_there:
            seen = (*self._registry.past(reach), *self._registry.live(reach))
            if not any(session.name == wanted.session and access.may_use(session.agent) for session in seen):
                raise unknown_session(wanted.session)
        role: BrowserRole = "observer" if wanted.observe or self._grant.role is Role.OBSERVER else "controller"
        try:
            code, secret = self._browsers.make_code(
                access.token, access.identity, role=role, session=wanted.session, label=wanted.label
            )
        except ConfigError as error:
            raise Busy("the gateway can't store this now; its log says why") from error
        self._audit.record(
            "browser_code_created",
            label=code.label,
            identity=code.identity,
            token=code.token_id,
            role=code.role,
            session=code.session,
        )
        answer = {"code": secret, "expires": code.expires}
        return answer if self._page is None else answer | {"page": self._page}


def find_public_page(sections: Iterable[ListenSection]) -> str | None:
    """Return the first `public_url` of a listener that serves a page, with a slash at its end."""
    found = (section.public for section in sections if "page" in section.services)
    return next((f"{public.origin}{public.path}/" for public in found if public is not None), None)
