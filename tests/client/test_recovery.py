"""Open requests and sessions of an editor, and their recovery on a new link."""

import json
from typing import Any

import pytest

from acp_gateway.client.recovery import Failure, SessionRestore, restore_method
from acp_gateway.protocol import not_sent
from acp_gateway.protocol.gaps import MAY_BE_MISSING, SESSION_LOST, gap
from acp_gateway.protocol.link_messages import Mark, Sent
from acp_gateway.protocol.text import json_text
from tests.client.dialogue import (
    CWD,
    LOADS,
    NEITHER,
    NEW,
    Dialogue,
    adopting,
    cancelled,
    encode,
    error,
    mark,
    notification,
    request,
    result,
    state,
    update,
    withdrawn,
)


@pytest.fixture
def talk() -> Dialogue:
    """An editor that is introduced and has one session."""
    dialogue = Dialogue()
    dialogue.introduces()
    dialogue.opens("s")
    return dialogue


@pytest.fixture
def new() -> Dialogue:
    """An editor that has said nothing yet."""
    return Dialogue()


def test_marks_never_reach_the_editor(new: Dialogue) -> None:
    assert new.gateway_says(update(), mark(s=("e", 1)), update(text="u")) == [update(), update(text="u")]


# The beginning


def test_an_editor_has_started_when_its_first_message_was_answered(new: Dialogue) -> None:
    new.editor_says(request(0, "initialize"))
    assert not new.conversation.started
    new.gateway_says(result(0))
    assert new.conversation.started


def test_an_editor_that_was_refused_may_start_with_another_try(new: Dialogue) -> None:
    new.editor_says(request(0, "initialize", a=1))
    new.gateway_says(error(0))
    assert not new.conversation.started
    new.editor_says(request(0, "initialize", a=2))
    new.gateway_says(result(0))
    new.loses_link()
    assert json.loads(new.sent[0])["params"]["a"] == 2


def test_the_refusal_of_a_second_initialize_changes_nothing(talk: Dialogue) -> None:
    talk.editor_says(request(0, "initialize", second=True))
    talk.gateway_says(error(0))
    assert talk.conversation.started
    talk.loses_link()
    assert "second" not in json.loads(talk.sent[0])["params"]


def test_a_link_that_is_lost_before_the_first_answer_gets_the_same_message_again(new: Dialogue) -> None:
    first = b'{ "id":0, "method":"initialize" }'
    new.editor_says(first, request(1, "authenticate"))
    (told,) = new.loses_link(why="restarted")
    assert json.loads(told)["id"] == 1
    assert new.sent == [first]
    assert new.conversation.recovering
    assert new.gateway_says(result(0)) == [result(0)]
    assert new.conversation.started
    assert not new.conversation.recovering


def test_an_error_is_passed_on_where_the_first_message_went_up_again(new: Dialogue) -> None:
    new.editor_says(request(0, "initialize"))
    new.loses_link()
    assert new.gateway_says(error(0)) == [error(0)]
    assert (new.conversation.recovering, new.conversation.failure) == (False, None)


def test_a_first_message_that_has_not_left_is_the_callers_to_send(new: Dialogue) -> None:
    first = request(0, "initialize")
    new.editor_says(first)
    assert new.loses_link(first) == new.sent == []
    assert not new.conversation.recovering
    assert new.conversation.still_valid([first]) == [first]


def test_nothing_is_to_be_done_for_an_editor_that_was_silent(new: Dialogue) -> None:
    assert new.loses_link() == new.sent == []
    assert not new.conversation.recovering


# Which sessions are open


def test_a_session_is_opened_again_with_what_it_was_opened_with(new: Dialogue) -> None:
    new.introduces()
    new.editor_says(b'{"id":1,"method":"session/new","params":{ "cwd":"/x", "n":1.10,"mcpServers":[{"name":"m"}]}}')
    new.gateway_says(result(1, sessionId="s"))
    new.loses_link()
    new.is_introduced_again()
    (opening,) = new.sent
    assert opening == (
        b'{"jsonrpc":"2.0","id":"acp-gateway:attach:1","method":"session/resume","params":{'
        b'"_meta":{"acp-gateway":{"prompts":[],"questions":[],"connection":"c1"}},"sessionId":"s",'
        b' "cwd":"/x", "n":1.10,"mcpServers":[{"name":"m"}]}}'
    )


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_session_is_open_when_it_was_loaded_or_resumed(new: Dialogue, method: str) -> None:
    new.introduces()
    new.editor_says(request(1, method, sessionId="old", **CWD, _meta={"acp-gateway": 1, "own": 2}))
    new.gateway_says(result(1))
    (opening,) = new.reattached()
    assert opening["params"] == {
        "sessionId": "old",
        "cwd": "/srv/x",
        "mcpServers": [],
        "_meta": {"own": 2, "acp-gateway": {"connection": "c1", "prompts": [], "questions": []}},
    }


def test_a_fork_is_a_session_of_its_own(talk: Dialogue) -> None:
    talk.editor_says(request(1, "session/fork", sessionId="s", cwd="/fork"))
    talk.gateway_says(result(1, sessionId="f"))
    assert {opening["params"]["sessionId"]: opening["params"]["cwd"] for opening in talk.reattached()} == {
        "s": "/srv/x",
        "f": "/fork",
    }


@pytest.mark.parametrize("method", ["session/close", "session/delete"])
def test_a_session_that_was_closed_or_deleted_is_gone(talk: Dialogue, method: str) -> None:
    talk.editor_says(request(1, method, sessionId="s"))
    talk.gateway_says(mark(s=("e", 1)), result(1))
    assert talk.reattached() == []
    assert not talk.conversation.recovering


@pytest.mark.parametrize("method", ["session/new", "session/load", "session/close"])
def test_an_opening_or_closing_that_failed_changes_nothing(talk: Dialogue, method: str) -> None:
    talk.editor_says(request(1, method, sessionId="s", cwd="/other"))
    talk.gateway_says(error(1))
    (opening,) = talk.reattached()
    assert opening["params"]["cwd"] == "/srv/x"


@pytest.mark.parametrize("message", [b'{"id":1,"method":"session/new"}', request(1, "session/load", sessionId=7)])
def test_an_answer_that_names_no_session_opens_none(new: Dialogue, message: bytes) -> None:
    new.introduces()
    new.editor_says(message)
    new.gateway_says(result(1))
    assert new.reattached() == []


def test_what_is_wrong_in_the_params_of_a_request_is_not_found_there(new: Dialogue) -> None:
    new.introduces()
    new.editor_says(b'{"id":1,"method":"session/load","params":{"a\\q":1,"sessionId":"s"}}')
    new.editor_says(b'{"id":2,"method":"session/load","params":["s"]}')
    new.gateway_says(result(1), result(2))
    assert new.reattached() == []


