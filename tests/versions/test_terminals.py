"""The text of a display terminal: bytes in base64, decoded across chunks."""

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.versions.terminals import Terminal, decode_base64
from tests.fuzz.effort import effort


def encoded(data: bytes) -> bytes:
    return json.dumps(b64encode(data).decode()).encode()


@given(st.lists(st.binary(max_size=8) | st.sampled_from([b"\xe2\x82", b"\xac", b"\xf0\x9f"]), max_size=10))
@effort(200)
def test_text_does_not_depend_on_how_bytes_are_cut_into_chunks(pieces: list[bytes]) -> None:
    whole, cut = Terminal(), Terminal()
    whole.append(encoded(b"".join(pieces)))
    for piece in pieces:
        cut.append(encoded(piece))
    assert cut.shown() == whole.shown()
    assert cut.size >= len(cut.text)


@pytest.mark.parametrize(
    ("data", "output"),
    [
        ("YWJj", b"abc"),
        ("YWI=", b"ab"),
        ("YWI", b""),
        ("YWJjZ", b"abc"),
        ("!!", b""),
        ("!YWJ", b""),
        ("é", b""),
        ("YW\nJj", b"abc"),
        ("Y===", b""),
    ],
)
def test_what_is_not_base64_is_left_out(data: str, output: bytes) -> None:
    assert decode_base64(data) == output


def test_a_snapshot_begins_at_a_character() -> None:
    it = Terminal()
    it.append(encoded(b"\xe2\x82"))
    assert it.replace(encoded(b"\xacx")) == 2
    assert it.shown() == "\ufffdx"
    assert it.replace(None) == 0
    assert it.shown() == ""
