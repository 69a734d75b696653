"""The registry of resumable links, and of the reasons why others have ended."""

from dataclasses import dataclass
from typing import Final

import trio

from acp_gateway.core.sessions import Client
from acp_gateway.errors import AccessError, LinkExpired, LinkGone, TooFarBehind
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.attachment import EXPIRED, TOO_SLOW, Attachment, Disconnect
from acp_gateway.gateway.hub import Hub
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason

MAX_REMEMBERED: Final = 10_000
"""Links that have ended and of which is known why: their clients come back within days, or never."""

_MISCOUNTED: Final = Disconnect(CloseReason.POLICY, "the client has counted otherwise", "miscounted")

_REASONS: Final[dict[str | None, type[AccessError]]] = {TOO_SLOW: TooFarBehind, EXPIRED: LinkExpired}


@dataclass(slots=True, eq=False)
class AttachedClient:
    """A client that was let in to a hub."""

    admission: Grant
    hub: Hub
    client: Client

    @property
    def access(self) -> Access:
        """The principal, by the credential that was shown last."""
        return self.admission.access

    @property
    def attachment(self) -> Attachment | None:
        """None when its connection has ended, or is about to."""
        attachment = self.hub.attachments.get(self.client)
        return None if attachment is None or attachment.ended else attachment

    @property
    def away_since(self) -> float | None:
        """When its connection was lost, if it may come back."""
        attachment = self.attachment
        return None if attachment is None else attachment.away_since

    def close(self, disconnect: Disconnect) -> None:
        """End it for good, unless it is being told goodbye: that may take its time."""
        if self.client in self.hub.attachments:
            self.hub.attachments[self.client].close(disconnect)

    def drop(self) -> bool:
        """Take its connection away so that it may come back; False where it can't."""
        return False


@dataclass(slots=True, eq=False)
class ResumableLink(AttachedClient):
    """One whose link can be resumed."""

    id: str
    """Identifier of the link; not a credential."""
    claims: int = 0
    """Number of attempts to resume it: only the last one succeeds."""

    def drop(self) -> bool:
        if self.client not in self.hub.attachments:
            return False
        self.hub.attachments[self.client].drop_connection()
        return True


@dataclass(frozen=True, slots=True)
class ResumeClaim:
    """A connection that is about to take a link up again."""

    link: ResumableLink
    claim: int
    peer_received: int
    received: int
    """Number of messages received from the client over the link."""


@dataclass(frozen=True, slots=True)
class _Ended:
    access: Access
    reason: type[AccessError]


class LinkRegistry:
    """The links of a gateway that can be resumed."""

    def __init__(self) -> None:
        self._links: dict[str, ResumableLink] = {}
        # What has become of others, the longest ended first.
        self._ended: dict[str, _Ended] = {}

    def add(self, link: ResumableLink) -> None:
        """A link begins."""
        self._links[link.id] = link

    def end(self, link: ResumableLink, disconnect: Disconnect | None) -> None:
        """A link has ended for good."""
        del self._links[link.id]
        reason = _REASONS.get(disconnect.reason if disconnect else None, LinkGone)
        self._ended[link.id] = _Ended(link.admission.access, reason)
        while len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def find(self, link_id: str, access: Access) -> ResumableLink:
        """The link of that id, if it is the token's that is presented now.

        Raises `TooFarBehind`, `LinkExpired`, or `LinkGone` if there is none, or one of another principal.
        """
        link = self._links.get(link_id)
        if link is not None and link.attachment is not None and _is_same_principal(link.admission.access, access):
            return link
        ended = self._ended.get(link_id)
        if ended is None or not _is_same_principal(ended.access, access):
            raise LinkGone("this link is not known here; begin a new one")
        if ended.reason is TooFarBehind:
            raise TooFarBehind("more came for this link than could be kept; begin a new one")
        if ended.reason is LinkExpired:
            raise LinkExpired("this link was away for too long; begin a new one")
        raise LinkGone("this link is not known here; begin a new one")


def _is_same_principal(one: Access, other: Access) -> bool:
    """Check whether two connections have the same token or certificate, or the same user by the kernel."""
    return (one.identity, one.credential) == (other.identity, other.credential)


def claim(link: ResumableLink, peer_received: int) -> ResumeClaim:
    """Let a new connection have a link, and take it from whichever has it now: that one may long be dead.

    `peer_received`: how many messages of this side the client says it has. Raises `LinkGone` where that can't be.
    """
    attachment = link.attachment
    if attachment is None or not attachment.outbox.confirmed <= peer_received <= attachment.outbox.written:
        if attachment is not None and attachment.away_since is not None:
            # No connection has it: its client will begin a new link, and reopen its sessions there.
            attachment.close(_MISCOUNTED)
        raise LinkGone("this link can't be resumed from there; begin a new one")
    attachment.drop_connection()
    link.claims += 1
    return ResumeClaim(link, link.claims, peer_received, attachment.link.received)


async def serve_resumed(stream: MaintainedStream, resumption: ResumeClaim) -> None:
    """Have a link served over this connection until it is lost or the client has gone; the stream is closed then."""
    attachment = resumption.link.attachment
    if attachment is None or resumption.claim != resumption.link.claims:
        await stream.aclose(CloseReason.POLICY, "a newer connection has taken this link over")
        return
    connection = attachment.connect(stream, resumption.peer_received)
    try:
        # The task that serves the link closes it when all are cancelled, in bounded time.
        with trio.CancelScope(shield=True):
            await connection.wait_ended()
    finally:
        await stream.abort()
