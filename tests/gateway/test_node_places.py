"""The node that a request means by its names."""

from typing import Any

import pytest

from acp_gateway.errors import UnknownSession
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.node_places import Place, place_of

NODES = {"gpu1": None, "gpu2": None}


@pytest.mark.parametrize(
    ("wanted", "limits", "default", "found"),
    [
        ({}, {}, "own", None),
        ({}, {}, "gpu1/a", Place("gpu1", "a")),
        ({"observe": True}, {}, "gpu1/a", Place("gpu1", "a", observe=True)),
        ({"agent": "own"}, {}, "gpu1/a", None),
        ({"agent": "gpu2/b"}, {}, "own", Place("gpu2", "b")),
        ({"agent": "gpu3/b"}, {}, "own", None),
        ({"agent": "gpu2/b", "session": "s"}, {}, "own", Place("gpu2", "b", "s")),
        ({"agent": "gpu2/b", "session": "gpu2/s/1"}, {}, "own", Place("gpu2", "b", "s/1")),
        ({"session": "gpu2/s"}, {}, "own", Place("gpu2", None, "s")),
        # Without its node, a session is one of this gateway.
        ({"session": "s"}, {}, "gpu1/a", None),
        ({}, {"agents": ("gpu2/b",)}, "own", Place("gpu2", "b")),
        ({}, {"agents": ("gpu2/b", "own")}, "own", None),
        ({}, {"session": "gpu1/s"}, "own", Place("gpu1", None, "s")),
        ({}, {"only": "gpu1/s"}, "own", Place("gpu1", None, "s")),
        ({}, {"only": "s"}, "gpu1/a", None),
    ],
)
def test_names_with_a_node_mean_that(
    wanted: dict[str, Any], limits: dict[str, Any], default: str, found: Place | None
) -> None:
    assert place_of(ConnectRequest(**wanted), Access("ann", None, **limits), NODES, default) == found


@pytest.mark.parametrize(
    ("bound", "wanted", "fits"), [("gpu1/s", "gpu1/s", True), ("gpu1/s", "s", True), ("gpu1/s", "t", False)]
)
def test_a_credential_for_one_session_is_for_that(bound: str, wanted: str, fits: bool) -> None:
    access = Access("ann", None, session=bound)
    if fits:
        assert place_of(ConnectRequest(session=wanted), access, NODES, "own") == Place("gpu1", None, "s")
    else:
        with pytest.raises(UnknownSession):
            place_of(ConnectRequest(session=wanted), access, NODES, "own")


@pytest.mark.parametrize(("agent", "session"), [("gpu1/a", "gpu2/s"), ("own", "gpu2/s")])
def test_an_agent_and_a_session_of_different_machines_do_not_belong_together(agent: str, session: str) -> None:
    with pytest.raises(UnknownSession):
        place_of(ConnectRequest(agent, session), Access("ann", None), NODES, "own")


def test_the_query_of_a_place_keeps_names_whole() -> None:
    assert Place("gpu1", "a", "s 1/ü&+", observe=True).query == "agent=a&session=s%201%2F%C3%BC%26%2B&observe=1"
    assert Place("gpu1").query == ""
