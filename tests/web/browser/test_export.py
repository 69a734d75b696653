"""A session is saved as a file, which the gateway writes."""

from pathlib import Path

from playwright.sync_api import expect

from tests.web.browser.conftest import Opens
from tests.web.browser.scenes import shop

FILE = {"name": "Totals.html", "mimeType": "text/html", "text": "<p>é</p>"}


def written(params: object) -> dict[str, str]:
    """Answer with a file."""
    return FILE


def failing(params: object) -> dict[str, str]:
    """Answer with an error."""
    raise ValueError("the disk is slow")


def test_a_session_is_exported_without_secrets_unless_they_are_wanted(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    gateway.answers["session/export"] = written
    for redact in (True, False):
        page.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Export…").click()
        page.get_by_label("HTML").check()
        page.get_by_label("Leave out secrets").set_checked(redact)
        with page.expect_download() as started:
            page.get_by_role("button", name="Save").click()
        assert started.value.suggested_filename == "Totals.html"
        assert Path(started.value.path()).read_text() == "<p>é</p>"
        (params,) = [params for method, params in gateway.calls if method == "session/export"]
        assert params == {"sessionId": "s1", "format": "html", "redact": redact}
        gateway.calls.clear()
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_an_observer_exports_and_does_nothing_else_by_the_menu(open_page: Opens) -> None:
    scene = shop()
    scene.info |= {"role": "observer", "mayShare": False}
    scene.sessions["s1"]["mayControl"] = False
    page, gateway = open_page(scene, "#/s/s1")
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("menuitem")).to_have_text(["Open another beside…", "Find in this session", "Export…"])
    gateway.answers["session/export"] = failing
    page.get_by_role("menuitem", name="Export…").click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_have_text("The disk is slow")
