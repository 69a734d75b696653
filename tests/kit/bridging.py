"""A gateway whose agents are in memory, for clients inside the process."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import AgentSection
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.dialects.browser.bridge import BrowserBridge
from acp_gateway.dialects.browser.pages import Pages
from acp_gateway.dialects.chat.bridge import ChatBridge
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.control_channel import serve_control
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.viewing.local_client import LocalClient
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.kit.doubles import TIMEOUT, Editor, ServingAgent, ServingAgents, make_config, python
from tests.kit.hub_scene import permission

T = TypeVar("T")

TEXT = [{"type": "text", "text": "hello"}]
YES = {"outcome": {"outcome": "selected", "optionId": "yes"}}


class MemoryAudit(Audit):
    """An audit in memory."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, dict[str, Any]]] = []

    def record(self, event: str, **details: Any) -> None:
        self.entries.append((event, {name: value for name, value in details.items() if value is not None}))

    def close(self) -> None: ...

    def of(self, event: str) -> list[dict[str, Any]]:
        """The details of these events."""
        return [details for name, details in self.entries if name == event]


def section(scope: str = "identity", **options: Any) -> AgentSection:
    """An agent, which a fake stands for."""
    return AgentSection(command=python(""), scope=scope, **options)  # type: ignore[arg-type]


class Bench:
    """A gateway that runs, and its clients."""

    agents: ServingAgents
    """Its agents, with the fixtures `bench` and `make_bench`."""

    def __init__(self, gateway: Gateway, nursery: trio.Nursery, audit: MemoryAudit) -> None:
        self.gateway = gateway
        self.nursery = nursery
        self.audit = audit
        self.pages = Pages(gateway.services.inputs, gateway.services.memory_grew)

    def access(self, identity: str = "ann", **options: Any) -> Access:
        """With a token of this identity."""
        return Access.of(self.gateway.tokens.create("laptop", identity, options.pop("agents", None), **options)[0])

    def guest(self, session: str, role: Any = "controller") -> Access:
        """With a token for one session."""
        return Access.of(self.gateway.tokens.create_guest(session, role=role, lifetime=None)[0])

    async def client(self, access: Access, **wanted: Any) -> "Inside":
        """A client inside the process that is initialized."""
        client = await self.uninitialized(access, **wanted)
        await client.initialize()
        return client

    async def uninitialized(self, access: Access, **wanted: Any) -> "Inside":
        client = Inside(self.gateway, access, ConnectRequest(**wanted))
        await self.nursery.start(client.run)
        return client

    async def page(
        self, access: Access, name: str = "page", *, reads: bool = True, page_id: str | None = None, **wanted: Any
    ) -> "Page":
        """A browser that is connected; what it is sent waits for its `read` unless it `reads`."""
        theirs, ours = memory_message_stream_pair()
        request = ConnectRequest(**wanted)
        shown = None if page_id is None else self.pages.find(access, request, page_id)
        bridge = BrowserBridge(self.gateway, access, request, name, "https://box:7443/", shown)
        self.nursery.start_soon(bridge.serve, ours)
        page = Page(theirs, ours)
        if reads:
            self.nursery.start_soon(page.read)
        return page

    async def widget(
        self, access: Access, name: str = "widget", *, reads: bool = True, now: int = 5000, **wanted: Any
    ) -> "Widget":
        """A chat widget that is connected; what it is sent waits for its `read` unless it `reads`."""
        theirs, ours = memory_message_stream_pair()
        bridge = ChatBridge(self.gateway, access, ConnectRequest(**wanted), name, lambda: now)
        self.nursery.start_soon(bridge.serve, ours)
        widget = Widget(theirs, ours)
        if reads:
            self.nursery.start_soon(widget.read)
        return widget

    def editor(self, access: Access, **wanted: Any) -> Editor:
        """An ACP client outside."""
        theirs, ours = memory_message_stream_pair()
        grant = self.gateway.admit(access, ConnectRequest(**wanted))
        if grant.connect_request.control:
            self.nursery.start_soon(serve_control, self.gateway, ours, grant)
        else:
            self.nursery.start_soon(self.gateway.serve, ours, grant, "editor")
        return Editor(theirs)


MakeBench = Callable[..., AbstractAsyncContextManager[Bench]]


