"""Counts of messages: which name each is counted under, and that peers cannot add names."""

import pytest

from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.traffic import Traffic
from tests.kit.scene import Peer, Scene, make_policy


def counted(traffic: Traffic, direction: str) -> dict[str, int]:
    """The counts above zero of one direction."""
    return {method: count for way, method, count in traffic.messages() if way == direction and count}


def new_session(scene: Scene, ann: Peer) -> None:
    ann.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s")


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_messages_of_clients_and_of_the_agent_are_counted_by_method(scene: Scene) -> None:
    ann = scene.join("ann")
    new_session(scene, ann)
    scene.agent.update("one")
    scene.agent.update("two")
    scene.agent.ask_permission()
    ann.choose(ann.heard()[-1], "yes")
    traffic = scene.multiplexer.traffic
    assert counted(traffic, "from_client") == {"initialize": 1, "session/new": 1, "response": 1}
    assert counted(traffic, "from_agent") == {"response": 2, "session/update": 2, "session/request_permission": 1}


def test_updates_that_come_together_are_counted_each(scene: Scene) -> None:
    ann = scene.join("ann")
    new_session(scene, ann)
    scene.agent.update("one")
    scene.multiplexer.receive_from_agent([ann.inbox[-1]] * 5)
    assert counted(scene.multiplexer.traffic, "from_agent")["session/update"] == 6


def test_unknown_methods_and_texts_that_are_not_messages_add_no_name(scene: Scene) -> None:
    ann = scene.join("ann")
    scene.agent.heard()
    names = set(scene.multiplexer.traffic.from_clients), set(scene.multiplexer.traffic.from_agents)
    for number in range(3):
        ann.request(f"x/{number}")
        scene.agent.send(method=f"y/{number}")
    ann.say(b"{")
    scene.agent.say(b"banner")
    traffic = scene.multiplexer.traffic
    assert (set(traffic.from_clients), set(traffic.from_agents)) == names
    assert counted(traffic, "from_client") == {"initialize": 1, "other": 3, "invalid": 1}
    assert counted(traffic, "from_agent") == {"response": 1, "other": 3, "invalid": 1}


def test_several_agents_may_share_one_count() -> None:
    traffic, registry = Traffic(), Registry("me")
    for name in ("first", "second"):
        Multiplexer(name, make_policy(), registry, traffic).receive_from_agent([b"{"])
    assert counted(traffic, "from_agent") == {"invalid": 2}


def test_decisions_that_wait_are_counted_until_they_are_made(scene: Scene) -> None:
    ann = scene.join("ann")
    new_session(scene, ann)
    scene.multiplexer.set_time(10.0)
    scene.agent.ask_permission()
    scene.agent.send(id="other", method="x/y", params={"sessionId": "s"})
    assert scene.multiplexer.waiting_decisions == 1
    scene.multiplexer.set_time(17.5)
    question = next(message for message in ann.heard() if message.get("method") == "session/request_permission")
    ann.choose(question, "yes")
    assert scene.multiplexer.waiting_decisions == 0
    (decided,) = (event for event in scene.audit_events if event.name == "permission_decided")
    assert decided.age == 7.5
