"""Kept prompts: those with a time, and those that the end of an agent or a gateway has left; each is sent once."""

from dataclasses import replace
from typing import Any

import pytest

from acp_gateway.core.permissions.consent import SEND
from acp_gateway.core.requests import Exceeded, KeptPrompt, QueuedPrompt
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from acp_gateway.core.turns.queue import NOT_WAITING, QueueChange, shown_queue
from acp_gateway.core.turns.queued_prompts import left
from acp_gateway.gateway.kept.prompts import LOST, due_prompts, hold_kept, remove_kept
from acp_gateway.protocol.methods import REQUEST_PERMISSION
from tests.kit.scene import Peer, Scene, Shelf, make_policy

NOW = 1_800_000_000_000
HOUR = 3_600_000
REOPENS = {"agentCapabilities": {"loadSession": True}}


class Keeping:
    """A session of ann's in a gateway that writes prompts to its disk."""

    def __init__(self, welcome: Any = REOPENS, **options: Any) -> None:
        self.shelf = Shelf()
        self.shelf.writes_prompts = True
        self.registry = Registry("me", self.shelf, "run")
        self.scene = Scene(make_policy(**options), self.registry, **welcome)
        self.scene.pass_time(0.0, NOW)
        self.ann = self.scene.join("ann", clientCapabilities={"_meta": {"acp-gateway": {"queue": True}}})
        self.ann.new_session()
        self.ann.client.sender = "ann's"
        self.session = self.scene.session()

    def prompt(self, text: str, peer: Peer | None = None, **queue: Any) -> int:
        peer = peer or self.ann
        meta = {"_meta": {"acp-gateway": {"queue": queue}}} if queue else {}
        return peer.request("session/prompt", sessionId="s", prompt=[{"type": "text", "text": text}], **meta)

    def release(self, key: str, peer: Peer | None = None) -> int:
        return self.prompt("", peer, release=key)

    def runs(self) -> Any:
        """Begin a turn."""
        self.prompt("first")
        return self.scene.agent.takes("session/prompt")

    def answers(self, peer: Peer | None = None) -> dict[int, Any]:
        """The responses that have come since, without what is told of the queue."""
        heard = (peer or self.ann).heard()
        return {it["id"]: it.get("result", it.get("error")) for it in heard if "method" not in it}

    @property
    def states(self) -> list[tuple[str, str]]:
        """Text and state of all that waits."""
        shown = shown_queue(self.session, self.ann.client.reach, controls=True)
        return [(it.prompt.text, it.prompt.state) for it in shown]

    @property
    def stored(self) -> list[tuple[str, bool]]:
        """Text of each prompt on the disk, and whether the agent may have it."""
        return [(prompt.shown.text, sent) for prompt, sent in self.shelf.prompts.values()]

    def key(self, text: str = "later") -> str:
        return next(shown.key for shown in self.session.shown_prompts if shown.text == text)

    def sent(self) -> list[str]:
        """Texts of the prompts that the agent has got since."""
        return [
            it["params"]["prompt"][0]["text"] for it in self.scene.agent.heard() if it["method"] == "session/prompt"
        ]

    def runs_beyond(self) -> Any:
        """Begin a turn that a person has allowed beyond a limit."""
        self.prompt("first")
        (asked,) = [it for it in self.ann.heard() if it.get("method") == REQUEST_PERMISSION]
        self.ann.choose(asked, SEND)
        return self.scene.agent.takes("session/prompt")


class Spending:
    """A limit that is reached."""

    def exceeded(self, account: str) -> Exceeded | None:
        return Exceeded("cost_per_identity", "5 USD", "5.10 USD")

    def allow_more(self, account: str) -> None: ...


@pytest.fixture
def there() -> Keeping:
    return Keeping()


# Prompts with a time


def test_a_prompt_with_a_time_is_answered_once_it_is_on_the_disk_and_the_agent_gets_nothing(there: Keeping) -> None:
    own = there.prompt("later", at="in 2 h")
    assert (there.stored, there.answers()) == ([("later", False)], {})
    there.scene.write_prompts()
    waits = {"promptId": there.key(), "due": "2027-01-15T10:00:00Z"}
    assert there.answers() == {own: {"stopReason": "cancelled", "_meta": {"acp-gateway": {"waits": waits}}}}
    assert (there.states, there.stored, there.sent()) == ([("later", "timed")], [("later", False)], [])


