"""A client of a gateway over Streamable HTTP for editors that speak stdio. Takes options of `acp-gateway connect`."""

import argparse
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import trio

from acp_gateway.client.http.connections import Endpoint
from acp_gateway.client.http.stream import HttpClientStream
from acp_gateway.config.addresses import parse_target
from acp_gateway.transports.sockets import connect_tcp


async def lines_of(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    rest = b""
    async for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--agent")
    parser.add_argument("--attach")
    options = parser.parse_args()
    address = parse_target(options.url)
    query = urlencode({name: word for name, word in (("agent", options.agent), ("session", options.attach)) if word})
    endpoint = Endpoint.at(address, query, {"Authorization": f"Bearer {options.token_file.read_text().strip()}"})
    stream = HttpClientStream(
        endpoint, lambda: connect_tcp(address.host, address.port), max_message_size=10_000_000, size_setting="the limit"
    )

    async def write() -> None:
        while True:
            message = await stream.receive()
            os.write(sys.stdout.fileno(), message + b"\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        nursery.start_soon(write)
        async for line in lines_of(trio.lowlevel.FdStream(os.dup(0))):
            await stream.send(line)
        await stream.aclose()
        nursery.cancel_scope.cancel()


trio.run(main)
