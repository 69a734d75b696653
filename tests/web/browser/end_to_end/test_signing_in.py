"""Codes, cookies and tokens of a gateway, as a browser sees them."""

import re

import pytest
from playwright.sync_api import expect

from tests.kit.running import run_program
from tests.web.browser.conftest import NewPage
from tests.web.browser.end_to_end.conftest import PageGateway, SignIn


@pytest.mark.firefox
def test_a_code_signs_one_browser_in_and_a_second_one_is_told_why_not(gateway: PageGateway, sign_in: SignIn) -> None:
    code = gateway.code()
    first = sign_in(code=code)
    expect(first.get_by_role("navigation", name="Sessions")).to_be_visible()
    second = sign_in(code=code)
    expect(second.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    expect(second.get_by_role("alert")).to_contain_text(re.compile("used|expired|unknown"))
    assert code not in second.url
    (cookie,) = first.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert code not in cookie["value"]
    assert second.context.cookies() == []


def test_signing_out_ends_the_other_tabs_of_the_browser_too(gateway: PageGateway, sign_in: SignIn) -> None:
    session = gateway.session("Mine")
    page = sign_in(f"/s/{session}")
    expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
    other = page.context.new_page()
    other.goto(gateway.url)
    expect(other.get_by_role("navigation", name="Sessions")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    for one in (page, other):
        expect(one.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
        expect(one.get_by_text("Mine")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()


def test_a_revoked_token_closes_the_page_with_words(gateway: PageGateway, sign_in: SignIn) -> None:
    token_file = gateway.running.save_token("token", "create", "--label", "phone")
    session = gateway.session("Mine")
    page = sign_in(f"/s/{session}", code=gateway.code(token_file=token_file))
    expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
    listed = run_program("token", "list", "--plain", "--config", gateway.running.config)
    (token,) = re.findall(r"^([0-9a-f]{8}) .*\bphone\b", listed, re.MULTILINE)
    run_program("token", "revoke", token, "--config", gateway.running.config)
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("not signed in any more")


def test_a_page_of_another_origin_reads_and_sends_nothing_as_this_browser(
    gateway: PageGateway, sign_in: SignIn, new_page: NewPage
) -> None:
    page = sign_in()
    expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
    # To the browser the same site, so that it sends the cookie; but another origin.
    stranger = page.context.new_page()
    stranger.route("http://127.0.0.1:1/", lambda route: route.fulfill(body="<h1>Hello</h1>", content_type="text/html"))
    stranger.goto("http://127.0.0.1:1/")
    outcome = stranger.evaluate(
        """(url) => new Promise((done) => {
          const socket = new WebSocket(url, ["acp.v1"]);
          socket.onopen = () => done("open");
          socket.onclose = ({ code }) => done(code);
        })""",
        gateway.url.replace("http", "ws") + "ws",
    )
    assert outcome == 1006
    assert stranger.evaluate("(url) => fetch(url).then(() => 'read', () => 'refused')", gateway.url) == "refused"
