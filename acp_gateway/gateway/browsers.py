"""The browsers of a gateway: ends those that have expired, and records in the audit why a browser has ended."""

import logging
from collections.abc import Iterable
from typing import Final

import trio

from acp_gateway.config.load import Config
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.security.browser_sessions import Browser, BrowserStore, Code
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
