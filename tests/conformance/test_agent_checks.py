"""The checks of agents, on real programs: agents that keep the protocol, and agents with one fault each."""

import sys
from pathlib import Path

import pytest

from acp_conformance.agent_checks import CHECKS
from acp_conformance.client_script import SCENARIOS
from acp_conformance.dialogue import Check, Verdict
from acp_conformance.processes import RunLimits
from acp_conformance.report import judge
from acp_conformance.runner import run_scenarios

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

FAULTS = {
    "banner": ("stdout", "initialize", "not a JSON object"),
    "no jsonrpc member": ("messages", "initialize", 'lacks "jsonrpc": "2.0"'),
    "answers twice": ("responses", "initialize", "its second one"),
    "ids become strings": ("ids", "ids", "with another id"),
    "agrees to any version": ("version-unsupported", "version-unsupported", "was agreed to"),
    "refuses other versions": ("version-lower", "version-lower", "answered with an error"),
    "version as text": ("version", "initialize", "not an integer from 0 to 65535"),
    "auth method without id": ("initialize", "initialize", "an authentication method has no id"),
    "same session id": ("session-new", "session-new", "two sessions have the same id"),
    "unknown session in updates": ("session-known", "permission", "'other' was never opened"),
    "prompts unknown sessions": ("session-unknown", "unknown-session", "does not exist was answered with a result"),
    "refuses session/load": ("session-load", "load", "session/load was answered with an error"),
    "refuses session/set_mode": ("modes", "modes", "session/set_mode was answered with an error"),
    "current mode unknown": ("modes", "modes", "not among the available ones"),
    "refuses links": ("blocks-baseline", "blocks", "resource_link was refused"),
    "refuses images": ("blocks-image", "blocks", "image was refused"),
    "chunk without content": ("updates", "permission", "agent_message_chunk has no content"),
    "unknown update": ("update-kinds", "permission", "'made_up' is not specified"),
    "unknown stop reason": ("stop-reason", "permission", "the protocol has no stop reason 'done'"),
    "no options": ("permission-request", "permission", "there are no options"),
    "disobeys": ("permission-obeyed", "permission-reject", "completed after the user had rejected it"),
    "cancel is an error": ("cancel-permission", "permission-cancelled", "answered with an error"),
    "cancel ends the turn as usual": ("cancel-permission", "permission-cancelled", "stop reason 'end_turn'"),
    "updates after cancelled": ("cancel-updates", "permission-cancelled", "came after its response"),
    "uses files": ("fs-offered", "permission", "fs/read_text_file was sent"),
    "keeps terminals": ("terminal-released", "terminal", "never released"),
    "relative path": ("paths", "permission", "'a.txt' is not absolute"),
    "unknown method is internal error": ("unknown-method", "extensions", "the error -32603"),
    "answers notifications": ("unknown-notification", "extensions", "a notification was answered"),
    "dies of notifications": ("unknown-notification", "extensions", "exit code 1; stderr: what?"),
    "dies of _meta": ("meta", "extensions", "stderr: what is _meta?"),
    "dies of big prompts": ("big-message", "big", "stderr: too much for me"),
    "dies of bad lines": ("bad-line", "garbage", "the program ended"),
    "does not end": ("exit", "initialize", "went on after its stdin"),
}
"""The check that names each fault of `faulty_agent.py`, the scenario that shows it, and a part of the reason."""


async def verdicts(*command: str, cwd: Path, scenario: str = "", exit_timeout: float = 20.0) -> dict[str, Verdict]:
    chosen = [each for each in SCENARIOS if scenario in ("", each.name)]
    limits = RunLimits(timeout=20.0, exit_timeout=exit_timeout)
    dialogues = await run_scenarios([sys.executable, *command], chosen, str(cwd), limits=limits)
    return {check.name: verdict for check, verdict in judge(CHECKS, dialogues)}


def failed(found: dict[str, Verdict], level: str) -> dict[str, str]:
    checks: dict[str, Check] = {check.name: check for check in CHECKS}
    return {
        name: verdict.reason
        for name, verdict in found.items()
        if verdict.outcome == "failed" and checks[name].level == level
    }


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_check_fails_for_the_one_fault_of_an_agent_and_names_it(fault: str, tmp_path: Path) -> None:
    name, scenario, reason = FAULTS[fault]
    # Nothing makes that agent end, so the time does not matter.
    exit_timeout = 0.01 if fault == "does not end" else 20.0
    agent = str(HERE / "faulty_agent.py")
    verdict = (await verdicts(agent, fault, cwd=tmp_path, scenario=scenario, exit_timeout=exit_timeout))[name]
    assert (verdict.outcome, verdict.scenario) == ("failed", scenario)
    assert reason in verdict.reason


async def test_an_agent_without_a_fault_passes_every_check_that_it_gives_occasion_for(tmp_path: Path) -> None:
    found = await verdicts(str(HERE / "faulty_agent.py"), cwd=tmp_path)
    assert failed(found, "MUST") | failed(found, "SHOULD") == {}
    assert {name for name, verdict in found.items() if verdict.outcome == "not shown"} == {"fs", "terminal-released"}


async def test_the_demo_agent_passes_every_must(tmp_path: Path) -> None:
    found = await verdicts(str(ROOT / "examples/demo_agent.py"), "--delay", "0", cwd=tmp_path)
    assert failed(found, "MUST") == {}
    assert found["cancel-permission"].outcome == "passed"


def test_the_checks_have_names_of_their_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
