"""The checks of clients, as data."""

from functools import partial
from typing import Final

from acp_conformance.client_judges import (
    judge_authenticate,
    judge_bad_line,
    judge_blocks_offered,
    judge_exit,
    judge_ids,
    judge_initialize,
    judge_lost,
    judge_mcp_offered,
    judge_methods_offered,
    judge_prompt,
    judge_released,
    judge_session_new,
    judge_stderr,
    judge_stop_reasons,
    judge_survived,
    judge_turn,
    judge_unique_ids,
    judge_version,
    judge_version_unsupported,
)
from acp_conformance.client_runner import FILE_TEXT
from acp_conformance.client_script import BIG, IDS, UNUSUAL_IDS
from acp_conformance.common_judges import common_checks, judge_stream
from acp_conformance.dialogue import Check, Line
from acp_conformance.service_judges import (
    judge_cancel,
    judge_cancel_permission,
    judge_decision,
    judge_files,
    judge_permission,
    judge_refused,
    judge_terminal,
)


def _is_update(line: Line) -> bool:
    return bool(line.update)


_COMMON: Final = common_checks(outgoing=True, requests="agent-requests", notifications="agent-notifications")

CHECKS: Final = (
    Check("turn", "MUST", "Overview: Message Flow", "the client comes to the end of a turn", judge_turn),
    Check(
        "stdin",
        "MUST",
        "Transports: stdio",
        "the agent's stdin has nothing but messages",
        partial(judge_stream, outgoing=True),
    ),
    _COMMON["messages"],
    _COMMON["responses"],
    Check("ids-unique", "MUST", "JSON-RPC 2.0: 4", "open requests have different ids", judge_unique_ids),
    Check(
        "ids",
        "MUST",
        "JSON-RPC 2.0: 5",
        "strings and integers are ids, and come back as they are",
        partial(judge_ids, scenario="agent-ids", keys=IDS),
    ),
    Check(
        "ids-unusual",
        "SHOULD",
        "JSON-RPC 2.0: 5",
        "null and large integers are ids as well",
        partial(judge_ids, scenario="agent-ids-unusual", keys=UNUSUAL_IDS),
    ),
    Check("initialize", "MUST", "Initialization", "it comes first and has the specified form", judge_initialize),
    Check("version", "MUST", "Initialization: Version Negotiation", "a version is asked for", judge_version),
    Check(
        "version-unsupported",
        "SHOULD",
        "Initialization: Version Negotiation",
        "an unknown version is not worked with",
        judge_version_unsupported,
    ),
    Check(
        "authenticate",
        "MUST",
        "Initialization: Authentication",
        "a session is asked for again after it",
        judge_authenticate,
    ),
    Check(
        "methods-offered",
        "MUST",
        "Initialization: Capabilities",
        "only what the agent offers is called",
        judge_methods_offered,
    ),
    Check(
        "session-new",
        "MUST",
        "Session Setup: Creating a Session",
        "the request has the specified form",
        judge_session_new,
    ),
    _COMMON["session-known"],
    Check(
        "mcp-offered",
        "MUST",
        "Session Setup: MCP Servers",
        "MCP servers are reached in offered ways",
        judge_mcp_offered,
    ),
    Check("prompt", "MUST", "Prompt Turn: User Message", "prompts are content blocks", judge_prompt),
    Check(
        "blocks-offered",
        "MUST",
        "Initialization: Prompt Capabilities",
        "blocks are text and links where no more is offered",
        judge_blocks_offered,
    ),
    Check(
        "updates",
        "MUST",
        "Prompt Turn: Agent Reports Output",
        "updates of each kind are taken",
        partial(judge_survived, scenario="agent-updates", probe=_is_update),
    ),
    Check(
        "update-unknown",
        "SHOULD",
        "Prompt Turn: Agent Reports Output",
        "unknown kinds are ignored",
        partial(judge_survived, scenario="agent-update-unknown", probe=_is_update),
    ),
    Check(
        "unknown-members",
        "SHOULD",
        "Extensibility",
        "unknown members are ignored",
        partial(judge_survived, scenario="agent-members", probe=_is_update),
    ),
    Check(
        "stop-reasons", "MUST", "Prompt Turn: Stop Reasons", "the client goes on after each of them", judge_stop_reasons
    ),
    Check(
        "permission",
        "MUST",
        "Tool Calls: Requesting Permission",
        "requests are answered with an outcome that was offered",
        judge_permission,
    ),
    Check(
        "permission-allow",
        "MUST",
        "Tool Calls: Requesting Permission",
        "what the user allows is allowed",
        partial(judge_decision, scenario="permission", kind="allow"),
    ),
    Check(
        "permission-reject",
        "MUST",
        "Tool Calls: Requesting Permission",
        "what the user rejects is rejected",
        partial(judge_decision, scenario="permission-reject", kind="reject"),
    ),
    Check("cancel", "MUST", "Prompt Turn: Cancellation", "session/cancel is a notification", judge_cancel),
    Check(
        "cancel-permission",
        "MUST",
        "Prompt Turn: Cancellation",
        "open permissions are answered with cancelled",
        judge_cancel_permission,
    ),
    Check(
        "fs-refused",
        "MUST",
        "File System: Checking Support",
        "files are refused with -32601 where not offered",
        partial(judge_refused, scenario="file-system"),
    ),
    Check(
        "fs", "MUST", "File System", "files are read and written where offered", partial(judge_files, before=FILE_TEXT)
    ),
    Check(
        "terminal-refused",
        "MUST",
        "Terminals: Checking Support",
        "so are terminals",
        partial(judge_refused, scenario="terminal"),
    ),
    Check("terminal", "MUST", "Terminals", "commands are run where offered", judge_terminal),
    _COMMON["paths"],
    _COMMON["unknown-method"],
    _COMMON["unknown-extension"],
    _COMMON["unknown-notification"],
    Check(
        "meta",
        "MUST",
        "Extensibility: The _meta Field",
        "_meta is accepted anywhere",
        partial(judge_survived, scenario="agent-meta", probe=_is_update),
    ),
    Check(
        "big-message",
        "MUST",
        "Transports: stdio",
        "an update of 2 MiB is read",
        partial(judge_survived, scenario="agent-big", probe=lambda line: len(line.text) > BIG),
    ),
    Check(
        "split-message",
        "MUST",
        "Transports: stdio",
        "messages in pieces are read",
        partial(judge_survived, scenario="agent-split", probe=_is_update),
    ),
    Check(
        "bad-line", "SHOULD", "JSON-RPC 2.0: 5.1", "the client goes on after a line that is not JSON", judge_bad_line
    ),
    Check("stderr", "MUST", "Transports: stdio", "the agent may write to stderr", judge_stderr),
    Check("agent-lost", "SHOULD", "Transports: stdio", "the client ends although its agent has ended", judge_lost),
    Check("exit", "SHOULD", "Transports: stdio", "the client ends when its stdin ends", judge_exit),
    Check("agent-released", "SHOULD", "Transports: stdio", "the agent's stdin ends with the client", judge_released),
)
"""All checks of clients, in the order of the report."""
