"""Frames of HTTP/2: cut from bytes, and refused where they cost more than they are worth."""

import itertools
from collections.abc import Iterator
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.transports.http.http2_frames import (
    BLOCK_SIZE,
    BUDGET,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE,
    FRAME_SIZE_ERROR,
    MAX_CONTINUATIONS,
    MAX_SETTINGS,
    PREFACE,
    PROTOCOL_ERROR,
    REFILL,
    RESET_COST,
    SENT_PAYS,
    SETTINGS_SIZE,
    SMALL_DATA,
    FrameReader,
    Http2Error,
)

DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION, UNKNOWN = 0, 1, 2, 3, 4, 6, 7, 8, 9, 0x10
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, size: int = 0, flags: int = 0, stream: int = 1) -> bytes:
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + bytes(size)


BEGIN = PREFACE + frame(SETTINGS, stream=0)


def taken(reader: FrameReader, data: bytes, now: float = 0.0) -> list[bytes]:
    reader.add(data)
    return list(iter(lambda: reader.take(now), None))


def begun() -> FrameReader:
    reader = FrameReader()
    assert taken(reader, BEGIN) == [PREFACE, frame(SETTINGS, stream=0)]
    return reader


def refusal(reader: FrameReader, data: bytes, now: float = 0.0) -> Http2Error:
    with pytest.raises(Http2Error) as raised:
        taken(reader, data, now)
    return raised.value


SEVERAL = [
    frame(HEADERS, 30, END_HEADERS),
    frame(DATA, 5),
    frame(DATA, FRAME_SIZE, END_STREAM),
    frame(HEADERS, 10, stream=3),
    frame(CONTINUATION, 10, END_HEADERS, 3),
    frame(PING, 8, stream=0),
]


@given(st.lists(st.integers(0, len(BEGIN) + 200), max_size=20))
def test_frames_are_the_same_wherever_their_bytes_are_cut(cuts: list[int]) -> None:
    data, reader, found = BEGIN + b"".join(SEVERAL), FrameReader(), []
    places = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(places):
        found += taken(reader, data[start:end])
    assert found == [PREFACE, frame(SETTINGS, stream=0), *SEVERAL]


def test_what_means_nothing_here_is_left_out() -> None:
    left_out = [frame(PRIORITY, 5), frame(GOAWAY, 8, stream=0), frame(UNKNOWN, 3, stream=0)]
    assert taken(begun(), b"".join([*left_out, SEVERAL[0]])) == [SEVERAL[0]]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", PROTOCOL_ERROR),
        (b"PRX", PROTOCOL_ERROR),
        (PREFACE + frame(HEADERS, 1, END_HEADERS), PROTOCOL_ERROR),
        (PREFACE + frame(PRIORITY, 5), PROTOCOL_ERROR),
        # Its bytes need not come.
        (BEGIN + frame(DATA, FRAME_SIZE + 1)[:9], FRAME_SIZE_ERROR),
        (BEGIN + frame(CONTINUATION, 1, END_HEADERS), PROTOCOL_ERROR),
        (BEGIN + frame(HEADERS, 1) + frame(DATA, 1), PROTOCOL_ERROR),
        (BEGIN + frame(HEADERS, 1) + frame(PRIORITY, 5), PROTOCOL_ERROR),
        (BEGIN + frame(HEADERS, 1) + frame(HEADERS, 1, END_HEADERS), PROTOCOL_ERROR),
        (BEGIN + frame(HEADERS, 1) + frame(CONTINUATION, 1, END_HEADERS, 3), PROTOCOL_ERROR),
        (BEGIN + frame(HEADERS) + frame(CONTINUATION) * (MAX_CONTINUATIONS + 1), ENHANCE_YOUR_CALM),
        (BEGIN + frame(HEADERS, FRAME_SIZE) + frame(CONTINUATION, FRAME_SIZE) * 4, ENHANCE_YOUR_CALM),
        (BEGIN + frame(SETTINGS, SETTINGS_SIZE + 6, stream=0), ENHANCE_YOUR_CALM),
        (BEGIN + frame(SETTINGS, stream=0) * MAX_SETTINGS, ENHANCE_YOUR_CALM),
    ],
)
def test_what_no_client_needs_is_refused(data: bytes, code: int) -> None:
    assert refusal(FrameReader(), data).code == code


