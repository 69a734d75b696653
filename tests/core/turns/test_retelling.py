"""Prompts and texts that are alike, where an agent tells a history again or says something new."""

from collections.abc import Sequence
from typing import Any

import pytest

from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.retelling import Retelling
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message

USER, AGENT = "user_message_chunk", "agent_message_chunk"


def update(kind: str, text: str, session_id: str = "s", **members: Any) -> Message:
    """Compose an update with a text, or about a tool call of this id."""
    told = {"toolCallId": text} if "tool" in kind else {"content": {"type": "text", "text": text}}
    params = {"sessionId": session_id, "update": {"sessionUpdate": kind, **told, **members}}
    return jsonrpc.parse(jsonrpc.notification("session/update", params))


def retelling_of(*turns: Sequence[Message]) -> Retelling:
    """Return the comparison with a history of these turns."""
    journal = Journal(10**8, "e")
    for turn in turns:
        for it in turn:
            journal.append(it.text)
        journal.turn_ended()
    return Retelling("s", journal)


def test_a_text_of_a_prompt_is_not_taken_for_a_later_prompt_that_is_equal() -> None:
    turns = [
        [update(USER, "in a.py:"), update(USER, "go on"), update(AGENT, "One.")],
        [update(USER, "go on"), update(AGENT, "Two.")],
    ]
    retelling = retelling_of(*turns)
    assert all(retelling.repeats(it) for turn in turns for it in turn)
    assert not retelling.goes_on


@pytest.mark.parametrize(
    "said",
    [
        update(AGENT, "I"),
        update(AGENT, "", content={"type": "image", "data": "iVBORw0KGgo="}),
        update("tool_call", "1"),
        update("tool_call_update", "1"),
        update("_acp-gateway/original", ""),
    ],
)
def test_what_an_agent_says_without_a_prompt_is_new_though_its_first_answer_began_like_that(said: Message) -> None:
    turn = [update(USER, "list the files"), update(AGENT, "I will look."), update("tool_call", "1")]
    assert not retelling_of(turn).repeats(said)


def test_a_last_prompt_without_a_text_is_told_again_once() -> None:
    picture = update(USER, "", content={"type": "image", "data": "iVBORw0KGgo="})
    retelling = retelling_of([picture])
    assert retelling.repeats(picture)
    assert not retelling.goes_on


def test_a_prompt_with_another_id_goes_beyond_a_last_one_without_an_answer() -> None:
    retelling = retelling_of([update(USER, "stop")])
    assert not retelling.goes_beyond(update(USER, "st", messageId="1"))
    assert not retelling.goes_beyond(update(USER, "op", messageId="1"))
    assert retelling.goes_beyond(update(USER, "and now?", messageId="2"))


def test_what_an_agent_says_after_a_last_prompt_without_an_answer_is_new_where_the_beginning_is_unknown() -> None:
    journal = Journal(10**8, "e")
    journal.begin_truncated()
    journal.append(update(USER, "go on").text)
    retelling = Retelling("s", journal)
    assert retelling.repeats(update(USER, "list the files"))
    assert retelling.repeats(update(AGENT, "There is one file."))
    assert retelling.repeats(update(USER, "go on"))
    assert not retelling.repeats(update(AGENT, "By the way:"))
    assert not retelling.goes_on


def test_tool_calls_whose_id_is_not_a_string_are_told_apart() -> None:
    calls = [update("tool_call", "", toolCallId=number) for number in (1, 2, 3)]
    retelling = retelling_of([update(USER, "work"), *calls[:2]])
    assert [retelling.repeats(it) for it in (update(USER, "work"), *calls)] == [True, True, True, False]


def test_a_turn_is_read_once_for_all_its_sub_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"child-{number}" for number in range(100)]
    turn = [update(USER, "work"), *(update(AGENT, "Done.", name) for name in names)]
    retelling, read, parse = retelling_of(turn), [], jsonrpc.parse

    def count(text: bytes) -> Message:
        read.append(text)
        return parse(text)

    monkeypatch.setattr(jsonrpc, "parse", count)
    assert all(retelling.repeats(it) for it in turn)
    assert len(read) < 4 * len(turn)
