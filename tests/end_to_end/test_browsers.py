"""Browsers that are signed in at a gateway: through proxies, after restarts, until revoked."""

import gzip
import json
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Protocol
from urllib.parse import urljoin

import pytest
from click.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from acp_gateway.cli.main import main
from acp_gateway.dialects.browser.assets import WEB, load_assets
from tests.end_to_end.test_deploy import audited
from tests.end_to_end.traces import TRACES
from tests.kit.free_ports import free_port
from tests.kit.proxies import (
    FORGED,
    LAPTOP,
    ROOT,
    Headers,
    Proxy,
    Proxying,
    as_caddy,
    as_haproxy,
    as_nginx,
    checked_block,
    client_context,
)
from tests.kit.running import ENVIRONMENT, PROGRAM, WORK, RunningGateway, fenced, run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere loopback has one address")

NAME = "gpu.example"

PATH = "/gateway"
"""The path of the page's examples."""

INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}


class StoppableProxy(Protocol):
    """A proxy that listens, a real one or not."""

    port: int

    def stop(self) -> None: ...


StartProxy = Callable[[RunningGateway, Path, str], StoppableProxy]
"""Starts a proxy in front of a gateway, with a folder for its files, and the path of the gateway there."""


class Site:
    """A gateway with the page's configuration at a port that it keeps, and a proxy in front of it."""

    def __init__(self, directory: Path, start_proxy: StartProxy, *, below: bool) -> None:
        self.directory = directory
        self.path = PATH if below else ""
        block = checked_block("gateway-path" if below else "gateway")
        assert "ws://127.0.0.1:7080" in block
        block = block.replace("[gateway]\n", f'[gateway]\nstate_dir = "{directory}/state"\n')
        (directory / "config.toml").write_text(
            block.replace(":7080", f":{free_port()}")
            + fenced(
                f'[agents.a]\ncommand = ["{sys.executable}", "{ROOT}/examples/demo_agent.py", "--delay", "0"]\n',
                directory,
            )
            + f'[workspaces.here]\nroot = "{WORK}"\n'
        )
        run_program("certs", "create", "--host", NAME, "--out", directory)
        (directory / "token").touch(0o600)
        (directory / "token").write_text(
            run_program("token", "create", "--config", directory / "config.toml", "--label", "tests")
        )
        self.gateway = self._start_gateway()
        (directory / "proxy").mkdir()
        self._start_proxy = start_proxy
        try:
            self._proxy = self._start(start_proxy)
        except BaseException:
            self.gateway.stop()
            raise

    def _start(self, start_proxy: StartProxy) -> StoppableProxy:
        return start_proxy(self.gateway, self.directory / "proxy", self.path)

    def _start_gateway(self) -> RunningGateway:
        command = [*PROGRAM, "serve", "--config", str(self.directory / "config.toml")]
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        gateway = RunningGateway(self.directory, process, "")
        found = re.search(r"listening on ws://(\S+):(\d+)/", gateway.read_log_until("listening on "))
        assert found is not None
        gateway.urls[found[1]] = found[2]
        return gateway

    @property
    def port(self) -> int:
        return self._proxy.port

    def stop(self) -> None:
        self._proxy.stop()
        assert self.gateway.stop() == 0, "".join(self.gateway.log)

    def restart(self) -> None:
        """Stop the proxy and the gateway, and start both again."""
        self.stop()
        self.gateway = self._start_gateway()
        self._proxy = self._start(self._start_proxy)

    def replace_host(self) -> None:
        """Have the proxy put its own name of the gateway into `Host`, as many do that were not told otherwise."""
        self._proxy.stop()
        host = f"127.0.0.1:{self.gateway.urls['127.0.0.1']}"
        self._proxy = self._start(starting(lambda headers, client: as_caddy(headers | {"host": host}, client)))

    def sock(self) -> ssl.SSLSocket:
        """A connection to the proxy from `LAPTOP`."""
        context = client_context(self.directory / "cert.pem")
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=60, source_address=(LAPTOP, 0))
        return context.wrap_socket(sock, server_hostname=NAME)


