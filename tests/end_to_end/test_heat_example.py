"""The reader of the file tap among the examples, as a person would start it."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.parties import party, run
from tests.kit.free_ports import free_port
from tests.kit.running import DIRECTED, ENVIRONMENT, WORK, prepare, start_gateway

HEAT = Path(__file__).parents[2] / "examples" / "heat.py"


def test_the_example_shows_the_files_of_a_prompt_and_says_why_it_was_refused(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    agents = f"[agents.a]\ncommand = {json.dumps(DIRECTED)}\n"
    tap = f'[[listen]]\nurl = "tcp://{address}"\nserves = ["tap"]\n'
    gateway = start_gateway(tmp_path, prepare(tmp_path, agents, more=tap))
    for line in [*gateway.log, gateway.read_log_until("listening on ")]:
        # There are two listeners of one scheme.
        found = re.search(r"listening on (\S+?)(://.+)", line)
        if found:
            gateway.urls[found[1]] = found[1] + found[2]

    async def talk() -> None:
        token = await asyncio.to_thread(gateway.save_token, "token", "create", "--label", "heat", "--role", "observer")
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HEAT), str(token), address), env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert reader.stdout is not None
            async with party(gateway, "wss") as client:
                session = (await client.agent.new_session(cwd=str(WORK), mcp_servers=[])).session_id
                await reader.stdout.readuntil(b"0 files in 1 sessions\n")
                await client.prompt(session, "echo", "see @lib/a.py")
                shown = await reader.stdout.readuntil(b"1 files in 1 sessions\n")
                assert re.match(rb"#{10} user_referenced +lib/a\.py ", shown.splitlines()[-2])
        finally:
            reader.kill()
            await reader.wait()

    try:
        run(talk())
        wrong = tmp_path / "wrong"
        wrong.write_text("acpgw_wrong")
        done = subprocess.run(
            [sys.executable, HEAT, wrong, address],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, "the gateway has refused: " in done.stderr) == (1, True)
    finally:
        assert gateway.stop() == 0, "".join(gateway.log)
