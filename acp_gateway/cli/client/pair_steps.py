"""The steps around a pairing: choose the machine, install there, try the agent, and show what editors need.

What is installed there is a wheel of the program that runs. The program is not in a public index, and another machine
must not fetch whatever has its name there. Only its dependencies come from the index.
"""

import base64
import hashlib
import io
import os
import re
import shlex
import sys
import zipfile
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from acp_gateway import DISTRIBUTION, __version__
from acp_gateway.cli.common import print_check, print_warning, waiting_for
from acp_gateway.cli.files import find_files, share_root
from acp_gateway.cli.plain_options import MAX_MESSAGE_SIZE
from acp_gateway.errors import ConfigError, GatewayError, Unreachable, UsageError
from acp_gateway.printable import printable

_WHEEL: Final = "Wheel-Version: 1.0\nGenerator: acp-gateway\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
PACKAGES: Final = ("acp_conformance", "acp_gateway")
_LEFT_OUT: Final = ("__pycache__", "share")


def make_own_wheel() -> tuple[str, bytes]:
    """Return the file name and the content of a wheel of this program. Raises `ConfigError` if it is not installed."""
    try:
        known = metadata.distribution(DISTRIBUTION)
        version, described, entry_points = (
            known.version,
            known.read_text("METADATA"),
            known.read_text("entry_points.txt"),
        )
    except metadata.PackageNotFoundError:
        version, described, entry_points = "", None, None
    if described is None or entry_points is None:
        raise ConfigError("this program is not installed as a package, so it can't be installed elsewhere from here")
    name = f"{DISTRIBUTION.replace('-', '_')}-{version}"
    files = _package_files()
    files |= {
        f"{name}.dist-info/METADATA": described.encode(),
        f"{name}.dist-info/WHEEL": _WHEEL.encode(),
        f"{name}.dist-info/entry_points.txt": entry_points.encode(),
    }
    record = "".join(f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in files.items())
    files[f"{name}.dist-info/RECORD"] = f"{record}{name}.dist-info/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            info = zipfile.ZipInfo(path, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return f"{name}-py3-none-any.whl", packed.getvalue()


def _package_files() -> dict[str, bytes]:
    """Return the files of the packages by their names in the wheel, those of `share` wherever they are now."""
    place = Path(__file__).parents[3]
    found = {
        path.relative_to(place).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in sorted((place / package).rglob("*"))
        if path.is_file() and path.suffix != ".pyc" and not set(_LEFT_OUT) & set(path.relative_to(place).parts)
    }
    root = share_root()
    return found | {f"acp_gateway/share/{name}": (root / name).read_bytes() for name in find_files(root)}


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if TYPE_CHECKING:
    from acp_gateway.client.ssh import SshTarget
    from acp_gateway.diagnosis.checks import Line

SHOWN_HOSTS: Final = 30
"""Maximum hosts of the ssh configuration that are offered."""

SHOWN_EDITORS: Final = 2
"""Maximum editors whose block is printed; the others are named."""

INSTALL_TIMEOUT: Final = 900.0
"""Seconds for an installation on another machine, which fetches the dependencies there."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

AGENT_TIMEOUT: Final = 60.0
"""Seconds for the start of the agent."""


def choose_machine() -> str:
    """Have the user choose one of the hosts of the ssh configuration, in a terminal.

    Raises `UsageError` without a terminal, and if there are none.
    """
    from acp_gateway.cli.client.ssh_config import own_ssh_hosts

    hosts = own_ssh_hosts()[:SHOWN_HOSTS]
    if not hosts:
        raise UsageError("name the gateway's machine: acp-gateway pair [USER@]HOST (there is none in ~/.ssh/config)")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"name the gateway's machine; ~/.ssh/config has {', '.join(hosts)}")
    for number, host in enumerate(hosts, 1):
        click.echo(f"{number:3}  {host}", err=True)
    chosen = click.prompt("The gateway's machine, by number, or [USER@]HOST", err=True)
    return hosts[int(chosen) - 1] if chosen.isdecimal() and 0 < int(chosen) <= len(hosts) else str(chosen)


def parse_local_map(text: str) -> tuple[str, str]:
    """Return the two folders of `LOCAL=REMOTE`, in which LOCAL may begin with `~`. Raises `UsageError`.

    A folder that is not here is told: it may be a typo, or be made later. If the other one is here, they are reversed.
    """
    from acp_gateway.config.directories import expand_user
    from acp_gateway.protocol.path_maps import parse_map

    local, equals, remote = text.partition("=")
    pair = parse_map(f"{expand_user(local)}{equals}{remote}" if local.startswith("~") else text)
    if not os.path.isdir(pair[0]):
        if os.path.isdir(pair[1]):
            local, remote = (printable(path, len(path)) for path in pair)
            turned = shlex.quote(f"{remote}={local}")
            raise UsageError(
                f"there is no folder {local} here, but there is {remote}: LOCAL=REMOTE has the folder of this machine "
                f"first, so give --map {turned}"
            )
        click.echo(f"note: there is no folder {printable(pair[0], len(pair[0]))} here", err=True)
    return pair


def check_name(name: str) -> str:
    """Return a name for an entry of hosts.toml. Raises `UsageError` for a malformed one, or one like an option."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            "a name in hosts.toml is 1 to 64 letters, digits, dots, dashes and underscores, and begins with one of the "
            "first two; give --name"
        )
    return name


