"""The checks of agents: a table of rules, and the judges that only agents have."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from acp_conformance.client_script import IDS, UNUSUAL_IDS
from acp_conformance.common_judges import (
    common_judges,
    describe_end,
    each_line,
    judge_each,
    judge_echoed_ids,
    judge_stream,
    require_response,
    table_of_checks,
)
from acp_conformance.dialogue import Dialogue, Dialogues, Exchange, Fault, Judge, Line, Verdict, not_shown
from acp_conformance.shapes import (
    STOP_REASONS,
    is_known_update,
    members_fault,
    permission_fault,
    update_fault,
)

NOT_COME: Final = "the agent did not come to that"
NOT_ASKED: Final = "the agent asked for no permission; --prompt may make it ask"

LATE: Final = 2.0
"""Seconds after a cancellation from which on a turn that ends as usual has not noticed it."""


def result_of(dialogues: Dialogues, scenario: str, method: str) -> Line | None:
    """Return the result of the first request of a method, None if it was not sent. Raises `Fault` for an error."""
    dialogue = dialogues.get(scenario, Dialogue())
    exchanges = dialogue.exchanges(method, outgoing=True)
    return _successful(dialogue, exchanges[0], scenario) if exchanges else None


def _successful(dialogue: Dialogue, exchange: Exchange, scenario: str) -> Line:
    response = require_response(dialogue, exchange, scenario)
    if response.error is not None:
        raise Fault(f"{exchange.request.method} was answered with an error", response, scenario)
    return response


def judge_version(dialogues: Dialogues, *, scenario: str, asked: int) -> Verdict | None:
    """Check the answer to a protocol version; 1 is the only one that has to be served."""
    response = result_of(dialogues, scenario, "initialize")
    if response is None:
        return not_shown(NOT_COME)
    version = response.result.get("protocolVersion") if isinstance(response.result, dict) else None
    if type(version) is not int or not 0 <= version <= 65535:
        raise Fault("protocolVersion is not an integer from 0 to 65535", response, scenario)
    if asked == 1 and version != 1:
        raise Fault(f"version 1 was asked for and answered with {version}", response, scenario)
    if asked == 65535 == version:
        raise Fault("the version 65535, which no agent has, was agreed to", response, scenario)
    return None


def judge_initialize(dialogues: Dialogues) -> Verdict | None:
    response = result_of(dialogues, "initialize", "initialize")
    if response is None:
        return not_shown(NOT_COME)
    if not isinstance(response.result, dict):
        raise Fault("the result is not an object", response, "initialize")
    for name, kind in (("agentCapabilities", dict), ("authMethods", list), ("agentInfo", dict)):
        if response.result.get(name) is not None and not isinstance(response.result[name], kind):
            raise Fault(f"{name} has the wrong type", response, "initialize")
    for method in response.result.get("authMethods") or ():
        if fault := members_fault(method, {"id": str, "name": str}, "an authentication method"):
            raise Fault(fault, response, "initialize")
    return None


def judge_session_new(dialogues: Dialogues, scenario: str = "session-new") -> Verdict | None:
    dialogue = dialogues.get(scenario, Dialogue())
    seen: set[str] = set()
    for exchange in dialogue.exchanges("session/new", outgoing=True):
        response = _successful(dialogue, exchange, scenario)
        session = response.result.get("sessionId") if isinstance(response.result, dict) else None
        if not isinstance(session, str) or not session:
            raise Fault("the result has no sessionId", response, scenario)
        if session in seen:
            raise Fault("two sessions have the same id", response, scenario)
        seen.add(session)
    return None if seen else not_shown(NOT_COME)


def judge_unknown_session(dialogues: Dialogues) -> Verdict | None:
    dialogue = dialogues.get("unknown-session", Dialogue())
    for exchange in dialogue.exchanges("session/prompt", outgoing=True):
        response = require_response(dialogue, exchange, "unknown-session")
        if response.error is None:
            raise Fault(
                "a prompt in a session that does not exist was answered with a result", response, "unknown-session"
            )
        return None
    return not_shown(NOT_COME)


def judge_prompts(dialogues: Dialogues, *, scenario: str) -> Verdict | None:
    """Check that each prompt of a scenario was answered with a result."""
    dialogue = dialogues.get(scenario, Dialogue())
    exchanges = dialogue.exchanges("session/prompt", outgoing=True)
    for exchange in exchanges:
        _successful(dialogue, exchange, scenario)
    return None if exchanges else not_shown(NOT_COME)


def judge_blocks(dialogues: Dialogues, *, kind: str, wanted: Callable[[str], bool]) -> Verdict | None:
    """Check the prompts that have a content block of a wanted type, and else only text; `kind` names them."""
    dialogue = dialogues.get("blocks", Dialogue())
    found = False
    for exchange in dialogue.exchanges("session/prompt", outgoing=True):
        kinds = [block["type"] for block in exchange.request.params["prompt"]]
        if any(map(wanted, kinds)) and all(wanted(each) or each == "text" for each in kinds):
            found = True
            response = require_response(dialogue, exchange, "blocks")
            if response.error is not None:
                raise Fault(f"a prompt with {kind} was refused", response, "blocks")
    return None if found else not_shown(f"the agent does not offer {kind}, or did not come to that")


def judge_stop_reasons(dialogues: Dialogues) -> Verdict | None:
    found = False
    for scenario, exchange in _prompts(dialogues):
        if exchange.response is not None and exchange.response.error is None:
            found = True
            result = exchange.response.result
            reason = result.get("stopReason") if isinstance(result, dict) else None
            if reason not in STOP_REASONS:
                raise Fault(f"the protocol has no stop reason {reason!r}", exchange.response, scenario)
    return None if found else not_shown("no prompt had a result")


def _prompts(dialogues: Dialogues) -> Iterator[tuple[str, Exchange]]:
    for scenario, dialogue in dialogues.items():
        for exchange in dialogue.exchanges("session/prompt", outgoing=True):
            yield scenario, exchange


def _messages(dialogues: Dialogues, method: str) -> Iterator[tuple[str, Line]]:
    return (each for each in each_line(dialogues, outgoing=False) if each[1].method == method)


def judge_updates(dialogues: Dialogues) -> Verdict | None:
    def fault_of(line: Line) -> str:
        named = isinstance(line.params.get("sessionId"), str)
        return update_fault(line.update) if named else "the update has no sessionId"

    return judge_each(_messages(dialogues, "session/update"), fault_of, "the agent sent no updates")


def judge_update_kinds(dialogues: Dialogues) -> Verdict | None:
    def fault_of(line: Line) -> str:
        kind = line.update.get("sessionUpdate")
        return "" if is_known_update(line.update) else f"the kind {kind!r} is not specified"

    updates = (each for each in _messages(dialogues, "session/update") if each[1].update)
    return judge_each(updates, fault_of, "the agent sent no updates")


def judge_permission_request(dialogues: Dialogues) -> Verdict | None:
    def fault_of(line: Line) -> str:
        asked = line.kind == "request"
        return permission_fault(line.params) if asked else "a permission was asked for by a notification"

    return judge_each(_messages(dialogues, "session/request_permission"), fault_of, NOT_ASKED)


def judge_decided(dialogues: Dialogues, *, scenario: str) -> Verdict | None:
    """Check that a turn goes on to its end after its permission was decided."""
    dialogue = dialogues.get(scenario, Dialogue())
    if not dialogue.exchanges("session/request_permission", outgoing=False):
        return not_shown(NOT_ASKED)
    return judge_prompts(dialogues, scenario=scenario)


def judge_rejected(dialogues: Dialogues) -> Verdict | None:
    dialogue = dialogues.get("permission-reject", Dialogue())
    for exchange in dialogue.exchanges("session/request_permission", outgoing=False):
        call = exchange.request.params.get("toolCall")
        if exchange.response is None or not isinstance(call, dict):
            continue
        for line in dialogue.after(exchange.response):
            if line.update.get("toolCallId") == call.get("toolCallId") and line.update.get("status") == "completed":
                raise Fault("the tool call was completed after the user had rejected it", line, "permission-reject")
        return None
    return not_shown(NOT_ASKED)


def judge_cancelled(dialogues: Dialogues, *, scenario: str) -> Verdict | None:
    """Check that a cancelled turn ends with the stop reason `cancelled`."""
    dialogue = dialogues.get(scenario, Dialogue())
    cancel = next((line for line in dialogue.of(outgoing=True) if line.method == "session/cancel"), None)
    exchanges = dialogue.exchanges("session/prompt", outgoing=True)
    after = dialogue.after(cancel) if cancel is not None else ()
    if cancel is None or not exchanges or (exchanges[0].response and exchanges[0].response not in after):
        return not_shown("the turn was over before it was cancelled")
    requests = dialogue.exchanges("session/request_permission", outgoing=False)
    asked = any(request.response in after for request in requests)
    if scenario == "permission-cancelled" and not asked:
        return not_shown(NOT_ASKED)
    response = require_response(dialogue, exchanges[0], scenario)
    if response.error is not None:
        raise Fault("a cancelled turn was answered with an error", response, scenario)
    reason = response.result.get("stopReason") if isinstance(response.result, dict) else None
    if reason == "cancelled":
        return None
    # A turn may end by itself while the cancellation is on its way, unless it waits for a permission.
    if asked or response.seconds - cancel.seconds > LATE:
        raise Fault(f"a cancelled turn has the stop reason {reason!r}", response, scenario)
    return not_shown("the turn ended by itself")


def judge_late_updates(dialogues: Dialogues) -> Verdict | None:
    found = False
    for scenario in ("cancellation", "permission-cancelled"):
        dialogue = dialogues.get(scenario, Dialogue())
        exchanges = dialogue.exchanges("session/prompt", outgoing=True)
        response = exchanges[0].response if exchanges else None
        if (
            response is None
            or not isinstance(response.result, dict)
            or response.result.get("stopReason") != "cancelled"
        ):
            continue
        found = True
        for line in dialogue.after(response):
            if line.method == "session/prompt":
                break
            if line.update.get("sessionUpdate") in ("agent_message_chunk", "tool_call", "tool_call_update"):
                raise Fault("an update of a cancelled turn came after its response", line, scenario)
    return None if found else not_shown("no turn was cancelled")


def judge_not_offered(dialogues: Dialogues, *, family: str, offered: str) -> Verdict | None:
    """Check that no request of a family was sent to a client that does not offer it."""
    for scenario, line in each_line(dialogues, outgoing=False):
        if line.method.startswith(family) and scenario != offered:
            raise Fault(f"{line.method} was sent to a client that does not offer it", line, scenario)
    return None if any(dialogue.lines for dialogue in dialogues.values()) else not_shown("nothing was run")


def judge_files(dialogues: Dialogues) -> Verdict | None:
    wanted: dict[str, dict[str, type]] = {
        "fs/read_text_file": {"sessionId": str, "path": str},
        "fs/write_text_file": {"sessionId": str, "path": str, "content": str},
    }
    found = False
    for line in dialogues.get("file-system", Dialogue()).of(outgoing=False):
        if line.method in wanted:
            found = True
            if fault := members_fault(line.params, wanted[line.method], "the request"):
                raise Fault(fault, line, "file-system")
            first = line.params.get("line")
            if first is not None and (type(first) is not int or first < 1):
                raise Fault("the line is not a number from 1 on", line, "file-system")
    return None if found else not_shown("the agent used no file of the client")


def judge_released(dialogues: Dialogues) -> Verdict | None:
    dialogue = dialogues.get("terminal", Dialogue())
    created = dialogue.exchanges("terminal/create", outgoing=False)
    released = dialogue.exchanges("terminal/release", outgoing=False)
    if len(released) < len(created):
        raise Fault("a terminal was created and never released", created[-1].request, "terminal")
    return None if created else not_shown("the agent used no terminal of the client")


def judge_modes(dialogues: Dialogues) -> Verdict | None:
    response = result_of(dialogues, "modes", "session/new")
    modes = response.result.get("modes") if response is not None and isinstance(response.result, dict) else None
    if modes is None:
        return not_shown("the agent has no modes")
    if fault := members_fault(modes, {"currentModeId": str, "availableModes": list}, "modes"):
        raise Fault(fault, response, "modes")
    if modes["currentModeId"] not in [mode.get("id") for mode in modes["availableModes"] if isinstance(mode, dict)]:
        raise Fault("the current mode is not among the available ones", response, "modes")
    result_of(dialogues, "modes", "session/set_mode")
    return None


def judge_load(dialogues: Dialogues) -> Verdict | None:
    response = result_of(dialogues, "load", "session/load")
    return not_shown("the agent does not offer loadSession") if response is None else None


def judge_replay(dialogues: Dialogues) -> Verdict | None:
    """Check that a load tells, before its response, the prompt, each text and each tool call of the turn before it."""
    dialogue = dialogues.get("load", Dialogue())
    response = result_of(dialogues, "load", "session/load")
    turns = dialogue.exchanges("session/prompt", outgoing=True)
    if response is None or not turns or turns[0].response is None:
        return not_shown("the agent does not offer loadSession")
    end = dialogue.lines.index(turns[0].response)
    said, told = _told(dialogue.lines[:end]), _told(dialogue.lines[end : dialogue.lines.index(response)])
    if "user_message_chunk" not in told:
        raise Fault("the replay has no prompt", response, "load")
    for kind, text in said.items():
        if kind != "user_message_chunk" and text not in told.get(kind, ""):
            raise Fault(f"the replay lacks a part of what was said: {kind}", response, "load")
    return None


def _told(lines: Sequence[Line]) -> dict[str, str]:
    """Return the texts of each kind of chunk without white space, and the ids of tool calls, in updates."""
    told: dict[str, str] = {}
    for line in lines:
        update = line.params.get("update") if line.method == "session/update" else None
        kind = update.get("sessionUpdate") if isinstance(update, dict) else None
        if isinstance(update, dict) and kind in ("user_message_chunk", "agent_message_chunk", "tool_call"):
            content = update.get("content")
            text = (
                update.get("toolCallId") if kind == "tool_call" else isinstance(content, dict) and content.get("text")
            )
            told[kind] = told.get(kind, "") + "".join(str(text or "").split())
    return told


def judge_lasting_ids(dialogues: Dialogues) -> Verdict | None:
    """Check that no two processes give the same id to a session: a client may have the earlier one still."""
    seen: dict[str, str] = {}
    for scenario, dialogue in dialogues.items():
        for exchange in dialogue.exchanges("session/new", outgoing=True):
            result = exchange.response.result if exchange.response is not None else None
            session = result.get("sessionId") if isinstance(result, dict) else None
            if isinstance(session, str) and seen.setdefault(session, scenario) != scenario:
                raise Fault(f"two processes gave the id {session!r:.80} to a session", exchange.response, scenario)
    return None if len({*seen.values()}) > 1 else not_shown(NOT_COME)


def judge_sessions_at_once(dialogues: Dialogues, scenario: str = "sessions-at-once") -> Verdict | None:
    """Check that the turn of one session outlives the opening and the prompt of another one."""
    dialogue = dialogues.get(scenario, Dialogue())
    openings = dialogue.exchanges("session/new", outgoing=True)
    turns = dialogue.exchanges("session/prompt", outgoing=True)
    if len(openings) < 2:
        return not_shown(NOT_COME)
    opened = openings[1].response or openings[1].request
    if turns[0].response is not None and turns[0].response not in dialogue.after(opened):
        return not_shown("the turn was over before another session was open; --prompt may make it longer")
    for exchange in (openings[1], *reversed(turns)):
        response = _successful(dialogue, exchange, scenario)
    if isinstance(response.result, dict) and response.result.get("stopReason") == "cancelled":
        raise Fault("the turn was cancelled by the session that was opened beside it", response, scenario)
    return None


def judge_exit(dialogues: Dialogues) -> Verdict | None:
    for scenario, dialogue in dialogues.items():
        if not dialogue.exited:
            raise Fault("the agent went on after its stdin had ended", scenario=scenario)
    return None


def judge_stays(dialogues: Dialogues) -> Verdict | None:
    for scenario, dialogue in dialogues.items():
        if dialogue.ending == "ended":
            last = next((line for line in reversed(dialogue.lines) if line.outgoing), None)
            raise Fault(f"{describe_end(dialogue)}, while its stdin was open", last, scenario)
    return None


def judge_garbage(dialogues: Dialogues) -> Verdict | None:
    """Check that the agent answers `initialize` after a line that is not JSON."""
    return judge_version(dialogues, scenario="garbage", asked=0)


_RULES: Final = """
stdout | MUST | Transports: stdio | stdout has nothing but messages
messages | MUST | JSON-RPC 2.0: 4, 5 | messages are JSON-RPC 2.0
responses | MUST | JSON-RPC 2.0: 5 | each request has one response
ids | MUST | JSON-RPC 2.0: 5 | strings and integers are ids, and come back as they are
ids-unusual | SHOULD | JSON-RPC 2.0: 5 | null and large integers are ids as well
version | MUST | Initialization: Version Negotiation | version 1 is agreed to
version-unsupported | MUST | Initialization: Version Negotiation | an unknown version is answered with another
version-lower | MUST | Initialization: Version Negotiation | a lower version is answered with a result
initialize | MUST | Initialization | the result has the specified form
session-new | MUST | Session Setup: Creating a Session | each session has its own id
session-known | MUST | Session Setup: Session ID | messages name sessions that were opened, or told of as sub-agents
session-unknown | SHOULD | Session Setup: Session ID | prompts in unknown sessions fail
sessions-at-once | SHOULD | Architecture: Setup | a turn goes on while another session is at work
session-load | MUST | Session Setup: Loading Sessions | a session is loaded where that is offered
session-replay | SHOULD | Session Setup: Loading Sessions | what was said is replayed before the response
session-lasting | SHOULD | Session Setup: Session ID | a later process gives no id again
modes | MUST | Session Modes | an available mode can be set
prompt | MUST | Prompt Turn | a prompt has a result
blocks-baseline | MUST | Content | text and links to resources are accepted
blocks-image | MUST | Initialization: Prompt Capabilities | images are accepted where offered
blocks-audio | MUST | Initialization: Prompt Capabilities | audio is accepted where offered
blocks-resource | MUST | Initialization: Prompt Capabilities | resources are accepted where offered
updates | MUST | Prompt Turn: Agent Reports Output | updates have the specified form
update-kinds | SHOULD | Schema: SessionUpdate | updates are of specified kinds
stop-reason | MUST | Prompt Turn: Stop Reasons | a turn ends with a specified reason
permission-request | MUST | Tool Calls: Requesting Permission | requests have the specified form
permission-allow | MUST | Tool Calls: Requesting Permission | the turn goes on after it was allowed
permission-reject | MUST | Tool Calls: Requesting Permission | the turn goes on after it was rejected
permission-obeyed | SHOULD | Tool Calls: Requesting Permission | a rejected call is not completed
cancel | MUST | Prompt Turn: Cancellation | a cancelled turn ends as cancelled
cancel-permission | MUST | Prompt Turn: Cancellation | so does one that waits for a permission
cancel-updates | MUST | Prompt Turn: Cancellation | no updates after its response
fs-offered | MUST | File System: Checking Support | files are used only where offered
fs | MUST | File System | requests have the specified form
terminal-offered | MUST | Terminals: Checking Support | terminals are used only where offered
terminal-released | MUST | Terminals: Releasing Terminals | each terminal is released
paths | MUST | Overview: Argument Requirements | paths are absolute
unknown-method | MUST | JSON-RPC 2.0: 5.1 | unknown methods are answered with -32601
unknown-extension | MUST | Extensibility: Custom Requests | so are unknown extensions
unknown-notification | MUST | Extensibility: Custom Notifications | unknown notifications are ignored
meta | MUST | Extensibility: The _meta Field | _meta is accepted anywhere
big-message | MUST | Transports: stdio | a prompt of 2 MiB is read
split-message | MUST | Transports: stdio | messages in pieces are read
bad-line | SHOULD | JSON-RPC 2.0: 5.1 | the agent goes on after a line that is not JSON
stays | MUST | Transports: stdio | the agent runs until its stdin ends
exit | SHOULD | Transports: stdio | the agent ends when its stdin ends
"""

_JUDGES: Final[dict[str, Judge]] = {
    **common_judges(outgoing=False, requests="extensions", notifications="extensions"),
    "stdout": partial(judge_stream, outgoing=False),
    "ids": partial(judge_echoed_ids, scenario="ids", keys=IDS, outgoing=False),
    "ids-unusual": partial(judge_echoed_ids, scenario="ids-unusual", keys=UNUSUAL_IDS, outgoing=False),
    "version": partial(judge_version, scenario="initialize", asked=1),
    "version-unsupported": partial(judge_version, scenario="version-unsupported", asked=65535),
    "version-lower": partial(judge_version, scenario="version-lower", asked=0),
    "initialize": judge_initialize,
    "session-new": judge_session_new,
    "session-unknown": judge_unknown_session,
    "sessions-at-once": judge_sessions_at_once,
    "session-load": judge_load,
    "session-replay": judge_replay,
    "session-lasting": judge_lasting_ids,
    "modes": judge_modes,
    "prompt": partial(judge_prompts, scenario="prompt-updates"),
    "blocks-baseline": partial(
        judge_blocks, kind="text or resource_link", wanted=lambda kind: kind in ("text", "resource_link")
    ),
    "blocks-image": partial(judge_blocks, kind="image", wanted=lambda kind: kind == "image"),
    "blocks-audio": partial(judge_blocks, kind="audio", wanted=lambda kind: kind == "audio"),
    "blocks-resource": partial(judge_blocks, kind="embeddedContext", wanted=lambda kind: kind == "resource"),
    "updates": judge_updates,
    "update-kinds": judge_update_kinds,
    "stop-reason": judge_stop_reasons,
    "permission-request": judge_permission_request,
    "permission-allow": partial(judge_decided, scenario="permission"),
    "permission-reject": partial(judge_decided, scenario="permission-reject"),
    "permission-obeyed": judge_rejected,
    "cancel": partial(judge_cancelled, scenario="cancellation"),
    "cancel-permission": partial(judge_cancelled, scenario="permission-cancelled"),
    "cancel-updates": judge_late_updates,
    "fs-offered": partial(judge_not_offered, family="fs/", offered="file-system"),
    "fs": judge_files,
    "terminal-offered": partial(judge_not_offered, family="terminal/", offered="terminal"),
    "terminal-released": judge_released,
    "meta": partial(judge_prompts, scenario="extensions"),
    "big-message": partial(judge_prompts, scenario="big"),
    "split-message": partial(judge_prompts, scenario="split"),
    "bad-line": judge_garbage,
    "stays": judge_stays,
    "exit": judge_exit,
}

CHECKS: Final = table_of_checks(_RULES, _JUDGES)
"""All checks of agents, in the order of the report."""
