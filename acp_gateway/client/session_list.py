"""Follows the list of sessions of a gateway over a control connection, which is replaced when it is lost.

Of a node that is away the gateway tells nothing; its sessions stay as they were told last.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import trio

from acp_gateway.client.control import PAST, Listing, Rights, exchange, read_listing, read_news, read_rights
from acp_gateway.client.dialing import Destination, dial, explain_silence
from acp_gateway.client.reconnecting.attempts import ATTEMPT_TIMEOUT
from acp_gateway.client.uplink import BACKOFF_MAX, REFUSALS, backoff
from acp_gateway.errors import GatewayError, ProtocolError, Unreachable
from acp_gateway.gateway.session_api.requests import LIST
from acp_gateway.protocol.methods import ACCESS
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.websocket.stream import Timing

INTERVAL: Final = 5.0
"""Seconds between two questions for the rights, which no notification tells. Each counts as 100 messages in the
gateway's rate limit, which allows 500 a second to an identity by default."""


class Overview(NamedTuple):
    """The state of a gateway, as far as a client sees it."""

    listing: Listing
    rights: Rights


@dataclass(frozen=True)
class ListHandler:
    """The user of a list."""

    receive: Callable[[Overview], None]
    """Called with the list, after changes, and after each `INTERVAL`."""
    lost: Callable[[GatewayError], None]
    """Called when the connection was lost, or an attempt to connect has failed."""


class SessionList:
    """The sessions of a gateway.

    Args:
        destination: called before each attempt to connect.
        handler: receives them.
        connect: opens a connection.
    """

    def __init__(
        self,
        destination: Callable[[], Destination],
        handler: ListHandler,
        connect: Callable[[Destination, Timing], Any] = dial,
    ) -> None:
        self._destination = destination
        self._handler = handler
        self._connect = connect
        self._wanted = trio.Event()
        # Reads until the next question is due.
        self._reading = trio.CancelScope()
        self._succeeded = False
        self._listing = Listing([])
        # The sessions by id, those of an earlier connection at first.
        self._rows: dict[str, dict[str, Any]] = {}
        # Bytes of changes since the size of all was known to be small enough.
        self._grown = 0

    def refresh(self) -> None:
        """List the sessions again, or try to connect, now: those of nodes are told late."""
        self._wanted.set()
        self._reading.cancel()

    async def run(self) -> None:
        """Follow the sessions until cancelled.

        Raises `GatewayError` if the first attempt fails, and later if the gateway refuses.
        """
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
            failures = 0 if listed else failures + 1
            with trio.move_on_after(backoff(failures, BACKOFF_MAX, random.random())):  # noqa: S311
                await self._wanted.wait()
            self._wanted = trio.Event()

    async def _follow(self, stream: MaintainedStream, destination: Destination) -> bool:
        """Follow the sessions until the connection is lost; return True if a list has come. Raises `GatewayError`."""
        self._listing = Listing([])
        listed = False
        failure: GatewayError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            try:
                rights = Rights()
                self._wanted.set()
                while True:
                    if self._wanted.is_set():
                        self._wanted = trio.Event()
                        params = {"all": True, "watch": True, "limit": PAST}
                        self._take(read_listing(destination, await self._ask(stream, destination, LIST, params)))
                    rights = read_rights(await self._ask(stream, destination, ACCESS, {}), rights)
                    listed = self._succeeded = True
                    self._tell(rights)
                    await self._read_until_next(stream, destination, rights)
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

    async def _ask(self, stream: MaintainedStream, destination: Destination, method: str, params: object) -> Any:
        """Return a result, and take the news before it. Raises as `exchange`, and `Unreachable` without an answer."""
        with trio.move_on_after(ATTEMPT_TIMEOUT):
            return await exchange(stream, destination, method, params, lambda text: self._note(text, destination))
        raise Unreachable(f"{destination.address}: no answer")

    async def _read_until_next(self, stream: MaintainedStream, destination: Destination, rights: Rights) -> None:
        """Read until the next question is due. Raises as `receive_batch`, and `ProtocolError`."""
        with trio.move_on_after(INTERVAL) as self._reading:
            if self._wanted.is_set():
                self._reading.cancel()
            while True:
                changed = [self._note(text, destination) for text in await stream.receive_batch()]
                if any(changed):
                    self._tell(rights)

    def _take(self, listing: Listing) -> None:
        """Keep a list, and the former sessions of the nodes that did not answer."""
        since = {"unreachableSince": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        former = {name: since | row for name, row in self._rows.items() if _machine(row) in listing.missing}
        self._listing, self._grown = listing, 0
        self._rows = former | {row["sessionId"]: row for row in listing.sessions}

    def _note(self, text: bytes, destination: Destination) -> bool:
        """Take a message; return True if it has changed the list. Raises `ProtocolError`."""
        news = read_news(destination, text)
        if news is None:
            return False
        name, row = news
        if row is None:
            return self._rows.pop(name, None) is not None
        self._rows[name] = row
        self._grown += len(text)
        if self._grown > destination.max_message_size:
            self._grown = 0
            if len(json.dumps([*self._rows.values()], ensure_ascii=False)) > destination.max_message_size:
                raise ProtocolError(f"{destination.address}: the gateway tells more and more sessions")
        return True

    def _tell(self, rights: Rights) -> None:
        self._handler.receive(Overview(replace(self._listing, sessions=[*self._rows.values()]), rights))


def _machine(row: dict[str, Any]) -> str:
    """Return the node of a session; empty for one of the gateway."""
    machine: str = row["agent"].rpartition("/")[0]
    return machine
