"""Judges of what a client does for its agent: permissions, files and terminals."""

from collections.abc import Iterator
from typing import Final

from acp_conformance.common_judges import METHOD_NOT_FOUND, require_response
from acp_conformance.dialogue import (
    NOTIFICATION,
    Dialogue,
    Dialogues,
    Exchange,
    Fault,
    Line,
    Verdict,
    not_shown,
)
from acp_conformance.shapes import members_fault, outcome_fault

NOTHING: Final = Dialogue()

PERMISSION: Final = "session/request_permission"

PERMISSIONS: Final = ("permission", "permission-reject", "agent-options")
"""Scenarios with a permission that the user decides."""


def judge_permission(dialogues: Dialogues) -> Verdict | None:
    """Check that permissions are answered with an outcome, and that an option was offered."""
    found = False
    for scenario in PERMISSIONS:
        dialogue = dialogues.get(scenario, NOTHING)
        for exchange in dialogue.exchanges(PERMISSION, outgoing=False):
            if (
                exchange.response is None
                and dialogue.ending == "timeout"
                and not dialogue.actions & {"allow", "reject"}
            ):
                continue
            found = True
            response = require_response(dialogue, exchange, scenario)
            if response.error is not None:
                raise Fault("a permission was answered with an error instead of an outcome", response, scenario)
            if fault := outcome_fault(response.result, exchange.request.params):
                raise Fault(fault, response, scenario)
    return None if found else not_shown("no permission was decided; see --allow")


def judge_decision(dialogues: Dialogues, *, scenario: str, kind: str) -> Verdict | None:
    """Check that an option of a kind is selected: `allow` or `reject`."""
    dialogue = dialogues.get(scenario, NOTHING)
    for exchange in dialogue.exchanges(PERMISSION, outgoing=False):
        result = exchange.response.result if exchange.response is not None else None
        if exchange.response is None or outcome_fault(result, exchange.request.params):
            continue
        chosen = exchange.response.result["outcome"].get("optionId")
        kinds = [each["kind"] for each in exchange.request.params["options"] if each["optionId"] == chosen]
        if kinds and kinds[0].startswith(kind):
            return None
        if kind in dialogue.actions:
            what = f"an option of the kind {kinds[0]}" if kinds else "the outcome cancelled"
            raise Fault(f"the user said {kind}, and the client answered with {what}", exchange.response, scenario)
    return not_shown(f"the client selected no option of that kind; see --{kind}")


def _cancels(dialogues: Dialogues) -> Iterator[tuple[str, Dialogue, Line]]:
    for scenario in ("cancellation", "permission-cancelled"):
        dialogue = dialogues.get(scenario, NOTHING)
        for line in dialogue.of(outgoing=True):
            if line.method == "session/cancel":
                yield scenario, dialogue, line


def judge_cancel(dialogues: Dialogues) -> Verdict | None:
    """Check that a cancellation is a notification that names the session."""
    found = False
    for scenario, _, line in _cancels(dialogues):
        found = True
        if line.kind != NOTIFICATION:
            raise Fault("session/cancel was sent as a request", line, scenario)
        if not isinstance(line.params.get("sessionId"), str):
            raise Fault("session/cancel names no session", line, scenario)
    return None if found else not_shown("the client cancelled no turn; see --cancel")


def judge_cancel_permission(dialogues: Dialogues) -> Verdict | None:
    """Check that permissions which are open at a cancellation are answered with `cancelled`."""
    for scenario, dialogue, cancel in _cancels(dialogues):
        after = dialogue.after(cancel)
        for exchange in dialogue.exchanges(PERMISSION, outgoing=False):
            if exchange.response is not None and exchange.response not in after:
                continue
            response = require_response(dialogue, exchange, scenario)
            outcome = response.result.get("outcome") if isinstance(response.result, dict) else None
            if outcome != {"outcome": "cancelled"}:
                raise Fault("the permission of a cancelled turn was not answered with cancelled", response, scenario)
            return None
    return not_shown("no permission was open when the client cancelled a turn; see --cancel")


