"""Listening sockets: bound, inherited, and what becomes of a unix socket's file."""

import errno
import os
import re
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import pytest
import trio

from acp_gateway.config.addresses import parse_address
from acp_gateway.errors import CannotListen
from acp_gateway.server import sockets as binding_module
from acp_gateway.server.sockets import BoundSockets, bind, check_free, find_listener, find_own_addresses
from tests.kit.doubles import TIMEOUT, open_descriptors

TCP = "tcp://127.0.0.1:0"


@pytest.fixture
def unix(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/socket"


@asynccontextmanager
async def binding(url: str, *inherited: socket.socket) -> AsyncIterator[BoundSockets]:
    """The listening sockets of an address, while the block runs."""
    bound = await bind(parse_address(url), inherited)
    try:
        yield bound
    finally:
        bound.close()


async def greet(bound: BoundSockets) -> bytes:
    """Return the greeting that a client receives there."""
    (listener,) = bound.listeners
    with trio.fail_after(TIMEOUT), socket.socket(listener.socket.family) as client:
        client.connect(listener.socket.getsockname())
        stream = await listener.accept()
        await stream.send_all(b"hello")
        await stream.aclose()
        return client.recv(100)


async def test_where_it_is_can_be_learned_when_the_system_has_chosen() -> None:
    async with binding(TCP) as bound:
        (url,) = bound.urls
        assert re.fullmatch(r"tcp://127\.0\.0\.1:[1-9][0-9]*", url)
        assert await greet(bound) == b"hello"


async def test_an_address_that_is_taken_is_an_error_of_its_own() -> None:
    async with binding(TCP) as bound:
        with pytest.raises(CannotListen, match=f"cannot listen on {re.escape(bound.urls[0])}: .*in use"):
            await bind(parse_address(bound.urls[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="it is /proc that tells")
async def test_the_process_that_has_taken_an_address_is_named() -> None:
    async with binding(TCP) as bound:
        with pytest.raises(CannotListen, match=rf"address already in use by process {os.getpid()} \(\S.*\)$"):
            await bind(parse_address(bound.urls[0]))


def test_the_search_for_who_has_taken_an_address_goes_on_past_a_process_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(binding_module, "PROC", tmp_path)
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text("header\n0: 0100007F:1D5B 00000000:0000 0A 0 0 0 0 0 4711\n")
    ended = tmp_path / "7"
    ended.symlink_to("x" * 300)  # Can't be looked into, like one that has just ended.
    (tmp_path / "8/fd").mkdir(parents=True)
    (tmp_path / "8/fd/3").symlink_to("socket:[4711]")
    (tmp_path / "8/stat").write_text("8 (nginx) S " + "0 " * 40)
    found = find_listener(7515), find_listener(7516)
    ended.unlink()  # Nothing that searches the folders of tests could go past it.
    assert found == ("process 8 (nginx)", None)


async def test_where_nothing_tells_who_has_taken_an_address_another_gateway_is_suspected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(binding_module, "PROC", tmp_path)
    async with binding(TCP) as bound:
        with pytest.raises(CannotListen, match=r"address already in use; is another acp-gateway running\?$"):
            await bind(parse_address(bound.urls[0]))


@pytest.mark.parametrize(
    ("url", "error", "reason"),
    [
        (
            "tcp://nosuchhost:7557",
            socket.gaierror(socket.EAI_AGAIN, "try again"),
            "nosuchhost is not a name or address of this machine (it does not resolve)",
        ),
        (
            "wss://10.99.99.99:7443",
            OSError(errno.EADDRNOTAVAIL, "?"),
            "this machine does not have the address 10.99.99.99: use one that it has, or 0.0.0.0 for all",
        ),
        (
            "wss://0.0.0.0:443",
            PermissionError(errno.EACCES, "?"),
            "ports below 1024 are for root: use 7443, or a socket unit (`acp-gateway files systemd/README.md`)",
        ),
        ("wss://0.0.0.0:7443", PermissionError(errno.EACCES, "?"), "permission denied"),
    ],
)
async def test_what_the_system_refuses_is_told_with_its_cause(
    url: str, error: OSError, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(trio, "open_tcp_listeners", refuse)
    address = parse_address(url)
    with pytest.raises(CannotListen) as caught:
        await bind(address)
    assert str(caught.value) == f"cannot listen on {address}: {reason}"


async def test_the_socket_is_its_owners_alone(unix: str, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        async with binding(unix):
            assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
            assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


async def test_the_file_goes_with_the_socket(unix: str, tmp_path: Path) -> None:
    async with binding(unix) as bound:
        assert bound.urls == [unix]
        assert (tmp_path / "socket").exists()
    assert not (tmp_path / "socket").exists()


async def test_what_is_closed_twice_does_not_remove_the_next_ones_file(unix: str, tmp_path: Path) -> None:
    async with binding(unix) as first:
        pass
    async with binding(unix):
        first.close()
        assert (tmp_path / "socket").exists()


async def test_a_socket_that_a_dead_gateway_left_behind_is_replaced(unix: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "socket"))
    async with binding(unix) as bound:
        assert await greet(bound) == b"hello"


async def test_a_socket_on_which_another_gateway_listens_is_left_alone(unix: str) -> None:
    async with binding(unix) as bound:
        with pytest.raises(CannotListen, match="another gateway is listening"):
            await bind(parse_address(unix))
        # The probe for a listener has gone.
        await (await bound.listeners[0].accept()).aclose()
        assert await greet(bound) == b"hello"


async def test_a_gateway_that_is_too_busy_to_answer_is_not_waited_for(unix: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(tmp_path / "socket"))
        busy.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(tmp_path / "socket"))
            with pytest.raises(CannotListen, match="another gateway is listening"):
                await bind(parse_address(unix))
    assert (tmp_path / "socket").exists()


async def test_a_file_that_is_not_a_socket_is_left_alone(unix: str, tmp_path: Path) -> None:
    (tmp_path / "socket").write_text("precious")
    with pytest.raises(CannotListen, match="exists and is not a socket"):
        await bind(parse_address(unix))
    assert (tmp_path / "socket").read_text() == "precious"


async def test_a_socket_of_another_kind_is_left_alone(unix: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(tmp_path / "socket"))
        with pytest.raises(CannotListen, match="wrong type"):
            await bind(parse_address(unix))
    assert (tmp_path / "socket").exists()


async def test_a_socket_in_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(CannotListen, match=r"there is no directory .*/no for the socket"):
        await bind(parse_address(f"unix://{tmp_path}/no/socket"))
    assert open_descriptors() == before


async def test_a_socket_that_cannot_be_removed_is_logged(
    unix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with binding(unix):
        (tmp_path / "socket").unlink()
        (tmp_path / "socket").mkdir()
    assert f"cannot remove {tmp_path}/socket" in caplog.text


# Inherited sockets


async def test_an_inherited_socket_is_used_and_its_file_stays(unix: str, tmp_path: Path) -> None:
    given = socket.socket(socket.AF_UNIX)
    given.bind(str(tmp_path / "socket"))
    given.listen()
    async with binding(unix, given) as bound:
        assert bound.urls == [unix]
        assert await greet(bound) == b"hello"
    assert given.fileno() == -1
    assert (tmp_path / "socket").is_socket()


async def test_an_inherited_port_is_used() -> None:
    given = socket.create_server(("127.0.0.1", 0))
    url = f"ws://127.0.0.1:{given.getsockname()[1]}/acp"
    async with binding(url, given) as bound:
        assert bound.urls == [url]
        assert await greet(bound) == b"hello"


async def test_of_inherited_sockets_only_those_of_the_address_are_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        async with binding(TCP, other) as bound:
            assert await greet(bound) == b"hello"
            assert str(other.getsockname()[1]) not in bound.urls[0]
        assert other.fileno() >= 0


# Before there is a gateway


def test_an_address_that_is_taken_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(CannotListen, match="address already in use"):
            check_free(parse_address(f"wss://127.0.0.1:{port}"))
    check_free(parse_address(f"wss://127.0.0.1:{port}"))


def test_an_address_of_another_machine_is_not_free() -> None:
    with pytest.raises(CannotListen, match=r"this machine does not have the address 192\.0\.2\.1"):
        check_free(parse_address("wss://192.0.2.1:0"))


class FakeDatagrams:
    """Stands for a socket of a machine with these addresses by family; None without a route."""

    addresses: dict[int, str]
    vpn: str | None = None
    """Address to Tailscale's."""

    def __init__(self, family: int, _kind: int) -> None:
        self._family = family

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, place: tuple[str, int]) -> None:
        self._place = place[0]
        if self._family not in self.addresses:
            raise OSError(errno.ENETUNREACH, "unreachable")

    def getsockname(self) -> tuple[str, int]:
        if self._place == "100.100.100.100" and self.vpn is not None:
            return self.vpn, 1
        return self.addresses[self._family], 1


@pytest.mark.parametrize(
    ("addresses", "own"),
    [
        ({socket.AF_INET: "192.0.2.7", socket.AF_INET6: "2001:db8::7"}, ["192.0.2.7", "2001:db8::7"]),
        ({socket.AF_INET6: "2001:db8::7"}, ["2001:db8::7"]),
        ({socket.AF_INET: "127.0.0.1"}, []),
        ({}, []),
    ],
)
def test_the_own_addresses_are_those_of_the_route_to_others(
    addresses: dict[int, str], own: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeDatagrams, "addresses", addresses, raising=False)
    monkeypatch.setattr(socket, "socket", FakeDatagrams)
    assert find_own_addresses() == own


def test_the_own_address_in_a_vpn_is_found_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeDatagrams, "addresses", {socket.AF_INET: "192.0.2.7"}, raising=False)
    monkeypatch.setattr(socket, "socket", FakeDatagrams)
    assert find_own_addresses() == ["192.0.2.7"]
    monkeypatch.setattr(FakeDatagrams, "vpn", "100.64.0.7")
    assert find_own_addresses() == ["192.0.2.7", "100.64.0.7"]
