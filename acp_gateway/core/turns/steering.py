"""Steering: text that an agent takes into the turn that runs, where it has a method for that.

A client calls that method itself, or asks the gateway to use it: for a prompt that waits, or one with
`"steer": true` in `params._meta["acp-gateway"]`. Once the agent has taken a text, it is in the history and at the other
clients, as a prompt is; such a prompt is answered at the end of the turn that has taken it.

An agent whose turn has ended by then would begin another one, and tell no client its end. So it is asked not to, and
the text becomes an ordinary prompt.
"""

import enum
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import OwnRequest
from acp_gateway.core.sessions.own_meta import asks_to_steer, without_own_meta
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.turns import Turns
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.not_sent import CANCELLED
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.json_text import with_member

TakesPrompt: TypeAlias = Callable[[Session, Request], bool]
"""Takes a prompt that is to wait, or waits already; returns False for any other."""

CANNOT: Final = "the agent takes nothing into a turn that runs"
NO_TURN: Final = "no turn runs that could take it"

_WHEN_IDLE: Final = b'{"idleBehavior":"promptRequired"}'
"""Member `steering` of `_meta` that asks an agent not to begin a turn by itself."""

_NO_TURN: Final = b'{"outcome":"promptRequired","reason":"noRunningTurn"}'
_BEGUN: Final = b'{"outcome":"startedNewTurn"}'
"""Results for a client whose text was not taken, and whose text was made a prompt."""


class _Outcome(enum.Enum):
    """Use that an agent has made of a text for the turn."""

    TAKEN = enum.auto()
    """It is in the conversation; the agent may have begun a turn with it."""
    NO_TURN = enum.auto()
    """None runs, and the text was not used."""
    REFUSED = enum.auto()


_OUTCOMES: Final = {
    b'"injected"': _Outcome.TAKEN,
    b'"startedNewTurn"': _Outcome.TAKEN,
    b'"promptRequired"': _Outcome.NO_TURN,
}
"""Meanings of the results of `_session/steering`. Some agents answer an unknown method with an empty one."""


