"""Files of a session in a browser: its folder, what is in a file, links and pictures in the conversation, uploads."""

from base64 import b64decode
from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, WIDE, Opens
from tests.web.browser.scenes import CWD, picture, shop, text, tool
from tests.web.browser.scripted_gateway import Scene
from tests.web.browser.test_accessibility import FINDINGS

NOTEBOOK = (
    '{"metadata": {}, "cells": [{"cell_type": "markdown", "source": "# Losses"}, {"cell_type": "code", "source": '
    '"plot(loss)", "outputs": [{"output_type": "stream", "text": "0.25"}]}]}'
)

FILES = {
    "shop/basket.py": b"import os\n\n\ndef total(items):\n    return sum(items)\n",
    "plots/loss.png": b64decode(picture()),
    "plots/loss.svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" ><rect width="9" height="9"/></svg>',
    "runs/run.csv": b'step,loss\n1,"0,5"\n2,0.25\n',
    "report.html": b"<h1>Report</h1><script>document.title = 'run'; top.location = 'https://evil.example'</script>",
    "losses.ipynb": NOTEBOOK.encode(),
    "notes.md": b"# Notes\n\nsee `shop/basket.py:4`\n",
    "weights.bin": b"\x00\x01\x02",
    ".env": b"SECRET=1",
    "long.log": b"".join(b"line %d\n" % number for number in range(30_000)),
}


def with_files() -> Scene:
    """A session whose files may be shown."""
    scene = shop()
    scene.info["mayUseFiles"] = True
    scene.contents = dict(FILES)
    return scene


def opened(open_page: Opens, path: str, **options: object) -> Page:
    page, _ = open_page(with_files(), f"#/s/s1/files{path}", **options)  # type: ignore[arg-type]
    return page


@pytest.mark.firefox
def test_the_folder_of_the_session_is_shown_and_a_file_in_it_with_its_lines(open_page: Opens) -> None:
    page, _ = open_page(with_files(), "#/s/s1")
    page.get_by_role("link", name="Files").click()
    shown = page.get_by_role("region", name="Files")
    expect(shown.get_by_role("listitem")).to_have_count(9)
    expect(shown.locator(".file-closed")).to_contain_text("not shown")
    shown.get_by_role("link", name="shop").click()
    shown.get_by_role("link", name="basket.py").click()
    expect(shown.locator(".file-line")).to_have_count(5)
    expect(shown.locator(".code-keyword").first).to_have_text("import")
    shown.get_by_role("navigation", name="Folders").get_by_role("link", name="shop", exact=True).first.click()
    expect(shown.get_by_role("listitem")).to_have_count(9)
    page.get_by_role("link", name="Back to the conversation").click()
    expect(page.locator(".row").last).to_be_visible()


def test_a_path_that_the_agent_names_opens_the_file_at_its_line(open_page: Opens) -> None:
    page, gateway = open_page(with_files(), "#/s/s1")
    words = "Look at `shop/basket.py:4`, `os.path` and [the notes](notes.md)."
    gateway.add("s1", text("agent_message", words))
    expect(page.get_by_role("link", name="os.path")).to_have_count(0)
    expect(page.get_by_role("link", name="the notes")).to_be_visible()
    page.get_by_role("link", name="shop/basket.py:4").click()
    marked = page.locator(".file-line.is-marked")
    expect(marked).to_have_text("def total(items):\n")
    expect(marked).to_be_in_viewport()


def test_the_places_of_a_tool_call_are_links_to_its_files(open_page: Opens) -> None:
    page, gateway = open_page(with_files(), "#/s/s1")
    places = [{"path": f"{CWD}/shop/basket.py", "line": 2}, {"path": f"{CWD}/notes.md"}]
    gateway.add("s1", tool("n1", "Look", "read", status="completed", locations=places))
    page.get_by_role("button", name="Look").last.click()
    page.get_by_role("link", name="shop/basket.py:2").click()
    expect(page.locator(".file-line.is-marked")).to_be_visible()


def test_pictures_that_a_tool_call_has_written_are_shown_small_and_loaded_when_they_are_seen(open_page: Opens) -> None:
    page, gateway = open_page(with_files(), "#/s/s1")
    written = tool("n1", "Plot", "execute", status="completed", rawInput={"command": "python plot.py"})
    output = {"type": "content", "content": {"type": "text", "text": "saved plots/loss.png and plots/absent.png"}}
    gateway.add("s1", written | {"content": [output]})
    thumb = page.locator(".thumb img")
    expect(thumb).to_have_count(1)
    assert thumb.evaluate("image => image.complete && image.naturalWidth > 0 && image.loading === 'lazy'")
    assert thumb.get_attribute("alt") == "plots/loss.png"
    page.locator(".thumb").click()
    expect(page.locator(".files-body .picture")).to_be_visible()


