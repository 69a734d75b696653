"""The file of the index."""

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.search.index import END, TIME_LIMIT, Place, SearchIndex, SearchReader, open_index, remove_files
from acp_gateway.gateway.search.texts import TEXT_SIZE, Snippet
from acp_gateway.gateway.storage.corruption import Corruption
from tests.gateway.search.test_texts import message
from tests.kit.updates import said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "search.db"


@pytest.fixture
def index(path: Path) -> Iterator[SearchIndex]:
    opened = open_index(path)
    yield opened
    opened.close()


def add(index: SearchIndex, key: int, *texts: str, begin: int = 0, start: int = 0, is_new: bool = False) -> Place:
    """Add messages of users and agents in turn."""
    kinds = ["user", "agent"]
    messages = [message(said(text, kinds[number % 2])) for number, text in enumerate(texts)]
    return index.add(key, "e", messages, begin, start, is_new=is_new, is_complete=True)


def found(path: Path, words: str, *keys: int, limit: int = 50) -> list[tuple[int, int, str]]:
    reader = SearchReader(path)
    try:
        ranks = {key: rank for rank, key in enumerate(keys or (1, 2, 3))}
        return [(one.key, one.texts, one.snippet.text) for one in reader.find(words, ranks, limit)]
    finally:
        reader.close()


def on_disk(path: Path) -> bytes:
    files = [path, path.with_name(path.name + "-wal")]
    return b"".join(file.read_bytes() for file in files if file.exists())


def test_sessions_with_all_words_are_found_by_rank(index: SearchIndex, path: Path) -> None:
    for key in (1, 2, 3):
        add(index, key, f"divide number{key}", "by zéro")
    assert found(path, "DIVIDE zero") == [(key, 1, f"divide number{key} by zéro") for key in (1, 2, 3)]
    assert [key for key, *_ in found(path, "divide", 3, 1)] == [3, 1]
    assert [key for key, *_ in found(path, "divide", 3, 1, limit=1)] == [3]
    assert [key for key, *_ in found(path, "number2")] == [2]
    assert [key for key, *_ in found(path, "numb")] == [1, 2, 3]
    assert found(path, '"zero divide"') == []


def test_beginnings_of_the_shortest_length_have_an_index_of_their_own(index: SearchIndex, path: Path) -> None:
    add(index, 1, "divide")
    with closing(sqlite3.connect(path)) as file:
        blocks = b"".join(block for (block,) in file.execute("SELECT block FROM doc_data"))
    # The index of whole words has its terms behind "0", the one of beginnings behind "1".
    assert b"0divide" in blocks
    assert b"1divi" in blocks


def test_texts_of_a_session_are_found_with_their_positions_the_last_first(index: SearchIndex, path: Path) -> None:
    add(index, 1, "zero one", "two")
    assert add(index, 1, "three zero", begin=2) == Place("e", 3)
    add(index, 2, "zero")
    reader = SearchReader(path)
    hits, more = reader.find_in("zero", 1, None, 50)
    assert ([(hit.position, hit.text) for hit in hits], more) == ([(2, "three zero"), (0, "zero one")], False)
    hits, more = reader.find_in("zero", 1, 2, 50)
    assert ([hit.position for hit in hits], more) == ([0], False)
    hits, more = reader.find_in("zero", 1, None, 1)
    assert ([hit.position for hit in hits], more) == ([2], True)
    assert reader.find_in("zero", 9, None, 50) == ([], False)
    reader.close()


def test_a_text_is_found_in_a_session_also_within_a_word(index: SearchIndex, path: Path) -> None:
    add(index, 1, "parseRateLimit", "rate_limit 50%", "Größe rate", "\u6f22\u5b57 a", "rate of a limit")
    with closing(SearchReader(path)) as reader:

        def at(text: str) -> list[int]:
            return [hit.position for hit in reader.find_in(text, 1, None, 50)[0]]

        assert at("RATEL") == [0]
        assert at("e_l") == [1]
        assert at("0%") == [1]
        assert at("GRÖß") == at("größe  rate") == [2]
        assert at("\u5b57 A") == at("\u6f22\u5b57") == [3]
        assert at("rate limit") == []
        assert at("rate") == [4, 2, 1, 0]


def test_the_end_of_the_last_text_of_a_session_is_returned(index: SearchIndex, path: Path) -> None:
    add(index, 1, "zero one", "two")
    add(index, 1, "three", "four " * 1000 + "end", begin=2)
    add(index, 2, "\u6f22\u5b57 zero")
    reader = SearchReader(path)
    assert reader.last([1, 2, 9]) == {1: ("four " * 1000 + "end")[-END:], 2: "\u6f22\u5b57 zero"}
    reader.close()


def test_all_messages_of_one_text_are_found_page_by_page(index: SearchIndex, path: Path) -> None:
    add(index, 1, *(f"zero number{number}" for number in range(5)), "zéro")
    reader = SearchReader(path)
    pages, before = [], None
    while True:
        hits, more = reader.find_in("zero", 1, before, 2)
        pages.append([hit.position for hit in hits])
        if not more:
            break
        before = hits[-1].position
    reader.close()
    assert pages == [[4, 3], [2, 1], [0]]


def test_what_is_cut_off_a_history_is_removed_from_the_index(index: SearchIndex, path: Path) -> None:
    add(index, 1, "early")
    add(index, 1, "late", begin=1)
    add(index, 1, "later", begin=2, start=1)
    assert found(path, "early") == []
    assert [texts for _, texts, _ in found(path, "late*")] == [2]
    add(index, 1, "another", is_new=True)
    assert found(path, "late*") == []
    assert index.places() == {1: Place("e", 1)}