def install_there(target: "SshTarget") -> None:
    """Install this version on the machine of `target`, unless it is there. Raises `GatewayError`."""
    import trio

    from acp_gateway.cli.client.pair_steps import make_own_wheel
    from acp_gateway.client import pairing

    name, wheel = make_own_wheel()
    click.echo(f"Installing acp-gateway {__version__} at {target.login} …", err=True)

    async def run() -> pairing.Installed:
        with trio.move_on_after(INSTALL_TIMEOUT):
            return await pairing.install(target, name, wheel, __version__)
        raise Unreachable(f"{target}: the installation has not ended within {INSTALL_TIMEOUT:g} s")

    done = trio.run(run)
    click.echo("It is there already." if done.by is None else f"Installed by {printable(done.by)}.", err=True)


def try_agent(name: str, folder: str | None) -> "Line | None":
    """Try a host of hosts.toml up to the agent's first answer, and to a session in `folder` if that is given.

    Faults are printed with their remedy, and raise nothing: the machine is paired. The line of a folder that is refused
    is returned.
    """
    import trio

    from acp_gateway.client.destination import ConnectionOptions, find_destination, find_host
    from acp_gateway.diagnosis.ping import NetworkProbes, Ping, PingSettings
    from acp_gateway.protocol.path_maps import PathMaps

    lines: list[Line] = []
    try:
        destination = find_destination(name, ConnectionOptions(), MAX_MESSAGE_SIZE)
        host = find_host(name)
        until: Literal["agent", "session"] = "agent" if folder is None else "session"
        settings = PingSettings(folder or "/", PathMaps(host.maps if host else ()), AGENT_TIMEOUT, until)
        trio.run(partial(Ping(destination, settings, lines.append, NetworkProbes(), waiting_for).run))
    except GatewayError as error:
        print_warning(printable(str(error), size=1000))
    for line in lines:
        if line.name in ("agent", "session") or line.status != "ok":
            print_check(line, err=True)
    return next((line for line in lines if line.folder is not None), None)


def correct_maps(maps: "Mapping[str, str]", refused: "Line") -> dict[str, str]:
    """Return the maps of a command line with another folder for the first one, which was refused."""
    (local, remote), *others = maps.items()
    reversed_map = refused.folder == local != remote
    return dict([(remote, local) if reversed_map else (local, refused.folder or "FOLDER"), *others])


def next_step(name: str) -> str:
    """Return the command that follows for a host of hosts.toml: it sets up an editor of this machine, Zed if none."""
    from acp_gateway.cli.client.editor_files import installed_editors, own_machine, settings_file

    try:
        machine = own_machine()
        editors = installed_editors(machine)
    except ConfigError:
        return f"acp-gateway connect {name} --print-config zed"
    # Those whose settings are a program can only be printed.
    writable = [editor for editor in editors or ["zed"] if settings_file(editor, machine) is not None]
    option = f"--install {writable[0]}" if writable else f"--print-config {editors[0]}"
    return f"acp-gateway connect {name} {option}"


def show_editors(name: str) -> None:
    """Print what the editors of this machine need, for a host of hosts.toml."""
    from acp_gateway.cli.client.editor_files import TITLES, AgentCommand, installed_editors, own_machine, settings_file

    try:
        machine = own_machine()
    except ConfigError:
        return  # Without a home folder there are no settings.
    command = AgentCommand.to(name)
    for number, editor in enumerate(installed_editors(machine)):
        path = settings_file(editor, machine)
        if number >= SHOWN_EDITORS:
            click.echo(f"{TITLES[editor]}: acp-gateway connect {name} --print-config {editor}", err=True)
        elif path is None:
            click.echo(f"\nFor {TITLES[editor]}, paste this:\n{command.block(editor)}\n", err=True)
        else:
            text = (
                f"For {TITLES[editor]}, run `acp-gateway connect {name} --install {editor}`, or paste this into {path}"
            )
            click.echo(f"\n{text}:\n{command.block(editor)}\n", err=True)
