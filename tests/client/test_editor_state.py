"""Open requests of an editor, and the methods that it may not use."""

import json

import pytest

from acp_gateway.client.editor_state import (
    ANSWERED_KEPT,
    PendingRequests,
    Positions,
    speaks_new,
    told_state,
    updated_session,
)
from acp_gateway.protocol.link_messages import Mark
from tests.client.dialogue import Dialogue, adopting, error, mark, notification, request, result, state, update


@pytest.fixture
def new() -> Dialogue:
    """An editor that has said nothing yet."""
    return Dialogue()


# What waits for an answer


def test_a_request_waits_until_its_answer_has_passed(new: Dialogue) -> None:
    new.editor_says(b'{"id":1,"method":"a"}', b'{"method":"b","id":"1"}')
    assert new.conversation.waiting() == ["a", "b"]
    assert new.gateway_says(b'{"result":{},"id":1}') == [b'{"result":{},"id":1}']
    assert new.conversation.waiting() == ["b"]


@pytest.mark.parametrize(
    "message",
    [
        b'{"method":"n"}',
        b'{"method":"n","params":{"id":1}}',
        b'{"id":1,"result":{}}',
        b'{"id":1',
        b"[]",
        b'"id"',
        b"\xff",
        b'"id"\xff',
        b'{"id":1,"\xff":2}',
        b"",
        b'{"id":1,"method":7}',
        b'{"id":{},"method":"m"}',
        b'{"id":true,"method":"m"}',
        b'{"id":[1],"method":"m"}',
        b'{"error":{}, "x":"\\n"}',
    ],
)
def test_what_is_not_a_request_goes_up_and_does_not_wait(new: Dialogue, message: bytes) -> None:
    assert new.editor_says(message) == [message]
    assert new.conversation.waiting() == []


@pytest.mark.parametrize("raw_id", [b"null", b'""', b"0", b"1.0", b"1e2", b"9223372036854775808", b'"\\u0061"'])
def test_whatever_can_be_an_id_is_one(new: Dialogue, raw_id: bytes) -> None:
    new.editor_says(b'{"id":%b,"method":"m"}' % raw_id)
    assert new.conversation.waiting() == ["m"]
    new.gateway_says(b'{"id":%b,"result":null}' % raw_id)
    assert new.conversation.waiting() == []


@pytest.mark.parametrize(
    "message",
    [b'{"id":1,"method":"m"}', b'{"method":"n","params":{"id":1}}', b'{"id":1.0,"result":1}', b'{"id":2,"error":1}'],
)
def test_what_is_not_an_answer_to_it_leaves_a_request_open(new: Dialogue, message: bytes) -> None:
    new.editor_says(b'{"id":1,"method":"m"}')
    assert new.gateway_says(message) == [message]
    assert new.conversation.waiting() == ["m"]


def test_an_id_member_with_escapes_is_found(new: Dialogue) -> None:
    new.editor_says(b'{"\\u0069d":1,"\\u006dethod":"m"}')
    assert new.conversation.waiting() == ["m"]
    new.gateway_says(b'{"i\\u0064":1,"result":null}')
    assert new.conversation.waiting() == []


def test_an_answer_when_nothing_waits_passes(new: Dialogue) -> None:
    assert new.gateway_says(result(1)) == [result(1)]


def test_the_refusal_of_an_id_that_is_used_twice_leaves_the_first_request_open(new: Dialogue) -> None:
    new.editor_says(request(1, "a"), request(1, "b"))
    new.gateway_says(b'{"id":null,"error":{"code":-32600}}')
    assert new.conversation.waiting() == ["a"]
    new.gateway_says(error(1))
    assert new.conversation.waiting() == []


