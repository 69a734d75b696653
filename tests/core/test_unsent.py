"""Requests that a lost link to a node has certainly not sent: they go over the next link, each once."""

import json
from typing import Any

import pytest

from acp_gateway.core.unsent import MAX_HELD, take_unsent
from tests.core.fronts import Fronts, Watcher
from tests.core.scene import Peer, Scene, encode, make_policy, news_params
from tests.core.test_translated_clients import NewPeer, join_new
from tests.versions.test_diffs import steps


@pytest.fixture
def ann() -> Watcher:
    return Watcher("ann")


@pytest.fixture
def bob() -> Watcher:
    return Watcher("bob")


@pytest.fixture
def fronts(ann: Watcher, bob: Watcher) -> Fronts:
    """Editors ann and bob at a door, which have a session of a node."""
    fronts = Fronts(ann, bob)
    fronts.open()
    return fronts


def notify(fronts: Fronts, watcher: Watcher, method: str, **params: Any) -> None:
    fronts.do(watcher, watcher.conversation.from_editor([encode(method=method, params=params)]))


def end_turns(fronts: Fronts) -> None:
    while fronts.prompts:
        fronts.end_turn()
        fronts.settle()


@pytest.mark.parametrize("lose", [Fronts.kill_node, Fronts.lose_link])
def test_a_prompt_that_was_not_sent_goes_over_the_next_link_and_is_answered(
    lose: Any, fronts: Fronts, ann: Watcher, bob: Watcher
) -> None:
    fronts.commit_node()
    number = fronts.prompt(ann)
    lose(fronts, sent=0)
    assert not fronts.session.turns
    fronts.settle()
    assert fronts.got == [f"ann {number}"]
    assert fronts.reasons(ann, number) == []
    end_turns(fronts)
    assert fronts.reasons(ann, number) == [f"end of ann {number}"]
    # A node that was killed tells a gap before it.
    assert bob.seen[-1] == f"ann {number}"
    fronts.check_all()


def test_a_prompt_that_may_have_been_sent_is_not_sent_again(fronts: Fronts, ann: Watcher) -> None:
    fronts.commit_node()
    lost, kept = fronts.prompt(ann), fronts.prompt(ann)
    fronts.kill_node(sent=1)
    fronts.settle()
    assert [answer["data"]["reason"] for answer in fronts.reasons(ann, lost)] == ["agent_ended"]
    # It waited for the end of that turn.
    assert [answer["data"]["reason"] for answer in fronts.reasons(ann, kept)] == ["agent_ended"]
    assert fronts.got == []


def test_prompts_that_wait_for_one_that_was_not_sent_follow_it(fronts: Fronts, ann: Watcher, bob: Watcher) -> None:
    fronts.commit_node()
    first, second, third = fronts.prompt(ann), fronts.prompt(bob), fronts.prompt(ann)
    fronts.kill_node(sent=0)
    fronts.settle()
    end_turns(fronts)
    assert fronts.got == [f"ann {first}", f"bob {second}", f"ann {third}"]
    assert fronts.reasons(bob, second) == [f"end of bob {second}"]
    assert fronts.reasons(ann, third) == [f"end of ann {third}"]
    fronts.check_all()


def test_a_prompt_that_was_cancelled_before_it_was_sent_is_answered_and_not_sent(
    fronts: Fronts, ann: Watcher, bob: Watcher
) -> None:
    fronts.commit_node()
    number = fronts.prompt(ann)
    notify(fronts, ann, "session/cancel", sessionId="s")
    other = fronts.prompt(bob)
    fronts.kill_node(sent=0)
    fronts.settle()
    assert fronts.reasons(ann, number) == ["cancelled"]
    assert fronts.got == [f"bob {other}"]


def test_a_cancel_of_an_earlier_turn_ends_no_prompt_after_it(fronts: Fronts, ann: Watcher) -> None:
    fronts.commit_node()
    notify(fronts, ann, "session/cancel", sessionId="s")
    number = fronts.prompt(ann)
    fronts.kill_node(sent=0)
    fronts.settle()
    assert fronts.got == [f"ann {number}"]


@pytest.mark.parametrize("sent", [0, 1])
def test_a_prompt_that_was_withdrawn_before_or_after_it_was_sent_gets_the_error(
    sent: int, fronts: Fronts, ann: Watcher
) -> None:
    fronts.commit_node()
    number = fronts.prompt(ann)
    notify(fronts, ann, "$/cancel_request", requestId=number)
    notify(fronts, ann, "session/cancel", sessionId="s")
    fronts.kill_node(sent=sent)
    fronts.settle()
    assert [answer["data"]["reason"] for answer in fronts.reasons(ann, number)] == ["agent_ended"]
    assert fronts.got == []


def test_a_prompt_of_a_client_that_has_gone_is_not_sent(fronts: Fronts, ann: Watcher) -> None:
    fronts.commit_node()
    fronts.prompt(ann)
    assert ann.client is not None
    fronts.front.client_gone(ann.client)
    fronts.deliver_front()
    fronts.kill_node(sent=0)
    fronts.settle()
    assert fronts.got == []


# A door alone


