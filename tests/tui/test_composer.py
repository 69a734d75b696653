"""The field of the prompt."""

from acp_gateway.tui.composer import HISTORY, MOST_ROWS, Composer, ComposerBox
from tests.tui.screens import drawn, press

SIZE = (20,)


class Written:
    """A composer, and what it has sent."""

    def __init__(self, *, accepts: bool = True) -> None:
        self.sent: list[str] = []
        self.composer = Composer(lambda text: self.sent.append(text) or accepts)  # type: ignore[func-returns-value]
        self.box = ComposerBox(self.composer)

    def type(self, *keys: str) -> list[str]:
        return press(self.box, SIZE, *keys)


def test_enter_sends_and_alt_enter_begins_a_line() -> None:
    written = Written()
    assert written.type("h", "i", "meta enter", "y", "o", "u") == []
    assert drawn(written.box, SIZE) == ["> hi", "you"]
    written.type("enter")
    assert (written.sent, written.composer.edit_text) == (["hi\nyou"], "")


def test_nothing_is_sent_of_an_empty_text_and_a_text_that_is_refused_stays() -> None:
    written = Written(accepts=False)
    written.type("enter", " ", "enter")
    assert written.sent == []
    written.type("x", "enter")
    assert (written.sent, written.composer.edit_text) == ([" x"], " x")


def test_line_breaks_and_tabs_of_a_paste_are_text() -> None:
    written = Written()
    written.type("begin paste", "a", "enter", "tab", "b", "end paste")
    assert (written.sent, written.composer.edit_text) == ([], "a\n    b")
    written.type("enter")
    assert written.sent == ["a\n    b"]


def test_the_field_grows_with_its_text_and_scrolls_beyond_that() -> None:
    written = Written()
    assert written.box.rows(SIZE) == 1
    for number in range(20):
        written.type(*str(number), "meta enter")
    written.type("x")
    assert written.box.rows(SIZE) == MOST_ROWS
    assert drawn(written.box, SIZE)[-2:] == ["19", "x"]
    for _ in range(20):
        written.type("up")
    assert drawn(written.box, SIZE)[0] == "> 0"


def test_earlier_prompts_come_back() -> None:
    written = Written()
    for text in ("a", "b"):
        written.type(text, "enter")
    seen = []
    for key in ("ctrl p", "ctrl p", "ctrl p", "ctrl n", "ctrl n", "ctrl n"):
        written.type(key)
        seen.append(written.composer.edit_text)
    assert seen == ["b", "a", "a", "b", "", ""]


def test_no_more_prompts_are_kept_than_the_history_has() -> None:
    written = Written()
    for number in range(HISTORY + 5):
        written.type(*str(number), "enter")
    for _ in range(HISTORY + 5):
        written.type("ctrl p")
    assert written.composer.edit_text == "5"


def test_other_keys_are_left_to_the_program() -> None:
    assert Written().type("f1", "esc") == ["f1", "esc"]
