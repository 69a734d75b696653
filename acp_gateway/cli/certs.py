"""The group `certs`: create, renew and show the gateway's certificate."""

from pathlib import Path

import click

from acp_gateway.cli.common import print_any_character

_out_option = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory of cert.pem and key.pem. Default: ~/.config/acp-gateway.",
)


@click.group(short_help="Make, show and renew the gateway's certificate.")
def certs() -> None:
    """Make, show and renew the certificate that clients verify the gateway by."""


@certs.command("create")
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="A name or address of this machine. May be repeated."
)
@_out_option
def create_certs(hosts: tuple[str, ...], out: Path | None) -> None:
    """Write a self-signed certificate and its key, and print the pin that clients verify it by."""
    from acp_gateway.config.directories import config_home
    from acp_gateway.security.certificates import create_certificate

    created = create_certificate(hosts, out or config_home())
    click.echo(f"Wrote {created.cert_path} and {created.key_path}. The pin for --pin and hosts.toml:", err=True)
    click.echo(created.pin)


@certs.command("renew")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address of this machine. May be repeated. Default: those in the old certificate.",
)
@_out_option
def renew_certs(hosts: tuple[str, ...], out: Path | None) -> None:
    """Replace a self-signed certificate by a new one for the same key, and print the pin, which does not change."""
    from acp_gateway.config.directories import config_home
    from acp_gateway.security.certificates import renew_certificate

    directory = out or config_home()
    renewed = renew_certificate(directory, hosts)
    click.echo(
        f"Wrote {directory / 'cert.pem'}, valid until {renewed.end:%Y-%m-%d}, for {', '.join(renewed.names)}. A "
        "running gateway reads it on SIGHUP: `systemctl reload acp-gateway`, or `kill -HUP PID`. "
        "Clients with --ca need the new file; for those with a pin nothing changes:",
        err=True,
    )
    click.echo(renewed.pin)


@certs.command("show")
@click.argument("file", required=False, type=click.Path(path_type=Path))
def show_certs(file: Path | None) -> None:
    """Show a certificate's pin, subject, names and dates.

    FILE is in PEM; of a chain the first is shown. Default: cert.pem in ~/.config/acp-gateway.
    """
    from datetime import UTC, datetime

    from acp_gateway.config.directories import config_home
    from acp_gateway.security.certificates import read_certificate

    shown = read_certificate(file or config_home() / "cert.pem")
    state = " (expired)" if shown.end < datetime.now(UTC) else ""
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
