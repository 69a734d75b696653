"""Cookies that are kept, sent and forgotten as RFC 6265 says."""

import pytest

from acp_gateway.client.http.cookies import MAX_COOKIES, MAX_ORIGINS, CookieJar, Origin

HERE = Origin("agents.example:8443", True)
PLAIN = Origin("agents.example:8443", False)


def sent(
    *cookies: str, path: str = "/v1/acp", origin: Origin = HERE, to: Origin | None = None, now: float = 0.0
) -> str | None:
    """Return the cookies of a request after a response has set these."""
    jar = CookieJar()
    for cookie in cookies:
        jar.store(origin, "/v1/acp", cookie, 0)
    return jar.header(to or origin, path, now).get("Cookie")


@pytest.mark.parametrize(
    ("cookies", "expected"),
    [
        (["a=1", "b=2; HttpOnly; SameSite=Lax"], "a=1; b=2"),
        (["a=1", "a=2"], "a=2"),
        (["a=1", "a=; Max-Age=0"], None),
        (["a=1", "b=2", "a=; Max-Age=0", "a=3"], "b=2; a=3"),
        (["a=1", "a=; Max-Age=-5"], None),
        (["a=1", "a=; Max-Age=0; Path=/"], "a=1"),
        (["a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT"], None),
        (["a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=5"], "a=1"),
        (["a=1; Expires=whenever"], "a=1"),
        (["a=1; Path=/v1", "b=1; Path=/v1/acp", "c=1; Path=/v1/"], "b=1; c=1; a=1"),
        (["a=1; Path=/v", "b=1; Path=/v1/acp/x"], None),
        (["a=1; Path=/", "a=2; Path=/v1"], "a=2; a=1"),
        (["a", "=1", "ä=1", "a=\x01"], None),
        (["a=" + "x" * 5000], None),
        (["a=1; Path=/" + "x" * 5000], None),
        (["a=1=2"], "a=1=2"),
        (["a=1; Domain=agents.example", "b=1; Domain=.Example"], "a=1; b=1"),
        (["a=1; Domain=other.example", "b=1; Domain=x.agents.example", "c=1; Domain=gents.example"], None),
    ],
)
def test_a_cookie_is_kept_as_set_cookie_says(cookies: list[str], expected: str | None) -> None:
    assert sent(*cookies) == expected


@pytest.mark.parametrize(("path", "expected"), [("/v1/other", "a=1"), ("/v1", "a=1"), ("/v10/acp", None), ("/", None)])
def test_a_cookie_without_a_path_is_for_the_directory_of_the_request(path: str, expected: str | None) -> None:
    assert sent("a=1", path=path) == expected


def test_a_cookie_without_a_path_is_for_all_paths_if_the_request_was_at_the_root() -> None:
    jar = CookieJar()
    jar.store(HERE, "/acp", "a=1", 0)
    assert jar.header(HERE, "/", 0) == {"Cookie": "a=1"}


def test_a_secure_cookie_is_not_taken_from_or_sent_to_a_server_without_tls() -> None:
    assert sent("a=1; Secure", "b=2", origin=PLAIN) == "b=2"
    assert sent("a=1; Secure") == "a=1"


@pytest.mark.parametrize("to", [PLAIN, Origin("agents.example", True), Origin("x.agents.example:8443", True)])
def test_a_cookie_is_sent_to_the_origin_that_has_set_it_only(to: Origin) -> None:
    assert sent("a=1; Domain=agents.example; Path=/", to=to) is None


@pytest.mark.parametrize("host", ["127.0.0.1:80", "[::1]:80"])
def test_an_address_has_no_parent_domain(host: str) -> None:
    origin = Origin(host, False)
    assert sent("a=1; Domain=0.1", "b=1; Domain=1]", origin=origin) is None
    assert sent(f"a=1; Domain={origin.domain}", origin=origin) == "a=1"


def test_a_cookie_expires_after_its_max_age() -> None:
    assert sent("a=1; Max-Age=10", now=9) == "a=1"
    assert sent("a=1; Max-Age=10", now=10) is None


def test_the_number_of_cookies_is_bounded() -> None:
    found = sent(*[f"c{number}=1" for number in range(MAX_COOKIES + 1)])
    assert found is not None
    assert found.startswith("c1=1; ")
    assert found.count(";") == MAX_COOKIES - 1


def test_the_number_of_origins_is_bounded() -> None:
    jar = CookieJar()
    origins = [Origin(f"host{number}", True) for number in range(MAX_ORIGINS + 1)]
    for origin in origins:
        jar.store(origin, "/acp", "a=1", 0)
    assert [bool(jar.header(origin, "/acp", 0)) for origin in origins] == [False] + [True] * MAX_ORIGINS