def linked(**policy: Any) -> tuple[Scene, Peer]:
    """A door, and a client that has a session of a node and gets news."""
    abilities = {"loadSession": True, "sessionCapabilities": {"list": {}}}
    scene = Scene(make_policy(**policy), agentCapabilities=abilities)
    scene.multiplexer.agent_linked("far")
    ann = scene.join("ann", **news_params())
    ann.new_session()
    return scene, ann


def lose_link(scene: Scene) -> None:
    """Lose the link, which has sent nothing of what the agent has not taken."""
    unsent, scene.agent.inbox = scene.agent.inbox, []
    scene.multiplexer.agent_lost("the link has ended", {"reason": "agent_ended"}, unsent=unsent)
    scene.deliver()


def test_the_agent_is_reached_at_once_and_gets_the_text_of_the_client_under_another_id() -> None:
    scene, ann = linked()
    ann.request("session/prompt", sessionId="s", prompt=[{"type": "text", "text": "hi"}], _meta={"own": 1})
    before = json.loads(scene.agent.inbox[0])
    lose_link(scene)
    assert scene.multiplexer.wants_agent
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    again = scene.agent.takes("session/prompt")
    assert again["id"] != before["id"]
    assert again["params"] == before["params"]


def test_a_turn_that_was_not_sent_is_told_as_ended_and_begun_again() -> None:
    scene, ann = linked()
    ann.prompt()
    lose_link(scene)
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    told = [message["params"] for message in ann.heard() if message["method"] == "_acp-gateway/news"]
    assert [(event["event"], event.get("reason")) for event in told] == [
        ("turn_started", None),
        ("turn_ended", "agent_ended"),
        ("turn_started", None),
    ]
    assert not scene.events


@pytest.mark.parametrize("method", ["session/new", "session/set_mode", "session/list"])
def test_a_request_whose_text_is_kept_goes_over_the_next_link(method: str) -> None:
    scene, ann = linked()
    params: dict[str, Any] = {"cwd": "/srv", "mcpServers": []}
    params = {"sessionId": "s", "modeId": "m"} if method == "session/set_mode" else params
    ann.request(method, **params)
    lose_link(scene)
    scene.agent.answers("initialize", **scene.welcome)
    asked = scene.agent.heard()
    (load,) = [message for message in asked if message["method"] == "session/load"]
    scene.agent.answer(load)
    (again,) = [message for message in [*asked, *scene.agent.heard()] if message["method"] == method]
    assert params.items() <= again["params"].items()
    assert not ann.heard()


def test_another_request_gets_the_error() -> None:
    scene, ann = linked()
    ann.request("vendor/other", sessionId="s")
    lose_link(scene)
    assert ann.hears()["error"]["data"] == {"reason": "agent_ended"}
    assert not scene.multiplexer.wants_agent


def test_a_prompt_for_a_session_that_can_not_be_opened_again_gets_the_error() -> None:
    scene = Scene()
    scene.multiplexer.agent_linked("far")
    ann = scene.join("ann")
    ann.new_session()
    ann.prompt()
    lose_link(scene)
    assert ann.hears()["error"]["data"] == {"reason": "agent_ended"}


def test_an_agent_of_one_connection_is_lost_with_its_link() -> None:
    scene, ann = linked(shared=False)
    ann.prompt()
    lose_link(scene)
    assert [message["error"]["data"] for message in ann.heard() if "error" in message] == [{"reason": "agent_ended"}]
    assert not scene.multiplexer.wants_agent


def test_what_another_agent_did_not_take_is_lost_with_it() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.new_session()
    ann.prompt()
    lose_link(scene)
    assert ann.hears()["error"]["data"] == {"reason": "agent_ended"}


def test_a_prompt_that_waits_for_a_link_is_refused_when_the_node_is_not_reached() -> None:
    scene, ann = linked()
    number = ann.prompt()
    lose_link(scene)
    ann.heard()
    scene.multiplexer.agent_lost("it cannot be started", {"reason": "agent_not_started"})
    scene.deliver()
    refused = ann.hears()
    assert (refused["id"], refused["error"]["data"]["reason"]) == (number, "agent_not_started")


@pytest.mark.parametrize("when", ["initialize", "session"])
@pytest.mark.parametrize("method", ["session/prompt", "session/set_mode"])
def test_a_request_waits_again_where_the_next_link_is_lost_before_its_session_is_open(when: str, method: str) -> None:
    scene, ann = linked()
    ann.request(method, sessionId="s", prompt=[], modeId="m")
    lose_link(scene)
    for link in ("second", "third"):
        scene.multiplexer.agent_linked(link)
        if when == "session":
            scene.agent.answers("initialize", **scene.welcome)
            scene.agent.takes("session/load")
        lose_link(scene)
    scene.multiplexer.agent_linked("fourth")
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    scene.agent.takes(method)
    assert [message for message in ann.heard() if "id" in message] == []
    assert scene.agent.heard() == []


