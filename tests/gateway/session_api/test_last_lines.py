"""The last line that was said in a session."""

import json

import pytest

from acp_gateway.gateway.session_api.last_lines import last_line


def update(kind: str, session: str = "s", **members: object) -> bytes:
    params = {"sessionId": session, "update": {"sessionUpdate": kind, **members}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def said(text: str, kind: str = "agent_message_chunk", session: str = "s") -> bytes:
    return update(kind, session, content={"type": "text", "text": text})


TOOL = update("tool_call", toolCallId="t", title="make test")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], ""),
        ([said("One.\nTwo.\n")], "Two."),
        ([said("One.\nTw"), said("o and"), said(" more.")], "Two and more."),
        ([said("Do it.", "user_message_chunk")], "Do it."),
        ([said("Do it.", "user_message_chunk"), said("Yes.")], "Yes."),
        ([said("I test."), TOOL], "make test"),
        ([said("I test."), TOOL, update("tool_call_update", toolCallId="t", status="completed")], "make test"),
        ([TOOL, said("Passed.")], "Passed."),
        ([said("Yes."), update("agent_thought_chunk", content={"type": "text", "text": "Hm."})], "Yes."),
        ([said("Yes."), update("usage_update", used=1, size=2)], "Yes."),
        ([said("Yes."), said("No.", session="sub")], "Yes."),
        ([said("Yes."), update("agent_message_chunk", content={"type": "image", "data": ""})], "Yes."),
        ([said("Yes."), said("x" * 70_000)], "Yes."),
        ([said("Yes."), b'{"params": {"sessionId": "s", "update": {"sessionUpdate": []}}}'], "Yes."),
        ([said("Yes."), b"[1]", b"{", b'{"params": {"sessionId": "s", "update": []}}'], "Yes."),
    ],
)
def test_the_last_line_is_what_was_said_or_done_last(messages: list[bytes], expected: str) -> None:
    assert last_line(reversed(messages), "s") == expected


def test_of_a_long_line_the_end_is_told() -> None:
    assert last_line([said("a" * 500 + "b" * 200)], "s") == "b" * 200


@pytest.mark.parametrize(("count", "line"), [(3, "Yes."), (5, "")])
def test_a_line_before_many_bytes_of_other_updates_is_not_looked_for(count: int, line: str) -> None:
    output = update("tool_call_update", toolCallId="t", rawOutput="x" * 60_000)
    assert last_line([*[output] * count, said("Yes.")], "s") == line
