"""Gathers the facts for `acp-gateway doctor` on the gateway's machine. Nothing is changed, and no secret is kept."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from acp_gateway.config.addresses import Address
from acp_gateway.config.load import AgentSection, Config, agent_environment, default_config_path, load_config
from acp_gateway.diagnosis.gateway_checks import (
    SYSTEMD,
    AgentFacts,
    CertificateFacts,
    ConfigFacts,
    ListenerFacts,
    MachineFacts,
    StateFacts,
    TokenFacts,
    UnitFacts,
)
from acp_gateway.errors import ConfigError, TrustError
from acp_gateway.gateway.agent.orphans import PROC, process_ids
from acp_gateway.gateway.storage.state_folder import check_state_folder, find_process
from acp_gateway.printable import printable
from acp_gateway.security.certificates import read_certificate
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.config_check import check_config, problems_with_files
from acp_gateway.server.sockets import find_listener

LINGER: Final = Path("/var/lib/systemd/linger")

CONNECT_TIMEOUT: Final = 1.0
"""Seconds for a connection to a listener of this machine."""

COMMAND_TIMEOUT: Final = 5.0
"""Seconds for `systemctl`."""

_KEY: Final = re.compile(
    r"[A-Z0-9_]*_API_KEY|(ANTHROPIC|OPENAI|GEMINI|GOOGLE|MISTRAL|XAI|GROQ|GITHUB|GH|HF|HUGGING_FACE)_[A-Z_]*(TOKEN|KEY)"
)
"""Names of variables that hold a key for a model or a service of agents."""

_COMMAND_SIZE: Final = 200
"""Characters of a command line that are shown."""


def gather(path: Path | None, environment: Mapping[str, str], *, proc: Path = PROC) -> MachineFacts:
    """Return the facts of this machine for the configuration at `path`, or the default one.

    Args:
        path: the configuration.
        environment: that of the shell.
        proc: the process file system.

    Raises nothing: what can't be looked at is a problem of the configuration or left out.
    """
    now = datetime.now(UTC)
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    findings = check_config(path)
    # A program that is not found has a line of its own.
    problems = [
        (finding.severity, str(finding.error))
        for finding in findings
        if not finding.error.message.startswith("no program ")
    ]
    try:
        shown = str(path or default_config_path())
        config = load_config(path)
    except ConfigError as error:
        known = tuple(problems) or (("error", str(error)),)
        return MachineFacts(now, is_root, ConfigFacts(str(path or "config.toml"), known), None, environment_known=False)
    state = _state(config.gateway.state_dir)
    # The gateway that runs and the state folder have lines of their own.
    told = [
        (finding.severity, str(finding.error))
        for finding in problems_with_files(config)
        if finding.error.message != state.problem
        and (finding.severity, finding.error.key) != ("warning", "gateway.state_dir")
    ]
    problems += told
    gateway = find_process(config.gateway.state_dir)
    served = None if gateway is None else _environment_of(gateway, proc)
    units = tuple(find_units(environment))
    activated = any(unit.active and unit.is_socket for unit in units)
    return MachineFacts(
        now,
        is_root,
        ConfigFacts(shown, tuple(problems)),
        gateway,
        environment_known=served is not None,
        listeners=tuple(
            _listener(section.address, gateway, activated=activated)
            for section in config.listen
            if section.address.port or section.address.path
        ),
        certificates=tuple(_certificates(config)),
        tokens=tuple(_tokens(config)),
        agents=tuple(
            _agent(name, section, environment, served)
            for name, section in config.agents.items()
            if section.command is not None
        ),
        state=state,
        others=tuple(other_gateways(gateway, environment, proc)),
        has_systemd=shutil.which("systemctl", path=environment.get("PATH")) is not None
        and Path("/run/systemd/system").is_dir(),
        units=units,
        lingers=not LINGER.is_dir() or (LINGER / environment.get("USER", "")).is_file(),
    )


def looks_like_key(variable: str) -> bool:
    """Return whether the name of a variable is that of a key for models or services of agents."""
    return _KEY.fullmatch(variable) is not None


def _environment_of(pid: int, proc: Path) -> dict[str, str] | None:
    """Return the environment with which a process was started; None if it may not be read."""
    try:
        entries = (proc / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return {name: value for name, equals, value in (entry.partition("=") for entry in entries) if equals}


def _listener(address: Address, gateway: int | None, *, activated: bool) -> ListenerFacts:
    if activated and gateway is None:
        # A connection would start the gateway.
        return ListenerFacts(str(address), accepting=True, holder=SYSTEMD, own=True)
    if address.scheme == "unix":
        return ListenerFacts(str(address), _accepts(socket.AF_UNIX, address.path), None, own=True)
    host = address.host
    if address.wildcard:
        host = "::1" if ":" in host else "127.0.0.1"
    holder = find_listener(address.port)
    own = gateway is not None and holder is not None and holder.startswith(f"process {gateway} ")
    # systemd holds the socket of a gateway that it activates.
    own |= activated or (holder is not None and holder.endswith("(systemd)"))
    return ListenerFacts(str(address), _accepts(None, host, address.port), holder, own=own)


def _accepts(family: int | None, host: str, port: int = 0) -> bool:
    try:
        if family is not None:
            with socket.socket(family) as unix:
                unix.settimeout(CONNECT_TIMEOUT)
                unix.connect(host)
            return True
        with socket.create_connection((host, port), CONNECT_TIMEOUT):
            return True
    except (OSError, UnicodeError):
        return False


def _certificates(config: Config) -> Iterator[CertificateFacts]:
    for path in dict.fromkeys(section.cert for section in config.listen if section.cert is not None):
        try:
            found = read_certificate(path)
        except (ConfigError, TrustError):
            continue  # The check of the configuration tells.
        yield CertificateFacts(str(path), found.end, found.issuer is None)


def _tokens(config: Config) -> Iterator[TokenFacts]:
    store = TokenStore(config.gateway.state_dir)
    try:
        known = store.tokens()
    except ConfigError:
        return  # The check of the configuration tells.
    for token in known:
        yield TokenFacts(token.id, token.label, token.expires, store.has_expired(token))


def _agent(name: str, section: AgentSection, shell: Mapping[str, str], served: Mapping[str, str] | None) -> AgentFacts:
    program = "" if section.command is None else section.command[0]
    keys = [variable for variable in sorted(shell) if looks_like_key(variable)]
    try:
        got = agent_environment(section, shell if served is None else served)
        here = agent_environment(section, shell)
    except ConfigError:
        got = here = {}
        keys = []
    withheld = tuple(variable for variable in keys if variable not in got)
    return AgentFacts(
        name,
        program,
        _find(section, program, here),
        None if served is None else _find(section, program, got),
        withheld,
        tuple(variable for variable in withheld if variable in section.pass_env),
        section.fence not in (None, "off"),
    )


def _find(section: AgentSection, program: str, environment: Mapping[str, str]) -> str | None:
    named = str((section.cwd or Path.cwd()) / program) if "/" in program else program
    return shutil.which(named, path=os.pathsep.join(os.get_exec_path(environment)))


def _state(state_dir: Path) -> StateFacts:
    problem = None
    try:
        check_state_folder(state_dir)
    except ConfigError as error:
        problem = error.message
    there = next(path for path in (state_dir, *state_dir.parents) if os.path.exists(path))
    size = 0
    try:
        size = sum(entry.stat().st_size for entry in os.scandir(state_dir) if entry.is_file(follow_symlinks=False))
    except OSError:
        pass  # It does not exist yet, or can't be entered, which the check of the configuration tells.
    return StateFacts(str(state_dir), problem, shutil.disk_usage(there).free, size)


def other_gateways(gateway: int | None, environment: Mapping[str, str], proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """Yield process id and command line of each other `acp-gateway serve` of this user, in the same home folder.

    Those of others have configurations and clients of their own.
    """
    for pid in process_ids(proc):
        try:
            words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            continue  # It has ended.
        names = {os.path.basename(word) for word in words[:3]}
        serves = {"serve", "up"} & set(words[1:5])
        if not serves or not names & {"acp-gateway", "acp_gateway"} or pid in (gateway, os.getpid()):
            continue
        # That of another user may not be read.
        its = _environment_of(pid, proc)
        if its is not None and its.get("HOME") == environment.get("HOME") and _is_own(proc / str(pid)):
            yield pid, printable(" ".join(words), _COMMAND_SIZE)


def _is_own(process: Path) -> bool:
    try:
        return process.stat().st_uid == os.geteuid()
    except OSError:
        return False  # It has ended.


def find_units(environment: Mapping[str, str]) -> Iterator[UnitFacts]:
    """Yield the units of the gateway that systemd knows: of this account, then of the system."""
    systemctl = shutil.which("systemctl", path=environment.get("PATH"))
    if systemctl is None:
        return
    user = environment.get("USER", "")
    names = ("acp-gateway", f"acp-gateway@{user}") if user else ("acp-gateway",)
    for option, name in (("--user", names[0]), *(("--system", each) for each in names)):
        for kind in ("service", "socket"):
            unit = f"{name}.{kind}"
            shown = _show_unit([systemctl, option, "show", unit], environment)
            active = shown.get("ActiveState") == "active"
            # A socket is an option of the service: one that is not used tells nothing.
            if shown.get("LoadState") == "loaded" and (active or kind == "service"):
                enabled = shown.get("UnitFileState", "") in ("enabled", "enabled-runtime", "static", "indirect")
                yield UnitFacts(unit, option == "--user", enabled, active)


def _show_unit(command: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a unit; none if systemd can't be asked."""
    try:
        done = subprocess.run(
            [*command, "--property=LoadState,UnitFileState,ActiveState"],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
            env=dict(environment),
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())
