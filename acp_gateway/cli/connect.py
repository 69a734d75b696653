"""The command `connect`, which editors run. It imports its dependencies when it runs, because it must start fast."""

import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import (
    MAX_MESSAGE_SIZE,
    ca_option,
    cert_option,
    check_finite,
    connect_timeout_option,
    imports_to_keep,
    insecure_plaintext_option,
    key_option,
    pin_option,
    token_file_option,
    was_given,
)
from acp_gateway.errors import GatewayError, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.cli.editor_install import AgentCommand
    from acp_gateway.client.dialing import Destination
    from acp_gateway.client.reconnect_policy import LinkEvent

KNOWN_TIMEOUT = 300.0
"""Default seconds to try until the first connection to a gateway that was reached before: joining a network, passing
its portal, connecting a VPN or starting the box takes minutes."""

EDITORS = ("zed", "jetbrains", "codecompanion", "avante", "emacs", "vscode", "toad")

CONNECT_EPILOG = """
\b
Examples:
  acp-gateway connect box --print-config zed       the block for an editor's settings
  acp-gateway connect box --install zed            write it into them
  acp-gateway connect box --attach SESSION         join a session

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


@click.command(epilog=CONNECT_EPILOG, short_help="Connect an editor to a remote agent (editors run this).")
@click.argument("target")
@click.option("--agent", help="The agent to use. Default: the gateway's own default.")
@click.option(
    "--attach",
    "session",
    metavar="SESSION",
    help="Join this session: the editor's first new session is this one. `acp-gateway sessions` lists them.",
)
@click.option("--observe", is_flag=True, help="Watch only: you can't prompt or approve.")
@token_file_option
@ca_option
@pin_option
@cert_option
@key_option
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="LOCAL=REMOTE",
    help="Map a local folder to a remote one. May be repeated.",
)
@connect_timeout_option(help="How long to try until the first connection, to any gateway if this is given.")
@click.option(
    "--known-timeout",
    type=click.FloatRange(min=0),
    default=KNOWN_TIMEOUT,
    callback=check_finite,
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
    callback=check_finite,
    show_default=True,
    metavar="SECONDS",
    help="Reconnect after this much silence. Both ends send something every 10 s.",
)
@click.option("--log-file", type=click.Path(path_type=Path), help="Write a log there.")
@click.option(
    "--status-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep the state of the connection there, as JSON, replaced at each change.",
)
@click.option("--tell-outages", is_flag=True, help="Tell long outages, and turns that they end, in the conversation.")
@insecure_plaintext_option
@click.option(
    "--print-config", "editor", type=click.Choice(EDITORS), help="Print the settings block for an editor, and stop."
)
@click.option(
    "--install",
    type=click.Choice(EDITORS),
    help="Write this into an editor's settings, after showing the difference and asking, and stop.",
)
@click.option("--yes", is_flag=True, help="With --install: write without asking.")
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
    status_file: Path | None,
    editor: str | None,
    install: str | None,
    *,
    yes: bool,
    tell_outages: bool,
    observe: bool,
    insecure_plaintext: bool,
) -> None:
    """Connect an editor to a remote agent: pass everything to the gateway at TARGET and back. Editors run this.

    TARGET is a name from ~/.config/acp-gateway/hosts.toml, or HOST[:PORT] (TLS, port 7443), or a URL: wss://, ws://,
    https://, http://, tcp+tls://, tcp://, unix:///path, ssh://[USER@]HOST. Editors start this command and speak ACP
    over stdin and stdout.
    """
    with imports_to_keep():
        import logging
        from dataclasses import replace

        import trio

        from acp_gateway.client import shim
        from acp_gateway.client.cookies import CookieJar
        from acp_gateway.client.destination import (
            check_client_certificate,
            check_session_id,
            find_destination,
            find_host,
        )
        from acp_gateway.client.feedback import Feedback
        from acp_gateway.client.reached_hosts import own_reached_hosts
        from acp_gateway.client.reconnect_policy import ReconnectSettings, ignore
        from acp_gateway.client.status_file import StatusFile
        from acp_gateway.logs import log_to_file
        from acp_gateway.protocol.path_maps import PathMaps, parse_map
        from acp_gateway.transports.pipes import open_stdio

    cookies = CookieJar()

    def destination() -> "Destination":
        found = find_destination(
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
        return replace(found, cookies=cookies)

    if yes and install is None:
        raise UsageError("--yes is for --install")
    if editor is not None or install is not None:
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
            "--status-file": [str(status_file.absolute())] if status_file else [],
        }
        flags = ["--observe"] if observe else []
        flags += ["--tell-outages"] if tell_outages else []
        flags += ["--insecure-plaintext"] if insecure_plaintext else []
        command = _agent_command(target, given, flags, pin)
        if editor is not None:
            click.echo(command.block(editor))
        if install is not None:
            from acp_gateway.cli.editor_install import install_agent, own_machine

            install_agent(install, command, own_machine(), yes=yes)
        return

    sys.excepthook = _one_line_for_bugs
    tell = ignore
    status = None if status_file is None else StatusFile(status_file, target)
    if sys.stdin is not None and sys.stdin.isatty():
        click.echo(
            "Editors run this: it speaks JSON-RPC on stdin and stdout. Ctrl-D ends it; for an editor's settings: "
            f"acp-gateway connect {printable(target)} --print-config {'|'.join(EDITORS)}",
            err=True,
        )
        tell = partial(_tell_terminal, target)
        if not was_given("known_timeout"):
            # In a terminal, report errors soon.
            known_timeout = 0.0
    try:
        log_to_file(log_file, logging.INFO)
        host = find_host(target)
        reached = own_reached_hosts()
        feedback = Feedback(status, tells_outages=tell_outages or (host is not None and host.tell_outages))

        def notice(event: "LinkEvent") -> None:
            tell(event)
            feedback.notice(event)

        settings = shim.Settings(
            maps=PathMaps([*map(parse_map, maps), *(host.maps if host else ())]),
            max_message_size=max_message_size,
            reconnect=ReconnectSettings(
                connect_timeout,
                0.0 if was_given("connect_timeout") else known_timeout,
                reached.knows,
                reached.record,
                keepalive,
                notice,
            ),
            feedback=feedback,
        )
    except GatewayError as error:
        if status is not None:
            status.end(str(error))
        trio.run(shim.refuse, open_stdio(), error)
        raise
    trio.run(shim.run, open_stdio(), destination, settings)


def _agent_command(target: str, options: dict[str, list[str]], flags: list[str], pin: str | None) -> "AgentCommand":
    """Return the command of an editor's settings that is this one. Raises `UsageError` for invalid options."""
    from acp_gateway.cli.editor_install import AgentCommand
    from acp_gateway.client.destination import find_host
    from acp_gateway.config.addresses import parse_target
    from acp_gateway.security.tls import parse_pin

    if find_host(target) is None:
        parse_target(target)
    if pin is not None:
        parse_pin(pin)
    words = [word for option, values in options.items() for value in values for word in (option, value)]
    return AgentCommand.to(target, [*flags, *words])


def _tell_terminal(target: str, event: "LinkEvent") -> None:
    """Tell a user who has started this in a terminal whether the connection works."""
    if event.kind == "lost":
        line = f"The connection is lost ({event.why}); it is tried again, and the agent goes on."
    elif event.kind == "resumed":
        line = f"Connected again after {event.seconds:.0f} s; nothing was lost."
    else:
        line = (
            f"Connected to {event.address} in {event.seconds:.1f} s: a gateway, and it accepts you. For the agent too: "
            f"acp-gateway ping {target}"
        )
    click.echo(printable(line, 1000), err=True)


def _one_line_for_bugs(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line instead of a traceback, which goes to the log file: editors show stderr to users, or drop it."""
    import logging

    logging.getLogger(__name__).critical("a bug", exc_info=(kind, error, trace))
    click.echo(f"acp-gateway: a bug: {kind.__name__}: {printable(str(error))}; --log-file shows where", err=True)
