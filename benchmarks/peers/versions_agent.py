"""An agent of either version that streams the updates of typical work. Standard library only.

Its argument is the version that it speaks. A prompt of the form "UPDATES BATCH SIZE" makes it send so many updates, a
multiple of those of one step, BATCH of them in each write; SIZE is ignored.
"""

import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

STEP = 20
"""Updates of one step of work."""

WORDS = "So the value is read before the lock is taken, and that is "
OUTPUT = "tests/test_lock.py ..... [100%]\n" * 8
OLD = "def read():\n    return value\n" * 4
NEW = "def read():\n    with lock:\n        return value\n" * 4
PATH = "/srv/proj/lock.py"
PLACES = [{"path": PATH, "line": 12}]
ENTRIES = [
    {"content": f"Look at part {part} of the module", "priority": "medium", "status": "pending"} for part in range(4)
]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def diff(version: int) -> dict[str, Any]:
    if version == 1:
        return {"type": "diff", "path": PATH, "oldText": OLD, "newText": NEW}
    lines = "".join(f"-{line}\n" for line in OLD.splitlines()) + "".join(f"+{line}\n" for line in NEW.splitlines())
    head = f"@@ -1,{OLD.count(chr(10))} +1,{NEW.count(chr(10))} @@\n"
    patch = f"diff --git a{PATH} b{PATH}\n--- a{PATH}\n+++ b{PATH}\n{head}{lines}"
    changes = [{"operation": "modify", "path": PATH, "fileType": "text"}]
    return {"type": "diff", "changes": changes, "patch": {"format": "git_patch", "text": patch}}


def step(version: int) -> list[dict[str, Any]]:
    """Return the updates of one step; its number takes the place of `STEP` in ids."""
    named = {} if version == 1 else {"messageId": "msg_STEP"}
    thinks = {"sessionUpdate": "agent_thought_chunk", **({} if version == 1 else {"messageId": "thought_STEP"})}
    says = {"sessionUpdate": "agent_message_chunk", **named, "content": text(WORDS)}
    changed = {"sessionUpdate": "tool_call_update", "toolCallId": "call_STEP"}
    call: dict[str, Any] = {
        **changed,
        "title": "Edit lock.py",
        "kind": "edit",
        "status": "pending",
        "locations": PLACES,
    }
    call |= {"rawInput": {"path": PATH, "old": OLD, "new": NEW}}
    plan: dict[str, Any] = {"sessionUpdate": "plan", "entries": ENTRIES}
    if version == 1:
        call["sessionUpdate"] = "tool_call"
    else:
        plan = {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": ENTRIES}}
    return [
        *[{**thinks, "content": text(WORDS)}] * 3,
        *[says] * 11,
        call,
        {**changed, "status": "in_progress"},
        {**changed, "content": [{"type": "content", "content": text(OUTPUT)}]},
        {**changed, "status": "completed", "content": [diff(version)]},
        plan,
        {"sessionUpdate": "usage_update", "used": 120, "size": 1000},
    ]


def lines(version: int, session: str) -> Iterator[bytes]:
    """Yield the updates of step after step."""
    made = [
        line({"method": "session/update", "params": {"sessionId": session, "update": update}})
        for update in step(version)
    ]
    assert len(made) == STEP
    parts = [each.split(b"STEP") for each in made]
    number = 0
    while True:
        number += 1
        name = b"%d" % number
        for each in parts:
            yield name.join(each)


def line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


def main(version: int) -> None:
    """Answer until the end of the input."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    def respond(to: Any, **members: Any) -> None:
        write(line({"id": to, **members}))

    sessions, turns = 0, 0
    for text_line in sys.stdin.buffer:
        message = json.loads(text_line)
        method, number, params = message.get("method"), message.get("id"), message.get("params", {})
        if method == "initialize" and version == 2 and params["protocolVersion"] == 1:
            respond(number, error={"code": -32602, "message": "only version 2 is spoken here"})
        elif method == "initialize":
            info = {"name": "bench", "version": "1"}
            about = {"capabilities": {"session": {}}, "info": info} if version == 2 else {"agentCapabilities": {}}
            respond(number, result={"protocolVersion": version, **about})
        elif method == "session/new":
            sessions += 1
            respond(number, result={"sessionId": f"s{sessions}", "configOptions": []})
        elif method == "session/prompt":
            turns += 1
            session = params["sessionId"]
            about = {"method": "session/update"}
            if version == 2:
                respond(number, result={"messageId": f"u{turns}"})
                state = {"sessionUpdate": "state_update", "state": "running"}
                write(line({**about, "params": {"sessionId": session, "update": state}}))
            count, batch, *_ = map(int, params["prompt"][0]["text"].split())
            left = islice(lines(version, session), count)
            while block := b"".join(islice(left, batch)):
                write(block)
            if version == 2:
                state = {"sessionUpdate": "state_update", "state": "idle", "stopReason": "end_turn"}
                write(line({**about, "params": {"sessionId": session, "update": state}}))
            else:
                respond(number, result={"stopReason": "end_turn"})
        elif number is not None:
            respond(number, result={})


if __name__ == "__main__":
    main(int(sys.argv[1]))
