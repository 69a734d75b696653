"""The interface of a directory; what it does is in `test_specification`."""

import json
from collections.abc import Mapping

import pytest

from acp_gateway.errors import Unreachable
from acp_gateway.nodes.store import MAX_NAMES, MAX_VALUE, TEXT, ClusterLost, NodeRecord, Seal, decode_node, encode


def test_lost_directory_counts_as_something_unreachable() -> None:
    assert issubclass(ClusterLost, Unreachable)


NODE = {"name": "gpu1", "url": "wss://gpu1:8765", "boot": "b"}


def text(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields).encode()


def test_records_are_the_same_after_encode_and_decode() -> None:
    node = NodeRecord(name="gpu1", url="wss://gpu1:8765", boot="b", agents=("a",), lag=0.5)
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


def test_sealed_value_is_opened_in_its_place() -> None:
    seal = Seal("secret")
    assert Seal("secret").open("node:a", seal.close("node:a", b"value")) == b"value"


def test_value_of_another_place_token_or_content_is_not_opened() -> None:
    sealed = Seal("secret").close("node:a", b"value")
    assert Seal("secret").open("node:b", sealed) is None
    assert Seal("other").open("node:a", sealed) is None
    assert Seal("secret").open("node:a", sealed + b"x") is None
    assert Seal("secret").open("node:a", b"value") is None
    assert Seal("secret").open("node:a", b"") is None


def test_value_beyond_its_maximum_size_is_not_opened() -> None:
    seal = Seal("secret")
    assert seal.open("a", seal.close("a", bytes(MAX_VALUE))) is not None
    assert seal.open("a", seal.close("a", bytes(MAX_VALUE + 1))) is None


def test_seal_does_not_show_its_secret() -> None:
    assert "secret" not in repr(Seal("secret"))
