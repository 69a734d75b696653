"""A door and a node in memory, with an agent of version 2: its messages reach clients of the door as they are."""

import json
from typing import Any

import pytest

from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.sessions.far_places import encode_place
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, SessionReach
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.link_messages import Mark
from acp_gateway.versions.agent_edge import AgentEdge
from acp_gateway.versions.carried import MAX_TOGETHER, Carried, for_gateway, hidden, received, stored, version_changed
from tests.core.fronts import restore
from tests.core.scene import Peer, Scene, Shelf, checks_of, encode, look, make_policy
from tests.core.test_same_version import END, NEW, ODD, TURN, spelled, told
from tests.core.test_translated_clients import NewPeer, kinds
from tests.versions.schemas import check_message
from tests.versions.wire import text as block

Json = Any


class Front(Scene):
    """A door, whose agent is that of a node."""

    def __init__(self, *, asks: bool = True, answers: bool = True) -> None:
        self.answers = answers
        self.shelf = Shelf()
        super().__init__(make_policy(), Registry("me", self.shelf, "front"))
        self.look = None
        self.node = Multiplexer("agent", make_policy(), Registry("me", Shelf(), "node"))
        self.front_at_node = Client("front", SessionReach("me"), link="far")
        self.node.attach(self.front_at_node)
        self.multiplexer.agent_linked("far")
        self.edge = AgentEdge(is_gateway=asks)
        self.far = AgentEdge()
        self.agent._receive = self._from_agent
        self.crossed: list[bytes] = []
        """All messages from the node to the door."""

    def _from_agent(self, text: bytes) -> None:
        out = self.far.from_agent(text)
        self.agent.inbox += out.to_agent
        self.node.receive_from_agent(out.to_client)

    def lose_link(self) -> None:
        """End the link, and begin another one."""
        self.node.client_away(self.front_at_node)
        self.front_at_node = Client("front, again", SessionReach("me"), link="far2")
        self.node.attach(self.front_at_node)
        self.edge = AgentEdge(is_gateway=True)
        self.multiplexer.agent_lost("the link has ended", {"reason": "agent_ended"})
        self.multiplexer.agent_linked("far2")
        self.deliver()

    def kill(self) -> None:
        """Kill the door, and start it again with what is on its disk."""
        (session,) = self.shelf.journals
        disk = encode_place(session.far), self.shelf.read(session), session in self.shelf.open
        self.node.client_away(self.front_at_node)
        self.peers.clear()
        self.shelf = Shelf()
        self.registry = Registry("me", self.shelf, "front, again")
        restore(disk, "agent", self.registry, self.shelf)
        self.multiplexer = Multiplexer("agent", make_policy(), self.registry)
        self.front_at_node = Client("front, again", SessionReach("me"), link="far2")
        self.node.attach(self.front_at_node)
        self.edge = AgentEdge(is_gateway=True)
        self.multiplexer.agent_linked("far2")
        self.deliver()

    def deliver(self, leaving: Client | None = None) -> None:
        while True:
            before = len(self.agent.inbox)
            super().deliver(leaving)
            sent, self.agent.inbox[before:] = self.agent.inbox[before:], []
            checks, self.directory_checks = self.directory_checks, []
            for check in checks:
                self.multiplexer.directories_checked(check, look(check))
            for text in sent:
                for up in self.edge.to_agent(text).to_agent:
                    if not self.answers:
                        up = up.replace(b'"carries":true', b'"carries":false')
                    self.node.receive_from_client(self.front_at_node, up)
            output = self.node.take_output()
            for check in checks_of(output):
                self.node.directories_checked(check, look(check))
            for text in output.to_agent:
                out = self.far.to_agent(text)
                self.agent.inbox += out.to_agent
                self.node.receive_from_agent(out.to_client)
            down = output.to_clients.get(self.front_at_node, ())
            self.crossed += down
            self.multiplexer.receive_from_agent(self.edge.from_agent(*down).to_client)
            if not (down or sent or checks or output.to_agent or output.effects):
                return

    def come(self, name: str, version: int = 2) -> Peer:
        """Add a client of this version."""
        peer = self.join(name, initialize=False, link=name)
        if version == 2:
            peer = self.peers[peer.client] = NewPeer(self, peer.client)
        own: Json = (
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


def opened(front: Front, *names: str) -> list[Peer]:
    """Clients of version 2 of the door in the session `s`."""
    peers = [front.come(name) for name in names]
    peers[0].request("session/new", cwd="/srv")
    asked = front.agent.takes("session/new")
    front.agent.send(id=asked["id"], result={"sessionId": "s", "configOptions": []})
    for peer in peers[1:]:
        peer.request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
    for peer in peers:
        peer.heard()
    return peers


def prompts(front: Front, peer: Peer, words: str = "go", **accepted: Any) -> Any:
    """Have a client prompt, and the agent accept that; return what the agent got."""
    peer.prompt(words)
    asked = front.agent.takes("session/prompt")
    front.agent.answer(asked, **accepted)
    return asked


def places_agree(front: Front) -> bool:
    """Return whether door and node have the same history at the same places."""
    mine, theirs = (gateway._agent.live["s"] for gateway in (front.multiplexer, front.node))
    assert mine.journal.replay() == theirs.journal.replay()
    place = mine.far
    assert place is not None
    return bool(place.at(mine.journal.position) == theirs.journal.position)


@pytest.mark.parametrize("accepted", [{"messageId": "u"}, {}], ids=["named", "unnamed"])
def test_all_that_an_agent_tells_is_the_same_bytes_for_clients_of_a_front(accepted: Json) -> None:
    front = Front()
    ann, bob = opened(front, "ann", "bob")
    prompts(front, ann, **accepted)
    for message in [*TURN, END]:
        front.agent.say(message)
    response, *rest = ann.heard_text()
    assert json.loads(response)["result"] == accepted
    assert rest == [*TURN, END]
    assert bob.heard_text() == [*TURN, END]
    assert places_agree(front)
    late = front.come("late")
    late.request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
    *history, _, _ = late.heard_text()
    assert history == [*TURN, END]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_turns_of_several_clients_keep_their_places(*, version: int, named: bool) -> None:
    front = Front()
    (ann,) = opened(front, "ann")
    old = front.come("old", 1)
    old.load()
    sent = []
    for number, peer in enumerate((old, ann, old, ann) if version == 1 else (ann, ann, old)):
        said = {"messageId": f"u{number}"}
        prompts(front, peer, f"go {number}", **(said if named else {}))
        messages = [
            told("user_message", **said, content=[block(f"go {number}")]),
            told("state_update", state="running"),
            told("agent_message", messageId=f"a{number}", content=[block("yo")]),
            told("state_update", state="idle", stopReason="end_turn"),
        ]
        for message in messages:
            front.agent.say(message)
        sent += messages
        assert places_agree(front)
    assert [text for text in ann.heard_text() if b"update" in text] == sent
    late = front.come("late")
    late.request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
    *history, _, _ = late.heard_text()
    assert history == sent


@pytest.mark.parametrize("sender", [1, 2])
@pytest.mark.parametrize("kind", ["user_message", "user_message_chunk"])
def test_a_prompt_that_its_echo_names_has_that_id_at_once(kind: str, sender: int) -> None:
    front = Front()
    (ann,) = opened(front, "ann")
    old, other = front.come("old", 1), front.come("other", 1)
    for peer in (old, other):
        peer.load()
    prompts(front, ann if sender == 2 else old)
    content: Json = block("go") if kind.endswith("chunk") else [block("go")]
    front.agent.say(told(kind, messageId="u", content=content))
    (shown,) = other.heard()
    assert shown["params"]["update"] == {
        "sessionUpdate": "user_message_chunk",
        "content": block("go"),
        "messageId": "u",
    }
    front.agent.say(told("agent_message", messageId="a", content=[block("yo")]))
    front.agent.say(END)
    assert places_agree(front)
    assert front.come("late", 1).load()[0]["params"]["update"]["messageId"] == "u"


@pytest.mark.parametrize("when", range(5))
def test_a_front_that_was_killed_takes_the_turn_over(when: int) -> None:
    front = Front()
    (ann,) = opened(front, "ann")
    prompts(front, ann, messageId="u")
    messages = [*TURN[:3], END]
    for message in messages[:when]:
        front.agent.say(message)
    front.kill()
    late = front.come("late")
    late.request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
    while front.wanted:
        session = front.wanted.pop()
        front.multiplexer.journal_loaded(session, front.shelf.read(session))
        front.deliver()
    for message in messages[when:]:
        front.agent.say(message)
    assert [text for text in late.heard_text() if text in messages] == messages
    assert places_agree(front)
    # What follows is told as it is, too.
    prompts(front, late, "more", messageId="u2")
    front.agent.say(END)
    assert late.heard_text()[-1] == END
    assert places_agree(front)


@pytest.mark.parametrize("when", range(5))
def test_a_front_that_opens_its_session_again_reads_what_it_has_missed(when: int) -> None:
    front = Front()
    (ann,) = opened(front, "ann")
    prompts(front, ann, messageId="u")
    messages = [*TURN[:3], END]
    for message in messages[:when]:
        front.agent.say(message)
    ann.heard()
    front.lose_link()
    for message in messages[when:]:
        front.agent.say(message)
    late = front.come("late")
    late.request("session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
    history = [text for text in late.heard_text() if b"update" in text]
    assert history[: len(messages)] == messages
    assert places_agree(front)


def restarted(front: Front, version: int) -> None:
    """End the agent at the node, and have the next prompt start one that speaks this version and opens the session."""
    front.far = AgentEdge()
    front.node.agent_lost("the agent has ended", {"reason": "agent_ended"})
    front.deliver()
    peer = next(iter(front.peers.values()))
    peer.heard()
    peer.prompt("again")
    old = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
    asked = front.agent.takes("initialize")
    if version == 2:
        front.agent.send(id=asked["id"], error={"code": -32602, "message": "only 2"})
        asked = front.agent.takes("initialize")
    front.agent.send(id=asked["id"], result=NEW if version == 2 else old)
    asked = front.agent.takes("session/resume" if version == 2 else "session/load")
    front.agent.send(id=asked["id"], result={"configOptions": []} if version == 2 else {})


def test_a_front_follows_an_agent_that_speaks_another_version_after_a_restart() -> None:
    front = Front()
    (ann,) = opened(front, "ann")
    old = front.come("old", 1)
    old.load()
    prompts(front, ann, messageId="u")
    front.agent.say(END)
    assert kinds(ann.heard())[-1] == "idle"
    restarted(front, 1)
    asked = front.agent.takes("session/prompt")
    front.agent.update("hi")
    front.agent.answer(asked, stopReason="end_turn")
    # All of it is validated as well.
    assert kinds(ann.heard()) == ["response", "user_message", "running", "agent_message_chunk", "idle"]
    old.heard()
    ann.request("session/set_config_option", sessionId="s", configId="o", type="id", value="v")
    asked = front.agent.takes("session/set_config_option")
    assert asked["params"] == {"sessionId": "s", "configId": "o", "value": "v"}
    front.agent.answer(asked, configOptions=[])
    assert ann.heard()[-1]["result"] == {"configOptions": []}
    ann.prompt("more")
    asked = front.agent.takes("session/prompt")
    front.agent.update("yo")
    front.agent.answer(asked, stopReason="end_turn")
    assert kinds(ann.heard()) == ["response", "user_message", "running", "agent_message_chunk", "idle"]
    assert places_agree(front)
    # And back.
    restarted(front, 2)
    asked = front.agent.takes("session/prompt")
    front.agent.answer(asked, messageId="u2")
    for message in (*TURN[1:], END):
        front.agent.say(message)
    assert ann.heard_text()[-len(TURN) :] == [*TURN[1:], END]
    assert places_agree(front)


@pytest.mark.parametrize("when", ["waits", "on its way"])
def test_a_prompt_behind_a_front_is_told_in_the_version_of_the_agent_that_gets_it(when: str) -> None:
    front = Front()
    (ann,) = opened(front, "ann")
    noted = {**block("hi"), "annotations": {"audience": ["user", "_other"]}}
    asked = encode(id=7, method="session/prompt", params={"sessionId": "s", "prompt": [noted]})
    front.far = AgentEdge()
    front.node.agent_lost("the agent has ended", {"reason": "agent_ended"})
    front.deliver()
    if when == "waits":
        ann.request("session/prompt", sessionId="s", prompt=[noted])
    else:
        ann.request("session/list")
    old = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
    front.agent.answer(front.agent.takes("initialize"), **old)
    front.agent.answers("session/load")
    if when == "on its way":
        front.node.receive_from_client(front.front_at_node, asked)
        front.deliver()
    (got,) = [message for message in front.agent.heard() if message["method"] == "session/prompt"]
    assert got["params"]["prompt"] == [{**noted, "annotations": {"audience": ["user"]}}]


def test_a_notification_of_the_agent_changes_no_version() -> None:
    front = Front()
    opened(front, "ann")
    told = version_changed(carries=False)
    for text in (bytes(told), stored(told)):
        front.agent.say(text)
    assert front.multiplexer._agent.carries
    assert front.node._agent.carries


def is_user(message: Json) -> bool:
    """Return whether a message shows a prompt, whose id an older gateway does not tell."""
    return bool(message.get("params", {}).get("update", {}).get("sessionUpdate") == "user_message_chunk")


@pytest.mark.parametrize("sender", [1, 2])
def test_clients_of_version_1_of_a_front_get_what_they_get_without_it(sender: int) -> None:
    shown = []
    for asks in (True, False):
        front = Front(asks=asks)
        (ann,) = opened(front, "ann")
        old = front.come("old", 1)
        old.load()
        prompts(front, ann if sender == 2 else old, messageId="u")
        for message in [*TURN, END]:
            front.agent.say(message)
        live = old.heard()
        replayed = front.come("late", 1).load()
        for message in (*live, *replayed):
            check_message(1, "client", message, "session/load" if "result" in message else "")
        assert not asks or places_agree(front)
        shown.append([[m for m in messages if not is_user(m) and "id" not in m] for messages in (live, replayed)])
    assert shown[0] == shown[1]


def test_a_permission_request_is_the_same_but_for_its_id() -> None:
    front = Front()
    (ann,) = opened(front, "ann")
    prompts(front, ann, messageId="u")
    ann.heard()
    options = [{"optionId": "y", "name": "Y", "kind": "_ask_again"}]
    params = {"sessionId": "s", "title": "May I?", "subject": {"type": "_own", "x": 1}, "options": options, **ODD}
    asked = spelled(id="q", method="session/request_permission", params=params)
    front.agent.say(asked)
    (got,) = ann.heard_text()
    assert got == jsonrpc.with_id(jsonrpc.parse(asked), RawId(b"%d" % json.loads(got)["id"]))
    ann.choose(json.loads(got), "y")
    assert front.agent.hears()["result"] == {"outcome": {"outcome": "selected", "optionId": "y"}}


@pytest.mark.parametrize("older", ["front", "node"])
def test_an_older_gateway_gets_and_sends_no_arrays(older: str) -> None:
    front = Front(asks=older != "front", answers=older != "node")
    (ann,) = opened(front, "ann")
    prompts(front, ann, messageId="u")
    for message in (TURN[1], told("agent_message_chunk", messageId="a", content=block("yo")), END):
        front.agent.say(message)
    assert kinds(ann.heard())[-2:] == ["agent_message_chunk", "idle"]
    assert not [text for text in front.crossed if text.startswith(b"[")]


def test_a_client_that_can_not_resume_gets_no_arrays() -> None:
    front = Front()
    opened(front, "ann")
    other = Client("other", SessionReach("me"))
    front.node.attach(other)
    meta = {"acp-gateway": {"carries": True}}
    front.node.receive_from_client(
        other, encode(id=1, method="initialize", params={"protocolVersion": 1, "_meta": meta})
    )
    assert not other.carries


UPDATE = encode(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "plan", "entries": []}})


