"""Downloads come from https or loopback alone, and are bounded."""

import hashlib
import stat
from pathlib import Path

import pytest

from acp_gateway.errors import ConfigError, Unreachable
from acp_gateway.gateway.agent import download as module
from acp_gateway.gateway.agent.download import download, is_allowed, read_document
from tests.gateway.agent.web_server import serve

BODY = bytes(range(256)) * 40


def ignore(come: int, whole: int | None) -> None:
    """Report progress to no one."""


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://example.org/a", True),
        ("http://127.0.0.1:80/a", True),
        ("http://localhost/a", True),
        ("http://[::1]/a", True),
        ("http://example.org/a", False),
        ("http://127.0.0.1.example.org/a", False),
        ("http://2130706433/a", False),
        ("file:///etc/passwd", False),
        ("ftp://example.org/a", False),
        ("https:///a", False),
        ("http://[x/a", False),
    ],
)
def test_only_https_and_loopback_are_allowed(url: str, allowed: bool) -> None:
    assert is_allowed(url) is allowed


def test_a_download_is_written_for_its_owner_and_its_hash_returned(tmp_path: Path) -> None:
    reports = []
    with serve({"/a": BODY}) as url:
        digest = download(f"{url}/a", tmp_path / "a", len(BODY), lambda come, whole: reports.append((come, whole)))
    assert digest == hashlib.sha256(BODY).hexdigest()
    assert (tmp_path / "a").read_bytes() == BODY
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert reports[-1] == (len(BODY), len(BODY))


@pytest.mark.parametrize("length", [str(len(BODY)), ""], ids=["announced", "unannounced"])
def test_a_download_that_is_too_large_is_given_up(tmp_path: Path, length: str) -> None:
    with (
        serve({"/a": (200, {"Content-Length": length}, BODY)}) as url,
        pytest.raises(ConfigError, match="max-download"),
    ):
        download(f"{url}/a", tmp_path / "a", len(BODY) - 1, ignore)


def test_a_download_that_ends_early_is_an_error(tmp_path: Path) -> None:
    with (
        serve({"/a": (200, {"Content-Length": "20000"}, BODY)}) as url,
        pytest.raises(Unreachable, match="lost after 10240 of 20000 bytes"),
    ):
        download(f"{url}/a", tmp_path / "a", 30_000, ignore)


def test_a_download_does_not_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with serve({"/a": BODY}) as url, pytest.raises(FileExistsError):
        download(f"{url}/a", tmp_path / "a", len(BODY), ignore)
    assert (tmp_path / "a").read_text() == "mine"


def test_a_redirect_is_followed_within_loopback(tmp_path: Path) -> None:
    with serve({"/a": (302, {"Location": "/b"}, b""), "/b": b"here"}) as url:
        assert read_document(f"{url}/a") == b"here"


@pytest.mark.parametrize("target", ["http://example.org/", "ftp://example.org/"])
def test_a_redirect_to_what_is_not_allowed_is_refused(target: str) -> None:
    with serve({"/a": (302, {"Location": target}, b"")}) as url, pytest.raises(ConfigError, match="is not https"):
        read_document(f"{url}/a")


def test_a_redirect_to_a_file_is_refused() -> None:
    with serve({"/a": (302, {"Location": "file:///etc/passwd"}, b"")}) as url, pytest.raises(Unreachable, match="302"):
        read_document(f"{url}/a")


def test_redirects_in_a_circle_end() -> None:
    with serve({"/a": (302, {"Location": "/a"}, b"")}) as url, pytest.raises(Unreachable, match="302"):
        read_document(f"{url}/a")


def test_an_error_of_the_server_names_the_url_and_the_status() -> None:
    with serve({}) as url, pytest.raises(Unreachable, match=r"/a: the server answers 404"):
        read_document(f"{url}/a")


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with serve({}) as url:
        pass
    with pytest.raises(Unreachable, match="refused"):
        read_document(f"{url}/a")


def test_a_document_is_read_from_a_file_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_document(str(tmp_path / "a")) == b"12345"
    monkeypatch.setattr(module, "DOCUMENT_SIZE", 4)
    with pytest.raises(ConfigError, match="more than 4 bytes"):
        read_document(str(tmp_path / "a"))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_document(str(tmp_path / "b"))


def test_a_document_of_a_url_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DOCUMENT_SIZE", 4)
    with serve({"/a": b"12345"}) as url, pytest.raises(ConfigError, match="more than 4 bytes"):
        read_document(f"{url}/a")


def test_a_url_of_another_scheme_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match="not an https URL"):
        read_document("http://example.org/registry.json")
