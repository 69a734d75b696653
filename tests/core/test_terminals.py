"""Terminals on clients' machines: whose is meant, and under which name each side knows it."""

from collections.abc import Callable
from typing import Any

import pytest

from acp_gateway.core import agent_requests, terminals
from acp_gateway.core.sessions.session import Client, Role, SessionReach
from acp_gateway.core.terminals import Terminal, Terminals
from acp_gateway.protocol.jsonrpc import parse
from acp_gateway.protocol.methods import Capability
from tests.kit.scene import Peer, Scene, make_policy

HOST_GONE = {
    "code": -32603,
    "message": "the client that serves files and terminals for this session has gone",
    "data": {"reason": "host_gone"},
}


def serving() -> Scene:
    return Scene(make_policy(serves=frozenset({Capability.TERMINAL})))


def create(scene: Scene, host: Peer, name: str, session_id: str = "s") -> str:
    """The agent has a terminal started, which the client calls `name`; what the agent calls it."""
    scene.agent.send(id="c", method="terminal/create", params={"sessionId": session_id, "command": "ls"})
    host.send(id=host.hears()["id"], result={"terminalId": name})
    return str(scene.agent.hears()["result"]["terminalId"])


def ask(scene: Scene, method: str, name: Any, session_id: str = "s") -> None:
    scene.agent.send(id="q", method=f"terminal/{method}", params={"sessionId": session_id, "terminalId": name})


def show(scene: Scene, name: str, session_id: str = "s") -> None:
    scene.agent.state("tool_call", session_id, toolCallId="c", content=[{"type": "terminal", "terminalId": name}])


def shown(peer: Peer) -> list[str]:
    return [
        item["terminalId"]
        for message in peer.heard()
        if "params" in message
        for item in message["params"]["update"]["content"]
    ]


@pytest.fixture
def scene() -> Scene:
    return serving()


