"""Sessions that no client opened: whose they are, and who is shown what may be another's."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from acp_gateway.core.sessions import sub_agents
from acp_gateway.core.sessions.session import Role, SessionReach
from acp_gateway.core.sessions.sub_agents import SubAgents
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.text.pairs import text_of
from tests.kit.scene import Peer, Scene, encode, make_policy

BOTH = frozenset({Capability.FS, Capability.TERMINAL})
FILES: dict[str, Any] = {"clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}}
SECRET = "what a sub-agent says"

SAID: dict[str, dict[str, Any]] = {
    "update": {
        "method": "session/update",
        "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": SECRET}},
    },
    "notification": {"method": "_vendor/news", "text": SECRET},
    "account": {"method": "auth/status_update", "text": SECRET},
}
ASKED: dict[str, dict[str, Any]] = {
    "permission": {
        "method": "session/request_permission",
        "toolCall": {"toolCallId": SECRET, "title": SECRET},
        "options": [{"optionId": "yes", "name": "yes", "kind": "allow_once"}],
    },
    "form": {"method": "elicitation/create", "mode": "form", "message": SECRET, "requestedSchema": {}},
    "private": {"method": "_vendor/ask", "text": SECRET},
}
SERVED: dict[str, dict[str, Any]] = {
    "file": {"method": "fs/read_text_file", "path": f"/srv/{SECRET}"},
    "terminal": {"method": "terminal/create", "command": SECRET},
    "server": {"method": "mcp/connect", "serverId": SECRET},
}
each_message = pytest.mark.parametrize("kind", [*SAID, *ASKED, *SERVED])
each_question = pytest.mark.parametrize("kind", [*ASKED])


def sends(scene: Scene, kind: str, session_id: str | None = "child") -> None:
    """The agent sends a message of this kind under an id; a request has the id `q`."""
    params = dict((SAID | ASKED | SERVED)[kind])
    method = params.pop("method")
    named = {} if session_id is None else {"sessionId": session_id}
    scene.agent.send(method=method, params=named | params, **({} if kind in SAID else {"id": "q"}))


def opens(scene: Scene, peer: Peer, session_id: str, *, works: bool = False) -> Any:
    """A client opens a session; return the prompt that the agent works on there, if it does."""
    peer.new_session(session_id)
    if not works:
        return None
    peer.prompt(session_id=session_id)
    return scene.agent.takes("session/prompt")


def heard_of(peer: Peer) -> list[str]:
    """The messages about the sub-agent that a client has got."""
    return [json.dumps(message) for message in peer.heard() if SECRET in json.dumps(message)]


def shown(scene: Scene, session_id: str, identity: str, **reach: Any) -> list[str | None]:
    """The titles of what waits in a session, as a viewer is shown them."""
    viewer = SessionReach(identity, **reach)
    return [request.title for request in scene.multiplexer.waiting(scene.session(session_id), viewer)]


def crowd(**policy: Any) -> tuple[Scene, Peer, Peer, list[Peer]]:
    """Xena and Yuri at one agent; her turn is over and his runs; and clients that see a part of his sessions."""
    scene = Scene(make_policy(**policy))
    xena, yuri = scene.join("xena", "x", **FILES), scene.join("yuri", "y", **FILES)
    over = opens(scene, xena, "x", works=True)
    scene.agent.answer(over, stopReason="end_turn")
    opens(scene, yuri, "y", works=True)
    others = [
        scene.join("guest", "guest-1", only="y", guest=True, **FILES),
        scene.join("watcher", "y", Role.OBSERVER, **FILES),
        scene.join("phone", "y", only="y", **FILES),
        scene.join("limited", "y", workspaces=("a",), **FILES),
    ]
    for peer in others:
        peer.load("y")
    for peer in (xena, yuri, *others):
        peer.heard()
    return scene, xena, yuri, others


@each_message
@pytest.mark.parametrize("named", ["child", None])
def test_what_a_sub_agent_says_after_its_turn_reaches_no_client_while_another_identity_is_there(
    kind: str, named: str | None
) -> None:
    scene, xena, yuri, others = crowd(serves=BOTH, common=True)
    before = scene.session("y").journal.position
    sends(scene, kind, named)
    assert [heard_of(peer) for peer in (xena, yuri, *others)] == [[]] * 6
    assert scene.session("y").journal.position == before
    # A form without a session belongs to a request of a client, which it does not name.
    is_refused = kind in SERVED or (kind, named) == ("form", None)
    assert [answer["id"] for answer in scene.agent.heard()] == ["q"] * is_refused
    assert len(scene.multiplexer.waiting(None)) == (kind in ASKED and not is_refused)


@each_message
def test_among_sessions_of_one_identity_who_sees_only_a_part_of_them_is_not_told_nor_asked(kind: str) -> None:
    scene = Scene(make_policy(serves=BOTH))
    ann = scene.join("ann", **FILES)
    opens(scene, ann, "other")
    opens(scene, ann, "s", works=True)
    others = [
        scene.join("guest", "guest-1", only="s", guest=True),
        scene.join("watcher", role=Role.OBSERVER),
        scene.join("phone", only="s"),
        scene.join("limited", workspaces=("a",)),
    ]
    for peer in others:
        peer.load("s")
    for peer in (ann, *others):
        peer.heard()
    before = scene.session("s").journal.position
    sends(scene, kind)
    assert [heard_of(peer) for peer in others] == [[]] * 4
    assert len(heard_of(ann)) == (kind != "account")
    assert scene.session("s").journal.position == before
    late = scene.join("late", "guest-2", only="s", guest=True)
    assert SECRET not in json.dumps(late.load("s"))


def test_of_two_turns_of_one_identity_the_clients_of_both_are_asked_at_once() -> None:
    scene = Scene()
    ann, bob, cleo = (scene.join(name) for name in ("ann", "bob", "cleo"))
    opens(scene, ann, "a", works=True)
    opens(scene, bob, "b", works=True)
    opens(scene, cleo, "c")
    sends(scene, "permission")
    (asked,) = (message for message in bob.heard() if message.get("id"))
    assert (len(heard_of(ann)), heard_of(cleo)) == (1, [])
    assert [shown(scene, name, "me") for name in "abc"] == [[SECRET], [SECRET], []]
    bob.choose(asked, "yes")
    assert scene.agent.hears()["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert ann.hears()["method"] == "$/cancel_request"


def test_a_client_that_joins_one_of_the_sessions_is_asked_and_one_that_leaves_them_all_is_not_any_more() -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    opens(scene, ann, "a")
    opens(scene, ann, "b", works=True)
    sends(scene, "permission")
    ann.heard()
    bob.load("b")
    assert len(heard_of(ann)) == 0
    (asked,) = scene.multiplexer.waiting(scene.session("b"), SessionReach("me"))
    assert set(asked.forwarded_ids) == {ann.client, bob.client}
    bob.request("session/close", sessionId="b")
    assert set(asked.forwarded_ids) == {ann.client}
    ann.gone()
    assert scene.agent.heard() == []
    cleo = scene.join("cleo")
    cleo.load("b")
    assert set(asked.forwarded_ids) == {cleo.client}


# Whose an id is.


def test_an_id_that_was_used_while_the_process_had_one_session_belongs_to_that_for_good() -> None:
    scene = Scene()
    xena = scene.join("xena", "x")
    guest = scene.join("guest", "guest-1", only="x", guest=True)
    opens(scene, xena, "x")
    guest.load("x")
    guest.heard()
    sends(scene, "update")
    yuri = scene.join("yuri", "y")
    opens(scene, yuri, "y", works=True)
    sends(scene, "update")
    assert (len(heard_of(xena)), len(heard_of(guest)), heard_of(yuri)) == (2, 2, [])
    assert scene.session("x").journal.position == 2
    sends(scene, "update", "another child")
    assert [heard_of(peer) for peer in (xena, guest, yuri)] == [[]] * 3


def test_an_id_that_was_used_while_the_process_had_one_identity_is_not_in_doubt_among_several() -> None:
    scene = Scene()
    xena = scene.join("xena", "x")
    opens(scene, xena, "x")
    opens(scene, xena, "x2")
    sends(scene, "update")
    yuri = scene.join("yuri", "y")
    opens(scene, yuri, "y", works=True)
    sends(scene, "permission")
    assert (len(heard_of(xena)), heard_of(yuri)) == (2, [])


def test_what_was_asked_before_another_identity_came_is_not_in_doubt_among_several() -> None:
    scene = Scene()
    xena = scene.join("xena", "x")
    opens(scene, xena, "x")
    opens(scene, xena, "x2")
    sends(scene, "permission", None)
    yuri = scene.join("yuri", "y")
    opens(scene, yuri, "y", works=True)
    assert (shown(scene, "x", "x"), shown(scene, "y", "y")) == ([SECRET], [])
    (asked,) = (message for message in xena.heard() if message.get("id") and "method" in message)
    xena.choose(asked, "yes")
    assert scene.agent.hears()["id"] == "q"
    assert heard_of(yuri) == []


@pytest.mark.parametrize("how", ["closed", "asked", "suggestions"])
def test_an_identity_whose_sessions_are_over_or_unknown_here_may_still_be_meant(how: str) -> None:
    scene = Scene(agentCapabilities={"sessionCapabilities": {"close": {}}})
    xena, yuri = scene.join("xena", "x"), scene.join("yuri", "y")
    if how == "closed":
        opens(scene, xena, "x")
        xena.request("session/close", sessionId="x")
        scene.agent.answers("session/close")
    elif how == "asked":
        xena.request("_vendor/begin")
        scene.agent.answers("_vendor/begin")
    else:
        xena.request("nes/start")
        scene.agent.answers("nes/start", sessionId="child")
    xena.gone()
    scene.agent.heard()
    opens(scene, yuri, "y", works=True)
    sends(scene, "permission")
    sends(scene, "update")
    assert heard_of(yuri) == []
    assert len(scene.multiplexer.waiting(None)) == 1


def test_to_list_sessions_begins_nothing_that_could_be_meant() -> None:
    scene = Scene(agentCapabilities={"sessionCapabilities": {"list": {}}})
    xena, yuri = scene.join("xena", "x"), scene.join("yuri", "y")
    xena.request("session/list")
    scene.agent.answers("session/list", sessions=[])
    opens(scene, yuri, "y")
    sends(scene, "update")
    assert len(heard_of(yuri)) == 1


def test_a_session_that_could_not_be_opened_does_not_count() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.request("session/load", sessionId="lost", cwd="/srv", mcpServers=[])
    scene.agent.refuses("session/load")
    ann.heard()
    opens(scene, ann, "s")
    sends(scene, "update")
    assert scene.session("s").journal.position == 1


def test_after_the_agent_has_ended_its_identities_and_sessions_count_no_more() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    xena = scene.join("xena", "x")
    opens(scene, xena, "x")
    sends(scene, "update", "first")
    assert heard_of(xena)
    opens(scene, xena, "x2")
    sends(scene, "update")
    yuri = scene.join("yuri", "y")
    opens(scene, yuri, "y")
    xena.gone()
    scene.lose_agent()
    yuri.prompt(session_id="y")
    scene.agent.answer(scene.agent.heard()[-1], **scene.welcome)
    scene.agent.answer(scene.agent.takes("session/load"))
    sends(scene, "update")
    sends(scene, "update", "first")
    assert (len(heard_of(yuri)), scene.session("y").journal.position) == (2, 3)


def test_an_id_that_two_sessions_have_told_is_in_doubt() -> None:
    scene, xena, yuri, _ = crowd()
    for name in ("x", "y"):
        scene.agent.state("subagent_update", name, sessionId="child")
    xena.heard(), yuri.heard()
    sends(scene, "update")
    sends(scene, "permission")
    assert heard_of(xena) == heard_of(yuri) == []
    # Nor is it that of the next session to tell it.
    scene.agent.state("subagent_update", "x", sessionId="child")
    assert heard_of(xena) == []


def test_a_question_without_doubt_is_told_in_its_own_session() -> None:
    scene = Scene()
    ann = scene.join("ann")
    opens(scene, ann, "a")
    opens(scene, ann, "b")
    sends(scene, "permission", "a")
    (request,) = scene.multiplexer.waiting(scene.session("a"))
    assert not request.is_in_doubt
    assert [request.is_told_in(scene.session(name)) for name in ("a", "b")] == [True, False]


def test_a_session_that_a_client_has_opened_stays_its_own_though_another_one_tells_it() -> None:
    scene = Scene()
    ann = scene.join("ann")
    opens(scene, ann, "a")
    opens(scene, ann, "b")
    scene.agent.state("subagent_update", "a", sessionId="b")
    sends(scene, "update", "b")
    assert [json.loads(text)["params"]["sessionId"] for text in heard_of(ann)] == ["b"]
    assert [len(scene.session(name).journal.replay()) for name in ("a", "b")] == [1, 1]


def test_a_sub_agent_goes_on_in_the_next_session_of_its_owner_that_tells_it() -> None:
    scene = Scene(agentCapabilities={"sessionCapabilities": {"close": {}}})
    ann = scene.join("ann")
    opens(scene, ann, "a")
    opens(scene, ann, "b")
    scene.agent.state("subagent_update", "a", sessionId="child")
    ann.request("session/close", sessionId="a")
    scene.agent.answers("session/close")
    scene.agent.state("subagent_update", "b", sessionId="child")
    sends(scene, "update")
    assert len(heard_of(ann)) == 1
    assert SECRET.encode() in text_of(scene.session("b").journal.replay()[-1])


def test_an_id_of_one_identity_is_in_doubt_when_another_one_tells_it() -> None:
    scene = Scene()
    xena, yuri = scene.join("xena", "x"), scene.join("yuri", "y")
    opens(scene, xena, "x")
    opens(scene, xena, "x2")
    sends(scene, "update")
    opens(scene, yuri, "y")
    scene.agent.state("subagent_update", "y", sessionId="child")
    xena.heard(), yuri.heard()
    sends(scene, "update")
    assert heard_of(xena) == heard_of(yuri) == []


def test_a_forgotten_parent_leads_to_doubt_and_not_to_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sub_agents, "MAX_REMEMBERED", 2)
    scene, xena, yuri, _ = crowd()
    for name in ("child", "second", "third"):
        scene.agent.state("subagent_update", "x", sessionId=name)
    xena.heard()
    for name in ("child", "second", "third"):
        sends(scene, "update", name)
    assert (len(heard_of(xena)), heard_of(yuri)) == (2, [])


@each_question
def test_who_is_meant_is_asked_as_soon_as_the_agent_tells_it_and_others_no_more(kind: str) -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    opens(scene, ann, "a", works=True)
    opens(scene, bob, "b", works=True)
    sends(scene, kind)
    ann.heard(), bob.heard()
    guest = scene.join("guest", "guest-1", only="b", guest=True)
    guest.load("b")
    scene.agent.state("subagent_update", "b", sessionId="child")
    assert [message["method"] for message in ann.heard()] == ["$/cancel_request"]
    assert len(heard_of(guest)) == (kind != "private")
    assert [len(scene.multiplexer.waiting(scene.session(name))) for name in "ab"] == [0, 1]


WORKS = {"background": [7, {"type": "terminal", "terminalId": "t"}, {"type": "subagent", "sessionId": "child"}]}


@pytest.mark.parametrize(
    "told",
    [
        {"sessionUpdate": "subagent_update", "sessionId": "child"},
        {"sessionUpdate": "subagent_update", "sessionId": "its parent", "state": {"state": "idle", **WORKS}},
        {"sessionUpdate": "session_info_update", "_meta": {"acp-gateway": WORKS}},
    ],
)
def test_what_was_held_among_several_identities_is_asked_when_the_agent_tells_whose_it_is(told: dict[str, Any]) -> None:
    scene, xena, yuri, _ = crowd()
    sends(scene, "permission")
    scene.agent.send(method="session/update", params={"sessionId": "x", "update": told})
    assert (len(heard_of(xena)), heard_of(yuri)) == (1, [])
    assert [shown(scene, name, name) for name in "xy"] == [[SECRET], []]


@pytest.mark.parametrize("late", [False, True])
def test_a_history_that_is_told_again_tells_whose_a_sub_agent_is_unless_that_is_known(*, late: bool) -> None:
    scene = Scene(agentCapabilities={"loadSession": True, "sessionCapabilities": {"close": {}}})
    ann, bob = scene.join("ann"), scene.join("bob")
    opens(scene, bob, "b")
    for method, named in (("session/load", "s"), ("session/fork", "f")):
        ann.request(method, sessionId="s", cwd="/srv", mcpServers=[])
        asked = scene.agent.takes(method)
        if late:
            scene.agent.answer(asked, sessionId="f")
        scene.agent.state("subagent_update", named, sessionId="child")
        if not late:
            scene.agent.answer(asked, sessionId="f")
        ann.heard(), bob.heard()
        before = scene.session("s").journal.position
        sends(scene, "update")
        assert (len(heard_of(ann)), heard_of(bob)) == (1, [])
        assert scene.session("s").journal.position == before + 1


@pytest.mark.parametrize("kind", ["permission", "update"])
def test_what_came_before_a_session_was_opened_under_its_id_is_not_of_that(kind: str) -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    xena, me = scene.join("xena", "x"), scene.join("me")
    opens(scene, xena, "x")
    opens(scene, me, "m")
    sends(scene, kind)
    me.request("session/load", sessionId="child", cwd="/srv", mcpServers=[])
    loads = [message for message in scene.agent.heard() if message.get("method") == "session/load"]
    scene.agent.answer(loads[0])
    assert heard_of(me) == []


def test_the_session_of_another_identitys_sub_agent_can_not_be_opened_by_the_gateways_own_user() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    xena, me = scene.join("xena", "x"), scene.join("me")
    opens(scene, xena, "x")
    scene.agent.state("subagent_update", "x", sessionId="child")
    me.request("session/load", sessionId="child", cwd="/srv", mcpServers=[])
    assert me.hears()["error"]["code"] == -32002
    assert scene.agent.heard() == []
    xena.heard()
    sends(scene, "permission")
    assert (len(heard_of(xena)), heard_of(me)) == (1, [])


def test_the_audit_has_the_tool_calls_of_a_sub_agent_in_doubt() -> None:
    scene, *_ = crowd()
    scene.audit_events.clear()
    scene.agent.state("tool_call", "child", toolCallId="c", kind="edit", status="pending", title=SECRET)
    (event,) = scene.audit_events
    about = {"session": "child", "agent": "agent", "identity": None, "toolCallId": "c", "kind": "edit"}
    assert event.details == about | {"status": "pending"}


# What is held, and how it ends.


def test_what_may_be_another_identitys_is_shown_without_its_content() -> None:
    scene, _, _, _ = crowd()
    sends(scene, "permission")
    (request,) = scene.multiplexer.waiting(scene.session("y"), SessionReach("y"))
    assert SECRET.encode() not in request.message.text + request.forwarded_message.text
    assert shown(scene, "x", "x") == shown(scene, "y", "y") == [request.title]
    # One session of each owner tells the owner, by the request and by what stands for it.
    (real,) = scene.multiplexer.waiting(None)
    for name in ("x", "y"):
        assert [it.is_told_in(scene.session(name)) for it in (request, real)] == [True, True]
    assert request.is_in_doubt
    assert real.is_in_doubt
    # Neither to those who see a part, nor across.
    assert shown(scene, "y", "y", only="y") == shown(scene, "y", "y", workspaces=("a",)) == []
    assert shown(scene, "y", "guest-1", only="y", guest=True) == shown(scene, "y", "x") == []
    assert scene.multiplexer.waiting(scene.session("y")) == []
    (held,) = (event for event in scene.audit_events if event.name == "request_held")
    assert held.details["identities"] == 2
    assert SECRET not in str(held)


@each_question
def test_a_cancellation_ends_what_may_belong_to_the_session_unless_a_guest_has_sent_it(kind: str) -> None:
    scene, _, yuri, (guest, *_) = crowd()
    sends(scene, kind)
    guest.cancel("y")
    assert [message["method"] for message in scene.agent.heard()] == ["session/cancel"]
    yuri.cancel("y")
    _, answer = scene.agent.heard()
    assert answer["id"] == "q"
    decided = [event for event in scene.audit_events if event.name.endswith("_decided")]
    assert [(event.client, event.details["decision"]) for event in decided] == [(yuri.client, "cancelled")] * (
        kind != "private"
    )


def test_who_is_shown_a_held_question_can_only_cancel_it() -> None:
    scene, xena, yuri, (guest, watcher, phone, _) = crowd()
    sends(scene, "permission")
    (held,) = scene.multiplexer.waiting(scene.session("y"), SessionReach("y"))
    (real,) = scene.multiplexer.waiting(None)
    chosen = b'{"outcome":{"outcome":"selected","optionId":"%b"}}'
    assert held.reply(chosen % b"yes") is None
    cancel, yes = held.reply(chosen % b"cancel"), real.reply(chosen % b"yes")
    assert cancel is not None
    assert yes is not None
    for peer in (guest, watcher, yuri, xena):
        assert not scene.multiplexer.answer(peer.client, real, yes)
    for peer in (guest, watcher):
        assert not scene.multiplexer.answer(peer.client, held, cancel)
    assert scene.multiplexer.answer(phone.client, held, cancel)
    assert not scene.multiplexer.answer(yuri.client, held, cancel)
    scene.deliver()
    assert scene.agent.hears()["result"] == {"outcome": {"outcome": "cancelled"}}


def test_a_viewer_of_all_sessions_answers_over_a_connection_for_one_of_them() -> None:
    scene = Scene()
    ann = scene.join("ann")
    opens(scene, ann, "a")
    opens(scene, ann, "b")
    tab, guest = scene.join("tab", only="a"), scene.join("guest", "guest-1", only="a", guest=True)
    for peer in (tab, guest):
        peer.load("a")
    sends(scene, "permission")
    (request,) = scene.multiplexer.waiting(scene.session("a"), SessionReach("me"))
    reply = request.reply(b'{"outcome":{"outcome":"selected","optionId":"yes"}}')
    assert reply is not None
    assert not scene.multiplexer.answer(guest.client, request, reply)
    assert scene.multiplexer.answer(tab.client, request, reply)
    scene.deliver()
    assert scene.agent.hears()["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert [session.decisions[request.key].identity for session in scene.multiplexer.sessions] == ["me", "me"]


def test_a_response_of_a_client_that_was_not_asked_decides_nothing() -> None:
    scene, xena, yuri, others = crowd()
    sends(scene, "permission")
    for peer in (xena, yuri, *others):
        for number in range(4):
            peer.choose({"id": number}, "yes")
    assert [message for message in scene.agent.heard() if message.get("id") == "q"] == []


# What it costs.


def count_work(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets an element whenever the sessions are worked out that a message may belong to."""
    worked_out: list[Any] = []
    candidates = SubAgents._candidates

    def count(*args: Any) -> Any:
        worked_out.append(args)
        return candidates(*args)

    monkeypatch.setattr(SubAgents, "_candidates", count)
    return worked_out