@pytest.mark.parametrize(
    "message",
    [b'{"id":1,"method":"m","Method":"n"}', b'{"id":1,"id":1,"method":"m"}', b'{"id":1,"method":"m","params":[NaN]}'],
)
def test_a_request_that_the_gateway_refuses_under_null_is_not_open(new: Dialogue, message: bytes) -> None:
    assert new.editor_says(message) == [message]
    assert new.conversation.waiting() == []
    assert new.conversation.still_valid([message]) == [message]


def test_a_result_beside_an_error_that_is_null_is_a_result(new: Dialogue) -> None:
    new.editor_says(request(0, "initialize"))
    new.gateway_says(b'{"id":0,"result":{},"error":null}')
    assert new.conversation.started


# Who may say what


@pytest.mark.parametrize("method", ["_acp-gateway/ack", "_acp-gateway/", "_\\u0061cp-gateway/x", "_acp-gateway\\/x"])
def test_a_request_for_a_method_of_the_gateways_own_is_refused(new: Dialogue, method: str) -> None:
    outcome = new.conversation.from_editor([b'{"id": "7","method":"%b"}' % method.encode()])
    (answer,) = map(json.loads, outcome.to_editor)
    assert (answer["id"], answer["error"]["code"]) == ("7", -32601)
    assert outcome.to_gateway == []
    assert new.conversation.waiting() == []


def test_a_refusal_that_has_no_id_is_under_null(new: Dialogue) -> None:
    outcome = new.conversation.from_editor([b'{"id":{},"method":"_acp-gateway/x"}'])
    assert json.loads(outcome.to_editor[0])["id"] is None


@pytest.mark.parametrize("method", [b"_acp-gateway/ack", b"_acp-gatewa\\u0079/goodbye", b"\\u005facp-gateway/news"])
def test_a_notification_of_the_gateways_own_is_dropped(new: Dialogue, method: bytes) -> None:
    assert new.editor_says(b'{"method":"a"}', b'{"method":"%b"}' % method, b'{"method":"b"}') == [
        b'{"method":"a"}',
        b'{"method":"b"}',
    ]
    assert len(new.log_messages) == 1


def test_what_the_other_end_might_take_for_its_own_is_dropped_though_it_is_not_a_json(new: Dialogue) -> None:
    assert new.editor_says(b'{"method":"_acp-gateway/goodbye","params":NaN}') == []
    assert len(new.log_messages) == 1


def test_a_text_about_the_gateways_methods_is_not_such_a_method(new: Dialogue) -> None:
    message = request(1, "session/prompt", prompt=[{"text": "what is _acp-gateway/ack?"}])
    assert new.editor_says(message) == [message]
    assert new.editor_says(b"_acp-gateway/ack") == [b"_acp-gateway/ack"]


# Positions


@pytest.fixture
def positions() -> Positions:
    """An editor that has seen five updates of a session."""
    positions = Positions()
    positions.apply_mark(mark(s=("e", 5)))
    return positions


def test_a_position_is_the_last_mark_and_the_updates_behind_it(positions: Positions) -> None:
    positions.delivered([update(), update("other"), update()])
    assert positions.at("s") == ("e", 7)
    positions.delivered([update()])
    assert positions.at("s") == ("e", 8)
    assert positions.at("other") is None


def test_updates_before_the_first_mark_do_not_count() -> None:
    positions = Positions()
    positions.delivered([update()])
    positions.apply_mark(mark(s=("e", 5)))
    assert positions.at("s") == ("e", 5)


def test_a_mark_replaces_what_was_counted(positions: Positions) -> None:
    positions.delivered([update()])
    assert positions.apply_mark(mark(s=("f", 1))) == {"s": ("f", 1)}
    assert positions.at("s") == ("f", 1)


def test_a_mark_for_one_session_leaves_the_others_where_they_are(positions: Positions) -> None:
    positions.delivered([update(), update("t")])
    positions.apply_mark(mark(t=("g", 1)))
    positions.delivered([update("t"), update()])
    assert (positions.at("s"), positions.at("t")) == (("e", 7), ("g", 2))


