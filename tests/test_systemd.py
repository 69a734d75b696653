"""The units are well-formed, set what they must and leave alone what agents would break under."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parent.parent / "systemd"

USER_UNIT = "acp-gateway.service"
SYSTEM_UNIT = "acp-gateway@.service"

BREAKS_AGENTS = [
    "MemoryDenyWriteExecute",
    "PrivateDevices",
    "ProtectClock",
    "ProtectHome",
    "ProtectSystem",
    "PrivateTmp",
    "PrivateNetwork",
    "RestrictNamespaces",
    "SystemCallFilter",
    "ProtectKernelTunables",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectControlGroups",
    "ProtectHostname",
]

every_unit = pytest.mark.parametrize("unit", [USER_UNIT, SYSTEM_UNIT])


def settings(unit: str) -> dict[str, str]:
    """The settings of a unit, by name; none is set twice in ours."""
    found: dict[str, str] = {}
    for line in (UNITS / unit).read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            name, equals, value = line.partition("=")
            assert equals, line
            assert name not in found, line
            found[name] = value
    return found


def comments(unit: str) -> str:
    lines = (UNITS / unit).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("#"))


def verify(unit: str, text: str, directory: Path) -> str:
    """What systemd has to say about a unit with this text, on a machine where the gateway is not installed."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    copy = directory / unit
    copy.write_text(re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", text, flags=re.MULTILINE), encoding="utf-8")
    scope = "--user" if unit == USER_UNIT else "--system"
    ended = subprocess.run(
        [analyze, scope, "verify", "--man=no", "--recursive-errors=no", str(copy)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(directory), "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.stderr + ended.stdout + (f"exit {ended.returncode}" if ended.returncode else "")


@every_unit
def test_systemd_finds_nothing_wrong(unit: str, tmp_path: Path) -> None:
    assert verify(unit, (UNITS / unit).read_text(encoding="utf-8"), tmp_path) == ""


@every_unit
def test_systemd_would_find_a_misspelt_setting(unit: str, tmp_path: Path) -> None:
    text = (UNITS / unit).read_text(encoding="utf-8").replace("KillMode=", "KilMode=")

    assert "KilMode" in verify(unit, text, tmp_path)


@every_unit
def test_systemd_accepts_the_settings_that_the_readme_suggests_for_sudo(unit: str, tmp_path: Path) -> None:
    readme = (UNITS / "README.md").read_text(encoding="utf-8")
    suggestion = re.search(r"```ini\n(.*?)```", readme, re.DOTALL)
    assert suggestion is not None

    assert verify(unit, (UNITS / unit).read_text(encoding="utf-8") + suggestion[1], tmp_path) == ""


@every_unit
def test_what_breaks_agents_is_not_set_and_the_reason_is_given(unit: str) -> None:
    assert not set(BREAKS_AGENTS) & set(settings(unit))
    assert not [name for name in BREAKS_AGENTS if name not in comments(unit)]


@every_unit
@pytest.mark.parametrize("name", ["NoNewPrivileges", "RestrictSUIDSGID", "RestrictRealtime", "LockPersonality"])
def test_what_agents_bear_is_set(unit: str, name: str) -> None:
    assert settings(unit)[name] == "yes"


def test_the_system_unit_leaves_no_capability() -> None:
    assert settings(SYSTEM_UNIT)["CapabilityBoundingSet"] == ""
    assert settings(SYSTEM_UNIT)["AmbientCapabilities"] == ""


@every_unit
def test_files_are_for_the_user_alone(unit: str) -> None:
    assert settings(unit)["UMask"] == "0077"


@every_unit
def test_the_gateway_ends_its_agents_before_systemd_kills_them(unit: str) -> None:
    example = (UNITS.parent / "examples" / "gateway.toml").read_text(encoding="utf-8")
    graces = [float(seconds) for seconds in re.findall(r"^# (?:eof|term)_grace = ([0-9.]+)", example, re.MULTILINE)]

    assert len(graces) == 2
    assert settings(unit)["KillMode"] == "mixed"
    assert float(settings(unit)["TimeoutStopSec"]) >= 2 * sum(graces)


@every_unit
def test_a_configuration_error_is_not_tried_again(unit: str) -> None:
    assert settings(unit)["Restart"] == "on-failure"
    assert settings(unit)["RestartPreventExitStatus"] == "2 3"


@every_unit
def test_restarts_stay_below_the_start_limit(unit: str) -> None:
    default_interval, default_burst = 10, 5

    assert float(settings(unit)["RestartSec"]) > default_interval / default_burst


@every_unit
def test_a_compiler_killed_for_its_memory_does_not_stop_the_gateway(unit: str) -> None:
    assert settings(unit)["OOMPolicy"] == "continue"


def test_the_user_unit_starts_what_pipx_and_uv_install() -> None:
    assert settings(USER_UNIT)["ExecStart"] == "%h/.local/bin/acp-gateway serve"
    assert settings(USER_UNIT)["Environment"].startswith("PATH=%h/.local/bin:")


def test_the_system_unit_runs_as_the_user_it_is_named_after() -> None:
    assert settings(SYSTEM_UNIT)["User"] == "%i"
    assert settings(SYSTEM_UNIT)["ExecStart"] == "/usr/local/bin/acp-gateway serve"


def test_the_system_unit_shows_how_to_hand_over_secrets() -> None:
    assert "#LoadCredential=agent.env:/etc/acp-gateway/%i/agent.env" in comments(SYSTEM_UNIT)
    assert "/run/credentials/acp-gateway@ann.service/agent.env" in comments(SYSTEM_UNIT)


@every_unit
def test_the_readme_tells_how_to_install_the_unit(unit: str) -> None:
    assert re.search(rf"cp systemd/{re.escape(unit)} \S+", (UNITS / "README.md").read_text(encoding="utf-8"))
