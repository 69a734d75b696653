"""Handshake parameters: names of hosts and pages, proxies, and a hello that hides its token.

That the rest is read rightly is shown at the doors themselves, in test_listeners.
"""

import ipaddress
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.datastructures import Headers

from acp_gateway.config.listeners import Network
from acp_gateway.errors import Forbidden
from acp_gateway.server.hello import (
    HOPS,
    BadHello,
    BadRequest,
    Hello,
    ResumeRequest,
    check_host,
    check_origin,
    client_address,
    is_trusted,
    read_bearer,
    read_hello,
    read_page,
)

PROXIES: tuple[Network, ...] = (
    ipaddress.ip_network("127.0.0.1"),
    ipaddress.ip_network("10.0.0.0/8"),
    ipaddress.ip_network("2001:db8::/32"),
)

IN_HEADERS = st.characters(codec="latin-1", exclude_categories=["Cc"]) | st.sampled_from("\t\x80\x9b\x9f")
"""Headers that the library accepts."""


def test_a_hello_does_not_show_its_token() -> None:
    shown = repr(Hello(token="acpgw_secret", agent="x"))
    assert "agent='x'" in shown
    assert "acpgw_secret" not in shown


# The hello


def first_line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "_acp-gateway/hello"} | members).encode()


def test_a_hello_is_read_with_its_id_as_it_was_spelled() -> None:
    line = b' {"params" : {"token":"t","resume":{}}, "id" :1.0e0,"method":"_acp-gateway/hello"} '
    assert read_hello(line) == (b"1.0e0", Hello(token="t", resume=ResumeRequest()))
    assert read_hello(first_line(id=None)) == (b"null", Hello())


@pytest.mark.parametrize(
    ("params", "place", "known"),
    [
        ({"Observe": True}, "params", "token, node, agent, session, observe, control, resume, challenge"),
        ({"\x1b[2J acpgw_secret": 1}, "params", "token, node, agent, session, observe, control, resume, challenge"),
        ({"resume": {"Received": 0}}, "params.resume", "connectionId, received, part"),
    ],
)
def test_a_member_of_a_hello_that_is_not_known_is_refused_with_those_that_are(
    params: dict[str, Any], place: str, known: str
) -> None:
    with pytest.raises(BadHello) as refused:
        read_hello(first_line(params=params))
    assert str(refused.value) == (f"{place} has a member that is not known here; there are {known}, spelled like this")
    assert (refused.value.code, refused.value.request_id) == (-32602, b"1")


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":1,"id":1,"method":"_acp-gateway/hello"}',
        b'{"id":1,"method":"_acp-gateway/hello","params":{"token":"a","token":"b"}}',
        b'{"id":1,"method":"_acp-gateway/hello","params":{"token":"a","\\u0074oken":"b"}}',
        b'{"id":1,"method":"_acp-gateway/hello","params":{"resume":{"received":0,"received":0}}}',
    ],
)
def test_a_member_of_a_hello_that_is_there_twice_is_refused(line: bytes) -> None:
    with pytest.raises(BadHello, match="there twice"):
        read_hello(line)


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,idmethoparsx\\ud80 01e', max_size=200).map(str.encode))
def test_any_first_line_is_a_hello_or_refused(line: bytes) -> None:
    with pytest.raises(BadHello) as refused:
        read_hello(line)
    assert str(refused.value).isprintable()


# Host


def hosts(*names: str) -> Headers:
    return Headers([("Host", name) for name in names])


