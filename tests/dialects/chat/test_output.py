"""Dialogues of `/chat`: what an agent sends, and what a widget gets for it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.chat import requests as chat
from acp_gateway.dialects.chat.output import EVENTS, ID_SIZE, TERMINALS, ChatOutput
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import spans
from acp_gateway.protocol.text.spans import ELEMENTS
from tests.fuzz.effort import effort

OUTPUT = ChatOutput(lambda: 5000)
TERMINAL = {"type": "terminal", "terminalId": "t1"}
ENDED: Any = {"terminalId": "t1", "exitStatus": {"exitCode": 2}}
GROWN, END = (
    {"type": "content", "content": {"type": "text", "text": text}, "_meta": {"acp-gateway": {name: ENDED}}}
    for name, text in (("terminal", "all"), ("terminalEnd", "[exit code 2]"))
)
"""The output of a terminal, and its end, of an agent of version 2."""
DIFF = {"type": "diff", "path": "/a", "oldText": None, "newText": "b"}
ENTRIES = [{"content": "do", "priority": "high", "status": "pending"}]


def message(update: Any, session: str = "s") -> bytes:
    params = {"sessionId": session, "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def told(update: dict[str, Any], session: str = "s") -> list[dict[str, Any]]:
    """The events of an update, without what each of them has."""
    events = [json.loads(it) for it in OUTPUT.updates("s", [message(update, session)], 1, [123])]
    for event in events:
        assert (event.pop("sessionId"), event.pop("timestamp")) == ("s", 123)
    return events


def text(kind: str, said: str, **more: Any) -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": said}, **more}


def failed_with(code: int, message: str) -> dict[str, Any]:
    return {"seq": 3, "nth": 1, "time": 7, "error": {"code": code, "message": message}}


def request(method: str = "session/request_permission", **params: Any) -> Message:
    return jsonrpc.parse(json.dumps({"id": 1, "method": method, "params": {"sessionId": "s", **params}}).encode())


STARTED: dict[str, Any] = {
    "type": "tool_call_started",
    "toolCallId": "c",
    "kind": "other",
    "arguments": None,
    "locations": [],
}
CALL = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Read"}
CHANGE = {"sessionUpdate": "tool_call_update", "toolCallId": "c"}


@pytest.mark.parametrize(
    ("update", "events"),
    [
        (text("agent_message_chunk", "a"), [{"type": "message_chunk", "content": "a", "role": "assistant"}]),
        (text("user_message_chunk", "a"), [{"type": "message_chunk", "content": "a", "role": "user"}]),
        (text("agent_thought_chunk", "a"), [{"type": "message_chunk", "content": "a", "role": "thought"}]),
        (
            text("agent_message_chunk", "a", messageId="m"),
            [{"type": "message_chunk", "content": "a", "role": "assistant", "messageId": "m"}],
        ),
        (
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "data": "A", "mimeType": "m"}},
            [
                {
                    "type": "message_chunk",
                    "content": "",
                    "block": {"type": "image", "data": "A", "mimeType": "m"},
                    "role": "assistant",
                }
            ],
        ),
        (
            {**CALL, "kind": "read", "status": "pending", "rawInput": {"a": 1}, "locations": [{"path": "/a"}]},
            [
                {
                    **STARTED,
                    "toolName": "Read",
                    "kind": "read",
                    "arguments": {"a": 1},
                    "locations": [{"path": "/a"}],
                    "status": "pending",
                }
            ],
        ),
        (CALL, [{**STARTED, "toolName": "Read"}]),
        (
            {
                "sessionUpdate": "tool_call",
                "toolCall": {"toolCallId": "c", "toolName": "Read", "kind": "read", "arguments": {"a": 1}},
            },
            [{**STARTED, "toolName": "Read", "kind": "read", "arguments": {"a": 1}}],
        ),
        (
            {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": 7}},
            [{"type": "message_chunk", "content": "", "block": {"type": "text", "text": 7}, "role": "user"}],
        ),
        (
            {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Outer", "toolCall": {"toolName": "Read"}},
            [{**STARTED, "toolName": "Read"}],
        ),
        (
            {**CALL, "status": "completed", "rawOutput": 7},
            [
                {**STARTED, "toolName": "Read"},
                {"type": "tool_call_completed", "toolCallId": "c", "status": "completed", "result": 7},
            ],
        ),
        (
            {**CHANGE, "status": "in_progress"},
            [{"type": "tool_call_updated", "toolCallId": "c", "status": "in_progress"}],
        ),
        (
            {**CHANGE, "content": [DIFF]},
            [{"type": "tool_call_updated", "toolCallId": "c", "status": None, "content": [DIFF]}],
        ),
        (
            {**CHANGE, "title": "Now", "locations": []},
            [{"type": "tool_call_updated", "toolCallId": "c", "status": None, "toolName": "Now", "locations": []}],
        ),
        (
            {"sessionUpdate": "tool_call_update", "toolCall": {"toolCallId": "c", "status": "failed", "result": "x"}},
            [{"type": "tool_call_completed", "toolCallId": "c", "status": "failed", "result": "x"}],
        ),
        (
            {**CHANGE, "status": "completed", "content": [DIFF]},
            [
                {
                    "type": "tool_call_completed",
                    "toolCallId": "c",
                    "status": "completed",
                    "content": [DIFF],
                    "result": [DIFF],
                }
            ],
        ),
        (
            {**CHANGE, "status": "failed", "content": [DIFF], "rawOutput": {"e": 1}},
            [
                {
                    "type": "tool_call_completed",
                    "toolCallId": "c",
                    "status": "failed",
                    "content": [DIFF],
                    "result": {"e": 1},
                }
            ],
        ),
        (
            {**CHANGE, "status": "completed"},
            [{"type": "tool_call_completed", "toolCallId": "c", "status": "completed", "result": None}],
        ),
        (
            {**CHANGE, "content": [TERMINAL]},
            [
                {"type": "tool_call_updated", "toolCallId": "c", "status": None, "content": [TERMINAL]},
                {"type": "terminal_output", "toolCallId": "c", "terminalId": "t1", "output": ""},
            ],
        ),
        (
            {**CHANGE, "_meta": {"terminal_output": {"terminal_id": "t1", "data": "ls\n"}}},
            [
                {"type": "tool_call_updated", "toolCallId": "c", "status": None},
                {"type": "terminal_output", "toolCallId": "c", "terminalId": "t1", "output": "ls\n"},
            ],
        ),
        (
            {**CHANGE, "status": "failed", "_meta": {"terminal_exit": {"terminal_id": "t1", "exit_code": 2}}},
            [
                {"type": "tool_call_completed", "toolCallId": "c", "status": "failed", "result": None},
                {
                    "type": "terminal_output",
                    "toolCallId": "c",
                    "terminalId": "t1",
                    "output": "",
                    "exitStatus": {"exitCode": 2, "signal": None},
                },
            ],
        ),
        (
            {**CHANGE, "_meta": {"acp-gateway": {"terminal": {"terminalId": "t1", "data": "ls"}}}},
            [
                {"type": "tool_call_updated", "toolCallId": "c", "status": None},
                {"type": "terminal_output", "toolCallId": "c", "terminalId": "t1", "output": "ls"},
            ],
        ),
        (
            {**CHANGE, "_meta": {"acp-gateway": {"terminal": {"terminalId": "t1", "output": "all"}}}},
            [
                {"type": "tool_call_updated", "toolCallId": "c", "status": None},
                {"type": "terminal_output", "toolCallId": "c", "terminalId": "t1", "output": "all", "whole": True},
            ],
        ),
        (
            {**CHANGE, "content": [GROWN, END]},
            [
                {"type": "tool_call_updated", "toolCallId": "c", "status": None, "content": [GROWN, END]},
                {"type": "terminal_output", "toolCallId": "c", **ENDED, "output": "all", "whole": True},
                {"type": "terminal_output", "toolCallId": "c", **ENDED, "output": ""},
            ],
        ),
        ({"sessionUpdate": "plan", "entries": ENTRIES}, [{"type": "plan_created", "entries": ENTRIES}]),
        (
            {
                "sessionUpdate": "plan",
                "entries": ENTRIES,
                "_meta": {"acp-gateway": {"plans": ["a", "b"], "entries": 1}},
            },
            [{"type": "plan_created", "entries": ENTRIES, "plans": ["a", "b"], "ownEntries": 1}],
        ),
        (
            {"sessionUpdate": "current_mode_update", "currentModeId": "plan"},
            [{"type": "mode_changed", "modeId": "plan"}],
        ),
        (
            {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "a"}]},
            [{"type": "commands", "availableCommands": [{"name": "a"}]}],
        ),
        (
            {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 1, "currency": "EUR"}},
            [{"type": "usage", "used": 1, "size": 2, "cost": {"amount": 1, "currency": "EUR"}}],
        ),
        ({"sessionUpdate": "config_option_update", "configOptions": []}, [{"type": "config", "configOptions": []}]),
    ],
)
def test_an_update_becomes_events(update: dict[str, Any], events: list[dict[str, Any]]) -> None:
    assert told(update) == events


@pytest.mark.parametrize(
    "update",
    [
        {"sessionUpdate": "session_info_update", "title": "a"},
        {"sessionUpdate": "tomorrow", "n": [1]},
        {"sessionUpdate": "tool_call", "title": "without an id"},
        {"sessionUpdate": "agent_message_chunk"},
        {"sessionUpdate": "plan", "entries": "none"},
        {"sessionUpdate": "current_mode_update"},
        {"sessionUpdate": 7},
        {},
        [],
        None,
        "x",
    ],
)
def test_an_update_without_a_word_of_its_own_is_passed_on_as_it_is(update: Any) -> None:
    assert told(update) == [{"type": "unknown_update", "raw": update}]


def test_what_an_agent_puts_into_an_update_replaces_no_member_of_an_event() -> None:
    update = {"sessionUpdate": "usage_update", "type": "error", "sessionId": "other", "timestamp": 1, "used": 2}
    assert told(update) == [{"type": "usage", "used": 2}]


def test_an_update_of_a_sub_agent_does_not_mix_with_those_of_its_session() -> None:
    update = text("agent_message_chunk", "a")
    assert told(update, "child") == [{"type": "unknown_update", "raw": update, "sub": "child"}]


def test_values_pass_verbatim_with_numbers_escapes_and_lone_surrogates() -> None:
    update = (
        rb'{"sessionUpdate":"tool_call_update","toolCallId":"\u0063","rawOutput":{"n":1.10,"s":"\ud83d","e":1e999}}'
    )
    sent = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":' + update + b"}}"
    (event,) = OUTPUT.updates("s", [sent], 1, [None])
    assert event == (
        rb'{"type":"tool_call_updated","sessionId":"s","timestamp":0,"status":null,"toolCallId":"\u0063",'
        rb'"result":{"n":1.10,"s":"\ud83d","e":1e999}}'
    )


OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def test_a_permission_is_told_with_its_tool_call_and_options() -> None:
    asked = request(toolCall={"toolCallId": "c", "title": "rm"}, options=OPTIONS)
    (event,) = map(json.loads, OUTPUT.request("s", "r-1", asked))
    assert event == {
        "type": "permission_request",
        "sessionId": "s",
        "timestamp": 5000,
        "requestId": "r-1",
        "toolCall": {"toolCallId": "c", "title": "rm"},
        "options": OPTIONS,
    }


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("Yes", {"outcome": "selected", "optionId": "yes"}),
        ("no", {"outcome": "selected", "optionId": "no"}),
        ("cancelled", {"outcome": "cancelled"}),
        ("timeout", {"outcome": "timeout"}),
        (None, {"outcome": "cancelled"}),
    ],
)
def test_the_end_of_a_permission_is_told_as_acp_has_it(outcome: str | None, expected: Any) -> None:
    (event,) = map(json.loads, OUTPUT.request_resolved("s", "r-1", request(options=OPTIONS), "ann", outcome))
    assert (event["type"], event["requestId"], event["outcome"], event["by"]) == (
        "permission_resolved",
        "r-1",
        expected,
        "ann",
    )


def test_no_more_terminals_of_one_update_are_told_than_a_few() -> None:
    events = told({**CHANGE, "content": [TERMINAL] * 500})
    assert [event["type"] for event in events] == ["tool_call_updated", *["terminal_output"] * TERMINALS]


@pytest.mark.parametrize("own", [{"terminalEnd": {"x": "\ud83d"}}, {"x": "terminal"}, {"x": {"terminalEnd": {}}}])
def test_few_elements_are_walked_through_however_many_may_be_terminals(
    own: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = 0
    value_end = spans.value_end

    def counted(text: bytes, start: int) -> int:
        nonlocal walked
        walked += 1
        return value_end(text, start)

    monkeypatch.setattr(spans, "value_end", counted)
    element = {"type": "content", "content": {"x": "\ud83d"}, "_meta": {"acp-gateway": own}}
    assert told({**CHANGE, "content": [element] * 900, "_meta": {"x": "terminal_"}})
    assert 900 < walked < 900 + 20 * TERMINALS


def test_terminals_among_more_elements_than_are_looked_into_are_not_told() -> None:
    assert len(told({**CHANGE, "content": [TERMINAL, *[1] * ELEMENTS]})) == 1


@pytest.mark.parametrize(("size", "count"), [(ID_SIZE - 2, 3), (ID_SIZE - 1, 1)])
def test_terminals_of_a_call_with_a_huge_id_are_not_told_so_that_events_do_not_grow_with_it(
    size: int, count: int
) -> None:
    meta = {"terminal_output": {"terminal_id": "t1", "data": "ls"}}
    assert len(told({**CHANGE, "toolCallId": "x" * size, "content": [TERMINAL], "_meta": meta})) == count


def test_a_request_that_is_not_a_permission_is_not_told() -> None:
    other = request("elicitation/create", message="name?")
    assert OUTPUT.request("s", "r-1", other) == []
    assert OUTPUT.request_resolved("s", "r-1", other, None, None) == []


def test_a_permission_under_its_early_name_is_told() -> None:
    assert OUTPUT.request("s", "r-1", request("request_permission", options=OPTIONS))


def test_the_end_of_a_turn_is_told_after_its_error() -> None:
    (ended,) = map(
        json.loads, OUTPUT.turn_ended("s", "completed", {"seq": 3, "nth": 1, "time": 7, "stopReason": "refusal"})
    )
    assert (ended["type"], ended["stopReason"], ended["timestamp"]) == ("turn_complete", "refusal", 7)
    failed, ended = map(json.loads, OUTPUT.turn_ended("s", "error", failed_with(-32000, "log in")))
    assert (failed["type"], failed["code"], failed["message"], failed["requestType"]) == (
        "error",
        -32000,
        "log in",
        "send_message",
    )
    assert (ended["type"], ended["stopReason"]) == ("turn_complete", None)


def test_an_error_says_what_it_answers() -> None:
    event = json.loads(OUTPUT.failure("s", -32001, "Session not found", "cancel_turn", {"sessionId": "s"}))
    assert event == {
        "type": "error",
        "sessionId": "s",
        "timestamp": 5000,
        "code": -32001,
        "message": "Session not found",
        "requestType": "cancel_turn",
        "data": {"sessionId": "s"},
    }
    assert json.loads(OUTPUT.failure(None, -32700, "not JSON")).keys() == {
        "type",
        "sessionId",
        "timestamp",
        "code",
        "message",
    }


# Any sequence of updates


def strings() -> st.SearchStrategy[str]:
    return st.text(max_size=3)


VALUES = st.none() | st.integers(-3, 3) | strings() | st.just({"a": [1]})
KEYS = st.sampled_from(["c1", "c2"])
SESSIONS = st.sampled_from(["s", "s", "s", "child"])
STATUSES = st.sampled_from(["pending", "in_progress", "completed", "failed"])
CONTENTS = st.lists(st.sampled_from([DIFF, TERMINAL]), max_size=2)
TOOL_MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "title": strings(),
    "kind": st.sampled_from(["read", "edit"]),
    "rawInput": VALUES,
    "locations": st.just([{"path": "/a"}]),
    "status": STATUSES,
    "content": CONTENTS,
    "rawOutput": VALUES,
}


def fixed(kind: str, required: dict[str, Any], optional: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"sessionUpdate": st.just(kind), **required}, optional=optional or {})


BLOCKS = st.builds(lambda said: {"type": "text", "text": said}, strings()) | st.just({"type": "image", "data": "A"})
UPDATES = st.one_of(
    *(
        fixed(kind, {"content": BLOCKS})
        for kind in ("agent_message_chunk", "user_message_chunk", "agent_thought_chunk")
    ),
    *(fixed(kind, {"toolCallId": KEYS}, TOOL_MEMBERS) for kind in ("tool_call", "tool_call_update")),
    fixed("plan", {"entries": st.lists(st.just(ENTRIES[0]), max_size=2)}),
    fixed("current_mode_update", {"currentModeId": strings()}),
    fixed("available_commands_update", {"availableCommands": st.just([{"name": "a"}])}),
    fixed("usage_update", {"used": st.integers(0, 9), "size": st.just(9)}),
    fixed("config_option_update", {"configOptions": st.just([])}),
    fixed("tomorrow", {"n": VALUES}),
)


class State:
    """A session as its user sees it."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.tools: dict[str, dict[str, Any]] = {}
        self.last: dict[str, Any] = {}
        """The plan, the mode, and so on."""
        self.unknown: list[Any] = []

    def say(self, role: str, said: Any) -> None:
        """Add to the last message where it goes on."""
        if isinstance(said, str) and self.messages and self.messages[-1][0] == role:
            last = self.messages[-1]
            if isinstance(last[1], str):
                last[1] += said
                return
        self.messages.append([role, said])


