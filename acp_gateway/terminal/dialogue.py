"""An ACP client of one session: messages of the gateway become events, and actions become messages.

The connection joins the session that it asks for, or opens a new one. Its files and terminals are not offered to the
agent, so that of all requests only questions are answered here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from acp_gateway.protocol.methods import (
    CANCEL_REQUEST,
    CREATE_ELICITATION,
    INITIALIZE,
    LIST,
    META,
    MODE_UPDATE,
    NEW,
    NEWS,
    PROMPT,
    REQUEST_PERMISSION,
    SESSION_CANCEL,
    SESSION_UPDATE,
    SET_MODE,
    TOOL_CALL_UPDATE,
)
from acp_gateway.terminal.content import Option, list_of, members_of, own_meta, read_options, text_of
from acp_gateway.terminal.forms import Field, read_form

_METHOD_NOT_FOUND: Final = -32601

FILL_IN: Final = "fill_in"
"""Kind of the option that asks for the fields of a form, and decides nothing."""

ALLOW_RULE: Final = "allow_rule"
"""Kind of an answer that allows once, and has a rule written for such questions."""

MAX_RULES: Final = 4
"""Maximum rules of one question that are shown."""

_FILL_IN: Final = Option("accept", "Fill in", FILL_IN)
_ACCEPT: Final = Option("accept", "Accept", "allow_once")
_VISITED: Final = Option("accept", "I have opened the page", "allow_once")
_DECLINE: Final = Option("decline", "Decline", "reject_once")
"""The answers to an elicitation: to a form with fields, to one without, to a page to open, and to all."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The session is open, and its history has come before."""

    session: str
    modes: tuple[tuple[str, str], ...]
    """Ids and names of the modes that can be set."""
    mode: str
    """The id of the present mode; empty if unknown."""
    state: str = ""
    """The agent's state where turns do not say it, as `Transcript.state` has it."""


@dataclass(frozen=True, slots=True)
class Updated:
    """An update of the session."""

    update: Mapping[str, Any]
    lane: str
    """The session of the sub-agent that sent it; empty for the agent itself."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the agent: whether it may call a tool, or a form to fill in."""

    id: int | str
    tool: Mapping[str, Any]
    """The tool call, with members as in an update; for a form, its text is the title."""
    options: tuple[Option, ...]
    lane: str = ""
    """The session of the sub-agent that asks; empty for the agent itself."""
    is_form: bool = False
    """True for an elicitation: a form to fill in, or a page to open."""
    fields: tuple[Field, ...] = ()
    """The fields of a form."""
    url: str = ""
    """The page to open."""

    @property
    def update(self) -> Mapping[str, Any]:
        """The tool call as an update; empty for a form."""
        return {} if self.is_form else {**self.tool, "sessionUpdate": TOOL_CALL_UPDATE}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question waits for an answer."""

    question: Question


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A question needs no answer any more."""

    id: int | str


@dataclass(frozen=True, slots=True)
class Decided:
    """A question was answered."""

    by: str
    """The identity that has decided; empty if none has."""
    decision: str


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The agent works on a prompt."""

    by: str
    """The identity that has sent it; empty if unknown."""
    running: bool = False
    """True if that was before this client has joined."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A turn has ended."""

    stop_reason: str
    """The agent's reason; empty if it ended by an error."""
    why: str
    """The gateway's reason if the agent did not end it; else empty."""
    error: str = ""
    """The message of the agent's error, if it has failed."""
    is_past: bool = False
    """True for one of the history."""
    time: int | None = None
    """Milliseconds since 1970, of one of the history; None if that is unknown."""

    @property
    def needs_no_words(self) -> bool:
        """True for a turn of the history that was done."""
        return self.is_past and self.stop_reason == "end_turn"


