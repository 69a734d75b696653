"""Clients of version 2 beside those of version 1, on one agent of version 1. All that they get is validated."""

import json
from typing import Any

import pytest

from acp_gateway.core.sessions.session import Client, Role
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.not_sent import CANCELLED
from tests.core.sessions.test_continuing import Gateways
from tests.kit.scene import Peer, Scene, make_policy
from tests.kit.schemas import check_message

Json = Any

AGENT_ENDED = "the agent has ended"


class NewPeer(Peer):
    """A client of version 2."""

    def __init__(self, scene: Scene, client: Client) -> None:
        super().__init__(scene, client)
        self.methods: dict[int, str] = {}

    def request(self, method: str, **params: Any) -> int:
        self.methods[self._last_id + 1] = method
        return super().request(method, **params)

    def heard(self) -> list[Any]:
        messages = super().heard()
        for message in messages:
            check_message(2, "client", message, self.methods.get(message.get("id"), ""))
        return messages

    def resume(self, *, replay: bool, session_id: str = "s") -> list[Any]:
        """Resume a session, with its history or without, and return all that comes."""
        cursor = {"replayFrom": {"type": "start"}} if replay else {}
        self.request("session/resume", sessionId=session_id, cwd="/srv", **cursor)
        return self.heard()


def join_new(scene: Scene, name: str = "new", link: str | None = None, role: Role = Role.CONTROLLER) -> NewPeer:
    """Add a client of version 2."""
    old = scene.join(name, initialize=False, link=link, role=role)
    peer = NewPeer(scene, old.client)
    scene.peers[old.client] = peer
    own = peer.request("initialize", protocolVersion=2, info={"name": name, "version": "1"}, capabilities={})
    for text in scene.agent.heard_text():
        scene.agent.send(id=json.loads(text)["id"], result=scene.welcome)
    reply = peer.hears()
    assert (reply["id"], reply["result"]["protocolVersion"]) == (own, 2)
    return peer


def together(link: str | None = None) -> tuple[Scene, Peer, NewPeer]:
    """A client of each version in the session `s`."""
    scene = Scene()
    old = scene.join("old")
    old.new_session()
    new = join_new(scene, link=link)
    new.resume(replay=True)
    new.marks.clear()
    return scene, old, new


def kinds(messages: list[Any]) -> list[str]:
    """The kinds of updates, with their state; other messages by their method, or id."""
    found = []
    for message in messages:
        update = message.get("params", {}).get("update")
        if update is None:
            found.append(message.get("method", "response"))
        else:
            found.append(update.get("state", update["sessionUpdate"]))
    return found


def updates(messages: list[Any]) -> list[Any]:
    return [message["params"]["update"] for message in messages if message.get("method") == "session/update"]


def test_a_client_of_version_2_prompts_and_both_see_the_turn() -> None:
    scene, old, new = together()
    own = new.prompt("hi")
    asked = scene.agent.takes("session/prompt")
    begun = new.heard()
    assert kinds(begun) == ["response", "user_message", "running"]
    assert begun[0]["id"] == own
    assert begun[0]["result"]["messageId"] == updates(begun)[0]["messageId"]
    scene.agent.update("hello")
    scene.agent.answer(asked, stopReason="end_turn")
    assert updates(old.heard()) == [
        {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "hi"}},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hello"}},
    ]
    said, end = updates(new.heard())
    assert said["content"]["text"] == "hello"
    assert end == {"sessionUpdate": "state_update", "state": "idle", "stopReason": "end_turn"}


def test_a_client_of_version_1_prompts_and_both_see_the_turn() -> None:
    scene, old, new = together()
    own = old.prompt("hi")
    asked = scene.agent.takes("session/prompt")
    scene.agent.update("hello")
    scene.agent.answer(asked, stopReason="cancelled")
    assert kinds(new.heard()) == ["running", "user_message_chunk", "agent_message_chunk", "idle"]
    *_, answer = old.heard()
    assert answer == {"jsonrpc": "2.0", "id": own, "result": {"stopReason": "cancelled"}}


