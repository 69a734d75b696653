"""The chat widget among the examples, on a page of its own, with the real program."""

import json
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.end_to_end.chatting import start_chat_gateway
from tests.kit.running import RunningGateway
from tests.web.browser.conftest import NewPage
from tests.web.browser.end_to_end.conftest import AGENT
from tests.web.browser.end_to_end.loopback_proxy import LoopbackProxy

EXAMPLES = Path(__file__).parents[4] / "examples"

CALL = {"toolCallId": "c1", "title": "Clean up", "kind": "execute"}
OPTIONS = [
    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
    {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
]


def said(text: str) -> dict[str, Any]:
    return {"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}}


PLAYS = {
    "work": [
        said("I look "),
        said("<b>around</b>."),
        {"update": {"sessionUpdate": "tool_call", **CALL, "status": "pending"}},
        {"ask": {"toolCall": CALL, "options": OPTIONS}},
        {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed"}},
        said("Done."),
    ],
    "stay": [said("I stay."), {"wait": True}],
}


class Site:
    """A site with the widget, and a gateway that its origin may use."""

    def __init__(self, url: str, gateway: RunningGateway) -> None:
        self.url = url
        self.gateway = gateway
        self.chat = gateway.urls["chat"]

    def open(self, page: Page, address: str = "", token: str = "") -> Page:
        """Open the widget, and connect."""
        page.goto(f"{self.url}/chat.html")
        page.get_by_label("Gateway").fill(address or self.chat)
        page.get_by_label("Token").fill(token or self.gateway.token)
        page.get_by_role("button", name="Connect").click()
        return page


class Files(SimpleHTTPRequestHandler):
    """Serves the examples, without a word in the log."""

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("widget")
    script = directory / "script.json"
    script.write_text(json.dumps({"new": {}, "plays": PLAYS}))
    command = json.dumps([sys.executable, str(AGENT), str(script)])
    # A browser keeps a page that is on no machine from connecting to this one.
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(EXAMPLES))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        running = start_chat_gateway(directory, f"[agents.player]\ncommand = {command}\n", url)
        try:
            yield Site(url, running)
        finally:
            assert running.stop() == 0, "".join(running.log)
            server.shutdown()


def write(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_the_widget_streams_text_shows_tools_and_answers_a_permission(site: Site, new_page: NewPage) -> None:
    page = site.open(new_page())
    expect(page.get_by_role("status")).to_have_text("Connected.")
    write(page, "work")
    log = page.get_by_role("log")
    expect(log.locator(".user")).to_have_text("work")
    expect(log.locator(".assistant").first).to_have_text("I look <b>around</b>.")
    expect(log.locator(".tool")).to_have_text("Clean up: pending")
    page.get_by_role("button", name="Allow").click()
    expect(log.locator(".question")).to_contain_text("allow, by ")
    expect(log.locator(".tool")).to_have_text("Clean up: completed")
    expect(log.locator(".assistant").last).to_have_text("decided: allowDone.")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    write(page, "stay")
    expect(log.locator(".assistant").last).to_have_text("I stay.")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_what_is_written_without_a_connection_is_sent_after_the_history_was_loaded(
    site: Site, new_page: NewPage
) -> None:
    port = urlsplit(site.chat).port
    assert port is not None
    proxy = LoopbackProxy(port)
    try:
        page = site.open(new_page(), f"ws://127.0.0.1:{proxy.port}/chat")
        expect(page.get_by_role("status")).to_have_text("Connected.")
        write(page, "first")
        log = page.get_by_role("log")
        expect(log.locator(".assistant")).to_have_text("first")
        proxy.cut(stay=True)
        expect(page.get_by_role("status")).to_contain_text("No connection")
        write(page, "second")
        expect(page.locator("#waiting")).to_have_text("second")
        proxy.is_open = True
        expect(page.get_by_role("status")).to_have_text("Connected: first.")
        expect(log.locator(".assistant")).to_have_text(["first", "second"])
        expect(log.locator(".user")).to_have_text(["first", "second"])
        expect(page.locator("#waiting")).to_have_text("")
    finally:
        proxy.close()


def test_a_token_that_is_wrong_is_told(site: Site, new_page: NewPage) -> None:
    page = site.open(new_page(), token="acpgw_wrong")
    expect(page.get_by_role("status")).to_contain_text("Are the token and the address right")


def test_a_reloaded_widget_continues_its_session(site: Site, new_page: NewPage) -> None:
    page = site.open(new_page())
    expect(page.get_by_role("status")).to_have_text("Connected.")
    write(page, "first")
    expect(page.get_by_role("log").locator(".assistant")).to_have_text("first")
    page.reload()
    page.get_by_label("Gateway").fill(site.chat)
    page.get_by_label("Token").fill(site.gateway.token)
    page.get_by_role("button", name="Connect").click()
    expect(page.get_by_role("log").locator(".user")).to_have_text("first")
    expect(page.get_by_role("log").locator(".assistant")).to_have_text("first")
