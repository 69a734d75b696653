"""The step that reads an object of ACP as a struct."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from acp_gateway.acp.reading import ABSENT, Shape, elements, string


class Inner(Shape, frozen=True):
    text: str | None = None


class Outer(Shape, frozen=True):
    some_name: str | None = None
    inner: Inner = Inner()
    raw: Raw = ABSENT


read = Outer.read

NAMES = st.sampled_from(["someName", "inner", "raw", "text", "other"])
TEXTS = st.text() | st.text("\\ud\n\ud83d\ude00\U0001f600", max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


def plain(value: Any) -> Any:
    """Return what a parsed value says, read in the slow and obvious way."""
    members = value if isinstance(value, dict) else {}
    inner = members.get("inner")
    text = inner.get("text") if isinstance(inner, dict) else None
    name = members.get("someName")
    raw = (members["raw"],) if "raw" in members else ()
    return name if isinstance(name, str) else None, text if isinstance(text, str) else None, raw


def told(found: Outer) -> Any:
    raw = (json.loads(bytes(found.raw)),) if bytes(found.raw) else ()
    return found.some_name, found.inner.text, raw


@given(VALUES, st.booleans())
def test_each_member_of_its_type_is_read_and_any_other_is_absent(value: Any, spaced: bool) -> None:
    text = json.dumps(value, indent=1 if spaced else None).encode()
    assert told(read(text)) == plain(value)


@given(
    st.binary(max_size=40)
    | st.sampled_from(['{"someName":"a"', '{"inner":{"text":"\\ud83d"', '"', "", "{"]).map(
        lambda it: it if isinstance(it, bytes) else it.encode()
    )
)
def test_what_is_not_json_says_nothing_and_raises_nothing(text: bytes) -> None:
    try:
        value = json.loads(text)
    except ValueError:
        assert told(read(text)) == (None, None, ())
    else:
        assert told(read(text)) == plain(value)


def test_a_json_text_stays_as_it_is_beside_a_lone_surrogate() -> None:
    raw = rb'["\ud83d", "\\ud83d\\\uD83D\ude00", "\u00ff", "\n"]'
    found = read(b'{"someName":"\\ud83d","inner":{"text":7},"raw": %b }' % raw)
    assert (found.some_name, found.inner, bytes(found.raw)) == ("\ud83d", Inner(), raw)
    assert read(b'{"someName":"\\ud83d","inner":{"text":"\xff"}}') == Outer(), "it is not UTF-8"


def test_nothing_is_read_of_what_is_nested_too_deeply() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert read(b'{"someName":"a","raw":%b}' % deep) == read(b'{"inner":"\\ud83d","raw":%b}' % deep) == Outer()


def test_a_member_is_read_beside_many_others() -> None:
    others = ",".join(f'"{number}":0' for number in range(100_000))
    assert read(b'{%b,"someName":"a"}' % others.encode()).some_name == "a"


def test_a_wrong_byte_in_a_string_makes_that_member_absent() -> None:
    assert read(b'{"someName":"\xff","inner":{"text":"b"}}') == Outer(None, Inner("b"))


def test_the_elements_of_an_array_are_read_up_to_a_number() -> None:
    array = b'[{"text":"a"},7,{"text":"\\ud83d"}]'
    assert [one.text for one in Inner.each(array)] == ["a", None, "\ud83d"]
    assert Inner.each(array, 2) == Inner.each(b'{"text":"a"}') == Inner.each(ABSENT) == []
    assert elements(b"[1, 2") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"a\\n"', "a\n"),
        (b'"\\ud83d"', "\ud83d"),
        (b' "a"', "a"),
        (b'"\xff"', None),
        (b'"a', None),
        (b"7", None),
        (b"null", None),
        (b"", None),
    ],
)
def test_only_a_string_is_read_as_a_string(text: bytes, expected: str | None) -> None:
    assert string(text) == string(Raw(text)) == expected
