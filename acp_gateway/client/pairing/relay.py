"""The remote end of a connection over ssh: relays stdin and stdout to a gateway's unix socket."""

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
    """Return the path of the gateway's first unix socket. Raises `ConfigError` if it listens at none."""
    for section in config.listen:
        if section.address.scheme == "unix" and "acp" in section.services:
            return section.address.path
    raise ConfigError(
        'there is no listener for connections over ssh; add one: [[listen]] url = "unix:///absolute/path/of/a/socket"'
    )


def nonce_of(command: str) -> str:
    """Return the value of --nonce in the command that the client requested from sshd; "" if it has none.

    A forced command replaces the requested one, which then exists only in SSH_ORIGINAL_COMMAND.
    """
    found = _NONCE.search(command)
    return found[1] if found else ""


async def relay(stdio: ByteStream, path: str, nonce: str) -> None:
    """Connect to the socket, write the begin line to stdout, and relay bytes until either side has closed.

    The end of stdin is relayed as a half-close; the gateway's remaining output still reaches stdout. Raises
    `Unreachable`.
    """
    try:
        gateway = await connect_unix(path)
    except Unreachable as error:
        raise Unreachable(f"{error}; is the gateway running, and does it listen there? `acp-gateway serve`") from error
    try:
        # A shell's greeting may lack its final newline.
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
        pass  # One side is closed: the other direction ends as well.


async def _send(sink: ByteStream, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[sink.send_nowait(rest) or await sink.send_some(rest) :]
