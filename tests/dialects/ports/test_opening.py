"""Connections to ports while they are opened: counted, charged, ended with their credential, and refused as others."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.dialects.ports.previewing import WEIGHT, Passing
from acp_gateway.dialects.ports.tunnels import PortTunnel
from acp_gateway.errors import AccessError, UnknownPort
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.connections import REVOKED
from acp_gateway.gateway.viewing.open_ports import OpenPorts
from acp_gateway.gateway.viewing.previews import Preview
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from tests.kit.bridging import Bench
from tests.kit.wires import memory_wire

REFUSED = Response.of_text(404, "refused")

Make = Callable[[Bench, Access, list[AccessError], Request], Any]


def keeping(refused: list[AccessError]) -> Callable[[AccessError], Response]:
    def refuse(error: AccessError) -> Response:
        refused.append(error)
        return REFUSED

    return refuse


def tunnel(bench: Bench, access: Access, refused: list[AccessError], request: Request) -> Any:
    opened = PortTunnel(bench.gateway, access, 6006, "c", keeping(refused))
    return lambda http: opened.run(http, request)


def preview(bench: Bench, access: Access, refused: list[AccessError], request: Request) -> Any:
    its = Preview(access, 6006, "fake", "name", math.inf)
    passing = Passing(bench.gateway, its, "http://o", request, keeping(refused))
    return passing.run


async def requested() -> tuple[Any, HttpConnection, Request]:
    client, server = memory_wire()
    client.send_nowait(memoryview(b"GET /ports/6006 HTTP/1.1\r\nHost: h\r\n\r\n"))
    http = HttpConnection(server)
    request = await http.receive_request()
    assert request is not None
    return client, http, request


@pytest.mark.parametrize("make", [tunnel, preview])
async def test_a_connection_counts_while_it_is_opened_and_ends_with_its_credential(
    make: Make, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(OpenPorts, "open", hang)
    _, http, request = await requested()
    connections, run = bench.gateway.connections, make(bench, bench.access(), [], request)
    before = len(connections)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, http)
        await trio.testing.wait_all_tasks_blocked()
        assert len(connections) == before + 1
        monkeypatch.setattr(connections, "_closing_reason", lambda _: REVOKED)
        connections.enforce()
    assert len(connections) == before


@pytest.mark.parametrize("make", [tunnel, preview])
async def test_a_port_that_is_not_there_is_refused_as_other_requests(
    make: Make, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise UnknownPort("not there")

    monkeypatch.setattr(OpenPorts, "open", refuse)
    client, http, request = await requested()
    refused: list[AccessError] = []
    await make(bench, bench.access(), refused, request)(http)
    assert [str(error) for error in refused] == ["not there"]
    assert client.inbox.startswith(b"HTTP/1.1 404")


async def test_a_request_for_a_preview_is_charged_to_the_rate_of_its_role(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[Any] = []

    class Limiter:
        def charge(self, messages: int = 0, size: int = 0) -> float:
            charged.append((messages, size))
            return 0.0

    def limiter(account: str, *, guest: bool, observer: bool) -> Limiter:
        charged.append((guest, observer))
        return Limiter()

    async def refuse(*_: object) -> None:
        raise UnknownPort("not there")

    monkeypatch.setattr(OpenPorts, "open", refuse)
    monkeypatch.setattr(bench.gateway.connections, "rate_limiter", limiter)
    _, http, request = await requested()
    await preview(bench, bench.access(role="observer"), [], request)(http)
    assert charged == [(False, True), (WEIGHT, 0)]
