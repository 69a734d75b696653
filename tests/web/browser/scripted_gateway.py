"""A gateway for tests of the page: serves its files with the real headers, and answers `/ws` from a scene.

Sessions and agents of a scene that have a `machine` are told by that machine, at `/nodes/NAME/ws`, under their names
there. It runs in a thread of its own, because Playwright's synchronous interface holds the test's.
"""

import json
import re
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream
from websockets.datastructures import Headers

from acp_gateway.dialects.browser.assets import WEB, load_assets
from acp_gateway.dialects.files.requests import media_type
from acp_gateway.transports.http.server import SANDBOX

CODE = "acpgwp_good"
"""The code that signs in."""

Message = dict[str, Any]


class Scene:
    """State of the gateway: sessions with their updates and questions, agents, the identity of the browser."""

    def __init__(self, sessions: list[Message], updates: dict[str, list[Message]]) -> None:
        self.info: Message = {
            "name": "acp-gateway",
            "version": "1.0",
            "identity": "ann",
            "role": "controller",
            "guest": False,
            "session": None,
            "mayShare": True,
        }
        self.agents: list[Message] = []
        self.sessions = {session["id"]: session for session in sessions}
        self.updates = updates
        self.requests: dict[str, list[Message]] = {}
        """Open questions by session: `{requestId, requestType, payload}`."""
        self.extra: dict[str, Message] = {}
        """Further members of the result of `session/get`, by session."""
        self.more = 0
        """Number of sessions that the list does not have."""
        self.files: list[str] = []
        self.contents: dict[str, bytes] = {}
        """Files in the folder of each session, by their path below it: folders follow from them."""
        self.signed_in = True
        self.away: dict[str, str] = {}
        """Since when machines are away."""
        self.too_old: list[str] = []
        """Machines that are too old for the gateway."""

    @property
    def machines(self) -> list[Message]:
        """The machines, as the gateway tells them."""
        names = sorted({one["machine"] for one in (*self.sessions.values(), *self.agents) if one.get("machine")})
        told = [
            {"name": name, **({"unreachableSince": self.away[name]} if name in self.away else {})} for name in names
        ]
        since = "2026-11-22T09:00:00Z"
        return told + [{"name": name, "unreachableSince": since, "tooOld": True} for name in self.too_old]


Told = TypeVar("Told", bound=Callable[..., None])


def atomic(change: Told) -> Told:
    """Have a change of the scene, with what pages are told of it, come between two answers: a page that is told before
    it has its answer would forget that."""

    @wraps(change)
    def changed(self: "ScriptedGateway", *args: Any, **members: Any) -> None:
        if self.is_changing:
            change(self, *args, **members)
        else:
            self.change_scene(partial(change, self, *args, **members))

    return cast("Told", changed)


