"""The search in the open session: its places, also those that are not loaded, and its keys."""

from itertools import groupby
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.browser.conftest import PHONE, Opens, until
from tests.web.browser.scenes import agent, long, numbered, session, shop, tool, user
from tests.web.browser.scripted_gateway import Scene, ScriptedGateway

FOUND_IS_IN_VIEW = """() => {
  const scroller = document.querySelector(".scroller").getBoundingClientRect();
  const row = document.querySelector(".row.is-found")?.getBoundingClientRect();
  return Boolean(row) && row.top >= scroller.top && row.top < scroller.bottom;
}"""


MARK_IS_IN_VIEW = """() => {
  const scroller = document.querySelector(".scroller").getBoundingClientRect();
  const [range] = CSS.highlights.get("found-now") ?? [];
  const at = range?.getBoundingClientRect();
  return range?.toString() === "needle" && at.top >= scroller.top && at.bottom <= scroller.bottom;
}"""


MARKED = """() => [...(CSS.highlights.get("found") ?? [])].map((range) => range.toString())"""


def places(*numbers: int) -> dict[str, Any]:
    found = [{"seq": number, "text": f"the word {number}", "marks": [[4, 8]]} for number in numbers]
    return {"found": found, "more": False, "complete": True}


def find(page: Page, words: str) -> tuple[Locator, Locator]:
    """Open the search and type; return its field and its state."""
    page.locator(".scroller").press("/")
    bar = page.get_by_role("search")
    bar.get_by_role("searchbox").fill(words)
    return bar.get_by_role("searchbox"), bar.get_by_role("status")


def befores(gateway: ScriptedGateway) -> list[int]:
    """Return where the parts of a session end that were asked for, each once: a slow page may ask again."""
    asked = [params["before"] for method, params in gateway.calls if method == "session/get" and "before" in params]
    return list(dict.fromkeys(asked))


def found_is_in_view(page: Page) -> bool:
    return bool(page.evaluate(FOUND_IS_IN_VIEW))


@pytest.mark.firefox
def test_places_are_marked_and_counted_while_they_are_typed_also_within_words(open_page: Opens) -> None:
    code = "```python\nparseRateLimit(self.rate_limit, rates)\n```\n\n**Ra**te"
    scene = Scene([session("s", "Rates")], {"s": numbered([user("The rate?"), agent(code)])})
    page, gateway = open_page(scene, "#/s/s")
    expect(page.locator(".code-name, .code-title, .markdown code span").first).to_be_visible()
    words, state = find(page, "rate")
    expect(state).to_have_text("1 of 5")
    until(page, lambda: page.evaluate(MARKED) == ["rate", "Rate", "rate", "rate", "Rate"])
    words.fill("ratel")
    expect(state).to_have_text("1 of 1")
    until(page, lambda: page.evaluate(MARKED) == ["RateL"])
    words.fill("self.rate_")
    until(page, lambda: page.evaluate(MARKED) == ["self.rate_"])
    words.fill("nothing like it")
    expect(state).to_have_text("Nothing found")
    assert page.evaluate(MARKED) == []
    words.fill("rate")
    until(page, lambda: len(page.evaluate(MARKED)) == 5)
    words.press("Escape")
    expect(page.get_by_role("search")).to_have_count(0)
    until(page, lambda: page.evaluate(MARKED) == [])
    assert not [method for method, _ in gateway.calls if method == "session/search"]


def test_the_place_that_was_gone_to_stays_marked_where_its_block_is_drawn_again(open_page: Opens) -> None:
    filler = [user("Go on") if number % 2 else agent("Done.") for number in range(200)]
    scene = Scene([session("s", "Long")], {"s": numbered([user("A needle"), *filler])})
    page, _ = open_page(scene, "#/s/s", size=PHONE)
    words, state = find(page, "needle")
    expect(state).to_have_text("1 of 1")
    until(page, lambda: bool(page.evaluate(MARK_IS_IN_VIEW)))
    scroller = page.locator(".scroller")
    scroller.evaluate("scroller => { scroller.scrollTop = scroller.scrollHeight; }")
    expect(page.get_by_text("A needle")).to_have_count(0)
    scroller.evaluate("scroller => { scroller.scrollTop = 0; }")
    until(page, lambda: bool(page.evaluate(MARK_IS_IN_VIEW)))
    words.fill("nothing like it")
    until(page, lambda: page.evaluate("CSS.highlights.size") == 0)


