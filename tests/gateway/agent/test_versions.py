"""The stream to an agent of either version, over an in-memory pair."""

import json

import trio

from acp_gateway.gateway.agent.versions import AgentMessages
from acp_gateway.protocol.text.pairs import texts_of
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.kit.doubles import TIMEOUT, FragileStream
from tests.kit.versions import request, result

ASKED = request(0, "initialize", protocolVersion=1)


async def test_an_agent_of_version_1_is_read_without_a_translation() -> None:
    near, far = memory_message_stream_pair()
    stream = AgentMessages(near)
    stream.send_nowait([ASKED])
    assert await far.receive_batch() == [ASKED]
    far.send_nowait([answer := result(0, {"protocolVersion": 1})])
    assert await stream.receive_batch() == [answer]
    assert stream.version == 1
    far.send_nowait([b"anything"])
    assert await stream.receive_batch() == [b"anything"]


async def test_what_cannot_be_said_to_an_agent_is_answered_at_once() -> None:
    near, far = memory_message_stream_pair()
    stream = AgentMessages(near)
    stream.send_nowait([ASKED])
    far.send_nowait([result(0, {"protocolVersion": 2, "info": {"name": "a", "version": "1"}})])
    with trio.fail_after(TIMEOUT):
        (answer,) = texts_of(await stream.receive_batch())
        assert json.loads(answer)["result"]["protocolVersion"] == 1
        assert stream.version == 2
    stream.send_nowait([request(1, "session/set_mode", sessionId="s", modeId="m")])
    (answer,) = texts_of(stream.take_answers())
    assert "offers no modes" in json.loads(answer)["error"]["message"]
    assert not stream.take_answers()


async def test_an_agent_that_refuses_is_asked_again_without_the_core() -> None:
    near, far = memory_message_stream_pair()
    stream = AgentMessages(near)
    stream.send_nowait([ASKED])
    await far.receive_batch()
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_batch)
            far.send_nowait([b'{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no"}}'])
            (again,) = await far.receive_batch()
            assert json.loads(again)["params"]["protocolVersion"] == 2
            far.send_nowait([result(0, {"protocolVersion": 2, "info": {"name": "a", "version": "1"}})])


class Lost(FragileStream):
    """A stream that has ended before it has sent this message."""

    def unsent(self) -> list[bytes]:
        return [b"late"]
