"""One gateway for each module of tests, and nothing of its secrets is left behind."""

import sys
from collections.abc import Generator, Iterator

import pytest

from tests.end_to_end.running import AGENTS, RunningGateway, prepare, start_gateway
from tests.end_to_end.traces import TRACES


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
    """A gateway with the SDK's agent and a raw one, `sdk` and `raw`, for each connection, and `one-sdk` for all."""
    directory = tmp_path_factory.mktemp("gateway")
    agents = "".join(
        f'[agents.{name}]\ncommand = ["{sys.executable}", "{AGENTS / script}"]\nscope = "connection"\n'
        for name, script in {"sdk": "sdk_agent.py", "raw": "raw_agent.py"}.items()
    )
    agents += f'[agents.one-sdk]\ncommand = ["{sys.executable}", "{AGENTS / "sdk_agent.py"}"]\n'
    agents += '[agents.missing]\ncommand = ["/nonexistent/agent"]\n'
    # A killed shim could come back; these tests need not wait long to see that it doesn't.
    pin = prepare(directory, agents, more='default_agent = "sdk"\naway_grace_idle = 0.5')
    running = start_gateway(directory, pin)
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
