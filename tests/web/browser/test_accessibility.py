"""Findings of axe-core in each state of the page, in light and dark; and announcements for screen readers."""

from collections.abc import Callable
from importlib.resources import files

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, WIDE, Opens, settled
from tests.web.browser.scenes import (
    EDIT_PERMISSION,
    MACHINE,
    ON_DISK,
    PERMISSION,
    agent,
    costs,
    fleet,
    picture,
    plan,
    shop,
)
from tests.web.browser.scripted_gateway import ScriptedGateway

FINDINGS = """async () => {
  const { violations, passes } = await axe.run({ rules: { "heading-order": { enabled: true } } });
  if (passes.length < 10) throw new Error("axe has looked at nothing");
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 200)}`));
}"""

CODE = "# Each kind of word.\n@cache\ndef f(x: int) -> str:\n    return f'{len(x)}' + None\n\n\nclass A:\n    n = 1\n"

State = Callable[[Page, ScriptedGateway], None]


def list_of_sessions(page: Page, gateway: ScriptedGateway) -> None:
    page.goto(gateway.url)
    expect(page.locator(".session").first).to_be_visible()


def unfolded(page: Page, gateway: ScriptedGateway) -> None:
    page.set_viewport_size({"width": page.viewport_size["width"] if page.viewport_size else 1280, "height": 2600})
    # All of them are in the document then.
    expect(page.get_by_role("button", name="Edit shop/basket.py")).to_be_visible()
    settled(page)
    for row in page.locator(".row .fold").all():
        row.click()
    expect(page.locator(".diff tr").first).to_be_visible()


def plain(page: Page, gateway: ScriptedGateway) -> None:
    expect(page.locator(".composer")).to_be_visible()


def commands(page: Page, gateway: ScriptedGateway) -> None:
    page.get_by_role("textbox", name="Prompt").fill("/")
    expect(page.get_by_role("listbox")).to_be_visible()


def command_asked(page: Page, gateway: ScriptedGateway) -> None:
    gateway.ask("s1", 9, PERMISSION)
    gateway.ask("s1", 10, PERMISSION)
    expect(page.locator(".permission")).to_contain_text("1 of 2")


def edit_asked(page: Page, gateway: ScriptedGateway) -> None:
    gateway.ask("s1", 9, EDIT_PERMISSION)
    expect(page.locator(".permission .diff")).to_be_visible()


def written(page: Page, gateway: ScriptedGateway) -> None:
    gateway.add(
        "s1", agent("### Last\n\n# First\n\n- [x] done\n- [ ] to do\n\n```\ncode\n```\n\n```py\n" + CODE + "```")
    )
    expect(page.locator(".row h2").last).to_be_visible()
    expect(page.locator(".markdown .code-number").last).to_be_visible()


def wide(page: Page, gateway: ScriptedGateway) -> None:
    head, line = "|a long heading" * 12 + "|\n" + "|-" * 12 + "|\n", "|1234.5678" * 12 + "|\n"
    steps = plan(*((f"Step {number}", "in_progress" if number == 0 else "pending") for number in range(40)))
    result = f"{head}{line}\n```\n{'code ' * 80}\n```\n\n![a](data:image/png;base64,{picture()})"
    gateway.add("s1", steps, agent(result))
    expect(page.locator(".markdown .table").last).to_be_visible()
    page.locator(".plan-line summary").click()


def queueing(page: Page, gateway: ScriptedGateway) -> None:
    one = {"promptId": "a", "identity": "ben", "text": "one", "whole": False, "attached": 1, "createdAt": None}
    rights = {"mayChange": True, "mayEdit": True}
    rest = {**one, **rights, "promptId": "b"}, {**one, "promptId": "c", "mayChange": False}
    gateway.queue("s1", {**one, **rights}, *rest)
    page.get_by_role("button", name="Edit: one").first.click()
    expect(page.get_by_role("textbox", name="Text of the prompt that waits")).to_be_visible()


def menu(page: Page, gateway: ScriptedGateway) -> None:
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("menuitem").first).to_be_visible()


def sharing(page: Page, gateway: ScriptedGateway) -> None:
    if page.viewport_size is not None and page.viewport_size["width"] < WIDE[0]:
        menu(page, gateway)
        page.get_by_role("menuitem", name="Share").click()
    else:
        page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Make a link").click()
    expect(page.get_by_role("textbox", name="Link")).to_be_visible()


def listed_on_disk(page: Page, gateway: ScriptedGateway) -> None:
    stored = {"id": "d1", "agentType": "claude", "title": "On a disk", "cwd": "/srv", "updatedAt": None}
    gateway.answers["agents/sessions"] = lambda _: {"sessions": [stored], "nextCursor": "next"}
    list_of_sessions(page, gateway)
    page.get_by_role("button", name="Show sessions on disk").click()
    expect(page.get_by_role("button", name="Show more of them")).to_be_visible()


