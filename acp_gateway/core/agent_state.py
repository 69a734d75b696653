"""One agent process as the core sees it: its clients, its sessions, what it was asked, and how it is answered.

The modules that decide (`lifecycle`, `openings`, `turns`, `routing`) share this state and speak to both sides through
it: `forward` gives a request to the agent under an id of the gateway's, and the response comes back to the function
that was named then; `answer`, `respond` and `refuse` settle it for its client, once.
"""

import enum
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from acp_gateway.core import capabilities
from acp_gateway.core.agent_requests import AgentRequest, AgentRequests
from acp_gateway.core.capabilities import Abilities
from acp_gateway.core.cut_turns import cut_turn
from acp_gateway.core.journal import Journal
from acp_gateway.core.mcp_servers import McpPolicy
from acp_gateway.core.output import HookEvent, Outgoing
from acp_gateway.core.sessions import SESSION_ID_SIZE, Client, DirectoryCheck, Registry, Request, Session, State
from acp_gateway.core.terminals import Terminals
from acp_gateway.core.unopened import Unopened
from acp_gateway.protocol import jsonrpc, methods, spans
from acp_gateway.protocol.jsonrpc import ID_SIZE, Message, RawId
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.outbox import Mark, acknowledgement

if TYPE_CHECKING:
    from acp_gateway.core.rejoining import Rejoin

JUST_LOST: Final = 5.0
"""Seconds after a loss in which nobody is told elsewhere of what waits: most networks are back by then."""

Refusal: TypeAlias = tuple[int, str, dict[str, Any] | None]
"""The code, the words and the data of an error."""

Then: TypeAlias = Callable[[Request, Message], None]
"""What to do with the agent's response to a request."""


class AgentPhase(enum.Enum):
    """How far the agent process is."""

    ABSENT = enum.auto()
    STARTING = enum.auto()
    """`initialize` is on its way."""
    READY = enum.auto()
    LOST = enum.auto()
    """It has ended and will not be started again."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says, and what only the gateway's machine can tell."""

    shared: bool
    """Whether the process is for several clients: it gets the gateway's own capabilities, and outlives each client."""
    serves: frozenset[Capability]
    """What clients may do for the agent; all else is masked."""
    login_hint: Callable[[list[dict[str, Any]]], str]
    """Given the agent's authentication methods, says how to log it in on the gateway's machine."""
    max_open_requests: int
    """Requests of one side that may wait for the other's answer; each is remembered until it comes."""
    queued_prompts_per_session: int
    """Prompts of one session that may wait for the end of a turn."""
    max_waiting_size: int
    """Bytes of requests of one side that are held here, because the other can't have them yet or for the answer."""
    journal_limit: int
    """Bytes of a session's history that are kept."""
    permission_timeout: float = math.inf
    """Seconds after which a decision that nobody takes counts as cancelled."""
    mcp_servers: McpPolicy = "allow"
    """What becomes of tool servers that would run on the gateway's machine, or mean it."""
    max_sessions: float = math.inf
    """Sessions of all agents that may be live at a time."""
    sessions_per_identity: float = math.inf
    max_queued_prompts: float = math.inf
    """Prompts of all sessions that may wait for the end of a turn."""
    queued_prompts_per_identity: float = math.inf
    version: str = "0"
    """The gateway's, for agents."""
    common: bool = False
    """Whether the process is for clients of several identities."""


