"""One ACP session, the clients that take part in it, and the registry of all sessions of a gateway.

All agents of a gateway run as one user and find each other's sessions on disk. So whose a session is, is known here
and nowhere else: the registry is asked before any list, load, resume, fork or delete is answered or passed on, and what
an identity may not see does not exist for it.

A session is *live* while an agent process has it: that process's multiplexer is its `home`. What is left afterwards is
its owner and what a list shows of it.
"""

import enum
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from acp_gateway.core.journal import Journal
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import IdKey, Message, RawId

if TYPE_CHECKING:
    from acp_gateway.core.agent_requests import AgentRequest
    from acp_gateway.core.echoes import Echo

REMEMBERED: Final = 10_000
"""Sessions that are not live and whose owner is remembered, at most: a year of a busy gateway, in a few megabytes. What
is forgotten belongs to the gateway's own user again, as any session that was never registered."""


SETUP_SIZE: Final = 1024 * 1024
"""Bytes of how a session was opened that are kept for opening it again: a list of tool servers has a few thousand."""


SHORT: Final = 4096
"""Bytes of a parameter at most that is known to the end though nobody waits for the answer: a directory, a name."""

SESSION_ID_SIZE: Final = 1024
"""Characters of a session's id at most that a client may name; a UUID has 36, and each is remembered."""


class Role(enum.Enum):
    """What a client may do in the sessions that it is attached to."""

    CONTROLLER = "controller"
    OBSERVER = "observer"


class Presence(enum.Enum):
    """Whether a client's connection is there."""

    CONNECTED = enum.auto()
    AWAY = enum.auto()
    """Lost, and it may come back: it keeps what it is attached to and what it was asked."""
    GONE = enum.auto()


class Phase(enum.Enum):
    """How far a client is with `initialize`."""

    NEW = enum.auto()
    WAITING = enum.auto()
    READY = enum.auto()


@dataclass(frozen=True, slots=True)
class SessionScope:
    """Who looks at the sessions, and which of them there are for this one."""

    identity: str
    only: str | None = None
    """The one session that there is; None for all that are the identity's."""
    guest: bool = False
    """Whether `only` was granted by the token, whoever owns it, and nothing else was."""
    granted_by: str | None = None
    """A guest's: whose session that turned out to be, once it was found. Another one of the same id is not meant."""
    workspaces: tuple[str, ...] | None = None
    """The names of the places where it may open sessions; None for all there are."""

    @property
    def sees_all(self) -> bool:
        """Whether all sessions of the identity exist for this one, also those of which nothing is known yet."""
        return self.only is None and self.workspaces is None

    def sees(self, session: "Session") -> bool:
        """Whether the session exists for this one."""
        if self.only is not None and session.id != self.only:
            return False
        if self.workspaces is not None and session.workspace not in self.workspaces:
            return False
        if self.guest:
            return self.granted_by in (None, session.owner)
        return session.owner == self.identity


_NO_LINKS: Final = frozenset[str]()
"""One for all clients: almost none ever has others, and an empty one takes as much as a session's name does."""