@pytest.mark.parametrize(
    "host",
    [
        *(
            "localhost",
            "localhost:7443",
            "LocalHost:1",
            "localhost.",
            "localhost.:80",
            "a.localhost",
            "a.b.localhost:1",
        ),
        *("127.0.0.1", "127.0.0.1:7443", "127.255.1.2", "[::1]", "[::1]:7443", "localhost:", "gpu.example", "gpu:1"),
        *("GPU.example:7443", "gpu.example."),
    ],
)
def test_on_loopback_its_own_names_and_those_that_are_listed_are_right(host: str) -> None:
    check_host(hosts(host), ("gpu.example", "gpu"), loopback=True)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7443", "127.0.0.1.evil.example", "localhost.evil.example", "evil-localhost"),
        *("0.0.0.0:1", "192.0.2.1", "2130706433", "127.1", "127.0.0.01", "0x7f000001", "[::ffff:127.0.0.1]", "[::]"),
        *("", " ", ":7443", ".", "localhost..", "localhost, evil.example", "user@localhost", "localhost/x", "[::1"),
        *("localhost:7443:7443", "localhost:x", "localhost:7443000", "[localhost]", "::1", "löcalhost", "localhost\t"),
        *("sub.gpu.example", "x" * 300, ".localhost:x"),
    ],
)
def test_a_page_whose_own_name_leads_to_loopback_gives_itself_away(host: str) -> None:
    with pytest.raises(Forbidden):
        check_host(hosts(host), ("gpu.example",), loopback=True)


@pytest.mark.parametrize("names", [(), ("localhost", "localhost"), ("localhost", "evil.example")])
@pytest.mark.parametrize("loopback", [True, False])
def test_a_request_names_one_host(names: tuple[str, ...], loopback: bool) -> None:
    with pytest.raises(Forbidden, match="exactly one Host"):
        check_host(hosts(*names), (), loopback=loopback)


def test_off_loopback_every_name_is_right_where_none_is_listed() -> None:
    check_host(hosts("anything.example:1"), (), loopback=False)
    check_host(hosts("gpu.example:1"), ("gpu.example",), loopback=False)
    for host in ("localhost", "other.example", "127.0.0.1"):
        with pytest.raises(Forbidden):
            check_host(hosts(host), ("gpu.example",), loopback=False)


def test_who_is_refused_for_a_name_learns_where_to_add_it() -> None:
    with pytest.raises(Forbidden, match=r'"gpu\.example" here; add it to allowed_hosts of the \[\[listen\]\] section'):
        check_host(hosts("GPU.example:7443"), (), loopback=True)


@given(st.text(alphabet=IN_HEADERS))
def test_what_a_refusal_repeats_of_a_name_is_fit_for_a_log(host: str) -> None:
    with pytest.raises(Forbidden) as refused:
        check_host(hosts(f"evil.{host}.example"), (), loopback=True)
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


# Headers that may be there once


@pytest.mark.parametrize(
    ("authorization", "protocols", "token"),
    [
        (["Bearer a"], [], "a"),
        (["bearer  a "], ["acp.v1, acp.bearer.a"], "a"),
        ([], ["acp.v1", "acp.bearer.a"], "a"),
        ([], ["acp.v1, bearer.a"], "a"),
        ([], ["acp.bearer.a"], None),
        ([], ["bearer.a"], None),
        ([], ["acp.v1, bearer.a, acp.bearer.a"], BadRequest),
        (["Basic YTpi"], ["acp.v1, acp.bearer.a"], None),
        (["Bearer a", "Bearer a"], [], BadRequest),
        (["Bearer a", "Basic YTpi"], [], BadRequest),
        ([], ["acp.v1, acp.bearer.a, acp.bearer.a"], BadRequest),
        ([], ["acp.v1, acp.bearer.a", "acp.bearer.b"], BadRequest),
        (["Bearer a"], ["acp.v1, acp.bearer.b"], BadRequest),
    ],
)
def test_a_request_shows_one_token(
    authorization: list[str], protocols: list[str], token: str | type[BadRequest] | None
) -> None:
    names = [("Authorization", value) for value in authorization]
    headers = Headers([*names, *(("Sec-WebSocket-Protocol", value) for value in protocols)])
    if token is BadRequest:
        with pytest.raises(BadRequest):
            read_bearer(headers)
    else:
        assert read_bearer(headers) == token


# Origin


def test_only_a_page_that_is_listed_may_connect() -> None:
    allowed = ("https://editor.example",)
    check_origin(Headers(), ())
    check_origin(Headers(Origin=allowed[0]), allowed)
    for origins in (["null"], [""], ["http://localhost"], [*allowed, *allowed]):
        with pytest.raises(Forbidden):
            check_origin(Headers([("Origin", origin) for origin in origins]), allowed)


# X-Forwarded-For


def forwarded(*values: str) -> Headers:
    return Headers([("X-Forwarded-For", value) for value in values])


