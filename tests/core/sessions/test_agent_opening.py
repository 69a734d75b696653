"""Sessions without a prompt that the agent has lost: they are made again, and keep their id for clients."""

from typing import Any, Final

import pytest

from tests.core.sessions.opened import close, texts
from tests.core.sessions.test_continuing import LOADS, Gateways
from tests.kit.scene import Peer, Scene

MODE: Final = {"sessionUpdate": "current_mode_update", "currentModeId": "early"}

LOST: dict[str, Any] = {"code": -32002, "message": "no such session"}


@pytest.fixture
def scene() -> Scene:
    return Scene(agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}, "list": {}}})


@pytest.fixture
def ann(scene: Scene) -> Peer:
    """A client with a session that had no prompt when its agent was stopped."""
    ann = scene.join("ann")
    ann.new_session(cwd="/srv/x")
    scene.agent.state("available_commands_update", availableCommands=[])
    ann.heard()
    scene.stop_agent()
    return ann


def renewed(scene: Scene, agent_id: str = "new", **result: Any) -> Any:
    """Have the agent refuse to open the session and make another one, and return what it was asked for that."""
    scene.agent.refuses("session/load", **LOST)
    asked = scene.agent.takes("session/new")
    scene.agent.state("current_mode_update", agent_id, currentModeId="early")
    scene.agent.answer(asked, sessionId=agent_id, **result)
    return asked


def test_a_session_is_made_again_under_its_id_with_its_setup(scene: Scene, ann: Peer) -> None:
    own = ann.prompt("hello")
    scene.agent.answers("initialize", **scene.welcome)
    assert renewed(scene)["params"] == {"cwd": "/srv/x", "mcpServers": []}
    asked = scene.agent.takes("session/prompt")
    assert asked["params"]["sessionId"] == "new"
    assert {"sessionId": "s", "update": MODE} in [it.get("params") for it in ann.heard()]
    bob = scene.join_session("bob")
    bob.heard()
    scene.agent.update("answer", "new")
    scene.agent.ask_permission(7, "new")
    *_, update, agent_request = ann.heard()
    assert (update["params"]["sessionId"], agent_request["params"]["sessionId"]) == ("s", "s")
    ann.choose(agent_request, "yes")
    ann.cancel()
    assert [it.get("params", {}).get("sessionId") for it in scene.agent.heard()] == [None, "new"]
    scene.agent.answer(asked, stopReason="end_turn")
    assert ann.heard()[-1]["id"] == own
    assert texts(bob.heard()) == ["answer"]
    ann.request("session/list")
    scene.agent.answers("session/list", sessions=[{"sessionId": "new", "cwd": "/srv/x"}])
    assert [entry["sessionId"] for entry in ann.hears()["result"]["sessions"]] == ["s"]
    assert "no session 'new'" in bob.load("new")[-1]["error"]["message"]


def test_it_is_opened_again_by_its_new_id_once_it_had_a_prompt(scene: Scene, ann: Peer) -> None:
    ann.prompt("hello")
    scene.agent.answers("initialize", **scene.welcome)
    renewed(scene)
    scene.agent.answers("session/prompt", stopReason="end_turn")
    scene.lose_agent()
    ann.prompt("again")
    scene.agent.answers("initialize", **scene.welcome)
    assert scene.agent.refuses("session/load", **LOST)["params"]["sessionId"] == "new"
    assert ann.heard()[-1]["error"]["code"] == -32002


def test_an_agent_that_counts_may_give_the_same_id_again(scene: Scene, ann: Peer) -> None:
    ann.prompt("hello")
    scene.agent.answers("initialize", **scene.welcome)
    renewed(scene, "s")
    assert scene.agent.takes("session/prompt")["params"]["sessionId"] == "s"


@pytest.mark.parametrize("ends", [False, True])
def test_no_session_is_opened_by_an_id_that_the_agent_has_given_to_one_made_again(*, ends: bool) -> None:
    scene = Scene(agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}}})
    ann, bob = scene.join("ann"), scene.join("bob", "other")
    bob.new_session("new")
    close(scene, bob, "new")
    make_again(scene, ann)
    if ends:
        close(scene, ann)
    assert bob.load("new")[-1]["error"]["code"] == -32002
    assert scene.agent.heard() == []


def test_a_session_made_again_is_not_opened_by_an_id_that_another_has_got_since() -> None:
    scene = Scene(agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}}})
    ann, bob = scene.join("ann", "other"), scene.join("bob")
    make_again(scene, ann)
    close(scene, ann)
    bob.new_session("new")
    assert ann.load()[-1]["error"]["code"] == -32002
    close(scene, bob, "new")
    assert ann.load()[-1]["error"]["code"] == -32002
    assert scene.agent.heard() == []


def make_again(scene: Scene, peer: Peer) -> None:
    """Have a session of a client made again in another process, under the id `new` at the agent."""
    peer.new_session()
    scene.stop_agent()
    peer.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    renewed(scene)
    scene.agent.answers("session/prompt", stopReason="end_turn")
    peer.heard()


@pytest.mark.parametrize(
    "answer", [{"error": {"code": -32000, "message": "log in"}}, {"result": {}}, {"result": {"sessionId": "s" * 1025}}]
)
def test_where_it_can_not_be_made_again_the_first_refusal_is_told(
    scene: Scene, ann: Peer, answer: dict[str, Any]
) -> None:
    ann.prompt("hello")
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.refuses("session/load", **LOST)
    scene.agent.send(id=scene.agent.takes("session/new")["id"], **answer)
    assert "no such session" in ann.hears()["error"]["message"]


@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/new"])
def test_after_a_restart_of_the_gateway_who_opens_it_has_it_made_again(method: str) -> None:
    gateways = Gateways()
    gateways.scene.join("ann").new_session(cwd="/srv/x")
    gateways.stop()
    bob = opens(gateways, method)
    gateways.scene.agent.refuses("session/load", **LOST)
    gateways.scene.agent.answers("session/new", sessionId="new", modes=None)
    assert bob.hears()["result"].get("sessionId", "s") == "s"
    bob.prompt("hello")
    assert gateways.scene.agent.takes("session/prompt")["params"]["sessionId"] == "new"
    gateways.stop()
    opens(gateways, method)
    assert gateways.scene.agent.takes("session/load")["params"]["sessionId"] == "new"


def opens(gateways: Gateways, method: str) -> Peer:
    """Have a client open the session, whose journal is read for it."""
    bob = gateways.scene.join("bob", only="s" if method == "session/new" else None)
    bob.request(method, sessionId="s", cwd="/srv/x", mcpServers=[])
    gateways.load_journal()
    return bob


def test_a_session_that_is_not_known_is_not_made_when_it_can_not_be_loaded() -> None:
    scene = Scene(agentCapabilities=LOADS)
    ann = scene.join("ann")
    ann.request("session/load", sessionId="unheard of", cwd="/srv", mcpServers=[])
    scene.agent.refuses("session/load", **LOST)
    assert ann.hears()["error"]["message"] == "no such session"
    assert scene.agent.heard() == []
