"""Members of messages: found by name and by path, verbatim, also beside a lone surrogate."""

import pytest

from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.text import lookup


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (b'{"method":"a/b"}', "a/b"),
        (rb' {"m\u0065thod" : "\u0061"} ', "a"),
        (b'{"method":"a","method":"b"}', "b"),
        (rb'{"a":"\ud83d","\uD83D":"\\\\ud","method":"x"}', "x"),
        (b'{"Method":"a"}', ""),
        (b'{"method":7}', ""),
        (b"{}", ""),
        (b'["method"]', ""),
        (b'"method"', ""),
    ],
)
def test_the_method_is_that_which_a_parser_finds(text: bytes, method: str) -> None:
    assert lookup.method_of(text) == method


@pytest.mark.parametrize(
    "text",
    [b"", b"x", b'{"a":', b"{} {}", b'{"a":"\\q"}', b'{"a":"\\ud8"}', b'{"a":NaN}', b"[" * 100_000, b'{"a":"\n"}'],
    ids=lambda text: text[:10],
)
def test_what_is_not_json_or_too_deep_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        lookup.method_of(text)


@pytest.mark.parametrize(
    ("text", "members"),
    [
        (b'{"params":{"a":"x", "b" : 1.0}}', {"a": b'"x"', "b": b"1.0"}),
        (rb'{"params":{"\ud83d":1,"b":"\ud83d"}}', {"\ud83d": b"1", "b": rb'"\ud83d"'}),
        (b'{"params":[1]}', {}),
        (rb'{"params":"\ud83d"}', {}),
        (b"{}", {}),
    ],
)
def test_the_members_of_params_are_there_verbatim(text: bytes, members: dict[str, bytes]) -> None:
    message = parse(text[:-1] + (b"," if len(text) > 2 else b"") + b'"method":"x"}')
    assert {name: bytes(value) for name, value in lookup.params_of(message).items()} == members
    assert lookup.params_of(message) is lookup.params_of(message)


def test_a_string_is_found_by_its_path() -> None:
    text = rb'{"params":{"cwd":"\/srv/\ud83d","n":1,"o":{}}}'
    assert lookup.text_at(text, "params", "cwd") == "/srv/\ud83d"
    assert lookup.text_at(text, "params", "n") is None
    assert lookup.text_at(text, "params", "missing") is None
    assert lookup.text_at(text, "params", "n", "deeper") is None


def test_a_value_is_found_by_its_path_verbatim() -> None:
    text = b'{"params":{ "requestId" : 1.0 }}'
    assert lookup.raw_at(text, "params", "requestId") == b"1.0"
    assert lookup.raw_at(text, "params", "missing") is None


def test_a_path_through_what_is_not_an_object_leads_nowhere() -> None:
    for value in (b"1", b"[]", b"null", b'"x"'):
        assert lookup.raw_at(b'{"params":{"n":%b}}' % value, "params", "n", "deeper") is None


def test_a_path_into_a_text_with_a_lone_surrogate_is_found_all_the_same() -> None:
    text = rb'{"params":{ "x":"\ud83d", "deep" : {"n":[1.10]} }}'
    assert lookup.raw_at(text, "params", "deep", "n") == b"[1.10]"
    assert lookup.raw_at(text, "params", "missing") is None


def test_the_members_of_an_object_are_found_by_its_path_verbatim() -> None:
    text = rb' {"a":1,"result":{ "modes" : {"x":1.10} ,"\u0041":[ ],"s":"\ud83d"}}'
    assert lookup.members_at(text, "result") == {"modes": b'{"x":1.10}', "A": b"[ ]", "s": rb'"\ud83d"'}
    assert list(lookup.members_at(text)) == ["a", "result"]
    for path in (("a",), ("missing",), ("result", "A"), ("result", "s", "deeper")):
        assert lookup.members_at(text, *path) == {}


def test_of_a_repeated_member_the_last_one_is_a_member() -> None:
    assert lookup.members_at(b'{"a":1,"a":2}') == {"a": b"2"}


def test_the_elements_of_an_array_are_found_verbatim() -> None:
    assert lookup.elements_of(b'[ 1.10 ,{"a":[1,2]}, "x" ]') == [b"1.10", b'{"a":[1,2]}', b'"x"']
    assert lookup.elements_of(b"[ ]") == []


@pytest.mark.parametrize("text", [b"", b"  ", b"7", b"[]", b" 7"])
def test_what_is_not_an_object_has_no_members(text: bytes) -> None:
    assert lookup.members_of(text) == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (b'{"code":-32601,"message":"no"}', -32601),
        (b'{"message":"no","code":-3.2601e4}', -32601),
        (b'{"code":"-32601"}', None),
        (b'{"code":1.5}', None),
        (b"{}", None),
        (b"[-32601]", None),
    ],
)
def test_the_code_of_an_error_is_read_in_any_spelling(error: bytes, code: int | None) -> None:
    assert lookup.error_code(parse(b'{"id":1,"error":%b}' % error)) == code
