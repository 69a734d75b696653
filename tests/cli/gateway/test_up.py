"""The command `up`: what it makes, what it leaves as it is, and what it prints before it serves."""

import json
import os
import shlex
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from click.testing import CliRunner, Result

import acp_gateway
from acp_gateway.cli.gateway.up import OF_OTHERS
from acp_gateway.cli.main import main
from acp_gateway.client import joining
from acp_gateway.config.load import load_config
from acp_gateway.errors import Unreachable
from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.gateway.agent import hardening
from acp_gateway.gateway.storage.state_folder import holding
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from tests.kit.doubles import run_command as run


class Scene:
    """A machine with a user whose PATH has one agent, in a project's folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "proj"
        self.config = home / ".config/acp-gateway/config.toml"
        self.state_dir = home / ".local/state/acp-gateway"
        self.bin = home / "bin"
        self.project.mkdir()
        self.bin.mkdir()
        self.served: list[Any] = []
        self.joined: list[Any] = []
        self.role = "node"

    def install(self, program: str) -> None:
        (self.bin / program).write_text("#!/bin/sh\n")
        (self.bin / program).chmod(0o755)

    def serve(self, work: Callable[[], Any]) -> None:
        """Stand for the event loop: the gateway starts and ends."""
        assert isinstance(work, partial)
        self.served.append(work.args[0])
        work.keywords["task_status"].started(["wss://…"])

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (self.home / ".config").rglob("*") if path.is_file()}


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Scene:
    # A short name, because the path of a unix socket is limited.
    home = tmp_path_factory.mktemp("up")
    scene = Scene(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(scene.bin))
    monkeypatch.setenv("USER", "ann")
    monkeypatch.setenv("LOGNAME", "ann")
    monkeypatch.setattr("acp_gateway.config.agent_search.PLACES", ())
    monkeypatch.setattr("acp_gateway.server.sockets.find_own_addresses", lambda: ["192.0.2.7"])
    monkeypatch.setattr("acp_gateway.server.sockets.check_free", lambda _: None)
    monkeypatch.setattr("platform.node", lambda: "box")
    monkeypatch.setattr(hardening, "harden", lambda: None)
    monkeypatch.setattr("acp_gateway.logs.log_to_stderr", lambda *_, **__: None)
    monkeypatch.setattr(trio, "run", scene.serve)
    monkeypatch.chdir(scene.project)
    scene.install("opencode")
    return scene


def test_up_makes_a_certificate_and_a_configuration_for_this_folder_and_serves(scene: Scene) -> None:
    done = run("up")
    assert done.exit_code == 0, done.output
    (served,) = scene.served
    assert served == load_config(scene.config)
    assert [(name, section.root) for name, section in served.workspaces.items()] == [("proj", scene.project)]
    assert served.agents["opencode"].command == ("opencode", "acp")
    assert [str(section.address) for section in served.listen] == [
        "wss://0.0.0.0:7443/acp",
        f"unix://{scene.state_dir}/socket",
    ]
    assert scene.config.with_name("key.pem").stat().st_mode & 0o077 == 0
    assert scene.config.stat().st_mode & 0o077 == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"Made {scene.config.with_name('cert.pem')} and key.pem, for 192.0.2.7, ")
    assert lines[1] == f"Made {scene.config}: sessions may use {scene.project}, and nothing above it."
    assert lines[2] == "Agent opencode: opencode acp"
    assert f"    acp-gateway pair ann@box --map ~/proj={shlex.quote(str(scene.project))}" in lines


def test_up_prints_a_link_that_signs_a_browser_in_at_an_address_that_a_phone_reaches(scene: Scene) -> None:
    link = next(line for line in run("up").stdout.splitlines() if line.startswith("https:"))
    assert link.partition("#")[0] == "https://192.0.2.7:7443/"
    browsers = BrowserStore(scene.state_dir, TokenStore(scene.state_dir))
    assert browsers.sign_in(urlsplit(link).fragment).browser.role == "controller"


def test_up_prints_no_link_into_the_journal(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.fstat(1)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    done = run("up")
    assert "https:" not in done.stdout
    assert "`acp-gateway open` makes a link" in done.stdout


def test_host_is_the_name_in_the_certificate_and_in_all_lines(scene: Scene) -> None:
    done = run("up", "--host", "gpu.example")
    assert "for gpu.example, 192.0.2.7, " in done.stdout
    assert "acp-gateway pair ann@gpu.example" in done.stdout
    assert "https://gpu.example:7443/#" in done.stdout


def test_a_later_up_prints_the_host_of_the_first(scene: Scene) -> None:
    run("up", "--host", "GPU.example")
    assert load_config(scene.config).listen[0].public_url == "https://gpu.example:7443"
    for words, host in ((), "gpu.example"), (("--host", "other"), "other"):
        done = run("up", *words)
        assert f"acp-gateway pair ann@{host}" in done.stdout
        assert f"https://{host}:7443/#" in done.stdout


def test_a_host_that_no_machine_has_is_refused_before_anything_is_made(scene: Scene) -> None:
    done = run("up", "--host", "https://gpu.example")
    assert done.exit_code == 2
    assert made_nothing(scene, done)
    assert "'https://gpu.example' is not a name or address of a machine" in done.stderr


def test_a_second_up_changes_nothing(scene: Scene) -> None:
    run("up")
    before = scene.files()
    scene.install("gemini")
    again = run("up")
    assert again.exit_code == 0
    assert scene.files() == before
    assert again.stdout.startswith(f"Using {scene.config}; agents: opencode; default: opencode.\n")
    assert again.stderr == "This link signs one browser in, once, within 10 minutes:\n"
    assert len(scene.served) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["8443"], "a port is named so: --port 8443"),
        (["--address", "http://box"], "'http://box' is not a name or address of a machine: leave out all but box"),
        (["--address", "0.0.0.0:8443"], "is not a name or address of a machine: leave out all but 0.0.0.0"),
    ],
)
def test_a_port_and_an_address_in_another_form_are_told_how_they_are_given(
    scene: Scene, words: list[str], told: str
) -> None:
    done = run("up", *words)
    assert done.exit_code == 2
    assert told in done.stderr
    assert made_nothing(scene, done)


@pytest.mark.parametrize("words", [["up"], ["up", "--yes"], ["serve", "--agent", "opencode acp"]], ids=" ".join)
def test_the_whole_disk_is_never_served(scene: Scene, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir("/")
    done = run(*words)
    assert done.exit_code == 2
    assert "the whole disk" in done.stderr
    assert made_nothing(scene, done)


@pytest.mark.parametrize("words", [["up"], ["serve", "--agent", "opencode acp"]], ids=" ".join)
@pytest.mark.parametrize("place", [".", ".."])
def test_the_home_folder_is_served_only_where_that_is_confirmed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, words: list[str], place: str
) -> None:
    monkeypatch.chdir(scene.home / place)
    done = run(*words)
    assert done.exit_code == 2
    assert "holds your whole home" in done.stderr
    assert "or add --yes" in done.stderr
    assert made_nothing(scene, done)
    assert run(*words, "--yes").exit_code == 0
    assert len(scene.served) == 1


@pytest.mark.skipif(landlock.abi() == 0 and bubblewrap.find() is None, reason="there is no fence here")
@pytest.mark.parametrize("words", [["up"], ["serve", "--agent", "opencode acp"]], ids=" ".join)
def test_a_folder_in_which_agents_could_change_the_gateway_is_not_served(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(Path(acp_gateway.__file__).parents[1])
    done = run(*words)
    assert done.exit_code == 2
    assert "could change " in done.stderr
    assert "install acp-gateway elsewhere, such as with pipx" in done.stderr
    assert made_nothing(scene, done)


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 1)])
def test_in_a_terminal_up_asks_before_it_serves_the_home_folder(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    monkeypatch.chdir(scene.home)
    monkeypatch.setattr("acp_gateway.cli.gateway.setting_up._can_ask", lambda: True)
    done = CliRunner().invoke(main, ["up"], input=answer)
    assert done.exit_code == code
    assert "Serve it all the same? [y/N]" in done.stderr
    assert len(scene.served) == (1 if code == 0 else 0)


def test_up_adds_the_home_folder_only_where_that_is_confirmed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    run("up")
    before = scene.files()
    monkeypatch.chdir(scene.home)
    assert run("up").exit_code == 0
    assert run("up", "--add").exit_code == 2
    assert scene.files() == before
    assert run("up", "--add", "--yes").exit_code == 0
    assert [section.root for section in load_config(scene.config).workspaces.values()] == [scene.project, scene.home]


def test_a_link_to_the_home_folder_is_the_home_folder(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    link = scene.home.with_name("link-to-home")
    link.symlink_to(scene.home)
    monkeypatch.setenv("HOME", str(link))
    monkeypatch.chdir(scene.home)
    assert run("up").exit_code == 2


def test_up_uses_a_certificate_that_is_there(scene: Scene) -> None:
    run("certs", "create")
    before = scene.files()
    assert run("up").stdout.startswith(f"Using {scene.config.with_name('cert.pem')} and key.pem.\n")
    assert before.items() <= scene.files().items()


def test_the_first_of_several_agents_is_the_default(scene: Scene) -> None:
    scene.install("gemini")
    assert "Agent opencode: opencode acp (the default)\nAgent gemini: gemini --acp\n" in run("up").stdout
    assert scene.served[0].default_agent == "opencode"


def test_the_command_of_up_is_the_only_agent_and_starts_in_this_folder(scene: Scene) -> None:
    scene.install("mine")
    assert run("up", "--", "mine", "--acp", "-v").exit_code == 0
    agents = scene.served[0].agents
    assert [(name, agent.command, agent.cwd) for name, agent in agents.items()] == [
        ("mine", ("mine", "--acp", "-v"), scene.project)
    ]


def test_a_command_that_is_likely_wrong_is_warned_of(scene: Scene) -> None:
    assert run("up", "--", "opencode").stderr.startswith("warning: opencode is an ACP agent with: opencode acp\n")


def test_a_command_that_the_configuration_lacks_is_said_with_the_command_that_adds_it(scene: Scene) -> None:
    run("up")
    scene.install("mine")
    before = scene.files()
    done = run("up", "--", "mine", "--x")
    assert done.exit_code == 0
    assert scene.files() == before
    assert "note: `mine --x` is not an agent in it: `acp-gateway up --add -- mine --x` adds that\n" in done.stderr
    assert "note:" not in run("up", "--", "opencode", "acp").stderr


@pytest.fixture
def other(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another project's folder, in which the user is, beside a configuration for the first one."""
    run("up")
    scene.served.clear()
    folder = scene.home / "other" / "proj"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_a_folder_outside_of_the_workspaces_is_said_with_the_command_that_adds_it(scene: Scene, other: Path) -> None:
    done = run("up")
    assert f"note: {other} is in no workspace of it: `acp-gateway up --add` adds that\n" in done.stderr
    assert f"pair ann@box --map ~/proj={shlex.quote(str(scene.project))}\n" in done.stdout


