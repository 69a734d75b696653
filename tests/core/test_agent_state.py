"""An agent process as the core sees it: what goes to the agent under which id, and how each request is settled once."""

import pytest

from acp_gateway.core.agent_state import JUST_LOST, AgentState
from acp_gateway.core.output import LogMessage
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Request, Role, SessionReach
from acp_gateway.core.states import AgentPhase
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import ID_SIZE, Message
from acp_gateway.protocol.link_messages import texts_of
from acp_gateway.protocol.text import spans
from tests.core.scene import Scene, make_policy, news_params, opened_scene

LIMIT = 1000
"""Bytes that may wait."""


class Alone:
    """A process with one client, without the deciding modules."""

    def __init__(self) -> None:
        self.agent = AgentState("agent", make_policy(max_open_requests=3, outbox_limit=LIMIT), Registry("me"))
        self.client = Client("ann", SessionReach("me"))
        self.settled: list[tuple[Request, Message]] = []

    def asks(self, raw_id: bytes = b"1", more: bytes = b"") -> Request:
        request = Request(self.client, jsonrpc.parse(b'{"id":%b,"method":"x/y"%b}' % (raw_id, more)))
        self.client.requests[jsonrpc.id_key(request.id)] = request
        return request

    def settle(self, request: Request, response: Message) -> None:
        self.settled.append((request, response))

    def to_agent(self) -> list[bytes]:
        return self.agent.out.take().to_agent

    def to_client(self) -> list[bytes]:
        return list(texts_of(self.agent.out.take().to_clients.get(self.client, [])))


@pytest.fixture
def alone() -> Alone:
    return Alone()


def test_a_process_begins_with_nothing(alone: Alone) -> None:
    agent = alone.agent
    assert (agent.phase, agent.lost, agent.open_requests, agent.live) == (AgentPhase.ABSENT, None, {}, {})
    assert agent.abandoned


def test_each_request_gets_an_id_that_was_never_used(alone: Alone) -> None:
    requests = [alone.asks(b"7", b',"params":{"n":1.10}') for _ in range(3)]
    for request in requests:
        alone.agent.forward(request, alone.settle)
    assert [request.agent_id for request in requests] == [1, 2, 3]
    assert alone.to_agent() == [b'{"id":%d,"method":"x/y","params":{"n":1.10}}' % number for number in (1, 2, 3)]
    alone.agent.receive_response(jsonrpc.parse(b'{"id":2,"result":5}'))
    again = alone.asks(b"7")
    alone.agent.forward(again, alone.settle)
    assert again.agent_id == 4


def test_another_text_can_go_in_place_of_the_requests_own(alone: Alone) -> None:
    alone.agent.forward(alone.asks(), alone.settle, b'{"method":"other","id":0}')
    assert alone.to_agent() == [b'{"method":"other","id":1}']


def test_a_response_comes_back_to_what_was_named_for_it_and_once(alone: Alone) -> None:
    request = alone.asks()
    alone.agent.forward(request, alone.settle)
    response = jsonrpc.parse(b'{"id":1.0,"result":5}')
    for _ in range(2):
        alone.agent.receive_response(response)
    assert alone.settled == [(request, response)]
    assert request.agent_id is None
    assert alone.agent.out.take().effects == [LogMessage("dropped a response of the agent to no open request")]


def test_a_response_under_something_else_than_a_number_of_ours_is_dropped(alone: Alone) -> None:
    alone.agent.forward(alone.asks(), alone.settle)
    for raw in (b'"1"', b"null", b"2", b"1.5", b"-1"):
        alone.agent.receive_response(jsonrpc.parse(b'{"id":%b,"result":5}' % raw))
    assert alone.settled == []
    assert len(alone.agent.out.take().effects) == 5


def test_a_request_is_settled_under_its_own_id_which_is_free_then(alone: Alone) -> None:
    agent = alone.agent
    agent.answer(alone.asks(b"1e0"), b'{"a":1.10}')
    assert not alone.client.requests
    agent.refuse(alone.asks(b'"r"'), -32602, "no", {"x": 1})
    agent.fail(alone.asks(b"null"), "it ended", {"exitCode": 1})
    agent.respond(alone.asks(b"2"), jsonrpc.parse(b' {"result":1e999, "id":77}'))
    assert alone.to_client() == [
        b'{"jsonrpc":"2.0","id":1e0,"result":{"a":1.10}}',
        b'{"jsonrpc":"2.0","id":"r","error":{"code":-32602,"message":"no","data":{"x":1}}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"it ended","data":{"exitCode":1}}}',
        b' {"result":1e999, "id":2}',
    ]
    assert not alone.client.requests


