"""Observers and guests at a gateway in front of another one, and sessions that are live there alone."""

from typing import Any

import pytest

from acp_gateway.core.sessions.far_places import FarPlace
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from tests.core.scene import Peer, Scene, Shelf, make_policy
from tests.core.sessions.test_far_history import linked, loaded, mark, stored

TOLD = {"acp-gateway": {"turns": [], "ended": [], "start": 0}}
ASKED: dict[str, Any] = {"takesOver": True, "claims": [], "onlyLive": True}


@pytest.fixture
def scene() -> Scene:
    """A gateway in front, whose agent a controller has reached."""
    scene = linked(Registry("me", Shelf()))
    scene.join("ann")
    return scene


@pytest.fixture
def eve(scene: Scene) -> Peer:
    """An observer."""
    return scene.join("eve", role=Role.OBSERVER)


def load(client: Peer, **more: Any) -> int:
    return client.request("session/load", sessionId="s", cwd="/secret", mcpServers=[{"name": "n"}], **more)


def refused(client: Peer) -> bool:
    """Return whether the only message is the refusal of an unknown session."""
    error = client.hears()["error"]
    return (error["code"], "no session 's' is open on this connection" in error["message"]) == (-32002, True)


def test_an_observer_opens_a_session_that_is_live_at_the_node(scene: Scene, eve: Peer) -> None:
    own = load(eve)
    asked = scene.agent.takes("session/load")
    # Nothing of the observer's request is passed on.
    assert asked["params"] == {"_meta": {"acp-gateway": ASKED}, "sessionId": "s", "cwd": "", "mcpServers": []}
    scene.agent.update("one")
    scene.agent.answer(asked, _meta=TOLD)
    mark(scene, s=("e", 1))
    update, answer = eve.heard()
    assert (update["params"]["update"]["content"]["text"], answer["id"]) == ("one", own)
    scene.agent.update("two")
    assert eve.hears()["params"]["update"]["content"]["text"] == "two"
    # It may still only look.
    eve.prompt()
    assert "error" in eve.hears()
    assert scene.agent.heard() == []


def test_an_observer_that_joins_by_session_new_opens_it_as_well(scene: Scene) -> None:
    eve = scene.join("eve", role=Role.OBSERVER, only="s")
    eve.request("session/new", cwd="/secret", mcpServers=[])
    asked = scene.agent.answers("session/load", _meta=TOLD)
    assert asked["params"]["_meta"]["acp-gateway"] == ASKED
    mark(scene, s=("e", 0))
    assert eve.hears()["result"]["sessionId"] == "s"


def test_what_is_stored_goes_on_at_its_place_for_an_observer(scene: Scene, eve: Peer) -> None:
    stored(scene, FarPlace("e", "former", 0), "one")
    load(eve)
    loaded(scene)
    asked = scene.agent.takes("session/load")
    place = {"connection": "former", "epoch": "e", "position": 1}
    assert asked["params"]["_meta"]["acp-gateway"] == ASKED | place
    mark(scene, s=("e", 1))
    scene.agent.update("two")
    scene.agent.answer(asked, _meta=TOLD)
    assert [it["params"]["update"]["content"]["text"] for it in eve.heard()[:-1]] == ["one", "two"]


def test_an_observer_is_refused_where_the_node_has_the_session_not_live(scene: Scene, eve: Peer) -> None:
    load(eve)
    scene.agent.refuses("session/load", message="the directory must be absolute, not ''")
    assert refused(eve)
    assert scene.multiplexer.sessions == ()
    # No client is told a reason that was meant for the gateway itself.
    ann = scene.join("bob")
    ann.prompt()
    assert refused(ann)


def test_a_controller_that_waits_for_it_as_well_opens_the_session_itself(scene: Scene, eve: Peer) -> None:
    ann = scene.join("bob")
    own = load(eve)
    ann.load()
    eve.send(method="$/cancel_request", params={"requestId": own})
    assert eve.hears()["error"]["code"] == -32800
    scene.agent.refuses("session/load")
    asked = scene.agent.takes("session/load")
    assert (asked["params"]["cwd"], "onlyLive" in str(asked)) == ("/srv", False)
    scene.agent.answer(asked, _meta=TOLD)
    mark(scene, s=("e", 0))
    assert "result" in ann.hears()


