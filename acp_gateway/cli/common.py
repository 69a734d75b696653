"""Options that several commands share, and printing."""

import io
import math
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from acp_gateway.cli.plain_options import (
    CONNECT_TIMEOUT,
    CONNECTION,
    VIA,
    Option,
    connection_of,
)
from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.diagnosis.checks import Line

F = TypeVar("F", bound=Callable[..., Any] | click.Command)

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The gateway's configuration. Default: ~/.config/acp-gateway/config.toml, else /etc/acp-gateway/config.toml.",
)
"""For each command that is run on the gateway's machine."""


def check_finite(_context: click.Context, _option: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not math.isfinite(seconds):
        raise click.BadParameter("a number of seconds is needed")
    return seconds


def click_option(option: Option) -> Callable[[F], F]:
    """Return a row of the table as an option of click."""
    settings: dict[str, Any] = {"metavar": option.metavar, "help": option.help, "default": option.default}
    if option.kind == "flag":
        settings |= {"is_flag": True, "default": False}
    elif option.kind == "optional":
        settings |= {"is_flag": False, "flag_value": ""}
    elif option.kind == "file":
        settings["type"] = click.Path(path_type=Path, dir_okay=option.folder)
    elif option.kind == "number":
        least = click.FloatRange(min=option.least, min_open=option.open)
        settings |= {"type": least, "callback": check_finite, "show_default": True}
    elif option.kind == "count":
        settings |= {"type": click.IntRange(min=int(option.least), min_open=option.open), "show_default": True}
    return click.option(option.name, option.destination, multiple=option.repeated, **settings)


def click_options(options: Sequence[Option]) -> Callable[[F], F]:
    """Return rows of the table as options of click, for the help in their order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = click_option(option)(function)
        return function

    return add


via_option = click_option(VIA)


def collected(kind: type, parameter: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command get one object of a dataclass instead of those of its parameters that are its fields."""
    names = tuple(field.name for field in fields(kind))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(*arguments: Any, **given: Any) -> None:
            found = kind(**{name: given.pop(name) for name in names})
            function(*arguments, **{parameter: found}, **given)

        return command

    return decorate


def connection_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a connection to a command, which gets them as its parameter `connection`."""

    @wraps(function)
    def command(**given: Any) -> None:
        connection = connection_of(given)
        for option in CONNECTION:
            del given[option.destination]
        function(connection=connection, **given)

    return click_options(CONNECTION)(command)


def refuse(options: Sequence[Option], remedy: str) -> None:
    """Raise `UsageError`, with the remedy, if one of these options for a gateway elsewhere was given."""
    for option in options:
        if was_given(option.destination):
            raise UsageError(f"{option.name} is for a gateway elsewhere: {remedy}")


def connect_timeout_option(help: str, default: float = 15.0) -> Callable[[F], F]:  # noqa: A002 - as click names it.
    """Return the option for a command that waits for something of its own."""
    return click_option(CONNECT_TIMEOUT._replace(help=help, default=default))


def check_host(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    """Check the value of an option that is a name or an address of a machine. Raises `UsageError`."""
    # Imported here, as everything that only some commands need.
    from acp_gateway.config.listeners import parse_host

    return None if name is None else parse_host(name)


def host_option(help: str) -> Callable[[F], F]:  # noqa: A002 - as click names it.
    """Return the option for the name or address by which others reach this machine, which is checked."""
    return click.option("--host", metavar="NAME", callback=check_host, help=help)


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


_WORD: Final = re.compile(r"[^\s`]*`[^`]*`\S*|\S+")
"""A word, or a command in backticks, which is copied as a whole."""


def wrapped(text: str, columns: int, before: str = "", indent: int = 0) -> list[str]:
    """Return a line as rows of a terminal that end at words: `before` and the text, further rows behind an indent.

    A word that is longer than a row stays whole, so that it can be copied.
    """
    from acp_gateway.terminal.ansi import cells

    rows, row, is_empty = [], before + text[: len(text) - len(text.lstrip())], True
    for word in _WORD.findall(text):
        if not is_empty and cells(click.unstyle(row)) + 1 + cells(word) > columns:
            rows.append(row)
            row, is_empty = " " * indent, True
        row += word if is_empty else f" {word}"
        is_empty = False
    return [*rows, row]


def print_rows(text: str, *, err: bool = False, before: str = "", indent: int = 0) -> None:
    """Print a line of printable text behind `before`; on a terminal it is wrapped at words."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None and stream.isatty():
        # A terminal may break the row after its last column.
        columns = shutil.get_terminal_size().columns - 1
        click.echo("\n".join(wrapped(text, columns, before, min(indent, columns // 2))), err=err)
    else:
        click.echo(before + text, err=err)


def print_wrapped(text: str, *, err: bool = False) -> None:
    """Print untrusted text as one line, which a terminal gets wrapped at words."""
    print_rows(printable(text, size=len(text)), err=err)


def print_check(line: "Line", *, err: bool = False) -> None:
    """Print the result of a check."""
    for before, text in line.parts:
        print_rows(text, err=err, before=before, indent=len(before))


def print_text(text: str) -> None:
    """Print a line for people: on stdout, or on stderr if the command has been given `--json`."""
    context = click.get_current_context(silent=True)
    click.echo(text, err=context is not None and context.meta.get(_JSON, False))


def print_warning(text: str, severity: str = "warning") -> None:
    """Print a line on stderr that begins with its severity, in colour on a terminal."""
    print_rows(text, err=True, before=f"{click.style(f'{severity}:', fg='red' if severity == 'error' else 'yellow')} ")


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
"""Seconds after which a command in a terminal says what it waits for, and between changes of that line."""


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Show on stderr what is waited for and how long, after `PATIENCE`, if stderr is a terminal; then remove that."""
    if not sys.stderr.isatty():
        yield
        return
    # The line has to fit, because only one can be removed.
    text = f"Waiting for {_cell(what)}"[: max(20, shutil.get_terminal_size().columns - 20)]
    ended = threading.Event()

    def show() -> None:
        seconds = 0.0
        while not ended.wait(PATIENCE):
            seconds += PATIENCE
            sys.stderr.write(f"\r{text} … {seconds:.0f} s")
            sys.stderr.flush()
        if seconds:
            sys.stderr.write(f"\r{' ' * (len(text) + 12)}\r")

    # click would look for the command in another thread.
    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