@dataclass(frozen=True, slots=True)
class Kept:
    """A prompt that waits for a time or a person."""

    key: str
    text: str
    """The beginning of it."""
    state: str
    """`timed`, `held`, or `lost`: the agent may have it."""
    due: int = 0
    """Milliseconds since 1970, of one that is `timed`."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Other prompts wait than before."""

    count: int
    prompts: tuple[tuple[str, str], ...]
    """The first ones: the identity that has sent each, and the beginning of its text."""
    kept: tuple[Kept, ...] = ()
    """The last of these, as far as they wait for no turn."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A request of this client was refused."""

    method: str
    text: str
    code: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt of this client was answered, at the end of its turn."""

    stop_reason: str
    was_sent: bool = True
    """False if it was cancelled before the agent had it."""
    is_kept: bool = False
    """True for one that waits for a time, and was answered before its turn."""
    due: str = ""
    """That time, in RFC 3339."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The session was closed or deleted."""

    text: str


Event = Opened | Updated | Asked | Withdrawn | Decided | TurnStarted | TurnEnded | Queued | Failed | Answered | Closed


@dataclass
class Dialogue:
    """The state of the client.

    Args:
        program: the name and version of the program, for the agent.
        cwd: the directory of a new session; ignored where one is joined.
        session: the id of the session that the connection joins; empty to open a new one.
        decides: False if no question is answered here, so that the gateway calls a person elsewhere.
    """

    program: tuple[str, str]
    cwd: str = "/"
    session: str = ""
    decides: bool = True
    questions: dict[int | str, Question] = field(default_factory=dict)
    """Open questions by id, the oldest first."""
    prompts: int = 0
    """Prompts of this client that are not answered."""
    output: list[bytes] = field(default_factory=list)
    """Messages for the gateway; the caller sends and removes them."""
    opened: Opened | None = None
    """The event of the session being open; None before."""
    keeps_prompts: bool = False
    """True if the gateway keeps prompts that wait for a time."""
    _wanted_modes: dict[int, str] = field(default_factory=dict)
    _methods: dict[int, str] = field(default_factory=dict)
    _next_id: int = 0
    _is_ended: bool = False

    def start(self) -> None:
        """Begin the dialogue."""
        name, version = self.program
        # No files and no terminals; of the gateway's extensions, news.
        capabilities: dict[str, Any] = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        told = {} if self.decides else {"decides": False}
        capabilities["_meta"] = {META: {"queue": True, "ends": True, "rules": True, **told}}
        client = {"name": name, "title": name, "version": version}
        self._request(INITIALIZE, protocolVersion=1, clientCapabilities=capabilities, clientInfo=client)

    def receive(self, batch: Sequence[bytes]) -> list[Event]:
        """Return the events of messages from the gateway, and add to `output` what they are answered with."""
        return [event for message in batch for event in self._receive(message)]

    def prompt(self, text: str, *, steers: bool = False, queue: Mapping[str, Any] | None = None) -> None:
        """Send a prompt; one that `steers` is for the turn that runs, where the agent takes it. `queue` says when it is
        to be sent."""
        self.prompts += 1
        own = {"steer": True} if steers else {} if queue is None else {"queue": queue}
        meta = {"_meta": {META: own}} if own else {}
        self._request(PROMPT, sessionId=self.session, prompt=[{"type": "text", "text": text}], **meta)

    def change_kept(self, key: str, action: Literal["release", "remove"]) -> None:
        """Have a kept prompt sent, or removed."""
        self.prompts += 1
        self._request(PROMPT, sessionId=self.session, prompt=[], _meta={META: {"queue": {action: key}}})

    def cancel(self) -> None:
        """Cancel the turn and what is queued."""
        self._send({"method": SESSION_CANCEL, "params": {"sessionId": self.session}})

    def set_mode(self, mode: str) -> None:
        """Ask for another mode."""
        self._wanted_modes[self._next_id] = mode
        self._request(SET_MODE, sessionId=self.session, modeId=mode)

    def answer(self, question: Question, option: Option) -> None:
        """Answer a question, unless it is not open any more."""
        if self.questions.pop(question.id, None) is not None:
            outcome = _with_rule(question, option) if option.kind == ALLOW_RULE else _selected(option)
            self._send({"id": question.id, "result": {"action": option.id} if question.is_form else outcome})

    def fill_in(self, question: Question, content: Mapping[str, object]) -> None:
        """Answer a form, unless it is not open any more."""
        if self.questions.pop(question.id, None) is not None:
            self._send({"id": question.id, "result": {"action": "accept", "content": content}})

    def _request(self, method: str, **params: Any) -> None:
        self._methods[self._next_id] = method
        self._send({"id": self._next_id, "method": method, "params": params})
        self._next_id += 1

    def _send(self, members: Mapping[str, Any]) -> None:
        # A lone surrogate, from a paste, is not UTF-8: it stays an escape.
        self.output.append(json.dumps({"jsonrpc": "2.0", **members}).encode())

    def _receive(self, text: bytes) -> list[Event]:
        try:
            message = members_of(json.loads(text))
        except (ValueError, RecursionError):
            return []
        method, params = text_of(message.get("method")), members_of(message.get("params"))
        if not method:
            return self._receive_response(message)
        if "id" in message:
            return self._receive_request(message["id"], method, params)
        if method == SESSION_UPDATE:
            return self._receive_update(params)
        if method == NEWS and params.get("sessionId") in ("", self.session):
            return self._receive_news(params)
        withdrawn = params.get("requestId")
        if method == CANCEL_REQUEST and isinstance(withdrawn, int | str) and withdrawn in self.questions:
            del self.questions[withdrawn]
            return [Withdrawn(withdrawn)]
        return []

    def _receive_response(self, message: Mapping[str, Any]) -> list[Event]:
        request_id = message.get("id")
        method = self._methods.pop(request_id, "") if isinstance(request_id, int) else ""
        self.prompts -= method == PROMPT
        mode = self._wanted_modes.pop(request_id, "") if isinstance(request_id, int) else ""
        if "error" in message:
            error = members_of(message["error"])
            code = error.get("code")
            text = text_of(error.get("message")) or "an error without a text"
            return [Failed(method, text, code if isinstance(code, int) else 0)]
        result = members_of(message.get("result"))
        if method == INITIALIZE:
            self.keeps_prompts = own_meta(members_of(result.get("agentCapabilities"))).get("queue") is True
            self._request(NEW, cwd=self.cwd, mcpServers=[])
        elif method == NEW:
            joined = bool(self.session)
            self.opened = self._opened(result)
            if not joined:
                return [self.opened]
            # The history of a session that was joined comes between these two responses.
            self._request(LIST)
        elif method == LIST and self.opened is not None:
            return [self.opened]
        elif method == PROMPT:
            told, kept = own_meta(result), members_of(own_meta(result).get("waits"))
            was_sent = told.get("notSent") is not True
            return [Answered(text_of(result.get("stopReason")), was_sent, bool(kept), text_of(kept.get("due")))]
        elif mode:
            # The gateway tells the other clients only.
            return [Updated({"sessionUpdate": MODE_UPDATE, "currentModeId": mode}, "")]
        return []

    def _opened(self, result: Mapping[str, Any]) -> Opened:
        self.session = text_of(result.get("sessionId"))
        modes = members_of(result.get("modes"))
        available = map(members_of, list_of(modes.get("availableModes")))
        named = [(text_of(mode.get("id")), text_of(mode.get("name"))) for mode in available]
        return Opened(
            self.session,
            tuple((mode, name or mode) for mode, name in named if mode),
            text_of(modes.get("currentModeId")),
            text_of(own_meta(result).get("state")),
        )

    def _receive_request(self, request_id: Any, method: str, params: Mapping[str, Any]) -> list[Event]:
        question = self._question(request_id, method, params) if isinstance(request_id, int | str) else None
        if question is not None:
            self.questions[question.id] = question
            return [Asked(question)]
        error = {"code": _METHOD_NOT_FOUND, "message": f"a terminal can't answer {method}"}
        self._send({"id": request_id, "error": error})
        return []

    def _question(self, request_id: int | str, method: str, params: Mapping[str, Any]) -> Question | None:
        """Return a request of the agent as a question, None if it cannot be answered here."""
        lane = self._lane(params)
        options = tuple(read_options(params.get("options")))
        if method == REQUEST_PERMISSION and options:
            options += tuple(_rules(options, own_meta(params)))
            return Question(request_id, members_of(params.get("toolCall")), options, lane)
        if method == CREATE_ELICITATION:
            return _read_elicitation(request_id, params, lane)
        return None

    def _lane(self, params: Mapping[str, Any]) -> str:
        """Return the sub-agent's session that a message is about; "" if it is the session itself."""
        session = text_of(params.get("sessionId"))
        # Updates may come before the response that names the session.
        return "" if self.session in ("", session) else session

    def _receive_update(self, params: Mapping[str, Any]) -> list[Event]:
        self._is_ended = False
        return [Updated(members_of(params.get("update")), self._lane(params))]

    def _receive_news(self, params: Mapping[str, Any]) -> list[Event]:
        by = text_of(members_of(params.get("by")).get("identity"))
        match params.get("event"):
            case "turn_started":
                self._is_ended = False
                return [TurnStarted(by, params.get("running") is True)]
            case "turn_ended":
                # Told again where a client may know the end already: nothing of a turn has come since.
                is_known, self._is_ended = self._is_ended, True
                return [] if is_known else [_turn_ended(params)]
            case "decided":
                return [Decided(by, text_of(params.get("decision")))]
            case "queue":
                count, prompts = params.get("count"), [*map(members_of, list_of(params.get("prompts")))]
                told = tuple((text_of(one.get("identity")), text_of(one.get("text"))) for one in prompts)
                kept = tuple(_read_kept(one) for one in prompts if "state" in one)
                return [Queued(count if isinstance(count, int) else len(told), told, kept)]
            case "closed" | "deleted" as event:
                return [Closed(f"the session was {event}")]
        return []


