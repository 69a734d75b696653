"""Sessions, the clients attached to them, and the registry of all sessions of a gateway.

All agents of a gateway run as one user and find each other's sessions on disk. The registry alone knows the owner of
each session: it is consulted before any list, load, resume, fork or delete is answered or forwarded. A session outside
of a client's scope does not exist for that client.

A session is *live* while an agent process has it: that process's multiplexer is its `home`. Afterwards its owner and
its entry in a list are kept.
"""

import enum
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from acp_gateway.core.journal import Journal
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import IdKey, Message, RawId

if TYPE_CHECKING:
    from acp_gateway.core.agent_requests import AgentRequest
    from acp_gateway.core.echoes import Echo

REMEMBERED: Final = 10_000
"""Maximum number of sessions that are not live and whose owner is remembered: a year of a busy gateway, in a few
megabytes. A forgotten session belongs to the gateway's own user again, like a session that was never registered."""


SETUP_SIZE: Final = 1024 * 1024
"""Maximum size of the parameters kept for re-opening a session, in bytes; a list of MCP servers has a few thousand."""


SHORT: Final = 4096
"""Maximum size of a parameter kept until the response after its client has gone, in bytes: a directory, a name."""

SESSION_ID_SIZE: Final = 1024
"""Maximum length of a session id in a client's message, in characters; a UUID has 36, and each id is remembered."""


class Role(enum.Enum):
    """Permissions of a client in the sessions that it is attached to."""

    CONTROLLER = "controller"
    OBSERVER = "observer"


class Presence(enum.Enum):
    """State of a client's connection."""

    CONNECTED = enum.auto()
    AWAY = enum.auto()
    """Disconnected but resumable: keeps its attachments and the agent's requests."""
    GONE = enum.auto()


class Phase(enum.Enum):
    """Progress of a client with `initialize`."""

    NEW = enum.auto()
    WAITING = enum.auto()
    READY = enum.auto()


@dataclass(frozen=True, slots=True)
class SessionScope:
    """The sessions that exist for a client."""

    identity: str
    only: str | None = None
    """The one session in scope; None for all sessions of the identity."""
    guest: bool = False
    """True if the token grants only `only`, independent of its owner."""
    granted_by: str | None = None
    """For a guest, the owner of the session once it was found. Another session of the same id is out of scope."""
    workspaces: tuple[str, ...] | None = None
    """Names of the workspaces where the client may open sessions; None for all."""

    @property
    def sees_all(self) -> bool:
        """True if all sessions of the identity are in scope, including those not registered yet."""
        return self.only is None and self.workspaces is None

    def sees(self, session: "Session") -> bool:
        """Return True if the session is in scope."""
        if self.only is not None and session.id != self.only:
            return False
        if self.workspaces is not None and session.workspace not in self.workspaces:
            return False
        if self.guest:
            return self.granted_by in (None, session.owner)
        return session.owner == self.identity


_NO_LINKS: Final = frozenset[str]()
"""Shared by all clients: almost none has former links, and an empty set takes as much memory as a session's name."""


class Client:
    """A connection, as the core sees it. Most clients are idle, so empty collections are shared."""

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
        """Name of the client's link, if it can be resumed; such a client counts the messages that it receives."""
        self.former_links: frozenset[str] = _NO_LINKS
        """Names of earlier links, not resumed, from which this client has taken over prompts."""
        self.role = role
        self.presence = Presence.CONNECTED
        self.away_since = -math.inf
        """Time of the last loss of the connection, in seconds of the driver's clock."""
        self.phase = Phase.NEW
        self.wants_news = False
        """True if the client asked for the gateway's own notifications."""
        self.joined = False
        """True if the first `session/new` was answered with the session that the connection is bound to."""
        self.requests: dict[IdKey, Request] = {}
        """Requests of the client without a response yet."""
        self.questions: dict[int, AgentRequest] = {}
        """Requests of the agent that the client has not answered yet, by the id minted for it."""
        self.replays: dict[Session, None] = {}
        """Sessions whose history is on its way to the client; the driver removes each when it has arrived."""
        self.sessions: dict[Session, None] = {}
        """Sessions that the client is attached to, the earliest first."""
        self.waiting_size = 0
        """Bytes of the client's requests whose text is still held here."""
        self._last_id = 0

    def __repr__(self) -> str:
        return f"Client({self.name})"

    @property
    def controls(self) -> bool:
        """True for a controller."""
        return self.role is Role.CONTROLLER

    @property
    def counts(self) -> bool:
        """True if the client counts its position in its sessions."""
        return self.link is not None

    def positions(self) -> dict[str, tuple[str, int]]:
        """Return the epoch and position of each attached session, up to the latest decision."""
        return {
            session.id: (session.journal.epoch, session.journal.position)
            for session in self.sessions
            if len(session.id) <= SESSION_ID_SIZE
        }

    @property
    def connected(self) -> bool:
        """True while the connection is open."""
        return self.presence is Presence.CONNECTED

    @property
    def gone(self) -> bool:
        """True if nothing can be sent to the client any more."""
        return self.presence is Presence.GONE

    def take_on(self, request: "Request") -> None:
        """Register a request of the client."""
        self.requests[jsonrpc.id_key(request.id)] = request
        self.waiting_size += len(request.message.text)

    def settle(self, request: "Request") -> None:
        """Unregister a request that gets its response."""
        if self.requests.pop(jsonrpc.id_key(request.id), None) is not None:
            self.waiting_size -= len(request.message.text)

    def mint_id(self) -> int:
        """Return an id for a request to this client, never used before."""
        self._last_id += 1
        return self._last_id

    def mint_above(self, last_id: int) -> None:
        """Skip the ids that were used over another link, up to this one."""
        self._last_id = max(self._last_id, last_id)