class AgentState:
    """An agent process, its clients and its sessions."""

    def __init__(self, agent: str, policy: Policy, registry: Registry) -> None:
        self.agent = agent
        """Its name in the configuration."""
        self.policy = policy
        self.registry = registry
        self.out = Outgoing()
        self.questions = AgentRequests(self.out)
        """What it has asked of its clients."""
        self.terminals = Terminals()
        self.clients: dict[Client, None] = {}
        """The earliest first."""
        self.live: dict[str, Session] = {}
        """The sessions that live in it, by id."""
        self.stage = AgentPhase.ABSENT
        self.lost: tuple[Refusal, Refusal] | None = None
        """Why there will not be another process: for all clients, and for those that may see its output."""
        self.abilities = Abilities()
        """What the agent can do, as it said when it was last initialized."""
        self.auth_methods: list[dict[str, Any]] = []
        """What it said about logging in, before any of it was removed."""
        self.asked: dict[int, Request] = {}
        """What it has and has not answered, by the id that it got."""
        self.held: list[Request] = []
        """What was asked of it while it has to be started again first."""
        self.loading_journals: dict[Session, list[Request]] = {}
        """What waits until the journal of a session was read from the archive."""
        self.returned: dict[str, list[Request]] = {}
        """What waits until somebody has opened a session again who may, by its id."""
        self.checking_directories: dict[Request, DirectoryCheck] = {}
        """What waits until somebody has looked at the directories that it names."""
        self.unopened = Unopened()
        """The sessions that it could not open."""
        self.surcharge = 0
        """As how many messages dear requests count besides their own one each, until somebody is charged for it."""
        self.now = 0.0
        """Seconds, by the driver's clock."""
        self._last_id = 0

    @property
    def abandoned(self) -> bool:
        """Whether no client is connected, nor at work here while it is away."""
        return not any(client.connected for client in self.clients) and not any(
            session.turns or session.queue for session in self.live.values() if not self._left(session)
        )

    def may_see_output(self, client: Client) -> bool:
        """Whether a client may see what the process writes apart from messages: secrets of its owner may be in it.

        The owner of one for several identities is the gateway's own user.
        """
        viewer, policy = client.viewer, self.policy
        owns = not policy.common or viewer.identity == self.registry.own_identity
        # Where others' sessions are in the process, what it writes may be about another workspace.
        return owns and client.controls and not viewer.guest and (viewer.workspaces is None or not policy.shared)

    def _left(self, session: Session) -> bool:
        return all(client.gone for client in session.attached)

    def seen(self, client: Client, session_id: str | None) -> Session | None:
        """The session of this process that exists for a client."""
        session = None if session_id is None else self.live.get(session_id)
        return session if session is not None and client.viewer.sees(session) else None

    def attached(self, client: Client, session_id: str | None) -> Session | None:
        """The session of this process that a client takes part in."""
        session = None if session_id is None else self.live.get(session_id)
        return session if session is not None and session in client.sessions else None

    def queue_for(self, client: Client, request: Request) -> list[Request] | None:
        """Where what a client asks has to wait now, if it has to: its requests reach the agent in order."""
        session_id = request.message.session
        # What it has asked since then does not count: this one may have waited already, for something else.
        for earlier in client.requests.values() if self.checking_directories else ():
            if earlier is request:
                break
            if earlier in self.checking_directories:
                return self.checking_directories[earlier].behind
        for session, waiting in self.loading_journals.items():
            if session.id == session_id and any(other.client is client for other in waiting):
                return waiting
        seen = self.seen(client, session_id)
        return seen.held if seen is not None and seen.in_transit else None

    def of_request(self, client: Client, request: Request) -> Session | None:
        """The session that a request is about, if its client is attached to it; else it is refused."""
        session = self.attached(client, request.message.session)
        if session is None:
            self.refuse_unknown(request, request.message.session)
        request.session = session
        return session

    def new_journal(self) -> Journal:
        """A journal within the configured limit."""
        return Journal(self.policy.journal_limit, self.registry.new_epoch())

    def new_session(self, session_id: str, owner: str) -> Session:
        """A session of this agent that nobody knows of yet."""
        return Session(self.agent, session_id, owner, self.new_journal())

    def enter(self, session: Session) -> None:
        """A session lives in this process from now on."""
        self.unopened.forget(session)
        self.live[session.id] = session
        self.registry.add(session, self)

    def drop(self, session: Session) -> None:
        """A session does not live in this process any more."""
        self.end_echo(session)
        for client in list(session.attached):
            self.detach(session, client)
        session.turns.clear()
        session.forget_content()
        del self.live[session.id]
        self.registry.end(session)

    def take_part(self, session: Session, client: Client, *, hosts: bool, returning: "Rejoin | None" = None) -> None:
        """A client is attached to a session from now on.

        Args:
            session: one that lives here.
            client: may be attached already.
            hosts: whether its machine serves files and terminals for the session, where it may.
            returning: what it says of its time on another link.
        """
        if client not in session.attached:
            self.tell(session, "attached", **who(client))
            cut = cut_turn(session, returning)
            if cut is not None and client.wants_news:
                self._tell([client], session, "turn_ended", {"stopReason": None, "reason": cut})
            self.out.audit_event("session_joined", client, session=session.id, agent=self.agent, owner=session.owner)
            session.attached[client] = None
            client.sessions[session] = None
        if hosts and client.controls and not client.viewer.guest and client.viewer.identity == session.owner:
            session.host = client
        self.mark(session, [client])

    def mark(self, session: Session, clients: Iterable[Client]) -> None:
        """Tell clients that count where in a session they are: counting alone would not lead them there."""
        for client in clients:
            if client.counts and len(session.id) <= SESSION_ID_SIZE:
                position = session.journal.epoch, session.journal.position
                self.out.client(client, Mark(acknowledgement(0, {session.id: position})))

    def tell_echo(self, session: Session, chunk: bytes) -> None:
        """Tell the sender of a prompt what the agent says again of it: the others know it."""
        assert session.echo is not None
        sender = session.echo.request.client
        if sender in session.attached:
            self.out.client(sender, chunk)
            self.mark(session, [sender])
        if session.echo.over:
            session.echo = None

    def end_echo(self, session: Session) -> None:
        """The agent does not go on with an echo: what is none after all, the others are told now."""
        echo, session.echo = session.echo, None
        if echo is None or not echo.withheld:
            return
        sender = echo.request.client
        for chunk in echo.withheld:
            session.write(chunk)
            self.out.clients((client for client in session.attached if client is not sender), chunk)
        self.mark(session, (client for client in session.attached if client is sender))

    def detach(self, session: Session, client: Client) -> None:
        self.out.audit_event("session_left", client, session=session.id, agent=self.agent)
        session.attached.pop(client, None)
        client.sessions.pop(session, None)
        # If it came for this one, it may come for it again.
        client.joined = False
        if session.host is client:
            session.host = None
        self.questions.detached(client, session)
        self.tell(session, "left", **who(client))

    def forward(self, request: Request, then: Then, text: bytes | None = None) -> None:
        """Give a request to the agent, under an id of the gateway's; `text` in place of its own, if any."""
        self._last_id += 1
        request.agent_id = self._last_id
        request.then = then
        self.asked[self._last_id] = request
        message = request.message if text is None else jsonrpc.parse(text)
        self.out.agent(jsonrpc.with_id(message, RawId(b"%d" % self._last_id), unique=True))
        if not methods.client_method(request.message.method).kept:
            request.forget_text()

    def receive_response(self, response: Message) -> None:
        number = jsonrpc.id_number(response.id)
        request = None if number is None else self.asked.pop(number, None)
        if request is None or request.then is None:
            self.out.note("dropped a response of the agent that nobody waits for")
            return
        request.agent_id = None
        if methods.is_known(request.message.method) and not jsonrpc.has_readable_result(response):
            why = f"the agent's answer has a result of more than {spans.MEMBERS} members"
            response = jsonrpc.parse(jsonrpc.error(response.id, jsonrpc.INTERNAL_ERROR, why))
        request.then(request, response)

    def receive_unreadable(self, text: bytes, why: str) -> None:
        """The agent has written what is no message. If it was to be an answer, whoever waits for it gets an error."""
        raw_id = jsonrpc.read_unreadable_id(text)
        if raw_id is not None:
            words = jsonrpc.error(raw_id, jsonrpc.INTERNAL_ERROR, f"the agent's answer can't be read: {why}")
            self.receive_response(jsonrpc.parse(words))

    def respond(self, request: Request, response: Message) -> None:
        """Pass the agent's response on, under the id that the client knows."""
        if request.client is not None:
            text = response.text
            if response.error:
                text = capabilities.explain_login(text, self.auth_methods, self.policy.login_hint)
                response = jsonrpc.parse(text)
            self._deliver_answer(request, jsonrpc.with_id(response, request.id))

    def answer(self, request: Request, result: bytes) -> None:
        """Answer a request with a result of the gateway's own, which is JSON text."""
        self._deliver_answer(request, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request.id, result))

    def fail(self, request: Request, why: str, data: dict[str, Any]) -> None:
        self.refuse(request, jsonrpc.INTERNAL_ERROR, why, data)

    def refuse(self, request: Request, code: int, why: str, data: dict[str, Any] | None = None) -> None:
        self._deliver_answer(request, jsonrpc.error(request.id, code, why, data))

    def _deliver_answer(self, request: Request, text: bytes) -> None:
        client = request.client
        if client is not None:
            client.settle(request)
            self.out.client(client, text)

    def refuse_unknown(self, request: Request, session_id: str | None) -> None:
        """Whether there is such a session or not: whoever may not see it learns nothing from this.

        Whose session it is learns why the agent could not open it.
        """
        why = f"no session {session_id!r:.80} is open on this connection"
        reason = self.unopened.reason(request.client, session_id)
        if reason is not None:
            why += f"; the agent could not open it: {reason}"
        self.refuse(request, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session_id})

    def too_much(self, message: Message, pending: int, size: int) -> str | None:
        """Why a request can't be remembered besides those that are open, so many and of so many bytes."""
        if len(message.id) > ID_SIZE:
            return f"has an id of more than {ID_SIZE} bytes"
        if pending >= self.policy.max_open_requests:
            return f"comes while max_open_requests ({self.policy.max_open_requests}) are not answered"
        if size and size + len(message.text) > self.policy.max_waiting_size:
            return f"comes while {size} bytes of others wait already (outbox_limit is {self.policy.max_waiting_size})"
        return None

    def tell(self, session: Session, event: str, **details: Any) -> None:
        """Tell those who asked for it what happens around a session."""
        self._tell([client for client in session.attached if client.wants_news], session, event, details)

    def _tell(self, listeners: list[Client], session: Session, event: str, details: dict[str, Any]) -> None:
        if listeners:
            params = {"sessionId": session.id, "event": event, **details}
            self.out.clients(listeners, jsonrpc.notification(methods.NEWS, params))

    def tell_decision(
        self, question: AgentRequest, client: Client | None, decision: str | None, *, chosen: str | None = None
    ) -> None:
        """Tell how something was decided; `chosen` is the option, where it was one: its id may be any word."""
        call = jsonrpc.text_param(question.message, "toolCall", "toolCallId")
        if question.session is not None:
            about = {"method": question.method, "toolCallId": call, "decision": decision}
            self.tell(question.session, "decided", **about, **who(client))
        name = "permission_decided" if question.method == methods.REQUEST_PERMISSION else "elicitation_decided"
        kind = jsonrpc.text_param(question.message, "toolCall", "kind")
        session = question.message.session if question.session is None else question.session.id
        self.out.audit_event(
            name,
            client,
            session=session,
            agent=self.agent,
            toolCallId=call,
            kind=kind,
            decision=decision,
            optionKind=None if chosen is None else question.kind_of(chosen),
        )

    def tell_others(self, request: Request, kind: str, update: bytes) -> None:
        """Tell the others of a session what one of them has chosen."""
        session = request.session
        assert session is not None
        if self.live.get(session.id) is not session or session.state is State.OPENING:
            return  # It was closed before the agent had answered.
        session.write(update, kind)
        self.out.clients((client for client in session.attached if client is not request.client), update)
        self.mark(session, (client for client in session.attached if client is request.client))

    def turn_ended(self, session: Session, began: float, reason: str | None, why: str | None = None) -> None:
        """A turn is over: those who look on hear of it, and so does a person who doesn't.

        Args:
            session: the turn's.
            began: when it did.
            reason: the agent's.
            why: a word for what has ended it in the agent's place.
        """
        self.tell(session, "turn_ended", stopReason=reason, **({} if why is None else {"reason": why}))
        connected = sum(client.connected for client in session.controllers())
        self.out.event(
            HookEvent("turn_end", session, {"stopReason": reason, "seconds": self.now - began, "connected": connected})
        )

    def announce_waiting(self) -> None:
        """Tell a person of decisions that nobody is there to take, of each once."""
        for question in self.questions:
            session = question.session
            if session is None or question.announced or not question.is_decision:
                continue
            if not any(self._may_look(client) for client in session.controllers()):
                question.announced = True
                self.out.event(HookEvent("permission_waiting", session, question.describe(), self.now - question.since))

    def _may_look(self, client: Client) -> bool:
        """Whether somebody is there, or has only just been lost: many a link is back in a moment."""
        return client.connected or self.now - client.away_since < JUST_LOST


def who(client: Client | None) -> dict[str, Any]:
    """A client as others may know it."""
    if client is None:
        return {"by": None}
    return {"by": {"connection": client.name, "identity": client.viewer.identity, "role": client.role.value}}
