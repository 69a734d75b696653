"""Checks that a gateway knows the agents, nodes and sessions which a command is given."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from acp_gateway.cli.common import print_warning
from acp_gateway.errors import GatewayError, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.client.local import LocalGateway
    from acp_gateway.config.load import Config

ANSWER_TIMEOUT = 5.0
"""Seconds to wait for the gateway that runs."""


def check_session(settings: "Config", session: str) -> None:
    """Raise `UsageError` if the gateway has no session with this id, open or stored.

    A node has its sessions itself: of `NODE/ID`, only the node is looked at.
    """
    from acp_gateway.client.local import LocalGateway
    from acp_gateway.config.editing.toml_file import suggestion
    from acp_gateway.gateway.gateway import DATABASE
    from acp_gateway.gateway.storage.database import read_session_ids

    node, _, its_id = session.partition("/")
    if its_id and (settings.cluster is not None or node in known_nodes(settings)):
        return
    path = settings.gateway.state_dir / DATABASE
    known = read_session_ids(path)
    if known is None:
        print_warning(f"{path} cannot be read: is there such a session?")
    elif session not in known and not _is_open(LocalGateway(settings.gateway.state_dir), session):
        hint = printable(suggestion(session[:64], known))
        raise UsageError(
            f'this gateway has no session "{printable(session, size=64)}"{hint}; `acp-gateway sessions` lists them, '
            "the id first"
        )


def _is_open(gateway: "LocalGateway", session: str) -> bool:
    """Return whether the gateway that runs has a session. Of one that was just opened, nothing may be stored yet."""
    import trio

    try:
        gateway.check_running()
        return trio.run(partial(gateway.knows, session, time_limit=ANSWER_TIMEOUT))
    except GatewayError:
        return False


def check_agents(settings: "Config", names: Iterable[str]) -> None:
    """Raise `UsageError` for the first name of an agent that neither the configuration nor a node can have."""
    from acp_gateway.config.nodes import is_name_at_node

    lent = known_nodes(settings)
    own = [name for name in names if not settings.may_be_of_node(name)]
    of_none = [name for name in own if not (is_name_at_node(name) and name.partition("/")[0] in lent)]
    check_names("agent", of_none, settings.agents)


def known_nodes(settings: "Config") -> list[str]:
    """Return the names of the nodes of a gateway: those of its sections, and those that were added."""
    from acp_gateway.security.token_store import TokenStore

    tokens = TokenStore(settings.gateway.state_dir).tokens()
    return [*settings.nodes, *(name for token in tokens if token.role == "node" for name in token.nodes)]


def check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UsageError` for the first name that the configuration does not have."""
    from acp_gateway.config.editing.toml_file import suggestion

    for name in names:
        if name not in known:
            raise UsageError(f"there is no {kind} {name!r} in the configuration{suggestion(name, known)}")