class Steering:
    """Steering of the turns of one agent process."""

    def __init__(self, agent: AgentState, turns: Turns, takes: TakesPrompt) -> None:
        self._agent = agent
        self._process = agent.process
        self._histories = agent.histories
        self._turns = turns
        self._takes = takes

    def prompt(self, client: Client, request: Request) -> None:
        """Handle `session/prompt`."""
        session = self._agent.session_of_request(client, request)
        if session is None:
            return
        if self._takes(session, request):
            return
        if session.turns and self._process.abilities.steering is not None and asks_to_steer(request.message):
            self._offer(session, request)
        else:
            self._turns.prompt(session, request)

    def take(self, session: Session, request: Request) -> str | None:
        """Offer a prompt that waits to the agent for the turn that runs; return why that can't be, if it can't."""
        if self._process.abilities.steering is None:
            return CANNOT
        if not session.turns:
            return NO_TURN  # It waits behind one that a person is asked about.
        assert request.queued is not None, "it waits"
        self._turns.when_marked(session, request.queued.key, partial(self._offer_marked, session, request))
        return None

    def _offer_marked(self, session: Session, request: Request) -> None:
        if not session.turns:
            self._turns.go_on(session)
        elif self._agent.waiting.withdraw(request) is not None:
            self._offer(session, request)

    def steer(self, client: Client, request: Request) -> None:
        """Handle `_session/steering` of a client."""
        agent, message = self._agent, request.message
        session = agent.session_of_request(client, request)
        if session is None:
            return
        if not (session.turns or session.own_state):
            self._begin(session, request)
            return
        text = without_own_meta(message.text)
        at = spans.find(text, "params")
        assert at is not None, "it names a session"
        meta = jsonrpc.compose(lookup.members_at(text, "params", "_meta") | {"steering": _WHEN_IDLE})
        text = spans.splice(text, [(*at, with_member(text[at[0] : at[1]], "_meta", meta))])
        agent.open_requests.forward(request, partial(self._steered, session=session), text)

    def inject(self, client: Client, request: Request) -> None:
        """Handle `session/inject` of a client, by which it says itself what is done without a turn."""
        session = self._agent.session_of_request(client, request)
        if session is not None:
            then = partial(self._steered, session=session)
            self._agent.open_requests.forward(request, then, without_own_meta(request.message.text))

    def _steered(self, request: Request, response: Message, *, session: Session) -> None:
        """Take the agent's response to a client's own text for the turn."""
        outcome = _outcome_of(response)
        is_steer = request.message.method == methods.STEER
        # Of a client that has gone, most of the text was dropped.
        if outcome is _Outcome.NO_TURN and is_steer and self._is_live(session) and not request.client.gone:
            self._begin(session, request)
            return
        if outcome is _Outcome.TAKEN and self._is_live(session):
            # In version 2 a client is shown its own texts too.
            request.handed_over = request.client.translator is not None
            self._show(session, request)
        self._agent.respond(request, response)

    def _begin(self, session: Session, request: Request) -> None:
        """Make a client's text for a turn a prompt, unless the client wants to do that itself."""
        if lookup.param(request.message, "_meta", "steering", "idleBehavior") == b'"promptRequired"':
            self._agent.answer(request, _NO_TURN)
            return
        if request.is_cancelled:
            self._agent.refuse(request, jsonrpc.REQUEST_CANCELLED, "cancelled before a turn began")
            return
        text = without_own_meta(request.message.text)
        at = spans.find(text, "method")
        assert at is not None, "it is a request"
        request.replace(spans.splice(text, [(*at, jsonrpc.encode(methods.PROMPT))]))
        request.early_result = _BEGUN
        self._turns.prompt(session, request)

    def _offer(self, session: Session, request: Request) -> None:
        """Offer a prompt, which does not wait, to the agent for the turn that runs."""
        method = self._process.abilities.steering
        assert method is not None, "the agent steers"
        if method == methods.PROMPT:
            self._turns.begin(session, request)
            return
        blocks = b"[%b]" % b",".join(updates.blocks_of(request.message))
        params = {"sessionId": jsonrpc.encode(session.id), methods.PROMPTS[method]: blocks}
        if method == methods.STEER:
            params["_meta"] = jsonrpc.compose({"steering": _WHEN_IDLE})
        else:
            params["mode"] = b'"steer"'
        text = b'{"jsonrpc":"2.0","id":0,"method":%b,"params":%b}' % (jsonrpc.encode(method), jsonrpc.compose(params))
        if request.queued is not None:
            # It does not wait any more: the agent may have it.
            request.queued = replace(request.queued, state="lost")
        then = partial(self._offered, session=session, request=request)
        self._agent.open_requests.forward(OwnRequest(jsonrpc.parse(text)), then)

    def _offered(self, _: OwnRequest, response: Message, *, session: Session, request: Request) -> None:
        """Take the agent's response to a prompt that was offered for the turn."""
        agent, client = self._agent, request.client
        is_live = self._is_live(session)
        if is_live and _outcome_of(response) is _Outcome.TAKEN:
            self._show(session, request, joins=not request.is_answered)
        elif request.is_answered or (client.gone and client.reach.guest):
            # With its connection; or it must not act in another owner's session.
            return
        elif is_live and not request.is_cancelled:
            self._turns.prompt(session, request, is_next=True)
        else:
            agent.answer(request, CANCELLED)

    def _show(self, session: Session, request: Request, *, joins: bool = False) -> None:
        """Write a text that the agent has taken to the history, and show it to the other clients; one that `joins` the
        turn is a prompt."""
        agent = self._agent
        self._histories.end_echo(session)
        self._histories.place_prompts(session)
        # An agent of version 2 shows it itself.
        tells = agent.out.carries or self._process.abilities.echoes
        blocks = [] if tells else updates.blocks_of(request.message)
        chunks = updates.user_chunks(session.id, request.message, blocks)
        if joins and session.turns:
            self._histories.turn_began(session, request, len(chunks))
        if chunks:
            self._turns.expect_echo(session, request, chunks)
            self._histories.write_prompt(session, request, chunks)
        if joins:
            self._turns.join(session, request)

    def _is_live(self, session: Session) -> bool:
        return self._agent.live.get(session.id) is session


def _outcome_of(response: Message) -> _Outcome:
    if response.error:
        return _Outcome.REFUSED
    if lookup.raw_at(response.text, "result", "messageId") is not None:
        return _Outcome.TAKEN
    return _OUTCOMES.get(lookup.raw_at(response.text, "result", "outcome") or b"", _Outcome.REFUSED)
