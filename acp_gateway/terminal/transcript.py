"""Folds the updates of a session into a transcript: a list of blocks that drops the oldest beyond a size.

A chunk continues the last message of its lane if kind and message id are the same. Each sub-agent has a lane of its
own. A tool call changes the block that it has begun, and a plan replaces the one of the same turn. The result depends
on the updates and not on the way in which text is cut into chunks.

All texts are those of the agent: `rendering` makes them safe.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from acp_gateway.terminal.content import (
    Diff,
    Entry,
    Location,
    Output,
    block_text,
    describe_exit,
    describe_input,
    list_of,
    members_of,
    own_meta,
    read_entries,
    read_locations,
    read_tool_content,
    text_of,
)

DEFAULT_SIZE: Final = 16 * 1024 * 1024
"""Characters of a transcript that are kept by default: several days of work, and no burden for the machine."""

SOFT_SIZE: Final = 4096
HARD_SIZE: Final = 16384
"""Characters after which a message goes on in another block: at the next line break, and anywhere. A view that
draws a block again for each chunk stays fast."""

OUTPUT_SIZE: Final = 64 * 1024
"""Characters of a tool's output that are kept, the last ones: a few screens."""

BLOCK_SIZE: Final = 200
"""Characters that an empty block counts as."""


class Kind(Enum):
    """The kinds of blocks of text."""

    USER = "user"
    AGENT = "agent"
    THOUGHT = "thought"


class Level(Enum):
    """The importance of a note."""

    INFO = "info"
    GOOD = "good"
    BAD = "bad"


@dataclass(slots=True, kw_only=True)
class Block:
    """A part of a transcript."""

    number: int
    """Its number: later blocks have higher ones."""
    lane: str = ""
    """The sub-agent that it belongs to; empty for the agent itself."""

    @property
    def size(self) -> int:
        """Characters that it counts as."""
        return BLOCK_SIZE


@dataclass(slots=True, kw_only=True)
class Message(Block):
    """Text of the user or of the agent, or a thought."""

    kind: Kind
    message_id: str = ""
    text: str = ""
    continued: bool = False
    """True if it continues the message before it in the same lane."""

    @property
    def size(self) -> int:
        return BLOCK_SIZE + len(self.text)


@dataclass(slots=True, kw_only=True)
class Tool(Block):
    """A tool call."""

    id: str
    title: str = ""
    kind: str = ""
    status: str = "pending"
    input: str = ""
    """Its input in one line."""
    outputs: list[Output] = field(default_factory=list)
    """Its texts; that of a terminal grows."""
    end: str = ""
    """The end of its terminal in words: "exit code 2", "signal SIGKILL"; empty until then, and without a terminal."""
    diffs: list[Diff] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """True when it has ended."""
        return self.status in ("completed", "failed", "cancelled")

    @property
    def output(self) -> str:
        """All texts."""
        return "\n".join(output.text for output in self.outputs)

    @property
    def terminal_output(self) -> str:
        """The texts of its terminals."""
        return "\n".join(output.text for output in self.outputs if output.terminal)

    @property
    def size(self) -> int:
        changed = sum(sum(map(len, diff)) for diff in self.diffs)
        places = sum(len(location.path) for location in self.locations)
        texts = sum(len(output.text) + len(output.terminal) for output in self.outputs)
        return BLOCK_SIZE + len(self.id) + len(self.title) + len(self.input) + texts + len(self.end) + changed + places


@dataclass(slots=True, kw_only=True)
class Plan(Block):
    """A plan of the agent."""

    entries: list[Entry]
    name: str = ""
    """Its name beside other plans; empty if it is the only one."""
    is_removed: bool = False

    @property
    def size(self) -> int:
        return BLOCK_SIZE + len(self.name) + sum(len(entry.text) for entry in self.entries)


@dataclass(slots=True, kw_only=True)
class Note(Block):
    """A line about the session: a new mode, the end of a turn, a lost connection."""

    text: str
    level: Level = Level.INFO

    @property
    def size(self) -> int:
        return BLOCK_SIZE + len(self.text)


