"""A model for agents under test, over HTTP on loopback, with the same answers always.

It speaks OpenAI's chat completions and responses, Anthropic's messages, and Gemini's content. A prompt of the user is
answered with a call of the tool that runs commands, if the agent has one, and everything else with a few words, as
streams. The tool is to run what follows `run: ` in the prompt; a file that was refused to it is told in the answer. A
prompt with `say: ` is answered with what follows, `name your tools` with the names of all. What follows `ask: ` is
asked of the user by the tool for that.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

TOOLS = ("bash", "Shell", "run_shell_command", "Bash", "exec_command", "shell_command", "mcp__acp__Bash", "Execute")
"""The names of the tool that runs a command: of OpenCode, Vibe and Copilot, of Kimi, of Qwen and Gemini, of Claude, of
Codex, of Claude's older adapter, and of Droid."""

COMMAND = "echo checked"

TEXT = ("Three", " files.")

QUESTIONS = "ask_user_question"
"""The name of the tool that asks the user, of Qwen."""

NAMES = "name your tools"
"""A prompt."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Write no log."""

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "check", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = urlsplit(self.path).path
        if path.endswith("/chat/completions"):
            self._stream(completion(body), end=b"data: [DONE]\n\n")
        elif path.endswith("/responses"):
            self._stream(response(body))
        elif path.endswith("/messages"):
            self._stream(message(body))
        elif path.endswith(":streamGenerateContent"):
            self._stream(content(body))
        else:
            self._answer({"input_tokens": 1, "totalTokens": 1})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, events: Iterator[Mapping[str, Any]], end: bytes = b"") -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            if "type" in event:
                self.wfile.write(f"event: {event['type']}\n".encode())
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(end)
        self.close_connection = True


def chosen(tools: Mapping[str, Any], prompt: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the call that answers a message: the tool's name and its arguments; None for one without a prompt.

    Args:
        tools: the names of the tools, with the schemas of their arguments.
        prompt: the content of the request's last message.
    """
    tool = next((name for name in TOOLS if name in tools), None)
    parts = _parts(prompt)
    asked = _wanted("ask", parts)
    if asked and QUESTIONS in tools:
        options = [{"label": label, "description": label} for label in ("Postgres", "MySQL")]
        question = {"question": asked[0], "header": "Choice", "options": options, "multiSelect": False}
        return QUESTIONS, {"questions": [question]}
    if (
        tool is None
        or _wanted("say", parts)
        or any(NAMES in part.get("text", "") for part in parts)
        or any("functionResponse" in part or part.get("type") == "tool_result" for part in parts)
    ):
        return None
    wanted = _wanted("run", parts)
    properties = tools[tool]["properties"]
    called = {"cmd" if "cmd" in properties else "command": wanted[0] if wanted else COMMAND}
    for name in {"description", *tools[tool].get("required", ())} & properties.keys() - called.keys():
        called[name] = properties[name].get("enum", ["Say that it was checked"])[0]
    return tool, called


def _wanted(what: str, parts: Sequence[dict[str, Any]]) -> list[str]:
    return [found for part in parts for found in re.findall(f"(?m)^{what}: (.*)", part.get("text", ""))]


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"text": content}] if isinstance(content, str) else content


def words(said: object) -> Sequence[str]:
    """Return the answer to a message that is answered with no call."""
    text = json.dumps(said)
    return re.findall(r"say: (\w+)", text)[-1:] or re.findall("/new: (?:Permission denied|No such file)", text) or TEXT


def completion(request: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the chunks of the answer to a request of OpenAI's chat completions."""
    tools = {tool["function"]["name"]: tool["function"] for tool in request.get("tools") or ()}
    last = request["messages"][-1]
    call = None
    if last["role"] == "user":
        call = chosen({name: each.get("parameters") for name, each in tools.items()}, last["content"])
    if call is not None:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        called = {"index": 0, "id": "call", "type": "function", "function": function}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [called]}]
    else:
        told = [" ".join(sorted(tools))] if NAMES in json.dumps(last) else words(last)
        deltas = [{"role": "assistant", "content": text} for text in told]
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "check"}
    for delta in deltas:
        yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}]}
    yield {**chunk, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


def response(request: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the events of the answer to a request of OpenAI's responses."""
    tools = {tool["name"]: tool["parameters"] for tool in request["tools"] if "parameters" in tool}
    last = request["input"][-1]
    call = chosen(tools, last["content"]) if last.get("role") == "user" else None
    if call is not None:
        item: dict[str, Any] = {
            "type": "function_call",
            "call_id": "call",
            "name": call[0],
            "arguments": json.dumps(call[1]),
        }
    else:
        text = {"type": "output_text", "text": "".join(words(last))}
        item = {"type": "message", "id": "m", "role": "assistant", "content": [text]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    yield {"type": "response.created", "response": {"id": "r"}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": {"id": "r", "usage": usage}}


def message(request: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the events of the answer to a request of Anthropic's messages."""
    tools = {tool["name"]: tool["input_schema"] for tool in request.get("tools") or ()}
    # Claude's reminders are messages of their own, behind that of the prompt.
    since = takewhile(lambda each: each["role"] != "assistant", reversed(request["messages"]))
    last = [part for each in since for part in _parts(each["content"])]
    call = chosen(tools, last)
    if call is not None:
        block: dict[str, Any] = {"type": "tool_use", "id": "call", "name": call[0], "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(call[1])}]
    else:
        block = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": text} for text in words(last)]
    about: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "check",
        "content": [],
        "stop_reason": None,
    }
    yield {"type": "message_start", "message": {**about, "usage": {"input_tokens": 1, "output_tokens": 1}}}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    reason = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 1}}
    yield {"type": "message_stop"}


def content(request: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of the answer to a request of Gemini's content."""
    tools = {each["name"]: each for tool in request.get("tools") or () for each in tool.get("functionDeclarations", ())}
    last = request["contents"][-1]["parts"]
    call = chosen({name: each.get("parametersJsonSchema") for name, each in tools.items()}, last)
    called = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": "".join(words(last))}
    candidate = {"index": 0, "content": {"role": "model", "parts": [called]}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    yield {"candidates": [candidate], "usageMetadata": usage}


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