class Refused(Exception):
    """A refusal with a reason."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(text)


CWD = "/home/ann/work/shop"
"""The folder of all sessions."""


def _below(path: str) -> str:
    """Return a path as it is below the folder of sessions."""
    return path.removeprefix(CWD).strip("/")


def _entry(path: str, size: int) -> Message:
    name = path.rpartition("/")[2]
    at = f"{CWD}/{path}".rstrip("/")
    return {"path": at, "name": name, "kind": "file", "size": size, "modified": 1_700_000_000_000, "tag": "t"}


class ScriptedGateway:
    """The server. Its methods may be called from the test's thread."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.calls: list[tuple[str, Message]] = []
        """Requests of the page: method and params."""
        self.files: list[tuple[str, int]] = []
        """Paths of the files that were sent, and their bytes as sent."""
        self.queries: list[str] = []
        """Queries of the files that were loaded."""
        self.uploads: dict[str, tuple[str, bytearray]] = {}
        self.answers: dict[str, Callable[[Message], Any]] = {}
        """Answers that a test sets, by method; an exception becomes an error."""
        self.web = WEB
        """The folder of the page's files."""
        self.open_sockets = True
        """Accept WebSockets of pages that are signed in."""
        self.silent: set[str] = set()
        """Paths whose requests are read and never answered."""
        self.url = ""
        # By socket: its machine, empty for the gateway itself.
        self._sockets: dict[WebSocketConnection, str] = {}
        # Held while an answer is made and sent, and during a change; what is told of that.
        self._turn = trio.Lock()
        self._told: list[tuple[str, str]] | None = None
        self._trio = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()

    @property
    def is_changing(self) -> bool:
        """True within a change of the scene."""
        return self._told is not None

    def change_scene(self, change: Callable[[], None]) -> None:
        """Change the scene, and tell pages what `change` has told."""
        self._run(partial(self._change, change))

    async def _change(self, change: Callable[[], None]) -> None:
        async with self._turn:
            told = self._told = []
            try:
                change()
            finally:
                self._told = None
            for text, machine in told:
                await self._broadcast(text, machine)

    @atomic
    def notify(self, method: str, params: Message) -> None:
        """Send a notification to all pages, from the machine of its session."""
        known = [one["name"] for one in self.scene.machines]
        name = params.get("sessionId") or params.get("session", {}).get("id", "")
        machine = next((each for each in known if name.startswith(f"{each}/")), "")
        text = json.dumps({"jsonrpc": "2.0", "method": method, "params": _plain(machine, params)})
        assert self._told is not None
        self._told.append((text, machine))

    @atomic
    def add(self, session_id: str, *payloads: Message, at: str | None = None) -> None:
        """Append updates to a session, in one batch."""
        updates = self.scene.updates.setdefault(session_id, [])
        first = updates[-1]["seq"] + 1 if updates else 1
        new = [update(first + i, payload, at) for i, payload in enumerate(payloads)]
        updates.extend(new)
        self.notify("session/updated", {"sessionId": session_id, "updates": new})

    @atomic
    def end_turn(self, session_id: str, **outcome: Any) -> None:
        """End the turn of a session, with a `stopReason` or an `error`."""
        status = "error" if "error" in outcome else "completed"
        self.change(session_id, turn=False, status=status)
        entry = turn_end(self.scene.updates[session_id][-1]["seq"], **outcome)
        self.scene.updates[session_id].append(entry)
        self.notify("session/updated", {"sessionId": session_id, "updates": [entry]})
        self.notify("session/status_changed", {"sessionId": session_id, "status": status, **outcome})

    @atomic
    def change(self, session_id: str, **members: Any) -> None:
        """Change a session, and tell the pages."""
        session = self.scene.sessions[session_id]
        session.update(members)
        self.notify("session/changed", {"session": session})

    @atomic
    def remove(self, session_id: str) -> None:
        """Delete a session, and tell the pages."""
        self.notify("session/removed", {"sessionId": session_id})
        del self.scene.sessions[session_id]

    @atomic
    def queue(self, session_id: str, *prompts: Message) -> None:
        """Have these prompts wait in a session; a page whose connection was replaced asks for them again."""
        self.scene.extra[session_id] = self.scene.extra.get(session_id, {}) | {"queue": list(prompts)}
        self.notify("session/queue_changed", {"sessionId": session_id, "queue": list(prompts)})
        self.change(session_id, queued=len(prompts))

    @atomic
    def ask(self, session_id: str, request_id: int | str, payload: Message) -> None:
        """Ask a question."""
        question = {"requestId": request_id, "requestType": "session/request_permission", "payload": payload}
        self.scene.requests.setdefault(session_id, []).append(question)
        title = payload.get("toolCall", {}).get("title", "")
        waiting = [{"requestId": request_id, "method": "session/request_permission", "title": title, "since": None}]
        self.notify("session/request", {"sessionId": session_id, "requestId": request_id, "request": payload})
        self.change(session_id, status="waiting", waiting=self.scene.sessions[session_id]["waiting"] + waiting)

    @atomic
    def resolve(self, session_id: str, request_id: int | str, by: str | None, outcome: str | None) -> None:
        """Settle a question."""
        requests = self.scene.requests.get(session_id, [])
        self.scene.requests[session_id] = [one for one in requests if str(one["requestId"]) != str(request_id)]
        params = {"sessionId": session_id, "requestId": request_id, "by": by, "outcome": outcome}
        self.notify("session/request_resolved", params)
        waiting = [
            one for one in self.scene.sessions[session_id]["waiting"] if str(one.get("requestId")) != str(request_id)
        ]
        self.change(session_id, waiting=waiting, status="waiting" if waiting else "running")

    def drop(self) -> None:
        """Cut the connections of all pages."""
        self._run(partial(self._drop, None))

    def lose(self, machine: str, since: str) -> None:
        """Have a machine be away since then."""
        self.scene.away[machine] = since
        self._run(partial(self._drop, machine))

    def find(self, machine: str) -> None:
        """Have a machine be there again."""
        del self.scene.away[machine]

    def stop(self) -> None:
        """End it; once is enough."""
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)

    def _run(self, function: Callable[[], Any]) -> None:
        trio.from_thread.run(function, trio_token=self._token)

    async def _broadcast(self, text: str, machine: str) -> None:
        for socket, its_machine in list(self._sockets.items()):
            try:
                if its_machine == machine:
                    await socket.send_message(text)
            except ConnectionClosed:
                self._sockets.pop(socket, None)

    async def _drop(self, machine: str | None) -> None:
        for socket, its_machine in list(self._sockets.items()):
            if machine in (None, its_machine):
                with trio.move_on_after(1):
                    await socket.aclose(1001)

    async def serve(self, started: Callable[[], None]) -> None:
        """Serve until `stop`."""
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                listeners = await nursery.start(partial(trio.serve_tcp, self._serve, 0, host="127.0.0.1"))
                self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/"
                started()

    async def _serve(self, stream: trio.SocketStream) -> None:
        data = bytearray()
        while b"\r\n\r\n" not in data:
            chunk = await stream.receive_some(65536)
            if not chunk:
                return
            data += chunk
        head, _, body = bytes(data).partition(b"\r\n\r\n")
        method, path, _ = head.decode().split("\r\n", 1)[0].split(" ")
        if path.split("?")[0] in self.silent:
            await trio.sleep_forever()
        if b"upgrade: websocket" in head.lower():
            place = re.fullmatch("/nodes/(.+)/ws", path.split("?")[0])
            machine = "" if place is None else place[1]
            if self.scene.signed_in and self.open_sockets and machine not in self.scene.away:
                await self._serve_socket(stream, bytes(data), machine)
            else:
                await stream.send_all(_response(503 if self.scene.signed_in else 401, b"", {}))
            return
        match = re.search(rb"content-length: *([0-9]+)", head.lower())
        length = int(match[1]) if match else 0
        while len(body) < length:
            body += await stream.receive_some(65536)
        try:
            query = path.partition("?")[2]
            await stream.send_all(self._answer_http(method, path.split("?")[0], body, query))
            await stream.aclose()
        except trio.BrokenResourceError:
            pass

    def _answer_http(self, method: str, path: str, body: bytes, query: str = "") -> bytes:
        if path.endswith("/files"):
            self.queries.append(query)
            asked = dict(parse_qsl(query))
            content = self.scene.contents.get(_below(asked["path"]))
            headers = {"Content-Type": media_type(asked["path"]), "Content-Security-Policy": SANDBOX}
            if asked["as"] != "view":
                headers["Content-Disposition"] = "attachment"
            found = content is not None or asked["as"] == "zip"
            return _response(200 if found else 404, content or b"", headers)
        if path == "/login":
            good = json.loads(body)["code"] == CODE
            self.scene.signed_in = self.scene.signed_in or good
            text = b'{"identity": "ann"}' if good else b"this code is not valid: `acp-gateway open` makes another\n"
            return _response(200 if good else 401, text, {"Content-Type": "text/plain"})
        if path == "/logout":
            self.scene.signed_in = False
            return _response(204, b"", {})
        if path == "/ws":
            return _response(426 if self.scene.signed_in else 401, b"", {})
        asset = load_assets(self.web).get(path)
        if asset is None:
            return _response(404, b"", {})
        answer = asset.answer(Headers({"Accept-Encoding": "gzip"}))
        self.files.append((path, len(answer.body)))
        return _response(200, answer.body, dict(answer.headers.items()))

    async def _serve_socket(self, stream: trio.SocketStream, data: bytes, machine: str) -> None:
        async with trio.open_nursery() as nursery:
            prefixed = trio.StapledStream(stream, _Prefixed(stream, data))
            request = await wrap_server_stream(nursery, prefixed, max_message_size=2**26)
            socket = await request.accept()
            self._sockets[socket] = machine
            try:
                while True:
                    message = json.loads(await socket.get_message())
                    async with self._turn:
                        await socket.send_message(json.dumps(self._answer(message, machine)))
            except ConnectionClosed:
                pass
            finally:
                self._sockets.pop(socket, None)
                nursery.cancel_scope.cancel()

    def _answer(self, message: Message, machine: str) -> Message:
        method, params = message["method"], _named(machine, message.get("params", {}))
        self.calls.append((method, params))
        try:
            result = self.answers[method](params) if method in self.answers else self._result(method, params, machine)
            result = _plain(machine, result)
        except Refused as error:
            data = {"code": -32602, "message": str(error), "data": {"reason": error.reason}}
            return {"jsonrpc": "2.0", "id": message["id"], "error": data}
        except Exception as error:
            code = -32602 if isinstance(error, UnknownSession) else -32603
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": str(error)}}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def _result(self, method: str, params: Message, machine: str) -> Any:
        scene = self.scene
        if method == "gateway/info":
            return scene.info | ({} if machine else {"machines": scene.machines})
        if method == "agents/list":
            return {"agents": [one for one in scene.agents if (one.get("machine") or "") == machine]}
        if method == "session/list":
            wanted = bool(params.get("archived"))
            here = [one for one in scene.sessions.values() if (one.get("machine") or "") == machine]
            shown = [one for one in here if one["archived"] == wanted]
            return {"sessions": shown, **({"more": scene.more} if scene.more else {})}
        if method == "session/get":
            return self._get(params)
        if method == "session/search":
            return {"found": [], "more": False, "complete": True}
        if method == "files/list":
            return {"files": [name for name in scene.files if params["query"] in name]}
        if method.startswith("files/"):
            return self._file(method, params)
        if method == "session/share":
            rows = [[(x * y + x + y) % 2 for x in range(25)] for y in range(25)]
            return {"link": f"{self.url}#{CODE}/s/{params['sessionId']}", "expires": None, "qr": rows}
        return {"success": True}

    def _file(self, method: str, params: Message) -> Any:
        contents = self.scene.contents
        if method in ("files/append", "files/finish"):
            path, received = self.uploads[params["upload"]]
            if method == "files/append":
                received += b64decode(params["data"])
                return {"offset": len(received)}
            contents[path] = bytes(received)
            return _entry(path, len(received))
        path = _below(params.get("path", ""))
        if method == "files/create":
            if path in contents and not params["overwrite"]:
                raise Refused("exists", f"{path} exists already")
            self.uploads[str(len(self.uploads))] = path, bytearray()
            return {"upload": str(len(self.uploads) - 1), "path": f"{CWD}/{path}"}
        below = [name.removeprefix(f"{path}/" if path else "") for name in contents if f"{name}/".startswith(path)]
        if path in contents:
            content, offset = contents[path], params.get("offset", 0)
            data = b64encode(content[offset : offset + params.get("length", 2**18)]).decode()
            return _entry(path, len(content)) | ({"data": data} if method == "files/read" else {})
        if not below:
            raise Refused("not_found", f"{path} does not exist")
        names = sorted(
            {name.partition("/")[0] for name in below}, key=lambda name: (f"{name}/" not in str(below), name)
        )
        whole = [f"{path}/{name}".strip("/") for name in names]
        entries = [_entry(name, len(contents.get(name, b""))) for name in whole]
        for entry, name in zip(entries, whole, strict=True):
            entry |= {} if name in contents else {"kind": "folder"}
            entry |= {"secret": True} if name.endswith(".env") else {}
        return _entry(path, 0) | {"kind": "folder", "base": CWD, "entries": entries, "more": False}

    def _get(self, params: Message) -> Message:
        scene, session_id = self.scene, params["sessionId"]
        if session_id not in scene.sessions:
            raise UnknownSession(f"there is no session `{session_id}`")
        since, before, limit = params.get("since", 0), params.get("before", 2**53), params.get("limit", 2**53)
        # The end of a turn is behind the update of its number.
        kept = scene.updates.get(session_id, [])
        updates = [one for one in kept if since < one["seq"] + one.get("nth", 0) and one["seq"] < before]
        return {
            "session": scene.sessions[session_id],
            "updates": updates[-limit:],
            "pendingRequests": scene.requests.get(session_id, []),
            "epoch": "e1",
            "truncated": False,
            "more": len(updates) > limit,
            "reset": False,
            "modes": None,
            "models": None,
            "configOptions": None,
            "promptCapabilities": {"image": True, "embeddedContext": True},
            **scene.extra.get(session_id, {}),
        }