class Browser:
    """A browser on a page of the site; it connects by its cookie, if it has one."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.headers = {"Origin": f"https://{NAME}"}
        self._opened: list[HTTPConnection] = []

    def ask(self, method: str, path: str, message: object = None, **headers: str) -> HTTPResponse:
        """Send a request over a connection of its own, and return the beginning of its response."""
        connection = HTTPConnection(NAME)
        connection.sock = self._site.sock()
        self._opened.append(connection)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"Content-Type": "application/json", "X-Forwarded-For": FORGED} | self.headers | given
        given = {name: value for name, value in given.items() if value}
        body = None if message is None else json.dumps(message).encode()
        connection.request(method, self._site.path + path, body, given)
        return connection.getresponse()

    def sign_in(self, *options: str) -> str:
        """Sign in with a link of `acp-gateway open`, and return the header that sets the cookie."""
        page, _, code = run_program("open", "--config", self._site.gateway.config, *options).strip().partition("#")
        assert page == f"https://{NAME}{self._site.path}/"
        response = self.ask("POST", "/login", {"code": code})
        assert response.status == 200, response.read()
        (header,) = response.headers.get_all("Set-Cookie", [])
        TRACES.note_tokens_in(header)
        self.headers["Cookie"] = header.partition(";")[0]
        return header

    def connect(self) -> ClientConnection:
        """Open a WebSocket."""
        url = f"wss://{NAME}{self._site.path}/acp"
        # The socket speaks TLS already.
        plain = url.replace("wss:", "ws:")
        return connect(plain, sock=self._site.sock(), additional_headers=self.headers, proxy=None, open_timeout=60)

    def refused(self, **headers: str) -> int:
        """Return the status of the response to a request for a WebSocket."""
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
        key = {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        return self.ask("GET", "/acp", **upgrade, **key, **headers).status

    def stream(self) -> HTTPResponse:
        """Begin a connection over Streamable HTTP, and open its event stream."""
        opened = self.ask("POST", "/acp", INITIALIZE)
        assert (opened.status, json.loads(opened.read())["id"]) == (200, 0)
        connection_id = opened.headers["Acp-Connection-Id"]
        stream = self.ask("GET", "/acp", Accept="text/event-stream", Acp_Connection_Id=connection_id)
        assert (stream.status, stream.readline()) == (200, b":\n")
        return stream

    def close(self) -> None:
        for connection in self._opened:
            connection.close()


def starting(proxying: Proxying) -> StartProxy:
    """Return what starts a proxy of these tests."""
    return lambda gateway, _, path: Proxy(
        ("127.0.0.1", int(gateway.urls["127.0.0.1"])), gateway.directory, proxying, path
    )


@pytest.fixture(params=["nginx", "caddy", "haproxy"])
def proxy(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def start_proxy(proxy: str, below: bool) -> StartProxy:
    def as_its_nginx(headers: Headers, client: str) -> tuple[str, Headers]:
        return as_nginx(headers, client, "nginx-path" if below else "nginx")

    return starting({"nginx": as_its_nginx, "caddy": as_caddy, "haproxy": as_haproxy}[proxy])


@pytest.fixture
def below() -> bool:
    return False


@pytest.fixture(scope="module")
def sites() -> Iterator[dict[tuple[str, bool], Site]]:
    """Those that tests have left as they were."""
    kept: dict[tuple[str, bool], Site] = {}
    yield kept
    for site in kept.values():
        site.stop()


@pytest.fixture
def site(
    sites: dict[tuple[str, bool], Site],
    proxy: str,
    below: bool,
    start_proxy: StartProxy,
    tmp_path_factory: pytest.TempPathFactory,
) -> Site:
    if (proxy, below) not in sites:
        sites[proxy, below] = Site(tmp_path_factory.mktemp("site"), start_proxy, below=below)
    return sites[proxy, below]


@pytest.fixture
def changed(sites: dict[tuple[str, bool], Site], proxy: str, below: bool, site: Site) -> Iterator[None]:
    """Stop the site after a test that changes it."""
    yield
    sites.pop((proxy, below)).stop()


@pytest.fixture
def browser(site: Site) -> Iterator[Browser]:
    browser = Browser(site)
    try:
        yield browser
    finally:
        browser.close()


simple_proxy = pytest.mark.parametrize("proxy", ["nginx"])
everywhere = pytest.mark.parametrize("below", [False, True], ids=["root", "below"])


def end_of(client: ClientConnection) -> str:
    """Wait until a connection is closed, and return the reason that the gateway has given."""
    try:
        while True:
            client.recv(timeout=60)
    except ConnectionClosed as closed:
        return "" if closed.rcvd is None else closed.rcvd.reason


SIGNED_OUT = "this browser is not signed in any more"


@everywhere
def test_a_browser_signs_in_through_the_proxy_and_uses_the_endpoint_until_it_signs_out(
    site: Site, browser: Browser, below: bool
) -> None:
    page = browser.ask("GET", "/", Accept="text/html")
    assert (page.status, b"acp-gateway" in page.read()) == (200, True)
    header = browser.sign_in()
    name = "__Host-acp-gateway+gateway" if below else "__Host-acp-gateway"
    assert re.fullmatch(
        rf"{re.escape(name)}=acpgwb_\w+; Secure; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000", header
    )
    assert audited(site.gateway, "browser_signed_in")["address"] == LAPTOP
    stream = browser.stream()
    with browser.connect() as client:
        client.ping().wait(60)
        assert audited(site.gateway, "authenticated")["address"] == LAPTOP
        assert browser.ask("POST", "/logout", {}).status == 204
        assert end_of(client) == SIGNED_OUT
    stream.read()
    assert browser.refused() == 401


@everywhere
def test_the_page_and_its_files_come_through_the_proxy_unchanged(site: Site, browser: Browser) -> None:
    address = f"https://{NAME}{site.path}/"
    for name in re.findall(r'(?:href|src)="([^"]+)"', browser.ask("GET", "/").read().decode()):
        # As a browser resolves it, below the path or not.
        path = urljoin(address, name).removeprefix(f"https://{NAME}{site.path}")
        response = browser.ask("GET", path, Accept_Encoding="gzip")
        body = response.read()
        assert response.status == 200, name
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        content = gzip.decompress(body) if response.headers["Content-Encoding"] == "gzip" else body
        assert not path.startswith("/assets/") or content == load_assets(WEB)[path].content, name


@everywhere
@simple_proxy
def test_a_cookie_is_refused_through_the_proxy_without_the_origin_of_the_site(browser: Browser) -> None:
    browser.sign_in()
    for origin in ("", "null", "https://evil.example", f"http://{NAME}", f"https://{NAME}:8443"):
        assert browser.refused(Origin=origin) in (401, 403), origin
        assert browser.ask("POST", "/login", {"code": "x"}, Origin=origin).status == 403, origin
        assert browser.refused() == 101, origin


@everywhere
def test_a_browser_stays_signed_in_when_gateway_and_proxy_were_started_again(
    site: Site, browser: Browser, below: bool
) -> None:
    browser.sign_in()
    site.restart()
    with browser.connect() as client:
        client.ping().wait(60)


@pytest.mark.parametrize("below", [True])
@pytest.mark.usefixtures("changed")
@simple_proxy
def test_a_proxy_that_replaces_host_needs_only_the_public_url(site: Site, browser: Browser) -> None:
    site.replace_host()
    browser.sign_in()
    assert browser.refused() == 101
    assert browser.refused(Origin="https://evil.example") == 403


@pytest.mark.parametrize("below", [True])
@pytest.mark.usefixtures("changed")
@simple_proxy
def test_the_program_itself_reaches_the_gateway_below_the_path(site: Site) -> None:
    folder = site.directory
    run_program("certs", "create", "--host", "localhost", "--host", NAME, "--out", folder / "other")
    for name in ("cert.pem", "key.pem"):
        (folder / "other" / name).replace(folder / name)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace(f"https://{NAME}{PATH}", f"https://localhost{PATH}"))
    site.restart()
    options = ("--ca", str(folder / "cert.pem"), "--token-file", str(folder / "token"))
    target = f"wss://localhost:{site.port}{PATH}/acp"
    assert json.loads(run_program("sessions", target, "--json", *options))["sessions"] == []
    # Not the port of the target: the gateway knows its own address.
    assert run_program("open", "--target", target, *options).startswith(f"https://localhost{PATH}/#acpgwp_")


@pytest.mark.usefixtures("changed")
@simple_proxy
def test_token_revoke_ends_the_browsers_of_a_token_with_their_open_connections(site: Site, browser: Browser) -> None:
    listed = run_program("token", "list", "--plain", "--config", site.gateway.config)
    (token,) = re.findall(r"^([0-9a-f]{8}) .*\btests\b", listed, re.MULTILINE)
    browser.sign_in("--token", token)
    stream = browser.stream()
    with browser.connect() as client:
        run_program("token", "revoke", token, "--config", site.gateway.config)
        # New ones at once; open ones at the next check.
        assert browser.refused() == 401
        assert end_of(client) == SIGNED_OUT
    stream.read()
    ended = audited(site.gateway, "browser_ended")
    assert (ended["token"], ended["why"]) == (token, "token revoked")


@pytest.mark.usefixtures("changed")
@simple_proxy
def test_a_damaged_list_of_browsers_costs_their_sign_ins_and_nothing_else(site: Site, browser: Browser) -> None:
    token = {"Authorization": f"Bearer {site.gateway.token}"}
    program = Browser(site)
    program.headers = token
    browser.sign_in()
    file = site.directory / "state" / "browsers.json"
    remedy = "restore it, or remove it and sign in again"
    with program.connect() as kept, browser.connect() as client:
        file.write_text('{"version": 1, "codes": [')
        assert end_of(client) == SIGNED_OUT
        assert browser.refused() == 401
        kept.ping().wait(60)
    assert remedy in site.gateway.read_log_until("no browser is accepted")
    ready = program.ask("GET", "/readyz")
    assert (ready.status, remedy in ready.read().decode()) == (200, True)
    opened = CliRunner().invoke(main, ["open", "--config", str(site.gateway.config)], env=ENVIRONMENT)
    assert (opened.exit_code, remedy in opened.stderr) == (3, True)

    site.restart()
    # Said before it listens.
    assert remedy in "".join(site.gateway.log)
    assert (program.refused(), browser.refused()) == (101, 401)

    file.unlink()
    browser.sign_in()
    assert browser.refused() == 101
    program.close()
