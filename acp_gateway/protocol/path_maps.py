"""Path maps: the same files have other names on the gateway's machine than on the editor's.

The tables below say which members of a message hold a path or a `file:` URI; nothing else is touched, least
of all free text, `_meta`, `rawInput` and `rawOutput`. A `StringFinder` walks along the table, and the strings that
lie below a mapped directory are spliced into it: everything else stays byte for byte, and a message that has
nothing to map is returned as the same object. Most messages are not even walked, see `_Direction._concerns`.

Paths are compared component by component: `/Users/ann/proj` says nothing about `/Users/ann/project`. The side of the
editor may be Windows, where `/` and the backslash are alike and so are capitals and small letters; the gateway's side
is POSIX.

One look for each size of directory finds the one that a path is in, however many there are. Only the beginning of a
path is taken apart: a peer decides how long it is.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from acp_gateway.errors import UsageError
from acp_gateway.protocol.methods import EARLY_NAMES, PROMPTS
from acp_gateway.protocol.text.spans import MalformedJson, splice
from acp_gateway.protocol.text.string_finder import Shape, StringFinder

# What may stand unescaped in the path of a URI (RFC 3986, pchar), beside letters, digits and `-._~`.
_SAFE_IN_URI: Final = "!$&'()*+,;=:@"

# Characters of a URI for one of a directory's name, at most: four bytes, each with a percent sign and two digits.
_SPELLED: Final = 12


class Root(NamedTuple):
    """A mapped directory on one of the machines."""

    components: list[str]
    """`/srv/proj`: "", srv, proj. `C:\\src`: C:, src. UNC: "", "", server, share. The root itself: ""."""
    windows: bool

    @classmethod
    def parse(cls, directory: str) -> "Root":
        if directory.startswith("/"):
            return cls(re.sub("/+", "/", directory).removesuffix("/").split("/"), windows=False)
        return cls(directory.rstrip("\\/").replace("\\", "/").split("/"), windows=True)

    def fold(self, name: str) -> str:
        """Return a name as this machine compares it."""
        return name.lower() if self.windows else name

    def path(self, tail: str | None = None) -> str:
        """The path of what is below this directory, by its components with `/` between them; None for itself."""
        separator = "\\" if self.windows else "/"
        if tail is None:
            return separator.join(self.components) if len(self.components) > 1 else self.components[0] + separator
        return separator.join((*self.components, tail.replace("/", separator)))

    def uri(self, head: str, tail: str | None) -> str:
        """The URI of what is below this directory: `head` is the scheme and an authority that means this machine."""
        encoded = [_quoted(name) for name in self.components] + ([] if tail is None else [tail])
        path = "/".join(encoded) if len(encoded) > 1 else encoded[0] + "/"
        if self.windows and path.startswith("//"):
            return f"file:{path}"
        return head + path if path.startswith("/") else f"{head}/{path}"


class DirectoryMap:
    """Directories of one kind of machine, each with the one that replaces it. The largest that matches decides."""

    def __init__(self, roots: Iterable[tuple[Root, Root]]) -> None:
        self._by_size: dict[int, dict[str, Root]] = {}
        self._longest_name = 0
        self._fold: Callable[[str], str] = str
        for source, target in sorted(roots, key=lambda pair: len(pair[0].components), reverse=True):
            self._fold = source.fold
            names = list(map(self._fold, source.components))
            self._longest_name = max(self._longest_name, *map(len, names))
            # Of equal directories the first counts.
            self._by_size.setdefault(len(names), {}).setdefault("/".join(names), target)
        self._most = max(self._by_size, default=0)

    def of_path(self, path: str) -> tuple[Root, str | None] | None:
        """Return the directory that replaces the one that a path with `/` is in, and what is below it; else None.

        What is below it is None for the directory itself.
        """
        return self._find(path, self._fold)

    def of_uri(self, path: str) -> tuple[Root, str | None] | None:
        """Return the same for the path of a URI; what is below the directory stays encoded."""
        return self._find(path, lambda name: self._fold(unquote(name)))

    def _find(self, path: str, fold: Callable[[str], str]) -> tuple[Root, str | None] | None:
        if not path or not self._by_size:
            return None
        # The last part is what is below the largest directory.
        parts = path.split("/", self._most)
        longest = _SPELLED * self._longest_name + 1
        names = [fold(name[:longest]) for name in parts[: self._most]]
        for size, targets in self._by_size.items():
            target = targets.get("/".join(names[:size])) if len(names) >= size else None
            if target is not None:
                return target, "/".join(parts[size:]) if len(parts) > size else None
        return None


@cache
def _quoted(name: str) -> str:
    """Return a component of a mapped directory as it is written in a URI."""
    return quote(name, safe=_SAFE_IN_URI, errors="surrogatepass")


class Mapped(Enum):
    """A string to map, by what it holds."""

    PATH = "path"
    URI = "uri"
    PATCH = "patch"
    """A Git patch, whose headers have paths."""


_CONTENT_BLOCK: Final[Shape] = {"uri": Mapped.URI, "resource": {"uri": Mapped.URI}}
# An item of a tool call's content, or in version 2 a block of a message.
_TOOL_CALL_CONTENT: Final[Shape] = {
    "uri": Mapped.URI,
    "resource": {"uri": Mapped.URI},
    "path": Mapped.PATH,
    "content": _CONTENT_BLOCK,
    "changes": [{"path": Mapped.PATH, "oldPath": Mapped.PATH}],
    "patch": {"text": Mapped.PATCH},
}
_LOCATION: Final[Shape] = {"path": Mapped.PATH}
_TOOL_CALL: Final[Shape] = {"content": [_TOOL_CALL_CONTENT], "locations": [_LOCATION]}
_DIRECTORIES: Final[Shape] = {"cwd": Mapped.PATH, "additionalDirectories": [Mapped.PATH]}
_DOCUMENT: Final[Shape] = {"uri": Mapped.URI}

PARAMS_FROM_EDITOR: Final[Mapping[str, Shape]] = {
    "session/new": _DIRECTORIES,
    "session/load": _DIRECTORIES,
    "session/resume": _DIRECTORIES,
    "session/fork": _DIRECTORIES,
    "session/list": {"cwd": Mapped.PATH},
    **{method: {blocks: [_CONTENT_BLOCK]} for method, blocks in PROMPTS.items()},
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

_FROM_AGENT: Final[Mapping[str, Shape]] = {
    "session/update": {
        "update": {
            "content": (_TOOL_CALL_CONTENT, [_TOOL_CALL_CONTENT]),
            "cwd": Mapped.PATH,
            "locations": [_LOCATION],
            "plan": {"uri": Mapped.URI},
        }
    },
    "session/request_permission": {
        "toolCall": _TOOL_CALL,
        "subject": {"cwd": Mapped.PATH, "toolCall": _TOOL_CALL},
    },
    "fs/read_text_file": {"path": Mapped.PATH},
    "fs/write_text_file": {"path": Mapped.PATH},
    "terminal/create": {"cwd": Mapped.PATH},
}

PARAMS_FROM_AGENT: Final[Mapping[str, Shape]] = {
    **_FROM_AGENT,
    **{early: _FROM_AGENT[name] for early, name in EARLY_NAMES.items() if name in _FROM_AGENT},
}

# A response does not say what it answers, so these go by shape alone: `session/list` and `nes/suggest`.
RESULT_FROM_AGENT: Final[Shape] = {"sessions": [_DIRECTORIES], "suggestions": [_DOCUMENT]}
RESULT_FROM_EDITOR: Final[Shape] = {}


_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_UNC = re.compile(r"\\\\[^\\/]")
_FILE_URI = re.compile(r"(file:)(//[^/?#]*)?(/[^?#]*)(.*)", re.IGNORECASE | re.DOTALL)

# The part of a patch before the first hunk of a file, and its lines with paths. No line of a hunk begins with `diff`.
_SECTION: Final = re.compile(r"^diff --git .*(?:\n(?!@@ |diff --git |GIT binary patch).*)*", re.MULTILINE)
_HEADER: Final = re.compile(r"^(diff --git |--- |\+\+\+ |(?:rename|copy) (?:from|to) )([^\n]*)", re.MULTILINE)

# Tails of a path to look for under a home: few projects are deeper, and each one is a look at the disk.
_MAX_TAILS = 16


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
            return Root.parse(local).path(), Root.parse(remote).path()
    raise UsageError(f"path map {text!r}: write LOCAL=REMOTE with two absolute paths, like /Users/ann/proj=/srv/proj")


def suggest_map(path: str, *, roots: Sequence[str], agent_cwd: str | None, is_directory: Callable[[str], bool]) -> str:
    """Return the `LOCAL=REMOTE` that most likely makes `path` work, a directory that this machine does not have.

    `path` is absolute on the editor's machine, Windows included. It goes to the agent's working directory if that
    has the same name, else to the subdirectory of one of `roots` that ends as `path` does, the longest such end first,
    else to the agent's working directory, else to the first of `roots`.
    """
    root = Root.parse(path)
    names = [name for name in root.components if name]
    if agent_cwd is not None and names and root.fold(names[-1]) == root.fold(agent_cwd.rstrip("/").split("/")[-1]):
        return f"{root.path()}={Root.parse(agent_cwd).path()}"
    for start in range(max(0, len(names) - _MAX_TAILS), len(names)):
        tail = names[start:]
        for place in roots:
            candidate = Root.parse(place).path("/".join(tail))
            # `..` would lead out of it, and tell a stranger what is there.
            if ".." not in tail and is_directory(candidate):
                return f"{root.path()}={candidate}"
    return f"{root.path()}={Root.parse(agent_cwd or roots[0]).path()}"


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
            roots.append((Root.parse(local), Root.parse(remote)))
        self._empty = not roots
        self._to_remote = _Direction(roots, PARAMS_FROM_EDITOR, RESULT_FROM_EDITOR)
        self._to_local = _Direction([(remote, local) for local, remote in roots], PARAMS_FROM_AGENT, RESULT_FROM_AGENT)

    def __bool__(self) -> bool:
        return not self._empty

    def to_remote(self, message: bytes) -> bytes:
        """Return a message from the editor with the gateway's names; the same object if nothing changes."""
        return self._to_remote.rewrite(message)

    def has_uri(self, uri: str) -> bool:
        """Return whether a map has the editor's file or directory that a URI names."""
        return self._to_remote.target_of(uri) is not None

    def remote_path(self, path: str) -> str:
        """Return the gateway's name for a path of the editor's machine; the same where no map has it."""
        return self._to_remote.map_path(path)

    def local_path(self, path: str) -> str:
        """Return the editor's name for a path of the gateway's machine; the same where no map has made it."""
        return self._to_local.map_path(path)

    def to_local(self, message: bytes) -> bytes:
        """Return a message from the gateway with the editor's names; the same object if nothing changes."""
        return self._to_local.rewrite(message)


