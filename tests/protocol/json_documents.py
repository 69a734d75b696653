"""Texts that are JSON-RPC messages, or almost, for tests with random input."""

from hypothesis import strategies as st

STRINGS = [
    *(b'""', b'"1"', b'"id"', b'"method"', b'"session/new"', rb'"a\/b\n"', rb'"\\ud83d"'),
    *(rb'"\ud83d"', rb'"\ud83d\ude00"', rb'"\uD83D\u0041"', b'"\xe2\x80\xa8"', b'"\xc3\xa9"', b'"\x7f"'),
]
SCALARS = [b"0", b"-0", b"1", b"1.0", b"1e2", b"1E+999", b"9" * 30, b"true", b"null", *STRINGS]
NAMES = [b'"result"', b'"error"', b'"params"', b'"ID"', *STRINGS]
UNSOUND = [
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b" ", b"\n", b"\x00", b"\x0b", b"\xff", b"-", b".", b"0", b"e"),
    *(b"01", b"1.", b"NaN", b"Infinity", b'"\xed\xa0\x80"', b'"\t"', rb'"\q"', rb'"\u12"', rb"\ud83d"),
    *(b'"id":', b'"result":'),
]

blanks = st.sampled_from([b"", b"", b"", b" ", b"\r\n", b"\t"])
scalars = st.sampled_from(SCALARS)
nested = st.sampled_from([b"[%b,{%b:%b}]", b'{"id":%b,%b:[%b]}', b" [ %b , [ %b ],{},%b ] "])
values = scalars | st.builds(lambda shape, *parts: shape % parts, nested, scalars, st.sampled_from(STRINGS), scalars)


def member(names: list[bytes], value: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(blanks, st.sampled_from(names), blanks, st.just(b":"), blanks, value, blanks).map(b"".join)


members = st.one_of(
    member([b'"id"', rb'"\u0069d"'], values),
    member([b'"method"', rb'"meth\u006Fd"'], st.sampled_from(STRINGS)),
    member([b'"result"', b'"error"'], values),
    member(NAMES, values),
)
documents = st.lists(members, min_size=2, max_size=5).map(lambda parts: b"{" + b",".join(parts) + b"}") | values
pieces = st.sampled_from(SCALARS + UNSOUND)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A document with one or two places replaced, cut out or filled in."""
    text = draw(documents)
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 4)))
        text = text[:start] + draw(pieces | st.binary(max_size=2)) + text[end:]
    return text
