"""Feedback about the connection, for users who asked for it: a status file, and lines in the conversation.

By default an outage looks like a pause, because most are over before anyone notices. With `tell_outages`, a session
with an open turn gets a line when the connection has been lost for `NOTE_DELAY` seconds, another one when it is back,
and one when its turn was ended by an outage (`recovery`).

The status file has the state of the connection as JSON, for status lines of editors and shells (`--status-file`). It is
replaced as a whole at each change, so that a reader never sees half of it. A status that can't be written must not end
a connection: the failure is logged, once.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from acp_gateway.client.uplink import LinkEvent
from acp_gateway.errors import GatewayError
from acp_gateway.printable import printable
from acp_gateway.protocol.gaps import gap

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
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now()))

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


NOTE_DELAY: Final = 10.0
"""Seconds of an outage before it is told: a change of the network takes a few."""


class Feedback:
    """The feedback of one connection.

    Args:
        status: the status file; None for none.
        tells_outages: True to tell outages in the conversation.
    """

    def __init__(self, status: StatusFile | None = None, *, tells_outages: bool = False) -> None:
        self.tells_outages = tells_outages
        self._status = status
        self._lost_at: float | None = None
        self._change = trio.lowlevel.ParkingLot()

    def notice(self, event: LinkEvent) -> None:
        """Take note of a change of the link."""
        if self._status is not None:
            self._status.notice(event)
        if event.kind != "lost":
            self._lost_at = None
        elif self._lost_at is None:
            self._lost_at = trio.current_time()
        self._change.unpark_all()

    def set_sessions(self, count: int) -> None:
        """Take note of the number of open sessions."""
        if self._status is not None:
            self._status.set_sessions(count)

    def end(self, error: GatewayError | None) -> None:
        """Take note of the end, by an error or by the editor."""
        if self._status is not None:
            self._status.end(None if error is None else str(error))

    async def run(
        self,
        turns: Callable[[], Sequence[str]],
        send: Callable[[list[bytes]], None],
        note: Callable[[str, str], bytes] = gap,
    ) -> None:
        """Tell outages until cancelled, if they are to be told.

        Args:
            turns: returns the sessions with an open turn.
            send: sends updates to the editor.
            note: composes the update for a session from a text.
        """
        while self.tells_outages:
            while self._lost_at is None:
                await self._change.park()
            lost_at = self._lost_at
            await trio.sleep_until(lost_at + NOTE_DELAY)
            told = list(turns()) if self._lost_at == lost_at else []
            send([note(session, _lost(NOTE_DELAY)) for session in told])
            while self._lost_at == lost_at:
                await self._change.park()
            away = trio.current_time() - lost_at
            send([note(session, _back(away)) for session in told])


def _lost(seconds: float) -> str:
    return f"[acp-gateway: the connection was lost {seconds:.0f} s ago; the agent goes on.]"


def _back(seconds: float) -> str:
    return f"[acp-gateway: connected again after {seconds:.0f} s.]"


NO_FEEDBACK: Final = Feedback()
"""Feedback for users who did not ask for it."""
