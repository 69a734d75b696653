"""Messages: what is one, what its envelope says, and that the rest of it is never touched."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acp_gateway.core.turns import updates
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import (
    INVALID_REQUEST,
    NO_ID,
    PARSE_ERROR,
    InvalidMessage,
    Kind,
    Message,
    RawId,
    parse,
)
from acp_gateway.protocol.text import strict_parsing
from tests.fuzz.effort import effort
from tests.protocol.json_documents import documents, mutated, pieces


def refusal(text: bytes) -> int:
    """The code that a text is refused with."""
    with pytest.raises(InvalidMessage) as raised:
        parse(text)
    return raised.value.code


# The three shapes


def test_a_request_has_an_id_and_a_method() -> None:
    text = b'{"jsonrpc":"2.0","id":7,"method":"session/new","params":{}}'
    assert parse(text) == Message(text, Kind.REQUEST, RawId(b"7"), "session/new")


def test_a_notification_has_a_method_and_no_id() -> None:
    text = b'{"jsonrpc":"2.0","method":"session/update","params":{}}'
    assert parse(text) == Message(text, Kind.NOTIFICATION, NO_ID, "session/update")


def test_a_response_has_an_id_and_a_result() -> None:
    text = b'{"jsonrpc":"2.0","id":7,"result":null}'
    assert parse(text) == Message(text, Kind.RESPONSE, RawId(b"7"), "")


def test_an_error_response_has_an_id_and_an_error() -> None:
    text = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}'
    assert parse(text) == Message(text, Kind.RESPONSE, NO_ID, "", error=True)


def test_an_error_that_is_null_beside_a_result_does_not_count() -> None:
    assert not parse(b'{"id":1,"result":{},"error":null}').error
    assert parse(b'{"id":1,"result":null,"error":{}}').error


def test_the_order_of_members_and_members_of_other_names_do_not_matter() -> None:
    message = parse(b'{"params":{"id":2,"method":"no"},"_meta":{"id":3},"method":"x","x":4,"id":1}')
    assert (message.kind, message.id, message.method) == (Kind.REQUEST, b"1", "x")


def test_of_a_repeated_member_the_last_counts() -> None:
    message = parse(b'{"id":1,"method":"a","id":2,"method":"b"}')
    assert (message.id, message.method) == (b"2", "b")


def test_names_are_read_unescaped() -> None:
    message = parse(rb'{"\u0069d":1,"m\u0065thod":"session\/new"}')
    assert (message.id, message.method) == (b"1", "session/new")


@pytest.mark.parametrize("params", [b"[]", b"null", b"5"])
def test_what_params_must_be_is_for_the_receiver_to_say(params: bytes) -> None:
    assert parse(b'{"id":1,"method":"x","params":%b}' % params).kind is Kind.REQUEST


def test_the_session_and_the_kind_of_an_update_are_read_on_the_way() -> None:
    text = b'{"method":"session/update","params":{"update":{"content":{},"sessionUpdate":"plan"},"sessionId":"s"}}'
    message = parse(text)
    assert (message.session, message.update) == ("s", "plan")


@pytest.mark.parametrize(
    ("params", "session", "update"),
    [
        (b"{}", None, None),
        (b"[]", None, None),
        (b"null", None, None),
        (b'{"sessionId":5}', None, None),
        (b'{"sessionId":null,"update":null}', None, None),
        (b'{"sessionId":"s","update":5}', "s", None),
        (b'{"sessionId":"s","update":{"sessionUpdate":["plan"]}}', "s", None),
        (b'{"sessionId":"","update":{"sessionUpdate":""}}', "", ""),
        (b'{"sessionid":"s","Update":{"sessionUpdate":"plan"}}', None, None),
        (b'{"x":{"sessionId":"s"}}', None, None),
        (rb'{"session\u0049d":"\u0073","update":{"sessionUpdate":"pl\u0061n"}}', "s", "plan"),
        (rb'{"sessionId":"\ud83d","update":{"sessionUpdate":"plan"}}', "\ud83d", "plan"),
        (rb'{"sessionId":"s","update":{"sessionUpdate":"\ud83d","x":1}}', "s", "\ud83d"),
        (b'{"sessionId":"a","sessionId":"b"}', "b", None),
    ],
)
@pytest.mark.parametrize("cut_emoji", [b"", rb',"_meta":"\ud83d"'])
def test_what_params_say_about_the_session_is_read_where_it_is_a_string(
    params: bytes, session: str | None, update: str | None, cut_emoji: bytes
) -> None:
    message = parse(b'{"method":"x","params":%b%b}' % (params, cut_emoji))
    assert (message.session, message.update) == (session, update)


def test_a_response_is_about_no_session() -> None:
    assert parse(b'{"id":1,"result":{"sessionId":"s"}}').session is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"method":"_x/y","ID":77}',
        b'{"id":1,"result":{},"Method":"session/prompt","Params":{}}',
        rb'{"id":1,"result":{},"Method\u0000":"session/prompt"}',
        rb'{"method":"_x/y","id\u0000z":77}',
        b'{"id":1,"method":"x","Params":{}}',
        b'{"id":1,"method":"x","PARAMS":{},"params":{}}',
        b'{"id":1,"method":"x","JsonRPC":"1.0"}',
        b'{"id":1,"result":{},"Error":null}',
        '{"id":1,"method":"x","param\u017f":{}}'.encode(),
        '{"id":1,"re\u017fult":{}, "result":1}'.encode(),
        rb'{"id":1,"method":"x","param\u017f":{}}',
        rb'{"id":1,"method":"x","\u0050arams":{},"x":"\ud83d"}',
        b'{"id":1,"result":{},"method":"session/prompt"}',
        b'{"id":1,"error":{},"method":"x"}',
        b'{"id":1,"result":{},"params":{}}',
        b'{"id":1,"result":{},"params":null}',
        b'{"id":1,"result":{},"error":{"code":1,"message":"x"}}',
        b'{"id":1,"error":{"code":1,"message":"x"},"result":0}',
    ],
)
def test_what_some_would_take_for_another_message_is_not_a_message(text: bytes) -> None:
    for read in (parse, strict_parsing.parse_strictly):
        with pytest.raises(InvalidMessage) as caught:
            read(text)
        assert caught.value.code == jsonrpc.INVALID_REQUEST
        assert updates.session_of_passthrough(text) is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":1,"method":"x","_meta":{},"trace":{"Id":2,"Method":"y"},"_id":3}',
        b'{"id":1,"result":{},"error":null,"Results":1}',
        b'{"id":1,"result":null,"error":{"code":1,"message":"x"}}',
        b'{"id":1,"result":null,"jsonrpc":"1.0"}',
        b'{"id":1,"result":null,"jsonrpc":2.0}',
    ],
)
def test_further_members_of_an_envelope_are_accepted(text: bytes) -> None:
    assert parse(text).text is text
    assert strict_parsing.parse_strictly(text)[0].text is text


# Ids

SPELLINGS = [
    b"0",
    b"1",
    b'"1"',
    b"1.0",
    b"1e2",
    b"-0",
    b"-7",
    b'""',
    b"9223372036854775808",
    b"123456789012345678901234567890",
    b"1" * 5000,
    b"null",
    b'"f81d4fae-7dec-11d0-a765-00a0c91e6bf6"',
    rb'"\u0061\"\\"',
    b'"\xe2\x80\xa8"',
    rb'"\ud83d"',
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: repr(spelling[:40]))
def test_an_id_keeps_its_type_and_its_spelling(spelling: bytes) -> None:
    assert parse(b'{"id": %b ,"method":"x"}' % spelling).id == spelling
    assert parse(b'{"result":1,"id":\t%b}' % spelling).id == spelling


@pytest.mark.parametrize("spelling", [b"{}", b"[]", b"true", b"false", b"[1]", b'{"a":1}'])
def test_an_id_of_another_type_is_refused(spelling: bytes) -> None:
    assert refusal(b'{"id":%b,"method":"x"}' % spelling) == INVALID_REQUEST
    assert refusal(b'{"id":%b,"result":1}' % spelling) == INVALID_REQUEST


@pytest.mark.parametrize(
    ("spelling", "number"),
    [
        (b"7", 7),
        (b"0", 0),
        (b"-7", -7),
        (b"7.0", 7),
        (b"7e0", 7),
        (b"70e-1", 7),
        (b"7E+2", 700),
        (b"-0", 0),
        (b"9007199254740993", 9007199254740993),
        (b"123456789012345678901234567890", 123456789012345678901234567890),
        (b"1234567890123456789012345678901", None),
        (b"1.0000000000000000000000000000000", None),
        (b"7.5", None),
        (b"1e999", None),
        (b'"7"', None),
        (b'""', None),
        (b"null", None),
    ],
)
def test_the_whole_number_that_an_id_is_does_not_depend_on_its_spelling(spelling: bytes, number: int | None) -> None:
    assert jsonrpc.id_number(RawId(spelling)) == number


def test_ids_that_python_takes_for_one_are_told_apart() -> None:
    ids = [b"1", b'"1"', b"1.0", b"1e0", b"0", b'""', b"null", b'"null"', b"-0"]
    assert len({jsonrpc.id_key(RawId(raw)) for raw in ids}) == len(ids)


@pytest.mark.parametrize(
    ("one", "other"), [(rb'"\u0061\/"', b'"a/"'), (rb'"\ud83d\ude00"', '"😀"'.encode()), (b"1.0", b"1.0")]
)
def test_two_spellings_of_one_string_are_one_id(one: bytes, other: bytes) -> None:
    assert jsonrpc.id_key(RawId(one)) == jsonrpc.id_key(RawId(other))


# What texts are messages

REQUEST = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"text":%b}}'


@pytest.mark.parametrize(
    "text",
    [
        REQUEST % b'"\xe2\x80\xa8 \xe2\x80\xa9 \xc2\x85"',
        REQUEST % rb'"\ud83d"',
        REQUEST % rb'"\ude00 \ud83d\ude00 \\ud83d"',
        REQUEST % rb'"\u0000"',
        REQUEST % b"1e999",
        REQUEST % b'{"a":1,"a":2}',
        REQUEST % (b"[" * 100 + b"]" * 100),
        REQUEST % b'"\x7f"',
        REQUEST % b"1" + b"\r",
        b"\r\n\t " + REQUEST % b"1" + b" \n",
    ],
)
def test_this_is_a_message_and_stays_verbatim(text: bytes) -> None:
    message = parse(text)
    assert message.text is text
    assert (message.kind, message.id, message.method) == (Kind.REQUEST, b"1", "x")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" \r\n",
        b"\xff",
        REQUEST % b'"\xff"',
        REQUEST % b'"\xed\xa0\xbd"',  # A surrogate is not UTF-8.
        b"\xef\xbb\xbf" + REQUEST % b"1",
        "{}".encode("utf-16"),
        b"npm warn exec The following package was not found",
        b"Listening on 127.0.0.1",
        b"[info] ready",
        REQUEST % b"NaN",
        REQUEST % b"-Infinity",
        REQUEST % b"01",
        REQUEST % b"'a'",
        REQUEST % b'"\x00"',
        REQUEST % b'"\n"',
        REQUEST % rb'"\x41"',
        REQUEST % rb'"\ud83"',
        REQUEST % b"1" + b"\x00",
        REQUEST % b"1" + REQUEST % b"1",
        (REQUEST % b"1")[:-1],
        b'{"id":NaN,"method":"x"}',
        b'{"id":1,"method":"x",}',
        b"[1,",
        b"1 x",
    ],
)
def test_this_is_not_a_json(text: bytes) -> None:
    assert refusal(text) == PARSE_ERROR


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b" [" + REQUEST % b"1" + b"]",
        rb'["\ud83d"]',
        b"1",
        b"null",
        b"true",
        b'"text"',
        b'{"jsonrpc":"2.0"}',
        b'{"id":1}',
        b'{"result":1}',
        b'{"id":1,"method":5}',
        b'{"id":1,"method":null,"result":1}',
    ],
)
def test_this_is_json_and_no_message(text: bytes) -> None:
    assert refusal(text) == INVALID_REQUEST


@pytest.mark.parametrize(
    "text",
    [
        b'{%b"method":"m"}' % (b'"id":1,' * 600),
        b'{"other":1,"id":1,"method":"m","params":{%b"a":1}}' % (b'"a":1,' * 600),
    ],
)
def test_a_message_of_more_than_512_members_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidMessage, match="512 members"):
        parse(text)


def test_an_array_is_told_that_there_are_no_batches() -> None:
    with pytest.raises(InvalidMessage) as raised:
        parse(b"[]")
    assert str(raised.value) == "a message must be an object, this is an array; batches are not supported"


def test_broken_json_is_told_where_it_breaks_behind_lone_surrogates_too() -> None:
    with pytest.raises(InvalidMessage, match=r"^not JSON: .*\(byte 14\)$"):
        parse(rb'{"x":"\ud83d",}')


@pytest.mark.parametrize(("head", "tail"), [(b"[", b"]"), (b'{"a":', b"}"), (b"[", b""), (rb'["\ud83d",', b"]")])
def test_100_000_levels_of_nesting_are_refused(head: bytes, tail: bytes) -> None:
    nested = head * 100_000 + b"1" + tail * 100_000
    assert refusal(nested) == PARSE_ERROR
    assert refusal(REQUEST % nested) == PARSE_ERROR


# Against a slow reference


@dataclass(frozen=True)
class Number:
    text: str


def expected(text: bytes) -> Any:
    """Read a text with the standard library's parser: a code, or kind, id and method. Numbers keep their text."""
    try:
        value = json.loads(text.decode(), parse_constant=reject, parse_int=Number, parse_float=Number)
    except ValueError:
        return PARSE_ERROR
    if not isinstance(value, dict):
        return INVALID_REQUEST
    known = ("jsonrpc", "id", "method", "params", "result", "error")
    message_id, method = value.get("id"), value.get("method", "")
    failed = value.get("error") is not None
    if any(name not in known and name.partition("\0")[0].casefold() in known for name in value):
        return INVALID_REQUEST
    if not (message_id is None or isinstance(message_id, Number | str)) or not isinstance(method, str):
        return INVALID_REQUEST
    if "params" in value if "method" not in value else "result" in value or "error" in value:
        return INVALID_REQUEST
    if failed and value.get("result") is not None:
        return INVALID_REQUEST
    if "method" in value:
        return Kind.REQUEST if "id" in value else Kind.NOTIFICATION, message_id, method, False
    if "id" in value and ("result" in value or "error" in value):
        return Kind.RESPONSE, message_id, "", failed
    return INVALID_REQUEST


