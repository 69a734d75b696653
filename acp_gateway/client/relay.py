"""The far end of a link through ssh: its own stdin and stdout, connected with a gateway's unix socket."""

import re
from typing import TYPE_CHECKING

import trio

from acp_gateway.client.ssh import mark
from acp_gateway.errors import ConfigError, Unreachable
from acp_gateway.transports.sockets import connect_unix
from acp_gateway.transports.streams import ByteStream

if TYPE_CHECKING:
    from acp_gateway.config.load import Config

_NONCE = re.compile(r"--nonce '?([0-9a-f]{1,64})'?(?:\s|$)")


def find_socket(config: "Config") -> str:
    """The path of the first unix socket that a gateway listens at. Raises `ConfigError` where there is none."""
    for section in config.listen:
        if section.address.scheme == "unix":
            return section.address.path
    raise ConfigError(
        'there is no listener for links through ssh; add one: [[listen]] url = "unix:///absolute/path/of/a/socket"'
    )


def nonce_of(command: str) -> str:
    """What the client wanted to be told, in the command that it asked sshd for; "" where there is nothing of it.

    sshd runs another one where the user's key is bound to it, and this one is all that it knows of the first.
    """
    found = _NONCE.search(command)
    return found[1] if found else ""


async def relay(stdio: ByteStream, path: str, nonce: str) -> None:
    """Connect to the socket, say so on stdout, and pass on bytes until the gateway ends, or nobody reads any more.

    The end of stdin is passed on; what the gateway says to that is still passed back. Raises `Unreachable`.
    """
    try:
        gateway = await connect_unix(path)
    except Unreachable as error:
        raise Unreachable(f"{error}; is the gateway running, and does it listen there? `acp-gateway serve`") from error
    try:
        # A line of its own, also behind a greeting without an end.
        await _send(stdio, f"\n{mark('relay', 'BEGIN', nonce)}\n".encode())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, stdio, gateway)
            await _pass_on(gateway, stdio)
            nursery.cancel_scope.cancel()
    finally:
        await gateway.aclose()
        await stdio.aclose()


async def _pass_on(source: ByteStream, sink: ByteStream) -> None:
    try:
        while data := await source.receive_some():
            await _send(sink, data)
        await sink.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # One of the two is gone: the other direction ends by itself.


async def _send(sink: ByteStream, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[sink.send_nowait(rest) or await sink.send_some(rest) :]
