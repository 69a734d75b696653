"""Routing of an agent's own messages: updates, notifications, and requests for its clients.

Each is routed by the session that it names, to the clients attached there. Agents also name sessions that no client
opened: those of sub-agents, and new ones whose `session/new` is not answered yet. The latter wait for the response.
Whose the former are is told by `core/sessions/sub_agents.py`; where that is in doubt, an update is in no history, and a
request is asked of those to whom all that it may belong to may be shown, or held. It is routed again after each change,
and never dropped.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from acp_gateway.core import access_rules, mcp_servers
from acp_gateway.core.agent_requests import JUST_LOST, AgentRequest, undecided
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.permissions.ruling import PermissionRules
from acp_gateway.core.sessions.preconditions import PATH_LENGTH
from acp_gateway.core.sessions.session import Client, Session
from acp_gateway.core.sessions.sub_agents import UNKNOWN, Doubt, Doubts, remember
from acp_gateway.core.states import ClientPhase, SessionState
from acp_gateway.core.turns import updates
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import gap
from acp_gateway.protocol.jsonrpc import Kind, Message, RawId
from acp_gateway.protocol.methods import Audience, Capability
from acp_gateway.protocol.reasons import in_one_line
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.pairs import Entry, shown, size_of
from acp_gateway.protocol.text.strict_parsing import parse_strictly
from acp_gateway.versions.carried import ORIGINAL, hidden

EARLY_SIZE: Final = 4 * 1024 * 1024
"""Maximum size of updates before the response that names their session, in bytes; agents send a list of commands."""

_AWAY: Final = "the client for it is away, and no other one can answer in its place"

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
        self._out = agent.out
        self._requests = agent.agent_requests
        self._histories = agent.histories
        self._sub_agents = agent.sub_agents
        self._requests.ask_next = self._route
        self.rules = PermissionRules(agent, self.tell)
        """Decide permission requests before they are forwarded."""
        # Updates that may belong to these sessions, by session id.
        self._early: dict[str, list[Message]] = {}
        self.early_size = 0
        """Bytes of these updates."""
        # Recipients of open URL elicitations.
        self._elicitations: dict[str, _Recipients] = {}

    def clear(self) -> None:
        """Forget the messages of a process that has ended."""
        self._early.clear()
        self.early_size = 0
        self._elicitations.clear()

    def take_early(self, session_id: str) -> list[Message]:
        """Return and forget the updates that came before their session."""
        early = self._early.pop(session_id, [])
        self.early_size -= size_of([message.entry for message in early])
        return early

    def session_added(self, session: Session) -> None:
        """Route a session's id to it from now on. Held messages under its id belong to an earlier session."""
        is_other = self._sub_agents.opened(session)
        if is_other:
            self.take_early(session.id)
        for agent_request in self._requests.in_doubt():
            if agent_request.message.session == session.id and (is_other or not agent_request.is_early):
                self._requests.settle_undecided(agent_request)

    def remove_session(self, session: Session, *, forgotten: bool) -> None:
        """Remove a session from this process, and drop later updates of it and of its children; `forgotten` also
        removes its owner."""
        self._requests.session_ended(session)
        self._agent.remove_session(session)
        self._sub_agents.ended(session)
        self.route_again()
        if forgotten:
            self._agent.registry.remove(session)
            self._agent.waiting.resume(Until.SESSION_REOPENED, session.id)

    def passthrough(self, session_id: str, lines: Sequence[Entry]) -> bool:
        """Fan out updates that `session_of_passthrough` found in one session; return False if each needs a closer
        look."""
        session = self._agent.live.get(session_id)
        if session is None or self._agent.process.cuts_turns:
            return False
        if session.transit is not None or session.retelling is not None or self._agent.terminals.are_used:
            return False
        seen = shown(lines) if session.echo is not None or session.unplaced else ()
        if seen:
            if session.echo is not None and _USER_CHUNK in seen[0]:
                return False
            self._histories.place_prompts(session)
            self._histories.end_echo(session)
        position = session.journal.position
        session.journal.carries = session.journal.carries or self._out.carries
        session.extend(lines, self._agent.clock.wall_time)
        self._out.fan_out(session, lines, position)
        return True

    def doubts(self) -> Doubts:
        """Return the doubts of messages between which nothing changes."""
        return Doubts(self._sub_agents)

    def update(self, message: Message, doubts: Doubts | None = None) -> None:
        """Route a `session/update`; `doubts` are those of the messages just before it, if nothing has changed since."""
        session = self._sub_agents.session_of(message.session)
        if session is None or session.state is SessionState.DELETING:
            self._update_elsewhere(message, doubts or self.doubts())
            return
        is_told_again = self._take_update(session, message)
        for child in updates.sub_agents_of(message):
            # A fork tells those of its parent again.
            if not (is_told_again and self._sub_agents.is_known(child)) and self._sub_agents.tell_parent(
                child, session
            ):
                self.route_again(child)

    def _take_update(self, session: Session, message: Message) -> bool:
        """Show and keep an update of a session, or of a sub-agent; return True if it tells the history again."""
        if self._agent.process.cuts_turns and updates.ends_cancelled(message):
            return False  # The history shows the turn as cut off.
        # A sub-agent's mode is not the session's.
        own = message.session == session.id
        state = message.update if own and message.update in methods.STATE_UPDATES else None
        if state == "usage_update":
            session.archive.meter(session, "total", message)
        if session.transit is not None and session.transit.takes(message, state):
            return True
        is_shown = state is None and message.update != ORIGINAL
        if session.retelling is not None and state is None:
            if session.retelling.repeats(message):
                return True
            if own and is_shown and not session.retelling.goes_on:
                session.retelling = None
        echo = session.echo if own and is_shown else None
        repeats = echo is not None and message.update == methods.USER_CHUNK and echo.take(message.text)
        if repeats and echo is not None:
            self._histories.name_prompt(session, echo.request, lookup.param(message, "update", "messageId"))
        if is_shown:
            self._histories.place_prompts(session)
        if echo is not None:
            if repeats:
                self._histories.send_echo(session, echo, message.entry)
                if message.original is not None:
                    # The prompt is in the history already, for clients of version 1.
                    original = hidden(jsonrpc.encode(session.id), message.original)
                    self.update(jsonrpc.parse_entry(original))
                return False
            self._histories.end_echo(session)
        position = session.journal.position
        session.write(message.entry, state, self._agent.clock.wall_time)
        self._audit_tool_call(message, session.id, session.owner)
        translated = self._agent.terminals.translations(message.text, session.attached)
        if translated:
            for client in session.attached:
                self._out.update_for(client, session, translated.get(client, message.entry), position)
        else:
            self._out.update(session, message.entry, position)
        if not own:
            # It counts in this session's journal, and under another name at the clients.
            self._out.send_position(session, session.attached)
        if state is not None:
            before = session.own_state
            updates.read_state(session, message)
            if session.own_state != before:
                self._agent.unattended.note_state(session)
            self._histories.keep_title(session)
        return False

    def tell(self, session_id: str | None, words: str) -> None:
        """Tell the clients of a session something in its conversation: of the one of this id, or the only one that may
        be meant."""
        session = self._sub_agents.session_of(session_id)
        if session is None and (session_id is None or not self._sub_agents.is_known(session_id)):
            doubt = self._sub_agents.doubt(session_id)
            session = doubt.sessions[0] if len(doubt.sessions) == 1 and not doubt.is_shared else None
        if session is not None:
            self.update(jsonrpc.parse(gap(session.id, words)))

    def notification(self, message: Message) -> None:
        rules = methods.agent_method(message.method)
        if rules.needs is not None or rules.audience is Audience.CONTROLLERS:
            # Some clients ignore a missing id: an observer's would write the file, and the host be bypassed.
            self.refuse(message, "is a request, which has an id")
            return
        if message.method == methods.CANCEL_REQUEST:
            raw = lookup.param(message, "requestId")
            if raw is not None and raw[:1] not in (b"{", b"["):
                self._requests.cancelled_by_agent(RawId(raw))
            return
        if message.method == methods.COMPLETE_ELICITATION:
            name = lookup.text_param(message, "elicitationId")
            session, clients = self._elicitations.pop(name or "", _Recipients())
            self._out.clients(clients if session is None else session.controllers(), message.entry)
            return
        if message.method == methods.AUTH_STATUS_UPDATE:
            # It has names and addresses of the agent's account.
            readers: Iterable[Client] = self._agent.clients
            if message.session is not None:
                # No release of the protocol has one here. Others may not hear of it.
                session = self._sub_agents.session_of(message.session)
                readers = () if session is None else session.attached
            self._out.clients(filter(self._may_see_account, readers), message.entry)
            return
        if mcp_servers.named_connection(message) is not None:
            connection = self._agent.mcp_connections.of(message)
            if connection is None or connection.client.gone:
                self._out.log(f"dropped a notification of the agent: {_NO_CONNECTION}")
            else:
                self._out.client(connection.client, mcp_servers.for_client(message, connection).text)
            return
        session = self._sub_agents.session_of(message.session)
        if session is not None:
            self._out.clients(session.attached, message.entry)
            return
        doubt = self._sub_agents.doubt(message.session)
        if message.session is not None and self._sub_agents.is_known(message.session):
            self._out.log("dropped a notification of the agent for no session that is open")
        elif doubt.is_shared:
            self._out.log("dropped a notification of the agent that may be of more than one identity")
        elif message.session is not None:
            self._out.clients(self._sub_agents.listeners(doubt), message.entry)
        else:
            ready = [c for c in self._agent.clients if c.phase is ClientPhase.READY and c.reach.sees_all]
            self._out.clients((c for c in ready if self._sub_agents.has_all(c, doubt)), message.entry)

    def request(self, message: Message, doubts: Doubts) -> None:
        rules = methods.agent_method(message.method)
        if rules.needs is not None and rules.needs not in self._agent.policy.serves:
            if rules.needs is Capability.FS:
                self._show_refused(message)
            self.refuse(message, "was not offered: the client works on another machine")
        elif message.method == methods.AUTH_STATUS_UPDATE:
            # Some clients ignore the id: one that may not see the account would take it for the notification.
            self.refuse(message, "is a notification, which has no id", jsonrpc.INVALID_REQUEST)
        elif why := self._agent.limit_exceeded(message, len(self._requests), self._requests.size):
            self.refuse(message, why, jsonrpc.INVALID_REQUEST)
        elif flaw := access_rules.flaw_of_question(message, self._agent.policy) or self._flaw_of_original(message):
            self.refuse(message, f"can't be understood: {flaw}", jsonrpc.INVALID_PARAMS)
        else:
            agent_request = self._arrived(message, rules.audience)
            agent_request.doubt, agent_request.is_early = UNKNOWN, bool(self._sub_agents.naming)
            agent_request.turns = doubts.turns()
            self._requests.add(agent_request)
            self._route(agent_request, doubts)
            if agent_request in self._requests:
                if not agent_request.forwarded_ids:
                    self._out.log(f"{message.method:.80} waits: no client is there to answer it")
                self._agent.unattended.announce([agent_request])

    def _arrived(self, message: Message, audience: Audience, session: Session | None = None) -> AgentRequest:
        request = AgentRequest(message, audience, session, self._agent.clock.now)
        request.arrived_time, request.key = self._agent.clock.wall_time, self._agent.registry.new_request_key()
        return request

    def ask_elsewhere(self, agent_request: AgentRequest) -> None:
        """Forward a request that only absent clients have to another client, or give the agent an error."""
        if self._is_missed(agent_request, agent_request.forwarded_ids):
            self._answer_without_absent(agent_request)

    def _is_missed(self, agent_request: AgentRequest, recipients: Collection[Client]) -> bool:
        """Return True if all recipients of a request have been away for `JUST_LOST`, while others would wait for the
        turn that has asked. A permission waits in any case: the others have it as well."""
        since = self._agent.clock.now - JUST_LOST
        if agent_request.method == methods.REQUEST_PERMISSION or not recipients:
            return False
        if any(client.connected or client.away_since > since for client in recipients):
            return False
        session = agent_request.session or agent_request.turn
        present: Iterable[Client] = self._agent.clients if session is None else session.attached
        if agent_request.doubt is not None:
            present = self._sub_agents.controllers(agent_request.doubt)
        return any(client.connected and client.controls for client in present)

    def _answer_without_absent(self, agent_request: AgentRequest) -> None:
        """Forward a request for a file to another client that offers to serve it, and give the agent an error for any
        other request: what it asks for may have been done already."""
        session = agent_request.session
        is_file = methods.agent_method(agent_request.method).needs is Capability.FS
        stand_in = _stand_in(session, agent_request.method) if session is not None and is_file else None
        if stand_in is not None:
            self._requests.pass_on(agent_request, stand_in)
            return
        self._out.log(f"{agent_request.method:.80} is answered with an error: {_AWAY}")
        if agent_request.is_decision:
            self._agent.news.report_decision(agent_request, None, "cancelled")
        self._requests.settle(agent_request, agent_request.refusal or undecided(agent_request, _AWAY))

    def _flaw_of_original(self, message: Message) -> str | None:
        """Return why a request that another one carries is ambiguous; None if it is fine, or if it carries none."""
        if message.original is None:
            return None
        original, repeated = parse_strictly(message.original)
        if repeated is not None:
            return f"the member {repeated!r:.80} is repeated"
        return access_rules.flaw_of_question(original, self._agent.policy)

    def sort_early(self) -> None:
        """Route the early updates once no response can name their session any more."""
        if self._sub_agents.naming:
            return
        early, self._early, self.early_size = self._early, {}, 0
        for messages in early.values():
            for message in messages:
                self.update(message)
        self.route_again()

    def joined(self, session: Session, client: Client) -> None:
        """Forward the open requests of a session to a newly attached client."""
        self._requests.forward_open(session, client)
        if self._requests.in_doubt(session):
            self.route_again()

    def route_again(self, session_id: str | None = None) -> None:
        """Route the requests in doubt again after a change; those of one session id if that alone is concerned."""
        doubts = self.doubts()
        again = [it for it in self._requests.in_doubt() if session_id in (None, it.message.session)]
        if session_id is not None and not again:
            return
        for agent_request in again:
            self._route(agent_request, doubts)
        # No client can decide those. Settle them once the turns that may have asked are over.
        held = [it for it in self._requests.in_doubt() if it.turns and it.doubt is not None and it.doubt.is_shared]
        turns = self._sub_agents.turns() if held else ()
        for agent_request in held:
            if agent_request.turns.isdisjoint(turns):
                self._requests.settle_undecided(agent_request)
        self._agent.unattended.announce()

    def _may_see_account(self, client: Client) -> bool:
        return client.phase is ClientPhase.READY and client.reach.sees_all and self._agent.may_see_output(client)

    def _update_elsewhere(self, message: Message, doubts: Doubts) -> None:
        """Handle an update of no open session that is certain: keep it if a pending response may name its session, or
        show it to those who may see it whatever it belongs to. It is in no history then."""
        if message.session is None or self._sub_agents.is_known(message.session):
            self._out.log("dropped an update of the agent for no session that is open")
        elif self._sub_agents.naming:
            self._keep_early(message)
        else:
            doubt, listeners = doubts.of(message.session, UNKNOWN)
            self._audit_tool_call(message, message.session, doubt.identity)
            translated = self._agent.terminals.translations(message.text, listeners)
            for client in listeners:
                self._out.client(client, translated.get(client, message.entry))
            if doubt.is_shared:
                self._out.log("dropped an update of the agent that may be of more than one identity")
            elif not listeners:
                self._out.log("dropped an update of the agent for no session that is open")

    def _audit_tool_call(self, message: Message, session_id: str, identity: str | None) -> None:
        tool_call = updates.tool_call_details(message)
        if tool_call is not None:
            # With the owner, because the audit throttles by identity.
            about = {"session": session_id, "agent": self._agent.name, "identity": identity}
            self._out.audit("tool_call", None, **about, **tool_call)

    def _keep_early(self, message: Message) -> None:
        assert message.session is not None
        if self.early_size + (size := size_of((message.entry,))) > EARLY_SIZE:
            self._out.log(f"dropped an update of the agent: more than {EARLY_SIZE} bytes came before their session")
        else:
            self.early_size += size
            self._early.setdefault(message.session, []).append(message)

    def _route(self, agent_request: AgentRequest, doubts: Doubts | None = None) -> None:
        """Find the recipients of a request and forward it; hold it if there are none."""
        message, doubts = agent_request.message, doubts or self.doubts()
        if agent_request.method == methods.CREATE_ELICITATION and message.session is None:
            self._forward_to_requester(agent_request)
            return
        if agent_request.method == methods.MCP_CONNECT:
            agent_request.translate = self._agent.mcp_connections.connected
        elif mcp_servers.named_connection(message) is not None:
            self._forward_in_connection(agent_request)
            return
        session = self._sub_agents.session_of(message.session)
        if session is not None:
            self._requests.place(agent_request, session, doubts)
            agent_request.turn = _working(session)
            if agent_request.is_decision:
                self._histories.place_prompts(session)
            if not self.rules.settle(agent_request, session):
                self._forward_in(session, agent_request)
        elif message.session is not None and self._sub_agents.naming:
            return  # A response may name it.
        elif message.session is not None and self._sub_agents.is_known(message.session):
            why = f"session {message.session:.80} has ended"
            error = jsonrpc.error(agent_request.id, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": message.session})
            self._requests.settle(agent_request, error)
        else:
            self._route_in_doubt(agent_request, doubts)

    def _route_in_doubt(self, agent_request: AgentRequest, doubts: Doubts) -> None:
        """Forward a request to clients that may decide it whatever it belongs to; hold it if there are none."""
        named, before = agent_request.message.session, agent_request.doubt or UNKNOWN
        doubt, clients = doubts.of(named, before)
        self._requests.place(agent_request, None, doubts, doubt)
        if doubt.is_shared and not before.identities:
            about = {"session": named, "agent": self._agent.name, "method": f"{agent_request.method:.80}"}
            self._out.audit("request_held", None, **about, identities=len(doubt.identities))
        if agent_request.audience is Audience.HOST:
            self._forward_to_any_host(agent_request, doubt, clients)
        elif agent_request.audience is Audience.CONTROLLERS:
            self._forward(agent_request, clients)
        else:
            origins = [turn.client for session in doubt.sessions for turn in session.turns if turn.client in clients]
            self._forward_to_first(agent_request, [*origins, *clients])

    def _forward_to_any_host(self, agent_request: AgentRequest, doubt: Doubt, clients: Sequence[Client]) -> None:
        """Ask the host that all sessions have which a request may belong to, or the only client if it names none."""
        named = agent_request.message.session is not None
        live = self._agent.live.values() if named else ()
        sessions = [session for session in live if session.owner in doubt.identities]
        if agent_request.forwarded_ids or self._is_fenced_off(sessions, agent_request):
            return
        hosts = {_host(session, agent_request.method) for session in sessions} if named else set(clients)
        host = hosts.pop() if len(hosts) == 1 else None
        if self._agent.terminals.names_terminal(agent_request.message):
            host = self._terminal_host(agent_request)
        if host is not None and host in clients:
            self._ask_host(agent_request, host)
        else:
            self._requests.settle_undecided(agent_request)

    def _forward_in(self, session: Session, agent_request: AgentRequest) -> None:
        if agent_request.audience is Audience.CONTROLLERS:
            self._forward(agent_request, session.controllers())
        elif agent_request.audience is Audience.HOST:
            self._forward_to_host(session, agent_request)
        else:
            origins = [request.client for request in session.turns if request.client in session.attached]
            near = [client for client in [*origins, session.host, *session.controllers()] if client is not None]
            self._forward_to_first(agent_request, near)

    def _forward_to_first(self, agent_request: AgentRequest, clients: Iterable[Client]) -> None:
        """Ask the first client that is connected and has not declined the request, unless one is asked already."""
        if not agent_request.forwarded_ids:
            may = (client for client in clients if client.connected and client not in agent_request.declined)
            self._forward(agent_request, [*may][:1])

    def _forward_to_host(self, session: Session, agent_request: AgentRequest) -> None:
        """Ask the host of the session, or the client that runs the terminal in question."""
        if self._is_fenced_off([session], agent_request):
            return
        host = _host(session, agent_request.method)
        if self._agent.terminals.names_terminal(agent_request.message):
            host = self._terminal_host(agent_request)
        if host is None or host not in session.attached:
            why = "the client that serves files and terminals for this session has gone"
            error = jsonrpc.error(agent_request.id, jsonrpc.INTERNAL_ERROR, why, {"reason": "host_gone"})
            self._requests.settle(agent_request, error)
        else:
            self._ask_host(agent_request, host)

    def _terminal_host(self, agent_request: AgentRequest) -> Client | None:
        """Return the client that runs the terminal which a request names, and put its id for that into the request."""
        terminal = self._agent.terminals.named(agent_request.message)
        if terminal is None:
            return None
        agent_request.forwarded_message = self._agent.terminals.for_client(agent_request.message, terminal)
        return terminal.client

    def _ask_host(self, agent_request: AgentRequest, host: Client) -> None:
        if agent_request.method == methods.CREATE_TERMINAL:
            agent_request.translate = self._agent.terminals.created
        self._forward(agent_request, [host])

    def _is_fenced_off(self, sessions: Sequence[Session], agent_request: AgentRequest) -> bool:
        """Refuse and audit a request for a file outside of the directories of any of the sessions that it may belong
        to; return True if it was one."""
        message = agent_request.message
        if methods.agent_method(message.method).needs is not Capability.FS:
            return False
        places: Sequence[Session | None] = sessions or [None]
        flaws = [access_rules.flaw_of_file_request(message, place) for place in places]
        flaw = next((flaw for flaw in flaws if flaw is not None), None)
        if flaw is None:
            return False
        session = sessions[0] if len(sessions) == 1 else None
        owner = None if session is None else session.owner
        path = in_one_line((lookup.text_param(message, "path") or "")[:PATH_LENGTH], PATH_LENGTH)
        about = {"session": message.session if session is None else session.id, "agent": self._agent.name}
        method = f"{agent_request.method:.80}"
        self._out.audit("file_refused", None, **about, identity=owner, method=method, path=path, reason=flaw)
        self._out.log(f"refused a message of the agent: {method!r} {flaw}")
        agent_request.fenced_off = True
        error = jsonrpc.error(agent_request.id, jsonrpc.INVALID_PARAMS, f"{method} {flaw}", {"reason": "outside"})
        self._requests.settle(agent_request, error)
        return True

    def _show_refused(self, message: Message) -> None:
        """Show a refused request for a file to those who watch its session change; it is never open otherwise."""
        session = None if message.session is None else self._agent.live.get(message.session)
        if session is not None:
            agent_request = self._arrived(message, Audience.HOST, session)
            agent_request.fenced_off = True
            self._requests.show(agent_request)

    def _forward_in_connection(self, agent_request: AgentRequest) -> None:
        """Forward a message to the client that carries the server: no other client has it, in whatever session."""
        message = agent_request.message
        agent_request.doubt = None
        agent_request.turn = self._turn_of(message)
        connection = self._agent.mcp_connections.of(message)
        if connection is None:
            error = jsonrpc.error(agent_request.id, jsonrpc.INVALID_PARAMS, f"{message.method}: {_NO_CONNECTION}")
            self._requests.settle(agent_request, error)
        elif connection.client.gone:
            # It may come back.
            self._requests.settle_undecided(agent_request)
        else:
            agent_request.forwarded_message = mcp_servers.for_client(message, connection)
            self._forward(agent_request, [connection.client])

    def _turn_of(self, message: Message) -> Session | None:
        """Return the session whose turn has probably sent a message: others wait for that."""
        named, doubt = self._sub_agents.session_of(message.session), self._sub_agents.doubt(None)
        if named is None and len(doubt.sessions) == 1 and not doubt.is_shared:
            named = doubt.sessions[0]
        return _working(named)

    def _forward_to_requester(self, agent_request: AgentRequest) -> None:
        """Forward an elicitation for a request to the sender of that request, under the sender's id."""
        text = agent_request.message.text
        agent_request.audience, agent_request.doubt = Audience.SENDER, None
        at = spans.find(text, "params", "requestId")
        request = None if at is None else self._agent.open_requests.of_client(RawId(text[at[0] : at[1]]))
        if at is None or request is None or request.abandoned:
            self._requests.settle_undecided(agent_request)
            return
        agent_request.turn = _working(request.session)
        agent_request.forwarded_message = jsonrpc.parse(spans.splice(text, [(*at, request.id)]))
        self._forward(agent_request, [request.client])

    def _forward(self, agent_request: AgentRequest, clients: Iterable[Client]) -> None:
        clients = list(clients)
        if self._is_missed(agent_request, clients):
            # Their outboxes would only grow.
            self._answer_without_absent(agent_request)
            return
        self._requests.forward(agent_request, clients)
        if agent_request.method == methods.CREATE_ELICITATION:
            name = lookup.text_param(agent_request.message, "elicitationId")
            if name is not None:
                recipients = _Recipients(agent_request.session, tuple(agent_request.forwarded_ids))
                remember(self._elicitations, name, recipients)

    def refuse(self, message: Message, why: str, code: int = jsonrpc.METHOD_NOT_FOUND) -> None:
        """Refuse a request of the agent; a notification is only dropped."""
        what = f"{message.method!r:.80} {why}"
        self._out.log(f"refused a message of the agent: {what}")
        if message.kind is Kind.REQUEST:
            self._out.agent(jsonrpc.error(message.id, code, what))


def _working(session: Session | None) -> Session | None:
    """Return a session itself if a turn runs in it."""
    return session if session is not None and (session.turns or session.own_state) else None


def _host(session: Session, method: str) -> Client | None:
    """Return the host of a session, or another client that has offered a method which the host has not."""
    host = session.host
    return host if host is None or method in host.offers else _stand_in(session, method) or host


def _stand_in(session: Session, method: str) -> Client | None:
    """Return a client that may serve a session's files as its host does, and has offered this method."""
    may = (client for client in session.controllers() if client.connected and not client.reach.guest)
    return next((c for c in may if method in c.offers and c.reach.identity == session.owner), None)
