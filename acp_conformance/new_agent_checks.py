"""The checks of agents of version 2: a table of rules, and the judges that only they have."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from acp_conformance.agent_checks import (
    LATE,
    NOT_ASKED,
    NOT_COME,
    judge_exit,
    judge_prompts,
    judge_session_new,
    judge_stays,
    result_of,
)
from acp_conformance.client_script import IDS
from acp_conformance.common_judges import (
    common_judges,
    describe_end,
    each_line,
    judge_each,
    judge_echoed_ids,
    judge_stream,
    table_of_checks,
)
from acp_conformance.dialogue import REQUEST, Dialogue, Dialogues, Exchange, Fault, Judge, Line, Verdict, not_shown
from acp_conformance.new_shapes import info_fault, new_permission_fault, new_update_fault

NOTHING: Final = Dialogue()

IN_RESPONSE: Final = ("user_message", "user_message_chunk")
"""Updates that say where a prompt is in the history."""


def judge_version(dialogues: Dialogues, *, scenario: str) -> Verdict | None:
    """Check that 2 is the answer, also to a version that no agent has: an agent of version 2 has no other."""
    response = result_of(dialogues, scenario, "initialize")
    if response is None:
        return not_shown(NOT_COME)
    version = response.result.get("protocolVersion") if isinstance(response.result, dict) else None
    if type(version) is not int or not 0 <= version <= 65535:
        raise Fault("protocolVersion is not an integer from 0 to 65535", response, scenario)
    if scenario == "initialize" and version != 2:
        raise Fault(f"version 2 was asked for and answered with {version}", response, scenario)
    if version == 65535:
        raise Fault("the version 65535, which no agent has, was agreed to", response, scenario)
    return None


def judge_initialize(dialogues: Dialogues) -> Verdict | None:
    """Check the members of the result of `initialize`."""
    response = result_of(dialogues, "initialize", "initialize")
    if response is None:
        return not_shown(NOT_COME)
    if fault := info_fault(response.result):
        raise Fault(fault, response, "initialize")
    return None


def turns(dialogue: Dialogue) -> Iterator[tuple[Exchange, list[Line]]]:
    """Yield each prompt of a dialogue that was accepted, with the agent's updates up to the next one."""
    exchanges = dialogue.exchanges("session/prompt", outgoing=True)
    for exchange in exchanges:
        if exchange.response is None or exchange.response.error is not None:
            continue
        told = []
        for line in dialogue.after(exchange.request):
            if line.outgoing and line.kind == REQUEST:
                break
            if line.update and line.params.get("sessionId") == exchange.request.params["sessionId"]:
                told.append(line)
        yield exchange, told


def is_idle(line: Line) -> bool:
    """Return True for an update that ends a turn."""
    return line.update.get("sessionUpdate") == "state_update" and line.update.get("state") == "idle"


def judge_accepted(dialogues: Dialogues) -> Verdict | None:
    """Check that a prompt is answered before its turn is over, and not with a stop reason."""
    verdict = judge_prompts(dialogues, scenario="turn")
    dialogue = dialogues.get("turn", NOTHING)
    for exchange, told in turns(dialogue):
        assert exchange.response is not None
        if not isinstance(exchange.response.result, dict):
            raise Fault("the result is not an object", exchange.response, "turn")
        if "stopReason" in exchange.response.result:
            raise Fault("the stop reason is in the response, as in version 1", exchange.response, "turn")
        ended = next(filter(is_idle, told), None)
        if ended is not None and exchange.response in dialogue.after(ended):
            raise Fault("the prompt was answered after its turn was over", exchange.response, "turn")
    return verdict


def judge_user_message(dialogues: Dialogues) -> Verdict | None:
    """Check that the agent tells where a prompt is in the history, and under one id."""
    seen: set[str] = set()
    for exchange, told in turns(dialogues.get("turn", NOTHING)):
        assert exchange.response is not None
        told = [line for line in told if line.update.get("sessionUpdate") in IN_RESPONSE]
        if not told:
            raise Fault("no user_message with that prompt was sent", exchange.response, "turn")
        given = told[0].update.get("messageId")
        if not isinstance(given, str):
            raise Fault("the user_message has no messageId", told[0], "turn")
        if given in seen:
            raise Fault(f"the messageId {given!r} is that of an earlier prompt", told[0], "turn")
        named = exchange.response.result.get("messageId") if isinstance(exchange.response.result, dict) else None
        if named not in (None, given):
            raise Fault(f"the response names the message {named!r}, the update {given!r}", told[0], "turn")
        seen.add(given)
    return None if seen else not_shown(NOT_COME)