def test_the_largest_of_all_is_accepted() -> None:
    block = frame(HEADERS, FRAME_SIZE) + frame(CONTINUATION, FRAME_SIZE) * 2
    data = block + frame(CONTINUATION, BLOCK_SIZE - 3 * FRAME_SIZE, END_HEADERS)
    data += (frame(HEADERS) + frame(CONTINUATION) * (MAX_CONTINUATIONS - 1) + frame(CONTINUATION, 0, END_HEADERS)) * 2
    data += frame(SETTINGS, SETTINGS_SIZE, stream=0) + frame(SETTINGS, stream=0) * (MAX_SETTINGS - 2)
    assert len(taken(begun(), data)) == 4 + 2 * (MAX_CONTINUATIONS + 1) + MAX_SETTINGS - 1


def floods() -> Iterator[tuple[str, bytes, int]]:
    yield "PRIORITY", frame(PRIORITY, 5), 1
    yield "RST_STREAM", frame(RST, 4), RESET_COST
    # A request and its reset.
    yield "RST_STREAM", frame(HEADERS, 10, END_HEADERS | END_STREAM) + frame(RST, 4), RESET_COST
    yield "PING", frame(PING, 8, stream=0), 1
    yield "GOAWAY", frame(GOAWAY, 8, stream=0), 1
    yield "WINDOW_UPDATE", frame(WINDOW, 4), 1
    yield "DATA", frame(DATA), 1
    yield "DATA", frame(DATA, SMALL_DATA - 1), 1
    yield "CONTINUATION", frame(HEADERS) + frame(CONTINUATION, 0, END_HEADERS), 1
    yield "unknown", frame(UNKNOWN, stream=0), 1


@pytest.mark.parametrize(("name", "flood", "cost"), [*floods()])
def test_a_flood_is_refused_by_its_name_and_time_and_responses_pay(name: str, flood: bytes, cost: int) -> None:
    reader, most = begun(), (BUDGET - 1) // cost
    taken(reader, flood * most)
    error = refusal(reader, flood * 2)
    assert (error.code, name in str(error), str(BUDGET) in str(error)) == (ENHANCE_YOUR_CALM, True, True)
    # As many a second go on for ever.
    reader = begun()
    taken(reader, flood * most)
    for second in range(1, 30):
        taken(reader, flood * (REFILL // cost), float(second))
    refusal(reader, flood * 3, 29.0)
    # So do as many as responses pay for.
    reader = begun()
    taken(reader, flood * most)
    for _ in range(100):
        for _ in range(cost):
            reader.note_sent()
        taken(reader, flood * SENT_PAYS)
    refusal(reader, flood * 3)


def test_time_and_responses_save_up_no_more_than_the_budget() -> None:
    reader = begun()
    taken(reader, frame(PING, 8, stream=0), 1e6)
    reader.note_sent()
    assert str(BUDGET) in str(refusal(reader, frame(PING, 8, stream=0) * (BUDGET + 1), 1e6))


def test_requests_and_their_data_cost_nothing() -> None:
    request = frame(HEADERS, 30, END_HEADERS) + frame(DATA, SMALL_DATA) + frame(DATA, 3, END_STREAM)
    assert len(taken(begun(), request * (2 * BUDGET))) == 6 * BUDGET


def test_it_is_known_since_when_something_is_incomplete() -> None:
    reader = FrameReader()
    assert reader.begun_at == inf
    taken(reader, BEGIN[:10], 5.0)
    assert reader.begun_at == 5.0
    taken(reader, BEGIN[10:20], 6.0)
    assert reader.begun_at == 5.0
    taken(reader, BEGIN[20:], 7.0)
    assert reader.begun_at == inf
    # A header block is one thing.
    taken(reader, frame(HEADERS), 8.0)
    taken(reader, frame(CONTINUATION), 9.0)
    assert reader.begun_at == 8.0
    taken(reader, frame(CONTINUATION, 0, END_HEADERS) + b"\0", 10.0)
    assert reader.begun_at == 10.0
