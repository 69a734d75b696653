"""The filter of the list finds sessions by their texts, too."""

import pytest
from playwright.sync_api import expect

from tests.web.browser.conftest import Opens
from tests.web.browser.scenes import shop


def found(params: object) -> dict[str, object]:
    """Find one session, by a word behind a character outside the BMP."""
    one = {"sessionId": "s1", "texts": 1, "seq": 4, "text": "🙂 divides by zero <b>", "marks": [[13, 17]]}
    return {"found": [one], "complete": False}


def found_elsewhere(params: object) -> dict[str, object]:
    """Find a session of another machine, whose places are not known here; one machine does not answer."""
    one = {"sessionId": "s1", "texts": 1, "text": "by zero", "marks": [[3, 7]]}
    return {"found": [one], "complete": True, "missing": ["gpu2", "gpu3"]}


def failing(params: object) -> dict[str, object]:
    """Answer with an error."""
    raise ValueError("the SQLite of this Python has no FTS5")


@pytest.mark.firefox
def test_sessions_are_found_by_their_texts_with_the_words_marked(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    gateway.answers["session/search"] = found
    page.get_by_label("Filter sessions").fill("zero")
    group = page.locator(".group", has=page.get_by_role("heading", name="In the text"))
    expect(group.locator("mark")).to_have_text("zero")
    expect(group.locator(".session-facts")).to_have_text("🙂 divides by zero <b>")
    expect(group).to_contain_text("Former sessions are still being read")
    assert ("session/search", {"words": "zero"}) in gateway.calls
    gateway.answers["session/search"] = failing
    page.get_by_label("Filter sessions").fill("ze")  # Too short.
    expect(group).to_have_count(0)
    page.get_by_label("Filter sessions").fill("zeros")
    expect(group).to_contain_text("has no FTS5")
    gateway.answers["session/search"] = found
    page.get_by_label("Filter sessions").fill("zero")
    expect(group.get_by_role("link")).to_have_attribute("href", "#/s/s1/u/4")
    group.get_by_role("link").click()
    expect(page.get_by_role("main").get_by_role("heading", name="Totals of a basket below zero")).to_be_visible()


def test_a_session_of_another_machine_opens_at_its_end_and_machines_without_an_answer_are_named(
    open_page: Opens,
) -> None:
    page, gateway = open_page(shop())
    gateway.answers["session/search"] = found_elsewhere
    page.get_by_label("Filter sessions").fill("zero")
    group = page.locator(".group", has=page.get_by_role("heading", name="In the text"))
    expect(group.get_by_role("link")).to_have_attribute("href", "#/s/s1")
    expect(group).to_contain_text("Not searched, no answer: gpu2, gpu3")
    gateway.answers["session/search"] = lambda _: {"found": [], "complete": True, "missing": ["gpu2"]}
    page.get_by_label("Filter sessions").fill("zeros")
    expect(group.get_by_role("link")).to_have_count(0)
    expect(group).to_contain_text("Not searched, no answer: gpu2")
