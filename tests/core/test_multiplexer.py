"""Messages and events of the multiplexer: parsing, ids, refusals, access, attaching and leaving."""

import json
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from acp_gateway.core.output import AuditEvent
from acp_gateway.core.sessions.session import Role
from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import InvalidMessage, parse
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.text.large_messages import Parsed
from tests.fuzz.effort import effort
from tests.kit.scene import Peer, Scene, encode, make_policy, opened_scene


@pytest.fixture
def scene() -> Scene:
    """Several clients may share the agent."""
    return Scene()


@pytest.fixture
def ann(scene: Scene) -> Peer:
    """The first client, initialized."""
    return scene.join("ann")


def request(raw_id: bytes, method: str = "x/y", params: bytes = b"{}") -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % (raw_id, method.encode(), params)


def result(raw_id: bytes, value: bytes = b"{}") -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (raw_id, value)


def notification(method: str, params: bytes = b"{}") -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method.encode(), params)


def cancel(raw_id: bytes) -> bytes:
    return notification("$/cancel_request", b'{"requestId":%b}' % raw_id)


def id_at_agent(scene: Scene) -> bytes:
    """The id of the one message that the agent has heard."""
    (text,) = scene.agent.heard_text()
    return parse(text).id


def refusal(peer: Peer) -> tuple[bytes, int]:
    """The id, verbatim, and the code of the one thing that a client has heard, an error."""
    (text,) = peer.heard_text()
    return parse(text).id, json.loads(text)["error"]["code"]


def error_of(peer: Peer) -> Any:
    """The error in the one thing that a client has heard."""
    return peer.hears()["error"]


# Verbatim

ODD = [
    rb'{ "_meta" : {"a":1.10} , "jsonrpc":"2.0","id":%b,"method":"a/b" ,"params":{"n":[1e999, 1.0,-0],"u":null } }',
    rb'{"method":"_auth/status_update","params":{"text":"\ud83d \/ \u0041"},"id":%b, "unknown":{"x":[]}}',
    b'\t{"id":%b,"jsonrpc":"2.0","method":"craft/\xc3\xa9","params":["\xe2\x80\xa8"]}\r',
]


@pytest.mark.parametrize("odd", ODD)
def test_messages_pass_byte_for_byte_both_ways_but_for_their_ids(scene: Scene, ann: Peer, odd: bytes) -> None:
    ann.say(odd % b'"mine"')
    assert scene.agent.heard_text() == [odd % b"2"]
    answer = b' {"result" : {"n":1e999,"_meta":{"b":[ ]}}, "id":%b,"x":"\\ud83d"}'
    scene.agent.say(answer % b"2")
    assert ann.heard_text() == [answer % b'"mine"']
    scene.agent.say(odd % b'"its"')
    assert ann.heard_text() == [odd % b"1"]
    ann.say(answer % b"1")
    assert scene.agent.heard_text() == [answer % b'"its"']


@pytest.mark.parametrize("odd", ODD)
def test_notifications_pass_byte_for_byte_both_ways(scene: Scene, ann: Peer, odd: bytes) -> None:
    plain = odd.replace(b'"id":%b', b'"i":5')
    ann.say(plain)
    assert scene.agent.heard_text() == [plain]
    scene.agent.say(plain)
    assert ann.heard_text() == [plain]


def test_an_error_passes_verbatim_both_ways(scene: Scene, ann: Peer) -> None:
    error = b'{"id":%b,"jsonrpc":"2.0","error":{"message":"no", "code":-32603,"data":[1.10]}}'
    ann.say(request(b"5"))
    scene.agent.say(error % id_at_agent(scene))
    assert ann.heard_text() == [error % b"5"]
    scene.agent.say(request(b"5"))
    ann.say(error % parse(ann.heard_text()[0]).id)
    assert scene.agent.heard_text() == [error % b"5"]


def test_messages_of_the_agent_arrive_in_order(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    own = ann.prompt()
    asked = scene.agent.hears()
    scene.agent.update("one")
    scene.agent.ask_permission("p")
    scene.agent.update("two")
    scene.agent.send(id=asked["id"], result={"stopReason": "end_turn"})
    heard = ann.heard()
    assert [message.get("method") for message in heard] == [
        "session/update",
        "session/request_permission",
        "session/update",
        None,
    ]
    assert heard[-1]["id"] == own


# Ids

IDS = [b"0", b"1", b'"1"', b"1.0", b"1e2", b'""', b'"null"', b"null", b"9223372036854775808", b'"f81d4fae-7dec"', b"-0"]


def test_ids_of_all_types_in_flight_at_once_come_back_as_they_were_spelled(scene: Scene, ann: Peer) -> None:
    at_agent = []
    for raw in IDS:
        ann.say(request(raw))
        at_agent.append(id_at_agent(scene))
    assert at_agent == [b"%d" % number for number in range(2, len(IDS) + 2)]
    for raw, agent_id in reversed(list(zip(IDS, at_agent, strict=True))):
        scene.agent.say(result(agent_id, raw))
        assert ann.heard_text() == [result(raw, raw)]


@pytest.mark.parametrize("asked", IDS)
def test_the_agents_ids_come_back_as_they_were_spelled(scene: Scene, ann: Peer, asked: bytes) -> None:
    scene.agent.say(request(asked))
    assert ann.heard_text() == [request(b"1")]
    ann.say(result(b"1"))
    assert scene.agent.heard_text() == [result(asked)]


@pytest.mark.parametrize("spelling", [b"%b", b"%b.0", b"%be0", b"%b0e-1"])
def test_an_answer_counts_however_it_spells_an_id_of_the_gateways(scene: Scene, ann: Peer, spelling: bytes) -> None:
    ann.say(request(b"1e2"))
    scene.agent.say(result(spelling % id_at_agent(scene)))
    assert ann.heard_text() == [result(b"1e2")]
    scene.agent.say(request(b"1e2"))
    ann.say(result(spelling % parse(ann.heard_text()[0]).id))
    assert scene.agent.heard_text() == [result(b"1e2")]


def test_two_clients_with_the_same_ids_get_their_own_answers(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    ann.say(request(b"1"))
    first = id_at_agent(scene)
    bob.say(request(b"1"))
    second = id_at_agent(scene)
    assert first != second
    scene.agent.say(result(second, b'"for bob"'))
    scene.agent.say(result(first, b'"for ann"'))
    assert ann.heard_text() == [result(b"1", b'"for ann"')]
    assert bob.heard_text() == [result(b"1", b'"for bob"')]


def test_a_message_of_the_agent_may_have_been_parsed_before(scene: Scene, ann: Peer) -> None:
    params = {"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk"}}
    ann.new_session()
    scene.multiplexer.receive_parsed(parse(encode(method="session/update", params=params)))
    scene.deliver()
    assert [message["params"] for message in ann.heard()] == [params]


def test_a_message_may_have_been_parsed_before_or_found_invalid(scene: Scene, ann: Peer) -> None:
    scene.multiplexer.receive_from_client(ann.client, Parsed(parse(encode(id=7, method="x/y", params={})), None))
    scene.multiplexer.receive_from_client(ann.client, InvalidMessage(-32700, "not JSON"))
    scene.deliver()
    scene.agent.takes("x/y")
    assert ann.hears() == {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "not JSON"}}


