"""The scripted agent of a fixture: what it answers, and what the user of the client has to do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_conformance.agent_script import AgentScript
from acp_conformance.client_script import CLIENT_SCENARIOS, NEW_CLIENT_SCENARIOS, Scenario, load_fixture
from acp_conformance.dialogue import Line
from tests.conformance.dialogues import with_faults
from tests.fuzz.effort import effort


def opened(fixture: str, chunk: str | None = None, cwd: str = "/w") -> AgentScript:
    script = AgentScript(load_fixture(fixture), chunk)
    say(script, id="i", method="initialize", params={})
    say(script, id="n", method="session/new", params={"cwd": cwd})
    return script


def say(script: AgentScript, **members: Any) -> list[dict[str, Any]]:
    texts = script.receive(json.dumps({"jsonrpc": "2.0", **members}).encode())
    return [json.loads(text) for text in texts]


def prompt(script: AgentScript, number: object = "p") -> list[dict[str, Any]]:
    return say(script, id=number, method="session/prompt", params={"sessionId": "session-1", "prompt": []})


def decide(script: AgentScript, number: object = 0) -> list[dict[str, Any]]:
    return say(script, id=number, result={"outcome": {"outcome": "selected", "optionId": "allow"}})


def test_requests_are_answered_under_their_own_ids_in_any_order() -> None:
    script = AgentScript(load_fixture("agent-text"))
    (session,) = say(script, id="1", method="session/new", params={"cwd": "/w"})
    (initialized,) = say(script, id=None, method="initialize", params={})
    assert (session["id"], session["result"]["sessionId"]) == ("1", "session-1")
    assert (initialized["id"], initialized["result"]["protocolVersion"]) == (None, 1)


def test_the_user_prompts_when_a_session_is_open_decides_and_ends() -> None:
    script = opened("agent-text")
    assert script.take_actions() == ["prompt"]
    assert script.waiting_for == "session/prompt"
    *_, asked = prompt(script)
    assert asked["method"] == "session/request_permission"
    assert (script.take_actions(), script.waiting_for, script.done) == (["allow"], "a response", False)
    (end,) = decide(script)
    assert (end["id"], end["result"]) == ("p", {"stopReason": "end_turn"})
    assert (script.take_actions(), script.take_actions(), script.done) == (["end"], [], True)


def test_a_turn_waits_for_the_cancellation_and_for_the_permission() -> None:
    script = opened("permission-cancelled")
    script.take_actions()
    prompt(script)
    assert script.take_actions() == ["cancel"]
    assert decide(script) == []
    update, end = say(script, method="session/cancel", params={})
    assert (update["method"], end["result"]) == ("session/update", {"stopReason": "cancelled"})


def test_a_cancellation_that_the_fixture_does_not_have_ends_the_turn() -> None:
    script = opened("permission")
    prompt(script)
    (end,) = say(script, method="session/cancel", params={})
    assert end["result"] == {"stopReason": "cancelled"}
    assert script.done


def test_a_response_with_a_wrong_id_ends_a_wait() -> None:
    script = opened("agent-ids")
    assert len(prompt(script)) == 6
    assert [say(script, id=str(number), result=None) for number in range(5)] == [[]] * 5
    assert say(script, id=1.5, result=None)[0]["id"] == "p"


def test_prompts_beyond_the_fixture_end_at_once_and_wait_for_the_running_one() -> None:
    script = opened("agent-text")
    prompt(script, 1)
    assert prompt(script, 2) == []
    assert [each["id"] for each in decide(script)] == [1, 2]
    assert prompt(script, 3)[0]["result"] == {"stopReason": "end_turn"}


def test_the_directory_and_the_terminal_of_the_client_replace_those_of_the_fixture() -> None:
    script = opened("terminal", cwd='/x"y')
    (create,) = prompt(script)
    assert create["params"]["cwd"] == '/x"y'
    _, wait = say(script, id=0, result={"terminalId": "mine"})
    assert wait["params"]["terminalId"] == "mine"


def test_the_text_of_chunks_can_be_replaced() -> None:
    chunk, _ = prompt(opened("agent-text", chunk="big"))
    assert chunk["params"]["update"]["content"]["text"] == "big"


def test_unknown_requests_are_refused_and_all_else_is_ignored() -> None:
    script = opened("agent-text")
    assert say(script, id=5, method="session/load", params={})[0]["error"]["code"] == -32601
    assert say(script, method="what", params={}) == []
    assert script.receive(b"no JSON") == script.receive(b"[]") == script.receive(b'{"method":1}') == []


def test_a_session_is_refused_until_the_client_has_authenticated() -> None:
    script = opened("agent-authentication")
    assert script.take_actions() == []
    say(script, id=2, method="authenticate", params={"methodId": "check"})
    assert say(script, id=3, method="session/new", params={"cwd": "/"})[0]["result"]["sessionId"] == "session-1"
    assert script.take_actions() == ["prompt"]


def test_a_fixture_without_a_turn_is_over_with_the_next_request() -> None:
    script = AgentScript(load_fixture("agent-version"))
    say(script, id=0, method="initialize", params={})
    assert (script.done, script.waiting_for) == (False, "initialize or session/new")
    say(script, id=1, method="session/new", params={})
    assert script.take_actions() == ["end"]


@pytest.mark.parametrize("fixture", ["agent-lost", "agent-stop-reasons", "cancellation"])
def test_a_script_is_done_after_its_last_turn(fixture: str) -> None:
    script = opened(fixture)
    for number in range(sum(line.method == "session/prompt" for line in load_fixture(fixture))):
        assert not script.done
        prompt(script, number)
        say(script, method="session/cancel", params={})
    assert script.done


def test_no_turn_ends_without_a_line_of_the_client() -> None:
    assert AgentScript([Line(True, b'{"id":1,"method":"session/prompt"}')]).done is False


@given(st.sampled_from((*CLIENT_SCENARIOS, *NEW_CLIENT_SCENARIOS)), st.integers(0, 2**32))
@effort(100)
def test_a_client_with_random_faults_never_ends_the_script_by_an_error(scenario: Scenario, seed: int) -> None:
    lines = load_fixture(scenario.fixture)
    script = AgentScript(lines)
    for line in with_faults(lines, seed, outgoing=True):
        if line.outgoing:
            script.receive(line.text)
