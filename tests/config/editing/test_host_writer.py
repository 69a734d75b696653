"""One entry of hosts.toml is changed; whatever else is in the file stays as it was written."""

import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acp_gateway.config.editing.host_writer import check_host, replace_file, write_host
from acp_gateway.config.editing.section_writer import Value
from acp_gateway.config.hosts import load_hosts
from acp_gateway.errors import ConfigError


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
