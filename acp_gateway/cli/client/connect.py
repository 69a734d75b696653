"""The command `connect`, which editors run. It imports its dependencies when it runs, because it must start fast.

With a plain command line `__main__` runs `relay_editor` without this module.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.client.editor_relay import relay_editor
from acp_gateway.cli.common import click_options, was_given
from acp_gateway.cli.plain_options import CONNECT, EDITORS
from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.cli.client.editor_files import AgentCommand

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
@click_options(CONNECT)
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
    if yes and install is None:
        raise UsageError("--yes is for --install")
    if editor is None and install is None:
        relay_editor(
            target,
            frozenset(option.destination for option in CONNECT if was_given(option.destination)),
            agent=agent,
            session=session,
            token_file=token_file,
            ca=ca,
            pin=pin,
            cert=cert,
            key=key,
            maps=maps,
            connect_timeout=connect_timeout,
            known_timeout=known_timeout,
            max_message_size=max_message_size,
            keepalive=keepalive,
            log_file=log_file,
            status_file=status_file,
            tell_outages=tell_outages,
            observe=observe,
            insecure_plaintext=insecure_plaintext,
        )
        return
    from acp_gateway.client.destination import check_client_certificate, check_session_id
    from acp_gateway.protocol.path_maps import parse_map

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
        from acp_gateway.cli.client.editor_files import install_agent, own_machine
        from acp_gateway.client.destination import find_destination

        # Raises, with the remedy, for what the editor could not connect to.
        find_destination(
            target, agent, token_file, ca, pin, max_message_size, insecure=insecure_plaintext, cert=cert, key=key
        )
        install_agent(install, command, own_machine(), yes=yes)


def _agent_command(target: str, options: dict[str, list[str]], flags: list[str], pin: str | None) -> "AgentCommand":
    """Return the command of an editor's settings that is this one. Raises `UsageError` for invalid options."""
    from acp_gateway.cli.client.editor_files import AgentCommand
    from acp_gateway.client.destination import find_host
    from acp_gateway.config.addresses import parse_target
    from acp_gateway.security.tls import parse_pin

    if find_host(target) is None:
        parse_target(target)
    if pin is not None:
        parse_pin(pin)
    words = [word for option, values in options.items() for value in values for word in (option, value)]
    return AgentCommand.to(target, [*flags, *words])
