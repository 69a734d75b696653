"""Options that several commands share, and printing."""

import gc
import io
import math
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from acp_gateway.printable import printable

MAX_MESSAGE_SIZE = 64 * 1024 * 1024
"""Default maximum bytes of one message, equal to the gateway's default."""

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The gateway's configuration. Default: ~/.config/acp-gateway/config.toml, else /etc/acp-gateway/config.toml.",
)
"""For each command that is run on the gateway's machine."""


def check_finite(_context: click.Context, _option: click.Parameter, seconds: float) -> float:
    if not math.isfinite(seconds):
        raise click.BadParameter("a number of seconds is needed")
    return seconds


token_file_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="A file with the token, readable by you alone. Else ACP_GATEWAY_TOKEN_FILE, ACP_GATEWAY_TOKEN, hosts.toml.",
)
ca_option = click.option("--ca", type=click.Path(path_type=Path), help="Trust certificates of this authority (PEM).")
pin_option = click.option("--pin", metavar="sha256:HEX", help="Trust the gateway with this public key, and no other.")
cert_option = click.option(
    "--cert",
    type=click.Path(path_type=Path),
    help="A client certificate (PEM) to show instead of a token, to a gateway with client_ca.",
)
key_option = click.option(
    "--key", type=click.Path(path_type=Path), help="The private key of that certificate (PEM), readable by you alone."
)
connect_timeout_option = partial(
    click.option,
    "--connect-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=15.0,
    callback=check_finite,
    show_default=True,
    metavar="SECONDS",
)
insecure_plaintext_option = click.option(
    "--insecure-plaintext",
    is_flag=True,
    help="Send the token to another machine unencrypted; only for private networks.",
)


@contextmanager
def imports_to_keep() -> Iterator[None]:
    """Import modules with the garbage collector disabled, which saves a tenth of the start-up time.

    Otherwise it would traverse all imported objects again and again, and free almost none. At the end they are frozen,
    so that no later collection traverses them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def was_given(option: str) -> bool:
    """Return whether an option of the running command was given explicitly."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def print_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns, with heads only in a terminal: a script gets nothing but rows."""
    print_any_character()
    table = [tuple(map(_cell, row)) for row in ([heads, *rows] if sys.stdout.isatty() else rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_line(text: str) -> None:
    """Print untrusted text on one line, with control characters escaped.

    An agent may be able to write the gateway's files, which root may print.
    """
    click.echo(_cell(text))


def _cell(text: str) -> str:
    return printable(text, size=len(text))


def print_secret(secret: str) -> None:
    """Print a token on stdout, and restrict a new file there to its owner: `> FILE` makes it readable to all users."""
    try:
        status = os.fstat(sys.stdout.fileno())
        # Empty, so the shell has just created or truncated it.
        if stat.S_ISREG(status.st_mode) and not status.st_size and stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(sys.stdout.fileno(), 0o600)
    except (OSError, ValueError):
        pass  # Not a regular file, or another user's.
    click.echo(secret)


def print_any_character() -> None:
    """Make stdout replace characters that its encoding lacks with a question mark, instead of raising."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Titles and labels may be in any language.
        sys.stdout.reconfigure(errors="replace")
