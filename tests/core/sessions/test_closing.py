"""Session methods that end a session: close, archive and delete."""

import json
from typing import Any

import pytest

from acp_gateway.core.requests import DirectoryCheckResult, Problem
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from acp_gateway.protocol.not_sent import CANCELLED
from tests.core.sessions.opened import LOADS, chunk, close, texts, the_session
from tests.kit.scene import Peer, Scene, Shelf, make_policy, news_params, opened_scene


@pytest.fixture
def scene() -> Scene:
    return Scene(agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}, "list": {}}})


@pytest.fixture
def ann(scene: Scene) -> Peer:
    return scene.join("ann")


def begin_load(peer: Peer, method: str = "session/load", session_id: str = "s") -> int:
    return peer.request(method, sessionId=session_id, cwd="/srv", mcpServers=[])


# Close


def test_a_close_takes_leave_while_others_are_there(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join_session("bob")
    bob.request("session/close", sessionId="s")
    assert bob.hears()["result"] == {}
    assert not scene.agent.heard()
    scene.agent.update("one")
    assert not bob.heard()
    assert texts(ann.heard()) == ["one"]


def test_the_last_connected_controller_closes_the_session(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob", **news_params())
    ann.new_session()
    bob.load()
    eve = scene.join_session("eve", role=Role.OBSERVER)
    bob.away()
    bob.heard()
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    assert ann.hears()["result"] == {}
    assert bob.heard()[0]["params"] == {"sessionId": "s", "event": "closed"}
    assert scene.multiplexer.sessions == ()
    assert [session.live for session in scene.registry] == [False]
    assert not any(peer.client.sessions for peer in (ann, bob, eve))


def test_a_session_has_its_history_alone_until_it_is_opened_and_the_replay_beside_it_until_then(
    scene: Scene, ann: Peer
) -> None:
    ann.new_session()
    session = scene.session()
    assert session.journals == (session.journal,)
    ann.request("session/close", sessionId="s")
    assert session.journals == (session.journal,)
    scene.agent.answers("session/close")
    begin_load(ann)
    scene.agent.update("told again")
    history, replay = scene.session().journals
    assert (history.position, replay.position) == (0, 1)


def test_an_observer_only_takes_leave(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    eve = scene.join_session("eve", role=Role.OBSERVER)
    ann.gone()
    eve.request("session/close", sessionId="s")
    assert eve.hears()["result"] == {}
    assert not scene.agent.heard()


def test_session_close_of_a_guest_only_detaches_it_also_when_it_is_alone(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    gil = scene.join_session("gil", "guest-1", only="s", guest=True)
    ann.away()
    gil.request("session/close", sessionId="s")
    assert gil.hears()["result"] == {}
    assert not scene.agent.heard()
    assert list(the_session(scene).attached) == [ann.client]


def test_guests_do_not_keep_a_session_open_that_its_owner_closes(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.join("gil", "guest-1", only="s", guest=True).load()
    ann.request("session/close", sessionId="s")
    assert scene.agent.hears()["method"] == "session/close"


def test_an_agent_that_cannot_close_is_not_asked_to() -> None:
    scene, ann = opened_scene()
    ann.request("session/close", sessionId="s")
    assert ann.hears()["result"] == {}
    assert not scene.agent.heard()
    assert the_session(scene).live


FORGET = {"_meta": {"acp-gateway": {"forget": True}}}


def test_a_close_that_asks_for_it_has_the_session_forgotten(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    ann.request("session/close", sessionId="s", **FORGET)
    scene.agent.answers("session/close")
    assert ann.hears()["result"] == {}
    assert list(scene.registry) == []


def test_a_session_of_an_agent_that_cannot_close_is_forgotten_on_request() -> None:
    scene, ann = opened_scene()
    ann.request("session/close", sessionId="s", **FORGET)
    assert ann.hears()["result"] == {}
    assert not scene.agent.heard()
    assert scene.multiplexer.sessions == ()
    assert list(scene.registry) == []
    scene.agent.update("late")
    assert not ann.heard()


def test_a_session_at_work_that_its_agent_cannot_close_is_not_forgotten() -> None:
    scene, ann = opened_scene()
    ann.prompt()
    scene.agent.hears()
    ann.request("session/close", sessionId="s", **FORGET)
    assert ann.hears()["result"] == {}
    assert the_session(scene).live


@pytest.mark.parametrize("meta", [{}, {"acp-gateway": {"forget": 1}}, {"acp-gateway": 1}, {"other": "acp-gateway"}])
def test_a_close_without_a_clear_request_to_forget_keeps_the_session_known(
    scene: Scene, ann: Peer, meta: dict[str, Any]
) -> None:
    ann.new_session()
    ann.request("session/close", sessionId="s", _meta=meta)
    scene.agent.answers("session/close")
    assert [session.live for session in scene.registry] == [False]


def test_a_connection_that_is_bound_to_a_session_cannot_have_it_forgotten(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    phone = scene.join_session("phone", only="s")
    ann.gone()
    phone.request("session/close", sessionId="s", **FORGET)
    scene.agent.answers("session/close")
    assert phone.hears()["result"] == {}
    assert [session.live for session in scene.registry] == [False]


def test_a_client_beside_others_and_a_guest_can_have_nothing_forgotten(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join_session("bob")
    for peer in (scene.join_session("gil", "guest-1", only="s", guest=True), bob):
        peer.request("session/close", sessionId="s", **FORGET)
        assert peer.hears()["result"] == {}
    assert the_session(scene).live


def test_a_close_that_fails_changes_nothing(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    ann.request("session/close", sessionId="s")
    scene.agent.refuses("session/close")
    assert ann.hears()["error"]["message"] == "no"
    assert list(the_session(scene).attached) == [ann.client]


def test_closing_a_session_settles_its_open_requests(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    first, second = ann.prompt("first"), ann.prompt("second")
    running = scene.agent.hears()
    scene.agent.ask_permission(7)
    scene.agent.send(id=8, method="x/y", params={"sessionId": "s"})
    ann.heard()
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    decided, other = scene.agent.heard()
    assert (decided["id"], decided["result"]) == (7, {"outcome": {"outcome": "cancelled"}})
    assert (other["id"], other["error"]["code"]) == (8, -32800)
    heard = ann.heard()
    assert {"jsonrpc": "2.0", "id": second, "result": json.loads(CANCELLED)} in heard
    assert first not in [message.get("id") for message in heard]
    scene.agent.send(id=running["id"], result={"stopReason": "cancelled"})
    assert ann.hears()["id"] == first
    assert not scene.multiplexer.busy


# Delete


def test_session_delete_ends_the_session_for_all_clients(scene: Scene) -> None:
    ann, bob = scene.join("ann", **news_params()), scene.join("bob")
    ann.new_session()
    bob.request("session/delete", sessionId="s")
    scene.agent.answers("session/delete")
    assert bob.hears()["result"] == {}
    assert ann.heard()[0]["params"] == {"sessionId": "s", "event": "deleted"}
    assert scene.multiplexer.sessions == ()
    assert list(scene.registry) == []
    ann.prompt()
    assert ann.hears()["error"]["code"] == -32002


def test_a_session_that_is_not_live_can_be_deleted_by_whose_it_is(scene: Scene) -> None:
    bob, me = scene.join("bob", "other"), scene.join("me")
    bob.new_session()
    bob.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    bob.heard()
    me.request("session/delete", sessionId="s")
    assert me.hears()["error"]["code"] == -32002
    bob.request("session/delete", sessionId="s")
    scene.agent.answers("session/delete")
    assert bob.hears()["result"] == {}
    assert list(scene.registry) == []


def test_a_delete_that_fails_changes_nothing(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    ann.request("session/delete", sessionId="s")
    scene.agent.refuses("session/delete", -32601, "no deletes")
    assert ann.hears()["error"]["code"] == -32601
    assert list(the_session(scene).attached) == [ann.client]
    ann.request("session/delete", sessionId="on disk")
    scene.agent.refuses("session/delete", -32601, "no deletes")
    assert ann.hears()["error"]["code"] == -32601
    assert len(list(scene.registry)) == 1


def test_as_many_sessions_may_be_deleted_at_once_as_may_be_open() -> None:
    scene = Scene(
        make_policy(sessions_per_identity=2), agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}}}
    )
    ann = scene.join("ann")
    for session in "stu":
        ann.new_session(session)
        close(scene, ann, session)
    for session in "stu":
        ann.request("session/delete", sessionId=session)
    assert ann.hears()["error"]["data"] == {"reason": "too_many_sessions"}
    for asked in scene.agent.heard():
        scene.agent.answer(asked)
    assert [answer["result"] for answer in ann.heard()] == [{}, {}]
    assert [session.id for session in scene.registry] == ["u"]


def test_session_archive_closes_the_session_for_all_clients_and_it_stays_known(scene: Scene) -> None:
    ann = scene.join("ann", **news_params())
    bob, eve = scene.join("bob"), scene.join("eve", "other")
    ann.new_session()
    eve.request("session/archive", sessionId="s")
    assert eve.hears()["error"]["code"] == -32002
    bob.request("session/archive", sessionId="s")
    scene.agent.answers("session/archive")
    assert bob.hears()["result"] == {}
    assert ann.heard()[0]["params"] == {"sessionId": "s", "event": "closed"}
    assert scene.multiplexer.sessions == ()
    # Archiving an archived session succeeds.
    ann.request("session/archive", sessionId="s")
    scene.agent.answers("session/archive")
    assert ann.hears()["result"] == {}
    assert [session.id for session in scene.registry] == ["s"]


def test_an_archiving_that_fails_changes_nothing(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    ann.request("session/archive", sessionId="s")
    scene.agent.refuses("session/archive", -32601, "no archive")
    assert ann.hears()["error"]["code"] == -32601
    assert list(the_session(scene).attached) == [ann.client]
    ann.request("session/archive")
    assert ann.hears()["error"]["message"] == "sessionId must be a string"


def test_the_directory_of_a_session_that_is_not_live_is_looked_at_before_a_limited_client_deletes_it(
    scene: Scene, ann: Peer
) -> None:
    ann.new_session(cwd="/srv/proj/link")
    close(scene, ann)
    scene.look = None
    bob = scene.join("bob", workspaces=("proj",))
    for problem in (Problem("it leads elsewhere", {}), None):
        bob.request("session/delete", sessionId="s")
        (directory_check,) = scene.directory_checks
        assert directory_check.directories == ("/srv/proj/link",)
        assert scene.agent.inbox == []
        scene.directory_check(DirectoryCheckResult(problem))
        if problem is not None:
            assert bob.hears()["error"]["message"] == "it leads elsewhere"
    scene.agent.answers("session/delete")
    assert bob.hears()["result"] == {}
    assert list(scene.registry) == []


def begin_delete(scene: Scene, peer: Peer) -> Any:
    """A client has a session deleted that is not live any more; what the agent got."""
    peer.new_session()
    close(scene, peer)
    peer.request("session/delete", sessionId="s")
    return scene.agent.takes("session/delete")


def test_session_load_of_a_deleting_session_waits_and_gets_the_history_if_that_fails(scene: Scene, ann: Peer) -> None:
    deleting = begin_delete(scene, ann)
    bob = scene.join("bob")
    own = begin_load(bob)
    assert (bob.inbox, scene.agent.inbox) == ([], [])
    scene.agent.send(id=deleting["id"], error={"code": -32603, "message": "busy"})
    assert ann.hears()["error"]["message"] == "busy"
    loading = scene.agent.takes("session/load")
    for text in ("one", "two"):
        scene.agent.update(text)
    scene.agent.answer(loading)
    *history, response = bob.heard()
    assert (texts(history), response["id"]) == (["one", "two"], own)
    assert texts(scene.join("cem").load()) == ["one", "two"]
    bob.prompt()
    assert scene.agent.takes("session/prompt")


def test_session_load_of_a_deleted_session_is_answered_by_the_agent(scene: Scene, ann: Peer) -> None:
    deleting = begin_delete(scene, ann)
    bob = scene.join("bob")
    begin_load(bob)
    assert (bob.inbox, scene.agent.inbox) == ([], [])
    scene.agent.answer(deleting)
    assert ann.hears()["result"] == {}
    scene.agent.refuses("session/load", -32002, "no such session")
    assert bob.hears()["error"]["message"] == "no such session"
    assert list(scene.registry) == []
    assert not scene.multiplexer.busy


def test_all_that_is_asked_of_a_session_while_it_is_deleted_is_done_one_after_another(scene: Scene, ann: Peer) -> None:
    deleting = begin_delete(scene, ann)
    own = [begin_load(ann), begin_load(ann), ann.request("session/close", sessionId="s"), begin_load(ann)]
    scene.agent.send(id=deleting["id"], error={"code": -32603, "message": "busy"})
    for method in ("session/load", "session/close", "session/load"):
        scene.agent.answer(scene.agent.takes(method))
    assert [message["id"] for message in ann.heard()[1:]] == own
    assert list(the_session(scene).attached) == [ann.client]


def test_a_session_that_is_being_deleted_cannot_be_loaded_through_another_agent(scene: Scene, ann: Peer) -> None:
    there = Scene(registry=scene.registry, agentCapabilities=LOADS)
    bob = there.join("bob")
    deleting = begin_delete(scene, ann)
    begin_load(bob)
    assert bob.hears()["error"]["code"] == -32002
    scene.agent.send(id=deleting["id"], error={"code": -32603, "message": "busy"})
    begin_load(bob)
    assert there.agent.takes("session/load")


def test_agent_requests_in_a_session_that_could_not_be_deleted_are_settled(scene: Scene, ann: Peer) -> None:
    deleting = begin_delete(scene, ann)
    scene.agent.ask_permission(7)
    scene.agent.send(id=deleting["id"], error={"code": -32603, "message": "busy"})
    assert scene.agent.hears()["result"] == {"outcome": {"outcome": "cancelled"}}
    assert not scene.multiplexer.busy


def test_updates_under_the_id_of_a_deleting_session_are_not_recorded() -> None:
    shelf = Shelf()
    scene = Scene(
        registry=Registry("me", shelf, "run"), agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}}}
    )
    deleting = begin_delete(scene, scene.join("ann", link="l"))
    scene.agent.update("of another one, by an agent that counts its sessions")
    scene.multiplexer.receive_from_agent([chunk("at once"), chunk("and more")])
    scene.agent.send(id=deleting["id"], error={"code": -32603, "message": "busy"})
    (journal,) = shelf.journals.values()
    assert journal.replay() == []
