"""Members of requests, by type."""

from collections.abc import Callable
from typing import Any

import pytest

from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.text.members import (
    MAX_TEXTS,
    SESSION_ID_SIZE,
    TEXT_SIZE,
    Member,
    Unfit,
    read_array,
    read_count,
    read_flag,
    read_id,
    read_members,
    read_object,
    read_session,
    read_text,
    read_texts,
    request_key,
)


@pytest.mark.parametrize(
    ("read", "raw", "expected"),
    [
        (read_text, rb'"a\u00e9"', "aé"),
        (read_session, b'"s"', "s"),
        (read_count, b"7.0", 7),
        (read_flag, b"true", True),
        (read_texts, b'["a","b"]', ("a", "b")),
        (read_array, b"[1]", b"[1]"),
        (read_object, b"{}", b"{}"),
        (read_id, b"-1e3", b"-1e3"),
    ],
)
def test_a_member_of_its_type_is_read(read: Callable[[bytes], Any], raw: bytes, expected: Any) -> None:
    assert read_members({"a": raw}, {"a": Member(read)}, "call") == {"a": expected}


@pytest.mark.parametrize(
    ("read", "raw", "why"),
    [
        (read_text, b"1", "a must be a string"),
        (read_text, b'"%b"' % (b"x" * (TEXT_SIZE + 1)), f"a has at most {TEXT_SIZE} characters"),
        (read_session, b'"%b"' % (b"x" * (SESSION_ID_SIZE + 1)), f"a has at most {SESSION_ID_SIZE} characters"),
        (read_count, b"-1", "a must be a whole number from 0 on"),
        (read_flag, b"0", "a must be true or false"),
        (read_texts, b"{}", "a must be an array of strings"),
        (read_texts, b"[1]", "a must be a string"),
        (read_texts, b"[%b]" % b",".join([b'""'] * (MAX_TEXTS + 1)), "a can't be read"),
        (read_array, b"{}", "a must be an array"),
        (read_object, b"[]", "a must be an object"),
        (read_id, b"[]", "a must be a string or a number"),
        (read_id, b'"%b"' % (b"x" * 1024), "a has at most 1024 bytes"),
        (read_text, b"null", "call needs a"),
    ],
)
def test_an_unfit_member_is_named_with_what_it_must_be(read: Callable[[bytes], Any], raw: bytes, why: str) -> None:
    with pytest.raises(Unfit) as raised:
        read_members({"a": raw}, {"a": Member(read)}, "call")
    assert str(raised.value) == why


def test_an_optional_member_may_be_missing_or_null_and_others_are_passed_over() -> None:
    members = {"a": Member(read_text, False), "b": Member(read_text, False)}
    assert read_members({"a": b"null", "c": b"1"}, members, "call") == {}


@pytest.mark.parametrize(
    ("raw_id", "key"), [(b"7", "7"), (b'"7"', "7"), (b'"a"', "a"), (b"null", "null"), (b"1.5", "1.5")]
)
def test_a_number_and_the_text_of_its_digits_are_the_same_request(raw_id: bytes, key: str) -> None:
    assert request_key(RawId(raw_id)) == key
