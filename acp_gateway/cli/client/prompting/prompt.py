"""The command `prompt`: one prompt for scripts and cron."""

import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from acp_gateway.cli.client.gateway_options import Gateway, folder_there, gateway_options, only_host
from acp_gateway.cli.client.sessions import known_hosts
from acp_gateway.cli.common import check_finite, collected, print_rows, was_given
from acp_gateway.errors import AccessError, GatewayError, ProtocolError, Undecided, Unreachable, UsageError
from acp_gateway.printable import printable, printable_lines

if TYPE_CHECKING:
    from acp_gateway.cli.client.prompting.sent_prompt import SentPrompt
    from acp_gateway.client.dialing import Destination
    from acp_gateway.terminal.dialogue import Event

PROMPT_SIZE: Final = 8 * 1024 * 1024
"""Maximum bytes that are read from stdin: gateways take no larger prompt from a browser either."""

TIMED_OUT: Final = 124
"""Exit code for a turn that has not ended in time, as `timeout` has it."""

BY_SIGNAL: Final = 128
"""Exit code, with the number of a signal added to it, of a program that the signal has ended, as a shell has it."""

PROMPT_EPILOG = """
\b
Examples:
  acp-gateway prompt box "Update the dependencies" --wait
  acp-gateway prompt box --session ID "And run the tests"     prints ID when the gateway has it
  acp-gateway prompt box "Go on" --session ID --at 06:00      or --at limit, when the limit is over
  git diff | acp-gateway prompt box - --wait --timeout 600    the prompt is what stdin has
  acp-gateway prompt box "Fix it" --wait --json | jq -r 'select(.type == "result").answer'

\b
Exit codes besides those of `connect`:
  4    the gateway has refused the prompt
  8    the turn has failed
  10   the agent refuses the prompt
  11   the turn has ended at a limit of the agent
  12   the turn was stopped, or the session closed
  13   the agent asks, and no answer has come within --timeout
  124  the turn has not ended within --timeout
  130  Ctrl-C: the turn goes on
"""


@dataclass(frozen=True)
class _Place:
    """The options of the session that gets a prompt."""

    joined: str | None
    new: bool
    agent: str | None
    cwd: str | None


@dataclass(frozen=True)
class _When:
    """The options of the time at which it is sent."""

    at: str | None
    auto: bool

    def queue(self) -> dict[str, object] | None:
        """Return them as `Dialogue.prompt` has them; None for now. Raises `UsageError` if they do not fit."""
        from acp_gateway.terminal.dialogue import queue_at

        if self.at is None and self.auto:
            raise UsageError("--auto is for --at")
        return None if self.at is None else queue_at(self.at, datetime.now().astimezone(), auto=self.auto)


@click.command(epilog=PROMPT_EPILOG, short_help="Send one prompt, for scripts and cron.")
@gateway_options
@click.argument("text", required=False)
@click.option("--session", "joined", metavar="ID", help="The session to prompt. Default: a new one.")
@click.option("--new", is_flag=True, help="Begin a new session, as without --session.")
@click.option("--agent", help="The agent of a new session. Default: the gateway's own default.")
@click.option(
    "--cwd",
    metavar="DIR",
    help="The folder of a new session; path maps of hosts.toml make it that of the gateway. Default: the current one.",
)
@click.option("--wait", is_flag=True, help="Wait for the end of the turn, and print the agent's last message.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    callback=check_finite,
    metavar="SECONDS",
    help="With --wait: how long to wait. Default: for ever.",
)
@click.option(
    "--at",
    metavar="WHEN",
    help='Have it sent later: "06:00", "in 2 h", a date with time and zone, or "limit", when the agent has no limit '
    "any more.",
)
@click.option("--auto", is_flag=True, help="With --at: also after a restart of the gateway or the agent.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line for each event, then the result.")
@collected(_Place, "place")
@collected(_When, "when")
def prompt(
    gateway: Gateway, text: str | None, place: _Place, when: _When, timeout: float | None, *, wait: bool, as_json: bool
) -> None:
    """Send the prompt TEXT to an agent at HOST; - reads it from stdin.

    Without --wait it prints the session's id when the gateway has the prompt, and the agent works on. With --wait
    stdout gets the answer alone, and stderr the rest. Questions of the agent are not answered here: a person does it in
    the page, `watch` or `chat`, or rules do. A lost connection comes back by itself.

    HOST has the same meaning as TARGET of `connect`; it may be left out if hosts.toml has only one.
    """
    import math

    import trio

    from acp_gateway import __version__
    from acp_gateway.cli.client.prompting.sent_prompt import SentPrompt, follow_prompt
    from acp_gateway.cli.client.watched_session import write_text
    from acp_gateway.terminal.dialogue import Dialogue
    from acp_gateway.terminal.watching import json_line, line_of

    if timeout is not None and not wait:
        raise UsageError("--timeout is for --wait")
    queue = when.queue()
    if queue is not None and wait:
        raise UsageError("--wait is for a prompt that is sent now: leave it out, or --at")
    named: tuple[str, ...] = (gateway.target,) if was_given("target") else ()
    if text is None:
        text, named = _only_argument(gateway, named), ()
        gateway = replace(gateway, target=only_host())
    content = _read_stdin() if text == "-" else text
    if not content.strip():
        raise UsageError("the prompt is empty")
    session, agent = _session_of(place), place.agent
    if session is None and agent is None:
        agent = _default_agent(gateway)
    gateway.start_log()

    def destination() -> "Destination":
        return gateway.destination(session=session, agent=agent)

    def way(name: str) -> str:
        return shlex.join(["acp-gateway", "watch", *named, name])

    def tell(line: str) -> None:
        print_rows(printable(line, len(line)), err=True, before="acp-gateway: ")

    async def show(events: "list[Event]") -> None:
        if as_json:
            await write_text("".join(map(json_line, events)))

    cwd = "/" if session is not None else folder_there(gateway.target, place.cwd)
    dialogue = Dialogue(("acp-gateway prompt", __version__), cwd=cwd, session=session or "", decides=False)
    machine = "" if agent is None else agent.rpartition("/")[0]
    sent = SentPrompt(content, dialogue, tell, way, machine=machine, waits=wait, queue=queue)
    following = partial(follow_prompt, timeout=math.inf if timeout is None else timeout)
    number = trio.run(following, sent, destination, gateway.settings, show)
    error, code = _end_of(sent, number, timeout)
    if as_json:
        click.echo(line_of(_result(sent, error, code)), nl=False)
    elif wait:
        _print_answer(sent)
    elif error is None:
        click.echo(printable(sent.session, len(sent.session)))
    if sent.outcome is not None and sent.outcome.due:
        tell(f"it is to be sent at {_here(sent.outcome.due)}")
    if error is not None and error.exit_code == code:
        raise error
    if error is not None:
        tell(str(error))
        click.get_current_context().exit(code)


