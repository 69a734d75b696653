"""An agent that looks around, for tests: at each prompt it writes into a file what it sees of the machine's processes.

Its argument is that file. There is its own environment in it, and the command line of every process that there is, its
ancestors and whatever else runs. All else is answered with nothing in particular.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def seen() -> bytes:
    """Return what this process can see."""
    found = [Path("/proc/self/environ").read_bytes(), json.dumps(dict(os.environ)).encode()]
    for command_line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(command_line.read_bytes())
        except OSError:
            continue  # It has ended.
    return b"\n".join(found)


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        result: dict[str, Any] = {"protocolVersion": 1}
        if message.get("method") == "session/new":
            result = {"sessionId": "the-only-one"}
        elif message.get("method") == "session/prompt":
            Path(sys.argv[1]).write_bytes(seen())
            result = {"stopReason": "end_turn"}
        if "id" in message:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
