"""Prompts whose link was lost: the door is killed at each step of a turn, and comes back."""

import json
from typing import Any

import pytest

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, Request, Role, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.lost_prompts import (
    CLAIM_SIZE,
    ENDED_KEPT,
    RESPONSE_SIZE,
    claim_of,
    former_prompt,
    note_claim,
    note_end,
    remember_ended,
    turns_told,
    with_claim,
)
from acp_gateway.protocol.jsonrpc import RawId, parse
from tests.core.fronts import Fronts, Watcher
from tests.core.scene import Peer, Scene, encode, make_policy


def pair(third: Role | None = None, *, journals: bool = True) -> tuple[Fronts, Watcher, Watcher]:
    """Editors ann and bob at a door, which have a session."""
    ann, bob = Watcher("ann"), Watcher("bob")
    fronts = Fronts(ann, bob, *([] if third is None else [Watcher("eve", third)]), journals=journals)
    fronts.open()
    return fronts, ann, bob


# A door that is killed


@pytest.mark.parametrize("journals", [True, False])
def test_a_front_that_is_killed_in_mid_turn_goes_on_with_the_turn_and_its_answer(journals: bool) -> None:
    fronts, ann, bob = pair(journals=journals)
    number = fronts.prompt(ann)
    fronts.carry()
    fronts.speak(3)
    fronts.settle()
    fronts.speak(3)
    fronts.kill()
    fronts.speak(2)
    fronts.settle()
    assert fronts.session.turns
    assert fronts.reasons(ann, number) == []
    fronts.speak(1)
    fronts.end_turn()
    fronts.settle()
    assert fronts.reasons(ann, number) == [f"end of ann {number}"]
    assert not fronts.session.turns
    fronts.check_all()
    assert bob.seen == [f"ann {number}", *map(str, range(1, 10))]


def test_an_end_that_was_on_its_way_to_a_front_that_is_killed_is_the_answer() -> None:
    fronts, ann, _ = pair()
    number = fronts.prompt(ann)
    fronts.settle()
    fronts.speak(2)
    fronts.end_turn()
    fronts.kill()
    fronts.settle()
    assert fronts.reasons(ann, number) == [f"end of ann {number}"]
    assert not fronts.session.turns
    fronts.check_all()


def test_an_end_that_was_on_its_way_to_the_editor_is_the_answer() -> None:
    fronts, ann, _ = pair()
    number = fronts.prompt(ann)
    fronts.settle()
    fronts.end_turn()
    fronts.carry()
    fronts.kill()
    fronts.settle()
    assert fronts.reasons(ann, number) == [f"end of ann {number}"]


def test_a_prompt_that_did_not_reach_the_node_fails_with_its_text() -> None:
    fronts, ann, _ = pair()
    number = fronts.prompt(ann)
    fronts.kill()
    fronts.settle()
    (failure,) = fronts.reasons(ann, number)
    assert failure["data"] == {"reason": "gateway_restarted"}
    assert failure["message"] == f'the gateway was restarted before this prompt was done: "ann {number}"'
    assert fronts.got == []


def test_a_turn_of_a_client_that_comes_back_later_is_shown_as_running_and_answers_it() -> None:
    fronts, ann, _ = pair()
    number = fronts.prompt(ann)
    fronts.settle()
    fronts.kill()
    # Only bob is there.
    ann.incoming.clear()
    for _ in range(5):
        fronts.carry()
        fronts.arrive(fronts.watchers[1])
    (turn,) = fronts.session.turns
    assert turn.client.gone
    fronts.speak(1)
    fronts.lose(ann)
    fronts.settle()
    (turn,) = fronts.session.turns
    assert turn.client is ann.client
    fronts.end_turn()
    fronts.settle()
    assert fronts.reasons(ann, number) == [f"end of ann {number}"]
    fronts.check_all()


def test_a_turn_that_ended_before_its_client_came_back_answers_it() -> None:
    fronts, ann, bob = pair()
    number = fronts.prompt(ann)
    fronts.settle()
    fronts.kill()
    ann.incoming.clear()
    for _ in range(5):
        fronts.carry()
        fronts.arrive(bob)
    fronts.end_turn()
    fronts.carry()
    second = fronts.prompt(bob)
    fronts.carry()
    fronts.lose(ann)
    fronts.settle()
    assert fronts.reasons(ann, number) == [f"end of ann {number}"]
    fronts.end_turn()
    fronts.settle()
    assert fronts.reasons(bob, second) == [f"end of bob {second}"]
    fronts.check_all()