@pytest.mark.parametrize(
    ("first", "second"), [(b"1", b"1"), (b'"a"', rb'"\u0061"'), (b"null", b"null"), (b"1e2", b"1e2")]
)
def test_an_id_in_use_is_refused_and_the_first_request_is_unharmed(
    scene: Scene, ann: Peer, first: bytes, second: bytes
) -> None:
    ann.say(request(first))
    at_agent = id_at_agent(scene)
    ann.say(request(second))
    assert refusal(ann) == (b"null", -32600)
    assert not scene.agent.heard()
    scene.agent.say(result(at_agent))
    assert ann.heard_text() == [result(first)]
    ann.say(request(second))
    assert id_at_agent(scene) == b"3"


@pytest.mark.parametrize(
    "again",
    [
        request(b"1", "_acp-gateway/hello"),
        request(b"1", "initialize"),
        request(b"1", "session/new", b'{"cwd":"/nowhere"}'),
        b'{"id":1,"method":"a","method":"b"}',
    ],
)
def test_no_refusal_settles_an_earlier_request_of_the_same_id(scene: Scene, ann: Peer, again: bytes) -> None:
    ann.say(request(b"1"))
    ann.say(again)
    assert refusal(ann)[0] == b"null"
    scene.agent.say(result(b"2"))
    assert ann.heard_text() == [result(b"1")]


def test_a_refused_id_is_free_again(scene: Scene, ann: Peer) -> None:
    ann.say(request(b"1", "session/new", b'{"cwd":"/Users/ann"}'))
    assert refusal(ann) == (b"1", -32602)
    ann.say(request(b"1", "session/new", b'{"cwd":"/srv"}'))
    assert scene.agent.heard_text() == [request(b"2", "session/new", b'{"cwd":"/srv"}')]


def test_an_id_over_1024_bytes_is_refused_under_null(scene: Scene, ann: Peer) -> None:
    ann.say(request(b'"%b"' % (b"x" * 1023)))
    assert "more than 1024 bytes" in error_of(ann)["message"]
    ann.say(request(b'"%b"' % (b"x" * 1023), "_acp-gateway/x"))
    assert parse(ann.heard_text()[0]).id == b"null"
    ann.say(request(b'"%b"' % (b"x" * 1022)))
    assert len(scene.agent.heard()) == 1


def test_more_requests_than_may_be_open_are_refused_on_either_side() -> None:
    scene = Scene(make_policy(max_open_requests=2))
    ann, bob = scene.join("ann"), scene.join("bob")
    for _ in range(2):
        ann.request("x/y")
    assert not ann.heard()
    ann.request("x/y")
    assert "max_open_requests (2)" in error_of(ann)["message"]
    bob.request("x/y")
    assert not bob.heard()
    scene.agent.heard()
    for number in range(3):
        scene.agent.send(id=number, method="session/request_permission", params={})
    (refused,) = scene.agent.heard()
    assert (refused["id"], refused["error"]["code"]) == (2, -32600)
    assert "max_open_requests (2)" in refused["error"]["message"]


# Responses to no open request


def test_a_response_to_no_open_request_is_dropped_and_logged(scene: Scene, ann: Peer) -> None:
    ann.say(result(b"9"))
    scene.agent.say(result(b"9"))
    ann.say(b'{"id":null,"error":{"code":-32700,"message":"?"}}')
    scene.agent.say(result(b'"2"'))
    assert (ann.inbox, scene.agent.inbox) == ([], [])
    assert scene.notes == [
        "dropped a response of ann to no open request",
        "dropped a response of the agent to no open request",
        "dropped a response of ann to no open request",
        "dropped a response of the agent to no open request",
    ]


