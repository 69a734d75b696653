"""The command `connect`, which editors run. It imports its dependencies when it runs, because it must start fast.

With a plain command line `__main__` runs `relay_editor` without this module.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from acp_gateway.cli.client.editor_relay import relay_editor
from acp_gateway.cli.common import click_options, was_given
from acp_gateway.cli.plain_options import CONNECT, CONNECTION, EDITORS, ConnectOptions, Option, connection_of
from acp_gateway.errors import AccessError, GatewayError, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.cli.client.editor_files import AgentCommand
    from acp_gateway.client.dialing import Destination

HOST: Final = "vscode-host"
"""The word of `--install` for the hosts of agents in VS Code's settings."""

CONNECT_EPILOG = """
\b
Examples:
  acp-gateway connect box --print-config zed       the block for an editor's settings
  acp-gateway connect box --install zed            write it into them
  acp-gateway connect box --agent claude --install zed    another agent beside it
  acp-gateway connect box --attach SESSION         join a session
  acp-gateway connect box --worktree --install zed    each session in a git worktree of its own
  acp-gateway connect box --ahp                    be a host of agents for VS Code

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
@click.argument("target", required=False)
@click_options(CONNECT)
@click.option(
    "--print-config", "editor", type=click.Choice(EDITORS), help="Print the settings block for an editor, and stop."
)
@click.option(
    "--install",
    type=click.Choice([*EDITORS, HOST]),
    help="Write this into an editor's settings, after showing the difference and asking, and stop. "
    f"{HOST}: with --ahp, and go on.",
)
@click.option(
    "--name", metavar="TEXT", help="With these two: the agent's name in the editor. Default: TARGET, and its --agent."
)
@click.option("--ahp", is_flag=True, help="Listen here for windows of VS Code, instead of an editor's agent.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="With --ahp: the port. Default: any free one.")
@click.option("--yes", is_flag=True, help="With --install: write without asking.")
def connect(
    target: str | None,
    editor: str | None,
    install: str | None,
    name: str | None,
    port: int | None,
    *,
    ahp: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Connect an editor to a remote agent: pass everything to the gateway at TARGET and back. Editors run this.

    TARGET is a name from ~/.config/acp-gateway/hosts.toml, or HOST[:PORT] (TLS, port 7443), or a URL: wss://, ws://,
    https://, http://, tcp+tls://, tcp://, unix:///path, ssh://[USER@]HOST. Editors start this command and speak ACP
    over stdin and stdout.

    With --ahp it prints a URL of this machine instead, by which windows of VS Code reach the gateway, until Ctrl-C.
    """
    if yes and install is None:
        raise UsageError("--yes is for --install")
    if name is not None and editor is None and install is None:
        raise UsageError("--name is for --install and --print-config")
    if target is None and options["worktree"]:
        raise UsageError("which gateway? A word behind --worktree is its NAME: write TARGET before it")
    if target is None:
        from acp_gateway.cli.client.gateway_options import only_host

        target = only_host()
    if ahp != (install == HOST) and (install == HOST or editor is not None or install is not None):
        raise UsageError(f"--ahp goes with --install {HOST} alone, and that with --ahp")
    if port is not None and not ahp:
        raise UsageError("--port is for --ahp")
    if ahp:
        name = _agent_command(target, name, options).name
        _serve_windows(target, options, port, name if install == HOST else None, yes=yes)
        return
    if editor is None and install is None:
        given = frozenset(option.destination for option in CONNECT if was_given(option.destination))
        relay_editor(target, ConnectOptions(**options), given)
        return
    command = _agent_command(target, name, options)
    if editor is not None:
        click.echo(command.block(editor))
    if install is not None:
        from acp_gateway.cli.client.editor_files import install_agent, own_machine
        from acp_gateway.client.destination import find_destination

        # Raises, with the remedy, for what the editor could not connect to.
        agent = options["agent"]
        destination = find_destination(
            target, connection_of(options), options["max_message_size"], agent=agent, control=True
        )
        if agent is not None:
            _check_agent(agent, destination)
        install_agent(install, command, own_machine(), yes=yes)


_OF_WINDOWS: Final = {option.destination for option in CONNECTION} | {"agent", "session", "observe", "max_message_size"}
"""Options that count with --ahp: windows see the box's own folders, and connect again by themselves."""


