"""An agent that says numbered updates as long as a turn lasts, for soaks; what a session was told survives its end.

It is started with a directory, where each session is a file with the numbers that were said in it. `session/load` tells
all of them again with the word `all`, else nothing. A prompt's text is how many updates it is to say, and how many of
them at once. With the word `2` it speaks version 2 of the protocol, and no other.
"""

import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any


def write(*messages: dict[str, Any]) -> None:
    sys.stdout.buffer.write(b"".join(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n" for message in messages))
    sys.stdout.buffer.flush()


def update(session: str, number: int) -> dict[str, Any]:
    content = {"type": "text", "text": f"{number} {'x' * (number % 200)}"}
    told: dict[str, Any] = {"sessionUpdate": "agent_message_chunk", "content": content}
    if IS_NEW:
        told["messageId"] = f"m{number // 100}"
    return {"method": "session/update", "params": {"sessionId": session, "update": told}}


def state(session: str, **members: str) -> dict[str, Any]:
    params = {"sessionId": session, "update": {"sessionUpdate": "state_update", **members}}
    return {"method": "session/update", "params": params}


def said(path: Path) -> int:
    """Return how many numbers were said in a session: one byte each is in its file."""
    return path.stat().st_size


def speak(session: str, path: Path, text: str) -> None:
    count, at_once = map(int, text.split())
    with path.open("ab") as file:
        while count > 0:
            some = min(count, at_once)
            # Before it is said: a number is never said twice, whichever process is killed.
            os.write(file.fileno(), b"." * some)
            end = said(path)
            # In version 2, which versions of the protocol do not share, among the others.
            others = [state(session, state="running")] if IS_NEW else []
            write(*others, *(update(session, number) for number in range(end - some + 1, end + 1)), *others)
            count -= some
            time.sleep(0.002)


def main(directory: Path, replays: bool) -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        method, params, result = message["method"], message.get("params", {}), {}
        session = params.get("sessionId", "")
        path = directory / f"{session}.said"
        if IS_NEW and method == "initialize":
            if params["protocolVersion"] < 2:
                write({"id": message["id"], "error": {"code": -32602, "message": "only version 2"}})
                continue
            result = {"protocolVersion": 2, "info": {"name": "soak", "version": "1"}, "capabilities": {"session": {}}}
        elif method == "initialize":
            abilities = {"loadSession": True, "sessionCapabilities": {} if replays else {"resume": {}}}
            result = {"protocolVersion": 1, "agentCapabilities": abilities}
        elif method == "session/new":
            session = secrets.token_hex(8)
            (directory / f"{session}.said").touch()
            result = {"sessionId": session}
        elif (method == "session/load" or params.get("replayFrom")) and replays:
            write(*(update(session, number) for number in range(1, said(path) + 1)))
        elif method == "session/prompt":
            if IS_NEW:
                write({"id": message["id"], "result": {"messageId": secrets.token_hex(8)}})
            speak(session, path, params["prompt"][0]["text"])
            if IS_NEW:
                write(state(session, state="idle", stopReason="end_turn"))
                continue
            result = {"stopReason": "end_turn"}
        write({"id": message["id"], "result": result})


IS_NEW = "2" in sys.argv[2:]

if __name__ == "__main__":
    main(Path(sys.argv[1]), "all" in sys.argv[2:])
