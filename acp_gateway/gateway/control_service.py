"""Serves control connections of a gateway: what each may ask, by its grant."""

from typing import TYPE_CHECKING

import trio

from acp_gateway.gateway.access import Grant
from acp_gateway.gateway.access_view import UsableAgents, describe_access
from acp_gateway.gateway.control_channel import ControlConnection, ControlContext, load_of, serve_control_channel
from acp_gateway.gateway.hub.attachment import BUG
from acp_gateway.gateway.sign_in_codes import SignInCodes
from acp_gateway.security.token_file import CLUSTER
from acp_gateway.transports.maintained import MaintainedStream

if TYPE_CHECKING:
    from acp_gateway.gateway.gateway import Gateway


async def serve_control(gateway: "Gateway", stream: MaintainedStream, grant: Grant) -> None:
    """Serve a connection that asks the gateway itself, about what its token may join, until it ends."""
    access = grant.access
    connection = ControlConnection(access)
    gateway.control_streams.add(stream)
    try:
        with connection.scope, gateway.connections.watched(connection):
            limiter = gateway.connections.rate_limiter(
                access.identity, guest=grant.scope.guest, observer=access.role == "observer"
            )
            context = _context(gateway, grant)
            connection.disconnect = await serve_control_channel(stream, grant.scope, context, limiter.charge)
    except Exception:
        connection.disconnect = BUG
        raise
    finally:
        gateway.control_streams.discard(stream)
        with trio.CancelScope(shield=True):
            await stream.aclose(connection.disconnect.code, connection.disconnect.text)


def _context(gateway: "Gateway", grant: Grant) -> ControlContext:
    codes = SignInCodes(grant, gateway.registry, gateway.browsers, gateway.audit_throttle, gateway.config.listen)
    exchange = gateway.token_exchange
    is_gateway = bool(grant.connect_request.passed) and grant.scope.only is None
    return ControlContext(
        gateway.registry,
        UsableAgents(grant, lambda: gateway.config, grant.connect_request.agent),
        lambda: gateway.hubs,
        lambda: gateway.storage.problem,
        codes.make,
        lambda: describe_access(grant, gateway.config, gateway.admissions.names),
        gateway.operations if grant.access.is_own_user else None,
        # Gateways that are nodes of each other would wait for each other's lists.
        None if grant.connect_request.passed else gateway.admissions.merge_nodes,
        (lambda: load_of(gateway.hubs, gateway.metrics.recent_lag)) if is_gateway else None,
        grant.access.may_speak_for,
        max_sessions=gateway.config.limits.max_node_sessions,
        tell=exchange.tell if exchange is not None and _is_of_cluster(grant) else None,
        confirm=exchange.confirm if exchange is not None and grant.access.is_own_user else None,
        version=lambda: gateway.changes.version,
    )


def _is_of_cluster(grant: Grant) -> bool:
    """Return whether the connection is that of a node with the token of the cluster, for itself."""
    access = grant.access
    return access.token is not None and access.token.id == CLUSTER and not access.spoken_for
