"""Whole JSON texts."""

import gc
from typing import Any

import msgspec
import pytest

from acp_gateway.protocol.text.whole_values import parse_whole


@pytest.fixture
def collects(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """True for each parsing during which garbage was collected."""
    found: list[bool] = []
    decode = msgspec.json.decode

    def noting(text: bytes) -> Any:
        found.append(gc.isenabled())
        return decode(text)

    monkeypatch.setattr(msgspec.json, "decode", noting)
    return found


def test_a_text_with_lone_surrogates_is_parsed() -> None:
    assert parse_whole(rb'{"a":["\ud83d",1]}') == {"a": ["\ud83d", 1]}


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 200_000])
def test_a_text_that_is_not_json_or_too_deep_has_no_value(text: bytes) -> None:
    assert parse_whole(text) is None
    assert gc.isenabled()


def test_garbage_is_not_collected_while_a_large_text_is_parsed(collects: list[bool]) -> None:
    assert len(parse_whole(b"[%b[]]" % (b"[]," * 5000))) == 5001
    assert parse_whole(b"[]") == []
    assert collects == [False, True]
    assert gc.isenabled()


def test_a_collection_that_is_turned_off_stays_so(collects: list[bool]) -> None:
    gc.disable()
    try:
        parse_whole(b"[%b[]]" % (b"[]," * 5000))
        assert not gc.isenabled()
    finally:
        gc.enable()
