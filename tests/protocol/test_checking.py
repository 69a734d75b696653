"""A text is JSON or not, and its method, in one pass."""

import pytest

from acp_gateway.protocol.checking import method_of


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (b'{"method":"a/b"}', "a/b"),
        (rb' {"m\u0065thod" : "\u0061"} ', "a"),
        (b'{"method":"a","method":"b"}', "b"),
        (rb'{"a":"\ud83d","\uD83D":"\\\\ud","method":"x"}', "x"),
        (b'{"Method":"a"}', ""),
        (b'{"method":7}', ""),
        (b"{}", ""),
        (b'["method"]', ""),
        (b'"method"', ""),
    ],
)
def test_the_method_is_that_which_a_parser_finds(text: bytes, method: str) -> None:
    assert method_of(text) == method


@pytest.mark.parametrize(
    "text",
    [b"", b"x", b'{"a":', b"{} {}", b'{"a":"\\q"}', b'{"a":"\\ud8"}', b'{"a":NaN}', b"[" * 100_000, b'{"a":"\n"}'],
    ids=lambda text: text[:10],
)
def test_what_is_no_json_or_too_deep_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        method_of(text)