def judge_states(dialogues: Dialogues) -> Verdict | None:
    """Check that a turn begins with `running` and ends with `idle` and a stop reason."""
    verdict: Verdict | None = not_shown(NOT_COME)
    dialogue = dialogues.get("turn", NOTHING)
    for exchange, told in turns(dialogue):
        verdict = None
        states = [line for line in told if line.update.get("sessionUpdate") == "state_update"]
        if not any(map(is_idle, states)):
            raise Fault(f"the turn has no end: no idle came, and {describe_end(dialogue)}", exchange.request, "turn")
        if states[0].update.get("state") != "running":
            raise Fault("the turn does not begin with the state running", states[0], "turn")
        ended = next(filter(is_idle, states))
        if not isinstance(ended.update.get("stopReason"), str):
            raise Fault("the end of the turn has no stopReason", ended, "turn")
    return verdict


def judge_replay(dialogues: Dialogues) -> Verdict | None:
    """Check that the messages of a session come again before the response, with their ids."""
    if result_of(dialogues, "turn", "session/resume") is None:
        return not_shown(NOT_COME)
    dialogue = dialogues["turn"]
    exchange = dialogue.exchanges("session/resume", outgoing=True)[0]
    assert exchange.response is not None
    late = dialogue.after(exchange.response)
    replayed = [line for line in dialogue.after(exchange.request) if line.update and line not in late]
    ids = {str(line.update.get("messageId")) for line in replayed}
    for _, told in turns(dialogue):
        for line in told:
            kind, named = str(line.update.get("sessionUpdate")), line.update.get("messageId")
            if kind.startswith(("user_message", "agent_message")) and str(named) not in ids:
                raise Fault(f"the replay lacks the message {named!r}", line, "turn")
    return None


def judge_updates(dialogues: Dialogues) -> Verdict | None:
    """Check the members that each kind of update requires; unknown kinds have none."""
    updates = (each for each in each_line(dialogues, outgoing=False) if each[1].method == "session/update")
    return judge_each(updates, lambda line: new_update_fault(line.params), "the agent sent no updates")


def judge_permission_request(dialogues: Dialogues) -> Verdict | None:
    """Check the members of requests of a permission."""
    asked = (each for each in each_line(dialogues, outgoing=False) if each[1].method == "session/request_permission")
    return judge_each(asked, lambda line: new_permission_fault(line.params), NOT_ASKED)


def judge_decided(dialogues: Dialogues) -> Verdict | None:
    """Check that turns go on to their end after a permission was allowed or rejected."""
    found = False
    for scenario in ("permission", "permission-reject"):
        dialogue = dialogues.get(scenario, NOTHING)
        for exchange in dialogue.exchanges("session/request_permission", outgoing=False):
            if exchange.response is None:
                continue
            found = True
            if not any(map(is_idle, dialogue.after(exchange.response))):
                reason = f"no idle came after this decision: {describe_end(dialogue)}"
                raise Fault(reason, exchange.response, scenario)
    return None if found else not_shown(NOT_ASKED)