def test_an_agent_that_can_only_load_is_asked_to_load(new: Dialogue) -> None:
    new.introduces()
    new.editor_says(request(1, "session/resume", sessionId="s", cwd="/x"), request(2, "session/load", sessionId="t"))
    new.gateway_says(result(1), result(2))
    new.loses_link()
    new.is_introduced_again(**LOADS)
    opening, other = map(json.loads, new.sent)
    assert opening["method"] == other["method"] == "session/load"
    assert (opening["params"]["cwd"], opening["params"]["mcpServers"]) == ("/x", [])


# Where the editor is in them


def test_a_mark_may_come_before_the_answer_that_opens_the_session(talk: Dialogue) -> None:
    talk.editor_says(request(1, "session/new"))
    talk.gateway_says(mark(n=("e", 3)), update("n"), result(1, sessionId="n"), update("n"))
    assert talk.positions()["n"] == ("e", 5)


def test_a_request_is_not_an_update_whatever_its_method(talk: Dialogue) -> None:
    talk.gateway_says(mark(s=("e", 1)), request(9, "session/update", sessionId="s"), update())
    assert talk.positions() == {"s": ("e", 2)}


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_an_editor_that_opens_a_session_again_is_nowhere_until_the_next_mark(talk: Dialogue, method: str) -> None:
    talk.gateway_says(mark(s=("e", 5)))
    talk.editor_says(request(1, method, sessionId="s"))
    talk.gateway_says(update(), update(), result(1), update())
    assert talk.positions() == {"s": None}


def test_a_session_that_is_being_loaded_when_the_link_is_lost_is_unknown(talk: Dialogue) -> None:
    talk.editor_says(request(1, "session/load", sessionId="s"))
    talk.gateway_says(mark(s=("e", 5)))
    assert talk.positions() == {"s": None}


# The editor is introduced again


def test_the_first_message_goes_up_again_as_it_was_but_for_what_the_gateway_is_told(new: Dialogue) -> None:
    new.editor_says(
        b' { "method":"initialize" ,"params":{"n":1.10, "_meta":{"a":1e999},"protocolVersion":1},"id" : 0 }'
    )
    new.gateway_says(result(0))
    new.is_asked(41)
    new.is_asked(7)
    new.is_asked("99")
    assert new.loses_link() == [withdrawn(41), withdrawn(7), withdrawn("99")]
    (again,) = new.sent
    assert again == (
        b' { "method":"initialize" ,"params":{"n":1.10, "_meta":{"acp-gateway":{"lastId":41},"a":1e999},'
        b'"protocolVersion":1},"id" : "acp-gateway:initialize" }'
    )


def test_a_first_message_without_params_gets_some(new: Dialogue) -> None:
    new.editor_says(b'{"id":0,"method":"initialize"}')
    new.gateway_says(result(0))
    new.loses_link()
    assert json.loads(new.sent[0])["params"] == {"_meta": {"acp-gateway": {"lastId": 0}}}


def test_nothing_waits_when_no_session_was_open(new: Dialogue) -> None:
    new.introduces()
    new.loses_link()
    assert new.conversation.recovering
    assert new.is_introduced_again().to_editor == []
    assert new.sent == []
    assert not new.conversation.recovering


def test_an_editor_that_uses_our_ids_gets_its_own_answers(talk: Dialogue) -> None:
    unsent = [
        request("acp-gateway:initialize", "x"),
        request("acp-gateway:initialize+", "x"),
        request("acp-gateway:attach:1", "x"),
    ]
    talk.editor_says(*unsent)
    (opening,) = talk.reattached(*unsent)
    assert opening["id"] == "acp-gateway:attach:1+"
    assert talk.gateway_says(adopting(opening["id"])) == []
    assert not talk.conversation.recovering
    answers = [result(json.loads(message)["id"]) for message in unsent]
    assert talk.gateway_says(*answers) == answers
    assert talk.conversation.waiting() == []


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        ({"code": -32000, "message": "log in", "data": {"reason": "agent"}}, Failure(-32000, "log in", "agent")),
        ({"code": 7, "message": "no", "data": None}, Failure(7, "no", None)),
        ({"code": "x"}, Failure(-32603, "the gateway answered initialize with an error", None)),
        (7, Failure(-32603, "the gateway answered initialize with an error", None)),
    ],
)
def test_a_recovery_fails_where_the_editor_is_not_let_in_again(talk: Dialogue, answer: Any, failure: Failure) -> None:
    talk.prompts(1)
    talk.loses_link()
    assert talk.gateway_says(encode({"id": "acp-gateway:initialize", "error": answer})) == []
    assert talk.conversation.failure == failure
    assert not talk.conversation.recovering


def test_a_recovery_may_succeed_after_one_that_failed(talk: Dialogue) -> None:
    talk.gateway_says(mark(s=("e", 5)))
    talk.prompts(1)
    talk.loses_link()
    talk.gateway_says(error("acp-gateway:initialize"))
    assert talk.seen() == {"s": {"epoch": "e", "position": 5, "connection": "c1", "prompts": [1], "questions": []}}
    assert talk.conversation.failure is None


# Requests in flight


def test_a_request_in_flight_gets_an_error_that_names_the_outage(talk: Dialogue) -> None:
    talk.editor_says(request(1, "session/set_mode", sessionId="s"))
    (told,) = map(json.loads, talk.loses_link(why="the gateway was restarted"))
    assert (told["id"], told["error"]["code"]) == (1, -32603)
    assert told["error"]["data"] == {"reason": "outage"}
    assert "the gateway was restarted" in told["error"]["message"]
    assert talk.conversation.waiting() == []
    assert "session/set_mode" in talk.log_messages[0]


def test_a_second_initialize_in_flight_is_a_request_like_any_other(talk: Dialogue) -> None:
    talk.editor_says(request(0, "initialize"))
    (told,) = map(json.loads, talk.loses_link())
    assert told["id"] == 0
    assert json.loads(talk.sent[0])["id"] == "acp-gateway:initialize"


def test_a_request_that_has_not_left_stays_open(talk: Dialogue) -> None:
    unsent = [request(1, "session/list"), request(2, "session/prompt", sessionId="s"), b"junk", b'{"method":"n"}']
    talk.editor_says(*unsent)
    assert talk.seen(*unsent)["s"]["prompts"] == []
    talk.gateway_says(adopting("acp-gateway:attach:1"))
    assert talk.conversation.still_valid(unsent) == unsent
    assert talk.conversation.waiting() == ["session/list", "session/prompt"]


def test_a_prompt_that_goes_on_is_answered_when_its_turn_ends(talk: Dialogue) -> None:
    talk.prompts(1)
    talk.prompts("two")
    assert talk.seen()["s"]["prompts"] == [1, "two"]
    assert talk.gateway_says(adopting("acp-gateway:attach:1", [1, "two"])) == []
    assert not talk.conversation.recovering
    assert talk.gateway_says(result(1, stopReason="end_turn")) == [result(1, stopReason="end_turn")]
    assert talk.conversation.waiting() == ["session/prompt"]


