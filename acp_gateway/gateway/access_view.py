"""Describes to a client what its credential allows, and which agents of the gateway it may use.

A client asks over a control connection, so an agent is neither named nor started. Nothing is told that the client could
not find out by trying.
"""

from collections.abc import Callable, Collection, Container
from datetime import UTC, datetime
from typing import Any

from acp_gateway import __version__
from acp_gateway.config.load import Config
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.workspaces import workspaces_of


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
