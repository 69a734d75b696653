"""The commands `check-agent` and `check-client`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from acp_conformance import client_script
from acp_gateway.cli.conformance import _in_fence
from acp_gateway.fence import bubblewrap, landlock
from tests.kit.doubles import run_command

AGENT = Path(__file__).parents[1] / "conformance" / "faulty_agent.py"


@pytest.fixture
def two_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scenario starts an agent, and most tests need not have them all."""
    for name in ("SCENARIOS", "NEW_SCENARIOS"):
        chosen = [
            scenario for scenario in getattr(client_script, name) if scenario.name in ("initialize", "permission")
        ]
        monkeypatch.setattr(client_script, name, chosen)


def test_an_agent_that_keeps_the_protocol_passes_with_exit_code_0(tmp_path: Path) -> None:
    result = run_command("check-agent", "--json", "--junit", tmp_path / "r.xml", "--", sys.executable, AGENT)
    assert result.exit_code == 0
    outcomes = {entry["check"]: entry["outcome"] for entry in json.loads(result.stdout)}
    assert outcomes["cancel-permission"] == "passed"
    suite = ET.fromstring((tmp_path / "r.xml").read_bytes())  # noqa: S314
    assert (suite.get("failures"), suite.get("tests")) == ("0", str(len(outcomes)))


def test_an_agent_is_found_from_the_present_directory(two_scenarios: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(AGENT.parent)
    assert run_command("check-agent", "--", sys.executable, AGENT.name).exit_code == 0


@pytest.mark.skipif(bubblewrap.find() is None and not landlock.abi(), reason="this machine has no fence")
def test_an_agent_puts_no_module_before_those_of_the_program_that_fences_it(tmp_path: Path) -> None:
    (tmp_path / "acp_gateway.py").write_text("raise SystemExit('outside of the fence')")
    with tempfile.TemporaryDirectory() as scratch:
        command = _in_fence(("true",), str(tmp_path), scratch)
        assert command[-1] != command[0]
        subprocess.run(command, cwd=tmp_path, check=True)


def test_a_broken_must_is_a_line_with_its_message_and_exit_code_1(two_scenarios: None) -> None:
    result = run_command("check-agent", "--", sys.executable, AGENT, "banner")
    assert result.exit_code == 1
    assert "failed     MUST    stdout " in result.stdout
    assert "Welcome\\x1b[2J!" in result.stdout
    assert "\x1b" not in result.output
    assert "1 MUST and 0 SHOULD failed" in result.stderr


def test_version_2_is_checked_where_it_is_asked_for(two_scenarios: None) -> None:
    agent = AGENT.with_name("faulty_new_agent.py")
    result = run_command("check-agent", "--protocol", "2", "--json", "--", sys.executable, agent, "no info")
    assert result.exit_code == 1
    found = {entry["check"]: entry for entry in json.loads(result.stdout)}
    assert found["initialize"]["reason"] == "initialize has no info that is an object"


def test_an_agent_that_cannot_be_started_has_exit_code_8() -> None:
    result = run_command("check-agent", "--", "no-such-agent")
    assert result.exit_code == 8
    assert "no-such-agent cannot be started" in result.stderr


@pytest.mark.parametrize("options", [[], ["--timeout", "nan", "--", "x"], ["--output-limit", "1", "--", "x"]])
def test_a_wrong_command_line_has_exit_code_2(options: list[str]) -> None:
    assert run_command("check-agent", *options).exit_code == 2


CLIENT = AGENT.with_name("faulty_client.py")

DECISIONS = ["--allow", "y", "--reject", "n", "--cancel", "c", "--reaction", "0"]


def test_a_client_is_checked_with_the_same_report(tmp_path: Path) -> None:
    options: list[str | Path] = ["--cwd", tmp_path, *DECISIONS, "--json", "--junit", tmp_path / "r.xml"]
    result = run_command(
        "check-client", *options, "--", sys.executable, "-I", "-S", CLIENT, "{agent}", "greets the agent"
    )
    assert result.exit_code == 1
    found = {entry["check"]: entry for entry in json.loads(result.stdout)}
    assert (found["stdin"]["outcome"], found["stdin"]["message"]) == ("failed", "Hello!")
    assert found["cancel-permission"]["outcome"] == "passed"
    suite = ET.fromstring((tmp_path / "r.xml").read_bytes())  # noqa: S314
    assert (suite.get("name"), suite.get("failures"), suite.get("tests")) == ("check-client", "1", str(len(found)))


def test_a_client_without_an_agent_has_exit_code_8(tmp_path: Path) -> None:
    result = run_command("check-client", "--cwd", tmp_path, "--", "no-such-client", "{agent}")
    assert result.exit_code == 8
    assert "no-such-client cannot be started" in result.stderr


def test_the_agent_of_a_client_can_have_a_place_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("mine")
    result = run_command("check-client", "--agent", tmp_path / "agent", "--cwd", tmp_path, "--", "true")
    assert result.exit_code == 3
    assert "is there already" in result.stderr
