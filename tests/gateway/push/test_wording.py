"""Words for what an agent asks for, from the request and the tool call."""

from typing import Any

import pytest

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.gateway.push.wording import words_of
from acp_gateway.protocol.jsonrpc import encode, parse
from acp_gateway.protocol.methods import Audience


def asked(call: dict[str, Any] | None = None, **params: Any) -> AgentRequest:
    """A permission for a tool call."""
    told = {"sessionId": "s", "toolCall": {"toolCallId": "c1"} | (call or {}), "options": []} | params
    message = parse(encode({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": told}))
    return AgentRequest(message, Audience.CONTROLLERS, None, 0.0)


def told(kind: str = "tool_call", /, *, call: str = "c1", **members: Any) -> bytes:
    """An update of a tool call."""
    update = {"sessionUpdate": kind, "toolCallId": call} | members
    return encode({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})


def words(request: AgentRequest, *updates: bytes) -> str | None:
    return words_of(request, reversed(updates))


def test_a_request_that_says_all_needs_no_tool_call() -> None:
    assert words(asked({"title": "Edit a.py"}), told(title="something else")) == "Edit a.py"


def test_what_a_request_leaves_out_is_taken_from_what_was_told_last_of_its_tool_call() -> None:
    updates = [
        told(title="bash", rawInput={"command": "rm x"}),
        told("tool_call_update", title="Remove a file", rawInput={"command": "rm y"}),
        told("tool_call_update", status="pending"),
        told(call="c2", title="of another call"),
    ]
    assert words(asked(), *updates) == "Remove a file: rm y"
    assert words(asked({"title": "Run"}), *updates) == "Run: rm y"
    assert words(asked({"rawInput": {"command": "ls"}}), *updates) == "Remove a file: ls"


def test_an_earlier_tool_call_of_the_same_id_is_another_one() -> None:
    assert words(asked(), told(title="earlier", rawInput={"command": "ls"}), told(title="now")) == "now"


def test_a_command_that_the_title_has_is_not_repeated() -> None:
    assert words(asked({"title": "Run `ls  -l a`", "rawInput": {"command": "ls -l\n a"}})) == "Run `ls  -l a`"


@pytest.mark.parametrize(
    ("input_", "command"),
    [
        ({"cmd": "ls"}, "ls"),
        ({"command": ["ls", "-l", 7, None]}, "ls -l"),
        ({"command": [], "cmd": "pwd"}, "pwd"),
        ({"command": 7}, None),
        ({"command": ["a"] * 100_000}, "…"),
        ("ls", None),
    ],
)
def test_a_command_is_a_text_or_an_array_and_one_too_long_to_read_is_cut(input_: Any, command: str | None) -> None:
    assert words(asked(), told(rawInput=input_)) == command


def test_without_a_title_the_kind_stands_for_it() -> None:
    assert words(asked(), told("tool_call_update", kind="edit")) == "edit"
    assert words(asked()) is None


def test_a_form_has_its_own_words() -> None:
    assert words(asked(toolCall=None, message="Which branch?")) == "Which branch?"


def test_texts_that_only_mention_the_tool_call_say_nothing_of_it() -> None:
    updates = [told("agent_message_chunk", title="a lie"), told(call="c2", title="c1"), b'{"params":{"update":"c1"}}']
    assert words(asked(), *updates) is None
