"""Reads what a permission request asks for: a command, files or an address, as far as that is certain.

Agents say it in the members of `rawInput`, each under names of its own. One with an unknown member, or with a title
that names something else, is in doubt: a person reads it, and no rule.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from acp_gateway.rules.other_programs import find_other_programs
from acp_gateway.rules.rule import is_below, is_plain_path
from acp_gateway.rules.words import read_list, read_words, table

_COMMANDS: Final = ("command", "cmd")
_PATHS: Final = table(
    """
    path paths file_path filePath filepath absolute_path absolutePath abs_path notebook_path file filename files source
    destination old_path new_path from to target_file dir_path directory dir
    """
)
_ADDRESSES: Final = ("url", "uri")
_FOLDERS: Final = ("cwd", "workdir", "working_directory", "workingDirectory", "dir_path", "directory")

_SAID: Final = table("description reason explanation justification call_id turn_id process_id approval_id")
"""Members that change nothing, whatever they say."""

_HARMLESS: Final = {
    "command": _SAID
    | table(
        """
        timeout timeout_ms timeoutMs run_in_background background is_background isBackground parsed_cmd
        proposed_execpolicy_amendment available_decisions yield_time_ms max_output_tokens started_at_ms
        """
    ),
    "path": _SAID
    | table(
        """
        content contents text old_string new_string old_str new_str oldText newText oldString newString replace_all
        replaceAll expected_replacements offset limit line lines start_line end_line view_range encoding insert_line
        new_source cell_id cell_type edit_mode
        """
    ),
    "host": _SAID | table("prompt timeout format max_length start_index raw"),
}
"""Members that change nothing about what is asked for, by what that is."""

_TOOLS: Final = table("bash shell sh terminal execute executing exec run running command run_command run_shell_command")
"""Words that name the tool alone, as the title or before a command in it."""

_URL_SIZE: Final = 2048
"""Maximum characters of an address that is read: browsers take no longer ones either."""

_URL: Final = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:[/?#][!-~]*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Asked:
    """A permission request, as rules see it."""

    kind: str
    """Kind of the tool; `execute` for each command, whatever the agent calls it."""
    words: tuple[str, ...] | None = None
    """The words of the command; None without one, or if it is not certain."""
    named: frozenset[int] = frozenset()
    """Places of the words that a rule has to name: they may run another program, or are paths outside of the session's
    folder."""
    paths: tuple[str, ...] = ()
    """Absolute paths of all its files; none if one of them is not certain."""
    host: str | None = None
    """Host of the address; None without one, or if it is not certain."""


def read_asked(call: Mapping[str, Any], cwd: str | None, earlier: Sequence[Mapping[str, Any]] = ()) -> Asked:
    """Return what a tool call asks for, in a session that works in this folder.

    `earlier` is what the agent has told of the call before, the first first: what the request leaves out is in there,
    and where one contradicts another, nothing is certain.
    """
    parts = (*earlier, call)
    kinds = [kind for part in parts if isinstance(kind := part.get("kind"), str)] or ["other"]
    kind = kinds[-1]
    raw = _join_inputs(parts)
    if raw is None or len(set(kinds)) > 1:
        return Asked(kind)
    titles = [title.strip() for part in parts if isinstance(title := part.get("title"), str)]
    title = " ".join(titles)
    commands = [raw[name] for name in _COMMANDS if raw.get(name) is not None]
    if commands or kind == "execute":
        is_certain = len(commands) == 1 and _has_only(raw, "command", (*_COMMANDS, *_FOLDERS)) and _is_in(raw, cwd)
        words = _read_command(commands[0], titles) if is_certain else None
        return (
            Asked("execute")
            if words is None
            else Asked("execute", words, find_other_programs(words) | _outside(words, cwd))
        )
    if kind == "fetch":
        found = [raw[name] for name in _ADDRESSES if raw.get(name) is not None]
        is_certain = _has_only(raw, "host", _ADDRESSES) and len(found) == 1
        return Asked("fetch", host=_read_host(found[0], title) if is_certain else None)
    return Asked(kind, paths=_read_paths(parts, raw, cwd, title) if _has_only(raw, "path", _PATHS) else ())


def _join_inputs(parts: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the members of all inputs; None if one has two values that say something."""
    joined: dict[str, Any] = {}
    for part in parts:
        given = part.get("rawInput")
        # Anything but an object is one member that is not known.
        for name, value in (given if isinstance(given, dict) else {"rawInput": given}).items():
            if name not in joined or _says_nothing(joined[name]):
                joined[name] = value
            elif not _says_nothing(value) and value != joined[name]:
                return None
    return joined