class Client:
    """A connection, as the core sees it. There are many that say nothing: what is empty should take no room."""

    __slots__ = (
        "__weakref__",
        "_last_id",
        "away_since",
        "former_links",
        "joined",
        "link",
        "name",
        "phase",
        "presence",
        "questions",
        "replays",
        "requests",
        "role",
        "sessions",
        "viewer",
        "waiting_size",
        "wants_news",
    )

    def __init__(
        self, name: str, viewer: SessionScope, role: Role = Role.CONTROLLER, *, link: str | None = None
    ) -> None:
        self.name = name
        self.viewer = viewer
        self.link = link
        """What its link is known by, if it can be resumed; such a client counts what it receives."""
        self.former_links: frozenset[str] = _NO_LINKS
        """Links that it had before and that could not be resumed, as far as it took anything over from there."""
        self.role = role
        self.presence = Presence.CONNECTED
        self.away_since = -math.inf
        """When it was last lost, in seconds of the driver's clock."""
        self.phase = Phase.NEW
        self.wants_news = False
        """Whether it asked for the gateway's own notifications."""
        self.joined = False
        """Whether its first `session/new` was answered with the session that it came for."""
        self.requests: dict[IdKey, Request] = {}
        """What it has asked and is not answered yet."""
        self.questions: dict[int, AgentRequest] = {}
        """What it was asked and has not answered yet, by the id that was minted for it."""
        self.replays: dict[Session, None] = {}
        """Whose history is on its way to it; whoever sends it says when it has arrived."""
        self.sessions: dict[Session, None] = {}
        """What it is attached to, the earliest first."""
        self.waiting_size = 0
        """Bytes of those of its requests that are still held here, word for word."""
        self._last_id = 0

    def __repr__(self) -> str:
        return f"Client({self.name})"

    @property
    def controls(self) -> bool:
        """Whether it may do more than look."""
        return self.role is Role.CONTROLLER

    @property
    def counts(self) -> bool:
        """Whether it wants to know where in its sessions it is."""
        return self.link is not None

    def positions(self) -> dict[str, tuple[str, int]]:
        """For each session that it takes part in, the epoch and position of all that was decided for it until now."""
        return {
            session.id: (session.journal.epoch, session.journal.position)
            for session in self.sessions
            if len(session.id) <= SESSION_ID_SIZE
        }

    @property
    def connected(self) -> bool:
        """Whether it is there at this moment."""
        return self.presence is Presence.CONNECTED

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent to it any more."""
        return self.presence is Presence.GONE

    def take_on(self, request: "Request") -> None:
        """It has asked something."""
        self.requests[jsonrpc.id_key(request.id)] = request
        self.waiting_size += len(request.message.text)

    def settle(self, request: "Request") -> None:
        """It gets its answer."""
        if self.requests.pop(jsonrpc.id_key(request.id), None) is not None:
            self.waiting_size -= len(request.message.text)

    def mint_id(self) -> int:
        """An id for a request to this client, never used before."""
        self._last_id += 1
        return self._last_id

    def mint_above(self, last_id: int) -> None:
        """It has had ids up to this one, over another link."""
        self._last_id = max(self._last_id, last_id)


class Request:
    """A request of a client, or of the gateway itself, from its arrival until its answer."""

    __slots__ = ("agent_id", "client", "directory_check", "message", "session", "then")

    def __init__(self, client: Client | None, message: Message, session: "Session | None" = None) -> None:
        self.client = client
        """None for the gateway's own."""
        self.message = message
        self.session = session
        """The session that it is about, once that is clear."""
        self.agent_id: int | None = None
        """Its id at the agent, while it is there."""
        self.then: Callable[[Request, Message], None] | None = None
        """What to do with the agent's response."""
        self.directory_check: DirectoryCheck | None = None
        """What was found out of the directories that it names, or will be."""

    @property
    def id(self) -> RawId:
        """As the client spelled it."""
        return self.message.id

    def replace(self, text: bytes) -> None:
        """What it says from now on, under the same id."""
        if self.client is not None:
            self.client.waiting_size += len(text) - len(self.message.text)
        self.message = jsonrpc.parse(text)

    def forget_text(self) -> None:
        """The agent has it now, and nobody here needs to know what it said: prompts can be large."""
        message = self.message
        if self.client is not None:
            self.client.waiting_size -= len(message.text)
        self.message = Message(b"", message.kind, message.id, message.method, session=message.session)

    def forget_most(self) -> None:
        """Its client has gone: keep of what it said only what may have to be known when the answer comes."""
        message = self.message
        if len(message.text) > SHORT * 4:
            members = jsonrpc.members_at(message.text, "params")
            params = {name: text for name, text in members.items() if len(text) <= SHORT}
            text = b'{"params":%b}' % jsonrpc.compose(params)
            self.message = Message(text, message.kind, message.id, message.method, session=message.session)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a session can't be opened: words for a person, data for a program."""

    message: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DirectoryCheckResult:
    """What only the gateway's machine can tell of the directories of a session that is to be opened."""

    problem: Problem | None = None
    """Why the session may not be opened in these."""
    workspace: str | None = None
    """The name of the workspace in which it would be."""
    instead: tuple[str, str | None] | None = None
    """A directory and its workspace for a session that names none, or none that may be; None where there is none."""


class DirectoryCheck:
    """Directories that a request names, and what was found out of them."""

    def __init__(self, request: Request, directories: tuple[str, ...]) -> None:
        self.request = request
        self.directories = directories
        """`cwd` first, then the additional ones."""
        self.findings: DirectoryCheckResult | None = None
        """None until somebody has looked."""
        self.behind: list[Request] = []
        """What the same client asks meanwhile."""


