"""The command line, in this process: what is printed where, and exit codes. What needs a gateway is in end_to_end/."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from acp_gateway import __version__
from acp_gateway.cli.main import READER_GONE, main
from acp_gateway.client import control
from tests.doubles import TIMEOUT
from tests.doubles import run_command as run


def test_the_version_is_the_packages() -> None:
    assert __version__ in run("--version").output


@pytest.mark.parametrize("words", [["version"], ["-V"]])
def test_the_version_is_shown_for_whatever_people_type(words: list[str]) -> None:
    shown = run(*words)
    assert (shown.exit_code, shown.output) == (0, run("--version").output)


def test_help_is_shown_for_whatever_people_type() -> None:
    for words, option in ((["help"], ["--help"]), (["help", "token", "create"], ["token", "create", "--help"])):
        shown = run(*words)
        assert (shown.exit_code, shown.output) == (0, run(*option).output)
    refused = run("help", "tokn")
    assert refused.exit_code == 2
    assert "'token'" in refused.stderr


@pytest.mark.parametrize(
    "command", [["--help"], ["audit"], ["token", "list"], ["certs", "show", "cert.pem"]], ids=lambda words: words[0]
)
def test_a_command_ends_quietly_when_the_reader_of_its_stdout_is_gone(
    config: Path, tmp_path: Path, command: list[str]
) -> None:
    run("certs", "create", "--out", tmp_path)
    run("token", "create", "--config", config, "--label", "x")
    options = ["--config", str(config)] if command[0] in ("audit", "token") else []
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "acp_gateway", *command, *options]
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, check=False, timeout=TIMEOUT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (READER_GONE, b"")


def test_every_command_explains_itself_and_its_options() -> None:
    def commands(group: click.Group, path: list[str]) -> list[list[str]]:
        found = [path]
        for name in group.list_commands(click.Context(group)):
            command = group.commands[name]
            found += commands(command, [*path, name]) if isinstance(command, click.Group) else [[*path, name]]
        return found

    found = commands(main, [])
    assert {"connect", "serve", "token", "relay"} <= {path[0] for path in found if path}
    for path in found:
        shown = run(*path, "--help")
        assert shown.exit_code == 0
        assert "Usage:" in shown.output
    for command in (main, *main.commands.values()):
        assert command.help
        assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_a_command_with_a_typo_is_answered_with_the_one_that_was_meant() -> None:
    refused = run("tokn", "list")
    assert refused.exit_code == 2
    assert "'token'" in refused.stderr


def test_a_role_that_there_is_not_is_refused_with_those_that_there_are(config: Path) -> None:
    refused = run("token", "create", "--config", config, "--label", "x", "--role", "owner")
    assert refused.exit_code == 2
    assert "'controller', 'observer'" in refused.stderr


def test_ctrl_c_while_a_gateway_is_waited_for_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise BaseExceptionGroup("tasks", [BaseExceptionGroup("tasks", [KeyboardInterrupt()])])

    monkeypatch.setattr(control, "list_sessions", interrupted)
    stopped = run("sessions", "unix:///absent")
    assert stopped.exit_code == 1
    assert stopped.stderr.strip() == "Aborted!"


def test_a_bug_that_comes_along_with_ctrl_c_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise BaseExceptionGroup("tasks", [KeyboardInterrupt(), ZeroDivisionError()])

    monkeypatch.setattr(control, "list_sessions", interrupted)
    with pytest.raises(BaseExceptionGroup):
        main(["sessions", "unix:///absent"])
