"""What an agent asks of its clients, from the request until the one answer it gets.

A question for all controllers of a session goes to each of them under an id of its own, and the first valid answer
wins. An error is no answer: a client that can't show the dialog says so at once and must not decide for the person in
front of another one. Nor is a choice that was never offered. Those who lose get `$/cancel_request` with their id, and
what they still say is dropped: ids are never used again.

A question that nobody is there for is held, and asked of whoever attaches next: nothing is denied by default.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from acp_gateway.core.output import Outgoing
from acp_gateway.core.sessions import Client, Session
from acp_gateway.protocol import jsonrpc, spans
from acp_gateway.protocol.jsonrpc import Message, RawId
from acp_gateway.protocol.methods import CANCEL_REQUEST, CREATE_ELICITATION, REQUEST_PERMISSION, Audience
from acp_gateway.protocol.spans import TooMany

LONG: Final = 24 * 3600.0
"""Seconds after which a question that waits is worth a line in the log: a day, by then somebody has slept over it."""


DECISION_SIZE: Final = 64 * 1024
"""Bytes of an answer that decides, at most: what a person fills in has some hundreds, and it is read often."""

REMEMBERED: Final = 16
"""Links that a question was asked over and that are gone, of which one may want it back: devices are a handful."""

_TOOL_CALL: Final = ("toolCallId", "title", "kind")


class AgentRequest:
    """A request of the agent that is not answered yet."""

    def __init__(self, message: Message, audience: Audience, session: Session | None, since: float) -> None:
        self.message = message
        self.audience = audience
        self.session = session
        """Whose clients are asked; None while that is not clear, or where it is a client's own affair."""
        self.candidates: frozenset[str] = frozenset()
        """The identities that it may be of, where it names no session."""
        self.in_turn = False
        """Whether a turn was running when it was asked."""
        self.since = since
        """Seconds, by the driver's clock."""
        self.copies: dict[Client, int] = {}
        """Whom it was asked of, and under which id."""
        self.refused: Message | None = None
        """The last answer that did not count."""
        self.forwarded_ids = message
        """The message as clients get it, but for its id."""
        self.translate: Callable[[Client, bytes], bytes] | None = None
        """What has to be done to the answer on its way to the agent."""
        self.mentioned = False
        """Whether the log has said that it waits for long."""
        self.announced = False
        """Whether somebody was told that nobody was there for it."""
        self.former: deque[tuple[str, str, int]] = deque(maxlen=REMEMBERED)
        """Whom it was asked of that has gone: the identity, the link that could be resumed once, and the id there."""

    @property
    def id(self) -> RawId:
        """As the agent spelled it."""
        return self.message.id

    @property
    def method(self) -> str:
        """What the agent asks."""
        return self.message.method

    @property
    def is_decision(self) -> bool:
        """Whether a person is to decide something."""
        return self.method in (REQUEST_PERMISSION, CREATE_ELICITATION)

    def describe(self) -> dict[str, Any]:
        """What a person is told of it who is elsewhere."""
        call = {name: jsonrpc.text_param(self.message, "toolCall", name) for name in _TOOL_CALL}
        return {"method": self.method, "tool": call, "connected": 0}

    @property
    def title(self) -> str | None:
        """What it is about, in the agent's words."""
        return jsonrpc.text_param(self.message, "toolCall", "title") or jsonrpc.text_param(self.message, "message")

    def accepts(self, answer: Message) -> bool:
        """Whether an answer decides the question."""
        if not self.is_decision:
            return True
        if answer.error or len(answer.text) > DECISION_SIZE or self._repeats_itself(answer):
            return False
        if self.method == CREATE_ELICITATION:
            return jsonrpc.text_at(answer.text, "result", "action") in ("accept", "decline", "cancel")
        outcome = jsonrpc.text_at(answer.text, "result", "outcome", "outcome")
        chosen = jsonrpc.text_at(answer.text, "result", "outcome", "optionId")
        return outcome == "cancelled" or (outcome == "selected" and chosen is not None and chosen in self._offered())

    def _repeats_itself(self, answer: Message) -> bool:
        """Whether a decision has a member twice, or more of them than any: which one was meant is not known."""
        for path in (("result",), ("result", "outcome")):
            raw = jsonrpc.raw_at(answer.text, *path)
            if raw is not None and raw[:1] == b"{":
                try:
                    names = [spans.string_value(member.name).casefold() for member in spans.members(raw)]
                except TooMany:
                    return True
                if len(set(names)) < len(names):
                    return True
        return False

    def kind_of(self, choice: str) -> str | None:
        """What choosing an option means, such as `allow_once`, as far as the agent has said that."""
        return self._offered().get(choice)

    def _offered(self) -> dict[str | None, str | None]:
        """The options that there are, by id, with their kinds."""
        options = jsonrpc.param(self.message, "options")
        if options is None or options[:1] != b"[":
            return {}
        return {
            jsonrpc.text_at(option, "optionId"): jsonrpc.text_at(option, "kind")
            for option in jsonrpc.elements_of(options)
        }


