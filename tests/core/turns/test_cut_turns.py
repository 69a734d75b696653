"""Turns that were cut off by a restart: who is told afterwards, how, and who is not."""

import json
from typing import Any

import pytest

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.cut_turns import note_cut, record_cut_turn
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.text.pairs import text_of
from tests.core.test_same_version import opened, told
from tests.kit.scene import Peer, Place, Scene, Shelf, make_policy, news_params, opened_scene
from tests.kit.versions import text

LOADS: dict[str, Any] = {"loadSession": True}


class Gateways:
    """One process of a gateway after the other, on one archive."""

    def __init__(self, *, shared: bool = True) -> None:
        self.shelf = Shelf()
        self._shared = shared
        self._runs = 0
        self.scene = self._start()

    def _start(self, *past: Session) -> Scene:
        self._runs += 1
        registry = Registry("me", self.shelf, f"run{self._runs}")
        for session in past:
            registry.restore(session)
        return Scene(make_policy(shared=self._shared), registry, agentCapabilities=LOADS)

    def restart(self, *, killed: bool = False, forgets: bool = False, stored: Journal | None = None) -> Scene:
        """The next process; what was said is lost with one that `forgets`.

        If only a part of the journal was `stored` before the kill, the session was stored as open.
        """
        former = list(self.scene.registry)
        if not killed:
            for client in list(self.scene.peers):
                self.scene.multiplexer.client_gone(client)
            self.scene.end_turns()
            self.scene.multiplexer.shut_down()
        past = []
        for session in former:
            again = Session(session.agent, session.id, session.owner, Journal(1_000_000))
            again.cwd = session.cwd
            kept = self.shelf.journals.pop(session)
            again.may_lack_end = stored is not None
            if not forgets:
                self.shelf.journals[again] = stored or kept
            past.append(again)
        self.scene = self._start(*past)
        return self.scene

    def comes_back(self, name: str, link: str, place: Place | None, *prompts: int, **params: Any) -> Peer:
        """A client on a new link that says what it has seen, and which prompts it waits for; the session is open then.

        What it has heard is not looked at.
        """
        scene = self.scene
        peer = scene.join(name, link=f"{link}, again", **params)
        said: dict[str, Any] = {} if place is None else {"epoch": place[0], "position": place[1]}
        peer.comes_back(connection=link, prompts=list(prompts), **said)
        for wanted in scene.wanted:
            scene.load_journal(self.shelf.read(wanted))
        scene.wanted.clear()
        if scene.agent.inbox:
            scene.agent.answers("session/load")
        return peer


def begins(gateways: Gateways, *, ends: bool = False) -> tuple[Place, int]:
    """A session with a turn in it; where ann is in it, and the id of her prompt."""
    scene = gateways.scene
    ann = scene.join("ann", link="first")
    ann.new_session()
    own = ann.prompt("go")
    asked = scene.agent.takes("session/prompt")
    scene.agent.update("going")
    if ends:
        scene.agent.answer(asked, stopReason="end_turn")
        scene.agent.update("between turns")
    return ann.seen["s"], own


def news(peer: Peer) -> list[Any]:
    return [m["params"] for m in peer.heard() if m.get("method") == "_acp-gateway/news"]


def cut_of(heard: list[Any]) -> Any:
    """Return the reasons of cut turns in the responses among messages."""
    (answer,) = [message for message in heard if "result" in message]
    return answer["result"]["_meta"]["acp-gateway"].get("cut")


RESTARTED = {"sessionId": "s", "event": "turn_ended", "stopReason": None, "reason": "gateway_restarted"}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_a_client_that_rejoins_after_a_restart_gets_the_reason_of_its_cut_turn(shared: bool, killed: bool) -> None:
    gateways = Gateways(shared=shared)
    place, own = begins(gateways)
    gateways.restart(killed=killed)
    ann = gateways.comes_back("ann", "first", place, own, **news_params())
    heard = ann.heard()
    assert cut_of(heard) == "gateway_restarted"
    assert heard[-1] == {"jsonrpc": "2.0", "method": "_acp-gateway/news", "params": RESTARTED}


def test_without_news_the_reason_of_a_cut_turn_is_in_the_response_alone() -> None:
    gateways = Gateways()
    place, own = begins(gateways)
    gateways.restart()
    (answer,) = gateways.comes_back("ann", "first", place, own).heard()
    assert answer["result"]["_meta"]["acp-gateway"] == {"prompts": [], "questions": [], "cut": "gateway_restarted"}


