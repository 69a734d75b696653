import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.config.addresses import DEFAULT_PORT, Address, parse_address, parse_target
from acp_gateway.errors import UsageError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("wss://host.example", Address("wss", "host.example", 443, "/acp")),
        ("ws://host.example", Address("ws", "host.example", 80, "/acp")),
        ("tcp://host.example", Address("tcp", "host.example", 7443, "")),
        ("tcp+tls://host.example", Address("tcp+tls", "host.example", 7443, "")),
        ("unix:///run/acp/socket", Address("unix", "", 0, "/run/acp/socket")),
        ("unix:///Users/ann/two words", Address("unix", "", 0, "/Users/ann/two words")),
        ("wss://127.0.0.1:0", Address("wss", "127.0.0.1", 0, "/acp")),
        ("wss://host.example:8443/", Address("wss", "host.example", 8443, "/acp")),
        ("wss://host.example/box/acp", Address("wss", "host.example", 443, "/box/acp")),
        ("tcp://host.example:1/", Address("tcp", "host.example", 1, "")),
        ("https://host.example", Address("wss", "host.example", 443, "/acp")),
        ("HTTP://127.0.0.1:0/", Address("ws", "127.0.0.1", 0, "/acp")),
        ("WSS://Host.Example:65535", Address("wss", "host.example", 65535, "/acp")),
        ("wss://[::1]:7443", Address("wss", "::1", 7443, "/acp")),
        ("tcp://[0:0::1]", Address("tcp", "::1", 7443, "")),
        ("wss://bücher.example", Address("wss", "bücher.example", 443, "/acp")),
    ],
)
def test_a_url_names_an_address(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("box", Address("wss", "box", DEFAULT_PORT, "/acp")),
        ("box.example:8443", Address("wss", "box.example", 8443, "/acp")),
        ("192.0.2.1", Address("wss", "192.0.2.1", DEFAULT_PORT, "/acp")),
        ("[::1]:8443", Address("wss", "::1", 8443, "/acp")),
        ("[2001:DB8::1]", Address("wss", "2001:db8::1", DEFAULT_PORT, "/acp")),
        ("::1", Address("wss", "::1", DEFAULT_PORT, "/acp")),
        ("wss://box.example", Address("wss", "box.example", 443, "/acp")),
        ("https://box.example/v1/acp", Address("https", "box.example", 443, "/v1/acp")),
        ("HTTP://127.0.0.1:3000", Address("http", "127.0.0.1", 3000, "/acp")),
        ("unix:///run/acp/socket", Address("unix", "", 0, "/run/acp/socket")),
        ("ssh://box", Address("ssh", "box", 0, "")),
        ("SSH://Ann@My_Box-1.example:2222/", Address("ssh", "My_Box-1.example", 2222, "", "Ann")),
        ("ssh://ann@corp.example@box", Address("ssh", "box", 0, "", "ann@corp.example")),
        ("ssh://box/run/my socket", Address("ssh", "box", 0, "/run/my socket")),
        ("ssh://ann@[2001:DB8::1]:22/s", Address("ssh", "2001:db8::1", 22, "/s", "ann")),
    ],
)
def test_a_target_is_a_url_or_a_host_with_perhaps_a_port(text: str, address: Address) -> None:
    assert parse_target(text) == address


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("box.example:7443", "is not a URL"),
        ("ssh://box", 'unknown scheme "ssh"; known are wss, ws, tcp, tcp+tls, unix, https, http'),
        ("http://", "names no valid host"),
        ("://box", "unknown scheme"),
        ("wss://", "names no valid host"),
        ("tcp://:7443", "0.0.0.0 or [::] listens on all addresses"),
        ("wss://two words", "names no valid host"),
        ("wss://100%", "names no valid host"),
        ("wss://box:port", "a port that is not a number"),
        ("wss://box:", "a port that is not a number"),
        ("wss://box:65536", "a port that is not a number"),
        ("wss://box:-1", "a port that is not a number"),
        ("wss://box:+1", "a port that is not a number"),
        ("wss://box:٣", "a port that is not a number"),
        ("wss://box:" + "9" * 5000, "a port that is not a number"),
        ("wss://::1", "stands in brackets"),
        ("wss://::1:7443", "stands in brackets"),
        ("wss://[::1", "stands in brackets"),
        ("wss://[::1]7443", "stands in brackets"),
        ("wss://[127.0.0.1]:7443", "not an IPv6 address"),
        ("wss://box/a b", "a space in its path"),
        ("wss://box/\x1b[31m", "cannot be printed"),
        ("tcp://box:1/path", "tcp takes none"),
        ("tcp+tls://box:1/path", "tcp+tls takes none"),
        ("unix://", "absolute path"),
        ("unix://relative/path", "absolute path"),
        ("unix:///run/", "absolute path"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_with_a_valid_example(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert message in str(caught.value)
    assert "; a valid one is " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no valid host"),
        ("box/acp", "neither a URL nor host[:port]"),
        ("./box", "neither a URL nor host[:port]"),
        ("two words", "names no valid host"),
        ("box\n", "neither a URL nor host[:port]"),
        ("box:port", "a port that is not a number"),
        ("box:0", "for listening only"),
        ("wss://box:0", "for listening only"),
        ("fe80::1::2", "stands in brackets"),
        ("shh://box", 'unknown scheme "shh"; known are wss, ws, tcp, tcp+tls, unix, https, http, ssh'),
        ("ssh://", "names no valid host"),
        ("ssh://ann@", "names no valid host"),
        ("ssh://-oProxyCommand=x", "names no valid host"),
        ("ssh://$(x)", "names no valid host"),
        ("ssh://a b", "names no valid host"),
        ("ssh://bücher.example", "names no valid host"),
        ("ssh://[fe80::1%$(x)]", "names no valid host"),
        ("ssh://[::1", "names no valid host"),
        ("ssh://[box]", "not an IPv6 address"),
        ("ssh://-lroot@box", "a user name that can't stand there"),
        ("ssh://@box", "a user name that can't stand there"),
        ("ssh://a;b@box", "a user name that can't stand there"),
        ("ssh://box:", "a port that is not a number"),
        ("ssh://box:0", "for listening only"),
        ("ssh://box/run/", "no absolute path of a socket"),
        ("ssh://box/\n", "cannot be printed"),
    ],
)
def test_what_is_wrong_with_a_target_is_said_with_a_valid_example(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert message in str(caught.value)
    assert "; a valid one is " in str(caught.value)


@pytest.mark.parametrize("example", ["wss", "ws", "tcp", "tcp+tls", "unix"])
def test_the_example_in_an_error_is_valid_and_of_the_scheme_that_was_given(example: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(f"{example}://x?y")
    assert parse_address(str(caught.value).rpartition(" ")[2]).scheme == example


@pytest.mark.parametrize(
    "text",
    [
        "wss://acpgw_secret@box",
        "wss://ann:acpgw_secret@box:7443",
        "wss://box?token=acpgw_secret",
        "wss://box/acp#acpgw_secret",
        "wss://ann:acpgw_secret@box?token=acpgw_secret",
        "unix://acpgw_secret@/run/socket",
        "unix:///run/socket?acpgw_secret",
        "https://ann:acpgw_secret@box",
        "ssh://box?acpgw_secret",
        "ssh://box/run/socket#acpgw_secret",
        "ann:acpgw_secret@box",
        "ann:acpgw_secret@box/acp",
        "box?token=acpgw_secret",
        "box#acpgw_secret",
    ],
)
def test_a_token_in_an_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert "secret" not in str(caught.value)
    assert "ann" not in str(caught.value)
    if not text.startswith("https"):
        assert "tokens do not belong" in str(caught.value)


def test_a_password_for_ssh_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="has a password") as caught:
        parse_target("ssh://ann:secret@box")
    assert "secret" not in str(caught.value)
    assert parse_target(str(caught.value).rpartition(" ")[2]).scheme == "ssh"


@pytest.mark.parametrize(
    "text", ["ssh://box", "ssh://ann@box", "ssh://Box:22", "ssh://ann@[::1]:22/run/socket", "ssh://[::1]/run/socket"]
)
def test_an_address_for_ssh_is_written_as_it_was_given(text: str) -> None:
    assert str(parse_target(text)) == text


@pytest.mark.parametrize(
    "text", ["ws://127.0.0.1", "ws://127.9.9.9", "tcp://[::1]", "ws://localhost:1", "ws://LOCALHOST", "unix:///s"]
)
def test_loopback_stays_on_this_machine(text: str) -> None:
    assert parse_address(text).loopback


@pytest.mark.parametrize(
    "text",
    ["ws://0.0.0.0", "ws://[::]", "ws://10.0.0.1", "ws://localhost.example", "ws://127.0.0.1.example", "ws://127.1"],
)
def test_everything_else_is_not_loopback(text: str) -> None:
    assert not parse_address(text).loopback


@pytest.mark.parametrize(
    ("text", "tls", "websocket"),
    [
        ("wss://box", True, True),
        ("ws://box", False, True),
        ("tcp+tls://box", True, False),
        ("tcp://box", False, False),
        ("unix:///s", False, False),
    ],
)
def test_a_scheme_says_whether_there_is_tls_and_websocket(text: str, tls: bool, websocket: bool) -> None:
    address = parse_address(text)
    assert (address.tls, address.websocket) == (tls, websocket)


@pytest.mark.parametrize(
    "url",
    ["wss://box.example:443/acp", "ws://[::1]:80/acp", "tcp://127.0.0.1:7443", "tcp+tls://box:1", "unix:///run/s"],
)
def test_an_address_is_printed_as_its_url(url: str) -> None:
    assert str(parse_address(url)) == url


@given(st.text() | st.from_regex(r"(wss|ws|tcp|tcp\+tls|unix)://.*", fullmatch=True))
def test_any_text_is_an_address_that_survives_printing_or_a_usage_error(text: str) -> None:
    try:
        address = parse_target(text)
    except UsageError:
        return
    assert parse_target(str(address)) == address


@pytest.mark.parametrize("text", ["a\nb", "wss://a\nb", "unix:///a\nb", "wss://b\u2028"])
def test_an_error_about_an_address_is_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "tls", "websocket", "may_lack_websocket"),
    [
        ("wss://box", True, True, False),
        ("https://box", True, True, True),
        ("http://box", False, True, True),
        ("ws://box", False, True, False),
        ("tcp+tls://box", True, False, False),
    ],
)
def test_only_targets_of_http_and_https_may_lack_a_websocket(
    text: str, tls: bool, websocket: bool, may_lack_websocket: bool
) -> None:
    address = parse_target(text)
    assert (address.tls, address.websocket, address.may_lack_websocket) == (tls, websocket, may_lack_websocket)


def test_a_target_of_https_can_not_have_port_0() -> None:
    with pytest.raises(UsageError, match="has port 0"):
        parse_target("https://box:0")
