"""An agent that keeps its sessions in files, for tests: what it was told and said survives its end.

It is started with a directory, where each session is a file with its updates, one a line, which `session/load` replays.
It lists all that are there, of every client. `calls` there has a line for each message that it got: its process, the
method, the session. `heard` has the messages themselves.

Each text block of a prompt is a command; what it does not know it says back.

ask [COMMAND]   asks whether it may, or may run this, and says what was decided
pid             says which process it is, by a name that no other one has
gate PATH       goes on when there is a line to read from a FIFO
wait            ends when the session is cancelled, and so does the turn
die N           complains on stderr and exits with code N in the middle of the turn
flood N         N message chunks of 20 kB each, numbered from 0, which no file keeps
"""

import json
import os
import secrets
import sys
from collections import deque
from pathlib import Path
from typing import Any

# In a PID namespace each one has the same id.
PROCESS = f"{os.getpid()}-{secrets.token_hex(4)}"
CHUNK_SIZE = 20_000
CHUNKS_AT_ONCE = 16

OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def user_chunk(block: dict[str, Any]) -> dict[str, Any]:
    return {"sessionUpdate": "user_message_chunk", "content": block}


def agent_chunk(text: str) -> dict[str, Any]:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


class RememberingAgent:
    """One thing after the other: while it is at work in one session, requests in another wait."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Came while something else was waited for.
        self._later: deque[dict[str, Any]] = deque()
        self._asked = 0

    def run(self) -> None:
        """Answer until the end of the input."""
        while (message := self._later.popleft() if self._later else self._read()) is not None:
            if "method" in message and "id" in message:
                answer = self._answer(message["method"], message.get("params") or {})
                self._write({"jsonrpc": "2.0", "id": message["id"], **answer})

    def _read(self) -> dict[str, Any] | None:
        line = sys.stdin.buffer.readline()
        if not line:
            return None
        message: dict[str, Any] = json.loads(line)
        with (self._directory / "heard").open("ab") as heard:
            heard.write(line)
        with (self._directory / "calls").open("a") as calls:
            session = (message.get("params") or {}).get("sessionId", "-")
            calls.write(f"{PROCESS} {message.get('method', 'response')} {session}\n")
        return message

    def _write(self, message: dict[str, Any]) -> None:
        sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
        sys.stdout.buffer.flush()

    def _file(self, session: str) -> Path:
        return self._directory / f"{session}.session"

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                capabilities = {"loadSession": True, "sessionCapabilities": {"list": {}}}
                return {"result": {"protocolVersion": 1, "agentCapabilities": capabilities, "authMethods": []}}
            case "session/new":
                session = secrets.token_hex(8)
                self._file(session).touch()
                return {"result": {"sessionId": session}}
            case "session/list":
                found = [{"sessionId": path.stem, "cwd": "/"} for path in self._directory.glob("*.session")]
                return {"result": {"sessions": found}}
        session = params.get("sessionId", "")
        if not self._file(session).exists():
            return {"error": {"code": -32002, "message": "no such session"}}
        match method:
            case "session/load":
                for line in self._file(session).read_text().splitlines():
                    self._tell(session, json.loads(line))
                return {"result": {}}
            case "session/prompt":
                for block in params["prompt"]:
                    self._keep(session, user_chunk(block))
                for block in params["prompt"]:
                    if self._do(session, block["text"]):
                        return {"result": {"stopReason": "cancelled"}}
                return {"result": {"stopReason": "end_turn"}}
        return {"error": {"code": -32601, "message": f"no {method}"}}

    def _keep(self, session: str, update: dict[str, Any]) -> None:
        with self._file(session).open("a") as file:
            file.write(json.dumps(update) + "\n")

    def _tell(self, session: str, update: dict[str, Any]) -> None:
        params = {"sessionId": session, "update": update}
        self._write({"jsonrpc": "2.0", "method": "session/update", "params": params})

    def _say(self, session: str, text: str) -> None:
        self._keep(session, agent_chunk(text))
        self._tell(session, agent_chunk(text))

    def _do(self, session: str, text: str) -> bool:
        """Obey; whether the turn was cancelled before the end."""
        command, _, argument = text.partition(" ")
        match command:
            case "ask":
                outcome = self._ask(session, argument)
                self._say(session, outcome)
                return outcome == "cancelled"
            case "pid":
                self._say(session, PROCESS)
            case "gate":
                with open(argument) as gate:
                    gate.readline()
            case "wait":
                self._wait_for("session/cancel", session)
                return True
            case "die":
                sys.stderr.write("it was all\ntoo much\n")
                sys.stderr.flush()
                os._exit(int(argument))
            case "flood":
                self._flood(session, int(argument))
            case _:
                self._say(session, text)
        return False

    def _ask(self, session: str, command: str) -> str:
        self._asked += 1
        what = {"kind": "execute", "rawInput": {"command": command}} if command else {}
        call = {"toolCallId": "call-1", "title": command or "do it", **what}
        params = {"sessionId": session, "toolCall": call, "options": OPTIONS}
        self._write({"jsonrpc": "2.0", "id": self._asked, "method": "session/request_permission", "params": params})
        while (message := self._read()) is not None:
            if "method" not in message and message["id"] == self._asked:
                outcome = message["result"]["outcome"]
                return str(outcome.get("optionId", outcome["outcome"]))
            self._later.append(message)
        sys.exit()

    def _wait_for(self, method: str, session: str) -> None:
        while (message := self._read()) is not None:
            if message.get("method") == method and message["params"]["sessionId"] == session:
                return
            self._later.append(message)
        sys.exit()

    def _flood(self, session: str, count: int) -> None:
        text = json.dumps(agent_chunk("%08d" + "x" * (CHUNK_SIZE - 8)))
        line = f'{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{text}}}}}\n'
        for first in range(0, count, CHUNKS_AT_ONCE):
            numbers = range(first, min(first + CHUNKS_AT_ONCE, count))
            sys.stdout.buffer.write("".join(line % number for number in numbers).encode())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    RememberingAgent(Path(sys.argv[1])).run()