def queue_at(at: str, now: datetime, *, auto: bool) -> dict[str, Any]:
    """Return the `queue` of `Dialogue.prompt` for a time on the clock of `now`, which has a zone."""
    offset = now.utcoffset() or timedelta()
    return {"at": at, "offset": round(offset.total_seconds() / 60), "auto": auto}


def _read_kept(told: Mapping[str, Any]) -> Kept:
    key, text, state = (text_of(told.get(name)) for name in ("promptId", "text", "state"))
    due = told.get("due")
    return Kept(key, text, state, due if isinstance(due, int) else 0)


def _selected(option: Option) -> dict[str, Any]:
    """Return the result that selects an option of a permission."""
    return {"outcome": {"outcome": "selected", "optionId": option.id}}


def _rules(options: Sequence[Option], told: Mapping[str, Any]) -> Iterator[Option]:
    """Yield an answer for each rule that may be written with the one that allows once, as the gateway has told."""
    subjects = [subject for subject in map(text_of, list_of(told.get("rules"))[:MAX_RULES]) if subject]
    for subject in subjects if sum(option.kind == "allow_once" for option in options) == 1 else ():
        for scope, where in (("project", f"in {text_of(told.get('project'))}"), ("session", "in this session")):
            yield Option(f"{scope} {subject}", f"Always allow {subject} {where}", ALLOW_RULE)


