"""The program and its commands. `connect` must start fast, so the others are imported when one of them is run."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from acp_gateway import __version__
from acp_gateway.cli.client.connect import connect
from acp_gateway.errors import NO_ADDRESS, ConfigError, GatewayError
from acp_gateway.printable import printable

ERROR_SIZE = 4000
"""Maximum characters of a printed error: a path of maximum length fits."""


READER_GONE = 141
"""Exit code after stdout has lost its reader: a shell's code for a program ended by SIGPIPE."""


@contextmanager
def _quiet_without_reader() -> Iterator[None]:
    """Exit without a message when stdout is a pipe without a reader, as in `acp-gateway audit | head -1`.

    Python ignores SIGPIPE, so writing raises instead, and again when stdout is flushed at exit.
    """
    try:
        yield
    except BrokenPipeError:
        _discard_output()
        raise click.exceptions.Exit(READER_GONE) from None


def _discard_output() -> None:
    """Let stdout lead nowhere: what waits in its buffer can't be written, and Python tries to at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # Not a file, or closed.


COMMANDS: Final = {
    "agents": ("agents", "agents"),
    "audit": ("support", "audit"),
    "certs": ("certs", "certs"),
    "chat": ("client.chat", "chat"),
    "check-agent": ("conformance", "check_agent"),
    "check-client": ("conformance", "check_client"),
    "check-config": ("gateway.serve", "check_configuration"),
    "completion": ("completion", "completion"),
    "doctor": ("doctor", "doctor"),
    "export": ("client.export", "export"),
    "export-recording": ("support", "export_recording"),
    "files": ("files", "files"),
    "join": ("client.pair", "join"),
    "nodes": ("gateway.status", "nodes"),
    "open": ("gateway.browsers", "open_browser"),
    "pair": ("client.pair", "pair"),
    "pair-here": ("gateway.pair_here", "pair_here"),
    "paths": ("files", "paths"),
    "ping": ("client.ping", "ping"),
    "reload": ("gateway.status", "reload"),
    "relay": ("gateway.pair_here", "relay"),
    "replay": ("support", "replay"),
    "serve": ("gateway.serve", "serve"),
    "service": ("service", "service"),
    "sessions": ("client.sessions", "sessions"),
    "share": ("gateway.share", "share"),
    "status": ("gateway.status", "status"),
    "token": ("tokens", "token"),
    "up": ("gateway.up", "up"),
    "watch": ("client.watch", "watch"),
}
"""Commands besides `connect`: the module of this package and the name there, imported when the command is run."""


SECTIONS: Final = {
    "On the machine with the agents": (
        *("up", "serve", "status", "nodes", "reload", "service", "agents", "check-config", "doctor"),
        *("token", "share", "open", "certs", "audit"),
    ),
    "On the laptop": ("pair", "join", "connect", "ping", "sessions", "watch", "chat", "export"),
    "On both": ("completion", "files", "paths"),
    "For support, and for authors of agents and clients": (
        *("check-agent", "check-client", "replay", "export-recording"),
    ),
}
"""Parts of the list of commands, in the order in which a new user needs them."""

POSIX_MODULES: Final = frozenset({"fcntl", "grp", "pwd", "resource", "termios"})
"""Modules of the standard library that Windows lacks, and the gateway needs."""


def _import_command(module: str, name: str) -> click.Command:
    command = getattr(importlib.import_module(f"acp_gateway.cli.{module}"), name)
    assert isinstance(command, click.Command)
    return command


def _shown(error: GatewayError) -> str:
    """Return the text of an error in one line, or with a line for each address."""
    text = str(error)
    lines = text.split("\n") if NO_ADDRESS in text else [text]
    return "\n".join(printable(line, ERROR_SIZE) for line in lines)


def _error_start() -> str:
    """Return the priority of an error for systemd's journal, or an empty string if stderr goes elsewhere."""
    if "JOURNAL_STREAM" not in os.environ:
        return ""
    from acp_gateway.logs import is_journal

    return "<3>" if is_journal(os.environ, sys.stderr.fileno()) else ""


