"""One ACP session, the clients attached to it, and their requests with what was found out about each.

A session is *live* while an agent process has it: `agent_handle`. Afterwards the registry keeps its owner and entry.
"""

import enum
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

from acp_gateway.core.requests import (
    DirectoryCheckResult,
    EndedTurn,
    ForwardedRequest,
    KeptPrompt,
    QueuedPrompt,
    TurnOutcome,
    Worktree,
)
from acp_gateway.core.sessions.archive import NO_ARCHIVE, Archive
from acp_gateway.core.sessions.own_meta import Rejoin
from acp_gateway.core.sessions.places import Cursors, place_of
from acp_gateway.core.states import (
    CLIENT_TRANSITIONS,
    IN_TRANSIT,
    PRESENCE_TRANSITIONS,
    SESSION_TRANSITIONS,
    ClientPhase,
    Presence,
    SessionState,
    moved,
)
from acp_gateway.core.turns.echoes import Echo
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.retelling import Retelling
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import IdKey, Message
from acp_gateway.protocol.methods import NEW, USER_CHUNK
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.pairs import Entry
from acp_gateway.versions.translator import Translator

SETUP_SIZE: Final = 1024 * 1024
"""Maximum size of the parameters kept for re-opening a session, in bytes; a list of MCP servers has a few thousand."""

MAX_DECISIONS: Final = 64
"""Maximum number of remembered decisions of a session: a browser that was busy for a moment missed a few."""

SESSION_ID_SIZE: Final = 1024
"""Maximum length of a session id, in characters; a UUID has 36, and each id is remembered and stored."""

LIST_TEXT_SIZE: Final = 4096
"""Maximum length of the title and the time of a session that are remembered and stored, in characters: of a longer one
the beginning. A list shows a line of it."""

SHORT: Final = 4096
"""Maximum size of a parameter kept until the response after its client has gone, in bytes: a directory, a name."""


class Role(enum.Enum):
    """Permissions of a client in the sessions that it is attached to."""

    CONTROLLER = "controller"
    OBSERVER = "observer"


@dataclass(frozen=True, slots=True)
class SessionReach:
    """The sessions that exist for a client."""

    identity: str
    only: str | None = None
    """The one session in reach; None for all sessions of the identity."""
    guest: bool = False
    """True if the token grants only `only`, independent of its owner."""
    granted_by: str | None = None
    """For a guest, the owner of the session once it was found. Another session of the same id is out of reach."""
    workspaces: tuple[str, ...] | None = None
    """Names of the workspaces where the client may open sessions; None for all."""
    since: int | None = None
    """For a guest, the time at which its token was made, in milliseconds since 1970; None if that is unknown."""
    below: str | None = None
    """The identity of another gateway that names this one and may not speak for it; None for one of its own right."""

    @property
    def account(self) -> str:
        """The identity for whose limits the client counts: names below another one cost nothing."""
        return self.identity if self.below is None else self.below

    @property
    def sees_all(self) -> bool:
        """True if all sessions of the identity are in reach, including those not registered yet."""
        return self.only is None and self.workspaces is None

    def sees(self, session: "Session") -> bool:
        """Return True if the session is in reach."""
        if self.only is not None and session.name != self.only:
            return False
        if self.guest and session.repeats_id and not (self.since or 0) >= (session.created_at or 0):
            return False  # It was invited to the earlier session of this id.
        if self.workspaces is not None and session.workspace not in self.workspaces:
            return False
        return self.granted_by in (None, session.owner) if self.guest else session.owner == self.identity


EDITOR: Final = "editor"
"""Kind of the clients that speak ACP themselves."""

_NOTHING: Final = frozenset[str]()
"""Shared by all clients: almost none has former links, and an empty set takes as much memory as a session's name."""


