"""Where log lines go and what they look like. Secrets are never logged; payloads only for `serve --log-bodies`."""

import logging
import sys
from pathlib import Path

from acp_gateway.errors import ConfigError

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def log_to_stderr(level: int) -> None:
    """Log everything from `level` on to stderr, with the time: for the gateway, whose stderr is its log."""
    logging.basicConfig(stream=sys.stderr, level=level, format=FORMAT)


def log_to_file(path: Path | None, level: int) -> None:
    """Log to a file, or nowhere: for the client, whose stderr belongs to the editor. Raises `ConfigError`."""
    # A full disk is no reason to print tracebacks to the editor's side.
    logging.raiseExceptions = False
    if path is None:
        # Without any handler Python would write warnings to stderr.
        logging.getLogger().addHandler(logging.NullHandler())
        return
    try:
        logging.basicConfig(filename=path, level=level, format=FORMAT, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the log file {path}: {error.strerror}") from error