@pytest.mark.parametrize(
    ("text", "queue", "code", "why"),
    [
        ("x", {"at": "soon"}, -32602, "is not a time"),
        ("x", {"at": "limit"}, -32602, "no limit"),
        ("x" * 2000, {"at": "in 1 h"}, -32600, "queued_bytes_per_session (1000)"),
        ("x", {"release": "none"}, -32600, NOT_WAITING),
    ],
)
def test_a_prompt_that_cannot_wait_is_refused(text: str, queue: dict[str, Any], code: int, why: str) -> None:
    there = Keeping(queued_bytes_per_session=1000)
    own = there.prompt(text, **queue)
    answer = there.answers()[own]
    assert (answer["code"], why in answer["message"]) == (code, True)
    assert (there.states, there.stored, there.sent()) == ([], [], [])


def test_kept_prompts_count_in_the_limits_of_their_session_and_identity() -> None:
    for limit in ("queued_prompts_per_session", "queued_prompts_per_identity", "max_queued_prompts"):
        there = Keeping(**{limit: 1})
        there.prompt("later", at="in 1 h")
        there.scene.write_prompts()
        there.answers()
        own = there.prompt("another", at="in 1 h")
        assert limit in there.answers()[own]["message"]
    for limit, most in (("queued_bytes_per_identity", 400), ("memory_limit", 1600)):
        there = Keeping(**{limit: most})
        own = there.prompt("x" * 400, at="in 1 h")
        assert limit in there.answers()[own]["message"]


def test_guests_and_observers_keep_and_release_nothing(there: Keeping) -> None:
    guest = there.scene.join_session("guest", "guest-1", only="s", guest=True)
    watcher = there.scene.join_session("watcher", role=Role.OBSERVER)
    there.prompt("later", at="in 1 h")
    there.scene.write_prompts()
    for peer in (guest, watcher):
        peer.heard()
        own = there.prompt("x", peer, at="in 1 h"), there.release(there.key(), peer)
        answers = there.answers(peer)
        assert [answers[each]["code"] for each in own] == [-32600 if peer is guest else -32601] * 2
    assert [it.may_change for it in shown_queue(there.session, guest.client.reach, controls=True)] == [False]
    assert there.states == [("later", "timed")]


def test_only_what_is_due_is_due(there: Keeping) -> None:
    for text in ("in 1 h", "in 2 h"):
        there.prompt(text, at=text)
    key = there.key("in 1 h")
    assert due_prompts(there.registry.keeping, NOW + HOUR - 1) == []
    assert due_prompts(there.registry.keeping, NOW + HOUR) == [(there.session, key)]
    hold_kept(there.registry, there.session, key, "no token")
    assert due_prompts(there.registry.keeping, NOW + 3 * HOUR) == [(there.session, there.key("in 2 h"))]


# Sending


def test_a_released_prompt_is_marked_on_the_disk_before_the_agent_gets_it_once(there: Keeping) -> None:
    there.prompt("later", at="in 1 h")
    there.scene.write_prompts()
    there.answers()
    key = there.key()
    own, again = there.release(key), there.release(key)
    assert (there.stored, there.sent()) == ([("later", True)], [])
    assert there.answers()[again]["message"] == NOT_WAITING
    there.scene.write_prompts()
    asked = there.scene.agent.takes("session/prompt")
    assert asked["params"]["prompt"] == [{"type": "text", "text": "later"}]
    assert asked["params"].get("_meta", {}) == {}
    assert there.stored == [("later", True)]
    there.scene.agent.answer(asked, stopReason="end_turn")
    assert there.answers()[own] == {"stopReason": "end_turn"}
    assert (there.stored, there.states) == ([], [])


def test_a_prompt_released_during_a_turn_is_the_last_of_the_queue(there: Keeping) -> None:
    there.prompt("later", at="in 1 h")
    running = there.runs()
    there.prompt("queued")
    there.release(there.key())
    assert there.states == [("queued", "queued"), ("later", "queued")]
    for text in ("queued", "later"):
        there.scene.agent.answer(running, stopReason="end_turn")
        assert there.sent() == []
        there.scene.write_prompts()
        running = there.scene.agent.takes("session/prompt")
        assert running["params"]["prompt"][0]["text"] == text


def test_a_prompt_that_is_removed_while_it_is_marked_is_not_sent_and_the_next_one_is(there: Keeping) -> None:
    there.ann.client.via = "browser"
    running = there.runs()
    own = there.prompt("queued")
    there.prompt("next")
    key = there.key("queued")
    there.scene.agent.answer(running, stopReason="end_turn")
    change = QueueChange(key, "edit", "other")
    assert there.scene.multiplexer.change_queue(there.ann.client, there.session, change) == NOT_WAITING
    assert there.scene.multiplexer.change_queue(there.ann.client, there.session, QueueChange(key, "remove")) is None
    there.scene.deliver()
    assert there.answers()[own]["stopReason"] == "cancelled"
    there.scene.write_prompts()
    there.scene.write_prompts()
    assert (there.sent(), there.stored) == (["next"], [("next", True)])