def starting(page: Page, gateway: ScriptedGateway) -> None:
    list_of_sessions(page, gateway)
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.get_by_role("button", name="Start")).to_be_visible()
    page.get_by_label("In a new worktree").check()
    expect(page.get_by_role("textbox", name="Branch")).to_be_visible()


def deleting(page: Page, gateway: ScriptedGateway) -> None:
    gateway.change("s1", cwd="/home/ann/work/shop/.worktrees/fix")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete…").click()
    page.get_by_label("Remove its worktree too").check()


def notifications(page: Page, gateway: ScriptedGateway) -> None:
    gateway.answers["push/get"] = lambda _: {
        "key": "",
        "subscribed": True,
        "quiet": {"start": 0, "end": 1, "offset": 0},
    }
    page.add_init_script('Object.defineProperty(Notification, "permission", { get: () => "granted" })')
    list_of_sessions(page, gateway)
    page.get_by_role("button", name="Notifications").click()
    expect(page.get_by_label("From")).to_be_visible()


def machine(page: Page, gateway: ScriptedGateway) -> None:
    gateway.answers["gateway/machine"] = lambda _: MACHINE
    list_of_sessions(page, gateway)
    page.get_by_role("button", name="How busy the machine is").click()
    expect(page.get_by_role("meter").first).to_be_visible()


def costs_of_days(page: Page, gateway: ScriptedGateway) -> None:
    gateway.answers["gateway/usage"] = costs
    list_of_sessions(page, gateway)
    page.get_by_role("button", name="Costs").click()
    expect(page.get_by_role("meter").first).to_be_visible()


def looking_on(page: Page, gateway: ScriptedGateway) -> None:
    gateway.change("s1", mayControl=False)
    expect(page.get_by_text("You are looking on.")).to_be_visible()


def reviewing(page: Page, gateway: ScriptedGateway) -> None:
    page.get_by_role("link", name="Changes").click()
    expect(page.locator(".diff .code-keyword").first).to_be_visible()
    page.get_by_role("button", name="Remark on line 2", exact=True).click()
    page.get_by_role("textbox", name="Remark on line 2").fill("Why?")
    page.get_by_role("button", name="Keep").click()
    page.get_by_role("button", name="Remark on line 16", exact=True).click()
    expect(page.get_by_role("textbox", name="Remark on line 16")).to_be_focused()


def on_the_disk(page: Page, gateway: ScriptedGateway) -> None:
    gateway.answers["session/changes"] = lambda _: ON_DISK
    page.get_by_role("link", name="Changes").click()
    expect(page.locator(".changed-file")).to_have_count(4)
    expect(page.locator(".diff .code-keyword").first).to_be_visible()
    page.get_by_role("button", name="Undo this").nth(1).click()
    page.get_by_role("button", name="Undo these lines").first.click()
    expect(page.get_by_role("button", name="Put back")).to_have_count(2)


def keys(page: Page, gateway: ScriptedGateway) -> None:
    page.locator(".scroller").press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


def palette(page: Page, gateway: ScriptedGateway) -> None:
    page.keyboard.press("Control+k")
    expect(page.locator(".palette-item.is-active")).to_be_visible()


def renaming(page: Page, gateway: ScriptedGateway) -> None:
    menu(page, gateway)
    page.get_by_role("menuitem", name="Rename…").click()
    expect(page.get_by_role("textbox", name="Title")).to_be_focused()


def board(page: Page, gateway: ScriptedGateway) -> None:
    gateway.answers["session/last"] = lambda _: {"lines": {"s1": "I run the tests."}}
    page.goto(gateway.url + "#/board")
    expect(page.get_by_text("I run the tests.").or_(page.locator(".list .session")).first).to_be_visible()


def side_by_side(page: Page, gateway: ScriptedGateway) -> None:
    page.evaluate("location.hash = '#/s/s1&/s/s3'")
    expect(page.locator(".view")).to_have_count(2)
    gateway.ask("s1", 9, PERMISSION)
    gateway.ask("s3", 9, EDIT_PERMISSION)
    expect(page.locator(".permission")).to_have_count(2)
    if page.viewport_size is not None and page.viewport_size["width"] >= 1200:
        expect(page.locator(".permission .diff")).to_be_visible()
        page.locator(".session").last.hover()


def finding(page: Page, gateway: ScriptedGateway) -> None:
    page.locator(".scroller").press("/")
    page.get_by_role("search").get_by_role("searchbox").fill("basket")
    expect(page.get_by_role("search").get_by_role("status")).to_contain_text("1 of ")
    expect(page.locator(".row.is-found")).to_be_visible()


