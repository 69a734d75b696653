"""The result of a search at nodes. Pure."""

from collections.abc import Container
from typing import NamedTuple


class FoundElsewhere(NamedTuple):
    """A session of a node in which something was found. Another machine has written its texts."""

    name: str
    """`NODE/ID`."""
    agent: str
    """`NODE/AGENT`."""
    owner: str
    """The identity there that has it."""
    title: str
    texts: int
    """Number of texts with all words."""
    text: str
    """A part of the last of them."""


class FoundAtNodes(NamedTuple):
    """The result of a search at nodes."""

    found: list[FoundElsewhere]
    missing: list[str]
    """Names of the nodes that could have been searched and were not."""
    complete: bool
    """False if a node has not read all histories yet."""


def beside(own: Container[str], there: FoundAtNodes, most: int) -> list[FoundElsewhere]:
    """Return what nodes have found beside a gateway's own result, which has sessions of these names; `most` at most."""
    return [one for one in there.found if one.name not in own][: max(most, 0)]
