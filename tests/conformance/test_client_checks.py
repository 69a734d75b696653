"""The checks of clients, on real programs: one that keeps the protocol, and others with one fault each."""

import os
import sys
from pathlib import Path

import pytest

from acp_conformance import agent_checks
from acp_conformance.client_checks import CHECKS
from acp_conformance.client_runner import User, run_client_scenarios
from acp_conformance.client_script import CLIENT_SCENARIOS
from acp_conformance.dialogue import Check, Verdict
from acp_conformance.processes import RunLimits
from acp_conformance.report import judge

CLIENT = Path(__file__).parent / "faulty_client.py"

USER = User(allow="y", reject="n", cancel="c")

FAULTS = {
    "ends early": ("turn", "agent-text", "stderr: not today, before session/prompt"),
    "greets the agent": ("stdin", "agent-text", "not a JSON object"),
    "no jsonrpc member": ("messages", "agent-text", 'lacks "jsonrpc": "2.0"'),
    "answers twice": ("responses", "permission", "its second one"),
    "same id twice": ("ids-unique", "agent-text", "that of a request without a response"),
    "ids become strings": ("ids", "agent-ids", "with another id"),
    "large ids are rounded": ("ids-unusual", "agent-ids-unusual", "with another id"),
    "opens the session first": ("initialize", "agent-text", "the first message is another"),
    "version as text": ("version", "agent-text", "not an integer from 0 to 65535"),
    "works with any version": ("version-unsupported", "agent-version", "65535, which no client has"),
    "forgets the session": ("authenticate", "agent-authentication", "no session was asked for"),
    "loads unasked": ("methods-offered", "agent-text", "does not offer session/load"),
    "no list of servers": ("session-new", "agent-text", "no mcpServers"),
    "unknown session": ("session-known", "agent-text", "'other' was never opened"),
    "event streams unasked": ("mcp-offered", "agent-text", "of type 'sse'"),
    "prompt as text": ("prompt", "agent-text", "has no prompt that is an array"),
    "images unasked": ("blocks-offered", "agent-text", "of type 'image'"),
    "dies of plans": ("updates", "agent-updates", "stderr: what is plan?"),
    "dies of unknown updates": ("update-unknown", "agent-update-unknown", "stderr: what is acp_gateway_check?"),
    "dies of unknown members": ("unknown-members", "agent-members", "stderr: what is this member?"),
    "dies of a stop reason": ("stop-reasons", "agent-stop-reasons", "stderr: too many tokens"),
    "knows no permissions": ("permission", "permission", "with an error instead of an outcome"),
    "makes options up": ("permission", "agent-options", "'yes' was not offered"),
    "never allows": ("permission-allow", "permission", "the user said allow"),
    "always allows": ("permission-reject", "permission-reject", "an option of the kind allow_once"),
    "cancels by a request": ("cancel", "cancellation", "sent as a request"),
    "forgets permissions": ("cancel-permission", "permission-cancelled", "no response to session/request_permission"),
    "approves what is cancelled": ("cancel-permission", "permission-cancelled", "not answered with cancelled"),
    "serves files unasked": ("fs-refused", "file-system", "not refused with -32601"),
    "refuses with other codes": ("terminal-refused", "terminal", "not refused with -32601"),
    "reads whole files": ("fs", "file-system", "the content is not 'two\\n'"),
    "runs commands unasked": ("terminal-refused", "terminal", "not refused with -32601"),
    "does not say truncated": ("terminal", "terminal", "whether the output is truncated"),
    "relative directory": ("paths", "agent-text", "'.' is not absolute"),
    "fails at unknown methods": ("unknown-method", "agent-requests", "the error -32603"),
    "fails at extensions": ("unknown-extension", "agent-requests", "the error -32603"),
    "answers notifications": ("unknown-notification", "agent-notifications", "a notification was answered"),
    "dies of notifications": ("unknown-notification", "agent-notifications", "exit code 1; stderr: what?"),
    "dies of _meta": ("meta", "agent-meta", "stderr: what is _meta?"),
    "dies of big messages": ("big-message", "agent-big", "stderr: this is too big"),
    "takes pieces for messages": ("split-message", "agent-split", "stderr: this is a piece"),
    "dies of bad lines": ("bad-line", "agent-garbage", "stderr: what is this?"),
    "waits for the end of turns": ("agent-lost", "agent-lost", "hangs after its agent has ended"),
    "does not end": ("exit", "agent-text", "went on after its stdin"),
}
"""The check that names each fault of `faulty_client.py`, the scenario that shows it, and a part of the reason."""

