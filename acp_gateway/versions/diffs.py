"""Translates diffs: old and new text of one file in version 1, changes of files with a Git patch in version 2."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from acp_gateway.protocol import jsonrpc
from acp_gateway.versions.parts import array, elements, given, members, own_meta, text, text_item

_compose: Final = jsonrpc.compose
_encode: Final = jsonrpc.encode

NO_NEWLINE: Final = "\\ No newline at end of file"
NOWHERE: Final = "/dev/null"

_HUNK: Final = re.compile(r"@@ -[0-9]{1,18}(?:,([0-9]{1,18}))? \+[0-9]{1,18}(?:,([0-9]{1,18}))? @@")
_ESCAPE: Final = re.compile(r'\\([abfnrtv"\\]|[0-3][0-7]{2})')
_LETTERS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", '"': '"', "\\": "\\"}
_DONE: Final = {"add": "added", "modify": "modified", "delete": "deleted", "move": "moved", "copy": "copied"}
_CHANGE: Final = ("operation", "path", "oldPath", "fileType")
_QUOTED: Final = {char: f"\\{letter}" for letter, char in _LETTERS.items()}
_UNSAFE: Final = re.compile(r'[\x00-\x1f"\\\x7f]')


# Version 1 to version 2


def new_diff(parts: dict[str, bytes]) -> bytes:
    """Return a diff of version 2 for one of version 1."""
    path, old, new = (text(parts.get(name)) for name in ("path", "oldText", "newText"))
    path = path or ""
    change = {"operation": b'"add"' if old is None else b'"modify"', "path": _encode(path), "fileType": b'"text"'}
    patch = git_patch(path, old, new or "")
    rest = {"patch": _compose({"format": b'"git_patch"', "text": _encode(patch)})} if patch else {}
    rest |= {name: parts[name] for name in ("_meta",) if name in parts}
    return _compose({"type": b'"diff"', "changes": array([_compose(change)]), **rest})


def git_patch(path: str, old: str | None, new: str) -> str:
    """Return the patch from one text to another, all of it in one hunk; empty if they are equal."""
    if old == new:
        return ""
    quoted = _quote(path)
    head = [f"diff --git {quoted} {quoted}"]
    if old is None:
        head.append("new file mode 100644")
    before, after = _lines(old or ""), _lines(new)
    if not before and not after:
        return "\n".join([*head, ""])
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    gone, come = before[start : len(before) - end], after[start : len(after) - end]
    head += [f"--- {NOWHERE if old is None else quoted}", f"+++ {quoted}"]
    head.append(f"@@ -{min(1, len(before))},{len(before)} +{min(1, len(after))},{len(after)} @@")
    body = [f" {line}" for line in before[:start]]
    body += [f"-{line}" for line in gone] + [f"+{line}" for line in come]
    body += [f" {line}" for line in before[len(before) - end :]]
    return "\n".join([*head, *(line.replace("\n", f"\n{NO_NEWLINE}") for line in body), ""])


def _lines(whole: str) -> list[str]:
    """Return the lines of a text; a last one without a line break has one here, so that it differs from another."""
    lines = whole.split("\n")
    last = lines.pop()
    return [*lines, f"{last}\n"] if last else lines


def _common(before: list[str], after: list[str]) -> int:
    """Return the number of equal lines at the beginning."""
    count = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        count += 1
    return count


def _quote(path: str) -> str:
    """Return a path as Git writes it."""
    if not _UNSAFE.search(path):
        return path
    return '"' + _UNSAFE.sub(lambda match: _QUOTED.get(match[0], f"\\{ord(match[0]):03o}"), path) + '"'


# Version 2 to version 1


@dataclass(slots=True)
class Section:
    """The part of a patch for one file."""

    old_path: str | None = None
    path: str | None = None
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    hunks: int = 0
    added: bool = False
    binary: bool = False

    def texts(self) -> tuple[str, str]:
        """Return the text before and after."""
        return "".join(self.old), "".join(self.new)


def old_diff(parts: dict[str, bytes]) -> list[bytes]:
    """Return the content of a tool call of version 1 for a diff of version 2: a diff for each file, and texts."""
    patch = members(parts.get("patch")) if given(parts.get("patch")) else {}
    words = text(patch.get("text")) or ""
    sections = list(read_patch(words)) if text(patch.get("format")) == "git_patch" else []
    by_path: dict[str | None, list[Section]] = {}
    for section in sections:
        by_path.setdefault(section.path, []).append(section)
    found: list[bytes] = []
    for change in map(members, elements(parts.get("changes"))):
        path = text(change.get("path")) or ""
        # Git writes `b/` before a path, unless it is told not to.
        of_path = by_path.get(path) or by_path.get(f"b{path}")
        found += _old_change(change, path, of_path.pop(0) if of_path else None)
    for section in chain.from_iterable(by_path.values()):
        if section.hunks:
            found.append(_diff(section.path or "", section))
    if words and not sections:
        found.append(text_item(words))
    return found


def _old_change(change: dict[str, bytes], path: str, section: Section | None) -> Iterator[bytes]:
    """Yield a text for what a diff can't say, and the diff of the file; both tell the change if it needs a text."""
    operation = text(change.get("operation")) or "changed"
    file_type = text(change.get("fileType")) or "text"
    shows = section is not None and section.hunks > 0
    what = "" if file_type == "text" else f" ({file_type})"
    words = f"{_DONE.get(operation, operation)}{what}: "
    if operation in ("move", "copy"):
        words += f"{text(change.get('oldPath')) or ''} → "
    told: dict[str, bytes] = {}
    if operation in ("add", "modify") and not what and shows:
        pass
    elif operation in ("add", "modify") and not what and section is not None and section.added:
        yield _old("", None, path)
    else:
        told["change"] = _compose({name: change[name] for name in _CHANGE if given(change.get(name))})
        yield text_item(words + path, **told)
    if section is not None and shows:
        yield _diff(path, section, **told)