class State(enum.Enum):
    """What a session's agent process has of it."""

    OPENING = enum.auto()
    """A load or resume is on its way; what is asked meanwhile waits."""
    OPEN = enum.auto()
    CLOSING = enum.auto()
    """A close or delete is on its way; what is asked meanwhile waits as well."""
    DELETING = enum.auto()
    """The same for one that was not live. Nothing is said in it: an agent may have given its id to another one."""
    DORMANT = enum.auto()
    """The process has ended, the clients are still attached: the next request opens it again in a new one."""


class AgentHandle(Protocol):
    """The multiplexer of the process that a session lives in."""

    @property
    def abandoned(self) -> bool:
        """Whether none of its clients is connected."""


class Archive(Protocol):
    """What keeps sessions for another process of the gateway. It is told of changes, at once, and never fails."""

    def keep(self, session: "Session") -> None:
        """A session is there, or what a list shows of it has changed, or its journal goes on in another epoch."""

    def remove(self, session: "Session") -> None:
        """A session does not exist any more."""

    def write(self, session: "Session", message: bytes, state: str | None) -> None:
        """A message was written down in a session's journal."""

    def extend(self, session: "Session", messages: Sequence[bytes]) -> None:
        """Messages that tell no state were written down in a session's journal."""

    def end_turn(self, session: "Session") -> None:
        """A turn has ended in it."""

    def replace(self, session: "Session") -> None:
        """A session has another journal."""

    def settle(self, session: "Session") -> None:
        """A session's journal is about to be cleared; what is kept of it stays."""

    def holds(self, session: "Session") -> bool:
        """Whether a journal of a session that is not live can be read."""

    def has_removed(self, session: "Session") -> bool:
        """Whether the journal of a session that is not live was kept, and is not any more."""


class NoArchive:
    """Keeps nothing."""

    def keep(self, session: "Session") -> None: ...
    def remove(self, session: "Session") -> None: ...
    def write(self, session: "Session", message: bytes, state: str | None) -> None: ...
    def extend(self, session: "Session", messages: Sequence[bytes]) -> None: ...
    def end_turn(self, session: "Session") -> None: ...
    def replace(self, session: "Session") -> None: ...
    def settle(self, session: "Session") -> None: ...

    def holds(self, session: "Session") -> bool:
        """Nothing."""
        return False

    def has_removed(self, session: "Session") -> bool:
        """Nothing."""
        return False


