"""The link of a client over Streamable HTTP: it outlives its connections, and each message arrives once."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.http_link import STREAM_TIMEOUT
from tests.doubles import ServingAgents, make_config
from tests.server.echoing import WS
from tests.server.http_client import NEW, Client, Events, http_client, new_session


@pytest.fixture
def gateway(agents: ServingAgents, spawner: Spawner, tmp_path: Path) -> Gateway:
    config = make_config(tmp_path / "state", WS)
    return Gateway(config, TokenStore(tmp_path / "state"), spawner, {})


async def send_update(agents: ServingAgents, session: str, number: int) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": str(number)}}
    await agents[0].send(method="session/update", params={"sessionId": session, "update": update})


async def texts(events: Events, count: int) -> list[int]:
    return [int((await events.next())["params"]["update"]["content"]["text"]) for _ in range(count)]


def is_away(gateway: Gateway) -> bool:
    (hub,) = gateway.hubs
    return [attachment.away_since is not None for attachment in hub.attachments.values()] == [True]


async def go_away(gateway: Gateway) -> None:
    """As after a time without any request."""
    (hub,) = gateway.hubs
    (attachment,) = hub.attachments.values()
    assert attachment.connection is not None
    attachment.connection.cancel()
    while not is_away(gateway):
        await trio.lowlevel.checkpoint()


async def open_session(client: Client) -> str:
    await client.initialize()
    async with client.stream() as events:
        return await new_session(client, events)


async def test_a_client_without_stream_and_post_is_away_and_its_next_request_brings_it_back(
    gateway: Gateway, agents: ServingAgents
) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        await go_away(gateway)
        await send_update(agents, session, 1)
        async with ann.stream(session) as events:
            assert await texts(events, 1) == [1]
            assert not is_away(gateway)


async def test_a_post_of_a_client_that_is_away_reaches_the_agent(gateway: Gateway, agents: ServingAgents) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        await go_away(gateway)
        prompt = {"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {"sessionId": session, "prompt": []}}
        assert (await ann.post(prompt)).status == 202
        await agents[0].got("session/prompt")


async def test_a_client_counts_as_heard_as_long_as_it_reads_a_stream(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await open_session(ann)
        (hub,) = gateway.hubs
        (attachment,) = hub.attachments.values()
        assert attachment.connection is not None
        stream = attachment.connection.stream
        await trio.testing.wait_all_tasks_blocked(0.01)
        stream.tick(1e9)
        assert stream.last_received_at < 1e9
        async with ann.stream():
            stream.tick(2e9)
            assert stream.last_received_at == 2e9


@pytest.mark.parametrize("with_id", [True, False])
async def test_a_stream_that_is_cut_misses_nothing_and_repeats_nothing(
    with_id: bool, gateway: Gateway, agents: ServingAgents
) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        got: list[int] = []
        last: dict[str, Any] = {}
        for number in range(10):
            async with ann.stream(session, **last) as events:
                await send_update(agents, session, 2 * number)
                await send_update(agents, session, 2 * number + 1)
                got += await texts(events, 2)
                if with_id:
                    last = {"Last_Event_ID": events.last}
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert got == list(range(20))


async def test_an_event_id_repeats_what_was_sent_and_not_read(gateway: Gateway, agents: ServingAgents) -> None:
    async with http_client(gateway) as ann:
        session = await open_session(ann)
        async with ann.stream(session) as events:
            for number in range(3):
                await send_update(agents, session, number)
            assert await texts(events, 1) == [0]
            last = events.last
            assert await texts(events, 2) == [1, 2]
        async with ann.stream(session, Last_Event_ID=last) as events:
            assert await texts(events, 2) == [1, 2]


async def test_a_session_whose_stream_is_never_opened_is_in_the_connection_stream(
    gateway: Gateway, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            session = await new_session(ann, events)
            await send_update(agents, session, 1)
            assert await texts(events, 1) == [1]
            assert trio.current_time() >= STREAM_TIMEOUT


async def test_a_revoked_token_ends_the_streams_and_the_link(gateway: Gateway) -> None:
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            (token,) = gateway.tokens.tokens()
            gateway.tokens.revoke(token.id)
            gateway.connections.enforce()
            with pytest.raises(EOFError):
                await events.next()
        assert (await ann.post(NEW)).status == 401