def test_a_prompt_of_version_2_that_waits_is_answered_when_its_turn_begins() -> None:
    scene, old, new = together()
    old.prompt("first")
    asked = scene.agent.takes("session/prompt")
    new.prompt("second")
    assert kinds(new.heard()) == ["running", "user_message_chunk"]
    scene.agent.answer(asked, stopReason="end_turn")
    assert kinds(new.heard()) == ["idle", "response", "user_message", "running"]


def test_all_clients_of_version_2_have_the_same_ids_live_and_after_a_replay() -> None:
    scene, old, new = together()
    other = join_new(scene, "other")
    other.resume(replay=False)
    for peer in (new, old, new):
        peer.prompt("hi")
        asked = scene.agent.takes("session/prompt")
        for words in ("a", "b"):
            scene.agent.update(words)
        scene.agent.answer(asked, stopReason="end_turn")
    live = [update["messageId"] for update in updates(new.heard()) if "messageId" in update]
    assert [update["messageId"] for update in updates(other.heard()) if "messageId" in update] == live
    *replayed, state, response = join_new(scene, "late").resume(replay=True)
    assert [update["messageId"] for update in updates(replayed)] == live
    assert (kinds([state, response]), len(set(live))) == (["idle", "response"], 6)


def test_a_client_of_version_2_that_resumes_in_a_turn_is_told_that_it_runs() -> None:
    scene, old, _ = together()
    old.prompt("hi")
    assert scene.agent.takes("session/prompt")
    scene.agent.update("a")
    assert kinds(join_new(scene, "late").resume(replay=False)) == ["running", "running", "response"]
    history = join_new(scene, "later").resume(replay=True)
    assert kinds(history) == ["user_message_chunk", "agent_message_chunk", "running", "running", "response"]


