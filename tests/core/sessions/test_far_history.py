"""The place of a session in the history of the gateway that has the agent, as marks tell it."""

import json
from typing import Any

import pytest

from acp_gateway.core.sessions.far_history import MAX_EARLY, former_told
from acp_gateway.core.sessions.far_places import FORMER_KEPT, FarPlace, seen_up_to, start_of
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.gaps import MAY_BE_MISSING, PART_MISSING
from acp_gateway.protocol.link_messages import Mark, acknowledgement
from tests.core.fronts import ABILITIES, TOLD, Fronts, Watcher, numbered
from tests.core.scene import Peer, Scene, Shelf, encode

LOADS = {"loadSession": True, "sessionCapabilities": {"resume": {}}}


def linked(registry: Registry | None = None) -> Scene:
    """A scene whose agent is behind another gateway."""
    scene = Scene(registry=registry, agentCapabilities=LOADS)
    scene.multiplexer.agent_linked("far")
    return scene


def mark(scene: Scene, **places: Any) -> None:
    """Let a mark arrive, with the place of each session."""
    scene.multiplexer.receive_from_agent([Mark(acknowledgement(0, places))])
    scene.deliver()


def place(scene: Scene, session_id: str = "s") -> tuple[str, int] | None:
    far = scene.session(session_id).far
    return None if far is None else (far.epoch, far.at(scene.session(session_id).journal.position))


@pytest.fixture
def scene() -> Scene:
    return linked()


@pytest.fixture
def ann(scene: Scene) -> Peer:
    """A client that counts, with a session at position 5."""
    ann = scene.join("ann", link="first")
    ann.new_session()
    mark(scene, s=("e", 5))
    return ann


def opened(scene: Scene, ann: Peer) -> None:
    """Answer `session/new` without waiting for the client."""
    ann.request("session/new", cwd="/srv", mcpServers=[])


# Marks


def test_the_first_mark_tells_the_place_and_each_update_moves_it(scene: Scene, ann: Peer) -> None:
    assert place(scene) == ("e", 5)
    scene.agent.update("one")
    assert place(scene) == ("e", 6)
    assert ann.seen["s"] == ("e", 6)


def test_a_mark_takes_its_place_within_a_batch(scene: Scene, ann: Peer) -> None:
    content = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}}
    update = encode(method="session/update", params={"sessionId": "s", "update": content})
    told = Mark(acknowledgement(0, {"s": ("e", 8)}))
    # The mark tells two more than are expected there, and the last update comes after these.
    scene.multiplexer.receive_from_agent([update, told, update])
    scene.deliver()
    assert place(scene) == ("e", 9)
    assert ann.seen["s"] == ("e", 9)


def test_marks_of_new_sessions_come_before_their_responses(scene: Scene) -> None:
    ann = scene.join("ann", link="first")
    opened(scene, ann)
    asked = scene.agent.takes("session/new")
    mark(scene, s=("e", 7), t=("f", 1))
    # Only the first one is at the place where the history begins.
    mark(scene, s=("e", 9))
    scene.agent.answer(asked, sessionId="s")
    assert place(scene) == ("e", 7)
    # Others are forgotten with the next mark.
    mark(scene)
    opened(scene, ann)
    scene.agent.answers("session/new", sessionId="t")
    assert place(scene, "t") is None


def test_few_marks_are_kept_for_sessions_that_are_about_to_be_named(scene: Scene) -> None:
    ann = scene.join("ann", link="first")
    opened(scene, ann)
    mark(scene, **{f"n{number}": ("e", 1) for number in range(MAX_EARLY)}, s=("e", 1))
    scene.agent.answers("session/new", sessionId="s")
    assert place(scene) is None


def test_no_mark_is_kept_for_an_id_that_is_too_long(scene: Scene) -> None:
    ann = scene.join("ann", link="first")
    opened(scene, ann)
    mark(scene, **{f"{number:9}" + SESSION_ID_SIZE * "x": ("e", 1) for number in range(MAX_EARLY)}, s=("e", 1))
    scene.agent.answers("session/new", sessionId="s")
    assert place(scene) == ("e", 1)


def test_a_mark_of_a_session_that_is_not_open_changes_nothing(scene: Scene, ann: Peer) -> None:
    mark(scene, other=("e", 1))
    assert place(scene) == ("e", 5)


