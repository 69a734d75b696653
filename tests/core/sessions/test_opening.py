"""Session methods: new, load, resume, fork, list, close, delete, and joining an open session."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from acp_gateway.core.agent_state import Policy
from acp_gateway.core.output import AuditEvent, StopUnused
from acp_gateway.core.requests import DirectoryCheckResult, Location, Problem, Worktree
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.gaps import GAP
from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.not_sent import CANCELLED
from acp_gateway.protocol.text.pairs import texts_of
from tests.core.sessions.opened import LOADS, chunk, close, texts, the_session
from tests.core.sessions.test_continuing import Gateways
from tests.kit.scene import Peer, Place, Scene, Shelf, encode, make_policy, news_params

RESUMES: dict[str, Any] = {"sessionCapabilities": {"resume": {}}}


@pytest.fixture
def scene() -> Scene:
    return Scene(agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}, "list": {}}})


@pytest.fixture
def ann(scene: Scene) -> Peer:
    return scene.join("ann")


# New


def test_a_new_session_is_its_clients_from_the_response_on(scene: Scene, ann: Peer) -> None:
    ann.request("session/new", cwd="/srv/x", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s", modes={"currentModeId": "m"})
    assert ann.hears()["result"] == {"sessionId": "s", "modes": {"currentModeId": "m"}}
    session = the_session(scene)
    assert (session.owner, session.host, session.cwd, session.state) == ("me", ann.client, "/srv/x", SessionState.OPEN)
    assert list(session.attached) == [ann.client]
    assert list(scene.registry) == [session]


OPENING = ["session/new", "session/load", "session/resume", "session/fork"]


@pytest.mark.parametrize("method", OPENING)
def test_a_session_in_a_directory_that_is_not_there_is_refused_with_the_reason(
    scene: Scene, ann: Peer, method: str
) -> None:
    ann.request(method, sessionId="s", cwd="/Users/ann")
    error = ann.hears()["error"]
    assert (error["code"], error["message"]) == (-32602, "no /Users/ann here")
    assert error["data"] == {"cwd": "/Users/ann", "reason": "none"}
    assert not scene.agent.heard()
    assert list(scene.registry) == []


@pytest.mark.parametrize("method", OPENING)
@pytest.mark.parametrize("cwd", ['"cwd" : "/srv/proj"', '"x":1,"cwd":"/srv"'])
def test_a_session_in_any_other_directory_is_for_the_agent_to_judge(
    scene: Scene, ann: Peer, method: str, cwd: str
) -> None:
    params = f'{{"sessionId":"s", {cwd}}}'
    ann.say(f'{{"id":"a","method":"{method}","params":{params}}}'.encode())
    (text,) = scene.agent.heard_text()
    assert cwd.encode() in text
    # Nothing is added where the client loads a session itself.
    assert (b"mcpServers" in text) == (method == "session/resume")


UNNAMED: list[dict[str, Any]] = [{"cwd": "."}, {"cwd": "./"}, {"cwd": ""}, {"cwd": None}, {}]


@pytest.mark.parametrize("params", UNNAMED)
@pytest.mark.parametrize("method", OPENING)
def test_a_session_without_a_cwd_is_opened_in_the_first_workspace(
    scene: Scene, ann: Peer, method: str, params: dict[str, Any]
) -> None:
    ann.request(method, sessionId="s", additionalDirectories=["/srv/more"], **params)
    (request,) = scene.agent.heard()
    assert (request["params"]["cwd"], request["params"]["additionalDirectories"]) == ("/srv", ["/srv/more"])


@pytest.mark.parametrize("method", ["session/new", "session/fork"])
def test_the_result_says_which_directory_was_chosen_for_a_session(scene: Scene, ann: Peer, method: str) -> None:
    ann.request(method, sessionId="s", cwd=".", mcpServers=[])
    scene.agent.answers(method, sessionId="new", _meta={"a": 1})
    assert ann.hears()["result"] == {"sessionId": "new", "_meta": {"a": 1, "acp-gateway": {"cwd": "/srv"}}}
    assert [session.cwd for session in scene.multiplexer.sessions if session.id == "new"] == ["/srv"]
    ann.request(method, sessionId="s", cwd="/srv/proj", mcpServers=[])
    scene.agent.answers(method, sessionId="other")
    assert ann.hears()["result"] == {"sessionId": "other"}


TREE = "/srv/proj/.worktrees/one"


def asks_for_worktree(peer: Peer, asked: Any = "one", **params: Any) -> None:
    peer.request("session/new", _meta={"acp-gateway": {"worktree": asked}}, cwd="/srv/proj", mcpServers=[], **params)


@pytest.mark.parametrize(("asked", "meant"), [("one", "one"), ("", ""), (True, ""), (False, False), (1, None)])
def test_a_session_in_a_working_tree_begins_there_and_its_client_is_told(slow: Scene, asked: Any, meant: Any) -> None:
    ann = slow.join("ann")
    asks_for_worktree(ann, asked)
    (check,) = slow.directory_checks
    assert (check.worktree, check.directories) == (meant, ("/srv/proj",))
    slow.directory_check(DirectoryCheckResult(workspace="proj", worktree=Worktree(TREE, "one")))
    (request,) = slow.agent.heard()
    assert (request["params"]["cwd"], request["params"].get("_meta", {})) == (TREE, {})
    slow.agent.answer(request, sessionId="s")
    assert ann.hears()["result"]["_meta"] == {"acp-gateway": {"cwd": TREE, "worktree": "one"}}
    assert [session.cwd for session in slow.multiplexer.sessions] == [TREE]
    (event,) = [event for event in slow.audit_events if event.name == "worktree_made"]
    assert event.client is ann.client
    assert event.details == {"agent": "agent", "session": "s", "path": TREE, "branch": "one"}


def test_other_openings_ask_for_no_working_tree_and_are_to_get_none(slow: Scene) -> None:
    ann = slow.join("ann")
    ann.request("session/load", sessionId="s", cwd="/srv/proj", mcpServers=[], _meta={"acp-gateway": {"worktree": "x"}})
    slow.join("ben").request("session/new", cwd="/srv/proj", mcpServers=[])
    assert [check.worktree for check in slow.directory_checks] == [False, None]


@pytest.mark.parametrize("answer", [{"error": {"code": 1, "message": "no"}}, {"result": {}}, None])
def test_the_working_tree_of_a_session_that_the_agent_does_not_open_is_dropped(
    slow: Scene, answer: dict[str, Any] | None
) -> None:
    ann = slow.join("ann")
    asks_for_worktree(ann)
    slow.directory_check(DirectoryCheckResult(worktree=Worktree(TREE, "one")))
    (request,) = slow.agent.heard()
    if answer is None:
        slow.lose_agent()
    else:
        slow.agent.send(id=request["id"], **answer)
    ann.hears()
    assert slow.dropped == [Worktree(TREE, "one")]
    assert not slow.audit_events


@pytest.mark.parametrize(
    ("what", "dropped"), [("", True), ("prompted", False), ("shared", False), ("named", False), ("deleted", False)]
)
def test_the_working_tree_of_a_session_that_is_closed_before_its_first_prompt_is_dropped(
    slow: Scene, what: str, dropped: bool
) -> None:
    ann = slow.join("ann")
    asks_for_worktree(ann)
    made = None if what == "named" else Worktree(TREE, "one")
    slow.directory_check(DirectoryCheckResult(worktree=made))
    slow.agent.answers("session/new", sessionId="s")
    if what == "shared":
        ann.request("session/new", cwd=f"{TREE}/sub", mcpServers=[])
        slow.directory_check(DirectoryCheckResult())
        slow.agent.answers("session/new", sessionId="t")
    elif what == "prompted":
        ann.prompt()
        slow.agent.answers("session/prompt", stopReason="end_turn")
    method = "session/delete" if what == "deleted" else "session/close"
    ann.request(method, sessionId="s")
    assert slow.dropped == []
    slow.agent.answers(method)
    assert slow.dropped == ([Worktree(TREE, "one")] if dropped else [])


def test_a_connection_for_one_session_gets_no_working_tree(scene: Scene, ann: Peer) -> None:
    ann.new_session("s")
    guest = scene.join("ben", only="s", guest=True)
    asks_for_worktree(guest)
    assert "can't get a new working tree" in guest.hears()["error"]["message"]
    asks_for_worktree(guest, asked=False)
    assert guest.hears()["result"]["sessionId"] == "s"


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
@pytest.mark.parametrize(("cwd", "sent"), [("/srv/proj", TREE), (TREE, TREE), ("/srv/other", "/srv/other")])
def test_an_editor_that_knows_the_repository_alone_opens_a_session_in_its_working_tree(
    scene: Scene, ann: Peer, method: str, cwd: str, sent: str
) -> None:
    ann.new_session("s", TREE)
    close(scene, ann, "s")
    ann.request(method, sessionId="s", cwd=cwd, mcpServers=[])
    (request,) = scene.agent.heard()
    assert request["params"]["cwd"] == sent


@pytest.mark.parametrize("params", UNNAMED)
@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/fork"])
def test_a_known_session_is_opened_again_in_its_own_directory_unless_another_is_named(
    scene: Scene, ann: Peer, method: str, params: dict[str, Any]
) -> None:
    ann.new_session("s", "/srv/proj")
    close(scene, ann, "s")
    ann.request(method, sessionId="s", mcpServers=[], **params)
    (request,) = scene.agent.heard()
    assert request["params"]["cwd"] == "/srv/proj"


@pytest.mark.parametrize("params", UNNAMED)
def test_a_fork_of_a_session_that_is_open_is_in_its_directory_unless_another_is_named(
    scene: Scene, ann: Peer, params: dict[str, Any]
) -> None:
    ann.new_session("s", "/srv/proj")
    ann.request("session/fork", sessionId="s", mcpServers=[], **params)
    request = scene.agent.takes("session/fork")
    assert request["params"]["cwd"] == "/srv/proj"
    scene.agent.answer(request, sessionId="f")
    assert ann.hears()["result"]["_meta"]["acp-gateway"]["cwd"] == "/srv/proj"


def test_a_session_without_a_cwd_is_refused_where_no_workspace_may_be_used(slow: Scene) -> None:
    ann = slow.join("ann")
    ann.request("session/new", cwd=".", mcpServers=[])
    assert [(check.directories, check.chooses) for check in slow.directory_checks] == [((), True)]
    slow.directory_check(DirectoryCheckResult(Problem("no workspace", {})))
    assert ann.hears()["error"]["message"] == "no workspace"
    assert slow.agent.inbox == []


def test_a_directory_with_a_lone_surrogate_can_be_refused(ann: Peer) -> None:
    ann.say(rb'{"id":1,"method":"session/new","params":{"cwd":"/\ud83d"}}')
    assert ann.hears()["error"]["data"]["cwd"] == "/\ud83d"


def test_an_error_opens_nothing(scene: Scene, ann: Peer) -> None:
    ann.request("session/new", cwd="/srv")
    scene.agent.refuses("session/new")
    assert ann.hears()["error"]["message"] == "no"
    assert scene.multiplexer.sessions == ()


def test_a_response_that_names_no_session_opens_nothing(scene: Scene, ann: Peer) -> None:
    ann.request("session/new", cwd="/srv")
    scene.agent.answers("session/new", sessionId=5)
    assert ann.hears()["result"] == {"sessionId": 5}
    assert scene.multiplexer.sessions == ()


def test_a_session_whose_client_has_gone_before_the_response_is_there_for_its_owner(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    bob.request("session/new", cwd="/srv")
    bob.gone()
    scene.agent.ask_permission(7)
    scene.agent.inbox = scene.agent.inbox[:1]
    scene.agent.answers("session/new", sessionId="s")
    assert not the_session(scene).attached
    assert not scene.multiplexer.asks(bob.client)
    assert [message.get("method") for message in ann.load()] == [None, "session/request_permission"]


def test_an_observer_may_not_begin_a_session(scene: Scene) -> None:
    eve = scene.join("eve", role=Role.OBSERVER)
    eve.request("session/new", cwd="/srv")
    assert eve.hears()["error"]["code"] == -32601
    assert not scene.agent.heard()


def test_a_session_id_that_the_agent_gave_to_another_identity_before_is_an_error(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join("bob", "other")
    bob.request("session/new", cwd="/srv")
    scene.agent.answers("session/new", sessionId="s")
    error = bob.hears()["error"]
    assert (error["code"], error["message"]) == (-32603, "the agent gave the id s to a second session")
    scene.agent.update("for ann")
    assert texts(ann.heard()) == ["for ann"]
    assert not bob.heard()


def test_a_session_id_that_is_too_long_to_be_remembered_is_an_error_that_names_the_limit(
    scene: Scene, ann: Peer
) -> None:
    ann.request("session/new", cwd="/srv")
    scene.agent.answers("session/new", sessionId="s" * 1025)
    assert ann.hears()["error"]["message"] == "the agent gave a session an id of more than 1024 characters"
    assert list(scene.registry) == []
    ann.new_session("s" * 1024)


@pytest.mark.parametrize("method", ["session/load", "session/delete"])
def test_an_id_that_is_being_opened_or_closed_is_not_given_out(scene: Scene, ann: Peer, method: str) -> None:
    ann.request(method, sessionId="s", cwd="/srv")
    asked = scene.agent.hears()
    ann.request("session/new", cwd="/srv")
    scene.agent.answers("session/new", sessionId="s")
    assert ann.hears()["error"]["message"] == "the agent gave the id s to a second session"
    scene.agent.send(id=asked["id"], result={})
    assert ann.hears()["result"] == {}


def test_an_agent_with_one_session_gives_it_to_each_client_of_its_owner(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.agent.ask_permission()
    bob = scene.join("bob")
    bob.request("session/new", cwd="/srv")
    scene.agent.answers("session/new", sessionId="s")
    assert list(the_session(scene).attached) == [ann.client, bob.client]
    assert [message.get("method") for message in bob.heard()] == [None, "session/request_permission"]


def test_a_session_outside_of_its_workspaces_is_not_given_to_a_limited_client(scene: Scene, ann: Peer) -> None:
    ann.new_session(cwd="/srv/other")
    bob = scene.join("bob", workspaces=("proj",))
    bob.request("session/new", cwd="/srv/proj", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s")
    assert bob.hears()["error"]["message"] == "the agent gave the id s to a second session"
    assert the_session(scene).workspace == "other"


def test_a_fork_does_not_replace_the_history_of_an_open_session(scene: Scene, ann: Peer) -> None:
    for session_id in ("s", "other"):
        ann.new_session(session_id)
    scene.agent.update("said in other", "other")
    ann.heard()
    ann.request("session/fork", sessionId="s", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/fork", sessionId="other")
    assert ann.hears()["error"]["message"] == "the agent gave the id other to a second session"
    assert texts(ann.load("other")) == ["said in other"]


@pytest.mark.parametrize("owner", ["me", "you"])
def test_a_session_whose_id_the_agent_gives_again_after_a_restart_can_only_be_read_and_deleted(owner: str) -> None:
    gateways = Gateways()
    gateways.scene.join("ann", owner).new_session()
    gateways.scene.agent.update("as it was")
    gateways.stop()
    scene = gateways.scene
    bob = scene.join("bob")
    bob.new_session()
    former, ann = "s~former-1", scene.join("ann", owner)
    (past,) = scene.registry.past(ann.client.reach)
    journal = gateways.shelf.read(past)
    assert journal is not None
    assert (past.name, texts([json.loads(text) for text in texts_of(journal.replay())])) == (former, ["as it was"])
    for method in ("session/load", "session/fork", "session/status", "session/set_title"):
        ann.request(method, sessionId=former, cwd="/srv", mcpServers=[])
        assert ann.hears()["error"]["code"] == -32002
    assert scene.agent.heard() == []
    if owner == "you":
        assert ann.load()[-1]["error"]["code"] == -32002
    ann.request("session/delete", sessionId=former)
    assert ann.hears()["result"] == {}
    assert past not in gateways.shelf.journals


# Load and resume of a session that is live


def test_a_load_of_a_live_session_is_answered_from_the_journal(scene: Scene, ann: Peer) -> None:
    ann.new_session(modes={"currentModeId": "a"}, configOptions=[])
    for text in ("one", "two"):
        scene.agent.say(chunk(text))
    early = ann.heard_text()
    bob = scene.join("bob")
    own = bob.request("session/load", sessionId="s", cwd="/srv")
    *history, response = bob.heard_text()
    assert history == early == [chunk("one"), chunk("two")]
    assert parse(response).id == b"%d" % own
    assert not scene.agent.heard()
    assert not ann.heard()
    scene.agent.say(chunk("three"))
    assert bob.heard_text() == ann.heard_text() == [chunk("three")]


def test_session_load_returns_the_current_state_of_a_session(scene: Scene, ann: Peer) -> None:
    ann.new_session(modes={"currentModeId": "a", "availableModes": []}, configOptions=[{"id": 1}])
    scene.agent.state("current_mode_update", currentModeId="b")
    scene.agent.state("config_option_update", configOptions=[{"id": 2}])
    assert scene.join("bob").load()[-1]["result"] == {
        "modes": {"currentModeId": "b", "availableModes": []},
        "configOptions": [{"id": 2}],
    }


def test_a_resume_of_a_live_session_has_no_history_but_the_state(scene: Scene, ann: Peer) -> None:
    ann.new_session(modes={"currentModeId": "a"})
    scene.agent.update("history")
    scene.agent.state("available_commands_update", availableCommands=[1])
    scene.agent.state("available_commands_update", availableCommands=[2])
    bob = scene.join("bob")
    own = bob.request("session/resume", sessionId="s", cwd="/srv")
    response, state = bob.heard()
    assert (response["id"], response["result"]) == (own, {"modes": {"currentModeId": "a"}})
    assert state["params"]["update"]["availableCommands"] == [2]
    scene.agent.update("live")
    assert texts(bob.heard()) == ["live"]


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_open_agent_requests_come_after_the_response_to_a_join(scene: Scene, ann: Peer, method: str) -> None:
    ann.new_session()
    scene.agent.ask_permission(7)
    scene.agent.ask_permission(8)
    ann.choose(ann.heard()[1], "yes")
    bob = scene.join("bob")
    bob.request(method, sessionId="s", cwd="/srv")
    response, agent_request = bob.heard()
    assert "result" in response
    assert agent_request["method"] == "session/request_permission"
    scene.agent.heard()
    bob.choose(agent_request, "no")
    assert scene.agent.hears()["id"] == 7


def test_the_last_of_its_owners_to_load_a_session_is_its_host(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    hosts = []
    for name, identity, role, guest in (
        ("bob", "me", Role.CONTROLLER, False),
        ("eve", "me", Role.OBSERVER, False),
        ("gil", "guest-1", Role.CONTROLLER, True),
    ):
        scene.join(name, identity, role, only="s" if guest else None, guest=guest).load()
        hosts.append(the_session(scene).host)
    assert [host and host.name for host in hosts] == ["bob"] * 3


def test_a_client_that_joins_or_resumes_does_not_replace_the_host(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.join("phone", only="s").request("session/new", cwd="/srv")
    scene.join("tablet").request("session/resume", sessionId="s")
    assert len(the_session(scene).attached) == 3
    assert the_session(scene).host is ann.client


def test_a_client_that_joins_or_resumes_a_session_without_a_host_becomes_it(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    phone, laptop = scene.join("phone", only="s"), scene.join("laptop")
    ann.gone()
    phone.request("session/new", cwd="/srv")
    assert the_session(scene).host is phone.client
    phone.gone()
    laptop.request("session/resume", sessionId="s")
    assert the_session(scene).host is laptop.client


def test_a_second_session_load_replays_the_history_and_attaches_once(scene: Scene) -> None:
    ann = scene.join("ann", **news_params())
    ann.new_session()
    scene.agent.update("one")
    ann.heard()
    assert texts(ann.load()) == ["one"]
    scene.agent.update("two")
    assert texts(ann.heard()) == ["two"]


def test_a_history_that_is_asked_for_again_before_it_was_taken_counts_like_anything_else(
    scene: Scene, ann: Peer
) -> None:
    ann.new_session()
    scene.agent.update("one")
    bob = scene.join("bob").client
    replayed = []
    for number in range(3):
        load = encode(id=number, method="session/load", params={"sessionId": "s", "cwd": "/srv"})
        scene.multiplexer.receive_from_client(bob, load)
        replayed.append(bob in scene.multiplexer.take_output().replayed)
    assert replayed == [True, False, False]
    # Its seat says so when the client has taken it all.
    bob.replays.clear()
    scene.multiplexer.receive_from_client(bob, load.replace(b'"id": 2', b'"id": 9'))
    assert scene.multiplexer.has_replay


def test_a_fork_of_a_session_that_is_not_open_is_truncated(scene: Scene, ann: Peer) -> None:
    ann.request("session/fork", sessionId="on the disk", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/fork", sessionId="f")
    *_, response = scene.join("bob").load("f")
    assert response["result"] == {"_meta": {"acp-gateway": {"truncated": True}}}


def test_a_fork_whose_parent_is_closed_before_it_comes_has_lost_its_beginning(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.agent.update("one")
    ann.request("session/fork", sessionId="s", cwd="/srv", mcpServers=[])
    fork = scene.agent.takes("session/fork")
    close(scene, ann)
    scene.agent.answer(fork, sessionId="f")
    *history, response = scene.join("bob").load("f")
    assert texts(history) == [GAP]
    assert response["result"] == {"_meta": {"acp-gateway": {"truncated": True}}}


def test_replayed_history_is_counted_as_such(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.agent.say(chunk("one"))
    bob = scene.join("bob")
    bob.client.name = "bob"
    scene.multiplexer.receive_from_client(
        bob.client, b'{"id":1,"method":"session/load","params":{"sessionId":"s","cwd":"/srv"}}'
    )
    assert scene.multiplexer.take_output().replayed == {bob.client: len(chunk("one"))}


def test_a_client_that_joins_is_told_that_the_agent_waits_for_a_person(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.agent.state("session_info_update", title="T", _meta={"acp-gateway": {"state": "requires_action"}})
    *_, response = scene.join("bob").load()
    assert response["result"] == {"_meta": {"acp-gateway": {"state": "requires_action"}}}
    scene.agent.state("session_info_update", _meta={"acp-gateway": {"state": "idle"}})
    *_, response = scene.join("cem").load()
    assert response["result"] == {}


def test_a_loader_whose_history_has_lost_its_beginning_is_told_so() -> None:
    scene = Scene(make_policy(journal_limit=400))
    ann = scene.join("ann")
    ann.new_session(_meta={"x": 1})
    scene.agent.state("current_mode_update", currentModeId="m")
    for number in range(20):
        scene.agent.say(chunk(str(number)))
    *history, response = scene.join("bob").load()
    assert texts(history)[0] == GAP
    assert texts(history)[-1] == "19"
    assert history[1]["params"]["update"] == {"sessionUpdate": "current_mode_update", "currentModeId": "m"}
    assert response["result"] == {"_meta": {"x": 1, "acp-gateway": {"truncated": True}}}
    cem = scene.join("cem")
    cem.request("session/resume", sessionId="s", cwd="/srv")
    assert cem.heard()[0]["result"]["_meta"]["acp-gateway"] == {"truncated": True}


@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/fork", "session/delete"])
@pytest.mark.parametrize("params", [{}, {"sessionId": None}])
def test_a_session_must_be_named(scene: Scene, ann: Peer, method: str, params: dict[str, Any]) -> None:
    ann.request(method, cwd="/srv", **params)
    assert ann.hears()["error"] == {"code": -32602, "message": "sessionId must be a string"}
    assert not scene.agent.heard()


def begin_load(peer: Peer, method: str = "session/load", session_id: str = "s") -> int:
    return peer.request(method, sessionId=session_id, cwd="/srv", mcpServers=[])


# Load and resume of one that is not


def test_a_load_of_a_session_that_is_not_live_is_forwarded_and_the_replay_is_the_loaders(
    scene: Scene, ann: Peer
) -> None:
    bob = scene.join("bob")
    own = begin_load(ann)
    loading = scene.agent.hears()
    scene.agent.say(chunk("one"))
    scene.agent.say(chunk("two"))
    assert ann.heard_text() == [chunk("one"), chunk("two")]
    scene.agent.send(id=loading["id"], result={"modes": {"currentModeId": "a"}})
    assert ann.hears() == {"jsonrpc": "2.0", "id": own, "result": {"modes": {"currentModeId": "a"}}}
    assert not bob.heard()
    session = the_session(scene)
    assert (session.owner, session.host, list(session.attached)) == ("me", ann.client, [ann.client])
    *history, response = bob.load()
    assert texts(history) == ["one", "two"]
    assert response["result"] == {"modes": {"currentModeId": "a"}}
    assert not scene.agent.heard()


@pytest.mark.parametrize("result", [None, {}])
def test_the_result_of_a_load_may_be_nothing(scene: Scene, ann: Peer, result: Any) -> None:
    begin_load(ann)
    scene.agent.send(id=scene.agent.hears()["id"], result=result)
    assert ann.hears()["result"] == result
    assert scene.join("bob").load()[-1]["result"] == {}


def test_the_replay_replaces_what_was_known_of_a_session(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.agent.update("as it was said")
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    ann.heard()
    begin_load(ann)
    loading = scene.agent.hears()
    scene.agent.update("as the agent tells it")
    scene.agent.send(id=loading["id"], result={})
    ann.heard()
    assert texts(scene.join("bob").load()) == ["as the agent tells it"]


def test_journal_limit_cuts_a_loaded_history_at_the_start_of_a_user_message() -> None:
    scene = Scene(make_policy(journal_limit=2300), agentCapabilities=LOADS)
    ann = scene.join("ann")
    begin_load(ann)
    loading = scene.agent.hears()
    for turn in range(4):
        for part in ("question", "attachment"):
            content = {"type": "text", "text": f"{part} {turn}"}
            scene.agent.state("user_message_chunk", content=content)
        scene.agent.update(f"answer {turn}")
    scene.agent.answer(loading)
    whole = texts(scene.join("bob").load())
    assert whole == [f"{part} {turn}" for turn in range(4) for part in ("question", "attachment", "answer")]
    scene.agent.update("x" * 300)
    assert texts(scene.join("cem").load()) == [GAP, *whole[3:], "x" * 300]


def test_several_loads_at_once_are_forwarded_once_and_each_gets_the_history_once(scene: Scene, ann: Peer) -> None:
    bob, cem = scene.join("bob"), scene.join("cem")
    begin_load(ann)
    second = begin_load(bob)
    third = begin_load(cem, "session/resume")
    loading = scene.agent.hears()
    scene.agent.update("one")
    assert (bob.inbox, cem.inbox) == ([], [])
    scene.agent.send(id=loading["id"], result={})
    assert not scene.agent.heard()
    assert len(ann.heard()) == 2
    first_heard = bob.heard()
    assert (texts(first_heard), first_heard[-1]["id"]) == (["one"], second)
    assert [message["id"] for message in cem.heard()] == [third]
    scene.agent.update("two")
    assert texts(ann.heard()) == texts(bob.heard()) == texts(cem.heard()) == ["two"]


def test_when_a_load_fails_the_next_who_waits_tries(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    first = begin_load(ann)
    begin_load(bob)
    scene.agent.refuses("session/load", -32002, "no such session")
    failed = ann.hears()
    assert (failed["id"], failed["error"]["message"]) == (first, "no such session")
    assert not bob.heard()
    scene.agent.answers("session/load")
    assert "result" in bob.hears()
    assert the_session(scene).host is bob.client


def test_a_question_during_a_load_is_put_to_the_loader_after_the_response(scene: Scene, ann: Peer) -> None:
    begin_load(ann)
    loading = scene.agent.hears()
    scene.agent.ask_permission(7)
    assert not ann.heard()
    scene.agent.send(id=loading["id"], result={})
    assert [message.get("method") for message in ann.heard()] == [None, "session/request_permission"]


def test_a_loader_that_has_gone_leaves_the_session_to_others(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    begin_load(bob)
    loading = scene.agent.hears()
    scene.agent.ask_permission(7)
    bob.gone()
    scene.agent.update("one")
    scene.agent.send(id=loading["id"], result={})
    assert not the_session(scene).attached
    assert not scene.multiplexer.asks(bob.client)
    *history, response, agent_request = ann.load()
    assert texts(history) == ["one"]
    assert "result" in response
    assert agent_request["method"] == "session/request_permission"


def test_a_resume_is_sent_as_a_load_and_the_replay_is_kept_for_others(scene: Scene, ann: Peer) -> None:
    ann.say(b'{ "params" : {"cwd":"/srv","sessionId":"s","_meta":{"n":1.10}}, "method":"session/resume" ,"id":"r"}')
    (asked,) = scene.agent.heard_text()
    assert asked == (
        b'{ "params" : {"mcpServers":[],"cwd":"/srv","sessionId":"s","_meta":{"n":1.10}},'
        b' "method":"session/load" ,"id":2}'
    )
    scene.agent.update("one")
    assert not ann.heard()
    scene.agent.say(b'{"id":2,"result":{"modes":null}}')
    assert ann.heard_text() == [b'{"id":"r","result":{"modes":null}}']
    scene.agent.update("two")
    assert texts(ann.heard()) == ["two"]
    bob = scene.join("bob")
    assert texts(bob.load()) == ["one", "two"]
    assert the_session(scene).setup == {"cwd": b'"/srv"', "_meta": b'{"n":1.10}'}


def test_the_servers_that_a_resume_names_go_along(scene: Scene, ann: Peer) -> None:
    begin_load(ann, "session/resume")
    asked = scene.agent.hears()
    assert asked["method"] == "session/load"
    assert asked["params"] == {"sessionId": "s", "cwd": "/srv", "mcpServers": []}


def test_a_resume_stays_one_where_the_agent_cannot_load_and_the_history_is_said_to_be_missing() -> None:
    scene = Scene(agentCapabilities=RESUMES)
    ann = scene.join("ann")
    begin_load(ann, "session/resume")
    scene.agent.answers("session/resume")
    assert ann.hears()["result"] == {}
    scene.agent.update("since then")
    *history, response = scene.join("bob").load()
    assert texts(history) == [GAP, "since then"]
    assert response["result"]["_meta"]["acp-gateway"] == {"truncated": True}


def test_a_session_that_was_opened_by_a_resume_can_be_loaded_again_in_a_new_process(scene: Scene, ann: Peer) -> None:
    ann.request("session/resume", sessionId="s", cwd="/srv")
    scene.agent.answers("session/load")
    scene.lose_agent()
    ann.request("x/y")
    scene.agent.answers("initialize", **scene.welcome)
    opening = scene.agent.heard()[0]
    assert opening["params"] == {"mcpServers": [], "cwd": "/srv", "sessionId": "s"}


VEILED = ["session/load", "session/resume", "session/fork", "session/delete", "session/prompt", "session/close"]


# Whose session it is


@pytest.mark.parametrize("method", VEILED)
def test_a_session_of_another_identity_is_answered_like_an_unknown_one(scene: Scene, ann: Peer, method: str) -> None:
    ann.new_session("live")
    ann.new_session("past")
    ann.request("session/close", sessionId="past")
    scene.agent.answers("session/close")
    bob = scene.join("bob", "other")
    eve = scene.join("eve", "other", Role.OBSERVER)
    gil = scene.join("gil", "guest-1", only="granted", guest=True)
    for peer in (bob, eve, gil):
        answers = set()
        for session_id in ("live", "past", "none"):
            text = f'{{"id":1,"method":"{method}","params":{{"sessionId":"{session_id}","cwd":"/srv"}}}}'
            peer.say(text.encode())
            (answer,) = peer.heard_text()
            answers.add(answer.replace(session_id.encode(), b"ID"))
        assert len(answers) == 1
    assert not scene.agent.heard()


def test_unknown_sessions_can_be_loaded_by_the_gateways_own_user_alone(scene: Scene) -> None:
    bob = scene.join("bob", "other")
    begin_load(bob, session_id="on disk")
    assert bob.hears()["error"]["code"] == -32002
    begin_load(scene.join("me"), session_id="on disk")
    assert scene.agent.hears()["params"]["sessionId"] == "on disk"


def test_a_session_that_was_registered_stays_its_owners_when_it_is_not_live(scene: Scene) -> None:
    bob, me = scene.join("bob", "other"), scene.join("me")
    bob.new_session()
    bob.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    bob.heard()
    begin_load(me)
    assert me.hears()["error"]["code"] == -32002
    for _ in range(2):
        begin_load(bob)
        scene.agent.refuses("session/load", message="not now")
        assert bob.hears()["error"]["message"] == "not now"
    begin_load(me)
    assert me.hears()["error"]["code"] == -32002
    begin_load(bob)
    scene.agent.answers("session/load")
    assert "result" in bob.hears()


def test_a_refused_session_load_registers_no_owner(scene: Scene, ann: Peer) -> None:
    begin_load(ann)
    scene.agent.refuses("session/load")
    assert list(scene.registry) == []
    assert not scene.multiplexer.busy


def test_a_live_session_id_cannot_be_opened_or_deleted_by_another_identity(scene: Scene, ann: Peer) -> None:
    # Agents that count their sessions start over in each process.
    bob = scene.join("bob", "other")
    bob.new_session("1")
    bob.request("session/close", sessionId="1")
    scene.agent.answers("session/close")
    bob.heard()
    ann.new_session("1")
    for method in ("session/load", "session/resume", "session/fork", "session/delete"):
        bob.request(method, sessionId="1", cwd="/srv")
        assert bob.hears()["error"]["code"] == -32002
    assert not scene.agent.heard()
    scene.agent.update("for ann", "1")
    assert texts(ann.heard()) == ["for ann"]


@pytest.mark.parametrize("role", list(Role))
def test_only_a_controller_has_a_session_loaded(scene: Scene, role: Role) -> None:
    eve = scene.join("eve", role=role)
    begin_load(eve)
    assert len(scene.agent.heard()) == (role is Role.CONTROLLER)


def test_a_guest_has_nothing_loaded(scene: Scene) -> None:
    gil = scene.join("gil", "guest-1", only="s", guest=True)
    begin_load(gil)
    assert gil.hears()["error"]["code"] == -32002
    gil.request("session/new", cwd="/srv")
    assert gil.hears()["error"]["code"] == -32002
    assert not scene.agent.heard()


def two_processes(**abilities: Any) -> tuple[Scene, Scene]:
    registry = Registry("me")
    policy = make_policy(shared=False)
    scenes = [Scene(policy, registry, agentCapabilities=abilities or LOADS) for _ in range(2)]
    return scenes[0], scenes[1]


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_an_id_that_is_live_here_is_not_opened_for_one_who_had_it_in_another_process(method: str, role: Role) -> None:
    here, there = two_processes(loadSession=True, sessionCapabilities={"close": {}, "resume": {}})
    here.join("ann").new_session("1")
    bob = there.join("bob", "other")
    bob.new_session("1")
    close(there, bob, "1")
    again = here.join("bob", "other", role, link="bob")
    again.request(method, sessionId="1", cwd="/srv", mcpServers=[])
    again.comes_back("1", method, epoch="e", position=1)
    assert [answer["error"]["code"] for answer in again.heard()] == [-32002, -32002]
    assert here.agent.heard() == []


# Live elsewhere


@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/fork", "session/delete"])
def test_a_session_that_is_live_in_another_process_is_not_opened_twice(method: str) -> None:
    here, there = two_processes()
    there.join("ann").new_session()
    bob = here.join("bob")
    bob.request(method, sessionId="s", cwd="/srv")
    error = bob.hears()["error"]
    assert (error["code"], error["data"]) == (-32002, {"sessionId": "s"})
    assert "`acp-gateway connect TARGET --attach s`" in error["message"]
    assert (here.agent.inbox, here.stopped) == ([], [])


def test_a_session_of_another_identity_on_another_agent_does_not_exist() -> None:
    here, there = two_processes()
    there.join("ann", "other").new_session()
    bob = here.join("bob")
    begin_load(bob)
    veiled = bob.hears()["error"]
    assert "--attach" not in veiled["message"]
    assert veiled["code"] == -32002


@pytest.mark.parametrize("leave", [Peer.away, Peer.gone])
def test_a_process_that_its_clients_have_left_is_stopped_first_and_then_the_load_forwarded(
    leave: Callable[[Peer], None],
) -> None:
    here, there = two_processes()
    ann = there.join("ann")
    ann.new_session()
    leave(ann)
    bob = here.join("bob")
    own = begin_load(bob)
    assert here.stopped == [there.multiplexer.agent_handle]
    assert (bob.inbox, here.agent.inbox) == ([], [])
    assert here.multiplexer.busy
    begin_load(bob)
    there.retire()
    here.sessions_freed()
    loading = here.agent.hears()
    assert loading["method"] == "session/load"
    here.agent.send(id=loading["id"], result={})
    assert bob.heard()[0]["id"] == own
    assert [session.agent_handle for session in here.registry] == [here.multiplexer.agent_handle]


def test_one_process_is_stopped_once_for_all_who_want_its_sessions() -> None:
    here, there = two_processes()
    ann = there.join("ann")
    ann.new_session("s")
    ann.new_session("t")
    ann.away()
    bob = here.join("bob")
    for session_id in ("s", "t"):
        here.multiplexer.receive_from_client(
            bob.client,
            b'{"id":"%b","method":"session/delete","params":{"sessionId":"%b"}}' % ((session_id.encode(),) * 2),
        )
    assert here.multiplexer.take_output().effects == [StopUnused(there.multiplexer.agent_handle)]


def test_an_agent_whose_client_is_back_in_time_keeps_its_session() -> None:
    here, there = two_processes()
    ann = there.join("ann")
    ann.new_session()
    ann.away()
    bob = here.join("bob")
    begin_load(bob)
    ann.back()
    here.sessions_freed()
    assert "--attach" in bob.hears()["error"]["message"]


def test_an_observer_has_no_process_stopped() -> None:
    here, there = two_processes()
    ann = there.join("ann")
    ann.new_session()
    ann.away()
    eve = here.join("eve", role=Role.OBSERVER)
    begin_load(eve)
    assert eve.hears()["error"]["code"] == -32002
    assert here.stopped == []


# Joining by the first session/new


def test_the_first_new_of_a_client_that_came_for_a_session_is_answered_with_it(scene: Scene, ann: Peer) -> None:
    ann.new_session(modes={"currentModeId": "a"})
    scene.agent.update("one")
    scene.agent.ask_permission(7)
    bob = scene.join("bob", only="s")
    own = bob.request("session/new", cwd="/Users/bob", mcpServers=[{"command": "evil"}])
    response, update, agent_request = bob.heard()
    assert (response["id"], response["result"]) == (own, {"sessionId": "s", "modes": {"currentModeId": "a"}})
    assert texts([update]) == ["one"]
    assert agent_request["method"] == "session/request_permission"
    assert not scene.agent.heard()
    assert the_session(scene).cwd == "/srv"
    bob.request("session/new", cwd="/srv")
    refused = bob.hears()["error"]
    assert (refused["code"], "session s only" in refused["message"]) == (-32600, True)


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_after_a_load_there_is_no_first_new_any_more(scene: Scene, ann: Peer, method: str) -> None:
    ann.new_session()
    bob = scene.join("bob", only="s")
    begin_load(bob, method)
    bob.heard()
    bob.request("session/new", cwd="/srv")
    assert bob.hears()["error"]["code"] == -32600


def test_session_load_of_a_closing_session_waits_and_opens_it_again(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join("bob", only="s")
    ann.request("session/close", sessionId="s")
    closing = scene.agent.hears()
    own = bob.request("session/new", cwd="/srv")
    assert (bob.inbox, scene.agent.inbox) == ([], [])
    scene.agent.answer(closing)
    assert bob.heard() == []
    scene.agent.answers("session/load")
    response = bob.hears()
    assert (response["id"], response["result"]) == (own, {"sessionId": "s"})


def test_session_load_joins_a_session_that_could_not_be_closed(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join("bob", only="s")
    ann.request("session/close", sessionId="s")
    closing = scene.agent.hears()
    bob.request("session/new", cwd="/srv")
    scene.agent.send(id=closing["id"], error={"code": -32603, "message": "busy"})
    assert bob.hears()["result"] == {"sessionId": "s"}
    assert list(the_session(scene).attached) == [ann.client, bob.client]


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_client_may_join_a_session_again_after_it_was_closed(scene: Scene, ann: Peer, *, by_itself: bool) -> None:
    ann.new_session()
    bob = scene.join("bob", only="s")
    bob.request("session/new", cwd="/srv")
    bob.heard()
    if by_itself:
        bob.request("session/close", sessionId="s")
        assert bob.hears()["result"] == {}
        bob.request("session/new", cwd="/srv")
    else:
        bob.away()
        close(scene, ann)
        bob.back()
        bob.request("session/new", cwd="/srv")
        scene.agent.answers("session/load")
    assert bob.hears()["result"] == {"sessionId": "s"}


def test_an_observer_is_told_that_it_joins_only_what_is_open(scene: Scene, ann: Peer) -> None:
    for name, role, guest in (("eve", Role.OBSERVER, False), ("bob", Role.CONTROLLER, True)):
        client = scene.join(name, "me", role, only="elsewhere", guest=guest)
        client.request("session/new", cwd="/", mcpServers=[])
        assert client.hears()["error"]["message"] == (
            "no session 'elsewhere' is open on this connection; observers and guests join what is open at this "
            "gateway, and open nothing"
        )


@pytest.mark.parametrize(("abilities", "method"), [(LOADS, "session/load"), (RESUMES, "session/resume")])
def test_a_session_that_is_not_live_is_opened_for_who_came_for_it(abilities: dict[str, Any], method: str) -> None:
    scene = Scene(agentCapabilities=abilities)
    bob = scene.join("bob", only="s")
    own = bob.request("session/new", cwd="/srv/here", mcpServers=[{"command": "evil"}])
    asked = scene.agent.hears()
    assert asked["method"] == method
    assert asked["params"] == {"mcpServers": [], "cwd": "/srv/here", "sessionId": "s"}
    scene.agent.update("one")
    assert not bob.heard()
    scene.agent.send(id=asked["id"], result={"modes": None})
    response, *history = bob.heard()
    assert (response["id"], response["result"]["sessionId"]) == (own, "s")
    assert texts(history)[-1] == "one"
    assert the_session(scene).host is bob.client


def test_when_it_cannot_be_opened_the_first_who_came_for_it_is_told_and_the_next_tries(scene: Scene) -> None:
    bob, cem = scene.join("bob", only="s"), scene.join("cem", only="s")
    own = bob.request("session/new", cwd="/srv")
    cem.request("session/new", cwd="/srv")
    scene.agent.refuses("session/load", -32002, "gone")
    failed = bob.hears()
    assert (failed["id"], failed["error"]["message"]) == (own, "gone")
    scene.agent.answers("session/load")
    assert cem.hears()["result"] == {"sessionId": "s"}
    bob.request("session/new", cwd="/srv")
    assert bob.hears()["result"] == {"sessionId": "s"}


def test_a_failed_opening_is_not_reported_when_its_client_has_gone(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob", only="s")
    bob.request("session/new", cwd="/srv")
    bob.gone()
    scene.agent.refuses("session/load")
    assert not ann.heard()
    assert scene.multiplexer.sessions == ()


def test_a_client_of_one_session_that_is_out_of_reach_finds_none(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join("bob", "other", only="s")
    bob.request("session/new", cwd="/srv")
    assert bob.hears()["error"]["code"] == -32002


# Fork


def test_a_fork_is_the_forkers_and_begins_with_the_history_of_its_parent(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join("bob")
    scene.agent.update("one")
    own = bob.request("session/fork", sessionId="s", cwd="/srv/b")
    scene.agent.answers("session/fork", sessionId="f", modes={})
    assert bob.hears() == {"jsonrpc": "2.0", "id": own, "result": {"sessionId": "f", "modes": {}}}
    scene.agent.update("two", "f")
    assert texts(bob.heard()) == ["two"]
    assert texts(ann.heard()) == ["one"]
    parent, fork = scene.multiplexer.sessions
    assert (parent.host, fork.host, fork.cwd) == (ann.client, bob.client, "/srv/b")
    history = scene.join("cem").load("f")[:-1]
    assert texts(history) == ["one", "two"]
    assert {message["params"]["sessionId"] for message in history} == {"f"}


def test_updates_of_a_sub_agent_are_verbatim_in_a_fork(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.agent.state("subagent_update", sessionId="child")
    scene.agent.update("from below", "child")
    ann.request("session/fork", sessionId="s", cwd="/srv")
    scene.agent.answers("session/fork", sessionId="f")
    history = scene.join("bob").load("f")[:-1]
    assert [message["params"]["sessionId"] for message in history] == ["f", "child"]
    assert texts(history) == ["from below"]


# List


PROGRAM = {"name": "files", "command": "/bin/files", "args": ["s3cret"], "env": [{"name": "KEY", "value": "s3cret"}]}


FOUND = DirectoryCheckResult()


def outside(path: str = "/elsewhere") -> DirectoryCheckResult:
    """Result for a directory where no session is permitted."""
    return DirectoryCheckResult(
        Problem("not there", {"reason": "outside_workspaces", "cwd": path, "allowed": ["/srv"]})
    )


@pytest.fixture
def slow(scene: Scene) -> Scene:
    """Leave directory checks to the test."""
    scene.look = None
    return scene


def methods_of(scene: Scene) -> list[str | None]:
    """Take the methods of all messages that the agent has received."""
    return [message.get("method") for message in scene.agent.heard()]


# Looking at directories


@pytest.mark.parametrize("method", OPENING)
def test_no_request_reaches_the_agent_before_its_directory_check(slow: Scene, method: str) -> None:
    ann = slow.join("ann")
    own = ann.request(method, sessionId="s", cwd="/srv/x", additionalDirectories=["/srv/y", "/z"], mcpServers=[])
    (directory_check,) = slow.directory_checks
    assert directory_check.directories == ("/srv/x", "/srv/y", "/z")
    assert (slow.agent.inbox, ann.inbox, list(slow.registry)) == ([], [], [])
    assert slow.multiplexer.busy
    slow.directory_check(FOUND)
    # What is resumed is loaded, where the agent can do that: so the history comes along.
    slow.agent.answers("session/load" if method == "session/resume" else method, sessionId="s")
    assert ann.hears()["id"] == own
    assert not slow.multiplexer.busy


@pytest.mark.parametrize("method", OPENING)
def test_a_problem_of_a_directory_check_is_the_response_and_audited(slow: Scene, method: str) -> None:
    ann = slow.join("ann")
    ann.request(method, sessionId="s", cwd="/elsewhere", mcpServers=[])
    slow.directory_check(outside())
    assert ann.hears()["error"] == {
        "code": -32602,
        "message": "not there",
        "data": {"reason": "outside_workspaces", "cwd": "/elsewhere", "allowed": ["/srv"]},
    }
    assert slow.audit_events == [
        AuditEvent("cwd_refused", ann.client, {"agent": "agent", "path": "/elsewhere", "reason": "outside_workspaces"})
    ]
    assert (slow.agent.inbox, list(slow.registry)) == ([], [])
    assert not slow.multiplexer.busy


def test_a_request_that_names_no_directory_is_looked_at_as_well(slow: Scene) -> None:
    slow.join("ann").request("session/new", mcpServers=[])
    assert slow.directory_checks[0].directories == ()


def test_directories_of_a_live_session_are_not_checked_again(slow: Scene) -> None:
    ann, bob = slow.join("ann"), slow.join("bob")
    ann.request("session/new", cwd="/srv", mcpServers=[])
    slow.directory_check(FOUND)
    slow.agent.answers("session/new", sessionId="s")
    for method in ("session/load", "session/resume"):
        bob.request(method, sessionId="s", cwd="/nowhere", mcpServers=[PROGRAM], additionalDirectories=7)
    assert [message["result"] for message in bob.heard()] == [{}, {}]
    assert (slow.directory_checks, slow.agent.inbox) == ([], [])


@pytest.mark.parametrize("found", [FOUND, outside()])
def test_requests_during_a_directory_check_follow_it(slow: Scene, found: DirectoryCheckResult) -> None:
    ann, bob = slow.join("ann"), slow.join("bob")
    own = [ann.request("session/new", cwd="/srv", mcpServers=[]), ann.request("session/list"), ann.request("_x/y")]
    bob.request("_of/another")
    assert methods_of(slow) == ["_of/another"]
    slow.directory_check(found)
    asked = slow.agent.heard()
    expected = ["session/new", "session/list", "_x/y"]
    assert [message["method"] for message in asked] == expected[found is not FOUND :]
    for message in asked:
        slow.agent.answer(message)
    assert [message["id"] for message in ann.heard()] == own


def test_a_prompt_right_behind_a_load_is_for_what_was_loaded(slow: Scene) -> None:
    ann = slow.join("ann")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    ann.prompt()
    slow.directory_check(FOUND)
    slow.agent.answers("session/load")
    slow.agent.answers("session/prompt", stopReason="end_turn")
    assert [message["result"] for message in ann.heard()] == [{}, {"stopReason": "end_turn"}]


def test_openings_of_one_session_are_looked_at_in_their_order_and_those_of_others_beside(slow: Scene) -> None:
    ann = slow.join("ann")

    def load(session_id: str, cwd: str) -> int:
        return ann.request("session/load", sessionId=session_id, cwd=cwd, mcpServers=[])

    own = [load("s", "/srv/1"), load("t", "/srv/2"), ann.request("session/close", sessionId="s"), load("s", "/srv/3")]
    assert [check.directories for check in slow.directory_checks] == [("/srv/1",), ("/srv/2",)]
    slow.directory_check(FOUND)
    assert methods_of(slow) == ["session/load"]
    assert [check.directories for check in slow.directory_checks] == [("/srv/2",)]
    slow.agent.send(id=2, result={})
    assert ann.hears()["id"] == own[0]
    slow.directory_check(FOUND)
    closing, second = slow.agent.heard()
    assert [closing["method"], second["method"]] == ["session/close", "session/load"]
    slow.agent.answer(second)
    assert ann.hears()["id"] == own[1]
    slow.agent.answer(closing)
    assert ann.hears()["id"] == own[2]
    assert [directory_check.directories for directory_check in slow.directory_checks] == [("/srv/3",)]
    slow.directory_check(FOUND)
    slow.agent.answers("session/load")
    assert ann.hears()["id"] == own[3]


def test_a_session_load_after_its_directory_check_does_not_wait_for_other_checks(slow: Scene) -> None:
    ann, bob = slow.join("ann"), slow.join("bob")
    begin_load(bob)
    slow.directory_check(FOUND)
    own = ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    ann.request("session/new", cwd="/srv", mcpServers=[])
    slow.agent.answers("session/load")
    assert ann.hears()["id"] == own


def test_requests_for_a_session_that_another_client_opens_follow_the_directory_check(slow: Scene) -> None:
    ann, bob = slow.join("ann"), slow.join("bob")
    own = ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    begin_load(bob)
    slow.directory_checks.reverse()
    slow.directory_check(FOUND)
    loading = slow.agent.takes("session/load")
    prompt = ann.prompt()
    slow.directory_check(FOUND)
    slow.agent.answer(loading)
    assert ann.hears()["id"] == own
    slow.agent.answers("session/prompt", stopReason="end_turn")
    assert ann.hears()["id"] == prompt


def test_a_cancel_ends_the_prompts_that_wait_behind(slow: Scene) -> None:
    ann = slow.join("ann")
    ann.request("session/new", cwd="/srv", mcpServers=[])
    slow.directory_check(FOUND)
    slow.agent.answers("session/new", sessionId="s")
    ann.heard()
    ann.request("session/fork", sessionId="s", cwd="/srv", mcpServers=[])
    prompt = ann.prompt()
    ann.cancel()
    assert ann.hears() == {"jsonrpc": "2.0", "id": prompt, "result": json.loads(CANCELLED)}
    assert methods_of(slow) == ["session/cancel"]
    slow.directory_check(FOUND)
    assert methods_of(slow) == ["session/fork"]


def test_a_client_may_not_want_to_know_any_more(slow: Scene) -> None:
    ann = slow.join("ann")
    own = ann.request("session/new", cwd="/srv", mcpServers=[])
    behind = ann.request("_x/y")
    ann.send(method="$/cancel_request", params={"requestId": own})
    assert (ann.heard()[0]["id"], methods_of(slow)) == (own, ["_x/y"])
    slow.directory_check(FOUND)
    assert (slow.agent.inbox, ann.inbox) == ([], [])
    slow.agent.send(id=2, result={})
    assert ann.hears()["id"] == behind
    assert not slow.multiplexer.busy


def test_behind_what_was_cancelled_the_next_opening_is_looked_at(slow: Scene) -> None:
    ann = slow.join("ann")
    own = ann.request("session/new", cwd="/srv/1", mcpServers=[])
    ann.request("session/new", cwd="/srv/2", mcpServers=[])
    ann.request("_x/y")
    ann.send(method="$/cancel_request", params={"requestId": own})
    assert [directory_check.directories for directory_check in slow.directory_checks] == [("/srv/1",), ("/srv/2",)]
    slow.directory_check(FOUND)
    assert slow.agent.inbox == []
    slow.directory_check(FOUND)
    assert methods_of(slow) == ["session/new", "_x/y"]


def test_a_session_is_not_opened_for_a_client_that_left_during_the_directory_check(slow: Scene) -> None:
    ann, bob = slow.join("ann"), slow.join("bob")
    for client in (ann, bob):
        client.request("session/new", cwd="/srv", mcpServers=[])
        client.request("_x/y")
    ann.gone()
    slow.directory_check(FOUND)
    assert slow.agent.inbox == []
    slow.directory_check(FOUND)
    assert methods_of(slow) == ["session/new", "_x/y"]


def test_a_client_that_is_closed_during_a_directory_check_gets_one_response_to_each_request(slow: Scene) -> None:
    ann = slow.join("ann")
    own = [
        ann.request("session/new", cwd="/srv", mcpServers=[]),
        ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[]),
        ann.prompt("of no session"),
        ann.request("_x/y"),
    ]
    ann.dismissed()
    answers = ann.heard()
    assert [message["id"] for message in answers] == own
    assert {message["error"]["message"] for message in answers} == {"it is slow"}
    for _ in range(len(slow.directory_checks)):
        slow.directory_check(FOUND)
    assert slow.agent.inbox == []


@pytest.mark.parametrize("end", [Scene.lose_agent, Scene.stop_agent])
def test_a_directory_check_for_an_ended_agent_opens_nothing_in_the_next(
    slow: Scene, end: Callable[[Scene], None]
) -> None:
    ann = slow.join("ann")
    own = [ann.request("session/new", cwd="/srv", mcpServers=[]), ann.request("_x/y")]
    end(slow)
    answers = ann.heard()
    assert [message["id"] for message in answers] == (own if end is Scene.lose_agent else [])
    assert not slow.multiplexer.busy
    ann.request("_later/on")
    slow.directory_check(FOUND)
    slow.agent.answers("initialize", **slow.welcome)
    assert methods_of(slow) == ["_later/on"]
    assert ann.heard() == []


def test_a_session_opened_by_another_client_during_the_directory_check_is_joined(slow: Scene) -> None:
    ann, bob = slow.join("ann"), slow.join("bob")
    begin_load(ann)
    begin_load(bob)
    slow.directory_check(FOUND)
    slow.agent.answers("session/load")
    assert ann.hears()["result"] == {}
    slow.directory_check(outside())
    assert bob.hears()["result"] == {}
    assert list(the_session(slow).attached) == [ann.client, bob.client]
    assert slow.agent.inbox == []


def test_a_session_opened_on_another_agent_during_the_directory_check_is_refused(slow: Scene) -> None:
    there = Scene(registry=slow.registry, agentCapabilities=LOADS)
    ann = slow.join("ann")
    begin_load(ann)
    bob = there.join("bob")
    begin_load(bob)
    there.agent.answers("session/load")
    slow.directory_check(FOUND)
    assert ann.hears()["error"]["code"] == -32002
    assert slow.agent.inbox == []


def closed_and_kept() -> tuple[Scene, Peer, Shelf, Place]:
    """A session that was closed and is in an archive, where its client was; directories are not looked at at once."""
    shelf = Shelf()
    scene = Scene(
        registry=Registry("me", shelf, "run"), agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}}}
    )
    ann = scene.join("ann", link="l")
    ann.new_session()
    scene.agent.update("hello")
    place = scene.place()
    close(scene, ann)
    scene.look = None
    return scene, ann, shelf, place


def test_a_load_that_waits_for_an_archive_is_looked_at_once() -> None:
    scene, ann, shelf, (epoch, position) = closed_and_kept()
    ann.comes_back(method="session/load", epoch=epoch, position=position)
    scene.directory_check(FOUND)
    assert (scene.directory_checks, scene.agent.inbox) == ([], [])
    scene.load_journal(shelf.read(next(iter(shelf.journals))))
    assert scene.directory_checks == []
    scene.agent.answers("session/load")


def test_a_load_that_waits_for_an_archive_is_not_overtaken_by_what_its_client_asks_later() -> None:
    scene, ann, shelf, (epoch, position) = closed_and_kept()
    first = ann.comes_back(method="session/load", epoch=epoch, position=position)
    ann.request("session/new", cwd="/srv", mcpServers=[])
    second = ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    scene.directory_check(FOUND)
    scene.load_journal(shelf.read(next(iter(shelf.journals))))
    ann.heard()
    scene.agent.answers("session/load")
    scene.directory_check(FOUND)
    assert [message["id"] for message in ann.heard() if "id" in message] == [first, second]


def test_the_place_of_a_session_is_known_by_where_it_is_opened(scene: Scene, ann: Peer) -> None:
    ann.new_session(cwd="/srv/proj")
    assert the_session(scene).workspace == "proj"
    ann.request("session/fork", sessionId="s", mcpServers=[])
    scene.agent.answers("session/fork", sessionId="t")
    assert scene.session("t").workspace == "proj"
    ann.request("session/fork", sessionId="s", cwd="/srv/other", mcpServers=[])
    scene.agent.answers("session/fork", sessionId="u")
    assert scene.session("u").workspace == "other"


def test_a_session_that_is_loaded_without_a_directory_stays_where_it_was(scene: Scene, ann: Peer) -> None:
    ann.new_session(cwd="/srv/proj")
    close(scene, ann)
    ann.request("session/load", sessionId="s", mcpServers=[])
    scene.agent.answers("session/load")
    assert (the_session(scene).workspace, the_session(scene).cwd) == ("proj", "/srv/proj")


# Workspaces of a token


def test_a_limited_client_has_the_sessions_of_its_workspaces_and_no_others(scene: Scene, ann: Peer) -> None:
    for session_id, cwd in (("in", "/srv/proj"), ("out", "/srv/other"), ("nowhere", "/srv")):
        ann.new_session(session_id, cwd)
    bob = scene.join("bob", workspaces=("proj", "gone"))
    for method in ("session/load", "session/resume", "session/close", "session/delete", "session/fork", "_x/y"):
        for session_id in ("out", "nowhere", "of the disk"):
            bob.request(method, sessionId=session_id, cwd="/srv/proj", mcpServers=[])
            error = bob.hears()["error"]
            assert (error["code"], error["data"]) == (-32002, {"sessionId": session_id})
    bob.cancel("out")
    assert scene.agent.inbox == []
    assert bob.load("in")[-1]["result"] == {}
    bob.prompt(session_id="in")
    assert scene.agent.takes("session/prompt")


def test_a_limited_client_is_listed_what_it_has(scene: Scene, ann: Peer) -> None:
    for session_id, cwd in (("in", "/srv/proj"), ("past", "/srv/proj"), ("out", "/srv/other")):
        ann.new_session(session_id, cwd)
    close(scene, ann, "past")
    bob = scene.join("bob", workspaces=("proj",))
    bob.request("session/list")
    found = [{"sessionId": name, "cwd": "/srv"} for name in ("in", "past", "out", "of the disk")]
    scene.agent.answers("session/list", sessions=found)
    assert {entry["sessionId"] for entry in bob.hears()["result"]["sessions"]} == {"in", "past"}


@pytest.mark.parametrize("session_id", ["out", "of the disk"])
def test_a_limited_client_joins_nothing_else(scene: Scene, ann: Peer, session_id: str) -> None:
    ann.new_session("out", "/srv/other")
    bob = scene.join("bob", only=session_id, workspaces=("proj",))
    bob.request("session/new", cwd="/srv/proj", mcpServers=[])
    assert bob.hears()["error"]["code"] == -32002
    assert scene.agent.inbox == []


def test_a_limited_client_loads_what_has_ended_in_its_workspace(scene: Scene, ann: Peer) -> None:
    ann.new_session("in", "/srv/proj")
    ann.new_session("out", "/srv/other")
    close(scene, ann, "in")
    close(scene, ann, "out")
    bob = scene.join("bob", workspaces=("proj",))
    bob.request("session/load", sessionId="out", cwd="/srv/proj", mcpServers=[])
    assert bob.hears()["error"]["code"] == -32002
    bob.request("session/load", sessionId="in", cwd="/srv/proj", mcpServers=[])
    scene.agent.answers("session/load")
    assert bob.hears()["result"] == {}


@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/fork"])
@pytest.mark.parametrize("cwd", [None, "/srv/proj"])
def test_where_a_session_was_is_looked_at_again_for_a_limited_client(
    scene: Scene, ann: Peer, method: str, cwd: str | None
) -> None:
    ann.new_session("in", "/srv/proj/link")
    close(scene, ann, "in")
    scene.look = None
    own = ("/srv/proj/link",)
    for client, also in ((ann, ()), (scene.join("bob", workspaces=("proj",)), own)):
        client.request(method, sessionId="in", mcpServers=[], cwd=cwd)
        (directory_check,) = scene.directory_checks
        assert directory_check.directories == (own if cwd is None else (cwd, *also))
        scene.directory_check(DirectoryCheckResult(Problem("it leads elsewhere", {})))
        assert client.hears()["error"]["message"] == "it leads elsewhere"
    assert scene.agent.inbox == []


@pytest.fixture
def restored(slow: Scene) -> Scene:
    """Session "s" is known from an earlier process of the gateway."""
    session = Session("agent", "s", "me", Journal(1000))
    session.cwd, session.workspace = "/srv/old", "old"
    session.keep_directory()
    slow.registry.restore(session)
    return slow


def joins(scene: Scene, **params: Any) -> Peer:
    bob = scene.join("bob", only="s")
    bob.request("session/new", mcpServers=[PROGRAM], **params)
    return bob


# Joining what is not live


def test_joining_opens_a_session_in_its_former_directory(restored: Scene) -> None:
    bob = joins(restored, cwd="/Users/bob", additionalDirectories=["/Users/bob/x"])
    assert restored.directory_checks[0].directories == ("/srv/old",)
    assert restored.agent.inbox == []
    restored.directory_check(FOUND)
    opening = restored.agent.answers("session/load")
    assert opening["params"] == {"mcpServers": [], "cwd": "/srv/old", "sessionId": "s"}
    assert bob.hears()["result"] == {"sessionId": "s"}
    assert the_session(restored).workspace == "old"


def test_where_no_session_may_be_any_more_none_is_opened_by_joining(restored: Scene) -> None:
    bob = joins(restored, cwd="/srv/fine")
    restored.directory_check(outside("/srv/old"))
    assert bob.hears()["error"]["data"]["reason"] == "outside_workspaces"
    assert restored.agent.inbox == []
    assert [audit_event.name for audit_event in restored.audit_events] == ["cwd_refused"]


@pytest.mark.parametrize(
    ("params", "directories", "findings", "place"),
    [
        ({"cwd": "/srv/x"}, ("/srv/x",), DirectoryCheckResult(None, "x", Location("/srv", None)), ("/srv/x", "x")),
        (
            {"cwd": "/Users/b"},
            ("/Users/b",),
            DirectoryCheckResult(Problem("no", {}), None, Location("/srv/a", "a")),
            ("/srv/a", "a"),
        ),
        ({}, (), DirectoryCheckResult(None, None, Location("/srv/a", "a")), ("/srv/a", "a")),
        (
            {"cwd": 7, "additionalDirectories": [7]},
            (),
            DirectoryCheckResult(None, None, Location("/srv", None)),
            ("/srv", None),
        ),
    ],
)
def test_an_unregistered_session_opens_in_the_requested_cwd_or_in_the_workspace(
    slow: Scene,
    params: dict[str, Any],
    directories: tuple[str, ...],
    findings: DirectoryCheckResult,
    place: tuple[str, str | None],
) -> None:
    bob = joins(slow, **params)
    assert slow.directory_checks[0].directories == directories
    slow.directory_check(findings)
    opening = slow.agent.answers("session/load")
    assert opening["params"] == {"mcpServers": [], "cwd": place[0], "sessionId": "s"}
    assert bob.hears()["result"] == {"sessionId": "s"}
    assert the_session(slow).workspace == place[1]


@pytest.mark.parametrize("params", [{"cwd": "/Users/bob"}, {}])
def test_where_there_is_no_place_at_all_nothing_is_opened_by_joining(slow: Scene, params: dict[str, Any]) -> None:
    bob = joins(slow, **params)
    slow.directory_check(DirectoryCheckResult(Problem("no", {}) if params else None, None, None))
    error = bob.hears()["error"]
    assert (error["code"], error["data"]) == (-32602, {"reason": "outside_workspaces"})
    assert (slow.agent.inbox, list(slow.registry)) == ([], [])


def test_those_who_join_one_after_another_during_a_load_have_it_opened_once(slow: Scene) -> None:
    bob, cem = joins(slow, cwd="/srv/x"), slow.join("cem", only="s")
    cem.request("session/new", cwd="/srv/y", mcpServers=[])
    slow.directory_check(FOUND)
    slow.directory_check(FOUND)
    slow.agent.answers("session/load")
    assert bob.hears()["result"] == cem.hears()["result"] == {"sessionId": "s"}
    assert the_session(slow).setup == {"cwd": b'"/srv/x"'}


def refused(peer: Peer) -> str:
    """The words with which the one thing that a client has asked was refused: there are too many sessions."""
    error = peer.hears()["error"]
    assert (error["code"], error["data"]) == (-32600, {"reason": "too_many_sessions"})
    return str(error["message"])


# How many sessions


@pytest.mark.parametrize("method", OPENING)
def test_an_identity_has_only_so_many_sessions_open(method: str) -> None:
    scene = Scene(
        make_policy(sessions_per_identity=2), agentCapabilities=LOADS | {"sessionCapabilities": {"close": {}}}
    )
    ann, you = scene.join("ann"), scene.join("you", "you")
    ann.new_session("s")
    ann.new_session("t")
    ann.request(method, sessionId="s" if method == "session/fork" else "u", cwd="/srv", mcpServers=[])
    assert refused(ann) == "sessions_per_identity (2) are open already; close some"
    you.new_session("of another")
    assert ann.load("s")[-1]["result"] == {}
    close(scene, ann, "t")
    ann.new_session("u")


def test_names_below_one_credential_have_only_so_many_open_together_whichever_agent_has_them() -> None:
    registry = Registry("me")
    policy = make_policy(sessions_per_identity=2)
    here, there = (Scene(policy, registry, agentCapabilities=LOADS) for _ in range(2))
    here.join("ann", "door/ann", below="door").new_session("s")
    there.join("bob", "door/bob", below="door").new_session("t")
    carol = there.join("carol", "door/carol", below="door")
    carol.request("session/new", cwd="/srv", mcpServers=[])
    assert refused(carol) == "sessions_per_identity (2) are open already; close some"
    # Who may be spoken for counts for itself.
    there.join("dan", "door/dan").new_session("v")
    here.retire()
    carol.new_session("u")


def test_a_session_that_is_opened_again_counts_for_who_opens_it() -> None:
    registry = Registry("me")
    before, after = (Scene(make_policy(sessions_per_identity=1), registry, agentCapabilities=LOADS) for _ in range(2))
    before.join("ann", "door/ann").new_session("s")
    before.retire()
    after.join("ann", "door/ann", below="door").load("s")
    bob = after.join("bob", "door/bob", below="door")
    bob.request("session/new", cwd="/srv", mcpServers=[])
    assert refused(bob) == "sessions_per_identity (1) are open already; close some"


def test_all_together_have_only_so_many_open_whichever_agent_has_them() -> None:
    registry = Registry("me")
    here, there = (Scene(make_policy(max_sessions=2), registry, agentCapabilities=LOADS) for _ in range(2))
    here.join("ann").new_session("s")
    there.join("you", "you").new_session("t")
    bob = here.join("bob")
    bob.request("session/new", cwd="/srv", mcpServers=[])
    assert refused(bob) == "max_sessions (2) are open already"
    cem = here.join("cem", only="of the disk")
    cem.request("session/new", cwd="/srv", mcpServers=[])
    assert refused(cem) == "max_sessions (2) are open already"
    there.retire()
    bob.new_session("u")


@pytest.mark.parametrize("policy", [make_policy(sessions_per_identity=2), make_policy(max_sessions=2)])
def test_pending_openings_count_against_sessions_per_identity(policy: Policy) -> None:
    scene = Scene(policy, agentCapabilities=LOADS)
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session("s")
    scene.look = None
    for client in (ann, bob):
        client.request("session/new", cwd="/srv", mcpServers=[])
        client.request("session/fork", sessionId="s", cwd="/srv", mcpServers=[])
    while scene.directory_checks:
        scene.directory_check(FOUND)
    assert scene.agent.takes("session/new")
    reasons = [message["error"]["data"]["reason"] for message in [*ann.heard(), *bob.heard()]]
    assert reasons == ["too_many_sessions"] * 3


@pytest.mark.parametrize("method", ["session/new", "session/list"])
def test_a_request_for_a_session_of_another_identity_does_not_reach_the_agent(method: str) -> None:
    scene = Scene(agentCapabilities={"sessionCapabilities": {"list": {}}})
    ann, bob = scene.join("ann"), scene.join("bob", "you")
    bob.new_session("theirs")
    ann.request(method, sessionId="theirs", cwd="/srv", mcpServers=[])
    assert ann.hears()["error"]["code"] == -32002
    bob.request(method, sessionId="unheard of", cwd="/srv", mcpServers=[])
    assert bob.hears()["error"]["code"] == -32002
    assert not scene.agent.heard()
    bob.request(method, sessionId="theirs", cwd="/srv", mcpServers=[])
    assert scene.agent.takes(method)


HIDDEN_NAME = {"name": "acpgw_hunter2\x1b[2J\u202e\n" + "n" * 1000, "command": "x", "args": [], "env": []}


@pytest.mark.parametrize("policy", ["drop", "deny"])
def test_names_of_mcp_servers_are_redacted_escaped_and_cut_in_audit_and_log(policy: str) -> None:
    scene = Scene(make_policy(mcp_servers=policy))
    ann = scene.join("ann")
    odd = {"name": "x", "type": "acpgw_hunter2\u2066" + "k" * 1000}
    ann.request("session/new", cwd="/srv", mcpServers=[HIDDEN_NAME, odd])
    first, second = scene.audit_events[0].details, scene.audit_events[1].details
    assert first["name"] == "acpgw_…\\x1b[2J\\u202e " + "n" * 43 + " …"
    assert second["kind"].startswith("acpgw_…\\u2066kkk")
    told = repr([scene.audit_events, scene.notes, ann.heard()])
    assert "hunter2" not in told
    assert "n" * 65 not in told


def test_a_cwd_that_is_refused_is_told_redacted_escaped_and_cut(slow: Scene) -> None:
    ann = slow.join("ann")
    path = "/srv/acpgw_hunter2\x1b[2J\u202e" + "p" * 3000
    ann.request("session/new", cwd=path, mcpServers=[])
    slow.directory_check(DirectoryCheckResult(Problem("no", {"cwd": path, "reason": "outside_workspaces"})))
    (audit_event,) = slow.audit_events
    assert audit_event.details["path"].startswith("/srv/acpgw_…\\x1b[2J\\u202eppp")
    assert len(audit_event.details["path"]) < 300
    assert "hunter2" not in repr([slow.audit_events, slow.notes])


def test_what_the_agent_replays_counts_as_replay_for_the_client_that_loads() -> None:
    scene = Scene(agentCapabilities=LOADS)
    ann = scene.join("ann")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    scene.agent.takes("session/load")
    text = encode(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "x"}})
    scene.multiplexer.receive_from_agent([text])
    output = scene.multiplexer.take_output()
    assert (output.to_clients, output.replayed) == ({ann.client: [text]}, {ann.client: len(text)})
