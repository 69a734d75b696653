"""One session on every dialect at once: an editor behind `connect`, a page, a chat widget, an HTTP editor, a file tap.

What one of them decides, all others are told; an observer's token can do nothing on any of them.
"""

import asyncio
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.end_to_end.parties import run
from tests.kit.free_ports import free_port
from tests.kit.running import AGENTS, ENVIRONMENT, WORK, RunningGateway, prepare, start_gateway

T = TypeVar("T")
Message = dict[str, Any]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with one listener for all dialects on WebSocket and HTTP, and one for the tap."""
    directory = tmp_path_factory.mktemp("dialects")
    (directory / "sessions").mkdir()
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "sessions")]
    agents = f"[agents.memory]\ncommand = {json.dumps(command)}\n"
    ports = {name: free_port() for name in ("dialects", "tap")}
    listeners = f'[[listen]]\nurl = "ws://127.0.0.1:{ports["dialects"]}"\nserves = ["acp", "page", "chat", "editor"]\n'
    listeners += f'[[listen]]\nurl = "tcp://127.0.0.1:{ports["tap"]}"\nserves = ["tap"]\n'
    running = start_gateway(directory, prepare(directory, agents, more=listeners))
    for _ in range(2):
        running.read_log_until("listening on ")
    # Of two listeners of one scheme, each may be the first to listen.
    for scheme, rest in re.findall(r"listening on (\w[\w+]*)(://\S+)", "".join(running.log)):
        if urlsplit(scheme + rest).port not in ports.values():
            running.urls[scheme] = scheme + rest
    running.urls |= {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


class Client:
    """A client of one dialect, and the messages that it has received."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self._news = asyncio.Event()

    def hear(self, message: Message) -> None:
        """Note a message."""
        self.heard.append(message)
        self._news.set()

    async def until(self, condition: Callable[[Message], T | None]) -> T:
        """Return what the condition finds in a message that has come or will come."""
        try:
            async with asyncio.timeout(60):
                while True:
                    for message in self.heard:
                        if found := condition(message):
                            return found
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not among {self.heard}") from None


class SendingClient(Client, ABC):
    """A client that sends JSON-RPC messages."""

    @abstractmethod
    async def send(self, message: Message) -> None:
        """Send a message."""

    async def ask(self, number: int, method: str, params: Message) -> Message:
        """Return the response to a JSON-RPC request."""
        await self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return await self.until(
            lambda message: message if message.get("id") == number and "method" not in message else None
        )


class SocketClient(SendingClient):
    """A client on a WebSocket: the page's protocol, or the chat's."""

    socket: ClientConnection

    async def send(self, message: Message) -> None:
        await self.socket.send(json.dumps(message))


@asynccontextmanager
async def on_socket(gateway: RunningGateway, path: str, token: str) -> AsyncIterator[SocketClient]:
    client = SocketClient()
    headers = {"Authorization": f"Bearer {token}"}
    async with connect(
        f"ws://{gateway.urls['dialects']}{path}", additional_headers=headers, proxy=None, open_timeout=60
    ) as client.socket:

        async def read() -> None:
            async for text in client.socket:
                client.hear(json.loads(text))

        reading = asyncio.create_task(read())
        try:
            yield client
        finally:
            reading.cancel()


