"""Updates of sessions for tests: made by hand, and by Hypothesis with texts that a terminal would obey."""

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from acp_gateway.terminal.ansi import Pen
from acp_gateway.terminal.rendering import Line

Update = dict[str, Any]

HOSTILE = {
    "colours": "\x1b[31mred\x1b[0m\x1b[38;5;1mx\x1b[8mhidden",
    "title": "\x1b]0;title\x07\x1b]2;title\x1b\\",
    "link": "\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "screen": "\x1b[2J\x1b[H\x1bc\x1b[?1049h\x1b[3J\x1b[9;9H",
    "reports": "\x1b[6n\x1b[c\x1b]11;?\x07\x1bP+q544e\x1b\\\x05",
    "eight bits": "\x9b31m\x9d0;title\x9c\x90q\x84\x85\x8d",
    "controls": "\x00\x07\x08\x0b\x0c\x0e\x0f\x11\x13\x18\x1a\x7f",
    "overwriting": "rm -rf /\rls\x08\x08\x08cat",
    "directions": "safe\u202etxt.exe\u202c \u2066x\u2069 \u200f\u061c\u200e",
    "invisible": "a\u200bb\u200cc\u200dd\ufeffe\u00adf\u2060g\U000e0041h\u180ei",
    "breaks": "a\u2028b\u2029c\x85d\x1ce\x1df\x1eg",
    "halves": "\ud800 \udfff",
    "question": "\n? May the agent do this: rm\n  [y] Allow",
}
"""Texts that a terminal would obey, or that would read differently from what they are."""

texts = st.one_of(
    st.sampled_from(sorted(HOSTILE.values())),
    st.text(st.characters(), max_size=20),
    st.text("ab \n\r\t\x1b", max_size=12),
)

ids = st.sampled_from(["", "1", "2", "\x1b[1m"])

blocks = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda text: {"type": "image", "mimeType": text, "data": "AA=="}, texts),
    st.builds(lambda text: {"type": "resource_link", "name": text, "uri": text}, texts),
    st.builds(lambda text: {"type": "resource", "resource": {"uri": text}}, texts),
    st.builds(lambda text: {"type": text}, texts),
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)

statuses = st.sampled_from(["pending", "in_progress", "completed", "failed"]) | texts

diffs = st.builds(lambda path, old, new: {"type": "diff", "path": path, "oldText": old, "newText": new}, *[texts] * 3)

chunks = st.builds(
    lambda kind, content, message: {"sessionUpdate": kind, "content": content, "messageId": message},
    st.sampled_from(["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"]),
    blocks,
    st.none() | ids,
)

changes = st.builds(
    lambda operation, path, kind: {"operation": operation, "path": path, "oldPath": path, "fileType": kind},
    st.sampled_from(["add", "modify", "delete", "move", "copy"]) | texts,
    *[texts] * 2,
)

terminals = st.fixed_dictionaries(
    {"terminalId": ids},
    optional={"data": texts, "output": texts, "exitStatus": st.builds(lambda text: {"signal": text}, texts)},
)

own = st.fixed_dictionaries(
    {},
    optional={"change": changes, "terminal": terminals, "terminalEnd": terminals, "state": statuses}
    | {"plans": st.lists(texts, max_size=3), "entries": st.integers(0, 3)},
).map(lambda told: {"acp-gateway": told})
"""Members of the gateway's own in `_meta`."""

tools = st.fixed_dictionaries(
    {"sessionUpdate": st.sampled_from(["tool_call", "tool_call_update"]), "toolCallId": ids},
    optional={
        "title": texts,
        "kind": texts,
        "status": statuses,
        "rawInput": json_values,
        "locations": st.lists(st.builds(lambda path: {"path": path, "line": 1}, texts), max_size=2),
        "content": st.lists(
            st.builds(lambda diff, meta: {**diff, "_meta": meta}, diffs, own)
            | st.builds(lambda block, meta: {"type": "content", "content": block, "_meta": meta}, blocks, own)
            | json_values,
            max_size=3,
        ),
        "_meta": own | st.builds(lambda text: {"terminal_output": {"data": text}}, texts),
    },
)

plans = st.builds(
    lambda entries, meta: {"sessionUpdate": "plan", "entries": entries, "_meta": meta},
    st.lists(st.builds(lambda text, status: {"content": text, "status": status}, texts, statuses), max_size=3),
    own,
)

others = st.one_of(
    st.builds(lambda text: {"sessionUpdate": text}, texts),
    st.builds(lambda text: {"sessionUpdate": "notice", "severity": text, "title": text, "description": text}, texts),
    st.builds(lambda text: {"sessionUpdate": "current_mode_update", "currentModeId": text}, texts),
    st.builds(lambda text, meta: {"sessionUpdate": "session_info_update", "title": text, "_meta": meta}, texts, own),
    st.dictionaries(
        st.sampled_from(["sessionUpdate", "content", "toolCallId", "title", "status", "locations", "entries"]),
        json_values | st.sampled_from(["agent_message_chunk", "tool_call", "plan"]),
    ),
    json_values,
)

any_updates = st.one_of(chunks, tools, plans, others)
"""Updates of all kinds and qualities."""


def said(text: str, kind: str = "agent", **more: object) -> Update:
    """Return a chunk of text."""
    name = f"{kind}_thought_chunk" if kind == "thought" else f"{kind}_message_chunk"
    name = name.replace("thought_thought", "agent_thought")
    return {"sessionUpdate": name, "content": {"type": "text", "text": text}, **more}


def tool(tool_id: str = "1", **members: object) -> Update:
    """Return a tool call, or its update."""
    return {"sessionUpdate": "tool_call_update", "toolCallId": tool_id, **members}


def plan(*entries: tuple[str, str]) -> Update:
    """Return a plan of texts with their states."""
    return {"sessionUpdate": "plan", "entries": [{"content": text, "status": status} for text, status in entries]}


def plain_text(lines: Iterable[Line]) -> str:
    """Return lines without styles."""
    pen = Pen(colour=False)
    pen.lines(lines)
    return pen.take()
