"""One section of a TOML file is changed or removed; whatever else is in the file stays as it was written."""

import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acp_gateway.config.editing.section_writer import (
    Value,
    change_section,
    check_host,
    remove_section,
    replace_file,
    write_host,
)
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.hosts import load_hosts
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
    start, end = SOURCE.index("[agents.b]"), SOURCE.index("# For all.")
    assert removed(SOURCE, "agents", "b") == SOURCE[:start] + SOURCE[end:]


def test_the_last_section_is_removed() -> None:
    assert removed('[agents.a]\ncommand = ["a"]\n\n[agents.b]\ncommand = ["b"]\n', "agents", "b") == (
        '[agents.a]\ncommand = ["a"]\n'
    )


def test_removing_the_only_section_leaves_an_empty_file() -> None:
    assert removed("[a]\nx = 1\n", "a") == ""


def test_an_array_of_tables_and_a_nested_array_are_told_from_headers() -> None:
    assert removed('[a]\nx = [\n  ["y"],\n]\n\n[[listen]]\nurl = "u"\n', "a") == '[[listen]]\nurl = "u"\n'


def test_line_ends_of_windows_stay() -> None:
    assert "\n" not in removed(SOURCE.replace("\n", "\r\n"), "agents", "a").replace("\r\n", "")


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


def written(tmp_path: Path, source: str, options: dict[str, Value | None], name: str = "box") -> str:
    """Return the changed text of a file with that source."""
    path = tmp_path / "hosts.toml"
    path.write_bytes(source.encode())
    write_host(path, name, options)
    return path.read_bytes().decode()


def test_the_first_entry_makes_hosts_toml_and_its_folder_readable_by_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "acp-gateway" / "hosts.toml"
    write_host(path, "box", {"url": "wss://box:7443/acp", "pin": None, "ssh_options": ("A=b", 'C="d"')})
    assert path.read_text() == '[hosts.box]\nurl = "wss://box:7443/acp"\nssh_options = ["A=b", "C=\\"d\\""]\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_hosts(path)["box"].ssh_options == ("A=b", 'C="d"')


def test_a_further_entry_comes_behind_the_others(tmp_path: Path) -> None:
    assert written(tmp_path, '# mine\n[hosts.a]\nurl = "a"  # the first', {"url": "b"}) == (
        '# mine\n[hosts.a]\nurl = "a"  # the first\n\n[hosts.box]\nurl = "b"\n'
    )


def test_a_name_with_a_dot_is_one_name(tmp_path: Path) -> None:
    assert tomllib.loads(written(tmp_path, "", {"url": "b"}, "box.example")) == {"hosts": {"box.example": {"url": "b"}}}


def test_an_entry_is_changed_where_it_stands_and_comments_stay(tmp_path: Path) -> None:
    source = """\
# all my boxes
[hosts.a]
url = "a"

[hosts . "box"]   # the big one
# on the second floor
url = "old#1"  # was # moved
agent = "demo"
ssh_options = [   # two
  "A=b",  # why
  "C=d",
] # end
pin = 'x'
# the end of it

[hosts.box.maps]
"/url" = "/token_file"
[hosts.z]
url = "z"
"""
    options: dict[str, Value | None] = {
        "url": "new",
        "token_file": "box.token",
        "pin": None,
        "ca": None,
        "ssh_options": ("E=f",),
    }
    assert written(tmp_path, source, options) == (
        source.replace('"old#1"', '"new"')
        .replace('[   # two\n  "A=b",  # why\n  "C=d",\n]', '["E=f"]')
        .replace("pin = 'x'\n", "")
        .replace("# the end of it\n", '# the end of it\ntoken_file = "box.token"\n')
    )


def test_lines_end_as_they_did(tmp_path: Path) -> None:
    text = written(tmp_path, '[hosts.box]\r\nurl = "a" # x\r\nagent = "b"\r\n', {"url": "c", "agent": "d", "pin": "e"})
    assert text == '[hosts.box]\r\nurl = "c" # x\r\nagent = "d"\r\npin = "e"\r\n'
    assert written(tmp_path, '[hosts.a]\r\nurl = "a"\r\n', {"url": "c"}) == (
        '[hosts.a]\r\nurl = "a"\r\n\r\n[hosts.box]\r\nurl = "c"\r\n'
    )


@pytest.mark.parametrize(
    "source",
    [
        'hosts = { box = { url = "a" } }',
        'hosts = { a = { url = "a" } }',
        'hosts.box.url = "a"',
        '[hosts]\nbox = { url = "a" }',
        '[hosts]\nbox.url = "a"',
        "hosts = 1",
        "[hosts]\nbox = 1",
    ],
)
def test_what_is_written_in_another_way_is_left_as_it_is(tmp_path: Path, source: str) -> None:
    with pytest.raises(ConfigError, match=r"hosts\.toml: \[hosts\.box\]"):
        written(tmp_path, source, {"url": "b", "pin": "c"})
    assert (tmp_path / "hosts.toml").read_text() == source
    assert [path.name for path in tmp_path.iterdir()] == ["hosts.toml"]


def test_a_file_that_is_not_toml_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not valid TOML"):
        written(tmp_path, "[hosts.box", {"url": "b"})
    assert (tmp_path / "hosts.toml").read_text() == "[hosts.box"


def test_what_can_be_written_is_checked_without_writing(tmp_path: Path) -> None:
    check_host(tmp_path / "not there" / "yet" / "hosts.toml", "box", {"url": "b"})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written, because .*file is not a folder"):
        check_host(tmp_path / "file" / "hosts.toml", "box", {"url": "b"})


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "hosts.toml").symlink_to(tmp_path / "dotfiles" / "hosts")
    write_host(tmp_path / "hosts.toml", "box", {"url": "b"})
    write_host(tmp_path / "hosts.toml", "box", {"url": "c"})
    assert (tmp_path / "hosts.toml").is_symlink()
    assert (tmp_path / "dotfiles" / "hosts").read_text() == '[hosts.box]\nurl = "c"\n'


def test_a_file_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written: "):
        replace_file(tmp_path / "file" / "hosts.toml", "x")


values = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=12) | st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=5), max_size=3
).map(tuple)
entries = st.dictionaries(st.sampled_from(["url", "pin", "agent", "command", "x-y"]), values, min_size=1)


@settings(max_examples=30)  # Each writes to the disk, and waits for it.
@given(st.dictionaries(st.sampled_from(["a", "box", "b.c"]), entries), entries | st.just({"url": None}), st.booleans())
def test_exactly_what_was_meant_is_in_the_file_afterwards(
    tmp_path_factory: pytest.TempPathFactory,
    hosts: dict[str, dict[str, Value]],
    options: dict[str, Value | None],
    windows: bool,
) -> None:
    path = tmp_path_factory.getbasetemp() / "hosts.toml"
    path.unlink(missing_ok=True)
    path.write_bytes(b"# first\r\n" if windows else b"# first\n")
    expected: dict[str, dict[str, Any]] = {}
    steps: list[tuple[str, Mapping[str, Value | None]]] = [*hosts.items(), ("box", options)]
    for name, entry in steps:
        write_host(path, name, entry)
        merged = expected.get(name, {}) | {key: value for key, value in entry.items() if value is not None}
        expected[name] = {key: value for key, value in merged.items() if entry.get(key, "") is not None}
    read = tomllib.loads(path.read_bytes().decode()).get("hosts", {})
    assert read == {
        name: {key: list(value) if isinstance(value, tuple) else value for key, value in entry.items()}
        for name, entry in expected.items()
    }
    assert path.read_bytes().startswith(b"# first\r\n" if windows else b"# first\n")
