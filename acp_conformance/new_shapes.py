"""The shapes of version 2's objects, as far as it requires them. Enums and unions are open, so unknown values fit."""

from typing import Any, Final

from acp_conformance.shapes import block_fault, is_known_block, members_fault

_MESSAGES: Final = ("user_message", "agent_message", "agent_thought")

_UPDATES: Final[dict[str, dict[str, type]]] = {
    **{kind: {"messageId": str} for kind in _MESSAGES},
    **{f"{kind}_chunk": {"messageId": str, "content": dict} for kind in _MESSAGES},
    "state_update": {"state": str},
    "tool_call_update": {"toolCallId": str},
    "tool_call_content_chunk": {"toolCallId": str, "content": dict},
    "terminal_update": {"terminalId": str},
    "terminal_output_chunk": {"terminalId": str, "data": str},
    "plan_update": {"plan": dict},
    "available_commands_update": {"availableCommands": list},
    "config_option_update": {"configOptions": list},
    "usage_update": {"used": int, "size": int},
}

_OF_VERSION_1: Final = ("tool_call", "plan", "current_mode_update")
"""Kinds of updates that version 2 has no more."""

_MARKERS: Final = ("prompt", "mcp", "delete", "additionalDirectories")


def info_fault(value: Any) -> str:
    """Return the reason why one side's part of `initialize` is not as required."""
    fault = members_fault(value, {"info": dict}, "initialize")
    fault = fault or members_fault(value["info"], {"name": str, "version": str}, "info")
    if fault:
        return fault
    old = [name for name in ("agentCapabilities", "clientCapabilities") if name in value]
    if old:
        return f"{old[0]} is a member of version 1"
    capabilities = value.get("capabilities")
    if capabilities is None:
        return ""
    if not isinstance(capabilities, dict):
        return "capabilities is not an object"
    session = capabilities.get("session")
    if session is not None and not isinstance(session, dict):
        return "the support marker session is not an object"
    markers = [name for name in _MARKERS if not isinstance((session or {}).get(name), dict | None)]
    return f"the support marker {markers[0]} is not an object" if markers else _methods_fault(value.get("authMethods"))


def _methods_fault(methods: Any) -> str:
    if methods is not None and not isinstance(methods, list):
        return "authMethods is not an array"
    wanted: dict[str, type] = {"methodId": str, "type": str, "name": str}
    faults = (members_fault(method, wanted, "an authentication method") for method in methods or ())
    return next(filter(None, faults), "")


def new_update_fault(params: dict[str, Any]) -> str:
    """Return the reason why the params of a `session/update` are not as required."""
    fault = members_fault(params, {"sessionId": str, "update": dict}, "the notification")
    fault = fault or members_fault(params["update"], {"sessionUpdate": str}, "the update")
    if fault:
        return fault
    update = params["update"]
    kind = update["sessionUpdate"]
    if kind in _OF_VERSION_1:
        return f"{kind} is an update of version 1"
    fault = members_fault(update, _UPDATES.get(kind, {}), kind)
    if fault:
        return fault
    if kind == "plan_update":
        return members_fault(update["plan"], {"type": str, "planId": str}, "the plan")
    if kind.removesuffix("_chunk") in _MESSAGES and kind.endswith("_chunk"):
        return new_block_fault(update["content"])
    if kind in _MESSAGES and update.get("content") is not None:
        if not isinstance(update["content"], list):
            return f"the content of {kind} is not an array"
        return next(filter(None, map(new_block_fault, update["content"])), "")
    return ""


def new_block_fault(block: Any) -> str:
    """Return the reason why a value is not a content block; it may be of an unknown type."""
    fault = members_fault(block, {"type": str}, "a content block")
    return fault or (block_fault(block) if is_known_block(block) else "")


def new_permission_fault(params: dict[str, Any]) -> str:
    """Return the reason why the params of a `session/request_permission` are not as required."""
    fault = members_fault(params, {"sessionId": str, "title": str, "options": list}, "the request")
    if fault or not params["options"]:
        return fault or "there are no options"
    subject = params.get("subject")
    if subject is not None and (fault := members_fault(subject, {"type": str}, "the subject")):
        return fault
    wanted: dict[str, type] = {"optionId": str, "name": str, "kind": str}
    return next(filter(None, (members_fault(option, wanted, "an option") for option in params["options"])), "")
