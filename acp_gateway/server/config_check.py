"""Checks of a configuration: all problems of its text, and those of the files and programs that it names."""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from acp_gateway import INSTALL_ALL
from acp_gateway.config.agent_search import advise, explain_missing, explain_path, explain_words, needed_scope
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.load import (
    AgentSection,
    Config,
    HooksSection,
    ListenSection,
    agent_environment,
    collect,
    default_config_path,
    inherited_environment,
)
from acp_gateway.config.schema import Entry, missing_credential
from acp_gateway.config.services import services
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import AgentError, ConfigError
from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.fence.plan import check as check_fence
from acp_gateway.fence.plan import choose, remedy
from acp_gateway.gateway.agent.fencing import fence_options
from acp_gateway.gateway.gateway import DATABASE
from acp_gateway.gateway.storage.state_folder import check_state_folder, find_holder
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.certificates import read_revocations
from acp_gateway.security.tls import server_context
from acp_gateway.security.token_format import read_token_file
from acp_gateway.security.token_store import TokenStore, default_identity
from acp_gateway.server.sockets import find_overlap

_SQLITE = b"SQLite format 3\x00"
"""First bytes of every SQLite file."""


_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
"""A variable as a shell would expand it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that `check_config` reports about one place."""

    severity: Literal["error", "warning"]
    error: ConfigError


def check_config(path: Path | None) -> list[Finding]:
    """List all problems of the configuration, and of what it names on this machine, in the file's order.

    Problems that `load_config` refuses, or that certainly keep the gateway from listening or an agent from starting,
    are errors; the rest are warnings. Raises nothing.
    """
    try:
        file = TomlFile.read(path or default_config_path())
    except ConfigError as error:
        return [Finding("error", error)]
    config, problems = collect(file)
    findings = [Finding("error", problem) for problem in problems]
    findings += [Finding("warning", removed) for removed in file.removed]
    if config is not None:
        root = Entry(file, (), file.data).table()
        for section, entry in zip(config.listen, root["listen"].array("sections"), strict=True):
            findings.extend(_check_certificate(section, entry.table()))
        for name, workspace in config.workspaces.items():
            if missing := _missing_folder(workspace.root):
                place = root["workspaces"].table()[name].table()["root"]
                findings.append(Finding("warning", place.error(f"{missing}: no session can use it")))
            elif workspace.root == Path(workspace.root.anchor):
                place = root["workspaces"].table()[name].table()["root"]
                findings.append(Finding("warning", place.error("this is the whole disk: name a project's folder")))
        for name, agent in config.agents.items():
            table = root["agents"].table()[name].table()
            findings.extend(_check_agent(agent, table))
            findings.extend(_check_fence(name, config, table))
        for kind, sections in (("nodes", config.nodes), ("doors", config.doors)):
            for name, reached in sections.items():
                table = root[kind].table()[name].table()
                findings.extend(_check_token(reached.token_file, table, any_form=False))
        if config.cluster is not None:
            cluster = root["cluster"].table()
            findings.extend(_check_token(config.cluster.token_file, cluster, any_form=False))
            findings.extend(_check_token(config.cluster.password_file, cluster, any_form=True, option="password_file"))
        findings.extend(_check_hooks(config.hooks, root))
    return findings


def check_packages(config: Config) -> None:
    """Raise `ConfigError` if a service is to be served, and a package that it needs is not installed."""
    served = {word for section in config.listen for word in section.services}
    for service in services():
        if service.package is not None and service.word in served and find_spec(service.package) is None:
            how = f"`{INSTALL_ALL}` in a checkout"
            text = f'serves "{service.word}", which needs the package {service.package}: {how}'
            raise ConfigError(text, key="listen")


def check_credentials(config: Config) -> None:
    """Raise `ConfigError` if a file is a systemd credential that was not handed over."""
    named: list[tuple[str, Path | None]] = []
    named += [(f"listen {section.url}", path) for section in config.listen for path in _files(section)]
    for name, agent in config.agents.items():
        files = {"env_file": agent.env_file, "token_file": agent.token_file, "ca": agent.ca}
        named += [(f"agents.{name}.{option}", path) for option, path in files.items()]
    for kind, sections in (("nodes", config.nodes), ("doors", config.doors)):
        for name, section in sections.items():
            named += [(f"{kind}.{name}.token_file", section.token_file), (f"{kind}.{name}.ca", section.ca)]
    if (cluster := config.cluster) is not None:
        files = {"token_file": cluster.token_file, "password_file": cluster.password_file, "ca": cluster.ca}
        named += [(f"cluster.{option}", path) for option, path in files.items()]
    for key, path in named:
        if path is not None and (missing := missing_credential(path)):
            raise ConfigError(missing, key=key)


