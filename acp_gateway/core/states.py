"""States of a client, a session and an agent process, with the transitions between them.

`docs/architecture.md` describes the same states. An impossible transition is a mistake of the core: no message of a
peer may cause one.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

_S = TypeVar("_S", bound=enum.Enum)


class Presence(enum.Enum):
    """State of a client's connection."""

    CONNECTED = enum.auto()
    AWAY = enum.auto()
    """Disconnected but resumable: keeps its attachments and the agent's requests."""
    GONE = enum.auto()


PRESENCE_TRANSITIONS: Final[Mapping[Presence, frozenset[Presence]]] = MappingProxyType(
    {
        # Another connection can replace one whose loss was not noticed.
        Presence.CONNECTED: frozenset({Presence.CONNECTED, Presence.AWAY, Presence.GONE}),
        Presence.AWAY: frozenset({Presence.CONNECTED, Presence.GONE}),
        Presence.GONE: frozenset(),
    }
)


class ClientPhase(enum.Enum):
    """Progress of a client with `initialize`."""

    NEW = enum.auto()
    WAITING = enum.auto()
    """Its `initialize` waits for the agent."""
    READY = enum.auto()


CLIENT_TRANSITIONS: Final[Mapping[ClientPhase, frozenset[ClientPhase]]] = MappingProxyType(
    {
        ClientPhase.NEW: frozenset({ClientPhase.WAITING}),
        ClientPhase.WAITING: frozenset({ClientPhase.READY, ClientPhase.NEW}),
        ClientPhase.READY: frozenset(),
    }
)


class SessionState(enum.Enum):
    """State of a session at its agent process."""

    PAST = enum.auto()
    """Not live: no process has it."""
    OPENING = enum.auto()
    """A load or resume is pending; other requests wait."""
    OPEN = enum.auto()
    CLOSING = enum.auto()
    """A close or delete is pending; other requests wait."""
    DELETING = enum.auto()
    """A delete of a session that was not live is pending. Updates are dropped: the agent may have given its id to
    another session."""
    DORMANT = enum.auto()
    """The process has ended and clients are still attached: the next request re-opens it in a new process."""


IN_TRANSIT: Final = SessionState.OPENING, SessionState.CLOSING, SessionState.DELETING
"""States in which the agent has to answer before another request for the session."""

SESSION_TRANSITIONS: Final[Mapping[SessionState, frozenset[SessionState]]] = MappingProxyType(
    {
        SessionState.PAST: frozenset({SessionState.OPENING, SessionState.OPEN, SessionState.DELETING}),
        SessionState.OPENING: frozenset({SessionState.OPEN, SessionState.DORMANT, SessionState.PAST}),
        SessionState.OPEN: frozenset({SessionState.CLOSING, SessionState.DORMANT, SessionState.PAST}),
        SessionState.CLOSING: frozenset({SessionState.OPEN, SessionState.DORMANT, SessionState.PAST}),
        SessionState.DELETING: frozenset({SessionState.PAST}),
        SessionState.DORMANT: frozenset({SessionState.OPENING, SessionState.PAST}),
    }
)


class AgentPhase(enum.Enum):
    """Phase of an agent process."""

    ABSENT = enum.auto()
    STARTING = enum.auto()
    """`initialize` is pending."""
    READY = enum.auto()
    LOST = enum.auto()
    """The process has ended and will not be started again."""


AGENT_TRANSITIONS: Final[Mapping[AgentPhase, frozenset[AgentPhase]]] = MappingProxyType(
    {
        AgentPhase.ABSENT: frozenset({AgentPhase.STARTING, AgentPhase.LOST}),
        AgentPhase.STARTING: frozenset({AgentPhase.READY, AgentPhase.ABSENT}),
        AgentPhase.READY: frozenset({AgentPhase.ABSENT}),
        AgentPhase.LOST: frozenset(),
    }
)


def moved(transitions: Mapping[_S, frozenset[_S]], before: _S, after: _S) -> _S:
    """Return the state `after`, and assert that it can follow `before`."""
    assert after in transitions[before], f"{before} is not followed by {after}"
    return after
