"""Those who take part in a session, for tests: SDK clients, each behind a real `acp-gateway connect`, or over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import acp
from acp.connection import StreamDirection, StreamEvent
from acp.schema import AllowedOutcome, ClientCapabilities

from tests.kit.running import ENVIRONMENT, RunningGateway

T = TypeVar("T")
Update = dict[str, Any]


class Party:
    """A client of a session: the messages it has been sent, in order, and the permissions it decides on request."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self._prompts = 0
        self._answers = 0
        self._decisions: asyncio.Queue[str | acp.RequestError] = asyncio.Queue()
        self._news = asyncio.Event()
        # The SDK's connection, whose methods tests use as they are.
        self.agent: Any = None

    def observe(self, event: StreamEvent) -> None:
        """The SDK tells of each message that comes or goes."""
        if event.direction is StreamDirection.INCOMING:
            self.heard.append(event.message)
        elif "method" not in event.message:
            self._answers += 1
        elif event.message["method"] == "session/prompt":
            self._prompts += 1
        self._news.set()

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        """It has been noted already, as it came."""

    async def request_permission(self, session_id: str, **kwargs: Any) -> acp.RequestPermissionResponse:
        decision = await self._decisions.get()
        if isinstance(decision, acp.RequestError):
            raise decision
        return acp.RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=decision))

    async def decide(self, decision: str | acp.RequestError) -> None:
        """Answer a permission, open or yet to come, and return when the answer has been sent."""
        answers = self._answers
        self._decisions.put_nowait(decision)
        await self.until(lambda: self._answers > answers)

    async def until(self, condition: Callable[[], T]) -> T:
        """Wait for something that a message brings about."""
        while not (found := condition()):
            self._news.clear()
            await self._news.wait()
        return found

    async def prompt(self, session: str, *blocks: str) -> str:
        """A turn: text blocks, which each test agent reads in its own way; returns why it ended."""
        answer = await self.agent.prompt(session_id=session, prompt=[acp.text_block(text) for text in blocks])
        return str(answer.stop_reason)

    async def begin(self, session: str, *blocks: str) -> asyncio.Task[str]:
        """Begin a turn, and return when its prompt has been sent: what is sent from now on comes after it."""
        prompts = self._prompts
        turn = asyncio.create_task(self.prompt(session, *blocks))
        await self.until(lambda: self._prompts > prompts)
        return turn

    async def until_told(self, session: str, text: str) -> None:
        """Wait until the agent has said this."""
        await self.until(lambda: text in texts(self.updates(session)))

    def updates(self, session: str) -> list[Update]:
        """Return the updates it has been sent of a session so far."""
        told = (message["params"] for message in self.heard if message.get("method") == "session/update")
        return [params["update"] for params in told if params["sessionId"] == session]

    def asked(self) -> list[dict[str, Any]]:
        """The permissions that it was asked for so far."""
        return [message for message in self.heard if message.get("method") == "session/request_permission"]

    def withdrawn(self) -> list[Any]:
        """The ids of requests that it need not answer any more."""
        return [message["params"]["requestId"] for message in self.heard if message.get("method") == "$/cancel_request"]

    def news(self) -> list[dict[str, Any]]:
        """Return the gateway's own notifications about sessions."""
        return [message["params"] for message in self.heard if message.get("method", "").startswith("_acp-gateway/")]


def said_by_user(*blocks: str) -> list[Update]:
    """A prompt, as the others are told of it."""
    return [{"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": text}} for text in blocks]


def said_by_agent(*chunks: str) -> list[Update]:
    """Return the updates in which an agent speaks."""
    return [{"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}} for text in chunks]


def texts(updates: list[Update], kind: str = "agent_message_chunk") -> list[str]:
    """Return the texts of these updates, of the agent or of a user."""
    return [update["content"]["text"] for update in updates if update["sessionUpdate"] == kind]


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Play a scenario, which must end within minutes: on a busy machine it takes ten times as long."""

    async def bounded() -> T:
        async with asyncio.timeout(300):
            return await scenario

    return asyncio.run(bounded())


@asynccontextmanager
async def party(gateway: RunningGateway, transport: str, *options: str) -> AsyncIterator[Party]:
    """An SDK client that is initialized, over a transport of `RunningGateway.connect_command` and with its options.

    The gateway must not have sent it anything of its own by the end.
    """
    client = Party()
    command, *arguments = gateway.connect_command(transport, *options)
    async with acp.stdio.spawn_agent_process(
        cast("Any", client), command, *arguments, env=ENVIRONMENT, observers=[client.observe]
    ) as (connection, _):
        client.agent = connection
        await connection.initialize(protocol_version=1, client_capabilities=ClientCapabilities())
        yield client
    assert client.news() == []
