"""Routing of an agent's own messages: updates, notifications, and requests for its clients.

Each is routed by the session that it names, to the clients attached there. Agents also name sessions that no client
opened: those of sub-agents, and new ones whose `session/new` is not answered yet. The former belong to their parent
session, if that is known, else to the only session with a running turn; the latter wait for the response. A request
without a certain session is held, and routed again after each change: it is never forwarded to a client of another
owner, and never dropped.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from acp_gateway.core import access_rules, mcp_servers
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions.preconditions import PATH_LENGTH
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.states import ClientPhase, SessionState
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Kind, Message, RawId
from acp_gateway.protocol.methods import Audience, Capability
from acp_gateway.protocol.reasons import in_one_line
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.strict_parsing import parse_strictly
from acp_gateway.versions.carried import ORIGINAL, Carried, hidden, shown, size_of

EARLY_SIZE: Final = 4 * 1024 * 1024
"""Maximum size of updates before the response that names their session, in bytes; agents send a list of commands."""

MAX_REMEMBERED: Final = 10_000
"""Maximum number of remembered session ids of sub-agents, and of elicitations."""

_NO_CONNECTION: Final = "no client has this connection to an MCP server"

_USER_CHUNK: Final = methods.USER_CHUNK.encode()


class _Recipients(NamedTuple):
    """Recipients of an elicitation: a session, or the clients if there is none."""

    session: Session | None = None
    clients: tuple[Client, ...] = ()


class Routing:
    """Routes the messages of one agent process."""

    def __init__(self, agent: AgentState) -> None:
        self._agent = agent
        self.openings = 0
        """Number of pending requests whose response will name a new session."""
        # Updates that may belong to these sessions, by session id.
        self._early: dict[str, list[Message]] = {}
        self.early_size = 0
        """Bytes of these updates."""
        # Parents of the sessions that no client opened. An ended session counts as its own parent.
        self._parents: dict[str, Session] = {}
        # Candidate identities of the sessions whose parent is unknown.
        self._unclear: dict[str, frozenset[str]] = {}
        # Recipients of open URL elicitations.
        self._elicitations: dict[str, _Recipients] = {}

    def clear(self) -> None:
        """Forget the messages of a process that has ended."""
        self.openings = 0
        self._early.clear()
        self.early_size = 0
        self._parents.clear()
        self._unclear.clear()
        self._elicitations.clear()

    def take_early(self, session_id: str) -> list[Message]:
        """Return and forget the updates that came before their session."""
        return self._early.pop(session_id, [])

    def session_added(self, session: Session) -> None:
        """Route a session's id to it from now on. Held messages under its id belong to an earlier session."""
        former = self._parents.pop(session.id, session)
        if former is session:
            return
        self._early.pop(session.id, None)
        for agent_request in self._agent.agent_requests.unrouted():
            if agent_request.message.session == session.id:
                self._agent.agent_requests.settle_undecided(agent_request)

    def session_ended(self, session: Session) -> None:
        """Drop later updates of a session that has ended, and of its children."""
        _remember(self._parents, session.id, session)
        self.route_again()

    def passthrough(self, session_id: str, lines: Sequence[bytes]) -> bool:
        """Fan out updates that `session_of_passthrough` found in one session; return False if each needs a closer
        look."""
        session = self._agent.live.get(session_id)
        if session is None or len(self._agent.terminals):
            return False
        if session.state is SessionState.DELETING or (session.state is SessionState.OPENING and not session.continues):
            return False
        if session.far is not None and session.far.owed:
            self._agent.settle_place(session)
        seen = shown(lines) if session.echo is not None or session.unplaced else ()
        if seen:
            if session.echo is not None and _USER_CHUNK in seen[0]:
                return False
            self._agent.place_prompts(session)
            self._agent.end_echo(session)
        position = session.journal.position
        session.journal.carries = session.journal.carries or self._agent.carries
        session.extend(lines, self._agent.wall_time)
        self._agent.out.fan_out(session.attached, lines, position)
        return True

    def update(self, message: Message) -> None:
        """Route a `session/update`."""
        session = None if message.session is None else self._session_of(message.session)
        if session is None or session.state is SessionState.DELETING:
            self._keep_early(message)
            return
        # A sub-agent's mode is not the session's.
        own = message.session == session.id
        state = message.update if own and message.update in methods.STATE_UPDATES else None
        if session.state is SessionState.OPENING and not session.continues:
            if session.recorded is None:
                # The mark of its place is to come, which counts this as well.
                if state is not None:
                    updates.read_state(session, message)
                return
            # The agent does not tell the times of its history.
            _record(session, session.recorded, message, state)
            if session.replay_to is not None:
                self._agent.out.replay(session.replay_to, [message.text], session.recorded.position - 1)
            return
        is_shown = state is None and message.update != ORIGINAL
        echo = session.echo if own and is_shown else None
        repeats = echo is not None and message.update == methods.USER_CHUNK and echo.take(message.text)
        if repeats and echo is not None:
            self._agent.name_prompt(session, echo.request, lookup.param(message, "update", "messageId"))
            if echo.request.client.carries:
                # Another gateway takes the id from the echo, before it is told the place.
                self._agent.send_echo(session, echo, message.text)
        if is_shown:
            self._agent.place_prompts(session)
        if echo is not None:
            if repeats:
                if not echo.request.client.carries:
                    self._agent.send_echo(session, echo, message.text)
                if isinstance(message.text, Carried) and message.text.original is not None:
                    # The prompt is in the history already, for clients of version 1.
                    original = hidden(jsonrpc.encode(session.id), message.text.original)
                    self.update(jsonrpc.parse(original))
                return
            self._agent.end_echo(session)
        self._agent.settle_place(session)
        position = session.journal.position
        session.write(message.text, state, self._agent.wall_time)
        tool_call = updates.tool_call_details(message)
        if tool_call is not None:
            # With the owner, because the audit throttles by identity.
            about = {"session": session.id, "agent": self._agent.name, "identity": session.owner}
            self._agent.out.audit("tool_call", None, **about, **tool_call)
        translated = self._agent.terminals.translations(message.text)
        if translated:
            for client in session.attached:
                self._agent.out.client(client, translated.get(client, message.text), position)
        else:
            self._agent.out.clients(session.attached, message.text, position)
        if not own:
            # It counts in this session's journal, and under another name at the clients.
            self._agent.send_position(session, session.attached)
        if state is not None:
            before = session.own_state
            updates.read_state(session, message)
            if session.own_state != before:
                self._agent.note_own_state(session)
            self._agent.keep_title(session)
        elif message.update == methods.SUBAGENT_UPDATE:
            self._remember_child(message, session)

    def notification(self, message: Message) -> None:
        rules = methods.agent_method(message.method)
        if rules.needs is not None or rules.audience is Audience.CONTROLLERS:
            # Some clients ignore a missing id: an observer's would write the file, and the host be bypassed.
            self.refuse(message, "is a request, which has an id")
            return
        if message.method == methods.CANCEL_REQUEST:
            raw = lookup.param(message, "requestId")
            if raw is not None and raw[:1] not in (b"{", b"["):
                self._agent.agent_requests.cancelled_by_agent(RawId(raw))
            return
        if message.method == methods.COMPLETE_ELICITATION:
            name = lookup.text_param(message, "elicitationId")
            session, clients = self._elicitations.pop(name or "", _Recipients())
            self._agent.out.clients(clients if session is None else session.controllers(), message.text)
            return
        if message.method == methods.AUTH_STATUS_UPDATE:
            # It has names and addresses of the agent's account.
            readers: Iterable[Client] = self._agent.clients
            if message.session is not None:
                # No release of the protocol has one here. Others may not hear of it.
                session = self._session_of(message.session)
                readers = () if session is None else session.attached
            self._agent.out.clients(filter(self._may_see_account, readers), message.text)
            return
        if mcp_servers.named_connection(message) is not None:
            connection = self._agent.mcp_connections.of(message)
            if connection is None or connection.client.gone:
                self._agent.out.log(f"dropped a notification of the agent: {_NO_CONNECTION}")
            else:
                self._agent.out.client(connection.client, mcp_servers.for_client(message, connection).text)
            return
        if message.session is None:
            candidates = self._candidates()
            if len(candidates) > 1:
                self._agent.out.log("dropped a notification of the agent that may be of more than one identity")
                return
            ready = [c for c in self._agent.clients if c.phase is ClientPhase.READY and c.scope.sees_all]
            self._agent.out.clients((c for c in ready if c.scope.identity in candidates), message.text)
            return
        session = self._session_of(message.session)
        if session is None:
            self._agent.out.log("dropped a notification of the agent for no session that is open")
        else:
            self._agent.out.clients(session.attached, message.text)

    def request(self, message: Message) -> None:
        rules = methods.agent_method(message.method)
        if rules.needs is not None and rules.needs not in self._agent.policy.serves:
            if rules.needs is Capability.FS:
                self._show_refused(message)
            self.refuse(message, "was not offered: the client works on another machine")
        elif message.method == methods.AUTH_STATUS_UPDATE:
            # Some clients ignore the id: one that may not see the account would take it for the notification.
            self.refuse(message, "is a notification, which has no id", jsonrpc.INVALID_REQUEST)
        elif why := self._agent.limit_exceeded(
            message, len(self._agent.agent_requests), self._agent.agent_requests.size
        ):
            self.refuse(message, why, jsonrpc.INVALID_REQUEST)
        elif flaw := access_rules.flaw_of_question(message, self._agent.policy) or self._flaw_of_original(message):
            self.refuse(message, f"can't be understood: {flaw}", jsonrpc.INVALID_PARAMS)
        else:
            agent_request = AgentRequest(message, rules.audience, None, self._agent.now)
            agent_request.arrived_time, agent_request.key = (
                self._agent.wall_time,
                self._agent.registry.new_request_key(),
            )
            agent_request.candidates = self._candidates()
            agent_request.in_turn = any(session.turns for session in self._agent.live.values())
            self._agent.agent_requests.add(agent_request)
            self._route(agent_request)
            if not agent_request.forwarded_ids and agent_request in self._agent.agent_requests:
                self._agent.out.log(f"{message.method:.80} waits: no client is there to answer it")
            self._agent.announce_waiting()

    def _flaw_of_original(self, message: Message) -> str | None:
        """Return why a request that another one carries is ambiguous; None if it is fine, or if it carries none."""
        if not isinstance(message.text, Carried) or message.text.original is None:
            return None
        original, repeated = parse_strictly(message.text.original)
        if repeated is not None:
            return f"the member {repeated!r:.80} is repeated"
        return access_rules.flaw_of_question(original, self._agent.policy)

    def sort_early(self) -> None:
        """Route the early updates once no response can name their session any more."""
        if self.openings:
            return
        early, self._early, self.early_size = self._early, {}, 0
        for messages in early.values():
            for message in messages:
                self.update(message)
        self.route_again()

    def route_again(self) -> None:
        """Route the held requests again after a change."""
        for agent_request in self._agent.agent_requests.unrouted():
            self._route(agent_request)
        running = {session.owner for session in self._agent.live.values() if session.turns}
        for agent_request in self._agent.agent_requests.unrouted():
            if self.openings and agent_request.message.session is not None:
                continue  # It may be of the session that is about to be named.
            # Settle a request once no candidate has a turn any more.
            if agent_request.in_turn and not agent_request.candidates & running:
                self._agent.agent_requests.settle_undecided(agent_request)
        self._agent.announce_waiting()

    def _session_of(self, session_id: str) -> Session | None:
        """Return the session that an id of the agent belongs to: that session, or its parent."""
        known = self._agent.live.get(session_id)
        if known is not None or session_id in self._parents:
            return known or self._if_live(self._parents[session_id])
        if session_id not in self._unclear:
            _remember(self._unclear, session_id, self._candidates())
        session = None if self.openings else self._only_running(self._unclear[session_id])
        if session is not None:
            _remember(self._parents, session_id, session)
        return session

    def _if_live(self, session: Session) -> Session | None:
        """Return the session itself if it is live here: another one may have its id by now."""
        return session if self._agent.live.get(session.id) is session else None

    def _candidates(self) -> frozenset[str]:
        """Return the identities that a message may belong to: the owners of running turns, or else all."""
        running = {session.owner for session in self._agent.live.values() if session.turns}
        owners = {session.owner for session in self._agent.live.values()}
        return frozenset(running or owners | {client.scope.identity for client in self._unbound()})

    def _only_running(self, candidates: frozenset[str]) -> Session | None:
        """Return the only session with a running turn, if its owner is the only candidate."""
        running = [session for session in self._agent.live.values() if session.turns]
        return running[0] if len(running) == 1 and candidates <= {running[0].owner} else None

    def _may_see_account(self, client: Client) -> bool:
        return client.phase is ClientPhase.READY and client.scope.sees_all and self._agent.may_see_output(client)

    def _unbound(self) -> list[Client]:
        """Return the controllers that see all sessions of their identity."""
        return [c for c in self._agent.clients if c.controls and c.scope.sees_all and c.phase is not ClientPhase.NEW]

    def _remember_child(self, message: Message, session: Session) -> None:
        child = lookup.text_param(message, "update", "sessionId")
        if child is not None and child not in self._agent.live:
            _remember(self._parents, child, session)
            self.route_again()

    def _keep_early(self, message: Message) -> None:
        """Keep an update whose session may be named by a pending response; else drop it."""
        if message.session is None or not self.openings or message.session in self._parents:
            self._agent.out.log("dropped an update of the agent for no session that is open")
        elif self.early_size + (size := size_of((message.text,))) > EARLY_SIZE:
            self._agent.out.log(
                f"dropped an update of the agent: more than {EARLY_SIZE} bytes came before their session"
            )
        else:
            self.early_size += size
            self._early.setdefault(message.session, []).append(message)

    def _route(self, agent_request: AgentRequest) -> None:
        """Find the recipients of a request and forward it; hold it if they are not certain."""
        message = agent_request.message
        if agent_request.method == methods.CREATE_ELICITATION and message.session is None:
            self._forward_to_requester(agent_request)
            return
        if agent_request.method == methods.MCP_CONNECT:
            agent_request.translate = self._agent.mcp_connections.connected
        elif mcp_servers.named_connection(message) is not None:
            self._forward_in_connection(agent_request)
            return
        if message.session is not None:
            session = self._session_of(message.session)
        else:
            session = self._only_running(agent_request.candidates)
            if session is None:
                self._forward_to_identity(agent_request)
                return
        if session is not None:
            agent_request.session = session
            session.note_change()
            if agent_request.is_decision:
                self._agent.place_prompts(session)
            self._forward_in(session, agent_request)
        elif self.openings:
            return  # A response may name it.
        elif message.session in self._parents:
            why = f"session {message.session:.80} has ended"
            error = jsonrpc.error(agent_request.id, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": message.session})
            self._agent.agent_requests.settle(agent_request, error)
        elif agent_request.audience is Audience.HOST:
            self._agent.agent_requests.settle_undecided(agent_request)

    def _forward_in(self, session: Session, agent_request: AgentRequest) -> None:
        if agent_request.audience is Audience.CONTROLLERS:
            self._forward(agent_request, session.controllers())
        elif agent_request.audience is Audience.HOST:
            self._forward_to_host(session, agent_request)
        else:
            origins = [request.client for request in session.turns if request.client in session.attached]
            near = [client for client in [*origins, session.host, *session.controllers()] if client is not None]
            self._forward(agent_request, [client for client in near if client.connected][:1])

    def _forward_to_host(self, session: Session, agent_request: AgentRequest) -> None:
        """Ask the host of the session, or the client that runs the terminal in question."""
        if self._is_fenced_off(session, agent_request):
            return
        host = session.host
        if self._agent.terminals.names_terminal(agent_request.message):
            terminal = self._agent.terminals.named(agent_request.message)
            host = None
            if terminal is not None and terminal.client in session.attached:
                host = terminal.client
                agent_request.forwarded_message = self._agent.terminals.for_client(agent_request.message, terminal)
        if host is None:
            why = "the client that serves files and terminals for this session has gone"
            error = jsonrpc.error(agent_request.id, jsonrpc.INTERNAL_ERROR, why, {"reason": "host_gone"})
            self._agent.agent_requests.settle(agent_request, error)
            return
        if agent_request.method == methods.CREATE_TERMINAL:
            agent_request.translate = self._agent.terminals.created
        self._forward(agent_request, [host])

    def _is_fenced_off(self, session: Session | None, agent_request: AgentRequest) -> bool:
        """Refuse and audit a request for a file outside of the session's directories; return True if it was one."""
        message = agent_request.message
        if methods.agent_method(message.method).needs is not Capability.FS:
            return False
        flaw = access_rules.flaw_of_file_request(message, session)
        if flaw is None:
            return False
        owner = None if session is None else session.owner
        path = in_one_line((lookup.text_param(message, "path") or "")[:PATH_LENGTH], PATH_LENGTH)
        about = {"session": message.session if session is None else session.id, "agent": self._agent.name}
        method = f"{agent_request.method:.80}"
        self._agent.out.audit("file_refused", None, **about, identity=owner, method=method, path=path, reason=flaw)
        self._agent.out.log(f"refused a message of the agent: {method!r} {flaw}")
        agent_request.fenced_off = True
        error = jsonrpc.error(agent_request.id, jsonrpc.INVALID_PARAMS, f"{method} {flaw}", {"reason": "outside"})
        self._agent.agent_requests.settle(agent_request, error)
        return True

    def _show_refused(self, message: Message) -> None:
        """Show a refused request for a file to those who watch its session change; it is never open otherwise."""
        session = None if message.session is None else self._agent.live.get(message.session)
        if session is not None:
            agent_request = AgentRequest(message, Audience.HOST, session, self._agent.now)
            agent_request.arrived_time, agent_request.fenced_off = self._agent.wall_time, True
            agent_request.key = self._agent.registry.new_request_key()
            self._agent.agent_requests.show(agent_request)

    def _forward_in_connection(self, agent_request: AgentRequest) -> None:
        """Forward a message to the client that carries the server: no other client has it, in whatever session."""
        message = agent_request.message
        connection = self._agent.mcp_connections.of(message)
        if connection is None:
            error = jsonrpc.error(agent_request.id, jsonrpc.INVALID_PARAMS, f"{message.method}: {_NO_CONNECTION}")
            self._agent.agent_requests.settle(agent_request, error)
        elif connection.client.gone:
            # It may come back.
            self._agent.agent_requests.settle_undecided(agent_request)
        else:
            agent_request.forwarded_message = mcp_servers.for_client(message, connection)
            self._forward(agent_request, [connection.client])

    def _forward_to_requester(self, agent_request: AgentRequest) -> None:
        """Forward an elicitation for a request to the sender of that request, under the sender's id."""
        text = agent_request.message.text
        at = spans.find(text, "params", "requestId")
        number = None if at is None else jsonrpc.id_number(RawId(text[at[0] : at[1]]))
        request = None if number is None else self._agent.open_requests.get(number)
        if at is None or not isinstance(request, Request) or request.abandoned:
            self._agent.agent_requests.settle_undecided(agent_request)
            return
        agent_request.audience = Audience.ONE
        agent_request.forwarded_message = jsonrpc.parse(spans.splice(text, [(*at, request.id)]))
        self._forward(agent_request, [request.client])

    def _forward_to_identity(self, agent_request: AgentRequest) -> None:
        """Forward a request without a session to the controllers, if they are all of one identity."""
        if self._is_fenced_off(None, agent_request):
            return
        clients = self._unbound()
        if len({client.scope.identity for client in clients} | agent_request.candidates) != 1:
            clients = []
        if agent_request.audience is Audience.CONTROLLERS:
            self._forward(agent_request, clients)
        elif agent_request.audience is Audience.ONE:
            self._forward(agent_request, [client for client in clients if client.connected][:1])
        elif len(clients) == 1:
            self._forward(agent_request, clients)
        else:
            self._agent.agent_requests.settle_undecided(agent_request)

    def _forward(self, agent_request: AgentRequest, clients: Iterable[Client]) -> None:
        self._agent.agent_requests.forward(agent_request, clients)
        if agent_request.method == methods.CREATE_ELICITATION:
            name = lookup.text_param(agent_request.message, "elicitationId")
            if name is not None:
                _remember(
                    self._elicitations, name, _Recipients(agent_request.session, tuple(agent_request.forwarded_ids))
                )

    def refuse(self, message: Message, why: str, code: int = jsonrpc.METHOD_NOT_FOUND) -> None:
        """Refuse a request of the agent; a notification is only dropped."""
        what = f"{message.method!r:.80} {why}"
        self._agent.out.log(f"refused a message of the agent: {what}")
        if message.kind is Kind.REQUEST:
            self._agent.out.agent(jsonrpc.error(message.id, code, what))


def _record(session: Session, recorded: Journal, message: Message, state: str | None) -> None:
    """Record a replayed update; a user chunk after other updates ends a turn."""
    if message.update == methods.USER_CHUNK and session.last_recorded not in (None, methods.USER_CHUNK):
        recorded.turn_ended()
    session.last_recorded = message.update
    recorded.append(message.text, state)


def _remember(memory: dict[str, Any], key: str, value: Any) -> None:
    memory[key] = value
    while len(memory) > MAX_REMEMBERED:
        del memory[next(iter(memory))]
