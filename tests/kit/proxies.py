"""The blocks of docs/reverse-proxies.md, and a proxy that changes requests as these blocks say."""

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reverse-proxies.md").read_text()

LAPTOP = "127.0.0.2"
"""Source address of the client of these tests, which is not the proxy's."""

FORGED = "192.0.2.66"
"""The address that a client claims to have."""


def checked_block(name: str) -> str:
    """The block of the page that is marked as checked by this name."""
    found = re.search(rf"<!-- checked: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


Headers = dict[str, str]
"""By lower-case name."""

HOP_BY_HOP = ("connection", "upgrade", "keep-alive", "te", "transfer-encoding", "proxy-connection")


def as_nginx(headers: Headers, client: str, block: str = "nginx") -> tuple[str, Headers]:
    """Return a request's headers as nginx passes them on with the page's block, and the HTTP version it uses."""
    block = checked_block(block)
    forwarded = headers.get("x-forwarded-for")
    values = {
        "$http_upgrade": headers.get("upgrade", ""),
        "$http_host": headers["host"],
        "$proxy_add_x_forwarded_for": f"{forwarded}, {client}" if forwarded else client,
    }
    (target,) = re.findall(r"proxy_pass http://(\S+);", block)
    passed = {name: value for name, value in headers.items() if name not in HOP_BY_HOP}
    passed |= {"host": target, "connection": "close"}
    for name, value in re.findall(r"proxy_set_header (\S+) (\S+);", block):
        passed[name.lower()] = values[value] if value.startswith("$") else value.strip('"')
    # A header without a value is not passed on.
    passed = {name: value for name, value in passed.items() if value}
    (version,) = re.findall(r"proxy_http_version (\S+);", block) or ["1.0"]
    return version, passed


def as_caddy(headers: Headers, client: str) -> tuple[str, Headers]:
    """Return them as Caddy does: it passes all on, and replaces `X-Forwarded-For` by its own."""
    assert "reverse_proxy 127.0.0.1:7080" in checked_block("caddy")
    return "1.1", headers | {"x-forwarded-for": client}


def as_haproxy(headers: Headers, client: str) -> tuple[str, Headers]:
    """Return them as HAProxy does: it passes all on, and adds a line of `X-Forwarded-For`, equal to a further value."""
    assert "option forwardfor" in checked_block("haproxy")
    forwarded = headers.get("x-forwarded-for")
    return "1.1", headers | {"x-forwarded-for": f"{forwarded}, {client}" if forwarded else client}


Proxying = Callable[[Headers, str], tuple[str, Headers]]


def client_context(authority: Path) -> ssl.SSLContext:
    """Return the trust in a certificate, for clients and proxies that read in one thread and write in another.

    OpenSSL allows that for data alone, and in TLS 1.3 session tickets come after the handshake: a request that is
    written while they are read can be lost.
    """
    context = ssl.create_default_context(cafile=authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


class Proxy:
    """Ends TLS, changes the headers of each connection's first request, and passes on what comes after it.

    Requests outside of the path `below` are ended; within, it is removed.
    """

    def __init__(self, gateway: tuple[str, int], certificate: Path, proxying: Proxying, below: str = "") -> None:
        self._gateway = gateway
        self._proxying = proxying
        self._below = below
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        self._context.set_alpn_protocols(["http/1.1"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """Lose all connections, as when it reads its configuration again."""
        for sock in self._sockets[1:]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(60)
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, (client, _) = self._listener.accept()
            except OSError:
                return
            self._sockets.append(accepted)
            self._start(self._serve, accepted, client)

    def _start(self, function: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=function, args=arguments))
        self._threads[-1].start()

    def _serve(self, accepted: socket.socket, client: str) -> None:
        with contextlib.suppress(OSError):
            tls = self._context.wrap_socket(accepted, server_side=True)
            self._sockets.append(tls)
            head = b""
            while b"\r\n\r\n" not in head:
                more = tls.recv(65536)
                if not more:
                    return  # It has gone, and would be read from for ever.
                head += more
            head, _, rest = head.partition(b"\r\n\r\n")
            request, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            version, passed = self._proxying(headers, client)
            method, path, _ = request.split(" ")
            if not path.startswith(f"{self._below}/"):
                tls.close()
                return
            path = path.removeprefix(self._below)
            fields = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in passed.items())]
            far = socket.create_connection(self._gateway, timeout=60)
            self._sockets.append(far)
            far.sendall("\r\n".join([*fields, "", ""]).encode("latin-1") + rest)
            self._start(_pass_on, far, tls)
            _pass_on(tls, far)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
