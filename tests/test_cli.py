"""The command line, in this process: what is printed where, and exit codes. What needs a gateway is in end_to_end/."""

import json
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from acp_gateway import __version__, editors
from acp_gateway.cli import EDITORS, main
from acp_gateway.tokens import explain_flaw

CONFIG = """
[gateway]
state_dir = "{directory}/state"
[[listen]]
url = "tcp://127.0.0.1:7443"
[agents.demo]
command = ["python3"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(directory=tmp_path))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_the_version_is_the_packages() -> None:
    assert __version__ in run("--version").output


def test_every_command_explains_itself_and_its_options() -> None:
    def commands(group: click.Group, path: list[str]) -> list[list[str]]:
        found = [path]
        for name, command in group.commands.items():
            found += commands(command, [*path, name]) if isinstance(command, click.Group) else [[*path, name]]
        return found

    for path in commands(main, []):
        shown = run(*path, "--help")
        assert shown.exit_code == 0
        assert "Usage:" in shown.output
    for command in (main, *main.commands.values()):
        assert command.help
        assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_a_new_token_is_printed_alone_on_stdout_and_is_listed_by_its_id(config: Path) -> None:
    created = run("token", "create", "--config", config, "--label", "laptop", "--identity", "ann", "--agent", "demo")
    assert created.exit_code == 0
    secret = created.stdout.strip()
    assert explain_flaw(secret) is None
    assert secret not in created.stderr
    (row,) = run("token", "list", "--config", config).stdout.splitlines()
    token_id, identity, agents, _, label = row.split()
    assert (identity, agents, label) == ("ann", "demo", "laptop")
    assert secret not in row
    revoked = run("token", "revoke", token_id, "--config", config)
    assert revoked.exit_code == 0
    assert run("token", "list", "--config", config).stdout == ""


def test_a_token_for_an_agent_that_is_not_there_is_refused_with_a_suggestion(config: Path) -> None:
    refused = run("token", "create", "--config", config, "--label", "x", "--agent", "dmeo")
    assert refused.exit_code == 2
    assert 'did you mean "demo"?' in refused.stderr


def test_revoking_what_is_not_there_names_the_command_that_lists_tokens(config: Path) -> None:
    refused = run("token", "revoke", "00000000", "--config", config)
    assert refused.exit_code == 2
    assert "token list" in refused.stderr


def test_a_certificate_is_written_and_its_pin_is_alone_on_stdout(tmp_path: Path) -> None:
    created = run("certs", "create", "--host", "box.example", "--out", tmp_path / "certs")
    assert created.exit_code == 0
    assert created.stdout.startswith("sha256:")
    assert len(created.stdout.split()) == 1
    assert (tmp_path / "certs" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "certs" / "cert.pem").exists()


def test_check_config_says_which_key_in_which_line(config: Path) -> None:
    assert run("check-config", "--config", config).exit_code == 0
    config.write_text(config.read_text() + "scop = 1\n")
    wrong = run("check-config", "--config", config)
    assert wrong.exit_code == 3
    assert f"{config}:8" in wrong.stderr
    assert 'did you mean "scope"?' in wrong.stderr


def test_check_config_warns_of_a_command_that_is_not_found_and_is_content(config: Path) -> None:
    config.write_text(config.read_text().replace("python3", "no-such-agent"))
    warned = run("check-config", "--config", config)
    assert warned.exit_code == 0
    assert "warning" in warned.stderr
    assert "no-such-agent" in warned.stderr


def test_a_wrong_configuration_ends_serve_with_one_line(config: Path) -> None:
    config.write_text("[gateway]\nport = 1\n")
    ended = run("serve", "--config", config)
    assert ended.exit_code == 3
    assert len(ended.stderr.splitlines()) == 1


def test_the_editors_are_those_that_there_are_settings_for() -> None:
    assert EDITORS == editors.EDITORS


@pytest.mark.parametrize("editor", EDITORS)
def test_the_settings_block_starts_this_very_command(editor: str) -> None:
    printed = run("connect", "box", "--agent", "demo", "--map", "/a b=/c", "--print-config", editor)
    assert printed.exit_code == 0
    assert "connect" in printed.stdout
    assert "/a b=/c" in printed.stdout


def test_the_settings_block_for_zed_is_json_with_absolute_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bin/acp-gateway"])
    printed = run("connect", "wss://box:7443", "--token-file", "token", "--print-config", "zed").stdout
    block = json.loads("\n".join(line for line in printed.splitlines() if not line.startswith("//")))
    (entry,) = block["agent_servers"].values()
    assert entry["args"] == ["connect", "wss://box:7443", "--token-file", str(Path("token").absolute())]
    assert entry["command"] == str(Path("bin/acp-gateway").absolute())


def test_the_settings_block_keeps_every_option_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["acp-gateway"])
    options = ["--connect-timeout", "5", "--max-message-size", "1000", "--insecure-plaintext", "--agent", "x"]
    block = json.loads(run("connect", "tcp://box:1", *options, "--print-config", "jetbrains").stdout)
    (entry,) = block["agent_servers"].values()
    assert set(options) <= set(entry["args"])


def test_started_as_a_module_the_settings_block_starts_it_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/acp_gateway/__main__.py"])
    block = json.loads(run("connect", "box", "--print-config", "jetbrains").stdout)
    (entry,) = block["agent_servers"].values()
    assert entry["command"] == sys.executable
    assert entry["args"][:2] == ["-m", "acp_gateway"]


@pytest.mark.parametrize(
    "arguments", [["http://nope"], ["box", "--pin", "junk"], ["box", "--map", "junk"]], ids=["url", "pin", "map"]
)
def test_no_settings_are_printed_for_what_could_not_work(arguments: list[str]) -> None:
    refused = run("connect", *arguments, "--print-config", "zed")
    assert refused.exit_code == 2
    assert refused.stdout == ""


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1"])
def test_a_timeout_must_be_a_time(value: str) -> None:
    assert run("connect", "box", "--connect-timeout", value).exit_code == 2


def test_check_config_finds_what_only_shows_in_the_files(config: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    run("token", "create", "--config", config, "--label", "x")
    (state / "tokens.json").chmod(0o644)
    assert run("check-config", "--config", config).exit_code == 3
    (state / "tokens.json").chmod(0o600)
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no PEM")
    text = config.read_text().replace("tcp://127.0.0.1:7443", "wss://127.0.0.1:7443")
    config.write_text(text.replace("[agents.demo]", 'cert = "cert.pem"\nkey = "key.pem"\n[agents.demo]'))
    refused = run("check-config", "--config", config)
    assert refused.exit_code == 3
    assert "PEM" in refused.stderr


def test_a_token_is_no_option(config: Path) -> None:
    assert run("connect", "box", "--token", "x").exit_code == 2
