"""Describes sessions for those who watch them: status, clients, open agent requests."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.requests import EndedTurn, TurnOutcome
from acp_gateway.core.sessions.archive import JournalLoss
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import AgentHandle, Client, Role, Session, SessionReach
from acp_gateway.core.states import Presence, SessionState
from acp_gateway.protocol.methods import Audience

Status = Literal["initializing", "running", "waiting", "completed", "error", "exited"]
"""State of a session: it is opened; has a turn, or the agent works by itself; waits for a person; is idle; its last
turn has ended with an error or was cut off; no agent process has it."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as one client may see it. Times are in milliseconds since 1970; None where unknown."""

    session: Session
    status: Status
    live: bool
    """True if the session can be joined; else it is opened by the next request for it."""
    waiting: tuple[AgentRequest, ...]
    """The agent's open requests for controllers, the earliest first."""
    may_control: bool
    """True if the viewer may send prompts, and answer requests."""
    can_steer: bool = False
    """True if the agent takes prompts into a turn that runs."""
    unanswered: tuple[AgentRequest, ...] = ()
    """The agent's open requests, also those that a client's program answers."""

    # What few ask for is read from the session when they do.

    @property
    def process_exited(self) -> bool:
        """True if no agent process has the session because it has ended by itself."""
        return self.session.process_exited

    @property
    def turn(self) -> bool:
        """True while the agent works on a prompt."""
        return bool(self.session.turns)

    @property
    def queued(self) -> int:
        """Number of prompts that wait: for the end of the turn, a time, or a person."""
        return len(self.session.shown_prompts)

    @property
    def clients(self) -> tuple[Client, ...]:
        """Attached clients that are connected or away, the earliest first."""
        return tuple(client for client in self.session.attached if client.presence is not Presence.GONE)

    @property
    def history(self) -> JournalLoss | None:
        """The part of its history that was lost."""
        return history_loss(self.session, live=self.live)

    @property
    def last_turn(self) -> EndedTurn | None:
        """The last turn that has ended in this gateway process, unless that is not told to clients."""
        last = self.session.last_turn
        return None if last is None or last.outcome == TurnOutcome() else last


@dataclass(frozen=True, slots=True)
class Viewer:
    """A client that sessions are shown to."""

    reach: SessionReach
    """The sessions that exist for the viewer."""
    role: Role = Role.CONTROLLER
    agents: Container[str] | None = None
    """Names of the agents that the viewer may use; None for all."""
    sees_doubt: bool = False
    """True if the viewer, a controller of all sessions of an identity, is shown requests that may be of any of them."""

    @property
    def reach_in_doubt(self) -> SessionReach | None:
        """The reach for `Multiplexer.waiting`."""
        return self.reach if self.sees_doubt and self.role is Role.CONTROLLER else None

    def covers(self, session: Session) -> bool:
        """Return True if a session is in reach, live or not: its changes are for the viewer."""
        return self.reach.sees(session) and (self.agents is None or session.agent in self.agents)

    def sees(self, session: Session) -> bool:
        """Return True if a session exists for the viewer now. For a guest it does while it is live."""
        return self.covers(session) and (not self.reach.guest or session.live)


_NO_OWNER: Final = ""
"""Owner of no session."""


def shown_reach(registry: Registry, reach: SessionReach) -> SessionReach:
    """Return the reach in which sessions are shown: that of one owner, also for a guest who has joined none yet.

    A guest's token names an id, and agents of several owners may use the same one. Then no session is shown, as none
    can be joined.
    """
    if not reach.guest or reach.granted_by is not None:
        return reach
    owners = {session.owner for session in registry.live(reach)}
    return replace(reach, granted_by=owners.pop() if len(owners) == 1 else _NO_OWNER)


class RunningAgent(Protocol):
    """The hub of an agent process, as far as sessions are described by it."""

    @property
    def multiplexer(self) -> Multiplexer: ...

    @property
    def fence(self) -> str | None:
        """The means by which the process is fenced; None without a fence."""


def find_session(registry: Registry, viewer: Viewer, name: str) -> Session | None:
    """Return the session of that `Session.name`, of any agent; None if none exists for the viewer."""
    session = registry.find_by_name(viewer.reach, name)
    return session if session is not None and viewer.sees(session) else None


def all_sessions(registry: Registry, viewer: Viewer) -> Iterator[Session]:
    """Yield the sessions that exist for the viewer: those that are not live first, in the order of their end."""
    yield from past_sessions(registry, viewer)
    yield from filter(viewer.sees, registry.live(viewer.reach))


