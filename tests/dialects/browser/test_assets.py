"""The files of the page, as browsers get them."""

import gzip
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urljoin

import pytest
import trio
import trio.testing

from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.browser import assets, serving
from acp_gateway.dialects.browser.assets import FAVICON, FOLDER, MANIFEST, WEB, WORKER, load_assets
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.server import pending
from acp_gateway.server.handshake_limits import FREE_COST, CpuBudget
from acp_gateway.server.http.start_page import PAGE
from acp_gateway.server.listener import Listener
from tests.kit.doubles import TIMEOUT
from tests.kit.echoing import WS, EchoingGateway, ask, listening, open_next, port_of
from tests.kit.http_client import Http, Reply

SECTION = ListenSection(url=WS, serves=("acp", "page"))

GZIP = {"Accept-Encoding": "br, gzip"}


def path_of(name: str) -> str:
    """Return the path of a file that has the hash in it."""
    (path,) = (path for path in load_assets(WEB) if path.startswith(FOLDER) and path.split("/", 3)[3] == name)
    return path


@asynccontextmanager
async def browser(listener: Listener) -> AsyncIterator[Http]:
    async with await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream:
        yield Http(stream)


@asynccontextmanager
async def browsing(gateway: EchoingGateway) -> AsyncIterator[Http]:
    async with listening(SECTION, gateway) as listener, browser(listener) as http:
        yield http