class Change(NamedTuple):
    """A change of a transcript."""

    block: Block
    new: bool
    """True if the block was added, False if it was changed."""
    added: str = ""
    """Text that was appended to a message."""


_TEXTS: Final = {
    "user_message_chunk": Kind.USER,
    "agent_message_chunk": Kind.AGENT,
    "agent_thought_chunk": Kind.THOUGHT,
}

TURN_END: Final = "turn_end"
"""Kind of the end of a turn, among the updates of a history."""

_SILENT: Final = frozenset({"available_commands_update", "usage_update", "config_option_update"})
"""Updates of the state that a transcript does not show."""


class Transcript:
    """The blocks of a session.

    Args:
        size: characters that are kept at most, apart from the last block.
    """

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self.blocks: deque[Block] = deque()
        """The blocks, the oldest first."""
        self.dropped = 0
        """Number of blocks that were dropped."""
        self.title = ""
        """The title that the agent has given the session."""
        self.mode = ""
        """The id of the present mode; empty if unknown."""
        self.state = ""
        """The agent's state where turns do not say it: `running` without a prompt, or `requires_action`."""
        self._background: tuple[str, ...] = ()
        self._limit = size
        self._size = 0
        self._sizes: dict[int, int] = {}
        self._next_number = 0
        self._last: dict[str, Block] = {}
        self._tools: dict[tuple[str, str], Tool] = {}
        self._plans: dict[tuple[str, str], Plan] = {}

    def apply(self, update: object, lane: str = "") -> list[Change]:
        """Add an update of ACP, and return what has changed, in order.

        `lane` is the session of a sub-agent that sent it; empty for the agent itself. Invalid members count as absent.
        """
        payload = members_of(update)
        lane = lane or _parent_tool(payload)
        changes = list(self._apply(payload, text_of(payload.get("sessionUpdate")), lane))
        for change in changes:
            self._measure(change.block)
        self._trim()
        return changes

    def tool(self, tool_id: object, lane: str = "") -> Tool | None:
        """Return a tool call by its id, None if it is unknown or was dropped."""
        return self._tools.get((lane, text_of(tool_id)))

    def note(self, text: str, level: Level = Level.INFO) -> Change:
        """Add a note."""
        change = self._add(Note(number=self._number(), text=text, level=level))
        self._measure(change.block)
        self._trim()
        return change

    def end_turn(self) -> None:
        """Let the next text begin another message, and the next plan another block."""
        self._last.clear()
        self._plans.clear()
        self.state = ""

    def _apply(self, payload: Mapping[str, Any], kind: str, lane: str) -> Iterator[Change]:
        notice = payload if kind == "notice" else members_of(own_meta(payload).get("notice"))
        if notice:
            yield self._notice(notice, lane)
        elif kind in _TEXTS:
            yield from self._text(_TEXTS[kind], lane, payload)
        elif kind in ("tool_call", "tool_call_update"):
            yield self._tool(lane, payload)
        elif kind == TURN_END:
            yield from self._turn_end(payload)
        elif kind == "plan":
            yield from self._plan_update(lane, payload)
        elif kind == "current_mode_update":
            mode = text_of(payload.get("currentModeId"))
            if mode and not lane and mode != self.mode:
                self.mode = mode
                yield self._add(Note(number=self._number(), text=f"mode: {mode}"))
        elif kind == "session_info_update":
            if not lane and "title" in payload:
                self.title = text_of(payload["title"])
            told = own_meta(payload)
            state = text_of(told.get("state"))
            if not lane and state:
                self._set_state(state)
            if not lane and "background" in told:
                yield from self._show_background(list_of(told["background"]))
        elif kind and kind not in _SILENT:
            yield self._unknown(kind, lane)

    def _text(self, kind: Kind, lane: str, payload: Mapping[str, Any]) -> Iterator[Change]:
        rest, message_id = block_text(payload.get("content")), text_of(payload.get("messageId"))
        if not rest:
            return
        last = self._last.get(lane)
        goes_on = isinstance(last, Message) and last.kind is kind and last.message_id == message_id
        if kind is Kind.USER and not goes_on:
            self._plans = {key: plan for key, plan in self._plans.items() if key[0] != lane}
        block = last if goes_on and isinstance(last, Message) else None
        while rest:
            if block is not None and not _is_full(block.text):
                piece, rest = _split(block.text, rest)
                block.text += piece
                yield Change(block, new=False, added=piece)
                continue
            piece, rest = _split("", rest)
            following = Message(number=self._number(), lane=lane, kind=kind, message_id=message_id)
            following.text, following.continued = piece, block is not None
            block = following
            yield self._add(block, piece)

    def _turn_end(self, payload: Mapping[str, Any]) -> Iterator[Change]:
        """End a turn; one that was done needs no words."""
        self.end_turn()
        reason, error = text_of(payload.get("stopReason")), members_of(payload.get("error"))
        if error or reason not in ("", "end_turn"):
            text, level = end_words(reason, text_of(error.get("message")))
            yield self._add(Note(number=self._number(), text=text, level=level))

    def _tool(self, lane: str, payload: Mapping[str, Any]) -> Change:
        key = lane, text_of(payload.get("toolCallId"))
        tool = self._tools.get(key)
        if tool is not None:
            change_tool(tool, payload)
            return Change(tool, new=False)
        tool = self._tools[key] = Tool(number=self._number(), lane=lane, id=key[1])
        change_tool(tool, payload)
        return self._add(tool)

    def _plan_update(self, lane: str, payload: Mapping[str, Any]) -> Iterator[Change]:
        """Change the plan that an update shows, and remove those that it does not name; without names there is one."""
        entries, told = read_entries(payload.get("entries")), own_meta(payload)
        if "plans" not in told:
            yield self._plan(lane, "", entries)
            return
        names = [text_of(name) for name in list_of(told["plans"])]
        for (of, name), plan in list(self._plans.items()):
            if of == lane and name and name not in names:
                del self._plans[of, name]
                plan.is_removed = True
                yield Change(plan, new=False)
        if names:
            count = told.get("entries")
            # Further entries name the other plans.
            own = entries[:count] if type(count) is int else entries
            yield self._plan(lane, names[-1], own, shown=names[-1] if len(names) > 1 else "")

    def _plan(self, lane: str, name: str, entries: list[Entry], shown: str = "") -> Change:
        key = lane, name
        plan = self._plans.get(key)
        if plan is not None:
            plan.entries = entries
            plan.name = shown or plan.name
            return Change(plan, new=False)
        plan = self._plans[key] = Plan(number=self._number(), lane=lane, entries=entries, name=shown)
        return self._add(plan)

    def _show_background(self, works: list[object]) -> Iterator[Change]:
        """Note what the agent does in the background, by the titles of its tool calls, if that has changed."""
        names = tuple(dict.fromkeys(self._name_of(members_of(work)) for work in works))
        if names != self._background:
            self._background = names
            text = f"in the background: {', '.join(names)}" if names else "nothing goes on in the background"
            yield self._add(Note(number=self._number(), text=text))

    def _name_of(self, work: Mapping[str, Any]) -> str:
        terminal = text_of(work.get("terminalId"))
        tools = (tool for tool in self._tools.values() if any(shown.terminal == terminal for shown in tool.outputs))
        tool = next(tools, None) if terminal else self.tool(work.get("toolCallId"))
        return (tool.title if tool is not None else "") or text_of(work.get("type")).strip("_") or "work"

    def _set_state(self, state: str) -> None:
        if state == "idle" or (state == "running" and not self.state):
            # Of work that it does by itself.
            self.end_turn()
        self.state = "" if state == "idle" else state

    def _notice(self, notice: Mapping[str, Any], lane: str) -> Change:
        words = [text_of(notice.get(name)) for name in ("title", "description")]
        is_bad = notice.get("severity") in ("warning", "error")
        text, level = ": ".join(word for word in words if word), Level.BAD if is_bad else Level.INFO
        return self._add(Note(number=self._number(), lane=lane, text=text or "a notice", level=level))

    def _unknown(self, kind: str, lane: str) -> Change:
        text, last = f"an update of an unknown kind: {kind}", self._last.get(lane)
        if isinstance(last, Note) and last.text == text:
            return Change(last, new=False)
        return self._add(Note(number=self._number(), lane=lane, text=text))

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _add(self, block: Block, added: str = "") -> Change:
        self.blocks.append(block)
        self._last[block.lane] = block
        return Change(block, new=True, added=added)

    def _measure(self, block: Block) -> None:
        """Count the size of a block that has changed."""
        size = block.size
        self._size += size - self._sizes.get(block.number, 0)
        self._sizes[block.number] = size

    def _trim(self) -> None:
        """Drop the oldest blocks beyond the limit."""
        while self._size > self._limit and len(self.blocks) > 1:
            oldest = self.blocks.popleft()
            self.dropped += 1
            self._size -= self._sizes.pop(oldest.number)
            if isinstance(oldest, Tool):
                self._tools.pop((oldest.lane, oldest.id), None)
            if isinstance(oldest, Plan):
                self._plans = {key: plan for key, plan in self._plans.items() if plan is not oldest}
            if self._last.get(oldest.lane) is oldest:
                del self._last[oldest.lane]


