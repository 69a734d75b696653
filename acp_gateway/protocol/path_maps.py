"""Path maps: the same files have other names on the gateway's machine than on the editor's.

The tables below say which members of which messages hold a path or a `file:` URI; nothing else is touched, least
of all free text, `_meta`, `rawInput` and `rawOutput`. A message is walked along its table, and the strings that
lie below a mapped directory are spliced into it: everything else stays byte for byte, and a message that has
nothing to map is returned as the same object. Most messages are not even walked, see `_Direction._concerns`.

Paths are compared component by component: `/Users/ann/proj` says nothing about `/Users/ann/project`. The side of the
editor may be Windows, where `/` and the backslash are alike and so are capitals and small letters; the gateway's side
is POSIX.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from acp_gateway.errors import UsageError
from acp_gateway.protocol.spans import (
    MalformedJson,
    TooMany,
    elements,
    members,
    skip_space,
    splice,
    string_value,
    structure,
    value_end,
)


class Mapped(Enum):
    """A string to map, by what it holds."""

    PATH = "path"
    URI = "uri"


Shape: TypeAlias = "Mapped | Mapping[str, Shape] | list[Shape] | tuple[Shape, ...]"
"""Position of the strings to map in a value: a string, members of an object, [elements of an array], (this or that)."""

_CONTENT_BLOCK: Final[Shape] = {"uri": Mapped.URI, "resource": {"uri": Mapped.URI}}
_TOOL_CALL_CONTENT: Final[Shape] = {"path": Mapped.PATH, "content": _CONTENT_BLOCK}
_LOCATION: Final[Shape] = {"path": Mapped.PATH}
_DIRECTORIES: Final[Shape] = {"cwd": Mapped.PATH, "additionalDirectories": [Mapped.PATH]}
_DOCUMENT: Final[Shape] = {"uri": Mapped.URI}

PARAMS_FROM_EDITOR: Final[Mapping[str, Shape]] = {
    "session/new": _DIRECTORIES,
    "session/load": _DIRECTORIES,
    "session/resume": _DIRECTORIES,
    "session/fork": _DIRECTORIES,
    "session/list": {"cwd": Mapped.PATH},
    "session/prompt": {"prompt": [_CONTENT_BLOCK]},
    "document/didOpen": _DOCUMENT,
    "document/didChange": _DOCUMENT,
    "document/didClose": _DOCUMENT,
    "document/didSave": _DOCUMENT,
    "document/didFocus": _DOCUMENT,
    "nes/start": {"workspaceUri": Mapped.URI, "workspaceFolders": [_DOCUMENT]},
    "nes/suggest": {
        "uri": Mapped.URI,
        "context": {
            "recentFiles": [_DOCUMENT],
            "relatedSnippets": [_DOCUMENT],
            "editHistory": [_DOCUMENT],
            "userActions": [_DOCUMENT],
            "openFiles": [_DOCUMENT],
            "diagnostics": [_DOCUMENT],
        },
    },
}

PARAMS_FROM_AGENT: Final[Mapping[str, Shape]] = {
    "session/update": {
        "update": {
            "content": (_CONTENT_BLOCK, [_TOOL_CALL_CONTENT]),
            "locations": [_LOCATION],
            "plan": {"uri": Mapped.URI},
        }
    },
    "session/request_permission": {
        "toolCall": {"content": [_TOOL_CALL_CONTENT], "locations": [_LOCATION]},
    },
    "fs/read_text_file": {"path": Mapped.PATH},
    "fs/write_text_file": {"path": Mapped.PATH},
    "terminal/create": {"cwd": Mapped.PATH},
}

# A response does not say what it answers, so these go by shape alone: `session/list` and `nes/suggest`.
RESULT_FROM_AGENT: Final[Shape] = {"sessions": [_DIRECTORIES], "suggestions": [_DOCUMENT]}
RESULT_FROM_EDITOR: Final[Shape] = {}


_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_UNC = re.compile(r"\\\\[^\\/]")
_FILE_URI = re.compile(r"(file:)(//[^/?#]*)?(/[^?#]*)(.*)", re.IGNORECASE | re.DOTALL)

# What may stand unescaped in the path of a URI (RFC 3986, pchar), beside letters, digits and `-._~`.
_SAFE_IN_URI = "!$&'()*+,;=:@"

# Members and elements of one message that are walked, and bytes of it for each one more. A thousand content blocks
# of a kilobyte have six thousand; without a limit a message of a mebibyte can have two hundred thousand, half a second.
_STEPS = 5000
_BYTES_PER_STEP = 256

# Tails of a path to look for under a home: few projects are deeper, and each one is a look at the disk.
_MOST_TAILS = 16


def parse_map(text: str) -> tuple[str, str]:
    """Read `LOCAL=REMOTE`, cut at the first `=` that leaves two absolute paths.

    Returns:
        The directory on the editor's machine (POSIX, `C:\\…`, `C:/…`, or UNC) and the one on the gateway's
        (POSIX), both without trailing slashes unless nothing else is left.

    Raises:
        UsageError: there is no such `=`.
    """
    for equals in re.finditer("=", text):
        local, remote = text[: equals.start()], text[equals.end() :]
        if _is_absolute(local) and remote.startswith("/"):
            return _Root.parse(local).path([]), _Root.parse(remote).path([])
    raise UsageError(f"path map {text!r}: write LOCAL=REMOTE with two absolute paths, like /Users/ann/proj=/srv/proj")


def suggest_map(path: str, *, home: str, agent_cwd: str | None, is_directory: Callable[[str], bool]) -> str:
    """Return the `LOCAL=REMOTE` that most likely makes `path` work, a directory that this machine does not have.

    `path` is absolute on the editor's machine, Windows included. It goes to the agent's working directory if that
    has the same name, else to the home directory's subdirectory that ends as `path` does, the longest such end first,
    else to the agent's working directory, else to the home directory.
    """
    root = _Root.parse(path)
    names = [name for name in root.components if name]
    if agent_cwd is not None and names and root.fold(names[-1]) == root.fold(agent_cwd.rstrip("/").split("/")[-1]):
        return f"{root.path([])}={_Root.parse(agent_cwd).path([])}"
    below_home = _Root.parse(home)
    for start in range(max(0, len(names) - _MOST_TAILS), len(names)):
        tail = names[start:]
        candidate = below_home.path(tail)
        # `..` would lead out of the home, and tell a stranger what is there.
        if ".." not in tail and is_directory(candidate):
            return f"{root.path([])}={candidate}"
    return f"{root.path([])}={_Root.parse(agent_cwd or home).path([])}"


class PathMaps:
    """The path maps of one connection; false when there are none.

    The longest directory that matches decides, in each direction; of equal ones the first.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Take pairs of absolute directories, the editor's machine first.

        Raises:
            UsageError: a directory is not absolute, or the gateway's is not POSIX.
        """
        roots = []
        for local, remote in pairs:
            if not _is_absolute(local) or not remote.startswith("/"):
                raise UsageError(
                    f"path map {local!r} to {remote!r}: both must be absolute paths, like /Users/ann/proj and /srv/proj"
                )
            roots.append((_Root.parse(local), _Root.parse(remote)))
        self._empty = not roots
        self._to_remote = _Direction(roots, PARAMS_FROM_EDITOR, RESULT_FROM_EDITOR)
        self._to_local = _Direction([(remote, local) for local, remote in roots], PARAMS_FROM_AGENT, RESULT_FROM_AGENT)

    def __bool__(self) -> bool:
        return not self._empty

    def to_remote(self, message: bytes) -> bytes:
        """Return a message from the editor with the gateway's names; the same object if nothing changes."""
        return self._to_remote.rewrite(message)

    def local_path(self, path: str) -> str:
        """Return the editor's name for a path of the gateway's machine; the same where no map has made it."""
        return self._to_local.map_path(path)

    def to_local(self, message: bytes) -> bytes:
        """Return a message from the gateway with the editor's names; the same object if nothing changes."""
        return self._to_local.rewrite(message)


