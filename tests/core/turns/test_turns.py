"""Turns: who sees what was said, in which order prompts come to the agent, and what a choice for all means to all."""

import json
from typing import Any

import pytest

from acp_gateway.core.requests import ErrorObject, TurnOutcome
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from acp_gateway.protocol import jsonrpc, not_sent
from tests.kit.scene import Peer, Scene, Shelf, make_policy, news_params, opened_scene

CANCELLED = json.loads(not_sent.CANCELLED)


def together(scene: Scene | None = None, **result: Any) -> tuple[Scene, Peer, Peer]:
    """Two controllers of the session `s`."""
    scene = scene or Scene()
    ann = scene.join("ann")
    ann.new_session(**result)
    return scene, ann, scene.join_session("bob")


def words(request: Any) -> str:
    """Compose the blocks of a prompt."""
    return str(request["params"]["prompt"][0]["text"])


def update_of(message: Any) -> Any:
    assert message["method"] == "session/update", message
    assert message["params"]["sessionId"] == "s"
    return message["params"]["update"]


def response(raw_id: Any, **result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": raw_id, "result": result}


# What the others see of a prompt.


def test_other_clients_see_a_prompt_before_the_answer_to_it() -> None:
    scene, ann, bob = together()
    watcher = scene.join_session("watcher", role=Role.OBSERVER)
    ann.prompt("hello")
    scene.agent.update("hello yourself")
    for peer in (bob, watcher):
        own, agents = peer.heard()
        assert update_of(own) == {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "hello"}}
        assert update_of(agents)["sessionUpdate"] == "agent_message_chunk"
    assert [update_of(message)["sessionUpdate"] for message in ann.heard()] == ["agent_message_chunk"]


def test_a_prompt_that_goes_on_as_it_came_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, ann, _ = together()
    read: list[bytes] = []
    parse = jsonrpc.parse

    def count(text: bytes) -> jsonrpc.Message:
        read.append(text)
        return parse(text)

    monkeypatch.setattr(jsonrpc, "parse", count)
    ann.prompt("a prompt of five megabytes")
    scene.agent.update("read")
    assert not [text for text in read if b'"session/prompt"' in text]


def test_every_block_of_a_prompt_is_an_update_of_its_own_whatever_its_kind_and_verbatim() -> None:
    _, ann, bob = together()
    blocks = [
        b'{"type":"text","text":"a \\ud83d"}',
        b'{"data":"AAAA","type":"image","mimeType":"image/png"}',
        b'{"type":"resource","resource":{"uri":"file:///a","text":"x","_meta":{"n":1.10}}}',
        b'{"type":"resource_link","uri":"file:///b","name":"b"}',
        b'{"type":"new in some version","n":1e999}',
    ]
    ann.say(b'{"id":1,"method":"session/prompt","params":{"prompt":[ %b ],"sessionId":"s"}}' % b" , ".join(blocks))
    chunk = (
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":'
        b'{"sessionUpdate":"user_message_chunk","content":%b}}}'
    )
    assert bob.heard_text() == [chunk % block for block in blocks]


@pytest.mark.parametrize("prompt", ["[]", '"hello"', "null", "{}"])
def test_where_nothing_was_said_nothing_is_shown_and_the_agent_judges_it(prompt: str) -> None:
    scene, ann, bob = together()
    ann.say(f'{{"id":1,"method":"session/prompt","params":{{"sessionId":"s","prompt":{prompt}}}}}'.encode())
    assert bob.heard() == []
    assert len(scene.agent.heard()) == 1


def test_the_id_of_the_message_is_shown_where_the_client_gave_it_one() -> None:
    _, ann, bob = together()
    ann.request("session/prompt", sessionId="s", prompt=[{"type": "text", "text": "a"}], messageId="m1")
    assert update_of(bob.hears())["messageId"] == "m1"


def test_an_agent_of_the_second_version_shows_what_was_said_by_itself() -> None:
    scene = Scene(protocolVersion=2)
    ann, bob = scene.join("ann", initialize=False), scene.join("bob", initialize=False)
    for peer in (ann, bob):
        peer.request("initialize", protocolVersion=2)
    scene.agent.answer(scene.agent.takes("initialize"), protocolVersion=2)
    for peer in (ann, bob):
        peer.heard()
    ann.new_session()
    bob.load()
    ann.prompt()
    assert bob.heard() == []
    cleo = scene.join("cleo", initialize=False)
    cleo.request("initialize", protocolVersion=2)
    cleo.heard()
    assert len(cleo.load()) == 1


