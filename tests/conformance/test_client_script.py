"""The client of a fixture: it waits, and replaces ids, directories and options by the present ones."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acp_conformance.client_script import NEW_SCENARIOS, SCENARIOS, ClientScript, Scenario, load_fixture
from tests.conformance.dialogues import with_faults
from tests.fuzz.effort import effort


def started(fixture: str, prompt: str | None = None, **capabilities: Any) -> tuple[ClientScript, list[dict[str, Any]]]:
    """Return a script whose session is open, and the messages that it has sent then."""
    script = ClientScript(load_fixture(fixture), "/work", prompt)
    assert [json.loads(text)["method"] for text in script.begin()] == ["initialize"]
    (new,) = said(script, id=0, result={"protocolVersion": 1, "agentCapabilities": capabilities})
    assert (new["method"], new["params"]["cwd"]) == ("session/new", "/work")
    return script, said(script, id=1, result={"sessionId": "present"})


def said(script: ClientScript, **members: Any) -> list[dict[str, Any]]:
    return [json.loads(text) for text in script.receive(json.dumps({"jsonrpc": "2.0", **members}).encode())]


def permission(script: ClientScript, options: object) -> Any:
    params = {"sessionId": "present", "toolCall": {"toolCallId": "c"}, "options": options}
    (answer,) = said(script, id="q", method="session/request_permission", params=params)
    return answer


def test_a_prompt_is_for_the_present_session_and_has_the_given_text() -> None:
    _, (prompt,) = started("permission", "Go on")
    assert prompt["params"]["sessionId"] == "present"
    assert prompt["params"]["prompt"] == [{"type": "text", "text": "Go on"}]


def test_a_permission_is_decided_by_the_kind_of_its_options() -> None:
    script, _ = started("permission-reject")
    answer = permission(script, [{"optionId": "1", "kind": "allow_once"}, {"optionId": "2", "kind": "reject_always"}])
    assert (answer["id"], answer["result"]) == ("q", {"outcome": {"outcome": "selected", "optionId": "2"}})


def test_a_permission_without_a_matching_option_is_cancelled() -> None:
    script, _ = started("permission")
    assert permission(script, [])["result"] == {"outcome": {"outcome": "cancelled"}}


def test_a_cancellation_is_sent_during_a_permission_and_before_its_response() -> None:
    script, _ = started("permission-cancelled")
    params = {"sessionId": "present", "toolCall": {}, "options": []}
    assert said(script, method="session/update", params={"sessionId": "present", "update": {}}) == []
    cancel, answer = said(script, id=9, method="session/request_permission", params=params)
    assert (cancel["method"], cancel["params"]) == ("session/cancel", {"sessionId": "present"})
    assert (answer["id"], answer["result"]) == (9, {"outcome": {"outcome": "cancelled"}})


def test_a_permission_after_a_cancellation_is_not_granted() -> None:
    script, _ = started("cancellation")
    (cancel,) = said(script, method="session/update", params={"sessionId": "present", "update": {}})
    assert cancel["method"] == "session/cancel"
    assert permission(script, [{"optionId": "1", "kind": "allow_once"}])["result"]["outcome"] == {
        "outcome": "cancelled"
    }


def test_requests_that_the_client_does_not_offer_are_refused() -> None:
    script, _ = started("permission")
    (answer,) = said(script, id=5, method="fs/read_text_file", params={})
    assert answer["error"]["code"] == -32601


def test_what_an_agent_does_not_offer_is_left_out() -> None:
    script, (first,) = started("blocks", promptCapabilities={"image": True})
    kinds: list[list[str]] = [[block["type"] for block in first["params"]["prompt"]]]
    while prompts := said(script, id=first["id"], result={"stopReason": "end_turn"}):
        (first,) = prompts
        kinds.append([block["type"] for block in first["params"]["prompt"]])
    assert script.done
    assert kinds == [["text"], ["resource_link", "text"], ["text", "image"]]
    script, _ = started("load")
    said(script, id=2, result={"stopReason": "end_turn"})
    assert script.done


def test_a_script_ends_with_a_session_that_is_refused() -> None:
    script = ClientScript(load_fixture("permission"), "/work")
    script.begin()
    said(script, id=0, result={"protocolVersion": 1})
    assert script.waiting_for == "the response to session/new"
    assert said(script, id=1, error={"code": -32000, "message": "log in"}) == []
    assert script.done


def test_hostile_lines_never_raise() -> None:
    script, _ = started("permission")
    for text in (b"", b"\xff", b"[]", b'{"id":2}', b'{"id":[],"method":"session/request_permission","params":[]}'):
        script.receive(text)
    assert permission(script, "no list")["result"] == {"outcome": {"outcome": "cancelled"}}


def test_a_notification_is_not_taken_for_the_request_of_that_method() -> None:
    script, _ = started("permission-cancelled")
    said(script, method="session/update", params={"sessionId": "present", "update": {}})
    assert said(script, method="session/request_permission", params={"sessionId": "present"}) == []
    assert script.waiting_for == "session/request_permission"


@given(st.sampled_from((*SCENARIOS, *NEW_SCENARIOS)), st.integers(0, 2**32))
@effort(100)
def test_an_agent_with_random_faults_never_ends_the_script_by_an_error(scenario: Scenario, seed: int) -> None:
    lines = load_fixture(scenario.fixture)
    script = ClientScript(lines, "/work")
    script.begin()
    for line in with_faults(lines, seed, outgoing=False):
        if not line.outgoing:
            script.receive(line.text)
