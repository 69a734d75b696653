"""The command `paths`: the files, folders and sockets that the program uses on this machine."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from acp_gateway.cli.common import config_option, json_option, plain_option, print_json, print_table
from acp_gateway.errors import ConfigError

EPILOG = """\b
Examples:
  acp-gateway paths
  acp-gateway paths --json | jq -r '.[] | select(.name == "audit log").path'
"""

_HEADS: Final = ("NAME", "EXISTS", "PATH")


@click.command(epilog=EPILOG, short_help="List the files, folders and sockets of the program.")
@config_option
@plain_option
@json_option
def paths(config: Path | None, *, as_json: bool) -> None:
    """List the files, folders and sockets that the program uses on this machine, also those that are not there yet.

    Without a gateway's configuration, those of the client are listed. The configuration's certificates, environment
    files and the like are named in it.
    """
    rows = [(name, path, os.path.lexists(path)) for name, path in _find(config)]
    if as_json:
        shown = [{"name": name, "path": str(path), "exists": exists} for name, path, exists in rows]
        print_json(shown)
    else:
        print_table(_HEADS, [(name, "yes" if exists else "no", str(path)) for name, path, exists in rows])


def _find(config: Path | None) -> Iterator[tuple[str, Path]]:
    from acp_gateway.cli.files import share_root
    from acp_gateway.config.directories import state_home
    from acp_gateway.config.hosts import hosts_path
    from acp_gateway.config.load import default_config_path

    try:
        file: Path | None = config or default_config_path()
    except ConfigError:
        file = None
    if file is not None:
        yield "configuration", file.absolute()
        yield from _of_gateway(file)
    for name, find in (
        ("hosts", hosts_path),
        ("reached gateways", lambda: state_home() / "reached"),
        ("units, examples, documents", share_root),
    ):
        yield from _if_known(name, find)


def _of_gateway(file: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of the gateway with this configuration. Raises `ConfigError`."""
    from acp_gateway.config.load import load_config
    from acp_gateway.gateway.agent.installed import FOLDER
    from acp_gateway.gateway.events.audit import FILE_NAME
    from acp_gateway.gateway.gateway import DATABASE
    from acp_gateway.gateway.storage.state_folder import CONTROL_SOCKET

    settings = load_config(file)
    state = settings.gateway.state_dir
    yield "state", state
    for name, inside in (
        ("tokens", "tokens.json"),
        ("browsers", "browsers.json"),
        ("invitations", "invitations.json"),
        ("sessions", DATABASE),
        ("audit log", FILE_NAME),
        ("agents of the registry", FOLDER),
        ("control socket", CONTROL_SOCKET),
    ):
        yield name, state / inside
    if settings.gateway.record_dir is not None:
        yield "recordings", settings.gateway.record_dir
    for section in settings.listen:
        if section.address.scheme == "unix":
            yield "listening socket", Path(section.address.path)
    yield from _of_service()


def _of_service() -> Iterator[tuple[str, Path]]:
    """Yield the files of the user's own service, as `service install` writes them. The log of systemd is not a file."""
    from acp_gateway.cli.service.managers import Launchd, Systemd

    try:
        home = Path.home()
    except RuntimeError:
        return
    if sys.platform == "darwin":
        manager = Launchd(home, os.getuid())
        yield "service", manager.plist
        yield "log", manager.log
    else:
        yield "service", Systemd(home / ".config/systemd/user").unit


def _if_known(name: str, find: Callable[[], Path]) -> Iterator[tuple[str, Path]]:
    """Yield a path, unless it can't be known, such as one below the home folder of a user without any."""
    try:
        yield name, find()
    except ConfigError:
        pass
