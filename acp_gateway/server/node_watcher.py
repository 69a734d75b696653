"""Watches the nodes of the configuration: keeps a control connection to each, and reports to the directory.

Each node has a task of its own, so a slow one delays no other. Imported only where there are nodes.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from acp_gateway.client.control_feed import ControlFeed, FeedHandler, Overview
from acp_gateway.client.dialing import Destination
from acp_gateway.client.reconnect_policy import BACKOFF_MAX, backoff
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import GatewayError
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import read_token_file

log = logging.getLogger(__name__)

LIST_SIZE: Final = 4 * 1024 * 1024
"""Maximum bytes of a message of a node to its watcher: the list of some thousand sessions."""

INTERVAL: Final = 5.0
"""Seconds between two lists of a node: its end is noticed within, and costs its rate limit 100 messages each time."""

ANSWER_TIMEOUT: Final = 2.0
"""Seconds to wait for the present lists of nodes; then the last ones are used. Users wait for all nodes together."""


def destination_of(node: NodeSection, own_id: str) -> Destination:
    """Return where the control connection of a node leads, with the token of this moment. Raises `ConfigError`."""
    return Destination(
        address=node.url,
        agent=None,
        token=read_token_file(node.token_file),
        pin=None if node.pin is None else parse_pin(node.pin),
        ca=node.ca,
        max_message_size=LIST_SIZE,
        control=True,
        passed=(own_id,),
    )


class NodeWatcher:
    """Watches all nodes of one gateway.

    Args:
        nodes: their sections, by name.
        directory: is told what was found.
        own_id: the id of this gateway in the paths of connections.
        clock: returns the time, in seconds since 1970.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeSection],
        directory: NodeDirectory,
        own_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nodes = nodes
        self._directory = directory
        self._own_id = own_id
        self._clock = clock
        self._feeds: dict[str, ControlFeed] = {}
        # By node: set with the next report, and replaced.
        self._reports = {name: trio.Event() for name in nodes}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as nursery:
            for name in self._nodes:
                nursery.start_soon(self._watch, name)

    async def _watch(self, name: str) -> None:
        handler = FeedHandler(partial(self._receive, name), partial(self._lose, name))
        failures = 0
        while True:
            # A feed that has listed sessions connects again by itself, except after a refusal.
            feed = self._feeds[name] = ControlFeed(
                partial(destination_of, self._nodes[name], self._own_id), handler, interval=INTERVAL
            )
            try:
                await feed.run()
            except GatewayError as error:
                failures = 0 if self._directory.nodes[name].up else failures + 1
                self._lose(name, error)
            await trio.sleep(backoff(failures, BACKOFF_MAX, random.random()))  # noqa: S311

    async def refresh(self) -> None:
        """Have the nodes that answer list their sessions, and wait until they have, for `ANSWER_TIMEOUT` at most."""
        with trio.move_on_after(ANSWER_TIMEOUT):
            async with trio.open_nursery() as nursery:
                for name, node in self._directory.nodes.items():
                    if node.up:
                        self._feeds[name].refresh()
                        nursery.start_soon(self._reports[name].wait)

    def _receive(self, name: str, overview: Overview) -> None:
        rights = overview.rights
        if self._directory.set_up(name, rights.agents, rights.version, self._clock(), rights.folders):
            agents = ", ".join(self._directory.nodes[name].agents or ()) or "none"
            log.info("node %s is there; its agents: %s", name, agents)
        self._directory.set_sessions(name, overview.listing.sessions, overview.listing.more)
        self._report(name)

    def _report(self, name: str) -> None:
        reported, self._reports[name] = self._reports[name], trio.Event()
        reported.set()

    def _lose(self, name: str, error: GatewayError) -> None:
        if self._directory.set_away(name, str(error), self._clock()):
            log.warning("node %s is away: %s", name, self._directory.nodes[name].why)
        self._report(name)
