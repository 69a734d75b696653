"""A proxy in front of a gateway, in threads: it cuts connections when a test says so, and may serve it below a path."""

import re
import socket
import threading
from contextlib import suppress

REQUEST = re.compile(rb"^([A-Z]+) (/\S*) HTTP/1\.1\r\n")

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class LoopbackProxy:
    """Passes each request on over a connection of its own, and WebSockets until they are cut.

    Args:
        port: where the gateway listens.
        path: the path below which it is served, which is removed; other paths are answered with 404.
    """

    def __init__(self, port: int, path: str = "") -> None:
        self.requests: list[str] = []
        """Method and path of each request."""
        self.is_open = True
        """False while connections are refused."""
        self.gateway = port
        """Port of the gateway."""
        self._path = path
        self._sockets: set[socket.socket] = set()
        self._swallowed: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{path}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, stay: bool = False) -> None:
        """Reset all connections; with `stay` refuse new ones until `is_open` is set."""
        self.is_open = not stay
        for sock in list(self._sockets):
            shut_down(sock)

    def swallow(self) -> None:
        """Pass nothing on any more over the open connections, which stay; new ones work."""
        self._swallowed |= self._sockets

    def close(self) -> None:
        """Stop."""
        self._listener.close()
        self.cut(stay=True)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = client.recv(65536)
            if not piece:
                return
            data += piece
        found = REQUEST.match(data)
        if found is None or not self.is_open:
            return
        method, path = found[1].decode(), found[2].decode()
        self.requests.append(f"{method} {path}")
        if not path.startswith(self._path + "/"):
            client.sendall(NOT_FOUND)
            return
        is_socket = b"\r\nupgrade:" in data.lower()
        head = f"{method} {path.removeprefix(self._path)} HTTP/1.1\r\n".encode() + data[found.end() :]
        if not is_socket:
            # A browser would use the connection for its next request, which would not be looked at.
            head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"\r\nConnection: close", head, count=1)
        with socket.create_connection(("127.0.0.1", self.gateway)) as gateway:
            gateway.sendall(head)
            if is_socket:
                self._sockets |= {client, gateway}
            there = threading.Thread(target=self._relay, args=(client, gateway), daemon=True)
            there.start()
            self._relay(gateway, client)
            self._sockets -= {client, gateway}
            there.join()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if source not in self._swallowed:
                    sink.sendall(data)
        shut_down(source)
        shut_down(sink)


def shut_down(sock: socket.socket) -> None:
    """End a connection that another thread may read from, or has closed."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
