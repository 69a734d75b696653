"""Costs of sessions: in their rows, and in the dialog with sums, asked for again as it is changed."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.web.browser.conftest import PHONE, Opens, until
from tests.web.browser.scenes import COSTS, costs, fleet, shop


@pytest.mark.firefox
def test_the_dialog_has_sums_with_their_total_by_what_is_chosen(open_page: Opens) -> None:
    scene = shop()
    scene.sessions["s1"]["usage"] = {"costs": {"USD": 1.25}, "tokens": 9}
    page, gateway = open_page(scene)
    gateway.answers["gateway/usage"] = costs
    expect(page.locator(".session").filter(has_text="1.25 USD")).to_have_count(1)
    page.get_by_role("button", name="Costs").click()
    dialog = page.get_by_role("dialog", name="Costs")
    part = dialog.get_by_role("region", name="Total")
    expect(part.locator(".cost-total")).to_have_text("1.50 EUR + 4.50 USD · 2.4M tokens · 41 turns")
    expect(part.get_by_role("listitem")).to_have_count(len(COSTS["rows"]))
    expect(part.get_by_role("meter")).to_have_count(len(COSTS["rows"]))
    dialog.get_by_label("Add up by").select_option("session")
    expect(part.get_by_role("link", name="Fix the total")).to_have_attribute("href", "#/s/s1")
    dialog.get_by_label("Period").select_option("7")

    def asked() -> list[Any]:
        return [params for method, params in gateway.calls if method == "gateway/usage"]

    until(page, lambda: len(asked()) == 3)
    assert [params["by"] for params in asked()] == ["day", "session", "session"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", params["since"]) for params in asked())
    assert asked()[1]["since"] < asked()[2]["since"]


def test_each_machine_has_its_sums(open_page: Opens) -> None:
    page, gateway = open_page(fleet(), size=PHONE)
    gateway.answers["gateway/usage"] = costs
    expect(page.locator(".session")).to_have_count(5)
    page.get_by_role("button", name="Costs").click()
    expect(page.get_by_role("dialog").locator(".costs h3")).to_have_text(["This machine", "gpu1", "gpu2"])


def test_an_error_is_shown_and_a_guest_has_no_such_button(open_page: Opens) -> None:
    page, gateway = open_page(shop())

    def fail(_: Any) -> Any:
        raise ValueError("what sessions have cost can't be read now")

    gateway.answers["gateway/usage"] = fail
    page.get_by_role("button", name="Costs").click()
    expect(page.get_by_role("alert")).to_contain_text("can't be read now")
    scene = shop()
    scene.info["guest"] = True
    page, _ = open_page(scene)
    expect(page.locator(".session").first).to_be_visible()
    expect(page.get_by_role("button", name="Costs")).to_have_count(0)
