"""Opening a session that another gateway has as well: what is asked there once more, and clients that leave."""

import pytest

from acp_gateway.core.sessions.far_places import FarPlace
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.turns.lost_prompts import claim_of
from acp_gateway.protocol.jsonrpc import RawId
from tests.core.scene import Peer, Scene, Shelf
from tests.core.sessions.test_far_history import LOADS, linked, loaded, mark, stored

TOLD = {"acp-gateway": {"turns": [], "ended": [], "start": 0}}


def opened_by_bob(scene: Scene) -> Scene:
    """Let bob open the session again."""
    stored(scene, FarPlace("e", "former", 0), "one")
    bob = scene.join("bob", link="b2")
    bob.comes_back(epoch="e", position=1, connection="b1")
    loaded(scene)
    asked = scene.agent.takes("session/load")
    mark(scene, s=("e", 1))
    scene.agent.answer(asked, _meta=TOLD)
    bob.heard()
    return scene


def test_work_without_a_prompt_that_goes_on_elsewhere_is_known() -> None:
    scene = linked(Registry("me", Shelf()))
    stored(scene, FarPlace("e", "former", 0), "one")
    bob = scene.join("bob", link="b2")
    bob.comes_back(epoch="e", position=1, connection="b1")
    loaded(scene)
    asked = scene.agent.takes("session/load")
    mark(scene, s=("e", 1))
    scene.agent.answer(asked, _meta={"acp-gateway": {**TOLD["acp-gateway"], "state": "running"}})
    assert scene.session().own_state == "running"


@pytest.fixture
def scene() -> Scene:
    """A scene in which bob has opened the session again first."""
    return opened_by_bob(linked(Registry("me", Shelf())))


@pytest.fixture
def ann(scene: Scene) -> Peer:
    """Another client, which has lost a prompt."""
    ann = scene.join("ann", link="a2")
    ann.comes_back(epoch="e", position=1, connection="a1", prompts=[4])
    return ann


def test_a_prompt_that_is_not_known_here_is_asked_for(scene: Scene, ann: Peer) -> None:
    claim = claim_of("me", "a1", RawId(b"4"))
    asked = scene.agent.takes("session/resume")
    assert asked["params"]["_meta"]["acp-gateway"] == {"takesOver": True, "claims": [claim], "connection": "far"}
    scene.agent.answer(asked, _meta={"acp-gateway": {"turns": [{"id": -1, "claim": claim}], "ended": []}})
    assert ann.hears()["result"]["_meta"]["acp-gateway"] == {"prompts": [4], "questions": []}
    # Once.
    assert scene.agent.heard() == []
    scene.agent.send(id=-1, result={"stopReason": "end_turn"})
    assert ann.hears()["result"] == {"stopReason": "end_turn"}


def test_a_prompt_that_no_gateway_knows_is_over(scene: Scene, ann: Peer) -> None:
    scene.agent.refuses("session/resume")
    told = ann.hears()["result"]["_meta"]["acp-gateway"]
    assert told == {"prompts": [], "questions": [], "cut": "gateway_restarted"}


def test_a_client_that_has_left_by_then_is_not_answered(scene: Scene, ann: Peer) -> None:
    ann.gone()
    scene.agent.answers("session/resume", _meta=TOLD)
    assert [client.name for client in scene.session().attached] == ["bob"]


def test_a_session_that_has_ended_by_then_is_unknown(scene: Scene, ann: Peer) -> None:
    asked = scene.agent.takes("session/resume")
    bob = next(peer for client, peer in scene.peers.items() if client.name == "bob")
    bob.request("session/close", sessionId="s", _meta={"acp-gateway": {"forget": True}})
    scene.agent.answer(asked)
    assert "no session 's' is open" in ann.hears()["error"]["message"]


def test_a_client_that_leaves_while_the_session_is_opened_gets_nothing() -> None:
    scene = linked(Registry("me", Shelf()))
    stored(scene, FarPlace("e", "former", 0), "one")
    ann = scene.join("ann", link="a2")
    ann.comes_back(epoch="e", position=1, connection="a1")
    loaded(scene)
    ann.gone()
    asked = scene.agent.takes("session/load")
    mark(scene, s=("e", 1))
    scene.agent.answer(asked, _meta=TOLD)
    assert not scene.session().attached


def test_an_earlier_version_that_hands_nothing_over_may_go_on_with_the_turn() -> None:
    scene = linked(Registry("me", Shelf()))
    stored(scene, FarPlace("e", "former", 0), "one")
    ann = scene.join("ann", link="a2")
    ann.comes_back(epoch="e", position=1, connection="a1", prompts=[4])
    loaded(scene)
    asked = scene.agent.takes("session/load")
    mark(scene, s=("e", 1))
    scene.agent.answer(asked)
    # No reason is told: the editor says that the end is not known.
    assert ann.hears()["result"]["_meta"]["acp-gateway"] == {"prompts": [], "questions": []}


def test_a_whole_history_has_no_end_of_a_turn_that_goes_on() -> None:
    scene = linked(Registry("me", Shelf()))
    stored(scene, FarPlace("e", "former", 0), "one")
    ann = scene.join("ann", link="a2")
    ann.comes_back(connection="a1")
    loaded(scene)
    asked = scene.agent.takes("session/load")
    scene.agent.update("two")
    turns = [{"id": -1, "claim": "c"}]
    scene.agent.answer(asked, _meta={"acp-gateway": {"turns": turns, "ended": [], "start": 0}})
    mark(scene, s=("f", 1))
    assert scene.session().journal.running()


def test_a_session_that_is_being_closed_by_then_is_opened_again_after_that() -> None:
    scene = Scene(
        registry=Registry("me", Shelf()), agentCapabilities=LOADS | {"sessionCapabilities": {"resume": {}, "close": {}}}
    )
    scene.multiplexer.agent_linked("far")
    opened_by_bob(scene)
    ann = scene.join("ann", link="a2")
    ann.comes_back(epoch="e", position=1, connection="a1", prompts=[4])
    asked = scene.agent.takes("session/resume")
    bob = next(peer for client, peer in scene.peers.items() if client.name == "bob")
    bob.request("session/close", sessionId="s")
    closing = scene.agent.takes("session/close")
    scene.agent.answer(asked, _meta=TOLD)
    assert ann.heard() == []
    scene.agent.answer(closing)
    loaded(scene)
    assert [message["method"] for message in scene.agent.heard()] == ["session/load"]