@pytest.mark.parametrize(
    "positions",
    [
        5,
        {"s": 5},
        {"s": {}},
        {"s": {"epoch": "e", "position": "6"}},
        {"s": {"epoch": "e", "position": True}},
        {"s": {"epoch": "e", "position": -1}},
        {"s": {"epoch": "e", "position": 10**16}},
        {"s": {"epoch": 5, "position": 6}},
        {"s": {"epoch": "e" * 257, "position": 6}},
    ],
)
def test_what_is_not_a_place_is_ignored(scene: Scene, ann: Peer, positions: Any) -> None:
    text = encode(method="_acp-gateway/ack", params={"received": 0, "positions": positions})
    scene.multiplexer.receive_from_agent([Mark(text), Mark(b"{")])
    assert place(scene) == ("e", 5)


def test_an_agent_without_a_link_tells_no_places() -> None:
    scene = Scene(agentCapabilities=LOADS)
    scene.join("ann", link="first").new_session()
    mark(scene, s=("e", 5))
    assert place(scene) is None


def test_another_epoch_continues_at_its_position_and_the_clients_are_told(scene: Scene, ann: Peer) -> None:
    scene.agent.update("one")
    mark(scene, s=("f", 2))
    assert place(scene) == ("f", 2)
    assert ann.seen["s"] == ("f", 2)
    session = scene.session()
    assert session.far is not None
    assert session.far.former == {"e": (5, 1)}


# What this gateway writes


def test_a_prompt_has_its_place_where_the_other_gateway_has_it(scene: Scene, ann: Peer) -> None:
    bob = scene.join_session("bob", link="b")
    ann.prompt("hello")
    asked = scene.agent.takes("session/prompt")
    scene.agent.update("between")
    assert [message["params"]["update"]["content"]["text"] for message in bob.heard()] == ["between"]
    mark(scene, s=("e", 7))
    assert bob.hears()["params"]["update"]["content"]["text"] == "hello"
    assert place(scene) == ann.seen["s"] == bob.seen["s"] == ("e", 7)
    scene.agent.answer(asked, stopReason="end_turn")


def test_a_prompt_that_the_other_gateway_refuses_is_not_written(scene: Scene, ann: Peer) -> None:
    bob = scene.join_session("bob", link="b")
    ann.prompt("hello")
    assert scene.multiplexer.memory.echo_bytes > 0
    scene.agent.refuses("session/prompt")
    assert bob.heard() == []
    assert not scene.session().unplaced


def test_a_choice_is_expected_where_the_mark_before_it_told_it(scene: Scene, ann: Peer) -> None:
    bob = scene.join_session("bob", link="b")
    ann.request("session/set_mode", sessionId="s", modeId="m")
    asked = scene.agent.takes("session/set_mode")
    mark(scene, s=("e", 6))
    # A gateway that is killed here asks for it.
    assert place(scene) == ("e", 5)
    scene.agent.answer(asked)
    assert place(scene) == ann.seen["s"] == bob.seen["s"] == ("e", 6)


def test_a_choice_without_a_mark_is_not_in_the_other_history(scene: Scene, ann: Peer) -> None:
    bob = scene.join_session("bob", link="b")
    ann.request("session/set_mode", sessionId="s", modeId="m")
    scene.agent.answers("session/set_mode")
    scene.agent.update("one")
    assert place(scene) == ann.seen["s"] == bob.seen["s"] == ("e", 6)
    # A client that has seen less is told that a part may be missing.
    assert start_of(scene.session()) == 1


def test_a_choice_moves_no_place_of_those_who_are_away(scene: Scene, ann: Peer) -> None:
    scene.agent.update("one")
    ann.request("session/set_mode", sessionId="s", modeId="m")
    scene.agent.answers("session/set_mode")
    assert seen_up_to(scene.session(), "e", 6) == 1
    mark(scene, s=("e", 7))
    scene.agent.update("two")
    assert seen_up_to(scene.session(), "e", 6) == 1
    assert start_of(scene.session()) == 0


