"""The queue of a session: who may remove, edit and move the prompts that wait, and send one of them now."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.core.sessions.session import EDITOR, Role, Session
from acp_gateway.core.turns.queue import NOT_WAITING, QueueChange, ShownPrompt, shown_queue
from acp_gateway.protocol import not_sent
from tests.kit.scene import Peer, Scene, opened_scene

CANCELLED = json.loads(not_sent.CANCELLED)
BROWSER = "browser"


class Queueing:
    """A session of ann's in which a turn runs, with her browser, a guest's browser and an observer."""

    def __init__(self, **abilities: Any) -> None:
        self.scene = Scene(agentCapabilities=abilities)
        self.ann = self.scene.join("ann")
        self.ann.new_session()
        self.guest = self.scene.join_session("guest", "guest-1", only="s", guest=True)
        self.watcher = self.scene.join_session("watcher", role=Role.OBSERVER)
        for peer in (self.ann, self.guest, self.watcher):
            peer.client.via = BROWSER
            peer.heard()
        self.scene.agent.heard()
        self.first = self.ann.prompt("first")
        self.running = self.scene.agent.takes("session/prompt")
        self.answers: dict[tuple[Peer, int], Any] = {}

    @property
    def session(self) -> Session:
        return self.scene.multiplexer.sessions[0]

    def shown(self, peer: Peer) -> list[ShownPrompt]:
        return shown_queue(self.session, peer.client.reach, controls=peer.client.controls)

    @property
    def texts(self) -> list[str]:
        return [it.prompt.text for it in self.shown(self.watcher)]

    def key(self, text: str) -> str:
        return next(it.prompt.key for it in self.shown(self.watcher) if it.prompt.text == text)

    def change(self, peer: Peer, shown: str, action: Any, **members: Any) -> str | None:
        """Change the prompt with this text."""
        if members.get("before") is not None:
            members["before"] = self.key(members["before"])
        return self.change_key(peer, self.key(shown), action, **members)

    def change_key(self, peer: Peer, key: str, action: Any, **members: Any) -> str | None:
        change = QueueChange(key, action, **members)
        why = self.scene.multiplexer.change_queue(peer.client, self.session, change)
        self.scene.deliver()
        return why

    def end_turn(self) -> None:
        """Have the agent answer the prompt that it has; another one may follow."""
        self.scene.agent.answer(self.running, stopReason="end_turn")

    def next_text(self) -> str:
        """End the turn, and return the text of the prompt that the agent gets next."""
        self.end_turn()
        self.running = self.scene.agent.takes("session/prompt")
        return str(self.running["params"]["prompt"][0]["text"])

    def responses(self, peer: Peer) -> dict[int, Any]:
        """Results of the responses that have come since."""
        return {it["id"]: it["result"] for it in peer.heard() if "method" not in it}


@pytest.fixture
def there() -> Queueing:
    return Queueing()


def test_the_queue_is_shown_to_all_with_what_each_may_do(there: Queueing) -> None:
    there.ann.prompt("a")
    there.guest.prompt("g")
    rights = {
        peer: [(it.identity, it.may_change, it.may_edit) for it in there.shown(peer)]
        for peer in (there.ann, there.guest, there.watcher)
    }
    assert there.texts == ["a", "g"]
    assert rights[there.ann] == [("me", True, True), ("guest-1", True, False)]
    assert rights[there.guest] == [("me", False, False), ("guest-1", True, True)]
    assert rights[there.watcher] == [("me", False, False), ("guest-1", False, False)]


def test_a_removed_prompt_is_answered_as_cancelled_and_never_sent(there: Queueing) -> None:
    removed = there.guest.prompt("g")
    there.ann.prompt("a")
    assert there.change(there.ann, "g", "remove") is None
    assert there.responses(there.guest) == {removed: CANCELLED}
    assert there.texts == ["a"]
    assert there.next_text() == "a"
    there.end_turn()
    assert there.scene.agent.heard() == []


def test_an_edited_prompt_is_sent_and_recorded_with_its_other_text(there: Queueing) -> None:
    there.ann.prompt("a")
    key = there.key("a")
    assert there.change(there.ann, "a", "edit", text="b") is None
    assert (there.texts, there.key("b")) == (["b"], key)
    there.watcher.heard()
    assert there.next_text() == "b"
    said = [
        it["params"]["update"]["content"]["text"] for it in there.watcher.heard() if it["method"] == "session/update"
    ]
    assert said == ["b"]


def test_a_prompt_is_moved_before_another_one_or_to_the_end(there: Queueing) -> None:
    for text in "abc":
        there.ann.prompt(text)
    assert there.change(there.ann, "c", "move", before="a") is None
    assert there.texts == ["c", "a", "b"]
    assert there.change(there.ann, "c", "move") is None
    assert there.texts == ["a", "b", "c"]


def test_a_guest_moves_its_own_prompts_within_their_places(there: Queueing) -> None:
    there.guest.prompt("g1")
    there.ann.prompt("a")
    there.guest.prompt("g2")
    assert there.change(there.guest, "g2", "move", before="g1") is None
    assert there.texts == ["g2", "a", "g1"]
    assert there.change(there.guest, "g2", "move", before="a") == "guests change only their own prompts"
    assert there.texts == ["g2", "a", "g1"]


def test_a_prompt_sent_now_cancels_the_turn_and_its_questions_but_no_other_prompt(there: Queueing) -> None:
    waits = there.ann.prompt("a")
    there.ann.prompt("b")
    there.scene.agent.ask_permission("q")
    assert there.change(there.ann, "b", "send_now") is None
    cancel, answer = there.scene.agent.heard()
    assert (cancel["method"], cancel["params"]) == ("session/cancel", {"sessionId": "s"})
    assert answer["result"] == {"outcome": {"outcome": "cancelled"}}
    assert there.texts == ["b", "a"]
    assert [there.next_text(), there.next_text()] == ["b", "a"]
    there.end_turn()
    assert there.responses(there.ann)[waits] == {"stopReason": "end_turn"}


def test_the_first_prompt_can_be_sent_now(there: Queueing) -> None:
    there.ann.prompt("a")
    there.ann.prompt("b")
    assert there.change(there.ann, "a", "send_now") is None
    assert there.scene.agent.takes("session/cancel")
    assert there.texts == ["a", "b"]


@pytest.mark.parametrize("action", ["remove", "edit", "move", "send_now"])
def test_a_prompt_that_the_agent_has_just_got_is_not_changed(there: Queueing, action: str) -> None:
    there.ann.prompt("a")
    there.ann.prompt("b")
    key = there.key("a")
    assert there.next_text() == "a"
    assert there.change_key(there.ann, key, action, text="late") == NOT_WAITING
    assert there.texts == ["b"]
    assert there.scene.agent.heard() == []


def test_a_prompt_is_not_moved_before_one_that_does_not_wait(there: Queueing) -> None:
    there.ann.prompt("a")
    there.ann.prompt("b")
    gone = there.key("a")
    assert there.next_text() == "a"
    why = there.change_key(there.ann, there.key("b"), "move", before=gone)
    assert why == "the prompt before which to move this one does not wait any more"


@pytest.mark.parametrize("action", ["remove", "edit", "move", "send_now"])
def test_guests_change_only_their_own_prompts_and_observers_none(there: Queueing, action: str) -> None:
    there.ann.prompt("a")
    assert there.change(there.guest, "a", action, text="x") == "guests change only their own prompts"
    why = "only controllers that are attached to the session change its queue"
    assert there.change(there.watcher, "a", action, text="x") == why
    assert there.texts == ["a"]
    assert there.scene.agent.heard() == []


def test_owners_do_not_edit_the_prompt_of_a_guest(there: Queueing) -> None:
    there.guest.prompt("g")
    assert there.change(there.ann, "g", "edit", text="x") == "only who has sent a prompt edits it"
    assert there.texts == ["g"]


def test_prompts_of_editors_and_long_ones_are_not_edited_but_removed(there: Queueing) -> None:
    there.ann.client.via = EDITOR
    there.ann.prompt("a")
    assert "an editor has sent this prompt" in (there.change(there.ann, "a", "edit", text="x") or "")
    assert [it.may_edit for it in there.shown(there.ann)] == [False]
    there.ann.client.via = BROWSER
    there.ann.prompt("x" * 10_000)
    shown = there.shown(there.ann)[1]
    assert not shown.may_edit
    assert "too long" in (there.change_key(there.ann, shown.prompt.key, "edit", text="x") or "")
    assert there.change(there.ann, "a", "remove") is None


def test_a_prompt_is_not_edited_to_nothing(there: Queueing) -> None:
    there.ann.prompt("a")
    assert there.change(there.ann, "a", "edit", text=" ") == "a prompt without text says nothing: remove it instead"
    assert there.texts == ["a"]


def test_a_prompt_whose_client_has_gone_is_still_changed_by_its_identity(there: Queueing) -> None:
    other = there.scene.join_session("phone")
    other.client.via = BROWSER
    other.prompt("a")
    other.gone()
    assert there.change(there.ann, "a", "edit", text="b") is None
    assert there.next_text() == "b"


def test_each_change_of_the_queue_is_audited_with_both_identities(there: Queueing) -> None:
    there.guest.prompt("g")
    there.change(there.ann, "g", "remove")
    (event,) = [it for it in there.scene.audit_events if it.name == "queue_changed"]
    assert event.client is there.ann.client
    assert event.details == {"session": "s", "agent": "agent", "action": "remove", "sender": "guest-1"}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("prompt"), st.integers(0, 1)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.sampled_from(["remove", "edit", "send_now"]), st.integers(0, 9)),
        st.tuples(st.just("move"), st.tuples(st.integers(0, 9), st.integers(0, 9) | st.none())),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_no_prompt_is_lost_or_sent_twice_whatever_is_done_to_the_queue(steps: list[Any]) -> None:
    there = Queueing()
    queue: list[str] = []
    now: dict[str, str] = {"first": "first"}
    """The present text of each prompt, by its first one."""
    senders: dict[str, tuple[Peer, int]] = {"first": (there.ann, there.first)}
    sent, removed, runs = ["first"], list[str](), "first"

    def ends() -> None:
        nonlocal runs
        if not runs:
            return
        there.end_turn()
        runs = queue.pop(0) if queue else ""
        got = [it for it in there.scene.agent.heard() if it["method"] == "session/prompt"]
        assert [it["params"]["prompt"][0]["text"] for it in got] == ([now[runs]] if runs else [])
        if runs:
            there.running = got[0]
            sent.append(runs)

    for step, (kind, which) in enumerate(steps):
        if kind == "prompt":
            peer, name = (there.ann, there.guest)[which], f"p{step}"
            senders[name], now[name] = (peer, peer.prompt(name)), name
            if runs:
                queue.append(name)
            else:
                (there.running,) = there.scene.agent.heard()
                runs = name
                sent.append(name)
        elif kind == "end":
            ends()
        elif queue:
            place, before = which if kind == "move" else (which, None)
            name = queue[place % len(queue)]
            target = None if before is None else queue[before % len(queue)]
            peer = senders[name][0] if kind == "edit" else there.ann
            members = {"text": f"e{step}"} if kind == "edit" else {"before": None if target is None else now[target]}
            if target == name:
                continue
            assert there.change(peer, now[name], kind, **members) is None
            if kind == "edit":
                now[name] = f"e{step}"
                continue
            queue.remove(name)
            if kind == "remove":
                removed.append(name)
            elif kind == "send_now":
                queue.insert(0, name)
                there.scene.agent.takes("session/cancel")
            else:
                queue.insert(len(queue) if target is None else queue.index(target), name)
        assert there.texts == [now[name] for name in queue]
    while runs:
        ends()
    assert sorted([*sent, *removed]) == sorted(senders)
    responses = {peer: [it for it in peer.heard() if "method" not in it] for peer in (there.ann, there.guest)}
    for name, (peer, own) in senders.items():
        (response,) = [it for it in responses[peer] if it["id"] == own]
        assert response["result"] == (CANCELLED if name in removed else {"stopReason": "end_turn"})


def queue_news(peer: Peer) -> list[Any]:
    """Return what a client was told of the queue since the last call."""
    told = [message["params"] for message in peer.heard() if message.get("method") == "_acp-gateway/news"]
    return [(one["count"], one["prompts"]) for one in told if one["event"] == "queue"]


def wanting(queue: Any) -> dict[str, Any]:
    return {"clientCapabilities": {"_meta": {"acp-gateway": {"queue": queue}}}}


def test_news_of_the_queue_go_to_observers_and_controllers_that_ask_for_them() -> None:
    there = Queueing()
    terminal = there.scene.join_session("terminal", role=Role.OBSERVER, **wanting(True))
    other = there.scene.join_session("other", **wanting(False))
    assert queue_news(terminal) == []
    there.ann.prompt("second")
    there.guest.prompt("third")
    second, third = {"identity": "me", "text": "second"}, {"identity": "guest-1", "text": "third"}
    assert queue_news(terminal) == [(1, [second]), (2, [second, third])]
    late = there.scene.join("late", role=Role.OBSERVER, **wanting(True))
    late.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    assert queue_news(late) == [(2, [second, third])]
    assert there.change(there.ann, "third", "move", before="second") is None
    assert there.change(there.ann, "second", "edit", text="else") is None
    assert queue_news(terminal) == [(2, [third, second]), (2, [third, second | {"text": "else"}])]
    there.scene.agent.answer(there.running, stopReason="end_turn")
    assert queue_news(terminal) == [(1, [second | {"text": "else"}])]
    assert there.change(there.ann, "else", "remove") is None
    assert queue_news(terminal) == [(0, [])]
    assert queue_news(other) == []


def test_news_name_the_first_prompts_of_a_long_queue_by_the_beginnings_of_their_texts() -> None:
    there = Queueing()
    terminal = there.scene.join_session("terminal", role=Role.OBSERVER, **wanting(True))
    for _ in range(12):
        there.ann.prompt("x" * 1000)
    count, prompts = queue_news(terminal)[-1]
    assert (count, len(prompts), {len(one["text"]) for one in prompts}) == (12, 10, {200})


def test_a_prompt_that_need_not_wait_makes_no_news_of_the_queue() -> None:
    scene, ann = opened_scene()
    terminal = scene.join_session("terminal", role=Role.OBSERVER, **wanting(True))
    ann.prompt("first")
    assert queue_news(terminal) == []


def test_news_of_an_empty_queue_follow_the_loss_of_the_agent() -> None:
    there = Queueing(loadSession=True)
    terminal = there.scene.join_session("terminal", role=Role.OBSERVER, **wanting(True))
    there.guest.prompt("second")
    assert len(queue_news(terminal)) == 1
    there.scene.lose_agent()
    assert queue_news(terminal) == [(0, [])]


@pytest.mark.parametrize("by_stop", [False, True])
def test_the_texts_of_prompts_that_wait_stay_in_the_conversation_when_agent_or_gateway_ends(by_stop: bool) -> None:
    """Those of guests, and without a disk at the end of the gateway all."""
    scene, ann = opened_scene(agentCapabilities={"loadSession": True})
    bob = scene.join_session("bob")
    sender = ann if by_stop else scene.join_session("guest", "guest-1", only="s", guest=True)
    running, own = ann.prompt("first"), sender.prompt("second\nwith lines")
    bob.heard()
    scene.end_turns() if by_stop else scene.lose_agent()
    (line,) = [message["params"]["update"]["content"]["text"] for message in bob.heard()]
    why = "the gateway was stopped" if by_stop else "the agent has ended"
    assert line == f"[acp-gateway: {why}, and a prompt that waited was not sent: second\nwith lines]"
    heard = ann.heard()
    assert heard[0]["params"]["update"]["content"]["text"] == line
    if not by_stop:
        (error,) = [message["error"] for message in heard[1:] if message["id"] == running]
        assert error == {"code": -32603, "message": "the agent ended", "data": {"exitCode": 1}}
        errors = {message["id"]: message["error"] for message in sender.heard() if "error" in message}
        words = 'the agent ended; this prompt has waited and was not sent: "second with lines"'
        assert errors[own] == {"code": -32603, "message": words, "data": {"exitCode": 1, "notSent": True}}
