"""Sessions that another gateway has adopted."""

from typing import Any

import pytest

from acp_gateway.core.registry import Registry
from acp_gateway.core.sessions import Session
from tests.core.opened import LOADS, texts, the_session
from tests.core.scene import Peer, Scene, Shelf, news_params

WHERE = "the session lives on gpu2: acp-gateway connect HOST --attach gpu1/s"

CANCELLED = {"stopReason": "cancelled"}


@pytest.fixture
def scene() -> Scene:
    registry = Registry("me", Shelf(), "run", node="gpu1")
    return Scene(registry=registry, agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}}})


@pytest.fixture
def ann(scene: Scene) -> Peer:
    return scene.join("ann")


def adopt_elsewhere(scene: Scene, session: Session | None = None) -> list[Any]:
    """Another node adopts the session; return the clients that came only for it."""
    session = session or the_session(scene)
    scene.registry.set_moved(session, "gpu2")
    bound = scene.multiplexer.session_moved(session)
    scene.deliver()
    return bound


def test_a_moved_session_ends_at_its_clients_with_a_line_that_says_where_it_lives(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    assert adopt_elsewhere(scene) == []
    assert texts(ann.heard()) == [f"[acp-gateway: {WHERE}]"]
    assert not ann.client.sessions
    assert scene.multiplexer.sessions == ()


def test_the_agent_is_told_to_cancel_and_to_close_a_moved_session(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    ann.prompt()
    prompt = scene.agent.takes("session/prompt")
    adopt_elsewhere(scene)
    cancel, closing = scene.agent.heard()
    assert (cancel["method"], closing["method"]) == ("session/cancel", "session/close")
    assert cancel["params"] == closing["params"] == {"sessionId": "s"}
    ann.heard()
    scene.agent.answer(prompt, stopReason="cancelled")
    scene.agent.answer(closing)
    scene.agent.update("late")
    assert not ann.heard()
    assert not any("response" in note for note in scene.notes)


def test_a_prompt_in_a_session_that_moves_ends_with_an_error_that_names_the_node(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    prompts = [ann.prompt(), ann.prompt("and then")]
    scene.agent.takes("session/prompt")
    adopt_elsewhere(scene)
    errors = {message["id"]: message["error"] for message in ann.heard() if "error" in message}
    assert sorted(errors) == prompts
    assert all(error["message"] == WHERE and error["data"]["node"] == "gpu2" for error in errors.values())
    assert ann.client.requests == {}
    assert scene.events[-1].name == "turn_end"


def test_a_permission_in_a_session_that_moves_is_cancelled_at_the_agent(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    ann.prompt()
    scene.agent.takes("session/prompt")
    scene.agent.ask_permission(7)
    adopt_elsewhere(scene)
    answers = [message for message in scene.agent.heard() if message.get("id") == 7]
    assert [answer["result"]["outcome"] for answer in answers] == [{"outcome": "cancelled"}]
    assert len(scene.multiplexer.waiting(None)) == 0


@pytest.mark.parametrize("method", ["session/prompt", "session/load", "session/resume", "session/set_mode"])
def test_a_later_request_for_a_moved_session_is_refused_with_its_place(scene: Scene, ann: Peer, method: str) -> None:
    ann.new_session()
    adopt_elsewhere(scene)
    ann.heard()
    scene.agent.heard()
    ann.request(method, sessionId="s", cwd="/srv", mcpServers=[], prompt=[], modeId="m")
    assert ann.hears()["error"]["message"] == WHERE
    assert not scene.agent.heard()


def test_another_identity_is_not_told_where_a_moved_session_lives(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    adopt_elsewhere(scene)
    bob = scene.join("bob", "you")
    bob.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    assert "gpu2" not in str(bob.hears())


def test_clients_bound_to_a_session_that_moves_are_returned(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join("bob", only="s")
    bob.load()
    assert adopt_elsewhere(scene) == [bob.client]


def test_a_session_moves_while_it_is_opened_and_the_answer_of_the_agent_is_dropped(scene: Scene, ann: Peer) -> None:
    own = ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    load = scene.agent.takes("session/load")
    behind = scene.join("bob").request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    adopt_elsewhere(scene)
    assert ann.hears()["id"] == own
    assert [peer.hears()["id"] for peer in scene.peers.values() if peer is not ann] == [behind]
    scene.agent.heard()
    scene.agent.update("history")
    scene.agent.answer(load)
    assert scene.multiplexer.sessions == ()
    assert not ann.heard()


def test_other_sessions_of_the_process_go_on(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    ann.new_session("other")
    adopt_elsewhere(scene, next(session for session in scene.multiplexer.sessions if session.id == "s"))
    ann.heard()
    scene.agent.heard()
    ann.prompt("go on", "other")
    assert scene.agent.takes("session/prompt")["params"]["sessionId"] == "other"


def test_a_prompt_in_another_session_of_the_process_goes_on(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    ann.new_session("other")
    number = ann.prompt("go on", "other")
    prompt = scene.agent.takes("session/prompt")
    adopt_elsewhere(scene, next(session for session in scene.multiplexer.sessions if session.id == "s"))
    ann.heard()
    scene.agent.answer(prompt, stopReason="end_turn")
    assert ann.hears()["id"] == number


def test_a_session_moves_while_no_process_has_it(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    session = the_session(scene)
    scene.lose_agent()
    ann.heard()
    scene.agent.heard()
    adopt_elsewhere(scene, session)
    assert texts(ann.heard()) == [f"[acp-gateway: {WHERE}]"]
    assert not scene.agent.heard()


def test_a_session_moves_while_the_gateway_itself_opens_it_in_a_new_process(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    session = the_session(scene)
    scene.lose_agent()
    ann.heard()
    number = ann.prompt("go on")
    scene.agent.answers("initialize", **scene.welcome)
    load = scene.agent.takes("session/load")
    adopt_elsewhere(scene, session)
    errors = {message["id"]: message["error"]["message"] for message in ann.heard() if "error" in message}
    assert errors == {number: WHERE}
    scene.agent.answer(load)
    assert not ann.heard()


def test_an_agent_that_cannot_close_is_told_to_cancel_only() -> None:
    scene = Scene(registry=Registry("me", Shelf(), node="gpu1"), agentCapabilities=LOADS)
    ann = scene.join("ann")
    ann.new_session()
    ann.prompt()
    scene.agent.takes("session/prompt")
    adopt_elsewhere(scene)
    assert [message["method"] for message in scene.agent.heard()] == ["session/cancel"]


def test_subscribers_hear_that_a_session_has_moved(scene: Scene) -> None:
    ann = scene.join("ann", **news_params())
    ann.new_session()
    adopt_elsewhere(scene)
    events = [message["params"] for message in ann.heard() if message["method"].startswith("_acp-gateway")]
    assert events == [{"sessionId": "s", "event": "moved", "node": "gpu2"}]


def test_the_key_of_an_adopted_session_has_the_node_that_had_it_first() -> None:
    registry = Registry("me", node="gpu2")
    scene = Scene(registry=registry, agentCapabilities=LOADS)
    scene.join("ann").new_session()
    session = the_session(scene)
    assert registry.key_of(session) == "gpu2/s"
    session.home = "gpu1"
    assert registry.key_of(session) == "gpu1/s"


def test_a_moved_session_is_kept_as_such_once(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    session = the_session(scene)
    shelf = session.archive
    assert isinstance(shelf, Shelf)
    before = len(shelf.told)
    for _ in range(2):
        scene.registry.set_moved(session, "gpu2")
    assert shelf.told[before:] == [("keep", "s")]


def adopt_from_away(scene: Scene) -> list[Any]:
    """A node adopts the session of an agent that is elsewhere, and away; return the clients that came only for it."""
    bound = scene.multiplexer.session_left(the_session(scene), "gpu2")
    scene.deliver()
    return bound


def test_prompts_in_a_session_that_was_adopted_from_a_node_that_is_away_end_as_cancelled(
    scene: Scene, ann: Peer
) -> None:
    ann.new_session()
    prompts = [ann.prompt(), ann.prompt("and then")]
    scene.agent.takes("session/prompt")
    mode = ann.request("session/set_mode", sessionId="s", modeId="m")
    scene.agent.heard()
    assert adopt_from_away(scene) == []
    heard = ann.heard()
    assert texts(heard) == [f"[acp-gateway: {WHERE}]"]
    ended = {message["id"]: message.get("result") for message in heard if "id" in message}
    assert ended == {prompts[0]: CANCELLED, prompts[1]: CANCELLED, mode: None}
    assert ann.client.requests == {}
    assert scene.multiplexer.sessions == ()
    assert not scene.agent.heard()


def test_clients_bound_to_a_session_that_was_adopted_from_a_node_that_is_away_are_returned(
    scene: Scene, ann: Peer
) -> None:
    ann.new_session()
    bob = scene.join("bob", only="s")
    bob.load()
    assert adopt_from_away(scene) == [bob.client]


def test_a_session_of_a_node_is_named_after_the_node(ann: Peer, scene: Scene) -> None:
    ann.new_session()
    session = the_session(scene)
    assert scene.registry.key_of(session) == "gpu1/s"
    session.agent = "gpu9/memory"
    assert scene.registry.key_of(session) == "gpu9/s"


@pytest.mark.parametrize("method", ["session/fork", "session/new"])
def test_a_fork_of_a_session_that_moves_goes_on_and_so_does_what_waits_for_it(
    scene: Scene, ann: Peer, method: str
) -> None:
    ann.new_session()
    ann.new_session("other")
    own = ann.request(method, sessionId="s", cwd="/srv", mcpServers=[])
    fork = scene.agent.takes(method)
    ann.prompt(session_id="other")
    prompt = scene.agent.takes("session/prompt")
    adopt_elsewhere(scene, scene.session("s"))
    assert texts(ann.heard()) == [f"[acp-gateway: {WHERE}]"]
    scene.agent.heard()
    scene.agent.ask_permission("early", "child")
    assert not scene.agent.heard()
    scene.agent.answer(fork, sessionId="forked")
    answer, asked = ann.heard()
    assert (answer["id"], answer["result"]["sessionId"]) == (own, "forked")
    assert (asked["method"], asked["params"]["sessionId"]) == ("session/request_permission", "child")
    scene.agent.answer(prompt, stopReason="end_turn")
