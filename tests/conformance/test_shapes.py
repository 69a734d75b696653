"""Shapes of ACP objects: those of the fixtures are right, and each missing or wrong member is a fault."""

from typing import Any

import pytest

from acp_conformance.client_script import load_fixture
from acp_conformance.dialogue import Line
from acp_conformance.new_shapes import info_fault, new_permission_fault, new_update_fault
from acp_conformance.shapes import (
    block_fault,
    is_absolute,
    message_fault,
    outcome_fault,
    paths_in,
    permission_fault,
    update_fault,
)
from tests.conformance.dialogues import fixture_names


@pytest.mark.parametrize("name", [name for name in fixture_names() if not name.startswith("new-")])
def test_every_message_of_a_fixture_has_the_specified_form(name: str) -> None:
    for line in load_fixture(name):
        assert message_fault(line) == ""
        assert all(map(is_absolute, paths_in(line)))
        if line.update:
            assert update_fault(line.update) == ""
        if line.method == "session/request_permission":
            assert permission_fault(line.params) == ""


@pytest.mark.parametrize("name", [name for name in fixture_names() if name.startswith("new-")])
def test_every_message_of_a_fixture_of_version_2_has_the_specified_form(name: str) -> None:
    for line in load_fixture(name):
        assert message_fault(line) == ""
        assert all(map(is_absolute, paths_in(line)))
        if line.update:
            assert new_update_fault(line.params) == ""
        if line.method == "session/request_permission":
            assert new_permission_fault(line.params) == ""
        if line.method == "initialize":
            assert info_fault(line.params) == ""


@pytest.mark.parametrize(
    "text",
    [
        b"x",
        b'{"id":1,"result":null}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":1.5,"result":null}',
        b'{"jsonrpc":"2.0","id":true,"result":null}',
        b'{"jsonrpc":"2.0","method":"a","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        b'{"jsonrpc":"2.0","id":1,"error":null}',
    ],
)
def test_a_line_that_is_not_a_message_of_json_rpc_has_a_fault(text: bytes) -> None:
    assert message_fault(Line(False, text)) != ""


@pytest.mark.parametrize("block", [None, {}, {"type": "text"}, {"type": "text", "text": 1}, {"type": ["text"]}])
def test_a_content_block_without_its_members_has_a_fault(block: Any) -> None:
    assert block_fault(block) != ""


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"sessionUpdate": "tool_call", "toolCallId": "a"},
        {"sessionUpdate": "tool_call", "toolCallId": "a", "title": "t", "status": "done"},
        {"sessionUpdate": "plan", "entries": [{"content": "a"}]},
        {"sessionUpdate": "available_commands_update", "availableCommands": [1]},
        {"sessionUpdate": "usage_update", "used": True, "size": 1},
    ],
)
def test_an_update_without_the_members_of_its_kind_has_a_fault(update: dict[str, Any]) -> None:
    assert update_fault(update) != ""


def test_an_outcome_has_to_select_an_option_that_was_offered() -> None:
    params = {"options": [{"optionId": "a"}]}
    assert outcome_fault({"outcome": {"outcome": "cancelled"}}, params) == ""
    assert outcome_fault({"outcome": {"outcome": "selected", "optionId": "a"}}, params) == ""
    assert "'b' was not offered" in outcome_fault({"outcome": {"outcome": "selected", "optionId": "b"}}, params)
    assert outcome_fault(None, params) != ""


@pytest.mark.parametrize(
    ("path", "absolute"), [("/a", True), ("C:\\a", True), ("a", False), ("~/a", False), ("\\a", False), (None, False)]
)
def test_paths_of_any_system_are_recognized_as_absolute(path: object, absolute: bool) -> None:
    assert is_absolute(path) is absolute