def test_what_the_memory_limit_writes_of_an_echo_costs_those_who_are_away_a_gap(scene: Scene, ann: Peer) -> None:
    ann.prompt("hello there")
    scene.agent.takes("session/prompt")
    mark(scene, s=("e", 6))
    scene.agent.state("user_message_chunk", content={"type": "text", "text": "hello"})
    scene.multiplexer.memory.end_echoes()
    mark(scene, s=("e", 5))
    scene.agent.update("one")
    assert start_of(scene.session()) > 0


def test_an_incomplete_echo_is_not_written_when_the_link_ends(scene: Scene, ann: Peer) -> None:
    ann.prompt("hello there")
    scene.agent.takes("session/prompt")
    scene.agent.state("user_message_chunk", content={"type": "text", "text": "hello"})
    before = place(scene)
    scene.multiplexer.agent_lost("the link has ended", {"reason": "agent_ended"})
    assert place(scene) == before


def test_an_update_before_the_mark_of_what_was_opened_ends_nothing(scene: Scene, ann: Peer) -> None:
    scene.multiplexer.agent_lost("the link has ended", {"reason": "agent_ended"})
    session = scene.session()
    session.move_to(SessionState.OPENING)
    session.replay = None
    scene.agent.update("one")
    scene.agent.state("current_mode_update", currentModeId="m")
    assert session.journal.position == 0


def test_what_is_not_expected_counts_with_the_next_update(scene: Scene, ann: Peer) -> None:
    mark(scene, s=("e", 8))
    scene.agent.update("one")
    assert place(scene) == ann.seen["s"] == ("e", 9)
    mark(scene, s=("e", 11))
    scene.agent.state("current_mode_update", currentModeId="m")
    assert place(scene) == ann.seen["s"] == ("e", 12)
    # Fewer than were expected.
    mark(scene, s=("e", 3))
    assert place(scene) == ann.seen["s"] == ("e", 3)


def test_an_echo_that_ends_early_is_written_before_its_mark_is_compared(scene: Scene, ann: Peer) -> None:
    ann.prompt("hello there")
    scene.agent.takes("session/prompt")
    mark(scene, s=("e", 6))
    content = {"type": "text", "text": "hello"}
    scene.agent.state("user_message_chunk", content=content)
    mark(scene, s=("e", 6))
    assert place(scene) == ("e", 6)
    mark(scene, s=("e", 7))
    assert place(scene) == ("e", 7)
    assert scene.session().journal.position == 2


# Opening a session again


def test_an_update_while_a_session_is_loaded_whole_has_no_place_before_the_response(scene: Scene) -> None:
    scene.registry.restore(Session("agent", "s", "me", Journal(1000)))
    ann = scene.join("ann", link="first")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/load")
    assert asked["params"]["_meta"]["acp-gateway"] == {"takesOver": True, "claims": []}
    mark(scene, s=("e", 3))
    scene.agent.update("old")
    assert place(scene) is None
    scene.agent.answer(asked, _meta={"acp-gateway": {"turns": [], "ended": [], "start": 4, "truncated": True}})
    mark(scene, s=("e", 5))
    response = ann.heard()[-1]
    # What is for this gateway alone is not passed on.
    assert response["result"]["_meta"] == {"acp-gateway": {"truncated": True}}
    assert place(scene) == ann.seen["s"] == ("e", 5)
    far = scene.session().far
    assert far is not None
    assert (far.offset, far.start) == (4, 0)


def stored(scene: Scene, far: FarPlace | None, *texts: str) -> Session:
    """A session of an earlier process, with this history on the disk."""
    session = Session("agent", "s", "me", Journal(100_000))
    session.cwd, session.far = "/srv", far
    session.keep_directory()
    scene.registry.restore(session)
    session.restored = True
    shelf: Any = scene.registry._archive
    journal = Journal(100_000, "old")
    for text in texts:
        content = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        journal.append(encode(method="session/update", params={"sessionId": "s", "update": content}))
    shelf.journals[session] = journal
    return session


def told(peer: Peer) -> list[str]:
    """The texts that a client was told."""
    updates = [message["params"]["update"] for message in peer.heard() if message.get("method") == "session/update"]
    return [update["content"]["text"] for update in updates if "content" in update]


def loaded(scene: Scene) -> None:
    (session,) = scene.wanted
    scene.load_journal(scene.registry._archive.read(session))  # type: ignore[attr-defined]


