"""What a link that resumes costs, and how soon it goes on: the program itself on loopback. `make bench-resume`.

An agent writes updates of 200 bytes as fast as they are taken, and they are received over one connection that resumes
and one that doesn't, in turns: what else the machine does meanwhile meets both. Then a link that ten megabytes wait for
is resumed again and again. Each process has its own job: the gateway, the agent (in C where there is a compiler), and
this one, which is the client, or, for the whole way, the editor of a shim.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from acp_gateway import dialing, shim
from acp_gateway.addresses import parse_address
from acp_gateway.dialing import Destination, Dialed, Resume, dial, dial_link
from acp_gateway.protocol.outbox import read_control
from acp_gateway.protocol.paths import PathMaps
from acp_gateway.transports.base import MessageStream
from acp_gateway.transports.link import WINDOW, Link
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import SocketBytes, connect_tcp
from acp_gateway.transports.stdio import FileBytes, open_stdio
from acp_gateway.transports.websocket import Timing
from acp_gateway.uplink import Persistence, say_goodbye

ROUNDS: Final = 7
"""Pairs for each number: the median is none of the two or three that something else disturbed."""

LOADS: Final = {1: 20_000, 50: 150_000}
"""For so many updates in each write of the agent, how many updates: half a second's, roughly."""

RESUMES: Final = 50
WAITING: Final = 10_000_000
"""Bytes that wait for a client that is away."""

UPDATE: Final = 200
"""Bytes of an update, as in the two writers."""

TIMEOUT: Final = 120.0
"""Seconds for all of it on a slow machine; on others it takes a quarter."""

MESSAGE_SIZE: Final = 64 * 1024 * 1024
HERE: Final = Path(__file__).parent
PROGRAM: Final = [sys.executable, "-m", "acp_gateway"]
RECEIVED: Final = b'"stopReason":"end_turn"'

STOCK, RESUMING = "stock", "resuming"


@dataclass(frozen=True)
class Gateway:
    """A gateway that is running."""

    url: str
    token_file: Path

    @property
    def destination(self) -> Destination:
        """How to get there."""
        return Destination(parse_address(self.url), None, self.token_file.read_text().strip(), None, None, MESSAGE_SIZE)


# The processes


def build_agent(directory: Path) -> list[str]:
    """The command of an agent that is faster than the gateway."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("there is no cc: the agent is written in Python, and slow", file=sys.stderr)
        return [sys.executable, str(HERE / "writer.py")]
    program = directory / "writer"
    subprocess.run([compiler, "-O2", "-o", str(program), str(HERE / "writer.c")], check=True)
    return [str(program)]


@contextmanager
def running_gateway(directory: Path) -> Iterator[Gateway]:
    """Run a gateway that keeps histories in memory: to write them costs the same for both, and hides the difference."""
    config, token_file, log = directory / "config.toml", directory / "token", directory / "log"
    config.write_text(
        f'[gateway]\nstate_dir = "{directory}/state"\n'
        f'[[listen]]\nurl = "ws://127.0.0.1:0"\n[agents.writer]\ncommand = {json.dumps(build_agent(directory))}\n'
    )
    create = [*PROGRAM, "token", "create", "--config", str(config), "--label", "benchmark"]
    token_file.touch(0o600)
    token_file.write_bytes(subprocess.run(create, check=True, stdout=subprocess.PIPE).stdout)
    with log.open("wb") as stderr:
        process = subprocess.Popen([*PROGRAM, "serve", "--config", str(config)], stderr=stderr)
    try:
        while "listening on " not in log.read_text():
            if process.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.02)
        yield Gateway(log.read_text().split("listening on ")[1].split()[0], token_file)
    finally:
        process.terminate()
        process.wait()


# Clients


class Client:
    """Sends requests and counts what it receives until they are answered."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._last_id = 0
        self.session = ""

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result, once it is there."""
        self._last_id += 1
        self._link.send([request(self._last_id, method, params)])
        answer = b'"id":%d,' % self._last_id
        while True:
            batch = await self._link.receive_batch()
            self._link.settle()
            # Only the last one can be the answer: nothing is sent behind it, but for a mark.
            for message in batch[-2:]:
                if answer in message:
                    result: dict[str, Any] = json.loads(message)["result"]
                    return result

    async def begin(self) -> None:
        """Open a session."""
        await self.ask("initialize", {"protocolVersion": 1})
        self.session = (await self.ask("session/new", {"cwd": "/", "mcpServers": []}))["sessionId"]

    async def stream(self, count: int, at_once: int) -> float:
        """Updates in a second."""
        before = time.perf_counter()
        await self.ask("session/prompt", prompt(self.session, count, at_once))
        return count / (time.perf_counter() - before)


def request(number: int, method: str, params: dict[str, Any]) -> bytes:
    """A request as the writer in C can read it, without spaces."""
    return json.dumps(
        {"jsonrpc": "2.0", "id": number, "method": method, "params": params}, separators=(",", ":")
    ).encode()


def prompt(session: str, count: int, at_once: int) -> dict[str, Any]:
    """The parameters of a prompt for so many updates."""
    return {"sessionId": session, "prompt": [{"type": "text", "text": f"{count} {at_once}"}]}


@asynccontextmanager
async def direct_client(gateway: Gateway, kind: str) -> AsyncIterator[Client]:
    """A client on a connection of its own: what a shim has below it, and nothing else."""
    if kind == STOCK:
        link, stream = Link(), await dial(gateway.destination, Timing())
    else:
        link, stream = Link(window=WINDOW), (await dial_link(gateway.destination, Timing(), Resume())).stream
    async with trio.open_nursery() as nursery, using(link, stream, nursery):
        client = Client(link)
        await client.begin()
        yield client


@asynccontextmanager
async def shim_client(gateway: Gateway, kind: str) -> AsyncIterator[Client]:
    """A client behind a shim, as an editor is."""
    process, stream = start_shim(gateway, kind)
    try:
        async with trio.open_nursery() as nursery, using(Link(), stream, nursery) as link:
            client = Client(link)
            await client.begin()
            yield client
    finally:
        process.wait()


def start_shim(gateway: Gateway, kind: str) -> tuple[subprocess.Popen[bytes], LineStream]:
    """A shim, and what an editor has of it."""
    down, up = os.pipe(), os.pipe()
    command = [sys.executable, __file__, "shim", kind, gateway.url, str(gateway.token_file)]
    process = subprocess.Popen(command, stdin=up[0], stdout=down[1])
    os.close(up[0])
    os.close(down[1])
    return process, LineStream(FileBytes(down[0], up[1]), max_message_size=MESSAGE_SIZE)


@asynccontextmanager
async def using(link: Link, stream: MessageStream, nursery: trio.Nursery) -> AsyncIterator[Link]:
    """Have a link over a stream, with what has to run beside it; leaves for good at the end."""
    link.connect(stream)
    nursery.start_soon(stream.run)
    nursery.start_soon(link.pump)
    if link.resumable:
        nursery.start_soon(link.keep_alive, TIMEOUT)
    yield link
    await say_goodbye(link, stream)
    nursery.cancel_scope.cancel()


async def run_shim(kind: str, url: str, token_file: Path) -> None:
    """Be a shim, with a link that resumes or one that doesn't."""

    async def dial_stock(destination: Destination, timing: Timing, _: Resume) -> Dialed:
        return Dialed(await dial(destination, timing), None, None)

    persistence = Persistence(10.0, dial=dial_link if kind == RESUMING else dial_stock)
    gateway = Gateway(url, token_file)
    await shim.run(open_stdio(), lambda: gateway.destination, shim.Settings(PathMaps([]), MESSAGE_SIZE, persistence))


