"""The command line. Each command imports its dependencies when it runs, because `connect` must start fast."""

import gc
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from acp_gateway import __version__
from acp_gateway.cli.tokens import config_option, print_table, was_given
from acp_gateway.errors import GatewayError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.client.dialing import Destination

MAX_MESSAGE_SIZE = 64 * 1024 * 1024
"""Default maximum bytes of one message, equal to the gateway's default."""

KNOWN_TIMEOUT = 300.0
"""Default seconds to try until the first connection to a gateway that was reached before: joining a network, passing
its portal, connecting a VPN or starting the box takes minutes."""

EDITORS = ("zed", "jetbrains", "codecompanion", "avante", "emacs", "vscode", "toad")

CONNECT_EPILOG = """
\b
Exit codes:
  0  the editor closed the connection
  1  a bug of this program
  2  wrong command line
  3  configuration: hosts.toml, the token file, the gateway's config.toml
  4  refused by the gateway: the token, or its permissions
  5  TLS or ssh: the certificate, the pin or the host key does not match
  6  no answer, or the connection was lost before the agent had answered
  7  the server there is not an acp-gateway, or a message was too large
  8  the agent could not be started, or has ended
  9  serve cannot listen at an address
"""


def _finite(_context: click.Context, _option: click.Parameter, seconds: float) -> float:
    if not math.isfinite(seconds):
        raise click.BadParameter("a number of seconds is needed")
    return seconds


_token_file_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="A file with the token, readable by you alone. Else ACP_GATEWAY_TOKEN_FILE, ACP_GATEWAY_TOKEN, hosts.toml.",
)
_ca_option = click.option("--ca", type=click.Path(path_type=Path), help="Trust certificates of this authority (PEM).")
_pin_option = click.option("--pin", metavar="sha256:HEX", help="Trust the gateway with this public key, and no other.")
_cert_option = click.option(
    "--cert",
    type=click.Path(path_type=Path),
    help="A client certificate (PEM) to show instead of a token, to a gateway with client_ca.",
)
_key_option = click.option(
    "--key", type=click.Path(path_type=Path), help="The private key of that certificate (PEM), readable by you alone."
)
_connect_timeout_option = partial(
    click.option,
    "--connect-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=15.0,
    callback=_finite,
    show_default=True,
    metavar="SECONDS",
)
_insecure_plaintext_option = click.option(
    "--insecure-plaintext",
    is_flag=True,
    help="Send the token to another machine unencrypted; only for private networks.",
)


