"""The texts of histories, and searches."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.gateway.search.texts import (
    LOOKED_AT,
    MOST_PIECES,
    MOST_WORDS,
    PART_SIZE,
    SNIPPET,
    TEXT_SIZE,
    marks_of,
    match_of,
    snippet_of,
    snippets_of,
    spellings_of,
    texts_of,
)
from acp_gateway.protocol.text.spans import ELEMENTS
from acp_gateway.protocol.text.whole_values import SMALL
from tests.kit.updates import any_updates, said, tool


def message(update: Any, session_id: str = "s") -> bytes:
    return json.dumps({"method": "session/update", "params": {"sessionId": session_id, "update": update}}).encode()


def texts(
    *updates: Any, begin: int = 0, is_complete: bool = True
) -> tuple[list[tuple[str, list[tuple[int, int]]]], int]:
    found = texts_of(list(map(message, updates)), begin, is_complete=is_complete)
    return [(one.text, one.parts) for one in found.texts], found.end


def test_chunks_of_a_message_are_one_part_at_the_position_of_the_first() -> None:
    found = texts(said("do", "user"), said("di"), said("vide"), said("by", messageId="1"), begin=7)
    assert found == ([("do\ndivide\nby", [(0, 7), (3, 8), (10, 10)])], 11)


def test_other_updates_between_two_chunks_do_not_part_a_message() -> None:
    assert texts(said("di"), {"sessionUpdate": "usage_update"}, said("vide"))[0] == [("divide", [(0, 0)])]


def test_a_tool_call_has_its_title_input_outputs_and_new_texts() -> None:
    content = [
        {"type": "diff", "path": "/a.py", "oldText": "old", "newText": "new"},
        {"type": "content", "content": {"type": "text", "text": "x" * (PART_SIZE + 1)}},
    ]
    call = tool("t", title="Run", rawInput={"command": "make all"}, content=content)
    ((text, parts),), _ = texts(said("a"), call, said("b"))
    assert text == f"a\nRun\nmake all\n/a.py\nnew\n{'x' * PART_SIZE}\nb"
    assert [position for _, position in parts] == [0, 1, 2]
    ((text, _),), _ = texts(tool("t", title=None, rawInput={"path": "/b"}))
    assert "/b" in text
    many = [{"type": "diff", "path": f"/{number}", "newText": ""} for number in range(ELEMENTS + 1)]
    ((text, _),), _ = texts(tool("t", title=None, content=many))
    assert text.endswith(f"/{ELEMENTS}")


def test_a_message_at_the_end_that_may_go_on_is_left_for_later() -> None:
    updates = [said("a", "user"), said("di"), said("vide")]
    assert texts(*updates, is_complete=False) == ([("a", [(0, 0)])], 1)
    assert texts(said("vide"), is_complete=False) == ([], 0)
    assert texts(*updates, tool("t", title="x"), is_complete=False)[1] == 4


def test_a_long_text_goes_on_in_another_one() -> None:
    long = "x" * (TEXT_SIZE + 1)
    assert [text for text, _ in texts(said(long), said("b", "user"))[0]] == [long, "b"]
    assert len(texts(*[said(long) for _ in range(6)])[0]) == 3


@given(st.lists(any_updates, max_size=8), st.integers(0, 8), st.booleans())
def test_any_updates_have_texts_and_no_part_comes_twice(updates: list[Any], cut: int, is_complete: bool) -> None:
    messages = [*map(message, updates), b"\xff", b"[]"]
    first = texts_of(messages[:cut], 0, is_complete=is_complete)
    second = texts_of(messages[first.end :], first.end, is_complete=True)
    positions = [position for one in (*first.texts, *second.texts) for _, position in one.parts]
    assert positions == sorted(set(positions))
    for one in (*first.texts, *second.texts):
        assert [start for start, _ in one.parts] == sorted({start for start, _ in one.parts})
    if not is_complete:
        whole = texts_of(messages, 0, is_complete=True)
        joined = "\n".join(one.text for one in (*first.texts, *second.texts))
        assert joined == "\n".join(one.text for one in whole.texts)


@given(st.lists(any_updates, max_size=8))
def test_small_and_large_updates_are_read_alike(updates: list[Any]) -> None:
    messages = list(map(message, updates))
    large = [one + b" " * SMALL for one in messages]
    assert texts_of(messages, 0, is_complete=True) == texts_of(large, 0, is_complete=True)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("zero", '"zero"*'),
        ("by zero", '"by" "zero"*'),
        ('"by zero" a', '"by zero" "a"'),
        ('say "by ze', '"say" "by ze"'),
        ("NEAR(a b) OR -c*", '"NEAR(a" "b)" "OR" "-c*"'),
        ("foo_bar.baz", '"foo_bar.baz"*'),
        ("a\0b", '"a" "b"'),
        ("漢字a", '"\x1f漢\x1f\x1f字\x1fa"'),
        ("", None),
        ('?! "" ""', None),
    ],
)
def test_a_search_is_words_and_phrases_and_the_beginning_of_the_last_word(words: str, match: str | None) -> None:
    assert match_of(words) == match


def test_a_search_has_so_many_words() -> None:
    assert (match_of("a " * 200) or "").count('"a"') == MOST_WORDS


def test_a_snippet_has_the_first_word_and_tells_its_position() -> None:
    text = "one two\n" + "filler " * 100 + "\nDivided by zero, and by Zero again"
    found = snippet_of(text, [(0, 3), (8, 5), (text.index("Divided"), 9)], 'again "by zero"')
    assert found.position == 9
    assert [found.text[begin:end] for begin, end in found.marks] == ["by zero", "by Zero", "again"]
    assert found.text.startswith("…")
    assert len(found.text) <= SNIPPET + 2
    assert "\n" not in found.text


def test_each_message_with_a_text_has_a_snippet_also_where_it_is_within_a_word() -> None:
    text = "by zero\nparseByZero(_by  Zero)\nzero by"
    parts = [(0, 3), (8, 5), (text.index("zero by"), 9)]
    assert [(one.position, one.text, one.marks) for one in snippets_of(text, parts, "by zero")] == [
        (3, "by zero", [(0, 7)]),
        (5, "parseByZero(_by  Zero)", [(13, 21)]),
    ]
    assert [one.position for one in snippets_of(text, parts, "byz")] == [5]
    assert [one.position for one in snippets_of(text, parts, "(_BY")] == [5]
    assert snippets_of(text, parts, "naive") == snippets_of(text, parts, " ") == []


def test_the_words_of_a_text_have_the_spellings_that_bytes_tell_apart() -> None:
    assert spellings_of(" über a_b ") == [["über", "ÜBER", "Über"], ["a_b", "A_B"]]
    assert spellings_of("\ud800\0 ") == [["?"]]
    assert len(spellings_of("a " * 200)) == MOST_WORDS


def test_a_snippet_of_a_word_with_other_accents_is_the_beginning() -> None:
    assert snippet_of("naïve\nidea", [(0, 1), (6, 2)], "naive") == (1, "naïve idea", [])


@given(st.text(max_size=300), st.text(max_size=20))
def test_any_snippet_has_its_marks_within(text: str, words: str) -> None:
    found = snippet_of(text, [(0, 1)], words)
    assert found.position == 1
    assert all(0 <= begin < end <= len(found.text) for begin, end in found.marks)


def test_a_snippet_marks_chinese_and_japanese_words_within_a_sentence() -> None:
    found = snippet_of("除以零的错误 zero", [(0, 1)], "以零 zero")
    assert [found.text[begin:end] for begin, end in found.marks] == ["以零", "zero"]
    assert snippet_of("by zero byzero", [(0, 1)], '"by zero"').marks == [(0, 7)]


def test_a_search_has_no_lone_surrogates_which_sqlite_refuses() -> None:
    assert match_of("\ud800a zero\ud800") == '"?a" "zero?"*'


@pytest.mark.parametrize("depth", range(900, 1000, 10))
def test_a_deep_input_is_searched_as_far_as_it_is_read(depth: int) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    update = b'{"sessionUpdate":"tool_call","title":"deep","rawInput":%b}' % deep
    for more in range(10):
        nested = update.replace(b"1", b"[" * more + b"1" + b"]" * more)
        found = texts_of([b'{"params":{"update":%b}}' % nested], 0, is_complete=True).texts
        assert [one.text.splitlines()[0] for one in found] in ([], ["deep"])


def test_a_large_input_is_written_no_further_than_it_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> str:
        raise AssertionError("the whole input is written")

    update = message({"sessionUpdate": "tool_call", "rawInput": {"a": ["x"] * 10_000}})
    monkeypatch.setattr(json, "dumps", refuse)
    (found,) = texts_of([update], 0, is_complete=True).texts
    assert found.text.startswith('{"a": ["x", "x"')
    assert len(found.text) == PART_SIZE


def test_a_snippet_is_looked_for_in_steps_and_in_the_beginning_of_a_long_text() -> None:
    for at in (0, 16_383, 16_384, 20_000, LOOKED_AT - 10):
        assert snippet_of(" " * at + "by zero" + " " * 300_000, [(0, 0)], '"by zero"').marks != []
    assert snippet_of("- " * LOOKED_AT + "zero", [(0, 0)], "zero").marks == []


def test_a_message_is_searched_in_its_beginning() -> None:
    for at, places in ((20_000, [1, 2]), (LOOKED_AT + 1000, [2])):
        first = "- " * (at // 2) + "zero"
        text = f"{first}\nzero"
        assert [one.position for one in snippets_of(text, [(0, 1), (len(first) + 1, 2)], "zero")] == places


def test_the_first_pieces_of_a_phrase_are_looked_for_which_bounds_the_time() -> None:
    for letter, between in (("\u4e00", ""), ("a", " ")):
        phrase = between.join([letter] * 2 * MOST_PIECES)
        (mark, *_) = marks_of(phrase, f'"{phrase}"')
        assert mark == (0, MOST_PIECES + (MOST_PIECES - 1) * len(between))