def _named(machine: str, params: Message) -> Message:
    """Return what a page asks a machine, with the names that the scene has."""
    names = [name for name in ("sessionId", "agentType") if machine and name in params]
    lists = [name for name in ("sessionIds",) if machine and name in params]
    return (
        params
        | {name: f"{machine}/{params[name]}" for name in names}
        | {name: [f"{machine}/{each}" for each in params[name]] for name in lists}
    )


def _plain(machine: str, told: Any) -> Any:
    """Return what a machine tells, with the names that it has there."""
    if not machine or not isinstance(told, dict):
        return told
    names = ("sessionId", "movedTo", "id", "agentType", "name", "title")
    plain: dict[str, Any] = {
        name: value.removeprefix(f"{machine}/") if name in names and isinstance(value, str) else value
        for name, value in told.items()
    }
    for name in ("session", "sessions", "agents", "found"):
        if name in plain:
            parts = plain[name]
            plain[name] = [_plain(machine, one) for one in parts] if isinstance(parts, list) else _plain(machine, parts)
    if "lines" in plain:
        plain["lines"] = {name.removeprefix(f"{machine}/"): line for name, line in plain["lines"].items()}
    return plain | ({"machine": None} if "machine" in plain else {})


class UnknownSession(Exception):
    """No session of this id exists."""


class _Prefixed(trio.abc.ReceiveStream):
    """A stream that was read from already."""

    def __init__(self, stream: trio.SocketStream, data: bytes) -> None:
        self._stream = stream
        self._data = data

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._data:
            data, self._data = self._data, b""
            return data
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


def update(seq: int, payload: Message, at: str | None = None) -> Message:
    """Return an update as `/ws` sends it."""
    return {"seq": seq, "updateType": payload["sessionUpdate"], "payload": payload, "createdAt": at}


def turn_end(seq: int, **outcome: Any) -> Message:
    """Return the end of a turn as an entry of a history."""
    payload = {"sessionUpdate": "turn_end", **outcome}
    return {"seq": seq, "nth": 1, "updateType": "turn_end", "payload": payload, "createdAt": "2026-01-01T10:00:00Z"}


def _response(status: int, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextmanager
def running(scene: Scene) -> Iterator[ScriptedGateway]:
    """Run a gateway in a thread."""
    gateway = ScriptedGateway(scene)
    started = threading.Event()
    thread = threading.Thread(target=trio.run, args=(gateway.serve, started.set), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield gateway
    finally:
        gateway.stop()
        thread.join(30)
