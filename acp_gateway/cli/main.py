"""The program and its commands. `connect` must start fast, so the others are imported when one of them is run."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import click

from acp_gateway import __version__
from acp_gateway.cli.client.connect import connect
from acp_gateway.cli.common import print_rows
from acp_gateway.errors import NO_ADDRESS, ConfigError, GatewayError, UsageError
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
    "cp": ("client.cp", "cp"),
    "doctor": ("doctor", "doctor"),
    "export": ("client.export", "export"),
    "export-recording": ("support", "export_recording"),
    "files": ("files", "files"),
    "forward": ("client.forward", "forward"),
    "join": ("client.pair", "join"),
    "nodes": ("gateway.nodes", "nodes"),
    "open": ("gateway.browsers", "open_browser"),
    "pair": ("client.pair", "pair"),
    "pair-here": ("gateway.pair_here", "pair_here"),
    "paths": ("files", "paths"),
    "ping": ("client.ping", "ping"),
    "reload": ("gateway.status", "reload"),
    "prompt": ("client.prompting.prompt", "prompt"),
    "relay": ("gateway.pair_here", "relay"),
    "replay": ("support", "replay"),
    "rules": ("gateway.rules", "rules"),
    "serve": ("gateway.serve", "serve"),
    "service": ("service", "service"),
    "sessions": ("client.sessions", "sessions"),
    "share": ("gateway.share", "share"),
    "status": ("gateway.status", "status"),
    "token": ("tokens", "token"),
    "up": ("gateway.up", "up"),
    "usage": ("gateway.usage", "usage"),
    "watch": ("client.watch", "watch"),
}
"""Commands besides `connect`: the module of this package and the name there, imported when the command is run."""


_OF_GATEWAY: Final = "On the machine with the agents"

SECTIONS: Final = {
    _OF_GATEWAY: (
        *("up", "serve", "status", "nodes", "reload", "service", "agents", "check-config", "doctor"),
        *("token", "share", "open", "rules", "certs", "audit"),
    ),
    "On the laptop": (
        *("pair", "join", "connect", "ping", "sessions", "usage", "watch", "chat", "prompt", "cp", "forward", "export"),
    ),
    "On both": ("completion", "files", "paths"),
    "For support, and for authors of agents and clients": (
        *("check-agent", "check-client", "replay", "export-recording"),
    ),
}
"""Parts of the list of commands, in the order in which a new user needs them."""

OTHER_WORDS: Final = {
    **dict.fromkeys(
        ("start", "run", "init", "setup"),
        "`acp-gateway up` in a project's folder sets a gateway up, and runs it; `acp-gateway service install` keeps it "
        "running",
    ),
    **dict.fromkeys(
        ("stop", "restart", "kill"),
        "Ctrl-C or SIGTERM stops a gateway; for a service, `acp-gateway service stop` and `restart` say how",
    ),
    **dict.fromkeys(("logs", "log"), "`acp-gateway service logs` prints them; without a service they go to stderr"),
    **dict.fromkeys(("login", "add", "remote"), "`acp-gateway pair [USER@]HOST` makes a gateway known here"),
    **dict.fromkeys(("list", "ls", "ps"), "`acp-gateway sessions` lists sessions, `acp-gateway status` shows agents"),
    **dict.fromkeys(
        ("attach", "tail"), "`acp-gateway watch HOST SESSION` shows a session, `acp-gateway chat HOST` all"
    ),
    **dict.fromkeys(("install", "update", "upgrade"), "`acp-gateway agents` adds and updates agents; pipx or uv, this"),
}
"""Answers to words that are commands of other programs."""

NEEDED: Final = {
    "label": "the name of the machine or the person that it is for, such as --label laptop",
    "target": "the gateway: a name in hosts.toml, or an address",
    "session": "`acp-gateway sessions` lists them, the id first",
    "token_id": "`acp-gateway token list` lists them, the id first",
    "agent_id": "`acp-gateway agents list --available` lists them",
    "name": "`acp-gateway agents list` lists them",
    "command": "the agent's or the client's program and its arguments, behind --",
    "file": "a recording, as the gateway makes them in its record_dir",
}
"""The source of each required argument, by the parameter of the command's function."""

