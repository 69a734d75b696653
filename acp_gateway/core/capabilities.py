"""`initialize`: what is offered to an agent, and what is passed on of its answer.

It happens once in the life of an agent process. A process that several clients share can have one set of the client's
capabilities only, fixed before the second client comes: so the gateway offers what it can always serve, and says so in
its own name. A process with a connection of its own gets what that client offers, with its file system and terminal
masked unless the policy lets them through, for a write that goes to the editor's machine never appears on the agent's.

Authentication methods that would run a terminal command are removed from the answer, and the client's offer to run them
is masked whatever the policy says: the editor would run them on the wrong machine.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.methods import CREATE_TERMINAL, INITIALIZE, META, Capability
from acp_gateway.protocol.reasons import MAX_ERROR_SIZE
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.json_text import object_at, with_member, with_own_meta
from acp_gateway.protocol.text.spans import TooMany

VERSION: Final = 1
"""Protocol version offered to an agent that several clients share: the one that all clients speak."""


MAX_AUTH_METHODS: Final = 64
"""Maximum number of authentication methods of an agent; further ones are left out."""

_FILES: Final = {"readTextFile": "fs/read_text_file", "writeTextFile": "fs/write_text_file"}
"""Requests for files, by the members of `fs` that offer to serve them."""


_STEERING: Final = {
    methods.STEER: ("result", "_meta", "steering", "supported"),
    methods.INJECT: ("result", "agentCapabilities", "sessionCapabilities", "inject", "modes"),
    methods.PROMPT: ("result", "agentCapabilities", "_meta", "claudeCode", "promptQueueing"),
}
"""Members of the result of `initialize` that announce each method of steering: true, or a list with that mode. Without
another method, some agents take a further prompt into the turn."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """Capabilities of an agent."""

    version: int | None = None
    """Negotiated protocol version."""
    load: bool = False
    resume: bool = False
    list: bool = False
    close: bool = False
    status: bool = False
    steering: str | None = None
    """Method by which text gets into a turn that runs, if there is one."""
    folds: bool = False
    """True if the agent itself takes further prompts, each with a response, into a turn or behind it."""

    @property
    def reopens(self) -> bool:
        """True if a session outlives the process that had it."""
        return self.load or self.resume

    @property
    def echoes(self) -> bool:
        """True if the agent itself fans a prompt out to all clients of its session."""
        return self.version is not None and self.version >= 2


def own_initialize(serves: Collection[Capability], version: str) -> Message:
    """Compose `initialize` for an agent that several clients share, under an id to be replaced.

    `version` is the gateway's own, for `clientInfo`.
    """
    fs = Capability.FS in serves
    params = {
        "protocolVersion": VERSION,
        "clientCapabilities": {
            "fs": {"readTextFile": fs, "writeTextFile": fs},
            "terminal": Capability.TERMINAL in serves,
        },
        "clientInfo": {"name": "acp-gateway", "title": "acp-gateway", "version": version},
    }
    return jsonrpc.parse(jsonrpc.encode({"jsonrpc": "2.0", "id": 0, "method": INITIALIZE, "params": params}))


def mask_capabilities(text: bytes, serves: Collection[Capability]) -> bytes:
    """Mask a client's `initialize` for its own agent."""
    offered = spans.find(text, "params", "clientCapabilities")
    if offered is None or text[offered[0]] != ord("{"):
        return text
    edits = []
    for member in spans.members(text, offered[0]):
        # As an agent compares it that does not look at the case.
        name = methods.fold(spans.string_value(member.name))
        if name == "fs" and Capability.FS not in serves:
            edits.append((member.start, member.end, b'{"readTextFile":false,"writeTextFile":false}'))
        elif name == "terminal" and Capability.TERMINAL not in serves:
            edits.append((member.start, member.end, b"false"))
        elif name == "auth" and text[member.start] == ord("["):
            edits.append((member.start, member.end, b"{}"))
        elif name == "auth" and text[member.start] == ord("{"):
            edits += [
                (inner.start, inner.end, b"false")
                for inner in spans.members(text, member.start)
                if methods.fold(spans.string_value(inner.name)) == "terminal"
            ]
    return spans.splice(text, edits)


def flaw_of_offer(text: bytes) -> str | None:
    """Return why a client's offer cannot be masked, else None. Some parsers take an array for an object."""
    offered = lookup.raw_at(text, "params", "clientCapabilities")
    if offered is not None and offered[:1] not in b"{n":
        return "clientCapabilities must be an object"
    try:
        mask_capabilities(text, ())
    except TooMany as error:
        return f"clientCapabilities: {error}"
    return None


def wants_news(text: bytes) -> bool:
    """Return True if a client's `initialize` asks for the gateway's own notifications."""
    asked = lookup.raw_at(text, "params", "clientCapabilities", "_meta", META)
    return asked not in (None, b"null", b"false")


def asks_for(text: bytes, name: str) -> bool:
    """Return True if a client's `initialize` asks for one thing of the gateway, by its name.

    That is `queue` for news of the prompts that wait, `rules` for those that may be written with answers to
    permissions, `ends` for the ends of turns in histories, as news, or `cursors` in what the client gets.
    """
    return lookup.raw_at(text, "params", "clientCapabilities", "_meta", META, name) == b"true"


def decides(text: bytes) -> bool:
    """Return False if a client's `initialize` says that it answers no questions."""
    return lookup.raw_at(text, "params", "clientCapabilities", "_meta", META, "decides") != b"false"


