"""Follows the sessions of a gateway over a control connection, which is replaced when it is lost.

Of a node that is away the gateway tells nothing; its sessions stay as they were told last.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import trio

from acp_gateway.client.control import Listing, SessionKey, exchange, is_changes, key_of, read_listing
from acp_gateway.client.dialing import Destination, dial, explain_silence
from acp_gateway.client.reconnecting.attempts import ATTEMPT_TIMEOUT
from acp_gateway.client.uplink import BACKOFF_MAX, REFUSALS, backoff
from acp_gateway.errors import GatewayError, ProtocolError, Unreachable
from acp_gateway.protocol.methods import SESSIONS
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.websocket.stream import Timing

INTERVAL: Final = 5.0
"""Default seconds between two lists. Each counts as 100 messages in the gateway's rate limit, which allows
500 a second to an identity by default."""


class Rights(NamedTuple):
    """Rights of a credential."""

    role: str = ""
    """`controller` or `observer`; empty if the gateway does not tell."""
    agents: tuple[str, ...] = ()
    """Agents that it may use; empty if the gateway does not tell, or for a guest."""
    default_agent: str = ""
    folders: tuple[str, ...] = ()
    """Directories at the gateway in which sessions may work; empty if the gateway does not tell, or for a guest."""
    version: str = ""
    """Version of the gateway; empty if it does not tell."""
    claims: int = 0
    """The form of claims that it understands; 0 if it does not tell."""


class Overview(NamedTuple):
    """The state of a gateway, as far as a client sees it."""

    listing: Listing
    rights: Rights


@dataclass(frozen=True)
class FeedHandler:
    """The user of a feed."""

    receive: Callable[[Overview], None]
    """Called with each list."""
    lost: Callable[[GatewayError], None]
    """Called when the connection was lost, or an attempt to connect has failed."""


class ControlFeed:
    """Lists the sessions again and again.

    Args:
        destination: called before each attempt to connect.
        handler: receives the lists.
        interval: seconds between two lists.
        connect: opens a connection.
    """

    def __init__(
        self,
        destination: Callable[[], Destination],
        handler: FeedHandler,
        *,
        interval: float = INTERVAL,
        connect: Callable[[Destination, Timing], Any] = dial,
    ) -> None:
        self._destination = destination
        self._handler = handler
        self._interval = interval
        self._connect = connect
        self._wanted = trio.Event()
        # Reads until the next list is due.
        self._reading = trio.CancelScope()
        # Set with the list that is under way, and with the one after it.
        self._listed, self._listed_next = trio.Event(), trio.Event()
        self._succeeded = False
        # The sessions that were listed over this connection, as a dictionary and as a list.
        self._rows: dict[SessionKey, dict[str, Any]] = {}
        self._listing: Listing | None = None
        # The sessions of each node as of its last answer.
        self._of_nodes: dict[str, list[dict[str, Any]]] = {}
        # Bytes of changes since the size of all was known to be small enough.
        self._grown = 0

    def refresh(self) -> trio.Event:
        """Ask for the next list, or try to connect, now.

        Returns an event that is set with the first list that was asked for later than this, or with the loss of the
        connection.
        """
        self._wanted.set()
        self._reading.cancel()
        return self._listed_next

    async def run(self) -> None:
        """Follow the sessions until cancelled.

        Raises `GatewayError` if the first attempt fails, and later if the gateway refuses.
        """
        try:
            await self._run()
        finally:
            self._release()

    async def _run(self) -> None:
        failures = 0
        while True:
            listed = False
            try:
                with trio.move_on_after(ATTEMPT_TIMEOUT) as attempt:
                    target = self._destination()
                    stream: MaintainedStream = await self._connect(target, Timing())
                if attempt.cancelled_caught:
                    raise Unreachable(explain_silence(str(target.address)))
                listed = await self._follow(stream, target)
                error: GatewayError = Unreachable(f"{target.address}: the connection was lost")
            except GatewayError as failure:
                error = failure
            if not self._succeeded or isinstance(error, REFUSALS):
                raise error
            self._handler.lost(error)
            self._release()
            failures = 0 if listed else failures + 1
            await self._pause(backoff(failures, BACKOFF_MAX, random.random()))  # noqa: S311

    async def _follow(self, stream: MaintainedStream, destination: Destination) -> bool:
        """List sessions until the connection is lost; return True if a list has come. Raises `GatewayError`."""
        listed = False
        failure: GatewayError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            try:
                rights, self._listing = Rights(), None
                while True:
                    self._listed, self._listed_next = self._listed_next, trio.Event()
                    listing, access = await self._list(stream, destination)
                    rights = read_rights(access, rights)
                    self._handler.receive(Overview(self._with_former(listing), rights))
                    listed = self._succeeded = True
                    self._listed.set()
                    await self._read_until_next(stream)
            except (trio.EndOfChannel, trio.BrokenResourceError):
                pass  # Lost.
            except GatewayError as error:
                failure = error
            finally:
                await stream.aclose()
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return listed

    async def _list(self, stream: MaintainedStream, destination: Destination) -> tuple[Listing, Any]:
        """Return the present list, and the rights unless they are those of before.

        `sessions` is the list of before if nothing has changed in it. Raises as `exchange`.
        """
        result = await _ask(stream, destination)
        if self._listing is not None and is_changes(result):
            for removed in result["removed"]:
                self._rows.pop(tuple(removed), None)
            self._rows |= {key_of(session): session for session in result["changed"]}
            self._bound(destination, result["changed"])
            is_same = not result["removed"] and not result["changed"]
            sessions = self._listing.sessions if is_same else [*self._rows.values()]
            listing = replace(read_listing(destination, {**result, "sessions": []}), sessions=sessions)
        else:
            listing = read_listing(destination, result)
            self._rows, self._grown = {key_of(session): session for session in listing.sessions}, 0
        self._listing = listing
        return listing, result.get("access")

    def _with_former(self, listing: Listing) -> Listing:
        """Return a list with the former sessions of the nodes that did not answer."""
        former = {name: rows for name, rows in self._of_nodes.items() if name in listing.missing}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        away = {
            name: [row if "unreachableSince" in row else row | {"unreachableSince": now} for row in rows]
            for name, rows in former.items()
        }
        kept = [row for rows in away.values() for row in rows]
        self._of_nodes = away
        for session in listing.sessions:
            machine, _, agent = session["agent"].rpartition("/")
            if agent and machine:
                self._of_nodes.setdefault(machine, []).append(session)
        return replace(listing, sessions=[*kept, *listing.sessions]) if kept else listing

    def _bound(self, destination: Destination, changed: Sequence[object]) -> None:
        """Raise `ProtocolError` if all sessions together take more than a whole list may."""
        self._grown += len(json.dumps(changed))
        if self._grown > destination.max_message_size:
            self._grown = 0
            if len(json.dumps([*self._rows.values()], ensure_ascii=False)) > destination.max_message_size:
                raise ProtocolError(f"{destination.address}: the gateway tells more and more sessions")

    async def _read_until_next(self, stream: MaintainedStream) -> None:
        """Wait as `_pause` for the next list, and read: a gateway that stops waits for its clients to close.

        Raises as `receive_batch`.
        """
        with trio.move_on_after(self._interval) as self._reading:
            if self._wanted.is_set():
                self._reading.cancel()
            while True:
                await stream.receive_batch()  # Nothing is asked.
        self._wanted = trio.Event()

    def _release(self) -> None:
        """Set the events of `refresh`: no list comes over the connection."""
        for event in (self._listed, self._listed_next):
            event.set()
        self._listed, self._listed_next = trio.Event(), trio.Event()

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._wanted.wait()
        self._wanted = trio.Event()


def read_rights(result: Any, known: Rights) -> Rights:
    """Return the rights that were told with a list; `known` for those that were not."""
    if not isinstance(result, dict):
        return known
    agents = result.get("agents")
    names = tuple(map(str, agents)) if isinstance(agents, dict) else ()
    told = result.get("folders")
    folders = tuple(map(str, told)) if isinstance(told, list) else ()
    default, version = str(result.get("defaultAgent", "")), str(result.get("version", ""))
    claims = result.get("claims")
    form = claims if isinstance(claims, int) else 0
    return Rights(str(result.get("role", "")), names, default, folders, version, form)


async def _ask(stream: MaintainedStream, destination: Destination) -> Any:
    """Return a list, or what is another than in the last one. Raises as `exchange`, and `Unreachable` without one."""
    with trio.move_on_after(ATTEMPT_TIMEOUT):
        return await exchange(stream, destination, SESSIONS, {"changes": True})
    raise Unreachable(f"{destination.address}: no answer")
