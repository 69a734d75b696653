"""A gateway for clients made with SDKs, and proxies in front of it."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio

from tests.interop.cutting_proxy import CuttingProxy
from tests.kit.running import AGENTS, RunningGateway, prepare, start_gateway


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway whose agent remembers its sessions; see end_to_end/remembering_agent.py for what prompts do."""
    directory = tmp_path_factory.mktemp("interop")
    (directory / "sessions").mkdir()
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "sessions")]
    pin = prepare(directory, f"[agents.memory]\ncommand = {json.dumps(command)}\n")
    running = start_gateway(directory, pin)
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


def port_of(gateway: RunningGateway) -> int:
    """Return the port for HTTP and WebSockets without TLS."""
    port = urlsplit(gateway.urls["ws"]).port
    assert port is not None
    return port


@pytest.fixture
async def proxy(gateway: RunningGateway, nursery: trio.Nursery) -> CuttingProxy:
    """A proxy in front of the gateway."""
    proxy = CuttingProxy(port_of(gateway))
    await nursery.start(proxy.run)
    return proxy


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A FIFO that holds up a turn with `gate PATH` until a line is written to it."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"