@pytest.mark.firefox
def test_each_place_of_a_long_message_is_gone_to_from_the_last_one_to_the_first(open_page: Opens) -> None:
    filler = "\n\n".join(f"Line {number}." for number in range(60))
    text = f"the needle\n\n{filler}\n\nthe needle\n\n{filler}\n\nthe needle"
    scene = Scene(
        [session("s", "Long")], {"s": numbered([user("A needle"), agent(text), user("Go on"), agent("Done.")])}
    )
    page, _ = open_page(scene, "#/s/s")
    words, state = find(page, "needle")
    tops = []
    for number in (1, 2, 3, 4):
        expect(state).to_have_text(f"{number} of 4")
        until(page, lambda: bool(page.evaluate(MARK_IS_IN_VIEW)))
        tops.append(page.locator(".scroller").evaluate("scroller => scroller.scrollTop"))
        words.press("Enter")
    assert tops == sorted(tops, reverse=True)
    assert tops[0] - tops[2] > 1000
    for number in (3, 2, 1, 1):
        words.press("Shift+Enter")
        expect(state).to_have_text(f"{number} of 4")
        until(page, lambda: bool(page.evaluate(MARK_IS_IN_VIEW)))


@pytest.mark.firefox
def test_places_that_are_not_loaded_are_found_by_the_gateway_and_loaded(open_page: Opens) -> None:
    page, gateway = open_page(long(12_000), "#/s/long")
    gateway.answers["session/search"] = lambda params: places(40) if params["before"] > 41 else places()
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Find in this session").click()
    bar = page.get_by_role("search")
    words, state = bar.get_by_role("searchbox"), bar.get_by_role("status")
    expect(words).to_be_focused()
    words.fill("what about part 3?")
    until(page, lambda: befores(gateway) == [7001, 2001])
    expect(state).to_have_text("1 of 1")
    until(page, lambda: page.locator(".row.is-found").count() == 1 and found_is_in_view(page))
    words.fill("part 1: what")
    bar.get_by_role("button", name="Earlier place").click()
    searches = [params for method, params in gateway.calls if method == "session/search"]
    assert [it for it, _ in groupby(searches)] == [{"sessionId": "long", "words": "what about part 3?", "before": 7001}]


@pytest.mark.firefox
def test_the_slash_opens_the_search_but_not_where_it_is_typed(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    page.get_by_role("textbox", name="Prompt").press("/")
    expect(page.get_by_role("search")).to_have_count(0)
    page.locator(".scroller").press("/")
    words = page.get_by_role("search").get_by_role("searchbox")
    expect(words).to_be_focused()
    expect(words).to_have_value("")
    words.fill("no such word")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("Nothing found")


def test_a_failed_search_is_told_and_can_be_repeated(open_page: Opens) -> None:
    page, gateway = open_page(long(12_000), "#/s/long")

    def failing(_: object) -> dict[str, Any]:
        raise ValueError("the disk is slow")

    gateway.answers["session/search"] = failing
    words, state = find(page, "no such word")
    expect(page.get_by_role("search").get_by_role("alert")).to_have_text("The disk is slow")
    gateway.answers["session/search"] = lambda _: places()
    words.press("Enter")
    expect(state).to_have_text("Nothing found")
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
    page, _ = open_page(scene, "#/s/s")
    expect(page.get_by_text("Done.")).to_be_visible()
    words, state = find(page, "needle")
    found = page.locator(".row.is-found")
    expect(found.locator(".fold")).to_contain_text("Run one")
    expect(found.locator(".fold")).to_have_attribute("aria-expanded", "true")
    expect(page.locator(".row .fold[aria-expanded=true]")).to_have_count(1)
    until(page, lambda: bool(page.evaluate(MARK_IS_IN_VIEW)))
    expect(state).to_have_text("1 of 1")
    words.fill("Go")
    expect(page.locator(".row.is-found")).to_contain_text("Go")
    expect(page.locator(".row .fold[aria-expanded=true]")).to_have_count(0)
