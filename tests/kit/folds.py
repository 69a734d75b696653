"""Reference folds: the transcript that a client of either version has after some updates, and random conversations."""

import codecs
from base64 import b64decode, b64encode
from typing import Any

from hypothesis import strategies as st

from acp_gateway.protocol.methods import META
from acp_gateway.versions.shown import CANCELLED, CLEARED, CORRECTED
from tests.kit.versions import content, text

Json = Any

CHUNKS = {"user_message_chunk": "user", "agent_message_chunk": "agent", "agent_thought_chunk": "thought"}
WHOLE = {"user_message": "user", "agent_message": "agent", "agent_thought": "thought"}


def essence(blocks: list[Json]) -> list[Json]:
    """Content with adjacent plain texts joined."""
    found: list[Json] = []
    for block in blocks:
        if block.keys() == {"type", "text"} and found and isinstance(found[-1], str):
            found[-1] += block["text"]
        else:
            found.append(block["text"] if block.keys() == {"type", "text"} else block)
    return [part for part in found if part != ""]


def without_own(value: Json) -> Json:
    """A value without what the gateway tells in `_meta` to those who know it."""
    if isinstance(value, list):
        return list(map(without_own, value))
    if not isinstance(value, dict):
        return value
    kept = {name: without_own(member) for name, member in value.items()}
    meta = kept.get("_meta")
    if isinstance(meta, dict) and META in meta:
        kept["_meta"] = {name: member for name, member in meta.items() if name != META}
        if not kept["_meta"]:
            del kept["_meta"]
    return kept


class OldTranscript:
    """A session as a client of version 1 shows it."""

    def __init__(self) -> None:
        self.timeline: list[Json] = []
        """Messages and tool calls in order; a message ends where another id, kind or tool call begins."""
        self.messages: dict[str, Json] = {}
        """Messages by id, each with its last version alone."""
        self.tools: dict[str, Json] = {}
        self.state: dict[str, Json] = {}
        self._last: Json = None
        self._versions: dict[str, str] = {}

    def end_turn(self) -> None:
        self._last = None

    def apply(self, update: Json) -> None:
        update = without_own(update)
        kind = update["sessionUpdate"]
        if kind in CHUNKS:
            self._chunk(CHUNKS[kind], update.get("messageId"), update["content"])
        elif kind in ("tool_call", "tool_call_update"):
            self._tool(update, begins=kind == "tool_call")
        else:
            self.state[kind] = update

    def _chunk(self, kind: str, message_id: str | None, block: Json) -> None:
        if self._last != (kind, message_id):
            self.timeline.append((kind, []))
            self._last = kind, message_id
        self.timeline[-1][1].append(block)
        name, _, _ = (message_id or "").partition("#")
        if self._versions.setdefault(name, message_id or "") != message_id:
            self._versions[name] = message_id or ""
            self.messages[name] = (kind, [])
        if block not in (text(CORRECTED), text(CLEARED)):
            self.messages.setdefault(name, (kind, []))[1].append(block)

    def _tool(self, update: Json, *, begins: bool) -> None:
        name = update["toolCallId"]
        if begins:
            self._last = None
        if name not in self.tools:
            self.timeline.append(("tool", name))
            self.tools[name] = {"title": "", "kind": "other", "status": "pending", "content": [], "locations": []}
        changed = {key: value for key, value in update.items() if value is not None and key != "sessionUpdate"}
        self.tools[name] |= changed

    def shown(self) -> Json:
        """All of it, with messages as their content only."""
        timeline = [(kind, essence(what)) if kind != "tool" else (kind, what) for kind, what in self.timeline]
        return [entry for entry in timeline if entry[1]], self.tools, self.state


