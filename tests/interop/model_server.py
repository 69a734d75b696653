"""A model for agents under test: OpenAI's chat completions over HTTP on loopback, with the same answers always.

A prompt of the user is answered with a call of the tool that runs commands, if the agent has one, and everything else
with a few words, as streams of chunks. The tool is to run what follows `run: ` in the prompt.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOLS = ("bash", "Shell", "run_shell_command")
"""The names of the tool that runs a command: of OpenCode and Vibe, of Kimi, of Qwen."""

COMMAND = "echo checked"

TEXT = ("Three", " files.")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Write no log."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "check", "object": "model"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for choices in completion(body):
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "check", "choices": choices}
            if not choices:
                chunk["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


def completion(request: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the choices of each chunk of the answer to a request."""
    tools = {tool["function"]["name"]: tool["function"] for tool in request.get("tools") or ()}
    tool = next((name for name in TOOLS if name in tools), None)
    if request["messages"][-1]["role"] == "user" and tool is not None:
        called = {"command": _command(request["messages"][-1])}
        if "description" in tools[tool]["parameters"]["properties"]:
            called["description"] = "Say that it was checked"
        function = {"name": tool, "arguments": json.dumps(called)}
        call = {"index": 0, "id": "call", "type": "function", "function": function}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        reason = "tool_calls"
    else:
        deltas = [{"role": "assistant", "content": text} for text in TEXT]
        reason = "stop"
    for delta in deltas:
        yield [{"index": 0, "delta": delta, "finish_reason": None}]
    yield [{"index": 0, "delta": {}, "finish_reason": reason}]
    yield []


def _command(message: dict[str, Any]) -> str:
    content = message["content"]
    texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return next((text.partition("run: ")[2] for text in texts if "run: " in text), COMMAND)


@contextmanager
def model_server() -> Iterator[str]:
    """Run the server, and yield its base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()
