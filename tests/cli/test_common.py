"""Printing: tokens, and text that stdout has no characters for."""

import json
import os
import stat
import sys
from collections.abc import Callable
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from acp_gateway.cli.common import (
    PATIENCE,
    json_option,
    plain_option,
    print_any_character,
    print_check,
    print_json,
    print_rows,
    print_secret,
    print_table,
    print_text,
    print_warning,
    waiting_for,
    wrapped,
)
from acp_gateway.diagnosis.checks import fault


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o400])
def test_a_file_that_the_shell_has_made_for_a_token_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    with (tmp_path / "token").open("w+") as file:
        (tmp_path / "token").chmod(mode)
        monkeypatch.setattr(sys, "stdout", file)
        print_secret("acpgw_x")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == mode & 0o600
    assert (tmp_path / "token").read_text() == "acpgw_x\n"


def test_a_file_that_has_something_in_it_already_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text("before\n")
    (tmp_path / "log").chmod(0o644)
    with (tmp_path / "log").open("a") as file:
        monkeypatch.setattr(sys, "stdout", file)
        print_secret("acpgw_x")
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o644


@pytest.mark.parametrize("mode", ["plain", "json"])
def test_print_text_goes_to_stderr_where_stdout_has_json(mode: str) -> None:
    @click.command()
    @json_option
    def command(*, as_json: bool) -> None:
        print_text("text")
        if as_json:
            print_json([])

    done = CliRunner().invoke(command, ["--json"] if mode == "json" else [])
    assert (done.stdout, done.stderr) == (("[]\n", "text\n") if mode == "json" else ("text\n", ""))


def test_a_label_that_the_output_has_no_characters_for_is_printed_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="latin-1"))
    print_any_character()
    click.echo("Zoë 雪")
    assert written.getvalue().split() == [b"Zo\xeb", b"?"]


# Rotated


@click.command()
@plain_option
def table() -> None:
    """Print a table."""
    print_table(("ID", "NAME"), [("1", "x\ny"), ("22", "z")])


def test_a_table_has_its_heads_in_pipes_too_unless_plain() -> None:
    assert CliRunner().invoke(table, []).stdout == "ID  NAME\n1   x y\n22  z\n"
    assert CliRunner().invoke(table, ["--plain"]).stdout == "1   x y\n22  z\n"


def test_the_heads_of_a_table_are_bold_on_a_terminal() -> None:
    assert CliRunner().invoke(table, [], color=True).stdout.splitlines()[0] == "\x1b[1mID  NAME\x1b[0m"


def test_a_table_without_rows_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("ID",), [])
    assert capsys.readouterr().out == ""


def test_a_warning_has_a_coloured_beginning_on_a_terminal() -> None:
    @click.command()
    def warn() -> None:
        print_warning("a")
        print_warning("b", "error")

    assert CliRunner().invoke(warn, []).stderr == "warning: a\nerror: b\n"
    assert CliRunner().invoke(warn, [], color=True).stderr == "\x1b[33mwarning:\x1b[0m a\n\x1b[31merror:\x1b[0m b\n"


def test_json_has_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": "\x1b[2J\x7f\u202e"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": "\x1b[2J\x7f\u202e"}
    assert printed.replace("\n", "").isprintable()


class Ended:
    """An event that comes after two and a half times of `PATIENCE`."""

    def __init__(self) -> None:
        self._waits = 0

    def wait(self, seconds: float) -> bool:
        assert seconds == PATIENCE
        self._waits += 1
        return self._waits > 2

    def set(self) -> None:
        pass


class Thread:
    """A thread that runs when it is waited for."""

    def __init__(self, *, target: Callable[[], None], daemon: bool) -> None:
        self.start = str
        self.join = target


@pytest.mark.parametrize("terminal", [True, False])
def test_a_command_shows_in_a_terminal_what_it_waits_for_and_how_long(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = StringIO()
    monkeypatch.setattr(written, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr("threading.Event", Ended)
    monkeypatch.setattr("threading.Thread", Thread)
    with waiting_for("b\x1bx"):
        pass
    head = "\rWaiting for b\\x1bx"
    shown = f"{head} … 1 s{head} … 2 s\r{' ' * (len(head) + 11)}\r"
    assert written.getvalue() == (shown if terminal else "")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [""]),
        ("one two", ["one two"]),
        ("a line that is longer", ["a line that is", "longer"]),
        ("/a/path/that/is/longer/than/a-row is whole", ["/a/path/that/is/longer/than/a-row", "is whole"]),
        ("run `a command here` now", ["run", "`a command here`", "now"]),
        ("(`a command here`), now", ["(`a command here`),", "now"]),
        ("漢漢漢漢 漢漢漢漢", ["漢漢漢漢", "漢漢漢漢"]),
        ("  an indented line is", ["  an indented", "line is"]),
    ],
)
def test_rows_end_at_words_and_commands_stay_whole(text: str, rows: list[str]) -> None:
    assert wrapped(text, 16) == rows


def test_rows_begin_behind_what_is_before_the_first_whose_colour_has_no_width() -> None:
    assert wrapped("one two three", 12, "\x1b[31mok\x1b[0m  ", 4) == ["\x1b[31mok\x1b[0m  one two", "    three"]


def test_a_check_of_doctor_or_ping_is_wrapped_behind_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    print_check(fault("session", "a fault " * 30, "a remedy " * 30, 3))
    rows = stream.getvalue().splitlines()
    assert [row.split()[0] for row in rows if row[0] != " " or "->" in row] == ["fault", "->"]
    assert 60 < max(map(len, rows)) <= 79


@pytest.mark.parametrize("err", [False, True])
def test_a_line_is_wrapped_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, err: bool) -> None:
    for is_terminal, printed in ((True, "ok  one\n    two\n"), (False, "ok  one two\n")):
        stream = StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stderr" if err else "stdout", stream)
        monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((11, 24)))
        print_rows("one two", err=err, before="ok  ", indent=4)
        assert stream.getvalue() == printed
