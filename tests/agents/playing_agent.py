"""An agent that plays what a file says, for tests and pictures of the page. Standard library only.

Its argument is a JSON file, which it reads again for each request: `{"new": RESULT, "plays": {TEXT: [STEP, …]}}`.
`RESULT` are further members of the result of `session/new`. With `"resumes": true` the agent opens sessions
again, with `"steers": true` it takes text into a turn. A prompt of the text `TEXT` plays the steps in order; any
other one is repeated. Steps:

    {"update": UPDATE}                 sends an update
    {"update": UPDATE, "times": N}     sends it N times, each with the number from 1 on in place of `%d`
    {"group": [UPDATE, …], "times": N} the same with several updates
    {"per_second": R}                  spreads what later steps with `times` send evenly: R in each second
    {"ask": PARAMS}                    asks for permission with these params, and says what was decided
    {"request": METHOD, "params": PARAMS}  sends another request with these params, and waits for its response
    {"gate": PATH}                     goes on when there is a line to read from a FIFO
    {"steered": true}                  goes on when text for the turn has come, which it repeats
    {"wait": true}                     ends the turn when the session is cancelled
    {"exit": CODE}                     ends the process
"""

import json
import os
import queue
import sys
import threading
import time
from itertools import count
from typing import Any

Message = dict[str, Any]

PROCESS = os.urandom(4).hex()
"""Told in its ids. The id of a process is that of others in other fences."""

TICK = 0.02
"""Time between two writes of updates that are spread, in seconds."""


def text_of(params: Message) -> str:
    """Return the text of a prompt."""
    return "".join(block.get("text", "") for block in params["prompt"])


def said(text: str) -> Message:
    """Return the update with a text of the agent."""
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


class Cancelled(Exception):
    """The session was cancelled."""


class PlayingAgent:
    """Each turn runs in a thread of its own."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._lock = threading.Lock()
        self._ids = count(1)
        self._answers: dict[int, queue.Queue[Message]] = {}
        self._cancelled: dict[str, threading.Event] = {}
        self._steered: dict[str, queue.Queue[str]] = {}
        """Texts for the turns that run, by session."""

    def run(self) -> None:
        """Answer until the end of the input."""
        for line in sys.stdin.buffer:
            message = json.loads(line)
            method, params = message.get("method"), message.get("params") or {}
            if method is None:
                self._answers.pop(message["id"]).put(message)
            elif method == "session/prompt":
                self._cancelled[params["sessionId"]] = threading.Event()
                self._steered[params["sessionId"]] = queue.Queue()
                threading.Thread(target=self._turn, args=(message["id"], params), daemon=True).start()
            elif method == "session/cancel":
                self._cancelled.setdefault(params["sessionId"], threading.Event()).set()
            elif method == "_session/steering":
                running = self._steered.get(params["sessionId"])
                outcome = {"outcome": "promptRequired"} if running is None else {"outcome": "injected"}
                self._write({"id": message["id"], "result": outcome})
                if running is not None:
                    running.put(text_of(params))
            elif "id" in message:
                self._write({"id": message["id"], **self._answer(method)})

    def _answer(self, method: str) -> Message:
        match method:
            case "initialize":
                prompt = {"image": True, "embeddedContext": True}
                capabilities: Message = {"promptCapabilities": prompt}
                if self._read().get("resumes"):
                    capabilities["sessionCapabilities"] = {"resume": {}}
                meta = {"_meta": {"steering": {"supported": True}}} if self._read().get("steers") else {}
                return {"result": {"protocolVersion": 1, "agentCapabilities": capabilities, "authMethods": [], **meta}}
            case "session/new":
                session = f"play-{PROCESS}-{next(self._ids)}"
                return {"result": {"sessionId": session, **self._read().get("new", {})}}
            case "session/set_mode" | "session/set_model" | "session/set_config_option":
                return {"result": {}}
            case "session/delete" | "session/resume":
                return {"result": {}}
        return {"error": {"code": -32601, "message": f"no {method}"}}

    def _read(self) -> Message:
        with open(self._script, encoding="utf-8") as file:
            script: Message = json.load(file)
        return script

    def _turn(self, request_id: object, params: Message) -> None:
        session = params["sessionId"]
        text = text_of(params)
        repeated = said(text)
        reason, rate = "end_turn", 0.0
        try:
            for step in self._read().get("plays", {}).get(text, [{"update": repeated}]):
                rate = step.get("per_second", rate)
                self._play(session, step, rate)
        except Cancelled:
            reason = "cancelled"
        del self._steered[session]
        self._write({"id": request_id, "result": {"stopReason": reason}})

    def _play(self, session: str, step: Message, rate: float) -> None:
        match step:
            case {"group": updates, "times": times}:
                self._repeat(session, updates, times, rate)
            case {"update": update, "times": times}:
                self._repeat(session, [update], times, rate)
            case {"update": update}:
                self._tell(session, update)
            case {"ask": params}:
                self._ask(session, params)
            case {"request": method, "params": params}:
                if "error" in self._request(session, method, params):
                    raise Cancelled
            case {"gate": path}:
                with open(path, encoding="utf-8") as gate:
                    gate.readline()
            case {"steered": True}:
                self._tell(session, said(self._steered[session].get()))
            case {"wait": True}:
                self._cancelled[session].wait()
                raise Cancelled
            case {"exit": code}:
                os._exit(code)

    def _repeat(self, session: str, updates: list[Message], times: int, rate: float) -> None:
        messages = [
            {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}
            for update in updates
        ]
        text = "".join(json.dumps(message) + "\n" for message in messages)
        per_second = rate / len(updates)
        at_once = max(1, int(per_second * TICK)) if rate else 1000
        started = time.monotonic()
        for first in range(1, times + 1, at_once):
            numbers = range(first, min(first + at_once, times + 1))
            with self._lock:
                sys.stdout.buffer.write("".join(text.replace("%d", str(number)) for number in numbers).encode())
                sys.stdout.buffer.flush()
            if rate:
                time.sleep(max(0, started + numbers[-1] / per_second - time.monotonic()))

    def _request(self, session: str, method: str, params: Message) -> Message:
        request_id = next(self._ids)
        answer = self._answers[request_id] = queue.Queue()
        self._write({"id": request_id, "method": method, "params": {"sessionId": session, **params}})
        return answer.get()

    def _ask(self, session: str, params: Message) -> None:
        message = self._request(session, "session/request_permission", params)
        outcome = message.get("result", {}).get("outcome", {})
        if outcome.get("outcome") != "selected":
            raise Cancelled
        self._tell(session, said(f"decided: {outcome['optionId']}"))

    def _tell(self, session: str, update: Message) -> None:
        self._write({"method": "session/update", "params": {"sessionId": session, "update": update}})

    def _write(self, message: Message) -> None:
        with self._lock:
            sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    PlayingAgent(sys.argv[1]).run()
