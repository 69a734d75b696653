"""Translates values that both versions have in another shape: content, options, commands, plans, MCP servers.

Names that begin with `old_` return a value of version 1, those with `new_` one of version 2.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final

from acp_gateway.protocol import jsonrpc
from acp_gateway.versions import plain_updates, table
from acp_gateway.versions.parts import (
    EMPTY,
    Untranslatable,
    array,
    elements,
    given,
    is_object,
    members,
    number,
    text,
    text_block,
)
from acp_gateway.versions.table import AUTH_METHOD, CONFIG_OPTION, OPTION_GROUP, RENAMED, Enumeration

_compose: Final = jsonrpc.compose
_encode: Final = jsonrpc.encode

_CHOICE: Final = ("name", "description", "_meta")
_CONTENT: Final = ("content", "summary")

SHOWN_SIZE: Final = 4096
"""Characters of JSON that is shown as text because nothing else shows it."""


def renamed(where: str, raw: Mapping[str, bytes], *, to_old: bool) -> dict[str, bytes]:
    """Return members with the identifying one under its name in the other version."""
    old, new = RENAMED[where]
    source, target = (new, old) if to_old else (old, new)
    assert source is not None
    assert target is not None
    if source not in raw:
        return dict(raw)
    return {target if name == source else name: value for name, value in raw.items() if name != target}


def _old_value(enumeration: Enumeration, raw: bytes) -> bytes:
    """Return a value of a closed list for one of an open list; a value that is not a string stays."""
    value = text(raw)
    found = None if value is None else enumeration.value(value)
    return raw if value == found or found is None else _encode(found)


def old_value(enumeration: Enumeration, raw: bytes | None, default: str) -> bytes:
    """Return a value of a closed list; the default for one that is absent, null or not a string."""
    return _encode(default) if raw is None or text(raw) is None else _old_value(enumeration, raw)


# Content


def old_block(block: bytes) -> bytes:
    """Return a content block of version 1."""
    parts = members(block)
    kind = text(parts.get("type"))
    if kind not in table.CONTENT_TYPE.old:
        return text_block(f"[content of the type {kind or 'unknown'}, which this version cannot show]")
    if given(parts.get("annotations")):
        annotations = members(parts["annotations"])
        roles = elements(annotations.get("audience"))
        kept = [role for role in roles if text(role) in table.ROLE.old]
        if len(kept) < len(roles):
            annotations["audience"] = array(kept)
            return _compose({**parts, "annotations": _compose(annotations)})
    return block


def new_block(block: bytes) -> bytes:
    """Return a content block of version 2."""
    parts = members(block)
    left_out = set()
    size = number(parts.get("size"))
    if size is not None and size < 0:
        left_out.add("size")
    if given(parts.get("annotations")):
        annotations = members(parts["annotations"])
        priority = number(annotations.get("priority"))
        if priority is not None and not 0 <= priority <= 1:
            del annotations["priority"]
            parts["annotations"] = _compose(annotations)
            left_out.add("")
    return _compose({name: value for name, value in parts.items() if name not in left_out}) if left_out else block


def with_blocks(update: dict[str, bytes], translate: Callable[[bytes], bytes]) -> dict[str, bytes]:
    """Return an update with its content translated, a block or a list of them; the same object if nothing changes."""
    changed = {}
    for name in _CONTENT:
        raw = update.get(name, b"")
        whole = array(map(translate, elements(raw))) if raw[:1] == b"[" else translate(raw) if is_object(raw) else raw
        if whole != raw:
            changed[name] = whole
    return update | changed if changed else update


def old_prompt(blocks: bytes | None) -> bytes:
    """Return the content of a prompt for an agent of version 1. Raises `Untranslatable` for unknown content."""
    found = elements(blocks)
    for block in found:
        kind = text(members(block).get("type"))
        if kind not in table.CONTENT_TYPE.old:
            raise Untranslatable(f"the agent speaks version 1, which has no content of the type {kind!r:.80}")
    return array(map(old_block, found))


def new_prompt(blocks: bytes | None) -> bytes:
    """Return the content of a prompt for an agent of version 2. Raises `Untranslatable` if it has none."""
    found = elements(blocks)
    if not found:
        raise Untranslatable("the agent speaks version 2, in which a prompt has content")
    return array(map(new_block, found))


def new_locations(raw: bytes) -> bytes:
    """Return places in files for version 2, where lines begin with 1."""
    found = []
    for location in elements(raw):
        line = number(members(location).get("line"))
        if line is not None and line < 1:
            location = _compose({name: value for name, value in members(location).items() if name != "line"})
        found.append(location)
    return array(found)


# Options


def old_option(option: bytes, *, booleans: bool) -> bytes | None:
    """Return a config option of version 1; None for one that the client can't show."""
    parts = renamed(CONFIG_OPTION, members(option), to_old=True)
    kind = text(parts.get("type"))
    if kind != "select":
        return _compose(parts) if kind == "boolean" and booleans else None
    groups = [
        _compose(renamed(OPTION_GROUP, members(choice), to_old=True)) if "groupId" in members(choice) else choice
        for choice in elements(parts.get("options"))
    ]
    return _compose({**parts, "options": array(groups)})


