"""Clients made with the SDKs of the protocol, as processes that tests direct.

A test writes commands to their standard input, one JSON object a line:

    {"id": 1, "request": METHOD, "params": …}    send a request
    {"notify": METHOD, "params": …}              send a notification
    {"decide": OPTION}                           choose this in all permissions, those that are asked already as well

They print what their application is told:

    {"id": 1, "result": …}, {"id": 1, "error": TEXT}
    {"update": PARAMS}                           of a session/update
    {"news": PARAMS}                             of the gateway's own notification
    {"asked": TITLE, "about": …}                 a permission; what it is about, from some clients
    {"ended": true}                              the connection has ended, not by its own wish
"""

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from tests.kit.running import ENVIRONMENT

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".venv" / "interop"
"""Folder into which `make interop` installs the SDKs."""

PROGRAMS = INSTALLED / "programs"
"""Folder into which it installs programs from npm that connect to agents, or that these start."""

TIMEOUT = 60.0


def command(sdk: str, url: str) -> list[str]:
    """Return the command of the client with this SDK, at a port of loopback: `typescript-http`, `python-ws`, …"""
    language, _, profile = sdk.partition("-")
    address = f"{'http' if profile == 'http' else 'ws'}://{url}/acp"
    match language:
        case "typescript":
            # Some versions have the WebSocket of browsers only when they are asked for it.
            options = ["--experimental-websocket"] if profile == "native-ws" and node_version() < 22 else []
            script = Path(__file__).with_name("typescript_sdk.mjs")
            return ["node", "--no-warnings", *options, str(script), str(INSTALLED), profile, address]
        case "python":
            return [sys.executable, "-m", "tests.interop.python_sdk", profile, address]
        case _:
            return [sys.executable, "-m", "tests.interop.rust_habits", address]


def node_version() -> int:
    """Return the major version of Node.js."""
    said = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True).stdout
    return int(said.removeprefix("v").partition(".")[0])


class SdkClient:
    """A client's process, and what its application was told."""

    def __init__(self, process: trio.Process) -> None:
        self.updates: list[tuple[str, dict[str, Any]]] = []
        """Each with its session."""
        self.cursor = ""
        """The last cursor that came with an update, or with news."""
        self.news: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.about: list[dict[str, Any] | None] = []
        """Subject of each permission, in the words of the client's version; None if the client does not print it."""
        self.ended = False
        self._process = process
        self._answers: dict[int, dict[str, Any]] = {}
        self._requests = 0
        self._exited = False
        self._news = trio.lowlevel.ParkingLot()

    async def read(self) -> None:
        """Note what the client prints, until it ends."""
        assert self._process.stdout is not None
        async for line in lines(self._process.stdout):
            told = json.loads(line)
            match told:
                case {"update": params}:
                    self.updates.append((params["sessionId"], params["update"]))
                    self._note_cursor(params)
                case {"news": params}:
                    self.news.append(params)
                    self._note_cursor(params)
                case {"asked": title}:
                    self.asked.append(title)
                    self.about.append(told.get("about"))
                case {"ended": _}:
                    self.ended = True
                case answer:
                    self._answers[answer["id"]] = answer
            self._news.unpark_all()
        self._exited = True
        self._news.unpark_all()

    def _note_cursor(self, params: dict[str, Any]) -> None:
        own = (params.get("_meta") or {}).get("acp-gateway") or {}
        self.cursor = own.get("cursorId", self.cursor)

    async def begin(self, method: str, **params: Any) -> int:
        """Have a request sent; return its number."""
        self._requests += 1
        await self._tell(id=self._requests, request=method, params=params)
        return self._requests

    async def answer(self, request: int) -> dict[str, Any]:
        """Wait for the answer to a request: `result` or `error`."""
        await self.until(lambda: request in self._answers)
        return self._answers[request]

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Have a request sent, and return its result."""
        answer = await self.answer(await self.begin(method, **params))
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"] or {}
        return result

    async def notify(self, method: str, **params: Any) -> None:
        await self._tell(notify=method, params=params)

    async def decide(self, option: str) -> None:
        await self._tell(decide=option)

    async def _tell(self, **command: Any) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps(command).encode() + b"\n")

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that the client prints."""
        while not condition():
            assert not self._exited, "the client's process has exited"
            await self._news.park()

    def said(self, session: str) -> list[str]:
        """Return the texts of the agent in a session, as far as the client was told."""
        return [
            update["content"]["text"]
            for name, update in self.updates
            if name == session and update["sessionUpdate"] == "agent_message_chunk"
        ]

    # What all tests do

    async def initialize(self, **capabilities: Any) -> None:
        answer = await self.request("initialize", protocolVersion=1, clientCapabilities=capabilities)
        assert answer["protocolVersion"] == 1

    async def new_session(self) -> str:
        session: str = (await self.request("session/new", cwd="/", mcpServers=[]))["sessionId"]
        return session

    async def load(self, session: str) -> None:
        await self.request("session/load", sessionId=session, cwd="/", mcpServers=[])

    async def begin_prompt(self, session: str, *texts: str) -> int:
        blocks = [{"type": "text", "text": text} for text in texts]
        return await self.begin("session/prompt", sessionId=session, prompt=blocks)

    async def prompt(self, session: str, *texts: str) -> str:
        """Send a prompt, and return how its turn ended."""
        answer = await self.answer(await self.begin_prompt(session, *texts))
        assert "error" not in answer, answer
        reason: str = answer["result"]["stopReason"]
        return reason


C = TypeVar("C", bound=SdkClient)


@asynccontextmanager
async def sdk_client(sdk: str, port: int, token: str) -> AsyncIterator[SdkClient]:
    """Run a client of the gateway at a port of loopback. At the end it closes its connection and exits."""
    async with running_client(command(sdk, f"127.0.0.1:{port}"), token, SdkClient) as client:
        yield client


@asynccontextmanager
async def running_client(command: list[str], token: str, kind: Callable[[trio.Process], C]) -> AsyncIterator[C]:
    """Run a client by its command. At the end it closes its connection and exits."""
    assert shutil.which("node"), "these tests need Node.js; run them by `make interop`"
    with trio.fail_after(TIMEOUT):
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=ENVIRONMENT | {"TOKEN": token, "PYTHONPATH": str(INSTALLED / "python")},
        )
        client = kind(process)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.read)
                yield client
                assert process.stdin is not None
                await process.stdin.aclose()
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
    assert process.returncode == 0


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    """Yield the lines of a stream."""
    unfinished = b""
    while data := await stream.receive_some():
        *whole, unfinished = (unfinished + data).split(b"\n")
        for line in whole:
            yield line
