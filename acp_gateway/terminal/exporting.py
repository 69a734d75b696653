"""Writes the history of a session as one file: Markdown, HTML or JSON.

Texts are those of the agent and of users. In HTML all of them are text, and the file loads and runs nothing. In
Markdown, what an agent says stays the Markdown that it is.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape as html_escape
from itertools import chain
from typing import Any, Final

from acp_gateway.printable import printable_lines
from acp_gateway.protocol import methods
from acp_gateway.protocol.redaction import MAX_SIZE, MAX_STEPS, redact_json
from acp_gateway.protocol.secret_patterns import redact_text
from acp_gateway.terminal.content import Diff, members_of, text_of
from acp_gateway.terminal.export_formats import FORMATS
from acp_gateway.terminal.line_diff import TOO_MANY, LineDiff, Mark
from acp_gateway.terminal.rendering import one_line
from acp_gateway.terminal.transcript import TURN_END, Block, Kind, Message, Note, Plan, Tool, Transcript

MOST_COMPARED: Final = 200
"""Diffs of one file whose lines are compared, each in up to 0.3 s; of others both texts are written."""

_ALL: Final = 2**62
"""More characters, or lines, than a history has."""

_STEPS: Final = 16 * MAX_STEPS
"""Steps of the redaction of one update, in a thread."""

_JOINED: Final = 64 * 1024
"""Characters up to which consecutive chunks of one message are redacted together: a secret may be split among them."""


_END_OF_TIME: Final = 253_402_300_800_000
"""Milliseconds from 1970 to the year 10000, which no date has."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]{0,64}m")

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$", re.MULTILINE)
"""A line that begins or ends code in Markdown."""

_HEADS: Final = {Kind.USER: "User", Kind.AGENT: "Agent", Kind.THOUGHT: "Thought"}


@dataclass(frozen=True, slots=True)
class Update:
    """An update of a session."""

    time: int | None
    """Milliseconds since 1970; None if that is unknown."""
    update: Mapping[str, Any]
    """ACP's `update`."""
    session: str = ""
    """The session of the sub-agent that it is of; empty for the session itself."""


@dataclass(frozen=True, slots=True)
class History:
    """A session to write."""

    id: str
    agent: str
    title: str
    cwd: str
    truncated: bool
    """True if older updates are not held any more."""
    updates: Iterable[Update]
    """They are read once."""


def read_update(message: object, time: int | None, session_id: str) -> Update:
    """Return an update of a history from its `session/update`, parsed; `session_id` is the id that updates have."""
    params = members_of(members_of(message).get("params"))
    session = text_of(params.get("sessionId"))
    return Update(_valid(time), members_of(params.get("update")), "" if session == session_id else session)


def with_ends(updates: Iterable[Update], first: int, ends: Iterable[Mapping[str, Any]]) -> Iterator[Update]:
    """Yield updates, the first of this number, with the ends of turns at their places.

    Of an end `seq` is the number of the update before it, `time` is as for updates, and `stopReason` or `error` is how
    the turn has ended.
    """
    left = deque(map(members_of, ends))
    for number, update in enumerate(chain([None], updates), first - 1):
        if update is not None:
            yield update
        while left and left[0].get("seq", 0) <= number:
            end = left.popleft()
            outcome = {name: end[name] for name in ("stopReason", "error") if name in end}
            yield Update(_valid(end.get("time")), {"sessionUpdate": TURN_END, **outcome})


def _valid(time: object) -> int | None:
    """Return a time that a date has, else None."""
    return time if isinstance(time, int) and 0 <= time < _END_OF_TIME else None


def export(history: History, form: str, *, redacted: bool = False) -> str:
    """Return a session as text in one of `FORMATS`. `redacted` leaves out what looks like a secret.

    Takes seconds for a long history, so that it belongs in a thread where other work waits.
    """
    if redacted:
        history = _without_secrets(history)
    if form == "json":
        return _json(history)
    clean: Callable[[str], str] = _clean_redacted if redacted else printable_lines
    return "".join(_html(history, clean) if form == "html" else _markdown(history, clean))


def file_name(title: str, session_id: str, form: str) -> str:
    """Return a name for the file of a session: letters and digits of its title, else of its id."""
    words = re.findall(r"[A-Za-z0-9]+", title) or re.findall(r"[A-Za-z0-9]+", session_id) or ["session"]
    return f"{'-'.join(words)[:60].rstrip('-')}.{FORMATS[form]}"


# Secrets


def _without_secrets(history: History) -> History:
    described = [redact_text(text, len(text)) for text in (history.title, history.cwd)]
    updates = (replace(one, update=_redacted(one.update)) for one in _joined(history.updates))
    return replace(history, title=described[0], cwd=described[1], updates=updates)


def _redacted(update: Mapping[str, Any]) -> Mapping[str, Any]:
    text = json.dumps(update).encode()
    found = redact_json(text, max(8 * len(text), MAX_SIZE), steps=_STEPS)
    if found is None:
        return {"sessionUpdate": "notice", "title": f"an update of {len(text)} bytes, which is too large to redact"}
    return members_of(json.loads(found))