def test_a_prompt_that_does_not_go_on_is_cancelled(talk: Dialogue) -> None:
    for message_id in (1, 2, 3):
        talk.prompts(message_id)
    talk.reattached()
    assert talk.gateway_says(adopting("acp-gateway:attach:1", [2])) == [cancelled(1), cancelled(3)]
    assert talk.conversation.waiting() == ["session/prompt"]
    assert talk.log_messages == [
        "session s: the gateway does not know the editor's position: missed updates are lost",
        "session s is restored: 2 of 3 prompts and 0 of 0 agent requests cancelled",
    ]


@pytest.mark.parametrize("reason", ["agent_ended", "agent_not_started", "agent_stalled"])
def test_an_agent_that_ends_in_a_recovery_costs_no_session(talk: Dialogue, reason: str) -> None:
    talk.prompts(1)
    talk.reattached()
    assert talk.gateway_says(error("acp-gateway:attach:1", reason=reason)) == []
    assert not talk.conversation.recovering
    assert talk.conversation.failure is not None
    assert talk.conversation.failure.reason == reason
    assert [json.loads(answer)["id"] for answer in talk.conversation.give_up("gone", "agent")] == [1]
    # The next attempt is for the same sessions.
    assert [request["params"]["sessionId"] for request in talk.reattached()] == ["s"]


def test_in_a_recovery_what_is_asked_on_the_new_link_is_answered_at_once(talk: Dialogue) -> None:
    talk.is_asked(3)
    talk.reattached()
    talk.is_asked(4)
    assert not talk.conversation.may_be_sent(result(3))
    assert talk.conversation.may_be_sent(result(4))
    assert not talk.conversation.may_be_sent(result(5))


def test_in_a_recovery_what_is_about_a_session_that_is_open_again_does_not_wait(talk: Dialogue) -> None:
    talk.opens("t")
    assert talk.loses_link() == []
    prompts = [request(number, "session/prompt", sessionId=name) for number, name in enumerate("stu")]
    assert not any(map(talk.conversation.may_be_sent, prompts))
    talk.is_introduced_again()
    assert not any(map(talk.conversation.may_be_sent, prompts))
    talk.gateway_says(adopting("acp-gateway:attach:2"))
    assert [talk.conversation.may_be_sent(prompt) for prompt in prompts] == [False, True, False]
    assert not talk.conversation.may_be_sent(notification("$/cancel_request", requestId=1))
    assert not talk.conversation.may_be_sent(request(9, "session/new"))


def test_a_prompt_is_not_answered_twice(talk: Dialogue) -> None:
    talk.prompts(1)
    talk.reattached()
    end = result(1, stopReason="end_turn")
    assert talk.gateway_says(end, adopting("acp-gateway:attach:1")) == [end]


@pytest.mark.parametrize("session", ["t", None])
def test_a_prompt_of_a_session_that_is_not_open_is_cancelled_at_once(talk: Dialogue, session: Any) -> None:
    talk.prompts(1, session)
    assert talk.loses_link() == [cancelled(1)]


@pytest.mark.parametrize(
    "answer", [error("acp-gateway:attach:1", -32002, reason="unknown_session"), error("acp-gateway:attach:1", -32002)]
)
def test_what_was_open_in_a_session_that_is_lost_ends(talk: Dialogue, answer: bytes) -> None:
    talk.prompts(1)
    talk.is_asked(5)
    talk.gateway_says(mark(s=("e", 1)))
    talk.reattached()
    assert talk.gateway_says(answer) == [gap("s", SESSION_LOST), cancelled(1), withdrawn(5)]
    assert not talk.conversation.recovering
    assert "session s is lost: -32002" in talk.log_messages[0]
    assert talk.reattached() == []


def test_the_log_has_the_agents_reason_for_a_session_that_is_lost(talk: Dialogue) -> None:
    talk.reattached()
    why = {
        "code": -32603,
        "message": "Internal error",
        "data": {"details": "No previous\nsessions, sk-0123456789abcdefghij"},
    }
    talk.gateway_says(encode({"id": "acp-gateway:attach:1", "error": why}))
    assert talk.log_messages == ["session s is lost: -32603: Internal error: No previous sessions, …"]


def test_an_agent_that_can_open_nothing_again_has_lost_its_sessions(talk: Dialogue) -> None:
    talk.opens("t")
    talk.prompts(1)
    talk.is_asked(5, "t")
    talk.loses_link()
    outcome = talk.is_introduced_again(**NEITHER)
    lost = gap("s", SESSION_LOST), gap("t", SESSION_LOST)
    assert (outcome.to_gateway, outcome.to_editor) == ([], [lost[0], cancelled(1), lost[1], withdrawn(5)])
    assert not talk.conversation.recovering
    assert len(talk.log_messages) == 2


@pytest.mark.parametrize("answer", [{"result": None}, {"result": {"_meta": {"acp-gateway": {"prompts": 1}}}}])
def test_a_gateway_that_adopts_nothing_need_not_say_so(talk: Dialogue, answer: Any) -> None:
    talk.prompts(1)
    talk.reattached()
    assert talk.gateway_says(encode({"id": "acp-gateway:attach:1"} | answer)) == [cancelled(1)]


def test_each_session_has_its_own_answer(talk: Dialogue) -> None:
    talk.opens("t")
    talk.prompts(1, "s")
    talk.prompts(2, "t")
    assert [opening["id"] for opening in talk.reattached()] == ["acp-gateway:attach:1", "acp-gateway:attach:2"]
    assert talk.gateway_says(adopting("acp-gateway:attach:2")) == [cancelled(2)]
    assert talk.conversation.recovering
    assert talk.gateway_says(adopting("acp-gateway:attach:1")) == [cancelled(1)]
    assert not talk.conversation.recovering


# Questions


def test_a_question_that_is_still_open_can_be_answered(talk: Dialogue) -> None:
    talk.is_asked(5)
    assert talk.seen()["s"]["questions"] == [5]
    assert talk.gateway_says(adopting("acp-gateway:attach:1", questions=[5])) == []
    assert talk.editor_says(result(5)) == [result(5)]
    assert talk.seen()["s"]["questions"] == []


def test_a_question_that_is_no_more_is_withdrawn_and_its_late_answer_dropped(talk: Dialogue) -> None:
    talk.is_asked(5)
    talk.is_asked(6)
    talk.reattached()
    assert talk.gateway_says(adopting("acp-gateway:attach:1", questions=[6])) == [withdrawn(5)]
    talk.log_messages.clear()
    assert talk.editor_says(result(5), result(6)) == [result(6)]
    assert len(talk.log_messages) == 1


def test_questions_of_no_session_or_of_an_unknown_one_are_withdrawn_at_once(talk: Dialogue) -> None:
    agent_request = request(5, "elicitation/create", requestId=1)
    assert talk.gateway_says(agent_request) == [agent_request]
    talk.is_asked(6, "child")
    assert talk.loses_link() == [withdrawn(5), withdrawn(6)]


def test_a_question_that_was_answered_is_not_named(talk: Dialogue) -> None:
    talk.is_asked(5)
    talk.editor_says(result(5))
    assert talk.seen()["s"]["questions"] == []


