"""The promises of docs/reverse-proxies.md, whose blocks are played by a proxy that obeys them."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any, Protocol

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from acp_gateway.config.options import GatewaySection
from acp_gateway.dialects.http.streamable_http import COMMENT_INTERVAL
from tests.kit.proxies import (
    FORGED,
    LAPTOP,
    ROOT,
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


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with the page's configuration, and a second listener whose proxy is not known to it."""
    directory = tmp_path_factory.mktemp("deploy")
    block = checked_block("gateway").replace("[gateway]\n", f'[gateway]\nstate_dir = "{directory}/state"\n')
    assert "ws://127.0.0.1:7080" in block
    (directory / "config.toml").write_text(
        block.replace(":7080", ":0")
        + fenced(
            f'[agents.a]\ncommand = ["{sys.executable}", "{ROOT}/examples/demo_agent.py", "--delay", "0"]\n', directory
        )
        + f'[workspaces.here]\nroot = "{WORK}"\n[[listen]]\nurl = "ws://127.0.0.3:0"\n'
    )
    run_program("certs", "create", "--host", "gpu.example", "--host", "localhost", "--out", directory)
    token = run_program("token", "create", "--config", directory / "config.toml", "--label", "tests")
    (directory / "token").touch(0o600)
    (directory / "token").write_text(token)
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--config", str(directory / "config.toml")],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = RunningGateway(directory, process, "")
    for _ in range(2):
        found = re.search(r"listening on ws://(\S+):(\d+)/", running.read_log_until("listening on "))
        assert found is not None
        running.urls[found[1]] = found[2]
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


@pytest.fixture(params=[as_nginx, as_caddy, as_haproxy], ids=["nginx", "caddy", "haproxy"])
def proxying(request: pytest.FixtureRequest) -> Proxying:
    found: Proxying = request.param
    return found


@contextmanager
def proxy_of(gateway: RunningGateway, proxying: Proxying, host: str = "127.0.0.1") -> Iterator[Proxy]:
    proxy = Proxy((host, int(gateway.urls[host])), gateway.directory, proxying)
    try:
        yield proxy
    finally:
        proxy.stop()


class ReverseProxy(Protocol):
    """Proxy of a client, a real one or not."""

    port: int


def ask(
    gateway: RunningGateway, proxy: ReverseProxy, token: str, name: str = "gpu.example", **headers: str
) -> ClientConnection:
    """A client at `LAPTOP` that asks for the gateway by that name, by way of the proxy."""
    context = client_context(gateway.directory / "cert.pem")
    sock = socket.create_connection(("127.0.0.1", proxy.port), timeout=60, source_address=(LAPTOP, 0))
    given = {"Authorization": f"Bearer {token}", "X-Forwarded-For": FORGED} | headers
    return connect(
        f"wss://{name}/acp",
        sock=sock,
        ssl=context,
        server_hostname="gpu.example",
        additional_headers=given,
        proxy=None,
        open_timeout=60,
    )


