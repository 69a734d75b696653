"""`serve --agent`: a gateway without a configuration file, and what it prints for a client."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.cli.gateway.serving_agent import LABEL
from acp_gateway.config.load import default_config_path
from acp_gateway.gateway.agent import hardening
from acp_gateway.gateway.storage.state_folder import holding
from acp_gateway.security.certificates import create_certificate, read_certificate
from acp_gateway.security.token_store import TokenStore
from tests.doubles import run_command as run


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
    monkeypatch.setattr("acp_gateway.config.agents.search.PLACES", ())
    monkeypatch.setattr("acp_gateway.server.sockets.check_free", lambda _: None)
    monkeypatch.setattr("acp_gateway.server.sockets.find_own_address", lambda: "192.0.2.7")
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
    assert f"    acp-gateway pair ann@box --map ~/proj={scene.project}\n" in done.stdout
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
    monkeypatch.setattr("acp_gateway.cli.gateway.serving_agent.writes_to_journal", lambda: True)
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
        (["--agent", "absent"], 3, "the program absent is not found on PATH"),
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
