"""Editors that speak HTTP, beside clients of the same gateway: real sockets, agents in memory."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import AgentSection, ListenSection
from acp_gateway.dialects.editor.service import EditorSection
from acp_gateway.dialects.editor.sessions import Composers
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.http.routes import SharedState
from acp_gateway.server.listener import Listener
from tests.kit.bridging import Bench, MemoryAudit, at_once, section
from tests.kit.doubles import ServingAgent, make_config
from tests.kit.echoing import WS, listening, port_of
from tests.kit.http_client import JSON, Http, Reply

PAGE = "https://editor.example"
LISTEN = ListenSection(url=WS, serves=("acp", "editor"), allowed_origins=(PAGE,))


class Turn:
    """A message that is being answered in lines."""

    def __init__(self, http: Http, reply: Reply) -> None:
        self.reply = reply
        self.lines: list[dict[str, Any]] = []
        self.received = b""
        self._http = http
        self._data = b""

    async def next(self) -> dict[str, Any]:
        """The next line."""
        while b"\n" not in self._data:
            data = await self._http.read()
            if not data:
                raise EOFError
            self.received += data
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        self.lines.append(found)
        return found

    async def until(self, kind: str) -> dict[str, Any]:
        """The next line of this kind."""
        while (line := await self.next())["type"] != kind:
            pass
        return line

    async def rest(self) -> list[dict[str, Any]]:
        """All lines, to the end."""
        try:
            while True:
                await self.next()
        except EOFError:
            return self.lines

    async def raw(self) -> bytes:
        """Read a body that does not consist of lines, to its end."""
        parts = [self.received]
        while data := await self._http.read():
            parts.append(data)
        self.received = b"".join(parts)
        return self.received

    @property
    def text(self) -> str:
        return "".join(line["content"] for line in self.lines if line["type"] == "text")


class Sent:
    """A message whose answer has not begun."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def begin(self) -> Turn:
        """Wait for the head of the answer."""
        event = await self._http._event()
        headers = {name.decode(): value.decode() for name, value in event.headers}
        return Turn(self._http, Reply(event.status_code, headers))


class HttpEditor:
    """An editor with a token."""

    def __init__(self, listener: Listener, token: str | None, **headers: str) -> None:
        self._port = port_of(listener)
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.headers |= {name.replace("_", "-"): value for name, value in headers.items()}

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Http]:
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            yield Http(stream)

    async def post(self, call: str, body: Any, /, **headers: str) -> Reply:
        async with self.connection() as http:
            return await http.ask("POST", f"/acp/{call}", body, **{**JSON, **self.headers, **headers})

    async def get(self, target: str, method: str = "GET", /, **headers: str) -> Reply:
        async with self.connection() as http:
            return await http.ask(method, target, None, **{**self.headers, **headers})

    async def answer(self, call: str, body: Any) -> Any:
        """The answer to a call that succeeds."""
        reply = await self.post(call, body)
        assert reply.status == 200, reply
        return json.loads(reply.body)

    @asynccontextmanager
    async def sent(
        self, text: str = "hello", composer: str = "c", agent: str = "fake", **more: Any
    ) -> AsyncIterator[Turn]:
        """A message that is answered in lines; leaving the block closes its connection."""
        async with self.connection() as http:
            body = message(text, composer, agent, stream=True, **more)
            reply = await http.begin("POST", "/acp/sendMessage", body, {**JSON, **self.headers})
            yield Turn(http, reply)

    @asynccontextmanager
    async def sent_unread(
        self, text: str = "hello", composer: str = "c", agent: str = "fake", **more: Any
    ) -> AsyncIterator[Sent]:
        """A message whose answer has not begun; leaving the block closes its connection."""
        async with self.connection() as http:
            await http.write(
                "POST",
                "/acp/sendMessage",
                message(text, composer, agent, stream=True, **more),
                {**JSON, **self.headers},
            )
            yield Sent(http)

    async def ask(self, text: str = "hello", composer: str = "c", agent: str = "fake", **more: Any) -> Reply:
        """The answer to a message, in one piece."""
        return await self.post("sendMessage", message(text, composer, agent, stream=False, **more))


def message(text: str = "hello", composer: str = "c", agent: str = "fake", **more: Any) -> dict[str, Any]:
    return {"provider": {"id": agent}, "message": text, "composerId": composer, **more}


class EditingBench(Bench):
    """A gateway with a listener for editors."""

    def __init__(
        self, gateway: Gateway, nursery: trio.Nursery, audit: MemoryAudit, listener: Listener, composers: Composers
    ) -> None:
        super().__init__(gateway, nursery, audit)
        self.listener = listener
        self.composers = composers

    def http(self, identity: str = "ann", agents: tuple[str, ...] | None = None, **options: Any) -> HttpEditor:
        """An editor with a new token of this identity."""
        headers = {name: options.pop(name) for name in list(options) if name[0].isupper()}
        token = self.gateway.tokens.create("editor", identity, agents, **options)[1]
        return HttpEditor(self.listener, token, **headers)

    async def until_queued(self, session: str, count: int = 1) -> None:
        """Wait until so many prompts wait in a session."""
        (found,) = self.gateway.registry._by_id[session]
        while len(found.queue) != count:
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def serving_editors(
    directory: Path,
    spawner: Spawner,
    listen: ListenSection = LISTEN,
    limits: LimitsSection | None = None,
    agents: dict[str, AgentSection] | None = None,
    options: EditorSection | None = None,
    **sections: Any,
) -> AsyncIterator[EditingBench]:
    """A gateway that runs until the end of the block; with the agent `fake` if none is given."""
    config = make_config(directory / "state", WS, agents=agents or {"fake": section()}, **sections.pop("gateway", {}))
    services = {EditorSection: options or EditorSection()}
    config = replace(config, limits=limits or config.limits, services=services, **sections)
    audit = MemoryAudit()
    gateway = Gateway(config, TokenStore(directory / "state"), spawner, {}, audit)
    gateway.services.in_thread = at_once
    shared = SharedState(gateway)
    async with listening(listen, gateway, shared) as listener, trio.open_nursery() as nursery:
        yield EditingBench(gateway, nursery, audit, listener, gateway.services.one(Composers, gateway))
        nursery.cancel_scope.cancel()


async def tells(agent: ServingAgent, session: str, **update: Any) -> None:
    """The agent sends an update of this kind."""
    await agent.send(method="session/update", params={"sessionId": session, "update": update})