def test_a_session_that_was_forgotten_is_unknown_until_the_next_mark(positions: Positions) -> None:
    positions.delivered([update()])
    positions.forget("s")
    positions.forget("never known")
    assert positions.at("s") is None
    positions.apply_mark(mark(s=("e", 9)))
    assert positions.at("s") == ("e", 9)


# Loading


def test_a_session_that_is_loaded_is_unknown_until_the_next_mark(positions: Positions) -> None:
    positions.load_requested("s")
    positions.delivered([update()])
    positions.load_ended("s")
    assert positions.at("s") is None


def test_the_mark_behind_the_history_counts(positions: Positions) -> None:
    positions.load_requested("s")
    positions.delivered([update()])
    positions.apply_mark(mark(s=("e", 6)))
    assert positions.at("s") is None
    positions.load_ended("s")
    positions.delivered([update()])
    assert positions.at("s") == ("e", 7)


def test_a_mark_that_a_load_has_crossed_says_nothing_about_the_history_behind_it(positions: Positions) -> None:
    positions.load_requested("s")
    positions.apply_mark(mark(s=("e", 6)))
    positions.delivered([update(), update()])
    positions.load_ended("s")
    positions.delivered([update()])
    assert positions.at("s") is None


def test_a_session_that_is_loaded_twice_is_loaded_when_both_are_answered(positions: Positions) -> None:
    positions.load_requested("s")
    positions.load_requested("s")
    positions.apply_mark(mark(s=("e", 6)))
    positions.load_ended("s")
    assert positions.at("s") is None
    positions.delivered([update()])
    positions.load_ended("s")
    assert positions.at("s") is None


def test_other_sessions_go_on_while_one_is_loaded(positions: Positions) -> None:
    positions.load_requested("t")
    positions.delivered([update(), update("t")])
    positions.load_ended("t")
    assert positions.at("s") == ("e", 6)


# Spellings


@pytest.mark.parametrize(
    "spelling",
    [
        b'{"method":"session/update","params":{"x":{"id":4},"sessionId":"s"}}',
        b'{"params":{"sessionId":"\\u0073"},"method":"session\\/update"}',
        b'{"method":"session/update","params":{"sessionId":"t","sessionId":"s","x":"\\ud83d"}}',
        b'{"method":"session/update","params":{"sessionId":"s","x":%b}}' % (b"[" * 500 + b"]" * 500),
        b'{"method":"session/update","params":{"sessionId":"s","x":%b}}' % (b"1" * 5000),
        '{"method":"session/update","params":{"sessionId":"s","x":"\u2028ü"}}'.encode(),
    ],
)
def test_an_update_counts_however_it_is_spelled(positions: Positions, spelling: bytes) -> None:
    assert updated_session(spelling) == "s"
    positions.delivered([spelling])
    assert positions.at("s") == ("e", 6)


@pytest.mark.parametrize(
    "other",
    [
        notification("_session/update", sessionId="s"),
        notification("session/update", sessionId=7),
        b'{"method":"session/update","params":["s"]}',
        b'{"method":"session/update"}',
        b'"session/update"',
        b'{"method":"session/update","params":{"sessionId":"s"}',
        b'{"method":"x","params":{"sessionId":"s","x":%b}}' % (b"1" * 5000),
    ],
)
def test_what_is_not_an_update_does_not_count(positions: Positions, other: bytes) -> None:
    assert updated_session(other) is None
    positions.delivered([other, update()])
    assert positions.at("s") == ("e", 6)


def test_a_session_whose_id_holds_a_lone_surrogate_is_another(positions: Positions) -> None:
    positions.delivered([update("\udc00s")])
    assert positions.at("s") == ("e", 5)


