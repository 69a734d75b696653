"""The messages of an agent process in the version of the core, whichever the agent speaks."""

from collections.abc import Coroutine, Sequence
from typing import Any

from acp_gateway.protocol.text.pairs import Entry
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.versions.agent_edge import AgentEdge


class AgentMessages:
    """Messages to and from an agent, translated where the agent speaks version 2.

    Args:
        stream: the stream to the agent, which its owner runs, limits and closes.
    """

    __slots__ = ("_answers", "_edge", "stream")

    def __init__(self, stream: MaintainedStream) -> None:
        self.stream = stream
        self._edge = AgentEdge()
        # Answers of the edge itself to the core: refusals of what cannot be translated.
        self._answers: list[Entry] = []

    @property
    def version(self) -> int:
        """Version of the protocol that the agent speaks, as far as is known."""
        return 2 if self._edge.translates else 1

    @property
    def remembered_bytes(self) -> int:
        """Bytes that the translation remembers."""
        return self._edge.size

    def forget_half(self) -> None:
        """Forget half of that, as far as it can be done without: memory is short."""
        self._edge.shrink()

    def receive_batch(self) -> Coroutine[Any, Any, Sequence[Entry]]:
        """Wait for messages and return all that are there, at least one, as a stream does."""
        return self.stream.receive_batch() if self._edge.is_settled else self._receive_batch()

    async def _receive_batch(self) -> Sequence[Entry]:
        while True:
            out = self._edge.from_agent(*await self.stream.receive_batch())
            if out.to_agent:
                self.stream.send_nowait(out.to_agent)
            if out.to_client:
                return out.to_client

    def take_answers(self) -> list[Entry]:
        """Return and forget the messages that were answered to what was sent, in the agent's name."""
        answers, self._answers = self._answers, []
        of_stream = self.stream.take_answers()
        return answers + (self._edge.from_agent(*of_stream).to_client if of_stream else [])

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        """Send messages of the core, as a stream does."""
        if not self._edge.is_settled:
            outputs = [self._edge.to_agent(text) for text in messages]
            messages = [text for output in outputs for text in output.to_agent]
            for output in outputs:
                self._answers += output.to_client
        self.stream.send_nowait(messages)