def _serve_windows(
    target: str, options: Mapping[str, Any], port: int | None, install: str | None, *, yes: bool
) -> None:
    """Listen on a port of this machine, print its URL, and carry windows of VS Code to the gateway until Ctrl-C.

    With `install`, the port is in the settings of VS Code then, under this name; what they have of it already is used
    again. Raises `GatewayError`.
    """
    import secrets

    import trio

    from acp_gateway.cli.client.editor_files import find_host, install_host, own_machine
    from acp_gateway.cli.common import print_secret, print_warning
    from acp_gateway.client import agent_host
    from acp_gateway.client.destination import find_destination
    from acp_gateway.client.ports.forwarding import port_of

    for option in CONNECT:
        if option.destination not in _OF_WINDOWS and was_given(option.destination):
            raise UsageError(f"{option.name} is for editors that run this command: leave it out with --ahp")

    def destination() -> "Destination":
        asked = {name: options[name] for name in ("agent", "session", "observe")}
        return agent_host.host_of(
            find_destination(target, connection_of(options), options["max_message_size"], **asked)
        )

    destination()
    machine = own_machine()
    known = None if install is None else find_host(machine, install)
    wanted, secret = known or (0, secrets.token_urlsafe(32))
    told: list[str] = []

    def report(why: str) -> None:
        # A window dials again and again.
        if told != [why]:
            told[:] = [why]
            print_warning(printable(why, 1000))

    async def run() -> None:
        async with await agent_host.listen(wanted if port is None else port, target) as listener:
            if install is not None:
                install_host(machine, install, port_of(listener), secret, yes=yes)
            click.echo(f"By this URL, windows of VS Code on this machine reach {target}, until Ctrl-C:", err=True)
            print_secret(agent_host.url_of(listener, secret))
            await agent_host.serve_windows(listener, destination, secret, report)

    trio.run(run)


CHECK_TIMEOUT: Final = 10.0
"""Seconds to wait for the gateway's word on an agent that goes into an editor's settings."""


def _check_agent(agent: str, destination: "Destination") -> None:
    """Ask the gateway whether it has an agent; warn if it can't be asked now. Raises `AccessError` if it refuses."""
    import trio

    from acp_gateway.cli.common import print_warning, waiting_for
    from acp_gateway.client import control
    from acp_gateway.protocol.methods import ACCESS

    try:
        with waiting_for(str(destination.address)):
            trio.run(partial(control.request, destination, ACCESS, {}, time_limit=CHECK_TIMEOUT))
    except AccessError:
        raise
    except GatewayError as error:
        print_warning(printable(f"whether the gateway has the agent {agent} is not known: {error}", 1000))


def _agent_command(target: str, name: str | None, options: Mapping[str, Any]) -> "AgentCommand":
    """Return the command of an editor's settings that is this one. Raises `UsageError` for invalid options."""
    from acp_gateway.cli.client.editor_files import AgentCommand
    from acp_gateway.client.destination import check_client_certificate, check_session_id, find_host
    from acp_gateway.config.addresses import parse_target
    from acp_gateway.security.tls import parse_pin

    check_client_certificate(options["cert"], options["key"])
    if options["session"] is not None:
        check_session_id(options["session"])
    words = [option.name for option in CONNECT if option.kind == "flag" and options[option.destination]]
    for option in CONNECT:
        values = _words_of(option, options[option.destination])
        words += values if option.kind == "optional" else [word for value in values for word in (option.name, value)]
    if find_host(target) is None:
        parse_target(target)
    if options["pin"] is not None:
        parse_pin(options["pin"])
    return AgentCommand.to(target, words, name=name, agent=options["agent"])


def _words_of(option: Option, value: Any) -> list[str]:
    """Return the values of an option, if it was given, as a program in another folder understands them.

    That of an optional value is one word with the option.
    """
    from acp_gateway.protocol.path_maps import parse_map

    if option.kind in ("number", "count"):
        return [f"{value:g}" if option.kind == "number" else str(value)] if was_given(option.destination) else []
    if option.kind == "optional" and value is not None:
        return [f"{option.name}={value}" if value else option.name]
    if option.kind == "flag" or not value:
        return []
    if option.repeated:
        return ["=".join(parse_map(text)) for text in value]
    return [str(value.absolute()) if option.kind == "file" else value]
