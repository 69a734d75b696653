"""Checking large messages piece by piece: what passes is JSON, and each piece is small."""

import json
import random
from collections.abc import Iterator

import pytest

from acp_gateway.protocol.jsonrpc import INVALID_REQUEST, PARSE_ERROR, InvalidMessage
from acp_gateway.protocol.text import large_messages
from acp_gateway.protocol.text.large_messages import OUTLINE_SIZE, Outline, check_large
from tests.fuzz.effort import effort

PIECE = 4096


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "PIECE", PIECE)
    monkeypatch.setattr(large_messages, "_FIRST_PIECE", 64)


def check(text: bytes) -> Outline:
    checking = check_large(text)
    while True:
        try:
            next(checking)
        except StopIteration as checked:
            outline: Outline = checked.value
            return outline


def quoted(content: bytes) -> bytes:
    return b'{"a":"%b","b":1}' % content


LONG = (
    b"a" * 20_000,
    rb"\n" * 10_000,
    rb"\"" * 10_000,
    rb"\\" * 10_000,
    rb"\u0041" * 4000,
    "\u20ac".encode() * 7000,
    "\U0001f600".encode() * 5000,
    rb"\ud83d\ude00" * 2000,
    b'{\\"id\\":1}' * 2000,
)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("content", LONG)
@pytest.mark.parametrize("shift", range(7))
def test_a_long_string_passes_unchanged_wherever_pieces_end(content: bytes, shift: int) -> None:
    text = quoted(b"x" * shift + content)
    outline = check(text)
    assert outline.text is text
    assert outline.plain == b'{"a":"","b":1}'
    assert outline.place(outline.plain.index(b"1")) == text.index(b"1}", len(text) - 2)
    assert outline.is_long(outline.plain.index(b'""'))
    assert not outline.is_long(0)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("shift", range(13))
def test_the_escape_of_a_lone_surrogate_becomes_that_of_the_replacement_character(shift: int) -> None:
    text = quoted(b"x" * (PIECE + shift) + rb"\ud83d\ud83d\ude00\\ud83d\uDE00\n" + b"y" * PIECE)
    expected = quoted(b"x" * (PIECE + shift) + rb"\ufffd\ud83d\ude00\\ud83d\ufffd\n" + b"y" * PIECE)
    assert check(text).text == expected


@pytest.mark.usefixtures("small_pieces")
def test_lone_surrogates_in_short_strings_and_names_are_replaced_too() -> None:
    text = rb'{"\ud83d":"\udc00","x":"' + b"y" * 9000 + rb'","z":["\ud83d"]}'
    assert check(text).text == text.replace(rb"\ud83d", rb"\ufffd").replace(rb"\udc00", rb"\ufffd")


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        (quoted(b"x" * 3000 + b"\x01" + b"x" * 3000), PARSE_ERROR, "invalid character"),
        (quoted(b"x" * 3000 + rb"\x"), PARSE_ERROR, "invalid escaped character"),
        (quoted(b"x" * 3000 + rb"\ud8zz"), PARSE_ERROR, "JSON"),
        (quoted(b"x" * 3000 + b"\xff"), PARSE_ERROR, "not UTF-8 at byte 3006"),
        (quoted(b"x" * 3000 + b"\xe2\x82"), PARSE_ERROR, "not UTF-8"),
        (b'{"a":"' + b"x" * 5000, PARSE_ERROR, "a string has no end"),
        (b'{"a":"' + b"x" * 5000 + rb"\"", PARSE_ERROR, "a string has no end"),
        (quoted(b"x" * 5000) + b"}", PARSE_ERROR, "JSON"),
        (quoted(b"x" * 5000)[:-1], PARSE_ERROR, "JSON"),
        (b"[" * 100_000, PARSE_ERROR, "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, PARSE_ERROR, "nested too deeply"),
    ],
)
def test_what_is_not_json_is_refused(text: bytes, code: int, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why) as raised:
        check(text)
    assert raised.value.code == code


def test_a_message_with_too_much_besides_long_strings_is_refused_before_it_is_looked_through() -> None:
    text = b"[" + b"[]," * OUTLINE_SIZE + b"[]]"
    pieces = 0

    def count() -> None:
        nonlocal pieces
        for _ in check_large(text):
            pieces += 1

    with pytest.raises(InvalidMessage, match=f"at most {OUTLINE_SIZE} bytes") as raised:
        count()
    assert raised.value.code == INVALID_REQUEST
    # One for each piece of the text that is checked for UTF-8, and one for each piece of the outline up to the limit.
    assert pieces <= 2 + len(text) // large_messages.PIECE + OUTLINE_SIZE // large_messages.PIECE


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("content", LONG)
def test_the_check_is_interrupted_after_each_piece(content: bytes) -> None:
    assert sum(1 for _ in check_large(quoted(content))) >= 2 * len(content) // PIECE


# Compared with the parser of the standard library

ATOMS = (
    *("a", '"', r"\n", r"\\", r"\"", r"\ud83d", r"\ude00", r"\ud83d\ude00", r"\uD83D", r"\u0041", "\u20ac", "\xe9"),
    *("\U0001f600", "x" * 300, "\\", r"\u12", "\x01", "{", "]", r"\\ud83d", "y" * 70),
)


def some_string(chance: random.Random) -> str:
    atoms = ATOMS if chance.random() < 0.02 else [atom for atom in ATOMS if atom not in ('"', "\\", r"\u12", "\x01")]
    return '"' + "".join(chance.choice(atoms) for _ in range(chance.choice((0, 1, 3, 10, 80)))) + '"'


def some_value(chance: random.Random, depth: int = 0) -> str:
    kind = chance.random()
    if kind < 0.5 or depth > 4:
        return some_string(chance)
    if kind < 0.6:
        return chance.choice(("1", "-2.5e3", "true", "null"))
    inner = [some_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind < 0.8:
        return "[" + ",".join(inner) + "]"
    return "{" + ",".join(f"{some_string(chance)}:{value}" for value in inner) + "}"


def some_texts(seed: int, count: int) -> Iterator[bytes]:
    chance = random.Random(seed)  # noqa: S311
    for _ in range(count):
        text = some_value(chance).encode()
        if chance.random() < 0.15:
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice((b"", b'"', b"\\", b"\xff", b"x")) + text[at + chance.randrange(2) :]
        yield text


def refuse(constant: str) -> None:
    raise ValueError(constant)


def read(text: bytes) -> object:
    return json.loads(text.decode(), parse_constant=refuse, object_pairs_hook=lambda pairs: pairs)


def without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(without_surrogates, value))
    return value


@pytest.mark.parametrize("size", [2600, 4096, 8192])
def test_the_check_accepts_what_a_slow_parser_accepts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "PIECE", size)
    monkeypatch.setattr(large_messages, "_FIRST_PIECE", 16)

    for text in some_texts(size, effort(300).max_examples):
        try:
            expected = without_surrogates(read(text))
        except (ValueError, RecursionError):
            with pytest.raises(InvalidMessage):
                check(text)
            continue
        checked = check(text).text
        assert len(checked) == len(text)
        assert read(checked) == expected
