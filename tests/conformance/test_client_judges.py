"""Judges of clients, where a client rarely shows it."""

from typing import Any

import pytest

from acp_conformance.client_judges import (
    judge_mcp_offered,
    judge_methods_offered,
    judge_stderr,
    judge_stop_reasons,
    judge_survived,
    judge_turn,
    judge_unique_ids,
)
from acp_conformance.dialogue import FOR_STDERR, Dialogue, Fault, Line, Verdict
from tests.conformance.dialogues import dialogue, into, out


def outcome(verdict: Verdict | None) -> str:
    return verdict.outcome if verdict is not None else "passed"


def offering(capabilities: dict[str, Any], *lines: Line, session: dict[str, Any] | None = None) -> dict[str, Dialogue]:
    opened = (
        out(id=0, method="initialize", params={}),
        into(id=0, result={"agentCapabilities": capabilities, "authMethods": [{"id": "a", "name": "A"}]}),
        out(id=1, method="session/new", params={}),
        into(id=1, result={"sessionId": "s", **(session or {})}),
    )
    return {"s": dialogue(*opened, *lines)}


@pytest.mark.parametrize(
    ("capabilities", "session", "method", "params"),
    [
        ({"loadSession": True}, {}, "session/load", {}),
        ({"sessionCapabilities": {"list": {}}}, {}, "session/list", {}),
        ({"sessionCapabilities": {"close": {}}}, {}, "session/close", {}),
        ({}, {"modes": {"currentModeId": "a", "availableModes": []}}, "session/set_mode", {}),
        ({}, {"configOptions": []}, "session/set_config_option", {}),
        ({}, {}, "authenticate", {"methodId": "a"}),
        ({}, {}, "_extension", {}),
    ],
)
def test_methods_may_be_called_where_they_are_offered(
    capabilities: dict[str, Any], session: dict[str, Any], method: str, params: dict[str, Any]
) -> None:
    call = out(id=2, method=method, params=params)
    assert judge_methods_offered(offering(capabilities, call, session=session)) is None
    if method[0] != "_":
        nothing = offering({}, out(id=2, method=method, params={}))
        with pytest.raises(Fault, match=f"does not offer {method}"):
            judge_methods_offered(nothing)


def test_mcp_servers_may_be_reached_over_http_where_that_is_offered() -> None:
    new = out(id=2, method="session/new", params={"mcpServers": [{"type": "http", "name": "n", "url": "u"}]})
    assert judge_mcp_offered(offering({"mcpCapabilities": {"http": True}}, new)) is None
    with pytest.raises(Fault, match="'http'"):
        judge_mcp_offered(offering({}, new))


def test_an_id_may_be_used_again_after_its_response() -> None:
    again = out(id=1, method="b")
    assert judge_unique_ids({"s": dialogue(out(id=1, method="a"), into(id=1, result=1), again)}) is None
    with pytest.raises(Fault, match="the id 1 is that"):
        judge_unique_ids({"s": dialogue(out(id=1, method="a"), again)})


def test_a_client_that_waits_for_its_user_shows_no_turn() -> None:
    waiting = dialogue(into(id=0, method="session/request_permission"), ending="timeout", waiting_for="a response")
    assert outcome(judge_turn({"agent-text": waiting})) == "not shown"


def test_a_client_that_hangs_elsewhere_or_after_the_users_decision_fails_the_turn() -> None:
    before = dialogue(out(id=0, method="initialize"), ending="timeout", waiting_for="session/prompt")
    decided = dialogue(ending="timeout", waiting_for="a response", actions=frozenset({"allow"}))
    for found in (before, decided):
        with pytest.raises(Fault, match="the time was over, before"):
            judge_turn({"agent-text": found})


def test_an_agent_that_cannot_write_to_stderr_is_a_fault_of_the_client() -> None:
    with pytest.raises(Fault, match="does not read its stderr"):
        judge_stderr({"agent-stderr": dialogue(ending="timeout", waiting_for=FOR_STDERR)})
    assert outcome(judge_stderr({})) == "not shown"


def test_a_client_of_one_prompt_shows_no_stop_reasons() -> None:
    one = dialogue(out(id=1, method="session/prompt"), into(id=1, result={}), ending="ended")
    assert outcome(judge_stop_reasons({"agent-stop-reasons": one})) == "not shown"


def test_a_client_that_ends_before_the_messages_of_a_check_has_died_of_an_earlier_one() -> None:
    early = dialogue(out(id=0, method="initialize"), into(id=0, result={"_meta": {}}), ending="ended", exit_code=1)
    with pytest.raises(Fault, match="after this the program ended with exit code 1"):
        judge_survived({"m": early}, scenario="m", probe=lambda line: bool(line.update))
    # It does so in the plain dialogue as well.
    verdict = judge_survived({"m": early, "agent-text": early}, scenario="m", probe=lambda line: bool(line.update))
    assert outcome(verdict) == "not shown"
