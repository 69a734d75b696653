"""The system tells the state of a connection, and its addresses."""

import socket
import sys
from collections.abc import Iterator

import pytest

from acp_gateway.transports.path_state import path_state, route_of, source_address

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends of a TCP connection on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_bytes_that_the_peers_system_has_are_acknowledged(pair: Pair) -> None:
    near, far = pair
    before = path_state(near)
    near.sendall(b"x" * 1000)
    assert len(far.recv(1000, socket.MSG_WAITALL)) == 1000
    far.sendall(b"y")
    near.recv(1)
    after = path_state(near)
    assert before is not None
    assert after is not None
    assert after.acknowledged - before.acknowledged == 1000
    assert not after.in_flight
    assert not after.queued


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_bytes_that_a_full_peer_does_not_take_are_queued(pair: Pair) -> None:
    near, _ = pair
    near.settimeout(0)
    with pytest.raises(BlockingIOError):
        near.sendall(b"x" * 100_000_000)
    state = path_state(near)
    assert state is not None
    assert state.queued


def test_a_route_has_the_addresses_of_both_ends(pair: Pair) -> None:
    near, far = pair
    assert route_of(near) == ("127.0.0.1", far.getsockname())
    assert source_address(far.getsockname()) == "127.0.0.1"


def test_other_sockets_and_closed_ones_have_neither_state_nor_route(pair: Pair) -> None:
    near, _ = pair
    near.close()
    assert path_state(near) is None
    assert route_of(near) is None
    if hasattr(socket, "AF_UNIX"):
        one, other = socket.socketpair()
        with one, other:
            assert path_state(one) is None
            assert route_of(one) is None


def test_a_malformed_address_has_no_source() -> None:
    assert source_address(("300.0.0.1", 1)) is None
