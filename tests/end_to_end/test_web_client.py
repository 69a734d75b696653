"""The client of `/ws` among the examples, as a person would start it, with the gateway's certificate."""

import subprocess
import sys
from pathlib import Path

from tests.end_to_end.test_web_protocol import gateway
from tests.kit.running import ENVIRONMENT, RunningGateway

__all__ = ["gateway"]

CLIENT = Path(__file__).parents[2] / "examples" / "web_client.py"


def run_client(gateway: RunningGateway, text: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    url = gateway.urls["wss"].replace("/acp", "") + "/ws"
    certificate = str(gateway.directory / "cert.pem")
    return subprocess.run(
        [sys.executable, str(CLIENT), url, str(gateway.token_file), text, "--certificate", certificate],
        input=typed,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_example_client_opens_a_session_and_answers_a_permission_in_it(gateway: RunningGateway) -> None:
    first = run_client(gateway, "hello")
    assert (first.stdout, first.stderr) == ("0 sessions\nhello\n[end_turn]\n", "")
    assert run_client(gateway, "ask", "1\n").stdout == "1 sessions\n\ndo it\n  0: Yes\n  1: No\nno\n[end_turn]\n"
