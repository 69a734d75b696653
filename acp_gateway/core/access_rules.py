"""Access rules for messages of clients: role, reach of the connection, and readable parameters.

Messages *in* a session also need a client that is attached to it.

An agent may use the files of a client in the directories of its session. The files are on the client's machine, so
nothing is looked up: paths are compared as text, by whole components. The client may map a path to another one, and may
run Windows, where a backslash separates components, a path that begins with two separators names another machine, and
dots and spaces at the end of a name do not count. A path that may leave the directory on any such machine is refused.
Links on the client's machine are the client's.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from acp_gateway.core.agent_state import Policy
from acp_gateway.core.requests import ErrorObject
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Session
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import InvalidMessage, Message
from acp_gateway.protocol.methods import current_name
from acp_gateway.protocol.text import lookup, spans, strict_parsing
from acp_gateway.protocol.text.spans import TooMany

CWD: Final = "cwd"
_NO_DIRECTORY: Final = frozenset({"", ".", "./"})
"""Values of `cwd` that name no directory, from clients that know no path of the gateway's machine."""
DIRECTORIES: Final = "additionalDirectories"


def objection_to_request(client: Client, message: Message) -> ErrorObject | None:
    """Return the error that a request is refused with; None if it is permitted."""
    rules = methods.client_method(message.method)
    if not client.controls and not rules.observer:
        return ErrorObject(jsonrpc.METHOD_NOT_FOUND, f"observers may only look: no {message.method:.80}")
    reach = client.reach
    if (reach.guest and not rules.guest) or (reach.only is not None and not _is_within(message, rules)):
        return ErrorObject(jsonrpc.INVALID_REQUEST, f"this connection is for one session only: no {message.method:.80}")
    unknown = message.session is None and not methods.is_known(message.method)
    if reach.workspaces is not None and (rules.whole or unknown):
        # An unknown method may open, list or read anything.
        return ErrorObject(
            jsonrpc.INVALID_REQUEST, f"this connection is for some workspaces only: no {message.method:.80}"
        )
    if message.method in methods.CLIENT_NOTIFICATIONS:
        # Some agents ignore the id of a request: the checks and translations of the notification would be bypassed.
        return ErrorObject(jsonrpc.INVALID_REQUEST, f"{message.method} is a notification, which has no id")
    flaw = flaw_of_params(message)
    return None if flaw is None else ErrorObject(jsonrpc.INVALID_PARAMS, flaw)


def objection_to_notification(client: Client, message: Message) -> str | None:
    """Return why a notification is dropped; None if it is permitted."""
    if not client.controls:
        return "observers may only look"
    if client.reach.guest and message.method != methods.SESSION_CANCEL:
        return "guests may only send session/cancel"
    if client.reach.only is not None and message.session is None:
        return "this connection is for one session only"
    if client.reach.workspaces is not None and message.session is None:
        # An unknown method may open, list or read anything.
        return "this connection is for some workspaces only, and it names no session"
    if message.method in methods.CLIENT_METHODS and not methods.client_method(message.method).notifies:
        # Some agents ignore a missing id, and would execute a request that was not checked.
        return "it is a request, which has an id"
    if message.method in methods.CLIENT_NOTIFICATIONS and message.session is None:
        # Without a session, an agent might end the turns of all, or take a file for that of another client.
        return "it names no session"
    return flaw_of_params(message)


def _is_within(message: Message, rules: methods.ClientMethod) -> bool:
    """Return True if a request is within the reach of a connection for one session."""
    if message.method in (methods.NEW, methods.LIST, methods.AUTHENTICATE):
        return True
    return message.session is not None and not (rules.beyond or rules.whole)


def flaw_of_params(message: Message) -> str | None:
    """Return why the subject of a message is ambiguous: the receiver must read what was checked here.

    Some parsers take `session_id` or `SessionId` for `sessionId`, an array of one string for that string, and an array
    for an object with its members in order.
    """
    if message.session is not None and len(message.session) > SESSION_ID_SIZE:
        return f"a session's id has at most {SESSION_ID_SIZE} characters"
    known = methods.has_known_params(message.method)
    if known and not message.params:
        params = lookup.raw_params(message)
        if params in (b"", b"null"):
            return None if methods.client_method(message.method).bare else "params are missing: they must be an object"
        if params[:1] != b"{":
            return "params must be an object"
    members = lookup.params_of(message)
    # Members beyond the limit are not parsed: then estimate their number from the size.
    size = len(members) if members or not known else len(lookup.raw_params(message)) // 2
    if known and size > methods.MEMBERS:
        return f"params of {message.method:.80} have at most {methods.MEMBERS} members"
    if not members.keys() <= methods.PLAIN_NAMES:
        for name in members:
            meant = methods.CHECKED_NAMES.get(methods.fold(name), name)
            if name != meant and (known or meant == "sessionId"):
                return f"{meant} must have that very name, not {name!r:.80}"
    if message.session is None and "sessionId" in members and bytes(members["sessionId"]) != b"null":
        return "sessionId must be a string"
    return None