def test_a_client_cannot_answer_its_own_request_or_that_of_another_client(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob", "other")
    ann.new_session()
    ann.say(request(b"2"))
    scene.agent.heard()
    scene.agent.ask_permission(7)
    asked = ann.hears()["id"]
    for peer in (ann, bob):
        peer.say(result(b"2"))
    bob.say(result(b"%d" % asked, b'{"outcome":{"outcome":"selected","optionId":"yes"}}'))
    assert not scene.agent.heard()
    assert not bob.heard()


# Cancelling


def test_a_cancel_names_the_request_as_the_agent_knows_it_and_it_is_still_answered(scene: Scene, ann: Peer) -> None:
    ann.say(request(b'"mine"'))
    scene.agent.heard()
    ann.say(b'{"params":{"x":1.0, "requestId" : "mine" ,"_meta":{}},"method":"$/cancel_request"}')
    assert scene.agent.heard_text() == [
        b'{"params":{"x":1.0, "requestId" : 2 ,"_meta":{}},"method":"$/cancel_request"}'
    ]
    ann.say(request(b'"mine"'))
    assert refusal(ann) == (b"null", -32600)
    scene.agent.say(result(b"2"))
    assert ann.heard_text() == [result(b'"mine"')]
    ann.say(cancel(b'"mine"'))
    assert not scene.agent.heard()
    assert scene.notes[-1] == "dropped a $/cancel_request of ann to no open request"


def test_a_cancel_of_the_agent_names_the_request_as_each_client_knows_it(scene: Scene, ann: Peer) -> None:
    scene.agent.say(request(b'"p"', "a/b"))
    own = parse(ann.heard_text()[0]).id
    scene.agent.say(cancel(b'"p"'))
    assert ann.heard_text() == [cancel(own)]


def test_a_client_cannot_cancel_the_request_of_another_client(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    ann.say(request(b"1"))
    for raw in (b"1", id_at_agent(scene)):
        bob.say(cancel(raw))
    assert not scene.agent.heard()


@pytest.mark.parametrize("raw", [b'"1"', b"1.0", b"2", b"null", b"true", b"{}", b"[1]"])
def test_a_cancel_of_anything_that_is_not_open_is_dropped(scene: Scene, ann: Peer, raw: bytes) -> None:
    ann.say(request(b"1"))
    scene.agent.heard()
    ann.say(cancel(raw))
    assert not scene.agent.heard()


@pytest.mark.parametrize("params", [b"{}", b"[1]", b"1", b'{"requestid":1}'])
def test_a_cancel_that_names_nothing_is_dropped(scene: Scene, ann: Peer, params: bytes) -> None:
    ann.say(request(b"1"))
    scene.agent.heard()
    ann.say(notification("$/cancel_request", params))
    assert not scene.agent.heard()


@pytest.mark.parametrize("name", [b"request_id", b"Request-Id", rb"requestId\u0000", rb"RE\u0051UESTID_"])
def test_a_cancel_that_some_agents_take_for_one_of_another_request_is_dropped(
    scene: Scene, ann: Peer, name: bytes
) -> None:
    bob = scene.join("bob")
    ann.say(request(b"1"))
    hers = id_at_agent(scene)
    bob.say(request(b"1"))
    scene.agent.heard()
    bob.say(notification("$/cancel_request", b'{"requestId":1,"%b":%b}' % (name, hers)))
    assert not scene.agent.heard()


def test_a_cancelled_initialize_is_answered_by_the_agent_all_the_same(scene: Scene) -> None:
    ann = scene.join("ann", initialize=False)
    ann.say(request(b"1", "initialize", b'{"protocolVersion":1}'))
    ann.say(cancel(b"1"))
    assert not ann.heard()
    scene.agent.answers("initialize", protocolVersion=1)
    assert ann.hears()["id"] == 1


# Reserved methods


def test_the_gateways_own_methods_are_refused_from_clients(scene: Scene, ann: Peer) -> None:
    ann.say(request(b"1", "_acp-gateway/hello"))
    assert refusal(ann) == (b"1", -32601)
    ann.say(notification("_acp-gateway/resumed"))
    assert (ann.inbox, scene.agent.inbox) == ([], [])
    assert scene.notes == ["dropped a notification of ann: _acp-gateway/resumed is a reserved method"]


def test_the_gateways_own_methods_are_kept_from_clients(scene: Scene, ann: Peer) -> None:
    scene.agent.say(notification("_acp-gateway/news"))
    scene.agent.say(request(b"1", "_acp-gateway/hello"))
    assert scene.agent.hears()["error"]["code"] == -32601
    assert not ann.heard()
    assert scene.notes == [
        "refused a message of the agent: '_acp-gateway/news' is a reserved method",
        "refused a message of the agent: '_acp-gateway/hello' is a reserved method",
    ]


CHAINS = ("proxy/initialize", "proxy/successor", "proxy/unheard_of", "_proxy/initialize", "_proxy/successor/request")


@pytest.mark.parametrize("method", CHAINS)
@pytest.mark.parametrize("role", Role)
def test_the_methods_of_chains_of_proxies_are_refused_from_clients(scene: Scene, role: Role, method: str) -> None:
    """Each wraps a method of its own, which the rules for roles and scopes would not see."""
    ann = scene.join("ann", role=role)
    wrapped = b'{"sessionId":"s","method":"session/delete","params":{"sessionId":"s"}}'
    ann.say(request(b"1", method, wrapped))
    error = error_of(ann)
    assert error == {
        "code": -32601,
        "message": f"{method} belongs to a chain of proxies, and the gateway is outside of one",
    }
    ann.say(notification(method, wrapped))
    assert (ann.inbox, scene.agent.heard()) == ([], [])


def test_an_agent_behind_the_gateway_can_not_be_made_a_proxy_of_a_chain_by_its_first_message(scene: Scene) -> None:
    ann = scene.join("ann", initialize=False)
    ann.say(request(b"1", "proxy/initialize", b'{"protocolVersion":1}'))
    assert refusal(ann) == (b"1", -32601)
    assert not scene.agent.heard()


@pytest.mark.parametrize("method", CHAINS)
def test_the_methods_of_chains_of_proxies_are_kept_from_clients(scene: Scene, ann: Peer, method: str) -> None:
    wrapped = b'{"method":"fs/write_text_file","params":{"path":"/etc/passwd","content":""}}'
    scene.agent.say(notification(method, wrapped))
    scene.agent.say(request(b"1", method, wrapped))
    assert scene.agent.hears()["error"]["code"] == -32601
    assert not ann.heard()


def test_the_escaped_name_of_a_reserved_method_is_reserved(scene: Scene, ann: Peer) -> None:
    ann.say(request(b"1", r"\u005facp-gateway\/hello"))
    assert refusal(ann) == (b"1", -32601)
    scene.agent.say(notification(r"\u005facp-gateway\/x"))
    assert not ann.heard()


# Bad text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"not json", -32700),
        (b"", -32700),
        (b'{"id":1,"method":"x","params":"\xff"}', -32700),
        (b'{"id":1,"method":"x","params":NaN}', -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"[" + request(b"1") + b"]", -32600),
        (b"5", -32600),
        (b"{}", -32600),
        (b'{"id":1}', -32600),
        (b'{"id":true,"method":"x"}', -32600),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else None,
)
@pytest.mark.parametrize("initialized", [False, True])
def test_bad_text_of_a_client_is_answered_here_and_the_conversation_goes_on(
    scene: Scene, text: bytes, code: int, initialized: bool
) -> None:
    ann = scene.join("ann", initialize=initialized)
    ann.say(text)
    assert refusal(ann) == (b"null", code)
    if not initialized:
        ann.initialize()
    ann.say(request(b"1"))
    assert scene.agent.heard_text() == [request(b"2")]


@pytest.mark.parametrize("text", [b"npm warn exec", b"\xff", b"[]", b"{}", b"5", b"[" * 100_000])
def test_bad_text_of_the_agent_is_noted_without_its_content_and_dropped(scene: Scene, ann: Peer, text: bytes) -> None:
    scene.agent.say(text)
    assert (ann.inbox, scene.agent.inbox) == ([], [])
    (note,) = scene.notes
    assert note.startswith(f"dropped a line of {len(text)} bytes from the agent: ")
    assert "npm" not in note
    scene.agent.say(notification("x"))
    assert ann.heard_text() == [notification("x")]


@pytest.mark.parametrize(
    ("text", "answer_to"),
    [
        (b'{"id":1,"method":"a","method":"b"}', b"1"),
        (rb'{"id":1,"method":"a","m\u0065thod":"b"}', b"1"),
        (b'{"id":1,"method":"a","x":1,"x":1}', b"1"),
        (b'{"id":1,"method":"a","params":{"sessionId":"s","sessionId":"t"}}', b"1"),
        (b'{"id":1,"method":"a","params":{"sessionId":"s","SESSIONID":"t"}}', b"1"),
        (rb'{"id":1,"method":"a","params":{"sessionId":"s","\u0073essionId":"t"}}', b"1"),
        (b'{"id":1,"method":"a","params":{},"params":{}}', b"1"),
        (b'{"id":1,"id":2,"method":"a"}', b"null"),
        (b'{"id":1,"ID":2,"method":"a"}', b"null"),
        (b'{"id":1,"method":"a","Method":"b"}', b"null"),
        (b'{"method":"a","method":"b"}', b"null"),
        (rb'{"id":1,"method":"a","\ud83d":1,"\ud83d":1}', b"1"),
    ],
)
def test_a_repeated_member_of_a_client_is_refused(scene: Scene, ann: Peer, text: bytes, answer_to: bytes) -> None:
    ann.say(text)
    assert refusal(ann) == (answer_to, -32600)
    assert not scene.agent.heard()


def test_a_repeated_member_in_a_response_decides_nothing(scene: Scene, ann: Peer) -> None:
    scene.agent.say(request(b'"ask"'))
    ann.heard()
    # Not under the id 1: the client may have a request of its own under it.
    ann.say(b'{"id":1,"result":"yes","result":"no"}')
    assert refusal(ann) == (b"null", -32600)
    ann.say(result(b"1"))
    assert scene.agent.heard_text() == [result(b'"ask"')]


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":%b,"method":"a","params":{"deep":{"x":1,"x":1}}}',
        b'{"id":%b,"method":"a","params":[{"x":1,"x":1}]}',
        b'{"id":%b,"method":"a","_meta":{"x":1,"x":1}}',
    ],
)
def test_a_repeated_member_that_the_gateway_does_not_read_passes(scene: Scene, ann: Peer, text: bytes) -> None:
    ann.say(text % b"1")
    assert scene.agent.heard_text() == [text % b"2"]


