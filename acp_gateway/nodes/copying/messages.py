"""Copies messages between two streams, both ways, until one of them ends.

This is for streams over unlike transports, and for links that are held here. A side that takes nothing stops the other:
beside one window, no more is kept than what one read brings.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from acp_gateway.client.reconnecting.held_link import HeldLink
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.protocol.link_messages import CONTROL_WORD, read_control
from acp_gateway.transports.link import WINDOW
from acp_gateway.transports.maintained import Charge, MaintainedStream
from acp_gateway.transports.streams import CloseReason, Flooded, MessageTooLarge, Unfinished

_LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


async def copy_messages(client: MaintainedStream, node: MaintainedStream, charge: Charge) -> Disconnect:
    """Copy until a side ends, and return how the client's connection is to be closed. The caller closes both.

    To a link that is held here, the control messages of links do not pass, nor from it. `charge` charges the client.
    Cancelling may lose messages, but for those of a link.
    """
    ends: list[Disconnect] = []
    held = node if isinstance(node, HeldLink) else None

    def send_at_once(batch: Sequence[bytes]) -> bool:
        if client.pending_bytes <= WINDOW:
            # Of a lost client, the task that sends what waits tells.
            with suppress(*_LOST):
                client.send_nowait(batch)
                return True
        return False

    async def to_node() -> None:
        try:
            while True:
                batch = await client.receive_batch()
                size, frames = client.meter.take()
                pause = charge(len(batch), size, frames=frames)
                node.send_nowait(batch if held is None else _ordinary(batch))
                if answers := node.take_answers():
                    client.send_nowait(answers)
                if pause:
                    await trio.sleep(pause)
                if node.pending_bytes > WINDOW:
                    await node.drain(WINDOW)
        except trio.EndOfChannel:
            ends.append(Disconnect(CloseReason.NORMAL, ""))
        except MessageTooLarge as error:
            ends.append(Disconnect(CloseReason.TOO_LARGE, str(error)))
        except (Flooded, Unfinished) as error:
            ends.append(Disconnect(CloseReason.POLICY, str(error)))
        except _LOST as error:
            ends.append(Disconnect(CloseReason.AGENT_GONE, str(error)))
        nursery.cancel_scope.cancel()

    async def to_client() -> None:
        try:
            while True:
                batch = await node.receive_batch()
                client.send_nowait(batch)
                await client.drain(WINDOW)
        except trio.EndOfChannel:
            ends.append(Disconnect(CloseReason.NORMAL, ""))
        except _LOST as error:
            ends.append(Disconnect(CloseReason.AGENT_GONE, str(error)))
        nursery.cancel_scope.cancel()

    if held is not None:
        held.offer_to(send_at_once)
    async with trio.open_nursery() as nursery:
        client.meter.charge = charge
        for task in (client.run, node.run, to_node, to_client):
            nursery.start_soon(task)
    return ends[0]


def _ordinary(batch: Sequence[bytes]) -> Sequence[bytes]:
    """Return the messages that are not control messages of a link, which a client without one may not send."""
    if not any(CONTROL_WORD in message for message in batch):
        return batch
    return [message for message in batch if read_control(message) is None]
