"""An agent that repeats what each prompt says, a second later what is after "then". Standard library only."""

import json
import sys
import time
from typing import Any


def write(**message: Any) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer until the end of the input."""
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            write(id=number, result={"protocolVersion": 1, "agentCapabilities": {}})
        elif method == "session/new":
            write(id=number, result={"sessionId": "s"})
        elif method == "session/prompt":
            params = message["params"]
            for count, text in enumerate(params["prompt"][0]["text"].split("then")):
                time.sleep(count)
                content = {"type": "text", "text": text.strip()}
                update = {"sessionUpdate": "agent_message_chunk", "content": content}
                write(method="session/update", params={"sessionId": params["sessionId"], "update": update})
            write(id=number, result={"stopReason": "end_turn"})
        elif number is not None:
            write(id=number, result={})


if __name__ == "__main__":
    main()
