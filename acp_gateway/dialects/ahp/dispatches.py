"""Decides what a client dispatches: what it may say, what that asks for, and the reason why it is refused.

A decision rests on what the client was told, in the order in which its messages came. So what is said about a call that
is not pending any more, as VS Code says it right after Stop, reaches no agent.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from acp_gateway.dialects.ahp.chat_tree import ChatTree
from acp_gateway.dialects.ahp.from_acp import MESSAGE_ID, Need
from acp_gateway.dialects.ahp.options import Options
from acp_gateway.dialects.ahp.wire import Action, list_in, object_in, text
from acp_gateway.protocol import jsonrpc
from acp_gateway.terminal.forms import Field

DRAFT_SIZE: Final = 64 * 1024
"""Maximum bytes of a draft, and of the answers to a question: some twenty pages."""

TITLE_LENGTH: Final = 256

_NO_QUESTION: Final = "there is no open question of this id"

_ONCE: Final = {True: "allow_once", False: "reject_once"}


class Refusal(Exception):
    """Refuses what is dispatched, for the reason that the client is told."""


class Prompt(NamedTuple):
    """Send a prompt, whose turn or whose message has an id."""

    id: str
    blocks: list[dict[str, Any]]
    model: str = ""
    steers: bool = False
    """True if it is for the turn that runs, as far as the agent can take it."""


class Cancel(NamedTuple):
    """Cancel the turn."""

    turn: str


class Answer(NamedTuple):
    """Answer a request of the agent, by its key; the result is JSON text."""

    key: str
    result: bytes


class Choose(NamedTuple):
    """Change options, by their names."""

    values: Mapping[str, str]


class Requeue(NamedTuple):
    """Take prompts that wait, by their ids, out of the queue, or put them behind the others, one after another."""

    ids: list[str]
    removes: bool


class Mark(NamedTuple):
    """Set a mark of the session: `isRead` or `isArchived`."""

    name: str
    is_set: bool


class Rename(NamedTuple):
    """Give the session a title."""

    title: str


class Draft(NamedTuple):
    """Keep what was typed, and not sent."""

    draft: dict[str, Any] | None


Effect: TypeAlias = Prompt | Cancel | Answer | Choose | Requeue | Mark | Rename | Draft | None
"""The work that an action asks for besides being told; None for nothing."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The state on which a decision rests."""

    chat: ChatTree
    needs: Mapping[str, Need]
    options: Options
    client: str
    """The client's own id."""
    observes: bool = False
    is_guest: bool = False
    is_busy: bool = False
    """True if a turn runs that the client was not told of."""
    sent: Container[str] = ()
    """Ids of the latest prompts of clients in the session, which the chat may not show."""

    def has_taken(self, name: str) -> bool:
        """Return True for the id of a prompt that was taken before."""
        return name in self.sent or self.chat.has_taken(name)


def decide(action: Action, situation: Situation) -> Effect:
    """Return what an action asks for. Raises `Refusal`."""
    kind = text(action, "type")
    if situation.observes and kind != "session/isReadChanged":
        raise Refusal("observers may only look")
    decider = _DECIDERS.get(kind)
    if decider is None:
        raise Refusal(_NOT_HERE.get(kind) or f"clients may not dispatch {kind:.80}")
    return decider(action, situation)


