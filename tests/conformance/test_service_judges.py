"""Judges of what clients do for their agents, where a client rarely shows it."""

from typing import Any

import pytest

from acp_conformance.dialogue import Dialogue, Fault
from acp_conformance.service_judges import (
    judge_cancel_permission,
    judge_decision,
    judge_files,
    judge_permission,
    judge_refused,
)
from tests.conformance.dialogues import dialogue, into, out

OPTIONS = [
    {"optionId": "y", "name": "Yes", "kind": "allow_once"},
    {"optionId": "n", "name": "No", "kind": "reject_once"},
]

ASK = into(id=0, method="session/request_permission", params={"options": OPTIONS})


def decided(option: str | None, **members: Any) -> Dialogue:
    outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
    return dialogue(ASK, out(id=0, result={"outcome": outcome}), **members)


def test_a_client_that_waits_for_its_user_shows_no_permission() -> None:
    verdict = judge_permission({"permission": dialogue(ASK, ending="timeout")})
    assert verdict is not None
    assert verdict.outcome == "not shown"


def test_a_client_whose_user_has_decided_has_to_answer() -> None:
    with pytest.raises(Fault, match="no response to session/request_permission"):
        judge_permission({"permission": dialogue(ASK, ending="timeout", actions=frozenset({"allow"}))})


@pytest.mark.parametrize(("option", "kind"), [("y", "reject"), ("n", "allow"), (None, "allow")])
def test_another_decision_is_a_fault_only_where_the_user_has_made_one(option: str | None, kind: str) -> None:
    verdict = judge_decision({"permission": decided(option)}, scenario="permission", kind=kind)
    assert verdict is not None
    assert verdict.outcome == "not shown"
    told = decided(option, actions=frozenset({kind}))
    with pytest.raises(Fault, match=f"the user said {kind}"):
        judge_decision({"permission": told}, scenario="permission", kind=kind)


def test_a_permission_that_was_answered_before_the_cancellation_shows_nothing() -> None:
    answered = (*decided("y").lines, out(method="session/cancel", params={"sessionId": "s"}))
    verdict = judge_cancel_permission({"permission-cancelled": dialogue(*answered)})
    assert verdict is not None
    assert verdict.outcome == "not shown"


def offering(*lines: Any, **files: bool) -> dict[str, Dialogue]:
    start = out(id=9, method="initialize", params={"clientCapabilities": {"fs": files}})
    return {"file-system": dialogue(start, *lines)}


READ = into(id=1, method="fs/read_text_file", params={"path": "/a", "line": 2, "limit": 1})


@pytest.mark.parametrize("content", ["two", "two\n"])
def test_the_last_line_of_a_part_may_lose_its_end(content: str) -> None:
    read = offering(READ, out(id=1, result={"content": content}), readTextFile=True)
    assert judge_files(read, before="one\ntwo\nthree\n") is None


def test_a_client_that_only_reads_is_judged_by_what_was_in_the_file() -> None:
    write = into(id=0, method="fs/write_text_file", params={"path": "/a", "content": "x"})
    refused = out(id=0, error={"code": -32601, "message": "no"})
    lines = (write, refused, READ, out(id=1, result={"content": "two"}))
    found = offering(*lines, readTextFile=True)
    assert judge_files(found, before="one\ntwo\nthree\n") is None
    assert judge_refused(found, scenario="file-system") is None


def test_an_error_for_what_is_offered_is_a_fault() -> None:
    found = offering(READ, out(id=1, error={"code": -32603, "message": "no"}), readTextFile=True)
    with pytest.raises(Fault, match="is offered, and was answered with an error"):
        judge_files(found, before="")
