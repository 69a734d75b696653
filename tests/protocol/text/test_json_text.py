"""Members of a message are read and edited, while the rest stays as it was."""

import json

import pytest

from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.text import json_text, strict_parsing
from acp_gateway.protocol.text.json_text import Beginning, Envelope
from acp_gateway.protocol.text.spans import MalformedJson

BROKEN = [b"", b"junk", b"[]", b'"id"', b"\xff", b'{"id":1', b'{"id":1,"\xff":2}', b'{"id":1,"method":7}']


# Envelopes


@pytest.mark.parametrize(
    ("message", "envelope"),
    [
        (b'{"id":1,"method":"m"}', Envelope(b"1", "m", False)),
        (b' { "method" : "m" , "id" : 1.0 } ', Envelope(b"1.0", "m", False)),
        (b'{"\\u0069d":"\\u0031","\\u006dethod":"a\\/b"}', Envelope(b'"\\u0031"', "a/b", False)),
        (b'{"method":"n","params":{"id":1,"error":2}}', Envelope(None, "n", False)),
        (b'{"id":null,"result":{"method":"m"}}', Envelope(b"null", None, False)),
        (b'{"id":1,"error":{}}', Envelope(b"1", None, True)),
        (b'{"id":1,"result":1,"error":null}', Envelope(b"1", None, False)),
        (b'{"id":1,"id":2}', Envelope(b"2", None, False)),
        (b"{}", json_text.NOTHING),
    ],
)
def test_an_envelope_is_what_stands_at_the_top(message: bytes, envelope: Envelope) -> None:
    assert json_text.read_envelope(message) == envelope


LARGE = b'{"update":{"text":"' + b"x" * 300 + b'"}}'


@pytest.mark.parametrize(
    ("message", "beginning"),
    [
        (b'{"jsonrpc":"2.0","id":4,"method":"m","params":{"sessionId":"s","prompt":%b}}', Beginning(b"4", "m", "s")),
        (b'{"method":"m","params":{"_meta":{"sessionId":"x"},"sessionId":"s","a":%b}}', Beginning(None, "m", "s")),
        (b'{"method":"m","params":{"prompt":%b,"sessionId":"s"},"id": "a" } ', Beginning(b'"a"', "m", None)),
        (b'{"id":7,"result":%b}', Beginning(b"7", None, None)),
        (b'{"result":%b,"id":7}', Beginning(b"7", None, None)),
        (b'{"method":"m","params":{"id":7,"a":%b,"id":8}}', Beginning(None, "m", None)),
        (b'{"id":{},"method":"m","params":%b}', Beginning(None, "m", None)),
        (b'{"method":"m","params":{"sessionId":7,"a":%b}}', Beginning(None, "m", None)),
        (b'{"id":"\xff","result":%b}', Beginning(None, None, None)),
        (b'{"result":%b,"id":"\xff"}', Beginning(None, None, None)),
        (b"[%b]", Beginning(None, None, None)),
        (b"%b", Beginning(None, None, None)),
    ],
)
def test_the_names_in_a_message_are_found_at_its_two_ends(message: bytes, beginning: Beginning) -> None:
    text = message % LARGE
    assert json_text.read_beginning(text[:150], text[-30:]) == beginning
    assert json_text.read_beginning(text, text[-30:])[:2] == beginning[:2]


@pytest.mark.parametrize("message", [b'{"id":7,"params":%b,"method":"m"}', b'{"params":%b,"method":"m","id":7}'])
def test_a_request_with_its_method_behind_what_is_large_is_not_a_response(message: bytes) -> None:
    text = message % LARGE
    assert json_text.read_beginning(text[:150], text[-30:]) == Beginning(b"7", "", None)


@pytest.mark.parametrize("text", [b"", b"{", b'{"id"', b'{"id":', b'{"id":1', b'{"method":"\\u', b'{"method":"\xff"}'])
def test_a_beginning_that_is_not_a_message_has_no_names(text: bytes) -> None:
    assert json_text.read_beginning(text, b"") == Beginning(None, None, None)


@pytest.mark.parametrize("message", BROKEN)
def test_what_is_not_a_message_has_no_envelope(message: bytes) -> None:
    assert json_text.read_envelope(message) is None


