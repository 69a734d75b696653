"""The command `doctor`: look for what is wrong on this machine, the gateway's or the editor's."""

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import print_any_character, print_check
from acp_gateway.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from acp_gateway.diagnosis.checks import Line

EPILOG = """
\b
Examples:
  acp-gateway doctor                     on the gateway's machine, and on the laptop
  acp-gateway doctor --agent claude      what the fence of an agent refuses
  ssh box acp-gateway doctor             the same from the laptop
  acp-gateway doctor --json | jq '.checks[] | select(.status != "ok")'

Exit codes: 0 no fault (there may be warnings); else that of the first fault: 3 configuration, state folder or disk,
5 certificate, 6 the gateway does not run, 8 an agent's program, 9 a listener; for nodes and hosts as `ping`.
"""


@click.command(epilog=EPILOG, short_help="Look for what is wrong on this machine.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The gateway's configuration. Default: as for serve; where there is none, only hosts.toml is checked.",
)
@click.option("--agent", metavar="NAME", help="Run this agent once instead, and tell what its fence refuses.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(config: Path | None, agent: str | None, *, as_json: bool) -> None:
    """Look for what is wrong on this machine, and say what to do; nothing is changed.

    With a gateway's configuration: that, the running gateway, its listeners, certificates, tokens, agents, keys, state
    folder, disk, its unit, and its nodes. With a hosts.toml: each gateway in it, up to its token. Run it as the
    gateway's user. With --agent, that agent is started, opens a session and is stopped.
    """
    import trio

    from acp_gateway.config.hosts import hosts_path
    from acp_gateway.config.load import default_config_path
    from acp_gateway.diagnosis.host_checks import check_hosts, read_hosts

    lines: list[Line] = []

    def report(line: "Line") -> None:
        lines.append(line)
        if not as_json:
            print_check(line)

    print_any_character()
    if agent is not None:
        for line in _try_agent(config, agent):
            report(line)
        _end(lines, as_json=as_json)
        return
    try:
        gateways = config or default_config_path()
    except ConfigError:
        gateways = None
    if gateways is not None:
        # Imported here, because a client's system may lack what a gateway needs.
        from acp_gateway.client.local import find_local_gateway
        from acp_gateway.diagnosis.gateway_checks import check_machine, check_nodes
        from acp_gateway.diagnosis.gateway_facts import gather

        facts = gather(gateways, os.environ)
        for line in check_machine(facts):
            report(line)
        if facts.gateway is not None:
            for line in trio.run(check_nodes, find_local_gateway(gateways)):
                report(line)
    path = hosts_path()
    if config is None and (gateways is None or os.path.lexists(path)):
        hosts, line = read_hosts(path)
        report(line)
        trio.run(partial(check_hosts, hosts, report))
    _end(lines, as_json=as_json)


def _end(lines: "list[Line]", *, as_json: bool) -> None:
    from acp_gateway.diagnosis.checks import exit_code_of, report_of

    if as_json:
        click.echo(json.dumps(report_of(lines)))
    click.get_current_context().exit(exit_code_of(lines))


def _try_agent(config: Path | None, name: str) -> "list[Line]":
    """Run an agent once. Raises `ConfigError` and `UsageError`."""
    import tempfile

    import trio

    from acp_gateway.config.load import load_config
    from acp_gateway.diagnosis.agent_trial import try_agent

    settings = load_config(config)
    section = settings.agents.get(name)
    if section is None or section.command is None:
        raise UsageError(
            f"{name!r} is not an agent that this gateway starts: {', '.join(settings.agents) or 'none is'}"
        )
    with tempfile.TemporaryDirectory(prefix="acp-gateway-doctor-") as folder:
        return trio.run(try_agent, name, section, settings, os.environ, Path(folder))
