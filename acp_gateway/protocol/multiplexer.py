"""A client and its agent: which message goes where, what is masked on the way, and what is answered here.

Everything that affects state lives in this file. Feed it what happened, one verb for each thing that can happen
(`receive_from_client`, `receive_from_agent`, `client_gone`, `agent_lost`); the verbs never raise and never wait. Then
take from it what is to be sent to whom (`take_deliveries`) and what a person should know (`take_notes`).

A message passes as the very bytes it came in, with these exceptions:

* `initialize`: the client's file system and terminal are masked on the way to the agent unless the policy lets them
  through,
  for a write that goes to the editor's machine never appears on the agent's; authentication methods that would run a
  terminal command are removed from the answer, for the editor would run them on the wrong machine.
* An error `-32000` from the agent (not logged in) gets the words that say what to run on the gateway's machine.
* A response whose id the peer spelled in its own way gets back the spelling of the request.

What is answered here and never passed on: text that is no message, arrays, messages with a member repeated where the
gateway looks, requests before `initialize`, a second `initialize`, an id that is still in use, a session in a
directory that isn't there, `fs/*` and `terminal/*` from the agent while they are masked, and the gateway's own
reserved methods. A response that nobody waits for, or a `$/cancel_request` for a request that is not open, is
dropped. Every request that was passed on is answered in the end: `agent_lost` and `client_gone` see to those that are
still open.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from acp_gateway.protocol import jsonrpc, methods, spans
from acp_gateway.protocol.jsonrpc import NO_ID, InvalidMessage, Kind, Message, OpenRequest, OpenRequests, RawId


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a session can't be opened: words for a person, data for a program."""

    message: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says, and what only the gateway's machine can tell."""

    serves: frozenset[methods.Capability]
    """What the client may do for the agent; all else is masked."""
    check_directory: Callable[[str], Problem | None]
    """Judges `cwd` of a session to be opened."""
    login_hint: Callable[[list[dict[str, Any]]], str]
    """Given the agent's authentication methods, says how to log it in on the gateway's machine."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Messages to be sent, in order."""

    to_client: list[bytes]
    to_agent: list[bytes]


