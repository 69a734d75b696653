"""HTTP connections that are used again, and endpoints."""

import pytest
import trio
import trio.testing

from acp_gateway.client.http_pool import IDLE_MAX, KEPT_MAX, Endpoint, HttpPool
from acp_gateway.config.addresses import parse_target
from acp_gateway.transports.http_server import Response
from tests.client.foreign_server import ENDPOINT, foreign_server


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("https://host/acp", "host", "/acp"),
        ("https://host:443", "host", "/acp"),
        ("https://host:80/ä b".replace(" ", ""), "host:80", "/%C3%A4b"),
        ("http://[::1]/a%20b", "[::1]", "/a%20b"),
        ("http://localhost:3000/acp", "localhost:3000", "/acp"),
    ],
)
def test_an_endpoint_has_the_host_and_the_target_of_its_url(url: str, host: str, target: str) -> None:
    endpoint = Endpoint.at(parse_target(url), "", {"A": "b"})
    assert (endpoint.host, endpoint.target, endpoint.tls) == (host, target, url.startswith("https"))
    assert endpoint.headers["A"] == "b"
    assert Endpoint.at(parse_target(url), "agent=x", {}).target == f"{target}?agent=x"


async def test_a_connection_is_used_again_unless_it_was_idle_for_long(autojump_clock: trio.testing.MockClock) -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT, server.connect)
        for pause in (0.0, IDLE_MAX / 2, IDLE_MAX):
            await trio.sleep(pause)
            assert (await pool.ask("DELETE", {}, limit=10)).status == 202
        assert server.connections == 2
        await pool.aclose()


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT, server.connect)
        server.answers.append(Response(202, close=True))
        for _ in range(2):
            await pool.ask("DELETE", {}, limit=10)
        assert server.connections == 2
        await pool.aclose()


async def test_a_body_above_the_limit_is_not_read_to_its_end() -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT, server.connect)
        server.answers.append(Response(400, bytes(1_000_000)))
        reply = await pool.ask("DELETE", {}, limit=10)
        assert 10 < len(reply.body) < 1_000_000
        await pool.ask("DELETE", {}, limit=10)
        assert server.connections == 2
        await pool.aclose()


async def test_few_idle_connections_are_kept() -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT, server.connect)

        async def ask_together() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(KEPT_MAX + 2):
                    nursery.start_soon(lambda: pool.ask("DELETE", {}, limit=10))

        await ask_together()
        assert server.connections == KEPT_MAX + 2
        await ask_together()
        assert server.connections == KEPT_MAX + 4
        await pool.aclose()
