"""Requests of an agent to its clients: recipients, valid responses, and cancellation at the other recipients."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from acp_gateway.core.agent_requests import JUST_LOST, LONG, AgentRequest, Reply
from acp_gateway.core.output import AuditEvent
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import MAX_DECISIONS, Decision, Role, Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.methods import Audience
from acp_gateway.protocol.text import spans
from tests.kit.scene import Peer, Scene, make_policy, news_params, opened_scene

CANCELLED = {"outcome": {"outcome": "cancelled"}}
LATE = 10 * 365 * 24 * 3600.0


def selected(option: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option}}


def withdrawn(agent_request: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": agent_request["id"]}}


def answered(raw_id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": raw_id, "result": result}


def together(scene: Scene | None = None, **params: Any) -> tuple[Scene, Peer, Peer]:
    """Two controllers of the session `s`; the first one's ids are ahead of the second one's."""
    scene = scene or Scene()
    ann = scene.join("ann", **params)
    ann.new_session()
    scene.agent.ask_permission("before")
    ann.choose(ann.hears(), "yes")
    scene.agent.hears()
    bob = scene.join_session("bob", **params)
    ann.heard()
    return scene, ann, bob


def elicit(scene: Scene, raw_id: Any = "e", **params: Any) -> None:
    asked = {"sessionId": "s", "mode": "form", "message": "which one?", "requestedSchema": {}} | params
    scene.agent.send(id=raw_id, method="elicitation/create", params=asked)


# Recipients.


def test_but_for_its_id_a_question_is_what_the_agent_wrote() -> None:
    scene, ann, bob = together()
    agent_request = (
        b'{ "params":{"sessionId":"s","options":[],"_meta":{"n":1.10}},"id" : %b,"method":"%b", "jsonrpc":"2.0"}'
    )
    for method in (b"session/request_permission", b"elicitation/create"):
        scene.agent.say(agent_request % (b"1e0", method))
    assert ann.heard_text() == [
        agent_request % (b"2", b"session/request_permission"),
        agent_request % (b"3", b"elicitation/create"),
    ]
    assert bob.heard_text() == [
        agent_request % (b"1", b"session/request_permission"),
        agent_request % (b"2", b"elicitation/create"),
    ]


def test_an_observer_is_not_asked_whether_it_was_there_or_comes_later() -> None:
    scene, _, _ = together()
    early = scene.join_session("early", role=Role.OBSERVER)
    scene.agent.ask_permission()
    assert early.heard() == []
    late = scene.join("late", role=Role.OBSERVER)
    assert [message.get("method") for message in late.load()] == [None]


# Responses that settle a request.


def test_of_the_first_valid_result_all_members_reach_the_agent_whether_the_schema_has_them_or_not() -> None:
    scene, _, bob = together()
    scene.agent.ask_permission("q")
    outcome = rb'{"optionId":"n\u006f","outcome":"selected","_meta":{"n":1.10},"note":"x"}'
    bob.say(b'{"id": 1 ,"result":{"answers":{"0":"Postgres"},"outcome":%b,"_meta":{"m":1.10}},"Trace":2}' % outcome)
    told = b'{"answers":{"0":"Postgres"},"outcome":%b,"_meta":{"m":1.10}}' % outcome
    assert scene.agent.heard_text() == [b'{"jsonrpc":"2.0","id":"q","result":%b}' % told]


def test_a_dialog_that_was_cancelled_chooses_nothing_besides() -> None:
    scene, _, bob = together()
    scene.agent.ask_permission("q")
    bob.say(b'{"id":1,"result":{"outcome":{"outcome":"cancelled","optionId":"yes","note":"later"}}}')
    assert scene.agent.hears() == answered("q", {"outcome": {"outcome": "cancelled", "note": "later"}})


def test_of_an_answer_to_an_elicitation_all_members_reach_the_agent_but_no_other_spelling_of_a_checked_one() -> None:
    scene, _, bob = together()
    scene.agent.send(id="q", method="elicitation/create", params={"sessionId": "s", "mode": "form"})
    bob.say(b'{"id":1,"result":{"Action":"x","action":"accept","content":{"n":1.10},"_meta":{}}}')
    assert scene.agent.heard() == []
    scene.agent.send(id="r", method="elicitation/create", params={"sessionId": "s", "mode": "form"})
    result = b'{"outcome":{},"action":"accept","content":{"n":1.10},"x":1,"_meta":{}}'
    bob.say(b'{"id":2,"result":%b}' % result)
    assert scene.agent.heard_text() == [b'{"jsonrpc":"2.0","id":"r","result":%b}' % result]


@pytest.mark.parametrize(
    "more", ['"Method":"session/prompt","Params":{"sessionId":"t"}', '"method":"x"', '"params":[]']
)
def test_an_answer_that_some_would_take_for_a_request_reaches_no_agent(more: str) -> None:
    scene, _, bob = together()
    scene.agent.ask_permission("q")
    bob.hears()
    bob.say(f'{{"id":1,"result":{{"outcome":{{"outcome":"selected","optionId":"yes"}}}},{more}}}'.encode())
    assert scene.agent.heard() == []
    assert bob.hears()["error"]["code"] == -32600


def test_a_permission_request_with_more_options_than_the_limit_is_refused() -> None:
    scene, ann, bob = together(Scene(make_policy(max_permission_options=1500)))
    scene.agent.ask_permission("q", options=tuple(map(str, range(1501))))
    error = scene.agent.hears()["error"]
    assert (error["code"], "at most 1500 options (max_permission_options)" in error["message"]) == (-32602, True)
    assert (ann.heard(), bob.heard()) == ([], [])
    scene.agent.ask_permission("r", options=tuple(map(str, range(1500))))
    ann.choose(ann.hears(), "1499")
    assert scene.agent.hears() == answered("r", selected("1499"))


@pytest.mark.parametrize("body", [{"error": {"code": 1, "message": "x" * 300}}, {"result": {"outcome": "x" * 300}}])
def test_a_large_response_that_is_not_a_decision_is_not_kept(body: dict[str, Any]) -> None:
    scene, ann, bob = together(Scene(make_policy(decision_size=300)))
    scene.agent.ask_permission("q")
    ann.send(id=ann.hears()["id"], **body)
    (agent_request,) = scene.multiplexer.waiting(scene.session())
    assert agent_request.refusal is not None
    assert len(agent_request.refusal) < 200
    bob.send(id=bob.hears()["id"], **body)
    assert scene.agent.hears()["error"]["message"] == "no client gave a valid answer"


def test_a_response_larger_than_decision_size_is_not_a_decision_and_the_note_names_the_option() -> None:
    scene, ann, bob = together(Scene(make_policy(decision_size=300)))
    scene.agent.ask_permission("q")
    ann.say(b'{"id":2,"result":{"outcome":{"outcome":"selected","optionId":"yes"},"_meta":"%b"}}' % (b"x" * 300))
    assert scene.agent.heard() == []
    assert "larger than decision_size (300)" in scene.notes[-1]
    bob.choose(bob.hears(), "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))


@pytest.mark.parametrize("raw_id", ["0", "1", '"1"', '""', "1.0", "1e2", "9223372036854775808", "null", '"\\u0041"'])
def test_the_agent_gets_its_id_back_as_it_spelled_it(raw_id: str) -> None:
    scene, ann, _ = together()
    params = '{"sessionId":"s","options":[{"optionId":"yes"}]}'
    scene.agent.say(f'{{"id":{raw_id},"method":"session/request_permission","params":{params}}}'.encode())
    ann.choose(ann.hears(), "yes")
    (text,) = scene.agent.heard_text()
    assert f'"id":{raw_id},'.encode() in text


def test_those_who_lose_are_told_under_their_own_id_and_who_won_is_not() -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission()
    at_ann, at_bob = ann.hears(), bob.hears()
    ann.choose(at_ann, "yes")
    assert bob.hears() == withdrawn(at_bob)
    assert ann.heard() == []


def test_the_late_answer_of_a_loser_is_swallowed() -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission()
    at_ann, at_bob = ann.hears(), bob.hears()
    ann.choose(at_ann, "yes")
    scene.agent.heard()
    bob.choose(at_bob, "no")
    assert scene.agent.heard() == []
    assert scene.notes[-1] == "dropped a response of bob to no open request"


def test_a_second_answer_of_the_winner_is_swallowed_and_decides_no_later_question() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission(0)
    first = ann.hears()
    ann.choose(first, "yes")
    scene.agent.ask_permission(0)
    scene.agent.heard()
    ann.choose(first, "yes")
    assert scene.agent.heard() == []
    assert len(scene.multiplexer.waiting(scene.multiplexer.sessions[0])) == 1


@pytest.mark.parametrize("raw_id", [b"2", b'"1"', b"null", b"1.5", b"-1", b"true", b"99"])
def test_an_id_that_the_client_was_not_given_answers_nothing(raw_id: bytes) -> None:
    scene, _, bob = together()
    scene.agent.ask_permission()  # At ann's it has the id 2.
    bob.say(b'{"id":%b,"result":{"outcome":{"outcome":"selected","optionId":"yes"}}}' % raw_id)
    assert scene.agent.heard() == []


# Responses that do not settle a request.


def test_an_error_of_one_client_does_not_decide_a_permission_request() -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission("q")
    agent_request = ann.hears()
    bob.fail(bob.hears())
    assert scene.agent.heard() == []
    assert ann.heard() == []
    assert scene.notes[-1].startswith("bob did not answer session/request_permission with a decision")
    ann.choose(agent_request, "no")
    assert scene.agent.hears() == answered("q", selected("no"))
    assert bob.heard() == []


@pytest.mark.parametrize(
    "result",
    [
        selected("maybe"),
        {"outcome": {"outcome": "selected"}},
        {"outcome": {"outcome": "selected", "optionId": 0}},
        {"outcome": {"outcome": "later", "optionId": "yes"}},
        {"outcome": "selected", "optionId": "yes"},
        {"outcome": None},
        {},
        None,
        [],
    ],
)
def test_a_result_that_chooses_nothing_that_was_offered_decides_nothing(result: Any) -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission("q")
    agent_request = ann.hears()
    bob.send(id=bob.hears()["id"], result=result)
    assert scene.agent.heard() == []
    ann.choose(agent_request, "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))


@pytest.mark.parametrize("options", ["", ',"options":{"optionId":"yes"}', ',"options":[{"name":"yes"},"yes",7]'])
def test_where_nothing_was_offered_nothing_can_be_chosen(options: str) -> None:
    scene, ann, _ = together()
    params = f'{{"sessionId":"s"{options}}}'
    scene.agent.say(f'{{"id":"q","method":"session/request_permission","params":{params}}}'.encode())
    ann.choose(ann.hears(), "yes")
    assert scene.agent.heard() == []


def test_an_option_counts_however_it_is_escaped() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission("q", options=("ja/später",))
    ann.say(b'{"id":2,"result":{"outcome":{"outcome":"selected","optionId":"ja\\/sp\\u00e4ter"}}}')
    assert scene.agent.hears()["id"] == "q"


def test_the_agent_gets_the_last_error_when_all_clients_have_failed() -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission("q")
    ann.fail(ann.hears(), -32602, "first")
    bob.fail(bob.hears(), -32601, "second")
    assert scene.agent.hears() == {"jsonrpc": "2.0", "id": "q", "error": {"code": -32601, "message": "second"}}
    assert not scene.multiplexer.busy


def test_the_agent_gets_an_error_when_all_clients_have_answered_and_none_validly() -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission("q")
    ann.fail(ann.hears())
    bob.choose(bob.hears(), "maybe")
    assert scene.agent.hears()["error"] == {"code": -32603, "message": "no client gave a valid answer"}


@pytest.mark.parametrize("leave", [Peer.gone, lambda peer: peer.request("session/close", sessionId="s")])
def test_a_decision_is_held_when_the_last_one_who_could_still_take_it_has_left(leave: Callable[[Peer], Any]) -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission("q")
    bob.fail(bob.hears(), -32602, "no dialog here")
    leave(ann)
    assert scene.agent.heard() == []
    cleo = scene.join("cleo")
    cleo.choose(cleo.load()[-1], "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))
    assert bob.heard() == []


def test_the_agent_gets_the_error_when_who_came_for_a_decision_that_was_held_fails_too() -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission("q")
    bob.fail(bob.hears(), -32602, "first")
    ann.gone()
    cleo = scene.join("cleo")
    cleo.fail(cleo.load()[-1], -32601, "second")
    assert scene.agent.hears()["error"] == {"code": -32601, "message": "second"}


def test_a_decision_about_no_session_waits_for_the_next_when_all_who_were_asked_have_left() -> None:
    scene = Scene()
    ann = scene.join("ann")
    scene.agent.send(id="q", method="session/request_permission", params={"options": [{"optionId": "yes"}]})
    ann.gone()
    assert scene.agent.heard() == []
    bob = scene.join("bob", initialize=False)
    bob.request("initialize", protocolVersion=1)
    bob.choose(bob.heard()[-1], "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))


# No client connected.


def test_a_permission_request_without_a_client_waits_for_the_next_one() -> None:
    scene, ann, bob = together()
    ann.gone()
    bob.gone()
    scene.agent.ask_permission("q")
    assert scene.agent.heard() == []
    assert scene.notes[-1] == "session/request_permission waits: no client is there to answer it"
    cleo = scene.join("cleo")
    loaded = cleo.load()
    assert [message.get("method") for message in loaded] == [None, "session/request_permission"]
    cleo.choose(loaded[-1], "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))


def test_a_controller_that_attaches_gets_everything_that_is_open_after_the_history_and_the_response() -> None:
    scene, _, bob = together()
    scene.agent.update("history")
    scene.agent.ask_permission("q1")
    elicit(scene, "q2")
    scene.agent.ask_permission("q3")
    bob.choose(bob.heard()[-1], "yes")
    update, response, first, second = scene.join("cleo").load()
    assert update["params"]["update"]["content"]["text"] == "history"
    assert response["result"] == {}
    assert first["method"] == "session/request_permission"
    assert second["method"] == "elicitation/create"


def test_who_resumes_gets_them_after_the_response_and_the_states() -> None:
    scene, _, _ = together()
    scene.agent.state("plan", entries=[])
    scene.agent.ask_permission()
    cleo = scene.join("cleo")
    cleo.request("session/resume", sessionId="s", cwd="/srv")
    assert [message.get("method") for message in cleo.heard()] == [None, "session/update", "session/request_permission"]


def test_what_is_asked_in_a_session_that_can_not_be_loaded_is_settled() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/load")
    scene.agent.ask_permission("q")
    scene.agent.send(id=asked["id"], error={"code": -32002, "message": "no such session"})
    assert scene.agent.hears() == answered("q", CANCELLED)
    assert ann.hears()["error"]["code"] == -32002
    assert not scene.multiplexer.busy


def test_what_one_client_is_asked_is_not_offered_to_who_comes_later() -> None:
    scene, _, bob = together()
    scene.agent.send(id="q", method="_vendor/ask", params={"sessionId": "s"})
    assert len(bob.heard()) == 1
    assert [message.get("method") for message in scene.join("cleo").load()] == [None]


def test_what_was_answered_is_not_offered_any_more() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission()
    ann.choose(ann.hears(), "yes")
    assert [message.get("method") for message in scene.join("cleo").load()] == [None]


def test_who_has_a_question_and_loads_again_is_not_asked_twice() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission()
    ann.heard()
    assert [message.get("method") for message in ann.load()] == [None]


def test_who_gave_no_decision_and_attaches_again_is_asked_again() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission("q")
    ann.fail(ann.hears())
    ann.choose(ann.load()[-1], "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))


# Links that are lost.


def test_a_dialog_that_was_open_when_the_link_was_lost_can_be_answered_once_it_is_back() -> None:
    scene, ann, bob = together()
    bob.gone()
    scene.agent.ask_permission("q")
    agent_request = ann.hears()
    ann.away()
    assert scene.agent.heard() == []
    ann.back()
    assert ann.heard() == []
    ann.choose(agent_request, "yes")
    ann.choose(agent_request, "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))


def test_an_away_client_gets_the_permission_request_and_its_withdrawal() -> None:
    scene, ann, bob = together()
    ann.away()
    scene.agent.ask_permission("q")
    bob.choose(bob.hears(), "yes")
    agent_request, taken_back = ann.heard()
    assert taken_back == withdrawn(agent_request)


def test_session_close_withdraws_the_permission_request_from_that_client() -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission("q")
    agent_request = ann.hears()
    own = ann.request("session/close", sessionId="s")
    assert ann.heard() == [withdrawn(agent_request), answered(own, {})]
    ann.choose(agent_request, "yes")
    assert scene.agent.heard() == []
    bob.choose(bob.hears(), "no")
    assert scene.agent.hears() == answered("q", selected("no"))


# Ends of a request without a response.


def test_session_cancel_of_any_client_cancels_all_agent_requests_of_the_session() -> None:
    scene, ann, bob = together()
    ann.prompt()
    scene.agent.heard()
    scene.agent.ask_permission("q1")
    elicit(scene, "q2")
    at_ann, at_bob = ann.heard(), bob.heard()[-2:]
    bob.cancel()
    assert scene.agent.heard() == [
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}},
        answered("q1", CANCELLED),
        answered("q2", {"action": "cancel"}),
    ]
    assert ann.heard() == [withdrawn(agent_request) for agent_request in at_ann]
    assert bob.heard() == [withdrawn(agent_request) for agent_request in at_bob]
    ann.choose(at_ann[0], "yes")
    assert scene.agent.heard() == []


def test_the_end_of_a_turn_leaves_other_sessions_and_what_is_not_a_decision_alone() -> None:
    scene, ann, bob = together()
    ann.new_session("t")
    scene.agent.ask_permission("other", session_id="t")
    scene.agent.send(id="deed", method="_vendor/do", params={"sessionId": "s"})
    (agent_request,), (audit_event,) = ann.heard(), bob.heard()
    ann.cancel()
    assert [message["method"] for message in scene.agent.heard()] == ["session/cancel"]
    ann.choose(agent_request, "yes")
    bob.send(id=audit_event["id"], result=1)
    assert scene.agent.heard() == [answered("other", selected("yes")), answered("deed", 1)]


def test_one_sessions_open_question_does_not_hold_up_another_session() -> None:
    scene, ann, _ = together()
    ann.new_session("t")
    scene.agent.ask_permission("first")
    scene.agent.ask_permission("second", session_id="t")
    _, second = ann.heard()
    ann.choose(second, "no")
    assert scene.agent.hears() == answered("second", selected("no"))
    ann.prompt(session_id="t")
    assert scene.agent.hears()["method"] == "session/prompt"


def test_by_default_a_question_waits_for_ever() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission("q")
    scene.pass_time(LATE)
    assert scene.agent.heard() == []
    ann.choose(ann.hears(), "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))


def test_a_day_of_waiting_is_worth_one_line_in_the_log() -> None:
    scene, _, _ = together()
    scene.pass_time(1000)
    scene.agent.ask_permission()
    scene.agent.send(id="lost", method="_vendor/ask", params={})
    scene.notes.clear()
    scene.pass_time(1000 + LONG - 1)
    assert scene.notes == []
    scene.pass_time(1000 + LONG)
    assert scene.notes == [
        "session/request_permission of session s has been waiting for 24 h",
        "_vendor/ask of an unknown session has been waiting for 24 h",
    ]
    scene.pass_time(1000 + 2 * LONG)
    assert len(scene.notes) == 2


def test_where_a_timeout_is_configured_what_was_not_decided_in_time_counts_as_cancelled() -> None:
    scene, ann, bob = together(Scene(make_policy(permission_timeout=60)), **news_params())
    scene.pass_time(1000)
    scene.agent.ask_permission("q1")
    elicit(scene, "q2")
    scene.agent.send(id="deed", method="_vendor/do", params={"sessionId": "s"})
    at_bob = bob.heard()
    ann.heard()
    scene.pass_time(1059)
    assert scene.agent.heard() == []
    scene.pass_time(1060)
    assert scene.agent.heard() == [answered("q1", CANCELLED), answered("q2", {"action": "cancel"})]
    assert scene.notes[-2:] == [
        "session/request_permission was not decided within permission_timeout: cancelled",
        "elicitation/create was not decided within permission_timeout: cancelled",
    ]
    first, taken_back, second, _ = bob.heard()
    assert taken_back == withdrawn(at_bob[0])
    assert first["params"] == {
        "sessionId": "s",
        "event": "decided",
        "method": "session/request_permission",
        "toolCallId": "call",
        "decision": "timeout",
        "by": None,
    }
    assert second["params"]["decision"] == "timeout"


@pytest.mark.parametrize(
    ("kinds", "answer"),
    [
        (("allow_once", "reject_always", "reject_once", "reject_once"), selected("2")),
        (("allow_once", "reject_always"), CANCELLED),
        (("allow_once",), CANCELLED),
        ((), CANCELLED),
    ],
)
def test_a_permission_that_was_not_decided_in_time_is_rejected_for_once(kinds: tuple[str, ...], answer: Any) -> None:
    scene, ann = opened_scene(make_policy(permission_timeout=60))
    options = [{"optionId": str(number), "name": kind, "kind": kind} for number, kind in enumerate(kinds)]
    params = {"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": options}
    scene.agent.send(id="q", method="session/request_permission", params=params)
    asked = ann.hears()
    scene.pass_time(60)
    assert scene.agent.hears() == answered("q", answer)
    assert ann.hears() == withdrawn(asked)
    (event,) = [event for event in scene.audit_events if event.name == "permission_decided"]
    assert (event.client, event.details["decision"], event.details["optionKind"]) == (None, "timeout", None)
    assert [one.outcome for one in scene.session().decisions.values()] == ["timeout"]


def test_an_agent_can_take_its_question_back_and_gets_an_answer_still() -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission("q")
    at_ann, at_bob = ann.hears(), bob.hears()
    scene.agent.send(method="$/cancel_request", params={"requestId": "q"})
    assert ann.hears() == withdrawn(at_ann)
    assert bob.hears() == withdrawn(at_bob)
    assert scene.agent.hears()["error"]["code"] == -32800
    ann.choose(at_ann, "yes")
    assert scene.agent.heard() == []


@pytest.mark.parametrize("raw", ["1", '"2"', "2.0", "null", "[1]", '{"a":1}'])
def test_what_an_agent_takes_back_must_be_a_question_of_its_own(raw: str) -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission(2)
    ann.heard()
    scene.agent.say(f'{{"method":"$/cancel_request","params":{{"requestId":{raw}}}}}'.encode())
    scene.agent.say(b'{"method":"$/cancel_request"}')
    assert ann.heard() == scene.agent.heard() == []


def test_the_end_of_the_agent_takes_everything_back() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission("q")
    agent_request = ann.hears()
    scene.lose_agent()
    assert ann.hears() == withdrawn(agent_request)
    ann.choose(agent_request, "yes")
    assert scene.agent.heard() == []
    assert not scene.multiplexer.busy


# Ids of the agent's.


def test_an_agent_may_use_an_id_again_after_the_answer() -> None:
    scene, ann, bob = together()
    for option in ("yes", "no"):
        scene.agent.ask_permission(0)
        ann.choose(ann.hears(), option)
        assert scene.agent.hears() == answered(0, selected(option))
    assert len({message["id"] for message in bob.heard() if "id" in message}) == 2


def test_an_agent_may_use_an_id_again_before_the_answer() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission(0, options=("a",))
    scene.agent.ask_permission(0, options=("b",))
    first, second = ann.heard()
    ann.choose(second, "b")
    ann.choose(first, "a")
    assert scene.agent.heard() == [answered(0, selected("b")), answered(0, selected("a"))]


def test_of_two_questions_of_one_id_the_agent_takes_the_earlier_back() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission(0, options=("a",))
    scene.agent.ask_permission(0, options=("b",))
    first, second = ann.heard()
    scene.agent.send(method="$/cancel_request", params={"requestId": 0})
    assert ann.hears() == withdrawn(first)
    scene.agent.heard()
    ann.choose(second, "b")
    assert scene.agent.hears() == answered(0, selected("b"))


# Clients that may not respond.


def test_a_guest_with_the_controller_role_decides_permission_requests() -> None:
    scene, _, _ = together()
    guest = scene.join_session("guest", "guest-1", only="s", guest=True)
    scene.agent.ask_permission("q")
    guest.choose(guest.hears(), "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))


# Elicitations.


@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
def test_the_first_action_answers_an_elicitation(action: str) -> None:
    scene, ann, bob = together()
    elicit(scene)
    agent_request = ann.hears()
    bob.send(id=bob.hears()["id"], result={"action": action, "content": {"n": 1}})
    assert scene.agent.hears() == answered("e", {"action": action, "content": {"n": 1}})
    assert ann.hears() == withdrawn(agent_request)


@pytest.mark.parametrize("result", [{}, {"action": "perhaps"}, {"action": None}, None, CANCELLED])
def test_anything_else_does_not_answer_an_elicitation(result: Any) -> None:
    scene, ann, bob = together()
    elicit(scene)
    bob.send(id=bob.hears()["id"], result=result)
    assert scene.agent.heard() == []
    ann.send(id=ann.hears()["id"], result={"action": "accept"})
    assert scene.agent.hears() == answered("e", {"action": "accept"})


# Notifications of the other clients.


def test_news_of_a_decision_go_only_to_clients_that_asked_for_them() -> None:
    scene, ann, bob = together()
    curious = scene.join_session("curious", role=Role.OBSERVER, **news_params())
    scene.agent.ask_permission()
    ann.choose(ann.hears(), "yes")
    assert curious.hears() == {
        "jsonrpc": "2.0",
        "method": "_acp-gateway/news",
        "params": {
            "sessionId": "s",
            "event": "decided",
            "method": "session/request_permission",
            "toolCallId": "call",
            "decision": "yes",
            "by": {"connection": "ann", "identity": "me", "role": "controller"},
        },
    }
    assert ann.heard() == []
    assert [message["method"] for message in bob.heard()] == ["session/request_permission", "$/cancel_request"]


@pytest.mark.parametrize(("result", "decision"), [(CANCELLED, "cancelled"), ({"action": "decline"}, "decline")])
def test_the_news_name_the_outcome_where_no_option_was_chosen(result: Any, decision: str) -> None:
    scene, ann, _ = together(**news_params())
    if "action" in result:
        elicit(scene)
    else:
        scene.agent.ask_permission()
    ann.send(id=ann.hears()["id"], result=result)
    assert ann.hears()["params"]["decision"] == decision


def test_the_news_name_who_ended_the_turn_in_which_there_was_something_to_decide() -> None:
    scene, ann, bob = together(**news_params())
    scene.agent.ask_permission()
    scene.agent.send(id="v", method="_vendor/do", params={"sessionId": "s"})
    agent_request = ann.hears()
    bob.heard()
    bob.cancel()
    taken_back, news = ann.heard()
    assert taken_back == withdrawn(agent_request)
    assert news["params"] == {
        "sessionId": "s",
        "event": "decided",
        "method": "session/request_permission",
        "toolCallId": "call",
        "decision": "cancelled",
        "by": {"connection": "bob", "identity": "me", "role": "controller"},
    }


def test_what_is_not_a_decision_makes_no_news() -> None:
    scene, ann, bob = together(**news_params())
    scene.agent.send(id=1, method="_vendor/do", params={"sessionId": "s"})
    bob.send(id=bob.hears()["id"], result=None)
    assert ann.heard() == bob.heard() == []


def test_what_waits_can_be_listed_with_what_it_is_about_and_since_when() -> None:
    scene, _, _ = together()
    (session,) = scene.multiplexer.sessions
    scene.pass_time(5)
    scene.agent.ask_permission("q1")
    elicit(scene, "q2")
    scene.agent.send(id="q3", method="_vendor/do", params={"sessionId": "s"})
    waiting = scene.multiplexer.waiting(session)
    assert [(agent_request.title, agent_request.arrived_at) for agent_request in waiting] == [
        ("do it", 5),
        ("which one?", 5),
        (None, 5),
    ]


def test_a_question_that_is_odd_json_is_asked_and_answered_all_the_same() -> None:
    scene, ann, _ = together()
    options = '[{"optionId":"yes","name":"\\ud83d"}]'
    scene.agent.say(
        f'{{"id":"q","method":"session/request_permission","params":{{"sessionId":"s","options":{options}}}}}'.encode()
    )
    (text,) = ann.heard_text()
    assert b"\\ud83d" in text
    ann.choose(json.loads(text), "yes")
    assert scene.agent.hears() == answered("q", selected("yes"))


def test_who_leaves_one_session_is_asked_still_what_it_was_asked_in_another() -> None:
    scene = Scene()
    ann = scene.join("ann")
    for session_id in ("s", "t"):
        ann.new_session(session_id)
    for session_id in ("s", "t"):
        scene.agent.ask_permission(raw_id=session_id, session_id=session_id)
    in_s, in_t = ann.heard()
    ann.request("session/close", sessionId="s")
    withdrawn, _ = ann.heard()
    assert (withdrawn["method"], withdrawn["params"]) == ("$/cancel_request", {"requestId": in_s["id"]})
    ann.choose(in_t, "yes")
    assert scene.agent.hears()["id"] == "t"


# Audit


def decided(scene: Scene) -> list[AuditEvent]:
    """Return the decisions since `together`."""
    return [audit_event for audit_event in scene.audit_events if audit_event.name.endswith("_decided")][1:]


def test_each_decision_is_written_down_with_what_it_means_and_nothing_that_was_said() -> None:
    scene, ann, _ = together()
    options = [{"optionId": "a", "name": "s3cret", "kind": "allow_always"}, {"optionId": "b", "name": "No"}]
    call = {"toolCallId": "c7", "title": "s3cret", "kind": "execute", "rawInput": {"command": "s3cret"}}
    for number, choice in enumerate("ab"):
        params = {"sessionId": "s", "toolCall": call, "options": options}
        scene.agent.send(id=number, method="session/request_permission", params=params)
        ann.choose(ann.heard()[-1], choice)
    about = {"session": "s", "agent": "agent", "toolCallId": "c7", "kind": "execute"}
    assert decided(scene) == [
        AuditEvent("permission_decided", ann.client, about | {"decision": "a", "optionKind": "allow_always"}),
        AuditEvent("permission_decided", ann.client, about | {"decision": "b", "optionKind": None}),
    ]
    assert "s3cret" not in repr(scene.audit_events)


@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
def test_of_an_elicitation_the_action_is_written_down_and_not_the_content(action: str) -> None:
    scene, ann, _ = together()
    elicit(scene)
    ann.send(id=ann.hears()["id"], result={"action": action, "content": {"name": "s3cret"}})
    (audit_event,) = decided(scene)
    assert (audit_event.name, audit_event.client, audit_event.details["decision"]) == (
        "elicitation_decided",
        ann.client,
        action,
    )
    assert audit_event.details["optionKind"] is None
    assert "s3cret" not in repr(scene.audit_events)


def test_what_decides_nothing_is_not_written_down() -> None:
    scene, ann, bob = together()
    eve = scene.join_session("eve", role=Role.OBSERVER)
    scene.agent.ask_permission()
    ann.fail(ann.hears())
    eve.send(id=1, result=selected("yes"))
    bob.choose(bob.hears(), "never offered")
    scene.agent.send(id=7, method="_vendor/do", params={"sessionId": "s"})
    bob.send(id=bob.heard()[-1]["id"], result=None)
    assert decided(scene) == []


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ('[{"optionId":"yes","kind":"reject_once"},{"optionId":"yes","kind":"allow_once"}]', "allow_once"),
        ('[{"optionId":"yes","kind":7}]', None),
        ('[{"optionId":"no","kind":"allow_once"}]', None),
        ("{}", None),
        ("null", None),
    ],
)
def test_the_kind_of_an_option_is_what_the_agent_said(options: str, kind: str | None) -> None:
    text = f'{{"id":1,"method":"session/request_permission","params":{{"options":{options}}}}}'
    option = AgentRequest(parse(text.encode()), Audience.CONTROLLERS, None, 0).options.get("yes")
    assert (None if option is None else option.kind) == kind


def test_an_option_with_a_word_of_the_protocol_for_its_id_is_not_taken_for_chosen() -> None:
    scene, ann, _ = together()
    options = [{"optionId": "cancelled", "name": "All of it", "kind": "allow_always"}]
    for number in range(2):
        params = {"sessionId": "s", "toolCall": {"toolCallId": "c7"}, "options": options}
        scene.agent.send(id=number, method="session/request_permission", params=params)
    for agent_request, outcome in zip(
        ann.heard()[-2:], ({"outcome": "cancelled"}, {"outcome": "selected"}), strict=True
    ):
        ann.send(id=agent_request["id"], result={"outcome": outcome | {"optionId": "cancelled"}})
    assert [audit_event.details["optionKind"] for audit_event in decided(scene)] == [None, "allow_always"]


@pytest.mark.parametrize(
    "result",
    [
        '{"outcome":{"outcome":"selected","optionId":"no","optionId":"yes"}}',
        '{"outcome":{"outcome":"cancelled"},"Outcome":{"outcome":"selected","optionId":"yes"}}',
    ],
)
def test_a_decision_that_can_be_read_in_two_ways_does_not_count(result: str) -> None:
    scene, ann, bob = together()
    scene.agent.ask_permission("q")
    at_ann, at_bob = ann.hears(), bob.hears()
    ann.say(f'{{"jsonrpc":"2.0","id":{at_ann["id"]},"result":{result}}}'.encode())
    assert not scene.agent.heard()
    bob.choose(at_bob, "no")
    assert scene.agent.hears() == answered("q", selected("no"))


def test_an_agent_request_for_one_client_is_offered_to_the_first_alone() -> None:
    scene, ann, bob = together()
    agent_request = AgentRequest(
        parse(b'{"jsonrpc":"2.0","id":1,"method":"fs/read"}'), Audience.HOST, scene.session(), 0
    )
    questions = scene.multiplexer._agent.agent_requests
    questions.add(agent_request)
    for peer, asked in ((ann, 1), (bob, 0)):
        peer.heard()
        questions.forward_open(scene.session(), peer.client)
        scene.deliver()
        assert len(peer.heard()) == asked


def test_a_decision_with_more_members_than_are_looked_at_does_not_count() -> None:
    scene, ann, _ = together()
    scene.agent.ask_permission()
    ann.send(id=ann.hears()["id"], result=selected("yes") | {str(number): 1 for number in range(spans.MEMBERS)})
    assert scene.agent.heard() == []


# Decisions, for who comes too late to see them


def test_a_session_remembers_who_decided_and_what_by_the_name_of_the_option() -> None:
    scene, ann = opened_scene(registry=Registry("me", run="run"))
    session = scene.session()
    named = {"optionId": "yes", "name": "Allow once", "kind": "allow_once"}
    nameless = {"optionId": "no", "kind": "reject_once"}
    for number, chosen in enumerate(("yes", "no")):
        params = {"sessionId": "s", "toolCall": {"toolCallId": "call"}, "options": [named, nameless]}
        scene.agent.send(id=number, method="session/request_permission", params=params)
        ann.choose(ann.hears(), chosen)
    assert session.decisions == {"run-1": Decision("me", "Allow once"), "run-2": Decision("me", "no")}


def test_a_decision_that_no_client_made_in_time_has_no_identity() -> None:
    scene = Scene(make_policy(permission_timeout=60.0), Registry("me", run="run"))
    scene.join("ann").new_session()
    scene.agent.ask_permission()
    scene.pass_time(60.0)
    assert scene.session().decisions == {"run-1": Decision(None, "timeout")}


def test_a_session_remembers_its_last_decisions() -> None:
    session = Session("agent", "s", "me", Journal(10))
    for number in range(MAX_DECISIONS + 1):
        session.note_decision(str(number), Decision("me", "yes"))
    assert list(session.decisions) == [str(number) for number in range(1, MAX_DECISIONS + 1)]


def test_each_request_of_an_agent_has_a_key_and_the_time_at_which_it_came() -> None:
    scene = Scene(registry=Registry("me", run="run"))
    scene.join("ann").new_session()
    scene.pass_time(0.0, 1000)
    scene.agent.ask_permission(1)
    scene.pass_time(1.0, 2000)
    scene.agent.ask_permission(1)
    first, second = scene.multiplexer.waiting(scene.session())
    assert (first.key, first.arrived_time, second.key, second.arrived_time) == ("run-1", 1000, "run-2", 2000)


@pytest.mark.parametrize(
    ("method", "member", "accepted"),
    [
        ("fs/read_text_file", '"error":{"code":1,"message":"no"}', True),
        ("session/request_permission", '"result":{"outcome":{"outcome":"selected","optionId":"yes"}}', True),
        ("session/request_permission", '"result":{"outcome":{"outcome":"selected","optionId":"no"}}', False),
        ("session/request_permission", '"error":{"code":1,"message":"no"}', False),
    ],
)
def test_whether_a_response_settles_a_request_can_be_asked_before(method: str, member: str, accepted: bool) -> None:
    text = f'{{"id":1,"method":"{method}","params":{{"options":[{{"optionId":"yes"}}]}}}}'
    agent_request = AgentRequest(parse(text.encode()), Audience.CONTROLLERS, None, 0)
    name, _, value = member.partition(":")
    reply = agent_request.reply(**{name.strip('"'): value.encode()} | ({} if "result" in name else {"result": None}))
    assert (reply is not None) is accepted


@pytest.mark.parametrize(
    "result",
    [
        '{"outcome":{"outcome":"selected","optionId":"no"}}',
        '{"outcome":{"outcome":"Selected","optionId":"yes"}}',
        '{"outcome":{"outcome":"selected","outcome":"yes"}}',
        '{"outcome":{"outcome":"selected","OptionId":"yes"}}',
        '{"outcome":{"outcome":"selected","optionId":7,"optionId":"yes"}}',
        '{"outcome":{"outcome":"selected","optionId":"yes","option_id":"no"}}',
        '{"outcome":{"outcome":"cancelled","option_\\u0049d":"yes"}}',
        '{"outcome":1,"outcome":{"outcome":"selected","optionId":"yes"}}',
        '{"outcome":{"outcome":"selected","optionId":"yes"},"outcome":1}',
        '{"outcome":["selected","yes"],"optionId":"a"}',
        '{"outcome":{"outcome":"selected","optionId":"yes"}',
        '"' * 10,
    ],
)
def test_a_result_that_does_not_clearly_select_an_offered_option_settles_nothing(result: str) -> None:
    text = b'{"id":1,"method":"session/request_permission","params":{"options":[{"optionId":"yes"}]}}'
    assert AgentRequest(parse(text), Audience.CONTROLLERS, None, 0).reply(result.encode()) is None


def test_an_option_is_selected_alike_in_each_spelling() -> None:
    text = (
        '{"id":1,"method":"session/request_permission","params":{"options":[{"optionId":"jä","kind":"k"},{"name":1}]}}'
    )
    agent_request = AgentRequest(parse(text.encode()), Audience.CONTROLLERS, None, 0)
    for result in (
        '{"outcome":{"outcome":"selected","optionId":"jä"}}',
        '{ "outcome" : {"optionId": "jä", "outcome": "selected"} }',
        '{"outcome":{"outcome":"selected","optionId":"j\\u00e4"}}',
    ):
        reply = agent_request.reply(result.encode())
        assert reply is not None
        assert reply.choice is not None
        assert reply.choice.option is not None
        assert (reply.choice.outcome, reply.choice.option.kind) == ("jä", "k")
        member = json.loads(b"{%b}" % reply.member)
        assert member == {"result": {"outcome": {"outcome": "selected", "optionId": "jä"}}}


YES = b'{"outcome":{"outcome":"selected","optionId":"yes"}}'


def test_a_viewer_answers_once_what_it_was_asked_and_the_others_are_told() -> None:
    scene, ann, bob = together()
    watcher = scene.join("watcher", role=Role.OBSERVER)
    scene.agent.ask_permission("q")
    (agent_request,) = scene.multiplexer.waiting(scene.session())
    reply = agent_request.reply(YES)
    assert reply is not None
    assert not scene.multiplexer.answer(watcher.client, agent_request, reply)
    assert not scene.multiplexer.answer(ann.client, agent_request, Reply(b"x" * 2_000_000))
    assert scene.multiplexer.answer(ann.client, agent_request, reply)
    assert not scene.multiplexer.answer(bob.client, agent_request, reply)
    scene.deliver()
    assert scene.agent.hears() == {"jsonrpc": "2.0", "id": "q", "result": json.loads(YES)}
    assert bob.heard()[-1]["method"] == "$/cancel_request"
    assert decided(scene)[-1].client is ann.client


def test_a_request_without_a_decision_takes_any_result_or_error() -> None:
    scene = Scene()
    ann = scene.join("ann")
    ann.new_session()
    scene.agent.send(id="q", method="x/ask", params={"sessionId": "s"})
    (agent_request,) = scene.multiplexer.waiting(scene.session())
    assert agent_request.reply(b"7") == Reply(b'"result":7')
    reply = agent_request.reply(None, b'{"code":1,"message":"no"}')
    assert reply is not None
    assert scene.multiplexer.answer(ann.client, agent_request, reply)
    scene.deliver()
    assert scene.agent.hears()["error"] == {"code": 1, "message": "no"}


@pytest.mark.parametrize("call", ["null", "7", '{"toolCallId":7,"title":"t"}', '{"title":"t","kind":"\\ud83d"}'])
def test_a_tool_call_of_other_types_is_told_as_far_as_it_is_known(call: str) -> None:
    text = f'{{"id":1,"method":"session/request_permission","params":{{"toolCall":{call}}}}}'
    told = AgentRequest(parse(text.encode()), Audience.CONTROLLERS, None, 0).tool_call
    assert (told.tool_call_id, told.title) == (None, "t" if "title" in call else None)


# What waits for a person.


def test_the_permission_waiting_hook_fires_once_while_no_controller_is_connected() -> None:
    scene = Scene()
    ann = scene.join("ann")
    scene.join("watcher", role=Role.OBSERVER).request("session/list")
    ann.new_session()
    ann.away()
    scene.pass_time(10)
    scene.agent.ask_permission()
    (event,) = scene.events
    assert (event.name, event.session, event.age) == ("permission_waiting", scene.session(), 0)
    call = {"toolCallId": "call", "title": "do it", "kind": None}
    (request,) = scene.multiplexer._agent.agent_requests
    expected = {"requestId": request.key, "method": "session/request_permission", "tool": call, "connected": 0}
    assert event.details == expected
    ann.back()
    ann.away()
    ann.gone()
    assert len(scene.events) == 1


@pytest.mark.parametrize(("decides", "announced"), [(False, 1), (True, 0), (None, 0)])
def test_the_permission_waiting_hook_does_not_count_a_client_that_answers_no_questions(
    decides: bool | None, announced: int
) -> None:
    scene = Scene()
    meta = {"acp-gateway": {} if decides is None else {"decides": decides}}
    script = scene.join("script", clientCapabilities={"_meta": meta})
    script.new_session()
    script.prompt()
    scene.agent.ask_permission()
    assert len(scene.events) == announced
    assert script.heard()[-1]["method"] == "session/request_permission"
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert (scene.events[-1].name, scene.events[-1].details["connected"]) == ("turn_end", 1 - announced)


@pytest.mark.parametrize("how", ["away", "gone", "closes"])
def test_it_is_announced_when_the_last_who_could_decide_leaves(how: str) -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    scene.join("watcher", role=Role.OBSERVER)
    ann.new_session()
    bob.load()
    scene.agent.ask_permission()
    scene.pass_time(5)
    bob.away()
    assert scene.events == []
    if how == "away":
        ann.away()
    elif how == "gone":
        ann.gone()
    else:
        ann.request("session/close", sessionId="s")
    # A client may be back in a moment.
    assert scene.events == []
    scene.pass_time(5 + JUST_LOST)
    assert [(event.name, event.age) for event in scene.events] == [("permission_waiting", 5 + JUST_LOST)]


def test_the_permission_waiting_hook_does_not_fire_for_a_client_that_is_back_at_once() -> None:
    scene, ann = opened_scene()
    scene.agent.ask_permission()
    for moment in range(1, 20):
        ann.away()
        scene.pass_time(moment)
        ann.back()
    assert scene.events == []


def test_what_may_be_of_several_sessions_is_announced_for_the_first_when_who_was_asked_is_away() -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session("s")
    bob.new_session("t")
    ann.prompt(session_id="s")
    bob.prompt(session_id="t")
    scene.agent.ask_permission(session_id="child")
    ann.away()
    scene.pass_time(JUST_LOST)
    assert scene.events == []
    bob.away()
    scene.pass_time(2 * JUST_LOST)
    assert [(event.name, event.session.id) for event in scene.events] == [("permission_waiting", "s")]


def test_the_permission_waiting_hook_does_not_fire_for_requests_that_are_not_decisions() -> None:
    scene, ann = opened_scene()
    ann.away()
    scene.agent.send(id=1, method="x/ask", params={"sessionId": "s"})
    assert scene.events == []
