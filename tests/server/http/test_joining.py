"""`POST /join`: the exchange of an invitation, and what else is sent there."""

import ipaddress
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.limits import LimitsSection
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.security.invitations import NO_INVITATION, InvitationStore
from tests.kit.echoing import WS, EchoingGateway, Response, ask, listening
from tests.server.http.test_sign_in import Book

JSON = "Content-Type: application/json"


async def join(listener: Any, body: object, *headers: str, method: str = "POST") -> Response:
    text = body if isinstance(body, str) else json.dumps(body)
    fields = headers or (JSON,)
    return await ask(listener, "/join", *fields, f"Content-Length: {len(text)}", method=method, body=text)


def invite(gateway: EchoingGateway) -> tuple[str, str]:
    """Make a guest's token; return its id and a code."""
    token, _ = gateway.tokens.create_guest("s1", role="observer", lifetime=3600.0, label="Bob")
    return token.id, InvitationStore(gateway.config.gateway.state_dir, gateway.tokens).invite(token)[1]


async def test_a_code_is_exchanged_for_the_token(gateway: EchoingGateway) -> None:
    token_id, code = invite(gateway)
    gateway.audit = audit = Book()
    async with listening(WS, gateway) as listener:
        response = await join(listener, {"code": code})
        assert (response.status, response.headers["cache-control"]) == (200, ["no-store"])
        said = json.loads(response.body)
        assert (said["tokenId"], said["role"], said["session"]) == (token_id, "observer", "s1")
        token = gateway.tokens.authenticate(said["token"])
        assert said["expires"] == token.expires
        again = await join(listener, {"code": code})
    assert again.status == 401
    assert NO_INVITATION in again.body
    (details,) = [details for event, details in audit.events if event == "invitation_accepted"]
    assert (details["id"], details["label"], details["session"]) == (token_id, "Bob", "s1")
    assert said["token"] not in str(audit.events)
    assert code not in str(audit.events)


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ((JSON, "Origin: http://127.0.0.1"), {}, 403),
        (("Content-Type: text/plain",), {}, 415),
        ((JSON,), "{", 400),
        ((JSON,), {}, 400),
        ((JSON,), {"code": "x", "more": 1}, 400),
        ((JSON,), '{"code":"acpgwi_wrong","code":"acpgwi_wrong"}', 400),
        ((JSON,), {"code": "acpgwi_wrong"}, 401),
        ((JSON,), {"code": "x" * 2000}, 413),
    ],
)
async def test_everything_else_is_refused(
    gateway: EchoingGateway, headers: tuple[str, ...], body: object, status: int
) -> None:
    async with listening(WS, gateway) as listener:
        assert (await join(listener, body, *headers)).status == status


async def test_where_nothing_can_be_stored_the_gateway_is_busy(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, code = invite(gateway)

    def fail(*_: object) -> None:
        raise ConfigError("disk full", file="/state/tokens.json")

    async with listening(WS, gateway) as listener:
        with monkeypatch.context() as patched:
            patched.setattr(InvitationStore, "accept", fail)
            response = await join(listener, {"code": code})
        assert response.status == 503
        assert "/state" not in response.body
        assert "invitations can't be accepted: /state/tokens.json: disk full" in caplog.text
        assert (await join(listener, {"code": code})).status == 200


@pytest.mark.usefixtures("hasty")
async def test_a_wrong_code_is_counted_from_whatever_address_it_comes(tmp_path: Path, spawner: Spawner) -> None:
    gateway = EchoingGateway(tmp_path / "state", spawner, trusted_proxies=(ipaddress.ip_network("127.0.0.1"),))
    gateway.config = replace(gateway.config, limits=LimitsSection(failed_attempts=2))
    async with listening(WS, gateway) as listener:
        addresses = [f"X-Forwarded-For: 192.0.2.{number}" for number in range(3)]
        answers = [await join(listener, {"code": "acpgwi_wrong"}, JSON, address) for address in addresses]
    assert [answer.status for answer in answers] == [401, 401, 429]
