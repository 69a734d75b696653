"""An editor beside `connect`, and servers of Streamable HTTP that are programs of their own."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kit.free_ports import free_port
from tests.kit.running import ENVIRONMENT, PROGRAM, WORK

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def server_program(*command: str | Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a server that prints its port first; yield its process and the port."""
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def sdk_server(port: int | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the Python SDK's server; yield its process and its port."""
    with server_program(sys.executable, "-m", "tests.end_to_end.sdk_http_server", str(port or free_port())) as running:
        yield running


@contextmanager
def refusing_server(status: int) -> Iterator[int]:
    """Run a server in this process that has no WebSocket and refuses each `POST`; yield its port."""

    class Refusing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", "8")
            self.end_headers()
            self.wfile.write(b"not here")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


class Editor:
    """An editor's side of a running `connect`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.updates: list[str] = []
        self._asked = 0

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next message that is not an update; permissions are given."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("method") == "session/update":
                self.updates.append(message["params"]["update"]["content"]["text"])
            elif message.get("method") == "session/request_permission":
                outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}}
                self.send(id=message["id"], result=outcome)
            else:
                return message
        raise AssertionError("the shim has ended")

    def receive_updates(self, count: int) -> None:
        """Wait until there were so many updates."""
        assert self.process.stdout is not None
        while len(self.updates) < count:
            message = json.loads(self.process.stdout.readline())
            self.updates.append(message["params"]["update"]["content"]["text"])

    def begin_prompt(self, session: str, *texts: str) -> None:
        """Send a prompt whose id is `turn`."""
        prompt = [{"type": "text", "text": text} for text in texts]
        self.send(id="turn", method="session/prompt", params={"sessionId": session, "prompt": prompt})

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Make a request, and return its response."""
        self._asked += 1
        self.send(id=self._asked, method=method, params=params)
        response = self.receive()
        assert response["id"] == self._asked
        return response

    def new_session(self) -> str:
        session: str = self.ask("session/new", cwd=str(WORK), mcpServers=[])["result"]["sessionId"]
        return session

    def prompt(self, session: str, text: str) -> dict[str, Any]:
        return self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])


@contextmanager
def connected(*arguments: str | Path) -> Iterator[Editor]:
    """An editor whose agent is `connect` with these arguments, after `initialize`."""
    command = [*PROGRAM, "connect", *map(str, arguments)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        # A read has no time limit of its own: its program is ended instead.
        limit = threading.Timer(120, process.kill)
        limit.start()
        try:
            editor = Editor(process)
            assert "result" in editor.ask("initialize", protocolVersion=1)
            yield editor
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            limit.cancel()
            process.kill()
