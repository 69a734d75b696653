"""Browsers that sign in and out over HTTP, and use the endpoint by cookie."""

import ipaddress
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.datastructures import Headers

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.listeners import PublicUrl
from acp_gateway.config.load import ListenSection
from acp_gateway.errors import Forbidden
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security import token_format
from acp_gateway.security.browser_sessions import NO_BROWSER, NO_CODE
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_store import Token, TokenStore
from acp_gateway.server.hello import BadRequest
from acp_gateway.server.http.sign_in import Site, check_page, site_of
from acp_gateway.server.listener import Listener
from tests.kit.doubles import make_config
from tests.kit.echoing import WS, EchoingGateway, Response, ask, bearer, listening, port_of, upgrade
from tests.kit.http_client import NEW, Client, Http, Reply

JSON = "Content-Type: application/json"


class Book(Audit):
    """Keeps the entries in memory."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull), max_size=0, files=0)
        self.events: list[tuple[str, dict[str, Any]]] = []

    def record(self, event: str, **details: Any) -> None:
        self.events.append((event, details))


@dataclass
class Browser:
    """A browser at a listener, on a page of the gateway."""

    gateway: EchoingGateway
    listener: Listener
    token: Token
    cookie: str = ""

    @property
    def host(self) -> str:
        return f"localhost:{port_of(self.listener)}"

    @property
    def origin(self) -> str:
        return f"Origin: http://{self.host}"

    def code(self, **options: Any) -> str:
        return self.gateway.browsers.make_code(self.token, "ann", label="phone", **options)[1]

    async def post(self, path: str, body: Any, *headers: str, method: str = "POST") -> Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return await ask(
            self.listener, path, *headers, f"Content-Length: {len(text)}", method=method, host=self.host, body=text
        )

    async def log_in(self, code: str | None = None, *headers: str) -> Response:
        fields = headers or (self.origin, JSON)
        response = await self.post("/login", {"code": self.code() if code is None else code}, *fields)
        for header in response.headers.get("set-cookie", []):
            self.cookie = f"Cookie: {header.partition(';')[0]}"
        return response

    async def log_out(self, *headers: str) -> Response:
        return await self.post("/logout", {}, *(headers or (self.origin, JSON, self.cookie)))

    async def connect(self, *headers: str, target: str = "/acp") -> Response:
        """Ask for a WebSocket."""
        return await ask(self.listener, target, *upgrade(*headers), host=self.host)

    async def status(self) -> int:
        return (await self.connect(self.origin, self.cookie)).status


@asynccontextmanager
async def browsing(gateway: EchoingGateway, section: ListenSection | str = WS) -> AsyncIterator[Browser]:
    token = gateway.tokens.create("laptop", "ann", None)[0]
    async with listening(section, gateway) as listener:
        yield Browser(gateway, listener, token)


# Signing in


async def test_a_code_is_exchanged_for_a_cookie_that_opens_the_endpoint(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as browser:
        response = await browser.log_in()
        assert (response.status, json.loads(response.body)) == (
            200,
            {"identity": "ann", "role": "controller", "session": None},
        )
        (header,) = response.headers["set-cookie"]
        port = port_of(browser.listener)
        assert header.startswith(f"acp-gateway-{port}=acpgwb_")
        assert header.endswith("; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000")
        assert await browser.status() == 101
    (served,) = gateway.served
    assert (served.access.identity, served.access.token) == ("ann", browser.token)
    assert served.access.browser is not None


async def test_a_proxy_that_ends_tls_gets_a_secure_cookie_for_its_name(gateway: EchoingGateway) -> None:
    section = ListenSection(url=WS, allowed_hosts=("box.example",))
    async with browsing(gateway, section) as browser:
        fields = ("Origin: https://box.example", JSON, "Content-Length: 56")
        body = json.dumps({"code": browser.code()})
        fields = (*fields[:2], f"Content-Length: {len(body)}")
        response = await ask(browser.listener, "/login", *fields, method="POST", host="box.example", body=body)
        (header,) = response.headers["set-cookie"]
        assert header.startswith("__Host-acp-gateway=acpgwb_")
        assert "; Secure; " in header


async def test_over_tls_the_cookie_is_secure_and_http_is_another_site(gateway: EchoingGateway, tmp_path: Path) -> None:
    created = create_certificate(["localhost"], tmp_path / "tls")
    section = ListenSection(url="wss://127.0.0.1:0", cert=created.cert_path, key=created.key_path)
    async with browsing(gateway, section) as browser:
        context = ssl.create_default_context(cafile=created.cert_path)

        async def post(path: str, body: Any, **headers: str) -> Reply:
            plain = await trio.open_tcp_stream("127.0.0.1", port_of(browser.listener))
            async with trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True) as stream:
                fields = {"Content-Type": "application/json", "Host": browser.host, **headers}
                return await Http(stream).ask("POST", path, body, **fields)

        own, http = f"https://{browser.host}", f"http://{browser.host}"
        assert (await post("/login", {"code": browser.code()}, Origin=http)).status == 403
        signed_in = await post("/login", {"code": browser.code()}, Origin=own)
        cookie, _, attributes = signed_in.headers["set-cookie"].partition("; ")
        assert cookie.startswith("__Host-acp-gateway=acpgwb_")
        assert attributes == "Secure; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000"
        statuses = [(await post("/acp", {}, Origin=origin, Cookie=cookie)).status for origin in (own, http, "null")]
        # Authenticated, and no `initialize`; then two foreign sites.
        assert statuses == [400, 403, 403]


async def test_a_wrong_used_or_expired_code_is_refused_in_the_same_words(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browsing(gateway) as browser:
        used = browser.code()
        await browser.log_in(used)
        gone = browser.code()
        gateway.browsers._end(lambda record: record.sha256 == token_format.digest(gone))
        answers = [await browser.log_in(code) for code in (used, gone, token_format.mint("code"), "x", "")]
    assert {(answer.status, answer.body) for answer in answers} == {(401, f"{NO_CODE}\n")}
    assert all("set-cookie" not in answer.headers for answer in answers)
    assert "acp-gateway open" in NO_CODE


@pytest.mark.usefixtures("hasty")
async def test_a_wrong_code_counts_as_failed_attempt_from_whatever_address_it_comes(
    tmp_path: Path, spawner: Spawner
) -> None:
    gateway = EchoingGateway(tmp_path / "state", spawner, trusted_proxies=(ipaddress.ip_network("127.0.0.1"),))
    gateway.config = replace(gateway.config, limits=LimitsSection(failed_attempts=2))
    async with browsing(gateway) as browser:
        addresses = [f"X-Forwarded-For: 192.0.2.{number}" for number in range(3)]
        answers = [await browser.log_in("acpgwp_wrong", browser.origin, JSON, address) for address in addresses]
    assert [answer.status for answer in answers] == [401, 401, 429]


async def test_wrong_cookies_count_as_failed_attempts(gateway: EchoingGateway) -> None:
    gateway.config = replace(gateway.config, limits=LimitsSection(failed_attempts=2))
    async with browsing(gateway) as browser:
        cookie = f"Cookie: acp-gateway-{port_of(browser.listener)}={token_format.mint('browser')}"
        answers = [await browser.connect(browser.origin, cookie) for _ in range(3)]
    assert [answer.status for answer in answers] == [401, 401, 429]
    assert answers[0].body == f"{NO_BROWSER}\n"


@pytest.mark.parametrize(
    "body",
    [
        *("", "{", "[]", '"x"', "{}", '{"code":1}', '{"code":null}', '{"code":"x","a":1}', "code=x", "[" * 900, "\xff"),
        # Which of two a filter in front has read can't be told.
        *('{"code":"x","code":"{code}"}', '{"code":"{code}","code":"{code}"}', '{"code":"x","\\u0063ode":"{code}"}'),
        '{"Code":"x","code":"{code}"}',
    ],
)
async def test_a_login_that_is_not_understood_is_refused_without_quoting_it(body: str, gateway: EchoingGateway) -> None:
    async with browsing(gateway) as browser:
        code = browser.code()
        response = await browser.post("/login", body.replace("{code}", code), browser.origin, JSON)
        assert (response.status, response.body) == (400, 'the body must be {"code": "acpgwp_…"}\n')
        assert (await browser.log_in(code)).status == 200


async def test_a_login_in_chunks_is_refused_before_any_of_them_is_read(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as browser:
        fields = (browser.origin, JSON, "Transfer-Encoding: chunked")
        response = await ask(browser.listener, "/login", *fields, method="POST", host=browser.host, body="1\r\n{\r\n")
    assert (response.status, response.headers["cache-control"]) == (411, ["no-store"])


# Requests of other pages


FOREIGN = [
    (),
    ("Origin: null",),
    ("Origin: https://evil.example",),
    ("Origin: http://localhost",),
    ("Origin: http://localhost:1",),
    ("Origin: https://localhost:{port}",),
    ("Origin: http://sub.localhost:{port}",),
    ("Origin: http://127.0.0.1:{port}",),
    ("Origin: http://localhost:{port}", "Origin: http://localhost:{port}"),
]


def at_port(headers: tuple[str, ...], browser: Browser) -> list[str]:
    return [header.replace("{port}", str(port_of(browser.listener))) for header in headers]


async def test_a_listener_without_page_has_neither_sign_in_nor_cookies(gateway: EchoingGateway) -> None:
    async with browsing(gateway, ListenSection(url=WS, serves=("acp",))) as browser:
        assert (await browser.log_in()).status == 404
        assert (await browser.log_out(browser.origin, JSON)).status == 404
        signed_in = gateway.browsers.sign_in(browser.code())
        cookie = f"Cookie: acp-gateway-{port_of(browser.listener)}={signed_in.cookie}"
        assert (await browser.connect(cookie)).status == 401
        assert (await browser.connect(browser.origin, cookie)).status == 403


# Tokens and cookies together


async def test_a_token_takes_precedence_over_the_cookie_of_the_same_identity(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as browser:
        await browser.log_in()
        assert (await browser.connect(bearer(gateway.token()), browser.origin, browser.cookie)).status == 101
        assert (await browser.connect(bearer("acpgw_wrong"), browser.origin, browser.cookie)).status == 401
        assert (await browser.connect(bearer(gateway.token()), browser.cookie)).status == 101
    assert [served.access.browser for served in gateway.served] == [None, None]


async def test_a_token_and_a_cookie_of_different_identities_are_refused(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as browser:
        await browser.log_in()
        bob = gateway.tokens.create("laptop", "bob", None)[1]
        assert (await browser.connect(bearer(bob), browser.origin, browser.cookie)).status == 403
        stale = f"Cookie: acp-gateway-{port_of(browser.listener)}={token_format.mint('browser')}"
        assert (await browser.connect(bearer(bob), browser.origin, stale)).status == 101


# Rights


async def test_a_browser_has_the_role_of_its_code_within_that_of_its_token(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as browser:
        await browser.log_in(browser.code(role="observer"))
        assert await browser.status() == 101
        browser.token = gateway.tokens.create("screen", "ann", None, role="observer")[0]
        await browser.log_in()
        assert await browser.status() == 101
    assert [served.access.role for served in gateway.served] == ["observer", "observer"]


async def test_a_browser_for_one_session_opens_no_other(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as browser:
        await browser.log_in(browser.code(session="s1"))
        response = await browser.connect(browser.origin, browser.cookie, target="/acp?session=s2")
        assert (response.status, "s2" in response.body) == (404, True)
        response = await browser.connect(browser.origin, browser.cookie)
        assert (response.status, "s1" in response.body) == (404, True)


# The end


async def test_logout_ends_the_browser_and_removes_the_cookie(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as browser:
        await browser.log_in()
        kept = browser.cookie
        response = await browser.log_out()
        assert (response.status, response.body) == (204, "")
        (header,) = response.headers["set-cookie"]
        assert header == f"acp-gateway-{port_of(browser.listener)}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"
        assert (await browser.connect(browser.origin, kept)).status == 401
        again = await browser.log_out(browser.origin, JSON, kept)
        assert (again.status, again.headers["set-cookie"]) == (204, [header])
        assert (await browser.log_out(browser.origin, JSON)).status == 204


async def test_a_browser_that_signs_in_again_ends_its_former_self(gateway: EchoingGateway) -> None:
    gateway.audit = audit = Book()
    async with browsing(gateway) as browser:
        await browser.log_in()
        kept = browser.cookie
        await browser.log_in(browser.code(), browser.origin, JSON, browser.cookie)
        assert (await browser.connect(browser.origin, kept)).status == 401
        assert await browser.status() == 101
    assert [details["why"] for event, details in audit.events if event == "browser_ended"] == ["replaced"]


async def test_a_revoked_token_ends_its_browsers(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as browser:
        await browser.log_in()
        gateway.tokens.revoke(browser.token.id)
        assert await browser.status() == 401


async def test_signing_in_and_out_is_audited_without_a_secret(gateway: EchoingGateway) -> None:
    gateway.audit = audit = Book()
    async with browsing(gateway) as browser:
        code = browser.code()
        await browser.log_in(code)
        cookie = browser.cookie.partition("=")[2]
        await browser.log_out()
    browsers = [(event, details) for event, details in audit.events if event.startswith("browser_")]
    assert [event for event, _ in browsers] == ["browser_signed_in", "browser_ended"]
    assert {details["identity"] for _, details in browsers} == {"ann"}
    assert {details["token"] for _, details in browsers} == {browser.token.id}
    assert browsers[1][1]["why"] == "signed out"
    assert code not in str(audit.events)
    assert cookie not in str(audit.events)


async def test_neither_code_nor_cookie_is_logged(gateway: EchoingGateway, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with browsing(gateway) as browser:
            code = browser.code()
            await browser.log_in(code)
            await browser.log_in(code)
            cookie = browser.cookie
            await browser.status()
            await browser.log_out()
            await browser.connect(browser.origin, cookie)
    assert "refused" in caplog.text
    assert code not in caplog.text
    assert cookie.partition("=")[2] not in caplog.text


async def test_a_file_that_cannot_be_written_refuses_a_login_and_keeps_the_code(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with browsing(gateway) as browser:
        code = browser.code()
        with monkeypatch.context() as patch:

            def full(*_: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr("acp_gateway.security.private_file.os.fsync", full)
            response = await browser.log_in(code)
        assert response.status == 503
        assert "browsers.json" not in response.body
        assert "No space left" in caplog.text
        assert (await browser.log_in(code)).status == 200


async def test_logout_closes_the_open_connections_of_the_browser_at_once(tmp_path: Path, spawner: Spawner) -> None:
    gateway = Gateway(make_config(tmp_path / "state", WS), TokenStore(tmp_path / "state"), spawner, {})
    token = gateway.tokens.create("laptop", "ann", None)[0]
    cookies = [
        gateway.browsers.sign_in(gateway.browsers.make_code(token, "ann", label="phone")[1]).cookie for _ in range(2)
    ]
    async with listening(WS, gateway) as listener:
        port = port_of(listener)
        clients = []
        for cookie in cookies:
            page = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
            clients.append(Client(listener, None, headers=page | {"Cookie": f"acp-gateway-{port}={cookie}"}))
        one, other = clients
        await one.initialize()
        await other.initialize()
        other_link, other.link = other.link, one.link
        assert (await other.post(NEW)).status == 404
        other.link = other_link
        async with one.stream() as events, other.stream() as others:
            assert (events.reply.status, others.reply.status) == (200, 200)
            assert (await one.ask("POST", {}, "/logout", **{"Content-Type": "application/json"})).status == 204
            with pytest.raises(EOFError):
                await events.next()
            assert (await other.post(NEW)).status == 202
            assert (await others.next())["id"] == NEW["id"]
        assert (await one.post(NEW)).status == 401


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
