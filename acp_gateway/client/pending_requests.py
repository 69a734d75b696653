"""What an editor is asked, seen from beside the stream, until it is certain that its answer has left.

A question that was answered is remembered for a while, since its answer may still be on this machine when the link is
lost. One that was taken back is remembered until the editor answers it all the same. Ids are JSON texts.
"""

from collections.abc import Collection
from typing import Final

from acp_gateway.protocol.json_text import whole_number

ANSWERS_KEPT: Final = 1000
"""Of so many questions it is known what they were about after they were answered, for answers that have not left yet:
more than anybody answers while a link is down."""


class PendingRequests:
    """The questions that one editor is asked."""

    def __init__(self) -> None:
        self.last_id = 0
        """The highest whole number under which anything was ever asked."""
        # The session that each is about, by id: those that wait for an answer, and those that got one lately.
        self._open: dict[bytes, str | None] = {}
        self._answered: dict[bytes, str | None] = {}
        # Those that were taken back, of which the editor may not know yet.
        self._withdrawn: set[bytes] = set()

    def __bool__(self) -> bool:
        """Whether any waits for an answer."""
        return bool(self._open)

    def __contains__(self, raw_id: bytes) -> bool:
        """Whether an answer under this id means something: one that is to come, or one that may not have left."""
        return raw_id in self._open or raw_id in self._answered

    def ask(self, raw_id: bytes, session_id: str | None) -> None:
        """The editor is asked something, in a session or outside of all."""
        self._open[raw_id] = session_id
        self._withdrawn.discard(raw_id)
        self.last_id = max(self.last_id, whole_number(raw_id) or 0)

    def cancel(self, raw_id: bytes) -> None:
        """The gateway takes a question back itself."""
        self._open.pop(raw_id, None)

    def answer(self, raw_id: bytes) -> bool:
        """The editor answers; returns False where the question was withdrawn, for the first answer to it."""
        if raw_id in self._withdrawn:
            self._withdrawn.remove(raw_id)
            return False
        if raw_id in self._open:
            self._answered[raw_id] = self._open.pop(raw_id)
            if len(self._answered) > ANSWERS_KEPT:
                del self._answered[next(iter(self._answered))]
        return True

    def unsettled(self, unsent: Collection[bytes]) -> dict[bytes, str | None]:
        """Return the session of each question whose answer has not left: the answered ones first.

        Forgets the answered ones that are not among `unsent`, the ids of answers that have certainly not left.
        """
        self._answered = {raw_id: session_id for raw_id, session_id in self._answered.items() if raw_id in unsent}
        return self._answered | self._open

    def withdraw(self, raw_id: bytes) -> bool:
        """Take back a question, or the answer to it that has not left; returns whether the editor has to be told."""
        if raw_id not in self._open:
            self._answered.pop(raw_id, None)
            return False
        del self._open[raw_id]
        self._withdrawn.add(raw_id)
        return True