def test_the_answer_to_a_prompt_is_its_senders_alone_and_in_the_senders_words() -> None:
    scene, ann, bob = together()
    for peer in (ann, bob):
        peer.say(b'{"id":"p","method":"session/prompt","params":{"sessionId":"s","prompt":[]}}')
    asked = scene.agent.takes("session/prompt")
    scene.agent.say(b'{"result":{"n":1.10}, "id":%d,"_meta":1}' % asked["id"])
    assert ann.heard_text() == [b'{"result":{"n":1.10}, "id":"p","_meta":1}']
    assert bob.heard() == []


# One turn at a time.


def test_prompts_of_all_clients_wait_for_the_end_of_the_turn_in_order() -> None:
    scene, ann, bob = together()
    prompts = [(ann, ann.prompt("1")), (bob, bob.prompt("2")), (ann, ann.prompt("3")), (bob, bob.prompt("4"))]
    for number, (peer, own) in enumerate(prompts, 1):
        asked = scene.agent.takes("session/prompt")
        assert words(asked) == str(number)
        peer.inbox.clear()
        scene.agent.answer(asked, stopReason="end_turn", number=number)
        assert response(own, stopReason="end_turn", number=number) in peer.heard()
    assert scene.agent.heard() == []
    assert not scene.multiplexer.busy


def test_only_so_many_prompts_wait() -> None:
    _, ann, bob = together(Scene(make_policy(queued_prompts_per_session=2)))
    for _ in range(3):
        ann.prompt()
    refused = bob.prompt()
    answer = bob.heard()[-1]
    assert answer["id"] == refused
    assert answer["error"] == {"code": -32600, "message": "queued_prompts_per_session (2) wait in this session already"}
    assert ann.heard() == []


def test_a_turn_in_one_session_does_not_hold_up_another() -> None:
    scene, ann, _ = together()
    ann.new_session("t")
    ann.prompt()
    ann.prompt(session_id="t")
    assert len(scene.agent.heard()) == 2


def test_a_queued_prompt_is_sent_to_the_agent_after_its_client_has_left() -> None:
    scene, ann, bob = together()
    ann.prompt("first")
    ann.prompt("second")
    asked = scene.agent.takes("session/prompt")
    bob.heard()
    ann.gone()
    assert scene.agent.heard() == []
    scene.agent.answer(asked, stopReason="end_turn")
    second = scene.agent.takes("session/prompt")
    assert words(second) == "second"
    assert update_of(bob.hears())["content"]["text"] == "second"
    scene.agent.answer(second, stopReason="end_turn")
    assert not scene.multiplexer.busy


def test_a_queued_prompt_that_was_answered_with_an_error_is_not_sent_to_the_agent() -> None:
    scene, ann, _ = together()
    first, second = ann.prompt("first"), ann.prompt("second")
    asked = scene.agent.takes("session/prompt")
    scene.multiplexer.close_client(ann.client, "too slow", {})
    output = scene.multiplexer.take_output()
    assert output.to_clients.keys() == {ann.client}
    assert len(output.to_clients[ann.client]) == 2
    assert first != second
    scene.agent.answer(asked, stopReason="end_turn")
    assert scene.agent.heard() == []


def test_a_prompt_of_a_client_that_is_not_attached_is_refused() -> None:
    scene, _, _ = together()
    cleo = scene.join("cleo")
    cleo.prompt()
    assert cleo.hears()["error"]["code"] == -32002
    cleo.send(id=1, method="session/prompt", params={"prompt": []})
    assert cleo.hears()["error"] == {
        "code": -32002,
        "message": "no session None is open on this connection",
        "data": {"sessionId": None},
    }
    assert scene.agent.heard() == []


# A process of one's own.