@pytest.mark.parametrize("decides", ["old", "new"])
def test_a_permission_goes_to_clients_of_both_versions_and_either_decides(decides: str) -> None:
    scene, old, new = together()
    new.prompt("hi")
    asked = scene.agent.takes("session/prompt")
    for peer in (old, new):
        peer.heard()
    scene.agent.ask_permission()
    (for_old,), (for_new,) = old.heard(), new.heard()
    assert for_old["params"]["toolCall"]["title"] == "do it"
    assert for_new["params"]["title"] == "do it"
    winner, question, loser = (old, for_old, new) if decides == "old" else (new, for_new, old)
    winner.choose(question, "yes")
    assert scene.agent.hears()["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert loser.hears()["method"] == "$/cancel_request"
    scene.agent.answer(asked, stopReason="end_turn")


def test_an_outcome_that_version_1_does_not_have_decides_nothing() -> None:
    scene, old, new = together()
    scene.agent.ask_permission()
    new.send(id=new.hears()["id"], result={"outcome": {"outcome": "_later"}})
    assert not scene.agent.heard()
    old.choose(old.hears(), "no")
    assert scene.agent.hears()["result"]["outcome"]["optionId"] == "no"


def test_a_client_of_version_2_cancels_the_turn() -> None:
    scene, _, new = together()
    new.prompt("hi")
    asked = scene.agent.takes("session/prompt")
    new.heard()
    new.cancel()
    assert scene.agent.takes("session/cancel")
    scene.agent.answer(asked, stopReason="cancelled")
    assert updates(new.heard())[0]["stopReason"] == "cancelled"


def test_a_file_is_not_asked_of_a_client_of_version_2() -> None:
    """It offers none, and answers for itself where the gateway would let the request pass."""
    scene = Scene(make_policy(serves=frozenset({Capability.FS})))
    new = join_new(scene)
    new.request("session/new", cwd="/srv")
    asked = scene.agent.takes("session/new")
    assert asked["params"]["mcpServers"] == []
    scene.agent.answer(asked, sessionId="s")
    assert kinds(new.heard()) == ["response"]
    scene.agent.send(id=7, method="fs/read_text_file", params={"sessionId": "s", "path": "/srv/a"})
    assert not new.heard()
    refused = scene.agent.hears()
    assert (refused["id"], refused["error"]["code"]) == (7, -32601)


def test_the_end_of_the_agent_in_a_turn_is_an_error() -> None:
    scene, _, new = together()
    new.prompt("hi")
    new.heard()
    scene.multiplexer.agent_lost(AGENT_ENDED, {})
    scene.deliver()
    (end,) = updates(new.heard())
    assert (end["state"], end["stopReason"]) == ("idle", "error")


def test_a_client_of_version_2_with_a_link_knows_its_position() -> None:
    scene, old, new = together(link="link")
    session = scene.multiplexer.sessions[0]
    for peer in (new, old):
        peer.prompt("hi")
        asked = scene.agent.takes("session/prompt")
        scene.agent.state("current_mode_update", currentModeId="x")
        scene.agent.update("a")
        scene.agent.answer(asked, stopReason="end_turn")
        assert new.seen["s"] == (session.journal.epoch, session.journal.position)


def test_an_observer_of_version_2_changes_nothing() -> None:
    scene, _, _ = together()
    watcher = join_new(scene, "watcher", role=Role.OBSERVER)
    assert kinds(watcher.resume(replay=True)) == ["idle", "response"]
    watcher.prompt("hi")
    (refused,) = watcher.heard()
    assert refused["error"]["code"] == -32601
    assert not scene.agent.heard()


def test_a_closed_session_is_left() -> None:
    _scene, _, new = together()
    new.request("session/close", sessionId="s")
    assert new.hears()["result"] == {}
    assert new.client.sessions == {}


def test_a_prompt_that_fails_ends_the_turn_with_the_error() -> None:
    scene, old, new = together()
    old.prompt("hi")
    scene.agent.refuses("session/prompt", message="full")
    *_, end = updates(new.heard())
    assert (end["stopReason"], end["error"]["message"]) == ("error", "full")


def test_a_client_of_version_2_that_has_gone_gets_nothing() -> None:
    scene, _, new = together()
    new.prompt("hi")
    asked = scene.agent.takes("session/prompt")
    new.gone()
    scene.agent.answer(asked, stopReason="end_turn")
    assert kinds(new.heard()) == ["response", "user_message", "running"]


def test_a_client_may_ask_for_version_1_after_it_was_refused_version_2() -> None:
    scene = Scene()
    peer = scene.join("peer", initialize=False)
    peer.send(id=1, method="initialize", params={"protocolVersion": 2, "info": {"name": "c", "version": "1"}})
    scene.agent.refuses("initialize")
    assert "error" in peer.hears()
    assert peer.client.translator is not None
    peer.initialize()
    assert peer.client.translator is None


def said_with_ids(messages: list[Any]) -> list[tuple[str, str]]:
    """The texts of the agent, each with the id of its message."""
    found = updates(messages)
    return [
        (update["messageId"], update["content"]["text"])
        for update in found
        if update["sessionUpdate"] == "agent_message_chunk"
    ]


@pytest.mark.parametrize("way", ["replay", "resume", "rejoin", "replay again"])
def test_a_message_goes_on_under_its_id_for_a_client_that_comes_in_the_middle_of_it(way: str) -> None:
    scene, old, new = together(link="first")
    old.prompt("hi")
    assert scene.agent.takes("session/prompt")
    scene.agent.update("a")
    (first,) = said_with_ids(new.heard())
    scene.agent.update("b")
    late = new if way == "replay again" else join_new(scene, "late", link="second")
    if way == "rejoin":
        epoch, position = new.seen["s"]
        new.heard()
        late.comes_back(epoch=epoch, position=position - 1, connection="first")
        assert said_with_ids(late.heard()) == [(first[0], "b")]
    else:
        late.resume(replay=way != "resume")
    scene.agent.update("c")
    assert said_with_ids(late.heard()) == [(first[0], "c")]


def test_a_client_that_has_missed_the_end_of_a_turn_gets_the_ids_of_the_others() -> None:
    scene, old, new = together(link="first")
    for words in ("a", "b"):
        old.prompt("hi")
        asked = scene.agent.takes("session/prompt")
        scene.agent.update(words)
        if words == "a":
            epoch, position = new.seen["s"]
        scene.agent.update(words)
        scene.agent.answer(asked, stopReason="end_turn")
    others = said_with_ids(new.heard())
    late = join_new(scene, "late", link="second")
    late.comes_back(epoch=epoch, position=position, connection="first")
    messages = late.heard()
    assert said_with_ids(messages) == others[1:]
    assert {message.get("method", "session/update") for message in messages} == {"session/update"}
    assert late.marks[-1] == {"s": scene.place()}


def test_after_a_restart_of_the_gateway_a_client_gets_the_rest_of_a_message_under_its_id() -> None:
    gateways = Gateways()
    scene = gateways.scene
    old = scene.join("old")
    old.new_session()
    new = join_new(scene, link="first")
    new.resume(replay=True)
    old.prompt("hi")
    asked = scene.agent.takes("session/prompt")
    scene.agent.update("a")
    epoch, position = new.seen["s"]
    scene.agent.update("b")
    scene.agent.answer(asked, stopReason="end_turn")
    first, rest = said_with_ids(new.heard())
    assert first[0] == rest[0]
    gateways.stop()
    late = join_new(gateways.scene, "late", link="second")
    late.comes_back(epoch=epoch, position=position, connection="first")
    gateways.load_journal()
    gateways.scene.agent.answer(gateways.scene.agent.takes("session/load"))
    assert said_with_ids(late.heard()) == [rest]
    assert late.marks[-1] == {"s": gateways.scene.place()}


def test_a_prompt_of_version_2_that_is_cancelled_while_it_waits_fails_with_its_text_and_no_turn_ends_early() -> None:
    scene, old, new = together()
    old.prompt("first")
    asked = scene.agent.takes("session/prompt")
    own = new.prompt("second one")
    new.heard()
    old.cancel()
    answer = new.hears()
    assert (answer["id"], answer["error"]["data"]) == (own, {"reason": "not_sent"})
    assert answer["error"]["message"].endswith('because it was cancelled while it waited: "second one"')
    scene.agent.heard()
    scene.agent.answer(asked, stopReason="cancelled")
    assert kinds(new.heard()) == ["idle"]


def test_a_message_of_version_2_is_marked_if_a_gateway_with_the_agent_had_its_prompt_wait_in_vain() -> None:
    scene, _, new = together()
    own = new.prompt("mine")
    asked = scene.agent.takes("session/prompt")
    accepted, shown, _ = new.heard()
    assert (accepted["id"], shown["params"]["update"]["sessionUpdate"]) == (own, "user_message")
    scene.agent.send(id=asked["id"], result=json.loads(CANCELLED))
    mark, idle = updates(new.heard())
    assert (mark["sessionUpdate"], mark["messageId"]) == ("user_message_chunk", accepted["result"]["messageId"])
    assert "this prompt was not sent to the agent" in mark["content"]["text"]
    assert (idle["state"], idle["stopReason"]) == ("idle", "cancelled")


def test_a_prompt_of_version_1_that_is_cancelled_while_it_waits_says_that_it_was_not_sent() -> None:
    _, old, _ = together()
    old.prompt("first")
    own = old.prompt("second")
    old.cancel()
    assert old.heard() == [{"jsonrpc": "2.0", "id": own, "result": json.loads(CANCELLED)}]
