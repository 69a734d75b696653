"""The command `watch`: chooses a session, and shows it in the terminal."""

import os
import shutil
import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.client.gateway_options import Gateway, gateway_options, history_size_option, lines_option
from acp_gateway.errors import UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.client.dialing import Destination

TITLE_SIZE = 48
"""Characters of a title in the list to choose from, which then fits into 80 columns."""

WATCH_EPILOG = """
\b
Examples:
  acp-gateway watch box                    the only live session, or a list to choose from
  acp-gateway watch box SESSION --last 0   only what is new
  acp-gateway watch box SESSION | tee log  plain text
  acp-gateway watch box SESSION --json | jq 'select(.type == "turn_ended")'
"""


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
def watch(
    gateway: Gateway,
    session: str | None,
    agent: str | None,
    last: int | None,
    lines: int,
    history_size: int,
    color: str,
    *,
    observe: bool,
    as_json: bool,
) -> None:
    """Show SESSION at HOST: its history, then everything as it happens. Ctrl-C leaves.

    Without SESSION it is the only live one, or one that you choose. In a terminal, one key answers a question of the
    agent, if your token may: y, n, or the digit of an answer. Elsewhere, and with --observe, it only watches. HOST has
    the same meaning as TARGET of `connect`; it may be left out if hosts.toml has only one.
    """
    import trio

    from acp_gateway.cli.client.watched_session import has_keyboard, single_keys, watch_session
    from acp_gateway.client.destination import check_session_id
    from acp_gateway.terminal.watching import Watcher

    gateway.start_log()
    session = choose_session(gateway, agent) if session is None else check_session_id(session)
    interactive = has_keyboard() and not observe and not as_json

    def destination() -> "Destination":
        # Without keys no question can be answered, so this client must not count as one that decides.
        return gateway.destination(session=session, observe=not interactive)

    colour = color == "always" or (color == "auto" and _wants_colour())
    columns = (lambda: shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    watcher = None
    if not as_json:
        watcher = Watcher(
            colour=colour,
            last=last,
            lines=lines,
            size=history_size,
            columns=columns,
            erases=os.environ.get("TERM") != "dumb",
        )
    with ExitStack() as stack:
        if interactive:
            stack.enter_context(single_keys())
        trio.run(partial(watch_session, session, destination, gateway.settings, watcher, interactive=interactive))


def choose_session(gateway: Gateway, agent: str | None) -> str:
    """Return the id of the only live session, or of the one that the user chooses. Raises `GatewayError`."""
    from datetime import UTC, datetime

    from acp_gateway.terminal.session_lines import age_of, joinable, tell_apart, title_of

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
        names = ", ".join(printable(session["sessionId"]) for session in live)
        raise UsageError(f"{len(live)} sessions are live there: give the id of one of {names}")
    from acp_gateway.cli.common import print_table

    now = datetime.now(UTC)
    marks = tell_apart(live, now)
    rows: list[tuple[str, ...]] = []
    for number, session in enumerate(live, 1):
        title, mark = title_of(session), marks.get(session["sessionId"], "").rpartition(" ")[2]
        shown = f"{title[: TITLE_SIZE - 1]}…" if len(title) > TITLE_SIZE else title
        age = "away" if session.get("unreachableSince") else age_of(session, now)
        rows.append((str(number), f"{shown} ({mark})" if mark else shown, printable(session["agent"]), age))
    print_table(("", "TITLE", "AGENT", "AGE"), rows)
    chosen: int = click.prompt("Which one", type=click.IntRange(1, len(live)))
    return str(live[chosen - 1]["sessionId"])


def _wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
