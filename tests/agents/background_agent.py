"""An agent whose sub-agents go on after their turn, under ids that it does not announce. Standard library only.

    begin     starts a sub-agent of the session, and ends the turn
    wait      until `session/cancel`; until then the sub-agents of other sessions speak, and ask for a permission

What is decided is told in the session that the sub-agent belongs to; then the sub-agent ends.
"""

import json
import os
import sys
from typing import Any

PROCESS = os.urandom(4).hex()
"""Told in its ids. The id of a process is that of others in other fences."""

OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def say(session: str, text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    send(method="session/update", params={"sessionId": session, "update": update})


def main() -> None:
    sessions, parents, turns = 0, list[str](), dict[str, object]()
    for line in sys.stdin:
        message = json.loads(line)
        method, to, params = message.get("method"), message.get("id"), message.get("params", {})
        session = params.get("sessionId", "")
        if method == "initialize":
            send(id=to, result={"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []})
        elif method == "session/new":
            sessions += 1
            send(id=to, result={"sessionId": f"{PROCESS}-{sessions}"})
        elif method == "session/prompt" and params["prompt"][0]["text"] == "begin":
            parents.append(session)
            send(id=to, result={"stopReason": "end_turn"})
        elif method == "session/prompt":
            turns[session] = to
            for parent in [parent for parent in parents if parent != session]:
                say(f"sub-agent-{parent}", f"secret of {parent}")
                call = {"toolCallId": "call", "title": f"secret of {parent}"}
                asked = {"sessionId": f"sub-agent-{parent}", "toolCall": call, "options": OPTIONS}
                send(id=parent, method="session/request_permission", params=asked)
        elif method == "session/cancel" and session in turns:
            send(id=turns.pop(session), result={"stopReason": "cancelled"})
        elif method is None and to in parents:
            parents.remove(to)
            say(to, json.dumps(message["result"]["outcome"]))


main()
