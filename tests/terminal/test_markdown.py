"""The parts of Markdown in texts that come in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal.markdown import HELD, Markdown, Part, Piece

SIGNS = {
    Part.TEXT: "",
    Part.HEADING: "h",
    Part.STRONG: "b",
    Part.CODE: "c",
    Part.LINK: "l",
    Part.BULLET: "-",
    Part.FENCE: "f",
}


def parts(text: str, *cuts: int) -> list[Piece]:
    """Return the pieces of a text that comes in parts, with those of one kind joined; a line break is a piece."""
    markdown, found = Markdown(), list[Piece]()
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        lines = text[start:end].split("\n")
        for at, line in enumerate(lines):
            ends = at < len(lines) - 1
            found += markdown.add(line, ends=ends)
            if ends:
                found.append(Piece("\n", Part.TEXT))
    found += markdown.add("", ends=True)
    joined: list[Piece] = []
    for piece in found:
        if joined and joined[-1].part is piece.part:
            joined[-1] = Piece(joined[-1].text + piece.text, piece.part)
        else:
            joined.append(piece)
    return joined


def marked(text: str) -> str:
    """Return a text with the sign of each part before it, in braces."""
    return "".join(f"{{{SIGNS[part]}:{text}}}" if SIGNS[part] else text for text, part in parts(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# A **title**\nb", "{h:# A **title**}\nb"),
        ("###### six", "{h:###### six}"),
        ("####### seven", "####### seven"),
        ("#hash", "#hash"),
        ("a **b** c", "a {b:**b**} c"),
        ("**b** c", "{b:**b**} c"),
        ("2 ** 3 ** 4", "2 ** 3 ** 4"),
        ("so $a_1 * b_1$ and \\(x_1\\)", "so $a_1 * b_1$ and \\(x_1\\)"),
        ("**open\nnext", "{b:**open}\nnext"),
        ("__init__.py and *one*", "__init__.py and *one*"),
        ("run `a ** b` or ``c ` d``!", "run {c:`a ** b`} or {c:``c ` d``}!"),
        ("an `open\nnext", "an {c:`open}\nnext"),
        ("**a `b` c**", "{b:**a }{c:`b`}{b: c**}"),
        ("- a\n  * b\n10. c\n-d\n---", "{-:- }a\n{-:  * }b\n{-:10. }c\n-d\n---"),
        ("- **a**", "{-:- }{b:**a**}"),
        ("> said\n>> twice", "{-:> }said\n{-:>> }twice"),
        ("see [the docs](https://a.b/c_d) there", "see [the docs]({l:https://a.b/c_d}) there"),
        ("a [b](c d", "a [b]({l:c} d"),
        ("a [b] (c)", "a [b] (c)"),
        ("```py\n# not a title\n**x**\n```\n# b", "{f:```py}\n{c:# not a title}\n{c:**x**}\n{f:```}\n{h:# b}"),
        ("~~~\n```\n~~~~\na", "{f:~~~}\n{c:```}\n{f:~~~~}\na"),
        ("- a\n    ```\n    b\n    ```\n- c", "{-:- }a\n{f:    ```}\n{c:    b}\n{f:    ```}\n{-:- }c"),
        ("```\na\n```\r\nb", "{f:```}\n{c:a}\n{f:```\r}\nb"),
        ("```a``` b\n# c", "{f:```a``` b}\n{h:# c}"),
        ("-", "{-:-}"),
        ("", ""),
    ],
)
def test_markdown_is_told_by_its_signs_which_stay(text: str, expected: str) -> None:
    assert marked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("**`a` b** c", "a **`b`**", "#**`#", "> > a", ">  >b", ">" * 17, "```\na\n```  b\n``` \nc"),
        *(" " * 17 + "- a", " " * 17 + "```\na"),
    ],
)
def test_signs_in_a_row_are_the_same_however_they_are_cut(text: str) -> None:
    assert all(parts(text, cut) == parts(text) for cut in range(len(text)))


TEXTS = st.lists(
    st.sampled_from(
        ["#", " ", "`", "```", "*", "**", "~~~", "-", "1", ".", "a", "[", "]", "(", "](", ")", "> ", "\n", "é"]
    )
).map("".join)


@given(TEXTS, st.data())
def test_the_parts_of_markdown_do_not_depend_on_how_the_text_is_cut(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    whole = parts(text)
    assert parts(text, *cuts) == whole
    assert "".join(piece.text for piece in whole) == text


@given(TEXTS, st.data())
def test_a_pause_loses_nothing(text: str, data: st.DataObject) -> None:
    markdown, shown = Markdown(), ""
    for line in text.split("\n"):
        at = data.draw(st.integers(0, len(line)))
        for pieces in (markdown.add(line[:at]), markdown.flush(), markdown.add(line[at:], ends=True)):
            shown += "".join(piece.text for piece in pieces)
        shown += "\n"
    assert shown == text + "\n"


@pytest.mark.parametrize("text", ["a [1]", "see `x`", "**yes**", "42", "- ", "#", "`"])
def test_after_a_pause_no_character_is_missing(text: str) -> None:
    markdown = Markdown()
    assert "".join(piece.text for piece in [*markdown.add(text), *markdown.flush()]) == text
    assert not markdown.is_holding


def test_a_bracket_waits_for_nothing_and_an_address_behind_it_is_known() -> None:
    markdown = Markdown()
    assert markdown.add("see [this]") == [Piece("see [this]", Part.TEXT)]
    assert markdown.add("(http://x)") == [Piece("(", Part.TEXT), Piece("http://x", Part.LINK), Piece(")", Part.TEXT)]


def test_few_characters_of_markdown_wait_for_the_next_ones() -> None:
    for sign in "`*~# -1":
        markdown, shown = Markdown(), 0
        for count in range(1, 100):
            shown += sum(len(piece.text) for piece in markdown.add(sign))
            assert count - shown <= HELD
    markdown = Markdown()
    markdown.add("text ")
    assert markdown.add("`" * 100) == [Piece("`" * 100, Part.CODE)]