def test_a_prompt_of_a_sender_that_may_not_send_any_more_waits_for_a_person() -> None:
    there = Keeping()
    policy = replace(make_policy(), objection_to=lambda sender, _: "revoked" if sender == "bob's" else "")
    there.scene.multiplexer.set_policy(policy)
    bob = there.scene.join_session("bob")
    bob.client.sender = "bob's"
    bob.heard()
    running = there.runs()
    refused = there.prompt("bob", bob)
    there.prompt("ann")
    there.scene.agent.answer(running, stopReason="end_turn")
    there.scene.write_prompts()
    assert (there.sent(), there.states) == (["ann"], [("bob", "held")])
    assert "revoked" in there.answers(bob)[refused]["message"]
    assert there.session.kept[there.key("bob")].shown.why == "revoked"


# Ends


@pytest.mark.parametrize("ends", ["lose_agent", "end_turns"])
def test_what_waits_for_a_turn_stays_after_the_end_of_the_agent_and_of_the_gateway(there: Keeping, ends: str) -> None:
    guest = there.scene.join_session("guest", "guest-1", only="s", guest=True)
    there.runs()
    own = there.prompt("held"), there.prompt("auto", auto=True)
    there.prompt("guest's", guest)
    there.answers()
    getattr(there.scene, ends)()
    assert there.states[-2:] == [("held", "held"), ("auto", "timed")]
    assert there.stored == [("held", False), ("auto", False)]
    assert due_prompts(there.registry.keeping, NOW) == [(there.session, there.key("auto"))]
    if ends == "lose_agent":
        told = there.answers()[own[0]]
        assert told["data"]["waits"] == {"promptId": there.key("held")}
        assert told["data"]["notSent"]
        assert remove_kept(there.registry, there.session, there.key("held"))
        assert not remove_kept(there.registry, there.session, "none")
        assert there.stored == [("auto", False)]


def test_what_waits_stays_if_its_client_is_sent_away(there: Keeping) -> None:
    there.runs()
    bob = there.scene.join_session("bob")
    there.prompt("bob", bob)
    bob.dismissed()
    assert there.states == [("bob", "held")]


def test_a_removed_prompt_is_off_the_disk_when_that_is_answered(there: Keeping) -> None:
    there.prompt("later", at="in 1 h")
    there.scene.write_prompts()
    there.answers()
    own = there.prompt("", remove=there.key())
    assert (there.states, there.stored, there.answers()) == ([], [], {})
    there.scene.write_prompts()
    assert there.answers()[own]["stopReason"] == "cancelled"
    (event,) = [it for it in there.scene.audit_events if it.name == "queue_changed"]
    assert (event.details["action"], event.details["sender"]) == ("remove", "me")


def test_a_session_that_is_deleted_keeps_nothing(there: Keeping) -> None:
    there.prompt("later", at="in 1 h")
    there.scene.write_prompts()
    there.registry.remove(there.session)
    assert (there.registry.keeping, there.session.kept) == ([], {})


@pytest.mark.parametrize(
    ("due", "auto", "sent", "state", "until"),
    [
        (None, False, False, "held", None),
        (None, True, False, "timed", NOW),
        (NOW + 1, False, False, "timed", NOW + 1),
        (NOW, False, False, "held", None),
        (NOW, True, False, "timed", NOW),
        (NOW + 1, True, True, "lost", None),
        (None, True, True, "lost", None),
    ],
)
def test_what_becomes_of_a_prompt_after_an_end_follows_what_was_chosen(
    due: int | None, auto: bool, sent: bool, state: str, until: int | None
) -> None:
    shown = QueuedPrompt("k", NOW - HOUR, "x", whole=True, attached=0, auto=auto, due=due)
    after = left(KeptPrompt(shown, "me", "", b""), NOW, was_sent=sent).shown
    assert (after.state, after.due) == (state, until)


def test_a_lost_prompt_is_shown_and_never_sent(there: Keeping) -> None:
    prompt = KeptPrompt(QueuedPrompt("k", NOW, "lost", whole=True, attached=0, auto=True), "me", "", b"")
    there.registry.keep_prompt(there.session, left(prompt, NOW, was_sent=True))
    own = there.release("k")
    assert there.answers()[own]["message"] == LOST
    assert (there.states, due_prompts(there.registry.keeping, NOW + HOUR)) == ([("lost", "lost")], [])