@pytest.mark.parametrize("recovering", [False, True])
def test_a_question_that_the_gateway_has_withdrawn_is_not_withdrawn_again(talk: Dialogue, recovering: bool) -> None:
    talk.is_asked(5)
    talk.is_asked(6)
    if recovering:
        talk.reattached()
    assert talk.gateway_says(withdrawn(5)) == [withdrawn(5)]
    if not recovering:
        assert talk.seen()["s"]["questions"] == [6]
    assert talk.gateway_says(adopting("acp-gateway:attach:1")) == [withdrawn(6)]


def test_a_withdrawal_that_names_nothing_is_nothing(talk: Dialogue) -> None:
    talk.is_asked(5)
    assert talk.gateway_says(notification("$/cancel_request")) == [notification("$/cancel_request")]
    assert talk.seen()["s"]["questions"] == [5]


def test_a_request_without_a_possible_id_is_not_a_question(talk: Dialogue) -> None:
    message = b'{"id":{},"method":"session/request_permission","params":{"sessionId":"s"}}'
    assert talk.gateway_says(message) == [message]
    assert talk.seen()["s"]["questions"] == []


def test_an_answer_that_has_not_left_is_sent_where_the_question_is_still_open(talk: Dialogue) -> None:
    talk.is_asked(5)
    talk.is_asked(6)
    unsent = [result(5), result(6)]
    talk.editor_says(*unsent)
    assert talk.seen(*unsent)["s"]["questions"] == [5, 6]
    assert talk.gateway_says(adopting("acp-gateway:attach:1", questions=[6])) == []
    assert talk.conversation.still_valid(unsent) == [result(6)]


def test_an_answer_that_has_not_left_is_dropped_with_its_session(talk: Dialogue) -> None:
    talk.is_asked(5, "child")
    talk.editor_says(result(5))
    assert talk.loses_link(result(5)) == []
    assert talk.conversation.still_valid([result(5)]) == []


def test_an_adopted_answer_that_does_not_leave_over_the_next_link_either_is_named_again(talk: Dialogue) -> None:
    talk.is_asked(5)
    talk.editor_says(result(5))
    for number in (1, 2):
        assert talk.seen(result(5))["s"]["questions"] == [5]
        talk.gateway_says(adopting(f"acp-gateway:attach:{number}", questions=[5]))
        assert talk.conversation.still_valid([result(5)]) == [result(5)]


# What never left and means nothing any more


def test_a_cancellation_is_sent_only_for_a_request_that_is_open(talk: Dialogue) -> None:
    talk.prompts(1)
    talk.prompts(2)
    talk.editor_says(request(3, "session/list"))
    cancels = [withdrawn(message_id) for message_id in (1, 2, 3)]
    talk.editor_says(*cancels)
    talk.reattached(*cancels)
    talk.gateway_says(adopting("acp-gateway:attach:1", [2]))
    assert talk.conversation.still_valid(cancels) == [withdrawn(2)]


@pytest.mark.parametrize(
    "message", [notification("session/cancel", sessionId="s"), b"junk", b'{"id":{},"method":"m"}', b'{"id":1']
)
def test_everything_else_that_never_left_is_sent(talk: Dialogue, message: bytes) -> None:
    talk.reattached(message)
    talk.gateway_says(adopting("acp-gateway:attach:1"))
    assert talk.conversation.still_valid([message]) == [message]


# Messages from the gateway during a recovery


def test_updates_pass_behind_a_mark_of_the_epoch_that_the_gateway_was_told(talk: Dialogue) -> None:
    talk.gateway_says(mark(s=("e", 5)), update())
    assert talk.positions() == {"s": ("e", 6)}
    assert talk.gateway_says(mark(s=("e", 6)), update(text="missed")) == [update(text="missed")]
    assert talk.gateway_says(adopting("acp-gateway:attach:1"), update()) == [update()]
    assert talk.positions() == {"s": ("e", 8)}
    assert not any("discarded" in message for message in talk.log_messages)


@pytest.mark.parametrize("marks", [[], [mark(s=("f", 0))], [mark(t=("e", 5))]])
def test_other_updates_are_discarded_until_the_session_is_open_again(talk: Dialogue, marks: list[Mark]) -> None:
    talk.gateway_says(mark(s=("e", 5)))
    talk.reattached()
    assert talk.gateway_says(*marks, update(), update()) == []
    assert talk.gateway_says(update(), adopting("acp-gateway:attach:1"), update(text="new")) == [update(text="new")]
    assert talk.log_messages[0] == "discarded 3 updates of session s: already seen, or missed"


def test_a_session_without_a_position_has_no_epoch_to_go_on_with(talk: Dialogue) -> None:
    talk.reattached()
    assert talk.gateway_says(mark(s=("e", 0)), update()) == []


def test_discarded_updates_are_noted_also_of_a_session_that_is_lost(talk: Dialogue) -> None:
    talk.reattached()
    talk.gateway_says(update(), error("acp-gateway:attach:1"))
    assert "discarded 1 " in talk.log_messages[0]


def test_the_position_is_that_of_the_new_epoch_afterwards(talk: Dialogue) -> None:
    talk.gateway_says(mark(s=("e", 5)))
    talk.reattached()
    talk.gateway_says(mark(s=("f", 1)), update(), update(), adopting("acp-gateway:attach:1"), update())
    assert talk.positions() == {"s": ("f", 4)}


def test_the_position_is_unknown_after_a_history_without_a_mark(talk: Dialogue) -> None:
    talk.gateway_says(mark(s=("e", 5)))
    talk.reattached()
    talk.gateway_says(update(), adopting("acp-gateway:attach:1"), update())
    assert talk.positions() == {"s": None}


def test_requests_other_sessions_and_other_notifications_pass(talk: Dialogue) -> None:
    talk.reattached()
    messages = [
        request(9, "session/request_permission", sessionId="s"),
        request(10, "session/update", sessionId="s"),
        update("child"),
        notification("session/other", sessionId="s"),
        b"junk",
        b'{"jsonrpc":"2.0"}',
        result("whose?"),
    ]
    assert talk.gateway_says(*messages) == messages
    assert talk.gateway_says(adopting("acp-gateway:attach:1")) == []
    assert talk.editor_says(result(9)) == [result(9)]


@pytest.mark.parametrize(("asked", "passes"), [({}, True), (True, True), (False, False), (None, False)])
def test_news_pass_where_the_editor_asked_for_them(new: Dialogue, asked: Any, passes: bool) -> None:
    new.introduces(clientCapabilities={"_meta": {"acp-gateway": asked}})
    new.opens("s")
    new.reattached()
    news = notification("_acp-gateway/news", sessionId="s")
    assert new.gateway_says(news) == ([news] if passes else [])


# Lost again