class Request:
    """A request of a client, or of the gateway itself, from its arrival until its response."""

    __slots__ = ("agent_id", "client", "directory_check", "message", "session", "then")

    def __init__(self, client: Client | None, message: Message, session: "Session | None" = None) -> None:
        self.client = client
        """None for the gateway's own requests."""
        self.message = message
        self.session = session
        """The session of the request, once known."""
        self.agent_id: int | None = None
        """Id at the agent, while the agent works on it."""
        self.then: Callable[[Request, Message], None] | None = None
        """Handler of the agent's response."""
        self.directory_check: DirectoryCheck | None = None
        """Check of the directories that the request names, pending or done."""

    @property
    def id(self) -> RawId:
        """The id in the client's spelling."""
        return self.message.id

    def replace(self, text: bytes) -> None:
        """Replace the message, under the same id."""
        if self.client is not None:
            self.client.waiting_size += len(text) - len(self.message.text)
        self.message = jsonrpc.parse(text)

    def forget_text(self) -> None:
        """Drop the text once the agent has it: prompts can be large."""
        message = self.message
        if self.client is not None:
            self.client.waiting_size -= len(message.text)
        self.message = Message(b"", message.kind, message.id, message.method, session=message.session)

    def forget_most(self) -> None:
        """Drop large parameters once the client has gone; short ones may be needed with the response."""
        message = self.message
        if len(message.text) > SHORT * 4:
            members = jsonrpc.members_at(message.text, "params")
            params = {name: text for name, text in members.items() if len(text) <= SHORT}
            text = b'{"params":%b}' % jsonrpc.compose(params)
            self.message = Message(text, message.kind, message.id, message.method, session=message.session)


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason why a session can't be opened: a sentence for a person, data for a program."""

    message: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DirectoryCheckResult:
    """Result of checking the directories of a session, which needs the gateway's file system."""

    problem: Problem | None = None
    """Reason why the session may not be opened in these directories."""
    workspace: str | None = None
    """Name of the workspace that contains the directories."""
    instead: tuple[str, str | None] | None = None
    """Directory and workspace for a session that names no permitted one; None if there is none."""


class DirectoryCheck:
    """Directories that a request names, and the result of checking them."""

    def __init__(self, request: Request, directories: tuple[str, ...]) -> None:
        self.request = request
        self.directories = directories
        """`cwd` first, then the additional ones."""
        self.findings: DirectoryCheckResult | None = None
        """None until the check is done."""
        self.behind: list[Request] = []
        """Later requests of the same client, waiting for the check."""


class State(enum.Enum):
    """State of a session at its agent process."""

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


class AgentHandle(Protocol):
    """The multiplexer of the process that a session lives in."""

    @property
    def abandoned(self) -> bool:
        """True if none of its clients is connected."""


Loss = Literal["removed", "cut"]
"""A part of a journal that an archive has lost: all of it, or its beginning."""


class Archive(Protocol):
    """Storage that keeps sessions for the next gateway process. Its methods return at once and never fail."""

    def keep(self, session: "Session") -> None:
        """Store a session that is new, has another entry in lists, or continues its journal in another epoch."""

    def remove(self, session: "Session") -> None:
        """Delete a session."""

    def write(self, session: "Session", message: bytes, state: str | None) -> None:
        """Store a message that was appended to a session's journal."""

    def extend(self, session: "Session", messages: Sequence[bytes]) -> None:
        """Store messages without state that were appended to a session's journal."""

    def end_turn(self, session: "Session") -> None:
        """Store the end of a turn."""

    def replace(self, session: "Session") -> None:
        """Store another journal of a session."""

    def settle(self, session: "Session") -> None:
        """Finish storing a journal that is about to be cleared; the stored part stays."""

    def holds(self, session: "Session") -> bool:
        """Return True if the journal of a session that is not live can be read."""

    def loss(self, session: "Session") -> Loss | None:
        """Return "removed" if a session's journal was kept and is no longer, "cut" if its beginning is missing."""


