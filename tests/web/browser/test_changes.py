"""All changes of a session in a browser, and remarks on them that become one prompt."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, Opens, until
from tests.web.browser.scenes import CWD, EDIT_PERMISSION, NEW, shop, tool, user
from tests.web.browser.scripted_gateway import Message, ScriptedGateway


def diff(name: str, old: str | None, new: str) -> Message:
    return {"type": "diff", "path": f"{CWD}/{name}", "oldText": old, "newText": new}


def edit(call_id: str, *content: Message, **members: Any) -> Message:
    return tool(call_id, "Edit", "edit", status="completed", content=list(content), **members)


def prompts(gateway: ScriptedGateway) -> list[str]:
    return [params["prompt"][0]["text"] for method, params in gateway.calls if method == "session/prompt"]


def remark(page: Page, line: str, words: str) -> None:
    page.get_by_role("button", name=f"Remark on {line}", exact=True).click()
    page.get_by_role("textbox", name=f"Remark on {line}").fill(words)
    page.get_by_role("button", name="Keep").click()


@pytest.mark.firefox
def test_changes_are_shown_by_file_and_what_comes_is_added(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.get_by_role("link", name="Changes").click()
    files = page.locator(".changed-file")
    expect(files).to_have_count(1)
    expect(files.first.locator(".path")).to_have_text("shop/basket.py")
    gateway.add(
        "s1", edit("n1", diff("shop/basket.py", NEW, NEW + "\nLAST = 1\n")), edit("n2", diff("b.py", None, "1\n"))
    )
    expect(files).to_have_count(2)
    expect(files.first.locator(".diff")).to_have_count(1)
    expect(files.first).to_contain_text("LAST = 1")
    page.get_by_role("list", name="Files").get_by_role("button", name="b.py").click()
    expect(files.last).to_be_in_viewport()
    page.get_by_role("link", name="Back to the conversation").click()
    expect(page.locator(".row").last).to_be_visible()


def test_the_changes_since_the_last_prompt_leave_out_earlier_ones(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    expect(page.locator(".changed-file")).to_have_count(1)
    gateway.add("s1", user("Now the other one"), edit("n2", diff("b.py", None, "1\n")))
    page.get_by_label("Which changes").select_option("Since the last prompt")
    expect(page.locator(".changed-file .path")).to_have_text("b.py")


@pytest.mark.firefox
def test_remarks_on_several_files_are_sent_as_one_prompt(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    gateway.add("s1", edit("n2", diff("b.py", "1\n", "2\n")))
    first, second = (page.get_by_role("region", name=name) for name in ("shop/basket.py", "b.py"))
    first.get_by_role("button", name="Remark on line 3", exact=True).click()
    first.get_by_role("button", name="Remark on line 4", exact=True).click()
    first.get_by_role("textbox", name="Remark on lines 3 to 4").fill("Name it `subtotal`.")
    page.keyboard.press("Control+Enter")
    second.get_by_role("button", name="Remark on line 1", exact=True).click()
    second.get_by_role("textbox", name="Remark on line 1").fill("Why two?")
    page.get_by_role("button", name="Send as one prompt").click()
    until(page, lambda: len(prompts(gateway)) == 1)
    expected = (
        "Remarks on your changes.\n\n"
        "1. shop/basket.py, lines 3 to 4:\n\n"
        "```diff\n"
        "+    result = sum(item.price * item.count for item in items)\n"
        "+    return max(0, result - discount)\n"
        "```\n\n"
        "Name it `subtotal`.\n\n"
        "2. b.py, line 1:\n\n```diff\n+2\n```\n\nWhy two?"
    )
    assert prompts(gateway) == [expected]
    expect(page.locator(".composer")).to_be_visible()
    page.get_by_role("link", name="Changes").click()
    expect(page.locator(".remark")).to_have_count(0)


def test_a_remark_stays_after_a_reload_and_can_be_changed_and_removed(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1/changes")
    remark(page, "line 2", "Shorter.")
    page.reload()
    note = page.get_by_role("note", name="Remark on line 2")
    expect(note).to_contain_text("Shorter.")
    note.get_by_role("button", name="Change the remark").click()
    page.get_by_role("textbox", name="Remark on line 2").fill("Longer.")
    page.get_by_role("button", name="Keep").click()
    expect(note).to_contain_text("Longer.")
    note.get_by_role("button", name="Remove the remark").click()
    expect(note).to_have_count(0)
    expect(page.get_by_role("button", name="Send as one prompt")).to_be_disabled()


def test_a_browser_that_is_signed_out_says_how_many_remarks_were_removed(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    remark(page, "line 2", "Shorter.")
    gateway.scene.signed_in = False
    gateway.drop()
    expect(page.locator(".left")).to_have_text("1 remark on changes was removed.")
    expect(page.get_by_role("button", name="Remove what was not sent")).to_have_count(0)
    assert page.evaluate("Object.keys(sessionStorage).filter((name) => name.startsWith('remarks'))") == []


def test_a_remark_on_a_line_that_the_agent_changes_again_is_kept_in_words(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    remark(page, "line 4", "Not below zero?")
    gateway.add("s1", edit("n1", diff("shop/basket.py", NEW, NEW.replace("max(0, result - discount)", "result"))))
    place = page.locator(".remark-elsewhere")
    expect(place).to_contain_text("line 4, not shown or changed since: return max(0, result - discount)")
    expect(place).to_contain_text("Not below zero?")
    page.get_by_role("button", name="Send as one prompt").click()
    until(page, lambda: len(prompts(gateway)) == 1)
    assert "+    return max(0, result - discount)" in prompts(gateway)[0]


def test_line_numbers_are_reached_and_chosen_by_keyboard(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1/changes")
    number = page.get_by_role("button", name="Remark on line 3", exact=True)
    number.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(number).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Remark on line 3")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".remark")).to_have_count(0)
    expect(number).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("Why?")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("note", name="Remark on line 3")).to_be_visible()
    expect(number).to_be_focused()
    page.get_by_role("button", name="Remove the remark on line 3").press("Enter")
    expect(number).to_be_focused()


def test_side_by_side_the_tab_key_stops_once_for_each_side_of_a_change(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    gateway.add("s1", edit("n2", diff("b.py", "a\nb\nc\nsame\nd\n", "1\n2\n3\nsame\n4\n")))
    file = page.get_by_role("region", name="b.py")
    expect(file.locator(".side-by-side")).to_be_visible()
    stops = file.locator(".line-number[tabindex='0']")
    assert stops.evaluate_all("all => all.map((one) => one.ariaLabel)") == [
        "Remark on deleted line 1",
        "Remark on line 1",
        "Remark on deleted line 5",
        "Remark on line 5",
    ]


def test_of_many_changes_some_are_shown_and_all_remarks_are(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    for i in range(25):
        gateway.add("s1", edit(f"a{i}", diff("a.py", f"x = {i}\n", f"y = {i}\n")))
    for i in range(50):
        gateway.add("s1", edit(f"b{i}", diff(f"b{i}.py", None, "1\n")))
    file = page.get_by_role("region", name="a.py")
    expect(file.locator(".diff")).to_have_count(20)
    file.get_by_role("button", name="Show more of 25 changes").click()
    expect(file.locator(".diff")).to_have_count(25)
    page.get_by_role("button", name="Show more files").click()
    expect(page.locator(".changed-file")).to_have_count(52)
    for place in (file.locator(".diff").last, page.get_by_role("region", name="b49.py")):
        place.get_by_role("button", name="Remark on line 1", exact=True).click()
        page.keyboard.type("Why?")
        page.keyboard.press("Control+Enter")
    expect(page.locator(".remark-elsewhere")).to_have_count(0)
    page.reload()
    expect(page.locator(".changed-file")).to_have_count(50)
    expect(page.locator(".remark-elsewhere")).to_have_count(2)


def test_a_question_of_the_agent_is_shown_beside_the_changes(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    expect(page.locator(".changed-file")).to_have_count(1)
    gateway.ask("s1", 9, EDIT_PERMISSION)
    expect(page.get_by_role("button", name="Yes", exact=True)).to_be_in_viewport()


def test_an_observer_sees_changes_and_remarks_nothing(open_page: Opens) -> None:
    scene = shop()
    scene.info["role"] = "observer"
    page, _ = open_page(scene, "#/s/s1/changes")
    expect(page.locator(".changed-file")).to_have_count(1)
    assert page.locator(".line-number, .changes-foot").count() == 0


def test_where_older_updates_are_not_loaded_the_changes_say_so(open_page: Opens) -> None:
    scene = shop()
    last = scene.updates["s1"][-1]["seq"]
    scene.extra["s1"] = {"more": True, "updates": [one for one in scene.updates["s1"] if one["seq"] > last - 3]}
    page, _ = open_page(scene, "#/s/s1/changes")
    expect(page.get_by_text("changes of that time are not here")).to_be_visible()
    scene.extra["s1"] = {"more": False}
    page.get_by_role("button", name="Load them").click()
    expect(page.locator(".changed-file .path")).to_have_text("shop/basket.py")
    expect(page.get_by_text("changes of that time are not here")).to_have_count(0)


def test_on_a_phone_the_changes_fit_the_screen(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1/changes", size=PHONE, touch=True)
    remark(page, "line 2", "A remark " * 40)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
    expect(page.get_by_role("button", name="Send as one prompt")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("link", name="Changes", exact=True)).to_be_in_viewport(ratio=1)


def test_on_a_phone_what_leads_through_the_changes_is_large_enough_for_a_finger(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes", size=PHONE, touch=True)
    gateway.add("s1", edit("n2", diff("b.py", None, "1\n")))
    remark(page, "line 2", "Shorter.")
    found = page.locator(".changes-head > *:is(a, button, select), .changed-files button, .changes-foot button")
    seen = found.filter(visible=True)
    expect(seen).to_have_count(8)
    assert min(seen.evaluate_all("all => all.map((it) => it.offsetHeight)")) >= 44