def test_the_clients_for_many_requests_in_doubt_are_worked_out_once_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    ann = scene.join("ann")
    opens(scene, ann, "a")
    opens(scene, ann, "b")
    for number in range(20):
        scene.agent.send(id=number, method="_vendor/ask", params={"sessionId": f"child{number}", "text": SECRET})
    worked_out = count_work(monkeypatch)
    ann.prompt(session_id="a")
    assert len(worked_out) == 1
    # An id that several sessions claim stays in doubt, however often they do.
    for name in ("a", "b") * 10:
        scene.agent.state("subagent_update", name, sessionId="child7")
    assert len(worked_out) <= 3


def test_the_clients_for_messages_in_doubt_that_come_together_are_worked_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    ann = scene.join("ann")
    opens(scene, ann, "a")
    opens(scene, ann, "b")
    worked_out = count_work(monkeypatch)
    said, asked = dict(SAID["update"]), dict(ASKED["private"])
    lines = [encode(method=said["method"], params={"sessionId": "child", "update": said["update"]})] * 20
    lines += [encode(id=n, method=asked["method"], params={"sessionId": f"c{n}", "text": SECRET}) for n in range(9)]
    scene.multiplexer.receive_from_agent(lines)
    scene.deliver()
    assert (len(heard_of(ann)), len(worked_out)) == (29, 1)


