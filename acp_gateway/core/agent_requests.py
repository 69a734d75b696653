"""Requests of an agent to its clients, from their arrival until their one response.

A request for all controllers of a session is forwarded to each of them under an id of its own, and the first valid
response wins. An error does not count: a client that can't show the dialog answers at once and must not decide for the
user of another one. Neither does an option that was not offered. The other clients get `$/cancel_request` with their
id, and their later responses are dropped: ids are never used again.

A request without a connected client is held, and forwarded to the next that attaches: nothing is denied by default. One
that only clients have which are away is settled as soon as it keeps other clients waiting.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from acp_gateway.acp.reading import ABSENT
from acp_gateway.acp.updates import Option, Update
from acp_gateway.core.output import HookEvent, Outgoing
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.sessions.sub_agents import Doubt, Doubts
from acp_gateway.core.terminals import Terminals
from acp_gateway.core.turns.times import Clock
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage, Message, RawId
from acp_gateway.protocol.methods import (
    CANCEL_REQUEST,
    CREATE_ELICITATION,
    CREATE_TERMINAL,
    META,
    RELEASE_TERMINAL,
    REQUEST_PERMISSION,
    Audience,
    current_name,
)
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.pairs import Entry, Pair, size_of
from acp_gateway.protocol.text.strict_parsing import members_strictly

LONG: Final = 24 * 3600.0
"""Seconds before an open request is logged: a day, in which a user should have noticed it."""


JUST_LOST: Final = 5.0
"""Seconds after a disconnection before a `permission_waiting` hook fires: most networks are back by then."""

NEEDS_ACTION: Final = "requires_action"
"""State of an agent that waits for a person."""

MAX_REMEMBERED: Final = 16
"""Maximum number of expired links per request from which a client may reclaim it; devices are a handful."""


MAX_UNWANTED: Final = 1000
"""Maximum number of withdrawn requests for terminals whose late responses are awaited."""


_HIDDEN: Final = jsonrpc.parse(
    jsonrpc.encode(
        {
            "jsonrpc": "2.0",
            "id": 0,
            "method": REQUEST_PERMISSION,
            "params": {
                "toolCall": {
                    "toolCallId": "acp-gateway-hidden",
                    "title": "A sub-agent asks something, and it is not known whose it is. It may be another person's, "
                    "so its question is not shown.",
                },
                "options": [{"optionId": "cancel", "name": "Cancel its question", "kind": "reject_once"}],
            },
        }
    )
)
"""Request that is shown in place of one that may belong to another identity."""


class FormerRecipient(NamedTuple):
    """A client that has gone, and the id that it had a request under."""

    identity: str
    link: str
    forwarded_id: int


class _Outcome(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    outcome: str
    option_id: str = msgspec.field(name="optionId")


class _Selection(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    outcome: _Outcome


_decode_selection: Final = msgspec.json.Decoder(_Selection).decode
_QUOTES: Final = 10
"""Quotes in the text of a `_Selection`: three names and two values."""


class Choice(NamedTuple):
    """The decision in a response."""

    outcome: str
    """Id of the selected option, or `cancelled`, or the action of an elicitation."""
    option: Option | None
    result: bytes
    """The `result` for the agent, as JSON text."""
    rule: bytes = b""
    """The rule that its client wants for such requests, as JSON text; empty if it wants none."""


class Reply(NamedTuple):
    """A response that settles a request."""

    member: bytes
    """`"result":…` or `"error":…` for the agent, as JSON text."""
    choice: Choice | None = None
    """The decision, if the request asks for one."""


class AgentRequest:
    """An unanswered request of the agent."""

    def __init__(self, message: Message, audience: Audience, session: Session | None, arrived_at: float) -> None:
        self.message: Final = message
        self.id: Final = message.id
        """The id in the agent's spelling."""
        self.method: Final = current_name(message.method)
        """Method of the request, by its current name; the clients get the agent's."""
        self.is_decision: Final = self.method in (REQUEST_PERMISSION, CREATE_ELICITATION)
        """True if a user has to decide."""
        self.audience = audience
        self.session = session
        """Session whose clients are asked; None if unknown, or if the request belongs to one client."""
        self.doubt: Doubt | None = None
        """The sessions that the request may belong to; None once it is certain whom it is for."""
        self.is_early = False
        """True if a session that was about to be named when the request arrived may be its session."""
        self.turns: frozenset[Request] = frozenset()
        """The prompts whose turns were running when the request arrived."""
        self.declined: set[Client] = set()
        """Clients that do not know the method of a request for one of them."""
        self.turn: Session | None = None
        """Session whose turn has asked, which may be another one than `session`; None outside of turns."""
        self.arrived_at = arrived_at
        """Arrival, in seconds of the driver's clock."""
        self.arrived_time: int | None = None
        """Arrival, in milliseconds since 1970."""
        self.key = ""
        """Word for the request at all clients alike, unique within this gateway process."""
        self.forwarded_ids: dict[Client, int] = {}
        """Ids that the request was forwarded under, by client."""
        self.refusal: bytes | None = None
        """Response for the agent where no client decides: the last error, if there was one."""
        self.is_judged = False
        """True once rules were asked for a decision."""
        self.fenced_off = False
        """True if it is for a file, and is refused without asking a client."""
        self.forwarded_message = message
        """The message as forwarded, except for its id."""
        self.translate: Callable[[Client, bytes], bytes] | None = None
        """Translates a client's response for the agent."""
        self.logged = False
        """True if the log has mentioned the long wait."""
        self.announced = False
        """True if the `permission_waiting` hook has fired."""
        self.former_recipients: deque[FormerRecipient] = deque(maxlen=MAX_REMEMBERED)
        """Clients that have gone and had the request: identity, name of the link, and the id on it."""
        self.then: Callable[[bytes], None] | None = None
        """Takes the response of a request that the gateway itself has made, which is for no guest."""
        self.hides: AgentRequest | None = None
        """The request in whose place this one is shown."""
        self._options: dict[str, Option] | None = None
        self._substitute: AgentRequest | None = None

    @property
    def shown(self) -> "AgentRequest":
        """The request as those see it who have a session that it may belong to: without its content, if it may belong
        to another identity's as well."""
        if self.doubt is None or not self.doubt.is_shared:
            return self
        if self._substitute is None:
            self._substitute = AgentRequest(_HIDDEN, Audience.CONTROLLERS, None, self.arrived_at)
            self._substitute.arrived_time, self._substitute.key = self.arrived_time, f"{self.key}-hidden"
            self._substitute.hides = self
        return self._substitute

    @property
    def is_in_doubt(self) -> bool:
        """True if it may belong to several sessions."""
        return (self.hides or self).doubt is not None

    def is_told_in(self, session: Session) -> bool:
        """Return True for the one session in which a notification of the request is told to its owner."""
        doubt = (self.hides or self).doubt
        if doubt is None:
            return self.session is session
        return next((other for other in doubt.sessions if other.owner == session.owner), None) is session

    def is_for(self, client: Client) -> bool:
        """Return True if a client may settle the request as it is shown: it was asked, or it is in a session that the
        request may belong to. A viewer to whom that is shown may have joined it for this session alone."""
        real = self.hides or self
        if self is not real.shown:
            return False
        if client in real.forwarded_ids or real.doubt is None:
            return client in real.forwarded_ids
        may = client.controls and not client.reach.guest and client.reach.identity in real.doubt.identities
        return may and any(session in client.sessions for session in real.doubt.sessions)

    @property
    def tool_call(self) -> Update:
        """The tool call in the request, as far as it is told."""
        return Update.read(lookup.params_of(self.message).get("toolCall", ABSENT))

    @property
    def title(self) -> str | None:
        """Title in the agent's words."""
        return self.tool_call.title or lookup.text_param(self.message, "message")

    @property
    def options(self) -> dict[str, Option]:
        """The options that the agent offers, by their ids."""
        if self._options is None:
            raw = lookup.param(self.message, "options") or b""
            # Their number was limited when the request came.
            offered = Option.each(raw, len(raw))
            self._options = {option.option_id: option for option in offered if option.option_id is not None}
        return self._options

    def reply(self, result: bytes | None, error: bytes | None = None) -> Reply | None:
        """Return the response with this result or error, which are JSON texts.

        None if it does not settle the request: a decision that the agent has not offered, or an ambiguous one.
        """
        if not self.is_decision:
            return Reply(b'"error":%b' % error if error is not None else b'"result":%b' % (result or b"null"))
        try:
            choice = None if result is None else self._plain_choice(result) or self._read_choice(result)
        except InvalidMessage:
            return None
        return None if choice is None else Reply(b'"result":%b' % choice.result, choice)

    def _plain_choice(self, text: bytes) -> Choice | None:
        """Return the option of a permission that a result selects and says nothing else; None for any other one."""
        # Without escapes each quote delimits a string: no member is there twice.
        if self.method != REQUEST_PERMISSION or text.count(b'"') != _QUOTES or b"\\" in text:
            return None
        try:
            outcome = _decode_selection(text).outcome
        except (msgspec.DecodeError, RecursionError):
            return None
        option = self.options.get(outcome.option_id) if outcome.outcome == "selected" else None
        if option is None:
            return None
        result = b'{"outcome":{"outcome":"selected","optionId":%b}}' % jsonrpc.encode(outcome.option_id)
        return Choice(outcome.option_id, option, result)

    def _read_choice(self, text: bytes) -> Choice | None:
        if self.method == CREATE_ELICITATION:
            result = _members(text, "action", "content")
            action = _string(result.get("action"))
            known = action in ("accept", "decline", "cancel")
            return Choice(action, None, jsonrpc.compose(result)) if action is not None and known else None
        result = _members(text, "outcome")
        outcome = _members(result.get("outcome", b""), "outcome", "optionId")
        word, option_id = _string(outcome.get("outcome")), _string(outcome.get("optionId"))
        option = self.options.get(option_id) if word == "selected" and option_id is not None else None
        if option is None:
            if word != "cancelled":
                return None
            outcome.pop("optionId", None)
        result["outcome"] = jsonrpc.compose(outcome)
        meta = lookup.members_at(result.get("_meta", b"{}"))
        rule = None
        if META in meta:
            # It is the gateway's own.
            rule = lookup.raw_at(meta.pop(META), "rule")
            result["_meta"] = jsonrpc.compose(meta)
        chosen = "cancelled" if option is None or option_id is None else option_id
        return Choice(chosen, option, jsonrpc.compose(result), rule or b"")