class HttpClient:
    """A client at `LAPTOP` that speaks Streamable HTTP with the gateway, by way of the proxy."""

    def __init__(self, gateway: RunningGateway, proxy: ReverseProxy) -> None:
        self._proxy = proxy
        self._context = client_context(gateway.directory / "cert.pem")
        self._headers = {"Authorization": f"Bearer {gateway.token}"}
        self._opened: list[HTTPConnection] = []

    def ask(self, method: str, message: dict[str, object] | None = None, **headers: str) -> HTTPResponse:
        """Send a request over a connection of its own, and return the beginning of its response."""
        sock = socket.create_connection(("127.0.0.1", self._proxy.port), timeout=60, source_address=(LAPTOP, 0))
        connection = HTTPConnection("gpu.example")
        connection.sock = self._context.wrap_socket(sock, server_hostname="gpu.example")
        self._opened.append(connection)
        body = None if message is None else json.dumps({"jsonrpc": "2.0"} | message).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, "/acp", body, {"Content-Type": "application/json"} | self._headers | given)
        response = connection.getresponse()
        if "Acp-Connection-Id" in response.headers:
            self._headers["Acp-Connection-Id"] = response.headers["Acp-Connection-Id"]
        return response

    def post(self, **message: object) -> int:
        """Send a message, and return the status of its response."""
        response = self.ask("POST", message)
        response.read()
        return response.status

    def stream(self, **headers: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Open an event stream; ids and messages of its events. Each comes before the stream has ended."""
        response = self.ask("GET", None, Accept="text/event-stream", **headers)
        assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream")
        assert response.readline() == b":\n"
        return events_of(response)

    def close(self) -> None:
        for connection in self._opened:
            connection.close()


def events_of(response: HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    event_id = ""
    while line := response.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "id":
            event_id = value
        elif name == "data":
            yield event_id, json.loads(value)


@contextmanager
def http_client(gateway: RunningGateway, proxy: ReverseProxy) -> Iterator[HttpClient]:
    client = HttpClient(gateway, proxy)
    try:
        yield client
    finally:
        client.close()


def audited(gateway: RunningGateway, event: str) -> dict[str, Any]:
    """The last entry of the audit about this."""
    entries = [json.loads(line) for line in (gateway.directory / "state" / "audit.jsonl").read_text().splitlines()]
    found: dict[str, Any] = [entry for entry in entries if entry["event"] == event][-1]
    return found


def test_a_client_comes_in_through_the_proxy_and_is_known_by_its_own_address(
    gateway: RunningGateway, proxying: Proxying
) -> None:
    with proxy_of(gateway, proxying) as proxy, ask(gateway, proxy, gateway.token) as client:
        client.ping().wait(60)
        assert client.response is not None
        assert "Acp-Connection-Id" in client.response.headers
    assert audited(gateway, "authenticated")["address"] == LAPTOP


def test_who_is_refused_is_known_by_its_own_address_too(gateway: RunningGateway, proxying: Proxying) -> None:
    with proxy_of(gateway, proxying) as proxy:
        with pytest.raises(InvalidStatus) as refused:
            ask(gateway, proxy, "wrong")
        assert refused.value.response.status_code == 401
    assert audited(gateway, "refused")["address"] == LAPTOP


@pytest.mark.parametrize(("listener", "name"), [("127.0.0.1", "evil.example"), ("127.0.0.3", "gpu.example")])
def test_a_name_that_is_not_allowed_is_refused_on_loopback(
    listener: str, name: str, gateway: RunningGateway, proxying: Proxying
) -> None:
    with proxy_of(gateway, proxying, listener) as proxy:
        with pytest.raises(InvalidStatus) as refused:
            ask(gateway, proxy, gateway.token, name)
        assert refused.value.response.status_code == 403
        assert b"allowed_hosts" in refused.value.response.body


def test_the_program_itself_works_through_the_proxy(gateway: RunningGateway, proxying: Proxying) -> None:
    with proxy_of(gateway, proxying) as proxy:
        certificate, token = gateway.directory / "cert.pem", gateway.token_file
        target = f"wss://localhost:{proxy.port}"
        said = run_program("sessions", target, "--json", "--ca", certificate, "--token-file", token)
        assert json.loads(said) == {"sessions": [], "more": 0}


def test_a_link_that_the_proxy_cuts_resumes_through_it(gateway: RunningGateway, proxying: Proxying) -> None:
    with proxy_of(gateway, proxying) as proxy:
        with ask(gateway, proxy, gateway.token, **{"Acp-Gateway-Resume": "0"}) as client:
            assert client.response is not None
            link = client.response.headers["Acp-Connection-Id"]
            proxy.cut()
        again = {"Acp-Gateway-Resume": "0", "Acp-Connection-Id": link}
        with ask(gateway, proxy, gateway.token, **again) as client:
            assert client.response is not None
            assert client.response.headers["Acp-Connection-Id"] == link


def hold_conversation(gateway: RunningGateway, proxy: ReverseProxy, cut: Callable[[], None]) -> None:
    """A turn over Streamable HTTP with a prompt that is larger than proxies take by default, `cut` in its middle."""
    with http_client(gateway, proxy) as client:
        assert client.post(id=0, method="initialize", params={"protocolVersion": 1}) == 200
        events = client.stream()
        assert client.post(id=1, method="session/new", params={"cwd": str(WORK), "mcpServers": []}) == 202
        session = next(events)[1]["result"]["sessionId"]
        events = client.stream(Acp_Session_Id=session)
        prompt = [{"type": "text", "text": "x" * 2 * 1024 * 1024}]
        assert client.post(id=2, method="session/prompt", params={"sessionId": session, "prompt": prompt}) == 202
        last, first = next(events)
        assert first["params"]["update"]["content"]["text"] == "This "
        cut()
        events = client.stream(Acp_Session_Id=session, Last_Event_ID=last)
        assert next(events)[1]["params"]["update"]["content"]["text"] == "is "
        request = next(message for _, message in events if message.get("method") == "session/request_permission")
        selected = {"outcome": {"outcome": "selected", "optionId": "allow"}}
        assert client.post(id=request["id"], result=selected) == 202
        assert next(message for _, message in events if "id" in message)["result"] == {"stopReason": "end_turn"}
        assert client.ask("DELETE").status == 202
        # The stream has an end, and no event behind it.
        assert list(events) == []
    assert audited(gateway, "authenticated")["address"] == LAPTOP


def test_events_pass_the_proxy_one_by_one_and_a_stream_that_it_cuts_continues(
    gateway: RunningGateway, proxying: Proxying
) -> None:
    with proxy_of(gateway, proxying) as proxy:
        hold_conversation(gateway, proxy, proxy.cut)


def test_the_timeouts_of_the_proxy_are_longer_than_a_ping_and_its_answer_and_the_comments_of_a_stream() -> None:
    pings = GatewaySection().ping_interval + GatewaySection().ping_timeout
    timeouts = re.findall(r"proxy_(?:read|send)_timeout (\d+)s;", checked_block("nginx"))
    assert len(timeouts) == 2
    assert all(float(seconds) > max(pings, COMMENT_INTERVAL) for seconds in timeouts)


def test_the_proxy_takes_bodies_as_large_as_max_message_size() -> None:
    (mebibytes,) = re.findall(r"client_max_body_size (\d+)m;", checked_block("nginx"))
    assert int(mebibytes) * 1024 * 1024 == GatewaySection().max_message_size


WORDS = {
    "nginx": {"server", "listen", "server_name", "ssl_certificate", "ssl_certificate_key", "location", "proxy_pass"}
    | {"proxy_http_version", "proxy_set_header", "proxy_read_timeout", "proxy_send_timeout"}
    | {"proxy_buffering", "client_max_body_size"},
    "caddy": {"gpu.example", "reverse_proxy", "redir", "handle_path"},
    "haproxy": {"defaults", "frontend", "backend", "mode", "bind", "timeout", "option", "server"}
    | {"default_backend", "use_backend", "http-request"},
}
"""First words of lines that nginx 1.22, Caddy 2.6 and HAProxy 2.6 know, as later versions do: Debian 12 has these."""


@pytest.mark.parametrize("name", ["nginx", "caddy", "haproxy", "nginx-path", "caddy-path", "haproxy-path"])
def test_the_block_of_a_proxy_has_no_option_that_a_stable_distribution_s_version_lacks(name: str) -> None:
    block = checked_block(name)
    assert {line.split()[0] for line in block.splitlines() if line.strip(" }")} <= WORDS[name.partition("-")[0]]
    assert block.count("{") == block.count("}")


def test_the_location_below_a_path_has_the_settings_of_the_other_one() -> None:
    whole = checked_block("nginx")
    location = whole[whole.index("    location / {") : whole.rindex("}")]
    below = location.replace("location /", "location /gateway/").replace(":7080;", ":7080/;")
    assert checked_block("nginx-path") == below
