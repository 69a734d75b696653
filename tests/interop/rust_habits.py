"""A client with the habits of the Rust SDK's, for tests: it does what lines of JSON on its standard input say.

    python -m tests.interop.rust_habits URL, with the token in TOKEN

It is stricter than the others, so that a server which serves it may not end a stream or refuse a request:

- Any response but 2xx to a POST ends everything, and so does the end of any event stream.
- Before it sends a message that names a session, it opens that session's stream and waits for the head.
- It sends requests and notifications one after the other, and its responses beside them without `Acp-Session-Id`.
- It shows no `Last-Event-ID`.

See sdk_clients.py for the lines. The end of the input closes the connection.
"""

import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

import h11
import trio

from tests.interop.sdk_clients import lines
from tests.kit.http_client import EVENTS, JSON, Events, Http


class Fatal(Exception):
    """An error that ends everything."""


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class StrictClient:
    """The client; needs `run` to run."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._connected = False
        self._streams: set[str] = set()
        # Ids of open requests with their methods.
        self._requests: dict[Any, str] = {}
        self._ordered: tuple[Any, Any] = trio.open_memory_channel(1000)
        self._responses: tuple[Any, Any] = trio.open_memory_channel(1000)
        self._decision = ""
        self._decided = trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._read_commands)
            nursery.start_soon(self._post_all, self._ordered[1])
            nursery.start_soon(self._post_all, self._responses[1])

    async def _read_commands(self) -> None:
        async for line in lines(trio.lowlevel.FdStream(os.dup(0))):
            command = json.loads(line)
            if "decide" in command:
                self._decision = command["decide"]
                self._decided.set()
                continue
            message = {"jsonrpc": "2.0", "params": command["params"]}
            if "request" in command:
                message |= {"id": command["id"], "method": command["request"]}
                self._requests[command["id"]] = command["request"]
            else:
                message["method"] = command["notify"]
            await self._ordered[0].send(message)
        if self._connected:
            await self._ask("DELETE")
        self._nursery.cancel_scope.cancel()

    async def _post_all(self, messages: Any) -> None:
        async for message in messages:
            if message.get("method") == "initialize":
                await self._initialize(message)
                continue
            session = (message.get("params") or {}).get("sessionId")
            if session is not None:
                await self._open(session)
            named = {} if session is None else {"Acp-Session-Id": session}
            await self._ask("POST", message, JSON | named)

    async def _initialize(self, message: dict[str, Any]) -> None:
        body, headers = await self._ask("POST", message, JSON)
        self._headers["Acp-Connection-Id"] = headers["acp-connection-id"]
        self._connected = True
        await self._nursery.start(self._read_stream, None)
        self._take(json.loads(body))

    async def _ask(
        self, method: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[bytes, dict[str, str]]:
        async with await trio.open_tcp_stream(self._host, self._port) as stream:
            all_headers = self._headers | {"Accept": "application/json"} | (headers or {})
            reply = await Http(stream).ask(method, "/acp", body, **all_headers)
        if reply.status // 100 != 2:
            raise Fatal(f"{method} is answered by {reply.status}: {reply.body.decode()}")
        return reply.body, reply.headers

    async def _open(self, session: str) -> None:
        if session not in self._streams:
            self._streams.add(session)
            await self._nursery.start(self._read_stream, session)

    async def _read_stream(
        self, session: str | None, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        named = {} if session is None else {"Acp-Session-Id": session}
        async with await trio.open_tcp_stream(self._host, self._port) as stream:
            http = Http(stream)
            reply = await http.begin("GET", "/acp", None, self._headers | EVENTS | named)
            if reply.status != 200:
                raise Fatal(f"GET is answered by {reply.status}")
            task_status.started()
            events = Events(http, reply)
            while True:
                message = await events.next()
                created = (message.get("result") or {}).get("sessionId")
                if self._requests.get(message.get("id")) in ("session/new", "session/fork") and created:
                    self._nursery.start_soon(self._open, created)
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        match message:
            case {"method": "session/update", "params": params}:
                say(update=params)
            case {"method": "_acp-gateway/news", "params": params}:
                say(news=params)
            case {"method": "session/request_permission", "params": params, "id": id_}:
                say(asked=params["toolCall"]["title"])
                self._nursery.start_soon(self._decide, id_)
            case {"method": _}:
                pass
            case {"id": id_, "error": error}:
                say(id=id_, error=error["message"])
            case {"id": id_, "result": result}:
                say(id=id_, result=result)

    async def _decide(self, id_: Any) -> None:
        await self._decided.wait()
        outcome = {"outcome": {"outcome": "selected", "optionId": self._decision}}
        await self._responses[0].send({"jsonrpc": "2.0", "id": id_, "result": outcome})


async def main(url: str) -> None:
    try:
        await StrictClient(url, os.environ["TOKEN"]).run()
    except* (Fatal, EOFError, OSError, h11.RemoteProtocolError, trio.BrokenResourceError) as errors:
        sys.stderr.write(f"{errors.exceptions}\n")
        say(ended=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
