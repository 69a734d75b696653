"""Questions and turns as another gateway is told of them, and the checks of what it is told."""

import json
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.gateway.push.deciding import TEXT_LENGTH, Question, TurnNotice
from acp_gateway.gateway.push.following import MAX_QUESTIONS, Follower, Turn, read_notices

NOW = 1000.0
QUESTION = Question("s", "r", "demo", "Fix it", "Run make", (("yes", "Yes", "allow_once"),), NOW - 30, attended=True)
ENDED = TurnNotice("s", "demo", "Fix it", "failed", "no more tokens", 90.0)


class Told:
    """A follower, and what it was told."""

    def __init__(self) -> None:
        self.with_content = self.is_current = True
        self.it = Follower(lambda: None, None, lambda: self.with_content, lambda: self.is_current)

    async def next(self) -> Any:
        """Return the params of a notification that comes at once; None if none does."""
        with trio.move_on_after(1):
            text = await self.it.take()
            return "again" if text is None else json.loads(text)["params"]
        return None


async def test_open_questions_are_told_at_first_and_when_they_change(autojump_clock: trio.testing.MockClock) -> None:
    told = Told()
    assert await told.next() is None
    told.it.look([], NOW)
    assert await told.next() == {"time": 1_000_000, "questions": [], "turns": []}
    told.it.look([QUESTION], NOW)
    (question,) = (await told.next())["questions"]
    assert question == {
        "sessionId": "s",
        "requestId": "r",
        "agent": "demo",
        "age": 30.0,
        "attended": True,
        "title": "Fix it",
        "asked": "Run make",
        "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}],
    }
    # Clocks are read at each look.
    told.it.look([replace(QUESTION, arrived=NOW - 30.001)], NOW + 1)
    assert await told.next() is None
    told.it.look([replace(QUESTION, attended=False)], NOW + 1)
    assert (await told.next())["questions"][0]["age"] == 31.0
    told.it.look([], NOW + 2)
    assert (await told.next())["questions"] == []


async def test_a_slow_reader_is_told_the_last_state_once(autojump_clock: trio.testing.MockClock) -> None:
    told = Told()
    told.it.turn("s", ENDED, running=False)
    told.it.turn("s", None, running=True)
    told.it.turn("t", replace(ENDED, session="t"), running=False)
    told.it.look([QUESTION], NOW)
    told.it.look([], NOW + 1)
    ended = {"agent": "demo", "title": "Fix it", "end": "failed", "words": "no more tokens", "seconds": 90.0}
    assert await told.next() == {
        "time": 1_001_000,
        "questions": [],
        "turns": [{"sessionId": "s", "running": True}, {"sessionId": "t", "running": False, **ended}],
    }
    assert await told.next() is None


async def test_what_is_told_is_bounded_and_has_no_secrets(autojump_clock: trio.testing.MockClock) -> None:
    told = Told()
    for number in range(MAX_QUESTIONS + 1):
        told.it.turn(str(number), ENDED, running=False)
    key = "ghp_" + "x" * 36
    long = replace(QUESTION, session="\ud800", title="t" * 10_000, asked=f"use {key}", options=(("y", "Y", None),) * 99)
    told.it.look([replace(long, request=str(number)) for number in range(MAX_QUESTIONS + 1)], NOW)
    text = await told.it.take()
    assert text is not None
    assert key.encode() not in text
    assert len(text) < 4 * 1024 * 1024
    notices = read_notices(text, "gpu1", NOW)
    assert [turn.session for turn in notices.turns] == [f"gpu1/{number}" for number in range(1, MAX_QUESTIONS + 1)]
    assert [one.request for one in notices.questions] == [str(number) for number in range(1, MAX_QUESTIONS + 1)]
    assert len(notices.questions[0].title or "") == TEXT_LENGTH
    assert len(notices.questions[0].options) == 8


async def test_words_are_left_out_where_notifications_have_no_content(autojump_clock: trio.testing.MockClock) -> None:
    told = Told()
    told.with_content = False
    told.it.turn("s", ENDED, running=False)
    told.it.look([QUESTION], NOW)
    told_text = json.dumps(await told.next())
    assert not any(words in told_text for words in ("Fix it", "Run make", "Yes", "tokens"))


async def test_a_connection_with_former_rights_has_to_connect_again(autojump_clock: trio.testing.MockClock) -> None:
    told = Told()
    told.is_current = False
    told.it.look([QUESTION], NOW)
    assert await told.next() == "again"


async def test_what_was_told_is_read_by_the_names_and_the_clock_of_the_reader(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told = Told()
    told.it.turn("s", ENDED, running=True)
    told.it.look([QUESTION], NOW)
    text = await told.it.take()
    assert text is not None
    notices = read_notices(text, "gpu1", 5000.0)
    at_node: dict[str, Any] = {"session": "gpu1/s", "agent": "gpu1/demo"}
    assert notices.time == 1_000_000
    assert notices.questions == [replace(QUESTION, **at_node, arrived=4970.0, machine="gpu1")]
    assert notices.turns == [Turn("gpu1/s", replace(ENDED, **at_node), running=True)]
    assert notices.questions[0].tag == "gpu1/s r"


MESSAGE = {"sessionId": "s", "requestId": "r", "agent": "demo", "age": 1, "attended": False}


@pytest.mark.parametrize(
    "message",
    [
        {"method": "other", "params": {"time": 1, "questions": []}},
        {"params": {"questions": []}},
        {"params": {"time": -1, "questions": []}},
        {"params": {"time": 1, "questions": [{}]}},
        {"params": {"time": 1, "questions": [MESSAGE] * (MAX_QUESTIONS + 1)}},
        {"params": {"time": 1, "questions": [MESSAGE | {"title": "t" * (TEXT_LENGTH + 1)}]}},
        {"params": {"time": 1, "questions": [MESSAGE | {"sessionId": "s" * 1025}]}},
        {"params": {"time": 1, "questions": [MESSAGE | {"age": -1}]}},
        {"params": {"time": 1, "questions": [], "turns": [{"sessionId": "s", "running": False, "end": "x"}]}},
        [],
        "x",
    ],
    ids=lambda it: json.dumps(it)[:60],
)
def test_what_is_not_told_as_it_should_be_is_refused(message: Any) -> None:
    text = json.dumps({"method": "_acp-gateway/notices"} | message if isinstance(message, dict) else message)
    with pytest.raises(ValueError, match=r"Invalid|Expected|missing"):
        read_notices(text.encode(), "gpu1", 0.0)


def test_sessions_whose_names_are_too_long_here_are_left_out() -> None:
    params = {"time": 1, "questions": [MESSAGE | {"sessionId": "s" * 1024}, MESSAGE | {"new": 1}]}
    params |= {"turns": [{"sessionId": "s" * 1024, "running": True}], "more": 1}
    notices = read_notices(json.dumps({"method": "_acp-gateway/notices", "params": params}).encode(), "gpu1", 0.0)
    assert [one.session for one in notices.questions] == ["gpu1/s"]
    assert notices.turns == []
