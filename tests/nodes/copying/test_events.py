from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from acp_gateway.errors import ProtocolError
from acp_gateway.nodes.copying.events import ID_SIZE, SILENCE, StreamsInUse, WholeEvents, next_part
from acp_gateway.protocol.event_parser import COMMENT

STREAM = b':\n\nid: e.1\ndata: {"a":1}\n\n:\n\nid: e.2\ndata: "id: x.9"\n\nid: e.3\ndata: 3\n\n:\n\n'


async def broken() -> bytes:
    """Read from a connection that is lost."""
    raise trio.BrokenResourceError


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_only_whole_events_are_passed_on_and_the_id_of_the_last_one_is_known(cuts: list[int]) -> None:
    events, passed = WholeEvents(100), b""
    for start, end in pairwise([0, *sorted(cuts), len(STREAM)]):
        passed += events.take(STREAM[start:end])
        assert STREAM.startswith(passed)
        assert passed == b"" or passed.endswith(b"\n\n")
        assert len(passed) + events.begun_bytes == end
        seen = [it.split(b"\n")[0] for it in passed.split(b"\n\n") if it.startswith(b"id: ")]
        assert events.last_id == (seen[-1].removeprefix(b"id: ").decode() if seen else None)
    assert passed == STREAM


def test_an_event_that_was_cut_off_comes_again() -> None:
    events = WholeEvents(100)
    assert events.take(b"id: e.1\ndata: 1\n\nid: e.2\nda") == b"id: e.1\ndata: 1\n\n"
    events.begin_again()
    assert events.take(b":\n\nid: e.2\ndata: 2\n\n") == b":\n\nid: e.2\ndata: 2\n\n"
    assert events.last_id == "e.2"
    assert WholeEvents(100).take(COMMENT) == COMMENT


@pytest.mark.parametrize(
    "part", [b"x" * 41, b"id: " + b"x" * (ID_SIZE + 1) + b"\n\n", b"id: \xff\n\n"], ids=["size", "id", "ASCII"]
)
def test_what_no_gateway_sends_is_not_kept(part: bytes) -> None:
    events = WholeEvents(100)
    assert events.take(STREAM + b"x" * 60) == STREAM
    if part.startswith(b"id"):
        events.begin_again()
    with pytest.raises(ProtocolError):
        events.take(part)


@pytest.mark.parametrize("read", [trio.sleep_forever, broken])
async def test_a_connection_that_is_broken_or_brings_nothing_is_lost(
    read: Callable[[], Awaitable[bytes]], autojump_clock: MockClock
) -> None:
    assert await next_part(read) is None
    assert trio.current_time() == (SILENCE if read is trio.sleep_forever else 0.0)


def test_a_stream_is_used_by_the_last_request() -> None:
    streams = StreamsInUse()
    with streams.using("s", 1):
        with streams.using("s", 2):
            assert (streams.is_used_by("s", 1), streams.is_used_by("s", 2)) == (False, True)
        assert not streams.is_used_by("s", 1)
    with streams.using("s", 3), streams.using("t", 4):
        assert streams.is_used_by("s", 3)
