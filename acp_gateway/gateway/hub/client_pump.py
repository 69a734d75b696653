"""Relays clients' messages to the multiplexer, over one connection after another where a link can be resumed.

A batch is handled in turns of at most `AT_ONCE` messages and `TURN` seconds, so that a client that sends a lot delays
no other one for long. While too much is pending for the agent, messages of a resumable link are not acknowledged, and
other clients are not read.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final, Protocol

import trio

from acp_gateway.core.agent_requests import AgentRequest, Reply
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.gateway.hub.agent_supervisor import AgentSupervisor
from acp_gateway.gateway.hub.attachment import BUG, Attachment, ClientConnection, Disconnect
from acp_gateway.gateway.hub.large_messages import has_large, parse_messages
from acp_gateway.printable import counted
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.link_messages import texts_of
from acp_gateway.protocol.text.large_messages import LARGE, Parsed
from acp_gateway.transports.link import Miscounted, Overrun
from acp_gateway.transports.streams import CloseReason, Flooded, MessageTooLarge, Unfinished
from acp_gateway.transports.timers import TaskSpawner, TimerQueue

log = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""Messages of one client that are handled before other tasks get a turn: one read may bring thousands."""

TURN: Final = 0.002
"""Seconds after which other tasks get a turn, however few messages were handled: messages differ in cost."""


class PumpOwner(Protocol):
    """The part of a hub that its client pump uses."""

    multiplexer: Multiplexer

    def deliver(self) -> None:
        """Carry out what the multiplexer has decided."""

    def note_time(self) -> None:
        """Record activity, and tell the multiplexer the time."""

    def tell_time(self, now: float) -> None:
        """Tell the multiplexer the time."""


