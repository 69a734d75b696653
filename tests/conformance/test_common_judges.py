"""Judges that both sides share."""

import pytest

from acp_conformance.common_judges import (
    UNKNOWN,
    UNKNOWN_EXTENSION,
    judge_answers,
    judge_messages,
    judge_not_answered,
    judge_not_found,
    judge_paths,
    judge_sessions,
    judge_stream,
)
from acp_conformance.dialogue import Dialogue, Fault, Line
from tests.conformance.dialogues import dialogue, into, out


def test_a_program_that_wrote_nothing_shows_nothing() -> None:
    for judge in (judge_stream, judge_messages, judge_answers, judge_paths):
        verdict = judge({"s": Dialogue()}, outgoing=False)
        assert verdict is not None
        assert verdict.outcome == "not shown"


def test_a_session_id_of_the_wrong_type_is_compared_as_any_other() -> None:
    new = out(id=1, method="session/new", params={})
    talk = dialogue(new, into(id=1, result={"sessionId": []}), into(method="a", params={"sessionId": []}))
    assert judge_sessions({"s": talk}, outgoing=False) is None
    talk = dialogue(new, into(id=1, result={"sessionId": "s"}), into(method="a", params={"sessionId": {}}))
    with pytest.raises(Fault, match=r"the session \{\} was never opened"):
        judge_sessions({"s": talk}, outgoing=False)


def test_too_much_output_is_a_fault_of_the_stream() -> None:
    with pytest.raises(Fault, match="--output-limit"):
        judge_stream({"s": dialogue(into(method="a"), ending="overflow")}, outgoing=False)


def test_the_kits_own_bad_line_is_not_a_fault_of_the_program() -> None:
    talk = dialogue(Line(True, b"no JSON"), into(id=None, error={"code": -32700, "message": "parse"}))
    assert judge_stream({"s": talk}, outgoing=False) is None
    assert judge_answers({"s": talk}, outgoing=False) is None


def test_a_result_for_an_unknown_extension_shows_nothing_but_for_an_unknown_method_it_is_a_fault() -> None:
    extension = dialogue(out(id=1, method=UNKNOWN_EXTENSION), into(id=1, result={}))
    verdict = judge_not_found({"s": extension}, "s", UNKNOWN_EXTENSION, outgoing=False)
    assert verdict is not None
    assert verdict.outcome == "not shown"
    with pytest.raises(Fault, match="a result instead of -32601"):
        judge_not_found({"s": dialogue(out(id=1, method=UNKNOWN), into(id=1, result={}))}, "s", UNKNOWN, outgoing=False)


def test_a_notification_needs_an_answered_request_after_it() -> None:
    sent = out(method=UNKNOWN)
    assert (
        judge_not_answered({"s": dialogue(sent, out(id=1, method="a"), into(id=1, result=1))}, "s", outgoing=False)
        is None
    )
    with pytest.raises(Fault, match="no response: the time was over"):
        judge_not_answered({"s": dialogue(sent, out(id=1, method="a"), ending="timeout")}, "s", outgoing=False)