def _joined(updates: Iterable[Update]) -> Iterator[Update]:
    """Yield the updates, consecutive text chunks of one message as one."""
    last: Update | None = None
    for one in updates:
        if last is not None and _continues(last, one):
            content = dict(last.update["content"])
            content["text"] += one.update["content"]["text"]
            last = replace(last, update={**last.update, "content": content})
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _continues(last: Update, one: Update) -> bool:
    before, after = members_of(last.update.get("content")), members_of(one.update.get("content"))
    return (
        last.session == one.session
        and last.update.get("sessionUpdate") in methods.CHUNKS
        and {**last.update, "content": None} == {**one.update, "content": None}
        and all(set(each) == {"type", "text"} and isinstance(each["text"], str) for each in (before, after))
        and len(before["text"]) < _JOINED
    )


def _clean_redacted(text: str) -> str:
    return printable_lines(redact_text(text, len(text)))


# JSON


def _json(history: History) -> str:
    session = {"id": history.id, "agent": history.agent, "title": history.title, "cwd": history.cwd}
    head = json.dumps({"session": session, "truncated": history.truncated})[:-1]
    lines = (json.dumps(_entry(one)) for one in history.updates)
    return head + ', "updates": [\n' + ",\n".join(lines) + "\n]}\n"


def _entry(one: Update) -> dict[str, Any]:
    time = {"createdAt": None if one.time is None else _time(one.time)}
    return time | ({"sub": one.session} if one.session else {}) | {"update": one.update}