BEHIND_OPTIONS: Final = {
    "connect": "an agent stands behind --agent, a session behind --attach",
    "doctor": "an agent stands behind --agent",
    "pair": "a folder here and there stands behind --map, as LOCAL=REMOTE",
    "serve": "the command of an agent stands behind --agent, in quotes",
    "share": "one session is shared at a time, and the guest's name stands behind --label",
}
"""The options that take what is given as an argument too many, by the command."""

_SYNONYMS: Final = (
    frozenset({"add", "create", "enable", "install", "make", "new"}),
    frozenset({"delete", "disable", "remove", "revoke", "rm", "uninstall"}),
    frozenset({"renew", "rotate", "update", "upgrade"}),
    frozenset({"list", "ls"}),
    frozenset({"log", "logs"}),
)
"""Words for the same; groups of commands have one of each."""

POSIX_MODULES: Final = frozenset({"fcntl", "grp", "pwd", "resource", "termios"})
"""Modules of the standard library that Windows lacks, and the gateway needs."""


def _import_command(module: str, name: str) -> click.Command:
    command = getattr(importlib.import_module(f"acp_gateway.cli.{module}"), name)
    assert isinstance(command, click.Command)
    return command


def _shown(error: GatewayError) -> str:
    """Return the text of an error in one line, or with a line for each address."""
    from acp_gateway.security.token_format import without_tokens

    # Users mistake tokens for names and files.
    text = without_tokens(str(error))
    lines = text.split("\n") if NO_ADDRESS in text else [text]
    return "\n".join(printable(line, ERROR_SIZE) for line in lines)


def _end_with(context: click.Context, error: GatewayError) -> NoReturn:
    """Print an error, and exit with its code."""

    before = f"{_error_start()}{click.style('acp-gateway:', fg='red')} "
    for line in _shown(error).split("\n"):
        print_rows(line, err=True, before=before)
        before = ""
    context.exit(error.exit_code)


def _explain_usage(error: click.UsageError) -> str | None:
    """Return what is wrong with a command line in one line, with the next step; None to leave it to click."""
    if error.ctx is None:
        return None
    command = _command_of(error.ctx)
    if isinstance(error, click.MissingParameter) and error.param is not None and error.param.name in NEEDED:
        is_option = isinstance(error.param, click.Option)
        metavar = error.param.opts[0] if is_option else error.param.metavar or error.param.name.upper()
        return f"`acp-gateway {command}` needs {metavar}: {NEEDED[error.param.name]}"
    if isinstance(error.ctx.command, click.Group):
        return _explain_word(error.message.rpartition("No such command ")[2], command, error.ctx.command)
    if "unexpected extra argument" not in error.message:
        return None
    if ".toml" in error.message:
        return f"`acp-gateway {command}` takes the name of a configuration behind --config"
    if command in BEHIND_OPTIONS:
        return f"`acp-gateway {command}` has an argument too many: {BEHIND_OPTIONS[command]}"
    if command.partition(" ")[0] in SECTIONS[_OF_GATEWAY]:
        return (
            f"`acp-gateway {command}` has an argument too many: it is about the gateway on this machine. For another "
            "one there are `acp-gateway ping HOST`, `acp-gateway sessions HOST` and `acp-gateway open [SESSION] "
            "--target HOST`"
        )
    return None


def _explain_word(word: str, command: str, group: click.Group) -> str | None:
    """Return the command of a group that is meant by a word, such as `revoke` by `delete`; None without one."""
    word = word.strip("'.")
    meant = [name for name in group.commands for words in _SYNONYMS if {word, name} <= words]
    return (
        f"there is no `acp-gateway {command} {word}`: `acp-gateway {command} {meant[0]}` does that" if meant else None
    )


def _command_of(context: click.Context) -> str:
    """Return the words of a command, without the program's name."""
    words: list[str] = []
    while context.parent is not None:
        words.insert(0, context.info_name or "")
        context = context.parent
    return " ".join(words)


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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            text = f"{error.format_message()} Options stand behind the command: acp-gateway COMMAND {error.option_name}"
            raise click.UsageError(text, ctx) from None

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
        if args[0] in OTHER_WORDS and not ctx.resilient_parsing:
            _end_with(ctx, UsageError(f"there is no command `{args[0]}`: {OTHER_WORDS[args[0]]}"))
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
            _end_with(ctx, error)
        except click.UsageError as error:
            explained = _explain_usage(error)
            if explained is None:
                raise
            _end_with(ctx, UsageError(explained))
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
