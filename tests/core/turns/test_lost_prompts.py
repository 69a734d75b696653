"""Prompts whose link was lost: their ends are found again by a word."""

import json
from typing import Any

from acp_gateway.core.sessions.session import Client, Request, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.lost_prompts import CLAIM_SIZE, ENDED_KEPT, RESPONSE_SIZE, claim_of, note_claim, note_end
from acp_gateway.protocol.jsonrpc import RawId, parse
from tests.kit.scene import Scene, encode


def handed_in(response: Any) -> Any:
    return response["result"]["_meta"]["acp-gateway"]


def test_an_end_is_known_after_the_unused_agent_was_stopped() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann", link="first")
    ann.new_session()
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
    assert handed_in(next(message for message in back.heard() if "result" in message))["prompts"] == []


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


def test_a_client_does_not_choose_the_claim() -> None:
    request = request_of(prompt(_meta={"acp-gateway": {"claim": "c"}}))
    note_claim(request)
    assert request.claim == claim_of("me", "l", RawId(b"1"))


def test_a_prompt_without_a_link_has_no_claim() -> None:
    request = request_of(prompt(), link=None)
    note_claim(request)
    assert request.claim is None


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
