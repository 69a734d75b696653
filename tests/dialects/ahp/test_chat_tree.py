"""The reducer of a chat: fixtures of our own, written from the description of the protocol."""

from copy import deepcopy
from typing import Any

import pytest

from acp_gateway.dialects.ahp.chat_tree import REMEMBERED, ChatTree

ABOUT = {"resource": "ahp-chat://default/x", "title": "t", "status": 33}
HELLO = {"text": "hello", "origin": {"kind": "user"}}
AT = "2026-11-28T10:00:00.000Z"
BEGIN: dict[str, Any] = {"type": "chat/turnStarted", "turnId": "t1", "startedAt": AT, "message": HELLO}
START = {"type": "chat/toolCallStart", "turnId": "t1", "toolCallId": "c1", "toolName": "edit", "displayName": "Edit"}
OPTIONS = [{"id": "yes", "label": "Yes", "kind": "approve"}, {"id": "no", "label": "No", "kind": "deny"}]
ASK = {
    "type": "chat/toolCallReady",
    "turnId": "t1",
    "toolCallId": "c1",
    "invocationMessage": "Edit a",
    "toolInput": "{}",
    "confirmationTitle": "May I?",
    "options": OPTIONS,
}
RUN = {**ASK, "confirmed": "not-needed"}
YES: dict[str, Any] = {
    "type": "chat/toolCallConfirmed",
    "turnId": "t1",
    "toolCallId": "c1",
    "approved": True,
    "confirmed": "user-action",
    "selectedOptionId": "yes",
}
NO = {"type": "chat/toolCallConfirmed", "turnId": "t1", "toolCallId": "c1", "approved": False, "reason": "denied"}
TEXT = [{"type": "text", "text": "out"}]
CONTENT = {"type": "chat/toolCallContentChanged", "turnId": "t1", "toolCallId": "c1", "content": TEXT}
DONE = {
    "type": "chat/toolCallComplete",
    "turnId": "t1",
    "toolCallId": "c1",
    "result": {"success": True, "pastTenseMessage": "Edited"},
}
END = {"type": "chat/turnComplete", "turnId": "t1", "duration": 5}
BASE = {"toolCallId": "c1", "toolName": "edit", "displayName": "Edit"}
READY = {**BASE, "invocationMessage": "Edit a", "toolInput": "{}"}
QUESTION: dict[str, Any] = {
    "type": "chat/inputRequested",
    "turnId": "t1",
    "request": {"id": "q", "message": "?", "questions": []},
}
ANSWER = {"state": "submitted", "value": {"kind": "text", "value": "x"}}

WAITS = {"type": "chat/pendingMessageSet", "kind": "queued", "id": "m1", "message": HELLO}


def delta(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "turnId": "t1", "partId": "p1", "content": text}


def part(kind: str) -> dict[str, Any]:
    return {"type": "chat/responsePart", "turnId": "t1", "part": {"kind": kind, "id": "p1", "content": ""}}


def call(*actions: dict[str, Any]) -> Any:
    """The call after these actions."""
    return folded(BEGIN, START, *actions)["activeTurn"]["responseParts"][0]["toolCall"]


def folded(*actions: dict[str, Any]) -> dict[str, Any]:
    tree = ChatTree(ABOUT)
    for action in actions:
        assert tree.apply(deepcopy(action)), action
    return tree.snapshot()


