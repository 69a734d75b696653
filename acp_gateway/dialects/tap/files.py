"""Finds the files that an agent uses in its messages: paths, and what was done with each.

Paths are those of the gateway's machine. A path below the session's directory is relative to that, any other one
absolute. Paths in free text are guesses: `@path` in prompts, targets of redirections, results of searches.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import islice
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from acp_gateway.acp.reading import ABSENT
from acp_gateway.acp.updates import Option, Passed, SessionUpdate, Update
from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.spans import MalformedJson
from acp_gateway.protocol.text.string_finder import Shape, StringFinder

Action = Literal["user_provided", "user_referenced", "read", "write", "search"]

PATH_SIZE: Final = 1024
"""Maximum bytes of a path: three times those of the deepest projects; longer ones are left out."""

TEXT_SIZE: Final = 64 * 1024
"""Characters of the texts of one message that are searched for paths: a long page of a terminal, and 15 ms at most."""

FOUND: Final = 200
"""Maximum number of paths that are taken from one text: several screens of results."""

CALLS: Final = 256
"""Tool calls of a session whose kind is remembered for their updates; those that run at a time are a handful."""

ID_SIZE: Final = 1024
"""Maximum characters of the id of a tool call that is remembered."""

REQUESTS: Final[Mapping[str, Action]] = {"fs/read_text_file": "read", "fs/write_text_file": "write"}
"""Requests of an agent whose only path is `params.path`, and what each does with the file."""


class _Word(Enum):
    LOCATION = auto()
    DIFF = auto()
    INPUT = auto()
    COMMAND = auto()
    OUTPUT = auto()
    TEXT = auto()
    LINK = auto()
    RESOURCE = auto()


_NAMES: Final = (
    *("path", "file_path", "filePath", "filepath", "absolute_path", "absolutePath", "abs_path", "file", "filename"),
    *("notebook_path", "old_path", "new_path", "oldPath", "newPath", "source", "destination", "target_file"),
)
"""Members of a tool's input that have a path, among the agents that are known."""

_TOOL_CALL: Final[Mapping[str, Shape]] = {
    "locations": [{"path": _Word.LOCATION}],
    "content": [
        {
            "path": _Word.DIFF,
            "content": {"text": _Word.OUTPUT},
            # A file that an agent of version 2 has moved, copied or deleted.
            "_meta": {methods.META: {"change": {"path": _Word.DIFF, "oldPath": _Word.DIFF}}},
        }
    ],
    "rawInput": {
        **dict.fromkeys(_NAMES, _Word.INPUT),
        **{name: [_Word.INPUT] for name in ("paths", "files", "file_paths", "filePaths")},
        "command": (_Word.COMMAND, [_Word.COMMAND]),
        "cmd": (_Word.COMMAND, [_Word.COMMAND]),
    },
    "rawOutput": (_Word.OUTPUT, dict.fromkeys(("output", "stdout", "formatted_output"), _Word.OUTPUT)),
}

_PROMPT: Final[Shape] = {"text": _Word.TEXT, "uri": _Word.LINK, "resource": {"uri": _Word.RESOURCE}}

_tool_calls: Final = StringFinder(
    {methods.SESSION_UPDATE: {"update": _TOOL_CALL}, methods.REQUEST_PERMISSION: {"toolCall": _TOOL_CALL}},
)
_prompts: Final = StringFinder({methods.SESSION_UPDATE: {"update": {"content": _PROMPT}}})

_KINDS: Final[Mapping[str, Action]] = {"edit": "write", "delete": "write", "move": "write", "search": "search"}
"""Meaning of the locations and the input of a tool, by its kind; of any other kind they are read."""

_NO_INPUT: Final = ("fetch", "think", "execute", "switch_mode")
"""Kinds whose input names no files by its members."""

MESSAGE_SIZE: Final = 8 * 1024 * 1024
"""Maximum bytes of a message that is searched: a larger one holds a picture or the output of a tool."""

_RELEVANT: Final = (b'"tool_call', b'"user_message_chunk"', b'"usage_update"')
"""One of these is in each message that says anything here; most messages are pieces of the agent's text."""

_QUOTED: Final = r"'[^']*+'" + r'|"(?:[^"\\]|\\.)*+"'
_REDIRECTION: Final = re.compile(
    rf"(?:{_QUOTED}|\\.)|(?<![<>=-])>>?\|?(?!&)[ \t]*+({_QUOTED}|(?:[^\s'\"\\;<>|&()$`]|\\.)++)", re.DOTALL
)
_HERE_DOCUMENT: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_RESULT: Final = re.compile(r"([\w./@+~-]++):(?!/)", re.ASCII)
_REFERENCE: Final = re.compile(r"(?<![\w@./])@([\w./+~-]*[\w/+~-])")
_FILE_URI: Final = re.compile(r"file:(?://(?:localhost)?)?(/[^?#]*)", re.IGNORECASE)
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class Touch(NamedTuple):
    """One use of a file."""

    path: str
    action: Action