def offered_requests(text: bytes) -> frozenset[str]:
    """Return the requests for files and new terminals that a client offers to serve in its `initialize`."""
    fs = lookup.members_at(text, "params", "clientCapabilities", "fs")
    offered = {method for member, method in _FILES.items() if fs.get(member) == b"true"}
    if lookup.raw_at(text, "params", "clientCapabilities", "terminal") == b"true":
        offered.add(CREATE_TERMINAL)
    return frozenset(offered)


def requested_version(text: bytes) -> int | None:
    """Return the protocol version of a client's `initialize`; None if it is not a whole number."""
    raw = lookup.raw_at(text, "params", "protocolVersion")
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 10 else None


def abilities(response: bytes) -> Abilities:
    """Read the agent's capabilities from the result of `initialize`."""
    version = lookup.raw_at(response, "result", "protocolVersion")
    capabilities = lookup.members_at(response, "result", "agentCapabilities")
    sessions = lookup.members_at(response, "result", "agentCapabilities", "sessionCapabilities")
    return Abilities(
        version=int(version) if version is not None and version.isdigit() and len(version) < 10 else None,
        load=capabilities.get("loadSession") == b"true",
        steering=next((method for method, path in _STEERING.items() if _steers(response, path)), None),
        folds=_steers(response, _STEERING[methods.PROMPT]),
        **{name: sessions.get(name) not in (None, b"null", b"false") for name in ("resume", "list", "close", "status")},
    )


def _steers(response: bytes, path: tuple[str, ...]) -> bool:
    told = lookup.raw_at(response, *path)
    return told is not None and (told == b"true" or (told[:1] == b"[" and b'"steer"' in told))


def advertise(response: bytes) -> bytes:
    """Add the gateway's capabilities to the result of `initialize`, for an agent that clients share.

    Other clients can load, resume, list and close a session that one client has open, whatever the agent supports.
    """
    if abilities(response).version != VERSION:
        return response
    capabilities = lookup.members_at(response, "result", "agentCapabilities")
    sessions = lookup.members_at(response, "result", "agentCapabilities", "sessionCapabilities")
    for name in ("list", "resume", "close"):
        if sessions.get(name) in (None, b"null", b"false"):
            sessions[name] = b"{}"
    capabilities |= {"loadSession": b"true", "sessionCapabilities": jsonrpc.compose(sessions)}
    result = lookup.members_at(response, "result")
    result["agentCapabilities"] = jsonrpc.compose(capabilities)
    at = spans.find(response, "result")
    assert at is not None
    return spans.splice(response, [(*at, jsonrpc.compose(result))])


def advertise_own(response: bytes, *, cursors: bool = False, queue: bool = False) -> bytes:
    """Add to the result of `initialize` what the gateway has for one client.

    With `cursors`, that is cursors and the status of sessions; with `queue`, that prompts may wait for a time.
    """
    at = spans.find(response, "result", "agentCapabilities")
    if at is None or response[at[0]] != ord("{") or not (cursors or queue):
        return response
    offered = response[slice(*at)]
    own = object_at(offered, "_meta", META)
    if cursors:
        sessions = with_member(object_at(offered, "sessionCapabilities"), "status", b"{}")
        offered = with_member(offered, "sessionCapabilities", sessions)
        own = with_member(own, "cursors", b"true")
    if queue:
        own = with_member(own, "queue", b"true")
    return spans.splice(response, [(*at, with_own_meta(offered, own))])


def auth_methods(response: bytes) -> list[dict[str, Any]]:
    """Return the agent's authentication methods; undecodable ones are empty."""
    return [_object(spelling) for spelling in _auth_method_texts(response)]


def strip_terminal_logins(response: bytes) -> bytes:
    """Remove the authentication methods that would run a command from the result of `initialize`."""
    spellings = _auth_method_texts(response)
    kept = [spelling for spelling in spellings if not _runs_in_terminal(spelling)]
    if len(kept) == len(spellings) < MAX_AUTH_METHODS:
        return response
    offered = spans.find(response, "result", "authMethods")
    assert offered is not None
    return spans.splice(response, [(*offered, b"[" + b",".join(kept) + b"]")])


def explain_login(response: bytes, methods: list[dict[str, Any]], hint: Callable[[list[dict[str, Any]]], str]) -> bytes:
    """Add instructions for logging in to an agent's authentication error."""
    if len(response) > MAX_ERROR_SIZE or lookup.raw_at(response, "error", "code") != b"%d" % jsonrpc.AUTH_REQUIRED:
        return response
    said = spans.find(response, "error", "message")
    if said is None or response[said[0]] != ord('"'):
        return response
    words = spans.string_value(response[said[0] : said[1]]).strip()
    if words and not words.endswith((".", "!", "?")):
        words += "."
    explained = f"{words} {hint(methods)}".lstrip()
    return spans.splice(response, [(*said, jsonrpc.encode(explained))])


def _auth_method_texts(response: bytes) -> list[bytes]:
    offered = spans.find(response, "result", "authMethods")
    if offered is None or response[offered[0]] != ord("["):
        return []
    return [response[start:end] for start, end in islice(spans.elements(response, offered[0]), MAX_AUTH_METHODS)]


def _runs_in_terminal(auth_method: bytes) -> bool:
    return (
        lookup.text_at(auth_method, "type") == "terminal"
        or lookup.text_at(auth_method, "_meta", "type") == "terminal"
        or spans.find(auth_method, "_meta", "terminal-auth") is not None
    )


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
