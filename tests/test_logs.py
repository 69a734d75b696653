"""Tests the destinations and the format of log lines."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.errors import ConfigError
from acp_gateway.logs import is_journal, log_to_file, log_to_stderr


@contextmanager
def fresh_root_logger() -> Iterator[None]:
    """The root logger as a new process has it; pytest's own handlers come back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


@fresh_root_logger()
def test_a_client_without_a_log_file_writes_nothing_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_file(None, logging.INFO)
    logging.getLogger("any").error("something")
    assert capsys.readouterr() == ("", "")


@fresh_root_logger()
def test_a_clients_log_goes_to_its_file_and_not_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_to_file(tmp_path / "log", logging.INFO)
    logging.getLogger("any").info("something")
    assert (tmp_path / "log").read_text().endswith("INFO    something\n")
    assert capsys.readouterr() == ("", "")


@fresh_root_logger()
def test_a_log_file_that_cannot_be_written_is_an_error_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="cannot write the log file"):
        log_to_file(tmp_path / "nowhere" / "log", logging.INFO)
    logging.getLogger("any").error("the same again")
    assert capsys.readouterr() == ("", "")


@fresh_root_logger()
def test_the_gateways_log_is_its_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(logging.INFO)
    logging.getLogger("any").info("something")
    logging.getLogger("any").debug("nothing")
    assert capsys.readouterr().err.endswith("INFO    something\n")


@fresh_root_logger()
def test_a_message_is_one_line_in_which_a_terminal_finds_nothing_to_obey(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(logging.INFO)
    logging.getLogger("any").info("the agent says %s", "a\x1b[2Jb\nc\u202ed\u200be\x9bf")
    written = capsys.readouterr().err
    assert written.endswith("the agent says a\\x1b[2Jb c\\u202ed\\u200be\\x9bf\n")
    assert written.count("\n") == 1


@fresh_root_logger()
def test_a_traceback_keeps_its_lines_and_escapes_what_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(logging.INFO)
    try:
        raise ValueError("a\u202eb")
    except ValueError:
        logging.getLogger("any").exception("a bug")
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[2].startswith("  File ")
    assert lines[-1] == "ValueError: a\\u202eb"


def json_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The one line that was logged."""
    written = capsys.readouterr().err
    assert written.isascii()
    assert written.endswith("\n")
    assert written.count("\n") == 1
    line: dict[str, Any] = json.loads(written)
    return line


@fresh_root_logger()
def test_with_the_format_json_a_line_is_an_object_with_the_time_of_its_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(logging.INFO, "json")
    record = logging.makeLogRecord(
        {"name": "any", "levelno": logging.INFO, "levelname": "INFO", "msg": "so %s", "args": ("é",)}
    )
    record.created = 1795591800.25
    logging.getLogger("any").debug("nothing")
    logging.getLogger("any").handle(record)
    assert json_line(capsys) == {
        "time": "2026-11-25T07:30:00.250Z",
        "level": "INFO",
        "logger": "any",
        "message": "so é",
    }


@pytest.mark.parametrize(
    ("message", "args", "fields"),
    [
        ("%s: detached", ("x7Kd-_ab (192.0.2.7:50312)",), {"connection": "x7Kd-_ab (192.0.2.7:50312)"}),
        ("%s: refused: %s", ("x7Kd01ab (unix)", "why"), {"connection": "x7Kd01ab (unix)"}),
        ("%s: reserved", ("opencode",), {}),
        ("refused: %s", ("x7Kd01ab (unix)",), {}),
        ("agent %s started with pid %d", ("opencode", 1), {"agent": "opencode"}),
        ("%d times more %s", (1, "refused"), {}),
        ("%(a)s: so", ({"a": "x7Kd01ab (unix)"},), {}),
        ("stopping", (), {}),
    ],
)
@fresh_root_logger()
def test_with_the_format_json_the_connection_or_agent_that_a_message_begins_with_is_a_field(
    message: str, args: tuple[Any, ...], fields: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(logging.INFO, "json")
    logging.getLogger("any").info(message, *args)
    line = json_line(capsys)
    assert {name: line[name] for name in line if name not in ("time", "level", "logger", "message")} == fields


@fresh_root_logger()
def test_with_the_format_json_a_traceback_is_a_string(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(logging.INFO, "json")
    try:
        raise ValueError("a\u202eb")
    except ValueError:
        logging.getLogger("any").exception("a bug")
    line = json_line(capsys)
    assert line["message"] == "a bug"
    assert line["traceback"].startswith("Traceback (most recent call last):\n  File ")
    assert line["traceback"].endswith("\nValueError: a\\u202eb")


@fresh_root_logger()
def test_with_the_format_json_no_string_has_anything_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(logging.INFO, "json")
    logging.getLogger("any").info("the agent says %s", "a\x1b[2Jb\nc\u202ed\ud800" + "x" * 10_000)
    message = json_line(capsys)["message"]
    assert message.startswith("the agent says a\\x1b[2Jb c\\u202ed\\ud800xxx")
    assert len(message) < 10_000


@pytest.mark.parametrize(
    ("level", "start"),
    [
        (logging.CRITICAL, "<2>CRITICAL "),
        (logging.ERROR, "<3>ERROR   "),
        (logging.WARNING, "<4>WARNING "),
        (logging.INFO, "<6>INFO    "),
        (logging.DEBUG, "<7>DEBUG   "),
    ],
)
@fresh_root_logger()
def test_a_line_for_the_journal_has_a_priority_and_no_time(
    level: int, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(logging.DEBUG, journal=True)
    logging.getLogger("any").log(level, "something")
    assert capsys.readouterr().err == f"{start}something\n"


@fresh_root_logger()
def test_each_line_of_a_traceback_for_the_journal_has_the_priority(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(logging.INFO, journal=True)
    try:
        raise ValueError("a\n<0>b")
    except ValueError:
        logging.getLogger("any").exception("a bug")
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("<3>ERROR   a bug", "<3><0>b")
    assert all(line.startswith("<3>") for line in lines)


@fresh_root_logger()
def test_with_the_format_json_a_line_for_the_journal_is_an_object_behind_the_priority(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(logging.INFO, "json", journal=True)
    logging.getLogger("any").warning("something")
    written = capsys.readouterr().err
    assert written.startswith("<4>{")
    assert json.loads(written[3:])["message"] == "something"


def test_journal_stream_names_the_journal_only_for_the_file_that_it_names(tmp_path: Path) -> None:
    with open(tmp_path / "journal", "w") as journal, open(tmp_path / "other", "w") as other:
        status = os.fstat(journal.fileno())
        environment = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert is_journal(environment, journal.fileno())
        assert not is_journal(environment, other.fileno())
        assert not is_journal({}, journal.fileno())
        assert not is_journal({"JOURNAL_STREAM": ""}, journal.fileno())
    assert not is_journal(environment, -1)
