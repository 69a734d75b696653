"""Plays the client of a fixture for an agent that is checked. No I/O: lines in, lines out.

The client's messages are sent in the order of the fixture; its requests are sent one after the other where the fixture
has the response between them. Ids of sessions, the working directory and options of a permission become the present
ones. A request that the agent does not offer to serve is left out: content of a kind, a mode, `session/load`. The
agent's messages need not be those of the fixture:

- A request of a method that the fixture has gets the response of the fixture, the last one if there are more requests.
- Another request of a permission is allowed, or cancelled with its turn; any other request is refused with -32601.
- At an update of the fixture, or a request that is not answered in the next line, the script waits for a message of
  that method, or for the end of the turn. In version 2 it waits for the states of the session, and for no other
  update: `idle` is the end of the turn.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from acp_conformance.dialogue import NOTIFICATION, REQUEST, RESPONSE, Line
from acp_conformance.shapes import BLOCK_CAPABILITIES
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.fixtures import read_line
from acp_gateway.protocol.methods import INITIALIZE, LOAD, NEW, PROMPT, REQUEST_PERMISSION, SESSION_CANCEL, SET_MODE

FIXTURE_CWD: Final = "/home/user/project"
"""The working directory in the bundled fixtures."""


def parse_fixture(text: bytes) -> list[Line]:
    """Return the lines of a fixture. Raises `ValueError` for any other line."""
    return [Line(*read_line(line)) for line in text.split(b"\n") if line]


def translate(value: Any, names: Mapping[str, str], cwd: str) -> Any:
    """Replace the names of a fixture, such as session ids, and its directory in all strings of a value of JSON.

    Args:
        names: present names by those of the fixture; they replace whole strings.
        cwd: the present directory.
    """
    if isinstance(value, dict):
        return {name: translate(each, names, cwd) for name, each in value.items()}
    if isinstance(value, list):
        return [translate(each, names, cwd) for each in value]
    if isinstance(value, str):
        return names.get(value) or value.replace(FIXTURE_CWD, cwd)
    return value


def is_new(lines: Sequence[Line]) -> bool:
    """Return True if a fixture is of version 2: its client has an `info`."""
    return "info" in lines[0].params


class ClientScript:
    """The client of one fixture.

    Args:
        lines: the fixture.
        cwd: the directory of its sessions, in place of `FIXTURE_CWD`.
        prompt: the text of its prompts, in place of the fixture's.
    """

    def __init__(self, lines: Sequence[Line], cwd: str, prompt: str | None = None) -> None:
        self._lines = lines
        self._cwd = cwd
        self._prompt = prompt
        self._is_new = is_new(lines)
        # Index of the next line of the fixture.
        self._at = 0
        # Keys of the client's requests that were answered, and of those that were left out.
        self._answered: set[str] = set()
        self._left_out: set[str] = set()
        self._failed = False
        # True from a cancellation to the next prompt, while no permission is granted.
        self._cancelled = False
        self._sessions: dict[str, str] = {}
        self._capabilities: dict[str, Any] = {}
        self._modes: list[str] = []
        # The agent's messages that no line of the fixture was matched with.
        self._unmatched: list[Line] = []
        # Present requests of the agent by the key of the fixture's.
        self._matched: dict[str, Line] = {}
        self._templates = self._find_templates()
        self._requests = {line.key: line for line in lines if line.outgoing and line.kind == REQUEST}

    @property
    def done(self) -> bool:
        """True if there is nothing more to send or to wait for."""
        return self._failed or self._at >= len(self._lines)

    @property
    def waiting_for(self) -> str:
        """The response or message of the agent that the script is waiting for."""
        if self.done:
            return ""
        line = self._lines[self._at]
        return f"the response to {self._requests[line.key].method}" if line.kind == RESPONSE else line.method

    def begin(self) -> list[bytes]:
        """Return the first messages of the client."""
        return self._advance()

    def receive(self, text: bytes) -> list[bytes]:
        """Take a line of the agent, and return the client's next messages. Never raises."""
        line = Line(outgoing=False, text=text)
        if line.kind == RESPONSE:
            self._take_response(line)
        elif line.kind == REQUEST and not self._is_awaited(line.method):
            return [self._reply(line), *self._advance()]
        elif line.kind in (REQUEST, NOTIFICATION):
            self._unmatched.append(line)
        return self._advance()

    def _take_response(self, line: Line) -> None:
        request = self._requests.get(line.key)
        if request is None:
            return
        self._answered.add(line.key)
        result = line.result if isinstance(line.result, dict) else {}
        if request.method == INITIALIZE:
            capabilities = result.get("agentCapabilities")
            self._capabilities = capabilities if isinstance(capabilities, dict) else {}
        elif request.method == NEW and isinstance(result.get("sessionId"), str):
            fixture = next(each for each in self._lines if each.kind == RESPONSE and each.key == line.key)
            self._sessions[fixture.result["sessionId"]] = result["sessionId"]
            self._modes = _modes_of(result.get("modes"))
        # What follows needs an initialized agent and a session.
        if request.method in (INITIALIZE, NEW) and line.error is not None:
            self._failed = True

    def _is_awaited(self, method: str) -> bool:
        """Return True if a later line of the fixture waits for a request of this method."""
        return any(
            line.kind == REQUEST and not line.outgoing and line.method == method and self._is_deferred(index)
            for index, line in enumerate(self._lines[self._at :], self._at)
        )

    def _is_deferred(self, index: int) -> bool:
        """Return True if the client's response is not the line after the agent's request at an index."""
        after = self._lines[index + 1 : index + 2]
        return not (after and after[0].outgoing and after[0].kind == RESPONSE)

    def _advance(self) -> list[bytes]:
        sent: list[bytes] = []
        while not self.done:
            line = self._lines[self._at]
            if line.outgoing:
                if line.kind == RESPONSE:
                    request = self._matched.get(line.key)
                    sent += [self._response(request, line)] if request is not None else []
                elif self._is_offered(line):
                    sent.append(self._message(line))
                else:
                    self._left_out.add(line.key)
            elif line.kind == RESPONSE:
                if line.key not in self._answered | self._left_out:
                    break
                if not self._is_new:
                    # No message of this turn can come any more.
                    self._unmatched.clear()
            elif not self._match(line):
                break
            self._at += 1
        return sent

    def _match(self, line: Line) -> bool:
        """Match a line of the agent in the fixture with what came; return False to wait for more."""
        if line.kind == REQUEST and not self._is_deferred(self._at):
            return True
        state = line.update.get("state") if self._is_new else None
        if self._is_new and line.kind == NOTIFICATION and state is None:
            return True
        alike = (each for each in self._unmatched if (each.kind, each.method) == (line.kind, line.method))
        found = next((each for each in alike if state is None or each.update.get("state") == state), None)
        if found is not None:
            self._unmatched.remove(found)
            if line.kind == REQUEST:
                self._matched[line.key] = found
            return True
        if self._is_new:
            return any(_is_idle(each) for each in self._unmatched)
        following = next(
            (each for each in self._lines[self._at :] if each.kind == RESPONSE and not each.outgoing), None
        )
        return following is None or following.key in self._answered | self._left_out

    def _is_offered(self, line: Line) -> bool:
        """Return True if the agent offers what a message of the client needs."""
        if line.method == LOAD:
            return self._capabilities.get("loadSession") is True
        if line.method == SET_MODE:
            return bool(self._modes)
        if line.method != PROMPT:
            return True
        offered = self._capabilities.get("promptCapabilities")
        offered = offered if isinstance(offered, dict) else {}
        needed = {BLOCK_CAPABILITIES.get(block["type"]) for block in line.params["prompt"]}
        return all(name is None or offered.get(name) is True for name in needed)

    def _message(self, line: Line) -> bytes:
        if line.method in (SESSION_CANCEL, PROMPT):
            self._cancelled = line.method == SESSION_CANCEL
        if self._is_new and line.method == PROMPT:
            # What is told from here on is of this turn.
            self._unmatched.clear()
        value = translate(copy.deepcopy(line.value), self._sessions, self._cwd)
        params = value.get("params", {})
        if line.method == SET_MODE:
            params["modeId"] = self._modes[-1]
        for block in params.get("prompt", ()) if self._prompt is not None and line.method == PROMPT else ():
            if block["type"] == "text":
                block["text"] = self._prompt
        return jsonrpc.encode(value)

    def _find_templates(self) -> dict[str, list[tuple[Line, Line]]]:
        """Return the agent's requests of the fixture with their responses, by method."""
        templates: dict[str, list[tuple[Line, Line]]] = {}
        for index, line in enumerate(self._lines):
            if line.kind == REQUEST and not line.outgoing:
                answer = next(
                    each
                    for each in self._lines[index:]
                    if each.outgoing and each.kind == RESPONSE and each.key == line.key
                )
                templates.setdefault(line.method, []).append((line, answer))
        return templates

    def _reply(self, request: Line) -> bytes:
        """Return the response to a request that no line of the fixture waits for."""
        if request.method == REQUEST_PERMISSION and self._cancelled:
            return _result(request, {"outcome": {"outcome": "cancelled"}})
        templates = self._templates.get(request.method)
        if templates:
            return self._response(request, (templates.pop(0) if len(templates) > 1 else templates[0])[1])
        if request.method == REQUEST_PERMISSION:
            return self._decide(request, "allow_once")
        error = {"code": jsonrpc.METHOD_NOT_FOUND, "message": f"Method not found: {request.method}"}
        return jsonrpc.encode({"jsonrpc": "2.0", "id": (request.value or {})["id"], "error": error})

    def _response(self, request: Line, answer: Line) -> bytes:
        outcome = answer.result.get("outcome", {}) if isinstance(answer.result, dict) else {}
        if request.method == REQUEST_PERMISSION and outcome.get("outcome") == "selected":
            asked = next(each for each, other in self._templates[REQUEST_PERMISSION] if other is answer)
            kinds = {option["optionId"]: option["kind"] for option in asked.params["options"]}
            return self._decide(request, kinds[outcome["optionId"]])
        return _result(request, answer.result)

    def _decide(self, request: Line, kind: str) -> bytes:
        """Return the response that selects the option of a kind, or one that begins alike; else `cancelled`."""
        options = request.params.get("options")
        found = [option for option in options if isinstance(option, dict)] if isinstance(options, list) else []
        for wanted in (kind, kind.partition("_")[0]):
            for option in found:
                if str(option.get("kind")).startswith(wanted):
                    return _result(request, {"outcome": {"outcome": "selected", "optionId": option.get("optionId")}})
        return _result(request, {"outcome": {"outcome": "cancelled"}})


