"""State of one agent process: its clients, its sessions, and its open requests.

The modules that decide (`initialization`, `opening`, `turns`, `routing`) share this state and send through it:
`forward` gives a request to the agent under an id of the gateway, and the response goes to the handler named there;
`answer`, `respond` and `refuse` settle a request for its client, once.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from acp_gateway.acp.updates import Option
from acp_gateway.core import capabilities
from acp_gateway.core.agent_requests import AgentRequest, AgentRequests
from acp_gateway.core.capabilities import Abilities
from acp_gateway.core.mcp_servers import LIST_LENGTH, McpConnections, McpPolicy
from acp_gateway.core.output import AuditEvent, HookEvent, Outgoing
from acp_gateway.core.requests import EndedTurn, ErrorObject, ForwardedRequest, LostErrors, QueuedPrompt, TurnOutcome
from acp_gateway.core.sessions.own_meta import Rejoin
from acp_gateway.core.sessions.places import place_of
from acp_gateway.core.sessions.registry import Registry, Unopened
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Decision, Request, Session, SessionReach, Transit
from acp_gateway.core.sessions.sub_agents import SubAgents
from acp_gateway.core.states import AGENT_TRANSITIONS, AgentPhase, SessionState, moved
from acp_gateway.core.terminals import Terminals
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.cut_turns import cut_reason
from acp_gateway.core.turns.echoes import Echo
from acp_gateway.core.turns.ends import end_news
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.open_calls import ends_of_calls
from acp_gateway.core.turns.queued_prompts import queue_news
from acp_gateway.core.waiting import Event, Objection, Until, Waiting
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import gap
from acp_gateway.protocol.jsonrpc import ID_SIZE, Message, RawId
from acp_gateway.protocol.link_messages import Mark, acknowledgement
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.not_sent import name_prompt
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.pairs import Entry, Pair

JUST_LOST: Final = 5.0
"""Seconds after a disconnection before a `permission_waiting` hook fires: most networks are back by then."""

NEEDS_ACTION: Final = "requires_action"
"""State of an agent that waits for a person."""

_WITHOUT_REQUEST: Final[dict[str, Any]] = {
    "requestId": None,
    "method": NEEDS_ACTION,
    "tool": {"toolCallId": None, "title": None, "kind": None},
    "connected": 0,
}
"""Details for the `permission_waiting` hook of an agent that waits without a request."""

_R = TypeVar("_R", bound=ForwardedRequest)


@dataclass(frozen=True, slots=True)
class Policy:
    """The agent's configuration, and functions that need the gateway's machine."""

    shared: bool
    """True if the process serves several clients: it gets the gateway's own capabilities, and outlives each client."""
    serves: frozenset[Capability]
    """Client capabilities passed on to the agent; all others are masked."""
    login_hint: Callable[[list[dict[str, Any]]], str]
    """Returns how to log the agent in on the gateway's machine, given its authentication methods."""
    max_open_requests: int
    """Maximum number of unanswered requests of one peer, and of closed connections of one identity; each is remembered
    until its response."""
    queued_prompts_per_session: int
    """Maximum number of queued prompts of one session."""
    max_waiting_size: int
    """Maximum size of requests of one peer that are held here, in bytes."""
    journal_limit: int
    """Maximum size of a session's history, in bytes."""
    permission_timeout: float = math.inf
    """Seconds before an unanswered decision is rejected or cancelled."""
    mcp_servers: McpPolicy = "allow"
    """Policy for MCP servers that would run on the gateway's machine, or connect to it."""
    max_sessions: float = math.inf
    """Maximum number of live sessions of all agents."""
    sessions_per_identity: float = math.inf
    max_queued_prompts: float = math.inf
    """Maximum number of queued prompts of all sessions."""
    queued_prompts_per_identity: float = math.inf
    session_request_size: int = 256 * 1024
    """Bytes of a request other than a prompt whose params the gateway reads."""
    decision_size: int = 64 * 1024
    """Bytes of a client's response to a permission or an elicitation."""
    max_prompt_blocks: int = 1000
    """Content blocks of one prompt."""
    max_listed_sessions: int = 8000
    """Sessions on one page of an agent's response to `session/list`."""
    max_mcp_servers: int = LIST_LENGTH
    """MCP servers of one session."""
    max_additional_directories: int = 64
    """Directories of one session beside its `cwd`."""
    max_permission_options: int = 256
    """Options of one permission request."""
    initialize_response_size: int = 64 * 1024
    """Bytes of an agent's response to `initialize`."""
    version: str = "0"
    """Version of the gateway, for agents."""
    common: bool = False
    """True if the process serves several identities."""