def _time(time: int) -> str:
    return datetime.fromtimestamp(time // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Blocks


def _blocks(history: History) -> Iterator[tuple[Block, int | None]]:
    """Yield the blocks in their last state, each with the time of its first update."""
    transcript, times = Transcript(_ALL), dict[int, int | None]()
    for one in history.updates:
        for change in transcript.apply(one.update, one.session):
            times.setdefault(change.block.number, one.time)
    for block in transcript.blocks:
        yield block, times.get(block.number)


def _facts(history: History) -> list[tuple[str, str]]:
    facts = [("Session", history.id), ("Agent", history.agent), ("Folder", history.cwd)]
    return [(name, value) for name, value in facts if value]


_GAP: Final = "Older parts of this session are not kept any more."


class _Diffs:
    """Compares the texts of the first diffs."""

    def __init__(self) -> None:
        self._left = MOST_COMPARED

    def lines(self, diff: Diff) -> list[tuple[Mark, str]]:
        """Return the lines of a diff."""
        if not self._left:
            old, new = diff.old.splitlines(), diff.new.splitlines()
            told = [(Mark.ROUGH, TOO_MANY)] if old and new else []
            return [*told, *((Mark.REMOVED, line) for line in old), *((Mark.ADDED, line) for line in new)]
        self._left -= 1
        lines = LineDiff(diff.old, diff.new, _ALL).lines
        return [(mark, f"line {text}" if mark is Mark.SKIPPED else text) for mark, text in lines]


def _head_of(block: Message, time: int | None) -> str:
    head = _HEADS[block.kind] if not block.lane else f"{_HEADS[block.kind]} (sub-agent)"
    return head if time is None else f"{head}, {_time(time)}"


def _tool_head(tool: Tool) -> str:
    title = one_line(tool.title) or one_line(tool.kind) or "a tool"
    return f"{title} ({', '.join(filter(None, (one_line(tool.status), one_line(tool.end))))})"


def _places(tool: Tool) -> list[str]:
    return [place.path if place.line is None else f"{place.path}:{place.line}" for place in tool.locations]


def _output(tool: Tool, clean: Callable[[str], str]) -> str:
    return clean(_COLOURS.sub("", tool.output)).strip("\n")


# Markdown


def _markdown(history: History, clean: Callable[[str], str]) -> Iterator[str]:
    diffs = _Diffs()
    yield f"# {_inline(clean(history.title)) or 'A session'}\n\n"
    yield "".join(f"- {name}: {_code(clean(value))}\n" for name, value in _facts(history))
    if history.truncated:
        yield f"\n*{_GAP}*\n"
    ends_line = True
    fence = ""
    for block, time in _blocks(history):
        text = ""
        if isinstance(block, Message) and block.continued:
            # The text of one message, which the transcript has cut.
            yield (text := clean(block.text))
            fence = _open_fence(text, fence)
            ends_line = False
            continue
        if fence:
            # The message was cut off in code, which would go on to the end of the file.
            yield f"\n{fence}"
            fence = ""
        match block:
            case Message(kind=Kind.THOUGHT):
                text = "\n".join(f"> {line}" for line in clean(block.text).strip().split("\n"))
                text = f"> **{_head_of(block, time)}**\n>\n{text}"
            case Message():
                text = f"## {_head_of(block, time)}\n\n{clean(block.text)}"
                fence = _open_fence(text)
            case Tool():
                text = "\n\n".join(_tool_parts(block, diffs, clean))
            case Plan():
                entries = (
                    f"- [{'x' * (one.status == 'completed') or ' '}] {_inline(clean(one.text))}"
                    for one in block.entries
                )
                text = "**Plan**\n\n" + "\n".join(entries)
            case Note():
                text = f"*{_inline(clean(block.text))}{'' if time is None else f', {_time(time)}'}*"
        yield ("\n" if ends_line else "\n\n") + text.rstrip("\n") + ("" if isinstance(block, Message) else "\n")
        ends_line = not isinstance(block, Message)
    if fence:
        yield f"\n{fence}"
    if not ends_line:
        yield "\n"


def _open_fence(text: str, fence: str = "") -> str:
    """Return the fence of the code in which a text ends, else an empty text; `fence` is that in which it begins."""
    for mark, rest in _FENCE.findall(text):
        if not fence:
            fence = mark if mark[0] == "~" or "`" not in rest else ""
        elif mark.startswith(fence) and not rest.strip():
            fence = ""
    return fence


def _tool_parts(tool: Tool, diffs: _Diffs, clean: Callable[[str], str]) -> Iterator[str]:
    yield f"**Tool: {_inline(clean(_tool_head(tool)))}**"
    if tool.input and tool.input not in tool.title:
        yield _fenced(clean(tool.input))
    if places := _places(tool):
        yield ", ".join(_code(clean(place)) for place in places)
    for diff in tool.diffs:
        yield _code(clean(diff.path)) + (f" {_inline(clean(diff.change))}" if diff.change else "")
        lines = [f"{mark.value}{text}" for mark, text in diffs.lines(diff)]
        if lines:
            yield _fenced(clean("\n".join(lines)), "diff")
    if output := _output(tool, clean):
        yield _fenced(output)


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _fenced(text: str, language: str = "") -> str:
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _code(text: str) -> str:
    line = text.replace("\n", " ")
    mark = "`" * (_longest_run(line) + 1)
    pad = " " if line[:1] == "`" or line[-1:] == "`" else ""
    return f"{mark}{pad}{line}{pad}{mark}"


def _inline(text: str) -> str:
    """Return a text in one line in which nothing is Markdown."""
    return re.sub(r"([\\`*_\[\]<>#|~])", r"\\\1", " ".join(text.split()))


# HTML

_STYLE: Final = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{max-width:50rem;margin:2rem auto;"
    "padding:0 1rem;overflow-wrap:anywhere}h2{font-size:1rem;margin:1.5rem 0 .25rem}div,pre{white-space:pre-wrap}"
    "pre{font:.85rem/1.4 ui-monospace,monospace;padding:.5rem;border:1px solid #8886;border-radius:.3rem}"
    "ins,del{text-decoration:none;display:block}ins{background:#2a62}del{background:#c332}summary{cursor:pointer}"
    ".user{border-left:3px solid #48c;padding-left:.75rem}.thought,.note,dl{opacity:.75}dt{float:left;width:6rem}"
)

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def _html(history: History, clean: Callable[[str], str]) -> Iterator[str]:
    def safe(text: str) -> str:
        return html_escape(clean(text))

    diffs, title = _Diffs(), safe(history.title) or "A session"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<dl>\n"
    yield "".join(f"<dt>{name}</dt><dd>{safe(value)}</dd>\n" for name, value in _facts(history))
    yield "</dl>\n" + (f'<p class="note">{_GAP}</p>\n' if history.truncated else "")
    for block, time in _blocks(history):
        match block:
            case Message():
                head = "" if block.continued else f"<h2>{_head_of(block, time)}</h2>\n"
                yield f'{head}<div class="{block.kind.value}">{safe(block.text)}</div>\n'
            case Tool():
                yield f"<details><summary>{safe(_tool_head(block))}</summary>\n"
                yield "".join(_html_of_tool(block, diffs, safe))
                output = html_escape(_output(block, clean))
                yield (f"<pre>{output}</pre>\n" if output else "") + "</details>\n"
            case Plan():
                entries = "".join(f"<li>{safe(one.text)} ({safe(one.status)})</li>\n" for one in block.entries)
                yield f"<h2>Plan</h2>\n<ol>\n{entries}</ol>\n"
            case Note():
                when = "" if time is None else f", {_time(time)}"
                yield f'<p class="note">{safe(block.text)}{when}</p>\n'
    yield "</body>\n</html>\n"


def _html_of_tool(tool: Tool, diffs: _Diffs, safe: Callable[[str], str]) -> Iterator[str]:
    if tool.input:
        yield f"<pre>{safe(tool.input)}</pre>\n"
    if places := _places(tool):
        yield f"<p>{', '.join(map(safe, places))}</p>\n"
    tags = {Mark.ADDED: "ins", Mark.REMOVED: "del"}
    for diff in tool.diffs:
        yield f"<p>{safe(diff.path)} {safe(diff.change)}</p>\n"
        lines = []
        for mark, text in diffs.lines(diff):
            line, tag = safe(f"{mark.value}{text}"), tags.get(mark)
            lines.append(f"<{tag}>{line}</{tag}>" if tag else f"{line}\n")
        if lines:
            yield f"<pre>{''.join(lines)}</pre>\n"
