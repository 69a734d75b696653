"""A client and its agent: which message goes where, what is masked on the way, and what is answered here.

Everything that affects state lives in this file. Feed it what happened, one verb for each thing that can happen
(`receive_from_client`, `receive_from_agent`, `client_gone`, `agent_lost`, `closing`); the verbs never raise and never
wait. Then take from it what is to be sent to whom (`take_deliveries`) and what a person should know (`take_notes`).

A message passes as the very bytes it came in, with these exceptions:

* `initialize`: the client's file system and terminal are masked on the way to the agent unless the policy lets them
  through, for a write that goes to the editor's machine never appears on the agent's. Authentication methods that would
  run a terminal command are removed from the answer, and the client's offer to run them is masked, whatever the policy
  says: the editor would run them on the wrong machine.
* An error `-32000` from the agent (not logged in) gets the words that say what to run on the gateway's machine.
* A response whose id the peer spelled in its own way gets back the spelling of the request.

What is answered here and never passed on: text that is no message, arrays, messages of the client with a member
repeated where the gateway looks, requests before `initialize`, a second `initialize`, an id that is still in use, a
session in a directory that isn't there, `fs/*` and `terminal/*` from the agent while they are masked, requests when
the agent is lost, and the gateway's own reserved methods. A notification before `initialize`, a response that nobody
waits for, or a `$/cancel_request` for a request that is not open, is dropped. Every request that was passed on is
answered in the end: `agent_lost`, `client_gone` and `closing` see to those that are still open.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from acp_gateway.protocol import jsonrpc, methods, spans
from acp_gateway.protocol.jsonrpc import NO_ID, InvalidMessage, Kind, Message, OpenRequest, OpenRequests, RawId

ID_SIZE: Final = 1024
"""Bytes of an id at most; a UUID has 38, and each is remembered until its answer comes."""

_Refusal: TypeAlias = tuple[int, str, dict[str, Any] | None]
"""The code, the words and the data of an error."""

_NOT_INITIALIZED: Final[_Refusal] = (jsonrpc.INVALID_REQUEST, "the first request must be initialize", None)


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
    max_open_requests: int
    """Requests of one side that may wait for the other's answer; each is remembered until it comes."""
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
        # Why no request is taken now; None since an `initialize` was, unless it failed or the agent was lost.
        self._closed: _Refusal | None = _NOT_INITIALIZED
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
        return self._closed is None

    # What happened

    def receive_from_client(self, text: bytes) -> None:
        """The client sent a message, or what it takes for one."""
        try:
            message = jsonrpc.parse(text)
        except InvalidMessage as error:
            self._answer_client(NO_ID, error.code, str(error))
            return
        repeated = jsonrpc.repeated_member(text)
        if repeated is not None:
            self._refuse_repeated(message, repeated)
        elif message.kind is Kind.RESPONSE:
            self._settle_for_client(message)
        elif message.method.startswith(methods.RESERVED_PREFIX):
            self._refuse(message, jsonrpc.METHOD_NOT_FOUND, "this method is the gateway's own")
        elif message.kind is Kind.REQUEST:
            self._request_from_client(message)
        elif self._closed is not None:
            self._refuse(message, *self._closed)
        elif message.method == methods.INITIALIZE:
            self._refuse(message, jsonrpc.INVALID_REQUEST, "initialize must be a request")
        elif _may_pass(message, self._client_requests):
            self._deliveries.to_agent.append(text)

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
            self._refuse_agent(message, "is the gateway's own")
        elif message.kind is Kind.REQUEST:
            self._request_from_agent(message)
        elif _may_pass(message, self._agent_requests):
            self._deliveries.to_client.append(text)

    def client_gone(self) -> None:
        """The client has left and will not come back: end its turns and settle what the agent asked of it."""
        turns = [request.session for request in self._client_requests.clear() if request.session is not None]
        for session in dict.fromkeys(turns):
            self._deliveries.to_agent.append(jsonrpc.notification(methods.SESSION_CANCEL, {"sessionId": session}))
        for request in self._agent_requests.clear():
            self._deliveries.to_agent.append(_settled_without_client(request))

    def closing(self, why: str, data: dict[str, Any]) -> None:
        """The gateway ends this conversation: answer the client's open requests, and end them at the agent as well."""
        for request in self._client_requests:
            self._answer_client(request.id, jsonrpc.INTERNAL_ERROR, why, data)
        self.client_gone()

    def agent_lost(self, why: str, data: dict[str, Any]) -> None:
        """The agent has ended or could not be started: answer everything that waits for it, and what comes from now."""
        for request in self._client_requests.clear():
            self._answer_client(request.id, jsonrpc.INTERNAL_ERROR, why, data)
        self._agent_requests.clear()
        self._closed = (jsonrpc.INTERNAL_ERROR, why, data)

    # Requests

    def _request_from_client(self, message: Message) -> None:
        if message.id in self._client_requests:
            self._refuse(message, jsonrpc.INVALID_REQUEST, f"the id {message.id.decode():.80} is still in use")
        elif message.method == methods.INITIALIZE and self._closed is _NOT_INITIALIZED:
            self._closed = None
            self._client_requests.add(OpenRequest(message.id, message.method))
            self._deliveries.to_agent.append(self._mask_capabilities(message.text))
        elif self._closed is not None:
            self._refuse(message, *self._closed)
        elif message.method == methods.INITIALIZE:
            self._refuse(message, jsonrpc.INVALID_REQUEST, "initialize has been called already")
        elif why := self._too_much(message, self._client_requests):
            self._refuse(message, jsonrpc.INVALID_REQUEST, why)
        elif problem := self._problem_with(message):
            self._refuse(message, jsonrpc.INVALID_PARAMS, problem.message, problem.data)
        else:
            opens_turn = methods.client_method(message.method).opens_turn
            session = jsonrpc.text_at(message.text, "params", "sessionId") if opens_turn else None
            self._client_requests.add(OpenRequest(message.id, message.method, session))
            self._deliveries.to_agent.append(message.text)

    def _problem_with(self, message: Message) -> Problem | None:
        """Why the session that a request asks for can't be opened. What `cwd` must look like is the agent's to say."""
        if not methods.client_method(message.method).opens_session:
            return None
        cwd = jsonrpc.text_at(message.text, "params", "cwd")
        return None if cwd is None else self._policy.check_directory(cwd)

    def _request_from_agent(self, message: Message) -> None:
        needs = methods.agent_method(message.method).needs
        if needs is not None and needs not in self._policy.serves:
            self._refuse_agent(message, "was not offered: the client works on another machine")
            return
        if why := self._too_much(message, self._agent_requests):
            self._refuse_agent(message, why, jsonrpc.INVALID_REQUEST)
            return
        self._agent_requests.add(OpenRequest(message.id, message.method))
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
        if request.method == methods.INITIALIZE:
            self._closed = _NOT_INITIALIZED if response.error else None
            text = self._strip_terminal_logins(text)
        if response.error:
            text = self._explain_login(text)
        self._deliveries.to_client.append(text)

    def _drop(self, response: Message, sender: str) -> None:
        self.dropped_responses += 1
        self._notes.append(f"dropped a response of {sender} that nobody waits for")

    # Answers of the gateway's own

    def _refuse(self, message: Message, code: int, why: str, data: dict[str, Any] | None = None) -> None:
        """Answer a request of the client with an error; a notification is never answered."""
        if message.kind is Kind.NOTIFICATION:
            self._notes.append(f"dropped a notification of the client: {why}")
            return
        # Under an id that is in use an error would settle the earlier request at the client.
        self._answer_client(NO_ID if message.id in self._client_requests else message.id, code, why, data)

    def _refuse_repeated(self, message: Message, name: str) -> None:
        """Parsers disagree on which of the two counts: what the agent reads must be what was checked here."""
        why = f"the member {name!r:.80} is there twice"
        if message.kind is Kind.REQUEST and name.casefold() != "id":
            self._refuse(message, jsonrpc.INVALID_REQUEST, why)
        else:
            self._answer_client(NO_ID, jsonrpc.INVALID_REQUEST, why)

    def _too_much(self, message: Message, sent: OpenRequests) -> str | None:
        """Why a request can't be remembered besides all the others that are open."""
        if len(message.id) > ID_SIZE:
            return f"has an id of more than {ID_SIZE} bytes"
        if len(sent) >= self._policy.max_open_requests:
            return f"comes while max_open_requests ({self._policy.max_open_requests}) are not answered"
        return None

    def _refuse_agent(self, message: Message, why: str, code: int = jsonrpc.METHOD_NOT_FOUND) -> None:
        """Answer a request of the agent with an error; a notification is only dropped."""
        what = f"{message.method!r:.80} {why}"
        self._notes.append(f"refused a message of the agent: {what}")
        if message.kind is Kind.REQUEST:
            self._deliveries.to_agent.append(jsonrpc.error(message.id, code, what))

    def _answer_client(self, to: RawId, code: int, why: str, data: dict[str, Any] | None = None) -> None:
        self._deliveries.to_client.append(jsonrpc.error(to, code, why, data))

    # What is rewritten

    def _mask_capabilities(self, text: bytes) -> bytes:
        offered = spans.find(text, "params", "clientCapabilities")
        if offered is None or text[offered[0]] != ord("{"):
            return text
        edits = []
        for member in spans.members(text, offered[0]):
            name = spans.string_value(member.name)
            if name == "fs" and methods.Capability.FS not in self._policy.serves:
                edits.append((member.start, member.end, b'{"readTextFile":false,"writeTextFile":false}'))
            elif name == "terminal" and methods.Capability.TERMINAL not in self._policy.serves:
                edits.append((member.start, member.end, b"false"))
            elif name == "auth" and text[member.start] == ord("{"):
                edits += [
                    (inner.start, inner.end, b"false")
                    for inner in spans.members(text, member.start)
                    if spans.string_value(inner.name) == "terminal"
                ]
        return spans.splice(text, edits)

    def _strip_terminal_logins(self, text: bytes) -> bytes:
        offered = spans.find(text, "result", "authMethods")
        if offered is None or text[offered[0]] != ord("["):
            return text
        spellings = [text[start:end] for start, end in spans.elements(text, offered[0])]
        self._auth_methods = [_object(spelling) for spelling in spellings]
        kept = [spelling for spelling in spellings if not _runs_in_terminal(spelling)]
        if len(kept) == len(spellings):
            return text
        return spans.splice(text, [(*offered, b"[" + b",".join(kept) + b"]")])

    def _explain_login(self, text: bytes) -> bytes:
        if jsonrpc.raw_at(text, "error", "code") != b"%d" % jsonrpc.AUTH_REQUIRED:
            return text
        said = spans.find(text, "error", "message")
        if said is None or text[said[0]] != ord('"'):
            return text
        words = spans.string_value(text[said[0] : said[1]]).strip()
        if words and not words.endswith((".", "!", "?")):
            words += "."
        explained = f"{words} {self._policy.login_hint(self._auth_methods)}".lstrip()
        return spans.splice(text, [(*said, jsonrpc.encode(explained))])


