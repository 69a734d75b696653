"""The keys of the page, the sheet that shows them, and the palette."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.browser.conftest import Opens, until
from tests.web.browser.scenes import PERMISSION, numbered, session, shop, user
from tests.web.browser.scripted_gateway import Scene


def typing(page: Page) -> Locator:
    return page.get_by_role("combobox", name="Find a session or a command")


def palette(page: Page) -> None:
    page.keyboard.press("Control+k")
    expect(typing(page)).to_be_focused()


def said() -> Scene:
    """Return the scene in which the session s3 is not new: the focus stays out of the prompt of that."""
    scene = shop()
    scene.updates["s3"] = numbered([user("Move it.")])
    return scene


def at_session(page: Page, session_id: str) -> None:
    expect(page).to_have_url(re.compile(f"#/s/{session_id}$"))


def test_the_question_mark_opens_the_sheet_of_keys_and_escape_gives_the_focus_back(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    page.locator(".scroller").focus()
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keys")
    expect(sheet).to_contain_text("Next session that needs you")
    expect(sheet.locator("div", has_text="Commands and sessions").locator("kbd").first).to_have_text("Ctrl K")
    # No key acts behind it.
    page.keyboard.press("n")
    page.keyboard.press("Escape")
    expect(sheet).to_have_count(0)
    expect(page.locator(".scroller")).to_be_focused()
    at_session(page, "s1")


def test_n_goes_to_the_next_session_that_needs_the_user(open_page: Opens) -> None:
    page, gateway = open_page(said(), "#/s/s1")
    gateway.ask("s3", 9, PERMISSION)
    expect(page).to_have_title(re.compile(r"^\(2\)"))
    page.locator(".scroller").focus()
    heading = page.locator(".head h1")
    page.keyboard.press("n")
    expect(heading).to_have_text(re.compile("old build|settings page"))
    first = heading.text_content() or ""
    page.keyboard.press("n")
    expect(heading).not_to_have_text(first)
    expect(heading).to_have_text(re.compile("old build|settings page"))
    page.keyboard.press("n")
    expect(heading).to_have_text(first)
    expect(page.locator(".permission")).to_be_visible()


def test_n_says_if_nothing_needs_the_user(open_page: Opens) -> None:
    scene = shop()
    scene.sessions.pop("s2")
    page, _ = open_page(scene, "#/s/s1")
    page.locator(".scroller").focus()
    page.keyboard.press("n")
    expect(page.locator(".toast")).to_have_text("No other session needs you.")
    at_session(page, "s1")


def test_j_and_k_go_through_the_list(open_page: Opens) -> None:
    page, _ = open_page(said(), "#/s/s1")
    page.locator(".scroller").focus()
    page.keyboard.press("j")
    at_session(page, "s3")
    expect(page.locator(".head h1")).to_contain_text("Move the settings page")
    page.keyboard.press("k")
    at_session(page, "s1")


def test_c_shows_the_changes_and_i_goes_to_the_prompt(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    page.locator(".scroller").focus()
    page.keyboard.press("c")
    at_session(page, "s1/changes")
    expect(page.get_by_role("link", name="Changes")).to_have_attribute("aria-current", "page")
    field = page.get_by_role("textbox", name="Prompt")
    expect(field).to_be_hidden()
    page.keyboard.press("c")
    at_session(page, "s1")
    expect(field).to_be_visible()
    page.keyboard.press("i")
    expect(field).to_be_focused()


def test_what_is_typed_carries_out_nothing(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    gateway.ask("s1", 9, PERMISSION)
    expect(page.locator(".permission")).to_be_visible()
    field = page.get_by_role("textbox", name="Prompt")
    field.press_sequentially("?njkci+1")
    expect(field).to_have_value("?njkci+1")
    page.get_by_role("searchbox", name="Filter sessions").press_sequentially("n?")
    expect(page.get_by_role("dialog")).to_have_count(0)
    at_session(page, "s1")
    assert not [method for method, _ in gateway.calls if method == "session/respond"]


def test_ctrl_k_opens_the_palette_also_while_typing_and_goes_to_a_session(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    field = page.get_by_role("textbox", name="Prompt")
    field.press_sequentially("half")
    palette(page)
    page.keyboard.type("site past")
    expect(page.locator(".palette-item")).to_have_count(1)
    expect(page.locator(".palette-item.is-active")).to_contain_text("Draft the release notes")
    page.keyboard.press("Enter")
    at_session(page, "s6")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_palette_carries_out_what_is_of_use_at_present(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    palette(page)
    page.keyboard.type("stop")
    expect(page.locator(".palette-item.is-active")).to_contain_text("Stop the agent")
    page.keyboard.press("Enter")
    until(page, lambda: ("session/cancel", "s1") in [(name, it.get("sessionId")) for name, it in gateway.calls])
    gateway.change("s1", turn=False, status="completed")
    expect(page.locator(".stop")).to_have_count(0)
    palette(page)
    page.keyboard.type("stop")
    expect(page.get_by_text("Nothing has these words.")).to_be_visible()
    typing(page).fill("find")
    page.keyboard.press("Enter")
    expect(page.get_by_role("search").get_by_role("searchbox")).to_be_focused()


@pytest.mark.parametrize(
    ("words", "heading"), [("new ses", "New session"), ("share", "Share"), ("export", "Export"), ("all keys", "Keys")]
)
def test_the_palette_opens_the_dialogs_of_the_page(open_page: Opens, words: str, heading: str) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    palette(page)
    page.keyboard.type(words)
    expect(page.locator(".palette-item.is-active")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name=re.compile(heading))).to_be_visible()


def test_the_palette_is_moved_through_by_arrows_from_end_to_end(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    palette(page)
    chosen = page.locator(".palette-item[aria-selected=true]")
    first = chosen.text_content()
    page.keyboard.press("ArrowUp")
    expect(chosen).to_be_in_viewport()
    expect(page.locator(".palette-item").last).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(chosen).to_have_text(first or "")
    expect(typing(page)).to_have_attribute("aria-activedescendant", "palette-0")


def test_the_palette_turns_the_colours_and_keeps_that(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    palette(page)
    page.keyboard.type("colours")
    page.keyboard.press("Enter")
    until(page, lambda: page.evaluate("getComputedStyle(document.body).backgroundColor") != light)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    expect(page.locator(".row").last).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_an_observer_is_offered_nothing_that_acts(open_page: Opens) -> None:
    scene = shop()
    scene.info.update(role="observer", mayShare=False)
    for one in scene.sessions.values():
        one["mayControl"] = False
    page, _ = open_page(scene, "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    palette(page)
    options = page.locator(".palette-item")
    expect(options.filter(has_text="Find in this session")).to_have_count(1)
    for label in ("Stop the agent", "New session", "Share", "Write a prompt", "Notifications"):
        expect(options.filter(has_text=label)).to_have_count(0)


def test_a_browser_without_notifications_is_not_offered_any(open_page: Opens) -> None:
    page, _ = open_page(shop())
    page.add_init_script("delete window.Notification")
    page.reload()
    expect(page.locator(".session").first).to_be_visible()
    palette(page)
    options = page.locator(".palette-item")
    expect(options.filter(has_text="New session")).to_have_count(1)
    expect(options.filter(has_text="Notifications")).to_have_count(0)


def test_the_palette_is_bounded_with_a_thousand_sessions(open_page: Opens) -> None:
    scene = Scene([session(f"s{i}", f"Number {i}", minutes=i) for i in range(1000)], {})
    page, _ = open_page(scene)
    expect(page.locator(".session").first).to_be_visible()
    palette(page)
    expect(page.locator(".palette-item")).to_have_count(50)
    page.keyboard.type("number 987")
    expect(page.locator(".palette-item")).to_have_count(1)
    page.keyboard.press("Enter")
    at_session(page, "s987")
