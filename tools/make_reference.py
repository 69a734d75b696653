#!/usr/bin/env python3
"""Write the pages of docs/reference from the program: python -m tools.make_reference [--check]

With --check nothing is written: it names the pages that differ, and exits with 1 if there is one.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from acp_conformance import agent_checks, client_checks, new_agent_checks, new_client_checks
from acp_gateway import errors
from acp_gateway.cli.main import SECTIONS, main
from acp_gateway.dialects.metrics.exporter import FAMILIES, PREFIX
from acp_gateway.errors import GatewayError
from acp_gateway.gateway.events.audit import EVENTS
from acp_gateway.versions import table as version_table
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.old_agent import OldAgent
from tools.man_page import EXIT_STATUS, default_of, value_of, walk

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
PACKAGE = ROOT / "acp_gateway"

LEVELS = {"error": "ERROR", "exception": "ERROR", "warning": "WARNING", "info": "INFO", "debug": "DEBUG"}
"""Levels of the log by the method that writes a line."""

CLIENT = ("cli", "client")
"""Packages of the client, whose log is another one."""

FACES = """The status is that of an HTTP response, and the code of the JSON-RPC error that answers a
`_acp-gateway/hello`. The reason is the header `Acp-Gateway` of a response, and `error.data.reason` of a JSON-RPC error.
[wire.md](../wire.md) has the JSON-RPC codes of messages."""


def escape(text: str) -> str:
    """Return text in which Markdown finds nothing but code between backquotes."""
    parts = re.split(r"(`[^`]*`)", text)
    special = r"[\\*<>\[\]]|\b_\B|\B_\b"
    return "".join(part if part[:1] == "`" else re.sub(special, r"\\\g<0>", part) for part in parts)


def code(text: str) -> str:
    """Return text as code, also if it has backquotes itself."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def codes(words: Iterable[str]) -> str:
    """Return words as code, with commas."""
    return ", ".join(map(code, words))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    for cells in (heads, ["---"] * len(heads), *rows):
        yield "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a help text; blocks that begin with click's mark become code."""
    for block in re.split(r"\n\s*\n", text.strip()):
        rows = block.strip("\n").splitlines()
        if rows and rows[0].strip() == "\b":
            yield from ("", "```text", *(row.rstrip() for row in rows[1:]), "```")
        else:
            yield from ("", escape(" ".join(row.strip() for row in rows)))


