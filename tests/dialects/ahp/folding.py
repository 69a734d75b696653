"""A client of the Agent Host Protocol in a test: it folds what it is told, from a snapshot on."""

import json
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from acp_gateway.dialects.ahp.chat_tree import ChatTree
from acp_gateway.dialects.ahp.from_acp import Mapper
from acp_gateway.dialects.ahp.session_tree import SessionTree, summary
from acp_gateway.dialects.ahp.wire import Action, chat_uri

URI = "demo:/s"
CHAT = chat_uri(URI)
CONFIG = {"schema": {"type": "object", "properties": {"mode": {"type": "string"}}}, "values": {"mode": "ask"}}


def a_summary(**members: Any) -> dict[str, Any]:
    """A summary of the session."""
    about: dict[str, Any] = {"title": "a title", "status": 1, "directories": ["/srv/proj"], "created": 0, "modified": 0}
    return summary(URI, **about | members)


class Follower:
    """A client that begins with a snapshot."""

    def __init__(self, chat: dict[str, Any], session: dict[str, Any]) -> None:
        self.chat = ChatTree({})
        self.chat.state = _told(chat)
        active = self.chat.active
        for part in [] if active is None else active["responseParts"]:
            if "content" in part:
                part["content"] = [part["content"]]
        self.session = SessionTree(a_summary(), CONFIG)
        self.session.state = _told(session)

    def take(self, actions: list[Action]) -> None:
        """Fold actions, as they arrive; each of them fits."""
        for action in map(_told, actions):
            tree = self.chat if action["type"].startswith("chat/") else self.session
            assert tree.apply(action), action


class Scene:
    """A translator, and its trees."""

    def __init__(self) -> None:
        self.tree = ChatTree({"resource": CHAT, "title": "a title", "status": 1})
        self.session = SessionTree(a_summary(), CONFIG)
        self.mapper = Mapper(self.tree)
        self.mapper.attach("s", "/srv/proj")
        self.position = 0

    def say(self, *updates: Any, session: str = "s") -> list[Action]:
        """The agent sends updates, one second apart."""
        texts = [update_text(update, session) for update in updates]
        times = [1000 * (self.position + number) for number in range(1, len(texts) + 1)]
        first, self.position = self.position + 1, self.position + len(texts)
        return self.told(self.mapper.updates(texts, first, times))

    def end(self, reason: str | None = "end_turn", **error: Any) -> list[Action]:
        """The turn ends."""
        about = {"seq": self.position, "nth": 1, "time": 1000 * self.position}
        return self.told(self.mapper.turn_ended(about | ({"error": error} if error else {"stopReason": reason})))

    def asked(self, key: str, method: str, params: Any) -> list[Action]:
        """The agent asks something."""
        return self.told(self.mapper.asked(key, method, json.dumps(params).encode()))

    def told(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if action["type"].startswith("session/"):
                assert self.session.apply(action)
        return actions

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Both states, which do not change any more."""
        return deepcopy(self.tree.snapshot()), deepcopy(self.session.state)

    def parts(self) -> list[dict[str, Any]]:
        """The parts of the turn that runs, or of the last one."""
        found = self.tree.snapshot()
        turn = found.get("activeTurn") or found["turns"][-1]
        parts: list[dict[str, Any]] = turn["responseParts"]
        return parts


def steps(work: Callable[[], object]) -> int:
    """The calls of functions that some work takes."""
    calls = 0

    def count(_frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(former)
    return calls


def update_text(update: Any, session: str = "s") -> bytes:
    params = {"sessionId": session, "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def _told(value: Any) -> Any:
    return json.loads(json.dumps(value))
