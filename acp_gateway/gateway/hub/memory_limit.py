"""The memory limit of all hubs: messages for slow clients and agents, histories of sessions, and received messages.

What clients have sent and the agents don't have yet counts in full: unfinished messages, what is handled at the moment,
requests and prompts that wait, also those of clients that have gone. What agents have sent counts until clients have
it: unanswered requests, updates before their session is named, unfinished echoes of prompts. So does what is
remembered to translate between versions of the protocol.

One message that waits for a hundred clients and stands in a journal as well is in memory once, so adding up sizes
overstates. To look at each message takes time, so that is done only where the sum is too much and the histories alone
are not, at none but what waits and the histories it may stand in, and then not again before something was added.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Final, Protocol

from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.hub.attachment import TOO_SLOW, Attachment, Disconnect
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.protocol.text.pairs import text_of
from acp_gateway.transports.streams import CloseReason

log = logging.getLogger(__name__)

CHECKS = 32
"""Checks while as many bytes as the limit are added: the fraction by which the limit may be exceeded."""


LEAST_SHARE: Final = 1 / 64
"""Share of the limit that something must hold to be given up before histories, which the disk keeps: less is not worth
it."""


class Input(Protocol):
    """A connection that no hub has, such as that of a browser, with what it has sent; or what is kept of such ones."""

    @property
    def account(self) -> str:
        """The identity for whose limits it counts."""

    @property
    def input_bytes(self) -> int:
        """Bytes that are kept for it."""

    def close(self, disconnect: Disconnect) -> None:
        """Drop these bytes, with the connection if there is one."""


class MemoryLimiter:
    """The limit for everything together, in bytes.

    Args:
        limit: maximum bytes.
        hubs: returns the present hubs.
        inputs: connections that no hub has, as they are at the moment.
    """

    def __init__(self, limit: int, hubs: Callable[[], list[Hub]], inputs: Collection[Input] = ()) -> None:
        self._limit = limit
        self._hubs = hubs
        self._inputs = inputs
        # Bytes since the last look.
        self._new = 0

    def grown(self, size: int) -> None:
        """So many bytes were kept by one of the hubs: if it is too much now, make room.

        Where an identity holds most, and that because of what it has sent, the largest part of it goes first. Then goes
        the client that has been away for the longest; then the largest: a client with that much waiting is detached, a
        history loses its beginning. An agent for which more waits than any identity holds is stopped. Before histories
        nothing goes that holds less than `LEAST_SHARE` of the limit.
        """
        self._new += size
        if self._new < self._limit / CHECKS:
            return
        self._new = 0
        hubs = self._hubs()
        while self._is_exceeded(hubs) and self._make_room(hubs):
            pass

    def _is_exceeded(self, hubs: list[Hub]) -> bool:
        """Check the limit; single messages are looked at only if they can make a difference."""
        histories = sum(journal.size for journal in _journals(hubs)) + self._incoming(hubs).total() + _outgoing(hubs)
        waiting = sum(attachment.outbox.unconfirmed_bytes for _, attachment in _attachments(hubs))
        # Two histories have nothing in common.
        return histories > self._limit or (
            histories + waiting > self._limit and histories + _waiting_alone(hubs) > self._limit
        )

    def _make_room(self, hubs: list[Hub]) -> bool:
        """Take one step towards the limit; False where there is nothing left to give up."""
        least = self._limit * LEAST_SHARE
        return (
            self._give_up_echoes(hubs, least)
            or self._give_up_translations(hubs, least)
            or self._give_up_incoming(hubs, least)
            or self._give_up_one_away(hubs, least)
            or self._give_up_largest(hubs)
            # Many little parts may be too much together.
            or self._give_up_incoming(hubs, 0)
            or self._give_up_one_away(hubs, 0)
            or self._give_up_echoes(hubs, 1)
            or self._give_up_translations(hubs, 1)
        )

    def _give_up_largest(self, hubs: list[Hub]) -> bool:
        """Cut the longest history, or detach the client with most waiting, if that is more; False without either."""
        longest = max((journal.size for journal in _journals(hubs)), default=0)
        waiting = [(hub, attachment) for hub, attachment in _attachments(hubs) if attachment.outbox.unconfirmed_bytes]
        hub, attachment = max(waiting, key=lambda place: place[1].outbox.unconfirmed_bytes, default=(None, None))
        if hub is None or attachment is None or attachment.outbox.unconfirmed_bytes < longest:
            for session in (session for each in hubs for session in each.multiplexer.sessions):
                # The disk keeps what memory loses.
                session.archive.finish_journal(session)
            by_size = sorted(_journals(hubs), key=lambda journal: journal.size, reverse=True)
            if any(map(self._cut, by_size)):
                return True
        if hub is None or attachment is None:
            return False
        hub.detach(attachment, f"memory_limit ({self._limit} bytes) is reached, and no client has more waiting")
        return True

    def _give_up_echoes(self, hubs: list[Hub], least: float) -> bool:
        """End the echoes of the hub that keeps most for them, where that is at least `least` bytes.

        It costs least: clients may see a prompt twice.
        """
        hub = max(hubs, key=lambda hub: hub.multiplexer.memory.echo_bytes, default=None)
        size = 0 if hub is None else hub.multiplexer.memory.echo_bytes
        if hub is None or size < least:
            return False
        log.warning("%s: memory_limit (%d bytes) is reached: echoes are not told apart", hub.name, self._limit)
        hub.multiplexer.memory.end_echoes()
        hub.deliver()
        return hub.multiplexer.memory.echo_bytes < size

    def _give_up_translations(self, hubs: list[Hub], least: float) -> bool:
        """Halve the memory of the hub's translators that remember most, where that is at least `least` bytes.

        It costs little: what changes later is shown as new.
        """
        hub = max(hubs, key=lambda hub: hub.translation_bytes, default=None)
        size = 0 if hub is None else hub.translation_bytes
        if hub is None or size < least:
            return False
        hub.forget_translations()
        if hub.translation_bytes == size:
            return False
        log.warning("%s: memory_limit (%d bytes) is reached: its translators forget half", hub.name, self._limit)
        return True

    def _give_up_incoming(self, hubs: list[Hub], least: float) -> bool:
        """Drop the largest part of what the identity that holds most has sent, where that is at least `least` bytes.

        An agent for which more waits is stopped instead. Return False where there is more of others.
        """
        reached = f"memory_limit ({self._limit} bytes) is reached"
        incoming, waiting = self._incoming(hubs), Counter[str]()
        for _, attachment in _attachments(hubs):
            waiting[attachment.client.reach.account] += attachment.outbox.unconfirmed_bytes
        most = max(incoming, key=lambda identity: incoming[identity] + waiting[identity], default="")
        held, others = incoming[most], max(waiting.values(), default=0)
        busiest = max(hubs, key=lambda hub: hub.outgoing_bytes, default=None)
        size = 0 if busiest is None else busiest.outgoing_bytes
        if busiest is not None and size > max(held, others) and size >= least:
            busiest.stop_agent(f"{reached}, and most of it waits for the agent {busiest.name}")
            return busiest.outgoing_bytes < size
        if not held or held < max(others, least):
            return False
        behind = [hub for hub in hubs if hub.multiplexer.memory.abandoned_prompt_sizes()[most]]
        for hub in behind:
            log.warning("%s: %s: prompts that %s has left behind are dropped", hub.name, reached, most)
            hub.multiplexer.memory.drop_abandoned_prompts(most)
        if not behind:
            mine = [
                (hub, attachment)
                for hub, attachment in _attachments(hubs)
                if attachment.client.reach.account == most and not attachment.ended
            ]
            why = f"{reached}, and no client has sent more that is still kept"
            place = max(mine, key=lambda place: place[1].incoming_bytes, default=None)
            inputs = [it for it in self._inputs if it.account == most]
            largest = max(inputs, key=lambda it: it.input_bytes, default=None)
            if largest is not None and (place is None or largest.input_bytes > place[1].incoming_bytes):
                log.warning("%s: the largest part of what it has sent is dropped: %s", most, why)
                size = largest.input_bytes
                largest.close(Disconnect(CloseReason.POLICY, why, TOO_SLOW))
                # What a client still needs stays.
                return largest.input_bytes < size
            if place is not None:
                place[0].detach(place[1], why)
            else:
                return False
        return True

    def _incoming(self, hubs: list[Hub]) -> Counter[str]:
        """Count the bytes of what clients have sent and is kept, by identity."""
        sizes: Counter[str] = Counter()
        for _, attachment in _attachments(hubs):
            # Of a client that is about to leave all of it is about to be dropped.
            if not attachment.ended:
                sizes[attachment.client.reach.account] += attachment.incoming_bytes
        for hub in hubs:
            sizes.update(hub.multiplexer.memory.abandoned_prompt_sizes())
        for it in self._inputs:
            sizes[it.account] += it.input_bytes
        return sizes

    def _give_up_one_away(self, hubs: list[Hub], least: float) -> bool:
        """Detach who has been away for the longest, those last who wait for the end of a turn; False without any.

        It is one of the identity for which most is kept, and that at least `least` bytes, so that no identity can push
        out the others.
        """
        away = [
            (_waits_for_turn(attachment), attachment.away_since, hub, attachment)
            for hub, attachment in _attachments(hubs)
            if attachment.away_since is not None and attachment.outbox.unconfirmed_bytes
        ]
        if not away:
            return False
        kept: Counter[str] = Counter()
        for *_, attachment in away:
            kept[attachment.client.reach.account] += attachment.outbox.unconfirmed_bytes
        ((identity, size),) = kept.most_common(1)
        if size < least:
            return False
        mine = [place for place in away if place[-1].client.reach.account == identity]
        *_, hub, attachment = min(mine, key=lambda place: place[:2])
        hub.detach(attachment, f"memory_limit ({self._limit} bytes) is reached, and it has been away for long")
        return True

    def _cut(self, journal: Journal) -> bool:
        """Halve a history; False where it has no talk left, only what a late joiner can't do without."""
        size = journal.size
        journal.shrink(size // 2)
        if journal.size == size:
            return False
        log.warning("memory_limit (%d bytes) is reached: a history of %d bytes is cut", self._limit, size)
        return True


def _outgoing(hubs: list[Hub]) -> int:
    """Bytes of all that was sent to agents or by them, and is kept."""
    return sum(hub.outgoing_bytes + hub.multiplexer.memory.echo_bytes + hub.translation_bytes for hub in hubs)


def _attachments(hubs: list[Hub]) -> Iterator[tuple[Hub, Attachment]]:
    return ((hub, attachment) for hub in hubs for attachment in hub.attachments.values())


def _waits_for_turn(attachment: Attachment) -> bool:
    prompts = (request for session in attachment.client.sessions for request in (*session.turns, *session.queue))
    return any(request.client is attachment.client for request in prompts)


def _journals(hubs: list[Hub]) -> Iterator[Journal]:
    for hub in hubs:
        for session in hub.multiplexer.sessions:
            yield from session.journals


def _waiting_alone(hubs: list[Hub]) -> int:
    """Return the bytes of waiting messages that stand in no history, each counted once."""
    total = 0
    for hub in hubs:
        attachments = [attachment for attachment in hub.attachments.values() if attachment.outbox.unconfirmed_bytes]
        sizes = {id(message): len(message) for attachment in attachments for message in attachment.outbox.messages()}
        for session in {session for attachment in attachments for session in attachment.client.sessions}:
            for entry in session.journal.replay():
                sizes.pop(id(text_of(entry)), None)
        total += sum(sizes.values())
    return total
