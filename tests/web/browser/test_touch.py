"""Sizes on touch screens: what is pressed is large enough, and nothing is cut within a word."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import TABLET, Opens
from tests.web.browser.scenes import numbered, shop
from tests.web.browser.scripted_gateway import ScriptedGateway

PHONE = (390, 844)

SMALL = """
() => [...document.querySelectorAll("button, select, summary, textarea, input:not([type=checkbox], [type=radio]), a")]
  .map((one) => [one, one.getBoundingClientRect()])
  .filter(([one, { width, height }]) => width > 1 && height > 1 && (width < 44 || height < 44)
    && !one.matches(".line-number, .markdown a, .hidden"))
  .map(([one, { width, height }]) => `${one.ariaLabel ?? one.textContent} ${one.className} ${width}x${height}`)
"""

CLIPPED = """
() => [...document.querySelectorAll(".head-facts > *")]
  .filter((one) => one.offsetTop < one.parentElement.offsetTop + one.parentElement.clientHeight)
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.className} ${one.textContent} ${one.scrollWidth} in ${one.clientWidth}`)
"""


def conversation(page: Page, gateway: ScriptedGateway) -> None:
    page.goto(f"{gateway.url}#/s/s1")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()


def changes(page: Page, gateway: ScriptedGateway) -> None:
    page.goto(f"{gateway.url}#/s/s1/changes")
    expect(page.locator(".diff").first).to_be_visible()


def away(page: Page, gateway: ScriptedGateway) -> None:
    conversation(page, gateway)
    gateway.stop()
    expect(page.get_by_role("button", name="Try now").first).to_be_visible()


def sessions(page: Page, gateway: ScriptedGateway) -> None:
    expect(page.locator(".session").first).to_be_visible()


@pytest.mark.parametrize("show", [sessions, conversation, changes, away])
@pytest.mark.parametrize("size", [PHONE, TABLET])
def test_what_is_pressed_has_44_pixels_and_nothing_is_cut(
    open_page: Opens, size: tuple[int, int], show: Callable[[Page, ScriptedGateway], None]
) -> None:
    page, gateway = open_page(shop(), size=size, touch=True)
    show(page, gateway)
    assert page.evaluate(SMALL) == []
    assert page.evaluate(CLIPPED) == []


def test_lines_of_changes_are_high_enough_for_a_finger_and_stop_is_apart_from_send(open_page: Opens) -> None:
    page, gateway = open_page(shop(), size=PHONE, touch=True)
    changes(page, gateway)
    heights = page.locator(".line-number").evaluate_all("all => all.map((one) => one.getBoundingClientRect().height)")
    assert min(heights) >= 28
    conversation(page, gateway)
    stop, send = (page.get_by_role("button", name=name).bounding_box() for name in ("Stop", "Send after"))
    assert stop is not None
    assert send is not None
    assert send["x"] - stop["x"] - stop["width"] >= 16


def test_choices_of_the_changes_are_read_whole_on_a_tablet(open_page: Opens) -> None:
    page, gateway = open_page(shop(), size=TABLET, touch=True)
    changes(page, gateway)
    for choice in page.locator(".changes-head select").all():
        width = choice.evaluate("one => one.getBoundingClientRect().width")
        free = choice.evaluate(
            """one => {
              const copy = one.cloneNode(true);
              copy.style.cssText = "position: absolute; width: auto";
              one.parentElement.append(copy);
              const { width } = copy.getBoundingClientRect();
              copy.remove();
              return width;
            }"""
        )
        assert width >= free - 1


def test_a_diagram_and_a_formula_are_said_to_be_shown_as_their_source(open_page: Opens) -> None:
    scene = shop()
    text = "```mermaid\ngraph TD; A-->B\n```\n\n```latex\nx^2\n```\n\n```python\nx\n```"
    scene.updates["s1"] = numbered(
        [{"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}]
    )
    page, _ = open_page(scene, "#/s/s1")
    expect(page.locator(".snippet-bar span")).to_have_text(
        ["A diagram, shown as its source", "A formula, shown as its source", "python"]
    )
