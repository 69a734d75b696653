"""The shapes of ACP objects, as far as the specification requires them. A `…_fault` is a reason, or empty."""

import ntpath
import posixpath
from collections.abc import Callable, Iterator
from typing import Any, Final

from acp_conformance.dialogue import RESPONSE, Line

STOP_REASONS: Final = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")
OPTION_KINDS: Final = ("allow_once", "allow_always", "reject_once", "reject_always")
TOOL_STATUSES: Final = ("pending", "in_progress", "completed", "failed")

BLOCK_CAPABILITIES: Final = {"image": "image", "audio": "audio", "resource": "embeddedContext"}
"""The prompt capability that each kind of content block needs; text and links to resources need none."""

_BLOCKS: Final[dict[str, dict[str, type]]] = {
    "text": {"text": str},
    "image": {"data": str, "mimeType": str},
    "audio": {"data": str, "mimeType": str},
    "resource_link": {"uri": str, "name": str},
    "resource": {"resource": dict},
}

_UPDATES: Final[dict[str, dict[str, type]]] = {
    "user_message_chunk": {"content": dict},
    "agent_message_chunk": {"content": dict},
    "agent_thought_chunk": {"content": dict},
    "tool_call": {"toolCallId": str, "title": str},
    "tool_call_update": {"toolCallId": str},
    "plan": {"entries": list},
    "available_commands_update": {"availableCommands": list},
    "current_mode_update": {"currentModeId": str},
    "config_option_update": {"configOptions": list},
    "session_info_update": {},
    "usage_update": {"used": int, "size": int},
    "plan_update": {"plan": dict},
    "plan_removed": {"planId": str},
}

_NAMES: Final = {str: "a string", dict: "an object", list: "an array", int: "an integer"}


def message_fault(line: Line) -> str:
    """Return the reason why a line is not a JSON-RPC message of ACP."""
    value = line.value
    if value is None:
        return "is not a JSON object"
    if value.get("jsonrpc") != "2.0":
        return 'lacks "jsonrpc": "2.0"'
    if not line.kind:
        return "is neither a request nor a notification nor a response"
    if "id" in value and (isinstance(value["id"], bool | float | dict | list)):
        return "has an id that is not a string, integer or null"
    if line.kind != RESPONSE:
        return (
            "has params that are not an object" if "params" in value and not isinstance(value["params"], dict) else ""
        )
    if "result" in value and value.get("error") is not None:
        return "has both a result and an error"
    if "result" not in value:
        error = value["error"]
        if not isinstance(error, dict) or type(error.get("code")) is not int:
            return "has an error without an integer code"
        if not isinstance(error.get("message"), str):
            return "has an error without a message"
    return ""


def members_fault(value: Any, wanted: dict[str, type], what: str) -> str:
    """Return the reason why an object lacks one of the members of these types."""
    if not isinstance(value, dict):
        return f"{what} is not an object"
    for name, kind in wanted.items():
        if not isinstance(value.get(name), kind) or isinstance(value[name], bool):
            return f"{what} has no {name} that is {_NAMES[kind]}"
    return ""


def block_fault(block: Any) -> str:
    """Return the reason why a value is not a content block."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in _BLOCKS:
        return f"a content block has the unknown type {kind!r}"
    return members_fault(block, _BLOCKS[kind], f"a content block of type {kind}")


def is_known_block(block: dict[str, Any]) -> bool:
    """Return True for a content block of a type that the specification has."""
    return isinstance(block.get("type"), str) and block["type"] in _BLOCKS


def is_known_update(update: dict[str, Any]) -> bool:
    """Return True for an update of a kind that the specification has."""
    return isinstance(update.get("sessionUpdate"), str) and update["sessionUpdate"] in _UPDATES


def update_fault(update: dict[str, Any]) -> str:
    """Return the reason why an update of a session is not as its kind requires; unknown kinds have no fault."""
    kind = update.get("sessionUpdate")
    if not isinstance(kind, str):
        return "the update has no sessionUpdate"
    if kind not in _UPDATES:
        return ""
    fault = members_fault(update, _UPDATES[kind], kind)
    if fault:
        return fault
    if kind.endswith("_chunk"):
        return block_fault(update["content"])
    if update.get("status") is not None and kind.startswith("tool_call") and update["status"] not in TOOL_STATUSES:
        return f"{kind} has the unknown status {update['status']!r}"
    if kind == "plan":
        entry_kind: dict[str, type] = {"content": str, "priority": str, "status": str}
        return _first_fault(update["entries"], lambda entry: members_fault(entry, entry_kind, "an entry of the plan"))
    if kind == "available_commands_update":
        command_kind: dict[str, type] = {"name": str, "description": str}
        return _first_fault(update["availableCommands"], lambda each: members_fault(each, command_kind, "a command"))
    return ""


def permission_fault(params: dict[str, Any]) -> str:
    """Return the reason why the params of a `session/request_permission` are not as required."""
    fault = members_fault(params, {"sessionId": str, "toolCall": dict, "options": list}, "the request")
    fault = fault or members_fault(params["toolCall"], {"toolCallId": str}, "the tool call")
    if fault or not params["options"]:
        return fault or "there are no options"
    wanted: dict[str, type] = {"optionId": str, "name": str, "kind": str}
    for option in params["options"]:
        fault = members_fault(option, wanted, "an option")
        if fault or option["kind"] not in OPTION_KINDS:
            return fault or f"an option has the unknown kind {option['kind']!r}"
    return ""


def outcome_fault(result: Any, params: dict[str, Any]) -> str:
    """Return the reason why the result of a `session/request_permission` with these params is not as required."""
    outcome = result.get("outcome") if isinstance(result, dict) else None
    kind = outcome.get("outcome") if isinstance(outcome, dict) else None
    if kind == "cancelled":
        return ""
    if kind != "selected" or not isinstance(outcome, dict):
        return 'the outcome is neither "selected" nor "cancelled"'
    if outcome.get("optionId") not in [option["optionId"] for option in params["options"]]:
        return f"the option {outcome.get('optionId')!r} was not offered"
    return ""


def paths_in(line: Line) -> Iterator[object]:
    """Yield the file paths in the params of a message, at the places where the specification has some."""
    params = line.params
    if line.method.startswith(("fs/", "terminal/", "session/")):
        yield from (params[name] for name in ("path", "cwd") if params.get(name) is not None)
    subject = params.get("subject")
    asked = subject.get("toolCall") if isinstance(subject, dict) else params.get("toolCall")
    for call in (asked, line.update):
        if isinstance(call, dict):
            for name in ("locations", "content"):
                places = call.get(name)
                for place in places if isinstance(places, list) else ():
                    if isinstance(place, dict) and (name == "locations" or place.get("type") == "diff"):
                        yield from _changed_paths(place) if "changes" in place else (place.get("path"),)


def _changed_paths(diff: dict[str, Any]) -> Iterator[object]:
    """Yield the paths of a diff of version 2."""
    for change in diff["changes"] if isinstance(diff["changes"], list) else ():
        if isinstance(change, dict):
            yield change.get("path")
            yield from (change[name] for name in ("oldPath",) if name in change)


def is_absolute(path: object) -> bool:
    """Return True for an absolute path of any system."""
    return isinstance(path, str) and (posixpath.isabs(path) or bool(ntpath.splitdrive(path)[0] and ntpath.isabs(path)))


def _first_fault(values: list[Any], fault_of: Callable[[Any], str]) -> str:
    return next(filter(None, map(fault_of, values)), "")