class _Direction:
    """The maps one way: from whose names to whose, and where in which messages."""

    def __init__(self, roots: Sequence[tuple[Root, Root]], params: Mapping[str, Shape], result: Shape) -> None:
        self._posix = DirectoryMap((source, target) for source, target in roots if not source.windows)
        self._windows = DirectoryMap((source, target) for source, target in roots if source.windows)
        self._finder = StringFinder(params, result)
        self._maps: Mapping[Enum, Callable[[str], str]] = {
            Mapped.PATH: self.map_path,
            Mapped.URI: self.map_uri,
            Mapped.PATCH: self.map_patch,
        }
        # From each directory a piece that is in every spelling of it, see `_concerns`.
        needles = {_longest_plain_run(source.components) for source, _ in roots}
        self._needles = [one for one in needles if not any(other in one for other in needles - {one})]

    def rewrite(self, message: bytes) -> bytes:
        if not self._concerns(message):
            return message
        try:
            edits = [
                (start, end, json.dumps(mapped).encode())
                for kind, value, start, end in self._finder.find_all(message)
                if (mapped := self._maps[kind](value)) != value
            ]
            if edits and not message.isascii():
                message.decode()
        except (MalformedJson, UnicodeDecodeError):
            return message
        return splice(message, edits) if edits else message

    def _concerns(self, message: bytes) -> bool:
        """Return whether any of the directories may be in the message, in any spelling; cheap, and true too often.

        Letters and digits of ASCII have two other spellings: JSON's `\\u00xx` and, in URIs, the percent sign's.
        """
        lower = message.lower()
        return any(needle in lower for needle in self._needles) or (
            bool(self._needles) and (b"\\u00" in lower or (b"%" in lower and b"file:" in lower))
        )

    def map_patch(self, patch: str) -> str:
        """Map the paths in the headers of a Git patch; its lines stay."""
        return _SECTION.sub(lambda section: _HEADER.sub(self._map_header, section[0]), patch)

    def _map_header(self, header: re.Match[str]) -> str:
        head, rest = header.groups()
        middle = len(rest) // 2
        if head == "diff --git " and rest[middle : middle + 1] == " " and rest[:middle] == rest[middle + 1 :]:
            mapped = self._map_patched(rest[:middle])
            return f"{head}{mapped} {mapped}"
        paths = rest.split(" ", 1) if head == "diff --git " else [rest]
        return head + " ".join(map(self._map_patched, paths))

    def _map_patched(self, path: str) -> str:
        """Map a path of a patch, which may have `a` or `b` before it."""
        side = path[:1] if path[:2] in ("a/", "b/") else ""
        mapped = self.map_path(path.removeprefix(side))
        return path if mapped == path.removeprefix(side) else (side if mapped.startswith("/") else "") + mapped

    def map_path(self, path: str) -> str:
        found = self._posix.of_path(path) or self._windows.of_path(path.replace("\\", "/"))
        return path if found is None else found[0].path(found[1])

    def map_uri(self, uri: str) -> str:
        return self.target_of(uri) or uri

    def target_of(self, uri: str) -> str | None:
        """Return what a URI is mapped to; None for one that no map has."""
        parts = _FILE_URI.fullmatch(uri)
        if parts is None:
            return None
        scheme, authority, path, rest = parts.groups(default="")
        host = "" if authority.lower() == "//localhost" else authority[2:]
        found = None if host else self._posix.of_uri(path)
        found = found or self._windows.of_uri(f"//{host}{path}" if host else path[1:])
        if found is None:
            return None
        target, tail = found
        return target.uri("file://" if host else scheme + authority, tail) + rest


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or bool(_DRIVE.match(path) or _UNC.match(path))


def _longest_plain_run(components: list[str]) -> bytes:
    """The longest run of ASCII letters and digits, in small letters; if there is none b"", which is everywhere."""
    runs = re.findall("[A-Za-z0-9]+", "/".join(components))
    return max(runs, key=len, default="").lower().encode()
