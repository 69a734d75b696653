"""Records of a directory, which other machines have written."""

import json
from collections.abc import Mapping

import pytest

from acp_gateway.cluster.records import (
    ID_SIZE,
    MAX_NAMES,
    TEXT,
    NodeRecord,
    SessionRecord,
    decode_node,
    decode_session,
    encode,
)

NODE = {"name": "gpu1", "url": "wss://gpu1:8765", "boot": "b"}
SESSION = {"key": "gpu1/a/b", "node": "gpu2", "agent": "opencode", "owner": "ann", "epoch": 3}


def text(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields).encode()


def test_records_are_the_same_after_encode_and_decode() -> None:
    node = NodeRecord(name="gpu1", url="wss://gpu1:8765", boot="b", agents=("a",), workspaces=("/src",), lag=0.5)
    session = SessionRecord(key="gpu1/s", node="gpu1", agent="a", owner="ann", epoch=1, title="é", live=True)
    assert decode_node(encode(node)) == node
    assert decode_session(encode(session)) == session


def test_key_of_a_session_is_its_home_and_its_id_which_may_have_slashes() -> None:
    record = decode_session(text(SESSION))
    assert record is not None
    assert (record.home, record.id) == ("gpu1", "a/b")


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


@pytest.mark.parametrize(
    "flaw",
    [
        {"key": "no-slash"},
        {"key": "/s"},
        {"key": "gpu1/"},
        {"key": "gpu1/" + "x" * ID_SIZE},
        {"node": "a b"},
        {"agent": "a/b"},
        {"epoch": -1},
        {"epoch": "1"},
        {"title": "x" * (TEXT + 1)},
        {"live": 1},
    ],
)
def test_session_record_that_does_not_fit_is_left_out(flaw: dict[str, object]) -> None:
    assert decode_session(text(SESSION)) is not None
    assert decode_session(text(SESSION | flaw)) is None


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"name": "\xff"}'])
def test_what_is_no_record_at_all_is_left_out(value: bytes) -> None:
    assert decode_node(value) is None
    assert decode_session(value) is None
