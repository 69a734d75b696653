"""The command `share`: create a token for a guest, and print an invitation, a link or the token itself."""

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import (
    collected,
    config_option,
    examples,
    host_option,
    json_option,
    print_json,
    print_secret,
)
from acp_gateway.cli.gateway.known_names import check_session
from acp_gateway.cli.gateway.setting_up import reachable_host
from acp_gateway.cli.tokens import describe_end, lifetime_option, record_token, warn_of_running
from acp_gateway.config.addresses import parse_target
from acp_gateway.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from acp_gateway.config.load import Config
    from acp_gateway.security.browser_sessions import BrowserRole
    from acp_gateway.security.token_store import Token, TokenStore

UNKNOWN_ADDRESS = "wss://HOST/acp"
"""Address of a gateway behind a proxy whose name is not in the configuration."""

GUEST_FILE = "guest.token"
"""Name of the token file in the guest's command."""


@dataclass(frozen=True)
class _Guest:
    """The restrictions of a guest's token."""

    session: str
    observe: bool
    lifetime: float | None
    label: str | None
    files: bool
    ports: bool

    @property
    def role(self) -> "BrowserRole":
        return "observer" if self.observe else "controller"

    def create(self, tokens: "TokenStore") -> "tuple[Token, str]":
        """Make the token, and return it with its secret."""
        return tokens.create_guest(
            self.session,
            role=self.role,
            lifetime=self.lifetime,
            label=self.label,
            files=self.files,
            ports=self.ports,
        )


@click.command(
    epilog=examples(
        "acp-gateway share SESSION                    an invitation: the guest runs the line that is printed",
        "acp-gateway share SESSION --observe --link   a link for a guest without acp-gateway",
        "acp-gateway share SESSION --out guest.token  the token in a file, to be sent over a private channel",
    ),
    short_help="Invite a guest to one session.",
)
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
@click.option("--files", is_flag=True, help="Let the guest use the files of the session.")
@click.option("--ports", is_flag=True, help="Let the guest use the ports on which the session's programs listen.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Save the token in this new file, readable by you alone, instead of inviting.",
)
@click.option("--token", "shows_token", is_flag=True, help="Print the token, this once, instead of inviting.")
@host_option(
    help="How the guest reaches this machine: a name or an address. Default: its own name, or its "
    "address where the name has no domain.",
)
@click.option("--link", is_flag=True, help="Print a link for the guest's browser instead of inviting.")
@config_option
@json_option
@collected(_Guest, "guest")
def share(
    guest: _Guest,
    out: Path | None,
    host: str | None,
    config: Path | None,
    *,
    link: bool,
    shows_token: bool,
    as_json: bool,
) -> None:
    """Make a token for a guest, restricted to the session with the id SESSION, and print an invitation.

    The invitation is one line, which the guest runs: it fetches the token, once, within 10 minutes, and saves it. With
    --link the guest needs nothing but a browser: the link signs one in, once, within 10 minutes, and it stays so until
    the token expires. Run this on the gateway's machine. `acp-gateway token revoke` ends the token before its time.
    """
    from acp_gateway.config.load import load_config
    from acp_gateway.security.token_store import TokenStore

    settings = load_config(config)
    if link + (out is not None) + shows_token > 1:
        raise UsageError("--link, --out and --token exclude each other: leave out all but one of them")
    if link:
        _print_link(settings, guest, host, as_json=as_json)
        return
    if out is None and not shows_token:
        _print_invitation(settings, guest, host, as_json=as_json)
        return
    check_session(settings, guest.session)
    file = None if out is None else _create(out)
    try:
        record, secret = guest.create(TokenStore(settings.gateway.state_dir))
    except BaseException:
        if out is not None and file is not None:
            os.close(file)
            out.unlink()
        raise
    record_token(settings, "token_created", record)
    warn_of_running(settings)
    if file is not None:
        with open(file, "w", encoding="ascii") as opened:
            opened.write(f"{secret}\n")
    command = _guest_command(settings, host, GUEST_FILE if out is None else out.name)
    if as_json:
        where = {"token": secret} if out is None else {"tokenFile": str(out)}
        print_json({**_as_json(record), **where, "command": command}, secret=True)
        return
    kept = "It is shown only now." if out is None else f"It is in {out}, readable by you alone."
    click.echo(f"Token {record.id}, {record.role}, {describe_end(record)}, for this session alone. {kept}", err=True)
    click.echo("The guest saves it in a file of mode 600 (chmod 600 FILE), and runs:", err=True)
    click.echo(f"  {command}", err=True)
    if file is None:
        print_secret(secret)


def _as_json(token: "Token") -> dict[str, object]:
    """Return what is printed of a guest's token as members of a JSON object."""
    return {"id": token.id, "role": token.role, "session": token.session, "expires": token.expires}


