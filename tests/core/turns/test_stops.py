"""Stops: a `session/cancel` that comes late ends no later turn, and one for the present turn does."""

from typing import Any

import pytest

from acp_gateway.core.turns.stops import JUST_ENDED, REACTION
from tests.core.test_translated_clients import join_new
from tests.kit.scene import Peer, Scene

COLLEAGUE = {"identity": "gus", "only": "s", "guest": True}


class Stopping:
    """A session of ann's in which a guest works as well."""

    def __init__(self, *, new: bool = False) -> None:
        self.scene = Scene()
        self.ann = join_new(self.scene, "ann", link="ann") if new else self.scene.join("ann", link="ann")
        own = self.ann.request("session/new", cwd="/srv", mcpServers=[])
        self.scene.agent.answers("session/new", sessionId="s")
        assert self.ann.heard()[-1]["id"] == own
        self.gus = self.scene.join_session("gus", **COLLEAGUE, link="gus")
        self.scene.pass_time(100)

    def prompt(self, peer: Peer) -> tuple[int, Any]:
        """Have the agent work on a prompt; return its id for the client and what the agent got."""
        return peer.prompt(), self.scene.agent.takes("session/prompt")

    def after_turn(self) -> int:
        """End a turn of ann's, after which one of the guest's begins; return the id of her prompt."""
        own, asked = self.prompt(self.ann)
        self.gus.prompt()
        self.scene.agent.answer(asked, stopReason="end_turn")
        self.asked = self.scene.agent.takes("session/prompt")
        return own

    def cancel(self, peer: Peer, prompts: list[Any] | None = None, seen: Any = None) -> bool:
        """Send a cancel that says what it is meant for; return True if the agent gets it."""
        said = {} if prompts is None else {"prompts": prompts}
        said |= {} if seen is None else {"epoch": seen[0], "position": seen[1]}
        meta = {"_meta": {"acp-gateway": said}} if said else {}
        peer.send(method="session/cancel", params={"sessionId": "s", **meta})
        heard = self.scene.agent.heard()
        assert all(it["method"] == "session/cancel" and not it["params"].get("_meta") for it in heard)
        return bool(heard)


@pytest.mark.parametrize("new", [False, True])
def test_a_cancel_whose_prompts_are_over_ends_no_later_turn(*, new: bool) -> None:
    there = Stopping(new=new)
    own, asked = there.prompt(there.ann)
    assert there.cancel(there.ann, [own])
    there.scene.agent.answer(asked, stopReason="cancelled")
    over = there.after_turn()
    there.scene.pass_time(1000)
    place = there.scene.place()
    assert not there.cancel(there.ann, [own, over], place)
    assert there.scene.notes == ["dropped a session/cancel of ann: what it was meant for is over"]
    # Nor one of her own.
    there.scene.agent.answer(there.asked, stopReason="end_turn")
    there.prompt(there.ann)
    assert not there.cancel(there.ann, [own, over], place)


def test_a_cancel_ends_anothers_turn_once_its_client_has_seen_that_or_no_other_has_just_ended() -> None:
    there = Stopping()
    there.after_turn()
    before = there.scene.place()[0], there.scene.place()[1] - 1
    there.scene.pass_time(100.5)
    assert not there.cancel(there.ann)
    # Too soon for a person that has seen the present turn begin, and then not any more.
    assert not there.cancel(there.ann, [], there.scene.place())
    there.scene.pass_time(100 + REACTION)
    assert not there.cancel(there.ann)
    assert not there.cancel(there.ann, [], before)
    assert there.cancel(there.ann, [], there.scene.place())
    there.scene.pass_time(100 + JUST_ENDED)
    assert there.cancel(there.ann)


def test_a_viewer_stops_the_turn_that_it_has_seen_begin_and_no_later_one() -> None:
    there = Stopping()
    before = there.scene.place()
    there.prompt(there.gus)
    nothing: list[Any] = []
    for prompts in (nothing, None):
        assert not there.cancel(there.ann, prompts, before)
        assert not there.cancel(there.ann, prompts, ("another epoch", 1000))
        assert there.cancel(there.ann, prompts, there.scene.place())


def test_a_viewer_stops_an_agent_that_says_nothing_of_its_turn() -> None:
    there = Stopping()
    there.gus.request("session/prompt", sessionId="s", prompt=[])
    there.scene.agent.heard()
    assert not there.cancel(there.ann, [], there.scene.place())
    there.scene.pass_time(100 + JUST_ENDED)
    assert there.cancel(there.ann, [], there.scene.place())


@pytest.mark.parametrize("says", [False, True])
def test_a_cancel_for_a_prompt_that_waits_behind_anothers_turn_takes_that_back_alone(*, says: bool) -> None:
    there = Stopping()
    there.prompt(there.gus)
    waits, others = there.ann.prompt(), there.gus.prompt()
    there.ann.heard()
    assert not there.cancel(there.ann, [waits] if says else None)
    assert [it["id"] for it in there.ann.heard()] == [waits]
    assert others not in [it.get("id") for it in there.gus.heard()]
    assert there.cancel(there.ann)


def test_a_viewer_that_is_shown_the_turn_stops_that_though_a_prompt_of_its_own_waits() -> None:
    there = Stopping()
    there.prompt(there.gus)
    there.ann.prompt()
    assert there.cancel(there.ann, None, there.scene.place())


def test_a_cancel_between_turns_reaches_an_agent_that_works_by_itself() -> None:
    there = Stopping()
    assert there.cancel(there.ann, [], there.scene.place())
