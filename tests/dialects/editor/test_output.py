"""Dialogues of what an editor is told of a turn, and that it adds up to the updates of the agent."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.editor.output import (
    NO_RESPONSE,
    Completion,
    TurnLines,
    commands_in,
    failure,
    failure_of,
    session,
    stop_reason_of,
)
from acp_gateway.protocol import jsonrpc

Json = dict[str, Any]


def updating(update: Any, session_id: Any = "s") -> bytes:
    params = {"sessionId": session_id, "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def text(content: Any, kind: str = "agent_message_chunk", **more: Any) -> Json:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": content, **more}}


TOOL: Json = {
    "sessionUpdate": "tool_call",
    "toolCallId": "t",
    "title": "Read a.py",
    "kind": "read",
    "status": "pending",
    "locations": [{"path": "/a.py"}],
    "rawInput": {"path": "/a.py"},
}
DONE: Json = {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed", "content": [], "_meta": {}}


@pytest.mark.parametrize(
    ("update", "line"),
    [
        (text("hi"), {"type": "text", "content": "hi"}),
        (text(""), {"type": "text", "content": ""}),
        (text('"\n\u2028\U0001f600'), {"type": "text", "content": '"\n\u2028\U0001f600'}),
        (text("hi", annotations={"a": 1}), {"type": "text", "content": "hi"}),
        (TOOL, {"type": "tool", **TOOL}),
        (DONE, {"type": "tool", **DONE}),
        (TOOL | {"type": "done", "seq": 99, "stopReason": "x"}, {"type": "tool", **TOOL, "stopReason": "x"}),
        (text("hi", "agent_thought_chunk"), None),
        (text("hi", "user_message_chunk"), None),
        ({"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "data": "x"}}, None),
        ({"sessionUpdate": "agent_message_chunk", "content": {"type": "text"}}, None),
        ({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": 7}}, None),
        ({"sessionUpdate": "agent_message_chunk", "content": "hi"}, None),
        ({"sessionUpdate": "plan", "entries": []}, None),
        ({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}, None),
        ({"sessionUpdate": "available_commands_update", "availableCommands": []}, None),
        ({"sessionUpdate": "usage_update", "used": 1, "size": 2}, None),
        ({"sessionUpdate": "something_new"}, None),
        ({}, None),
        (None, None),
        ([], None),
        ("text", None),
    ],
)
def test_an_update_and_its_line(update: Any, line: Json | None) -> None:
    lines = TurnLines("s")
    told = lines.update(updating(update))
    assert (None if told is None else json.loads(told)) == (None if line is None else {**line, "seq": 1})
    # What is not told leaves no gap.
    assert json.loads(lines.done("end_turn"))["seq"] == (1 if line is None else 2)


@pytest.mark.parametrize("session_id", ["s2", None, 7, ["s"]])
def test_an_update_of_another_session_is_not_told(session_id: Any) -> None:
    lines, completion = TurnLines("s"), Completion("s")
    assert lines.update(updating(text("secret"), session_id)) is None
    assert lines.update(updating(TOOL, session_id)) is None
    completion.update(updating(text("secret"), session_id))
    assert completion.size == 0


def test_a_line_of_an_agent_that_writes_line_ends_stays_one_line() -> None:
    update = updating(TOOL).replace(b', "', b',\r\n"')
    line = TurnLines("s").update(update)
    assert line is not None
    assert (line.count(b"\n"), line.count(b"\r"), line[-1:]) == (1, 0, b"\n")
    assert json.loads(line) == {"type": "tool", **TOOL, "seq": 1}


def test_a_permission_has_the_agents_own_options() -> None:
    params = {"sessionId": "s", "toolCall": {"toolCallId": "t"}, "options": [{"optionId": "yes"}], "other": 1}
    request = jsonrpc.parse(json.dumps({"id": 1, "method": "session/request_permission", "params": params}).encode())
    line = json.loads(TurnLines("s").permission("k1", request))
    assert line == {
        "type": "permission",
        "requestId": "k1",
        "toolCall": {"toolCallId": "t"},
        "options": [{"optionId": "yes"}],
        "seq": 1,
    }


def test_a_line_of_text_says_where_a_permission_is_answered() -> None:
    line = json.loads(TurnLines("s").where_to_answer("s1"))
    assert (line["type"], line["seq"]) == ("text", 1)
    assert "`acp-gateway chat`" in line["content"]
    assert "session s1" in line["content"]


def test_the_last_line_is_the_end_or_an_error() -> None:
    lines = TurnLines("s")
    assert json.loads(lines.done("max_tokens")) == {"type": "done", "stopReason": "max_tokens", "seq": 1}
    assert json.loads(lines.error("no login")) == {"type": "error", "message": "no login", "seq": 2}


def completed(completion: Completion) -> Json:
    found: Json = json.loads(completion.body("1", 2, "demo"))
    return found


def test_a_completion_has_all_text_and_nothing_else() -> None:
    completion = Completion("s")
    for update in (text("a", "user_message_chunk"), text('b"'), TOOL, text("c", "agent_thought_chunk"), text("d\n")):
        completion.update(updating(update))
    found = completed(completion)
    assert (found["id"], found["object"], found["created"], found["model"]) == (
        "acp-1",
        "chat.completion",
        2,
        "acp:demo",
    )
    assert found["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": 'b"d\n'}, "finish_reason": "stop"}
    ]
    assert set(found["usage"].values()) == {0}


def test_a_completion_without_text_says_so() -> None:
    assert completed(Completion("s"))["choices"][0]["message"]["content"] == NO_RESPONSE


def test_a_character_that_an_agent_has_cut_in_two_is_whole_in_a_completion() -> None:
    completion = Completion("s")
    for half in ("\ud83d", "\ude00"):
        completion.update(updating(text(half)))
    assert completed(completion)["choices"][0]["message"]["content"] == "\U0001f600"


_words = st.text(max_size=5)
_contents = st.one_of(
    st.builds(lambda word: {"type": "text", "text": word}, _words),
    st.builds(lambda word: {"type": "image", "data": word}, _words),
    st.just({"type": "text"}),
    st.just({"type": "text", "text": 7}),
    st.none(),
)
_kinds = st.sampled_from(["agent_message_chunk", "agent_thought_chunk", "user_message_chunk"])
_states = st.sampled_from(["pending", "in_progress", "completed", "failed"])
_updates = st.one_of(
    st.builds(lambda kind, content: {"sessionUpdate": kind, "content": content}, _kinds, _contents),
    st.builds(
        lambda new, key, status, more: {
            "sessionUpdate": "tool_call" if new else "tool_call_update",
            "toolCallId": key,
            "status": status,
            **more,
        },
        st.booleans(),
        st.sampled_from("ab"),
        _states,
        st.dictionaries(st.sampled_from(["title", "rawInput", "type", "seq", "_meta"]), _words | st.none()),
    ),
    st.builds(
        lambda kind: {"sessionUpdate": kind, "secret": "foreign"}, st.sampled_from(["plan", "usage_update", "new"])
    ),
    st.none(),
)
_messages = st.lists(st.tuples(_updates, st.sampled_from(["s", "s", "s", "child", None])), max_size=12)


@given(_messages)
def test_the_lines_of_any_updates_add_up_to_their_fold(messages: list[tuple[Json | None, str | None]]) -> None:
    """The fold is made from the updates themselves: the text, and the last of each member of each tool call."""
    spoken = ""
    tools: dict[str, Json] = {}
    for update, of in messages:
        if of != "s" or update is None:
            continue
        content = update.get("content")
        if update["sessionUpdate"] == "agent_message_chunk" and content is not None and content["type"] == "text":
            spoken += content["text"] if isinstance(content.get("text"), str) else ""
        if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
            members = {name: value for name, value in update.items() if name not in ("type", "seq")}
            tools.setdefault(update["toolCallId"], {}).update(members)
    lines, completion = TurnLines("s"), Completion("s")
    told: list[bytes] = []
    for update, of in messages:
        line = lines.update(updating(update, of))
        told += [] if line is None else [line]
        completion.update(updating(update, of))
    found = list(map(json.loads, told))
    assert [line["seq"] for line in found] == list(range(1, len(found) + 1))
    assert {line["type"] for line in found} <= {"text", "tool"}
    assert "".join(line["content"] for line in found if line["type"] == "text") == spoken
    heard: dict[str, Json] = {}
    for line in found:
        if line["type"] == "tool":
            members = {name: value for name, value in line.items() if name not in ("type", "seq")}
            heard.setdefault(line["toolCallId"], {}).update(members)
    assert heard == tools
    assert b"foreign" not in b"".join(told)
    assert completed(completion)["choices"][0]["message"]["content"] == (spoken or NO_RESPONSE)


def test_the_commands_are_those_of_the_last_update() -> None:
    commands = [{"name": "plan", "description": "Make a plan"}]
    states = [
        updating({"sessionUpdate": "available_commands_update", "availableCommands": commands}),
        updating({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}),
    ]
    assert json.loads(commands_in(states) or b"") == commands
    assert commands_in(states[1:]) is None
    assert commands_in([updating({"sessionUpdate": "available_commands_update", "availableCommands": 7})]) is None


def test_the_answers_that_are_objects() -> None:
    assert json.loads(session("s", commands=b"[]")) == {"sessionId": "s", "commands": []}
    assert json.loads(failure("no")) == {"error": True, "message": "no"}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"code": -32000, "message": "Authentication required"}, "Authentication required"),
        ({"code": -32603, "message": "Internal error", "data": {"details": "no disk"}}, "Internal error: no disk"),
        ({"code": -32603}, "the agent has failed"),
    ],
)
def test_the_text_of_an_error_of_the_agent(error: Json, message: str) -> None:
    assert failure_of(jsonrpc.parse(json.dumps({"id": 1, "error": {"message": "", **error}}).encode())) == message


def test_the_reason_of_the_end_is_the_agents() -> None:
    def response(result: Any) -> jsonrpc.Message:
        return jsonrpc.parse(json.dumps({"id": 1, "result": result}).encode())

    assert stop_reason_of(response({"stopReason": "refusal"})) == "refusal"
    assert stop_reason_of(response({})) == "end_turn"
