"""The commands `serve` and `check-config`: problems of the configuration, and exit codes."""

import json
import logging
from pathlib import Path

import pytest
import trio

from acp_gateway.gateway.agent import hardening
from acp_gateway.security.token_format import mint
from tests.doubles import run_command as run


def test_check_config_says_which_key_in_which_line(config: Path) -> None:
    assert run("check-config", "--config", config).exit_code == 0
    config.write_text(config.read_text() + "scop = 1\n")
    wrong = run("check-config", "--config", config)
    assert wrong.exit_code == 3
    assert f"{config}:8" in wrong.stderr
    assert 'did you mean "scope"?' in wrong.stderr


def test_check_config_names_the_agents_of_this_gateway_and_where_others_are(config: Path) -> None:
    with config.open("a") as file:
        file.write('[cluster]\nurl = "redis://127.0.0.1"\nname = "gpu1"\ntoken_file = "cluster.token"\n')
        file.write('[nodes.gpu2]\nurl = "gpu2.example"\ntoken_file = "cluster.token"\n')
    secret = config.parent / "cluster.token"
    secret.touch(0o600)
    secret.write_text(mint())
    checked = run("check-config", "--config", config)
    assert checked.stdout.endswith("; agents: demo, gpu2/…, those of the cluster; default: demo.\n")


def test_check_config_as_json_has_the_place_of_each_problem(config: Path) -> None:
    config.write_text(config.read_text() + "scop = 1\n")
    checked = run("check-config", "--config", config, "--json")
    assert checked.exit_code == 3
    (problem,) = json.loads(checked.stdout)
    assert (problem["severity"], problem["file"], problem["line"], problem["key"]) == (
        "error",
        str(config),
        8,
        "agents.demo.scop",
    )
    assert 'did you mean "scope"?' in problem["message"]


def test_check_config_as_json_has_only_warnings_for_a_fine_configuration(config: Path) -> None:
    checked = run("check-config", "--config", config, "--json")
    assert checked.exit_code == 0
    assert [problem["severity"] for problem in json.loads(checked.stdout)] == ["warning"]


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


@pytest.mark.parametrize("form", ["text", "json"])
def test_serve_logs_in_the_format_of_the_configuration(
    form: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    # Without those of pytest, as a new process has it; both come back.
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(hardening, "harden", lambda: None)
    monkeypatch.setattr(trio, "run", lambda _: logging.getLogger("any").info("here"))
    config.write_text(f'{config.read_text()}[log]\nformat = "{form}"\n')
    (line,) = run("serve", "--config", config).stderr.splitlines()
    if form == "json":
        assert json.loads(line)["message"] == "here"
    else:
        assert line.endswith(" INFO    here")


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


def test_check_config_warns_of_sessions_that_cannot_be_read_and_is_content(config: Path, tmp_path: Path) -> None:
    run("token", "create", "--config", config, "--label", "x")
    (tmp_path / "state" / "sessions.db").write_text("junk")
    warned = run("check-config", "--config", config)
    assert warned.exit_code == 0
    (line,) = warned.stderr.splitlines()
    assert line.startswith(f"warning: {tmp_path}/state/sessions.db: ")
