"""Folds the actions of a chat into its state, as every client does by itself: the reducer of AHP.

An action that does not fit the state changes nothing. What is told live needs only an outline of the state: the turn
that runs, its calls and questions, and the prompts that wait. So a chat whose snapshot was sent forgets the rest.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from acp_gateway.dialects.ahp.wire import Action

MOST: Final = 4 * 1024 * 1024
"""Characters of a chat that a client gets, the latest: VS Code takes some 20 s to show them, and asks for no more."""

REMEMBERED: Final = 256
"""Turns whose ids are remembered, so that none is taken twice."""

IDLE: Final = 1
FAILED: Final = 2
RUNNING: Final = 8
WAITING: Final = 24
READ: Final = 32
ARCHIVED: Final = 64
"""Bits of a status; a chat that waits for a person runs, too."""

ACTIVITY: Final = 31
"""The bits that say what goes on."""

OVER: Final = frozenset({"completed", "cancelled"})
"""The statuses of calls that have ended."""

_KEPT: Final = ("toolCallId", "toolName", "displayName", "_meta")
_TURN_ENDS: Final = {"chat/turnComplete": "complete", "chat/turnCancelled": "cancelled", "chat/error": "error"}


class ChatTree:
    """The state of one chat.

    Args:
        about: its members besides turns and what waits: `resource`, `title` and `status`.
        most: characters of its turns that are kept.
    """

    def __init__(self, about: Mapping[str, Any], most: int = MOST) -> None:
        self.state: dict[str, Any] = {**about, "turns": []}
        """Its members. The texts of the active turn are lists of pieces."""
        self.left_out = 0
        """Number of turns that were dropped."""
        self.is_cut = False
        """True if the beginning of a turn was dropped, or of the history before the first action."""
        self.is_outline = False
        """True once it has forgotten all that is not needed to tell what is new."""
        self._most = most
        # Characters of each turn that has ended, of all of them, and of the one that runs.
        self._sizes: list[int] = []
        self._ended_size = self._size = 0
        # The turn that the next two belong to: its calls by id, and the ids of what waits for a person.
        self._indexed: dict[str, Any] | None = None
        self._calls: dict[str, dict[str, Any]] = {}
        self._waiting: set[str] = set()
        self._taken: dict[str, None] = {}

    @property
    def active(self) -> dict[str, Any] | None:
        """The turn that runs."""
        turn: dict[str, Any] | None = self.state.get("activeTurn")
        return turn

    @property
    def size(self) -> int:
        """Characters of all turns that are kept, roughly."""
        return self._ended_size + self._size

    def has_taken(self, turn_id: str) -> bool:
        """Return True for the id of a turn, or of a prompt that has begun one, among the latest."""
        return turn_id in self._taken

    def call(self, call_id: str) -> dict[str, Any] | None:
        """Return a tool call of the turn that runs."""
        self._index()
        return self._calls.get(call_id)

    def question(self, request_id: str) -> dict[str, Any] | None:
        """Return the part of an open question."""
        parts = [] if self.active is None else self.active["responseParts"]
        return next((it for it in parts if _is_open(it) and it["request"]["id"] == request_id), None)

    def queued(self, message_id: str) -> dict[str, Any] | None:
        """Return a prompt that waits, by its id."""
        return next((it for it in self.state.get("queuedMessages", ()) if it["id"] == message_id), None)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a client gets it, without another turn that says what was left out."""
        found = {**self.state}
        if self.active is not None:
            parts = [_whole(part) for part in self.active["responseParts"]]
            found["activeTurn"] = {**self.active, "responseParts": parts}
        return found

    def forget(self) -> None:
        """Keep no more than an outline from now on."""
        self.is_outline = True
        self.state["turns"], self._sizes, self._ended_size = [], [], 0

    def apply(self, action: Action) -> bool:
        """Fold an action; return False if it does not fit the state."""
        reduce = _REDUCERS.get(action["type"])
        fits = reduce is not None and reduce(self, action)
        if self.size > self._most:
            self._trim()
        return fits

    # What the reducers use

    def turn_of(self, action: Action) -> dict[str, Any] | None:
        """Return the turn that runs, if the action is one of it."""
        active = self.active
        return active if active is not None and active["id"] == action.get("turnId") else None

    def add(self, part: dict[str, Any]) -> None:
        """Add a part to the turn that runs."""
        assert self.active is not None
        self._index()
        self.active["responseParts"].append(part)
        self._note(part)
        self.grow(_size_of(part))

    def become(self, call: dict[str, Any], changed: dict[str, Any]) -> None:
        """Change a call of the turn that runs."""
        self.grow(_size_of(changed) - _size_of(call))
        call.clear()
        call.update(changed)
        self._note({"kind": "toolCall", "toolCall": call})
        self.refresh()

    def reask(self, part: dict[str, Any], request: dict[str, Any]) -> None:
        """Change the request of a question."""
        self.grow(_size_of(request) - _size_of(part["request"]))
        part["request"] = request

    def settle(self, request_id: str) -> None:
        """Take note that a question was answered."""
        self._waiting.discard(request_id)
        self.refresh()

    def grow(self, size: int) -> None:
        """Count further characters of the turn that runs."""
        self._size += size

    def refresh(self, status: int | None = None) -> None:
        """Set the activity in the status; it follows from the turn that runs unless it is given."""
        if status is None:
            status = IDLE
            if self.active is not None:
                self._index()
                status = WAITING if self._waiting else RUNNING
        self.state["status"] = self.state["status"] & ~ACTIVITY | status

    def begin(self, turn: dict[str, Any]) -> None:
        """Begin a turn."""
        self.state["activeTurn"], self._size = turn, _size_of(turn["message"])
        self._taken[turn["id"]] = None
        while len(self._taken) > REMEMBERED:
            del self._taken[next(iter(self._taken))]

    def end(self, turn: dict[str, Any]) -> None:
        """Put the turn that runs to the others."""
        del self.state["activeTurn"]
        if not self.is_outline:
            self.state["turns"].append(turn)
            self._sizes.append(self._size)
            self._ended_size += self._size
        self._size = 0

    def _index(self) -> None:
        """Find the calls of the turn that runs, once for each turn: one may have thousands."""
        if self._indexed is not self.active:
            self._indexed, self._calls, self._waiting = self.active, {}, set()
            for part in [] if self.active is None else self.active["responseParts"]:
                self._note(part)

    def _note(self, part: Mapping[str, Any]) -> None:
        if part["kind"] == "toolCall":
            call = part["toolCall"]
            self._calls.setdefault(call["toolCallId"], call)
            waits, name = call["status"] == "pending-confirmation", call["toolCallId"]
        elif part["kind"] == "inputRequest":
            waits, name = _is_open(part), part["request"]["id"]
        else:
            return
        (self._waiting.add if waits else self._waiting.discard)(name)

    def _trim(self) -> None:
        """Drop the oldest turns, at last the first finished parts of the one that runs."""
        while self._sizes and self.size > self._most:
            self.state["turns"].pop(0)
            self._ended_size -= self._sizes.pop(0)
            self.left_out += 1
        parts = [] if self.active is None else self.active["responseParts"]
        while self._size > self._most and len(parts) > 1:
            at = next((at for at, part in enumerate(parts[:-1]) if not _is_unfinished(part)), None)
            if at is None:
                break
            self._size -= _size_of(parts.pop(at))
            self.is_cut = True


