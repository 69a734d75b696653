"""The format of event streams, in pieces of any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol.event_parser import EventParser


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: 1\n\ndata: 2\n\n", [b"1", b"2"]),
        (b"data: 1\r\n\r\ndata: 2\r\n\r\n", [b"1", b"2"]),
        (b"data: 1\r\rdata: 2\r\r", [b"1", b"2"]),
        (b"data:1\n\n", [b"1"]),
        (b"data:  1\n\n", [b" 1"]),
        (b"data\n\n", [b""]),
        (b"data: {\ndata: }\n\n", [b"{\n}"]),
        (b"data\ndata:\ndata: 3\ndata:4\n\ndata: 5\n\n", [b"\n\n3\n4", b"5"]),
        (b": comment\ndata: 1\n: another\n\n", [b"1"]),
        (b"other: x\nretry: soon\ndata: 1\n\n", [b"1"]),
        (b" data: 1\n\n", []),
        (b"\n\n\n", []),
        (b"data: 1\n", []),
        (b"\xef\xbb\xbfdata: 1\n\n", [b"1"]),
        (b"\n\xef\xbb\xbfdata: 1\n\n", []),
        (b"event: message\ndata: 1\n\n", [b"1"]),
        (b"event: ping\ndata: 1\n\ndata: 2\n\n", [b"2"]),
    ],
)
def test_an_event_is_read_as_the_standard_says_however_it_is_cut(stream: bytes, events: list[bytes]) -> None:
    assert EventParser(100).feed(stream) == events
    parser = EventParser(100)
    assert [event for byte in stream for event in parser.feed(bytes([byte]))] == events


@given(st.lists(st.sampled_from([b"data: 1", b"id: 7", b":", b"\r", b"\n", b"\r\n"])), st.data())
def test_where_a_stream_is_cut_makes_no_difference(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    at = data.draw(st.integers(0, len(stream)))
    whole, cut = EventParser(100), EventParser(100)
    assert whole.feed(stream) == cut.feed(stream[:at]) + cut.feed(stream[at:])
    assert (whole.last_event_id, whole.in_event) == (cut.last_event_id, cut.in_event)


def test_an_id_counts_from_the_end_of_its_event_and_stays() -> None:
    parser = EventParser(100, "before")
    parser.feed(b"id: 1\ndata: x\n")
    assert parser.last_event_id == "before"
    parser.feed(b"\n")
    assert parser.last_event_id == "1"
    parser.feed(b"data: y\n\n")
    assert parser.last_event_id == "1"
    parser.feed(b"id: a\0b\n\n")
    assert parser.last_event_id == "1"


@pytest.mark.parametrize("value", [b"", b"\xc3\xbc", b" x", b"a\tb", b"x" * 1025])
def test_an_id_that_no_header_can_hold_counts_as_none(value: bytes) -> None:
    parser = EventParser(2000, "before")
    parser.feed(b"id: %b\n\n" % value)
    assert parser.last_event_id == ""


def test_retry_is_in_seconds_and_bounded() -> None:
    parser = EventParser(100)
    parser.feed(b"retry: 1500\n")
    assert parser.retry == 1.5
    parser.feed(b"retry: 999999999\nretry: -1\nretry: 9999999999\n")
    assert parser.retry == 30


@pytest.mark.parametrize(
    "stream", [b"data: " + bytes(101) + b"\n\n", b"data: " + bytes(200), b"data: 12345678\n" * 12, b": " + bytes(200)]
)
def test_what_is_larger_than_allowed_ends_the_stream_behind_the_events_before(stream: bytes) -> None:
    parser = EventParser(100)
    assert parser.feed(b"data: 1\n\n" + stream + b"\n\ndata: 2\n\n") == [b"1"]
    assert parser.too_large
    assert parser.feed(b"\n\ndata: 3\n\n") == []


def test_in_event_tells_an_event_that_is_cut_off() -> None:
    parser = EventParser(100)
    parser.feed(b"data: 1\n\n")
    assert not parser.in_event
    parser.feed(b"data: 2\n")
    assert parser.in_event