def test_a_message_in_doubt_is_for_who_may_see_it_after_the_messages_that_came_with_it() -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    prompt = opens(scene, ann, "a", works=True)
    opens(scene, bob, "b")
    said = dict(SAID["update"])
    update = encode(method=said["method"], params={"sessionId": "child", "update": said["update"]})
    ended = encode(id=prompt["id"], result={"stopReason": "end_turn"})
    ann.heard()
    bob.heard()
    scene.multiplexer.receive_from_agent([update, ended, update])
    scene.deliver()
    # While a turn runs, it is taken to be of that session.
    assert (len(heard_of(ann)), len(heard_of(bob))) == (2, 1)


# Files and terminals.


@pytest.mark.parametrize(("same_host", "path", "served"), [
    (True, "/srv/a/file", True), (False, "/srv/a/file", False), (True, "/srv/b/file", False),
])  # fmt: skip
def test_files_in_doubt_are_served_by_the_host_of_all_sessions_in_the_directories_of_each(
    same_host: bool, path: str, served: bool
) -> None:
    scene = Scene(make_policy(serves=BOTH))
    ann, bob = scene.join("ann", **FILES), scene.join("bob", **FILES)
    ann.new_session("a", cwd="/srv")
    (ann if same_host else bob).new_session("b", cwd="/srv/a")
    scene.agent.send(id="q", method="fs/read_text_file", params={"sessionId": "child", "path": path})
    assert [len(peer.heard()) for peer in (ann, bob)] == [served, 0]
    assert len(scene.agent.heard()) == (not served)


