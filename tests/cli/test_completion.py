"""Shell completion: the values of arguments, and the functions of shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from acp_gateway.cli import completion
from acp_gateway.cli.completion import VALUES, VARIABLE
from acp_gateway.cli.main import COMMANDS, main
from tests.kit.doubles import TIMEOUT, remember_session
from tests.kit.doubles import run_command as run

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def completing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a process that a shell has asked for completions."""
    monkeypatch.setenv(VARIABLE, "bash_complete")


def complete(*words: str | Path) -> list[str]:
    """Return the completions of the last word."""
    *before, last = map(str, words)
    return [item.value for item in ShellComplete(main, {}, "acp-gateway", VARIABLE).get_completions(before, last)]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "acp-gateway" / "hosts.toml"
    path.parent.mkdir()
    path.write_text(
        '[hosts.box]\nurl = "wss://box"\ntoken = "none"\n[hosts.big]\nurl = "wss://big"\n[hosts.lab]\nurl = "ssh://lab"\n'
    )
    return path


@pytest.mark.parametrize("command", ["connect", "sessions", "ping"])
def test_targets_are_the_names_in_hosts_toml(hosts: Path, command: str) -> None:
    assert complete(command, "b") == ["box", "big"]
    assert complete(command, "z") == []


def test_help_completes_the_commands_that_it_explains() -> None:
    assert complete("help", "serv") == ["serve", "service"]
    assert complete("help", "token", "cr") == ["create"]
    assert complete("version", "x") == []


def test_pair_completes_the_hosts_of_the_ssh_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.cli.client.ssh_config.own_ssh_hosts", lambda: ["box", "lab", "a;b"])
    assert complete("pair", "") == ["box", "lab"]


def test_a_damaged_hosts_toml_completes_nothing_and_prints_nothing(
    hosts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write_text("[hosts")
    assert complete("connect", "") == []
    assert capsys.readouterr() == ("", "")


def test_tokens_agents_workspaces_and_sessions_are_those_of_the_configuration(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text() + '[workspaces.proj]\nroot = "/srv"\n')
    token_id = run("token", "create", "--config", config, "--label", "x").stderr.split()[1]
    remember_session(tmp_path / "state", "s-1")
    assert complete("token", "revoke", "--config", config, token_id[:2]) == [token_id]
    assert complete("token", "create", "--config", config, "--agent", "") == ["demo"]
    assert complete("token", "create", "--config", config, "--workspace", "p") == ["proj"]
    assert complete("share", "--config", config, "s") == ["s-1"]
    assert complete("agents", "remove", "--config", config, "d") == ["demo"]
    assert complete("agents", "update", "--config", config, "") == []


def test_files_and_events_are_those_of_the_program() -> None:
    assert complete("files", "systemd/acp-gateway@.so") == ["systemd/acp-gateway@.socket"]
    assert "agent_ended" in complete("audit", "--event", "agent_")


def test_sessions_of_a_host_are_asked_for_with_a_time_limit(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def list_sessions(destination: Any, *, time_limit: float) -> Any:
        asked.append((destination.address.host, time_limit))

        class Listing:
            sessions = ({"sessionId": "s-1", "agent": "demo", "title": "a, b"}, {"sessionId": "$(x)", "agent": "demo"})

        return Listing

    monkeypatch.setattr("acp_gateway.client.control.list_sessions", list_sessions)
    assert complete("connect", "box", "--attach", "") == ["s-1"]
    assert complete("connect", "box", "--agent", "d") == ["demo"]
    assert asked == [("box", completion.TIME_LIMIT)] * 2


def test_sessions_of_a_host_over_ssh_are_not_asked_for(hosts: Path) -> None:
    assert complete("connect", "lab", "--attach", "") == []


def test_values_with_characters_of_the_shell_are_left_out() -> None:
    values = [("a", ""), ("a b", ""), ("a$(x)", ""), ("a;b", ""), ("a\x1b", "")]
    found = completion.complete(lambda _: values, click.Context(main), "a")
    assert [item.value for item in found] == ["a"]


def test_each_parameter_with_values_exists() -> None:
    for name, params in VALUES.items():
        command = main.get_command(main.make_context("acp-gateway", [], resilient_parsing=True), name)
        assert command is not None
        commands = [command, *getattr(command, "commands", {}).values()]
        assert set(params) <= {param.name for each in commands for param in each.params}, name
        assert name in {*COMMANDS, "connect"}


def test_each_target_is_completed_by_the_hosts() -> None:
    context = main.make_context("acp-gateway", [], resilient_parsing=True)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        has_target = any(param.name == "target" for param in command.params)
        assert not has_target or "target" in VALUES.get(name, {}), name


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_prints_the_function_of_the_shell(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    printed = run("completion", shell)
    assert printed.exit_code == 0
    assert VARIABLE in printed.stdout
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert run("completion").stdout == printed.stdout


def test_completion_without_a_known_shell_names_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    refused = run("completion")
    assert refused.exit_code == 2
    assert "bash, zsh, fish" in refused.stderr


def in_shell(directory: Path, words: list[str]) -> str:
    """Run a shell that finds the program, and return its output."""
    program = directory / "bin" / "acp-gateway"
    program.parent.mkdir()
    code = "from acp_gateway.cli.main import main; main(prog_name='acp-gateway')"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment |= {"HOME": str(directory)}
    environment.pop(VARIABLE)
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout


def test_bash_completes_a_host_with_the_packaged_file(hosts: Path, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    script = (
        f'. "{ROOT}/completions/acp-gateway.bash"; COMP_WORDS=(acp-gateway connect bi); COMP_CWORD=2; '
        '_acp_gateway_completion acp-gateway; echo "${COMPREPLY[@]}"'
    )
    assert in_shell(tmp_path, [bash, "-c", script]) == "big\n"


def test_fish_completes_a_host_with_the_packaged_file(hosts: Path, tmp_path: Path) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("there is no fish here")
    script = f'source "{ROOT}/completions/acp-gateway.fish"; complete -C "acp-gateway connect bi"'
    assert in_shell(tmp_path, [fish, "--no-config", "-c", script]).startswith("big\t")
