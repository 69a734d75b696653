"""Observe a session: print an agent's updates, with a stock WebSocket client.

    pip install websockets cryptography
    acp-gateway share SESSION --observe --expires 2h --out guest.token      # on the gateway's machine; prints the pin
    python viewer.py wss://box.example:7443/acp guest.token --pin sha256:…

The pin is the hash of the gateway's public key: neither the issuer of its certificate nor the name in it matters.
Instead, `--certificate cert.pem` trusts the gateway's own certificate, which must contain the host of the URL (create
it with `acp-gateway certs create --host NAME`). Without either, the system's authorities are trusted.
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
    """Print the text of an update, if any."""
    text = update.get("content", {}).get("text", "") if isinstance(update.get("content"), dict) else ""
    match update["sessionUpdate"]:
        case "user_message_chunk":
            print(f"\n> {text}")
        case "agent_message_chunk":
            print(text, end="", flush=True)
        case "tool_call":
            print(f"\n[{update.get('title', 'a tool')}]")


def trusted_socket(url: str, pin: str | None, certificate: str | None) -> socket.socket:
    """Connect to the gateway and verify its identity, before any token is sent."""
    parts = urlsplit(url)
    tls = parts.scheme == "wss"
    sock = socket.create_connection((parts.hostname or "", parts.port or (443 if tls else 80)))
    if not tls:
        return sock
    context = ssl.create_default_context(cafile=certificate)
    # The client reads in one thread while another writes. OpenSSL allows that for data alone, and in TLS 1.3 the
    # session tickets come after the handshake.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if pin is not None:
        # The pin replaces the verification of the certificate.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    wrapped = context.wrap_socket(sock, server_hostname=parts.hostname)
    if pin is not None:
        key = x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True) or b"").public_key()
        shown = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
        if pin.lower() != f"sha256:{shown}":
            sys.exit(f"the gateway's key does not match the pin: its pin is sha256:{shown}")
    return wrapped


def main(url: str, token_file: str, pin: str | None, certificate: str | None) -> None:
    """Join the session of the token and print it until the gateway closes the connection."""
    headers = {"Authorization": f"Bearer {Path(token_file).read_text().strip()}"}
    sock = trusted_socket(url, pin, certificate)
    # The socket is encrypted already, so websockets must not start TLS again.
    with connect(url.replace("wss:", "ws:", 1), sock=sock, additional_headers=headers, max_size=None) as gateway:
        gateway.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}))
        # The token is bound to one session; the first `session/new` joins it.
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
