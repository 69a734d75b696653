"""Limits of authenticated connections: their number, their rate, and the validity of their credentials."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sized
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.errors import Busy
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.extensions import Extensions
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.rate_limits import RateLimiter, Rates, TokenBucket
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.certificates import Revocations
from acp_gateway.security.shared_tokens import is_shared
from acp_gateway.security.token_store import CLUSTER, TokenStore
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason

log = logging.getLogger(__name__)

MAX_BUCKETS = 10_000
"""Number of rates of identities beyond which those without a connection are forgotten."""

UNUSED: Final = -math.inf
"""`away_since` of a connection that is not needed yet: nothing is lost with it, so it is evicted before any link."""

REVOKED = Disconnect(CloseReason.POLICY, "the token is not valid any more", "unauthorized")
ROTATED = Disconnect(CloseReason.POLICY, "the token was rotated: show the new one", "unauthorized")
EVICTED = Disconnect(CloseReason.POLICY, "others needed the room", "evicted")
REVOKED_CERTIFICATE = Disconnect(CloseReason.POLICY, "the client certificate was revoked", "unauthorized")
UNSURE = Disconnect(CloseReason.GOING_AWAY, "no token can be checked here for now: try again", "busy")
SIGNED_OUT = Disconnect(CloseReason.POLICY, "this browser is not signed in any more", "unauthorized")
CERTIFICATE_EXPIRED = Disconnect(CloseReason.POLICY, "the client certificate has expired", "unauthorized")


class ManagedConnection(Protocol):
    """A connection whose credential has to stay valid."""

    @property
    def access(self) -> Access:
        """Principal of the credential that was presented last."""

    @property
    def away_since(self) -> float | None:
        """Time of the loss of a resumable connection, or `UNUSED`; None while connected."""

    def close(self, disconnect: Disconnect) -> None:
        """End the connection for good."""

    def drop(self) -> bool:
        """Drop the connection but keep its link for another token; return False if it can't be resumed."""


def _account(access: Access) -> Hashable:
    """Return the account that a connection counts for: an identity, or a guest's token."""
    return access.account if access.session is None else ("guest", access.credential)


_Key = TypeVar("_Key")


