"""An agent of version 2 that keeps the protocol, but for the one fault that its argument names."""

import json
import sys
import time
from typing import Any

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
SESSIONS: dict[str, list[dict[str, Any]]] = {}
WAITING: list[str] = []
COUNT = iter(range(1000))


def send(**message: Any) -> None:
    if FAULT != "no jsonrpc member":
        message = {"jsonrpc": "2.0", **message}
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer(id_: Any, **members: Any) -> None:
    send(id=str(id_) if FAULT == "ids become strings" and "error" in members else id_, **members)
    if FAULT == "answers twice":
        send(id=id_, **members)


def update(session: str, kind: str, **members: Any) -> None:
    told = {"sessionUpdate": kind, **members}
    if FAULT == "no message ids in chunks" and kind == "agent_message_chunk":
        del told["messageId"]
    SESSIONS[session].append(told)
    named = "other" if FAULT == "unknown session in updates" else session
    send(method="session/update", params={"sessionId": named, "update": told})


def initialize(id_: Any, version: int) -> None:
    agreed = 1 if FAULT == "speaks version 1" else version if FAULT == "agrees to any version" else 2
    session: Any = True if FAULT == "markers are booleans" else {}
    result = {"protocolVersion": agreed, "info": {"name": "a", "version": "1"}, "capabilities": {"session": session}}
    if FAULT == "no info":
        del result["info"]
    answer(id_, result=result)


def prompt(id_: Any, params: dict[str, Any]) -> None:
    session = params["sessionId"]
    if FAULT == "refuses unknown members" and "acpGatewayCheck" in params:
        return answer(id_, error={"code": -32602, "message": "what is this member?"})
    number = 0 if FAULT == "one id for all prompts" else next(COUNT)
    if FAULT == "accepts at the end":
        update(session, "user_message", messageId=f"u{number}", content=params["prompt"])
        update(session, "state_update", state="running")
        update(session, "state_update", state="idle", stopReason="end_turn")
    answer(id_, result={"stopReason": "end_turn"} if FAULT == "answers as in version 1" else {})
    if FAULT == "accepts at the end":
        return None
    if FAULT != "does not tell of prompts":
        update(session, "user_message", messageId=f"u{number}", content=params["prompt"])
    if FAULT != "does not say running":
        update(session, "state_update", state="running")
    update(session, "agent_message_chunk", messageId=f"a{number}", content={"type": "text", "text": "I begin"})
    path = "a.txt" if FAULT == "relative path" else "/a.txt"
    kind = "tool_call" if FAULT == "tool calls of version 1" else "tool_call_update"
    update(session, kind, toolCallId="c", title="Do", status="pending", locations=[{"path": path}])
    options = [{"optionId": name, "name": name, "kind": f"{name}_once"} for name in ("allow", "reject")]
    asked: dict[str, Any] = {"sessionId": session, "title": "Do it?", "options": options}
    if FAULT == "permission without title":
        del asked["title"]
    WAITING.append(session)
    send(id="q", method="session/request_permission", params=asked)
    return update(session, "state_update", state="requires_action")


def end(session: str, reason: str) -> None:
    if FAULT == "does not say idle" or (FAULT == "stops after a decision" and reason != "cancelled"):
        return
    members = {} if FAULT == "no stop reason" else {"stopReason": reason}
    update(session, "state_update", state="idle", **members)


def cancel(session: str) -> None:
    if session in WAITING:
        WAITING.clear()
        end(session, "end_turn" if FAULT == "cancel ends the turn as usual" else "cancelled")


def resume(id_: Any, params: dict[str, Any]) -> None:
    if FAULT == "refuses to resume":
        return answer(id_, error={"code": -32601, "message": "no"})
    for told in SESSIONS[params["sessionId"]] if FAULT != "does not replay" else ():
        if told["sessionUpdate"] != "state_update":
            send(method="session/update", params={"sessionId": params["sessionId"], "update": told})
    return answer(id_, result={})


def receive(message: dict[str, Any]) -> None:
    method, id_, params = message.get("method"), message.get("id"), message.get("params", {})
    if method is None:
        if WAITING:
            session = WAITING.pop()
            update(session, "tool_call_update", toolCallId="c", status="completed")
            end(session, "end_turn")
    elif "id" not in message:
        if method == "session/cancel":
            cancel(params["sessionId"])
        elif FAULT == "dies of notifications":
            sys.exit("what?")
    elif method == "initialize":
        initialize(id_, params["protocolVersion"])
    elif method == "session/new":
        name = "same" if FAULT == "same session id" else f"s{len(SESSIONS)}"
        SESSIONS[name] = []
        answer(id_, result={"sessionId": name})
    elif method == "session/prompt":
        prompt(id_, params)
    elif method == "session/resume":
        resume(id_, params)
    elif FAULT == "fails at extensions" and method.startswith("_"):
        answer(id_, error={"code": -32603, "message": "what?"})
    else:
        answer(id_, error={"code": -32603 if FAULT == "fails at unknown methods" else -32601, "message": "no"})


def main() -> None:
    if FAULT == "banner":
        sys.stdout.write("Welcome!\n")
    for line in sys.stdin:
        if FAULT == "ends early" and '"session/new"' in line:
            sys.exit("not today")
        receive(json.loads(line))
    while FAULT == "does not end":
        time.sleep(60)


main()
