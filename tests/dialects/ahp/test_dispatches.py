"""Dispatches of clients: those that fit, and those that are refused."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.dialects.ahp import dispatches
from acp_gateway.dialects.ahp.dispatches import Answer, Choose, Refusal, Situation, decide
from acp_gateway.dialects.ahp.options import read_options
from tests.dialects.ahp.folding import Scene
from tests.dialects.ahp.test_from_acp import FORM, any_steps, follow, permission
from tests.dialects.ahp.test_options import MODES, option
from tests.kit.updates import said

HELLO = {"text": "hello", "origin": {"kind": "user"}, "model": {"id": "big"}}
BEGIN = {"type": "chat/turnStarted", "turnId": "t1", "startedAt": "2026-11-28T10:00:00.000Z", "message": HELLO}
STOP = {"type": "chat/turnCancelled", "turnId": "m1", "duration": 1}
CONFIRM = {"type": "chat/toolCallConfirmed", "turnId": "m1", "toolCallId": "c1", "approved": True}
ANSWERS = {"branch": {"state": "submitted", "value": {"kind": "selected", "value": "main"}}}
COMPLETE = {"type": "chat/inputCompleted", "requestId": "q", "response": "accept", "answers": ANSWERS}
WAIT = {"type": "chat/pendingMessageSet", "kind": "steering", "id": "w1", "message": HELLO}
OPTIONS = read_options({"modes": json.dumps(MODES).encode(), "configOptions": json.dumps([option("effort")]).encode()})

MEMBERS = [
    "turnId",
    "startedAt",
    "message",
    "text",
    "origin",
    "kind",
    "toolCallId",
    "approved",
    "selectedOptionId",
    "requestId",
    "response",
    "answers",
]
MEMBERS += [
    "questionId",
    "answer",
    "id",
    "order",
    "draft",
    "title",
    "isRead",
    "isArchived",
    "config",
    "effort",
    "activeClient",
    "clientId",
    "duration",
]


def idle() -> Scene:
    scene = Scene()
    scene.say(said("before", "user", messageId="old"))
    scene.end()
    return scene


def asking(**asked: Any) -> Scene:
    """A turn with an open permission, an open form, and a message that waits."""
    scene = Scene()
    scene.say(said("hello", "user", messageId="m1"))
    scene.asked("p", "session/request_permission", {**permission(), **asked})
    scene.asked("q", "elicitation/create", {"message": "m", "requestedSchema": FORM})
    scene.mapper.queue([("w0", "later")])
    return scene


def situation(scene: Scene, **more: Any) -> Situation:
    return Situation(scene.tree, scene.mapper.needs, OPTIONS, "me", **more)


def refused(action: dict[str, Any], scene: Scene, **more: Any) -> str:
    """The reason why an action is refused; it changes nothing."""
    before = scene.snapshot()
    with pytest.raises(Refusal) as refusal:
        decide(action, situation(scene, **more))
    assert scene.snapshot() == before
    return str(refusal.value)


def test_stop_wins_over_an_approval_that_comes_right_after_it() -> None:
    scene = asking()
    assert isinstance(decide(CONFIRM, situation(scene)), Answer)
    assert decide(STOP, situation(scene)) == dispatches.Cancel("m1")
    scene.mapper.dispatched(STOP, 5000)
    assert refused(CONFIRM, scene) == "tool call is not pending confirmation"
    assert refused(STOP, scene) == "this turn is not running"
    assert refused(COMPLETE, scene) == "there is no open question of this id"


@pytest.mark.parametrize(
    ("more", "chosen"),
    [
        ({}, "yes"),
        ({"selectedOptionId": "always"}, "always"),
        ({"selectedOptionId": "yes", "confirmed": "user-action", "editedToolInput": None}, "yes"),
        ({"approved": False, "reason": "denied"}, "no"),
        ({"approved": False, "selectedOptionId": "no"}, "no"),
    ],
)
def test_an_approval_chooses_what_was_selected_or_what_holds_once(more: dict[str, Any], chosen: str) -> None:
    outcome = {"outcome": {"outcome": "selected", "optionId": chosen}}
    assert decide(CONFIRM | more, situation(asking())) == Answer(
        "p", json.dumps(outcome, separators=(",", ":")).encode()
    )


def test_nothing_is_allowed_for_good_unless_that_was_selected() -> None:
    always = asking(options=[{"optionId": "always", "name": "Always", "kind": "allow_always"}])
    assert "holds once" in refused(CONFIRM, always)
    effect = decide(CONFIRM | {"approved": False}, situation(always))
    assert effect == Answer("p", b'{"outcome":{"outcome":"cancelled"}}')


@pytest.mark.parametrize(("name", "order"), [("[]", [[]]), ("5", [5])])
def test_an_order_is_of_names_and_not_of_what_looks_like_them(name: str, order: list[Any]) -> None:
    scene = asking()
    scene.mapper.queue([(name, "later")])
    assert "each message" in refused({"type": "chat/queuedMessagesReordered", "order": order}, scene)


@pytest.mark.parametrize(
    "action",
    [
        CONFIRM | {"turnId": "other"},
        CONFIRM | {"toolCallId": "other"},
        CONFIRM | {"selectedOptionId": "gone"},
        CONFIRM | {"selectedOptionId": "no"},
        CONFIRM | {"selectedOptionId": ["yes"]},
        CONFIRM | {"approved": False, "selectedOptionId": "yes"},
        CONFIRM | {"approved": "yes"},
        CONFIRM | {"editedToolInput": "rm"},
        STOP | {"turnId": "other"},
        STOP | {"duration": None},
        BEGIN,
        BEGIN | {"turnId": "m1"},
        COMPLETE | {"requestId": "p"},
        COMPLETE | {"response": "maybe"},
        COMPLETE | {"answers": {}},
        COMPLETE | {"answers": ANSWERS | {"other": {"value": {"value": "x" * 70_000}}}},
        COMPLETE | {"answers": {"branch": {"state": "submitted", "value": {"value": "gone"}}}},
        COMPLETE | {"answers": ANSWERS | {"push": {"state": "submitted", "value": {"value": "yes"}}}},
        COMPLETE | {"answers": ANSWERS | {"push": {"state": "submitted", "value": {"value": 10**400}}}},
        {"type": "chat/inputAnswerChanged", "requestId": "q", "questionId": "gone"},
        {"type": "chat/inputAnswerChanged", "requestId": "q", "questionId": "push", "answer": {"value": "x" * 70_000}},
        WAIT | {"kind": "other"},
        WAIT | {"id": "m1"},
        WAIT | {"id": "w0"},
        WAIT | {"id": ""},
        WAIT | {"message": {"text": ""}},
        {"type": "chat/pendingMessageRemoved", "kind": "queued", "id": "gone"},
        {"type": "chat/pendingMessageRemoved", "kind": "steering", "id": "w0"},
        {"type": "chat/queuedMessagesReordered", "order": []},
        {"type": "chat/queuedMessagesReordered", "order": ["w0", 1]},
        {"type": "chat/draftChanged", "draft": {"text": "x" * 70_000}},
        {"type": "chat/draftChanged", "draft": "x"},
        {"type": "chat/truncated"},
        {"type": "chat/turnResume"},
        {"type": "chat/toolCallResultConfirmed"},
        {"type": "chat/delta", "turnId": "m1", "partId": "p", "content": "x"},
        {"type": "chat/turnComplete", "turnId": "m1", "duration": 1},
        {"type": "chat/toolCallComplete", "turnId": "m1", "toolCallId": "c1", "result": {}},
        {"type": "session/titleChanged", "title": " "},
        {"type": "session/titleChanged", "title": "x" * 300},
        {"type": "session/isReadChanged", "isRead": 1},
        {"type": "session/configChanged", "config": {}},
        {"type": "session/configChanged", "config": {"effort": "high", "isolation": "folder"}},
        {"type": "session/configChanged", "config": {"effort": "huge"}},
        {"type": "session/configChanged", "config": {"effort": "high"}, "replace": True},
        {"type": "session/activeClientSet", "activeClient": {"clientId": "another"}},
        {"type": "session/activeClientRemoved", "clientId": "another"},
        {"type": "session/inputNeededRemoved", "id": "p"},
        {"type": ["chat/delta"]},
        {},
    ],
)
def test_what_does_not_fit_is_refused(action: dict[str, Any]) -> None:
    assert refused(action, asking())


@pytest.mark.parametrize(
    ("action", "more", "words"),
    [
        (BEGIN | {"turnId": "old"}, {}, "taken already"),
        (BEGIN, {"is_busy": True}, "a turn is running"),
        (BEGIN, {"sent": ("t1",)}, "taken already"),
        (BEGIN | {"message": {"text": "", "origin": {"kind": "user"}}}, {}, "needs a text"),
        (BEGIN | {"message": HELLO | {"origin": {"kind": "agent"}}}, {}, "a user who says it"),
        (BEGIN | {"queuedMessageId": "w"}, {}, "queuedMessageId"),
        (BEGIN | {"message": HELLO | {"attachments": [{"kind": "odd", "label": "x"}]}}, {}, "can't be passed on"),
        (STOP, {}, "not running"),
        (CONFIRM, {}, "not pending"),
        ({"type": "session/titleChanged", "title": "x"}, {"is_guest": True}, "guest"),
        ({"type": "session/isArchivedChanged", "isArchived": True}, {"is_guest": True}, "guest"),
    ],
)
def test_what_does_not_fit_without_a_turn_is_refused(action: dict[str, Any], more: dict[str, Any], words: str) -> None:
    assert words in refused(action, idle(), **more)


@pytest.mark.parametrize("action", [BEGIN, STOP, CONFIRM, COMPLETE, WAIT, {"type": "chat/draftChanged"}, {}])
def test_observers_set_read_marks_and_nothing_else(action: dict[str, Any]) -> None:
    for scene in (idle(), asking()):
        assert refused(action, scene, observes=True) == "observers may only look"
    read = {"type": "session/isReadChanged", "isRead": True}
    assert decide(read, situation(idle(), observes=True)) == dispatches.Mark("isRead", is_set=True)


TEXT = {"type": "text", "text": "hello"}


@pytest.mark.parametrize(
    ("action", "scene", "effect"),
    [
        (BEGIN, idle, dispatches.Prompt("t1", [TEXT], "big")),
        (WAIT, asking, dispatches.Prompt("w1", [TEXT], "big", steers=True)),
        (WAIT | {"kind": "queued"}, idle, dispatches.Prompt("w1", [TEXT], "big")),
        (
            {"type": "chat/pendingMessageRemoved", "kind": "queued", "id": "w0"},
            asking,
            dispatches.Requeue(["w0"], removes=True),
        ),
        ({"type": "chat/queuedMessagesReordered", "order": ["w0"]}, asking, dispatches.Requeue(["w0"], removes=False)),
        ({"type": "chat/draftChanged", "draft": HELLO}, idle, dispatches.Draft(HELLO)),
        ({"type": "chat/draftChanged"}, idle, dispatches.Draft(None)),
        ({"type": "chat/inputAnswerChanged", "requestId": "q", "questionId": "push"}, asking, None),
        (COMPLETE, asking, Answer("q", b'{"action":"accept","content":{"branch":"main","push":false}}')),
        (COMPLETE | {"response": "decline"}, asking, Answer("q", b'{"action":"decline"}')),
        ({"type": "session/titleChanged", "title": " a  b "}, idle, dispatches.Rename("a b")),
        ({"type": "session/isArchivedChanged", "isArchived": True}, idle, dispatches.Mark("isArchived", is_set=True)),
        ({"type": "session/configChanged", "config": {"effort": "high"}}, idle, Choose({"effort": "high"})),
        ({"type": "session/activeClientSet", "activeClient": {"clientId": "me"}}, idle, None),
    ],
)
def test_what_fits_asks_for_what_it_says(action: dict[str, Any], scene: Any, effect: object) -> None:
    there = scene()
    if action is COMPLETE:
        action = COMPLETE | {"answers": ANSWERS | {"push": {"state": "submitted", "value": {"value": False}}}}
    assert decide(action, situation(there)) == effect


def test_what_is_attached_becomes_content() -> None:
    attached = [
        {"uri": "file:///srv/a.txt", "label": "a.txt"},
        {"uri": "file:///srv/b.txt"},
        {"contentType": "image/png", "data": "AA=="},
    ]
    effect = decide(BEGIN | {"message": HELLO | {"attachments": attached}}, situation(idle()))
    assert isinstance(effect, dispatches.Prompt)
    assert effect.blocks[1:] == [
        {"type": "resource_link", "name": "a.txt", "uri": "file:///srv/a.txt"},
        {"type": "resource_link", "name": "b.txt", "uri": "file:///srv/b.txt"},
        {"type": "image", "mimeType": "image/png", "data": "AA=="},
    ]


def test_what_was_taken_is_refused_the_second_time() -> None:
    scene = idle()
    decide(BEGIN, situation(scene))
    scene.mapper.dispatched(BEGIN, 0)
    assert "taken already" in refused(BEGIN, scene)
    scene = asking()
    assert isinstance(decide(CONFIRM, situation(scene)), Answer)
    scene.mapper.dispatched(CONFIRM | {"confirmed": "user-action"}, 0)
    assert refused(CONFIRM, scene) == "tool call is not pending confirmation"


_values = st.sampled_from(["t1", "m1", "c1", "p", "q", "w0", "me", "yes", "no", "push", "accept", "queued", "", "x"])
_any = st.recursive(
    _values | st.none() | st.booleans() | st.integers(-1, 9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_values | st.sampled_from(MEMBERS), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(dispatches._DECIDERS)), st.dictionaries(st.sampled_from(MEMBERS), _any, max_size=6))
def test_anything_is_refused_or_folded(kind: str, members: dict[str, Any]) -> None:
    scene, action = asking(), {"type": kind, **members}
    before = scene.snapshot()
    try:
        decide(action, situation(scene))
    except Refusal:
        assert scene.snapshot() == before
        return
    if kind.startswith("chat/"):
        scene.mapper.dispatched(action, 0)
    else:
        assert scene.session.apply(action)


def _step(make: Callable[[Scene], dict[str, Any]]) -> Callable[[Scene], list[dict[str, Any]]]:
    """A step in which the client dispatches something, and is told of it if it fits."""

    def step(scene: Scene) -> list[dict[str, Any]]:
        action = make(scene)
        try:
            effect = decide(action, situation(scene))
        except Refusal:
            return []
        scene.mapper.dispatched(deepcopy(action), 5000)
        queued = isinstance(effect, dispatches.Prompt) and effect.steers
        return [action, *(scene.mapper.queue_instead(action["id"]) if queued else [])]

    return step


def _open(scene: Scene) -> dict[str, Any]:
    """The turn, the call and the question of the first need."""
    key, need = next(iter(scene.mapper.needs.items()), ("", None))
    turn = scene.tree.active["id"] if scene.tree.active else ""
    return {"turnId": turn, "toolCallId": (need and need.call) or "", "requestId": key, "duration": 1}


_ANSWERS: list[dict[str, Any]] = [STOP, CONFIRM, CONFIRM | {"approved": False}, COMPLETE | {"response": "cancel"}]
_names = st.sampled_from(["t1", "t2", "m"])
_said = st.sampled_from([HELLO, {"text": "a"}, {"attachments": [{"uri": "file:///x"}]}])
_dispatched = st.one_of(
    st.builds(lambda name, said: _step(lambda _: BEGIN | {"turnId": name, "message": said}), _names, _said),
    st.builds(
        lambda name, said, kind: _step(lambda _: WAIT | {"id": name, "message": said, "kind": kind}),
        _names,
        _said,
        st.sampled_from(["queued", "steering"]),
    ),
    st.sampled_from(_ANSWERS).map(lambda action: _step(lambda scene: action | _open(scene))),
    _names.map(lambda name: lambda scene: scene.told(scene.mapper.not_sent(name, "why"))),
    _names.map(lambda name: lambda scene: scene.told(scene.mapper.not_queued(name))),
    _names.map(lambda name: lambda scene: scene.say(said("a", "user", messageId=name))),
)


@given(st.lists(any_steps | _dispatched, max_size=8))
def test_a_snapshot_and_the_actions_after_it_lead_to_the_end_with_dispatches_among_them(taken: list[Any]) -> None:
    follow(taken)
