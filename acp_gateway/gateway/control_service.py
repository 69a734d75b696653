"""Serves control connections of a gateway: what each may ask, by its grant.

A client asks here what its credential allows, and which agents it may use. An agent is neither named nor started for
that, and nothing is told that the client could not find out by trying.
"""

from collections.abc import Callable, Collection, Container
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import trio

from acp_gateway import __version__
from acp_gateway.config.load import Config
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.browsers import SignInCodes
from acp_gateway.gateway.control_channel import ControlConnection, ControlContext, load_of, serve_control_channel
from acp_gateway.gateway.hub.attachment import BUG
from acp_gateway.gateway.workspaces import workspaces_of
from acp_gateway.security.token_store import CLUSTER
from acp_gateway.transports.maintained import MaintainedStream


class UsableAgents(Container[str]):
    """The agents whose sessions a connection is told of: also agents of nodes that do not answer now.

    Args:
        grant: the connection.
        config: returns the configuration in force.
        wanted: the only agent that it asks for; None for all.
    """

    def __init__(self, grant: Grant, config: Callable[[], Config], wanted: str | None) -> None:
        self._grant = grant
        self._config = config
        self._wanted = wanted

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or self._wanted not in (None, name) or not self._grant.access.may_use(name):
            return False
        config = self._config()
        if name in config.agents:
            return True
        return not self._grant.connect_request.passed and config.find_agent(name) is not None


def describe_access(grant: Grant, config: Config, names: Collection[str] = ()) -> dict[str, Any]:
    """Return identity, role, limits and end of a connection's credential, as members of the response; see
    `docs/wire.md`.

    `names` are agents of nodes, which another gateway is not told. Members without a value are left out.
    """
    access = grant.access
    # A connection that is for one session uses the agent of that, and is not told which others there are.
    usable = config.agents if grant.scope.only is None else {}
    agents = {name: section.scope for name, section in usable.items() if access.may_use(name)}
    if usable is config.agents and not grant.connect_request.passed and access.workspaces is None:
        agents |= {
            name: section.scope
            for name in names
            if access.may_use(name) and (section := config.find_agent(name)) is not None
        }
    described: dict[str, Any] = {
        "version": __version__,
        "identity": access.identity,
        "credential": access.credential,
        "role": grant.role.value,
        "agents": agents,
    }
    if grant.scope.only is None:
        allowed = workspaces_of(config.workspaces, None)
        described["folders"] = [
            each.root for each in allowed if access.workspaces is None or each.name in access.workspaces
        ]
    default = config.default_agent if access.agents is None or len(access.agents) > 1 else next(iter(agents), "")
    if default in agents:
        described["defaultAgent"] = default
    texts = {
        "label": None if access.token is None else access.token.label,
        "session": grant.scope.only,
        "workspaces": None if access.workspaces is None else list(access.workspaces),
        "maySpeakFor": list(access.may_speak_for) or None,
        "expires": _end_of(access),
    }
    return described | {name: value for name, value in texts.items() if value is not None}


def _end_of(access: Access) -> str | None:
    """Return the time from which the credential is refused, in ISO 8601; None if it has no end."""
    if access.browser is None and access.token is not None:
        return access.token.expires
    return (
        None if access.expires is None else datetime.fromtimestamp(access.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )


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
    extensions = gateway.extensions
    exchange = extensions.token_exchange
    is_gateway = bool(grant.connect_request.passed) and grant.scope.only is None
    return ControlContext(
        gateway.registry,
        UsableAgents(grant, lambda: gateway.config, grant.connect_request.agent),
        lambda: gateway.hubs,
        lambda: gateway.storage.problem,
        codes.make,
        lambda: describe_access(grant, gateway.config, gateway.admissions.names),
        extensions.operations if grant.access.is_own_user else None,
        # Gateways that are nodes of each other would wait for each other's lists.
        None if grant.connect_request.passed else extensions.merge_nodes,
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
