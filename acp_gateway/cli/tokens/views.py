"""Tokens and browsers as `token list` and `token show` print them."""

from pathlib import Path
from typing import TYPE_CHECKING

from acp_gateway.cli.common import print_table

if TYPE_CHECKING:
    from acp_gateway.security.browser_sessions import Browser
    from acp_gateway.security.token_store import Token, TokenStore

BROWSER_COLUMNS = ("ID", "IDENTITY", "ROLE", "TOKEN", "SESSION", "CREATED", "EXPIRES", "LAST USED", "LABEL")


def browser_row(browser: "Browser", used: str) -> tuple[str, ...]:
    """Return the cells of a browser, last used at `used`."""
    return (
        *(browser.id, browser.identity, browser.role, browser.token_id or "-", browser.session or "-"),
        *(browser.created, browser.expires, f"{used[:13]}Z", browser.label),
    )


def token_as_json(token: "Token", store: "TokenStore", used: dict[str, str]) -> dict[str, object]:
    """Return what can be shown of a token, with None for what does not restrict it."""
    return {
        "id": token.id,
        "kind": token.kind,
        "label": token.label,
        "identity": token.identity,
        "role": token.role,
        "agents": None if token.agents is None else list(token.agents),
        "workspaces": None if token.workspaces is None else list(token.workspaces),
        "session": token.session,
        "may_speak_for": list(token.may_speak_for),
        "local": token.local,
        "created": token.created,
        "rotated": token.rotated,
        "expires": token.expires,
        "expired": store.has_expired(token),
        "last_used": used.get(token.id),
    }


def browser_as_json(browser: "Browser", used: str) -> dict[str, object]:
    """Return what can be shown of a browser."""
    return {
        "id": browser.id,
        "label": browser.label,
        "identity": browser.identity,
        "role": browser.role,
        "token": browser.token_id,
        "session": browser.session,
        "created": browser.created,
        "expires": browser.expires,
        "last_used": f"{used[:13]}Z",
    }


def print_tokens(store: "TokenStore", tokens: "list[Token]", state_dir: Path) -> None:
    """Print a row for each token."""
    used = last_uses(state_dir)
    rows: list[tuple[str, ...]] = [
        (
            each.id,
            each.identity,
            each.role,
            _names(each.agents),
            _names(each.workspaces),
            each.session or "-",
            each.created,
            "expired" if store.has_expired(each) else each.expires or "never",
            used.get(each.id, "-"),
            ",".join(each.may_speak_for) or "-",
            each.label,
        )
        for each in tokens
    ]
    heads = (
        *("ID", "IDENTITY", "ROLE", "AGENTS", "WORKSPACES", "SESSION"),
        *("CREATED", "EXPIRES", "LAST USED", "SPEAKS FOR", "LABEL"),
    )
    print_table(heads, rows)


def _names(allowed: tuple[str, ...] | None) -> str:
    """Format the names that a token allows; an empty list allows nothing."""
    return "all" if allowed is None else ",".join(allowed) or "none"


def last_uses(state_dir: Path) -> dict[str, str]:
    """Return the hour of each token's last use, by token id; it is recorded no more precisely."""
    from datetime import UTC, datetime

    from acp_gateway.gateway.gateway import DATABASE
    from acp_gateway.gateway.storage.database import read_token_uses

    return {
        token_id: datetime.fromtimestamp(use.last_used, UTC).strftime("%Y-%m-%dT%HZ")
        for token_id, use in read_token_uses(state_dir / DATABASE).items()
    }


def token_lines(record: "Token", store: "TokenStore", used: dict[str, str]) -> dict[str, str]:
    """Return all details of a token, by name."""
    expires = record.expires or "never"
    return {
        "id": record.id,
        "kind": record.kind,
        "label": record.label,
        "identity": record.identity,
        "role": record.role,
        "agents": _names(record.agents),
        "workspaces": _names(record.workspaces),
        "session": record.session or "-",
        "may speak for": ",".join(record.may_speak_for) or "-",
        "created": record.created,
        "rotated": record.rotated or "-",
        "expires": f"{expires} (expired)" if store.has_expired(record) else expires,
        "last used": used.get(record.id, "-"),
    }