def test_the_only_client_of_a_process_of_its_own_may_steer_a_running_turn() -> None:
    scene, ann = opened_scene(make_policy(shared=False))
    own = [ann.prompt("first"), ann.prompt("second")]
    first, second = scene.agent.heard()
    scene.agent.answer(second, stopReason="end_turn")
    assert ann.hears()["id"] == own[1]
    assert scene.multiplexer.sessions[0].turns
    scene.agent.answer(first, stopReason="end_turn")
    assert ann.hears()["id"] == own[0]
    assert not scene.multiplexer.sessions[0].turns


def test_prompts_wait_behind_all_running_turns_once_a_second_client_is_attached() -> None:
    scene, ann = opened_scene(make_policy(shared=False))
    ann.prompt("first")
    ann.prompt("second")
    bob = scene.join_session("bob")
    bob.prompt("third")
    first, second = scene.agent.heard()
    scene.agent.answer(first, stopReason="end_turn")
    assert scene.agent.heard() == []
    bob.gone()
    ann.prompt("fourth")
    scene.agent.answer(second, stopReason="end_turn")
    third = scene.agent.takes("session/prompt")
    assert words(third) == "third"
    scene.agent.answer(third, stopReason="end_turn")
    assert words(scene.agent.takes("session/prompt")) == "fourth"


def test_on_a_process_for_several_prompts_wait_also_while_there_is_one_client() -> None:
    scene, ann = opened_scene()
    ann.prompt("first")
    ann.prompt("second")
    assert words(scene.agent.takes("session/prompt")) == "first"


# Ending turns.


def test_a_cancel_of_any_controller_reaches_the_agent_verbatim_and_ends_what_waits() -> None:
    scene, ann, bob = together()
    running = ann.prompt("running")
    waiting = [(ann, ann.prompt("waiting")), (bob, bob.prompt("waiting too"))]
    asked = scene.agent.takes("session/prompt")
    for peer in (ann, bob):
        peer.heard()
    text = b'{"params":{"_meta":{"n":1.10},"sessionId":"s"},"method":"session/cancel"}'
    bob.say(text)
    assert scene.agent.heard_text() == [text]
    for peer, own in waiting:
        assert peer.hears() == response(own, **CANCELLED)
    scene.agent.answer(asked, **CANCELLED)
    assert ann.hears() == response(running, **CANCELLED)
    assert scene.agent.heard() == []


def test_a_cancel_ends_nothing_in_another_session() -> None:
    scene, ann, bob = together()
    ann.new_session("t")
    for session_id in ("s", "t"):
        ann.prompt("running", session_id)
        ann.prompt("waiting", session_id)
    scene.agent.heard()
    bob.cancel()
    assert len(ann.heard()) == 1
    assert [len(session.queue) for session in scene.multiplexer.sessions] == [0, 1]


def test_a_cancel_of_who_may_not_is_nothing() -> None:
    scene, ann, _ = together()
    ann.prompt("running")
    ann.prompt("waiting")
    scene.agent.heard()
    watcher = scene.join_session("watcher", role=Role.OBSERVER)
    for peer in (watcher, scene.join("outsider"), scene.join("stranger", "someone else")):
        peer.cancel()
    assert ann.heard() == scene.agent.heard() == []


def test_a_cancel_ends_what_waits_for_a_session_that_is_being_loaded() -> None:
    scene, ann = opened_scene(agentCapabilities={"loadSession": True})
    scene.lose_agent()
    load = ann.request("session/load", sessionId="s", cwd="/srv")
    own = ann.prompt("not yet")
    ann.request("session/set_mode", sessionId="s", modeId="code")
    ann.cancel()
    assert ann.hears() == response(own, **CANCELLED)
    scene.agent.answer(scene.agent.takes("initialize"), **scene.welcome)
    reload = scene.agent.takes("session/load")
    own = ann.prompt("still not")
    ann.cancel()
    assert ann.hears() == response(own, **CANCELLED)
    assert scene.agent.takes("session/cancel")["params"] == {"sessionId": "s"}
    scene.agent.answer(reload)
    assert scene.agent.hears()["method"] == "session/set_mode"
    assert ann.hears()["id"] == load


