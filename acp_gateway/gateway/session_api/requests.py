"""Reads the JSON-RPC that clients send in the session API, and composes the ACP messages for it.

`read` checks a text from a client and returns what it asks for: a `Call` or an `Answer`. `acp_request` composes the
ACP message of a call. Prompts and answers are passed on as the bytes that they are. What clients get is in
`output`.

The wire is described in `docs/web-protocol.md`.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message, RawId
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.members import (
    AcpRequest,
    Member,
    Sizes,
    Unfit,
    read_array,
    read_count,
    read_flag,
    read_id,
    read_long_text,
    read_members,
    read_object,
    read_session,
    read_text,
    read_texts,
    request_key,
)
from acp_gateway.protocol.text.strict_parsing import parse_strictly
from acp_gateway.terminal.export_formats import FORMATS

GATEWAY_INFO: Final = "gateway/info"
MACHINE: Final = "gateway/machine"
USAGE: Final = "gateway/usage"
AGENTS: Final = "agents/list"
DISK: Final = "agents/sessions"
LIST: Final = "session/list"
NEW: Final = "session/new"
GET: Final = "session/get"
UNSUBSCRIBE: Final = "session/unsubscribe"
PROMPT: Final = "session/prompt"
RESPOND: Final = "session/respond"
RULES: Final = "session/rules"
TRY_RULES: Final = "rules/try"
STEER: Final = "session/steer"
CANCEL: Final = "session/cancel"
QUEUE: Final = "session/queue"
ARCHIVE: Final = "session/archive"
DELETE: Final = "session/delete"
REMOVE_WORKTREE: Final = "session/remove_worktree"
SET_MODE: Final = "session/set_mode"
SET_MODEL: Final = "session/set_model"
SET_CONFIG_OPTION: Final = "session/set_config_option"
SHARE: Final = "session/share"
EXPORT: Final = "session/export"
SEARCH: Final = "session/search"
FORK: Final = "session/fork"
SET_TITLE: Final = "session/set_title"
LAST: Final = "session/last"
FILES: Final = "files/list"
CHANGES: Final = "session/changes"
UNDO: Final = "session/undo"
FOLDER: Final = "files/folder"
STAT: Final = "files/stat"
READ: Final = "files/read"
CREATE: Final = "files/create"
APPEND: Final = "files/append"
FINISH: Final = "files/finish"
PORTS: Final = "ports/list"
PREVIEW: Final = "ports/preview"
PUSH_GET: Final = "push/get"
PUSH_SUBSCRIBE: Final = "push/subscribe"
PUSH_UNSUBSCRIBE: Final = "push/unsubscribe"
PUSH_TEST: Final = "push/test"

ALIASES: Final = {"session/sync": GET}

SUMS_BY: Final = ("day", "session", "agent", "identity")
"""Words for what costs are added up by."""

MOST_SUMS: Final = 10_000
"""Maximum sums of costs that are told with those of nodes, a tenth from each; clients take no more."""

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

QUEUE_ACTIONS: Final = ("remove", "edit", "move", "send_now", "steer")

SUCCESS: Final = b'{"success":true}'

_STEER: Final = b',"_meta":{"%b":{"steer":true}}' % methods.META.encode()
"""Member of a prompt for the turn that runs."""

_PASSED_ON: Final = frozenset({SET_MODE, SET_MODEL, SET_CONFIG_OPTION})


MAX_LINES: Final = 100
"""Maximum sessions whose last lines are told at once: a board shows as many."""

_SESSION: Final = Member(read_session)


def _read_request_key(raw: bytes) -> str:
    return request_key(read_id(raw))


def _read_word(words: Collection[str], raw: bytes) -> str:
    word = read_text(raw)
    if word not in words:
        raise Unfit(f"must be one of {', '.join(words)}")
    return word


def _read_day(raw: bytes) -> str:
    day = read_text(raw)
    if not _DAY.fullmatch(day):
        raise Unfit("must be a day, such as 2030-12-31")
    return day


def _read_sessions(raw: bytes) -> tuple[str, ...]:
    return tuple(map(read_session, lookup.elements_of(read_array(raw, "an array of strings"), MAX_LINES)))


def _read_lines(raw: bytes) -> list[int]:
    lines = [read_count(each) for each in lookup.elements_of(read_array(raw, "an array of numbers"), 5)]
    if len(lines) != 4:
        raise Unfit("must be an array of 4 numbers")
    return lines


class Method(NamedTuple):
    """A method that clients call."""

    members: Mapping[str, Member] = {}
    acts: bool = False
    """Changes something, starts something, or searches the disk: refused for observers."""
    repeatable: bool = False
    """Acts, and may be carried out twice, since its result is too large to be kept for a page that calls it again."""


METHODS: Final[Mapping[str, Method]] = {
    GATEWAY_INFO: Method(),
    MACHINE: Method(),
    USAGE: Method(
        {
            "by": Member(partial(_read_word, SUMS_BY), False),
            "since": Member(_read_day, False),
            "nodes": Member(read_flag, False),
        }
    ),
    AGENTS: Method(),
    DISK: Method({"agentType": Member(read_text), "cursor": Member(read_text, False)}, acts=True, repeatable=True),
    LIST: Method(
        {
            "archived": Member(read_flag, False),
            "status": Member(read_texts, False),
            "watch": Member(read_flag, False),
            "all": Member(read_flag, False),
            "limit": Member(read_count, False),
            "ports": Member(read_flag, False),
        }
    ),
    NEW: Method(
        {name: Member(read_text, False) for name in ("agentType", "cwd", "title", "worktree")},
        acts=True,
    ),
    GET: Method(
        {
            "sessionId": _SESSION,
            "agentType": Member(read_text, False),
            "since": Member(read_count, False),
            "epoch": Member(read_text, False),
            "before": Member(read_count, False),
            "limit": Member(read_count, False),
        }
    ),
    UNSUBSCRIBE: Method({"sessionId": _SESSION}),
    PROMPT: Method(
        {"sessionId": _SESSION, "prompt": Member(read_array), "queue": Member(read_object, False)}, acts=True
    ),
    STEER: Method({"sessionId": _SESSION, "prompt": Member(read_array)}, acts=True),
    RESPOND: Method(
        {"sessionId": _SESSION, "requestId": Member(_read_request_key), "response": Member(read_object)}, acts=True
    ),
    RULES: Method({"sessionId": _SESSION, "requestId": Member(_read_request_key)}, acts=True, repeatable=True),
    TRY_RULES: Method(
        {"command": Member(read_text), "cwd": Member(read_text), "agentType": Member(read_text, False)},
        acts=True,
        repeatable=True,
    ),
    CANCEL: Method(
        {"sessionId": _SESSION, "seq": Member(read_count, False), "epoch": Member(read_text, False)}, acts=True
    ),
    QUEUE: Method(
        {
            "sessionId": _SESSION,
            "promptId": Member(read_text),
            "action": Member(partial(_read_word, QUEUE_ACTIONS)),
            "text": Member(read_text, False),
            "before": Member(read_text, False),
        },
        acts=True,
    ),
    ARCHIVE: Method({"sessionId": _SESSION, "archived": Member(read_flag, False)}, acts=True),
    FORK: Method({"sessionId": _SESSION}, acts=True),
    SET_TITLE: Method({"sessionId": _SESSION, "title": Member(read_text)}, acts=True),
    DELETE: Method({"sessionId": _SESSION, "worktree": Member(read_flag, False)}, acts=True),
    REMOVE_WORKTREE: Method({"sessionId": _SESSION}, acts=True),
    SET_MODE: Method({"sessionId": _SESSION, "modeId": Member(read_text)}, acts=True),
    SET_MODEL: Method({"sessionId": _SESSION, "modelId": Member(read_text)}, acts=True),
    SET_CONFIG_OPTION: Method(
        {"sessionId": _SESSION, "configId": Member(read_text), "value": Member(bytes)}, acts=True
    ),
    EXPORT: Method(
        {"sessionId": _SESSION, "format": Member(partial(_read_word, FORMATS)), "redact": Member(read_flag, False)}
    ),
    SEARCH: Method(
        {
            "words": Member(read_text),
            "sessionId": Member(read_session, False),
            "before": Member(read_count, False),
            "limit": Member(read_count, False),
            "nodes": Member(read_flag, False),
        }
    ),
    LAST: Method({"sessionIds": Member(_read_sessions)}),
    SHARE: Method({"sessionId": _SESSION, "observe": Member(read_flag, False)}, acts=True),
    FILES: Method({"sessionId": _SESSION, "query": Member(read_text), "limit": Member(read_count, False)}, acts=True),
    FOLDER: Method({"sessionId": _SESSION, "path": Member(read_text, False)}),
    STAT: Method({"sessionId": _SESSION, "path": Member(read_text)}),
    READ: Method(
        {
            "sessionId": _SESSION,
            "path": Member(read_text),
            "offset": Member(read_count, False),
            "length": Member(read_count, False),
        }
    ),
    CREATE: Method(
        {
            "sessionId": _SESSION,
            "path": Member(read_text),
            "size": Member(read_count),
            "overwrite": Member(read_flag, False),
        },
        acts=True,
    ),
    APPEND: Method(
        {
            "sessionId": _SESSION,
            "upload": Member(read_text),
            "offset": Member(read_count),
            "data": Member(read_long_text),
        },
        acts=True,
    ),
    FINISH: Method({"sessionId": _SESSION, "upload": Member(read_text)}, acts=True),
    PORTS: Method({"sessionId": Member(read_session, False)}),
    PREVIEW: Method({"port": Member(read_count), "sessionId": Member(read_session, False)}),
    CHANGES: Method({"sessionId": _SESSION, "mark": Member(read_count, False)}, acts=True, repeatable=True),
    UNDO: Method(
        {
            "sessionId": _SESSION,
            "mark": Member(read_count, False),
            "path": Member(read_text),
            "old": Member(read_text),
            "new": Member(read_text),
            "lines": Member(_read_lines, False),
        },
        acts=True,
    ),
    PUSH_GET: Method(acts=True),
    PUSH_SUBSCRIBE: Method(
        {
            "endpoint": Member(read_text),
            "p256dh": Member(read_text),
            "auth": Member(read_text),
            "quiet": Member(read_object, False),
            "session": Member(read_session, False),
            "done": Member(read_object, False),
        },
        acts=True,
    ),
    PUSH_UNSUBSCRIBE: Method(acts=True),
    PUSH_TEST: Method(acts=True),
}
"""All methods, by name."""


class Refused(Exception):
    """A message that gets an error: `reply` is that response, None for a notification."""

    def __init__(self, reply: bytes | None) -> None:
        self.reply = reply
        super().__init__()


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A request of a client whose members were checked."""

    id: RawId | None
    """None for a notification, which gets no response."""
    method: str
    """One of `METHODS`."""
    members: Mapping[str, Any]
    """The members that are there: numbers, texts and flags as values, arrays and objects as JSON texts."""
    params: bytes
    """All of `params`, as JSON text, where they are passed on."""

    @property
    def session(self) -> str | None:
        """The session that it names."""
        session: str | None = self.members.get("sessionId")
        return session

    @property
    def acts(self) -> bool:
        """True if observers may not send it."""
        return METHODS[self.method].acts

    @property
    def is_once(self) -> bool:
        """True if it must not be carried out twice."""
        return self.acts and not METHODS[self.method].repeatable

    def result(self, result: bytes = SUCCESS) -> bytes | None:
        """Return the response with this result, which is JSON text; None for a notification."""
        return None if self.id is None else b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self.id, result)

    def error(self, code: int, text: str, data: Any = None) -> bytes | None:
        """Return the response with this error; None for a notification."""
        return None if self.id is None else jsonrpc.error(self.id, code, text, data)

    def failure(self, response: Message) -> bytes | None:
        """Return the response with the error of an ACP response; None for a notification."""
        if self.id is None:
            return None
        error = lookup.raw_at(response.text, "error") or b"null"
        at = spans.find(error, "code") if error[:1] == b"{" else None
        if at is not None and jsonrpc.id_number(RawId(error[slice(*at)])) == jsonrpc.SESSION_NOT_FOUND:
            # One code for a session that does not exist, here or at the agent.
            error = spans.splice(error, [(*at, b"%d" % jsonrpc.INVALID_PARAMS)])
        return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (self.id, error)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A response of a client to a request of the agent."""

    request: str
    """The key of the request's id, as `request_key` returns it."""
    result: bytes | None
    error: bytes | None = None
    """One of the two, as JSON text."""
    call: Call | None = None
    """The `session/respond` that it came with; None for a JSON-RPC response."""


