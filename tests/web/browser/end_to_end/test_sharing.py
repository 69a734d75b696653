"""Two pages, an editor and an observer in one session."""

import json

from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE
from tests.web.browser.end_to_end.conftest import Editor, PageGateway, SignIn
from tests.web.browser.scenes import EDIT_PERMISSION, PERMISSION

COMMAND = "set -e\n" + "\n".join(f"./migrate --step {i} --database orders" for i in range(200))

LONG_PERMISSION = {
    **PERMISSION,
    "toolCall": {**PERMISSION["toolCall"], "rawInput": {"command": COMMAND, "description": "Migrate the orders"}},
}

CALL_OF_OBSERVER = """([method, params]) => new Promise((done) => {
  const socket = new WebSocket(new URL("./ws", location.href.replace("http", "ws")), ["acp.v1"]);
  socket.onopen = () => socket.send(JSON.stringify({ jsonrpc: "2.0", id: "x", method, params }));
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    if (message.id !== "x") return;
    socket.close();
    done(message);
  };
  socket.onclose = ({ code, reason }) => done({ code, reason });
})"""


def prompt(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Prompt").fill(text)
    page.get_by_role("textbox", name="Prompt").press("Enter")


def test_a_question_is_decided_by_keyboard_alone_and_another_page_and_an_editor_learn_by_whom(
    gateway: PageGateway, sign_in: SignIn, editor: Editor
) -> None:
    gateway.play({"migrate": [{"ask": LONG_PERMISSION}]})
    session = gateway.session("Migrate")
    ann, phone = sign_in(f"/s/{session}"), sign_in(f"/s/{session}", size=PHONE, touch=True)
    expect(ann.get_by_role("textbox", name="Prompt")).to_be_visible()
    ann.get_by_role("textbox", name="Prompt").focus()
    ann.keyboard.type("migrate")
    ann.keyboard.press("Enter")
    expect(ann.locator(".permission .command-text")).to_have_text(COMMAND)
    expect(phone.locator(".permission .command-text")).to_have_text(COMMAND)
    expect(phone.get_by_role("button", name="Allow once")).to_be_in_viewport(ratio=1)
    editor.join(session, gateway.folder)
    editor.until(method="session/request_permission")
    # Out of the text field, where digits are text, into the card: its options are reached by Tab as well.
    ann.keyboard.press("Shift+Tab")
    while ann.evaluate("document.activeElement.closest('.permission') === null"):
        ann.keyboard.press("Shift+Tab")
    ann.keyboard.press("1")
    expect(ann.locator(".permission")).to_have_count(0)
    expect(phone.locator(".permission")).to_have_count(0)
    expect(phone.locator(".toast")).to_contain_text(f"”: {gateway.identity} has decided: Allow once.")
    editor.until(method="$/cancel_request")
    for page in (ann, phone):
        expect(page.locator(".row").last).to_contain_text("decided: once")


def test_two_sessions_side_by_side_are_both_live(gateway: PageGateway, sign_in: SignIn) -> None:
    gateway.play({"migrate": [{"ask": PERMISSION}]})
    page = sign_in(f"/s/{gateway.session('First')}&/s/{gateway.session('Second')}")
    first, second = (page.get_by_role("region", name=f"Session: {name}", exact=True) for name in ("First", "Second"))
    for view in (first, second):
        view.get_by_role("textbox", name="Prompt").fill("migrate")
        view.get_by_role("textbox", name="Prompt").press("Enter")
    for view in (first, second):
        expect(view.locator(".permission")).to_be_visible()
    second.get_by_role("button", name="Allow once").click()
    expect(second.locator(".row").last).to_contain_text("decided: once")
    expect(first.locator(".permission")).to_be_visible()
    first.get_by_role("button", name="Allow once").click()
    expect(first.locator(".row").last).to_contain_text("decided: once")


def test_prompts_that_wait_are_edited_and_sent_now_in_the_page(gateway: PageGateway, sign_in: SignIn) -> None:
    gateway.play({"work": [{"wait": True}], "second, mended": [{"wait": True}]})
    session = gateway.session("Queue")
    with gateway.client() as client:
        for text in ("work", "first", "second"):
            client.result("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])
    page = sign_in(f"/s/{session}")
    rows = page.locator(".queue li")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Edit: second").click()
    field = page.get_by_role("textbox", name="Text of the prompt that waits")
    field.fill("second, mended")
    field.press("Enter")
    expect(rows.last).to_contain_text("second, mended")
    page.get_by_role("button", name="Send now: second, mended").click()
    expect(page.locator("article.user").last).to_contain_text("second, mended")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("first")


def test_the_service_worker_answers_a_question_while_no_page_is_open(gateway: PageGateway, sign_in: SignIn) -> None:
    gateway.play({"migrate": [{"ask": LONG_PERMISSION}]})
    session = gateway.session("Migrate")
    page = sign_in()
    expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
    # The page has it registered, perhaps already.
    workers = page.context.service_workers
    worker = workers[0] if workers else page.context.wait_for_event("serviceworker")
    with gateway.client() as client:
        client.result("session/get", sessionId=session, limit=1)
        client.result("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "migrate"}])
        question = client.until_told("session/request", sessionId=session)["requestId"]
        page.goto("about:blank")
        outcome = {"outcome": {"outcome": "selected", "optionId": "once"}}
        params = json.dumps({"sessionId": session, "requestId": question, "response": outcome})
        answer = f'call("session/respond", {params})'
        assert worker.evaluate(answer)["problem"] is None
        decided = client.until_told("session/request_resolved", sessionId=session)
        assert (decided["by"], decided["outcome"]) == (gateway.identity, "Allow once")
        assert "no open request" in worker.evaluate(answer)["problem"]


def test_a_phone_decides_with_the_whole_change_in_reach(gateway: PageGateway, sign_in: SignIn) -> None:
    gateway.play({"edit": [{"ask": EDIT_PERMISSION}]})
    session = gateway.session("Edit")
    page = sign_in(f"/s/{session}", size=PHONE, touch=True)
    page.get_by_role("textbox", name="Prompt").fill("edit")
    page.get_by_role("button", name="Send", exact=True).tap()
    expect(page.locator(".permission .diff")).to_contain_text("an empty basket has no heaviest item")
    body = page.locator(".permission-body")
    body.evaluate("body => { body.scrollTop = body.scrollHeight; }")
    expect(page.locator(".permission .diff")).to_be_in_viewport()
    for option in EDIT_PERMISSION["options"]:
        expect(page.get_by_role("button", name=option["name"], exact=True)).to_be_in_viewport(ratio=1)
    page.get_by_role("button", name="No", exact=True).tap()
    expect(page.locator(".permission")).to_have_count(0)
    expect(page.locator(".row").last).to_contain_text("decided: no")


def test_an_editor_decides_and_the_pages_say_who(gateway: PageGateway, sign_in: SignIn, editor: Editor) -> None:
    gateway.play({"ask": [{"ask": PERMISSION}]})
    session = gateway.session("Ask")
    page = sign_in(f"/s/{session}")
    expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
    editor.join(session, gateway.folder)
    expect(page.locator(".presence")).to_contain_text("editor")
    prompt(page, "ask")
    expect(page.locator(".permission")).to_be_visible()
    asked = editor.until(method="session/request_permission")
    editor.send({"id": asked["id"], "result": {"outcome": {"outcome": "selected", "optionId": "no"}}})
    expect(page.locator(".permission")).to_have_count(0)
    expect(page.locator(".toast")).to_contain_text(
        f"”: {gateway.identity} has decided: Reject, and say what to do instead."
    )
    expect(page.locator(".row").last).to_contain_text("decided: no")


def test_an_observer_sees_everything_and_can_do_nothing_not_even_by_calls_of_its_own(
    gateway: PageGateway, sign_in: SignIn
) -> None:
    gateway.play({"ask": [{"ask": PERMISSION}]})
    session, other = gateway.session("Ask"), gateway.session("Another")
    owner = sign_in(f"/s/{session}")
    owner.get_by_role("button", name="Share").click()
    owner.get_by_role("button", name="Make a link").click()
    link = owner.get_by_role("textbox", name="Link").input_value()
    owner.keyboard.press("Escape")
    guest = sign_in(code=link.partition("#")[2])
    expect(guest.get_by_text("You are looking on.")).to_be_visible()
    prompt(owner, "ask")
    expect(owner.locator(".permission")).to_be_visible()
    with gateway.client() as client:
        (asked,) = client.result("session/get", sessionId=session)["pendingRequests"]
    assert guest.locator(".composer, .option, .stop").count() == 0
    guest.keyboard.press("1")
    outcome = {"outcome": {"outcome": "selected", "optionId": "once"}}
    one = {"sessionId": session}
    for method, params in (
        ("session/prompt", {**one, "prompt": [{"type": "text", "text": "mine"}]}),
        ("session/cancel", one),
        ("session/respond", {**one, "requestId": asked["requestId"], "response": outcome}),
        ("session/new", {}),
        ("session/archive", one),
        ("session/delete", one),
        ("session/share", one),
        ("session/set_mode", {**one, "modeId": "x"}),
        ("files/list", {**one, "query": ""}),
    ):
        refused = guest.evaluate(CALL_OF_OBSERVER, [method, params])
        assert refused.get("error", {}).get("code") == -32601, (method, refused)
    hidden = guest.evaluate(CALL_OF_OBSERVER, ["session/get", {"sessionId": other}])
    assert hidden["error"]["code"] == -32602
    got = guest.evaluate(CALL_OF_OBSERVER, ["session/get", one])
    assert got["result"]["pendingRequests"] == []
    with gateway.client() as client:
        assert [it["requestId"] for it in client.result("session/get", sessionId=session)["pendingRequests"]] == [
            asked["requestId"]
        ]
        assert [it["payload"]["content"]["text"] for it in client.history(session)] == ["ask"]
    owner.get_by_role("button", name="Allow once").click()
    expect(guest.locator(".row").last).to_contain_text("decided: once")
