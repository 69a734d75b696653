"""The life of a connection to an agent that listens."""

import socket

import pytest
import trio

from acp_gateway.errors import AgentError, TrustError, Unreachable
from acp_gateway.gateway.agent.process import Agent
from acp_gateway.gateway.agent.startup import run_listening_agent
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import SocketBytes


@pytest.mark.parametrize(("error", "seconds"), [(Unreachable("no answer"), 7.0), (TrustError("another key"), 0.0)])
async def test_only_an_agent_that_may_come_is_worth_another_attempt(error: Exception, seconds: float) -> None:
    async def dial() -> MaintainedStream:
        raise error

    with pytest.raises(AgentError, match=str(error)) as caught:
        await run_listening_agent("far", "tcp://x:1", dial, connect_timeout=7.0)
    assert caught.value.retry_for == seconds


async def test_a_cancelled_connection_is_closed_after_its_last_message() -> None:
    near, far = memory_message_stream_pair()

    async def dial() -> MaintainedStream:
        return near

    async def run(task_status: trio.TaskStatus[Agent]) -> None:
        await run_listening_agent("far", "tcp://x:1", dial, connect_timeout=1.0, task_status=task_status)

    async with trio.open_nursery() as nursery:
        agent: Agent = await nursery.start(run)
        assert (agent.pid, agent.url, agent.last_lines()) == (None, "tcp://x:1", [])
        assert not agent.ended.is_set()
        agent.messages.send_nowait([b"last"])
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            assert await far.receive() == b"last"
    assert agent.ended.is_set()
    assert agent.describe_end() == (
        "the connection to the agent far has ended",
        {"reason": "agent_ended", "agent": "far"},
    )
    with pytest.raises(trio.EndOfChannel):
        await far.receive()


async def test_a_large_last_message_is_written_although_the_connection_is_cancelled() -> None:
    here, there = socket.socketpair()
    for end in (here, there):
        end.setblocking(False)
    near, far = (LineStream(SocketBytes(end), max_message_size=1 << 24) for end in (here, there))
    message = b"x" * (1 << 23)

    async def dial() -> MaintainedStream:
        return near

    async def run(task_status: trio.TaskStatus[Agent]) -> None:
        await run_listening_agent("far", "unix:///x", dial, connect_timeout=1.0, task_status=task_status)

    async with trio.open_nursery() as nursery:
        agent: Agent = await nursery.start(run)
        agent.messages.send_nowait([message])
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            assert await far.receive() == message
            await far.aclose()
