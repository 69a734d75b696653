"""Judges of agents, where time decides or programs rarely show it."""

from typing import Any

import pytest

from acp_conformance.agent_judges import (
    judge_blocks,
    judge_cancelled,
    judge_files,
    judge_initialize,
    judge_not_offered,
    judge_version,
)
from acp_conformance.dialogue import Dialogue, Fault
from tests.conformance.dialogues import dialogue, into, out

PROMPT: dict[str, Any] = {"method": "session/prompt", "params": {"sessionId": "s", "prompt": []}}
CANCEL: dict[str, Any] = {"method": "session/cancel", "params": {"sessionId": "s"}}


def cancelled_after(seconds: float, reason: str) -> Dialogue:
    return dialogue(out(id=2, **PROMPT), out(1.0, **CANCEL), into(1.0 + seconds, id=2, result={"stopReason": reason}))


def test_a_turn_that_ends_as_usual_soon_after_its_cancellation_shows_nothing() -> None:
    verdict = judge_cancelled({"cancellation": cancelled_after(0.5, "end_turn")}, scenario="cancellation")
    assert verdict is not None
    assert verdict.outcome == "not shown"


def test_a_turn_that_ends_as_usual_long_after_its_cancellation_has_ignored_it() -> None:
    with pytest.raises(Fault, match="'end_turn'"):
        judge_cancelled({"cancellation": cancelled_after(5.0, "end_turn")}, scenario="cancellation")


def test_a_cancelled_turn_may_take_its_time() -> None:
    assert judge_cancelled({"cancellation": cancelled_after(5.0, "cancelled")}, scenario="cancellation") is None


def test_a_turn_without_a_response_after_its_cancellation_is_a_fault() -> None:
    talk = dialogue(out(id=2, **PROMPT), out(**CANCEL), ending="timeout")
    with pytest.raises(Fault, match="no response to session/prompt: the time was over"):
        judge_cancelled({"cancellation": talk}, scenario="cancellation")


def test_files_may_be_used_where_they_are_offered() -> None:
    read = into(id=1, method="fs/read_text_file", params={"sessionId": "s", "path": "/a"})
    talk = {"file-system": dialogue(read)}
    assert judge_not_offered(talk, family="fs/", offered="file-system") is None
    assert judge_files(talk) is None


@pytest.mark.parametrize("line", [0, -1, "1", True])
def test_lines_of_a_file_are_numbers_from_1_on(line: object) -> None:
    params = {"sessionId": "s", "path": "/a", "line": line}
    with pytest.raises(Fault, match="number from 1 on"):
        judge_files({"file-system": dialogue(into(id=1, method="fs/read_text_file", params=params))})


def test_an_agent_that_ended_at_once_has_a_fault_with_its_exit_code() -> None:
    talk = dialogue(out(id=0, method="initialize"), ending="ended", exit_code=3, stderr="a\nno key\n")
    with pytest.raises(Fault, match="exit code 3; stderr: no key"):
        judge_version({"initialize": talk}, scenario="initialize", asked=1)


def prompt_of(*kinds: str) -> dict[str, Any]:
    return {"method": "session/prompt", "params": {"prompt": [{"type": kind} for kind in kinds]}}


def test_a_prompt_is_judged_by_the_one_kind_of_block_that_it_has_besides_text() -> None:
    refused: dict[str, Any] = {"error": {"code": -32603, "message": "no"}}
    talk = dialogue(
        out(id=1, **prompt_of("text")),
        into(id=1, result={}),
        out(id=2, **prompt_of("text", "resource")),
        into(id=2, **refused),
    )
    assert judge_blocks({"blocks": talk}, kind="text", wanted=lambda kind: kind == "text") is None
    with pytest.raises(Fault, match="a prompt with embeddedContext was refused"):
        judge_blocks({"blocks": talk}, kind="embeddedContext", wanted=lambda kind: kind == "resource")


def test_an_agent_that_was_not_asked_to_initialize_shows_nothing() -> None:
    verdict = judge_initialize({})
    assert verdict is not None
    assert verdict.outcome == "not shown"
