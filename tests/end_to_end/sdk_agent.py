"""An agent made with the Agent Client Protocol's own Python SDK, for tests: it does what its prompt says.

`directed_agent.py` does the same, and starts in a fiftieth of the time.

stream N        N message chunks, numbered from 0
permission      asks whether it may, and says what was decided
wait            says that it is waiting, and ends when the session is cancelled
echo            says back every text block
size N          one message chunk of N characters
"""

import asyncio
from typing import Any, cast

import acp
from acp.schema import AgentCapabilities, PermissionOption, ToolCallUpdate


class DirectedAgent:
    """Every prompt is a command. The SDK takes any class with the methods that an agent offers."""

    def __init__(self) -> None:
        self._client: acp.Client | None = None
        self._sessions = 0
        # Set when the session of that id is cancelled; there since a turn has waited for it.
        self._cancelled: dict[str, asyncio.Event] = {}

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **kwargs: Any) -> acp.InitializeResponse:
        capabilities = AgentCapabilities(load_session=False)
        return acp.InitializeResponse(protocol_version=protocol_version, agent_capabilities=capabilities)

    async def new_session(self, cwd: str, **kwargs: Any) -> acp.NewSessionResponse:
        self._sessions += 1
        return acp.NewSessionResponse(session_id=f"session-{self._sessions}")

    async def prompt(self, session_id: str, prompt: list[Any], **kwargs: Any) -> acp.PromptResponse:
        texts = [block.text for block in prompt if hasattr(block, "text")]
        command, _, argument = texts[0].partition(" ")
        match command:
            case "stream":
                for number in range(int(argument)):
                    await self._say(session_id, str(number))
            case "size":
                await self._say(session_id, "x" * int(argument))
            case "echo":
                for text in texts[1:]:
                    await self._say(session_id, text)
            case "permission":
                await self._ask(session_id)
            case "wait":
                self._cancelled[session_id] = asyncio.Event()
                await self._say(session_id, "waiting")
                await self._cancelled[session_id].wait()
                return acp.PromptResponse(stop_reason="cancelled")
        return acp.PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        if session_id in self._cancelled:
            self._cancelled[session_id].set()

    async def _say(self, session_id: str, text: str) -> None:
        assert self._client is not None
        await self._client.session_update(session_id, acp.update_agent_message(acp.text_block(text)))

    async def _ask(self, session_id: str) -> None:
        assert self._client is not None
        answer = await self._client.request_permission(
            session_id,
            ToolCallUpdate(tool_call_id="call-1", title="do it"),
            [
                PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
                PermissionOption(option_id="no", name="No", kind="reject_once"),
            ],
        )
        outcome = answer.outcome
        await self._say(session_id, getattr(outcome, "option_id", outcome.outcome))


if __name__ == "__main__":
    asyncio.run(acp.run_agent(cast("Any", DirectedAgent())))
