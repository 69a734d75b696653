"""Pages whose connection is cut, pages that are reloaded, and a gateway below a path."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, WebSocket, expect

from tests.web.browser.conftest import try_now, until
from tests.web.browser.end_to_end.conftest import Client, PageGateway, SignIn, Step
from tests.web.browser.end_to_end.loopback_proxy import LoopbackProxy
from tests.web.browser.scenes import agent


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A FIFO that holds the agent up until a line is written to it."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


def prompt(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Prompt").fill(text)
    page.get_by_role("textbox", name="Prompt").press("Enter")


def numbers(first: int, last: int) -> str:
    return " ".join(f"n{number}" for number in range(first, last + 1))


def told(gateway: PageGateway, session: str) -> str:
    """Return what the agent has said, by the journal."""
    with gateway.client() as client:
        said = [it["payload"] for it in client.history(session)]
    return "".join(it["content"]["text"] for it in said if it["sessionUpdate"] == "agent_message_chunk").strip()


def calls_of(page: Page) -> list[dict[str, Any]]:
    """Return a list that grows by what the page sends, and by the results that it gets."""
    frames: list[dict[str, Any]] = []

    def note(frame: str | bytes) -> None:
        frames.append(json.loads(frame))

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", note)
        socket.on("framereceived", note)

    page.on("websocket", listen)
    return frames


def first_answer(frames: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the params and the result of the first `session/get`; a slow page may ask again."""
    got = next(frame for frame in frames if frame.get("method") == "session/get")
    return got["params"], next(it["result"] for it in frames if it.get("id") == got["id"] and "result" in it)


def test_after_a_cut_in_a_turn_the_page_gets_what_is_missing_and_no_more(
    gateway: PageGateway, sign_in: SignIn, proxy: LoopbackProxy, gate: Path
) -> None:
    steps: list[Step] = [
        {"update": agent("n%d "), "times": 300},
        {"gate": str(gate)},
        {"update": agent("m%d "), "times": 50},
    ]
    gateway.play({"count": steps})
    session = gateway.session("Count")
    page = sign_in(f"/s/{session}", url=proxy.url)
    prompt(page, "count")
    row = page.locator(".row").last
    expect(row).to_contain_text("n300")
    proxy.cut(stay=True)
    expect(page.locator(".connection")).to_contain_text("No connection for")
    prompt(page, "next")
    expect(page.locator(".connection")).to_contain_text("1 message waits.")
    gate.write_text("go\n")
    until(page, lambda: told(gateway, session).endswith("m50"))
    frames = calls_of(page)
    proxy.is_open = True
    try_now(page)
    expect(page.locator(".connection")).to_have_count(0)
    expect(page.locator(".agent").last).to_contain_text("next")
    shown = " ".join(page.locator(".agent").all_inner_texts()).split()
    assert shown == told(gateway, session).split()
    assert shown[:350] == [f"n{i}" for i in range(1, 301)] + [f"m{i}" for i in range(1, 51)]
    params, answer = first_answer(frames)
    assert params["since"] == 301
    assert [it["seq"] for it in updates_in(answer)] == list(range(302, 352))


