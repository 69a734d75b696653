"""An MCP server on stdin and stdout with one tool, whose name is the argument."""

import json
import sys


def main() -> None:
    tool = {"name": sys.argv[1], "description": "Lends a secret.", "inputSchema": {"type": "object", "properties": {}}}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result: dict[str, object] = {}
        if message["method"] == "initialize":
            version = message["params"]["protocolVersion"]
            about = {"name": "lender", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        elif message["method"] == "tools/list":
            result = {"tools": [tool]}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
