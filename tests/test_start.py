"""The start of the program: without click for a plain `connect`, with click for everything else."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from acp_gateway import __main__ as start
from acp_gateway.cli.client import editor_relay
from acp_gateway.cli.plain_options import ConnectOptions
from acp_gateway.errors import Unauthorized

Start = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start the program with arguments, and return its exit code."""

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["acp-gateway", *words])
        try:
            start.main()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 0
        return 0

    return run


def test_a_plain_connect_relays_without_reading_the_line_by_click(run: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    relayed: list[tuple[str, frozenset[str], Any]] = []

    def relay_editor(target: str, options: ConnectOptions, given: frozenset[str]) -> None:
        relayed.append((target, given, options.agent))

    monkeypatch.setattr(editor_relay, "relay_editor", relay_editor)
    monkeypatch.setattr("acp_gateway.cli.main.main", None)
    assert run("connect", "box", "--agent", "demo") == 0
    assert relayed == [("box", frozenset({"agent"}), "demo")]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Unauthorized("no token\x1b[2J"), Unauthorized.exit_code, "acp-gateway: no token\\x1b[2J"),
        (OSError(28, "No space left on device", "/a/b"), 1, "acp-gateway: /a/b: No space left on device"),
        (KeyboardInterrupt(), 1, "Aborted!"),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), 1, "Aborted!"),
        (BrokenPipeError(), 141, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_a_plain_connect_is_told_as_that_of_any_command(
    run: Start,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(editor_relay, "relay_editor", fail)
    assert run("connect", "box") == code
    assert capfd.readouterr().err.strip() == line


def test_an_error_is_told_after_another_version_was_installed(
    run: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Unauthorized("no token\x1b[2J")

    monkeypatch.setattr(editor_relay, "relay_editor", fail)
    monkeypatch.setitem(sys.modules, "acp_gateway.cli.main", None)
    assert run("connect", "box") == Unauthorized.exit_code
    assert capsys.readouterr().err == "acp-gateway: no token\\x1b[2J\n"


def test_an_interrupt_is_one_after_another_version_was_installed(run: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(editor_relay, "relay_editor", fail)
    monkeypatch.setitem(sys.modules, "acp_gateway.cli.main", None)
    with pytest.raises(KeyboardInterrupt):
        run("connect", "box")


def test_a_bug_is_not_an_error_of_the_gateway(run: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(editor_relay, "relay_editor", fail)
    with pytest.raises(ZeroDivisionError):
        run("connect", "box")


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (["--version"], 0, "acp-gateway, version"),
        (["connect", "--help"], 0, "acp-gateway connect [OPTIONS] [TARGET]"),
        (["connect", "box", "--keepalive", "1"], 2, "Invalid value for '--keepalive'"),
        (["paths", "--help"], 0, "acp-gateway paths [OPTIONS]"),
        ([], 2, "On the laptop"),
    ],
)
def test_everything_else_is_clicks(
    run: Start, capsys: pytest.CaptureFixture[str], words: list[str], code: int, printed: str
) -> None:
    assert run(*words) == code
    said = capsys.readouterr()
    assert printed in said.out + said.err
