"""State of one agent process: its clients, its sessions, and the parts that have a subject of their own.

The modules that decide (`initialization`, `opening`, `turns`, `routing`) share this state and send through it:
`answer`, `respond` and `refuse` settle a request for its client, once; `open_requests` are those that the agent has to
answer first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from acp_gateway import __version__
from acp_gateway.core import capabilities
from acp_gateway.core.agent_requests import AgentRequests, Unattended
from acp_gateway.core.mcp_servers import McpConnections
from acp_gateway.core.output import Outgoing
from acp_gateway.core.process import OpenRequests, Process
from acp_gateway.core.requests import ErrorObject, Exceeded, LostErrors
from acp_gateway.core.sessions.own_meta import Rejoin
from acp_gateway.core.sessions.registry import Registry, Unopened
from acp_gateway.core.sessions.session import Client, Request, Session, SessionReach, Transit
from acp_gateway.core.sessions.sub_agents import SubAgents
from acp_gateway.core.states import SessionState
from acp_gateway.core.terminals import Terminals
from acp_gateway.core.turns.cut_turns import cut_reason
from acp_gateway.core.turns.events import Histories, News, describe_client
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.times import Clock
from acp_gateway.core.waiting import Event, Objection, Until, Waiting
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.gaps import gap
from acp_gateway.protocol.jsonrpc import ID_SIZE, Message
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.not_sent import name_prompt
from acp_gateway.rules.rule import Rule

if TYPE_CHECKING:
    from acp_gateway.config.agent_options import AgentSection
    from acp_gateway.config.limits import LimitsSection
    from acp_gateway.config.options import GatewaySection


@dataclass(frozen=True, slots=True)
class Policy:
    """The sections of the configuration that count for an agent, and what the core can't know of its machine."""

    agent: "AgentSection"
    gateway: "GatewaySection"
    limits: "LimitsSection"
    login_hint: Callable[[list[dict[str, Any]]], str]
    """Returns how to log the agent in on the gateway's machine, given its authentication methods."""
    version: str = __version__
    """Version of the gateway, for agents."""
    rules: Callable[[], Sequence[Rule]] = tuple
    """Returns the rules for permissions in force, the first ones first."""
    exceeded: Callable[[str], Exceeded | None] = lambda _: None
    """Returns the limit on costs that an account has reached, or all together have."""
    allow_more: Callable[[str, Exceeded], object] = lambda _, __: None
    """Allows an account as much again of what `exceeded` has returned for it."""
    objection_to: Callable[[str, Session], str] = lambda _, __: ""
    """Returns why a prompt of this `Client.sender` may not be sent in a session any more; empty if it may."""

    @property
    def shared(self) -> bool:
        """True if the process serves several clients: it gets the gateway's own capabilities, and outlives each."""
        return self.agent.scope != "connection"

    @property
    def common(self) -> bool:
        """True if the process serves several identities."""
        return self.agent.scope == "shared"

    @property
    def serves(self) -> frozenset[Capability]:
        """Client capabilities passed on to the agent; all others are masked."""
        passes = {Capability.FS: self.agent.client_fs, Capability.TERMINAL: self.agent.client_terminal}
        return frozenset(capability for capability, passed in passes.items() if passed)


MAX_FOLDERS: Final = 1000
"""Maximum directories of former sessions that are remembered; of further ones, that there are some."""


