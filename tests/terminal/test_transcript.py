"""Updates folded into blocks, also compared with a fold that is written in another way."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal.transcript import (
    BLOCK_SIZE,
    HARD_SIZE,
    OUTPUT_SIZE,
    SOFT_SIZE,
    Block,
    Kind,
    Level,
    Message,
    Note,
    Plan,
    Tool,
    Transcript,
)
from tests.fuzz.effort import effort
from tests.kit.updates import Update, any_updates, chunks, plan, said, tool


def fold(*updates: object) -> list[Block]:
    transcript = Transcript()
    for update in updates:
        transcript.apply(update)
    return list(transcript.blocks)


def messages(blocks: list[Block]) -> list[tuple[Kind, str]]:
    return [(block.kind, block.text) for block in blocks if isinstance(block, Message)]


def only(*updates: object) -> Any:
    (block,) = fold(*updates)
    return block


def test_chunks_of_one_kind_are_one_message() -> None:
    blocks = fold(said("a"), said("b"), said("c", "thought"), said("d"), said("e", "user"))
    assert messages(blocks) == [(Kind.AGENT, "ab"), (Kind.THOUGHT, "c"), (Kind.AGENT, "d"), (Kind.USER, "e")]


def test_another_message_id_begins_another_message() -> None:
    assert messages(fold(said("a", messageId="1"), said("b", messageId="1"), said("c", messageId="2"))) == [
        (Kind.AGENT, "ab"),
        (Kind.AGENT, "c"),
    ]


def test_the_end_of_a_turn_ends_its_message_and_its_plan() -> None:
    transcript = Transcript()
    transcript.apply(said("a"))
    transcript.apply(plan(("x", "completed")))
    transcript.end_turn()
    transcript.apply(said("b"))
    transcript.apply(plan(("y", "pending")))
    assert [type(block).__name__ for block in transcript.blocks] == ["Message", "Plan", "Message", "Plan"]


def test_each_sub_agent_has_a_lane_of_its_own() -> None:
    transcript = Transcript()
    for text, lane in (("a", ""), ("x", "child"), ("b", ""), ("y", "child")):
        transcript.apply(said(text), lane)
    transcript.apply(said("z", _meta={"claudeCode": {"parentToolUseId": "t1"}}))
    assert [(block.lane, block.text) for block in transcript.blocks if isinstance(block, Message)] == [
        ("", "ab"),
        ("child", "xy"),
        ("t1", "z"),
    ]


def test_what_is_not_text_has_a_description_in_its_message() -> None:
    image = {"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "mimeType": "image/png"}}
    assert messages(fold(said("see "), image)) == [(Kind.AGENT, "see [image image/png]")]


def test_updates_of_a_tool_call_change_its_block_and_keep_what_they_do_not_give() -> None:
    block = only(
        tool(title="Read a", kind="read", status="pending", locations=[{"path": "/a", "line": 3}, {"line": 1}]),
        tool(status="in_progress", rawInput={"command": ["cat", "a"]}),
        tool(status="completed", title=None, content=[{"type": "content", "content": {"type": "text", "text": "x"}}]),
    )
    assert isinstance(block, Tool)
    assert (block.title, block.kind, block.status, block.input, block.output) == (
        "Read a",
        "read",
        "completed",
        "cat a",
        "x",
    )
    assert block.locations == [("/a", 3)]
    assert block.is_over


def test_the_output_of_a_terminal_is_appended_and_its_end_is_kept() -> None:
    block = only(*(tool(_meta={"terminal_output": {"data": part}}) for part in ("a" * OUTPUT_SIZE, "b")))
    assert block.output == "a" * (OUTPUT_SIZE - 1) + "b"


def test_a_plan_replaces_the_one_of_the_same_turn() -> None:
    blocks = fold(plan(("x", "pending")), said("a"), plan(("x", "completed")), said("next", "user"), plan(("z", "?")))
    assert [block.entries for block in blocks if isinstance(block, Plan)] == [[("x", "completed")], [("z", "?")]]


def test_a_mode_is_noted_once() -> None:
    mode = {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
    block = only(mode, mode)
    assert isinstance(block, Note)
    assert block.text == "mode: plan"


def test_the_title_of_the_session_is_kept() -> None:
    transcript = Transcript()
    assert transcript.apply({"sessionUpdate": "session_info_update", "title": "Tests"}) == []
    assert transcript.title == "Tests"


def test_unknown_updates_are_noted_once_in_a_row() -> None:
    block = only({"sessionUpdate": "news"}, {"sessionUpdate": "news"}, {"sessionUpdate": "usage_update"})
    assert block.text == "an update of an unknown kind: news"


@pytest.mark.parametrize("update", [None, [], "x", {}, {"sessionUpdate": 3}, {"sessionUpdate": "agent_message_chunk"}])
def test_what_is_not_an_update_adds_nothing_or_a_description(update: object) -> None:
    assert all(isinstance(block, Message) for block in fold(update))


def test_a_long_message_goes_on_in_another_block_at_a_line_break() -> None:
    line = "x" * (SOFT_SIZE - 10) + "\n"
    blocks = fold(said(line), said("short\nand longer\nrest"))
    assert [(block.text, block.continued) for block in blocks if isinstance(block, Message)] == [
        (line + "short\nand longer\n", False),
        ("rest", True),
    ]


def test_a_message_without_line_breaks_goes_on_in_another_block_as_well() -> None:
    blocks = fold(said("x" * (HARD_SIZE + 5)))
    assert [len(block.text) for block in blocks if isinstance(block, Message)] == [HARD_SIZE, 5]


def test_the_oldest_blocks_are_dropped_beyond_the_size() -> None:
    transcript = Transcript(size=3 * (BLOCK_SIZE + 10))
    for number in range(5):
        transcript.apply(said("x" * 10, messageId=str(number)))
    assert (len(transcript.blocks), transcript.dropped) == (3, 2)


def test_a_tool_call_that_was_dropped_starts_over() -> None:
    transcript = Transcript(size=BLOCK_SIZE)
    transcript.apply(tool(title="old"))
    transcript.note("something", Level.BAD)
    (change,) = transcript.apply(tool(status="completed"))
    assert change.new
    assert [type(block) for block in transcript.blocks] == [Tool]


@given(st.lists(any_updates, max_size=20), st.integers(0, 2000))
@effort(30)
def test_the_size_is_that_of_the_blocks_and_within_the_limit_but_for_the_last_block(
    updates: list[Any], size: int
) -> None:
    transcript = Transcript(size)
    for update in updates:
        transcript.apply(update)
    sizes = [block.size for block in transcript.blocks]
    assert transcript._size == sum(sizes)
    assert len(sizes) <= 1 or sum(sizes) <= size


@given(st.lists(any_updates, max_size=20))
@effort(30)
def test_changes_tell_of_each_block_that_is_new_or_different(updates: list[Any]) -> None:
    transcript = Transcript()
    known: dict[int, str] = {}
    for update in updates:
        for change in transcript.apply(update):
            assert change.new is (change.block.number not in known)
            text = change.block.text if isinstance(change.block, Message) else ""
            assert not change.added or text.startswith(known.get(change.block.number, "") + change.added)
            known[change.block.number] = text
    assert list(known) == [block.number for block in transcript.blocks]


@given(st.lists(chunks | st.just(plan(("x", "pending"))), max_size=20))
@effort(30)
def test_messages_are_those_of_a_fold_that_joins_neighbours_of_one_kind(updates: list[Update]) -> None:
    joined: list[list[Any]] = []
    for update in updates:
        if update["sessionUpdate"] == "plan":
            # A plan that is shown already is changed where it stands.
            if not any(one[0] == "plan" for one in joined[last_user(joined) :]):
                joined.append(["plan", None, ""])
            continue
        alone = next(iter(fold(update)), None)
        if isinstance(alone, Message):
            if joined and joined[-1][:2] == [alone.kind, alone.message_id]:
                joined[-1][2] += alone.text
            else:
                joined.append([alone.kind, alone.message_id, alone.text])
    assert messages(fold(*updates)) == [(kind, text) for kind, _, text in joined if kind != "plan"]


def last_user(joined: list[list[Any]]) -> int:
    """Return the place of the last message of the user, which begins a turn."""
    return max((at for at, one in enumerate(joined) if one[0] is Kind.USER), default=0)


@given(st.text("x\n", max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_a_text_is_folded_alike_however_it_is_cut(text: str, cuts: list[int]) -> None:
    text = text * (HARD_SIZE // 40)
    places = [0, *sorted(cut * HARD_SIZE // 40 for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(places)]
    assert messages(fold(*map(said, parts))) == messages(fold(said(text)))
