"""The command `doctor`, on a gateway's machine and on a laptop."""

import json
from pathlib import Path

import pytest

from tests.kit.doubles import run_command as run


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this machine's settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    folder = tmp_path / "settings/acp-gateway"
    folder.mkdir(parents=True)
    return folder


def test_a_gateways_machine_is_checked_and_the_first_fault_decides(config: Path) -> None:
    result = run("doctor", "--config", config)
    assert result.exit_code == 6
    assert "fault   gateway   it does not run" in result.stdout
    assert "hosts" not in {line.split()[1] for line in result.stdout.splitlines()}


def test_a_configuration_that_is_wrong_is_the_first_fault(config: Path) -> None:
    config.write_text(config.read_text() + "x = 1\n")
    result = run("doctor", "--config", config, "--json")
    assert result.exit_code == 3
    report = json.loads(result.stdout)
    assert (report["ok"], report["exitCode"], report["checks"][0]["name"]) == (False, 3, "config")


def test_a_laptop_has_its_hosts_checked(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.config.load.SYSTEM_CONFIG", settings / "absent")
    result = run("doctor")
    assert result.exit_code == 0
    assert "there is no gateway in" in result.stdout
    (settings / "hosts.toml").write_text('[hosts.box]\nurl = "unix:///absent/socket"\n')
    result = run("doctor")
    assert result.exit_code == 6
    assert "fault   host      box: cannot reach /absent/socket" in result.stdout


def test_where_both_are_both_are_checked(settings: Path, config: Path) -> None:
    (settings / "config.toml").write_text(config.read_text())
    (settings / "hosts.toml").write_text('[hosts.box]\nurl = "unix:///absent/socket"\n')
    names = {line.split()[1] for line in run("doctor").stdout.splitlines() if line[:1].isalpha()}
    assert {"gateway", "hosts", "host"} <= names