def reject(constant: str) -> None:
    raise ValueError(constant)


def seen(text: bytes) -> Any:
    try:
        message = parse(text)
    except InvalidMessage as error:
        return error.code
    message_id = json.loads(message.id, parse_int=Number, parse_float=Number)
    assert message.text is text
    assert isinstance(message_id, Number | None) or message.id.startswith(b'"')
    return message.kind, message_id, message.method, message.error


@effort(300)
@given(documents | mutated() | st.lists(pieces, max_size=12).map(b"".join) | st.binary(max_size=20))
@example(rb'{"id":1,"method":"a","x":["\ud83d",{"\ud83d":1e999}]}')
@example(rb'{"id":1,"\ud83d":1,"id":"\ud83d","method":"\ud83d"}')
@example(b'{"id":1,"method":"x"}\x0b')
def test_the_verdict_and_the_envelope_are_those_of_a_slow_parser(text: bytes) -> None:
    assert seen(text) == expected(text)


@effort(300)
@given(documents | mutated())
@example(b'{"method":"x","params":{"sessionId":"s"}}')
@example(rb'{"method":"x","params":{"sessionId":"s","x":"\ud83d"}}')
@example(b'{"id":1,"result":{"sessionId":"s"}}')
def test_a_message_that_was_read_names_the_same_session_at_the_short_look(text: bytes) -> None:
    try:
        message = parse(text)
        named = jsonrpc.named_session(text)
    except InvalidMessage:
        return
    assert (message.kind is not Kind.RESPONSE, named) == (True, message.session)


