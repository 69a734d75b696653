"""The rules of prose that `tools/check_prose` checks, on small repositories."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.machine import needs_git

pytestmark = needs_git

TOOL = Path(__file__).parent.parent / "tools" / "check_prose"


def check(folder: Path, **files: str) -> tuple[int, str]:
    """Check a repository of these files, `a_py` for `a.py`; return the exit status and the output."""
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    result = subprocess.run([sys.executable, TOOL], cwd=folder, capture_output=True, text=True)
    assert result.stderr == ""
    return result.returncode, result.stdout


def test_a_clean_repository_passes_without_output(tmp_path: Path) -> None:
    source = '"""Rate limits."""\n\nburst = 3\n"""Messages that may come at once."""\n'
    assert check(tmp_path, a_py=source, a_md="The client is detached.\n") == (0, "")


@pytest.mark.parametrize("word", ["whoever", "Nobody", "somebody", "anybody's", "everybody"])
def test_a_sentence_about_a_person_is_reported_with_file_and_line(tmp_path: Path, word: str) -> None:
    status, output = check(tmp_path, a_md=f"One line.\nHere {word} acts.\n")
    banned = word.removesuffix("'s")
    assert status == 1
    assert output == f'a.md:2: name the object of the program instead of "{banned}"\n'


def test_comments_in_code_and_configuration_are_checked_too(tmp_path: Path) -> None:
    status, output = check(tmp_path, a_py="# For everybody.\n", a_toml="# For nobody.\n")
    assert (status, [line.partition(": ")[0] for line in output.splitlines()]) == (1, ["a.py:1", "a.toml:1"])


@pytest.mark.parametrize("name", ["test_nobody_waits", "_nobody", "NOBODY", "for_somebodys_sake"])
def test_a_name_about_a_person_is_reported(tmp_path: Path, name: str) -> None:
    status, output = check(tmp_path, a_py=f"x = 1\n{name} = 2\n")
    assert (status, output.partition(": ")[0]) == (1, "a.py:2")


@pytest.mark.parametrize(
    ("source", "word", "better"),
    [
        ("def open_entrance(): pass", "entrance", "listener"),
        ("class OfficeHours: pass", "office", "control channel"),
        ("def f(_WISHES): pass", "wishes", "request"),
        ("x.AT_THE_DOORSTEP", "doorstep", "listener"),
        ("f(tool_servers=1)", "tool_servers", "MCP server"),
        ("class ToolServer: pass", "tool_server", "MCP server"),
    ],
)
def test_a_metaphor_in_a_name_is_reported_with_the_word_for_it(
    tmp_path: Path, source: str, word: str, better: str
) -> None:
    status, output = check(tmp_path, a_py=f"x = 1\n{source}\n")
    assert status == 1
    assert output.startswith(f'a.py:2: name the {better} instead of "{word}" in ')


def test_a_word_that_only_contains_a_metaphor_passes(tmp_path: Path) -> None:
    assert check(tmp_path, a_py="indoors = seating = wished = outdoor_wishlist = 1\n") == (0, "")


def test_a_metaphor_in_a_string_passes(tmp_path: Path) -> None:
    assert check(tmp_path, a_py='x = "the door of the office"\n') == (0, "")


@pytest.mark.parametrize("word", ["What", "Whether", "Who", "Whose", "How", "Where", "Why"])
def test_a_docstring_that_begins_with_a_question_word_is_reported(tmp_path: Path, word: str) -> None:
    status, output = check(tmp_path, a_py=f'def f() -> None:\n    """{word} it is."""\n')
    assert status == 1
    assert output == f'a.py:2: begin with a verb or a noun phrase instead of "{word}"\n'


def test_docstrings_of_attributes_are_checked_as_those_of_functions_are(tmp_path: Path) -> None:
    status, output = check(tmp_path, a_py='limit = 3\n"""How many."""\n')
    assert (status, output.partition(": ")[0]) == (1, "a.py:2")


def test_a_word_that_only_begins_like_a_question_word_passes(tmp_path: Path) -> None:
    assert check(tmp_path, a_py='"""Whole messages."""\n') == (0, "")


@pytest.mark.parametrize(
    ("sentence", "found", "better"),
    [
        ("A line that is no message.", "is no", "is not a"),
        ("Lines that are no `Message`.", "are no", "is not a"),
        ("f'{name} is no {kind}'", "is no", "is not a"),
        ("The hello may be no integer.", "be no", "is not a"),
        ("None if it is none.", "is none", "is not one"),
        ("True if none of its clients is there.", "none of its", "no"),
        ("Blocks, of which the oldest goes.", "of which", "whose"),
        ("Count anew.", "anew", "again"),
        ("Afresh it counts.", "Afresh", "again"),
        ("The turn ends meanwhile.", "meanwhile", "until then"),
    ],
)
def test_a_sentence_of_another_language_is_reported_with_the_words_to_write(
    tmp_path: Path, sentence: str, found: str, better: str
) -> None:
    assert check(tmp_path, a_md=f"One line.\n{sentence}\n") == (1, f'a.md:2: write "{better}" instead of "{found}"\n')


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a_py", '"""A value that is\n\nno number."""\n'),
        ("a_py", "# A value that is\n#\n# no number.\n"),
        ("a_py", "x = 1\n\ndef test_a_value_that_is_no_number(): pass\n"),
        ("a_js", "/**\n * A value that is\n * no number.\n */\n"),
        ("a_mjs", '//\n//\ntest("a value that is no number", () => {});\n'),
        ("a_md", "1. A value\n2. that is\n   no number\n"),
    ],
)
def test_a_sentence_of_another_language_is_found_over_the_ends_of_lines_and_in_names(
    tmp_path: Path, name: str, text: str
) -> None:
    status, output = check(tmp_path, **{name: text})
    assert (status, output.partition(": ")[0]) == (1, f"{name.replace('_', '.')}:3")


@pytest.mark.parametrize(
    "text",
    [
        "There is no agent; where there may be none, one is added.",
        "The link is no longer used, is no larger than before, and there are no others.",
        "x is None",
        "def test_there_is_no_agent(): pass",
        "The answer is no.",
    ],
)
def test_sentences_that_only_look_like_those_of_another_language_pass(tmp_path: Path, text: str) -> None:
    assert check(tmp_path, a_md=f"{text}\n") == (0, "")


def test_files_that_git_does_not_have_are_not_checked(tmp_path: Path) -> None:
    check(tmp_path)
    (tmp_path / "later.md").write_text("Nobody.\n", encoding="utf-8")
    result = subprocess.run([sys.executable, TOOL], cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")
