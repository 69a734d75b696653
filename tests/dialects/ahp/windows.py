"""A window of VS Code in a test: its end of a connection, over streams in memory."""

import json
from typing import Any

from acp_gateway.dialects.ahp.chat_tree import ChatTree
from acp_gateway.dialects.ahp.connection import AhpConnection
from acp_gateway.dialects.ahp.wire import ROOT, chat_uri
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.dialects.ahp.folding import Follower
from tests.kit.bridging import Bench, FarEnd

AT = "2026-11-28T10:00:00.000Z"
FOLDER = "file:///"


class Window(FarEnd):
    """Folds what it is told of the chats that it has subscribed to."""

    def __init__(self, *ends: Any) -> None:
        super().__init__(*ends)
        self.followers: dict[str, Follower] = {}
        self.seq = 0
        self.client_id = "window"
        self._last_id = self._last_seq = 0
        self._responses: dict[int, Any] = {}

    def _take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            self._responses[message["id"]] = message
            result = message.get("result") or {}
            for snapshot in result.get("snapshots", ()):
                self.seq = snapshot["fromSeq"]
            # What was missed comes before all that follows.
            for envelope in result.get("actions", ()):
                if envelope["serverSeq"] > self.seq:
                    self._fold(envelope)
            return
        super()._take(message)
        if message["method"] == "action" and "rejectionReason" not in message["params"]:
            self._fold(message["params"])

    def _fold(self, envelope: dict[str, Any]) -> None:
        assert envelope["serverSeq"] == self.seq + 1, envelope
        self.seq = envelope["serverSeq"]
        follower = next((it for uri, it in self.followers.items() if envelope["channel"] in (uri, chat_uri(uri))), None)
        if follower is not None:
            follower.take([envelope["action"]])

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The response to a call."""
        self._last_id += 1
        number, message = self._last_id, {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        await self.stream.send(json.dumps(message).encode())
        response: dict[str, Any] = await self.until(lambda: self._responses.pop(number, None))
        return response

    async def result(self, method: str, **params: Any) -> Any:
        """The result of a call that succeeds."""
        response = await self.ask(method, **params)
        assert "result" in response, response
        return response["result"]

    async def error(self, method: str, **params: Any) -> int:
        """The code of a call that fails."""
        response = await self.ask(method, **params)
        assert "error" in response, response
        code: int = response["error"]["code"]
        return code

    async def begin(self, **params: Any) -> Any:
        """Shake hands."""
        about = {"channel": ROOT, "protocolVersions": ["0.9.0"], "clientId": self.client_id}
        found = await self.result("initialize", **{**about, "initialSubscriptions": [ROOT], **params})
        self.seq = found["serverSeq"]
        return found

    async def come_back(self, former: "Window", *subscriptions: str, seen: int | None = None) -> Any:
        """Go on where another connection of the client has stopped: what that has read, or less of it."""
        self.seq, self.followers = former.seq, former.followers
        about = {"clientId": former.client_id, "lastSeenServerSeq": former.seq if seen is None else seen}
        found = await self.result("reconnect", **about, subscriptions=subscriptions)
        self.client_id, self._last_seq = former.client_id, former._last_seq
        return found

    async def open(self, uri: str) -> Follower:
        """Subscribe to a session and its chat, and follow them."""
        session = (await self.result("subscribe", channel=uri))["snapshot"]
        chat = (await self.result("subscribe", channel=chat_uri(uri)))["snapshot"]
        self.followers[uri] = follower = Follower(chat["state"], session["state"])
        # What came behind a snapshot may have been read before this task has its turn.
        known = {uri: session["fromSeq"], chat_uri(uri): chat["fromSeq"]}
        for envelope in self.actions():
            if "rejectionReason" not in envelope and envelope["serverSeq"] > known.get(envelope["channel"], self.seq):
                follower.take([envelope["action"]])
        return follower

    async def dispatch(self, channel: str, **action: Any) -> dict[str, Any]:
        """Dispatch an action, and return its echo or its rejection."""
        number = await self.send(channel, **action)
        return await self.until(lambda: next((it for it in self.actions() if self._is_own(it, number)), None))

    async def send(self, channel: str, **action: Any) -> int:
        """Dispatch an action, and return its number."""
        self._last_seq += 1
        params = {"channel": channel, "clientSeq": self._last_seq, "action": action}
        await self.stream.send(json.dumps({"jsonrpc": "2.0", "method": "dispatchAction", "params": params}).encode())
        return self._last_seq

    def _is_own(self, envelope: dict[str, Any], number: int) -> bool:
        origin: dict[str, Any] = envelope.get("origin", {})
        return origin == {"clientId": self.client_id, "clientSeq": number}

    def actions(self, kind: str = "") -> list[dict[str, Any]]:
        """The envelopes of a kind of action, rejections included."""
        found = [message["params"] for message in self.told if message["method"] == "action"]
        return [it for it in found if it["action"]["type"].startswith(kind)]

    def of(self, method: str) -> list[dict[str, Any]]:
        """The params of notifications."""
        return [message["params"] for message in self.told if message["method"] == method]

    def chat(self, uri: str) -> ChatTree:
        return self.followers[uri].chat

    async def prompt(self, uri: str, turn: str = "t1", text: str = "hello", **message: Any) -> dict[str, Any]:
        """Send a prompt, and return its echo or its rejection."""
        about = {"text": text, "origin": {"kind": "user"}, **message}
        return await self.dispatch(chat_uri(uri), type="chat/turnStarted", turnId=turn, startedAt=AT, message=about)

    async def create(self, name: str = "new", provider: str = "fake", **params: Any) -> str:
        """Create a session, open it, and return its URI."""
        uri = f"{provider}:/{name}"
        await self.result(
            "createSession", **{"channel": uri, "provider": provider, "workingDirectories": [FOLDER], **params}
        )
        await self.open(uri)
        return uri

    async def turns(self, uri: str, *states: str) -> list[dict[str, Any]]:
        """Wait until the turns of a chat have these states; the last may be `active`."""

        def look() -> list[dict[str, Any]] | None:
            state = self.chat(uri).snapshot()
            turns = [*state["turns"], *([state["activeTurn"]] if "activeTurn" in state else [])]
            return turns if [turn.get("state", "active") for turn in turns] == [*states] else None

        return await self.until(look)


async def window(
    bench: Bench, access: Access | None = None, name: str = "window", *, reads: bool = True, **wanted: Any
) -> Window:
    """A window that is connected, and has not shaken hands."""
    theirs, ours = memory_message_stream_pair()
    access = bench.access() if access is None else access
    connection = AhpConnection(bench.gateway, access, ConnectRequest(**wanted), name)
    bench.nursery.start_soon(connection.serve, ours)
    found = Window(theirs, ours)
    if reads:
        bench.nursery.start_soon(found.read)
    return found


def text_in(turn: dict[str, Any]) -> str:
    """The text that the agent has said in a turn."""
    return "".join(part["content"] for part in turn["responseParts"] if part["kind"] == "markdown")