def test_an_id_of_reasonable_size_is_taken_while_there_is_room(alone: Alone) -> None:
    def limit_exceeded(id_size: int, pending: int) -> str | None:
        message = alone.asks(b'"%b"' % (b"x" * (id_size - 2))).message
        return alone.agent.limit_exceeded(message, pending, 0)

    assert limit_exceeded(ID_SIZE, 2) is None
    assert limit_exceeded(ID_SIZE + 1, 0) == "has an id of more than 1024 bytes"
    assert limit_exceeded(ID_SIZE, 3) == "comes while max_open_requests (3) are not answered"


def test_waiting_requests_are_bounded_in_bytes_except_a_single_one(alone: Alone) -> None:
    message = alone.asks(b"1", b',"params":"%b"' % (b"x" * LIMIT)).message
    assert alone.agent.limit_exceeded(message, 0, 0) is None
    small = alone.asks(b"2").message
    assert alone.agent.limit_exceeded(small, 1, LIMIT - len(small.text)) is None
    assert (
        alone.agent.limit_exceeded(small, 1, LIMIT - len(small.text) + 1)
        == "comes while 978 bytes of others wait already (outbox_limit is 1000)"
    )


def test_of_a_client_only_what_is_still_held_here_counts_as_waiting() -> None:
    scene, ann = opened_scene(make_policy(outbox_limit=LIMIT))
    for _ in range(3):
        ann.request("x/y", text="x" * 600)
    assert not ann.heard()
    assert ann.client.waiting_size == 0
    ann.prompt("x" * 600)
    ann.prompt("x" * 600)
    assert not ann.heard()
    assert ann.client.waiting_size > 600
    refused = ann.prompt("x" * 600)
    answer = ann.hears()
    assert (answer["id"], answer["error"]["code"]) == (refused, -32600)
    ann.cancel()
    assert "result" in ann.hears()
    assert ann.client.waiting_size == 0
    for asked in scene.agent.heard():
        if "id" in asked:
            scene.agent.send(id=asked["id"], result={})
    assert (ann.client.waiting_size, ann.client.requests) == (0, {})


def test_no_request_of_a_gone_client_is_kept_if_its_response_changes_nothing() -> None:
    scene = Scene()
    scene.join("bob")
    for number in range(3):
        ann = scene.join(f"ann {number}")
        ann.request("x/y")
        ann.gone()
    asked = scene.agent.heard()
    assert not scene.multiplexer._agent.open_requests
    for request in asked:
        scene.agent.send(id=request["id"], result={})
    assert len(scene.notes) == 3


def test_requests_of_gone_clients_count_against_max_open_requests_of_their_identity() -> None:
    scene = Scene(make_policy(max_open_requests=3))
    first = scene.join("first")
    first.new_session()
    for name in ("ann", "bob", "cem"):
        ann = scene.join(name)
        ann.load()
        ann.request("session/set_mode", sessionId="s", modeId="m")
        ann.gone()
    asked = scene.agent.heard()
    other = scene.join("other", "another identity")
    other.request("x/y")
    assert not other.heard()
    first.request("x/y")
    assert "max_open_requests (3) of closed connections" in first.hears()["error"]["message"]
    scene.agent.answer(asked[0])
    first.heard()
    first.request("x/y")
    assert not first.heard()


def test_a_very_long_session_id_is_quoted_in_part() -> None:
    scene = Scene()
    ann = scene.join("ann")
    for session_id in ("x" * SESSION_ID_SIZE, "\ud83d\n"):
        ann.request("session/prompt", sessionId=session_id)
        error = ann.hears()["error"]
        assert error["data"] == {"sessionId": session_id}
        assert len(error["message"]) < 150
        assert error["message"].isprintable()


