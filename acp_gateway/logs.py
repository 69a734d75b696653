"""Set up logging and format log lines. Secrets are never logged; payloads only for `serve --log-bodies`."""

import datetime as dt
import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from acp_gateway.errors import ConfigError
from acp_gateway.printable import printable

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

JOURNAL_FORMAT: Final = "%(levelname)-7s %(message)s"
"""Format of a line for systemd's journal, which has a time of its own for each line."""

LINE_SIZE: Final = 8192
"""Characters of one message that are logged: a body of `--log-bodies` fits."""


class OneLine(logging.Formatter):
    """Formats each message as one line of printable text, because it holds names that peers and agents choose."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 # As the base class calls it.
        record.message = printable(record.message, LINE_SIZE)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 # As the base class calls it.
        return "\n".join(map(_traceback_line, super().formatException(ei).split("\n")))


class JsonLines(OneLine):
    """Formats each message as one JSON object, whose strings are printable text as well, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        time = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage(), LINE_SIZE),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


_CONNECTION: Final = re.compile(r"[\w-]{8} \([^()]*\)", re.ASCII)
"""The name of a connection: the first characters of its id, and its address."""


def _fields(record: logging.LogRecord) -> dict[str, str]:
    """Return the connection or the agent that a message begins with."""
    subject = record.args[0] if isinstance(record.args, tuple) and record.args else None
    if not isinstance(subject, str):
        return {}
    if record.msg.startswith("%s: ") and _CONNECTION.fullmatch(subject):
        return {"connection": subject}
    return {"agent": subject} if record.msg.startswith("agent %s") else {}


def _traceback_line(line: str) -> str:
    return " " * (len(line) - len(line.lstrip(" "))) + printable(line, LINE_SIZE)


class JournalLines(logging.Formatter):
    """Begins each line of another formatter with its priority, as sd-daemon(3) has it: `<4>` for a warning.

    The journal removes this beginning and files the line under the priority, for `journalctl -p warning`. A traceback
    has several lines, and the journal has an entry for each.
    """

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        start = f"<{_priority(record.levelno)}>"
        return "\n".join(start + line for line in self._lines.format(record).split("\n"))


def _priority(level: int) -> int:
    """Return the priority of syslog(3) for a level of `logging`."""
    for least, priority in ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6)):
        if level >= least:
            return priority
    return 7


def is_journal(environment: Mapping[str, str], descriptor: int) -> bool:
    """Return True if a descriptor is the stream to systemd's journal that `JOURNAL_STREAM` names, systemd.exec(5).

    The variable alone does not tell: a program that the service starts inherits it, and may write elsewhere.
    """
    stream = environment.get("JOURNAL_STREAM")
    if not stream:
        return False
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def log_to_stderr(level: int, form: Literal["text", "json"] = "text", *, journal: bool = False) -> None:
    """Log everything from `level` on to stderr: for the gateway, whose stderr is its log.

    Args:
        level: the lowest level that is logged.
        form: lines of text with the time, or JSON objects.
        journal: stderr is systemd's journal. Lines begin with a priority, and lines of text have no time.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = OneLine(JOURNAL_FORMAT if journal else FORMAT)
    lines: logging.Formatter = JsonLines() if form == "json" else text
    handler.setFormatter(JournalLines(lines) if journal else lines)
    logging.basicConfig(handlers=[handler], level=level)


def log_to_file(path: Path | None, level: int) -> None:
    """Log to a file, or nowhere: for the client, whose stderr belongs to the editor. Raises `ConfigError`."""
    # A full disk is not a reason to print tracebacks to the editor's side.
    logging.raiseExceptions = False
    if path is None:
        _log_nowhere()
        return
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        _log_nowhere()
        raise ConfigError(f"cannot write the log file {path}: {error.strerror}") from error
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(handlers=[handler], level=level)


def _log_nowhere() -> None:
    # Without any handler Python would write warnings to stderr.
    logging.getLogger().addHandler(logging.NullHandler())
