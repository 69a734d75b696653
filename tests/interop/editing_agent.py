"""An agent that edits files of its client, for tests of editors.

A prompt's text is a command; each answer is one message.

edit NAME OLD NEW   replaces a text in a file of the session's directory through `fs/`, as a tool call with a diff
propose NAME TEXT   asks whether it may write a file of the session's directory, with a diff, and says what was decided
gate PATH           says "before", then "after" once a line was written to a FIFO, then writes one to PATH.said
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

Params = dict[str, Any]

_ids = itertools.count(1)
_directories: dict[str, str] = {}


def write(message: Params) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def read() -> Params:
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    message: Params = json.loads(line)
    return message


def call(method: str, params: Params) -> Params:
    """Send a request to the client, and return its result; what comes before the response is dropped."""
    number = next(_ids)
    write({"id": number, "method": method, "params": params})
    while True:
        message = read()
        if "method" not in message and message["id"] == number:
            result: Params = message["result"]
            return result


def update(session: str, members: Params) -> None:
    write({"method": "session/update", "params": {"sessionId": session, "update": members}})


def say(session: str, text: str) -> None:
    update(session, {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})


def edit(session: str, name: str, old: str, new: str) -> None:
    path = f"{_directories[session]}/{name}"
    tool = {"toolCallId": "edit", "locations": [{"path": path, "line": 1}]}
    update(session, {"sessionUpdate": "tool_call", "title": f"Change {name}", "kind": "edit"} | tool)
    before = call("fs/read_text_file", {"sessionId": session, "path": path})["content"]
    after = before.replace(old, new)
    call("fs/write_text_file", {"sessionId": session, "path": path, "content": after})
    diff = {"type": "diff", "path": path, "oldText": before, "newText": after}
    update(session, {"sessionUpdate": "tool_call_update", "status": "completed", "content": [diff]} | tool)
    say(session, f"Changed {name}.")


def propose(session: str, name: str, text: str) -> str:
    """Return the reason why the turn has stopped."""
    path = Path(_directories[session], name)
    diff = {"type": "diff", "path": str(path), "oldText": path.read_text(), "newText": f"{text}\n"}
    tool = {"toolCallId": f"write {text}", "title": f"Write {name}", "kind": "edit", "content": [diff]}
    update(session, {"sessionUpdate": "tool_call", "status": "pending", **tool})
    options = [{"optionId": kind, "name": kind.title(), "kind": f"{kind}_once"} for kind in ("allow", "reject")]
    outcome = call("session/request_permission", {"sessionId": session, "toolCall": tool, "options": options})[
        "outcome"
    ]
    decided = outcome.get("optionId", outcome["outcome"])
    if decided == "allow":
        path.write_text(diff["newText"])
    status = "completed" if decided == "allow" else "failed"
    update(session, {"sessionUpdate": "tool_call_update", "status": status, **tool})
    say(session, f"decided: {decided}")
    return "cancelled" if decided == "cancelled" else "end_turn"


def gate(session: str, path: Path) -> None:
    say(session, "before")
    with path.open() as waiting:
        waiting.readline()
    say(session, "after")
    path.with_suffix(".said").write_text("said\n")


def answer(method: str, params: Params) -> Params:
    match method:
        case "initialize":
            return {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}
        case "session/new":
            session = f"session-{len(_directories)}"
            _directories[session] = params["cwd"]
            return {"sessionId": session}
        case "session/prompt":
            words = params["prompt"][0]["text"].split()
            if words[0] == "edit":
                edit(params["sessionId"], *words[1:])
            elif words[0] == "propose":
                return {"stopReason": propose(params["sessionId"], *words[1:])}
            else:
                gate(params["sessionId"], Path(words[1]))
            return {"stopReason": "end_turn"}
    return {}


if __name__ == "__main__":
    while True:
        request = read()
        if "id" in request and "method" in request:
            write({"id": request["id"], "result": answer(request["method"], request["params"])})