@contextmanager
def _imports_to_keep() -> Iterator[None]:
    """Import modules with the garbage collector disabled, which saves a tenth of the start-up time.

    Otherwise it would traverse all imported objects again and again, and free almost none. At the end they are frozen,
    so that no later collection traverses them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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
        from acp_gateway.cli.certs import certs
        from acp_gateway.cli.files import files
        from acp_gateway.cli.pair import pair, pair_here, relay
        from acp_gateway.cli.share import share
        from acp_gateway.cli.support import audit, replay
        from acp_gateway.cli.tokens import token

        for command in (token, share, pair, pair_here, relay, certs, audit, replay, files):
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


@main.command(short_help="Accept editors and run agents for them.")
@config_option
@click.option("--verbose", "-v", is_flag=True, help="Log the details of each connection too, but no message bodies.")
@click.option("--log-bodies", is_flag=True, help="Log message bodies too, with known secrets redacted.")
def serve(config: Path | None, *, verbose: bool, log_bodies: bool) -> None:
    """Accept editors and run agents for them, until stopped by SIGTERM or Ctrl-C.

    The log goes to stderr. SIGHUP reads tokens and certificates again; for the rest of the configuration restart it.
    """
    with _imports_to_keep():
        import logging

        import trio

        from acp_gateway.config.load import default_config_path, load_config
        from acp_gateway.gateway.agent.hardening import harden
        from acp_gateway.gateway.events.recording import recording_of
        from acp_gateway.logs import log_to_stderr
        from acp_gateway.server import serve as server

    log_to_stderr(logging.DEBUG if verbose else logging.INFO)
    harden()
    file = config or default_config_path()
    settings = load_config(file)
    recorder = recording_of(settings.gateway, log_bodies=log_bodies)
    trio.run(partial(server.serve, settings, os.environ, file=file, recorder=recorder))


@main.command(epilog=CONNECT_EPILOG, short_help="Connect an editor to a remote agent (editors run this).")
@click.argument("target")
@click.option("--agent", help="The agent to use. Default: the gateway's own default.")
@click.option(
    "--attach",
    "session",
    metavar="SESSION",
    help="Join this session: the editor's first new session is this one. `acp-gateway sessions` lists them.",
)
@click.option("--observe", is_flag=True, help="Watch only: you can't prompt or approve.")
@_token_file_option
@_ca_option
@_pin_option
@_cert_option
@_key_option
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="LOCAL=REMOTE",
    help="Map a local folder to a remote one. May be repeated.",
)
@_connect_timeout_option(help="How long to try until the first connection, to any gateway if this is given.")
@click.option(
    "--known-timeout",
    type=click.FloatRange(min=0),
    default=KNOWN_TIMEOUT,
    callback=_finite,
    show_default=True,
    metavar="SECONDS",
    help="The same for a gateway that this machine reached in the last 30 days.",
)
@click.option(
    "--max-message-size",
    type=click.IntRange(min=1),
    default=MAX_MESSAGE_SIZE,
    show_default=True,
    metavar="BYTES",
    help="The largest message from either side.",
)
@click.option(
    "--keepalive",
    type=click.FloatRange(min=20),
    default=30.0,
    callback=_finite,
    show_default=True,
    metavar="SECONDS",
    help="Reconnect after this much silence. Both ends send something every 10 s.",
)
@click.option("--log-file", type=click.Path(path_type=Path), help="Write a log there.")
@_insecure_plaintext_option
@click.option(
    "--print-config", "editor", type=click.Choice(EDITORS), help="Print the settings block for an editor, and stop."
)
def connect(
    target: str,
    agent: str | None,
    session: str | None,
    token_file: Path | None,
    ca: Path | None,
    pin: str | None,
    cert: Path | None,
    key: Path | None,
    maps: tuple[str, ...],
    connect_timeout: float,
    known_timeout: float,
    max_message_size: int,
    keepalive: float,
    log_file: Path | None,
    editor: str | None,
    *,
    observe: bool,
    insecure_plaintext: bool,
) -> None:
    """Connect an editor to a remote agent: pass everything to the gateway at TARGET and back. Editors run this.

    TARGET is a name from ~/.config/acp-gateway/hosts.toml, or HOST[:PORT] (TLS, port 7443), or a URL: wss://, ws://,
    tcp+tls://, tcp://, unix:///path, ssh://[USER@]HOST. Editors start this command and speak ACP over stdin and stdout.
    """
    with _imports_to_keep():
        import logging

        import trio

        from acp_gateway.client import shim
        from acp_gateway.client.destination import (
            check_client_certificate,
            check_session_id,
            find_destination,
            find_host,
        )
        from acp_gateway.client.reached_hosts import own_reached
        from acp_gateway.client.reconnect_policy import ReconnectSettings
        from acp_gateway.logs import log_to_file
        from acp_gateway.protocol.path_maps import PathMaps, parse_map
        from acp_gateway.transports.pipes import open_stdio

    def destination() -> "Destination":
        return find_destination(
            target,
            agent,
            token_file,
            ca,
            pin,
            max_message_size,
            insecure=insecure_plaintext,
            session=session,
            observe=observe,
            cert=cert,
            key=key,
        )

    if editor is not None:
        check_client_certificate(cert, key)
        given = {
            "--agent": [agent] if agent else [],
            "--attach": [check_session_id(session)] if session is not None else [],
            "--token-file": [str(token_file.absolute())] if token_file else [],
            "--ca": [str(ca.absolute())] if ca else [],
            "--pin": [pin] if pin else [],
            "--cert": [str(cert.absolute())] if cert else [],
            "--key": [str(key.absolute())] if key else [],
            "--map": ["=".join(parse_map(text)) for text in maps],
            "--connect-timeout": [f"{connect_timeout:g}"] if was_given("connect_timeout") else [],
            "--known-timeout": [f"{known_timeout:g}"] if was_given("known_timeout") else [],
            "--max-message-size": [str(max_message_size)] if was_given("max_message_size") else [],
            "--keepalive": [f"{keepalive:g}"] if was_given("keepalive") else [],
            "--log-file": [str(log_file.absolute())] if log_file else [],
        }
        flags = ["--observe"] if observe else []
        flags += ["--insecure-plaintext"] if insecure_plaintext else []
        click.echo(_settings_block(editor, target, given, flags, pin), nl=False)
        return

    sys.excepthook = _one_line_for_bugs
    if sys.stdin is not None and sys.stdin.isatty():
        click.echo(
            "Editors run this: it speaks JSON-RPC on stdin and stdout, and is silent while all is well. Ctrl-D ends it."
            f"\nFor an editor's settings: acp-gateway connect {printable(target)} --print-config {'|'.join(EDITORS)}",
            err=True,
        )
        if not was_given("known_timeout"):
            # In a terminal, report errors soon.
            known_timeout = 0.0
    try:
        log_to_file(log_file, logging.INFO)
        host = find_host(target)
        reached = own_reached()
        settings = shim.Settings(
            maps=PathMaps([*map(parse_map, maps), *(host.maps if host else ())]),
            max_message_size=max_message_size,
            reconnect=ReconnectSettings(
                connect_timeout,
                0.0 if was_given("connect_timeout") else known_timeout,
                reached.knows,
                reached.record,
                keepalive,
            ),
        )
    except GatewayError as error:
        trio.run(shim.refuse, open_stdio(), error)
        raise
    trio.run(shim.run, open_stdio(), destination, settings)


@main.command(short_help="List the sessions that can be joined or opened again.")
@click.argument("target")
@click.option("--agent", help="Only this agent's sessions.")
@_token_file_option
@_ca_option
@_pin_option
@_cert_option
@_key_option
@_connect_timeout_option(help="How long to wait for the answer.")
@_insecure_plaintext_option
@click.option("--json", "as_json", is_flag=True, help="Print the gateway's whole response as JSON.")
def sessions(
    target: str,
    agent: str | None,
    token_file: Path | None,
    ca: Path | None,
    pin: str | None,
    cert: Path | None,
    key: Path | None,
    connect_timeout: float,
    *,
    insecure_plaintext: bool,
    as_json: bool,
) -> None:
    """List the sessions at TARGET that your token may join, one per row, with the id first.

    `connect TARGET --attach ID` joins one. If it is not live, it is reopened if its agent supports that. TARGET has the
    same meaning as for `connect`.
    """
    import json
    from datetime import UTC, datetime

    import trio

    from acp_gateway.client import control
    from acp_gateway.client.destination import find_destination

    destination = find_destination(
        target,
        agent,
        token_file,
        ca,
        pin,
        MAX_MESSAGE_SIZE,
        insecure=insecure_plaintext,
        control=True,
        cert=cert,
        key=key,
    )
    listing = trio.run(partial(control.list_sessions, destination, time_limit=connect_timeout))
    found = listing.sessions
    for problem in listing.problems:
        click.echo(f"warning: {problem}", err=True)
    if listing.more > 0:
        click.echo(f"Not shown: {listing.more} more that are not live and were used longer ago.", err=True)
    if as_json:
        # The one control character that JSON does not escape.
        click.echo(json.dumps(found, indent=2).replace("\x7f", "\\u007f"))
    elif found:
        print_table(control.SESSION_COLUMNS, control.session_rows(found, datetime.now(UTC)))
    else:
        click.echo("There are no sessions; the first that an editor opens will be one.", err=True)


@main.command("check-config", short_help="List what is wrong with the configuration.")
@config_option
def check_configuration(config: Path | None) -> None:
    """List everything that is wrong with the gateway's configuration, with file, line and option."""
    from acp_gateway.config.load import check_config, load_config
    from acp_gateway.errors import ConfigError
    from acp_gateway.security.token_store import TokenStore
    from acp_gateway.server.serve import problems_with_files

    findings = check_config(config)
    for finding in findings:
        click.echo(f"{finding.severity}: {finding.error}", err=True)
    wrong = any(finding.severity == "error" for finding in findings)
    if not wrong:
        for finding in problems_with_files(load_config(config)):
            click.echo(f"{finding.severity}: {finding.error}", err=True)
            wrong = wrong or finding.severity == "error"
    if wrong:
        sys.exit(ConfigError.exit_code)
    settings = load_config(config)
    if not TokenStore(settings.gateway.state_dir).tokens():
        click.echo("warning: there are no tokens yet: acp-gateway token create --label NAME", err=True)
    click.echo(f"Fine. Listening at {', '.join(str(section.address) for section in settings.listen)};", nl=False)
    click.echo(f" agents: {', '.join(settings.agents)}; default: {settings.default_agent}.")