def test_a_session_goes_on_from_the_place_of_what_is_stored() -> None:
    scene = linked(Registry("me", Shelf()))
    stored(scene, FarPlace("e", "former", 10), "one", "two")
    ann = scene.join("ann", link="second")
    # It has seen one that did not reach the disk.
    ann.comes_back(epoch="e", position=13, connection="first", prompts=[])
    loaded(scene)
    asked = scene.agent.takes("session/load")
    assert asked["params"]["_meta"]["acp-gateway"] == {
        "takesOver": True,
        "claims": [],
        "connection": "former",
        "epoch": "e",
        "position": 12,
    }
    mark(scene, s=("e", 12))
    scene.agent.update("three")
    scene.agent.update("four")
    # The other gateway was started again as well.
    mark(scene, s=("f", 14))
    scene.agent.update("five")
    scene.agent.answer(asked, _meta={"acp-gateway": {"turns": [], "ended": [], "start": 10}})
    assert told(ann) == ["four", "five"]
    assert ann.seen["s"] == place(scene) == ("f", 15)
    assert scene.session().journal.epoch == "old"


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_history_that_comes_whole_has_its_place_with_the_next_mark(method: str) -> None:
    scene = linked(Registry("me", Shelf()))
    stored(scene, FarPlace("e", "former", 10), "one")
    ann = scene.join("ann", link="second")
    ann.comes_back(method=method, epoch="f", position=22, connection="first")
    loaded(scene)
    asked = scene.agent.takes("session/load")
    mark(scene, s=("g", 1))
    for text in ("state of before", "21", "22", "23"):
        scene.agent.update(text)
    scene.agent.state("current_mode_update", currentModeId="m")
    scene.agent.answer(asked, _meta={"acp-gateway": {"turns": [], "ended": [], "start": 20}})
    assert ann.heard() == []
    mark(scene, s=("f", 24))
    messages = ann.heard()
    assert [json.dumps(message).count('"text": "23"') for message in messages[:1]] == [1]
    assert ann.seen["s"] == place(scene) == ("f", 24)
    # Before that, it has only states.
    bob = scene.join("bob", link="b")
    bob.comes_back(epoch="f", position=19, connection="b0")
    assert PART_MISSING in told(bob)[0]


def test_where_the_other_gateway_has_lost_its_history_the_part_here_is_kept() -> None:
    scene = linked(Registry("me", Shelf()))
    stored(scene, FarPlace("e", "former", 10), "one", "two")
    ann = scene.join("ann", link="second")
    ann.comes_back(epoch="e", position=12, connection="first")
    loaded(scene)
    scene.agent.answers("session/load")
    mark(scene, s=("g", 0))
    history = [json.loads(update)["params"]["update"]["content"]["text"] for update in scene.session().journal.replay()]
    assert history == ["one", "two", MAY_BE_MISSING]


def test_what_an_earlier_version_has_stored_is_kept_and_its_places_prove_nothing() -> None:
    scene = linked(Registry("me", Shelf()))
    stored(scene, None, "one", "two")
    ann = scene.join("ann", link="second")
    ann.comes_back(epoch="old", position=1, connection="first")
    loaded(scene)
    turns = [{"id": -1, "claim": None}]
    scene.agent.answers("session/load", _meta={"acp-gateway": {"turns": turns, "ended": [], "start": 0}})
    assert scene.session().turns
    mark(scene, s=("e", 9))
    assert told(ann) == [MAY_BE_MISSING]
    assert ann.seen["s"] == place(scene) == ("e", 9)


def test_a_client_that_loads_a_session_whole_shows_the_turn_that_goes_on(scene: Scene) -> None:
    scene.registry.restore(Session("agent", "s", "me", Journal(1000)))
    ann = scene.join("ann")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/load")
    scene.agent.update("old")
    turns = [{"id": -1, "claim": None}]
    scene.agent.answer(asked, _meta={"acp-gateway": {"turns": turns, "ended": [], "start": 0}})
    assert scene.session().turns
    assert scene.session().journal.running()
    # It goes on when this gateway stops, as the permission that it waits for.
    scene.agent.ask_permission()
    scene.end_turns()
    assert scene.agent.heard() == []


