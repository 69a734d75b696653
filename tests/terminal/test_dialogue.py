"""The client of one session: messages in, events and messages out."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal.content import Option
from acp_gateway.terminal.dialogue import (
    Answered,
    Asked,
    Closed,
    Decided,
    Dialogue,
    Event,
    Failed,
    Kept,
    Opened,
    Queued,
    TurnEnded,
    TurnStarted,
    Updated,
    Withdrawn,
)
from tests.fuzz.effort import effort
from tests.kit.updates import json_values

OPTIONS = [{"optionId": "a", "name": "Allow", "kind": "allow_once"}, {"name": "without an id"}]


def receive(dialogue: Dialogue, *messages: object) -> list[Event]:
    return dialogue.receive([json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages])  # type: ignore[dict-item]


def sent(dialogue: Dialogue) -> list[dict[str, Any]]:
    messages = [json.loads(message) for message in dialogue.output]
    dialogue.output.clear()
    assert all(message.pop("jsonrpc") == "2.0" for message in messages)
    return messages


def opened(session: str = "s") -> Dialogue:
    dialogue = Dialogue(("watch", "1"), session=session)
    dialogue.start()
    receive(dialogue, {"id": 0, "result": {"protocolVersion": 1}}, {"id": 1, "result": {"sessionId": "s"}})
    receive(dialogue, {"id": 2, "result": {"sessions": []}})
    sent(dialogue)
    return dialogue


def notification(method: str, **params: object) -> dict[str, Any]:
    return {"method": method, "params": params}


def news(event: str, **members: object) -> dict[str, Any]:
    return notification("_acp-gateway/news", sessionId="s", event=event, **members)


def test_it_initializes_and_opens_a_session() -> None:
    dialogue = Dialogue(("watch", "1"), cwd="/srv")
    dialogue.start()
    (initialize,) = sent(dialogue)
    assert (initialize["method"], initialize["params"]["protocolVersion"]) == ("initialize", 1)
    assert initialize["params"]["clientCapabilities"]["_meta"] == {
        "acp-gateway": {"queue": True, "ends": True, "rules": True}
    }
    assert receive(dialogue, {"id": 0, "result": {}}) == []
    assert sent(dialogue) == [{"id": 1, "method": "session/new", "params": {"cwd": "/srv", "mcpServers": []}}]
    modes = {"currentModeId": "code", "availableModes": [{"id": "code", "name": "Code"}, {"id": "x"}, {}]}
    assert receive(dialogue, {"id": 1, "result": {"sessionId": "s", "modes": modes}}) == [
        Opened("s", (("code", "Code"), ("x", "x")), "code")
    ]
    assert dialogue.session == "s"


@pytest.fixture
def dialogue() -> Dialogue:
    return opened()


def test_updates_of_another_session_are_those_of_a_sub_agent(dialogue: Dialogue) -> None:
    update = {"sessionUpdate": "plan"}
    events = receive(dialogue, *(notification("session/update", sessionId=name, update=update) for name in ("s", "c")))
    assert events == [Updated(update, ""), Updated(update, "c")]


def test_the_history_of_a_session_that_it_joins_comes_before_it_is_open() -> None:
    dialogue = Dialogue(("watch", "1"), session="s")
    dialogue.start()
    update = notification("session/update", sessionId="s", update={})
    results = ({"id": 0, "result": {}}, {"id": 1, "result": {"sessionId": "s"}})
    assert receive(dialogue, *results, update) == [Updated({}, "")]
    assert [message["method"] for message in sent(dialogue)] == ["initialize", "session/new", "session/list"]
    assert receive(dialogue, {"id": 2, "result": {"sessions": []}}, update) == [Opened("s", (), ""), Updated({}, "")]


def test_updates_before_a_new_session_has_an_id_are_its_own() -> None:
    dialogue = Dialogue(("watch", "1"))
    assert receive(dialogue, notification("session/update", sessionId="s", update={})) == [Updated({}, "")]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (OPTIONS[:1], ["Allow", "Always allow `ls …` in /srv", "Always allow `ls …` in this session"]),
        ([OPTIONS[0], OPTIONS[0] | {"optionId": "b"}], ["Allow", "Allow"]),
        ([OPTIONS[0] | {"kind": "allow_rule"}], ["Allow"]),
    ],
)
def test_rules_that_the_gateway_offers_are_answers_that_allow_once(
    options: list[Any], named: list[str], dialogue: Dialogue
) -> None:
    meta = {"acp-gateway": {"rules": ["`ls …`", 7], "project": "/srv"}}
    params = {"sessionId": "s", "toolCall": {}, "options": options, "_meta": meta}
    (asked,) = receive(dialogue, {"id": 7, "method": "session/request_permission", "params": params})
    assert isinstance(asked, Asked)
    assert [option.name for option in asked.question.options] == named
    dialogue.answer(asked.question, asked.question.options[-1])
    (answer,) = sent(dialogue)
    assert answer["result"]["outcome"]["optionId"] == options[-1]["optionId"]
    wanted = answer["result"].get("_meta", {}).get("acp-gateway", {}).get("rule")
    assert wanted == ({"subject": "`ls …`", "for": "session"} if len(named) == 3 else None)


def test_a_permission_is_a_question_and_answered_once(dialogue: Dialogue) -> None:
    params = {"sessionId": "s", "toolCall": {"title": "Run"}, "options": OPTIONS}
    (asked,) = receive(dialogue, {"id": 7, "method": "session/request_permission", "params": params})
    assert isinstance(asked, Asked)
    assert asked.question.options == (Option("a", "Allow", "allow_once"),)
    assert sent(dialogue) == []
    dialogue.answer(asked.question, asked.question.options[0])
    dialogue.answer(asked.question, asked.question.options[0])
    assert sent(dialogue) == [{"id": 7, "result": {"outcome": {"outcome": "selected", "optionId": "a"}}}]


def test_a_withdrawn_question_is_not_answered(dialogue: Dialogue) -> None:
    (asked,) = receive(dialogue, {"id": 7, "method": "session/request_permission", "params": {"options": OPTIONS}})
    withdrawal = notification("$/cancel_request", requestId=7)
    assert receive(dialogue, withdrawal, withdrawal) == [Withdrawn(7)]
    assert isinstance(asked, Asked)
    dialogue.answer(asked.question, asked.question.options[0])
    assert sent(dialogue) == []


def test_a_form_is_a_question_that_can_be_declined(dialogue: Dialogue) -> None:
    (asked,) = receive(dialogue, {"id": 7, "method": "elicitation/create", "params": {"message": "Your name?"}})
    assert isinstance(asked, Asked)
    assert (asked.question.is_form, asked.question.update) == (True, {})
    (decline,) = asked.question.options
    dialogue.answer(asked.question, decline)
    assert sent(dialogue) == [{"id": 7, "result": {"action": "decline"}}]


FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


@pytest.mark.parametrize(
    ("params", "options"),
    [
        ({"requestedSchema": FORM}, ["Fill in", "Decline"]),
        ({"requestedSchema": {"type": "object", "properties": {}}}, ["Accept", "Decline"]),
        ({"requestedSchema": {"properties": {"name": {"type": "object"}}}}, ["Decline"]),
        ({"mode": "url", "url": "https://box.example/login"}, ["I have opened the page", "Decline"]),
        ({"mode": "url"}, ["Decline"]),
    ],
)
def test_an_elicitation_has_the_answers_that_a_terminal_can_give(params: dict[str, Any], options: list[str]) -> None:
    (asked,) = receive(
        opened(), {"id": 7, "method": "elicitation/create", "params": {"message": "Your name?", **params}}
    )
    assert isinstance(asked, Asked)
    assert [option.name for option in asked.question.options] == options


def test_a_form_is_answered_once_with_its_content(dialogue: Dialogue) -> None:
    params = {"message": "Your name?", "requestedSchema": FORM}
    (asked,) = receive(dialogue, {"id": 7, "method": "elicitation/create", "params": params})
    assert isinstance(asked, Asked)
    dialogue.fill_in(asked.question, {"name": "ann"})
    dialogue.fill_in(asked.question, {"name": "bob"})
    assert sent(dialogue) == [{"id": 7, "result": {"action": "accept", "content": {"name": "ann"}}}]


def test_a_page_that_was_opened_is_accepted_without_content(dialogue: Dialogue) -> None:
    params = {"message": "Log in", "mode": "url", "url": "https://box.example/login"}
    (asked,) = receive(dialogue, {"id": 7, "method": "elicitation/create", "params": params})
    assert isinstance(asked, Asked)
    dialogue.answer(asked.question, asked.question.options[0])
    assert sent(dialogue) == [{"id": 7, "result": {"action": "accept"}}]


def test_the_question_of_a_sub_agent_is_in_its_lane() -> None:
    params = {"sessionId": "child", "options": OPTIONS, "toolCall": {"toolCallId": "t"}}
    (asked,) = receive(opened(), {"id": 7, "method": "session/request_permission", "params": params})
    assert isinstance(asked, Asked)
    assert asked.question.lane == "child"
    assert asked.question.update == {"toolCallId": "t", "sessionUpdate": "tool_call_update"}


@pytest.mark.parametrize(
    ("method", "params"), [("fs/read_text_file", {}), ("other", {}), ("session/request_permission", {"options": []})]
)
def test_every_other_request_is_refused(method: str, params: object, dialogue: Dialogue) -> None:
    assert receive(dialogue, {"id": 3, "method": method, "params": params}) == []
    (refusal,) = sent(dialogue)
    assert (refusal["id"], refusal["error"]["code"]) == (3, -32601)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (news("turn_started", by={"identity": "ann"}), TurnStarted("ann")),
        (news("turn_started", running=True, by=None), TurnStarted("", running=True)),
        (news("turn_ended", stopReason="end_turn"), TurnEnded("end_turn", "")),
        (news("turn_ended", stopReason=None, reason="agent_ended"), TurnEnded("", "agent_ended")),
        (
            news("turn_ended", stopReason=None, error={"code": 429, "message": "try again in 32 s"}),
            TurnEnded("", "", "try again in 32 s"),
        ),
        (news("turn_ended", stopReason="refusal", past=True, time=5), TurnEnded("refusal", "", "", True, 5)),
        (news("decided", decision="a", by={"identity": "bob"}), Decided("bob", "a")),
        (news("decided", decision="timeout", by=None), Decided("", "timeout")),
        (
            news("queue", count=12, prompts=[{"identity": "ann", "text": "next"}, None]),
            Queued(12, (("ann", "next"), ("", ""))),
        ),
        (news("queue", count="?"), Queued(0, ())),
        (
            news(
                "queue",
                count=1,
                prompts=[{"identity": "ann", "text": "x", "promptId": "k", "state": "timed", "due": 7}],
            ),
            Queued(1, (("ann", "x"),), (Kept("k", "x", "timed", 7),)),
        ),
        (news("deleted"), Closed("the session was deleted")),
    ],
)
def test_news_are_events(message: dict[str, Any], event: Event) -> None:
    assert receive(opened(), message) == [event]


def test_an_end_of_a_turn_is_one_event_though_the_history_and_the_news_tell_it(dialogue: Dialogue) -> None:
    past = news("turn_ended", stopReason=None, reason="gateway_restarted", past=True, time=None)
    again = news("turn_ended", stopReason=None, reason="gateway_restarted")
    assert len(receive(dialogue, past, again)) == 1
    assert len(receive(dialogue, news("turn_started", by=None), again)) == 2
    assert len(receive(dialogue, notification("session/update", sessionId="s", update={}), again)) == 2


def test_news_of_other_sessions_and_kinds_are_left_out() -> None:
    other = {"method": "_acp-gateway/news", "params": {"sessionId": "c", "event": "closed"}}
    assert receive(opened(), other, news("attached", by={}), notification("other")) == []


def test_prompts_are_counted_until_they_are_answered(dialogue: Dialogue) -> None:
    dialogue.prompt("a\ud800")
    dialogue.prompt("b")
    first, second = sent(dialogue)
    assert first["params"] == {"sessionId": "s", "prompt": [{"type": "text", "text": "a\ud800"}]}
    assert dialogue.prompts == 2
    assert receive(dialogue, {"id": first["id"], "result": {"stopReason": "end_turn"}}) == [Answered("end_turn")]
    failed = {"id": second["id"], "error": {"code": -32603, "message": "no more tokens"}}
    assert receive(dialogue, failed, failed) == [
        Failed("session/prompt", "no more tokens", -32603),
        Failed("", "no more tokens", -32603),
    ]
    assert dialogue.prompts == 0


def test_a_prompt_that_the_agent_never_had_is_told_apart(dialogue: Dialogue) -> None:
    dialogue.prompt("a")
    (prompt,) = sent(dialogue)
    result = {"stopReason": "cancelled", "_meta": {"acp-gateway": {"notSent": True}}}
    assert receive(dialogue, {"id": prompt["id"], "result": result}) == [Answered("cancelled", was_sent=False)]


def test_a_client_that_answers_no_questions_says_so() -> None:
    dialogue = Dialogue(("prompt", "1"), decides=False)
    dialogue.start()
    (initialize,) = sent(dialogue)
    assert initialize["params"]["clientCapabilities"]["_meta"]["acp-gateway"]["decides"] is False


def test_cancel_and_modes_name_the_session(dialogue: Dialogue) -> None:
    dialogue.cancel()
    dialogue.set_mode("plan")
    assert sent(dialogue) == [
        {"method": "session/cancel", "params": {"sessionId": "s"}},
        {"id": 3, "method": "session/set_mode", "params": {"sessionId": "s", "modeId": "plan"}},
    ]


METHODS = st.sampled_from(["session/update", "session/request_permission", "$/cancel_request", "_acp-gateway/news"])
MEMBERS = st.sampled_from(["id", "method", "params", "result", "error", "sessionId", "update", "options", "toolCall"])


@given(st.lists(st.dictionaries(MEMBERS, json_values | METHODS | st.integers(0, 2)), max_size=6))
@effort(30)
def test_messages_of_any_kind_raise_nothing_and_what_is_sent_is_utf_8(messages: list[dict[str, Any]]) -> None:
    dialogue = Dialogue(("watch", "1"))
    dialogue.start()
    receive(dialogue, *messages)
    for message in dialogue.output:
        json.loads(message.decode())


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"1" * 5000, b'{"method":3}'])
def test_what_is_not_a_message_is_dropped(text: bytes) -> None:
    assert opened().receive([text]) == []
