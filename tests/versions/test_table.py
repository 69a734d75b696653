"""The table of both versions, compared with the official schemas and with the translators that use it."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from acp_gateway.protocol import methods
from acp_gateway.versions import table
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.old_agent import OldAgent
from acp_gateway.versions.table import Caller
from tests.kit import schemas

REFUSED = {methods.PROXY_INITIALIZE, methods.PROXY_SUCCESSOR}
"""Methods of chains of proxies: they have rows in the table, and the core passes them on from neither side."""


def names(version: int, *, draft: bool) -> set[str]:
    """The methods that the table has for a version."""
    rows = [row for row in table.METHODS if draft or not row.draft]
    return {name for row in rows if (name := row.old if version == 1 else row.new) is not None}


@pytest.mark.parametrize("version", [1, 2])
def test_every_method_of_the_schemas_has_a_row(version: int) -> None:
    """A new release of the schemas shows here which method has none."""
    stable = {method for _, method in schemas.methods(version)}
    draft = {method for _, method in schemas.methods(version, draft=True)}
    assert names(version, draft=False) == stable
    assert draft <= names(version, draft=True)
    unlisted = {
        name for name in names(version, draft=True) - draft if name.partition("/")[0] not in ("nes", "document")
    }
    # Methods that agents and clients have of earlier drafts.
    assert unlisted == ({"session/set_model"} if version == 1 else set()) | {"mcp/connect", "mcp/disconnect"}


UNTOLD = {"terminal/cancel", "tool_call/cancel"}
"""Methods of version 2 that its translator refuses, so that the core never sees them."""


@pytest.mark.parametrize("version", [1, 2])
def test_every_method_of_the_schemas_has_a_rule_in_the_core(version: int) -> None:
    """A new release of the schemas shows here which method is passed on without one."""
    by_clients = {*methods.CLIENT_METHODS, methods.AUTHENTICATE, *methods.CLIENT_NOTIFICATIONS}
    by_agents = {*methods.AGENT_METHODS, *methods.AGENT_NOTIFICATIONS}
    without = set()
    for side, name in schemas.methods(version, draft=True):
        if side == "client" and name.partition("/")[0] in methods.AGENT_FAMILIES:
            continue
        if table.OLD_NAMES.get(name, name) not in (by_agents if side == "client" else by_clients):
            without.add(name)
    assert without == REFUSED | (UNTOLD if version == 2 else set())
    assert all(name.startswith(methods.UNPASSED_PREFIXES) for name in REFUSED)


@pytest.mark.parametrize("version", [1, 2])
def test_every_method_that_the_table_has_for_clients_has_a_rule_in_the_core(version: int) -> None:
    """Those of drafts that the schemas do not have, or not any more, are among them."""
    by_clients = {*methods.CLIENT_METHODS, methods.AUTHENTICATE, *methods.CLIENT_NOTIFICATIONS}
    rows = {row.old if version == 1 else row.new for row in table.METHODS if row.caller is Caller.CLIENT}
    assert {table.OLD_NAMES.get(name, name) for name in rows if name} - by_clients == {methods.PROXY_INITIALIZE} | (
        UNTOLD if version == 2 else set()
    )


OF_TRANSLATORS = {
    *("state_update", "user_message", "agent_message", "agent_thought"),
    *("tool_call_content_chunk", "terminal_update", "terminal_output_chunk"),
}
"""Updates of version 2 that a translator replaces, so that the core never sees them."""

APPENDED = {
    *("agent_thought_chunk", "notice", "compaction_update", "compaction_summary_chunk"),
    *("plan_update", "plan_removed", "session_message", "session_message_chunk"),
}
"""Updates that are fanned out and written to the history, each for itself."""


@pytest.mark.parametrize("version", [1, 2])
def test_every_update_of_the_schemas_is_known_to_the_core(version: int) -> None:
    """A new release of the schemas shows here which update was not looked at: may a later one replace it?"""
    looked_at = {
        *(methods.USER_CHUNK, methods.AGENT_CHUNK, methods.SUBAGENT_UPDATE),
        *(methods.TOOL_CALL, methods.TOOL_CALL_UPDATE),
    }
    known = methods.STATE_UPDATES | looked_at | APPENDED
    assert schemas.updates(version, draft=True) - known == (OF_TRANSLATORS if version == 2 else set())


@pytest.mark.parametrize("version", [1, 2])
def test_every_update_of_the_schemas_has_a_row(version: int) -> None:
    rows = [(row.old if version == 1 else row.new, row.draft) for row in table.UPDATES]
    assert {name for name, draft in rows if name and not draft} == schemas.updates(version)
    assert {name for name, _ in rows if name} == schemas.updates(version, draft=True)


def functions() -> list[Callable[..., Any]]:
    """The functions of both translators."""
    tables = (table for it in (NewAgent, OldAgent) for table in (it.REQUESTS, it.NOTIFICATIONS, it.AGENT_REQUESTS))
    return [function for table in (*tables, NewAgent.UPDATES, OldAgent.UPDATES) for function in table.values()]


def members_of(version: int, definition: Any, seen: frozenset[str] = frozenset()) -> set[str]:
    """The members of a definition, with those of all its branches."""
    found = set(definition.get("properties", {}))
    for branch in [each for word in ("allOf", "anyOf", "oneOf") for each in definition.get(word, [])]:
        name = branch.get("$ref", "").rpartition("/")[2]
        if name not in seen:
            inner = schemas.definitions(version, draft=True)[name] if name else branch
            found |= members_of(version, inner, seen | {name} - {""})
    return found


def test_every_member_that_only_one_version_has_is_named_in_the_table() -> None:
    """A new release of the schemas shows here which member has no line in docs/reference/versions.md."""
    rows: list[Any] = [*table.METHODS, *table.UPDATES, *table.MEMBERS]
    cells = [text for row in rows for text in (row.old, row.new) if text]
    notes = [note for row in table.MEMBERS for note in (row.to_new, row.to_old)]
    notes += [function.__doc__ or "" for function in functions()]
    words = [word for note in notes for word in re.findall("`([^`]+)`", note)]
    named = {word for text in [*cells, *words] for word in re.split("[., ]+", text)}
    old, new = (schemas.definitions(version, draft=True) for version in (1, 2))
    unnamed = {
        (name, member)
        for name in (old.keys() & new.keys()) - {"SessionUpdate"}
        for member in members_of(1, old[name]) ^ members_of(2, new[name])
        if member not in named
    }
    assert unnamed == set()


def test_each_method_has_the_side_that_sends_it() -> None:
    sides = {"agent": Caller.CLIENT, "client": Caller.AGENT, "protocol": Caller.BOTH, "proxy": Caller.CLIENT}
    for version in (1, 2):
        callers = {row.old if version == 1 else row.new: row.caller for row in table.METHODS}
        for side, method in schemas.methods(version, draft=True):
            assert callers[method] in (sides[side], Caller.BOTH), method


def values(definition: Any) -> set[str]:
    """The constants of an enumeration in a schema."""
    branches = definition.get("oneOf") or definition.get("anyOf") or [definition]
    return {branch.get("const") for branch in branches if "const" in branch} | set(definition.get("enum", []))


@pytest.mark.parametrize(
    ("enumeration", "name"),
    [
        (table.TOOL_KIND, "ToolKind"),
        (table.TOOL_STATUS, "ToolCallStatus"),
        (table.ENTRY_STATUS, "PlanEntryStatus"),
        (table.ENTRY_PRIORITY, "PlanEntryPriority"),
        (table.OPTION_KIND, "PermissionOptionKind"),
        (table.ROLE, "Role"),
        (table.STRING_FORMAT, "StringFormat"),
        (table.STOP_REASON, "StopReason"),
    ],
)
def test_the_enumerations_have_the_values_of_the_schemas(enumeration: table.Enumeration, name: str) -> None:
    assert set(enumeration.old) == values(schemas.definitions(1)[name])
    if name != "StopReason":
        assert {*enumeration.old, *enumeration.to_old} == values(schemas.definitions(2)[name])
    else:
        branches = schemas.definitions(2)["IdleStateUpdate"]["anyOf"]
        reasons = {branch.get("properties", {}).get("stopReason", {}).get("const") for branch in branches}
        assert {*enumeration.old, *enumeration.to_old} == reasons - {None}
    assert enumeration.unknown is None or enumeration.unknown in enumeration.old
    assert enumeration.value("_x") == enumeration.unknown


def test_content_types_are_those_of_the_schemas() -> None:
    branches = schemas.definitions(1)["ContentBlock"]["oneOf"]
    assert {branch["properties"]["type"]["const"] for branch in branches} == set(table.CONTENT_TYPE.old)


def test_each_message_with_another_name_in_the_other_version_has_a_function() -> None:
    """The rest may pass as it is."""
    for row in table.METHODS:
        if row.old != row.new:
            old, new = (
                (NewAgent.REQUESTS, OldAgent.REQUESTS)
                if row.caller is Caller.CLIENT
                else (OldAgent.AGENT_REQUESTS, NewAgent.AGENT_REQUESTS)
            )
            assert row.old is None or row.old in old, row
            assert (row.new or row.old) in new, row
    for update in table.UPDATES:
        if update.old != update.new:
            assert update.old is None or update.old in OldAgent.UPDATES, update
            assert update.new in NewAgent.UPDATES, update


def test_each_function_of_a_translator_has_a_row() -> None:
    old = {row.old for row in table.METHODS} | {row.old for row in table.UPDATES}
    new = {row.new for row in table.METHODS} | {row.new for row in table.UPDATES}
    by_clients = {*NewAgent.REQUESTS, *NewAgent.NOTIFICATIONS}, {*OldAgent.REQUESTS, *OldAgent.NOTIFICATIONS}
    assert by_clients[0] | {*OldAgent.AGENT_REQUESTS, *OldAgent.UPDATES} <= old
    assert by_clients[1] | {*NewAgent.AGENT_REQUESTS, *NewAgent.UPDATES} <= new | table.UNSERVED


def test_the_schemas_are_readable() -> None:
    for path in schemas.FOLDER.glob("*.json"):
        assert json.loads(path.read_text())["$defs"]