def _only_argument(gateway: Gateway, named: tuple[str, ...]) -> str:
    """Return the prompt of a command line that names no host. Raises `UsageError` if its argument is one."""
    only = gateway.target
    if not named or only in known_hosts() or ("://" in only and " " not in only):
        raise UsageError("there is no prompt: write it in quotes behind HOST, or - to read it from stdin")
    return only


def _read_stdin() -> str:
    """Return the text of stdin, without line breaks at its end. Raises `UsageError` if it can't be a prompt."""
    content = b"" if sys.stdin is None else sys.stdin.buffer.read(PROMPT_SIZE + 1)
    if len(content) > PROMPT_SIZE:
        raise UsageError(f"stdin has more than {PROMPT_SIZE} bytes, which is too much for a prompt")
    try:
        return content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError("stdin is not a text in UTF-8, which a prompt has to be") from None


def _session_of(place: _Place) -> str | None:
    """Return the session to join; None for a new one. Raises `UsageError` for options that do not fit."""
    from acp_gateway.client.destination import check_session_id

    if place.joined is None:
        return None
    if place.new or place.agent is not None or place.cwd is not None:
        raise UsageError("--new, --agent and --cwd are for a new session: leave them out, or --session")
    return check_session_id(place.joined)


def _default_agent(gateway: Gateway) -> str | None:
    """Return the agent that a new session gets, for the name of the session. Raises `GatewayError`."""
    import trio

    from acp_gateway.client.control import read_rights, request
    from acp_gateway.protocol.methods import ACCESS

    chosen = gateway.destination().agent
    if chosen is not None:
        return chosen
    there = gateway.destination(control=True)
    # Another ACP server does not tell, and a refusal is told by the link.
    with suppress(AccessError, ProtocolError):
        told = trio.run(partial(request, there, ACCESS, {}, time_limit=gateway.connect_timeout))
        return read_rights(told).default_agent or None
    return None


def _end_of(sent: "SentPrompt", number: int | None, timeout: float | None) -> tuple[GatewayError | None, int]:
    """Return the error at the end of a prompt, if there is one, and the exit code; `number` is that of a signal."""
    if sent.outcome is not None:
        error = sent.outcome.error
        return error, 0 if error is None else error.exit_code
    if number is not None:
        return GatewayError(f"no longer waiting: {sent.rest()}"), BY_SIGNAL + number
    why = f"it took more than {timeout:g} s: {sent.rest()}"
    if not sent.is_sent:
        return Unreachable(why), Unreachable.exit_code
    return (Undecided(why), Undecided.exit_code) if sent.is_asked else (GatewayError(why), TIMED_OUT)


def _result(sent: "SentPrompt", error: GatewayError | None, code: int) -> dict[str, object]:
    """Return the last object of `--json`."""
    reason = sent.outcome.stop_reason if sent.outcome is not None else ""
    result: dict[str, object] = {"type": "result", "sessionId": sent.session or None, "exitCode": code}
    result |= {"stopReason": reason or None, "answer": sent.answer if reason else None}
    result |= {"due": sent.outcome.due} if sent.outcome is not None and sent.outcome.due else {}
    return result | ({} if error is None else {"error": str(error)})


def _here(due: str) -> str:
    """Return a time in the zone of this machine; another text as it is."""
    try:
        return f"{datetime.fromisoformat(due).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return due


def _print_answer(sent: "SentPrompt") -> None:
    """Print the answer of a turn that has ended: on a terminal escaped, elsewhere as the agent has it."""
    if sent.outcome is None or not sent.outcome.stop_reason or not sent.answer:
        return
    if sys.stdout.isatty():
        click.echo(printable_lines(sent.answer))
    else:
        text = sent.answer if sent.answer.endswith("\n") else f"{sent.answer}\n"
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
        sys.stdout.buffer.flush()
