"""Events in sessions, as clients and hooks are told of them."""

from tests.kit.scene import Scene, news_params


def test_a_decision_about_no_session_is_not_news() -> None:
    scene = Scene()
    ann = scene.join("ann", **news_params())
    scene.agent.send(id=7, method="session/request_permission", params={"options": [{"optionId": "y"}]})
    ann.choose(ann.hears(), "y")
    assert scene.agent.hears()["id"] == 7
    assert not ann.heard()


def test_the_end_of_a_turn_is_announced_with_how_long_it_took_and_who_is_there() -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    bob.load()
    scene.pass_time(10)
    ann.prompt()
    scene.pass_time(72.5)
    bob.away()
    scene.agent.answers("session/prompt", stopReason="max_tokens")
    (event,) = scene.events
    assert (event.name, event.session) == ("turn_end", scene.session())
    assert event.details == {"stopReason": "max_tokens", "seconds": 62.5, "connected": 1}


def test_an_agent_that_ends_in_the_middle_of_a_turn_ends_that() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann", **news_params())
    ann.new_session()
    ann.prompt()
    ann.heard()
    scene.pass_time(3)
    scene.lose_agent()
    (event,) = scene.events
    assert event.name == "turn_end"
    assert event.details == {"stopReason": None, "seconds": 3, "connected": 1}
    assert "turn_ended" in [message["params"]["event"] for message in ann.heard() if "params" in message]
