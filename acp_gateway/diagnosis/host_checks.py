"""Checks the gateways of `hosts.toml` briefly, for `acp-gateway doctor`: one line for each, and its path maps."""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from acp_gateway.client.destination import ConnectionOptions, find_destination
from acp_gateway.config.hosts import Host, load_hosts
from acp_gateway.diagnosis.checks import Line, fault, ok, warning
from acp_gateway.diagnosis.ping import NetworkProbes, Ping, PingSettings
from acp_gateway.diagnosis.ping_checks import judge_settings
from acp_gateway.errors import ConfigError, GatewayError
from acp_gateway.protocol.path_maps import PathMaps

MAX_MESSAGE_SIZE: Final = 1024 * 1024
"""Maximum bytes of a response to the question for rights."""

Pinged = Callable[[Host], Awaitable[list[Line]]]


def read_hosts(path: Path) -> tuple[dict[str, Host], Line]:
    """Return the hosts in a file, and the line about the file."""
    try:
        hosts = load_hosts(path)
    except ConfigError as error:
        return {}, fault("hosts", str(error), "", ConfigError.exit_code)
    if not hosts:
        return {}, warning(
            "hosts",
            f"there is no gateway in {path}",
            "acp-gateway pair [USER@]HOST adds one; on the machine with the agents: acp-gateway up",
        )
    return hosts, ok("hosts", f"{path} has {', '.join(hosts)}")


async def ping_briefly(host: Host) -> list[Line]:
    """Ping a host up to the token, and return the lines. Raises nothing; cancelling closes the connection."""
    try:
        destination = find_destination(host.name, ConnectionOptions(), MAX_MESSAGE_SIZE)
    except GatewayError as error:
        return [judge_settings(error, host.name, 0)]
    lines: list[Line] = []
    settings = PingSettings("/", PathMaps(()), until="token")
    await Ping(destination, settings, lines.append, NetworkProbes()).run()
    return lines


async def check_hosts(hosts: Mapping[str, Host], report: Callable[[Line], None], ping: Pinged = ping_briefly) -> None:
    """Report a line for each host: its first fault, else its warnings, and what its token allows."""
    for host in hosts.values():
        lines = await ping(host)
        faults = [line for line in lines if line.status == "fault"]
        for line in faults or [line for line in lines if line.status == "warning"]:
            remedy = line.remedy if line.status == "warning" else f"{line.remedy}; acp-gateway ping {host.name}"
            report(Line("host", line.status, f"{host.name}: {line.text}", remedy.lstrip("; "), line.exit_code))
        if not faults:
            took = sum(line.seconds or 0.0 for line in lines)
            told = next((line.text for line in lines if line.name == "token"), f"{host.address} answers")
            report(ok("host", f"{host.name}: {told}", took))
        for line in check_maps(host):
            report(line)


def check_maps(host: Host, exists: Callable[[str], bool] = os.path.isdir) -> Iterator[Line]:
    """Yield a warning for each folder of this machine in the path maps that does not exist."""
    for local, _ in host.maps:
        if not exists(local):
            text = f"{host.name}: there is no folder {local} here, which a path map names"
            yield warning("maps", text, f"correct maps of [hosts.{host.name}]")
