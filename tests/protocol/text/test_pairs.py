"""Pairs of a message in both versions: none is taken for a text, and none loses its other half."""

from collections.abc import Callable

import pytest

from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.text.pairs import (
    Entry,
    Pair,
    are_same,
    has_pairs,
    is_hidden,
    shown,
    size_of,
    text_of,
    texts_of,
)

TEXT, NEW = b'{"method":"old"}', b'{"method":"newer"}'
PAIR, OLD_ONLY, HIDDEN, SAME = Pair(TEXT, NEW), Pair(TEXT), Pair(TEXT, NEW, is_hidden=True), Pair(TEXT, TEXT)


@pytest.mark.parametrize(
    "loses",
    [
        lambda pair: pair + b"\n",
        lambda pair: b"\n" + pair,
        lambda pair: pair[1:],
        lambda pair: b"".join([pair]),
        lambda pair: b"method" in pair,
        lambda pair: pair.find(b"method"),
        bytes,
        jsonrpc.parse,
    ],
)
def test_what_would_make_a_text_of_a_pair_fails(loses: Callable[[Pair], object]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        loses(PAIR)


def test_each_kind_of_entry_says_what_clients_of_each_version_get() -> None:
    entries: list[Entry] = [TEXT, PAIR, OLD_ONLY, HIDDEN, SAME]
    assert texts_of(entries) == [TEXT] * 5
    assert list(shown(entries)) == [TEXT] * 4
    assert [is_hidden(entry) for entry in entries] == [False, False, False, True, False]
    assert [entry.original for entry in entries if isinstance(entry, Pair)] == [NEW, None, NEW, TEXT]
    assert size_of(entries) == 5 * len(TEXT) + 2 * len(NEW)
    assert sum(map(len, entries)) == 5 * len(TEXT)
    assert [text_of(entry) for entry in entries] == [TEXT] * 5


def test_texts_alone_stay_the_object_that_they_are() -> None:
    texts = [TEXT, NEW]
    assert texts_of(texts) is texts
    assert shown(texts) is texts
    assert not has_pairs(texts)


def test_only_pairs_of_one_message_are_the_same_for_clients_of_both_versions() -> None:
    assert are_same([SAME, SAME])
    for other in (TEXT, PAIR, OLD_ONLY, HIDDEN, Pair(TEXT, bytes(bytearray(TEXT)))):
        assert not are_same([SAME, other])


def test_a_parsed_message_knows_the_pair_that_it_was_read_from() -> None:
    message = jsonrpc.parse_entry(PAIR)
    assert (message.method, message.entry, message.original) == ("old", PAIR, NEW)
    assert jsonrpc.parse_entry(SAME).entry is SAME
    assert jsonrpc.parse_entry(SAME).original is None
    assert jsonrpc.parse_entry(TEXT).entry is TEXT