class AgentRequests:
    """Open requests of one agent process."""

    def __init__(self, out: Outgoing, terminals: Terminals, decision_size: int) -> None:
        self._out = out
        self._terminals = terminals
        self.ask_next: Callable[[AgentRequest], None] = lambda _: None
        """Forwards a request for one client to the next that may answer, if there is one."""
        self.with_rules: Callable[[AgentRequest, Client, Message], Message] = lambda _, __, message: message
        """Adds the rules that a client may have written to a request for it."""
        self.decision_size = decision_size
        """Maximum bytes of a response that counts as a decision."""
        # The earliest first. An agent may reuse an id before its request is answered.
        self._open: dict[AgentRequest, None] = {}
        # The requests that a client has not answered yet, by the id minted for it.
        self._asked: dict[Client, dict[int, AgentRequest]] = {}
        # The session of each terminal that a client may still start though the request is withdrawn, and None for the
        # request that releases one, by the client and the id minted for it.
        self._unwanted: dict[tuple[Client, int], str | None] = {}

    @property
    def size(self) -> int:
        """Bytes of the open requests."""
        return size_of([request.message.entry for request in self._open])

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AgentRequest]:
        return iter(list(self._open))

    def __contains__(self, request: AgentRequest) -> bool:
        return request in self._open

    def of(self, session: Session | None) -> list[AgentRequest]:
        """Return the open requests of a session, the earliest first; for None those without a session."""
        return [request for request in self._open if request.session is session]

    def in_doubt(self, session: Session | None = None) -> list[AgentRequest]:
        """Return the requests whose session is not certain; of a session those that may belong to it."""
        found = [request for request in self._open if request.doubt is not None]
        return found if session is None else [it for it in found if it.doubt and session in it.doubt.sessions]

    def asked(self, client: Client) -> Mapping[int, AgentRequest]:
        """Return the requests that a client has not answered yet, by the id minted for it."""
        return self._asked.get(client, {})

    def add(self, request: AgentRequest) -> None:
        """Register a request of the agent."""
        self._open[request] = None

    def show(self, request: AgentRequest) -> None:
        """Show a request of a session as open for a moment: it is refused, and no client gets it."""
        assert request.session is not None
        self._open[request] = None
        request.session.note_change()
        del self._open[request]

    def place(self, request: AgentRequest, session: Session | None, doubts: Doubts, doubt: Doubt | None = None) -> None:
        """Note the session that a request belongs to, or the doubt about that; others do not see it any more."""
        before = request.doubt
        if (request.session, before) == (session, doubt):
            return
        request.session, request.doubt = session, doubt
        for client, minted in list(request.forwarded_ids.items()):
            if session is not None and client not in session.attached:
                self._cancel_at(client, minted)
        doubts.note_change(before)
        doubts.note_change(doubt)
        if session is not None:
            session.note_change()

    def forward(self, request: AgentRequest, clients: Iterable[Client]) -> None:
        """Forward a request to clients that do not have it yet."""
        for client in clients:
            if request.then is not None and client.reach.guest:
                continue
            if client not in request.forwarded_ids and client not in request.declined:
                minted = client.mint_id()
                self._ask(request, client, minted)
                message = request.forwarded_message
                translated = self._terminals.translations(message.text, [client]).get(client)
                message = message if translated is None else jsonrpc.parse(translated)
                if client.wants_rules:
                    message = self.with_rules(request, client, message)
                self._out.client(client, _with_id(message, RawId(b"%d" % minted)))

    def forward_open(self, session: Session, client: Client) -> None:
        """Forward all open requests of a session to a newly attached client."""
        for request in self.of(session) if client.controls and not client.gone else ():
            if request.audience is Audience.CONTROLLERS or not request.forwarded_ids:
                self.forward(request, [client])

    def answer(self, client: Client, request: AgentRequest, reply: Reply) -> bool:
        """Settle a request by the reply of a client that has it; return False if that is not possible any more. The
        other recipients get a cancellation."""
        real = request.hides or request
        if real not in self._open or not request.is_for(client):
            return False
        if request is not real:
            self.settle_undecided(real)
            return True
        if request.is_decision and len(reply.member) > self.decision_size:
            return False
        minted = request.forwarded_ids.get(client)
        if minted is not None:
            self._take(client, minted)
        self.settle(request, b'{"jsonrpc":"2.0","id":%b,%b}' % (request.id, reply.member), client)
        return True

    def receive_response(self, client: Client, response: Message) -> tuple[AgentRequest, Choice | None] | None:
        """Handle a client's response; return the request and the decision if that settles it. The other recipients get
        a cancellation."""
        minted = jsonrpc.id_number(response.id)
        request = None if minted is None else self._take(client, minted)
        if request is None:
            self._receive_late(client, minted, response)
            return None
        too_large = request.is_decision and len(response.text) > self.decision_size
        if not request.is_decision:
            answer = jsonrpc.with_id(response, request.id, unique=True)
            if request.audience is Audience.ONE and lookup.error_code(response) == jsonrpc.METHOD_NOT_FOUND:
                # It says what this client is, and nothing of the others.
                request.refusal = answer
                request.declined.add(client)
                self._recipient_left(request)
                return None
            self.settle(request, answer, client)
            return request, None
        reply = None if too_large else request.reply(lookup.raw_at(response.text, "result"))
        if reply is not None:
            self.settle(request, b'{"jsonrpc":"2.0","id":%b,%b}' % (request.id, reply.member), client)
            return request, reply.choice
        if response.error and not too_large:
            request.refusal = jsonrpc.with_id(response, request.id)
        else:
            # The response itself may be as large as any message, and is not kept.
            why = "no client gave a valid answer"
            request.refusal = jsonrpc.error(request.id, jsonrpc.INTERNAL_ERROR, why)
        why = f", as its response is larger than decision_size ({self.decision_size})" if too_large else ""
        self._out.log(
            f"{client.name} did not answer {request.method:.80} with a decision{why}: "
            "the request stays open for the others"
        )
        self._give_up_without_recipient(request)
        return None

    def settle(self, request: AgentRequest, response: bytes, client: Client | None = None) -> None:
        """Send the agent its response, of a client if one has decided, and cancel the request at all recipients."""
        if request.then is not None:
            self._close(request)
            request.then(response)
            return
        if client is not None and request.translate is not None:
            response = request.translate(client, response)
        self._out.agent(response)
        self._close(request)

    def settle_undecided(self, request: AgentRequest) -> None:
        """Send the agent the response for a request that will not be decided."""
        self.settle(request, undecided(request))

    def cancelled_by_agent(self, raw_id: RawId) -> None:
        """Settle a request that the agent has cancelled."""
        key = jsonrpc.id_key(raw_id)
        request = next((request for request in self._open if jsonrpc.id_key(request.id) == key), None)
        if request is not None:
            self.settle(request, jsonrpc.error(request.id, jsonrpc.REQUEST_CANCELLED, "cancelled"))

    def turn_cancelled(self, session: Session, *, by_guest: bool) -> list[AgentRequest]:
        """Settle all that the cancelled turns of a session have asked, and its decisions, and return the decisions.

        Also what only may belong to it, unless a guest has cancelled them.
        """
        decisions = [request for request in self.of(session) if request.is_decision]
        asked = dict.fromkeys(decisions if by_guest else [*decisions, *self.in_doubt(session)])
        asked |= {request: None for request in self._open if request.turn is session}
        for request in asked:
            self.settle(request, undecided(request, "the turn was cancelled"))
        return [request for request in asked if request.is_decision]

    def pass_on(self, request: AgentRequest, client: Client) -> None:
        """Forward a request to another client instead of those that have it."""
        self._withdraw(request)
        self.forward(request, [client])

    def session_ended(self, session: Session) -> None:
        """Settle all requests of a session that has ended."""
        for request in self.of(session):
            self.settle_undecided(request)

    def detached(self, client: Client, session: Session) -> None:
        """Cancel a session's requests at a client that was detached."""
        for minted, request in list(self.asked(client).items()):
            sessions = () if request.doubt is None else request.doubt.sessions
            takes_part = any(other in client.sessions for other in sessions)
            if request.session is session or (session in sessions and not takes_part):
                self._cancel_at(client, minted)
                self._recipient_left(request)

    def client_back(self, client: Client) -> None:
        """Forward the unanswered requests in a reconnected client's sessions to it."""
        for request in self._open if client.controls else ():
            if request.session in client.sessions and not request.forwarded_ids:
                self.forward(request, [client])

    def client_gone(self, client: Client) -> None:
        """Unregister an expired client as recipient, and remember its ids."""
        self._unwanted = {key: session for key, session in self._unwanted.items() if key[0] is not client}
        for minted, request in list(self.asked(client).items()):
            self._take(client, minted)
            if client.link is not None:
                request.former_recipients.append(FormerRecipient(client.reach.identity, client.link, minted))
            self._recipient_left(request)

    def reclaim(self, session: Session, client: Client, link: str, ids: Iterable[int]) -> list[int]:
        """Return a session's requests to a client that had them over another link, under the same ids.

        Returns the ids of those that are still open.
        """
        reclaimed = []
        for request in self.of(session):
            for minted in ids:
                asked = FormerRecipient(client.reach.identity, link, minted) in request.former_recipients
                if asked and client not in request.forwarded_ids and minted not in self.asked(client):
                    self._ask(request, client, minted)
                    reclaimed.append(minted)
        return reclaimed

    def agent_lost(self) -> None:
        """Cancel all requests at their recipients: the agent has ended."""
        for request in list(self._open):
            self._close(request)

    def overdue(self, now: float, timeout: float) -> list[AgentRequest]:
        """Return the decisions open for `timeout` seconds; log each request once that is open for a day."""
        late = []
        for request in self._open:
            age = now - request.arrived_at
            if age >= LONG and not request.logged:
                request.logged = True
                where = "an unknown session" if request.session is None else f"session {request.session.id}"
                self._out.log(f"{request.method:.80} of {where:.80} has been waiting for {age / 3600:.0f} h")
            if age >= timeout and request.is_decision:
                late.append(request)
        return late

    def _ask(self, request: AgentRequest, client: Client, minted: int) -> None:
        request.forwarded_ids[client] = minted
        self._asked.setdefault(client, {})[minted] = request

    def _take(self, client: Client, minted: int) -> AgentRequest | None:
        """Remove a request from a client, and return it; None if the client does not have it."""
        asked = self._asked.get(client, {})
        request = asked.pop(minted, None)
        if request is not None:
            del request.forwarded_ids[client]
        if not asked:
            self._asked.pop(client, None)
        return request

    def _recipient_left(self, request: AgentRequest) -> None:
        """Go on with a request whose last recipient has left, or can't answer: a decision for controllers waits for the
        next one."""
        if not request.forwarded_ids and request.audience is not Audience.CONTROLLERS:
            self.ask_next(request)
        if not request.forwarded_ids and request.audience is not Audience.CONTROLLERS and request in self:
            self.settle(request, request.refusal or undecided(request))

    def _give_up_without_recipient(self, request: AgentRequest) -> None:
        """Send the agent the last error once no recipient can decide."""
        assert request.refusal is not None
        if not request.forwarded_ids:
            self.settle(request, request.refusal)

    def _close(self, request: AgentRequest) -> None:
        self._open.pop(request, None)
        for session in (request.session,) if request.doubt is None else request.doubt.sessions:
            if session is not None:
                session.note_change()
        self._withdraw(request)

    def _withdraw(self, request: AgentRequest) -> None:
        for client, minted in list(request.forwarded_ids.items()):
            self._cancel_at(client, minted)

    def _cancel_at(self, client: Client, minted: int) -> None:
        request = self._take(client, minted)
        if request is not None and request.method == CREATE_TERMINAL and request.message.session is not None:
            self._await_late(client, minted, request.message.session)
        self._out.client(client, jsonrpc.notification(CANCEL_REQUEST, {"requestId": minted}))

    def _await_late(self, client: Client, minted: int, session_id: str | None) -> None:
        self._unwanted[client, minted] = session_id
        if len(self._unwanted) > MAX_UNWANTED:
            del self._unwanted[next(iter(self._unwanted))]

    def _receive_late(self, client: Client, minted: int | None, response: Message) -> None:
        """Handle a client's response to no open request: release the terminal that it names if the agent can not."""
        if minted is None or (client, minted) not in self._unwanted:
            self._out.log(f"dropped a response of {client.name} to no open request")
            return
        session_id = self._unwanted.pop((client, minted))
        terminal = None if session_id is None else lookup.text_at(response.text, "result", "terminalId")
        if terminal is not None:
            release = client.mint_id()
            self._await_late(client, release, None)
            params = {"sessionId": session_id, "terminalId": terminal}
            request = {"jsonrpc": "2.0", "id": release, "method": RELEASE_TERMINAL, "params": params}
            self._out.client(client, jsonrpc.encode(request))


