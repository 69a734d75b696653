"""The transcript in a browser: what is in the document, where it stays, and what unfolds."""

import re
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, Opens, settled, stop_timers, until
from tests.web.browser.scenes import CONVERSATION, agent, long, session, shop, user
from tests.web.browser.scenes import tool as tool_call
from tests.web.browser.scripted_gateway import Message, Scene, update

ROW_AT_TOP = """() => {
  const scroller = document.querySelector(".scroller").getBoundingClientRect();
  const rows = [...document.querySelectorAll(".row")];
  const row = rows.find((one) => one.getBoundingClientRect().bottom > scroller.top + 1);
  return [row.textContent, row.getBoundingClientRect().top];
}"""

TO_END = "scroller => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight"


def scroll(page: Page, change: str) -> None:
    """Scroll a transcript that has come to its end."""
    scroller = page.locator(".scroller")
    expect(page.locator(".row").last).to_be_visible()
    until(page, lambda: scroller.evaluate(TO_END) < 1)
    settled(page)
    scroller.evaluate(f"scroller => {{ scroller.scrollTop {change}; }}")


def has_copied(page: Page, text: str) -> bool:
    return bool(page.evaluate("navigator.clipboard.readText()").strip() == text)


def test_of_100_000_updates_only_the_blocks_near_the_view_are_in_the_document(open_page: Opens) -> None:
    page, _ = open_page(long(100_000), "#/s/long")
    expect(page.locator(".row").last).to_be_visible()
    assert page.locator(".row").count() < 80
    until(page, lambda: page.locator(".scroller").evaluate(TO_END) < 1)


@pytest.mark.firefox
def test_a_transcript_stays_in_place_while_older_updates_are_put_before_it(open_page: Opens) -> None:
    page, gateway = open_page(long(12_000), "#/s/long")
    scroll(page, "= 300")
    settled(page)
    before = page.evaluate(ROW_AT_TOP)
    until(page, lambda: page.locator(".canvas").evaluate("canvas => canvas.offsetHeight > 150000"))
    settled(page)
    text, top = page.evaluate(ROW_AT_TOP)
    assert text == before[0]
    assert abs(top - before[1]) < 2
    # The page may have asked for the session again over another connection.
    asked = [params["before"] for method, params in gateway.calls if method == "session/get" and "before" in params]
    assert asked[0] == 7001


def test_scrolling_up_into_blocks_that_were_never_measured_moves_the_view_by_what_was_scrolled(
    open_page: Opens,
) -> None:
    payloads = [agent(f"Paragraph {i}. " + "word " * (i * 37 % 400)) for i in range(300)]
    for i, payload in enumerate(payloads):
        payload["messageId"] = str(i)
    updates = [update(i, payload) for i, payload in enumerate(payloads, start=1)]
    page, _ = open_page(Scene([session("s", "Long")], {"s": updates}), "#/s/s", size=PHONE)
    scroll(page, "-= 0")
    for _ in range(40):
        text, top = page.evaluate(ROW_AT_TOP)
        page.locator(".scroller").evaluate("scroller => { scroller.scrollTop -= 100; }")
        settled(page)
        place = page.locator(".row", has_text=text[:16]).first.bounding_box()
        assert place is not None
        assert abs(place["y"] - (top + 100)) < 2


@pytest.mark.firefox
def test_the_view_follows_the_end_until_the_user_scrolls_up(open_page: Opens) -> None:
    page, gateway = open_page(long(300), "#/s/long")
    scroller = page.locator(".scroller")
    expect(page.locator(".row").last).to_be_visible()
    gateway.add("long", *(agent("more words\n\n") for _ in range(30)))
    expect(page.locator(".row").last).to_contain_text("more words")
    scroll(page, "-= 400")
    expect(page.get_by_text("To the end")).to_be_attached()
    settled(page)
    before = page.evaluate(ROW_AT_TOP)
    gateway.add("long", *(agent("still more words\n\n") for _ in range(30)))
    button = page.get_by_role("button", name="New below")
    expect(button).to_be_visible()
    text, top = page.evaluate(ROW_AT_TOP)
    assert (text[:40], top) == (before[0][:40], before[1])
    button.click()
    expect(button).to_have_count(0)
    until(page, lambda: scroller.evaluate(TO_END) < 1)


