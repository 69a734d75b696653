"""Translates diffs: old and new text of one file in version 1, changes of files with a Git patch in version 2."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from acp_gateway.protocol import jsonrpc
from acp_gateway.versions.parts import elements, given, members, own_meta, text, text_item

_compose: Final = jsonrpc.compose
_encode: Final = jsonrpc.encode

NO_NEWLINE: Final = "\\ No newline at end of file"
NOWHERE: Final = "/dev/null"

_HUNK: Final = re.compile(r"@@ -[0-9]{1,18}(?:,([0-9]{1,18}))? \+[0-9]{1,18}(?:,([0-9]{1,18}))? @@")
_ESCAPE: Final = re.compile(r'\\([abfnrtv"\\]|[0-3][0-7]{2})')
_LETTERS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", '"': '"', "\\": "\\"}
_DONE: Final = {"add": "added", "modify": "modified", "delete": "deleted", "move": "moved", "copy": "copied"}
_CHANGE: Final = ("operation", "path", "oldPath", "fileType")
_QUOTED: Final = {code: f"\\{code:03o}" for code in (*range(32), 127)} | {
    ord(char): f"\\{letter}" for letter, char in _LETTERS.items()
}
_UNSAFE: Final = re.compile(r'[\x00-\x1f"\\\x7f]')
_QUOTED_PATH: Final = re.compile(r'"(?:[^"\\]|\\.)*"')

# The end of a run of lines with one mark; an empty line is one of both texts.
_RUN_ENDS: Final = {"-": re.compile(r"\n(?!-)"), "+": re.compile(r"\n(?!\+)"), " ": re.compile(r"\n(?![ \n])")}

# The lines before the only hunk of a file that was changed. Of more than a run or two of lines it is not seen at once.
_USUAL_HEAD: Final = re.compile(
    r"diff --git [^\n\r]*\n(?:index [^\n\r]*\n)?"
    r"--- (?!/dev/null\n)[^\n\r\t\"]+\n\+\+\+ (?P<to>(?!/dev/null\n)[^\n\r\t\"]+)\n"
    r"@@ -[0-9]{1,18}(?:,(?P<old>[0-9]{1,18}))? \+[0-9]{1,18}(?:,(?P<new>[0-9]{1,18}))? @@[^\n]*\n"
)
_USUAL_RUNS: Final = 16

PATH_SIZE: Final = 4096
"""Characters of a path that is quoted at most: the longest of Linux."""

_QUOTED_SIZE: Final = 4 * PATH_SIZE + 2

PATCH_STEPS: Final = 8192
"""Lines outside hunks, and runs of lines with one mark in them, that are read of a patch at most, in ten milliseconds;
a change of a hundred files has a few thousand. A patch with more is shown as it is."""


# Version 1 to version 2


def new_diff(parts: dict[str, bytes]) -> bytes:
    """Return a diff of version 2 for one of version 1."""
    path, old, new = (text(parts.get(name)) for name in ("path", "oldText", "newText"))
    return new_diff_of(path or "", old, new or "", parts.get("_meta"))


def new_diff_of(path: str, old: str | None, new: str, meta: bytes | None = None) -> bytes:
    """Return the diff of version 2 from one text of a file to another."""
    operation, patch = (b"add" if old is None else b"modify"), git_patch(path, old, new)
    change = b'{"type":"diff","changes":[{"operation":"%b","path":%b,"fileType":"text"}]' % (operation, _encode(path))
    if patch:
        change += b',"patch":{"format":"git_patch","text":%b}' % _encode(patch)
    return change + (b"}" if meta is None else b',"_meta":%b}' % meta)


def git_patch(path: str, old: str | None, new: str) -> str:
    """Return the patch from one text to another, all of it in one hunk; empty if they are equal."""
    if old == new:
        return ""
    quoted = _quote(path)
    head = [f"diff --git {quoted} {quoted}"]
    if old is None:
        head.append("new file mode 100644")
    before = old or ""
    if not before and not new:
        return "\n".join([*head, ""])
    start = before.rfind("\n", 0, _common_beginning(before, new)) + 1
    end = _common_end(before, new, start)
    head += [f"--- {NOWHERE if old is None else quoted}", f"+++ {quoted}"]
    head.append(f"@@ -{_range(before)} +{_range(new)} @@\n")
    rest = len(before) - end
    body = [_marked(" ", before[:start]), _marked("-", before[start:rest])]
    body += [_marked("+", new[start : len(new) - end]), _marked(" ", before[rest:])]
    return "\n".join(head) + "".join(body)


def _range(lines: str) -> str:
    """Return the first line and the number of lines of a text, which has 0 and 0 if it is empty."""
    count = lines.count("\n") + (not lines.endswith("\n"))
    return f"1,{count}" if lines else "0,0"


def _marked(mark: str, lines: str) -> str:
    """Return lines with a mark before each."""
    if not lines:
        return ""
    marked = mark + lines.replace("\n", f"\n{mark}")
    return marked[:-1] if lines.endswith("\n") else f"{marked}\n{NO_NEWLINE}\n"


def _common_beginning(before: str, after: str) -> int:
    """Return the number of equal characters at the beginning. Takes a step for each bit of it."""
    most = min(len(before), len(after))
    at, step = 0, 1 << most.bit_length()
    while step:
        if at + step <= most and before[at : at + step] == after[at : at + step]:
            at += step
        step >>= 1
    return at


def _common_end(before: str, after: str, start: int) -> int:
    """Return the number of characters of the equal lines at the end, from the line that begins at `start` on."""
    most = min(len(before), len(after)) - start
    one, other, step = len(before), len(after), 1 << most.bit_length()
    while step:
        if min(one, other) - step >= start and before[one - step : one] == after[other - step : other]:
            one, other = one - step, other - step
        step >>= 1
    if before[one - 1 : one] in ("", "\n") and after[other - 1 : other] in ("", "\n"):
        return len(before) - one
    # Within a line.
    line = before.find("\n", one) + 1
    return len(before) - line if line else 0


def _quote(path: str) -> str:
    """Return a path as Git writes it; one that no file can have stays as it is."""
    if len(path) > PATH_SIZE or not _UNSAFE.search(path):
        return path
    return '"' + path.translate(_QUOTED) + '"'


# Version 2 to version 1


@dataclass(slots=True)
class Section:
    """The part of a patch for one file."""

    path: str | None = None
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    hunks: int = 0
    added: bool = False

    def texts(self) -> tuple[str, str]:
        """Return the text before and after."""
        return "".join(self.old), "".join(self.new)


def old_diff(parts: dict[str, bytes]) -> list[bytes]:
    """Return the content of a tool call of version 1 for a diff of version 2: a diff for each file, and texts."""
    patch = members(parts.get("patch")) if given(parts.get("patch")) else {}
    words = text(patch.get("text")) or ""
    sections = read_patch(words) if text(patch.get("format")) == "git_patch" else []
    by_path: dict[str | None, deque[Section]] = {}
    for section in sections:
        by_path.setdefault(section.path, deque()).append(section)
    found: list[bytes] = []
    for change in map(members, elements(parts.get("changes"))):
        path = text(change.get("path")) or ""
        # Git writes `b/` before a path, unless it is told not to.
        of_path = by_path.get(path) or by_path.get(f"b{path}")
        found += _old_change(change, path, of_path.popleft() if of_path else None)
    for section in chain.from_iterable(by_path.values()):
        if section.hunks:
            found.append(_diff(section.path or "", section))
    if words and not sections:
        found.append(text_item(words))
    return found


def old_diff_of(path: str, patch: str) -> bytes | None:
    """Return the diff of version 1 for a patch of this file alone; None if the patch is another one."""
    head = _USUAL_HEAD.match(patch)
    sections = read_patch(patch) if head is None else _read_usual(patch, head)
    # Git writes `b/` before a path, unless it is told not to.
    if len(sections) != 1 or not sections[0].hunks or sections[0].path not in (path, f"b{path}"):
        return None
    return _diff(path, sections[0])


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
    before = b"null" if old is None else _encode(old)
    meta = b',"_meta":%b' % own_meta(**told) if told else b""
    return b'{"type":"diff","path":%b,"oldText":%b,"newText":%b%b}' % (_encode(path), before, _encode(new), meta)


def read_patch(patch: str) -> list[Section]:
    """Return the sections of a Git patch, none of one that is too long to read.

    Lines that belong to no section are passed over.
    """
    return _PatchReader(patch if patch.endswith("\n") else f"{patch}\n").read()


def _read_usual(patch: str, head: re.Match[str]) -> list[Section]:
    """Return the same for a patch that begins with the usual lines, at once if all that follows is their hunk."""
    old, new = (1 if count is None else int(count) for count in head.group("old", "new"))
    section = Section(head["to"], hunks=1)
    at = head.end()
    for _ in range(_USUAL_RUNS):
        if at == len(patch):
            return [section] if old == new == 0 else read_patch(patch)
        mark = patch[at]
        if mark not in _RUN_ENDS:
            break
        found = _RUN_ENDS[mark].search(patch, at)
        if found is None:
            break
        lines, at = patch[at + 1 : found.end()].replace(f"\n{mark}", "\n"), found.end()
        count = lines.count("\n")
        if mark != "+":
            section.old.append(lines)
            old -= count
        if mark != "-":
            section.new.append(lines)
            new -= count
    return read_patch(patch)


class _PatchReader:
    """Reads a patch, whose last line ends as well. Lines of a hunk with one mark are taken together."""

    def __init__(self, patch: str) -> None:
        self._patch = patch
        self._at = 0
        self._steps = PATCH_STEPS

    def read(self) -> list[Section]:
        found: list[Section] = []
        while self._at < len(self._patch):
            if self._steps <= 0:
                return []
            line = self._line()
            if line.startswith("diff --git "):
                section = Section()
                section.path = _second_path(line.removeprefix("diff --git "))
                found.append(section)
            elif found and (hunk := _HUNK.match(line)):
                self._read_hunk(found[-1], line, hunk)
            elif found:
                _read_header(found[-1], line)
        return found

    def _line(self) -> str:
        """Return the next line outside a hunk."""
        self._steps -= 1
        end = self._patch.index("\n", self._at)
        line, self._at = self._patch[self._at : end].removesuffix("\r"), end + 1
        return line

    def _read_hunk(self, section: Section, head: str, hunk: re.Match[str]) -> None:
        if section.hunks:
            # What is left out between two hunks is the same in both texts.
            for side in (section.old, section.new):
                side.append(f"{head}\n")
        section.hunks += 1
        old, new = (1 if count is None else int(count) for count in hunk.groups())
        last: list[list[str]] = []
        most: int | None
        while self._at < len(self._patch) and self._steps > 0:
            mark = self._patch[self._at]
            if mark == "\\":
                self._line()
                for side in last:
                    side[-1] = side[-1].removesuffix("\n")
                continue
            mark = " " if mark == "\n" else mark
            if mark not in _RUN_ENDS or (old <= 0 and new <= 0):
                break
            # Beyond what is announced of its side, a run goes on while the other side has lines to come.
            if mark == " ":
                most, last = max(old, new), [section.old, section.new]
            elif mark == "-":
                most, last = old if new <= 0 else None, [section.old]
            else:
                most, last = new if old <= 0 else None, [section.new]
            lines = self._run(mark, most)
            for side in last:
                side.append(lines)
            count = lines.count("\n")
            old -= count if mark != "+" else 0
            new -= count if mark != "-" else 0

    def _run(self, mark: str, most: int | None) -> str:
        """Return the next lines with one mark, without it, at most so many."""
        self._steps -= 1
        found = _RUN_ENDS[mark].search(self._patch, self._at)
        assert found is not None
        lines = self._patch[self._at : found.end()]
        if most is not None and lines.count("\n") > most:
            lines = lines[: len(lines) - len(lines.split("\n", most)[most])]
        self._at += len(lines)
        return lines.removeprefix(mark).replace(f"\n{mark}", "\n")


def _read_header(section: Section, line: str) -> None:
    word, _, rest = line.partition(" ")
    match word:
        case "---" | "+++":
            path = _path(rest)
            if path == NOWHERE:
                section.added = section.added or word == "---"
            elif word == "+++":
                section.path = path
        case "rename" | "copy" if rest.startswith("to "):
            section.path = _path(rest.removeprefix("to "))
        case "new" if rest.startswith("file mode"):
            section.added = True


def _second_path(rest: str) -> str | None:
    """Return the second path of a section's first line; both are the same unless the file has moved."""
    if rest.startswith('"'):
        end = _QUOTED_PATH.match(rest, 0, _QUOTED_SIZE)
        return None if end is None else _path(rest[end.end() :].lstrip())
    middle = len(rest) // 2
    if rest[:middle] == rest[middle + 1 :] and rest[middle : middle + 1] == " ":
        return rest[:middle]
    return _path(rest.partition(" ")[2])


def _path(written: str) -> str:
    """Return a path that Git may have quoted, or followed by a tab."""
    if not written.startswith('"') or len(written) > _QUOTED_SIZE:
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
