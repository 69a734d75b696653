"""Previews in a browser: a real gateway and a program that is hostile, over HTTP."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from acp_gateway.client.control import request
from acp_gateway.errors import GatewayError
from acp_gateway.gateway.agent.listeners import has_tables
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_store import TokenStore
from tests.kit.http2_client import connect_http2
from tests.kit.machines import control, node_config
from tests.kit.serving import serving

pytestmark = pytest.mark.skipif(not has_tables(), reason="this system has no /proc/net/tcp")

PROGRAM = """
import hashlib, base64, json, socketserver
from http.server import BaseHTTPRequestHandler

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): ...
    def do_GET(self):
        if self.path == "/ws":
            self.send_response(101)
            self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.send_header("Sec-WebSocket-Accept", accept); self.end_headers()
            while data := self.connection.recv(100):
                self.connection.sendall(data)
            self.close_connection = True
            return
        if self.path == "/torn":
            self.send_response(200); self.send_header("Content-Length", "100"); self.end_headers()
            self.wfile.write(b"half"); self.close_connection = True
            return
        if self.path == "/two":
            self.send_response(200)
            self.send_header("Content-Length", "5"); self.send_header("Transfer-Encoding", "chunked")
            self.end_headers(); self.close_connection = True
            self.wfile.write(b"8\\r\\nhelloHTT\\r\\n0\\r\\n\\r\\n")
            return
        if self.path == "/odd":
            self.wfile.write(b"SSH-2.0\\r\\n\\r\\n"); self.close_connection = True
            return
        if self.path == "/stream":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for part in range(3):
                self.wfile.write(b"4\\r\\npart\\r\\n"); self.wfile.flush()
            self.wfile.write(b"0\\r\\n\\r\\n")
            return
        told = json.dumps({"path": self.path, "headers": self.headers.items()}).encode()
        begin, status = 0, 200
        if "Range" in self.headers:
            begin, status = int(self.headers["Range"][6:].partition("-")[0]), 206
        self.send_response(status)
        for cookie in "a=1; Domain=localhost", "acp-gateway-preview=evil", "__Host-acp-gateway=evil":
            self.send_header("Set-Cookie", cookie)
        self.send_header("Clear-Site-Data", '"*"')
        self.send_header("Content-Length", str(len(told) - begin)); self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(told[begin:])
    do_HEAD = do_GET
    def do_POST(self):
        size = self.headers["Content-Length"]
        if size is None:
            body = b""
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length); self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(size))
        told = json.dumps([self.command, len(body), hashlib.sha256(body).hexdigest()]).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(told))); self.end_headers()
        self.wfile.write(told)
    do_PUT = do_PATCH = do_POST

class Server(socketserver.ThreadingTCPServer):
    daemon_threads, request_queue_size = True, 256

with Server(("127.0.0.1", 0), Handler) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", PROGRAM], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        yield int(program.stdout.readline())
        program.kill()


@dataclass
class Answer:
    """A response."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name]


class Browser:
    """A browser at the address of one preview."""

    def __init__(self, url: str, link: str, port: int) -> None:
        self._at = int(url.rpartition(":")[2].partition("/")[0])
        self.host, _, path = link.removeprefix("http://").partition("/")
        self.path = f"/{path}"
        self.port = port
        self.cookie = ""

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self._at)

    def head(self, method: str, path: str, **headers: str) -> bytes:
        fields = {"Host": self.host, "Cookie": f"{self.cookie}; b=2" if self.cookie else "", **headers}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()

    async def ask(
        self, method: str, path: str, body: bytes = b"", stream: trio.SocketStream | None = None, **headers: str
    ) -> Answer:
        """The response to a request; over a stream of one's own, another may follow."""
        if body and "Transfer_Encoding" not in headers:
            headers["Content_Length"] = str(len(body))
        sent = self.head(method, path, **headers) + body
        if stream is not None:
            return await self._exchange(stream, sent, method)
        async with await self.connect() as own:
            return await self._exchange(own, sent, method)

    async def _exchange(self, stream: trio.SocketStream, sent: bytes, method: str) -> Answer:
        await stream.send_all(sent)
        data = b""
        while b"\r\n\r\n" not in data:
            data += await received(stream)
        head, _, rest = data.partition(b"\r\n\r\n")
        line, *lines = head.decode().split("\r\n")
        fields = [(name, value) for name, _, value in (each.partition(": ") for each in lines)]
        answer = Answer(int(line.split()[1]), fields, b"")
        if method != "HEAD" and answer.status not in (101, 204, 304):
            size = answer.all("content-length")
            while (len(rest) < int(size[0])) if size else (not rest.endswith(b"0\r\n\r\n")):
                rest += await received(stream)
        answer.body = rest
        return answer

    async def enter(self) -> Answer:
        answer = await self.ask("GET", self.path)
        for cookie in answer.all("set-cookie"):
            self.cookie = cookie.partition(";")[0]
        return answer


