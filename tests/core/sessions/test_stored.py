"""Session methods for which a session need not be open: status, title, and the end of its archiving."""

from typing import Any

import pytest

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from tests.core.sessions.opened import LOADS, the_session
from tests.kit.scene import Peer, Scene, opened_scene

METHODS = ["session/unarchive", "session/set_title"]


@pytest.fixture
def scene() -> Scene:
    return Scene(agentCapabilities={"sessionCapabilities": {"close": {}}})


@pytest.fixture
def ann(scene: Scene) -> Peer:
    return scene.join("ann")


def close(scene: Scene, peer: Peer) -> None:
    peer.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    peer.hears()


@pytest.mark.parametrize("method", METHODS)
def test_a_session_need_not_be_open(scene: Scene, ann: Peer, method: str) -> None:
    bob = scene.join("bob")
    ann.new_session()
    for live in (True, False):
        bob.request(method, sessionId="s", title="x")
        assert scene.agent.answers(method, title="y", _meta={})["params"] == {"sessionId": "s", "title": "x"}
        assert bob.hears()["result"] == {"title": "y", "_meta": {}}
        if live:
            ann.heard()
            close(scene, ann)
    assert not ann.heard()
    assert scene.multiplexer.sessions == ()
    ann.request(method, sessionId="on disk")
    scene.agent.refuses(method, -32002, "no such session")
    assert ann.hears()["error"]["message"] == "no such session"


@pytest.mark.parametrize("method", METHODS)
def test_a_session_of_another_owner_is_unknown(scene: Scene, ann: Peer, method: str) -> None:
    bob = scene.join("bob", "other")
    ann.new_session()
    bob.request(method, sessionId="s")
    refused = bob.hears()["error"]
    assert (refused["code"], refused["data"]) == (-32002, {"sessionId": "s"})
    bob.request(method)
    assert bob.hears()["error"]["message"] == "sessionId must be a string"
    assert not scene.agent.heard()


@pytest.mark.parametrize("method", METHODS)
def test_an_id_that_another_owner_has_live_is_taken(scene: Scene, ann: Peer, method: str) -> None:
    bob = scene.join("bob", "other")
    ann.new_session()
    close(scene, ann)
    bob.new_session()
    ann.request(method, sessionId="s")
    assert ann.hears()["error"]["code"] == -32002
    assert not scene.agent.heard()


@pytest.mark.parametrize("method", METHODS)
def test_an_id_that_is_live_here_is_not_that_of_a_session_in_another_process(method: str) -> None:
    registry = Registry("me")
    here, there = (Scene(registry=registry, agentCapabilities={"sessionCapabilities": {"close": {}}}) for _ in range(2))
    here.join("bob", "other").new_session()
    ann = there.join("ann")
    ann.new_session()
    close(there, ann)
    again = here.join("ann")
    again.request(method, sessionId="s")
    assert again.hears()["error"]["code"] == -32002
    assert not here.agent.heard()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("joins", [{"role": Role.OBSERVER}, {"only": "s", "guest": True}])
def test_it_is_for_controllers(scene: Scene, ann: Peer, method: str, joins: dict[str, Any]) -> None:
    ann.new_session()
    eve = scene.join("eve", **joins)
    eve.request(method, sessionId="s")
    assert "error" in eve.hears()
    assert not scene.agent.heard()


