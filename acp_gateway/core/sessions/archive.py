"""Interface of the storage that keeps sessions for the next gateway process, and of who watches them change.

The core calls it directly, without an effect in its output: each update is stored, and a journal is stored as it is at
the time of the call.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from acp_gateway.core.sessions.session import Session


JournalLoss = Literal["removed", "cut"]
"""A part of a journal that an archive has lost: all of it, or its beginning."""


class Archive(Protocol):
    """Storage that keeps sessions for the next gateway process. Its methods return at once and never fail."""

    def keep(self, session: "Session") -> None:
        """Store a session that is new, is opened or ends, has another entry in lists, or another epoch."""

    def remove(self, session: "Session") -> None:
        """Delete a session."""

    def write(self, session: "Session", message: bytes, state: str | None, time: int | None) -> None:
        """Store a message that was appended to a session's journal at this time, in milliseconds since 1970."""

    def extend(self, session: "Session", messages: Sequence[bytes], time: int | None) -> None:
        """Store messages without state that were appended to a session's journal at this time."""

    def end_turn(self, session: "Session") -> None:
        """Store the end of a turn."""

    def replace(self, session: "Session") -> None:
        """Store another journal of a session."""

    def finish_journal(self, session: "Session") -> None:
        """Finish storing a journal that is about to be cleared; the stored part stays."""

    def note_change(self, session: "Session") -> None:
        """Note a change that is not stored: of its state, its turns, its clients, or the agent's requests."""

    def holds(self, session: "Session") -> bool:
        """Return True if the journal of a session that is not live can be read."""

    def loss(self, session: "Session") -> JournalLoss | None:
        """Return "removed" if a session's journal was kept and is no longer, "cut" if its beginning is missing."""


class NoArchive:
    """An archive that stores nothing."""

    def keep(self, session: "Session") -> None: ...
    def remove(self, session: "Session") -> None: ...
    def write(self, session: "Session", message: bytes, state: str | None, time: int | None) -> None: ...
    def extend(self, session: "Session", messages: Sequence[bytes], time: int | None) -> None: ...
    def end_turn(self, session: "Session") -> None: ...
    def replace(self, session: "Session") -> None: ...
    def finish_journal(self, session: "Session") -> None: ...
    def note_change(self, session: "Session") -> None: ...

    def holds(self, session: "Session") -> bool:
        """Return False."""
        return False

    def loss(self, session: "Session") -> JournalLoss | None:
        """Return None."""
        return None


NO_ARCHIVE: Final = NoArchive()
"""Archive of sessions that are not registered."""
