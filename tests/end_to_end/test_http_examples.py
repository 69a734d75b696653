"""The conversation of docs/http.md, carried out by bash and curl with a gateway."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.traces import TRACES
from tests.kit.running import ENVIRONMENT, WORK, RunningGateway, prepare, start_gateway

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with the demo agent."""
    directory = tmp_path_factory.mktemp("gateway")
    command = f'["{sys.executable}", "{ROOT / "examples" / "demo_agent.py"}", "--delay", "0"]'
    running = start_gateway(directory, prepare(directory, f"[agents.demo]\ncommand = {command}\n"))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


def conversation(url: str, folder: Path) -> str:
    """Return the program of the page, with another URL and folder."""
    found = re.search(r"<!-- checked: conversation -->\n```bash\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    program = found[1]
    for written, meant in (("https://box:7443/acp", url), ("/srv/project", str(folder))):
        assert program.count(written) == 1
        program = program.replace(written, meant)
    return program


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_the_conversation_of_the_page_works_with_bash_and_curl_as_it_is_written(
    version: str, gateway: RunningGateway, tmp_path: Path
) -> None:
    if shutil.which("bash") is None or shutil.which("curl") is None:
        pytest.skip("bash or curl is not installed")
    project = Path(tempfile.mkdtemp(dir=WORK))
    (project / "a file").touch()
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(gateway.token)
    (tmp_path / ".curlrc").write_text(f'cacert = "{gateway.directory / "cert.pem"}"\nhttp{version}\n')
    url = f"https{gateway.urls['wss'][3:]}"
    environment = ENVIRONMENT | {"HOME": str(tmp_path)}
    asked = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_version}", url.replace("/acp", "/healthz")]
    spoken = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout
    if spoken != version:
        pytest.skip(f"this curl speaks no HTTP/{version}")
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", conversation(url, project)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    TRACES.note("what bash and curl printed", done.stdout + done.stderr)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    first, *others, last = done.stdout.splitlines()
    assert re.fullmatch(r'\{"jsonrpc":"2.0","id":0,"result":\{.*\} 200', first)
    answers = [line for line in others if not line.startswith("{")]
    messages = [line for line in others if line.startswith("{")]
    # session/new, session/prompt, the permission; then the end.
    assert ([*answers, last]) == [" 202"] * 4
    assert sum('"session/request_permission"' in message for message in messages) == 1
    assert any("a file" in message for message in messages)
    assert messages[-1] == '{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}'
