"""The routes of a listener for HTTP: what each path answers, and to which methods."""

import ipaddress
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.listeners import Service
from acp_gateway.config.load import ListenSection
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.websocket.stream import send_all
from tests.server.echoing import WS, EchoingGateway, ask, bearer, listening, open_next, port_of, upgrade
from tests.server.http_client import EVENTS, INITIALIZE, JSON, Http
from tests.server.test_refusals import AuditLog

EDITOR = "https://editor.example"


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 200, None),
        ("HEAD", "/", 200, None),
        ("POST", "/", 405, "GET, HEAD"),
        ("GET", "/healthz", 200, None),
        ("HEAD", "/healthz", 200, None),
        ("DELETE", "/healthz", 405, "GET, HEAD"),
        ("GET", "/readyz", 200, None),
        ("HEAD", "/readyz", 200, None),
        ("POST", "/readyz", 405, "GET, HEAD"),
        ("PUT", "/acp", 405, "GET, POST, DELETE, OPTIONS"),
        ("OPTIONS", "/acp", 204, None),
        ("GET", "/acp", 401, None),
        ("GET", "/nothing", 404, None),
        ("POST", "/nothing", 404, None),
    ],
)
async def test_a_path_and_its_methods(
    method: str, path: str, status: int, allow: str | None, gateway: EchoingGateway
) -> None:
    async with listening(WS, gateway) as listener:
        response = await ask(listener, path, method=method)
    assert (response.status, response.headers.get("allow", [allow])[0] if allow else None) == (status, allow)
    if method == "HEAD":
        assert response.body == ""


@pytest.mark.parametrize(
    ("serves", "found"),
    [
        (("acp",), {"/", "/acp", "/healthz", "/readyz"}),
        (("metrics",), {"/healthz", "/readyz"}),
        (("chat",), {"/chat", "/healthz", "/readyz"}),
    ],
)
async def test_a_path_that_the_listener_does_not_serve_is_not_found(
    serves: tuple[Service, ...], found: set[str], gateway: EchoingGateway
) -> None:
    async with listening(ListenSection(url=WS, serves=serves), gateway) as listener:
        answers = {path: await ask(listener, path) for path in ("/", "/acp", "/chat", "/healthz", "/readyz")}
        upgraded = await ask(listener, "/acp", *upgrade(bearer(gateway.token())))
    assert {path for path, answer in answers.items() if answer.status != 404} == found
    named = "/acp" if "acp" in serves else "/healthz"
    assert all(named in answer.body for answer in answers.values() if answer.status == 404)
    assert upgraded.status == (101 if "/acp" in found else 404)


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/acp", "/nothing"])
async def test_a_foreign_host_name_is_refused_on_loopback_whatever_the_path(path: str, gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as listener:
        assert (await ask(listener, path, host="evil.example")).status == 403


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
        bare = await ask(listener, "/readyz")
        guests = await ask(listener, "/readyz", bearer(guest))
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
    services: tuple[Service, ...] = ("acp", "page", "chat", "editor")
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


async def test_a_page_may_read_that_it_was_refused_too_often(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.server.refusals.REFUSAL_DELAY", 0.001)
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
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (listener._limiter._pending, listener._limiter._by_network, listener._limiter._refused) == (0, {}, {})
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
    monkeypatch.setattr("acp_gateway.server.refusals.REFUSAL_DELAY", 0.001)
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


@pytest.mark.parametrize("path", ["/ws", "/chat"])
async def test_a_dialect_takes_a_cookie_with_an_origin_of_its_own_page_only(path: str, gateway: EchoingGateway) -> None:
    token = gateway.tokens.create("laptop", "ann", None)[0]
    cookie = gateway.browsers.sign_in(gateway.browsers.make_code(token, "ann", label="phone")[1]).cookie
    async with listening(ListenSection(url=WS, serves=("acp", "page", "chat")), gateway) as listener:
        host = f"localhost:{port_of(listener)}"
        fields = upgrade(f"Cookie: acp-gateway-{port_of(listener)}={cookie}")
        assert (await ask(listener, path, *fields, f"Origin: http://{host}", host=host)).status == 101
        assert (await ask(listener, path, *fields, host=host)).status == 403
        assert (await ask(listener, path, *fields, "Origin: http://localhost:1", host=host)).status == 403


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