class AgentRequests:
    """All questions of one agent process that are open."""

    def __init__(self, out: Outgoing) -> None:
        self._out = out
        # The earliest first. An agent may use an id again before it is answered.
        self._open: dict[AgentRequest, None] = {}

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(len(question.message.text) for question in self._open)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AgentRequest]:
        return iter(list(self._open))

    def __contains__(self, question: AgentRequest) -> bool:
        return question in self._open

    def of(self, session: Session | None) -> list[AgentRequest]:
        """The open questions of a session, the earliest first; for None those that belong to no session."""
        return [question for question in self._open if question.session is session]

    def unrouted(self) -> list[AgentRequest]:
        """Those that nobody could be found for."""
        return [question for question in self._open if question.session is None and not question.copies]

    def add(self, question: AgentRequest) -> None:
        """The agent has asked something."""
        self._open[question] = None

    def ask(self, question: AgentRequest, clients: Iterable[Client]) -> None:
        """Put a question to clients that don't have it yet."""
        for client in clients:
            if client not in question.copies:
                minted = client.mint_id()
                question.copies[client] = minted
                client.questions[minted] = question
                self._out.client(client, jsonrpc.with_id(question.forwarded_ids, RawId(b"%d" % minted)))

    def offer(self, session: Session, client: Client) -> None:
        """Put everything that is open in a session to a client that takes part now."""
        for question in self.of(session) if client.controls and not client.gone else ():
            if question.audience is Audience.CONTROLLERS or not question.copies:
                self.ask(question, [client])

    def answer(self, client: Client, response: Message) -> AgentRequest | None:
        """A client has answered: the question, if that settles it. Whoever else was asked is told."""
        minted = jsonrpc.id_number(response.id)
        question = None if minted is None else client.questions.pop(minted, None)
        if question is None:
            self._out.note(f"dropped a response of {client.name} that nobody waits for")
            return None
        del question.copies[client]
        if question.accepts(response):
            if question.is_decision:
                text = decision(question, response)
            else:
                text = jsonrpc.with_id(response, question.id, unique=True)
            self.settle(question, text if question.translate is None else question.translate(client, text))
            return question
        question.refused = response
        self._out.note(
            f"{client.name} did not answer {question.method:.80} with a decision: the others are asked still"
        )
        self._reconsider(question)
        return None

    def settle(self, question: AgentRequest, answer: bytes) -> None:
        """Give the agent its answer and take the question back from everybody who still has it."""
        self._out.agent(answer)
        self._close(question)

    def settle_undecided(self, question: AgentRequest) -> None:
        """Give the agent the answer for a question that will not be decided."""
        self.settle(question, undecided(question))

    def cancelled_by_agent(self, raw_id: RawId) -> None:
        """The agent does not want to know any more."""
        key = jsonrpc.id_key(raw_id)
        question = next((question for question in self._open if jsonrpc.id_key(question.id) == key), None)
        if question is not None:
            self.settle(question, jsonrpc.error(question.id, jsonrpc.REQUEST_CANCELLED, "cancelled"))

    def turn_cancelled(self, session: Session) -> list[AgentRequest]:
        """Somebody has ended the turns of a session: there is nothing left to decide in it. What there was."""
        decisions = [question for question in self.of(session) if question.is_decision]
        for question in decisions:
            self.settle_undecided(question)
        return decisions

    def session_ended(self, session: Session) -> None:
        """Nobody will take part in a session any more."""
        for question in self.of(session):
            self.settle_undecided(question)

    def detached(self, client: Client, session: Session) -> None:
        """A client takes no part in a session any more."""
        for minted, question in list(client.questions.items()):
            if question.session is session:
                self._take_back(question, client, minted)
                self._left(question)

    def client_back(self, client: Client) -> None:
        """Put to a client that is there again what nobody was there for in its sessions."""
        for question in self._open if client.controls else ():
            if question.session in client.sessions and not question.copies:
                self.ask(question, [client])

    def client_gone(self, client: Client) -> None:
        """A client will not answer any more."""
        questions, client.questions = client.questions, {}
        for minted, question in questions.items():
            del question.copies[client]
            if client.link is not None:
                question.former.append((client.viewer.identity, client.link, minted))
            self._left(question)

    def adopt(self, session: Session, client: Client, link: str, ids: Iterable[int]) -> list[int]:
        """Give a client back what it was asked in a session over another link, under the ids that it had there.

        Returns the ids of those that are still open.
        """
        adopted = []
        for question in self.of(session):
            for minted in ids:
                asked = (client.viewer.identity, link, minted) in question.former
                if asked and client not in question.copies and minted not in client.questions:
                    question.copies[client] = minted
                    client.questions[minted] = question
                    adopted.append(minted)
        return adopted

    def agent_lost(self) -> None:
        """Nobody wants to know any more: take everything back."""
        for question in list(self._open):
            self._close(question)

    def overdue(self, now: float, timeout: float) -> list[AgentRequest]:
        """The decisions that have waited for `timeout` seconds; those that wait for a day are mentioned in the log."""
        late = []
        for question in self._open:
            age = now - question.since
            if age >= LONG and not question.mentioned:
                question.mentioned = True
                where = "no session that is known" if question.session is None else f"session {question.session.id}"
                self._out.note(f"{question.method:.80} of {where:.80} has been waiting for {age / 3600:.0f} h")
            if age >= timeout and question.is_decision:
                late.append(question)
        return late

    def _left(self, question: AgentRequest) -> None:
        """One of those who were asked has left, which is no answer: a decision waits for the next to come."""
        if not question.copies and (question.session is None or question.audience is not Audience.CONTROLLERS):
            self.settle_undecided(question)

    def _reconsider(self, question: AgentRequest) -> None:
        """One of those who were asked can't decide: if all can't, the agent hears of it."""
        assert question.refused is not None
        if question.copies:
            return
        if question.refused.error:
            self.settle(question, jsonrpc.with_id(question.refused, question.id))
        else:
            why = "no client gave a valid answer"
            self.settle(question, jsonrpc.error(question.id, jsonrpc.INTERNAL_ERROR, why))

    def _close(self, question: AgentRequest) -> None:
        self._open.pop(question, None)
        for client, minted in list(question.copies.items()):
            self._take_back(question, client, minted)

    def _take_back(self, question: AgentRequest, client: Client, minted: int) -> None:
        del question.copies[client]
        client.questions.pop(minted, None)
        self._out.client(client, jsonrpc.notification(CANCEL_REQUEST, {"requestId": minted}))