def new_option(option: bytes) -> bytes | None:
    """Return a config option of version 2; None for one without choices."""
    parts = renamed(CONFIG_OPTION, members(option), to_old=False)
    if text(parts.get("type")) != "select":
        return _compose(parts)
    groups = []
    for choice in elements(parts.get("options")):
        inner = members(choice)
        if "group" not in inner:
            groups.append(choice)
        elif elements(inner.get("options")):
            groups.append(_compose(renamed(OPTION_GROUP, inner, to_old=False)))
    return _compose({**parts, "options": array(groups)}) if groups else None


def choices(option: Mapping[str, bytes]) -> list[dict[str, bytes]]:
    """Return the choices of an option of either version, with those of its groups."""
    found = []
    for choice in map(members, elements(option.get("options"))):
        found += [choice] if "value" in choice else list(map(members, elements(choice.get("options"))))
    return found


def modes_of(option: Mapping[str, bytes]) -> bytes:
    """Return the modes that a config option of version 2 stands for."""
    available = [
        _compose(
            {
                "id": choice["value"],
                **{name: value for name, value in choice.items() if name in _CHOICE},
            }
        )
        for choice in choices(option)
        if "value" in choice
    ]
    return _compose({"currentModeId": option.get("currentValue", b'""'), "availableModes": array(available)})


def option_for(config_id: str, name: str, category: str, current: bytes | None, offered: Iterable[bytes]) -> bytes:
    """Return the config option of version 2 that stands for the modes or models of version 1."""
    found = []
    for choice in map(members, offered):
        value = choice.get("id", choice.get("modelId"))
        if value is not None:
            rest = {key: raw for key, raw in choice.items() if key in _CHOICE}
            found.append(_compose({"value": value, "name": value, **rest}))
    return _compose(
        {
            "configId": _encode(config_id),
            "name": _encode(name),
            "category": _encode(category),
            "type": b'"select"',
            "currentValue": current or b'""',
            "options": array(found),
        }
    )


# Commands


def old_commands(raw: bytes | None) -> bytes:
    """Return the commands of version 1."""
    found = []
    for parts in map(members, elements(raw)):
        parts.pop("type", None)
        if given(parts.get("input")):
            hint = members(parts["input"]).get("hint")
            if text(hint) is None:
                del parts["input"]
            else:
                parts["input"] = _compose(
                    {name: value for name, value in members(parts["input"]).items() if name != "type"}
                )
        found.append(_compose(parts))
    return array(found)


def new_commands(raw: bytes | None) -> bytes:
    """Return the commands of version 2."""
    found = []
    for parts in map(members, elements(raw)):
        if given(parts.get("input")):
            parts["input"] = _compose({"type": b'"text"', **members(parts["input"])})
        found.append(_compose({"type": b'"command"', **parts}))
    return array(found)


# Plans


def old_entries(raw: bytes | None) -> list[bytes]:
    """Return the entries of a plan of version 1."""
    if raw is not None and plain_updates.statuses_of(raw) is not None:
        return elements(raw)
    found = []
    for parts in map(members, elements(raw)):
        if text(parts.get("status")) == "cancelled":
            parts["content"] = _encode(f"{text(parts.get('content')) or ''} (cancelled)".lstrip())
        parts["status"] = old_value(table.ENTRY_STATUS, parts.get("status"), "pending")
        parts["priority"] = old_value(table.ENTRY_PRIORITY, parts.get("priority"), "medium")
        found.append(_compose(parts))
    return found


def made_entry(words: str, *, done: bool = False) -> bytes:
    """Return an entry of a plan of version 1 with these words."""
    status = "completed" if done else "pending"
    return _compose({"content": _encode(words), "priority": b'"low"', "status": _encode(status)})


# Permissions


