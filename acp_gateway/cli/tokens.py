"""The group `token`: create, list, show, rotate and revoke tokens."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from acp_gateway import __version__
from acp_gateway.cli.common import (
    collected,
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
    waiting_for,
)
from acp_gateway.cli.gateway.browsers import REVOKED, TOKEN_REVOKED, open_audit, open_browsers, record_ends
from acp_gateway.cli.gateway.known_names import (
    ANSWER_TIMEOUT,
    check_agents,
    check_names,
    check_session,
    known_nodes,
)
from acp_gateway.errors import ConfigError, GatewayError, Unreachable, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.config.load import Config
    from acp_gateway.security.browser_sessions import Browser
    from acp_gateway.security.token_store import MadeFor, Role, Token, TokenStore

_TIME_LIMIT: Final = 15.0
"""Seconds to wait for the gateway of this machine, which waits for the nodes for two."""


def confirm_elsewhere(settings: "Config", token: "Token") -> list[dict[str, Any]] | None:
    """Have the gateway on this machine tell the nodes of its cluster; return these with `confirmed`.

    None if the token counts on this gateway only. If the gateway does not run, no node has confirmed.
    """
    from acp_gateway.security.shared_tokens import is_shared

    if settings.cluster is None or not is_shared(token):
        return None
    import trio

    from acp_gateway.client.local import LocalGateway
    from acp_gateway.nodes.known_nodes import KnownNodesFile

    gateway = LocalGateway(settings.gateway.state_dir)
    try:
        gateway.check_running()
        with waiting_for("the other nodes"):
            answer = trio.run(partial(gateway.confirm, token.id, time_limit=_TIME_LIMIT))
        found = answer["nodes"]
        return [{name: node[name] for name in ("name", "confirmed", "since", "why")} for node in found]
    except (GatewayError, KeyError, TypeError) as error:
        why = str(error) if isinstance(error, GatewayError) else "the gateway here is of another version"
        print_warning(f"the other nodes are told when the gateway here runs: {why}")
        known = KnownNodesFile(settings.gateway.state_dir).read().nodes
        return [{"name": node.record.name, "confirmed": False, "since": None, "why": why} for node in known]


def print_confirmations(settings: "Config", nodes: list[dict[str, Any]], *, err: bool = False) -> bool:
    """Print which nodes have not confirmed a change of a token; return whether all have."""
    assert settings.cluster is not None
    waiting = [node for node in nodes if not node["confirmed"]]
    if nodes and not waiting:
        _print(f"Confirmed by {', '.join(node['name'] for node in nodes)}.", err=err)
    for node in waiting:
        away = "" if node["since"] is None else f"away since {node['since']}: "
        _print(
            f"{node['name']} has not confirmed: {away}{node['why']}; it refuses the token when it is back, or "
            f"when it has heard of no node for {settings.cluster.isolation_limit:g} s (cluster.isolation_limit)",
            err=err,
        )
    return not waiting


def _print(text: str, *, err: bool) -> None:
    if err:
        click.echo(printable(text, size=len(text)), err=True)
    else:
        print_line(text)


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
        "nodes": list(token.nodes),
        "files": token.files,
        "ports": token.ports,
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
            each.role if each.made_for is None else f"{each.made_for}:{each.role}",
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
        "nodes": ",".join(record.nodes) or "-",
        "files": "yes" if record.files else "-",
        "ports": "yes" if record.ports else "-",
        "created": record.created,
        "rotated": record.rotated or "-",
        "expires": f"{expires} (expired)" if store.has_expired(record) else expires,
        "last used": used.get(record.id, "-"),
    }


@click.command(
    "cluster",
    epilog=examples(
        "acp-gateway token cluster --output cluster.token",
        "acp-gateway token cluster | ssh gpu2 '(umask 077; cat > cluster.token)'",
    ),
    short_help="Make the token of a cluster.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it to this new file, in mode 0600, instead of printing it.",
)
def cluster_token(output: Path | None) -> None:
    """Make the token of a cluster: copy it to each node, into the token_file of [cluster].

    It is stored nowhere else, and no list shows it. Every node that has it trusts the others with everything.
    """
    from acp_gateway.security.token_format import mint

    secret = mint()
    if output is None:
        click.echo(secret)
        return
    try:
        with open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secret + "\n")
    except FileExistsError:
        raise UsageError(f"{output} is there already: another token would exclude the nodes that have it") from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from None


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


@click.group(
    epilog=examples("acp-gateway token create --label laptop", "acp-gateway token list"),
    short_help="Make, show, rotate and revoke tokens.",
)
def token() -> None:
    """Make, show, rotate and revoke the tokens that clients authenticate with. Run this on the gateway's machine."""


token.add_command(cluster_token)


