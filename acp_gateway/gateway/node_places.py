"""The node that a request for the endpoint means by its names: `NODE/AGENT`, `NODE/ID`, and `NODE/LINK`."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

from acp_gateway.config.nodes import split_name
from acp_gateway.gateway.access import Access, ConnectRequest, unknown_session


class Place(NamedTuple):
    """The wish of a client at a node, as the node names things."""

    node: str
    agent: str | None = None
    session: str | None = None
    observe: bool = False

    @property
    def query(self) -> str:
        """The query of a request for it at the node."""
        named = {"agent": self.agent, "session": self.session, "observe": "1" if self.observe else None}
        return urlencode({name: value for name, value in named.items() if value is not None}, quote_via=quote, safe="")


def place_of(wanted: ConnectRequest, access: Access, nodes: Mapping[str, object], default_agent: str) -> Place | None:
    """Return the place that a connect request means; None for one of this gateway.

    Without agent and session, it is that of the credential's session, of its only agent, or of the default agent. An
    agent and a session of different machines raise `UnknownSession`.
    """
    bound = access.session or access.only
    agent, session = wanted.agent, wanted.session or bound
    if bound is not None and session not in (bound, _bare(bound, nodes)):
        raise unknown_session(session)
    session = bound or session
    if agent is None and session is None:
        agent = access.agents[0] if access.agents is not None and len(access.agents) == 1 else default_agent
    at_agent = None if agent is None else split_name(agent, nodes)
    at_session = None if session is None else split_name(session, nodes)
    found = at_session or at_agent
    if found is None:
        return None
    if agent is not None and (at_agent is None or at_agent[0] != found[0]):
        raise unknown_session(session)
    return Place(
        found[0],
        None if at_agent is None else at_agent[1],
        session if at_session is None else at_session[1],
        wanted.observe,
    )


def _bare(session: str, nodes: Mapping[str, object]) -> str:
    """Return the id of a session as its own machine has it."""
    found = split_name(session, nodes)
    return session if found is None else found[1]
