"""A small but complete ACP agent, standard library only: a place to start from, and the agent of `make demo`.

It speaks version 1 of the Agent Client Protocol over stdin and stdout, one JSON-RPC message per line. To each
prompt it streams a short reply, asks for permission to list the names in the session's directory, lists them
when it may, and says what it found.

How it works: `receive` is called with every line that comes in and answers at once, except a prompt, which
becomes an asyncio task of its own, so that several sessions may run side by side and cancels are seen in the
middle of a turn. Cancelling a turn is cancelling its task; whatever way the task ends, `_finish` answers the
prompt.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Params = dict[str, Any]

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNKNOWN_SESSION = -32002

NAMES_SHOWN = 20
"""More names than these would hide the rest of the conversation."""


class RequestFailed(Exception):
    """A request is answered with this error."""

    def __init__(self, code: int, message: str, **data: object) -> None:
        super().__init__(message)
        self.error: Message = {"code": code, "message": message}
        if data:
            self.error["data"] = data


class Refused(Exception):
    """The user does not allow a tool call."""


@dataclass(slots=True)
class Session:
    """One conversation, in one directory."""

    id: str
    cwd: str

    turn: asyncio.Task[None] | None = None
    """The prompt being worked on."""

    turn_request: str = ""
    """The id of that prompt's request, as JSON text: `1`, `1.0`, `"1"` and `true` are four different ids."""

    tool_calls: int = 0
    """How many there were; the next one gets this number."""


