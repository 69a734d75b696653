"""The group `token`: create, list, show, rotate and revoke tokens."""

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from acp_gateway.cli.common import (
    config_option,
    examples,
    json_option,
    plain_option,
    print_any_character,
    print_json,
    print_line,
    print_secret,
    print_table,
    print_warning,
)
from acp_gateway.cli.gateway.browsers import REVOKED, TOKEN_REVOKED, open_audit, open_browsers, record_ends
from acp_gateway.cli.gateway.cluster import cluster_token
from acp_gateway.cli.tokens.confirmations import confirm_elsewhere, print_confirmations
from acp_gateway.cli.tokens.views import (
    BROWSER_COLUMNS,
    browser_as_json,
    browser_row,
    last_uses,
    print_tokens,
    token_as_json,
    token_lines,
)
from acp_gateway.errors import Unreachable, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.config.load import Config
    from acp_gateway.security.token_store import Role, Token


def lifetime_option(_context: click.Context, _option: click.Parameter, text: str) -> float | None:
    from acp_gateway.config.schema import parse_duration

    try:
        return None if text == "never" else parse_duration(text)
    except UsageError as error:
        raise click.BadParameter(f"{error}; or never") from None


def _new_lifetime(
    context: click.Context, option: click.Parameter, text: str | None
) -> float | Literal["as before"] | None:
    return "as before" if text is None else lifetime_option(context, option, text)


def _grace(_context: click.Context, _option: click.Parameter, text: str) -> float:
    from acp_gateway.config.schema import parse_duration

    try:
        return 0.0 if text == "none" else parse_duration(text)
    except UsageError as error:
        raise click.BadParameter(f"{error}; or none") from None


ANSWER_TIMEOUT = 5.0
"""Seconds to wait for the gateway that runs."""

SESSION_DELAY = 0.5
"""Seconds until a newly opened session is on disk, because the gateway batches its writes."""


def check_session(settings: "Config", session: str) -> None:
    """Raise `UsageError` if the gateway has no session with this id, open or stored.

    A node has its sessions itself: of `NODE/ID`, only the node is looked at.
    """
    from acp_gateway.config.editing.toml_file import suggestion
    from acp_gateway.gateway.gateway import DATABASE
    from acp_gateway.gateway.storage.database import read_session_ids

    node, _, its_id = session.partition("/")
    if its_id and (node in settings.nodes or settings.cluster is not None):
        return
    path = settings.gateway.state_dir / DATABASE
    known = read_session_ids(path)
    if known is not None and session not in known:
        time.sleep(SESSION_DELAY)
        known = read_session_ids(path)
    if known is None:
        print_warning(f"{path} cannot be read: is there such a session?")
    elif session not in known:
        hint = printable(suggestion(session[:64], known))
        raise UsageError(
            f'this gateway has no session "{printable(session, size=64)}"{hint}; `acp-gateway sessions` lists them, '
            "the id first"
        )


@click.group(
    epilog=examples("acp-gateway token create --label laptop", "acp-gateway token list"),
    short_help="Make, show, rotate and revoke tokens.",
)
def token() -> None:
    """Make, show, rotate and revoke the tokens that clients authenticate with. Run this on the gateway's machine."""


token.add_command(cluster_token)


@token.command(
    "create",
    epilog=examples(
        "acp-gateway token create --label laptop",
        "acp-gateway token create --label phone --role observer --expires 30d",
        "acp-gateway token create --label door --may-speak-for alice --may-speak-for bob",
    ),
)
@config_option
@click.option("--label", required=True, help="What the token is for, such as a device: laptop, phone.")
@click.option(
    "--identity",
    metavar="NAME",
    help="The token's identity. Default: the gateway's user, so that all of your tokens share one.",
)
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="Allow this agent only. May be repeated.")
@click.option(
    "--workspace", "workspaces", multiple=True, metavar="NAME", help="Allow this workspace only. May be repeated."
)
@click.option(
    "--role",
    type=click.Choice(["controller", "observer", "metrics"]),
    default="controller",
    show_default=True,
    help="A controller may do everything; an observer may only look; metrics may read /metrics and nothing else.",
)
@click.option("--session", metavar="ID", help="Restrict the token to this one session, of any owner.")
@click.option(
    "--expires",
    "lifetime",
    metavar="DURATION",
    default="never",
    callback=lifetime_option,
    help="Expire after this time: 90s, 15m, 2h, 7d. Default: never.",
)
@click.option(
    "--may-speak-for",
    multiple=True,
    metavar="NAME",
    help="Let another gateway act for this identity with the token; '*' for all. May be repeated.",
)
@click.option("--local", is_flag=True, help="Let it count on this gateway only, not on every node of its cluster.")
@json_option
def create_token(
    config: Path | None,
    label: str,
    identity: str | None,
    agents: tuple[str, ...],
    workspaces: tuple[str, ...],
    role: "Role",
    session: str | None,
    lifetime: float | None,
    may_speak_for: tuple[str, ...],
    *,
    local: bool,
    as_json: bool,
) -> None:
    """Make a token and print it, this once."""
    from acp_gateway.config.load import load_config
    from acp_gateway.security.token_store import TokenStore

    settings = load_config(config)
    check_agents(settings, agents)
    if workspaces and not settings.workspaces:
        raise UsageError(
            "the configuration has no [workspaces.NAME], and the one workspace that there is then has no name: "
            "leave --workspace out, or write such a section"
        )
    check_names("workspace", workspaces, settings.workspaces)
    if session is not None:
        check_session(settings, session)
    record, secret = TokenStore(settings.gateway.state_dir).create(
        label,
        identity,
        agents or None,
        role=role,
        session=session,
        workspaces=workspaces or None,
        may_speak_for=may_speak_for,
        local=local,
        lifetime=lifetime,
    )
    record_token(settings, "token_created", record)
    warn_of_running(settings)
    if as_json:
        print_json(_with_secret(record, secret), secret=True)
        return
    click.echo(
        f"Token {record.id} for {record.identity}. It is shown only now; keep it in a file of mode 600:", err=True
    )
    print_secret(secret)