def _may_pass(notification: Message, sent: OpenRequests) -> bool:
    """Whether a notification is for the other side: all but a `$/cancel_request` for what its sender has not open."""
    if notification.method != methods.CANCEL_REQUEST:
        return True
    raw = jsonrpc.raw_at(notification.text, "params", "requestId")
    return raw is not None and RawId(raw) in sent


def _spelled_as(request: OpenRequest, response: Message) -> bytes:
    return response.text if response.id == request.id else jsonrpc.with_id(response, request.id)


def _settled_without_client(request: OpenRequest) -> bytes:
    """What the agent gets for a request whose client has gone: a decision where the protocol has one for that."""
    if request.method == methods.REQUEST_PERMISSION:
        return jsonrpc.result(request.id, {"outcome": {"outcome": "cancelled"}})
    if request.method == methods.CREATE_ELICITATION:
        return jsonrpc.result(request.id, {"action": "cancel"})
    return jsonrpc.error(request.id, jsonrpc.REQUEST_CANCELLED, "the client has gone")


def _runs_in_terminal(auth_method: bytes) -> bool:
    return (
        jsonrpc.text_at(auth_method, "type") == "terminal"
        or jsonrpc.text_at(auth_method, "_meta", "type") == "terminal"
        or spans.find(auth_method, "_meta", "terminal-auth") is not None
    )


def _object(text: bytes) -> dict[str, Any]:
    """An object of the agent's, decoded for `login_hint`; empty for what is none or can't be decoded."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
