"""Replays: updates in which an agent tells the history of a session while it opens it.

The journal of a session is what clients have seen, and agents replay less than they have said. So a replay replaces no
journal: what it has beyond the last prompt there is new, as the session went on elsewhere, and so are its states. All
of it is new where nothing is known of the session, or not its beginning.
"""

from acp_gateway.core.turns.journal import Journal, TurnMessages
from acp_gateway.core.turns.retelling import Retelling, prompts
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.methods import USER_CHUNK
from acp_gateway.protocol.text.pairs import Entry


class Replay:
    """Updates of an agent in a session since it was asked to open it.

    Args:
        recorded: an empty journal for it.
        known: finds what is new to the journal of the session; None if all of the replay is recorded.
    """

    def __init__(self, recorded: Journal, known: Retelling | None = None) -> None:
        self.recorded = recorded
        """Updates that are new, after the states of before."""
        self._known = known
        # Position in `recorded` after which all is new; None as long as nothing is.
        self._beyond = 0 if known is None else None
        # Kind of the last update that was recorded as new.
        self._last: str | None = None

    def take(self, update: Message, state: str | None) -> None:
        """Record an update, as far as it is new; `state` as in `Journal.append`.

        The agent does not tell the times of its history, nor its turns: a user chunk after other updates ends one.
        """
        if self._beyond is None and self._known is not None and self._known.goes_beyond(update):
            self._beyond = self.recorded.position
        if self._beyond is None and state is None:
            return
        if self._beyond is not None:
            if update.update == USER_CHUNK and self._last not in (None, USER_CHUNK):
                self.recorded.turn_ended()
            self._last = update.update
        self.recorded.append(update.entry, state)

    def states(self) -> list[Entry]:
        """Return the last of each kind of state."""
        return self.recorded.states()

    def take_news(self) -> list[TurnMessages]:
        """Return what goes beyond the journal, beside the states, turn by turn; once."""
        if self._beyond is None or self._known is None:
            return []
        beyond, self._beyond = self._beyond, None
        return self.recorded.runs(beyond)

    def replaces(self, session_id: str, journal: Journal) -> bool:
        """Return True if it was recorded as a whole, and has more prompts than the journal of a session, if any."""
        if self._known is not None:
            return False
        if not journal.position:
            # An empty replay of an empty history changes nothing: no client has to load that again.
            is_same = bool(journal.epoch) and self.recorded.truncated == journal.truncated
            return self.recorded.position > 0 or not is_same
        told, known = (sum(1 for _ in prompts(session_id, it)) for it in (self.recorded, journal))
        return told > known