class _Root(NamedTuple):
    """A mapped directory on one of the machines."""

    components: list[str]
    """`/srv/proj`: "", srv, proj. `C:\\src`: C:, src. UNC: "", "", server, share. The root itself: ""."""
    windows: bool

    @classmethod
    def parse(cls, directory: str) -> "_Root":
        if directory.startswith("/"):
            return cls(re.sub("/+", "/", directory).removesuffix("/").split("/"), windows=False)
        return cls(_split(directory.rstrip("\\/"), windows=True), windows=True)

    def fold(self, text: str) -> str:
        return text.lower() if self.windows else text

    def tail_of_path(self, components: list[str]) -> list[str] | None:
        """Return the components of a path below this directory; None if it is not below it."""
        return components[len(self.components) :] if self._holds(components) else None

    def tail_of_uri(self, host: str, components: list[str]) -> list[str] | None:
        """Return the components of a file URI's path below this directory, encoded; None if it is not below it."""
        if self.windows:
            components = ["", "", host, *components[1:]] if host else components[1:]
        elif host:
            return None
        inside = self._holds([unquote(name) for name in components[: len(self.components)]])
        return components[len(self.components) :] if inside else None

    def path(self, tail: list[str]) -> str:
        """The path of what is below this directory."""
        separator = "\\" if self.windows else "/"
        components = self.components + tail
        return separator.join(components) if len(components) > 1 else components[0] + separator

    def uri(self, head: str, tail: list[str]) -> str:
        """The URI of what is below this directory: `head` is the scheme and an authority that means this machine."""
        encoded = [_quoted(name) for name in self.components] + tail
        path = "/".join(encoded) if len(encoded) > 1 else encoded[0] + "/"
        if self.windows and path.startswith("//"):
            return f"file:{path}"
        return head + path if path.startswith("/") else f"{head}/{path}"

    def _holds(self, components: list[str]) -> bool:
        first = components[: len(self.components)]
        if not self.windows:
            return first == self.components
        return [self.fold(name) for name in first] == [self.fold(name) for name in self.components]


