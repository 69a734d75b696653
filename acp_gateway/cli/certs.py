"""The group `certs`: create, renew and show the gateway's certificate."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import examples, json_option, print_any_character, print_json
from acp_gateway.errors import ConfigError

if TYPE_CHECKING:
    from acp_gateway.security.certificates import Certificate

_out_option = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory of cert.pem and key.pem. Default: ~/.config/acp-gateway.",
)


@click.group(
    epilog=examples("acp-gateway certs create --host box.example.org", "acp-gateway certs show"),
    short_help="Make, show and renew the gateway's certificate.",
)
def certs() -> None:
    """Make, show and renew the certificate that clients verify the gateway by."""


@certs.command(
    "create",
    epilog=examples("acp-gateway certs create", "acp-gateway certs create --host box.example.org --host 192.0.2.7"),
)
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="A name or address of this machine. May be repeated."
)
@_out_option
@json_option
def create_certs(hosts: tuple[str, ...], out: Path | None, *, as_json: bool) -> None:
    """Write a self-signed certificate and its key, and print the pin that clients verify it by."""
    from acp_gateway.config.directories import config_home
    from acp_gateway.security.certificates import create_certificate

    created = create_certificate(hosts, out or config_home())
    if as_json:
        print_json({"certificate": str(created.cert_path), "key": str(created.key_path), "pin": created.pin})
        return
    click.echo(f"Wrote {created.cert_path} and {created.key_path}. The pin for --pin and hosts.toml:", err=True)
    click.echo(created.pin)


@certs.command("renew", epilog=examples("acp-gateway certs renew && acp-gateway reload"))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address of this machine. May be repeated. Default: those in the old certificate.",
)
@_out_option
@json_option
def renew_certs(hosts: tuple[str, ...], out: Path | None, *, as_json: bool) -> None:
    """Replace a self-signed certificate by a new one for the same key, and print the pin, which does not change."""
    from acp_gateway.config.directories import config_home
    from acp_gateway.security.certificates import renew_certificate

    directory = out or config_home()
    renewed = renew_certificate(directory, hosts)
    if as_json:
        print_json({"certificate": str(directory / "cert.pem"), **_content(renewed)})
        return
    click.echo(
        f"Wrote {directory / 'cert.pem'}, valid until {renewed.end:%Y-%m-%d}, for {', '.join(renewed.names)}. A "
        "running gateway reads it after `acp-gateway reload`. "
        "Clients with --ca need the new file; for those with a pin nothing changes:",
        err=True,
    )
    click.echo(renewed.pin)


@certs.command(
    "show",
    epilog=examples(
        "acp-gateway certs show",
        "acp-gateway certs show /etc/ssl/box.pem",
        "acp-gateway certs show --json | jq -r .until",
    ),
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@json_option
def show_certs(file: Path | None, *, as_json: bool) -> None:
    """Show a certificate's pin, subject, names and dates.

    FILE is in PEM; of a chain the first is shown. Default: cert.pem in ~/.config/acp-gateway.
    """
    from datetime import UTC, datetime

    from acp_gateway.config.directories import config_home
    from acp_gateway.security.certificates import read_certificate

    own = config_home() / "cert.pem"
    if file is not None and not os.path.exists(file) and os.path.exists(own):
        raise ConfigError(f"there is no such file; `acp-gateway certs show` shows {own}", file=str(file))
    shown = read_certificate(file or own)
    expired = shown.end < datetime.now(UTC)
    state = " (expired)" if expired else ""
    if as_json:
        print_json({**_content(shown), "expired": expired})
        return
    print_any_character()
    lines = {
        "pin": shown.pin,
        "subject": shown.subject,
        "issuer": shown.issuer or "itself",
        "names": ", ".join(shown.names) or "-",
        "from": f"{shown.begin:%Y-%m-%dT%H:%M:%SZ}",
        "until": f"{shown.end:%Y-%m-%dT%H:%M:%SZ}{state}",
    }
    for name, value in lines.items():
        click.echo(f"{name}: {value}")


def _content(certificate: "Certificate") -> dict[str, object]:
    """Return the content of a certificate as members of a JSON object."""
    return {
        "pin": certificate.pin,
        "subject": certificate.subject,
        "issuer": certificate.issuer,
        "names": list(certificate.names),
        "from": f"{certificate.begin:%Y-%m-%dT%H:%M:%SZ}",
        "until": f"{certificate.end:%Y-%m-%dT%H:%M:%SZ}",
    }