@pytest.mark.parametrize(
    ("peer", "values", "address"),
    [
        pytest.param("192.0.2.1", ["198.51.100.7"], "192.0.2.1", id="a stranger is not believed"),
        pytest.param("127.0.0.1", [], "127.0.0.1", id="nothing is said"),
        pytest.param("127.0.0.1", ["198.51.100.7"], "198.51.100.7", id="a proxy is"),
        pytest.param("127.0.0.1", ["203.0.113.9, 198.51.100.7"], "198.51.100.7", id="what the client made up"),
        pytest.param("127.0.0.1", ["203.0.113.9", "198.51.100.7"], "198.51.100.7", id="in several headers"),
        pytest.param("127.0.0.1", ["198.51.100.7, 10.1.2.3"], "198.51.100.7", id="two proxies"),
        pytest.param("127.0.0.1", ["198.51.100.7,10.1.2.3 ,\t10.9.9.9"], "198.51.100.7", id="three proxies"),
        pytest.param("127.0.0.1", ["127.0.0.1, 198.51.100.7"], "198.51.100.7", id="a proxy's name made up"),
        pytest.param("127.0.0.1", ["10.0.0.1"], "10.0.0.1", id="nothing but proxies"),
        pytest.param("127.0.0.1", ["198.51.100.7:4711"], "198.51.100.7", id="with a port"),
        pytest.param("127.0.0.1", ["[2001:db9::1]:4711"], "2001:db9::1", id="IPv6 with a port"),
        pytest.param("127.0.0.1", ["2001:DB9:0::1"], "2001:db9::1", id="IPv6"),
        pytest.param("2001:db8::5", ["198.51.100.7"], "198.51.100.7", id="a proxy with IPv6"),
        pytest.param("::ffff:127.0.0.1", ["198.51.100.7"], "198.51.100.7", id="a proxy at a socket for both"),
        pytest.param("127.0.0.1", ["unknown"], "127.0.0.1", id="a word"),
        pytest.param("127.0.0.1", ["198.51.100.7, "], "127.0.0.1", id="an empty end"),
        pytest.param("127.0.0.1", ["198.51.100.7, x, 10.1.2.3"], "10.1.2.3", id="a proxy that says nonsense"),
        pytest.param("127.0.0.1", ["fe80::1%\x9b31m"], "127.0.0.1", id="a scope"),
        pytest.param("127.0.0.1", ["198.51.100.7;rm"], "127.0.0.1", id="something behind it"),
        pytest.param("127.0.0.1", ["010.0.0.1"], "127.0.0.1", id="octal"),
        pytest.param("", ["198.51.100.7"], "", id="no-address"),
    ],
)
def test_the_client_is_the_first_from_the_right_who_is_not_a_trusted_proxy(
    peer: str, values: list[str], address: str
) -> None:
    assert client_address(peer, forwarded(*values), PROXIES) == address


def test_without_trusted_proxies_forwarded_addresses_are_ignored() -> None:
    assert client_address("127.0.0.1", forwarded("198.51.100.7"), ()) == "127.0.0.1"


def test_a_chain_of_proxies_is_not_followed_for_ever() -> None:
    chain = ", ".join(["198.51.100.7", *["10.0.0.1"] * HOPS])
    assert client_address("127.0.0.1", forwarded(chain), PROXIES) == "10.0.0.1"


@given(st.lists(st.text(alphabet=IN_HEADERS), max_size=4))
def test_whatever_a_client_sends_its_address_is_one(values: list[str]) -> None:
    found = client_address("127.0.0.1", forwarded(*values), PROXIES)
    assert str(ipaddress.ip_address(found)) == found
    assert is_trusted("127.0.0.1", PROXIES)


def test_a_page_is_named_once_by_letters_and_digits() -> None:
    assert read_page("observe=1") is None
    assert read_page("page=0123456789abcdef&observe=1") == "0123456789abcdef"
    for query in ("page=", "page=short", "page=0123456789abcde/", "page=" + "x" * 65, "page=0123456789abcdef" * 2):
        with pytest.raises(BadRequest, match="names a page"):
            read_page(query.replace("fpage", "f&page"))
