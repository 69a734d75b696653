"""The command `export`."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.client.sessions import find_gateway, known_hosts
from acp_gateway.cli.common import (
    config_option,
    connect_timeout_option,
    connection_options,
    examples,
    waiting_for,
)
from acp_gateway.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from acp_gateway.client.destination import ConnectionOptions


@click.command(
    epilog=examples(
        "acp-gateway export SESSION > session.md           on the gateway's machine",
        "acp-gateway export box SESSION --format html --redact -o session.html",
        "acp-gateway export box SESSION --format json | jq '.updates | length'",
    ),
    short_help="Write a session as Markdown, HTML or JSON.",
)
@click.argument("places", nargs=-1, metavar="[TARGET] SESSION")
@config_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["markdown", "html", "json"]),
    default="markdown",
    show_default=True,
    help="html is one file that loads nothing; json has each update, as the agent sent it unless --redact.",
)
@click.option("--redact", is_flag=True, help="Leave out what looks like a password, a token or a key.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The new file to write, for you alone. Default: stdout."
)
@connection_options
@connect_timeout_option(help="How long to wait for the gateway, which may then take two minutes to write.")
def export(
    places: tuple[str, ...],
    config: Path | None,
    form: str,
    output: Path | None,
    connection: "ConnectionOptions",
    connect_timeout: float,
    *,
    redact: bool,
) -> None:
    """Write the history of SESSION at TARGET, as the gateway keeps it. No agent is started.

    TARGET is as for `sessions`, which lists the ids. Of a tool's output, Markdown and HTML have the last 64 KiB.
    --redact knows secrets by their names and shapes: it does not find a password in a sentence.
    """
    import trio

    from acp_gateway.client import control
    from acp_gateway.client.destination import check_session_id

    if not 1 <= len(places) <= 2:
        raise UsageError("give the id of a session, after TARGET if there is one; `acp-gateway sessions` lists them")
    session = check_session_id(places[-1])
    target = places[0] if len(places) == 2 else None
    if target is None and session in known_hosts():
        raise UsageError(
            f"{session} is a host; name the session behind it: `acp-gateway sessions {session}` lists them"
        )
    destination = find_gateway(target, config, connection)
    with waiting_for(str(destination.address)):
        ask = partial(control.export, destination, session, form, redact=redact, time_limit=connect_timeout)
        text = trio.run(ask).encode("utf-8", "backslashreplace")
    if output is None:
        sys.stdout.buffer.write(text)
    else:
        _write(output, text)


def _write(path: Path, text: bytes) -> None:
    """Write a new file that its user alone can read: histories have secrets. Raises `ConfigError`."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError("this file exists already: remove it, or choose another --output", file=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None