def test_the_gateway_says_whether_a_session_is_open_and_what_waits_there(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    session = the_session(scene)

    def status(peer: Peer) -> Any:
        peer.heard()
        peer.request("session/status", sessionId="s")
        result = peer.hears()["result"]
        return result["status"], result["_meta"]["acp-gateway"]

    idle = {"state": "idle", "questions": 0, "queue": 0}
    bob = scene.join_session("bob", role=Role.OBSERVER)
    epoch = scene.place()[0]
    assert status(bob) == ("open", {"status": idle, "cursorId": f"0.0@{epoch}"})
    ann.prompt("one")
    ann.prompt("two")
    asked = scene.agent.takes("session/prompt")
    assert status(bob)[1] == {"status": {"state": "running", "questions": 0, "queue": 1}, "cursorId": f"1.0@{epoch}"}
    scene.agent.ask_permission()
    guest = scene.join("guest", only="s", guest=True)
    assert status(guest)[1]["status"] == {"state": "requires_action", "questions": 1, "queue": 1}
    ann.choose(next(it for it in ann.heard() if it.get("method") == "session/request_permission"), "yes")
    scene.agent.heard()
    scene.agent.answer(asked, stopReason="end_turn")
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert status(ann)[1]["cursorId"] == f"2.1@{epoch}"
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    assert status(ann) == status(bob) == ("saved", {"status": idle})
    guest.request("session/status", sessionId="s")
    assert guest.heard()[-1]["error"]["code"] == -32002
    # It can only be read, as the agent has given its id to another one.
    session.aside = "'"
    ann.request("session/status", sessionId="s")
    assert ann.hears()["error"]["code"] == -32002
    assert not scene.agent.heard()


@pytest.mark.parametrize("joins", [{}, {"role": Role.OBSERVER}, {"only": "t", "guest": True}])
@pytest.mark.parametrize("serves", [False, True])
def test_the_status_of_a_session_that_only_the_agent_knows_is_the_agents(
    joins: dict[str, Any], *, serves: bool
) -> None:
    scene = Scene(agentCapabilities={"sessionCapabilities": {"status": {}} if serves else {}})
    peer = scene.join("ann", **joins)
    peer.request("session/status", sessionId="t")
    if serves and not joins:
        scene.agent.answers("session/status", status="saved")
        assert peer.hears()["result"] == {"status": "saved"}
    else:
        assert peer.hears()["error"]["code"] == -32002
    assert not scene.agent.heard()


def test_the_status_of_a_session_of_another_owner_is_not_told(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join("bob", "other")
    bob.request("session/status", sessionId="s")
    assert bob.hears()["error"]["code"] == -32002
    bob.request("session/status")
    assert bob.hears()["error"]["message"] == "sessionId must be a string"


def test_the_title_that_the_agent_has_stored_is_told_to_the_other_clients() -> None:
    scene, ann = opened_scene()
    bob = scene.join_session("bob")
    bob.request("session/set_title", sessionId="s", title=" mine ")
    scene.agent.answers("session/set_title", title="mine")
    assert ann.hears()["params"] == {
        "sessionId": "s",
        "update": {"sessionUpdate": "session_info_update", "title": "mine"},
    }
    assert bob.hears()["result"] == {"title": "mine"}
    assert the_session(scene).title == "mine"
    assert scene.join("eve").load()[-2]["params"]["update"]["title"] == "mine"


def test_a_title_that_is_refused_or_not_told_changes_nothing() -> None:
    scene, ann = opened_scene()
    bob = scene.join_session("bob")
    bob.request("session/set_title", sessionId="s", title="")
    scene.agent.refuses("session/set_title", -32602, "an empty title")
    assert bob.hears()["error"]["message"] == "an empty title"
    bob.request("session/set_title", sessionId="s", title="mine")
    scene.agent.answers("session/set_title")
    assert bob.hears()["result"] == {}
    assert the_session(scene).title is None
    assert not ann.heard()


def titles(peer: Peer) -> list[Any]:
    """Titles that a client has been told since."""
    return [it["params"]["update"].get("title") for it in peer.heard() if it.get("method") == "session/update"]


def test_a_renamed_session_is_told_to_all_its_clients_and_to_later_ones() -> None:
    scene, ann = opened_scene()
    eve = scene.join_session("eve", role=Role.OBSERVER)
    eve.heard()
    scene.multiplexer.rename(the_session(scene), "Mend it")
    scene.deliver()
    assert (titles(ann), titles(eve)) == (["Mend it"], ["Mend it"])
    bob = scene.join("bob")
    bob.load()
    scene.multiplexer.rename(the_session(scene), "Mend it")
    scene.deliver()
    assert titles(bob) == []
    assert the_session(scene).journal.position == 1


def test_clients_are_told_the_title_of_a_user_again_after_one_of_the_agent() -> None:
    scene, ann = opened_scene()
    scene.agent.state("session_info_update", title="one", _meta={"acp-gateway": {"state": "requires_action"}})
    assert titles(ann) == ["one"]
    scene.multiplexer.rename(the_session(scene), "Mend it")
    scene.deliver()
    scene.agent.state("session_info_update", title="two", updatedAt="2026-01-01T00:00:00Z")
    assert titles(ann) == ["Mend it", "two", "Mend it"]
    assert the_session(scene).title == "Mend it"
    # The last one has what else the agent has told.
    told = scene.join("eve").load()[-2]["params"]["update"]
    assert told == {
        "sessionUpdate": "session_info_update",
        "title": "Mend it",
        "updatedAt": "2026-01-01T00:00:00Z",
        "_meta": {"acp-gateway": {"state": "requires_action"}},
    }


def test_an_agent_that_loads_a_session_with_its_own_title_leaves_that_of_the_user() -> None:
    scene, ann = opened_scene(agentCapabilities=LOADS)
    scene.multiplexer.rename(the_session(scene), "Mend it")
    scene.deliver()
    scene.lose_agent()
    ann.heard()
    ann.prompt()
    scene.agent.answers("initialize", protocolVersion=1, agentCapabilities=LOADS)
    asked = scene.agent.takes("session/load")
    scene.agent.state("session_info_update", title="one")
    scene.agent.answer(asked)
    assert titles(ann)[:2] == ["one", "Mend it"]
    assert scene.join("eve").load()[-3]["params"]["update"]["title"] == "Mend it"


@pytest.mark.parametrize("own", [[], ["one"]])
def test_a_client_that_opens_a_renamed_session_is_told_its_title_after_that_of_the_agent(own: list[str]) -> None:
    scene, ann = opened_scene(agentCapabilities=LOADS)
    scene.registry.rename(the_session(scene), "Mend it")
    scene.lose_agent()
    ann.heard()
    bob = scene.join("bob")
    bob.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    scene.agent.answers("initialize", protocolVersion=1, agentCapabilities=LOADS)
    asked = scene.agent.takes("session/load")
    for title in own:
        scene.agent.state("session_info_update", title=title)
    scene.agent.answer(asked)
    assert titles(bob) == [*own, *("Mend it" for _ in own)]


def test_a_session_that_is_renamed_while_it_is_opened_keeps_that_title() -> None:
    scene, ann = opened_scene(agentCapabilities=LOADS)
    ann.request("session/load", sessionId="t", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/load")
    session = next(session for session in scene.multiplexer.sessions if session.id == "t")
    scene.multiplexer.rename(session, "Mend it")
    scene.deliver()
    assert titles(ann) == []
    scene.agent.state("session_info_update", "t", title="one")
    scene.agent.answer(asked)
    assert titles(ann) == ["one", "Mend it"]
    assert session.title == "Mend it"
