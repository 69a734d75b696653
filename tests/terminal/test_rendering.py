"""Blocks as lines: what stands in them, and that no text of an agent can do more than stand there."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal.content import Diff, Location
from acp_gateway.terminal.line_diff import MOST_COMPARED, TOO_MANY
from acp_gateway.terminal.rendering import (
    LINE_SIZE,
    MOST_DIFFS,
    Span,
    Style,
    render,
    render_diff,
    render_tool,
    tool_line,
)
from acp_gateway.terminal.transcript import Block, Level, Tool, Transcript
from tests.fuzz.effort import effort
from tests.kit.updates import HOSTILE, any_updates, plain_text, plan, said, tool


def fold(*updates: object) -> Block:
    transcript = Transcript()
    for update in updates:
        transcript.apply(update)
    return transcript.blocks[-1]


def shown(*updates: object, **options: Any) -> list[str]:
    return plain_text(render(fold(*updates), **options)).splitlines()


@pytest.mark.parametrize(
    ("kind", "lines"), [("user", ["> a", "> ", "> b"]), ("agent", ["a", "", "b"]), ("thought", ["~ a", "~ ", "~ b"])]
)
def test_a_message_has_a_prefix_for_its_kind(kind: str, lines: list[str]) -> None:
    assert shown(said("a\n\nb\r\n\n", kind)) == lines


def test_what_a_sub_agent_does_has_a_margin() -> None:
    meta = {"claudeCode": {"parentToolUseId": "t"}}
    assert shown(said("a\nb", _meta=meta)) == ["| a", "| b"]
    assert shown(tool(title="Read", _meta=meta)) == ["| ○ Read"]


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("pending", "○ Read a /b:3 and 1 more"),
        ("in_progress", "◐ Read a /b:3 and 1 more"),
        ("completed", "● Read a /b:3 and 1 more"),
        ("failed", "✗ Read a /b:3 and 1 more (failed)"),
        ("odd\x1b", "○ Read a /b:3 and 1 more (odd\\x1b)"),
    ],
)
def test_a_tool_call_is_one_line_with_its_state_title_and_places(status: str, line: str) -> None:
    places = [{"path": "a"}, {"path": "/b", "line": 3}, {"path": "/c"}]
    assert shown(tool(title="Read a", status=status, locations=places)) == [line]


def test_a_tool_call_without_a_title_is_named_by_its_kind() -> None:
    assert shown(tool(kind="edit")) == ["○ edit"]
    assert shown(tool()) == ["○ a tool"]


def test_the_diffs_of_a_tool_call_stand_below_it() -> None:
    diff = {"type": "diff", "path": "/a", "oldText": "1\n2\n3\n4\n", "newText": "1\n2\n3\n5\n"}
    block = fold(tool(title="Edit", content=[diff]))
    assert plain_text(render(block)) == "○ Edit\n    /a +1 -1\n    @ line 2\n      2\n      3\n    - 4\n    + 5\n"
    assert [line[-1].style for line in render(block)][-2:] == [Style.REMOVED, Style.ADDED]
    assert plain_text(render(block, lines=2)).endswith("    @ line 2\n      2\n    … 3 more\n")


def test_the_output_of_a_tool_call_is_shown_if_it_has_failed_or_details_are_wanted() -> None:
    text = {"type": "content", "content": {"type": "text", "text": "\x1b[31mone\x1b[0m\ntwo\nthree\n"}}
    done = tool(title="make", status="completed", content=[text], rawInput={"command": "make test"})
    assert shown(done) == ["● make"]
    assert shown(done, details=True) == ["● make", "    $ make test", "    one", "    two", "    three"]
    failed = tool(title="make", status="failed", content=[text])
    assert shown(failed, lines=1) == ["✗ make (failed)", "    … 2 more", "    three"]


def test_a_plan_has_its_progress_and_its_entries() -> None:
    assert shown(plan(("read", "completed"), ("write", "in_progress"), ("test", "?"))) == [
        "Plan 1/3",
        "  ● read",
        "  ◐ write",
        "  ○ test",
    ]


def test_a_note_has_its_own_mark() -> None:
    block = Transcript().note("the turn\nhas ended", Level.GOOD).block
    assert plain_text(render(block)) == "-- the turn has ended\n"


def test_long_lines_of_diffs_and_outputs_are_cut() -> None:
    long = "x" * (2 * LINE_SIZE)
    diff = {"type": "diff", "path": "a", "newText": long}
    text = {"type": "content", "content": {"type": "text", "text": long}}
    assert max(map(len, shown(tool(status="failed", content=[diff, text])))) < LINE_SIZE + 20


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_visible_in_every_place(text: str) -> None:
    diff = {"type": "diff", "path": text, "oldText": text, "newText": f"{text}x"}
    output = {"type": "content", "content": {"type": "text", "text": text}}
    everything = tool(
        title=text, status=text, rawInput={"command": text}, locations=[{"path": text}], content=[diff, output]
    )
    for update in (said(text), said(text, "user"), everything, plan((text, text)), {"sessionUpdate": f"x{text}"}):
        lines = shown(update, details=True)
        assert lines
        assert all(line.isprintable() for line in lines)


@given(st.lists(any_updates, max_size=8), st.integers(0, 5), st.booleans())
@effort(30)
def test_every_span_is_printable_whatever_the_updates_are(updates: list[Any], lines: int, details: bool) -> None:
    transcript = Transcript()
    for update in updates:
        transcript.apply(update)
    for block in transcript.blocks:
        for line in render(block, lines=lines, details=details):
            assert all(span.text.isprintable() for span in line)


def test_a_tool_call_shows_one_place_and_a_few_of_many_diffs() -> None:
    places = [Location("in the title", 1), Location("/a", 2), Location("/b", None)]
    shown = Tool(
        number=1, id="c", title="edit in the title", locations=places, diffs=[Diff("/a", "", "x")] * (MOST_DIFFS + 3)
    )
    assert plain_text([tool_line(shown)]).rstrip().endswith("edit in the title /a:2 and 1 more")
    assert plain_text(render_tool(shown)[-1:]).strip() == "… 3 more diffs"


def test_places_are_looked_for_in_the_part_of_a_title_that_is_shown() -> None:
    shown = Tool(number=1, id="c", title="a" * 4_000_000, locations=[Location("a" * 400 + "b", None)] * 5000)
    assert "and 4999 more" in plain_text([tool_line(shown)])


def test_what_of_a_diff_was_not_compared_is_told() -> None:
    count = MOST_COMPARED + 1
    head, first, *_ = render_diff(Diff("a.py", "a\n" * count, "b\na\n" * count))
    assert plain_text([head, first]) == f"    a.py +{2 * count - 1} -{count - 1}\n    ! {TOO_MANY}\n"


def test_markdown_is_styled_in_what_an_agent_writes_and_nowhere_else() -> None:
    text = "# Title\n- run `a\x1b[31mb` **now**"
    lines = render(fold(said(text)))
    assert lines == [
        [Span("# Title", Style.HEADING)],
        [
            Span("- ", Style.HUNK),
            Span("run "),
            Span("`a\\x1b[31mb`", Style.CODE),
            Span(" "),
            Span("**now**", Style.STRONG),
        ],
    ]
    for kind, style in (("user", Style.USER), ("thought", Style.THOUGHT)):
        assert {span.style for line in render(fold(said(text, kind))) for span in line} == {style}
