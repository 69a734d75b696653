"""Frames and messages of the minimal client."""

import json

import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from benchmarks.bare import FINAL, TEXT, frame, message


def read_frame(data: bytes) -> Frame:
    """Parse one frame with the websockets library."""
    reader = StreamReader()
    reader.feed_data(data)
    parsing = Frame.parse(reader.read_exact, mask=True)
    with pytest.raises(StopIteration) as end:
        next(parsing)
    whole = end.value.value
    assert isinstance(whole, Frame)
    assert not reader.buffer
    return whole


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_of_any_size_is_parsed_by_websockets(size: int) -> None:
    assert read_frame(frame(TEXT, b"x" * size)) == Frame(Opcode.TEXT, b"x" * size)


def test_the_fin_flag_is_taken_from_the_flags() -> None:
    assert not read_frame(frame(TEXT, b"x", flags=0)).fin
    assert read_frame(frame(TEXT, b"x", flags=FINAL)).fin


def test_a_request_has_an_id_and_a_notification_has_none() -> None:
    assert json.loads(message(7, "initialize", {"a": 1})) == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "initialize",
        "params": {"a": 1},
    }
    assert "id" not in json.loads(message(None, "initialize", {}))
