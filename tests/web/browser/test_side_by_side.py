"""Two sessions side by side: each with its own transcript, questions and prompt; keys go to the one in use."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.browser.conftest import PHONE, TABLET, Opens, settled, until
from tests.web.browser.scenes import EDIT_PERMISSION, PERMISSION, agent, numbered, session, shop, user
from tests.web.browser.scripted_gateway import Message, Scene, ScriptedGateway

FIRST = "Totals of a basket below zero"
SECOND = "Move the settings page to the new form library"
BOTH = "#/s/s1&/s/s3"


def spoken() -> Scene:
    """Return the scene in which the session s3 is not new: the focus stays out of the prompt of that."""
    scene = shop()
    scene.updates["s3"] = numbered([user("Move it."), agent("I move it.")])
    return scene


def view(page: Page, title: str) -> Locator:
    return page.get_by_role("region", name=f"Session: {title}", exact=True)


def in_use(page: Page, title: str) -> None:
    expect(page.locator(".view.is-used .head h1")).to_have_text(title)
    expect(page.locator(".view")).to_have_count(2)


def drawn(page: Page) -> None:
    for title in (FIRST, SECOND):
        expect(view(page, title).locator(".row").last).to_be_visible()


def at_address(page: Page, end: str) -> None:
    expect(page).to_have_url(re.compile(re.escape(end) + "$"))


def row(page: Page, title: str) -> Locator:
    return page.locator(".list .session", has_text=title)


def asked(gateway: ScriptedGateway, method: str) -> list[Message]:
    return [params for name, params in gateway.calls if name == method]


@pytest.mark.firefox
def test_alt_click_opens_a_session_beside_the_open_one_and_back_and_a_reload_keep_both(open_page: Opens) -> None:
    page, _ = open_page(spoken(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    row(page, SECOND).click(modifiers=["Alt"])
    in_use(page, SECOND)
    at_address(page, BOTH)
    drawn(page)
    expect(page).to_have_title(re.compile(SECOND))
    page.reload()
    drawn(page)
    in_use(page, SECOND)
    page.go_back()
    expect(page.locator(".view")).to_have_count(1)
    expect(page.locator(".head h1")).to_have_text(FIRST)
    at_address(page, "#/s/s1")
    page.go_forward()
    drawn(page)
    in_use(page, SECOND)


@pytest.mark.firefox
def test_back_from_two_sessions_to_one_gives_the_focus_of_the_closed_one_to_the_other(open_page: Opens) -> None:
    page, _ = open_page(spoken(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    row(page, SECOND).click(modifiers=["Alt"])
    drawn(page)
    view(page, SECOND).get_by_role("textbox", name="Prompt").fill("half")
    page.go_back()
    expect(page.locator(".view")).to_have_count(1)
    expect(page.locator(".scroller")).to_be_focused()


def test_each_session_marks_what_was_found_in_it(open_page: Opens) -> None:
    scene = spoken()
    for name in ("s1", "s3"):
        scene.updates[name] = numbered([user("Ask."), agent("The needle is here.")])
    page, gateway = open_page(scene, BOTH)
    gateway.answers["session/search"] = lambda _: {
        "found": [{"seq": 2, "text": "The needle is here.", "marks": [[4, 10]]}],
        "more": False,
        "complete": True,
    }
    drawn(page)

    def marked() -> int:
        return int(page.evaluate("CSS.highlights.get('found')?.size ?? 0"))

    def find(title: str) -> None:
        view(page, title).locator(".scroller").press("/")
        field = view(page, title).get_by_role("searchbox")
        field.fill("needle")
        field.press("Enter")

    find(FIRST)
    until(page, lambda: marked() == 1)
    find(SECOND)
    until(page, lambda: marked() == 2)
    page.get_by_role("button", name=f"Close {SECOND}").click()
    expect(page.locator(".view")).to_have_count(1)
    until(page, lambda: marked() == 1)


@pytest.mark.firefox
def test_alt_enter_on_a_link_opens_its_session_beside_and_moves_the_focus_there(open_page: Opens) -> None:
    page, _ = open_page(spoken(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    row(page, SECOND).press("Alt+Enter")
    in_use(page, SECOND)
    expect(view(page, SECOND)).to_be_focused()
    at_address(page, BOTH)


def test_both_sessions_are_live(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    first, second = view(page, FIRST), view(page, SECOND)
    gateway.add("s1", agent("Words of the first."))
    gateway.add("s3", agent("Words of the second."))
    expect(first.get_by_text("Words of the first.")).to_be_visible()
    expect(second.get_by_text("Words of the second.")).to_be_visible()
    expect(page.get_by_text("Words of the", exact=False)).to_have_count(2)
    gateway.ask("s1", 9, EDIT_PERMISSION)
    gateway.ask("s3", 9, PERMISSION)
    expect(first.locator(".permission .diff")).to_be_visible()
    expect(second.locator(".permission .command-text")).to_contain_text("git push")
    second.get_by_role("button", name="Allow once").click()
    expect(second.locator(".permission")).to_have_count(0)
    expect(first.locator(".permission")).to_be_visible()
    assert [params["sessionId"] for params in asked(gateway, "session/respond")] == ["s3"]
    gateway.queue("s3", {"promptId": "p", "text": "Then this."})
    expect(second.locator(".queue")).to_contain_text("1 prompt")
    expect(first.locator(".queue")).to_have_count(0)


def test_each_session_has_its_own_prompt(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    fields = [view(page, title).get_by_role("textbox", name="Prompt") for title in (FIRST, SECOND)]
    fields[0].fill("to the first")
    fields[1].fill("to the second")
    in_use(page, SECOND)
    fields[1].press("Control+Enter")
    expect(fields[1]).to_have_value("")
    expect(fields[0]).to_have_value("to the first")
    until(page, lambda: len(asked(gateway, "session/prompt")) == 1)
    [sent] = asked(gateway, "session/prompt")
    assert (sent["sessionId"], sent["prompt"][0]["text"]) == ("s3", "to the second")
    page.reload()
    drawn(page)
    expect(fields[0]).to_have_value("to the first")


def test_two_prompts_list_commands_with_ids_of_their_own(open_page: Opens) -> None:
    scene = spoken()
    commands = {
        "sessionUpdate": "available_commands_update",
        "availableCommands": [{"name": "plan", "description": "P"}],
    }
    scene.updates["s3"] = numbered([user("Move it."), commands])
    page, _ = open_page(scene, BOTH)
    drawn(page)
    for title in (FIRST, SECOND):
        view(page, title).get_by_role("textbox", name="Prompt").fill("/")
        expect(view(page, title).get_by_role("listbox", name="Commands")).to_be_visible()
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.firefox
def test_f6_goes_from_one_session_to_the_other_also_from_the_prompt(open_page: Opens) -> None:
    page, _ = open_page(spoken(), BOTH)
    drawn(page)
    field = view(page, FIRST).get_by_role("textbox", name="Prompt")
    field.fill("half")
    in_use(page, FIRST)
    page.keyboard.press("F6")
    in_use(page, SECOND)
    expect(view(page, SECOND)).to_be_focused()
    page.keyboard.press("F6")
    in_use(page, FIRST)
    expect(field).to_be_focused()
    expect(field).to_have_value("half")


@pytest.mark.firefox
def test_keys_decide_in_the_session_in_use_alone(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    for name in ("s1", "s3"):
        gateway.ask(name, f"of {name}", PERMISSION)
    expect(page.locator(".permission")).to_have_count(2)
    view(page, SECOND).locator(".scroller").focus()
    in_use(page, SECOND)
    page.keyboard.press("1")
    expect(view(page, SECOND).locator(".permission")).to_have_count(0)
    expect(view(page, FIRST).locator(".permission")).to_be_visible()
    assert [params["requestId"] for params in asked(gateway, "session/respond")] == ["of s3"]
    page.keyboard.press("F6")
    in_use(page, FIRST)
    page.keyboard.press("1")
    expect(page.locator(".permission")).to_have_count(0)
    assert [params["requestId"] for params in asked(gateway, "session/respond")] == ["of s3", "of s1"]


def test_escape_goes_from_a_prompt_to_the_question_beside_it(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    for name in ("s1", "s3"):
        gateway.ask(name, 9, PERMISSION)
    expect(page.locator(".permission")).to_have_count(2)
    view(page, SECOND).get_by_role("textbox", name="Prompt").press("Escape")
    expect(view(page, SECOND).locator(".permission")).to_be_focused()


def test_a_link_comes_into_the_session_in_use_and_one_to_a_session_that_is_shown_uses_that(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    view(page, SECOND).locator(".scroller").click()
    in_use(page, SECOND)
    row(page, FIRST).click()
    in_use(page, FIRST)
    expect(view(page, FIRST)).to_be_focused()
    at_address(page, BOTH)
    row(page, "nightly build").click()
    in_use(page, "Why is the nightly build slow?")
    at_address(page, "#/s/s4&/s/s3")
    expect(view(page, SECOND).locator(".row").last).to_be_visible()
    until(page, lambda: [params["sessionId"] for params in asked(gateway, "session/unsubscribe")] == ["s1"])
    expect(row(page, "nightly build")).to_have_attribute("aria-current", "page")
    expect(row(page, SECOND)).to_have_attribute("aria-current", "true")


def test_n_and_the_address_of_a_question_use_the_session_that_is_shown_already(open_page: Opens) -> None:
    scene = spoken()
    scene.sessions.pop("s2")
    page, gateway = open_page(scene, BOTH)
    drawn(page)
    gateway.ask("s3", 8, EDIT_PERMISSION)
    gateway.ask("s3", 9, PERMISSION)
    expect(view(page, SECOND).locator(".permission")).to_contain_text("1 of 2")
    view(page, FIRST).locator(".scroller").focus()
    page.keyboard.press("n")
    in_use(page, SECOND)
    page.keyboard.press("F6")
    in_use(page, FIRST)
    # As a notification does it.
    page.evaluate("location.hash = '#/s/s3/r/9'")
    in_use(page, SECOND)
    expect(view(page, SECOND).locator(".permission")).to_contain_text("2 of 2")
    at_address(page, "#/s/s1&/s/s3/r/9")


def test_the_changes_of_each_session_are_shown_in_its_place(open_page: Opens) -> None:
    page, _ = open_page(spoken(), BOTH)
    drawn(page)
    view(page, FIRST).locator(".scroller").focus()
    page.keyboard.press("c")
    at_address(page, "#/s/s1/changes&/s/s3")
    changes = view(page, FIRST).get_by_role("region", name="Changes")
    expect(changes.locator(".diff").first).to_be_visible()
    expect(changes.locator(".side-by-side")).to_have_count(0)
    expect(view(page, SECOND).locator(".row").last).to_be_visible()
    changes.get_by_role("link", name="Back to the conversation").click()
    at_address(page, BOTH)


@pytest.mark.parametrize(("closed", "kept", "address"), [(FIRST, SECOND, "#/s/s3"), (SECOND, FIRST, "#/s/s1")])
def test_either_session_is_closed_and_the_other_one_stays_as_it_is(
    open_page: Opens, closed: str, kept: str, address: str
) -> None:
    scene = spoken()
    for name in ("s1", "s3"):
        scene.updates[name] = numbered([part for i in range(40) for part in (user(f"Ask {i}."), agent(f"Say {i}."))])
    page, gateway = open_page(scene, BOTH)
    drawn(page)
    view(page, kept).get_by_role("textbox", name="Prompt").fill("half")
    scroller = view(page, kept).locator(".scroller")
    scroller.evaluate("one => { one.scrollTop = 300; }")
    expect(view(page, kept).locator(".to-end")).to_be_visible()
    before = len(asked(gateway, "session/get"))
    page.get_by_role("button", name=f"Close {closed}").click()
    expect(page.locator(".view")).to_have_count(1)
    expect(page.locator(".head h1")).to_have_text(kept)
    at_address(page, address)
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("half")
    assert abs(page.locator(".scroller").evaluate("one => one.scrollTop") - 300) < 100
    expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()
    assert len(asked(gateway, "session/get")) == before
    expect(page.get_by_role("button", name=re.compile("^Close "))).to_have_count(0)


def test_a_deleted_session_leaves_its_place_and_the_other_one_stays(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    view(page, SECOND).get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete…").click()
    dialog = page.get_by_role("dialog", name="Delete this session?")
    expect(dialog).to_contain_text(SECOND)
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator(".view")).to_have_count(1)
    at_address(page, "#/s/s1")
    assert asked(gateway, "session/delete") == [{"sessionId": "s3"}]


def test_the_dialogs_are_about_the_session_whose_button_was_pressed_even_without_the_focus(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    view(page, FIRST).locator(".scroller").focus()
    in_use(page, FIRST)
    # As a screen reader presses it.
    view(page, SECOND).get_by_role("button", name="Share").evaluate("button => button.click()")
    page.get_by_role("dialog").get_by_role("button", name="Make a link").click()
    until(page, lambda: [params["sessionId"] for params in asked(gateway, "session/share")] == ["s3"])


@pytest.mark.parametrize("way", ["menu", "palette", "alt enter", "row"])
def test_a_session_is_opened_beside_in_several_ways(open_page: Opens, way: str) -> None:
    page, _ = open_page(spoken(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    if way == "menu":
        page.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Open another beside…").click()
        dialog = page.get_by_role("dialog", name="Open beside")
        expect(dialog.get_by_role("option").first).to_be_visible()
        expect(dialog.get_by_role("option", name=re.compile(f"{FIRST}|New session"))).to_have_count(0)
        page.keyboard.type("settings")
        page.keyboard.press("Enter")
    elif way == "row":
        row(page, SECOND).hover()
        page.get_by_role("button", name=f"Open beside: {SECOND}").click()
    else:
        page.keyboard.press("Control+k")
        expect(page.get_by_role("combobox", name="Find a session or a command")).to_be_focused()
        if way == "palette":
            page.keyboard.type("beside")
            expect(page.locator(".palette-item")).to_have_count(1)
            page.keyboard.press("Enter")
            expect(page.get_by_role("combobox", name="Find a session", exact=True)).to_be_focused()
        page.keyboard.type("settings")
        page.keyboard.press("Enter" if way == "palette" else "Alt+Enter")
    in_use(page, SECOND)
    at_address(page, BOTH)
    drawn(page)
    expect(view(page, SECOND)).to_be_focused()


def test_a_card_of_the_board_opens_beside_the_session_that_was_open_last(open_page: Opens) -> None:
    page, _ = open_page(spoken(), "#/board")
    expect(page.locator(".card").first).to_be_visible()
    expect(page.locator(".to-beside")).to_have_count(0)
    page.locator(".card", has_text=FIRST).click()
    expect(page.locator(".row").last).to_be_visible()
    page.locator(".scroller").press("b")
    page.locator(".card", has_text=SECOND).click(modifiers=["Alt"])
    drawn(page)
    in_use(page, SECOND)


def test_the_sheet_says_which_keys_open_a_session_beside(open_page: Opens) -> None:
    page, _ = open_page(spoken(), "#/s/s1")
    page.locator(".scroller").press("?")
    lines = page.get_by_role("dialog", name="Keys").locator("dl > div")
    expect(lines.filter(has_text="Open it beside the other one").locator("kbd").first).to_have_text("Alt click")
    expect(lines.filter(has_text="To the session beside").locator("kbd").first).to_have_text("F6")


def test_a_new_session_takes_the_place_in_use(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    gateway.scene.sessions["new"] = session("new", "A new one")
    gateway.answers["session/new"] = lambda _: {"sessionId": "new"}
    view(page, SECOND).locator(".scroller").press("+")
    dialog = page.get_by_role("dialog", name="New session")
    dialog.get_by_role("button", name=re.compile("Start")).click()
    in_use(page, "A new one")
    at_address(page, "#/s/s1&/s/new")
    expect(view(page, "A new one").get_by_role("textbox", name="Prompt")).to_be_focused()


def test_a_lost_connection_is_told_once_and_both_sessions_go_on_after_it(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    gateway.open_sockets = False
    gateway.drop()
    expect(page.get_by_text("No connection for")).to_have_count(1)
    for name in ("s1", "s3"):
        at = len(gateway.scene.updates[name])
        more = numbered([agent("x")] * at + [agent(f"Then in {name}.")])[-1]
        gateway.scene.updates[name].append(more)
    gateway.open_sockets = True
    page.get_by_role("button", name="Try now").evaluate_all("found => found.forEach((button) => button.click())")
    expect(view(page, FIRST).get_by_text("Then in s1.")).to_be_visible()
    expect(view(page, SECOND).get_by_text("Then in s3.")).to_be_visible()


@pytest.mark.parametrize("size", [TABLET, PHONE], ids=["tablet", "phone"])
def test_a_window_without_room_shows_the_session_in_use_and_keeps_the_other(
    open_page: Opens, size: tuple[int, int]
) -> None:
    page, _ = open_page(spoken(), BOTH)
    drawn(page)
    view(page, FIRST).get_by_role("textbox", name="Prompt").fill("to the first")
    view(page, SECOND).get_by_role("textbox", name="Prompt").fill("to the second")
    page.set_viewport_size({"width": size[0], "height": size[1]})
    field = page.get_by_role("textbox", name="Prompt")
    expect(field).to_have_count(1)
    expect(field).to_have_value("to the second")
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("menuitem", name="Open another beside…")).to_have_count(0)
    page.get_by_role("menuitem", name="To the session beside").click()
    expect(field).to_have_value("to the first")
    page.set_viewport_size({"width": 1280, "height": 800})
    drawn(page)
    expect(field).to_have_count(2)


def test_an_alt_click_without_room_is_left_to_the_browser(open_page: Opens) -> None:
    page, _ = open_page(spoken(), "#/s/s1", size=TABLET)
    expect(page.locator(".row").last).to_be_visible()
    kept = page.evaluate(
        """() => {
          const link = document.querySelector("a.session[href='#/s/s3']");
          const click = new MouseEvent("click", { altKey: true, bubbles: true, cancelable: true });
          addEventListener("click", (event) => {
            window.left = !event.defaultPrevented;
            event.preventDefault();
          }, { once: true });
          link.dispatchEvent(click);
          return window.left;
        }"""
    )
    assert kept is True
    settled(page)
    expect(page.locator(".view")).to_have_count(1)


def test_a_guest_of_one_session_is_offered_no_other(open_page: Opens) -> None:
    scene = spoken()
    scene.info.update(guest=True, session="s1")
    scene.sessions = {"s1": scene.sessions["s1"]}
    page, _ = open_page(scene, BOTH)
    expect(page.locator(".row").last).to_be_visible()
    expect(page.locator(".view")).to_have_count(1)
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("menuitem").first).to_be_visible()
    expect(page.get_by_role("menuitem", name="Open another beside…")).to_have_count(0)


def test_what_is_announced_names_its_session(open_page: Opens) -> None:
    page, gateway = open_page(spoken(), BOTH)
    drawn(page)
    gateway.change("s3", turn=True, status="running")
    expect(page.locator("[aria-live=polite]", has_text=f"{SECOND}: The agent works.")).to_be_attached()