def prompt_blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message of the user as content blocks of ACP. Raises `Refusal`."""
    said = text(message, "text")
    blocks: list[dict[str, Any]] = [{"type": "text", "text": said}] if said else []
    for one in list_in(message, "attachments"):
        attached = one if isinstance(one, dict) else {}
        uri, kind = text(attached, "uri"), text(attached, "contentType")
        name = text(attached, "label") or text(attached, "displayName") or uri.rpartition("/")[2]
        data = text(attached, "data")
        if data and kind.startswith("image/"):
            blocks.append({"type": "image", "mimeType": kind, "data": data})
        elif uri:
            blocks.append({"type": "resource_link", "name": name or uri, "uri": uri})
        else:
            raise Refusal(f"the attachment {name or kind!r:.80} can't be passed on: only files, links and pictures can")
    if not blocks or object_in(message, "origin").get("kind", "user") != "user":
        raise Refusal("a message needs a text, and a user who says it")
    return blocks


def _turn(action: Action, at: Situation) -> Effect:
    turn = _id(action, "turnId")
    _need(not at.has_taken(turn), "this turn was taken already")
    _need(at.chat.active is None and not at.is_busy, "a turn is running: queue the message")
    fits = bool(text(action, "startedAt")) and "queuedMessageId" not in action
    _need(fits, "a turn of a client needs startedAt, and no queuedMessageId")
    return _prompt(turn, action)


def _cancelled(action: Action, at: Situation) -> Effect:
    _need(at.chat.turn_of(action) is not None, "this turn is not running")
    _need(type(action.get("duration")) in (int, float), "the end of a turn needs its duration")
    return Cancel(action["turnId"])


def _confirmed(action: Action, at: Situation) -> Effect:
    call = None if at.chat.turn_of(action) is None else at.chat.call(text(action, "toolCallId"))
    name = call["toolCallId"] if call is not None and call["status"] == "pending-confirmation" else ""
    found = next((it for it in at.needs.items() if name and it[1].call == name), None)
    if found is None or call is None:
        raise Refusal("tool call is not pending confirmation")
    approved, (key, need) = action.get("approved"), found
    if not isinstance(approved, bool):
        raise Refusal("approved must be true or false")
    same = action.get("editedToolInput", call.get("toolInput")) == call.get("toolInput")
    _need(same, "the agent takes no other input for its tool")
    option = action.get("selectedOptionId")
    if option is None:
        # The least that says it: never one that holds for later, too.
        option = next((name for name, kind in need.options.items() if kind == _ONCE[approved]), None)
        _need(option is not None or not approved, "the agent offers nothing that holds once: choose one of its options")
    else:
        offered = isinstance(option, str) and need.options.get(option, "").startswith("allow") is approved
        _need(offered, "the agent has not offered this option")
    outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
    return Answer(key, jsonrpc.encode({"outcome": outcome}))


def _answer_changed(action: Action, at: Situation) -> Effect:
    part = at.chat.question(text(action, "requestId"))
    questions = () if part is None else part["request"].get("questions", ())
    _need(any(it["id"] == action.get("questionId") for it in questions), _NO_QUESTION)
    _check_size("an answer", action.get("answer"))
    return None


def _answered(action: Action, at: Situation) -> Effect:
    key, response = text(action, "requestId"), action.get("response")
    need = at.needs.get(key)
    if need is None or at.chat.question(key) is None:
        raise Refusal(_NO_QUESTION)
    fits = response in ("accept", "decline", "cancel") and isinstance(action.get("answers", {}), dict)
    _need(fits, "a response is accept, decline or cancel, and answers are an object")
    _check_size("an answer", action.get("answers"))
    if response != "accept":
        return Answer(key, jsonrpc.encode({"action": response}))
    answers, content = object_in(action, "answers"), {}
    for field in need.fields:
        try:
            value = field.check(_value(field, object_in(answers, field.name)))
        except ValueError as error:
            raise Refusal(f"{field.name:.80}: {error}") from None
        if value is not None:
            content[field.name] = value
    return Answer(key, jsonrpc.encode({"action": "accept", "content": content}))


def _value(field: Field, answer: Mapping[str, Any]) -> object:
    """Return the value of an answer, None without one. Raises `ValueError` for one that the field can't have."""
    told = object_in(answer, "value")
    value = told.get("value", told.get("values"))
    if answer.get("state") in ("skipped", None) or value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    values = {choice.value for choice in field.choices}
    fits = {
        "boolean": isinstance(value, bool),
        "number": is_number,
        "integer": isinstance(value, int) or (isinstance(value, float) and value.is_integer()) if is_number else False,
        "text": isinstance(value, str),
        "one": isinstance(value, str) and value in values,
        "several": isinstance(value, list) and all(isinstance(it, str) and it in values for it in value),
    }[field.kind]
    if not fits:
        raise ValueError("the answer is not of the kind that was asked for")
    return int(value) if field.kind == "integer" and isinstance(value, float) else value


