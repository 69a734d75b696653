"""Re-opening sessions of clients in a new process, where the agent is behind another gateway.

`test_opening.py` and `test_agent_state.py` have the same for agents of this gateway.
"""

from tests.core.scene import Scene
from tests.core.sessions.test_far_history import LOADS, linked, mark, place


def lost() -> Scene:
    """A scene whose link has ended, and was replaced by another one."""
    scene = linked()
    ann = scene.join("ann", link="first")
    ann.new_session()
    mark(scene, s=("e", 5))
    scene.agent.update("one")
    ann.heard()
    scene.lose_agent()
    scene.multiplexer.agent_linked("second")
    ann.prompt("again")
    scene.agent.answers("initialize", protocolVersion=1, agentCapabilities=LOADS)
    return scene


def test_clients_get_the_updates_of_the_outage() -> None:
    scene = lost()
    (ann,) = scene.peers.values()
    asked = scene.agent.takes("session/resume")
    assert asked["params"]["_meta"]["acp-gateway"] == {
        "takesOver": True,
        "claims": [],
        "connection": "far",
        "epoch": "e",
        "position": 6,
    }
    ann.heard()
    mark(scene, s=("e", 6))
    scene.agent.update("two")
    assert ann.hears()["params"]["update"]["content"]["text"] == "two"
    scene.agent.answer(asked, _meta={"acp-gateway": {"turns": [{"id": -1, "claim": None}], "ended": [], "start": 0}})
    mark(scene, s=("e", 7))
    assert place(scene) == ann.seen["s"] == ("e", 7)
    far = scene.session().far
    assert far is not None
    assert far.link == "second"
    # The prompt waits for the turn that goes on.
    assert scene.agent.heard() == []
    scene.agent.send(id=-1, result={"stopReason": "end_turn"})
    assert scene.agent.takes("session/prompt")["params"]["prompt"][0]["text"] == "again"


def test_another_history_has_another_place() -> None:
    scene = lost()
    (ann,) = scene.peers.values()
    asked = scene.agent.takes("session/resume")
    ann.heard()
    scene.agent.answer(asked)
    mark(scene, s=("f", 2))
    assert place(scene) == ann.seen["s"] == ("f", 2)


def test_the_same_epoch_elsewhere_has_another_place() -> None:
    scene = lost()
    (ann,) = scene.peers.values()
    scene.agent.answers("session/resume")
    mark(scene, s=("e", 2))
    assert place(scene) == ann.seen["s"] == ("e", 2)
