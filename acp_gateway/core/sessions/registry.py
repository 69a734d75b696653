"""Registry of all sessions of a gateway: the owner of each, and the clients that it exists for.

All agents of a gateway run as one user and find each other's sessions on disk. The registry alone knows the owner of
each session: it is consulted before any list, load, resume, fork or delete is answered or forwarded. A session outside
of a client's scope does not exist for that client.

Kept as well are the reasons why an agent could not open sessions, for later requests that name one of them. The
response to the opening request holds the reason, but a client may not have sent that request itself: the gateway
re-opens sessions for its clients, and so does the shim. The editor only learns that the session of its next prompt is
not open.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from acp_gateway.core.sessions.archive import NO_ARCHIVE, Archive
from acp_gateway.core.sessions.session import AgentHandle, Client, Session, SessionScope, machine_of
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.reasons import reason_of

MAX_REMEMBERED: Final = 10_000
"""Maximum number of sessions that are not live and whose owner is remembered: a year of a busy gateway, in a few
megabytes. A forgotten session belongs to the gateway's own user again, like a session that was never registered."""


class Registry:
    """All sessions that the gateway has seen, live or not.

    Args:
        own_identity: the identity of the gateway's user, who owns sessions that were never registered.
        archive: stores sessions for the gateway's next process.
        run: a word unique to this gateway process: epochs of journals begin with it.
    """

    def __init__(self, own_identity: str, archive: Archive[Session] = NO_ARCHIVE, run: str = "") -> None:
        self.own_identity = own_identity
        self._archive = archive
        self._run = run
        self._epochs = 0
        self._requests = 0
        # By agent and id. Several sessions can share an id: agents that count their sessions restart the count each
        # time.
        self._sessions: dict[tuple[str, str], list[Session]] = {}
        # The same by id alone.
        self._by_id: dict[str, dict[Session, None]] = {}
        # Live sessions by owner, in the order in which they became live.
        self._live: dict[str, dict[Session, None]] = {}
        # Sessions that are not live, by owner, in the order in which they ended; and their number.
        self._past: dict[str, dict[Session, None]] = {}
        self._past_count = 0

    def new_epoch(self) -> str:
        """Return a new word for the positions in one journal."""
        self._epochs += 1
        return f"{self._run}-{self._epochs}"

    def new_request_key(self) -> str:
        """Return a new key for an agent request, or a prompt that waits."""
        self._requests += 1
        return f"{self._run}-{self._requests}"

    def set_archived(self, session: Session, *, archived: bool) -> None:
        """Put a session away, or take it back."""
        if session.archived != archived:
            session.archived = archived
            self._archive.keep(session)

    def rename(self, session: Session, title: str) -> None:
        """Give a session a title that its agent does not replace."""
        session.title, session.is_named = title, True
        self._archive.keep(session)

    def restore(self, session: Session) -> None:
        """Register a session of an earlier gateway process; it is not live."""
        session.archive = self._archive
        session.restored = True
        self._index(session)
        self._add_past(session)

    def add(self, session: Session, agent_handle: AgentHandle) -> None:
        """Register a session that is live from now on."""
        self._live.setdefault(session.owner, {})[session] = None
        session.agent_handle = agent_handle
        session.archive = self._archive
        key = session.agent, session.id
        for other in list(self._sessions.get(key, ())):
            if not other.live and other.owner == session.owner:
                self._forget(other)
        self._remove_past(session)
        self._index(session)
        self._archive.keep(session)

    def end(self, session: Session) -> None:
        """Unregister a session as live; its owner stays known."""
        self._leave(session)
        self._archive.keep(session)
        self._add_past(session)
        while self._past_count > MAX_REMEMBERED:
            # Evict from the owner with the most entries, so that no owner can push out another's.
            most = max(self._past, key=lambda owner: len(self._past[owner]))
            self._forget(next(iter(self._past[most])))

    def remove(self, session: Session) -> None:
        """Forget a session that does not exist any more."""
        self._leave(session)
        self._forget(session)

    @property
    def owners(self) -> set[str]:
        """The identities that have sessions."""
        return {*self._live, *self._past}

    def count_live(self, owner: str | None = None) -> int:
        """Return the number of live sessions, of one identity or of all."""
        return sum(map(len, self._live.values())) if owner is None else len(self._live.get(owner, ()))

    def count_waiting(self, owner: str | None = None) -> int:
        """Return the number of queued prompts, in the sessions of one identity or of all."""
        of_each = self._live.values() if owner is None else [self._live.get(owner, {})]
        return sum(len(session.queue) for sessions in of_each for session in sessions)

    def by_id(self, session_id: str) -> list[Session]:
        """Return the sessions of that id, of all owners and agents."""
        return list(self._by_id.get(session_id, ()))

    def find(self, scope: SessionScope, agent: str, session_id: str) -> Session | None:
        """Return the session of that id in this scope, a live one first.

        Returns None as well if several match for a guest: a counted id must not open another owner's session.
        """
        same = self._sessions.get((agent, session_id), [])
        if len(same) == 1:
            return same[0] if scope.sees(same[0]) else None
        # Of several ended sessions, an agent that counts has only the last one still.
        seen = [session for session in same if scope.sees(session) and (session.live or session is same[-1])]
        seen.sort(key=lambda session: not session.live)
        if scope.guest and len({session.owner for session in seen if session.live}) > 1:
            return None
        return seen[0] if seen else None

    def find_by_name(self, scope: SessionScope, name: str) -> Session | None:
        """Return the session of that `Session.name` in this scope, of any agent, as `find` does; a live one first."""
        machine, _, its_id = name.partition("/")
        places = [("", name), (machine, its_id)] if machine and its_id else [("", name)]
        agents = {
            session.agent: session_id
            for place, session_id in places
            for session in self._by_id.get(session_id, ())
            if machine_of(session.agent) == place
        }
        found = [it for agent, its_id in agents.items() if (it := self.find(scope, agent, its_id)) is not None]
        if scope.guest and len(found) > 1:
            return None
        found.sort(key=lambda session: not session.live)
        return found[0] if found else None

    def live(self, scope: SessionScope) -> list[Session]:
        """Return the live sessions in scope, in the order in which they became live.

        Takes no time for sessions of others or ended ones: observers may list often.
        """
        return self._seen(scope, self._live)

    def past(self, scope: SessionScope) -> list[Session]:
        """Return the sessions in scope that are not live, in the order in which they ended."""
        return self._seen(scope, self._past)

    def _seen(self, scope: SessionScope, by_owner: Mapping[str, dict[Session, None]]) -> list[Session]:
        if scope.only is None:
            return [session for session in by_owner.get(scope.identity, ()) if scope.sees(session)]
        same_id = self._by_id.get(scope.only, ())
        return [it for it in same_id if it in by_owner.get(it.owner, ()) and scope.sees(it)]

    def known(self, agent: str, session_id: str) -> bool:
        """Return True if a session of that id was ever registered, for any owner."""
        return (agent, session_id) in self._sessions

    def may_exist(self, scope: SessionScope, agent: str, session_id: str) -> bool:
        """Return True if an unregistered session would be in scope, should the agent have it."""
        if scope.guest or (scope.only is not None and scope.only != session_id):
            return False
        if scope.workspaces is not None:
            return False  # Its workspace is unknown here.
        # Two agents of the configuration may be one program, with one disk; those of nodes have the node's.
        machine = machine_of(agent)
        elsewhere = [it for it in self._by_id.get(session_id, ()) if machine_of(it.agent) == machine]
        if any(session.live or session.owner != scope.identity for session in elsewhere):
            return False
        return (scope.apart or scope.identity == self.own_identity) and not self.known(agent, session_id)

    def __iter__(self) -> Iterator[Session]:
        return (session for same in list(self._sessions.values()) for session in same)

    def _leave(self, session: Session) -> None:
        if session.live:
            session.agent_handle = None
            del self._live[session.owner][session]
            if not self._live[session.owner]:
                del self._live[session.owner]

    def _add_past(self, session: Session) -> None:
        self._remove_past(session)
        self._past.setdefault(session.owner, {})[session] = None
        self._past_count += 1

    def _remove_past(self, session: Session) -> None:
        sessions = self._past.get(session.owner, {})
        if session in sessions:
            del sessions[session]
            self._past_count -= 1
        if not sessions:
            self._past.pop(session.owner, None)

    def _index(self, session: Session) -> None:
        same = self._sessions.setdefault((session.agent, session.id), [])
        if session not in same:
            same.append(session)
            self._by_id.setdefault(session.id, {})[session] = None

    def _forget(self, session: Session) -> None:
        self._archive.remove(session)
        self._remove_past(session)
        key = session.agent, session.id
        same = self._sessions.get(key, [])
        if session in same:
            same.remove(session)
        if not same:
            self._sessions.pop(key, None)
        same_id = self._by_id.get(session.id, {})
        same_id.pop(session, None)
        if not same_id:
            self._by_id.pop(session.id, None)