class FarEnd:
    """A client's end of a connection to a bridge."""

    def __init__(self, stream: MaintainedStream, far_end: MaintainedStream) -> None:
        self.stream = stream
        self._far_end = far_end
        self.told: list[dict[str, Any]] = []
        """All messages so far, without responses."""
        self.ended = False
        self._news = trio.lowlevel.ParkingLot()

    async def read(self) -> None:
        """Take what comes, until the end."""
        try:
            async for batch in self.stream:
                for text in batch:
                    self._take(json.loads(text))
                self._news.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.ended = True
        self._news.unpark_all()

    def _take(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for it to read."""
        return self._far_end.pending_bytes

    def stall(self, error: Exception) -> None:
        """Have the gateway's end fail as soon as it waits for this one to read."""

        async def stalled(below: int = 0) -> None:
            raise error

        self._far_end.drain = stalled  # type: ignore[method-assign]

    async def until(self, look: Callable[[], T | None]) -> T:
        """Wait until something is found in what has come."""
        while not (found := look()):
            assert not self.ended, self.told
            await self._news.park()
        return found

    async def new_session(self, **members: Any) -> str:
        """Open a session, and follow it."""
        raise NotImplementedError

    async def begin_to_load(self, session: str) -> None:
        """Ask for a session that exists, and do not wait for it."""
        raise NotImplementedError


class Page(FarEnd):
    """A browser's end of `/ws`, which is told notifications."""

    def __init__(self, stream: MaintainedStream, far_end: MaintainedStream) -> None:
        super().__init__(stream, far_end)
        self.arrived: list[dict[str, Any]] = []
        """All messages so far, in order."""
        self._responses: dict[Any, dict[str, Any]] = {}
        self._last_id = 0

    def _take(self, message: dict[str, Any]) -> None:
        self.arrived.append(message)
        if "method" in message:
            super()._take(message)
        else:
            self._responses[message["id"]] = message

    async def send(self, **message: Any) -> None:
        await self.stream.send(json.dumps(message).encode())

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The response to a call."""
        self._last_id += 1
        await self.send(id=self._last_id, method=method, params=params)
        return await self.response(self._last_id)

    async def result(self, method: str, **params: Any) -> Any:
        """The result of a call that succeeds."""
        response = await self.ask(method, **params)
        assert "result" in response, response
        return response["result"]

    async def error(self, method: str, **params: Any) -> tuple[int, str]:
        """Code and message of a call that fails."""
        response = await self.ask(method, **params)
        assert "error" in response, response
        return response["error"]["code"], response["error"]["message"]

    async def response(self, message_id: Any) -> dict[str, Any]:
        return await self.until(lambda: self._responses.pop(message_id, None))

    def of(self, method: str, session: str | None = None) -> list[dict[str, Any]]:
        """The params of the notifications of a method."""
        found = [message["params"] for message in self.told if message["method"] == method]
        return [params for params in found if session in (None, params.get("sessionId"))]

    def entries(self, session: str) -> list[dict[str, Any]]:
        """The updates of a session, and the ends of turns, that it was told of by notifications."""
        return [entry for params in self.of("session/updated", session) for entry in params["updates"]]

    def updates(self, session: str) -> list[dict[str, Any]]:
        """The updates of a session that it was told of by notifications."""
        return [entry for entry in self.entries(session) if entry["updateType"] != "turn_end"]

    async def until_updates(self, session: str, count: int) -> list[dict[str, Any]]:
        return await self.until(lambda: it if len(it := self.updates(session)) >= count else None)

    def statuses(self, session: str) -> list[str]:
        return [params["status"] for params in self.of("session/status_changed", session)]

    async def until_status(self, session: str, *statuses: str) -> None:
        """Wait until the last statuses are these."""
        await self.until(lambda: self.statuses(session)[-len(statuses) :] == [*statuses])

    async def new_session(self, **members: Any) -> str:
        session: str = (await self.result("session/new", **members))["sessionId"]
        await self.result("session/get", sessionId=session)
        return session

    async def begin_to_load(self, session: str) -> None:
        await self.send(id="load", method="session/get", params={"sessionId": session})


class Widget(FarEnd):
    """A widget's end of `/chat`, which is told events."""

    async def send(self, kind: str, **members: Any) -> None:
        await self.stream.send(json.dumps({"type": kind, **members}).encode())

    def of(self, *kinds: str, session: str | None = None) -> list[dict[str, Any]]:
        """The events of some types, of one session or of all."""
        return [it for it in self.told if it["type"] in kinds and session in (None, it["sessionId"])]

    async def next(self, kind: str) -> dict[str, Any]:
        """Take the next event of a type, and all before it."""
        at = await self.until(lambda: next((i for i, it in enumerate(self.told, 1) if it["type"] == kind), None))
        found = self.told[at - 1]
        del self.told[:at]
        return found

    async def error(self, kind: str, **members: Any) -> tuple[int, str]:
        """Code and message of the error that an event is answered by."""
        await self.send(kind, **members)
        error = await self.next("error")
        assert error["requestType"] == kind
        return error["code"], error["message"]

    async def new_session(self, **members: Any) -> str:
        await self.send("new_session", **members)
        session: str = (await self.next("session_created"))["sessionId"]
        return session

    async def begin_to_load(self, session: str) -> None:
        await self.send("load_session", sessionId=session)

    async def load(self, session: str) -> dict[str, Any]:
        await self.begin_to_load(session)
        return await self.next("session_loaded")

    def texts(self) -> list[str]:
        return [it["content"] for it in self.of("message_chunk")]

    async def until_texts(self, *expected: str) -> None:
        await self.until(lambda: self.texts() == [*expected])


class Inside(LocalClient):
    """A client inside the process, with what it has received."""

    def __init__(self, gateway: Gateway, access: Access, wanted: ConnectRequest) -> None:
        self.heard: list[Message] = []
        self._news = trio.lowlevel.ParkingLot()
        super().__init__(gateway, access, wanted, "inside", self._hear, {"_meta": {"acp-gateway": {}}})

    def _hear(self, message: Message) -> None:
        self.heard.append(message)
        self._news.unpark_all()

    async def until(self, method: str) -> Message:
        """Wait for the last message of a method."""
        while True:
            for message in reversed(self.heard):
                if message.method == method:
                    return message
            await self._news.park()

    async def ask(self, method: str, **params: Any) -> Any:
        """The response to a request."""
        response: Any = json.loads((await self.request(method, json.dumps(params).encode())).text)
        return response

    async def new_session(self) -> str:
        session: str = (await self.ask("session/new", cwd="/", mcpServers=[]))["result"]["sessionId"]
        return session


async def at_once(look: Callable[[], DirectoryCheckResult]) -> DirectoryCheckResult:
    """Look at directories without a thread, for which a clock that jumps would not wait."""
    return look()


@asynccontextmanager
async def running(
    directory: Path,
    spawner: Spawner,
    limits: LimitsSection | None = None,
    *,
    timeout: float = TIMEOUT,
    journal_limit: int = 16 * 1024 * 1024,
    **agents: AgentSection,
) -> AsyncIterator[Bench]:
    """A gateway that runs until the end of the block; with the agent `fake` if none is given."""
    config = make_config(
        directory / "state", "tcp://127.0.0.1:0", agents=agents or {"fake": section()}, journal_limit=journal_limit
    )
    config = replace(config, limits=limits or config.limits)
    audit = MemoryAudit()
    gateway = Gateway(config, TokenStore(directory / "state"), spawner, {}, audit)
    gateway.services.in_thread = at_once
    with trio.fail_after(timeout):
        async with trio.open_nursery() as nursery:
            await nursery.start(gateway.run)
            yield Bench(gateway, nursery, audit)
            nursery.cancel_scope.cancel()


def spawner_in(directory: Path) -> Spawner:
    """A spawner of processes, which none of these agents is."""
    return Spawner(ProcessRegistry(directory / "state" / "agents"))


async def says(agent: ServingAgent, session: str, *texts: str) -> None:
    """The agent sends updates."""
    for text in texts:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        await agent.send(method="session/update", params={"sessionId": session, "update": update})


async def asks(agent: ServingAgent, session: str, raw_id: Any = "may I?", **members: Any) -> None:
    """The agent asks for a permission."""
    asked = permission(raw_id)
    await agent.send(**asked | {"params": asked["params"] | {"sessionId": session}} | members)


async def ends_turn(agent: ServingAgent, **response: Any) -> None:
    """The agent answers the prompt that came last, once one has come."""
    while not agent._prompts:
        await agent._arrived.park()
    await agent.send(id=agent._prompts.pop(), **(response or {"result": {"stopReason": "end_turn"}}))


async def prompted(page: Page, agent: ServingAgent, session: str) -> None:
    """The browser has sent a prompt, and the agent has got it."""
    await page.result("session/prompt", sessionId=session, prompt=TEXT)
    await page.until_status(session, "running")


async def editor_in(bench: Bench, session: str, identity: str = "ann") -> Editor:
    """An editor that has loaded a session, and has read its history."""
    editor = bench.editor(bench.access(identity))
    await editor.initialize()
    await editor.send(id="load", method="session/load", params={"sessionId": session, "cwd": "/", "mcpServers": []})
    while (response := await editor.receive()).get("id") != "load":
        pass
    assert "result" in response
    return editor


def texts(updates: list[dict[str, Any]]) -> list[str]:
    return [update["payload"]["content"]["text"] for update in updates]


@pytest.fixture
def make_bench(tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents) -> MakeBench:
    """Run a gateway with these options, as `running` does, whose agents can load sessions."""

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[Bench]:
        async with running(tmp_path, spawner, **options) as bench:
            bench.agents = loading_agents
            yield bench

    return make


@pytest.fixture
async def bench(make_bench: MakeBench) -> AsyncIterator[Bench]:
    """A gateway that runs until the end of the test."""
    async with make_bench() as bench:
        yield bench
