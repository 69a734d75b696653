"""The command `open`: make a code that signs a browser in, and print the link."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from acp_gateway.cli.common import (
    MAX_MESSAGE_SIZE,
    ca_option,
    cert_option,
    config_option,
    connect_timeout_option,
    insecure_plaintext_option,
    key_option,
    pin_option,
    print_secret,
    token_file_option,
    was_given,
)
from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.config.addresses import Address
    from acp_gateway.config.load import Config, ListenSection
    from acp_gateway.gateway.events.audit import Audit
    from acp_gateway.security.browser_sessions import Browser, BrowserStore, Code
    from acp_gateway.security.token_store import TokenStore

DEFAULT_PORTS = {"https": 443, "http": 80}

REVOKED = "revoked"
TOKEN_REVOKED = "token revoked"  # noqa: S105 - the reason in the audit.


@click.command("open", short_help="Make a link that signs a browser in.")
@click.argument("session", required=False)
@click.option("--observe", is_flag=True, help="Watch only: the browser can't prompt or approve.")
@click.option("--label", metavar="TEXT", help="The browser's name in `token list`. Default: browser.")
@click.option("--host", metavar="NAME", help="The name or address of the gateway in the link.")
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
@token_file_option
@ca_option
@pin_option
@cert_option
@key_option
@connect_timeout_option(help="How long to wait for the answer of TARGET.")
@insecure_plaintext_option
def open_browser(
    session: str | None,
    label: str | None,
    host: str | None,
    token_id: str | None,
    config: Path | None,
    target: str | None,
    token_file: Path | None,
    ca: Path | None,
    pin: str | None,
    cert: Path | None,
    key: Path | None,
    connect_timeout: float,
    *,
    observe: bool,
    insecure_plaintext: bool,
) -> None:
    """Make a link that signs one browser in, once, within 10 minutes, and print it.

    With SESSION the browser can use the session with that id alone. In a terminal the link is shown as a QR code too.
    Without --target, run this on the gateway's machine. `acp-gateway token list` shows the browsers that are signed in,
    and `acp-gateway token revoke` signs one out.
    """
    if target is None:
        for option in ("token_file", "ca", "pin", "cert", "key", "connect_timeout", "insecure_plaintext"):
            if was_given(option):
                raise UsageError(f"--{option.replace('_', '-')} is for a gateway elsewhere: name it by --target")
        link = _make_here(config, session, label, host, token_id, observe=observe)
    elif token_id is not None or config is not None:
        raise UsageError("--token and --config are for the gateway's machine: leave them out, or --target")
    else:
        import trio

        from acp_gateway.client import control
        from acp_gateway.client.destination import find_destination

        destination = find_destination(
            target,
            None,
            token_file,
            ca,
            pin,
            MAX_MESSAGE_SIZE,
            insecure=insecure_plaintext,
            control=True,
            cert=cert,
            key=key,
        )
        page = page_at(destination.address, host)
        ask = partial(control.make_code, destination, session, label, observe=observe, time_limit=connect_timeout)
        link = f"{page}#{trio.run(ask)}"
    click.echo("This link signs one browser in, once, within 10 minutes:", err=True)
    print_secret(link)
    if _is_terminal():
        _print_qr_code(link)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _make_here(
    config: Path | None,
    session: str | None,
    label: str | None,
    host: str | None,
    token_id: str | None,
    *,
    observe: bool,
) -> str:
    """Make a code on the gateway's machine, and return the link."""
    from acp_gateway.cli.tokens import check_session
    from acp_gateway.config.load import load_config
    from acp_gateway.gateway.sign_in_codes import DEFAULT_LABEL, LABEL_SIZE
    from acp_gateway.security.token_store import default_identity

    settings = load_config(config)
    page = find_page(settings, host)
    if session is not None:
        check_session(settings, session)
    label = DEFAULT_LABEL if label is None else label
    if not label.strip() or not label.isprintable() or len(label) > LABEL_SIZE:
        raise UsageError(f"a label has to be one line of printable text, at most {LABEL_SIZE} characters")
    browsers, tokens = open_browsers(settings)
    token = None if token_id is None else tokens.find(token_id)
    if token is not None and tokens.has_expired(token):
        raise UsageError(f"token {token.id} expired at {token.expires}")
    if token is not None and token.role == "metrics":
        raise UsageError(f"token {token.id} is for reading metrics and nothing else")
    identity = default_identity(settings.gateway.state_dir) if token is None else token.identity
    role: Literal["controller", "observer"] = "observer" if observe else "controller"
    code, secret = browsers.make_code(token, identity, role=role, session=session, label=label)
    audit = open_audit(settings)
    audit.record("browser_code_created", **about(code), role=code.role, session=code.session)
    audit.close()
    return f"{page}#{secret}"