def read(text: bytes, sizes: Sizes = Sizes()) -> Call | Answer:  # noqa: B008 - it never changes.
    """Read a text of a client. Raises `Refused`."""
    try:
        message, repeated = parse_strictly(text)
    except InvalidMessage as error:
        raise Refused(jsonrpc.error(jsonrpc.NO_ID, error.code, str(error))) from None
    if message.kind is not Kind.NOTIFICATION and len(message.id) > jsonrpc.ID_SIZE:
        why = f"an id has at most {jsonrpc.ID_SIZE} bytes"
        raise Refused(jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, why))
    if repeated is not None:
        why = f"the member {repeated!r:.80} is repeated"
        to = message.id if repeated.casefold() != "id" else jsonrpc.NO_ID
        raise Refused(jsonrpc.error(to, jsonrpc.INVALID_REQUEST, why))
    if message.kind is Kind.RESPONSE:
        if len(text) > sizes.decision:
            why = f"an answer has at most decision_size ({sizes.decision}) bytes"
            raise Refused(jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, why))
        return _read_response(message)
    return _read_call(message, sizes)


def _read_response(message: Message) -> Answer:
    name = "error" if message.error else "result"
    value = lookup.raw_at(message.text, name)
    if message.id == jsonrpc.NO_ID or value is None:
        raise Refused(jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, "a response needs the id of a request"))
    return Answer(request_key(message.id), *((None, value) if message.error else (value, None)))


