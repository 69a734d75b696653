"""Recipients of an agent's own messages."""

from typing import Any

import pytest

from acp_gateway.core import mcp_servers, routing
from acp_gateway.core.mcp_servers import NAME_LENGTH
from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import Capability
from tests.kit.scene import Peer, Scene, encode, make_policy, opened_scene

FS = frozenset({Capability.FS})


def kinds_of(messages: list[Any]) -> list[str]:
    """The methods of messages, or `response`."""
    return [message.get("method", "response") for message in messages]


def kinds(peer: Peer) -> list[str]:
    """Take a client's messages, as above."""
    return kinds_of(peer.heard())


def said(peer: Peer) -> list[str]:
    """The words of the updates that a client has heard."""
    return [message["params"]["update"]["content"]["text"] for message in peer.heard()]


def strangers(**policy: Any) -> tuple[Scene, Peer, Peer]:
    """Two identities on one process, each with a session of its own: `x` and `y`."""
    scene = Scene(make_policy(**policy), agentCapabilities={"sessionCapabilities": {"close": {}}})
    xena, yuri = scene.join("xena", "x"), scene.join("yuri", "y")
    xena.new_session("x")
    yuri.new_session("y")
    return scene, xena, yuri


def start_turn(scene: Scene, peer: Peer, session_id: str) -> Any:
    """A prompt that the agent works on from now on; what it got."""
    peer.prompt(session_id=session_id)
    return scene.agent.takes("session/prompt")


def end_turn(scene: Scene, peer: Peer, prompt: Any) -> None:
    scene.agent.answer(prompt, stopReason="end_turn")
    peer.inbox.clear()


def subagent(scene: Scene, session_id: str, child: str) -> None:
    scene.agent.state("subagent_update", session_id, sessionId=child)


# Updates.


def test_an_update_goes_verbatim_to_all_clients_of_its_session_and_to_no_other() -> None:
    scene, ann = opened_scene()
    others = [scene.join("bob"), scene.join("watcher", role=Role.OBSERVER)]
    for other in others:
        other.load()
    outsiders = [scene.join("cleo"), scene.join("stranger", "someone else")]
    content = b'{"sessionUpdate":"new","n":1e999,"s":"\\ud83d"}'
    update = b'{"method" : "session/update","params":{"update":%b,"sessionId":"s"}}' % content
    scene.agent.say(update)
    assert [peer.heard_text() for peer in (ann, *others)] == [[update]] * 3
    assert [peer.heard_text() for peer in outsiders] == [[]] * 2


def test_the_audit_has_the_begin_and_the_end_of_a_tool_call_of_a_live_session() -> None:
    scene, xena, yuri = strangers(serves=FS)
    subagent(scene, "x", "child")
    scene.audit_events.clear()
    for status in ("pending", "in_progress", "completed"):
        name = "tool_call" if status == "pending" else "tool_call_update"
        scene.agent.state(name, "x", toolCallId="c", kind="edit", status=status, title="secret", rawInput={})
    scene.agent.state("tool_call", "child", toolCallId="d")
    assert len(xena.heard()) == 5
    assert yuri.heard() == []
    about = {"session": "x", "agent": "agent", "identity": "x"}
    assert [(event.name, event.client, event.details) for event in scene.audit_events] == [
        ("tool_call", None, about | {"toolCallId": "c", "kind": "edit", "status": "pending"}),
        ("tool_call", None, about | {"toolCallId": "c", "kind": "edit", "status": "completed"}),
        ("tool_call", None, about | {"toolCallId": "d", "kind": None, "status": None}),
    ]


