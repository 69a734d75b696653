"""The nodes of a running gateway: those of its configuration, and those that it is told of.

One directory has them all, and one watcher follows it. Imported only where there are nodes.

A control connection to each is kept by a task of its own, so a slow one delays no other. Imported only where there are
nodes.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from acp_gateway.client.control_feed import ControlFeed, FeedHandler, Overview
from acp_gateway.client.dialing import Destination
from acp_gateway.client.uplink import BACKOFF_MAX, backoff
from acp_gateway.config.nodes import SEPARATOR, NodeSection
from acp_gateway.errors import GatewayError
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.gateway.sessions.node_sessions import NodeSessions
from acp_gateway.nodes.asking import NodeAsker, NodeQuestions
from acp_gateway.nodes.door import NodeAdmission
from acp_gateway.nodes.reaching import NodeReacher
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import read_token_file
from acp_gateway.transports.websocket.stream import PASSED

log = logging.getLogger(__name__)

LIST_SIZE: Final = 4 * 1024 * 1024
"""Maximum bytes of a message of a node to its watcher, which lists 3 MiB of sessions at most."""

INTERVAL: Final = 5.0
"""Seconds between two lists of a node: its end is noticed within, and costs its rate limit 200 messages each time."""

IDLE: Final = 600.0
"""Seconds for which discovered nodes are watched after a client has used nodes: a person comes back within."""

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
        origin=((PASSED, own_id),),
        opener=node.opener,
    )


class _Watch:
    """The task that watches one node, as its section is."""

    def __init__(self, section: NodeSection) -> None:
        self.section = section
        self.scope = trio.CancelScope()
        self.feed: ControlFeed | None = None
        """None before the first attempt."""
        self.last: Overview | None = None
        """The last that it has told."""
        self.told = trio.Event()
        """Set once the node has answered or an attempt has failed, and at the end."""


class NodeWatcher:
    """Watches nodes of one gateway: those of its configuration, and the discovered ones while clients use nodes.

    So a node that is not used as a door keeps no connection to the others of its cluster.

    Args:
        directory: has the nodes, and is told what was found.
        own_id: the id of this gateway in the paths of connections.
        clock: returns the time, in seconds since 1970.
    """

    def __init__(self, directory: NodeDirectory, own_id: str, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._own_id = own_id
        self._clock = clock
        self.reported: Callable[[], None] = lambda: None
        """Called after each report of a node, and when there are other nodes."""
        self.is_used: Callable[[], bool] = lambda: False
        """Returns whether a client uses nodes now."""
        self._watches: dict[str, _Watch] = {}
        # True while discovered nodes are watched, and the time of their last use.
        self._watches_all = False
        self._used_at = -math.inf
        self._needed = trio.Event()
        # That of `run`, while that runs.
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as self._nursery:
            try:
                self.update()
                while True:
                    await self._needed.wait()
                    await self._rest()
            finally:
                self._nursery = None

    def need(self) -> None:
        """Watch all nodes from now on, for `IDLE` seconds after the last use."""
        self._used_at = trio.current_time()
        if not self._watches_all:
            self._watches_all = True
            self._needed.set()
            self.update()

    async def _rest(self) -> None:
        """Wait until nodes were not used for `IDLE` seconds, and end to watch the discovered ones."""
        while True:
            await trio.sleep_until(self._used_at + IDLE)
            if self.is_used():
                self._used_at = trio.current_time()
            elif trio.current_time() >= self._used_at + IDLE:
                break
        self._watches_all, self._needed = False, trio.Event()
        self.update()

    def update(self) -> None:
        """Begin to watch nodes that were added to the directory, end it for those that were removed, and connect again
        to those whose section has changed. Before `run`, nothing is watched."""
        if self._nursery is None:
            return
        sections = self._directory.sections if self._watches_all else self._directory.configured
        for name in self._directory.nodes:
            self._directory.set_watched(name, self._clock(), watched=name in sections)
        for name, watch in [*self._watches.items()]:
            if sections.get(name) != watch.section:
                del self._watches[name]
                watch.scope.cancel()
        for name, section in sections.items():
            if name not in self._watches:
                watch = self._watches[name] = _Watch(section)
                self._nursery.start_soon(self._watch, name, watch)
        self.reported()

    async def _watch(self, name: str, watch: _Watch) -> None:
        handler = FeedHandler(partial(self._receive, name, watch), partial(self._lose, name, watch))
        failures = 0
        with ExitStack() as stack:
            stack.callback(watch.told.set)
            stack.enter_context(watch.scope)
            while True:
                # A feed that has listed sessions connects again by itself, except after a refusal.
                watch.feed = ControlFeed(
                    partial(destination_of, watch.section, self._own_id),
                    handler,
                    interval=INTERVAL,
                    limit=lambda: self._directory.max_sessions,
                )
                try:
                    await watch.feed.run()
                except GatewayError as error:
                    node = self._directory.nodes.get(name)
                    failures = 0 if node is not None and node.up else failures + 1
                    self._lose(name, watch, error)
                await trio.sleep(backoff(failures, BACKOFF_MAX, random.random()))  # noqa: S311

    def _is_current(self, name: str, watch: _Watch) -> bool:
        """Return whether the node is watched by this task: one that was cancelled may still report once."""
        return self._watches.get(name) is watch

    async def refresh(self) -> None:
        """Have the nodes list their sessions, and wait until they have, for `ANSWER_TIMEOUT` at most.

        Nodes that are known to be away are not waited for. One that has not answered by then is noted as silent.
        """
        self.need()
        asked: dict[str, trio.Event] = {}
        with trio.move_on_after(ANSWER_TIMEOUT):
            async with trio.open_nursery() as nursery:
                for name, watch in self._watches.items():
                    if not watch.told.is_set():
                        nursery.start_soon(watch.told.wait)
                    elif self._directory.nodes[name].up and watch.feed is not None:
                        asked[name] = watch.feed.refresh()
                        nursery.start_soon(asked[name].wait)
        for name in asked.keys() & self._directory.nodes.keys():
            self._directory.nodes[name].silent = not asked[name].is_set()

    def _receive(self, name: str, watch: _Watch, overview: Overview) -> None:
        if not self._is_current(name, watch):
            return
        rights, listing = overview.rights, overview.listing
        if self._directory.set_up(name, rights.agents, rights.version, self._clock(), rights.folders):
            agents = ", ".join(self._directory.nodes[name].agents or ()) or "none"
            log.info("node %s is there; its agents: %s", name, agents)
            watch.last = None
        self._directory.set_load(name, listing.load)
        last, watch.last = watch.last, overview
        watch.told.set()
        if last is None or not overview.is_as(last):
            self._directory.set_rights(name, rights.identity, rights.may_speak_for)
            self._directory.set_sessions(name, listing.sessions, listing.more, listing.more_of)
            self.reported()

    def _lose(self, name: str, watch: _Watch, error: GatewayError) -> None:
        if not self._is_current(name, watch):
            return
        if self._directory.set_away(name, str(error), self._clock(), error.reason):
            log.warning("node %s is away: %s", name, self._directory.nodes[name].why)
        watch.told.set()
        self.reported()


class NodeSet:
    """The nodes of one gateway. Each change is in effect at once, for lookups and for the watcher.

    Clients that use an agent of a node that is removed keep it until their connections end; no others get it.

    Args:
        directory: the state of the nodes.
        watcher: follows the directory.
        clock: returns the time, in seconds since 1970.
    """

    def __init__(self, directory: NodeDirectory, watcher: NodeWatcher, clock: Callable[[], float]) -> None:
        self.directory = directory
        self.watcher = watcher
        self._clock = clock

    def configure(self, sections: Mapping[str, NodeSection]) -> None:
        """Use these sections of the configuration instead of those before."""
        self.directory.configure(sections, self._clock())
        self.watcher.update()

    def add(self, name: str, section: NodeSection) -> None:
        """Add a node that was discovered, or use another section for it. One of the configuration wins over it."""
        self.directory.add(name, section, self._clock())
        self.watcher.update()

    def remove(self, name: str) -> None:
        """Remove a node that was discovered; see `NodeDirectory.remove`."""
        self.directory.remove(name)
        self.watcher.update()


def open_nodes(gateway: Gateway, own_id: str, clock: Callable[[], float] = time.time) -> NodeSet:
    """Give a running gateway the nodes of its configuration, and watch them until it stops."""
    directory = NodeDirectory(gateway.config.nodes, clock(), gateway.config.limits.max_node_sessions)
    watcher = NodeWatcher(directory, own_id, clock)
    gateway.reconfigure(replace(gateway.config, nodes=directory.sections), ())
    extensions = gateway.extensions
    extensions.directory = directory
    sessions = NodeSessions(directory, gateway.registry, watcher.refresh)
    watcher.reported, sessions.need = sessions.note_report, watcher.need
    watcher.is_used = lambda: sessions.is_listened_to or any(SEPARATOR in hub.name for hub in gateway.hubs)
    extensions.node_sessions = sessions
    reach = NodeReacher(lambda: directory.sections).reach
    admission = NodeAdmission(gateway, reach)
    extensions.questions = NodeQuestions(gateway, admission, NodeAsker(own_id, admission, reach).ask)
    extensions.door, extensions.led_to = admission, admission.led_to
    gateway.start_task(watcher.run)
    return NodeSet(directory, watcher, clock)