def _queued(action: Action, at: Situation) -> Effect:
    message, kind = _id(action, "id"), action.get("kind")
    _need(kind in ("queued", "steering"), "a message that waits is queued or steering")
    _need(not at.has_taken(message), "this message was taken already")
    _need(at.chat.queued(message) is None, "a message that waits is not changed: remove it, and send another one")
    return _prompt(message, action, steers=kind == "steering")


def _removed(action: Action, at: Situation) -> Effect:
    name = text(action, "id")
    _need(action.get("kind") == "queued" and at.chat.queued(name) is not None, "no message of this id waits")
    return Requeue([name], removes=True)


def _reordered(action: Action, at: Situation) -> Effect:
    order = list_in(action, "order")
    waiting = [it["id"] for it in at.chat.state.get("queuedMessages", ())]
    fits = bool(waiting) and all(isinstance(it, str) for it in order) and sorted(order) == sorted(waiting)
    _need(fits, "the order needs each message that waits, once")
    return Requeue(order, removes=False)


def _draft(action: Action, _: Situation) -> Effect:
    draft = action.get("draft")
    _need(draft is None or isinstance(draft, dict), "a draft is a message")
    _check_size("a draft", draft)
    return Draft(draft)


def _titled(action: Action, at: Situation) -> Effect:
    title = " ".join(text(action, "title").split())
    _need(not at.is_guest, "a guest can't rename a session")
    _need(0 < len(title) <= TITLE_LENGTH, f"a title has 1 to {TITLE_LENGTH} characters")
    return Rename(title)


def _mark(name: str) -> "_Decider":
    def decide(action: Action, at: Situation) -> Effect:
        _need(isinstance(action.get(name), bool), f"{name} must be true or false")
        _need(not at.is_guest or name != "isArchived", "a guest can't put a session away")
        return Mark(name, action[name])

    return decide


def _configured(action: Action, at: Situation) -> Effect:
    wanted = object_in(action, "config")
    fitting = at.options.fitting(wanted)
    _need(bool(wanted) and fitting == wanted and not action.get("replace"), "the agent does not offer this")
    return Choose(fitting)


def _client_set(action: Action, at: Situation) -> Effect:
    return _client_removed(object_in(action, "activeClient"), at)


def _client_removed(action: Action, at: Situation) -> Effect:
    _need(text(action, "clientId") == at.client, "a client speaks for itself alone")
    return None


def _prompt(name: str, action: Action, *, steers: bool = False) -> Prompt:
    message = object_in(action, "message")
    return Prompt(name, prompt_blocks(message), text(object_in(message, "model"), "id"), steers)


def _need(fits: object, why: str) -> None:
    """Raise `Refusal` unless something is true."""
    if not fits:
        raise Refusal(why)


def _check_size(what: str, value: object) -> None:
    _need(len(jsonrpc.encode(value)) <= DRAFT_SIZE, f"{what} has at most {DRAFT_SIZE} bytes")


def _id(action: Action, name: str) -> str:
    found = text(action, name)
    _need(0 < len(found) <= MESSAGE_ID, f"{name} has 1 to {MESSAGE_ID} characters")
    return found


_Decider: TypeAlias = Callable[[Action, Situation], Effect]

_DECIDERS: Final[Mapping[str, _Decider]] = {
    "chat/turnStarted": _turn,
    "chat/turnCancelled": _cancelled,
    "chat/toolCallConfirmed": _confirmed,
    "chat/inputAnswerChanged": _answer_changed,
    "chat/inputCompleted": _answered,
    "chat/pendingMessageSet": _queued,
    "chat/pendingMessageRemoved": _removed,
    "chat/queuedMessagesReordered": _reordered,
    "chat/draftChanged": _draft,
    "session/titleChanged": _titled,
    "session/isReadChanged": _mark("isRead"),
    "session/isArchivedChanged": _mark("isArchived"),
    "session/configChanged": _configured,
    "session/activeClientSet": _client_set,
    "session/activeClientRemoved": _client_removed,
}

_NOT_HERE: Final = {
    "chat/truncated": "the agent can't go back to an earlier turn",
    "chat/turnResume": "the agent can't take up a turn",
    "chat/toolCallResultConfirmed": "results of tools are not confirmed here",
}
"""Actions of clients for which this host has nothing, and why."""
