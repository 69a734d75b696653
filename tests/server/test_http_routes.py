"""The routes of a listener for HTTP: what each path answers, and to which methods."""

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


@pytest.mark.parametrize(("serves", "found"), [(("acp",), {"/", "/acp", "/healthz"}), (("metrics",), {"/healthz"})])
async def test_a_path_that_the_listener_does_not_serve_is_not_found(
    serves: tuple[Service, ...], found: set[str], gateway: EchoingGateway
) -> None:
    async with listening(ListenSection(url=WS, serves=serves), gateway) as listener:
        answers = {path: await ask(listener, path) for path in ("/", "/acp", "/healthz")}
        upgraded = await ask(listener, "/acp", *upgrade(bearer(gateway.token())))
    assert {path for path, answer in answers.items() if answer.status != 404} == found
    assert all("/healthz" in answer.body for answer in answers.values() if answer.status == 404)
    assert upgraded.status == (101 if "/acp" in found else 404)


@pytest.mark.parametrize("path", ["/", "/healthz", "/acp", "/nothing"])
async def test_a_foreign_host_name_is_refused_on_loopback_whatever_the_path(path: str, gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as listener:
        assert (await ask(listener, path, host="evil.example")).status == 403
