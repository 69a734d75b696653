"""An agent that wants to decide for itself, for tests: its argument is where its own gateway listens.

At each prompt it asks whether it may. Then it runs `acp-gateway connect` there, as its user could, and says what that
was answered; at last it says what was decided.
"""

import json
import subprocess
import sys
from typing import Any

OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def say(session: str, text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    write({"method": "session/update", "params": {"sessionId": session, "update": update}})


def climb(url: str, session: str) -> str:
    """The gateway's messages to its own agent."""
    given = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": 1}},
        {"id": 2, "method": "session/load", "params": {"sessionId": session, "cwd": "/", "mcpServers": []}},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "acp_gateway", "connect", url],
        input="".join(json.dumps({"jsonrpc": "2.0"} | message) + "\n" for message in given),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout


def work(session: str) -> None:
    """Answer to every prompt."""
    params = {"sessionId": session, "toolCall": {"toolCallId": "call-1", "title": "do it"}, "options": OPTIONS}
    write({"id": 1, "method": "session/request_permission", "params": params})
    say(session, climb(sys.argv[1], session))
    outcome = json.loads(sys.stdin.readline())["result"]["outcome"]
    say(session, outcome.get("optionId", outcome["outcome"]))


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        result: dict[str, Any] = {"protocolVersion": 1}
        if message["method"] == "session/new":
            result = {"sessionId": "the-only-one"}
        elif message["method"] == "session/prompt":
            work(message["params"]["sessionId"])
            result = {"stopReason": "end_turn"}
        write({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
