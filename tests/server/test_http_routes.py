"""The routes of a listener for HTTP: what each path answers, and to which methods."""

from pathlib import Path

import pytest

from acp_gateway.config.load import ListenSection
from acp_gateway.config.options import Service
from tests.server.echoing import WS, EchoingGateway, ask, bearer, listening, upgrade


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
    ("serves", "found"), [(("acp",), {"/", "/acp", "/healthz", "/readyz"}), (("metrics",), {"/healthz", "/readyz"})]
)
async def test_a_path_that_the_listener_does_not_serve_is_not_found(
    serves: tuple[Service, ...], found: set[str], gateway: EchoingGateway
) -> None:
    async with listening(ListenSection(url=WS, serves=serves), gateway) as listener:
        answers = {path: await ask(listener, path) for path in ("/", "/acp", "/healthz", "/readyz")}
        upgraded = await ask(listener, "/acp", *upgrade(bearer(gateway.token())))
    assert {path for path, answer in answers.items() if answer.status != 404} == found
    assert all("/healthz" in answer.body for answer in answers.values() if answer.status == 404)
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


async def test_readyz_tells_the_reasons_only_to_a_valid_token_that_is_no_guests(gateway: EchoingGateway) -> None:
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


async def test_readyz_is_503_while_the_gateway_stops(gateway: EchoingGateway) -> None:
    gateway.token()
    async with listening(WS, gateway) as listener:
        gateway.readiness.stopping = True
        assert (await ask(listener, "/readyz")).status == 503