def _with_rule(question: Question, option: Option) -> dict[str, Any]:
    """Return the result that allows once, and has a rule written."""
    scope, _, subject = option.id.partition(" ")
    once = next((each for each in question.options if each.kind == "allow_once"), None)
    if once is None:
        return _selected(option)  # The agent has named an answer of its own so.
    return {**_selected(once), "_meta": {META: {"rule": {"subject": subject, "for": scope}}}}


def _turn_ended(params: Mapping[str, Any]) -> TurnEnded:
    time = params.get("time")
    return TurnEnded(
        text_of(params.get("stopReason")),
        text_of(params.get("reason")),
        text_of(members_of(params.get("error")).get("message")),
        params.get("past") is True,
        time if type(time) is int else None,
    )


def _read_elicitation(request_id: int | str, params: Mapping[str, Any], lane: str) -> Question:
    """Return an elicitation as a question. One that is not understood can be declined.

    An error would end the question also for clients that are away and could answer it.
    """
    tool = {"title": text_of(params.get("message"))}
    if params.get("mode") == "url":
        url = text_of(params.get("url"))
        options = (_VISITED, _DECLINE) if url else (_DECLINE,)
        return Question(request_id, tool, options, lane, is_form=True, url=url)
    fields = read_form(params.get("requestedSchema"))
    if fields is None:
        return Question(request_id, tool, (_DECLINE,), lane, is_form=True)
    return Question(request_id, tool, (_FILL_IN if fields else _ACCEPT, _DECLINE), lane, is_form=True, fields=fields)