def test_prompts_that_waited_at_the_front_are_over_and_the_other_one_is_answered() -> None:
    fronts, ann, bob = pair()
    first, second = fronts.prompt(ann), fronts.prompt(bob)
    fronts.settle()
    fronts.kill()
    fronts.settle()
    fronts.end_turn()
    fronts.settle()
    assert (fronts.reasons(ann, first), fronts.reasons(bob, second)) == ([f"end of ann {first}"], ["cancelled"])
    assert fronts.got == [f"ann {first}"]


def test_a_front_that_is_killed_three_times_in_a_turn_answers_once() -> None:
    fronts, ann, _ = pair(Role.OBSERVER)
    number = fronts.prompt(ann)
    fronts.settle()
    for _ in range(3):
        fronts.speak(2)
        fronts.kill()
        fronts.settle()
    fronts.end_turn()
    fronts.settle()
    assert fronts.reasons(ann, number) == [f"end of ann {number}"]
    fronts.check_all()


def test_a_permission_is_answered_once_after_the_restart() -> None:
    fronts, ann, bob = pair()
    number = fronts.prompt(ann)
    fronts.settle()
    fronts.ask()
    fronts.settle()
    assert (len(ann.questions), len(bob.questions)) == (1, 1)
    fronts.kill()
    fronts.settle()
    assert (len(ann.questions), len(bob.questions)) == (1, 1)
    fronts.choose(bob)
    fronts.settle()
    assert ann.questions == []
    (decision,) = fronts.decided
    assert decision["result"]["outcome"]["optionId"] == "yes"
    fronts.end_turn()
    fronts.settle()
    assert fronts.reasons(ann, number) == [f"end of ann {number}"]


def test_a_turn_that_was_taken_over_can_be_cancelled() -> None:
    fronts, ann, _ = pair()
    number = fronts.prompt(ann)
    fronts.settle()
    fronts.kill()
    fronts.settle()
    fronts.do(ann, ann.conversation.from_editor([encode(method="session/cancel", params={"sessionId": "s"})]))
    cancel = encode(method="$/cancel_request", params={"requestId": number})
    fronts.do(ann, ann.conversation.from_editor([cancel]))
    told = [json.loads(text) for text in fronts.up]
    assert [message["method"] for message in told] == ["session/cancel", "$/cancel_request"]
    assert told[1]["params"] == {"requestId": -1}


# At the gateway that has the agent


def node() -> tuple[Scene, Peer]:
    """A scene whose client is a gateway in front of it, with a session and a prompt."""
    scene = Scene(agentCapabilities={"loadSession": True})
    front = scene.join("door", link="far1")
    front.new_session()
    sent = request_of(encode(id=7, method="session/prompt", params={"sessionId": "s", "prompt": []}))
    sent.claim = "c1"
    front.say(with_claim(sent))
    return scene, front


def handed(peer: Peer) -> Any:
    """Return the answer that a gateway in front got with the session."""
    (meta,) = [message["result"]["_meta"] for message in peer.heard() if "result" in message]
    return meta["acp-gateway"]


def handed_in(response: Any) -> Any:
    return response["result"]["_meta"]["acp-gateway"]


def test_an_agent_does_not_get_the_claim() -> None:
    scene, _ = node()
    assert list(scene.agent.takes("session/prompt")["params"]) == ["sessionId", "prompt"]


def test_turns_and_waiting_prompts_are_handed_over_in_order_under_ids_below_zero() -> None:
    scene, front = node()
    asked = scene.agent.takes("session/prompt")
    second = front.prompt("second")
    other = scene.join_session("another", link="x")
    third = other.prompt("third")
    again = scene.join("door again", link="far2")
    again.comes_back(connection="far1", takesOver=True)
    told = handed(again)
    assert told["turns"] == [
        {"id": -1, "claim": "c1"},
        {"id": -2, "claim": claim_of("me", "far1", RawId(b"%d" % second))},
    ]
    assert (told["ended"], told["start"]) == ([], 0)
    # The former link is over.
    assert [client.name for client in scene.ended_links] == ["door"]
    scene.agent.answer(asked, stopReason="end_turn")
    # It gets the text of the next prompt, which only the former gateway had.
    ended, chunk = again.heard()
    assert ended == {"jsonrpc": "2.0", "id": -1, "result": {"stopReason": "end_turn"}}
    assert chunk["params"]["update"]["content"]["text"] == "second"
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert -2 in [message.get("id") for message in again.heard()]
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert other.heard()[-1]["id"] == third
    assert front.heard() == [] or all("id" not in message for message in front.heard())