class Client:
    """A connection, as the core sees it. Most clients are idle, so empty collections are shared."""

    __slots__ = (
        "__weakref__",
        "_last_id",
        "away_since",
        "connected",
        "controls",
        "counts",
        "credential",
        "cursors",
        "decides",
        "former_links",
        "gone",
        "joined",
        "link",
        "name",
        "offers",
        "phase",
        "presence",
        "presence_time",
        "reach",
        "reads_journals",
        "replays",
        "requests",
        "role",
        "sender",
        "sessions",
        "translator",
        "via",
        "waiting_size",
        "wants_ends",
        "wants_news",
        "wants_queue",
        "wants_rules",
    )

    def __init__(
        self,
        name: str,
        reach: SessionReach,
        role: Role = Role.CONTROLLER,
        *,
        link: str | None = None,
        via: str = EDITOR,
        credential: str | None = None,
    ) -> None:
        self.name = name
        self.credential = credential
        """Name of the credential with which the rules end that it has written; None for the gateway's own user."""
        self.via = via
        """Kind of program that the client is, as others are shown it."""
        self.reach = reach
        self.sender = ""
        """Its principal, as the driver names it for prompts that outlive the client."""
        self.link = link
        """Name of the client's link, if it can be resumed; such a client counts the messages that it receives."""
        self.counts = link is not None
        """True if its position in its sessions is counted, by itself or for its cursors."""
        self.cursors: Cursors | None = None
        """Its cursors, if it asked for them."""
        self.former_links: frozenset[str] = _NOTHING
        """Names of earlier links, not resumed, from which this client has taken over prompts."""
        self.role = role
        self.controls = role is Role.CONTROLLER
        """True for a controller."""
        self.decides = self.controls
        """True for a controller that may answer questions."""
        self.presence = Presence.CONNECTED
        """State of the connection, which `become` changes."""
        self.connected = True
        """True while the connection is open."""
        self.gone = False
        """True if nothing can be sent to the client any more."""
        self.away_since = -math.inf
        """Time of the last loss of the connection, in seconds of the driver's clock."""
        self.presence_time: int | None = None
        """Time of the last change of the presence, in milliseconds since 1970."""
        self.phase = ClientPhase.NEW
        """Progress with `initialize`, which `move_to` changes."""
        self.translator: Translator[Any] | None = None
        """Translator for a client that speaks another version of the protocol than the agent; mostly None."""
        self.offers: frozenset[str] = _NOTHING
        """Requests of an agent for files and new terminals that the client offers to serve."""
        self.wants_news = False
        """True if the client asked for the gateway's own notifications."""
        self.wants_queue = False
        """True if it asked for those of prompts that wait, too."""
        self.wants_ends = False
        """True if it asked for the ends of turns in histories."""
        self.wants_rules = False
        """True if it asked for the rules that may be written with the answers to permissions."""
        self.reads_journals = False
        """True if it reads the updates of sessions from their journals, so that none is sent to it."""
        self.joined = False
        """True if the first `session/new` was answered with the session that the connection is bound to."""
        self.requests: dict[IdKey, Request] = {}
        """Requests of the client without a response yet."""
        self.replays: dict[Session, None] = {}
        """Sessions whose history is on its way to the client; the driver removes each when it has arrived."""
        self.sessions: dict[Session, None] = {}
        """Sessions that the client is attached to, the earliest first."""
        self.waiting_size = 0
        """Bytes of the client's requests whose text is still held here."""
        self._last_id = 0

    def __repr__(self) -> str:
        return f"Client({self.name})"

    def positions(self) -> dict[str, tuple[str, int]]:
        """Return the epoch and position of each attached session, up to the latest decision."""
        return {session.id: place_of(session) for session in self.sessions}

    def move_to(self, phase: ClientPhase) -> None:
        """Change the progress with `initialize`."""
        self.phase = moved(CLIENT_TRANSITIONS, self.phase, phase)

    def become(self, presence: Presence) -> None:
        """Change the state of the connection."""
        self.presence = moved(PRESENCE_TRANSITIONS, self.presence, presence)
        self.connected = presence is Presence.CONNECTED
        self.gone = presence is Presence.GONE

    def note_presence(self, time: int | None) -> None:
        """Note that it is away or back since this time, in each of its sessions."""
        self.presence_time = time
        for session in self.sessions:
            session.note_change()

    def add_request(self, request: "Request") -> None:
        """Register a request of the client."""
        self.requests[request.key] = request
        self.waiting_size += len(request.message.text)

    def remove_request(self, request: "Request") -> None:
        """Unregister a request that gets its response."""
        if self.requests.pop(request.key, None) is not None:
            self.waiting_size -= len(request.message.text)

    def mint_id(self) -> int:
        """Return an id for a request to this client, never used before."""
        self._last_id += 1
        return self._last_id

    def mint_above(self, last_id: int) -> None:
        """Skip the ids that were used over another link, up to this one."""
        self._last_id = max(self._last_id, last_id)


