"""Folds the actions of a session into its state, and tells the differences between two states as actions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from acp_gateway.dialects.ahp.chat_tree import ARCHIVED, FAILED, IDLE, READ, RUNNING, WAITING
from acp_gateway.dialects.ahp.wire import Action, chat_uri, file_uri, iso

UNTITLED: Final = "Untitled"
"""Title of a session whose agent has given it none."""

TITLE_SIZE: Final = 256
"""Maximum characters of a title that are told: a line of a list."""

_STATUSES: Final = {"initializing": RUNNING, "running": RUNNING, "waiting": WAITING, "error": FAILED}
"""The bits of the gateway's statuses."""


def status_bits(status: str, *, is_read: bool, is_archived: bool) -> int:
    """Return the status of a session as AHP has it."""
    return _STATUSES.get(status, IDLE) | (READ if is_read else 0) | (ARCHIVED if is_archived else 0)


def summary(
    uri: str,
    *,
    title: str | None,
    status: int,
    directories: Sequence[str],
    created: float,
    modified: float,
) -> dict[str, Any]:
    """Return what a list tells of a session; times are in milliseconds since 1970."""
    return {
        "resource": uri,
        "provider": uri.partition(":")[0],
        "title": (title or UNTITLED)[:TITLE_SIZE],
        "status": status,
        "createdAt": iso(created),
        "modifiedAt": iso(modified),
        "workingDirectories": [file_uri(path) for path in directories],
        "defaultChat": chat_uri(uri),
    }


def changes_between(told: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a summary that have changed; none if only the time of the last change has."""
    changes = {name: value for name, value in now.items() if told.get(name) != value}
    return {} if changes.keys() <= {"modifiedAt"} else changes


class SessionTree:
    """The state of one session, without its chat.

    Args:
        summary: its summary.
        config: schema and values of what may be chosen.
    """

    def __init__(self, summary: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        names = ("provider", "title", "status", "workingDirectories", "defaultChat")
        chat = {
            "resource": summary["defaultChat"],
            **{name: summary[name] for name in ("title", "status", "modifiedAt")},
        }
        self.state: dict[str, Any] = {
            **{name: summary[name] for name in names},
            "lifecycle": "ready",
            "activeClients": [],
            "chats": [chat],
            "config": {"schema": config["schema"], "values": {**config["values"]}},
            "inputNeeded": [],
        }

    def apply(self, action: Action) -> bool:
        """Fold an action; return False if it is not one of a session."""
        state = self.state
        match action["type"]:
            case "session/titleChanged":
                state["title"] = action["title"]
            case "session/isReadChanged":
                self._flag(READ, is_set=action["isRead"])
            case "session/isArchivedChanged":
                self._flag(ARCHIVED, is_set=action["isArchived"])
            case "session/configChanged":
                state["config"]["values"].update(action["config"])
            case "session/chatUpdated":
                for chat in state["chats"]:
                    chat.update(action["changes"] if chat["resource"] == action["chat"] else {})
            case "session/activeClientSet":
                client = action["activeClient"]
                state["activeClients"] = [*_without(state["activeClients"], "clientId", client["clientId"]), client]
            case "session/activeClientRemoved":
                state["activeClients"] = _without(state["activeClients"], "clientId", action["clientId"])
            case "session/inputNeededSet":
                need = action["request"]
                state["inputNeeded"] = [*_without(state["inputNeeded"], "id", need["id"]), need]
            case "session/inputNeededRemoved":
                state["inputNeeded"] = _without(state["inputNeeded"], "id", action["id"])
            case _:
                return False
        return True

    def differences(self, summary: Mapping[str, Any], values: Mapping[str, str]) -> Iterator[Action]:
        """Yield the actions that lead to another summary and other values."""
        state, chat = self.state, self.state["chats"][0]
        if state["title"] != summary["title"]:
            yield {"type": "session/titleChanged", "title": summary["title"]}
        for name, bit in (("isRead", READ), ("isArchived", ARCHIVED)):
            if (state["status"] ^ summary["status"]) & bit:
                yield {"type": f"session/{name}Changed", name: bool(summary["status"] & bit)}
        changes = {name: summary[name] for name in ("title", "status") if chat[name] != summary[name]}
        if changes:
            changes["modifiedAt"] = summary["modifiedAt"]
            yield {"type": "session/chatUpdated", "chat": chat["resource"], "changes": changes}
        known, properties = state["config"]["values"], state["config"]["schema"]["properties"]
        changed = {name: value for name, value in values.items() if name in properties and known.get(name) != value}
        if changed:
            yield {"type": "session/configChanged", "config": changed}

    def _flag(self, bit: int, *, is_set: bool) -> None:
        self.state["status"] = self.state["status"] | bit if is_set else self.state["status"] & ~bit


def _without(entries: list[dict[str, Any]], name: str, value: str) -> list[dict[str, Any]]:
    return [it for it in entries if it[name] != value]
