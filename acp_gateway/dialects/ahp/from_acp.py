"""Translates what happens in a session of ACP into actions of AHP.

A turn of AHP begins with the user's message and has an end. ACP may tell more: an agent that speaks without a prompt
begins a turn of its own, and a user's message ends the turn before it, as in a history that the agent tells again.
Calls that a turn leaves open are cancelled by the reducer of every client, so those that have done well are completed
first.

Each action is folded into the tree of the chat as it is made.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from acp_gateway.acp.reading import ABSENT, Shape, string
from acp_gateway.acp.updates import Update
from acp_gateway.dialects.ahp.chat_tree import ChatTree
from acp_gateway.dialects.ahp.wire import Action, file_uri, iso, segment, value_of
from acp_gateway.protocol import methods
from acp_gateway.protocol.text import lookup
from acp_gateway.terminal.content import block_text, list_of, members_of, read_entries, read_options, text_of
from acp_gateway.terminal.forms import Field, read_form
from acp_gateway.terminal.transcript import Tool, change_tool, end_words

MESSAGE_ID: Final = 200
"""Maximum characters of a client's id of a turn; VS Code's have 44."""

ENDED: Final = 16
"""Turns that the client has ended before their prompts came, and that are remembered."""

_RUNNING_OUTPUT: Final = 16 * 1024
"""Characters of a call's output that are told while it runs: each time it grows, all of it is told again."""

_INPUT: Final = 64 * 1024
_TITLE: Final = 2000
"""Maximum characters of a call's input and title."""

_PARTS: Final = {
    "agent_message_chunk": ("markdown", "chat/delta"),
    "agent_thought_chunk": ("reasoning", "chat/reasoning"),
}

_MARKS: Final = {"completed": "✓", "in_progress": "▶"}
"""Marks before the entries of a plan."""

_APPROVES: Final = "allow"
"""Beginning of the kinds of options that grant what was asked for."""

_ENDED: Final = {"completed": True, "failed": False, "cancelled": False}
"""Statuses of a call that has ended, and whether it has done well."""


_TOO_MANY: Final = ({"type": "content", "content": {"type": "text", "text": "(too many parts to be shown)"}},)
"""Stands for content of more than `VALUES`."""


class _Update(Update, frozen=True):
    """An update; its parts stay JSON texts until they are read."""

    entries: Raw = ABSENT
    """Those of a plan."""
    used: Raw = ABSENT
    size: Raw = ABSENT


class _Updated(Shape, frozen=True):
    """The params of a `session/update`."""

    session_id: str | None = None
    update: _Update = _Update()


class _Asked(Shape, frozen=True):
    """The params of a question: a permission, or a form."""

    tool_call: Update = Update()
    options: Raw = ABSENT
    message: str | None = None
    requested_schema: Raw = ABSENT
    url: str | None = None


@dataclass(slots=True)
class _Call:
    """A tool call of the turn that runs."""

    tool: Tool
    input: str = ""
    content: list[dict[str, Any]] = field(default_factory=list)
    told: tuple[str, str] = ("", "")
    """Title and input as the client knows them."""
    is_made: bool = False
    """True as long as only a question has named it."""

    @property
    def title(self) -> str:
        """The words that stand for it."""
        return self.tool.title or self.tool.kind or "Tool call"


@dataclass(frozen=True, slots=True)
class Need:
    """An open question of the agent."""

    turn: str
    call: str | None = None
    """The call that waits for a permission; None for a form."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The kinds of the answers to a permission, by id."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Their ids, by name."""
    fields: tuple[Field, ...] = ()
    """Those of a form."""


