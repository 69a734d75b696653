"""Checks of a configuration that need its files: certificates, tokens, the state directory."""

import os
from pathlib import Path

from acp_gateway.config.load import Config, Finding, ListenSection
from acp_gateway.config.schema import missing_credential
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.gateway import DATABASE
from acp_gateway.gateway.storage.state_folder import check_state_folder, find_holder
from acp_gateway.security.revocations import read_revocations
from acp_gateway.security.tls import server_context
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.metrics import check_library
from acp_gateway.server.sockets import find_overlap

_SQLITE = b"SQLite format 3\x00"
"""First bytes of every SQLite file."""


def check_metrics(config: Config) -> None:
    """Raise `ConfigError` if metrics are to be served, and their library is not installed."""
    if any("metrics" in section.services for section in config.listen):
        check_library()


def check_credentials(config: Config) -> None:
    """Raise `ConfigError` if a file is a systemd credential that was not handed over."""
    named = [(f"listen {section.url}", path) for section in config.listen for path in _files(section)]
    named += [(f"agents.{name}.env_file", agent.env_file) for name, agent in config.agents.items() if agent.env_file]
    for key, path in named:
        if missing := missing_credential(path):
            raise ConfigError(missing, key=key)


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
        check_metrics(config)
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
        errors.append(ConfigError(f"{existing} is no directory that can be written", key="gateway.state_dir"))
    else:
        try:
            check_state_folder(state_dir)
            TokenStore(state_dir).tokens()
        except ConfigError as error:
            errors.append(error)
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
