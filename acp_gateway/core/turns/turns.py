"""Prompt turns, one at a time per session; session-wide mode, model and options."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from acp_gateway.core.agent_state import AgentState, describe_client
from acp_gateway.core.requests import TurnOutcome
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions.own_meta import keeps_queue, without_own_meta
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.states import AgentPhase
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.cut_turns import turn_begins
from acp_gateway.core.turns.echoes import Echo
from acp_gateway.core.turns.lost_prompts import (
    former_prompt,
    note_end,
    remember_ended,
    turns_told,
    with_claim,
)
from acp_gateway.core.turns.queued_prompts import describe_prompt
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup

CANCELLED: Final = b'{"stopReason":"cancelled"}'
"""Result of a prompt that was cancelled before the agent had it."""


class Turns:
    """Turns of the sessions of one agent process."""

    def __init__(self, agent: AgentState, routing: Routing) -> None:
        self._agent = agent
        self._routing = routing

    def prompt(self, client: Client, request: Request) -> None:
        session = self._agent.session_of_request(client, request)
        if session is None:
            return
        alone = not self._agent.policy.shared and len(self._agent.clients) == 1
        if not session.turns or (alone and not session.queue):
            self._start_turn(session, request)
        elif why := self._too_many(session):
            self._agent.refuse(request, jsonrpc.INVALID_REQUEST, why)
        else:
            agent = self._agent
            request.queued = describe_prompt(agent.registry.new_request_key(), agent.wall_time, request.message)
            agent.waiting.add(request, Until.TURN_FREE, session)

    def _too_many(self, session: Session) -> str | None:
        """Return why a prompt may not be queued in a session; None if it may."""
        policy, registry = self._agent.policy, self._agent.registry
        if len(session.queue) >= policy.queued_prompts_per_session:
            return f"queued_prompts_per_session ({policy.queued_prompts_per_session}) wait in this session already"
        if registry.count_waiting(session.owner) >= policy.queued_prompts_per_identity:
            return f"queued_prompts_per_identity ({policy.queued_prompts_per_identity}) wait already"
        if registry.count_waiting() >= policy.max_queued_prompts:
            return f"max_queued_prompts ({policy.max_queued_prompts}) wait already"
        return None

    def cancel(self, client: Client, message: Message) -> None:
        """Cancel all turns of a session, and its queue, or the client's part of that."""
        assert message.session is not None
        session, text = self._agent.live[message.session], message.text
        spares_others = keeps_queue(message)
        if spares_others and self._agent.link is None:
            text = without_own_meta(text)
        self.cancel_running(client, session, text)
        self.cancel_queued(session, client if spares_others else None)

    def cancel_running(self, client: Client, session: Session, text: bytes) -> None:
        """Cancel the turns of a session that run, by this `session/cancel`; the first queued prompt follows them."""
        # In this phase no session is dormant.
        if self._agent.phase is AgentPhase.READY:
            self._agent.out.agent(text)
        for agent_request in self._agent.agent_requests.turn_cancelled(session):
            self._agent.report_decision(agent_request, client, "cancelled")

    def cancel_queued(self, session: Session, client: Client | None = None) -> None:
        """Answer the prompts that the agent does not have yet: those of a client, or all."""
        waiting = self._agent.waiting
        queued = set(session.queue)

        def prompts_in_it(request: Request) -> bool:
            if client not in (None, request.client):
                return False
            if request in queued:
                return True
            # Prompts of other clients are not checked yet: their clients may not even see the session.
            message, attached = request.message, request.client in session.attached
            return attached and message.method == methods.PROMPT and message.session == session.id

        for request in waiting.take(prompts_in_it):
            self._agent.answer(request, CANCELLED)

    def _start_turn(self, session: Session, request: Request) -> None:
        self._agent.end_echo(session)
        turn_begins(session)
        session.turns[request] = self._agent.now
        self._agent.registry.set_archived(session, archived=False)
        blocks = updates.blocks_of(request.message)
        title = updates.title_of(blocks) if session.title is None else None
        if title is not None:
            session.title = title
            session.archive.keep(session)
        session.note_change()
        self._agent.turn_began(session, request)
        if not self._agent.abilities.echoes:
            chunks = updates.user_chunks(session.id, request.message, blocks)
            # The journal does not hold larger ones whole, and chunks kept only for the echo would not count as used
            # memory.
            if chunks and sum(map(len, chunks)) <= self._agent.policy.journal_limit:
                session.echo = Echo(request, chunks)
            if self._agent.link is not None or self._agent.carries:
                # Another gateway tells its place, an agent of version 2 its id.
                session.unplaced[request] = chunks
            else:
                self._agent.write_prompt(session, request, chunks)
        self._agent.notify(session, "turn_started", **describe_client(request.client))
        text = without_own_meta(request.message.text) if self._agent.link is None else with_claim(request)
        self._agent.forward(request, partial(self._turn_ended, session=session), text)
        self._routing.route_again()

    def take_over(self, session: Session, told: Mapping[str, bytes]) -> None:
        """Take over the turns of an earlier process of this gateway, as the gateway with the agent has told them."""
        for number, claim in turns_told(told):
            if number in self._agent.open_requests:
                continue
            request = former_prompt(session, claim)
            self._agent.expect(request, number, partial(self._turn_ended, session=session))
            session.turns[request] = self._agent.now
            self._agent.notify(session, "turn_started", **describe_client(None))
        remember_ended(session, told)
        session.restored = session.restored and not session.turns
        session.note_change()

    def _turn_ended(self, request: Request, response: Message, *, session: Session) -> None:
        if session.echo is not None and session.echo.request is request:
            self._agent.end_echo(session)
        self._agent.place_prompts(session)
        session.unplaced.pop(request, None)
        note_end(session, request, response)
        self._agent.respond(request, response)
        began = session.turns.pop(request, None)
        if began is None:
            return  # The session has ended before its turn.
        error = updates.error_of(response) if response.error else None
        stop_reason = lookup.text_at(response.text, "result", "stopReason")
        self._agent.turn_ended(session, began, TurnOutcome(stop_reason, error))
        if session.turns:
            return
        session.end_turn()
        following = self._agent.waiting.release_first(Until.TURN_FREE, session)
        if following is not None:
            self._start_turn(session, following)
        self._routing.route_again()

    def set_mode(self, client: Client, request: Request) -> None:
        """Handle `session/set_mode`."""
        self._set(client, request, self._mode_set)

    def set_model(self, client: Client, request: Request) -> None:
        """Handle `session/set_model`."""
        self._set(client, request, self._model_set)

    def set_option(self, client: Client, request: Request) -> None:
        """Handle `session/set_config_option`."""
        self._set(client, request, self._option_set)

    def _set(self, client: Client, request: Request, then: Callable[[Request, Message, Session], None]) -> None:
        """Forward a choice for the whole session; its response is fanned out."""
        session = self._agent.session_of_request(client, request)
        if session is not None:
            self._agent.forward(request, lambda request, response: then(request, response, session))

    def _mode_set(self, request: Request, response: Message, session: Session) -> None:
        mode = lookup.text_param(request.message, "modeId")
        if mode is not None and not response.error:
            update = updates.mode_update(session, mode)
            self._agent.fan_out_choice(session, request.client, methods.MODE_UPDATE, update)
            self._audit_choice("mode", request.client, session, mode)
        self._agent.respond(request, response)

    def _model_set(self, request: Request, response: Message, session: Session) -> None:
        model = lookup.text_param(request.message, "modelId")
        if model is not None and not response.error:
            updates.set_current(session, "models", "currentModelId", model)
            session.note_change()
            self._audit_choice("model", request.client, session, model)
        self._agent.respond(request, response)

    def _audit_choice(self, what: str, client: Client, session: Session, chosen: str) -> None:
        about = {"session": session.id, "agent": self._agent.name, what: chosen}
        self._agent.out.audit(f"{what}_set", client, **about)

    def _option_set(self, request: Request, response: Message, session: Session) -> None:
        options = lookup.raw_at(response.text, "result", "configOptions")
        if options is not None:
            update = updates.config_update(session, options)
            self._agent.fan_out_choice(session, request.client, methods.CONFIG_UPDATE, update)
            chosen = lookup.text_param(request.message, "value")
            category = updates.option_category(options, lookup.text_param(request.message, "configId"))
            if category in ("mode", "model") and chosen is not None:
                self._audit_choice(category, request.client, session, chosen)
        self._agent.respond(request, response)
