"""Registry of all sessions of a gateway: the owner of each, for whose limits it counts, and for whom it exists.

All agents of a gateway run as one user and find each other's sessions on disk. The registry alone knows the owner of
each session: it is consulted before any list, load, resume, fork or delete is answered or forwarded. A session outside
of a client's reach does not exist for that client.

Kept as well are the reasons why an agent could not open sessions, for later requests that name one of them. The
response to the opening request holds the reason, but a client may not have sent that request itself: the gateway
re-opens sessions for its clients, and so does the shim. The editor only learns that the session of its next prompt is
not open.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Final

from acp_gateway.core.requests import KeptPrompt
from acp_gateway.core.sessions.archive import NO_ARCHIVE, Archive
from acp_gateway.core.sessions.session import AgentHandle, Client, Session, SessionReach
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.reasons import reason_of

MAX_REMEMBERED: Final = 10_000
"""Maximum number of sessions that are not live and whose owner is remembered, and stored: a year of a busy gateway, in
a few megabytes. `SESSION_ID_SIZE` and `LIST_TEXT_SIZE` bound the size of each. A forgotten session belongs to the
gateway's own user again, like a session that was never registered."""


FORMER: Final = "~former-"
"""Begin of the suffix by which a session is known whose agent has given its id to another one; a number follows."""


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
        # By agent and `name`. Several owners can have a session of one id, in processes of their own.
        self._sessions: dict[tuple[str, str], list[Session]] = {}
        # Those with another id at their agent, by agent and that id.
        self._by_agent_id: dict[tuple[str, str], Session] = {}
        # The number of sessions whose id was given again, by agent and id.
        self._asides = Counter[tuple[str, str]]()
        # The same by id alone.
        self._by_id: dict[str, dict[Session, None]] = {}
        # Live sessions by owner, in the order in which they became live.
        self._live: dict[str, dict[Session, None]] = {}
        # Sessions that are not live, by owner, in the order in which they ended; and their number.
        self._past: dict[str, dict[Session, None]] = {}
        self._past_count = 0
        # Those that have kept prompts.
        self._keeping: dict[Session, None] = {}

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

    def set_agent_id(self, session: Session, agent_id: str) -> None:
        """Note the id at the agent of a session that was made again."""
        self._unindex(session)
        session.agent_id = None if agent_id == session.id else agent_id
        self._set_former_aside(session)
        self._index(session)
        self._archive.keep(session)

    def named_by_agent(self, agent: str, agent_id: str) -> Session | None:
        """Return the session that has this id at its agent, and another one here."""
        return self._by_agent_id.get((agent, agent_id))

    def restore(self, session: Session) -> None:
        """Register a session of an earlier gateway process; it is not live."""
        session.archive = self._archive
        session.restored = True
        self._index(session)
        key = session.agent, session.id
        for other in self._sessions.get(key, ()):
            other.repeats_id = key in self._asides
        if session.kept:
            self._keeping[session] = None
        self._add_past(session)

    def add(self, session: Session, agent_handle: AgentHandle) -> None:
        """Register a session that is live from now on."""
        self._live.setdefault(session.owner, {})[session] = None
        session.agent_handle = agent_handle
        session.archive = self._archive
        self._set_former_aside(session)
        session.repeats_id = session.repeats_id or (session.agent, session.id) in self._asides
        self._remove_past(session)
        self._index(session)
        self._archive.keep(session)

    def end(self, session: Session) -> None:
        """Unregister a session as live; its owner stays known."""
        self._leave(session)
        self._archive.keep(session)
        self._add_past(session)
        while self._past_count > MAX_REMEMBERED:
            self._forget(self._next_forgotten())

    def _next_forgotten(self) -> Session:
        """Return a session of the account with the most entries, and there of that owner: none pushes out another's."""
        sizes, accounts = Counter[str](), {owner: next(iter(past)).account for owner, past in self._past.items()}
        for owner, account in accounts.items():
            sizes[account] += len(self._past[owner])
        most = max(accounts, key=lambda owner: (sizes[accounts[owner]], len(self._past[owner])))
        return next(iter(self._past[most]))

    def remove(self, session: Session) -> None:
        """Forget a session that does not exist any more."""
        self._leave(session)
        self._forget(session)

    def count_live(self, account: str | None = None) -> int:
        """Return the number of live sessions, of one account or of all."""
        return sum(1 for _ in self._live_of(account))

    def waiting_sizes(self, account: str | None = None, session: Session | None = None) -> list[int]:
        """Return the bytes of each prompt that waits, in one session, in those of one account, or in all."""
        live = self._live_of(account) if session is None else (session,)
        kept = (it for it in self._keeping if account in (None, it.account)) if session is None else (session,)
        queued = [len(request.message.text) for it in live for request in it.queue]
        return queued + [len(prompt.text) for it in kept for prompt in it.kept.values()]

    # Kept prompts

    @property
    def keeping(self) -> list[Session]:
        """The sessions that have kept prompts."""
        return list(self._keeping)

    def keep_prompt(self, session: Session, prompt: KeptPrompt) -> bool:
        """Keep a prompt, or a change of it, at its place; return False if it is not stored."""
        session.kept[prompt.shown.key] = prompt
        self._keeping[session] = None
        self._note_prompts(session)
        return session.archive.keep_prompt(session, prompt)

    def take_prompt(self, session: Session, key: str) -> KeptPrompt | None:
        """Return a kept prompt, which is kept no more but in the archive; None if none has this key."""
        prompt = session.kept.pop(key, None)
        if not session.kept:
            self._keeping.pop(session, None)
        if prompt is not None:
            self._note_prompts(session)
        return prompt

    def _note_prompts(self, session: Session) -> None:
        session.note_change()
        if session.agent_handle is not None:
            session.agent_handle.note_prompts(session)

    def _live_of(self, account: str | None) -> Iterator[Session]:
        return (it for of_one in self._live.values() for it in of_one if account in (None, it.account))

    def by_id(self, session_id: str) -> list[Session]:
        """Return the sessions of that id, of all owners and agents."""
        return list(self._by_id.get(session_id, ()))

    def find(self, reach: SessionReach, agent: str, session_id: str) -> Session | None:
        """Return the session of that id in this reach, a live one first.

        Returns None as well if several match for a guest: a counted id must not open another owner's session.
        """
        same = self._sessions.get((agent, session_id), [])
        if len(same) == 1:
            return same[0] if reach.sees(same[0]) else None
        # Of several ended sessions, an agent that counts has only the last one still.
        seen = [session for session in same if reach.sees(session) and (session.live or session is same[-1])]
        seen.sort(key=lambda session: not session.live)
        if reach.guest and len({session.owner for session in seen if session.live}) > 1:
            return None
        return seen[0] if seen else None

    def find_by_name(self, reach: SessionReach, name: str) -> Session | None:
        """Return the session of that `Session.name` in this reach, of any agent, as `find` does; a live one first."""
        agents = dict.fromkeys(session.agent for session in self._by_id.get(name, ()))
        found = [it for agent in agents if (it := self.find(reach, agent, name)) is not None]
        if reach.guest and len(found) > 1:
            return None
        found.sort(key=lambda session: not session.live)
        return found[0] if found else None

    def live(self, reach: SessionReach) -> list[Session]:
        """Return the live sessions in reach, in the order in which they became live.

        Takes no time for sessions of others or ended ones: observers may list often.
        """
        return self._seen(reach, self._live)

    def past(self, reach: SessionReach) -> list[Session]:
        """Return the sessions in reach that are not live, in the order in which they ended."""
        return self._seen(reach, self._past)

    def _seen(self, reach: SessionReach, by_owner: Mapping[str, dict[Session, None]]) -> list[Session]:
        if reach.only is None:
            return [session for session in by_owner.get(reach.identity, ()) if reach.sees(session)]
        same_id = self._by_id.get(reach.only, ())
        return [it for it in same_id if it in by_owner.get(it.owner, ()) and reach.sees(it)]

    def known(self, agent: str, session_id: str) -> bool:
        """Return True if a session of that id was ever registered, for any owner."""
        return (agent, session_id) in self._sessions or (agent, session_id) in self._by_agent_id

    def may_exist(self, reach: SessionReach, agent: str, session_id: str) -> bool:
        """Return True if an unregistered session would be in reach, should the agent have it."""
        if reach.guest or (reach.only is not None and reach.only != session_id):
            return False
        if reach.workspaces is not None:
            return False  # Its workspace is unknown here.
        # Two agents of the configuration may be one program, with one disk.
        if any(it.live or it.owner != reach.identity for it in self._by_id.get(session_id, ())):
            return False
        return reach.identity == self.own_identity and not self.known(agent, session_id)

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

    def _set_former_aside(self, session: Session) -> None:
        """Set the sessions aside that are not live and had an id of this session, here or at the agent."""
        for its_id in {session.id, session.agent_id or session.id}:
            key = session.agent, its_id
            renewed = self._by_agent_id.get(key)
            for other in [*self._sessions.get(key, ()), *([] if renewed is None else [renewed])]:
                if other is not session and not other.live:
                    self._set_aside(other)

    def _set_aside(self, session: Session) -> None:
        """Give a session whose id the agent has used again a name of its own: no agent is asked for it any more."""
        self._unindex(session)
        names = (f"{FORMER}{number}" for number in count(1))
        session.aside = next(name for name in names if not self.known(session.agent, session.id + name))
        self._index(session)
        self._archive.keep(session)

    def _index(self, session: Session) -> None:
        same = self._sessions.setdefault((session.agent, session.name), [])
        if session in same:
            return
        same.append(session)
        self._by_id.setdefault(session.name, {})[session] = None
        if session.aside:
            self._asides[session.agent, session.id] += 1
        elif session.agent_id is not None:
            self._by_agent_id[session.agent, session.agent_id] = session

    def _unindex(self, session: Session) -> None:
        key = session.agent, session.name
        same = self._sessions.get(key, [])
        if session not in same:
            return
        same.remove(session)
        if not same:
            del self._sessions[key]
        same_id = self._by_id[session.name]
        del same_id[session]
        if not same_id:
            del self._by_id[session.name]
        if session.aside:
            key = session.agent, session.id
            self._asides[key] -= 1
            if not self._asides[key]:
                del self._asides[key]
        elif self.named_by_agent(session.agent, session.agent_id or "") is session:
            del self._by_agent_id[session.agent, session.agent_id or ""]

    def _forget(self, session: Session) -> None:
        session.kept.clear()
        self._keeping.pop(session, None)
        self._archive.remove(session)
        self._remove_past(session)
        self._unindex(session)


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
        if client is None or session_id is None or not client.controls or client.reach.guest:
            return None
        session, reason = self._reasons.get((client.reach.identity, session_id), (None, None))
        return reason if session is not None and client.reach.sees(session) else None