def _is_open(part: Mapping[str, Any]) -> bool:
    return part["kind"] == "inputRequest" and "response" not in part


def _is_unfinished(part: Mapping[str, Any]) -> bool:
    return _is_open(part) or (part["kind"] == "toolCall" and part["toolCall"]["status"] not in OVER)


def _whole(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part with its text in one piece."""
    content = part.get("content")
    return {**part, "content": "".join(content)} if isinstance(content, list) else part


def _size_of(value: object) -> int:
    """Return the characters of all texts in a value. It has few parts: the readers of messages refuse others."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size_of, value.values()))
    return sum(map(_size_of, value)) if isinstance(value, list) else 8


# The reducers

_Find: TypeAlias = Callable[[ChatTree, Action], Any]
_Change: TypeAlias = Callable[[ChatTree, Action, Any], None]
_REDUCERS: Final[dict[str, Callable[[ChatTree, Action], bool]]] = {}


def _reducer(find: _Find, *kinds: str) -> Callable[[_Change], _Change]:
    """Register what actions do with the part of the state that `find` returns: without it they do not fit."""

    def register(change: _Change) -> _Change:
        def reduce(tree: ChatTree, action: Action) -> bool:
            found = find(tree, action)
            if found is not None:
                change(tree, action, found)
            return found is not None

        _REDUCERS.update(dict.fromkeys(kinds, reduce))
        return change

    return register


def _state(tree: ChatTree, _: Action) -> dict[str, Any]:
    return tree.state


def _call(*statuses: str) -> _Find:
    """Return what finds the call of an action if it has one of these statuses."""

    def find(tree: ChatTree, action: Action) -> dict[str, Any] | None:
        call = None if tree.turn_of(action) is None else tree.call(action["toolCallId"])
        return call if call is not None and call["status"] in statuses else None

    return find


def _text_part(kind: str) -> _Find:
    """Return what finds the part that an action adds text to."""

    def find(tree: ChatTree, action: Action) -> dict[str, Any] | None:
        turn = tree.turn_of(action)
        parts = [] if turn is None else reversed(turn["responseParts"])
        return next((it for it in parts if it.get("id") == action["partId"] and it["kind"] == kind), None)

    return find


def _question(tree: ChatTree, action: Action) -> dict[str, Any] | None:
    return tree.question(action["requestId"])


def _pending(tree: ChatTree, action: Action) -> dict[str, Any] | None:
    if action["kind"] == "queued":
        return tree.queued(action["id"])
    steering: dict[str, Any] = tree.state.get("steeringMessage", {})
    return steering if steering.get("id") == action["id"] else None


@_reducer(_state, "chat/turnStarted")
def _turn_started(tree: ChatTree, action: Action, state: dict[str, Any]) -> None:
    for kind in ("steering", "queued") if "queuedMessageId" in action else ():
        tree.apply({"type": "chat/pendingMessageRemoved", "kind": kind, "id": action["queuedMessageId"]})
    tree.begin({"id": action["turnId"], **_with(action, "startedAt", "message"), "responseParts": []})
    state["status"] &= ~READ
    tree.refresh()


@_reducer(ChatTree.turn_of, "chat/responsePart")
def _part(tree: ChatTree, action: Action, _: object) -> None:
    part = {**action["part"]}
    if part["kind"] in ("markdown", "reasoning"):
        part["content"] = [part["content"]]
    tree.add(part)


@_reducer(_text_part("markdown"), "chat/delta")
@_reducer(_text_part("reasoning"), "chat/reasoning")
def _text(tree: ChatTree, action: Action, part: dict[str, Any]) -> None:
    if not tree.is_outline:
        part["content"].append(action["content"])
        tree.grow(len(action["content"]))


@_reducer(ChatTree.turn_of, *_TURN_ENDS)
def _turn_ended(tree: ChatTree, action: Action, turn: dict[str, Any]) -> None:
    parts = []
    for part in map(_whole, turn["responseParts"]):
        call = part.get("toolCall")
        if call is not None and call["status"] not in OVER:
            input_ = {} if call["status"] == "streaming" else _with(call, "toolInput")
            about = {"status": "cancelled", **_base(call), "invocationMessage": call.get("invocationMessage", "")}
            part = {"kind": "toolCall", "toolCall": {**about, **input_, "reason": "skipped"}}
        parts.append(part)
    if "part" in action:
        parts.append(action["part"])
    state = _TURN_ENDS[action["type"]]
    ended = {**turn, "responseParts": parts, "duration": max(0, action["duration"]), "state": state}
    tree.end(ended | _with(action, "error"))
    tree.refresh(FAILED if state == "error" else None)


@_reducer(ChatTree.turn_of, "chat/toolCallStart")
def _call_started(tree: ChatTree, action: Action, _: object) -> None:
    tree.add({"kind": "toolCall", "toolCall": {**_base(action), "status": "streaming"}})


@_reducer(_call("streaming", "running", "pending-confirmation"), "chat/toolCallReady")
def _call_ready(tree: ChatTree, action: Action, call: dict[str, Any]) -> None:
    about = {**_base(call), **_with(action, "invocationMessage", "toolInput", "confirmed")}
    if "confirmed" in action:
        tree.become(call, {"status": "running", **about})
    else:
        names = ("toolInput", "confirmationTitle", "edits", "options")
        before = _with(call, *names) if call["status"] == "pending-confirmation" else {}
        tree.become(call, {"status": "pending-confirmation", **before, **about, **_with(action, *names)})


@_reducer(_call("pending-confirmation"), "chat/toolCallConfirmed")
def _call_confirmed(tree: ChatTree, action: Action, call: dict[str, Any]) -> None:
    about = {**_base(call), **_with(call, "invocationMessage", "toolInput")}
    chosen = next((it for it in call.get("options", ()) if it["id"] == action.get("selectedOptionId")), None)
    about |= {} if chosen is None else {"selectedOption": chosen}
    if action["approved"]:
        tree.become(call, {"status": "running", **about, **_with(action, "confirmed")})
    else:
        tree.become(call, {"status": "cancelled", **about, **_with(action, "reason", "reasonMessage")})


@_reducer(_call("running"), "chat/toolCallContentChanged")
def _call_content(tree: ChatTree, action: Action, call: dict[str, Any]) -> None:
    if not tree.is_outline:
        tree.grow(_size_of(action["content"]) - _size_of(call.get("content", "")))
        call["content"] = action["content"]


@_reducer(_call("running", "pending-confirmation"), "chat/toolCallComplete")
def _call_completed(tree: ChatTree, action: Action, call: dict[str, Any]) -> None:
    about = {**_base(call), **_with(call, "invocationMessage", "toolInput", "selectedOption")}
    confirmed = call.get("confirmed", "not-needed")
    result = {} if tree.is_outline else action["result"]
    tree.become(call, {"status": "completed", **about, "confirmed": confirmed, **result})


@_reducer(ChatTree.turn_of, "chat/usage")
def _usage(_: ChatTree, action: Action, turn: dict[str, Any]) -> None:
    turn["usage"] = action["usage"]


@_reducer(lambda tree, _: tree.active, "chat/inputRequested")
def _asked(tree: ChatTree, action: Action, _: object) -> None:
    known = tree.question(action["request"]["id"])
    if known is not None:
        tree.reask(known, action["request"])
    else:
        tree.add({"kind": "inputRequest", "request": action["request"]})
    tree.state["status"] &= ~READ
    tree.refresh()


@_reducer(_question, "chat/inputAnswerChanged")
def _answer_changed(tree: ChatTree, action: Action, part: dict[str, Any]) -> None:
    answers = {**part["request"].get("answers", {}), action["questionId"]: action.get("answer")}
    answers = {key: it for key, it in answers.items() if it is not None}
    tree.reask(part, {**part["request"], "answers": answers})


@_reducer(_question, "chat/inputCompleted")
def _answered(tree: ChatTree, action: Action, part: dict[str, Any]) -> None:
    answers = {**part["request"].get("answers", {}), **action.get("answers", {})}
    tree.reask(part, {**part["request"], **({"answers": answers} if answers else {})})
    part["response"] = action["response"]
    tree.settle(action["requestId"])


@_reducer(_state, "chat/pendingMessageSet")
def _pending_set(tree: ChatTree, action: Action, state: dict[str, Any]) -> None:
    entry, known = _with(action, "id", "message"), tree.queued(action["id"])
    if action["kind"] == "steering":
        state["steeringMessage"] = entry
    elif known is not None:
        known["message"] = action["message"]
    else:
        state.setdefault("queuedMessages", []).append(entry)


@_reducer(_pending, "chat/pendingMessageRemoved")
def _pending_removed(tree: ChatTree, action: Action, _: object) -> None:
    left = [it for it in tree.state.get("queuedMessages", ()) if it["id"] != action["id"]]
    if action["kind"] == "steering":
        del tree.state["steeringMessage"]
    elif left:
        tree.state["queuedMessages"] = left
    else:
        del tree.state["queuedMessages"]


@_reducer(lambda tree, _: tree.state.get("queuedMessages"), "chat/queuedMessagesReordered")
def _reordered(_: ChatTree, action: Action, waiting: list[dict[str, Any]]) -> None:
    places = {name: at for at, name in reversed(list(enumerate(action["order"])))}
    waiting.sort(key=lambda it: places.get(it["id"], len(places)))


@_reducer(_state, "chat/draftChanged")
def _draft(_: ChatTree, action: Action, state: dict[str, Any]) -> None:
    state.pop("draft", None)
    state.update(_with(action, "draft"))


def _base(call: Mapping[str, Any]) -> dict[str, Any]:
    return _with(call, *_KEPT)


def _with(members: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: members[name] for name in names if members.get(name) is not None}