class ListEntry(NamedTuple):
    """Entry of a session in a list."""

    shown: tuple[str | None, ...]
    """The values that it was composed of."""
    text: bytes


class Decision(NamedTuple):
    """The end of an agent request that a user had to decide."""

    identity: str | None
    """Identity of the client that decided; None if none did in time."""
    outcome: str | None
    """Name of the selected option, or "cancelled" and other outcomes of the protocol, or "timeout"."""


class EndedPrompt(NamedTuple):
    """The response to a prompt, which its client may not have got."""

    identity: str
    response: bytes
    """With any id."""


class AgentHandle(Protocol):
    """The multiplexer of the process that a session lives in."""

    @property
    def abandoned(self) -> bool:
        """True if no client is connected, and none that may come back has a turn or a queued prompt."""

    def queued(self, session: "Session") -> "Sequence[Request]":
        """Return the prompts that wait for the end of a session's running turns."""

    def questions(self, session: "Session") -> int:
        """Return how many requests of the agent wait in a session for a person's decision."""

    def note_prompts(self, session: "Session") -> None:
        """Note that the kept prompts of a session have changed."""


class Request(ForwardedRequest):
    """A request of a client, from its arrival until its response."""

    __slots__ = (
        "_findings",
        "begun_at",
        "claim",
        "client",
        "early_result",
        "handed_over",
        "held",
        "held_link",
        "id",
        "is_answered",
        "is_cancelled",
        "is_new",
        "key",
        "queued",
        "session",
    )

    def __init__(self, client: Client, message: Message) -> None:
        super().__init__(message)
        self.client = client
        self.id = message.id
        """The id in the client's spelling."""
        self.key = jsonrpc.id_key(message.id)
        """Key of the id among those of its client."""
        self.session: Session | None = None
        """The session of the request, once known."""
        self._findings: Findings | None = None
        self.handed_over = False
        """True for a prompt whose client does not have its text, such as a gateway that was started again."""
        self.is_answered = False
        """True once its client has got a response."""
        self.is_cancelled = False
        """True once it is not to begin a turn any more, though the agent may have taken its text or run it already."""
        self.early_result: bytes | None = None
        """Result that the client gets when the turn begins, in place of its end, as JSON text."""
        self.claim: str | None = None
        """Word by which a prompt is found again after its link was lost; None for a client without such a link."""
        self.begun_at = 0
        """Position in the history of its session at which its turn has begun, once it runs."""
        self.queued: QueuedPrompt | None = None
        """Description of a prompt that has had to wait for the end of a turn."""
        self.is_new = False
        """True if its text may be of version 2, as the agent spoke that when it came."""
        self.held = 0
        """Number of lost links that had not sent it, and after which it has waited for another."""
        self.held_link: str | None = None
        """The last of these links."""

    @property
    def abandoned(self) -> bool:
        """True if its client has gone."""
        return self.client.gone

    @property
    def findings(self) -> "Findings":
        """Findings about a request for a session, the same ones however often it has to wait."""
        if self._findings is None:
            self._findings = Findings(self.message)
        return self._findings

    def replace(self, text: bytes) -> None:
        """Replace the message, under the same id."""
        self.client.waiting_size += len(text) - len(self.message.text)
        self.message = jsonrpc.parse(text)

    def set_text(self, text: bytes) -> None:
        self.client.waiting_size += len(text) - len(self.message.text)
        super().set_text(text)

    def forget_most(self) -> None:
        """Drop large parameters once the client has gone; short ones may be needed with the response."""
        message = self.message
        if len(message.text) > SHORT * 4:
            members = lookup.members_at(message.text, "params")
            params = {name: text for name, text in members.items() if len(text) <= SHORT}
            text = b'{"params":%b}' % jsonrpc.compose(params)
            self.message = Message(text, message.kind, message.id, message.method, session=message.session)


