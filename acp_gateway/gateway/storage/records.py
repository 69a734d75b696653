"""What outlives the gateway, as values: sessions, their histories, and when tokens were last used."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoredSession:
    """What is known of a session that no agent process has."""

    key: int
    agent: str
    session_id: str
    owner: str
    """An identity."""
    cwd: str | None
    title: str | None
    updated_at: str | None
    created: float
    """Seconds since 1970."""
    used: float
    """Seconds since 1970."""
    epoch: str
    """Of its history."""
    position: int = 0
    """How many messages its history ever had; 0 where none is kept."""
    former: tuple[tuple[str, int], ...] = ()
    """The epochs that its history had before, the oldest first, each with the position at which the next one began."""


@dataclass(slots=True)
class Run:
    """Messages of one turn that follow one another."""

    messages: list[bytes] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)
    """Of those that tell a state, of which only the last counts, the kind: by index, and in order."""
    ends_turn: bool = False
    """Whether a turn ended after the last of them; where there are none, after what was before."""

    def extend(self, messages: Sequence[bytes], state: str | None = None) -> None:
        """Add messages, each of which tells this state, if any."""
        if state is not None:
            first = len(self.messages)
            self.states.update(dict.fromkeys(range(first, first + len(messages)), state))
        self.messages += messages

    def join(self, other: "Run") -> None:
        """Add what followed in the same turn."""
        first = len(self.messages)
        self.states.update((first + index, state) for index, state in other.states.items())
        self.messages += other.messages
        self.ends_turn = other.ends_turn


@dataclass(frozen=True, slots=True)
class StoredJournal:
    """A session's history."""

    epoch: str
    position: int
    """How many messages it ever had."""
    truncated: bool
    """Whether something is missing that told no state."""
    states: Sequence[tuple[bytes, str]] = ()
    """From before `runs`: the last message that was cut off of each kind of state, with the kind, in order."""
    runs: Sequence[Run] = ()
    """The last messages, turn by turn and without a gap: the last of them is the one at `position`."""
    former: tuple[tuple[str, int], ...] = ()
    """As of the session."""

    def after(self, position: int) -> list[Run] | None:
        """What came after that position; None where some of it was cut off.

        Where a turn ended with the message there, the first run has nothing but that: it may not have been known there.
        Where that message is the last that was cut off, this is not known here either, and whoever had it while the
        turn was running takes two turns for one. These are cut off together then; half a turn never is.
        """
        start = self.position - sum(len(run.messages) for run in self.runs)
        if not start <= position <= self.position:
            return None
        runs = []
        for run in self.runs:
            known = position - start
            start += len(run.messages)
            if known <= 0:
                runs.append(run)
            elif start > position or (start == position and run.ends_turn):
                states = {index - known: state for index, state in run.states.items() if index >= known}
                runs.append(Run(run.messages[known:], states, run.ends_turn))
        return runs


@dataclass(frozen=True, slots=True)
class TokenUse:
    """When a token was last presented."""

    last_used: float
    """Seconds since 1970."""
    granted_by: str | None = None
    """Whose session it turned out to be for, if it is for one alone."""