class AgentState:
    """An agent process, its clients and its sessions."""

    def __init__(self, name: str, policy: Policy, registry: Registry) -> None:
        self.name = name
        """Name in the configuration."""
        self.policy = policy
        self.registry = registry
        self.out = Outgoing()
        self.terminals = Terminals()
        self.agent_requests = AgentRequests(self.out, self.terminals, policy.decision_size)
        """Open requests of the agent to its clients."""
        self.mcp_connections = McpConnections()
        self.clients: dict[Client, None] = {}
        """The earliest first."""
        self.live: dict[str, Session] = {}
        """Sessions that live in the process, by id."""
        self.phase = AgentPhase.ABSENT
        """Phase of the process, which `move_to` changes."""
        self.lost: LostErrors | None = None
        """Errors once there will not be another process."""
        self.abilities = Abilities()
        """Capabilities from the last `initialize`."""
        self.auth_methods: list[dict[str, Any]] = []
        """All authentication methods of the agent, including those hidden from clients."""
        self.open_requests: dict[int, ForwardedRequest] = {}
        """Requests that the agent has not answered, by the id at the agent."""
        self.openings: Counter[str] = Counter()
        """Number of those whose response will name a new session, by identity; none is 0."""
        self.sub_agents = SubAgents(self.live, self.clients, self.openings)
        self.waiting = Waiting()
        """Requests that the agent has not got yet."""
        # The prompts that waited when clients were last told of them, by session; none for an empty queue.
        self._told_queues: dict[Session, list[QueuedPrompt | None]] = {}
        self.loading_journals: dict[Session, None] = {}
        """Sessions whose journal is being read from the archive."""
        self.unopened = Unopened()
        """Sessions that the agent could not open."""
        self.needing: dict[Session, float] = {}
        """Sessions whose agent waits for a person, since when without a request; until the hook has fired."""
        self.surcharge = 0
        """Extra messages that expensive requests count as in rate limits, until they are charged."""
        self.cuts_turns = False
        """True once the agent is being stopped: a turn that ends as cancelled then is cut off."""
        self.now = 0.0
        """Seconds of the driver's clock."""
        self.wall_time: int | None = None
        """Milliseconds since 1970; None if the driver does not tell."""
        self._last_id = 0

    def move_to(self, phase: AgentPhase) -> None:
        """Change the phase of the process."""
        self.phase = moved(AGENT_TRANSITIONS, self.phase, phase)

    @property
    def never_reopens(self) -> bool:
        """True if the process is initialized and can't open sessions of an earlier one."""
        return self.phase is AgentPhase.READY and not self.abilities.reopens

    @property
    def abandoned(self) -> bool:
        """True if no client is connected, and no disconnected one has a turn or a queued prompt."""
        return not any(client.connected for client in self.clients) and not any(
            session.turns or session.queue for session in self.live.values() if not self._left(session)
        )

    def may_see_output(self, client: Client) -> bool:
        """Return True if a client may see the process's stderr: it may hold secrets of the owner.

        The same holds for the agent's account.
        """
        reach, policy = client.reach, self.policy
        # In a shared process, the output may be about another workspace.
        limited = reach.workspaces is not None and policy.shared
        return self.is_owned_by(client) and client.controls and not reach.guest and not limited

    def is_owned_by(self, client: Client) -> bool:
        """Return True if the process is that of a client's identity, or of the gateway's own user where it serves
        several.
        """
        return not self.policy.common or client.reach.identity == self.registry.own_identity

    def refuse_lost(self, request: Request, lost: LostErrors) -> None:
        """Refuse a request to an agent that has ended."""
        code, why, data = lost.with_output if self.may_see_output(request.client) else lost.for_all
        if request.queued is not None and request.agent_id is None:
            why = f"{why}; {name_prompt('this prompt has waited and was not sent', request.queued.text)}"
            data = {**(data or {}), "notSent": True}
        self.refuse(request, code, why, data)

    def _left(self, session: Session) -> bool:
        return all(client.gone for client in session.attached)

    def session_in_reach(self, client: Client, session_id: str | None) -> Session | None:
        """Return the session of this process that is in a client's reach."""
        session = None if session_id is None else self.live.get(session_id)
        return session if session is not None and client.reach.sees(session) else None

    def attached_session(self, client: Client, session_id: str | None) -> Session | None:
        """Return the session of this process that a client is attached to."""
        session = None if session_id is None else self.live.get(session_id)
        return session if session is not None and session in client.sessions else None

    def queued(self, session: Session) -> Sequence[Request]:
        """Return the prompts that wait for the end of a session's running turns."""
        return self.waiting.of(Until.TURN_FREE, session)

    def session_of_request(self, client: Client, request: Request) -> Session | None:
        """Return the session of a request if its client is attached; else refuse the request."""
        session = self.attached_session(client, request.message.session)
        if session is None:
            self.refuse_unknown(request, request.message.session)
        request.session = session
        return session

    def new_journal(self) -> Journal:
        """Return an empty journal with the configured limit."""
        return Journal(self.policy.journal_limit, self.registry.new_epoch())

    def new_session(self, session_id: str, reach: SessionReach) -> Session:
        """Return a new session of this agent, for a client with this reach."""
        session = Session(self.name, session_id, reach.identity, self.new_journal())
        session.account = reach.account
        return session

    def add_session(self, session: Session, state: SessionState, transit: Transit | None = None) -> None:
        """Add a session to this process, in this state; with what the agent is asked, if it has to answer first."""
        session.move_to(state, transit)
        self.unopened.forget(session)
        session.created_at = session.created_at or self.wall_time
        self.live[session.id] = session
        self.out.ids.set(session.id, session.agent_id)
        self.registry.add(session, self)

    def remove_session(self, session: Session) -> None:
        """Remove a session from this process."""
        self.sub_agents.removed(session)
        self.drop_echo(session)
        self.place_prompts(session)
        for request in session.turns:
            # Of the prompts that a turn has taken, the agent answers none.
            if request.agent_id is None and not request.is_answered:
                self.answer(request, b'{"stopReason":"cancelled"}')
        for client in list(session.attached):
            self.detach(session, client)
        session.turns.clear()
        session.unplaced.clear()
        session.forget_content()
        del self.live[session.id]
        self.out.ids.set(session.id, None)
        session.move_to(SessionState.PAST)
        self.registry.end(session)

    @property
    def carries(self) -> bool:
        """True if the agent speaks version 2: its messages carry the originals."""
        return self.out.carries

    def attach(self, session: Session, client: Client, *, hosts: bool, rejoin: Rejoin | None = None) -> None:
        """Attach a client to a session.

        Args:
            session: one that lives here.
            client: may be attached already.
            hosts: True if the client serves files and terminals for the session, where permitted.
            rejoin: the client's state from another link.
        """
        if client not in session.attached:
            self.notify(session, "attached", **describe_client(client))
            cut = cut_reason(session, rejoin)
            if cut is not None and client.wants_news:
                self._notify_clients([client], session, "turn_ended", {"stopReason": None, "reason": cut})
            if session.turns and client.wants_news:
                # It looks after its connection more often while a turn runs.
                by = next(iter(session.turns)).client
                about = {"running": True, **describe_client(None if by.gone else by)}
                self._notify_clients([client], session, "turn_started", about)
            if client.wants_queue and session.queue:
                self._notify_clients([client], session, "queue", queue_news(session.queue))
            self.introduce(session, client)
            self.out.audit("session_joined", client, session=session.id, agent=self.name, owner=session.owner)
            session.attached[client] = None
            client.sessions[session] = None
            session.note_change()
        if hosts and client.controls and not client.reach.guest and client.reach.identity == session.owner:
            former = session.host
            if client.offers or former is None or not former.offers:
                session.host = client
        self.send_position(session, [client])

    def send_position(self, session: Session, clients: Iterable[Client]) -> None:
        """Send the session's position to clients that count: counting alone would not lead them there."""
        for client in clients:
            if client.counts:
                self.out.mark(client, Mark(acknowledgement(0, {session.id: place_of(session)})))

    def send_echo(self, session: Session, echo: Echo[Request], chunk: Entry) -> None:
        """Send the agent's echo of a prompt to its sender: the others have the prompt already."""
        sender = echo.request.client
        # A client of version 2 has its prompt from its translator already.
        if sender in session.attached and sender.translator is None:
            self.out.client(sender, chunk, session)
            self.send_position(session, [sender])
        if echo.is_complete:
            session.echo = None

    def end_echo(self, session: Session) -> None:
        """Finish an incomplete echo: fan its chunks out as ordinary updates."""
        echo, session.echo = session.echo, None
        if echo is not None and echo.withheld:
            self.write_prompt(session, echo.request, echo.withheld)

    def drop_echo(self, session: Session) -> None:
        """End an incomplete echo with its agent process."""
        self.end_echo(session)
        session.echo = None

    def prompt_accepted(self, message: Message) -> None:
        """Tell the client of a prompt, if it speaks version 2 as well, that the agent has accepted it."""
        number = jsonrpc.id_number(RawId(lookup.param(message, "requestId") or b"null"))
        request = None if number is None else self.open_requests.get(number)
        if isinstance(request, Request) and (original := message.original) is not None:
            session, told = request.session, lookup.raw_at(original, "result", "messageId")
            if session is not None and self.name_prompt(session, request, told):
                self.write_prompt(session, request, session.unplaced.pop(request))
            translator = request.client.translator
            if translator is not None:
                self.out.put(request.client, translator.accepted(request.id, original))

    def name_prompt(self, session: Session, request: Request, told: bytes | None) -> bool:
        """Give a prompt that has no place yet the id, as JSON text, that the agent has told for it; return False if
        there is none, or if it is odd or very long."""
        chunks = session.unplaced.get(request)
        if chunks is None or told is None or told[:1] != b'"' or len(told) > SESSION_ID_SIZE:
            return False
        session.unplaced[request] = [updates.with_message_id(chunk, told) for chunk in chunks]
        return True

    def place_prompts(self, session: Session) -> None:
        """Write the prompts that an agent of version 2 has not accepted, and so not named: others must not overtake."""
        while session.unplaced:
            request = next(iter(session.unplaced))
            self.write_prompt(session, request, session.unplaced.pop(request))

    def write_prompt(self, session: Session, request: Request, chunks: Sequence[bytes]) -> None:
        """Write a prompt to the history, and show it to the clients that do not have it.

        If the agent speaks version 2, it shows the prompt itself to clients of that version.
        """
        sender = None if request.handed_over else request.client
        for position, chunk in enumerate(chunks, session.journal.position):
            entry = Pair(chunk) if self.carries else chunk
            session.write(entry, time=self.wall_time)
            self.out.update(session, entry, position, besides=sender)
        self.send_position(session, (client for client in session.attached if client is sender))

    def detach(self, session: Session, client: Client) -> None:
        self.out.audit("session_left", client, session=session.id, agent=self.name)
        session.attached.pop(client, None)
        session.note_change()
        client.sessions.pop(session, None)
        if client.translator is not None:
            self.out.put(client, client.translator.forget(session.id))
        # A connection bound to this session may join it again.
        client.joined = False
        if session.host is client:
            session.host = None
        self.agent_requests.detached(client, session)
        self.notify(session, "left", **describe_client(client))

    def forward(self, request: _R, then: Callable[[_R, Message], None], text: bytes | None = None) -> None:
        """Forward a request to the agent under an id of the gateway, with `text` in place of its own, if given."""
        self._last_id += 1
        self.sub_agents.note_request(request)
        self.expect(request, self._last_id, then)
        message = request.message
        if text is not None and text is not message.text:
            message = jsonrpc.parse(text)
        self.out.agent(jsonrpc.with_id(message, RawId(b"%d" % self._last_id), unique=True))
        if not methods.client_method(request.message.method).kept:
            request.set_text(b"")

    def expect(self, request: _R, agent_id: int, then: Callable[[_R, Message], None]) -> None:
        """Expect the response to a request that the agent has under this id."""
        request.agent_id, request.then = agent_id, then
        self.open_requests[agent_id] = request

    def client_gone(self, client: Client) -> None:
        """Drop what is kept for the responses to an expired client: all of a request that changes nothing here."""
        for number, request in list(self.open_requests.items()):
            if isinstance(request, Request) and request.client is client:
                if request.then == self.respond:
                    del self.open_requests[number]
                else:
                    request.forget_most()

    def receive_response(self, response: Message) -> None:
        number = jsonrpc.id_number(response.id)
        request = None if number is None else self.open_requests.pop(number, None)
        if request is None or request.then is None:
            self.out.log("dropped a response of the agent to no open request")
            return
        request.agent_id = None
        if methods.is_known(request.message.method) and not lookup.has_readable_result(response):
            why = f"the agent's answer has a result of more than {spans.MEMBERS} members"
            response = jsonrpc.parse(jsonrpc.error(response.id, jsonrpc.INTERNAL_ERROR, why))
        request.then(request, response)

    def receive_unreadable(self, text: bytes, why: str) -> None:
        """Handle an unreadable line of the agent. If it has a request's id, that request gets an error."""
        raw_id = jsonrpc.read_unreadable_id(text)
        if raw_id is not None:
            words = jsonrpc.error(raw_id, jsonrpc.INTERNAL_ERROR, f"the agent's answer can't be read: {why}")
            self.receive_response(jsonrpc.parse(words))

    def respond(self, request: Request, response: Message) -> None:
        """Send the agent's response to the client, under the client's id."""
        if response.error:
            explained = capabilities.explain_login(response.text, self.auth_methods, self.policy.login_hint)
            if explained is not response.text:
                response = jsonrpc.parse(explained)
        text, client, original = jsonrpc.with_id(response, request.id), request.client, response.original
        if original is not None and client.translator is not None:
            client.remove_request(request)
            original = jsonrpc.with_id(jsonrpc.parse(original), request.id)
            self.out.put(client, client.translator.answered(text, original), request.session)
            return
        self._deliver_answer(request, text)

    def give_notice(self, request: Request, session: Session) -> None:
        """Tell a client what was left out of the request that has opened its session, unless it only comes back."""
        notice = request.findings.notice
        if notice is not None and request.findings.rejoin is None:
            self.out.client(request.client, gap(session.id, notice), session)

    def answer(self, request: Request, result: bytes) -> None:
        """Answer a request with a result of the gateway, which is JSON text."""
        self._deliver_answer(request, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request.id, result))

    def fail(self, request: Request, why: str, data: dict[str, Any]) -> None:
        self.refuse(request, jsonrpc.INTERNAL_ERROR, why, data)

    def refuse(self, request: Request, code: int, why: str, data: dict[str, Any] | None = None) -> None:
        self._deliver_answer(request, jsonrpc.error(request.id, code, why, data))

    def _deliver_answer(self, request: Request, text: bytes) -> None:
        request.is_answered = True
        request.client.remove_request(request)
        self.out.client(request.client, text, request.session)

    def holds(self, request: Request, objection: Objection | None) -> bool:
        """Refuse a request, or let it wait; return False if there is no objection."""
        if isinstance(objection, Event):
            self.waiting.add(request, *objection)
        elif objection is not None:
            self.refuse(request, *objection)
        return objection is not None

    def refuse_unknown(self, request: Request, session_id: str | None) -> None:
        """Refuse a request for a session that does not exist for its client."""
        self.refuse(request, *self.unknown_session(request.client, session_id))

    def unknown_session(self, client: Client, session_id: str | None) -> ErrorObject:
        """Return the refusal for an unknown session, in the same words whether it exists or not.

        Only its owner learns why the agent could not open it.
        """
        why = f"no session {session_id!r:.80} is open on this connection"
        reason = self.unopened.reason(client, session_id)
        if reason is not None:
            why += f"; the agent could not open it: {reason}"
        elif not client.controls or client.reach.guest:
            why += "; observers and guests join what is open at this gateway, and open nothing"
        return ErrorObject(jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session_id})

    def limit_exceeded(self, message: Message, pending: int, size: int) -> str | None:
        """Return why a request exceeds the limits, given the number and bytes of open ones; None if it does not."""
        if len(message.id) > ID_SIZE:
            return f"has an id of more than {ID_SIZE} bytes"
        if pending >= self.policy.max_open_requests:
            return f"comes while max_open_requests ({self.policy.max_open_requests}) are not answered"
        if size and size + len(message.text) > self.policy.max_waiting_size:
            return f"comes while {size} bytes of others wait already (outbox_limit is {self.policy.max_waiting_size})"
        return None

    def too_many_abandoned(self, request: Request) -> str | None:
        """Return why too many requests of closed connections are open for a further request; None if it may pass.

        With an agent that does not answer, each new connection would add some. They count for each identity.
        """
        most = self.policy.max_open_requests
        if len(self.open_requests) < most or request.message.method == methods.INITIALIZE:
            return None
        account = request.client.reach.account
        abandoned = sum(
            isinstance(other, Request) and other.abandoned and other.client.reach.account == account
            for other in self.open_requests.values()
        )
        if abandoned < most:
            return None
        return f"comes while the agent has not answered max_open_requests ({most}) of closed connections"

    def notify(self, session: Session, event: str, **details: Any) -> None:
        """Notify the attached clients that asked for news of an event in a session."""
        listeners = [client for client in session.attached if client.wants_news]
        if listeners:
            self._notify_clients(listeners, session, event, details)

    def tell_queues(self) -> None:
        """Notify clients that asked for it of the prompts that wait, where these are others than before."""
        changed, self.waiting.changed_queues = self.waiting.changed_queues, {}
        for session in changed:
            now = [request.queued for request in session.queue]
            before = self._told_queues.pop(session, [])
            if now:
                self._told_queues[session] = now
            listeners = [client for client in session.attached if client.wants_queue]
            if listeners and now != before:
                self._notify_clients(listeners, session, "queue", queue_news(session.queue))

    def _notify_clients(self, listeners: list[Client], session: Session, event: str, details: dict[str, Any]) -> None:
        params = {"sessionId": session.id, "event": event, **details}
        self.out.clients(listeners, jsonrpc.notification(methods.NEWS, params))

    def report_decision(
        self, agent_request: AgentRequest, client: Client | None, decision: str, option: Option | None = None
    ) -> None:
        """Notify and audit a decision; with the selected option, if one was."""
        call, doubt = agent_request.tool_call, agent_request.doubt
        if agent_request.session is not None:
            news = {"method": agent_request.method, "toolCallId": call.tool_call_id, "decision": decision}
            self.notify(agent_request.session, "decided", **news, **describe_client(client))
        identity = None if client is None else client.reach.identity
        outcome = decision if option is None else option.name or decision
        # Another identity is not told who has cancelled it.
        shown_in = () if doubt is None or doubt.is_shared else doubt.sessions
        for session in shown_in if agent_request.session is None else [agent_request.session]:
            session.note_decision(agent_request.key, Decision(identity, outcome))
        name = "permission_decided" if agent_request.method == methods.REQUEST_PERMISSION else "elicitation_decided"
        named = agent_request.message.session if agent_request.session is None else agent_request.session.id
        about = {"session": named, "agent": self.name, "toolCallId": call.tool_call_id}
        about |= {"kind": call.tool_kind, "decision": decision}
        about["optionKind"] = None if option is None else option.kind
        self.out.effect(AuditEvent(name, client, about, self.now - agent_request.arrived_at))

    def fan_out_choice(self, session: Session, sender: Client, kind: str, update: bytes) -> None:
        """Fan out a choice of one client to the other clients of the session."""
        if self.live.get(session.id) is not session or session.state is SessionState.OPENING:
            return  # It was closed before the agent had answered.
        position = session.journal.position
        session.write(update, kind, self.wall_time)
        self.out.update(session, update, position, besides=sender)
        self.send_position(session, [sender] if sender in session.attached else ())

    def keep_title(self, session: Session, *, is_new: bool = False) -> None:
        """Tell clients the title that a user has given, after another one or if it `is_new`."""
        if self.live.get(session.id) is not session or session.state is SessionState.OPENING:
            return  # While it is being opened, the agent may still tell its own.
        update = updates.named_update(session, is_new=is_new)
        if update is not None:
            position = session.journal.position
            session.write(update, methods.INFO_UPDATE, self.wall_time)
            self.out.update(session, update, position)

    def introduce(self, session: Session, client: Client, unseen: Sequence[Entry] = ()) -> None:
        """Tell the translator of a client that attaches whether a turn runs.

        `unseen` are the last messages of the journal, if the client does not get them: what follows may continue one.
        """
        if client.translator is None:
            return
        client.translator.prime(session.id, unseen, session.journal.position - len(unseen))
        if session.turns:
            self.out.put(client, client.translator.turn_runs(session.id), session)

    def turn_began(self, session: Session, request: Request, chunks: int = 0) -> None:
        """Tell the translators of the session's clients that a turn begins.

        `chunks` is the number of messages in the journal that the prompt is about to become.
        """
        position = session.journal.position
        for client in session.attached:
            if client.translator is not None:
                own = request.id if request.client is client else None
                end = session.journal.position + chunks if own is not None and chunks else None
                self.out.put(client, client.translator.turn_began(session.id, own, position), session, end)

    def note_own_state(self, session: Session) -> None:
        """Note that an agent has told another state."""
        self.needing.pop(session, None)
        if session.own_state == NEEDS_ACTION:
            self.needing[session] = self.now

    def end_own_state(self, session: Session, why: str | None) -> None:
        """End the state that an agent has told, as its process can't; `why` is the reason for the clients, if any."""
        self.needing.pop(session, None)
        if not (session.own_state or session.background):
            return
        state = updates.idle_update(session)
        end = None if session.turns or why is None else updates.failed_state(session.id, why)
        position = session.journal.position
        update = Pair(state, end) if self.carries else state
        session.write(update, methods.INFO_UPDATE, self.wall_time)
        session.own_state, session.background = "", b""
        self.out.update(session, update, position)
        if not session.turns and why is not None:
            self.notify(session, "turn_ended", stopReason=None, reason=why)

    def end_calls(self, session: Session, *, cancelled: bool) -> None:
        """Tell that tool calls which the agent has left open in its last turn have failed."""
        for update in ends_of_calls(session.journal.running(), cancelled=cancelled, carries=self.carries):
            position = session.journal.position
            session.write(update, time=self.wall_time)
            self.out.update(session, update, position)

    def turn_ended(self, session: Session, began: float, outcome: TurnOutcome) -> None:
        """Notify subscribers that a turn, which began at this time, has ended, and queue the `turn_end` hook."""
        session.last_turn = EndedTurn(outcome, self.now - began, self.wall_time, self.now)
        session.note_change()
        reason, why = outcome.stop_reason, outcome.cut
        self.notify(session, "turn_ended", **end_news(outcome))
        for client in session.attached:
            if client.translator is not None:
                ended = client.translator.turn_ended(session.id, _failure(outcome), is_lost=why is not None)
                self.out.put(client, ended, session)
        connected = sum(client.connected for client in session.controllers())
        self.out.effect(
            HookEvent("turn_end", session, {"stopReason": reason, "seconds": self.now - began, "connected": connected})
        )

    def announce_waiting(self, agent_requests: Iterable[AgentRequest] | None = None) -> None:
        """Queue the `permission_waiting` hook, once per request that no connected controller can answer, for some of
        the open requests or all.

        The same for an agent that waits for a person without a request here.
        """
        for agent_request in self.agent_requests if agent_requests is None else agent_requests:
            session, clients = agent_request.session, list(agent_request.forwarded_ids)
            if session is not None:
                clients = [*session.attached]
            elif agent_request.doubt is not None and not agent_request.doubt.is_shared:
                session = next(iter(agent_request.doubt.sessions), None)
            if session is None or not agent_request.is_decision:
                continue
            if session in self.needing:
                # The request says it. Another state may follow its response.
                self.needing[session] = self.now
            if not agent_request.announced and self._are_absent(clients):
                agent_request.announced = True
                age = self.now - agent_request.arrived_at
                self.out.effect(HookEvent("permission_waiting", session, agent_request.describe(), age))
        for session, since in list(self.needing.items()):
            age = self.now - since
            if session.own_state != NEEDS_ACTION:
                del self.needing[session]
            elif age >= JUST_LOST and self._are_absent(session.attached):
                del self.needing[session]
                self.out.effect(HookEvent("permission_waiting", session, _WITHOUT_REQUEST, age))

    def _are_absent(self, clients: Iterable[Client]) -> bool:
        """Return True if no controller among the clients can answer: most links are resumed in a moment."""
        for client in clients:
            if client.controls and (client.connected or self.now - client.away_since < JUST_LOST):
                return False
        return True


def describe_client(client: Client | None) -> dict[str, Any]:
    """Return a client as other clients may see it."""
    if client is None:
        return {"by": None}
    return {"by": {"connection": client.name, "identity": client.reach.identity, "role": client.role.value}}


def _failure(outcome: TurnOutcome) -> bytes | None:
    """Return the error object of a turn that has failed or was cut off; None for any other."""
    if outcome.error is not None:
        return jsonrpc.encode({"code": outcome.error.code, "message": outcome.error.message})
    return None if outcome.cut is None else jsonrpc.encode({"code": jsonrpc.INTERNAL_ERROR, "message": outcome.cut})
