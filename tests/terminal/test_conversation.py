"""The state of a session that a person takes part in."""

from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal.content import Option
from acp_gateway.terminal.conversation import Conversation
from acp_gateway.terminal.dialogue import (
    Asked,
    Closed,
    Decided,
    Event,
    Failed,
    Opened,
    Question,
    Queued,
    TurnEnded,
    TurnStarted,
    Updated,
    Withdrawn,
)
from acp_gateway.terminal.rendering import render
from tests.kit.updates import plain_text, said, tool

OPENED = Opened("s", (("code", "Code"), ("plan", "Plan first")), "code")


def opened(*events: Event) -> Conversation:
    conversation = Conversation()
    conversation.receive([OPENED, *events], 0)
    return conversation


def shown(conversation: Conversation) -> str:
    return "".join(plain_text(render(block)) for block in conversation.transcript.blocks)


def heard(*texts: str, kind: str = "user") -> list[Event]:
    return [Updated(said(text, kind), "") for text in texts]


def test_a_session_is_open_after_its_history() -> None:
    conversation = Conversation()
    conversation.receive(heard("hello"), 0)
    assert not conversation.is_open
    conversation.receive([OPENED], 0)
    assert conversation.is_open
    assert (conversation.mode, shown(conversation)) == ("Code", "> hello\n")


def test_the_mode_has_the_name_that_the_agent_gave_it() -> None:
    mode = {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
    assert opened(Updated(mode, "")).mode == "Plan first"
    assert opened(Updated({**mode, "currentModeId": "other"}, "")).mode == "other"


def test_a_turn_is_under_way_from_its_start_to_its_end() -> None:
    conversation = opened(TurnStarted("ann"))
    assert conversation.is_working
    conversation.receive([TurnEnded("end_turn", "")], 0)
    assert not conversation.is_working
    assert shown(conversation) == "-- the turn has ended\n"


def test_prompts_that_wait_are_told_at_each_change_until_there_is_none() -> None:
    conversation = opened()
    conversation.receive([Queued(1, (("bob", "next"),)), Queued(0, ())], 0)
    assert shown(conversation) == "-- 1 prompt waits: bob: next\n"


def test_a_prompt_is_shown_at_once_and_an_agents_repetition_of_it_is_not() -> None:
    conversation = opened()
    conversation.prompted("fix it")
    conversation.receive([TurnStarted("me"), *heard("fix", " it"), *heard("Done.", kind="agent")], 0)
    assert shown(conversation) == "> fix it\nDone.\n"


def test_what_the_user_says_elsewhere_is_shown_after_a_prompt() -> None:
    conversation = opened()
    conversation.prompted("fix it")
    conversation.receive([*heard("fix", "another"), *heard("fix it")], 0)
    assert shown(conversation) == "> fix itanotherfix it\n"
    conversation.receive([TurnEnded("end_turn", "")], 0)
    conversation.prompted("again")
    conversation.receive([TurnEnded("end_turn", ""), *heard("again")], 0)
    assert shown(conversation).endswith("> again\n-- the turn has ended\n> again\n")


def test_a_sub_agents_prompt_is_not_a_repetition() -> None:
    conversation = opened()
    conversation.prompted("fix it")
    conversation.receive([Updated(said("fix it", "user"), "child")], 0)
    assert shown(conversation) == "> fix it\n| > fix it\n"


def test_questions_come_and_go_and_their_tools_are_shown() -> None:
    question = Question(1, {"toolCallId": "t", "title": "Run make"}, (Option("a", "Allow", "allow_once"),))
    conversation = opened(Asked(question))
    assert conversation.questions.current == question
    conversation.receive([Withdrawn(1), Decided("bob", "a")], 1)
    assert conversation.questions.current is None
    assert shown(conversation) == "○ Run make\n-- bob has decided: Allow\n"


def test_the_question_that_is_shown_tells_how_many_follow() -> None:
    assert opened().question_lines() == []
    asked = [Question(number, {"toolCallId": "t"}, (Option("a", "Allow", "allow_once"),)) for number in (1, 2)]
    run = Updated(tool("t", title="Run make"), "")
    assert plain_text(opened(run, *map(Asked, asked)).question_lines()) == (
        "? May the agent do this: Run make\n  [y] Allow\n  1 more after this one\n"
    )


def test_refusals_and_the_end_of_the_session_are_notes() -> None:
    conversation = opened(Failed("session/prompt", "no"), Closed("the session was deleted"))
    assert conversation.is_over
    assert shown(conversation) == "-- refused: no\n-- the session was deleted\n"


def test_the_error_of_a_prompt_is_told_once_although_it_ends_the_turn_too() -> None:
    ended = TurnEnded("", "", "429")
    conversation = opened(TurnStarted("", True), Failed("session/prompt", "429"), ended)
    assert not conversation.is_working
    assert shown(conversation) == "-- refused: 429\n"
    conversation.receive([TurnStarted("bob", True), ended], 1)
    assert shown(conversation) == "-- refused: 429\n-- the turn has failed: 429\n"


@given(st.text("ab", min_size=1), st.lists(st.integers(1, 5)))
def test_a_repetition_is_recognized_however_it_is_cut(text: str, sizes: list[int]) -> None:
    conversation = opened()
    conversation.prompted(text)
    rest = text
    for size in sizes:
        if rest[:size]:
            conversation.receive(heard(rest[:size]), 0)
        rest = rest[size:]
    conversation.receive([Updated(tool(title="Read"), "")], 0)
    assert shown(conversation) == f"> {text}\n○ Read\n"