class NewTranscript:
    """A session as a client of version 2 shows it."""

    def __init__(self) -> None:
        self.messages: dict[str, Json] = {}
        self.tools: dict[str, Json] = {}
        self.terminals: dict[str, Json] = {}

    def apply(self, update: Json) -> None:
        kind = update["sessionUpdate"]
        if kind in CHUNKS:
            self.messages.setdefault(update["messageId"], (CHUNKS[kind], []))[1].append(update["content"])
        elif kind in WHOLE:
            message = self.messages.setdefault(update["messageId"], (WHOLE[kind], []))
            if "content" in update:
                message[1][:] = update["content"] or []
        elif kind in ("tool_call_update", "tool_call_content_chunk"):
            tool = self.tools.setdefault(
                update["toolCallId"], {"title": None, "kind": "other", "status": "pending", "content": []}
            )
            if kind == "tool_call_content_chunk":
                tool["content"] = [*tool["content"], update["content"]]
                return
            default: Json = {"title": None, "kind": "other", "status": "pending", "content": []}
            for key in default:
                if key in update:
                    tool[key] = default[key] if update[key] is None else update[key]
        elif kind in ("terminal_update", "terminal_output_chunk"):
            terminal = self.terminals.setdefault(update["terminalId"], {"output": b"", "exit": None})
            if kind == "terminal_output_chunk":
                terminal["output"] += b64decode(update["data"])
            elif "output" in update:
                terminal["output"] = b"" if update["output"] is None else b64decode(update["output"]["data"])
            if update.get("exitStatus") is not None:
                terminal["exit"] = update["exitStatus"]

    def old_tools(self) -> Json:
        """The tool calls as version 1 can say them."""
        return {name: self._old_tool(tool) for name, tool in self.tools.items()}

    def _old_tool(self, tool: Json) -> Json:
        items: list[Json] = []
        for item in tool["content"]:
            words = self._terminal(item["terminalId"]) if item["type"] == "terminal" else [item["content"]["text"]]
            items += map(content, words)
        if tool["status"] == "cancelled":
            items.append(content(CANCELLED))
        statuses = {"paused": "in_progress", "cancelled": "failed"}
        return {"kind": tool["kind"], "status": statuses.get(tool["status"], tool["status"]), "content": items}

    def output(self, name: str) -> str:
        """The output of a terminal as text, without the beginning of a character whose end is to come."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(
            self.terminals.get(name, {"output": b""})["output"]
        )

    def _terminal(self, name: str) -> list[str]:
        terminal = self.terminals.get(name, {"output": b"", "exit": None})
        words = self.output(name)
        code = None if terminal["exit"] is None else terminal["exit"].get("exitCode")
        return [*filter(None, [words]), *([f"[exit code {code}]"] if code else [])]


# Conversations

WORDS = st.sampled_from(["", "a", "ab", "b\n", "é", "€", "\x1b[1m", "\ud83d"])
IMAGE = {"type": "image", "data": "AA==", "mimeType": "image/png"}
BLOCKS = WORDS.map(text) | st.just(IMAGE)
NAMES = st.sampled_from(["a", "b", "c"])
KINDS = st.sampled_from(["read", "edit", "execute", "other"])
OLD_STATUSES = st.sampled_from(["pending", "in_progress", "completed", "failed"])
PLACES = st.lists(st.builds(lambda line: {"path": "/w/a", "line": line}, st.integers(1, 3)), max_size=2)
DIFFS = st.tuples(st.none() | WORDS, WORDS, NAMES).filter(lambda texts: texts[0] != texts[1])
OLD_CONTENT = st.lists(
    BLOCKS.map(lambda block: {"type": "content", "content": block})
    | DIFFS.map(lambda three: {"type": "diff", "path": f"/w/{three[2]}", "oldText": three[0], "newText": three[1]}),
    max_size=3,
)
ENTRIES = st.lists(
    st.builds(
        lambda words, status: {"content": words, "priority": "high", "status": status},
        WORDS,
        st.sampled_from(["pending", "in_progress", "completed"]),
    ),
    max_size=3,
)


def some(members: dict[str, st.SearchStrategy[Json]]) -> st.SearchStrategy[Json]:
    """Objects with some of these members."""
    return st.fixed_dictionaries({}, optional=members)


OLD_TOOL = {
    "title": WORDS,
    "kind": KINDS,
    "status": OLD_STATUSES,
    "content": OLD_CONTENT,
    "locations": PLACES,
    "rawInput": st.dictionaries(NAMES, st.integers(0, 2), max_size=1),
}
OLD_UPDATES = st.one_of(
    st.builds(
        lambda kind, block, name: {"sessionUpdate": kind, "content": block} | ({"messageId": name} if name else {}),
        st.sampled_from(sorted(CHUNKS)),
        BLOCKS,
        st.none() | NAMES,
    ),
    st.builds(
        lambda name, words, rest: {"sessionUpdate": "tool_call", "toolCallId": name, "title": words, **rest},
        NAMES,
        WORDS.filter(bool),
        some({key: value for key, value in OLD_TOOL.items() if key != "title"}),
    ),
    st.builds(
        lambda name, rest: {"sessionUpdate": "tool_call_update", "toolCallId": name, **rest},
        NAMES,
        some({key: st.none() | value for key, value in OLD_TOOL.items()}),
    ),
    st.builds(lambda entries: {"sessionUpdate": "plan", "entries": entries}, ENTRIES),
    st.builds(lambda mode: {"sessionUpdate": "current_mode_update", "currentModeId": mode}, NAMES),
    st.just({"sessionUpdate": "usage_update", "used": 1, "size": 2}),
)


@st.composite
def old_conversations(draw: st.DrawFn) -> list[Json]:
    """Updates of an agent of version 1, in turns; None ends a turn. A tool call begins once, before it changes."""
    known: set[str] = set()
    found: list[Json] = []
    for update in draw(st.lists(st.none() | OLD_UPDATES, max_size=20)):
        if update is not None and "toolCallId" in update:
            if (update["sessionUpdate"] == "tool_call") is (update["toolCallId"] in known):
                continue
            known.add(update["toolCallId"])
        found.append(update)
    return found


BYTES = st.sampled_from([b"", b"a", b"a\n", b"\xe2\x82", b"\xac", b"\xff", b"\x1b[1"]).map(
    lambda data: b64encode(data).decode()
)
NEW_STATUSES = OLD_STATUSES | st.sampled_from(["paused", "cancelled"])
NEW_ITEM = WORDS.map(content) | NAMES.map(lambda name: {"type": "terminal", "terminalId": name})


def message(kind: str, name: str, rest: Json) -> Json:
    """An update of a message, whose id is one of its kind."""
    return {"sessionUpdate": kind, "messageId": f"{(CHUNKS | WHOLE)[kind]}-{name}", **rest}


NEW_UPDATES = st.one_of(
    st.builds(message, st.sampled_from(sorted(CHUNKS)), NAMES, BLOCKS.map(lambda block: {"content": block})),
    st.builds(
        message, st.sampled_from(sorted(WHOLE)), NAMES, some({"content": st.none() | st.lists(BLOCKS, max_size=3)})
    ),
    st.builds(
        lambda name, rest: {"sessionUpdate": "tool_call_update", "toolCallId": name, **rest},
        NAMES,
        some(
            {
                "title": st.none() | WORDS,
                "kind": st.none() | KINDS,
                "status": st.none() | NEW_STATUSES,
                "content": st.none() | st.lists(NEW_ITEM, max_size=3),
            }
        ),
    ),
    st.builds(
        lambda name, item: {"sessionUpdate": "tool_call_content_chunk", "toolCallId": name, "content": item},
        NAMES,
        NEW_ITEM,
    ),
    st.builds(
        lambda name, data: {"sessionUpdate": "terminal_output_chunk", "terminalId": name, "data": data}, NAMES, BYTES
    ),
    st.builds(
        lambda name, rest: {"sessionUpdate": "terminal_update", "terminalId": name, **rest},
        NAMES,
        some(
            {
                "output": st.none() | BYTES.map(lambda data: {"data": data}),
                "exitStatus": st.none() | st.integers(0, 1).map(lambda code: {"exitCode": code}),
                "command": WORDS,
            }
        ),
    ),
    st.just({"sessionUpdate": "state_update", "state": "running"}),
    st.just({"sessionUpdate": "usage_update", "used": 1, "size": 2}),
    st.sampled_from(["end_turn", "cancelled", "refusal"]).map(
        lambda reason: {"sessionUpdate": "state_update", "state": "idle", "stopReason": reason}
    ),
)