def _count_down(counter: Counter[_Key], key: _Key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _may_be_revoked_elsewhere(access: Access) -> bool:
    """Return whether the credential depends on a token that any node of a cluster may revoke."""
    return access.token is not None and access.token.id != CLUSTER and is_shared(access.token)


class _Sharing(NamedTuple):
    """The key of the clients that share a rate alike: an account's controllers, its observers, or its guests'."""

    account: str
    guest: bool
    observer: bool


def _sharing(access: Access) -> _Sharing:
    return _Sharing(access.account, access.session is not None, access.role == "observer")


class _Watch:
    """That a connection is watched, for as long as it is in a block. There are as many as connections: no generator."""

    __slots__ = ("_connections", "account", "connection", "ended", "is_counted", "shares")

    def __init__(self, connection: ManagedConnection, connections: "Connections", *, is_counted: bool = True) -> None:
        self.connection = connection
        self.is_counted = is_counted
        """True if it counts for its identity, and as one that others may delay."""
        self.ended = False
        """True while it is being closed, which may take a while."""
        self.account = _account(connection.access)
        self.shares = _sharing(connection.access)
        """The account with which it shares rates."""
        self._connections = connections

    def __enter__(self) -> None:
        self._connections.add(self)

    def __exit__(self, *_: object) -> None:
        self._connections.discard(self)


class Connections:
    """All connections of a gateway that have come in, those that are away included.

    Args:
        limits: how many, and how fast.
        tokens: which of them are valid.
        now: says the time, in seconds since 1970.
        revocations: which certificates of clients are not valid any more.
        browsers: which of them are signed in.
        extensions: the cluster whose tokens count here too, where there is one.
    """

    def __init__(
        self,
        limits: LimitsSection,
        tokens: TokenStore,
        now: Callable[[], float] = time.time,
        revocations: Revocations | None = None,
        browsers: BrowserStore | None = None,
        extensions: Extensions | None = None,
    ) -> None:
        self.set_limits(limits)
        self.served: set[MaintainedStream] = set()
        """The open streams of no hub, over which the gateway itself is asked."""
        self._extensions = extensions or Extensions()
        self._tokens = tokens
        self._revoked = revocations or Revocations()
        self._browsers = browsers
        self._now = now
        self._watches: set[_Watch] = set()
        self._counts: Counter[Hashable] = Counter()
        # By account, with its guests apart: `MAX_BUCKETS`, and those of present connections. And how many connections
        # share each of them.
        self._buckets: dict[tuple[str, bool], TokenBucket] = {}
        self._sharing: Counter[_Sharing] = Counter()
        # Of all agents together.
        self._agents = TokenBucket(1.0, self._rates.burst, 0.0)

    def set_limits(self, limits: LimitsSection) -> None:
        """Use other limits for connections from now on."""
        self._limits = limits
        self._rates = Rates(
            messages=limits.messages_per_second,
            size=limits.bytes_per_second,
            share=limits.loop_share,
            burst=limits.message_burst / limits.messages_per_second,
            frames=limits.frames_without_message,
        )

    def __len__(self) -> int:
        return len(self._watches)

    def make_room(self, access: Access, *, replaces: bool = False, evicts: bool = True) -> None:
        """Make room for another connection, if necessary by evicting one that is away. Raises `Busy` if none is.

        `replaces` is True if one of this access closes when the new one has begun, and `evicts` is False if
        the new one is not needed yet: it takes free room alone.
        """
        limits = self._limits
        account = _account(access)
        has = self._counts[account] - replaces
        name, most = "connections_per_identity", limits.connections_per_identity
        if access.session is not None:
            name, most = "connections_per_guest", limits.connections_per_guest
            # Another gateway may name any number of guests.
            guests = sum(self._sharing[_Sharing(access.account, True, observer)] for observer in (False, True))
            if access.spoken_for and guests - replaces >= limits.connections_per_identity:
                raise Busy(f"connections_per_identity ({limits.connections_per_identity}) guests are there already")
        # An identity keeps its own links that are away; a guest loses nothing by a new one.
        only_unused = access.session is None
        if has >= most and not (evicts and self._evict_one_away(account, only_unused=only_unused)):
            raise Busy(f"{name} ({most}) are there already; try later")
        sharing = self._sharing[_sharing(access)] - replaces
        if access.session is None and access.role == "observer" and sharing >= (most + 1) // 2:
            # Observers do not keep the controllers of their identity out.
            raise Busy(f"half of {name} ({most}) are there already as observers; try later")
        most = limits.max_connections
        why = f"max_connections ({most}) are there already"
        if has or access.session is not None:
            # If both are small, half of all are for every identity.
            most -= min(limits.reserved_connections, most // 2)
            why = f"max_connections ({limits.max_connections}) but for reserved_connections are there already"
        is_full = len(self._watches) - replaces >= most
        if is_full and not (evicts and self._evict_one_away(account, more_than=has)):
            raise Busy(f"{why}; try later")

    def refuse_late(self, grant: Grant) -> Disconnect | None:
        """Return how to close a connection that is to be counted now, if it can't be: handshakes take their time, and
        others may have taken the room since it was admitted. As `make_room`, it may evict one.
        """
        try:
            self.make_room(grant.access, replaces=grant.replaces, evicts=grant.evicts)
        except Busy as error:
            log.warning("a connection of %s is closed, others have taken the room: %s", grant.access.credential, error)
            return Disconnect(CloseReason.GOING_AWAY, str(error), error.reason)
        return None

    def rate_limiter(self, account: str, *, guest: bool = False, observer: bool = False) -> RateLimiter:
        """Return the rate limiter of a new client; guests of an account have a rate of their own."""
        key = account, guest
        sharing = self._sharing
        controllers, observers = _Sharing(account, guest, False), _Sharing(account, guest, True)

        def parts() -> int:
            if observer:
                return (sharing[controllers] + 1) * (sharing[observers] or 1)
            return sharing[controllers] + (observers in sharing) or 1

        together = self._buckets.get(key)
        if together is None:
            if len(self._buckets) >= MAX_BUCKETS:
                # Another gateway may name any number of identities.
                used = {(each.account, each.guest) for each in sharing}
                self._buckets = {its: bucket for its, bucket in self._buckets.items() if its in used}
            burst = self._rates.burst
            together = self._buckets[key] = TokenBucket(1.0, burst, trio.current_time())
        return RateLimiter(self._rates, together, lambda: len(sharing) > 1, parts, trio.current_time)

    def limiter_of(self, access: Access) -> RateLimiter:
        """Return the rate limiter of a new client with this access."""
        account, guest, observer = _sharing(access)
        return self.rate_limiter(account, guest=guest, observer=observer)

    def agent_limiter(self, clients: Sized, agents: Sized) -> RateLimiter:
        """Return the rate limiter of a new agent.

        Args:
            clients: the agent's own, which wait for its output alone; while there are others, its time is charged.
            agents: all of them, each with an equal part.
        """
        watches = self._watches

        def delays_others() -> bool:
            return len(watches) > len(clients)

        return RateLimiter(self._rates, self._agents, delays_others, lambda: len(agents) or 1, trio.current_time)

    def watched(self, connection: ManagedConnection) -> AbstractContextManager[None]:
        """Count a connection during this block, and end it when its credential is no longer valid."""
        return _Watch(connection, self)

    def guarded(self, connection: ManagedConnection) -> AbstractContextManager[None]:
        """End a connection during this block when its credential is no longer valid, without counting it: it waits."""
        return _Watch(connection, self, is_counted=False)

    def source_of(self, access: Access) -> str | None:
        """Return the name of the credential with which a rule ends that is written by it: of a browser, that of its
        token; None for the gateway's own user, and for a token that no list has."""
        if access.token is not None:
            return f"token {access.token.id}" if self._tokens.lists(access.token.id) else None
        return None if access.certificate is None else f"certificate {access.certificate}"

    def valid_tokens(self) -> set[str]:
        """Return the ids of the tokens that are accepted."""
        return self._tokens.valid_ids()

    def add(self, watch: _Watch) -> None:
        """Count a connection."""
        self._watches.add(watch)
        if watch.is_counted:
            self._counts[watch.account] += 1
            self._sharing[watch.shares] += 1

    def discard(self, watch: _Watch) -> None:
        """Stop counting a connection. May be repeated."""
        if watch not in self._watches:
            return
        self._watches.discard(watch)
        if watch.is_counted:
            _count_down(self._counts, watch.account)
            _count_down(self._sharing, watch.shares)

    def _evict_one_away(self, account: Hashable, *, more_than: int | None = None, only_unused: bool = False) -> bool:
        """Give up the connection that has been away for longest, an unused one first; False without any.

        It is one of the given account. With `more_than`, it is of the account that has most connections, of those that
        have one away and this account or more connections than that: what has much takes nothing from what has less.
        With `only_unused`, no link is given up.
        """
        away = [
            (since == UNUSED, self._counts[watch.account], -since, watch)
            for watch in self._watches
            if not watch.ended
            and (since := watch.connection.away_since) is not None
            and (watch.account == account or (more_than is not None and self._counts[watch.account] > more_than))
            and (since == UNUSED or not only_unused)
        ]
        if not away:
            return False
        *_, watch = max(away, key=lambda place: place[:3])
        watch.ended = True
        # At once: to say goodbye may take its time, and more may come before that.
        self.discard(watch)
        watch.connection.close(EVICTED)
        return True

    def check_trust(self, access: Access) -> None:
        """Raise `Busy` for a token of the cluster while this gateway can't know whether it was revoked."""
        why = self._extensions.tokens_problem() if _may_be_revoked_elsewhere(access) else None
        if why is not None:
            raise Busy(why)

    def enforce(self) -> None:
        """End the connections with a token or certificate that is no longer valid."""
        # One look for each credential: right after a change, each reads the file of tokens again.
        reasons: dict[Access, Disconnect | None] = {}
        for watch in list(self._watches):
            access = watch.connection.access
            if access.browser is not None and self._browsers is not None and watch.connection.away_since is None:
                # A browser with an open page is in use.
                self._browsers.note_use(access.browser)
            if access not in reasons:
                reasons[access] = self._closing_reason(access)
            disconnect = reasons[access]
            if disconnect is None or watch.ended:
                continue
            if disconnect in (ROTATED, UNSURE) and watch.connection.drop():
                continue
            log.warning("%s is not valid any more: closing its connection", access.credential)
            watch.ended = True
            watch.connection.close(disconnect)

    def is_valid(self, access: Access) -> bool:
        """Return whether a credential is still valid."""
        return self._closing_reason(access) is None

    def _closing_reason(self, access: Access) -> Disconnect | None:
        if access.expires is not None and self._now() >= access.expires:
            return CERTIFICATE_EXPIRED
        if access.certificate_id is not None and access.certificate_id in self._revoked:
            return REVOKED_CERTIFICATE
        token, browser = access.token, access.browser
        if browser is not None and (self._browsers is None or not self._browsers.is_current(browser)):
            return SIGNED_OUT
        if token is None or self._tokens.is_current(token):
            return (
                UNSURE if _may_be_revoked_elsewhere(access) and self._extensions.tokens_problem() is not None else None
            )
        if browser is not None:
            return SIGNED_OUT
        return ROTATED if self._tokens.is_rotated(token) else REVOKED
