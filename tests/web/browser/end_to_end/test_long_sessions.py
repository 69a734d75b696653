"""A session of 100,000 updates: what is in the document, and where the view is."""

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, until
from tests.web.browser.end_to_end.conftest import PageGateway, SignIn, Step
from tests.web.browser.scenes import agent, thought, tool

UPDATES = 100_000

MOST_NODES = 6000
"""Elements of the whole page, whatever the length of the session."""

NODES = "document.querySelectorAll('*').length"


def long_play() -> list[Step]:
    """Return steps of 100,000 updates: 2,000 times an answer in pieces, a thought and tool calls."""
    group: list[Step] = [{"update": {**agent(f"Piece {i} of part %d. "), "messageId": "m%d"}} for i in range(30)]
    group += [{"update": thought("About part %d.")} for _ in range(10)]
    group += [{"update": tool(f"c{i}-%d", f"Read part %d.{i}", "read", status="completed")} for i in range(10)]
    return [{"group": [one["update"] for one in group], "times": UPDATES // len(group)}]


@pytest.fixture(scope="module")
def session(gateway: PageGateway) -> str:
    gateway.play({"long": long_play()})
    session = gateway.session("Long")
    with gateway.client() as client:
        client.prompt(session, "long")
        last, _ = client.result("session/get", sessionId=session, limit=1)["updates"]  # And the end of the turn.
    assert last["seq"] == UPDATES + 1
    return session


@pytest.mark.parametrize("size", [PHONE, (1280, 800)], ids=["phone", "wide"])
def test_a_long_session_opens_at_its_end_and_scrolls_with_a_bounded_document(
    gateway: PageGateway, sign_in: SignIn, session: str, size: tuple[int, int]
) -> None:
    page = sign_in(f"/s/{session}", size=size)
    last = UPDATES // 50
    expect(page.locator(".row").last).to_contain_text(f"Read part {last}.9")
    scroller = page.locator(".scroller")
    assert page.evaluate(NODES) < MOST_NODES
    first = last
    for _ in range(12):
        scroller.evaluate("scroller => { scroller.scrollTop = 0; }")
        first = wait_for_earlier_part(page, first)
        assert page.evaluate(NODES) < MOST_NODES
    # Several pages of the history have come.
    assert first < last - 300
    scroller.evaluate("scroller => { scroller.scrollTop = scroller.scrollHeight; }")
    expect(page.locator(".row").last).to_contain_text(f"Read part {last}.9")
    assert page.evaluate(NODES) < MOST_NODES


def wait_for_earlier_part(page: Page, than: int) -> int:
    """Wait until an earlier part is at the top of the document, and return its number."""
    until(page, lambda: first_part(page) < than)
    return first_part(page)


def first_part(page: Page) -> int:
    """Return the number of the part at the top of the document."""
    found: int = page.evaluate("Number(/part (\\d+)/.exec(document.querySelector('.window').textContent)?.[1] ?? 1e9)")
    return found
