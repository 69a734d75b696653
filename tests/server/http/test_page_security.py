"""Attacks on browsers that are signed in, and on the page, as raw requests: each route of a listener with a page.

The routes are those of the table, so that a later one is attacked as well. `test_sign_in` has the rules of the cookie,
`test_assets` those of paths.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.browser.assets import WEB, load_assets
from acp_gateway.server import listener as listener_module
from acp_gateway.server.http.routes import HttpRoutes
from tests.kit.echoing import WS, EchoingGateway, Response, ask, bearer, listening, port_of, upgrade
from tests.server.http.test_sign_in import FOREIGN, JSON, Book, Browser, at_port

EVIL = "Origin: https://evil.example"

FORMS = [
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/plain",
    "text/plain;application/json",
    "application/json-seq",
]
"""Content types that a page may send elsewhere without a preflight, and near misses of the right one."""

FILE = next(path for path in load_assets(WEB) if path.endswith("app/main.js"))

INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}


class Attacked(Browser):
    """A browser that is signed in, and the routes of its gateway."""

    routes: dict[str, tuple[str, ...]]
    """Methods of each path; a prefix stands for a file below it."""

    async def send(self, method: str, path: str, *headers: str, body: object = None, host: str = "") -> Response:
        """Send a request with the cookie."""
        text = "" if body is None else json.dumps(body)
        length = [f"Content-Length: {len(text)}"] if text else []
        fields = (*headers, *length, self.cookie)
        return await ask(self.listener, path, *fields, method=method, host=host or self.host, body=text)

    def taking(self, method: str) -> list[str]:
        return [path for path, methods in self.routes.items() if method in methods]


@asynccontextmanager
async def attacking(gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Attacked]:
    monkeypatch.setattr("acp_gateway.server.handshake_limits.REFUSAL_DELAY", 0.001)
    tables: list[HttpRoutes] = []

    class Noted(HttpRoutes):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            tables.append(self)

    monkeypatch.setattr(listener_module, "HttpRoutes", Noted)
    # The refusals of these tests are not to be answered with 429.
    gateway.config = replace(gateway.config, limits=LimitsSection(failed_attempts=1000))
    token = gateway.tokens.create("laptop", "ann", None)[0]
    async with listening(ListenSection(url=WS, serves=("acp", "page", "chat", "metrics")), gateway) as listener:
        browser = Attacked(gateway, listener, token)
        browser.routes = {
            FILE if path.endswith("/") and path != "/" else path: route.methods
            for path, route in tables[0].table.items()
        }
        assert (await browser.log_in()).status == 200
        yield browser


@pytest.fixture
async def browser(gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Attacked]:
    async with attacking(gateway, monkeypatch) as browser:
        yield browser


async def test_the_table_of_routes_is_the_attack_surface(browser: Attacked) -> None:
    assert set(browser.taking("POST")) == {"/acp", "/ws", "/chat", "/join", "/login", "/logout"}
    assert set(browser.taking("DELETE")) == {"/acp"}
    assert {path for path in browser.routes if path not in browser.taking("POST")} == {
        "/",
        FILE,
        "/favicon.ico",
        "/files",
        "/healthz",
        "/manifest.webmanifest",
        "/metrics",
        "/nodes/lend",
        "/readyz",
        "/worker.js",
    }


# CSRF


@pytest.mark.parametrize("content_type", FORMS)
async def test_no_post_is_taken_in_a_content_type_of_forms(content_type: str, browser: Attacked) -> None:
    served = len(browser.gateway.served)
    for path in browser.taking("POST"):
        body = {"code": browser.code()} if path == "/login" else INITIALIZE
        reply = await browser.send("POST", path, browser.origin, f"Content-Type: {content_type}", body=body)
        # A `POST` to a WebSocket's path changes nothing, whatever it says; pages join nothing.
        assert reply.status == {"/ws": 426, "/chat": 426, "/join": 403}.get(path, 415), path
        assert "set-cookie" not in reply.headers
    assert (len(browser.gateway.served), await browser.status()) == (served, 101)


@pytest.mark.parametrize("origin", FOREIGN)
async def test_no_post_is_taken_from_another_page_or_without_a_page(origin: tuple[str, ...], browser: Attacked) -> None:
    for path in browser.taking("POST"):
        body = {"code": browser.code()} if path == "/login" else INITIALIZE
        fields = at_port(origin, browser)
        reply = await browser.send("POST", path, *fields, JSON, body=body)
        # A program without a page may join, by a code alone.
        joins = path == "/join" and not any(field.startswith("Origin:") for field in fields)
        assert reply.status == (400 if joins else 403), path
        assert "set-cookie" not in reply.headers
        assert "access-control-allow-origin" not in reply.headers
    assert browser.gateway.served == []
    assert await browser.status() == 101


@pytest.mark.parametrize("origin", FOREIGN)
async def test_the_cookie_opens_no_stream_no_websocket_and_no_deletion_for_another_page(
    origin: tuple[str, ...], browser: Attacked
) -> None:
    fields = at_port(origin, browser)
    requests = [
        ("GET", "/ws", upgrade(*fields)),
        ("GET", "/chat", upgrade(*fields)),
        ("GET", "/acp", upgrade(*fields)),
        ("GET", "/acp", (*fields, "Accept: text/event-stream", "Acp-Connection-Id: x")),
        ("DELETE", "/acp", (*fields, "Acp-Connection-Id: x")),
    ]
    for method, path, headers in requests:
        assert (await browser.send(method, path, *headers)).status == 403, (method, path)
    assert browser.gateway.served == []


async def test_the_cookie_opens_neither_metrics_nor_the_reasons_of_readiness(browser: Attacked) -> None:
    browser.gateway.readiness.set_listening(["wss://box:1/acp"], accepting=False)
    assert (await browser.send("GET", "/metrics", browser.origin)).status == 401
    ready = await browser.send("GET", "/readyz", browser.origin)
    assert (ready.status, ready.body) == (503, "not ready\n")


LOADED = {"/files"}
"""Paths of what a page loads without an `Origin`."""


@pytest.mark.parametrize("sites", [(), ("none",), ("same-site",), ("cross-site",), ("same-origin", "same-origin")])
async def test_what_a_page_loads_has_to_be_of_its_own_origin_as_the_browser_says(
    sites: tuple[str, ...], browser: Attacked
) -> None:
    fields = [f"Sec-Fetch-Site: {site}" for site in sites]
    assert (await browser.send("GET", "/files?session=s&path=a", *fields)).status == 403
    evil = await browser.send("GET", "/files?session=s&path=a", EVIL, "Sec-Fetch-Site: same-origin")
    assert evil.status == 403


async def test_a_browser_s_word_that_a_page_is_of_the_same_origin_counts_for_what_it_loads_alone(
    browser: Attacked,
) -> None:
    for path in browser.taking("GET"):
        reply = await browser.send("GET", f"{path}?session=s&path=a", "Sec-Fetch-Site: same-origin", *upgrade()[:2])
        # It is past the cookie: there is no such session.
        assert (reply.status == 404) is (path in LOADED), path


async def test_a_cookie_in_another_place_does_not_count(browser: Attacked) -> None:
    value = browser.cookie.partition("=")[2]
    others = [
        ("/ws", bearer(value)),
        (f"/ws?token={value}", "X: y"),
        (f"/ws?acp-gateway-{port_of(browser.listener)}={value}", "X: y"),
        ("/ws", f"Sec-WebSocket-Protocol: acp.v1, acp.bearer.{value}"),
    ]
    for target, header in others:
        reply = await ask(browser.listener, target, *upgrade(browser.origin, header), host=browser.host)
        assert reply.status in (400, 401), target


async def test_no_preflight_of_another_page_is_answered(browser: Attacked) -> None:
    asked = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type")
    for path in browser.routes:
        reply = await browser.send("OPTIONS", path, EVIL, *asked)
        assert reply.status in (403, 405), path
        assert not [name for name in reply.headers if name.startswith("access-control-")]


# DNS rebinding


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.nip.io:{port}",
        "localhost.evil.example:{port}",
        "evil-localhost:{port}",
        "localhost:{port}.evil.example",
        "127.0.0.1@evil.example:{port}",
        "evil.example#localhost",
        "evil.example%00localhost",
        "0.0.0.0:{port}",
        "192.168.1.2:{port}",
        "2130706433:{port}",
        "[::ffff:7f00:1]:{port}",
        "localhost, evil.example",
        "",
    ],
)
async def test_a_rebound_name_is_refused_at_each_path_also_by_head(host: str, browser: Attacked) -> None:
    name = host.replace("{port}", str(port_of(browser.listener)))
    for path, methods in browser.routes.items():
        for method in {"GET", "HEAD", *methods}:
            # As a page of that name sends it.
            fields = (f"Origin: http://{name}", JSON) if name else (JSON,)
            listener, given = browser.listener, (*fields, browser.cookie)
            reply = await ask(listener, path, *given, "Content-Length: 0", method=method, host=name)
            assert reply.status in (400, 403), (method, path)
            assert "set-cookie" not in reply.headers
            assert "access-control-allow-origin" not in reply.headers
    assert browser.gateway.served == []


# Frames, types and copies


async def test_no_response_can_be_framed_sniffed_or_read_by_another_page(browser: Attacked) -> None:
    replies = []
    for path, methods in browser.routes.items():
        for method in ("GET", "HEAD", "POST", "PUT"):
            fields = (EVIL, JSON) if method == "POST" else (EVIL,)
            replies.append((method, path, methods, await browser.send(method, path, *fields)))
    replies.append(("GET", "/nothing", (), await browser.send("GET", "/nothing", EVIL)))
    replies.append(("GET", "/assets/x", (), await browser.send("GET", "/assets/x", EVIL)))
    for method, path, methods, reply in replies:
        where = method, path, reply.status
        content_type = reply.headers.get("content-type", [""])[0]
        assert reply.headers["x-content-type-options"] == ["nosniff"] or path == "/metrics", where
        assert not content_type.startswith("text/html") or path == "/", where
        assert "access-control-allow-origin" not in reply.headers, where
        if path in ("/", FILE, "/login", "/logout", "/assets/x") and method in methods:
            assert "frame-ancestors 'none'" in reply.headers["content-security-policy"][0], where
            assert reply.headers["cross-origin-resource-policy"] == ["same-origin"], where


async def test_nothing_that_is_kept_by_caches_depends_on_the_cookie(browser: Attacked) -> None:
    for path in ("/", FILE, "/manifest.webmanifest", "/favicon.ico", "/worker.js"):
        answers = [await ask(browser.listener, path, *cookie, host=browser.host) for cookie in ((), (browser.cookie,))]
        for answer in answers:
            del answer.headers["date"]
        assert answers[0] == answers[1]
        assert "set-cookie" not in answers[0].headers


async def test_responses_to_a_browser_that_may_differ_are_not_kept(browser: Attacked) -> None:
    replies = [
        await browser.log_in(browser.code(), browser.origin, JSON, browser.cookie),
        await browser.log_in("x"),
        await browser.log_out(),
    ]
    assert [reply.headers["cache-control"] for reply in replies] == [["no-store"]] * 3


def test_the_page_has_no_code_and_no_style_in_its_text() -> None:
    page = (WEB / "index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:|https?:", page) == []


# A stolen code


async def test_of_two_uses_of_a_code_at_once_one_fails_and_is_audited(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.audit = Book()
    async with attacking(gateway, monkeypatch) as browser:
        code, answers = browser.code(), []

        async def use() -> None:
            other = Attacked(gateway, browser.listener, browser.token)
            answers.append((other, await other.log_in(code)))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(use)
        assert sorted(answer.status for _, answer in answers) == [200, 401, 401, 401]
        assert all("set-cookie" not in answer.headers for _, answer in answers if answer.status == 401)
        (first,) = (other for other, answer in answers if answer.status == 200)
        # A late thief does not end the browser of the first one.
        assert (await browser.log_in(code)).status == 401
        assert await first.status() == 101


async def test_a_code_is_not_a_token_and_a_token_is_not_a_code(browser: Attacked) -> None:
    assert (await browser.log_in(browser.gateway.token())).status == 401
    code = browser.code()
    assert (await ask(browser.listener, "/ws", *upgrade(bearer(code)))).status == 401
    assert (await browser.log_in(code)).status == 200