def decision(question: AgentRequest, answer: Message) -> bytes:
    """What the agent gets of an answer that decides: what was looked at here, and nothing else that a client wrote."""
    result = jsonrpc.members_at(answer.text, "result")
    if question.method == CREATE_ELICITATION:
        told = _only(result, "action", "content", "_meta")
    else:
        outcome = jsonrpc.members_at(result["outcome"])
        chosen = ("optionId",) if jsonrpc.text_at(outcome["outcome"]) == "selected" else ()
        told = {"outcome": jsonrpc.compose(_only(outcome, "outcome", *chosen, "_meta"))} | _only(result, "_meta")
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (question.id, jsonrpc.compose(told))


def _only(members: dict[str, bytes], *names: str) -> dict[str, bytes]:
    return {name: members[name] for name in names if name in members}


def undecided(question: AgentRequest) -> bytes:
    """What the agent gets where nobody will answer: a decision where the protocol has one for that."""
    if question.method == REQUEST_PERMISSION:
        return jsonrpc.result(question.id, {"outcome": {"outcome": "cancelled"}})
    if question.method == CREATE_ELICITATION:
        return jsonrpc.result(question.id, {"action": "cancel"})
    return jsonrpc.error(question.id, jsonrpc.REQUEST_CANCELLED, "the client that was to do this has gone")