def test_those_who_only_looked_on_are_told_as_well_and_each_once() -> None:
    gateways = Gateways()
    place, _ = begins(gateways)
    gateways.restart()
    first = gateways.comes_back("bob", "second", place, **news_params())
    second = gateways.comes_back("cem", "third", place, **news_params())
    assert RESTARTED in news(first)
    assert RESTARTED in news(second)
    # Its new link is lost too: what has been since then it knows.
    again = gateways.comes_back("bob", "second", first.seen["s"], **news_params())
    assert news(again) == []


def test_a_client_that_has_never_been_here_is_told_when_it_loads_the_session() -> None:
    gateways = Gateways()
    place, own = begins(gateways)
    gateways.restart()
    gateways.comes_back("ann", "first", place, own)
    new = gateways.scene.join("new", **news_params())
    new.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    assert news(new) == [RESTARTED]


def test_a_cut_turn_is_not_reported_once_there_is_another_turn() -> None:
    gateways = Gateways()
    place, own = begins(gateways)
    gateways.restart()
    ann = gateways.comes_back("ann", "first", place, own)
    ann.prompt("go on")
    gateways.scene.agent.takes("session/prompt")
    bob = gateways.comes_back("bob", "second", place, **news_params())
    heard = bob.heard()
    assert cut_of(heard) is None
    news = [message["params"]["event"] for message in heard if message.get("method") == "_acp-gateway/news"]
    # The present turn, and nothing of the former one.
    assert news == ["turn_started"]


@pytest.mark.parametrize("killed", [True, False])
def test_of_a_turn_that_had_ended_nothing_is_said(killed: bool) -> None:
    gateways = Gateways()
    place, own = begins(gateways, ends=True)
    gateways.restart(killed=killed)
    ann = gateways.comes_back("ann", "first", place, own, **news_params())
    heard = ann.heard()
    assert cut_of(heard) is None
    assert [message for message in heard if message.get("method") == "_acp-gateway/news"] == []


@pytest.mark.parametrize(("prompts", "cut"), [(True, "gateway_restarted"), (False, None)])
def test_where_nothing_was_kept_the_client_knows_whether_there_was_a_turn(prompts: bool, cut: str | None) -> None:
    gateways = Gateways()
    place, own = begins(gateways)
    gateways.restart(forgets=True)
    ann = gateways.comes_back("ann", "first", place, *([own] if prompts else []), **news_params())
    heard = ann.heard()
    assert cut_of(heard) == cut
    assert (heard[-1].get("params") == RESTARTED) == (cut is not None)


def test_a_session_that_the_killed_gateway_had_not_written_down_is_not_an_exception() -> None:
    gateways = Gateways()
    place, own = begins(gateways)
    gateways.scene = Scene(registry=Registry("me", Shelf(), "another"), agentCapabilities=LOADS)
    ann = gateways.comes_back("ann", "first", place, own)
    assert cut_of(ann.heard()) == "gateway_restarted"


@pytest.mark.parametrize("recovers", [True, False])
@pytest.mark.parametrize(("waits", "cut"), [(True, "gateway_restarted"), (False, None)])
def test_a_turn_whose_prompt_was_not_stored_before_a_kill_is_cut_off_for_its_client(
    waits: bool, cut: str | None, recovers: bool
) -> None:
    gateways = Gateways()
    place, _ = begins(gateways, ends=True)
    stored = gateways.shelf.read(gateways.scene.session())
    ann = next(iter(gateways.scene.peers.values()))
    lost = ann.prompt("go on")
    gateways.restart(killed=True, stored=stored)
    if not recovers:
        # Another client has continued the journal, so that its gap is there.
        gateways.comes_back("bob", "second", place)
    ann = gateways.comes_back("ann", "first", place, *([lost] if waits else []), **news_params())
    heard = ann.heard()
    assert cut_of(heard) == cut
    assert (heard[-1].get("params") == RESTARTED) == (cut is not None)


def test_a_turn_that_ended_with_its_agent_is_told_at_once_and_not_again() -> None:
    gateways = Gateways()
    place, own = begins(gateways)
    gateways.scene.lose_agent()
    gateways.restart()
    ann = gateways.comes_back("ann", "first", place, own, **news_params())
    assert news(ann) == []