def test_add_adds_this_folder_and_the_command_to_the_configuration(scene: Scene, other: Path) -> None:
    scene.install("mine")
    done = run("up", "--add", "--", "mine")
    assert done.exit_code == 0, done.output
    assert "Added [gateway] to it.\nAdded [agents.mine] to it.\nAdded [workspaces.proj-2] to it.\n" in done.stdout
    assert "note:" not in done.stderr
    assert f"pair ann@box --map ~/proj={shlex.quote(str(other))}\n" in done.stdout
    (served,) = scene.served
    assert served == load_config(scene.config)
    assert served.workspaces["proj-2"].root == other
    assert (served.agents["mine"].command, served.default_agent) == (("mine",), "opencode")
    again = scene.files()
    assert "Added" not in run("up", "--add", "--", "mine").stdout
    assert scene.files() == again


def test_add_has_a_running_gateway_read_the_configuration(
    scene: Scene, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloaded = []

    def reload(work: Callable[[], Any]) -> dict[str, list[str]]:
        reloaded.append(work)
        return {"changed": ["workspaces.proj-2: new"], "problems": []}

    monkeypatch.setattr(trio, "run", reload)
    scene.state_dir.mkdir(parents=True, exist_ok=True)
    (scene.state_dir / "control").touch()
    with holding(scene.state_dir):
        done = run("up", "--add")
    assert done.exit_code == 0, done.output
    assert len(reloaded) == 1
    assert "Added [workspaces.proj-2] to it.\nNothing to start: " in done.stdout
    assert "\nworkspaces.proj-2: new\n" in done.stdout


@pytest.mark.parametrize("options", [(), ("--add",)], ids=["up", "add"])
def test_up_beside_a_gateway_that_is_stopping_says_to_try_again(
    scene: Scene, other: Path, options: tuple[str, ...]
) -> None:
    scene.state_dir.mkdir(parents=True, exist_ok=True)
    # It has closed its sockets, and waits for its agents.
    with holding(scene.state_dir):
        done = run("up", *options)
    assert done.exit_code == Unreachable.exit_code
    assert "it starts or stops just now" in done.stderr
    assert "run this command again in a moment" in done.stderr
    assert "Nothing to start" not in done.stdout
    assert ("Added [workspaces.proj-2] to it." in done.stdout) == bool(options)


def made_nothing(scene: Scene, done: Result) -> bool:
    return not scene.served and not (scene.home / ".config").exists() and len(done.stderr.splitlines()) == 1


def test_without_an_agent_up_says_how_to_name_one_and_makes_nothing(scene: Scene) -> None:
    (scene.bin / "opencode").unlink()
    done = run("up")
    assert done.exit_code == 3
    assert made_nothing(scene, done)
    assert "such as by `acp-gateway agents add opencode`, or name the command" in done.stderr


@pytest.fixture
def registry(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with an agent for npx and one for uvx; the scene has no agent, and npx alone."""
    (scene.bin / "opencode").unlink()
    scene.install("npx")
    monkeypatch.setenv("PATH", f"{scene.bin}:/usr/bin:/bin")
    entries = [
        {"id": name, "name": name, "version": "1.0.0", "description": "An agent.", "distribution": {kind: package}}
        for name, kind, package in (
            ("fast", "npx", {"package": "@x/fast@1.0.0", "args": ["acp"], "env": {"NO_UPDATE": "1"}}),
            ("slow", "uvx", {"package": "slow"}),
        )
    ]
    path = scene.home / "registry.json"
    path.write_text(json.dumps({"version": "1.0.0", "agents": entries}))
    monkeypatch.setattr("acp_gateway.config.agent_registry.PUBLIC_REGISTRY", str(path))
    return path


def test_up_uses_an_agent_that_was_added_before(scene: Scene, registry: Path) -> None:
    assert run("agents", "add", "fast").exit_code == 0
    scene.install("opencode")
    done = run("up")
    assert done.exit_code == 0, done.output
    assert "Agent fast: npx --yes @x/fast@1.0.0 acp (the default)\nAgent opencode: opencode acp\n" in done.stdout
    (served,) = scene.served
    assert dict(served.agents["fast"].env) == {"NO_UPDATE": "1"}
    assert "is the newest" in run("agents", "update", "fast").output


def test_up_in_a_terminal_offers_to_install_an_agent(
    scene: Scene, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.cli.gateway.setting_up._can_ask", lambda: True)
    done = CliRunner().invoke(main, ["up"], input="fast\n")
    assert done.exit_code == 0, done.output
    assert "fast  1.0.0    An agent.\n" in done.stdout
    assert "slow" not in done.output
    (served,) = scene.served
    assert served.agents["fast"].command == ("npx", "--yes", "@x/fast@1.0.0", "acp")


def test_no_choice_of_an_agent_makes_nothing(scene: Scene, registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.cli.gateway.setting_up._can_ask", lambda: True)
    assert CliRunner().invoke(main, ["up"], input="").exit_code == 1
    assert not scene.served
    assert not (scene.home / ".config").exists()


def test_a_program_without_its_adapter_is_said(scene: Scene) -> None:
    (scene.bin / "opencode").unlink()
    scene.install("codex")
    done = run("up")
    assert done.exit_code == 3
    assert done.stderr.startswith("codex is here, but speaks ACP only through codex-acp")


def test_a_command_that_is_not_found_makes_nothing(scene: Scene) -> None:
    done = run("up", "--", "absent")
    assert done.exit_code == 3
    assert made_nothing(scene, done)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_is_named_with_its_holder_and_the_remedy(
    scene: Scene, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(scene.home))
    monkeypatch.setenv("PATH", str(scene.bin))
    monkeypatch.setattr(trio, "run", scene.serve)
    monkeypatch.chdir(scene.project)
    done = run("up", "--port", str(taken), "--address", "127.0.0.1")
    assert done.exit_code == 9
    assert made_nothing(scene, done)
    assert f"cannot listen on wss://127.0.0.1:{taken}/acp: address already in use" in done.stderr
    assert done.stderr.endswith(f"choose another one by --port, such as --port {taken % 65535 + 1}\n")


def test_another_port_is_not_a_remedy_for_a_wrong_address(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(scene.home))
    monkeypatch.setenv("PATH", str(scene.bin))
    monkeypatch.chdir(scene.project)
    done = run("up", "--address", "203.0.113.7")
    assert done.exit_code == 9
    assert made_nothing(scene, done)
    assert "this machine does not have the address 203.0.113.7" in done.stderr
    assert "--port" not in done.stderr


@pytest.mark.parametrize(("folder", "remedy"), [(".", "acp-gateway up"), ("a b", "cd 'a b' && acp-gateway up")])
def test_a_folder_in_place_of_the_command_is_refused_with_the_way_to_serve_it(
    scene: Scene, folder: str, remedy: str
) -> None:
    (scene.project / "a b").mkdir()
    done = run("up", folder)
    assert done.exit_code == 2
    assert made_nothing(scene, done)
    assert done.stderr.endswith(f"`up` serves the one that you are in: {remedy}\n")


def test_an_option_of_the_agent_is_refused_with_its_place(scene: Scene) -> None:
    done = run("up", "npx", "-y", "opencode-ai")
    assert done.exit_code == 2
    assert "No such option '-y'. Options of an agent stand behind --: acp-gateway up -- COMMAND -y" in done.stderr


@pytest.mark.parametrize(("option", "told"), OF_OTHERS.items())
def test_an_option_of_another_command_is_told_what_has_it(option: str, told: str) -> None:
    assert f"No such option '{option}'. {told}\n" in run("up", option, "x").stderr


def test_a_folder_that_was_removed_is_told(scene: Scene) -> None:
    scene.project.rmdir()
    done = run("up")
    assert done.exit_code == 3
    assert made_nothing(scene, done)
    assert "the folder that you are in can't be used: No such file or directory" in done.stderr


def test_a_configuration_that_is_a_link_to_nowhere_is_not_replaced(scene: Scene) -> None:
    scene.config.parent.mkdir(parents=True)
    scene.config.symlink_to(scene.home / "dotfiles/config.toml")
    assert run("up").exit_code == 3
    assert scene.config.is_symlink()
    assert os.listdir(scene.config.parent) == ["config.toml"]


def test_the_name_of_a_folder_can_not_command_a_terminal(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = scene.home / "a\x1b]0;x\x07b\nc"
    folder.mkdir()
    monkeypatch.chdir(folder)
    done = run("up")
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    assert "\x07" not in done.output
    assert "a\\x1b]0;x\\x07b c, and nothing above it." in done.output


def test_port_and_address_are_refused_beside_a_configuration(scene: Scene) -> None:
    run("up", "--port", "7444", "--address", "127.0.0.1")
    assert scene.served[0].listen[0].url == "wss://127.0.0.1:7444"
    done = run("up", "--port", "7445")
    assert done.exit_code == 2
    assert "exists already, and --port is for a new one" in done.stderr


def test_up_beside_a_running_gateway_prints_the_same_and_starts_nothing(scene: Scene) -> None:
    run("up")
    scene.state_dir.mkdir(parents=True, exist_ok=True)
    (scene.state_dir / "control").touch()
    with holding(scene.state_dir):
        done = run("up")
    assert done.exit_code == 0
    assert f"Nothing to start: an acp-gateway runs on {scene.state_dir} (process {os.getpid()})." in done.stdout
    assert "acp-gateway pair ann@box" in done.stdout
    assert "https://192.0.2.7:7443/#" in done.stdout
    assert len(scene.served) == 1


LINE = "wss://door.example:7443/acp#{},sha256:" + 64 * "d"


@pytest.fixture
def door(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> str:
    """A door that accepts a code; returns the line for it."""

    def run(work: Callable[[], Any]) -> Any:
        assert isinstance(work, partial)
        if work.func is not joining.join:
            return scene.serve(work)
        scene.joined.append(work.args[0])
        return joining.Joined(mint("node"), "1a2b3c4d", scene.role, None, None, work.args[0].address)

    monkeypatch.setattr(trio, "run", run)
    return LINE.format(mint("invitation"))


def test_a_new_machine_that_lends_connections_to_a_door_opens_no_port(scene: Scene, door: str) -> None:
    done = run("up", "--door", door)
    assert done.exit_code == 0, done.output
    settings = load_config(scene.config)
    assert [section.address.scheme for section in settings.listen] == ["unix"]
    (section,) = settings.doors.values()
    assert (str(section.url), section.pin) == ("wss://door.example:7443/acp", "sha256:" + 64 * "d")
    assert section.token_file.stat().st_mode & 0o777 == 0o600
    assert section.token_file.read_text().startswith("acpgwn_")
    assert scene.served[0].doors == settings.doors
    assert not (scene.config.parent / "cert.pem").exists()
    assert "No port is open here" in done.output
    assert "pair" not in done.output
    # It goes on without the line.
    assert run("up").exit_code == 0
    assert scene.served[1].doors == settings.doors


def test_a_door_is_added_to_a_configuration_that_is_there(scene: Scene, door: str) -> None:
    run("up")
    before = scene.config.read_text()
    assert run("up", "--door", door).exit_code == 0
    assert scene.config.read_text().startswith(before.rstrip())
    assert list(load_config(scene.config).doors) == ["door.example"]


def test_a_door_that_is_known_has_its_token_replaced(scene: Scene, door: str) -> None:
    # The node was removed at the door and added again, maybe by another name.
    run("up", "--door", door)
    before, (section,) = scene.config.read_text(), load_config(scene.config).doors.values()
    token = section.token_file.read_text()
    assert run("up", "--door", door).exit_code == 0
    assert scene.config.read_text() == before
    assert section.token_file.read_text() not in ("", token)
    scene.config.write_text(before.replace("sha256:d", "sha256:e"))
    other = run("up", "--door", door)
    assert other.exit_code == 2
    assert "there is a section [doors.door.example] for it, with another pin" in other.stderr


@pytest.mark.parametrize("present", [False, True])
def test_a_line_for_a_guest_makes_no_door_and_leaves_no_new_configuration(
    present: bool, scene: Scene, door: str
) -> None:
    if present:
        run("up")
    scene.role = "observer"
    done = run("up", "--door", door)
    assert done.exit_code == 2
    assert "that line is for a guest" in done.stderr
    assert scene.config.exists() is present
    assert (f"Removed {scene.config} again." in done.output.replace("\n", " ")) is not present
    assert not present or load_config(scene.config).doors == {}


def test_a_line_without_a_code_makes_nothing(scene: Scene) -> None:
    done = run("up", "--door", "wss://door.example:7443/acp")
    assert (done.exit_code, scene.config.exists(), "Made" in done.output) == (2, False, False)


@pytest.mark.parametrize("option", ["--port=7444", "--address=127.0.0.1", "--host=box"])
def test_a_door_and_the_options_of_a_listener_exclude_each_other(scene: Scene, door: str, option: str) -> None:
    done = run("up", "--door", door, option)
    assert done.exit_code == 2
    assert "is for a listener" in done.stderr
    assert not scene.config.exists()
