"""Plays the agent of a fixture for a client that is checked. No I/O: lines in, lines out, and what its user has to do.

A request of the client gets the response of the next recorded request of its method, or of the last one; its order
among other requests does not matter. Requests that the fixture does not have are refused with -32601. A prompt begins
the next turn of the fixture; where there is none, the turn ends at once.

In version 2 a turn goes on after the response to its prompt, until its last line; lines after `idle` tell of what
happens between turns. Where there is no turn left, a prompt is accepted, and the session is idle at once.

In a turn the agent's messages are sent in order. At a response of the client the script waits for it, at a
`session/cancel` for that. A response with a wrong id ends the wait for the first response as well, so that a client
with that fault shows more. The directory of the fixture becomes that of the client's session, and the id of a terminal
the one that the client has given.
"""

import copy
from collections.abc import Sequence
from typing import Any, Final, Literal

from acp_conformance.client_script import FIXTURE_CWD, is_new, translate
from acp_conformance.dialogue import NOTIFICATION, REQUEST, RESPONSE, Line
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import INITIALIZE, NEW, PROMPT, REQUEST_PERMISSION, SESSION_CANCEL, SESSION_UPDATE

Action = Literal["prompt", "allow", "reject", "cancel", "end"]
"""Actions of the client's user: give a prompt, decide a permission, cancel the turn, end the client."""

CREATE_TERMINAL: Final = "terminal/create"

_BASELINE: Final[dict[str, Any]] = {"session/close": {}, "session/list": {"sessions": []}, "session/resume": {}}
"""Results of what every agent of version 2 has."""


