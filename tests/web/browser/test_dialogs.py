"""The dialogs and the menu of a session: where their focus begins, and what ends them."""

from threading import Event
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.web.browser.conftest import PHONE, Opens
from tests.web.browser.scenes import shop
from tests.web.browser.scripted_gateway import Refused


@pytest.mark.parametrize(
    ("command", "name", "role", "focused"),
    [
        ("New session", "New session", "textbox", "First prompt optional"),
        ("All keys", "Keys", "region", "All keys"),
        ("Share", "Share this session", "radio", "looks on"),
        ("Export", "Export this session", "radio", "Markdown"),
        ("Rename", "Rename this session", "textbox", "Title"),
        ("Notifications", "Notifications", "heading", "Notifications"),
    ],
)
@pytest.mark.firefox
def test_the_focus_of_a_dialog_begins_at_what_it_is_for(
    open_page: Opens, command: str, name: str, role: str, focused: str
) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    page.keyboard.press("Control+k")
    page.locator(".palette input").fill(command)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name=name)
    expect(dialog.get_by_role(role, name=focused)).to_be_focused()


def test_deleting_begins_at_the_button_that_keeps_the_session(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete…").click()
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()


def test_a_session_is_deleted_with_its_worktree_if_that_is_chosen_and_nothing_hinders(open_page: Opens) -> None:
    scene = shop()
    scene.sessions["s1"]["cwd"] = "/home/ann/work/shop/.worktrees/fix/sub"
    page, gateway = open_page(scene, "#/s/s1")
    refused = "/home/ann/work/shop/.worktrees/fix is not removed, as this is not committed: a.txt."
    answers = [{"success": True, "kept": "Its branch fix stays."}]

    def delete(_: dict[str, Any]) -> Any:
        if gateway.calls.count(deletion) == 1:
            raise Refused("worktree", refused)
        return answers.pop(0)

    deletion = ("session/delete", {"sessionId": "s1", "worktree": True})
    gateway.answers["session/delete"] = delete
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete…").click()
    dialog = page.get_by_role("dialog", name="Delete this session?")
    box = dialog.get_by_label("Remove its worktree too")
    expect(box).not_to_be_checked()
    expect(dialog).to_contain_text("/home/ann/work/shop/.worktrees/fix")
    box.check()
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog.get_by_role("alert")).to_have_text(refused)
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".toast")).to_contain_text("Its branch fix stays.")
    assert gateway.calls.count(deletion) == 2


def test_without_a_worktree_of_its_own_a_session_is_deleted_alone(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete…").click()
    expect(page.get_by_label("Remove its worktree too")).to_have_count(0)
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert ("session/delete", {"sessionId": "s1"}) in gateway.calls


def test_on_a_phone_a_new_session_does_not_begin_with_the_keyboard(open_page: Opens) -> None:
    page, _ = open_page(shop(), size=PHONE, touch=True)
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.get_by_role("heading", name="New session")).to_be_focused()


def test_a_menu_keeps_the_focus_while_its_session_is_loaded_and_ends_with_it(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    expect(page.locator(".session").first).to_be_visible()
    answered = Event()

    def get(params: dict[str, Any]) -> Any:
        assert answered.wait(30)
        return gateway._get(params)

    gateway.answers["session/get"] = get
    page.evaluate("location.hash = '#/s/s3'")
    page.get_by_role("button", name="More").click()
    first = page.get_by_role("menuitem").first
    expect(first).to_be_focused()
    answered.set()
    prompt = page.get_by_role("textbox", name="Prompt")
    expect(prompt).to_be_visible()
    expect(first).to_be_focused()
    prompt.focus()
    expect(first).to_have_count(0)
    page.get_by_role("button", name="More").click()
    expect(first).to_be_focused()
    page.evaluate("location.hash = '#/s/s1'")
    expect(first).to_have_count(0)
