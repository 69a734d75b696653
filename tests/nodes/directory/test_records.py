"""Records of a directory, which other machines have written."""

import json
from collections.abc import Mapping

import pytest

from acp_gateway.nodes.directory.records import MAX_NAMES, TEXT, NodeRecord, decode_node, encode

NODE = {"name": "gpu1", "url": "wss://gpu1:8765", "boot": "b"}


def text(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields).encode()


def test_records_are_the_same_after_encode_and_decode() -> None:
    node = NodeRecord(name="gpu1", url="wss://gpu1:8765", boot="b", agents=("a",), workspaces=("/src",), lag=0.5)
    assert decode_node(encode(node)) == node


@pytest.mark.parametrize(
    "flaw",
    [
        {"name": "gpu/1"},
        {"name": ""},
        {"name": "x" * 65},
        {"url": "x" * (TEXT + 1)},
        {"agents": ["a/b"]},
        {"agents": ["a"] * (MAX_NAMES + 1)},
        {"workspaces": ["x" * (TEXT + 1)]},
        {"sessions": -1},
        {"boot": None},
    ],
)
def test_node_record_that_does_not_fit_is_left_out(flaw: dict[str, object]) -> None:
    assert decode_node(text(NODE)) is not None
    assert decode_node(text(NODE | flaw)) is None


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"name": "\xff"}'])
def test_what_is_not_a_record_at_all_is_left_out(value: bytes) -> None:
    assert decode_node(value) is None
