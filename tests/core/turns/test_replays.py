"""Replays of a session that was not live, or is forked, which differ from what the agent has said."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.protocol.gaps import GAP, MAY_BE_MISSING
from tests.core.sessions.opened import close
from tests.core.sessions.test_continuing import Gateways
from tests.kit.scene import Peer, Scene, Shelf

Told = tuple[str, str]
"""The kind of an update, with its text or the id of its tool call."""

CLOSES: dict[str, Any] = {"loadSession": False, "sessionCapabilities": {"resume": {}, "close": {}}}

PICTURE = "iVBORw0KGgo="
"""A text that stands for a picture."""
SAID: list[Told] = [
    ("user_message_chunk", "list the files"),
    ("agent_thought_chunk", "I will look."),
    ("tool_call", "call-1"),
    ("tool_call_update", "call-1"),
    ("agent_message_chunk", "There is "),
    ("agent_message_chunk", "one file."),
    ("user_message_chunk", "remove it"),
    ("agent_message_chunk", "It is gone."),
]
"""A conversation as it was said, which agents replay in one of these ways."""
TEXT_ONLY: list[Told] = [
    ("user_message_chunk", "list the files\n"),
    ("agent_message_chunk", "There is one file."),
    ("user_message_chunk", "remove"),
    ("user_message_chunk", " it"),
    ("agent_message_chunk", "It is gone.\n"),
]
REPLAYS: list[list[Told]] = [[], SAID, SAID[:5], TEXT_ONLY, TEXT_ONLY[:2]]
OTHERS: list[list[Told]] = [
    TEXT_ONLY[2:],
    [("agent_message_chunk", "Welcome back.")],
    [("user_message_chunk", "a summary"), *TEXT_ONLY[1:], ("user_message_chunk", "more")],
]
"""Replays that are not told from the beginning, or with other prompts."""
BEYOND: list[Told] = [("user_message_chunk", "and now?"), ("tool_call", "call-2"), ("agent_message_chunk", "Nothing.")]


ODD: list[Told] = [
    ("agent_message_chunk", "Welcome."),
    ("user_message_chunk", PICTURE),
    ("agent_message_chunk", "A cat."),
    ("user_message_chunk", "stop"),
    ("user_message_chunk", "go on"),
    ("notice", "The model is slow."),
    ("agent_message_chunk", "I go on."),
    ("user_message_chunk", PICTURE),
    ("user_message_chunk", "go on and on"),
    ("tool_call", "call-1"),
    ("agent_message_chunk", "It is done."),
]
"""A conversation with text before the first prompt, prompts without text and without an answer, and other updates."""
ODD_REPLAYS: list[list[Told]] = [
    ODD,
    ODD[1:],
    [it for it in ODD if it[1] != PICTURE],
    [("user_message_chunk", "[Image]") if it[1] == PICTURE else it for it in ODD],
    [it for it in ODD if it[1] not in ("stop", PICTURE, "A cat.")],
    [("user_message_chunk", "stop\ngo on") if it[1] == "stop" else it for it in ODD if it[1] != "go on"],
    ODD[4:],
    [it for it in ODD if "user" in it[0]],
]


def tell(scene: Scene, said: Iterable[Told], session_id: str = "s") -> None:
    """Have the agent send updates."""
    for kind, text in said:
        content = {"type": "image", "data": text} if text == PICTURE else {"type": "text", "text": text}
        told = {"toolCallId": text, "title": "t"} if "tool" in kind else {"content": content}
        scene.agent.state(kind, session_id, **told)


def told(messages: list[Any]) -> list[Told]:
    """Return the updates among messages."""
    updates = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    contents = [it.get("content", {}) for it in updates]
    return [
        (it["sessionUpdate"], it.get("toolCallId") or content.get("text") or content["data"])
        for it, content in zip(updates, contents, strict=True)
    ]


def converse(scene: Scene, peer: Peer, said: list[Told] = SAID) -> None:
    """Have a client and the agent say the conversation."""
    turns: list[list[Told]] = [[]]
    for kind, text in said:
        turns += [[]] if kind == "user_message_chunk" else []
        turns[-1].append((kind, text))
    tell(scene, turns[0])
    for (_, prompt), *answer in turns[1:]:
        block = {"type": "image", "data": prompt} if prompt == PICTURE else {"type": "text", "text": prompt}
        peer.request("session/prompt", sessionId="s", prompt=[block])
        asked = scene.agent.takes("session/prompt")
        tell(scene, answer)
        scene.agent.answer(asked, stopReason="end_turn")


def started_again(said: list[Told] = SAID, cut_to: int | None = None) -> Gateways:
    """A gateway that was started again after the conversation, whose last bytes are left."""
    gateways = Gateways()
    ann = gateways.scene.join("ann", link="ann")
    ann.new_session()
    converse(gateways.scene, ann, said)
    gateways.stop(cut_to)
    return gateways


@pytest.fixture
def gateways() -> Gateways:
    """A gateway that was started again after the conversation."""
    return started_again()


def begin(gateways: Gateways, way: str) -> tuple[Peer, Any]:
    """Have a client open the session in some way, and return it with what the agent is asked."""
    peer = gateways.scene.join("bob", only="s" if way == "session/new" else None)
    peer.request(way, sessionId="s", cwd="/srv", mcpServers=[])
    gateways.load_journal()
    return peer, gateways.scene.agent.takes("session/load")


def shown(gateways: Gateways) -> list[Told]:
    """Return the history as a client that loads it now sees it, which is as it is stored."""
    stored = gateways.shelf.read(gateways.scene.session())
    assert stored is not None
    assert stored.replay() == gateways.scene.session().journal.replay()
    return told(gateways.scene.join("late").load())


@pytest.mark.parametrize(
    ("replay", "late"), [(it, late) for it in REPLAYS for late in (False, True)] + [(it, False) for it in OTHERS]
)
@pytest.mark.parametrize("way", ["session/load", "session/resume", "session/new"])
def test_a_replay_takes_nothing_from_a_stored_history_and_repeats_nothing_of_it(
    gateways: Gateways, way: str, replay: list[Told], *, late: bool
) -> None:
    bob, asked = begin(gateways, way)
    if not late:
        tell(gateways.scene, replay)
    gateways.scene.agent.answer(asked)
    if late:
        tell(gateways.scene, replay)
    assert told(bob.heard()) == ([] if way == "session/resume" else SAID)
    assert shown(gateways) == SAID
    tell(gateways.scene, [("agent_message_chunk", "By the way:")])
    assert told(bob.heard()) == [("agent_message_chunk", "By the way:")]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("replay", [SAID, TEXT_ONLY])
def test_what_a_replay_has_after_the_last_stored_prompt_is_new_as_the_session_went_on_elsewhere(
    gateways: Gateways, replay: list[Told], *, late: bool
) -> None:
    bob, asked = begin(gateways, "session/load")
    if not late:
        tell(gateways.scene, replay + BEYOND)
    gateways.scene.agent.answer(asked)
    if late:
        tell(gateways.scene, replay + BEYOND)
    assert told(bob.heard()) == SAID + BEYOND
    assert shown(gateways) == SAID + BEYOND
    assert len(gateways.scene.session().journal.turn_ends()) == 2 + (not late)


def retold(gateways: Gateways, replay: list[Told], *, late: bool) -> list[Told]:
    """Return the history of a session that the agent tells again while it is loaded, or late."""
    bob, asked = begin(gateways, "session/load")
    if not late:
        tell(gateways.scene, replay)
    gateways.scene.agent.answer(asked)
    if late:
        tell(gateways.scene, replay)
    seen = told(bob.heard())
    assert shown(gateways) == seen
    return seen


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("replay", ODD_REPLAYS)
def test_prompts_without_text_or_answer_and_other_updates_are_told_again_once(
    replay: list[Told], *, late: bool
) -> None:
    assert retold(started_again(ODD), replay, late=late) == ODD
    if replay[-1] == ODD[-1]:
        assert retold(started_again(ODD), replay + BEYOND, late=late) == ODD + BEYOND


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("replay", REPLAYS)
def test_a_history_that_was_cut_is_told_again_once(replay: list[Told], *, late: bool) -> None:
    kept = [("agent_message_chunk", GAP), *SAID[6:]]
    assert retold(started_again(cut_to=400), replay, late=late) == kept
    if replay in (SAID, TEXT_ONLY):
        assert retold(started_again(cut_to=400), replay + BEYOND, late=late) == kept + BEYOND
        replay = [*replay[:-1], ("notice", "It took long."), *replay[-1:]]
        beyond = [("agent_message_chunk", "By the way:"), *BEYOND] if late else BEYOND
        assert retold(started_again(cut_to=400), replay + beyond, late=late) == kept + beyond


@pytest.mark.parametrize("late", [False, True])
def test_a_prompt_that_was_cut_off_is_not_taken_for_an_equal_one_that_was_kept(*, late: bool) -> None:
    turns = [[("user_message_chunk", "go on"), ("agent_message_chunk", f"Part {number}.")] for number in range(5)]
    said = [it for turn in turns for it in turn]
    kept = [("agent_message_chunk", GAP), *said[6:]]
    assert retold(started_again(said, cut_to=700), said, late=late) == kept


def test_the_states_of_a_replay_are_new_if_they_have_changed(gateways: Gateways) -> None:
    bob, asked = begin(gateways, "session/load")
    gateways.scene.agent.state("current_mode_update", currentModeId="m")
    gateways.scene.agent.answer(asked)
    *_, state, _ = bob.heard()
    assert state["params"]["update"]["currentModeId"] == "m"


def test_a_replay_is_taken_where_the_beginning_of_the_stored_history_is_unknown() -> None:
    gateways = Gateways()
    ann = gateways.scene.join("ann")
    ann.request("session/fork", sessionId="on the disk", cwd="/srv", mcpServers=[])
    gateways.scene.agent.answers("session/fork", sessionId="s")
    converse(gateways.scene, ann, SAID[6:])
    gateways.stop()
    for replay, seen in ((SAID[6:7], SAID[6:]), (TEXT_ONLY, TEXT_ONLY)):
        bob, asked = begin(gateways, "session/load")
        tell(gateways.scene, replay)
        gateways.scene.agent.answer(asked)
        assert told(bob.heard())[-len(seen) :] == seen
        gateways.stop()


def test_a_replay_is_taken_where_the_stored_history_is_empty() -> None:
    replay = [("agent_message_chunk", "Welcome back."), *SAID]
    assert retold(started_again([]), replay, late=False) == replay


@pytest.mark.parametrize(("method", "seen"), [("session/load", []), ("session/resume", [("agent_message_chunk", GAP)])])
def test_an_empty_history_lacks_its_beginning_until_an_agent_loads_it(method: str, seen: list[Told]) -> None:
    shelf = Shelf()
    scene = Scene(registry=Registry("me", shelf, "run"), agentCapabilities=CLOSES)
    bob = scene.join("bob")
    for way in ("session/resume", method):
        asked = bob.request(way, sessionId="s", cwd="/srv", mcpServers=[])
        if scene.wanted:
            scene.load_journal(shelf.read(scene.wanted[0]))
        scene.agent.answers(way)
        assert bob.hears()["id"] == asked
        late = scene.join("late")
        history = told(late.load())
        late.gone()
        close(scene, bob)
    assert history == seen


def test_what_a_replay_is_compared_with_counts_as_memory_until_the_first_prompt(gateways: Gateways) -> None:
    ends: list[Callable[[Scene], object]] = [
        lambda scene: scene.peers.popitem()[1].prompt(),
        lambda scene: scene.multiplexer.memory.end_echoes(),
    ]
    for end in ends:
        _, asked = begin(gateways, "session/load")
        gateways.scene.agent.answer(asked)
        memory = gateways.scene.multiplexer.memory
        assert memory.echo_bytes == 0
        tell(gateways.scene, SAID[:5])
        before = memory.echo_bytes
        gateways.scene.session().journal.shrink(400)
        assert memory.echo_bytes > before > 0
        end(gateways.scene)
        assert memory.echo_bytes == 0
        gateways.stop()


def test_a_history_that_a_killed_gateway_may_lack_the_end_of_says_so_to_who_loads_it(gateways: Gateways) -> None:
    gateways.scene.join("ann").request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    gateways.load_journal()
    gateways.scene.agent.answers("session/load")
    gateways.write()
    gateways.start()
    bob, asked = begin(gateways, "session/load")
    gateways.scene.agent.answer(asked)
    assert told(bob.heard()) == [*SAID, ("agent_message_chunk", MAY_BE_MISSING)]


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("beyond", [[], BEYOND])
def test_clients_that_stay_over_the_end_of_an_agent_see_nothing_twice(
    method: str, beyond: list[Told], *, late: bool
) -> None:
    resumes: dict[str, Any] = {"sessionCapabilities": {"resume": {}}} if method == "session/resume" else {}
    scene = Scene(agentCapabilities={"loadSession": True} | resumes)
    ann, bob = scene.join("ann"), scene.join("bob")
    ann.new_session()
    converse(scene, ann)
    bob.load()
    scene.lose_agent()
    bob.request("session/list")
    scene.agent.answers("initialize", **scene.welcome)
    asked = scene.agent.takes(method)
    if not late:
        tell(scene, TEXT_ONLY + beyond)
    scene.agent.answer(asked)
    if late:
        tell(scene, TEXT_ONLY + beyond)
    assert told(bob.heard()) == beyond
    assert told(scene.join("late").load()) == SAID + beyond


@pytest.mark.parametrize("replay", [[], SAID, TEXT_ONLY])
@pytest.mark.parametrize("late", [False, True])
def test_a_fork_has_the_history_of_its_parent_once(replay: list[Told], *, late: bool) -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.new_session()
    converse(scene, ann)
    ann.heard()
    ann.request("session/fork", sessionId="s", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/fork")
    if not late:
        tell(scene, replay, "f")
    scene.agent.answer(asked, sessionId="f")
    if late:
        tell(scene, replay, "f")
    assert told(ann.heard()) == []
    assert told(scene.join("late").load("f")) == SAID


def test_after_the_first_prompt_nothing_counts_as_told_again(gateways: Gateways) -> None:
    _, asked = begin(gateways, "session/load")
    gateways.scene.agent.answer(asked)
    bob = next(iter(gateways.scene.peers.values()))
    bob.heard()
    converse(gateways.scene, bob, SAID[:1])
    tell(gateways.scene, SAID[:1])
    assert shown(gateways) == SAID + SAID[:1] * 2
