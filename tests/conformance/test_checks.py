"""The checks on real programs: some that keep the protocol, and others with one fault each."""

import os
import sys
from pathlib import Path

import pytest

from acp_conformance import agent_checks, client_checks
from acp_conformance.client_runner import User, run_client_scenarios
from acp_conformance.client_script import CLIENT_SCENARIOS, SCENARIOS
from acp_conformance.dialogue import Verdict
from acp_conformance.report import judge
from acp_conformance.runner import RunLimits, run_scenarios

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

AGENT_FAULTS = {
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
    "one session at work": ("sessions-at-once", "sessions-at-once", "cancelled by the session that was opened"),
    "refuses session/load": ("session-load", "load", "session/load was answered with an error"),
    "replays no tools": ("session-replay", "load", "lacks a part of what was said: tool_call"),
    "replays after the response": ("session-replay", "load", "the replay has no prompt"),
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

CLIENT_FAULTS = {
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

SLOW_CLIENT_FAULTS = {
    "does not read stderr": ("stderr", "agent-stderr", "the client does not read its stderr"),
    "keeps the agent": ("agent-released", "agent-text", "open after the client has ended"),
}
"""The same for faults that only a time limit shows."""


async def of_agent(*command: str, cwd: Path, scenario: str = "", exit_timeout: float = 60.0) -> dict[str, Verdict]:
    chosen = [each for each in SCENARIOS if scenario in ("", each.name)]
    limits = RunLimits(timeout=60.0, exit_timeout=exit_timeout)
    dialogues = await run_scenarios([sys.executable, "-I", "-S", *command], chosen, str(cwd), limits=limits)
    return {check.name: verdict for check, verdict in judge(agent_checks.CHECKS, dialogues)}


async def of_client(fault: str, cwd: Path, scenario: str = "", limits: RunLimits | None = None) -> dict[str, Verdict]:
    chosen = [each for each in CLIENT_SCENARIOS if scenario in ("", each.name)]
    command = [sys.executable, "-I", "-S", str(HERE / "faulty_client.py"), "{agent}", fault]
    limits = limits or RunLimits(timeout=60.0, exit_timeout=60.0, reaction=0.0)
    user = User(allow="y", reject="n", cancel="c")
    dialogues = await run_client_scenarios(command, chosen, cwd=str(cwd), user=user, limits=limits)
    return {check.name: verdict for check, verdict in judge(client_checks.CHECKS, dialogues)}


def failed(found: dict[str, Verdict]) -> dict[str, tuple[str, str]]:
    return {name: (each.scenario, each.reason) for name, each in found.items() if each.outcome == "failed"}


def not_shown(found: dict[str, Verdict]) -> set[str]:
    return {name for name, verdict in found.items() if verdict.outcome == "not shown"}


@pytest.mark.parametrize("fault", AGENT_FAULTS)
async def test_a_check_fails_for_the_one_fault_of_an_agent_and_names_it(fault: str, tmp_path: Path) -> None:
    name, scenario, reason = AGENT_FAULTS[fault]
    # Nothing makes that agent end, so the time does not matter.
    exit_timeout = 0.01 if fault == "does not end" else 60.0
    agent = str(HERE / "faulty_agent.py")
    found = failed(await of_agent(agent, fault, cwd=tmp_path, scenario=scenario, exit_timeout=exit_timeout))
    assert found[name][0] == scenario
    assert reason in found[name][1]


async def test_an_agent_without_a_fault_passes_every_check_that_it_gives_occasion_for(tmp_path: Path) -> None:
    found = await of_agent(str(HERE / "faulty_agent.py"), cwd=tmp_path)
    assert failed(found) == {}
    assert not_shown(found) == {"fs", "terminal-released"}


async def test_an_agent_whose_next_process_gives_the_same_ids_is_told_so(tmp_path: Path) -> None:
    found = failed(await of_agent(str(HERE / "faulty_agent.py"), "counts sessions", cwd=tmp_path))
    assert found.keys() == {"session-lasting"}
    assert "two processes gave the id 's0'" in found["session-lasting"][1]


async def test_the_demo_agent_passes_every_must(tmp_path: Path) -> None:
    found = await of_agent(str(ROOT / "examples/demo_agent.py"), "--delay", "0", cwd=tmp_path)
    assert failed(found).keys() <= {check.name for check in agent_checks.CHECKS if check.level == "SHOULD"}
    assert found["cancel-permission"].outcome == "passed"


@pytest.mark.parametrize(
    "fault", [*CLIENT_FAULTS, *(pytest.param(fault, marks=pytest.mark.slow) for fault in SLOW_CLIENT_FAULTS)]
)
async def test_one_check_fails_for_the_one_fault_of_a_client_and_names_it(fault: str, tmp_path: Path) -> None:
    name, scenario, reason = (CLIENT_FAULTS | SLOW_CLIENT_FAULTS)[fault]
    # Nothing makes these clients end by themselves; once they are told to, the agent has as much time to be released.
    hangs = fault in ("waits for the end of turns", "does not end")
    for seconds in (2.0, 15.0, 60.0) if hangs else (10.0, 30.0) if fault in SLOW_CLIENT_FAULTS else (60.0,):
        limits = RunLimits(timeout=60.0, exit_timeout=seconds, reaction=0.0)
        if fault in SLOW_CLIENT_FAULTS:
            limits = RunLimits(timeout=seconds, exit_timeout=seconds)
        found = failed(await of_client(fault, tmp_path, scenario, limits))
        # On a busy machine, too little time shows as another fault.
        if found.keys() == {name}:
            break
    assert found.keys() == {name}
    assert found[name][0] == scenario
    assert reason in found[name][1]


async def test_a_client_without_a_fault_passes_every_check_that_it_gives_occasion_for(tmp_path: Path) -> None:
    found = await of_client("", tmp_path)
    assert failed(found) == {}
    assert not_shown(found) == {"mcp-offered", "fs-refused", "terminal-refused"}
    assert os.listdir(tmp_path) == []


async def test_a_client_that_offers_nothing_passes_by_refusing(tmp_path: Path) -> None:
    for scenario, name in (("file-system", "fs-refused"), ("terminal", "terminal-refused")):
        found = await of_client("offers nothing", tmp_path, scenario)
        assert failed(found) == {}
        assert found[name].outcome == "passed"


def test_every_check_has_a_client_that_fails_it() -> None:
    faults = CLIENT_FAULTS | SLOW_CLIENT_FAULTS
    assert {name for name, _, _ in faults.values()} == {check.name for check in client_checks.CHECKS}
