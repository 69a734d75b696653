"""Look on: print what an agent says in a session, with nothing but a stock WebSocket client.

    pip install websockets cryptography
    acp-gateway share SESSION --observe --expires 2h --out guest.token      # on the gateway's machine; prints the pin
    python viewer.py wss://box.example:7443/acp guest.token --pin sha256:…

The pin is that of the gateway's key: no authority needs to have signed its certificate, and the name in it does not
matter. Instead, `--certificate cert.pem` takes the gateway's own certificate, which must be for the name in the address
then, as those are that `acp-gateway certs create --host NAME` makes. Without either the system's authorities decide.
"""

import argparse
import hashlib
import json
import socket
import ssl
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
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


def trusted_socket(url: str, pin: str | None, certificate: str | None) -> socket.socket:
    """Connect to the gateway, and make sure that it is the one; before that it gets no token."""
    place = urlsplit(url)
    tls = place.scheme == "wss"
    sock = socket.create_connection((place.hostname or "", place.port or (443 if tls else 80)))
    if not tls:
        return sock
    context = ssl.create_default_context(cafile=certificate)
    if pin is not None:
        # The key is compared instead.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    wrapped = context.wrap_socket(sock, server_hostname=place.hostname)
    if pin is not None:
        key = x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True) or b"").public_key()
        shown = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
        if pin.lower() != f"sha256:{shown}":
            sys.exit(f"the gateway has another key than the pin says: sha256:{shown}")
    return wrapped


def main(url: str, token_file: str, pin: str | None, certificate: str | None) -> None:
    """Join the session of the token and print it until the gateway closes the connection."""
    headers = {"Authorization": f"Bearer {Path(token_file).read_text().strip()}"}
    sock = trusted_socket(url, pin, certificate)
    # The socket does TLS already.
    with connect(url.replace("wss:", "ws:", 1), sock=sock, additional_headers=headers, max_size=None) as gateway:
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("token_file")
    parser.add_argument("--pin", metavar="sha256:HEX")
    parser.add_argument("--certificate", metavar="FILE")
    main(**vars(parser.parse_args()))
