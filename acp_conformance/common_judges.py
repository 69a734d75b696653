"""Judges that the checks of agents and of clients share. `outgoing` is the side of the checked program."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from acp_conformance.dialogue import (
    NOTIFICATION,
    REQUEST,
    RESPONSE,
    Check,
    Dialogue,
    Dialogues,
    Exchange,
    Fault,
    Judge,
    Line,
    Verdict,
    not_shown,
)
from acp_conformance.shapes import is_absolute, message_fault, paths_in

UNKNOWN: Final = "acp_gateway_check/unknown"
"""A method that no program has."""

UNKNOWN_EXTENSION: Final = "_acp-gateway-check/unknown"
"""The same, in the name space of extensions."""

METHOD_NOT_FOUND: Final = -32601

WITH_IDS: Final = ("ids", "ids-unusual", "agent-ids", "agent-ids-unusual")
"""Scenarios with ids of all types."""

OF_OLDER_SESSIONS: Final = ("session/load", "session/resume", "session/fork", "session/delete")
"""Methods of clients that may name a session of an earlier dialogue."""


def each_line(dialogues: Dialogues, *, outgoing: bool) -> Iterator[tuple[str, Line]]:
    """Yield the lines of one side in all dialogues, with the names of their scenarios."""
    for scenario, dialogue in dialogues.items():
        for line in dialogue.of(outgoing=outgoing):
            yield scenario, line


def judge_each(lines: Iterable[tuple[str, Line]], fault_of: Callable[[Line], str], nothing: str) -> Verdict | None:
    """Check each line by the reason that `fault_of` returns, or empty; `nothing` says why no line was judged."""
    verdict: Verdict | None = not_shown(nothing)
    for scenario, line in lines:
        verdict = None
        if fault := fault_of(line):
            raise Fault(fault, line, scenario)
    return verdict


def judge_stream(dialogues: Dialogues, *, outgoing: bool) -> Verdict | None:
    """Check that every line of the program is a JSON object."""
    for scenario, line in each_line(dialogues, outgoing=outgoing):
        if line.value is None:
            raise Fault("this line is not a JSON object", line, scenario)
    for scenario, dialogue in dialogues.items():
        if dialogue.ending == "overflow":
            raise Fault("the program wrote more than --output-limit", scenario=scenario)
    return (
        None if any(True for _ in each_line(dialogues, outgoing=outgoing)) else not_shown("the program wrote nothing")
    )


def judge_messages(dialogues: Dialogues, *, outgoing: bool) -> Verdict | None:
    """Check that every object of the program is a JSON-RPC message."""

    def fault_of(line: Line) -> str:
        fault = message_fault(line) if line.value is not None else ""
        return fault and f"the message {fault}"

    return judge_each(each_line(dialogues, outgoing=outgoing), fault_of, "the program wrote nothing")


def judge_answers(dialogues: Dialogues, *, outgoing: bool) -> Verdict | None:
    """Check that no response of the program is a second one or one without a request, and no notification has one."""
    found = False
    for scenario, dialogue in dialogues.items():
        if scenario in WITH_IDS:
            continue  # Their judge looks for the ids.
        open_requests: list[str] = []
        for line in dialogue.lines:
            if line.kind == REQUEST and line.outgoing is not outgoing:
                open_requests.append(line.key)
            elif line.kind == RESPONSE and line.outgoing is outgoing:
                found = True
                # The response to a line that is not a message has the id null.
                if line.key in open_requests:
                    open_requests.remove(line.key)
                elif line.key != "null":
                    raise Fault("this response has no request, or is its second one", line, scenario)
    return None if found else not_shown("the program answered nothing")


def judge_paths(dialogues: Dialogues, *, outgoing: bool) -> Verdict | None:
    """Check that every path of the program is absolute."""
    found = False
    for scenario, line in each_line(dialogues, outgoing=outgoing):
        for path in paths_in(line):
            found = True
            if not is_absolute(path):
                raise Fault(f"the path {path!r} is not absolute", line, scenario)
    return None if found else not_shown("no message had a path")


def judge_sessions(dialogues: Dialogues, *, outgoing: bool) -> Verdict | None:
    """Check that messages name a session of their dialogue, once the client knows of one.

    A client can show and ask what a sub-agent sends only after its agent has told whose that is.
    """
    found = False
    where = "" if outgoing else ", nor told of by a subagent_update: a client can't know whom to ask, or show it"
    for scenario, dialogue in dialogues.items():
        results = [exchange.response for exchange in dialogue.exchanges("session/new", outgoing=True)]
        # A list: an id of the wrong type may have no hash.
        known = [each.result.get("sessionId") for each in results if each is not None and isinstance(each.result, dict)]
        for line in dialogue.of(outgoing=outgoing):
            # A client may know of older sessions.
            if known and line.method and "sessionId" in line.params and line.method not in OF_OLDER_SESSIONS:
                found = True
                if line.params["sessionId"] not in known:
                    raise Fault(f"the session {line.params['sessionId']!r} was never opened{where}", line, scenario)
                if line.update.get("sessionUpdate") == "subagent_update":
                    known.append(line.update.get("sessionId"))
    return None if found else not_shown("no message named a session")


def require_response(dialogue: Dialogue, exchange: Exchange, scenario: str) -> Line:
    """Return the response to a request of the kit. Raises `Fault` with the reason why there is none."""
    if exchange.response is not None:
        return exchange.response
    raise Fault(f"no response to {exchange.request.method}: {describe_end(dialogue)}", exchange.request, scenario)


def describe_end(dialogue: Dialogue) -> str:
    """Return how a dialogue ended, for the reason of a fault."""
    if dialogue.ending == "ended":
        code = "" if dialogue.exit_code is None else f" with exit code {dialogue.exit_code}"
        last = dialogue.stderr.strip().rpartition("\n")[2]
        return f"the program ended{code}" + (f"; stderr: {last}" if last else "")
    if dialogue.ending == "closed":
        return "the program closed the stdin of its agent"
    if dialogue.ending == "timeout":
        return "the time was over"
    return "the program wrote too much" if dialogue.ending == "overflow" else "the dialogue was over"


def judge_echoed_ids(dialogues: Dialogues, scenario: str, *, outgoing: bool, keys: tuple[str, ...]) -> Verdict | None:
    """Check that requests with ids of these keys have responses with the same ids."""
    dialogue = dialogues.get(scenario, Dialogue())
    found = False
    for exchange in dialogue.exchanges(outgoing=not outgoing):
        if exchange.request.key in keys and exchange.request.method != "initialize":
            found = True
            if exchange.response is None:
                after = dialogue.after(exchange.request)
                other = next((line for line in after if line.kind == RESPONSE and line.key not in keys), None)
                if other is None or other.outgoing is not outgoing:
                    require_response(dialogue, exchange, scenario)
                raise Fault(f"the id {exchange.request.key} was answered with another id", other, scenario)
    return None if found else not_shown("the program did not come to that")


def judge_not_found(dialogues: Dialogues, scenario: str, method: str, *, outgoing: bool) -> Verdict | None:
    """Check that an unknown request of the kit is refused with -32601."""
    dialogue = dialogues.get(scenario, Dialogue())
    exchanges = dialogue.exchanges(method, outgoing=not outgoing)
    if not exchanges:
        return not_shown("the program did not come to that")
    response = require_response(dialogue, exchanges[0], scenario)
    if response.error is None and method == UNKNOWN_EXTENSION:
        return not_shown("the program takes every extension for a known one")
    code = None if response.error is None else response.error.get("code")
    if code != METHOD_NOT_FOUND:
        what = "a result" if response.error is None else f"the error {code}"
        raise Fault(f"an unknown method was answered with {what} instead of {METHOD_NOT_FOUND}", response, scenario)
    return None


def judge_not_answered(dialogues: Dialogues, scenario: str, *, outgoing: bool) -> Verdict | None:
    """Check that unknown notifications have no response, and that the next request after them has one."""
    dialogue = dialogues.get(scenario, Dialogue())
    unknown = (UNKNOWN, UNKNOWN_EXTENSION)
    sent = [line for line in dialogue.of(outgoing=not outgoing) if line.kind == NOTIFICATION and line.method in unknown]
    if not sent:
        return not_shown("the program did not come to that")
    after = dialogue.after(sent[0])
    for line in after:
        if line.outgoing is outgoing and line.kind == RESPONSE and line.key == "null":
            raise Fault("a notification was answered", line, scenario)
    return judge_alive(dialogue, sent[-1], scenario, outgoing=outgoing)


def judge_alive(dialogue: Dialogue, line: Line, scenario: str, *, outgoing: bool) -> Verdict | None:
    """Check that the program answers the next request of the kit after a line of the kit."""
    after = set(map(id, dialogue.after(line)))
    for exchange in dialogue.exchanges(outgoing=not outgoing):
        if id(exchange.request) in after:
            if exchange.response is None:
                why = f"the request after this has no response: {describe_end(dialogue)}"
                raise Fault(why, line, scenario)
            return None
    if dialogue.ending == "ended":
        raise Fault(f"after this {describe_end(dialogue)}", line, scenario)
    return not_shown("no request came after it")


def common_judges(*, outgoing: bool, requests: str, notifications: str) -> dict[str, Judge]:
    """Return the judges of the checks that both suites have, by name.

    Args:
        outgoing: the side of the checked program.
        requests: the scenario with unknown requests of the kit.
        notifications: the scenario with its unknown notifications.
    """
    unknown = partial(judge_not_found, scenario=requests, outgoing=outgoing)
    return {
        "messages": partial(judge_messages, outgoing=outgoing),
        "responses": partial(judge_answers, outgoing=outgoing),
        "session-known": partial(judge_sessions, outgoing=outgoing),
        "paths": partial(judge_paths, outgoing=outgoing),
        "unknown-method": partial(unknown, method=UNKNOWN),
        "unknown-extension": partial(unknown, method=UNKNOWN_EXTENSION),
        "unknown-notification": partial(judge_not_answered, scenario=notifications, outgoing=outgoing),
    }


def table_of_checks(rules: str, judges: Mapping[str, Judge]) -> tuple[Check, ...]:
    """Return the checks of a table, in its order: a line for each with name, level, section and rule.

    Raises `ValueError` if the table and the judges do not have the same names.
    """
    rows = [[cell.strip() for cell in line.split("|")] for line in rules.strip().splitlines()]
    if sorted(row[0] for row in rows) != sorted(judges):
        raise ValueError("the table and its judges have different names")
    return tuple(
        Check(name, "SHOULD" if level == "SHOULD" else "MUST", section, title, judges[name])
        for name, level, section, title in rows
    )
