"""A link that is opened in the browser of this machine: what other users can see of it."""

import os
import stat
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from acp_gateway.cli.gateway import browsers
from acp_gateway.cli.gateway.browsers import INTERVAL, READ_GRACE, READ_TIMEOUT, open_in_browser
from acp_gateway.errors import UsageError

LINK = "https://box.example/gateway/#acpgwp_x/s/a%26b"
SCREEN = {"DISPLAY": ":0"}


class Browser:
    """A browser that looks at a file when it is opened, or after a number of pauses."""

    def __init__(self, reads_after: int = 0) -> None:
        self.url = ""
        self.text = ""
        self.modes: list[int] = []
        self.pauses: list[float] = []
        self._reads_after = reads_after

    @property
    def file(self) -> Path:
        return Path(urlsplit(self.url).path)

    def open(self, url: str) -> bool:
        self.url = url
        self.modes = [stat.S_IMODE(path.stat().st_mode) for path in (self.file.parent, self.file)]
        self._look()
        return True

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._look()

    def _look(self) -> None:
        if len(self.pauses) == self._reads_after:
            self.text = self.file.read_text()
            # The file system of the tests may note no readings.
            os.utime(self.file)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(browsers, "SNAPS", tmp_path / "snap")
    return tmp_path


def test_the_browser_gets_a_private_file_and_not_the_link(temporary: Path) -> None:
    browser = Browser()
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    assert (urlsplit(browser.url).scheme, browser.file.parent.parent) == ("file", temporary)
    assert "acpgwp_" not in browser.url
    assert browser.modes == [0o700, 0o600]


def test_the_file_leads_to_the_link_and_nowhere_else() -> None:
    browser = Browser()
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value or "" for name, value in attrs if name in ("href", "content") and "box" in (value or ""))

    Reader().feed(browser.text)
    assert found == [f"0; url={LINK}", LINK]


@pytest.mark.parametrize("reads_after", [0, 7])
def test_the_file_is_removed_once_it_was_read(reads_after: int, temporary: Path) -> None:
    browser = Browser(reads_after)
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    assert browser.pauses == [*[INTERVAL] * reads_after, READ_GRACE]
    assert list(temporary.iterdir()) == []


def test_a_file_that_is_not_read_is_removed_after_a_while(temporary: Path) -> None:
    browser = Browser(reads_after=10**6)
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    assert sum(browser.pauses) == pytest.approx(READ_TIMEOUT)
    assert list(temporary.iterdir()) == []


def test_where_browsers_may_be_snaps_the_file_is_in_the_users_folder(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = temporary / "home"
    home.mkdir()
    monkeypatch.setattr(browsers, "SNAPS", temporary)
    monkeypatch.setenv("HOME", str(home))
    browser = Browser()
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    assert browser.file.parent.parent == home
    assert list(home.iterdir()) == []


def test_without_a_browser_the_file_is_removed_and_an_error_says_what_to_do(temporary: Path) -> None:
    with pytest.raises(UsageError, match="open the link yourself"):
        open_in_browser(LINK, SCREEN, open_url=lambda _: False)
    assert list(temporary.iterdir()) == []


def test_without_a_screen_no_browser_is_tried(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(UsageError, match="no screen here"):
        open_in_browser(LINK, {}, open_url=lambda _: pytest.fail("tried"))
    assert list(temporary.iterdir()) == []
