"""Echoes of prompts: the sender gets them, the other clients and the history have the prompt once."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role
from acp_gateway.core.turns.echoes import MAX_WITHHELD
from acp_gateway.protocol.text.pairs import texts_of
from tests.kit.scene import Peer, Scene, Shelf, encode, make_policy, news_params, opened_scene

Block = dict[str, Any]


def text(words: str, **more: Any) -> Block:
    return {"type": "text", "text": words} | more


def image(data: str = "AAAA", **more: Any) -> Block:
    return {"type": "image", "data": data, "mimeType": "image/png"} | more


def says(block: Block, kind: str = "user_message_chunk", **more: Any) -> bytes:
    update = {"sessionUpdate": kind, "content": block, **more}
    return encode(method="session/update", params={"sessionId": "s", "update": update})


def answer(words: str = "done") -> bytes:
    return says(text(words), "agent_message_chunk")


class Turn:
    """A session with its sender and others, and a turn in it."""

    def __init__(self, scene: Scene | None = None) -> None:
        self.scene = scene or Scene()
        self.ann = self.scene.join("ann", link="the link of ann")
        self.ann.new_session()
        self.bob = self.scene.join("bob", link="the link of bob")
        self.eve = self.scene.join("eve", role=Role.OBSERVER)
        for peer in (self.bob, self.eve):
            peer.load()
        self.agent = self.scene.agent

    def begins(self, *blocks: Block, by: Peer | None = None) -> int:
        """A prompt; its id at the agent."""
        (by or self.ann).request("session/prompt", sessionId="s", prompt=list(blocks))
        asked = self.agent.takes("session/prompt")
        for peer in (self.ann, self.bob, self.eve):
            peer.inbox.clear()
        return int(asked["id"])

    def ends(self, raw_id: int) -> None:
        self.agent.send(id=raw_id, result={"stopReason": "end_turn"})

    def says(self, *lines: bytes) -> None:
        """The agent says something, in one batch."""
        self.scene.multiplexer.receive_from_agent(lines)
        self.scene.deliver()

    def history(self) -> list[bytes]:
        """Return the history of a late joiner."""
        joiner = self.scene.join("late")
        joiner.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
        heard = joiner.heard_text()[:-1]
        joiner.gone()
        return heard


def contents(lines: Sequence[bytes]) -> list[tuple[str, Any]]:
    """Return role and text of these updates."""
    updates = [message["params"]["update"] for message in map(json.loads, lines) if "params" in message]
    return [(update["sessionUpdate"].partition("_")[0], update.get("content")) for update in updates]


def test_an_echo_of_a_prompt_goes_to_its_sender_alone() -> None:
    turn = Turn()
    turn.begins(text("fix it"))
    echo = says(text("fix it"), messageId="m1", _meta={"n": 1})
    turn.says(echo)
    turn.says(answer())
    assert turn.ann.heard_text() == [echo, answer()]
    assert turn.bob.heard_text() == turn.eve.heard_text() == [answer()]
    assert contents(turn.history()) == [("user", text("fix it")), ("agent", text("done"))]


@pytest.mark.parametrize(
    "echo",
    [
        [text("a b"), text("c")],
        [text("a bc")],
        [text("a b\n\nc")],
        [text("a"), text(" "), text("b"), text("c")],
        [text("a b", annotations=None), image(), text("c")],
        [image(uri="file:///a"), text("a b\nc\n")],
        [text("a b\nc\n"), image()],
    ],
)
def test_an_echo_may_come_in_pieces_together_and_without_what_is_not_a_text(echo: list[Block]) -> None:
    turn = Turn()
    turn.begins(text("a b"), image(), text("c"))
    said = [says(block) for block in echo]
    for line in said:
        turn.says(line)
    turn.says(answer())
    assert turn.ann.heard_text() == [*said, answer()]
    assert turn.bob.heard_text() == [answer()]


@pytest.mark.parametrize(
    "said",
    [
        [text("fix")],
        [text("fix it!")],
        [text("Fix it")],
        [text("fix"), text("that")],
        [text("fix"), image()],
        [image(), text("fix it")],
        [{"type": "new", "n": 1}],
        [{"n": 1}],
    ],
)
def test_user_messages_that_are_not_an_echo_go_to_all_clients_in_order(said: list[Block]) -> None:
    turn = Turn()
    turn.begins(text("fix it"))
    lines = [*map(says, said), answer()]
    for line in lines:
        turn.says(line)
    assert turn.ann.heard_text() == turn.bob.heard_text() == turn.eve.heard_text() == lines
    assert turn.history()[1:] == lines


@pytest.mark.parametrize("kind", ["available_commands_update", "usage_update", "session_info_update", "plan"])
def test_the_state_of_the_session_is_not_something_else(kind: str) -> None:
    turn = Turn()
    turn.begins(text("fix it"))
    state = encode(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": kind}})
    turn.says(state, says(text("fix")), state, says(text("it")))
    assert turn.bob.heard_text() == [state, state]


def test_what_is_withheld_at_the_end_of_the_turn_is_told_before_it() -> None:
    turn = Turn()
    cem = turn.scene.join("cem", **news_params())
    cem.load()
    asked = turn.begins(text("fix it"))
    cem.heard()
    turn.says(says(text("fix")))
    assert turn.bob.heard_text() == []
    turn.ends(asked)
    assert turn.bob.heard_text() == [says(text("fix"))]
    assert [message["method"] for message in cem.heard()] == ["session/update", "_acp-gateway/news"]
    assert turn.history()[-1] == says(text("fix"))


def test_what_is_withheld_when_the_agent_ends_is_told_as_well() -> None:
    turn = Turn(Scene(agentCapabilities={"loadSession": True}))
    turn.begins(text("fix it"))
    turn.says(says(text("fix")))
    turn.scene.lose_agent()
    assert turn.bob.heard_text() == [says(text("fix"))]


def test_of_two_equal_prompts_that_wait_for_each_other_each_has_its_echo() -> None:
    turn = Turn()
    turn.ann.prompt("go")
    turn.bob.prompt("go")
    first = turn.agent.takes("session/prompt")
    turn.says(says(text("go")), answer("1"))
    turn.ends(first["id"])
    second = turn.agent.takes("session/prompt")
    turn.says(says(text("go")), answer("2"))
    turn.ends(second["id"])
    assert contents(turn.history()) == [
        ("user", text("go")),
        ("agent", text("1")),
        ("user", text("go")),
        ("agent", text("2")),
    ]
    assert contents(turn.eve.heard_text()) == contents(turn.history())


def test_an_agent_that_steers_by_prompts_within_a_turn_may_echo_each_at_once() -> None:
    scene, ann = opened_scene(make_policy(shared=False))
    for words in ("one", "two"):
        ann.prompt(words)
        scene.agent.say(says(text(words)))
        scene.agent.update(f"done {words}")
    history = texts_of(scene.session().journal.replay())
    assert contents(history) == [
        ("user", text("one")),
        ("agent", text("done one")),
        ("user", text("two")),
        ("agent", text("done two")),
    ]


def test_an_echo_of_a_gone_sender_is_dropped() -> None:
    turn = Turn()
    turn.begins(text("fix it"))
    turn.ann.gone()
    turn.says(says(text("fix it")), answer())
    assert turn.bob.heard_text() == [answer()]


def test_a_client_that_joins_in_the_middle_of_an_echo_sees_the_prompt_once() -> None:
    turn = Turn()
    turn.begins(text("fix it"))
    turn.says(says(text("fix")))
    cem = turn.scene.join("cem")
    cem.load()
    turn.says(says(text("it")), answer())
    assert cem.heard_text() == [answer()]


def test_a_subagent_is_not_the_session() -> None:
    turn = Turn()
    turn.begins(text("fix it"))
    child = encode(
        method="session/update",
        params={"sessionId": "child", "update": {"sessionUpdate": "user_message_chunk", "content": text("fix it")}},
    )
    turn.says(child)
    assert turn.bob.heard_text() == [child]
    turn.says(says(text("fix it")))
    assert turn.bob.heard_text() == []


def test_a_piece_may_end_within_a_character_as_javascript_counts_them() -> None:
    turn = Turn()
    turn.begins(text("😀 😀"))
    for piece in ("\ud83d", "\ude00 \ud83d", "\ude00"):
        turn.says(says(text(piece)))
    turn.says(answer())
    assert turn.bob.heard_text() == [answer()]


def test_a_prompt_that_the_history_cannot_hold_is_not_kept_to_be_compared() -> None:
    turn = Turn(Scene(make_policy(journal_limit=1000)))
    turn.begins(text("x" * 1000))
    assert turn.scene.session().echo is None
    echo = says(text("x" * 1000))
    turn.says(echo)
    assert turn.bob.heard_text() == [echo]


def test_no_more_than_so_much_is_withheld() -> None:
    turn = Turn()
    turn.begins(text("fix it"))
    padded = says(text(" ", padding="x" * (MAX_WITHHELD // 4)))
    for _ in range(4):
        turn.says(padded)
    assert turn.bob.heard_text() == [padded] * 4


def test_a_history_that_the_agent_replays_is_taken_as_it_is() -> None:
    scene = Scene(agentCapabilities={"loadSession": True})
    ann = scene.join("ann")
    ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
    asked = scene.agent.takes("session/load")
    lines = [says(text("go")), says(text("go")), answer()]
    for line in lines:
        scene.agent.say(line)
    scene.agent.answer(asked)
    assert ann.heard_text()[:-1] == lines
    assert scene.session().journal.replay() == lines


def test_what_is_stored_has_the_prompt_once_as_well() -> None:
    shelf = Shelf()
    turn = Turn(Scene(registry=Registry("me", shelf, "run")))
    turn.begins(text("fix it"))
    turn.says(says(text("fix")), says(text("it")), answer())
    (kept,) = shelf.journals.values()
    assert kept.replay() == turn.scene.session().journal.replay()
    assert contents(texts_of(kept.replay())) == [("user", text("fix it")), ("agent", text("done"))]


# Against a model

words = st.text("ab ", max_size=4)
blocks = st.builds(text, words) | st.builds(image, st.sampled_from(["AAAA", "BBBB"]))
booleans = st.booleans()
others = st.sampled_from([answer(), says(text("a"), "agent_thought_chunk")])


@st.composite
def turns(draw: st.DrawFn) -> tuple[list[Block], list[bytes]]:
    """A prompt, and what an agent says to it: mostly an echo, in some way."""
    prompt = draw(st.lists(blocks, max_size=4))
    echo = list(prompt)
    if draw(booleans):
        echo = [block for block in echo if block["type"] == "text"]
    if draw(booleans):
        echo = [text("\n".join(block["text"] for block in echo if block["type"] == "text"))]
    pieces: list[Block] = []
    for block in echo:
        cut = draw(st.integers(0, 4))
        if block["type"] == "text" and cut:
            pieces += [text(block["text"][:cut]), text(block["text"][cut:])]
        else:
            pieces.append(block)
    said = list(map(says, pieces))
    for _ in range(draw(st.integers(0, 2))):
        said.insert(draw(st.integers(0, len(said))), draw(st.one_of(others, st.builds(says, blocks))))
    if draw(booleans) and said:
        del said[draw(st.integers(0, len(said) - 1))]
    return prompt, said


def bare(words: str) -> str:
    return "".join(words.split())


def shown(prompt: list[Block], said: list[bytes]) -> list[bytes]:
    """Return the updates for the other clients: without the longest echo at the beginning."""
    whole = bare("".join(block["text"] for block in prompt if block["type"] == "text"))
    images = [block["data"] for block in prompt if block["type"] == "image"]
    longest = 0
    heard, left = "", list(images)
    for count, line in enumerate(said, 1):
        update = json.loads(line)["params"]["update"]
        block = update["content"]
        if update["sessionUpdate"] != "user_message_chunk":
            break
        if block["type"] == "text":
            if heard == whole:
                break
            heard += bare(block["text"])
        elif block["data"] in left:
            left.remove(block["data"])
        else:
            break
        if not whole.startswith(heard):
            break
        if heard == whole and (whole or not left):
            longest = count
    event(f"an echo of {longest}")
    return said[longest:]


@given(turns(), st.booleans())
def test_other_clients_see_what_the_model_of_echoes_says_and_the_sender_everything(
    case: tuple[list[Block], list[bytes]], at_once: bool
) -> None:
    prompt, said = case
    turn = Turn()
    asked = turn.begins(*prompt)
    for batch in [said] if at_once else [[line] for line in said]:
        turn.says(*batch)
    turn.ends(asked)
    expected = shown(prompt, said)
    assert turn.ann.heard_text()[:-1] == said
    assert turn.bob.heard_text() == turn.eve.heard_text() == expected
    assert contents(turn.history()) == contents([*map(says, prompt), *expected])
    # Counting clients have the position of the journal.
    assert turn.ann.seen["s"] == turn.bob.seen["s"] == turn.scene.place()


@pytest.mark.parametrize(
    "block",
    [
        image(),
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "a"}},
        {"type": "of another version", "x": 1},
        {"text": "of no type"},
    ],
)
def test_an_echo_of_any_content_goes_to_the_sender_alone(block: Block) -> None:
    turn = Turn()
    turn.begins(block)
    turn.says(says(block))
    assert contents(turn.ann.heard_text()) == [("user", block)]
    assert contents(turn.bob.heard_text()) == []


def test_a_user_message_without_content_is_not_an_echo() -> None:
    turn = Turn()
    turn.begins(image())
    turn.says(
        encode(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "user_message_chunk"}})
    )
    assert contents(turn.bob.heard_text()) == [("user", None)]