def test_a_controller_that_joins_it_later_tells_its_directory(scene: Scene, eve: Peer) -> None:
    load(eve)
    scene.agent.answers("session/load", _meta=TOLD)
    mark(scene, s=("e", 0))
    scene.join("bob").load()
    assert (scene.session().cwd, scene.session().setup) == ("/srv", {"cwd": b'"/srv"'})


@pytest.mark.parametrize("limits", [{"only": "s", "guest": True}, {"identity": "you"}, {"workspaces": ("one",)}])
def test_guests_other_identities_and_tokens_for_workspaces_open_nothing_unknown_there(
    scene: Scene, limits: dict[str, Any]
) -> None:
    eve = scene.join("eve", role=Role.OBSERVER, **limits)
    load(eve)
    assert refused(eve)
    assert scene.agent.heard() == []


@pytest.mark.parametrize("role", list(Role))
def test_a_guest_opens_its_session_that_is_live_at_the_node(scene: Scene, role: Role) -> None:
    stored(scene, FarPlace("e", "former", 0), "one").cwd = None
    gus = scene.join("gus", "you", role, only="s", guest=True)
    load(gus)
    loaded(scene)
    asked = scene.agent.takes("session/load")
    # Nothing of the guest's request is passed on, or kept.
    place = {"connection": "former", "epoch": "e", "position": 1}
    assert asked["params"] == {"_meta": {"acp-gateway": ASKED | place}, "sessionId": "s", "cwd": "", "mcpServers": []}
    mark(scene, s=("e", 1))
    scene.agent.answer(asked, _meta=TOLD)
    assert [message.get("method", "answer") for message in gus.heard()] == ["session/update", "answer"]
    assert (scene.session().owner, scene.session().cwd, scene.session().host) == ("me", None, None)
    gus.prompt()
    assert (role is Role.CONTROLLER) == any(it["method"] == "session/prompt" for it in scene.agent.heard())


@pytest.mark.parametrize("has_place", [False, True])
def test_a_guest_opens_nothing_there_that_may_be_another_session_of_the_same_id(scene: Scene, has_place: bool) -> None:
    session = stored(scene, FarPlace("e", "former", 0) if has_place else None, "one")
    gus = scene.join("gus", "you", only="s", guest=True)
    load(gus)
    if has_place:
        # Its history can't be read.
        assert scene.wanted == [session]
        scene.load_journal(None)
    assert refused(gus)
    assert scene.agent.heard() == []


def test_a_guest_is_refused_where_the_node_has_its_session_not_live(scene: Scene) -> None:
    stored(scene, FarPlace("e", "former", 0), "one")
    gus = scene.join("gus", "you", only="s", guest=True)
    load(gus)
    loaded(scene)
    scene.agent.refuses("session/load", message="told to the gateway alone")
    error = gus.hears()["error"]
    assert error["message"].endswith("guests join what is open here or at the agent's gateway, and open nothing")


@pytest.mark.parametrize("limits", [{"role": Role.OBSERVER}, {"identity": "you", "only": "s", "guest": True}])
def test_a_client_that_returns_waits_for_the_owner_if_the_node_has_the_session_not_live(
    scene: Scene, limits: dict[str, Any]
) -> None:
    stored(scene, FarPlace("e", "former", 0), "one")
    eve = scene.join("eve", link="second", **limits)
    eve.comes_back(method="session/load", epoch="e", position=1, connection="first")
    loaded(scene)
    scene.agent.refuses("session/load")
    assert eve.heard() == []
    scene.join("bob").load()
    loaded(scene)
    asked = scene.agent.takes("session/load")
    assert "onlyLive" not in str(asked)
    scene.agent.answer(asked, _meta=TOLD)
    mark(scene, s=("e", 1))
    assert "result" in eve.heard()[-1]


def test_a_client_that_returns_goes_on_in_what_is_live_at_the_node(scene: Scene) -> None:
    stored(scene, FarPlace("e", "former", 0), "one")
    gus = scene.join("gus", "you", only="s", guest=True, link="second")
    gus.comes_back(method="session/load", epoch="e", position=1, connection="first")
    loaded(scene)
    asked = scene.agent.takes("session/load")
    mark(scene, s=("e", 1))
    scene.agent.update("two")
    scene.agent.answer(asked, _meta=TOLD)
    assert [it["params"]["update"]["content"]["text"] for it in gus.heard()[:-1]] == ["two"]