def test_a_replayed_tool_call_is_not_audited_again() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.request("session/load", sessionId="old", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/load")
    scene.agent.state("tool_call", "old", toolCallId="c", status="completed")
    scene.agent.answer(asked)
    assert "tool_call" not in {event.name for event in scene.audit_events}
    assert kinds(ann) == ["session/update", "response"]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_updates_that_come_before_the_response_that_names_their_session_reach_who_asked_for_it(scene: Scene) -> None:
    ann, yuri = scene.join("ann"), scene.join("yuri", "y")
    own = [peer.request("session/new", cwd="/srv") for peer in (ann, yuri)]
    asked = scene.agent.heard()
    scene.agent.update("for yuri", "y")
    scene.agent.update("for ann", "a")
    scene.agent.update("for ann again", "a")
    assert ann.heard() == yuri.heard() == []
    scene.agent.answer(asked[0], sessionId="a")
    response, first, second = ann.heard()
    assert [first["params"]["update"]["content"]["text"], second["params"]["sessionId"]] == ["for ann", "a"]
    assert response["id"] == own[0]
    assert yuri.heard() == []
    scene.agent.answer(asked[1], sessionId="y")
    assert kinds(yuri) == ["response", "session/update"]
    assert kinds(ann) == []


@pytest.mark.parametrize("method", ["session/new", "session/fork"])
def test_updates_and_requests_that_come_before_the_response_follow_it_and_are_history(method: str) -> None:
    scene, ann = opened_scene(agentCapabilities={"sessionCapabilities": {"fork": {}}})
    of = {"sessionId": "s"} if method == "session/fork" else {}
    ann.request(method, cwd="/srv", mcpServers=[], **of)
    scene.agent.state("available_commands_update", "n", availableCommands=[])
    scene.agent.ask_permission("q", "n")
    assert not ann.heard()
    scene.agent.answers(method, sessionId="n")
    assert kinds(ann) == ["response", "session/update", "session/request_permission"]
    assert kinds_of(scene.join("bob").load("n")) == ["session/update", "response", "session/request_permission"]


def test_early_updates_of_a_session_that_is_never_opened_are_dropped(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv")
    scene.agent.update("hello", "never")
    scene.agent.send(id=scene.agent.heard()[0]["id"], error={"code": -32603, "message": "no"})
    assert kinds(ann) == ["response"]
    assert scene.notes == ["dropped an update of the agent for no session that is open"]


def test_early_updates_belong_to_a_sub_agent_of_the_running_turn() -> None:
    scene, ann = opened_scene()
    start_turn(scene, ann, "s")
    ann.request("session/new", cwd="/srv")
    scene.agent.update("hello", "child")
    scene.agent.answer(scene.agent.heard()[0], sessionId="t")
    assert kinds(ann) == ["response", "session/update"]


def test_as_long_as_another_session_is_on_its_way_what_is_early_waits(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv")
    ann.request("session/new", cwd="/srv")
    first, second = scene.agent.heard()
    scene.agent.update("hello", "b")
    scene.agent.answer(first, sessionId="a")
    assert kinds(ann) == ["response"]
    scene.agent.answer(second, sessionId="b")
    assert kinds(ann) == ["response", "session/update"]


def closed(scene: Scene, peer: Peer, session_id: str) -> None:
    """The only client of a session closes it."""
    peer.request("session/close", sessionId=session_id)
    scene.agent.answers("session/close")
    peer.heard()


def test_updates_of_an_ended_session_are_not_for_the_next_one_of_its_id() -> None:
    scene, xena, yuri = strangers()
    closed(scene, xena, "x")
    yuri.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.update("a secret of xena's", "x")
    scene.agent.answers("session/new", sessionId="x")
    assert kinds(yuri) == ["response"]
    scene.agent.update("for yuri", "x")
    assert said(yuri) == ["for yuri"]
    assert scene.session("x").journal.position == 1


def test_updates_of_a_session_during_session_delete_are_not_for_the_next_one_of_its_id(scene: Scene) -> None:
    xena, yuri = scene.join("xena", "x"), scene.join("yuri", "y")
    # The agent had it in an earlier process.
    scene.registry.restore(Session("agent", "x", "x", Journal(1000)))
    yuri.request("session/new", cwd="/srv", mcpServers=[])
    new = scene.agent.takes("session/new")
    xena.request("session/delete", sessionId="x")
    scene.agent.update("a secret of xena's", "x")
    scene.agent.answers("session/delete")
    scene.agent.answer(new, sessionId="x")
    assert kinds(yuri) == ["response"]
    assert scene.session("x").journal.position == 0


@pytest.mark.parametrize("name", ["s", "child"])
def test_updates_of_an_ended_session_are_dropped_when_it_is_opened_again(name: str) -> None:
    scene, ann = opened_scene(agentCapabilities={"loadSession": True, "sessionCapabilities": {"close": {}}})
    subagent(scene, "s", "child")
    closed(scene, ann, "s")
    ann.request("session/new", cwd="/srv", mcpServers=[])
    new = scene.agent.takes("session/new")
    scene.agent.update("it is in the history that is told anyway", name)
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    scene.agent.answer(new, sessionId="n")
    scene.agent.answers("session/load")
    assert kinds(ann) == ["response", "response"]


def test_early_updates_are_not_for_a_session_that_is_loaded_under_the_same_id() -> None:
    scene = Scene(agentCapabilities={"loadSession": True, "sessionCapabilities": {"close": {}}})
    ann = scene.join("ann")
    closed(scene, ann, ann.new_session("x"))
    scene.registry.remove(scene.registry.find(ann.client.reach, "agent", "x") or pytest.fail("it is known"))
    ann.request("session/new", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/new")
    scene.agent.update("of the former one", "x")
    ann.request("session/load", sessionId="x", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/load")
    scene.agent.answer(asked, sessionId="n")
    assert kinds(ann) == ["response", "response"]


@pytest.mark.parametrize("well", [True, False])
def test_an_early_agent_request_waits_for_its_session_although_turns_end(well: bool) -> None:
    scene, xena, _ = strangers()
    turn = start_turn(scene, xena, "x")
    xena.request("session/new", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/new")
    scene.agent.ask_permission(5, "coming")
    scene.agent.answer(turn, stopReason="end_turn")
    assert scene.agent.heard() == []
    xena.heard()
    if well:
        scene.agent.answer(asked, sessionId="coming")
        assert kinds(xena) == ["response", "session/request_permission"]
        assert scene.agent.heard() == []
    else:
        scene.agent.send(id=asked["id"], error={"code": -32603, "message": "no"})
        assert kinds(xena) == ["response"]
        assert scene.agent.heard() == [{"jsonrpc": "2.0", "id": 5, "result": {"outcome": {"outcome": "cancelled"}}}]


def test_an_agent_request_of_an_ended_session_is_not_for_the_next_one_of_its_id() -> None:
    scene, xena, yuri = strangers()
    closed(scene, xena, "x")
    yuri.request("session/new", cwd="/srv", mcpServers=[])
    opening = scene.agent.hears()
    scene.agent.ask_permission(5, "x")
    scene.agent.ask_permission(6, "unknown")
    assert scene.agent.heard() == []
    scene.agent.answer(opening, sessionId="x")
    assert kinds(yuri) == ["response"]
    assert scene.agent.heard() == [{"jsonrpc": "2.0", "id": 5, "result": {"outcome": {"outcome": "cancelled"}}}]
    assert len(scene.multiplexer.waiting(None)) == 1


@pytest.mark.parametrize("method", ["session/request_permission", "_vendor/ask"])
@pytest.mark.parametrize("named", ["x", "child"])
def test_an_agent_request_of_an_ended_session_is_answered_with_an_error(method: str, named: str) -> None:
    scene, xena, yuri = strangers()
    subagent(scene, "x", "child")
    closed(scene, xena, "x")
    prompt = start_turn(scene, yuri, "y")
    ended = {"code": -32002, "message": f"session {named} has ended", "data": {"sessionId": named}}
    scene.agent.send(id=5, method=method, params={"sessionId": named})
    assert scene.agent.hears() == {"jsonrpc": "2.0", "id": 5, "error": ended}
    end_turn(scene, yuri, prompt)
    # The response of an opening may give the id to another session.
    yuri.request("session/new", cwd="/srv", mcpServers=[])
    opening = scene.agent.hears()
    scene.agent.send(id=6, method=method, params={"sessionId": named})
    assert scene.agent.inbox == []
    scene.agent.answer(opening, sessionId="z")
    assert scene.agent.hears() == {"jsonrpc": "2.0", "id": 6, "error": ended}
    assert kinds(yuri) == ["response"]


def test_a_sub_agent_of_a_session_that_has_ended_does_not_belong_to_the_next_one_of_its_id() -> None:
    scene, xena, yuri = strangers()
    scene.agent.state("subagent_update", "x", sessionId="child")
    closed(scene, xena, "x")
    yuri.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/new", sessionId="x")
    yuri.heard()
    scene.agent.update("a secret of xena's", "child")
    scene.agent.ask_permission(5, "child")
    assert yuri.heard() == []


def test_a_sub_agent_of_a_session_that_is_open_again_belongs_to_it_as_before() -> None:
    scene, ann = opened_scene(agentCapabilities={"loadSession": True, "sessionCapabilities": {"close": {}}})
    scene.agent.state("subagent_update", sessionId="child")
    closed(scene, ann, "s")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    loading = scene.agent.hears()
    scene.agent.ask_permission(5, "s")
    scene.agent.answer(loading)
    assert kinds(ann) == ["response", "session/request_permission"]
    scene.agent.update("hello", "child")
    assert said(ann) == ["hello"]


def test_early_updates_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "EARLY_SIZE", 300)
    scene = Scene()
    ann = scene.join("ann")
    for _ in range(2):
        ann.request("session/new", cwd="/srv")
    scene.agent.update("first")
    scene.agent.update("x" * 200)
    scene.agent.update("third")
    assert scene.notes == ["dropped an update of the agent: more than 300 bytes came before their session"] * 2
    asked = scene.agent.heard()
    for number, session_id in enumerate(["s", "t"]):
        scene.agent.answer(asked[number], sessionId=session_id)
        assert kinds(ann) == ["response", "session/update"]
        scene.agent.update("fourth", "t")


@pytest.mark.parametrize("params", ["{}", '{"sessionId":7}', "[]"])
def test_an_update_of_no_session_is_dropped(params: str) -> None:
    scene, ann = opened_scene()
    scene.agent.say(f'{{"method":"session/update","params":{params}}}'.encode())
    assert ann.heard() == []
    assert scene.notes == ["dropped an update of the agent for no session that is open"]


# Sessions of sub-agents.


def test_messages_of_an_announced_sub_agent_go_to_the_clients_of_its_parent_session() -> None:
    scene, xena, yuri = strangers()
    start_turn(scene, xena, "x")
    start_turn(scene, yuri, "y")
    subagent(scene, "x", "child")
    xena.heard()
    scene.agent.update("from below", "child")
    scene.agent.ask_permission("q", session_id="child")
    update, agent_request = xena.heard()
    assert update["params"]["sessionId"] == agent_request["params"]["sessionId"] == "child"
    assert yuri.heard() == []
    xena.choose(agent_request, "yes")
    assert scene.agent.hears()["id"] == "q"


def test_a_sub_agent_of_a_sub_agent_belongs_to_the_same_session() -> None:
    scene, xena, yuri = strangers()
    subagent(scene, "x", "child")
    subagent(scene, "child", "grandchild")
    xena.heard()
    scene.agent.update("from far below", "grandchild")
    assert said(xena) == ["from far below"]
    assert yuri.heard() == []


@pytest.mark.parametrize("how", ["ends", "is closed"])
def test_a_permission_request_of_an_unknown_session_is_cancelled_when_the_turns_that_may_own_it_end(how: str) -> None:
    scene, xena, yuri = strangers()
    first, second = start_turn(scene, xena, "x"), start_turn(scene, yuri, "y")
    scene.agent.ask_permission("q", session_id="child")
    end_turn(scene, xena, first)
    assert scene.agent.heard() == []
    if how == "ends":
        end_turn(scene, yuri, second)
    else:
        yuri.request("session/close", sessionId="y")
        scene.agent.answer(scene.agent.takes("session/close"))
    decided = scene.agent.hears()
    assert (decided["id"], decided["result"]) == ("q", {"outcome": {"outcome": "cancelled"}})
    assert scene.multiplexer.waiting(None) == []


def test_a_later_turn_of_another_identity_does_not_keep_a_permission_request_waiting() -> None:
    scene, xena, yuri = strangers()
    zoe = scene.join("zoe", "z")
    zoe.new_session("z")
    prompts = [start_turn(scene, xena, "x"), start_turn(scene, yuri, "y")]
    scene.agent.ask_permission("q", session_id="child")
    start_turn(scene, zoe, "z")
    for prompt in prompts:
        end_turn(scene, xena, prompt)
    assert scene.agent.hears()["id"] == "q"
    assert zoe.heard() == []


def test_an_agent_request_from_before_a_turn_does_not_end_with_it() -> None:
    scene, xena, _ = strangers()
    scene.agent.ask_permission("q", session_id="child of x")
    end_turn(scene, xena, start_turn(scene, xena, "x"))
    assert scene.agent.heard() == []
    assert len(scene.multiplexer.waiting(None)) == 1


def test_messages_of_the_agent_for_a_closed_session_reach_no_client() -> None:
    scene, xena, yuri = strangers()
    subagent(scene, "x", "child")
    xena.request("session/close", sessionId="x")
    scene.agent.answer(scene.agent.takes("session/close"))
    xena.heard()
    start_turn(scene, yuri, "y")
    for session_id in ("x", "child"):
        scene.agent.update("secret", session_id)
        scene.agent.send(method="_vendor/news", params={"sessionId": session_id})
        scene.agent.ask_permission(session_id, session_id=session_id)
    assert xena.heard() == yuri.heard() == []
    assert [answer["error"]["code"] for answer in scene.agent.heard()] == [-32002, -32002]


@pytest.mark.parametrize("named", ["y", "", None])
def test_a_sub_agent_is_not_a_session_that_there_is_and_needs_a_name(named: str | None) -> None:
    scene, xena, yuri = strangers()
    scene.agent.state("subagent_update", "x", **({} if named is None else {"sessionId": named}))
    assert len(xena.heard()) == 1
    scene.agent.update("for yuri", "y")
    assert said(yuri) == ["for yuri"]
    assert xena.heard() == []


def test_a_sub_agents_state_is_not_its_parents(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.new_session(modes={"currentModeId": "ask"})
    subagent(scene, "s", "child")
    scene.agent.state("current_mode_update", "child", currentModeId="code")
    scene.agent.state("session_info_update", "child", title="a part of it")
    assert len(ann.heard()) == 3
    *history, response = scene.join("bob").load()
    assert len(history) == 3
    assert response["result"] == {"modes": {"currentModeId": "ask"}}
    assert scene.multiplexer.sessions[0].title is None


# Notifications.


def test_a_notification_goes_to_who_is_in_its_session_verbatim() -> None:
    scene, xena, yuri = strangers()
    text = b'{"params":{"n":1.10,"sessionId":"x"}, "method":"_vendor/news"}'
    scene.agent.say(text)
    assert xena.heard_text() == [text]
    assert yuri.heard() == []


STATUS = b'{"method":"_auth/status_update","params":{"n":1.10}}'


def test_a_notification_without_a_session_goes_to_all_of_the_only_identity_but_for_who_came_for_one_session() -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    watcher = scene.join("watcher", role=Role.OBSERVER)
    ann.new_session("x")
    guest, phone = scene.join("guest", "guest-1", only="x", guest=True), scene.join("phone", only="x")
    late = scene.join("late", initialize=False)
    scene.agent.say(STATUS)
    assert [peer.heard_text() for peer in (ann, bob, watcher)] == [[STATUS]] * 3
    assert guest.heard() == phone.heard() == late.heard() == []


@pytest.mark.parametrize("running", [(), ("x",), ("x", "y")])
def test_a_notification_without_a_session_that_may_be_of_several_identities_is_dropped(
    running: tuple[str, ...],
) -> None:
    scene, xena, yuri = strangers()
    for session_id in running:
        start_turn(scene, {"x": xena, "y": yuri}[session_id], session_id)
    scene.agent.say(STATUS)
    assert xena.heard() == yuri.heard() == []
    assert scene.notes == ["dropped a notification of the agent that may be of more than one identity"]


ACCOUNT = b'{"method":"auth/status_update","params":{"state":"x","accounts":[{"label":"ann@example.com"}]}}'


def test_the_account_of_an_agent_is_told_to_those_who_control_all_of_it(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.new_session("x")
    others = [
        scene.join("watcher", role=Role.OBSERVER),
        scene.join("guest", "guest-1", only="x", guest=True),
        scene.join("phone", only="x"),
        scene.join("limited", workspaces=("a",)),
        scene.join("late", initialize=False),
    ]
    scene.agent.say(ACCOUNT)
    assert ann.heard_text() == [ACCOUNT]
    assert [peer.heard() for peer in others] == [[]] * len(others)


def test_the_account_of_an_agent_of_several_identities_is_told_to_the_gateways_own_user() -> None:
    scene = Scene(make_policy(common=True))
    me, other = scene.join("me"), scene.join("other", "other")
    start_turn(scene, (other.new_session("x"), other)[1], "x")
    scene.agent.say(ACCOUNT)
    assert me.heard_text() == [ACCOUNT]
    assert other.heard() == []


def test_an_account_that_names_a_session_is_told_in_that_session_alone() -> None:
    scene = Scene(make_policy(common=True))
    me, other, ann = scene.join("me"), scene.join("other", "other"), scene.join("ann")
    start_turn(scene, (other.new_session("x"), other)[1], "x")
    ann.new_session("y")
    for session in ("x", "y", "unknown"):
        scene.agent.send(method="auth/status_update", params={"sessionId": session})
    assert [message["params"]["sessionId"] for message in ann.heard()] == ["y"]
    assert me.heard() == other.heard() == []


def test_the_account_of_an_agent_is_told_in_no_request(scene: Scene) -> None:
    ann = scene.join("ann")
    scene.agent.send(id=5, method="auth/status_update", params={"state": "x"})
    assert scene.agent.hears()["error"]["code"] == -32600
    assert ann.heard() == []


def test_a_notification_for_no_session_that_is_open_is_dropped() -> None:
    scene, xena, yuri = strangers()
    closed(scene, xena, "x")
    scene.agent.send(method="_vendor/news", params={"sessionId": "x"})
    assert xena.heard() == yuri.heard() == []
    assert scene.notes == ["dropped a notification of the agent for no session that is open"]


# Requests that one client is asked.


def test_a_method_that_the_gateway_does_not_know_is_asked_of_who_began_the_turn(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    bob.load()
    start_turn(scene, ann, "s")
    bob.heard()
    scene.agent.send(id="q", method="craft/ask", params={"sessionId": "s"})
    assert bob.heard() == []
    ann.send(id=ann.hears()["id"], error={"code": 1, "message": "no"})
    assert scene.agent.hears() == {"jsonrpc": "2.0", "id": "q", "error": {"code": 1, "message": "no"}}


def test_without_a_turn_it_is_asked_of_the_host(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    bob.load()
    scene.agent.send(id="q", method="craft/ask", params={"sessionId": "s"})
    assert kinds(bob) == ["craft/ask"]
    assert ann.heard() == []


def test_an_agent_request_does_not_go_to_a_client_that_has_left_its_turn(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    bob.load()
    start_turn(scene, bob, "s")
    ann.heard()
    bob.gone()
    scene.agent.send(id="q", method="craft/ask", params={"sessionId": "s"})
    assert kinds(ann) == ["craft/ask"]


# Requests about no session.


def test_without_a_turn_it_is_asked_of_the_only_identity_that_there_is(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    scene.join("watcher", role=Role.OBSERVER)
    scene.join("guest", "guest-1", only="s", guest=True)
    ann.away()
    scene.agent.send(id="q", method="craft/ask", params={})
    assert kinds(bob) == ["craft/ask"]
    assert ann.heard() == []


def test_an_agent_request_without_a_session_waits_while_there_are_several_identities() -> None:
    scene, xena, yuri = strangers()
    scene.agent.send(id="q", method="craft/ask", params={})
    assert xena.heard() == yuri.heard() == []
    assert len(scene.multiplexer.waiting(None)) == 1
    start_turn(scene, yuri, "y")
    assert yuri.heard() == []


def test_an_agent_request_without_a_session_is_sent_once_a_client_is_connected() -> None:
    scene, ann = opened_scene()
    ann.away()
    scene.agent.send(id="q1", method="craft/ask", params={})
    assert ann.heard() == []
    ann.back()
    assert kinds(ann) == ["craft/ask"]
    ann.gone()
    scene.agent.heard()
    scene.agent.send(id="q2", method="craft/ask", params={})
    bob = scene.join("bob", initialize=False)
    bob.request("initialize", protocolVersion=1)
    assert kinds(bob) == ["response", "craft/ask"]


def test_a_permission_request_without_a_session_goes_to_all_clients_of_the_only_identity(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    scene.agent.send(id="q", method="session/request_permission", params={"options": [{"optionId": "yes"}]})
    agent_request, other = ann.hears(), bob.hears()
    ann.choose(agent_request, "yes")
    assert scene.agent.hears()["id"] == "q"
    assert bob.hears()["params"] == {"requestId": other["id"]}


# The host.


@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/new_in_some_version", "terminal/create", "terminal/x"])
def test_an_agent_request_for_a_capability_that_was_not_offered_is_refused(method: str) -> None:
    scene, xena, _ = strangers()
    scene.agent.send(id="q", method=method, params={"sessionId": "x", "path": "/secret"})
    assert scene.agent.hears()["error"]["code"] == -32601
    assert xena.heard() == []
    assert scene.notes == [
        f"refused a message of the agent: {method!r} was not offered: the client works on another machine"
    ]


def test_files_are_asked_for_at_the_host_only_who_loaded_the_session_last() -> None:
    scene = Scene(make_policy(serves=FS))
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    scene.agent.send(id=1, method="fs/read_text_file", params={"sessionId": "s", "path": "/srv/a"})
    ann.send(id=ann.hears()["id"], result={"content": "ann's"})
    bob.load()
    scene.agent.send(id=2, method="fs/write_text_file", params={"sessionId": "s", "path": "/srv/a"})
    bob.send(id=bob.hears()["id"], result=None)
    assert ann.heard() == []
    assert [message["result"] for message in scene.agent.heard()] == [{"content": "ann's"}, None]


def test_an_agent_request_for_the_host_fails_when_the_host_has_gone() -> None:
    scene = Scene(make_policy(serves=FS))
    ann, bob = scene.join("ann"), scene.join("bob")
    bob.new_session()
    ann.load()
    scene.agent.send(id=1, method="fs/read_text_file", params={"sessionId": "s", "path": "/srv/a"})
    ann.gone()
    assert scene.agent.hears()["error"]["code"] == -32800
    scene.agent.send(id=2, method="fs/read_text_file", params={"sessionId": "s", "path": "/srv/a"})
    assert scene.agent.hears()["error"] == {
        "code": -32603,
        "message": "the client that serves files and terminals for this session has gone",
        "data": {"reason": "host_gone"},
    }
    assert bob.heard() == []


def test_a_host_that_is_away_is_still_the_host() -> None:
    scene, ann = opened_scene(make_policy(serves=FS))
    ann.away()
    scene.agent.send(id=1, method="fs/read_text_file", params={"sessionId": "s", "path": "/srv/a"})
    ann.back()
    ann.send(id=ann.hears()["id"], result={"content": ""})
    assert scene.agent.hears()["result"] == {"content": ""}


def test_files_of_a_sub_agent_are_its_parents_hosts() -> None:
    scene, xena, yuri = strangers(serves=FS)
    subagent(scene, "x", "child")
    xena.heard()
    scene.agent.send(id=1, method="fs/read_text_file", params={"sessionId": "child", "path": "/srv/a"})
    assert kinds(xena) == ["fs/read_text_file"]
    assert yuri.heard() == []


def test_an_agent_request_for_files_of_an_unknown_session_is_refused() -> None:
    scene, xena, yuri = strangers(serves=FS)
    scene.agent.send(id=1, method="fs/read_text_file", params={"sessionId": "unknown", "path": "/srv/a"})
    assert scene.agent.hears()["error"]["code"] == -32800
    assert xena.heard() == yuri.heard() == []


def test_files_of_a_session_whose_response_is_on_its_way_are_asked_for_when_it_has_come() -> None:
    scene = Scene(make_policy(serves=FS))
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv")
    asked = scene.agent.takes("session/new")
    scene.agent.send(id=1, method="fs/read_text_file", params={"sessionId": "s", "path": "/srv/a"})
    assert ann.heard() == scene.agent.heard() == []
    scene.agent.answer(asked, sessionId="s")
    assert kinds(ann) == ["response", "fs/read_text_file"]


def test_a_server_of_tools_that_names_no_session_is_the_only_clients(scene: Scene) -> None:
    ann = scene.join("ann")
    scene.agent.send(id=1, method="mcp/connect", params={"serverId": "tools"})
    assert kinds(ann) == ["mcp/connect"]
    scene.join("bob")
    scene.agent.send(id=2, method="mcp/connect", params={"serverId": "tools"})
    assert scene.agent.hears()["error"]["code"] == -32800


def connected(scene: Scene, peer: Peer, name: str = "c") -> None:
    """The agent connects to a server of the only client that is there."""
    scene.agent.send(id="k", method="mcp/connect", params={"serverId": "tools"})
    peer.send(id=peer.hears()["id"], result={"connectionId": name})
    assert scene.agent.hears()["result"] == {"connectionId": name}


def test_messages_of_a_server_are_those_of_the_client_that_has_it(scene: Scene) -> None:
    ann = scene.join("ann")
    connected(scene, ann)
    bob = scene.join("bob")
    # To the client.
    scene.agent.send(id=2, method="mcp/message", params={"connectionId": "c", "method": "tools/list"})
    assert (kinds(ann), kinds(bob)) == (["mcp/message"], [])
    # From it.
    for peer, passes in ((ann, True), (bob, False)):
        peer.send(method="mcp/message", params={"connectionId": "c", "method": "x"})
        assert [told["method"] for told in scene.agent.heard()] == ["mcp/message"] * passes
        peer.request("mcp/message", connectionId="c")
        assert [asked["method"] for asked in scene.agent.heard()] == ["mcp/message"] * passes
        assert [answer["error"]["code"] for answer in peer.heard()] == [-32602] * (not passes)
    # None has its name.
    scene.agent.send(id=3, method="mcp/disconnect", params={"connectionId": "c"})
    assert (kinds(ann), kinds(bob)) == (["mcp/disconnect"], [])
    ann.send(method="mcp/message", params={"connectionId": "c", "method": "x"})
    assert scene.agent.heard() == []


def test_no_other_request_goes_to_the_client_of_a_connection(scene: Scene) -> None:
    ann = scene.join("ann")
    connected(scene, ann)
    bob = scene.join("bob")
    bob.new_session("t")
    scene.agent.send(
        id=7, method="session/request_permission", params={"sessionId": "t", "connectionId": "c", "options": []}
    )
    assert (kinds(ann), kinds(bob)) == ([], ["session/request_permission"])


@pytest.mark.parametrize("params", [{}, {"connectionId": "d"}, {"connectionId": 1}, {"serverId": "tools"}])
def test_a_message_of_no_server_is_refused(params: dict[str, Any], scene: Scene) -> None:
    ann = scene.join("ann")
    connected(scene, ann)
    ann.request("mcp/message", **params)
    assert ann.hears()["error"]["code"] == -32602
    assert scene.agent.heard() == []


def test_two_clients_name_their_connections_alike(scene: Scene) -> None:
    peers = scene.join("ann"), scene.join("bob"), scene.join("cid")
    names = ["c", "c-2", "c-3"]
    for peer, known in zip(peers, names, strict=True):
        peer.new_session(known)
        scene.agent.send(id=4, method="mcp/connect", params={"sessionId": known, "serverId": "tools"})
        peer.send(id=peer.hears()["id"], result={"connectionId": "c", "x": 1})
        assert scene.agent.hears()["result"] == {"connectionId": known, "x": 1}
    for peer, known in zip(peers, names, strict=True):
        # To the client.
        scene.agent.send(id=5, method="mcp/message", params={"connectionId": known, "method": "x"})
        scene.agent.send(method="mcp/message", params={"connectionId": known, "method": "y"})
        assert [message["params"] for message in peer.heard()] == [
            {"connectionId": "c", "method": method} for method in "xy"
        ]
        # From it.
        peer.send(method="mcp/message", params={"connectionId": "c", "method": "z"})
        peer.request("mcp/message", connectionId="c", x=1)
        assert [message["params"] for message in scene.agent.heard()] == [
            {"connectionId": known, "method": "z"},
            {"connectionId": known, "x": 1},
        ]
    ann, bob, _ = peers
    scene.agent.send(method="mcp/disconnect", params={"connectionId": "c-2"})
    assert bob.hears()["params"] == {"connectionId": "c"}
    for peer in (ann, bob):
        peer.send(method="mcp/message", params={"connectionId": "c", "method": "x"})
    assert [told["params"]["connectionId"] for told in scene.agent.heard()] == ["c"]


def test_a_client_may_name_a_connection_as_the_gateway_has(scene: Scene) -> None:
    given: list[str] = []
    for name in ("c", "c", "c-2", "c-2"):
        peer = scene.join(f"{name}{len(given)}")
        peer.new_session(f"s{len(given)}")
        scene.agent.send(id=4, method="mcp/connect", params={"sessionId": f"s{len(given)}", "serverId": "tools"})
        peer.send(id=peer.hears()["id"], result={"connectionId": name})
        given.append(scene.agent.hears()["result"]["connectionId"])
    assert given == ["c", "c-2", "c-2-2", "c-2-3"]


@pytest.mark.parametrize("asks", [True, False])
def test_a_client_ends_its_own_connections_only(*, asks: bool, scene: Scene) -> None:
    ann = scene.join("ann")
    connected(scene, ann)
    bob, cid = scene.join("bob"), scene.join("cid")
    bob.new_session("t")
    scene.agent.send(id=4, method="mcp/connect", params={"sessionId": "t", "serverId": "tools"})
    bob.send(id=bob.hears()["id"], result={"connectionId": "c"})
    assert scene.agent.hears()["result"] == {"connectionId": "c-2"}
    ends = {"method": "mcp/disconnect", "params": {"connectionId": "c"}} | ({"id": 50} if asks else {})
    cid.send(**ends)
    assert scene.agent.heard() == []
    assert [answer["error"]["code"] for answer in cid.heard()] == [-32602] * asks
    bob.send(**ends)
    assert scene.agent.hears()["params"] == {"connectionId": "c-2"}
    # It has ended, and the other one has not.
    bob.send(**ends | {"id": 51})
    assert bob.hears()["error"]["code"] == -32602
    scene.agent.send(method="mcp/message", params={"connectionId": "c", "method": "x"})
    assert kinds(ann) == ["mcp/message"]


def test_a_connection_with_an_endless_name_is_refused(scene: Scene) -> None:
    ann = scene.join("ann")
    for length in (NAME_LENGTH, NAME_LENGTH + 1):
        scene.agent.send(id="k", method="mcp/connect", params={"serverId": "tools"})
        ann.send(id=ann.hears()["id"], result={"connectionId": "c" * length})
        assert ("result" in scene.agent.hears()) == (length == NAME_LENGTH)
    ann.request("mcp/message", connectionId="c" * length)
    assert ann.hears()["error"]["code"] == -32602


def test_a_name_that_is_given_twice_reaches_the_agent_once(scene: Scene) -> None:
    connected(scene, scene.join("ann"))
    bob = scene.join("bob")
    bob.new_session("t")
    scene.agent.send(id=4, method="mcp/connect", params={"sessionId": "t", "serverId": "tools"})
    text = b'{"jsonrpc":"2.0","id":%d,"result":{"connectionId":"c","connectionId":"d"}}' % bob.hears()["id"]
    scene.multiplexer.receive_from_client(bob.client, text)
    scene.deliver()
    assert scene.agent.heard_text() == [b'{"jsonrpc":"2.0","id":4,"result":{"connectionId":"d"}}']


@pytest.mark.parametrize("method", ["mcp/message", "mcp/disconnect"])
def test_a_message_of_the_agent_in_an_unknown_connection_goes_to_no_client(method: str) -> None:
    """The client of its session may be another one than that of the server."""
    scene, ann = opened_scene()
    params = {"sessionId": "s", "connectionId": "c", "method": "x"}
    scene.agent.send(method=method, params=params)
    scene.agent.send(id=6, method=method, params=params)
    answer = scene.agent.hears()
    why = "no client has this connection to an MCP server"
    assert (answer["id"], answer["error"]) == (6, {"code": -32602, "message": f"{method}: {why}"})
    assert scene.notes == [f"dropped a notification of the agent: {why}"]
    assert ann.heard() == []


def test_the_errors_of_clients_that_open_no_connection_reach_the_agent(scene: Scene) -> None:
    for name in ("ann", "bob"):
        peer = scene.join(name)
        peer.new_session(name)
        scene.agent.send(id=name, method="mcp/connect", params={"sessionId": name, "serverId": "tools"})
        peer.send(id=peer.hears()["id"], error={"code": -32603, "message": f"not {name}'s"})
        assert scene.agent.hears()["error"]["message"] == f"not {name}'s"


def test_the_oldest_connection_is_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_servers, "MAX_CONNECTIONS", 2)
    scene = Scene()
    ann = scene.join("ann")
    for name in ("a", "b", "c"):
        connected(scene, ann, name)
    for name in ("a", "b", "c"):
        ann.send(method="mcp/message", params={"connectionId": name, "method": "x"})
    assert [told["params"]["connectionId"] for told in scene.agent.heard()] == ["b", "c"]


def test_a_connection_ends_with_its_client_and_with_the_agent(scene: Scene) -> None:
    ann = scene.join("ann")
    connected(scene, ann)
    ann.gone()
    bob = scene.join("bob")
    connected(scene, bob)
    scene.lose_agent()
    bob.send(method="mcp/message", params={"connectionId": "c", "method": "x"})
    assert scene.agent.heard() == []


def test_a_client_has_its_connections_over_another_link_too(scene: Scene) -> None:
    ann = scene.join("ann", link="l1")
    ann.new_session()
    connected(scene, ann)
    ann.gone()
    bob, ann = scene.join("bob", link="l2"), scene.join("ann", link="l3")
    for peer, link in ((bob, "l2"), (ann, "l1")):
        peer.comes_back(connection=link)
        peer.heard()
    for peer, passes in ((bob, False), (ann, True)):
        peer.send(method="mcp/message", params={"connectionId": "c", "method": "x"})
        assert [told["method"] for told in scene.agent.heard()] == ["mcp/message"] * passes
    scene.agent.send(id=6, method="mcp/message", params={"connectionId": "c", "method": "x"})
    assert (kinds(ann), kinds(bob)) == (["mcp/message"], [])


@pytest.mark.parametrize("identity", ["me", "other"])
@pytest.mark.parametrize("method", ["mcp/message", "mcp/disconnect"])
def test_notifications_of_a_server_are_those_of_the_client_that_has_it(method: str, identity: str) -> None:
    scene = Scene()
    ann = scene.join("ann")
    connected(scene, ann)
    bob = scene.join("bob", identity)
    scene.agent.send(method=method, params={"connectionId": "c", "method": "x"})
    assert (kinds(ann), kinds(bob)) == ([method], [])


def test_no_other_client_gets_the_messages_of_a_server_whose_client_has_gone(scene: Scene) -> None:
    ann = scene.join("ann", link="l1")
    connected(scene, ann)
    ann.gone()
    bob = scene.join("bob", link="l2")
    bob.new_session()
    params = {"sessionId": "s", "connectionId": "c", "method": "x"}
    scene.agent.send(method="mcp/message", params=params)
    scene.agent.send(id=6, method="mcp/message", params=params)
    answer = scene.agent.hears()
    assert (answer["id"], answer["error"]["code"]) == (6, -32800)
    assert bob.heard() == []


@pytest.mark.parametrize("identity", ["ann", "bob"])
def test_the_name_of_a_connection_whose_client_may_come_back_is_not_given_again(identity: str, scene: Scene) -> None:
    ann = scene.join("ann", "ann", link="l1")
    ann.new_session()
    connected(scene, ann)
    ann.gone()
    other = scene.join("other", identity, link="l2")
    other.new_session("t")
    other.heard()
    scene.agent.send(id="k", method="mcp/connect", params={"sessionId": "t", "serverId": "tools"})
    other.send(id=other.hears()["id"], result={"connectionId": "c"})
    assert scene.agent.hears()["result"] == {"connectionId": "c-2"}
    again = scene.join("again", "ann", link="l3")
    again.comes_back(connection="l1")
    again.heard()
    for peer, known in ((again, "c"), (other, "c-2")):
        peer.send(method="mcp/message", params={"connectionId": "c", "method": "x"})
        assert [told["params"]["connectionId"] for told in scene.agent.heard()] == [known]
        scene.agent.send(method="mcp/message", params={"connectionId": known, "method": "y"})
        assert peer.hears()["params"] == {"connectionId": "c", "method": "y"}


def test_a_client_tells_about_a_request_of_a_server_that_it_was_asked(scene: Scene) -> None:
    ann = scene.join("ann")
    scene.agent.send(id=5, method="mcp/message", params={"serverId": "tools", "requestId": "r", "method": "tools/call"})
    (asked,) = ann.heard()
    bob = scene.join("bob")
    progress = {"serverId": "tools", "requestId": "r", "method": "notifications/progress"}
    for peer, passes in ((ann, True), (bob, False)):
        peer.send(method="mcp/message", params=progress)
        assert [told["params"] for told in scene.agent.heard()] == [progress] * passes
    ann.send(id=asked["id"], result={"result": {}})
    assert scene.agent.hears()["id"] == 5
    ann.send(method="mcp/message", params=progress)
    assert scene.agent.heard() == []


# Elicitations.


def test_an_elicitation_because_of_a_request_goes_to_its_sender_under_the_senders_id(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    for peer in (ann, bob):
        peer.say(b'{"id":"own","method":"authenticate","params":{}}')
    first, _ = scene.agent.heard()
    text = b'{"id":9,"method":"elicitation/create","params":{"requestId":%b ,"message":"who?"}}'
    scene.agent.say(text % (b"%d.0" % first["id"]))
    assert ann.heard_text() == [(text % b'"own"').replace(b'"id":9', b'"id":1')]
    assert bob.heard() == []
    ann.send(id=1, result={"action": "accept"})
    assert scene.agent.hears() == {"jsonrpc": "2.0", "id": 9, "result": {"action": "accept"}}


@pytest.mark.parametrize("params", [{}, {"requestId": 99}, {"requestId": "1"}, {"requestId": None}])
def test_an_elicitation_because_of_no_request_that_is_open_counts_as_cancelled(params: Any, scene: Scene) -> None:
    ann = scene.join("ann")
    scene.agent.send(id=9, method="elicitation/create", params=params)
    assert scene.agent.hears()["result"] == {"action": "cancel"}
    assert ann.heard() == []


def test_an_elicitation_because_of_the_gateways_own_request_counts_as_cancelled(scene: Scene) -> None:
    ann = scene.join("ann", initialize=False)
    ann.request("initialize", protocolVersion=1)
    asked = scene.agent.takes("initialize")
    scene.agent.send(id=9, method="elicitation/create", params={"requestId": asked["id"]})
    assert scene.agent.hears()["result"] == {"action": "cancel"}
    assert ann.heard() == []


def test_an_elicitation_whose_sender_is_gone_counts_as_cancelled_whether_it_was_asked_or_not(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.request("authenticate")
    asked = scene.agent.hears()
    scene.agent.send(id=8, method="elicitation/create", params={"requestId": asked["id"]})
    ann.gone()
    scene.agent.send(id=9, method="elicitation/create", params={"requestId": asked["id"]})
    assert [(message["id"], message["result"]) for message in scene.agent.heard()] == [
        (8, {"action": "cancel"}),
        (9, {"action": "cancel"}),
    ]


def complete_elicitation(scene: Scene, **params: Any) -> None:
    """Request a URL elicitation."""
    scene.agent.send(
        id=9, method="elicitation/create", params={"mode": "url", "elicitationId": "page", "url": "https://a"} | params
    )


def visited(scene: Scene) -> None:
    scene.agent.send(method="elicitation/complete", params={"elicitationId": "page"})


def test_that_a_page_was_visited_is_told_once_to_the_controllers_of_its_session_late_ones_as_well(scene: Scene) -> None:
    ann, outsider = scene.join("ann"), scene.join("outsider")
    ann.new_session()
    complete_elicitation(scene, sessionId="s")
    late, watcher = scene.join("late"), scene.join("watcher", role=Role.OBSERVER)
    late.load()
    watcher.load()
    ann.send(id=ann.hears()["id"], result={"action": "accept"})
    for peer in (late, watcher):
        peer.heard()
    visited(scene)
    visited(scene)
    assert kinds(ann) == kinds(late) == ["elicitation/complete"]
    assert watcher.heard() == outsider.heard() == []


def test_the_completion_of_an_elicitation_does_not_go_to_detached_clients(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    bob.load()
    complete_elicitation(scene, sessionId="s")
    bob.request("session/close", sessionId="s")
    bob.heard()
    visited(scene)
    assert bob.heard() == []
    assert kinds(ann) == ["elicitation/create", "elicitation/complete"]


def test_that_the_page_of_a_request_was_visited_is_told_its_sender(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.request("authenticate")
    complete_elicitation(scene, requestId=scene.agent.hears()["id"])
    visited(scene)
    assert kinds(ann) == ["elicitation/create", "elicitation/complete"]
    assert bob.heard() == []


@pytest.mark.parametrize("params", [{"elicitationId": "other"}, {}, {"elicitationId": 7}])
def test_elicitation_complete_for_an_unknown_elicitation_reaches_no_client(params: Any) -> None:
    scene, ann = opened_scene()
    complete_elicitation(scene, sessionId="s")
    ann.heard()
    scene.agent.send(method="elicitation/complete", params=params)
    assert ann.heard() == []


def test_elicitations_of_an_ended_agent_are_forgotten() -> None:
    scene, ann = opened_scene(agentCapabilities={"loadSession": True})
    complete_elicitation(scene, sessionId="s")
    scene.lose_agent()
    ann.prompt()
    scene.agent.answer(scene.agent.heard()[-1], **scene.welcome)
    scene.agent.answer(scene.agent.takes("session/load"))
    scene.agent.answer(scene.agent.takes("session/prompt"), stopReason="end_turn")
    ann.heard()
    visited(scene)
    assert ann.heard() == []


# Times of updates


def times_of(scene: Scene, session_id: str = "s") -> list[int | None]:
    """Return the times of all updates of a session."""
    journal = scene.session(session_id).journal
    return journal.times(0, journal.position)


def test_each_update_has_the_time_of_day_at_which_its_batch_came(scene: Scene) -> None:
    ann = scene.join("ann")
    scene.pass_time(0.0, 1000)
    ann.new_session()
    session = scene.session()
    assert (session.created_at, session.active_at) == (1000, None)
    scene.agent.update("one")
    scene.pass_time(1.0, 2000)
    scene.agent.update("two")
    scene.agent.state("current_mode_update", currentModeId="plan")
    # The clock may be set back.
    scene.pass_time(2.0, 500)
    ann.prompt()
    assert times_of(scene) == [1000, 2000, 2000, 500]
    assert (session.created_at, session.active_at) == (1000, 500)


def test_without_a_time_of_day_updates_have_none(scene: Scene) -> None:
    scene.join("ann").new_session()
    scene.agent.update("one")
    session = scene.session()
    assert (times_of(scene), session.created_at, session.active_at) == ([None], None, None)


def test_a_fork_has_the_times_of_its_parent() -> None:
    scene, ann = opened_scene()
    scene.pass_time(0.0, 1000)
    scene.agent.update("one")
    scene.pass_time(1.0, 2000)
    ann.request("session/fork", sessionId="s", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/fork", sessionId="f")
    scene.agent.update("two", "f")
    assert (times_of(scene), times_of(scene, "f")) == ([1000], [1000, 2000])
    assert scene.session("f").created_at == 2000


def test_what_the_agent_replays_has_no_times() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    scene.pass_time(0.0, 1000)
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    load = scene.agent.takes("session/load")
    scene.agent.update("long ago")
    scene.agent.answer(load)
    scene.agent.update("now")
    assert times_of(scene) == [None, 1000]


def test_what_turns_out_not_to_be_an_echo_has_the_time_at_which_that_is_known() -> None:
    scene, ann = opened_scene()
    scene.pass_time(0.0, 1000)
    ann.prompt("hello")
    scene.agent.state("user_message_chunk", content={"type": "text", "text": "he"})
    scene.pass_time(1.0, 2000)
    scene.agent.update("what?")
    assert times_of(scene) == [1000, 2000, 2000]


@pytest.mark.parametrize("method", ["mcp/message", "mcp/disconnect"])
def test_a_message_without_the_name_of_a_connection_is_of_none(method: str) -> None:
    connections, ann = mcp_servers.McpConnections(), Scene().join("ann").client
    message = jsonrpc.parse(encode(method=method, params={"x": 1}))
    assert connections.of(message) is None
    assert connections.for_agent(ann, message, []) is None
