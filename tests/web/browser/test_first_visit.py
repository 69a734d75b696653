"""The requests of a page that is opened for the first time, and the page without its program or its gateway."""

import pytest
from playwright.sync_api import Route, expect

from tests.web.browser.conftest import NewPage, Opens, has_worker, until
from tests.web.browser.scenes import shop
from tests.web.browser.scripted_gateway import running

MOST_REQUESTS = 6
MOST_BYTES = 143_500


def test_a_page_that_is_opened_for_the_first_time_takes_few_requests_and_bytes(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    sizes = [size for _, size in gateway.files]
    assert 3 <= len(sizes) <= MOST_REQUESTS
    assert sum(sizes) <= MOST_BYTES


def test_nothing_but_the_connection_comes_between_the_shell_and_the_list(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    expect(page.locator(".session").first).to_be_visible()
    methods = [method for method, _ in gateway.calls]
    # The first three are sent at once: with that of the WebSocket, the list takes two round trips.
    assert methods[:3] == ["gateway/info", "agents/list", "session/list"]
    asked = page.evaluate("performance.getEntriesByType('resource').map((it) => it.initiatorType)")
    assert "fetch" not in asked


def test_a_shell_is_shown_before_the_modules_have_come(new_page: NewPage) -> None:
    with running(shop()) as gateway:
        page = new_page()
        held: list[Route] = []
        page.route("**/page.js", lambda route: held.append(route))
        page.goto(gateway.url, wait_until="commit")
        expect(page.get_by_role("status")).to_have_text("Connecting to the gateway…")
        until(page, lambda: len(held) > 0)
        held[0].continue_()
        expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        expect(page.get_by_text("Connecting to the gateway…")).to_have_count(0)


def test_where_the_program_does_not_come_the_shell_says_later_what_to_do(new_page: NewPage) -> None:
    with running(shop()) as gateway:
        page = new_page()
        page.route("**/page.js", lambda route: route.abort())
        page.goto(gateway.url)
        late = page.get_by_text("If nothing comes, reload the page.")
        expect(late).to_be_attached()
        page.evaluate("document.getAnimations().forEach((one) => { one.pause(); one.currentTime = 9999; })")
        expect(late).to_be_hidden()
        page.evaluate("document.getAnimations().forEach((one) => one.finish())")
        expect(late).to_be_visible()
        page.unroute_all()
        page.reload()
        expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        expect(late).to_have_count(0)


@pytest.mark.firefox
def test_the_page_opens_from_its_worker_while_the_gateway_is_away(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    until(page, lambda: has_worker(page))
    gateway.stop()
    page.reload()
    expect(page.get_by_text("No connection for")).to_be_visible()
    # With its style.
    assert page.evaluate("getComputedStyle(document.querySelector('.list')).display") == "flex"


def test_a_part_of_the_page_that_does_not_come_is_told(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    expect(page.get_by_role("button", name="Notifications")).to_be_enabled()
    gateway.stop()
    page.get_by_role("button", name="Notifications").click()
    expect(page.get_by_text("This part of the page did not come.")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