def test_a_repeated_member_of_the_agent_passes(scene: Scene, ann: Peer) -> None:
    text = b'{"method":"x/y","params":{"x":1,"x":2},"params":{"y":1,"Y":2}}'
    scene.agent.say(text)
    assert ann.heard_text() == [text]


# Before initialize


@pytest.mark.parametrize("method", ["session/new", "session/prompt", "unknown", "authenticate"])
def test_a_request_before_initialize_is_refused(scene: Scene, method: str) -> None:
    ann = scene.join("ann", initialize=False)
    ann.say(request(b"1", method))
    assert refusal(ann) == (b"1", -32600)
    assert not scene.multiplexer.wants_agent


@pytest.mark.parametrize("method", ["session/cancel", "x/y", "initialize"])
def test_a_notification_before_initialize_is_dropped_without_an_answer(scene: Scene, method: str) -> None:
    ann = scene.join("ann", initialize=False)
    ann.say(notification(method))
    assert (ann.inbox, scene.agent.inbox) == ([], [])
    assert scene.notes == ["dropped a notification of ann: the first request must be initialize"]


def test_initialize_without_an_id_is_not_a_way_round_the_first_one(scene: Scene, ann: Peer) -> None:
    ann.say(notification("initialize", b'{"clientCapabilities":{"terminal":true}}'))
    assert not scene.agent.heard()


# Messages that name a session


@pytest.mark.parametrize("method", ["session/prompt", "session/set_mode", "session/set_model", "session/close", "x/y"])
@pytest.mark.parametrize("identity", ["me", "other"])
def test_a_request_for_a_session_is_for_those_who_are_attached_to_it(
    scene: Scene, ann: Peer, method: str, identity: str
) -> None:
    ann.new_session()
    bob = scene.join("bob", identity)
    bob.request(method, sessionId="s")
    error = error_of(bob)
    assert (error["code"], error["data"]) == (-32002, {"sessionId": "s"})
    assert not scene.agent.heard()
    assert not ann.heard()


