"""The command `open`: make a code that signs a browser in, and print the link.

A link is opened in the browser of this machine without showing it to other users. Each user of a machine can read the
arguments of its programs, and a link may hold a code that signs in. So the browser is given a file instead, of mode
0600 in a folder of mode 0700, which leads on to the link, and is removed once the browser has read it.
"""

import html
import ipaddress
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import click

from acp_gateway.cli.common import (
    collected,
    config_option,
    connect_timeout_option,
    connection_options,
    examples,
    host_option,
    json_option,
    print_json,
    print_secret,
    refuse,
    waiting_for,
)
from acp_gateway.cli.gateway.known_names import check_agents, check_session
from acp_gateway.cli.plain_options import CONNECT_TIMEOUT, CONNECTION, MAX_MESSAGE_SIZE
from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.client.destination import ConnectionOptions
    from acp_gateway.config.addresses import Address
    from acp_gateway.config.load import Config
    from acp_gateway.gateway.events.audit import Audit
    from acp_gateway.security.browser_sessions import Browser, BrowserStore
    from acp_gateway.security.token_store import TokenStore

SIGNS_IN = "This link signs one browser in, once, within 10 minutes:"


def require_page(settings: "Config", host: str | None) -> str:
    """Return the URL of the gateway's page, with `host` as its name if that is given.

    Raises `UsageError` if no listener serves a page.
    """
    from acp_gateway.gateway.page_address import find_page

    page = find_page(settings.listen, host)
    if page is None:
        raise UsageError(
            'no listener serves a page: there must be a [[listen]] with a fixed port and url = "wss://…", or "ws://…" '
            'on loopback, and "page" in its serves'
        )
    return page


def print_link(link: str, *, as_json: bool = False, **about: object) -> None:
    """Print a link that signs a browser in, on a terminal with its QR code; as JSON with the members `about`."""
    if as_json:
        print_json({**about, "link": link}, secret=True)
    else:
        click.echo(SIGNS_IN, err=True)
        print_secret(link)
        if is_terminal():
            print_qr_code(link)
    advice = advise(link)
    if advice is not None:
        click.echo(advice, err=True)


def advise(link: str) -> str | None:
    """Return what to do if the host of a link is not one that a phone reaches; None if it may well be."""
    from acp_gateway.gateway.page_address import is_loopback

    parts = urlsplit(link)
    host = parts.hostname or ""
    # Without TLS the page is served on loopback only.
    if parts.scheme == "http" or is_loopback(host):
        nowhere = "" if is_loopback(host) else f", and {host} leads nowhere"
        return (
            f"Only a browser on this machine reaches the page{nowhere}. For a phone, put TLS in front, for example by "
            "Tailscale or Caddy, and name that address in public_url: `acp-gateway files web.md` shows how."
        )
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if "." in host:
            return None
        return f"If a phone does not know the name {host}, give one that it knows, or an address: --host NAME"
    if address.is_unspecified:
        return f"{host} is not an address to go to: give the machine's name or address by --host"
    return None


def is_terminal() -> bool:
    return sys.stdout.isatty()


def print_qr_code(link: str) -> None:
    """Print the QR code of a link."""
    import segno

    try:
        segno.make_qr(link, error="l").terminal(compact=True)
    except UnicodeEncodeError:
        click.echo("This terminal can't show a QR code: it needs UTF-8.", err=True)


READ_TIMEOUT = 30.0
"""Seconds for which the file is kept at most: a browser that has to start first may take ten."""

READ_GRACE = 1.0
"""Seconds from the first reading until the file is removed: some browsers read the beginning first."""

INTERVAL = 0.1

SNAPS = Path("/snap")
"""A folder that only exists where the browser may be a snap, which sees neither /tmp nor hidden folders of its user."""


