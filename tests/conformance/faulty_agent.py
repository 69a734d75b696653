"""An ACP agent that keeps the protocol, but for the one fault that its argument names."""

import json
import os
import sys
import time
from typing import Any

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
SESSIONS: list[str] = []
PENDING: dict[int, Any] = {}
CANCELLED: set[str] = set()
PERMISSION = 77


def send(**message: Any) -> None:
    if FAULT != "no jsonrpc member":
        message = {"jsonrpc": "2.0", **message}
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def update(session: str, kind: str, **members: Any) -> None:
    send(method="session/update", params={"sessionId": session, "update": {"sessionUpdate": kind, **members}})


def answer(id_: Any, result: Any) -> None:
    send(id=id_, result=result)
    if FAULT == "answers twice":
        send(id=id_, result=result)


def fail(id_: Any, code: int, text: str) -> None:
    send(id=str(id_) if FAULT == "ids become strings" else id_, error={"code": code, "message": text})
    if FAULT == "ids become strings" and str(id_).startswith("5e0c"):
        sys.exit("no further id")


def initialize(id_: Any, version: int) -> None:
    if FAULT == "refuses other versions" and version != 1:
        fail(id_, -32602, "unsupported")
    else:
        agreed = {"agrees to any version": version, "version as text": "1"}.get(FAULT, 1)
        caps = {"loadSession": True, "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True}}
        methods = [{"name": "no id"}] if FAULT == "auth method without id" else []
        answer(id_, {"protocolVersion": agreed, "agentCapabilities": caps, "authMethods": methods})


PROCESS = "" if FAULT == "counts sessions" else f"{os.getpid()}-"


def load(id_: Any, session: str) -> None:
    told: list[tuple[str, dict[str, Any]]] = [
        ("user_message_chunk", {"content": {"type": "text", "text": "Look."}}),
        ("tool_call", {"toolCallId": "c", "title": "Do"}),
    ]
    if FAULT == "replays after the response":
        answer(id_, {})
    for kind, members in told[:1] if FAULT == "replays no tools" else told:
        update(session, kind, **members)
    if FAULT != "replays after the response":
        answer(id_, {})


def new_session(id_: Any) -> None:
    SESSIONS.append("same" if FAULT == "same session id" else f"s{PROCESS}{len(SESSIONS)}")
    modes = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}]}
    if FAULT == "current mode unknown":
        modes["currentModeId"] = "none"
    answer(id_, {"sessionId": SESSIONS[-1], "modes": modes})
    if FAULT == "one session at work" and PENDING:
        answer(PENDING.pop(PERMISSION)[0], {"stopReason": "cancelled"})


def prompt(id_: Any, params: dict[str, Any]) -> None:
    session, kinds = params["sessionId"], {block["type"] for block in params["prompt"]}
    text = next((block["text"] for block in params["prompt"] if block["type"] == "text"), "")
    if session not in SESSIONS and FAULT != "prompts unknown sessions":
        return fail(id_, -32002, "no such session")
    if FAULT == "refuses images" and "image" in kinds:
        return fail(id_, -32602, "no image")
    if FAULT == "refuses links" and "resource_link" in kinds:
        return fail(id_, -32602, "no link")
    if FAULT == "dies of big prompts" and len(text) > 1_000_000:
        sys.exit("too much for me")
    if FAULT == "dies of _meta" and "_meta" in params:
        sys.exit("what is _meta?")
    path = "a.txt" if FAULT == "relative path" else "/a.txt"
    if FAULT == "unknown session in updates":
        update("other", "agent_message_chunk", content={"type": "text", "text": "x"})
    if FAULT == "chunk without content":
        update(session, "agent_message_chunk")
    if FAULT == "unknown update":
        update(session, "made_up")
    if FAULT == "uses files":
        send(id=5, method="fs/read_text_file", params={"sessionId": session, "path": "/a.txt"})
    if FAULT == "keeps terminals":
        send(id=5, method="terminal/create", params={"sessionId": session, "command": "true"})
    call = {"toolCallId": "c", "title": "Do", "status": "pending", "locations": [{"path": path}]}
    update(session, "tool_call", **call)
    options = [
        {"optionId": "y", "name": "Yes", "kind": "allow_once"},
        {"optionId": "n", "name": "No", "kind": "reject_once"},
    ]
    if FAULT == "no options":
        options = []
    send(
        id=PERMISSION,
        method="session/request_permission",
        params={"sessionId": session, "toolCall": call, "options": options},
    )
    PENDING[PERMISSION] = (id_, session)
    return None


def decided(result: Any) -> None:
    id_, session = PENDING.pop(PERMISSION, (None, ""))
    if id_ is None:
        return None
    outcome = result["outcome"]
    if outcome["outcome"] == "cancelled" and session in CANCELLED:
        if FAULT == "cancel is an error":
            return fail(id_, -32603, "aborted")
        if FAULT == "cancel ends the turn as usual":
            return answer(id_, {"stopReason": "end_turn"})
        answer(id_, {"stopReason": "cancelled"})
        if FAULT == "updates after cancelled":
            update(session, "tool_call_update", toolCallId="c", status="failed")
        CANCELLED.discard(session)
        return None
    allowed = outcome.get("optionId") == "y" or FAULT == "disobeys"
    update(session, "tool_call_update", toolCallId="c", status="completed" if allowed else "failed")
    return answer(id_, {"stopReason": "done" if FAULT == "unknown stop reason" else "end_turn"})


def receive(message: dict[str, Any]) -> None:
    method, id_, params = message.get("method"), message.get("id"), message.get("params", {})
    if method is None:
        if id_ == PERMISSION:
            decided(message.get("result", {"outcome": {"outcome": "cancelled"}}))
    elif method == "initialize":
        initialize(id_, params["protocolVersion"])
    elif method == "session/new":
        new_session(id_)
    elif method == "session/prompt":
        prompt(id_, params)
    elif method == "session/cancel":
        CANCELLED.add(params["sessionId"])
    elif method == "session/load" and FAULT != "refuses session/load":
        load(id_, params["sessionId"])
    elif method == "session/set_mode" and f"refuses {method}" != FAULT:
        answer(id_, {})
    elif "id" not in message:
        if FAULT == "answers notifications":
            fail(None, -32601, "what?")
        if FAULT == "dies of notifications":
            sys.exit("what?")
    elif FAULT == "unknown method is internal error":
        fail(id_, -32603, "what?")
    else:
        fail(id_, -32601, "Method not found")


def main() -> None:
    if FAULT == "banner":
        sys.stdout.write("Welcome\x1b[2J!\n")
    while line := sys.stdin.buffer.readline():
        try:
            message = json.loads(line)
        except ValueError:
            if FAULT == "dies of bad lines":
                raise
            continue
        receive(message)
    if FAULT == "does not end":
        while True:
            time.sleep(60)


main()