def test_a_notification_for_a_session_is_for_those_who_are_attached_to_it(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join("bob")
    for method in ("session/cancel", "x/y"):
        bob.send(method=method, params={"sessionId": "s"})
    assert not scene.agent.heard()
    assert scene.notes == ["dropped a notification of bob for a session that it is not attached to"] * 2
    ann.send(method="x/y", params={"sessionId": "s"})
    assert len(scene.agent.heard()) == 1


ODDLY_NAMED = [
    *(b'{"session_id":"s"}', b'{"SessionID":"s"}', rb'{"session\u005fid":"s"}', b'{"sessionId":"s","session_id":"t"}'),
    *(b'{"x":1,"sessionId":["s"]}', b'{"sessionId" : [ "s" ]}', b'{"sessionId":5}'),
]


@pytest.mark.parametrize("method", ["x/y", "session/prompt", "session/load", "session/new"])
@pytest.mark.parametrize("params", ODDLY_NAMED)
def test_a_session_that_a_request_names_in_another_way_may_be_what_an_agent_reads_and_is_refused(
    scene: Scene, ann: Peer, method: str, params: bytes
) -> None:
    ann.new_session()
    ann.say(request(b"1", method, params))
    error = error_of(ann)
    assert error["code"] == -32602
    assert error["message"].startswith(("sessionId must have that very name, not ", "sessionId must be a string"))
    assert not scene.agent.heard()


@pytest.mark.parametrize(
    "params", [b'{"sessionId":null}', b'{"sessionIds":["s"]}', b'{"parentSessionId":"s"}', b'["session_id"]', b"null"]
)
def test_a_request_without_a_session_passes(scene: Scene, ann: Peer, params: bytes) -> None:
    ann.say(request(b"1", "x/y", params))
    ann.say(notification("x/y", params))
    assert scene.agent.heard_text() == [request(b"2", "x/y", params), notification("x/y", params)]


def test_a_session_whose_id_is_a_book_is_refused_for_it_would_be_remembered() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.request("session/load", sessionId="x" * 1024, cwd="/srv")
    assert scene.agent.hears()["method"] == "session/load"
    ann.request("session/load", sessionId="x" * 1025, cwd="/srv")
    error = error_of(ann)
    assert (error["code"], error["message"]) == (-32602, "a session's id has at most 1024 characters")
    ann.send(method="x/y", params={"sessionId": "x" * 1025})
    assert scene.notes == ["dropped a notification of ann: a session's id has at most 1024 characters"]
    assert not scene.agent.heard()


@pytest.mark.parametrize("params", [b"{}", b'{"sessionId":5}', b"[]", b'{"sessionId":null}'])
def test_a_session_cancel_without_a_session_ends_no_turn(scene: Scene, ann: Peer, params: bytes) -> None:
    ann.new_session()
    ann.prompt()
    scene.agent.heard()
    ann.say(notification("session/cancel", params))
    assert not scene.agent.heard()
    ann.send(method="session/cancel", params={"sessionId": "s"})
    assert scene.agent.hears()["method"] == "session/cancel"


def test_a_notification_while_there_is_no_agent_starts_none(scene: Scene, ann: Peer) -> None:
    scene.lose_agent()
    ann.say(notification("x/y"))
    assert not scene.multiplexer.wants_agent
    assert not scene.agent.heard()


# Observers and guests

OBSERVED = [
    *("session/prompt", "session/fork", "session/delete", "session/set_mode", "authenticate", "x/y", "logout"),
    *("auth/status", "providers/set", "session/archive", "session/set_title", "nes/start", "nes/suggest"),
]


@pytest.mark.parametrize("method", OBSERVED)
def test_an_observer_may_not_do_anything(scene: Scene, ann: Peer, method: str) -> None:
    ann.new_session()
    eve = scene.join_session("eve", role=Role.OBSERVER)
    eve.request(method, sessionId="s", cwd="/srv")
    assert error_of(eve)["code"] == -32601
    assert not scene.agent.heard()


WHOLE = ["logout", "auth/logout", "auth/status", "providers/list", "providers/set", "providers/disable"]


@pytest.mark.parametrize("method", WHOLE)
@pytest.mark.parametrize("common", [True, False])
def test_what_is_about_an_agent_of_several_identities_is_for_the_gateways_own_user(method: str, common: bool) -> None:
    """Another identity would read the address of the account, or have all prompts sent to a machine of its own."""
    scene = Scene(make_policy(common=common))
    me, other = scene.join("me"), scene.join("other", "other")
    for peer in (me, other):
        peer.request(method, providerId="main")
        if common and peer is other:
            error = error_of(peer)
            assert error["code"] == -32600
            assert error["message"] == (
                f"the agent serves several identities: only the gateway's own user may ask for {method}"
            )
        else:
            scene.agent.answers(method)
            assert peer.hears()["result"] == {}
    assert not scene.agent.heard()


def test_an_observers_request_without_a_handler_never_reaches_the_agent(
    scene: Scene, ann: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods.CLIENT_METHODS, "x/look", methods.ClientMethod(observer=True))
    eve = scene.join("eve", role=Role.OBSERVER)
    eve.request("x/look")
    assert error_of(eve)["code"] == -32601
    assert not scene.agent.heard()


def test_an_observers_notifications_and_answers_are_ignored(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    eve = scene.join_session("eve", role=Role.OBSERVER)
    scene.agent.ask_permission(7)
    assert not eve.heard()
    for text in (
        notification("session/cancel", b'{"sessionId":"s"}'),
        notification("x/y"),
        result(b"1", b'{"outcome":{"outcome":"selected","optionId":"yes"}}'),
    ):
        eve.say(text)
    assert (eve.inbox, scene.agent.inbox) == ([], [])
    assert scene.notes == ["dropped a notification of eve: observers may only look"] * 2 + [
        "dropped a response of eve, an observer"
    ]


def test_an_observer_starts_no_agent_and_finds_its_sessions_all_the_same() -> None:
    scene, _ = opened_scene(agentCapabilities={"loadSession": True})
    scene.agent.update("hello")
    eve = scene.join("eve", role=Role.OBSERVER)
    scene.lose_agent()
    assert [message.get("method") for message in eve.load()] == ["session/update", None]
    eve.request("session/list")
    assert [entry["sessionId"] for entry in eve.hears()["result"]["sessions"]] == ["s"]
    assert not scene.multiplexer.wants_agent


GUESTS = ["session/fork", "session/delete", "logout", "x/y"]


@pytest.mark.parametrize("method", ["logout", "authenticate", "providers/set", "nes/close", "x/y"])
def test_a_guest_may_not_send_requests_about_the_whole_agent(scene: Scene, ann: Peer, method: str) -> None:
    ann.new_session()
    gil = scene.join_session("gil", "guest-1", only="s", guest=True)
    gil.request(method, sessionId="s")
    error = error_of(gil)
    assert (error["code"], error["message"]) == (-32600, f"this connection is for one session only: no {method}")
    gil.send(method=method, params={"sessionId": "s"})
    assert not scene.agent.heard()
    assert scene.notes == ["dropped a notification of gil: guests may only send session/cancel"]


def test_a_guest_works_in_the_session_that_it_was_granted_and_sees_no_other(scene: Scene, ann: Peer) -> None:
    ann.new_session("s")
    ann.new_session("t")
    gil = scene.join("gil", "guest-1", only="s", guest=True)
    assert gil.load()[-1]["result"] == {}
    gil.prompt()
    assert scene.agent.hears()["method"] == "session/prompt"
    (refused,) = gil.load("t")
    assert refused["error"]["code"] == -32002
    gil.request("session/list")
    assert [entry["sessionId"] for entry in gil.hears()["result"]["sessions"]] == ["s"]


# Coming and going


def test_a_client_that_is_away_misses_nothing_and_keeps_what_it_was_asked(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.agent.ask_permission(7)
    own = ann.hears()["id"]
    ann.away()
    scene.agent.update("later")
    assert scene.multiplexer.agent_handle.abandoned
    ann.back()
    assert not scene.multiplexer.agent_handle.abandoned
    assert ann.hears()["method"] == "session/update"
    ann.send(id=own, result={"outcome": {"outcome": "selected", "optionId": "yes"}})
    assert scene.agent.hears()["id"] == 7


def test_an_agent_request_without_a_connected_controller_goes_to_the_first_that_is_back(
    scene: Scene, ann: Peer
) -> None:
    ann.new_session()
    eve = scene.join_session("eve", role=Role.OBSERVER)
    for peer in (ann, eve):
        peer.away()
    scene.agent.send(id=7, method="x/y", params={"sessionId": "s"})
    scene.agent.send(id=8, method="x/y", params={})
    assert (ann.inbox, scene.agent.inbox) == ([], [])
    eve.back()
    assert not eve.heard()
    ann.back()
    for own, asked in zip([message["id"] for message in ann.heard()], (7, 8), strict=True):
        ann.send(id=own, result=None)
        assert scene.agent.hears()["id"] == asked
    ann.away()
    ann.back()
    assert not ann.heard()


def test_a_permission_that_a_client_declined_is_not_forwarded_to_it_again(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join_session("bob")
    scene.agent.ask_permission(7)
    bob.send(id=bob.hears()["id"], error={"code": -32602, "message": "not mine"})
    bob.away()
    bob.back()
    assert not bob.heard()


def test_a_client_that_has_gone_hears_nothing_more_and_its_turn_goes_on(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join_session("bob")
    bob.prompt()
    asked = scene.agent.hears()
    ann.heard()
    bob.gone()
    assert scene.multiplexer.clients == (ann.client,)
    assert not scene.agent.heard()
    scene.agent.update("more")
    scene.agent.send(id=asked["id"], result={"stopReason": "end_turn"})
    assert not bob.heard()
    assert ann.hears()["params"]["update"]["content"]["text"] == "more"


def test_waiting_requests_other_than_prompts_are_dropped_with_their_client(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    ann.request("session/load", sessionId="s", cwd="/srv")
    loading = scene.agent.hears()
    bob.request("session/load", sessionId="s", cwd="/srv")
    bob.gone()
    scene.agent.send(id=loading["id"], result={})
    assert list(scene.multiplexer.sessions[0].attached) == [ann.client]
    scene.lose_agent()
    cem = scene.join("cem")
    cem.request("x/y")
    cem.gone()
    scene.agent.answers("initialize", protocolVersion=1)
    assert not scene.agent.heard()


def test_a_client_that_is_dismissed_gets_an_answer_to_everything_it_has_open(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob = scene.join_session("bob")
    bob.say(request(b"1e2"))
    bob.say(request(b'"b"'))
    bob.dismissed("it is slow")
    answers = bob.heard_text()
    assert [parse(text).id for text in answers] == [b"1e2", b'"b"']
    assert {json.dumps(json.loads(text)["error"]) for text in answers} == {
        json.dumps({"code": -32603, "message": "it is slow", "data": {"reason": "slow"}})
    }
    assert scene.multiplexer.clients == (ann.client,)
    for asked in scene.agent.heard():
        scene.agent.send(id=asked["id"], result={})
    assert (bob.inbox, ann.inbox) == ([], [])


# Queries of a driver


def test_the_multiplexer_is_busy_while_anything_is_open(scene: Scene, ann: Peer) -> None:
    def busy() -> bool:
        return scene.multiplexer.busy

    assert not busy()
    ann.new_session()
    assert not busy()
    scene.agent.ask_permission(7)
    assert busy()
    ann.send(id=ann.hears()["id"], result={"outcome": {"outcome": "cancelled"}})
    assert not busy()
    ann.prompt("first")
    ann.prompt("second")
    scene.agent.inbox = scene.agent.inbox[-1:]
    for _ in range(2):
        assert busy()
        scene.agent.answers("session/prompt")
    assert not busy()


def test_the_multiplexer_is_busy_while_a_request_waits_for_a_process(scene: Scene, ann: Peer) -> None:
    scene.lose_agent()
    assert not scene.multiplexer.busy
    ann.request("x/y")
    assert scene.multiplexer.busy


def test_the_agent_is_not_busy_with_requests_of_a_gone_client(scene: Scene, ann: Peer) -> None:
    bob = scene.join("bob")
    ann.request("x/y")
    bob.request("x/y")
    ann.gone()
    assert scene.multiplexer.busy
    bob.gone()
    assert not scene.multiplexer.busy


def test_the_turn_of_a_client_that_has_gone_keeps_the_multiplexer_busy_to_its_end(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    ann.prompt()
    ann.gone()
    assert scene.multiplexer.busy
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert not scene.multiplexer.busy


# The end of turns, of waiting, and of it all


def test_before_the_agent_is_stopped_its_turns_are_ended_and_its_questions_settled(scene: Scene, ann: Peer) -> None:
    ann.new_session("s")
    ann.new_session("idle")
    ann.prompt()
    scene.agent.heard()
    scene.agent.ask_permission("7")
    scene.agent.send(id=8, method="elicitation/create", params={"sessionId": "s"})
    scene.agent.send(id=9, method="x/y", params={"sessionId": "s"})
    copies = [message["id"] for message in ann.heard()]
    scene.end_turns()
    cancelled, permission, elicitation, other = scene.agent.heard()
    assert cancelled == {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}
    assert (permission["id"], permission["result"]) == ("7", {"outcome": {"outcome": "cancelled"}})
    assert (elicitation["id"], elicitation["result"]) == (8, {"action": "cancel"})
    assert (other["id"], other["error"]["code"]) == (9, -32800)
    assert [message["params"]["requestId"] for message in ann.heard()] == copies
    scene.end_turns()
    assert [message["method"] for message in scene.agent.heard()] == ["session/cancel"]


# Any bytes from any peer

PIECES = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\x00", b"\xff", b"{}", b"[]", b"NaN", b"1e999", b"null"),
    *(b'"id":1', b'"id":"a"', b'"id":1.0', b'"method":"session/prompt"', b'"method":"initialize"', b'"result":{}'),
    *(b'"params"', rb'"\ud83d"', b'"error":{"code":-32000,"message":"m"}', b"-32000", b'"cwd"', b'"sessionId"', b"5"),
    *(b'"method":"fs/x"', b'"method":"$/cancel_request"', b'"params":{"requestId":1}', b'"authMethods"', b'"fs"'),
]
METHODS = [
    *("initialize", "session/new", "session/load", "session/resume", "session/fork", "session/list", "session/close"),
    *("session/delete", "session/prompt", "session/cancel", "session/set_mode", "session/set_config_option"),
    *("session/update", "fs/read_text_file", "terminal/create", "$/cancel_request", "session/request_permission"),
    *("_acp-gateway/hello", "elicitation/create", "elicitation/complete", r"x\ud83d"),
]
PARAMS = [
    *(b"{}", b"[]", b"null", b'{"requestId":1}', b'{"requestId":"a"}', b'{"sessionId":"s"}', b'{"sessionId":5}'),
    *(rb'{"sessionId":"\ud83d"}', rb'{"cwd":"\ud83d"}', b'{"cwd":"/srv"}', b'{"sessionId":"s","update":5}'),
    b'{"sessionId":"s","cwd":"/srv","prompt":[{"type":"text","text":"x"},5],"cursor":7,"modeId":"m"}',
    b'{"sessionId":"s","prompt":{},"options":[{"optionId":"y"},5],"terminalId":"t","elicitationId":"e"}',
    b'{"sessionId":"s","update":{"sessionUpdate":"config_option_update","configOptions":[],"content":[{"terminalId":5}]}}',
    b'{"sessionId":"c","update":{"sessionUpdate":"subagent_update","sessionId":"d","content":[]}}',
    b'{"protocolVersion":1,"clientCapabilities":{"fs":{},"terminal":true,"auth":{"terminal":1}}}',
]
RESULTS = [
    *(
        b"{}",
        b"null",
        b'{"authMethods":[{"type":"terminal"},{"_meta":{}},5]}',
        b'{"authMethods":{}}',
        b'{"sessionId":"s"}',
    ),
    *(b'{"sessionId":5,"modes":[]}', b'{"sessions":[{"sessionId":"s"},5],"nextCursor":"n"}', b'{"sessions":[]}'),
    b'{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"list":{},"close":{}}}}',
    b'{"outcome":{"outcome":"selected","optionId":"y"},"terminalId":"t","action":"accept","configOptions":[]}',
]
raw_ids = st.sampled_from([b"1", b"2", b"3", b"4", b"1.0", b'"a"', rb'"\u0061"', b"null", b"1e999", rb'"\ud83d"'])
well_formed = st.one_of(
    st.builds(request, raw_ids, st.sampled_from(METHODS), st.sampled_from(PARAMS)),
    st.builds(notification, st.sampled_from(METHODS), st.sampled_from(PARAMS)),
    st.builds(result, raw_ids, st.sampled_from(RESULTS)),
    st.builds(
        lambda raw, error: b'{"id":%b,"error":%b}' % (raw, error),
        raw_ids,
        st.sampled_from([b'{"code":-32000,"message":"m"}', b'{"code":-32000,"message":5}', b"null", b"[]"]),
    ),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A message with a place replaced, cut out or filled in."""
    text = draw(well_formed)
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.integers(0, 12)))
    return text[:start] + draw(st.sampled_from(PIECES) | st.binary(max_size=2)) + text[end:]


anything = well_formed | mutated() | st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join) | st.binary(max_size=8)
speakers = st.sampled_from(["ann", "bob", "eve", "agent"])
events = st.sampled_from(
    ["lose_agent", "stop_agent", "end_turns", "sessions_freed", "ann away", "ann back", "bob gone"]
)


def happens(scene: Scene, what: str) -> None:
    name, _, verb = what.partition(" ")
    if verb:
        peer = next((peer for peer in scene.peers.values() if peer.client.name == name and not peer.client.gone), None)
        # A driver loses a connection only once.
        if peer is not None and (verb != "away" or peer.client.connected):
            getattr(peer, verb)()
    else:
        getattr(scene, what)()


@effort(150)
@given(st.booleans(), st.booleans(), st.lists(st.tuples(speakers, anything) | events, max_size=25))
@example(False, False, [("ann", request(b"1", "initialize", b"{}")), ("agent", request(b"1", "session/update", b"{}"))])
@example(False, True, [("agent", request(b"1", "session/update", b'{"sessionId":"s"}'))])
def test_no_input_of_clients_or_agent_raises_and_only_messages_are_delivered(
    shared: bool, in_the_middle: bool, said: list[tuple[str, bytes] | str]
) -> None:
    scene = Scene(make_policy(shared=shared, serves=frozenset(Capability)), agentCapabilities={"loadSession": True})
    peers = {
        "ann": scene.join("ann", initialize=in_the_middle),
        "bob": scene.join("bob", "other", initialize=in_the_middle),
        "eve": scene.join("eve", role=Role.OBSERVER, initialize=in_the_middle),
    }
    if in_the_middle:
        peers["ann"].new_session()
    for each in said:
        if isinstance(each, str):
            happens(scene, each)
        elif each[0] == "agent":
            scene.agent.say(each[1])
        elif not peers[each[0]].client.gone:
            peers[each[0]].say(each[1])
    scene.pass_time(1e9)
    scene.lose_agent()
    scene.retire()
    delivered = [*scene.agent.inbox, *(text for peer in peers.values() for text in peer.inbox)]
    for text in delivered:
        parse(text)
    assert all(note.isprintable() for note in scene.notes)
    event(f"passed on: {any(text[1] in delivered for text in said if isinstance(text, tuple))}")


# What is written down of who comes and goes


def test_joining_and_leaving_a_session_is_audited_once(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    bob, eve = scene.join("bob"), scene.join("eve", role=Role.OBSERVER)
    for peer in (bob, bob, eve):
        peer.load()
    about = {"session": "s", "agent": "agent"}
    joined = [AuditEvent("session_joined", peer.client, about | {"owner": "me"}) for peer in (ann, bob, eve)]
    assert scene.audit_events == joined
    bob.request("session/close", sessionId="s")
    bob.request("session/close", sessionId="s")
    eve.away()
    eve.gone()
    ann.dismissed()
    assert scene.audit_events[3:] == [AuditEvent("session_left", peer.client, about) for peer in (bob, eve, ann)]


def test_the_end_of_a_session_is_audited_as_leaving_for_each_client(scene: Scene, ann: Peer) -> None:
    ann.new_session()
    scene.lose_agent()
    assert [audit_event.name for audit_event in scene.audit_events] == ["session_joined", "session_left"]


def test_dear_requests_count_as_several_messages_whatever_becomes_of_them() -> None:
    scene = Scene()
    ann = scene.join("ann")
    scene.multiplexer.take_surcharge()
    for method, weight in (("session/list", 100), ("session/load", 20), ("session/prompt", 1), ("x/y", 1)):
        ann.request(method, sessionId="unknown")
        assert scene.multiplexer.take_surcharge() == weight - 1
        assert scene.multiplexer.surcharge == 0


@pytest.mark.parametrize(
    "answer",
    [
        b'{"jsonrpc":"2.0","id":%b,"result":{"x":Infinity}}',
        b'{"jsonrpc": "2.0", "id": %b, "result": {"x": [NaN, -Infinity, "NaN"]}}',
        b'{"result":{"x":NaN},"id":%b}',
        b'{"jsonrpc":"2.0","id":%b,"result":{"x":"\xff"}}',
        b'{"jsonrpc":"2.0","id":%b,"result":{"x":',
        b'{"jsonrpc":"2.0","id":%b,"error":{"x":\'a\'}}',
        b'{"jsonrpc":"2.0","id":%b,"result":{},"Error":NaN}',
        b'{"jsonrpc":"2.0","id":%b,"result":{"y":"@","x":NaN}}'.replace(b"@", b"y" * (1 << 20)),
    ],
    ids=lambda answer: answer[-12:].decode("latin-1"),
)
def test_an_answer_of_the_agent_that_cannot_be_read_is_an_error_for_who_waits_for_it(
    scene: Scene, ann: Peer, answer: bytes
) -> None:
    ann.say(request(b'"mine"'))
    scene.agent.say(answer % id_at_agent(scene))
    heard = ann.hears()
    assert (heard["id"], heard["error"]["code"]) == ("mine", -32603)
    assert heard["error"]["message"].startswith("the agent's answer can't be read: ")
    assert not scene.multiplexer.busy


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":77,"result":NaN}',
        b'{"id":%b,"method":"x","params":{"x":NaN}}',
        b'{"id":%b,"x":NaN}',
        b'{"id":%b0,"result":{"x":',
        b"NaN",
    ],
)
def test_an_unreadable_line_without_an_open_id_settles_no_request(scene: Scene, ann: Peer, line: bytes) -> None:
    ann.say(request(b'"mine"'))
    scene.agent.say(line.replace(b"%b", id_at_agent(scene)))
    assert ann.heard() == []
    assert scene.multiplexer.busy


@pytest.mark.parametrize("method", ["session/update", "session/request_permission", "_x/y", "fs/read_text_file"])
@pytest.mark.parametrize("more", [b'"Method":"x"', b'"PARAMS":{}', b'"result":1', b'"Error":null'])
def test_a_message_with_a_lookalike_member_is_dropped_from_agents(
    scene: Scene, ann: Peer, method: str, more: bytes
) -> None:
    ann.new_session()
    scene.agent.say(b'{"method":"%b","params":{"sessionId":"s"},%b}' % (method.encode(), more))
    assert ann.heard() == []
    assert "dropped a line of" in scene.notes[-1]


@pytest.mark.parametrize(
    "params", [b'["/etc",[{"name":"x","command":"sh"}]]', b'{"Cwd":"/etc"}', b'{"cwd":"/srv","MCPServers":[]}']
)
def test_no_session_is_opened_by_params_that_only_some_understand(scene: Scene, ann: Peer, params: bytes) -> None:
    ann.say(request(b"1", "session/new", params))
    assert error_of(ann)["code"] == -32602
    assert not scene.agent.heard()


def test_a_request_larger_than_session_request_size_is_refused() -> None:
    scene = Scene(make_policy(session_request_size=200))
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv/" + "x" * 200, mcpServers=[])
    assert "session_request_size allows 200" in ann.hears()["error"]["message"]
    assert scene.agent.heard() == []


def test_an_error_of_a_message_that_was_read_before_is_answered(scene: Scene, ann: Peer) -> None:
    ann.say(InvalidMessage(-32600, "too dense"))  # type: ignore[arg-type]
    assert ann.hears()["error"] == {"code": -32600, "message": "too dense"}


def test_a_session_awaits_its_first_prompt_while_a_client_is_attached_to_it() -> None:
    scene = Scene()
    ann = scene.join("ann")
    assert not scene.multiplexer.awaits_first_prompt
    ann.new_session()
    assert scene.multiplexer.awaits_first_prompt
    ann.gone()
    assert not scene.multiplexer.awaits_first_prompt
    scene.join_session("bob").prompt()
    assert not scene.multiplexer.awaits_first_prompt