@dataclass(frozen=True)
class _NewToken:
    """The options of a token to make."""

    label: str
    identity: str | None
    agents: tuple[str, ...]
    workspaces: tuple[str, ...]
    role: "Role"
    session: str | None
    lifetime: float | None
    may_speak_for: tuple[str, ...]
    nodes: tuple[str, ...]
    files: bool
    ports: bool
    made_for: "MadeFor | None"
    local: bool


@token.command(
    "create",
    epilog=examples(
        "acp-gateway token create --label laptop",
        "acp-gateway token create --label phone --role observer --expires 30d",
        "acp-gateway token create --label window --for vscode",
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
    type=click.Choice(["controller", "observer", "metrics", "tunnel"]),
    default="controller",
    show_default=True,
    help="A controller may do everything; an observer may only look; metrics may read /metrics and nothing else; "
    "tunnel leads to nodes (--node), which this gateway can't read, and to nothing else.",
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
@click.option(
    "--node", "nodes", multiple=True, metavar="NAME", help="With the role tunnel: lead to this node. May be repeated."
)
@click.option("--files", is_flag=True, help="With --session: let the guest use the files of the session.")
@click.option("--ports", is_flag=True, help="Let an observer, or a guest, use the ports of agents; controllers may.")
@click.option(
    "--for",
    "made_for",
    type=click.Choice(["vscode"]),
    help='Print a URL for windows of VS Code, at a listener with serves = ["ahp"]; the token is good for nothing else.',
)
@click.option("--local", is_flag=True, help="Let it count on this gateway only, not on every node of its cluster.")
@json_option
@collected(_NewToken, "new")
def create_token(config: Path | None, new: _NewToken, *, as_json: bool) -> None:
    """Make a token and print it, this once."""
    from acp_gateway.config.load import load_config
    from acp_gateway.security.token_store import TokenStore

    settings = load_config(config)
    check_agents(settings, new.agents)
    if new.workspaces and not settings.workspaces:
        raise UsageError(
            "the configuration has no [workspaces.NAME], and the one workspace that there is then has no name: "
            "leave --workspace out, or write such a section"
        )
    check_names("workspace", new.workspaces, settings.workspaces)
    if settings.cluster is None:
        check_names("node", new.nodes, known_nodes(settings))
    if new.session is not None:
        check_session(settings, new.session)
    if new.made_for is not None and _url_for_windows(settings) is None:
        raise UsageError(
            'no listener is for windows of VS Code: it needs a fixed port, serves = ["ahp"], and url = "wss://…", or '
            '"ws://…" on loopback. Without one, `acp-gateway connect TARGET --ahp` on the laptop does it'
        )
    record, secret = TokenStore(settings.gateway.state_dir).create(
        new.label,
        new.identity,
        new.agents or None,
        role=new.role,
        session=new.session,
        workspaces=new.workspaces or None,
        may_speak_for=new.may_speak_for,
        nodes=new.nodes,
        files=new.files,
        ports=new.ports,
        made_for=new.made_for,
        local=new.local,
        lifetime=new.lifetime,
    )
    record_token(settings, "token_created", record)
    warn_of_running(settings)
    if as_json:
        print_json(_with_secret(settings, record, secret), secret=True)
        return
    place = "keep it in a file of mode 600" if record.made_for is None else "give this URL to VS Code"
    click.echo(f"Token {record.id} for {record.identity}. It is shown only now; {place}:", err=True)
    print_secret(_printed(settings, record, secret))


def _url_for_windows(settings: "Config") -> str | None:
    from acp_gateway.gateway.page_address import find_windows

    return find_windows(settings.listen)


def _printed(settings: "Config", token: "Token", secret: str) -> str:
    """Return a new secret as it is printed: for windows, with the rest of their URL, if a listener is for them."""
    return secret if token.made_for is None else f"{_url_for_windows(settings) or ''}{secret}"


def _with_secret(settings: "Config", token: "Token", secret: str) -> dict[str, object]:
    """Return a new token as a JSON object."""
    url = {} if token.made_for is None else {"url": _printed(settings, token, secret)}
    return {"id": token.id, "identity": token.identity, "expires": token.expires, "token": secret, **url}


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

    from acp_gateway.client.local import LocalGateway

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
        rotated = _with_secret(settings, record, secret) | {"formerUntil": record.former_until}
        nodes = confirm_elsewhere(settings, record)
        print_json(rotated if nodes is None else rotated | {"nodes": nodes}, secret=True)
        return
    click.echo(
        f"Token {record.id} for {record.identity}, {describe_end(record)}; the old one is worthless "
        f"{f'after {record.former_until}' if record.former_until else 'now'}. "
        "The new one is shown only now; put it in the place of the old one, in a file of mode 600:",
        err=True,
    )
    print_secret(_printed(settings, record, secret))
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
        if labelled := [browser.id for browser, _ in browsers.browsers() if browser.label == token_id]:
            raise UsageError(f"that is the label of a browser, not its id: {' or '.join(labelled)}") from None
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
