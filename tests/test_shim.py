"""The shim between an editor in memory and a gateway of the test's own on a unix socket. As a program: end_to_end/."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from acp_gateway import shim
from acp_gateway.addresses import Address
from acp_gateway.dialing import Destination
from acp_gateway.errors import ConfigError, GatewayError, ProtocolError, Unreachable
from acp_gateway.protocol.paths import PathMaps
from acp_gateway.transports.base import TrioBytes

INITIALIZE = b'{"jsonrpc":"2.0","id":1e0,"method":"initialize"}\n'
WELCOME = b'{"jsonrpc":"2.0","id":0,"result":{}}\n'

Gateway = Callable[[trio.SocketStream], Awaitable[None]]


class Editor:
    """The editor's end: lines in, lines out."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self._stream = stream
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive(self) -> dict[str, object]:
        while b"\n" not in self._buffer:
            data = await self._stream.receive_some()
            assert data
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    async def close(self) -> None:
        await self._stream.send_eof()


@asynccontextmanager
async def shimmed(
    path: Path, gateway: Gateway | None, *, raises: type[GatewayError] | None = None, maps: PathMaps | None = None
) -> AsyncIterator[Editor]:
    """A shim at work, with this gateway on the other side; it must end in the way that `raises` says."""
    ends: list[type[GatewayError] | None] = []
    near, far = memory_stream_pair()

    async def run() -> None:
        target = Destination(Address("unix", "", 0, str(path / "socket")), None, None, None, None, 4096)
        settings = shim.Settings(maps=maps or PathMaps([]), connect_timeout=60, max_message_size=4096)
        try:
            await shim.run(TrioBytes(far), lambda: target, settings)
        except GatewayError as error:
            ends.append(type(error))
        else:
            ends.append(None)

    async def serve(stream: trio.SocketStream) -> None:
        assert gateway is not None
        async with stream:
            assert b"hello" in await stream.receive_some()
            await stream.send_all(WELCOME)
            await gateway(stream)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            if gateway is not None:
                sock = trio.socket.socket(trio.socket.AF_UNIX)
                await sock.bind(str(path / "socket"))
                sock.listen()
                nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(sock)])
            async with trio.open_nursery() as work:
                work.start_soon(run)
                yield Editor(near)
            nursery.cancel_scope.cancel()
    assert ends == [raises]


async def echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


async def test_messages_pass_both_ways_and_the_editors_end_ends_it(tmp_path: Path) -> None:
    async with shimmed(tmp_path, echo) as editor:
        await editor.send(b'{"jsonrpc":"2.0","method":"news"}\n')
        assert (await editor.receive())["method"] == "news"
        await editor.close()


async def test_what_the_editor_said_last_is_passed_on_without_its_line_end(tmp_path: Path) -> None:
    heard = b""

    async def gateway(stream: trio.SocketStream) -> None:
        nonlocal heard
        async for data in stream:
            heard += data

    async with shimmed(tmp_path, gateway) as editor:
        await editor.send(b'{"last":1}')
        await editor.close()
    assert heard == b'{"last":1}\n'


async def test_a_line_that_is_not_utf8_is_answered_here_and_the_rest_goes_on(tmp_path: Path) -> None:
    async with shimmed(tmp_path, echo) as editor:
        await editor.send(b'{"a":"\xff"}\n{"b":1}\n')
        answers = [await editor.receive(), await editor.receive()]
        assert {"b": 1} in answers
        assert any("error" in answer and answer["id"] is None for answer in answers)
        await editor.close()


async def test_a_line_that_is_too_long_is_answered_and_ends_it(tmp_path: Path) -> None:
    async with shimmed(tmp_path, echo, raises=ProtocolError) as editor:
        await editor.send(b'{"a":"' + b"x" * 5000 + b'"}\n')
        assert "--max-message-size" in str((await editor.receive())["error"])