class LineClient(SendingClient):
    """A client of lines: the editor's end of `connect`, or a reader of the tap."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer

    async def send(self, message: Message) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")
        await self._writer.drain()

    async def read(self) -> None:
        """Note all lines."""
        while line := await self._reader.readline():
            self.hear(json.loads(line))


@asynccontextmanager
async def behind_connect(gateway: RunningGateway, token_file: Path) -> AsyncIterator[LineClient]:
    process = await asyncio.create_subprocess_exec(
        *gateway.connect_command("wss", "--token-file", str(token_file)),
        env=ENVIRONMENT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    client = LineClient(process.stdout, process.stdin)
    reading = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        process.stdin.close()
        await process.wait()
        await reading


@asynccontextmanager
async def at_the_tap(gateway: RunningGateway, token: str) -> AsyncIterator[LineClient]:
    host, _, port = gateway.urls["tap"].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    client = LineClient(reader, writer)
    reading = asyncio.create_task(client.read())
    try:
        await client.send({"jsonrpc": "2.0", "id": 0, "method": "_acp-gateway/hello", "params": {"token": token}})
        yield client
    finally:
        reading.cancel()
        writer.close()


class HttpEditor(Client):
    """An editor that sends messages over HTTP; what it hears are the lines of its turns."""

    def __init__(self, gateway: RunningGateway, token: str) -> None:
        super().__init__()
        self._address = gateway.urls["dialects"]
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def _post(self, path: str, body: Message, read: Callable[[HTTPResponse], T]) -> tuple[int, T]:
        with closing(HTTPConnection(self._address, timeout=60)) as connection:
            connection.request("POST", f"/acp/{path}", json.dumps(body), self._headers)
            with connection.getresponse() as response:
                return response.status, read(response)

    async def post(self, path: str, body: Message) -> tuple[int, bytes]:
        """Return the status and the body of the response to a request."""
        return await asyncio.to_thread(self._post, path, body, HTTPResponse.read)

    async def say(self, composer: str, text: str) -> None:
        """Send a message, and note the lines of its turn to the end."""
        loop = asyncio.get_running_loop()

        def read(response: HTTPResponse) -> None:
            for line in response:
                if line.strip():
                    loop.call_soon_threadsafe(self.hear, json.loads(line))

        body = {"provider": {"id": "memory"}, "message": text, "composerId": composer, "stream": True}
        status, _ = await asyncio.to_thread(self._post, "sendMessage", body, read)
        assert status == 200


class Everyone:
    """A session with a client of each dialect in it."""

    http: HttpEditor
    editor: LineClient
    page: SocketClient
    chat: SocketClient
    tap: LineClient
    session: str


@asynccontextmanager
async def everyone(gateway: RunningGateway, composer: str) -> AsyncIterator[Everyone]:
    """Open a session over HTTP, and join it with a client of each other dialect."""
    all_ = Everyone()
    all_.http = HttpEditor(gateway, gateway.token)
    composed = {"provider": {"id": "memory"}, "composerId": composer, "cwd": str(WORK)}
    status, answer = await all_.http.post("getSession", composed)
    assert status == 200, answer
    all_.session = json.loads(answer)["sessionId"]
    async with AsyncExitStack() as stack:
        all_.editor = await stack.enter_async_context(behind_connect(gateway, gateway.token_file))
        await all_.editor.ask(0, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        load = {"sessionId": all_.session, "cwd": str(WORK), "mcpServers": []}
        assert "result" in await all_.editor.ask(1, "session/load", load)
        all_.page = await stack.enter_async_context(on_socket(gateway, "/ws", gateway.token))
        assert "result" in await all_.page.ask(1, "session/get", {"sessionId": all_.session})
        all_.chat = await stack.enter_async_context(on_socket(gateway, "/chat", gateway.token))
        await all_.chat.send({"type": "load_session", "sessionId": all_.session})
        await all_.chat.until(typed("session_loaded"))
        all_.tap = await stack.enter_async_context(at_the_tap(gateway, gateway.token))
        await all_.tap.send({"type": "set_stream_filter", "session_id": all_.session})
        await all_.tap.until(
            lambda message: message.get("type") == "snapshot" and message["session_id"] == all_.session
        )
        yield all_


def said_to_editor(message: Message) -> str:
    """Return the text of an agent's chunk in a `session/update`."""
    update = message.get("params", {}).get("update", {}) if message.get("method") == "session/update" else {}
    return text_of(update)


def said_to_page(message: Message) -> str:
    """Return the text of an agent's chunk in a `session/updated`."""
    updates = message["params"]["updates"] if message.get("method") == "session/updated" else []
    return "".join(text_of(update["payload"]) for update in updates)


def text_of(update: Message) -> str:
    return update["content"]["text"] if update.get("sessionUpdate") == "agent_message_chunk" else ""


def calls(method: str) -> Callable[[Message], Message | None]:
    """Return the condition that a message is a request or a notification of this method."""
    return lambda message: message if message.get("method") == method else None


def typed(name: str) -> Callable[[Message], Message | None]:
    """Return the condition that a message, of a dialect without JSON-RPC, has this type."""
    return lambda message: message if message.get("type") == name else None


def files(message: Message) -> set[str]:
    """Return the paths that a line of the tap tells; a snapshot may stand for deltas that came too fast."""
    return {*message.get("nodes", ()), *(node["path"] for node in message.get("updates", ()))}


async def all_are_told(everyone: Everyone, text: str) -> None:
    """Wait until every client has heard the agent say this."""
    await everyone.editor.until(lambda message: text in said_to_editor(message))
    await everyone.page.until(lambda message: text in said_to_page(message))
    await everyone.chat.until(
        lambda message: message.get("type") == "message_chunk" and text in message.get("content", "")
    )
    await everyone.http.until(lambda message: message.get("type") == "text" and text in message["content"])


def test_what_one_client_says_all_others_are_told(gateway: RunningGateway) -> None:
    async def talk() -> None:
        async with everyone(gateway, "telling") as all_:
            await all_.http.say("telling", "look at @lib/first.py")
            await all_are_told(all_, "lib/first.py")
            await all_.tap.until(lambda message: "lib/first.py" in files(message))
            assert (all_.http.heard[-1]["type"], all_.http.heard[-1]["stopReason"]) == ("done", "end_turn")
            # The others' prompts are told to all as well.
            await all_.chat.send({"type": "send_message", "sessionId": all_.session, "content": "see @lib/second.py"})
            await all_.editor.until(lambda message: "lib/second.py" in said_to_editor(message))
            await all_.page.until(lambda message: "lib/second.py" in said_to_page(message))
            await all_.tap.until(lambda message: "lib/second.py" in files(message))

    run(talk())