def end_words(stop_reason: str, error: str = "", why: str = "") -> tuple[str, Level]:
    """Return what is written at the end of a turn: the agent's reason, its error, or the gateway's reason."""
    if stop_reason == "end_turn":
        return "the turn has ended", Level.GOOD
    if stop_reason:
        return f"the turn has ended: {stop_reason}", Level.BAD
    if error:
        return f"the turn has failed: {error}", Level.BAD
    return f"the turn was cut off: {why.replace('_', ' ') or 'the agent answered with an error'}", Level.BAD


def _is_full(text: str) -> bool:
    return len(text) >= HARD_SIZE or (len(text) >= SOFT_SIZE and text.endswith("\n"))


def _split(text: str, more: str) -> tuple[str, str]:
    """Return what a block with `text` takes of `more`, and the rest."""
    room = HARD_SIZE - len(text)
    soft = max(SOFT_SIZE - len(text) - 1, 0)
    at = more.find("\n", soft, room)
    end = room if at < 0 else at + 1
    return more[:end], more[end:]


def change_tool(tool: Tool, payload: Mapping[str, Any]) -> None:
    """Set the members of a tool call that an update of ACP gives."""
    tool.title = text_of(payload.get("title")) or tool.title
    tool.kind = text_of(payload.get("kind")) or tool.kind
    tool.status = text_of(payload.get("status")) or tool.status
    if payload.get("locations") is not None:
        tool.locations = read_locations(payload["locations"])
    if payload.get("content") is not None:
        tool.diffs, outputs, tool.end = read_tool_content(payload["content"])
        tool.outputs = [output._replace(text=output.text[-OUTPUT_SIZE:]) for output in outputs]
    if payload.get("rawInput") is not None:
        tool.input = describe_input(payload["rawInput"])
    meta, told = members_of(payload.get("_meta")), members_of(own_meta(payload).get("terminal"))
    if told:
        whole = text_of(told["output"]) if "output" in told else None
        _grow(tool, told.get("terminalId"), text_of(told.get("data")), whole)
    # As some agents of version 1 report it.
    terminal, ended = members_of(meta.get("terminal_output")), members_of(meta.get("terminal_exit"))
    if terminal:
        _grow(tool, terminal.get("terminal_id"), text_of(terminal.get("data")))
    if ended:
        tool.end = describe_exit({"exitCode": ended.get("exit_code"), "signal": ended.get("signal")})


def _grow(tool: Tool, terminal: object, added: str, whole: str | None = None) -> None:
    """Add to the output of a terminal, or replace it by all of it."""
    name = text_of(terminal) or "terminal"
    before = next((output.text for output in tool.outputs if output.terminal == name), None)
    grown = Output((((before or "") if whole is None else whole) + added)[-OUTPUT_SIZE:], name)
    if before is None:
        tool.outputs.append(grown)
    else:
        tool.outputs = [grown if output.terminal == name else output for output in tool.outputs]


def _parent_tool(payload: Mapping[str, Any]) -> str:
    """Return the tool call that runs the sub-agent of an update, as some agents report it; "" if there is none."""
    about = members_of(members_of(payload.get("_meta")).get("claudeCode"))
    return text_of(about.get("parentToolUseId"))
