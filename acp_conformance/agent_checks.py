"""The checks of agents, as data."""

from functools import partial
from typing import Final

from acp_conformance.agent_judges import (
    judge_blocks,
    judge_cancelled,
    judge_decided,
    judge_exit,
    judge_files,
    judge_garbage,
    judge_initialize,
    judge_late_updates,
    judge_load,
    judge_modes,
    judge_not_offered,
    judge_permission_request,
    judge_prompts,
    judge_rejected,
    judge_released,
    judge_session_new,
    judge_stays,
    judge_stop_reasons,
    judge_unknown_session,
    judge_update_kinds,
    judge_updates,
    judge_version,
)
from acp_conformance.client_script import IDS, UNUSUAL_IDS
from acp_conformance.common_judges import common_checks, judge_echoed_ids, judge_stream
from acp_conformance.dialogue import Check

_COMMON: Final = common_checks(outgoing=False, requests="extensions", notifications="extensions")

CHECKS: Final = (
    Check(
        "stdout", "MUST", "Transports: stdio", "stdout has nothing but messages", partial(judge_stream, outgoing=False)
    ),
    _COMMON["messages"],
    _COMMON["responses"],
    Check(
        "ids",
        "MUST",
        "JSON-RPC 2.0: 5",
        "strings and integers are ids, and come back as they are",
        partial(judge_echoed_ids, scenario="ids", keys=IDS, outgoing=False),
    ),
    Check(
        "ids-unusual",
        "SHOULD",
        "JSON-RPC 2.0: 5",
        "null and large integers are ids as well",
        partial(judge_echoed_ids, scenario="ids-unusual", keys=UNUSUAL_IDS, outgoing=False),
    ),
    Check(
        "version",
        "MUST",
        "Initialization: Version Negotiation",
        "version 1 is agreed to",
        partial(judge_version, scenario="initialize", asked=1),
    ),
    Check(
        "version-unsupported",
        "MUST",
        "Initialization: Version Negotiation",
        "an unknown version is answered with another",
        partial(judge_version, scenario="version-unsupported", asked=65535),
    ),
    Check(
        "version-lower",
        "MUST",
        "Initialization: Version Negotiation",
        "a lower version is answered with a result",
        partial(judge_version, scenario="version-lower", asked=0),
    ),
    Check("initialize", "MUST", "Initialization", "the result has the specified form", judge_initialize),
    Check("session-new", "MUST", "Session Setup: Creating a Session", "each session has its own id", judge_session_new),
    _COMMON["session-known"],
    Check(
        "session-unknown",
        "SHOULD",
        "Session Setup: Session ID",
        "prompts in unknown sessions fail",
        judge_unknown_session,
    ),
    Check(
        "session-load",
        "MUST",
        "Session Setup: Loading Sessions",
        "a session is loaded where that is offered",
        judge_load,
    ),
    Check("modes", "MUST", "Session Modes", "an available mode can be set", judge_modes),
    Check("prompt", "MUST", "Prompt Turn", "a prompt has a result", partial(judge_prompts, scenario="prompt-updates")),
    Check(
        "blocks-baseline",
        "MUST",
        "Content",
        "text and links to resources are accepted",
        partial(judge_blocks, kind="text or resource_link", wanted=lambda kind: kind in ("text", "resource_link")),
    ),
    Check(
        "blocks-image",
        "MUST",
        "Initialization: Prompt Capabilities",
        "images are accepted where offered",
        partial(judge_blocks, kind="image", wanted=lambda kind: kind == "image"),
    ),
    Check(
        "blocks-audio",
        "MUST",
        "Initialization: Prompt Capabilities",
        "audio is accepted where offered",
        partial(judge_blocks, kind="audio", wanted=lambda kind: kind == "audio"),
    ),
    Check(
        "blocks-resource",
        "MUST",
        "Initialization: Prompt Capabilities",
        "resources are accepted where offered",
        partial(judge_blocks, kind="embeddedContext", wanted=lambda kind: kind == "resource"),
    ),
    Check("updates", "MUST", "Prompt Turn: Agent Reports Output", "updates have the specified form", judge_updates),
    Check("update-kinds", "SHOULD", "Schema: SessionUpdate", "updates are of specified kinds", judge_update_kinds),
    Check(
        "stop-reason", "MUST", "Prompt Turn: Stop Reasons", "a turn ends with a specified reason", judge_stop_reasons
    ),
    Check(
        "permission-request",
        "MUST",
        "Tool Calls: Requesting Permission",
        "requests have the specified form",
        judge_permission_request,
    ),
    Check(
        "permission-allow",
        "MUST",
        "Tool Calls: Requesting Permission",
        "the turn goes on after it was allowed",
        partial(judge_decided, scenario="permission"),
    ),
    Check(
        "permission-reject",
        "MUST",
        "Tool Calls: Requesting Permission",
        "the turn goes on after it was rejected",
        partial(judge_decided, scenario="permission-reject"),
    ),
    Check(
        "permission-obeyed",
        "SHOULD",
        "Tool Calls: Requesting Permission",
        "a rejected call is not completed",
        judge_rejected,
    ),
    Check(
        "cancel",
        "MUST",
        "Prompt Turn: Cancellation",
        "a cancelled turn ends as cancelled",
        partial(judge_cancelled, scenario="cancellation"),
    ),
    Check(
        "cancel-permission",
        "MUST",
        "Prompt Turn: Cancellation",
        "so does one that waits for a permission",
        partial(judge_cancelled, scenario="permission-cancelled"),
    ),
    Check("cancel-updates", "MUST", "Prompt Turn: Cancellation", "no updates after its response", judge_late_updates),
    Check(
        "fs-offered",
        "MUST",
        "File System: Checking Support",
        "files are used only where offered",
        partial(judge_not_offered, family="fs/", offered="file-system"),
    ),
    Check("fs", "MUST", "File System", "requests have the specified form", judge_files),
    Check(
        "terminal-offered",
        "MUST",
        "Terminals: Checking Support",
        "terminals are used only where offered",
        partial(judge_not_offered, family="terminal/", offered="terminal"),
    ),
    Check("terminal-released", "MUST", "Terminals: Releasing Terminals", "each terminal is released", judge_released),
    _COMMON["paths"],
    _COMMON["unknown-method"],
    _COMMON["unknown-extension"],
    _COMMON["unknown-notification"],
    Check(
        "meta",
        "MUST",
        "Extensibility: The _meta Field",
        "_meta is accepted anywhere",
        partial(judge_prompts, scenario="extensions"),
    ),
    Check(
        "big-message", "MUST", "Transports: stdio", "a prompt of 2 MiB is read", partial(judge_prompts, scenario="big")
    ),
    Check(
        "split-message",
        "MUST",
        "Transports: stdio",
        "messages in pieces are read",
        partial(judge_prompts, scenario="split"),
    ),
    Check("bad-line", "SHOULD", "JSON-RPC 2.0: 5.1", "the agent goes on after a line that is not JSON", judge_garbage),
    Check("stays", "MUST", "Transports: stdio", "the agent runs until its stdin ends", judge_stays),
    Check("exit", "SHOULD", "Transports: stdio", "the agent ends when its stdin ends", judge_exit),
)
"""All checks of agents, in the order of the report."""