def test_ends_are_told_with_their_claims_to_the_same_identity_alone() -> None:
    scene, _ = node()
    scene.agent.answers("session/prompt", stopReason="max_tokens")
    again = scene.join("door again", link="far2")
    again.comes_back(connection="far1", takesOver=True)
    (ended,) = handed(again)["ended"]
    assert (ended["claim"], ended["response"]["result"]) == ("c1", {"stopReason": "max_tokens"})
    scene.session().ended["c1"] = scene.session().ended["c1"]._replace(identity="you")
    again.comes_back(connection="far1", takesOver=True)
    assert handed(again)["ended"] == []


def test_a_turn_is_handed_over_by_its_claim_where_the_link_is_not_known() -> None:
    scene, front = node()
    again = scene.join("door again", link="far2")
    again.comes_back(takesOver=True, claims=["c1", "c2"])
    assert handed(again)["turns"] == [{"id": -1, "claim": "c1"}]
    # The former gateway goes on, and waits for no answer.
    assert scene.ended_links == []
    assert front.heard()[-1]["error"]["data"] == {"reason": "outage"}


def test_a_prompt_of_a_client_without_a_link_is_handed_over_by_its_claim() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    plain = scene.join("plain")
    plain.new_session()
    meta = {"acp-gateway": {"claim": "c1"}}
    plain.send(id=7, method="session/prompt", params={"_meta": meta, "sessionId": "s", "prompt": []})
    again = scene.join("door", link="far2")
    again.comes_back(takesOver=True, claims=["c1"])
    assert handed(again)["turns"] == [{"id": -1, "claim": "c1"}]


def test_a_gateway_that_has_the_session_asks_for_turns_alone() -> None:
    scene, front = node()
    scene.agent.update("one")
    front.heard()
    front.comes_back(takesOver=True, claims=["other"])
    assert [message.get("method") for message in front.heard()] == [None]


@pytest.mark.parametrize(("identity", "role", "guest"), [("you", Role.CONTROLLER, True), ("me", Role.OBSERVER, False)])
def test_only_a_controller_of_the_same_identity_takes_turns_over(identity: str, role: Role, guest: bool) -> None:
    scene, _ = node()
    only = "s" if guest else None
    again = scene.join("door", identity, role, only=only, guest=guest, link="far2")
    again.comes_back(connection="far1", takesOver=True, claims=["c1"])
    assert handed(again) == {"prompts": [], "questions": []}
    assert scene.ended_links == []


def test_an_agent_of_one_connection_is_stopped_where_that_was_of_the_former_link() -> None:
    registry = Registry("me")
    scene = Scene(make_policy(shared=False), registry, agentCapabilities={"loadSession": True})
    front = scene.join("door", link="far1")
    front.new_session()
    front.prompt()
    other = Scene(make_policy(shared=False), registry, agentCapabilities={"loadSession": True})
    again = other.join("door again", link="far2")
    again.comes_back(connection="elsewhere", takesOver=True)
    assert "is open in another connection" in again.hears()["error"]["message"]
    again.comes_back(connection="far1", takesOver=True)
    assert other.stopped == [scene.multiplexer.agent_handle]
    scene.retire()
    other.sessions_freed()
    assert other.agent.takes("session/load")["params"]["sessionId"] == "s"


def test_an_end_is_known_after_the_unused_agent_was_stopped() -> None:
    scene, _ = node()
    scene.agent.answers("session/prompt", stopReason="refusal")
    ann = scene.join_session("ann", link="first")
    own = ann.prompt()
    scene.agent.answers("session/prompt", stopReason="refusal")
    for peer in scene.peers.values():
        peer.gone()
    scene.stop_agent()
    back = scene.join("ann", link="second")
    back.comes_back(connection="first", prompts=[own])
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    response, answer = [message for message in back.heard() if "result" in message]
    assert handed_in(response)["prompts"] == [own]
    assert answer == {"jsonrpc": "2.0", "id": own, "result": {"stopReason": "refusal"}}


def test_a_prompt_under_an_earlier_id_does_not_get_the_response_of_the_earlier_prompt() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann", link="first")
    ann.new_session()
    ann.say(prompt())
    scene.agent.answers("session/prompt", stopReason="end_turn")
    scene.lose_agent()
    ann.say(prompt())
    # The agent does not get it: its new process is not initialized yet.
    ann.gone()
    back = scene.join("ann", link="second")
    back.comes_back(connection="first", prompts=[1])
    scene.agent.answers("initialize", **scene.welcome)
    scene.agent.answers("session/load")
    response = next(message for message in back.heard() if "result" in message)
    assert handed_in(response)["prompts"] == []


# Claims and responses


def request_of(text: bytes, link: str | None = "l") -> Request:
    return Request(Client("ann", SessionReach("me"), link=link), parse(text))


def prompt(**params: Any) -> bytes:
    return encode(id=1, method="session/prompt", params={"sessionId": "s", "prompt": []} | params)