def test_a_cancel_while_there_is_no_agent_is_not_kept_for_the_next_one() -> None:
    scene, ann = opened_scene(agentCapabilities={"loadSession": True})
    scene.lose_agent()
    ann.cancel()
    ann.request("_vendor/wake")
    ann.cancel()
    scene.agent.answer(scene.agent.takes("initialize"), **scene.welcome)
    assert [message["method"] for message in scene.agent.heard()] == ["session/load", "_vendor/wake"]


def test_session_cancel_does_not_answer_prompts_of_clients_outside_the_session() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann, stranger = scene.join("ann"), scene.join("stranger", "someone else")
    ann.new_session()
    scene.lose_agent()
    stranger.prompt("whose is it?")
    ann.cancel()
    assert stranger.heard() == []
    scene.agent.answer(scene.agent.takes("initialize"), **scene.welcome)
    assert stranger.hears()["error"]["code"] == -32002


# Choices for a session as a whole.

MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "code"}]}
MODELS = {"currentModelId": "small", "availableModels": []}


def choose(scene: Scene, peer: Peer, method: str, **params: Any) -> Any:
    """A choice that the agent has not answered yet; what it got."""
    peer.request(method, sessionId="s", **params)
    return scene.agent.takes(method)


def test_the_others_learn_of_a_mode_when_the_agent_has_taken_it_and_so_do_late_joiners() -> None:
    scene, ann, bob = together(modes=MODES)
    watcher = scene.join_session("watcher", role=Role.OBSERVER)
    asked = choose(scene, ann, "session/set_mode", modeId="code")
    assert bob.heard() == []
    scene.agent.answer(asked)
    for peer in (bob, watcher):
        assert update_of(peer.hears()) == {"sessionUpdate": "current_mode_update", "currentModeId": "code"}
    assert "result" in ann.hears()
    update, loaded = scene.join("cleo").load()
    assert update_of(update)["currentModeId"] == "code"
    assert loaded["result"] == {"modes": MODES | {"currentModeId": "code"}}


@pytest.mark.parametrize(
    ("method", "params", "audited"),
    [
        ("session/set_mode", {"modeId": "code"}, ("mode_set", {"mode": "code"})),
        ("session/set_model", {"modelId": "large"}, ("model_set", {"model": "large"})),
        ("session/set_config_option", {"configId": "m", "value": "code"}, ("mode_set", {"mode": "code"})),
        ("session/set_config_option", {"configId": "l", "value": "large"}, ("model_set", {"model": "large"})),
        ("session/set_config_option", {"configId": "effort", "value": "high"}, None),
        ("session/set_config_option", {"configId": "m", "value": True}, None),
        ("session/set_config_option", {"configId": "gone", "value": "x"}, None),
    ],
)
def test_the_audit_has_the_mode_and_the_model_that_a_client_set(
    method: str, params: dict[str, Any], audited: tuple[str, dict[str, Any]] | None
) -> None:
    scene, ann, _ = together(modes=MODES, models=MODELS)
    options = [{"id": "effort"}, {"id": "m", "category": "mode"}, {"id": "l", "category": "model"}]
    asked = choose(scene, ann, method, **params)
    scene.audit_events.clear()
    scene.agent.answer(asked, configOptions=options)
    found = [(event.name, event.client, event.details) for event in scene.audit_events]
    about = {"session": "s", "agent": "agent"}
    assert found == ([] if audited is None else [(audited[0], ann.client, about | audited[1])])


def test_a_model_is_what_late_joiners_are_told() -> None:
    scene, ann, bob = together(models=MODELS)
    scene.agent.answer(choose(scene, ann, "session/set_model", modelId="large"))
    assert "result" in ann.hears()
    assert bob.heard() == []
    assert scene.join("cleo").load()[-1]["result"] == {"models": MODELS | {"currentModelId": "large"}}


