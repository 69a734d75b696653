"""Asks before a prompt is sent when a limit on what may be spent is reached.

The question is a permission request of the gateway itself to the controllers of the session's owner: the first answer
decides, and it is shown, held and audited as an agent's. Until then the prompt waits, and later ones behind it. A guest
is not asked, as it spends what is another one's.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from acp_gateway.core.agent_requests import AgentRequest, undecided
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import ErrorObject, Exceeded
from acp_gateway.core.sessions.session import Request, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import REQUEST_PERMISSION, Audience
from acp_gateway.protocol.not_sent import CANCELLED, QUESTION
from acp_gateway.protocol.text import lookup

SEND: Final = "send"
MORE: Final = "more"
REFUSE: Final = "refuse"
"""Ids of the options."""

_ELSEWHERE: Final = "send a prompt from `acp-gateway chat` or the page, which ask"


class Consent:
    """Questions before prompts of one agent process.

    Args:
        go_on: begins the turn of a prompt that may be sent, or of the next one without it.
    """

    def __init__(self, agent: AgentState, go_on: Callable[[Session, Request | None], None]) -> None:
        self._agent = agent
        self._go_on = go_on
        self._questions: dict[Session, AgentRequest] = {}
        # Sessions in which a question has ended and its prompt was not sent.
        self._ended: dict[Session, None] = {}

    def is_asked(self, session: Session) -> bool:
        """Return True if a prompt of a session waits for an answer."""
        return bool(self._agent.waiting.of(Until.CONSENT, session))

    def holds(self, session: Session, request: Request) -> bool:
        """Ask before a prompt of a session without a running turn is sent, or refuse it; return False if neither."""
        exceeded = self._agent.policy.exceeded(session.account)
        if exceeded is None:
            return False
        if request.client.reach.guest:
            self._agent.refuse(request, *_refusal(f"{exceeded}. Only the session's owner can go on: {_ELSEWHERE}"))
            return True
        self._agent.waiting.add(request, Until.CONSENT, session)
        self._ask(session, exceeded)
        return True

    def _ask(self, session: Session, exceeded: Exceeded) -> None:
        agent, key = self._agent, self._agent.registry.new_request_key()
        options = [
            (SEND, "Send this prompt", "allow_once"),
            (MORE, f"Send it, and ask again after {exceeded.limit} more", "allow_always"),
            (REFUSE, "Do not send it", "reject_once"),
        ]
        params = {
            "sessionId": session.id,
            "toolCall": {"toolCallId": f"{QUESTION}{key}", "title": f"Send the prompt? {exceeded}", "kind": "other"},
            "options": [{"optionId": it, "name": name, "kind": kind} for it, name, kind in options],
        }
        question = {"jsonrpc": "2.0", "id": f"acp-gateway-{key}", "method": REQUEST_PERMISSION, "params": params}
        message = jsonrpc.parse(jsonrpc.encode(question))
        request = AgentRequest(message, Audience.CONTROLLERS, session, agent.clock.now)
        request.arrived_time, request.key = agent.clock.wall_time, key
        request.then = partial(self._answered, session, exceeded)
        self._questions[session] = request
        agent.agent_requests.add(request)
        session.note_change()
        agent.agent_requests.forward(request, session.controllers())
        agent.unattended.announce([request])

    def _answered(self, session: Session, exceeded: Exceeded, response: bytes) -> None:
        del self._questions[session]
        held = self._agent.waiting.release_first(Until.CONSENT, session)
        chosen = lookup.text_at(response, "result", "outcome", "optionId")
        if chosen == MORE:
            self._agent.policy.allow_more(session.account, exceeded)
        if chosen in (SEND, MORE):
            self._go_on(session, held)
            return
        if held is not None and chosen == REFUSE:
            self._agent.refuse(held, *_refusal(f"{exceeded}. It was chosen not to send this prompt"))
        elif held is not None and lookup.raw_at(response, "error") is not None:
            self._agent.refuse(held, *_refusal(f"{exceeded}. This client can't ask whether to go on: {_ELSEWHERE}"))
        elif held is not None:
            self._agent.answer(held, CANCELLED)
        self._ended[session] = None

    def tidy(self) -> None:
        """Withdraw the questions whose prompts do not wait any more, and go on with the next prompts of sessions in
        which a prompt was not sent."""
        for session, question in list(self._questions.items()):
            if question not in self._agent.agent_requests:
                # With its process.
                del self._questions[session]
            elif not self.is_asked(session):
                self._agent.agent_requests.settle(question, undecided(question))
        while self._ended:
            session, _ = self._ended.popitem()
            if session.state is SessionState.OPEN:
                self._go_on(session, None)


def _refusal(why: str) -> ErrorObject:
    """Return the error for a prompt that is not sent."""
    return ErrorObject(jsonrpc.INVALID_REQUEST, why, {"reason": "spending_limit", "notSent": True})
