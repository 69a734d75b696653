"""The page without its gateway, and the data that the browser keeps of it."""

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import Opens, has_worker, settled, until
from tests.web.browser.scenes import shop

KEPT = """
caches.open(`read ${new URL("./read/", document.baseURI)}`).then((it) => it.keys())
  .then((all) => all.map((one) => decodeURIComponent(one.url)))
"""


def kept(page: Page) -> list[str]:
    """Return the names of what the browser keeps."""
    return sorted(url.rpartition("/read/")[2] for url in page.evaluate(KEPT))


def read_session(page: Page) -> None:
    """Wait until the worker is there, and leave a session that was read."""
    expect(page.locator(".row").last).to_be_visible()
    until(page, lambda: has_worker(page))
    page.goto(page.url.split("#")[0] + "#/")
    until(page, lambda: kept(page) == ["list", "s s1"])


@pytest.mark.firefox
def test_the_list_and_a_session_that_was_read_are_shown_without_the_gateway(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    settled(page)
    # How many rows above them are drawn depends on heights that are measured later.
    rows = page.locator(".row").all_inner_texts()[-3:]
    read_session(page)
    gateway.stop()
    page.goto(f"{gateway.url}#/s/s1")
    page.reload()
    expect(page.locator(".group h2")).to_have_text(["Needs you", "Live", "Earlier"])
    expect(page.locator(".row").last).to_be_visible()
    until(page, lambda: page.locator(".row").all_inner_texts()[-3:] == rows)
    expect(page.locator(".connection").first).to_contain_text("What is here was read at")


def test_a_session_that_was_deleted_since_then_is_not_shown_any_more(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    read_session(page)
    del gateway.scene.sessions["s1"]
    page.goto(f"{gateway.url}#/s/s1")
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("There is no such session.")
    expect(page.locator(".row")).to_have_count(0)
    until(page, lambda: kept(page) == ["list"])


@pytest.mark.firefox
def test_drafts_and_prompts_that_were_not_confirmed_are_there_after_the_page_was_closed(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    read_session(page)
    page.goto(f"{gateway.url}#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.stop()
    expect(page.get_by_text("No connection for")).to_be_visible()
    box = page.get_by_role("textbox", name="Prompt")
    box.fill("Not confirmed")
    box.press("Control+Enter")
    expect(page.locator(".sending")).to_contain_text("Not confirmed")
    box.fill("Half a thou")
    later = page.context.new_page()
    page.close()
    later.goto(f"{gateway.url}#/s/s1")
    expect(later.get_by_role("textbox", name="Prompt")).to_have_value("Half a thou")
    expect(later.locator(".sending")).to_contain_text("Not confirmed")
    expect(later.locator(".sending")).to_contain_text("Not sent. The page was closed")


def test_nothing_is_left_in_the_browser_after_signing_out(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    page.locator(".composer textarea").fill("A secret")
    read_session(page)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    until(page, lambda: kept(page) == [])
    assert page.evaluate("sessionStorage.length") == 0
    assert page.evaluate("Object.keys(localStorage).filter((name) => /draft|unsent/.test(name))") == []


def test_nothing_is_left_in_the_browser_once_its_session_has_ended(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    read_session(page)
    page.evaluate("sessionStorage.setItem('remarks s1', '[]')")
    gateway.scene.signed_in = False
    page.reload()
    expect(page.get_by_text("This browser is not signed in any more.")).to_be_visible()
    until(page, lambda: kept(page) == [])
    assert page.evaluate("sessionStorage.length") == 0


READ_LATE = """
const open = CacheStorage.prototype.open;
CacheStorage.prototype.open = async function (name) {
  while (name.startsWith("read ") && !document.querySelector(".sign-in")) await new Promise(requestAnimationFrame);
  return open.call(this, name);
};
"""
"""Lets the page read what it keeps only when it has asked the user to sign in."""


def test_a_page_says_that_its_session_has_ended_if_it_is_refused_before_it_has_read_what_it_keeps(
    open_page: Opens,
) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    read_session(page)
    gateway.scene.signed_in = False
    page.add_init_script(READ_LATE)
    page.reload()
    expect(page.get_by_role("alert")).to_have_text("This browser is not signed in any more.")


def test_a_page_shows_nothing_of_one_identity_once_another_one_is_signed_in(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.locator(".composer textarea").fill("A secret")
    read_session(page)
    page.goto(f"{gateway.url}#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.scene.info["identity"] = "bob"
    gateway.scene.sessions.clear()
    gateway.drop()
    expect(page.get_by_role("alert")).to_contain_text("There is no such session.")
    expect(page.locator(".row")).to_have_count(0)
    until(page, lambda: kept(page) == ["list"])
    assert page.evaluate("Object.keys(localStorage).filter((name) => /draft|unsent/.test(name))") == []