def updates_in(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the updates of a history, without the ends of turns."""
    return [entry for entry in answer["updates"] if entry["updateType"] != "turn_end"]


def clients(client: Client, session: str) -> int:
    """Return the number of clients of a session."""
    (listed,) = [it for it in client.result("session/list")["sessions"] if it["id"] == session]
    return len(listed["clients"])


def has_connected(proxy: LoopbackProxy, before: int) -> bool:
    """Return whether a page has connected after so many requests."""
    return any("/ws?" in request for request in proxy.requests[before:])


@pytest.mark.firefox
def test_a_transcript_is_the_journal_whatever_is_cut_while_updates_stream(
    gateway: PageGateway, sign_in: SignIn, proxy: LoopbackProxy
) -> None:
    gateway.play({"stream": [{"per_second": 1000}, {"update": agent("n%d "), "times": 4000}]})
    session = gateway.session("Stream")
    page = sign_in(f"/s/{session}", url=proxy.url)
    prompt(page, "stream")
    for number in (400, 1000, 1600, 2200):
        expect(page.locator(".row").last).to_contain_text(f"n{number}")
        before = len(proxy.requests)
        proxy.cut()
        page.evaluate("dispatchEvent(new Event('online'))")
        until(page, partial(has_connected, proxy, before))
    expect(page.locator(".row").last).to_contain_text("n4000")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    assert page.locator(".agent").last.inner_text().split() == numbers(1, 4000).split()
    assert told(gateway, session).split() == numbers(1, 4000).split()


def test_a_connection_that_died_in_silence_is_replaced_and_a_prompt_in_it_runs_once(
    gateway: PageGateway, sign_in: SignIn, proxy: LoopbackProxy, gate: Path
) -> None:
    gateway.play({"pause": [{"update": agent("one ")}, {"gate": str(gate)}, {"update": agent("two ")}]})
    session = gateway.session("Silent")
    page = sign_in(f"/s/{session}", url=proxy.url)
    expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
    proxy.swallow()
    prompt(page, "pause")
    row = page.locator(".agent").last
    expect(row).to_contain_text("one")
    expect(page.locator(".user")).to_have_text(["pause"])
    expect(page.locator(".sending")).to_have_count(0)
    # While a turn runs, nothing needs to be sent.
    proxy.swallow()
    gate.write_text("go\n")
    expect(row).to_contain_text("one two")
    expect(page.locator(".user")).to_have_text(["pause"])
    # A slow page may have doubted another connection as well.
    assert sum("/ws?" in request for request in proxy.requests) >= 3
    with gateway.client() as client:
        until(page, lambda: clients(client, session) == 1)


def test_a_browser_without_a_network_says_so_and_goes_on_as_soon_as_it_is_back(
    gateway: PageGateway, sign_in: SignIn, proxy: LoopbackProxy, gate: Path
) -> None:
    gateway.play({"pause": [{"update": agent("one ")}, {"gate": str(gate)}, {"update": agent("two")}]})
    page = sign_in(f"/s/{gateway.session('Offline')}", url=proxy.url)
    prompt(page, "pause")
    expect(page.locator(".row").last).to_contain_text("one")
    # The browser refuses new connections; an open one it leaves alone.
    page.context.set_offline(True)
    proxy.cut()
    expect(page.locator(".connection")).to_contain_text("No connection for")
    gate.write_text("go\n")
    page.context.set_offline(False)
    expect(page.locator(".connection")).to_have_count(0)
    expect(page.locator(".row").last).to_contain_text("one two")


def test_a_reload_asks_for_what_is_missing_and_for_no_file_again(
    gateway: PageGateway, sign_in: SignIn, proxy: LoopbackProxy
) -> None:
    gateway.play({"much": [{"update": agent("n%d "), "times": 20000}]})
    session = gateway.session("Much")
    with gateway.client() as client:
        client.prompt(session, "much")
    page = sign_in(f"/s/{session}", url=proxy.url)
    expect(page.locator(".row").last).to_contain_text("n20000")
    # The worker has loaded what it keeps.
    page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    before = len(proxy.requests)
    frames = calls_of(page)
    page.reload()
    expect(page.locator(".row").last).to_contain_text("n20000")
    until(page, lambda: any("epoch" in frame.get("result", {}) for frame in frames))
    requests = {request.partition("?")[0] for request in proxy.requests[before:]}
    assert requests <= {"GET /", "GET /ws", "GET /manifest.webmanifest", "GET /worker.js"}
    params, answer = first_answer(frames)
    assert (params["since"], updates_in(answer)) == (20001, [])


@pytest.fixture
def below(gateway: PageGateway) -> Iterator[LoopbackProxy]:
    """A proxy that serves the gateway below a path."""
    proxy = LoopbackProxy(gateway.port, "/tools/acp")
    yield proxy
    proxy.close()


def test_the_page_works_below_a_path(gateway: PageGateway, sign_in: SignIn, below: LoopbackProxy) -> None:
    session = gateway.session("Below")
    page = sign_in(url=below.url)
    page.get_by_role("link", name="Below").click()
    prompt(page, "hello")
    expect(page.locator(".row").last).to_contain_text("hello")
    page.reload()
    expect(page.locator(".row").last).to_contain_text("hello")
    expect(page).to_have_url(f"{below.url}#/s/{session}")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to this gateway")).to_be_visible()
    strangers = [path for path in below.requests if not path.split()[1].startswith("/tools/acp/")]
    assert strangers == []


def test_the_manifest_is_valid_and_its_pictures_are_there(
    gateway: PageGateway, sign_in: SignIn, closing: ExitStack
) -> None:
    page = sign_in()
    expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
    session = page.context.new_cdp_session(page)
    closing.callback(session.detach)
    answer = session.send("Page.getAppManifest")
    assert answer["errors"] == []
    assert answer["url"].startswith(gateway.url)
    manifest = json.loads(answer["data"])
    assert {"name", "short_name", "start_url", "display", "icons"} <= manifest.keys()
    start, scope = answer["manifest"]["startUrl"], answer["manifest"]["scope"]
    assert start == gateway.url
    assert urlsplit(start).path.startswith(urlsplit(scope).path)
    sizes = page.evaluate(
        """(icons) => Promise.all(icons.map(async ({ src, sizes }) => {
          const bitmap = await createImageBitmap(await (await fetch(src)).blob()).catch(() => null);
          return [sizes, bitmap && `${bitmap.width}x${bitmap.height}`];
        }))""",
        [{**icon, "src": icon["url"]} for icon in answer["manifest"]["icons"]],
    )
    pictures = [(stated, real) for stated, real in sizes if real is not None]
    assert {"192x192", "512x512"} <= {real for _, real in pictures}
    assert all(stated == real for stated, real in pictures)
