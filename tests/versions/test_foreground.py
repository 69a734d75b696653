"""When the turns of an agent of version 2 begin and end."""

from collections.abc import Mapping

from acp_gateway.versions.foreground import END_SIZE, Foreground, TurnEnded

RUNNING = {"state": b'"running"'}
WAITING = {"state": b'"requires_action"'}
IDLE = {"state": b'"idle"'}
ENDED = IDLE | {"stopReason": b'"end_turn"'}
REASON = {"stopReason": b'"end_turn"'}


def told(it: Foreground[str], *updates: Mapping[str, bytes]) -> list[str | TurnEnded[str]]:
    """Return the ends of turns, and the state after each other update."""
    return [it.updated(update) or it.state for update in updates]


def test_a_turn_begins_waits_and_ends() -> None:
    it: Foreground[str] = Foreground()
    it.sent("p")
    assert it.has_prompts
    assert it.waits_for_acceptance
    assert it.accepted("p", "m") is None
    assert it.has_accepted("p")
    assert told(it, RUNNING, WAITING, WAITING, RUNNING) == [
        "running",
        "requires_action",
        "requires_action",
        "running",
    ]
    assert told(it, ENDED, ENDED, IDLE) == [TurnEnded(("p",), REASON), "idle", "idle"]
    assert not it.has_prompts


def test_a_turn_may_begin_without_a_prompt_and_by_waiting() -> None:
    it: Foreground[str] = Foreground()
    assert told(it, WAITING, ENDED) == ["requires_action", TurnEnded((), REASON)]
    assert it.state == "idle"


def test_a_prompt_that_is_not_accepted_does_not_end_with_the_turn() -> None:
    it: Foreground[str] = Foreground()
    it.sent("p")
    it.sent("q")
    it.accepted("p", "m")
    assert told(it, RUNNING, ENDED) == ["running", TurnEnded(("p",), REASON)]
    it.refused("q")
    assert not it.has_prompts
    assert it.accepted("q", "n") is None
    assert not it.has_accepted("q")


def test_a_prompt_may_be_accepted_after_its_turn() -> None:
    it: Foreground[str] = Foreground()
    it.sent("p")
    it.user_said("m")
    told(it, RUNNING, ENDED)
    it.user_said("m")
    assert it.accepted("p", "m") == TurnEnded(("p",), REASON)


def test_text_and_a_reason_end_a_turn_that_was_not_told() -> None:
    it: Foreground[str] = Foreground()
    it.sent("p")
    it.accepted("p", None)
    it.agent_said()
    assert told(it, IDLE) == ["idle"]
    assert told(it, ENDED) == [TurnEnded(("p",), REASON)]


def test_a_large_end_is_left_out_and_a_turn_can_be_cut() -> None:
    it: Foreground[str] = Foreground()
    it.sent("p")
    it.accepted("p", "m")
    assert told(it, RUNNING, ENDED | {"usage": b"9" * (END_SIZE + 1), "_meta": b"{}"})[1] == TurnEnded(("p",), REASON)
    it.sent("q")
    it.accepted("q", "n")
    it.updated(RUNNING)
    assert it.cut() == ("q",)
    assert it.state == "idle"
    assert not it.has_prompts
