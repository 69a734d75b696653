"""Text frames without the library, by themselves; `test_websocket` holds them against it."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode

from acp_gateway.transports.websocket.frames import (
    FRAME_SIZE,
    MAX_FRAMES,
    MAX_MESSAGES,
    SMALL_FRAME,
    BegunFrame,
    BinaryFrames,
    FrameCounter,
    FrameEnds,
    close_frame,
    encode_binary,
    encode_text,
    frame_end,
    shortened,
    whole_texts,
)
from tests.fuzz.effort import effort
from tests.kit.frames import BINARY, CLOSE, CONT, PING, TEXT, frame
from tests.kit.wires import MIB

HEADER = {0: 2, 125: 2, 126: 4, 65535: 4, 65536: 10}
"""Bytes of the header of a frame that is not masked, by the size of its payload."""


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("size", HEADER)
def test_messages_are_taken_up_to_the_first_that_is_not_complete(masked: bool, size: int) -> None:
    whole = frame(TEXT, b"x" * size, masked=masked)
    header = HEADER[size] + (4 if masked else 0)
    cuts = {cut for cut in (0, 1, 2, 3, *range(header - 4, header + 1), len(whole) - 1) if 0 <= cut < len(whole)}
    for cut in cuts:
        missing = len(whole) - cut if cut >= header else 0
        assert whole_texts(whole + whole[:cut], MIB, masked=masked) == ([b"x" * size], len(whole), missing)
        assert whole_texts(whole[:cut], MIB, masked=masked) == ([], 0, missing)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    "behind",
    [
        frame(PING, b"p" * 100, masked=True),
        frame(TEXT, b"x" * 100, masked=True, fin=False),
        frame(TEXT, b"x" * 100, masked=True, first=0x40),
        frame(TEXT, b"x" * 1001, masked=True),
        frame(TEXT, b"x" * 65536, masked=True),
    ],
    ids=["ping", "fragment", "reserved bit", "too large", "much too large"],
)
def test_whole_texts_waits_for_nothing_that_is_for_the_library(masked: bool, behind: bytes) -> None:
    whole = frame(TEXT, b"{}", masked=masked)
    for cut in (1, 2, 20, len(behind)):
        assert whole_texts(whole + behind[:cut], 1000, masked=masked) == ([b"{}"], len(whole), 0)


def test_the_mask_of_a_frame_is_its_sender_s_choice() -> None:
    masked, plain = frame(TEXT, b"x" * 100, masked=True), frame(TEXT, b"x" * 100, masked=False)
    assert whole_texts(masked[:50], 1000, masked=False) == whole_texts(plain[:50], 1000, masked=True) == ([], 0, 0)


def test_whole_texts_without_a_limit_takes_frames_of_any_size() -> None:
    assert whole_texts(b"\x81\x7f" + (2**40).to_bytes(8), None, masked=False) == ([], 0, 2**40)


@pytest.mark.parametrize("masked", [True, False])
def test_whole_texts_returns_bytes(masked: bool) -> None:
    messages, _, _ = whole_texts(frame(TEXT, b"{}", masked=masked), MIB, masked=masked)
    assert [type(message) for message in messages] == [bytes]


def test_a_begun_frame_is_complete_with_its_last_byte() -> None:
    begun = BegunFrame(b"ab", 3)
    assert begun.complete(b"cd") == b""
    assert begun.missing == 1
    assert begun.complete(b"efgh") == b"abcdefgh"


def test_only_so_many_messages_are_taken_at_once() -> None:
    empty = frame(TEXT, masked=True)
    messages, end, missing = whole_texts(empty * (MAX_MESSAGES + 5), MIB, masked=True)
    assert (len(messages), end, missing) == (MAX_MESSAGES, MAX_MESSAGES * len(empty), 0)


# What the library is given


@pytest.mark.parametrize("masked", [True, False])
def test_the_library_is_given_so_many_frames_at_once_and_small_ones_are_counted(masked: bool) -> None:
    counter = FrameCounter()
    ping, large = frame(PING, masked=masked), frame(CONT, b"x" * SMALL_FRAME, masked=masked)
    data = ping * MAX_FRAMES + large
    end = counter.cut(data)
    assert (end, counter.small) == (len(ping) * MAX_FRAMES, MAX_FRAMES)
    counter.small = 0
    assert counter.cut(data[end:]) == len(large)
    assert counter.small == 0


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_a_frame_is_given_as_it_comes_but_for_a_header_that_is_not_complete(size: int) -> None:
    whole = frame(PING if size < 126 else CONT, b"x" * size, masked=False)
    for cut in {0, 1, *range(HEADER[size] + 1), len(whole) // 2, len(whole) - 1, len(whole)} & {*range(len(whole) + 1)}:
        counter = FrameCounter()
        first = counter.cut(whole[:cut])
        assert first == (cut if HEADER[size] <= cut else 0)
        assert counter.cut(whole[first:] + whole) == 2 * len(whole) - first
        assert counter.small == 2 * (size < SMALL_FRAME)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, FRAME_SIZE])
def test_a_servers_frames_are_those_of_the_library(size: int) -> None:
    message = b"x" * size
    assert encode_text([message]) == Frame(Opcode.TEXT, message).serialize(mask=False)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_a_frame_ends_where_the_next_one_begins(size: int, masked: bool) -> None:
    one = frame(TEXT, b"x" * size, masked=masked)
    chunk = one + frame(CLOSE, b"", masked=masked)
    assert frame_end(chunk, 0) == 0
    assert frame_end(chunk, 1) == len(one)
    assert frame_end(chunk, len(one)) == len(one)
    assert frame_end(chunk, len(one) + 1) == len(chunk)
    assert frame_end(chunk, len(chunk)) == len(chunk)


@given(
    st.lists(st.sampled_from([0, 1, 125, 126, 65535, 65536]), max_size=4), st.lists(st.integers(0, 70_000), max_size=6)
)
@effort(100)
def test_frames_that_passed_end_with_one_only_at_its_end(sizes: list[int], pieces: list[int]) -> None:
    frames = [frame(TEXT, b"\xff" * size, masked=False) for size in sizes]
    data, ends = b"".join(frames), {0, *accumulate(map(len, frames))}
    passed, at = FrameEnds(), 0
    for piece in (*pieces, len(data)):
        passed.add(data[at : at + piece])
        at = min(at + piece, len(data))
        assert passed.at_end is (at in ends)


def test_a_frame_that_closes_has_its_code_and_at_most_123_bytes_of_text() -> None:
    for text in ("", "the token is not valid any more", "\N{SNOWMAN}" * 99):
        close = Frame(Opcode.CLOSE, Close(1008, shortened(text)).serialize())
        assert close_frame(1008, text) == close.serialize(mask=False)


@pytest.mark.parametrize("masked", [True, False])
@given(
    sizes=st.lists(st.sampled_from([1, 5, 125, 126, 65535, 65536]), max_size=4), cuts=st.lists(st.integers(0, 70000))
)
def test_binary_messages_are_cut_as_far_as_they_have_come(masked: bool, sizes: list[int], cuts: list[int]) -> None:
    contents = [bytes(range(size % 251 + 1)) * (size // 100 + 1) for size in sizes]
    text = b"".join(encode_binary(content, masked=masked) for content in contents)
    frames, received, unread = BinaryFrames(masked=masked), b"", b""
    for start, end in pairwise(sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})):
        parts, at = frames.cut(unread + text[start:end], 1 << 20)
        received, unread = received + b"".join(parts), (unread + text[start:end])[at:]
        assert len(unread) < 14, "a header at most"
    assert (received, unread) == (b"".join(contents), b"")
    assert frames.small == sum(len(content) < SMALL_FRAME for content in contents)


@pytest.mark.parametrize(
    "other",
    [
        frame(PING, b"p", masked=True),
        frame(TEXT, b"p", masked=True),
        frame(BINARY, b"p", masked=False),
        frame(BINARY, b"p", masked=True, fin=False),
        frame(BINARY, b"p", masked=True, first=0x40),
        frame(BINARY, b"", masked=True),
        frame(BINARY, b"p" * 101, masked=True),
        frame(BINARY, b"p" * 70000, masked=True),
    ],
    ids=["ping", "text", "not masked", "fragment", "reserved bit", "end", "too large", "much too large"],
)
def test_other_frames_are_left_to_the_library_with_all_behind_them(other: bytes) -> None:
    whole = encode_binary(b"x", masked=True)
    assert BinaryFrames(masked=True).cut(whole + other + whole, 100) == ([b"x"], len(whole))