class Mapper:
    """The translator of one session for one client.

    Args:
        tree: the state of its chat.
    """

    def __init__(self, tree: ChatTree) -> None:
        self.needs: dict[str, Need] = {}
        """The open questions, by the key of the agent's request."""
        self.commands: list[str] = []
        """The names of the commands that the agent offers."""
        self._tree = tree
        # Id of the session at its agent, once it has begun, and its folder.
        self._session, self._cwd = "", "/"
        self._out: list[Action] = []
        self._calls: dict[str, _Call] = {}
        # Kind and id of the part that text is added to, and the id of the agent's message.
        self._open: tuple[str, str, str] | None = None
        self._parts = 0
        # The user's message so far: its texts, its id, and number and time of its beginning.
        self._said: list[str] = []
        self._said_by: tuple[str, int, float] = ("", 0, 0.0)
        # The turn that a client has begun, until the agent does something in it; and whether its prompt has come.
        self._expected: str | None = None
        self._has_come = False
        # The turn that the client has ended and whose rest is dropped; and the texts of such turns whose prompts may
        # still come, by id.
        self._dropped: str | None = None
        self._ended: dict[str, str] = {}
        # Messages that the client lets wait, and that are on their way to the queue.
        self._sending: list[str] = []
        self._is_own = False
        self._began = self._time = 0.0

    def attach(self, session: str, cwd: str) -> None:
        """Take note which session it is, and of its folder, to which relative paths belong."""
        self._session, self._cwd = session, cwd

    # From the feed of the session

    def updates(self, messages: Sequence[bytes], first: int, times: Sequence[int | None]) -> list[Action]:
        """Translate `session/update` messages; the first has the number `first`."""
        for at, (message, time) in enumerate(zip(messages, times, strict=True), first):
            self._time = self._time if time is None else time
            told = _Updated.of(message)
            # What sub-agents say would be taken for words of the agent.
            if told.session_id == self._session:
                self._update(told.update, at)
        self._begin_said()
        return self._take()

    def turn_ended(self, end: Mapping[str, Any]) -> list[Action]:
        """Translate the end of a turn, as `described` has it."""
        self._time = end["time"] or self._time
        if self._dropped is not None:
            self._dropped = None
            return []
        self._expected = None
        reason, error = text_of(end.get("stopReason")), members_of(end.get("error"))
        if reason == "cancelled":
            self._end("chat/turnCancelled")
        elif error or reason not in ("", "end_turn"):
            self._fail(reason or "error", text_of(error.get("message")) or end_words(reason)[0])
        else:
            self._end("chat/turnComplete")
        return self._take()

    def rest(self) -> list[Action]:
        """End a turn that the agent has begun by itself, as it is at rest."""
        if self._is_own:
            self._end("chat/turnComplete")
        return self._take()

    def asked(self, key: str, method: str, params: bytes) -> list[Action]:
        """Translate a request of the agent that a person has to answer; the params are JSON text."""
        if method == methods.REQUEST_PERMISSION:
            self._ask_permission(key, _Asked.read(params))
        elif method == methods.CREATE_ELICITATION:
            self._ask_form(key, _Asked.read(params))
        return self._take()

    def resolved(self, key: str, outcome: str | None) -> list[Action]:
        """Translate that a request of the agent is not open any more; `outcome` is as in `Decision`."""
        need = self.needs.pop(key, None)
        if need is None:
            return []
        if need.call is not None:
            option = need.names.get(outcome or "", outcome or "")
            about: dict[str, Any] = {"turnId": need.turn, "toolCallId": need.call}
            if need.options.get(option, "").startswith(_APPROVES):
                answer = {"approved": True, "confirmed": "user-action", "selectedOptionId": option}
            else:
                answer = {"approved": False, "reason": "denied" if option in need.options else "skipped"}
            self._emit("chat/toolCallConfirmed", **about, **answer)
        else:
            response = outcome if outcome in ("accept", "decline") else "cancel"
            self._emit("chat/inputCompleted", requestId=key, response=response)
        self._emit("session/inputNeededRemoved", id=key)
        return self._take()

    def queue(self, prompts: Sequence[tuple[str, str]]) -> list[Action]:
        """Translate the prompts that wait: the id and the text of each."""
        known = {it["id"]: it["message"] for it in self._tree.state.get("queuedMessages", ())}
        order = [name for name, _ in prompts]
        self._sending = [name for name in self._sending if name not in order]
        order += [name for name in self._sending if name in known]
        for waiting in known.keys() - {*order}:
            self._emit("chat/pendingMessageRemoved", kind="queued", id=waiting)
        for name, said in prompts:
            # A client's own message may have more than the gateway shows of it.
            if name not in known or not text_of(known[name].get("text")).startswith(said):
                self._emit("chat/pendingMessageSet", kind="queued", id=name, message=_message(said))
        if order != [it["id"] for it in self._tree.state.get("queuedMessages", ())]:
            self._emit("chat/queuedMessagesReordered", order=order)
        return self._take()

    # From the client

    def dispatched(self, action: Action, time: float) -> None:
        """Fold what the client has dispatched and the host has taken, at this time."""
        coming = None if self._has_come or not self.is_expecting else self._tree.active
        self._tree.apply(action)
        if action["type"] == "chat/turnStarted":
            self._begin(action["turnId"], time, own=False)
            self._expected, self._has_come = action["turnId"], False
        elif action["type"] == "chat/turnCancelled":
            self._close()
            self._dropped = action["turnId"]
            if coming is not None:
                self._ended = dict([*self._ended.items(), (coming["id"], _text_in(coming))][-ENDED:])
        elif action["type"] == "chat/pendingMessageSet":
            self._sending.append(action["id"])

    def not_sent(self, turn: str, why: str) -> list[Action]:
        """Take note that the prompt of a turn was not sent: the turn fails, unless the client has ended it."""
        self._dropped = None if self._dropped == turn else self._dropped
        self._ended.pop(turn, None)
        if self._active == turn:
            self._fail("error", why)
        return self._take()

    def queue_instead(self, message_id: str) -> list[Action]:
        """Let a message wait for the end of the turn, as the agent can't take it before."""
        message = self._tree.state["steeringMessage"]["message"]
        self._emit("chat/pendingMessageRemoved", kind="steering", id=message_id)
        self._emit("chat/pendingMessageSet", kind="queued", id=message_id, message=message)
        return self._take()

    def queued(self, message_id: str, prompts: Sequence[tuple[str, str]]) -> list[Action]:
        """Take note that a message is in the queue now, or was; `prompts` are those that wait."""
        self._sending = [name for name in self._sending if name != message_id]
        return self.queue(prompts)

    def not_queued(self, message_id: str) -> list[Action]:
        """Take note that a message that waits was not sent."""
        self._sending = [name for name in self._sending if name != message_id]
        for kind in ("steering", "queued"):
            self._emit("chat/pendingMessageRemoved", kind=kind, id=message_id)
        return self._take()

    # Updates

    def _update(self, update: _Update, at: int) -> None:
        kind = update.kind
        if kind == methods.USER_CHUNK:
            self._say(update, at)
            return
        if kind == "available_commands_update":
            commands = map(members_of, list_of(value_of(update.available_commands)))
            self.commands = list(filter(None, (text_of(it.get("name")) for it in commands)))
            return
        if kind not in _PARTS and kind not in (methods.TOOL_CALL, methods.TOOL_CALL_UPDATE, "plan", "usage_update"):
            return
        self._begin_said()
        if self._dropped is not None:
            return
        if kind == "usage_update":
            told = {"used": value_of(update.used), "size": value_of(update.size)}
            context = {name: count for name, count in told.items() if type(count) is int}
            self._emit("chat/usage", turnId=self._active, usage={"_meta": {"context": context}})
            return
        self._expected = None
        if kind in _PARTS:
            if not (update.meta and lookup.text_at(update.meta, "claudeCode", "parentToolUseId")):
                self._add_text(*_PARTS[kind], block_text(value_of(update.content)), string(update.message_id) or "", at)
        elif kind == "plan":
            self._plan(update, at)
        else:
            self._tool(update, at, is_new=kind == methods.TOOL_CALL)

    @property
    def is_dropping(self) -> bool:
        """True while a turn that the client has ended goes on at the agent."""
        return self._dropped is not None

    @property
    def is_expecting(self) -> bool:
        """True while the prompt of the turn that runs is on its way to the agent."""
        return self._expected is not None and self._expected == self._active

    @property
    def _active(self) -> str | None:
        return None if self._tree.active is None else self._tree.active["id"]

    def _turn(self, at: object) -> str:
        """Return the turn that runs; the agent begins one if there is none."""
        if self._active is None:
            turn, message = f"a{at}", {"text": "", "origin": {"kind": "agent"}}
            self._emit("chat/turnStarted", turnId=turn, startedAt=iso(self._time), message=message)
            self._begin(turn, self._time, own=True)
            self._dropped = None
        assert self._active is not None
        return self._active

    def _say(self, update: _Update, at: int) -> None:
        message_id, block = string(update.message_id) or "", members_of(value_of(update.content))
        if self._said and message_id != self._said_by[0]:
            self._begin_said()
        if not self._said:
            self._said_by = message_id, at, self._time
        is_text = block.get("type") == "text"
        self._said.append(block_text(block) if is_text or not self._said else f" {block_text(block)}")

    def _begin_said(self) -> None:
        """Begin the turn of what the user has said, unless it has begun."""
        if not self._said:
            return
        said, self._said = "".join(self._said), []
        name, at, time = self._said_by
        # The turn before is over, whether or not its end was told.
        self._dropped = self._take_ended(name, said)
        if self._dropped is not None:
            return
        if self.is_expecting and self._is_expected(name, said):
            self._has_come = True
            return
        self._end("chat/turnComplete")
        waited = {"queuedMessageId": name} if self._waits(name) else {}
        usable = bool(name) and len(name) <= MESSAGE_ID and not self._tree.has_taken(name)
        turn, message = name if usable else f"u{at}", _message(said)
        self._emit("chat/turnStarted", turnId=turn, startedAt=iso(time), message=message, **waited)
        self._begin(turn, time, own=False)

    def _take_ended(self, name: str, said: str) -> str | None:
        """Return the turn that the client had ended before this prompt of it came: an agent may give it another id."""
        same = (turn for turn, text in self._ended.items() if text and said.startswith(text))
        found = name if name in self._ended else next(same, None)
        return None if self._ended.pop(found or "", None) is None else found

    def _is_expected(self, name: str, said: str) -> bool:
        """Return True if this is what the client that began the turn has said: an agent may give it another id."""
        assert self._tree.active is not None
        return name == self._expected or said.startswith(_text_in(self._tree.active))

    def _waits(self, name: str) -> bool:
        steering = self._tree.state.get("steeringMessage", {}).get("id")
        return bool(name) and (name == steering or self._tree.queued(name) is not None)

    def _add_text(self, kind: str, action: str, text: str, message_id: str, at: int) -> None:
        if not text:
            return
        turn = self._turn(at)
        if self._open is None or (self._open[0], self._open[2]) != (kind, message_id):
            self._parts += 1
            self._open = kind, f"{turn}:{self._parts}", message_id
            self._emit("chat/responsePart", turnId=turn, part={"kind": kind, "id": self._open[1], "content": ""})
        self._emit(action, turnId=turn, partId=self._open[1], content=text)

    def _plan(self, update: _Update, at: int) -> None:
        turn = self._turn(at)
        name = f"{turn}:plan"
        if name not in self._calls:
            self._calls[name] = _Call(Tool(number=0, id=name, title="Plan", kind="Plan", status="in_progress"))
            self._start(name)
        entries = read_entries(value_of(update.entries))
        text = "\n".join(f"{_MARKS.get(entry.status, '○')} {entry.text}" for entry in entries)
        self._tell_content(name, [{"type": "text", "text": text}])

    # Tool calls

    def _tool(self, update: Update, at: int, *, is_new: bool) -> None:
        name = update.tool_call_id or ""
        call = self._calls.get(name)
        if call is None and not is_new and not update.title:
            return  # Of a turn that has ended.
        self._turn(at)
        call = self._change(name, update)
        call.is_made = False
        known = self._tree.call(name)
        if known is None:
            self._start(name)
        elif known["status"] in ("completed", "cancelled"):
            return
        status = call.tool.status
        if status == "pending" and not call.tool.outputs:
            return
        known = self._tree.call(name)
        assert known is not None
        if known["status"] == "streaming" or (
            known["status"] == "running" and call.told != (call.tool.title, call.input)
        ):
            self._ready(name, confirmed=known.get("confirmed", "not-needed"))
        if status in _ENDED:
            self._complete(name)
        elif known["status"] == "running":
            self._tell_content(name, self._content(name, _RUNNING_OUTPUT))

    def _change(self, name: str, update: Update) -> _Call:
        """Return a call after an update of it."""
        call = self._calls.setdefault(name, _Call(Tool(number=0, id=name)))
        told = {"title": update.title, "kind": update.tool_kind, "status": update.status}
        content = value_of(update.content, instead=[*_TOO_MANY])
        change_tool(call.tool, {**told, "content": content, "_meta": value_of(update.meta)})
        call.tool.title = call.tool.title[:_TITLE]
        # The texts themselves are read again from the history where a client asks for them.
        call.tool.diffs = [diff._replace(old=diff.old[:1], new=diff.new[:1]) for diff in call.tool.diffs]
        given = bytes(update.raw_input)
        if given not in (b"", b"null"):
            said = string(given)
            call.input = given[:_INPUT].decode(errors="ignore") if said is None else said[:_INPUT]
        return call

    def _start(self, name: str) -> None:
        """Tell a call that the client does not know; one that runs already is ready at once."""
        call = self._calls[name]
        self._open = None
        self._emit_call("chat/toolCallStart", name, toolName=call.tool.kind or "other", displayName=call.title)
        if call.tool.status not in ("pending", *_ENDED):
            self._ready(name, confirmed="not-needed")

    def _ready(self, name: str, **members: Any) -> None:
        """Tell that a call runs, or waits for a permission: with its title and its input, as they are now."""
        call = self._calls[name]
        call.told, call.content = (call.tool.title, call.input), []
        about = {"toolInput": call.input} if call.input else {}
        self._emit_call("chat/toolCallReady", name, invocationMessage=call.title, **about, **members)

    def _tell_content(self, name: str, content: list[dict[str, Any]]) -> None:
        call = self._calls[name]
        if content != call.content:
            call.content = content
            self._emit_call("chat/toolCallContentChanged", name, content=content)

    def _complete(self, name: str) -> None:
        call = self._calls[name]
        content = call.content if call.tool.kind == "Plan" else self._content(name)
        result: dict[str, Any] = {"success": _ENDED.get(call.tool.status, True), "pastTenseMessage": call.tool.title}
        if content:
            result["content"] = content
        if not result["success"]:
            result["error"] = {"message": call.tool.output[-_TITLE:].strip() or call.tool.status}
        self._emit_call("chat/toolCallComplete", name, result=result)

    def _content(self, name: str, most: int = _INPUT) -> list[dict[str, Any]]:
        """Return the content of a call: its changes of files, and the last so many characters of its texts."""
        tool, texts = self._calls[name].tool, deque[str]()
        for output in reversed(tool.outputs):
            if most and output.text:
                texts.appendleft(output.text[-most:])
                most -= len(texts[0])
        texts.extend([f"({tool.end})"] if tool.end else [])
        edits = [{"type": "fileEdit", **edit} for edit in self._edits(name)]
        return edits + [{"type": "text", "text": text} for text in texts]

    def _edits(self, name: str) -> list[dict[str, Any]]:
        """Return the changes of files of a call: where they are, and where their texts are read."""
        edits = []
        for number, diff in enumerate(self._calls[name].tool.diffs):
            path = diff.path if diff.path.startswith("/") else f"{self._cwd.rstrip('/')}/{diff.path}"
            sides = {}
            for side, text in (("before", diff.old), ("after", diff.new)):
                # A new file has no text before, one that is deleted none after.
                if text or (side == "after" and not diff.change.startswith("deleted")):
                    file = path.rpartition("/")[2]
                    where = f"{self._tree.state['resource']}/edit/{segment(name)}/{number}/{side}"
                    content = {"uri": f"{where}/{file_uri(file).removeprefix('file://')}"}
                    sides[side] = {"uri": file_uri(path), "content": content}
            edits.append(sides)
        return edits

    # Questions

    def _ask_permission(self, key: str, params: _Asked) -> None:
        told, options = params.tool_call, read_options(value_of(params.options))
        turn, name = self._turn(key), told.tool_call_id or ""
        known = self._tree.call(name)
        if not name or (known is not None and known["status"] not in ("streaming", "running")):
            name = f"{turn}:{key}"
        is_made = name not in self._calls
        call = self._change(name, msgspec.structs.replace(told, status="pending") if is_made else told)
        if self._tree.call(name) is None:
            call.is_made = is_made
            self._start(name)
        edits = self._edits(name)
        about: dict[str, Any] = {"edits": {"items": edits}} if edits else {}
        answers = [{"id": it.id, "label": it.name or it.id, **_KINDS[it.kind.startswith(_APPROVES)]} for it in options]
        self._ready(name, confirmationTitle=call.title, **about, options=answers)
        self.needs[key] = Need(turn, name, {it.id: it.kind for it in options}, {it.name: it.id for it in options})
        about = {"id": key, "kind": "toolConfirmation", "turnId": turn, "toolCall": {**(self._tree.call(name) or {})}}
        self._emit("session/inputNeededSet", request=about | {"chat": self._tree.state["resource"]})

    def _ask_form(self, key: str, params: _Asked) -> None:
        fields, url = read_form(value_of(params.requested_schema)), params.url or ""
        if fields is None and not url:
            return  # Another client may show it.
        about = {"url": url} if url else {"questions": list(map(_question, fields or ()))}
        request = {"id": key, "message": params.message or "", **about}
        self._open = None
        turn = self._turn(key)
        self._emit("chat/inputRequested", turnId=turn, request=request)
        self.needs[key] = Need(turn, fields=fields or ())
        need = {"id": key, "kind": "chatInput", "chat": self._tree.state["resource"], "request": request}
        self._emit("session/inputNeededSet", request=need)

    # Turns

    def _begin(self, turn: str, time: float, *, own: bool) -> None:
        """Take note that a turn has begun, by the agent's own will or not."""
        self._close()
        self._expected, self._began, self._is_own = None, time, own
        self._time = max(self._time, time)

    def _close(self) -> None:
        """Take note that the turn has ended."""
        self._calls, self._open, self._parts, self._is_own = {}, None, 0, False

    def _end(self, action: str, **members: Any) -> None:
        turn = self._active
        if turn is None:
            return
        for name, call in self._calls.items():
            known = self._tree.call(name)
            is_done = action == "chat/turnComplete" or call.tool.kind == "Plan"
            if is_done and known is not None and known["status"] == "running":
                call.tool.status = "completed"
                self._complete(name)
        self._emit(action, turnId=turn, duration=int(max(0, self._time - self._began)), **members)
        self._close()

    def _fail(self, kind: str, message: str) -> None:
        error = {"errorType": kind, "message": message}
        self._end("chat/error", error=error, part={"kind": "error", "id": f"{self._active}:error", "error": error})

    # Actions

    def _emit(self, kind: str, /, **members: Any) -> None:
        action = {"type": kind, **members}
        if kind.startswith("chat/") and not self._tree.apply(action):
            return
        last = self._out[-1] if self._out else {}
        same = last.get("type") == kind and last.get("turnId") == members.get("turnId")
        if same and kind in ("chat/delta", "chat/reasoning") and last["partId"] == members["partId"]:
            last["content"] += members["content"]
        elif same and kind == "chat/toolCallContentChanged" and last["toolCallId"] == members["toolCallId"]:
            self._out[-1] = action
        else:
            self._out.append(action)

    def _emit_call(self, kind: str, name: str, /, **members: Any) -> None:
        self._emit(kind, turnId=self._active, toolCallId=name, **members)

    def _take(self) -> list[Action]:
        out, self._out = self._out, []
        return out


_KINDS: Final[Mapping[bool, Mapping[str, Any]]] = {
    True: {"kind": "approve", "group": 1},
    False: {"kind": "deny", "group": 2},
}

_QUESTIONS: Final = {"one": "single-select", "several": "multi-select"}


def _question(form: Field) -> dict[str, Any]:
    """Return a field of a form as a question."""
    about = {"id": form.name, "kind": _QUESTIONS.get(form.kind, form.kind), "title": form.title}
    asked: dict[str, Any] = {**about, "message": form.hint or form.title, "required": form.is_required}
    if form.choices:
        asked["options"] = [{"id": choice.value, "label": choice.name} for choice in form.choices]
    return asked | ({} if form.default is None else {"defaultValue": form.default})


def _text_in(turn: Mapping[str, Any]) -> str:
    """Return what the user has said; empty where that is a picture alone."""
    return text_of(turn["message"].get("text"))


def _message(text: str) -> dict[str, Any]:
    return {"text": text, "origin": {"kind": "user"}}
