"""Reads what `_meta` tells of an agent of version 2, for a client of version 2: terminals, changes of files, plans.

`new_agent` has put it into messages of version 1, whose histories all clients share.
"""

from base64 import b64encode
from collections.abc import Iterator
from typing import Final

from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import META
from acp_gateway.versions import table
from acp_gateway.versions.diffs import new_diff
from acp_gateway.versions.parts import array, elements, is_object, members, text

_compose: Final = jsonrpc.compose
_encode: Final = jsonrpc.encode

_Members = dict[str, bytes]

OWN: Final = b'"%b"' % META.encode()
"""Part of each message that may tell something."""


def own(parts: _Members) -> _Members:
    """Return what the gateway tells in the `_meta` of an object."""
    return members(members(parts.get("_meta")).get(META))


def without_own(parts: _Members) -> _Members:
    """Return an object without that."""
    meta = members(parts.get("_meta"))
    if META not in meta:
        return parts
    del meta[META]
    rest = {name: value for name, value in parts.items() if name != "_meta"}
    return rest | ({"_meta": _compose(meta)} if meta else {})


def content(items: list[bytes]) -> list[bytes]:
    """Return the content of a tool call in version 2; an item without anything told stays as it is."""
    found: list[bytes] = []
    named: bytes | None = None
    for item in items:
        parts = members(item) if OWN in item else {}
        told = own(parts)
        change = told.get("change")
        is_diff = text(parts.get("type")) == "diff"
        if "terminal" in told:
            found.append(_terminal(told["terminal"]))
        elif is_object(change) and change is not None:
            if is_diff and change == named:
                # The text before it has named the change.
                del found[-1]
            diff = members(new_diff(without_own(parts))) if is_diff else {"type": b'"diff"'}
            found.append(_compose({**diff, "changes": array([change])}))
        elif "terminalEnd" not in told:
            found.append(item)
        named = None if is_diff else change
    return found


def _terminal(about: bytes) -> bytes:
    return _compose({"type": b'"terminal"', "terminalId": _id(members(about))})


def _id(about: _Members) -> bytes:
    return _encode(text(about.get("terminalId")) or "")


def terminals(update: _Members) -> Iterator[_Members]:
    """Yield the updates of terminals that the update of a tool call tells."""
    shown = set()
    for item in elements(update.get("content")):
        parts = members(item) if OWN in item else {}
        told = own(parts)
        for name in ("terminal", "terminalEnd"):
            about = members(told.get(name))
            if about and not (name == "terminalEnd" and _id(about) in shown):
                shown.add(_id(about))
                output = _output(members(parts.get("content")).get("text")) if name == "terminal" else {}
                status = {key: about[key] for key in ("exitStatus",) if key in about}
                yield {"sessionUpdate": _encode(table.TERMINAL_UPDATE), "terminalId": _id(about), **output, **status}
    about = members(own(update).get("terminal"))
    if "output" in about:
        whole = _output(about["output"])
        yield {"sessionUpdate": _encode(table.TERMINAL_UPDATE), "terminalId": _id(about), **whole}
    elif about:
        data = _data(about.get("data"))
        yield {"sessionUpdate": _encode(table.TERMINAL_CHUNK), "terminalId": _id(about), "data": data}


def _output(words: bytes | None) -> _Members:
    return {"output": _compose({"data": _data(words)})}


def _data(words: bytes | None) -> bytes:
    return _encode(b64encode((text(words) or "").encode(errors="replace")).decode())


def plans(update: _Members, before: list[str]) -> tuple[list[_Members], list[str]] | None:
    """Return the updates of the plans that an update tells, and the ids of all; None if it tells none.

    `before` are the ids that there were: a plan that was removed becomes an empty one.
    """
    told = own(update)
    if "plans" not in told:
        return None
    ids = [name for raw in elements(told["plans"]) if (name := text(raw)) is not None]
    found = [_plan(name, []) for name in before if name not in ids]
    entries = elements(update.get("entries"))
    count = told.get("entries", b"")
    if ids:
        found.append(_plan(ids[-1], entries[: int(count)] if count.isdigit() else entries))
    return found, ids


def _plan(name: str, entries: list[bytes]) -> _Members:
    plan = {"type": b'"items"', "planId": _encode(name), "entries": array(entries)}
    return {"sessionUpdate": _encode(table.PLAN_UPDATE), "plan": _compose(plan)}