class AgentState:
    """An agent process, its clients and its sessions."""

    def __init__(self, name: str, policy: Policy, registry: Registry) -> None:
        self.name = name
        """Name in the configuration."""
        self.policy = policy
        self.registry = registry
        self.clock = Clock()
        self.process = Process()
        self.clients: dict[Client, None] = {}
        """The earliest first."""
        # Its sessions.
        self.live: dict[str, Session] = {}
        """Sessions that live in the process, by id."""
        self.former_folders: set[str | None] = set()
        """Directories of sessions that this process had, whose programs may be there still; None for unknown ones."""
        self.loading_journals: dict[Session, None] = {}
        """Sessions whose journal is being read from the archive."""
        self.unopened = Unopened()
        """Sessions that the agent could not open."""
        # What is asked of it, and what it asks.
        self.out = Outgoing()
        self.waiting = Waiting()
        """Requests that the agent has not got yet."""
        self.sub_agents = SubAgents(self.live, self.clients)
        self.open_requests = OpenRequests(self.out, self.sub_agents, self.respond)
        """Requests that the agent has not answered."""
        self.terminals = Terminals()
        self.mcp_connections = McpConnections()
        self.agent_requests = AgentRequests(self.out, self.terminals, policy.limits.decision_size)
        """Open requests of the agent to its clients."""
        # What is told of it.
        self.unattended = Unattended(self.agent_requests, self.out, self.clock)
        self.news = News(name, self.out, self.clock)
        self.histories = Histories(self.out, self.clock, self.news, self.live)

    @property
    def abandoned(self) -> bool:
        """True if no client is connected, and no disconnected one has a turn or a queued prompt."""
        return not any(client.connected for client in self.clients) and not any(
            (session.turns or session.queue) and not all(client.gone for client in session.attached)
            for session in self.live.values()
        )

    def may_see_output(self, client: Client) -> bool:
        """Return True if a client may see the process's stderr and the agent's account: secrets of the owner."""
        reach, policy = client.reach, self.policy
        # In a shared process, the output may be about another workspace.
        limited = reach.workspaces is not None and policy.shared
        return self.is_owned_by(client) and client.controls and not reach.guest and not limited

    def is_owned_by(self, client: Client) -> bool:
        """Return True if the process is that of a client's identity; where it serves several, of the gateway's user."""
        return not self.policy.common or client.reach.identity == self.registry.own_identity

    def refuse_lost(self, request: Request, lost: LostErrors) -> None:
        """Refuse a request to an agent that has ended."""
        code, why, data = lost.with_output if self.may_see_output(request.client) else lost.for_all
        if request.queued is not None and request.queued.state != "lost" and request.agent_id is None:
            why = f"{why}; {name_prompt('this prompt has waited and was not sent', request.queued.text)}"
            data = {**(data or {}), "notSent": True}
            if request.session is not None and request.queued.key in request.session.kept:
                data["waits"] = {"promptId": request.queued.key}
                why += "; it waits in the session until it is sent or removed"
        self.refuse(request, code, why, data)

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

    def questions(self, session: Session) -> int:
        """Return how many requests of the agent wait in a session for a person's decision."""
        return sum(agent_request.is_decision for agent_request in self.agent_requests.of(session))

    def note_prompts(self, session: Session) -> None:
        """Note that the kept prompts of a session have changed."""
        self.waiting.changed_queues[session] = None

    def drop_prompt(self, request: Request) -> None:
        """Delete a prompt that has waited from the archive, as its end is known, unless it goes on waiting there."""
        session, queued = request.session, request.queued
        if session is not None and queued is not None and queued.key not in session.kept:
            session.archive.drop_prompt(session, queued.key)

    def session_of_request(self, client: Client, request: Request) -> Session | None:
        """Return the session of a request if its client is attached; else refuse the request."""
        session = self.attached_session(client, request.message.session)
        if session is None:
            self.refuse_unknown(request, request.message.session)
        request.session = session
        return session

    def new_journal(self) -> Journal:
        """Return an empty journal with the configured limit."""
        return Journal(self.policy.gateway.journal_limit, self.registry.new_epoch())

    def new_session(self, session_id: str, reach: SessionReach) -> Session:
        """Return a new session of this agent, for a client with this reach."""
        session = Session(self.name, session_id, reach.identity, self.new_journal())
        session.account = reach.account
        return session

    def add_session(self, session: Session, state: SessionState, transit: Transit | None = None) -> None:
        """Add a session to this process, in this state; with what the agent is asked, if it has to answer first."""
        session.move_to(state, transit)
        self.unopened.forget(session)
        session.created_at = session.created_at or self.clock.wall_time
        self.live[session.id] = session
        self.out.ids.set(session.id, session.agent_id)
        self.registry.add(session, self)

    def remove_session(self, session: Session) -> None:
        """Remove a session from this process."""
        self.sub_agents.removed(session)
        self.histories.end_echo(session)
        self.histories.place_prompts(session)
        for request in session.turns:
            self.drop_prompt(request)
            # Of the prompts that a turn has taken, the agent answers none.
            if request.agent_id is None and not request.is_answered:
                self.answer(request, b'{"stopReason":"cancelled"}')
        for client in list(session.attached):
            self.detach(session, client)
        session.turns.clear()
        session.unplaced.clear()
        session.forget_content()
        del self.live[session.id]
        self.former_folders.add(session.cwd if len(self.former_folders) < MAX_FOLDERS else None)
        self.out.ids.set(session.id, None)
        session.move_to(SessionState.PAST)
        self.registry.end(session)

    def attach(self, session: Session, client: Client, *, hosts: bool, rejoin: Rejoin | None = None) -> None:
        """Attach a client to a session, where it may be attached already; one that `hosts` serves its files and
        terminals, where permitted. `rejoin` is the client's state from another link."""
        if client not in session.attached:
            self.news.notify(session, "attached", **describe_client(client))
            self.news.catch_up(session, client, cut_reason(session, rejoin))
            self.histories.introduce(session, client)
            self.out.audit("session_joined", client, session=session.id, agent=self.name, owner=session.owner)
            session.attached[client] = None
            client.sessions[session] = None
            session.note_change()
        if hosts and client.controls and not client.reach.guest and client.reach.identity == session.owner:
            former = session.host
            if client.offers or former is None or not former.offers:
                session.host = client
        self.out.send_position(session, [client])
        if client.cursors is not None:
            client.cursors.end_told(session.id, session.journal.ends_here)

    def detach(self, session: Session, client: Client) -> None:
        self.out.audit("session_left", client, session=session.id, agent=self.name)
        session.attached.pop(client, None)
        if client.cursors is not None:
            client.cursors.forget(session.id)
        session.note_change()
        client.sessions.pop(session, None)
        if client.translator is not None:
            self.out.put(client, client.translator.forget(session.id))
        # A connection bound to this session may join it again.
        client.joined = False
        if session.host is client:
            session.host = None
        self.agent_requests.detached(client, session)
        self.news.notify(session, "left", **describe_client(client))

    def respond(self, request: Request, response: Message) -> None:
        """Send the agent's response to the client, under the client's id."""
        if response.error:
            explained = capabilities.explain_login(response.text, self.process.auth_methods, self.policy.login_hint)
            if explained is not response.text:
                response = jsonrpc.parse(explained)
        text, client, original = jsonrpc.with_id(response, request.id), request.client, response.original
        if original is not None and client.translator is not None:
            client.remove_request(request)
            self.drop_prompt(request)
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

    def refuse(self, request: Request, code: int, why: str, data: dict[str, Any] | None = None) -> None:
        self._deliver_answer(request, jsonrpc.error(request.id, code, why, data))

    def _deliver_answer(self, request: Request, text: bytes) -> None:
        request.is_answered = True
        request.client.remove_request(request)
        self.drop_prompt(request)
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
        most, most_size = self.policy.limits.max_open_requests, self.policy.gateway.outbox_limit
        if pending >= most:
            return f"comes while max_open_requests ({most}) are not answered"
        if size and size + len(message.text) > most_size:
            return f"comes while {size} bytes of others wait already (outbox_limit is {most_size})"
        return None
