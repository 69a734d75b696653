"""The positions of JSON values: they agree with a JSON parser, and broken text is always noticed."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acp_gateway.protocol.text.spans import (
    MalformedJson,
    Member,
    count,
    elements,
    find,
    members,
    repeated_member,
    skip_space,
    splice,
    string_beginning,
    string_value,
    value_end,
)
from tests.fuzz.effort import effort

texts = st.text(st.characters(codec="utf-8") | st.sampled_from('\\"/\n\t{}[],:\u2028\x00'), max_size=8)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)
spaces = st.sampled_from(["", " ", "\n\t", "\r\n  "])
around = {"space": spaces, "comma": spaces, "colon": spaces, "ascii_only": st.booleans()}


def dump(value: Any, space: str, comma: str, colon: str, ascii_only: bool) -> bytes:
    separators = (f"{comma},{space}", f"{colon}:{space}")
    text = json.dumps(value, ensure_ascii=ascii_only, separators=separators, indent=len(space) or None)
    return f"{space}{text}{space}".encode()


@given(json_values, st.fixed_dictionaries(around))
def test_a_value_ends_where_a_parser_says(value: Any, style: dict[str, Any]) -> None:
    text = dump(value, **style)
    start = skip_space(text, 0)
    end = value_end(text + b"]", start)
    assert json.loads(text[start:end]) == value
    assert skip_space(text, end) == len(text)


@effort(40)
@given(st.dictionaries(texts, json_values), st.fixed_dictionaries(around))
def test_members_are_those_that_a_parser_sees(value: dict[str, Any], style: dict[str, Any]) -> None:
    text = dump(value, **style)
    seen = [(string_value(name), json.loads(text[start:end])) for name, start, end in members(text)]
    assert seen == list(value.items())


@effort(40)
@given(st.lists(json_values), st.fixed_dictionaries(around))
def test_elements_are_those_that_a_parser_sees(value: list[Any], style: dict[str, Any]) -> None:
    text = dump(value, **style)
    assert [json.loads(text[start:end]) for start, end in elements(text)] == value


@given(texts, texts, json_values, st.fixed_dictionaries(around))
def test_find_follows_names_as_a_parser_does(outer: str, inner: str, value: Any, style: dict[str, Any]) -> None:
    text = dump({"": 0, outer: {"x": [], inner: value}}, **style)
    span = find(text, outer, inner)
    assert span is not None
    assert json.loads(text[slice(*span)]) == value


json_like = st.lists(
    st.sampled_from(list('{}[],:"\\ -+.019eEtruefalsn\n\x00')) | st.sampled_from(['"a"', "true", "null", '"a":1,']),
    max_size=12,
).map("".join)


def parses(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def is_one_value(text: bytes) -> bool:
    try:
        return skip_space(text, value_end(text, skip_space(text, 0))) == len(text)
    except MalformedJson:
        return False


@given(json_like.filter(lambda text: "\\" not in text))
@example("1.")
@example("01")
@example("-")
@example('{"a":1,}')
@example("[1,]")
@example("[,1]")
@example('{"a" 1}')
@example('{"a":}')
@example("{1:1}")
@example("[1 2]")
@example("[}")
@example('{"a":1]')
@example("NaN")
@example('"\n"')
@example("tru")
@example("")
def test_text_is_whole_json_exactly_when_a_parser_takes_it(text: str) -> None:
    assert is_one_value(text.encode()) is parses(text)


@given(json_values)
def test_text_cut_off_anywhere_is_malformed(value: Any) -> None:
    text = json.dumps([value]).encode()
    for length in range(len(text)):
        with pytest.raises(MalformedJson):
            value_end(text[:length], 0)


@given(st.binary(max_size=30) | json_like.map(str.encode), st.integers(0, 40))
@example(b'{"\xff\\n":1}', 0)
@example(b'{"\\q":1}', 0)
@example(b'{"a\\', 0)
def test_broken_text_raises_nothing_but_malformed_json(text: bytes, start: int) -> None:
    def walk(what: Any) -> None:
        try:
            what()
        except MalformedJson:
            pass

    walk(lambda: value_end(text, start))
    walk(lambda: list(members(text, start)))
    walk(lambda: list(elements(text, start)))
    walk(lambda: find(text, "a", "b"))
    walk(lambda: repeated_member(text))
    walk(lambda: string_value(text))
    assert skip_space(text, start) >= min(start, len(text))


@given(st.integers(0, 40), st.lists(st.integers(0, 5000), max_size=12), st.integers(0, 3000))
def test_a_character_is_counted_in_long_texts_as_in_short_ones(dense: int, gaps: list[int], rest: int) -> None:
    text = b":" * dense + b"".join(b"x" * gap + b":" for gap in gaps) + b"x" * rest
    assert count(text, b":") == dense + len(gaps)


@pytest.mark.parametrize("text", [b"{", b'{"a":1', b'{"a":1 "b":2}', b'{"a":1]', b"[1]", b"1", b"", b'{"a":1,}'])
def test_walking_the_members_of_what_is_not_a_whole_object_is_malformed(text: bytes) -> None:
    with pytest.raises(MalformedJson):
        list(members(text))


@pytest.mark.parametrize("text", [b"[", b"[1", b"[1 2]", b"[1}", b'{"a":1}', b'"a"', b"", b"[1,]", b'["\\\x01"]'])
def test_walking_the_elements_of_what_is_not_a_whole_array_is_malformed(text: bytes) -> None:
    with pytest.raises(MalformedJson):
        list(elements(text))


def test_spans_count_bytes_and_names_stay_verbatim() -> None:
    text = '{"ключ\\u0020": "ü" , "b":{}}'.encode()
    first, second = members(text)
    assert first == Member('"ключ\\u0020"'.encode(), 19, 23)
    assert text[first.start : first.end] == '"ü"'.encode()
    assert text[second.start : second.end] == b"{}"


def test_a_walk_can_begin_inside_a_text() -> None:
    text = b'[ 1, {"a": [2, 3]}]'
    assert [text[slice(*span)] for span in elements(text)] == [b"1", b'{"a": [2, 3]}']
    (member,) = members(text, 4)
    assert [text[slice(*span)] for span in elements(text, member.start)] == [b"2", b"3"]


@pytest.mark.parametrize("behind", [b"", b" " * 100_000])
def test_hundreds_of_levels_are_read_and_of_thousands_it_is_said(behind: bytes) -> None:
    for levels, opening, closing in ((500, b"[", b"]"), (500, b'{"a":', b"}")):
        nested = opening * levels + b"1" + closing * levels
        assert value_end(nested + behind, 0) == len(nested)
        with pytest.raises(MalformedJson):
            value_end(nested[:-1] + behind, 0)
    with pytest.raises(MalformedJson):
        value_end(b"[" * 100_000 + b"]" * 100_000 + behind, 0)


@pytest.mark.parametrize("piece", [b"x", b"\\n", b"\\u00e9", b"\xff"])
def test_a_huge_string_is_one_value(piece: bytes) -> None:
    text = b'{"a":"' + piece * 500_000 + b'","b":[]}'
    assert [(text[start], end - start) for _, start, end in members(text)] == [
        (ord('"'), 2 + 500_000 * len(piece)),
        (ord("["), 2),
    ]


@pytest.mark.parametrize("count", [511, 512, 513, 514, 5000])
def test_any_number_of_scalars_may_stand_in_a_row(count: int) -> None:
    array = json.dumps([-1.5e300] * count).encode()
    assert value_end(array, 0) == len(array)
    items = json.dumps({str(number): "x" for number in range(count)}).encode()
    assert value_end(items, 0) == len(items)
    assert value_end(b"[%b]" % items, 0) == len(items) + 2
    with pytest.raises(MalformedJson):
        value_end(array[:-1] + b",]", 0)


def test_lone_surrogates_survive_decoding_and_pairs_are_joined() -> None:
    assert string_value(rb'"\ud83d"') == "\ud83d"
    assert string_value(rb'"\ud83d\ude00"') == "\U0001f600"


@pytest.mark.parametrize(
    "raw", [b"a", b'"a', b'"a" ', b'"a""b"', b"1", b'"\xff"', rb'"\x41"', rb'"\u12"', b'"\n"', b""]
)
def test_only_one_whole_string_can_be_decoded(raw: bytes) -> None:
    with pytest.raises(MalformedJson):
        string_value(raw)


@pytest.mark.parametrize("escaped", [rb"\\n", rb"\u00e9", rb"\ud83d\ude00", rb"\ud83d", b"\xff", rb"\x41"])
def test_a_large_string_is_decoded_as_a_small_one(escaped: bytes) -> None:
    beginning = b"x" * 20_000
    try:
        small = string_value(b'"' + escaped + b'"')
    except MalformedJson:
        with pytest.raises(MalformedJson):
            string_value(b'"' + beginning + escaped + b'"')
    else:
        assert string_value(b'"' + beginning + escaped + b'"') == beginning.decode() + small


def test_the_beginning_of_a_string_ends_before_an_escape_that_is_cut_off() -> None:
    raw = b'"' + b"x" * 10 + rb"\u00e9\\n" + b'"'
    for size in range(1, len(raw) + 1):
        assert string_value(raw).startswith(string_beginning(raw, size))
    assert string_beginning(raw, len(raw)) == string_value(raw)
    assert string_beginning(raw, 12) == "x" * 10


def test_find_takes_the_last_of_repeated_members() -> None:
    text = rb'{"a": {"b": 1}, "\u0061": {"b": 2, "b": 3}}'
    span = find(text, "a", "b")
    assert span is not None
    assert text[slice(*span)] == b"3"


@pytest.mark.parametrize("names", [("x",), ("a", "x"), ("b", "x"), ("c", "x"), ("a", "d", "x")])
def test_find_returns_nothing_where_there_is_no_such_path(names: tuple[str, ...]) -> None:
    assert find(rb'{"a": {"d": "x"}, "b": ["x"], "c": "x", "\u0079": 1}', *names) is None


def test_find_without_names_is_the_whole_value() -> None:
    assert find(b" [1] ") == (1, 4)


def test_find_knows_names_with_lone_surrogates() -> None:
    assert find(rb'{"\ud83d": 1}', "\ud83d") is not None


def test_splice_replaces_spans_given_in_any_order() -> None:
    assert splice(b"0123456789", [(8, 10, b"ij"), (0, 1, b""), (4, 4, b"+"), (4, 6, b"xyz")]) == b"123+xyz67ij"


def test_splice_without_edits_gives_the_same_text() -> None:
    assert splice(b"abc", []) == b"abc"


@pytest.mark.parametrize("edits", [[(0, 2, b""), (1, 3, b"")], [(3, 2, b"")], [(9, 11, b"")], [(-1, 2, b"")]])
def test_splice_refuses_edits_that_overlap_or_leave_the_text(edits: list[tuple[int, int, bytes]]) -> None:
    with pytest.raises(ValueError, match="overlap"):
        splice(b"0123456789", edits)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"id": 1, "method": "a", "id": 2}', "id"),
        (b'{"method": "a", "Method": "b"}', "Method"),
        (rb'{"method": "a", "m\u0065thod": "b"}', "method"),
        (b'{"params": {"sessionId": "a", "sessionid": "b"}}', "sessionid"),
        (b'{"PARAMS": {"a": 1, "a": 1}}', "a"),
        ('{"stra\u00dfe": 1, "STRASSE": 1}'.encode(), "STRASSE"),
        (b'{"id": 1, "params": {"a": {"x": 1, "x": 2}}, "result": {"y": 1, "y": 2}}', None),
        (b'{"params": {"id": 1}, "id": 2}', None),
        (b'{"params": [{"a": 1, "a": 2}]}', None),
        (b"[]", None),
        (b"{}", None),
    ],
)
def test_repeated_members_are_found_at_the_top_and_directly_in_params(text: bytes, name: str | None) -> None:
    assert repeated_member(text) == name


@pytest.mark.parametrize("text", [b"", b"{", b'{"a":1', b"[", b'{"params": {"a": 1 "b": 2}}', b'{"\xff": 1}'])
def test_repeated_members_are_not_looked_for_in_broken_text(text: bytes) -> None:
    with pytest.raises(MalformedJson):
        repeated_member(text)