@pytest.mark.parametrize("raw_id", [b"null", b'""', b"0", b"-1", b"1e2"])
def test_strings_numbers_and_null_can_be_ids(raw_id: bytes) -> None:
    assert json_text.may_be_id(raw_id)


@pytest.mark.parametrize("raw_id", [b"{}", b"[1]", b"true", b"false"])
def test_other_values_can_not(raw_id: bytes) -> None:
    assert not json_text.may_be_id(raw_id)


VALID_IDS = [
    b'{"id":1,"method":"m"}',
    b'{"\\u0069d":"\\ud83d","method":"m","params":[1e999,{"id":2,"ID":3}],"other":1}',
    b'{"id":1,"method":"m","params":{"a":1,"A":2}}',
    b'{"id":1,"method":"m","method":"n"}',
    b'{"id":"%b","method":"m"}' % (b"x" * 1022),
]

INVALID_IDS = [
    b'{"id":1,"method":"m","Method":"n"}',
    b'{"id":1,"ID":1,"method":"m"}',
    b'{"id":1,"method":"m","params\\u0000x":{}}',
    b'{"id":1,"id":1,"method":"m"}',
    b'{"id":{},"method":"m"}',
    b'{"id":"%b","method":"m"}' % (b"x" * 1023),
    b'{"id":1,"method":"m","result":1}',
    b'{"id":1,"method":"m","error":null}',
    b'{"id":1,"method":"m","params":[NaN]}',
    b'{"id":1,"method":"m","params":[01]}',
    b'{"id":1,"method":"m"} x',
    b'{"id":1,"method":"m","params":{%b}}' % b",".join(b'"%d":0' % number for number in range(600)),
    b'{"id":1,"method":"m","params":%b}' % (b"[" * 100_000 + b"]" * 100_000),
    b'{"id":1',
]


def is_refused_under_null(message: bytes) -> bool:
    """Return True if the gateway does not answer a request under its id."""
    try:
        request, repeated = strict_parsing.parse_strictly(message)
    except jsonrpc.InvalidMessage:
        return True
    return len(request.id) > jsonrpc.ID_SIZE or (repeated or "").casefold() == "id"


@pytest.mark.parametrize("message", VALID_IDS)
def test_a_request_has_a_valid_id_if_the_gateway_answers_it_under_that(message: bytes) -> None:
    assert json_text.has_valid_id(message, json_text.raw_at(message, "id") or b"")
    assert not is_refused_under_null(message)


@pytest.mark.parametrize("message", INVALID_IDS)
def test_a_message_that_the_gateway_refuses_under_null_has_no_valid_id(message: bytes) -> None:
    assert not json_text.has_valid_id(message, json_text.raw_at(message, "id") or b"1")
    assert is_refused_under_null(message)


def test_the_ids_of_requests_and_of_responses_are_told_apart() -> None:
    messages = [b'{"id":1,"method":"m"}', b'{"id":"2","result":1}', b'{"method":"n"}', b"junk", b'{"id":3,"error":{}}']
    assert json_text.ids_in(messages) == ({b"1"}, {b'"2"', b"3"})


# Values


NESTED = b'{ "a": {"b" :[1.10, "x"] , "c":"\\u0064", "e":1e999} }'


def test_a_value_is_returned_as_it_is_spelled() -> None:
    assert json_text.raw_at(NESTED, "a", "e") == b"1e999"
    assert json_text.object_at(NESTED, "a") == b'{"b" :[1.10, "x"] , "c":"\\u0064", "e":1e999}'
    assert json_text.elements_at(NESTED, "a", "b") == {b"1.10", b'"x"'}


def test_a_string_is_decoded() -> None:
    assert json_text.text_at(NESTED, "a", "c") == "d"


@pytest.mark.parametrize("path", [("x",), ("a", "x"), ("a", "b", "x")])
def test_what_is_not_there_is_no_found(path: tuple[str, ...]) -> None:
    assert json_text.raw_at(NESTED, *path) is None
    assert json_text.text_at(NESTED, *path) is None
    assert json_text.object_at(NESTED, *path) == b"{}"
    assert json_text.elements_at(NESTED, *path) == set()