class DemoAgent:
    """The agent without its stdin and stdout: lines go into `receive`, messages come out through `send`."""

    def __init__(self, send: Callable[[Message], None], *, delay: float) -> None:
        """`send` takes one message for the client; `delay` is the pause between two chunks of text, in seconds."""
        self._send = send
        self._delay = delay
        # Every session ever opened, by its id.
        self._sessions: dict[str, Session] = {}
        # Our own requests that the client has not answered yet.
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._last_request_id = 0

    def receive(self, line: bytes) -> None:
        """Take in one line. What is no JSON-RPC message is passed over: there is nobody to tell."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        method = message.get("method")
        if not isinstance(method, str):
            self._take_response(message)
        elif "id" in message:
            self._take_request(message["id"], method, message.get("params"))
        else:
            self._take_notification(method, message.get("params"))

    async def aclose(self) -> None:
        """Cancel the turns that are still running and wait until their prompts are answered."""
        turns = [session.turn for session in self._sessions.values() if session.turn is not None]
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)

    # What the client sends

    def _take_request(self, request_id: object, method: str, params: object) -> None:
        try:
            if not isinstance(params, dict):
                params = {}
            match method:
                case "initialize":
                    result = self._initialize()
                case "session/new":
                    result = self._new_session(params)
                case "session/prompt":
                    self._start_turn(request_id, params)
                    return
                case _:
                    raise RequestFailed(METHOD_NOT_FOUND, f"Method not found: {method}", method=method)
        except RequestFailed as failure:
            self._respond(request_id, error=failure.error)
        else:
            self._respond(request_id, result=result)

    def _take_notification(self, method: str, params: object) -> None:
        if not isinstance(params, dict):
            return
        for session in self._sessions.values():
            if session.turn is None:
                continue
            by_session = method == "session/cancel" and params.get("sessionId") == session.id
            by_request = method == "$/cancel_request" and json.dumps(params.get("requestId")) == session.turn_request
            if by_session or by_request:
                session.turn.cancel()

    def _take_response(self, message: Message) -> None:
        request_id = message.get("id")
        if type(request_id) is not int:  # True would be found under 1.
            return
        waiting = self._asked.pop(request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _initialize(self) -> Message:
        return {
            "protocolVersion": 1,
            "agentCapabilities": {
                "loadSession": False,
                "promptCapabilities": {"image": False, "audio": False, "embeddedContext": False},
            },
            "agentInfo": {"name": "demo-agent", "title": "Demo agent", "version": "1.0.0"},
            "authMethods": [],
            # Free for everybody's own use; the demo looks here whether the agent is gone in the end.
            "_meta": {"pid": os.getpid()},
        }

    def _new_session(self, params: Params) -> Message:
        cwd = params.get("cwd")
        if not isinstance(cwd, str):
            raise RequestFailed(INVALID_PARAMS, "cwd must be the absolute path of a directory")
        session = Session(id=f"demo-{os.getpid()}-{len(self._sessions) + 1}", cwd=cwd)
        self._sessions[session.id] = session
        return {"sessionId": session.id}

    # A turn

    def _start_turn(self, request_id: object, params: Params) -> None:
        session_id, prompt = params.get("sessionId"), params.get("prompt")
        session = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if session is None:
            raise RequestFailed(UNKNOWN_SESSION, f"No session {session_id!r}", sessionId=session_id)
        if not isinstance(prompt, list):
            raise RequestFailed(INVALID_PARAMS, "prompt must be a list of content blocks")
        if session.turn is not None:
            raise RequestFailed(INVALID_REQUEST, "This session is still answering another prompt")
        session.turn = asyncio.create_task(self._turn(session, prompt))
        session.turn_request = json.dumps(request_id)
        session.turn.add_done_callback(lambda turn: self._finish(session, request_id, turn))

    def _finish(self, session: Session, request_id: object, turn: asyncio.Task[None]) -> None:
        session.turn = None
        if turn.cancelled():
            self._respond(request_id, result={"stopReason": "cancelled"})
        elif failure := turn.exception():
            self._respond(request_id, error={"code": INTERNAL_ERROR, "message": f"The turn failed: {failure!r}"})
        else:
            self._respond(request_id, result={"stopReason": "end_turn"})

    async def _turn(self, session: Session, prompt: list[object]) -> None:
        await self._say(session, f"This is the demo agent, process {os.getpid()} on {platform.node()}. ")
        await self._say(session, f"You wrote: {_text_of(prompt)!r}. ")
        await self._say(session, "Let me see what is in this session's directory.\n")
        try:
            names = await self._list_directory(session)
        except Refused:
            await self._say(session, "You would rather not have me look, so I leave it at that.")
        except OSError as failure:
            await self._say(session, f"I could not read it: {failure.strerror}.")
        else:
            await self._say(session, f"I found {len(names)} names there. ")
            await self._say(session, "That is all this agent can do; the next one may write your programs.")

    async def _say(self, session: Session, text: str) -> None:
        """Stream a text word by word."""
        for word in re.findall(r"\S+\s*", text):
            self._update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": word})
            await asyncio.sleep(self._delay)

    async def _list_directory(self, session: Session) -> list[str]:
        """The tool: the sorted names in the session's directory. Raises Refused and OSError."""
        session.tool_calls += 1
        tool_call: Message = {
            "toolCallId": f"{session.id}-call-{session.tool_calls}",
            "title": f"List {session.cwd}",
            "kind": "read",
            "status": "pending",
            "locations": [{"path": session.cwd}],
            "rawInput": {"path": session.cwd},
        }
        same_call: Message = {"sessionUpdate": "tool_call_update", "toolCallId": tool_call["toolCallId"]}
        self._update(session, sessionUpdate="tool_call", **tool_call)
        try:
            await self._ask_permission(session, tool_call)
            self._update(session, **same_call, status="in_progress")
            await asyncio.sleep(self._delay)
            names = sorted(await asyncio.to_thread(os.listdir, session.cwd))
        except (Refused, OSError, asyncio.CancelledError) as failure:
            content = [_block(str(failure) or "cancelled")]
            self._update(session, **same_call, status="failed", content=content)
            raise
        shown = names[:NAMES_SHOWN]
        if len(names) > len(shown):
            shown.append(f"... and {len(names) - len(shown)} more")
        content = [_block("\n".join(shown) or "(nothing)")]
        self._update(session, **same_call, status="completed", content=content)
        return names

    async def _ask_permission(self, session: Session, tool_call: Message) -> None:
        options = [
            {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
            {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
        ]
        response = await self._request(
            "session/request_permission", sessionId=session.id, toolCall=tool_call, options=options
        )
        match response:
            case {"result": {"outcome": {"outcome": "selected", "optionId": "allow"}}}:
                return
        # Anything else, an error included, is no permission.
        raise Refused("not allowed by the user")

    # What goes to the client

    def _update(self, session: Session, **update: object) -> None:
        params = {"sessionId": session.id, "update": update}
        self._send({"jsonrpc": "2.0", "method": "session/update", "params": params})

    def _respond(self, request_id: object, **outcome: object) -> None:
        self._send({"jsonrpc": "2.0", "id": request_id, **outcome})

    async def _request(self, method: str, **params: object) -> Message:
        """Ask the client and wait for its response. Cancelled, it withdraws the request."""
        self._last_request_id += 1
        request_id = self._last_request_id
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = waiting
        self._send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        try:
            return await waiting
        except asyncio.CancelledError:
            # The late answer, if one comes, is then a response that nobody waits for.
            self._asked.pop(request_id, None)
            self._send({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": request_id}})
            raise


def _block(text: str) -> Message:
    return {"type": "content", "content": {"type": "text", "text": text}}


def _text_of(prompt: list[object]) -> str:
    texts = [block["text"] for block in prompt if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return " ".join(texts)


def write(message: Message) -> None:
    """One message, one line. ASCII only, so that no character inside can be taken for the end of the line."""
    try:
        sys.stdout.buffer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The client is gone. A normal exit would try to flush the same bytes again and complain.
        os._exit(0)


async def serve(delay: float) -> None:
    """Answer stdin on stdout until stdin ends."""
    agent = DemoAgent(write, delay=delay)
    # A thread reads, because asyncio cannot watch stdin on Windows, nor when it is a file.
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        agent.receive(line)
    await agent.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description="A small ACP agent over stdin and stdout.")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds between two chunks of text (0.05)")
    arguments = parser.parse_args()
    # Ctrl-C ends the process at once; asyncio would wait for the thread that reads stdin.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(serve(arguments.delay))


if __name__ == "__main__":
    main()
