"""Options as a table, from which click makes those of commands, and which reads plain command lines without click.

Importing click takes a tenth of the time in which `connect` starts. Help, errors and unusual command lines are click's.
"""

import math
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from acp_gateway.client.destination import ConnectionOptions

MAX_MESSAGE_SIZE: Final = 64 * 1024 * 1024
"""Default maximum bytes of one message, equal to the gateway's default."""

KNOWN_TIMEOUT: Final = 300.0
"""Default seconds to try until the first connection to a gateway that was reached before: joining a network, passing
its portal, connecting a VPN or starting the box takes minutes."""

EDITORS: Final = ("zed", "jetbrains", "codecompanion", "avante", "emacs", "vscode", "toad")
"""Editors that `connect` has settings for."""


class Option(NamedTuple):
    """An option of a command."""

    name: str
    """Its name on the command line, with the hyphens."""
    help: str
    kind: Literal["text", "optional", "file", "number", "count", "flag"] = "text"
    """Kind of its value: a text, one that may be left out, a path, a finite number, an integer, or none."""
    parameter: str = ""
    """The parameter of the command's function, if its name is another."""
    metavar: str | None = None
    default: float | None = None
    least: float = 0
    """Minimum of a number."""
    open: bool = False
    """True if the minimum itself is too small."""
    folder: bool = True
    """False for a file that must not be a folder."""
    repeated: bool = False
    """True if it may be given several times."""

    @property
    def destination(self) -> str:
        """The parameter of the command's function."""
        return self.parameter or self.name.removeprefix("--").replace("-", "_")


class ConnectOptions(NamedTuple):
    """The values of the options of `connect` for an editor that runs it."""

    agent: str | None
    session: str | None
    observe: bool
    worktree: str | None
    token_file: Path | None
    ca: Path | None
    pin: str | None
    cert: Path | None
    key: Path | None
    via: str | None
    insecure_plaintext: bool
    maps: tuple[str, ...]
    connect_timeout: float
    known_timeout: float
    max_message_size: int
    keepalive: float
    log_file: Path | None
    status_file: Path | None
    tell_outages: bool


class Line(NamedTuple):
    """Contents of a plain command line."""

    target: str
    values: Mapping[str, Any]
    """The values of all options, by the parameters of the command's function."""
    given: frozenset[str]
    """The parameters whose options were given."""


TOKEN_FILE: Final = Option(
    "--token-file",
    "A file with the token, readable by you alone. Else ACP_GATEWAY_TOKEN_FILE, ACP_GATEWAY_TOKEN, hosts.toml.",
    "file",
)
CA: Final = Option("--ca", "Trust certificates of this authority (PEM).", "file")
PIN: Final = Option("--pin", "Trust the gateway with this public key, and no other.", metavar="sha256:HEX")
CERT: Final = Option(
    "--cert", "A client certificate (PEM) to show instead of a token, to a gateway with client_ca.", "file"
)
KEY: Final = Option("--key", "The private key of that certificate (PEM), readable by you alone.", "file")
VIA: Final = Option(
    "--via",
    "Go through the tunnel of this door, a host in hosts.toml, which can't read what passes.",
    metavar="DOOR[/NODE]",
)
CONNECT_TIMEOUT: Final = Option(
    "--connect-timeout",
    "How long to try until the first connection, to any gateway if this is given.",
    "number",
    default=15.0,
    open=True,
    metavar="SECONDS",
)
INSECURE_PLAINTEXT: Final = Option(
    "--insecure-plaintext", "Send the token to another machine unencrypted; only for private networks.", "flag"
)

CONNECTION: Final = (TOKEN_FILE, CA, PIN, CERT, KEY, VIA, INSECURE_PLAINTEXT)
"""The options of a connection to a gateway elsewhere."""