class Usage(NamedTuple):
    """The size of the agent's context, in tokens, and what the session has cost."""

    used: int
    size: int
    cost: dict[str, Any] | None


class Seen(NamedTuple):
    """The statements of a message about files."""

    touches: tuple[Touch, ...] = ()
    begins_turn: bool = False
    """True for the first piece of a user's prompt, which has one for each of its blocks."""
    usage: Usage | None = None

    @property
    def says_nothing(self) -> bool:
        """True if there is no statement."""
        return self == _NOTHING


class Refusable(NamedTuple):
    """Files that a permission is asked for."""

    touches: tuple[Touch, ...]
    """Each is read or written."""
    refusals: frozenset[str]
    """Names and ids of the options that refuse, without those of others."""


_NOTHING: Final = Seen()


class _Cost(msgspec.Struct):
    amount: float
    currency: str


class _Usage(msgspec.Struct):
    used: int
    size: int = 0
    cost: _Cost | None = None


_decode_usage: Final = msgspec.json.Decoder(_Usage).decode


class FileFinder:
    """Finds files in the messages of one session, in their order.

    Args:
        cwd: the session's directory; None if it is unknown.
        ignored: names of directories whose files are left out.
    """

    def __init__(self, cwd: str | None, ignored: Collection[str]) -> None:
        self._cwd = cwd if cwd is not None and cwd.startswith("/") else "/"
        self._ignored = frozenset(ignored)
        # Kinds of tool calls, by session and id: updates do not repeat them. The latest are last.
        self._kinds: dict[tuple[str | None, str], str] = {}
        # True after a piece of a prompt.
        self._in_prompt = False

    def read(self, message: bytes) -> Seen:
        """Return what a `session/update` says; nothing if it is nested too deeply to be read."""
        was_in_prompt, self._in_prompt = self._in_prompt, False
        if len(message) > MESSAGE_SIZE or not any(word in message for word in _RELEVANT):
            return _NOTHING
        told = SessionUpdate.of(message)
        kind = told.update.kind
        if kind == methods.USER_CHUNK:
            self._in_prompt = True
            return Seen(self._of_prompt(message), begins_turn=not was_in_prompt)
        if kind in (methods.TOOL_CALL, methods.TOOL_CALL_UPDATE):
            return Seen(self._in_tool_call(message, told.update, told.session_id))
        return Seen(usage=_usage(Passed.of(message).update)) if kind == "usage_update" else _NOTHING

    def in_request(self, message: Message) -> tuple[Touch, ...]:
        """Return the files of a request of the agent to a client: those that it is to read or to write."""
        # The content of a file that is written may be large; its path was read with the message.
        action = REQUESTS.get(methods.current_name(message.method))
        if action is None:
            return ()
        try:
            path = lookup.text_param(message, "path")
        except MalformedJson:
            return ()
        return self._touches([(path or "", action)])

    def refusable(self, message: Message) -> Refusable:
        """Return what a permission request is about; nothing if it has too many options, or is nested too deeply."""
        try:
            return self._refusable(message)
        except MalformedJson:
            return Refusable((), frozenset())

    def _refusable(self, message: Message) -> Refusable:
        call = Update.read(lookup.param(message, "toolCall") or ABSENT)
        found = self._of_tool_call(message.text, self._kind_of(call, message.session))
        actions: list[tuple[str, Action]] = [(it.path, "write" if it.action == "write" else "read") for it in found]
        return Refusable(tuple(dict.fromkeys(Touch(*it) for it in actions)), _refusals(message))

    def relative(self, path: str) -> str | None:
        """Return a path as it is told; None for one that is left out, or for text that is not a path."""
        if not path or len(path) > PATH_SIZE or _UNPRINTABLE.search(path):
            return None
        # Two slashes at the beginning would stay.
        absolute = "/" + posixpath.normpath(posixpath.join(self._cwd, path)).lstrip("/")
        root = "/" + posixpath.normpath(self._cwd).strip("/")
        below = absolute.startswith(root.rstrip("/") + "/")
        told = absolute[len(root.rstrip("/")) + 1 :] if below else absolute
        if absolute in ("/", root) or len(told.encode()) > PATH_SIZE or self._ignored.intersection(told.split("/")):
            return None
        return told

    def _touches(self, found: Iterable[tuple[str, Action]]) -> tuple[Touch, ...]:
        named = ((self.relative(path), action) for path, action in found)
        return tuple(dict.fromkeys(Touch(path, action) for path, action in named if path is not None))

    def _of_prompt(self, message: bytes) -> tuple[Touch, ...]:
        found: list[tuple[str, Action]] = []
        texts = _Texts()
        for word, text, *_ in _prompts.find(message):
            if word is _Word.TEXT:
                names = islice(_REFERENCE.finditer(texts.searched(text)), FOUND)
                # Without a slash or a dot it is the name of a person.
                found += [(it[1], "user_referenced") for it in names if "/" in it[1] or "." in it[1]]
            else:
                path = texts.path_of(text)
                found.append((path, "user_provided" if word is _Word.RESOURCE else "user_referenced"))
        return self._touches(found)

    def _in_tool_call(self, message: bytes, update: Update, session: str | None) -> tuple[Touch, ...]:
        kind = self._kind_of(update, session)
        return () if update.status == "failed" else self._of_tool_call(message, kind)

    def _kind_of(self, call: Update, session: str | None) -> str:
        """Return the kind of a tool call, and remember it."""
        call_id = call.tool_call_id or ""
        key = session, call_id
        kind = call.tool_kind or self._kinds.get(key, "other")
        self._kinds.pop(key, None)
        if len(call_id) <= ID_SIZE and len(kind) <= ID_SIZE:
            self._kinds[key] = kind
            if len(self._kinds) > CALLS:
                del self._kinds[next(iter(self._kinds))]
        return kind

    def _of_tool_call(self, message: bytes, kind: str) -> tuple[Touch, ...]:
        action = _KINDS.get(kind, "read")
        found: list[tuple[str, Action]] = []
        texts = _Texts()
        for word, text, *_ in _tool_calls.find(message):
            if word is _Word.LOCATION:
                found.append((text, action))
            elif word is _Word.DIFF:
                found.append((text, "write"))
            elif word is _Word.INPUT and kind not in _NO_INPUT:
                found.append((texts.path_of(text), action))
            elif word is _Word.COMMAND and kind == "execute":
                found += [(path, "write") for path in redirected(texts.searched(text))]
            elif word is _Word.OUTPUT and kind in ("execute", "search"):
                found += [(path, "search") for path in listed(texts.searched(text))]
        return self._touches(found)