class DirectoryCheck:
    """Directories of a request, and the result of checking them.

    Args:
        request: the opening of a session.
        directories: `cwd` first, then the additional ones.
        fills: True if the request names no `cwd`, and gets one.
        chooses: True if that is the first workspace, as the session has none.
        worktree: the name of the working tree that it asks for, empty for any; False for none; None if it does not say.
    """

    def __init__(
        self,
        request: Request,
        directories: tuple[str, ...],
        *,
        fills: bool = False,
        chooses: bool = False,
        worktree: str | Literal[False] | None = False,
    ) -> None:
        self.request = request
        self.directories = directories
        self.fills = fills
        self.chooses = chooses
        self.worktree = worktree
        self.chosen: str | None = None
        """The `cwd` that was put into a request that names none, or gets a working tree."""
        self.result: DirectoryCheckResult | None = None
        """None until the check is done."""

    @property
    def directory(self) -> str | None:
        """The directory of the session, as far as it is known here."""
        if self.made is not None:
            return self.made.directory
        if not self.chooses:
            return next(iter(self.directories), None)
        return None if self.result is None or self.result.fallback is None else self.result.fallback.directory

    @property
    def made(self) -> Worktree | None:
        """The working tree that was made for the session."""
        return None if self.result is None else self.result.worktree


class Findings:
    """Findings about a request for a session, made before the agent gets it and kept while it waits."""

    __slots__ = ("directory_check", "notice", "rejoin", "returned_at")

    def __init__(self, message: Message) -> None:
        self.rejoin = Rejoin.read(message)
        """State of the client from another link."""
        self.returned_at: float | None = None
        """Time, by the driver's clock, since when it waits for another client to re-open its session."""
        self.directory_check: DirectoryCheck | None = None
        """Check of the directories that the request names, pending or done."""
        self.notice: str | None = None
        """Words for its client alone, after the response."""

    @property
    def workspace(self) -> str | None:
        """Workspace of the request's directory, as the directory check found it."""
        result = None if self.directory_check is None else self.directory_check.result
        return None if result is None else result.workspace

    @property
    def worktree(self) -> Worktree | None:
        """The working tree that was made for the session."""
        return None if self.directory_check is None else self.directory_check.made


_PROMPT: Final = USER_CHUNK.encode()


class Transit:
    """The opening or the closing of a session that an agent was asked for, until its response."""

    @property
    def recorded(self) -> Journal | None:
        """Updates that the agent has sent since it was asked, where they are not in the history."""
        return None

    def takes(self, _update: Message, _state: str | None) -> bool:
        """Take an update of the agent, `state` as in `Journal.append`; return False to have it handled as always."""
        return False


