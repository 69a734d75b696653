"""Commands as words: what is read is what a shell makes of it, and nothing else is read."""

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acp_gateway.rules.words import COMMAND_SIZE, MAX_WORDS, read_list, read_words, write_words

META = "|&;<>()$`\\\"'*?[]#~{}!^\n\r\t\0\v\f\x1b\u00a0\u2003\u200b\u202e\u2028\ufeff"
SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "fish") if shutil.which(shell)]
PLAIN = st.text("abcXYZ019_./:,@%+=-é", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pytest -q", ["pytest", "-q"]),
        ("  pytest   -q  ", ["pytest", "-q"]),
        ("git commit -m 'a \"b\" c'", ["git", "commit", "-m", 'a "b" c']),
        ("""echo "it's" a''b ''""", ["echo", "it's", "ab", ""]),
        (r"grep '\bword' a", ["grep", r"\bword", "a"]),
        ("make CC=x", ["make", "CC=x"]),
        ("echo 'a;b|c&d$e`f'", ["echo", "a;b|c&d$e`f"]),
        ("'p'ytest", ["pytest"]),
    ],
)
def test_a_simple_command_is_read_as_its_words(text: str, words: list[str]) -> None:
    assert read_words(text) == tuple(words)
    assert read_words(write_words(words)) == tuple(words)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "''",
        "a 'b",
        'a "b',
        "X=1 a",
        "X+=1 a",
        "'X=1' a",
        "a =ls",
        "a %1",
        "-x",
        "if a",
        "time a",
        "export A=b",
    ]
    + ["a '\\''", "a 'b\\\\c'", 'a "b!"', "a " * MAX_WORDS + "a", "a" * (COMMAND_SIZE + 1), "two\u3000words"]
    + [f"a {mark}b" for mark in META.replace("'", "").replace('"', "")],
)
def test_other_texts_are_not_read(text: str) -> None:
    assert read_words(text) is None


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["pytest", "-q"], ["pytest", "-q"]),
        (["bash", "-lc", "pytest -q"], ["pytest", "-q"]),
        (["/bin/sh", "-c", "pytest -q; x"], None),
        (["bash", "-lc", "pytest", "-q"], ["bash", "-lc", "pytest", "-q"]),
        (["/tmp/bash", "-c", "pytest -q"], None),
        (["pytest", "a b"], None),
        (["pytest", "a;b"], None),
        (["pytest", "'a'"], None),
        (["pytest", ""], None),
        (["pytest", 1], None),
        ([], None),
    ],
)
def test_a_list_is_read_where_a_shell_makes_no_difference(words: list[object], read: list[str] | None) -> None:
    assert read_list(words) == (None if read is None else tuple(read))


@given(st.lists(PLAIN, min_size=1, max_size=4), st.sampled_from(META.replace("'", "").replace('"', "")), st.data())
def test_no_metacharacter_outside_of_quotes_is_ever_read(words: list[str], mark: str, data: st.DataObject) -> None:
    text = " ".join(words)
    at = data.draw(st.integers(1, len(text)))
    assert read_words(f"a{text[:at]}{mark}{text[at:]}b") is None


@settings(max_examples=100, deadline=None)
@given(st.text("ab'\"\\ $;-=%\n|.é~*", max_size=20))
def test_a_command_that_is_read_is_what_every_shell_gives_to_its_program(text: str) -> None:
    words = read_words(f"a{text}")
    if words is not None:
        for shell in SHELLS:
            done = subprocess.run(
                [shell, "-c", f"printf '<%s>\\n' a{text}"], capture_output=True, check=True, timeout=60, text=True
            )
            assert done.stdout == "".join(f"<{word}>\n" for word in words), shell