# Looking at and changing a message


@pytest.mark.parametrize("length", [1, 10_000])
def test_another_id_changes_nothing_else(length: int) -> None:
    message = parse(
        b' {"a" : {"id":1},"id" :\t1 , "result":[1.10, 1e999,"\\ud83d"], "_meta" : {"b":"%b"} } ' % (b"x" * length)
    )
    assert jsonrpc.with_id(message, RawId(b'"x"')) == message.text.replace(b"\t1", b'\t"x"')


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"id":1}}',
        b' { "id" : 1 , "method":"id"}',
        b'{"method":"x","params":{"id":1},"id":1}',
        b'{"method":"x","s":"\\"id\\":1","id":1}',
        rb'{"\u0069d":1,"method":"x","params":{"id":2}}',
        rb'{"jsonrpc":"2.\u0030","\u0069d":1,"method":"id"}',
    ],
)
def test_an_id_is_found_where_it_is(text: bytes) -> None:
    changed = jsonrpc.with_id(parse(text), RawId(b"77"), unique=True)
    assert changed == jsonrpc.with_id(parse(text), RawId(b"77"))
    assert json.loads(changed) == json.loads(text) | {"id": 77}
    assert len(changed) == len(text) + 1


def test_another_id_goes_to_the_one_that_counts() -> None:
    assert (
        jsonrpc.with_id(parse(rb'{"id":1,"result":2,"\u0069d":3}'), RawId(b"4")) == rb'{"id":1,"result":2,"\u0069d":4}'
    )


