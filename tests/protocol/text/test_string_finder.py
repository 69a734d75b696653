"""Strings at known places of a message."""

import json
from enum import Enum, auto
from typing import Any

import pytest

from acp_gateway.protocol.text import string_finder
from acp_gateway.protocol.text.spans import MalformedJson, TooMany
from acp_gateway.protocol.text.string_finder import StringFinder


class Word(Enum):
    NAME = auto()
    LINK = auto()


def text(message: Any) -> bytes:
    return json.dumps(message).encode()


def found(finder: StringFinder, message: Any) -> list[tuple[Enum, str]]:
    return [(kind, value) for kind, value, *_ in finder.find(text(message))]


def test_a_finder_returns_the_strings_in_these_places_in_order_and_no_others() -> None:
    finder = StringFinder({"x": {"a": [{"name": Word.NAME}], "b": (Word.LINK, {"uri": Word.LINK})}})
    message = {"method": "x", "params": {"b": "1", "a": [{"name": "\ud83d"}, {"other": "2"}, 3, {"name": 4}]}}
    assert found(finder, message) == [(Word.LINK, "1"), (Word.NAME, "\ud83d")]
    assert found(finder, {"method": "x", "params": {"b": {"uri": "5"}}}) == [(Word.LINK, "5")]
    assert found(finder, {"method": "y", "params": {"b": "1"}}) == []
    assert found(finder, {"result": {"b": "1"}}) == []


def test_an_empty_array_has_no_strings() -> None:
    finder = StringFinder({"x": {"a": [Word.NAME], "b": Word.NAME}})
    assert found(finder, {"method": "x", "params": {"a": [], "b": "1"}}) == [(Word.NAME, "1")]


def test_each_string_has_its_span() -> None:
    message = b'{"result" : {"a" : "x\\u0041"}}'
    ((_, value, start, end),) = StringFinder({}, {"a": Word.NAME}).find_all(message)
    assert (value, message[start:end]) == ("xA", b'"x\\u0041"')


def test_of_a_message_that_has_too_many_strings_the_first_are_found_or_none() -> None:
    finder = StringFinder({"x": {"a": [Word.NAME]}})
    message = {"method": "x", "params": {"a": ["1"] * 2000}}
    assert found(finder, message) == [(Word.NAME, "1")] * 1000
    with pytest.raises(TooMany):
        finder.find_all(text(message))


def test_the_cost_of_a_walk_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = StringFinder({"x": {"a": [Word.NAME]}})
    message = {"method": "x", "params": {"a": ["1"] * 900}}
    assert len(found(finder, message)) == 900
    monkeypatch.setattr(string_finder, "_COST", 100)
    assert 0 < len(found(finder, message)) < 900


@pytest.mark.parametrize(
    "message", [b'{"method":"x"', b'{"method":"x","params":{"a":["1",]}}', b'{"params":{"a":"\xff"}']
)
def test_a_broken_message_is_an_error_or_has_what_stands_before(message: bytes) -> None:
    finder = StringFinder({"x": {"a": [Word.NAME]}})
    assert finder.find(message) in ([], [(Word.NAME, "1", 26, 29)])
    with pytest.raises(MalformedJson):
        finder.find_all(message)


def test_what_is_behind_the_message_is_not_part_of_it() -> None:
    assert StringFinder({"x": {"a": Word.NAME}}).find_all(b'{"method":"x","params":{"a":"1"}} {}') == []
