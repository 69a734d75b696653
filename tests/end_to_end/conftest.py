"""One gateway for each module of tests, and nothing of its secrets is left behind."""

import json
import subprocess
import sys
from collections.abc import Generator, Iterator

import pytest

from tests.end_to_end import fork_server
from tests.end_to_end.traces import TRACES
from tests.kit.running import AGENTS, DIRECTED, RunningGateway, prepare, start_gateway


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """The program is started by a fork server, where the system allows it."""
    with pytest.MonkeyPatch.context() as patch:
        if fork_server.CLONE is not None:
            patch.setattr(subprocess.Popen, "_execute_child", fork_server.start)
        yield


@pytest.fixture(scope="module", autouse=True)
def no_token_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """None of the tokens that a module's tests used is where it should not be, when they and their gateway are done."""
    TRACES.forget()
    yield
    assert TRACES.search(tmp_path_factory.getbasetemp()) == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what was printed while a test ran, by the programs that it started as well."""
    report = yield
    for title, text in report.sections:
        TRACES.note(f"{title} of {item.name}", text)
    return report


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with the agents `directed` and `raw`, for each connection, and one of the SDK's, `sdk`, for all."""
    directory = tmp_path_factory.mktemp("gateway")
    raw, sdk = ([sys.executable, str(AGENTS / script)] for script in ("raw_agent.py", "sdk_agent.py"))
    agents = "".join(
        f'[agents.{name}]\ncommand = {json.dumps(command)}\nscope = "connection"\n'
        for name, command in {"directed": DIRECTED, "raw": raw}.items()
    )
    agents += f"[agents.sdk]\ncommand = {json.dumps(sdk)}\n"
    agents += '[agents.missing]\ncommand = ["/nonexistent/agent"]\n'
    # A killed shim could come back; these tests need not wait long to see that it doesn't.
    pin = prepare(directory, agents, more='default_agent = "directed"\naway_grace_idle = 0.5')
    running = start_gateway(directory, pin)
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
