"""The commands `serve` and `check-config`: problems of the configuration, and exit codes."""

import json
import logging
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.cli.gateway.serve import LABEL
from acp_gateway.config.load import default_config_path
from acp_gateway.gateway.agent import hardening
from acp_gateway.gateway.storage.state_folder import holding
from acp_gateway.security.certificates import create_certificate, read_certificate
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from tests.kit.doubles import run_command as run


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


class Scene:
    """A user without a configuration, in a project's folder, and what was served."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "proj"
        self.state_dir = home / ".local/state/acp-gateway"
        self.project.mkdir()
        for program in ("mine", "opencode"):
            (home / program).write_text("#!/bin/sh\n")
            (home / program).chmod(0o755)
        self.served: list[Any] = []
        self.path: Path | None = None

    def serve(self, work: Callable[[], Any]) -> None:
        """Stand for the event loop: the gateway starts and ends."""
        assert isinstance(work, partial)
        self.served.append(work.args[0])
        self.path = default_config_path()
        work.keywords["task_status"].started([])


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(tmp_path)
    for name, value in {"HOME": str(tmp_path), "PATH": str(tmp_path), "USER": "ann", "LOGNAME": "ann"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("acp_gateway.config.load.SYSTEM_CONFIG", tmp_path / "absent")
    monkeypatch.setattr("acp_gateway.config.agent_search.PLACES", ())
    monkeypatch.setattr("acp_gateway.server.sockets.check_free", lambda _: None)
    monkeypatch.setattr("acp_gateway.server.sockets.find_own_addresses", lambda: ["192.0.2.7"])
    monkeypatch.setattr("platform.node", lambda: "box")
    monkeypatch.setattr(hardening, "harden", lambda: None)
    monkeypatch.setattr("acp_gateway.logs.log_to_stderr", lambda *_, **__: None)
    monkeypatch.setattr(trio, "run", scene.serve)
    monkeypatch.chdir(scene.project)
    return scene


def test_an_agent_of_the_command_line_is_served_for_this_folder_without_any_file(scene: Scene) -> None:
    done = run("serve", "--agent", "opencode acp")
    assert done.exit_code == 0, done.output
    (served,) = scene.served
    assert [(name, agent.command, agent.cwd) for name, agent in served.agents.items()] == [
        ("opencode", ("opencode", "acp"), scene.project)
    ]
    assert [str(section.root) for section in served.workspaces.values()] == [str(scene.project)]
    assert served.gateway.state_dir == scene.state_dir
    assert not (scene.home / ".config").exists()
    # While it ran, other commands found it.
    assert scene.path == scene.state_dir / "serve.toml"
    assert not scene.path.exists()


def test_what_a_client_needs_is_printed_with_a_new_token_once(scene: Scene) -> None:
    done = run("serve", "--agent", "mine")
    pin = read_certificate(scene.state_dir / "cert.pem").pin
    # Machines of other users may not know the name of this one.
    assert f"    acp-gateway connect 192.0.2.7:7443 --pin {pin} --token-file FILE\n" in done.stdout
    assert f"    acp-gateway pair ann@box --map ~/proj={shlex.quote(str(scene.project))}\n" in done.stdout
    (secret,) = re.findall("acpgw_[0-9A-Za-z]+", done.stdout)
    (token,) = TokenStore(scene.state_dir).tokens()
    assert TokenStore(scene.state_dir).authenticate(secret).id == token.id
    assert token.label == LABEL
    again = run("serve", "--agent", "mine", "--address", "127.0.0.1", "--port", "7444")
    assert "acpgw_" not in again.stdout
    assert "The token is one of those that there are" in again.stdout
    assert f"    acp-gateway connect 127.0.0.1:7444 --pin {pin} " in again.stdout
    assert len(TokenStore(scene.state_dir).tokens()) == 1


def test_no_token_is_printed_into_the_journal(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.cli.gateway.serve.writes_to_journal", lambda: True)
    done = run("serve", "--agent", "mine")
    assert "acpgw_" not in done.stdout
    assert "`acp-gateway token create --label NAME` makes the token." in done.stdout


def test_the_certificate_of_a_configuration_is_used(scene: Scene) -> None:
    created = create_certificate(["box"], scene.home / ".config/acp-gateway")
    done = run("serve", "--agent", "mine")
    assert created.pin in done.stdout
    assert not (scene.state_dir / "cert.pem").exists()


def test_several_agents_have_names_of_their_own_and_the_first_is_the_default(scene: Scene) -> None:
    run("serve", "--agent", "mine --one", "--agent", "mine 'x y'", "--agent", "opencode acp")
    (served,) = scene.served
    assert {name: agent.command for name, agent in served.agents.items()} == {
        "mine": ("mine", "--one"),
        "mine-2": ("mine", "x y"),
        "opencode": ("opencode", "acp"),
    }
    assert served.default_agent == "mine"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--agent", ""], 2, "--agent is a command, such as"),
        (["--agent", "a 'b"], 2, "no closing quotation"),
        (["--agent", "absent"], 3, "the program 'absent' is not found on PATH"),
        (["--agent", "mine", "--config", "x.toml"], 2, "leave out --config"),
        (["--port", "7444"], 2, "--port is for --agent"),
    ],
)
def test_what_can_not_be_served_is_refused_and_makes_nothing(
    scene: Scene, arguments: list[str], code: int, words: str
) -> None:
    done = run("serve", *arguments)
    assert done.exit_code == code
    assert words in done.stderr
    assert (scene.served, scene.state_dir.exists()) == ([], False)


def test_beside_a_running_gateway_its_file_stays(scene: Scene) -> None:
    scene.state_dir.mkdir(mode=0o700, parents=True)
    file = scene.state_dir / "serve.toml"
    file.write_text("of the other one")
    with holding(scene.state_dir):
        done = run("serve", "--agent", "mine")
    assert done.exit_code == 3
    assert "stop it first" in done.stderr
    assert file.read_text() == "of the other one"