def _is_idle(line: Line) -> bool:
    return line.update.get("sessionUpdate") == "state_update" and line.update.get("state") == "idle"


def _result(request: Line, result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": (request.value or {})["id"], "result": result}).encode()


def _modes_of(modes: Any) -> list[str]:
    """Return the ids of the modes of a session, the current one first; none if there are no valid ones."""
    available = modes.get("availableModes") if isinstance(modes, dict) else None
    ids = [mode.get("id") for mode in available if isinstance(mode, dict)] if isinstance(available, list) else []
    valid = [each for each in ids if isinstance(each, str)]
    return sorted(valid, key=lambda each: each != modes.get("currentModeId"))


BIG: Final = 2 * 1024 * 1024
"""Bytes of the text of a large prompt or chunk: beyond buffers of 64 KiB and 1 MiB, which are common."""


IDS: Final = ("1", '"1"', '""', '"a b/\\u00e9"', "-7", '"5e0c9e1c-8f1a-4c52-9f5e-3d3f4c5b6a79"')
"""Keys of the ids in the fixtures `ids` and `agent-ids`."""

UNUSUAL_IDS: Final = ("9007199254740993", "null")
"""Keys of the ids in `ids-unusual` and `agent-ids-unusual`: an integer beyond a float's precision, and null."""


@dataclass(frozen=True)
class Scenario:
    """One dialogue with a fresh process of the program."""

    name: str
    fixture: str
    """Name of the bundled fixture, without its suffix."""
    piece: int = 0
    """Bytes that are written at once; 0 to write all of a message at once."""
    first: bytes = b""
    """A line that is written before the dialogue."""
    prompt: str | None = None
    """The text of the prompts, in place of the user's or the fixture's."""
    chunk: str | None = None
    """The text of the agent's chunks, in place of the fixture's."""
    stderr: int = 0
    """Bytes that the agent writes to stderr before anything else."""
    lost: bool = False
    """True if the agent ends where the fixture ends, with an exit code that is not 0."""


PLAIN: Final = (
    *("initialize", "version-unsupported", "version-lower", "ids", "ids-unusual", "extensions", "session-new"),
    *("unknown-session", "load", "modes", "prompt-updates", "blocks", "permission", "permission-reject"),
    *("permission-cancelled", "cancellation", "file-system", "terminal", "sessions-at-once"),
)
"""Names of the fixtures that are played as they are."""

SCENARIOS: Final = (
    *(Scenario(name, name) for name in PLAIN),
    Scenario("big", "framing", prompt="x" * BIG),
    Scenario("split", "framing", piece=7),
    Scenario("garbage", "initialize", first=b"this is not JSON"),
)

STDERR: Final = 256 * 1024
"""Bytes that an agent writes to stderr: four times what a pipe holds."""

CLIENT_PLAIN: Final = (
    *("agent-text", "agent-version", "agent-authentication", "agent-updates", "agent-update-unknown", "agent-members"),
    *("agent-meta", "agent-requests", "agent-notifications", "agent-ids", "agent-ids-unusual", "permission"),
    *("permission-reject", "agent-options", "permission-cancelled", "cancellation", "agent-stop-reasons"),
    *("file-system", "terminal"),
)
"""Names of the fixtures that are played to clients as they are. The first shows whether a client can be run at all."""

NEW_SCENARIOS: Final = tuple(
    Scenario(name, f"new-{name}")
    for name in (
        *("initialize", "version-unsupported", "ids", "session", "turn", "permission", "permission-reject"),
        *("permission-cancelled", "cancellation", "extensions"),
    )
)
"""Scenarios of agents of version 2."""

NEW_CLIENT_SCENARIOS: Final = (
    *(
        Scenario(name, f"new-{name}")
        for name in (
            *("agent-text", "agent-ids", "agent-requests", "agent-updates", "agent-idle", "agent-unprompted"),
            *("agent-update-unknown", "agent-unknown", "permission", "permission-reject", "agent-options"),
            *("permission-cancelled", "cancellation", "agent-stop-reasons"),
        )
    ),
    Scenario("agent-version", "agent-version"),
)
"""Scenarios of clients of version 2. The first shows whether a client can be run at all."""

CLIENT_SCENARIOS: Final = (
    *(Scenario(name, name) for name in CLIENT_PLAIN),
    Scenario("agent-big", "agent-text", chunk="x" * BIG),
    Scenario("agent-split", "agent-text", piece=7),
    Scenario("agent-garbage", "agent-text", first=b"this is not JSON"),
    Scenario("agent-stderr", "agent-text", stderr=STDERR),
    Scenario("agent-lost", "agent-lost", lost=True),
)


def load_fixture(name: str) -> list[Line]:
    """Return the lines of a bundled fixture."""
    return parse_fixture((files("acp_conformance") / "fixtures" / f"{name}.jsonl").read_bytes())