@pytest.mark.parametrize(
    "text",
    [
        b"not JSON",
        b"[]",
        b'{"params":{}}',
        b'{"params":{"positions":[]}}',
        b'{"params":{"positions":{"s":7}}}',
        b'{"params":{"positions":{"s":{"epoch":"e"}}}}',
        b'{"params":{"positions":{"s":{"epoch":7,"position":7}}}}',
        b'{"params":{"positions":{"s":{"epoch":"f","position":"7"}}}}',
    ],
)
def test_a_mark_that_cannot_be_parsed_changes_no_position(positions: Positions, text: bytes) -> None:
    positions.delivered([update()])
    assert positions.apply_mark(Mark(text)) == {}
    positions.delivered([update()])
    assert positions.at("s") == ("e", 7)


# Requests of the agent


@pytest.fixture
def pending() -> PendingRequests:
    """Pending requests with one open request."""
    pending = PendingRequests()
    pending.add(b"5", "s")
    return pending


def test_an_answer_to_something_that_was_never_asked_passes(pending: PendingRequests) -> None:
    assert pending.take_response(b"6")
    assert b"6" not in pending


def test_a_question_that_the_gateway_takes_back_does_not_wait(pending: PendingRequests) -> None:
    pending.cancel(b"6")
    pending.cancel(b"5")
    assert not pending
    assert b"5" not in pending
    assert pending.take_response(b"5")


# Answers that may not have left


def test_open_questions_are_unsettled_and_so_are_those_whose_answers_have_not_left(pending: PendingRequests) -> None:
    for raw_id, session_id in ((b"6", "t"), (b"7", None), (b"8", "s")):
        pending.add(raw_id, session_id)
    pending.take_response(b"6")
    pending.take_response(b"7")
    assert list(pending.unsettled({b"7"}).items()) == [(b"7", None), (b"5", "s"), (b"8", "s")]


def test_an_answer_means_something_until_it_has_left(pending: PendingRequests) -> None:
    pending.take_response(b"5")
    pending.unsettled({b"5"})
    assert b"5" in pending
    pending.unsettled(())
    assert b"5" not in pending


def test_of_many_answers_the_latest_are_remembered() -> None:
    pending = PendingRequests()
    raw_ids = [b"%d" % number for number in range(ANSWERED_KEPT + 2)]
    for raw_id in raw_ids:
        pending.add(raw_id, "s")
        pending.take_response(raw_id)
    assert list(pending.unsettled(raw_ids)) == raw_ids[2:]


# Withdrawn


def test_the_late_answer_to_a_question_that_was_withdrawn_means_nothing_once(pending: PendingRequests) -> None:
    assert pending.withdraw(b"5")
    assert not pending
    assert b"5" not in pending
    assert not pending.take_response(b"5")
    assert pending.take_response(b"5")


def test_an_answer_that_has_not_left_is_withdrawn_without_a_word_to_the_editor(pending: PendingRequests) -> None:
    pending.take_response(b"5")
    assert not pending.withdraw(b"5")
    assert b"5" not in pending


def test_a_question_that_is_asked_under_a_withdrawn_id_can_be_answered(pending: PendingRequests) -> None:
    pending.withdraw(b"5")
    pending.add(b"5", "s")
    assert pending.take_response(b"5")


# The highest id


def test_the_highest_whole_number_is_kept() -> None:
    pending = PendingRequests()
    for raw_id in (b"41", b"7", b'"99"', b"77.5", b"-100", b"null", b"1" + b"0" * 18):
        pending.add(raw_id, None)
    assert pending.last_id == 41


# Version 2


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (state("idle"), ("s", "idle")),
        (state("running", "t"), ("t", "running")),
        (notification("session/update", update={"sessionUpdate": "state_update", "state": "idle"}), None),
        (notification("session/update", sessionId="s", update={"sessionUpdate": "state_update"}), None),
        (notification("session/update", sessionId="s", update={"sessionUpdate": "plan", "state": "idle"}), None),
        (notification("session/update", sessionId="s"), None),
    ],
)
def test_the_state_of_a_session_is_read(message: bytes, told: tuple[str, str] | None) -> None:
    assert told_state(message) == told


