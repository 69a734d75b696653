"""The cookie of a browser, and the origin that it is believed with."""

import pytest
from websockets.datastructures import Headers

from acp_gateway.config.listeners import PublicUrl
from acp_gateway.errors import Forbidden
from acp_gateway.server.hello import BadRequest
from acp_gateway.server.http.cookies import Site, check_page, site_of

SITE = Site(True, "box.example:7443")


@pytest.mark.parametrize(
    ("host", "tls", "origin", "cookie_name"),
    [
        ("box.example:7443", True, "https://box.example:7443", "__Host-acp-gateway"),
        ("BOX.example", True, "https://box.example", "__Host-acp-gateway"),
        ("localhost:7443", True, "https://localhost:7443", "__Host-acp-gateway"),
        ("localhost:7443", False, "http://localhost:7443", "acp-gateway-7443"),
        ("127.0.0.1", False, "http://127.0.0.1", "acp-gateway-80"),
        ("[::1]:8080", False, "http://[::1]:8080", "acp-gateway-8080"),
        ("[::1]", False, "http://[::1]", "acp-gateway-80"),
        ("box.example", False, "https://box.example", "__Host-acp-gateway"),  # Behind a proxy that ends TLS.
        ("localhost.example:80", False, "https://localhost.example:80", "__Host-acp-gateway"),
    ],
)
def test_the_cookie_is_secure_unless_the_host_is_loopback_in_plain_text(
    host: str, tls: bool, origin: str, cookie_name: str
) -> None:
    site = site_of(Headers(Host=host), tls=tls)
    assert (site.origin, site.cookie_name) == (origin, cookie_name)


@pytest.mark.parametrize(
    ("url", "headers", "origin", "cookie_name"),
    [
        ("https://gpu.example", {"Host": "gpu.example"}, "https://gpu.example", "__Host-acp-gateway"),
        ("https://gpu.example/a/b", {"Host": "gpu.example"}, "https://gpu.example", "__Host-acp-gateway+a+b"),
        # The proxy has put its own name for the gateway in the place of the client's.
        (
            "https://gpu.example/a",
            {"Host": "127.0.0.1:7080", "Origin": "https://gpu.example"},
            "https://gpu.example",
            "__Host-acp-gateway+a",
        ),
        ("https://[::1]:8443/a", {"Host": "[::1]:8443"}, "https://[::1]:8443", "__Host-acp-gateway+a"),
        ("http://localhost:8080/a", {"Host": "localhost:8080"}, "http://localhost:8080", "acp-gateway-8080+a"),
        # Another site of the same listener: directly, or a foreign page.
        (
            "https://gpu.example/a",
            {"Host": "localhost:7080", "Origin": "http://localhost:7080"},
            "http://localhost:7080",
            "acp-gateway-7080",
        ),
        (
            "https://gpu.example/a",
            {"Host": "127.0.0.1:7080", "Origin": "https://evil.example"},
            "http://127.0.0.1:7080",
            "acp-gateway-7080",
        ),
    ],
)
def test_the_site_is_that_of_the_public_url_by_its_host_or_its_origin(
    url: str, headers: dict[str, str], origin: str, cookie_name: str
) -> None:
    site = site_of(Headers(**headers), tls=False, public=PublicUrl.parse(url))
    assert (site.origin, site.cookie_name) == (origin, cookie_name)


def test_the_cookie_of_a_path_is_for_the_whole_host_as_its_prefix_demands() -> None:
    cookie = Site(True, "gpu.example", "/gateway").set_cookie("v", 60.0)
    assert cookie == "__Host-acp-gateway+gateway=v; Secure; HttpOnly; SameSite=Strict; Path=/; Max-Age=60"


def test_the_attributes_of_a_secure_cookie() -> None:
    assert SITE.set_cookie("v", 60.0) == ("__Host-acp-gateway=v; Secure; HttpOnly; SameSite=Strict; Path=/; Max-Age=60")


def test_the_attributes_of_a_cookie_on_loopback() -> None:
    site = Site(False, "localhost:7443")
    assert site.set_cookie("v", 60.0) == "acp-gateway-7443=v; HttpOnly; SameSite=Strict; Path=/; Max-Age=60"


@pytest.mark.parametrize(
    ("cookies", "value"),
    [
        ([], None),
        (["__Host-acp-gateway=v"], "v"),
        (["a=b; __Host-acp-gateway=v;c"], "v"),
        (["a=b", "__Host-acp-gateway=v"], "v"),
        (["__Host-acp-gateway="], ""),
        (["__Host-acp-gateway"], None),
        (["__host-acp-gateway=v"], None),
        (["acp-gateway=v; acp-gateway-7443=v; x__Host-acp-gateway=v"], None),
        (["a=__Host-acp-gateway=v"], None),
    ],
)
def test_the_cookie_is_read_by_its_exact_name(cookies: list[str], value: str | None) -> None:
    assert SITE.read_cookie(Headers([("Cookie", cookie) for cookie in cookies])) == value


@pytest.mark.parametrize(
    "cookies",
    [
        ["__Host-acp-gateway=v; __Host-acp-gateway=w"],
        ["__Host-acp-gateway=v", "__Host-acp-gateway=v"],
        ["__Host-acp-gateway=; __Host-acp-gateway=v"],
    ],
)
def test_two_cookies_of_the_name_are_refused(cookies: list[str]) -> None:
    with pytest.raises(BadRequest, match="more than one cookie __Host-acp-gateway"):
        SITE.read_cookie(Headers([("Cookie", cookie) for cookie in cookies]))


def test_the_origin_of_the_site_and_listed_ones_are_accepted() -> None:
    check_page(Headers(Origin="https://box.example:7443"), (), SITE)
    check_page(Headers(Origin="https://other.example"), ("https://other.example",), SITE)


@pytest.mark.parametrize(
    "origins",
    [
        [],
        ["null"],
        [""],
        ["https://evil.example"],
        ["https://box.example"],
        ["https://box.example:7444"],
        ["http://box.example:7443"],
        ["https://sub.box.example:7443"],
        ["https://box.example:7443.evil.example"],
        ["https://box.example:7443/"],
        ["https://box.example:7443", "https://box.example:7443"],
        ["https://box.example:7443, https://evil.example"],
    ],
)
def test_any_other_origin_is_refused_and_so_is_its_absence(origins: list[str]) -> None:
    with pytest.raises(Forbidden, match="Origin"):
        check_page(Headers([("Origin", origin) for origin in origins]), (), SITE)