class ClientPump:
    """Relays the messages of the clients of a hub.

    Args:
        owner: the hub.
        supervisor: of the hub's agent.
        timers: runs what is due on connections.
        memory_grew: called with the size of handled messages, which may be kept somewhere.
        high_water: bytes that a client may send while the agent is congested.
        link_timeout: seconds of silence after which the connection of a resumable link counts as lost.
        stall_timeout: seconds in which a resumable link has to take its last messages.
        clock: returns the time in seconds, for measuring what messages cost.
    """

    def __init__(
        self,
        owner: PumpOwner,
        supervisor: AgentSupervisor,
        timers: TimerQueue,
        *,
        memory_grew: Callable[[int], None],
        high_water: int,
        link_timeout: float,
        stall_timeout: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._owner = owner
        self._multiplexer = owner.multiplexer
        self._supervisor = supervisor
        self._timers = timers
        self._memory_grew = memory_grew
        self._high_water = high_water
        self._link_timeout = link_timeout
        self._stall_timeout = stall_timeout
        self._clock = clock

    async def serve(self, attachment: Attachment) -> None:
        """Relay for a client until it is gone, over all connections that its link has."""
        while await self._serve_connection(attachment) and await attachment.wait_connected():
            self._reconnected(attachment)

    async def _serve_connection(self, attachment: Attachment) -> bool:
        """Relay over the current connection of a client; return whether the client may resume over another one."""
        connection, left = attachment.connection, False
        assert connection is not None
        connection.served = True
        try:
            async with trio.open_nursery() as nursery:
                try:
                    self._start_upkeep(attachment, connection, TaskSpawner(nursery))
                    left = await self._relay(attachment)
                finally:
                    attachment.unhandled_bytes = 0
                    connection.drop_spawner()
        finally:
            # The close reason is sent over the newest connection; a replaced one is only released.
            if attachment.connection is not connection:
                await connection.abort()
        if left or attachment.ended:
            return False
        if attachment.connection is connection:
            # Before the stream drops the message that has begun.
            attachment.link.disconnect()
        # Aborted, since nothing is left to be sent, and a closing handshake on a dead connection would take its time.
        await connection.abort()
        # A newer connection may exist by now, or may have been lost already.
        if attachment.away_since is None and (attachment.connection is connection or attachment.link.stream is None):
            attachment.connection_lost(trio.current_time())
            self._owner.tell_time(trio.current_time())
            self._multiplexer.client_away(attachment.client)
            self._owner.deliver()
            log.info("%s: disconnected, keeping its link", attachment.client.name)
        return True

    def _start_upkeep(self, attachment: Attachment, connection: ClientConnection, spawner: TaskSpawner) -> None:
        """Start everything that a connection needs besides being read."""
        attachment.use_spawner(spawner)
        self._timers.schedule(connection.stream.tick, spawner)
        if attachment.link.resumable:
            self._timers.schedule(partial(self._watch_link, attachment, connection), spawner)
            # Messages of an earlier connection may have to be acknowledged before more are read.
            self._acknowledge(attachment)
        if attachment.disconnect is not None:
            self.bound_last_messages(attachment)

    def _reconnected(self, attachment: Attachment) -> None:
        """Handle the return of a client."""
        since, attachment.away_since = attachment.away_since, None
        away = 0.0 if since is None else trio.current_time() - since
        log.info(
            "%s: back after %.1f s, with %s not confirmed",
            attachment.client.name,
            away,
            counted(len(attachment.outbox), "message"),
        )
        self._owner.tell_time(trio.current_time())
        self._multiplexer.client_back(attachment.client)
        self._owner.deliver()
        # The agent may have to wait for several clients now, which means for none.
        self._supervisor.changed.unpark_all()

    async def _relay(self, attachment: Attachment) -> bool:
        """Relay messages until the connection is over; return whether the client has left for good."""
        client, resumable = attachment.client, attachment.link.resumable
        assert attachment.connection is not None
        stream = attachment.connection.stream
        # Seconds that messages have taken since other tasks had their turn for certain.
        turn = 0.0
        try:
            while True:
                batch = texts_of(await attachment.link.receive_batch())
                size = attachment.unhandled_bytes = sum(map(len, batch))
                spent: list[float] = []
                if attachment.tape is not None:
                    began = self._clock()
                    attachment.tape.write("from_client", batch)
                    spent.append(self._clock() - began)
                if not resumable:
                    if self._supervisor.congested:
                        await self._hold_back(attachment, size)
                    else:
                        attachment.sent_while_congested = 0
                texts: Sequence[bytes | Parsed | InvalidMessage] = batch
                if size > LARGE and has_large(batch):
                    # Shielded, because received messages count whatever becomes of the connection.
                    with trio.CancelScope(shield=True):
                        texts = await parse_messages(batch, spent.append)
                    if attachment.ended:
                        return True
                handled, surcharge, seconds = 0, 0, sum(spent)
                while handled < len(texts):
                    if handled:
                        # Shielded, because received messages count whatever becomes of the connection.
                        await trio.lowlevel.cancel_shielded_checkpoint()
                    began = self._clock()
                    handled = self._handle(attachment, texts, handled, began + TURN)
                    seconds += self._clock() - began
                    surcharge += self._multiplexer.take_surcharge()
                    if handled < 0:
                        return True  # The client was cut off: its further requests are dropped.
                attachment.unhandled_bytes = 0
                stream.note_handled()
                self._memory_grew(size)
                self._multiplexer.traffic.bytes_from_clients += size
                if resumable:
                    self._acknowledge(attachment)
                count = len(batch) + surcharge
                # Freed now, because it may be large and the next batch may be long in coming.
                del batch, texts
                uncharged, frames = stream.meter.take()
                pause = attachment.charge(count, uncharged, seconds, frames)
                turn += seconds
                if pause or turn >= TURN:
                    turn = 0.0
                    await trio.sleep(pause)
        except trio.EndOfChannel:
            log.debug("%s: the client has closed the connection", client.name)
            return attachment.link.left
        except MessageTooLarge as error:
            _refuse(attachment, CloseReason.TOO_LARGE, error, "message_too_large")
            attachment.send([jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, str(error))])
            return True
        except (Miscounted, Overrun) as error:
            _refuse(attachment, CloseReason.POLICY, error, "miscounted")
            return True
        except Flooded as error:
            _refuse(attachment, CloseReason.POLICY, error, "flooded")
            return True
        except Unfinished as error:
            if resumable:
                # The link may do better over another connection.
                log.warning("%s: lost: %s", client.name, error)
            else:
                _refuse(attachment, CloseReason.POLICY, error, "unfinished")
            return attachment.link.left
        except trio.BrokenResourceError as error:
            log.info("%s: %s", client.name, error)
            return attachment.link.left
        except trio.ClosedResourceError:
            # The client was cut off when bytes had just come.
            return attachment.link.left

    def _handle(
        self, attachment: Attachment, messages: Sequence[bytes | Parsed | InvalidMessage], first: int, until: float
    ) -> int:
        """Handle messages from index `first` on, until this time at most; return the index of the next one.

        Returns -1 if the client was cut off because of them.
        """
        self._owner.note_time()
        client, at, multiplexer = attachment.client, first, self._multiplexer
        for at in range(first, min(first + AT_ONCE, len(messages))):
            multiplexer.receive_from_client(client, messages[at])
            if multiplexer.has_replay:
                self._owner.deliver()
                if attachment.ended:
                    return -1
            if self._clock() >= until or multiplexer.surcharge:
                break
        self._owner.deliver()
        return at + 1

    def answer(self, attachment: Attachment, agent_request: AgentRequest, reply: Reply) -> bool:
        """Answer a request of the agent as a client inside the process has decided; return False if it is not open.

        Charges nothing: its connection has charged for the message that brought the answer.
        """
        client = attachment.client
        self._owner.note_time()
        if attachment.tape is not None:
            number = agent_request.forwarded_ids.get(client, 0)
            attachment.tape.write("from_client", [b'{"jsonrpc":"2.0","id":%d,%b}' % (number, reply.member)])
        try:
            answered = self._multiplexer.answer(client, agent_request, reply)
            self._owner.deliver()
        except Exception:
            # A bug ends this client and no other.
            log.exception("%s: internal error, connection closed", client.name)
            attachment.close(BUG)
            return False
        self._multiplexer.traffic.bytes_from_clients += len(reply.member)
        return answered

    # Flow control

    def _watch_link(self, attachment: Attachment, connection: ClientConnection, now: float) -> float:
        """Acknowledge messages, and give up a silent connection; return the time of the next call."""
        due = attachment.link.tick(now, self._link_timeout)
        if due is None:
            log.info(
                "%s: the connection was lost: nothing was heard for %g s", attachment.client.name, self._link_timeout
            )
            connection.cancel()
            return inf
        return due

    def _acknowledge(self, attachment: Attachment) -> None:
        """Acknowledge the messages of a resumable link, now or when the agent has read enough."""
        if self._supervisor.congested:
            attachment.spawn(self._acknowledge_later, attachment)
        else:
            attachment.link.acknowledge()

    async def _acknowledge_later(self, attachment: Attachment) -> None:
        await self._supervisor.wait_uncongested()
        attachment.link.acknowledge()

    async def _hold_back(self, attachment: Attachment, size: int) -> None:
        """Delay the messages of a client, of so many bytes, while the agent is congested.

        They are delayed only beyond a high-water mark of the client's own: the message behind a large prompt may be its
        cancellation, or a response. An agent that reads nothing is stopped.
        """
        attachment.sent_while_congested += size
        if attachment.sent_while_congested > self._high_water:
            attachment.sent_while_congested = 0
            await self._supervisor.wait_uncongested()

    def bound_last_messages(self, attachment: Attachment) -> None:
        """Bound the time in which a resumable link takes its last messages; it can do without them when it resumes."""
        if attachment.link.resumable:
            due = min(attachment.disconnect_due, trio.current_time() + self._stall_timeout)
            attachment.disconnect_due = due
            attachment.spawn(self._end_at, attachment, due)

    async def _end_at(self, attachment: Attachment, due: float) -> None:
        await trio.sleep_until(due)
        attachment.end()


def _refuse(attachment: Attachment, code: CloseReason, error: Exception, reason: str) -> None:
    """Close a connection because of what came over it."""
    log.warning("%s: closed: %s", attachment.client.name, error)
    attachment.disconnect = attachment.disconnect or Disconnect(code, str(error), reason)
