"""Tool calls that a turn has left open: they have failed, for all who see the session, once."""

import json
from typing import Any

import pytest

from acp_gateway.core.turns.open_calls import MAX_ENDED, ends_of_calls
from acp_gateway.protocol.text.pairs import Pair, text_of, texts_of
from tests.core.test_same_version import asks, opened, told
from tests.core.turns.test_cut_turns import Gateways, begins
from tests.kit.scene import Party, encode, opened_scene


def called(call: str, status: str | None = None, kind: str = "tool_call", session_id: str = "s") -> dict[str, Any]:
    """Params of an update of a tool call."""
    said = {} if status is None else {"status": status}
    return {"sessionId": session_id, "update": {"sessionUpdate": kind, "toolCallId": call, **said}}


def changed(call: str, status: str | None = None) -> dict[str, Any]:
    return called(call, status, "tool_call_update")


def failed(heard: list[Any]) -> list[str]:
    """Ids of the calls that messages tell to have failed."""
    updates = [it["params"]["update"] for it in heard if it.get("method") == "session/update"]
    return [it["toolCallId"] for it in updates if it.get("status") == "failed"]


@pytest.mark.parametrize(
    ("history", "open_calls"),
    [
        ([called("a"), called("b", "pending"), called("c", "in_progress")], ["a", "b", "c"]),
        ([called("a"), changed("a", "in_progress"), changed("a"), changed("a", "completed")], []),
        ([called("a", "in_progress"), changed("a", "failed"), called("b", "completed")], []),
        ([called("a"), changed("a", "completed"), changed("a")], []),
        ([changed("a", "in_progress"), changed("b")], ["a"]),
        ([called("a"), called("a", session_id="sub"), changed("a", "completed")], ["a"]),
        ([called("a"), {**changed("a", "completed"), "x": "\ud83d"}, {**called("b"), "x": "\ud83d"}], ["b"]),
        ([called("a", "cancelled"), {"sessionId": "s", "update": {"sessionUpdate": "tool_call", "toolCallId": 7}}], []),
        ([{**called("a"), "x": "\ud83d"}, changed("a", "completed"), {**called("b"), "y": {"\ud83d": 1}}], ["b"]),
        ([called(str(number)) for number in range(MAX_ENDED + 2)], [str(number) for number in range(2, MAX_ENDED + 2)]),
    ],
)
def test_calls_without_an_end_are_those_that_work_or_wait(history: list[Any], open_calls: list[str]) -> None:
    texts = [b"odd tool_call", *(encode(method="session/update", params=params) for params in history)]
    found = texts_of(ends_of_calls(texts))
    assert [json.loads(text)["params"]["update"]["toolCallId"] for text in found] == open_calls
    assert not {*ends_of_calls([*texts, *found])} & {*found}
    assert ends_of_calls(texts, cancelled=True) == found


def tells(agent: Party, *updates: dict[str, Any]) -> None:
    for params in updates:
        agent.send(method="session/update", params=params)


@pytest.mark.parametrize(("reason", "ended"), [("cancelled", ["a"]), ("end_turn", [])])
def test_a_call_that_a_cancelled_turn_has_left_open_has_failed_before_the_response(
    reason: str, ended: list[str]
) -> None:
    scene, ann = opened_scene()
    bob = scene.join_session("bob")
    ann.prompt()
    asked = scene.agent.takes("session/prompt")
    tells(scene.agent, called("a"), called("b", "in_progress"), changed("b", "completed"))
    for peer in (ann, bob):
        peer.heard()
    scene.agent.answer(asked, stopReason=reason)
    heard = ann.heard()
    assert "result" in heard[-1]
    assert failed(heard) == failed(bob.heard()) == failed(scene.join("cem").load()) == ended
    scene.lose_agent()
    assert failed(ann.heard()) == []


def test_a_call_that_was_open_when_the_agent_ended_has_failed() -> None:
    scene, ann = opened_scene(agentCapabilities={"loadSession": True})
    ann.prompt()
    tells(scene.agent, called("a", session_id="s"))
    ann.heard()
    scene.lose_agent()
    update, answer = ann.heard()
    assert (failed([update]), answer["error"]["message"]) == (["a"], "the agent ended")


@pytest.mark.parametrize("killed", [True, False])
def test_a_call_that_a_restart_has_cut_off_has_failed_for_each_client_that_returns_once(*, killed: bool) -> None:
    gateways = Gateways()
    before, own = begins(gateways)
    tells(gateways.scene.agent, called("a"), called("b"))
    (ann,) = gateways.scene.peers.values()
    seen = ann.seen["s"]
    gateways.restart(killed=killed)
    for place in (seen, before):
        again = gateways.comes_back("ann", "first", place, own)
        assert failed(again.heard()) == ["a", "b"]
    gateways.restart(killed=killed)
    assert failed(gateways.comes_back("ann", "first", again.seen["s"], own).heard()) == []


def test_an_agent_of_version_2_has_the_word_cancelled() -> None:
    scene, (ann,) = opened("ann")
    asked = asks(scene, ann)
    scene.agent.send(id=asked["id"], result={"messageId": "u"})
    scene.agent.say(told("state_update", state="running"))
    scene.agent.say(told("tool_call_update", toolCallId="t", title="T", status="in_progress"))
    scene.agent.say(told("state_update", state="idle", stopReason="cancelled"))
    ends = [entry for entry in scene.session().journal.replay() if b'"failed"' in text_of(entry)]
    assert [type(entry) for entry in ends] == [Pair]
    updates = [it["params"]["update"] for it in ann.heard() if it.get("method") == "session/update"]
    assert [it["status"] for it in updates if "status" in it] == ["in_progress", "cancelled"]
