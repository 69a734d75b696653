"""A small but complete ACP agent with the standard library only: a template, and the agent of `make demo`.

It speaks version 1 of the Agent Client Protocol, or version 2 with `--protocol 2`, over stdin and stdout, one
JSON-RPC message per line. To each prompt it streams a short reply, asks for permission to list the session's
directory, lists it if permitted, and reports the result.

Design: `receive` handles every incoming line at once, except a prompt, which runs as its own asyncio task. So
sessions run concurrently, and cancellation is received in the middle of a turn. To cancel a turn is to cancel its
task; however the task ends, `_finish` answers the prompt.
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
"""Maximum names shown of a directory, so that a long list doesn't hide the conversation."""


class RequestFailed(Exception):
    """A request failed; `error` is the JSON-RPC error of its response."""

    def __init__(self, code: int, message: str, **data: object) -> None:
        super().__init__(message)
        self.error: Message = {"code": code, "message": message}
        if data:
            self.error["data"] = data


class Refused(Exception):
    """The user rejected a tool call."""


@dataclass(slots=True)
class Session:
    """A conversation in a directory."""

    id: str
    cwd: str

    turn: asyncio.Task[None] | None = None
    """Task of the current prompt, if any."""

    turn_request: str = ""
    """Id of that prompt's request, as JSON text: `1`, `1.0`, `"1"` and `true` are four different ids."""

    tool_calls: int = 0
    """Number of tool calls so far; the last one's id contains it."""


