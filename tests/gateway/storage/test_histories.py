"""Histories in pieces: how they are split, and that each comes back."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.gateway.storage.histories import outline, split, unpack
from acp_gateway.gateway.storage.records import StoredRun


@given(st.lists(st.integers(0, 30)), st.integers(1, 50))
def test_messages_are_split_in_order_into_as_few_pieces_as_fit(lengths: list[int], limit: int) -> None:
    pieces = list(split(lengths, limit))
    assert [index for start, end in pieces for index in range(start, end)] == list(range(len(lengths)))
    for start, end in pieces:
        assert sum(lengths[start:end]) <= limit or end == start + 1
    for (start, end), _ in pairwise(pieces):
        assert sum(lengths[start : end + 1]) > limit


@given(st.lists(st.tuples(st.integers(0, 10**9), st.sampled_from([None, None, "mode"])), min_size=1))
def test_an_outline_is_what_it_would_be_written_step_by_step(shape: list[tuple[int, str | None]]) -> None:
    lengths, kinds = [length for length, _ in shape], [kind for _, kind in shape]
    assert outline(lengths, kinds) == msgspec.json.encode(shape)


@given(st.lists(st.tuples(st.binary(max_size=9), st.none() | st.text(max_size=3)), min_size=1))
def test_a_piece_comes_back(entries: list[tuple[bytes, str | None]]) -> None:
    messages, kinds = [message for message, _ in entries], [kind for _, kind in entries]
    states = {index: kind for index, kind in enumerate(kinds) if kind is not None}
    assert unpack(outline(list(map(len, messages)), kinds), b"".join(messages)) == StoredRun([*messages], states)


@pytest.mark.parametrize(
    ("outlined", "messages"),
    [
        (b"[[3,null]]", b"four"),
        (b"[[-1,null],[5,null]]", b"four"),
        (b"[[4]]", b"four"),
        (b'[["4",null]]', b"four"),
        (b"\xff", b"four"),
        (b"", b"four"),
        (5, b"four"),
        (b"[[4,null]]", "four"),
    ],
)
def test_what_does_not_fit_together_is_not_a_piece(outlined: object, messages: object) -> None:
    assert unpack(outlined, messages) == StoredRun()
