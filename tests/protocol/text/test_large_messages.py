"""Parsing large messages by their outlines: the same as a pass over the whole text finds."""

import pytest

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import InvalidMessage, RawId
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.large_messages import Parsed, check_large, parse_large
from acp_gateway.protocol.text.strict_parsing import parse_strictly

WORDS = b"x" * 3000 + rb"\n\"[]{},:" * 100


def parse(text: bytes) -> Parsed:
    checking = check_large(text)
    while True:
        try:
            next(checking)
        except StopIteration as checked:
            return parse_large(checked.value)


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"text":"@"}]}}',
        b'{"method":"_x/y","params":{"x":"@","sessionId":"s","y":[1,"@",{"z":"@"}]},"id":"7"}',
        b' { "method" : "session/update" , "params" : {"sessionId":"s", "update" : {"sessionUpdate":"plan","x":"@"}}}',
        b'{"id":7,"result":{"content":"@"}}',
        b'{"id":7,"error":{"code":1,"message":"@"}}',
        b'{"x":"@","id":7,"method":"_x/y"}',
        b'{"id":7,"method":"_x/y","params":["@"]}',
        b'{"id":7,"method":"_x/y","params":{"a":"@","a":1}}',
        b'{"id":7,"id":8,"method":"_x/y","params":{"a":"@"}}',
    ],
)
def test_a_large_message_is_parsed_as_any_other(text: bytes) -> None:
    text = text.replace(b"@", WORDS)
    (message, repeated), (expected, expected_repeated) = parse(text), parse_strictly(text)
    assert repeated == expected_repeated
    for name in ("text", "kind", "id", "method", "error", "session", "update"):
        assert getattr(message, name) == getattr(expected, name), name
    if expected_repeated is None:
        assert {name: bytes(raw) for name, raw in lookup.params_of(message).items()} == {
            name: bytes(raw) for name, raw in lookup.params_of(expected).items()
        }
        if message.id != jsonrpc.NO_ID:
            assert jsonrpc.with_id(message, RawId(b"4711")) == jsonrpc.with_id(expected, RawId(b"4711"))


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":"@","method":"_x/y"}',
        b'{"id":7,"method":"@"}',
        b'{"id":7,"method":"_x/y","params":{"sessionId":"@"}}',
        b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"@"}}}',
        b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"x","title":"@"}}}',
    ],
)
def test_a_long_string_where_an_id_or_a_name_should_be_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidMessage, match="too long"):
        parse(text.replace(b"@", WORDS))


def test_an_object_that_lacks_a_method_is_refused_as_a_small_one_is() -> None:
    for text in (b'["@"]', b'"@"', b'{"x":"@"}', b'{"id":7,"method":"x","Params":"@"}'):
        text = text.replace(b"@", WORDS)
        with pytest.raises(InvalidMessage) as raised:
            parse(text)
        with pytest.raises(InvalidMessage) as expected:
            parse_strictly(text)
        assert (raised.value.code, str(raised.value)) == (expected.value.code, str(expected.value))


def test_params_with_many_members_are_not_kept_for_a_message_that_may_wait() -> None:
    many = b",".join(b'"x%d":1' % number for number in range(methods.MEMBERS))
    assert parse(b'{"id":7,"method":"_x/y","params":{"a":"%b",%b}}' % (WORDS, many)).message.params is None
    more = b",".join(b'"x%d":1' % number for number in range(600))
    with pytest.raises(InvalidMessage):
        parse(b'{"id":7,"method":"_x/y","params":{"a":"%b",%b}}' % (WORDS, more))


def test_a_large_message_with_too_many_members_is_refused() -> None:
    many = b",".join(b'"%d":1' % number for number in range(spans.MEMBERS + 1))
    with pytest.raises(InvalidMessage, match="the message or its params"):
        parse(b'{"method":"session/update","params":{"sessionId":"s","update":{%b,"a":"%b"}}}' % (many, WORDS))