class Session:
    """A session: its clients, its open requests, and its history for late joiners."""

    def __init__(self, agent: str, session_id: str, owner: str, journal: Journal) -> None:
        # Never changed.
        self.agent = agent
        """Name of the agent in the configuration. Ids are unique within one agent's sessions at most."""
        self.id = session_id
        self.owner = owner
        """An identity."""
        # Changed by the registry.
        self.aside = ""
        """Suffix of a name of its own, once the agent has given the id to another session: it can only be read."""
        self.repeats_id = False
        """True if an earlier session had its id."""
        self.agent_id: str | None = None
        """Its id at the agent, if that is another one: the session was made again."""
        self.archive: Archive[Session] = NO_ARCHIVE
        """Archive of the registry, once registered."""
        self.agent_handle: AgentHandle | None = None
        self.archived = False
        """True if a user has put the session away. It can be opened as any other one, and a prompt takes it back."""
        # The process that has it: changed by openings and closings, and as clients come and go.
        self.account = owner
        """The identity for whose limits it counts while it is live."""
        self.state = SessionState.PAST
        """State at the agent process, which `move_to` changes."""
        self.transit: Transit | None = None
        """Opening or closing that the agent was asked for, until its response, for which further requests wait."""
        self.process_exited = False
        """True if the agent process has ended by itself while it had the session."""
        self.host: Client | None = None
        """The owner's connection that created or last loaded the session: it serves files and terminals. One that
        offers these goes before others."""
        self.attached: dict[Client, None] = {}
        """Attached clients, the earliest first."""
        self.setup: dict[str, bytes] = {}
        """Parameters of opening the session, for re-opening it, as JSON text. They hold secrets."""
        self.result: dict[str, bytes] = {}
        """Result of opening the session, without its id (modes, models, configuration), by member, as JSON text."""
        self.retelling: Retelling | None = None
        """The history that the agent may tell again after it has opened the session, until it says something else, or
        the first prompt comes."""
        # Its turns: changed by prompts, their ends, and updates of the agent.
        self.turns: dict[Request, float] = {}
        """Prompts that the agent works on, with the start time of each turn."""
        self.unplaced: dict[Request, list[bytes]] = {}
        """Prompts that an agent of version 2 has not accepted, so that they have no place in the history yet, with the
        updates for the other clients."""
        self.echo: Echo[Request] | None = None
        """Expected echo of the latest prompt, until the agent sends something else in that turn."""
        self.own_state = ""
        """State of the agent where turns do not say it: `running` without a prompt, or `requires_action`; else empty.
        Agents of version 2 tell it."""
        self.background = b""
        """Work of an agent of version 2 in the background, as a JSON array; empty if there is none."""
        self.last_turn: EndedTurn | None = None
        """End of the last turn in this gateway process."""
        self.cut: str | None = None
        """Reason why the last turn was cut off, if the session was re-opened after that."""
        self.ended: dict[str, EndedPrompt] = {}
        """The last responses to prompts, by the claims of these: see `lost_prompts`."""
        self.kept: dict[str, KeptPrompt] = {}
        """Prompts that wait without a request, by key: for a time, or for a person. The registry changes them."""
        self.limited_until: int | None = None
        """End of the limit that the agent has named last, in milliseconds since 1970."""
        self.decisions: dict[str, Decision] = {}
        """The last `MAX_DECISIONS` decisions, by the key of the agent request."""
        self.spent = Counter[str]()
        """Costs in millionths by currency, and numbers of tokens and turns, as the archive counts them."""
        # Its history: changed by updates, and as it is stored and read.
        self.journal = journal
        self.journal_loaded = False
        """True if the journal of a session that is not live was read from the archive, as far as there is one."""
        self.awaited = 0
        """Number of agent processes that open the session as soon as its journal is read."""
        self.may_lack_end = False
        """True if the gateway was killed while it had the session open: the journal may lack the last messages. Where
        nothing is lost, it says so in vain; but a mark of running turns would let each prompt wait for the disk."""
        self.restored = False
        """True if an earlier gateway process had the session, and the end of its last turn is unknown."""
        # Its entry in lists: changed by openings, updates, and users.
        self.cwd: str | None = None
        self.workspace: str | None = None
        """Name of the session's workspace, where known."""
        self.made: Worktree | None = None
        """The working tree that this gateway process has made for it."""
        self.title: str | None = None
        self.is_named = False
        """True if a user has given the title: the agent does not replace it."""
        self.updated_at: str | None = None
        """Time of the last change in the agent's words."""
        self.created_at: int | None = None
        """Time at which the gateway has first known the session, in milliseconds since 1970."""
        self.active_at: int | None = None
        """Time of the last update, in milliseconds since 1970; of the last use if no update has a time."""
        self.listed: ListEntry | None = None
        """Entry in the last list."""

    def __repr__(self) -> str:
        return f"Session({self.agent} {self.id!r:.80})"

    @property
    def name(self) -> str:
        """Its name: the id, unless the agent has given that to another session."""
        return self.id + self.aside

    def move_to(self, state: SessionState, transit: Transit | None = None) -> None:
        """Change the state at the agent process; with what it was asked, if it has to answer first."""
        self.state, self.transit = moved(SESSION_TRANSITIONS, self.state, state), transit
        assert (transit is not None) == (state in IN_TRANSIT)
        if state is SessionState.OPENING:
            self.archive.meter(self, "opened")
        has_no_agent = state in (SessionState.DORMANT, SessionState.PAST)
        self.process_exited = self.process_exited and has_no_agent
        self.own_state, self.background = ("", b"") if has_no_agent else (self.own_state, self.background)
        self.archive.note_change(self)

    @property
    def counts_as_open(self) -> bool:
        """True if the archive may lack the end of the journal, should the gateway be killed now."""
        return self.live or self.awaited > 0 or self.may_lack_end

    @property
    def live(self) -> bool:
        """True if an agent process has the session or re-opens it."""
        return self.agent_handle is not None

    @property
    def is_unprompted(self) -> bool:
        """True if it had no prompt yet, by its history here."""
        journal = self.journal
        is_whole = bool(journal.epoch) and not journal.truncated and not journal.start
        has_turns = bool(self.turns or journal.ends())
        return is_whole and not has_turns and not any(_PROMPT in text for text in journal.messages(0, journal.position))

    @property
    def queue(self) -> "Sequence[Request]":
        """Prompts that wait for the end of the running turns."""
        return () if self.agent_handle is None else self.agent_handle.queued(self)

    @property
    def shown_prompts(self) -> list[QueuedPrompt]:
        """All prompts that wait, as clients are shown them: those for the end of a turn first."""
        queued = [request.queued for request in self.queue if request.queued is not None]
        return [*queued, *(kept.shown for kept in self.kept.values())]

    @property
    def journals(self) -> tuple[Journal, ...]:
        """Its history, and what its agent has told since it was asked to open it."""
        recorded = None if self.transit is None else self.transit.recorded
        return (self.journal,) if recorded is None else (self.journal, recorded)

    def controllers(self) -> Iterator[Client]:
        """Yield the attached controllers."""
        return (client for client in self.attached if client.controls)

    def write(self, message: Entry, state: str | None = None, time: int | None = None) -> None:
        """Append an update to the journal and the archive; `state` and `time` as in `Journal.append`."""
        self.active_at = time or self.active_at
        self.journal.append(message, state, time)
        self.archive.write(self, message, state, time)

    def extend(self, messages: Sequence[Entry], time: int | None = None) -> None:
        """Append updates without state to the journal and the archive; `time` as in `Journal.append`."""
        self.active_at = time or self.active_at
        self.journal.extend(messages, time)
        self.archive.extend(self, messages, time)

    def note_change(self) -> None:
        """Tell the archive of a change that is not stored."""
        self.archive.note_change(self)

    def note_decision(self, key: str, decision: Decision) -> None:
        """Remember how an agent request was decided, which is a change as that is closed."""
        self.decisions[key] = decision
        while len(self.decisions) > MAX_DECISIONS:
            del self.decisions[next(iter(self.decisions))]

    def write_end(self, outcome: TurnOutcome, time: int | None = None) -> None:
        """Write how a turn has ended; `time` as in `Journal.note_end`. The archive has it with what comes next."""
        self.journal.note_end(outcome, time)
        for client in self.attached:
            if client.cursors is not None:
                client.cursors.end_told(self.id, self.journal.ends_here)

    def end_turn(self) -> None:
        """Record that no turn runs any more."""
        self.journal.turn_ended()
        self.archive.end_turn(self)

    def take_journal(self, journal: Journal) -> None:
        """Replace the journal. Clients can't prove a position in the former one any more, and are told so."""
        self.journal = journal
        self.may_lack_end = False
        self.archive.replace(self)

    def expect_retelling(self) -> None:
        """Expect that the agent tells the history again: some replay it after their response, or in a fork."""
        self.retelling = Retelling(self.id, self.journal) if self.journal.position else None

    def keep_setup(self, request: Message) -> None:
        """Keep the parameters of opening the session; of more than `SETUP_SIZE` bytes only `cwd`."""
        params = {name: bytes(raw) for name, raw in lookup.params_of(request).items() if name != "sessionId"}
        huge = sum(map(len, params.values())) > SETUP_SIZE
        self.setup = {name: value for name, value in params.items() if name == "cwd" or not huge}
        self.cwd = lookup.text_param(request, "cwd") or self.cwd

    def opening_request(self, method: str) -> Message:
        """Compose the gateway's own request to open the session, or to make it again, with its parameters."""
        named = {} if method == NEW else {"sessionId": jsonrpc.encode(self.id)}
        params = jsonrpc.compose({"mcpServers": b"[]", **self.setup, **named})
        return jsonrpc.parse(b'{"jsonrpc":"2.0","id":0,"method":%b,"params":%b}' % (jsonrpc.encode(method), params))

    def keep_directory(self) -> None:
        """Keep the directory alone for re-opening: the other parameters are lost with the earlier gateway process."""
        if self.cwd is not None:
            self.setup = {"cwd": jsonrpc.encode(self.cwd)}

    def forget_content(self) -> None:
        """Keep only the entry for lists and the directory for re-opening; drop the history."""
        self.archive.finish_journal(self)
        self.journal.clear()
        self.journal_loaded = False
        self.retelling = self.host = None
        self.setup = {name: value for name, value in self.setup.items() if name == "cwd"}
        self.result = {}

    def keep_result(self, response: Message) -> None:
        """Keep the agent's result of opening the session."""
        self.result = {}
        self.merge_result(response)

    def merge_result(self, response: Message) -> None:
        """Merge the agent's result of re-opening the session."""
        result = lookup.members_at(response.text, "result")
        self.result |= {name: text for name, text in result.items() if name != "sessionId"}
