"""The load of the machines: a card for each, read while it is looked at."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.web.browser.conftest import PHONE, Opens, until
from tests.web.browser.scenes import MACHINE, fleet, shop

NAME = "How busy the machine is"


@pytest.mark.firefox
def test_the_card_has_processors_memory_disks_and_gpus_with_what_holds_them(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    gateway.answers["gateway/machine"] = lambda _: MACHINE
    page.get_by_role("button", name=NAME).click()
    card = page.get_by_role("dialog").get_by_role("region", name="box")
    expect(card).to_contain_text("1 of 2 GPUs, 52 of 64 CPUs, 400 GiB memory free")
    expect(card.get_by_role("meter")).to_have_count(5)
    expect(card).to_contain_text("66 °C")
    card.get_by_role("link", name="Fix the total").click()
    until(page, lambda: page.url.endswith("#/s/s1"))
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_it_is_asked_for_again_while_it_is_shown_and_not_afterwards(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    gateway.answers["gateway/machine"] = lambda _: MACHINE
    page.clock.install()
    page.get_by_role("button", name=NAME).click()
    expect(page.get_by_role("region", name="box")).to_be_visible()

    def asked() -> int:
        return sum(method == "gateway/machine" for method, _ in gateway.calls)

    page.clock.run_for(5100)
    until(page, lambda: asked() == 2)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.clock.run_for(20000)
    assert asked() == 2


def test_each_machine_has_a_card_and_one_that_is_away_does_not_tell(open_page: Opens) -> None:
    page, gateway = open_page(fleet(), size=PHONE)

    def answer(_: Any) -> Any:
        return MACHINE

    gateway.answers["gateway/machine"] = answer
    expect(page.locator(".session")).to_have_count(5)
    page.get_by_role("button", name=NAME).click()
    cards = page.get_by_role("dialog", name="Machines").locator(".machine-card h3")
    expect(cards).to_have_text(["box", "gpu1", "gpu2"])
    link = page.get_by_role("region", name="gpu1").get_by_role("link")
    expect(link).to_have_attribute("href", "#/s/gpu1%2Fs1")


def test_a_guest_of_one_session_has_no_such_button(open_page: Opens) -> None:
    scene = shop()
    scene.info["guest"] = True
    page, _ = open_page(scene)
    expect(page.locator(".session").first).to_be_visible()
    expect(page.get_by_role("button", name=NAME)).to_have_count(0)


def test_an_error_of_the_gateway_is_shown(open_page: Opens) -> None:
    page, gateway = open_page(shop())

    def fail(_: Any) -> Any:
        raise ValueError("there is no method 'gateway/machine' here")

    gateway.answers["gateway/machine"] = fail
    page.get_by_role("button", name=NAME).click()
    expect(page.get_by_role("alert")).to_contain_text("gateway/machine")
