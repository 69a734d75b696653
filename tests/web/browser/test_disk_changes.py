"""Changes on the disk, in a browser: by turn, what commands have made, and what is put back."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, Opens, until
from tests.web.browser.scenes import ON_DISK, shop
from tests.web.browser.scripted_gateway import Message, ScriptedGateway


def undone(gateway: ScriptedGateway) -> list[Message]:
    return [params for method, params in gateway.calls if method == "session/undo"]


def asked(gateway: ScriptedGateway) -> list[Any]:
    return [params.get("mark") for method, params in gateway.calls if method == "session/changes"]


def open_changes(open_page: Opens, told: Message = ON_DISK, **options: Any) -> tuple[Page, ScriptedGateway]:
    page, gateway = open_page(shop(), **options)
    gateway.answers["session/changes"] = lambda _: told
    page.goto(f"{gateway.url}#/s/s1/changes")
    return page, gateway


@pytest.mark.firefox
def test_files_on_the_disk_are_shown_and_those_that_commands_have_made_are_marked(open_page: Opens) -> None:
    page, _ = open_changes(open_page)
    files = page.locator(".changed-file")
    expect(files).to_have_count(4)
    basket = page.get_by_role("region", name="shop/basket.py")
    expect(basket.locator(".diff tr").first).to_be_visible()
    expect(basket.get_by_text("Made by a command")).to_have_count(0)
    expect(page.get_by_role("region", name="report.txt").get_by_text("Made by a command")).to_be_visible()
    expect(page.get_by_role("region", name="model.bin")).to_contain_text("large")
    notes = page.get_by_role("list", name="Commits and worktrees")
    expect(notes.get_by_role("listitem")).to_have_text(
        ["Commit aaaaaaaa: Stop at zero", "New worktree /home/ann/work/shop-try, try"]
    )


def test_turns_are_chosen_and_what_the_agent_tells_stays_there(open_page: Opens) -> None:
    page, gateway = open_changes(open_page)
    expect(page.locator(".changed-file")).to_have_count(4)
    choice = page.get_by_label("Which changes")
    choice.select_option("disk 2")
    until(page, lambda: asked(gateway)[-1] == 2)
    choice.select_option("told")
    expect(page.locator(".changed-file .path")).to_have_text("shop/basket.py")
    expect(page.get_by_role("button", name="Undo this")).to_have_count(0)


@pytest.mark.firefox
def test_a_file_is_put_back_after_a_second_question(open_page: Opens) -> None:
    page, gateway = open_changes(open_page)
    file = page.get_by_role("region", name="report.txt")
    file.get_by_role("button", name="Undo this").click()
    expect(file.get_by_role("button", name="Keep it")).to_be_focused()
    file.get_by_role("button", name="Keep it").click()
    assert undone(gateway) == []
    expect(file.get_by_role("button", name="Undo this")).to_be_focused()
    page.keyboard.press("Enter")
    expect(file).to_contain_text("The file is removed")
    before = len(asked(gateway))
    file.get_by_role("button", name="Put back").click()
    until(page, lambda: len(asked(gateway)) > before)
    (params,) = undone(gateway)
    assert (params["path"], params["old"], params["new"]) == ("report.txt", "0" * 40, "2" * 40)
    assert "lines" not in params
    assert "mark" not in params


def test_one_place_of_several_is_put_back_with_its_lines(open_page: Opens) -> None:
    page, gateway = open_changes(open_page)
    basket = page.get_by_role("region", name="shop/basket.py")
    expect(basket.get_by_role("button", name="Undo these lines")).to_have_count(2)
    basket.get_by_role("button", name="Undo these lines").last.click()
    basket.get_by_role("button", name="Put back").click()
    until(page, lambda: len(undone(gateway)) == 1)
    assert undone(gateway)[0]["lines"] == [17, 0, 15, 2]


def test_a_refusal_is_told_where_it_was_asked(open_page: Opens) -> None:
    page, gateway = open_changes(open_page)

    def refuse(_: Message) -> Message:
        raise ValueError("The file has changed since it was shown: look again.")

    gateway.answers["session/undo"] = refuse
    file = page.get_by_role("region", name="report.txt")
    file.get_by_role("button", name="Undo this").click()
    file.get_by_role("button", name="Put back").click()
    expect(file.get_by_role("alert")).to_have_text("The file has changed since it was shown: look again.")


def test_a_turn_that_is_over_shows_nothing_to_put_back(open_page: Opens) -> None:
    page, _ = open_changes(open_page, ON_DISK | {"present": False})
    expect(page.locator(".changed-file")).to_have_count(4)
    expect(page.get_by_role("button", name="Undo this")).to_have_count(0)


def test_outside_of_git_it_is_as_the_agent_tells_with_a_sentence(open_page: Opens) -> None:
    page, _ = open_changes(open_page, {"git": False, "why": "The session's folder is in no git working tree."})
    expect(page.locator(".changed-file .path")).to_have_text("shop/basket.py")
    expect(page.locator(".changes .note")).to_contain_text("in no git working tree.")


def test_an_observer_does_not_ask_for_the_disk(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    gateway.change("s1", mayControl=False)
    page.goto(f"{gateway.url}#/s/s1/changes")
    expect(page.locator(".changed-file .path")).to_have_text("shop/basket.py")
    assert asked(gateway) == []


def test_a_guest_without_files_does_not_ask_for_the_disk(open_page: Opens) -> None:
    scene = shop()
    scene.info["mayUseFiles"] = False
    page, gateway = open_page(scene)
    page.goto(f"{gateway.url}#/s/s1/changes")
    expect(page.locator(".changed-file .path")).to_have_text("shop/basket.py")
    assert asked(gateway) == []


def test_on_a_phone_nothing_is_wider_than_the_page(open_page: Opens) -> None:
    page, _ = open_changes(open_page, size=PHONE, touch=True)
    expect(page.locator(".changed-file")).to_have_count(4)
    page.get_by_role("region", name="report.txt").get_by_role("button", name="Undo this").click()
    expect(page.get_by_role("button", name="Put back")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