@pytest.mark.parametrize(("version", "is_new"), [(1, False), (2, True), (3, True), ("2", False), (None, False)])
def test_the_version_is_the_one_that_was_agreed_on(version: object, *, is_new: bool) -> None:
    assert speaks_new(result(0, protocolVersion=version)) is is_new
    assert not speaks_new(error(0))


# What a cancel is meant for


CANCEL = notification("session/cancel", sessionId="s", _meta={"n": 1})


def meant(message: bytes) -> dict[str, object]:
    """Return what a cancel says; the rest of it is as the editor has sent it."""
    said = json.loads(message)
    own = said["params"]["_meta"].pop("acp-gateway")
    assert said == json.loads(CANCEL)
    assert isinstance(own, dict)
    return own


def test_a_cancel_says_which_prompts_are_open_and_what_the_editor_has_seen(new: Dialogue) -> None:
    new.introduces()
    new.opens("s", "t")
    new.gateway_says(mark(s=("e", 4)), update(), update(session="t"))
    for raw_id, session in (("a", "s"), (2, "s"), (3, "t")):
        new.prompts(raw_id, session)
    new.gateway_says(result("a", stopReason="end_turn"))
    prompt, cancel = new.editor_says(request("b", "session/prompt", sessionId="s", prompt=[]), CANCEL)
    assert json.loads(prompt)["id"] == "b"
    assert meant(cancel) == {"epoch": "e", "position": 5, "prompts": [2, "b"]}
    assert meant(new.editor_says(CANCEL.replace(b"n/c", rb"n\/c"))[0])["prompts"] == [2, "b"]


def test_a_cancel_of_version_2_says_the_prompts_of_the_turn(new: Dialogue) -> None:
    new.introduces_new()
    new.opens("s")
    new.gateway_says(mark(s=("e", 4)))
    new.begins(1)
    new.prompts(2)
    assert meant(new.editor_says(CANCEL)[0])["prompts"] == [1, 2]
    new.gateway_says(state("idle"))
    assert meant(new.editor_says(CANCEL)[0])["prompts"] == [2]


def test_a_cancel_in_a_recovery_says_what_was_open_when_it_was_sent(new: Dialogue) -> None:
    new.introduces()
    new.opens("s")
    new.gateway_says(mark(s=("e", 4)))
    new.prompts(1)
    new.loses_link()
    (cancel,) = new.conversation.aimed([CANCEL], [request(2, "session/prompt", sessionId="s", prompt=[])])
    assert meant(cancel) == {"epoch": "e", "position": 4, "prompts": [1, 2]}
    new.is_introduced_again()
    new.gateway_says(adopting("acp-gateway:attach:1"))
    assert new.editor_says(cancel) == [cancel]


@pytest.mark.parametrize(
    "cancel",
    [
        notification("session/cancel", sessionId=7),
        notification("session/cancel", sessionId="s", _meta={"acp-gateway": {}}),
        b'{"method":"session/cancel","params":{"sessionId":"s"',
        b'{"id":1,"method":"session/cancel","params":{"sessionId":"s"}}',
    ],
)
def test_a_cancel_that_is_odd_passes_unchanged(new: Dialogue, cancel: bytes) -> None:
    new.gateway_says(mark(s=("e", 4)))
    assert new.editor_says(cancel) == [cancel]


def test_a_broken_cancel_waits_unchanged(new: Dialogue) -> None:
    new.gateway_says(mark(s=("e", 4)))
    cancel = b'{"method":"session/cancel","params":{"sessionId":"s"},}'
    assert new.conversation.aimed([cancel], []) == [cancel]


def test_a_server_that_tells_no_positions_gets_cancels_unchanged(new: Dialogue) -> None:
    new.introduces()
    new.opens("s")
    new.prompts(1)
    assert new.editor_says(CANCEL) == [CANCEL]
