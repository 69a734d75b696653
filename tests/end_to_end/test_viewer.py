"""The viewer among the examples, as a person would start it, with the gateway's certificate and a guest's token."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.parties import party, run
from tests.end_to_end.traces import TRACES
from tests.kit.running import ENVIRONMENT, PROGRAM, WORK, RunningGateway

VIEWER = Path(__file__).parents[2] / "examples" / "viewer.py"


@pytest.mark.parametrize("option", ["--pin", "--certificate"])
def test_the_example_viewer_prints_what_is_said_before_and_after_it_came(gateway: RunningGateway, option: str) -> None:
    trust = [option, gateway.pin if option == "--pin" else str(gateway.directory / "cert.pem")]

    async def talk() -> None:
        async with party(gateway, "wss") as owner:
            # By another name than the certificate is for, as long as it is the right key.
            url = gateway.urls["wss"].replace("127.0.0.1", "localhost" if trust[0] == "--pin" else "127.0.0.1")
            session = (await owner.agent.new_session(cwd=str(WORK), mcp_servers=[])).session_id
            await owner.prompt(session, "echo", "said before")
            token = await asyncio.to_thread(gateway.save_token, "share", session, "--token", "--observe")
            viewer = await asyncio.create_subprocess_exec(
                *(sys.executable, str(VIEWER), url, str(token), *trust), env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE
            )
            try:
                assert viewer.stdout is not None
                # Each is said by the user and then by the agent, which echoes it.
                await viewer.stdout.readuntil(b"\n> said before")
                await viewer.stdout.readuntil(b"said before")
                await owner.prompt(session, "echo", "said after")
                await viewer.stdout.readuntil(b"\n> said after")
                await viewer.stdout.readuntil(b"said after")
            finally:
                viewer.kill()
                await viewer.wait()

    run(talk())


def test_the_example_viewer_shows_no_token_to_a_gateway_with_another_key(gateway: RunningGateway) -> None:
    done = subprocess.run(
        [sys.executable, VIEWER, gateway.urls["wss"], gateway.token_file, "--pin", "sha256:" + 64 * "0"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"the gateway's key does not match the pin: its pin is {gateway.pin}" in done.stderr


def test_a_guest_joins_by_the_command_that_sharing_prints(gateway: RunningGateway, tmp_path: Path) -> None:
    config = gateway.config

    def share(session: str) -> list[str]:
        with (tmp_path / "guest.token").open("w") as file:
            # As a shell makes it by default.
            os.fchmod(file.fileno(), 0o644)
            command = [*PROGRAM, "share", session, "--token", "--observe", "--config", str(config)]
            done = subprocess.run(command, env=ENVIRONMENT, stdout=file, stderr=subprocess.PIPE, text=True, check=True)
        return shlex.split(done.stderr.splitlines()[-1])

    async def talk() -> None:
        async with party(gateway, "wss") as owner:
            session = (await owner.agent.new_session(cwd=str(WORK), mcp_servers=[])).session_id
            await owner.prompt(session, "echo", "said before")
            program, *arguments = await asyncio.to_thread(share, session)
            assert program == "acp-gateway"
            guest = await asyncio.create_subprocess_exec(
                *(*PROGRAM, *arguments),
                cwd=tmp_path,
                env=ENVIRONMENT | {"PYTHONPATH": os.getcwd()},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            assert guest.stdin is not None
            assert guest.stdout is not None
            for number, method in enumerate(("initialize", "session/new")):
                params = {"protocolVersion": 1, "cwd": str(WORK), "mcpServers": []}
                request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                guest.stdin.write(json.dumps(request).encode() + b"\n")
            await guest.stdout.readuntil(b"said before")
            guest.stdin.close()
            assert await guest.wait() == 0

    run(talk())
    TRACES.note_tokens_in((tmp_path / "guest.token").read_text())
    (tmp_path / "guest.token").unlink()


def test_a_guest_joins_by_an_invitation(gateway: RunningGateway, tmp_path: Path) -> None:
    config = gateway.config
    laptop = ENVIRONMENT | {"XDG_CONFIG_HOME": str(tmp_path / "guest")}

    def execute(*words: str, environment: dict[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
        command = [*PROGRAM, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        TRACES.note_tokens_in(done.stdout)
        return done

    async def talk() -> None:
        async with party(gateway, "wss") as owner:
            session = (await owner.agent.new_session(cwd=str(WORK), mcp_servers=[])).session_id
            shared = await asyncio.to_thread(execute, "share", session, "--observe", "--config", str(config))
            program, command, line = shared.stdout.split()
            assert (program, command) == ("acp-gateway", "join"), shared.stderr
            joined = await asyncio.to_thread(execute, command, line, environment=laptop)
            assert joined.returncode == 0, joined.stderr
            token = tmp_path / "guest/acp-gateway/127.0.0.1.token"
            TRACES.note_tokens_in(token.read_text())
            pinged = await asyncio.to_thread(execute, "ping", "127.0.0.1", environment=laptop)
            assert pinged.returncode == 0, pinged.stdout
            assert f": observer, session {session} only" in pinged.stdout
            again = await asyncio.to_thread(execute, command, line, "--name", "again", environment=laptop)
            assert again.returncode == 4
            assert "it can be used once, within 10 minutes" in again.stderr
            token.unlink()

    run(talk())