def _read_call(message: Message, sizes: Sizes) -> Call | Answer:
    request_id = message.id if message.kind is Kind.REQUEST else None

    def refused(code: int, why: str) -> Refused:
        return Refused(None if request_id is None else jsonrpc.error(request_id, code, why))

    name = ALIASES.get(message.method, message.method)
    method = METHODS.get(name)
    if method is None:
        raise refused(jsonrpc.METHOD_NOT_FOUND, f"there is no method {message.method!r:.80} here")
    limit, most = ("decision_size", sizes.decision) if name == RESPOND else ("session_request_size", sizes.request)
    if len(message.text) > most and name not in (PROMPT, STEER):
        raise refused(jsonrpc.INVALID_PARAMS, f"{name} has at most {limit} ({most}) bytes")
    found = lookup.params_of(message)
    # A prompt may be large, and is copied no more often than it must be.
    params = lookup.raw_params(message) if not found or name in _PASSED_ON else b"{}"
    if params not in (b"", b"null") and params[:1] != b"{":
        raise refused(jsonrpc.INVALID_PARAMS, "params must be an object")
    if len(found) > methods.MEMBERS or (not found and len(params) > methods.MEMBERS * 8):
        raise refused(jsonrpc.INVALID_PARAMS, f"params have at most {methods.MEMBERS} members")
    try:
        members = read_members(found, method.members, name)
    except Unfit as error:
        raise refused(jsonrpc.INVALID_PARAMS, str(error)) from None
    call = Call(request_id, name, members, params or b"{}")
    if name == RESPOND:
        return Answer(members["requestId"], _outcome(members["response"]), call=call)
    return call


def _outcome(response: bytes) -> bytes:
    """Return a response as ACP has it: an outcome may stand without the object around it."""
    outcome = lookup.raw_at(response, "outcome")
    return b'{"outcome":%b}' % response if outcome is not None and outcome[:1] == b'"' else response


# To the agent


def acp_request(call: Call, session_id: str) -> AcpRequest:
    """Return the ACP message of a call, whose session has this id at its agent; a new session needs more than that."""
    quoted = jsonrpc.encode(session_id)
    if call.method in _PASSED_ON:
        span = spans.find(call.params, "sessionId")
        assert span is not None, "the member was checked"
        same = session_id == call.session
        return AcpRequest(call.method, call.params if same else spans.splice(call.params, [(*span, quoted)]))
    session = b'"sessionId":%b' % quoted
    if call.method in (PROMPT, STEER):
        meta = _STEER if call.method == STEER else b""
        if "queue" in call.members:
            meta = b',"_meta":{"%b":{"queue":%b}}' % (methods.META.encode(), call.members["queue"])
        return AcpRequest(methods.PROMPT, b'{%b%b,"prompt":%b}' % (session, meta, call.members["prompt"]))
    assert call.method == DELETE
    return AcpRequest(call.method, b"{%b}" % session)
