"""The page in a browser: a long session, its memory, long tasks of a stream, and the list, first and later."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.installing import PAGE, find_browser
from benchmarks.measuring import Bench, Measured, Section, Target
from benchmarks.processes import output_of
from benchmarks.relays import PROGRAM, Running, our_gateway
from benchmarks.report import figure

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TASK: Final = "page"

AGENT: Final = Path(__file__).parents[2] / "tests" / "agents" / "playing_agent.py"

UPDATES, FEW_UPDATES = 100_000, 10_000

RATE: Final = 2_000
"""Updates per second of a stream."""

SECONDS, FEW_SECONDS = 10, 3
"""Duration of a stream."""

ROUNDS: Final = 3

JOURNAL: Final = 64 << 20
"""Raised `journal_limit` in bytes, for all of these updates."""

OPENED: Final = 2.0
"""Maximum seconds until a session is shown."""

TOLD: Final = 50.0
"""Milliseconds from which on browsers tell of a task."""

LONG: Final = 100.0
"""Milliseconds beyond which a task of the page's thread counts as long: users notice that."""

TIMEOUT: Final = 120_000
"""Milliseconds until a measurement has failed."""

OPENING, STREAMING, VISITING = "opening", "streaming", "visiting"

PAINTED: Final = 0.150
"""Maximum seconds to the first paint of a page that the service worker has."""

REQUESTS: Final = 6
"""Maximum requests of a first visit, before the connection over which the list comes."""

TRIPS: Final = 2
"""Maximum round trips until the list has come: that of the connection among them."""

CALL: Final = """([method, params, until]) => new Promise((done, fail) => {
  const socket = new WebSocket(new URL("./ws", location.href.replace("http", "ws")));
  const send = (id, method, params) => socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
  socket.onopen = () => {
    if (until) send(0, "session/get", { sessionId: params.sessionId, limit: 1 });
    send(1, method, params);
  };
  socket.onclose = ({ reason }) => fail(new Error(`closed: ${reason}`));
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    if (message.error) fail(new Error(message.error.message));
    if (until ? message.method === "session/status_changed" && message.params.status === until : message.id === 1) {
      done(message.result ?? null);
    }
  };
})"""
"""Makes a call over a connection of its own, and waits for the result, or for a status of the session."""

WATCH: Final = """(() => {
  window.tasks = [];
  const note = (list) => list.getEntries().forEach(({ duration }) => tasks.push(duration));
  new PerformanceObserver(note).observe({ type: "longtask", buffered: true });
  const look = () => {
    const rows = document.querySelectorAll(".row");
    if (rows.length && rows[rows.length - 1].textContent.includes("the end")) window.shown ??= performance.now();
    else requestAnimationFrame(look);
  };
  look();
})()"""
"""Notes the durations of tasks of more than 50 ms, and when the last update is on the screen, in ms."""


CHECK: Final = """() => new Promise((done) => setTimeout(() => {
  const end = performance.now() + 80;
  while (performance.now() < end);
  setTimeout(() => done(tasks.splice(0).length), 200);
}))"""
"""Returns whether a long task is noted."""

METHOD: Final = (
    "A headless Chromium on the same machine, with a window of 1280 by 800 and the page's real policy; the gateway, "
    "the agent and the browser share its processors."
)
TIMES: Final = (
    "Time: from the navigation, without any file in the browser's cache, to the frame with the last update. Heap: "
    "after a garbage collection. Browsers tell of tasks from 50 ms on; 50 ms stands for none."
)


def group() -> list[dict[str, Any]]:
    """Return 50 updates as agents send them: words of an answer, thoughts, and tool calls with their ends."""

    def words(kind: str, number: int) -> dict[str, Any]:
        text = f"some words of part %d, piece {number}. " + ("\n\n" if number % 10 == 9 else "")
        return {"sessionUpdate": f"{kind}_chunk", "content": {"type": "text", "text": text}}

    updates = [words("agent_thought", i) for i in range(10)]
    for i in range(5):
        call = {"toolCallId": f"c%d-{i}"}
        updates.append({"sessionUpdate": "tool_call", **call, "title": f"Read file {i}", "kind": "read"})
        updates.append({"sessionUpdate": "tool_call_update", **call, "status": "completed"})
    return updates + [words("agent_message", i) for i in range(30)]