def test_a_link_that_is_lost_in_a_recovery_is_replaced_once_more(talk: Dialogue) -> None:
    talk.opens("t")
    talk.gateway_says(mark(s=("e", 5), t=("f", 5)))
    talk.prompts(1, "s")
    talk.prompts(2, "t")
    talk.is_asked(5, "t")
    talk.reattached()
    # Of the one session the gateway knows everything, and it has answered; of the other it has said nothing.
    talk.gateway_says(update("t"), mark(s=("e", 5)), update("s"), adopting("acp-gateway:attach:1", [1]))
    outcome = talk.conversation.begin_recovery("c2", [], "again")
    assert outcome.to_editor == []
    assert talk.conversation.recovering
    talk.sent = outcome.to_gateway
    openings = talk.is_introduced_again().to_gateway
    assert [json.loads(opening)["params"]["_meta"]["acp-gateway"] for opening in openings] == [
        {"epoch": "e", "position": 6, "connection": "c2", "former": ["c1"], "prompts": [1], "questions": []},
        {"epoch": "f", "position": 5, "connection": "c2", "former": ["c1"], "prompts": [2], "questions": [5]},
    ]
    assert [json.loads(opening)["id"] for opening in openings] == ["acp-gateway:attach:3", "acp-gateway:attach:4"]


@pytest.mark.parametrize("way", [{"code": -32603, "reason": "agent_ended"}, None])
def test_where_nothing_has_passed_the_editor_is_where_it_was_whatever_the_gateway_says_of_that(
    talk: Dialogue, way: dict[str, Any] | None
) -> None:
    talk.gateway_says(mark(s=("e", 5)))
    talk.reattached()
    # It counts from a new epoch, and the editor's part of it is still unknown.
    assert talk.gateway_says(mark(s=("f", 1)), update(), update()) == []
    if way is not None:
        talk.gateway_says(error("acp-gateway:attach:1", **way))
    assert talk.positions() == {"s": ("e", 5)}


def test_a_session_that_continues_keeps_its_new_position_if_the_agent_ends_during_the_recovery(talk: Dialogue) -> None:
    talk.gateway_says(mark(s=("e", 5)))
    talk.reattached()
    assert talk.gateway_says(mark(s=("e", 5)), mark(s=("f", 1)), update()) == [update()]
    talk.gateway_says(error("acp-gateway:attach:1", reason="agent_ended"))
    assert talk.positions() == {"s": ("f", 2)}


@pytest.mark.parametrize("known", [True, False])
def test_who_swallows_a_history_says_that_some_of_it_may_be_missing(talk: Dialogue, *, known: bool) -> None:
    talk.gateway_says(mark(s=("e", 5)))
    talk.loses_link()
    talk.is_introduced_again(**LOADS)
    talk.gateway_says(mark(s=("e", 5) if known else ("f", 0)))
    told = talk.gateway_says(update(), adopting("acp-gateway:attach:1"), update(text="new"))
    assert told == [update() if known else gap("s", MAY_BE_MISSING), update(text="new")]


def test_the_editor_may_speak_while_a_recovery_is_under_way(talk: Dialogue) -> None:
    talk.reattached()
    assert talk.editor_says(request(1, "session/list")) == [request(1, "session/list")]
    assert talk.gateway_says(result(1)) == [result(1)]
    assert talk.conversation.recovering


# Giving up


def test_giving_up_answers_all_that_waits(talk: Dialogue) -> None:
    unsent = request("2", "session/list")
    talk.prompts(1)
    talk.editor_says(unsent)
    answers = talk.conversation.give_up("there is no way", "unreachable")
    assert [json.loads(answer) for answer in answers] == [
        {
            "jsonrpc": "2.0",
            "id": message_id,
            "error": {"code": -32603, "message": "there is no way", "data": {"reason": "unreachable"}},
        }
        for message_id in (1, "2")
    ]
    assert talk.conversation.give_up("again", "unreachable") == []
    assert talk.conversation.waiting() == []
    assert talk.conversation.still_valid([unsent]) == []


def test_sessions_are_taken_up_again_after_giving_up(talk: Dialogue) -> None:
    talk.prompts(1)
    talk.loses_link()
    talk.gateway_says(error("acp-gateway:initialize"))
    assert len(talk.conversation.give_up("the agent can't be started", "agent")) == 1
    assert talk.seen()["s"]["prompts"] == []


def test_a_load_that_is_given_up_leaves_its_session_unknown(talk: Dialogue) -> None:
    talk.editor_says(request(1, "session/load", sessionId="s"))
    talk.gateway_says(mark(s=("e", 5)), update())
    talk.conversation.give_up("there is no way", "unreachable")
    assert talk.positions() == {"s": None}


def test_an_editor_that_never_started_starts_over_after_giving_up(new: Dialogue) -> None:
    new.editor_says(request(0, "initialize", a=1))
    new.loses_link()
    assert len(new.conversation.give_up("no", "unreachable")) == 1
    assert not new.conversation.recovering
    assert new.loses_link() == new.sent == []
    new.editor_says(request(0, "initialize", a=2))
    new.gateway_says(result(0))
    new.loses_link()
    assert json.loads(new.sent[0])["params"]["a"] == 2


# What ended a turn


def cut_off(message_id: int, reason: str, why: str, text: str = "") -> bytes:
    words = f"{why} before this prompt was done" + (f': "{text}"' if text else "")
    return json_text.error(b"%d" % message_id, -32603, words, reason)


@pytest.mark.parametrize(
    ("reason", "why"), [("gateway_restarted", "the gateway was restarted"), ("agent_stopped", "the agent was stopped")]
)
def test_prompts_that_ran_or_waited_when_the_gateway_or_the_agent_ended_get_errors_that_name_them(
    talk: Dialogue, reason: str, why: str
) -> None:
    for number, text in enumerate(["first", "second\none"], 1):
        prompt = [{"type": "image", "data": ""}, {"type": "text", "text": text}]
        talk.editor_says(request(number, "session/prompt", sessionId="s", prompt=prompt))
    talk.reattached()
    told = talk.gateway_says(result("acp-gateway:attach:1", _meta={"acp-gateway": {"prompts": [], "cut": reason}}))
    assert told == [cut_off(1, reason, why, "first"), cut_off(2, reason, why, "second one")]


def test_an_editor_of_version_2_is_told_of_a_prompt_that_was_accepted_and_not_sent(modern: Dialogue) -> None:
    modern.prompts(1)
    modern.reattached()
    modern.gateway_says(adopting("acp-gateway:attach:1", prompts=[1]))
    note, idle = map(json.loads, modern.gateway_says(b'{"jsonrpc":"2.0","id":1,"result":%b}' % not_sent.CANCELLED))
    assert "was not sent to the agent" in note["params"]["update"]["content"]["text"]
    assert idle["params"]["update"]["state"] == "idle"


