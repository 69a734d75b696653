"""The browser for tests of the page, and pages on a scripted gateway."""

import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.web.browser.scripted_gateway import Scene, ScriptedGateway, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Error, Page, Playwright, Request, ViewportSize

HAS_PLAYWRIGHT = find_spec("playwright") is not None

if not HAS_PLAYWRIGHT:
    collect_ignore_glob = ["test_*.py", "end_to_end/test_*.py"]

LOG = logging.getLogger(__name__)

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")

PAGES = pytest.StashKey[list["Page"]]()
"""The pages of a test."""

WIDE = (1280, 800)
TABLET = (768, 1024)
PHONE = (360, 640)

TIMEOUT = 30000
"""Time in ms that an action may take, and a state may take to come, on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("web")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failure what each page of the test shows."""
    report = yield
    if report.when == "call" and report.failed:
        for page in item.stash.get(PAGES, []):
            if not page.is_closed():
                report.sections.append((f"Page {page.url}", page.evaluate("document.body.innerText")))
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with the mark `firefox` in Firefox too, or there alone."""
    mark = metafunc.definition.get_closest_marker("firefox")
    if mark is not None:
        missing = pytest.mark.skipif(FIREFOX is None, reason="needs Firefox, in Debian: apt-get install firefox-esr")
        others = [] if mark.kwargs.get("alone") else ["chromium"]
        metafunc.parametrize("browser", [*others, pytest.param("firefox", marks=missing)], indirect=True)


def until(page: "Page", condition: Callable[[], bool]) -> None:
    """Wait for a condition outside of the page, or in it where its policy forbids Playwright to wait there."""
    for _ in range(TIMEOUT // 10):
        if condition():
            return
        page.wait_for_timeout(10)
    raise AssertionError(f"this did not happen within {TIMEOUT} ms")


def load(page: "Page", url: str) -> None:
    """Load an address in another document, also where the present one differs in the fragment alone.

    Not by a reload after `goto`: that returns with any change of the address that the page makes as it starts.
    """
    page.goto("about:blank")
    page.goto(url)


def settled(page: "Page") -> None:
    """Wait until what was under way is drawn."""
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
    )


def stop_timers(page: "Page", time: int) -> None:
    """Let timers of a time in ms that the page starts from now on never end: a busy machine may take longer."""
    page.evaluate(
        """(stopped) => {
          const later = window.setTimeout;
          window.setTimeout = (action, time, ...rest) => (time === stopped ? 0 : later(action, time, ...rest));
        }""",
        time,
    )


def end_timers(page: "Page", time: int) -> None:
    """Let timers of a time in ms end at once in the pages that are loaded from now on, until `keep_timers`."""
    page.add_init_script(
        f"""{{
          const later = window.setTimeout;
          window.keepTimers = () => void (window.setTimeout = later);
          window.setTimeout = (action, time, ...rest) => later(action, time === {time} ? 0 : time, ...rest);
        }}"""
    )


def keep_timers(page: "Page") -> None:
    """Let timers take their time again."""
    page.evaluate("keepTimers()")


def has_worker(page: "Page") -> bool:
    """Return whether the service worker serves this page."""
    return bool(page.evaluate("navigator.serviceWorker.controller !== null"))


def try_now(page: "Page") -> None:
    """Have the page connect now, unless it has done so by itself: then the button is gone."""
    page.get_by_role("button", name="Try now").evaluate_all("found => found.forEach((button) => button.click())")


def is_thrown(error: "Error") -> bool:
    """Return False for what Firefox reports beside exceptions, such as a lost connection."""
    return re.fullmatch(r"\w*Error|uncaught exception", error.name or "") is not None


class Opens(Protocol):
    def __call__(
        self, scene: Scene, path: str = "", *, size: tuple[int, int] = WIDE, touch: bool = False, dark: bool = False
    ) -> tuple["Page", ScriptedGateway]: ...


class NewPage(Protocol):
    def __call__(
        self, *, size: tuple[int, int] = WIDE, touch: bool = False, dark: bool = False, motion: bool = False
    ) -> "Page": ...


REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => reportViolation(
  `${event.violatedDirective} forbids ${event.blockedURI} ${event.sample}`));
"""


