"""The transcript on the screen: what is drawn, and which part of it."""

from typing import Any

from acp_gateway.terminal.transcript import Transcript
from acp_gateway.tui.transcript_box import TranscriptBox
from tests.terminal.updates import HOSTILE, said, tool
from tests.tui.screens import drawn

SIZE = (30, 5)


class Shown:
    """A transcript and its box."""

    def __init__(self, size: int = 1_000_000) -> None:
        self.transcript = Transcript(size)
        self.box = TranscriptBox(self.transcript)

    def apply(self, *updates: Any) -> None:
        for update in updates:
            self.box.show(self.transcript.apply(update))

    @property
    def count(self) -> int:
        """The number of rows, also of those that are not on the screen."""
        rows: Any = self.box.body
        return len(rows)

    @property
    def lines(self) -> list[str]:
        return drawn(self.box, SIZE)


def numbered(first: int, last: int) -> list[Any]:
    return [tool(str(number), title=f"tool {number}") for number in range(first, last + 1)]


def test_messages_are_drawn_as_they_grow_with_a_line_between_them() -> None:
    shown = Shown()
    shown.apply(said("hi", "user"), said("hel"))
    assert shown.lines == ["", "> hi", "", "hel"]
    shown.apply(said("lo"))
    assert shown.lines == ["", "> hi", "", "hello"]


def test_long_lines_are_wrapped() -> None:
    shown = Shown()
    shown.apply(said("word " * 10))
    assert shown.lines[1:] == ["word word word word word word", "word word word word"]


def test_the_end_is_shown_until_it_is_scrolled_back() -> None:
    shown = Shown()
    shown.apply(*numbered(1, 9))
    assert shown.lines == [f"○ tool {number}" for number in range(5, 10)]
    shown.box.scroll("page up")
    assert not shown.box.follows
    before = shown.lines
    assert before[0] == "○ tool 1"
    shown.apply(*numbered(10, 12))
    assert shown.lines == before
    shown.box.scroll("end")
    assert shown.lines[-1] == "○ tool 12"
    shown.apply(*numbered(13, 13))
    assert shown.lines[-1] == "○ tool 13"


def test_scrolling_down_to_the_end_follows_it_again() -> None:
    shown = Shown()
    shown.apply(*numbered(1, 9))
    assert shown.lines
    shown.box.scroll("home")
    assert shown.lines[0] == "○ tool 1"
    shown.box.scroll("page down")
    shown.box.scroll("page down")
    assert shown.box.follows
    shown.apply(*numbered(10, 10))
    assert shown.lines[-1] == "○ tool 10"


def test_a_block_that_is_higher_than_the_screen_shows_its_end() -> None:
    shown = Shown()
    shown.apply(said("\n".join(map(str, range(20)))))
    assert shown.lines == ["15", "16", "17", "18", "19"]
    shown.box.scroll("page up")
    assert shown.lines[0] == "10"


def test_blocks_that_the_transcript_drops_are_dropped_here() -> None:
    shown = Shown(size=1000)
    shown.apply(*numbered(1, 50))
    assert shown.count == len(shown.transcript.blocks) < 10
    assert shown.lines[-1] == "○ tool 50"
    shown.box.show_all()
    assert shown.count == len(shown.transcript.blocks)
    assert shown.lines[-1] == "○ tool 50"


def test_details_show_the_output_of_tools() -> None:
    text = {"type": "content", "content": {"type": "text", "text": "done"}}
    shown = Shown()
    shown.apply(tool(title="make", status="completed", content=[text]))
    assert shown.lines == ["● make"]
    shown.box.toggle_details()
    assert shown.lines == ["● make", "    done"]
    shown.box.toggle_details()
    assert shown.lines == ["● make"]


def test_an_empty_transcript_can_be_drawn_and_scrolled() -> None:
    shown = Shown()
    shown.box.scroll("page up")
    assert shown.lines == []


def test_hostile_texts_are_drawn_as_text() -> None:
    shown = Shown()
    for text in HOSTILE.values():
        shown.apply(said(text), tool(text, title=text, status="failed"))
        assert all(line.isprintable() for line in shown.lines)
