"""What writer.c does, for machines without a compiler: slower, so that less of what is measured shows."""

import json
import os
import sys

SIZE = 200


def put(data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    """Answer until the end of the input."""
    session, sessions = "", 0
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result: dict[str, object] = {"protocolVersion": 1}
        if message["method"] == "session/new":
            sessions += 1
            session = f"s-{os.getpid()}-{sessions}"
            result = {"sessionId": session}
        elif message["method"] == "session/prompt":
            count, at_once = map(int, message["params"]["prompt"][0]["text"].split())
            update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "*"}}
            params = {"sessionId": session, "update": update}
            text = json.dumps(
                {"jsonrpc": "2.0", "method": "session/update", "params": params}, separators=(",", ":")
            ).encode()
            text = text.replace(b"*", b"x" * (SIZE - len(text))) + b"\n"
            lines = text * at_once
            for done in range(0, count, at_once):
                put(lines[: (count - done) * SIZE])
            result = {"stopReason": "end_turn"}
        put(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n")


if __name__ == "__main__":
    main()
