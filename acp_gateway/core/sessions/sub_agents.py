"""Sessions of an agent that no client opened, such as those of its sub-agents, and whom their messages may be shown to.

Each belongs to a session that a client opened, its *parent*. That is certain if the agent has told it, by a
`subagent_update` in the parent or among its work in the background, or if its process has had one session only when the
id was first used. A sub-agent may go on after its turn, so neither a running turn nor the end of a session says whose
an id is.

In all other cases there is *doubt*: a message may belong to any session that the process has had. Then it is for
clients to which each of these may be shown, and for no other: guests and connections for one session see a part of
them, another identity none. With several identities there is no such client. A process never has fewer identities than
before, so what is forgotten here leads to doubt, and not to a stranger.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from acp_gateway.core.requests import ForwardedRequest
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.states import ClientPhase, SessionState
from acp_gateway.protocol import methods

MAX_REMEMBERED: Final = 10_000
"""Maximum number of remembered session ids of sub-agents, and of elicitations."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """The sessions that a message of an agent may belong to, where that is not certain."""

    sessions: tuple[Session, ...] = ()
    """Those with a running turn, or all live ones if there is none: their clients may be asked, or told."""
    identities: frozenset[str] = frozenset()
    """The identities that the message may belong to; none while that is not known yet."""

    @property
    def identity(self) -> str | None:
        """The only identity that the message may belong to; None if there are several."""
        return next(iter(self.identities)) if len(self.identities) == 1 else None

    @property
    def is_shared(self) -> bool:
        """True if the message may belong to several identities, so that no client may see it."""
        return len(self.identities) > 1


UNKNOWN: Final = Doubt()
"""That of a message about which nothing is known yet."""


class SubAgents:
    """The sessions of one agent process that no client opened.

    Args:
        live: the sessions that clients opened, by id.
        clients: the clients of the process.
    """

    def __init__(self, live: Mapping[str, Session], clients: Iterable[Client]) -> None:
        self._live = live
        self._clients = clients
        self.naming: dict[int, str] = {}
        """Accounts for which open requests will name a new session, by the id at the agent."""
        # None for an id that several sessions have claimed. An ended session counts as its own parent.
        self._parents: dict[str, Session | None] = {}
        # Of ids in doubt: the identity that was the only one of the process when the id was first used.
        self._owners: dict[str, str] = {}
        # The identities whose messages the process has got, and the owners of its former sessions.
        self._identities: set[str] = set()
        # True if the process may have had sessions beside the live ones.
        self._had_others = False
        # The last doubt: many messages have the same, which may name a thousand sessions.
        self._last = UNKNOWN

    def clear(self) -> None:
        """Forget the sessions of a process that has ended."""
        self._parents.clear()
        self._owners.clear()
        self._identities.clear()
        self._had_others = False
        self._last = UNKNOWN

    def note_request(self, request: ForwardedRequest) -> None:
        """Note that the process gets a request of a client: what it says from now on may be about that."""
        if not isinstance(request, Request) or request.client.reach.guest or request.message.method == methods.LIST:
            return  # A guest's is about a session of another identity.
        self.note_message(request.client)
        # A session for suggestions is not among the live ones.
        self._had_others = self._had_others or request.message.method == methods.NES_START

    def note_message(self, client: Client) -> None:
        """Note that the process gets a message of a client about any session, or about none."""
        self._identities.add(client.reach.identity)

    def opened(self, session: Session) -> bool:
        """Note that a client has opened a session; return True if its id belonged to another one until now."""
        self._owners.pop(session.id, None)
        return self._parents.pop(session.id, session) is not session

    def removed(self, session: Session) -> None:
        """Note that a session leaves the process. One that was never open there has no sub-agents."""
        if session.state in (SessionState.OPEN, SessionState.CLOSING):
            self._identities.add(session.owner)
            self._had_others = True

    def ended(self, session: Session) -> None:
        """Note that later messages in a session, which has ended, and in its children reach no client."""
        remember(self._parents, session.id, session)

    def tell_parent(self, child: str, parent: Session) -> bool:
        """Note the parent that the agent has told; return True if that is new. An id that several sessions claim stays
        in doubt."""
        if child in self._live or self._parents.get(child) is parent:
            return False
        former = self._parents.get(child, parent)
        if former is None:
            return False
        if not self._is_live(former) and former.owner == parent.owner:
            former = parent
        if former is not parent or self._owners.pop(child, parent.owner) != parent.owner:
            remember(self._parents, child, None)
        else:
            remember(self._parents, child, parent)
        return True

    def is_known(self, session_id: str) -> bool:
        """Return True if it is certain whose an id is, though its session may have ended."""
        return session_id in self._live or self._parents.get(session_id) is not None

    def session_of(self, session_id: str | None) -> Session | None:
        """Return the live session that an id of the agent belongs to; None if there is none, or if that is in doubt, as
        it is for a message without an id: that may be about the agent as a whole."""
        if session_id is None:
            return None
        if session_id in self._live:
            return self._live[session_id]
        if session_id not in self._parents and session_id not in self._owners and (only := self._only()) is not None:
            remember(self._parents, session_id, only)
        parent = self._parents.get(session_id)
        return parent if parent is not None and self._is_live(parent) else None

    def doubt(self, session_id: str | None, identities: frozenset[str] = frozenset()) -> Doubt:
        """Return what a message may belong to, where `session_of` does not tell; `identities` are those of its arrival,
        if it has come before: what began later has not caused it."""
        identities = identities or self.identities_of(session_id)
        doubt = Doubt(tuple(self._candidates(identities)), identities)
        self._last = self._last if doubt == self._last else doubt
        return self._last

    def identities_of(self, session_id: str | None) -> frozenset[str]:
        """Return the identities that a new message may belong to."""
        if session_id is not None and session_id in self._owners:
            return frozenset((self._owners[session_id],))
        found = frozenset(self._identities.union(session.owner for session in self._live.values()))
        if not found:
            return frozenset(client.reach.identity for client in self._clients if _is_wide(client))
        if session_id is not None and len(found) == 1 and session_id not in self._parents:
            remember(self._owners, session_id, *found)
        return found

    def _candidates(self, identities: Collection[str]) -> Iterator[Session]:
        """Yield the sessions of each of the identities in which a turn runs, or all of an identity without any."""
        live = [session for session in self._live.values() if session.owner in identities]
        busy = {session.owner for session in live if _works(session)}
        return (session for session in live if session.owner not in busy or _works(session))

    def turns(self) -> frozenset[Request]:
        """Return the turns of all live sessions."""
        return frozenset(turn for session in self._live.values() for turn in session.turns)

    def listeners(self, doubt: Doubt) -> list[Client]:
        """Return the clients that may see a message in doubt and are attached to one of its sessions."""
        attached = {client: None for session in doubt.sessions for client in session.attached}
        return [client for client in attached if self._may_see_all(client, doubt)]

    def controllers(self, doubt: Doubt) -> list[Client]:
        """Return the clients that may see a message in doubt, wherever they are attached."""
        return [client for client in self._clients if self._may_see_all(client, doubt)]

    def _may_see_all(self, client: Client, doubt: Doubt) -> bool:
        """Return True if each session that a message in doubt may belong to is the client's to control."""
        return _is_wide(client) and self.has_all(client, doubt)

    def has_all(self, client: Client, doubt: Doubt) -> bool:
        """Return True if each session that a message in doubt may belong to is one of the client's identity."""
        return doubt.identity == client.reach.identity

    def is_of_another(self, identity: str, session_id: str) -> bool:
        """Return True if an id is certainly that of a sub-agent of another identity."""
        parent = self._parents.get(session_id)
        if parent is None:
            return self._owners.get(session_id, identity) != identity
        return parent.id != session_id and parent.owner != identity

    def _only(self) -> Session | None:
        """Return the session that is the only one which the process has had, and which others have not asked of it."""
        if len(self._live) != 1 or self._had_others or self.naming:
            return None
        (session,) = self._live.values()
        return session if self._identities <= {session.owner} else None

    def _is_live(self, session: Session) -> bool:
        """Return True if a session is live here itself: another one may have its id by now."""
        return self._live.get(session.id) is session