class _Texts:
    """The texts of one message, as far as they are searched."""

    def __init__(self) -> None:
        self._left = TEXT_SIZE

    def searched(self, text: str) -> str:
        """Return the part of a text that is searched."""
        part = text[: self._left]
        self._left -= len(part)
        return part

    def path_of(self, uri: str) -> str:
        """Return the path of a `file:` URI, or what has no scheme; empty for other URIs."""
        match = _FILE_URI.match(uri)
        if not match:
            return "" if re.match("[A-Za-z][A-Za-z0-9+.-]*:", uri) else uri
        path = match[1]
        if "%" not in path:
            return path
        # To decode escapes takes as long as to search a text.
        return unquote(path) if len(self.searched(path)) == len(path) else ""


def redirected(command: str) -> list[str]:
    """Return the files that a shell command writes to by `>` and `>>`, as far as their names stand there."""
    found = []
    for match in _REDIRECTION.finditer(_without_here_documents(command)):
        target = match[1]
        if target is None:
            continue
        plain = target[1:-1] if target[0] in "'\"" else re.sub(r"\\(.)", r"\1", target)
        if plain and not plain.startswith("/dev/") and not (target[0] == '"' and re.search("[$`]", plain)):
            found.append(plain)
        if len(found) == FOUND:
            break
    return found


def _without_here_documents(command: str) -> str:
    if "<<" not in command:
        return command
    kept, end = [], None
    for line in command.split("\n"):
        if end is not None:
            end = None if line.strip() == end else end
            continue
        kept.append(line)
        begun = _HERE_DOCUMENT.search(line)
        end = begun[2] if begun else None
    return "\n".join(kept)


def listed(output: str) -> list[str]:
    """Return the files whose paths, followed by a colon, begin lines of an output, as those of `grep` do."""
    found = []
    for line in _lines(output):
        match = _RESULT.match(line)
        # Neither `Error:` is a path nor the time `12:30`.
        if match and ("/" in match[1] or "." in match[1]) and re.search("[A-Za-z]", match[1]):
            found.append(match[1])
            if len(found) == FOUND:
                break
    return list(dict.fromkeys(found))


def _lines(text: str) -> Iterator[str]:
    return (line[: PATH_SIZE + 1] for line in text.split("\n"))


def _usage(update: msgspec.Raw) -> Usage | None:
    try:
        found = _decode_usage(update)
    except (msgspec.DecodeError, RecursionError):
        return None
    cost = None if found.cost is None else {"amount": found.cost.amount, "currency": found.cost.currency}
    return Usage(found.used, found.size, cost)


def _refusals(request: Message) -> frozenset[str]:
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for option in Option.each(lookup.param(request, "options") or ABSENT):
        refuses = (option.kind or "").startswith("reject")
        names[refuses] |= {option.name or "", option.option_id or ""}
    return frozenset(names[True] - names[False])
