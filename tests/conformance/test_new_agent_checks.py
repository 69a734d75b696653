"""The checks of agents of version 2 on real programs: some keep the protocol, others have one fault each."""

import sys
from pathlib import Path

import pytest

from acp_conformance.client_script import NEW_SCENARIOS
from acp_conformance.dialogue import Verdict
from acp_conformance.new_agent_checks import CHECKS
from acp_conformance.report import judge
from acp_conformance.runner import RunLimits, run_scenarios

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

FAULTS = {
    "banner": ("stdout", "initialize", "not a JSON object"),
    "no jsonrpc member": ("messages", "initialize", 'lacks "jsonrpc": "2.0"'),
    "answers twice": ("responses", "initialize", "its second one"),
    "ids become strings": ("ids", "ids", "with another id"),
    "speaks version 1": ("version", "initialize", "answered with 1"),
    "agrees to any version": ("version-unsupported", "version-unsupported", "was agreed to"),
    "no info": ("initialize", "initialize", "initialize has no info"),
    "markers are booleans": ("initialize", "initialize", "the support marker session is not an object"),
    "same session id": ("session-new", "session", "two sessions have the same id"),
    "unknown session in updates": ("session-known", "permission", "'other' was never opened"),
    "refuses to resume": ("resume-replay", "turn", "session/resume was answered with an error"),
    "does not replay": ("resume-replay", "turn", "the replay lacks the message 'u0'"),
    "answers as in version 1": ("prompt-accepted", "turn", "the stop reason is in the response"),
    "accepts at the end": ("prompt-accepted", "turn", "after its turn was over"),
    "does not tell of prompts": ("user-message", "turn", "no user_message"),
    "one id for all prompts": ("user-message", "turn", "is that of an earlier prompt"),
    "does not say running": ("states", "turn", "does not begin with the state running"),
    "does not say idle": ("states", "turn", "the turn has no end"),
    "no stop reason": ("states", "turn", "no stopReason"),
    "no message ids in chunks": ("updates", "permission", "agent_message_chunk has no messageId"),
    "tool calls of version 1": ("updates", "permission", "tool_call is an update of version 1"),
    "permission without title": ("permission-request", "permission", "the request has no title"),
    "stops after a decision": ("permission-decided", "permission", "no idle came after this decision"),
    "cancel ends the turn as usual": ("cancel-permission", "permission-cancelled", "stop reason 'end_turn'"),
    "relative path": ("paths", "permission", "'a.txt' is not absolute"),
    "fails at unknown methods": ("unknown-method", "extensions", "the error -32603"),
    "fails at extensions": ("unknown-extension", "extensions", "the error -32603"),
    "dies of notifications": ("unknown-notification", "extensions", "stderr: what?"),
    "refuses unknown members": ("unknown-members", "extensions", "session/prompt was answered with an error"),
    "ends early": ("stays", "session", "stderr: not today"),
    "does not end": ("exit", "initialize", "went on after its stdin"),
}
"""The check that names each fault of `faulty_new_agent.py`, the scenario that shows it, and a part of the reason."""

HANGS = ("ids become strings", "does not say idle", "stops after a decision", "refuses unknown members")
"""Faults that only the time limit of a turn shows. It is also that for the start of the agent, for which it may be too
short on a busy machine."""


async def verdicts(
    *command: str,
    cwd: Path,
    scenario: str = "",
    prompt: str | None = None,
    timeout: float = 60.0,
    exit_timeout: float = 60.0,
) -> dict[str, Verdict]:
    chosen = [each for each in NEW_SCENARIOS if scenario in ("", each.name)]
    limits = RunLimits(timeout=timeout, exit_timeout=exit_timeout)
    dialogues = await run_scenarios([sys.executable, *command], chosen, str(cwd), prompt=prompt, limits=limits)
    return {check.name: verdict for check, verdict in judge(CHECKS, dialogues)}


def outcomes(found: dict[str, Verdict], outcome: str) -> set[str]:
    return {name for name, verdict in found.items() if verdict.outcome == outcome}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_check_fails_for_the_one_fault_of_an_agent_and_names_it(fault: str, tmp_path: Path) -> None:
    name, scenario, reason = FAULTS[fault]
    exit_timeout = 0.01 if fault == "does not end" else 60.0
    command = ["-I", "-S", str(HERE / "faulty_new_agent.py"), fault]
    for timeout in (5.0, 30.0, 60.0) if fault in HANGS else (60.0,):
        found = await verdicts(*command, cwd=tmp_path, scenario=scenario, timeout=timeout, exit_timeout=exit_timeout)
        if found[name].outcome == "failed":
            break
    assert (found[name].outcome, found[name].scenario) == ("failed", scenario)
    assert reason in found[name].reason


def test_every_check_but_cancel_has_an_agent_that_fails_it() -> None:
    # `cancel` is `cancel-permission` for a turn that has no permission open.
    assert {name for name, _, _ in FAULTS.values()} == {check.name for check in CHECKS} - {"cancel"}


async def test_an_agent_without_a_fault_passes_every_check(tmp_path: Path) -> None:
    found = await verdicts(str(HERE / "faulty_new_agent.py"), cwd=tmp_path)
    assert outcomes(found, "failed") == set()
    assert outcomes(found, "not shown") == set()


@pytest.mark.parametrize(("prompt", "hidden"), [("ask", {"paths"}), ("edit", {"permission-request"})])
async def test_another_agent_of_version_2_passes(prompt: str, hidden: set[str], tmp_path: Path) -> None:
    found = await verdicts(str(ROOT / "tests/agents/new_agent.py"), str(tmp_path), cwd=tmp_path, prompt=prompt)
    assert outcomes(found, "failed") == set()
    assert hidden <= outcomes(found, "not shown")


async def test_the_demo_agent_passes_in_version_2(tmp_path: Path) -> None:
    found = await verdicts(str(ROOT / "examples/demo_agent.py"), "--protocol", "2", "--delay", "0", cwd=tmp_path)
    assert outcomes(found, "failed") == set()
    assert found["cancel-permission"].outcome == "passed"
