"""An agent for tests that writes down every message it gets, and whose own depend on nothing but these.

Its argument is the file where it writes them down, a line each. It has one session.

    session/prompt    N updates, numbered, where N is the prompt's text; then it asks a permission, says in as many
                      more updates what was decided, and ends the turn
    _test/say         an update with the `n` and the `pad` of its params; it is a notification
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPTIONS = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]

SESSION = "the-session"


class CountingAgent:
    """Takes one message after the other."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("wb")
        self._prompt: dict[str, Any] | None = None
        self._asked = 0

    def run(self) -> None:
        """Answer until the end of the input."""
        with self._log:
            for line in sys.stdin.buffer:
                self._log.write(line)
                self._log.flush()
                self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        params = message.get("params") or {}
        answers: dict[str, Callable[[], dict[str, Any]]] = {
            "initialize": lambda: {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []},
            "session/new": lambda: {"sessionId": SESSION},
        }
        match message.get("method"):
            case "_test/say":
                self._update(f"said {params['n']} {params['pad']}")
            case "session/prompt":
                self._prompt = message
                self._count()
                self._asked += 1
                tool = {"toolCallId": f"call-{self._asked}", "title": "go on"}
                asked = {"sessionId": SESSION, "toolCall": tool, "options": OPTIONS}
                self._write({"id": self._asked, "method": "session/request_permission", "params": asked})
            case None:
                assert self._prompt is not None
                self._update(message["result"]["outcome"]["optionId"])
                self._count()
                self._write({"id": self._prompt["id"], "result": {"stopReason": "end_turn"}})
            case method:
                self._write({"id": message["id"], "result": answers[method]()})

    def _count(self) -> None:
        assert self._prompt is not None
        for number in range(int(self._prompt["params"]["prompt"][0]["text"])):
            self._update(f"number {number} of prompt {self._asked}")

    def _update(self, text: str) -> None:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        self._write({"method": "session/update", "params": {"sessionId": SESSION, "update": update}})

    def _write(self, message: dict[str, Any]) -> None:
        sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    CountingAgent(Path(sys.argv[1])).run()
