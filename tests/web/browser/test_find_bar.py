"""The search in the open session: its places, also those that are not loaded, and its keys."""

from itertools import groupby
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import Opens, until
from tests.web.browser.scenes import agent, long, numbered, session, shop, tool, user
from tests.web.browser.scripted_gateway import Scene, ScriptedGateway

FOUND_IS_IN_VIEW = """() => {
  const scroller = document.querySelector(".scroller").getBoundingClientRect();
  const row = document.querySelector(".row.is-found")?.getBoundingClientRect();
  return Boolean(row) && row.top >= scroller.top && row.top < scroller.bottom;
}"""


MARK_IS_IN_VIEW = """() => {
  const scroller = document.querySelector(".scroller").getBoundingClientRect();
  const [range] = CSS.highlights.get("found") ?? [];
  const at = range?.getBoundingClientRect();
  return range?.toString() === "needle" && at.top >= scroller.top && at.bottom <= scroller.bottom;
}"""


def places(*numbers: int, more: bool = False) -> dict[str, Any]:
    found = [{"seq": number, "text": f"the word {number}", "marks": [[4, 8]]} for number in numbers]
    return {"found": found, "more": more, "complete": True}


def befores(gateway: ScriptedGateway) -> list[int]:
    """Return where the parts of a session end that were asked for, each once: a slow page may ask again."""
    asked = [params["before"] for method, params in gateway.calls if method == "session/get" and "before" in params]
    return list(dict.fromkeys(asked))


def found_is_in_view(page: Page) -> bool:
    return bool(page.evaluate(FOUND_IS_IN_VIEW))


@pytest.mark.firefox
def test_places_are_found_from_the_last_one_to_the_first_also_those_that_are_not_loaded(open_page: Opens) -> None:
    page, gateway = open_page(long(12_000), "#/s/long")
    gateway.answers["session/search"] = lambda params: (
        places(300) if "before" in params else places(11_500, 9_000, more=True)
    )

    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Find in this session").click()
    bar = page.get_by_role("search")
    words = bar.get_by_role("searchbox")
    expect(words).to_be_focused()
    words.fill("word")
    words.press("Enter")
    expect(bar.get_by_role("status")).to_have_text("1 of 2+")
    expect(bar.locator("mark")).to_have_text("word")
    until(page, lambda: found_is_in_view(page))
    first = page.locator(".row.is-found").text_content()
    words.press("Enter")
    expect(bar.get_by_role("status")).to_have_text("2 of 2+")
    bar.get_by_role("button", name="Earlier place").click()
    expect(bar.get_by_role("status")).to_have_text("3 of 3")
    expect(bar.locator(".find-text")).to_have_text("the word 300")
    until(page, lambda: befores(gateway) == [7001, 2001])
    until(page, lambda: page.locator(".row.is-found").count() == 1 and found_is_in_view(page))
    until(page, lambda: page.locator(".row.is-found").text_content() != first)
    words.press("Enter")
    expect(bar.get_by_role("status")).to_have_text("3 of 3")
    for number in (2, 1):
        words.press("Shift+Enter")
        expect(bar.get_by_role("status")).to_have_text(f"{number} of 3")
    until(page, lambda: page.locator(".row.is-found").text_content() == first and found_is_in_view(page))
    searches = [params for method, params in gateway.calls if method == "session/search"]
    assert [it for it, _ in groupby(searches)] == [
        {"sessionId": "long", "words": "word"},
        {"sessionId": "long", "words": "word", "before": 9000},
    ]
    words.press("Escape")
    expect(bar).to_have_count(0)


@pytest.mark.firefox
def test_the_slash_opens_the_search_but_not_where_it_is_typed(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.get_by_role("textbox", name="Prompt").press("/")
    expect(page.get_by_role("search")).to_have_count(0)
    page.locator(".scroller").press("/")
    words = page.get_by_role("search").get_by_role("searchbox")
    expect(words).to_be_focused()
    expect(words).to_have_value("")
    gateway.answers["session/search"] = lambda _: places()
    words.fill("nothing")
    words.press("Enter")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("Nothing found")


def test_a_failed_search_is_told_and_can_be_repeated(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")

    def failing(_: object) -> dict[str, Any]:
        raise ValueError("the disk is slow")

    gateway.answers["session/search"] = failing
    page.locator(".scroller").press("/")
    words = page.get_by_role("search").get_by_role("searchbox")
    words.fill("word")
    words.press("Enter")
    expect(page.get_by_role("search").get_by_role("alert")).to_have_text("The disk is slow")
    gateway.answers["session/search"] = lambda _: places(1)
    words.press("Enter")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 of 1")
    expect(page.get_by_role("search").get_by_role("alert")).to_have_count(0)


def test_a_link_to_an_update_opens_the_session_there(open_page: Opens) -> None:
    page, gateway = open_page(long(12_000), "#/s/long/u/3000")
    until(page, lambda: page.locator(".row.is-found").count() == 1 and found_is_in_view(page))
    assert befores(gateway) == [7001]


def test_a_place_in_one_of_parallel_tool_calls_opens_it_and_is_marked_in_it(open_page: Opens) -> None:
    lines = "\n".join(f"line {number}" for number in range(400))
    output = [{"type": "content", "content": {"type": "text", "text": f"{lines}\nthe needle\n{lines}"}}]
    calls = [tool(name, f"Run {name}", "execute", status="in_progress") for name in ("one", "two", "three")]
    done = [
        {"sessionUpdate": "tool_call_update", "toolCallId": name, "status": "completed", "content": content}
        for name, content in (("two", []), ("one", output), ("three", []))
    ]
    scene = Scene([session("s", "Parallel")], {"s": numbered([user("Go"), *calls, *done, agent("Done.")])})
    page, gateway = open_page(scene, "#/s/s")
    gateway.answers["session/search"] = lambda _: {
        "found": [{"seq": 6, "text": "the needle line 0", "marks": [[4, 10]]}],
        "more": False,
        "complete": True,
    }
    expect(page.get_by_text("Done.")).to_be_visible()
    page.locator(".scroller").press("/")
    words = page.get_by_role("search").get_by_role("searchbox")
    words.fill("needle")
    words.press("Enter")
    found = page.locator(".row.is-found")
    expect(found.locator(".fold")).to_contain_text("Run one")
    expect(found.locator(".fold")).to_have_attribute("aria-expanded", "true")
    expect(page.locator(".row .fold[aria-expanded=true]")).to_have_count(1)
    until(page, lambda: bool(page.evaluate(MARK_IS_IN_VIEW)))
