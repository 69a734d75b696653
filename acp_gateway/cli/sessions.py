"""The command `sessions`."""

from functools import partial
from pathlib import Path

import click

from acp_gateway.cli.common import (
    MAX_MESSAGE_SIZE,
    ca_option,
    cert_option,
    connect_timeout_option,
    insecure_plaintext_option,
    key_option,
    pin_option,
    print_table,
    token_file_option,
)


@click.command(short_help="List the sessions that can be joined or opened again.")
@click.argument("target")
@click.option("--agent", help="Only this agent's sessions.")
@token_file_option
@ca_option
@pin_option
@cert_option
@key_option
@connect_timeout_option(help="How long to wait for the answer.")
@insecure_plaintext_option
@click.option("--json", "as_json", is_flag=True, help="Print the gateway's whole response as JSON.")
def sessions(
    target: str,
    agent: str | None,
    token_file: Path | None,
    ca: Path | None,
    pin: str | None,
    cert: Path | None,
    key: Path | None,
    connect_timeout: float,
    *,
    insecure_plaintext: bool,
    as_json: bool,
) -> None:
    """List the sessions at TARGET that your token may join, one per row, with the id first.

    `connect TARGET --attach ID` joins one. If it is not live, it is reopened if its agent supports that. TARGET has the
    same meaning as for `connect`.
    """
    import json
    from datetime import UTC, datetime

    import trio

    from acp_gateway.client import control
    from acp_gateway.client.destination import find_destination

    destination = find_destination(
        target,
        agent,
        token_file,
        ca,
        pin,
        MAX_MESSAGE_SIZE,
        insecure=insecure_plaintext,
        control=True,
        cert=cert,
        key=key,
    )
    listing = trio.run(partial(control.list_sessions, destination, time_limit=connect_timeout))
    found = listing.sessions
    for problem in listing.problems:
        click.echo(f"warning: {problem}", err=True)
    if listing.more > 0:
        click.echo(f"Not shown: {listing.more} more that are not live and were used longer ago.", err=True)
    if as_json:
        # The one control character that JSON does not escape.
        click.echo(json.dumps(found, indent=2).replace("\x7f", "\\u007f"))
    elif found:
        print_table(control.SESSION_COLUMNS, control.session_rows(found, datetime.now(UTC)))
    else:
        click.echo("There are no sessions; the first that an editor opens will be one.", err=True)
