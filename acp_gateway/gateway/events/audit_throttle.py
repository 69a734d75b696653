"""What clients do, in the audit: entry by entry as long as it is a person's work, and counted where it is a flood.

The audit keeps so many bytes and drops the oldest. Whoever is in could have what they did fall out of it by doing
something harmless again and again; so of each identity's entries of a kind only so many within a window are written one
by one, and the others as one entry with their `count`.
"""

from typing import Any, Final

import trio

from acp_gateway.gateway.events.audit import Audit
from acp_gateway.gateway.failure_counter import EventAggregator, FailureCounter

WINDOW: Final = 60.0
"""Seconds."""

SINGLE: Final = 60
"""Entries of one kind and one identity within a window that are written one by one. With the audit's default size, a
flood of all kinds takes most of a day to push out what was there before."""

_OTHERS: Final = ("various", "various")


class AuditThrottle:
    """Writes the audit. `run` has to run for it."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._entries = FailureCounter(SINGLE, WINDOW)
        # By event and identity.
        self._gathered = EventAggregator(_OTHERS)

    def record(self, event: str, *, identity: str | None = None, **details: Any) -> None:
        """Write an entry now, or count it; what nobody did but the gateway itself, or an agent, is always written."""
        if identity is not None and self._entries.refused(f"{event} {identity}", trio.current_time()):
            self._gathered.add((event, identity))
        else:
            self._audit.record(event, identity=identity, **details)

    async def run(self) -> None:
        """Write from time to time what was counted, until cancelled."""
        try:
            while True:
                await trio.sleep(WINDOW)
                self._report()
        finally:
            self._report()

    def _report(self) -> None:
        for (event, identity), count in self._gathered.take():
            self._audit.record(event, identity=identity, count=count)
