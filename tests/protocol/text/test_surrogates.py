"""Escapes of lone surrogates in messages: those of a large one are replaced, so that it is read in time."""

from collections.abc import Callable

import pytest

from acp_gateway.protocol.jsonrpc import InvalidMessage, Message, parse
from acp_gateway.protocol.text.strict_parsing import parse_strictly
from acp_gateway.protocol.text.surrogates import LEAST_SIZE, MOST_EXACT


def text(words: bytes, size: int) -> bytes:
    return b'{"method":"x","params":{"a":"%b%b"}}' % (words, b"a" * size)


@pytest.mark.parametrize("read", [parse, lambda text: parse_strictly(text)[0]])
def test_lone_surrogates_of_a_large_message_alone_are_replaced_and_all_behind_very_many(
    read: Callable[[bytes], Message],
) -> None:
    words = rb"\ud83d \\ud83d \ud83d\ude00 \uDE00"
    assert read(text(words, 100)).text == text(words, 100)
    replaced = text(rb"\ufffd \\ud83d \ud83d\ude00 \ufffd", LEAST_SIZE)
    assert read(text(words, LEAST_SIZE)).text == replaced
    many, paired = rb"\ud83d" * MOST_EXACT, rb"\ud83d\ude00"
    replaced = text(paired + rb"\ufffd" * (MOST_EXACT + 2), LEAST_SIZE)
    assert read(text(paired + many + paired, LEAST_SIZE)).text == replaced
    # Broken JSON does not become valid.
    with pytest.raises(InvalidMessage):
        read(text(rb"\ud8zz", LEAST_SIZE))
