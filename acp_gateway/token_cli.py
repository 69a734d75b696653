"""The commands for tokens, `token` and `share`, and what other commands look like as well."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.auth import Role


def _lifetime(_context: click.Context, _option: click.Parameter, text: str) -> float | None:
    from acp_gateway.durations import parse_duration

    try:
        return None if text == "never" else parse_duration(text)
    except UsageError as error:
        raise click.BadParameter(f"{error}; or never") from None


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The gateway's configuration. Default: ~/.config/acp-gateway/config.toml, else /etc/acp-gateway/config.toml.",
)
"""For each command that is run on the gateway's machine."""


def print_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Rows in columns. Their heads are for people: a script gets nothing but rows."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Titles are in all languages, and not every terminal and file has the characters for them.
        sys.stdout.reconfigure(errors="replace")
    table = [heads, *rows] if sys.stdout.isatty() else rows
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@click.group(short_help="Make, list and revoke tokens.")
def token() -> None:
    """Make, list and revoke the tokens that let people in. Run this on the gateway's machine."""


@token.command("create")
@config_option
@click.option("--label", required=True, help="What the token is for, such as a device: laptop, phone.")
@click.option(
    "--identity",
    metavar="NAME",
    help="Whose token it is. Default: the gateway's own user, so all yours are one person's.",
)
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="Allow this agent only. May be repeated.")
@click.option(
    "--role",
    type=click.Choice(["controller", "observer"]),
    default="controller",
    show_default=True,
    help="A controller may do everything; an observer may only look.",
)
@click.option("--session", metavar="ID", help="For this session and nothing else, whosever it is.")
@click.option(
    "--expires",
    "lifetime",
    metavar="DURATION",
    default="never",
    callback=_lifetime,
    help="For how long it lets people in: 90s, 15m, 2h, 7d. Default: until it is revoked.",
)
def create_token(
    config: Path | None,
    label: str,
    identity: str | None,
    agents: tuple[str, ...],
    role: "Role",
    session: str | None,
    lifetime: float | None,
) -> None:
    """Make a token and print it, this once."""
    from acp_gateway.auth import TokenStore
    from acp_gateway.config import load_config
    from acp_gateway.tomlfile import suggestion

    settings = load_config(config)
    for agent in agents:
        if agent not in settings.agents:
            raise UsageError(f"there is no agent {agent!r} in the configuration{suggestion(agent, settings.agents)}")
    record, secret = TokenStore(settings.gateway.state_dir).create(
        label, identity, agents or None, role=role, session=session, lifetime=lifetime
    )
    click.echo(
        f"Token {record.id} for {record.identity}. It is shown only now; keep it in a file of mode 600:", err=True
    )
    click.echo(secret)


@token.command("list")
@config_option
def list_tokens(config: Path | None) -> None:
    """Show the tokens there are, a row each, the id first.

    LAST USED is the hour, in UTC, in which a connection last came in with it; the gateway notes that once an hour.
    """
    from acp_gateway.auth import TokenStore
    from acp_gateway.config import load_config
    from acp_gateway.database import read_token_uses
    from acp_gateway.gateway import DATABASE

    state_dir = load_config(config).gateway.state_dir
    store = TokenStore(state_dir)
    tokens = store.tokens()
    if not tokens:
        click.echo("There are no tokens; make one with `acp-gateway token create --label NAME`.", err=True)
        return
    uses = read_token_uses(state_dir / DATABASE)
    rows: list[tuple[str, ...]] = []
    for t in tokens:
        agents = ",".join(t.agents) if t.agents else "all"
        expires = "expired" if store.has_expired(t) else t.expires or "never"
        used = _hour(uses[t.id].last_used) if t.id in uses else "-"
        rows.append((t.id, t.identity, t.role, agents, t.session or "-", t.created, expires, used, t.label))
    print_table(("ID", "IDENTITY", "ROLE", "AGENTS", "SESSION", "CREATED", "EXPIRES", "LAST USED", "LABEL"), rows)


def _hour(moment: float) -> str:
    """A time in seconds since 1970, as exactly as it is known of a token's use."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%HZ")


@token.command("revoke")
@config_option
@click.argument("token_id", metavar="ID")
def revoke_token(config: Path | None, token_id: str) -> None:
    """Make a token worthless; connections that use it are closed."""
    from acp_gateway.auth import TokenStore
    from acp_gateway.config import load_config

    record = TokenStore(load_config(config).gateway.state_dir).revoke(token_id)
    click.echo(f"Revoked {record.id} ({record.label}).")


@click.command(short_help="Make a token for one session.")
@click.argument("session")
@click.option("--observe", is_flag=True, help="To look only: the guest can neither prompt nor decide anything.")
@click.option(
    "--expires",
    "lifetime",
    metavar="DURATION",
    default="24h",
    show_default=True,
    callback=_lifetime,
    help="For how long it lets the guest in: 90s, 15m, 2h, 7d, or never: until it is revoked.",
)
@click.option("--label", metavar="TEXT", help="Who or what the token is for. Default: guest.")
@config_option
def share(session: str, lifetime: float | None, label: str | None, config: Path | None, *, observe: bool) -> None:
    """Make a token for a guest and print it, this once: for the session with the id SESSION and nothing else.

    Run this on the gateway's machine. `acp-gateway token revoke` ends it before its time.
    """
    from acp_gateway.auth import TokenStore
    from acp_gateway.config import load_config

    store = TokenStore(load_config(config).gateway.state_dir)
    record, secret = store.create_guest(
        session, role="observer" if observe else "controller", lifetime=lifetime, label=label
    )
    until = f"expires {record.expires}" if record.expires else "never expires"
    click.echo(
        f"Token {record.id}, {record.role}, {until}. It is shown only now; saved in a file of mode 600, it is used as: "
        "acp-gateway connect TARGET --token-file FILE (it is for this session alone, no --attach is needed).",
        err=True,
    )
    click.echo(secret)