def _print_invitation(settings: "Config", guest: "_Guest", host: str | None, *, as_json: bool) -> None:
    """Make a token for a guest and a code for which the guest's program gets it, and print the guest's command."""
    from acp_gateway.cli.gateway.browsers import is_terminal, print_qr_code
    from acp_gateway.security.token_store import TokenStore

    invite = find_invitation(settings, host, "; or print the token by --token, or save it by --out FILE")
    check_session(settings, guest.session)
    tokens = TokenStore(settings.gateway.state_dir)
    record, _ = guest.create(tokens)
    record_token(settings, "token_created", record)
    warn_of_running(settings)
    line, expires = invite(tokens, record)
    command = f"acp-gateway join {line}"
    if as_json:
        print_json({**_as_json(record), "command": command, "commandExpires": expires}, secret=True)
    else:
        click.echo(f"Token {record.id}, {record.role}, {describe_end(record)}, for this session alone.", err=True)
        click.echo(f"The guest runs this, once, until {expires}; it holds no token:", err=True)
        print_secret(command)
        if is_terminal():
            print_qr_code(line)


def find_invitation(
    settings: "Config", host: str | None, otherwise: str = ""
) -> "Callable[[TokenStore, Token], tuple[str, str]]":
    """Return what makes the line of an invitation for a new token, and says when it expires.

    Raises `UsageError`, which names the remedy `otherwise`, if no address is known.
    """
    from acp_gateway.cli.gateway.browsers import open_audit
    from acp_gateway.client.joining import Invitation
    from acp_gateway.security.invitations import InvitationStore

    texts, pin = _find_addresses(settings, host)
    # Of a listener without TLS whose proxy has no known name, the guest could only guess it.
    address, *others = [None if text == UNKNOWN_ADDRESS else parse_target(text) for text in texts]
    if address is None or not address.websocket:
        raise UsageError(
            "no invitation can be made, because no listener with wss:// is known: name it by --host, or public_url in "
            f"the [[listen]] section{otherwise}"
        )

    def invite(tokens: "TokenStore", record: "Token") -> tuple[str, str]:
        invitation, code = InvitationStore(settings.gateway.state_dir, tokens).invite(record)
        audit = open_audit(settings)
        details = {"id": record.id, "label": record.label, "identity": record.identity}
        audit.record("invitation_created", **details, role=record.role, session=record.session)
        audit.close()
        if address.loopback:
            click.echo("Only this machine reaches that address: give another one by --host.", err=True)
        return str(Invitation(address, code, pin, tuple(filter(None, others)))), invitation.expires

    return invite


def _print_link(settings: "Config", guest: "_Guest", host: str | None, *, as_json: bool) -> None:
    """Make a token for a guest and a code that signs a browser in by it, and print the link."""
    from acp_gateway.cli.gateway.browsers import open_audit, open_browsers, print_link, require_page
    from acp_gateway.gateway.browsers import browser_details
    from acp_gateway.gateway.page_address import make_link

    page = require_page(settings, host)
    check_session(settings, guest.session)
    browsers, tokens = open_browsers(settings)
    record, _ = guest.create(tokens)
    record_token(settings, "token_created", record)
    warn_of_running(settings)
    code, secret = browsers.make_code(record, record.identity, role=guest.role, label=record.label)
    audit = open_audit(settings)
    audit.record("browser_code_created", **browser_details(code), role=code.role, session=code.session)
    audit.close()
    if not as_json:
        click.echo(f"Token {record.id}, {record.role}, {describe_end(record)}, for this session alone.", err=True)
    print_link(make_link(page, code=secret, session=guest.session), as_json=as_json, **_as_json(record))


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
    (address, *_), pin = _find_addresses(settings, host)
    words = ["acp-gateway", "connect", address, *(["--pin", pin] if pin else []), "--token-file", token_file]
    return shlex.join(words)


def _find_addresses(settings: "Config", host: str | None) -> tuple[list[str], str | None]:
    """Return the gateway's addresses for a guest, and the pin of its key unless a proxy terminates TLS.

    The first is the best. The others are those of this machine in its network and in a VPN.
    """

    from acp_gateway.client.pairing import find_listeners
    from acp_gateway.server.sockets import find_own_addresses

    try:
        listeners = find_listeners(settings)
    except ConfigError:
        listeners = ()  # A proxy may have the certificate; check-config reports a problem with one here.
    for section in settings.listen:
        if section.public is not None and "acp" in section.services:
            endpoint = section.public.endpoint
            # A path is one that a proxy removes, which has a certificate of its own.
            pins = [each.pin for each in listeners if each.address == section.address and not section.public.path]
            return [str(replace(endpoint, host=host) if host else endpoint)], pins[0] if pins else None
    for listener in sorted(listeners, key=lambda each: (each.address.loopback, not each.address.websocket)):
        address = listener.address
        hosts = [reachable_host(host, address)] if host or address.wildcard else [address.host]
        hosts += address.reached_at(find_own_addresses()) if address.wildcard and not host else []
        return [str(replace(address, host=each)) for each in dict.fromkeys(hosts)], listener.pin
    # Behind a proxy, allowed_hosts has the proxy's names.
    names = [host] if host else [name for section in settings.listen for name in section.allowed_hosts]
    return [f"wss://{names[0]}/acp" if names else UNKNOWN_ADDRESS], None
