"""Tables, code, pictures, what is folded, and directions of text in messages."""

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, Opens
from tests.web.browser.scenes import agent, numbered, output, picture, plan, session, shop, thought, tool, user
from tests.web.browser.scripted_gateway import Scene

COLUMNS = 12
NUMBER = "1234.567"
HEAD = "|heading" * COLUMNS + "|\n" + "|-" * COLUMNS + "|\n"
RESULTS = HEAD + f"|{NUMBER}" * COLUMNS + "|\n"

SIDEWAYS = """element => {
  const { left, right } = element.getBoundingClientRect();
  return { scrolls: element.scrollWidth > element.clientWidth + 1, width: right - left, left, right };
}"""

LINES_OF_CELLS = """() => [...document.querySelectorAll("td, th")].map((cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size;
})"""

COVERED = """() => {
  const pre = document.querySelector(".markdown pre").getBoundingClientRect();
  return [...document.querySelectorAll(".snippet .copy")].filter((button) => {
    const { top, bottom } = button.getBoundingClientRect();
    return top < pre.bottom && bottom > pre.top;
  }).length;
}"""

OTHER_DIRECTIONS = r"""() => {
  const texts = document.createTreeWalker(document.querySelector("#app"), NodeFilter.SHOW_TEXT);
  const wrong = [];
  let seen = 0;
  while (texts.nextNode()) {
    const { nodeValue: text, parentElement: parent } = texts.currentNode;
    if (!/[\u0590-\u05ff]/.test(text) || parent.closest(".hidden, .terminal, .command-text, .path, option")) continue;
    seen += 1;
    if (getComputedStyle(parent).direction !== "rtl") wrong.push(`${parent.className}: ${text}`);
  }
  for (const field of document.querySelectorAll("textarea, input[type=text], input[type=search]")) {
    if (field.dir !== "auto" && field.type !== "hidden" && !field.readOnly) wrong.push(field.ariaLabel);
  }
  return { seen, wrong };
}"""


def one(*updates: object, **members: object) -> Scene:
    return Scene([session("s1", "Results", **members)], {"s1": numbered(list(updates))})  # type: ignore[arg-type]


def is_scrolled_sideways(page: Page) -> bool:
    return bool(page.evaluate("() => document.documentElement.scrollWidth > innerWidth"))


@pytest.mark.firefox
@pytest.mark.parametrize("size", [PHONE, (1440, 900), (2560, 1300)], ids=["phone", "wide", "widest"])
def test_a_table_keeps_its_numbers_whole_and_scrolls_where_it_has_no_room(
    open_page: Opens, size: tuple[int, int]
) -> None:
    page, _ = open_page(one(agent(RESULTS)), "#/s/s1", size=size)
    table = page.get_by_role("group", name="Table")
    expect(table).to_be_visible()
    assert page.evaluate(LINES_OF_CELLS) == [1] * 2 * COLUMNS
    box = table.evaluate(SIDEWAYS)
    assert box["left"] >= 0
    assert box["right"] <= size[0]
    assert box["scrolls"] == (size == PHONE)
    assert not is_scrolled_sideways(page)
    table.focus()
    expect(table).to_be_focused()


def test_a_wide_table_takes_the_room_beside_the_text_and_a_narrow_one_does_not(open_page: Opens) -> None:
    page, _ = open_page(one(agent(f"Text\n\n{RESULTS}\n|a|b|\n|-|-|\n|1|2|\n")), "#/s/s1", size=(1440, 900))
    tables = page.get_by_role("group", name="Table")
    expect(tables).to_have_count(2)
    text, wide, narrow = (
        it.evaluate(SIDEWAYS) for it in (page.locator(".markdown p").first, tables.first, tables.last)
    )
    assert wide["width"] > text["width"]
    assert narrow["width"] == text["width"]


def test_the_widest_window_has_wider_lines_of_text(open_page: Opens) -> None:
    page, _ = open_page(one(agent("words of a sentence " * 40)), "#/s/s1", size=(1440, 1300))
    text = page.locator(".markdown p")
    expect(text).to_be_visible()
    before = text.evaluate(SIDEWAYS)["width"]
    page.set_viewport_size({"width": 2560, "height": 1300})
    assert text.evaluate(SIDEWAYS)["width"] > before + 50


