"""Dials a gateway that has several addresses, such as that of its network, that of a VPN, and ssh.

All are tried, each a moment after the one before, and the first is used that the gateway has accepted. It is remembered
for `REMEMBER_TIME` seconds, and tried first by the next connection, together with the better ones: so one of those that
is back is used from then on. Connections that exist stay.

Only one address at a time asks the gateway, because each that does is a client to it. The others connect until then;
one that is not answered is given up before the next one asks.
"""

import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, Self, TypeAlias, TypeVar

import trio

from acp_gateway.config.addresses import Address
from acp_gateway.config.directories import state_home
from acp_gateway.errors import (
    NO_ADDRESS,
    ConfigError,
    Forbidden,
    GatewayError,
    LinkGone,
    TooFarBehind,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
    Unreachable,
)
from acp_gateway.transports.racing import Schedule, race

log = logging.getLogger(__name__)

ADDRESS_TIMEOUT: Final = 11.0
"""Seconds for one address: less than for an attempt with all of them, and ssh reports its own timeout before."""

TURN_PATIENCE: Final = 1.0
"""Seconds that an address has for the gateway's answer at least before another one asks in its place."""

REMEMBER_TIME: Final = 3600.0
"""Seconds for which the address that was used is tried first: a costly one that is better gets its turn again."""

_OF_THE_GATEWAY: Final = (Unauthorized, Forbidden, UnknownAgent, UnknownSession, TooFarBehind, LinkGone)
"""Refusals of the gateway itself."""

_OF_THE_LINK: Final = (UnknownSession, TooFarBehind, LinkGone)
"""Those among them that do not depend on the address."""

Turn: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Makes the context in which one address asks the gateway."""


def order_of(addresses: Sequence[Address], remembered: Address | None) -> tuple[list[Address], int]:
    """Return the order in which to try addresses, given best first, and how many of the first to try together.

    A remembered address is the first, and those that are better are tried together with it.
    """
    if remembered is None or remembered not in addresses:
        return list(addresses), 1
    place = addresses.index(remembered)
    return [remembered, *addresses[:place], *addresses[place + 1 :]], place + 1


def combined(failures: Sequence[tuple[Address, GatewayError]]) -> GatewayError:
    """Return the error for a gateway that no address leads to, with a line for each.

    It is the gateway's own refusal if there is one, else `Unreachable` if an address may work later.
    """
    refusal = next((type(error) for _, error in failures if isinstance(error, _OF_THE_GATEWAY)), None)
    later = any(isinstance(error, Unreachable) for _, error in failures)
    lines = [str(error) if str(address) in str(error) else f"{address}: {error}" for address, error in failures]
    kind = refusal or (Unreachable if later else type(failures[0][1]))
    return kind(f"none of the {len(failures)} {NO_ADDRESS}" + ";\n".join(lines))


class WayMemory:
    """The addresses that were used last, across processes.

    Each gateway has a file, named by a hash of its addresses, if the best one was not used. A file that can't be
    written or read counts as absent.

    Args:
        folder: directory of the files, created when needed; None to remember nothing.
        now: returns the time, in seconds since 1970.
    """

    def __init__(self, folder: Path | None, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now

    def recall(self, addresses: Sequence[Address]) -> Address | None:
        """Return the address that was used last, if that is one of them and no longer ago than `REMEMBER_TIME`."""
        if self._folder is None:
            return None
        path = self._path(self._folder, addresses)
        try:
            if not 0 <= self._now() - path.stat().st_mtime < REMEMBER_TIME:
                return None
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return next((address for address in addresses if str(address) == text), None)

    def record(self, addresses: Sequence[Address], used: Address) -> None:
        """Remember an address. The time stays that of the first of several in a row with the same one."""
        if self._folder is None or self.recall(addresses) == used:
            return
        path = self._path(self._folder, addresses)
        try:
            if used == addresses[0]:
                path.unlink(missing_ok=True)
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(f"{used}\n", encoding="utf-8")
        except OSError as error:
            log.info("%s: cannot be written: %s", path, error.strerror)

    def _path(self, folder: Path, addresses: Sequence[Address]) -> Path:
        return folder / hashlib.sha256("\n".join(map(str, addresses)).encode(errors="replace")).hexdigest()[:32]


def own_way_memory() -> WayMemory:
    """Return the memory of this user."""
    try:
        return WayMemory(state_home() / "reached")
    except ConfigError:
        return WayMemory(None)  # Without a home directory nothing is remembered.


class Connected(Protocol):
    """A connection over one of several addresses."""

    @property
    def address(self) -> Address | None:
        """That address."""

    async def aclose(self) -> None:
        """Close it at once."""


class Destination(Protocol):
    """A gateway with several addresses; see `acp_gateway.client.dialing`."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All of them, best first."""

    @property
    def memory(self) -> "WayMemory | None":
        """Remembers which was used."""

    def at(self, address: Address) -> Self:
        """Return the destination with this address only."""


_Connected = TypeVar("_Connected", bound=Connected)
_Destination = TypeVar("_Destination", bound=Destination)


async def dial_any(
    destination: _Destination, dial: Callable[[_Destination, Turn], Awaitable[_Connected]]
) -> _Connected:
    """Return the connection over the first address that the gateway has accepted, and remember it.

    `dial` connects over one address, and asks the gateway within a turn. Raises the error of `combined`. Cancelling
    closes all connections.
    """
    addresses = destination.addresses
    memory = destination.memory or WayMemory(None)
    order, at_once = order_of(addresses, memory.recall(addresses))
    turns = _Turns()

    async def try_one(address: Address) -> _Connected:
        log.debug("trying %s", address)
        with trio.move_on_after(ADDRESS_TIMEOUT):
            return await dial(destination.at(address), partial(turns.take, trio.current_time()))
        raise Unreachable(f"{address}: no answer within {ADDRESS_TIMEOUT:g} s")

    ways = [partial(try_one, address) for address in order]
    outcome = await race(ways, Schedule([address.scheme == "ssh" for address in order], at_once), _OF_THE_LINK)
    if isinstance(outcome, list):
        errors = dict(zip(order, outcome, strict=True))
        raise combined([(address, errors[address]) for address in addresses])
    used = outcome.address or addresses[0]
    log.info("using %s", used)
    memory.record(addresses, used)
    return outcome


class _Turns:
    """Lets one address at a time ask the gateway, which gives a link to the connection that asks last."""

    def __init__(self) -> None:
        self._free = trio.Semaphore(1)
        # The address that asks, and the time until which it has its turn though another one waits.
        self._asking = trio.CancelScope()
        self._until = math.inf

    @asynccontextmanager
    async def take(self, began: float) -> AsyncIterator[None]:
        """Wait until no other address asks, and keep the turn for this block.

        While another address waits, the block is cancelled after `TURN_PATIENCE`, or after the time that connecting has
        taken since `began` if that is longer. Raises `Unreachable` then.
        """
        self._asking.deadline = self._until
        await self._free.acquire()
        now = trio.current_time()
        self._until = now + max(TURN_PATIENCE, now - began)
        others_wait = self._free.statistics().tasks_waiting > 0
        with trio.CancelScope(deadline=self._until if others_wait else math.inf) as self._asking:
            try:
                yield
            except BaseException:
                self._free.release()
                raise
            return  # After a success the others must not ask any more.
        raise Unreachable(f"no answer within {trio.current_time() - now:.1f} s; another address was asked instead")