MAX_REASONS: Final = 1000
"""Maximum number of remembered sessions of one agent; more than its clients request after a restart."""


class Unopened:
    """Sessions that one agent could not open at the latest attempt, with its reasons."""

    def __init__(self) -> None:
        # By owner and id: two identities may have sessions of the same id.
        self._reasons: dict[tuple[str, str], tuple[Session, str]] = {}

    def remember_reason(self, session: Session, response: Message) -> str:
        """Remember and return the reason in the agent's error."""
        reason = reason_of(response.text)
        self.forget(session)
        self._reasons[session.owner, session.id] = session, reason
        while len(self._reasons) > MAX_REASONS:
            del self._reasons[next(iter(self._reasons))]
        return reason

    def forget(self, session: Session) -> None:
        """Forget the reason: the session is open, or is requested again."""
        self._reasons.pop((session.owner, session.id), None)

    def reason(self, client: Client | None, session_id: str | None) -> str | None:
        """Return why a session is not open, if this client may know.

        Only a controller of the owner may: the agent's words can name files, and were meant for that identity.
        """
        if client is None or session_id is None or not client.controls or client.scope.guest:
            return None
        session, reason = self._reasons.get((client.scope.identity, session_id), (None, None))
        return reason if session is not None and client.scope.sees(session) else None
