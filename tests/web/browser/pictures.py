"""Takes the pictures of the page for README and docs: `python -m tests.web.browser.pictures`, by `make screenshots`."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.web.browser.conftest import BROWSERS
from tests.web.browser.scenes import (
    CONVERSATION,
    EDIT_PERMISSION,
    IMAGE,
    MACHINE,
    ON_DISK,
    PERMISSION,
    numbered,
    shop,
)
from tests.web.browser.scripted_gateway import Scene, ScriptedGateway, running

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"

MOST = 300_000
"""Maximum size of a picture in bytes."""

WIDE = (1280, 800)
PHONE = (390, 760)

Draw = Callable[[Page, ScriptedGateway], None]


def at_end(page: Page) -> None:
    expect(page.locator(".row").last).to_be_visible()


def transcript(page: Page, gateway: ScriptedGateway) -> None:
    """A session that is at work."""
    at_end(page)
    page.locator(".scroller").evaluate("scroller => { scroller.scrollTop = 0; }")
    expect(page.get_by_role("region", name="Plan")).to_be_in_viewport()


def diff(page: Page, gateway: ScriptedGateway) -> None:
    """A change side by side."""
    transcript(page, gateway)
    page.get_by_role("button", name="Edit shop/basket.py").click()
    expect(page.locator(".diff .side-by-side")).to_be_visible()
    page.locator(".diff").evaluate("one => one.scrollIntoView({ block: 'center' })")
    expect(page.locator(".diff")).to_be_in_viewport(ratio=0.9)


def permission(page: Page, gateway: ScriptedGateway) -> None:
    """A question with a change."""
    at_end(page)
    gateway.ask("s1", 9, EDIT_PERMISSION)
    expect(page.locator(".permission .diff")).to_be_visible()


def command(page: Page, gateway: ScriptedGateway) -> None:
    """A question with a command."""
    at_end(page)
    gateway.ask("s1", 9, PERMISSION)
    expect(page.locator(".permission .command-text")).to_be_visible()


def sessions(page: Page, gateway: ScriptedGateway) -> None:
    """The list."""
    expect(page.locator(".session")).to_have_count(7)


def file(page: Page, gateway: ScriptedGateway) -> None:
    """A picture that a program has made."""
    expect(page.locator(".files-body img.picture")).to_be_visible()


def changes(page: Page, gateway: ScriptedGateway) -> None:
    """Changes on the disk."""
    gateway.answers["session/changes"] = lambda _: ON_DISK
    page.get_by_role("link", name="Changes").click()
    expect(page.locator(".changed-file")).to_have_count(4)


def machine(page: Page, gateway: ScriptedGateway) -> None:
    """The load of the machine."""
    gateway.answers["gateway/machine"] = lambda _: MACHINE
    page.get_by_role("button", name="How busy the machine is").click()
    expect(page.get_by_role("dialog").get_by_role("meter")).to_have_count(5)


def plot() -> bytes:
    """Return the curve of a loss, as SVG."""
    points = " ".join(f"{60 + 5 * step},{40 + 300 * (1 - 0.96**step):.0f}" for step in range(120))
    words = "".join(
        f'<text x="{60 + 5 * step}" y="385" text-anchor="middle">{10 * step}</text>' for step in range(0, 121, 20)
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="700" height="420" font-family="sans-serif" font-size="14">'
        '<rect width="700" height="420" fill="#fff"/><path d="M60 20V360H670" fill="none" stroke="#888"/>'
        f'<polyline points="{points}" fill="none" stroke="#2563eb" stroke-width="2"/>{words}'
        '<text x="365" y="410" text-anchor="middle">step</text><text x="20" y="190">loss</text></svg>'
    ).encode()


TAKEN: dict[str, tuple[str, tuple[int, int], bool, Draw]] = {
    "list": ("", PHONE, False, sessions),
    "transcript": ("#/s/s1", WIDE, False, transcript),
    "diff": ("#/s/s1", WIDE, False, diff),
    "permission": ("#/s/s1", WIDE, False, permission),
    "phone": ("#/s/s1", PHONE, False, command),
    "dark": ("#/s/s1", WIDE, True, diff),
    "file": ("#/s/s1/files/plots%2Floss.svg", PHONE, False, file),
    "changes": ("#/s/s1", WIDE, False, changes),
    "machine": ("", PHONE, False, machine),
}
"""Address, size, whether dark, and what is drawn, by the name of the file."""


def scene() -> Scene:
    """Return the sessions that are shown."""
    scene = shop()
    scene.info["mayUseFiles"] = True
    scene.contents = {"plots/loss.svg": plot(), "shop/basket.py": b"", "shop/cart.py": b""}
    scene.updates["s1"] = numbered([one for one in CONVERSATION if one is not IMAGE])
    return scene


@contextmanager
def started() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found is not None, "pictures need a browser: apt-get install chromium-headless-shell"
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=options)
        yield browser
        browser.close()


def take(browser: Browser, folder: Path, name: str) -> Path:
    """Take a picture, and return its file."""
    path, (width, height), dark, draw = TAKEN[name]
    is_phone = width < 700
    with running(scene()) as gateway:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            device_scale_factor=1.5 if is_phone else 1,
            has_touch=is_phone,
            is_mobile=is_phone,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        page = context.new_page()
        page.goto(gateway.url + path)
        draw(page, gateway)
        page.evaluate("document.fonts.ready")
        file = folder / f"{name}.png"
        page.screenshot(path=file)
        context.close()
    return file


def main() -> int:
    """Take all; the status is 1 if one is too large."""
    PICTURES.mkdir(exist_ok=True)
    with started() as browser:
        sizes = {name: take(browser, PICTURES, name).stat().st_size for name in TAKEN}
    for name, size in sizes.items():
        sys.stdout.write(f"{name}.png  {size // 1000} KB\n")
    return int(max(sizes.values()) > MOST)


if __name__ == "__main__":
    sys.exit(main())