class Doubts:
    """The doubts of messages that are routed together, and the clients that may see them.

    Nothing changes between such messages, so both are worked out once for the same identities.
    """

    def __init__(self, sub_agents: SubAgents) -> None:
        self._sub_agents = sub_agents
        self._found: dict[tuple[frozenset[str], bool], tuple[Doubt, Sequence[Client]]] = {}
        # By the identity of the object: the hash of a thousand sessions takes longer.
        self._noted: dict[int, Doubt] = {}
        self._turns: frozenset[Request] | None = None
        self._were_asked = False

    def end_message(self) -> None:
        """Begin again after a message of the agent that was not in doubt: that may have changed anything."""
        if not self._were_asked:
            self._found.clear()
            self._noted.clear()
            self._turns = None
        self._were_asked = False

    def turns(self) -> frozenset[Request]:
        """Return the turns of all live sessions."""
        if self._turns is None:
            self._turns = self._sub_agents.turns()
        return self._turns

    def of(self, session_id: str | None, before: Doubt) -> tuple[Doubt, Sequence[Client]]:
        """Return what a message may belong to, where that was in doubt before, and the clients that may see it, or
        answer it."""
        self._were_asked = True
        identities = before.identities or self._sub_agents.identities_of(session_id)
        key = identities, session_id is not None
        if key not in self._found:
            doubt = self._sub_agents.doubt(session_id, identities)
            is_told = self._sub_agents.controllers if session_id is None else self._sub_agents.listeners
            self._found[key] = doubt, is_told(doubt)
        return self._found[key]

    def note_change(self, doubt: Doubt | None) -> None:
        """Note that a request in doubt was added to the sessions that it may belong to, or taken from them."""
        if doubt is not None and id(doubt) not in self._noted:
            self._noted[id(doubt)] = doubt
            for session in doubt.sessions:
                session.note_change()


def _is_wide(client: Client) -> bool:
    """Return True for a controller of all sessions of its identity."""
    reach = client.reach
    return client.controls and reach.sees_all and not reach.guest and client.phase is not ClientPhase.NEW


def _works(session: Session) -> bool:
    return bool(session.turns or session.own_state or session.background)


def remember(memory: dict[str, Any], key: str, value: Any) -> None:
    """Remember a value, and forget the earliest of too many."""
    memory[key] = value
    while len(memory) > MAX_REMEMBERED:
        del memory[next(iter(memory))]