class Multiplexer:
    """The decisions for one agent process and the client that it works for."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # The client's requests that the agent has and has not answered.
        self._client_requests = OpenRequests()
        # The agent's requests that the client has and has not answered.
        self._agent_requests = OpenRequests()
        # The id of an `initialize` that is on its way, and whether one has succeeded.
        self._initializing: RawId | None = None
        self._initialized = False
        # What the agent said about logging in, before any of it was removed.
        self._auth_methods: list[dict[str, Any]] = []
        # Responses that nobody had asked for.
        self.dropped_responses = 0
        self._deliveries = Deliveries([], [])
        self._notes: list[str] = []

    # What is to be done

    def take_deliveries(self) -> Deliveries:
        """What is to be sent since the last call; the caller's from now on."""
        taken, self._deliveries = self._deliveries, Deliveries([], [])
        return taken

    def take_notes(self) -> list[str]:
        """What was dropped or refused since the last call, for the log; never a payload."""
        taken, self._notes = self._notes, []
        return taken

    @property
    def wants_agent(self) -> bool:
        """Whether a client has begun: from here on there must be an agent, or `agent_lost`."""
        return self._initializing is not None or self._initialized

    # What happened

    def receive_from_client(self, text: bytes) -> None:
        """The client sent a message, or what it takes for one."""
        try:
            message = jsonrpc.parse(text)
            repeated = spans.repeated_member(text)
        except InvalidMessage as error:
            self._answer_client(NO_ID, error.code, str(error))
            return
        if repeated is not None:
            # Parsers disagree on which of the two counts: what the agent reads must be what was checked here.
            to = NO_ID if repeated.casefold() == "id" else message.id
            self._answer_client(to, jsonrpc.INVALID_REQUEST, f"the member {repeated!r} is there twice")
        elif message.kind is Kind.RESPONSE:
            self._settle_for_client(message)
        elif message.method.startswith(methods.RESERVED_PREFIX):
            self._refuse(message, jsonrpc.METHOD_NOT_FOUND, "this method is the gateway's own")
        elif message.kind is Kind.REQUEST:
            self._request_from_client(message)
        elif self.wants_agent:
            self._pass_to_agent(message, self._client_requests)

    def receive_from_agent(self, text: bytes) -> None:
        """The agent wrote a line."""
        try:
            message = jsonrpc.parse(text)
        except InvalidMessage as error:
            self._notes.append(f"dropped a line of {len(text)} bytes from the agent: {error}")
            return
        if message.kind is Kind.RESPONSE:
            self._settle_for_agent(message)
        elif message.method.startswith(methods.RESERVED_PREFIX):
            self._notes.append("dropped a message of the agent under a method that is the gateway's own")
        elif message.kind is Kind.REQUEST:
            self._request_from_agent(message)
        else:
            self._pass_to_client(message, self._agent_requests)

    def client_gone(self) -> None:
        """The client has left and will not come back: end its turns and settle what the agent asked of it."""
        for session in dict.fromkeys(
            request.session
            for request in self._client_requests
            if request.session is not None and methods.client_method(request.method).opens_turn
        ):
            self._deliveries.to_agent.append(jsonrpc.notification(methods.SESSION_CANCEL, {"sessionId": session}))
        for request in self._agent_requests.clear():
            self._deliveries.to_agent.append(_settled_without_client(request))
        self._client_requests.clear()

    def agent_lost(self, why: str, data: dict[str, Any]) -> None:
        """The agent has ended or could not be started: answer everything that waits for it."""
        for request in self._client_requests.clear():
            self._answer_client(request.id, jsonrpc.INTERNAL_ERROR, why, data)
        self._agent_requests.clear()
        self._initializing, self._initialized = None, False

    # Requests

    def _request_from_client(self, message: Message) -> None:
        if message.id in self._client_requests:
            # Under the id null: an error under this id would settle the first request at the client.
            self._answer_client(
                NO_ID, jsonrpc.INVALID_REQUEST, f"the id {message.id.decode()} is still in use by an earlier request"
            )
        elif message.method == methods.INITIALIZE:
            self._initialize(message)
        elif not self.wants_agent:
            self._refuse(message, jsonrpc.INVALID_REQUEST, "the first request must be initialize")
        else:
            method = methods.client_method(message.method)
            if method.opens_session and (cwd := jsonrpc.text_at(message.text, "params", "cwd")) is not None:
                problem = self._policy.check_directory(cwd)
                if problem is not None:
                    self._answer_client(message.id, jsonrpc.INVALID_PARAMS, problem.message, problem.data)
                    return
            session = jsonrpc.text_at(message.text, "params", "sessionId") if method.opens_turn else None
            self._client_requests.add(OpenRequest(message.id, message.method, session))
            self._deliveries.to_agent.append(message.text)

    def _initialize(self, message: Message) -> None:
        if self.wants_agent:
            self._refuse(message, jsonrpc.INVALID_REQUEST, "initialize has been called already")
            return
        self._initializing = message.id
        self._client_requests.add(OpenRequest(message.id, message.method))
        self._deliveries.to_agent.append(self._mask_capabilities(message.text))

    def _request_from_agent(self, message: Message) -> None:
        needs = methods.agent_method(message.method).needs
        if needs is not None and needs not in self._policy.serves:
            self._notes.append(f"refused {message.method} of the agent: the client does not serve it")
            self._deliveries.to_agent.append(
                jsonrpc.error(
                    message.id, jsonrpc.METHOD_NOT_FOUND, f"{message.method} was not offered: the client is elsewhere"
                )
            )
            return
        self._agent_requests.add(OpenRequest(message.id, message.method))
        self._deliveries.to_client.append(message.text)

    # Notifications

    def _pass_to_agent(self, message: Message, sent: OpenRequests) -> None:
        if message.method != methods.CANCEL_REQUEST or _names_one_of(message, sent):
            self._deliveries.to_agent.append(message.text)

    def _pass_to_client(self, message: Message, sent: OpenRequests) -> None:
        if message.method != methods.CANCEL_REQUEST or _names_one_of(message, sent):
            self._deliveries.to_client.append(message.text)

    # Responses

    def _settle_for_client(self, response: Message) -> None:
        request = self._agent_requests.take(response.id)
        if request is None:
            self._drop(response, "the client")
            return
        self._deliveries.to_agent.append(_spelled_as(request, response))

    def _settle_for_agent(self, response: Message) -> None:
        request = self._client_requests.take(response.id)
        if request is None:
            self._drop(response, "the agent")
            return
        text = _spelled_as(request, response)
        if request.id == self._initializing and request.method == methods.INITIALIZE:
            self._initializing, self._initialized = None, not response.error
            text = self._strip_terminal_logins(text)
        if response.error:
            text = self._explain_login(text)
        self._deliveries.to_client.append(text)

    def _drop(self, response: Message, sender: str) -> None:
        self.dropped_responses += 1
        self._notes.append(f"dropped a response of {sender} that nobody waits for")

    # Answers of the gateway's own

    def _refuse(self, message: Message, code: int, why: str) -> None:
        """Answer a request with an error; a notification is never answered."""
        if message.kind is Kind.REQUEST:
            self._answer_client(message.id, code, why)
        else:
            self._notes.append(f"dropped a notification of the client: {why}")

    def _answer_client(self, to: RawId, code: int, why: str, data: dict[str, Any] | None = None) -> None:
        self._deliveries.to_client.append(jsonrpc.error(to, code, why, data))

    # What is rewritten

    def _mask_capabilities(self, text: bytes) -> bytes:
        offered = spans.find(text, "params", "clientCapabilities")
        if offered is None or text[offered[0]] != 0x7B:
            return text
        edits = []
        for member in spans.members(text, offered[0]):
            name = spans.string_value(member.name)
            if name == "fs" and methods.Capability.FS not in self._policy.serves:
                edits.append((member.start, member.end, b'{"readTextFile":false,"writeTextFile":false}'))
            elif name == "terminal" and methods.Capability.TERMINAL not in self._policy.serves:
                edits.append((member.start, member.end, b"false"))
            elif name == "auth" and text[member.start] == 0x7B:
                edits += [
                    (inner.start, inner.end, b"false")
                    for inner in spans.members(text, member.start)
                    if spans.string_value(inner.name) == "terminal"
                ]
        return spans.splice(text, edits)

    def _strip_terminal_logins(self, text: bytes) -> bytes:
        offered = spans.find(text, "result", "authMethods")
        if offered is None or text[offered[0]] != 0x5B:
            return text
        kept = []
        for start, end in spans.elements(text, offered[0]):
            raw = text[start:end]
            method = _lenient_object(raw)
            self._auth_methods.append(method)
            if not _runs_in_terminal(method):
                kept.append(raw)
        if len(kept) == len(self._auth_methods):
            return text
        return spans.splice(text, [(*offered, b"[" + b",".join(kept) + b"]")])

    def _explain_login(self, text: bytes) -> bytes:
        if jsonrpc.raw_at(text, "error", "code") != b"%d" % jsonrpc.AUTH_REQUIRED:
            return text
        said = spans.find(text, "error", "message")
        words = jsonrpc.text_at(text, "error", "message")
        if said is None or words is None:
            return text
        hint = self._policy.login_hint(self._auth_methods)
        explained = f"{words.rstrip('. ')}. {hint}".encode(errors="replace").decode()
        return spans.splice(text, [(*said, msgspec.json.encode(explained))])


