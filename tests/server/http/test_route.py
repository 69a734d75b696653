"""The policy of each route, held against every request that it has to stop: without a handler, and over the table.

A later route is tested as well: its record says what is expected of it. What handlers ask of roles comes last.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from websockets.datastructures import Headers

from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.editor import requests as editor
from acp_gateway.protocol.on_behalf import FOR, REQUEST
from acp_gateway.server.authentication import Authenticator
from acp_gateway.server.authorization import Client, ConnectionAuthorizer
from acp_gateway.server.http.assets import FOLDER
from acp_gateway.server.http.route import Answer, BodyNeeded, Credential, Origins, Route
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.server.pending import PendingConnection
from acp_gateway.server.shared import SharedState
from acp_gateway.transports.http.server import Request, Response
from acp_gateway.transports.websocket.stream import PASSED
from tests.server.echoing import WS, EchoingGateway

EDITOR = "https://editor.example"
OURS = "http://localhost:1"
FOREIGN = ["https://evil.example", "null", "http://localhost:2", "https://localhost:1", f"{EDITOR}.evil.example", ""]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"]
JSON = {"Content-Type": "application/json"}

SECTION = ListenSection(url=WS, serves=("acp", "page", "chat", "metrics", "editor"), allowed_origins=(EDITOR,))


class Table:
    """The table of a listener that serves everything; its handlers note what they are called with."""

    def __init__(self, gateway: EchoingGateway) -> None:
        shared = SharedState(gateway)
        authorizer = ConnectionAuthorizer(gateway, shared.limiter, Authenticator(SECTION, gateway))
        self.routes = HttpRoutes(SECTION, gateway, shared, authorizer)
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
        request = Request(method, target, "", Headers([("Host", host), *headers]))
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
    monkeypatch.setattr("acp_gateway.server.refusals.FailureCounter.add", lambda *_: False)
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
            twice = (*table.good(route), ("Host", "localhost:1"))
            assert table.status(method, path, *twice) == 403, (method, path)
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
            checked = route.origins is Origins.OURS
            assert table.status(route.methods[0], path, cookie, ("Origin", OURS)) == (0 if checked else 401), path
            assert table.status(route.methods[0], path, cookie) == (403 if checked else 401), path
            assert table.status(route.methods[0], path, cookie, cookie, ("Origin", OURS)) in (400, 401), path


async def test_what_a_gateway_says_of_its_clients_is_for_a_websocket_of_a_route_that_has_passage(table: Table) -> None:
    upgrade = [("Upgrade", "websocket"), ("Connection", "Upgrade")]
    for path, route in table:
        for name in (PASSED, FOR, REQUEST):
            said = (*table.good(route), (name, "0" * 16))
            assert table.status(route.methods[0], path, *said) == 400, (name, path)
            assert table.status(route.methods[0], path, *said, *upgrade) == (0 if route.passage else 400), (name, path)
    assert {path for path, route in table if route.passage} == {"/acp"}


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
        refused = metrics != (role == "metrics") or (role in ("observer", "guest") and path in editor.ACTS)
        # A guest's session is not open here.
        assert status == (403 if refused else 404 if role == "guest" and path == "/acp" else 0), path