class NoArchive:
    """An archive that stores nothing."""

    def keep(self, session: "Session") -> None: ...
    def remove(self, session: "Session") -> None: ...
    def write(self, session: "Session", message: bytes, state: str | None) -> None: ...
    def extend(self, session: "Session", messages: Sequence[bytes]) -> None: ...
    def end_turn(self, session: "Session") -> None: ...
    def replace(self, session: "Session") -> None: ...
    def settle(self, session: "Session") -> None: ...

    def holds(self, session: "Session") -> bool:
        """Return False."""
        return False

    def loss(self, session: "Session") -> Loss | None:
        """Return None."""
        return None


class Session:
    """A session: its clients, its open requests, and its history for late joiners."""

    def __init__(self, agent: str, session_id: str, owner: str, journal: Journal) -> None:
        self.agent = agent
        """Name of the agent in the configuration. Ids are unique within one agent's sessions at most."""
        self.id = session_id
        self.owner = owner
        """An identity."""
        self.journal = journal
        self.archive: Archive = _NO_ARCHIVE
        """Archive of the registry, once registered."""
        self.home: AgentHandle | None = None
        self.state = State.OPENING
        self.host: Client | None = None
        """The owner's connection that created or last loaded the session: it serves files and terminals."""
        self.attached: dict[Client, None] = {}
        """Attached clients, the earliest first."""
        self.turns: dict[Request, float] = {}
        """Prompts that the agent works on, with the start time of each turn."""
        self.echo: Echo | None = None
        """Expected echo of the latest prompt, until the agent sends something else in that turn."""
        self.queue: deque[Request] = deque()
        """Prompts that wait for the end of the running turns."""
        self.held: list[Request] = []
        """Requests that wait while the session is in transit."""
        self.cwd: str | None = None
        self.workspace: str | None = None
        """Name of the session's workspace, where known."""
        self.title: str | None = None
        self.updated_at: str | None = None
        self.listed: tuple[tuple[str | None, ...], bytes] | None = None
        """Entry in the last list, with the values that it was composed of."""
        self.result: dict[str, bytes] = {}
        """Result of opening the session, without its id (modes, models, configuration), by member, as JSON text."""
        self.setup: dict[str, bytes] = {}
        """Parameters of opening the session, for re-opening it, as JSON text. They hold secrets."""
        self.replay_to: Client | None = None
        """Recipient of the agent's replay, while opening."""
        self.recorded: Journal | None = None
        """History that will replace the journal, while opening."""
        self.last_recorded: str | None = None
        """Kind of the last update of `recorded`, while opening."""
        self.restored = False
        """True if an earlier gateway process had the session, and the end of its last turn is unknown."""
        self.cut: str | None = None
        """Reason why the last turn was cut off, if the session was re-opened after that."""
        self.journal_loaded = False
        """True if the journal of a session that is not live was read from the archive, as far as there is one."""

    def __repr__(self) -> str:
        return f"Session({self.agent} {self.id!r:.80})"

    @property
    def live(self) -> bool:
        """True if an agent process has the session or re-opens it."""
        return self.home is not None

    @property
    def in_transit(self) -> bool:
        """True if requests have to wait until the session is open or gone."""
        return self.state in (State.OPENING, State.CLOSING, State.DELETING)

    def controllers(self) -> Iterator[Client]:
        """Yield the attached controllers."""
        return (client for client in self.attached if client.controls)

    def write(self, message: bytes, state: str | None = None) -> None:
        """Append an update to the journal and the archive; `state` as in `Journal.append`."""
        self.journal.append(message, state)
        self.archive.write(self, message, state)

    def extend(self, messages: Sequence[bytes]) -> None:
        """Append updates without state to the journal and the archive."""
        self.journal.extend(messages)
        self.archive.extend(self, messages)

    def end_turn(self) -> None:
        """Record the end of a turn."""
        self.journal.turn_ended()
        self.archive.end_turn(self)

    def take_journal(self, journal: Journal) -> None:
        """Replace the journal."""
        self.journal = journal
        self.archive.replace(self)

    def keep_setup(self, request: Message) -> None:
        """Keep the parameters of opening the session; of more than `SETUP_SIZE` bytes only `cwd`."""
        params = {name: bytes(raw) for name, raw in jsonrpc.params_of(request).items() if name != "sessionId"}
        huge = sum(map(len, params.values())) > SETUP_SIZE
        self.setup = {name: value for name, value in params.items() if name == "cwd" or not huge}
        self.cwd = jsonrpc.text_param(request, "cwd") or self.cwd

    def keep_directory(self) -> None:
        """Keep the directory alone for re-opening: the other parameters are lost with the earlier gateway process."""
        if self.cwd is not None:
            self.setup = {"cwd": jsonrpc.encode(self.cwd)}

    def forget_content(self) -> None:
        """Keep only the entry for lists and the directory for re-opening; drop the history."""
        self.archive.settle(self)
        self.journal.clear()
        self.journal_loaded = False
        self.recorded = self.replay_to = self.host = None
        self.setup = {name: value for name, value in self.setup.items() if name == "cwd"}
        self.result = {}

    def keep_result(self, response: Message) -> None:
        """Keep the agent's result of opening the session."""
        self.result = {}
        self.merge_result(response)

    def merge_result(self, response: Message) -> None:
        """Merge the agent's result of re-opening the session."""
        result = jsonrpc.members_at(response.text, "result")
        self.result |= {name: text for name, text in result.items() if name != "sessionId"}


