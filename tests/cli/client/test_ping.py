"""The command `ping`: its options, its output, its exit code. The steps are in tests/client."""

import json
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client.dialing import Destination
from acp_gateway.diagnosis import ping as ping_module
from acp_gateway.diagnosis.checks import fault, ok
from tests.kit.doubles import run_command as run

HOSTS = '[hosts.box]\nurl = "tcp://127.0.0.1:1"\nagent = "demo"\nmaps = { "/a" = "/b" }\n'


class FakePing:
    """A ping that reports what a test says."""

    lines: list[Any] = []  # noqa: RUF012
    made: list[Any] = []  # noqa: RUF012

    def __init__(self, destination: Destination, settings: Any, report: Any, probes: Any, waiting: Any) -> None:
        self.made.append((destination, settings))
        self.report = report

    async def run(self) -> None:
        for line in self.lines:
            self.report(line)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakePing]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(ping_module, "Ping", FakePing)
    FakePing.lines, FakePing.made = [ok("port", "open", 0.001)], []
    return FakePing


def write_hosts(tmp_path: Path, text: str) -> None:
    (tmp_path / "acp-gateway").mkdir(exist_ok=True)
    (tmp_path / "acp-gateway/hosts.toml").write_text(text)


def test_the_only_host_is_pinged_with_its_maps_and_those_that_are_given(fake: type[FakePing], tmp_path: Path) -> None:
    write_hosts(tmp_path, HOSTS)
    result = run("ping", "--map", "/c=/d", "--timeout", "9", "--quick", "--cwd", tmp_path)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "ok      settings  tcp://127.0.0.1:1, [hosts.box] of hosts.toml, no token, 2 path maps",
        "ok      port      open (1.0 ms)",
    ]
    ((destination, settings),) = fake.made
    assert destination.agent == "demo"
    assert (settings.folder, settings.agent_timeout, settings.until) == (str(tmp_path), 9.0, "token")
    assert settings.maps.local_path("/b/x") == "/a/x"
    assert settings.maps.local_path("/d/x") == "/c/x"


def test_a_fault_decides_the_exit_code(fake: type[FakePing]) -> None:
    fake.lines = [fault("port", "closed", "open it", 6)]
    result = run("ping", "tcp://127.0.0.1:1")
    assert result.exit_code == 6
    assert "-> open it" in result.stdout


def test_json_is_one_object_at_the_end(fake: type[FakePing]) -> None:
    fake.lines = [fault("port", "closed", "open it", 6)]
    result = run("ping", "tcp://127.0.0.1:1", "--json")
    report = json.loads(result.stdout)
    assert (report["host"], report["ok"], report["exitCode"]) == ("tcp://127.0.0.1:1", False, 6)
    assert [check["name"] for check in report["checks"]] == ["settings", "port"]
    assert result.exit_code == 6


def test_settings_that_are_wrong_are_the_first_fault(fake: type[FakePing], tmp_path: Path) -> None:
    write_hosts(tmp_path, HOSTS + "comand = 1\n")
    result = run("ping", "box")
    assert result.exit_code == 3
    assert result.stdout.startswith("fault   settings  ")
    assert "hosts.toml:5" in result.stdout
    assert fake.made == []


def test_without_a_host_there_has_to_be_just_one(fake: type[FakePing], tmp_path: Path) -> None:
    result = run("ping")
    assert result.exit_code == 3
    assert "acp-gateway pair" in result.stderr
    write_hosts(tmp_path, HOSTS + HOSTS.replace("box", "other"))
    result = run("ping")
    assert result.exit_code == 3
    assert "box, other" in result.stderr


@pytest.mark.parametrize("option", [("--map", "x"), ("--timeout", "nan")])
def test_options_that_are_wrong_are_a_wrong_command_line(fake: type[FakePing], option: tuple[str, str]) -> None:
    assert run("ping", "tcp://127.0.0.1:1", *option).exit_code == 2