def of_updates(updates: list[tuple[str, dict[str, Any]]]) -> State:
    """The state after updates, by the rules of ACP."""
    state = State()
    roles = {"agent_message_chunk": "assistant", "user_message_chunk": "user", "agent_thought_chunk": "thought"}
    states = {
        "plan": ("plan", "entries"),
        "current_mode_update": ("mode", "currentModeId"),
        "available_commands_update": ("commands", "availableCommands"),
        "usage_update": ("usage", "used"),
        "config_option_update": ("config", "configOptions"),
    }
    for session, update in updates:
        kind = update["sessionUpdate"]
        if session != "s":
            state.unknown.append((session, update))
        elif kind in roles:
            block = update["content"]
            state.say(roles[kind], block["text"] if block["type"] == "text" else block)
        elif kind in ("tool_call", "tool_call_update"):
            if kind == "tool_call":
                state.tools[update["toolCallId"]] = {"title": "", "kind": "other", "rawInput": None, "locations": []}
            tool = state.tools.setdefault(update["toolCallId"], {})
            tool |= {name: value for name, value in update.items() if value is not None and name in TOOL_MEMBERS}
            if update.get("status") in ("completed", "failed"):
                tool["result"] = next(
                    (update[it] for it in ("rawOutput", "content") if update.get(it) is not None), tool.get("rawOutput")
                )
        elif kind in states:
            name, member = states[kind]
            state.last[name] = update[member]
        else:
            state.unknown.append((None, update))
    return state