def test_the_log_says_of_a_turn_that_a_restart_of_the_gateway_has_ended_it(talk: Dialogue) -> None:
    talk.prompts(1)
    talk.reattached()
    answer = result("acp-gateway:attach:1", _meta={"acp-gateway": {"prompts": [], "cut": "gateway_restarted"}})
    assert talk.gateway_says(answer) == [cut_off(1, "gateway_restarted", "the gateway was restarted")]
    assert "the gateway was restarted: the turn in session s was ended" in talk.log_messages


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ({"cut": "gateway_restarted"}, "the gateway was restarted, and this turn was ended"),
        ({"cut": "agent_stopped"}, "the connection could not be resumed, and this turn was ended"),
        ({}, "the end of this turn is not known; the agent may still be at work"),
    ],
)
def test_a_turn_that_an_outage_has_ended_is_told_before_its_end_if_that_is_wanted(
    cut: dict[str, str], words: str
) -> None:
    talk = Dialogue(tells_outages=True)
    talk.introduces()
    talk.opens("s")
    talk.prompts(1)
    talk.reattached()
    note, end = talk.gateway_says(result("acp-gateway:attach:1", _meta={"acp-gateway": {"prompts": []} | cut}))
    update = json.loads(note)["params"]
    assert update["sessionId"] == "s"
    assert words in update["update"]["content"]["text"]
    assert (end == cancelled(1)) is (cut == {})


def test_a_turn_that_goes_on_is_not_told() -> None:
    talk = Dialogue(tells_outages=True)
    talk.introduces()
    talk.opens("s")
    talk.prompts(1)
    talk.reattached()
    assert talk.gateway_says(result("acp-gateway:attach:1", _meta={"acp-gateway": {"prompts": [1]}})) == []


def test_the_sessions_with_a_turn_are_known_and_all_are_counted(talk: Dialogue) -> None:
    assert (talk.conversation.turns(), talk.conversation.session_count) == ([], 1)
    talk.prompts(1)
    talk.prompts(2)
    assert talk.conversation.turns() == ["s"]


def test_the_log_says_by_its_word_what_else_has_cut_off_a_turn(talk: Dialogue) -> None:
    talk.reattached()
    talk.gateway_says(result("acp-gateway:attach:1", _meta={"acp-gateway": {"cut": "agent_stopped"}}))
    assert "'agent_stopped': the turn in session s was ended" in talk.log_messages


@pytest.mark.parametrize("reason", ["agent_ended", "agent_stalled"])
def test_the_log_says_of_a_turn_that_the_end_of_the_agent_has_ended_it(talk: Dialogue, reason: str) -> None:
    talk.prompts(1)
    lost = error(1, reason=reason)
    assert talk.gateway_says(lost) == [lost]
    assert talk.log_messages == [f"the agent has ended ({reason}): the turn in session s was ended"]


@pytest.mark.parametrize("answer", [error(1), error(1, reason="x"), result(1, stopReason="end_turn")])
def test_of_a_turn_that_ended_otherwise_the_log_says_nothing(talk: Dialogue, answer: bytes) -> None:
    talk.prompts(1)
    assert talk.gateway_says(answer) == [answer]
    assert talk.log_messages == []


def test_a_cancellation_waits_for_the_end_of_a_recovery_whatever_session_it_names(talk: Dialogue) -> None:
    assert talk.conversation.may_be_sent(request(1, "session/prompt", sessionId="s"))
    assert not talk.conversation.may_be_sent(notification("$/cancel_request", requestId=1, sessionId="s"))


# One session on a new link


def own_meta(message: bytes) -> Any:
    return json.loads(message)["params"]["_meta"]["acp-gateway"]


@pytest.mark.parametrize(
    ("method", "params", "servers"),
    [
        ("session/load", b"{}", []),
        ("session/load", b'{"mcpServers":[{"name":"m"}]}', [{"name": "m"}]),
        ("session/resume", b"{}", None),
    ],
)
def test_a_load_always_names_servers(method: str, params: bytes, servers: Any) -> None:
    message = SessionRestore("s", None).request(b"1", method, params, ["c1"])
    assert json.loads(message)["params"].get("mcpServers") == servers


def test_the_gateway_is_told_what_the_editor_has_seen_and_what_is_open() -> None:
    reopening = SessionRestore("s", ("e", 5), prompts=[b"1", b'"two"'], agent_requests=[b"7.0"])
    message = reopening.request(b"1", "session/resume", b"{}", ["c1"])
    assert own_meta(message) == {
        "epoch": "e",
        "position": 5,
        "connection": "c1",
        "prompts": [1, "two"],
        "questions": [7.0],
    }
    assert b'"questions":[7.0]' in message


def test_earlier_links_are_named_beside_the_last_one() -> None:
    message = SessionRestore("s", None).request(b"1", "session/resume", b"{}", ["c3", "c2", "c1"])
    assert own_meta(message) == {"connection": "c3", "former": ["c2", "c1"], "prompts": [], "questions": []}


def test_a_session_that_goes_on_goes_on_whatever_the_next_mark_says() -> None:
    reopening = SessionRestore("s", ("e", 5))
    reopening.mark("e")
    reopening.mark("f")
    assert not reopening.discard()


