"""Restoring a session on a new link, and requests of the agent to the editor."""

import json
from typing import Any

import pytest

from acp_gateway.client.reopening import ANSWERED_KEPT, PendingRequests, SessionRestore, restore_method


def own_meta(request: bytes) -> Any:
    return json.loads(request)["params"]["_meta"]["acp-gateway"]


# The request


def test_a_session_is_opened_with_what_the_editor_has_opened_it_with() -> None:
    params = b'{ "cwd":"/x", "n":1.10,"_meta":{"own":1e999,"acp-gateway":1},"mcpServers":[{"name":"m"}]}'
    assert SessionRestore("s", None).request(b'"r"', "session/resume", params, ["c1"]) == (
        b'{"jsonrpc":"2.0","id":"r","method":"session/resume","params":{"sessionId":"s", "cwd":"/x", "n":1.10,'
        b'"_meta":{"own":1e999,"acp-gateway":{"prompts":[],"questions":[],"connection":"c1"}},'
        b'"mcpServers":[{"name":"m"}]}}'
    )


def test_the_id_of_the_session_replaces_another() -> None:
    request = SessionRestore("fork", None).request(b"1", "session/resume", b'{"sessionId":"origin"}', ["c1"])
    assert json.loads(request)["params"]["sessionId"] == "fork"


def test_the_id_of_the_request_is_kept_for_its_answer() -> None:
    reopening = SessionRestore("s", None)
    assert reopening.raw_id == b""
    reopening.request(b'"r"', "session/resume", b"{}", ["c1"])
    assert reopening.raw_id == b'"r"'


@pytest.mark.parametrize(
    ("method", "params", "servers"),
    [
        ("session/load", b"{}", []),
        ("session/load", b'{"mcpServers":[{"name":"m"}]}', [{"name": "m"}]),
        ("session/resume", b"{}", None),
    ],
)
def test_a_load_always_names_servers(method: str, params: bytes, servers: Any) -> None:
    request = SessionRestore("s", None).request(b"1", method, params, ["c1"])
    assert json.loads(request)["params"].get("mcpServers") == servers


def test_the_gateway_is_told_what_the_editor_has_seen_and_what_is_open() -> None:
    reopening = SessionRestore("s", ("e", 5), prompts=[b"1", b'"two"'], agent_requests=[b"7.0"])
    request = reopening.request(b"1", "session/resume", b"{}", ["c1"])
    assert own_meta(request) == {
        "epoch": "e",
        "position": 5,
        "connection": "c1",
        "prompts": [1, "two"],
        "questions": [7.0],
    }
    assert b'"questions":[7.0]' in request


def test_a_position_that_is_unknown_is_left_out() -> None:
    request = SessionRestore("s", None).request(b"1", "session/resume", b"{}", ["c1"])
    assert own_meta(request) == {"connection": "c1", "prompts": [], "questions": []}


def test_earlier_links_are_named_beside_the_last_one() -> None:
    request = SessionRestore("s", None).request(b"1", "session/resume", b"{}", ["c3", "c2", "c1"])
    assert own_meta(request) == {"connection": "c3", "former": ["c2", "c1"], "prompts": [], "questions": []}


# Messages that come before the response


def test_updates_are_swallowed_and_counted() -> None:
    reopening = SessionRestore("s", ("e", 5))
    assert [reopening.discard(), reopening.discard()] == [True, True]
    assert (reopening.discarded, reopening.marked) == (2, False)


def test_updates_pass_behind_a_mark_of_the_epoch_that_the_gateway_was_told() -> None:
    reopening = SessionRestore("s", ("e", 5))
    reopening.discard()
    reopening.mark("e")
    assert reopening.marked
    assert not reopening.discard()
    assert reopening.discarded == 1


@pytest.mark.parametrize("told", [("e", 5), None])
def test_updates_do_not_pass_behind_a_mark_of_another_epoch(told: tuple[str, int] | None) -> None:
    reopening = SessionRestore("s", told)
    reopening.mark("f")
    assert reopening.marked
    assert reopening.discard()


def test_a_session_that_goes_on_goes_on_whatever_the_next_mark_says() -> None:
    reopening = SessionRestore("s", ("e", 5))
    reopening.mark("e")
    reopening.mark("f")
    assert not reopening.discard()


# The way


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


# Requests of the agent


@pytest.fixture
def pending() -> PendingRequests:
    """Pending requests with one open request."""
    pending = PendingRequests()
    pending.add(b"5", "s")
    return pending


def test_nothing_waits_before_anything_was_asked() -> None:
    pending = PendingRequests()
    assert not pending
    assert b"5" not in pending
    assert pending.unsettled(()) == {}


def test_a_question_waits_until_it_is_answered(pending: PendingRequests) -> None:
    assert pending
    assert pending.take_response(b"5")
    assert not pending


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


def test_withdrawing_what_was_never_asked_is_nothing(pending: PendingRequests) -> None:
    assert not pending.withdraw(b"6")
    assert pending.take_response(b"6")


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


def test_there_is_none_before_anything_was_asked() -> None:
    assert PendingRequests().last_id == 0
