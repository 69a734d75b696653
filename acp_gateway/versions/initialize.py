"""Translates `initialize`: what client and agent say of themselves, in the words of the other version."""

from typing import Final

from acp_gateway.protocol import jsonrpc
from acp_gateway.versions.parts import EMPTY, given, is_object, members
from acp_gateway.versions.values import new_auth_methods, old_auth_methods

_compose: Final = jsonrpc.compose

UNKNOWN: Final = b'{"name":"unknown","version":"unknown"}'
"""The name of a client or agent that gives none."""

_SUPPORT: Final = ("list", "resume", "close")
_PROMPT: Final = ("image", "audio", "embeddedContext")


def _marker(raw: bytes | None) -> bytes | None:
    """Return the object that marks support in version 2; None if there is no support."""
    if raw is None or not given(raw) or raw == b"false":
        return None
    return raw if is_object(raw) else EMPTY


def _markers(raw: bytes | None) -> dict[str, bytes]:
    found = {name: _marker(value) for name, value in members(raw).items() if name != "_meta"}
    return {name: value for name, value in found.items() if value is not None}


def _flag(raw: bytes | None) -> bytes:
    return b"true" if _marker(raw) is not None else b"false"


def _meta(raw: dict[str, bytes]) -> dict[str, bytes]:
    return {"_meta": raw["_meta"]} if "_meta" in raw else {}


def new_params(params: dict[str, bytes]) -> dict[str, bytes]:
    """Return the params of version 2 for those of a client of version 1."""
    offered = members(params.get("clientCapabilities"))
    capabilities = {name: value for name, value in offered.items() if name not in ("fs", "terminal", "session", "plan")}
    if "auth" in capabilities:
        terminal = _marker(members(capabilities["auth"]).get("terminal"))
        capabilities["auth"] = EMPTY if terminal is None else _compose({"terminal": terminal})
    info = params.get("clientInfo")
    rest = {name: value for name, value in params.items() if name not in ("clientInfo", "clientCapabilities")}
    return rest | {
        "protocolVersion": b"2",
        "info": info if info is not None and is_object(info) else UNKNOWN,
        "capabilities": _compose(capabilities),
    }


def old_params(params: dict[str, bytes]) -> dict[str, bytes]:
    """Return the params of version 1 for those of a client of version 2."""
    offered = members(params.get("capabilities"))
    auth = _flag(members(offered.pop("auth", None)).get("terminal"))
    capabilities = offered | {
        "fs": b'{"readTextFile":false,"writeTextFile":false}',
        "terminal": b"false",
        "session": b'{"configOptions":{"boolean":{}},"notices":{},"compaction":{}}',
        "auth": b'{"terminal":%b}' % auth,
    }
    rest = {name: value for name, value in params.items() if name not in ("info", "capabilities")}
    return rest | {
        "protocolVersion": b"1",
        **({"clientInfo": params["info"]} if is_object(params.get("info")) else {}),
        "clientCapabilities": _compose(capabilities),
    }


def new_result(result: dict[str, bytes]) -> dict[str, bytes]:
    """Return the result of version 2 for that of an agent of version 1."""
    has = members(result.get("agentCapabilities"))
    session = {name: value for name, value in _markers(has.get("sessionCapabilities")).items() if name not in _SUPPORT}
    mcp = {name: value for name, value in _markers(has.get("mcpCapabilities")).items() if name != "sse"}
    session |= {"prompt": _compose(_markers(has.get("promptCapabilities"))), "mcp": _compose({"stdio": EMPTY, **mcp})}
    auth = {name: value for name, value in _markers(has.get("auth")).items() if name != "logout"}
    moved = ("loadSession", "promptCapabilities", "mcpCapabilities", "sessionCapabilities", "auth")
    capabilities = {name: value for name, value in has.items() if name not in moved}
    capabilities |= {"session": _compose(session)} | ({"auth": _compose(auth)} if auth else {})
    info = result.get("agentInfo")
    rest = {name: value for name, value in result.items() if name not in ("agentInfo", "agentCapabilities")}
    return rest | {
        "protocolVersion": b"2",
        "info": info if info is not None and is_object(info) else UNKNOWN,
        "capabilities": _compose(capabilities),
        "authMethods": new_auth_methods(result.get("authMethods")),
    }


def old_result(result: dict[str, bytes]) -> dict[str, bytes]:
    """Return the result of version 1 for that of an agent of version 2."""
    has = members(result.get("capabilities"))
    serves = given(has.get("session"))
    session = members(has.pop("session", None))
    prompt, mcp = members(session.pop("prompt", None)), members(session.pop("mcp", None))
    auth_methods = old_auth_methods(result.get("authMethods"))
    auth = members(has.pop("auth", None)) | ({"logout": EMPTY} if auth_methods != b"[]" else {})
    more = {name: _flag(value) for name, value in mcp.items() if name not in ("stdio", "http", "sse", "_meta")}
    capabilities = has | {
        "loadSession": b"true" if serves else b"false",
        "promptCapabilities": _compose({name: _flag(prompt.get(name)) for name in _PROMPT} | _meta(prompt)),
        "mcpCapabilities": _compose({"http": _flag(mcp.get("http")), "sse": b"false"} | more | _meta(mcp)),
        "sessionCapabilities": _compose(session | (dict.fromkeys(_SUPPORT, EMPTY) if serves else {})),
        "auth": _compose(auth),
    }
    rest = {name: value for name, value in result.items() if name not in ("info", "capabilities")}
    return rest | {
        "protocolVersion": b"1",
        **({"agentInfo": result["info"]} if is_object(result.get("info")) else {}),
        "agentCapabilities": _compose(capabilities),
        "authMethods": auth_methods,
    }
