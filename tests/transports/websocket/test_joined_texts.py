"""Several messages in one text message: what is sent comes back as the same messages, whatever its frames."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.transports.websocket.frames import JOINED_SIZE, encode_joined, split, whole_texts
from tests.fuzz.effort import effort

MESSAGES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=40).map(str.encode), max_size=20
)


def texts_of(messages: Sequence[bytes]) -> list[bytes]:
    """The text messages that a server sends."""
    data = encode_joined(messages)
    texts, end, missing = whole_texts(data, None, masked=False)
    assert (end, missing) == (len(data), 0)
    return texts


def test_messages_share_a_text_with_one_in_each_line() -> None:
    assert texts_of([b"{}", b'{"a":1}', b"[]"]) == [b'{}\n{"a":1}\n[]']
    assert split([b'{}\n{"a":1}\n[]', b"{}"]) == [b"{}", b'{"a":1}', b"[]", b"{}"]


def test_nothing_is_sent_for_no_messages() -> None:
    assert encode_joined([]) == b""


@given(MESSAGES)
@effort(200)
def test_joined_messages_are_split_into_the_same_ones(messages: list[bytes]) -> None:
    # An empty one is counted as well, by both ends of a link.
    assert split(texts_of(messages)) == messages


@pytest.mark.parametrize("size", [1, 200, 3000, JOINED_SIZE // 2, JOINED_SIZE])
def test_a_text_of_several_messages_has_joined_size_at_most(size: int) -> None:
    messages = [b"%d" % number + b"x" * size for number in range(max(3 * JOINED_SIZE // size, 3))]
    texts = texts_of(messages)
    assert split(texts) == messages
    assert all(len(text) <= JOINED_SIZE or b"\n" not in text for text in texts)
    # Most of them are at least half full.
    assert len(texts) <= max(4 * sum(map(len, texts)) // JOINED_SIZE, 1)


def test_a_message_with_line_ends_is_sent_in_one_line() -> None:
    pretty = b'{\r\n  "a": "\\n"\r}'
    (text,) = texts_of([b"{}", pretty])
    assert split([text])[0] == b"{}"
    assert json.loads(split([text])[1]) == json.loads(pretty)
    # Also without another one: a reader would split it.
    assert len(split(texts_of([pretty]))) == 1


def test_a_larger_text_is_one_message_so_that_the_number_of_lines_is_bounded() -> None:
    lines = b"\n" * (JOINED_SIZE + 1)
    assert split([lines]) == [lines]
    assert len(split([lines[:-1]])) == JOINED_SIZE + 1
