"""The board: sessions in columns by state, with the last line of each."""

import re

from playwright.sync_api import Locator, Page, expect

from tests.web.browser.conftest import TABLET, Opens, until
from tests.web.browser.scenes import PERMISSION, session, shop
from tests.web.browser.scripted_gateway import Scene


def cards(page: Page, title: str) -> Locator:
    return page.get_by_role("region", name=title).locator(".card")


def test_the_board_has_sessions_by_state_and_follows_them(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/board")
    expect(cards(page, "Needs you")).to_contain_text(["rm -rf build"])
    expect(cards(page, "Working")).to_contain_text(["Totals of a basket"])
    expect(cards(page, "Ready")).to_contain_text(["Move the settings", "nightly build"])
    expect(cards(page, "Ended")).to_have_count(3)
    gateway.ask("s3", 9, PERMISSION)
    expect(cards(page, "Needs you")).to_have_count(2)
    expect(cards(page, "Needs you").filter(has_text="Move the settings")).to_contain_text("git push")
    gateway.change("s1", turn=False, status="completed")
    expect(cards(page, "Working")).to_have_count(0)


def test_each_session_of_the_board_has_its_last_line(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    lines = {"s1": "I run the tests.", "s3": "All is moved.", "s5": "Done."}
    gateway.answers["session/last"] = lambda _: {"lines": dict(lines)}
    page.get_by_role("link", name="Board").click()
    expect(cards(page, "Working").locator(".card-line")).to_have_text("I run the tests.")
    expect(cards(page, "Ready").first.locator(".card-line")).to_have_text("All is moved.")
    lines["s1"] = "13 passed."
    expect(cards(page, "Working").locator(".card-line")).to_have_text("13 passed.")
    expect(cards(page, "Ended").filter(has_text="Upgrade the linter").locator(".card-line")).to_have_text("Done.")
    asked = [params["sessionIds"] for method, params in gateway.calls if method == "session/last"]
    assert sorted(asked[0]) == ["s1", "s2", "s3", "s4", "s5", "s6", "s7"]
    # That of a session without a process does not change.
    assert sorted(asked[-1]) == ["s1", "s2", "s3", "s4"]


def test_sessions_in_another_order_are_not_asked_for_again(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    gateway.answers["session/last"] = lambda _: {"lines": {}}
    page.get_by_role("link", name="Board").click()

    def asked() -> int:
        return sum(method == "session/last" and "s5" in params["sessionIds"] for method, params in gateway.calls)

    until(page, lambda: asked() == 1)
    gateway.change("s4", updatedAt="2100-01-01T00:00:00Z")
    expect(cards(page, "Ready").first).to_contain_text("nightly build")
    gateway.ask("s4", 9, PERMISSION)
    expect(cards(page, "Needs you")).to_have_count(2)
    assert asked() == 1


def test_a_card_opens_its_session_and_b_goes_back_to_the_board(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/board")
    cards(page, "Working").click()
    expect(page.locator(".head h1")).to_have_text("Totals of a basket below zero")
    expect(page.locator(".list")).to_be_visible()
    page.locator(".scroller").press("b")
    expect(page).to_have_url(re.compile("#/board$"))
    expect(cards(page, "Working")).to_have_count(1)
    page.get_by_role("link", name="List").click()
    expect(page.locator(".list")).to_be_visible()


def test_a_window_without_room_for_the_board_shows_the_list(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/board", size=TABLET)
    expect(page.locator(".list .session").first).to_be_visible()
    expect(page.get_by_role("link", name="Board")).to_have_count(0)
    expect(page.locator(".board")).to_have_count(0)


def test_the_board_draws_and_asks_for_few_of_a_thousand_sessions(open_page: Opens) -> None:
    page, gateway = open_page(Scene([session(f"s{i}", f"Number {i}", minutes=i) for i in range(1000)], {}), "#/board")
    expect(cards(page, "Ready")).to_have_count(25)
    page.get_by_role("button", name="Show 25 of 975 more").click()
    expect(cards(page, "Ready")).to_have_count(50)

    def asked() -> list[int]:
        return [len(params["sessionIds"]) for method, params in gateway.calls if method == "session/last"]

    until(page, lambda: 50 in asked())
    assert set(asked()) == {25, 50}