def flaw_of_size(message: Message, policy: Policy) -> str | None:
    """Return why a client's request is larger than the gateway can look into, None where it isn't."""
    if message.method in methods.PROMPTS:
        most = policy.limits.max_prompt_blocks
        is_short = _is_short(lookup.params_of(message).get(methods.PROMPTS[message.method], b"null"), most)
        return None if is_short else f"a prompt has at most {most} blocks (max_prompt_blocks)"
    size, most = len(message.text), policy.limits.session_request_size
    if size <= most or message.method in methods.UNREAD or not methods.is_known(message.method):
        return None
    return f"{message.method} has {size} bytes, session_request_size allows {most}"


def flaw_of_question(message: Message, policy: Policy) -> str | None:
    """Return why the parameters of an agent's request are ambiguous or too many; None if they are fine."""
    flaw = flaw_of_params(message)
    most = policy.limits.max_permission_options
    if flaw is None and not _is_short(lookup.params_of(message).get("options", b"null"), most):
        flaw = f"a question has at most {most} options (max_permission_options)"
    return flaw


def _is_short(array: bytes | msgspec.Raw, most: int) -> bool:
    """Return False for an array of more than `most` elements."""
    text = bytes(array)
    if text.count(b",") < most or text[:1] != b"[":
        return True
    try:
        return sum(1 for _ in spans.elements(text, most=most)) <= most
    except TooMany:
        return False


def flaw_of_opening(message: Message, most: int) -> str | None:
    """Return why the directories of a session to open are ambiguous, or more than `most`; None if they are fine."""
    members = lookup.params_of(message)
    if bytes(members.get(CWD, b"null"))[:1] not in b'"n':
        return f"{CWD} must be a string"
    more = bytes(members.get(DIRECTORIES, b"null"))
    if more == b"null":
        return None
    if more[:1] != b"[" or not _are_strings(more, most):
        return f"{DIRECTORIES} must be an array of at most {most} strings (max_additional_directories)"
    return None


def named_cwd(message: Message) -> str | None:
    """Return the `cwd` of a request; None if that names no directory."""
    cwd = lookup.text_param(message, CWD)
    return None if cwd in _NO_DIRECTORY else cwd


def directories_of(message: Message) -> tuple[str, ...]:
    """Return the directories that the opening of a session names, `cwd` first; `flaw_of_opening` has counted them."""
    cwd = named_cwd(message)
    more = lookup.param(message, DIRECTORIES)
    named = [] if more is None or more[:1] != b"[" else map(spans.string_value, lookup.elements_of(more, len(more)))
    return (*(() if cwd is None else (cwd,)), *named)


def _are_strings(array: bytes, most: int) -> bool:
    first = islice(spans.elements(array, most=most + 1), most + 1)
    return all(count < most and array[at[0]] == ord('"') for count, at in enumerate(first))


FENCED: Final = frozenset({"fs/read_text_file", "fs/write_text_file"})
"""Methods whose only path is `params.path`."""

PATH_SIZE: Final = 4096
"""Maximum characters of a path, as on Linux."""

_DOTS: Final = frozenset(". ")


def flaw_of_file_request(message: Message, session: Session | None) -> str | None:
    """Return why an agent's `fs/` request may not be forwarded; None if its path is within the session."""
    if current_name(message.method) not in FENCED:
        return "is not known here, so its paths cannot be checked"
    try:
        _, repeated = strict_parsing.parse_strictly(message.text)
    except InvalidMessage as error:
        return f"can't be checked: {error}"
    path = lookup.text_param(message, "path")
    if repeated is not None or path is None:
        return "needs one path, a string"
    return flaw_of_path(path, () if session is None else _directories(session))


def flaw_of_path(path: str, directories: Iterable[str]) -> str | None:
    """Return why a path is not within any of the directories; None if it is. Directories are absolute POSIX paths."""
    if not path.startswith("/"):
        return "needs an absolute path"
    if len(path) > PATH_SIZE or "\0" in path:
        return f"needs a path of at most {PATH_SIZE} characters without a NUL"
    names = path.replace("\\", "/").split("/")
    if any(len(name) > 1 and _DOTS.issuperset(name) for name in names):
        return "needs a path without .."
    # A network path.
    if names[1] == "" and len(names) > 2:
        return "needs a path on the client's machine"
    for directory in directories:
        root = _normalized(directory)
        # As text, from the first character on: a client's map compares it in the same way.
        if root is not None and (path == root or path.startswith("/" if root == "/" else f"{root}/")):
            return None
    return "needs a path in the session's directories"


def _directories(session: Session) -> tuple[str, ...]:
    """Return the directories of a session, `cwd` first."""
    if not session.setup:
        return () if session.cwd is None else (session.cwd,)
    setup = b'{"id":0,"method":"session/new","params":%b}' % jsonrpc.compose(session.setup)
    return directories_of(jsonrpc.parse(setup))


def _normalized(directory: str) -> str | None:
    """Return an absolute directory without empty components, `.` and `..`; None if it is not absolute."""
    if not directory.startswith("/"):
        return None
    names: list[str] = []
    for name in directory.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)