def test_an_option_changes_the_options_that_the_others_and_late_joiners_see() -> None:
    scene, ann, bob = together(configOptions=[{"id": "effort", "currentValue": "low"}])
    asked = choose(scene, ann, "session/set_config_option", configId="effort", value="high")
    options = [{"id": "effort", "currentValue": "high"}, {"id": "new", "currentValue": True}]
    scene.agent.answer(asked, configOptions=options)
    assert update_of(bob.hears()) == {"sessionUpdate": "config_option_update", "configOptions": options}
    assert ann.hears()["result"] == {"configOptions": options}
    assert scene.join("cleo").load()[-1]["result"] == {"configOptions": options}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session/set_mode", {"modeId": "code"}),
        ("session/set_model", {"modelId": "large"}),
        ("session/set_config_option", {"configId": "effort", "value": "high"}),
    ],
)
def test_a_choice_that_the_agent_refuses_does_not_count(method: str, params: dict[str, Any]) -> None:
    scene, ann, bob = together(modes=MODES, models=MODELS)
    asked = choose(scene, ann, method, **params)
    scene.agent.send(id=asked["id"], error={"code": -32602, "message": "no"})
    assert ann.hears()["error"]["message"] == "no"
    assert bob.heard() == []
    assert not {"mode_set", "model_set"} & {event.name for event in scene.audit_events}
    assert scene.join("cleo").load()[-1]["result"] == {"modes": MODES, "models": MODELS}


@pytest.mark.parametrize("method", ["session/set_mode", "session/set_model", "session/set_config_option"])
def test_a_set_mode_or_set_model_without_a_value_is_passed_on_and_no_news(method: str) -> None:
    scene, ann, bob = together(modes=MODES, models=MODELS)
    scene.agent.answer(choose(scene, ann, method, modeId=1, modelId=None))
    assert ann.hears()["result"] == {}
    assert bob.heard() == []


# The news.


def test_news_of_a_turn_name_its_begin_its_end_and_its_client() -> None:
    scene, ann, bob = together()
    curious = scene.join_session("curious", role=Role.OBSERVER, **news_params())
    ann.prompt()
    scene.agent.answer(scene.agent.takes("session/prompt"), stopReason="max_tokens")
    said, started, ended = curious.heard()
    assert update_of(said)["sessionUpdate"] == "user_message_chunk"
    assert started["method"] == ended["method"] == "_acp-gateway/news"
    by = {"connection": "ann", "identity": "me", "role": "controller"}
    assert started["params"] == {"sessionId": "s", "event": "turn_started", "by": by}
    assert ended["params"] == {"sessionId": "s", "event": "turn_ended", "stopReason": "max_tokens"}
    assert len(ann.heard()) == len(bob.heard()) == 1


def test_a_client_that_joins_during_a_turn_is_told_that_it_runs() -> None:
    scene, ann, _ = together()
    ann.prompt()
    asked = scene.agent.takes("session/prompt")
    curious = scene.join("curious", role=Role.OBSERVER, **news_params())
    started = curious.load()[-1]
    by = {"connection": "ann", "identity": "me", "role": "controller"}
    assert started["params"] == {"sessionId": "s", "event": "turn_started", "running": True, "by": by}
    # Once, and not to those who ask for no news.
    assert [it for it in curious.load() if it.get("method") == "_acp-gateway/news"] == []
    assert [it for it in scene.join("bob2").load() if it.get("method") == "_acp-gateway/news"] == []
    curious.heard()
    ann.gone()
    assert scene.join("late", **news_params()).load()[-1]["params"]["by"] is None
    curious.heard()
    scene.agent.answer(asked, stopReason="end_turn")
    assert curious.hears()["params"]["event"] == "turn_ended"
    assert not [it for it in scene.join("last", **news_params()).load() if it.get("method") == "_acp-gateway/news"]


def test_news_name_clients_that_attach_and_leave() -> None:
    scene = Scene()
    curious = scene.join("curious", **news_params())
    curious.new_session()
    scene.join_session("guest", "guest-1", Role.OBSERVER, only="s", guest=True).gone()
    by = {"connection": "guest", "identity": "guest-1", "role": "observer"}
    assert [message["params"] for message in curious.heard()] == [
        {"sessionId": "s", "event": "attached", "by": by},
        {"sessionId": "s", "event": "left", "by": by},
    ]


@pytest.mark.parametrize("meta", [None, {}, {"acp-gateway": False}, {"acp-gateway": None}, {"other": {}}])
def test_a_client_that_did_not_ask_for_news_gets_none(meta: Any) -> None:
    scene = Scene()
    ann = scene.join("ann", clientCapabilities={"_meta": meta})
    ann.new_session()
    scene.join("bob").load()
    ann.prompt()
    scene.agent.answer(scene.agent.takes("session/prompt"), stopReason="end_turn")
    assert [message.get("method") for message in ann.heard()] == [None]