def test_a_long_text_in_a_cell_is_broken_into_lines_between_words(open_page: Opens) -> None:
    table = f"|a|b|\n|-|-|\n|{NUMBER}|{'words of a sentence ' * 8}|\n"
    page, _ = open_page(one(agent(table)), "#/s/s1", size=PHONE)
    expect(page.get_by_role("group", name="Table")).to_be_visible()
    lines = page.evaluate(LINES_OF_CELLS)
    assert lines[2] == 1
    assert lines[3] > 2


@pytest.mark.parametrize("touch", [False, True], ids=["mouse", "finger"])
def test_no_button_covers_the_text_of_a_code_block(open_page: Opens, *, touch: bool) -> None:
    page, _ = open_page(one(agent(f"```python\n{'a_long_line ' * 40}\n```\n")), "#/s/s1", size=PHONE, touch=touch)
    code = page.get_by_role("group", name="Code")
    expect(page.get_by_role("button", name="Wrap lines")).to_be_visible()
    assert page.evaluate(COVERED) == 0
    code.focus()
    expect(code).to_be_focused()


def test_details_are_folded_and_open_at_a_click(open_page: Opens) -> None:
    source = "<details>\n<summary>The <b>whole</b> log</summary>\n\n- an item\n\n</details>\n"
    page, _ = open_page(one(agent(source)), "#/s/s1")
    expect(page.locator("summary", has_text="The whole log")).to_be_visible()
    expect(page.get_by_text("an item")).to_be_hidden()
    page.locator("summary").click()
    expect(page.get_by_text("an item")).to_be_visible()


@pytest.mark.firefox
def test_a_picture_is_enlarged_by_a_click_and_closed_by_escape(open_page: Opens) -> None:
    image = {"type": "image", "mimeType": "image/png", "data": picture()}
    updates = [user("Look"), {"sessionUpdate": "user_message_chunk", "content": image}]
    page, gateway = open_page(
        one(*updates, agent(f"![A curve](data:image/png;base64,{picture()})")), "#/s/s1", size=PHONE
    )
    for name in ("Image", "A curve"):
        button = page.locator(".picture-button", has=page.get_by_role("img", name=name))
        button.click()
        dialog = page.get_by_role("dialog", name=name)
        shown = dialog.get_by_role("img")
        expect(shown).to_be_in_viewport(ratio=1)
        gateway.add("s1", agent("It goes on."))
        dialog.get_by_role("button", name="Change its size").click()
        assert shown.evaluate("image => image.width === image.naturalWidth")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(button).to_be_focused()


@pytest.mark.firefox
def test_text_of_people_and_agents_has_the_direction_of_its_first_letter(open_page: Opens) -> None:
    word = "שלום"
    written = f"# {word}\n\n{word}\n\n- {word}\n  - {word}\n\n> {word}\n\n|{word}|a|\n|-|-|\n|{word}|b|\n"
    scene = shop()
    scene.updates["s1"] = numbered(
        [
            user(f"{word} a"),
            thought(word),
            plan((word, "in_progress"), (word, "pending")),
            tool("t1", word, "other", status="completed", content=output(word), rawInput={"name": word}),
            agent(written),
        ]
    )
    for each in scene.sessions.values():
        each["title"] = word
    page, gateway = open_page(scene, "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    for row in page.locator(".row .fold").all():
        row.click()
    waiting = {"promptId": "a", "identity": "ben", "text": word, "whole": True, "attached": 0, "createdAt": None}
    gateway.queue("s1", {**waiting, "mayChange": False})
    options = [{"optionId": "a", "kind": "allow_once", "name": word}]
    gateway.ask("s1", 9, {"toolCall": {"toolCallId": "t9", "title": word}, "options": options})
    expect(page.locator(".option")).to_have_text(f"1{word}")
    found = page.evaluate(OTHER_DIRECTIONS)
    assert found["wrong"] == []
    assert found["seen"] > 20
