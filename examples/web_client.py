"""Prompt an agent over `/ws`: list the sessions, open the latest or a new one, and answer the agent's questions.

    pip install websockets
    python web_client.py wss://box.example:7443/ws token-file "Tidy up the tests." [--certificate cert.pem]

The wire is described in docs/web-protocol.md. `serves = ["page"]` at a listener opens it.
"""

import argparse
import itertools
import json
import ssl
import sys
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect


class Gateway:
    """A connection; what the gateway tells is kept until `next`."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self._ids = itertools.count()
        self._told: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> Any:
        """Return the result of a call."""
        number = next(self._ids)
        self._websocket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        while (message := json.loads(self._websocket.recv())).get("id") != number or "method" in message:
            self._told.append(message)
        if "error" in message:
            sys.exit(f"{method}: {message['error']['message']}")
        return message["result"]

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return method and params of the next notification."""
        message = self._told.pop(0) if self._told else json.loads(self._websocket.recv())
        return message["method"], message["params"]


def answer(gateway: Gateway, session: str, request_id: str, asked: dict[str, Any]) -> None:
    """Ask the user for a decision, and send it."""
    print(f"\n{asked['toolCall'].get('title', 'May I?')}")
    for number, option in enumerate(asked["options"]):
        print(f"  {number}: {option['name']}", flush=True)
    chosen = asked["options"][int(input())]["optionId"]
    outcome = {"outcome": "selected", "optionId": chosen}
    gateway.call("session/respond", sessionId=session, requestId=request_id, response={"outcome": outcome})


def main(url: str, token_file: str, text: str, certificate: str | None) -> None:
    """Send a prompt, and print what follows until its turn has ended."""
    tls = ssl.create_default_context(cafile=certificate) if url.startswith("wss:") else None
    if tls is not None:
        # The client reads in one thread while another writes. OpenSSL allows that for data alone, and in TLS 1.3 the
        # session tickets come after the handshake.
        tls.maximum_version = ssl.TLSVersion.TLSv1_2
    headers = {"Authorization": f"Bearer {Path(token_file).read_text().strip()}"}
    with connect(url, ssl=tls, additional_headers=headers, max_size=None) as websocket:
        gateway = Gateway(websocket)
        known = [session["id"] for session in gateway.call("session/list")["sessions"]]
        print(f"{len(known)} sessions")
        session = known[0] if known else gateway.call("session/new")["sessionId"]
        gateway.call("session/get", sessionId=session, limit=0)
        gateway.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])
        while True:
            method, params = gateway.next()
            if method == "session/updated":
                for update in params["updates"]:
                    if update["updateType"] == "agent_message_chunk":
                        print(update["payload"]["content"].get("text", ""), end="", flush=True)
            elif method == "session/request" and params["requestType"] == "session/request_permission":
                answer(gateway, session, params["requestId"], params["request"])
            elif method == "session/status_changed" and ("stopReason" in params or "error" in params):
                print(f"\n[{params.get('stopReason') or params['error']['message']}]")
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("token_file")
    parser.add_argument("text")
    parser.add_argument("--certificate", metavar="FILE")
    main(**vars(parser.parse_args()))
