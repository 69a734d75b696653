"""Options that several commands share, and printing."""

import gc
import io
import math
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import click

from acp_gateway.errors import ConfigError
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


def examples(*lines: str) -> str:
    """Return the end of a command's help, with the lines as they are: a command each, and a remark behind it."""
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


_JSON: Final = "acp_gateway.json"


def _keep_json(context: click.Context, _option: click.Parameter, as_json: bool) -> bool:  # noqa: FBT001 - click's.
    context.meta[_JSON] = as_json
    return as_json


json_option = click.option("--json", "as_json", is_flag=True, callback=_keep_json, help="Print JSON.")
"""For each command that prints values: `print_json` on stdout, and `print_text` on stderr then."""

_PLAIN: Final = "acp_gateway.plain"


def _keep_plain(context: click.Context, _option: click.Parameter, plain: bool) -> None:  # noqa: FBT001 - click's.
    context.meta[_PLAIN] = plain


plain_option = click.option(
    "--plain", is_flag=True, expose_value=False, callback=_keep_plain, help="Print rows without column heads."
)
"""For each command that prints a table; `print_table` reads it."""


def print_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns below their heads; only the rows if the command has been given `--plain`.

    Without rows, nothing is printed.
    """
    if not rows:
        return
    print_any_character()
    context = click.get_current_context(silent=True)
    plain = context is not None and context.meta.get(_PLAIN, False)
    table = [tuple(map(_cell, row)) for row in (rows if plain else [heads, *rows])]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 and not plain else line)


def print_json(value: object, *, secret: bool = False) -> None:
    """Print a value as JSON, without anything that a terminal would obey; one with a secret as `print_secret` does."""
    import json

    # The one control character that JSON does not escape.
    text = json.dumps(value, indent=2).replace("\x7f", "\\u007f")
    if secret:
        print_secret(text)
    else:
        click.echo(text)


def print_text(text: str) -> None:
    """Print a line for people: on stdout, or on stderr if the command has been given `--json`."""
    context = click.get_current_context(silent=True)
    click.echo(text, err=context is not None and context.meta.get(_JSON, False))


def print_warning(text: str, severity: str = "warning") -> None:
    """Print a line on stderr that begins with its severity, in colour on a terminal."""
    click.echo(f"{click.style(f'{severity}:', fg='red' if severity == 'error' else 'yellow')} {text}", err=True)


def current_folder() -> Path:
    """Return the working directory. Raises `ConfigError` if it has been removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(f"the folder that you are in can't be used: {error.strerror}; cd to another one") from None


def print_line(text: str) -> None:
    """Print untrusted text on one line as `print_text` does, with control characters escaped.

    An agent may be able to write the gateway's files, which root may print.
    """
    print_text(_cell(text))


def _cell(text: str) -> str:
    return printable(text, size=len(text))


PATIENCE: Final = 1.0
"""Seconds after which a command in a terminal says what it waits for."""


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Say on stderr what is waited for, if it takes longer than `PATIENCE` and stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    # click would look for the command in another thread.
    timer = threading.Timer(PATIENCE, sys.stderr.write, [f"Waiting for {_cell(what)} …\n"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