SLOW = {
    "does not read stderr": ("stderr", "agent-stderr", "the client does not read its stderr"),
    "keeps the agent": ("agent-released", "agent-text", "open after the client has ended"),
}
"""The same for faults that only a time limit shows."""


async def verdicts(fault: str, cwd: Path, scenario: str = "", limits: RunLimits | None = None) -> dict[str, Verdict]:
    chosen = [each for each in CLIENT_SCENARIOS if scenario in ("", each.name)]
    command = [sys.executable, "-I", "-S", str(CLIENT), "{agent}", fault]
    limits = limits or RunLimits(timeout=20.0, exit_timeout=20.0, reaction=0.0)
    dialogues = await run_client_scenarios(command, chosen, cwd=str(cwd), user=USER, limits=limits)
    return {check.name: verdict for check, verdict in judge(CHECKS, dialogues)}


def failed(found: dict[str, Verdict]) -> dict[str, tuple[str, str]]:
    return {name: (each.scenario, each.reason) for name, each in found.items() if each.outcome == "failed"}


@pytest.mark.parametrize("fault", FAULTS)
async def test_one_check_fails_for_the_one_fault_of_a_client_and_names_it(fault: str, tmp_path: Path) -> None:
    name, scenario, reason = FAULTS[fault]
    # Nothing makes these clients end by themselves, so the time does not matter.
    hangs = fault in ("waits for the end of turns", "does not end")
    limits = RunLimits(timeout=20.0, exit_timeout=0.25 if hangs else 20.0, reaction=0.0)
    found = failed(await verdicts(fault, tmp_path, scenario, limits))
    assert found.keys() == {name}
    assert found[name][0] == scenario
    assert reason in found[name][1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", SLOW)
async def test_one_check_fails_for_a_fault_that_takes_time(fault: str, tmp_path: Path) -> None:
    name, scenario, reason = SLOW[fault]
    found = failed(await verdicts(fault, tmp_path, scenario, RunLimits(timeout=3.0, exit_timeout=2.0)))
    assert found.keys() == {name}
    assert reason in found[name][1]


async def test_a_client_without_a_fault_passes_every_check_that_it_gives_occasion_for(tmp_path: Path) -> None:
    found = await verdicts("", tmp_path)
    assert failed(found) == {}
    not_shown = {name for name, verdict in found.items() if verdict.outcome == "not shown"}
    assert not_shown == {"mcp-offered", "fs-refused", "terminal-refused"}
    assert os.listdir(tmp_path) == []


async def test_a_client_that_offers_nothing_passes_by_refusing(tmp_path: Path) -> None:
    for scenario, name in (("file-system", "fs-refused"), ("terminal", "terminal-refused")):
        found = await verdicts("offers nothing", tmp_path, scenario)
        assert failed(found) == {}
        assert found[name].outcome == "passed"


def test_every_check_has_a_client_that_fails_it() -> None:
    assert {name for name, _, _ in (FAULTS | SLOW).values()} == {check.name for check in CHECKS}


def test_the_checks_have_names_of_their_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(
    ("heading", "checks"), [("The checks of agents", agent_checks.CHECKS), ("The checks of clients", CHECKS)]
)
def test_the_document_lists_the_checks_with_their_levels(heading: str, checks: tuple[Check, ...]) -> None:
    text = (CLIENT.parents[2] / "docs" / "conformance-checks.md").read_text().replace("`", "")
    section = text.partition(f"\n## {heading}\n\n")[2].partition("\n\n")[0]
    assert section.splitlines() == [
        f"- {check.name}{' (SHOULD)' if check.level == 'SHOULD' else ''}: {check.title}" for check in checks
    ]
