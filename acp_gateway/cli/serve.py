"""The commands `serve` and `check-config`."""

import os
import sys
from functools import partial
from pathlib import Path

import click

from acp_gateway.cli.common import config_option, imports_to_keep


@click.command(short_help="Accept editors and run agents for them.")
@config_option
@click.option("--verbose", "-v", is_flag=True, help="Log the details of each connection too, but no message bodies.")
@click.option("--log-bodies", is_flag=True, help="Log message bodies too, with known secrets redacted.")
def serve(config: Path | None, *, verbose: bool, log_bodies: bool) -> None:
    """Accept editors and run agents for them, until stopped by SIGTERM or Ctrl-C.

    The log goes to stderr. SIGHUP reads tokens and certificates again; for the rest of the configuration restart it.
    """
    with imports_to_keep():
        import logging

        import trio

        from acp_gateway.config.load import default_config_path, load_config
        from acp_gateway.gateway.agent.hardening import harden
        from acp_gateway.gateway.events.recording import recording_of
        from acp_gateway.logs import log_to_stderr
        from acp_gateway.server import serve as server

    file = config or default_config_path()
    settings = load_config(file)
    log_to_stderr(logging.DEBUG if verbose else logging.INFO, settings.log.format)
    harden()
    recorder = recording_of(settings.gateway, log_bodies=log_bodies)
    trio.run(partial(server.serve, settings, os.environ, file=file, recorder=recorder))


@click.command("check-config", short_help="List what is wrong with the configuration.")
@config_option
def check_configuration(config: Path | None) -> None:
    """List everything that is wrong with the gateway's configuration, with file, line and option."""
    from acp_gateway.config.load import load_config
    from acp_gateway.errors import ConfigError
    from acp_gateway.security.token_store import TokenStore
    from acp_gateway.server.config_check import check_config, problems_with_files

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
