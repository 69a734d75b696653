"""A page that is open while the gateway is replaced by one of another version."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Error, Page, expect

from acp_gateway.dialects.browser.assets import WEB, load_assets
from tests.web.browser.conftest import Opens, try_now, until
from tests.web.browser.scenes import shop
from tests.web.browser.scripted_gateway import ScriptedGateway

NOTICE = "The gateway has a new version of this page."


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The files of another version, whose page says so."""
    folder = tmp_path / "web"
    shutil.copytree(WEB, folder)
    main = folder / "app" / "main.js"
    main.write_text(f"{main.read_text()}\ndocument.body.dataset.version = 'newer';\n")
    return folder


def upgrade(page: Page, gateway: ScriptedGateway, folder: Path) -> None:
    gateway.web = folder
    gateway.drop()
    try_now(page)
    expect(page.get_by_text(NOTICE)).to_be_visible()


def click_if_there(page: Page) -> bool:
    with suppress(Error):
        page.get_by_role("button", name="Reload").evaluate_all("found => found.forEach((one) => one.click())")
    return False


def expect_newer(page: Page) -> None:
    expect(page.locator("body[data-version=newer]")).to_be_attached()
    expect(page.locator(".row").last).to_be_visible()


def test_a_page_of_the_version_before_says_so_and_keeps_its_draft_when_it_is_loaded_again(
    open_page: Opens, newer: Path
) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    page.wait_for_function("navigator.serviceWorker.controller !== null")
    box = page.get_by_role("textbox", name="Prompt")
    box.fill("Half a thought")
    upgrade(page, gateway, newer)
    expect(box).to_have_value("Half a thought")
    page.get_by_role("button", name="Reload").click()
    expect_newer(page)
    expect(box).to_have_value("Half a thought")
    expect(page.get_by_text(NOTICE)).to_have_count(0)
    # The worker is of the new version too: it opens the page without the gateway.
    gateway.stop()
    page.reload()
    expect_newer(page)


def test_a_page_whose_files_are_not_there_any_more_says_so(open_page: Opens, newer: Path) -> None:
    page, gateway = open_page(shop())
    expect(page.locator(".session").first).to_be_visible()
    gateway.web = newer
    # Its code comes with the first look at it.
    page.goto(f"{gateway.url}#/s/s1/changes")
    expect(page.get_by_text(NOTICE)).to_be_visible()
    expect(page.locator(".toast.is-error")).to_contain_text("reload the page")


def test_a_version_whose_files_are_not_all_there_does_not_take_over(open_page: Opens, newer: Path) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    page.wait_for_function("navigator.serviceWorker.controller !== null")
    # Of the new version, the gateway has the page and the worker, and no style.
    files = load_assets(newer)
    (style,) = [path for path in files if path.endswith("/style.css")]
    without = files.pop(style)
    gateway.web = newer
    page.evaluate("navigator.serviceWorker.getRegistration().then((it) => it.update()).catch(() => null)")
    until(page, lambda: page.evaluate("navigator.serviceWorker.getRegistration().then((it) => !it.installing)"))
    page.reload()
    expect(page.locator(".row").last).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.scroller')).overflowY") == "auto"
    expect(page.locator("body[data-version=newer]")).to_have_count(0)
    files[style] = without
    # An attempt of the browser to replace the worker may have begun before that: then the button is there again.
    newest = page.locator("body[data-version=newer]")
    until(page, lambda: newest.count() == 1 or click_if_there(page))
    expect_newer(page)