@pytest.fixture(scope="session")
def playwright() -> Iterator["Playwright"]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=TIMEOUT)
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def chromium(playwright: "Playwright") -> Iterator["Browser"]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found is not None, "these tests need a browser: apt-get install chromium-headless-shell"
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = playwright.chromium.launch(executable_path=found, args=options)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def firefox(playwright: "Playwright") -> Iterator["Browser"]:
    """Start Firefox as its users have it, not Playwright's own: by WebDriver BiDi."""
    assert FIREFOX is not None
    python = Path(sys.executable).parent
    # It makes its home, if root may.
    with TemporaryDirectory() as home:
        browser = playwright.firefox.launch(
            channel="moz-firefox",
            executable_path=Path(__file__).with_name("firefox_relay.py"),
            env={**os.environ, "HOME": home, "PATH": f"{python}:{os.environ['PATH']}", "FIREFOX": FIREFOX},
            firefox_user_prefs={"ui.prefersReducedMotion": 1},
            timeout=4 * TIMEOUT,
        )
        yield browser
        browser.close()


@pytest.fixture
def browser(request: pytest.FixtureRequest) -> "Browser":
    found: Browser = request.getfixturevalue(getattr(request, "param", "chromium"))
    return found


@pytest.fixture
def new_page(browser: "Browser", request: pytest.FixtureRequest) -> Iterator[NewPage]:
    """Make an empty page in a profile of its own.

    In the end nothing may have failed in it, broken its policy, opened a dialog of the browser, or asked for what is
    not on this machine.
    """
    throttle = request.config.getoption("--throttle")
    problems: list[str] = []
    with ExitStack() as stack:

        def open_dialog(dialog: "Dialog") -> None:
            problems.append(f"a dialog: {dialog.message}")
            dialog.dismiss()

        def send(request: "Request") -> None:
            if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
                problems.append(f"a request for {request.url}")

        def tell(request: "Request") -> None:
            # It is shown with the failure of a test. Those whose connection is cut fail some requests.
            LOG.warning("%s %s has failed: %s", request.method, request.url, request.failure)

        def make(
            *, size: tuple[int, int] = WIDE, touch: bool = False, dark: bool = False, motion: bool = False
        ) -> "Page":
            width, height = size
            viewport: ViewportSize = {"width": width, "height": height}
            is_firefox = browser.browser_type.name == "firefox"
            if is_firefox:
                assert not any((touch, dark, motion)), "WebDriver BiDi has no command for it"
                context = browser.new_context(viewport=viewport)
            else:
                context = browser.new_context(
                    viewport=viewport,
                    has_touch=touch,
                    is_mobile=touch,
                    color_scheme="dark" if dark else "light",
                    reduced_motion="no-preference" if motion else "reduce",
                    permissions=["clipboard-read", "clipboard-write"],
                )
            stack.callback(context.close)
            context.expose_function("reportViolation", lambda text: problems.append(text))
            context.add_init_script(REPORT_VIOLATIONS)
            context.on("request", send)
            context.on("requestfailed", tell)
            page = context.new_page()
            request.node.stash.setdefault(PAGES, []).append(page)
            if throttle > 1 and not is_firefox:
                context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": throttle})
            page.set_default_timeout(TIMEOUT)
            page.on("pageerror", lambda it: problems.append(str(it)) if not is_firefox or is_thrown(it) else None)
            page.on("console", lambda message: problems.append(message.text) if "Security" in message.text else None)
            page.on("dialog", open_dialog)
            return page

        yield make
    assert problems == []


@pytest.fixture
def open_page(new_page: NewPage) -> Iterator[Opens]:
    """Open the page of a gateway with a scene."""
    with ExitStack() as stack:

        def open_(
            scene: Scene, path: str = "", *, size: tuple[int, int] = WIDE, touch: bool = False, dark: bool = False
        ) -> tuple["Page", ScriptedGateway]:
            gateway = stack.enter_context(running(scene))
            page = new_page(size=size, touch=touch, dark=dark)
            page.goto(gateway.url + path)
            return page, gateway

        yield open_
