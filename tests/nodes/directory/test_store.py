"""The interface of a directory; what it does is in `test_specification`."""

from acp_gateway.errors import Unreachable
from acp_gateway.nodes.directory.store import ClusterLost


def test_lost_directory_counts_as_something_unreachable() -> None:
    assert issubclass(ClusterLost, Unreachable)
