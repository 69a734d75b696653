"""An agent's error is reduced to a reason that can be shown elsewhere."""

import json
from typing import Any

import pytest

from acp_gateway.protocol.reasons import MAX_ERROR_SIZE, MAX_REASON_LENGTH, in_one_line, reason_of


def refusal(**error: Any) -> bytes:
    return json.dumps({"id": 1, "error": {"code": -32603, **error}}).encode()


def test_the_message_of_an_error_is_the_reason() -> None:
    assert reason_of(refusal(message="no such file")) == "no such file"


@pytest.mark.parametrize(
    "data", ["no sessions found", {"details": "no sessions found"}, {"message": "no sessions found"}]
)
def test_what_an_agent_says_in_data_belongs_to_it(data: Any) -> None:
    assert reason_of(refusal(message="Internal error", data=data)) == "Internal error: no sessions found"


def test_what_is_said_twice_is_told_once() -> None:
    assert reason_of(refusal(message="no", data={"details": "no"})) == "no"


@pytest.mark.parametrize("error", [{}, {"message": " "}, {"message": 7, "data": [1]}])
def test_an_error_may_say_nothing(error: dict[str, Any]) -> None:
    assert reason_of(refusal(**error)) == "it said nothing"


def test_secrets_are_left_out() -> None:
    assert "sk-" not in reason_of(refusal(message="wrong key sk-abcdefghijklmnopqrstuvwx"))


def test_a_secret_at_the_cut_is_left_out_as_well() -> None:
    assert "sk-" not in in_one_line("x" * (MAX_REASON_LENGTH - 8) + " sk-abcdefghijklmnopqrstuvwx")


def test_it_stays_in_one_line_and_sends_nothing_to_a_terminal() -> None:
    line = reason_of(refusal(message="a\nb\x1b[2J\u202ec\ud800"))
    assert line == "a b\\x1b[2J\\u202ec\\ud800"
    assert line.isprintable()


def test_it_is_cut() -> None:
    assert len(reason_of(refusal(message="x" * 10_000))) == MAX_REASON_LENGTH + 2


def test_a_huge_error_is_not_read() -> None:
    text = refusal(message="x" * MAX_ERROR_SIZE)
    assert reason_of(text) == f"it said {len(text)} bytes"