def test_terminals_that_two_clients_call_the_same_are_two_for_the_agent(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session("a")
    bob.new_session("b")
    of_ann, of_bob = create(scene, ann, "t", "a"), create(scene, bob, "t", "b")
    assert of_ann != of_bob
    ask(scene, "output", of_bob, "b")
    assert bob.hears()["params"] == {"sessionId": "b", "terminalId": "t"}
    ask(scene, "kill", of_ann, "a")
    assert ann.hears()["params"] == {"sessionId": "a", "terminalId": "t"}


def test_only_the_name_is_translated_both_ways(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.new_session()
    scene.agent.say(b'{"id":0,"method":"terminal/create","params":{"sessionId":"s","n":1.10}}')
    assert ann.heard_text() == [b'{"id":1,"method":"terminal/create","params":{"sessionId":"s","n":1.10}}']
    ann.say(b'{"result":{"_meta":{"n":1.10}, "terminalId" : "t\\u0031" },"id":1}')
    assert scene.agent.heard_text() == [
        b'{"result":{"_meta":{"n":1.10}, "terminalId" : "acp-gateway-terminal-1" },"id":0}'
    ]
    scene.agent.say(
        b'{"id":0,"method":"terminal/new","params":{"n":1e999,"terminalId":"acp-gateway-terminal-1","sessionId":"s"}}'
    )
    assert ann.heard_text() == [
        b'{"id":2,"method":"terminal/new","params":{"n":1e999,"terminalId":"t1","sessionId":"s"}}'
    ]


def test_an_answer_of_the_client_about_a_terminal_is_passed_on(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.new_session()
    ask(scene, "output", create(scene, ann, "t"))
    ann.send(id=ann.hears()["id"], result={"output": "x", "terminalId": "t"})
    assert scene.agent.hears() == {"jsonrpc": "2.0", "id": "q", "result": {"output": "x", "terminalId": "t"}}


def test_a_terminal_that_could_not_be_started_does_not_count(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.new_session()
    answers: list[dict[str, Any]] = [
        {"error": {"code": -1, "message": "no"}},
        {"result": {}},
        {"result": {"terminalId": 7}},
    ]
    for answer in answers:
        scene.agent.send(id="c", method="terminal/create", params={"sessionId": "s"})
        ann.send(id=ann.hears()["id"], **answer)
        assert scene.agent.hears() == {"jsonrpc": "2.0", "id": "c"} | answer
    ask(scene, "output", "acp-gateway-terminal-1")
    assert scene.agent.hears()["error"] == HOST_GONE


def test_a_terminal_stays_with_its_client_when_another_becomes_the_host(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    name = create(scene, ann, "t")
    bob.load()
    ask(scene, "output", name)
    assert ann.hears()["params"]["terminalId"] == "t"
    assert bob.heard() == []


def test_a_terminal_whose_client_has_gone_is_not_looked_for_at_the_next_host(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    bob.new_session()
    ann.load()
    name = create(scene, ann, "t")
    ann.gone()
    bob.load()
    assert create(scene, bob, name) != name
    ask(scene, "output", name)
    assert scene.agent.hears()["error"] == HOST_GONE
    assert bob.heard() == []


def test_who_has_left_the_session_is_not_asked_about_its_terminals(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    bob.load()
    name = create(scene, bob, "t")
    bob.request("session/close", sessionId="s")
    bob.heard()
    ask(scene, "output", name)
    assert scene.agent.hears()["error"] == HOST_GONE
    assert bob.heard() == ann.heard() == []


def test_a_tool_call_shows_a_terminal_to_its_client_alone_also_in_the_history(scene: Scene) -> None:
    ann, bob = scene.join("ann"), scene.join("bob")
    watcher = scene.join("watcher", role=Role.OBSERVER)
    bob.new_session()
    watcher.load()
    ann.load()
    name = create(scene, ann, "t")
    show(scene, name)
    assert shown(ann) == ["t"]
    late = scene.join("late")
    late.request("session/load", sessionId="s", cwd="/srv")
    told = [[message["params"]["update"] for message in peer.heard() if "params" in message] for peer in (bob, late)]
    assert told == [[{"sessionUpdate": "tool_call", "toolCallId": "c", "content": []}]] * 2
    assert shown(watcher) == []
    ann.gone()
    show(scene, name)
    scene.agent.update("and on")
    assert [message["params"]["update"]["content"] for message in bob.heard()] == [
        [],
        {"type": "text", "text": "and on"},
    ]


def test_a_permission_request_shows_a_terminal_to_its_client_alone_also_when_it_joins_later(scene: Scene) -> None:
    ann, bob = scene.join("ann", link="l"), scene.join("bob")
    ann.new_session()
    name = create(scene, ann, "t")
    bob.load()
    ann.away()
    content = [{"type": "terminal", "terminalId": name}, {"type": "content"}]
    offered = [{"optionId": "yes", "name": "yes", "kind": "allow_once"}]
    params = {"sessionId": "s", "toolCall": {"toolCallId": "c", "content": content}, "options": offered}
    scene.agent.send(id="q", method="session/request_permission", params=params)
    ann.back()
    late = scene.join("late")
    late.request("session/load", sessionId="s", cwd="/srv")
    asked = [peer.heard()[-1] for peer in (ann, bob, late)]
    assert [it["params"]["toolCall"]["content"] for it in asked] == [
        [{"type": "terminal", "terminalId": "t"}, {"type": "content"}],
        [{"type": "content"}],
        [{"type": "content"}],
    ]
    bob.choose(asked[1], "yes")
    assert scene.agent.hears()["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}


def test_who_gets_the_history_again_finds_its_own_terminals_in_it(scene: Scene) -> None:
    ann, phone = scene.join("ann"), scene.join("phone", only="s")
    ann.new_session()
    show(scene, create(scene, ann, "t"))
    ann.heard()
    ann.request("session/load", sessionId="s", cwd="/srv")
    ann.inbox.pop()
    assert shown(ann) == ["t"]
    phone.request("session/new", cwd="/srv")
    del phone.inbox[0]
    assert shown(phone) == []


def test_a_terminal_that_was_released_is_still_shown(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.new_session()
    name = create(scene, ann, "t")
    ask(scene, "release", name)
    ann.send(id=ann.hears()["id"], result=None)
    show(scene, name)
    assert shown(ann) == ["t"]


def test_the_end_of_the_agent_is_the_end_of_its_terminals(scene: Scene) -> None:
    ann = scene.join("ann")
    ann.new_session()
    name = create(scene, ann, "t")
    scene.lose_agent()
    ann.request("session/new", cwd="/srv")
    scene.agent.answer(scene.agent.takes("initialize"), **scene.welcome)
    scene.agent.answer(scene.agent.takes("session/new"), sessionId="s")
    ann.heard()
    show(scene, name)
    assert shown(ann) == []


def cancel_turn(scene: Scene, ann: Peer) -> None:
    ann.cancel()


def cancel_request(scene: Scene, ann: Peer) -> None:
    scene.agent.send(method="$/cancel_request", params={"requestId": "c"})


def end_agent(scene: Scene, ann: Peer) -> None:
    scene.lose_agent()


def leave(scene: Scene, ann: Peer) -> None:
    ann.request("session/close", sessionId="s")


@pytest.mark.parametrize("withdraw", [cancel_turn, cancel_request, end_agent, leave])
def test_a_terminal_that_is_started_after_its_request_was_withdrawn_is_released(
    withdraw: Callable[[Scene, Peer], None],
) -> None:
    scene = serving()
    ann, bob = scene.join("ann"), scene.join("bob")
    bob.new_session()
    ann.load()
    ann.prompt()
    scene.agent.send(id="c", method="terminal/create", params={"sessionId": "s", "command": "ls"})
    asked = ann.heard()[-1]["id"]
    withdraw(scene, ann)
    assert "$/cancel_request" in {message.get("method") for message in ann.heard()}
    scene.agent.heard()
    ann.send(id=asked, result={"terminalId": "t"})
    release = ann.hears()
    assert (release["method"], release["params"]) == ("terminal/release", {"sessionId": "s", "terminalId": "t"})
    ann.send(id=release["id"], result=None)
    assert ann.heard() == scene.agent.heard() == []
    assert not any("no open request" in line for line in scene.notes)


def test_only_so_many_terminals_are_released_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_requests, "MAX_UNWANTED", 2)
    scene = serving()
    ann, bob = scene.join("ann"), scene.join("bob")
    bob.new_session()
    ann.load()
    for name in "abc":
        scene.agent.send(id=name, method="terminal/create", params={"sessionId": "s", "command": "ls"})
    asked = [message["id"] for message in ann.heard()]
    leave(scene, ann)
    ann.heard()
    for number in asked:
        ann.send(id=number, result={"terminalId": f"t{number}"})
    released = [message["params"]["terminalId"] for message in ann.heard() if message["method"] == "terminal/release"]
    assert released == [f"t{number}" for number in asked[1:]]


def test_only_so_many_terminals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminals, "MAX_REMEMBERED", 2)
    scene = serving()
    ann = scene.join("ann")
    ann.new_session()
    for name in [create(scene, ann, f"t{number}") for number in range(3)]:
        show(scene, name)
    assert shown(ann) == ["t1", "t2"]


# The content of an update.


FIRST, SECOND = b'"acp-gateway-terminal-1"', b'"acp-gateway-terminal-2"'


def two() -> tuple[Terminals, Client, Client]:
    """Two clients with a terminal each, which both call `t`; the agent calls them as `FIRST` and `SECOND` say."""
    known, ann, bob = Terminals(), Client("ann", SessionReach("me")), Client("bob", SessionReach("me"))
    for client in (ann, bob):
        known.created(client, b'{"id":1,"result":{"terminalId":"t"}}')
    return known, ann, bob


def update(content: bytes) -> bytes:
    return b'{"method":"session/update","params":{"update":{"n":1.10,"content":%b},"sessionId":"s"}}' % content


def test_each_client_gets_its_own_terminals_translated_wherever_they_stand_in_the_content() -> None:
    known, ann, bob = two()
    eve = Client("eve", SessionReach("me"))
    shown = update(b'[ {"terminalId":%b}, 5,{"x":{},"terminalId" : %b},{"terminalId":%b}]' % (FIRST, SECOND, FIRST))
    assert known.translations(shown, [ann, bob, eve]) == {
        ann: update(b'[{"terminalId":"t"},5,{"terminalId":"t"}]'),
        bob: update(b'[5,{"x":{},"terminalId" : "t"}]'),
        eve: update(b"[5]"),
    }


@pytest.mark.parametrize(
    "content",
    [
        b'[{"terminalId":7}]',
        b'["terminalId"]',
        b'{"terminalId":"acp-gateway-terminal-1"}',
        b'[{"text":"\\"terminalId\\":\\"acp-gateway-terminal-1\\""}]',
        b"[]",
    ],
)
def test_nothing_else_is_translated(content: bytes) -> None:
    known, ann, _ = two()
    assert known.translations(update(content), [ann]) == {}


def test_an_update_without_content_has_nothing_to_be_translated() -> None:
    known, ann, _ = two()
    assert known.translations(b'{"params":{"update":{"terminalId":"acp-gateway-terminal-1"}}}', [ann]) == {}


def test_without_terminals_nothing_is_looked_at() -> None:
    assert Terminals().translations(b'not even JSON: "terminalId"', [Client("ann", SessionReach("me"))]) == {}


@pytest.mark.parametrize(
    ("params", "terminal", "names_terminal"),
    [
        (b'{"terminalId":"acp-gateway-terminal-1"}', "t", True),
        (b'{"terminalId":"x"}', None, True),
        (b'{"terminalId":1}', None, False),
    ],
)
def test_the_terminal_that_a_request_names(params: bytes, terminal: str | None, names_terminal: bool) -> None:
    known, ann, _ = two()
    request = parse(b'{"id":1,"method":"terminal/output","params":%b}' % params)
    assert known.named(request) == (None if terminal is None else Terminal(ann, terminal))
    assert known.names_terminal(request) is names_terminal


def test_the_terminals_of_who_has_gone_are_forgotten_and_no_others() -> None:
    known, ann, _ = two()
    known.client_gone(ann)
    assert len(known) == 1
    known.clear()
    assert len(known) == 0