class Unattended:
    """Tells the `permission_waiting` hook what waits for a person while no controller is there to answer."""

    def __init__(self, requests: AgentRequests, out: Outgoing, clock: Clock) -> None:
        self._requests = requests
        self._out = out
        self._clock = clock
        self.needing: dict[Session, float] = {}
        """Sessions whose agent waits for a person, since when without a request; until the hook has fired."""

    def note_state(self, session: Session) -> None:
        """Note that an agent has told another state, or that the state has ended with its process."""
        self.needing.pop(session, None)
        if session.own_state == NEEDS_ACTION:
            self.needing[session] = self._clock.now

    def announce(self, requests: Iterable[AgentRequest] | None = None) -> None:
        """Queue the hook, once per request that no connected controller can answer, for some of the open requests or
        all; and for an agent that waits for a person without a request here."""
        now = self._clock.now
        for request in self._requests if requests is None else requests:
            session, clients = request.session, list(request.forwarded_ids)
            if session is not None:
                clients = [*session.attached]
            elif request.doubt is not None and not request.doubt.is_shared:
                session = next(iter(request.doubt.sessions), None)
            if session is None or not request.is_decision:
                continue
            if session in self.needing:
                # The request says it. Another state may follow its response.
                self.needing[session] = now
            if not request.announced and self._are_absent(clients):
                request.announced = True
                self._fire(session, now - request.arrived_at, request)
        for session, since in list(self.needing.items()):
            if session.own_state != NEEDS_ACTION:
                del self.needing[session]
            elif now - since >= JUST_LOST and self._are_absent(session.attached):
                del self.needing[session]
                self._fire(session, now - since)

    def _fire(self, session: Session, age: float, request: AgentRequest | None = None) -> None:
        """Queue the hook for a request, or for an agent that waits without one."""
        call, key = (Update(), None) if request is None else (request.tool_call, request.key)
        method = NEEDS_ACTION if request is None else request.method
        tool = {"toolCallId": call.tool_call_id, "title": call.title, "kind": call.tool_kind}
        about = {"requestId": key, "method": method, "tool": tool, "connected": 0}
        self._out.effect(HookEvent("permission_waiting", session, about, age))

    def _are_absent(self, clients: Iterable[Client]) -> bool:
        """Return True if no client among these can answer: most links are resumed in a moment."""
        for client in clients:
            if client.decides and (client.connected or self._clock.now - client.away_since < JUST_LOST):
                return False
        return True