class DemoAgent:
    """The agent without I/O: `receive` takes lines, `send` is called with messages.

    Args:
        send: sends a message to the client.
        delay: the pause between two chunks of text, in seconds.
    """

    def __init__(self, send: Callable[[Message], None], *, delay: float) -> None:
        self._send = send
        self._delay = delay
        # All sessions by id; none is ever removed.
        self._sessions: dict[str, Session] = {}
        # Responses to the agent's own requests, by id, until they arrive.
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._last_request_id = 0

    def receive(self, line: bytes) -> None:
        """Handle a line of input. Lines that are not a JSON-RPC message are ignored."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        method = message.get("method")
        if not isinstance(method, str):
            self._handle_response(message)
        elif "id" in message:
            self._handle_request(message["id"], method, message.get("params"))
        else:
            self._handle_notification(method, message.get("params"))

    async def aclose(self) -> None:
        """Cancel running turns and wait until their prompts are answered."""
        turns = [session.turn for session in self._sessions.values() if session.turn is not None]
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)

    # Messages from the client

    def _handle_request(self, request_id: object, method: str, params: object) -> None:
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

    def _handle_notification(self, method: str, params: object) -> None:
        if not isinstance(params, dict):
            return
        for session in self._sessions.values():
            if session.turn is None:
                continue
            by_session = method == "session/cancel" and params.get("sessionId") == session.id
            by_request = method == "$/cancel_request" and json.dumps(params.get("requestId")) == session.turn_request
            if by_session or by_request:
                session.turn.cancel()

    def _handle_response(self, message: Message) -> None:
        request_id = message.get("id")
        if type(request_id) is not int:  # As a key, True equals 1.
            return
        waiting = self._pending.pop(request_id, None)
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
            # Reserved by ACP for custom data. With the pid, the demo checks that the agent has ended.
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
        await self._say(session, f"You wrote: {text_of(prompt)!r}. ")
        await self._say(session, "Let me see what is in this session's directory.\n")
        try:
            names = await self._list_directory(session)
        except Refused:
            await self._say(session, "You would rather not have me look, so I leave it at that.")
        except OSError as failure:
            await self._say(session, f"I could not read it: {failure.strerror}.")
        else:
            await self._say(session, f"I found {len(names)} name{'' if len(names) == 1 else 's'} there. ")
            await self._say(session, "That is all this agent can do; the next one may write your programs.")

    async def _say(self, session: Session, text: str) -> None:
        """Stream a text to the client, word by word."""
        for word in re.findall(r"\S+\s*", text):
            self._update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": word})
            await asyncio.sleep(self._delay)

    async def _list_directory(self, session: Session) -> list[str]:
        """Run the tool: return the sorted names in the session's directory. Raises Refused and OSError."""
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
        # Any other response, an error included, is a rejection.
        raise Refused("not allowed by the user")

    # Messages to the client

    def _update(self, session: Session, **update: object) -> None:
        params = {"sessionId": session.id, "update": update}
        self._send({"jsonrpc": "2.0", "method": "session/update", "params": params})

    def _respond(self, request_id: object, **outcome: object) -> None:
        self._send({"jsonrpc": "2.0", "id": request_id, **outcome})

    async def _request(self, method: str, **params: object) -> Message:
        """Send a request and wait for its response. If cancelled, the request is cancelled as well."""
        self._last_request_id += 1
        request_id = self._last_request_id
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = waiting
        self._send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        try:
            return await waiting
        except asyncio.CancelledError:
            # A late response to an unknown id is ignored.
            self._pending.pop(request_id, None)
            self._send({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": request_id}})
            raise


class NewDemoAgent(DemoAgent):
    """The agent in version 2: what version 1 says in the response to a prompt, updates say here."""

    def __init__(self, send: Callable[[Message], None], *, delay: float) -> None:
        super().__init__(send, delay=delay)
        # Updates by session, for a replay.
        self._told: dict[str, list[Message]] = {}
        self._messages = 0

    def _initialize(self) -> Message:
        old = super()._initialize()
        capabilities: Message = {"session": {}}
        return {
            "protocolVersion": 2,
            "capabilities": capabilities,
            "info": old["agentInfo"],
            "_meta": old["_meta"],
        }

    def _handle_request(self, request_id: object, method: str, params: object) -> None:
        if method not in ("session/resume", "session/list", "session/close"):
            super()._handle_request(request_id, method, params)
            return
        session_id = params.get("sessionId") if isinstance(params, dict) else None
        session = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if method == "session/list":
            sessions = [{"sessionId": each.id, "cwd": each.cwd} for each in self._sessions.values()]
            self._respond(request_id, result={"sessions": sessions})
        elif session is None:
            self._respond(request_id, error={"code": UNKNOWN_SESSION, "message": f"No session {session_id!r}"})
        else:
            if method == "session/close" and session.turn is not None:
                session.turn.cancel()
            if isinstance(params, dict) and params.get("replayFrom") is not None:
                for update in self._told.get(session.id, []):
                    super()._update(session, **update)
            self._respond(request_id, result={})

    def _start_turn(self, request_id: object, params: Params) -> None:
        super()._start_turn(request_id, params)
        session = self._sessions[params["sessionId"]]
        self._messages += 1
        message_id = f"message-{self._messages}"
        self._respond(request_id, result={"messageId": message_id})
        self._update(session, sessionUpdate="user_message", messageId=message_id, content=params["prompt"])
        super()._update(session, sessionUpdate="state_update", state="running")
        self._messages += 1

    def _finish(self, session: Session, request_id: object, turn: asyncio.Task[None]) -> None:
        session.turn = None
        if not turn.cancelled() and (failure := turn.exception()):
            self._update(
                session,
                sessionUpdate="agent_message_chunk",
                content={"type": "text", "text": f"It failed: {failure!r}"},
            )
        reason = "cancelled" if turn.cancelled() else "end_turn"
        super()._update(session, sessionUpdate="state_update", state="idle", stopReason=reason)

    async def _request(self, method: str, **params: object) -> Message:
        """Ask for a permission: it has a title, and is about a tool call."""
        session = self._sessions[str(params["sessionId"])]
        call = params.pop("toolCall")
        if isinstance(call, dict):
            params |= {"title": call["title"], "subject": {"type": "tool_call", "toolCall": call}}
        asking = asyncio.create_task(super()._request(method, **params))
        await asyncio.sleep(0)
        super()._update(session, sessionUpdate="state_update", state="requires_action")
        try:
            response = await asking
        except asyncio.CancelledError:
            asking.cancel()
            raise
        super()._update(session, sessionUpdate="state_update", state="running")
        return response

    def _update(self, session: Session, **update: object) -> None:
        if update["sessionUpdate"] == "tool_call":
            update["sessionUpdate"] = "tool_call_update"
        if update["sessionUpdate"] in ("agent_message_chunk", "agent_thought_chunk"):
            kind = "thought" if "thought" in update["sessionUpdate"] else "message"
            update["messageId"] = f"{kind}-{session.id}-{self._messages}"
        self._told.setdefault(session.id, []).append(update)
        super()._update(session, **update)


def _block(text: str) -> Message:
    return {"type": "content", "content": {"type": "text", "text": text}}


def text_of(prompt: list[object]) -> str:
    texts = [block["text"] for block in prompt if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return " ".join(texts)


def write(message: Message) -> None:
    """Write a message to stdout as one line. The JSON is ASCII: other characters might be taken for line ends."""
    try:
        sys.stdout.buffer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The client has disconnected. A normal exit would flush stdout again and fail.
        os._exit(0)


async def serve(agent: DemoAgent) -> None:
    """Run an agent on stdin and stdout until stdin ends."""
    # A thread reads stdin, because asyncio can't on Windows, nor if it is a file.
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        agent.receive(line)
    await agent.aclose()


def main(
    make: Callable[..., DemoAgent] = DemoAgent,
    make_new: Callable[..., DemoAgent] = NewDemoAgent,
    about: str = "A small ACP agent",
    delay: float = 0.05,
) -> None:
    """Run the agent that `make` returns, or `make_new` for version 2, as the command line says."""
    parser = argparse.ArgumentParser(description=f"{about} over stdin and stdout.")
    parser.add_argument("--delay", type=float, default=delay, help=f"seconds between two chunks of text ({delay})")
    parser.add_argument("--protocol", choices=("1", "2"), default="1", help="version of the protocol (1)")
    arguments = parser.parse_args()
    if arguments.protocol == "2":
        make = make_new
    # Ctrl-C ends the process at once; asyncio would wait for the thread blocked on stdin.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    async def run() -> None:
        await serve(make(write, delay=arguments.delay))

    asyncio.run(run())


if __name__ == "__main__":
    main()