def of_events(events: list[dict[str, Any]]) -> State:
    """The state that a widget has after events."""
    state = State()
    names = {"toolName": "title", "arguments": "rawInput", "result": "rawOutput"}
    members = {"toolName", "kind", "arguments", "locations", "status", "content", "result"}
    for event in events:
        match event["type"]:
            case "message_chunk":
                state.say(event["role"], event.get("block", event["content"]))
            case "tool_call_started" | "tool_call_updated" | "tool_call_completed" as kind:
                if kind == "tool_call_started":
                    state.tools[event["toolCallId"]] = {}
                tool = state.tools.setdefault(event["toolCallId"], {})
                given = {name: value for name, value in event.items() if name in members}
                if kind == "tool_call_completed":
                    result = given.pop("result")
                    tool["result"] = tool.get("rawOutput") if result is None else result
                    if result is not None and result != given.get("content"):
                        tool["rawOutput"] = result
                tool |= {
                    names.get(name, name): value
                    for name, value in given.items()
                    if value is not None or kind == "tool_call_started"
                }
            case "plan_created":
                state.last["plan"] = event["entries"]
            case "mode_changed":
                state.last["mode"] = event["modeId"]
            case "commands":
                state.last["commands"] = event["availableCommands"]
            case "usage":
                state.last["usage"] = event["used"]
            case "config":
                state.last["config"] = event["configOptions"]
            case "unknown_update":
                state.unknown.append((event.get("sub"), event["raw"]))
            case kind:
                assert kind == "terminal_output"
    return state


