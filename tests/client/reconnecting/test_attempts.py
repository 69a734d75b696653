"""Attempts to reach the gateway beside a connection."""

import trio
import trio.testing

from acp_gateway.client.dialing import Destination, Dialed, Resume
from acp_gateway.client.reconnecting.attempts import Attempt, Attempts
from acp_gateway.config.addresses import parse_address
from acp_gateway.transports.memory import memory_message_stream_pair

TARGET = Destination(parse_address("ws://127.0.0.1:1/acp"), None, None, None, None, 1 << 20)


async def test_an_attempt_tells_each_address_the_same_count(nursery: trio.Nursery) -> None:
    counts = iter((5, 7))
    told: list[int | None] = []
    asking: list[Attempt] = []

    def ask(attempt: Attempt) -> int:
        asking.append(attempt)
        return next(counts)

    async def dial(_: Destination, resume: Resume) -> Dialed:
        told.extend([(await resume.asked()).received for _address in range(2)])
        return Dialed(memory_message_stream_pair()[0], "link", 0)

    attempts = Attempts(dial, lambda: None)
    await nursery.start(attempts.run)
    attempts.start(TARGET, Resume("link", 5), ask)
    await trio.testing.wait_all_tasks_blocked()
    assert told == [5, 5]
    assert [attempt.told for attempt in asking] == [5]
    nursery.cancel_scope.cancel()
