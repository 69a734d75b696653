"""An agent of version 2 of the protocol, and of that alone. It keeps its sessions in the folder of its argument.

A prompt `ask` makes it ask for a permission, `wait` makes it run until it is cancelled, `late` makes it speak again
after the turn, `edit` makes it tell of a change; any other text comes back.
"""

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Agent:
    """The agent, with what it has said in each session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, bool] = {}
        self.asked = 0
        self.waiting: tuple[str, int] | None = None

    def send(self, **members: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **members}) + "\n")
        sys.stdout.flush()

    def tell(self, session: str, kind: str, *, keep: bool = True, **members: Any) -> None:
        params = {"sessionId": session, "update": {"sessionUpdate": kind, **members}}
        self.send(method="session/update", params=params)
        if keep:
            with open(self.folder / session, "a") as file:
                file.write(json.dumps(params) + "\n")

    def state(self, session: str, state: str, **members: Any) -> None:
        self.running[session] = state == "running"
        self.tell(session, "state_update", keep=False, state=state, **members)

    def receive(self, message: Json) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method is None:
            self.decided(message)
            return
        session = params.get("sessionId", "")
        if "id" not in message:
            if method == "session/cancel":
                self.waiting = None
                self.state(session, "idle", stopReason="cancelled")
            return
        if method == "initialize" and params.get("protocolVersion") < 2:
            error = {"code": -32602, "message": "only version 2 is spoken here"}
            self.send(id=message["id"], error=error)
            return
        result: Json = {}
        if method == "initialize":
            result = {"protocolVersion": 2, "info": {"name": "new", "version": "1"}, "capabilities": {"session": {}}}
        elif method == "session/new":
            session = f"n{len(list(self.folder.iterdir()))}"
            (self.folder / session).touch()
            result = {"sessionId": session, "configOptions": []}
        elif method == "session/resume" and "replayFrom" in params:
            for line in (self.folder / session).read_text().splitlines():
                self.send(method="session/update", params=json.loads(line))
        elif method not in ("session/prompt", "session/resume", "session/close"):
            self.send(id=message["id"], error={"code": -32601, "message": f"Method not found: {method}"})
            return
        self.send(id=message["id"], result=result)
        if method == "session/prompt":
            self.turn(session, params["prompt"])

    def turn(self, session: str, prompt: list[Json]) -> None:
        number = (self.folder / session).read_text().count("user_message")
        self.tell(session, "user_message", messageId=f"u{number}", content=prompt)
        self.state(session, "running")
        words = prompt[0]["text"]
        if words == "ask":
            self.asked += 1
            options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
            request = {"sessionId": session, "title": "Run it?", "subject": {"type": "command", "command": "make"}}
            self.send(id=f"q{self.asked}", method="session/request_permission", params=request | {"options": options})
            self.state(session, "requires_action")
            self.waiting = session, number
            return
        if words == "wait":
            return
        if words == "edit":
            change = {"type": "diff", "changes": [{"type": "move", "path": "/b", "oldPath": "/a"}]}
            self.tell(session, "tool_call_update", toolCallId="t", title="Move", status="completed", content=[change])
        self.say(session, number, f"you said {words}")
        self.state(session, "idle", stopReason="end_turn")
        if words == "late":
            self.say(session, number + 1000, "and another thing")

    def say(self, session: str, number: int, words: str) -> None:
        content = [{"type": "text", "text": words}]
        self.tell(session, "agent_message", messageId=f"a{number}", content=content)

    def decided(self, response: Json) -> None:
        if self.waiting is None:
            return  # Its turn was cancelled.
        (session, number), self.waiting = self.waiting, None
        outcome = response.get("result", {}).get("outcome", {})
        self.say(session, number, f"decided {outcome.get('optionId') or outcome.get('outcome')}")
        self.state(session, "idle", stopReason="end_turn")


def main() -> None:
    agent = Agent(Path(sys.argv[1]))
    for line in sys.stdin:
        agent.receive(json.loads(line))


if __name__ == "__main__":
    main()