def _is_of_click(error: OSError) -> bool:
    """Return whether click raised an error, which is that of stdout then, such as a full disk."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "click"


def _failed(error: OSError) -> click.exceptions.Exit:
    """Print an error of a file or of stdout, and return the exit; a bug is raised."""
    # The errors of most files are GatewayErrors.
    if not error.filename and not _is_of_click(error):
        raise error
    if not error.filename:
        _discard_output()
    what = f"{error.filename}:" if error.filename else "cannot write:"
    click.echo(f"acp-gateway: {printable(f'{what} {error.strerror}', ERROR_SIZE)}", err=True)
    return click.exceptions.Exit(1)


class _Program(click.Group):
    """Group that prints a `GatewayError` as one line on stderr and exits with its code.

    Commands of other modules are imported only when one of them is run, and for the list of commands.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.add_command(_import_command(*COMMANDS[cmd_name]))
        command = super().get_command(ctx, cmd_name)
        if "_ACP_GATEWAY_COMPLETE" in os.environ and command is not None:
            # A shell completes a line; click would find no values.
            from acp_gateway.cli.completion import add_values

            add_values(cmd_name, command)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        for name in COMMANDS:
            self.get_command(ctx, name)
        return super().list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        others = [name for name in names if not any(name in section for section in SECTIONS.values())]
        width = max(map(len, names), default=0)
        for title, section in {**SECTIONS, "Others": others}.items():
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(formatter.width - 6 - width))
                for name in section
                if name in names
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Common in other programs.
        if args[0] in ("help", "version"):
            if ctx.resilient_parsing:
                # A shell completes the command behind it.
                return super().resolve_command(ctx, args[1:]) if args[1:] else (None, None, [])
            args = [*args[1:], "--help"] if args[0] == "help" else ["--version"]
            self.main(args, ctx.info_name, standalone_mode=False)
            ctx.exit()
        if args[0] not in self.commands and args[0] not in COMMANDS:
            # click proposes commands among those that are imported.
            self.list_commands(ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        try:
            with _quiet_without_reader():
                context = super().make_context(*args, **options)
        except OSError as error:
            raise _failed(error) from None
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            context.color = False
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with _quiet_without_reader():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except GatewayError as error:
            name = click.style("acp-gateway:", fg="red")
            click.echo(f"{_error_start()}{name} {_shown(error)}", err=True)
            ctx.exit(error.exit_code)
        except ModuleNotFoundError as error:
            if error.name not in POSIX_MODULES:
                raise
            what = "this command needs Linux or macOS: here is only the client, see `acp-gateway files windows.md`"
            click.echo(f"acp-gateway: {what}", err=True)
            ctx.exit(ConfigError.exit_code)
        except OSError as error:
            raise _failed(error) from None
        except BaseExceptionGroup as group:
            # Ctrl-C while several tasks run.
            if group.split(KeyboardInterrupt)[1] is None:
                raise KeyboardInterrupt from None
            raise


EPILOG = """\b
Examples:
  acp-gateway up                 on the machine with the agents, in the project's folder
  acp-gateway pair ann@box       on the laptop
  acp-gateway connect box --print-config zed
  acp-gateway help token create
"""


@click.group(cls=_Program, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="acp-gateway")
def main() -> None:
    """Run coding agents on a remote machine and use them from the editor on this one.

    On the machine with the agents, in a project's folder: `up`. On the laptop: `pair`. In the editor's settings:
    `connect`.
    """


main.add_command(connect)


def end_with(error: BaseException) -> None:
    """End the program as a command does that raises this error, for one that ran without click."""

    @click.command("connect")
    def failed() -> None:
        raise error

    _Program(commands={"connect": failed}).main(["connect"])