class SessionViews:
    """Describes the sessions of a gateway.

    Args:
        registry: all sessions.
        hubs: the agent processes that run.
    """

    def __init__(
        self,
        registry: Registry,
        hubs: Mapping[AgentHandle, RunningAgent],
    ) -> None:
        self._registry = registry
        self._hubs = hubs

    def viewer(self, reach: SessionReach, role: Role, agents: Container[str] | None) -> Viewer:
        """Return the viewer with a reach, as `shown_reach` returns it."""
        return Viewer(shown_reach(self._registry, reach), role, agents)

    def find(self, viewer: Viewer, name: str) -> Session | None:
        """Return a session, as `find_session`."""
        return find_session(self._registry, viewer, name)

    def sessions(self, viewer: Viewer) -> Iterator[Session]:
        """Yield the sessions that exist for the viewer, as `all_sessions`."""
        return all_sessions(self._registry, viewer)

    def multiplexer_of(self, session: Session) -> Multiplexer | None:
        """Return the multiplexer of the process that a session lives in; None if it is not live."""
        hub = None if session.agent_handle is None else self._hubs.get(session.agent_handle)
        return None if hub is None else hub.multiplexer

    def request(self, session: Session, viewer: Viewer, key: str) -> AgentRequest | None:
        """Return the agent's open request of this key that the viewer may answer."""
        multiplexer = None if viewer.role is not Role.CONTROLLER else self.multiplexer_of(session)
        asked = () if multiplexer is None else multiplexer.waiting(session, viewer.reach_in_doubt)
        waiting = (it for it in asked if _is_for_users(it) and _is_shown(viewer, it))
        return next((found for found in waiting if found.key == key), None)

    def view(self, session: Session, viewer: Viewer) -> SessionView:
        """Describe a session, which exists for the viewer."""
        multiplexer = self.multiplexer_of(session)
        asked = () if multiplexer is None else tuple(multiplexer.waiting(session, viewer.reach_in_doubt))
        told = tuple(it for it in asked if _is_shown(viewer, it))
        return SessionView(
            session=session,
            status=status_of(session, is_waiting=any(map(_is_for_users, asked))),
            live=multiplexer is not None,
            waiting=tuple(filter(_is_for_users, told)),
            may_control=viewer.role is Role.CONTROLLER and (multiplexer is not None or not viewer.reach.guest),
            can_steer=multiplexer is not None and multiplexer.abilities.steering is not None,
            unanswered=told,
        )

    def fence(self, session: Session) -> str | None:
        """Return the means by which its running agent is fenced; None without a fence, and while no agent runs."""
        hub = None if session.agent_handle is None else self._hubs.get(session.agent_handle)
        return None if hub is None else hub.fence


def past_sessions(registry: Registry, viewer: Viewer) -> list[Session]:
    """Return the sessions that are not live and can be re-opened by the viewer, in the order in which they ended."""
    if viewer.reach.guest:
        return []
    return [
        session
        for session in registry.past(viewer.reach)
        if viewer.sees(session)
        # Of several owners' sessions, the agent only has the last one of an id.
        and registry.find(viewer.reach, session.agent, session.name) is session
    ]


def history_loss(session: Session, *, live: bool) -> JournalLoss | None:
    """Return the part of a session's history that was lost."""
    loss = session.archive.loss(session)
    # The history of a live session is in memory, and is stored again when the turn ends.
    return None if live and loss == "removed" else loss


def status_of(session: Session, *, is_waiting: bool) -> Status:
    """Return the status of a session; `is_waiting` if the agent has an open request for a controller in it."""
    state, live = session.state, session.live
    if state is SessionState.OPENING or (session.awaited and not live):
        return "initializing"
    if not live or state is SessionState.DORMANT:
        return "exited"
    if is_waiting or session.own_state == "requires_action":
        return "waiting"
    if session.turns or session.own_state:
        return "running"
    last = session.last_turn
    outcome = TurnOutcome(cut=session.cut) if last is None else last.outcome
    return "completed" if outcome.error is None and outcome.cut is None else "error"


def _is_for_users(agent_request: AgentRequest) -> bool:
    """Return False for requests that a client's program answers, such as those for files."""
    return agent_request.is_decision or agent_request.audience is Audience.CONTROLLERS


def _is_shown(viewer: Viewer, agent_request: AgentRequest) -> bool:
    """Return False for what the gateway itself asks an owner, if the viewer is a guest."""
    return agent_request.then is None or not viewer.reach.guest
