"""Set up logging and format log lines. Secrets are never logged; payloads only for `serve --log-bodies`."""

import logging
import sys
from pathlib import Path
from typing import Any, Final

from acp_gateway.errors import ConfigError
from acp_gateway.printable import printable

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

LINE_SIZE: Final = 8192
"""Characters of one message that are logged: a body of `--log-bodies` fits."""


class OneLine(logging.Formatter):
    """Formats each message as one line of printable text, because it holds names that peers and agents choose."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 # As the base class calls it.
        record.message = printable(record.message, LINE_SIZE)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 # As the base class calls it.
        return "\n".join(map(_traceback_line, super().formatException(ei).split("\n")))


def _traceback_line(line: str) -> str:
    return " " * (len(line) - len(line.lstrip(" "))) + printable(line, LINE_SIZE)


def log_to_stderr(level: int) -> None:
    """Log everything from `level` on to stderr, with the time: for the gateway, whose stderr is its log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(handlers=[handler], level=level)


def log_to_file(path: Path | None, level: int) -> None:
    """Log to a file, or nowhere: for the client, whose stderr belongs to the editor. Raises `ConfigError`."""
    # A full disk is no reason to print tracebacks to the editor's side.
    logging.raiseExceptions = False
    if path is None:
        # Without any handler Python would write warnings to stderr.
        logging.getLogger().addHandler(logging.NullHandler())
        return
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the log file {path}: {error.strerror}") from error
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(handlers=[handler], level=level)