def test_nothing_of_a_session_that_is_forgotten_is_left_in_the_file(index: SearchIndex, path: Path) -> None:
    add(index, 1, "xylophonequartz " * 50)
    add(index, 2, "other")
    assert b"xylophonequartz" in on_disk(path)
    index.forget([1, 7])
    assert b"xylophone" not in on_disk(path)
    assert index.places() == {2: Place("e", 1)}
    assert [key for key, *_ in found(path, "other")] == [2]


def test_the_index_is_as_it_was_after_it_is_opened_again(path: Path) -> None:
    first = open_index(path)
    add(first, 1, "zero")
    first.close()
    second = open_index(path)
    assert second.places() == {1: Place("e", 1)}
    add(second, 1, "more", begin=1)
    second.close()
    assert [texts for _, texts, _ in found(path, "zero")] == [1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", [b"x" * 5000, b""])
def test_a_file_that_is_not_an_index_is_replaced(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    index = open_index(path)
    assert index.places() == {}
    index.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    open_index(path).close()


def test_damaged_texts_are_told_from_what_is_only_not_there(index: SearchIndex, path: Path) -> None:
    add(index, 1, "zero")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE doc SET parts = 'x'")
    with closing(SearchReader(path)) as reader:
        with pytest.raises(Corruption, match="malformed"):
            reader.find("zero", {1: 0}, 5)
        with pytest.raises(Corruption, match="malformed"):
            reader.find_in("zero", 1, 100, 5)


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="is a link"):
        open_index(path)


def test_a_search_that_takes_too_long_is_given_up(
    index: SearchIndex, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(index, 1, *(f"zero{number}" for number in range(2000)))
    monkeypatch.setattr("acp_gateway.gateway.search.index._STEPS", 1)
    clock = count(0, TIME_LIMIT)
    reader = SearchReader(path, lambda: next(clock))
    with pytest.raises(TimeoutError):
        reader.find("zero", {1: 0}, 1)
    reader.close()


def test_a_search_whose_texts_take_too_long_to_look_through_is_given_up(
    index: SearchIndex, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    looked_through: list[str] = []

    def slow_snippet(text: str, *_: object) -> Snippet:
        nonlocal now
        now += 0.6 * TIME_LIMIT
        looked_through.append(text)
        return Snippet(0, text, [])

    def slow_snippets(text: str, *_: object) -> list[Snippet]:
        return [slow_snippet(text)]

    monkeypatch.setattr("acp_gateway.gateway.search.index.snippet_of", slow_snippet)
    monkeypatch.setattr("acp_gateway.gateway.search.index.snippets_of", slow_snippets)
    for key in range(1, 6):
        add(index, key, *["zero" + " filler" * TEXT_SIZE] * 5)
    with closing(SearchReader(path, lambda: now)) as reader:
        with pytest.raises(TimeoutError):
            reader.find("zero", {key: key for key in range(1, 6)}, 50)
        with pytest.raises(TimeoutError):
            reader.find_in("zero", 1, None, 50)
    assert len(looked_through) == 4


def test_texts_that_are_erased_during_a_search_are_not_found(index: SearchIndex, path: Path) -> None:
    def reader_erasing(key: int, reads: int) -> SearchReader:
        """Return a reader that erases a session before one of its reads."""
        add(index, key, "zero")
        clock = count(1)

        def now() -> float:
            # The first look at the clock is for the deadline.
            if next(clock) - 1 == reads:
                index.forget([key])
            return 0.0

        return SearchReader(path, now)

    add(index, 9, "zero")
    # The read of the text follows one read of what is found; in a session, also the one of its number.
    with closing(reader_erasing(1, 2)) as reader:
        assert [one.key for one in reader.find("zero", {1: 0, 9: 1}, 50)] == [9]
    for reads in (2, 3):
        with closing(reader_erasing(1, reads)) as reader:
            assert reader.find_in("zero", 1, None, 50) == ([], False)


def test_a_failed_change_leaves_the_index_as_it_was(index: SearchIndex, path: Path) -> None:
    add(index, 1, "zero")
    with pytest.raises(sqlite3.IntegrityError):
        # The same text again.
        add(index, 1, "zero")
    assert [texts for _, texts, _ in found(path, "zero")] == [1]
    add(index, 1, "more", begin=1)


def test_lone_surrogates_are_stored_as_something_else(index: SearchIndex, path: Path) -> None:
    add(index, 1, "zero \ud800")
    assert [texts for _, texts, _ in found(path, "zero")] == [1]


def test_all_files_are_removed(path: Path) -> None:
    open_index(path).close()
    path.with_name("search.db-wal").touch()
    remove_files(path)
    assert list(path.parent.iterdir()) == []
    remove_files(path)


def test_chinese_and_japanese_words_are_found_within_a_sentence(index: SearchIndex, path: Path) -> None:
    texts = ["除以零的错误", "abc東京タワーxyz", "a\x1fb"]
    for key, text in enumerate(texts, 1):
        add(index, key, text)
    assert found(path, "零的") == [(1, 1, texts[0])]
    assert found(path, "的零") == []
    assert found(path, "東京 xyz") == [(2, 1, texts[1])]
    assert found(path, "タワ") == [(2, 1, texts[1])]
    assert found(path, "b") == [(3, 1, "a b")]


def test_files_that_others_could_read_are_private_again(path: Path) -> None:
    open_index(path).close()
    path.chmod(0o644)
    open_index(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