def open_browsers(settings: "Config") -> "tuple[BrowserStore, TokenStore]":
    """Return the browsers and the tokens of the gateway of a configuration."""
    from acp_gateway.security.browser_sessions import BrowserStore
    from acp_gateway.security.token_store import TokenStore

    tokens = TokenStore(settings.gateway.state_dir)
    limits = settings.limits
    browsers = BrowserStore(
        settings.gateway.state_dir,
        tokens,
        days=limits.browser_days,
        idle_days=limits.browser_idle_days,
        most=limits.browsers_per_token,
    )
    return browsers, tokens


def open_audit(settings: "Config") -> "Audit":
    from acp_gateway.gateway.events.audit import FILE_NAME, Audit

    gateway = settings.gateway
    return Audit(gateway.state_dir / FILE_NAME, max_size=gateway.audit_size, files=gateway.audit_files)


def about(record: "Browser | Code") -> dict[str, str | None]:
    """Return the members of a browser's audit events."""
    return {"label": record.label, "identity": record.identity, "token": record.token_id}


def record_ends(settings: "Config", ended: "list[Browser]", why: str) -> None:
    """Write an event for each browser that was signed out to the audit log."""
    audit = open_audit(settings)
    for browser in ended:
        audit.record("browser_ended", id=browser.id, **about(browser), why=why)
    audit.close()


# The address


def find_page(settings: "Config", host: str | None) -> str:
    """Return the URL of the gateway's page, with `host` as its name if that is given.

    It is that of a TLS listener, else that of a proxy in front of a plain one, else of a listener on loopback. Raises
    `UsageError` if no listener serves a page.
    """
    sections = [section for section in settings.listen if "page" in section.services and section.address.port]
    if not sections:
        raise UsageError(
            'no listener serves a page: there must be a [[listen]] with a fixed port and url = "wss://…", or "ws://…" '
            'on loopback, and "page" in its serves'
        )
    section = min(sections, key=lambda each: (not each.address.tls, each.address.loopback and not each.allowed_hosts))
    address = section.address
    if not address.tls and section.allowed_hosts:
        # A proxy ends TLS for these names.
        return _url("https", host or section.allowed_hosts[0], 443)
    name = host or (_name_of(section) if address.tls else address.host)
    return _url("https" if address.tls else "http", name, address.port)


def _name_of(section: "ListenSection") -> str:
    """Return the name by which browsers can reach a TLS listener: as a rule one that its certificate has."""
    import platform

    from acp_gateway.client.pairing import is_unspecified
    from acp_gateway.security.certificates import read_certificate
    from acp_gateway.server.hello import is_loopback

    if section.allowed_hosts:
        return section.allowed_hosts[0]
    if not is_unspecified(section.address.host):
        return section.address.host
    names = () if section.cert is None else read_certificate(section.cert).names
    usable = (name.lower() for name in names if not name.startswith("*") and ":" not in name)
    return next((name for name in usable if not is_loopback(name)), platform.node().lower() or "localhost")


def page_at(address: "Address", host: str | None) -> str:
    """Return the URL of the page of a gateway that is reached at an address. Raises `UsageError` without one."""
    if not address.websocket:
        raise UsageError(
            f"a browser can't reach {address}: use the wss:// address of the gateway, or run `acp-gateway open` there"
        )
    return _url("https" if address.tls else "http", host or address.host, address.port)


def _url(scheme: str, host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{name}{'' if port == DEFAULT_PORTS[scheme] else f':{port}'}/"


def _print_qr_code(link: str) -> None:
    try:
        import segno
    except ImportError:
        click.echo("For a QR code, install acp-remote-gateway[page].", err=True)
        return
    try:
        segno.make_qr(link, error="l").terminal(compact=True)
    except UnicodeEncodeError:
        click.echo("This terminal can't show a QR code: it needs UTF-8.", err=True)