def test_a_session_that_can_not_be_opened_again_is_refused() -> None:
    scene = linked(Registry("me", Shelf()))
    stored(scene, FarPlace("e", "former", 10), "one")
    ann = scene.join("ann", link="second")
    ann.comes_back(epoch="e", position=11, connection="first")
    loaded(scene)
    scene.agent.refuses("session/load", message="no such session")
    assert ann.hears()["error"]["message"] == "no such session"
    assert scene.multiplexer.sessions == ()


def test_a_session_of_an_agent_that_has_no_link_any_more_has_no_place() -> None:
    scene = Scene(registry=Registry("me", Shelf()), agentCapabilities=LOADS)
    session = stored(scene, FarPlace("e", "former", 10), "one")
    ann = scene.join("ann", link="second")
    ann.comes_back(epoch="e", position=11, connection="first")
    loaded(scene)
    assert "_meta" not in scene.agent.takes("session/load")["params"]["_meta"]
    assert session.far is None


def test_a_lost_link_to_a_node_is_another_pause() -> None:
    ann, bob = Watcher("ann"), Watcher("bob")
    fronts = Fronts(ann, bob)
    fronts.open()
    fronts.prompt(ann)
    fronts.settle()
    fronts.speak(2)
    fronts.lose_link()
    fronts.speak(2)
    # The next request opens the session again.
    second = fronts.prompt(bob)
    fronts.settle()
    assert len(fronts.session.turns) == 1
    fronts.end_turn()
    fronts.settle()
    fronts.end_turn()
    fronts.settle()
    fronts.check_all()
    assert fronts.reasons(bob, second) == [f"end of bob {second}"]


@pytest.mark.parametrize("ability", ABILITIES)
def test_what_was_seen_before_both_were_killed_is_not_told_again(ability: dict[str, Any]) -> None:
    ann, bob = Watcher("ann"), Watcher("bob")
    fronts = Fronts(ann, bob, ability=ability)
    fronts.open()
    fronts.prompt(ann)
    fronts.settle()
    fronts.speak(3)
    fronts.settle()
    fronts.commit_node()
    fronts.kill_node()
    fronts.kill()
    fronts.settle()
    fronts.prompt(ann)
    fronts.settle()
    fronts.speak(2)
    fronts.settle()
    fronts.check_told()


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_what_a_killed_node_had_not_stored_and_its_agent_tells_again_is_told_once(seen: int) -> None:
    ann = Watcher("ann")
    fronts = Fronts(ann)
    fronts.open()
    fronts.commit_node()
    fronts.prompt(ann)
    fronts.settle()
    for _ in range(seen):
        fronts.speak()
        fronts.settle()
    fronts.said += 2 - seen
    fronts.memory += map(numbered, range(seen + 1, 3))
    fronts.kill_node()
    fronts.settle()
    fronts.prompt(ann)
    fronts.settle()
    fronts.speak()
    fronts.settle()
    fronts.check_told()
    assert ann.seen == ["1", "2", ann.seen[2], "3"]
    assert ann.seen[2].startswith(TOLD)


def test_a_hole_in_the_history_of_the_node_does_not_move_what_was_seen_before_it() -> None:
    ann, bob = Watcher("ann"), Watcher("bob")
    fronts = Fronts(ann, bob, limit=800)
    fronts.open()
    fronts.prompt(ann)
    fronts.speak(3)
    fronts.settle()
    fronts.kill()
    fronts.end_turn()
    fronts.commit_node()
    fronts.kill_node()
    fronts.settle()
    fronts.speak(2)
    fronts.settle()
    fronts.check_told()


@pytest.mark.parametrize("said", ["[]", "{", '"e"', '{"e":-1}', '{"e":"1"}', "null"])
def test_former_epochs_that_are_damaged_count_for_nothing(said: str) -> None:
    assert former_told({"former": said.encode()}) == {}
    assert former_told({}) == {}
    assert former_told({"former": b'{"e":3}'}) == {"e": 3}


def test_the_last_former_epochs_are_kept() -> None:
    said = json.dumps({f"e{number}": number for number in range(100)}).encode()
    assert list(former_told({"former": said})) == [f"e{number}" for number in range(100 - FORMER_KEPT, 100)]