@pytest.mark.parametrize(
    "original",
    [
        b"1",
        b'{"a":1}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"other","update":{}}}',
        # One end of a link would take it as said by the other end.
        b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"sessionId":"s","received":99}}',
        b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}',
    ],
)
def test_what_does_not_fit_its_message_is_not_taken(original: bytes) -> None:
    assert not isinstance(received(b"[%b,%b]" % (UPDATE, original)), Carried)
    nothing = received(b"[%b,%b]" % (hidden(b'"s"', b""), original))
    assert isinstance(nothing, Carried)
    assert nothing.original is None


def test_a_request_is_not_taken_with_one_of_another_method_which_was_not_checked() -> None:
    asked = encode(id=1, method="session/request_permission", params={"sessionId": "s", "options": []})
    for method, fits in (("session/request_permission", True), ("fs/write_text_file", False)):
        original = encode(id=1, method=method, params={"sessionId": "s"})
        assert isinstance(received(b"[%b,%b]" % (asked, original)), Carried) is fits


def test_a_large_message_goes_without_what_it_carries_unless_it_is_nothing_else() -> None:
    large = told("agent_message_chunk", messageId="a", content=block("x" * MAX_TOGETHER))
    assert for_gateway(Carried(UPDATE, large)) == UPDATE
    assert received(for_gateway(hidden(b'"s"', large))).original == large  # type: ignore[attr-defined]


def test_marks_stay_marks() -> None:
    mark = Mark(b"{}")
    assert received(mark) is mark
