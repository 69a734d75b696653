"""The commands `serve` and `check-config`."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import config_option, examples, json_option, print_json, print_warning, was_given
from acp_gateway.cli.gateway.setting_up import WhenStarted, address_option, describe_agents, host_option, port_option
from acp_gateway.cli.quick_imports import quick_imports
from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.server.config_check import Finding

EPILOG = """\b
Examples:
  acp-gateway serve                          with ~/.config/acp-gateway/config.toml
  acp-gateway serve --agent 'opencode acp'   without a file, for the sessions of this folder
"""


@click.command(epilog=EPILOG, short_help="Accept editors and run agents for them.")
@config_option
@click.option(
    "--agent",
    "commands",
    multiple=True,
    metavar="COMMAND",
    help="Run this agent, without a configuration file. May be repeated; the first is the default.",
)
@port_option
@address_option
@host_option
@click.option("--verbose", "-v", is_flag=True, help="Log the details of each connection too, but no message bodies.")
@click.option("--log-bodies", is_flag=True, help="Log message bodies too, with known secrets redacted.")
def serve(
    config: Path | None,
    commands: tuple[str, ...],
    port: int,
    address: str,
    host: str | None,
    *,
    verbose: bool,
    log_bodies: bool,
) -> None:
    """Accept editors and run agents for them, until stopped by SIGTERM or Ctrl-C.

    With --agent no file is read: sessions may use the folder that you are in, the certificate and tokens are in
    ~/.local/state/acp-gateway and made where they are missing, and what a client needs is printed. `acp-gateway up`
    writes a configuration instead.

    The log goes to stderr. In the journal of systemd it has priorities. SIGHUP reads
    the configuration, tokens and certificates again, as `acp-gateway reload` does.
    """
    with quick_imports():
        import logging

        import trio

        from acp_gateway.cli.gateway.serving_agent import announce as announce_agent
        from acp_gateway.cli.gateway.serving_agent import temporary_config
        from acp_gateway.config.load import default_config_path, load_config
        from acp_gateway.gateway.agent.hardening import harden
        from acp_gateway.gateway.events.recording import recording_of
        from acp_gateway.logs import is_journal, log_to_stderr
        from acp_gateway.server import serve as server

    with ExitStack() as stack:
        announce: Callable[[], None] | None = None
        if commands:
            if config is not None:
                raise UsageError("--agent is for a gateway without a configuration: leave out --config")
            file, settings = stack.enter_context(temporary_config(commands, port, address, host))
            announce = partial(announce_agent, settings, host)
        else:
            for option in ("port", "address", "host"):
                if was_given(option):
                    raise UsageError(f"--{option} is for --agent; the configuration has it in [[listen]]")
            file = config or default_config_path(or_running=False)
            settings = load_config(file)
        journal = is_journal(os.environ, sys.__stderr__.fileno() if sys.__stderr__ else -1)
        log_to_stderr(logging.DEBUG if verbose else logging.INFO, settings.log.format, journal=journal)
        harden()
        recorder = recording_of(settings.gateway, log_bodies=log_bodies)
        run = partial(server.serve, settings, os.environ, file=file, recorder=recorder)
        trio.run(run if announce is None else partial(run, task_status=WhenStarted(announce)))


@click.command(
    "check-config",
    epilog=examples("acp-gateway check-config", "acp-gateway check-config --config ./config.toml --json"),
    short_help="List what is wrong with the configuration.",
)
@config_option
@json_option
def check_configuration(config: Path | None, *, as_json: bool) -> None:
    """List everything that is wrong with the gateway's configuration, with file, line and option."""
    from acp_gateway.config.load import load_config
    from acp_gateway.errors import ConfigError
    from acp_gateway.security.token_store import TokenStore
    from acp_gateway.server.config_check import Finding, check_config, problems_with_files

    findings = check_config(config)
    if not any(finding.severity == "error" for finding in findings):
        settings = load_config(config)
        findings += problems_with_files(settings)
    wrong = any(finding.severity == "error" for finding in findings)
    if not wrong and not TokenStore(settings.gateway.state_dir).tokens():
        findings.append(
            Finding("warning", ConfigError("there are no tokens yet: acp-gateway token create --label NAME"))
        )
    if as_json:
        print_json([_as_json(finding) for finding in findings])
    else:
        for finding in findings:
            print_warning(str(finding.error), finding.severity)
    if wrong:
        sys.exit(ConfigError.exit_code)
    if not as_json:
        click.echo(f"Fine. Listening at {', '.join(str(section.address) for section in settings.listen)};", nl=False)
        click.echo(f" agents: {describe_agents(settings)}.")


def _as_json(finding: "Finding") -> dict[str, str | int | None]:
    error = finding.error
    place = {"file": error.file, "line": error.line, "key": error.key}
    return {"severity": finding.severity, **place, "message": error.message}
