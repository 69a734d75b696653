"""Registry of resumable links, and of the reasons why links have ended."""

from dataclasses import dataclass
from typing import Final

import trio

from acp_gateway.core.sessions.session import Client
from acp_gateway.errors import AccessError, LinkExpired, LinkGone, TooFarBehind
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.hub.attachment import EXPIRED, TOO_SLOW, Attachment, Disconnect
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.parts import NO_PART, PartSum
from acp_gateway.transports.streams import CloseReason

MAX_REMEMBERED: Final = 10_000
"""Maximum number of ended links with a remembered reason: clients return within days, or never."""

_MISCOUNTED: Final = Disconnect(CloseReason.POLICY, "the client has counted otherwise", "miscounted")

_REASONS: Final[dict[str | None, type[AccessError]]] = {TOO_SLOW: TooFarBehind, EXPIRED: LinkExpired}


@dataclass(slots=True, eq=False)
class AttachedClient:
    """A client attached to a hub."""

    grant: Grant
    hub: Hub
    client: Client

    @property
    def access(self) -> Access:
        """Principal of the credential that was presented last."""
        return self.grant.access

    @property
    def attachment(self) -> Attachment | None:
        """The attachment; None if it has ended or is about to."""
        attachment = self.hub.attachments.get(self.client)
        return None if attachment is None or attachment.ended else attachment

    @property
    def away_since(self) -> float | None:
        """Time of the loss of the connection; None while connected or if it can't be resumed."""
        attachment = self.attachment
        return None if attachment is None else attachment.away_since

    def close(self, disconnect: Disconnect) -> None:
        """End the client for good, unless its close is in progress."""
        if self.client in self.hub.attachments:
            self.hub.attachments[self.client].close(disconnect)

    def drop(self) -> bool:
        """Drop the connection but keep the link; return False if it can't be resumed."""
        return False


@dataclass(slots=True, eq=False)
class ResumableLink(AttachedClient):
    """A client with a resumable link."""

    id: str
    """Identifier of the link; not a credential."""
    claims: int = 0
    """Number of attempts to resume it: only the last one succeeds."""
    taken_over: bool = False
    """True once a connection was dropped that was not lost, until another one is served."""

    def drop(self) -> bool:
        if self.client not in self.hub.attachments:
            return False
        self.hub.attachments[self.client].drop_connection()
        return True


@dataclass(frozen=True, slots=True)
class ResumeClaim:
    """The claim of a new connection to resume a link."""

    link: ResumableLink
    claim: int
    peer_received: int
    received: int
    """Number of messages received from the client over the link."""
    part: PartSum = NO_PART
    """Part of its next message that was kept."""
    peer_part: PartSum = NO_PART
    """Part of the next message to it that the client has kept."""

    def pop_takeover(self) -> bool:
        """Return True if the new connection is to be served in place of one that was not lost, and note that it is."""
        if self.claim != self.link.claims or self.link.attachment is None:
            return False
        taken_over, self.link.taken_over = self.link.taken_over, False
        return taken_over


@dataclass(frozen=True, slots=True)
class _Ended:
    access: Access
    reason: type[AccessError]


class LinkRegistry:
    """The resumable links of a gateway."""

    def __init__(self) -> None:
        self._links: dict[str, ResumableLink] = {}
        # What has become of others, the longest ended first.
        self._ended: dict[str, _Ended] = {}

    def add(self, link: ResumableLink) -> None:
        """Register a new link."""
        self._links[link.id] = link

    def end(self, link: ResumableLink, disconnect: Disconnect | None) -> None:
        """Unregister a link that has ended for good, and remember the reason."""
        del self._links[link.id]
        reason = _REASONS.get(disconnect.reason if disconnect else None, LinkGone)
        self._ended[link.id] = _Ended(link.grant.access, reason)
        while len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def find(self, link_id: str, access: Access) -> ResumableLink:
        """The link of that id, if it is the token's that is presented now.

        Raises `TooFarBehind`, `LinkExpired`, or `LinkGone` if there is none, or one of another principal.
        """
        link = self._links.get(link_id)
        if link is not None and link.attachment is not None and link.grant.access.principal == access.principal:
            return link
        self.check_ended(link_id, access)
        raise LinkGone("this link is not known here; begin a new one")

    def check_ended(self, link_id: str, access: Access) -> None:
        """Raise `TooFarBehind` or `LinkExpired` if a link of this principal has ended for that."""
        ended = self._ended.get(link_id)
        if ended is None or ended.access.principal != access.principal:
            return
        if ended.reason is TooFarBehind:
            raise TooFarBehind("more came for this link than could be kept; begin a new one")
        if ended.reason is LinkExpired:
            raise LinkExpired("this link was away for too long; begin a new one")


def claim(link: ResumableLink, peer_received: int, peer_part: PartSum = NO_PART) -> ResumeClaim:
    """Claim a link for a new connection, and drop the present one: its loss may not have been noticed.

    `peer_received`: how many messages of this side the client says it has. Raises `LinkGone` where that can't be.
    """
    attachment = link.attachment
    if attachment is None or not attachment.outbox.confirmed <= peer_received <= attachment.outbox.written:
        if attachment is not None and attachment.away_since is not None and peer_received > attachment.outbox.written:
            # No connection has it: its client will begin a new link, and reopen its sessions there. Too low a count may
            # be that of an attempt that the client has given up, and that was long on its way.
            attachment.close(_MISCOUNTED)
        raise LinkGone("this link can't be resumed from there; begin a new one")
    link.taken_over |= attachment.is_connected
    attachment.drop_connection()
    link.claims += 1
    return ResumeClaim(link, link.claims, peer_received, attachment.link.received, attachment.link.part_sum, peer_part)


async def serve_resumed(stream: MaintainedStream, resumption: ResumeClaim) -> None:
    """Serve a link over this connection until it is lost or the client has gone; then close the stream."""
    attachment = resumption.link.attachment
    if attachment is None or resumption.claim != resumption.link.claims:
        why = "this link has ended" if attachment is None else "a newer connection has taken this link over"
        await stream.aclose(CloseReason.POLICY, why)
        return
    connection = attachment.connect(stream, resumption.peer_received, resumption.peer_part)
    try:
        # The task that serves the link closes it when all are cancelled, in bounded time.
        with trio.CancelScope(shield=True):
            await connection.wait_ended()
    finally:
        await stream.abort()