def test_an_observer_opens_nothing_of_an_agent_without_a_node() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    scene.join("ann")
    eve = scene.join("eve", role=Role.OBSERVER)
    load(eve)
    assert refused(eve)
    assert scene.agent.heard() == []


def test_an_observer_waits_for_no_node_that_is_not_reached(scene: Scene, eve: Peer) -> None:
    scene.multiplexer.agent_lost("the link has ended", {"reason": "agent_ended"})
    scene.deliver()
    load(eve)
    assert refused(eve)


def test_an_observer_waits_for_a_node_that_is_being_reached(scene: Scene, eve: Peer) -> None:
    scene.multiplexer.agent_lost("the link has ended", {"reason": "agent_ended"})
    scene.deliver()
    scene.multiplexer.agent_linked("again")
    scene.multiplexer.reach_again()
    scene.deliver()
    starting = scene.agent.takes("initialize")
    load(eve)
    assert (eve.heard(), scene.agent.heard()) == ([], [])
    scene.agent.answer(starting, **scene.welcome)
    scene.agent.refuses("session/load")
    assert refused(eve)


def test_an_observer_that_returns_has_its_node_reached_where_no_other_client_asks_for_it(scene: Scene) -> None:
    stored(scene, FarPlace("e", "former", 0), "one")
    scene.multiplexer.agent_lost("the link has ended", {"reason": "agent_ended"})
    scene.deliver()
    scene.multiplexer.agent_linked("again")
    eve = scene.join("eve", role=Role.OBSERVER, link="second")
    own = eve.comes_back(method="session/load", epoch="e", position=1, connection="first")
    scene.agent.answer(scene.agent.takes("initialize"), **scene.welcome)
    loaded(scene)
    asked = scene.agent.takes("session/load")
    assert asked["params"]["_meta"]["acp-gateway"]["onlyLive"] is True
    mark(scene, s=("e", 1))
    scene.agent.update("two")
    scene.agent.answer(asked, _meta=TOLD)
    update, answer = (it for it in eve.heard() if "method" in it or it.get("id") == own)
    assert (update["params"]["update"]["content"]["text"], "result" in answer) == ("two", True)


def test_room_for_sessions_is_needed_for_one_that_an_observer_opens(scene: Scene, eve: Peer) -> None:
    scene.multiplexer.set_policy(make_policy(max_sessions=0))
    load(eve)
    assert "max_sessions" in eve.hears()["error"]["message"]


# At the node


def test_only_a_live_session_is_opened_where_the_gateway_in_front_asks_for_that() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.new_session()
    front = scene.join("front", link="f")
    front.comes_back(method="session/load", **ASKED)
    assert "result" in front.hears()
    scene.multiplexer.shut_down()
    scene = Scene(registry=scene.registry, agentCapabilities={"loadSession": True})
    front = scene.join("front", link="g")
    front.comes_back(method="session/load", **ASKED)
    assert refused(front)
    assert scene.agent.heard() == []
    front.comes_back(method="session/load", takesOver=True, claims=[])
    scene.agent.takes("session/load")


def test_a_live_session_is_not_opened_where_the_gateway_in_front_knows_another_one_of_its_id() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    scene.join("ann").new_session()
    session = scene.session()
    earlier = session.journal.epoch
    session.journal.rename("now")
    front = scene.join("front", link="f")
    front.comes_back(method="session/load", **ASKED, epoch="other", position=0)
    assert refused(front)
    for number, epoch in enumerate((earlier, "now")):
        front = scene.join(f"front {number}", link=f"g{number}")
        front.comes_back(method="session/load", **ASKED, epoch=epoch, position=0)
        assert "result" in front.heard()[-1]


def test_a_controller_that_joins_by_session_new_leaves_the_directory_to_the_node(scene: Scene) -> None:
    eve = scene.join("eve", role=Role.OBSERVER)
    load(eve)
    scene.agent.refuses("session/load", message="it is not live")
    bob = scene.join("bob", only="s")
    bob.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.takes("session/load")
    assert [session.cwd for session in scene.multiplexer.sessions] == [None]
