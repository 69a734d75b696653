"""The command `chat`: sessions in the terminal, full screen."""

import os
import sys
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.client.gateway_options import Gateway, gateway_options, history_size_option, lines_option
from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.client.dialing import Destination

CHAT_EPILOG = """
\b
Examples:
  acp-gateway chat box           the list of sessions; Enter opens one, F3 a new one
  acp-gateway chat box SESSION   this one
  acp-gateway watch box          one session, line by line
"""


@click.command(epilog=CHAT_EPILOG, short_help="Talk to agents in the terminal, full screen.")
@gateway_options
@click.argument("session", required=False)
@lines_option
@history_size_option(help="How much of each transcript is kept, the latest parts.")
def chat(gateway: Gateway, session: str | None, lines: int, history_size: int) -> None:
    """Show the sessions at HOST, and work in them: prompts, permissions, modes, new sessions. F10 or Ctrl-C leaves.

    The agents go on without it. HOST has the same meaning as TARGET of `connect`; it may be left out if hosts.toml has
    only one.
    """

    if sys.platform == "win32":
        raise UsageError("chat needs Linux or macOS; `acp-gateway watch` shows a session here too")
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("chat needs a terminal; `acp-gateway watch` also writes to a pipe")
    if os.environ.get("TERM") == "dumb":
        raise UsageError("chat needs a terminal with a cursor, and TERM is dumb; `acp-gateway watch` needs none")

    import trio

    from acp_gateway.client.destination import check_session_id
    from acp_gateway.tui import app

    gateway.start_log()
    first = "" if session is None else check_session_id(session)

    def join(name: str) -> "Destination":
        return gateway.destination(session=name)

    def open_new(agent: str) -> "Destination":
        return gateway.destination(agent=agent or None)

    def control() -> "Destination":
        return gateway.destination(control=True)

    # Errors of the command line are printed before the screen is taken.
    control()
    name = "this machine" if gateway.target.startswith("unix://") else gateway.target
    served = app.Gateway(name, gateway.target, control, join, open_new, gateway.settings)
    trio.run(app.Chat(served, lines=lines, size=history_size, colour=not os.environ.get("NO_COLOR")).run, first)