def test_the_terminal_of_a_sub_agent_in_doubt_is_asked_of_the_client_that_runs_it() -> None:
    scene = Scene(make_policy(serves=BOTH))
    ann = scene.join("ann", **FILES)
    for name in "ab":
        opens(scene, ann, name)
    sends(scene, "terminal")
    ann.send(id=ann.heard()[-1]["id"], result={"terminalId": "own"})
    terminal = scene.agent.hears()["result"]["terminalId"]
    scene.agent.send(id="r", method="terminal/output", params={"sessionId": "child", "terminalId": terminal})
    assert ann.hears()["params"]["terminalId"] == "own"


# The host.


@pytest.mark.parametrize("method", ["fs/read_text_file", "terminal/create"])
def test_a_client_that_offers_nothing_does_not_take_the_place_of_the_host(method: str) -> None:
    scene = Scene(make_policy(serves=BOTH))
    ann, bob, cleo = scene.join("ann", **FILES), scene.join("bob"), scene.join("cleo", **FILES)
    ann.new_session()
    for peer, asked in ((bob, ann), (cleo, cleo)):
        peer.load()
        scene.agent.send(id="q", method=method, params={"sessionId": "s", "path": "/srv/a", "command": "make"})
        request = asked.hears()
        assert request["method"] == method
        asked.send(id=request["id"], result={})
        assert scene.agent.hears()["id"] == "q"
    assert bob.heard() == []