def judge_cancelled(dialogues: Dialogues, *, scenario: str) -> Verdict | None:
    """Check that a cancelled turn ends as `idle` with the stop reason `cancelled`."""
    dialogue = dialogues.get(scenario, NOTHING)
    cancel = next((line for line in dialogue.of(outgoing=True) if line.method == "session/cancel"), None)
    if cancel is None:
        return not_shown(NOT_COME)
    after = dialogue.after(cancel)
    if any(is_idle(line) for line in dialogue.lines if line not in after):
        return not_shown("the turn was over before it was cancelled")
    requests = dialogue.exchanges("session/request_permission", outgoing=False)
    asked = any(request.response in after for request in requests)
    if scenario == "permission-cancelled" and not asked:
        return not_shown(NOT_ASKED)
    ended = next(filter(is_idle, after), None)
    if ended is None:
        raise Fault(f"no idle came after this: {describe_end(dialogue)}", cancel, scenario)
    reason = ended.update.get("stopReason")
    if reason == "cancelled":
        return None
    # A turn may end by itself while the cancellation is on its way, unless it waits for a permission.
    if asked or ended.seconds - cancel.seconds > LATE:
        raise Fault(f"a cancelled turn has the stop reason {reason!r}", ended, scenario)
    return not_shown("the turn ended by itself")


_RULES: Final = """
stdout | MUST | Transports: stdio | stdout has nothing but messages
messages | MUST | JSON-RPC 2.0: 4, 5 | messages are JSON-RPC 2.0
responses | MUST | JSON-RPC 2.0: 5 | each request has one response
ids | MUST | JSON-RPC 2.0: 5 | strings and integers are ids, and come back as they are
version | MUST | Initialization: Version Negotiation | version 2 is agreed to
version-unsupported | MUST | Initialization: Version Negotiation | an unknown version is answered with another
initialize | MUST | Initialization | the result has info, and support markers are objects
session-new | MUST | Session Setup: Creating a Session | each session has its own id
session-known | MUST | Session Setup: Session ID | messages name sessions that were opened, or told of as sub-agents
resume-replay | MUST | Session Setup: Resuming Sessions | replayFrom start brings the messages with their ids
prompt-accepted | MUST | Prompt Lifecycle: Prompt Accepted | a prompt is answered before its turn is over
user-message | MUST | Prompt Lifecycle: Prompt Accepted | the prompt comes back with a messageId of its own
states | MUST | Prompt Lifecycle: Report Completion | a turn is running, then idle with a stopReason
updates | MUST | Prompt Lifecycle: Agent Reports Output | updates have the specified form
permission-request | MUST | Tool Calls: Requesting Permission | requests have a title and options
permission-decided | MUST | Tool Calls: Requesting Permission | the turn ends after each decision
cancel | MUST | Prompt Lifecycle: Cancellation | a cancelled turn ends as idle with cancelled
cancel-permission | MUST | Prompt Lifecycle: Cancellation | so does one that waits for a permission
paths | MUST | Overview: Argument Requirements | paths are absolute
unknown-method | MUST | JSON-RPC 2.0: 5.1 | unknown methods are answered with -32601
unknown-extension | MUST | Extensibility: Custom Requests | so are unknown extensions
unknown-notification | MUST | Extensibility: Custom Notifications | unknown notifications are ignored
unknown-members | MUST | Extensibility | unknown members and _meta are taken
stays | MUST | Transports: stdio | the agent runs until its stdin ends
exit | SHOULD | Transports: stdio | the agent ends when its stdin ends
"""

_JUDGES: Final[dict[str, Judge]] = {
    **common_judges(outgoing=False, requests="extensions", notifications="extensions"),
    "stdout": partial(judge_stream, outgoing=False),
    "ids": partial(judge_echoed_ids, scenario="ids", keys=IDS, outgoing=False),
    "version": partial(judge_version, scenario="initialize"),
    "version-unsupported": partial(judge_version, scenario="version-unsupported"),
    "initialize": judge_initialize,
    "session-new": partial(judge_session_new, scenario="session"),
    "resume-replay": judge_replay,
    "prompt-accepted": judge_accepted,
    "user-message": judge_user_message,
    "states": judge_states,
    "updates": judge_updates,
    "permission-request": judge_permission_request,
    "permission-decided": judge_decided,
    "cancel": partial(judge_cancelled, scenario="cancellation"),
    "cancel-permission": partial(judge_cancelled, scenario="permission-cancelled"),
    "unknown-members": partial(judge_prompts, scenario="extensions"),
    "stays": judge_stays,
    "exit": judge_exit,
}

CHECKS: Final = table_of_checks(_RULES, _JUDGES)
"""All checks of agents of version 2, in the order of the report."""
