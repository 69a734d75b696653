"""Show the hottest files of your agents in a terminal, live, by the file tap of a gateway.

    # in the gateway's configuration:
    #   [[listen]]
    #   url = "tcp://127.0.0.1:17320"
    #   serves = ["tap"]
    acp-gateway token create --label heat --role observer > heat.token
    python heat.py heat.token 127.0.0.1:17320

The lines are described in docs/dialects-reference.md.
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any

ROWS = 20
"""Files that are shown."""


def show(sessions: dict[str, dict[str, Any]]) -> None:
    """Print the hottest files of all sessions, those that were used last first."""
    nodes = [(node, session) for session, files in sessions.items() for node in files.values()]
    nodes.sort(key=lambda it: (it[0]["heat"], it[0]["timestamp_ms"]), reverse=True)
    if sys.stdout.isatty():
        print("\x1b[H\x1b[2J", end="")
    for node, session in nodes[:ROWS]:
        bar = "#" * round(node["heat"] * 10)
        path = "".join(letter if letter.isprintable() else "?" for letter in node["path"])
        print(f"{bar:10} {node['last_action']:15} {path}  ({session[:8]})")
    print(f"{len(nodes)} files in {len(sessions)} sessions", flush=True)


def main(token_file: str, address: str = "127.0.0.1:17320") -> None:
    """Follow the tap until it ends."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as sock, sock.makefile("rw", encoding="utf-8") as lines:
        params = {"token": Path(token_file).read_text().strip()}
        hello = {"jsonrpc": "2.0", "id": 0, "method": "_acp-gateway/hello", "params": params}
        print(json.dumps(hello), file=lines, flush=True)
        answer = json.loads(lines.readline() or "{}")
        if "result" not in answer:
            sys.exit(f"the gateway has refused: {answer.get('error', {}).get('message', 'no answer')}")
        sessions: dict[str, dict[str, Any]] = {}
        for line in map(json.loads, lines):
            if line["type"] == "snapshot":
                sessions[line["session_id"]] = line["nodes"]
            elif line["type"] == "delta":
                files = sessions[line["session_id"]]
                files.update({node["path"]: node for node in line["updates"]})
                for path in line["removed"]:
                    del files[path]
            show(sessions)


if __name__ == "__main__":
    main(*sys.argv[1:])
