"""One gateway for each module of tests."""

import sys
from collections.abc import Iterator

import pytest

from tests.end_to_end.running import AGENTS, RunningGateway, prepare, start_gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with the SDK's agent, named `sdk`, and a raw one, named `raw`."""
    directory = tmp_path_factory.mktemp("gateway")
    agents = "".join(
        f'[agents.{name}]\ncommand = ["{sys.executable}", "{AGENTS / script}"]\nscope = "connection"\n'
        for name, script in {"sdk": "sdk_agent.py", "raw": "raw_agent.py"}.items()
    )
    agents += '[agents.missing]\ncommand = ["/nonexistent/agent"]\n'
    # A killed shim could come back; for these tests nobody needs long to see that it doesn't.
    pin = prepare(directory, agents, more='default_agent = "sdk"\naway_grace_idle = 0.5')
    running = start_gateway(directory, pin)
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
