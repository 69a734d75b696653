"""Tunnels to the ports of agents: through a real gateway, from a listener here to a program, and through a door."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.ports.forwarding import at_node, forward, list_ports, listen, open_port, port_of
from acp_gateway.config.load import Config
from acp_gateway.errors import AccessError, Forbidden, UnknownPort, Unreachable
from acp_gateway.gateway.agent.listeners import has_tables
from acp_gateway.transports.streams import send_all
from acp_gateway.transports.websocket.tunnel import NEEDED
from tests.kit.machine import many_descriptors
from tests.kit.machines import control, front_config, node_config, node_section, save_token, until_agents
from tests.kit.serving import serving

pytestmark = pytest.mark.skipif(not has_tables(), reason="this system has no /proc/net/tcp")

ECHO = """
import socket, sys, threading
def serve(sock):
    while data := sock.recv(65536):
        sock.sendall(data)
    sock.sendall(b"ended")
    sock.close()
listener = socket.create_server(("127.0.0.1", 0), backlog=256)
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a program that sends back what it gets, and a word at its end."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ECHO], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        yield int(program.stdout.readline())
        program.kill()


def with_port(folder: Path, port: int) -> Config:
    config = node_config(folder)
    return replace(config, agents={"memory": replace(config.agents["memory"], ports=((port, port),))})


@pytest.fixture
async def box(tmp_path: Path, port: int) -> AsyncIterator[str]:
    """The URL of a gateway whose configuration names the port."""
    (tmp_path / "box").mkdir()
    async with serving(with_port(tmp_path / "box", port)) as (url,):
        yield url


async def echoed(stream: trio.SocketStream, data: bytes) -> bytes:
    """The bytes that come back, to their end."""
    received = b""

    async def receive() -> None:
        nonlocal received
        async for part in stream:
            received += part

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await stream.send_all(data)
        await stream.send_eof()
    return received