def test_a_decision_about_no_session_is_not_news() -> None:
    scene = Scene()
    ann = scene.join("ann", **news_params())
    scene.agent.send(id=7, method="session/request_permission", params={"options": [{"optionId": "y"}]})
    ann.choose(ann.hears(), "y")
    assert scene.agent.hears()["id"] == 7
    assert not ann.heard()


def test_a_process_is_deserted_while_it_has_no_connected_client() -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    agent = scene.multiplexer.agent_handle
    ann.away()
    assert not agent.abandoned
    bob.gone()
    assert agent.abandoned
    ann.back()
    assert not agent.abandoned


def test_a_session_that_is_over_keeps_nothing_but_whose_and_where_it_is() -> None:
    scene = Scene()
    ann = scene.join("ann")
    ann.new_session(cwd="/srv/its", modes={"currentModeId": "m"})
    scene.agent.update("text")
    ann.prompt()
    (session,) = scene.multiplexer.sessions
    scene.retire()
    assert (session.attached, session.turns, session.journal.size, session.host) == ({}, {}, 0, None)
    assert (session.setup, session.cwd, session.result) == ({"cwd": b'"/srv/its"'}, "/srv/its", {})
    assert (session.live, session.owner) == (False, "me")
    assert list(scene.registry) == [session]


def test_a_session_whose_agent_is_lost_while_it_is_loaded_keeps_nothing_either() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=["secret"])
    scene.agent.update("history")
    scene.lose_agent()
    (session,) = scene.registry
    assert (session.transit, session.setup) == (None, {"cwd": b'"/srv"'})


def test_a_session_that_could_not_be_loaded_keeps_nothing_either() -> None:
    scene, ann = opened_scene(agentCapabilities={"loadSession": True, "sessionCapabilities": {"close": {}}})
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=["secret"])
    scene.agent.refuses("session/load")
    (session,) = scene.registry
    assert (session.transit, session.setup) == (None, {"cwd": b'"/srv"'})


# Those who count.


def test_positions_of_a_client_are_right_from_session_new_on() -> None:
    scene = Scene()
    ann = scene.join("ann", link="l")
    ann.new_session()
    assert ann.marks == [{"s": scene.place()}]
    for number in range(3):
        scene.agent.update(f"talk {number}")
        assert ann.seen["s"] == scene.place()
    assert len(ann.marks) == 1


def test_a_mark_tells_the_position_after_messages_that_a_client_cannot_count() -> None:
    scene = Scene()
    ann, bob, stock = scene.join("ann", link="a"), scene.join("bob", link="b"), scene.join("stock")
    ann.new_session()
    bob.load()
    stock.load()
    ann.prompt()
    ann.prompt("queued")
    assert ann.seen["s"] == bob.seen["s"] == scene.place()
    scene.agent.update("of the child", "child")
    assert ann.seen["s"] == bob.seen["s"] == scene.place()
    scene.agent.answers("session/prompt", stopReason="end_turn")
    ann.request("session/set_mode", sessionId="s", modeId="ask")
    *_, asked = scene.agent.heard()
    scene.agent.answer(asked)
    assert ann.seen["s"] == bob.seen["s"] == scene.place()
    assert scene.place()[1] == 4


def test_session_load_of_an_attached_session_ends_with_its_position() -> None:
    scene = Scene()
    ann = scene.join("ann", link="l")
    ann.new_session()
    scene.agent.update("talk")
    for method in ("session/load", "session/resume"):
        ann.request(method, sessionId="s", cwd="/srv", mcpServers=[])
        assert ann.seen["s"] == scene.place() == (scene.place()[0], 1)


def test_a_session_that_is_opened_again_in_another_process_is_counted_on() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann", link="l")
    ann.new_session()
    scene.agent.update("talk")
    before = scene.place()
    scene.lose_agent()
    ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    asked = scene.agent.takes("session/load")
    scene.agent.update("talk")
    scene.agent.state("plan", entries=[])
    scene.agent.answer(asked)
    assert ann.seen["s"] == scene.place() == (before[0], before[1] + 2)


