"""The command `forward`."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from acp_gateway.client.dialing import Destination
from acp_gateway.client.ports import forwarding
from acp_gateway.errors import CannotListen, UnknownPort
from tests.kit.doubles import run_command as run

SESSIONS = [{"sessionId": "s1", "title": "Train it"}]
TOLD = {"port": 6006, "program": "tensorboard", "agentType": "demo", "sessions": SESSIONS}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answer with one port, unless the address is that of an idle gateway; return the addresses of requests."""
    told: list[str] = []

    async def request(destination: Destination, method: str, params: Any, **_: float) -> Any:
        told.append(str(destination.address))
        return {"ports": [] if "idle" in str(destination.address) else [TOLD]}

    monkeypatch.setattr(forwarding, "request", request)
    return told


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Report a failure in place of forwarding; return the addresses and ports that were to be reached."""
    told: list[tuple[str, int]] = []

    async def forward(
        listener: trio.SocketListener,
        destination: Callable[[], Destination],
        port: int,
        report: Callable[[str], None],
    ) -> None:
        told.append((str(destination().address), port))
        report("lost\x07")

    monkeypatch.setattr(forwarding, "forward", forward)
    return told


def test_ports_are_listed_with_their_sessions(asked: list[str]) -> None:
    done = run("forward", "ws://127.0.0.1:1", "--plain")
    assert (done.exit_code, done.stdout) == (0, "6006  tensorboard  demo  s1  Train it\n")
    done = run("forward", "ws://127.0.0.1:1", "--json")
    expected = {"port": 6006, "program": "tensorboard", "agent": "demo", "sessions": SESSIONS}
    assert json.loads(done.stdout) == {"ports": [expected]}
    done = run("forward", "unix:///idle")
    assert (done.stdout, done.stderr) == ("", "No program of your agents listens on a port there.\n")
    assert asked == ["ws://127.0.0.1:1/acp", "ws://127.0.0.1:1/acp", "unix:///idle"]


def test_a_port_is_forwarded_to_one_here_whose_address_is_printed(
    asked: list[str], forwarded: list[tuple[str, int]]
) -> None:
    done = run("forward", "ws://127.0.0.1:1", "6006", "--local", "0", "--node", "gpu2")
    assert done.exit_code == 0
    assert done.stdout.startswith("http://127.0.0.1:")
    assert "That is port 6006 (tensorboard) at ws://127.0.0.1:1. Ctrl-C ends it." in done.stderr
    assert "warning: lost\\x07" in done.stderr
    assert forwarded == [("ws://127.0.0.1:1/nodes/gpu2/acp", 6006)]
    assert asked == ["ws://127.0.0.1:1/nodes/gpu2/acp"]


def test_a_port_that_is_not_there_or_taken_here_is_an_error(
    asked: list[str], forwarded: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("forward", "ws://127.0.0.1:1", "6007")
    assert done.exit_code == UnknownPort.exit_code
    assert "`acp-gateway forward ws://127.0.0.1:1` lists" in done.stderr

    async def taken(*_: Any) -> Any:
        raise CannotListen("port 6006 is taken on this machine")

    monkeypatch.setattr(forwarding, "listen", taken)
    assert run("forward", "ws://127.0.0.1:1", "6006").exit_code == CannotListen.exit_code
    assert forwarded == []


def test_over_ssh_nothing_is_asked_and_the_command_of_ssh_is_told(asked: list[str]) -> None:
    done = run("forward", "ssh://box", "6006")
    assert done.exit_code == 2
    assert "ssh -N -L 6006:127.0.0.1:6006 box" in done.stderr
    assert asked == []