def audit(folder: Path, event: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    return [entry for entry in entries if entry["event"] == event]


async def test_bytes_pass_both_ways_to_the_end_of_each_side(box: str, tmp_path: Path, port: int) -> None:
    place = control(box, tmp_path / "box" / "node.token")
    reports: list[str] = []
    data = bytes(range(256)) * 4096
    async with trio.open_nursery() as nursery, await listen(0, port, "box") as listener:
        nursery.start_soon(forward, listener, lambda: place, port, reports.append)
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream:
                assert await echoed(stream, data) == data + b"ended"
        nursery.cancel_scope.cancel()
    assert reports == []
    entry, *others = audit(tmp_path / "box", "port_opened")
    assert len(others) == 2
    assert (entry["port"], entry["agent"], entry["program"]) == (port, "memory", Path(sys.executable).name)
    (told,) = await list_ports(place, time_limit=5)
    assert (told.port, told.agent, told.sessions) == (port, "memory", [])


async def test_two_hundred_connections_at_once_get_their_own_bytes(box: str, tmp_path: Path, port: int) -> None:
    place = control(box, tmp_path / "box" / "node.token")
    reports: list[str] = []
    arrived, all_there = 0, trio.Event()

    async def use(number: int) -> None:
        nonlocal arrived
        mine = number.to_bytes(2) * 20_000
        async with await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream:
            await stream.send_all(mine[:1])
            assert await stream.receive_some(1) == mine[:1]
            arrived += 1
            if arrived == 200:
                all_there.set()
            await all_there.wait()
            assert await echoed(stream, mine) == mine + b"ended"

    with many_descriptors():
        async with trio.open_nursery() as nursery, await listen(0, port, "box") as listener:
            nursery.start_soon(forward, listener, lambda: place, port, reports.append)
            async with trio.open_nursery() as clients:
                for number in range(200):
                    clients.start_soon(use, number)
            nursery.cancel_scope.cancel()
    assert reports == []


async def test_a_port_that_is_not_an_agents_is_refused_with_the_next_step(box: str, tmp_path: Path, port: int) -> None:
    mine = control(box, tmp_path / "box" / "node.token")
    number = int(box.rpartition(":")[2].partition("/")[0])
    for other in (1, number):
        # The gateway's own port as well.
        with pytest.raises(UnknownPort, match=f"port {other} here: start it"):
            await open_port(mine, other)
    assert [entry["reason"] for entry in audit(tmp_path / "box", "refused")] == [UnknownPort.reason] * 2
    watcher = save_token(tmp_path / "box", "watcher", role="observer")
    with pytest.raises(Forbidden, match="--ports"):
        await open_port(control(box, watcher), port)
    seeing = save_token(tmp_path / "box", "seeing", role="observer", ports=True)
    with pytest.raises(UnknownPort):
        await open_port(control(box, seeing), port)


async def test_a_connection_that_cannot_be_opened_is_reset_and_reported(box: str, tmp_path: Path, port: int) -> None:
    place = control(box, tmp_path / "box" / "node.token")
    reports: list[str] = []

    def unusable() -> Any:
        raise AccessError("the file of tokens is gone")

    for destination, number in (lambda: place, 1), (unusable, port):
        async with trio.open_nursery() as nursery, await listen(0, number, "box") as listener:
            nursery.start_soon(forward, listener, destination, number, reports.append)
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            await stream.aclose()
            nursery.cancel_scope.cancel()
    assert "port 1 here" in reports[0]
    assert reports[1:] == ["the file of tokens is gone"]


async def test_a_program_that_ends_a_connection_ends_it_here(box: str, tmp_path: Path, port: int) -> None:
    tunnel = await open_port(control(box, tmp_path / "box" / "node.token"), port)
    await send_all(tunnel, b"x")
    assert await tunnel.receive_some() == b"x"
    await tunnel.send_eof()
    assert await tunnel.receive_some() == b"ended"
    assert await tunnel.receive_some() == b""
    await tunnel.finish()
    await tunnel.aclose()


@pytest.mark.parametrize("ahead", [True, False])
async def test_a_revoked_token_ends_the_tunnel(box: str, tmp_path: Path, port: int, ahead: bool) -> None:
    from acp_gateway.security.token_store import TokenStore

    token = save_token(tmp_path / "box", "other.token")
    tunnel = await open_port(control(box, token), port, ahead=ahead)
    store = TokenStore(tmp_path / "box")
    store.revoke(store.authenticate(token.read_text()).id)
    with pytest.raises(trio.BrokenResourceError, match="not valid any more"):
        await tunnel.receive_some()
    await tunnel.aclose()


async def test_a_tunnel_that_was_opened_ahead_leads_to_the_port_only_when_it_is_needed(
    box: str, tmp_path: Path, port: int
) -> None:
    tunnel = await open_port(control(box, tmp_path / "box" / "node.token"), port, ahead=True)
    assert audit(tmp_path / "box", "port_opened") == []
    await send_all(tunnel, NEEDED + b"hello")
    received = b""
    while len(received) < 6:
        received += await tunnel.receive_some()
    assert received == NEEDED + b"hello"
    assert len(audit(tmp_path / "box", "port_opened")) == 1
    await tunnel.aclose()


async def test_a_tunnel_that_was_opened_ahead_is_refused_with_the_reason_when_the_port_is_not_there(
    box: str, tmp_path: Path
) -> None:
    tunnel = await open_port(control(box, tmp_path / "box" / "node.token"), 1, ahead=True)
    await send_all(tunnel, NEEDED)
    with pytest.raises(trio.BrokenResourceError, match="port 1 here: start it"):
        await tunnel.receive_some()
    assert [entry["reason"] for entry in audit(tmp_path / "box", "refused")] == [UnknownPort.reason]
    await tunnel.aclose()


async def test_tunnels_that_wait_make_room_for_those_that_are_needed(tmp_path: Path, port: int) -> None:
    (tmp_path / "box").mkdir()
    config = with_port(tmp_path / "box", port)
    async with serving(replace(config, limits=replace(config.limits, max_connections=4))) as (url,):
        place = control(url, tmp_path / "box" / "node.token")
        first, second = [await open_port(place, port, ahead=True) for _ in range(2)]
        await send_all(second, NEEDED)
        assert await second.receive_some() == NEEDED
        with pytest.raises(Unreachable, match="max_connections"):
            await open_port(place, port, ahead=True)
        third = await open_port(place, port)
        with pytest.raises(trio.BrokenResourceError, match="others needed the room"):
            await first.receive_some()
        with pytest.raises(Unreachable, match="max_connections"):
            await open_port(place, port)
        for tunnel in (first, second, third):
            await tunnel.aclose()


async def test_a_door_evicts_none_for_a_tunnel_to_a_node_that_is_not_needed_yet(tmp_path: Path, port: int) -> None:
    async with serving(with_port(tmp_path / "gpu2", port)) as (node,):
        config = front_config(tmp_path / "door", {"gpu2": node_section(tmp_path / "gpu2", node)})
        limits = replace(config.limits, connections_per_identity=1)
        config = replace(config, agents=with_port(tmp_path / "door", port).agents, limits=limits)
        async with serving(config) as (_, door):
            await until_agents(door, "gpu2/memory", token_file=save_token(tmp_path / "door", "other", "bob"))
            place = control(door, save_token(tmp_path / "door", "mine"))
            waiting = await open_port(place, port, ahead=True)
            with pytest.raises(Unreachable, match="connections_per_identity"):
                await open_port(at_node(place, "gpu2"), port, ahead=True)
            tunnel = await open_port(at_node(place, "gpu2"), port)
            with pytest.raises(trio.BrokenResourceError, match="others needed the room"):
                await waiting.receive_some()
            for each in (waiting, tunnel):
                await each.aclose()


async def test_a_door_leads_to_the_ports_of_a_node(tmp_path: Path, port: int) -> None:
    async with serving(with_port(tmp_path / "gpu2", port)) as (node,):
        config = front_config(tmp_path / "door", {"gpu2": node_section(tmp_path / "gpu2", node)})
        async with serving(config) as (lines, door):
            await until_agents(lines, "gpu2/memory")
            save_token(tmp_path / "door", "mine")
            place = at_node(control(door, tmp_path / "door" / "mine"), "gpu2")
            (told,) = await list_ports(place, time_limit=10)
            assert told.port == port
            tunnel = await open_port(place, port)
            await send_all(tunnel, b"hello")
            assert await tunnel.receive_some() == b"hello"
            await tunnel.aclose()
            save_token(tmp_path / "door", "watcher", role="observer", ports=True)
            place = at_node(control(door, tmp_path / "door" / "watcher"), "gpu2")
            # One of the configuration is for controllers.
            assert await list_ports(place, time_limit=10) == []
            with pytest.raises(UnknownPort):
                await open_port(place, port)