class AgentScript:
    """The agent of one fixture.

    Args:
        lines: the fixture.
        chunk: the text of the agent's chunks, in place of the fixture's.
    """

    def __init__(self, lines: Sequence[Line], chunk: str | None = None) -> None:
        self._chunk = chunk
        self._is_new = is_new(lines)
        self._cwd = FIXTURE_CWD
        self._terminals: dict[str, str] = {}
        # Responses and notifications of the agent that follow a request of the client, by its method.
        self._answers: dict[str, list[list[Line]]] = {}
        self._turns: list[list[Line]] = []
        self._split(lines)
        # A fixture without a turn is at its end with the first message that it does not have.
        self._may_end = not self._turns
        # The running turn: the id of its prompt, its lines, the index of the next one.
        self._prompt: Any = None
        self._turn: list[Line] | None = None
        self._at = 0
        # Prompts that came during a turn.
        self._waiting: list[Line] = []
        self._session_open = False
        self._done = False
        self._cancelled = False
        # Present requests of the agent without a response, by the key of their id; the key of each that has one.
        self._open: dict[str, Line] = {}
        self._answered: set[str] = set()
        # Number of responses that answer no request.
        self._strays = 0
        self._actions: list[Action] = []

    def _split(self, lines: Sequence[Line]) -> None:
        block: list[Line] = []
        prompt = ""
        for line in lines:
            if line.outgoing and line.kind == REQUEST:
                block = []
                prompt = line.key if line.method == PROMPT else ""
                (self._turns if prompt else self._answers.setdefault(line.method, [])).append(block)
            else:
                block.append(line)

    @property
    def done(self) -> bool:
        """True if the fixture is at its end."""
        return self._done

    @property
    def waiting_for(self) -> str:
        """The message of the client that the script is waiting for."""
        if self._done:
            return ""
        if self._turn is not None and self._at < len(self._turn):
            line = self._turn[self._at]
            return "a response" if line.kind == RESPONSE else line.method
        return PROMPT if self._session_open else f"{INITIALIZE} or {NEW}"

    def take_actions(self) -> list[Action]:
        """Return what the user has to do now; each is returned once."""
        actions, self._actions = self._actions, []
        return actions

    def receive(self, text: bytes) -> list[bytes]:
        """Take a line of the client, and return the agent's next messages. Never raises."""
        line = Line(outgoing=True, text=text)
        if line.kind == REQUEST:
            return self._receive_request(line)
        if line.kind == RESPONSE:
            self._take_response(line)
        elif line.method == SESSION_CANCEL and self._turn is not None:
            self._cancelled = True
            rest = self._turn[self._at :]
            if not any(each.method == SESSION_CANCEL for each in rest):
                return [*self._stopped(line, self._prompt, "cancelled"), *self._end_turn()]
        return self._advance()

    def _receive_request(self, line: Line) -> list[bytes]:
        request = (line.value or {})["id"]
        if line.method == PROMPT:
            self._waiting.append(line)
            return self._begin_turn() if self._turn is None else []
        blocks = self._answers.get(line.method)
        if not blocks:
            if self._is_new and line.method in _BASELINE:
                return [_result(request, _BASELINE[line.method])]
            if self._may_end:
                self._finish()
            return [jsonrpc.encode(_refusal(request, line.method))]
        if line.method == NEW and isinstance(line.params.get("cwd"), str):
            self._cwd = line.params["cwd"]
        block = blocks.pop(0) if len(blocks) > 1 else blocks[0]
        if line.method == NEW:
            self._session_open = any(each.kind == RESPONSE and each.error is None for each in block)
            self._want_prompt()
        return [self._message(each, request) for each in block]

    def _begin_turn(self) -> list[bytes]:
        sent: list[bytes] = []
        while self._waiting and self._turn is None:
            prompt = self._waiting.pop(0)
            request = (prompt.value or {})["id"]
            if not self._turns:
                sent += [_result(request, {"messageId": "more"})] if self._is_new else []
                sent += self._stopped(prompt, request, "end_turn")
                continue
            self._prompt, self._turn, self._at, self._cancelled = request, self._turns.pop(0), 0, False
            sent += self._advance()
        return sent

    def _stopped(self, line: Line, request: Any, reason: str) -> list[bytes]:
        """Return what ends the turn of a prompt early; `line` names its session."""
        if not self._is_new:
            return [_result(request, {"stopReason": reason})]
        update = {"sessionUpdate": "state_update", "state": "idle", "stopReason": reason}
        params = {"sessionId": line.params.get("sessionId"), "update": update}
        return [jsonrpc.encode({"jsonrpc": "2.0", "method": SESSION_UPDATE, "params": params})]

    def _end_turn(self) -> list[bytes]:
        self._turn = None
        if self._turns:
            self._want_prompt()
        else:
            self._finish()
        return self._begin_turn()

    def _want_prompt(self) -> None:
        if self._session_open and self._turns and not self._waiting:
            self._actions.append("prompt")

    def _finish(self) -> None:
        if not self._done:
            self._done = True
            self._actions.append("end")

    def _take_response(self, line: Line) -> None:
        request = self._open.pop(line.key, None)
        if request is None:
            self._strays += 1
            return
        self._answered.add(line.key)
        terminal = line.result.get("terminalId") if isinstance(line.result, dict) else None
        if request.method == CREATE_TERMINAL and isinstance(terminal, str) and self._turn is not None:
            answer = next(each for each in self._turn if each.outgoing and each.key == request.key)
            self._terminals[answer.result["terminalId"]] = terminal

    def _advance(self) -> list[bytes]:
        """Return the messages of the turn up to the next one that the client has to send."""
        sent: list[bytes] = []
        while self._turn is not None and self._at < len(self._turn):
            line = self._turn[self._at]
            if not line.outgoing:
                sent.append(self._message(line, self._prompt))
                if line.kind == REQUEST:
                    self._open[line.key] = line
                    self._answered.discard(line.key)
            elif not self._has_come(line):
                return sent
            self._at += 1
            self._act()
        return sent + self._end_turn() if self._turn is not None else sent

    def _has_come(self, line: Line) -> bool:
        if line.kind == NOTIFICATION:
            return self._cancelled
        if line.key in self._answered:
            return True
        if self._strays:
            self._strays -= 1
            self._open.pop(line.key, None)
            return True
        return False

    def _act(self) -> None:
        """Note what the user has to do for the next line."""
        line = self._turn[self._at] if self._turn is not None and self._at < len(self._turn) else None
        if line is None or not line.outgoing or (line.kind == RESPONSE and line.key in self._answered):
            return
        if line.method == SESSION_CANCEL:
            self._actions.append("cancel")
        request = self._open.get(line.key) if line.kind == RESPONSE else None
        outcome = line.result.get("outcome", {}) if isinstance(line.result, dict) else {}
        if request is not None and request.method == REQUEST_PERMISSION and outcome.get("outcome") == "selected":
            kinds = {option["optionId"]: option["kind"] for option in request.params["options"]}
            self._actions.append("allow" if kinds[outcome["optionId"]].startswith("allow") else "reject")

    def _message(self, line: Line, request: Any) -> bytes:
        """Return a message of the agent; `request` is the present id where it is a response."""
        value = translate(copy.deepcopy(line.value), self._terminals, self._cwd)
        if line.kind == RESPONSE:
            value["id"] = request
        content = line.update.get("content") if line.method == SESSION_UPDATE else None
        if self._chunk is not None and isinstance(content, dict) and "text" in content:
            value["params"]["update"]["content"]["text"] = self._chunk
        return jsonrpc.encode(value)


def _result(request: Any, result: Any) -> bytes:
    return jsonrpc.encode({"jsonrpc": "2.0", "id": request, "result": result})


def _refusal(request: Any, method: str) -> dict[str, Any]:
    error = {"code": jsonrpc.METHOD_NOT_FOUND, "message": f"Method not found: {method}"}
    return {"jsonrpc": "2.0", "id": request, "error": error}