def _with_secret(token: "Token", secret: str) -> dict[str, object]:
    """Return a new token as a JSON object."""
    return {"id": token.id, "identity": token.identity, "expires": token.expires, "token": secret}


def check_agents(settings: "Config", names: Iterable[str]) -> None:
    """Raise `UsageError` for the first name of an agent that neither the configuration nor a node can have."""
    check_names("agent", [name for name in names if not settings.may_be_of_node(name)], settings.agents)


def check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UsageError` for the first name that the configuration does not have."""
    from acp_gateway.config.editing.toml_file import suggestion

    for name in names:
        if name not in known:
            raise UsageError(f"there is no {kind} {name!r} in the configuration{suggestion(name, known)}")


def record_token(
    settings: "Config", event: Literal["token_created", "token_rotated", "token_revoked"], token: "Token"
) -> None:
    """Write an event about a token to the audit log."""
    audit = open_audit(settings)
    audit.record(event, id=token.id, label=token.label, identity=token.identity)
    audit.close()


def warn_of_running(settings: "Config") -> None:
    """Warn if the gateway that runs can't read the tokens as this program writes them."""
    import trio

    from acp_gateway import __version__
    from acp_gateway.client.local import LocalGateway
    from acp_gateway.errors import GatewayError

    gateway = LocalGateway(settings.gateway.state_dir)
    try:
        gateway.check_running()
        status = trio.run(partial(gateway.status, time_limit=ANSWER_TIMEOUT))
    except GatewayError:
        return
    for problem in status.get("problems", ()):
        if str(problem).startswith(f"{settings.gateway.state_dir / 'tokens.json'}: "):
            version = printable(str(status.get("version")))
            print_warning(
                f"the running gateway is {version} and can't read what this program, {__version__}, has written; it "
                f"refuses all tokens until it is restarted: {printable(str(problem))}"
            )


@token.command(
    "list",
    epilog=examples(
        "acp-gateway token list", "acp-gateway token list --json | jq -r '.tokens[] | select(.role == \"observer\").id'"
    ),
)
@config_option
@plain_option
@json_option
def list_tokens(config: Path | None, *, as_json: bool) -> None:
    """List the tokens, one per row, with the id first; then the browsers that are signed in.

    LAST USED is the hour, in UTC, of the last connection with it; the gateway records it once an hour.
    """
    from acp_gateway.config.load import load_config
    from acp_gateway.security.token_store import TokenStore

    settings = load_config(config)
    state_dir = settings.gateway.state_dir
    store = TokenStore(state_dir)
    tokens = store.tokens()
    if as_json:
        used = last_uses(state_dir)
        signed_in = open_browsers(settings)[0].browsers()
        print_json(
            {
                "tokens": [token_as_json(each, store, used) for each in tokens],
                "browsers": [browser_as_json(browser, last) for browser, last in signed_in],
            }
        )
        return
    if tokens:
        print_tokens(store, tokens, state_dir)
    else:
        click.echo("There are no tokens; make one with `acp-gateway token create --label NAME`.", err=True)
    browsers = open_browsers(settings)[0].browsers()
    if browsers:
        click.echo("Browsers that are signed in:", err=True)
        print_table(BROWSER_COLUMNS, [browser_row(browser, used) for browser, used in browsers])


@token.command("show", epilog=examples("acp-gateway token show 78bcfd38"))
@config_option
@click.argument("token_id", metavar="ID")
@json_option
def show_token(config: Path | None, token_id: str, *, as_json: bool) -> None:
    """Show all details of a token, except the secret itself, which the gateway does not store.

    `last used` is the hour, in UTC, of the last connection with it; the gateway records it once an hour.
    """
    from acp_gateway.config.load import load_config
    from acp_gateway.security.token_store import TokenStore

    state_dir = load_config(config).gateway.state_dir
    store = TokenStore(state_dir)
    record = store.find(token_id)
    if as_json:
        print_json(token_as_json(record, store, last_uses(state_dir)))
        return
    print_any_character()
    for name, value in token_lines(record, store, last_uses(state_dir)).items():
        print_line(f"{name}: {value}")


@token.command(
    "rotate",
    epilog=examples(
        "acp-gateway token rotate 78bcfd38", "acp-gateway token rotate 78bcfd38 --grace none   after a leak"
    ),
)
@config_option
@click.argument("token_id", metavar="ID")
@click.option(
    "--expires",
    "lifetime",
    metavar="DURATION",
    callback=_new_lifetime,
    help="Expire after this time: 90s, 15m, 2h, 7d, or never. Default: keep the current expiry. Required for a token "
    "that has expired.",
)
@click.option(
    "--grace",
    metavar="DURATION",
    default="10m",
    show_default=True,
    callback=_grace,
    help="Keep the old token valid for this long, so that there is time to save the new one; none: revoke it now.",
)
@json_option
def rotate_token(
    config: Path | None,
    token_id: str,
    lifetime: float | Literal["as before"] | None,
    grace: float,
    *,
    as_json: bool,
) -> None:
    """Replace a token by a new one with the same rights, and print the new one, this once.

    After --grace the old token is revoked and its connections are closed. `connect` then reconnects with the token in
    its file, and resumes. If the old token may have leaked, use --grace none. In a cluster, nodes that do not know of
    it yet are named.
    """
    from acp_gateway.config.load import load_config
    from acp_gateway.security.token_store import TokenStore

    settings = load_config(config)
    record, secret = TokenStore(settings.gateway.state_dir).rotate(token_id, lifetime, grace=grace)
    record_token(settings, "token_rotated", record)
    warn_of_running(settings)
    if as_json:
        rotated = _with_secret(record, secret) | {"formerUntil": record.former_until}
        nodes = confirm_elsewhere(settings, record)
        print_json(rotated if nodes is None else rotated | {"nodes": nodes}, secret=True)
        return
    click.echo(
        f"Token {record.id} for {record.identity}, {describe_end(record)}; the old one is worthless "
        f"{f'after {record.former_until}' if record.former_until else 'now'}. "
        "The new one is shown only now; put it in the place of the old one, in a file of mode 600:",
        err=True,
    )
    print_secret(secret)
    nodes = confirm_elsewhere(settings, record)
    if nodes is not None:
        print_confirmations(settings, nodes, err=True)


def describe_end(token: "Token") -> str:
    return f"expires {token.expires}" if token.expires else "never expires"


@token.command("revoke", epilog=examples("acp-gateway token revoke 78bcfd38"))
@config_option
@click.argument("token_id", metavar="ID")
@json_option
def revoke_token(config: Path | None, token_id: str, *, as_json: bool) -> None:
    """Revoke a token, close its connections and sign out its browsers; or sign out the one browser with this id.

    In a cluster, a token that counts on every node is revoked when all of them have confirmed it. Those that have not
    are named, and the exit code is 6.
    """
    from acp_gateway.config.load import load_config
    from acp_gateway.errors import ConfigError

    settings = load_config(config)
    browsers, store = open_browsers(settings)
    flaw: ConfigError | None = None
    try:
        browser = browsers.end(token_id)
    except ConfigError as error:
        # A damaged list of browsers must not keep a token valid.
        browser, flaw = None, error
    if browser is not None:
        record_ends(settings, [browser], REVOKED)
        print_any_character()
        print_line(f"Signed out {browser.id} ({browser.label}).")
        if as_json:
            print_json({"revoked": "browser", "id": browser.id, "label": browser.label})
        return
    try:
        record = store.revoke(token_id)
    except UsageError:
        if flaw is not None:
            raise flaw from None
        raise
    record_token(settings, "token_revoked", record)
    warn_of_running(settings)
    try:
        record_ends(settings, browsers.end_all_of(record.id), TOKEN_REVOKED)
    except ConfigError as error:
        # They are refused all the same: their token is not valid.
        print_warning(f"the browsers of this token are not removed: {error}")
    print_any_character()
    print_line(f"Revoked {record.id} ({record.label}).")
    nodes = confirm_elsewhere(settings, record)
    is_everywhere = nodes is None or print_confirmations(settings, nodes)
    if as_json:
        revoked = {"revoked": "token", "id": record.id, "label": record.label}
        print_json(revoked if nodes is None else revoked | {"nodes": nodes})
    if not is_everywhere:
        click.get_current_context().exit(Unreachable.exit_code)