@pytest.mark.parametrize("touch", [False, True])
def test_each_kind_of_file_is_shown_as_what_it_is(open_page: Opens, touch: bool) -> None:
    page, _ = open_page(with_files(), "#/s/s1/files", size=PHONE if touch else WIDE, touch=touch)
    body = page.locator(".files-body")
    for path, shown in (
        ("plots/loss.svg", "img.picture"),
        ("runs/run.csv", "table"),
        ("losses.ipynb", ".snippet"),
        ("notes.md", ".markdown h2"),
        ("report.html", "iframe"),
    ):
        page.evaluate("path => { location.hash = `#/s/s1/files/${encodeURIComponent(path)}`; }", path)
        expect(body.locator(shown).first).to_be_visible()
    expect(body.locator("th")).to_have_count(0)
    page.evaluate("location.hash = '#/s/s1/files/runs%2Frun.csv'")
    expect(body.locator("tbody tr").first.locator("td")).to_have_text(["1", "0,5"])
    page.evaluate("location.hash = '#/s/s1/files/weights.bin'")
    expect(page.get_by_role("alert")).to_have_text("This file is not text. Download it to see it.")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_report_runs_nothing_and_goes_nowhere(open_page: Opens) -> None:
    page = opened(open_page, "/report.html")
    frame = page.frame_locator(".file-frame")
    expect(frame.get_by_role("heading", name="Report")).to_be_visible()
    assert page.locator(".file-frame").get_attribute("sandbox") == ""
    assert page.url.endswith("report.html")
    page.get_by_role("button", name="Source").click()
    expect(page.locator(".file-lines")).to_contain_text("<script>")


def test_a_long_text_is_shown_in_parts(open_page: Opens) -> None:
    page = opened(open_page, "/long.log")
    lines = page.locator(".file-line")
    expect(lines.first).to_have_text("line 0\n")
    before = lines.count()
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".file-line", has_text="line 29999")).to_have_count(1)
    assert before < 30_000


def test_a_file_and_a_folder_are_downloaded(open_page: Opens) -> None:
    page, gateway = open_page(with_files(), "#/s/s1/files/shop%2Fbasket.py")
    with page.expect_download() as started:
        page.get_by_role("link", name="Download").click()
    assert Path(started.value.path()).read_bytes() == FILES["shop/basket.py"]
    page.evaluate("location.hash = '#/s/s1/files'")
    with page.expect_download():
        page.get_by_role("link", name="As zip").click()
    assert any("as=zip" in query for query in gateway.queries)


def test_what_is_refused_is_said_with_a_way_back(open_page: Opens) -> None:
    page = opened(open_page, "/absent.py")
    expect(page.get_by_role("alert")).to_contain_text("absent.py does not exist")
    page.get_by_role("link", name="The session").click()
    expect(page.get_by_role("listitem").first).to_be_visible()


def test_files_are_uploaded_and_replace_none_without_a_question(open_page: Opens, tmp_path: Path) -> None:
    page, gateway = open_page(with_files(), "#/s/s1/files/shop", size=PHONE, touch=True)
    (tmp_path / "basket.py").write_text("mine")
    (tmp_path / "new.bin").write_bytes(bytes(300_000))
    page.locator(".files-body input[type=file]").set_input_files([tmp_path / "new.bin", tmp_path / "basket.py"])
    expect(page.get_by_role("alert")).to_contain_text("basket.py” is there already")
    assert gateway.scene.contents["shop/basket.py"] == FILES["shop/basket.py"]
    assert gateway.scene.contents["shop/new.bin"] == bytes(300_000)
    page.get_by_role("button", name="Replace it").click()
    expect(page.get_by_role("link", name="new.bin")).to_be_visible()
    assert gateway.scene.contents["shop/basket.py"] == b"mine"


def test_an_observer_sees_files_and_uploads_none_and_others_see_none(open_page: Opens) -> None:
    scene = with_files()
    scene.info["role"] = "observer"
    scene.sessions["s1"]["mayControl"] = False
    page, _ = open_page(scene, "#/s/s1/files")
    expect(page.get_by_role("listitem").first).to_be_visible()
    expect(page.get_by_text("Upload files")).to_have_count(0)
    page, _ = open_page(shop(), "#/s/s1/files")
    expect(page.locator(".row").last).to_be_visible()
    expect(page.get_by_role("link", name="Files")).to_have_count(0)


def test_the_files_of_a_machine_are_loaded_through_the_gateway(open_page: Opens) -> None:
    scene = with_files()
    scene.sessions["gpu2/s9"] = scene.sessions["s1"] | {"id": "gpu2/s9", "machine": "gpu2"}
    scene.updates["gpu2/s9"] = scene.updates["s1"]
    page, gateway = open_page(scene, "#/s/gpu2%2Fs9/files/plots%2Floss.png")
    image = page.locator(".files-body .picture")
    expect(image).to_be_visible()
    assert "/nodes/gpu2/files?session=s9&" in (image.evaluate("image => image.src"))
    assert gateway.queries


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_axe_finds_nothing_in_files(open_page: Opens, size: tuple[int, int], dark: bool) -> None:
    page, gateway = open_page(with_files(), "#/s/s1/files", size=size, touch=size == PHONE, dark=dark)
    expect(page.get_by_role("listitem").first).to_be_visible()
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    shown = {
        "": ".file-list",
        "shop%2Fbasket.py/4": ".code-keyword",
        "runs%2Frun.csv": "table",
        "losses.ipynb": ".snippet",
        "notes.md": ".markdown",
        "plots%2Floss.png": ".picture",
        "absent": "[role=alert]",
    }
    for path, selector in shown.items():
        page.evaluate("path => { location.hash = `#/s/s1/files${path && '/'}${path}`; }", path)
        expect(page.locator(".files-body").locator(selector).first).to_be_visible()
        page.evaluate(axe)
        assert page.evaluate(FINDINGS) == [], path
    page.evaluate("location.hash = '#/s/s1'")
    gateway.add("s1", tool("n1", "Plot", "execute", status="completed", locations=[{"path": "plots/loss.png"}]))
    gateway.add("s1", text("agent_message", "See `shop/basket.py:4`."))
    expect(page.locator(".thumb img")).to_be_visible()
    expect(page.get_by_role("link", name="shop/basket.py:4")).to_be_visible()
    page.evaluate(axe)
    assert page.evaluate(FINDINGS) == []
