"""The command `paths`."""

import json
import sys
from pathlib import Path

import pytest

from acp_gateway.cli.files import share_root
from tests.doubles import run_command as run


def listed(*words: str | Path) -> dict[str, tuple[str, bool]]:
    """Return path and existence by name."""
    rows = json.loads(run("paths", "--json", *words).stdout)
    assert all(set(row) == {"name", "path", "exists"} for row in rows)
    return {row["name"]: (row["path"], row["exists"]) for row in rows}


def test_paths_lists_the_files_of_the_gateway_and_whether_they_exist(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    config.write_text(config.read_text() + '[[listen]]\nurl = "unix:///run/x/acp"\n')
    run("token", "create", "--config", config, "--label", "x")
    found = listed("--config", config)
    assert found["configuration"] == (str(config), True)
    assert found["tokens"] == (str(tmp_path / "state/tokens.json"), True)
    assert found["sessions"] == (str(tmp_path / "state/sessions.db"), False)
    assert found["listening socket"] == ("/run/x/acp", False)
    assert found["hosts"] == (str(tmp_path / ".config/acp-gateway/hosts.toml"), False)
    assert found["service"] == (str(tmp_path / ".config/systemd/user/acp-gateway.service"), False)
    assert found["units, examples, documents"] == (str(share_root()), True)
    assert "log" not in found


def test_paths_on_macos_has_the_log_of_the_service(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "darwin")
    found = listed("--config", config)
    assert found["log"] == (str(tmp_path / "Library/Logs/acp-gateway.log"), False)


def test_paths_on_a_laptop_lists_those_of_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    assert list(listed()) == ["hosts", "reached gateways", "units, examples, documents"]


def test_paths_prints_a_row_each(config: Path) -> None:
    lines = run("paths", "--config", config).stdout.splitlines()
    assert any(line.startswith("tokens ") and line.endswith("/state/tokens.json") for line in lines)


def test_paths_with_a_wrong_configuration_says_so(config: Path) -> None:
    config.write_text("x = 1\n")
    assert run("paths", "--config", config).exit_code == 3
