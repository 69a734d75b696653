"""An agent that does what its prompt says, for tests. Standard library only, so that it starts fast.

stream N        N message chunks, numbered from 0
permission      asks whether it may, and says what was decided
wait            says that it is waiting, and ends when the session is cancelled
echo            says back every text block
size N          one message chunk of N characters
die N           exits with code N in the middle of the turn
environment     says which variables it has
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # As typing has it, which takes a quarter of the time in which this agent starts.
if TYPE_CHECKING:
    from typing import Any

OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def write(**message: Any) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
    sys.stdout.buffer.flush()


def say(session: str, text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    write(method="session/update", params={"sessionId": session, "update": update})


class DirectedAgent:
    """Takes one message after the other; turns of several sessions may wait."""

    def __init__(self) -> None:
        self._sessions = 0
        self._questions = 0
        self._asked: dict[int, tuple[str, Any]] = {}
        self._waiting: dict[str, Any] = {}

    def take(self, message: dict[str, Any]) -> None:
        method, to, params = message.get("method"), message.get("id"), message.get("params") or {}
        session = params.get("sessionId", "")
        if method is None:
            session, prompt = self._asked.pop(message["id"])
            outcome = message["result"]["outcome"]
            say(session, outcome.get("optionId", outcome["outcome"]))
            write(id=prompt, result={"stopReason": "end_turn"})
        elif method == "initialize":
            sees_fs = params.get("clientCapabilities", {}).get("fs", {}).get("readTextFile", False)
            write(id=to, result={"protocolVersion": 1, "_meta": {"sees_fs": sees_fs}})
        elif method == "session/new":
            self._sessions += 1
            write(id=to, result={"sessionId": f"session-{self._sessions}", "_meta": {"cwd": params["cwd"]}})
        elif method == "session/prompt":
            command, *blocks = [block["text"] for block in params["prompt"] if "text" in block]
            if self._obey(session, to, command, blocks):
                write(id=to, result={"stopReason": "end_turn"})
        elif method == "session/cancel" and session in self._waiting:
            write(id=self._waiting.pop(session), result={"stopReason": "cancelled"})
        elif to is not None:
            write(id=to, error={"code": -32601, "message": f"no {method}"})

    def _obey(self, session: str, prompt: Any, text: str, blocks: list[str]) -> bool:
        """Obey; return whether the turn is at its end."""
        command, _, argument = text.partition(" ")
        match command:
            case "stream":
                for number in range(int(argument)):
                    say(session, str(number))
            case "size":
                say(session, "x" * int(argument))
            case "echo":
                for block in blocks:
                    say(session, block)
            case "permission":
                self._questions += 1
                self._asked[self._questions] = session, prompt
                ask = {"toolCall": {"toolCallId": "call-1", "title": "do it"}, "options": OPTIONS}
                write(id=self._questions, method="session/request_permission", params={"sessionId": session, **ask})
                return False
            case "wait":
                self._waiting[session] = prompt
                say(session, "waiting")
                return False
            case "environment":
                say(session, "\n".join(sorted(os.environ)))
            case "die":
                os._exit(int(argument))
        return True


if __name__ == "__main__":
    agent = DirectedAgent()
    for line in sys.stdin.buffer:
        agent.take(json.loads(line))
