"""Stored values: sessions, their histories, what they have cost, prompts that wait, and the last use of each token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from acp_gateway.core.turns.ends import TurnEnd
from acp_gateway.core.turns.times import Times
from acp_gateway.protocol.text.pairs import Entry


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as stored."""

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
    """The epoch of its history."""
    position: int = 0
    """Number of messages that its history ever had; 0 if none is stored."""
    former: tuple[tuple[str, int], ...] = ()
    """Earlier epochs of its history, the oldest first, each with the position at which the next one began."""
    open: bool = False
    """True if a gateway process has it open, or had when it was killed: then its history may lack the end."""
    active: int | None = None
    """Time of its last update, in milliseconds since 1970; None if that is unknown."""
    archived: bool = False
    """True if a user has put it away."""
    named: bool = False
    """True if a user has given the title."""
    agent_id: str | None = None
    """Its id at the agent; None if that is the same."""
    meter: str | None = None
    """Its costs, as `gateway.costs.spending` encodes it."""


@dataclass(slots=True)
class StoredRun:
    """Consecutive messages of one turn."""

    messages: list[Entry] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)
    """Kinds of state by index, in order, of the messages that hold a state: the last of a kind replaces the others."""
    ends_turn: bool = False
    """True if a turn ended after the last message; without messages, after those before."""
    times: Times = field(default_factory=Times)
    """Times of the messages, which are numbered from 0."""

    def join(self, other: "StoredRun") -> None:
        """Append the next messages of the same turn."""
        first = len(self.messages)
        self.states.update((first + index, state) for index, state in other.states.items())
        if other.messages:
            self.times.extend(first, other.times, first)
        self.messages += other.messages
        self.ends_turn = other.ends_turn


@dataclass(frozen=True, slots=True)
class StoredJournal:
    """A session's history."""

    epoch: str
    position: int
    """Number of messages it ever had."""
    truncated: bool
    """True if messages without state are missing at its beginning."""
    states: Sequence[tuple[Entry, str]] = ()
    """The last message cut off of each kind of state, with the kind, in order; they precede `runs`."""
    runs: Sequence[StoredRun] = ()
    """The last messages, turn by turn and without a gap, up to `position`."""
    former: tuple[tuple[str, int], ...] = ()
    """Earlier epochs, as in `StoredSession`."""
    ends: Sequence[TurnEnd] = ()
    """The ends of turns in `runs`, in order, with those at the position before them."""
    carries: bool = field(default=True, compare=False)
    """False if no message of `runs` is a pair: then none is looked at."""

    def after(self, position: int) -> list[StoredRun] | None:
        """Return the messages after a position; None if some of them were cut off.

        If a turn ended with the message at `position`, the first run has only that end, which the caller may not know.
        If that message is the last one cut off, the end is unknown here too, and a caller that has the running turn
        takes two turns for one; these are cut off together then, and half a turn never is.
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
                times = run.times.part(known, len(run.messages))
                runs.append(StoredRun(run.messages[known:], states, run.ends_turn, times))
        return runs


class SpentBy(NamedTuple):
    """The session for which amounts were spent on a day."""

    day: str
    """In ISO 8601, by the clock of the gateway's machine."""
    agent: str
    session_id: str
    """Its name."""
    owner: str
    """An identity."""


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """A prompt that waits. Times are in milliseconds since 1970."""

    key: str
    """Another one than that of any other prompt."""
    session: int
    """The key of its session."""
    at: int | None
    """Time of its arrival, if that is known."""
    due: int | None
    """Time at which it is sent, if it waits for one."""
    auto: bool
    """True if it is sent by itself also after the end of the agent or of the gateway."""
    sent: bool
    """True if the agent may have it."""
    identity: str
    """The identity that has sent it."""
    sender: str
    """Its principal, as `Client.sender` has it."""
    is_new: bool
    """True if its text may be of version 2."""
    text: bytes
    """The request."""


@dataclass(frozen=True, slots=True)
class TokenUse:
    """The last use of a token."""

    last_used: float
    """Seconds since 1970."""
    granted_by: str | None = None
    """The owner of the session that it is bound to, if it is bound to one."""
