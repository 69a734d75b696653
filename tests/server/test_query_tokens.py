"""Tokens in the query, at the listeners of windows and nowhere else."""

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from websockets.datastructures import Headers

from acp_gateway.config.load import ListenSection
from acp_gateway.security.token_format import mint
from acp_gateway.server.hello import with_token_in_header
from acp_gateway.server.listener import Listener
from acp_gateway.transports.http.server import Request
from tests.kit.echoing import (
    TCP,
    WS,
    EchoingGateway,
    answer_to,
    ask,
    bearer,
    hello,
    listening,
    open_next,
    upgrade,
)

pytestmark = pytest.mark.usefixtures("no_bug_showed")

WINDOWS = ListenSection(url=WS, serves=("ahp",))


def window_token(gateway: EchoingGateway, **rights: object) -> str:
    return gateway.tokens.create("window", "ann", None, made_for="vscode", **rights)[1]  # type: ignore[arg-type]


def read_all(folder: Path) -> str:
    """The content of all files of text below a folder."""
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


async def status(listener: Listener, target: str, *headers: str) -> int:
    return (await ask(listener, target, *upgrade(*headers))).status


async def test_a_window_shows_its_token_in_the_query_or_in_the_header(gateway: EchoingGateway) -> None:
    token = window_token(gateway)
    async with listening(WINDOWS, gateway) as listener:
        for target, *headers in (
            (f"/?tkn={token}",),
            (f"/?observe=1&tkn={token}", "Origin: vscode-file://vscode-app"),
            ("/", bearer(token)),
            (f"/?tkn={token}", bearer(token), "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"),
        ):
            answer = await ask(listener, target, *upgrade(*headers))
            assert answer.status == 101, (target, headers)
            assert "sec-websocket-extensions" not in answer.headers
    assert [request.observe for request in gateway.connect_requests] == [False, True, False, False]


@pytest.mark.parametrize(
    "shown", ["", "/?tkn=", "/?tkn={wrong}", "/?tkn={other}", "{wrong}", "{other}", "/?TKN={window}"]
)
async def test_a_missing_or_wrong_token_is_refused_at_the_upgrade_as_by_a_host_of_vs_code(
    shown: str, gateway: EchoingGateway
) -> None:
    tokens = {"wrong": mint("vscode"), "other": gateway.token(), "window": window_token(gateway)}
    text = shown.format_map(tokens)
    target, headers = (text or "/", ()) if text[:1] in ("", "/") else ("/", (bearer(text),))
    async with listening(WINDOWS, gateway) as listener:
        answer = await ask(listener, target, *upgrade(*headers))
    assert (answer.status, answer.body[:25]) == (403, "no valid token for a wind")
    assert gateway.connect_requests == []


async def test_two_tokens_are_refused(gateway: EchoingGateway) -> None:
    token, other = window_token(gateway), window_token(gateway)
    async with listening(WINDOWS, gateway) as listener:
        assert await status(listener, f"/?tkn={token}&tkn={token}") == 400
        assert await status(listener, f"/?tkn={token}", bearer(other)) == 400


async def test_a_token_of_a_window_opens_nothing_else(gateway: EchoingGateway, certificate: Path) -> None:
    token = window_token(gateway)
    section = ListenSection(url=WS, serves=("acp", "page", "ports", "chat", "editor", "ahp", "metrics"))
    async with listening(section, gateway) as listener, AsyncExitStack() as others:
        for path in ("/acp", "/ws", "/chat", "/ahp", "/ports/1", "/files", "/nodes/lend", "/nodes/gpu/ahp", "/metrics"):
            assert await status(listener, path, bearer(token)) == 403, path
            # In the query, nothing is a token.
            assert await status(listener, f"{path}?tkn={token}") in (400, 401), path
            assert await status(listener, f"{path}?tkn={gateway.token()}") in (400, 401), path
        lines = await others.enter_async_context(open_next(TCP, gateway))
        assert (await answer_to(lines, hello(token=token)))["error"]["code"] == 403
    assert gateway.served == []


async def test_a_listener_of_windows_has_no_other_route(gateway: EchoingGateway) -> None:
    token = window_token(gateway)
    async with listening(WINDOWS, gateway) as listener:
        for path in ("/acp", "/ws", "/chat", "/ahp", "/ports/1", "/login", "/join", "/nodes/lend", "/nodes/gpu/ahp"):
            assert await status(listener, f"{path}?tkn={token}", bearer(token)) == 404, path
        assert await status(listener, "/healthz") == 200
    assert gateway.connect_requests == []


async def test_a_window_that_dials_for_ever_keeps_no_other_client_out(gateway: EchoingGateway, hasty: None) -> None:
    token = window_token(gateway)
    async with listening(WINDOWS, gateway) as listener:
        limit = gateway.config.limits.failed_attempts
        statuses = [
            await status(listener, f"/?tkn={mint('vscode') if not turn else token[:-1]}") for turn in range(3 * limit)
        ]
        assert statuses[: limit + 1] == [403] * (limit + 1)
        assert await status(listener, f"/?tkn={token}") == 101
        # Neither does the address suffer for it.
        assert await status(listener, f"/?tkn={mint('vscode')}") == 403


async def test_the_token_of_a_query_is_nowhere_in_logs_audit_and_reprs(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    right, wrong = window_token(gateway), mint("vscode")
    async with listening(WINDOWS, gateway) as listener:
        targets = (
            f"/?tkn={right}",
            f"/?tkn={wrong}",
            f"/acp?tkn={right}",
            f"/?tkn={right}&tkn={wrong}",
            f"/{right}",
        )
        answers = [await ask(listener, target, *upgrade()) for target in targets]
    gateway.audit.close()
    written = caplog.text + "".join(answer.body + str(answer.headers) for answer in answers)
    written += read_all(tmp_path)
    assert "acpgwv_" not in written
    assert right[8:30] not in written


def test_a_request_keeps_the_rest_of_its_query() -> None:
    request = Request("GET", "/", "observe=1&tkn=acpgwv_x&agent=a%2Fb", Headers(Authorization="Basic eDp5"))
    found = with_token_in_header(request, "tkn")
    assert (found.query, found.headers.get_all("Authorization")) == ("observe=1&agent=a%2Fb", ["Bearer acpgwv_x"])
    assert (request.headers["Authorization"], with_token_in_header(found, "tkn")) == ("Basic eDp5", found)
    assert "acpgwv" not in repr(request) + repr(found)
