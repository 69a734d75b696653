"""Prompt turns, one at a time per session; session-wide mode, model and options."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import StorePrompt
from acp_gateway.core.permissions.consent import Consent
from acp_gateway.core.requests import QueuedPrompt
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions.own_meta import Aim, goes_on, with_result_meta, without_own_meta
from acp_gateway.core.sessions.places import CURSOR
from acp_gateway.core.sessions.session import EDITOR, Client, Request, Session
from acp_gateway.core.states import AgentPhase
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.echoes import Echo
from acp_gateway.core.turns.ends import outcome_of
from acp_gateway.core.turns.events import describe_client
from acp_gateway.core.turns.lost_prompts import note_end
from acp_gateway.core.turns.queued_prompts import describe_prompt, kept, left
from acp_gateway.core.turns.stops import Extent, extent_of
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message, RawId
from acp_gateway.protocol.not_sent import CANCELLED
from acp_gateway.protocol.text import lookup

_DONE: Final = b'{"stopReason":"end_turn"}'
"""Result of a prompt that a turn has taken which has ended since."""


class Turns:
    """Turns of the sessions of one agent process."""

    def __init__(self, agent: AgentState, routing: Routing) -> None:
        self._agent = agent
        self._process = agent.process
        self._histories = agent.histories
        self._routing = routing
        self.consent = Consent(agent, self.go_on)
        """Asks before a prompt is sent, where that is wanted."""
        self.storing: dict[str, list[Callable[[], None]]] = {}
        """Functions to call once the archive has stored what it was told of a prompt, by the key of that."""

    def prompt(self, session: Session, request: Request, *, is_next: bool = False) -> None:
        """Begin the turn of a prompt, or queue it: as the first one, if it `is_next`."""
        agent, is_first = self._agent, not (session.queue or self.consent.is_asked(session))
        is_free = is_first and (not session.turns or self._may_pass(session, request.client))
        if is_free and request.queued is None:
            self.begin(session, request)
        elif not is_next and request.queued is None and (why := self.too_many(session, request)):
            agent.refuse(request, jsonrpc.INVALID_REQUEST, why)
        else:
            waited = request.queued
            request.queued = self.describe(request) if waited is None else replace(waited, state="queued")
            others = session.queue if is_next else ()
            agent.waiting.add(request, Until.TURN_FREE, session)
            if others:
                agent.waiting.reorder([request, *others], Until.TURN_FREE, session)
            if not request.client.reach.guest:
                session.archive.keep_prompt(session, kept(request))
            if not others:
                self.go_on(session)

    def describe(self, request: Request) -> QueuedPrompt:
        """Describe a prompt that has to wait, under a new key."""
        agent = self._agent
        shown = describe_prompt(agent.registry.new_request_key(), agent.clock.wall_time, request.message)
        return replace(shown, auto=goes_on(request.message))

    def when_marked(self, session: Session, key: str, then: Callable[[], None]) -> None:
        """Call a function once the archive has stored that the agent may have a prompt: at most once, whatever ends."""
        if session.archive.send_prompt(session, key):
            then()
        else:
            self.when_stored(key, then)

    def when_stored(self, key: str, then: Callable[[], None]) -> None:
        """Call a function once the archive has stored what it knows of a prompt, unless the agent ends before."""
        self.storing.setdefault(key, []).append(then)
        self._agent.out.effect(StorePrompt(key))

    def stored(self, key: str) -> None:
        """Take note that the archive has stored what it was told of a prompt."""
        for then in self.storing.pop(key, ()):
            then()

    def hold(self, session: Session, request: Request, why: str = "") -> bool:
        """Keep a prompt that waits, without its request: for a person, or to be sent as soon as that can be.

        `why` is a reason for which a person alone sends it. Return False if it is not stored. One of a guest, who
        must not act in another owner's session later, is not kept at all.
        """
        self._agent.waiting.withdraw(request)
        if request.client.reach.guest:
            return False
        return self._agent.registry.keep_prompt(session, left(kept(request), self._agent.clock.wall_time, why))

    def hold_unsent(self, session: Session, client: Client | None = None, *, is_end: bool = False) -> list[str]:
        """Keep the prompts that wait in a session, those of a client or all, whose requests end now.

        Return the texts of those that are lost: of guests, and at the end of the gateway of those that are not stored.
        """
        lost = []
        for request in (*self._agent.waiting.of(Until.CONSENT, session), *session.queue):
            if request.queued is not None and client in (None, request.client):
                is_stored = self.hold(session, request)
                if request.client.reach.guest or (is_end and not is_stored):
                    lost.append(request.queued.text)
        return lost

    def join(self, session: Session, request: Request) -> None:
        """Answer a prompt that the running turn has taken at the end of that turn; at once if it has ended."""
        if not session.turns:
            self._agent.answer(request, _DONE)
            return
        session.turns[request] = self._agent.clock.now
        request.set_text(b"")
        session.note_change()

    def _may_pass(self, session: Session, client: Client) -> bool:
        """Return whether a client's prompts need not wait for the turn that runs: it has the process alone, or it works
        on a prompt of this editor, and the agent has told that it takes further ones itself.

        Clients that show the queue have other means to get a text into the turn.
        """
        agent = self._agent
        if not agent.policy.shared and len(agent.clients) == 1:
            return True
        is_told = agent.process.abilities.folds and client.via == EDITOR and not client.wants_queue
        return is_told and any(turn.client is client for turn in session.turns)

    def too_many(self, session: Session, request: Request) -> str | None:
        """Return why a prompt may not wait in a session; None if it may."""
        policy, registry = self._agent.policy, self._agent.registry
        limits, size, most = policy.limits, len(request.message.text), policy.gateway.memory_limit // 4
        here, own, all_ = (registry.waiting_sizes(*of) for of in ((None, session), (session.account,), ()))
        with_it = "with it, waiting prompts have more bytes than"
        for value, limit, why in (
            (len(here) + 1, limits.queued_prompts_per_session, "queued_prompts_per_session ({}) wait in this session"),
            (len(own) + 1, limits.queued_prompts_per_identity, "queued_prompts_per_identity ({}) wait"),
            (len(all_) + 1, limits.max_queued_prompts, "max_queued_prompts ({}) wait"),
            (sum(here) + size, limits.queued_bytes_per_session, f"{with_it} queued_bytes_per_session ({{}})"),
            (sum(own) + size, limits.queued_bytes_per_identity, f"{with_it} queued_bytes_per_identity ({{}})"),
            (sum(all_) + size, most, f"{with_it} a quarter of memory_limit ({{}})"),
        ):
            if value > limit:
                return f"{why.format(limit)} already"
        return None

    def cancel(self, client: Client, message: Message) -> None:
        """Cancel all turns of a session, and its queue, or the client's part of that."""
        assert message.session is not None
        session, aim = self._agent.live[message.session], Aim.read(message)
        extent = extent_of(aim, client, session, self._agent.clock.now)
        if extent is Extent.NOTHING:
            why = f"dropped a session/cancel of {client.name}: what it was meant for is over"
            self._agent.out.log(why, is_detail=True)
            return
        if extent is Extent.ALL:
            self.cancel_running(client, session, message.text)
        self.cancel_queued(session, client if extent is Extent.OWN_QUEUED else None)

    def cancel_running(self, client: Client, session: Session, text: bytes) -> None:
        """Cancel the turns of a session that run, by this `session/cancel`; the first queued prompt follows them."""
        for turn in session.turns:
            turn.is_cancelled = True
        # In this phase no session is dormant.
        if self._process.phase is AgentPhase.READY:
            self._agent.out.agent(without_own_meta(text))
        for agent_request in self._agent.agent_requests.turn_cancelled(session, by_guest=client.reach.guest):
            self._agent.news.report_decision(agent_request, client, "cancelled")

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
        for sender in session.attached if client is None else [client]:
            for request in sender.requests.values():
                # One that the agent is asked to take into the turn.
                if request.message.session == session.id and request not in session.turns:
                    request.is_cancelled = True

    def go_on(self, session: Session, request: Request | None = None) -> None:
        """Begin the turn of a prompt that may be sent, else that of the first one that waits, unless a turn runs."""
        if request is not None and request.queued is None:
            self.begin(session, request, is_allowed=True)
        elif request is not None:
            others = session.queue
            self._agent.waiting.add(request, Until.TURN_FREE, session)
            self._agent.waiting.reorder([request, *others], Until.TURN_FREE, session)
            self._begin_once_marked(session, request)
        policy = self._agent.policy
        # The clients were told that what waits when the agent is stopped is not sent.
        while session.queue and not (session.turns or self._process.cuts_turns or self.consent.is_asked(session)):
            first = session.queue[0]
            if first.queued is None or first.queued.key in self.storing:
                return
            if objection := policy.objection_to(first.client.sender, session):
                self.hold(session, first, objection)
                self._agent.refuse(first, jsonrpc.INVALID_REQUEST, f"this prompt was not sent: {objection}")
            elif policy.exceeded(session.account) is not None:
                self._agent.waiting.withdraw(first)
                self.consent.holds(session, first)
            else:
                self._begin_once_marked(session, first)

    def _begin_once_marked(self, session: Session, request: Request) -> None:
        assert request.queued is not None, "it waits"
        self.when_marked(session, request.queued.key, partial(self._begin_marked, session, request))

    def _begin_marked(self, session: Session, request: Request) -> None:
        if session.turns or self._agent.waiting.withdraw(request) is None:
            # The agent got another prompt before, after which this one is the first; or it does not wait any more.
            self.go_on(session)
        else:
            self.begin(session, request, is_allowed=True)

    def begin(self, session: Session, request: Request, *, is_allowed: bool = False) -> None:
        """Begin the turn of a prompt, beside those that run; unless it `is_allowed`, a person may be asked first."""
        if not (is_allowed or session.turns) and self.consent.holds(session, request):
            return
        self._histories.end_echo(session)
        # The previous turn may have been cut off.
        session.cut, session.restored, session.retelling = None, False, None
        session.archive.meter(session, "prompted")
        session.turns[request], request.begun_at = self._agent.clock.now, session.journal.position
        self._agent.registry.set_archived(session, archived=False)
        blocks = updates.blocks_of(request.message)
        title = updates.title_of(blocks) if session.title is None else None
        if title is not None:
            session.title = title
            session.archive.keep(session)
        session.note_change()
        chunks = [] if self._process.abilities.echoes else updates.user_chunks(session.id, request.message, blocks)
        # An agent of version 2 tells its id.
        is_placed = not self._agent.out.carries
        self._histories.turn_began(session, request, len(chunks) if is_placed else 0)
        if not self._process.abilities.echoes:
            self.expect_echo(session, request, chunks)
            if is_placed:
                self._histories.write_prompt(session, request, chunks)
            else:
                session.unplaced[request] = chunks
        self._agent.news.notify(session, "turn_started", **describe_client(request.client))
        text = without_own_meta(request.message.text)
        self._agent.open_requests.forward(request, partial(self._turn_ended, session=session), text)
        if request.early_result is not None:
            self._agent.answer(request, request.early_result)
        self._routing.route_again()

    def accepted(self, message: Message) -> None:
        """Tell the client of a prompt, if it speaks version 2 as well, that the agent has accepted it."""
        request = self._agent.open_requests.of_client(RawId(lookup.param(message, "requestId") or b"null"))
        if request is not None and (original := message.original) is not None:
            session, told = request.session, lookup.raw_at(original, "result", "messageId")
            if session is not None and self._histories.name_prompt(session, request, told):
                self._histories.write_prompt(session, request, session.unplaced.pop(request))
            client = request.client
            if client.translator is not None:
                self._agent.out.put(client, client.translator.accepted(request.id, original))

    def expect_echo(self, session: Session, request: Request, chunks: list[bytes]) -> None:
        """Expect that the agent repeats a prompt, which the other clients have as these chunks."""
        # The journal does not hold larger ones whole, and chunks kept only for the echo would not count as used memory.
        if chunks and sum(map(len, chunks)) <= self._agent.policy.gateway.journal_limit:
            session.echo = Echo(request, chunks)

    def _turn_ended(self, request: Request, response: Message, *, session: Session) -> None:
        outcome = outcome_of(response)
        session.archive.meter(session, "turn", response)
        if self._process.cuts_turns and outcome.stop_reason == updates.CANCELLED:
            return  # The history shows it as cut off.
        if session.echo is not None and session.echo.request is request:
            self._histories.end_echo(session)
        self._histories.place_prompts(session)
        session.unplaced.pop(request, None)
        if outcome.stop_reason == updates.CANCELLED and all(turn.agent_id is None for turn in session.turns):
            self._histories.end_calls(session, cancelled=True)
        began = session.turns.pop(request, None)
        if began is not None:
            # Before the answer, which has the place behind it.
            session.write_end(outcome, self._agent.clock.wall_time)
        self._answer(session, request, response)
        if began is None:
            return  # The session has ended before its turn.
        self._histories.turn_ended(session, began, outcome)
        # Of the prompts that the turn has taken, the agent answers none.
        joined = [other for other in session.turns if other.agent_id is None]
        if len(joined) < len(session.turns):
            return
        for other in joined:
            del session.turns[other]
            self._answer(session, other, response)
        session.end_turn()
        self.go_on(session)
        self._routing.route_again()

    def _answer(self, session: Session, request: Request, response: Message) -> None:
        """Answer a prompt with the agent's response at the end of its turn, unless it was answered before."""
        note_end(session, request, response)
        cursors = request.client.cursors
        cursor = None if cursors is None else cursors.at(session.id)
        if cursor is not None:
            response = with_result_meta(response, jsonrpc.encode({CURSOR: str(cursor)}))
        if not request.is_answered:
            self._agent.respond(request, response)

    def choose(self, client: Client, request: Request) -> None:
        """Handle a request for another mode, model or option of a session; what was chosen is told to all clients."""
        session = self._agent.session_of_request(client, request)
        if session is not None:
            self._agent.open_requests.forward(request, partial(self._chosen, session=session))

    def _chosen(self, request: Request, response: Message, *, session: Session) -> None:
        if not response.error:
            method = request.message.method
            note = {methods.SET_MODE: self._mode_set, methods.SET_MODEL: self._model_set}.get(method, self._option_set)
            note(request, response, session)
        self._agent.respond(request, response)

    def _mode_set(self, request: Request, _response: Message, session: Session) -> None:
        mode = lookup.text_param(request.message, "modeId")
        if mode is not None:
            update = updates.mode_update(session, mode)
            self._histories.write_choice(session, request.client, methods.MODE_UPDATE, update)
            self._audit_choice("mode", request.client, session, mode)

    def _model_set(self, request: Request, _response: Message, session: Session) -> None:
        model = lookup.text_param(request.message, "modelId")
        if model is not None:
            updates.set_current(session, "models", "currentModelId", model)
            session.note_change()
            self._audit_choice("model", request.client, session, model)

    def _option_set(self, request: Request, response: Message, session: Session) -> None:
        options = lookup.raw_at(response.text, "result", "configOptions")
        if options is not None:
            update = updates.config_update(session, options)
            self._histories.write_choice(session, request.client, methods.CONFIG_UPDATE, update)
            chosen = lookup.text_param(request.message, "value")
            category = updates.option_category(options, lookup.text_param(request.message, "configId"))
            if category in ("mode", "model") and chosen is not None:
                self._audit_choice(category, request.client, session, chosen)

    def _audit_choice(self, what: str, client: Client, session: Session, chosen: str) -> None:
        about = {"session": session.id, "agent": self._agent.name, what: chosen}
        self._agent.out.audit(f"{what}_set", client, **about)