def test_a_turn_of_an_agent_that_was_stopped_in_it_is_told_to_have_been_cut_off_by_that() -> None:
    gateways = Gateways(shared=False)
    place, own = begins(gateways)
    scene = gateways.scene
    for client in list(scene.peers):
        scene.multiplexer.client_gone(client)
    scene.multiplexer.shut_down()
    # Another process of the same gateway has it next.
    gateways.scene = Scene(make_policy(shared=False), scene.registry, agentCapabilities=LOADS)
    ann = gateways.comes_back("ann", "first", place, own)
    assert cut_of(ann.heard()) == "agent_stopped"


def test_a_turn_that_goes_on_is_not_cut_off() -> None:
    gateways = Gateways()
    place, own = begins(gateways)
    for client in list(gateways.scene.peers):
        gateways.scene.multiplexer.client_gone(client)
    ann = gateways.comes_back("ann", "first", place, own)
    (answer,) = [message for message in ann.heard() if "result" in message]
    assert answer["result"]["_meta"]["acp-gateway"] == {"prompts": [own], "questions": []}


def test_a_user_chunk_of_a_sub_agent_is_not_a_turn() -> None:
    gateways = Gateways()
    place, own = begins(gateways, ends=True)
    chunk = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "sub"}}
    session = gateways.scene.session()
    session.write(json.dumps({"method": "session/update", "params": {"sessionId": "child", "update": chunk}}).encode())
    gateways.restart()
    assert cut_of(gateways.comes_back("ann", "first", place, own).heard()) is None


@pytest.mark.parametrize(("reason", "is_cut"), [("cancelled", True), ("end_turn", False)])
def test_a_turn_that_is_cancelled_as_its_agent_is_stopped_is_cut_off_and_any_other_has_its_end(
    reason: str, *, is_cut: bool
) -> None:
    scene, ann = opened_scene()
    ann.prompt()
    asked = scene.agent.takes("session/prompt")
    scene.end_turns()
    scene.agent.heard()
    scene.agent.update("last words")
    scene.agent.answer(asked, stopReason=reason)
    answered = any("result" in message for message in ann.heard())
    assert answered is not is_cut
    assert bool(scene.session().turns) is is_cut
    assert b"last words" in text_of(scene.session().journal.replay()[-1])


@pytest.mark.parametrize(("reason", "is_cut"), [("cancelled", True), ("end_turn", False)])
def test_the_end_of_a_turn_of_version_2_is_written_unless_it_was_cancelled_as_its_agent_is_stopped(
    reason: str, *, is_cut: bool
) -> None:
    scene, (ann,) = opened("ann")
    ann.prompt()
    scene.agent.answers("session/prompt", messageId="u")
    scene.agent.say(told("state_update", state="running"))
    scene.end_turns()
    end = told("state_update", state="idle", stopReason=reason)
    scene.agent.say(told("agent_message_chunk", messageId="m", content=text("last words")))
    scene.agent.say(end)
    assert (end in ann.heard_text()) is not is_cut
    assert bool(scene.session().turns) is is_cut


@pytest.mark.parametrize("may_lack_end", [False, True])
def test_a_cut_turn_that_was_recorded_is_not_one_of_an_unknown_past_any_more(*, may_lack_end: bool) -> None:
    session = Session("agent", "s", "me", Journal(1_000_000, "e"))
    chunk = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "go"}}
    session.write(json.dumps({"method": "session/update", "params": {"sessionId": "s", "update": chunk}}).encode())
    session.restored, session.may_lack_end = True, may_lack_end
    record_cut_turn(session)
    assert (session.cut, session.restored) == ("gateway_restarted", False)
    assert len(session.journal.ends()) == 1


@pytest.mark.parametrize(("ends", "reason"), [(0, "gateway_restarted"), (1, None)])
def test_a_copy_of_a_stored_history_shows_the_end_that_opening_it_would_write(ends: int, reason: str | None) -> None:
    session, journal = Session("agent", "s", "me", Journal(1_000_000, "e")), Journal(1_000_000, "e")
    session.restored = True
    for update in (
        {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "go"}},
        {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "status": "in_progress"},
    ):
        journal.append(
            json.dumps({"method": "session/update", "params": {"sessionId": "s", "update": update}}).encode()
        )
    if ends:
        journal.turn_ended()
    note_cut(session, journal)
    assert [end.outcome.cut for end in journal.ends()] == ([] if reason is None else [reason])
    assert (b'"failed"' in text_of(journal.replay()[-1])) is (reason is not None)
