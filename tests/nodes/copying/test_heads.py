"""The heads of requests and responses that pass through a gateway: known headers, repeated ones as they are."""

import pytest

from acp_gateway.errors import ProtocolError
from acp_gateway.nodes.copying.heads import HARMLESS, request_fields, response_fields

CREDENTIALS = [
    ("Authorization", "Bearer acpgw_secret"),
    ("Cookie", "acp-gateway-1=secret"),
    ("Proxy-Authorization", "Basic secret"),
    ("Acp-Gateway-Challenge", "secret"),
]
SMUGGLED = [
    ("Acp-Gateway-For", "eyJ9"),
    ("acp-gateway-path", "0123456789abcdef"),
    ("ACP-GATEWAY-REQUEST", "1"),
    ("Host", "elsewhere"),
    ("Origin", "https://evil.example"),
    ("X-Forwarded-For", "127.0.0.1"),
    ("Forwarded", "for=127.0.0.1"),
    ("Connection", "Acp-Gateway-Resume"),
    ("Transfer-Encoding", "chunked"),
    ("Content-Length", "5"),
    ("Upgrade", "h2c"),
    ("TE", "trailers"),
    ("Sec-WebSocket-Extensions", "permessage-deflate"),
    ("X-Unknown", "1"),
]


@pytest.mark.parametrize("field", CREDENTIALS + SMUGGLED)
def test_what_is_between_a_client_and_its_front_does_not_pass(field: tuple[str, str]) -> None:
    assert request_fields([field, ("Accept", "text/event-stream")]) == [("Accept", "text/event-stream")]


def test_what_a_node_decides_by_passes_as_it_is_also_if_it_is_repeated() -> None:
    fields = [
        ("Acp-Connection-Id", "a"),
        ("acp-connection-id", "b"),
        ("Acp-Gateway-Resume", "3"),
        ("Acp-Gateway-Part", "10 00000000"),
        ("Sec-WebSocket-Key", "AAAA"),
    ]
    assert request_fields(fields) == fields


@pytest.mark.parametrize(
    ("offered", "passed"),
    [
        ("acp.v1", ["acp.v1"]),
        ("acp.v1, acp.bearer.secret", ["acp.v1"]),
        ("bearer.secret,acp.v1", ["acp.v1"]),
        ("acp.bearer.secret", []),
        ("chat", []),
    ],
)
def test_no_token_among_the_subprotocols_passes(offered: str, passed: list[str]) -> None:
    assert [value for _, value in request_fields([("Sec-WebSocket-Protocol", offered)])] == passed


def test_a_response_brings_no_cookie_no_rights_of_pages_and_no_page() -> None:
    fields = {
        "set-cookie": "acp-gateway-1=x",
        "access-control-allow-origin": "*",
        "location": "https://evil.example",
        "connection": "close",
        "transfer-encoding": "chunked",
        "content-security-policy": "default-src *",
        "content-type": "application/json",
        "acp-gateway": "busy",
    }
    assert response_fields(fields) == {"Content-Type": "application/json", "Acp-Gateway": "busy"}
    assert "sandbox" in HARMLESS["Content-Security-Policy"]


@pytest.mark.parametrize("character", ["\0", "\b", "\n", "\x1b", "\x7f"])
def test_a_control_character_in_what_passes_to_a_client_is_an_error(character: str) -> None:
    fields = {"content-type": f"text/plain{character}", "etag": '"a"'}
    with pytest.raises(ProtocolError, match="Content-Type"):
        response_fields(fields)


def test_a_tab_and_other_letters_pass_to_a_client_and_what_does_not_pass_is_not_looked_at() -> None:
    fields = {"etag": '"a\tb"', "content-disposition": "é", "x-unknown": "\x1b"}
    assert response_fields(fields) == {"Etag": '"a\tb"', "Content-Disposition": "é"}