# Prompts that wait, of one identity and of all


def refusal(peer: Peer) -> Any:
    error = peer.heard()[-1]["error"]
    assert error["code"] == -32600
    return error["message"]


def test_only_so_many_prompts_wait_in_the_sessions_of_all_names_below_one_credential() -> None:
    scene = Scene(make_policy(queued_prompts_per_identity=1))
    ann, bob = (scene.join(name, f"door/{name}", below="door") for name in ("ann", "bob"))
    ann.new_session("s")
    bob.new_session("t")
    for peer, session_id in ((ann, "s"), (ann, "s"), (bob, "t"), (bob, "t")):
        peer.prompt(session_id=session_id)
    assert refusal(bob) == "queued_prompts_per_identity (1) wait already"


def test_only_so_many_prompts_wait_in_the_sessions_of_one_identity() -> None:
    scene, ann, _ = together(Scene(make_policy(queued_prompts_per_identity=2)))
    you = scene.join("you", "you")
    you.new_session("of another")
    ann.new_session("t")
    for session_id in ("s", "t"):
        for _ in range(2):
            ann.prompt(session_id=session_id)
    ann.prompt(session_id="t")
    assert refusal(ann) == "queued_prompts_per_identity (2) wait already"
    for _ in range(3):
        you.prompt(session_id="of another")
    assert you.heard() == []
    first = scene.agent.heard()[0]
    scene.agent.answer(first, stopReason="end_turn")
    ann.heard()
    ann.prompt(session_id="t")
    assert ann.heard() == []


def test_only_so_many_prompts_wait_of_all_whichever_agent_they_are_for() -> None:
    registry = Registry("me")
    scenes = [Scene(make_policy(max_queued_prompts=2), registry) for _ in range(2)]
    ann, you = scenes[0].join("ann"), scenes[1].join("you", "you")
    ann.new_session("s")
    you.new_session("t")
    for _ in range(2):
        ann.prompt(session_id="s")
        you.prompt(session_id="t")
    you.prompt(session_id="t")
    assert refusal(you) == "max_queued_prompts (2) wait already"
    ann.cancel()
    you.prompt(session_id="t")
    assert you.heard() == []


def test_max_prompt_blocks_may_exceed_what_other_arrays_may_have() -> None:
    scene, ann = opened_scene(make_policy(max_prompt_blocks=3000))
    bob = scene.join_session("bob")
    bob.heard()
    ann.request("session/prompt", sessionId="s", prompt=[{"type": "text", "text": "\ud83d"}] * 2000)
    assert scene.agent.hears()["method"] == "session/prompt"
    assert len(bob.heard()) >= 2000


# How a turn ended, and sessions that were put away


def last_outcome(scene: Scene) -> TurnOutcome | None:
    last = scene.session().last_turn
    return None if last is None else last.outcome


def test_a_session_knows_how_its_last_turn_ended() -> None:
    scene, ann, _ = together()
    assert scene.session().last_turn is None
    ann.prompt()
    scene.agent.answers("session/prompt", stopReason="max_tokens")
    assert last_outcome(scene) == TurnOutcome("max_tokens")
    ann.prompt()
    scene.agent.refuses("session/prompt", -32000, "overloaded", data={"secret": 1})
    assert last_outcome(scene) == TurnOutcome(error=ErrorObject(-32000, "overloaded"))


def test_a_turn_that_was_cut_off_says_why() -> None:
    scene, ann, _ = together(Scene(agentCapabilities={"loadSession": True}))
    ann.prompt()
    scene.agent.hears()
    scene.lose_agent()
    assert last_outcome(scene) == TurnOutcome(cut="agent_ended")


def test_a_prompt_takes_an_archived_session_back() -> None:
    scene, ann, _ = together(Scene(registry=Registry("me", shelf := Shelf())))
    session = scene.session()
    scene.registry.set_archived(session, archived=True)
    assert session.archived
    told = len(shelf.told)
    scene.registry.set_archived(session, archived=True)
    assert len(shelf.told) == told
    ann.load()
    assert session.archived
    ann.prompt()
    assert not session.archived
    assert shelf.told[told] == ("keep", "s")