@pytest.mark.parametrize("who", ["editor", "page", "chat", "http"])
def test_what_one_client_decides_all_others_see(gateway: RunningGateway, who: str) -> None:
    async def talk() -> None:
        async with everyone(gateway, who) as all_:
            turn = asyncio.create_task(all_.http.say(who, "ask"))
            # Everyone is asked.
            asked = await all_.editor.until(calls("session/request_permission"))
            shown = await all_.page.until(calls("session/request"))
            chat = await all_.chat.until(typed("permission_request"))
            http = await all_.http.until(typed("permission"))
            outcome = {"outcome": "selected", "optionId": "yes"}
            match who:
                case "editor":
                    await all_.editor.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}})
                case "page":
                    params = {
                        "sessionId": all_.session,
                        "requestId": shown["params"]["requestId"],
                        "response": {"outcome": outcome},
                    }
                    assert "result" in await all_.page.ask(2, "session/respond", params)
                case "chat":
                    decided = {"type": "permission_response", "requestId": chat["requestId"], "outcome": outcome}
                    await all_.chat.send(decided)
                case "http":
                    status, _ = await all_.http.post("respond", {"requestId": http["requestId"], "outcome": outcome})
                    assert status == 200
            await turn
            await all_are_told(all_, "yes")
            assert all_.http.heard[-1]["type"] == "done"
            if who != "editor":
                assert (await all_.editor.until(calls("$/cancel_request")))["params"]["requestId"] == asked["id"]
            if who != "page":
                resolved = await all_.page.until(calls("session/request_resolved"))
                assert resolved["params"]["requestId"] == shown["params"]["requestId"]
            if who != "chat":
                resolved = await all_.chat.until(typed("permission_resolved"))
                assert resolved["requestId"] == chat["requestId"]

    run(talk())


def test_an_observer_s_token_can_do_nothing_on_any_of_them(gateway: RunningGateway) -> None:
    token_file = gateway.save_token("token", "create", "--label", "watcher", "--role", "observer")
    token = token_file.read_text().strip()

    async def talk() -> None:
        async with everyone(gateway, "observed") as all_, AsyncExitStack() as stack:
            editor = await stack.enter_async_context(behind_connect(gateway, token_file))
            await editor.ask(0, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
            load = {"sessionId": all_.session, "cwd": str(WORK), "mcpServers": []}
            assert "result" in await editor.ask(1, "session/load", load)
            prompt = {"sessionId": all_.session, "prompt": [{"type": "text", "text": "from an observer"}]}
            assert "error" in await editor.ask(2, "session/prompt", prompt)

            page = await stack.enter_async_context(on_socket(gateway, "/ws", token))
            assert "result" in await page.ask(1, "session/get", {"sessionId": all_.session})
            assert "error" in await page.ask(2, "session/prompt", prompt)

            chat = await stack.enter_async_context(on_socket(gateway, "/chat", token))
            await chat.send({"type": "load_session", "sessionId": all_.session})
            await chat.until(typed("session_loaded"))
            await chat.send({"type": "send_message", "sessionId": all_.session, "content": "from an observer"})
            await chat.until(typed("error"))

            http = HttpEditor(gateway, token)
            body = {"provider": {"id": "memory"}, "message": "from an observer", "composerId": "observed"}
            assert (await http.post("sendMessage", body))[0] == 403

            # It may not decide what the agent asks either.
            turn = asyncio.create_task(all_.http.say("observed", "ask"))
            asked = await all_.http.until(typed("permission"))
            outcome = {"outcome": "selected", "optionId": "no"}
            assert (await http.post("respond", {"requestId": asked["requestId"], "outcome": outcome}))[0] == 403
            shown = await all_.page.until(calls("session/request"))
            respond = {
                "sessionId": all_.session,
                "requestId": shown["params"]["requestId"],
                "response": {"outcome": outcome},
            }
            assert "error" in await page.ask(3, "session/respond", respond)
            request = await all_.chat.until(typed("permission_request"))
            errors = sum(message.get("type") == "error" for message in chat.heard)
            await chat.send({"type": "permission_response", "requestId": request["requestId"], "outcome": outcome})
            await chat.until(lambda _: sum(message.get("type") == "error" for message in chat.heard) > errors)
            respond["response"] = {"outcome": outcome | {"optionId": "yes"}}
            assert "result" in await all_.page.ask(3, "session/respond", respond)
            await turn
            await all_are_told(all_, "yes")
            heard = json.dumps([client.heard for client in (all_.editor, all_.page, all_.chat, all_.http, all_.tap)])
            assert "from an observer" not in heard

    run(talk())