def _diff(path: str, section: Section, **told: bytes) -> bytes:
    old, new = section.texts()
    return _old(new, None if section.added else old, path, **told)


def _old(new: str, old: str | None, path: str, **told: bytes) -> bytes:
    texts = {"oldText": b"null" if old is None else _encode(old), "newText": _encode(new)}
    meta = {"_meta": own_meta(**told)} if told else {}
    return _compose({"type": b'"diff"', "path": _encode(path), **texts, **meta})


def read_patch(patch: str) -> Iterator[Section]:
    """Yield the sections of a Git patch; lines that belong to no section are passed over."""
    section: Section | None = None
    lines = patch.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at].removesuffix("\r")
        at += 1
        if line.startswith("diff --git "):
            if section is not None:
                yield section
            section = Section()
            section.old_path, section.path = _paths(line.removeprefix("diff --git "))
        elif section is None:
            continue
        elif hunk := _HUNK.match(line):
            at = _read_hunk(section, lines, at, line, hunk)
        else:
            _read_header(section, line)
    if section is not None:
        yield section


def _read_header(section: Section, line: str) -> None:
    word, _, rest = line.partition(" ")
    match word:
        case "---" | "+++":
            path = _path(rest)
            if path == NOWHERE:
                section.added = section.added or word == "---"
            elif word == "---":
                section.old_path = path
            else:
                section.path = path
        case "rename" | "copy" if rest.startswith(("from ", "to ")):
            end, _, path = rest.partition(" ")
            if end == "to":
                section.path = _path(path)
            else:
                section.old_path = _path(path)
        case "new" if rest.startswith("file mode"):
            section.added = True
        case "Binary" | "GIT":
            section.binary = True


def _read_hunk(section: Section, lines: list[str], at: int, head: str, hunk: re.Match[str]) -> int:
    """Read the lines of a hunk; return the index after them."""
    if section.hunks:
        # What is left out between two hunks is the same in both texts.
        for side in (section.old, section.new):
            side.append(f"{head}\n")
    section.hunks += 1
    old, new = (1 if count is None else int(count) for count in hunk.groups())
    last: list[list[str]] = []
    while at < len(lines) and (old > 0 or new > 0 or lines[at].startswith("\\")):
        line = lines[at]
        mark = line[:1]
        if mark == "\\":
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
        elif mark not in (" ", "+", "-", ""):
            break
        else:
            last = [side for side, marks in ((section.old, " -"), (section.new, " +")) if (mark or " ") in marks]
            for side in last:
                side.append(f"{line[1:]}\n")
            old -= mark != "+"
            new -= mark != "-"
        at += 1
    return at


def _paths(rest: str) -> tuple[str | None, str | None]:
    """Return the two paths of a section's first line; both are the same unless the file has moved."""
    if rest.startswith('"'):
        end = re.match(r'"(?:[^"\\]|\\.)*"', rest)
        if end is None:
            return None, None
        return _path(end[0]), _path(rest[end.end() :].lstrip())
    middle = len(rest) // 2
    if rest[:middle] == rest[middle + 1 :] and rest[middle : middle + 1] == " ":
        return rest[:middle], rest[:middle]
    old, _, new = rest.partition(" ")
    return old, _path(new)


def _path(written: str) -> str:
    """Return a path that Git may have quoted, or followed by a tab."""
    if not written.startswith('"'):
        return written.partition("\t")[0]
    inner = written[1:].rpartition('"')[0]
    unquoted = _ESCAPE.sub(lambda match: _LETTERS.get(match[1]) or chr(int(match[1], 8)), inner)
    if all(ord(char) < 256 for char in unquoted):
        try:
            # Bytes of UTF-8, each escaped.
            return unquoted.encode("latin-1").decode()
        except UnicodeDecodeError:
            pass
    return unquoted