class Session:
    """A session: who takes part, what is open in it, and what a late joiner needs."""

    def __init__(self, agent: str, session_id: str, owner: str, journal: Journal) -> None:
        self.agent = agent
        """The agent's name in the configuration: ids are unique within one agent's sessions at the most."""
        self.id = session_id
        self.owner = owner
        """An identity."""
        self.journal = journal
        self.archive: Archive = _NO_ARCHIVE
        """What keeps it, once it is registered."""
        self.home: AgentHandle | None = None
        self.state = State.OPENING
        self.host: Client | None = None
        """The owner's connection that created or last loaded it: its machine serves files and terminals."""
        self.attached: dict[Client, None] = {}
        """The clients that take part, the earliest first."""
        self.turns: dict[Request, float] = {}
        """The prompts that the agent works on, with the time at which it began."""
        self.echo: Echo | None = None
        """What the agent may say again of the prompt that it got last, while it has said nothing else in that turn."""
        self.queue: deque[Request] = deque()
        """The prompts that come after them."""
        self.held: list[Request] = []
        """What was asked while it is in transit."""
        self.cwd: str | None = None
        self.workspace: str | None = None
        """The name of the workspace that it works in, where that is known."""
        self.title: str | None = None
        self.updated_at: str | None = None
        self.listed: tuple[tuple[str | None, ...], bytes] | None = None
        """What a list last showed of it, composed of these."""
        self.result: dict[str, bytes] = {}
        """What opening it returned besides its id (modes, models, configuration), by member, as JSON text."""
        self.setup: dict[str, bytes] = {}
        """The parameters that it was opened with, for opening it again, as JSON text. They hold secrets."""
        self.replay_to: Client | None = None
        """While it is being loaded: who gets the agent's replay."""
        self.recorded: Journal | None = None
        """While it is being loaded: the history that will replace the journal."""
        self.last_recorded: str | None = None
        """While it is being loaded: the kind of the last update of that history."""
        self.restored = False
        """Whether it is of an earlier process of the gateway, and nothing is known of its last turn."""
        self.cut: str | None = None
        """The word for what has cut off its last turn, where it was opened again after that."""
        self.journal_loaded = False
        """While it is not live: whether its journal was read from the archive, as far as there is one."""

    def __repr__(self) -> str:
        return f"Session({self.agent} {self.id!r:.80})"

    @property
    def live(self) -> bool:
        """Whether an agent process has it, or is to get it back."""
        return self.home is not None

    @property
    def in_transit(self) -> bool:
        """Whether what is asked of it has to wait until it has come or gone."""
        return self.state in (State.OPENING, State.CLOSING, State.DELETING)

    def controllers(self) -> Iterator[Client]:
        """The attached clients that may decide."""
        return (client for client in self.attached if client.controls)

    def write(self, message: bytes, state: str | None = None) -> None:
        """Write down an update; `state` as in `Journal.append`."""
        self.journal.append(message, state)
        self.archive.write(self, message, state)

    def extend(self, messages: Sequence[bytes]) -> None:
        """Write down updates that tell no state."""
        self.journal.extend(messages)
        self.archive.extend(self, messages)

    def end_turn(self) -> None:
        """A turn has ended."""
        self.journal.turn_ended()
        self.archive.end_turn(self)

    def take_journal(self, journal: Journal) -> None:
        """Go on with another journal."""
        self.journal = journal
        self.archive.replace(self)

    def keep_setup(self, request: Message) -> None:
        """Take over how a client opened this session; of something huge only where."""
        params = {name: bytes(raw) for name, raw in jsonrpc.params_of(request).items() if name != "sessionId"}
        huge = sum(map(len, params.values())) > SETUP_SIZE
        self.setup = {name: value for name, value in params.items() if name == "cwd" or not huge}
        self.cwd = jsonrpc.text_param(request, "cwd") or self.cwd

    def keep_directory(self) -> None:
        """Where it was opened is all that is known of how: it is of an earlier process of the gateway."""
        if self.cwd is not None:
            self.setup = {"cwd": jsonrpc.encode(self.cwd)}

    def forget_content(self) -> None:
        """Keep what a list shows and what opening it again takes, and nothing else of what was said in it."""
        self.archive.settle(self)
        self.journal.clear()
        self.journal_loaded = False
        self.recorded = self.replay_to = self.host = None
        self.setup = {name: value for name, value in self.setup.items() if name == "cwd"}
        self.result = {}

    def keep_result(self, response: Message) -> None:
        """Take over what the agent answered when it opened this session."""
        self.result = {}
        self.merge_result(response)

    def merge_result(self, response: Message) -> None:
        """Take over what the agent answered when it opened this session again."""
        result = jsonrpc.members_at(response.text, "result")
        self.result |= {name: text for name, text in result.items() if name != "sessionId"}


_NO_ARCHIVE = NoArchive()


