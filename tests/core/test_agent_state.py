"""An agent process as the core sees it: its clients and sessions, and how each request is settled once."""

import pytest

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Request, SessionReach
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import ID_SIZE
from acp_gateway.protocol.link_messages import texts_of
from tests.kit.scene import Scene, make_policy, opened_scene

LIMIT = 1000
"""Bytes that may wait."""


class Alone:
    """A process with one client, without the deciding modules."""

    def __init__(self) -> None:
        self.agent = AgentState("agent", make_policy(max_open_requests=3, outbox_limit=LIMIT), Registry("me"))
        self.client = Client("ann", SessionReach("me"))

    def asks(self, raw_id: bytes = b"1", more: bytes = b"") -> Request:
        request = Request(self.client, jsonrpc.parse(b'{"id":%b,"method":"x/y"%b}' % (raw_id, more)))
        self.client.requests[jsonrpc.id_key(request.id)] = request
        return request

    def to_client(self) -> list[bytes]:
        return list(texts_of(self.agent.out.take().to_clients.get(self.client, [])))


@pytest.fixture
def alone() -> Alone:
    return Alone()


def test_a_process_begins_with_nothing(alone: Alone) -> None:
    agent = alone.agent
    assert (len(agent.open_requests), len(agent.waiting), agent.live, agent.clients) == (0, 0, {}, {})
    assert agent.abandoned


def test_a_request_is_settled_under_its_own_id_which_is_free_then(alone: Alone) -> None:
    agent = alone.agent
    agent.answer(alone.asks(b"1e0"), b'{"a":1.10}')
    assert not alone.client.requests
    agent.refuse(alone.asks(b'"r"'), -32602, "no", {"x": 1})
    agent.refuse(alone.asks(b"null"), -32603, "it ended", {"exitCode": 1})
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


def test_a_very_long_session_id_is_quoted_in_part() -> None:
    scene = Scene()
    ann = scene.join("ann")
    for session_id in ("x" * SESSION_ID_SIZE, "\ud83d\n"):
        ann.request("session/prompt", sessionId=session_id)
        error = ann.hears()["error"]
        assert error["data"] == {"sessionId": session_id}
        assert len(error["message"]) < 150
        assert error["message"].isprintable()


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


def test_an_agent_knows_the_folders_of_sessions_that_it_had() -> None:
    scene, *_ = opened_scene()
    session = scene.session()
    scene.lose_agent()
    assert scene.multiplexer.former_folders == {session.cwd}
