"""The messages of an agent process in the version of the core, whichever the agent speaks."""

from collections.abc import Coroutine, Sequence
from typing import Any

from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.timers import TaskSpawner
from acp_gateway.versions.agent_edge import AgentEdge


class VersionedStream(MaintainedStream):
    """A stream to an agent, translated where the agent speaks version 2.

    Args:
        inner: the stream to the agent, which this one runs, limits and closes.
    """

    __slots__ = ("_answers", "_edge", "_inner")

    def __init__(self, inner: MaintainedStream) -> None:
        super().__init__()
        self.meter = inner.meter
        self._inner = inner
        self._edge = AgentEdge()
        # Answers of the edge itself to the core: refusals of what cannot be translated.
        self._answers: list[bytes] = []

    @property
    def version(self) -> int:
        """Version of the protocol that the agent speaks, as far as is known."""
        return 2 if self._edge.translates else 1

    @property
    def remembered_bytes(self) -> int:
        return self._edge.size

    def forget_half(self) -> None:
        self._edge.shrink()

    def receive_batch(self) -> Coroutine[Any, Any, list[bytes]]:
        return self._inner.receive_batch() if self._edge.is_settled else self._receive_batch()

    async def _receive_batch(self) -> list[bytes]:
        while True:
            out = self._edge.from_agent(*await self._inner.receive_batch())
            if out.to_agent:
                self._inner.send_nowait(out.to_agent)
            if out.to_client:
                return out.to_client

    def take_answers(self) -> list[bytes]:
        answers, self._answers = self._answers, []
        of_inner = self._inner.take_answers()
        if of_inner and not self._edge.is_settled:
            of_inner = self._edge.from_agent(*of_inner).to_client
        return answers + of_inner

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        if not self._edge.is_settled:
            outputs = [self._edge.to_agent(text) for text in messages]
            messages = [text for output in outputs for text in output.to_agent]
            self._answers += [text for output in outputs for text in output.to_client]
        self._inner.send_nowait(messages)

    # The rest is the inner stream's

    @property
    def pending_bytes(self) -> int:
        return self._inner.pending_bytes

    async def drain(self, below: int = 0) -> None:
        await self._inner.drain(below)

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        await self._inner.aclose(reason, text)

    async def run(self) -> None:
        await self._inner.run()

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        self._inner.use_spawner(spawner)

    def tick(self, now: float) -> float:
        return self._inner.tick(now)

    def limit(self, max_message_size: int, size_setting: str) -> None:
        self._inner.limit(max_message_size, size_setting)

    @property
    def unfinished_bytes(self) -> int:
        return self._inner.unfinished_bytes

    def begun(self, size: int) -> bytes:
        return self._inner.begun(size)

    def abandon(self) -> None:
        self._inner.abandon()

    @property
    def away(self) -> bool:
        return self._inner.away

    @property
    def ended_normally(self) -> bool:
        return self._inner.ended_normally
