"""Prints the settings block of an editor, or writes it into the editor's file, for `connect` and `pair`."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from acp_gateway.cli.client.editor_files import TITLES, Machine, plan_change, settings_file
from acp_gateway.cli.client.editor_settings import MEMBERS, agent_entry, print_config
from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.printable import printable


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """An agent of an editor, which is `acp-gateway connect`."""

    name: str
    """The agent's name in the editor."""
    program: str
    """An absolute path."""
    arguments: tuple[str, ...]

    @classmethod
    def to(cls, target: str, options: Sequence[str] = ()) -> "AgentCommand":
        """Return the command that connects to TARGET with these options, by the program that runs now."""
        arguments = ("connect", target, *options)
        name = target.rpartition("://")[2].partition("/")[0].rpartition("@")[2] or "acp-gateway"
        program = os.path.abspath(shutil.which(sys.argv[0]) or sys.argv[0])
        if program.endswith("__main__.py"):
            return cls(name, sys.executable, ("-m", "acp_gateway", *arguments))
        return cls(name, program, arguments)

    def block(self, editor: str) -> str:
        """Return the settings block of an editor, without a final newline. Raises `UsageError` for an unknown one."""
        return print_config(editor, name=self.name, arguments=self.arguments, command=self.program)


def own_machine() -> Machine:
    """Return this machine, for the user that runs this. Raises `ConfigError` without a home folder."""
    from acp_gateway.config.directories import expand_user

    return Machine(expand_user("~"), os.environ)


def install_agent(editor: str, agent: AgentCommand, machine: Machine, *, yes: bool) -> None:
    """Write an agent into the settings of an editor, after the difference was shown and confirmed.

    `yes` confirms. Where the file can't be changed safely, the block is printed, to be pasted. Raises `ConfigError`
    then, and `UsageError` where the user would have to be asked and there is no terminal.
    """
    path = settings_file(editor, machine)
    try:
        if path is None:
            raise ConfigError(f"the settings of {TITLES[editor]} are a program")
        change = plan_change(editor, path, agent.name, agent_entry(editor, agent.program, agent.arguments))
    except ConfigError as error:
        click.echo(agent.block(editor))
        place = f" into {path}" if path is not None and editor in MEMBERS else ""
        raise ConfigError(
            f"{error.message}; nothing was changed: paste the block above{place}", file=error.file
        ) from None
    if not change.difference:
        click.echo(f"{change.path} has this already.", err=True)
        return
    for line in change.difference.splitlines():
        indent = line[: len(line) - len(line.lstrip(" "))]
        click.echo(indent + printable(line, len(line)), err=True)
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError("this can't ask without a terminal: --yes writes it")
        click.confirm(f"Write this into {change.path}?", abort=True, err=True)
    copy = change.write()
    kept = "" if copy is None else f" What was there before is in {copy.name}, beside it."
    click.echo(f"Wrote {change.path}.{kept}", err=True)
    click.echo(f"{TITLES[editor]} has the agent {agent.name} now; {_next_step(editor)}.", err=True)


def _next_step(editor: str) -> str:
    if editor == "zed":
        return "in its agent panel, choose it for a new thread"
    return "choose it in a new chat" if editor == "jetbrains" else "start it from the ACP Client's view"
