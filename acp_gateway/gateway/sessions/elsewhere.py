"""Sessions that nodes have, as a client of this gateway is told of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class ListedAtNodes(NamedTuple):
    """The sessions of all nodes that a client may use."""

    sessions: Sequence[dict[str, Any]] = ()
    """Each as members of an object, with its name and agent as they are named here; the oldest first."""
    more: int = 0
    """Number of further ones."""
    missing: Sequence[str] = ()
    """Nodes that did not answer."""
    problems: Sequence[str] = ()
    """Reasons, a line each, also for nodes that are not known now."""