def searched(page: Page, gateway: ScriptedGateway) -> None:
    found = {"sessionId": "s1", "texts": 1, "seq": 4, "text": "divides by zero", "marks": [[11, 15]]}
    gateway.answers["session/search"] = lambda _: {"found": [found], "complete": False}
    list_of_sessions(page, gateway)
    page.get_by_label("Filter sessions").fill("zero")
    expect(page.locator(".group mark")).to_have_text("zero")


def exporting(page: Page, gateway: ScriptedGateway) -> None:
    menu(page, gateway)
    page.get_by_role("menuitem", name="Export…").click()
    expect(page.get_by_role("button", name="Save")).to_be_visible()


def away(page: Page, gateway: ScriptedGateway) -> None:
    gateway.stop()
    expect(page.get_by_text("No connection for")).to_be_visible()
    page.get_by_role("textbox", name="Prompt").fill("Not confirmed")
    page.get_by_role("textbox", name="Prompt").press("Control+Enter")
    expect(page.locator(".sending")).to_be_visible()


def signed_out(page: Page, gateway: ScriptedGateway) -> None:
    page.get_by_role("textbox", name="Prompt").fill("Not sent")
    gateway.scene.signed_in = False
    gateway.drop()
    expect(page.get_by_role("button", name="Remove what was not sent")).to_be_visible()


STATES: list[State] = [
    list_of_sessions,
    listed_on_disk,
    plain,
    unfolded,
    commands,
    command_asked,
    edit_asked,
    written,
    wide,
    queueing,
    menu,
    sharing,
    starting,
    deleting,
    notifications,
    machine,
    costs_of_days,
    looking_on,
    reviewing,
    on_the_disk,
    keys,
    palette,
    renaming,
    board,
    side_by_side,
    finding,
    searched,
    exporting,
    away,
    signed_out,
]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
@pytest.mark.parametrize("path", ["", "#/s/gpu2%2F1", "#/new/gpu1%2Fopencode"], ids=["list", "session", "new"])
def test_axe_finds_nothing_where_there_are_machines(
    open_page: Opens, path: str, size: tuple[int, int], *, dark: bool
) -> None:
    page, _ = open_page(fleet(), path, size=size, touch=size == PHONE, dark=dark)
    places = {"": ".machines", "#/s/gpu2%2F1": ".head .head-facts", "#/new/gpu1%2Fopencode": "dialog .choice-list"}
    expect(page.locator(places[path]).first).to_be_visible()
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    assert page.evaluate(FINDINGS) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing(open_page: Opens, state: State, size: tuple[int, int], dark: bool) -> None:
    page, gateway = open_page(shop(), "#/s/s1", size=size, touch=size == PHONE, dark=dark)
    expect(page.locator(".row").last).to_be_visible()
    state(page, gateway)
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    assert page.evaluate(FINDINGS) == []


@pytest.mark.firefox(alone=True)
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_in_firefox(open_page: Opens, state: State) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    state(page, gateway)
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    assert page.evaluate(FINDINGS) == []


def test_on_a_phone_every_button_of_a_session_is_large_enough_for_a_finger(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1", size=PHONE, touch=True)
    expect(page.locator(".row").last).to_be_visible()
    for name in ("All sessions", "Changes", "More", "Attach files", "Stop", "Send after this turn"):
        box = page.get_by_label(name).or_(page.get_by_role("button", name=name)).first.bounding_box()
        assert box is not None, name
        assert min(box["width"], box["height"]) >= 44, name
    stop, send = (page.locator(it).bounding_box() for it in (".stop", ".send"))
    assert stop is not None
    assert send is not None
    assert send["x"] - stop["x"] - stop["width"] >= 16
    gateway.ask("s1", 9, PERMISSION)
    option = page.locator(".option").first.bounding_box()
    assert option is not None
    assert option["height"] >= 44


def test_the_end_of_a_turn_is_announced_with_the_agents_last_words(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.add("s1", agent("All **is** `pushed`."))
    gateway.change("s1", turn=False, status="completed")
    expect(page.locator("[aria-live=polite]", has_text="The agent is done. All is pushed.")).to_be_attached()


def test_a_question_is_announced_with_its_options(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.ask("s1", 9, EDIT_PERMISSION)
    text = "The agent asks for permission: Edit shop/basket.py. 1 Yes, 2 Yes, and don't ask again for edits, 3 No."
    expect(page.get_by_role("alert")).to_have_text(text)


def test_nothing_moves_where_the_user_wants_less_motion(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    assert page.evaluate("document.getAnimations().length") == 0
