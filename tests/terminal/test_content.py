"""Content of any quality, as plain values."""

import pytest
from hypothesis import given

from acp_gateway.terminal.content import (
    INPUT_SIZE,
    block_text,
    describe_input,
    read_entries,
    read_locations,
    read_options,
    read_tool_content,
)
from tests.fuzz.effort import effort
from tests.kit.updates import json_values


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "text", "text": "a\nb"}, "a\nb"),
        ({"type": "image", "mimeType": "image/png", "data": "AA=="}, "[image image/png]"),
        ({"type": "audio"}, "[audio]"),
        ({"type": "resource_link", "name": "shop.py", "uri": "file:///shop.py"}, "[shop.py]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "x"}}, "[file:///a]"),
        (None, "[unknown content]"),
    ],
)
def test_a_content_block_is_its_text_or_a_description(block: object, text: str) -> None:
    assert block_text(block) == text


def test_the_content_of_a_tool_call_is_diffs_and_text() -> None:
    diff = {"type": "diff", "path": "/a", "oldText": None, "newText": "x"}
    items = [{"type": "content", "content": {"type": "text", "text": "t"}}, diff, {"type": "terminal"}, 3]
    read = read_tool_content(items)
    assert (read.diffs, read.text, read.end) == ([("/a", "", "x", "")], "t", "")


def test_the_input_of_a_tool_is_its_command_or_json_in_one_line() -> None:
    assert describe_input({"command": " make\ttest\n"}) == "make test"
    assert describe_input({"command": "ls\nrm x"}) == r"ls\nrm x"
    assert describe_input({"command": ["ls", "-l"]}) == "ls -l"
    assert describe_input({"path": "/ä\x1b"}) == '{"path": "/ä\\u001b"}'
    assert describe_input({"command": "x" * INPUT_SIZE}) == "x" * INPUT_SIZE
    assert describe_input({"command": "x" * INPUT_SIZE + "; rm -r /"}) == "x" * INPUT_SIZE + "…"
    assert (describe_input(None), describe_input({}), describe_input([]), describe_input("")) == ("", "", "", "")


@given(json_values)
@effort(30)
def test_any_value_is_read_without_an_error(value: object) -> None:
    assert isinstance(block_text(value), str)
    assert describe_input(value).isprintable()
    assert len(describe_input(value)) <= INPUT_SIZE * 10
    for read in (read_tool_content, read_locations, read_entries, read_options):
        read(value)
        read([value])