async def test_each_file_that_the_page_names_is_there_below_any_path_of_a_proxy(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as http:
        page, manifest = await http.ask("GET", "/"), await http.ask("GET", MANIFEST)
        named = re.findall(r'(?:href|src)="([^"]*)"', page.body.decode())
        named += [icon["src"] for icon in json.loads(manifest.body)["icons"]]
        for name in named:
            # As a browser resolves it, and a proxy that removes /gateway passes it on.
            path = urljoin("https://gpu.example/gateway/", name).removeprefix("https://gpu.example/gateway")
            assert (await http.ask("GET", path)).status == 200, name
    assert len(named) > 6
    assert {json.loads(manifest.body)[name] for name in ("start_url", "scope")} == {"./"}


async def test_no_browser_pays_for_the_files_that_are_read_once_for_all(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, charged = 0.0, list[float]()

    def load_slowly(folder: Path) -> dict[str, assets.Asset]:
        nonlocal now
        now += 1.0
        return load_assets(folder)

    monkeypatch.setattr(pending, "time", SimpleNamespace(thread_time=lambda: now))
    monkeypatch.setattr(serving, "load_assets", load_slowly)
    monkeypatch.setattr(CpuBudget, "charge", lambda _, seconds: charged.append(seconds))
    async with browsing(gateway) as http:
        assert (await http.ask("GET", "/")).status == 200
    assert now == 1.0
    assert max(charged) < FREE_COST


async def test_each_module_imports_files_that_are_there(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as http:
        for path in [path for path in load_assets(WEB) if path.endswith(".js")]:
            source = (await http.ask("GET", path)).body.decode()
            for imported in re.findall(r'^(?:import|export)[^"\n]* from "([^"]+)"', source, re.MULTILINE):
                assert urljoin(path, imported) in load_assets(WEB), (path, imported)


@pytest.mark.parametrize("path", [PAGE, MANIFEST, FAVICON, path_of("app/main.js"), path_of("icons/icon.svg")])
async def test_each_file_has_the_headers_of_the_page(path: str, gateway: EchoingGateway) -> None:
    async with browsing(gateway) as http:
        reply = await http.ask("GET", path)
    assert reply.headers["content-security-policy"].split("; ") == [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self'",
        "frame-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in reply.headers
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize(
    ("path", "media_type", "caching"),
    [
        (PAGE, "text/html; charset=utf-8", "no-store"),
        (MANIFEST, "application/manifest+json", "no-cache"),
        (FAVICON, "image/png", "no-cache"),
        (WORKER, "text/javascript; charset=utf-8", "no-cache"),
        (path_of("app/main.js"), "text/javascript; charset=utf-8", "public, max-age=31536000, immutable"),
        (path_of("style.css"), "text/css; charset=utf-8", "public, max-age=31536000, immutable"),
        (path_of("icons/icon.svg"), "image/svg+xml", "public, max-age=31536000, immutable"),
        (path_of("icons/icon-192.png"), "image/png", "public, max-age=31536000, immutable"),
        (path_of("vendor/licenses/htm.txt"), "text/plain; charset=utf-8", "public, max-age=31536000, immutable"),
    ],
)
async def test_a_file_has_its_media_type_and_only_one_with_a_hash_is_kept_for_good(
    path: str, media_type: str, caching: str, gateway: EchoingGateway
) -> None:
    async with browsing(gateway) as http:
        headers = (await http.ask("GET", path)).headers
    assert (headers["content-type"], headers["cache-control"]) == (media_type, caching)
    assert ("etag" in headers) == (caching != "no-store")


async def test_head_has_the_headers_of_get_and_no_body(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as http:
        for path in (PAGE, MANIFEST, FAVICON, path_of("app/main.js")):
            for fields in ({}, GZIP):
                got, head = [await http.ask(method, path, **fields) for method in ("GET", "HEAD")]
                assert head == Reply(200, {**got.headers, "date": head.headers["date"]})
                assert int(head.headers["content-length"]) == len(got.body)


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        (GZIP, True),
        ({"Accept-Encoding": "GZIP;q=0.5"}, True),
        ({"Accept-Encoding": "gzip;q=0.001"}, True),
        ({"Accept-Encoding": "gzip;q=0"}, False),
        ({"Accept-Encoding": "br, gzip; Q = 0.000"}, False),
        ({"Accept-Encoding": "identity, x-gzip2"}, False),
        ({"Accept-Encoding": ""}, False),
        ({}, False),
    ],
)
async def test_text_is_packed_where_accept_encoding_allows_it(
    accepted: dict[str, str], is_packed: bool, gateway: EchoingGateway
) -> None:
    async with browsing(gateway) as http:
        reply = await http.ask("GET", path_of("app/main.js"), **accepted)
    assert reply.headers["vary"] == "Accept-Encoding"
    assert reply.headers.get("content-encoding") == ("gzip" if is_packed else None)
    content = gzip.decompress(reply.body) if is_packed else reply.body
    assert content == (WEB / "app" / "main.js").read_bytes()
    assert not is_packed or len(reply.body) < len(content)


async def test_an_image_is_not_packed(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as http:
        reply = await http.ask("GET", path_of("icons/icon-512.png"), **GZIP)
    assert reply.body == (WEB / "icons" / "icon-512.png").read_bytes()
    assert not {"vary", "content-encoding"} & reply.headers.keys()


def test_a_file_is_packed_once_and_not_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asset = replace(load_assets(WEB)[path_of("app/main.js")])
    assert "packed" not in vars(asset)
    assert asset.packed is asset.packed
    assert replace(asset, content=b"x").packed is None


@pytest.mark.parametrize(
    ("shown", "is_known"),
    [("{etag}", True), ('"x", {strong}', True), ("*", True), ('"x"', False), ("W/x", False), ("", False)],
)
async def test_if_none_match_of_the_same_file_is_answered_with_304_and_no_body(
    shown: str, is_known: bool, gateway: EchoingGateway
) -> None:
    async with browsing(gateway) as http:
        etag = (await http.ask("GET", FAVICON)).headers["etag"]
        shown = shown.replace("{etag}", etag).replace("{strong}", etag.removeprefix("W/"))
        reply = await http.ask("GET", FAVICON, None, **{"If-None-Match": shown})
        assert (reply.status, reply.body == b"") == ((304, True) if is_known else (200, False))
        assert reply.headers["etag"] == etag
        assert ("content-length" in reply.headers) == (not is_known)
        # The connection is in order.
        assert (await http.ask("GET", FAVICON)).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "{base}/app/../app/main.js",
        "{base}/./app/main.js",
        "{base}//app/main.js",
        "{base}/app/main.js/",
        "{base}/app%2fmain.js",
        "{base}/%61pp/main.js",
        "{base}/app/main.js%00",
        "{base}/app/main.js%00.png",
        "{base}/app\\main.js",
        "{base}/..\\..\\server\\serve.py",
        "{base}/../../server/serve.py",
        "{base}/%2e%2e/%2e%2e/server/serve.py",
        "{base}/..%2f..%2fserver/serve.py",
        "{base}/..;/index.html",
        "{base}/app/",
        "{base}/app",
        "{base}/",
        "{base}",
        "{base}/APP/MAIN.JS",
        "{base}/index.html",
        "{base}/package.json",
        "{base}/vendor/MANIFEST.json",
        "{base}//etc/passwd",
        "/assets//etc/passwd",
        "/assets/",
        "/assets/../healthz",
        "/assets/0123456789abcdef0123/app/main.js",
        "/assets",
        "/index.html",
        "/app/main.js",
        "/%2e/",
        "//",
        "/..",
    ],
)
async def test_another_path_than_that_of_a_file_is_not_found(path: str, gateway: EchoingGateway) -> None:
    base = path_of("style.css").removesuffix("/style.css")
    async with browsing(gateway) as http:
        reply = await http.ask("GET", path.replace("{base}", base))
    assert reply.status == 404
    assert b"nothing here" in reply.body or reply.headers["cache-control"] == "no-store"


async def test_a_query_does_not_change_the_file(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as http:
        assert (await http.ask("GET", f"{path_of('app/main.js')}?../x")).status == 200
        assert (await http.ask("GET", "/?code=x")).headers["content-type"] == "text/html; charset=utf-8"


async def test_a_listener_that_serves_no_page_lacks_its_files(gateway: EchoingGateway) -> None:
    async with listening(ListenSection(url=WS, serves=("acp",)), gateway) as listener, browser(listener) as http:
        answers = [await http.ask("GET", path) for path in (MANIFEST, FAVICON, path_of("app/main.js"), PAGE)]
    assert [answer.status for answer in answers] == [404, 404, 404, 200]
    assert b"<script" not in answers[-1].body


async def test_the_files_are_read_at_the_first_request_and_stay_the_same(
    gateway: EchoingGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = tmp_path / "web"
    monkeypatch.setattr(assets, "WEB", web)
    async with browsing(gateway) as http, open_next(SECTION, gateway) as other, browser(other) as elsewhere:
        assert (await http.ask("GET", "/healthz")).status == 200
        make_page(web)
        page = (await http.ask("GET", PAGE)).body
        (web / "a.js").write_text("changed")
        (web / "index.html").unlink()
        assert (await elsewhere.ask("GET", PAGE)).body == page
        assert (await http.ask("GET", f"{page.decode()[1:]}/a.js")).body == b"b"


def make_page(folder: Path, **changed: str) -> None:
    """Write the files of a small page; `a_js` is `a.js`."""
    (folder / "icons").mkdir(parents=True)
    names = {
        "index_html": "{assets}",
        "manifest_webmanifest": "",
        "icons/icon-192_png": "",
        "worker_js": "",
        "a_js": "b",
    }
    for name, content in (names | changed).items():
        (folder / name.replace("_", ".")).write_text(content)


def test_the_hash_changes_with_the_name_and_the_content_of_any_file(tmp_path: Path) -> None:
    def hashed(**changed: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        make_page(folder, **changed)
        return load_assets(folder)[PAGE].content.decode().strip()

    assert hashed() == hashed() == hashed(notes_json="x")
    variants = {"a_js": "c"}, {"b_js": ""}, {"manifest_webmanifest": " "}, {"index_html": "{assets} "}
    assert len({hashed(), *(hashed(**changed) for changed in variants)}) == 5


# The limits for unauthenticated connections


async def test_a_browser_that_fetches_files_is_not_cut_off_by_handshake_timeout(
    tmp_path: Path, spawner: Spawner, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    autojump_clock.autojump_threshold = 0.05
    timeout = TIMEOUT / 10
    async with browsing(EchoingGateway(tmp_path / "state", spawner, handshake_timeout=timeout)) as http:
        for _ in range(4):
            assert (await http.ask("GET", FAVICON)).status == 200
            await trio.sleep(timeout * 0.9)
        assert (await http.ask("GET", FAVICON)).status == 200
        # Idle ones end, which is not a failure.
        assert await http.stream.receive_some() == b""
    assert "handshake_timeout" not in caplog.text


async def test_all_files_of_the_page_come_over_one_connection(gateway: EchoingGateway) -> None:
    async with browsing(gateway) as http:
        for path in load_assets(WEB):
            assert (await http.ask("GET", path, **GZIP)).status == 200


PLAIN = ListenSection(url=WS, serves=("acp",))

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


class Page(HTMLParser):
    """The elements of a page, in order, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ((f"Accept: {BROWSER}",), "text/html; charset=utf-8"),
        (("Accept: application/json", "Accept: Text/HTML;q=0.9"), "text/html; charset=utf-8"),
        (("Accept: */*",), "text/plain; charset=utf-8"),
        (("Accept: text/htmlx",), "text/plain; charset=utf-8"),
        ((), "text/plain; charset=utf-8"),
    ],
)
async def test_the_start_page_is_html_only_if_accept_names_it(
    accept: tuple[str, ...], content_type: str, gateway: EchoingGateway
) -> None:
    async with listening(PLAIN, gateway) as listener:
        response = await ask(listener, "/", *accept)
    assert (response.status, response.headers["content-type"], response.headers["vary"]) == (
        200,
        [content_type],
        ["Accept"],
    )


@pytest.mark.parametrize("accept", [BROWSER, "*/*"])
async def test_the_start_page_may_load_nothing_and_is_not_kept(accept: str, gateway: EchoingGateway) -> None:
    async with listening(PLAIN, gateway) as listener:
        headers = (await ask(listener, "/", f"Accept: {accept}")).headers
    (policy,) = headers["content-security-policy"]
    assert policy.split("; ") == [
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    assert headers["x-content-type-options"] == ["nosniff"]
    assert (headers["referrer-policy"], headers["cache-control"]) == (["no-referrer"], ["no-store"])


async def test_the_start_page_names_the_commands_and_has_neither_script_nor_style(gateway: EchoingGateway) -> None:
    async with listening(PLAIN, gateway) as listener:
        plain = (await ask(listener, "/")).body
        page = Page((await ask(listener, "/", f"Accept: {BROWSER}")).body)
    assert set(page.elements) == {"html", "meta", "title", "h1", "p", "code"}
    commands = re.findall("`(.*?)`", plain)
    assert commands == ["acp-gateway connect", "acp-gateway token create", "acp-gateway share", "acp-gateway open"]
    assert page.elements.count("code") == len(commands)
    assert plain.replace("`", "").split() == page.text.split()[2:]
