"""A gateway with several addresses in hosts.toml: the one that works is used, whatever the others do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.test_shim import INITIALIZE, run_in_vain
from tests.end_to_end.traces import TRACES
from tests.kit.free_ports import free_port
from tests.kit.machine import needs_ipv6
from tests.kit.running import AGENTS, ENVIRONMENT, PROGRAM, RunningGateway, lines_of, prepare, start_gateway

pytestmark = needs_ipv6


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with a raw agent, whose listener for `wss` is at ::1."""
    directory = tmp_path_factory.mktemp("gateway")
    command = json.dumps([sys.executable, str(AGENTS / "raw_agent.py")])
    pin = prepare(directory, f"[agents.raw]\ncommand = {command}\n")
    config = directory / "config.toml"
    config.write_text(config.read_text().replace("wss://127.0.0.1:", "wss://[::1]:"))
    running = start_gateway(directory, pin)
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


@dataclass(frozen=True, slots=True)
class Laptop:
    """A machine with a hosts.toml."""

    home: Path
    gateway: RunningGateway

    @property
    def environment(self) -> dict[str, str]:
        return ENVIRONMENT | {"XDG_CONFIG_HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state")}

    def knows(self, *addresses: str, pin: str | None = None) -> None:
        path = self.home / "acp-gateway" / "hosts.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'[hosts.box]\nurl = {json.dumps(addresses)}\npin = "{pin or self.gateway.pin}"\n'
            f'token_file = "{self.gateway.token_file}"\n'
        )

    def connect(self) -> str:
        """Start a shim, and end it after the agent's first answer; return its log."""
        log = self.home / "log"
        log.unlink(missing_ok=True)
        command = [*PROGRAM, "connect", "box", "--log-file", str(log)]
        with subprocess.Popen(command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(INITIALIZE)
            process.stdin.flush()
            assert b'"id":"i"' in next(lines_of(process))
            process.stdin.close()
            assert process.wait(60) == 0
        return log.read_text()


@pytest.fixture
def laptop(gateway: RunningGateway, tmp_path: Path) -> Laptop:
    return Laptop(tmp_path, gateway)


def test_a_dead_port_and_a_wrong_server_do_not_keep_connect_from_the_address_that_works(laptop: Laptop) -> None:
    # Another listener of the gateway has the pin, but speaks no WebSocket.
    dead, wrong = f"wss://127.0.0.1:{free_port()}/acp", laptop.gateway.urls["tcp+tls"].replace("tcp+tls", "wss")
    works = laptop.gateway.urls["wss"]
    laptop.knows(dead, wrong, works)
    assert f"using {works}" in laptop.connect()
    remembered = [path.read_text() for path in (laptop.home / "state/acp-gateway/reached").iterdir()]
    assert f"{works}\n" in remembered


def test_a_better_address_that_is_back_is_used_by_the_next_connection(laptop: Laptop) -> None:
    better = laptop.home / "socket"
    laptop.knows(f"unix://{better}", laptop.gateway.urls["wss"])
    assert f"using {laptop.gateway.urls['wss']}" in laptop.connect()
    os.link(laptop.gateway.urls["unix"].removeprefix("unix://"), better)
    assert f"using unix://{better}" in laptop.connect()


def test_if_no_address_works_an_editor_gets_one_error_and_a_terminal_a_line_for_each_address(laptop: Laptop) -> None:
    dead = f"wss://127.0.0.1:{free_port()}/acp"
    laptop.knows(dead, laptop.gateway.urls["wss"], pin=f"sha256:{64 * '0'}")
    code, answer, err = run_in_vain([*PROGRAM, "connect", "box"], laptop.gateway.pin, laptop.environment)
    assert (code, answer["error"]["data"]["reason"]) == (6, "unreachable")
    first, refused, wrong = err.splitlines()
    assert first == "acp-gateway: none of the 2 addresses works:"
    assert refused.startswith(f"{dead}: cannot reach 127.0.0.1 port ")
    assert wrong.startswith(f"{laptop.gateway.urls['wss']}: ")
    assert laptop.gateway.pin in wrong


def test_sessions_uses_the_address_that_works(laptop: Laptop) -> None:
    laptop.knows(f"wss://127.0.0.1:{free_port()}/acp", laptop.gateway.urls["wss"])
    command = [*PROGRAM, "sessions", "box", "--json"]
    done = subprocess.run(command, env=laptop.environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == []


def test_ping_names_the_address_that_is_used_and_what_the_others_say(laptop: Laptop) -> None:
    dead, works = f"wss://127.0.0.1:{free_port()}/acp", laptop.gateway.urls["wss"]
    laptop.knows(dead, works, laptop.gateway.urls["ws"])
    command = [*PROGRAM, "ping", "box", "--quick", "--json"]
    done = subprocess.run(command, env=laptop.environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    settings, first, second, third, *steps = json.loads(done.stdout)["checks"]
    assert settings["text"].startswith(f"{dead} and 2 more, [hosts.box]")
    assert (first["status"], first["text"][: len(dead) + 2]) == ("warning", f"{dead}: ")
    assert {line["text"] for line in (second, third)} <= {
        f"{works} is used, of 3 addresses",
        f"{works} works as well",
        f"{laptop.gateway.urls['ws']} is used, of 3 addresses",
        f"{laptop.gateway.urls['ws']} works as well",
    }
    assert [step["name"] for step in steps][-1] == "token"


def test_open_links_to_the_address_that_works(laptop: Laptop) -> None:
    laptop.knows(f"wss://127.0.0.1:{free_port()}/acp", laptop.gateway.urls["wss"])
    command = [*PROGRAM, "open", "--target", "box"]
    done = subprocess.run(command, env=laptop.environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    TRACES.note_tokens_in(done.stdout)
    assert done.stdout.startswith(laptop.gateway.urls["wss"].replace("wss", "https").removesuffix("acp"))
