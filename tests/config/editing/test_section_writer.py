"""One section of a TOML file is changed or removed; whatever else is in the file stays as it was written."""

import tomllib
from pathlib import Path

import pytest

from acp_gateway.config.editing.section_writer import change_section, remove_section
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.errors import ConfigError

SOURCE = """\
# Mine.
[gateway]
default_agent = "a"  # the fast one

[agents.a]
command = ["a"]

# The slow one.
[agents.b]  # on trial
command = [
    "b",  # the program
    "acp",
]
[agents.b.env]
KEY = "[x]"

# For all.
[limits]
max_connections = 5
"""


def file(source: str = SOURCE) -> TomlFile:
    return TomlFile(Path("config.toml"), tomllib.loads(source), source)


def removed(source: str, *keys: str) -> str:
    return remove_section(file(source), keys)


def test_a_section_is_added_at_the_end_with_strings_arrays_and_tables() -> None:
    text = change_section(
        file(), ("agents", "c"), {"command": ("c", 'x"y'), "env": {"A": "1", "B.C": "é"}, "cwd": "/c"}
    )
    assert (
        text
        == f"""{SOURCE}
[agents.c]
command = ["c", "x\\"y"]
env = {{A = "1", "B.C" = "é"}}
cwd = "/c"
"""
    )


def test_an_option_is_changed_in_place_and_its_comment_stays() -> None:
    text = change_section(file(), ("gateway",), {"default_agent": "b"})
    assert text == SOURCE.replace('"a"  # the fast', '"b"  # the fast')


def test_an_option_is_added_before_the_comment_of_the_next_section() -> None:
    text = change_section(file(), ("agents", "a"), {"cwd": "/a"})
    assert text == SOURCE.replace('command = ["a"]\n', 'command = ["a"]\ncwd = "/a"\n')


def test_an_option_of_dotted_keys_is_changed() -> None:
    text = change_section(file("[a]\nenv.X = '1'\n# mine\n"), ("a",), {"env": {"Y": "2"}})
    assert text == '[a]\nenv = {Y = "2"}\n# mine\n'


def test_an_option_is_added_before_a_section_that_is_commented_out() -> None:
    commented = '\n# [nodes.gpu]\n# url = "wss://gpu"\n'
    text = change_section(file(f'[a]\ncommand = ["a"]\n{commented}'), ("a",), {"cwd": "/a"})
    assert text == f'[a]\ncommand = ["a"]\ncwd = "/a"\n{commented}'


@pytest.mark.parametrize("value", ["\u2028", "\x85", "\x0c", "a\nb", "\"'\\", "\x7f"])
def test_no_character_of_a_value_is_taken_for_the_end_of_a_line(value: str) -> None:
    text = change_section(file(), ("agents", "a"), {"cwd": value})
    assert tomllib.loads(text)["agents"]["a"]["cwd"] == value
    start, end = text.index("[agents.b]"), text.index("# For all.")
    assert removed(text, "agents", "b") == text[:start] + text[end:]


@pytest.mark.parametrize("source", ['[a]\nx = """\n# y"""\n[b]\n', "[a.c]\nx = 1\n[a]\n[b]\n"])
def test_a_section_that_can_not_be_cut_out_is_refused_or_changed_as_meant(source: str) -> None:
    try:
        changed = tomllib.loads(change_section(file(source), ("a",), {"y": "2"}))
    except ConfigError:
        return
    before = tomllib.loads(source)
    assert changed == before | {"a": before["a"] | {"y": "2"}}


def test_an_option_is_removed() -> None:
    assert change_section(file(), ("gateway",), {"default_agent": None}) == SOURCE.replace(
        'default_agent = "a"  # the fast one\n', ""
    )


def test_a_section_of_one_word_is_added() -> None:
    assert change_section(file("[a]\n"), ("gateway",), {"x": "1"}) == '[a]\n\n[gateway]\nx = "1"\n'


def test_a_section_is_removed_with_its_subsections_and_the_comment_of_the_next_stays() -> None:
    start = SOURCE.index("[agents.b]")
    end = SOURCE.index("# For all.")
    assert removed(SOURCE, "agents", "b") == SOURCE[:start] + SOURCE[end:]


def test_the_last_section_is_removed() -> None:
    assert removed('[agents.a]\ncommand = ["a"]\n\n[agents.b]\ncommand = ["b"]\n', "agents", "b") == (
        '[agents.a]\ncommand = ["a"]\n'
    )


def test_removing_the_only_section_leaves_an_empty_file() -> None:
    assert removed("[a]\nx = 1\n", "a") == ""


def test_an_array_of_tables_and_a_nested_array_are_told_from_headers() -> None:
    source = '[a]\nx = [\n  ["y"],\n]\n\n[[listen]]\nurl = "u"\n'
    assert removed(source, "a") == '[[listen]]\nurl = "u"\n'


def test_line_ends_of_windows_stay() -> None:
    source = SOURCE.replace("\n", "\r\n")
    assert "\n" not in removed(source, "agents", "a").replace("\r\n", "")


@pytest.mark.parametrize(
    "source",
    [
        'agents = { a = { command = ["a"] }, b = { command = ["b"] } }\n',
        '[agents]\na.command = ["a"]\nb.command = ["b"]\n',
        "[agents.a.env]\nX = '1'\n[other]\n[agents.a]\n",
    ],
)
def test_a_section_in_another_spelling_is_refused_and_never_cut_wrongly(source: str) -> None:
    with pytest.raises(ConfigError, match="write it as a section of its own"):
        removed(source, "agents", "a")


def test_an_env_that_is_a_subsection_is_not_overwritten() -> None:
    with pytest.raises(ConfigError, match=r"\[agents.b\] is written there in a way that this can't change"):
        change_section(file(), ("agents", "b"), {"env": {"KEY": "2"}})


def test_a_section_that_is_not_there_or_no_table_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"there is no \[agents.z\]"):
        removed(SOURCE, "agents", "z")
    with pytest.raises(ConfigError, match="is not a table"):
        change_section(file("agents = 1\n"), ("agents", "a"), {"command": ("a",)})