def test_only_the_last_block_changes_while_the_agent_speaks(open_page: Opens) -> None:
    page, gateway = open_page(long(300), "#/s/long")
    expect(page.locator(".row").last).to_be_visible()
    settled(page)
    page.evaluate("""() => {
      window.changed = new Set();
      const last = document.querySelector(".row:last-child");
      new MutationObserver((list) => list.forEach(({ target }) => {
        if (!target.isConnected) return; // Its row is too far away now.
        const row = target.parentElement.closest(".row") ?? (target.closest && target.closest(".row"));
        if (row) window.changed.add(row === last ? "last" : row.textContent);
      })).observe(document.querySelector(".window"), { subtree: true, childList: true, characterData: true });
    }""")
    gateway.add("long", agent("one more "))
    gateway.add("long", agent("and another "))
    expect(page.locator(".row").last).to_contain_text("and another")
    assert page.evaluate("[...window.changed]") == ["last"]


def test_a_button_copies_code_commands_paths_and_messages_as_they_are_seen(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1", size=(1280, 2400))
    expect(page.locator(".row").last).to_be_visible()
    gateway.add("s1", agent("Use this:\n\n```\nrm \u202ea\n```"))
    expect(page.locator(".row").last).to_contain_text("Use this")
    for name in ("python -m pytest", "Edit shop/basket.py"):
        page.get_by_role("button", name=name).click()
    stop_timers(page, 2000)
    copied = {
        "code": "rm ⟨U+202E⟩a",
        "command": "python -m pytest -q tests",
        "path": "shop/basket.py",
        "prompt": "Looks good. Push it, please.",
    }
    for number, (what, text) in enumerate(copied.items(), start=1):
        button = page.get_by_role("button", name=f"Copy the {what}", exact=True).last
        button.click()
        expect(page.get_by_role("button", name="Copied")).to_have_count(number)
        until(page, partial(has_copied, page, text))


def test_it_is_told_when_something_was_said_and_how_long_a_tool_call_ran(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    call = {"sessionUpdate": "tool_call", "toolCallId": "slow", "title": "make", "status": "in_progress"}
    done = {"sessionUpdate": "tool_call_update", "toolCallId": "slow", "status": "completed"}
    gateway.add("s1", call, at="2026-01-01T00:01:00Z")
    gateway.add("s1", done, at="2026-01-01T00:03:00Z")
    expect(page.locator(".tool").last).to_contain_text("2 min")
    expect(page.locator(".said time").last).to_have_attribute("datetime", re.compile("^2026-01-01T00:00:"))


def test_usage_and_cost_are_seen_on_a_phone_and_told_in_words_by_a_click(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1", size=PHONE, touch=True)
    usage = page.get_by_role("button", name="62k of 200k tokens used, 0.42 USD")
    expect(usage.locator("span")).to_have_text(["31%", "0.42 USD"])
    expect(usage.locator("span").last).to_be_visible()
    usage.click()
    expect(page.locator(".toast")).to_contain_text("62k of 200k tokens used, 0.42 USD.")


def test_a_thought_is_folded_until_it_is_clicked(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1", size=(1280, 2400))
    button = page.get_by_role("button", name="Thought")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(page.locator(".thought-text")).to_have_count(0)
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(page.locator(".thought-text")).to_contain_text("Then tests.")


@pytest.mark.firefox
def test_an_edit_unfolds_to_its_change_with_the_changed_words_marked(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1", size=(1280, 2400))
    page.get_by_role("button", name="Edit shop/basket.py").click()
    diff = page.locator(".diff")
    expect(diff.locator(".path")).to_have_text("shop/basket.py")
    expect(diff.locator(".side-by-side")).to_be_visible()
    expect(diff.locator("mark").first).to_be_visible()
    diff.get_by_role("button", name="Show 5 unchanged lines").click()
    expect(diff).to_contain_text("def is_empty(items)")


def test_an_edit_is_shown_in_one_column_on_a_phone_and_nothing_is_wider_than_the_page(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1", size=(320, 2600), touch=True)
    expect(page.locator(".row").last).to_be_visible()
    for row in page.locator(".row .fold").all():
        row.click()
    expect(page.locator(".diff tr").first).to_be_visible()
    expect(page.locator(".side-by-side")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    assert page.locator(".scroller").evaluate("scroller => scroller.scrollWidth <= scroller.clientWidth")


def test_a_command_unfolds_to_its_output_in_colours(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1", size=(1280, 2400))
    page.get_by_role("button", name="python -m pytest").click()
    expect(page.locator(".tool.is-failed .command-text")).to_have_text("python -m pytest -q tests")
    expect(page.locator(".terminal .fg-1.bold, .terminal .bold.fg-1")).to_have_text("FAILED")


def test_a_tool_call_with_output_of_a_terminal_shows_it_with_its_exit_code(open_page: Opens) -> None:
    call = tool_call("t", "make", "execute", status="failed", content=[{"type": "terminal", "terminalId": "x"}])
    call["_meta"] = {
        "terminal_output": {"terminal_id": "x", "data": "gcc: not found\n"},
        "terminal_exit": {"terminal_id": "x", "exit_code": 2},
    }
    page, _ = open_page(Scene([session("s", "Make")], {"s": [update(1, call)]}), "#/s/s")
    page.get_by_role("button", name="make").click()
    expect(page.locator(".tool-body")).to_contain_text("gcc: not found")
    expect(page.locator(".tool-body")).to_contain_text("exit code 2")


def own(**told: Any) -> Message:
    """Return what the gateway tells in `_meta` of an agent of version 2."""
    return {"_meta": {"acp-gateway": told}}


def test_the_output_of_a_terminal_of_version_2_grows_and_has_its_exit_code(open_page: Opens) -> None:
    def output(words: str, **told: Any) -> Message:
        return {"type": "content", "content": {"type": "text", "text": words}, **own(**told)}

    x = {"terminalId": "x"}
    begun = tool_call(
        "t", "make", "execute", status="in_progress", content=[output("\x1b[31mone\x1b[0m\n", terminal=x)]
    )
    page, gateway = open_page(Scene([session("s", "Make", turn=True)], {"s": [update(1, begun)]}), "#/s/s")
    expect(page.locator(".tool-running .fg-1")).to_have_text("one")
    change = {"sessionUpdate": "tool_call_update", "toolCallId": "t"}
    gateway.add("s", {**change, **own(terminal={**x, "data": "two\n"})})
    expect(page.locator(".tool-running")).to_contain_text("two")
    page.get_by_role("button", name="make").click()
    expect(page.locator(".tool-running")).to_have_count(0)
    expect(page.locator(".tool-body .terminal")).to_have_text("one\ntwo\n")
    ended = {**x, "exitStatus": {"exitCode": 2}}
    items = [output("one\ntwo\nthree\n", terminal=ended), output("[exit code 2]", terminalEnd=ended)]
    gateway.add("s", {**change, "status": "failed", "content": items})
    expect(page.locator(".tool-body .terminal")).to_have_text("one\ntwo\nthree\n")
    expect(page.locator(".tool-body")).to_contain_text("exit code 2")
    expect(page.locator(".tool-body")).not_to_contain_text("[exit code 2]")


def test_what_was_done_to_a_file_is_named_and_each_plan_is_its_own(open_page: Opens) -> None:
    def named(**change: str) -> Message:
        return {"type": "content", "content": {"type": "text", "text": "words"}, **own(change=change)}

    moved = {"operation": "move", "path": "/w/b", "oldPath": "/w/a"}
    diff = {"type": "diff", "path": "/w/b", "oldText": "x\n", "newText": "y\n", **own(change=moved)}
    binary = named(operation="modify", path="/w/c.png", fileType="binary")
    call = tool_call("t", "Tidy", "edit", content=[named(**moved), diff, binary])

    def plan(plans: list[str], *steps: str) -> Message:
        entries = [{"content": step, "priority": "low", "status": "pending"} for step in [*steps, "the others"]]
        return {"sessionUpdate": "plan", "entries": entries, **own(plans=plans, entries=len(steps))}

    updates = [call, plan(["one"], "a"), plan(["one", "two"], "b"), plan(["one"], "a")]
    numbered = [update(number, payload) for number, payload in enumerate(updates, start=1)]
    page, _ = open_page(Scene([session("s", "Tidy", cwd="/w")], {"s": numbered}), "#/s/s")
    page.get_by_role("button", name="Tidy").click()
    captions = page.locator(".diff figcaption")
    expect(captions).to_have_count(2)
    expect(captions.first).to_contain_text("b")
    expect(captions.first).to_contain_text("moved from a")
    expect(captions.last).to_contain_text("modified, binary")
    expect(page.locator(".tool-body")).not_to_contain_text("words")
    expect(page.locator(".plan li")).to_have_text(["to do: a"])
    expect(page.locator(".note", has_text="Plan two")).to_contain_text("was removed")


def test_each_of_several_plans_has_its_line_and_what_goes_on_in_the_background_is_named(open_page: Opens) -> None:
    def plan(plans: list[str], *steps: str) -> Message:
        entries = [{"content": step, "priority": "low", "status": "pending"} for step in steps]
        return {"sessionUpdate": "plan", "entries": entries, **own(plans=plans, entries=len(steps))}

    tells = {"sessionUpdate": "session_info_update", **own(background=[{"type": "tool_call", "toolCallId": "t"}])}
    updates = [tool_call("t", "Serve", "execute"), plan(["one"], "a"), plan(["one", "two"], "b", "c"), tells]
    numbered = [update(number, payload) for number, payload in enumerate(updates, start=1)]
    working = session("s", "S", turn=True, status="running")
    page, gateway = open_page(Scene([working], {"s": numbered}), "#/s/s")
    expect(page.locator(".plan-line summary")).to_have_text(
        [re.compile("one.*0 of 1.*a"), re.compile("two.*0 of 2.*b")]
    )
    expect(page.get_by_text("In the background: Serve")).to_be_visible()
    gateway.add("s", {"sessionUpdate": "session_info_update", **own(background=[])})
    expect(page.get_by_text("In the background")).to_have_count(0)


def test_a_notice_is_a_line_of_its_own(open_page: Opens) -> None:
    notice = {"severity": "warning", "title": "Slow", "description": "Many ask now"}
    updates = [
        update(1, {"sessionUpdate": "notice", **notice}),
        update(2, {**agent("[warning: x]"), **own(notice=notice)}),
    ]
    page, _ = open_page(Scene([session("s", "S")], {"s": updates}), "#/s/s")
    expect(page.locator(".note")).to_have_text(["warning: Slow: Many ask now"] * 2)
    expect(page.locator(".scroller")).not_to_contain_text("[warning")


def test_an_agent_that_waits_without_a_question_needs_the_user(open_page: Opens) -> None:
    page, gateway = open_page(
        Scene([session("s", "Sign in", status="waiting")], {"s": [update(1, agent("Hm"))]}), "#/s/s"
    )
    expect(page.locator(".view header")).to_contain_text("Needs you")
    told = page.get_by_text("The agent waits for you")
    expect(told).to_be_visible()
    gateway.change("s", status="running")
    expect(told).to_have_count(0)
    expect(page.locator(".view header")).to_contain_text("Working")


def test_images_and_the_plan_and_the_usage_are_shown(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1", size=(1280, 2400))
    expect(page.locator("img.picture")).to_be_visible()
    until(page, lambda: page.locator("img.picture").evaluate("image => image.naturalWidth") == 320)
    expect(page.get_by_role("region", name="Plan")).to_contain_text("2 of 4")
    expect(page.locator(".plan-line")).to_contain_text("Run the tests")
    expect(page.get_by_role("button", name="62k of 200k tokens used, 0.42 USD")).to_be_visible()


@pytest.mark.firefox
def test_text_of_an_agent_is_never_markup(open_page: Opens) -> None:
    attack = (
        "<img src=x onerror=document.title='hacked'> <script>document.title='hacked'</script> [x](javascript:alert(1))"
    )
    call = tool_call("t", attack, "execute", rawInput={"command": attack}, status="completed")
    updates = [update(1, agent(attack)), update(2, call)]
    page, _ = open_page(Scene([session("s", attack)], {"s": updates}), "#/s/s")
    page.locator(".tool .fold").click()
    expect(page.locator(".command-text")).to_have_text(attack)
    expect(page.locator(".agent")).to_contain_text("<script>")
    assert page.locator(".scroller img, .scroller script, .scroller a").count() == 0
    assert "hacked" not in page.title()[:6]


def test_words_of_an_agent_give_no_style(open_page: Opens) -> None:
    call = tool_call("t", "Look", "x permission", status="x permission")
    steps = {"sessionUpdate": "plan", "entries": [{"content": "Go", "priority": "low", "status": "x permission"}]}
    strange = tool_call("u", "Look again", "constructor", status="constructor")
    page, _ = open_page(
        Scene([session("s", "S")], {"s": [update(1, call), update(2, steps), update(3, strange)]}), "#/s/s"
    )
    expect(page.locator(".tool").first).to_contain_text("x permission")
    expect(page.locator(".tool").last).to_contain_text("constructor")
    expect(page.locator("li.plan-pending")).to_have_count(1)
    expect(page.locator(".permission")).to_have_count(0)


@pytest.mark.firefox
def test_data_of_the_wrong_shape_leaves_the_page_in_working_order(open_page: Opens) -> None:
    scene = shop()
    odd: list[Any] = [None, 7, "x", {}, {"options": 5}, {"id": {}, "options": [None]}]
    scene.extra["s1"] = {
        "modes": {"availableModes": 5},
        "models": {"availableModels": {"a": 1}},
        "configOptions": odd,
        "promptCapabilities": "yes",
    }
    page, gateway = open_page(scene, "#/s/s1", size=(1280, 4000))
    expect(page.locator(".row").last).to_be_visible()
    commands = {"sessionUpdate": "available_commands_update", "availableCommands": odd}
    plan = {"sessionUpdate": "plan", "entries": odd}
    usage = {"sessionUpdate": "usage_update", "used": "many", "size": {}, "cost": []}
    call = {"sessionUpdate": "tool_call", "toolCallId": {}, "title": [], "kind": 4, "status": {}, "content": odd}
    gateway.add(
        "s1", commands, plan, usage, {**call, "locations": odd, "rawInput": {"command": {"a": 1}}}, agent("end")
    )
    params: list[Any] = [None, [], {"options": odd}, {"toolCall": 5}, {"toolCall": {"rawInput": [], "content": odd}}]
    # A page whose connection was replaced asks for them again.
    scene.requests["s1"] = [
        {"requestId": f"odd {i}", "requestType": "session/request_permission", "payload": request}
        for i, request in enumerate(params)
    ]
    for i, request in enumerate(params):
        gateway.notify("session/request", {"sessionId": "s1", "requestId": f"odd {i}", "request": request})
    expect(page.locator(".row").last).to_contain_text("end")
    for row in page.locator(".row .fold").all():
        row.click()
    field = page.get_by_role("textbox", name="Prompt")
    field.fill("/")
    field.fill("still here")
    field.press("Enter")
    until(page, lambda: any(method == "session/prompt" for method, _ in gateway.calls))
    for _ in range(5):
        page.get_by_role("button", name="Next question").click()


def test_a_reset_shows_the_new_history(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_contain_text("Looks good")
    gateway.scene.updates["s1"] = [update(1, CONVERSATION[0])]
    gateway.notify("session/reset", {"sessionId": "s1", "epoch": "e2"})
    expect(page.locator(".row")).to_have_count(1)
    expect(page.locator(".toast")).to_contain_text("too far behind")


def test_a_prompt_of_many_lines_is_folded(open_page: Opens) -> None:
    log = "\n".join(f"line {i} of a log" for i in range(500))
    page, _ = open_page(Scene([session("s", "Log")], {"s": [update(1, user(log))]}), "#/s/s")
    expect(page.locator(".user")).to_contain_text("line 11 of a log…")
    expect(page.locator(".user")).not_to_contain_text("line 12 of")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator(".user")).to_contain_text("line 499 of a log")
    page.get_by_role("button", name="Show less").click()
    expect(page.locator(".user")).not_to_contain_text("line 499")


def test_a_prompt_that_is_sent_brings_the_view_to_the_end(open_page: Opens) -> None:
    page, _ = open_page(long(300), "#/s/long")
    expect(page.locator(".row").last).to_be_visible()
    scroll(page, "-= 900")
    expect(page.get_by_text("To the end")).to_be_attached()
    page.get_by_role("textbox", name="Prompt").fill("next")
    page.get_by_role("textbox", name="Prompt").press("Enter")
    expect(page.get_by_text("To the end")).to_have_count(0)
    until(page, lambda: page.locator(".scroller").evaluate(TO_END) < 1)


def test_what_has_become_of_the_history_and_of_the_agent_is_said(open_page: Opens) -> None:
    ended: Message = {"live": False, "status": "exited", "exitReason": "process_exit"}
    one = session("s", "Gone", history="removed", **ended)
    page, gateway = open_page(Scene([one], {}), "#/s/s")
    expect(page.get_by_text("The history of this session was removed from the disk.")).to_be_visible()
    expect(page.get_by_text("The agent has ended. The next prompt starts it again.")).to_be_visible()
    gateway.change("s", history="cut")
    expect(page.get_by_text("What is older than this is not kept any more.")).to_be_visible()


def test_the_head_tells_that_the_agent_is_fenced_and_by_what(open_page: Opens) -> None:
    page, gateway = open_page(Scene([session("s", "Open", fence="landlock")], {}), "#/s/s")
    expect(page.locator(".head-facts").get_by_text("fenced")).to_have_attribute(
        "title", "The agent uses only the workspaces and its own folders (by landlock)"
    )
    gateway.change("s", fence=None)
    expect(page.locator(".head-facts").get_by_text("fenced")).to_have_count(0)


def test_a_phone_shows_the_title_and_the_state_of_a_session_whatever_else_is_in_its_head(open_page: Opens) -> None:
    title = "Weight the discounts by customer"
    shown = session("s", title, fence="landlock", workspace="a-workspace-with-a-long-name", machine="a-long-name")
    page, gateway = open_page(Scene([shown], {}), "#/s/s", size=PHONE, touch=True)
    gateway.ask("s", 1, {"toolCall": {"toolCallId": "1", "title": "x"}, "options": []})
    for part in (page.locator(".head h1"), page.locator(".head .state")):
        expect(part).to_be_in_viewport(ratio=1)
        assert part.evaluate("one => one.scrollWidth <= one.clientWidth && one.scrollHeight <= one.clientHeight")
    expect(page.locator(".head h1")).to_have_text(title)


@pytest.mark.firefox
def test_why_a_turn_has_failed_stands_where_it_did_also_after_a_reload(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.end_turn("s1", error={"code": 429, "message": "429: try again in 32 s"})
    failed = page.locator(".row-end")
    expect(failed).to_contain_text("429: try again in 32 s")
    gateway.add("s1", user("Try again"), agent("Done."))
    gateway.end_turn("s1", stopReason="end_turn")
    for _ in range(2):
        expect(page.get_by_text("Done.", exact=True)).to_be_visible()
        # Once, and before what came later.
        expect(page.locator(".row, .foot").get_by_text("429: try again in 32 s")).to_have_count(1)
        rows = page.locator(".row").all_text_contents()[-3:]
        assert ["429" in row for row in rows] == [True, False, False]
        page.reload()


@pytest.mark.firefox
def test_the_silence_of_a_working_agent_is_told_until_it_speaks(open_page: Opens) -> None:
    at = "2020-01-01T00:00:00Z"
    updates = [update(1, user("Go"), at), update(2, agent("Yes."), at)]
    page, gateway = open_page(Scene([session("s1", "Silent", turn=True)], {"s1": updates}), "#/s/s1")
    told = page.get_by_text(re.compile(r"No word from the agent for \d+ d"))
    expect(told).to_be_visible()
    gateway.add("s1", agent("I am here."))
    expect(page.get_by_text("I am here.")).to_be_visible()
    expect(told).to_have_count(0)
    expect(page.locator(".working .dot")).to_have_count(3)