# What is measured


async def compare(gateway: Gateway, client: Any, name: str) -> list[str]:
    """Lines of the table: the throughput with one kind of link and with the other."""
    rows = []
    for at_once, count in LOADS.items():
        rates: dict[str, list[float]] = {STOCK: [], RESUMING: []}
        for number in range(ROUNDS + 1):
            for kind in (STOCK, RESUMING) if number % 2 else (RESUMING, STOCK):
                async with client(gateway, kind) as connected:
                    rate = await connected.stream(count, at_once)
                    # The first pair warms up.
                    if number:
                        rates[kind].append(rate)
        ratio = statistics.median(new / old for old, new in zip(rates[STOCK], rates[RESUMING], strict=True))
        old, new = (f"{statistics.median(rates[kind]):,.0f}/s" for kind in (STOCK, RESUMING))
        rows.append(f"| {name}, {at_once} in each write | {old} | {new} | {ratio:.2f} |")
    return rows


async def resume_often(gateway: Gateway) -> str:
    """A line: from a connection that is there again to the first message that was missed, with many more to come."""
    connected = 0.0

    async def note_time(*args: Any) -> SocketBytes:
        nonlocal connected
        stream = await connect_tcp(*args)
        connected = time.perf_counter()
        return stream

    dialed = await dial_link(gateway.destination, Timing(), Resume())
    link = Link(window=WINDOW)
    link.connect(dialed.stream)
    client = Client(link)
    await client.begin()
    link.send([request(99, "session/prompt", prompt(client.session, WAITING // UPDATE, 50))])
    # With the first update the agent has begun; what it says until its turn is over is missed.
    while not any(b"session/update" in message for message in await link.receive_batch()):
        pass
    await dialed.stream.abort()
    resume = Resume(dialed.connection_id, link.received)
    await turn_over(gateway, client.session)
    times = []
    vars(dialing)["connect_tcp"] = note_time
    for _ in range(RESUMES):
        stream = (await dial_link(gateway.destination, Timing(), resume)).stream
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            while all(map(read_control, await stream.receive_batch())):
                pass
            times.append(1000 * (time.perf_counter() - connected))
            await stream.abort()
            nursery.cancel_scope.cancel()
        # What the gateway has to do about this end is no part of the next beginning.
        await trio.sleep(0.02)
    vars(dialing)["connect_tcp"] = connect_tcp
    times.sort()
    return (
        f"connected again to first message, {WAITING // 1_000_000} MB waiting: "
        f"p50 {statistics.median(times):.1f} ms, p90 {times[RESUMES * 9 // 10]:.1f} ms"
    )


async def turn_over(gateway: Gateway, session: str) -> None:
    """Wait until the agent has done its work in a session."""
    stream = await dial(replace(gateway.destination, control=True), Timing())
    while True:
        await stream.send(b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/sessions","params":{}}')
        sessions = json.loads(await stream.receive())["result"]["sessions"]
        if not any(each["turn"] for each in sessions if each["sessionId"] == session):
            break
        await trio.sleep(0.01)
    await stream.aclose()


async def measure() -> None:
    """Print a table."""
    with (
        trio.fail_after(TIMEOUT),
        tempfile.TemporaryDirectory() as directory,
        running_gateway(Path(directory)) as there,
    ):
        print("| updates of 200 bytes | without | resuming | ratio |\n|---|---|---|---|")
        for client, name in ((direct_client, "to a client"), (shim_client, "through a shim")):
            for row in await compare(there, client, name):
                print(row, flush=True)
        print(f"\n{await resume_often(there)}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["shim", kind, url, token_file]:
            trio.run(partial(run_shim, kind, url, Path(token_file)))
        case _:
            trio.run(measure)
