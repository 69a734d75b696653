"""The command `watch`: chooses a session, and shows it in the terminal."""

import os
import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.client.gateway_options import Gateway, gateway_options, history_size_option, lines_option
from acp_gateway.cli.common import collected
from acp_gateway.errors import UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from acp_gateway.client.dialing import Destination
    from acp_gateway.terminal.port_lines import Port
    from acp_gateway.terminal.session_lines import Session

TITLE_SIZE = 42
"""Characters of a title in the list to choose from at least: the list then fits into 80 columns."""

COLUMNS_BESIDE = 80 - TITLE_SIZE
"""Columns of the list beside the title: number, mark, agent, age and state."""

ROWS_AROUND = 4
LEAST_ROWS = 5
NAMED = 10
"""Rows of a terminal that the list leaves free, rows that it has in a lower one, and ids that an error names."""

WATCH_EPILOG = """
\b
Examples:
  acp-gateway watch box                    the only live session, or a list to choose from
  acp-gateway watch box SESSION --last 0   only what is new
  acp-gateway watch box SESSION | tee log  plain text
  acp-gateway watch box SESSION --json | jq 'select(.type == "turn_ended")'
"""


@dataclass(frozen=True)
class _View:
    """The options of the text that is shown."""

    last: int | None
    lines: int
    history_size: int
    color: str


@click.command(epilog=WATCH_EPILOG, short_help="Show a session in the terminal as it goes on.")
@gateway_options
@click.argument("session", required=False)
@click.option("--agent", help="Choose among this agent's sessions.")
@click.option("--observe", is_flag=True, help="Watch only, without questions: you can't approve.")
@click.option(
    "--last", type=click.IntRange(min=0), metavar="N", help="Begin with the last N parts of the history. Default: all."
)
@lines_option
@history_size_option(help="How much of the history is kept to begin with.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line for each update and event.")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colours. auto: in a terminal, unless NO_COLOR is set.",
)
@collected(_View, "view")
def watch(
    gateway: Gateway,
    session: str | None,
    agent: str | None,
    view: _View,
    *,
    observe: bool,
    as_json: bool,
) -> None:
    """Show SESSION at HOST: its history, then everything as it happens. Ctrl-C leaves.

    Without SESSION it is the only live one, or one that you choose. In a terminal, one key answers a question of the
    agent, if your token may: y, n, or the digit of an answer; s begins a line that steers it. Elsewhere, and with
    --observe, it only watches. HOST has the same meaning as TARGET of `connect`; it may be left out if hosts.toml has
    only one.
    """
    import trio

    from acp_gateway.cli.client.watched_session import has_keyboard, single_keys, watch_session
    from acp_gateway.client.destination import check_session_id
    from acp_gateway.client.ports.session_ports import ports_of
    from acp_gateway.terminal.watching import Watcher

    session = choose_session(gateway, agent) if session is None else check_session_id(session)
    gateway.start_log()
    interactive = has_keyboard() and not observe and not as_json

    def destination() -> "Destination":
        # Without keys no question can be answered, so this client must not count as one that decides.
        return gateway.destination(session=session, observe=not interactive)

    async def ask_ports() -> "list[Port]":
        return await ports_of(gateway.destination(control=True), session)

    colour = view.color == "always" or (view.color == "auto" and _wants_colour())
    columns = (lambda: shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    watcher = None
    if not as_json:
        watcher = Watcher(
            colour=colour,
            last=view.last,
            lines=view.lines,
            size=view.history_size,
            columns=columns,
            rows=(lambda: shutil.get_terminal_size().lines) if interactive else None,
            erases=os.environ.get("TERM") != "dumb",
        )
    with ExitStack() as stack:
        if interactive:
            stack.enter_context(single_keys())
        watching = partial(watch_session, interactive=interactive, target=gateway.target, ask_ports=ask_ports)
        trio.run(watching, session, destination, gateway.settings, watcher)


def choose_session(gateway: Gateway, agent: str | None) -> str:
    """Return the id of the only live session, or of the one that the user chooses. Raises `GatewayError`."""
    from acp_gateway.terminal.session_lines import by_use, joinable

    live = [
        session
        for session in joinable(gateway.list_sessions().sessions)
        if session.get("live") is not False and agent in (None, session["agent"])
    ]
    if not live:
        raise UsageError("no session is live there; `acp-gateway sessions` lists the former ones, give the id of one")
    if len(live) == 1:
        return str(live[0]["sessionId"])
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        named = [printable(session["sessionId"]) for session in by_use(live)]
        names = ", ".join([*named[:NAMED], *(["…"] if named[NAMED:] else [])])
        raise UsageError(f"{len(live)} sessions are live there: give the id of one of {names}")
    return _choose(by_use(live))


def _choose(sessions: "Sequence[Session]") -> str:
    """Return the id of the session that the user chooses by a number, or by words that it alone has."""
    from acp_gateway.cli.common import print_line
    from acp_gateway.terminal.session_lines import title_of, with_words

    shown = sessions
    while True:
        # The heads, the line below, the question and the answer take a row each.
        count = max(shutil.get_terminal_size().lines - ROWS_AROUND, LEAST_ROWS)
        listed = shown[:count]
        _print_choices(listed)
        hidden = len(shown) - len(listed)
        if hidden:
            print_line(f"{hidden} more: words of a title, an agent, a folder or an id show those that have them")
        answer: str = click.prompt("Which one (its number, or words)").strip()
        if answer.isdecimal() and 0 < int(answer) <= len(listed):
            return str(listed[int(answer) - 1]["sessionId"])
        found = with_words(sessions, answer)
        if len(found) == 1:
            print_line(title_of(found[0]))
            return str(found[0]["sessionId"])
        if not found:
            print_line(f"None has {answer}.")
        shown = found or sessions


def _print_choices(sessions: "Sequence[Session]") -> None:
    from datetime import UTC, datetime

    from acp_gateway.cli.common import print_table
    from acp_gateway.terminal.session_lines import age_of, is_waiting, tell_apart, title_of

    now = datetime.now(UTC)
    marks = tell_apart(sessions, now)
    size = max(TITLE_SIZE, shutil.get_terminal_size().columns - COLUMNS_BESIDE)
    rows: list[tuple[str, ...]] = []
    for number, session in enumerate(sessions, 1):
        title, mark = title_of(session), marks.get(session["sessionId"], "").rpartition(" ")[2]
        shown = f"{title[: size - 1]}…" if len(title) > size else title
        state = "waits" if is_waiting(session) else ""
        shown = f"{shown} ({mark})" if mark else shown
        rows.append((str(number), shown, printable(session["agent"]), age_of(session, now), state))
    print_table(("", "TITLE", "AGENT", "AGE", ""), rows)


def _wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
