"""The viewer among the examples, as a person would start it, with the gateway's certificate and a guest's token."""

import asyncio
import sys
from pathlib import Path

from tests.end_to_end.parties import party, run
from tests.end_to_end.running import ENVIRONMENT, RunningGateway

VIEWER = Path(__file__).parents[2] / "examples" / "viewer.py"


def test_the_example_viewer_prints_what_is_said_before_and_after_it_came(gateway: RunningGateway) -> None:
    async def talk() -> None:
        async with party(gateway, "wss") as owner:
            session = (await owner.agent.new_session(cwd="/", mcp_servers=[])).session_id
            await owner.prompt(session, "echo", "said before")
            token = await asyncio.to_thread(gateway.save_token, "share", session, "--observe")
            viewer = await asyncio.create_subprocess_exec(
                *(sys.executable, str(VIEWER), gateway.urls["wss"], str(token), str(gateway.directory / "cert.pem")),
                env=ENVIRONMENT,
                stdout=asyncio.subprocess.PIPE,
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
