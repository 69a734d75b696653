"""`connect --install`: the difference, the question, and what is printed where nothing is written."""

import io
import json
from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from acp_gateway.cli.client import editor_files
from acp_gateway.cli.client.editor_files import AgentCommand, Machine, install_agent, own_machine
from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.security.token_format import mint
from tests.doubles import run_command as run

AGENT = AgentCommand("box", "/bin/acp-gateway", ("connect", "box"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(editor_files, "own_machine", lambda: Machine(tmp_path, {}, "linux"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", mint())
    return tmp_path


def test_the_entry_is_the_one_that_would_be_printed(home: Path) -> None:
    path = home / ".jetbrains/acp.json"
    options = ["connect", "wss://box:1", "--map", "/a=/b", "--agent", "demo"]
    result = run(*options, "--install", "jetbrains", "--yes")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert f"Wrote {path}." in result.stderr
    assert '+    "box:1": {' in result.stderr
    assert json.loads(path.read_text()) == json.loads(run(*options, "--print-config", "jetbrains").stdout)
    again = run(*options, "--install", "jetbrains", "--yes")
    assert f"{path} has this already." in again.stderr


def test_a_file_that_can_not_be_changed_is_left_alone_and_the_block_printed(home: Path) -> None:
    path = home / ".config/zed/settings.json"
    path.parent.mkdir(parents=True)
    path.write_text("{ broken")
    result = run("connect", "wss://box:1", "--install", "zed", "--yes")
    assert result.exit_code == 3
    assert f"{path}: it is not JSON" in result.stderr
    assert f"nothing was changed: paste the block above into {path}" in result.stderr
    assert '"agent_servers"' in result.stdout
    assert path.read_text() == "{ broken"


def test_a_gateway_that_was_never_paired_is_not_written_into_an_editor(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACP_GATEWAY_TOKEN")
    result = run("connect", "nosuch", "--install", "zed", "--yes")
    assert result.exit_code == 3
    assert '"nosuch" is not in hosts.toml (it is empty) and no token was given' in result.stderr
    assert "`acp-gateway pair nosuch`" in result.stderr
    assert run("connect", "wss://box:1", "--install", "zed", "--yes").exit_code == 4
    assert run("connect", "tcp://box:1", "--install", "zed", "--yes").exit_code == 2
    assert list(home.iterdir()) == []


def test_settings_that_are_a_program_are_printed(home: Path) -> None:
    result = run("connect", "wss://box:1", "--install", "emacs", "--yes")
    assert result.exit_code == 3
    assert "the settings of Emacs are a program; nothing was changed: paste the block above" in result.stderr
    assert "(defun" in result.stdout


def test_without_a_terminal_nothing_is_written_unless_yes_is_given(home: Path) -> None:
    result = run("connect", "wss://box:1", "--install", "zed")
    assert result.exit_code == 2
    assert "--yes writes it" in result.stderr
    assert not (home / ".config/zed").exists()
    assert run("connect", "wss://box:1", "--yes").exit_code == 2


@pytest.mark.parametrize(("answer", "written"), [("y\n", True), ("n\n", False)])
def test_in_a_terminal_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answer: str, written: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", Terminal())
    with nullcontext() if written else pytest.raises(click.Abort):
        install_agent("zed", AGENT, Machine(tmp_path, {}, "linux"), yes=False)
    assert (tmp_path / ".config/zed/settings.json").exists() is written


def test_the_command_is_this_very_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/acp-gateway"])
    command = AgentCommand.to("ssh://ann@box/run/s", ["--observe"])
    assert command == AgentCommand("box", "/opt/acp-gateway", ("connect", "ssh://ann@box/run/s", "--observe"))
    monkeypatch.setattr("sys.argv", ["/x/acp_gateway/__main__.py"])
    assert AgentCommand.to("box").arguments[:3] == ("-m", "acp_gateway", "connect")
    with pytest.raises(UsageError):
        command.block("ed")


def test_without_a_home_folder_no_editor_has_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert own_machine().home == Path("/home/ann")
    monkeypatch.setattr("os.path.expanduser", lambda text: text)
    with pytest.raises(ConfigError):
        own_machine()
