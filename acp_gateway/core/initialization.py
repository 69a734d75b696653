"""`initialize` of an agent process, once for all of its clients, and the reset after the process has ended."""

from collections.abc import Mapping, Sequence
from typing import Any

from acp_gateway.core import access_rules, capabilities
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import ErrorObject, LostErrors, OwnRequest, TurnOutcome
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions.agent_opening import Reopening
from acp_gateway.core.sessions.known_history import end_wait
from acp_gateway.core.sessions.own_meta import last_id, without_own_meta
from acp_gateway.core.sessions.places import Cursors
from acp_gateway.core.sessions.session import Client, Request
from acp_gateway.core.states import AgentPhase, ClientPhase, SessionState
from acp_gateway.core.turns.cut_turns import AGENT_ENDED
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.versions.old_agent import OldAgent


class Initialization:
    """Initialization and reset of one agent process."""

    def __init__(self, agent: AgentState, routing: Routing) -> None:
        self._agent = agent
        self._process = agent.process
        self._routing = routing
        # `initialize` as forwarded, the client's request that it was made from, and the response for clients.
        self._first: Message | None = None
        self._proposal: Message | None = None
        self._response: Message | None = None

    def translator_for(self, initialize: Message) -> OldAgent | None:
        """Return the translator for a client whose `initialize` asks for version 2; None for a client that needs none.

        The core speaks version 1; an agent of version 2 has a translator of its own before it.
        """
        wanted = capabilities.requested_version(initialize.text)
        is_newer = wanted is not None and wanted > capabilities.VERSION
        return OldAgent() if is_newer else None

    def initialize(self, client: Client, request: Request) -> None:
        if client.phase is not ClientPhase.NEW:
            self._agent.refuse(request, jsonrpc.INVALID_REQUEST, "initialize has been called already")
        elif self._process.lost is not None:
            self._agent.refuse_lost(request, self._process.lost)
        elif flaw := access_rules.flaw_of_params(request.message) or capabilities.flaw_of_offer(request.message.text):
            self._agent.refuse(request, jsonrpc.INVALID_PARAMS, flaw)
        else:
            client.move_to(ClientPhase.WAITING)
            client.wants_news = capabilities.wants_news(request.message.text)
            client.wants_queue = capabilities.asks_for(request.message.text, "queue")
            client.wants_ends = capabilities.asks_for(request.message.text, "ends")
            client.wants_rules = capabilities.asks_for(request.message.text, "rules")
            client.decides = client.controls and capabilities.decides(request.message.text)
            if capabilities.asks_for(request.message.text, "cursors"):
                client.cursors, client.counts = Cursors(), True
            client.offers = capabilities.offered_requests(request.message.text)
            client.mint_above(last_id(request.message))
            if self._response is not None:
                self._respond(request)
                return
            self._agent.waiting.add(request, Until.INITIALIZED)
            if self._process.phase is AgentPhase.ABSENT:
                self.begin(request.message if client.controls else None)

    def begin(self, proposal: Message | None = None) -> None:
        """Initialize a new process; `proposal` is the client's request that caused its start."""
        policy = self._agent.policy
        if policy.shared or (self._first is None and proposal is None):
            self._first = capabilities.own_initialize(policy.serves, policy.version)
        elif self._first is None and proposal is not None:
            self._proposal = proposal
            text = capabilities.mask_capabilities(without_own_meta(proposal.text), policy.serves)
            self._first = jsonrpc.parse(text)
        assert self._first is not None
        self._process.move_to(AgentPhase.STARTING)
        self._agent.open_requests.forward(OwnRequest(self._first), self._initialized)

    def clear(self, reason: str | None = None) -> None:
        """Reset the state of a process that has ended.

        Args:
            reason: the reason why its turns have ended, for the clients; None if no client is left. Then histories stay
                as if these turns went on, and a later process finds them cut off.
        """
        agent = self._agent
        agent.open_requests.clear()
        agent.waiting.clear(but=Until.SESSION_REOPENED)
        while agent.loading_journals:
            end_wait(agent.loading_journals.popitem()[0])
        agent.agent_requests.agent_lost()
        agent.terminals.clear()
        agent.mcp_connections.clear()
        if self._process.phase in (AgentPhase.STARTING, AgentPhase.READY):
            self._process.move_to(AgentPhase.ABSENT)
        self._routing.clear()
        if self._response is None:
            self._first = None
        for session in list(agent.live.values()):
            agent.histories.end_echo(session)
            if session.state is not SessionState.DORMANT:
                session.process_exited = reason == AGENT_ENDED
            agent.histories.place_prompts(session)
            agent.histories.end_own_state(session, reason)
            agent.unattended.note_state(session)
            if session.turns:
                outcome = TurnOutcome(cut=reason)
                if reason is not None:
                    session.write_end(outcome, agent.clock.wall_time)
                    session.end_turn()
                agent.histories.turn_ended(session, min(session.turns.values()), outcome)
            for request in session.turns:
                agent.drop_prompt(request)
            session.turns.clear()
            session.unplaced.clear()
            if session.attached and self._process.abilities.reopens:
                if session.state is not SessionState.DORMANT:
                    session.move_to(SessionState.DORMANT)
            else:
                agent.remove_session(session)
        agent.sub_agents.clear()

    def _initialized(self, _own: OwnRequest, response: Message) -> None:
        most = self._agent.policy.limits.initialize_response_size
        if len(response.text) > most:
            why = f"the agent's answer to initialize has more than initialize_response_size ({most} bytes)"
            response = jsonrpc.parse(jsonrpc.error(response.id, jsonrpc.INTERNAL_ERROR, why))
        waiters = self._agent.waiting.release(Until.INITIALIZED)
        held = self._agent.waiting.release(Until.AGENT_READY)
        self._process.auth_methods = capabilities.auth_methods(response.text)
        if response.error:
            self._process.move_to(AgentPhase.ABSENT)
            if self._response is None:
                self._first = None
            for request in [*waiters, *held, *self._agent.waiting.release_kind(Until.SESSION_REOPENED)]:
                if request in waiters:
                    request.client.move_to(ClientPhase.NEW)
                self._agent.respond(request, response)
            return
        self._process.move_to(AgentPhase.READY)
        self._process.abilities = capabilities.abilities(response.text)
        self.set_carries(carries=response.pair is not None)
        text = capabilities.strip_terminal_logins(response.text)
        self._response = jsonrpc.parse(capabilities.advertise(text) if self._agent.policy.shared else text)
        for request in waiters:
            self._respond(request)
        for session in list(self._agent.live.values()):
            if session.attached:
                Reopening(self._agent, self._routing, session).start()
            else:
                self._agent.remove_session(session)
        if self._process.never_reopens:
            held += self._agent.waiting.release_kind(Until.SESSION_REOPENED)
        for request in held:
            self._agent.waiting.handle(request)

    def set_carries(self, *, carries: bool) -> None:
        """Note whether the agent's messages carry others."""
        self._agent.out.carries = carries
        for client in self._agent.clients:
            if client.translator is not None:
                client.translator.is_same = carries

    def _respond(self, request: Request) -> None:
        """Answer `initialize` with the negotiated version and capabilities."""
        client, agreed = request.client, self._process.abilities.version
        assert self._response is not None
        wanted = capabilities.requested_version(request.message.text)
        if client.translator is not None and agreed is not None and agreed > capabilities.VERSION:
            # It speaks the client's version, though it was asked for the other one.
            client.translator, wanted = None, agreed
        if request.message is not self._proposal and agreed is not None and (wanted is None or wanted < agreed):
            client.move_to(ClientPhase.NEW)
            what = "no number" if wanted is None else f"version {wanted}"
            why = f"the agent speaks version {agreed} of the protocol with its clients; {what} was asked for"
            self._agent.refuse(request, jsonrpc.INVALID_PARAMS, why, {"requested": wanted, "negotiated": agreed})
            return
        client.move_to(ClientPhase.READY)
        if client.translator is not None:
            client.translator.is_same = self._agent.out.carries
        response, cursors = self._response, client.cursors is not None
        if cursors or client.wants_news:
            own = capabilities.advertise_own(response.text, cursors=cursors, queue=client.wants_news)
            response = jsonrpc.parse(own)
        self._agent.respond(request, response)
        self._routing.route_again()


def lost_errors(why: str, data: dict[str, Any], written: Mapping[str, Sequence[str]], details: str) -> LostErrors:
    """Return the errors for requests to a process that has ended, with its last output for clients that may see it."""
    more = data | {name: list(lines) for name, lines in written.items() if lines}
    for name, lines in written.items():
        if lines:
            details += f"; the last it wrote to {name}: {lines[-1]}"
    errors = ErrorObject(jsonrpc.INTERNAL_ERROR, why, data), ErrorObject(jsonrpc.INTERNAL_ERROR, details, more)
    return LostErrors(*errors)