def plays(updates: int, seconds: int) -> dict[str, Any]:
    """Return the script of the agent."""
    end = {"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "the end"}}}
    fill = {"group": group(), "times": updates // len(group())}
    stream = {"group": group(), "times": RATE * seconds // len(group())}
    return {"plays": {OPENING: [fill, end], STREAMING: [{"per_second": RATE}, stream, end]}}


@contextmanager
def started() -> Iterator["Browser"]:
    """Run a browser until the end of the block."""
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=options)
        yield browser
        browser.close()


def signed_in(browser: "Browser", running: Running) -> "Page":
    """Return an empty page of a browser that is signed in."""
    address = f"ws://{running.endpoint.address}"
    said = output_of(*PROGRAM, "open", "--target", address, "--token-file", str(running.directory / "token"))
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.set_default_timeout(TIMEOUT)
    page.goto(said.decode().strip())
    page.wait_for_selector(".list")
    return page


def base(running: Running) -> str:
    """Return the address of the page."""
    return f"http://{running.endpoint.address.removesuffix('/acp')}/"


def without_copy(browser: "Browser", running: Running) -> "Page":
    """Return an empty page in a signed-in browser that has no copy of the page of a gateway."""
    page = signed_in(browser, running)
    cookies = page.context.cookies()
    page.context.close()
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.add_cookies([{**cookie, "url": base(running)} for cookie in map(_settable, cookies)])
    return context.new_page()


def open_session(browser: "Browser", running: Running, session: str) -> dict[str, float]:
    """Load the page with a session, in a browser without any copy of it; return seconds, and bytes of memory."""
    page = without_copy(browser, running)
    page.add_init_script(WATCH)
    page.goto(f"{base(running)}#/s/{session}")
    seconds = wait(page, "shown") / 1e3
    chrome = page.context.new_cdp_session(page)
    chrome.send("HeapProfiler.collectGarbage")
    heap = float(chrome.send("Runtime.getHeapUsage")["usedSize"])
    nodes = float(page.evaluate("document.querySelectorAll('*').length"))
    page.context.close()
    return {"seconds": seconds, "heap": heap, "nodes": nodes}


def open_list(browser: "Browser", running: Running) -> dict[str, float]:
    """Open the list in a browser without any copy of the page, and again from its service worker.

    Returns requests and bytes of the first time, with heads, until the list is shown, round trips from the opening of
    the connection to the list, and seconds to the first paint of the second time.
    """
    page = without_copy(browser, running)
    chrome = page.context.new_cdp_session(page)
    chrome.send("Network.enable")
    sizes: list[float] = []
    chrome.on("Network.loadingFinished", lambda it: sizes.append(it["encodedDataLength"]))
    trips = Trips()
    page.on("websocket", trips.follow)
    page.goto(base(running))
    page.wait_for_selector(".session")
    requests, size = len(sizes), sum(sizes)
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.goto("about:blank")
    page.goto(base(running))
    page.wait_for_selector(".session")
    painted = float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")) / 1e3
    if not page.evaluate("navigator.serviceWorker.controller !== null"):
        raise ValueError("the page did not come from its service worker")
    page.context.close()
    return {"requests": float(requests), "size": size, "trips": float(trips.count), "painted": painted}


class Trips:
    """Counts the round trips of a connection until it has brought the list of sessions."""

    def __init__(self) -> None:
        self.count = 0
        self._asks = False
        self._lists: set[Any] = set()
        self._has_come = False

    def follow(self, socket: Any) -> None:
        """Follow a connection, whose opening is a round trip; none after the list has come."""
        if not self._has_come:
            self.count, self._asks, self._lists = 1, False, set()
            socket.on("framesent", self.sent)
            socket.on("framereceived", self.received)

    def sent(self, text: str | bytes) -> None:
        """Count a message of the page, unless the answer to an earlier one is still awaited."""
        message = json.loads(text)
        if self._has_come or "id" not in message:
            return
        if not self._asks:
            self.count, self._asks = self.count + 1, True
        if message.get("method") == "session/list":
            self._lists.add(message["id"])

    def received(self, text: str | bytes) -> None:
        """Note an answer."""
        message = json.loads(text)
        if "method" not in message:
            self._asks = False
            self._has_come = self._has_come or message.get("id") in self._lists


def _settable(cookie: Any) -> dict[str, Any]:
    return {"name": cookie["name"], "value": cookie["value"]}


def stream(browser: "Browser", running: Running) -> dict[str, float]:
    """Stream updates to a page that shows them; return the longest task in ms, the number of long ones, their sum."""
    page = signed_in(browser, running)
    session = page.evaluate(CALL, ["session/new", {"cwd": "/"}, None])["sessionId"]
    page.goto(f"{base(running)}#/s/{session}")
    page.wait_for_selector(".composer")
    page.evaluate(WATCH)
    if not page.evaluate(CHECK):
        raise ValueError("this browser does not tell of long tasks")
    prompt = [{"type": "text", "text": STREAMING}]
    page.evaluate(CALL, ["session/prompt", {"sessionId": session, "prompt": prompt}, "completed"])
    wait(page, "shown")
    tasks = [float(each) for each in page.evaluate("tasks")]
    page.context.close()
    return {"longest": max(tasks, default=TOLD), "long": float(sum(each > LONG for each in tasks)), "sum": sum(tasks)}


def wait(page: "Page", name: str) -> float:
    """Wait for a number in the page. Its policy forbids Playwright's own way."""
    for _ in range(TIMEOUT // 10):
        if (value := page.evaluate(f"window.{name} ?? null")) is not None:
            return float(value)
        page.wait_for_timeout(10)
    raise TimeoutError(f"the page has not {name} the end of the session")


def run(bench: Bench) -> list[Section]:
    """Measure both with one gateway; nothing where there is no browser."""
    if PAGE in bench.programs.skipped:
        return []
    updates, seconds = bench.pick(UPDATES, FEW_UPDATES), bench.pick(SECONDS, FEW_SECONDS)
    gateway = our_gateway(bench.programs, listen="ws", gateway_options={"journal_limit": JOURNAL})
    with tempfile.NamedTemporaryFile("w", dir=bench.programs.directory, suffix=".json") as script:
        json.dump(plays(updates, seconds), script)
        script.flush()
        with gateway.running((sys.executable, str(AGENT), script.name)) as running, started() as browser:
            page = signed_in(browser, running)
            session = page.evaluate(CALL, ["session/new", {"cwd": "/"}, None])["sessionId"]
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": OPENING}]}
            page.evaluate(CALL, ["session/prompt", prompt, "completed"])
            page.context.close()
            subjects = {
                OPENING: partial(open_session, browser, running, session),
                STREAMING: partial(stream, browser, running),
                VISITING: partial(open_list, browser, running),
            }
            measured = bench.interleave(TASK, subjects, rounds=bench.pick(ROUNDS, 1), warm_up=not bench.quick)
    return [table(measured, updates, seconds)]


def table(measured: Measured, updates: int, seconds: int) -> Section:
    """Format both."""
    opened, longest = measured.median(OPENING, "seconds"), measured.median(STREAMING, "longest")
    requests, trips = measured.median(VISITING, "requests"), measured.median(VISITING, "trips")
    painted = measured.median(VISITING, "painted")
    heap, nodes = measured.median(OPENING, "heap"), measured.median(OPENING, "nodes")
    rows = [
        (f"a session of {updates:,} updates: until its end is shown", figure(opened, "s")),
        ("the same: the page's JavaScript heap", figure(heap, "B")),
        ("the same: elements of the document", figure(nodes)),
        (f"{RATE:,} updates a second, for {seconds} s: the longest task", figure(longest, "ms")),
        (f"the same: tasks of more than {LONG:.0f} ms", figure(measured.median(STREAMING, "long"))),
        ("the same: share of the time in tasks of more than 50 ms", share(measured, seconds)),
        ("the first visit: requests until the list is shown", figure(requests)),
        ("the same: bytes received, with heads", figure(measured.median(VISITING, "size"), "B")),
        ("the same: round trips of the connection until the list has come", figure(trips)),
        ("a later visit, from the service worker: the first paint", figure(painted, "s")),
    ]
    notes = [METHOD, TIMES, f"Rounds: {len(measured.rounds)}.", *measured.notes()]
    targets = [
        Target(f"a session of {updates:,} updates is shown", OPENED, "≤", opened, "s"),
        Target(f"the longest task while {RATE:,} updates a second stream", LONG, "≤", longest, "ms"),
        Target("requests of the first visit", REQUESTS, "≤", requests, ""),
        Target("round trips until the list has come", TRIPS, "≤", trips, ""),
        Target("the first paint from the service worker", PAINTED, "≤", painted, "s"),
    ]
    return Section("The page in a browser", ("", "measured"), rows, notes, targets)


def share(measured: Measured, seconds: int) -> str:
    """Return the share of a stream's time in tasks of more than 50 ms."""
    total = measured.median(STREAMING, "sum")
    return figure(None) if total is None else f"{100 * total / 1e3 / seconds:.1f} %"
