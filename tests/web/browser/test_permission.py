"""Questions of the agent in a browser: with all of what is asked, by mouse, by key and on a phone."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, TIMEOUT, Opens, until
from tests.web.browser.scenes import CWD, EDIT_PERMISSION, PERMISSION, shop
from tests.web.browser.scripted_gateway import ScriptedGateway


def responses(gateway: ScriptedGateway) -> list[tuple[Any, Any]]:
    return [
        (params["requestId"], params["response"]) for method, params in gateway.calls if method == "session/respond"
    ]


def choice(option: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option}}


def ready(page: Page) -> None:
    expect(page.locator(".row").last).to_be_visible()


@pytest.mark.firefox
def test_a_question_shows_the_whole_command_and_the_agents_words_for_each_option(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    command = "\n".join(f"echo line {i} && rm -rf build/{i}" for i in range(400))
    payload = {**PERMISSION, "toolCall": {**PERMISSION["toolCall"], "rawInput": {"command": command}}}
    gateway.ask("s1", 9, payload)
    card = page.get_by_role("region", name="The agent asks")
    expect(card.locator(".command-text")).to_have_text(command)
    names = ["Allow once", "Always allow git push", "Reject, and say what to do instead"]
    expect(card.locator(".option span")).to_have_text(names)
    for name in names:
        expect(card.get_by_role("button", name=name)).to_be_in_viewport()


@pytest.mark.firefox
def test_a_key_decides_while_the_focus_is_in_no_field(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    gateway.ask("s1", 9, PERMISSION)
    expect(page.locator(".permission")).to_be_visible()
    page.keyboard.press("3")
    expect(page.locator(".permission")).to_have_count(0)
    assert responses(gateway) == [(9, choice("no"))]


@pytest.mark.firefox
def test_a_rule_is_shown_in_full_before_it_is_written_with_the_answer(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    gateway.answers["session/rules"] = lambda _: {"rules": ["`git push …`", "`git push -f`"], "project": CWD}
    gateway.ask("s1", 9, PERMISSION)
    card = page.get_by_role("region", name="The agent asks")
    card.get_by_role("button", name="Always…").click()
    names = [
        f"`{words}` {where}" for words in ("git push …", "git push -f") for where in (f"in {CWD}", "in this session")
    ]
    expect(card.get_by_role("radio")).to_have_count(4)
    expect(card.locator("fieldset label")).to_have_text(names)
    assert responses(gateway) == []
    card.get_by_role("radio").nth(3).check()
    card.get_by_role("button", name="Allow, and write this rule").click()
    expect(page.locator(".permission")).to_have_count(0)
    rule = {"subject": "`git push -f`", "for": "session"}
    assert responses(gateway) == [(9, choice("once") | {"_meta": {"acp-gateway": {"rule": rule}}})]


def test_where_no_rule_can_be_written_the_page_says_so(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    gateway.answers["session/rules"] = lambda _: {"rules": [], "project": CWD}
    gateway.ask("s1", 9, PERMISSION)
    page.get_by_role("button", name="Always…").click()
    expect(page.get_by_text("No rule can be written for this")).to_be_visible()


def test_a_question_takes_no_focus_and_keys_in_the_composer_stay_text(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    field = page.get_by_role("textbox", name="Prompt")
    field.fill("version ")
    gateway.ask("s1", 9, PERMISSION)
    expect(page.locator(".permission")).to_be_visible()
    expect(field).to_be_focused()
    page.keyboard.type("1")
    expect(field).to_have_value("version 1")
    assert responses(gateway) == []


def test_the_first_digit_in_an_empty_composer_is_text_and_escape_leads_to_the_question_where_it_decides(
    open_page: Opens,
) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    field = page.get_by_role("textbox", name="Prompt")
    field.focus()
    gateway.ask("s1", 9, PERMISSION)
    expect(page.locator(".permission")).to_be_visible()
    page.keyboard.press("1")
    expect(field).to_have_value("1")
    assert responses(gateway) == []
    page.keyboard.press("Escape")
    expect(page.locator(".permission")).to_be_focused()
    page.keyboard.press("3")
    expect(page.locator(".permission")).to_have_count(0)
    assert responses(gateway) == [(9, choice("no"))]
    expect(field).to_have_value("1")


def test_a_second_press_of_a_key_does_not_decide_the_question_that_comes_next(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    gateway.ask("s1", 9, PERMISSION)
    gateway.ask("s1", 10, EDIT_PERMISSION)
    expect(page.locator(".permission")).to_contain_text("1 of 2")
    page.evaluate("""() => {
      const press = () => document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "1", bubbles: true }));
      for (let i = 0; i < 5; i += 1) press();
    }""")
    expect(page.locator(".permission")).to_contain_text("Edit shop/basket.py")
    assert responses(gateway) == [(9, choice("once"))]


@pytest.mark.firefox
def test_several_questions_are_shown_one_by_one(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    gateway.ask("s1", 9, PERMISSION)
    gateway.ask("s1", 10, EDIT_PERMISSION)
    page.get_by_role("button", name="Next question").click()
    card = page.get_by_role("region", name="The agent asks")
    expect(card.locator(".diff .path")).to_have_text("shop/basket.py")
    card.get_by_role("button", name="No", exact=True).click()
    expect(card).to_contain_text("Run this command?")
    assert responses(gateway) == [(10, choice("no"))]


def test_a_question_that_another_client_has_decided_goes_and_names_that_client(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    gateway.ask("s1", 9, PERMISSION)
    expect(page.locator(".permission")).to_be_visible()
    gateway.resolve("s1", 9, "bob", "Allow once")
    expect(page.locator(".permission")).to_have_count(0)
    expect(page.locator(".toast")).to_contain_text("bob has decided: Allow once.")


def test_an_answer_that_the_gateway_refuses_leaves_the_question_open_with_the_reason(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")

    def refuse(_: Any) -> None:
        raise ValueError("the question is not open any more")

    gateway.answers["session/respond"] = refuse
    ready(page)
    gateway.ask("s1", 9, PERMISSION)
    page.get_by_role("button", name="Allow once").click()
    expect(page.locator(".permission .error")).to_have_text("The question is not open any more")
    expect(page.get_by_role("button", name="Allow once")).to_be_enabled()


def test_the_address_of_a_question_opens_it_before_others(open_page: Opens) -> None:
    scene = shop()
    for request_id, payload in ((9, PERMISSION), (10, EDIT_PERMISSION)):
        scene.requests.setdefault("s1", []).append(
            {"requestId": request_id, "requestType": "session/request_permission", "payload": payload}
        )
    page, _ = open_page(scene, "#/s/s1/r/10")
    expect(page.locator(".permission")).to_contain_text("2 of 2")
    expect(page.locator(".permission .diff")).to_be_visible()


def test_a_question_that_says_little_shows_what_the_transcript_knows_of_the_tool_call(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    gateway.ask("s1", 9, {"toolCall": {"toolCallId": "t3"}, "options": PERMISSION["options"]})
    expect(page.locator(".permission h2")).to_have_text("Edit shop/basket.py")
    expect(page.locator(".permission .diff .path")).to_have_text("shop/basket.py")


def test_an_observer_sees_a_question_without_buttons_and_has_no_composer(open_page: Opens) -> None:
    scene = shop()
    scene.info["role"] = "observer"
    page, gateway = open_page(scene, "#/s/s1")
    ready(page)
    gateway.ask("s1", 9, PERMISSION)
    expect(page.locator(".permission .command-text")).to_be_visible()
    assert page.locator(".option, .composer, .stop").count() == 0
    page.keyboard.press("1")
    expect(page.get_by_text("You are looking on.")).to_be_visible()
    assert responses(gateway) == []


@pytest.mark.parametrize("payload", [PERMISSION, EDIT_PERMISSION])
def test_on_a_phone_the_options_are_in_view_and_what_is_asked_scrolls(
    open_page: Opens, payload: dict[str, Any]
) -> None:
    page, gateway = open_page(shop(), "#/s/s1", size=PHONE, touch=True)
    ready(page)
    gateway.ask("s1", 9, payload)
    for option in payload["options"]:
        expect(page.get_by_role("button", name=option["name"], exact=True)).to_be_in_viewport(ratio=1)
    body = page.locator(".permission-body")
    assert body.evaluate("body => body.clientHeight") > 60
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    body.evaluate("body => { body.scrollTop = body.scrollHeight; }")
    page.get_by_role("button", name=payload["options"][0]["name"], exact=True).tap()
    expect(page.locator(".permission")).to_have_count(0)
    assert responses(gateway) == [(9, choice("once"))]


LINES = [f"line {i}\n" for i in range(1, 61)]
CHANGED = [*LINES[:4], "first\n", *LINES[5:50], "second\n", *LINES[51:]]
TWO_PLACES: dict[str, Any] = {
    "toolCall": {
        "toolCallId": "c9",
        "title": "Edit shop/basket.py",
        "kind": "edit",
        "content": [
            {"type": "diff", "path": f"{CWD}/basket.py", "oldText": "".join(LINES), "newText": "".join(CHANGED)}
        ],
    },
    "options": [{"optionId": name, "name": name, "kind": name} for name in ("allow_once", "reject_once")],
}


@pytest.mark.parametrize("size", [PHONE, (390, 600), (640, 360), (1280, 480)])
def test_what_is_hidden_of_a_question_is_counted_and_in_reach(open_page: Opens, size: tuple[int, int]) -> None:
    page, gateway = open_page(shop(), "#/s/s1", size=size, touch=size[0] < 700)
    expect(page.locator(".row").last).to_be_visible()
    gateway.ask("s1", 9, TWO_PLACES)
    second = page.locator(".permission tr", has_text="second").first
    rest = page.get_by_role("button", name="below")
    if size == (640, 360):
        # There the question scrolls as a whole.
        second.scroll_into_view_if_needed()
    else:
        expect(rest).to_have_text(re.compile("^[0-9]+ more lines? below$"))
        expect(second).not_to_be_in_viewport()
        until(page, lambda: not rest.evaluate_all("all => all.map((button) => button.click())"))
        second.scroll_into_view_if_needed()
    expect(second).to_be_in_viewport(ratio=0.9)
    box, code = second.bounding_box(), second.locator(".code").last.bounding_box()
    assert box is not None
    assert code is not None
    assert code["width"] > box["width"] * 0.35


def test_a_question_that_fits_hides_nothing(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.ask("s1", 9, PERMISSION)
    expect(page.locator(".permission .command-text")).to_be_visible()
    expect(page.get_by_role("button", name="below")).to_have_count(0)


@pytest.mark.firefox
def test_a_question_with_fields_is_answered_with_their_values(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    schema = {
        "type": "object",
        "properties": {
            "branch": {"type": "string", "title": "Branch"},
            "depth": {"type": "integer", "default": 3},
            "tags": {"type": "boolean", "title": "Tags too"},
            "kind": {"enum": ["merge", "rebase"], "type": "string"},
            "checks": {"type": "array", "title": "Checks", "items": {"enum": ["unit", "web"]}, "default": ["unit"]},
            "remotes": {"type": "array", "items": {"anyOf": [{"const": "o", "title": "Origin"}]}},
        },
        "required": ["branch", "remotes"],
    }
    gateway.ask("s1", 12, {"message": "What shall I push?", "mode": "form", "requestedSchema": schema})
    send = page.get_by_role("button", name="Send", exact=True).first
    expect(page.locator(".permission")).to_contain_text("What shall I push?")
    expect(send).to_be_disabled()
    page.get_by_label("Branch").fill("main")
    page.get_by_label("Tags too").check()
    page.get_by_label("kind").select_option("rebase")
    page.get_by_role("group", name="Checks").get_by_label("web").check()
    page.get_by_label("unit").uncheck()
    expect(send).to_be_disabled()
    page.get_by_label("Origin").check()
    send.click()
    expect(page.locator(".permission")).to_have_count(0)
    content = {"branch": "main", "depth": 3, "tags": True, "kind": "rebase", "checks": ["web"], "remotes": ["o"]}
    assert responses(gateway) == [(12, {"action": "accept", "content": content})]


@pytest.mark.parametrize("schema", [{"properties": {"a": None}}, {"properties": {}, "required": 5}])
def test_a_form_that_can_not_be_shown_says_so(open_page: Opens, schema: dict[str, Any]) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    gateway.ask("s1", 12, {"message": "What?", "mode": "form", "requestedSchema": schema})
    expect(page.locator(".permission")).to_contain_text("can't be shown here")


def test_a_field_may_have_the_name_of_a_member_of_all_objects(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    schema = {"properties": {name: {"type": "string"} for name in ("__proto__", "constructor")}}
    gateway.ask("s1", 12, {"message": "What?", "mode": "form", "requestedSchema": schema})
    page.get_by_label("__proto__").fill("a")
    page.get_by_label("constructor").fill("b")
    page.get_by_role("button", name="Send", exact=True).first.click()
    expect(page.locator(".permission")).to_have_count(0)
    assert responses(gateway) == [(12, {"action": "accept", "content": {"__proto__": "a", "constructor": "b"}})]


def test_a_path_in_a_question_is_relative_to_the_folder_of_the_session(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    diff = {"type": "diff", "path": f"{CWD}/new.txt", "oldText": None, "newText": "one\n"}
    gateway.ask("s1", 9, {"toolCall": {"toolCallId": "new", "title": "Write", "content": [diff]}, "options": []})
    expect(page.locator(".permission .diff .path")).to_have_text("new.txt")
    expect(page.locator(".permission .diff")).to_contain_text("new file")


def test_input_that_the_page_does_not_know_is_shown_member_by_member(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    call = {
        "toolCallId": "x",
        "title": "Fetch",
        "kind": "fetch",
        "rawInput": {"url": "https://example.org/a", "depth": 2},
    }
    gateway.ask("s1", 9, {"toolCall": call, "options": PERMISSION["options"]})
    expect(page.locator(".permission .members dt")).to_have_text(["url", "depth"])
    expect(page.locator(".permission .members dd")).to_have_text(["https://example.org/a", "2"])


def test_a_title_and_options_without_end_leave_everything_in_reach(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1", size=PHONE, touch=True)
    ready(page)
    title = "Do one thing and another, " * 200
    options = [{"optionId": str(i), "kind": "allow_once", "name": f"Choice {i} " + "x" * 300} for i in range(20)]
    gateway.ask("s1", 9, {"toolCall": {"toolCallId": "x", "title": title}, "options": options})
    expect(page.locator(".whole-title")).to_have_text(title.strip())
    last = page.get_by_role("button", name="Choice 19")
    last.scroll_into_view_if_needed()
    expect(last).to_be_in_viewport()
    expect(page.locator(".permission-body")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    last.tap()
    until(page, lambda: responses(gateway) == [(9, choice("19"))])


def test_a_change_of_very_many_lines_is_shown_as_a_whole_by_a_button(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    ready(page)
    text = "".join(f"line {i}\n" for i in range(6000))
    diff = {"type": "diff", "path": f"{CWD}/new.txt", "oldText": None, "newText": text}
    gateway.ask("s1", 9, {"toolCall": {"toolCallId": "new", "title": "Write", "content": [diff]}, "options": []})
    rows = page.locator(".permission tr")
    # A few are drawn with each frame.
    expect(rows).to_have_count(5000, timeout=4 * TIMEOUT)
    page.get_by_role("button", name="Show all 6000 lines").click()
    expect(rows).to_have_count(6000, timeout=4 * TIMEOUT)