def old_answers(raw: bytes | None) -> bytes:
    """Return the answers that a permission request offers; those of an unknown kind come last, as rejections."""
    known, others = [], []
    for answer in elements(raw):
        parts = members(answer)
        if text(parts.get("kind")) in table.OPTION_KIND.old:
            known.append(answer)
        else:
            others.append(_compose({**parts, "kind": old_value(table.OPTION_KIND, parts.get("kind"), "reject_once")}))
    return array(chain(known, others))


def shown(raw: bytes) -> str:
    """Return a JSON text as it is shown where nothing else shows it."""
    words = raw[: 4 * SHOWN_SIZE].decode(errors="replace")
    return words if len(words) <= SHOWN_SIZE else words[:SHOWN_SIZE] + " …"


# MCP servers


def new_servers(raw: bytes | None) -> bytes:
    """Return the MCP servers of version 2. Raises `Untranslatable` for one of the type `sse`."""
    found = []
    for server in elements(raw):
        parts = members(server)
        if "type" not in parts:
            server = _compose({"type": b'"stdio"', **parts})
        elif text(parts["type"]) == "sse":
            name = text(parts.get("name"))
            raise Untranslatable(f"the agent speaks version 2, which has no MCP server of the type 'sse': {name!r:.80}")
        found.append(server)
    return array(found)


def old_servers(raw: bytes | None) -> bytes:
    """Return the MCP servers of version 1. Raises `Untranslatable` for one of an unknown type."""
    found = []
    for parts in map(members, elements(raw)):
        match text(parts.get("type")):
            case "stdio":
                del parts["type"]
                parts = {"args": b"[]", "env": b"[]", **parts}
            case "http":
                parts = {"headers": b"[]", **parts}
            case "acp":
                pass
            case kind:
                raise Untranslatable(f"the agent speaks version 1, which has no MCP server of the type {kind!r:.80}")
        found.append(_compose(parts))
    return array(found)


# Authentication methods


def old_auth_methods(raw: bytes | None) -> bytes:
    """Return the authentication methods of version 1."""
    found = []
    for parts in map(members, elements(raw)):
        kind = text(parts.get("type"))
        if kind == "agent":
            del parts["type"]
        elif kind != "terminal":
            continue
        elif "env" in parts:
            pairs = map(members, elements(parts["env"]))
            parts["env"] = _compose(
                {text(pair.get("name")) or "": pair.get("value", b'""') for pair in pairs if text(pair.get("name"))}
            )
        found.append(_compose(renamed(AUTH_METHOD, parts, to_old=True)))
    return array(found)


def new_auth_methods(raw: bytes | None) -> bytes:
    """Return the authentication methods of version 2."""
    found = []
    for parts in map(members, elements(raw)):
        if text(parts.get("type")) is None:
            parts["type"] = b'"agent"'
        elif "env" in parts:
            pairs = members(parts["env"]).items()
            parts["env"] = array(_compose({"name": _encode(name), "value": value}) for name, value in pairs)
        found.append(_compose(renamed(AUTH_METHOD, parts, to_old=False)))
    return array(found)


# Elicitations


def new_form(params: dict[str, bytes]) -> dict[str, bytes]:
    """Return the params of an elicitation of version 2."""
    if not is_object(params.get("requestedSchema")):
        return params
    form = {"type": b'"object"', "properties": EMPTY, **members(params["requestedSchema"])}
    properties = members(form["properties"])
    offered = {name: raw for name, raw in properties.items() if not _lacks_choices(raw)}
    if len(offered) < len(properties):
        form["properties"] = _compose(offered)
        if given(form.get("required")):
            kept = (name for name in elements(form["required"]) if text(name) in offered)
            form["required"] = array(kept)
    return {**params, "requestedSchema": _compose(form)}


def _lacks_choices(raw: bytes) -> bool:
    """Return True for a property of a form that has a list of choices, and none in it."""
    parts = members(raw)
    items = members(parts.get("items"))
    lists = (parts.get("enum"), parts.get("oneOf"), items.get("enum"), items.get("anyOf"))
    return any(given(choices) and not elements(choices) for choices in lists)


def old_form(params: dict[str, bytes]) -> dict[str, bytes]:
    """Return the params of an elicitation of version 1."""
    form = members(params.get("requestedSchema"))
    properties = members(form.get("properties"))
    changed = {}
    for name, raw in properties.items():
        parts = members(raw)
        wanted = text(parts.get("format"))
        if text(parts.get("type")) == "string" and wanted is not None and wanted not in table.STRING_FORMAT.old:
            del parts["format"]
            changed[name] = _compose(parts)
    if not changed:
        return params
    form["properties"] = _compose({**properties, **changed})
    return {**params, "requestedSchema": _compose(form)}
