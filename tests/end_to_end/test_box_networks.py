"""A box in a network of its own, from which it reaches its door and in which nothing listens: addresses change.

Only root makes such networks. They are namespaces of this machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import trio

from acp_gateway.client.dialing import Destination, dial
from acp_gateway.config.addresses import parse_target
from acp_gateway.transports.websocket.stream import Timing
from tests.end_to_end.test_outages import Editor, Gate
from tests.kit.machines import SIZE
from tests.kit.push_service import Receiver
from tests.kit.running import (
    AGENTS,
    ENVIRONMENT,
    PROGRAM,
    WORK,
    RunningGateway,
    prepare,
    run_program,
    start_gateway,
    until,
)
from tests.nodes.lent.test_tunnels import Dialog
from tests.nodes.test_pushing import sign_in_phone

pytestmark = pytest.mark.slow

NETWORK: Final = "10.213.48"

NAME: Final = f"box{os.getpid()}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def network() -> Iterator[None]:
    """A namespace with the address 2, from which this machine is reached at the address 1."""
    ip("netns", "add", NAME)
    try:
        ip("link", "add", NAME, "type", "veth", "peer", "name", "eth0", "netns", NAME)
        ip("addr", "add", f"{NETWORK}.1/24", "dev", NAME)
        ip("link", "set", NAME, "up")
        ip("-n", NAME, "addr", "add", f"{NETWORK}.2/24", "dev", "eth0")
        ip("-n", NAME, "link", "set", "eth0", "up")
        yield
    finally:
        # The namespace may take a while to end, and its link with it.
        subprocess.run(["ip", "link", "del", NAME], check=False, capture_output=True)
        ip("netns", "del", NAME)


def can_make_networks() -> bool:
    if shutil.which("ip") is None:
        return False
    try:
        with network():
            return True
    except subprocess.CalledProcessError:
        return False


def listens_in_network() -> bool:
    """Return whether a program listens at a port there."""
    command = ["ip", "netns", "exec", NAME, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return any(line.split()[3] == "0A" for line in table.splitlines() if ":" in line.split()[0])


def subscribe(state: Path) -> Path:
    """Sign in a phone whose push service the door does not know; return the file with what it was to be told."""
    sign_in_phone(state)
    push = state / "push.json"
    push.write_text(push.read_text().replace(Receiver().endpoint, "https://push.example/phone"))
    return push


async def shown_by_a_page(door: RunningGateway, session: str) -> str:
    """Return what a page at the door, which speaks to the box, is told of a session."""
    address = replace(parse_target(door.urls["wss"].replace("0.0.0.0", "127.0.0.1")), path="/nodes/gpu2/ws")  # noqa: S104
    stream = await dial(Destination(address, None, door.token, door.pin, None, SIZE), Timing())
    shown = await Dialog(stream).ask("session/get", sessionId=session, limit=100)
    await stream.aclose()
    return json.dumps(shown)


def test_a_box_whose_address_changes_and_whose_door_moves_loses_no_turn_and_no_viewer(tmp_path: Path) -> None:
    if not can_make_networks():
        pytest.skip("this user can make no network namespace, or there is no ip")
    for name in ("door", "home"):
        (tmp_path / name).mkdir()
    pin = prepare(tmp_path / "door", '[agents.none]\ncommand = ["none"]\n')
    config = tmp_path / "door" / "config.toml"
    config.write_text(config.read_text().replace("wss://127.0.0.1", "wss://0.0.0.0"))
    own = tmp_path / "home" / ".config" / "acp-gateway" / "config.toml"
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), tempfile.mkdtemp(dir=WORK)]
    push = subscribe(tmp_path / "door" / "state")
    with network():
        door = start_gateway(tmp_path / "door", pin)
        line = run_program("nodes", "add", "gpu2", "--host", f"{NETWORK}.1", "--config", config).split("'")[1]
        box = subprocess.Popen(
            ["ip", "netns", "exec", NAME, *PROGRAM, "up", "--yes", "--door", line, "--", *command],
            cwd=WORK,
            # The path of a socket is short.
            env=ENVIRONMENT
            | {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "s"), "PYTHONSAFEPATH": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

        def move_box() -> None:
            ip("-n", NAME, "addr", "del", f"{NETWORK}.2/24", "dev", "eth0")
            ip("-n", NAME, "addr", "add", f"{NETWORK}.3/24", "dev", "eth0")

        def move_door() -> None:
            ip("addr", "del", f"{NETWORK}.1/24", "dev", NAME)
            ip("addr", "add", f"{NETWORK}.9/24", "dev", NAME)
            own.write_text(own.read_text().replace(f"{NETWORK}.1:", f"{NETWORK}.9:"))
            box.send_signal(signal.SIGHUP)

        try:
            assert box.stderr is not None
            log = []
            for said in box.stderr:
                log.append(said)
                if "lending connections to the door" in said:
                    break
            assert "lending connections to the door" in log[-1], log
            assert not listens_in_network()
            with Editor(door, "wss", "--agent", "gpu2/remembering_agent") as editor:
                editor.open_session()
                assert editor.talk("at first") == "end_turn"
                moves: list[Callable[[], None]] = [move_box, move_door]
                for move in moves:
                    gate = Gate()
                    prompt = editor.prompt(f"before {move.__name__}", gate.command, f"after {move.__name__}")
                    editor.until_told(f"before {move.__name__}")
                    move()
                    gate.open()
                    assert editor.stop_reason(prompt) == "end_turn"
                    assert len(editor.answers_to(prompt)) == 1
                    assert f"after {move.__name__}" in trio.run(shown_by_a_page, door, editor.session)
                told = ["at first", *(f"{when} {it.__name__}" for it in moves for when in ("before", "after"))]
                assert editor.told == told
                editor.open_session()
                until(lambda: editor.talk("again") == "end_turn" and editor.session in push.read_text())
        finally:
            box.terminate()
            box.communicate(timeout=60)
            door.stop()