def _is_client_offering(dialogue: Dialogue, method: str) -> bool:
    exchanges = dialogue.exchanges("initialize", outgoing=True)
    capabilities = exchanges[0].request.params.get("clientCapabilities") if exchanges else None
    capabilities = capabilities if isinstance(capabilities, dict) else {}
    files = capabilities.get("fs")
    named = {"fs/read_text_file": "readTextFile", "fs/write_text_file": "writeTextFile"}
    if method in named:
        return isinstance(files, dict) and files.get(named[method]) is True
    return capabilities.get("terminal") is True


def judge_refused(dialogues: Dialogues, *, scenario: str) -> Verdict | None:
    """Check that requests of a family that the client does not offer are refused with -32601."""
    dialogue = dialogues.get(scenario, NOTHING)
    found = False
    for exchange in dialogue.exchanges(outgoing=False):
        method = exchange.request.method
        # Without a terminal, the requests for one name nothing.
        if method not in ("fs/read_text_file", "fs/write_text_file", "terminal/create"):
            continue
        if not _is_client_offering(dialogue, method):
            found = True
            response = require_response(dialogue, exchange, scenario)
            if (response.error or {}).get("code") != METHOD_NOT_FOUND:
                raise Fault(f"{method} is not offered, and was not refused with -32601", response, scenario)
    return None if found else not_shown("the client offers that, or did not come to it")


def _served(dialogue: Dialogue, method: str, scenario: str) -> Iterator[tuple[Exchange, Line]]:
    """Yield the requests of a method that the client offers, with their responses. Raises `Fault` for an error."""
    for exchange in dialogue.exchanges(method, outgoing=False):
        if _is_client_offering(dialogue, method):
            response = require_response(dialogue, exchange, scenario)
            if response.error is not None:
                raise Fault(f"{method} is offered, and was answered with an error", response, scenario)
            yield exchange, response


def judge_files(dialogues: Dialogues, *, before: str) -> Verdict | None:
    """Check that files are written, and read as a whole and in part; `before` is the text of the file at first."""
    dialogue = dialogues.get("file-system", NOTHING)
    text, found = before, False
    for exchange, _ in _served(dialogue, "fs/write_text_file", "file-system"):
        text, found = exchange.request.params["content"], True
    for exchange, response in _served(dialogue, "fs/read_text_file", "file-system"):
        found = True
        first, limit = exchange.request.params.get("line", 1), exchange.request.params.get("limit")
        lines = text.splitlines(keepends=True)[first - 1 :][:limit]
        content = response.result.get("content") if isinstance(response.result, dict) else None
        # Whether the last line of a part keeps its end is open.
        if not isinstance(content, str) or (content != "".join(lines) and content + "\n" != "".join(lines)):
            raise Fault(f"the content is not {''.join(lines)!r}", response, "file-system")
    return None if found else not_shown("the client does not offer files, or did not come to that")


def judge_terminal(dialogues: Dialogues) -> Verdict | None:
    """Check that a command runs in a terminal, with its output and its end."""
    dialogue, scenario = dialogues.get("terminal", NOTHING), "terminal"
    created = list(_served(dialogue, "terminal/create", scenario))
    for _, response in created:
        if fault := members_fault(response.result, {"terminalId": str}, "the result"):
            raise Fault(fault, response, scenario)
    for _, response in _served(dialogue, "terminal/wait_for_exit", scenario):
        if not isinstance(response.result, dict) or response.result.get("exitCode") != 0:
            raise Fault("the command did not end with exit code 0", response, scenario)
    for _, response in _served(dialogue, "terminal/output", scenario):
        fault = members_fault(response.result, {"output": str}, "the result")
        if not fault and not isinstance(response.result.get("truncated"), bool):
            fault = "the result does not say whether the output is truncated"
        if not fault and "acp-gateway-check" not in response.result["output"]:
            fault = "the output is not that of the command"
        if fault:
            raise Fault(fault, response, scenario)
    for method in ("terminal/kill", "terminal/release"):
        list(_served(dialogue, method, scenario))
    return None if created else not_shown("the client does not offer terminals, or did not come to that")
