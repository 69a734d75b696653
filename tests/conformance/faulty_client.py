"""An ACP client that keeps the protocol, but for the one fault that its second argument names.

The first argument is its agent, a third one `2` has it speak version 2.
Its user writes `y` or `n` to decide a permission, `c` to cancel, and else prompts.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from typing import Any, NoReturn

FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
NEW = sys.argv[3:] == ["2"]
OFFERS = FAULT not in ("offers nothing", "serves files unasked", "runs commands unasked", "refuses with other codes")
EVENTS: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
METHODS = ["initialize", "session/new"]
PERMISSIONS: list[dict[str, Any]] = []
REFUSED_OTHERWISE = [
    ("refuses with other codes", "f"),
    ("refuses with other codes", "t"),
    ("fails at unknown methods", "a"),
    ("fails at extensions", "_"),
]
SESSION = [""]
SPOKEN: list[str] = []
LINES: list[str] = []
TURN: list[int] = []
STATES = [""]
IDS = iter(range(100))
REQUESTS: dict[Any, str] = {}

AGENT = subprocess.Popen(
    [sys.argv[1]],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE if FAULT == "does not read stderr" else None,
    bufsize=0,
)
assert AGENT.stdin is not None
assert AGENT.stdout is not None
TO_AGENT, FROM_AGENT = AGENT.stdin, AGENT.stdout


def die(text: str) -> NoReturn:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    os._exit(1)


def send(**message: Any) -> None:
    if FAULT != "no jsonrpc member":
        message = {"jsonrpc": "2.0", **message}
    try:
        TO_AGENT.write(json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        pass


def request(method: str, **params: Any) -> int:
    number = next(IDS)
    REQUESTS[number] = method
    send(id=number, method=method, params=params)
    return number


def answer(id_: Any, **members: Any) -> None:
    if FAULT == "ids become strings":
        id_ = str(id_)
    if FAULT == "large ids are rounded" and isinstance(id_, int):
        id_ = int(float(id_))
    send(id=id_, **members)
    if FAULT == "answers twice":
        send(id=id_, **members)


def fail(id_: Any, code: int) -> None:
    answer(id_, error={"code": code, "message": "no"})


def initialize() -> None:
    if FAULT == "opens the session first":
        new_session()
    version = "1" if FAULT == "version as text" else 1
    if NEW:
        members = {} if FAULT == "no info" else {"info": {"name": "client", "version": "1"}}
        request("initialize", protocolVersion=1 if FAULT == "asks for version 1" else 2, capabilities={}, **members)
        return
    offered = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True} if OFFERS else {}
    request("initialize", protocolVersion=version, clientCapabilities=offered)


def new_session() -> None:
    if FAULT == "loads unasked":
        request("session/load", sessionId="old", cwd=os.getcwd(), mcpServers=[])
    params: dict[str, Any] = {"cwd": "." if FAULT == "relative directory" else os.getcwd(), "mcpServers": []}
    if FAULT == "no directory":
        del params["cwd"]
    if FAULT == "no list of servers":
        del params["mcpServers"]
    if FAULT == "event streams unasked":
        params["mcpServers"] = [{"type": "sse", "name": "s", "url": "http://127.0.0.1/", "headers": []}]
    request("session/new", **params)


def prompt(text: str) -> None:
    blocks: Any = [{"type": "text", "text": text}]
    if FAULT == "prompt as text":
        blocks = text
    if FAULT == "images unasked":
        blocks.append({"type": "image", "data": "", "mimeType": "image/png"})
    TURN.append(
        request("session/prompt", sessionId="other" if FAULT == "unknown session" else SESSION[0], prompt=blocks)
    )
    if FAULT == "same id twice":
        send(id=TURN[-1], method="session/prompt", params={"sessionId": SESSION[0], "prompt": blocks})


def cancel() -> None:
    if FAULT == "cancels by a request":
        request("session/cancel", sessionId=SESSION[0])
        return
    send(method="session/cancel", params={"sessionId": SESSION[0]})
    if FAULT == "forgets permissions" and PERMISSIONS:
        os._exit(0)
    for asked in PERMISSIONS:
        decide(asked, "allow" if FAULT == "approves what is cancelled" else None)
    PERMISSIONS.clear()


def decide(asked: dict[str, Any], kind: str | None) -> None:
    if FAULT == "knows no permissions":
        return fail(asked["id"], -32601)
    kind = {"always allows": "allow", "never allows": "reject"}.get(FAULT, kind)
    fitting = [each["optionId"] for each in asked["params"]["options"] if each["kind"].startswith(kind or "none")]
    outcome: dict[str, Any] = {"outcome": "selected", "optionId": fitting[0]} if fitting else {"outcome": "cancelled"}
    if FAULT == "makes options up":
        outcome = {"outcome": "selected", "optionId": "yes"}
    return answer(asked["id"], result={"outcome": outcome})


def serve(method: str, id_: Any, params: dict[str, Any]) -> None:
    files, terminal = OFFERS or FAULT == "serves files unasked", OFFERS or FAULT == "runs commands unasked"
    if method == "session/request_permission":
        PERMISSIONS.append({"id": id_, "params": params})
    elif method == "fs/write_text_file" and files:
        with open(params["path"], "w") as file:
            file.write(params["content"])
        answer(id_, result={})
    elif method == "fs/read_text_file" and files:
        with open(params["path"]) as file:
            lines = file.readlines()
        if "line" in params and FAULT != "reads whole files":
            lines = lines[params["line"] - 1 :][: params["limit"]]
        answer(id_, result={"content": "".join(lines)})
    elif method == "terminal/create" and terminal:
        answer(id_, result={"terminalId": "t"})
    elif method.startswith("terminal/") and terminal and params["terminalId"] == "t":
        output = {"output": "acp-gateway-check\n"} | ({} if FAULT == "does not say truncated" else {"truncated": False})
        results: dict[str, Any] = {"output": output, "wait_for_exit": {"exitCode": 0}}
        answer(id_, result=results.get(method.removeprefix("terminal/"), {}))
    elif (FAULT, method[0]) in REFUSED_OTHERWISE:
        fail(id_, -32603)
    else:
        fail(id_, -32601)


def take_response(message: dict[str, Any]) -> None:
    method = REQUESTS.pop(message["id"], "")
    result = message.get("result") or {}
    if method == "initialize" and result["protocolVersion"] != (2 if NEW else 1) and FAULT != "works with any version":
        die("unsupported version")
    if method == "initialize" and result.get("authMethods"):
        request("session/new", cwd=os.getcwd(), mcpServers=[])
    elif method == "initialize" and FAULT != "opens the session first":
        new_session()
    elif method == "session/new" and "error" in message:
        if message["error"]["code"] != -32000:
            die("no session")
        request("authenticate", methodId="check")
    elif method == "authenticate":
        if FAULT == "forgets the session":
            os._exit(0)
        new_session()
    elif method == "session/new":
        if FAULT == "ends early":
            die("not today")
        SESSION[0] = result["sessionId"]
    elif method == "session/cancel":
        die("cannot cancel")
    elif method == "session/prompt" and NEW:
        if FAULT == "takes the response for the end":
            os._exit(0)
    elif method == "session/prompt":
        TURN.clear()
        if FAULT == "dies of a stop reason" and result["stopReason"] == "max_tokens":
            die("too many tokens")


def take_new(told: dict[str, Any], kind: str) -> None:
    """Take an update of version 2."""
    if kind == "state_update":
        STATES.append(told["state"])
    if kind not in ("state_update", "user_message") and STATES[-1] == "idle" and FAULT == "dies of updates while idle":
        die("the session is idle")
    if kind == "state_update" and told["state"] == "running" and not TURN and FAULT == "dies of turns unasked":
        die("there is no prompt")
    if kind == "state_update" and told["state"] == "acp_gateway_check" and FAULT == "dies of unknown values":
        die("what is this state?")
    if kind == "plan_update" and FAULT == "dies of plans":
        die("what is plan_update?")
    if kind == "state_update" and told["state"] == "idle":
        TURN.clear()
        if FAULT == "dies of a stop reason" and told["stopReason"] == "acp_gateway_check":
            die("why did it stop?")


def receive(line: bytes) -> None:
    if not line.endswith(b"\n") and FAULT == "takes pieces for messages":
        die("this is a piece")
    if FAULT == "dies of big messages" and len(line) > 1_000_000:
        die("this is too big")
    try:
        message = json.loads(line)
    except ValueError:
        if FAULT == "dies of bad lines":
            die("what is this?")
        return
    if FAULT == "dies of _meta" and b"_meta" in line:
        die("what is _meta?")
    if FAULT == "dies of unknown members" and b"acpGatewayCheck" in line and b"update" in line:
        die("what is this member?")
    method, params = message.get("method"), message.get("params", {})
    if method is None:
        take_response(message)
    elif "id" in message:
        serve(method, message["id"], params)
    elif method == "session/update":
        kind = params["update"]["sessionUpdate"]
        if NEW:
            take_new(params["update"], kind)
        if (FAULT, kind) in (("dies of plans", "plan"), ("dies of unknown updates", "acp_gateway_check")):
            die(f"what is {kind}?")
        if kind == "agent_message_chunk":
            SPOKEN.append(kind)
    elif FAULT == "answers notifications":
        fail(None, -32601)
    elif FAULT == "dies of notifications":
        die("what?")


def listen(name: str, stream: Any) -> None:
    if FAULT == "takes pieces for messages" and name == "agent":
        while data := os.read(stream.fileno(), 10):
            EVENTS.put((name, data))
    else:
        while line := stream.readline():
            EVENTS.put((name, line))
    EVENTS.put((name, b""))


def obey() -> None:
    """Do what the user has written, as soon as there is an occasion."""
    while LINES:
        line = LINES[0]
        ready = {"y": PERMISSIONS, "n": PERMISSIONS, "c": PERMISSIONS or SPOKEN}.get(line, SESSION[0] and not TURN)
        if not ready:
            return
        del LINES[0]
        if line == "c":
            cancel()
        elif line in ("y", "n"):
            decide(PERMISSIONS.pop(0), "allow" if line == "y" else "reject")
        else:
            prompt(line)


def main() -> None:
    from_agent = os.fdopen(FROM_AGENT.fileno(), "rb", closefd=False)
    for name, stream in (("agent", from_agent), ("user", sys.stdin.buffer)):
        threading.Thread(target=listen, args=(name, stream), daemon=True).start()
    if FAULT == "greets the agent":
        TO_AGENT.write(b"Hello!\n")
    initialize()
    while True:
        name, line = EVENTS.get()
        if name == "agent" and line:
            receive(line)
        elif name == "user" and line:
            LINES.append(line.decode().strip())
        elif name == "user":
            break
        obey()
    if FAULT == "does not end" or (FAULT == "waits for the end of turns" and TURN):
        time.sleep(3600)
    if FAULT == "keeps the agent" and os.fork() == 0:
        time.sleep(3600)
    # Threads still read.
    os._exit(0)


main()
