"""The main job, with the Agent Client Protocol's own Python SDK at both ends and the real program between them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import acp
import pytest
from acp.schema import AllowedOutcome, ClientCapabilities, FileSystemCapabilities
from acp.ws.client import create_websocket_stream

from tests.kit.running import ENVIRONMENT, WORK, RunningGateway

MEGABYTES_12 = 12 * 1024 * 1024
LARGE = "0123456789abcdef" * (MEGABYTES_12 // 16)
LINE_ENDS = "a\u2028b\u2029c\u0085d\x0be\x0cf\r\ng 😀"
LIMIT = 64 * 1024 * 1024


class RecordingClient:
    """An editor that writes down what it is told and allows what it is asked."""

    def __init__(self) -> None:
        self.chunks: list[str] = []
        self.asked: list[str] = []

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.chunks.append(update.content.text)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **kwargs: Any
    ) -> acp.RequestPermissionResponse:
        self.asked.append(tool_call.title)
        return acp.RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=options[0].option_id))


@asynccontextmanager
async def editor(
    gateway: RunningGateway, transport: str, client: RecordingClient, agent: str = "sdk"
) -> AsyncIterator[Any]:
    """An editor that has started `acp-gateway connect` as its agent and has initialized it."""
    command, *arguments = gateway.connect_command(transport, "--agent", agent)
    async with acp.stdio.spawn_agent_process(
        cast("Any", client), command, *arguments, env=ENVIRONMENT, transport_kwargs={"limit": LIMIT}
    ) as (connection, process):
        yield connection
    assert process.returncode == 0


def connected(gateway: RunningGateway, transport: str, prompts: list[list[str]], agent: str = "sdk") -> RecordingClient:
    """Open a session, send prompts, each a list of text blocks, and return the editor that saw what came back."""
    client = RecordingClient()

    async def talk() -> None:
        async with editor(gateway, transport, client, agent) as connection, asyncio.timeout(60):
            await connection.initialize(protocol_version=1)
            session = await connection.new_session(cwd=str(WORK), mcp_servers=[])
            for prompt in prompts:
                answer = await connection.prompt(
                    prompt=[acp.text_block(text) for text in prompt], session_id=session.session_id
                )
                assert answer.stop_reason == "end_turn"

    asyncio.run(talk())
    return client


@pytest.fixture(scope="module", params=["wss", "ws", "tcp", "tcp+tls", "unix"])
def conversation(gateway: RunningGateway, request: pytest.FixtureRequest) -> RecordingClient:
    """One conversation on each transport; each test looks at one thing in it."""
    return connected(gateway, request.param, [["stream 100"], ["permission"], ["echo", LINE_ENDS]])


@pytest.fixture(scope="module", params=["wss", "tcp"])
def long_conversation(gateway: RunningGateway, request: pytest.FixtureRequest) -> RecordingClient:
    """A longer one over a WebSocket, and by lines."""
    return connected(gateway, request.param, [["stream 1000"], [f"size {MEGABYTES_12}"], ["echo", LARGE]])


def test_updates_arrive_complete_and_in_order(conversation: RecordingClient) -> None:
    assert conversation.chunks[:100] == [str(number) for number in range(100)]


def test_a_thousand_updates_arrive_complete_and_in_order(long_conversation: RecordingClient) -> None:
    assert long_conversation.chunks[:1000] == [str(number) for number in range(1000)]


def test_a_permission_is_asked_and_its_answer_reaches_the_agent(conversation: RecordingClient) -> None:
    assert (conversation.asked, conversation.chunks[100]) == (["do it"], "yes")


def test_characters_that_some_take_for_line_ends_pass(conversation: RecordingClient) -> None:
    assert conversation.chunks[101] == LINE_ENDS


def test_a_message_of_12_megabytes_passes_each_way(long_conversation: RecordingClient) -> None:
    from_agent, there_and_back = long_conversation.chunks[1000:]
    assert len(from_agent) == MEGABYTES_12
    assert there_and_back == LARGE


def test_the_editors_file_system_is_not_offered_to_the_agent(gateway: RunningGateway) -> None:
    async def talk() -> Any:
        async with editor(gateway, "wss", RecordingClient(), "directed") as connection, asyncio.timeout(60):
            return await connection.initialize(
                protocol_version=1,
                client_capabilities=ClientCapabilities(
                    fs=FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=True
                ),
            )

    assert asyncio.run(talk()).field_meta["sees_fs"] is False


def test_the_agent_has_no_variable_of_the_gateways_own_nor_of_the_editors(gateway: RunningGateway) -> None:
    (names,) = connected(gateway, "wss", [["environment"]], "directed").chunks
    assert "PATH" in names.split()
    assert [name for name in names.split() if name.startswith("ACP_GATEWAY") or "SECRET" in name] == [
        "ACP_GATEWAY_STARTED_BY"
    ]


def test_a_session_in_a_directory_that_is_only_on_the_laptop_is_refused_with_the_map_to_add(
    gateway: RunningGateway,
) -> None:
    async def talk() -> None:
        async with editor(gateway, "wss", RecordingClient()) as connection, asyncio.timeout(60):
            await connection.initialize(protocol_version=1)
            await connection.new_session(cwd="/Users/ann/proj", mcp_servers=[])

    with pytest.raises(acp.RequestError, match=r"--map /Users/ann/proj=/") as caught:
        asyncio.run(talk())
    assert caught.value.code == -32602


def test_with_the_map_the_same_session_opens(gateway: RunningGateway, tmp_path: Path) -> None:
    async def talk() -> Any:
        command, *arguments = gateway.connect_command("wss", "--map", f"/Users/ann/proj={WORK}")
        async with (
            acp.stdio.spawn_agent_process(cast("Any", RecordingClient()), command, *arguments, env=ENVIRONMENT) as (
                connection,
                _,
            ),
            asyncio.timeout(60),
        ):
            await connection.initialize(protocol_version=1)
            return await connection.new_session(cwd="/Users/ann/proj", mcp_servers=[])

    assert asyncio.run(talk()).field_meta == {"cwd": str(WORK)}


def test_the_death_of_the_agent_answers_the_open_prompt_with_its_exit_code(gateway: RunningGateway) -> None:
    async def talk() -> None:
        command, *arguments = gateway.connect_command("wss")
        async with (
            acp.stdio.spawn_agent_process(cast("Any", RecordingClient()), command, *arguments, env=ENVIRONMENT) as (
                connection,
                _,
            ),
            asyncio.timeout(60),
        ):
            await connection.initialize(protocol_version=1)
            session = await connection.new_session(cwd=str(WORK), mcp_servers=[])
            await connection.prompt(prompt=[acp.text_block("die 7")], session_id=session.session_id)

    with pytest.raises(acp.RequestError, match="exit code 7") as caught:
        asyncio.run(talk())
    assert (caught.value.data or {})["exitCode"] == 7


def test_the_sdks_own_websocket_client_needs_no_shim(gateway: RunningGateway) -> None:
    client = RecordingClient()

    async def talk() -> None:
        async with asyncio.timeout(60):
            stream = await create_websocket_stream(
                gateway.urls["ws"], headers={"Authorization": f"Bearer {gateway.token}"}
            )
            connection = acp.connect_to_agent(cast("Any", client), stream)
            await connection.initialize(protocol_version=1)
            session = await connection.new_session(cwd=str(WORK), mcp_servers=[])
            await connection.prompt(prompt=[acp.text_block("stream 100")], session_id=session.session_id)
            await connection.prompt(prompt=[acp.text_block("permission")], session_id=session.session_id)
            await connection.close()

    asyncio.run(talk())
    assert client.chunks == [*map(str, range(100)), "yes"]