def _says_nothing(value: object) -> bool:
    return value is None or value is False or value in ("", [], {})


def _has_only(raw: Mapping[str, Any], what: str, names: Sequence[str] | frozenset[str]) -> bool:
    """Return True if each member is known for what is asked, or says nothing."""
    return all(name in names or name in _HARMLESS[what] or _says_nothing(value) for name, value in raw.items())


def _is_in(raw: Mapping[str, Any], cwd: str | None) -> bool:
    """Return True if a command runs in the folder of its session: below it, `./run` and `npm test` are others."""
    folders = [raw[name] for name in _FOLDERS if raw.get(name) is not None]
    return all(isinstance(it, str) and _is_inside(it, cwd) and _is_inside(str(cwd), it) for it in folders)


def _is_inside(folder: str, cwd: str | None) -> bool:
    return cwd is not None and is_plain_path(folder) and is_below(folder, cwd)


def _outside(words: Sequence[str], cwd: str | None) -> frozenset[int]:
    """Return the places of the words that name a path outside of a folder, also as the value of an option."""
    return frozenset(at for at, word in enumerate(words) if at and _leads_outside(word, cwd))


def _leads_outside(word: str, cwd: str | None) -> bool:
    value = word.partition("=")[2] if "=" in word else word
    if value.startswith("-") and "/" in value:
        value = value[value.index("/") :]
    steps = value.split("/")
    return ".." in steps or steps[0].startswith("~") or (value.startswith("/") and not _is_inside(value, cwd))


def _read_command(command: object, titles: Sequence[str]) -> tuple[str, ...] | None:
    if isinstance(command, str):
        words, texts = read_words(command), [command]
    elif isinstance(command, list) and (words := read_list(command)) is not None:
        # Where the last word is what a shell reads, the title may say that alone.
        texts = [" ".join(map(str, command)), str(command[-1])]
    else:
        return None
    return words if all(any(_is_alike(title, text) for text in texts) for title in titles) else None


def _is_alike(title: str, command: str) -> bool:
    """Return True if a title is the same command, perhaps behind the name of the tool, or that name alone, or empty."""
    tool, _, rest = title.partition(" ")
    is_tool = tool.casefold().removesuffix(":") in _TOOLS
    command = command.strip(" ")
    alike = ("", command, f"`{command}`")
    return title in alike or (is_tool and rest.strip(" ") in alike)


def _read_host(url: object, title: str) -> str | None:
    """Return the host of an address, in lower case; None for what is not certain."""
    others = [word for word in _words_of(title) if "://" in word and word != url]
    if not isinstance(url, str) or len(url) > _URL_SIZE or others:
        return None
    found = _URL.fullmatch(url)
    return None if found is None else found[1].lower().removesuffix(".")


def _words_of(title: str) -> list[str]:
    """Return the words of a title, without the marks around them."""
    return [word.strip("`'\"()[]<>,:;") for word in title.split()]


def _read_paths(
    parts: Iterable[Mapping[str, Any]], raw: Mapping[str, Any], cwd: str | None, title: str
) -> tuple[str, ...]:
    """Return the absolute paths of all files that a call names; none if one of them is not certain."""
    found: list[str] = []
    in_title = [word for word in _words_of(title) if word.startswith(("/", "~")) or ".." in word.split("/")]
    for named in (*_named_paths(parts, raw), *in_title):
        if not isinstance(named, str) or not named:
            return ()
        path = named if named.startswith("/") or cwd is None else f"{cwd.removesuffix('/')}/{named.removeprefix('./')}"
        if named.startswith("~") or not is_plain_path(path):
            return ()
        found.append(path)
    return tuple(found)


def _named_paths(parts: Iterable[Mapping[str, Any]], raw: Mapping[str, Any]) -> Iterator[Any]:
    for name in _PATHS & raw.keys():
        value = raw[name]
        if value is not None:
            yield from value if isinstance(value, list) else (value,)
    told = ((part.get(name), kind) for part in parts for name, kind in (("locations", None), ("content", "diff")))
    for items, kind in told:
        for item in items if isinstance(items, list) else () if items is None else (None,):
            if kind is None or (isinstance(item, dict) and item.get("type") == kind):
                yield item.get("path") if isinstance(item, dict) else None
