"""Several machines in one list: badges, the switch, machines that are away, and where a new session starts."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, WIDE, Opens, until
from tests.web.browser.scenes import fleet, shop
from tests.web.browser.scripted_gateway import Scene, ScriptedGateway


def choose(page: Page, machine: str) -> None:
    page.locator(".machine-choices label", has_text=machine).click()


KEPT = """
caches.open(`read ${new URL("./read/", document.baseURI)}`)
  .then((cache) => cache.match(new URL("./read/list", document.baseURI).href))
  .then((found) => found?.json())
  .then((list) => list?.sessions.length ?? 0)
"""
"""The number of sessions in the list that the browser keeps."""


def lose(page: Page, gateway: ScriptedGateway) -> None:
    """Load the page while a machine is away that it has shown before."""
    expect(page.locator(".session")).to_have_count(5)
    until(page, lambda: page.evaluate(KEPT) == 5)
    page.goto("about:blank")
    gateway.lose("gpu2", (datetime.now(UTC) - timedelta(minutes=12)).isoformat())
    page.goto(gateway.url)
    expect(page.locator(".session")).to_have_count(5)
    expect(page.locator(".machine-away")).to_have_text("gpu2 is away for 12 min.")


def test_sessions_with_equal_ids_have_their_machine_and_open_apart(open_page: Opens) -> None:
    page, gateway = open_page(fleet())
    expect(page.locator(".session")).to_have_count(5)
    expect(page.get_by_role("link", name="Train with")).to_contain_text("gpu11 min · opencode · ")
    expect(page.get_by_role("link", name="Totals of").locator(".machine")).to_have_count(0)
    for title, name in (("Totals of", "1"), ("Train with", "gpu1/1"), ("Sweep", "gpu2/1")):
        page.get_by_role("link", name=title).click()
        expect(page.get_by_text(f"Of {name}.", exact=True)).to_be_visible()
        assert ("session/get", name) in [(method, params.get("sessionId")) for method, params in gateway.calls]
    until(page, lambda: page.url.endswith("#/s/gpu2%2F1"))
    page.reload()
    expect(page.get_by_text("Of gpu2/1.", exact=True)).to_be_visible()
    page.goto(gateway.url + "#/s/gpu1%2F7%2Ff")
    expect(page.get_by_text("Of gpu1/7/f.", exact=True)).to_be_visible()


@pytest.mark.firefox
def test_the_switch_shows_one_machine_and_is_kept(open_page: Opens) -> None:
    page, gateway = open_page(fleet())
    expect(page.locator(".machine-choices label")).to_have_text(["All machines", "gpu1", "gpu2", "This machine"])
    choose(page, "gpu1")
    expect(page.locator(".session")).to_have_count(2)
    choose(page, "This machine")
    expect(page.locator(".session-title")).to_have_text(["Totals of a basket below zero"])
    page.reload()
    expect(page.locator(".session-title")).to_have_text(["Totals of a basket below zero"])
    expect(page.get_by_role("radio", name="This machine")).to_be_checked()
    page.get_by_role("radio", name="This machine").press("ArrowLeft")
    expect(page.locator(".session")).to_have_count(2)
    expect(page.get_by_role("radio", name="gpu2")).to_be_focused()
    # A machine that has gone is not a reason to show nothing.
    for name in ("gpu2/1", "gpu2/2"):
        gateway.remove(name)
    gateway.scene.agents = [it for it in gateway.scene.agents if it["machine"] != "gpu2"]
    page.reload()
    expect(page.locator(".session")).to_have_count(3)
    expect(page.get_by_role("radio", name="All machines")).to_be_checked()


def test_without_other_machines_there_is_no_switch(open_page: Opens) -> None:
    page, _ = open_page(shop())
    expect(page.locator(".session").first).to_be_visible()
    expect(page.locator(".machines, .machine")).to_have_count(0)
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.get_by_role("group", name="Agent")).to_be_visible()
    expect(page.get_by_role("group", name="Machine")).to_have_count(0)


def test_a_machine_that_is_away_is_shown_so_and_its_questions_wait(open_page: Opens) -> None:
    page, gateway = open_page(fleet())
    lose(page, gateway)
    expect(page.get_by_role("link", name="Sweep")).to_contain_text("Away")
    expect(page.locator(".group.is-waiting")).to_have_count(0)
    expect(page).to_have_title("acp-gateway")
    choose(page, "gpu1")
    expect(page.locator(".machine-away")).to_have_count(0)
    choose(page, "All machines")
    page.get_by_role("link", name="Sweep").click()
    expect(page.locator(".head")).to_contain_text("gpu2 is away for 12 min")
    # That names the machine; on a phone there is no room for its badge as well.
    expect(page.locator(".head .machine")).to_have_count(0)
    gateway.find("gpu2")
    expect(page.locator(".machine-away")).to_have_count(0)
    expect(page.locator(".group.is-waiting .session-title")).to_have_text("Sweep the learning rate")
    expect(page.locator(".head")).not_to_contain_text("away")
    expect(page.locator(".head .machine")).to_have_text("gpu2")


@pytest.mark.parametrize("scene", [shop, fleet], ids=["alone", "among others"])
def test_a_machine_that_is_too_old_is_named_with_the_remedy(scene: Callable[[], Scene], open_page: Opens) -> None:
    made = scene()
    made.too_old = ["gpu9"]
    page, _ = open_page(made)
    expect(page.locator(".session").first).to_be_visible()
    expect(page.locator(".machine-away")).to_have_text("gpu9 is too old for this gateway: upgrade acp-gateway there.")


def test_what_was_read_of_a_machine_is_shown_while_it_is_away(open_page: Opens) -> None:
    page, gateway = open_page(fleet(), "#/s/gpu2%2F1")
    expect(page.get_by_text("Of gpu2/1.", exact=True)).to_be_visible()
    lose(page, gateway)
    page.get_by_role("link", name="Sweep").click()
    expect(page.get_by_text("Of gpu2/1.", exact=True)).to_be_visible()
    page.get_by_role("link", name="Clean the data").click()
    expect(page.locator(".head")).to_contain_text("gpu2 is away for 12 min")
    expect(page.get_by_text("Of gpu2/2.", exact=True)).to_have_count(0)
    gateway.find("gpu2")
    expect(page.get_by_text("Of gpu2/2.", exact=True)).to_be_visible()


def test_a_session_starts_on_the_chosen_machine(open_page: Opens) -> None:
    page, gateway = open_page(fleet())
    lose(page, gateway)
    gateway.answers["session/new"] = lambda _: {"sessionId": "gpu1/1"}
    choose(page, "gpu1")
    page.get_by_role("button", name="New", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("group", name="Machine").get_by_role("radio")).to_have_count(3)
    expect(dialog.get_by_role("group", name="Machine")).to_contain_text("away for 12 min")
    expect(dialog.get_by_role("radio", name="gpu1")).to_be_checked()
    expect(dialog.get_by_role("group", name="Agent").locator(".choice-title")).to_have_text(["opencode", "claude"])
    expect(dialog.get_by_role("group", name="Workspace")).to_contain_text("/data/train")
    dialog.get_by_role("radio", name="This machine").check()
    expect(dialog.get_by_role("group", name="Agent")).to_have_count(0)
    dialog.get_by_role("radio", name="gpu1").check()
    dialog.get_by_role("radio", name="claude").check()
    dialog.get_by_role("button", name="Start").click()
    until(page, lambda: any(method == "session/new" for method, _ in gateway.calls))
    (params,) = [params for method, params in gateway.calls if method == "session/new"]
    assert params["agentType"] == "gpu1/claude"
    expect(page.get_by_text("Of gpu1/1.", exact=True)).to_be_visible()


@pytest.mark.parametrize("size", [PHONE, (320, 568), WIDE])
def test_nothing_is_wider_than_the_screen(open_page: Opens, size: tuple[int, int]) -> None:
    scene = fleet()
    for number in range(12):
        name = f"a-long-name-{number}"
        scene.sessions[f"{name}/1"] = {**scene.sessions["1"], "id": f"{name}/1", "machine": name}
    page, _ = open_page(scene, size=size, touch=size != WIDE)
    expect(page.locator(".machine-choices label")).to_have_count(16)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".list").evaluate("(list) => list.scrollWidth <= list.clientWidth")
    page.get_by_role("radio", name="This machine").focus()
    page.keyboard.press("Space")
    expect(page.locator(".session-title")).to_have_text(["Totals of a basket below zero"])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth && scrollX === 0")
