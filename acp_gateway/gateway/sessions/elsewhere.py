"""Sessions that nodes have, and what they have cost, as a client of this gateway is told of them."""

from collections import Counter
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


class SpentAtNodes(NamedTuple):
    """Costs of the sessions of all nodes that a client may use."""

    rows: list[dict[str, Any]]
    """Sums as `gateway/usage` tells them, with the `machine`, and names as they are here."""
    total: Counter[str]
    more: int
    """Number of further ones."""
    missing: list[str]
    """Nodes that did not answer."""
