"""Stops this gateway's part of a session that another node of its cluster has adopted (fencing)."""

import logging
from collections.abc import Callable, Iterable

from acp_gateway.core.registry import Registry
from acp_gateway.core.sessions import AgentHandle, Client, Session
from acp_gateway.core.takeover import MOVED
from acp_gateway.gateway.attachment import Disconnect
from acp_gateway.gateway.hub import Hub
from acp_gateway.transports.streams import CloseReason

log = logging.getLogger(__name__)


def stop_moved(session: Session, node: str, registry: Registry, find_hub: Callable[[AgentHandle], Hub | None]) -> None:
    """Remember that a node has adopted a session, and stop it here if it is live. May be repeated.

    Args:
        session: one of an agent of this gateway.
        node: the node that has adopted it.
        registry: remembers it, also for the gateway's next process.
        find_hub: returns the hub of an agent process.

    Connections that came only for this session are closed with the place where it lives. An agent that can't close a
    session is stopped, if no other session lives in its process.
    """
    if session.moved == node and not session.live:
        return
    log.warning("session %.80r of agent %s lives on the node %s: it is stopped here", session.id, session.agent, node)
    handle = session.agent_handle
    registry.set_moved(session, node)
    hub = None if handle is None else find_hub(handle)
    if hub is None:
        return
    _close(hub, hub.multiplexer.session_moved(session), registry.moved_text(session))
    if not hub.multiplexer.abilities.close and not hub.multiplexer.sessions:
        hub.stop_useless("its only session lives on another node")


def leave_adopted(
    session: Session, node: str, registry: Registry, find_hub: Callable[[AgentHandle], Hub | None]
) -> None:
    """Stop the part that this gateway has in a session of another node, which is away. May be repeated.

    Args:
        session: one of an agent of that node.
        node: the node that has adopted it.
        registry: of the gateway.
        find_hub: returns the hub of the link to the agent.

    Connections that came only for this session are closed: their clients connect again, and reach it on its node.
    """
    hub = None if session.agent_handle is None else find_hub(session.agent_handle)
    if hub is None:
        return
    log.warning("session %.80r of agent %s lives on the node %s: it is left here", session.id, session.agent, node)
    _close(hub, hub.multiplexer.session_left(session, node), registry.moved_text(session, node))


def _close(hub: Hub, clients: Iterable[Client], why: str) -> None:
    """Carry out the end of a session, and close the connections of clients that came only for it."""
    hub.deliver()
    for client in clients:
        attachment = hub.attachments.get(client)
        if attachment is not None:
            attachment.close_after_sending(Disconnect(CloseReason.POLICY, why, MOVED))