def test_a_restarted_agent_repeats_no_state_that_the_editor_has_but_tells_a_changed_one() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann", link="l")
    ann.new_session()
    scene.agent.state("plan", entries=[{"content": "read"}])
    scene.agent.state("current_mode_update", currentModeId="ask")
    ann.heard()
    scene.lose_agent()
    ann.prompt()
    scene.agent.answers("initialize", **scene.welcome)
    asked = scene.agent.takes("session/load")
    scene.agent.state("plan", entries=[{"content": "read"}])
    scene.agent.state("current_mode_update", currentModeId="plan")
    scene.agent.answer(asked)
    told = [message["params"]["update"] for message in ann.heard()]
    assert told == [{"sessionUpdate": "current_mode_update", "currentModeId": "plan"}]
    assert ann.seen["s"] == scene.place()


def test_positions_in_a_fork_begin_with_a_mark_of_its_own() -> None:
    scene = Scene()
    ann = scene.join("ann", link="l")
    ann.new_session()
    scene.agent.update("talk")
    ann.request("session/fork", sessionId="s", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/fork", sessionId="t")
    scene.agent.update("more", "t")
    assert ann.seen == {"s": scene.place("s"), "t": scene.place("t")}
    assert scene.place("t")[1] == 2


# Hook events.


def test_the_permission_waiting_hook_fires_once_while_no_controller_is_connected() -> None:
    scene = Scene()
    ann = scene.join("ann")
    scene.join("watcher", role=Role.OBSERVER).request("session/list")
    ann.new_session()
    ann.away()
    scene.pass_time(10)
    scene.agent.ask_permission()
    (event,) = scene.events
    assert (event.name, event.session, event.age) == ("permission_waiting", scene.session(), 0)
    call = {"toolCallId": "call", "title": "do it", "kind": None}
    (request,) = scene.multiplexer._agent.agent_requests
    expected = {"requestId": request.key, "method": "session/request_permission", "tool": call, "connected": 0}
    assert event.details == expected
    ann.back()
    ann.away()
    ann.gone()
    assert len(scene.events) == 1


@pytest.mark.parametrize("how", ["away", "gone", "closes"])
def test_it_is_announced_when_the_last_who_could_decide_leaves(how: str) -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    scene.join("watcher", role=Role.OBSERVER)
    ann.new_session()
    bob.load()
    scene.agent.ask_permission()
    scene.pass_time(5)
    bob.away()
    assert scene.events == []
    if how == "away":
        ann.away()
    elif how == "gone":
        ann.gone()
    else:
        ann.request("session/close", sessionId="s")
    # A client may be back in a moment.
    assert scene.events == []
    scene.pass_time(5 + JUST_LOST)
    assert [(event.name, event.age) for event in scene.events] == [("permission_waiting", 5 + JUST_LOST)]


def test_the_permission_waiting_hook_does_not_fire_for_a_client_that_is_back_at_once() -> None:
    scene, ann = opened_scene()
    scene.agent.ask_permission()
    for moment in range(1, 20):
        ann.away()
        scene.pass_time(moment)
        ann.back()
    assert scene.events == []


def test_what_may_be_of_several_sessions_is_announced_for_the_first_when_who_was_asked_is_away() -> None:
    scene = Scene()
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session("s")
    bob.new_session("t")
    ann.prompt(session_id="s")
    bob.prompt(session_id="t")
    scene.agent.ask_permission(session_id="child")
    ann.away()
    scene.pass_time(JUST_LOST)
    assert scene.events == []
    bob.away()
    scene.pass_time(2 * JUST_LOST)
    assert [(event.name, event.session.id) for event in scene.events] == [("permission_waiting", "s")]


def test_the_permission_waiting_hook_does_not_fire_for_requests_that_are_not_decisions() -> None:
    scene, ann = opened_scene()
    ann.away()
    scene.agent.send(id=1, method="x/ask", params={"sessionId": "s"})
    assert scene.events == []


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


def test_a_process_with_a_turn_of_one_that_is_away_is_not_deserted() -> None:
    scene, ann = opened_scene()
    ann.prompt()
    ann.away()
    assert not scene.multiplexer.agent_handle.abandoned
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert scene.multiplexer.agent_handle.abandoned
    ann.prompt()
    ann.gone()
    assert scene.multiplexer.agent_handle.abandoned


def test_a_result_with_more_members_than_are_looked_at_is_an_error() -> None:
    scene = Scene()
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s", **{str(number): 1 for number in range(spans.MEMBERS)})
    assert f"more than {spans.MEMBERS} members" in ann.hears()["error"]["message"]
