"""The commands `serve` and `check-config`."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import (
    config_option,
    current_folder,
    examples,
    json_option,
    print_json,
    print_rows,
    print_secret,
    print_warning,
    was_given,
)
from acp_gateway.cli.gateway.setting_up import (
    WhenStarted,
    address_option,
    check_address,
    check_workspace,
    describe_agents,
    find_agents_here,
    make_certificate,
    own_host_option,
    port_option,
    print_pairing,
    reachable_host,
    writes_to_journal,
    yes_option,
)
from acp_gateway.cli.quick_imports import quick_imports
from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.printable import counted

if TYPE_CHECKING:
    from acp_gateway.config.agent_search import FoundAgent
    from acp_gateway.config.load import Config
    from acp_gateway.server.config_check import Finding

LABEL = "first client"
"""Label of the token that is made where there is none."""


@contextmanager
def temporary_config(
    commands: Sequence[str], port: int, address: str, host: str | None, *, yes: bool = False
) -> "Iterator[tuple[Path, Config]]":
    """Make the configuration of these commands for the duration of the block, and what it needs.

    Sessions may use the present folder. Raises `ConfigError`, `UsageError` and `CannotListen` before anything is made.
    """
    from acp_gateway.config.directories import config_home, state_home
    from acp_gateway.config.editing.first_config import FirstConfig
    from acp_gateway.config.editing.section_writer import replace_file
    from acp_gateway.config.load import RUNNING_CONFIG, load_config
    from acp_gateway.fence.start import can_fence, check_programs
    from acp_gateway.gateway.storage.state_folder import check_state_folder, find_holder

    state_dir, folder = state_home(), current_folder()
    check_workspace(folder, yes=yes)
    agents = _find_agents(commands, folder)
    fence = can_fence(folder, state_dir)
    if fence:
        check_programs(folder)
    check_state_folder(state_dir)
    running = find_holder(state_dir)
    if running is not None:
        raise ConfigError(f"{running}: stop it first", key="gateway.state_dir")
    keys = config_home() if os.path.exists(config_home() / "cert.pem") else state_dir
    first = FirstConfig(
        host=address,
        port=port,
        cert=str(keys / "cert.pem"),
        key=str(keys / "key.pem"),
        state_dir=state_dir,
        workspace=folder,
        agents=agents,
        cwd=folder,
        public_host=host,
        fence=fence,
    )
    text = first.write()
    check_address(first.url, port)
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_certificate(keys, host)
    file = state_dir / RUNNING_CONFIG
    replace_file(file, text)
    try:
        yield file, load_config(file)
    finally:
        file.unlink(missing_ok=True)


def _find_agents(commands: Sequence[str], folder: Path) -> "list[FoundAgent]":
    """Return the agents that these commands start, each under a name of its own. Raises `UsageError`."""
    from acp_gateway.config.editing.first_config import free_name

    agents: list[FoundAgent] = []
    for command in commands:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--agent {command!r:.80}: {str(error).lower()}") from None
        if not words:
            raise UsageError("--agent is a command, such as --agent 'opencode acp'")
        (agent,) = find_agents_here(tuple(words), folder)
        agents.append(replace(agent, name=free_name(agent.name, [other.name for other in agents])))
    return agents


def announce_agent(settings: "Config", host: str | None) -> None:
    """Print what a client needs: the address, the pin, and a new token where there is none."""
    from acp_gateway.cli.tokens import record_token
    from acp_gateway.security.certificates import read_certificate
    from acp_gateway.security.token_store import TokenStore

    listener = settings.listen[0]
    assert listener.cert is not None
    place = reachable_host(host, listener.address) if listener.address.wildcard else listener.address.host
    place = f"[{place}]" if ":" in place else place
    click.echo(f"\nAgents: {', '.join(settings.agents)}. Sessions may use {current_folder()}, and nothing above it.")
    print_pairing(host, current_folder())
    click.echo("On any other machine, with the token in a file of mode 600:")
    pin = read_certificate(listener.cert).pin
    click.echo(f"    acp-gateway connect {place}:{listener.address.port} --pin {pin} --token-file FILE")
    tokens = TokenStore(settings.gateway.state_dir)
    if tokens.tokens():
        click.echo("The token is one of those that there are; `acp-gateway token create --label NAME` makes another.\n")
    elif writes_to_journal():
        click.echo("`acp-gateway token create --label NAME` makes the token.\n")
    else:
        record, secret = tokens.create(LABEL, None, None)
        record_token(settings, "token_created", record)
        click.echo(f"Token {record.id}, which is shown only now:")
        print_secret(secret)


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
@own_host_option
@yes_option
@click.option("--verbose", "-v", is_flag=True, help="Log the details of each connection too, but no message bodies.")
@click.option("--log-bodies", is_flag=True, help="Log message bodies too, with known secrets redacted.")
def serve(
    config: Path | None,
    commands: tuple[str, ...],
    port: int,
    address: str,
    host: str | None,
    *,
    yes: bool,
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
            file, settings = stack.enter_context(temporary_config(commands, port, address, host, yes=yes))
            announce = partial(announce_agent, settings, host)
        else:
            for option in ("port", "address", "host", "yes"):
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
        warnings = len(findings)
        verdict = "Fine" if not warnings else f"No errors, {counted(warnings, 'warning')}"
        places = ", ".join(str(section.address) for section in settings.listen)
        print_rows(f"{verdict}. Listening at {places}; agents: {describe_agents(settings)}.")


def _as_json(finding: "Finding") -> dict[str, str | int | None]:
    error = finding.error
    place = {"file": error.file, "line": error.line, "key": error.key}
    return {"severity": finding.severity, **place, "message": error.message}