def test_a_claim_tells_identity_link_and_id_apart() -> None:
    claims = {
        claim_of(*of)
        for of in [
            ("me", "l", RawId(b"1")),
            ("me", "l", RawId(b'"1"')),
            ("me", "k", RawId(b"1")),
            ("you", "l", RawId(b"1")),
            ("me", "l", RawId(rb'"\ud800"')),
        ]
    }
    assert len(claims) == 5
    assert claim_of("me", "l", RawId(rb'"\u0041"')) == claim_of("me", "l", RawId(b'"A"'))
    assert all(len(claim) <= CLAIM_SIZE for claim in claims)


@pytest.mark.parametrize("claim", [5, None, "c" * (CLAIM_SIZE + 1)])
def test_a_claim_of_another_form_is_replaced(claim: Any) -> None:
    request = request_of(prompt(_meta={"acp-gateway": {"claim": claim}}))
    note_claim(request)
    assert request.claim == claim_of("me", "l", RawId(b"1"))


def test_a_prompt_without_a_link_has_no_claim_and_passes_as_it_is() -> None:
    request = request_of(prompt(), link=None)
    note_claim(request)
    assert request.claim is None
    assert with_claim(request) == prompt()


def test_a_claim_is_put_beside_what_a_client_has_in_its_meta() -> None:
    request = request_of(prompt(_meta={"own": 1}))
    request.claim = "c"
    sent = json.loads(with_claim(request))
    assert sent["params"]["_meta"] == {"own": 1, "acp-gateway": {"claim": "c"}}


def test_a_few_responses_are_remembered_and_large_ones_in_short() -> None:
    session = Session("agent", "s", "me", Journal(1000))
    large = "x" * RESPONSE_SIZE
    bodies: list[dict[str, Any]] = [
        {"result": {"stopReason": "end_turn", "_meta": large}},
        {"result": {"other": large}},
        {"error": {"code": -32000, "message": "no", "data": large}},
    ]
    for number, body in enumerate(bodies):
        request = request_of(prompt())
        request.claim = f"c{number}"
        note_end(session, request, parse(encode(id=1, **body)))
    ended = [json.loads(entry.response) for entry in session.ended.values()]
    assert ended[0]["result"] == ended[1]["result"] == {"stopReason": "end_turn"}
    assert "no" in ended[2]["error"]["message"]
    for number in range(3, ENDED_KEPT + 2):
        request = request_of(prompt())
        request.claim = f"c{number}"
        note_end(session, request, parse(encode(id=1, result={})))
    assert list(session.ended) == [f"c{number}" for number in range(2, ENDED_KEPT + 2)]


# What a gateway in front is told


@pytest.mark.parametrize("told", [b"5", b"[5]", b"[{}]", b'[{"id":1}]', b'[{"id":"x"}]', b"[" + b"1," * 70_000 + b"1]"])
def test_other_values_than_turns_are_ignored(told: bytes) -> None:
    assert list(turns_told({"turns": told})) == []


def test_a_turn_may_have_no_claim() -> None:
    told = b'[{"id":-1},{"id":-2,"claim":"%b"},{"id":-3,"claim":"c"}]' % (b"c" * (CLAIM_SIZE + 1))
    assert list(turns_told({"turns": told})) == [(-1, None), (-2, None), (-3, "c")]


def test_a_turn_that_is_known_is_not_taken_over_again() -> None:
    fronts, ann, _ = pair()
    fronts.prompt(ann)
    fronts.settle()
    fronts.kill()
    fronts.settle()
    fronts.front._turns.take_over(fronts.session, {"turns": b'[{"id":-1}]'})
    assert len(fronts.session.turns) == 1


@pytest.mark.parametrize(
    "entry",
    [
        b"5",
        b"{}",
        b'{"claim":"c"}',
        b'{"claim":"%b","response":{"id":1,"result":{}}}' % (b"c" * (CLAIM_SIZE + 1)),
        b'{"claim":"c","response":5}',
        b'{"claim":"c","response":{"method":"x"}}',
        b'{"claim":"c","response":{"id":1,"result":"%b"}}' % (b"x" * 2 * RESPONSE_SIZE),
    ],
)
def test_what_is_not_an_end_is_ignored(entry: bytes) -> None:
    session = Session("agent", "s", "me", Journal(1000))
    remember_ended(session, {"ended": b"[%b]" % entry})
    assert session.ended == {}


def test_a_former_prompt_is_of_no_client_that_is_there() -> None:
    request = former_prompt(Session("agent", "s", "me", Journal(1000)), None)
    assert request.client.gone
    assert request.abandoned
