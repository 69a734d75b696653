"""The state of a connection as a file of JSON, for status lines of editors and shells (`connect --status-file`).

The file is replaced as a whole at each change, so that a reader never sees half of it. A status that can't be written
must not end a connection: the failure is logged, once.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acp_gateway.client.reconnect_policy import LinkEvent
from acp_gateway.printable import printable

log = logging.getLogger(__name__)


class StatusFile:
    """The status of one `connect`.

    Args:
        path: the file, replaced at each change.
        host: the gateway, as the user names it.
        now: returns the time, in seconds since 1970.
    """

    def __init__(self, path: Path, host: str, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        self._failed = False
        self._status: dict[str, Any] = {
            "host": host,
            "address": None,
            "state": "connecting",
            "since": self._time(),
            "resumed": 0,
            "sessions": 0,
            "reason": None,
            "pid": os.getpid(),
        }
        self._write()

    def notice(self, event: LinkEvent) -> None:
        """Record a change of the link."""
        resumed = self._status["resumed"] + (event.kind == "resumed")
        reason = printable(event.why) if event.kind == "lost" else None
        state = "away" if event.kind == "lost" else "connected"
        self._change(state=state, since=self._time(), address=event.address, resumed=resumed, reason=reason)

    def set_sessions(self, count: int) -> None:
        """Record the number of open sessions."""
        if count != self._status["sessions"]:
            self._change(sessions=count)

    def end(self, reason: str | None) -> None:
        """Record the end of the program, with the error if there is one."""
        self._change(state="ended", since=self._time(), reason=None if reason is None else printable(reason))

    def _change(self, **members: Any) -> None:
        self._status |= members
        self._write()

    def _time(self) -> str:
        return datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _write(self) -> None:
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            # In a folder of all users, another one may have put a link there.
            new.unlink(missing_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(json.dumps(self._status) + "\n")
            os.replace(new, self._path)
        except OSError as error:
            if not self._failed:
                log.warning("the status is not written: %s: %s", self._path, error.strerror)
            self._failed = True