async def test_paths_are_translated_both_ways(tmp_path: Path) -> None:
    heard = []

    async def gateway(stream: trio.SocketStream) -> None:
        heard.append(await stream.receive_some())
        await stream.send_all(b'{"id":7,"method":"fs/read_text_file","params":{"path":"/srv/proj/x"}}\n')
        await stream.send_all(b'{"id":1,"result":{}}\n')
        await stream.receive_some()

    async with shimmed(tmp_path, gateway, maps=PathMaps([("/laptop/proj", "/srv/proj")])) as editor:
        await editor.send(b'{"id":1,"method":"session/new","params":{"cwd":"/laptop/proj"}}\n')
        assert (await editor.receive())["params"] == {"path": "/laptop/proj/x"}
        await editor.close()
    assert b'"/srv/proj"' in heard[0]


async def test_a_gateway_that_hangs_up_ends_it_with_an_error(tmp_path: Path) -> None:
    async def gateway(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async with shimmed(tmp_path, gateway, raises=Unreachable) as editor:
        await editor.send(INITIALIZE)


async def test_an_editor_that_leaves_while_the_gateway_is_looked_for_ends_it(tmp_path: Path) -> None:
    async with shimmed(tmp_path, None) as editor:
        await editor.close()


async def test_an_error_before_the_first_attempt_answers_the_editor_under_its_ids_spelling() -> None:
    near, far = memory_stream_pair()

    async def run() -> None:
        await shim.refuse(TrioBytes(far), ConfigError("the file is wrong"))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await near.send_all(INITIALIZE + b"[]\nnonsense\n")
            answer = bytes(await near.receive_some())
    assert answer.startswith(b'{"jsonrpc":"2.0","id":1e0,"error":')
    assert json.loads(answer)["error"]["data"] == {"reason": "configuration"}


async def test_what_the_token_file_says_is_read_for_each_attempt(tmp_path: Path) -> None:
    asked = []

    def destination() -> Destination:
        asked.append(1)
        raise ConfigError("no token yet")

    near, far = memory_stream_pair()
    with trio.fail_after(60):
        await near.send_all(INITIALIZE)
        with pytest.raises(ConfigError):
            await shim.run(
                TrioBytes(far),
                destination,
                shim.Settings(maps=PathMaps([]), connect_timeout=60, max_message_size=4096),
            )
    assert asked == [1]
    assert b"no token yet" in bytes(await near.receive_some())


async def test_what_was_asked_is_answered_when_the_gateway_hangs_up(tmp_path: Path) -> None:
    async def gateway(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async with shimmed(tmp_path, gateway, raises=Unreachable) as editor:
        await editor.send(b'{"id":1.0,"method":"session/prompt","params":{}}\n')
        answer = await editor.receive()
        assert answer["id"] == 1.0
        assert "closed the connection" in str(answer["error"])


async def test_a_script_that_ends_its_input_still_gets_its_answers(tmp_path: Path) -> None:
    async def gateway(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b'{"id":1,"result":{}}\n{"id":2,"result":{}}\n')
        await stream.receive_some()

    async with shimmed(tmp_path, gateway) as editor:
        await editor.send(b'{"id":1,"method":"initialize"}\n{"id":2,"method":"session/new"}\n')
        await editor.close()
        assert (await editor.receive())["id"] == 1
        assert (await editor.receive())["id"] == 2


async def test_the_end_of_the_editor_is_not_put_off_by_a_turn(tmp_path: Path) -> None:
    async def gateway(stream: trio.SocketStream) -> None:
        async for _ in stream:
            pass

    async with shimmed(tmp_path, gateway) as editor:
        await editor.send(b'{"id":1,"method":"session/prompt","params":{}}\n')
        await editor.close()


async def test_a_map_that_leads_nowhere_is_named_instead_of_a_second_one(tmp_path: Path) -> None:
    async def gateway(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        refusal = {"code": -32602, "message": "x", "data": {"reason": "no_such_directory", "cwd": "/srv/porj"}}
        await stream.send_all(json.dumps({"id": "a", "error": refusal}).encode() + b"\n")
        await stream.receive_some()

    async with shimmed(tmp_path, gateway, maps=PathMaps([("/laptop/proj", "/srv/porj")])) as editor:
        await editor.send(b'{"id":"a","method":"session/new","params":{"cwd":"/laptop/proj"}}\n')
        answer = await editor.receive()
        assert answer["id"] == "a"
        assert "which is what your map makes of /laptop/proj" in str(answer["error"])
        await editor.close()
