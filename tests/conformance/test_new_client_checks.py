"""The checks of clients of version 2 on real programs: one keeps the protocol, others have one fault each."""

import sys
from pathlib import Path

import pytest

from acp_conformance.client_runner import User, run_client_scenarios
from acp_conformance.client_script import NEW_CLIENT_SCENARIOS
from acp_conformance.dialogue import Verdict
from acp_conformance.new_client_checks import CHECKS
from acp_conformance.report import judge
from acp_conformance.runner import RunLimits

CLIENT = Path(__file__).parent / "faulty_client.py"

FAULTS = {
    "ends early": ("turn", "agent-text", "stderr: not today, before session/prompt"),
    "greets the agent": ("stdin", "agent-text", "not a JSON object"),
    "answers twice": ("responses", "permission", "its second one"),
    "ids become strings": ("ids", "agent-ids", "with another id"),
    "asks for version 1": ("initialize", "agent-text", "the version asked for is 1"),
    "no info": ("initialize", "agent-text", "initialize has no info"),
    "works with any version": ("version-unsupported", "agent-version", "65535, which no client has"),
    "no directory": ("session-new", "agent-text", "the request has no cwd"),
    "unknown session": ("session-known", "agent-text", "'other' was never opened"),
    "prompt as text": ("prompt", "agent-text", "has no prompt that is an array"),
    "dies of plans": ("updates", "agent-updates", "stderr: what is plan_update?"),
    "dies of updates while idle": ("updates-idle", "agent-idle", "stderr: the session is idle"),
    "dies of turns unasked": ("unprompted", "agent-unprompted", "stderr: there is no prompt"),
    "dies of unknown updates": ("update-unknown", "agent-update-unknown", "stderr: what is acp_gateway_check?"),
    "dies of unknown values": ("unknown-values", "agent-unknown", "stderr: what is this state?"),
    "dies of a stop reason": ("stop-reasons", "agent-stop-reasons", "stderr: why did it stop?"),
    "makes options up": ("permission", "agent-options", "'yes' was not offered"),
    "never allows": ("permission-allow", "permission", "the user said allow"),
    "always allows": ("permission-reject", "permission-reject", "an option of the kind allow_once"),
    "cancels by a request": ("cancel", "cancellation", "sent as a request"),
    "approves what is cancelled": ("cancel-permission", "permission-cancelled", "not answered with cancelled"),
    "relative directory": ("paths", "agent-text", "'.' is not absolute"),
    "fails at unknown methods": ("unknown-method", "agent-requests", "the error -32603"),
    "fails at extensions": ("unknown-extension", "agent-requests", "the error -32603"),
}
"""The check that names each fault of `faulty_client.py`, the scenario that shows it, and a part of the reason."""


async def verdicts(fault: str, cwd: Path, scenario: str = "") -> dict[str, Verdict]:
    chosen = [each for each in NEW_CLIENT_SCENARIOS if scenario in ("", each.name)]
    command = [sys.executable, "-I", "-S", str(CLIENT), "{agent}", fault, "2"]
    limits = RunLimits(timeout=60.0, exit_timeout=60.0, reaction=0.0)
    user = User(allow="y", reject="n", cancel="c")
    dialogues = await run_client_scenarios(command, chosen, cwd=str(cwd), user=user, limits=limits)
    return {check.name: verdict for check, verdict in judge(CHECKS, dialogues)}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_check_fails_for_the_one_fault_of_a_client_and_names_it(fault: str, tmp_path: Path) -> None:
    name, scenario, reason = FAULTS[fault]
    found = await verdicts(fault, tmp_path, scenario)
    assert (found[name].outcome, found[name].scenario) == ("failed", scenario)
    assert reason in found[name].reason


async def test_a_client_without_a_fault_passes_every_check(tmp_path: Path) -> None:
    found = await verdicts("", tmp_path)
    assert {name: each for name, each in found.items() if each.outcome != "passed"} == {}


async def test_a_client_that_ends_with_its_turn_fails_no_check_of_what_comes_after_it(tmp_path: Path) -> None:
    found = await verdicts("takes the response for the end", tmp_path, "agent-idle")
    assert found["updates-idle"].outcome == "not shown"