def check_nodes_of_agents(config: Config, tokens: TokenStore) -> None:
    """Raise `ConfigError` if the default agent or one of a certificate is of a node that is not there."""
    named = [("gateway.default_agent", config.default_agent)]
    for certificate, section in config.certificates.items():
        named += [(f"certificates.{certificate}.agents", agent) for agent in section.agents or ()]
    for key, name in named:
        node, slash, _ = name.partition("/")
        known = not slash or config.may_be_of_node(name)
        if not known and not any(token.role == "node" and node in token.nodes for token in tokens.tokens()):
            why = f"neither [nodes.{node}], nor one that `acp-gateway nodes add {node}` has added"
            raise ConfigError(f"there is no node {node}: {why}", key=key)


def _files(section: ListenSection) -> list[Path]:
    return [path for path in (section.cert, section.key, section.client_ca, section.client_crl) if path is not None]


def find_clash(config: Config) -> ConfigError | None:
    """Return an error if two sections name the same address differently."""
    found = find_overlap([section.address for section in config.listen])
    if found is None:
        return None
    return ConfigError(f"{found[0]} and {found[1]} are the same address: remove one of the sections", key="listen")


def problems_with_files(config: Config) -> list[Finding]:
    """List the problems of a configuration that only show when its files are opened.

    Problems that `serve` refuses are errors; the rest are warnings.
    """
    errors = []
    warnings = []
    for section in config.listen:
        # What only the service is given can't be looked at from elsewhere.
        here = not any(map(missing_credential, _files(section)))
        try:
            if section.cert is not None and section.key is not None and here:
                server_context(section.cert, section.key, section.client_ca)
            if section.client_crl is not None and section.client_ca is not None and here:
                found = read_revocations(section.client_crl, section.client_ca)
                if found.expired:
                    message = "has expired; it still counts, but its authority may have revoked others since"
                    warnings.append(ConfigError(message, file=str(section.client_crl)))
        except ConfigError as error:
            errors.append(error)
        parent = Path(section.address.path).parent
        if section.address.scheme == "unix" and not os.path.isdir(parent):
            errors.append(ConfigError(f"there is no directory {parent} for the socket", key=f"listen {section.url}"))
    try:
        check_packages(config)
    except ConfigError as error:
        errors.append(error)
    if clash := find_clash(config):
        errors.append(clash)
    state_dir = config.gateway.state_dir
    try:
        existing = _nearest_existing(state_dir)
    except ConfigError as error:
        return [Finding("error", problem) for problem in [*errors, error]]
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        errors.append(ConfigError(f"{existing} is not a directory that can be written", key="gateway.state_dir"))
    else:
        try:
            check_state_folder(state_dir)
            tokens = TokenStore(state_dir)
            tokens.tokens()
            check_nodes_of_agents(config, tokens)
        except ConfigError as error:
            errors.append(error)
        try:
            BrowserStore(state_dir, TokenStore(state_dir)).check()
        except ConfigError as error:
            warnings.append(ConfigError(f"{error}; until then browsers can't sign in, and none is accepted"))
        try:
            _check_database(state_dir / DATABASE)
        except ConfigError as error:
            warnings.append(error)
        if holder := find_holder(state_dir):
            warnings.append(ConfigError(f"{holder}; another one can't be started", key="gateway.state_dir"))
    return [*(Finding("error", error) for error in errors), *(Finding("warning", error) for error in warnings)]


def _nearest_existing(state_dir: Path) -> Path:
    """The folder, or the nearest above it that there is. Raises `ConfigError` where it can't even be looked at."""
    for path in (state_dir, *state_dir.parents):
        try:
            path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            message = f"{state_dir} cannot be opened: {error.strerror}"
            raise ConfigError(message, key="gateway.state_dir") from None
        return path
    raise AssertionError("there is always a root")


def _check_database(path: Path) -> None:
    """Raise `ConfigError` for what can be seen without having SQLite open the file: a gateway may be using it."""
    try:
        with path.open("rb+") as file:
            beginning = file.read(len(_SQLITE))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{error.strerror}; sessions will not outlive a restart", file=str(path)) from error
    if beginning not in (b"", _SQLITE):
        raise ConfigError("is damaged; `serve` will put it aside and begin a new one", file=str(path))


def _check_certificate(section: ListenSection, table: Mapping[str, Entry]) -> Iterator[Finding]:
    files = {
        "cert": section.cert,
        "key": section.key,
        "client_ca": section.client_ca,
        "client_crl": section.client_crl,
    }
    for option, path in files.items():
        if path is None:
            continue
        if missing := missing_credential(path):
            # No fault of the file: it may be checked in a user's shell, where systemd hands over nothing.
            yield Finding("warning", table[option].error(missing))
            continue
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read()
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror}"
            yield Finding("error", table[option].error(problem))
        else:
            # A certificate in its place is another mistake, which is told when it is loaded.
            swapped = b"BEGIN CERTIFICATE-----" in content and b"PRIVATE KEY-----" not in content
            if option == "key" and mode & stat.S_IRWXO and not swapped:
                problem = f"every user of this machine may open it (mode {mode:04o}): chmod o= {path}"
                yield Finding("warning", table[option].error(problem))


