"""Ports for programs that are started again."""

import os
import socket
import sys

import pytest

from tests.kit.free_ports import FIRST, KEPT, claim, free_port, ports_to_choose


@pytest.mark.parametrize(
    ("system_range", "first", "last"),
    [("32768\t60999\n", FIRST, 65535), ("49152 65535", FIRST, 49151), ("1024 60999", 61000, 65535)],
)
def test_ports_that_the_system_may_choose_are_left_out(system_range: str, first: int, last: int) -> None:
    ports = ports_to_choose(system_range)
    assert (ports[0], ports[-1]) == (first, last)
    low, high = map(int, system_range.split())
    assert not any(low <= port <= high for port in ports)


def test_where_the_system_chooses_any_port_all_are_used() -> None:
    assert ports_to_choose("1024 65535") == list(range(FIRST, 65536))


def test_each_port_is_another_one_and_free() -> None:
    ports = [free_port() for _ in range(2 * KEPT)]
    assert len({*ports}) == len(ports)
    # Programs with HTTP/3 listen for datagrams there too.
    with socket.create_server(("127.0.0.1", ports[-1])), socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        if sys.platform == "linux":
            datagrams.bind(("127.0.0.1", ports[-1]))


def test_a_port_is_claimed_once_and_again_when_the_claim_has_ended() -> None:
    port = free_port()
    assert claim(port) is None
    for _ in range(KEPT):
        free_port()
    descriptor = claim(port)
    assert descriptor is not None
    os.close(descriptor)


def test_a_port_at_which_a_program_listens_is_not_claimed() -> None:
    port = free_port()
    for _ in range(KEPT):
        free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert claim(port) is None