_NO_ARCHIVE = NoArchive()


class Registry:
    """All sessions that the gateway has seen, live or not.

    Args:
        own_identity: the identity of the gateway's user, who owns sessions that were never registered.
        archive: stores sessions for the gateway's next process.
        run: a word unique to this gateway process: epochs of journals begin with it.
    """

    def __init__(self, own_identity: str, archive: Archive = _NO_ARCHIVE, run: str = "") -> None:
        self.own_identity = own_identity
        self._archive = archive
        self._run = run
        self._epochs = 0
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

    def restore(self, session: Session) -> None:
        """Register a session of an earlier gateway process; it is not live."""
        session.archive = self._archive
        session.restored = True
        self._enlist(session)
        self._put_by(session)

    def add(self, session: Session, home: AgentHandle) -> None:
        """Register a session that is live from now on."""
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
        """Unregister a session as live; its owner stays known."""
        self._leave(session)
        self._archive.keep(session)
        self._put_by(session)
        while self._past_count > REMEMBERED:
            # Evict from the owner with the most entries, so that no owner can push out another's.
            most = max(self._past, key=lambda owner: len(self._past[owner]))
            self._forget(next(iter(self._past[most])))

    def remove(self, session: Session) -> None:
        """Forget a session that does not exist any more."""
        self._leave(session)
        self._forget(session)

    def count_live(self, owner: str | None = None) -> int:
        """Return the number of live sessions, of one identity or of all."""
        return sum(map(len, self._live.values())) if owner is None else len(self._live.get(owner, ()))

    def count_waiting(self, owner: str | None = None) -> int:
        """Return the number of queued prompts, in the sessions of one identity or of all."""
        of_each = self._live.values() if owner is None else [self._live.get(owner, {})]
        return sum(len(session.queue) for sessions in of_each for session in sessions)

    def find(self, viewer: SessionScope, agent: str, session_id: str) -> Session | None:
        """Return the session of that id in this scope, a live one first.

        Returns None as well if several match for a guest: a counted id must not open another owner's session.
        """
        same = self._sessions.get((agent, session_id), [])
        if len(same) == 1:
            return same[0] if viewer.sees(same[0]) else None
        # Of several ended sessions, an agent that counts has only the last one still.
        seen = [session for session in same if viewer.sees(session) and (session.live or session is same[-1])]
        seen.sort(key=lambda session: not session.live)
        if viewer.guest and len({session.owner for session in seen if session.live}) > 1:
            return None
        return seen[0] if seen else None

    def live(self, viewer: SessionScope) -> list[Session]:
        """Return the live sessions in scope, in the order in which they became live.

        Takes no time for sessions of others or ended ones: observers may list often.
        """
        return self._seen(viewer, self._live)

    def past(self, viewer: SessionScope) -> list[Session]:
        """Return the sessions in scope that are not live, in the order in which they ended."""
        return self._seen(viewer, self._past)

    def _seen(self, viewer: SessionScope, by_owner: Mapping[str, dict[Session, None]]) -> list[Session]:
        if viewer.only is None:
            return [session for session in by_owner.get(viewer.identity, ()) if viewer.sees(session)]
        same_id = self._by_id.get(viewer.only, ())
        return [it for it in same_id if it in by_owner.get(it.owner, ()) and viewer.sees(it)]

    def known(self, agent: str, session_id: str) -> bool:
        """Return True if a session of that id was ever registered, for any owner."""
        return (agent, session_id) in self._sessions

    def may_exist(self, viewer: SessionScope, agent: str, session_id: str) -> bool:
        """Return True if an unregistered session would be in scope, should the agent have it."""
        if viewer.guest or (viewer.only is not None and viewer.only != session_id):
            return False
        if viewer.workspaces is not None:
            return False  # Its workspace is unknown here.
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
