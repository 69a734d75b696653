"""Clients and an agent that all speak version 2: no byte changes between them, but for ids."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.core.agent_requests import JUST_LOST
from acp_gateway.core.agent_state import Policy
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Role
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.text.pairs import Pair, size_of
from acp_gateway.protocol.text.spans import MEMBERS
from acp_gateway.versions.agent_edge import AgentEdge
from acp_gateway.versions.carried import accepted, restored, stored
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.parts import BACKGROUND_SIZE
from tests.core.sessions.test_continuing import Gateways
from tests.core.test_translated_clients import NewPeer, kinds
from tests.fuzz.effort import effort
from tests.kit.folds import NEW_UPDATES
from tests.kit.scene import Peer, Scene, encode, make_policy
from tests.kit.schemas import check_message
from tests.kit.versions import text as block

Json = Any

NEW = {"protocolVersion": 2, "info": {"name": "a", "version": "1"}, "capabilities": {"session": {}}}


def spelled(**message: Any) -> bytes:
    """Encode a message as few programs do."""
    return (
        json.dumps({"params": message.pop("params"), **message, "jsonrpc": "2.0"}, indent=1).replace("\n", " ").encode()
    )


def told(kind: str, /, **members: Any) -> bytes:
    return spelled(method="session/update", params={"update": {"sessionUpdate": kind, **members}, "sessionId": "s"})


ODD = {"_meta": {"a": [1.50, None]}, "_odd": "ü\u2028", "n": 10**20}
DIFF = {
    "type": "diff",
    "changes": [{"operation": "move", "path": "/b", "oldPath": "/a"}, {"operation": "delete", "path": "/c"}],
    "patch": {"format": "git_patch", "text": "diff --git /b /b\n--- /b\n+++ /b\n@@ -1 +1 @@\n-x\n+y\n"},
}

TURN = [
    told("user_message", messageId="u", content=[block("go")], **ODD),
    told("state_update", state="running", **ODD),
    told("agent_thought_chunk", messageId="m", content=block("hm"), **ODD),
    told("agent_thought_chunk", messageId="m", content=block("hm")),
    told("agent_message_chunk", messageId="m2", content=block("one")),
    told("agent_message_chunk", messageId="m2", content={"type": "_other", "x": 1}),
    told("agent_message", messageId="m2", content=[block("two"), {"type": "text", "text": "!"}]),
    told("agent_message", messageId="m2", content=None),
    told("tool_call_update", toolCallId="t", title="T", kind="_own", status="paused", content=[DIFF], **ODD),
    told("tool_call_content_chunk", toolCallId="t", content={"type": "content", "content": block("c")}),
    *(
        told("tool_call_content_chunk", toolCallId="t", content={"type": "content", "content": block("c" * 5000)})
        for _ in range(20)
    ),
    told("terminal_update", terminalId="x", command="make", cwd="/w"),
    told("terminal_output_chunk", terminalId="x", data="aGk="),
    told("tool_call_update", toolCallId="t", status="cancelled", content=[{"type": "terminal", "terminalId": "x"}]),
    told("terminal_output_chunk", terminalId="x", data="aGk="),
    told("terminal_update", terminalId="x", exitStatus={"exitCode": 2}),
    told("plan_update", plan={"type": "markdown", "planId": "p", "content": "# a"}),
    told("plan_update", plan={"type": "items", "planId": "q", "entries": []}),
    told("plan_removed", planId="p"),
    told("notice", severity="warning", title="slow"),
    told("compaction_update", compactionId="k", status="in_progress"),
    told("available_commands_update", availableCommands=[{"type": "command", "name": "n", "description": "d"}]),
    told("config_option_update", configOptions=[{"configId": "o", "name": "O", "type": "_slider", "at": 3}]),
    told("session_info_update", title="a title"),
    told("usage_update", used=1, size=2),
    told("_own_update", x=1),
    told("state_update", state="requires_action"),
]
END = told(
    "state_update", state="idle", stopReason="_odd", usage={"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
)


class NewScene(Scene):
    """A scene whose agent speaks version 2."""

    def __init__(self, policy: Policy | None = None, registry: Registry | None = None) -> None:
        super().__init__(policy, registry)
        self.begin_process()

    def begin_process(self) -> None:
        self.edge = AgentEdge()
        self.agent._receive = self._from_agent

    def _from_agent(self, text: bytes) -> None:
        out = self.edge.from_agent(text)
        self.agent.inbox += out.to_agent
        self.multiplexer.receive_from_agent(out.to_client)

    def deliver(self, leaving: Client | None = None) -> None:
        before = len(self.agent.inbox)
        super().deliver(leaving)
        sent, self.agent.inbox[before:] = self.agent.inbox[before:], []
        for text in sent:
            out = self.edge.to_agent(text)
            self.agent.inbox += out.to_agent
            if out.to_client:
                self.multiplexer.receive_from_agent(out.to_client)
                super().deliver(leaving)

    def come(self, name: str, version: int = 2, role: Role = Role.CONTROLLER, link: str | None = None) -> Peer:
        """Add a client of this version."""
        peer = self.join(name, initialize=False, role=role, link=link)
        if version == 2:
            peer = self.peers[peer.client] = NewPeer(self, peer.client)
        own = (
            {"info": {"name": name, "version": "1"}, "capabilities": {}} if version == 2 else {"clientCapabilities": {}}
        )
        number = peer.request("initialize", protocolVersion=version, **own)
        while self.agent.inbox:
            asked = json.loads(self.agent.inbox.pop(0))
            if asked["params"]["protocolVersion"] < 2:
                self.agent.send(id=asked["id"], error={"code": -32602, "message": "only 2"})
            else:
                self.agent.send(id=asked["id"], result=NEW)
        answer = peer.hears()
        assert (answer["id"], answer["result"]["protocolVersion"]) == (number, version)
        return peer


def opened(*names: str) -> tuple[NewScene, list[Peer]]:
    """Clients of version 2 in the session `s`."""
    scene = NewScene()
    peers = [scene.come(name) for name in names]
    peers[0].request("session/new", cwd="/srv")
    asked = scene.agent.takes("session/new")
    assert asked["params"] == {"cwd": "/srv", "mcpServers": []}
    scene.agent.send(id=asked["id"], result={"sessionId": "s", "configOptions": []})
    for peer in peers[1:]:
        peer.request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
    for peer in peers:
        peer.heard()
    return scene, peers


def asks(scene: NewScene, peer: Peer, words: str = "go") -> Any:
    """Have a client prompt; return what the agent gets."""
    own = peer.prompt(words)
    asked = scene.agent.takes("session/prompt")
    assert (own, peer.heard_text()) == (own, [])
    return asked


def turn(scene: NewScene, peer: Peer) -> None:
    """Have a client prompt, and the agent tell all kinds of things."""
    asked = asks(scene, peer)
    scene.agent.say(b'{"id": %d,  "result":{"messageId":"u","_x": 1},"jsonrpc":"2.0"}' % asked["id"])
    for message in [*TURN, END]:
        scene.agent.say(message)


def test_all_that_an_agent_tells_is_the_same_bytes_for_all_clients_of_its_version() -> None:
    scene, (ann, bob) = opened("ann", "bob")
    turn(scene, ann)
    accepted, *rest = ann.heard_text()
    assert accepted == b'{"id": %d,  "result":{"messageId":"u","_x": 1},"jsonrpc":"2.0"}' % ann._last_id
    assert rest == [*TURN, END]
    assert bob.heard_text() == [*TURN, END]


def test_a_replay_is_the_same_bytes_as_well() -> None:
    scene, (ann,) = opened("ann")
    turn(scene, ann)
    bob = scene.come("bob")
    bob.request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
    *history, state, response = bob.heard_text()
    assert history == [*TURN, END]
    assert kinds([json.loads(state), json.loads(response)]) == ["idle", "response"]


def test_content_that_waits_comes_before_a_message_that_is_the_same_for_a_client_of_version_1_alone() -> None:
    scene, (ann,) = opened("ann")
    old = scene.come("old", 1)
    old.load()
    piece = {"type": "content", "content": block("c" * 5000)}
    chunk = told("tool_call_content_chunk", toolCallId="t", content=piece)
    said = [told("tool_call_update", toolCallId="t", title="T")]
    scene.agent.say(said[0])
    # Until the whole content would be sent too often.
    while old.heard():
        assert len(said) < 100
        said.append(chunk)
        scene.agent.say(chunk)
    last = told("_own_update", x=1)
    scene.agent.say(last)
    assert ann.heard_text() == [*said, last]
    content, same = old.heard()
    assert content["params"]["update"]["content"] == [piece] * (len(said) - 1)
    assert same == json.loads(last)


def test_a_client_of_version_1_beside_them_gets_nothing_but_version_1() -> None:
    scene, (ann,) = opened("ann")
    old = scene.come("old", 1, link="l")
    old.load()
    turn(scene, ann)
    live = old.heard()
    late = scene.come("late", 1, link="m")
    replayed = late.load()
    for message in (*live, *replayed):
        check_message(1, "client", message, "session/load")
    assert [m for m in live if "id" not in m] == [m for m in replayed if "id" not in m]
    assert b"_acp-gateway" not in encode(all=live)
    # Both know their places, though fewer messages came than count.
    assert old.seen["s"] == late.seen["s"] == (scene.session().journal.epoch, scene.session().journal.position)


def own_notifications(peer: Peer) -> list[Json]:
    return [message for message in peer.heard() if "id" not in message]


@given(st.lists(NEW_UPDATES, max_size=8))
@effort(25)
def test_clients_that_come_at_any_message_see_what_the_first_ones_see(conversation: list[Json]) -> None:
    scene, (ann,) = opened("ann")
    old = scene.come("old", 1)
    old.load()
    scene.agent.answer(asks(scene, ann), messageId="u")
    said = [told(update.pop("sessionUpdate"), **update) for update in map(dict, conversation)] + [END]
    late: list[Peer] = []
    for number, message in enumerate(said):
        late += [scene.come(f"new {number}"), scene.come(f"old {number}", 1)]
        late[-2].request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
        late[-1].request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
        scene.agent.say(message)
    assert scene.agent.heard() == []
    expected = own_notifications(old)
    for peer in late[1::2]:
        assert own_notifications(peer) == expected
    for peer in (ann, *late[::2]):
        # The gateway tells them the state as well, in a spelling of its own.
        assert [text for text in peer.heard_text() if text in said] == said


@pytest.mark.parametrize(
    "subject",
    [
        {"type": "command", "command": "rm", "cwd": "/w", "toolCallId": "c"},
        {"type": "tool_call", "toolCall": {"toolCallId": "t", "title": "T", "content": [DIFF]}},
        {"type": "_own", "x": 1},
        None,
    ],
)
def test_a_permission_request_is_the_same_but_for_its_id_and_so_is_its_answer(subject: Json) -> None:
    scene, (ann, bob) = opened("ann", "bob")
    old = scene.come("old", 1)
    old.load()
    scene.agent.answer(asks(scene, ann), messageId="u")
    options = [
        {"optionId": "y", "name": "Y", "kind": "_ask_again"},
        {"optionId": "n", "name": "N", "kind": "reject_once"},
    ]
    params = {"sessionId": "s", "title": "May I?", "description": "d", "subject": subject, "options": options, **ODD}
    for peer in (ann, bob, old):
        peer.heard()
    asked = spelled(id="q", method="session/request_permission", params=params)
    scene.agent.say(asked)
    for peer in (ann, bob):
        (got,) = peer.heard_text()
        number = json.loads(got)["id"]
        assert got == jsonrpc.with_id(jsonrpc.parse(asked), RawId(b"%d" % number))
    *_, shown = old.heard()
    assert shown["method"] == "session/request_permission"
    assert "toolCall" in shown["params"]
    bob.choose(json.loads(got), "y")
    (answer,) = scene.agent.heard()
    assert answer == {"jsonrpc": "2.0", "id": "q", "result": {"outcome": {"outcome": "selected", "optionId": "y"}}}


def test_a_permission_request_that_can_be_read_in_two_ways_is_refused() -> None:
    scene, (ann,) = opened("ann")
    option = b'{"optionId":"y","name":"Y","kind":"allow_once"}'
    asked = b'{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":%b}'
    for members in (
        b'{"sessionId":"s","title":"a","title":"b","options":[%b]}' % option,
        b'{"sessionId":"s","title":"a","options":[%b],"Options":[]}' % option,
    ):
        scene.agent.say(asked % members)
        (refused,) = scene.agent.heard()
        assert refused["error"]["code"] == -32602
        assert ann.heard() == []


def test_requests_of_a_client_reach_the_agent_as_they_are() -> None:
    scene, (ann,) = opened("ann")
    server = {"type": "stdio", "name": "n", "command": "c"}
    for method, params in (
        ("session/new", {"cwd": "/srv", "mcpServers": [server], "_x": 1}),
        ("session/prompt", {"sessionId": "s", "prompt": [{"type": "_other", "x": 1}, block("a")]}),
        ("session/set_config_option", {"sessionId": "s", "configId": "o", "type": "_slider", "value": 4}),
        ("tool_call/cancel", {"sessionId": "s", "toolCallId": "t"}),
        ("session/list", {"cursor": None}),
    ):
        ann.request(method, **params)
        asked = scene.agent.hears()
        assert (asked["method"], asked["params"]) == (method, params)
        scene.agent.send(id=asked["id"], error={"code": -32601, "message": "no"})
        assert ann.hears()["error"]["message"] == "no"


def test_a_prompt_of_a_client_of_version_1_is_shown_to_others_once() -> None:
    scene, (ann,) = opened("ann")
    old = scene.come("old", 1)
    third = scene.come("third", 1)
    for peer in (old, third):
        peer.load()
    asked = asks(scene, old, "hi")
    scene.agent.answer(asked, messageId="u")
    messages = [told("user_message", messageId="u", content=[block("hi")]), told("state_update", state="running")]
    for message in messages:
        scene.agent.say(message)
    assert ann.heard_text() == messages
    assert [m["params"]["update"]["content"]["text"] for m in third.heard()] == ["hi"]
    assert old.heard() == []


def user_ids(messages: list[Json]) -> list[Json]:
    found = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    return [update.get("messageId") for update in found if update["sessionUpdate"] == "user_message_chunk"]


@pytest.mark.parametrize("is_named_first", [False, True])
def test_a_prompt_has_the_id_for_all_that_the_agent_has_given_it(*, is_named_first: bool) -> None:
    scene, (ann,) = opened("ann")
    third = scene.come("third", 1)
    third.load()
    asked = asks(scene, ann, "hi")
    assert third.heard() == []
    said = told("user_message", messageId="u", content=[block("hi")])
    if is_named_first:
        scene.agent.say(said)
    scene.agent.answer(asked, messageId="u")
    if not is_named_first:
        scene.agent.say(said)
    live = third.heard()
    assert user_ids(live) == ["u"]
    check_message(1, "client", live[0])
    assert user_ids(scene.come("late", 1).load()) == ["u"]
    # As after a replay by the agent.
    assert user_ids([json.loads(text) for text in NewAgent().from_agent(said).to_client]) == ["u"]


def test_a_prompt_has_the_id_of_its_message_if_the_response_does_not_tell_it() -> None:
    scene, (ann,) = opened("ann")
    third = scene.come("third", 1)
    third.load()
    scene.agent.answer(asks(scene, ann, "hi"))
    assert third.heard() == []
    scene.agent.say(told("user_message", messageId="u", content=[block("hi")]))
    assert user_ids(third.heard()) == ["u"]
    assert user_ids(scene.come("late", 1).load()) == ["u"]


@pytest.mark.parametrize("what", ["chunk", "call", "refusal", "end"])
def test_a_prompt_that_is_not_accepted_comes_before_what_follows_it(what: str) -> None:
    scene, (ann,) = opened("ann")
    third = scene.come("third", 1, link="l")
    third.load()
    asked = asks(scene, ann, "hi")
    match what:
        case "chunk":
            scene.agent.say(told("agent_message_chunk", messageId="a", content=block("yo")))
        case "call":
            scene.agent.say(told("tool_call_update", toolCallId="t", title="T"))
        case "refusal":
            scene.agent.send(id=asked["id"], error={"code": -32602, "message": "no"})
        case "end":
            scene.lose_agent()
    assert user_ids(third.heard()[:1]) == [None]
    assert third.seen["s"] == scene.place("s")


def test_a_prompt_that_is_not_accepted_comes_before_a_permission() -> None:
    scene, (ann,) = opened("ann")
    third = scene.come("third", 1)
    third.load()
    asks(scene, ann, "hi")
    params = {"sessionId": "s", "title": "May I?", "options": [{"optionId": "y", "name": "Y", "kind": "allow_once"}]}
    scene.agent.send(id=1, method="session/request_permission", params=params)
    assert user_ids(third.heard()[:1]) == [None]


def test_a_prompt_that_is_not_accepted_is_shown_when_its_session_is_closed() -> None:
    scene, (ann,) = opened("ann")
    third = scene.come("third", 1, role=Role.OBSERVER)
    third.load()
    asks(scene, ann, "hi")
    ann.request("session/close", sessionId="s")
    scene.agent.answers("session/close")
    assert user_ids(third.heard()) == [None]


@pytest.mark.parametrize("odd", [5, None, {"a": 1}, "m" * SESSION_ID_SIZE])
def test_a_prompt_does_not_get_an_odd_or_huge_id(odd: Any) -> None:
    scene, (ann,) = opened("ann")
    third = scene.come("third", 1)
    third.load()
    scene.agent.answer(asks(scene, ann, "hi"), messageId=odd)
    assert third.heard() == []
    scene.agent.say(told("user_message", messageId="u", content=[block("hi")]))
    assert user_ids(third.heard()) == ["u"]


def test_a_prompt_whose_message_the_agent_does_not_name_is_shown_once_in_each_version() -> None:
    scene, (ann,) = opened("ann")
    old, third = scene.come("old", 1), scene.come("third", 1)
    for peer in (old, third):
        peer.load()
    messages = [told("state_update", state="running"), told("user_message", messageId="u", content=[block("hi")])]
    for sender in (ann, old):
        old.heard_text()
        scene.agent.answer(asks(scene, sender, "hi"))
        for message in [*messages, END]:
            scene.agent.say(message)
    assert [text for text in ann.heard_text() if b"update" in text] == [*messages, END] * 2
    assert [m["params"]["update"]["content"]["text"] for m in third.heard()] == ["hi", "hi"]
    late = scene.come("late", 1)
    assert [m["params"]["update"]["content"]["text"] for m in late.load() if "id" not in m] == ["hi", "hi"]


def test_that_an_unknown_prompt_was_accepted_is_told_to_no_client() -> None:
    scene, (ann,) = opened("ann")
    scene.multiplexer.receive_from_agent([accepted(RawId(b"99"), b'{"jsonrpc":"2.0","id":99,"result":{}}')])
    scene.deliver()
    assert ann.heard_text() == []


def test_a_turn_that_is_cut_off_with_its_agent_ends_with_an_error() -> None:
    scene, (ann,) = opened("ann")
    scene.agent.answer(asks(scene, ann), messageId="u")
    scene.agent.say(TURN[1])
    ann.heard()
    scene.lose_agent()
    (end,) = ann.heard()
    assert end["params"]["update"]["stopReason"] == "error"


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_of_a_client_of_either_version_gets_one_error_and_nothing_of_it_is_passed_on(version: int) -> None:
    scene, _ = opened("ann")
    peer = scene.come("peer", version)
    request = {"jsonrpc": "2.0", "id": 7, "method": "session/list", "params": {}}
    peer.say(json.dumps([request, {"jsonrpc": "2.0", "method": "vendor/note", "params": {}}]).encode())
    (answer,) = peer.heard()
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)
    assert "batches are not supported" in answer["error"]["message"]
    assert scene.agent.heard() == []


def start_again(scene: NewScene) -> None:
    """Have another process of the agent answer what it is asked at its start."""
    while scene.agent.inbox:
        for asked in scene.agent.heard():
            if asked["method"] != "initialize":
                scene.agent.answer(asked)
            elif asked["params"]["protocolVersion"] == 2:
                scene.agent.send(id=asked["id"], result=NEW)
            else:
                scene.agent.send(id=asked["id"], error={"code": -32602, "message": "only 2"})


STDIO = {"type": "stdio", "name": "x", "command": "/bin/x"}
NOTED = {**block("hi"), "annotations": {"audience": ["user", "_other"]}}


@pytest.mark.parametrize(
    ("method", "said", "heard"),
    [
        ("session/prompt", {"prompt": [NOTED]}, {"prompt": [{**NOTED, "annotations": {"audience": ["user"]}}]}),
        ("session/prompt", {"prompt": [block("hi")], "_x": 1}, {"prompt": [block("hi")], "_x": 1}),
        (
            "session/set_config_option",
            {"configId": "m", "type": "id", "value": "v"},
            {"configId": "m", "value": "v"},
        ),
        (
            "session/set_config_option",
            {"configId": "m", "type": "boolean", "value": True},
            {"configId": "m", "type": "boolean", "value": True},
        ),
        ("session/prompt", {"prompt": [{"type": "_odd"}]}, "no content of the type '_odd'"),
        (
            "session/set_config_option",
            {"configId": "m", "type": "_odd", "value": 1},
            "no option with a value of the type",
        ),
        ("tool_call/cancel", {"toolCallId": "t"}, "can't be cancelled alone"),
        ("vendor/other", {"_x": 1}, {"_x": 1}),
    ],
)
def test_a_request_that_waits_while_the_agent_changes_to_version_1_is_told_in_that(
    method: str, said: Json, heard: Json
) -> None:
    scene, (ann,) = opened("ann")
    scene.lose_agent()
    ann.heard()
    number = ann.request(method, sessionId="s", **said)
    scene.begin_process()
    scene.agent.answers("initialize", protocolVersion=1, agentCapabilities={"loadSession": True})
    scene.agent.answers("session/load")
    if isinstance(heard, str):
        (answer,) = [message for message in ann.heard() if message.get("id") == number]
        assert heard in answer["error"]["message"]
        assert scene.agent.heard() == []
        return
    asked = scene.agent.takes(method)
    assert asked["params"] == {"sessionId": "s", **heard}
    if method == "session/prompt":
        assert [message["result"] for message in ann.heard() if message.get("id") == number] != []
        scene.agent.answer(asked, stopReason="end_turn")
        assert kinds(ann.heard())[-1:] == ["idle"]


@pytest.mark.parametrize(
    ("new", "old"), [([STDIO], [{"name": "x", "command": "/bin/x", "args": [], "env": []}]), ([], [])]
)
def test_a_session_that_waits_while_the_agent_changes_to_version_1_has_servers_of_that(
    new: list[Json], old: list[Json]
) -> None:
    scene, (ann,) = opened("ann")
    scene.lose_agent()
    ann.request("session/new", cwd="/srv", mcpServers=new)
    scene.begin_process()
    scene.agent.answers("initialize", protocolVersion=1, agentCapabilities={"loadSession": True})
    asked = [message for message in scene.agent.heard() if message["method"] == "session/new"]
    assert [message["params"]["mcpServers"] for message in asked] == [old]


def info_states(messages: list[Json]) -> list[Json]:
    """Return the states that a client of version 1 was told."""
    found = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    return [update["_meta"]["acp-gateway"]["state"] for update in found if "_meta" in update]


@pytest.mark.parametrize("state", ["running", "requires_action"])
def test_work_without_a_prompt_ends_with_its_agent(state: str) -> None:
    scene, (ann,) = opened("ann")
    old = scene.come("old", 1)
    old.load()
    scene.agent.say(told("session_info_update", title="T"))
    scene.agent.say(told("state_update", state=state))
    for peer in (ann, old):
        peer.heard()
    scene.lose_agent()
    (end,) = ann.heard()
    update = end["params"]["update"]
    assert (update["state"], update["stopReason"]) == ("idle", "error")
    (end,) = old.heard()
    assert end["params"]["update"] == {
        "sessionUpdate": "session_info_update",
        "title": "T",
        "_meta": {"acp-gateway": {"state": "idle"}},
    }
    # A process that comes later has it in the history.
    scene.begin_process()
    late = scene.come("late", 1)
    assert late.load() == []
    start_again(scene)
    assert info_states(late.heard())[-1] == "idle"
    assert not scene.multiplexer.busy


def test_an_agent_that_works_in_the_background_is_not_idle_until_it_ends() -> None:
    scene, (ann,) = opened("ann")
    old = scene.come("old", 1)
    old.load()
    things = [{"type": "terminal", "terminalId": "x"}, {"type": "subagent", "sessionId": "child"}]
    scene.agent.say(told("state_update", state="idle", background=things))
    assert scene.multiplexer.busy
    ann.request("session/new", cwd="/srv")
    scene.agent.answers("session/new", sessionId="other", configOptions=[])
    before = scene.session().journal.position
    scene.agent.say(told("agent_message_chunk", messageId="m", content=block("hi")).replace(b'"s"', b'"child"'))
    assert scene.session().journal.position == before + 1
    late = scene.come("late", 1)
    assert late.load()[-1]["result"]["_meta"]["acp-gateway"] == {"background": things}
    scene.agent.say(told("state_update", state="idle"))
    assert not scene.multiplexer.busy
    scene.agent.say(told("state_update", state="idle", background=things))
    for peer in (ann, old):
        peer.heard()
    scene.lose_agent()
    assert kinds(ann.heard()) == ["idle"]
    (end,) = old.heard()
    assert end["params"]["update"]["_meta"]["acp-gateway"] == {"state": "idle", "background": []}


@pytest.mark.parametrize("accepted", [True, False])
def test_work_in_the_background_ends_with_an_agent_that_has_a_prompt(*, accepted: bool) -> None:
    """Nothing else says so to clients of version 2 if the prompt was not accepted yet."""
    scene, (ann, bob) = opened("ann", "bob")
    scene.agent.say(told("state_update", state="idle", background=[{"type": "terminal", "terminalId": "x"}]))
    ann.prompt()
    asked = scene.agent.takes("session/prompt")
    if accepted:
        scene.agent.answer(asked, messageId="u")
    for peer in (ann, bob):
        peer.heard()
    scene.lose_agent()
    for peer in (ann, bob):
        (end,) = (message["params"]["update"] for message in peer.heard() if "method" in message)
        assert (end["state"], end["stopReason"], "background" in end) == ("idle", "error", False)


@pytest.mark.parametrize("odd", [None, 0, "x", {}, ["x" * BACKGROUND_SIZE]])
def test_an_agent_of_version_1_can_not_make_up_endless_work(odd: Any) -> None:
    scene = Scene()
    ann = scene.join("ann")
    ann.new_session()
    scene.agent.state("session_info_update", _meta={"acp-gateway": {"background": odd}})
    assert (scene.session().background, scene.multiplexer.busy) == (b"", False)


def test_work_ends_with_an_agent_that_told_too_many_members() -> None:
    scene = Scene()
    ann = scene.join("ann")
    ann.new_session()
    scene.agent.state("session_info_update", _meta={"acp-gateway": {"state": "running"}})
    scene.agent.state("session_info_update", title="T", **{f"_{number}": 1 for number in range(MEMBERS)})
    ann.heard()
    scene.lose_agent()
    assert info_states([message for message in ann.heard() if "_meta" in str(message)]) == ["idle"]


def test_a_turn_that_waits_for_a_person_ends_once_with_its_agent() -> None:
    scene, (ann,) = opened("ann")
    old = scene.come("old", 1)
    old.load()
    scene.agent.answer(asks(scene, ann), messageId="u")
    scene.agent.say(told("state_update", state="running"))
    scene.agent.say(told("state_update", state="requires_action"))
    for peer in (ann, old):
        peer.heard()
    scene.lose_agent()
    assert kinds(ann.heard()) == ["idle"]
    assert info_states(old.heard()) == ["idle"]


def waits(scene: NewScene, state: str = "requires_action") -> None:
    scene.agent.say(told("state_update", state=state))


def test_the_permission_waiting_hook_fires_once_for_an_agent_that_waits_without_a_request() -> None:
    scene, (ann,) = opened("ann")
    waits(scene)
    scene.pass_time(60)
    assert scene.events == []
    ann.away()
    scene.pass_time(60 + JUST_LOST)
    (event,) = scene.events
    tool = {"toolCallId": None, "title": None, "kind": None}
    assert (event.name, event.session, event.age) == ("permission_waiting", scene.session(), 60 + JUST_LOST)
    assert event.details == {"requestId": None, "method": "requires_action", "tool": tool, "connected": 0}
    ann.back()
    ann.away()
    scene.agent.say(told("session_info_update", title="T"))
    scene.pass_time(200)
    assert len(scene.events) == 1
    waits(scene, "running")
    waits(scene)
    scene.pass_time(200 + JUST_LOST)
    assert len(scene.events) == 2


def test_it_does_not_fire_for_a_session_that_is_over() -> None:
    scene, (ann,) = opened("ann")
    waits(scene)
    ann.request("session/close", sessionId="s")
    scene.agent.answer(scene.agent.takes("session/close"))
    scene.pass_time(60 + JUST_LOST)
    assert scene.events == []


@pytest.mark.parametrize("first", ["state", "request"])
def test_it_fires_once_for_an_agent_that_waits_for_the_answer_to_a_request(first: str) -> None:
    scene, (ann, bob) = opened("ann", "bob")
    for peer in (ann, bob):
        peer.away()
    scene.pass_time(60)
    if first == "state":
        waits(scene)
    options = [{"optionId": "y", "name": "Y", "kind": "allow_once"}]
    scene.agent.send(
        id=1, method="session/request_permission", params={"sessionId": "s", "title": "May I?", "options": options}
    )
    if first == "request":
        waits(scene)
    scene.pass_time(100)
    assert [event.details["method"] for event in scene.events] == ["session/request_permission"]
    # It goes on a moment after the answer.
    bob.back()
    bob.choose(next(message for message in bob.heard() if "id" in message), "y")
    bob.away()
    scene.pass_time(102)
    waits(scene, "running")
    scene.pass_time(200)
    assert len(scene.events) == 1


@pytest.mark.parametrize("end", ["idle", "lost"])
def test_it_does_not_fire_for_an_agent_that_waits_no_longer(end: str) -> None:
    scene, (ann,) = opened("ann")
    ann.away()
    waits(scene)
    if end == "idle":
        waits(scene, end)
    else:
        scene.lose_agent()
    scene.pass_time(60)
    assert scene.events == []


def test_a_prompt_that_is_not_accepted_when_its_agent_ends_gets_an_error() -> None:
    scene, (ann,) = opened("ann")
    own = ann.prompt()
    scene.lose_agent()
    (answer,) = ann.heard()
    assert answer["id"] == own
    assert "error" in answer


def test_a_prompt_that_the_agent_refuses_gets_its_error() -> None:
    scene, (ann,) = opened("ann")
    asked = asks(scene, ann)
    scene.agent.send(id=asked["id"], error={"code": -32602, "message": "no"})
    (answer,) = ann.heard()
    assert (answer["id"], answer["error"]["message"]) == (ann._last_id, "no")


def test_prompts_that_wait_are_accepted_one_after_the_other() -> None:
    scene, (ann, bob) = opened("ann", "bob")
    first = asks(scene, ann)
    second = bob.prompt("next")
    scene.agent.answer(first, messageId="u")
    scene.agent.say(TURN[1])
    scene.agent.say(END)
    assert kinds(ann.heard()) == ["response", "running", "idle"]
    assert kinds(bob.heard()) == ["running", "idle"]
    scene.agent.answer(scene.agent.takes("session/prompt"), messageId="v")
    (answer,) = bob.heard()
    assert (answer["id"], answer["result"]) == (second, {"messageId": "v"})


def test_a_client_that_comes_within_a_turn_is_told_that_it_runs() -> None:
    scene, (ann,) = opened("ann")
    scene.agent.answer(asks(scene, ann), messageId="u")
    scene.agent.say(TURN[1])
    bob = scene.come("bob")
    bob.request("session/resume", sessionId="s", cwd="/srv")
    assert set(kinds(bob.heard())) == {"running", "response"}


def test_an_observer_gets_the_updates_and_no_request() -> None:
    scene, (ann,) = opened("ann")
    watcher = scene.come("watcher", role=Role.OBSERVER)
    watcher.request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
    watcher.heard()
    scene.agent.answer(asks(scene, ann), messageId="u")
    scene.agent.say(TURN[8])
    scene.agent.send(id=1, method="session/request_permission", params={"sessionId": "s", "title": "t", "options": []})
    assert watcher.heard_text() == [TURN[8]]


def test_an_agent_can_make_none_of_the_private_messages() -> None:
    scene, (ann,) = opened("ann")
    own = ann.prompt()
    asked = scene.agent.takes("session/prompt")
    scene.agent.send(method="_acp-gateway/accepted", params={"requestId": asked["id"]})
    assert ann.heard() == []
    old = Scene()
    peer = old.join("old")
    peer.new_session()
    old.agent.state("_acp-gateway/original")
    # It is an update of an unknown kind.
    assert len(peer.heard()) == 1
    scene.agent.answer(asked, messageId="u")
    assert ann.hears()["id"] == own


def test_what_is_carried_counts_in_a_journal_and_comes_back_from_the_disk() -> None:
    scene, (ann,) = opened("ann")
    turn(scene, ann)
    journal = scene.session().journal
    messages = journal.replay()
    ends = sum(end.size for end in journal.ends())
    assert journal.size - ends == size_of(messages) > sum(map(len, messages)) + 50_000
    back = [restored(stored(message)) for message in messages]
    # One that is the same in both versions stands there once.
    assert back == [it.text if isinstance(it, Pair) and it.is_same else it for it in messages]
    journal.shrink(0)
    assert journal.size == size_of(journal.replay())


@pytest.mark.parametrize("text", [b"[", b"[1]", b"[1,2,3]", b"{}", b""])
def test_what_is_not_a_pair_on_disk_stays_as_it_is(text: bytes) -> None:
    assert restored(text) == text
    assert not isinstance(restored(text), Pair)


def test_a_fork_has_the_originals_under_its_own_id() -> None:
    scene, (ann,) = opened("ann")
    turn(scene, ann)
    copied = scene.session().journal.copy(lambda message: message, "e")
    assert copied.size == scene.session().journal.size
    ann.heard()
    ann.request("session/fork", sessionId="s", cwd="/srv")
    asked = scene.agent.takes("session/fork")
    scene.agent.answer(asked, sessionId="f", configOptions=[])
    ann.heard()
    bob = scene.come("bob")
    bob.request("session/resume", sessionId="f", cwd="/srv", replayFrom={"type": "start"})
    *history, _, _ = bob.heard_text()
    assert history == [message.replace(b'"sessionId": "s"', b'"sessionId": "f"') for message in (*TURN, END)]


def test_a_policy_of_one_connection_changes_nothing_of_this() -> None:
    scene = NewScene(make_policy(shared=False))
    ann = scene.come("ann")
    ann.request("session/new", cwd="/srv")
    scene.agent.answer(scene.agent.takes("session/new"), sessionId="s")
    ann.heard()
    turn(scene, ann)
    assert ann.heard_text()[1:] == [*TURN, END]


def test_an_unreadable_line_of_the_agent_is_logged() -> None:
    scene, (ann,) = opened("ann")
    scene.notes.clear()
    scene.agent.say(b"{ what")
    assert ann.heard() == []
    (logged,) = scene.notes
    assert "dropped a line of 6 bytes from the agent" in str(logged)


@pytest.mark.parametrize("method", ["session/prompt", "session/list"])
def test_an_unreadable_answer_of_the_agent_is_an_error_for_the_client_that_asked(method: str) -> None:
    scene, (ann,) = opened("ann")
    params = {"sessionId": "s", "prompt": [block("go")]} if method == "session/prompt" else {}
    own = ann.request(method, **params)
    asked = scene.agent.takes(method)
    shown = told("user_message", messageId="another", content=[block("hi")])
    scene.agent.say(shown)
    scene.agent.say(b'{"jsonrpc":"2.0","id":%d,"result":{"x":NaN}}' % asked["id"])
    answer = next(message for message in ann.heard() if message.get("id") == own)
    assert "the agent's answer can't be read" in answer["error"]["message"]
    # Its user messages wait no longer for this prompt.
    old = scene.come("old", 1)
    history = old.load()
    assert [update["params"]["update"]["content"]["text"] for update in history[:-1]] == [
        *(["go"] if method == "session/prompt" else []),
        "hi",
    ]
    assert own_notifications(ann) == []


@pytest.mark.parametrize("method", ["session/new", "session/fork", "session/set_config_option", "session/resume"])
def test_the_result_of_a_request_is_that_of_the_agent(method: str) -> None:
    scene, (ann,) = opened("ann")
    odd = {"configId": "o", "name": "O", "type": "_slider", "at": 3}
    command = {"type": "command", "name": "n", "description": "d", "input": {"type": "_own", "x": 1}}
    params = {
        "session/new": {"cwd": "/srv"},
        "session/fork": {"sessionId": "s", "cwd": "/srv"},
        "session/set_config_option": {"sessionId": "s", "configId": "o", "type": "id", "value": "v"},
        "session/resume": {"sessionId": "past", "cwd": "/srv"},
    }[method]
    own = ann.request(method, **params)
    asked = scene.agent.hears()
    result: Json = {"configOptions": [odd], "_x": 1.50, **ODD}
    if method != "session/set_config_option":
        result["availableCommands"] = [command]
    if method in ("session/new", "session/fork"):
        result["sessionId"] = "t"
    scene.agent.say(b'{"result": %b,  "id":%d,"jsonrpc":"2.0"}' % (json.dumps(result).encode(), asked["id"]))
    answers = [text for text in ann.heard_text() if b'"result"' in text]
    assert answers == [b'{"result": %b,  "id":%d,"jsonrpc":"2.0"}' % (json.dumps(result).encode(), own)]


def test_the_result_for_a_client_of_version_1_is_of_that_version() -> None:
    scene, _ = opened("ann")
    old = scene.come("old", 1)
    old.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/new", sessionId="t", configOptions=[{"configId": "o", "name": "O", "type": "_slider"}])
    answer = old.heard()[0]
    check_message(1, "client", answer, "session/new")
    assert answer["result"]["configOptions"] == []


def test_the_result_for_a_client_that_asks_by_a_name_of_version_1_is_of_that_method() -> None:
    scene, (ann,) = opened("ann")
    mode: Json = {"configId": "m", "name": "M", "type": "select", "category": "mode", "currentValue": "a"}
    mode["options"] = [{"value": value, "name": value} for value in "ab"]
    scene.agent.say(told("config_option_update", configOptions=[mode]))
    ann.heard()
    ann.request("session/set_mode", sessionId="s", modeId="b")
    scene.agent.answers("session/set_config_option", configOptions=[mode])
    assert next(message for message in ann.heard_text() if b'"result"' in message).endswith(b'"result":{}}')


def conversation(peer: Peer) -> list[Json]:
    """Return the updates that a client has got besides states."""
    updates = [message["params"]["update"] for message in peer.heard() if message.get("method") == "session/update"]
    return [it for it in updates if it["sessionUpdate"] not in ("state_update", "session_info_update")]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_a_history_that_an_agent_tells_again_after_a_restart_is_shown_once(version: int, *, late: bool) -> None:
    gateways = Gateways()

    def opens(name: str) -> tuple[Peer, NewScene]:
        scene = NewScene(registry=gateways.scene.registry)
        gateways.scene = scene
        peer = scene.come(name, version)
        more: Json = {"mcpServers": []} if version == 1 else {"replayFrom": {"type": "start"}}
        peer.request("session/load" if version == 1 else "session/resume", sessionId="s", cwd="/srv", **more)
        return peer, scene

    ann, scene = opens("ann")
    for text in (*TURN[:5], told("state_update", state="idle", stopReason="end_turn")):
        scene.agent.say(text)
    scene.agent.answer(scene.agent.takes("session/resume"), configOptions=[])
    said = conversation(ann)
    assert len(said) > 3
    gateways.stop()
    bob, scene = opens("bob")
    gateways.load_journal()
    asked = scene.agent.takes("session/resume")
    for text in () if late else TURN[:5]:
        scene.agent.say(text)
    scene.agent.answer(asked, configOptions=[])
    for text in TURN[:5] if late else ():
        scene.agent.say(text)
    assert conversation(bob) == said
