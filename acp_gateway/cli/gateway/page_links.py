"""Prints a link to the page: as text, as a QR code, with advice where a phone will not reach it."""

import ipaddress
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from acp_gateway.cli.common import print_json, print_secret
from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.config.load import Config

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
