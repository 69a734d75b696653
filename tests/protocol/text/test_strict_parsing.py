"""A message and its repeated members in one pass: the same as in two."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol.jsonrpc import InvalidMessage, parse
from acp_gateway.protocol.text import lookup, spans, strict_parsing
from tests.fuzz.effort import effort
from tests.protocol.json_documents import SCALARS, STRINGS, documents, mutated


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"id":1,"params":{"a":1,"b":2}}', None),
        (b'{"id":1, "params":{"a":1}}', None),
        (b'{"id":1,"params":{"a":1,"A":2}}', "A"),
        (b'{"id":1,"params":{"a":1,"a":2}}', "a"),
        (b'{"id":1,"PARAMS":{"a":1,"a":2}}', "a"),
        (b'{"id":1,"ID":2}', "ID"),
        (b'{"id":1,"id":2}', "id"),
        (b'{"id":1,"params":[{"a":1,"a":2}]}', None),
        (rb'{"id":1,"x":"\ud83d","X":2}', "X"),
        (rb'{"id":1,"x":"\ud83d"}', None),
    ],
)
def test_a_member_that_is_there_twice_is_named(text: bytes, name: str | None) -> None:
    assert strict_parsing.repeated_member(text) == name


def read_strictly(text: bytes) -> Any:
    """Return the result of `parse_strictly`, without the members that it keeps."""
    try:
        message, repeated = strict_parsing.parse_strictly(text)
    except InvalidMessage as error:
        return error.code, str(error)
    if message.params is not None:
        assert {name: bytes(raw) for name, raw in message.params.items()} == lookup.members_at(text, "params")
    return msgspec.structs.replace(message, params=None), repeated


def read_twice(text: bytes) -> Any:
    """The same, one after the other."""
    try:
        return parse(text), strict_parsing.repeated_member(text)
    except InvalidMessage as error:
        return error.code, str(error)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"sessionId":"s","a":[1,{"a":1,"a":2}]}}', True),
        ('{"method":"x","params":{"é":"é"},"id":"é"}'.encode(), True),
        (b'{"method":"x","params":{}}', True),
        (rb'{"method":"x","params":{"sessionId":"\u0073","a":"\u00e9"}}', True),
        (b'{"id":1,"method":"x"}', False),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}', False),
        (b'{"jsonrpc":"2.0","id":1,"error":{}}', False),
        (b'\t{ "id" : "a b" , "method" : "x y" , "params" : { "a b" : [ 1, "c  d" ] , "b":2 } }\r\n', True),
        (b'{"jsonrpc": "2.0", "id": 1, "result": {"a": " 1"}}', False),
    ],
)
def test_what_a_message_is_and_that_no_member_is_there_twice_takes_one_look(
    text: bytes, params: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_twice(text)
    assert expected[1] is None
    monkeypatch.delattr(strict_parsing, "parse")
    monkeypatch.delattr(strict_parsing, "repeated_member")
    assert read_strictly(text) == expected
    assert (strict_parsing.parse_strictly(text)[0].params is not None) is params


@pytest.mark.parametrize(("count", "kept"), [(64, True), (65, False)])
def test_so_many_members_that_they_would_take_more_than_the_text_are_not_kept_with_a_message(
    count: int, kept: bool
) -> None:
    members = ",".join(f'"{number}":1' for number in range(count))
    message, repeated = strict_parsing.parse_strictly(f'{{"id":1,"method":"x","params":{{{members}}}}}'.encode())
    assert (message.params is not None, repeated) == (kept, None)


def test_params_of_more_than_512_short_members_are_refused() -> None:
    members = b",".join(b'"%d":1' % number for number in range(2000))
    with pytest.raises(InvalidMessage, match="512 members"):
        strict_parsing.parse_strictly(b'{"id":1,"method":"x","params":{%b}}' % members)


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":1,"method":"x","id":1}',
        b'{"id":1,"method":"x","ID":1}',
        rb'{"id":1,"method":"x","\u0069d":1}',
        b'{"id":1,"method":"x","params":{"a":1},"params":{"a":2}}',
        b'{"id":1,"method":"x","params":{"a":1},"Params":{"a":2}}',
        b'{"id":1,"method":"x","Params":{"a":1,"a":2}}',
        b'{"id":1,"method":"x","params":{"a":1,"a":2}}',
        b'{"id":1,"method":"x","params":{"a":1,"A":2}}',
        '{"id":1,"method":"x","params":{"s":1,"\u017f":2}}'.encode(),
        b'{"id":1,"method":"x","_meta":{}}',
        b' {"id":1,"method":"x"}',
        b'{"id":1, "method":"x", "id":1}',
        b'{"id":1, "method":"x", "i d":1}',
        rb'{"id":1, "\u0069d":2, "method":"x"}',
        b'{"id":1, "method":"x", "params":{"a": 1, "a":2}}',
        b'{"id":1, "method":"x", "params":{"a": 1, "A":2}}',
        rb'{"id":1, "method":"x\u0020y", "params":{"a\tb": 1}}',
        rb'{"id":1,"method":"x\/y","params":{}}',
        rb'{"id":1,"method":"\ud83d","params":{"\ud83d":1}}',
        rb'{"id":1,"method":"x","params":{"sessionId":"\ud83d"}}',
        b'{"id":1,"method":"x","params":{"sessionId":7}}',
        b'{"id":1,"method":"x","params":{"sessionId":null}}',
        b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan"}}}',
        b'{"id":1,"method":"x","params":[1]}',
        b'{"id":1,"method":"x","params":null}',
        b'{"id":[1],"method":"x","params":{}}',
        b'{"id":1,"method":7,"params":{}}',
        b'{"id":1,"params":{}}',
        b'{ "params":{}}',
        b"{}",
        b"[]",
        b'{"id":1,"method":"x","params":{"a":"\xff"}}',
        b'{"id":1,"method":"x","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"id":1,',
    ],
    ids=lambda text: repr(text[:60]),
)
def test_the_strict_way_of_reading_says_what_two_looks_say(text: bytes) -> None:
    assert read_strictly(text) == read_twice(text)


spaces = st.sampled_from([b"", b"", b" ", b"\r\n"])
simple_values = st.sampled_from([*SCALARS, b'{"a":1,"a":[]}', b"[]"])
simple_params = st.lists(
    st.tuples(spaces, st.sampled_from([b'"sessionId"', b'"SessionId"', b'"update"', *STRINGS]), simple_values),
    max_size=3,
).map(lambda parts: b"{%b}" % b",".join(b"%b%b:%b" % part for part in parts))
simple = st.lists(
    st.tuples(
        st.sampled_from([b'"id"', b'"method"', b'"params"', b'"jsonrpc"', b'"result"', b'"error"', b'"ID"']),
        simple_values | simple_params,
        spaces,
    ),
    max_size=5,
).map(lambda parts: b"{%b}" % b",".join(b"%b:%b%b" % part for part in parts))


@effort(200)
@given(simple | documents | mutated())
def test_the_strict_way_of_reading_any_text_says_what_two_looks_say(text: bytes) -> None:
    assert read_strictly(text) == read_twice(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"a":1,"b":[2]}', {"a": b"1", "b": b"[2]"}),
        (b' { "a" : 1 } ', {"a": b"1"}),
        (rb'{"\u0061":"\ud83d"}', {"a": rb'"\ud83d"'}),
        (b"{}", {}),
        (b'{"a":{"b":1,"b":2}}', {"a": b'{"b":1,"b":2}'}),
        (b"[1]", "not an object"),
        (b' "a" ', "not an object"),
        (b"", "not JSON: Input data was truncated"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b'{"a":1,"a":2}', "the member 'a' is repeated"),
        (b'{"a":1,"A":2}', "the member 'A' is repeated"),
        (rb'{"a":1,"\u0061":2}', "the member 'a' is repeated"),
        (rb'{"a":"\ud83d","A":2}', "the member 'A' is repeated"),
        (b'{"a":1,}', "not JSON: JSON is malformed: trailing comma in object (byte 7)"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "nested too deeply"),
        (json.dumps(dict.fromkeys(map(str, range(513)))).encode(), "an object has more than 512 members"),
    ],
)
def test_the_members_of_an_object_are_read_once_each(text: bytes, expected: Any) -> None:
    found: Any
    try:
        found = {name: bytes(value) for name, value in strict_parsing.members_strictly(text).items()}
    except InvalidMessage as error:
        found = str(error)
    assert found == expected


@given(mutated() | documents)
@effort(100)
def test_members_that_are_read_strictly_are_those_that_are_looked_up(text: bytes) -> None:
    try:
        found = strict_parsing.members_strictly(text)
    except InvalidMessage:
        return
    assert {name: bytes(value) for name, value in found.items()} == lookup.members_at(text)


@pytest.mark.parametrize("space", [b"", b" "])
def test_an_object_of_more_members_than_are_read_has_none(space: bytes) -> None:
    members = [b'"%0100d":%b1' % (number, space) for number in range(spans.MEMBERS + 1)]
    assert len(strict_parsing.members_strictly(b"{%b}" % b",".join(members[1:]))) == spans.MEMBERS
    with pytest.raises(InvalidMessage):
        strict_parsing.members_strictly(b"{%b}" % b",".join(members))
