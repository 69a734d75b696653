"""The routes of a listener for HTTP: what each path answers, and to which methods."""

import ipaddress
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.datastructures import Headers

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.browser.assets import FOLDER
from acp_gateway.dialects.editor import requests as editor
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.protocol.on_behalf import FOR, REQUEST
from acp_gateway.server.authentication import Client, ConnectionAuthorizer
from acp_gateway.server.http.route import Answer, BodyNeeded, Credential, Origins, Route
from acp_gateway.server.http.routes import HttpRoutes, SharedState
from acp_gateway.server.pending import PendingConnection
from acp_gateway.transports.http.server import Request, Response
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.streams import send_all
from acp_gateway.transports.websocket.stream import PASSED
from tests.kit.echoing import WS, EchoingGateway, ask, bearer, listening, open_next, port_of, upgrade
from tests.kit.http_client import EVENTS, INITIALIZE, JSON, Http
from tests.server.test_refusals import AuditLog

EDITOR = "https://editor.example"


@pytest.mark.parametrize(
    ("serves", "found"),
    [
        (("acp",), {"/", "/acp", "/healthz", "/readyz"}),
        (("metrics",), {"/healthz", "/readyz"}),
        (("chat",), {"/chat", "/healthz", "/readyz"}),
    ],
)
async def test_a_path_that_the_listener_does_not_serve_is_not_found(
    serves: tuple[str, ...], found: set[str], gateway: EchoingGateway
) -> None:
    async with listening(ListenSection(url=WS, serves=serves), gateway) as listener:
        answers = {path: await ask(listener, path) for path in ("/", "/acp", "/chat", "/healthz", "/readyz")}
        upgraded = await ask(listener, "/acp", *upgrade(bearer(gateway.token())))
    assert {path for path, answer in answers.items() if answer.status != 404} == found
    named = "/acp" if "acp" in serves else "/healthz"
    assert all(named in answer.body for answer in answers.values() if answer.status == 404)
    assert upgraded.status == (101 if "/acp" in found else 404)


async def test_readyz_says_ready_and_with_an_invalid_token_nothing(gateway: EchoingGateway) -> None:
    token = gateway.token()
    async with listening(WS, gateway) as listener:
        answers = [await ask(listener, "/readyz", *headers) for headers in ((), (bearer(token),), (bearer("acpgw_x"),))]
    assert [(answer.status, answer.body) for answer in answers[:2]] == [(200, "ready\n"), (200, "ready\n")]
    assert answers[2].status == 401


async def test_readyz_tells_the_reasons_only_to_a_valid_token_that_is_not_a_guests(gateway: EchoingGateway) -> None:
    token, guest = gateway.token(), gateway.tokens.create_guest("s", role="observer", lifetime=None)[1]
    async with listening(WS, gateway) as listener:
        gateway.readiness.set_listening(["wss://box:1/acp"], accepting=False)
        bare, guests = await ask(listener, "/readyz"), await ask(listener, "/readyz", bearer(guest))
        full = await ask(listener, "/readyz", bearer(token))
        wrong = await ask(listener, "/readyz", bearer("acpgw_x"))
    assert (bare.status, bare.body) == (guests.status, guests.body) == (503, "not ready\n")
    assert (full.status, full.body) == (503, "not ready\nwss://box:1/acp accepts no connections\n")
    assert wrong.status == 401


async def test_readyz_is_503_to_all_while_no_token_can_be_read(gateway: EchoingGateway, tmp_path: Path) -> None:
    token = gateway.token()
    (tmp_path / "state" / "tokens.json").write_text("[")
    async with listening(WS, gateway) as listener:
        answers = [await ask(listener, "/readyz", *headers) for headers in ((), (bearer(token),))]
    assert [(answer.status, answer.body) for answer in answers] == [(503, "not ready\n")] * 2