def test_an_object_is_composed_of_json_texts() -> None:
    assert jsonrpc.compose({}) == b"{}"
    assert jsonrpc.compose({"a": b"1.10", 'q"\ud83d': b"[ ]"}) == rb'{"a":1.10,"q\"\ud83d":[ ]}'


# What the gateway says itself


def test_a_result_goes_under_the_id_as_it_was_spelled() -> None:
    assert jsonrpc.result(RawId(b"1e2"), {"a": None}) == b'{"jsonrpc":"2.0","id":1e2,"result":{"a":null}}'


def test_an_error_has_data_only_where_there_is_some() -> None:
    assert jsonrpc.error(NO_ID, -1, "no") == b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}'
    with_data = jsonrpc.error(NO_ID, -1, "no", {"reason": "x"})
    assert with_data == b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no","data":{"reason":"x"}}}'


def test_a_notification_has_no_id() -> None:
    text = jsonrpc.notification("session/cancel", {"sessionId": "s"})
    assert text == b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}'


def test_a_peers_lone_surrogate_can_be_quoted_back() -> None:
    text = jsonrpc.error(RawId(b"1"), -1, "no \ud83d", {"cwd": "/\ud83d"})
    assert json.loads(text)["error"] == {"code": -1, "message": "no \ud83d", "data": {"cwd": "/\ud83d"}}
