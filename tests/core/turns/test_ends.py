"""Ends of turns in histories: what they say, and which clients are told of them."""

from typing import Any, SupportsIndex

import pytest

from acp_gateway.core.requests import ErrorObject, TurnOutcome
from acp_gateway.core.turns.ends import (
    STOP_REASON_LENGTH,
    TurnEnd,
    decode_outcome,
    described,
    encode_outcome,
    outcome_of,
    words_of,
)
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.reasons import MAX_REASON_LENGTH
from tests.core.test_same_version import opened as opened_new
from tests.core.test_same_version import turn
from tests.kit.scene import Peer, Scene, encode, opened_scene

ENDS: dict[str, Any] = {"clientCapabilities": {"_meta": {"acp-gateway": {"ends": True}}}}
NEWS: dict[str, Any] = {"clientCapabilities": {"_meta": {"acp-gateway": {}}}}


def three_turns() -> tuple[Scene, Peer]:
    """A scene after three turns: one failed, one that was done, one that was stopped."""
    scene, ann = opened_scene()
    for number, end in enumerate(({"code": 429, "message": "try again in 32 s"}, "end_turn", "cancelled")):
        ann.prompt(f"prompt {number}")
        asked = scene.agent.takes("session/prompt")
        response = {"error": end} if isinstance(end, dict) else {"result": {"stopReason": end}}
        scene.agent.say(encode(id=asked["id"], **response))
    ann.heard()
    return scene, ann


def short(messages: list[Any]) -> list[Any]:
    """Of updates their text, of news how a turn has ended."""
    found: list[Any] = []
    for message in messages:
        params = message.get("params", {})
        if message.get("method") == "session/update":
            found.append(params["update"]["content"]["text"])
        elif params.get("event") == "turn_ended":
            found.append(params.get("error", {}).get("message") or params["stopReason"])
    return found


def test_a_client_that_asks_for_ends_gets_them_at_their_places_in_the_history() -> None:
    scene, _ = three_turns()
    history = scene.join("bob", **ENDS).load()
    assert short(history) == ["prompt 0", "try again in 32 s", "prompt 1", "end_turn", "prompt 2", "cancelled"]
    ends = [message["params"] for message in history if message.get("method") == "_acp-gateway/news"]
    assert all(end["past"] and "time" in end for end in ends if end["event"] == "turn_ended")


class Moves(list[Any]):
    """A list that counts the items that it has to move."""

    moved = 0

    def pop(self, at: SupportsIndex = -1) -> Any:
        self.moved += len(self)
        return super().pop(at)

    def __delitem__(self, at: Any) -> None:
        self.moved += len(self)
        super().__delitem__(at)


@pytest.mark.parametrize("updates", [0, 1])
def test_a_history_of_many_turns_is_cut_in_one_go(updates: int) -> None:
    journal = Journal(1_000_000)
    for _ in range(1000):
        journal.extend([b"one"] * updates)
        journal.note_end(TurnOutcome("end_turn"))
        journal.turn_ended()
    journal._ends = ends = Moves(journal._ends)
    journal.shrink(0)
    assert (journal.size, len(journal.ends())) == (0, 0)
    assert ends.moved <= 1000


@pytest.mark.parametrize("params", [{}, NEWS])
def test_a_client_that_does_not_ask_for_ends_gets_the_history_without_them(params: dict[str, Any]) -> None:
    scene, _ = three_turns()
    assert short(scene.join("bob", **params).load()) == ["prompt 0", "prompt 1", "prompt 2"]


def test_the_news_of_a_turn_that_fails_say_why() -> None:
    scene, ann = opened_scene()
    bob = scene.join("bob", **NEWS)
    bob.load()
    ann.prompt()
    bob.heard()
    scene.agent.say(encode(id=scene.agent.takes("session/prompt")["id"], error={"code": 429, "message": "wait"}))
    (ended,) = bob.heard()
    assert ended["params"]["error"] == {"code": 429, "message": "wait"}
    assert ended["params"]["stopReason"] is None


def test_a_client_that_counts_is_at_the_same_place_with_ends_or_without() -> None:
    scene, _ = three_turns()
    for name, params in (("plain", {}), ("told", ENDS)):
        peer = scene.join(name, link=f"link of {name}", **params)
        peer.load()
        assert peer.seen == {"s": scene.place()}


