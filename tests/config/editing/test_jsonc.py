"""Changing one member of a JSON file with comments: nothing else changes, whatever the file looks like."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.config.editing.jsonc import MAX_DEPTH, read_jsonc, set_member
from acp_gateway.errors import ConfigError

ENTRY = {"command": "/bin/x", "args": ["connect", "box"]}
PATH = ("agent_servers", "box")

ZED = """\
// Zed settings
{
    /* how it looks */
    "theme": "One", // dark
    "agent_servers": {
        "other": { "command": "y" }, // mine
    },
    "list": [1, 2.5e3, true, null,],
}
"""


def test_a_member_is_added_behind_the_others_and_every_comment_stays() -> None:
    assert set_member(ZED, PATH, ENTRY) == ZED.replace(
        '"other": { "command": "y" }, // mine\n',
        '"other": { "command": "y" }, // mine\n'
        '        "box": {\n            "command": "/bin/x",\n            "args": [\n                "connect",\n'
        '                "box"\n            ]\n        },\n',
    )


def test_a_member_that_is_there_is_replaced() -> None:
    text = '{\n  "agent_servers": {\n    "box": {"command": "old"}, // mine\n    "z": {}\n  }\n}\n'
    changed = set_member(text, PATH, {"command": "new"})
    assert changed == text.replace('{"command": "old"}', '{\n      "command": "new"\n    }')


def test_what_is_set_already_is_the_same_value_again() -> None:
    once = set_member(ZED, PATH, ENTRY)
    assert set_member(once, PATH, ENTRY) == once


def test_a_comma_is_added_before_a_comment_of_the_last_member() -> None:
    assert set_member('{\n  "a": 1 // one\n}\n', ("b",), {}) == '{\n  "a": 1, // one\n  "b": {}\n}\n'


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", '{\n  "a": {\n    "b": {}\n  }\n}\n'),
        ("\n", '{\n  "a": {\n    "b": {}\n  }\n}\n'),
        ("{}", '{\n  "a": {\n    "b": {}\n  }\n}'),
        ("{\n}\n", '{\n  "a": {\n    "b": {}\n  }\n}\n'),
        ('{"x": 1}', '{"x": 1,\n  "a": {\n    "b": {}\n  }\n}'),
        ('{\r\n\t"x": 1\r\n}\r\n', '{\r\n\t"x": 1,\r\n\t"a": {\r\n\t\t"b": {}\r\n\t}\r\n}\r\n'),
        ('\ufeff{"a": {}}', '\ufeff{"a": {\n    "b": {}\n  }}'),
        ("{ // empty\n}", '{ // empty\n  "a": {\n    "b": {}\n  }\n}'),
        ('{"a": {"b": 7}}', '{"a": {"b": {}}}'),
    ],
)
def test_files_of_all_forms_are_changed(text: str, changed: str) -> None:
    assert set_member(text, ("a", "b"), {}) == changed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "the whole is not an object"),
        ('{"agent_servers": 3}', "agent_servers is not an object"),
        ('{"agent_servers": {"box": {}, "box": {}}}', "stands there twice"),
        ('{"a": 1', "the end is unexpected in line 1"),
        ('{\n"a": 1 "b"}', "'\"' is unexpected in line 2"),
        ("{a: 1}", "'a' is unexpected"),
        ('{"a": 01}', "'1' is unexpected"),
        ('{"a": "\\x"}', "is unexpected"),
        ('{"\\x": 1}', "is unexpected"),
        ("{} {}", "'{' is unexpected"),
        ("{} /* open", "'/' is unexpected"),
        ('{"a": ' + "[" * (MAX_DEPTH + 1), "nested more than"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        set_member(text, PATH, ENTRY)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.lists(st.text(), min_size=1, max_size=3), st.integers(0, 4))
def test_any_settings_have_the_member_afterwards_and_all_others(
    settings: dict[str, Any], path: list[str], indent: int
) -> None:
    text = json.dumps(settings, indent=indent or None)
    expected = inner = json.loads(text)
    for name in path[:-1]:
        if not isinstance(inner.setdefault(name, {}), dict):
            with pytest.raises(ConfigError):
                set_member(text, path, ENTRY)
            return
        inner = inner[name]
    inner[path[-1]] = ENTRY
    assert read_jsonc(set_member(text, path, ENTRY)) == expected
