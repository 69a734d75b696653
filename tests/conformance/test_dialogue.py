"""Recorded dialogues: kinds of lines, and responses found by id and type."""

import pytest

from acp_conformance.dialogue import Check, Dialogue, Fault, Line, Verdict, id_key, not_shown
from tests.conformance.dialogues import dialogue, into, out


def test_ids_of_different_types_have_different_keys() -> None:
    assert len({id_key(value) for value in (1, "1", 1.0, True, None, "")}) == 6


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"id":1,"method":"a"}', "request"),
        (b'{"id":null,"method":"a"}', "request"),
        (b'{"method":"a"}', "notification"),
        (b'{"id":1,"result":null}', "response"),
        (b'{"id":1}', ""),
        (b'{"method":1}', ""),
        (b"[]", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_the_kind_of_a_line(text: bytes, kind: str) -> None:
    assert Line(True, text).kind == kind


def test_a_response_belongs_to_the_request_of_the_other_side_with_its_id() -> None:
    first, second = out(id=1, method="a"), into(id=1, method="b")
    answers = into(id=1, result="to a"), out(id=1, result="to b")
    talk = dialogue(first, second, *answers, into(id=1, result="again"))
    assert [each.response for each in talk.exchanges(outgoing=True)] == [answers[0]]
    assert [each.response for each in talk.exchanges("b", outgoing=False)] == [answers[1]]


def test_a_request_whose_id_is_answered_in_another_type_has_no_response() -> None:
    talk = dialogue(out(id=1, method="a"), into(id="1", result=None))
    assert [each.response for each in talk.exchanges(outgoing=True)] == [None]


def test_the_lines_after_one_are_found_by_identity() -> None:
    first, same = out(method="a"), out(method="a")
    assert dialogue(first, same).after(first) == (same,)


def test_a_check_passes_without_a_verdict_and_fails_with_the_message_of_a_fault() -> None:
    line = into(method="x")

    def judge(dialogues: object) -> Verdict | None:
        raise Fault("bad", line, "s")

    assert Check("n", "MUST", "s", "t", lambda _: None).run({}).outcome == "passed"
    assert Check("n", "MUST", "s", "t", lambda _: not_shown("r")).run({}) == Verdict("not shown", "r")
    assert Check("n", "MUST", "s", "t", judge).run({"s": Dialogue()}) == Verdict("failed", "bad", line.text, "s")
