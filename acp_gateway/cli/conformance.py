"""The commands `check-agent` and `check-client`."""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acp_gateway.cli.common import (
    check_finite,
    collected,
    examples,
    json_option,
    plain_option,
    print_json,
    print_table,
)
from acp_gateway.errors import ConfigError

if TYPE_CHECKING:
    from acp_conformance.dialogue import Check, Dialogues


@dataclass(frozen=True)
class _Checking:
    """The options of both commands."""

    protocol: str
    timeout: float
    output_limit: int
    junit: Path | None
    as_json: bool


@dataclass(frozen=True)
class _Player:
    """The user of a client: the lines to write, and the seconds before each."""

    prompt: str
    allow: str | None
    reject: str | None
    cancel: str | None
    reaction: float


def _common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of both commands, which get them as `checking`."""
    command = collected(_Checking, "checking")(command)
    options = (
        click.option(
            "--protocol",
            type=click.Choice(["1", "2"]),
            default="1",
            show_default=True,
            help="The version of the protocol that is checked.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=10.0,
            callback=check_finite,
            show_default=True,
            metavar="SECONDS",
            help="Maximum time of one dialogue; raise it for a slow program or model.",
        ),
        click.option(
            "--output-limit",
            type=click.IntRange(min=65536),
            default=16 * 1024 * 1024,
            show_default=True,
            metavar="BYTES",
            help="Maximum output in one dialogue, 256 more for each message; the largest prompt or update has 2 MiB.",
        ),
        plain_option,
        json_option,
        click.option(
            "--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the results as JUnit's XML, too."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    "check-agent",
    epilog=examples(
        "acp-gateway check-agent -- opencode acp",
        "acp-gateway check-agent --prompt 'create the file a' --junit results.xml -- opencode acp",
    ),
    short_help="Check an agent against the ACP specification.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--prompt", metavar="TEXT", help="The text of prompts, for instance one that makes the agent ask.")
@click.option(
    "--cwd",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The directory of the agent's sessions. Default: a new one, removed at the end.",
)
@click.option("--no-fence", "unfenced", is_flag=True, help="Let the agent use all that you may, not only --cwd.")
@_common_options
@click.pass_context
def check_agent(
    context: click.Context,
    command: tuple[str, ...],
    prompt: str | None,
    cwd: Path | None,
    checking: _Checking,
    *,
    unfenced: bool,
) -> None:
    """Run an agent, play its client, and print which rules of the protocol it keeps: check-agent -- COMMAND...

    Each dialogue has a process of its own. The exit code is 1 if a rule of level MUST is broken, and 8 if the agent
    can't be started. The agent really runs: --prompt is carried out, and permissions are granted. A fence, where this
    machine has one, opens it the directory of its sessions, its own settings and the system's programs only.
    """
    import tempfile

    import trio

    from acp_conformance import agent_checks, client_script, new_agent_checks
    from acp_conformance.runner import RunLimits, run_scenarios

    checks, scenarios = agent_checks.CHECKS, client_script.SCENARIOS
    if checking.protocol == "2":
        checks, scenarios = new_agent_checks.CHECKS, client_script.NEW_SCENARIOS
    limits = RunLimits(timeout=checking.timeout, output_size=checking.output_limit)
    with tempfile.TemporaryDirectory(prefix="acp-gateway-check-", ignore_cleanup_errors=True) as directory:
        where = str(cwd.absolute()) if cwd is not None else directory
        if not unfenced:
            command = _in_fence(command, where, directory)
        run = partial(run_scenarios, command, scenarios, where, prompt=prompt, limits=limits, progress=_show_progress)
        dialogues = trio.run(run)
    context.exit(_report("check-agent", checks, dialogues, checking))


def _in_fence(command: tuple[str, ...], where: str, scratch: str) -> tuple[str, ...]:
    """Return the command that runs another one in a fence; that one where there is no fence, with a note."""
    from acp_gateway.fence.start import can_fence

    if shutil.which(command[0]) is None:
        return command  # The error of its start says so.
    if not can_fence(Path(where), Path(scratch) / "scratch"):
        click.echo(f"note: the agent is not fenced: this machine has no fence, or {where} can't be in one", err=True)
        return command
    # Without -P, Python would import what the agent has written into that folder.
    return (sys.executable, "-P", "-m", "acp_gateway.cli.fenced", where, f"{scratch}/scratch", *command)


@click.command(
    "check-client",
    epilog=examples("acp-gateway check-client -- ./my-client --agent {agent}"),
    short_help="Check a client against the ACP specification.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--prompt",
    metavar="TEXT",
    default="Look at this project.",
    show_default=True,
    help="What the user prompts: in place of {prompt} in COMMAND, or else in lines on the client's stdin.",
)
@click.option("--allow", metavar="TEXT", help="The line on the client's stdin that grants a permission.")
@click.option("--reject", metavar="TEXT", help="The line on the client's stdin that rejects a permission.")
@click.option("--cancel", metavar="TEXT", help="The line on the client's stdin that cancels a turn. Default: SIGINT.")
@click.option(
    "--reaction",
    type=click.FloatRange(min=0),
    default=0.2,
    callback=check_finite,
    show_default=True,
    metavar="SECONDS",
    help="Time before the user does something: a client has to show first what the user reacts to.",
)
@click.option(
    "--agent",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the agent's command, for clients whose settings name it. Default: a temporary file.",
)
@click.option(
    "--cwd",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The directory in which the client begins. Default: the present one.",
)
@_common_options
@collected(_Player, "player")
@click.pass_context
def check_client(
    context: click.Context,
    command: tuple[str, ...],
    player: _Player,
    agent: Path | None,
    cwd: Path | None,
    checking: _Checking,
) -> None:
    """Run a client, play its agent and its user, and print which rules of the protocol the client keeps.

    The client starts the agent: put {agent} where its command belongs, as in

      check-client -- my-client --agent {agent}

    It is the path of a program without arguments, and also in the variable ACP_AGENT_COMMAND. Each dialogue has a
    process of its own. The exit code is 1 if a rule of level MUST is broken, and 8 if the client can't be started or
    starts no agent.
    """

    import trio

    from acp_conformance import client_checks, client_script, new_client_checks
    from acp_conformance.client_runner import User, run_client_scenarios
    from acp_conformance.runner import RunLimits

    checks, scenarios = client_checks.CHECKS, client_script.CLIENT_SCENARIOS
    if checking.protocol == "2":
        checks, scenarios = new_client_checks.CHECKS, client_script.NEW_CLIENT_SCENARIOS
    dialogues = trio.run(
        partial(
            run_client_scenarios,
            command,
            scenarios,
            cwd=None if cwd is None else str(cwd.absolute()),
            user=User(player.prompt, player.allow, player.reject, player.cancel),
            agent=agent,
            limits=RunLimits(timeout=checking.timeout, output_size=checking.output_limit, reaction=player.reaction),
            progress=_show_progress,
        )
    )
    context.exit(_report("check-client", checks, dialogues, checking))


def _report(suite: str, checks: "Sequence[Check]", dialogues: "Dialogues", checking: _Checking) -> int:
    """Judge dialogues, write and print the results, and return the exit code."""
    from acp_conformance import report

    results = report.judge(checks, dialogues)
    if checking.junit is not None:
        try:
            checking.junit.write_text(report.as_junit(results, suite), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=str(checking.junit)) from None
    if checking.as_json:
        print_json(report.as_json(results))
    else:
        print_table(report.HEADS, report.rows(results))
        click.echo(report.summary(results), err=True)
    return 1 if report.has_failed(results) else 0


def _show_progress(scenario: str) -> None:
    """Name the running dialogue on a terminal, where a user waits."""
    if sys.stderr.isatty():
        click.echo(f"… {scenario}", err=True)
