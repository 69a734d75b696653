"""The commands `agents …`, with a registry in a file or on loopback."""

import hashlib
import json
import platform
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client.local import LocalGateway
from acp_gateway.config.agent_registry import platform_name
from acp_gateway.config.load import load_config
from acp_gateway.errors import Unreachable
from tests.gateway.agent.web_server import serve
from tests.kit.doubles import run_command as run

HERE = platform_name(sys.platform, platform.machine())

RUNNER = """#!/bin/sh
echo "$(basename "$0") $*" >>"$NOTES"
case "$*" in *missing*) echo "npm error 404 Not Found" >&2; exit 1;; esac
"""


def entry(agent_id: str, version: str = "1.0.0", **distribution: Any) -> dict[str, Any]:
    name = agent_id.title()
    return {"id": agent_id, "name": name, "version": version, "description": "An agent.", "distribution": distribution}


def npx(version: str, *args: str) -> dict[str, Any]:
    return {"package": f"@x/fast@{version}", "args": list(args), "env": {"NO_UPDATE": "1"}}


class Scene:
    """A configuration, a registry in a file, and runners that note their arguments."""

    def __init__(self, directory: Path, config: Path) -> None:
        self.config = config
        self.registry = directory / "registry.json"
        self.notes = directory / "notes"
        self.bin = directory / "bin"
        self.bin.mkdir()
        for name in ("npx", "uvx"):
            (self.bin / name).write_text(RUNNER)
            (self.bin / name).chmod(0o755)

    def publish(self, *entries: dict[str, Any]) -> None:
        self.registry.write_text(json.dumps({"version": "1.0.0", "agents": list(entries)}))

    def calls(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def run(self, *words: str | Path, code: int = 0) -> str:
        """Run a command of `agents`, and return what it prints."""
        done = run("agents", *words, "--config", self.config)
        assert done.exit_code == code, done.output
        return done.output

    def add(self, *words: str | Path, code: int = 0) -> str:
        return self.run("add", *words, "--registry", self.registry, code=code)


@pytest.fixture
def scene(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(tmp_path, config)
    monkeypatch.setenv("PATH", f"{scene.bin}:/usr/bin:/bin")
    monkeypatch.setenv("NOTES", str(scene.notes))
    config.write_text("# Mine.\n" + config.read_text())
    scene.publish(entry("fast", npx=npx("1.0.0", "acp")), entry("slow", uvx={"package": "slow"}))
    return scene


def test_add_writes_the_pinned_command_and_keeps_the_rest_of_the_file(scene: Scene) -> None:
    before = scene.config.read_text()
    printed = scene.add("fast")
    added = '[agents.fast]\ncommand = ["npx", "--yes", "@x/fast@1.0.0", "acp"]\nenv = {NO_UPDATE = "1"}\n'
    state_dir = f'state_dir = "{scene.config.parent / "state"}"\n'
    with_default = before.replace(state_dir, f'{state_dir}default_agent = "demo"\n')
    assert scene.config.read_text() == f"{with_default}\n{added}"
    assert "command: npx --yes @x/fast@1.0.0 acp" in printed
    assert "env: NO_UPDATE=1" in printed
    assert load_config(scene.config).default_agent == "demo"


def test_add_has_the_runner_fetch_the_package_unless_told_not_to(scene: Scene) -> None:
    scene.add("fast")
    scene.add("slow", "--no-fetch")
    assert scene.calls() == ["npx --yes --package=@x/fast@1.0.0 -- node -e "]


def test_add_writes_nothing_for_a_package_that_can_not_be_fetched(scene: Scene) -> None:
    scene.publish(entry("fast", npx={"package": "missing"}))
    before = scene.config.read_text()
    assert "npx can't fetch missing@1.0.0: npm error 404 Not Found" in scene.add("fast", code=3)
    assert scene.config.read_text() == before
    assert "fast" not in scene.run("list")


def test_add_downloads_and_unpacks_a_binary(scene: Scene) -> None:
    program = b"#!/bin/sh\n"
    with serve({"/run": program}) as url:
        scene.publish(entry("quick", binary={HERE: {"archive": f"{url}/run", "cmd": "./quick", "args": ["acp"]}}))
        printed = scene.add("quick", "--name", "q")
    digest = hashlib.sha256(program).hexdigest()
    assert f"SHA-256: {digest} (noted, the registry has none)" in printed
    command = load_config(scene.config).agents["q"].command
    assert command is not None
    assert Path(command[0]).read_bytes() == program
    assert command[1:] == ("acp",)
    assert json.loads(scene.run("list", "--json"))[1] == {
        "name": "q",
        "version": "1.0.0",
        "state": "ok",
        "source": "quick",
        "command": shlex.join(command),
    }


def test_add_refuses_a_binary_with_another_hash_than_the_given_one(scene: Scene) -> None:
    with serve({"/run": b"x"}) as url:
        target = {"archive": f"{url}/run", "cmd": "./quick"}
        scene.publish(
            entry("quick", binary={HERE: target}), entry("sure", binary={HERE: target | {"sha256": "1" * 64}})
        )
        assert "as announced" in scene.add("quick", "--sha256", "0" * 64, code=3)
        assert f"has another SHA-256 for sure: {'1' * 64}" in scene.add("sure", "--sha256", "0" * 64, code=3)
    assert "--sha256 is for binaries" in scene.run(
        "add", "fast", "--registry", _npx_entry(scene), "--sha256", "0" * 64, code=2
    )


def _npx_entry(scene: Scene) -> Path:
    path = scene.registry.with_name("agent.json")
    path.write_text(json.dumps(entry("fast", npx=npx("1.0.0"))))
    return path


def test_add_dry_run_changes_nothing(scene: Scene) -> None:
    before = scene.config.read_text()
    assert "fast 1.0.0: npx --yes @x/fast@1.0.0 acp" in scene.add("fast", "--dry-run")
    assert scene.config.read_text() == before
    assert scene.calls() == []


def test_add_writes_the_scope_of_an_agent_that_can_not_be_shared(scene: Scene) -> None:
    scene.publish(entry("pi", npx={"package": "pi-acp"}))
    scene.add("pi")
    assert load_config(scene.config).agents["pi"].scope == "connection"


def test_add_refuses_an_agent_that_is_there_or_not_in_the_registry(scene: Scene) -> None:
    scene.add("fast")
    assert "`acp-gateway agents update fast`" in scene.add("fast", code=2)
    assert 'did you mean "slow"?' in scene.add("slwo", code=3)
    assert "`acp-gateway agents list --available` lists" in scene.add("zzz", code=3)


def test_add_takes_one_entry_as_the_registry(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text(json.dumps(entry("one", npx={"package": "one"})))
    scene.run("add", "one", "--registry", tmp_path / "agent.json")
    assert load_config(scene.config).agents["one"].command == ("npx", "--yes", "one@1.0.0")


def test_add_refuses_a_registry_without_encryption_on_the_network(scene: Scene) -> None:
    assert "not an https URL" in scene.run("add", "fast", "--registry", "http://example.org/registry.json", code=3)


def test_add_keeps_the_mode_of_the_configuration(scene: Scene) -> None:
    scene.config.chmod(0o640)
    scene.add("fast")
    assert scene.config.stat().st_mode & 0o777 == 0o640


def test_an_agent_is_added_listed_and_removed_before_there_is_a_configuration(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    done = run("agents", "add", "fast", "--registry", scene.registry)
    assert done.exit_code == 0, done.output
    assert "`acp-gateway up` in a project's folder serves it" in done.stderr
    assert not (tmp_path / "CONFIG").exists()
    assert json.loads(run("agents", "list", "--json").stdout) == [
        {"name": "fast", "version": "1.0.0", "state": "ok", "source": "fast", "command": "npx --yes @x/fast@1.0.0 acp"}
    ]
    assert "`acp-gateway agents update fast`" in run("agents", "add", "fast", "--registry", scene.registry).stderr
    scene.publish(entry("fast", "1.1.0", npx=npx("1.1.0")))
    assert "fast: 1.0.0 → 1.1.0" in run("agents", "update").output
    assert json.loads(run("agents", "remove", "fast", "--json").stdout)["config"] is None
    assert run("agents", "list").stdout == ""


def test_add_without_a_network_says_what_else_works(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.config.agent_registry.PUBLIC_REGISTRY", "http://127.0.0.1:1/registry.json")
    printed = scene.run("add", "fast", code=6)
    assert "http://127.0.0.1:1/registry.json: Connection refused. Without the registry: install an agent" in printed
    assert "`acp-gateway up -- COMMAND`" in printed


def test_list_available_shows_the_registry_for_this_platform(scene: Scene) -> None:
    rows = json.loads(scene.run("list", "--available", "--json", "--registry", scene.registry))
    assert [(row["id"], row["version"], row["kinds"]) for row in rows] == [
        ("fast", "1.0.0", "npx"),
        ("slow", "1.0.0", "uvx"),
    ]
    assert "An agent." in scene.run("list", "--available", "--registry", scene.registry)


def test_update_prints_old_and_new_version_and_changes_the_command(scene: Scene) -> None:
    scene.add("fast")
    scene.publish(entry("fast", "1.1.0", npx=npx("1.1.0", "acp")))
    assert "fast: 1.0.0 → 1.1.0" in scene.run("update", "--dry-run")
    assert "1.0.0" in scene.run("list")
    assert "fast: 1.0.0 → 1.1.0" in scene.run("update")
    assert load_config(scene.config).agents["fast"].command == ("npx", "--yes", "@x/fast@1.1.0", "acp")
    assert "fast: 1.1.0 is the newest" in scene.run("update", "fast")


def test_update_does_not_go_back(scene: Scene) -> None:
    scene.publish(entry("fast", "1.1.0", npx=npx("1.1.0")))
    scene.add("fast")
    scene.publish(entry("fast", "1.0.0", npx=npx("1.0.0")))
    assert "stays at 1.1.0; the registry has an older one, 1.0.0" in scene.run("update")


def test_update_leaves_a_command_alone_that_was_changed_by_hand(scene: Scene) -> None:
    scene.add("fast")
    scene.add("slow")
    scene.config.write_text(scene.config.read_text().replace('"acp"]\nenv', '"acp", "--mine"]\nenv'))
    scene.publish(entry("fast", "1.1.0", npx=npx("1.1.0", "acp")), entry("slow", "1.1.0", uvx={"package": "slow"}))
    printed = scene.run("update", code=3)
    assert "fast: its command was changed by hand; the registry has 1.1.0" in printed
    assert "slow: 1.0.0 → 1.1.0" in printed
    assert '"--mine"' in scene.config.read_text()


def test_update_refuses_an_agent_that_was_not_added(scene: Scene) -> None:
    assert "'demo' is not an agent that" in scene.run("update", "demo", code=2)
    assert "no agents of a registry" in scene.run("update")


def test_remove_undoes_add(scene: Scene) -> None:
    before = tomllib.loads(scene.config.read_text())
    with serve({"/run": b"x"}) as url:
        scene.publish(entry("quick", binary={HERE: {"archive": f"{url}/run", "cmd": "./quick"}}))
        scene.add("quick")
    folder = load_config(scene.config).gateway.state_dir / "installed-agents/quick"
    assert f"Would remove {folder}" in scene.run("remove", "quick", "--dry-run")
    assert folder.exists()
    assert "Removed [agents.quick]" in scene.run("remove", "quick")
    assert not folder.exists()
    assert tomllib.loads(scene.config.read_text())["agents"] == before["agents"]


def test_remove_refuses_the_only_agent_and_the_default_of_several(scene: Scene) -> None:
    assert "add another first" in scene.run("remove", "demo", code=2)
    scene.add("fast")
    scene.add("slow")
    assert "set another default_agent" in scene.run("remove", "demo", code=2)
    scene.run("remove", "slow")
    scene.run("remove", "demo")
    assert load_config(scene.config).default_agent == "fast"


@pytest.mark.parametrize(
    "section",
    [
        '[nodes.gpu]\nurl = "gpu.example"\ntoken_file = "gpu.token"\n',
        '[cluster]\nurl = "redis://127.0.0.1"\nname = "gpu1"\ntoken_file = "cluster.token"\n',
    ],
)
def test_remove_leaves_a_gateway_with_nodes_without_an_agent_of_its_own(section: str, scene: Scene) -> None:
    with scene.config.open("a") as file:
        file.write(section)
    scene.run("remove", "demo")
    assert load_config(scene.config).agents == {}


def test_remove_suggests_the_name_that_was_meant(scene: Scene) -> None:
    assert 'did you mean "demo"' in scene.run("remove", "dmo", code=2)


@pytest.fixture
def reloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A gateway that runs, and the texts of its configuration when it was told to read it."""
    told: list[str] = []

    async def reload(gateway: LocalGateway, *, time_limit: float) -> dict[str, Any]:
        told.append((gateway.state_dir.parent / "config.toml").read_text())
        return {"changed": ["agents.fast: added"]}

    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    monkeypatch.setattr(LocalGateway, "reload", reload)
    return told


def test_a_gateway_that_runs_uses_the_agents_at_once(scene: Scene, reloads: list[str]) -> None:
    assert "agents.fast: added" in scene.add("fast")
    scene.publish(entry("fast", "1.1.0", npx=npx("1.1.0")))
    scene.run("update")
    scene.run("remove", "fast")
    assert ["fast@1.0.0" in text for text in reloads] == [True, False, False]
    assert ["fast@1.1.0" in text for text in reloads] == [False, True, False]


def test_a_gateway_that_can_not_be_asked_to_reload_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def reload(_: LocalGateway, *, time_limit: float) -> dict[str, Any]:
        raise Unreachable("no answer")

    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    monkeypatch.setattr(LocalGateway, "reload", reload)
    assert "The gateway that runs does not use it yet: no answer" in scene.add("fast")


def as_json(scene: Scene, *words: str | Path, code: int = 0) -> Any:
    """Run a command of `agents` with `--json`, and return the value on its stdout."""
    done = run("agents", *words, "--json", "--config", scene.config)
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_add_with_json_prints_what_is_written_and_what_a_gateway_says(scene: Scene, reloads: list[str]) -> None:
    planned = as_json(scene, "add", "fast", "--registry", scene.registry, "--dry-run")
    added = as_json(scene, "add", "fast", "--registry", scene.registry)
    assert added == {
        "name": "fast",
        "id": "fast",
        "version": "1.0.0",
        "kind": "npx",
        "config": str(scene.config),
        "command": "npx --yes @x/fast@1.0.0 acp",
        "env": {"NO_UPDATE": "1"},
        "archive": None,
        "sha256": None,
        "sha256Known": False,
        "dryRun": False,
        "gateway": {"changed": ["agents.fast: added"], "restart": [], "problems": []},
    }
    assert planned == added | {"dryRun": True, "gateway": None}


def test_update_with_json_prints_a_row_for_each_agent_also_for_one_that_fails(scene: Scene) -> None:
    scene.publish(entry("fast", npx=npx("1.0.0")), entry("slow", uvx={"package": "slow"}))
    scene.add("fast")
    scene.add("slow")
    scene.publish(entry("fast", "1.1.0", npx=npx("1.1.0")))
    (planned, _) = as_json(scene, "update", "--dry-run", code=3)
    assert (planned["state"], planned["before"], planned["version"]) == ("outdated", "1.0.0", "1.1.0")
    fast, slow = as_json(scene, "update", code=3)
    assert (fast["name"], fast["state"], fast["command"]) == ("fast", "updated", "npx --yes @x/fast@1.1.0")
    assert (slow["name"], slow["state"], "has no agent 'slow'" in slow["error"]) == ("slow", "failed", True)
    assert as_json(scene, "update", "fast") == [
        {"name": "fast", "before": "1.1.0", "state": "newest", "version": "1.1.0"}
    ]
    scene.publish(entry("fast", npx=npx("1.0.0")))
    assert as_json(scene, "update", "fast")[0]["state"] == "newer"
    scene.run("remove", "fast")
    scene.run("remove", "slow")
    assert as_json(scene, "update") == []


def test_remove_with_json_prints_the_folder_that_is_removed(scene: Scene) -> None:
    scene.add("fast")
    folder = load_config(scene.config).gateway.state_dir / "installed-agents/fast"
    removed = {"name": "fast", "config": str(scene.config), "folder": str(folder), "gateway": None}
    assert as_json(scene, "remove", "fast", "--dry-run") == removed | {"dryRun": True}
    assert as_json(scene, "remove", "fast") == removed | {"dryRun": False}
    assert not folder.exists()


@pytest.mark.parametrize(
    ("done", "printed"),
    [
        ({"processes": 2, "turns": 1}, "demo: 2 processes stopped, 1 turn ended"),
        ({"processes": 1, "turns": 0}, "demo: 1 process stopped"),
        ({"processes": 0, "turns": 0}, "demo: it does not run"),
        ({"processes": 0, "starts": 1, "turns": 0}, "demo: it was about to start, which was given up"),
    ],
)
def test_stop_tells_what_has_ended(
    done: dict[str, int], printed: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop_agent(self: LocalGateway, name: str, *, time_limit: float) -> Any:
        return done

    monkeypatch.setattr(LocalGateway, "stop_agent", stop_agent)
    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    assert run("agents", "stop", "demo", "--config", config).stdout == f"{printed}\n"
    told = json.loads(run("agents", "stop", "demo", "--config", config, "--json").stdout)
    assert told == {"name": "demo", **done}
