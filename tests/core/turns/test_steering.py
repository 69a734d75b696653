"""Steering: what becomes of text for the turn that runs, for its sender, the others, the history and the queue."""

import json
from typing import Any

import pytest

from acp_gateway.core.sessions.session import Role
from acp_gateway.core.turns.queue import QueueChange
from acp_gateway.core.turns.steering import CANNOT
from acp_gateway.protocol.not_sent import CANCELLED
from tests.core.test_same_version import NEW, asks
from tests.core.test_same_version import opened as opened_new
from tests.core.test_translated_clients import join_new
from tests.kit.scene import Peer, Scene, make_policy, news_params

STEERS: dict[str, Any] = {"_meta": {"steering": {"supported": True}}}
WHEN_IDLE = {"steering": {"idleBehavior": "promptRequired"}}
NO_TURN_RUNS = {"outcome": "promptRequired", "reason": "noRunningTurn"}

TAKES_FURTHER_PROMPTS: dict[str, Any] = {"loadSession": True, "_meta": {"claudeCode": {"promptQueueing": True}}}


def text(said: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": said}]


def opened(*, runs: bool = True, **welcome: Any) -> tuple[Scene, Peer, Peer]:
    """Two controllers of the session `s`, in which a turn of the first one runs."""
    scene = Scene(**(welcome or STEERS))
    ann = scene.join("ann")
    ann.new_session()
    bob = scene.join_session("bob", **news_params())
    if runs:
        ann.prompt("first")
    ann.heard()
    bob.heard()
    return scene, ann, bob


def steer(peer: Peer, said: str = "left", **params: Any) -> int:
    return peer.request("_session/steering", sessionId="s", prompt=text(said), **params)


def said(messages: list[Any]) -> list[str]:
    """Return the texts of prompts that a client was shown."""
    updates = [it["params"]["update"] for it in messages if it.get("method") == "session/update"]
    return [it["content"]["text"] for it in updates if it["sessionUpdate"] == "user_message_chunk"]


def answers(peer: Peer) -> list[tuple[int, Any]]:
    return [(it["id"], it.get("result", "error" in it)) for it in peer.heard() if "method" not in it]


def change(scene: Scene, peer: Peer, action: Any = "steer", place: int = 0) -> str | None:
    """Change a prompt that waits."""
    request = scene.session().queue[place]
    assert request.queued is not None
    why = scene.multiplexer.change_queue(peer.client, scene.session(), QueueChange(request.queued.key, action))
    scene.deliver()
    return why


def queue_of(scene: Scene) -> list[str]:
    return [it.queued.text for it in scene.session().queue if it.queued is not None]


# A client's own request


@pytest.mark.parametrize(
    ("result", "is_taken"),
    [
        ({"outcome": "injected"}, True),
        ({"outcome": "startedNewTurn"}, True),
        ({"outcome": "failed"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_steer_is_shown_to_the_others_and_kept_once_the_agent_has_taken_it(result: Any, is_taken: bool) -> None:
    scene, ann, bob = opened()
    asked = scene.agent.takes("session/prompt")
    own = steer(ann, _meta={"own": 1})
    steered = scene.agent.takes("_session/steering")
    assert steered["params"] == {"sessionId": "s", "prompt": text("left"), "_meta": {"own": 1, **WHEN_IDLE}}
    assert bob.heard() == []
    if result is None:
        scene.agent.send(id=steered["id"], error={"code": -32602, "message": "no"})
    else:
        scene.agent.answer(steered, **result)
    assert said(bob.heard()) == (["left"] if is_taken else [])
    assert answers(ann) == [(own, True if result is None else result)]
    scene.agent.answer(asked, stopReason="end_turn")
    assert said(scene.join("late").load()) == ["first", *(["left"] if is_taken else [])]


def test_what_a_client_injects_itself_is_shown_and_kept_too() -> None:
    scene, ann, bob = opened()
    scene.agent.heard()
    own = ann.request("session/inject", sessionId="s", content=text("left"), mode="steer")
    asked = scene.agent.takes("session/inject")
    assert asked["params"] == {"sessionId": "s", "content": text("left"), "mode": "steer"}
    scene.agent.answer(asked, messageId="m")
    assert (said(bob.heard()), answers(ann)) == (["left"], [(own, {"messageId": "m"})])
    assert said(scene.join("late").load()) == ["first", "left"]


def test_an_agent_that_repeats_a_steer_is_not_shown_twice() -> None:
    scene, ann, bob = opened()
    scene.agent.heard()
    steer(ann)
    scene.agent.answers("_session/steering", outcome="injected")
    scene.agent.state("user_message_chunk", content=text("left")[0])
    assert said(bob.heard()) == ["left"]


def test_a_steer_without_a_turn_begins_one_as_a_prompt_does() -> None:
    scene, ann, bob = opened(runs=False)
    own = steer(ann, _meta={"steering": {"idleBehavior": "other"}})
    prompt = scene.agent.takes("session/prompt")
    assert prompt["params"]["prompt"] == text("left")
    assert answers(ann) == [(own, {"outcome": "startedNewTurn"})]
    assert [it["params"].get("event") for it in bob.heard()] == [None, "turn_started"]
    waits = bob.prompt("second")
    assert scene.agent.heard() == []
    scene.agent.answer(prompt, stopReason="end_turn")
    assert answers(ann) == []
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert answers(bob) == [(waits, {"stopReason": "end_turn"})]
    assert [it.details["stopReason"] for it in scene.events] == ["end_turn", "end_turn"]
    assert ann.client.waiting_size == bob.client.waiting_size == 0


def test_who_wants_to_prompt_instead_is_told_that_no_turn_runs() -> None:
    scene, ann, bob = opened(runs=False)
    own = steer(ann, _meta=WHEN_IDLE)
    assert answers(ann) == [(own, NO_TURN_RUNS)]
    assert (scene.agent.heard(), bob.heard()) == ([], [])


@pytest.mark.parametrize("wants_to", [False, True])
def test_a_steer_that_comes_after_the_end_of_its_turn_becomes_a_prompt_of_its_own(wants_to: bool) -> None:
    scene, ann, bob = opened()
    asked = scene.agent.takes("session/prompt")
    bob.prompt("second")
    own = steer(ann, _meta=WHEN_IDLE if wants_to else {})
    steered = scene.agent.takes("_session/steering")
    scene.agent.answer(asked, stopReason="end_turn")
    second = scene.agent.takes("session/prompt")
    ann.heard()
    scene.agent.answer(steered, **NO_TURN_RUNS)
    assert answers(ann) == ([(own, NO_TURN_RUNS)] if wants_to else [])
    assert queue_of(scene) == ([] if wants_to else ["left"])
    scene.agent.answer(second, stopReason="end_turn")
    if not wants_to:
        assert scene.agent.takes("session/prompt")["params"]["prompt"] == text("left")
        assert answers(ann) == [(own, {"outcome": "startedNewTurn"})]


@pytest.mark.parametrize("method", ["_session/steering", "session/inject"])
def test_guests_steer_their_session_and_observers_none(method: str) -> None:
    scene, _, _ = opened()
    scene.agent.heard()
    guest = scene.join_session("guest", "guest-1", only="s", guest=True)
    watcher = scene.join_session("watcher", role=Role.OBSERVER)
    stranger = scene.join("stranger", "eve")
    for peer in (guest, watcher, stranger):
        peer.heard()
        peer.request(method, sessionId="s", prompt=text("left"))
    scene.agent.takes(method)
    assert watcher.hears()["error"]["code"] == -32601
    assert stranger.hears()["error"]["code"] == -32002


def test_a_steer_has_as_many_blocks_as_a_prompt() -> None:
    ann = Scene(make_policy(max_prompt_blocks=1), **STEERS).join("ann")
    ann.new_session()
    ann.request("_session/steering", sessionId="s", prompt=text("a") * 2)
    assert "max_prompt_blocks" in ann.hears()["error"]["message"]


def test_a_client_of_version_2_is_shown_its_own_steer() -> None:
    scene, _, bob = opened()
    scene.agent.heard()
    new = join_new(scene)
    new.resume(replay=False)
    steer(new)
    scene.agent.answers("_session/steering", outcome="injected")
    assert (said(new.heard()), said(bob.heard())) == (["left"], ["left"])


# Prompts for the turn


@pytest.mark.parametrize("waits", [False, True])
def test_a_prompt_that_the_turn_has_taken_is_shown_and_answered_at_its_end(waits: bool) -> None:
    scene, ann, bob = opened()
    asked = scene.agent.takes("session/prompt")
    if waits:
        bob.prompt("next")
        own = ann.prompt("left")
        assert change(scene, ann, place=1) is None
    else:
        own = ann.request("session/prompt", sessionId="s", prompt=text("left"), _meta={"acp-gateway": {"steer": True}})
    steered = scene.agent.takes("_session/steering")
    assert steered["params"] == {"sessionId": "s", "prompt": text("left"), "_meta": WHEN_IDLE}
    assert queue_of(scene) == (["next"] if waits else [])
    assert said(bob.heard()) == []
    scene.agent.answer(steered, outcome="injected")
    assert said(bob.heard()) == ["left"]
    assert answers(ann) == []
    scene.agent.answer(asked, stopReason="max_tokens")
    assert answers(ann)[-1] == (own, {"stopReason": "max_tokens"})
    assert len([it for it in scene.events if it.name == "turn_end"]) == 1
    assert ann.client.waiting_size == 0
    assert bool(scene.session().turns) == waits


@pytest.mark.parametrize("result", [NO_TURN_RUNS, {"outcome": "failed"}, None])
@pytest.mark.parametrize("is_over", [False, True])
def test_a_prompt_that_the_turn_has_not_taken_is_the_next_one(result: Any, is_over: bool) -> None:
    scene, ann, bob = opened()
    asked = scene.agent.takes("session/prompt")
    ann.prompt("left")
    change(scene, ann)
    steered = scene.agent.takes("_session/steering")
    bob.prompt("later")
    if is_over:
        scene.agent.answer(asked, stopReason="end_turn")
        asked = scene.agent.takes("session/prompt")
        assert asked["params"]["prompt"] == text("later")
        bob.prompt("last")
    if result is None:
        scene.agent.send(id=steered["id"], error={"code": -32603, "message": "no"})
    else:
        scene.agent.answer(steered, **result)
    assert queue_of(scene) == ["left", "last" if is_over else "later"]
    scene.agent.answer(asked, stopReason="end_turn")
    assert scene.agent.takes("session/prompt")["params"]["prompt"] == text("left")


def test_a_prompt_that_was_taken_at_the_end_of_the_turn_is_answered_at_once() -> None:
    scene, ann, _ = opened()
    asked = scene.agent.takes("session/prompt")
    own = ann.prompt("left")
    change(scene, ann)
    steered = scene.agent.takes("_session/steering")
    scene.agent.answer(asked, stopReason="end_turn")
    ann.heard()
    scene.agent.answer(steered, outcome="injected")
    assert answers(ann) == [(own, {"stopReason": "end_turn"})]


@pytest.mark.parametrize("outcome", ["injected", "failed"])
def test_a_prompt_whose_client_was_dismissed_is_kept_if_taken_and_else_dropped(outcome: str) -> None:
    scene, ann, bob = opened()
    asked = scene.agent.takes("session/prompt")
    bob.prompt("left")
    change(scene, ann)
    steered = scene.agent.takes("_session/steering")
    bob.dismissed()
    scene.agent.answer(steered, outcome=outcome)
    assert said(ann.heard()) == (["left"] if outcome == "injected" else [])
    assert queue_of(scene) == []
    scene.agent.answer(asked, stopReason="end_turn")
    assert (scene.agent.heard(), scene.session().turns) == ([], {})


@pytest.mark.parametrize("method", ["session/cancel", "$/cancel_request"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_text_that_was_cancelled_while_it_was_offered_begins_no_turn(method: str, waits: bool) -> None:
    scene, _, bob = opened()
    asked = scene.agent.takes("session/prompt")
    own = bob.prompt("left") if waits else steer(bob)
    if waits:
        change(scene, bob)
    steered = scene.agent.takes("_session/steering")
    bob.send(method=method, params={"sessionId": "s", "requestId": own})
    bob.heard()
    scene.agent.heard()
    scene.agent.answer(asked, stopReason="cancelled")
    scene.agent.answer(steered, **NO_TURN_RUNS)
    assert (scene.agent.heard(), scene.session().turns, queue_of(scene)) == ([], {}, [])
    assert answers(bob) == [(own, json.loads(CANCELLED) if waits else True)]


def test_a_prompt_that_the_turn_has_taken_is_answered_when_its_session_is_deleted_before_that_ends() -> None:
    deletes: dict[str, Any] = {"sessionCapabilities": {"delete": {}}}
    scene, ann, bob = opened(agentCapabilities=deletes, **STEERS)
    asked = scene.agent.takes("session/prompt")
    own = bob.prompt("left")
    change(scene, bob)
    scene.agent.answers("_session/steering", outcome="injected")
    bob.heard()
    ann.request("session/delete", sessionId="s")
    scene.agent.answers("session/delete")
    scene.agent.answer(asked, stopReason="cancelled")
    assert answers(bob) == [(own, {"stopReason": "cancelled"})]
    assert bob.client.waiting_size == 0


def test_a_large_steer_of_a_client_that_has_gone_begins_no_turn() -> None:
    scene, _, bob = opened()
    asked = scene.agent.takes("session/prompt")
    steer(bob, "left" * 10_000)
    steered = scene.agent.takes("_session/steering")
    bob.dismissed()
    scene.agent.answer(asked, stopReason="end_turn")
    scene.agent.answer(steered, **NO_TURN_RUNS)
    assert (scene.agent.heard(), scene.session().turns) == ([], {})


def test_a_prompt_that_may_have_been_taken_is_not_called_unsent_when_the_agent_ends() -> None:
    scene, ann, _ = opened(agentCapabilities={"loadSession": True}, **STEERS)
    own = ann.prompt("left")
    change(scene, ann)
    scene.agent.heard()
    scene.lose_agent()
    errors = {it["id"]: it["error"] for it in ann.heard() if "id" in it}
    assert (errors[own]["message"], errors[own]["data"]) == ("the agent ended", {"exitCode": 1})


def test_a_prompt_waits_where_the_agent_does_not_steer_and_where_no_turn_runs_it_begins_one() -> None:
    scene, ann, _ = opened(agentCapabilities={})
    asked = scene.agent.takes("session/prompt")
    marked = {"prompt": text("left"), "_meta": {"acp-gateway": {"steer": True}}}
    ann.request("session/prompt", sessionId="s", **marked)
    assert (queue_of(scene), scene.agent.heard()) == (["left"], [])
    assert change(scene, ann) == CANNOT
    scene.agent.answer(asked, stopReason="end_turn")
    assert scene.agent.takes("session/prompt")["params"] == {"sessionId": "s", "prompt": text("left"), "_meta": {}}
    steering, ben, _ = opened(runs=False)
    ben.request("session/prompt", sessionId="s", **marked)
    steering.agent.takes("session/prompt")


def test_an_agent_of_version_2_is_offered_a_prompt_by_the_draft_and_shows_it_itself() -> None:
    scene, ann, bob = opened(agentCapabilities={"sessionCapabilities": {"inject": {"modes": ["queue", "steer"]}}})
    scene.agent.heard()
    ann.prompt("left")
    change(scene, ann)
    asked = scene.agent.takes("session/inject")
    assert asked["params"] == {"sessionId": "s", "content": text("left"), "mode": "steer"}
    bob.heard()
    scene.agent.answer(asked, messageId="m")
    scene.agent.state("user_message_chunk", messageId="m", content=text("left")[0])
    assert said(bob.heard()) == ["left"]


def test_a_prompt_that_a_turn_of_version_2_has_taken_comes_from_the_agent_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(NEW, "_meta", STEERS["_meta"])
    scene, (ann, bob) = opened_new("ann", "bob")
    asked = asks(scene, ann)
    scene.agent.answer(asked, messageId="u")
    scene.agent.state("state_update", state="running")
    bob.prompt("left")
    ann.heard(), bob.heard()
    change(scene, bob)
    scene.agent.answers("_session/steering", outcome="injected")
    assert said(ann.heard()) == []
    scene.agent.state("user_message_chunk", messageId="m", content=text("left")[0])
    assert (said(ann.heard()), said(bob.heard())) == (["left"], ["left"])
    assert len(scene.session().turns) == 2


# Nodes, and agents that take further prompts


def test_a_prompt_for_the_turn_is_passed_on_at_once_to_an_agent_that_takes_further_prompts_into_it() -> None:
    scene, ann, bob = opened(agentCapabilities=TAKES_FURTHER_PROMPTS)
    first = scene.agent.takes("session/prompt")
    own = bob.prompt("left")
    ann.prompt("next")
    change(scene, ann)
    second = scene.agent.takes("session/prompt")
    assert (second["params"]["prompt"], said(bob.heard())) == (text("left"), [])
    assert said(ann.heard()) == ["left"]
    scene.agent.answer(first, stopReason="end_turn")
    assert (scene.agent.heard(), queue_of(scene)) == ([], ["next"])
    scene.agent.answer(second, stopReason="end_turn")
    assert answers(bob)[-1] == (own, {"stopReason": "end_turn"})
    assert scene.agent.takes("session/prompt")["params"]["prompt"] == text("next")


def test_a_prompt_that_the_turn_has_taken_is_found_again_after_its_link_was_lost() -> None:
    scene, ann, _ = opened()
    asked = scene.agent.takes("session/prompt")
    phone = scene.join("phone", link="old")
    phone.load()
    own = phone.prompt("left")
    change(scene, ann)
    scene.agent.answers("_session/steering", outcome="injected")
    phone.gone()
    back = scene.join("back", link="new")
    back.comes_back(connection="old", prompts=[own])
    (resumed,) = [it for it in back.heard() if "result" in it]
    assert resumed["result"]["_meta"]["acp-gateway"]["prompts"] == [own]
    scene.agent.answer(asked, stopReason="end_turn")
    assert answers(back) == [(own, {"stopReason": "end_turn"})]


# Editors that rely on an agent that takes further prompts itself


def test_an_editor_whose_turn_runs_prompts_at_once_an_agent_that_takes_further_prompts() -> None:
    scene, ann, bob = opened(agentCapabilities=TAKES_FURTHER_PROMPTS)
    first = scene.agent.takes("session/prompt")
    scene.agent.update("begun")
    own = ann.prompt("second")
    second = scene.agent.takes("session/prompt")
    scene.agent.update("both")
    assert said(bob.heard()) == ["second"]
    # No prompt overtakes one that waits.
    others, last = bob.prompt("others"), ann.prompt("last")
    assert (scene.agent.heard(), queue_of(scene)) == ([], ["others", "last"])
    # The agent says which ends first.
    scene.agent.answer(second, stopReason="end_turn")
    assert answers(ann) == [(own, {"stopReason": "end_turn"})]
    assert scene.agent.heard() == []
    scene.agent.answer(first, stopReason="max_tokens")
    assert [result for _, result in answers(ann)] == [{"stopReason": "max_tokens"}]
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert answers(bob) == [(others, {"stopReason": "end_turn"})]
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert answers(ann) == [(last, {"stopReason": "end_turn"})]
    ends = [it.details["stopReason"] for it in scene.events if it.name == "turn_end"]
    assert ends == ["end_turn", "max_tokens", "end_turn", "end_turn"]
    told = [it["params"]["update"]["content"]["text"] for it in scene.join("late").load() if "params" in it]
    assert told == ["first", "begun", "second", "both", "others", "last"]


@pytest.mark.parametrize("who", ["another", "guest", "page", "chat"])
def test_who_has_no_turn_or_shows_the_queue_waits_though_the_agent_takes_further_prompts(who: str) -> None:
    scene, ann, bob = opened(agentCapabilities=TAKES_FURTHER_PROMPTS, runs=False)
    guest = scene.join_session("guest", "guest-1", only="s", guest=True)
    chat = scene.join("chat", clientCapabilities={"_meta": {"acp-gateway": {"queue": True}}})
    chat.load()
    peer = {"another": bob, "guest": guest, "page": ann, "chat": chat}[who]
    if who == "page":
        ann.client.via = "page"
    (chat if who == "chat" else ann).prompt("first")
    scene.agent.heard()
    peer.prompt("second")
    assert (scene.agent.heard(), queue_of(scene)) == ([], ["second"])


def test_a_cancel_ends_all_prompts_that_an_agent_has_taken() -> None:
    scene, ann, bob = opened(agentCapabilities=TAKES_FURTHER_PROMPTS)
    ann.prompt("second")
    asked = scene.agent.heard()
    waits = bob.prompt("waits")
    ann.send(method="session/cancel", params={"sessionId": "s"})
    assert scene.agent.takes("session/cancel")
    assert answers(bob) == [(waits, json.loads(CANCELLED))]
    for one in asked:
        scene.agent.answer(one, stopReason="cancelled")
    assert [result for _, result in answers(ann)] == [{"stopReason": "cancelled"}] * 2
    assert scene.agent.heard() == []