def open_in_browser(
    link: str,
    environment: Mapping[str, str],
    *,
    open_url: Callable[[str], bool] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Open a link in the browser of this machine, and return once the browser has read it, or after `READ_TIMEOUT`.

    Raises `UsageError` if there is no browser.

    Args:
        link: the link; it is not passed to any program.
        environment: tells whether there is a screen.
        open_url: opens a URL, and returns whether that worked. Default: that of the module `webbrowser`.
        sleep: waits for so many seconds.
    """
    is_graphical = sys.platform in ("darwin", "win32")
    if not is_graphical and not any(map(environment.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        raise UsageError("there is no screen here for a browser: open the link on another device")
    if open_url is None:
        import webbrowser

        open_url = webbrowser.open
    folder = Path(tempfile.mkdtemp(prefix="acp-gateway-", dir=Path.home() if SNAPS.is_dir() else None))
    try:
        file = folder / "open.html"
        _write(file, link)
        if not open_url(file.as_uri()):
            raise UsageError("no browser could be opened: open the link yourself")
        _wait_until_read(file, sleep)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(file: Path, link: str) -> None:
    escaped = html.escape(link)
    text = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="referrer" content="no-referrer">\n'
        f'<meta http-equiv="refresh" content="0; url={escaped}">\n<title>acp-gateway</title>\n'
        f'<p><a href="{escaped}">Open the page</a></p>\n</html>\n'
    )
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)
    # So that the first reading shows, also where the times of readings are noted rarely.
    os.utime(file, (0, file.stat().st_mtime))


def _wait_until_read(file: Path, sleep: Callable[[float], None]) -> None:
    for _ in range(round(READ_TIMEOUT / INTERVAL)):
        if file.stat().st_atime > 0:
            sleep(READ_GRACE)
            return
        sleep(INTERVAL)


REVOKED = "revoked"
TOKEN_REVOKED = "token revoked"  # noqa: S105 - the reason in the audit.


@dataclass(frozen=True)
class LinkOptions:
    """The options of a link, and of the browser that it signs in."""

    session: str | None = None
    agent: str | None = None
    label: str | None = None
    host: str | None = None
    token_id: str | None = None
    observe: bool = False


@click.command(
    "open",
    epilog=examples(
        "acp-gateway open                               a link and a QR code, on the gateway's machine",
        "acp-gateway open --label phone --observe",
        "acp-gateway open --target box --browser        on the laptop",
    ),
    short_help="Make a link that signs a browser in.",
)
@click.argument("session", required=False)
@click.option("--observe", is_flag=True, help="Watch only: the browser can't prompt or approve.")
@click.option("--agent", metavar="NAME", help="Begin with a new session of this agent.")
@click.option("--browser", is_flag=True, help="Open the link in the browser of this machine, too.")
@click.option("--label", metavar="TEXT", help="The browser's name in `token list`. Default: browser.")
@host_option(help="The name or address of the gateway in the link.")
@click.option(
    "--token",
    "token_id",
    metavar="ID",
    help="Bind the browser to the token with this id, and its identity. Default: the gateway's own user.",
)
@config_option
@click.option(
    "--target", metavar="TARGET", help="Ask the gateway at TARGET, as in `connect`, instead of the one on this machine."
)
@connection_options
@connect_timeout_option(help="How long to wait for the answer of TARGET.")
@json_option
@collected(LinkOptions, "options")
def open_browser(
    options: LinkOptions,
    config: Path | None,
    target: str | None,
    connection: "ConnectionOptions",
    connect_timeout: float,
    *,
    browser: bool,
    as_json: bool,
) -> None:
    """Make a link that signs one browser in, once, within 10 minutes, and print it.

    With SESSION the link opens the session with that id, and the browser can use no other one. In a terminal the link
    is shown as a QR code too. Without --target, run this on the gateway's machine. `acp-gateway token list` shows the
    browsers that are signed in, and `acp-gateway token revoke` signs one out.
    """
    from acp_gateway.gateway.page_address import make_link, page_at

    session = options.session
    if options.agent is not None and (session is not None or options.observe):
        raise UsageError("--agent is for a new session: leave out SESSION and --observe")
    if target is None:
        refuse((*CONNECTION, CONNECT_TIMEOUT), "name it by --target")
        page, code = make_here(config, options)
    elif options.token_id is not None or config is not None:
        raise UsageError("--token and --config are for the gateway's machine: leave them out, or --target")
    else:
        import trio

        from acp_gateway.client import control
        from acp_gateway.client.destination import find_destination
        from acp_gateway.client.dialing import settle

        destination = find_destination(target, connection, MAX_MESSAGE_SIZE, control=True)

        async def ask() -> tuple[str, "Address"]:
            used = await settle(destination)
            code, page = await control.make_code(
                used, session, options.label, observe=options.observe, time_limit=connect_timeout
            )
            return code, used.address if page is None else page.endpoint

        with waiting_for(str(destination.address)):
            code, endpoint = trio.run(ask)
        page = page_at(endpoint, options.host)
    link = make_link(page, code=code, session=session, agent=options.agent)
    print_link(link, as_json=as_json)
    if browser:
        open_in_browser(link, os.environ)


def make_here(config: Path | None, options: LinkOptions) -> tuple[str, str]:
    """Make a code on the gateway's machine, and return it behind the URL of the page."""
    from acp_gateway.config.load import load_config
    from acp_gateway.gateway.browsers import DEFAULT_LABEL, LABEL_SIZE, browser_details
    from acp_gateway.security.token_store import PURPOSES, default_identity

    settings = load_config(config)
    page = require_page(settings, options.host)
    if options.session is not None:
        check_session(settings, options.session)
    check_agents(settings, [] if options.agent is None else [options.agent])
    label = DEFAULT_LABEL if options.label is None else options.label
    if not label.strip() or not label.isprintable() or len(label) > LABEL_SIZE:
        raise UsageError(f"a label has to be one line of printable text, at most {LABEL_SIZE} characters")
    browsers, tokens = open_browsers(settings)
    token = None if options.token_id is None else tokens.find(options.token_id)
    if token is not None and tokens.has_expired(token):
        raise UsageError(f"token {token.id} expired at {token.expires}")
    if token is not None and token.role in PURPOSES:
        raise UsageError(f"token {token.id} is for {PURPOSES[token.role]} and nothing else")
    identity = default_identity(settings.gateway.state_dir) if token is None else token.identity
    role: Literal["controller", "observer"] = "observer" if options.observe else "controller"
    code, secret = browsers.make_code(token, identity, role=role, session=options.session, label=label)
    audit = open_audit(settings)
    audit.record("browser_code_created", **browser_details(code), role=code.role, session=code.session)
    audit.close()
    return page, secret


def open_browsers(settings: "Config") -> "tuple[BrowserStore, TokenStore]":
    """Return the browsers and the tokens of the gateway of a configuration."""
    from acp_gateway.gateway.browsers import browsers_of
    from acp_gateway.security.token_store import TokenStore

    tokens = TokenStore(settings.gateway.state_dir)
    return browsers_of(settings, tokens), tokens


def open_audit(settings: "Config") -> "Audit":
    from acp_gateway.gateway.events.audit import FILE_NAME, Audit

    gateway = settings.gateway
    return Audit(gateway.state_dir / FILE_NAME, max_size=gateway.audit_size, files=gateway.audit_files)


def record_ends(settings: "Config", ended: "list[Browser]", why: str) -> None:
    """Write an event for each browser that was signed out to the audit log."""
    from acp_gateway.gateway import browsers

    audit = open_audit(settings)
    browsers.record_ends(audit, ended, why)
    audit.close()