def _names_one_of(cancel: Message, sent: OpenRequests) -> bool:
    """Whether a `$/cancel_request` is about an open request of its sender."""
    raw = jsonrpc.raw_at(cancel.text, "params", "requestId")
    return raw is not None and jsonrpc.is_id(raw) and RawId(raw) in sent


def _spelled_as(request: OpenRequest, response: Message) -> bytes:
    return response.text if response.id == request.id else jsonrpc.with_id(response, request.id)


def _settled_without_client(request: OpenRequest) -> bytes:
    """What the agent gets for a request whose client has gone: a decision where the protocol has one for that."""
    if request.method == methods.REQUEST_PERMISSION:
        return jsonrpc.result(request.id, {"outcome": {"outcome": "cancelled"}})
    if request.method == methods.CREATE_ELICITATION:
        return jsonrpc.result(request.id, {"action": "cancel"})
    return jsonrpc.error(request.id, jsonrpc.REQUEST_CANCELLED, "the client has gone")


def _runs_in_terminal(method: dict[str, Any]) -> bool:
    meta = method.get("_meta")
    marks = meta if isinstance(meta, dict) else {}
    return method.get("type") == "terminal" or "terminal-auth" in marks or marks.get("type") == "terminal"


def _lenient_object(raw: bytes) -> dict[str, Any]:
    """A small JSON object of an agent's, decoded; empty for anything else."""
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
