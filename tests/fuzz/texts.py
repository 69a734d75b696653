"""JSON texts as peers could spell them, messages above all, and texts that are nearly JSON."""

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

IDS: Final = (
    *(b"0", b"-0", b"1", b"1.0", b"1e0", b"10e-1", b'"1"', b"1e2", b"1E+999", b"-7", b"null", b'""', b'"null"'),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9007199254740993", b"1" * 40),
    *(
        b"1" * 5000,
        b"0." + b"9" * 25,
        b'"9f1c2b6e-0000-4000-8000-000000000000"',
        b'"A"',
        rb'"\u0041"',
        rb'"\/"',
        b'"/"',
    ),
    *(rb'"\ud83d"', rb'"\ud83d\ude00"', '"😀"'.encode(), b'"\xe2\x80\xa8"', rb'"\\\""', rb'"\\u0041"', rb'"\u0000"'),
)
"""Spellings of ids that some parsers confuse."""

STRINGS: Final = (
    *(b'""', b'"s"', b'"id"', b'"session/new"', b'"session/update"', rb'"\u0073"', rb'"a\/b\n"', rb'"\\ud83d"'),
    *(rb'"\ud83d"', rb'"\uD83D\u0041"', rb'"\ude00 \ud83d\ude00"', b'"\xe2\x80\xa8"', b'"\xc3\xa9"', b'"\x7f"'),
    *(b'"_acp-gateway/ack"', rb'"_acp-gateway\/ack"', b'"}"', b'"]"', b'","', rb'"\""', '"\ufeff"'.encode()),
)
SCALARS: Final = (*IDS, *STRINGS, b"true", b"false", b"1.10", b"1e-400")
NAMES: Final = (
    *(b'"id"', b'"method"', b'"params"', b'"result"', b'"error"', b'"jsonrpc"', b'"_meta"', b'"sessionId"'),
    *(b'"update"', b'"sessionUpdate"', b'"requestId"', b'"cwd"'),
)
"""Names that mean something."""
DISGUISED: Final = (
    *(
        rb'"\u0069d"',
        b'"ID"',
        b'"Id"',
        rb'"\u0049d"',
        rb'"meth\u006Fd"',
        b'"Method"',
        b'"PARAMS"',
        '"param\u017f"'.encode(),
    ),
    *(rb'"param\u017f"', b'"Result"', rb'"session\u0049d"', b'"session_id"', b'"SessionId"', b'""', rb'"\ud83d"'),
)
"""Names that some parsers take for those, and others."""
UNSOUND: Final = (
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b" ", b"\n", b"\x00", b"\x0b", b"\xff", b"-", b".", b"0", b"e"),
    *(b"01", b"1.", b".5", b"+1", b"NaN", b"Infinity", b"-Infinity", b'"\xed\xa0\x80"', b'"\t"', rb'"\q"', rb'"\u12"'),
    *(b"\xef\xbb\xbf", b"\xc0\xaf", b"'a'", b"/**/", b"undefined", b"\xe2\x80\xa8", rb'"\x41"', b"\x1f", b"tru"),
)
"""Tokens that are not JSON, or not at that place."""

SHALLOW: Final = 100
"""Levels of nesting that every parser reads."""
DEEP: Final = 20_000
"""Levels of nesting that the gateway does not read."""

blanks = st.sampled_from((b"", b"", b"", b"", b" ", b"\r\n", b"\t", b"  "))
scalars = st.sampled_from(SCALARS)
names = st.sampled_from((*NAMES, *NAMES, *DISGUISED))


def _join(parts: Sequence[bytes], braces: bytes) -> bytes:
    return braces[:1] + b",".join(parts) + braces[1:]


def _nest(levels: int, value: bytes) -> bytes:
    return b"[" * levels + value + b"]" * levels


def _member(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(b"%b%b%b:%b%b%b".__mod__, st.tuples(blanks, names, blanks, blanks, values, blanks))


def _containers(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    padded = st.builds(b"%b%b%b".__mod__, st.tuples(blanks, values, blanks))
    return st.builds(_join, st.lists(_member(values), max_size=4), st.just(b"{}")) | st.builds(
        _join, st.lists(padded, max_size=4), st.just(b"[]")
    )


values: st.SearchStrategy[bytes] = st.one_of(
    scalars,
    scalars,
    _containers(scalars),
    _containers(scalars | _containers(scalars)),
    st.builds(_nest, st.sampled_from([3, SHALLOW]), scalars),
)
"""JSON texts, of no more than `SHALLOW` levels."""

_tops = st.one_of(
    st.builds(b'"id":%b'.__mod__, st.sampled_from(IDS)),
    st.builds(b'"method":%b'.__mod__, st.sampled_from(STRINGS)),
    st.builds(b'%b:{"sessionId":%b%b}'.__mod__, st.tuples(names, values, st.sampled_from((b"", b',"update":{}')))),
    st.builds(b'"params":{"update":{"sessionUpdate":%b},"sessionId":%b}'.__mod__, st.tuples(scalars, scalars)),
    st.builds(b'"params":%b'.__mod__, values),
    st.builds(b'"result":%b'.__mod__, values),
    st.builds(b'"error":%b'.__mod__, values),
    _member(values),
)

messages = st.builds(_join, st.lists(_tops, min_size=1, max_size=5), st.just(b"{}"))
"""JSON objects; most are messages."""


@st.composite
def mutated(draw: st.DrawFn, texts: st.SearchStrategy[bytes], most: int = 3) -> bytes:
    """Some of these texts with places replaced, cut out, repeated or filled in."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, most))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from((0, 0, 1, 1, 2, 5, 40))))
        piece = draw(st.sampled_from(UNSOUND) | scalars | st.binary(max_size=3) | st.just(text[start:end] * 2))
        text = text[:start] + piece + text[end:]
    return text


nearly_messages = st.one_of(
    messages,
    messages,
    messages,
    mutated(messages),
    values,
    st.lists(st.sampled_from(UNSOUND) | scalars, max_size=12).map(b"".join),
    st.binary(max_size=30),
)
"""Anything that a peer could send for a message, of no more than a few hundred levels."""
