"""A bad network on both hops to an agent of a node: the editor and the agent don't notice."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio

from tests.end_to_end.test_losses import HURRIED, SEED, Talk, reading_log, shim, told_seed
from tests.kit import running
from tests.kit.faulty_proxy import FaultyProxy
from tests.kit.running import AGENTS, RunningGateway, prepare, start_gateway, until_there

pytestmark = pytest.mark.slow

TIMEOUT = 600.0

CUTS = 200
"""Cuts of each hop."""


def start(directory: Path, sections: str, more: str) -> RunningGateway:
    """Start a gateway that is in a hurry to reconnect, and closes connections without half of a handshake."""
    directory.mkdir()
    pin = prepare(directory, sections, more=f"handshake_timeout = 1.0\n{more}")
    os.mkfifo(directory / "tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PROGRAM", [*HURRIED, str(directory / "tasks")])
        return start_gateway(directory, pin)


@contextmanager
def node(directory: Path) -> Iterator[RunningGateway]:
    """A gateway with the agents `whole` and `cut`, which write down what they get."""
    sections = ""
    for name in ("whole", "cut"):
        command = [sys.executable, "-I", "-S", str(AGENTS / "counting_agent.py"), str(directory / f"{name}.log")]
        sections += f"[agents.{name}]\ncommand = {json.dumps(command)}\n"
    gateway = start(directory, sections, 'default_agent = "whole"\n')
    with reading_log(gateway):
        yield gateway
    assert gateway.stop() == 0, "".join(gateway.log)


@contextmanager
def front(directory: Path, far: RunningGateway, ports: dict[str, int]) -> Iterator[RunningGateway]:
    """A gateway in front of one node under several names; each is reached at a port of its own."""
    sections = "".join(
        f'[nodes.{name}]\nurl = "wss://127.0.0.1:{port}"\npin = "{far.pin}"\ntoken_file = "{far.token_file}"\n'
        for name, port in ports.items()
    )
    gateway = start(directory, sections, 'default_agent = "good/whole"\n')
    with reading_log(gateway):
        until_there(gateway, *ports)
        yield gateway
    assert gateway.stop() == 0, "".join(gateway.log)


def port_of(gateway: RunningGateway) -> int:
    """The port for WebSockets with TLS."""
    port = urlsplit(gateway.urls["wss"]).port
    assert port is not None
    return port


async def test_two_hundred_cuts_of_each_hop_during_a_stream_go_unnoticed(tmp_path: Path) -> None:
    talk = Talk(rounds=20, notifications=500)
    with trio.fail_after(TIMEOUT), node(tmp_path / "node") as far:
        async with trio.open_nursery() as nursery:
            # Some more, which the connection that asks the node for its sessions may be long in coming to.
            second = FaultyProxy(port_of(far), seed=SEED, cuts=CUTS + 5, size=(1, 60_000), timeout=0.1)
            await nursery.start(second.run)
            ports = {"good": port_of(far), "bad": second.port}
            opened = front(tmp_path / "front", far, ports)
            # The proxy goes on during this: the gateway in front reaches the node through it.
            near = await trio.to_thread.run_sync(opened.__enter__)
            try:
                first = FaultyProxy(port_of(near), seed=SEED + 1, cuts=CUTS, size=(1, 60_000), timeout=0.1)
                await nursery.start(first.run)
                async with shim(near, "wss", "good/whole") as editor:
                    await editor.talk(talk)
                expected = editor.transcript
                with told_seed(first), told_seed(second):
                    report = tmp_path / "tasks-of-shim"
                    os.mkfifo(report)
                    async with shim(near, "wss", "bad/cut", via=first, report=report) as editor:
                        await editor.talk(talk)
                        await first.reached(CUTS)
                        await second.reached(CUTS)
                        # Over what the cuts have left of each hop.
                        await editor.talk(Talk(rounds=1, notifications=10))
            finally:
                await trio.to_thread.run_sync(opened.__exit__, None, None, None)
            nursery.cancel_scope.cancel()
    assert editor.transcript[: len(expected)] == expected
    received = [(far.directory / f"{name}.log").read_bytes() for name in ("whole", "cut")]
    assert received[1].startswith(received[0])