@pytest.mark.parametrize(
    ("capabilities", "method"),
    [
        ({"sessionCapabilities": {"resume": {}}, "loadSession": True}, "session/resume"),
        ({"sessionCapabilities": {"resume": {}}}, "session/resume"),
        ({"sessionCapabilities": {"resume": None}, "loadSession": True}, "session/load"),
        ({"sessionCapabilities": {"resume": False}, "loadSession": True}, "session/load"),
        ({"loadSession": True}, "session/load"),
        ({"loadSession": False}, None),
        ({"loadSession": {}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_session_is_resumed_where_the_agent_can_and_loaded_where_it_can_not(capabilities: Any, method: Any) -> None:
    assert restore_method(json.dumps({"id": 1, "result": {"agentCapabilities": capabilities}}).encode()) == method


# Editors of version 2


@pytest.fixture
def modern() -> Dialogue:
    """An editor of version 2 with one session."""
    dialogue = Dialogue()
    dialogue.introduces_new()
    dialogue.opens("s")
    return dialogue


def comes_back(talk: Dialogue, *told: Sent, **ours: Any) -> list[Any]:
    """Restore session `s`, in which this is told before the response; return what the editor is told."""
    talk.loses_link()
    talk.is_introduced_again(**NEW)
    (opening,) = map(json.loads, talk.sent)
    return list(map(json.loads, talk.gateway_says(*told, result(opening["id"], _meta={"acp-gateway": ours}))))


def ended(reason: str, message: str) -> dict[str, Any]:
    failure = {"code": -32603, "message": message, "data": {"reason": reason}}
    told: dict[str, Any] = json.loads(state("idle", stopReason="error", error=failure))
    return told


CUT = "the gateway was restarted, and this turn was ended"
LOST = "the connection could not be resumed, and this turn was ended"
UNKNOWN = "the connection could not be resumed, and the end of this turn is not known; the agent may still be at work"


def test_a_turn_of_version_2_lasts_until_the_state_is_idle(modern: Dialogue) -> None:
    assert modern.conversation.turns() == []
    modern.prompts(1)
    assert modern.conversation.turns() == ["s"]
    modern.gateway_says(result(1))
    assert (modern.conversation.turns(), modern.conversation.waiting()) == (["s"], [])
    for one in ("running", "requires_action", "_other"):
        assert modern.gateway_says(state(one)) == [state(one)]
        assert modern.conversation.turns() == ["s"]
    modern.gateway_says(state("idle", stopReason="end_turn"))
    assert modern.conversation.turns() == []


@pytest.mark.parametrize("at", range(len("state_update")))
@pytest.mark.parametrize("spelling", ["\\u%04x", "\\u%04X"])
def test_a_state_of_version_2_is_read_however_its_name_is_spelled(at: int, spelling: str, modern: Dialogue) -> None:
    name = "state_update"
    spelled = (name[:at] + spelling % ord(name[at]) + name[at + 1 :]).encode()
    told = state("running").replace(name.encode(), spelled)
    assert told != state("running")
    assert json.loads(told) == json.loads(state("running"))
    assert modern.gateway_says(told) == [told]
    assert modern.conversation.turns() == ["s"]


def test_a_turn_of_version_2_may_begin_without_a_prompt_or_not_at_all(modern: Dialogue) -> None:
    modern.gateway_says(state("running"))
    assert modern.conversation.turns() == ["s"]
    modern.gateway_says(state("idle"), state("_other"))
    modern.prompts(1)
    modern.gateway_says(error(1))
    assert modern.conversation.turns() == []


def test_states_are_nothing_in_version_1(talk: Dialogue) -> None:
    assert talk.gateway_says(state("running")) == [state("running")]
    talk.prompts(1)
    talk.gateway_says(result(1, stopReason="end_turn"))
    assert talk.conversation.turns() == []


def test_a_session_of_version_2_is_resumed_without_its_history(modern: Dialogue) -> None:
    modern.editor_says(request(1, "session/resume", sessionId="s", cwd="/x", replayFrom={"type": "start"}))
    modern.gateway_says(result(1))
    modern.loses_link()
    modern.is_introduced_again(**NEW)
    (opening,) = map(json.loads, modern.sent)
    assert (opening["method"], opening["params"]["cwd"], opening["params"]["replayFrom"]) == (
        "session/resume",
        "/x",
        None,
    )


def test_a_turn_in_a_session_whose_opening_was_lost_is_forgotten() -> None:
    talk = Dialogue()
    talk.introduces_new()
    talk.editor_says(request(1, "session/resume", sessionId="s", cwd="/x"))
    talk.gateway_says(state("running"))
    assert talk.conversation.turns() == ["s"]
    talk.loses_link()
    assert talk.conversation.turns() == []


def test_another_request_in_a_session_changes_nothing_of_it(modern: Dialogue) -> None:
    modern.editor_says(request(5, "session/set_config_option", sessionId="s", configId="m", value="x"))
    modern.gateway_says(result(5))
    modern.loses_link()
    modern.is_introduced_again(**NEW)
    (opening,) = map(json.loads, modern.sent)
    assert (opening["method"], opening["params"]["sessionId"]) == ("session/resume", "s")


@pytest.mark.parametrize(
    ("ours", "reason", "message"),
    [
        ({"cut": "gateway_restarted"}, "gateway_restarted", CUT),
        ({"cut": "agent_stopped"}, "agent_stopped", LOST),
        ({}, "outage", UNKNOWN),
    ],
)
@pytest.mark.parametrize("told", [[], [state("idle")], [state("running"), state("idle")]])
def test_a_turn_of_version_2_that_was_cut_off_ends_as_idle_with_a_reason(
    modern: Dialogue, told: list[bytes], ours: Any, reason: str, message: str
) -> None:
    modern.begins(1)
    assert comes_back(modern, *told, **ours) == [ended(reason, message)]
    assert modern.conversation.turns() == []


def test_an_end_that_was_missed_has_its_own_reason(modern: Dialogue) -> None:
    modern.begins(1)
    end = state("idle", stopReason="end_turn")
    assert comes_back(modern, end) == [json.loads(end)]


def test_the_gateway_is_told_the_prompts_of_a_turn_of_version_2(modern: Dialogue) -> None:
    modern.begins(1)
    modern.prompts(2)
    modern.loses_link()
    modern.is_introduced_again(**NEW)
    assert own_meta(modern.sent[0])["prompts"] == [1, 2]


@pytest.mark.parametrize("told", [[state("running")], [state("idle")], []])
@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (result(1, stopReason="end_turn"), state("idle", stopReason="end_turn")),
        (result(1), state("idle", stopReason=None)),
        (error(1), state("idle", stopReason="error", error={"code": -32603, "message": "no", "data": {}})),
    ],
)
def test_the_response_to_a_prompt_that_was_answered_ends_its_turn(
    modern: Dialogue, told: list[bytes], answer: bytes, end: bytes
) -> None:
    modern.begins(1)
    assert comes_back(modern, *told, prompts=[1]) == []
    assert modern.conversation.turns() == ["s"]
    assert modern.gateway_says(answer) == [end]
    assert modern.conversation.turns() == []


def test_after_another_loss_the_prompt_is_named_again(modern: Dialogue) -> None:
    modern.begins(1)
    comes_back(modern, state("running"), prompts=[1])
    assert comes_back(modern, state("running"), prompts=[1]) == []
    # A state came before the response, which ends nothing then.
    modern.gateway_says(state("idle"))
    assert modern.gateway_says(result(1, stopReason="end_turn")) == []


def test_after_another_loss_a_prompt_whose_turn_was_told_to_be_over_is_named_again(modern: Dialogue) -> None:
    modern.begins(1)
    comes_back(modern, state("running"), prompts=[1])
    modern.gateway_says(state("idle"))
    modern.loses_link()
    modern.is_introduced_again(**NEW)
    (opening,) = map(json.loads, modern.sent)
    assert opening["params"]["_meta"]["acp-gateway"]["prompts"] == [1]


def test_a_prompt_that_was_not_answered_is_accepted_if_it_goes_on(modern: Dialogue) -> None:
    modern.prompts(1)
    shown = {"sessionUpdate": "user_message", "messageId": "acp-gateway-shim-1", "content": []}
    assert comes_back(modern, state("running"), prompts=[1]) == [
        json.loads(result(1, messageId="acp-gateway-shim-1")),
        json.loads(notification("session/update", sessionId="s", update=shown)),
        json.loads(state("running")),
    ]
    assert modern.conversation.waiting() == []
    assert modern.gateway_says(result(1, stopReason="end_turn")) == [state("idle", stopReason="end_turn")]


def test_a_prompt_that_was_not_answered_gets_an_error_if_it_is_gone(modern: Dialogue) -> None:
    modern.prompts(1)
    (told,) = comes_back(modern, state("idle"), cut="gateway_restarted")
    words = "the gateway was restarted before this prompt was done"
    assert (told["id"], told["error"]["message"]) == (1, words)
    assert told["error"]["data"] == {"reason": "gateway_restarted"}


def test_prompts_in_the_queue_end_one_after_the_other(modern: Dialogue) -> None:
    modern.begins(1)
    modern.prompts(2)
    answer, shown = comes_back(modern, state("running"), prompts=[1, 2])
    assert (answer["id"], answer["result"]["messageId"]) == (2, shown["params"]["update"]["messageId"])
    assert modern.gateway_says(result(1, stopReason="cancelled")) == [state("idle", stopReason="cancelled")]
    running = state("running")
    assert modern.gateway_says(running) == [running]
    assert modern.gateway_says(result(2, stopReason="end_turn")) == [state("idle", stopReason="end_turn")]


def test_a_turn_that_began_during_the_outage_is_told(modern: Dialogue) -> None:
    assert comes_back(modern, state("idle"), state("running")) == [json.loads(state("running"))]
    assert modern.conversation.turns() == ["s"]
    # Another one after one that was cut off.
    assert comes_back(modern, state("running"), cut="agent_stopped") == [
        ended("agent_stopped", LOST),
        json.loads(state("running")),
    ]
    assert modern.conversation.turns() == ["s"]


def test_a_state_is_counted_while_a_session_is_restored(modern: Dialogue) -> None:
    modern.gateway_says(mark(s=("e", 5)))
    comes_back(modern, mark(s=("e", 5)), update(), state("idle"))
    modern.loses_link()
    modern.is_introduced_again(**NEW)
    assert (own_meta(modern.sent[0])["epoch"], own_meta(modern.sent[0])["position"]) == ("e", 7)


def test_a_session_of_version_2_that_is_lost_ends_its_turn(modern: Dialogue) -> None:
    modern.begins(1)
    modern.loses_link()
    modern.is_introduced_again(**NEW)
    (opening,) = map(json.loads, modern.sent)
    note, end = map(json.loads, modern.gateway_says(state("running"), error(opening["id"])))
    assert note["params"]["update"] == {
        "sessionUpdate": "agent_message_chunk",
        "messageId": "acp-gateway-shim-1",
        "content": {"type": "text", "text": SESSION_LOST},
    }
    assert end == ended("outage", UNKNOWN)
    assert modern.conversation.turns() == []


def test_a_history_that_was_discarded_leaves_a_note_in_version_2(modern: Dialogue) -> None:
    (note,) = comes_back(modern, update(), state("idle"))
    assert note["params"]["update"]["content"]["text"] == MAY_BE_MISSING


def test_giving_up_ends_the_turns_of_version_2(modern: Dialogue) -> None:
    modern.begins(1)
    (told,) = modern.conversation.give_up("there is no way", "unreachable")
    assert json.loads(told) == ended("unreachable", "there is no way")
    assert modern.conversation.give_up("again", "unreachable") == []
    assert modern.conversation.turns() == []


@pytest.mark.parametrize("method", ["session/close", "session/delete"])
def test_a_session_of_version_2_that_was_closed_has_no_turn(modern: Dialogue, method: str) -> None:
    modern.begins(1)
    modern.editor_says(request(2, method, sessionId="s"))
    modern.gateway_says(result(2))
    assert modern.conversation.turns() == []


def test_a_state_of_a_session_that_was_not_opened_is_forgotten(modern: Dialogue) -> None:
    modern.editor_says(request(1, "session/resume", sessionId="t"))
    modern.gateway_says(state("running", "t"))
    modern.loses_link()
    assert modern.conversation.turns() == []


def test_the_log_says_what_has_ended_a_turn_of_version_2(modern: Dialogue) -> None:
    modern.begins(1)
    modern.gateway_says(state("idle", stopReason="error", error={"data": {"reason": "agent_ended"}}))
    assert modern.log_messages == ["the agent has ended (agent_ended): the turn in session s was ended"]


def test_a_turn_of_version_2_that_an_outage_has_ended_is_told_if_that_is_wanted() -> None:
    talk = Dialogue(tells_outages=True)
    talk.introduces_new()
    talk.opens("s")
    talk.begins(1)
    note, end = comes_back(talk, state("idle"), cut="gateway_restarted")
    assert CUT in note["params"]["update"]["content"]["text"]
    assert end == ended("gateway_restarted", CUT)


@pytest.mark.parametrize("asks", [True, False])
def test_an_editor_of_version_2_gets_extensions_if_it_asks_for_them(*, asks: bool) -> None:
    talk = Dialogue()
    talk.introduces_new(capabilities={"_meta": {"acp-gateway": {}}} if asks else {})
    talk.opens("s")
    talk.loses_link()
    news = notification("_acp-gateway/news", sessionId="s")
    assert talk.gateway_says(news) == ([news] if asks else [])


# What the shim asks


def test_the_directories_of_a_session_are_known_while_it_is_open(new: Dialogue) -> None:
    new.introduces()
    new.editor_says(request(1, "session/new", cwd="/a", additionalDirectories=["/b", 7], mcpServers=[]))
    new.gateway_says(result(1, sessionId="s"))
    assert new.conversation.directories("s") == ["/a", "/b"]
    assert new.conversation.directories("unknown") is None


def test_what_the_agent_takes_in_prompts_is_known_from_its_capabilities(new: Dialogue) -> None:
    new.editor_says(request(0, "initialize"))
    new.gateway_says(result(0, agentCapabilities={"promptCapabilities": {"image": True, "audio": False}}))
    assert new.conversation.takes == {"image"}


def test_a_message_that_is_refused_gets_an_error_or_is_told_in_its_session(talk: Dialogue) -> None:
    refused = json.loads(talk.conversation.refusal(json_text.Beginning(b"7", "session/prompt", "s"), "too large"))
    assert (refused["id"], refused["error"]["message"]) == (7, "too large")
    talk.editor_says(request(7, "session/prompt", sessionId="s", prompt=[]))
    again = talk.conversation.refusal(json_text.Beginning(b"7", "session/prompt", "s"), "too large")
    assert json.loads(again)["id"] is None
    told = talk.conversation.refusal(json_text.Beginning(None, "session/cancel", "s"), "too large")
    assert b"too large; it was left out" in told
    assert json.loads(talk.conversation.refusal(json_text.Beginning(None, None, None), "no"))["id"] is None


def test_a_request_that_is_closed_does_not_wait_any_more(talk: Dialogue) -> None:
    talk.editor_says(request(7, "x"))
    assert [talk.conversation.close(b"7"), talk.conversation.close(b"7")] == [True, False]
    assert talk.conversation.waiting() == []


@pytest.mark.parametrize("is_told", [True, False])
def test_a_session_without_the_worktree_that_was_asked_for_is_refused(talk: Dialogue, *, is_told: bool) -> None:
    talk.editor_says(request(5, "session/new", **CWD, _meta={"acp-gateway": {"worktree": "fix"}}))
    meta = {"_meta": {"acp-gateway": {"worktree": "fix"}}} if is_told else {}
    (heard,) = talk.gateway_says(result(5, sessionId="w", **meta))
    assert ("error" in json.loads(heard)) is not is_told


def test_messages_to_the_editor_are_of_its_version(new: Dialogue) -> None:
    assert (new.conversation.speaks(1), new.conversation.speaks(2)) == (True, False)
    new.introduces_new()
    assert (new.conversation.speaks(1), new.conversation.speaks(2)) == (False, True)
