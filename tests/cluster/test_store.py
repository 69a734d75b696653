"""The interface of a directory; what it does is in `test_specification`."""

from acp_gateway.cluster.store import ClusterLost
from acp_gateway.errors import Unreachable


def test_lost_directory_counts_as_something_unreachable() -> None:
    assert issubclass(ClusterLost, Unreachable)