async def received(stream: trio.SocketStream) -> bytes:
    data = bytes(await stream.receive_some())
    if not data:
        raise EOFError
    return data


@pytest.fixture
async def url(tmp_path: Path, port: int) -> AsyncIterator[str]:
    """The URL of a gateway whose configuration names the port, and an address for previews."""
    config = node_config(tmp_path)
    agents = {"memory": replace(config.agents["memory"], ports=((port, port),))}
    listen = tuple(replace(section, preview_url="http://*.localhost:7080") for section in config.listen)
    async with serving(replace(config, agents=agents, listen=listen)) as (url,):
        yield url


@pytest.fixture
async def browser(url: str, tmp_path: Path, port: int) -> Browser:
    """A browser that has a link."""
    place = control(url, tmp_path / "node.token")
    result = await request(place, "ports/preview", {"port": port}, time_limit=5)
    return Browser(url, result["url"], port)


async def test_a_link_lets_one_browser_in_once(browser: Browser, tmp_path: Path) -> None:
    assert browser.host.startswith(f"{browser.port}-")
    assert (await browser.ask("GET", "/")).status == 401
    entered = await browser.enter()
    assert (entered.status, entered.all("refresh"), entered.all("location")) == (200, ["0; url=/"], [])
    assert entered.all("referrer-policy") == ["no-referrer"]
    (cookie,) = entered.all("set-cookie")
    assert cookie.endswith("; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200")
    assert (await browser.ask("GET", browser.path)).status == 401
    assert (await browser.ask("GET", "/a?b=c")).status == 200
    entries = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [entry["port"] for entry in entries if entry["event"] == "port_opened"] == [browser.port]


async def test_the_program_sees_nothing_of_the_gateway_and_sets_no_cookie_of_it(browser: Browser) -> None:
    await browser.enter()
    answer = await browser.ask(
        "GET", "/a?b=c", Origin=browser.origin, X_Forwarded_For="10.0.0.1", Authorization="Bearer acpgw_x"
    )
    told = json.loads(answer.body)
    headers = {name.lower(): value for name, value in told["headers"]}
    assert told["path"] == "/a?b=c"
    assert headers == {
        "host": f"localhost:{browser.port}",
        "x-gradio-server": browser.origin,
        "cookie": "b=2",
        "origin": f"http://localhost:{browser.port}",
        "connection": "close",
    }
    assert answer.all("set-cookie") == ["a=1"]
    assert answer.all("clear-site-data") == []
    assert answer.all("content-security-policy") == ["frame-ancestors 'self'"]


async def test_other_previews_and_pages_can_not_use_the_cookie(browser: Browser, url: str) -> None:
    await browser.enter()
    other = browser.origin.replace(f"{browser.port}-", "1-")
    upgrade: dict[str, Any] = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Key": "x" * 22 + "=="}
    others: list[dict[str, Any]] = [
        {"Origin": other},
        {"Origin": "http://localhost:7080"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},
    ]
    for headers in others:
        assert (await browser.ask("GET", "/", **headers)).status == 403
        assert (await browser.ask("GET", "/ws", **headers, **upgrade)).status == 403
    mine, browser.host = browser.host, other.removeprefix("http://")
    assert (await browser.ask("GET", "/")).status == 401
    browser.host = "evil.localhost:7080"
    assert (await browser.ask("GET", "/")).status == 403
    # The gateway's own routes are not at these addresses, nor is the cookie of a preview good for them.
    browser.host = mine
    assert json.loads((await browser.ask("GET", "/acp")).body)["path"] == "/acp"
    browser.host = "localhost"
    assert (await browser.ask("GET", "/acp")).status in (401, 403)


