"""Messages of an agent that are left out, because they are too large: clients and agent are told."""

from typing import Any

import pytest

from acp_gateway.protocol.text.json_text import Beginning
from tests.core.test_same_version import asks, opened
from tests.kit.scene import Scene, opened_scene

WHY = "a message of 20,000,000 bytes is larger than max_message_size (16,777,216 bytes) allows"


def skip(scene: Scene, raw_id: bytes | None, method: str | None, session_id: str | None) -> None:
    scene.multiplexer.receive_skipped(Beginning(raw_id, method, session_id), WHY)
    scene.deliver()


def words(message: Any) -> str:
    update = message["params"]["update"]
    assert update["sessionUpdate"] == "agent_message_chunk"
    return str(update["content"]["text"])


@pytest.mark.parametrize("session_id", ["s", "child", None])
def test_all_clients_of_the_session_see_a_line_in_place_of_a_message_and_so_does_a_later_one(
    session_id: str | None,
) -> None:
    scene, ann = opened_scene()
    bob = scene.join_session("bob")
    ann.prompt()
    scene.agent.heard()
    bob.heard()
    skip(scene, None, "session/update", session_id)
    scene.agent.update("on")
    for peer in (ann, bob, scene.join("carol")):
        heard = peer.heard() if peer in (ann, bob) else peer.load()[1:]
        assert WHY in words(heard[0])
        assert words(heard[1]) == "on"
    assert f"left out a message of the agent: {WHY}" in scene.notes


def test_a_message_that_names_no_session_is_logged_while_several_turns_run() -> None:
    scene, ann = opened_scene()
    ann.new_session("t")
    for name in ("s", "t"):
        ann.prompt(session_id=name)
    skip(scene, None, "session/update", None)
    assert ann.heard() == []
    assert scene.notes == [f"left out a message of the agent: {WHY}"]


def test_a_request_gets_its_error_and_the_clients_are_told() -> None:
    scene, ann = opened_scene()
    skip(scene, b'"q"', "session/request_permission", "s")
    answer = scene.agent.hears()
    assert (answer["id"], answer["error"]["message"]) == ("q", WHY)
    assert answer["error"]["data"] == {"reason": "message_too_large"}
    assert WHY in words(ann.hears())


def test_a_request_of_a_client_that_was_answered_by_it_gets_an_error() -> None:
    scene, ann = opened_scene()
    own = ann.prompt()
    skip(scene, b"%d" % scene.agent.takes("session/prompt")["id"], None, None)
    answer = ann.hears()
    assert (answer["id"], answer["error"]["code"]) == (own, -32603)
    assert WHY in answer["error"]["message"]
    ann.prompt("again")
    assert scene.agent.hears()["method"] == "session/prompt"


def test_a_request_with_its_method_behind_what_is_large_is_not_taken_for_the_response_of_its_id() -> None:
    scene, ann = opened_scene()
    ann.prompt()
    asked = scene.agent.takes("session/prompt")
    skip(scene, b"%d" % asked["id"], "", "s")
    assert scene.agent.hears()["error"]["message"] == WHY
    assert WHY in words(ann.hears())
    scene.agent.answer(asked, stopReason="end_turn")
    assert "result" in ann.hears()


def test_a_response_that_names_no_request_is_told_where_the_only_turn_runs() -> None:
    scene, ann = opened_scene()
    ann.prompt()
    skip(scene, None, None, None)
    assert WHY in words(ann.hears())


def test_clients_of_version_2_are_told_in_their_version_and_the_agent_gets_its_error() -> None:
    scene, (ann, bob) = opened("ann", "bob")
    request = asks(scene, ann)
    scene.agent.answer(request, messageId="m")
    ann.heard_text(), bob.heard_text()
    skip(scene, b"7", "_vendor/ask", "s")
    for peer in (ann, bob):
        told = peer.heard()[-1]
        assert told["params"]["update"]["messageId"]
        assert WHY in words(told)
    assert scene.agent.hears()["error"]["message"] == WHY
