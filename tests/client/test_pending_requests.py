"""What an editor is asked, and which of its answers still mean something."""

import pytest

from acp_gateway.client.pending_requests import ANSWERS_KEPT, PendingRequests


@pytest.fixture
def asked() -> PendingRequests:
    """An editor that is asked one thing."""
    asked = PendingRequests()
    asked.ask(b"5", "s")
    return asked


def test_nothing_waits_before_anything_was_asked() -> None:
    asked = PendingRequests()
    assert not asked
    assert b"5" not in asked
    assert asked.unsettled(()) == {}


def test_a_question_waits_until_it_is_answered(asked: PendingRequests) -> None:
    assert asked
    assert asked.answer(b"5")
    assert not asked


def test_an_answer_to_something_that_was_never_asked_passes(asked: PendingRequests) -> None:
    assert asked.answer(b"6")
    assert b"6" not in asked


def test_a_question_that_the_gateway_takes_back_does_not_wait(asked: PendingRequests) -> None:
    asked.cancel(b"6")
    asked.cancel(b"5")
    assert not asked
    assert b"5" not in asked
    assert asked.answer(b"5")


# Answers that may not have left


def test_open_questions_are_unsettled_and_so_are_those_whose_answers_have_not_left(asked: PendingRequests) -> None:
    for raw_id, session_id in ((b"6", "t"), (b"7", None), (b"8", "s")):
        asked.ask(raw_id, session_id)
    asked.answer(b"6")
    asked.answer(b"7")
    assert list(asked.unsettled({b"7"}).items()) == [(b"7", None), (b"5", "s"), (b"8", "s")]


def test_an_answer_means_something_until_it_has_left(asked: PendingRequests) -> None:
    asked.answer(b"5")
    asked.unsettled({b"5"})
    assert b"5" in asked
    asked.unsettled(())
    assert b"5" not in asked


def test_of_many_answers_the_latest_are_remembered() -> None:
    asked = PendingRequests()
    raw_ids = [b"%d" % number for number in range(ANSWERS_KEPT + 2)]
    for raw_id in raw_ids:
        asked.ask(raw_id, "s")
        asked.answer(raw_id)
    assert list(asked.unsettled(raw_ids)) == raw_ids[2:]


# Withdrawn


def test_the_late_answer_to_a_question_that_was_withdrawn_means_nothing_once(asked: PendingRequests) -> None:
    assert asked.withdraw(b"5")
    assert not asked
    assert b"5" not in asked
    assert not asked.answer(b"5")
    assert asked.answer(b"5")


def test_an_answer_that_has_not_left_is_withdrawn_without_a_word_to_the_editor(asked: PendingRequests) -> None:
    asked.answer(b"5")
    assert not asked.withdraw(b"5")
    assert b"5" not in asked


def test_withdrawing_what_was_never_asked_is_nothing(asked: PendingRequests) -> None:
    assert not asked.withdraw(b"6")
    assert asked.answer(b"6")


def test_a_question_that_is_asked_under_a_withdrawn_id_can_be_answered(asked: PendingRequests) -> None:
    asked.withdraw(b"5")
    asked.ask(b"5", "s")
    assert asked.answer(b"5")


# The highest id


def test_the_highest_whole_number_is_kept() -> None:
    asked = PendingRequests()
    for raw_id in (b"41", b"7", b'"99"', b"77.5", b"-100", b"null", b"1" + b"0" * 18):
        asked.ask(raw_id, None)
    assert asked.last_id == 41


def test_there_is_none_before_anything_was_asked() -> None:
    assert PendingRequests().last_id == 0