class _Direction:
    """The maps one way: from whose names to whose, and where in which messages."""

    def __init__(self, roots: Sequence[tuple[_Root, _Root]], params: Mapping[str, Shape], result: Shape) -> None:
        self._roots = sorted(roots, key=lambda pair: len(pair[0].components), reverse=True)
        self._params = params
        self._result = result
        # From each directory a piece that is in every spelling of it, see `_concerns`.
        self._needles = {_longest_plain_run(source.components) for source, _ in roots}

    def rewrite(self, message: bytes) -> bytes:
        if not self._concerns(message):
            return message
        plain = structure(message)
        try:
            edits = list(_Walk(self, message, plain).edits(self._params, self._result))
            # A walk does not look at what is behind the object it walks through.
            if not edits or skip_space(plain, value_end(plain, skip_space(plain, 0))) < len(plain):
                return message
        except MalformedJson:
            return message
        return splice(message, edits)

    def _concerns(self, message: bytes) -> bool:
        """Return whether any of the directories may be in the message, in any spelling; cheap, and true too often.

        Letters and digits of ASCII have two other spellings: JSON's `\\u00xx` and, in URIs, the percent sign's.
        """
        lower = message.lower()
        return bool(self._roots) and (
            any(needle in lower for needle in self._needles)
            or b"\\u00" in lower
            or (b"%" in lower and b"file:" in lower)
        )

    def map_path(self, path: str) -> str:
        if not path:
            return path
        # Split once for all roots: a path may be as long as a message.
        posix = _split(path, windows=False)
        windows = _split(path, windows=True) if any(source.windows for source, _ in self._roots) else posix
        for source, target in self._roots:
            tail = source.tail_of_path(windows if source.windows else posix)
            if tail is not None:
                return target.path(tail)
        return path

    def map_uri(self, uri: str) -> str:
        parts = _FILE_URI.fullmatch(uri)
        if parts is None:
            return uri
        scheme, authority, path, rest = parts.groups(default="")
        host = "" if authority.lower() == "//localhost" else authority[2:]
        components = path.split("/")
        for source, target in self._roots:
            tail = source.tail_of_uri(host, components)
            if tail is not None:
                return target.uri("file://" if host else scheme + authority, tail) + rest
        return uri


class _Walk:
    """One walk through one message, along the table of its direction."""

    def __init__(self, direction: _Direction, message: bytes, plain: bytes) -> None:
        self._direction = direction
        self._message = message
        self._plain = plain
        self._steps_left = _STEPS + len(message) // _BYTES_PER_STEP
        # The same few names stand in each of many elements.
        self._names: dict[bytes, str] = {}

    def edits(self, params: Mapping[str, Shape], result: Shape) -> Iterator[tuple[int, int, bytes]]:
        """Yield the spans to replace.

        Raises:
            MalformedJson: the message is broken.
            TooMany: there is more to walk through than `_STEPS` and `_BYTES_PER_STEP` allow.
        """
        message, plain = self._message, self._plain
        top = {string_value(name): start for name, start, _ in members(message, plain=plain)}
        method = top.get("method")
        if method is None:
            if "result" in top:
                yield from self._edits_in(top["result"], result)
        elif "params" in top and message[method : method + 1] == b'"':
            name = string_value(message[method : value_end(plain, method)])
            yield from self._edits_in(top["params"], params.get(name, {}))

    def _edits_in(self, start: int, shape: Shape) -> Iterator[tuple[int, int, bytes]]:
        message, plain = self._message, self._plain
        first = message[start : start + 1]
        if isinstance(shape, tuple):
            for alternative in shape:
                yield from self._edits_in(start, alternative)
        elif isinstance(shape, list):
            if first == b"[":
                for element, _ in elements(message, start, plain=plain):
                    self._step()
                    yield from self._edits_in(element, shape[0])
        elif isinstance(shape, Mapped):
            if first == b'"':
                end = value_end(plain, start)
                value = string_value(message[start:end])
                mapped = self._direction.map_path(value) if shape is Mapped.PATH else self._direction.map_uri(value)
                if mapped != value:
                    yield start, end, json.dumps(mapped).encode()
        elif shape and first == b"{":
            for name, inner, _ in members(message, start, plain=plain):
                self._step()
                if name not in self._names:
                    self._names[name] = string_value(name)
                member = shape.get(self._names[name])
                if member is not None:
                    yield from self._edits_in(inner, member)

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooMany("the containers of a message have too many members to map the paths in them")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or bool(_DRIVE.match(path) or _UNC.match(path))


@cache
def _quoted(name: str) -> str:
    """Return a component of a mapped directory as it is written in a URI."""
    return quote(name, safe=_SAFE_IN_URI, errors="surrogatepass")


def _split(path: str, *, windows: bool) -> list[str]:
    return (path.replace("\\", "/") if windows else path).split("/")


def _longest_plain_run(components: list[str]) -> bytes:
    """The longest run of ASCII letters and digits, in small letters; if there is none b"", which is everywhere."""
    runs = re.findall("[A-Za-z0-9]+", "/".join(components))
    return max(runs, key=len, default="").lower().encode()
