"""Opens a session whose agent is behind another gateway where its history ends here, and takes its turns over."""

from functools import partial
from typing import Protocol

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import OwnRequest, Request
from acp_gateway.core.sessions.continuing import continue_journal
from acp_gateway.core.sessions.far_history import ask_for_turns, former_told
from acp_gateway.core.sessions.rejoining import Rejoin, with_request_meta, without_result_meta
from acp_gateway.core.sessions.session import Client, Session
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.lost_prompts import claims_in
from acp_gateway.core.turns.turns import Turns
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, lookup, methods
from acp_gateway.protocol.jsonrpc import Message, RawId


class Opening(Protocol):
    """The part of `SessionOpening` that is used here."""

    def open_live(self, session: Session, client: Client, request: Request) -> None:
        """Load or resume a session that is live here."""

    def set_open(self, session: Session) -> None:
        """End the opening of a session."""

    def not_loaded(self, request: Request | OwnRequest, response: Message, session: Session, *, first: bool) -> None:
        """Handle the error in response to opening a session that was not live."""


class FarOpening:
    """Opens sessions that another gateway has as well."""

    def __init__(self, agent: AgentState, turns: Turns, opening: Opening) -> None:
        self._agent = agent
        self._turns = turns
        self._opening = opening

    def continued(self, request: Request | OwnRequest, response: Message, *, session: Session, first: bool) -> None:
        """Handle the response to opening a session whose history goes on at its place in that of another gateway."""
        recorded, session.recorded = session.recorded, None
        if response.error:
            self._opening.not_loaded(request, response, session, first=first)
            return
        assert recorded is not None
        self.take_over(session, response)
        finish = partial(self._finish, request, response, session)
        if session.continues:
            session.may_lack_end = False
            finish()
            return
        # That is the whole history, or nothing: its end has a place with the next mark.
        session.far = None
        if recorded.position or not session.journal.position:
            if not session.turns:
                recorded.turn_ended()
            session.take_journal(recorded)
        else:
            # The other gateway has lost its history; here is a part of it.
            session.may_lack_end = True
            continue_journal(session, self._agent.registry.new_epoch(), self._agent.wall_time)
        for state in recorded.states():
            updates.read_state(session, jsonrpc.parse(state))
        session.finish_opening = finish

    def _finish(self, request: Request | OwnRequest, response: Message, session: Session) -> None:
        """Open a session whose history and place are known."""
        session.keep_result(without_result_meta(response))
        if isinstance(request, Request) and not request.client.gone:
            self._opening.open_live(session, request.client, request)
        self._opening.set_open(session)

    def take_over(self, session: Session, response: Message) -> None:
        """Take over the turns that another gateway has, and end the one that it has not."""
        told = lookup.members_at(response.text, "result", "_meta", methods.META)
        session.cut = lookup.text_at(told.get("cut", b"null"))
        session.far_start = jsonrpc.id_number(RawId(told.get("start", b"null")))
        session.far_former = former_told(told)
        self._turns.take_over(session, told)
        if session.far_start is None:
            # An earlier version tells nothing: the turn may go on.
            session.restored = False
        elif session.journal.running() and not session.turns:
            session.end_turn()

    def asks_again(self, session: Session, request: Request, rejoin: Rejoin) -> bool:
        """Ask the other gateway for prompts of a returning client that are not known here; return True if it waits.

        Another client has opened the session first, and nothing here told their link.
        """
        client = request.client
        if session.far_start is None or session.in_transition or request.session is session or not client.controls:
            return False
        known = {turn.claim for turn in (*session.turns, *session.queue)} | session.ended.keys()
        missing = claims_in(client, rejoin).keys() - known
        if not missing:
            return False
        request.session = session
        own = OwnRequest(session.opening_request(methods.RESUME))
        then = partial(self._told, request=request, session=session)
        self._agent.forward(own, then, with_request_meta(own.message.text, ask_for_turns(session, sorted(missing))))
        return True

    def _told(self, _own: OwnRequest, response: Message, *, request: Request, session: Session) -> None:
        """Go on with a client's request when the other gateway has told the turns."""
        if self._agent.live.get(session.id) is not session:
            self._agent.refuse_unknown(request, session.id)
            return
        self._turns.take_over(session, lookup.members_at(response.text, "result", "_meta", methods.META))
        if session.in_transition:
            self._agent.waiting.add(request, Until.SESSION_OPEN, session)
        elif not request.client.gone:
            self._opening.open_live(session, request.client, request)