class Registry:
    """All sessions of a gateway that were ever seen, live ones and others.

    Args:
        own_identity: the gateway's own user's, to whom sessions belong that were never registered.
        archive: keeps them for the gateway's next process.
        run: a word that no other process of the gateway has: epochs of journals begin with it.
    """

    def __init__(self, own_identity: str, archive: Archive = _NO_ARCHIVE, run: str = "") -> None:
        self.own_identity = own_identity
        self._archive = archive
        self._run = run
        self._epochs = 0
        # By agent and id. There can be several of one name: agents that count their sessions begin anew each time.
        self._sessions: dict[tuple[str, str], list[Session]] = {}
        # The same by id alone.
        self._by_id: dict[str, dict[Session, None]] = {}
        # Those that are live, by owner, the longest so first.
        self._live: dict[str, dict[Session, None]] = {}
        # Those that are not live, by owner, the longest so first; and how many that are.
        self._past: dict[str, dict[Session, None]] = {}
        self._past_count = 0

    def new_epoch(self) -> str:
        """A word for the positions in one journal."""
        self._epochs += 1
        return f"{self._run}-{self._epochs}"

    def restore(self, session: Session) -> None:
        """A session is known from an earlier process of the gateway, and not live."""
        session.archive = self._archive
        session.restored = True
        self._enlist(session)
        self._put_by(session)

    def add(self, session: Session, home: AgentHandle) -> None:
        """A session is live from now on."""
        self._live.setdefault(session.owner, {})[session] = None
        session.home = home
        session.archive = self._archive
        key = session.agent, session.id
        for other in list(self._sessions.get(key, ())):
            if not other.live and other.owner == session.owner:
                self._forget(other)
        self._take_out(session)
        self._enlist(session)
        self._archive.keep(session)

    def end(self, session: Session) -> None:
        """A session is not live any more; whose it is stays known."""
        self._leave(session)
        self._archive.keep(session)
        self._put_by(session)
        while self._past_count > REMEMBERED:
            # Of whoever has most: nobody can have the others' forgotten.
            most = max(self._past, key=lambda owner: len(self._past[owner]))
            self._forget(next(iter(self._past[most])))

    def remove(self, session: Session) -> None:
        """A session does not exist any more."""
        self._leave(session)
        self._forget(session)

    def count_live(self, owner: str | None = None) -> int:
        """How many sessions are live, of an identity or of all."""
        return sum(map(len, self._live.values())) if owner is None else len(self._live.get(owner, ()))

    def count_waiting(self, owner: str | None = None) -> int:
        """How many prompts wait for the end of a turn, in the sessions of an identity or of all."""
        of_each = self._live.values() if owner is None else [self._live.get(owner, {})]
        return sum(len(session.queue) for sessions in of_each for session in sessions)

    def find(self, viewer: SessionScope, agent: str, session_id: str) -> Session | None:
        """The session of that id that exists for this viewer, a live one first.

        None as well where several would do for a guest: a counted id must not open somebody else's session.
        """
        same = self._sessions.get((agent, session_id), [])
        if len(same) == 1:
            return same[0] if viewer.sees(same[0]) else None
        # Of several that are over, an agent that counts has only the last one still.
        seen = [session for session in same if viewer.sees(session) and (session.live or session is same[-1])]
        seen.sort(key=lambda session: not session.live)
        if viewer.guest and len({session.owner for session in seen if session.live}) > 1:
            return None
        return seen[0] if seen else None

    def live(self, viewer: SessionScope) -> list[Session]:
        """The live sessions that exist for this viewer, the longest so first.

        What others have takes no time, nor does what is over: who may only look may ask often.
        """
        return self._seen(viewer, self._live)

    def past(self, viewer: SessionScope) -> list[Session]:
        """Those that are not live, the longest so first."""
        return self._seen(viewer, self._past)

    def _seen(self, viewer: SessionScope, by_owner: Mapping[str, dict[Session, None]]) -> list[Session]:
        if viewer.only is None:
            return [session for session in by_owner.get(viewer.identity, ()) if viewer.sees(session)]
        same_id = self._by_id.get(viewer.only, ())
        return [it for it in same_id if it in by_owner.get(it.owner, ()) and viewer.sees(it)]

    def known(self, agent: str, session_id: str) -> bool:
        """Whether a session of that id was ever registered, for whomever."""
        return (agent, session_id) in self._sessions

    def may_exist(self, viewer: SessionScope, agent: str, session_id: str) -> bool:
        """Whether a session that is not registered would be this viewer's, if the agent has it."""
        if viewer.guest or (viewer.only is not None and viewer.only != session_id):
            return False
        if viewer.workspaces is not None:
            return False  # Nobody here knows where it works.
        # Two agents of the configuration may be one program, with one disk.
        elsewhere = self._by_id.get(session_id, ())
        if any(session.live or session.owner != viewer.identity for session in elsewhere):
            return False
        return viewer.identity == self.own_identity and not self.known(agent, session_id)

    def __iter__(self) -> Iterator[Session]:
        return (session for same in list(self._sessions.values()) for session in same)

    def _leave(self, session: Session) -> None:
        if session.live:
            session.home = None
            del self._live[session.owner][session]
            if not self._live[session.owner]:
                del self._live[session.owner]

    def _put_by(self, session: Session) -> None:
        self._take_out(session)
        self._past.setdefault(session.owner, {})[session] = None
        self._past_count += 1

    def _take_out(self, session: Session) -> None:
        sessions = self._past.get(session.owner, {})
        if session in sessions:
            del sessions[session]
            self._past_count -= 1
        if not sessions:
            self._past.pop(session.owner, None)

    def _enlist(self, session: Session) -> None:
        same = self._sessions.setdefault((session.agent, session.id), [])
        if session not in same:
            same.append(session)
            self._by_id.setdefault(session.id, {})[session] = None

    def _forget(self, session: Session) -> None:
        self._archive.remove(session)
        self._take_out(session)
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