def test_a_fork_has_the_ends_of_the_turns_that_it_begins_with() -> None:
    scene, _ = three_turns()
    journal = scene.session().journal
    copied = journal.copy(lambda message: message, "copy")
    assert copied.ends() == journal.ends()
    copied.note_end(TurnOutcome("refusal"))
    assert len(journal.ends()) == 3


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ({"result": {"stopReason": "end_turn"}}, ""),
        ({"result": {}}, ""),
        ({"result": {"stopReason": "cancelled"}}, "Stopped."),
        ({"result": {"stopReason": "new"}}, "The turn has ended: new."),
        ({"error": {"code": 429, "message": "try again in 32 s"}}, "try again in 32 s"),
        ({"error": {"code": "?", "message": "key sk-ant-api03-" + "a1B2" * 12}}, "key …"),
    ],
)
def test_an_end_of_a_turn_is_told_in_words_unless_the_turn_was_done(response: dict[str, Any], words: str) -> None:
    outcome = outcome_of(jsonrpc.parse(encode(id=1, **response)))
    assert words_of(outcome) == words
    assert decode_outcome(encode_outcome(outcome)) == outcome


def test_of_an_agent_that_has_ended_at_another_gateway_the_reason_stays_and_not_what_it_wrote() -> None:
    error = {"code": -32603, "message": "the agent has ended: my secret", "data": {"reason": "agent_ended"}}
    outcome = outcome_of(jsonrpc.parse(encode(id=1, error=error)))
    assert (outcome.cut, outcome.error) == ("agent_ended", None)


def test_a_prompt_that_another_gateway_has_not_sent_is_named_for_its_sender_alone() -> None:
    error = {
        "code": -32603,
        "message": 'too large; this prompt has waited and was not sent: "my prompt"',
        "data": {"reason": "message_too_large", "notSent": True},
    }
    assert words_of(outcome_of(jsonrpc.parse(encode(id=1, error=error)))) == "the prompt was not sent to the agent"


def test_the_texts_of_an_end_are_cut_at_a_length_and_can_always_be_stored() -> None:
    long = "é\ud800\n" * 100_000
    for response in ({"result": {"stopReason": long}}, {"error": {"code": 1, "message": long}}):
        outcome = outcome_of(jsonrpc.parse(encode(id=1, **response)))
        assert decode_outcome(encode_outcome(outcome)) == outcome
        assert len(words_of(outcome)) < 2 * max(STOP_REASON_LENGTH, MAX_REASON_LENGTH)


@pytest.mark.parametrize("stored", [None, "text", b"", b"[1]", b"\xff", b'[null,["x","y"],null]'])
def test_what_is_stored_and_no_end_of_a_turn_is_not_read(stored: object) -> None:
    assert decode_outcome(stored) is None


def test_an_end_that_was_cut_off_says_why() -> None:
    assert words_of(TurnOutcome(cut="agent_ended")) == "the agent has ended during the turn"
    assert words_of(TurnOutcome(error=ErrorObject(1, "m"))) == "m"


def test_a_client_that_comes_back_gets_the_ends_that_it_has_missed_between_the_updates() -> None:
    scene, _ = three_turns()
    bob = scene.join("bob", link="l1", **ENDS)
    bob.load()
    epoch, position = bob.seen["s"]
    back = scene.join("bob again", link="l2", **ENDS)
    back.comes_back(method="session/load", epoch=epoch, position=position - 2, connection="l1")
    assert short(back.heard()) == ["try again in 32 s", "prompt 1", "end_turn", "prompt 2", "cancelled"]


@pytest.mark.parametrize("later", [[], ["later"]])
def test_a_client_that_comes_back_gets_the_ends_of_an_agent_of_version_2(later: list[str]) -> None:
    scene, (ann,) = opened_new("ann")
    epoch, position = scene.place()
    turn(scene, ann)
    for words in later:
        scene.agent.state("agent_message_chunk", messageId="m9", content={"type": "text", "text": words})
    back = scene.join("back", link="l2", initialize=False)
    back.request("initialize", protocolVersion=1, **ENDS)
    back.comes_back(method="session/load", epoch=epoch, position=position, connection="l1")
    heard = [it.get("params", {}) for it in back.heard()]
    (at,) = (number for number, params in enumerate(heard) if params.get("event") == "turn_ended")
    assert [it["update"]["content"]["text"] for it in heard[at + 1 :] if "update" in it] == later


def test_the_end_of_a_turn_is_described_with_its_place() -> None:
    end = TurnEnd(7, 1, TurnOutcome(stop_reason="refusal"), 1234)
    assert described(end) == {"seq": 7, "nth": 1, "time": 1234, "stopReason": "refusal"}