def _with_id(message: Message, new_id: RawId) -> Entry:
    """Return a request under another id, with the one that it carries."""
    text = jsonrpc.with_id(message, new_id)
    if message.original is None:
        return text
    return Pair(text, jsonrpc.with_id(jsonrpc.parse(message.original), new_id))


def _members(text: bytes, *checked: str) -> dict[str, bytes]:
    """Return the members of an object that a client has decided with; those that are not checked are the agent's.

    Raises `InvalidMessage` as `members_strictly`, and for another spelling of a name that is checked.
    """
    found = {name: bytes(value) for name, value in members_strictly(text).items()}
    spellings = set(map(_spelling, checked))
    for name in found:
        if name not in checked and _spelling(name) in spellings:
            raise InvalidMessage(jsonrpc.INVALID_REQUEST, f"{name!r:.80} may be read as another member")
    return found


def _spelling(name: str) -> str:
    """Return what the spellings of a name have in common, as some parsers take them: its letters."""
    return name.casefold().replace("_", "").replace("-", "")


def _string(raw: bytes | msgspec.Raw | None) -> str | None:
    return spans.string_or_none(None if raw is None else bytes(raw))


def timed_out(request: AgentRequest) -> tuple[str, bytes]:
    """Compose the response for a decision that was not made in time, and return it behind the word for it.

    Agents take a cancellation for the end of the turn: a permission is rejected where the agent offers that for once.
    """
    rejected = of_kind(request, "reject_once")
    return ("rejected", selected(request, rejected[0][0])) if rejected else ("cancelled", undecided(request))


def of_kind(request: AgentRequest, kind: str) -> list[tuple[str, Option]]:
    """Return the options of a kind that a permission request offers, with their ids."""
    offered = request.options.items() if request.method == REQUEST_PERMISSION else ()
    return [(option_id, option) for option_id, option in offered if option.kind == kind]


def selected(request: AgentRequest, option_id: str) -> bytes:
    """Compose the response that selects an option of a permission request."""
    return jsonrpc.result(request.id, {"outcome": {"outcome": "selected", "optionId": option_id}})


def undecided(request: AgentRequest, why: str = "the client for this request has gone") -> bytes:
    """Compose the response for a request without a decision: a cancelled outcome where the protocol has one."""
    if request.method == REQUEST_PERMISSION:
        return jsonrpc.result(request.id, {"outcome": {"outcome": "cancelled"}})
    if request.method == CREATE_ELICITATION:
        return jsonrpc.result(request.id, {"action": "cancel"})
    return jsonrpc.error(request.id, jsonrpc.REQUEST_CANCELLED, why)