def test_what_the_host_does_not_offer_is_asked_of_another_client_of_the_owner_that_does() -> None:
    scene = Scene(make_policy(serves=BOTH))
    ann, bob = scene.join("ann", **FILES), scene.join("bob", clientCapabilities={"terminal": True})
    ann.new_session()
    bob.load()
    scene.agent.send(id="q", method="fs/read_text_file", params={"sessionId": "s", "path": "/srv/a"})
    scene.agent.send(id="r", method="terminal/create", params={"sessionId": "s", "command": "make"})
    assert [[message["method"] for message in peer.heard()] for peer in (ann, bob)] == [
        ["fs/read_text_file"],
        ["terminal/create"],
    ]


# Requests for one client.


def declines(peer: Peer) -> None:
    peer.fail(peer.hears(), -32601, "not here")


@pytest.mark.parametrize("named", ["s", "child", None])
@pytest.mark.parametrize("how", [declines, Peer.gone])
def test_who_does_not_know_a_private_request_or_leaves_is_followed_by_the_next(
    how: Callable[[Peer], None], named: str | None
) -> None:
    scene = Scene()
    ann, bob, away = (scene.join(name) for name in ("ann", "bob", "away"))
    opens(scene, ann, "s", works=True)
    for peer in (bob, away):
        peer.load()
    for peer in (ann, bob, away):
        peer.heard()
    away.away()
    sends(scene, "private", named)
    how(ann)
    assert scene.agent.heard() == []
    request = bob.hears()
    assert request["method"] == "_vendor/ask"
    bob.send(id=request["id"], result={"done": True})
    assert scene.agent.hears()["result"] == {"done": True}
    assert away.heard() == []


