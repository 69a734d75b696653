"""Finds out the state of nodes: of those of the configuration as they are added, and of all when a client asks.

Between looks, a node is as the last attempt to reach it has shown, also one for a client. Nothing is followed.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

import trio

from acp_gateway.client.control import Listing, Rights, read_listing, read_rights
from acp_gateway.client.dialing import Destination
from acp_gateway.errors import GatewayError, TooOld, Unreachable
from acp_gateway.gateway.node_directory import Counts, NodeDirectory
from acp_gateway.made.machine import Machine, read_told
from acp_gateway.nodes.reaching import Reach, Reached

log = logging.getLogger(__name__)

PATIENCE: Final = 2.0
"""Seconds to wait for the present state of all nodes together: a person waits for them."""

LOOK_TIMEOUT: Final = 10.0
"""Seconds after which a node that is looked at counts as away."""

FRESH: Final = 5.0
"""Seconds for which a look is new enough for those who do not wait for one, such as a scrape of metrics."""


class Told(NamedTuple):
    """The results of a node's answers."""

    access: Any
    """The rights there."""
    sessions: Any
    """The list of its sessions."""
    machine: Any = None
    """The load of its machine; None if it does not tell."""


AskState = Callable[[str], Awaitable[tuple[Destination, Told]]]
"""Asks a node for this gateway itself. Raises `GatewayError`."""


class NodeLooks:
    """Looks at the nodes of one gateway.

    Args:
        directory: has the nodes, and is told what was found.
        ask: asks one of them.
        clock: returns the time, in seconds since 1970.
    """

    def __init__(self, directory: NodeDirectory, ask: AskState, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._ask = ask
        self._clock = clock
        # By name: the end of the look that is under way, and the time of the last one.
        self._ends: dict[str, trio.Event] = {}
        self._looked_at: dict[str, float] = {}
        # That of `run`, while that runs.
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Look at the nodes of the configuration, then when asked to, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            try:
                self.update()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def update(self) -> None:
        """Look at the nodes of the configuration that were not asked yet, at their present addresses."""
        self._look_at(name for name in self._directory.configured if not self._directory.nodes[name].asked)

    def look_at(self, name: str) -> None:
        """Look at a node now: something about it was not as expected."""
        if name in self._directory.nodes:
            self._look_at([name])

    def look_soon(self) -> None:
        """Look at all nodes that were not looked at for a while."""
        since = trio.current_time() - FRESH
        self._look_at(name for name in self._directory.nodes if self._looked_at.get(name, since) <= since)

    async def refresh(self) -> None:
        """Look at all nodes, and wait for the results, for `PATIENCE` at most. One that is up and does not answer by
        then is noted as silent."""
        ends = self._look_at(self._directory.nodes)
        with trio.move_on_after(PATIENCE):
            for end in ends.values():
                await end.wait()
        for name in ends.keys() & self._directory.nodes.keys():
            self._directory.nodes[name].silent = not ends[name].is_set()

    async def answers(self, name: str) -> bool:
        """Look at a node, and return whether it answers, within `LOOK_TIMEOUT`."""
        for end in self._look_at([name] if name in self._directory.nodes else []).values():
            await end.wait()
        node = self._directory.nodes.get(name)
        return node is not None and node.up

    def noting(self, reach: Reach) -> Reach:
        """Return a `Reach` that notes what it finds."""

        async def reach_and_note(name: str) -> Reached:
            try:
                reached = await reach(name)
            except GatewayError as error:
                self._note_away(name, error)
                raise
            node = self._directory.nodes.get(name)
            if node is not None and not node.up:
                self._look_at([name])
            return reached

        return reach_and_note

    def _look_at(self, names: Iterable[str]) -> dict[str, trio.Event]:
        """Begin to look at nodes, and return the end of each look. Before `run` there is none."""
        if self._nursery is None:
            return {}
        ends = {}
        for name in list(names):
            if name not in self._ends:
                self._ends[name] = trio.Event()
                self._looked_at[name] = trio.current_time()
                self._nursery.start_soon(self._look, name)
            ends[name] = self._ends[name]
        return ends

    async def _look(self, name: str) -> None:
        section = self._directory.sections.get(name)
        try:
            with trio.fail_after(LOOK_TIMEOUT):
                destination, told = await self._ask(name)
            listing, rights = read_listing(destination, told.sessions), read_rights(told.access)
            if section is not None and self._directory.sections.get(name) is section:
                if rights.claims < 1:
                    raise TooOld("it is too old: upgrade acp-gateway there")
                self._note(name, rights, listing, read_told(told.machine))
        except trio.TooSlowError:
            self._note_away(name, Unreachable(f"it did not answer within {LOOK_TIMEOUT:.0f} seconds"))
        except GatewayError as error:
            self._note_away(name, error)
        except Exception:
            # No client depends on a look, so a bug in here must not end the gateway.
            log.exception("node %s: a bug of the gateway", name)
            self._note_away(name, Unreachable("its answer is not understood here; the log here has the cause"))
        finally:
            self._ends.pop(name).set()
        if self._directory.sections.get(name, section) is not section:
            # What was found is of its former address.
            self._look_at([name])

    def _note(self, name: str, rights: Rights, listing: Listing, machine: Machine | None) -> None:
        directory = self._directory
        if directory.set_up(name, rights.agents, rights.version, self._clock(), rights.claims):
            log.info("node %s is there; its agents: %s", name, ", ".join(directory.nodes[name].agents or ()) or "none")
        counts = Counts(
            sum(it["live"] for it in listing.sessions),
            sum(bool(it["turn"]) for it in listing.sessions),
            sum(bool(it["waiting"]) for it in listing.sessions),
        )
        directory.set_load(name, listing.load, counts, machine)

    def _note_away(self, name: str, error: GatewayError) -> None:
        if name in self._directory.nodes and self._directory.set_away(name, str(error), self._clock(), error.reason):
            log.warning("node %s is away: %s", name, self._directory.nodes[name].why)