CALLS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "streaming": ([], {**BASE, "status": "streaming"}),
    "running": ([RUN], {**READY, "status": "running", "confirmed": "not-needed"}),
    "asks": ([ASK], {**READY, "status": "pending-confirmation", "confirmationTitle": "May I?", "options": OPTIONS}),
    "asks while it runs": (
        [RUN, CONTENT, ASK],
        {**READY, "status": "pending-confirmation", "confirmationTitle": "May I?", "options": OPTIONS},
    ),
    "approved": (
        [ASK, YES],
        {**READY, "status": "running", "confirmed": "user-action", "selectedOption": OPTIONS[0]},
    ),
    "denied": ([ASK, NO], {**READY, "status": "cancelled", "reason": "denied"}),
    "content": ([RUN, CONTENT], {**READY, "status": "running", "confirmed": "not-needed", "content": TEXT}),
    "completed": (
        [ASK, YES, CONTENT, DONE],
        {
            **READY,
            "status": "completed",
            "confirmed": "user-action",
            "selectedOption": OPTIONS[0],
            "success": True,
            "pastTenseMessage": "Edited",
        },
    ),
    "completed while it asks": (
        [ASK, DONE],
        {**READY, "status": "completed", "confirmed": "not-needed", "success": True, "pastTenseMessage": "Edited"},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_tool_call(name: str) -> None:
    actions, expected = CALLS[name]
    assert call(*actions) == expected


@pytest.mark.parametrize(
    "actions",
    [
        [DONE],
        [CONTENT],
        [YES],
        [RUN, YES],
        [ASK, NO, YES],
        [ASK, NO, DONE],
        [RUN, DONE, ASK],
        [RUN, DONE, CONTENT],
        [{**RUN, "toolCallId": "c2"}],
        [{**RUN, "turnId": "t2"}],
        [ASK, {**YES, "turnId": "t2"}],
        [{**START, "turnId": "t2"}],
        [END, RUN],
        [END, END],
        [{**END, "turnId": "t2"}],
        [delta("chat/delta", "x")],
        [part("reasoning"), delta("chat/delta", "x")],
        [END, part("markdown")],
        [END, QUESTION],
        [{"type": "chat/inputCompleted", "requestId": "q", "response": "accept"}],
        [{"type": "chat/inputAnswerChanged", "requestId": "q", "questionId": "a", "answer": ANSWER}],
        [{"type": "chat/pendingMessageRemoved", "kind": "queued", "id": "m1"}],
        [WAITS, {"type": "chat/pendingMessageRemoved", "kind": "steering", "id": "m1"}],
        [{"type": "chat/queuedMessagesReordered", "order": ["m1"]}],
        [{"type": "chat/unknown"}],
    ],
)
def test_what_does_not_fit_changes_nothing(actions: list[dict[str, Any]]) -> None:
    tree = ChatTree(ABOUT)
    for action in [BEGIN, START, *actions[:-1]]:
        assert tree.apply(deepcopy(action))
    before = deepcopy(tree.snapshot())
    assert not tree.apply(actions[-1])
    assert tree.snapshot() == before


def test_texts_are_added_to_their_parts() -> None:
    found = folded(BEGIN, part("markdown"), delta("chat/delta", "a"), delta("chat/delta", "b"))
    assert found["activeTurn"]["responseParts"] == [{"kind": "markdown", "id": "p1", "content": "ab"}]
    found = folded(BEGIN, part("reasoning"), delta("chat/reasoning", "a"), END)
    assert found["turns"][0]["responseParts"] == [{"kind": "reasoning", "id": "p1", "content": "a"}]


def test_the_end_of_a_turn_cancels_what_is_open_in_it() -> None:
    usage = {"type": "chat/usage", "turnId": "t1", "usage": {"inputTokens": 1}}
    asks = {**START, "toolCallId": "c2"}
    (turn,) = folded(BEGIN, START, asks, {**ASK, "toolCallId": "c2"}, usage, {**END, "duration": -1})["turns"]
    assert turn == {
        "id": "t1",
        "startedAt": AT,
        "message": HELLO,
        "usage": {"inputTokens": 1},
        "duration": 0,
        "state": "complete",
        "responseParts": [
            {
                "kind": "toolCall",
                "toolCall": {**BASE, "status": "cancelled", "invocationMessage": "", "reason": "skipped"},
            },
            {
                "kind": "toolCall",
                "toolCall": {**READY, "toolCallId": "c2", "status": "cancelled", "reason": "skipped"},
            },
        ],
    }


@pytest.mark.parametrize(
    ("actions", "status"),
    [
        ([], 33),
        ([BEGIN], 8),
        ([BEGIN, START, ASK], 24),
        ([BEGIN, START, ASK, YES], 8),
        ([BEGIN, QUESTION], 24),
        ([BEGIN, QUESTION, {"type": "chat/inputCompleted", "requestId": "q", "response": "cancel"}], 8),
        ([BEGIN, END], 1),
        ([BEGIN, {**END, "type": "chat/turnCancelled"}], 1),
        ([BEGIN, {**END, "type": "chat/error", "error": {"errorType": "e", "message": "m"}}], 2),
    ],
)
def test_the_status_says_what_goes_on(actions: list[dict[str, Any]], status: int) -> None:
    assert folded(*actions)["status"] == status


def test_a_question_keeps_its_answers_and_the_last_word() -> None:
    typed = {"type": "chat/inputAnswerChanged", "requestId": "q", "questionId": "a", "answer": ANSWER}
    done = {"type": "chat/inputCompleted", "requestId": "q", "response": "accept", "answers": {"b": ANSWER}}
    gone = {**typed, "questionId": "c", "answer": None}
    (found,) = folded(BEGIN, QUESTION, typed, gone, done, END)["turns"][0]["responseParts"]
    request = QUESTION["request"] | {"answers": {"a": ANSWER, "b": ANSWER}}
    assert found == {"kind": "inputRequest", "request": request, "response": "accept"}


def test_messages_wait_in_their_order_until_a_turn_takes_them() -> None:
    second, third = {**WAITS, "id": "m2"}, {**WAITS, "id": "m3"}
    order = {"type": "chat/queuedMessagesReordered", "order": ["m3", "m3", "m1", "gone"]}
    names = [it["id"] for it in folded(WAITS, second, third, order)["queuedMessages"]]
    assert names == ["m3", "m1", "m2"]
    edited = folded(WAITS, {**WAITS, "message": {"text": "other"}})["queuedMessages"]
    assert edited == [{"id": "m1", "message": {"text": "other"}}]
    steering = {**WAITS, "kind": "steering"}
    assert folded(steering)["steeringMessage"] == {"id": "m1", "message": HELLO}
    for waiting in (WAITS, steering):
        left = folded(waiting, {**BEGIN, "queuedMessageId": "m1"})
        assert not left.keys() & {"queuedMessages", "steeringMessage"}
        left = folded(waiting, {"type": "chat/pendingMessageRemoved", "kind": waiting["kind"], "id": "m1"})
        assert not left.keys() & {"queuedMessages", "steeringMessage"}


def test_a_draft_is_kept_until_it_is_taken_back() -> None:
    draft = {"type": "chat/draftChanged", "draft": HELLO}
    assert folded(draft)["draft"] == HELLO
    assert "draft" not in folded(draft, {"type": "chat/draftChanged"})


def _turn(tree: ChatTree, name: str, text: str) -> None:
    for action in (BEGIN, part("markdown"), delta("chat/delta", text), END):
        tree.apply({**action, "turnId": name})


def test_five_hundred_turns_of_two_kilobytes_stay_whole() -> None:
    tree = ChatTree(ABOUT)
    for number in range(500):
        _turn(tree, f"t{number}", "x" * 2048)
    assert (len(tree.snapshot()["turns"]), tree.left_out) == (500, 0)
    assert tree.size >= 500 * 2048


def test_the_oldest_turns_go_beyond_the_bound_and_then_the_beginning_of_the_one_that_runs() -> None:
    tree = ChatTree(ABOUT, most=1000)
    for number in range(20):
        _turn(tree, f"t{number}", "x" * 90)
        assert tree.size <= 1000
    names = [turn["id"] for turn in tree.snapshot()["turns"]]
    assert names == [f"t{number}" for number in range(tree.left_out, 20)]
    tree.apply({**BEGIN, "turnId": "long"})
    for number in range(20):
        tree.apply(
            {**part("markdown"), "turnId": "long", "part": {"kind": "markdown", "id": str(number), "content": ""}}
        )
        tree.apply({**delta("chat/delta", "x" * 200), "turnId": "long", "partId": str(number)})
    assert (tree.left_out, tree.is_cut) == (20, True)
    assert tree.size <= 1200
    kept = [it["id"] for it in tree.snapshot()["activeTurn"]["responseParts"]]
    assert kept == [str(number) for number in range(20 - len(kept), 20)]


def test_what_is_answered_to_a_question_counts() -> None:
    tree = ChatTree(ABOUT)
    typed = {"type": "chat/inputAnswerChanged", "requestId": "q", "questionId": "a"}
    for action in (BEGIN, QUESTION, {**typed, "answer": {"value": "x" * 5000}}):
        assert tree.apply(deepcopy(action))
    assert 5000 < tree.size < 5100
    tree.apply({**typed, "answer": None})
    assert tree.size < 100


def test_an_outline_knows_what_runs_and_keeps_no_texts() -> None:
    tree = ChatTree(ABOUT)
    _turn(tree, "t0", "x" * 5000)
    tree.apply(BEGIN)
    tree.forget()
    for action in (START, RUN, {**CONTENT, "content": [{"type": "text", "text": "x" * 5000}]}, part("markdown")):
        assert tree.apply(action)
    for _ in range(100):
        assert tree.apply(delta("chat/delta", "x" * 100))
    assert tree.size < 1000
    known = tree.call("c1")
    assert known is not None
    assert known["status"] == "running"
    assert tree.apply({**DONE, "result": {"success": True, "content": [{"type": "text", "text": "x" * 5000}]}})
    assert tree.size < 1000
    assert tree.apply(END)
    assert tree.snapshot()["turns"] == []


def test_the_latest_turns_are_known_by_their_ids() -> None:
    tree = ChatTree(ABOUT)
    for number in range(REMEMBERED + 1):
        _turn(tree, f"t{number}", "")
    assert not tree.has_taken("t0")
    assert tree.has_taken("t1")
    assert tree.has_taken(f"t{REMEMBERED}")