@given(st.lists(st.tuples(SESSIONS, UPDATES), max_size=12), st.integers(1, 4))
@effort(150)
def test_a_widget_that_folds_the_events_has_the_state_of_the_updates(
    updates: list[tuple[str, dict[str, Any]]], piece: int
) -> None:
    messages = [message(update, session) for session, update in updates]
    events: list[dict[str, Any]] = []
    for start in range(0, len(messages), piece):
        some = messages[start : start + piece]
        events += map(json.loads, OUTPUT.updates("s", some, start + 1, [7] * len(some)))
    assert {event["sessionId"] for event in events} <= {"s"}
    assert {event["type"] for event in events} <= set(EVENTS)
    expected, found = of_updates(updates), of_events(events)
    assert vars(found) == vars(expected)


@given(st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(strings(), inner), max_leaves=8))
@effort(100)
def test_any_update_becomes_events_that_are_known(update: Any) -> None:
    for event in map(json.loads, OUTPUT.updates("s", [message(update)], 1, [None])):
        assert (event["type"] in EVENTS, event["sessionId"], event["timestamp"]) == (True, "s", 0)


# The document

DOCUMENT = (Path(__file__).parents[3] / "docs/dialects-reference.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, str]:
    """The members that the table below a heading names, by type."""
    part = DOCUMENT.partition("## Chat bridge\n")[2].partition("\n## ")[0]
    rows = part.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    return dict(re.findall(r"^\| `([a-z_]+)` \| (.*?) ?\|", rows, re.MULTILINE))


def test_the_document_names_each_event_and_no_other() -> None:
    assert table("From the gateway").keys() == set(EVENTS)


def test_the_document_names_the_members_of_each_event_that_widgets_send() -> None:
    rows = table("To the gateway")
    assert rows.keys() == chat.TYPES.keys()
    for kind, cell in rows.items():
        named = {name: not optional for name, optional in re.findall(r"(\w+)(\??)", cell)}
        assert named == {name: member.required for name, member in chat.TYPES[kind].members.items()}, kind


def test_the_document_names_the_members_of_each_event() -> None:
    events = [event for update in SAMPLES for event in told(update)]
    events += map(json.loads, OUTPUT.request("s", "r", request(options=OPTIONS)))
    events += map(json.loads, OUTPUT.request_resolved("s", "r", request(options=OPTIONS), "ann", "Yes"))
    events += map(json.loads, OUTPUT.turn_ended("s", "error", failed_with(1, "m")))
    rows = table("From the gateway")
    named = {kind: dict(re.findall(r"`(\w+)(\??)`", cell)) for kind, cell in rows.items()}
    for event in events:
        members = event.keys() - {"type", "sessionId", "timestamp"}
        assert members <= named[event["type"]].keys(), event
        assert {name for name, optional in named[event["type"]].items() if not optional} <= members, event
    assert {event["type"] for event in events} == set(EVENTS) - {"session_created", "session_loaded"}


SAMPLES: list[dict[str, Any]] = [
    text("agent_message_chunk", "a", messageId="m"),
    {"sessionUpdate": "user_message_chunk", "content": {"type": "image", "data": "A"}},
    CALL,
    {**CALL, "status": "pending", "content": [TERMINAL], "rawOutput": 1},
    {**CHANGE, "content": [{**TERMINAL, "exitStatus": {"exitCode": 1}}]},
    {**CHANGE, "status": "completed", "content": [DIFF]},
    {"sessionUpdate": "plan", "entries": ENTRIES},
    {"sessionUpdate": "current_mode_update", "currentModeId": "plan"},
    {"sessionUpdate": "available_commands_update", "availableCommands": []},
    {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": None},
    {"sessionUpdate": "config_option_update", "configOptions": []},
    {"sessionUpdate": "tomorrow"},
]
