"""The checks of clients of version 2: a table of rules, and the judges that only they have."""

from functools import partial
from typing import Any, Final

from acp_conformance.client_checks import (
    NOT_COME,
    NOTHING,
    judge_cancel,
    judge_cancel_permission,
    judge_decision,
    judge_exit,
    judge_ids,
    judge_permission,
    judge_released,
    judge_stop_reasons,
    judge_survived,
    judge_turn,
    judge_unique_ids,
    judge_version_unsupported,
    requests_of,
)
from acp_conformance.client_script import IDS
from acp_conformance.common_judges import (
    common_judges,
    judge_each,
    judge_stream,
    table_of_checks,
)
from acp_conformance.dialogue import Dialogues, Judge, Line, Verdict, not_shown
from acp_conformance.new_shapes import info_fault, new_block_fault
from acp_conformance.shapes import members_fault


def judge_initialize(dialogues: Dialogues) -> Verdict | None:
    """Check that `initialize` asks for version 2, and has an `info`."""

    def fault_of(line: Line) -> str:
        version = line.params.get("protocolVersion")
        if type(version) is not int or version < 2:
            return f"the version asked for is {version!r}"
        return info_fault(line.params)

    return judge_each(requests_of(dialogues, "initialize"), fault_of, NOT_COME)


def judge_session_new(dialogues: Dialogues) -> Verdict | None:
    """Check the members of `session/new`; servers are optional, and have a type."""

    def fault_of(line: Line) -> str:
        servers = line.params.get("mcpServers")
        if servers is not None and not isinstance(servers, list):
            return "mcpServers is not an array"
        faults = (members_fault(server, {"type": str, "name": str}, "an MCP server") for server in servers or ())
        return members_fault(line.params, {"cwd": str}, "the request") or next(filter(None, faults), "")

    return judge_each(requests_of(dialogues, "session/new"), fault_of, NOT_COME)


def judge_prompt(dialogues: Dialogues) -> Verdict | None:
    """Check that prompts are content blocks."""

    def fault_of(line: Line) -> str:
        fault = members_fault(line.params, {"sessionId": str, "prompt": list}, "the request")
        blocks: list[Any] = [] if fault else line.params["prompt"] or [None]
        return fault or next(filter(None, map(new_block_fault, blocks)), "")

    return judge_each(requests_of(dialogues, "session/prompt"), fault_of, NOT_COME)


def is_output(line: Line) -> bool:
    """Return True for an update that shows something: not a state, and not the user's own message."""
    return bool(line.update) and line.update.get("sessionUpdate") not in ("state_update", "user_message")


def judge_survived_between(dialogues: Dialogues, *, scenario: str) -> Verdict | None:
    """Check that the client goes on after what it was told once its own turn had ended, if it goes on at all."""
    dialogue = dialogues.get(scenario, NOTHING)
    if dialogue.ending in ("ended", "closed") and dialogue.exit_code == 0:
        return not_shown("the client ends after its turn")
    return judge_survived(dialogues, scenario=scenario, probe=is_output)


_RULES: Final = """
turn | MUST | Overview: Message Flow | the client comes to the end of a turn
stdin | MUST | Transports: stdio | the agent's stdin has nothing but messages
messages | MUST | JSON-RPC 2.0: 4, 5 | messages are JSON-RPC 2.0
responses | MUST | JSON-RPC 2.0: 5 | each request has one response
ids-unique | MUST | JSON-RPC 2.0: 4 | open requests have different ids
ids | MUST | JSON-RPC 2.0: 5 | strings and integers are ids, and come back as they are
initialize | MUST | Initialization | version 2 is asked for, with info
version-unsupported | SHOULD | Initialization: Version Negotiation | an unknown version is not worked with
session-new | MUST | Session Setup: Creating a Session | the request has the specified form
session-known | MUST | Session Setup: Session ID | messages name sessions that were opened
prompt | MUST | Prompt Lifecycle: User Message | prompts are content blocks
updates | MUST | Prompt Lifecycle: Agent Reports Output | updates of each kind are taken
updates-idle | MUST | Prompt Lifecycle: Session Update Variants | updates are taken while the session is idle
unprompted | MUST | Prompt Lifecycle: Report Completion | turns without a prompt are taken
update-unknown | MUST | Extensibility | unknown kinds of updates are ignored
unknown-values | MUST | Extensibility | unknown members and values of enums are taken
stop-reasons | MUST | Prompt Lifecycle: Stop Reasons | the client goes on after each of them
permission | MUST | Tool Calls: Requesting Permission | requests are answered with an outcome that was offered
permission-allow | MUST | Tool Calls: Requesting Permission | what the user allows is allowed
permission-reject | MUST | Tool Calls: Requesting Permission | what the user rejects is rejected
cancel | MUST | Prompt Lifecycle: Cancellation | session/cancel is a notification
cancel-permission | MUST | Prompt Lifecycle: Cancellation | open permissions are answered with cancelled
paths | MUST | Overview: Argument Requirements | paths are absolute
unknown-method | MUST | JSON-RPC 2.0: 5.1 | unknown methods are answered with -32601
unknown-extension | MUST | Extensibility: Custom Requests | so are unknown extensions
exit | SHOULD | Transports: stdio | the client ends when its stdin ends
agent-released | SHOULD | Transports: stdio | the agent's stdin ends with the client
"""

_COMMON: Final = common_judges(outgoing=True, requests="agent-requests", notifications="")

_JUDGES: Final[dict[str, Judge]] = {
    **{name: judge for name, judge in _COMMON.items() if name != "unknown-notification"},
    "turn": judge_turn,
    "stdin": partial(judge_stream, outgoing=True),
    "ids-unique": judge_unique_ids,
    "ids": partial(judge_ids, scenario="agent-ids", keys=IDS),
    "initialize": judge_initialize,
    "version-unsupported": judge_version_unsupported,
    "session-new": judge_session_new,
    "prompt": judge_prompt,
    "updates": partial(judge_survived, scenario="agent-updates", probe=is_output),
    "updates-idle": partial(judge_survived_between, scenario="agent-idle"),
    "unprompted": partial(judge_survived_between, scenario="agent-unprompted"),
    "update-unknown": partial(judge_survived, scenario="agent-update-unknown", probe=is_output),
    "unknown-values": partial(judge_survived, scenario="agent-unknown", probe=is_output),
    "stop-reasons": judge_stop_reasons,
    "permission": judge_permission,
    "permission-allow": partial(judge_decision, scenario="permission", kind="allow"),
    "permission-reject": partial(judge_decision, scenario="permission-reject", kind="reject"),
    "cancel": judge_cancel,
    "cancel-permission": judge_cancel_permission,
    "exit": judge_exit,
    "agent-released": judge_released,
}

CHECKS: Final = table_of_checks(_RULES, _JUDGES)
"""All checks of clients of version 2, in the order of the report."""
