"""The address of the page as browsers reach it, and the links to what is on it."""

from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.addresses import parse_address, parse_target
from acp_gateway.config.load import ListenSection
from acp_gateway.errors import UsageError
from acp_gateway.gateway.page_address import find_page, is_loopback, make_link, page_at
from acp_gateway.security.certificates import create_certificate
from tests.kit.doubles import make_config


@pytest.mark.parametrize(
    ("sections", "host", "page"),
    [
        ([{"url": "wss://box.example:7443"}], None, "https://box.example:7443/"),
        ([{"url": "wss://0.0.0.0:7443"}], None, "https://cert.example:7443/"),
        ([{"url": "wss://0.0.0.0:7443", "allowed_hosts": ("box",)}], None, "https://box:7443/"),
        ([{"url": "wss://0.0.0.0:443"}], "box", "https://box/"),
        ([{"url": "wss://[::]:7443"}], "2001:db8::1", "https://[2001:db8::1]:7443/"),
        ([{"url": "ws://127.0.0.1:7443"}, {"url": "wss://box:7444"}], None, "https://box:7444/"),
        ([{"url": "ws://127.0.0.1:7443", "allowed_hosts": ("box.example",)}], None, "https://box.example/"),
        ([{"url": "ws://localhost:80"}], None, "http://localhost/"),
        (
            [{"url": "wss://box:7443"}, {"url": "ws://127.0.0.1:7080", "public_url": "https://gpu.example/gateway/"}],
            None,
            "https://gpu.example/gateway/",
        ),
        ([{"url": "ws://127.0.0.1:0", "public_url": "https://gpu.example:8443/a/b"}], "box", "https://box:8443/a/b/"),
        ([{"url": "ws://127.0.0.1:7080", "public_url": "https://[2001:db8::1]"}], None, "https://[2001:db8::1]/"),
        ([{"url": "ws://127.0.0.1:7080", "public_url": "http://localhost:8080/a"}], None, "http://localhost:8080/a/"),
        ([{"url": "ws://[::1]:7443"}, {"url": "unix:///run/s"}], None, "http://[::1]:7443/"),
    ],
)
def test_the_link_names_the_listener_that_a_browser_can_reach(
    sections: list[dict[str, Any]], host: str | None, page: str, tmp_path: Path
) -> None:
    create_certificate(["localhost", "*.example", "cert.example"], tmp_path)
    config = make_config(tmp_path)
    tls: dict[str, Any] = {"cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    listen = [ListenSection(**each, **(tls if each["url"].startswith("wss") else {})) for each in sections]
    object.__setattr__(config, "listen", tuple(listen))
    assert find_page(config.listen, host) == page


@pytest.mark.parametrize(
    "section",
    [
        ListenSection(url="unix:///run/s"),
        ListenSection(url="ws://127.0.0.1:0"),
        ListenSection(url="ws://127.0.0.1:7443", serves=("acp",)),
        ListenSection(url="ws://box:7443", insecure_plaintext=True),
    ],
)
def test_without_a_listener_with_a_page_there_is_no_link(section: ListenSection, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    object.__setattr__(config, "listen", (section,))
    assert find_page(config.listen) is None


def test_the_link_of_a_target_is_its_address() -> None:
    assert page_at(parse_target("box")) == "https://box:7443/"
    assert page_at(parse_address("wss://box:443"), "name") == "https://name/"
    assert page_at(parse_target("https://gpu.example/gateway/acp"), None) == "https://gpu.example/gateway/"
    for url in ("tcp+tls://box:7443", "unix:///run/s", "ssh://box"):
        with pytest.raises(UsageError, match="run `acp-gateway open` there"):
            page_at(parse_target(url), None)


@pytest.mark.parametrize(
    ("places", "fragment"),
    [
        ({}, "/"),
        ({"code": "acpgwp_x"}, "acpgwp_x"),
        ({"session": "s1"}, "/s/s1"),
        ({"code": "acpgwp_x", "session": "a/b #ü"}, "acpgwp_x/s/a%2Fb%20%23%C3%BC"),
        ({"session": "s1", "request": "r/1"}, "/s/s1/r/r%2F1"),
        ({"agent": "claude code"}, "/new/claude%20code"),
        ({"code": "acpgwp_x", "agent": "c"}, "acpgwp_x/new/c"),
        ({"session": "\ud800", "request": "r"}, "/s/%3F/r/r"),
    ],
)
def test_a_link_has_everything_behind_its_fragment(places: dict[str, str], fragment: str) -> None:
    assert make_link("https://box/", **places) == f"https://box/#{fragment}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("a.localhost", True),
        ("[::1]", True),
        ("::1", True),
        ("box", False),
        ("localhost.example", False),
        ("10.0.0.1", False),
    ],
)
def test_names_of_loopback(name: str, expected: bool) -> None:
    assert is_loopback(name) == expected