async def test_a_preview_is_seen_over_http_2_too(tmp_path: Path, port: int) -> None:
    create_certificate(["127.0.0.1"], tmp_path)
    config = node_config(tmp_path)
    agents = {"memory": replace(config.agents["memory"], ports=((port, port),))}
    (plain,) = config.listen
    secure = replace(plain, url="wss://127.0.0.1:0", cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    listen = tuple(replace(section, preview_url="http://*.localhost:7080") for section in (plain, secure))
    async with serving(replace(config, agents=agents, listen=listen)) as (url, secure_url):
        result = await request(control(url, tmp_path / "node.token"), "ports/preview", {"port": port}, time_limit=5)
        browser = Browser(url, result["url"], port)
        await browser.enter()
        client = await connect_http2(urlsplit(secure_url).port or 0, tmp_path)
        ask = partial(client.ask, host=browser.host)
        cookie = ("cookie", browser.cookie)
        assert (await ask("GET", "/")).status == 401
        told = json.loads((await ask("GET", "/a?b=c", cookie, ("cookie", "b=2"))).body)
        assert (told["path"], dict(told["headers"])["Cookie"]) == ("/a?b=c", "b=2")
        # Of a known size, and with an end that only the client knows.
        for size in ((("content-length", "300000"),), ()):
            answer = await ask("PUT", "/", cookie, *size, body=b"x" * 300_000)
            assert json.loads(answer.body)[:2] == ["PUT", 300_000]
        assert (await ask("GET", "/stream", cookie)).body == b"part" * 3
        head = await ask("HEAD", "/a", cookie)
        assert (head.body, int(head.headers["content-length"]) > 0) == (b"", True)
        # What ends too early is not taken for the whole.
        torn = await client.begin("GET", "/torn", cookie, host=browser.host)
        while torn not in client.resets:
            assert await client.receive()
        assert (client.replies[torn].body, torn in client.ended) == (b"half", False)
        await client.stream.aclose()


async def test_bodies_ranges_and_further_requests_pass(browser: Browser) -> None:
    await browser.enter()
    stream = await browser.connect()
    for method in "POST", "PUT", "PATCH":
        answer = await browser.ask(method, "/", b"x" * 300_000, stream)
        assert json.loads(answer.body)[:2] == [method, 300_000]
    chunks = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    answer = await browser.ask("POST", "/", chunks, stream, Transfer_Encoding="chunked")
    assert json.loads(answer.body)[1] == 5
    whole = (await browser.ask("GET", "/r", stream=stream)).body
    part = await browser.ask("GET", "/r", stream=stream, Range="bytes=5-")
    assert part.status == 206
    assert whole[5:20] == part.body[:15]
    assert (await browser.ask("HEAD", "/", stream=stream)).all("content-length") != []
    assert (await browser.ask("GET", "/stream", stream=stream)).body.count(b"part") == 3
    await stream.aclose()


async def test_a_websocket_passes_both_ways(browser: Browser) -> None:
    await browser.enter()
    stream = await browser.connect()
    headers: dict[str, Any] = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Key": "x" * 22 + "=="}
    answer = await browser.ask(
        "GET", "/ws", stream=stream, Origin=browser.origin, Sec_WebSocket_Version="13", **headers
    )
    assert answer.status == 101
    assert answer.all("sec-websocket-accept") != []
    await stream.send_all(b"hello")
    assert await stream.receive_some() == b"hello"
    await stream.send_eof()
    assert await stream.receive_some() == b""
    await stream.aclose()


async def test_two_hundred_websockets_at_once_get_their_own_bytes(browser: Browser) -> None:
    await browser.enter()
    arrived, all_there = 0, trio.Event()

    async def use(number: int) -> None:
        nonlocal arrived
        headers: dict[str, Any] = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec_WebSocket_Key": "x" * 22 + "==",
        }
        async with await browser.connect() as stream:
            answer = await browser.ask("GET", "/ws", stream=stream, Sec_WebSocket_Version="13", **headers)
            assert answer.status == 101
            arrived += 1
            if arrived == 200:
                all_there.set()
            await all_there.wait()
            mine, received_bytes = number.to_bytes(2) * 1000, b""
            await stream.send_all(mine)
            while len(received_bytes) < len(mine):
                received_bytes += await received(stream)
            assert received_bytes == mine

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(use, number)


async def test_a_response_that_is_torn_or_not_http_is_an_error(browser: Browser) -> None:
    await browser.enter()
    with pytest.raises(EOFError):
        await browser.ask("GET", "/torn")
    answer = await browser.ask("GET", "/odd")
    assert (answer.status, b"does not speak HTTP/1.1" in answer.body) == (503, True)
    answer = await browser.ask("GET", "/two")
    assert (answer.status, b"two lengths" in answer.body) == (503, True)


async def test_a_body_that_is_not_sound_is_refused_and_an_upload_that_ends_early_ends(browser: Browser) -> None:
    await browser.enter()
    answer = await browser.ask("POST", "/", b"xyz\r\n", Transfer_Encoding="chunked")
    assert answer.status == 400
    stream = await browser.connect()
    await stream.send_all(browser.head("POST", "/", Content_Length="100") + b"part")
    await stream.send_eof()
    with pytest.raises(EOFError):
        await received(stream)
    await stream.aclose()


async def test_a_revoked_token_ends_the_preview(browser: Browser, tmp_path: Path) -> None:
    await browser.enter()
    store = TokenStore(tmp_path)
    for token in store.tokens():
        store.revoke(token.id)
    assert (await browser.ask("GET", "/")).status == 401


async def test_who_may_not_use_the_port_gets_no_link(url: str, tmp_path: Path, port: int) -> None:
    secret = TokenStore(tmp_path).create("watcher", None, None, role="observer")[1]
    (tmp_path / "watcher").touch(0o600)
    (tmp_path / "watcher").write_text(secret)
    with pytest.raises(GatewayError, match="--ports"):
        await request(control(url, tmp_path / "watcher"), "ports/preview", {"port": port}, time_limit=5)
    with pytest.raises(GatewayError, match="port 1 here"):
        await request(control(url, tmp_path / "node.token"), "ports/preview", {"port": 1}, time_limit=5)
