"""Signing in and out, the state of the connection, and sharing, in a browser."""

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.browser.conftest import Opens, end_timers, keep_timers, load, stop_timers, try_now, until
from tests.web.browser.scenes import agent, session, shop
from tests.web.browser.scripted_gateway import CODE, Scene, ScriptedGateway

LIMIT = 12000
"""Time in ms in which a request of the page over HTTP must be answered."""

FIRST_OPEN_TIMEOUT = 10000
"""Time in ms in which the page's first connection must open."""


def signed_out() -> Scene:
    scene = shop()
    scene.signed_in = False
    return scene


def test_a_browser_without_a_cookie_is_told_how_to_sign_in(open_page: Opens) -> None:
    page, _ = open_page(signed_out())
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    expect(page.locator(".sign-in .command-text")).to_have_text("acp-gateway open")


@pytest.mark.firefox
def test_a_code_in_the_address_signs_in_and_is_removed_from_it(open_page: Opens) -> None:
    page, _ = open_page(signed_out(), f"#{CODE}/s/s1")
    expect(page.get_by_role("heading", name="Totals of a basket below zero")).to_be_visible()
    assert page.evaluate("location.hash") == "#/s/s1"
    assert page.evaluate("history.length") <= 2


def test_a_code_that_is_used_up_is_removed_too_and_the_reason_shown(open_page: Opens) -> None:
    page, _ = open_page(signed_out(), "#acpgwp_old")
    expect(page.get_by_role("alert")).to_have_text("This code is not valid: acp-gateway open makes another")
    assert page.evaluate("location.hash") == "#/"


def test_a_link_that_is_pasted_signs_in(open_page: Opens) -> None:
    page, _ = open_page(signed_out())
    field = page.get_by_label("Link or code")
    field.fill("https://box:7443/ is the address")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("That is not a sign-in code.")
    field.fill(f"https://box:7443/#{CODE}")
    field.press("Enter")
    expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()