def test_what_is_of_another_kind_is_not_found() -> None:
    assert json_text.text_at(NESTED, "a", "e") is None
    assert json_text.object_at(NESTED, "a", "b") == b"{}"
    assert json_text.elements_at(NESTED, "a") == set()


@pytest.mark.parametrize("text", [b"", b"junk", b'{"a":', b'{"a":"x"', b'{"a\\q":1,"a":"x"}'])
def test_nothing_is_found_in_what_is_not_a_json(text: bytes) -> None:
    assert json_text.raw_at(text, "a") is None
    assert json_text.text_at(text, "a") is None


@pytest.mark.parametrize(("raw", "number"), [(b"0", 0), (b"41", 41), (b"-7", -7), (b"9" * 18, 10**18 - 1)])
def test_a_whole_number_is_one(raw: bytes, number: int) -> None:
    assert json_text.whole_number(raw) == number


@pytest.mark.parametrize("raw", [None, b"", b"-", b'"7"', b"7.0", b"7e0", b"null", b"1" + b"0" * 18, b"9" * 10_000])
def test_other_values_and_absurd_numbers_read_as_none(raw: bytes | None) -> None:
    assert json_text.whole_number(raw) is None


# Edits


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        (b"{}", b'{"n":1}'),
        (b" { } ", b' {"n":1 } '),
        (b'{ "a":1.10}', b'{"n":1, "a":1.10}'),
        (b'{"a":1e999 , "n" : {"x":2}, "b":3}', b'{"a":1e999 , "n" : 1, "b":3}'),
        (b'{"\\u006e":0}', b'{"\\u006e":1}'),
        (b'{"a":{"n":0}}', b'{"n":1,"a":{"n":0}}'),
    ],
)
def test_one_member_is_added_or_replaced_and_the_rest_stays(text: bytes, edited: bytes) -> None:
    assert json_text.with_member(text, "n", b"1") == edited


def test_a_name_is_encoded() -> None:
    assert json.loads(json_text.with_member(b"{}", 'ü"', b"1")) == {'ü"': 1}


def test_what_is_broken_is_not_edited() -> None:
    with pytest.raises(MalformedJson):
        json_text.with_member(b'{"a":', "n", b"1")


@pytest.mark.parametrize(
    ("params", "again"),
    [
        (b'{"_meta":{"acp-gateway":{"x":1} , "a":2}}', b'{"_meta":{"acp-gateway":7 , "a":2}}'),
        (b'{"b":1.10, "_meta":{"a":1e999}}', b'{"b":1.10, "_meta":{"acp-gateway":7,"a":1e999}}'),
        (b'{"_meta":null}', b'{"_meta":{"acp-gateway":7}}'),
        (b"{ }", b'{"_meta":{"acp-gateway":7} }'),
    ],
)
def test_only_the_gateways_own_member_of_the_meta_data_is_added_or_replaced(params: bytes, again: bytes) -> None:
    assert json_text.with_own_meta(params, b"7") == again


# Messages of our own


def test_an_error_has_the_id_as_it_was_spelled() -> None:
    assert json_text.error(b"1.0", -32601, "no") == (
        b'{"jsonrpc":"2.0","id":1.0,"error":{"code":-32601,"message":"no"}}'
    )


def test_an_error_may_have_a_reason() -> None:
    assert json.loads(json_text.error(b"1", -1, "no", "outage"))["error"]["data"] == {"reason": "outage"}


def test_what_can_not_be_utf8_is_escaped() -> None:
    assert json_text.encode(["\ud83d", "\u2028"]) == b'["\\ud83d","\\u2028"]'


@pytest.mark.parametrize(
    ("array", "strings"),
    [(b'["a",1,["b"],"\\u0063"]', ["a", "c"]), (b'{"a":"b"}', []), (b'"a"', []), (b'["a"', []), (b"[" * 100_000, [])],
)
def test_the_strings_in_an_array_are_its_own_elements(array: bytes, strings: list[str]) -> None:
    assert json_text.strings_in(array) == strings


def test_the_ends_of_a_message_tell_its_names() -> None:
    begun, ended = json_text.ends_of(b'{"id":1,"method":"m","params":{"x":"' + b"x" * 10**6 + b'"}}')
    assert len(begun + ended) < 10**5
    assert json_text.read_beginning(begun, ended)[:2] == (b"1", "m")