def _check_agent(agent: AgentSection, table: Mapping[str, Entry]) -> Iterator[Finding]:
    if agent.cwd is not None and (missing := _missing_folder(agent.cwd)):
        yield Finding("warning", table["cwd"].error(f"{missing}: the agent can't start"))
    if agent.env_file is not None and (missing := missing_credential(agent.env_file)):
        yield Finding("warning", table["env_file"].error(missing))
        agent = replace(agent, env_file=None)
    if agent.command is None:
        yield from _check_token(agent.token_file, table, any_form=True)
        return
    try:
        environment = agent_environment(agent, os.environ)
    except ConfigError as error:
        yield Finding("error", error)
        return
    advice = advise(agent.command)
    if advice is not None:
        yield Finding("warning", table["command"].error(advice))
    scope = needed_scope(agent.command)
    if scope not in (None, agent.scope):
        words = f'a session of this agent ends the work of the others in its process: set scope = "{scope}"'
        yield Finding("warning", table["scope" if "scope" in table else "command"].error(words))
    for name, value in agent.env.items():
        if (variable := _VARIABLE.fullmatch(value)) is not None:
            words = f'is passed as it is: pass_env = ["{variable[1]}"] passes the gateway\'s own {variable[1]}'
            yield Finding("warning", table["env"].child(name, value).error(words))
    # A folder that is missing was told already.
    mistake = explain_words(agent.command, agent.cwd if agent.cwd is not None and os.path.isdir(agent.cwd) else None)
    if mistake is not None:
        yield Finding("warning", table["command"].error(mistake))
    else:
        yield from _check_program(agent.command[0], agent.cwd or Path.cwd(), environment, table["command"])


def _missing_folder(path: Path) -> str | None:
    """Return what is wrong with a path that is to be a folder; None if it is one."""
    if os.path.isdir(path):
        return None
    return f"{path} is not a folder" if os.path.lexists(path) else f"there is no folder {path}"


def _check_fence(name: str, config: Config, table: Mapping[str, Entry]) -> Iterator[Finding]:
    """Report a fence that this machine does not have, and one with places that no fenced agent may use."""
    agent = config.agents[name]
    options = fence_options(agent, config, SessionReach(default_identity(config.gateway.state_dir)), None)
    if options is None:
        return
    if choose(options.value, bubblewrap=bubblewrap.find() is not None, landlock=landlock.abi() > 0) is None:
        yield Finding("error", table["fence"].error(remedy(options.value)))
    try:
        check_fence(name, options, agent.env.get("HOME", options.user_home))
    except AgentError as error:
        yield Finding("error", table["fence"].error(str(error)))


def _check_token(
    file: Path | None, table: Mapping[str, Entry], *, any_form: bool, option: str = "token_file"
) -> Iterator[Finding]:
    """Check a file with a token, of a gateway unless it may have `any_form`."""
    if file is None:
        return
    if missing := missing_credential(file):
        yield Finding("warning", table[option].error(missing))
        return
    try:
        read_token_file(file, any_form=any_form)
    except ConfigError as error:
        yield Finding("error", table[option].error(error.message))


def _check_hooks(hooks: HooksSection, root: Mapping[str, Entry]) -> Iterator[Finding]:
    environment = inherited_environment(os.environ)
    for option, command in (("on_permission_waiting", hooks.on_permission_waiting), ("on_turn_end", hooks.on_turn_end)):
        if command is not None:
            entry = root["hooks"].table()[option]
            if mistake := explain_words(command, None):
                yield Finding("warning", entry.error(mistake))
            else:
                yield from _check_program(command[0], Path.cwd(), environment, entry)


def _check_program(program: str, cwd: Path, environment: Mapping[str, str], entry: Entry) -> Iterator[Finding]:
    # With a slash in it a program is no longer searched for, and a relative one is meant from where it is started.
    named = str(cwd / program) if "/" in program else program
    search_path = os.pathsep.join(os.get_exec_path(environment))
    if shutil.which(named, path=search_path) is not None:
        return
    if "/" in program:
        yield Finding("warning", entry.error(explain_path(named)))
        return
    section = ".".join(str(key) for key in entry.keys[:-1])
    why = explain_missing(program, search_path, environment.get("HOME"), section)
    yield Finding("warning", entry.error(f'no program "{program}" is found {why}'))