@pytest.mark.firefox
def test_signing_out_leads_to_the_sign_in_page_and_forgets_drafts(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.get_by_role("textbox", name="Prompt").fill("secret")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    assert not gateway.scene.signed_in
    assert page.evaluate("sessionStorage.length") == 0


def test_a_browser_that_signs_out_without_the_gateway_is_signed_out_once_it_is_back(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    tries: list[str] = []

    def fail(route: Route) -> None:
        tries.append(route.request.url)
        route.abort()

    page.route("**/logout", fail)
    page.get_by_role("button", name="Sign out").click()
    until(page, lambda: len(tries) > 1)
    page.reload()
    until(page, lambda: len(tries) > 2)
    expect(page.get_by_role("status").first).to_have_text("Connecting to the gateway…")
    assert gateway.scene.signed_in
    page.unroute("**/logout")
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    assert not gateway.scene.signed_in
    assert page.evaluate("localStorage.length") == 0


@pytest.mark.firefox
def test_a_lost_connection_is_told_in_words_and_what_was_said_without_it_comes_after_it(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.open_sockets = False
    gateway.drop()
    before = len(gateway.calls)
    expect(page.locator(".connection")).to_contain_text("No connection for")
    expect(page.locator(".who")).to_have_text("ann no connection")
    page.get_by_role("textbox", name="Prompt").fill("while away")
    page.get_by_role("textbox", name="Prompt").press("Enter")
    expect(page.locator(".connection")).to_contain_text("1 message waits.")
    expect(page.locator(".sending")).to_contain_text("while away")
    gateway.add("s1", agent("I went on without you."))
    gateway.open_sockets = True
    try_now(page)
    expect(page.locator(".connection")).to_have_count(0)
    expect(page.locator(".who")).to_have_text("ann connected")
    expect(page.locator(".row").last).to_contain_text("I went on without you.")
    until(page, lambda: any(method == "session/prompt" for method, _ in gateway.calls))
    first = next(params for method, params in gateway.calls[before:] if method == "session/get")
    assert first["since"] == len(gateway.scene.updates["s1"]) - 1


def test_while_there_is_no_connection_the_head_does_not_say_ready_and_a_dialog_says_that_it_waits(
    open_page: Opens,
) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    state = page.locator(".head .state")
    expect(state).to_be_visible()
    gateway.open_sockets = False
    gateway.drop()
    expect(state).to_have_text("No connection")
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.get_by_role("dialog").locator(".connection")).to_contain_text("No connection for")
    gateway.open_sockets = True
    expect(page.locator(".connection")).to_have_count(0)
    expect(state).not_to_have_text("No connection")


def test_a_browser_that_is_signed_out_elsewhere_sees_the_sign_in_page_and_why(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.scene.signed_in = False
    gateway.drop()
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_text("This browser is not signed in any more.")


def unsent(page: Page, gateway: ScriptedGateway) -> None:
    """Send a prompt and type another one without a connection, and have the browser signed out then."""
    expect(page.locator(".row").last).to_be_visible()
    gateway.open_sockets = False
    gateway.drop()
    expect(page.locator(".connection")).to_contain_text("No connection for")
    box = page.get_by_role("textbox", name="Prompt")
    box.fill("while away")
    box.press("Control+Enter")
    expect(page.locator(".sending")).to_contain_text("while away")
    box.fill("Half a thou")
    gateway.scene.signed_in = False
    gateway.open_sockets = True
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    expect(page.locator(".left")).to_contain_text(
        "1 unconfirmed prompt and 1 unsent draft are kept in this browser for 30 days, in “Totals of a basket below"
    )


@pytest.mark.firefox
def test_what_was_not_sent_when_a_browser_was_signed_out_is_there_once_the_same_identity_signs_in(
    open_page: Opens,
) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    unsent(page, gateway)
    page.reload()
    expect(page.locator(".left")).to_contain_text(
        "1 unconfirmed prompt and 1 unsent draft are kept in this browser for 30 days, and shown"
    )
    expect(page.locator(".sign-in")).not_to_contain_text("basket")
    page.get_by_label("Link or code").fill(CODE)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("Half a thou")
    expect(page.locator(".sending")).to_contain_text("while away")
    page.get_by_role("button", name="Send again", exact=True).click()
    until(page, lambda: any(method == "session/prompt" for method, _ in gateway.calls))
    expect(page.locator(".sending")).to_have_count(0)


def test_what_one_identity_has_not_sent_is_never_shown_to_another_one(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    unsent(page, gateway)
    gateway.scene.info["identity"] = "bob"
    page.goto(f"{gateway.url}#{CODE}/s/s1")
    expect(page.locator(".who")).to_have_text("bob connected")
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("")
    expect(page.locator(".sending")).to_have_count(0)
    expect(page.locator("body")).not_to_contain_text("while away")
    assert page.evaluate("Object.keys(localStorage).filter((name) => /draft|unsent/.test(name))") == []


def test_what_was_not_sent_can_be_removed_before_signing_in(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    unsent(page, gateway)
    page.get_by_role("button", name="Remove what was not sent").click()
    expect(page.locator(".left")).to_have_text("1 prompt that was not sent was removed.")
    assert page.evaluate("Object.keys(localStorage).filter((name) => /draft|unsent/.test(name))") == []


def test_signing_out_says_how_many_prompts_it_has_removed(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.open_sockets = False
    gateway.drop()
    box = page.get_by_role("textbox", name="Prompt")
    box.fill("while away")
    box.press("Control+Enter")
    expect(page.locator(".sending")).to_contain_text("while away")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator(".left")).to_have_text("1 prompt that was not sent was removed.")


def test_a_code_that_the_gateway_does_not_answer_can_be_tried_again(open_page: Opens) -> None:
    page, gateway = open_page(signed_out())
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    end_timers(page, LIMIT)
    gateway.silent = {"/login", "/ws"}
    load(page, f"{gateway.url}#{CODE}/s/s1")
    expect(page.get_by_role("alert")).to_have_text("The gateway does not answer.")
    assert page.evaluate("location.hash") == "#/s/s1"
    keep_timers(page)
    gateway.silent = {"/ws"}
    page.get_by_role("button", name="Sign in again").click()
    until(page, lambda: gateway.scene.signed_in)
    gateway.silent = set()
    expect(page.get_by_role("heading", name="Totals of a basket below zero")).to_be_visible()


def test_a_code_without_an_answer_is_in_the_form_once_the_page_is_refused(open_page: Opens) -> None:
    page, gateway = open_page(signed_out())
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    end_timers(page, LIMIT)
    gateway.silent = {"/login"}
    load(page, f"{gateway.url}#{CODE}/s/s1")
    expect(page.get_by_role("alert")).to_have_text("The gateway does not answer.")
    keep_timers(page)
    expect(page.get_by_label("Link or code")).to_have_value(CODE)
    expect(page.get_by_role("alert")).to_have_text("The gateway does not answer.")
    gateway.silent = set()
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Totals of a basket below zero")).to_be_visible()


def test_a_link_without_an_answer_is_told_where_the_browser_is_signed_in_already(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
    end_timers(page, LIMIT)
    gateway.silent = {"/login"}
    load(page, f"{gateway.url}#{CODE}/s/s1")
    expect(page.locator(".toast")).to_contain_text("The gateway does not answer.")


def test_signing_out_without_an_answer_is_tried_again_and_said(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
    gateway.silent = {"/logout"}
    end_timers(page, LIMIT)
    page.reload()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("alert")).to_have_text("The gateway does not answer. Signing out is tried again.")
    gateway.silent = set()
    keep_timers(page)
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    assert not gateway.scene.signed_in


def test_a_page_whose_first_connection_is_closed_or_gets_no_answer_says_so_and_connects_again(
    open_page: Opens,
) -> None:
    scene = shop()
    page, gateway = open_page(scene)
    expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
    end_timers(page, FIRST_OPEN_TIMEOUT)
    for silent, is_open in [(set[str](), False), ({"/ws"}, True)]:
        gateway.silent, gateway.open_sockets = silent, is_open
        load(page, f"{gateway.url}#/s/s1")
        expect(page.locator(".connection").first).to_contain_text("No connection for")
        gateway.silent, gateway.open_sockets = set(), True
        keep_timers(page)
        expect(page.get_by_role("heading", name="Totals of a basket below zero")).to_be_visible()


def test_a_session_is_shared_by_a_link_and_a_qr_code(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.get_by_role("button", name="Share").click()
    page.get_by_label("takes part").check()
    page.get_by_role("button", name="Make a link").click()
    link = page.get_by_role("textbox", name="Link")
    expect(link).to_have_value(f"{gateway.url}#{CODE}/s/s1")
    expect(page.get_by_role("img", name="The link as a QR code")).to_be_visible()
    assert ("session/share", {"sessionId": "s1", "observe": False}) in gateway.calls
    stop_timers(page, 2000)
    page.get_by_role("button", name="Copy the link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == link.input_value()
    page.get_by_label("looks on").check()
    expect(link).to_have_count(0)


def test_a_guest_of_one_session_sees_it_alone(open_page: Opens) -> None:
    scene = shop()
    scene.info |= {"guest": True, "session": "s1", "mayShare": False}
    page, _ = open_page(scene)
    expect(page.get_by_role("heading", name="Totals of a basket below zero")).to_be_visible()
    expect(page.get_by_role("navigation", name="Sessions")).to_have_count(0)
    expect(page.get_by_role("button", name="Share")).to_have_count(0)
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("menuitem")).to_have_text(["Find in this session", "Export…"])


def test_no_request_leaves_for_another_origin(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    load(page, f"{gateway.url}#/s/s1")
    expect(page.locator("img.picture")).to_be_attached()
    assert len(urls) > 2
    assert [url for url in urls if not url.startswith((gateway.url, "data:"))] == []


def test_a_link_for_another_person_in_the_same_tab_shows_nothing_of_the_first_one(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    gateway.scene.info["identity"] = "bob"
    gateway.scene.sessions = {"s9": session("s9", "Bob's own")}
    page.evaluate(f"location.hash = '#{CODE}'")
    expect(page.locator(".who")).to_have_text("bob connected")
    expect(page.locator(".session-title")).to_have_text(["Bob's own"])


def test_a_gateway_that_answers_with_an_error_leaves_a_way_to_try_again(open_page: Opens) -> None:
    page, gateway = open_page(signed_out())

    def fail(_: object) -> None:
        raise ValueError("the gateway is stopping")

    gateway.answers["session/list"] = fail
    page.get_by_label("Link or code").fill(CODE)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".toast")).to_contain_text("The gateway is stopping")
    del gateway.answers["session/list"]
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
