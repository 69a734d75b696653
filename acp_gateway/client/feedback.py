"""Feedback about the connection, for users who asked for it: a status file, and lines in the conversation.

By default an outage looks like a pause, because most are over before anyone notices. With `tell_outages`, a session
with an open turn gets a line when the connection has been lost for `NOTE_DELAY` seconds, another one when it is back,
and one when its turn was ended by an outage (`recovery`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from acp_gateway.client.reconnect_policy import LinkEvent
from acp_gateway.errors import GatewayError
from acp_gateway.protocol.gaps import gap

if TYPE_CHECKING:
    from acp_gateway.client.status_file import StatusFile

NOTE_DELAY: Final = 10.0
"""Seconds of an outage before it is told: a change of the network takes a few."""


class Feedback:
    """The feedback of one connection.

    Args:
        status: the status file; None for none.
        tells_outages: True to tell outages in the conversation.
    """

    def __init__(self, status: "StatusFile | None" = None, *, tells_outages: bool = False) -> None:
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

    async def run(self, turns: Callable[[], Sequence[str]], send: Callable[[list[bytes]], None]) -> None:
        """Tell outages until cancelled, if they are to be told.

        Args:
            turns: returns the sessions with an open turn.
            send: sends updates to the editor.
        """
        while self.tells_outages:
            while self._lost_at is None:
                await self._change.park()
            lost_at = self._lost_at
            await trio.sleep_until(lost_at + NOTE_DELAY)
            told = list(turns()) if self._lost_at == lost_at else []
            send([gap(session, _lost(NOTE_DELAY)) for session in told])
            while self._lost_at == lost_at:
                await self._change.park()
            away = trio.current_time() - lost_at
            send([gap(session, _back(away)) for session in told])


def _lost(seconds: float) -> str:
    return f"[acp-gateway: the connection was lost {seconds:.0f} s ago; the agent goes on.]"


def _back(seconds: float) -> str:
    return f"[acp-gateway: connected again after {seconds:.0f} s.]"


NO_FEEDBACK: Final = Feedback()
"""Feedback for users who did not ask for it."""