def test_the_agent_gets_the_last_error_when_no_client_knows_a_private_request() -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    opens(scene, ann, "s")
    bob.load()
    sends(scene, "private", "s")
    for peer in (bob, ann):
        peer.fail(peer.heard()[-1], -32601, f"unknown to {peer.client.name}")
    assert scene.agent.hears()["error"] == {"code": -32601, "message": "unknown to ann"}


def test_any_other_error_answers_a_private_request() -> None:
    scene = Scene()
    ann = scene.join("ann")
    opens(scene, ann, "s")
    scene.join_session("bob")
    sends(scene, "private", "s")
    asked = next(iter(scene.multiplexer.waiting(scene.session()))).forwarded_ids
    (client,) = asked
    scene.peers[client].fail(scene.peers[client].heard()[-1], -32603, "it has failed")
    assert scene.agent.hears()["error"] == {"code": -32603, "message": "it has failed"}


def test_a_sub_agent_of_one_of_several_sessions_is_not_opened_by_another_identity() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann, me = scene.join("ann", "other"), scene.join("me")
    for session_id in ("s", "t"):
        ann.new_session(session_id)
    sends(scene, "update")
    assert me.load("child")[-1]["error"]["code"] == -32002
    assert scene.agent.heard() == []


@pytest.mark.parametrize("named", ["child", None])
def test_what_an_agent_says_after_the_notification_of_another_identity_is_not_shown(named: str | None) -> None:
    scene = Scene(make_policy(common=True))
    ann, bob = scene.join("ann", "a"), scene.join("bob", "b")
    ann.new_session()
    bob.send(method="_vendor/tell", params={"text": SECRET})
    scene.agent.heard()
    sends(scene, "notification", named)
    assert [heard_of(peer) for peer in (ann, bob)] == [[], []]
