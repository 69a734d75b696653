"""The program and its commands. `connect` must start fast, so the others are imported when one of them is run."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from acp_gateway import __version__
from acp_gateway.cli.connect import connect
from acp_gateway.errors import GatewayError
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
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            pass  # Not a file, or closed.
        raise click.exceptions.Exit(READER_GONE) from None


class _Program(click.Group):
    """Group that prints a `GatewayError` as one line on stderr and exits with its code.

    Commands of other modules are imported only when one of them is run, and for the list of commands.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            self._add_the_others()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._add_the_others()
        return super().list_commands(ctx)

    def _add_the_others(self) -> None:
        from acp_gateway.cli.browsers import open_browser
        from acp_gateway.cli.certs import certs
        from acp_gateway.cli.files import files
        from acp_gateway.cli.pair import pair, pair_here, relay
        from acp_gateway.cli.serve import check_configuration, serve
        from acp_gateway.cli.sessions import sessions
        from acp_gateway.cli.share import share
        from acp_gateway.cli.support import audit, replay
        from acp_gateway.cli.tokens import token

        for_clients = (sessions, pair, files)
        for_gateways = (serve, check_configuration, token, share, open_browser, pair_here, relay, certs, audit, replay)
        for command in (*for_clients, *for_gateways):
            self.add_command(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Common in other programs.
        if args[0] in ("help", "version"):
            args = [*args[1:], "--help"] if args[0] == "help" else ["--version"]
            self.main(args, ctx.info_name, standalone_mode=False)
            ctx.exit()
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _quiet_without_reader():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _quiet_without_reader():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except GatewayError as error:
            click.echo(f"acp-gateway: {printable(str(error), ERROR_SIZE)}", err=True)
            ctx.exit(error.exit_code)
        except OSError as error:
            # File errors are GatewayErrors; this is stdout, such as a full disk.
            click.echo(f"acp-gateway: cannot write: {error.strerror}", err=True)
            ctx.exit(1)
        except BaseExceptionGroup as group:
            # Ctrl-C while several tasks run.
            if group.split(KeyboardInterrupt)[1] is None:
                raise KeyboardInterrupt from None
            raise


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="acp-gateway")
def main() -> None:
    """Run coding agents on a remote machine and use them from the editor on this one.

    On the machine with the agents: `certs create`, `token create`, then `serve`. In the editor's settings: `connect`.
    """


main.add_command(connect)
