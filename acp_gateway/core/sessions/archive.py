"""Interface of the storage that keeps sessions for the next gateway process, and of who watches them change.

The core calls it directly, without an effect in its output: each update is stored, and a journal is stored as it is at
the time of the call.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

from acp_gateway.core.requests import KeptPrompt
from acp_gateway.protocol.text.pairs import Entry

SessionT = TypeVar("SessionT", contravariant=True)
"""The session, which is above its archive."""

JournalLoss = Literal["removed", "cut"]
"""A part of a journal that an archive has lost: all of it, or its beginning."""

CostEvent = Literal["made", "opened", "prompted", "total", "turn"]
"""A session is made, or opened again; its agent gets a prompt, tells what the session has cost, or ends a turn."""


class Archive(Protocol[SessionT]):
    """Storage that keeps sessions for the next gateway process. Its methods return at once and never fail."""

    def keep(self, session: SessionT) -> None:
        """Store a session that is new, is opened or ends, has another entry in lists, or another epoch."""

    def remove(self, session: SessionT) -> None:
        """Delete a session."""

    def write(self, session: SessionT, message: Entry, state: str | None, time: int | None) -> None:
        """Store a message that was appended to a session's journal at this time, in milliseconds since 1970."""

    def extend(self, session: SessionT, messages: Sequence[Entry], time: int | None) -> None:
        """Store messages without state that were appended to a session's journal at this time."""

    def end_turn(self, session: SessionT) -> None:
        """Store that no turn runs any more, with the ends of turns since the last call."""

    def replace(self, session: SessionT) -> None:
        """Store another journal of a session."""

    def finish_journal(self, session: SessionT) -> None:
        """Finish storing a journal that is about to be cleared, or to be cut; the stored part stays."""

    def meter(self, session: SessionT, event: CostEvent, told: Any = None) -> None:
        """Count what a session costs; `told` is the agent's message for it, or the parent of a fork."""

    def keep_prompt(self, session: SessionT, prompt: KeptPrompt) -> bool:
        """Store a prompt that waits, or a change of it; return False if prompts are not stored."""

    def send_prompt(self, session: SessionT, key: str) -> bool:
        """Store that a prompt may have reached the agent from now on.

        Return True if the agent may have it at once, as nothing of it is on the disk; otherwise once that is written.
        """

    def drop_prompt(self, session: SessionT, key: str) -> None:
        """Delete a prompt that does not wait any more, if it is stored."""

    def note_change(self, session: SessionT) -> None:
        """Note a change that is not stored: of its state, its turns, its clients, or the agent's requests."""

    def holds(self, session: SessionT) -> bool:
        """Return True if the journal of a session that is not live can be read."""

    def loss(self, session: SessionT) -> JournalLoss | None:
        """Return "removed" if a session's journal was kept and is no longer, "cut" if its beginning is missing."""


class NoArchive:
    """An archive that stores nothing."""

    def keep(self, session: object) -> None: ...
    def remove(self, session: object) -> None: ...
    def write(self, session: object, message: Entry, state: str | None, time: int | None) -> None: ...
    def extend(self, session: object, messages: Sequence[Entry], time: int | None) -> None: ...
    def end_turn(self, session: object) -> None: ...
    def replace(self, session: object) -> None: ...
    def finish_journal(self, session: object) -> None: ...
    def meter(self, session: object, event: CostEvent, told: Any = None) -> None: ...
    def drop_prompt(self, session: object, key: str) -> None: ...
    def note_change(self, session: object) -> None: ...

    def keep_prompt(self, session: object, prompt: KeptPrompt) -> bool:
        """Return False."""
        return False

    def send_prompt(self, session: object, key: str) -> bool:
        """Return True."""
        return True

    def holds(self, session: object) -> bool:
        """Return False."""
        return False

    def loss(self, session: object) -> JournalLoss | None:
        """Return None."""
        return None


NO_ARCHIVE: Final = NoArchive()
"""Archive of sessions that are not registered."""
