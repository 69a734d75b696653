"""The options of commands that stay connected to a gateway as clients of its sessions."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acp_gateway.cli.common import (
    check_finite,
    connect_timeout_option,
    connection_options,
    current_folder,
)
from acp_gateway.cli.plain_options import MAX_MESSAGE_SIZE
from acp_gateway.errors import ConfigError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.client.control import Listing
    from acp_gateway.client.destination import ConnectionOptions
    from acp_gateway.client.dialing import Destination
    from acp_gateway.client.shim import LinkState, Settings

_OPTIONS = (
    connection_options,
    connect_timeout_option(help="How long to try until the first connection."),
    click.option(
        "--max-message-size",
        type=click.IntRange(min=1),
        default=MAX_MESSAGE_SIZE,
        show_default=True,
        metavar="BYTES",
        help="The largest message from the gateway.",
    ),
    click.option(
        "--keepalive",
        type=click.FloatRange(min=20),
        default=30.0,
        callback=check_finite,
        show_default=True,
        metavar="SECONDS",
        help="Reconnect after this much silence. Both ends send something every 10 s.",
    ),
    click.option("--log-file", type=click.Path(path_type=Path), help="Write a log there."),
)


lines_option = click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=40,
    show_default=True,
    metavar="N",
    help="Lines of a diff, or of a tool's output, that are shown.",
)


def history_size_option(*, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:  # noqa: A002 - click's name.
    """Return the option `--history-size`, whose unit is the character."""
    return click.option(
        "--history-size",
        type=click.IntRange(min=0),
        default=16 * 1024 * 1024,
        show_default=True,
        metavar="CHARACTERS",
        help=help,
    )


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway as the command line names it."""

    target: str
    connection: "ConnectionOptions"
    connect_timeout: float
    max_message_size: int
    keepalive: float
    log_file: Path | None

    def destination(
        self, *, agent: str | None = None, session: str | None = None, observe: bool = False, control: bool = False
    ) -> "Destination":
        """Return the destination as `connect` finds it, and raise as `find_destination`."""
        from acp_gateway.client.destination import find_destination

        return find_destination(
            self.target,
            self.connection,
            self.max_message_size,
            agent=agent,
            session=session,
            observe=observe,
            control=control,
        )

    def settings(self, link_changed: "Callable[[LinkState], None]") -> "Settings":
        """Return the settings of a link."""
        from acp_gateway.cli.client.reached_hosts import own_reached_hosts
        from acp_gateway.client.shim import Settings
        from acp_gateway.client.uplink import ReconnectSettings
        from acp_gateway.protocol.path_maps import PathMaps

        reconnect = ReconnectSettings(
            self.connect_timeout, reached=own_reached_hosts().record, keepalive=self.keepalive
        )
        return Settings(PathMaps([]), self.max_message_size, reconnect, link_changed=link_changed)

    def list_sessions(self) -> "Listing":
        """Ask the gateway for its sessions. Raises `GatewayError`."""

        import trio

        from acp_gateway.client import control

        destination = self.destination(control=True)
        return trio.run(partial(control.list_sessions, destination, time_limit=self.connect_timeout))

    def start_log(self) -> None:
        """Write a log if one is wanted; without, nothing is logged, because it would stand amid the session."""
        import logging

        from acp_gateway.logs import log_to_file

        log_to_file(self.log_file, logging.INFO)


def folder_there(target: str, folder: str | None) -> str:
    """Return the folder at a gateway of one that this machine names, the current one by default, as the path maps of
    hosts.toml have it. Raises `ConfigError`."""
    from acp_gateway.client.destination import find_host
    from acp_gateway.protocol.path_maps import PathMaps

    host = find_host(target)
    # One that begins with a slash is the gateway's on Windows, too.
    is_whole = folder is not None and folder.startswith("/")
    here = folder if folder is not None and is_whole else os.path.normpath(current_folder() / (folder or ""))
    return PathMaps(host.maps if host else ()).remote_path(here)


def only_host() -> str:
    """Return the name of the only host of hosts.toml; without any, the socket of this machine's own gateway.

    Raises `ConfigError` if there are none or several.
    """
    from acp_gateway.config.hosts import hosts_path, load_hosts

    path = hosts_path()
    names = list(load_hosts(path))
    if not names:
        socket = _own_socket()
        if socket is not None:
            return f"unix://{socket}"
        raise ConfigError("there is no gateway in it yet: `acp-gateway pair [USER@]HOST` adds one", file=str(path))
    if len(names) > 1:
        raise ConfigError(f"there are several gateways: name one of {', '.join(names)}", file=str(path))
    return names[0]


def _own_socket() -> str | None:
    """Return the path of the unix socket of this machine's gateway; None if it has none."""
    from acp_gateway.client.ssh import find_socket
    from acp_gateway.config.load import load_config

    try:
        return find_socket(load_config(None))
    except ConfigError:
        return None


def gateway_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the argument HOST and the options of a `Gateway`, which the command gets as its first argument.

    Without HOST it is the only one of hosts.toml.
    """

    @wraps(function)
    def command(**given: Any) -> None:
        if given["target"] is None:
            given["target"] = only_host()
        gateway = Gateway(**{name: given.pop(name) for name in Gateway.__slots__})
        from acp_gateway.client.destination import UnknownHost

        try:
            function(gateway, **given)
        except UnknownHost as error:
            # The id of a session may look like an address, but hardly one does.
            if given.get("session", "") is not None or set(gateway.target) & set(".:["):
                raise
            # The only argument is not a host: with a single gateway, it is a session there.
            try:
                host = only_host()
            except ConfigError:
                name = click.get_current_context().info_name
                hint = f"`acp-gateway {name} HOST {printable(gateway.target)}`"
                raise ConfigError(f"{error}. A session stands behind its host: {hint}") from None
            function(replace(gateway, target=host), **given | {"session": gateway.target})

    decorated: Callable[..., None] = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return click.argument("target", metavar="[HOST]", required=False)(decorated)
