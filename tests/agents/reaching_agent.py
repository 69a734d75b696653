"""An agent that reads and writes the paths that it is told.

A prompt is `read PATH`, `write PATH`, `move PATH` with the new path in a second line, or `tell NAME` for a variable.
Its result is in `_meta.result` of the response.
"""

import json
import os
import sys
from typing import Any


def reach(verb: str, place: str) -> str:
    if verb == "tell":
        return os.environ.get(place, "")
    try:
        if verb == "move":
            os.rename(*place.splitlines())
            return "moved"
        with open(place, "r" if verb == "read" else "w") as file:
            return file.read() if verb == "read" else f"{file.write('written')}"
    except OSError as error:
        return str(error.strerror)


def main() -> None:
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        method, result = request["method"], {}
        if method == "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
        elif method == "session/new":
            result = {"sessionId": f"s{os.urandom(4).hex()}-{request['id']}"}
        elif method == "session/prompt":
            verb, place = request["params"]["prompt"][0]["text"].split(" ", 1)
            result = {"stopReason": "end_turn", "_meta": {"result": reach(verb, place)}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