async def test_readyz_tells_a_token_why_no_browser_is_accepted_and_stays_200(
    gateway: EchoingGateway, tmp_path: Path
) -> None:
    token, guest = gateway.token(), gateway.tokens.create_guest("s1", role="observer", lifetime=None)[1]
    file = tmp_path / "state" / "browsers.json"
    file.write_text("{}")
    file.chmod(0o644)
    async with listening(WS, gateway) as listener:
        answers = [await ask(listener, "/readyz", *headers) for headers in ((), (bearer(guest),), (bearer(token),))]
    reason = f"{file}: others may use it (mode 0644): chmod 600 {file}"
    assert [(answer.status, answer.body) for answer in answers] == [
        (200, "ready\n"),
        (200, "ready\n"),
        (200, f"ready\n{reason}\n"),
    ]


async def test_readyz_is_503_while_the_gateway_stops(gateway: EchoingGateway) -> None:
    gateway.token()
    async with listening(WS, gateway) as listener:
        gateway.readiness.stopping = True
        assert (await ask(listener, "/readyz")).status == 503


# Pages


REFUSED: list[tuple[str, str, tuple[str, ...], int]] = [
    ("GET", "/acp", (), 401),
    ("GET", "/acp", ("Authorization: Bearer acpgw_wrong",), 401),
    ("POST", "/acp", ("{token}", "Content-Type: text/plain"), 415),
    ("POST", "/acp?agent=nothing", ("{token}", "Content-Type: application/json"), 404),
    ("POST", "/acp?agent=first&agent=second", ("{token}", "Content-Type: application/json"), 400),
    ("POST", "/acp", ("{token}", "Content-Type: application/json", "Content-Length: 100000"), 413),
    ("DELETE", "/acp", ("{token}", "Acp-Connection-Id: unknown"), 404),
    ("GET", "/acp", ("{token}", "Accept: text/plain"), 406),
    ("POST", "/acp", ("{metrics}", "Content-Type: application/json"), 403),
    ("PUT", "/acp", (), 405),
    ("POST", "/ws", (), 401),
    ("POST", "/ws", ("{token}",), 426),
    ("POST", "/chat", ("Authorization: Bearer acpgw_wrong",), 401),
    ("GET", "/login", (), 405),
    ("POST", "/acp/sendMessage", (), 401),
    ("POST", "/acp/nothing", (), 404),
    ("GET", "/nothing", (), 404),
]
"""Requests without a body, with further headers, and the status of their refusal."""


@pytest.mark.parametrize(("method", "target", "headers", "status"), REFUSED)
async def test_a_page_of_an_allowed_origin_may_read_each_refusal(
    method: str, target: str, headers: tuple[str, ...], status: int, gateway: EchoingGateway
) -> None:
    metrics = gateway.tokens.create("prometheus", None, None, role="metrics")[1]
    shown = [header.format(token=bearer(gateway.token()), metrics=bearer(metrics)) for header in headers]
    services: tuple[str, ...] = ("acp", "page", "chat", "editor")
    async with listening(ListenSection(url=WS, serves=services, allowed_origins=(EDITOR,)), gateway) as listener:
        allowed = await ask(listener, target, *shown, f"Origin: {EDITOR}", method=method)
        other = await ask(listener, target, *shown, "Origin: https://evil.example", method=method)
        none = await ask(listener, target, *shown, method=method)
    assert (allowed.status, none.status) == (status, status)
    assert allowed.headers["access-control-allow-origin"] == [EDITOR]
    assert allowed.headers["access-control-allow-credentials"] == ["true"]
    assert "Retry-After" in allowed.headers["access-control-expose-headers"][0]
    for answer in (other, none):
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert answer.headers["vary"] == ["Origin"]