def describe(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines about one command: usage, help, options, examples."""
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    yield from ("", f"{'#' * (len(words) + 1)} {' '.join(words)}", "", code(f"acp-gateway {' '.join(words)} {usage}"))
    yield from paragraphs(command.help or "")
    if options:
        rows = []
        for param in options:
            value = value_of(param)
            names = codes([*param.opts, *param.secondary_opts]) + (f" {code(value)}" if value else "")
            default = default_of(param)
            rows.append((names, "" if default is None else code(default), escape(param.help or "")))
        yield from ("", *table(("option", "default", "meaning"), rows))
    yield from paragraphs(command.epilog) if command.epilog else ()


def commands() -> Iterator[str]:
    """Yield the lines of the page of commands: a list by machine, then each command."""
    yield from ("", "All commands have `--help`; `acp-gateway help COMMAND` prints the same.")
    for title, names in SECTIONS.items():
        yield from ("", f"{title}: " + ", ".join(f"[{name}](#{name})" for name in names) + ".")
    for command, words in walk(main):
        yield from describe(command, words)


def metrics() -> Iterator[str]:
    """Yield the lines of the page of metrics."""
    rows = [
        (code(PREFIX + name + "_total" * (of.kind == "counter")), of.kind, codes(of.labels), escape(of.meaning))
        for name, of in FAMILIES.items()
    ]
    yield from ("", "[How to read them](../operations.md#metrics). A histogram has `_bucket`, `_sum` and `_count`.")
    yield from ("", *table(("name", "type", "labels", "meaning"), rows))


def audit() -> Iterator[str]:
    """Yield the lines of the page of audit events."""
    rows = [(code(name), codes(declared.members.split()), declared.when) for name, declared in EVENTS.items()]
    yield from ("", "[How to read the audit](../support.md#the-audit), and what its common members mean.")
    yield from ("", *table(("event", "members", "when"), rows))


def exit_codes() -> Iterator[str]:
    """Yield the lines of the page of exit codes and errors."""
    rows = [(str(number), escape(cause), escape(remedy)) for number, (cause, remedy) in EXIT_STATUS.items()]
    yield from ("", *table(("exit code", "cause", "what to do"), rows))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)]
    faces = [
        (code(kind.__name__), str(kind.exit_code), str(kind.http_status), code(kind.reason), meaning(kind))
        for kind in kinds
    ]
    yield from ("", "## Errors", "", FACES, "", *table(("error", "exit code", "status", "reason", "meaning"), faces))


def meaning(error: type[GatewayError]) -> str:
    """Return the first line of an error's docstring."""
    return escape((error.__doc__ or "").partition("\n")[0])


def logged_lines() -> Iterator[tuple[str, str, str]]:
    """Yield module, level ("" where it depends) and text of what the gateway logs, with … for what is filled in."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.parts[0] not in CLIENT:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=method), args=[*arguments]
                    ) if method in (*LEVELS, "log"):
                        text = arguments[method == "log"]
                        assert isinstance(text, ast.Constant), f"{path}:{node.lineno}"
                        filled = re.sub(r"%[0-9.]*[a-z]", "…", str(text.value))
                        yield place.as_posix(), LEVELS.get(method, ""), re.sub(r"……+", "…", filled)


def log() -> Iterator[str]:
    """Yield the lines of the page of log lines: those with words of their own, by level."""
    yield from ("", "[What to do about them](../log.md). `…` stands for a value.")
    found: dict[tuple[str, str], list[str]] = {}
    for module, level, text in logged_lines():
        if re.search("[a-z]", text):
            found.setdefault((level, text), []).append(module)
    for level in (*dict.fromkeys(LEVELS.values()), ""):
        rows = sorted(
            (code(text), codes(dict.fromkeys(modules))) for (of, text), modules in found.items() if of == level
        )
        yield from ("", f"## {level or 'At several levels'}", "", *table(("line", "module"), rows))


Row = tuple[str | None, str | None, bool]
Functions = Mapping[str, Callable[..., Any]]


def versions() -> Iterator[str]:
    """Yield the lines of the page of both versions: methods, updates, members and values, and what becomes of them."""
    yield from ("", "[How the gateway translates](../versions.md). An empty cell is the same without a loss, a dash is")
    yield "a message that the version does not have; any other one says what the translator does. (d) marks what only"
    yield "the drafts of the schemas have. `proxy/…` gets error -32601: the gateway stands in no chain of proxies."

    def name(word: str | None, *, draft: bool = False) -> str:
        return "-" if word is None else code(word) + (" (d)" if draft else "")

    def translated(rows: Iterable[Row], to_new: Functions, to_old: Functions) -> Iterator[str]:
        """Yield a table with what the functions of the translators say."""
        cells = []
        for old, new, draft in rows:
            functions = to_new.get(old or ""), to_old.get(new or old or "")
            notes = (getattr(function, "__doc__", None) or "" for function in functions)
            cells.append((name(old, draft=draft), name(new, draft=draft), *notes))
        return table(heads, cells)

    heads = ("version 1", "version 2", "from version 1 to version 2", "from version 2 to version 1")
    of_clients = [{**it.REQUESTS, **it.NOTIFICATIONS} for it in (NewAgent, OldAgent)]
    of_agents = [OldAgent.AGENT_REQUESTS, NewAgent.AGENT_REQUESTS]
    for title, caller, functions in (
        ("clients", version_table.Caller.CLIENT, of_clients),
        ("agents", version_table.Caller.AGENT, of_agents),
        ("both", version_table.Caller.BOTH, of_clients),
    ):
        yield from ("", f"## Methods of {title}", "")
        yield from translated((row[1:] for row in version_table.METHODS if row.caller is caller), *functions)
    yield from ("", "## Updates of a session", "")
    yield from translated(version_table.UPDATES, OldAgent.UPDATES, NewAgent.UPDATES)
    yield from ("", "## Members", "")
    yield from table(
        ("of", *heads),
        ((row.where, name(row.old), name(row.new), row.to_new, row.to_old) for row in version_table.MEMBERS),
    )
    yield from (
        "",
        "## Values",
        "",
        "Version 1 has closed lists, version 2 open ones. Values that both have are not listed.",
        "",
    )
    rows = []
    for listed in version_table.ENUMERATIONS:
        further = {**{code(new): code(old) if " " not in old else old for new, old in listed.to_old.items()}}
        further["any other"] = "left out" if listed.unknown is None else code(listed.unknown)
        rows += [(listed.where, new, old) for new, old in further.items()]
    yield from table(("of", "version 2", "version 1"), rows)


def checks() -> Iterator[str]:
    """Yield the lines of the page on the checks of the protocol's rules."""
    for heading, found in (
        ("Agents", agent_checks.CHECKS),
        ("Clients", client_checks.CHECKS),
        ("Agents of version 2", new_agent_checks.CHECKS),
        ("Clients of version 2", new_client_checks.CHECKS),
    ):
        yield from ("", f"## {heading}", "")
        yield from table(
            ("check", "level", "rule", "section"),
            ((code(check.name), check.level, escape(check.title), escape(check.section)) for check in found),
        )


def subject(path: Path) -> str:
    """Return the first paragraph of a module's docstring, or of the comment on top of one of the page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        text = re.sub(r"^ *\*", "", text.removeprefix("/**").partition("*/")[0], flags=re.MULTILINE)
    return " ".join(re.split(r"\n\s*\n", text.strip())[0].split())


def modules() -> Iterator[str]:
    page = PACKAGE / "web"
    programs = [*PACKAGE.rglob("*.py"), *(ROOT / "acp_conformance").rglob("*.py")]
    paths = [*programs, *(page / "app").rglob("*.js"), page / "worker.js"]
    folders: dict[Path, list[Path]] = {}
    for path in sorted(paths):
        folders.setdefault(path.parent, []).append(path)
    for folder, found in sorted(folders.items()):
        yield from ("", f"## {code(str(folder.relative_to(ROOT)))}")
        first = folder / "__init__.py"
        if first in found:
            yield from ("", escape(subject(first)))
        rest = [path for path in found if path != first]
        if rest:
            yield ""
            yield from table(("module", "subject"), ((code(path.name), escape(subject(path))) for path in rest))


PAGES = {
    "modules": ("Modules", "the first lines of the modules", modules),
    "commands": ("Commands", "the commands in `acp_gateway/cli/`", commands),
    "metrics": ("Metrics", "`acp_gateway/dialects/metrics/exporter.py`", metrics),
    "audit": ("Events of the audit", "`acp_gateway/gateway/events/audit.py`", audit),
    "exit-codes": ("Exit codes and errors", "`acp_gateway/errors.py` and `tools/man_page.py`", exit_codes),
    "versions": ("Versions of the protocol", "`acp_gateway/versions/`", versions),
    "checks": ("Checks of the protocol's rules", "the tables of rules in `acp_conformance/`", checks),
    "log-lines": ("Lines of the log", "the calls that write them", log),
}
"""Title, source and lines of each page."""


def pages() -> dict[Path, str]:
    """Return the text of each page."""
    found = {}
    for name, (title, source, lines) in PAGES.items():
        note = f"*Generated from {source}: change it there, and run `make reference`.*"
        found[FOLDER / f"{name}.md"] = "\n".join([f"# {title}", "", note, *lines(), ""])
    return found


def run(arguments: Sequence[str]) -> int:
    """Write the pages that differ, or name them; return the exit code."""
    check = "--check" in arguments
    stale = {
        path: text for path, text in pages().items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        if check:
            print(f"{path.relative_to(ROOT)}: differs from the program; run `make reference`")
        else:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