CONNECT: Final = (
    Option("--agent", "The agent to use. Default: the gateway's own default."),
    Option(
        "--attach",
        "Join this session: the editor's first new session is this one. `acp-gateway sessions` lists them.",
        parameter="session",
        metavar="SESSION",
    ),
    Option("--observe", "Watch only: you can't prompt or approve.", "flag"),
    Option(
        "--worktree",
        "Start each new session in a new git worktree, with a branch of this name, or of another one.",
        "optional",
        metavar="[NAME]",
    ),
    *CONNECTION,
    Option(
        "--map",
        "Map a local folder to a remote one. May be repeated.",
        parameter="maps",
        metavar="LOCAL=REMOTE",
        repeated=True,
    ),
    CONNECT_TIMEOUT,
    Option(
        "--known-timeout",
        "The same for a gateway that this machine reached in the last 30 days.",
        "number",
        default=KNOWN_TIMEOUT,
        metavar="SECONDS",
    ),
    Option(
        "--max-message-size",
        "The largest message from either side.",
        "count",
        default=MAX_MESSAGE_SIZE,
        least=1,
        metavar="BYTES",
    ),
    Option(
        "--keepalive",
        "Reconnect after this much silence. Both ends send something every 10 s.",
        "number",
        default=30.0,
        least=20,
        metavar="SECONDS",
    ),
    Option("--log-file", "Write a log there.", "file"),
    Option(
        "--status-file",
        "Keep the state of the connection there, as JSON, replaced at each change.",
        "file",
        folder=False,
    ),
    Option("--tell-outages", "Tell long outages, and turns that they end, in the conversation.", "flag"),
)
"""The options of `connect` for an editor that runs it."""


def connection_of(values: Mapping[str, Any]) -> "ConnectionOptions":
    """Return those of a command's values that are of its connection; what is missing was not given."""
    # Imported here, since an editor waits for `connect`.
    from acp_gateway.client.destination import ConnectionOptions

    names = [option.destination for option in CONNECTION]
    return ConnectionOptions(**{name: values[name] for name in names if name in values})


def read_plain_line(options: Sequence[Option], words: Sequence[str]) -> Line | None:
    """Read a command line of one target and some of these options, each with a valid value; None if it is another one.

    What it returns is what click would make of the same line.
    """
    if sys.platform == "win32":
        return None  # There click expands file names and variables.
    by_name = {option.name: option for option in options}
    targets: list[str] = []
    found: dict[str, Any] = {}
    rest = [*reversed(words)]
    while rest:
        word = rest.pop()
        if not word.startswith("-"):
            targets.append(word)
            continue
        name, equals, text = word.partition("=")
        option = by_name.get(name)
        if option is None or (option.kind == "flag" and equals):
            return None
        if option.kind == "optional" and not equals:
            text = "" if not rest or rest[-1].startswith("-") else rest.pop()
        elif option.kind != "flag" and not equals:
            text = rest.pop() if rest else "-"
        value = _read_value(option, text)
        if value is None or (option.destination in found and not option.repeated):
            return None
        found[option.destination] = (*found.get(option.destination, ()), value) if option.repeated else value
    if len(targets) != 1:
        return None
    return Line(targets[0], {option.destination: _default(option) for option in options} | found, frozenset(found))


def _default(option: Option) -> bool | float | tuple[str, ...] | None:
    if option.kind == "flag":
        return False
    return () if option.repeated else option.default


def _read_value(option: Option, text: str) -> str | Path | float | bool | None:
    """Return the value that the text has for an option; None if it may be invalid, or another option."""
    if option.kind == "flag":
        return True
    if text.startswith("-"):
        return None
    if option.kind == "file":
        return Path(text) if _is_usable(text, folder=option.folder) else None
    if option.kind in ("text", "optional"):
        return text
    try:
        number = int(text) if option.kind == "count" else float(text)
    except ValueError:
        return None
    fits = number > option.least or (number == option.least and not option.open)
    # Not `isfinite`, which raises for large integers.
    return number if fits and number != math.inf else None


def _is_usable(path: str, *, folder: bool) -> bool:
    """Return whether a file is absent or readable, as click requires of all paths, and no folder unless it may be."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return True
    return os.access(path, os.R_OK) and (folder or not stat.S_ISDIR(mode))
