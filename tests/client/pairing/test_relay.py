"""The far end of a link through ssh, between a socket of the test's own and a stream in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from acp_gateway.client.pairing.relay import find_socket, nonce_of, relay
from acp_gateway.client.ssh import mark, remote_command
from acp_gateway.config.load import AgentSection, Config, GatewaySection, ListenSection
from acp_gateway.errors import ConfigError, Unreachable
from acp_gateway.transports.streams import TrioBytes
from tests.doubles import TIMEOUT


def config(*urls: str) -> Config:
    return Config(
        gateway=GatewaySection(),
        listen=tuple(ListenSection(url=url) for url in urls),
        agents={"demo": AgentSection(command=("x",))},
    )


class Scene:
    """Both sides of a relay."""

    def __init__(self, client: trio.abc.HalfCloseableStream) -> None:
        self.client = client
        self.gateway: trio.SocketStream
        self.ended = trio.Event()

    async def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            came = await self.client.receive_some()
            assert came
            data += came
        return data


@asynccontextmanager
async def relaying(path: Path) -> AsyncIterator[Scene]:
    """A relay that has said that it is connected."""
    client, stdio = trio.testing.memory_stream_pair()
    scene = Scene(client)
    connected = trio.Event()

    async def accept(stream: trio.SocketStream) -> None:
        scene.gateway = stream
        connected.set()
        await trio.sleep_forever()

    async def run() -> None:
        await relay(TrioBytes(stdio), str(path), "ab12")
        scene.ended.set()

    with trio.fail_after(TIMEOUT), trio.socket.socket(trio.socket.AF_UNIX) as socket:
        await socket.bind(str(path))
        socket.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, accept, [trio.SocketListener(socket)])
            nursery.start_soon(run)
            await connected.wait()
            marked = f"\n{mark('relay', 'BEGIN', 'ab12')}\n".encode()
            assert await scene.read(len(marked)) == marked
            yield scene
            nursery.cancel_scope.cancel()


async def test_bytes_go_both_ways_as_they_are(tmp_path: Path) -> None:
    async with relaying(tmp_path / "socket") as scene:
        much = bytes(range(256)) * 5000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.gateway.send_all, much)
            nursery.start_soon(scene.client.send_all, much)
            assert await scene.read(len(much)) == much
            heard = b""
            while len(heard) < len(much):
                heard += await scene.gateway.receive_some()
            assert heard == much


async def test_the_clients_end_is_passed_on_and_the_answer_to_it_back(tmp_path: Path) -> None:
    async with relaying(tmp_path / "socket") as scene:
        await scene.client.send_eof()
        assert await scene.gateway.receive_some() == b""
        await scene.gateway.send_all(b"goodbye")
        assert await scene.read(7) == b"goodbye"
        assert not scene.ended.is_set()
        await scene.gateway.aclose()
        await scene.ended.wait()
        assert await scene.client.receive_some() == b""


async def test_the_gateways_end_is_the_end_though_the_client_stays(tmp_path: Path) -> None:
    async with relaying(tmp_path / "socket") as scene:
        await scene.gateway.aclose()
        await scene.ended.wait()
        assert await scene.client.receive_some() == b""


async def test_a_client_that_is_gone_ends_it_when_the_gateway_has_something_to_say(tmp_path: Path) -> None:
    async with relaying(tmp_path / "socket") as scene:
        await scene.client.aclose()
        await scene.gateway.send_all(b"hello?")
        await scene.ended.wait()


async def test_a_gateway_that_does_not_run_is_said_with_what_to_do_and_without_a_mark(tmp_path: Path) -> None:
    client, stdio = trio.testing.memory_stream_pair()
    with pytest.raises(Unreachable, match=r"cannot reach .*/socket: no such file or directory; is the gateway running"):
        await relay(TrioBytes(stdio), str(tmp_path / "socket"), "ab12")
    await stdio.aclose()
    assert await client.receive_some() == b""


def test_the_first_unix_socket_of_the_configuration_is_the_one() -> None:
    metrics = ListenSection(url="unix:///metrics", serves=("metrics",))
    sockets = config("tcp://127.0.0.1:1", "unix:///a", "unix:///b")
    assert find_socket(replace(sockets, listen=(metrics, *sockets.listen))) == "/a"
    with pytest.raises(ConfigError, match=r"\[\[listen\]\] url = .unix:///"):
        find_socket(config("tcp://127.0.0.1:1"))


@pytest.mark.parametrize("command", [None, "/opt/my tools/acp-gateway"])
def test_a_key_that_is_bound_to_the_command_still_learns_the_number(command: str | None) -> None:
    assert nonce_of(remote_command(command, ["relay", "--nonce", "0a" * 16])) == "0a" * 16
    assert nonce_of(remote_command(command, ["relay", "--nonce", "0a" * 16, "--socket", "/a b"])) == "0a" * 16
    assert nonce_of("scp -t x") == ""
