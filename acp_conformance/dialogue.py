"""Recorded dialogues of a client and an agent, which the checks judge.

Directions are as seen by the client, like those of fixtures: an outgoing message goes to the agent.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

REQUEST: Final = "request"
NOTIFICATION: Final = "notification"
RESPONSE: Final = "response"

Ending = Literal["finished", "timeout", "ended", "closed", "overflow"]
"""Ends of a dialogue: with the end of its script, at the timeout, with the program, with the agent's stdin, or because
of too much output."""


FOR_STDERR: Final = "a reader of stderr"
"""Name of what a dialogue is waiting for while the agent can't write to stderr."""


def id_key(value: object) -> str:
    """Return the key of an id: `1`, `"1"`, `1.0` and `null` are four different ids."""
    return json.dumps(value)


def parse_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, or None if the line is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Line:
    """One line of a dialogue."""

    outgoing: bool
    text: bytes
    seconds: float = 0.0
    """Seconds since the dialogue began."""

    @cached_property
    def value(self) -> dict[str, Any] | None:
        """The object of the line, None if the line is not one."""
        return parse_object(self.text)

    @cached_property
    def kind(self) -> str:
        """`REQUEST`, `NOTIFICATION` or `RESPONSE`; empty for a line that is not a message."""
        value = self.value
        if value is None:
            return ""
        if "method" in value:
            if not isinstance(value["method"], str):
                return ""
            return REQUEST if "id" in value else NOTIFICATION
        return RESPONSE if "id" in value and ("result" in value or "error" in value) else ""

    @property
    def method(self) -> str:
        """The method, empty for a response or a line that is not a message."""
        return str(self.value["method"]) if self.value is not None and self.kind in (REQUEST, NOTIFICATION) else ""

    @property
    def key(self) -> str:
        """The key of the id; the line must be a request or a response."""
        return id_key((self.value or {}).get("id"))

    @property
    def params(self) -> dict[str, Any]:
        """The params, empty where they are not an object."""
        params = (self.value or {}).get("params")
        return params if isinstance(params, dict) else {}

    @property
    def result(self) -> Any:
        """The result of a response, None where there is none."""
        return (self.value or {}).get("result")

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of a response, None where there is none."""
        error = (self.value or {}).get("error")
        return error if isinstance(error, dict) else None

    @property
    def update(self) -> dict[str, Any]:
        """The update of a `session/update`, else empty."""
        update = self.params.get("update") if self.method == "session/update" else None
        return update if isinstance(update, dict) else {}


@dataclass(frozen=True)
class Exchange:
    """A request and its first response, None where none came."""

    request: Line
    response: Line | None


@dataclass(frozen=True)
class Dialogue:
    """The lines of both sides, in the order in which the kit wrote and read them, and the end of the program."""

    lines: tuple[Line, ...] = ()
    ending: Ending = "finished"
    waiting_for: str = ""
    """The method or event that the kit was waiting for at a timeout or end."""
    exited: bool = True
    """False if the program did not end by itself after its input had ended."""
    exit_code: int | None = None
    """Exit code as of a shell; negative for a signal; None if it was not observed."""
    stderr: str = ""
    """The last characters that the program wrote to stderr."""
    released: bool = True
    """False if the agent's stdin was still open after a client had ended."""
    actions: frozenset[str] = frozenset()
    """Actions of the kit as the user of a client: `prompt`, `allow`, `reject`, `cancel`."""

    def of(self, *, outgoing: bool) -> Iterator[Line]:
        """Yield the lines of one side."""
        return (line for line in self.lines if line.outgoing is outgoing)

    def exchanges(self, method: str | None = None, *, outgoing: bool) -> list[Exchange]:
        """Return the requests of one side with their responses; `method` selects some."""
        waiting: dict[str, int] = {}
        found: list[Exchange] = []
        for line in self.lines:
            if line.kind == REQUEST and line.outgoing is outgoing:
                waiting[line.key] = len(found)
                found.append(Exchange(line, None))
            elif line.kind == RESPONSE and line.outgoing is not outgoing and line.key in waiting:
                at = waiting.pop(line.key)
                found[at] = Exchange(found[at].request, line)
        return [exchange for exchange in found if method in (None, exchange.request.method)]

    def after(self, line: Line) -> tuple[Line, ...]:
        """Return the lines after one."""
        at = next(index for index, other in enumerate(self.lines) if other is line)
        return self.lines[at + 1 :]


Dialogues = Mapping[str, Dialogue]
"""Dialogues by the name of their scenario; a scenario that was not run is absent."""

Outcome = Literal["passed", "failed", "not shown"]


@dataclass(frozen=True)
class Verdict:
    """The result of a check."""

    outcome: Outcome
    reason: str = ""
    message: bytes = b""
    """The message that shows it, with the text of the checked program."""
    scenario: str = ""


PASSED: Final = Verdict("passed")

Judge = Callable[[Dialogues], Verdict | None]
"""Returns None if a rule is kept, or why it was not shown. Raises `Fault` with what breaks it."""


def not_shown(reason: str) -> Verdict:
    """Return the verdict of a check that the program gave no occasion for."""
    return Verdict("not shown", reason)


class Fault(Exception):
    """A message that breaks a rule; ends the judge of a check."""

    def __init__(self, reason: str, line: Line | None = None, scenario: str = "") -> None:
        super().__init__(reason)
        self.verdict = Verdict("failed", reason, line.text if line is not None else b"", scenario)


@dataclass(frozen=True)
class Check:
    """A rule of the protocol and its judge."""

    name: str
    level: Literal["MUST", "SHOULD"]
    section: str
    """The section of the ACP specification, or of JSON-RPC 2.0."""
    title: str
    """The rule, as a sentence."""
    judge: Judge = field(repr=False)

    def run(self, dialogues: Dialogues) -> Verdict:
        """Judge dialogues. A fault of the program's output never raises."""
        try:
            return self.judge(dialogues) or PASSED
        except Fault as fault:
            return fault.verdict
