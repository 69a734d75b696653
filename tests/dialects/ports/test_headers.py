"""Heads of requests and responses between a browser and a program behind a preview."""

import pytest

from acp_gateway.dialects.ports.headers import Origins, cookie_of, foreign, to_browser, to_program
from acp_gateway.gateway.viewing.previews import RESERVED

OURS = "https://6006-0123456789abcdef.box.example"
ORIGINS = Origins(OURS, "http://localhost:6006")
OTHER = "https://8000-0123456789abcdef.box.example"


def asked(*fields: tuple[str, str], upgrade: bool = False) -> list[tuple[str, str]]:
    told = to_program(fields, ORIGINS, RESERVED, upgrade=upgrade)
    assert told[:2] == [("Host", "localhost:6006"), ("X-Gradio-Server", OURS)]
    return told[2:]


def answered(*fields: tuple[str, str]) -> list[tuple[str, str]]:
    added = {"Content-Security-Policy", "Origin-Agent-Cluster", "Cross-Origin-Resource-Policy", "Referrer-Policy"}
    told = to_browser(fields, ORIGINS, RESERVED)
    assert {"Content-Security-Policy", "Origin-Agent-Cluster"} <= {name for name, _ in told}
    return [field for field in told if field[0] not in added]


def test_the_program_is_asked_by_its_own_name() -> None:
    assert asked(
        ("Host", "6006-0123456789abcdef.box.example"),
        ("Origin", OURS),
        ("Referer", f"{OURS}/#scalars"),
        ("Accept", "a"),
        ("Accept", "b"),
    ) == [
        ("Accept", "a"),
        ("Accept", "b"),
        ("Origin", "http://localhost:6006"),
        ("Referer", "http://localhost:6006/#scalars"),
        ("Connection", "close"),
    ]


@pytest.mark.parametrize(
    "field",
    [
        ("Cookie", "__Host-acp-gateway=secret; __host-ACP-gateway-preview=secret; acp-gateway-7080=secret"),
        ("Authorization", "Bearer acpgw_secret"),
        ("Referer", "https://box.example:7443/secret"),
        ("Referer", f"{OURS}.evil/secret"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("Forwarded", "for=10.0.0.1"),
        ("X-Gradio-Server", "https://evil.example"),
        ("Connection", "close"),
        ("Transfer-Encoding", "chunked"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "x"),
    ],
)
def test_nothing_of_the_gateway_or_of_the_connection_reaches_the_program(field: tuple[str, str]) -> None:
    assert asked(field) == [("Connection", "close")]


def test_headers_that_connection_names_are_left_out_and_the_programs_cookies_and_credentials_pass() -> None:
    fields = ("Connection", "X-Secret, keep-alive"), ("X-Secret", "x"), ("Cookie", "a=1; acp-gateway=2; b=3")
    basic = ("Authorization", "token tok")
    assert asked(*fields, basic)[:-1] == [basic, ("Cookie", "a=1; b=3")]


def test_a_websocket_is_asked_for_again() -> None:
    assert asked(("Upgrade", "websocket"), ("Connection", "Upgrade"), upgrade=True) == [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
    ]


@pytest.mark.parametrize(
    ("cookie", "told"),
    [
        ("a=1; Path=/; HttpOnly", "a=1; Path=/; HttpOnly"),
        ("a=1; Domain=box.example; Path=/", "a=1; Path=/"),
        ("a=1;DOMAIN=.box.example", "a=1"),
        ("__Host-acp-gateway=evil; Secure; Path=/", None),
        (" __hOST-acp-gateway-preview=evil", None),
        ("acp-gateway-7080=evil", None),
        ("__Secure-acp-gateway=evil", None),
    ],
)
def test_a_cookie_is_for_this_host_and_never_one_of_the_gateway(cookie: str, told: str | None) -> None:
    assert answered(("Set-Cookie", cookie)) == ([] if told is None else [("Set-Cookie", told)])


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("/lab", "/lab"),
        ("http://localhost:6006/lab?next=1", f"{OURS}/lab?next=1"),
        ("http://127.0.0.1:6006", OURS),
        ("http://localhost:6007/", "http://localhost:6007/"),
        ("http://localhost:60061/", "http://localhost:60061/"),
        ("https://example.org/", "https://example.org/"),
    ],
)
def test_a_redirect_to_the_program_is_one_to_the_preview(place: str, told: str) -> None:
    assert answered(("Location", place)) == [("Location", told)]


@pytest.mark.parametrize(
    "name", ["Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "Connection", "Transfer-Encoding"]
)
def test_what_holds_for_more_than_the_preview_is_left_out(name: str) -> None:
    assert answered((name, "x")) == []


def test_other_origins_may_neither_frame_nor_load_it_unless_the_program_says_so() -> None:
    told = dict(to_browser([("cross-origin-resource-policy", "cross-origin")], ORIGINS, RESERVED))
    assert told["Cross-Origin-Resource-Policy"] == "cross-origin"
    assert told["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert dict(to_browser([], ORIGINS, RESERVED))["Cross-Origin-Resource-Policy"] == "same-origin"


LINK = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize(
    ("method", "headers", "is_foreign"),
    [
        ("GET", {}, False),
        ("POST", {"origin": OURS, "sec-fetch-site": "same-origin"}, False),
        ("GET", {"sec-fetch-site": "same-site", **LINK}, False),
        ("GET", {"sec-fetch-site": "cross-site", **LINK}, False),
        ("GET", {"origin": OTHER}, True),
        ("GET", {"origin": "null"}, True),
        ("POST", {"sec-fetch-site": "same-site", **LINK}, True),
        ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, True),
        ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, True),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "websocket"}, True),
    ],
)
def test_a_request_of_another_page_is_told_from_a_link_that_is_followed(
    method: str, headers: dict[str, str], is_foreign: bool
) -> None:
    assert bool(foreign(method, headers, OURS)) == is_foreign


def test_of_two_cookies_of_the_preview_neither_counts() -> None:
    assert cookie_of(["a=1; b=2"], "b") == "2"
    assert cookie_of(["b=1", "b=2"], "b") is None
    assert cookie_of(["bb=1; b"], "b") is None
    assert cookie_of([], "b") is None
