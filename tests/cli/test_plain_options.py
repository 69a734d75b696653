"""Plain command lines, as they are read without click: like click reads them, or not at all."""

from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.cli.client.connect import connect
from acp_gateway.cli.common import click_options, was_given
from acp_gateway.cli.plain_options import CONNECT, Line, Option, read_plain_line
from tests.fuzz.effort import effort

OTHERS = {"target", "editor", "install", "name", "yes", "ahp", "port"}
"""Parameters of `connect` whose options are click's alone."""


def read(*words: str) -> Line | None:
    return read_plain_line(CONNECT, words)


def read_with_click(words: list[str]) -> Line:
    found: list[Line] = []

    @click.command()
    @click.argument("target")
    @click_options(CONNECT)
    def command(target: str, **values: Any) -> None:
        found.append(Line(target, values, frozenset(filter(was_given, values))))

    command.main(words, standalone_mode=False)
    return found[0]


def test_the_line_of_an_editors_settings_is_plain() -> None:
    line = read("box", "--agent", "demo", "--map", "/a=/b", "--observe", "--map=/c=/d", "--keepalive", "45")
    assert line is not None
    assert line.target == "box"
    assert line.given == {"agent", "maps", "observe", "keepalive"}
    assert {name: line.values[name] for name in line.given} == {
        "agent": "demo",
        "maps": ("/a=/b", "/c=/d"),
        "observe": True,
        "keepalive": 45.0,
    }
    assert line.values["max_message_size"] == 64 * 1024 * 1024
    assert line.values["token_file"] is None


def test_every_option_is_a_parameter_of_connect_and_only_what_ends_at_once_is_left_to_click() -> None:
    parameters = {parameter.name for parameter in connect.params}
    assert {option.destination for option in CONNECT} == parameters - OTHERS


@pytest.mark.parametrize("option", CONNECT, ids=lambda option: option.name)
def test_each_option_may_be_in_a_plain_line(option: Option, tmp_path: Path) -> None:
    value = {"text": "x", "file": str(tmp_path / "absent"), "number": "60.5", "count": "60"}.get(option.kind, "")
    words = ["box", option.name, *([value] if value else [])]
    assert read(*words) == read_with_click(words)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--worktree"], ""),
        (["--worktree", "a"], "a"),
        (["--worktree=a"], "a"),
        (["--worktree", "--observe"], ""),
        ([], None),
    ],
)
def test_the_name_of_a_worktree_may_be_left_out(words: list[str], name: str | None) -> None:
    line = read("box", *words)
    assert line == read_with_click(["box", *words])
    assert line is not None
    assert line.values["worktree"] == name


@pytest.mark.parametrize(
    "words",
    [
        *(
            [],
            ["box", "box"],
            ["box", "--help"],
            ["box", "--print-config", "zed"],
            ["box", "--", "x"],
            ["box", "--nope"],
        ),
        *(["box", "--agent"], ["box", "--agent", "--observe"], ["box", "--agent", "a", "--agent", "b"]),
        *(["box", "--observe=yes"], ["box", "--keepalive", "19"], ["box", "--keepalive", "nan"], ["box", "-h"]),
        *(["box", "--connect-timeout", "0"], ["box", "--connect-timeout", "inf"], ["box", "--connect-timeout", "soon"]),
        *(["box", "--max-message-size", "0"], ["box", "--max-message-size", "1.5"], ["box", "--age", "demo"]),
    ],
    ids=" ".join,
)
def test_help_errors_and_unusual_lines_are_left_to_click(words: list[str]) -> None:
    assert read(*words) is None


def test_a_folder_in_place_of_a_status_file_is_left_to_click_as_an_error(tmp_path: Path) -> None:
    assert read("box", "--status-file", str(tmp_path)) is None
    assert read("box", "--log-file", str(tmp_path)) is not None


def test_on_windows_every_line_is_left_to_click_which_expands_file_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert read("box") is None


def test_an_integer_may_have_more_digits_than_a_number() -> None:
    words = ["box", "--max-message-size", "9" * 400]
    assert read(*words) == read_with_click(words)


TEXTS = (
    st.sampled_from(
        [
            *("", "box", "20", "0", "1e3", "-1", "1_0", " 30", "nan", "inf", "1e400", "9" * 400, "9" * 5000),
            *("x=y", "=", "/", "/absent", ".", "..", "~", "\udcff"),
        ]
    )
    | st.text()
)
NAMES = st.sampled_from([option.name for option in CONNECT] + ["--help", "--", "-", "--no"])
WORDS = st.one_of(NAMES, TEXTS, st.builds("{}={}".format, NAMES, TEXTS)).filter(lambda word: "\0" not in word)


@effort(300)
@given(st.lists(WORDS, max_size=6))
def test_a_plain_line_means_what_it_means_to_click(words: list[str]) -> None:
    line = read(*words)
    if line is not None:
        assert line == read_with_click(words)
