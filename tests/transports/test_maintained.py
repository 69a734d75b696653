"""Defaults of a maintained stream, for transports that can do no more."""

from collections.abc import Sequence
from math import inf

import trio

from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.timers import TaskSpawner


class Plain(MaintainedStream):
    """A stream that overrides no more than it must."""

    async def _receive_batch(self) -> list[bytes]:
        raise trio.EndOfChannel

    def send_nowait(self, messages: Sequence[bytes]) -> None: ...

    @property
    def pending_bytes(self) -> int:
        return 0

    async def drain(self, below: int = 0) -> None: ...
    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None: ...
    async def run(self) -> None: ...
    def use_spawner(self, spawner: TaskSpawner | None) -> None: ...


def test_no_message_is_unfinished_where_messages_come_whole() -> None:
    stream = Plain()
    stream.abandon()
    assert (stream.unfinished_bytes, stream.begun(10)) == (0, b"")


def test_a_stream_is_unlimited_and_free_at_first() -> None:
    stream = Plain()
    stream.limit(1, "max_message_size")
    assert stream.message_timeout == inf
    assert stream.meter.charge is None
    assert stream.accepts_unterminated_line