def _settings_block(editor: str, target: str, options: dict[str, list[str]], flags: list[str], pin: str | None) -> str:
    """Return the editor settings that start this command. Raises `UsageError` for invalid options."""
    import shutil

    from acp_gateway.cli.editor_settings import print_config
    from acp_gateway.client.destination import find_host
    from acp_gateway.config.addresses import parse_target
    from acp_gateway.security.tls import parse_pin

    if find_host(target) is None:
        parse_target(target)
    if pin is not None:
        parse_pin(pin)
    arguments = ["connect", target, *flags]
    for option, values in options.items():
        for value in values:
            arguments += [option, value]
    name = target.rpartition("://")[2].partition("/")[0].rpartition("@")[2] or "acp-gateway"
    program = os.path.abspath(shutil.which(sys.argv[0]) or sys.argv[0])
    if program.endswith("__main__.py"):
        program, arguments = sys.executable, ["-m", "acp_gateway", *arguments]
    return print_config(editor, name=name, arguments=arguments, command=program) + "\n"


def _one_line_for_bugs(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line instead of a traceback, which goes to the log file: editors show stderr to users, or drop it."""
    import logging

    logging.getLogger(__name__).critical("a bug", exc_info=(kind, error, trace))
    click.echo(f"acp-gateway: a bug: {kind.__name__}: {error}; --log-file shows where", err=True)
