"""The checks that agents and clients share, as data."""

from functools import partial

from acp_conformance.common_judges import (
    UNKNOWN,
    UNKNOWN_EXTENSION,
    judge_answers,
    judge_messages,
    judge_not_answered,
    judge_not_found,
    judge_paths,
    judge_sessions,
)
from acp_conformance.dialogue import Check


def common_checks(*, outgoing: bool, requests: str, notifications: str) -> dict[str, Check]:
    """Return the checks by name.

    Args:
        outgoing: the side of the checked program.
        requests: the scenario with unknown requests of the kit.
        notifications: the scenario with its unknown notifications.
    """
    unknown = partial(judge_not_found, scenario=requests, outgoing=outgoing)
    ignored = partial(judge_not_answered, scenario=notifications, outgoing=outgoing)
    checks = (
        Check(
            "messages",
            "MUST",
            "JSON-RPC 2.0: 4, 5",
            "messages are JSON-RPC 2.0",
            partial(judge_messages, outgoing=outgoing),
        ),
        Check(
            "responses",
            "MUST",
            "JSON-RPC 2.0: 5",
            "each request has one response",
            partial(judge_answers, outgoing=outgoing),
        ),
        Check(
            "session-known",
            "MUST",
            "Session Setup: Session ID",
            "messages name sessions that were opened",
            partial(judge_sessions, outgoing=outgoing),
        ),
        Check(
            "paths",
            "MUST",
            "Overview: Argument Requirements",
            "paths are absolute",
            partial(judge_paths, outgoing=outgoing),
        ),
        Check(
            "unknown-method",
            "MUST",
            "JSON-RPC 2.0: 5.1",
            "unknown methods are answered with -32601",
            partial(unknown, method=UNKNOWN),
        ),
        Check(
            "unknown-extension",
            "MUST",
            "Extensibility: Custom Requests",
            "so are unknown extensions",
            partial(unknown, method=UNKNOWN_EXTENSION),
        ),
        Check(
            "unknown-notification",
            "MUST",
            "Extensibility: Custom Notifications",
            "unknown notifications are ignored",
            ignored,
        ),
    )
    return {check.name: check for check in checks}
