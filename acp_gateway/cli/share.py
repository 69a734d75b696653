"""The command `share`: create a token for a guest, and print the guest's command."""

import os
import platform
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import config_option, print_secret
from acp_gateway.cli.tokens import check_session, describe_end, lifetime_option, record_token
from acp_gateway.errors import ConfigError

if TYPE_CHECKING:
    from acp_gateway.config.load import Config

GUEST_FILE = "guest.token"
"""Name of the token file in the guest's command."""


@click.command(short_help="Make a token for one session.")
@click.argument("session")
@click.option("--observe", is_flag=True, help="Watch only: the guest can't prompt or approve.")
@click.option(
    "--expires",
    "lifetime",
    metavar="DURATION",
    default="24h",
    show_default=True,
    callback=lifetime_option,
    help="Expire after this time: 90s, 15m, 2h, 7d, or never.",
)
@click.option("--label", metavar="TEXT", help="Who or what the token is for. Default: guest.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Save the token in this new file, readable by you alone, instead of printing it.",
)
@click.option(
    "--host", metavar="NAME", help="How the guest reaches this machine: a name or an address. Default: its own name."
)
@config_option
def share(
    session: str,
    lifetime: float | None,
    label: str | None,
    out: Path | None,
    host: str | None,
    config: Path | None,
    *,
    observe: bool,
) -> None:
    """Make a token for a guest, restricted to the session with the id SESSION, and print it, this once.

    What the guest has to do with it is printed as well, on stderr. Run this on the gateway's machine.
    `acp-gateway token revoke` ends it before its time.
    """
    from acp_gateway.config.load import load_config
    from acp_gateway.security.token_store import TokenStore

    settings = load_config(config)
    check_session(settings, session)
    file = None if out is None else _create(out)
    try:
        record, secret = TokenStore(settings.gateway.state_dir).create_guest(
            session, role="observer" if observe else "controller", lifetime=lifetime, label=label
        )
    except BaseException:
        if out is not None and file is not None:
            os.close(file)
            out.unlink()
        raise
    record_token(settings, "token_created", record)
    kept = "It is shown only now." if out is None else f"It is in {out}, readable by you alone."
    click.echo(f"Token {record.id}, {record.role}, {describe_end(record)}, for this session alone. {kept}", err=True)
    click.echo("The guest saves it in a file of mode 600 (chmod 600 FILE), and runs:", err=True)
    click.echo(f"  {_guest_command(settings, host, GUEST_FILE if out is None else out.name)}", err=True)
    if file is None:
        print_secret(secret)
    else:
        with open(file, "w", encoding="ascii") as opened:
            opened.write(f"{secret}\n")


def _create(path: Path) -> int:
    """Create a file of mode 600, before a token is created that could be lost. Raises `ConfigError`."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError("this file exists already: remove it, or choose another --out", file=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None


def _guest_command(settings: "Config", host: str | None, token_file: str) -> str:
    """Return the command that joins the session from the guest's machine, with address and pin if known."""
    address, pin = _find_address(settings, host)
    words = ["acp-gateway", "connect", address, *(["--pin", pin] if pin else []), "--token-file", token_file]
    return shlex.join(words)


def _find_address(settings: "Config", host: str | None) -> tuple[str, str | None]:
    """Return the gateway's address for a guest, and the pin of its key unless a proxy terminates TLS."""
    from dataclasses import replace

    from acp_gateway.client.pairing import find_listeners, is_unspecified

    try:
        listeners = find_listeners(settings)
    except ConfigError:
        listeners = ()  # A proxy may have the certificate; check-config reports a problem with one here.
    for listener in sorted(listeners, key=lambda each: (each.address.loopback, not each.address.websocket)):
        address = listener.address
        if host or is_unspecified(address.host):
            address = replace(address, host=(host or platform.node() or "HOST").lower())
        return str(address), listener.pin
    # Behind a proxy, allowed_hosts has the proxy's names.
    names = [host] if host else [name for section in settings.listen for name in section.allowed_hosts]
    return f"wss://{names[0] if names else 'HOST'}/acp", None