# What clients are told


def test_clients_are_told_of_kept_prompts_and_those_that_asked_that_prompts_can_wait(there: Keeping) -> None:
    there.prompt("later", at="in 1 h")
    (news,) = [it["params"] for it in there.ann.heard() if it.get("method") == "_acp-gateway/news"]
    assert (news["count"], news["prompts"]) == (
        1,
        [{"identity": "me", "text": "later", "promptId": there.key(), "state": "timed", "due": NOW + HOUR}],
    )
    late = there.scene.join("late", initialize=False)
    late.request("initialize", protocolVersion=1, clientCapabilities={"_meta": {"acp-gateway": {"queue": True}}})
    assert late.hears()["result"]["agentCapabilities"]["_meta"] == {"acp-gateway": {"queue": True}}
    assert news["prompts"] in [it["params"].get("prompts") for it in late.load() if "params" in it]


def test_a_prompt_that_waits_for_consent_is_not_marked_as_sent_and_stays_after_the_end_of_the_agent() -> None:
    there = Keeping(spending=Spending())
    running = there.runs_beyond()
    there.prompt("queued")
    there.scene.agent.answer(running, stopReason="end_turn")
    there.scene.write_prompts()
    assert (there.sent(), there.stored) == ([], [("queued", False)])
    there.scene.lose_agent()
    assert (there.states, there.stored) == ([("queued", "held")], [("queued", False)])


def test_a_prompt_that_a_person_allows_beyond_a_limit_is_marked_and_sent_once() -> None:
    there = Keeping(spending=Spending())
    running = there.runs_beyond()
    for text in ("queued", "next"):
        there.prompt(text)
    there.ann.heard()
    there.scene.agent.answer(running, stopReason="end_turn")
    (asked,) = [it for it in there.ann.heard() if it.get("method") == REQUEST_PERMISSION]
    there.ann.choose(asked, SEND)
    assert (there.sent(), there.stored[0]) == ([], ("queued", True))
    there.prompt("another")
    there.scene.write_prompts()
    assert there.sent() == ["queued"]


def change(there: Keeping, text: str, action: Any) -> str | None:
    """Change a prompt that waits for a turn."""
    why = there.scene.multiplexer.change_queue(there.ann.client, there.session, QueueChange(there.key(text), action))
    there.scene.deliver()
    return why


def test_of_two_prompts_that_are_marked_together_the_second_one_follows_the_first(there: Keeping) -> None:
    there.prompt("later", at="in 1 h")
    there.scene.write_prompts()
    there.release(there.key())
    there.prompt("next")
    assert change(there, "next", "send_now") is None
    there.scene.agent.takes("session/cancel")
    there.scene.write_prompts()
    running = there.scene.agent.takes("session/prompt")
    first = running["params"]["prompt"][0]["text"]
    there.scene.agent.answer(running, stopReason="end_turn")
    there.scene.write_prompts()
    assert {first, *there.sent()} == {"later", "next"}
    assert there.states == []


@pytest.mark.parametrize("until_then", ["the turn ends", "it is removed"])
def test_a_prompt_that_is_marked_for_a_turn_begins_its_own_after_that_and_nothing_once_removed(until_then: str) -> None:
    there = Keeping({"_meta": {"steering": {"supported": True}}})
    running = there.runs()
    there.prompt("queued")
    assert change(there, "queued", "steer") is None
    if until_then == "the turn ends":
        there.scene.agent.answer(running, stopReason="end_turn")
    else:
        assert change(there, "queued", "remove") is None
    there.scene.write_prompts()
    there.scene.write_prompts()
    assert there.sent() == (["queued"] if until_then == "the turn ends" else [])
    assert there.states == []


def test_what_is_not_kept_is_neither_removed_nor_held(there: Keeping) -> None:
    own = there.prompt("", remove="none")
    assert there.answers()[own]["message"] == NOT_WAITING
    hold_kept(there.registry, there.session, "none", "no token")
    assert (there.states, there.stored) == ([], [])


def test_a_kept_prompt_that_the_present_agent_cannot_be_sent_is_refused_and_stays(there: Keeping) -> None:
    shown = QueuedPrompt("k", NOW, "x", whole=True, attached=0)
    new = b'{"id":1,"method":"session/set_config_option","params":{"type":"none"}}'
    there.registry.keep_prompt(there.session, KeptPrompt(shown, "ann", "ann's", new, is_new=True))
    own = there.release("k")
    assert there.answers()[own]["code"] == -32602
    assert list(there.session.kept) == ["k"]