def test_a_request_waits_for_a_few_links_at_most_and_once_for_each() -> None:
    scene, ann = linked()
    number, links = ann.prompt(), 0
    while not (answers := [message for message in ann.heard() if "error" in message]):
        lose_link(scene)
        links += 1
        scene.multiplexer.agent_linked(f"link {links}")
    assert [(answer["id"], answer["error"]["data"]["reason"]) for answer in answers] == [(number, "agent_ended")]
    assert links == MAX_HELD + 1


def test_prompts_behind_a_withdrawn_one_that_was_not_sent_follow_without_it(
    fronts: Fronts, ann: Watcher, bob: Watcher
) -> None:
    fronts.commit_node()
    first, second = fronts.prompt(ann), fronts.prompt(bob)
    notify(fronts, ann, "$/cancel_request", requestId=first)
    fronts.kill_node(sent=0)
    fronts.settle()
    end_turns(fronts)
    assert fronts.got == [f"bob {second}"]
    assert [answer["data"]["reason"] for answer in fronts.reasons(ann, first)] == ["agent_ended"]
    assert fronts.reasons(bob, second) == [f"end of bob {second}"]


def test_a_prompt_that_was_withdrawn_is_not_cancelled_as_well() -> None:
    scene, ann = linked()
    number = ann.prompt()
    ann.send(method="$/cancel_request", params={"requestId": number})
    ann.send(method="session/cancel", params={"sessionId": "s"})
    lose_link(scene)
    (answer,) = [message for message in ann.heard() if message.get("id") == number]
    assert answer["error"]["data"]["reason"] == "agent_ended"


def test_a_prompt_behind_a_turn_that_was_sent_does_not_follow_a_request_that_was_not() -> None:
    scene, ann = linked()
    running = ann.prompt()
    scene.agent.takes("session/prompt")
    ann.prompt()
    mode = ann.request("session/set_mode", sessionId="s", modeId="m")
    lose_link(scene)
    answered = [message["id"] for message in ann.heard() if "error" in message]
    assert running in answered
    assert mode not in answered


def test_other_lines_and_ids_are_ignored() -> None:
    scene, ann = linked()
    ann.prompt()
    scene.agent.inbox[:0] = [b"{", encode(id=4711, method="session/prompt"), encode(id="a", method="x")]
    scene.agent.inbox.append(encode(id=1, result={}))
    lose_link(scene)
    assert [message.get("error") for message in ann.heard()] == [None, None]


def bystander(scene: Scene) -> NewPeer:
    """A client of version 2 that has joined the session of another one."""
    bob = join_new(scene, "bob", link="bob")
    bob.resume(replay=False)
    return bob


def states_of(peer: Peer) -> list[str]:
    updates = [message["params"]["update"] for message in peer.heard() if message.get("method") == "session/update"]
    return [update["state"] for update in updates if update["sessionUpdate"] == "state_update"]


@pytest.mark.parametrize("end", ["cancelled", "sender gone", "node not reached"])
def test_clients_of_version_2_are_told_the_end_of_a_turn_that_was_not_sent(end: str) -> None:
    scene, ann = linked()
    bob = bystander(scene)
    ann.prompt()
    assert states_of(bob) == ["running"]
    if end == "cancelled":
        ann.send(method="session/cancel", params={"sessionId": "s"})
    lose_link(scene)
    if end == "sender gone":
        ann.gone()
    elif end == "node not reached":
        scene.multiplexer.agent_lost("it cannot be started", {"reason": "agent_not_started"})
        scene.deliver()
    assert states_of(bob) == ["idle"]


def test_clients_of_version_2_are_told_a_turn_again_that_goes_over_the_next_link() -> None:
    scene, ann = linked()
    bob = bystander(scene)
    ann.prompt()
    lose_link(scene)
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert states_of(bob) == ["running", "idle", "running", "idle"]


def test_the_sender_of_version_2_is_told_its_turn_once() -> None:
    scene, _ = linked()
    bob = bystander(scene)
    bob.prompt()
    lose_link(scene)
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert states_of(bob) == ["running", "idle"]


def test_a_prompt_that_waits_is_not_taken_for_a_client_that_has_gone() -> None:
    scene, ann = linked()
    bob = scene.join("bob")
    bob.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    ann.prompt()
    bob.prompt()
    bob.gone()
    lose_link(scene)
    assert len(scene.multiplexer._agent.waiting) == 1


def test_a_withdrawal_of_a_request_that_was_answered_takes_back_nothing_and_holds_nothing_back() -> None:
    scene, ann = linked()
    ann.prompt()
    withdrawals = [encode(method="$/cancel_request", params={"requestId": 99}), *scene.agent.inbox]
    unsent = take_unsent(scene.multiplexer._agent, withdrawals)
    assert [request.message.method for request in unsent] == ["session/prompt"]


def test_a_cancel_costs_no_more_steps_after_many_requests() -> None:
    def work(requests: int, cancels: int) -> int:
        scene, ann = linked()
        for _ in range(requests):
            ann.request("session/list")
        scene.agent.inbox += [encode(method="session/cancel", params={"sessionId": "s"})] * cancels
        return steps(lambda: take_unsent(scene.multiplexer._agent, scene.agent.inbox))

    after_one, after_many = (work(requests, 50) - work(requests, 0) for requests in (1, 200))
    assert 50 < after_many < 2 * after_one