@pytest.mark.parametrize(("method", "target", "headers", "status"), REFUSED)
async def test_the_page_of_the_gateway_itself_may_read_each_refusal(
    method: str, target: str, headers: tuple[str, ...], status: int, gateway: EchoingGateway
) -> None:
    metrics = gateway.tokens.create("prometheus", None, None, role="metrics")[1]
    shown = [header.format(token=bearer(gateway.token()), metrics=bearer(metrics)) for header in headers]
    async with listening(ListenSection(url=WS, serves=("acp", "page", "chat", "editor")), gateway) as listener:
        host = f"localhost:{port_of(listener)}"
        own = await ask(listener, target, *shown, f"Origin: http://{host}", method=method, host=host)
        # The name of another host does not make its page the gateway's own (DNS rebinding).
        host = f"evil.example:{port_of(listener)}"
        other = await ask(listener, target, *shown, f"Origin: http://{host}", method=method, host=host)
    assert (own.status, own.headers["access-control-allow-origin"]) == (
        status,
        [f"http://localhost:{port_of(listener)}"],
    )
    assert not [name for name in other.headers if name.startswith("access-control-")]


async def test_a_page_may_read_that_it_was_refused_too_often(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.server.handshake_limits.REFUSAL_DELAY", 0.001)
    async with listening(ListenSection(url=WS, allowed_origins=(EDITOR,)), gateway) as listener:
        for _ in range(gateway.config.limits.failed_attempts):
            await ask(listener, "/acp", bearer("acpgw_wrong"))
        refused = await ask(listener, "/acp", bearer("acpgw_wrong"), f"Origin: {EDITOR}")
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (429, [EDITOR])


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/"])
async def test_a_page_may_read_no_path_that_is_the_same_for_all_pages(path: str, gateway: EchoingGateway) -> None:
    section = ListenSection(url=WS, serves=("acp", "page", "metrics"), allowed_origins=(EDITOR,))
    async with listening(section, gateway) as listener:
        answer = await ask(listener, path, f"Origin: {EDITOR}")
    assert "access-control-allow-origin" not in answer.headers


async def test_the_gateways_own_page_may_read_a_refusal_but_not_under_another_hosts_name(
    gateway: EchoingGateway,
) -> None:
    async with listening(ListenSection(url=WS, serves=("acp", "page")), gateway) as listener:
        host = f"localhost:{port_of(listener)}"
        own = await ask(listener, "/acp", f"Origin: http://{host}", host=host)
        rebound = await ask(listener, "/acp", "Origin: https://evil.example", host="evil.example")
        twice = await ask(listener, "/acp", f"Origin: http://{host}", f"Origin: http://{host}", host=host)
    assert (own.status, own.headers["access-control-allow-origin"]) == (401, [f"http://{host}"])
    for answer in (rebound, twice):
        assert (answer.status, "access-control-allow-origin" in answer.headers) == (403, False)


# Proxies


def behind_proxies(tmp_path: Path, spawner: Spawner) -> tuple[EchoingGateway, AuditLog]:
    proxies = (ipaddress.ip_network("127.0.0.1"),)
    gateway = EchoingGateway(tmp_path / "state", spawner, trusted_proxies=proxies)
    gateway.audit = audit = AuditLog()
    return gateway, audit


async def requests(gateway: EchoingGateway, *asked: tuple[str, str, dict[str, str]]) -> list[int]:
    """The status of each request, all over one connection; afterwards the listener counts none."""
    async with listening(WS, gateway) as listener:
        async with await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream:
            http = Http(stream)
            body: Any = INITIALIZE
            answers = [
                (await http.ask(method, target, body if method == "POST" else None, **headers)).status
                for method, target, headers in asked
            ]
        limiter = listener._limiter
        while limiter._pending or limiter._refused:
            await trio.lowlevel.checkpoint()
        assert limiter._by_network == {}
    return answers


async def test_each_request_of_a_proxys_connection_counts_under_the_address_it_forwards(
    tmp_path: Path, spawner: Spawner
) -> None:
    gateway, audit = behind_proxies(tmp_path, spawner)
    statuses = await requests(
        gateway,
        ("GET", "/healthz", {"X-Forwarded-For": "192.0.2.1"}),
        ("GET", "/acp", {"X-Forwarded-For": "192.0.2.2"}),
    )
    assert statuses == [200, 401]
    (refused,) = audit.entries
    assert refused["address"] == "192.0.2.2"
    assert "(192.0.2.2 by way of 127.0.0.1:" in refused["connection"]


async def test_a_request_without_a_forwarded_address_counts_under_the_proxys_own(
    tmp_path: Path, spawner: Spawner
) -> None:
    gateway, audit = behind_proxies(tmp_path, spawner)
    await requests(gateway, ("GET", "/healthz", {"X-Forwarded-For": "192.0.2.1"}), ("GET", "/acp", {}))
    (refused,) = audit.entries
    assert refused["address"] == "127.0.0.1"
    assert "by way of" not in refused["connection"]


async def test_a_refusal_does_not_count_for_the_token_of_the_request_before(tmp_path: Path, spawner: Spawner) -> None:
    gateway, audit = behind_proxies(tmp_path, spawner)
    valid = {"Authorization": f"Bearer {gateway.token()}", "X-Forwarded-For": "192.0.2.1"}
    asked = ("GET", "/readyz", valid), ("GET", "/acp", {"X-Forwarded-For": "192.0.2.2", "Host": "evil.example"})
    assert await requests(gateway, *asked) == [200, 403]
    (refused,) = audit.entries
    assert (refused["address"], refused.get("credential")) == ("192.0.2.2", None)


async def test_an_authenticated_request_leaves_nothing_to_the_next_client_of_its_connection(
    tmp_path: Path, spawner: Spawner
) -> None:
    gateway, audit = behind_proxies(tmp_path, spawner)
    valid = {"Authorization": f"Bearer {gateway.token()}", "X-Forwarded-For": "192.0.2.1", "Acp-Connection-Id": "x"}
    asked = ("DELETE", "/acp", valid), ("GET", "/acp", {"X-Forwarded-For": "192.0.2.2", **EVENTS})
    assert await requests(gateway, *asked) == [404, 401]
    refused = audit.entries[-1]
    assert (refused["address"], refused.get("credential")) == ("192.0.2.2", None)


async def test_the_limits_of_failed_attempts_go_by_the_address_of_each_request(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.server.handshake_limits.REFUSAL_DELAY", 0.001)
    gateway, _ = behind_proxies(tmp_path, spawner)
    first, second = {"X-Forwarded-For": "192.0.2.1"}, {"X-Forwarded-For": "192.0.2.2"}
    async with listening(WS, gateway) as listener:
        statuses = []
        for number in range(gateway.config.limits.failed_attempts + 1):
            # The wrong token differs, or it would be counted itself.
            wrong = {"Authorization": f"Bearer acpgw_{number}"}
            async with await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream:
                http = Http(stream)
                await http.ask("GET", "/healthz", None, **first)
                statuses.append((await http.ask("POST", "/acp", INITIALIZE, **JSON, **second, **wrong)).status)
        async with await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream:
            other = await Http(stream).ask("GET", "/acp", None, **first)
    assert statuses == [401] * gateway.config.limits.failed_attempts + [429]
    assert other.status == 401


# Browsers

PAGE = ListenSection(url=WS, serves=("acp", "page"))
CHAT = ListenSection(url=WS, serves=("chat",))


@pytest.mark.parametrize(("path", "section"), [("/ws", PAGE), ("/chat", CHAT)])
async def test_a_dialect_is_there_where_it_is_served(
    path: str, section: ListenSection, gateway: EchoingGateway
) -> None:
    headers = upgrade(bearer(gateway.token()))
    plain_section = ListenSection(url=WS, serves=("acp",))
    async with listening(plain_section, gateway) as plain, open_next(section, gateway) as listener:
        assert (await ask(plain, path, *headers)).status == 404
        assert (await ask(listener, path, *headers)).status == 101
        assert (await ask(listener, path, *upgrade())).status == 401
        assert (await ask(listener, path, *upgrade(bearer("acpgw_x")))).status == 401
        assert (await ask(listener, path, *headers, host="evil.example")).status == 403
        assert (await ask(listener, path, *headers, "Origin: https://evil.example")).status == 403
        assert (await ask(listener, f"{path}?control=1", *headers)).status == 400
        assert (await ask(listener, f"{path}?agent=other", *headers)).status == 404
        plainly = await ask(listener, path, bearer(gateway.token()))
        assert (plainly.status, plainly.headers["upgrade"]) == (426, ["websocket"])
        deleted = await ask(listener, path, bearer(gateway.token()), method="DELETE")
        assert (deleted.status, deleted.headers["allow"]) == (405, ["GET, POST, OPTIONS"])


@pytest.mark.parametrize(("path", "section"), [("/ws", PAGE), ("/chat", CHAT)])
async def test_a_dialect_takes_a_token_among_the_subprotocols(
    path: str, section: ListenSection, gateway: EchoingGateway
) -> None:
    async with listening(section, gateway) as listener:
        offered = f"Sec-WebSocket-Protocol: acp.v1, acp.bearer.{gateway.token()}"
        response = await ask(listener, path, *upgrade(offered))
        assert (response.status, response.headers["sec-websocket-protocol"]) == (101, ["acp.v1"])


async def test_a_post_to_ws_tells_a_page_whether_it_is_signed_in(gateway: EchoingGateway) -> None:
    token = gateway.tokens.create("laptop", "ann", None)[0]
    signed_in = gateway.browsers.sign_in(gateway.browsers.make_code(token, "ann", label="phone")[1])
    async with listening(PAGE, gateway) as listener:
        host = f"localhost:{port_of(listener)}"
        fields = [f"Origin: http://{host}", f"Cookie: acp-gateway-{port_of(listener)}={signed_in.cookie}"]
        assert (await ask(listener, "/ws", *fields, method="POST", host=host)).status == 426
        assert (await ask(listener, "/ws", *upgrade(*fields), method="POST", host=host)).status == 426
        assert (await ask(listener, "/ws", fields[0], method="POST", host=host)).status == 401
        gateway.browsers.end(signed_in.browser.id)
        assert (await ask(listener, "/ws", *fields, method="POST", host=host)).status == 401


async def test_ws_is_refused_beyond_the_connections_of_its_identity(gateway: EchoingGateway) -> None:
    gateway.connections._limits = LimitsSection(connections_per_identity=1)
    token = gateway.token()
    async with listening(PAGE, gateway) as listener:
        stream = await connect_tcp("127.0.0.1", port_of(listener))
        head = "\r\n".join(["GET /ws HTTP/1.1", "Host: localhost", *upgrade(bearer(token)), "", ""])
        await send_all(stream, head.encode())
        assert b"101" in await stream.receive_some()
        while not len(gateway.connections):
            await trio.lowlevel.checkpoint()
        assert (await ask(listener, "/ws", *upgrade(bearer(token)))).status == 503
        await stream.aclose()


async def test_ws_takes_a_second_connection_of_a_page_that_is_counted_already(gateway: EchoingGateway) -> None:
    gateway.connections._limits = LimitsSection(connections_per_identity=1)
    token = gateway.token()
    async with listening(PAGE, gateway) as listener:
        streams = []
        for _ in range(2):
            stream = await connect_tcp("127.0.0.1", port_of(listener))
            lines = ["GET /ws?page=0123456789abcdef HTTP/1.1", "Host: localhost", *upgrade(bearer(token)), "", ""]
            await send_all(stream, "\r\n".join(lines).encode())
            assert b"101" in await stream.receive_some()
            streams.append(stream)
            while len(gateway.connections) < len(streams):
                await trio.lowlevel.checkpoint()
        for query in ("page=fedcba9876543210", "page=0123456789abcdef"):
            assert (await ask(listener, f"/ws?{query}", *upgrade(bearer(token)))).status == 503
        for stream in streams:
            await stream.aclose()


OURS = "http://localhost:1"
FOREIGN = ["https://evil.example", "null", "http://localhost:2", "https://localhost:1", f"{EDITOR}.evil.example", ""]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"]

SECTION = ListenSection(url=WS, serves=("acp", "page", "chat", "metrics", "editor"), allowed_origins=(EDITOR,))


class Table:
    """The table of a listener that serves everything; its handlers note what they are called with."""

    def __init__(self, gateway: EchoingGateway) -> None:
        shared = SharedState(gateway)
        self.routes = HttpRoutes(SECTION, gateway, shared, ConnectionAuthorizer(SECTION, gateway, shared.limiter))
        self.real = self.routes.table
        self.routes.table = {path: replace(route, answer=self._note) for path, route in self.real.items()}
        self.called: list[object] = []
        self.tokens = {
            "controller": gateway.token(),
            "observer": gateway.tokens.create("tablet", "ann", None, role="observer")[1],
            "guest": gateway.tokens.create_guest("s", role="controller", lifetime=None)[1],
            "metrics": gateway.tokens.create("prometheus", None, None, role="metrics")[1],
        }

    def _note(self, client: Client, request: Request, shown: object) -> Response:
        self.called.append(shown)
        return Response(200)

    def __iter__(self) -> Any:
        return iter(self.routes.table.items())

    def ask(self, method: str, path: str, *headers: tuple[str, str], host: str = "localhost:1") -> Answer:
        """Ask for a path, or for a file below a prefix."""
        stream: Any = type("Stream", (), {"peer_certificate": None})()
        unused: Any = None
        connection = PendingConnection(name="c", peer="192.0.2.1", listener="l", network="192.0.2.1", limited=True)
        target = f"{path}x/y.js" if path == FOLDER else path
        query = "session=s&path=a" if path == "/files" else ""
        request = Request(method, target, query, Headers([("Host", host), *headers]))
        return self.routes.answer(Client(connection, unused, stream), request)

    def status(self, method: str, path: str, *headers: tuple[str, str], host: str = "localhost:1") -> int:
        """The status of a refusal; 0 for a request that its handler has got, or gets with its body."""
        before = len(self.called)
        answer = self.ask(method, path, *headers, host=host)
        if isinstance(answer, BodyNeeded) or len(self.called) > before:
            return 0
        assert isinstance(answer, Response)
        return answer.status

    def good(self, route: Route) -> list[tuple[str, str]]:
        """Headers that a route lets through."""
        shown = [("Authorization", f"Bearer {self.tokens['controller']}")] * (route.credential is Credential.NEEDED)
        page = [("Origin", OURS)] * (route.origins is Origins.OURS_ONLY)
        return [*JSON.items(), *shown, *page]


@pytest.fixture
def table(gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch) -> Table:
    # The refusals of these tests are not to be answered with 429.
    monkeypatch.setattr("acp_gateway.server.handshake_limits.FailureCounter.add", lambda *_: False)
    return Table(gateway)


async def test_each_route_lets_a_right_request_through(table: Table) -> None:
    for path, route in table:
        for method in {*route.methods} - {"OPTIONS"}:
            assert table.status(method, path, *table.good(route)) == 0, (method, path)


async def test_each_route_refuses_another_method(table: Table) -> None:
    for path, route in table:
        for method in {*METHODS} - {*route.methods}:
            answer = table.ask(method, path, *table.good(route))
            assert isinstance(answer, Response)
            assert (answer.status, answer.headers["Allow"]) == (405, ", ".join(route.methods)), (method, path)
    assert table.called == []


@pytest.mark.parametrize("host", ["evil.example", "192.0.2.9", "localhost.evil.example", ""])
async def test_each_route_refuses_another_host(host: str, table: Table) -> None:
    for path, route in table:
        for method in route.methods:
            assert table.status(method, path, *table.good(route), host=host) == 403, (method, path)
            assert table.status(method, path, *(*table.good(route), ("Host", "localhost:1"))) == 403, (method, path)
    assert table.called == []


@pytest.mark.parametrize("origin", FOREIGN)
async def test_each_route_that_is_not_the_same_for_all_refuses_a_foreign_page(origin: str, table: Table) -> None:
    for path, route in table:
        if route.origins is Origins.ANY:
            continue
        good = [field for field in table.good(route) if field[0] != "Origin"]
        for method in route.methods:
            assert table.status(method, path, *good, ("Origin", origin)) == 403, (method, path)
            # Which of two a browser has sent can't be told.
            both = (("Origin", OURS), ("Origin", origin))
            assert table.status(method, path, *good, *both) == 403, (method, path)
    assert table.called == []


async def test_pages_and_programs_get_where_their_route_lets_them(table: Table) -> None:
    for path, route in table:
        good = [field for field in table.good(route) if field[0] != "Origin"]
        for origin in (OURS, EDITOR):
            expected = 403 if route.origins is Origins.NONE else 0
            assert table.status(route.methods[0], path, *good, ("Origin", origin)) == expected, path
        assert table.status(route.methods[0], path, *good) == (403 if route.origins is Origins.OURS_ONLY else 0), path


async def test_each_route_that_needs_a_principal_refuses_a_request_without_one(table: Table) -> None:
    wrong: list[tuple[tuple[str, str], ...]] = [
        (),
        (("Authorization", "Bearer acpgw_wrong"),),
        (("Authorization", "Basic YTpi"),),
        (("Authorization", "Bearer"),),
        (("Sec-WebSocket-Protocol", "acp.v1, acp.bearer.acpgw_wrong"),),
    ]
    for path, route in table:
        good = [field for field in table.good(route) if field[0] != "Authorization"]
        for method in {*route.methods} - {"OPTIONS"}:
            for shown in wrong:
                # A header without a token says that one was meant.
                token = shown and "Basic" not in shown[0][1]
                refused = route.credential is Credential.NEEDED or (route.credential is Credential.OPTIONAL and token)
                assert table.status(method, path, *good, *shown) == (401 if refused else 0), (method, path, shown)
    # Of a token that is wrong nothing is left, where one may be shown.
    assert set(table.called) == {None}


async def test_a_handler_gets_the_principal_that_its_route_has_checked(table: Table) -> None:
    for path, route in table:
        table.called.clear()
        table.ask(route.methods[0], path, *table.good(route), ("Authorization", ""))
        table.ask(route.methods[0], path, *table.good(route))
        names = [getattr(shown, "identity", None) for shown in table.called]
        assert names == (["ann"] if route.credential is Credential.NEEDED else [None, None])[: len(names)], path


async def test_a_cookie_counts_where_the_page_is_checked_and_nowhere_else(
    table: Table, gateway: EchoingGateway
) -> None:
    token = gateway.tokens.create("phone", "ann", None)[0]
    code = gateway.browsers.make_code(token, "ann", label="phone")[1]
    cookie = ("Cookie", f"acp-gateway-1={gateway.browsers.sign_in(code).cookie}")
    for path, route in table:
        if route.credential is Credential.NEEDED:
            checked = route.origins in (Origins.OURS, Origins.LOADED)
            with_origin = 0 if checked else 403 if route.origins is Origins.NONE else 401
            assert table.status(route.methods[0], path, cookie, ("Origin", OURS)) == with_origin, path
            assert table.status(route.methods[0], path, cookie) == (403 if checked else 401), path
            assert table.status(route.methods[0], path, cookie, cookie, ("Origin", OURS)) in (400, 401, 403), path


async def test_what_a_gateway_says_of_its_clients_is_for_a_route_that_has_passage(table: Table) -> None:
    for path, route in table:
        for name in (PASSED, FOR, REQUEST):
            # The others need the first one, and a claim has one spelling.
            status = 0 if route.passage and name == PASSED else 400
            assert table.status(route.methods[0], path, *table.good(route), (name, "0" * 16)) == status, (name, path)
    assert {path for path, route in table if not route.passage} >= {"/", "/healthz", "/login", "/join", "/metrics"}


async def test_a_path_of_a_node_is_checked_as_the_same_path_here_and_takes_no_word_of_a_gateway(table: Table) -> None:
    for path, route in table:
        at_node = f"/nodes/gpu1{path}"
        if not route.passage:
            assert table.status(route.methods[0], at_node, *table.good(route)) == 404, path
            continue
        # There are no nodes.
        assert table.status(route.methods[0], at_node, *table.good(route)) == 404, path
        assert table.status("PUT", at_node, *table.good(route)) == 405, path
        assert table.status(route.methods[0], at_node, ("Authorization", "Bearer x")) == 401, path
        assert table.status(route.methods[0], at_node, *table.good(route), ("Origin", "https://evil.example")) == 403
        assert table.status(route.methods[0], at_node, *table.good(route), (PASSED, "0" * 16)) == 400, path
    for path in ("/nodes", "/nodes/", "/nodes/gpu1", "/nodes//acp", "/nodes/gpu%31/acp", "/nodes/gpu1//acp"):
        assert table.status("GET", path, *table.good(dict(table)["/acp"])) == 404, path


async def test_a_code_is_taken_as_json_alone(table: Table) -> None:
    for path, route in table:
        if route.credential is Credential.CODE:
            others = [field for field in table.good(route) if field[0] != "Content-Type"]
            for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json, text/plain"):
                assert table.status("POST", path, *others, ("Content-Type", content_type)) == 415, path
            assert table.status("POST", path, *others) == 415, path


@pytest.mark.parametrize("origin", [OURS, EDITOR])
async def test_a_page_reads_each_refusal_and_its_preflight_names_the_methods_of_the_route(
    origin: str, table: Table
) -> None:
    page = ("Origin", origin)
    for path, route in table:
        names = {name for name, _ in table.routes.cors(request(path, page)).items()}
        assert ("Access-Control-Allow-Origin" in names) == (route.origins is not Origins.ANY), path
        if "OPTIONS" not in route.methods:
            continue
        answer = table.ask("OPTIONS", path, page, ("Access-Control-Request-Method", route.methods[0]))
        assert isinstance(answer, Response)
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Methods"] == ", ".join(route.methods)
        assert "authorization" in answer.headers["Access-Control-Allow-Headers"]
    assert "Access-Control-Allow-Origin" in table.routes.cors(request("/nothing", page))
    assert table.called == []


@pytest.mark.parametrize("origin", FOREIGN)
async def test_no_foreign_page_reads_anything(origin: str, table: Table) -> None:
    for path, _ in table:
        given = table.routes.cors(request(path, ("Origin", origin)))
        assert not [name for name in given if name.startswith("Access-Control-")], path


def request(path: str, *headers: tuple[str, str]) -> Request:
    return Request("POST", path, "", Headers([("Host", "localhost:1"), *headers]))


@pytest.mark.parametrize("missing", [field.name for field in fields(Route)])
def test_a_route_without_a_part_of_its_policy_can_not_be_made(missing: str) -> None:
    everything: dict[str, Callable[..., Any] | object] = {
        "methods": ("GET",),
        "origins": Origins.ANY,
        "passage": False,
        "credential": Credential.NONE,
        "answer": print,
    }
    Route(**everything)  # type: ignore[arg-type]
    del everything[missing]
    with pytest.raises(TypeError, match=missing):
        Route(**everything)  # type: ignore[arg-type]
    assert all(field.default is MISSING and field.default_factory is MISSING for field in fields(Route))


# Roles, by the handlers themselves


@pytest.mark.parametrize("role", ["observer", "guest", "controller", "metrics"])
async def test_a_role_gets_no_further_than_it_may(role: str, table: Table) -> None:
    table.routes.table = table.real
    shown = [*JSON.items(), ("Accept", "*/*"), ("Authorization", f"Bearer {table.tokens[role]}")]
    for path, route in table:
        if route.credential is not Credential.NEEDED or path in ("/ws", "/chat"):
            continue
        answer = table.ask(route.methods[0] if path != "/acp" else "POST", path, *shown)
        status = answer.status if isinstance(answer, Response) else 0
        metrics = path == "/metrics"
        refused = (
            metrics != (role == "metrics")
            or path == "/nodes/lend"
            or (role in ("observer", "guest") and path in editor.ACTS)
        )
        # No session is open here.
        unknown = path == "/files" or (role == "guest" and path == "/acp")
        assert status == (403 if refused else 404 if unknown else 0), path
