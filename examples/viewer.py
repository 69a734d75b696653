"""Look on: print what an agent says in a session, with nothing but a stock WebSocket client.

    pip install websockets
    acp-gateway share SESSION --observe --expires 2h > guest.token      # on the gateway's machine
    python viewer.py wss://box.example:7443/acp guest.token [cert.pem]

`cert.pem` is the gateway's certificate, for one that no authority has signed. It must name the host, as those do that
`acp-gateway certs create --host NAME` makes.
"""

import json
import ssl
import sys
from pathlib import Path
from typing import Any

from websockets.sync.client import connect


def show(update: dict[str, Any]) -> None:
    """Print one update, as far as it is text."""
    text = update.get("content", {}).get("text", "") if isinstance(update.get("content"), dict) else ""
    match update["sessionUpdate"]:
        case "user_message_chunk":
            print(f"\n> {text}")
        case "agent_message_chunk":
            print(text, end="", flush=True)
        case "tool_call":
            print(f"\n[{update.get('title', 'a tool')}]")


def main(url: str, token_file: str, certificate: str | None = None) -> None:
    """Join the session of the token and print it until the gateway closes the connection."""
    trust = ssl.create_default_context(cafile=certificate) if url.startswith("wss:") else None
    headers = {"Authorization": f"Bearer {Path(token_file).read_text().strip()}"}
    with connect(url, additional_headers=headers, ssl=trust, max_size=None) as gateway:
        gateway.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}))
        # The token is for one session, and the first `session/new` leads there.
        params = {"cwd": "/", "mcpServers": []}
        gateway.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params}))
        for message in map(json.loads, gateway):
            if message.get("method") == "session/update":
                show(message["params"]["update"])
            elif "error" in message:
                sys.exit(message["error"]["message"])


if __name__ == "__main__":
    main(*sys.argv[1:])
