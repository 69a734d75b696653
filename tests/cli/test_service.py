"""The commands `service …`, with a systemctl that notes its arguments."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from acp_gateway.cli import service as service_module
from acp_gateway.cli.service_managers import SHOWN
from tests.kit.doubles import run_command as run

ROOT = Path(__file__).parents[2]

SYSTEMCTL = """#!/bin/sh
echo "$(basename "$0") $*" >>"$NOTES/calls"
for word in "$@"; do
    if [ -f "$NOTES/fail-$word" ]; then cat "$NOTES/fail-$word" >&2; exit 1; fi
    if [ -f "$NOTES/print-$word" ]; then cat "$NOTES/print-$word"; fi
done
"""
"""Notes its arguments. The files `fail-WORD` and `print-WORD` decide about a call with that word."""

RUNNING = "LoadState=loaded\nUnitFileState=enabled\nActiveState=active\nSubState=running\nMainPID=42\n"


class Machine:
    """A home folder and a service manager."""

    def __init__(self, directory: Path) -> None:
        self.notes = directory / "notes"
        self.home = directory / "home"
        self.bin = directory / "bin"
        for folder in (self.notes, self.home, self.bin):
            folder.mkdir()
        for name in ("systemctl", "journalctl", "launchctl"):
            (self.bin / name).write_text(SYSTEMCTL)
            (self.bin / name).chmod(0o755)
        self.units = self.home / ".config/systemd/user"
        self.unit = self.units / "acp-gateway.service"
        self.drop_in = self.units / "acp-gateway.service.d/10-install.conf"

    def calls(self) -> list[str]:
        """Return the calls since the last time."""
        path = self.notes / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def say(self, word: str, text: str) -> None:
        """Have calls with this word print a text."""
        (self.notes / f"print-{word}").write_text(text)

    def fail(self, word: str, text: str) -> None:
        """Have calls with this word fail with a text."""
        path = self.notes / f"fail-{word}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setenv("HOME", str(machine.home))
    monkeypatch.setenv("NOTES", str(machine.notes))
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(service_module, "LINGER", tmp_path / "linger")
    monkeypatch.setattr(service_module, "SYSTEMD_RUNS", tmp_path)
    monkeypatch.setattr(service_module, "SYSTEM_UNITS", tmp_path / "system")
    return machine


def test_install_writes_the_packaged_unit_and_starts_it_with_the_path_of_the_shell(
    machine: Machine, config: Path
) -> None:
    done = run("service", "install", "--config", config)
    assert done.exit_code == 0, done.output
    assert machine.unit.read_bytes().startswith((ROOT / "systemd/acp-gateway.service").read_bytes())
    text = machine.drop_in.read_text()
    assert f"PATH={machine.bin}:/usr/bin:/bin" in text
    assert f"serve --config {config}" in text.replace('"', "")
    assert machine.unit.stat().st_mode & 0o777 == 0o644
    assert machine.calls() == [
        "systemctl --user show-environment",
        f"systemctl --user show acp-gateway.service --property={','.join(SHOWN)}",
        "systemctl --user daemon-reload",
        "systemctl --user enable --now acp-gateway.service",
    ]
    assert str(machine.unit) in done.stdout
    assert "    ExecStart=" in done.stdout
    assert "loginctl enable-linger" in done.stdout


def test_install_gives_no_advice_about_lingering_where_it_is_on(machine: Machine, config: Path, tmp_path: Path) -> None:
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger" / service_module._login_name()).touch()
    assert "linger" not in run("service", "install", "--config", config).stdout


def test_install_dry_run_prints_the_files_and_commands_and_does_nothing(machine: Machine, config: Path) -> None:
    done = run("service", "install", "--config", config, "--dry-run")
    assert done.exit_code == 0
    assert f"{machine.unit}  (new)" in done.stdout
    assert "    KillMode=mixed" in done.stdout
    assert "$ systemctl --user enable --now acp-gateway.service" in done.stdout
    assert machine.calls() == []
    assert not machine.units.exists()


def test_install_again_replaces_its_own_files_and_leaves_the_restart_to_the_user(
    machine: Machine, config: Path
) -> None:
    run("service", "install", "--config", config)
    machine.say("show", RUNNING)
    done = run("service", "install", "--config", config, "--path", "/opt/bin")
    assert done.exit_code == 0
    assert f"{machine.unit}  (unchanged)" in done.stdout
    assert f"{machine.drop_in}  (replaced)" in done.stdout
    assert "until a restart: systemctl --user restart acp-gateway.service" in done.stdout
    assert "Environment=PATH=/opt/bin\n" in machine.drop_in.read_text()


def test_install_replaces_a_unit_that_was_changed_by_hand_only_when_forced(machine: Machine, config: Path) -> None:
    machine.units.mkdir(parents=True)
    machine.unit.write_text("[Service]\nExecStart=/bin/true\n")
    refused = run("service", "install", "--config", config)
    assert refused.exit_code == 3
    assert "--force" in refused.stderr
    assert machine.unit.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert not machine.drop_in.exists()
    assert run("service", "install", "--config", config, "--force").exit_code == 0


def test_install_takes_over_a_unit_that_was_copied_from_the_package(machine: Machine, config: Path) -> None:
    run("files", "acp-gateway.service", "--to", machine.units)
    assert run("service", "install", "--config", config).exit_code == 0


def test_install_writes_nothing_with_a_configuration_that_serve_refuses(machine: Machine, config: Path) -> None:
    config.write_text(config.read_text() + "scop = 1\n")
    refused = run("service", "install", "--config", config)
    assert refused.exit_code == 3
    assert 'did you mean "scope"' in refused.stderr
    assert not machine.units.exists()


def test_install_writes_nothing_where_the_service_manager_can_not_be_reached(machine: Machine, config: Path) -> None:
    machine.fail("show-environment", "Failed to connect to bus: No medium found\n")
    refused = run("service", "install", "--config", config)
    assert refused.exit_code == 3
    assert "Failed to connect to bus: No medium found; log in as this user" in refused.stderr
    assert not machine.units.exists()


def test_install_in_a_container_says_what_works_there(
    machine: Machine, config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(service_module, "SYSTEMD_RUNS", tmp_path / "absent")
    for words in ([], ["--system", "--user", "root"]):
        refused = run("service", "install", "--config", config, *words)
        assert refused.exit_code == 3
        assert "systemd does not run here" in refused.stderr
        assert "as the command of a container" in refused.stderr
        assert "log in as this user" not in refused.stderr
        assert refused.stdout == ""
    assert machine.calls() == []
    assert not machine.units.exists()
    # It is still shown what would be written.
    assert run("service", "install", "--config", config, "--dry-run").exit_code == 0


def test_install_shows_the_log_of_a_service_that_does_not_start(machine: Machine, config: Path) -> None:
    machine.fail("enable", "Job for acp-gateway.service failed.\nSee more.\n")
    machine.say("--lines=10", "address already in use\n")
    refused = run("service", "install", "--config", config)
    assert refused.exit_code == 3
    assert "    address already in use\n" in refused.stderr
    assert "enable --now acp-gateway.service: Job for acp-gateway.service failed." in refused.stderr


def test_install_without_any_service_manager_says_so(
    machine: Machine, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    refused = run("service", "install", "--config", config)
    assert refused.exit_code == 3
    assert "no systemctl" in refused.stderr


def test_install_system_names_the_user_and_keeps_sudos_path_visible(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "system").mkdir()
    monkeypatch.setenv("SUDO_USER", "ann")
    done = run("service", "install", "--system")
    assert done.exit_code == 0, done.output
    assert '--path "$PATH"' in done.stderr
    assert (tmp_path / "system/acp-gateway@.service").exists()
    assert (tmp_path / "system/acp-gateway@ann.service.d/10-install.conf").exists()
    assert machine.calls()[-1] == "systemctl enable --now acp-gateway@ann.service"


@pytest.mark.parametrize("words", [["--system"], ["--user", "ann"], ["--system", "--user", "../x"]])
def test_install_refuses_options_that_name_no_user(machine: Machine, words: list[str]) -> None:
    assert run("service", "install", *words).exit_code == 2


def test_uninstall_stops_the_service_and_removes_its_files(machine: Machine, config: Path) -> None:
    run("service", "install", "--config", config)
    machine.calls()
    planned = run("service", "uninstall", "--dry-run").stdout
    assert f"$ rm {shlex.quote(str(machine.drop_in))}" in planned
    assert machine.calls() == []
    done = run("service", "uninstall")
    assert done.exit_code == 0, done.output
    assert machine.calls()[1:] == [
        "systemctl --user disable --now acp-gateway.service",
        "systemctl --user daemon-reload",
    ]
    assert list(machine.units.iterdir()) == []


def test_uninstall_keeps_settings_of_the_owner(machine: Machine, config: Path) -> None:
    run("service", "install", "--config", config)
    override = machine.drop_in.with_name("override.conf")
    override.write_text("[Service]\nUMask=0022\n")
    assert run("service", "uninstall").exit_code == 0
    assert override.exists()


def test_uninstall_refuses_files_that_were_changed_by_hand(machine: Machine, config: Path) -> None:
    run("service", "install", "--config", config)
    machine.drop_in.write_text(machine.drop_in.read_text() + "UMask=0022\n")
    assert run("service", "uninstall").exit_code == 3
    assert machine.unit.exists()
    assert run("service", "uninstall", "--force").exit_code == 0
    assert not machine.drop_in.exists()


def test_uninstall_says_that_nothing_is_installed(machine: Machine) -> None:
    refused = run("service", "uninstall")
    assert refused.exit_code == 3
    assert "is not installed" in refused.stderr


def test_uninstall_system_keeps_the_unit_while_another_user_has_a_service(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    for user in ("ann", "bob"):
        assert run("service", "install", "--system", "--user", user, "--path", "/bin").exit_code == 0
    assert run("service", "uninstall", "--system", "--user", "ann").exit_code == 0
    assert (tmp_path / "system/acp-gateway@.service").exists()
    assert run("service", "uninstall", "--system", "--user", "bob").exit_code == 0
    assert not (tmp_path / "system/acp-gateway@.service").exists()


def test_status_shows_the_state_as_text_or_json(machine: Machine) -> None:
    machine.say("show", RUNNING)
    shown = run("service", "status")
    assert (shown.exit_code, shown.stdout) == (0, "acp-gateway.service: active (running), enabled\npid: 42\n")
    values = json.loads(run("service", "status", "--json").stdout)
    assert (values["running"], values["installed"], values["pid"]) == (True, True, "42")


def test_status_exits_with_3_for_a_service_that_does_not_run(machine: Machine) -> None:
    machine.say("show", "LoadState=not-found\nActiveState=inactive\n")
    shown = run("service", "status")
    assert (shown.exit_code, shown.stdout) == (3, "acp-gateway.service: not installed\n")
    assert "service install" in shown.stderr


def test_logs_runs_journalctl_and_exits_with_its_code(machine: Machine) -> None:
    assert run("service", "logs", "-n", "5", "--since", "today").exit_code == 0
    assert machine.calls() == ["journalctl --no-pager --user --unit=acp-gateway.service --lines=5 --since=today"]
    machine.fail("--lines=100", "no journal\n")
    assert run("service", "logs").exit_code == 1


def test_on_macos_a_property_list_is_written_and_loaded(
    machine: Machine, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    machine.fail(f"gui/{os.getuid()}/acp-gateway", "Could not find service\n")
    done = run("service", "install", "--config", config)
    assert done.exit_code == 0, done.output
    path = machine.home / "Library/LaunchAgents/acp-gateway.plist"
    assert path.exists()
    assert machine.calls()[-1] == f"launchctl bootstrap gui/{os.getuid()} {path}"
    assert run("service", "logs", "--json").exit_code == 2
    assert run("service", "uninstall").exit_code == 0
    assert not path.exists()


def test_install_with_json_prints_files_and_commands_as_the_dry_run_does(machine: Machine, config: Path) -> None:
    planned = json.loads(run("service", "install", "--config", config, "--dry-run", "--json").stdout)
    done = run("service", "install", "--config", config, "--json")
    assert done.exit_code == 0, done.output
    assert "acp-gateway.service is started." in done.stderr
    value = json.loads(done.stdout)
    assert [(file["path"], file["state"]) for file in value["files"]] == [
        (str(machine.unit), "new"),
        (str(machine.drop_in), "new"),
    ]
    assert "KillMode=mixed" in planned["files"][0]["text"]
    assert (value["files"][1], value["commands"]) == (planned["files"][1], planned["commands"])
    assert value["commands"][1] == "systemctl --user enable --now acp-gateway.service"
    assert (planned["dryRun"], value["dryRun"]) == (True, False)
    assert (value["restart"], value["endsAtLogout"]) == ([], True)
    machine.say("show", RUNNING)
    again = json.loads(run("service", "install", "--config", config, "--json").stdout)
    assert again["restart"] == ["systemctl --user restart acp-gateway.service"]


def test_uninstall_with_json_prints_the_files_and_commands(machine: Machine, config: Path) -> None:
    run("service", "install", "--config", config)
    planned = json.loads(run("service", "uninstall", "--dry-run", "--json").stdout)
    assert machine.unit.exists()
    value = json.loads(run("service", "uninstall", "--json").stdout)
    assert not machine.unit.exists()
    assert value == planned | {"dryRun": False}
    assert set(value["files"]) == {str(machine.unit), str(machine.drop_in)}
    assert value["commands"][0].startswith("systemctl --user disable")


@pytest.mark.parametrize("words", [["start"], ["stop"], ["restart"], ["logs"], ["status"]], ids=" ".join)
def test_without_systemd_each_command_says_what_runs_the_gateway_instead(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.setattr(service_module, "SYSTEMD_RUNS", tmp_path / "absent")
    refused = run("service", *words)
    assert refused.exit_code == 3
    assert "systemd does not run here: have whatever starts programs here run `acp-gateway serve`" in refused.stderr
    assert machine.calls() == []


@pytest.mark.parametrize("word", ["start", "stop", "restart"])
def test_the_service_manager_s_own_command_is_named_for_what_it_does(machine: Machine, word: str) -> None:
    refused = run("service", word)
    assert refused.exit_code == 2
    assert f"`systemctl --user {word} acp-gateway.service` {word}s it" in refused.stderr
    assert machine.calls() == []


def test_on_macos_it_is_the_command_of_launchd(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    refused = run("service", "restart").stderr
    assert "launchctl bootout gui/" in refused
    assert "&& launchctl bootstrap gui/" in refused
